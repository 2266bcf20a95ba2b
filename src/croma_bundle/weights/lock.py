"""`lock-weights`: ask the hub once for what the entries leave open, and write it to the generated lock."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from croma_bundle.durable import write_bytes
from croma_bundle.errors import BundleError, EnvironmentFault, InputError, raise_all, some
from croma_bundle.manifests.hub_recipe import STATED, recipe_of
from croma_bundle.manifests.models import Encoder, WeightFile, plain
from croma_bundle.manifests.weights_lock import LockedFile, LockedWeights, read_weights_lock, weights_lock_text
from croma_bundle.progress import Reporter
from croma_bundle.weights.cache import git_blob_id
from croma_bundle.weights.hub import Hub, Stated, connect
from croma_bundle.weights.refusals import HubUnreachable
from croma_bundle.weights.wanted import LOADED, HubCommit, commit_of, no_such_file, open_questions

TRANSFORM = {
    "config.json": ("pretrained_cfg",),
    "preprocessor_config.json": (),
}
"""Where repositories say how images are prepared: the file, and the table in it."""
TRANSFORM_KEYS = (
    *("input_size", "fixed_input_size", "interpolation", "crop_pct", "crop_mode", "mean", "std"),
    *("do_resize", "size", "resample", "do_center_crop", "crop_size", "do_rescale", "rescale_factor"),
    *("do_normalize", "image_mean", "image_std"),
)


def lock_weights(output: Path, entries: Sequence[Encoder], reporter: Reporter, *, again: bool = False) -> None:
    """Resolve what is open in `entries` and write `output`; what it holds already stays, unless `again`.

    Raises:
        BundleError, SeveralErrors: every encoder that failed, after the others were written.
    """
    lock = read_weights_lock(output)
    faults, hub = list[BundleError](), None
    for entry in entries:
        questions = open_questions(entry)
        if not questions or (answers(lock.get(entry.name), entry) and not again):
            continue
        try:
            hub = hub or connect()
            lock[entry.name] = locked = resolve_open(hub, entry, reporter)
        except BundleError as fault:
            faults.append(fault)
            reporter.say(f"{entry.name}: failed, {getattr(fault, 'problem', 'see below')}", "failed")
            if isinstance(fault, HubUnreachable):
                break
            continue
        text = f"{entry.name}: {', '.join(questions)} at {locked.repository}@{locked.revision}"
        reporter.result(text, "locked", encoder=entry.name, revision=locked.revision)
        if entry.open:
            names = [
                name for name in hub.stated(HubCommit(locked.repository, locked.revision)) if name.endswith(LOADED)
            ]
            told = [f"open: {entry.open}", f"the commit holds {some(names, 20)}", *_of_recipe(entry, locked)]
            reporter.say("\n".join(f"  {line}" for line in told), "open", encoder=entry.name)
    if lock or output.exists():
        _write(output, weights_lock_text(lock), reporter)
    raise_all(faults)


def answers(locked: LockedWeights | None, entry: Encoder) -> bool:
    """Whether the lock holds everything that the entry leaves open, of the same repository and commit."""
    if locked is None or locked.repository != entry.repository or entry.revision not in (None, locked.revision):
        return False
    return {file.name for file in entry.files if file.sha256 is None} <= locked.files.keys()


def _of_recipe(entry: Encoder, locked: LockedWeights) -> list[str]:
    """What the repository's configuration says of the recipe, where its entry has none, or another one."""
    if entry.backend == "timm":
        return _of_timm(entry, locked)
    stated = [locked.transform.get(key) for key in ("image_mean", "image_std")]
    if None in stated or entry.recipe is None or stated == [list(entry.recipe.mean), list(entry.recipe.std)]:
        return []
    return [f"its preprocessor_config.json has other numbers than its entry: mean {stated[0]}, std {stated[1]}"]


def _of_timm(entry: Encoder, locked: LockedWeights) -> list[str]:
    found = recipe_of(locked.transform)
    if found is None:
        return [f"its config.json does not say a whole recipe ({', '.join(STATED)})"]
    shown = ", ".join(f"{key} {value}" for key, value in plain(found).items())
    if entry.recipe is None:
        return [f"recipe: {shown}"]
    return [] if entry.recipe == found else [f"its config.json makes another recipe than its entry: {shown}"]


def resolve_open(hub: Hub, entry: Encoder, reporter: Reporter) -> LockedWeights:
    """What the hub states for one entry, at its revision or, where it has none, at the repository's newest commit."""
    repository = str(entry.repository)
    commit = HubCommit(repository, entry.revision or hub.head(repository))
    pinned = entry.model_copy(update={"revision": commit.revision})
    return LockedWeights(
        name=entry.name,
        repository=repository,
        revision=commit.revision,
        resolved=time.strftime("%Y-%m-%d", time.gmtime()),
        files={file.name: _locked(hub, pinned, file) for file in entry.files if file.sha256 is None},
        transform=_transform(hub, commit, hub.stated(commit), reporter),
    )


def _locked(hub: Hub, entry: Encoder, file: WeightFile) -> LockedFile:
    commit = commit_of(entry, file)
    stated = hub.stated(commit)
    if file.name not in stated:
        raise no_such_file(f"encoder {entry.name}", commit, file.name, stated)
    return LockedFile(sha256=_sha256(hub, commit, stated[file.name]), bytes=stated[file.name].bytes)


def _sha256(hub: Hub, commit: HubCommit, stated: Stated) -> str:
    """A large file's as the hub states it; a small file's content is read, and checked against git's id of it."""
    if stated.sha256 is not None:
        return stated.sha256
    content = hub.read(commit, stated)
    if git_blob_id(content) != stated.blob:
        raise InputError(f"{commit}, {stated.name}", "what was read is not what the hub states")
    return hashlib.sha256(content).hexdigest()


def _transform(hub: Hub, commit: HubCommit, files: Mapping[str, Stated], reporter: Reporter) -> dict[str, Any]:
    """What the repository's configuration says of the preparation of images, keys as it spells them; none is fine."""
    found: dict[str, Any] = {}
    for name, path in TRANSFORM.items():
        if name not in files:
            continue
        try:
            table = json.loads(hub.read(commit, files[name]))
        except EnvironmentFault as fault:
            reporter.warn(f"{commit}: {name} was not read: {fault.problem}")
            continue
        except ValueError as error:
            raise InputError(f"{commit}, {name}", "it is not JSON", found=str(error)) from None
        for key in path:
            table = table.get(key) if isinstance(table, dict) else None
        if isinstance(table, dict):
            found |= {key: _without_null(table[key]) for key in TRANSFORM_KEYS if table.get(key) is not None}
    return found


def _without_null(value: Any) -> Any:
    """What TOML can hold of a JSON value."""
    if isinstance(value, dict):
        return {key: _without_null(item) for key, item in value.items() if item is not None}
    return [_without_null(item) for item in value if item is not None] if isinstance(value, list) else value


def _write(output: Path, text: str, reporter: Reporter) -> None:
    if output.exists() and output.read_text(encoding="utf-8") == text:
        reporter.say(f"{output} holds all that is open", "lock")
        return
    try:
        write_bytes(output, text.encode())
    except OSError as error:
        raise EnvironmentFault(
            str(output),
            f"it cannot be written ({error.strerror})",
            detail="It belongs into a checkout, to be committed.",
            then="croma-bundle lock-weights --output FILE",
        ) from None
    reporter.say(f"written: {output}", "lock")
