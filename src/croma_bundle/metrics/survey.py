"""The front door: one neighbour pass over an embedding, then every number at any operating point.

``survey`` does the expensive part and keeps per unit only the types and distances of its nearest candidates, and the
distances of its nearest of each type. ``operate``, ``sweep_k``, ``margins`` and ``sweep_m`` are cheap and read them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from croma_bundle.errors import CohortError, DegenerateEmbedding
from croma_bundle.metrics import croma, mari, ri
from croma_bundle.metrics.arrangement import BLOCK
from croma_bundle.metrics.cohort import Cohort, Scope
from croma_bundle.metrics.neighbours import NO_NEIGHBOUR, OS, SO, Neighbours, Progress, typed_neighbours
from croma_bundle.metrics.operating_k import balanced_accuracy, k_star, mean
from croma_bundle.metrics.tail import ALPHA, tail

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]

HEADLINE_M = 5
M_MAX = 20
SURVEY_VERSION = 2
"""Raised when a survey of the same input holds other values: kept surveys of another version are not used."""


@dataclass(frozen=True, eq=False)
class Survey:
    """What one neighbour pass found of one encoder on one cohort. U = evaluation units, in scope order.

    Attributes:
        cohort: as given.
        usable_k: the grid's k that some scope has more rows than, ascending.
        bio, conf: kNN balanced accuracy in [0, 1] of label and confounder, by usable k and by pinned k.
        k_star: smallest usable k with the highest ``bio``.
        capped_rows: units with fewer candidates than the largest usable k.
        m_max: how many neighbours of each type were kept.
        unit_rows: (U,) int64, row of the cohort of each unit.
        scope_slices: where each scope's units lie, aligned with ``cohort.scopes``.
        kinds, distance: (U, K) int8 and float64, types and distances of the nearest candidates; -1, +inf for none; NaN
            for untyped ones. Right as sets at every k surveyed; between two of these k, order means nothing.
        so, os: (U, m_max) float64, distances to the nearest of each type, +inf for none.
        candidates: (U,) int64, how many candidates each unit has.
    """

    cohort: Cohort
    usable_k: tuple[int, ...]
    bio: dict[int, float]
    conf: dict[int, float]
    k_star: int
    capped_rows: int
    m_max: int
    unit_rows: Ints
    scope_slices: tuple[slice, ...]
    kinds: npt.NDArray[np.int8]
    distance: Floats
    so: Floats
    os: Floats
    candidates: Ints

    @property
    def n_units(self) -> int:
        return len(self.unit_rows)


@dataclass(frozen=True, eq=False)
class OperatingPoint:
    """Everything that depends on k, at one k, over all units (U of them).

    ``tau_note`` says why τ is not the median, or that a pinned one is off-scale, or is None. ``capped_rows``: units
    with fewer candidates than k. ``unit_ri`` and ``unit_mari`` are (U,) float64, nan where undefined; ``undefined`` is
    (U,) text, "" where defined, else "ss", "oo" or "mixed"; all aligned with ``Survey.unit_rows``.
    """

    k: int
    tau: float
    tau_note: str | None
    bio_bacc: float
    conf_bacc: float
    ri: float
    mari: float
    support: float
    ss_undefined: float
    oo_undefined: float
    mixed_undefined: float
    n_units: int
    capped_rows: int
    unit_ri: Floats
    unit_mari: Floats
    undefined: npt.NDArray[np.str_]


@dataclass(frozen=True)
class KRow:
    """One k of the sweep, τ held; ``selected`` marks the operating k."""

    k: int
    bio_bacc: float
    conf_bacc: float
    ri: float
    mari: float
    support: float
    selected: bool


@dataclass(frozen=True, eq=False)
class Margins:
    """CRoMa at one m: ``median`` (of the subsets' medians), tail of the pooled units, and ``units`` (U,) float64."""

    m: int
    alpha: float
    median: float
    q10: float
    ltm10: float
    f0: float
    units: Floats


@dataclass(frozen=True)
class MRow:
    """One m of the sweep."""

    m: int
    croma_median: float
    croma_q10: float
    croma_ltm10: float
    croma_f0: float


def survey(
    x: npt.NDArray[np.floating],
    cohort: Cohort,
    *,
    grid: Sequence[int],
    extra_k: Sequence[int] = (),
    m_max: int = M_MAX,
    rows: Ints | None = None,
    block: int = BLOCK,
    hold: bool = True,
    threads: int | None = None,
    progress: Progress | None = None,
) -> Survey:
    """Find every unit's neighbours, deep enough for the grid, the pinned k and m_max.

    Args:
        x: (N, D) floating, one row per row of the cohort, not normalised; with `rows`, a larger matrix that holds them.
        grid: the k that may be chosen, each 1 or more.
        extra_k: pinned k, on the grid or not, each 1 or more; they do not vote for ``k_star``.
        m_max: neighbours of each type to keep, 1 or more.
        rows: (N,) int64, the row of x of each row of the cohort; None: x has just these, in their order.
        block, hold, threads: see ``typed_neighbours``; they never change the result.
        progress: called with (units done, units in all).

    Raises:
        CohortError: x and the cohort differ in length; a k or m below 1; no usable k; no row with a candidate.
        DegenerateEmbedding: x is not finite.
    """
    rows = np.arange(len(x), dtype=np.int64) if rows is None else rows
    _require(x, rows, cohort, grid, extra_k, m_max)
    ks = sorted({*grid, *extra_k})
    depth = max(1, min(ks[-1], max(len(scope.rows) for scope in cohort.scopes) - 1))
    found: list[Neighbours] = []
    bio: list[dict[int, float]] = []
    conf: list[dict[int, float]] = []
    for scope, done in zip(cohort.scopes, _offsets(cohort.scopes), strict=True):
        labels, confounders, groups = (c[scope.rows] for c in (cohort.labels, cohort.confounders, cohort.groups))
        near = typed_neighbours(
            x,
            labels,
            confounders,
            groups,
            k=depth,
            m=m_max,
            cuts=ks,
            rows=rows[scope.rows],
            block=block,
            hold=hold,
            threads=threads,
            progress=_from_offset(progress, done, cohort.n_units),
        )
        bio.append(balanced_accuracy(labels, near.index, ks))
        conf.append(balanced_accuracy(confounders, near.index, ks))
        found.append(near)
    return _assemble(cohort, sorted(set(grid)), sorted(set(extra_k)), m_max, found, bio, conf)


def pack(survey: Survey) -> dict[str, npt.NDArray[Any]]:
    """The survey as plain arrays without its cohort, for keeping; :func:`unpack` gives the same survey back."""
    typed = (survey.kinds == SO) | (survey.kinds == OS)
    ks = np.array(sorted(survey.bio), dtype=np.int64)
    return {
        "usable_k": np.array(survey.usable_k, dtype=np.int64),
        "k": ks,
        "bio": np.array([survey.bio[k] for k in ks.tolist()]),
        "conf": np.array([survey.conf[k] for k in ks.tolist()]),
        "counts": np.array([survey.k_star, survey.capped_rows, survey.m_max], dtype=np.int64),
        "kinds": survey.kinds,
        "typed": survey.distance[typed],
        "so": survey.so,
        "os": survey.os,
        "candidates": survey.candidates,
    }


def unpack(cohort: Cohort, arrays: Mapping[str, npt.NDArray[Any]]) -> Survey:
    """The survey that :func:`pack` was given; `cohort` must be its cohort.

    Raises:
        KeyError, ValueError: the arrays are not a packed survey of this cohort.
    """
    kinds = arrays["kinds"]
    if len(kinds) != cohort.n_units:
        raise ValueError(f"a survey of {len(kinds)} units for a cohort of {cohort.n_units}")
    distance = np.where(kinds == NO_NEIGHBOUR, np.inf, np.nan)
    distance[(kinds == SO) | (kinds == OS)] = arrays["typed"]
    star, capped, m_max = arrays["counts"].tolist()
    ks = arrays["k"].tolist()
    return Survey(
        cohort=cohort,
        usable_k=tuple(arrays["usable_k"].tolist()),
        bio=dict(zip(ks, arrays["bio"].tolist(), strict=True)),
        conf=dict(zip(ks, arrays["conf"].tolist(), strict=True)),
        k_star=star,
        capped_rows=capped,
        m_max=m_max,
        unit_rows=np.concatenate([scope.rows for scope in cohort.scopes]),
        scope_slices=_scope_slices(cohort),
        kinds=kinds,
        distance=distance,
        so=arrays["so"],
        os=arrays["os"],
        candidates=arrays["candidates"],
    )


def operate(survey: Survey, k: int, *, tau: float | None = None) -> OperatingPoint:
    """Every number at k over all units; a unit with fewer than k candidates uses those it has.

    Args:
        k: a usable k of the survey, or one of its ``extra_k``.
        tau: MaRI's temperature; by default the median distance of all typed neighbours within k.

    Raises:
        CohortError: the survey does not cover k, or tau is not above 0.
    """
    _require_covered(survey, k)
    counts = ri.type_counts(survey.kinds, k)
    causes = ri.undefined_causes(counts)
    shares = ri.support(causes)
    chosen = mari.choose_tau(mari.typed_distances(survey.kinds, survey.distance, k), tau)
    return OperatingPoint(
        k=k,
        tau=chosen.value,
        tau_note=chosen.note,
        bio_bacc=survey.bio[k],
        conf_bacc=survey.conf[k],
        ri=ri.robustness_index(counts),
        mari=mari.margin_aware_index(survey.kinds, survey.distance, k, chosen.value),
        support=shares.support,
        ss_undefined=shares.ss_undefined,
        oo_undefined=shares.oo_undefined,
        mixed_undefined=shares.mixed_undefined,
        n_units=survey.n_units,
        capped_rows=int(np.count_nonzero(survey.candidates < k)),
        unit_ri=ri.unit_ri(counts),
        unit_mari=mari.unit_mari(survey.kinds, survey.distance, k, chosen.value),
        undefined=causes,
    )


def sweep_k(survey: Survey, operating_k: int, tau: float) -> list[KRow]:
    """The curves over k at one τ: every usable k and the operating one, ascending.

    A grid k counts only the scopes with more rows than k; at the operating k every scope counts.

    Raises:
        CohortError: the survey does not cover operating_k, or tau is not above 0.
    """
    _require_covered(survey, operating_k)
    temperature = mari.require_tau(tau)
    rows = []
    for k in sorted({*survey.usable_k, operating_k}):
        selected = k == operating_k
        used = _units_of_scopes_above(survey, 0 if selected else k)
        which = slice(None) if used.all() else used
        kinds, distance = survey.kinds[which, :k], survey.distance[which, :k]
        index, support = ri.index_and_support(kinds)
        rows.append(
            KRow(
                k=k,
                bio_bacc=survey.bio[k],
                conf_bacc=survey.conf[k],
                ri=index,
                mari=mari.margin_aware_index(kinds, distance, k, temperature),
                support=support,
                selected=selected,
            )
        )
    return rows


def margins(survey: Survey, subject: str, m: int = HEADLINE_M) -> Margins:
    """CRoMa at m.

    Args:
        subject: whose it is, for the error: "camelyon · Virchow2".
        m: 1 to the survey's m_max.

    Raises:
        CohortError: m is out of range.
        DegenerateEmbedding: some unit lacks m neighbours of a type or has zero margin.
    """
    if not 1 <= m <= survey.m_max:
        raise CohortError(subject, f"m = {m}, wanted 1 to {survey.m_max}")
    by_scope = [
        (scope.name, croma.unit_margins(survey.so[where], survey.os[where], m))
        for scope, where in zip(survey.cohort.scopes, survey.scope_slices, strict=True)
    ]
    croma.require_total_support(by_scope, subject, m, survey.cohort.unit)
    units = np.concatenate([margin.values for _, margin in by_scope])
    median = float(np.median([float(np.median(margin.values)) for _, margin in by_scope]))
    low = tail(units)
    return Margins(m=m, alpha=ALPHA, median=median, q10=low.q10, ltm10=low.ltm10, f0=low.f0, units=units)


def sweep_m(survey: Survey, subject: str) -> tuple[list[MRow], Floats, str | None]:
    """CRoMa at every m from 1 to the largest that every unit supports.

    Lacking neighbours ends the sweep: it is so at every larger m too. Zero margin is so at every *smaller* m: such an
    m has no row, and its column is nan, but the sweep goes on.

    Returns:
        The rows, ascending in m; (U, last) float64, the units' margins at m = 1..last; and, unless every m up to m_max
        has a row, what is missing, in one line.
    """
    rows: list[MRow] = []
    columns: list[Floats] = []
    refusals: dict[int, DegenerateEmbedding] = {}
    for m in range(1, survey.m_max + 1):
        try:
            at_m = margins(survey, subject, m)
        except DegenerateEmbedding as refusal:
            refusals[m] = refusal
            columns.append(np.full(survey.n_units, np.nan))
        else:
            rows.append(MRow(m, at_m.median, at_m.q10, at_m.ltm10, at_m.f0))
            columns.append(at_m.units)
    last = rows[-1].m if rows else 0
    matrix = np.column_stack(columns[:last]) if last else np.empty((survey.n_units, 0))
    # The largest m refused for zero margin, and the smallest refused for want of neighbours, say it all.
    telling = [max((m for m in refusals if m < last), default=0), min((m for m in refusals if m > last), default=0)]
    reasons = [f"{refusals[m].problem}: {refusals[m].found}" for m in telling if m]
    return rows, matrix, "; ".join(reasons) or None


def _require(
    x: npt.NDArray[np.floating], rows: Ints, cohort: Cohort, grid: Sequence[int], extra_k: Sequence[int], m_max: int
) -> None:
    subject = cohort.name or "cohort"
    faults = []
    if x.ndim != 2 or len(rows) != cohort.n_rows:
        faults.append(f"the matrix has shape {x.shape}, the cohort {cohort.n_rows} rows")
    if not grid:
        faults.append("the k grid is empty")
    faults += [f"k = {k}, wanted 1 or more" for k in sorted({*grid, *extra_k}) if k < 1]
    if m_max < 1:
        faults.append(f"m_max = {m_max}, wanted 1 or more")
    if faults:
        raise CohortError(subject, "; ".join(faults))


def _require_covered(survey: Survey, k: int) -> None:
    if k not in survey.bio:
        wanted = f"one of {', '.join(map(str, sorted(survey.bio)))}"
        raise CohortError(survey.cohort.name or "cohort", f"k = {k} was not surveyed", wanted=wanted)


def _offsets(scopes: Sequence[Scope]) -> list[int]:
    sizes = [len(scope.rows) for scope in scopes]
    return [sum(sizes[:i]) for i in range(len(sizes))]


def _scope_slices(cohort: Cohort) -> tuple[slice, ...]:
    """Where each scope's units lie among all units."""
    offsets = zip(_offsets(cohort.scopes), cohort.scopes, strict=True)
    return tuple(slice(at, at + len(scope.rows)) for at, scope in offsets)


def _from_offset(progress: Progress | None, offset: int, total: int) -> Progress | None:
    if progress is None:
        return None
    return lambda done, _: progress(offset + done, total)


def _assemble(
    cohort: Cohort,
    grid: Sequence[int],
    pinned: Sequence[int],
    m_max: int,
    found: Sequence[Neighbours],
    bio_by_scope: Sequence[dict[int, float]],
    conf_by_scope: Sequence[dict[int, float]],
) -> Survey:
    sizes = [len(scope.rows) for scope in cohort.scopes]
    candidates = np.concatenate([near.candidates for near in found])
    if not candidates.any():
        raise CohortError(
            cohort.name or "cohort",
            "no row has a candidate neighbour",
            detail="Rows of one group are never each other's neighbours, and here each scope is one group.",
        )
    bio, conf = (_over_scopes(by_scope, sizes, grid) for by_scope in (bio_by_scope, conf_by_scope))
    if not bio:
        raise CohortError(
            cohort.name or "cohort",
            "no usable k",
            wanted=f"a k of the grid below the rows of a scope that has candidates ({max(sizes)} rows at most)",
            found=f"k from {grid[0]} to {grid[-1]}",
        )
    usable = tuple(sorted(bio))
    best = k_star(bio)
    for k in pinned:
        bio[k], conf[k] = (_pinned(by_scope, sizes, k) for by_scope in (bio_by_scope, conf_by_scope))
    return Survey(
        cohort=cohort,
        usable_k=usable,
        bio=bio,
        conf=conf,
        k_star=best,
        capped_rows=int(np.count_nonzero(candidates < usable[-1])),
        m_max=m_max,
        unit_rows=np.concatenate([scope.rows for scope in cohort.scopes]),
        scope_slices=_scope_slices(cohort),
        kinds=np.concatenate([near.kinds for near in found]),
        distance=np.concatenate([near.distance for near in found]),
        so=np.concatenate([near.so for near in found]),
        os=np.concatenate([near.os for near in found]),
        candidates=candidates,
    )


def _over_scopes(by_scope: Sequence[dict[int, float]], sizes: Sequence[int], ks: Sequence[int]) -> dict[int, float]:
    """Mean accuracy by k over the scopes with more than k rows and a candidate; a k without such a scope is absent."""
    out = {}
    for k in ks:
        values = [accuracy[k] for accuracy, rows in zip(by_scope, sizes, strict=True) if rows > k and k in accuracy]
        if values:
            out[k] = mean(values)
    return out


def _pinned(by_scope: Sequence[dict[int, float]], sizes: Sequence[int], k: int) -> float:
    """As :func:`_over_scopes`; where no scope has more than k rows, over all, with the neighbours there are."""
    usual = _over_scopes(by_scope, sizes, [k])
    return usual[k] if k in usual else mean([accuracy[k] for accuracy in by_scope if k in accuracy])


def _units_of_scopes_above(survey: Survey, k: int) -> Bools:
    used = np.zeros(survey.n_units, dtype=np.bool_)
    for where in survey.scope_slices:
        used[where] = where.stop - where.start > k
    return used
