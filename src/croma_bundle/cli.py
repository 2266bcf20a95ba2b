"""The command line: one click command per step. It parses, calls and prints; no logic."""

from __future__ import annotations

import atexit
import contextlib
import errno
import gc
import math
import os
import signal
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NoReturn

import click

from croma_bundle import __version__
from croma_bundle.errors import BundleError, EnvironmentFault, UsageError
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue, load_catalogue
from croma_bundle.manifests.models import MOST_TILES
from croma_bundle.progress import Reporter

if TYPE_CHECKING:
    from croma_bundle.launch.run import Launcher

FILE = click.Path(path_type=Path)
PIPE_CLOSED = 128 + 13
"""What a shell reports of a program whose reader (`| head`) went away: 128 + SIGPIPE."""
THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")


class Context:
    """What every command shares: the volume, the reporter, and the catalogue, read when first needed."""

    runtime = "auto"

    def __init__(self, volume: Path, as_json: bool) -> None:
        self.volume = Volume(volume.absolute())
        self.reporter = Reporter(as_json=as_json)

    @property
    def catalogue(self) -> Catalogue:
        return load_catalogue(self.volume)

    @property
    def launcher(self) -> Launcher:
        from croma_bundle.launch.run import launcher

        return launcher(self.volume, self.runtime, dict(os.environ), self.reporter)


class Names(click.ParamType[list[str]]):
    """A comma list of names."""

    name = "A,B"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> list[str]:
        if isinstance(value, list):
            return value
        names = [name.strip() for name in value.split(",")]
        if not all(names):
            self.fail(f"{value!r} has an empty name in it", param, ctx)
        return list(dict.fromkeys(names))


class BatchSize(click.IntRange):
    """A number of tiles, or "auto"."""

    name = "N|auto"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value == "auto" else super().convert(value, param, ctx)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return self.name


class Finite(click.FloatRange):
    """A number of the range; neither NaN nor infinity, which no comparison refuses."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a finite number", param, ctx)
        return number


class VolumeGroup(click.Group):
    """The top group: a file of the volume that this user may not touch is told with the line that helps."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except OSError as error:
            volume = ctx.obj.volume if isinstance(ctx.obj, Context) else None
            if volume and error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and error.filename:
                raise _not_permitted(volume, Path(os.fsdecode(error.filename)), error) from None
            raise


def _not_permitted(volume: Volume, path: Path, error: OSError) -> Exception:
    """The fault of a refused file of the volume; any other refusal as it is."""
    if not path.is_relative_to(volume.root):
        return error
    owner = next(p.stat() for p in (path, *path.parents) if os.path.lexists(p) and p.exists())
    then = f"CROMA_UID={owner.st_uid} CROMA_GID={owner.st_gid} docker compose run --rm score"
    return EnvironmentFault(
        f"volume {volume.root}",
        f"{volume.relative(path)}: {error.strerror}",
        wanted=f"a file that uid {os.getuid()} may use",
        found=f"owner {owner.st_uid}:{owner.st_gid}",
        then=then if error.errno != errno.EROFS else "The volume is mounted read-only; mount it for writing.",
    )


pass_context = click.make_pass_decorator(Context)


def runtime_option(help_: str) -> Callable[[Any], Any]:
    """`--runtime`, as `launch` takes it and `doctor` asks about it."""
    choice = click.Choice(["auto", "docker", "venv", "apptainer"])
    return click.option("--runtime", type=choice, default="auto", show_default=True, help=help_)


BATCH = click.option(
    "--batch",
    type=BatchSize(1, MOST_TILES),
    help="Tiles at once; part of the artifact's identity. auto: whatever is fastest here. Default: the entry's.",
)
WORKERS = click.option(
    "--workers",
    type=click.IntRange(0),
    default=None,
    help="Worker processes; 0 works in this one. Default: one per core.",
)


@click.group(cls=VolumeGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, prog_name="croma-bundle")
@click.option(
    "--volume",
    type=FILE,
    envvar="CROMA_VOLUME",
    default="volume",
    show_default=True,
    show_envvar=True,
    help="The shared folder: tilesets, embeddings, metrics.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per event on stdout, results included.")
@click.pass_context
def cli(ctx: click.Context, volume: Path, as_json: bool) -> None:
    """How robust is a pathology encoder to the medical centre? Tiles, embeddings, scores, and the proof.

    \b
    Exit codes: 0 ok · 1 a verdict of verify failed · 2 usage · 3 missing or unusable input
    4 environment, or a lock is held · 5 an existing artifact is damaged or incompatible · 130 interrupted
    """
    ctx.obj = Context(volume, as_json)


@cli.command("list")
@click.argument("what", type=click.Choice(["encoders", "tilesets", "benchmarks"]))
@pass_context
def list_(context: Context, what: str) -> None:
    """What is declared: encoders, tilesets or benchmarks."""
    from croma_bundle.inventory import declared_text

    text, rows = declared_text(context.catalogue, what)
    context.reporter.result(text, what, rows=rows)


@cli.command()
@pass_context
def status(context: Context) -> None:
    """What is on the volume: tilesets, and what is embedded or missing for each."""
    from croma_bundle.inventory import status_text

    text, rows = status_text(context.volume, context.catalogue)
    context.reporter.result(text, "status", rows=rows)


@cli.group()
def tiles() -> None:
    """Tilesets: generate or add them, export their views."""


@tiles.command("fetch")
@click.argument("tileset")
@WORKERS
@pass_context
def tiles_fetch(context: Context, tileset: str, workers: int | None) -> None:
    """Put a declared TILESET on the volume (the phantom is generated; nothing is downloaded for it)."""
    from croma_bundle.tiles.fetch import fetch
    from croma_bundle.tiles.workers import default_workers

    workers = default_workers() if workers is None else workers
    manifest = fetch(context.volume, context.catalogue, tileset, workers, context.reporter)
    where = context.volume.shown(context.volume.tileset(tileset))
    context.reporter.result(f"tileset {tileset}: {len(manifest):,} tiles in {where}", "tileset", tiles=len(manifest))


@tiles.command("add")
@click.argument("name")
@click.option("--manifest", "csv", type=FILE, help="CSV: sample_id,image_path,label,group_id,<confounder>…")
@click.option("--folder", type=FILE, help="Instead of a CSV: a folder tree, whose paths --pattern explains.")
@click.option("--pattern", default="<class>/<centre>/<slide>/*.png", show_default=True, help="Paths below --folder.")
@click.option("--parquet", type=FILE, multiple=True, help="Instead of a CSV: a parquet file; repeat it for several.")
@click.option("--column", "columns", multiple=True, help="label=NAME, group_id=NAME or sample_id=NAME in the parquet.")
@click.option("--root", type=FILE, help="The folder that image_path starts from. Default: the CSV's own folder.")
@click.option("--confounder", default="medical_center", show_default=True, help="The column of the primary confounder.")
@click.option(
    "--design",
    type=click.Choice(["all", "paired_2x2"]),
    default="all",
    show_default=True,
    help="Compare all rows with each other, or only within each subset (a column) that is a complete 2×2.",
)
@click.option("--no-images", is_flag=True, help="There are no tiles; only imported matrices will be scored.")
@WORKERS
@pass_context
def tiles_add(
    context: Context,
    name: str,
    csv: Path | None,
    folder: Path | None,
    pattern: str,
    parquet: tuple[Path, ...],
    columns: tuple[str, ...],
    root: Path | None,
    confounder: str,
    design: Any,
    no_images: bool,
    workers: int | None,
) -> None:
    """Declare your own cohort as tileset and benchmark NAME. No pixel is copied; every tile is decoded and hashed."""
    from croma_bundle.tiles.folder import add_folder
    from croma_bundle.tiles.found import as_csv
    from croma_bundle.tiles.workers import default_workers

    with as_csv(csv, folder, pattern, parquet, columns, context.reporter) as (rows, found_root):
        _, manifest = add_folder(
            context.volume,
            context.catalogue,
            name,
            rows,
            root=root or found_root,
            confounder=confounder,
            design=design,
            images=not no_images,
            workers=default_workers() if workers is None else workers,
            reporter=context.reporter,
        )
    from croma_bundle.tilemanifest.design import check_design

    facts = [manifest.column(column) for column in ("label", confounder, "group_id")]
    check = check_design(*facts)
    text = f"tileset {name}: {len(manifest):,} tiles of {len(set(facts[2])):,} groups, confounder {confounder}"
    text += f", design {design}\n{check.text()}" if design == "all" else f", design {design}"
    next_step = "croma-bundle import" if no_images else f"make embed FAMILY=classical TILESET={name}"
    text += f"\n  in {context.volume.shown(context.volume.tileset(name))}; next: {next_step}"
    context.reporter.result(text, "tileset", name=name, tiles=len(manifest), largest_m=check.largest_m)


@tiles.command("phantom")
@click.argument("name")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Another seed, another cohort.")
@click.option(
    "--tile-size", type=click.IntRange(32, 1024), default=128, show_default=True, help="Pixels; a multiple of 16."
)
@click.option(
    "--slides-per-cell", type=click.IntRange(1), default=4, show_default=True, help="Slides of each tissue and centre."
)
@click.option("--tiles-per-slide", type=click.IntRange(1), default=25, show_default=True, help="Tiles of each slide.")
@click.option(
    "--centre-strength",
    type=click.FloatRange(0, 3),
    default=1.0,
    show_default=True,
    help="How far the centres lie apart; 0: they are identical.",
)
@pass_context
def tiles_phantom(context: Context, /, name: str, **parameters: Any) -> None:
    """Declare a phantom cohort NAME with parameters of your own; `tiles fetch NAME` then generates it."""
    from croma_bundle.tiles.generated import declare_phantom

    declare_phantom(context.volume, context.catalogue, name, parameters)
    context.reporter.result(f"tileset {name} is declared; next: croma-bundle tiles fetch {name}", "tileset", name=name)


@tiles.command("export")
@click.argument("tileset")
@click.option("--output", type=FILE, required=True, help="The folder to write to.")
@WORKERS
@pass_context
def tiles_export(context: Context, tileset: str, output: Path, workers: int | None) -> None:
    """Write the tiles of TILESET as PNG files, with a manifest.csv of them."""
    from croma_bundle.tiles.export import export_tiles
    from croma_bundle.tiles.workers import default_workers

    entry = context.catalogue.tileset(tileset)
    workers = default_workers() if workers is None else workers
    manifest = export_tiles(context.volume, entry, output, workers, context.reporter)
    context.reporter.result(f"tileset {tileset}: {len(manifest):,} tiles in {output}", "export", tiles=len(manifest))


@tiles.command("export-view")
@click.argument("benchmark")
@click.option("--output", type=FILE, required=True, help="The CSV to write.")
@pass_context
def tiles_export_view(context: Context, benchmark: str, output: Path) -> None:
    """Write BENCHMARK's rows as an evaluation CSV for the public croma pipeline."""
    from croma_bundle.scoring.view import build_view
    from croma_bundle.tilemanifest.manifest import load_manifest
    from croma_bundle.tiles.export_view import export_view

    catalogue = context.catalogue
    entry = catalogue.benchmark(benchmark)
    tileset = catalogue.tileset(entry.tileset)
    manifest = load_manifest(context.volume, tileset)
    view = build_view(context.volume, entry, manifest, entry.confounder or tileset.confounder)
    header, rows = view.csv_rows()
    images = manifest.column("image_path")
    export_view(context.volume, header, rows, [images[i] for i in view.rows], output, context.reporter)
    context.reporter.result(f"{benchmark}: {len(rows):,} rows in {output}", "view", rows=len(rows))


@cli.command()
@click.option("--family", help="Embed with the encoders of this family.")
@click.option("--tileset", required=True, help="The tileset to embed.")
@click.option("--encoders", type=Names(), help="Only these of the family.")
@click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N; what cannot be had is an error."
)
@click.option(
    "--image-path-map", type=FILE, help="CSV sample_id,canonical_image_path,access_path: read tiles elsewhere."
)
@click.option(
    "--weights",
    "folder",
    type=FILE,
    help="The hub cache to load from. Default: as of `weights`.",
)
@BATCH
@click.option("--force", is_flag=True, help="Embed again and replace what is there.")
@WORKERS
@pass_context
def embed(
    context: Context,
    family: str | None,
    tileset: str,
    encoders: list[str] | None,
    device: str,
    image_path_map: Path | None,
    folder: Path | None,
    batch: int | Literal["auto"] | None,
    force: bool,
    workers: int | None,
) -> None:
    """Embed a tileset: one matrix and one sidecar per encoder. What is there is reused, what was cut off is resumed."""
    _offline()
    from croma_bundle.extraction.run import embed_all
    from croma_bundle.tiles.workers import default_workers

    with context.catalogue.telling_where():
        embed_all(
            context.volume,
            context.catalogue,
            tileset=tileset,
            family=family,
            encoders=encoders,
            device=device,
            path_map=image_path_map,
            weights=folder,
            workers=default_workers() if workers is None else workers,
            batch=batch,
            force=force,
            reporter=context.reporter,
        )


@cli.command()
@click.option("--family", help="The architectures of this family.")
@click.option("--encoders", type=Names(), help="Only these.")
@click.option("--out", type=FILE, help="Keep each vector in this folder. Default: a temporary one.")
@pass_context
def construct(context: Context, family: str | None, encoders: list[str] | None, out: Path | None) -> None:
    """Run every architecture of a family at full size with random weights: what this image can compute.

    It needs no network, weights or volume, and up to 8 GB of memory. Exit 1 if one fails.
    """
    from croma_bundle.encoders.construct import construct_all
    from croma_bundle.manifests.choice import choose_encoders

    with context.catalogue.telling_where():
        construct_all(choose_encoders(context.catalogue, "construct", family, encoders), out, context.reporter)


@cli.command()
@click.option("--family", help="The weights of this family.")
@click.option("--encoders", type=Names(), help="Only these.")
@click.option(
    "--weights",
    "folder",
    type=FILE,
    help="A hub cache to fetch into. Default: CROMA_WEIGHTS, else weights/ on the volume.",
)
@click.option("--verify", is_flag=True, help="Hash again what was verified before.")
@pass_context
def weights(
    context: Context, family: str | None, encoders: list[str] | None, folder: Path | None, verify: bool
) -> None:
    """Fetch the pinned weights of encoders, every file verified by sha256. The gated ones need a token.

    The token is HF_TOKEN or the hub's token file; it is never an option.
    """
    from croma_bundle.layout import WeightsFolder
    from croma_bundle.manifests.choice import choose_encoders
    from croma_bundle.weights.fetch import fetch_all

    chosen = choose_encoders(context.catalogue, "weights", family, encoders)
    where = WeightsFolder((folder or context.volume.weights).absolute())
    with context.catalogue.telling_where():
        fetch_all(where, chosen, context.reporter, verify=verify)


@cli.command()
@click.option("--family", help="The encoders of this family.")
@click.option("--encoders", type=Names(), help="Only these.")
@click.option(
    "--device", default="auto", show_default=True, help="auto, cpu, cuda or cuda:N; what cannot be had is an error."
)
@pass_context
def smoke(context: Context, family: str | None, encoders: list[str] | None, device: str) -> None:
    """Run encoders with their real weights over nine generated tiles, twice, and write the vectors for `parity`."""
    _offline()
    from croma_bundle.extraction.smoke import smoke_all
    from croma_bundle.manifests.choice import choose_encoders

    chosen = choose_encoders(context.catalogue, "smoke", family, encoders)
    with context.catalogue.telling_where():
        smoke_all(context.volume, chosen, device, context.reporter)


@cli.command()
@click.argument("files", nargs=-1, required=True, type=FILE)
@pass_context
def parity(context: Context, files: tuple[Path, ...]) -> None:
    """Compare golden vectors that somebody else's `smoke` wrote (FILES) with those of this machine."""
    from croma_bundle.verification.parity import verify_parity

    verify_parity(context.volume, files, context.reporter)


@cli.command("lock-weights")
@click.option("--encoders", type=Names(), help="Only these. Default: all that leave something open.")
@click.option("--output", type=FILE, help="Default: manifests/weights.lock.toml of the checkout.")
@click.option("--again", is_flag=True, help="Resolve what is locked already, too.")
@pass_context
def lock_weights_(context: Context, encoders: list[str] | None, output: Path | None, again: bool) -> None:
    """Ask the hub once for what the encoders' entries leave open: commits, hashes, how images are prepared."""
    from croma_bundle.manifests.catalogue import packaged_manifests
    from croma_bundle.manifests.weights_lock import LOCK
    from croma_bundle.weights.lock import lock_weights

    catalogue = load_catalogue(context.volume, locked=False)
    named = [catalogue.encoder(name) for name in encoders or catalogue.encoders]
    chosen = [catalogue.encoder(name) for name in dict.fromkeys(entry.checkpoint for entry in named)]
    lock_weights(output or packaged_manifests() / LOCK, chosen, context.reporter, again=again)


@cli.command("lock-tilesets")
@click.option("--output", type=FILE, help="Default: manifests/tilesets.lock.toml of the checkout.")
@pass_context
def lock_tilesets_(context: Context, output: Path | None) -> None:
    """Fetch the metadata tables whose sha256 the manifests leave open, once, and write what they hash to."""
    from croma_bundle.manifests.catalogue import packaged_manifests
    from croma_bundle.manifests.tilesets_lock import LOCK
    from croma_bundle.tiles.lock import lock_tilesets

    catalogue = load_catalogue(context.volume, locked=False)
    where = output or packaged_manifests() / LOCK
    lock_tilesets(where, list(catalogue.tilesets.values()), list(catalogue.benchmarks.values()), context.reporter)


@cli.command("import")
@click.argument("tileset")
@click.argument("encoder")
@click.argument("matrix", type=FILE)
@click.option(
    "--provenance", required=True, help="Who made it, from what, with which checkpoint: shown with every result."
)
@click.option(
    "--control", is_flag=True, help="Measure and show it, never rank it; so for the name of a declared control."
)
@click.option("--force", is_flag=True, help="Replace an earlier import of this name.")
@pass_context
def import_(
    context: Context, tileset: str, encoder: str, matrix: Path, provenance: str, control: bool, force: bool
) -> None:
    """Bring in embeddings made elsewhere: MATRIX (.npy) has one row per row of TILESET's manifest, in its order."""
    from croma_bundle.artifacts.external import import_matrix
    from croma_bundle.artifacts.frozen_manifest import freeze_manifest
    from croma_bundle.tilemanifest.manifest import load_manifest

    catalogue = context.catalogue
    entry = catalogue.tileset(tileset)
    manifest = load_manifest(context.volume, entry)
    context.volume.require_writable()
    freeze_manifest(context.volume, tileset, manifest.public_text(entry.confounder))
    sidecar = import_matrix(
        context.volume,
        tileset,
        encoder,
        matrix,
        provenance=provenance,
        control=control or catalogue.is_control(encoder),
        rows=len(manifest),
        fingerprint=manifest.fingerprint(entry.confounder),
        force=force,
    )
    rows, width = sidecar["output_shape"]
    dtype = sidecar["extraction_contract"]["source_dtype"]
    text = f"{tileset} · {encoder}: {rows:,} × {width:,} imported from {dtype}, external"
    context.reporter.result(text, "imported", tileset=tileset, encoder=encoder)


@cli.command()
@click.option("--protocol", type=click.Choice(["median-k", "k-star"]), help="Default: as each benchmark declares.")
@click.option("--benchmark", "benchmarks", type=Names(), help="Default: every benchmark whose tileset has embeddings.")
@click.option("--encoders", type=Names(), help="Score only these; they alone then decide the shared k.")
@click.option("--k-grid", type=click.Choice(["sparse", "dense"]), help="Default: as the benchmark declares.")
@click.option("--k-max", type=click.IntRange(2), help="End of the k grid. Default: as the benchmark declares.")
@click.option("--k", type=click.IntRange(1), help="Pin k for all encoders instead of choosing it.")
@click.option(
    "--tau",
    type=Finite(min=0, min_open=True),
    help="Pin MaRI's temperature for all encoders. Default: each its own median distance.",
)
@click.option("--m", type=click.IntRange(1, 20), default=5, show_default=True, help="Neighbours of each type in CRoMa.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the bootstrap's draws.")
@click.option("--confounder", "confounders", type=Names(), help="Confounder columns, one scoring each.")
@click.option("--cross", type=Names(), help="Benchmarks of the cross-benchmark table. Default: the declared set.")
@click.option(
    "--memory-limit", metavar="SIZE", help="Such as 4G; never changes a result. Default: half of what is free."
)
@click.option("--threads", type=click.IntRange(1), help="Threads; never changes a result. Default: one per core.")
@click.option(
    "--with-published", is_flag=True, help="Show each encoder's place beside the published ones; changes no table."
)
@pass_context
def score(
    context: Context,
    protocol: str | None,
    benchmarks: list[str] | None,
    encoders: list[str] | None,
    k_grid: str | None,
    k_max: int | None,
    k: int | None,
    tau: float | None,
    m: int,
    seed: int,
    confounders: list[str] | None,
    cross: list[str] | None,
    memory_limit: str | None,
    threads: int | None,
    with_published: bool,
) -> None:
    """Score every benchmark: RI, MaRI, CRoMa with its tail, k and m sweeps, per-sample values, cross table."""
    # Read by numpy when it is first imported. The search has threads of its own, one BLAS call in each.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    from croma_bundle.scoring.memory import parse_size
    from croma_bundle.scoring.run import Request, score_all
    from croma_bundle.scoring.score import Knobs

    limit = parse_size(memory_limit) if memory_limit else None
    knobs = Knobs(protocol, k_grid, k_max, k, tau, m, seed, threads=threads, memory_limit=limit)
    request = Request(benchmarks, encoders, confounders, cross, knobs)
    reporter = context.reporter
    if with_published:
        from croma_bundle.verification.beside import WithPublished

        reporter = WithPublished(context.catalogue, as_json=reporter.as_json)
    score_all(context.volume, context.catalogue, request, reporter)


@cli.command()
@click.option("--benchmark", "benchmarks", type=Names(), help="Default: every embedded one that has a schedule.")
@click.option("--encoders", type=Names(), help="Sweep only these.")
@click.option("--iterations", type=click.IntRange(1, 10_000), default=20, show_default=True, help="Replicates.")
@click.option("--seed", type=click.IntRange(0), default=1000, show_default=True, help="Of the replicates' seeds.")
@click.option("--threads", type=click.IntRange(1), help="Processes; never changes a result. Default: one per core.")
@pass_context
def probe(
    context: Context,
    benchmarks: list[str] | None,
    encoders: list[str] | None,
    iterations: int,
    seed: int,
    threads: int | None,
) -> None:
    """Train probes on ever more confounded rows: how far does accuracy drop? APD and nIPD, in- and out-of-domain.

    Every replicate is kept when it is done: what was cut off is resumed, what has not changed is not run again.
    """
    # Read by numpy when it is first imported: every process has one BLAS thread, so that threads move no last digit.
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    from croma_bundle.scoring.probe import Sweep, probe_all
    from croma_bundle.tiles.workers import ordered_map

    sweep = Sweep(benchmarks, encoders, iterations, seed, threads)
    probe_all(context.volume, context.catalogue, sweep, ordered_map, context.reporter)


@cli.group()
def verify() -> None:
    """Check artifacts, tables against published or reference ones, and whole runs."""


@verify.command("artifacts")
@click.option("--tileset", "tilesets", type=Names(), help="Default: all that have embeddings.")
@pass_context
def verify_artifacts(context: Context, tilesets: list[str] | None) -> None:
    """Re-hash every matrix and check it against its sidecar and its tileset's manifest."""
    from croma_bundle.verification.artifacts import verify_all

    verify_all(context.volume, context.catalogue, tilesets, context.reporter)


@verify.command("tables")
@click.argument("ours", type=FILE)
@click.argument("reference", type=FILE)
@click.option(
    "--tolerance",
    type=Finite(min=0),
    default=1e-6,
    show_default=True,
    help="Largest difference of a number.",
)
@pass_context
def verify_tables(context: Context, ours: Path, reference: Path, tolerance: float) -> None:
    """Compare the tables of two folders: numbers within the tolerance, the rest exactly."""
    from croma_bundle.verification.tables import compare_folders

    compare_folders(ours, reference, tolerance, context.reporter)


@verify.command("published")
@click.option(
    "--benchmark", "benchmarks", type=Names(), help="Default: all scored ones that reproduce a published cohort."
)
@click.option("--protocol", type=click.Choice(["median-k", "k-star"]), help="Default: as each benchmark declares.")
@click.option("--generation", help="Compare with this one's figures. Default: the generation that each encoder states.")
@click.option("--if-scored", is_flag=True, help="Where nothing of the kind is scored, say so and exit with 0.")
@pass_context
def verify_published_(
    context: Context, benchmarks: list[str] | None, protocol: str | None, generation: str | None, if_scored: bool
) -> None:
    """Compare scored benchmarks with the published figures.

    A verdict for every figure: MATCH, WITHIN, DRIFT (exit 1), or NOT COMPARED and why (docs/audit.md).
    """
    from croma_bundle.verification.probe_published import verify_all_published
    from croma_bundle.verification.published_run import Question

    question = Question(benchmarks, protocol, generation, if_scored)
    verify_all_published(context.volume, context.catalogue, question, context.reporter)


@verify.command("run")
@click.argument("folder", type=FILE, metavar="DIR")
@pass_context
def verify_run_(context: Context, folder: Path) -> None:
    """Score or probe a folder again from the matrices here, and compare every table.

    DIR is anyone's metrics/<protocol>/<benchmark> or probe/<benchmark>; the knobs are those of its run.json, and
    nothing here is changed.
    """
    os.environ.update(dict.fromkeys(THREAD_VARIABLES, "1"))
    from croma_bundle.verification.rerun import verify_run

    verify_run(context.volume, context.catalogue, folder, context.reporter)


@verify.command("images")
@pass_context
def verify_images(context: Context) -> None:
    """Compare the published images (manifests/images.lock.toml) with the lock files here and with the engine's.

    A lock file that changed since an image was built from it, or a pulled image whose tag was moved, is a failed
    verdict (exit 1).
    """
    from croma_bundle.launch.image_lock import verify_images

    verify_images(context.reporter)


@cli.group()
@runtime_option("auto: docker; the venv for a step without torch whose image is not here.")
@pass_context
def launch(context: Context, runtime: str) -> None:
    """Run a step in its image, venv or apptainer container, as make does; its exit code is this command's."""
    context.runtime = runtime


@launch.command("embed")
@click.option("--family", default="classical", show_default=True, help="The family whose image runs.")
@click.option("--tileset", required=True, help="The tileset to embed.")
@click.option("--encoders", type=Names(), help="Only these of the family.")
@click.option(
    "--device", default="auto", show_default=True, help="auto (cuda where one is offered), cpu, cuda, cuda:N."
)
@BATCH
@click.option("--force", is_flag=True, help="Embed again and replace what is there.")
@WORKERS
@pass_context
def launch_embed_(
    context: Context,
    family: str,
    tileset: str,
    encoders: list[str] | None,
    device: str,
    batch: int | Literal["auto"] | None,
    force: bool,
    workers: int | None,
) -> None:
    """Fetch the tiles and weights that are missing, in the services with network, then embed, offline."""
    from croma_bundle.launch.run import EmbedRequest, launch_embed

    options = (*(("--batch", str(batch)) if batch else ()), *(("--force",) if force else ()))
    asked = EmbedRequest(family, tileset, encoders, device, workers, options)
    _leave(launch_embed(context.launcher, context.volume, context.catalogue, asked))


@launch.command("smoke")
@click.option("--family", required=True, help="The family whose image runs.")
@click.option("--encoders", type=Names(), help="Only these of the family.")
@click.option(
    "--device", default="auto", show_default=True, help="auto (cuda where one is offered), cpu, cuda, cuda:N."
)
@pass_context
def launch_smoke_(context: Context, family: str, encoders: list[str] | None, device: str) -> None:
    """Fetch weights that are missing, then smoke, without network where the runtime can."""
    from croma_bundle.launch.smoke import launch_smoke

    _leave(launch_smoke(context.launcher, context.catalogue, family, encoders, device))


@launch.command("tiles")
@click.argument("tileset")
@WORKERS
@pass_context
def launch_tiles(context: Context, tileset: str, workers: int | None) -> None:
    """Put a declared TILESET on the volume."""
    from croma_bundle.launch.run import launch_fetch

    _leave(launch_fetch(context.launcher, context.catalogue, tileset, workers))


@launch.command("run", context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.argument("service")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED)
@pass_context
def launch_run(context: Context, service: str, arguments: tuple[str, ...]) -> None:
    """Run one SERVICE of compose.yaml (weights, score, verify, status, list) with its ARGUMENTS."""
    from croma_bundle.launch.run import launch_service

    _leave(launch_service(context.launcher, service, arguments))


@cli.group()
def images() -> None:
    """Images: to and from a registry, and to machines without one."""


IMAGES = click.option("--images", "names", type=Names(), help="Only these. Default: all there are.")


@images.command("push")
@click.argument("registry")
@IMAGES
@pass_context
def images_push(context: Context, registry: str, names: list[str] | None) -> None:
    """Push what is built here to REGISTRY and record it, by digest, in manifests/images.lock.toml."""
    from croma_bundle.launch.place import find_checkout
    from croma_bundle.launch.registry import push

    push(find_checkout(), registry, names, context.reporter)


@images.command("pull")
@IMAGES
@pass_context
def images_pull(context: Context, names: list[str] | None) -> None:
    """Pull the published images by digest, and make compose run exactly these (compose.override.yaml)."""
    from croma_bundle.launch.place import find_checkout
    from croma_bundle.launch.registry import pull

    pull(find_checkout(), names, context.reporter)


@images.command("save")
@click.argument("file", type=FILE)
@IMAGES
@pass_context
def images_save(context: Context, file: Path, names: list[str] | None) -> None:
    """Write the images that are here to FILE, for a machine without a registry."""
    from croma_bundle.launch.registry import save

    save(file, names, context.reporter)


@images.command("load")
@click.argument("file", type=FILE)
@pass_context
def images_load(context: Context, file: Path) -> None:
    """Load what `images save` wrote, and say of each image whether it is a published one."""
    from croma_bundle.launch.place import find_checkout
    from croma_bundle.launch.registry import load

    load(find_checkout(), file, context.reporter)


@cli.command()
@runtime_option("What the steps will run in.")
@click.option("--family", default="classical", show_default=True, help="The encoders that will embed.")
@click.option("--tileset", help="The tileset that will be embedded: how much room it needs.")
@click.option("--network", is_flag=True, help="Ask the hub whether the token opens each gated repository.")
@pass_context
def doctor(context: Context, runtime: str, family: str, tileset: str | None, network: bool) -> None:
    """Examine this machine before a long run: every check with its verdict and remedy; exit 4 if one fails."""
    from croma_bundle.launch.doctor import Question, report

    environ = dict(os.environ)
    asked = Question(context.volume, context.catalogue, runtime, family, tileset, network, environ)
    report(asked, context.reporter)


def _offline() -> None:
    """No library may ask the hub while it computes: what is loaded lies on the volume, verified."""
    os.environ["HF_HUB_OFFLINE"] = "1"


def _leave(code: int) -> None:
    """End with the code of a step that has already said why."""
    raise click.exceptions.Exit(code)


def main(argv: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit with the documented code; a user's mistake never shows a traceback."""
    gc.set_threshold(100_000)  # few cycles are made, and looking for them takes a tenth of a short command
    if argv is None:  # the process is ours
        atexit.register(gc.freeze)  # nor is there any to find at its end, where all modules would be looked through
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            signal.signal(signal.SIGTERM, signal.default_int_handler)  # as Ctrl-C: schedulers send it
    as_json = "--json" in (sys.argv[1:] if argv is None else argv)
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by the caller: nobody wants to read it
            setattr(sys, name, Path(os.devnull).open("w"))  # noqa: SIM115
    sys.exit(
        _guarded(lambda: cli.main(argv, prog_name="croma-bundle", standalone_mode=False), Reporter(as_json=as_json))
    )


def _guarded(run: Callable[[], Any], reporter: Reporter) -> int:
    try:
        left = run()
    except BundleError as error:
        for fault in getattr(error, "errors", (error,)):
            reporter.fault(fault.paragraph(), fault.exit_code)
        return error.exit_code
    except click.exceptions.NoArgsIsHelpError as error:
        reporter.say(error.format_message(), "error", exit_code=UsageError.exit_code)
        return UsageError.exit_code
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx else "croma-bundle"
        hint = f"croma-bundle --json {command.partition(' ')[2]} …" if "--json" in str(error) else f"{command} --help"
        reporter.fault(f"{command}: {error.format_message()}\n  {hint}", UsageError.exit_code)
        return UsageError.exit_code
    except click.ClickException as error:
        reporter.fault(error.format_message(), error.exit_code)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        reporter.say("interrupted", "error", exit_code=130)
        return 130
    except click.exceptions.Exit as error:
        return error.exit_code
    except SystemExit:  # click's own answer to a closed pipe; its code, 1, means a failed verdict here
        return PIPE_CLOSED
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        return _told(reporter, f"the machine refused: {error.strerror or error}{where}")
    except MemoryError as error:
        return _told(
            reporter,
            f"the machine has not enough memory: {error}\n"
            "  Scoring takes less with a smaller --memory-limit or --k-max, embedding with a smaller --batch.",
        )
    except Exception as error:  # a fault of ours: never exit code 1, which is a failed verdict
        traceback.print_exc()
        return _told(reporter, f"croma-bundle failed ({type(error).__name__}: {error}); please report the lines above")
    return left if isinstance(left, int) else 0  # a number where click was told to leave with one


def _told(reporter: Reporter, text: str) -> int:
    """Exit code 4, told as far as anybody can still be told."""
    with contextlib.suppress(OSError):
        reporter.fault(text, EnvironmentFault.exit_code)
    return EnvironmentFault.exit_code
