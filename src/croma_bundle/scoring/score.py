"""Scoring one benchmark: survey every encoder, let the voters choose k, read every number off at that k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import BundleError, CohortError, raise_all
from croma_bundle.metrics.arrangement import BLOCK
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
from croma_bundle.scoring.roster import Member
from croma_bundle.scoring.view import View


@dataclass(frozen=True)
class Knobs:
    """What a run may be asked to do differently from the benchmark's declaration; None keeps the declaration.

    `k` and `tau` pin the operating point for every encoder. `block`, `hold` and `threads`
    (see `metrics.neighbours`) bound memory and time, and change no result.
    """

    protocol: str | None = None
    k_grid: str | None = None
    k_max: int | None = None
    k: int | None = None
    tau: float | None = None
    m: int = HEADLINE_M
    block: int = BLOCK
    hold: bool = True
    threads: int | None = None


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
    """A scored benchmark: its rows, its encoders in name order, and how k came about."""

    view: View
    cohort: Cohort
    protocol: str
    knobs: Knobs
    k: int | None
    panel: tuple[str, ...]
    panel_rule: str
    encoders: list[EncoderScore]
    refused: list[BundleError] = field(default_factory=list)

    @property
    def faults(self) -> list[BundleError]:
        """Encoders that could not be scored, then those whose CRoMa is undefined."""
        return [*self.refused, *(score.fault for score in self.encoders if score.fault)]


def score_benchmark(
    view: View, members: Sequence[Member], protocol: str, knobs: Knobs, reporter: Reporter
) -> BenchmarkScore:
    """Score all members on one view.

    Raises:
        CohortError: the cohort cannot be scored, or no encoder can.
    """
    cohort = view.cohort()
    for subset, reason in cohort.incomplete:
        reporter.warn(f"{view.benchmark.name}: subset {subset} is not scored: {reason}")
    surveys, refused = _survey_all(view, cohort, members, knobs, reporter)
    if not surveys:
        _nothing_scored(view, refused)
    k, panel, rule = _operating_k(surveys, members, protocol, knobs)
    scores = []
    for member in members:
        if member.name in surveys:
            found = surveys[member.name]
            scores.append(_score_one(view, member, found, k if k is not None else found.k_star, knobs))
    return BenchmarkScore(view, cohort, protocol, knobs, k, panel, rule, scores, refused)


def _survey_all(
    view: View, cohort: Cohort, members: Sequence[Member], knobs: Knobs, reporter: Reporter
) -> tuple[dict[str, Survey], list[BundleError]]:
    declared = view.benchmark
    grid = k_grid(knobs.k_grid or declared.k_grid, knobs.k_max or declared.k_max)
    extra = () if knobs.k is None else (knobs.k,)
    surveys, faults = dict[str, Survey](), list[BundleError]()
    for member in reporter.track(members, len(members), f"{declared.name}: encoders"):
        try:
            surveys[member.name] = survey(
                member.matrix,
                cohort,
                grid=grid,
                extra_k=extra,
                m_max=M_MAX,
                rows=view.rows,
                block=knobs.block,
                hold=knobs.hold,
                threads=knobs.threads,
            )
        except CohortError as fault:
            fault.subject = f"{declared.name} · {member.name}"
            faults.append(fault)
    return surveys, faults


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


def _score_one(view: View, member: Member, found: Survey, k: int, knobs: Knobs) -> EncoderScore:
    subject = f"{view.benchmark.name} · {member.name}"
    point = operate(found, k, tau=knobs.tau)
    rows, units, end = sweep_m(found, subject)
    margin, fault = None, None
    try:
        margin = margins(found, subject, knobs.m)
    except CohortError as error:
        fault = error
    return EncoderScore(member, found, point, sweep_k(found, k, point.tau), rows, end, units, margin, fault)


def _nothing_scored(view: View, faults: list[BundleError]) -> None:
    """Raise what refused every encoder; once, where it is the same for all and so the cohort's own fault."""
    if len({(fault.problem, fault.found) for fault in faults}) == 1:
        faults[0].subject = f"benchmark {view.benchmark.name}"
        raise faults[0]
    raise_all(faults)
