"""What may run and what must come out, as strict frozen models of `manifests/*.toml` and the volume's declarations.

A revision is 40 hex, a sha256 is 64 hex; a floating reference does not validate. Unknown keys are refused.
"""

from __future__ import annotations

import math
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

Revision = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{40}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Digest = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Design = Literal["all", "paired_2x2"]
Protocol = Literal["median-k", "k-star"]
KGrid = Literal["sparse", "dense"]
Precision = Literal["float32", "mixed-float16"]
Backend = Literal["classical", "timm", "transformers", "remote-code", "state-dict", "own"]
Pooling = Literal[
    "whole tile",
    "none",
    "cls",
    "cls+mean",
    "native",
    "native encode",
    "channel cls",
    "multi-scale",
]
Number = Annotated[float, Field(allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Side = Annotated[int, Field(gt=0, le=16_384)]
"""Pixels; more would be a slip of the key."""
MOST_TILES = 65_536
"""In a batch."""
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_. -]*$")]
"""What a library knows a model by: no address and no path, which some libraries would follow."""
FETCHING = ("pretrained", "pretrained_cfg", "pretrained_cfg_overlay", "checkpoint_path", "cache_dir")
"""Arguments by which timm would load weights of its own choice, of no stated hash."""


class Strict(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid", defer_build=True)


class WeightFile(Strict):
    """A file that an encoder loads: weights, configuration, or code (`.py`, from the code's commit where it has one).

    A null sha256 is the hub's to state; `sha256_source` says who stated one, where it was not this manifest.
    """

    name: Text
    sha256: Sha256 | None = None
    sha256_source: Text | None = None


class Wheel(Strict):
    """A wheel of the package index that an encoder's files ship in, as paths inside it."""

    project: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
    version: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9.!+_-]*$")]
    sha256: Sha256


class Tokens(Strict):
    """How the tokens of one tile are laid out: class tokens first, then registers, then patches."""

    cls: Annotated[int, Field(ge=0)] = 1
    registers: Annotated[int, Field(ge=0)] = 0
    patches: Annotated[int, Field(gt=0)]

    @property
    def total(self) -> int:
        return self.cls + self.registers + self.patches


class Recipe(Strict):
    """How a tile becomes an input: resized, its centre cropped, scaled to 0…1, standardised per channel.

    `edge` says what `size` is: the shorter edge, or both (squash). `via` says where the resize happens: on the PIL
    image, on the uint8 tensor, or in the arithmetic of a transformers image processor.
    """

    size: Side
    edge: Literal["shorter", "squash"]
    interpolation: Literal["bilinear", "bicubic"]
    antialias: bool = True
    via: Literal["pil", "tensor", "processor"]
    crop: Side | None = None
    mean: tuple[Number, Number, Number]
    std: tuple[Positive, Positive, Positive]

    @model_validator(mode="after")
    def _only_a_tensor_can_be_sampled_at_points(self) -> Recipe:
        if self.via != "tensor" and not self.antialias:
            raise ValueError(f"antialias = false goes with via = 'tensor'; PIL always antialiases (via = {self.via!r})")
        return self

    @property
    def side(self) -> int:
        """Pixels of a side of the input."""
        return self.crop or self.size


class StateDict(Strict):
    """How a file holds an encoder's tensors, where it holds more than they.

    `inside` is the key of the mapping that has them ("teacher"), `prefix` what each of their names starts with there
    ("backbone."), `ignore` how the names start of published tensors that the network has no use for ("head.").
    """

    inside: Text | None = None
    prefix: Text | None = None
    ignore: tuple[Text, ...] = ()


class Encoder(Strict):
    """One encoder (or one recipe of it): what is loaded, how tiles are prepared and pooled, and how it is treated.

    `revision` is the checkpoint's commit; null for an encoder without a checkpoint, and *unpinned* (refused by embed)
    for one with a `repository`. `open` says which facts nobody has stated yet. `arguments` are the architecture's;
    where a checkpoint brings a configuration, that decides. `exposed` names the tilesets whose source its disclosed
    pretraining overlaps, null where its data are not disclosed. `of` makes it a second recipe of that entry. `norms`
    are the least and the greatest length of its published vectors; both 1 where they are normalised.
    """

    name: str
    family: Text
    backend: Backend
    model: Name
    width: Annotated[int, Field(gt=0)]
    arguments: dict[str, Any] = {}
    tokens: Tokens | None = None
    recipe: Recipe | None = None
    open: Text | None = None
    repository: Text | None = None
    revision: Revision | None = None
    code_repository: Text | None = None
    code_revision: Revision | None = None
    wheel: Wheel | None = None
    files: tuple[WeightFile, ...] = ()
    state: StateDict = StateDict()
    of: Text | None = None
    pooling: Pooling
    precision: Precision = "float32"
    batch_size: Annotated[int, Field(gt=0, le=MOST_TILES)]
    generation: Text
    control: bool
    votes: bool
    gated: bool = False
    exposed: tuple[str, ...] | None = None
    norms: tuple[float, float] | None = None
    licence: Text
    citation: Text

    @model_validator(mode="before")
    @classmethod
    def _what_is_not_pretrained_saw_nothing(cls, values: Any) -> Any:
        if isinstance(values, dict) and values.get("backend") == "classical":
            return {"exposed": (), **values}
        return values

    @model_validator(mode="after")
    def _weights_come_from_its_files_alone(self) -> Encoder:
        if asked := [key for key in FETCHING if key in self.arguments]:
            raise ValueError(f"arguments may not have {', '.join(asked)}: weights are those of `files`")
        return self

    @model_validator(mode="after")
    def _norms_are_the_least_and_the_greatest(self) -> Encoder:
        if self.norms is not None and not 0 < self.norms[0] <= self.norms[1] < math.inf:
            raise ValueError(f"norms = the least and the greatest length, above 0; found {list(self.norms)}")
        return self

    @model_validator(mode="after")
    def _a_second_recipe_is_named_for_its_first_and_has_no_vote(self) -> Encoder:
        if self.of is not None and self.name.partition("@")[0] != self.of:
            raise ValueError(f"a second recipe of {self.of} is named {self.of}@NAME")
        if self.of is not None and self.votes:
            raise ValueError("a second recipe does not vote: votes = false")
        return self

    @property
    def checkpoint(self) -> str:
        """The entry whose checkpoint it runs."""
        return self.of or self.name

    @property
    def pinned(self) -> bool:
        """True where nothing floats: a revision, or no checkpoint at all."""
        return self.revision is not None or self.repository is None

    def precision_on(self, device: str) -> Precision:
        """What is computed in on "cpu", "cuda" or "cuda:N": float16 is CUDA's alone."""
        return self.precision if device.startswith("cuda") else "float32"


class Phantom(Strict):
    """Parameters of a generated cohort (`tiles/phantom.py` gives their meaning)."""

    seed: Annotated[int, Field(ge=0)] = 0
    tile_size: Annotated[int, Field(gt=0)] = 128
    slides_per_cell: Annotated[int, Field(gt=0)] = 4
    tiles_per_slide: Annotated[int, Field(gt=0)] = 25
    centre_strength: Annotated[float, Field(ge=0)] = 1.0


class DatasetFile(Strict):
    name: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]+(/[A-Za-z0-9_.-]+)*\.parquet$")]
    sha256: Sha256
    bytes: Annotated[int, Field(gt=0)]


class Dataset(Strict):
    """Parquet files of a dataset of the hub at a commit."""

    repository: Text
    revision: Revision
    files: Annotated[tuple[DatasetFile, ...], Field(min_length=1)]


class Metadata(Strict):
    """A table of rows, at an address that names its commit. A null sha256 is for `make lock-tilesets` to resolve."""

    url: Annotated[str, StringConstraints(pattern=r"^(https://|http://(127\.0\.0\.1|localhost)[:/])")]
    sha256: Sha256 | None = None

    @property
    def file(self) -> str:
        return self.url.rpartition("/")[2]


class Sample(Metadata):
    """A table whose rows are some of the tileset's: the manifest's `column` says "yes" for them, else "no"."""

    column: Text


class TilesetSize(Strict):
    """What a tileset must hold: tiles, and groups."""

    rows: int
    groups: int | None = None


class Expected(Strict):
    """What a benchmark's rows must come to; `cell_rows` is the number of rows in each of its `cells`."""

    rows: int
    labels: int | None = None
    confounders: int | None = None
    groups: int | None = None
    cells: int | None = None
    cell_rows: int | None = None


class Simulated(Strict):
    """How tiles are cut from annotated images, in pixels, and which are kept (`tiles/simulated.py`).

    A tile is kept with at least `nuclei` nuclei, of which the share `majority` is of one type.
    """

    tile_size: Annotated[int, Field(ge=16)] = 100
    block_size: Annotated[int, Field(ge=16)] = 500
    nuclei: Annotated[int, Field(gt=0)] = 2
    majority: Annotated[float, Field(gt=0.5, le=1)] = 0.6


class ProbeSchedule(Strict):
    """A probe schedule of a tileset's own (`probe/schedules.py` gives the meaning of the keys).

    `steps` is [split][confounder][label] in pseudo-slides; `split` is the column that says ID or OOD.
    """

    confounders: Annotated[tuple[Text, ...], Field(min_length=2)]
    labels: Annotated[tuple[Text, ...], Field(min_length=2)]
    steps: Annotated[tuple[tuple[tuple[Annotated[int, Field(ge=0)], ...], ...], ...], Field(min_length=2)]
    max_slides: Annotated[int, Field(gt=0)]
    rows_per_slide: Annotated[int, Field(gt=0)]
    validation_fraction: Annotated[float, Field(gt=0, lt=1)] | None = None
    by_case: bool = False
    split: Text | None = None


class Tileset(Strict):
    """Where the tiles of a tileset come from.

    folder: a user's files, below the absolute folder `root`. hub: the parquet files of `dataset`, joined with the rows
    of `metadata`. simulated: cut from the images of a `wheel`. phantom: generated. imported: there are no images, its
    rows are added once. `images = false` declares a folder tileset whose matrices are only imported.

    `manifest_sha256` and `occurrences_sha256` freeze the files that were written with it. An image path map is not part
    of it: it never enters identity.
    """

    name: str
    source: Literal["folder", "hub", "simulated", "phantom", "imported"]
    confounder: Text
    design: Design = "all"
    root: Text | None = None
    images: bool = True
    phantom: Phantom | None = None
    dataset: Dataset | None = None
    metadata: Metadata | None = None
    samples: tuple[Sample, ...] | None = None
    wheel: Wheel | None = None
    simulated: Simulated | None = None
    expected: TilesetSize | None = None
    probe: ProbeSchedule | None = None
    manifest_sha256: Sha256 | None = None
    occurrences_sha256: Sha256 | None = None
    licence: Text | None = None
    citation: Text | None = None

    @model_validator(mode="after")
    def _source_has_its_keys(self) -> Tileset:
        for key, source in OF_SOURCE.items():
            if (self.source == source) != (getattr(self, key) is not None):
                raise ValueError(f"the table [{key}] goes with source = '{source}', and only with it")
        if self.samples and self.source != "hub":
            raise ValueError("samples go with source = 'hub', and only with it")
        if self.source == "imported" and self.images:
            raise ValueError("an imported tileset has no images: images = false")
        if self.source == "folder" and self.images and self.root is None:
            raise ValueError("a folder source with images needs root, the absolute folder of its image paths")
        if self.root is not None and (self.source != "folder" or not self.images):
            raise ValueError("root goes with source = 'folder' and images, and only with them")
        if self.root is not None and not PurePosixPath(self.root).is_absolute():
            raise ValueError(f"root must be an absolute folder, found {self.root!r}")
        return self


OF_SOURCE = {
    "phantom": "phantom",
    "dataset": "hub",
    "metadata": "hub",
    "wheel": "simulated",
    "simulated": "simulated",
}
"""Tables of a tileset, and the source that has them."""


class Benchmark(Strict):
    """A row-view over a tileset and how it is scored.

    `rows` keeps the rows whose column has one of the values; empty keeps all. For `paired_2x2` the rows are the
    tileset's occurrences. `cross` names the cross-benchmark table it belongs to, `published` the published
    cohort whose figures it reproduces, `expected` what its rows must come to.
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
    expected: Expected | None = None

    @model_validator(mode="after")
    def _rows_are_not_chosen_twice(self) -> Benchmark:
        if self.rows and self.design == "paired_2x2":
            raise ValueError("rows goes with design = 'all'; in paired_2x2 the occurrences are the rows")
        return self


class PublishedImage(Strict):
    """One image of `images.lock.toml`: where it was pushed to, and what it was built from.

    `image` is its repository and `tag` what it was pushed as; `digest` alone says which it is. `image_id` is the same
    image as an engine calls it that never met the registry. `locks` maps every lock file it was built from to its
    SHA-256.
    """

    name: str
    image: Text
    tag: Text
    digest: Digest
    image_id: Digest
    base_digest: Digest | None = None
    built_from: Revision
    locks: dict[str, Sha256]

    @property
    def pinned(self) -> str:
        """The reference that cannot move."""
        return f"{self.image}@{self.digest}"


def plain(model: BaseModel) -> dict[str, Any]:
    """The model as JSON-ready values (tuples become lists)."""
    return model.model_dump(mode="json")
