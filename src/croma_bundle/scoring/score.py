"""Scoring one benchmark: survey every encoder, let the voters choose k, read every number off at that k."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import BundleError, CohortError, raise_all, some
from croma_bundle.metrics.bootstrap import SEED, Replicates, bootstrap
from croma_bundle.metrics.cohort import Cohort
from croma_bundle.metrics.operating_k import k_grid, shared_k
from croma_bundle.metrics.survey import (
    HEADLINE_M,
    M_MAX,
    KRow,
    Margins,
    MRow,
    OperatingPoint,
    Survey,
    margins,
    operate,
    survey,
    sweep_k,
    sweep_m,
)
from croma_bundle.progress import Reporter
from croma_bundle.scoring.memory import Plan, gigabytes, half_of_free, plan
from croma_bundle.scoring.roster import Member
from croma_bundle.scoring.survey_cache import SurveyCache
from croma_bundle.scoring.view import View


@dataclass(frozen=True)
class Knobs:
    """What a run may be asked to do differently from the benchmark's declaration; None keeps the declaration.

    `k` and `tau` pin the operating point for every encoder; `seed` is the bootstrap's. `block`, `hold`, `threads` (see
    `metrics.neighbours`) and `memory_limit` (bytes; None: half of what is free) change no result.
    """

    protocol: str | None = None
    k_grid: str | None = None
    k_max: int | None = None
    k: int | None = None
    tau: float | None = None
    m: int = HEADLINE_M
    seed: int = SEED
    block: int | None = None
    hold: bool | None = None
    threads: int | None = None
    memory_limit: int | None = None


@dataclass(frozen=True, eq=False)
class EncoderScore:
    """Everything measured of one encoder. `margin` is None where CRoMa is undefined, and `fault` says why."""

    member: Member
    survey: Survey
    point: OperatingPoint
    k_sweep: list[KRow]
    m_sweep: list[MRow]
    m_end: str | None
    unit_margins: npt.NDArray[np.float64]
    margin: Margins | None
    fault: BundleError | None


@dataclass(frozen=True, eq=False)
class BenchmarkScore:
    """A scored benchmark: its rows, its encoders in name order, how k came about, and the bootstrap of those with
    CRoMa."""

    view: View
    cohort: Cohort
    protocol: str
    knobs: Knobs
    k: int | None
    panel: tuple[str, ...]
    panel_rule: str
    encoders: list[EncoderScore]
    replicates: dict[str, Replicates]
    refused: list[BundleError] = field(default_factory=list)

    @property
    def faults(self) -> list[BundleError]:
        """Encoders that could not be scored, then those whose CRoMa is undefined; once where all share one cause."""
        undefined = [score.fault for score in self.encoders if score.fault]
        causes = {(fault.problem, fault.found) for fault in undefined}
        if len(undefined) == len(self.encoders) > 1 and len(causes) == 1:
            undefined = [copy.copy(undefined[0])]
            undefined[0].subject = f"{_benchmark(self.view)} · {some([e.member.name for e in self.encoders])}"
        return [*self.refused, *undefined]


def score_benchmark(
    view: View,
    members: Sequence[Member],
    protocol: str,
    knobs: Knobs,
    reporter: Reporter,
    cache: SurveyCache | None = None,
) -> BenchmarkScore:
    """Score all members on one view; with a cache, only what it does not hold is surveyed.

    Raises:
        CohortError: the cohort cannot be scored, or no encoder can.
    """
    cohort = view.cohort()
    say_incomplete(view.benchmark.name, cohort.incomplete, reporter)
    surveys, refused = _survey_all(view, cohort, members, knobs, reporter, cache)
    if not surveys:
        _nothing_scored(view, refused)
    k, panel, rule = _operating_k(surveys, members, protocol, knobs)
    with ThreadPoolExecutor(1) as pool:
        scored = [member for member in members if member.name in surveys]
        scores = [_score_one(view, member, surveys[member.name], k, knobs, pool) for member in scored]
    replicates = _bootstrap(cohort, scores, knobs)
    return BenchmarkScore(view, cohort, protocol, knobs, k, panel, rule, scores, replicates, refused)


def say_incomplete(benchmark: str, incomplete: Iterable[tuple[str, str]], reporter: Reporter) -> None:
    """Warn of each subset that is not scored."""
    for subset, reason in incomplete:
        reporter.warn(f"{benchmark}: subset {subset} is not scored: {reason}")


def _survey_all(
    view: View,
    cohort: Cohort,
    members: Sequence[Member],
    knobs: Knobs,
    reporter: Reporter,
    cache: SurveyCache | None,
) -> tuple[dict[str, Survey], list[BundleError]]:
    declared = view.benchmark
    k_max = min(knobs.k_max or declared.k_max, max(2, len(view.rows)))  # a k needs more rows than k
    grid = k_grid(knobs.k_grid or declared.k_grid, k_max)
    extra = () if knobs.k is None else (knobs.k,)
    surveys, faults = dict[str, Survey](), list[BundleError]()
    way = _plan(view, members, knobs, max(*grid, *extra), reporter)
    for member in reporter.track(members, len(members), f"{declared.name}: encoders"):
        kept = cache.load(member, cohort, grid, extra) if cache else None
        if kept is not None:
            surveys[member.name] = kept
            continue
        try:
            found = survey(
                member.matrix,
                cohort,
                grid=grid,
                extra_k=extra,
                m_max=M_MAX,
                rows=view.rows,
                block=knobs.block or way.block,
                hold=way.hold if knobs.hold is None else knobs.hold,
                threads=way.threads,
                progress=reporter.ticker(f"{_benchmark(view)} · {member.name}"),
            )
            surveys[member.name] = found
            if cache:
                cache.store(member, found, grid, extra)
        except CohortError as fault:
            fault.subject = f"{declared.name} · {member.name}"
            faults.append(fault)
    return surveys, faults


def _plan(view: View, members: Sequence[Member], knobs: Knobs, k: int, reporter: Reporter) -> Plan:
    """How to survey the widest of the members within the memory limit; says what it takes."""
    subject = f"benchmark {view.benchmark.name}"
    limit = half_of_free() if knobs.memory_limit is None else knobs.memory_limit
    width = max(member.matrix.shape[1] for member in members)
    size = {"rows": len(view.rows), "width": width, "itemsize": 4, "k": k, "m": M_MAX}
    chosen = plan(limit, subject, **size, threads=knobs.threads)
    how = "" if chosen.hold else ", block by block to fit, which is slower"
    reporter.say(f"{subject}: about {gigabytes(chosen.needed)} of {gigabytes(limit)} allowed{how}", "memory")
    return chosen


def _operating_k(
    surveys: dict[str, Survey], members: Sequence[Member], protocol: str, knobs: Knobs
) -> tuple[int | None, tuple[str, ...], str]:
    """The shared k (None: each its own), the encoders that decided it, and the rule in words."""
    if knobs.k is not None:
        return knobs.k, (), "pinned by --k"
    if protocol == "k-star":
        return None, (), "each encoder at its own k*"
    voters = [m.name for m in members if m.name in surveys and m.votes]
    panel = voters or [m.name for m in members if m.name in surveys]
    rule = f"lower median of {len(panel)} voters' k*" if len(panel) > 1 else f"k* of {panel[0]}, the only voter"
    if not voters:
        rule = f"lower median of all {len(panel)} k*: no voter is scored"
    return shared_k([surveys[name].k_star for name in panel]), tuple(panel), rule


def _score_one(
    view: View, member: Member, found: Survey, shared: int | None, knobs: Knobs, pool: Executor
) -> EncoderScore:
    subject = f"{_benchmark(view)} · {member.name}"
    by_m = pool.submit(sweep_m, found, subject)
    k = shared if shared is not None else found.k_star
    point = operate(found, k, tau=knobs.tau)
    by_k = sweep_k(found, k, point.tau)
    rows, units, end = by_m.result()
    margin, fault = None, None
    try:
        margin = margins(found, subject, knobs.m)
    except CohortError as error:
        fault = error
        fault.then = _next_m(view, [row.m for row in rows if row.m < knobs.m])
    return EncoderScore(member, found, point, by_k, rows, end, units, margin, fault)


def _bootstrap(cohort: Cohort, scores: Sequence[EncoderScore], knobs: Knobs) -> dict[str, Replicates]:
    groups = np.concatenate([cohort.groups[scope.rows] for scope in cohort.scopes])
    scopes = np.repeat(np.arange(len(cohort.scopes)), [len(scope.rows) for scope in cohort.scopes])
    units = {s.member.name: s.margin.units for s in scores if s.margin}
    return bootstrap(units, groups, scopes, seed=knobs.seed, threads=knobs.threads)


def _benchmark(view: View) -> str:
    """The benchmark's name, with the confounder where that is not the declared one."""
    declared = view.benchmark.confounder in (None, view.confounder)
    return view.benchmark.name if declared else f"{view.benchmark.name}@{view.confounder}"


def _next_m(view: View, smaller: Sequence[int]) -> str:
    """What to do about a CRoMa that is undefined at the asked m."""
    if smaller:
        return f"croma-bundle score --benchmark {view.benchmark.name} --m {smaller[-1]}   # every unit supports that"
    return "No smaller m is supported either: leave out, or fill, the cells whose rows lack neighbours."


def _nothing_scored(view: View, faults: list[BundleError]) -> None:
    """Raise what refused every encoder; once, where it is the same for all and so the cohort's own fault."""
    if len({(fault.problem, fault.found) for fault in faults}) == 1:
        faults[0].subject = f"benchmark {view.benchmark.name}"
        raise faults[0]
    raise_all(faults)
