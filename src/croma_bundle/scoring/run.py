"""`score`: every asked benchmark through view, roster, metrics and tables; one failing does not stop the others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from croma_bundle.artifacts.frozen_manifest import require_frozen_manifest
from croma_bundle.artifacts.pair import embedded
from croma_bundle.durable import lock, sha256_file
from croma_bundle.errors import BundleError, InputError, raise_all, some
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Benchmark, Tileset
from croma_bundle.metrics.mari import require_tau
from croma_bundle.progress import Reporter
from croma_bundle.scoring.cross import cross_benchmark, is_scored, write_cross
from croma_bundle.scoring.roster import Member, load_roster
from croma_bundle.scoring.score import BenchmarkScore, Knobs, score_benchmark
from croma_bundle.scoring.survey_cache import SurveyCache
from croma_bundle.scoring.tables import METRICS, as_records, metrics_rows
from croma_bundle.scoring.terminal import benchmark_text, cross_text
from croma_bundle.scoring.view import View, build_view
from croma_bundle.scoring.write import write_score
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest
from croma_bundle.tilemanifest.pixel_record import read_pixels


@dataclass(frozen=True)
class Request:
    """What to score; None means all that can be."""

    benchmarks: Sequence[str] | None = None
    encoders: Sequence[str] | None = None
    confounders: Sequence[str] | None = None
    cross: Sequence[str] | None = None
    knobs: Knobs = field(default_factory=Knobs)


def score_all(volume: Volume, catalogue: Catalogue, request: Request, reporter: Reporter) -> None:
    """Score, write and show every asked benchmark, then the cross-benchmark tables that became complete.

    Raises:
        BundleError, SeveralErrors: everything that failed, after all the rest was scored.
    """
    benchmarks = _asked(volume, catalogue, request)
    volume.require_writable()
    faults: list[BundleError] = []
    refused: set[str] = set()
    protocols: dict[str, list[str]] = {}
    for benchmark in benchmarks:
        default = benchmark.confounder or catalogue.tileset(benchmark.tileset).confounder
        for confounder in request.confounders or (default,):
            protocol = request.knobs.protocol or benchmark.protocol
            if request.cross is not None:
                protocols.setdefault(protocol, [])
            try:
                with lock(volume.score_lock(protocol), f"score {protocol}"):
                    override = confounder if confounder != default else None
                    faults += _score_one(volume, catalogue, benchmark, confounder, override, request, reporter)
            except BundleError as fault:
                faults.append(fault)
                refused |= {benchmark.name} if confounder == default else set()
                continue
            if confounder == default:
                protocols.setdefault(protocol, []).append(benchmark.name)
    for protocol, scored in protocols.items():
        faults += _cross(volume, catalogue, protocol, scored, refused, request.cross, reporter)
    raise_all(faults)


def _asked(volume: Volume, catalogue: Catalogue, request: Request) -> list[Benchmark]:
    """The benchmarks to score; raises for everything in the request that cannot be, before any work."""
    if request.knobs.tau is not None:
        require_tau(request.knobs.tau)
    faults: list[BundleError] = []
    for name in dict.fromkeys([*(request.benchmarks or ()), *(request.cross or ())]):
        try:
            catalogue.benchmark(name)
        except BundleError as fault:
            faults.append(fault)
    raise_all(faults)
    if request.benchmarks is not None:
        return [catalogue.benchmark(name) for name in request.benchmarks]
    found = [b for b in catalogue.benchmarks.values() if embedded(volume, b.tileset)]
    if not found:
        raise InputError(
            f"volume {volume.root}",
            "no declared tileset has embeddings, so there is nothing to score",
            wanted="matrices in embeddings/<tileset>/",
            then="make embed FAMILY=classical TILESET=phantom   # or: croma-bundle import …",
        )
    return found


def _score_one(
    volume: Volume,
    catalogue: Catalogue,
    benchmark: Benchmark,
    confounder: str,
    override: str | None,
    request: Request,
    reporter: Reporter,
) -> list[BundleError]:
    tileset = catalogue.tileset(benchmark.tileset)
    manifest, pixels = _frozen(volume, tileset, benchmark.name)
    view = build_view(volume, benchmark, manifest, confounder)
    if override and "/" in override:
        detail = "Its tables go to <benchmark>@<confounder>; rename the column in a cohort of another name."
        raise InputError(f"confounder {override!r}", "this column's name cannot name a folder", detail=detail)
    fingerprint = manifest.fingerprint(tileset.confounder)
    members, refused = load_roster(
        volume,
        catalogue,
        tileset.name,
        fingerprint=fingerprint,
        pixels_sha256=pixels,
        wanted=request.encoders,
    )
    if request.encoders is not None:
        reporter.say(f"{benchmark.name}: --encoders limits what is scored, and the panel that decides k")
    if not members:
        raise_all(refused)
    protocol = request.knobs.protocol or benchmark.protocol
    inputs = _inputs(volume, view, tileset, fingerprint, pixels, members)
    cache = SurveyCache(volume, tileset.name, inputs["view_sha256"])
    score = score_benchmark(view, members, protocol, request.knobs, reporter, cache)
    folder = volume.metrics(protocol, benchmark.name, override)
    write_score(volume, score, inputs, folder, request.encoders, refused)
    _show(volume, score, folder, reporter, refused)
    return [*refused, *score.faults]


def _frozen(volume: Volume, tileset: Tileset, benchmark: str) -> tuple[TileManifest, str | None]:
    """The tileset's manifest, confirmed to be the one beside its matrices, and the hash of its pixels."""
    manifest = load_manifest(volume, tileset)
    if not embedded(volume, tileset.name):
        raise InputError(
            f"benchmark {benchmark}",
            f"nothing is embedded for its tileset {tileset.name}",
            wanted=f"matrices in {volume.relative(volume.embeddings(tileset.name))}/",
            then=f"make embed FAMILY=classical TILESET={tileset.name}"
            if tileset.images
            else f'croma-bundle import {tileset.name} ENCODER matrix.npy --provenance "…"',
        )
    require_frozen_manifest(volume, tileset.name, manifest.public_text(tileset.confounder))
    if not volume.pixels(tileset.name).exists():
        return manifest, None
    return manifest, read_pixels(volume, tileset.name, manifest).pixels_sha256


def _inputs(
    volume: Volume,
    view: View,
    tileset: Tileset,
    fingerprint: str,
    pixels: str | None,
    members: Sequence[Member],
) -> dict[str, Any]:
    return {
        "tileset": tileset.name,
        "manifest_sha256": sha256_file(volume.tile_manifest(tileset.name)),
        "manifest_fingerprint": fingerprint,
        "view_sha256": view.sha256(),
        "pixels_sha256": pixels,
        "encoders": {
            m.name: {"matrix_sha256": m.sidecar["matrix_sha256"], "sidecar_sha256": m.sidecar_sha256} for m in members
        },
    }


def _show(
    volume: Volume, score: BenchmarkScore, folder: Any, reporter: Reporter, refused: Sequence[BundleError]
) -> None:
    text = benchmark_text(score)
    if refused:
        text += f"\n  note: {len(refused)} refused, see the errors: {some([fault.subject for fault in refused])}"
    where = volume.shown(folder)
    reporter.result(
        f"{text}\n  written to {where}\n", "scored", folder=where, rows=as_records(METRICS, metrics_rows(score))
    )


def _cross(
    volume: Volume,
    catalogue: Catalogue,
    protocol: str,
    scored: Sequence[str],
    refused: set[str],
    asked: Sequence[str] | None,
    reporter: Reporter,
) -> list[BundleError]:
    """Write the cross-benchmark table of the asked set, or of the declared one that a scored benchmark belongs to."""
    names = list(asked) if asked is not None else _declared_set(catalogue, scored)
    if not names:
        return []
    if stale := [name for name in names if name in refused]:
        reporter.say(f"cross-benchmark table: not written, {', '.join(stale)} was refused ({protocol})")
        return []
    missing = [n for n in names if not is_scored(volume, protocol, n)]
    if missing and asked is None:
        reporter.say(f"cross-benchmark table: waits for {', '.join(missing)} ({protocol})")
        return []
    try:
        cross = cross_benchmark(volume, protocol, names)
    except BundleError as fault:
        return [fault]
    write_cross(volume, protocol, cross)
    where = volume.shown(volume.cross_benchmark(protocol))
    text = f"{cross_text(cross, protocol, names)}\n  written to {where}\n"
    reporter.result(text, "cross", file=where, rows=as_records(cross.header, cross.rows), left_out=cross.left_out)
    return []


def _declared_set(catalogue: Catalogue, scored: Sequence[str]) -> list[str]:
    sets = {catalogue.benchmarks[name].cross for name in scored} - {None}
    return [b.name for b in catalogue.benchmarks.values() if b.cross in sets] if sets else []
