"""The catalogue: the packaged manifests joined with the declarations on the volume.

Every private encoder of `<volume>/encoders/*.toml` and every tileset of `<volume>/tilesets/*/tileset.toml` (which also
declares a benchmark of its name over all its rows) joins the packaged ones; a name declared twice is refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from croma_bundle.durable import listing
from croma_bundle.errors import BundleError, InputError, ManifestError, UsageError, did_you_mean, raise_all
from croma_bundle.layout import Volume, checked_name
from croma_bundle.manifests.load import entries_of, read_named, read_single, read_toml
from croma_bundle.manifests.models import Benchmark, Encoder, Tileset
from croma_bundle.manifests.second_recipes import with_second_recipes
from croma_bundle.manifests.tilesets_lock import read_tilesets_lock, with_locked_metadata
from croma_bundle.manifests.weights_lock import LOCK, read_weights_lock, with_lock

Entry = TypeVar("Entry", Encoder, Tileset, Benchmark)

_PACKAGED = Path(__file__).resolve().parent.parent / "_manifests"
_CHECKOUT = Path(__file__).resolve().parents[3] / "manifests"


def packaged_manifests() -> Path:
    """The folder of pins: inside the wheel, or of the checkout that an editable install points to."""
    return _PACKAGED if _PACKAGED.is_dir() else _CHECKOUT


@dataclass(frozen=True)
class Catalogue:
    """Everything that is declared, by name, and the file that declares it."""

    encoders: Mapping[str, Encoder]
    tilesets: Mapping[str, Tileset]
    benchmarks: Mapping[str, Benchmark]
    declared: Mapping[tuple[str, str], Path]

    def encoder(self, name: str) -> Encoder:
        return self._get("encoder", self.encoders, name)

    def tileset(self, name: str) -> Tileset:
        return self._get("tileset", self.tilesets, name)

    def benchmark(self, name: str) -> Benchmark:
        return self._get("benchmark", self.benchmarks, name)

    @contextmanager
    def telling_where(self) -> Iterator[None]:
        """Faults of an entry, or of one's own files, that are raised within name the file that declares it."""
        try:
            yield
        except BundleError as fault:
            for one in getattr(fault, "errors", (fault,)):
                name = one.subject.removeprefix("encoder ").partition(",")[0]
                entry, path = self.encoders.get(name), self.declared.get(("encoder", name))
                if entry and path and (isinstance(one, ManifestError) or entry.repository is None):
                    one.declared = one.declared or str(path)
            raise

    def is_control(self, name: str) -> bool:
        """Whether an encoder of this name is declared as a control; an import under that name is one too."""
        return name in self.encoders and self.encoders[name].control

    def family(self, name: str) -> list[Encoder]:
        """The encoders of a family, in their declared order; second recipes run only when they are named."""
        families = {entry.family for entry in self.encoders.values()}
        if name not in families:
            raise _unknown("encoder family", name, sorted(families), "croma-bundle list encoders")
        return [entry for entry in self.encoders.values() if entry.family == name and entry.of is None]

    def _get(self, kind: str, entries: Mapping[str, Entry], name: str) -> Entry:
        if name not in entries:
            raise _unknown(kind, name, list(entries), f"croma-bundle list {kind}s")
        return entries[name]


def _unknown(kind: str, name: str, known: list[str], command: str) -> InputError:
    return InputError(
        f"{kind} {name!r}",
        f"it is not declared{did_you_mean(name, known)}",
        wanted=", ".join(known) or f"a declared {kind} (there is none yet)",
        then=command,
    )


def load_catalogue(volume: Volume, manifests: Path | None = None, *, locked: bool = True) -> Catalogue:
    """Read all manifests and declarations; `locked` fills what they leave open from the generated locks.

    Raises:
        ManifestError, SeveralErrors: what is wrong, every file at once.
    """
    folder = manifests or packaged_manifests()
    faults: list[BundleError] = []
    declared: dict[tuple[str, str], Path] = {}

    encoders = _join("encoder", _encoders(folder, volume, faults), declared, faults)
    faults += _mistyped_families(encoders, declared, folder)
    if locked:
        encoders = _filled_from_lock(encoders, folder, faults)
    before = len(faults)
    tilesets_with_paths = _tilesets(folder, volume, faults)
    all_read = len(faults) == before
    tilesets = _join("tileset", tilesets_with_paths, declared, faults)
    if locked:
        tilesets = _metadata_from_lock(tilesets, folder, faults)
    on_volume = [
        (Benchmark(name=t.name, tileset=t.name, confounder=t.confounder, design=t.design), path)
        for t, path in tilesets_with_paths
        if path.is_relative_to(volume.tilesets)
    ]
    benchmarks = _join("benchmark", [*_benchmarks(folder, faults), *on_volume], declared, faults)
    if all_read:
        faults += _without_tileset(benchmarks, tilesets, declared)
    raise_all(faults)
    return Catalogue(encoders, tilesets, benchmarks, declared)


def _mistyped_families(
    encoders: Mapping[str, Encoder], declared: Mapping[tuple[str, str], Path], folder: Path
) -> list[BundleError]:
    """Entries of one's own whose family nearly is one that has an image."""
    known = {entry.family for name, entry in encoders.items() if declared["encoder", name].is_relative_to(folder)}
    faults: list[BundleError] = []
    for name, entry in encoders.items():
        if entry.family not in known and (hint := did_you_mean(entry.family, known)):
            problem = f"{name}: family = {entry.family!r} has no image{hint}"
            faults.append(ManifestError(str(declared["encoder", name]), problem, wanted=", ".join(sorted(known))))
    return faults


def _filled_from_lock(encoders: Mapping[str, Encoder], folder: Path, faults: list[BundleError]) -> dict[str, Encoder]:
    filled = dict(encoders)
    with _Collecting(faults):
        lock = read_weights_lock(folder / LOCK)
        for name, entry in encoders.items():
            with _Collecting(faults):
                if entry.checkpoint in lock:
                    filled[name] = with_lock(entry, lock[entry.checkpoint])
    return filled


def _metadata_from_lock(tilesets: Mapping[str, Tileset], folder: Path, faults: list[BundleError]) -> dict[str, Tileset]:
    filled = dict(tilesets)
    with _Collecting(faults):
        for name, known in read_tilesets_lock(folder).items():
            with _Collecting(faults):
                if name in tilesets:
                    filled[name] = with_locked_metadata(tilesets[name], known)
    return filled


def _without_tileset(
    benchmarks: Mapping[str, Benchmark], tilesets: Mapping[str, Tileset], declared: Mapping[tuple[str, str], Path]
) -> list[ManifestError]:
    """Benchmarks whose tileset is not declared."""
    return [
        ManifestError(
            f"benchmark {name}",
            f"its tileset {entry.tileset!r} is not declared{did_you_mean(entry.tileset, tilesets)}",
            declared=str(declared["benchmark", name]),
        )
        for name, entry in benchmarks.items()
        if entry.tileset not in tilesets
    ]


def _encoders(folder: Path, volume: Volume, faults: list[BundleError]) -> list[tuple[Encoder, Path]]:
    found: list[tuple[Encoder, Path]] = []
    packaged: dict[str, Any] = {}
    for path in sorted((folder / "encoders").glob("*.toml")):
        with _Collecting(faults):
            tables, wrong = with_second_recipes(own := read_toml(path), {})
            packaged |= {name: {**table, "family": path.stem} for name, table in own.items() if isinstance(table, dict)}
            found += [(entry, path) for entry in entries_of(path, tables, Encoder, {"family": path.stem}, wrong)]
    for path in _listing(volume.encoder_declarations, "*.toml"):
        with _Collecting(faults):
            tables, wrong = with_second_recipes(read_toml(path), packaged)
            found += [(entry, path) for entry in entries_of(path, tables, Encoder, None, wrong)]
    return found


def _tilesets(folder: Path, volume: Volume, faults: list[BundleError]) -> list[tuple[Tileset, Path]]:
    found: list[tuple[Tileset, Path]] = []
    for path in sorted((folder / "tilesets").glob("*.toml")):
        with _Collecting(faults):
            found.append((read_single(path, Tileset, {"name": path.stem}), path))
    for path in _listing(volume.tilesets, "*/tileset.toml"):
        with _Collecting(faults):
            found.append((read_single(path, Tileset, {"name": path.parent.name}), path))
    return found


def _benchmarks(folder: Path, faults: list[BundleError]) -> list[tuple[Benchmark, Path]]:
    path = folder / "benchmarks.toml"
    with _Collecting(faults):
        return [(entry, path) for entry in read_named(path, Benchmark)]
    return []


def _listing(folder: Path, pattern: str) -> list[Path]:
    """Files below the folder that match; raises `OSError` where it may not be read, instead of finding nothing."""
    first = listing(folder)
    for name in first:
        if (folder / name).is_dir():
            listing(folder / name)
    return sorted(folder.glob(pattern)) if first else []


class _Collecting:
    """Gathers the `BundleError` of its block, so that the faults of all files are told together."""

    def __init__(self, faults: list[BundleError]) -> None:
        self.faults = faults

    def __enter__(self) -> None: ...

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        if isinstance(error, BundleError):
            self.faults.append(error)
            return True
        return False


def _join(
    kind: str,
    entries: Iterable[tuple[Entry, Path]],
    declared: dict[tuple[str, str], Path],
    faults: list[BundleError],
) -> dict[str, Entry]:
    joined: dict[str, Entry] = {}
    for entry, path in entries:
        try:
            checked_name(kind, entry.name)
        except UsageError as fault:
            faults.append(ManifestError(fault.subject, fault.problem, wanted=fault.wanted, declared=str(path)))
        if entry.name in joined:
            faults.append(
                ManifestError(
                    f"{kind} {entry.name}",
                    "the name is declared twice",
                    found=f"{declared[kind, entry.name]} and {path}",
                    detail="Rename one of them: a result must say which it is.",
                )
            )
            continue
        joined[entry.name] = entry
        declared[kind, entry.name] = path
    return joined
