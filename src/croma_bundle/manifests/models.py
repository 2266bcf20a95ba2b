"""What may run and what must come out, as strict frozen models of `manifests/*.toml` and the volume's declarations.

A revision is 40 hex, a sha256 is 64 hex; a floating reference does not validate. Unknown keys are refused.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Design = Literal["all", "paired_2x2"]
Protocol = Literal["median-k", "k-star"]
KGrid = Literal["sparse", "dense"]


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class Encoder(Strict):
    """One encoder (or one recipe of it): what is loaded, how tiles are prepared and pooled, and how it is treated.

    `revision` is the checkpoint's commit; null for an encoder without a checkpoint, and *unpinned* (refused by embed)
    for one with a `repository`. `exposed` names the tilesets whose images its pretraining saw.
    """

    name: str
    family: Text
    backend: Literal["classical"]
    model: Text
    width: Annotated[int, Field(gt=0)]
    repository: Text | None = None
    revision: Revision | None = None
    pooling: Text
    precision: Literal["float32", "mixed-float16"] = "float32"
    batch_size: Annotated[int, Field(gt=0)]
    generation: Text
    control: bool
    votes: bool
    gated: bool = False
    exposed: tuple[str, ...] = ()
    licence: Text
    citation: Text

    @property
    def pinned(self) -> bool:
        """True where nothing floats: a revision, or no checkpoint at all."""
        return self.revision is not None or self.repository is None


class Phantom(Strict):
    """Parameters of a generated cohort (`tiles/phantom.py` gives their meaning)."""

    seed: Annotated[int, Field(ge=0)] = 0
    tile_size: Annotated[int, Field(gt=0)] = 128
    slides_per_cell: Annotated[int, Field(gt=0)] = 4
    tiles_per_slide: Annotated[int, Field(gt=0)] = 25
    centre_strength: Annotated[float, Field(ge=0)] = 1.0


class Tileset(Strict):
    """Where the tiles of a tileset come from: a user's folder or a generator.

    `root` (folder source) is the absolute folder that image paths are relative to; `images = false` declares a
    tileset whose matrices are only imported. `manifest_sha256` and `occurrences_sha256` freeze the files that were
    written with it. `path_map` is not part of it: it never enters identity.
    """

    name: str
    source: Literal["folder", "phantom"]
    confounder: Text
    design: Design = "all"
    root: Text | None = None
    images: bool = True
    phantom: Phantom | None = None
    manifest_sha256: Sha256 | None = None
    occurrences_sha256: Sha256 | None = None
    licence: Text | None = None
    citation: Text | None = None

    @model_validator(mode="after")
    def _source_has_its_keys(self) -> Tileset:
        if (self.source == "phantom") != (self.phantom is not None):
            raise ValueError("the table [phantom] goes with source = 'phantom', and only with it")
        if self.source == "folder" and self.images and self.root is None:
            raise ValueError("a folder source with images needs root, the absolute folder of its image paths")
        if self.root is not None and (self.source != "folder" or not self.images):
            raise ValueError("root goes with source = 'folder' and images, and only with them")
        if self.root is not None and not PurePosixPath(self.root).is_absolute():
            raise ValueError(f"root must be an absolute folder, found {self.root!r}")
        return self


class Benchmark(Strict):
    """A row-view over a tileset and how it is scored.

    `rows` keeps the rows whose column has one of the values; empty keeps all. For `paired_2x2` the rows are the
    tileset's occurrences. `cross` names the cross-benchmark table it belongs to, `published` the published
    cohort whose figures it reproduces.
    """

    name: str
    tileset: Text
    confounder: Text | None = None
    design: Design = "all"
    rows: dict[str, tuple[str, ...]] = {}
    protocol: Protocol = "median-k"
    k_grid: KGrid = "sparse"
    k_max: Annotated[int, Field(ge=2)] = 100
    cross: Text | None = None
    published: Text | None = None

    @model_validator(mode="after")
    def _rows_are_not_chosen_twice(self) -> Benchmark:
        if self.rows and self.design == "paired_2x2":
            raise ValueError("rows goes with design = 'all'; in paired_2x2 the occurrences are the rows")
        return self


def plain(model: BaseModel) -> dict[str, Any]:
    """The model as JSON-ready values (tuples become lists)."""
    return model.model_dump(mode="json")
