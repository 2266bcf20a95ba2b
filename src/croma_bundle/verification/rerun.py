"""`verify run`: a folder that `score` or `probe` wrote, made again from the matrices on this volume."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import math
import tempfile
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from croma_bundle.artifacts.pair import embedded, subject_of
from croma_bundle.artifacts.sidecar import read_sidecar
from croma_bundle.durable import sha256_file
from croma_bundle.errors import ArtifactError, BundleError, InputError, VerdictFailed, did_you_mean, raise_all
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.progress import Reporter
from croma_bundle.scoring.run import Request, score_all
from croma_bundle.scoring.score import Knobs
from croma_bundle.tilemanifest.table import csv_text
from croma_bundle.verification.rerun_probe import REPLAYED, probe_again
from croma_bundle.verification.scored import read_run
from croma_bundle.verification.tables import SHOWN, compare_tables, read_text

TOLERANCE = 1e-9
"""What another numpy or another CPU may change in the last bits of a number."""
TOLD_ONLY = {"refused", "versions"}
"""Parts that tell of artifacts outside this run, and of what made it."""
SCORED_FROM = (
    "tileset", "manifest_sha256", "manifest_fingerprint", "view_sha256", "cohort_sha256", "pixels_sha256"
)  # fmt: skip
NEEDED = {"score": ("benchmark", "protocol", "confounder", "k", "tau", "m"), "probe": REPLAYED}
"""What a repetition needs of `replay`, by command."""


class _Silent(Reporter):
    """Keeps progress and warnings, and drops what tells of a folder that goes away."""

    def say(self, text: str, event: str = "note", **fields: Any) -> None:
        if event != "note":
            super().say(text, event, **fields)

    def result(self, text: str, event: str, **fields: Any) -> None: ...


def verify_run(volume: Volume, catalogue: Catalogue, folder: Path, reporter: Reporter) -> None:
    """Score or sweep again what `folder` says it is, and compare every table.

    Raises:
        InputError: it is no scored folder, or this volume has not what it was scored from.
        ArtifactError: its run.json is damaged, or this volume has other matrices or rows under the same names.
        VerdictFailed: the tables do not follow from the matrices.
    """
    if not folder.is_dir():
        raise InputError(str(folder), "there is no such folder", wanted="metrics/… or probe/… of a volume")
    run = read_run(folder, str(folder))
    _require_replay(run, str(folder))
    with tempfile.TemporaryDirectory(prefix="croma-verify-") as place:
        again = _score_again(volume, catalogue, run, Volume(Path(place)), str(folder), reporter)
        redone = read_run(again, str(again))
        ours = volume.shown(volume.root / again.relative_to(place))
        _require_same_inputs(run["inputs"], redone["inputs"], str(folder), ours)
        _compare(folder, run, again, redone, reporter)


def _score_again(
    volume: Volume, catalogue: Catalogue, run: Mapping[str, Any], scratch: Volume, shown: str, reporter: Reporter
) -> Path:
    """The folder of the repeated run, on a scratch volume that looks at this one's tilesets and embeddings."""
    replay, silent = run["replay"], _Silent(as_json=reporter.as_json)
    name = replay["benchmark"]
    benchmark = catalogue.benchmark(name)
    tileset = catalogue.tileset(benchmark.tileset)
    if replay.get("command") == "probe":
        _require_inputs(volume, tileset.name, run, shown, volume.shown(volume.probe(name)))
        return probe_again(run, catalogue, _looking_at(volume, scratch), silent)
    protocol, confounder = replay["protocol"], replay["confounder"]
    default = benchmark.confounder or tileset.confounder
    override = confounder if confounder != default else None
    _require_inputs(volume, tileset.name, run, shown, volume.shown(volume.metrics(protocol, name, override)))
    _looking_at(volume, scratch)
    again = scratch.metrics(protocol, name, override)
    knobs = Knobs(**{f.name: replay[f.name] for f in fields(Knobs) if f.name in replay})
    recorded = run["inputs"]["encoders"]
    request = Request([name], sorted(recorded), [confounder], None, knobs)
    try:
        score_all(scratch, catalogue, request, silent)
    except BundleError as fault:
        # What is undefined here was undefined there: that is compared. An encoder that is refused cannot be.
        if not (again / "run.json").exists() or set(read_run(again, str(again))["inputs"]["encoders"]) != set(recorded):
            raise fault from None
    return again


def _looking_at(volume: Volume, scratch: Volume) -> Volume:
    """The scratch volume, with this one's tilesets, embeddings and declarations."""
    scratch.root.mkdir(parents=True, exist_ok=True)
    for ours, theirs in (
        (scratch.tilesets, volume.tilesets),
        (scratch.embeddings_root, volume.embeddings_root),
        (scratch.encoder_declarations, volume.encoder_declarations),
    ):
        if theirs.exists():
            ours.symlink_to(theirs.resolve(), target_is_directory=True)
    return scratch


def _require_replay(run: Mapping[str, Any], shown: str) -> None:
    """Raise `ArtifactError` where run.json has not what a repetition needs."""
    needed = NEEDED.get(run["replay"].get("command", "score"))
    lacking = [f"replay.{key}" for key in needed if key not in run["replay"]] if needed else ["a known replay.command"]
    encoders = run["inputs"].get("encoders")
    if not isinstance(encoders, dict) or not all(
        isinstance(e, dict) and "matrix_sha256" in e for e in encoders.values()
    ):
        lacking.append("inputs.encoders")
    if lacking:
        raise ArtifactError(f"{shown}/run.json", f"it is damaged: it lacks {', '.join(lacking)}")


def _require_inputs(volume: Volume, tileset: str, run: Mapping[str, Any], folder: str, ours: str) -> None:
    """Raise for every matrix that is not there, or is another one by its sidecar, before anything is scored."""
    recorded = run["inputs"]["encoders"]
    present = embedded(volume, tileset)
    faults: list[BundleError] = [
        InputError(
            subject_of(tileset, name),
            f"the run was scored from this matrix, and it is not on this volume{did_you_mean(name, present)}",
            wanted=f"matrix_sha256 {recorded[name]['matrix_sha256'][:12]}…",
            then=f"Copy {name}.npy and {name}.npy.json to {volume.relative(volume.embeddings(tileset))}/, or embed it.",
        )
        for name in sorted(recorded)
        if name not in present
    ]
    raise_all(faults)
    sidecars = {name: read_sidecar(volume.sidecar(tileset, name), subject_of(tileset, name)) for name in recorded}
    manifest = volume.tile_manifest(tileset)
    here = {
        "tileset": tileset,
        "manifest_sha256": sha256_file(manifest) if manifest.exists() else None,
        "encoders": {name: {"matrix_sha256": sidecar["matrix_sha256"]} for name, sidecar in sidecars.items()},
    }
    _require_same_inputs(run["inputs"], here, folder, ours)


def _require_same_inputs(theirs: Mapping[str, Any], here: Mapping[str, Any], folder: str, ours: str) -> None:
    """Raise `ArtifactError` naming every input that is not the recorded one: then the tables say nothing."""
    lines = [
        f"{key}: recorded {_short(theirs.get(key))}, here {_short(here[key])}"
        for key in SCORED_FROM
        if key in here and theirs.get(key) != here[key]
    ]
    for encoder in sorted({*theirs["encoders"], *here["encoders"]}):
        a, b = (side["encoders"].get(encoder, {}).get("matrix_sha256") for side in (theirs, here))
        if a != b:
            lines.append(f"{encoder} matrix_sha256: recorded {_short(a)}, here {_short(b)}")
    if lines:
        raise ArtifactError(
            folder,
            "this volume has other inputs than the run was scored from, so its tables cannot be checked here",
            found="\n           ".join(lines),
            detail="Copy the run's own, or score here and compare the numbers within a tolerance of your choice:",
            then=f"croma-bundle verify tables {ours} {folder} --tolerance 0.005",
        )


def _compare(folder: Path, run: Mapping[str, Any], again: Path, redone: Mapping[str, Any], reporter: Reporter) -> None:
    outputs = redone["outputs"]
    differing = [f"run.json states no {name}" for name in sorted(set(outputs) - set(run["outputs"]))]
    differing += [
        f"{name}: scoring it again makes no such table" for name in sorted(set(run["outputs"]) - set(outputs))
    ]
    unstated, changed = [], []
    for name, sha256 in sorted(outputs.items()):
        found = _content(folder, name)
        if found is None:
            differing.append(f"{name}: it is missing in {folder}")
            continue
        digest = hashlib.sha256(found).hexdigest()
        if name in run["outputs"] and digest != run["outputs"][name]:
            unstated.append(name)
        if digest != sha256:
            changed.append(name)
            differing += _table_differences(found, _content(again, name) or b"", name)
    differing += _resolved_differences(run["resolved"], redone["resolved"], "run.json resolved")
    made = _versions(run.get("versions", {}), redone["versions"])
    if differing:
        more = [f"and {len(differing) - SHOWN} more"] if len(differing) > SHOWN else []
        tampered = [f"Not the tables that its own run.json states: {', '.join(unstated)}."] if unstated else []
        count = "one difference" if len(differing) == 1 else f"{len(differing)} differences"
        raise VerdictFailed(
            str(folder),
            f"its tables do not follow from the matrices with its knobs: {count}",
            detail="\n  ".join([*differing[:SHOWN], *more, *tampered, *([made] if made else [])]),
        )
    if unstated:
        problem = "its numbers hold, but files are not those that its run.json states"
        raise ArtifactError(str(folder), problem, found=", ".join(unstated))
    count = "one table" if len(outputs) == 1 else f"{len(outputs)} tables"
    replay = run["replay"]
    how = f"{replay['protocol']} scored" if "protocol" in replay else "probe swept"
    text = f"equal: {count} of {replay['benchmark']} · {how} again, "
    text += "byte for byte" if not changed else f"numbers within {TOLERANCE:g}; other bytes in {', '.join(changed)}"
    if made:
        text += f"\n  {made}"
    reporter.result(text, "verdict", equal=True, tables=len(outputs), other_bytes=changed, folder=str(folder))


def _content(folder: Path, name: str) -> bytes | None:
    """A table's bytes, before compression where it is written compressed; damaged ones are told as an empty table."""
    path = folder / name
    if path.exists():
        return path.read_bytes()
    packed = path.with_name(f"{path.name}.gz")
    if not packed.exists():
        return None
    try:
        return gzip.decompress(packed.read_bytes())
    except (OSError, EOFError, ValueError):
        return b""


def _table_differences(found: bytes, wanted: bytes, name: str) -> list[str]:
    if name.startswith("accuracies/"):
        try:
            return _resolved_differences(json.loads(found), json.loads(wanted), name)
        except ValueError as error:
            return [f"{name}: it cannot be read ({error})"]
    try:
        ours = _as_table(found, name)
    except InputError as fault:
        return [f"{name}: {fault.problem}"]
    return compare_tables(ours, _as_table(wanted, name), name, TOLERANCE).differing


def _as_table(content: bytes, name: str) -> list[list[str]]:
    if not name.endswith(".json"):
        return read_text(content, name)
    try:
        table = json.loads(content)
        columns = table["columns"]
        text = csv_text(columns, [[row[c] for c in columns] for row in table["rows"]])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(name, f"this table cannot be read ({error!r})") from None
    return list(csv.reader(io.StringIO(text, newline="")))


def _resolved_differences(found: Any, wanted: Any, where: str) -> list[str]:
    """Where two JSON values differ, numbers by more than the tolerance."""
    if isinstance(found, dict) and isinstance(wanted, dict):
        keys = sorted({*found, *wanted} - TOLD_ONLY)
        return [
            line for key in keys for line in _resolved_differences(found.get(key), wanted.get(key), f"{where}.{key}")
        ]
    if isinstance(found, list) and isinstance(wanted, list) and len(found) == len(wanted):
        pairs = enumerate(zip(found, wanted, strict=True))
        return [line for i, (a, b) in pairs for line in _resolved_differences(a, b, f"{where}[{i}]")]
    numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in (found, wanted))
    if found == wanted or (numbers and math.isclose(found, wanted, rel_tol=0, abs_tol=TOLERANCE)):
        return []
    return [f"{where}: {found!r}, wanted {wanted!r}"]


def _versions(theirs: Mapping[str, Any], ours: Mapping[str, Any]) -> str:
    if theirs == ours:
        return ""
    return f"made with {_named(theirs)}; here {_named(ours)}"


def _named(made: Mapping[str, Any]) -> str:
    bundle = made.get("bundle") or {}
    commit = str(bundle.get("git_commit") or "no commit")[:12]
    code = str(made.get("source_sha256") or "unknown")[:12]
    version = f"croma-bundle {bundle.get('version')} ({commit}), code {code}"
    learn = f", scikit-learn {made['scikit-learn']}" if "scikit-learn" in made else ""
    return f"{version}, Python {made.get('python')}, numpy {made.get('numpy')}{learn}"


def _short(value: Any) -> str:
    text = "none" if value is None else str(value)
    return f"{text[:12]}…" if len(text) > 40 else text
