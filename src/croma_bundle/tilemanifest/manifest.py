"""The tileset manifest: one row per tile, in the order of every matrix, and its fingerprint."""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from croma_bundle.durable import sha256_file
from croma_bundle.errors import ArtifactError, InputError, TileManifestError, did_you_mean, some
from croma_bundle.layout import Volume
from croma_bundle.manifests.models import Tileset
from croma_bundle.tilemanifest.table import Table, csv_text, raise_faults, read_table

REQUIRED = ("sample_id", "image_path", "label", "group_id")
PUBLIC = ("sample_id", "image_path", "label", "confounder", "group_id")
"""Columns of `embeddings/<tileset>/manifest.csv`, as the public croma pipeline reads them."""
FINGERPRINTED = ("sample_id", "label", "confounder", "group_id", "image_path")


@dataclass(frozen=True)
class TileManifest:
    """The frozen rows of a tileset.

    `columns` begin with sample_id, image_path, label; `rows` are stripped text, row i of every matrix is `rows[i]`.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __len__(self) -> int:
        return len(self.rows)

    def column(self, name: str) -> list[str]:
        index = self.columns.index(name)
        return [row[index] for row in self.rows]

    def confounders(self) -> list[str]:
        """The columns that may serve as confounder: all but the four that identify a tile."""
        return [name for name in self.columns if name not in REQUIRED]

    def require_column(self, name: str, subject: str) -> list[str]:
        """The values of a confounder column; raises `TileManifestError` where it is absent or blank somewhere."""
        if name not in self.confounders():
            near = did_you_mean(name, self.confounders())
            wanted = f"one of {', '.join(self.confounders())}" if self.confounders() else "a column beside the four"
            raise TileManifestError(subject, f"there is no confounder column {name!r}{near}", wanted=wanted)
        values = self.column(name)
        if blank := [i for i, value in enumerate(values, 1) if not value]:
            raise TileManifestError(subject, f"confounder {name!r} is blank in row {some(blank)}")
        return values

    def text(self) -> str:
        return csv_text(self.columns, self.rows)

    def public_text(self, confounder: str) -> str:
        """`embeddings/<tileset>/manifest.csv`: the same rows, the primary confounder under the name `confounder`."""
        return csv_text(PUBLIC, zip(*(self._public(name, confounder) for name in PUBLIC), strict=True))

    def fingerprint(self, confounder: str) -> str:
        """SHA-256 of the rows as the public croma pipeline computes it (contracts of croma 1.0.1's extractor)."""
        columns = [self._public(name, confounder) for name in FINGERPRINTED]
        payload = {
            "columns": list(FINGERPRINTED),
            "confounder_column": "confounder",
            "rows": [list(row) for row in zip(*columns, strict=True)],
        }
        return hashlib.sha256(json.dumps(payload, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    def _public(self, name: str, confounder: str) -> list[str]:
        return self.column(confounder if name == "confounder" else name)


def read_manifest(path: Path) -> TileManifest:
    """Read a frozen `manifest.csv` of the volume."""
    table = read_table(path, REQUIRED)
    raise_faults(path, _faults(table, [name for name in REQUIRED if name in table.header]))
    return TileManifest(table.header, table.rows)


def load_manifest(volume: Volume, entry: Tileset) -> TileManifest:
    """The frozen manifest of a declared tileset.

    Raises:
        InputError: it is not on the volume (with the command that makes it).
        ArtifactError: it, or the list of occurrences, is no longer what was written with the declaration.
    """
    path = volume.tile_manifest(entry.name)
    if not path.exists():
        then = f"make tiles TILESET={entry.name}" if entry.source != "folder" else "croma-bundle tiles add …"
        raise InputError(f"tileset {entry.name}", "it is not on the volume yet", wanted=str(path), then=then)
    for frozen, wanted in ((path, entry.manifest_sha256), (volume.occurrences(entry.name), entry.occurrences_sha256)):
        found = sha256_file(frozen) if wanted and frozen.exists() else None
        if wanted and found != wanted:
            raise ArtifactError(
                f"tileset {entry.name}",
                f"its {frozen.name} changed after it was added",
                wanted=f"sha256 {wanted[:12]}…  {volume.relative(volume.tileset_declaration(entry.name))}",
                found=f"{found[:12]}…" if found else "no such file",
                detail="A tileset is frozen once written; add the changed cohort under a new name.",
            )
    return read_manifest(path)


def manifest_of_csv(
    path: Path, *, confounder: str, images: bool, paired: bool
) -> tuple[TileManifest, list[tuple[str, str]], list[str]]:
    """Make a manifest of a user's CSV.

    Args:
        confounder: the primary confounder's column.
        images: False takes a CSV without `image_path` (the sample id stands in for it).
        paired: rows repeat a tile once per `subset`; each tile is kept once, in order of first appearance.

    Returns:
        the manifest, the occurrences (sample_id, subset) in row order (empty unless paired), and warnings.

    Raises:
        TileManifestError: every fault with its line.
    """
    _refuse_as_confounder(path, confounder, paired)
    required = [name for name in REQUIRED if images or name != "image_path"]
    required += [confounder, *(["subset"] if paired else [])]
    table = read_table(path, required)
    filled = [*required, *(["image_path"] if "image_path" in table.header and not images else [])]
    faults = _faults(table, filled, unique=not paired)
    rows, occurrences = table.rows, list[tuple[str, str]]()
    if paired:
        rows, occurrences, conflicts = once_each(table)
        faults += conflicts
    if images:
        faults += _path_faults(table)
    raise_faults(path, faults)
    columns = ["sample_id", "image_path", "label", confounder, "group_id"]
    columns += [n for n in table.header if n not in columns and not (paired and n == "subset")]
    take = [table.header.index(n) if n in table.header else table.header.index("sample_id") for n in columns]
    manifest = TileManifest(tuple(columns), tuple(tuple(row[i] for i in take) for row in rows))
    return manifest, occurrences, _case_warnings(manifest, confounder)


def _refuse_as_confounder(path: Path, name: str, paired: bool) -> None:
    if name in REQUIRED:
        raise TileManifestError(str(path), f"{name!r} identifies a tile and cannot be its confounder")
    if paired and name == "subset":
        raise TileManifestError(str(path), "'subset' differs between the rows of one tile and cannot be its confounder")


def _faults(table: Table, filled: Sequence[str], unique: bool = True) -> list[str]:
    """Blank cells of the columns that must be filled, and sample ids that stand twice."""
    faults = []
    for name in filled:
        blank = [line for value, line in zip(table.column(name), table.lines, strict=True) if not value]
        faults += [f"line {line}: {name} is blank" for line in blank]
    if unique:
        counts = Counter(table.column("sample_id"))
        seen = set()
        for value, line in zip(table.column("sample_id"), table.lines, strict=True):
            if counts[value] > 1 and value in seen:
                faults.append(f"line {line}: sample_id {value!r} stands there a second time")
            seen.add(value)
    return faults


def _path_faults(table: Table) -> list[str]:
    """Image paths that could lead outside the root."""
    faults = []
    for value, line in zip(table.column("image_path"), table.lines, strict=True):
        path = PurePosixPath(value)
        if path.is_absolute() or ".." in path.parts:
            faults.append(f"line {line}: image_path {value!r} leads outside the root; make it relative to --root")
    return faults


def once_each(table: Table) -> tuple[tuple[tuple[str, ...], ...], list[tuple[str, str]], list[str]]:
    """Tiles once, in order of first appearance; the occurrences; and rows that contradict an earlier one."""
    sample, subset = table.header.index("sample_id"), table.header.index("subset")
    first: dict[str, tuple[str, ...]] = {}
    occurrences: dict[tuple[str, str], None] = {}
    faults = []
    for row, line in zip(table.rows, table.lines, strict=True):
        key = (row[sample], row[subset])
        known = first.setdefault(row[sample], row)
        differs = [n for i, n in enumerate(table.header) if i != subset and known[i] != row[i]]
        if differs:
            faults.append(f"line {line}: {differs[0]} of {row[sample]!r} differs from its earlier row")
        if key in occurrences:
            faults.append(f"line {line}: sample_id {row[sample]!r} stands twice in subset {row[subset]!r}")
        occurrences[key] = None
    return tuple(first.values()), list(occurrences), faults


def _case_warnings(manifest: TileManifest, confounder: str) -> list[str]:
    """Names that look alike are likely one name typed twice; they stay apart, and are said."""
    warnings = []
    for column in ("label", confounder):
        by_lower: dict[str, set[str]] = {}
        for value in manifest.column(column):
            by_lower.setdefault(_look(value), set()).add(value)
        warnings += [
            f"{column}: {' and '.join(ascii(v) for v in sorted(values))} look alike (case, composition or invisible "
            "characters) and are kept apart"
            for _, values in sorted(by_lower.items())
            if len(values) > 1
        ]
    return warnings


def _look(value: str) -> str:
    """What a reader sees: compatibility composition, no format characters, no case."""
    seen = unicodedata.normalize("NFKC", value).casefold()
    return "".join(letter for letter in seen if unicodedata.category(letter) != "Cf")
