"""`--image-path-map`: reads go to a faster copy of the images; identity and provenance never see it."""

from __future__ import annotations

from pathlib import Path

from croma_bundle.tilemanifest.manifest import TileManifest
from croma_bundle.tilemanifest.table import raise_faults, read_table


def read_path_map(path: Path, manifest: TileManifest) -> list[Path]:
    """Where each tile is read from, in manifest order.

    `path` is a CSV `sample_id,canonical_image_path,access_path`, one-to-one over the whole manifest, in any order.

    Raises:
        TileManifestError: rows that are missing, extra, double, whose canonical path is not the manifest's, or which
            read two images from one file.
    """
    table = read_table(path, ("sample_id", "canonical_image_path", "access_path"))
    canonical = dict(zip(manifest.column("sample_id"), manifest.column("image_path"), strict=True))
    access: dict[str, Path] = {}
    image_of: dict[str, str] = {}
    faults = []
    rows = zip(*(table.column(n) for n in ("sample_id", "canonical_image_path", "access_path")), strict=True)
    for (sample, image, target), line in zip(rows, table.lines, strict=True):
        if sample not in canonical:
            faults.append(f"line {line}: sample_id {sample!r} is not in the manifest")
        elif sample in access:
            faults.append(f"line {line}: sample_id {sample!r} stands there a second time")
        elif canonical[sample] != image:
            faults.append(f"line {line}: canonical_image_path of {sample!r} is {canonical[sample]!r} in the manifest")
        elif not target:
            faults.append(f"line {line}: access_path is blank")
        elif image_of.setdefault(target, image) != image:
            faults.append(f"line {line}: access_path {target!r} is that of {image_of[target]!r} already")
        access[sample] = Path(target)
    faults += [f"sample_id {sample!r} of the manifest is missing" for sample in canonical if sample not in access]
    raise_faults(path, faults)
    return [access[sample] for sample in canonical]
