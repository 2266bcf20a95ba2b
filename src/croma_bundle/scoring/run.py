"""`score`: every asked benchmark through view, roster, metrics and tables; one failing does not stop the others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from croma_bundle.artifacts.pair import embedded
from croma_bundle.durable import lock
from croma_bundle.errors import BundleError, InputError, raise_all, some
from croma_bundle.layout import Volume
from croma_bundle.manifests.catalogue import Catalogue
from croma_bundle.manifests.models import Benchmark, Tileset
from croma_bundle.metrics.mari import require_tau
from croma_bundle.progress import Reporter
from croma_bundle.scoring.cross import cross_benchmark, is_scored, standing_cross, write_cross
from croma_bundle.scoring.kept import standing
from croma_bundle.scoring.record import inputs_of, planned
from croma_bundle.scoring.roster import frozen_pixels, load_roster
from croma_bundle.scoring.score import Knobs, say_incomplete, score_benchmark
from croma_bundle.scoring.survey_cache import SurveyCache
from croma_bundle.scoring.tables import METRICS, as_records, metrics_rows
from croma_bundle.scoring.terminal import benchmark_text, cross_text
from croma_bundle.scoring.view import build_view
from croma_bundle.scoring.write import write_score
from croma_bundle.tilemanifest.manifest import TileManifest, load_manifest


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
    fingerprint = manifest.fingerprint(tileset.confounder)
    members, refused = load_roster(
        volume,
        catalogue,
        tileset.name,
        fingerprint=fingerprint,
        pixels_sha256=pixels,
        wanted=request.encoders,
        threads=request.knobs.threads,
    )
    if request.encoders is not None:
        reporter.say(f"{benchmark.name}: --encoders limits what is scored, and the panel that decides k")
    if not members:
        raise_all(refused)
    protocol = request.knobs.protocol or benchmark.protocol
    inputs = inputs_of(volume, view, fingerprint, pixels, members)
    plan = planned(view, protocol, request.knobs, request.encoders, inputs)
    folder = volume.metrics(protocol, benchmark.name, override)
    if not refused and (found := standing(folder, plan)):
        say_incomplete(benchmark.name, found[0]["resolved"]["incomplete_subsets"].items(), reporter)
        _show(volume, *found, folder, reporter, unchanged=True)
        return []
    cache = SurveyCache(volume, tileset.name, inputs["view_sha256"])
    score = score_benchmark(view, members, protocol, request.knobs, reporter, cache)
    metrics = metrics_rows(score)
    run = write_score(folder, score, metrics, plan, refused)
    _show(volume, run, as_records(METRICS, metrics), folder, reporter, refused)
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
    return manifest, frozen_pixels(volume, tileset, manifest)


def _show(
    volume: Volume,
    run: Mapping[str, Any],
    rows: Sequence[Mapping[str, Any]],
    folder: Path,
    reporter: Reporter,
    refused: Sequence[BundleError] = (),
    *,
    unchanged: bool = False,
) -> None:
    text = benchmark_text(run, rows)
    if refused:
        text += f"\n  note: {len(refused)} refused, see the errors: {some([fault.subject for fault in refused])}"
    where = volume.shown(folder)
    end = f"unchanged: {where}" if unchanged else f"written to {where}"
    reporter.result(f"{text}\n  {end}\n", "scored", folder=where, unchanged=unchanged, rows=rows)


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
        found = standing_cross(volume, protocol, names, scored)
        cross = found or cross_benchmark(volume, protocol, names)
    except BundleError as fault:
        return [fault]
    if not found:
        write_cross(volume, protocol, cross)
    where = volume.shown(volume.cross_benchmark(protocol))
    text = f"{cross_text(cross, protocol, names)}\n  {'unchanged:' if found else 'written to'} {where}\n"
    rows = as_records(cross.header, cross.rows)
    reporter.result(text, "cross", file=where, unchanged=bool(found), rows=rows, left_out=cross.left_out)
    return []


def _declared_set(catalogue: Catalogue, scored: Sequence[str]) -> list[str]:
    sets = {catalogue.benchmarks[name].cross for name in scored} - {None}
    return [b.name for b in catalogue.benchmarks.values() if b.cross in sets] if sets else []
