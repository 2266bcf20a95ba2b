"""Every value of random cohorts against the public croma 1.0.1, an independent implementation.

The oracle is given float64. Three things it cannot do, which are asserted on their own at the end with the right value
from a brute force: it never sees a row's farthest candidate (its fetch is capped at n − 1 rows, the query included),
it orders exactly equal distances by chance, and it scores no incomplete subset.
"""

from __future__ import annotations

import math
import statistics
import warnings
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from croma_bundle.errors import DegenerateEmbedding
from croma_bundle.metrics.cohort import Cohort
from croma_bundle.metrics.operating_k import k_grid, shared_k
from croma_bundle.metrics.survey import margins, operate, survey, sweep_k, sweep_m

croma = pytest.importorskip("croma", reason="the oracle, croma==1.0.1, is a test-time extra")
pd = pytest.importorskip("pandas", reason="the oracle takes pandas frames")
if croma.__version__ != "1.0.1":
    pytest.skip(f"the oracle is croma 1.0.1, here is {croma.__version__}", allow_module_level=True)

from croma.metrics.neighbors import _knn_balanced_accuracy_by_k, _select_k_from_balanced_accuracy  # noqa: E402

TOLERANCE = 1e-6
CROMA_TOLERANCE = 2e-6
HEADLINE_AND_SWEEP = (1, 5, 10, 20)

reproducible = settings(
    deadline=None, derandomize=True, max_examples=24, suppress_health_check=[HealthCheck.too_slow], database=None
)


@dataclass(frozen=True)
class Case:
    """A manifest as columns of text, and an embedding of it."""

    x: np.ndarray
    labels: list[str]
    confounders: list[str]
    groups: list[str]
    subsets: list[str] | None

    @property
    def design(self):
        return "all" if self.subsets is None else "paired_2x2"

    @property
    def cohort(self):
        return Cohort.from_columns(self.labels, self.confounders, self.groups, self.subsets, self.design)

    @property
    def frame(self):
        columns = {
            "sample_id": [f"s{i}" for i in range(len(self.labels))],
            "image_path": "unused",
            "label": self.labels,
            "confounder": self.confounders,
            "group_id": self.groups,
        }
        return pd.DataFrame(columns | ({} if self.subsets is None else {"subset": self.subsets}))

    def with_embedding(self, x):
        return Case(x, self.labels, self.confounders, self.groups, self.subsets)

    def asked(self, **options):
        """The arguments that every oracle call takes."""
        given = {"features": self.x, "manifest": self.frame, "confounder_column": "confounder"}
        return given | {"evaluation_design": self.design} | options


def embedding(rng, labels, confounders, groups, width, biology, confounder, noise, offset):
    """Class, confounder and group effects and noise; ``offset`` makes the cone narrow."""
    x = noise * rng.standard_normal((len(labels), width)) + offset
    for column, strength in ((labels, biology), (confounders, confounder), (groups, 0.5)):
        _, codes = np.unique(column, return_inverse=True)
        x += strength * rng.standard_normal((codes.max() + 1, width))[codes]
    return x


def block(rng, n_labels, n_confounders, rows_per_cell, rows_per_group, spanning, prefix):
    """A full table of cells of unequal size, rows shuffled. ``spanning``: groups of one confounder span the labels."""
    labels, confounders, groups = [], [], []
    for label in range(n_labels):
        for value in range(n_confounders):
            for i in range(rows_per_cell + int(rng.integers(0, 4))):
                labels.append(f"{prefix}label{label}")
                confounders.append(f"{prefix}centre{value}")
                groups.append(f"{prefix}{value}-{'' if spanning else label}-{i // rows_per_group}")
    order = rng.permutation(len(labels))
    return [[column[i] for i in order] for column in (labels, confounders, groups)]


@st.composite
def cases(draw, design):
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    rows_per_cell, rows_per_group = draw(st.integers(6, 24)), draw(st.integers(1, 4))
    spanning = draw(st.booleans())
    if design == "all":
        shape = draw(st.integers(2, 4)), draw(st.integers(2, 3))
        labels, confounders, groups = block(rng, *shape, rows_per_cell, rows_per_group, spanning, "")
        subsets = None
    else:
        labels, confounders, groups, subsets = [], [], [], []
        for i in range(draw(st.integers(1, 4))):
            columns = block(rng, 2, 2, rows_per_cell, rows_per_group, spanning, f"{i % 2}")
            for column, part in zip((labels, confounders, groups), columns, strict=True):
                column += part
            subsets += [f"subset{9 - i}"] * len(columns[0])
    strengths = [draw(st.sampled_from([0.0, 0.5, 1.0, 3.0])) for _ in range(2)]
    width, noise, offset = (draw(st.sampled_from(values)) for values in ([3, 8, 40], [0.5, 1.0], [0, 4]))
    x = embedding(rng, labels, confounders, groups, width, *strengths, noise, offset)
    return Case(x, labels, confounders, groups, subsets)


def comparable_grid(found_candidates, kind):
    """A grid all of whose k are below every row's candidate count, where the oracle sees what it should."""
    below = int(found_candidates.min())
    return tuple(k for k in k_grid(kind, below) if k < below)


def candidates_of(case):
    """How many candidates each row has in its scope, by counting."""
    counts = []
    for scope in case.cohort.scopes:
        groups = [case.groups[row] for row in scope.rows]
        counts += [len(groups) - groups.count(group) for group in groups]
    return np.array(counts)


def quietly(call, **arguments):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return call(**arguments)


def oracle_accuracy(case, column, ks):
    """kNN balanced accuracy by k as its pipeline has it: of all rows, or the mean over subsets."""
    unit = case.x / (np.linalg.norm(case.x, axis=1, keepdims=True) + 1e-12)
    frame = case.frame
    by_subset = []
    for rows in [range(len(frame))] if case.subsets is None else frame.groupby("subset").indices.values():
        part = frame.iloc[list(rows)]
        by_subset.append(
            _knn_balanced_accuracy_by_k(
                features=unit[list(rows)],
                labels=pd.factorize(part[column])[0],
                group_ids=part["group_id"].to_numpy(),
                k_values=list(ks),
                warn_context="oracle",
            )
        )
    return {k: float(np.mean([scores[k] for scores in by_subset])) for k in ks}


def check_operating_point(case, found, k):
    """RI, MaRI, τ, support and its causes at one k, pooled and of every unit."""
    ours = operate(found, k)
    ri = quietly(croma.RI.compute, **case.asked(k_candidates=[k]))
    mari = quietly(croma.MaRI.compute, **case.asked(k_candidates=[k]))
    assert ours.ri == pytest.approx(ri.value, abs=TOLERANCE)
    assert ours.mari == pytest.approx(mari.value, abs=TOLERANCE)
    assert ours.tau == pytest.approx(mari.tau, abs=TOLERANCE)
    assert ours.support == pytest.approx(ri.support, abs=TOLERANCE)
    assert ours.ss_undefined == pytest.approx(ri.ss_dominated_undefined_frac, abs=TOLERANCE)
    assert ours.oo_undefined == pytest.approx(ri.oo_dominated_undefined_frac, abs=TOLERANCE)
    assert ours.mixed_undefined == pytest.approx(ri.mixed_undefined_frac, abs=TOLERANCE)
    assert found.unit_rows.tolist() == ri.occurrence_source_indices.tolist()
    assert ours.undefined.tolist() == [("", "ss", "oo", "mixed")[code] for code in ri.sample_undefined_types]
    np.testing.assert_allclose(ours.unit_ri, ri.sample_values_aligned, rtol=0, atol=TOLERANCE)
    np.testing.assert_allclose(ours.unit_mari, mari.sample_values_aligned, rtol=0, atol=TOLERANCE)


def check_margins(case, found):
    """CRoMa at the headline and along the sweep; where one refuses, both do."""
    for m in HEADLINE_AND_SWEEP:
        try:
            theirs = quietly(croma.CRoMa.compute, **case.asked(m=m))
        except RuntimeError:
            with pytest.raises(DegenerateEmbedding):
                margins(found, "case", m)
            continue
        ours = margins(found, "case", m)
        assert ours.median == pytest.approx(theirs.value, abs=CROMA_TOLERANCE)
        assert ours.q10 == pytest.approx(theirs.q_alpha, abs=CROMA_TOLERANCE)
        assert ours.ltm10 == pytest.approx(theirs.ltm_alpha, abs=CROMA_TOLERANCE)
        assert ours.f0 == pytest.approx(theirs.f0, abs=CROMA_TOLERANCE)
        np.testing.assert_allclose(ours.units, theirs.sample_values_aligned, rtol=0, atol=CROMA_TOLERANCE)


@pytest.mark.parametrize("design", ["all", "paired_2x2"])
@reproducible
@given(data=st.data())
def test_every_value_of_a_random_cohort(design, data):
    case = data.draw(cases(design))
    grid = comparable_grid(candidates_of(case), data.draw(st.sampled_from(["sparse", "dense"])))
    found = survey(case.x, case.cohort, grid=grid)
    assert found.candidates.tolist() == candidates_of(case).tolist()

    bio, conf = oracle_accuracy(case, "label", grid), oracle_accuracy(case, "confounder", grid)
    assert found.bio == pytest.approx(bio, abs=TOLERANCE)
    assert found.conf == pytest.approx(conf, abs=TOLERANCE)
    theirs = _select_k_from_balanced_accuracy(k_values=list(grid), scores=bio)
    # It compares accuracies to the last bit, we to 1e-12: two k may be equal to us and not to it, never the reverse.
    assert found.k_star == theirs or (found.k_star < theirs and bio[theirs] - bio[found.k_star] < 1e-12)

    for k in sorted({found.k_star, grid[-1], data.draw(st.sampled_from(grid))}):
        check_operating_point(case, found, k)
    check_margins(case, found)


@pytest.mark.parametrize("design", ["all", "paired_2x2"])
@settings(reproducible, max_examples=15)
@given(data=st.data())
def test_the_sweep_over_k_with_a_pinned_tau(design, data):
    case = data.draw(cases(design))
    grid = comparable_grid(candidates_of(case), "sparse")
    tau = data.draw(st.sampled_from([1e-5, 0.01, 0.2, 5.0]))  # at 1e-5 every plain weight underflows
    rows = sweep_k(survey(case.x, case.cohort, grid=grid), grid[0], tau)
    ri = quietly(croma.RI.compute_curve, **case.asked(k_values=list(grid)))
    mari = quietly(croma.MaRI.compute_curve, **case.asked(k_values=list(grid), tau=tau))
    assert {row.k: row.ri for row in rows} == pytest.approx(ri, abs=TOLERANCE)
    assert {row.k: row.mari for row in rows} == pytest.approx(mari, abs=TOLERANCE)


@pytest.mark.parametrize("design", ["all", "paired_2x2"])
@settings(reproducible, max_examples=10)
@given(data=st.data(), n_encoders=st.integers(1, 5))
def test_the_k_that_a_panel_shares(design, data, n_encoders):
    case = data.draw(cases(design))
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32 - 1)))
    grid = comparable_grid(candidates_of(case), "sparse")
    ours, theirs = [], []
    for _ in range(n_encoders):
        x = embedding(rng, case.labels, case.confounders, case.groups, 12, 0.3, 0.3, 1.0, 0)
        encoder = case.with_embedding(x)
        ours.append(survey(x, case.cohort, grid=grid).k_star)
        theirs.append(quietly(croma.RI._select_operating_k, **encoder.asked(k_candidates=list(grid))))
    assert ours == theirs
    assert shared_k(ours) == statistics.median_low(theirs)


# --- where the oracle cannot be compared: our value against the definition, in loops over rows ---


def distance(a, b):
    dot, aa, bb = (math.fsum(p * q for p, q in zip(*pair, strict=True)) for pair in ((a, b), (a, a), (b, b)))
    return 1 - dot / math.sqrt(aa * bb)


def small_case(seed=0):
    rng = np.random.default_rng(seed)
    labels, confounders, groups = block(rng, 2, 2, 4, 1, False, "")
    x = embedding(rng, labels, confounders, groups, 6, 0.5, 0.5, 1.0, 0)
    return Case(x, labels, confounders, groups, None)


def test_a_k_of_all_candidates_is_seen_by_us_and_not_by_the_oracle():
    """n rows, each its own group: a row has n − 1 candidates, and k = n − 1 takes them all.

    Every row then has all rows of its two typed cells among its k, so RI is a matter of counting cells.
    """
    case = small_case()
    n = len(case.labels)
    cells = list(zip(case.labels, case.confounders, strict=True))
    so = sum(a[0] == b[0] and a[1] != b[1] for a in cells for b in cells)
    os = sum(a[0] != b[0] and a[1] == b[1] for a in cells for b in cells)
    ours = operate(survey(case.x, case.cohort, grid=(n - 1,)), n - 1)
    assert ours.ri == so / (so + os)
    theirs = quietly(croma.RI.compute, **case.asked(k_candidates=[n - 1]))
    assert theirs.value != pytest.approx(so / (so + os), abs=1e-9)  # it lost every row's farthest


def test_exact_ties_are_ordered_by_row_whatever_the_oracle_does():
    """Each row occurs four times, once in each cell: the nearest three are ties at distance 0."""
    points = np.random.default_rng(3).standard_normal((5, 7))
    x = np.repeat(points, 4, axis=0)
    labels, confounders = list("aabb") * 5, list("xyxy") * 5
    groups = [str(i) for i in range(20)]
    case = Case(x, labels, confounders, groups, None)
    ours = operate(survey(x, case.cohort, grid=(1, 2)), 1)
    # Of ax ay bx by, by row order the nearest of ax is ay (SO), and of the other three ax: SO, OS, OO.
    assert ours.undefined.tolist() == ["", "", "", "oo"] * 5
    assert ours.unit_ri.tolist()[:3] == [1.0, 1.0, 0.0]
    assert ours.ri == 2 / 3


def test_a_collapsed_embedding_is_refused_for_every_unit_however_it_rounds():
    """Rows of one direction and different lengths: true distances are 0, in floating point 1e-16 or so for some.

    The oracle takes those for margins: here it refuses m = 5 for some of the units only.
    """
    case = small_case()
    lengths = np.random.default_rng(5).uniform(0.5, 2, size=(len(case.labels), 1))
    collapsed = case.with_embedding(np.random.default_rng(4).standard_normal((1, 6)) * lengths)
    found = survey(collapsed.x, case.cohort, grid=(1, 3))
    n = len(case.labels)
    with pytest.raises(DegenerateEmbedding, match=f"{n} of {n} samples have zero margin"):
        margins(found, "case", 1)
    assert sweep_m(found, "case")[0] == []
    assert operate(found, 3).tau == 0.2


def test_incomplete_subsets_are_dropped_by_us_and_refused_by_the_oracle():
    rng = np.random.default_rng(6)
    labels, confounders, groups = block(rng, 2, 2, 8, 2, False, "")
    n = len(labels)
    x = embedding(rng, [*labels, "label0"], [*confounders, "centre0"], [*groups, "alone"], 6, 0.5, 0.5, 1.0, 0)
    subsets = ["whole"] * n + ["broken"]
    case = Case(x, [*labels, "label0"], [*confounders, "centre0"], [*groups, "alone"], subsets)
    with pytest.raises(ValueError, match="broken"):
        quietly(croma.RI.compute, **case.asked(k_candidates=[3]))
    filtered = Case(x[:n], labels, confounders, groups, ["whole"] * n)
    ours = operate(survey(x, case.cohort, grid=(1, 3)), 3)
    assert ours.ri == pytest.approx(quietly(croma.RI.compute, **filtered.asked(k_candidates=[3])).value, abs=TOLERANCE)
    assert ours.n_units == n


def test_a_narrow_cone_in_float32_is_scored_as_its_float64():
    """All rows lie within 1e-3 of one direction; the oracle is right if given float64, and so are we given float32."""
    rng = np.random.default_rng(7)
    labels, confounders, groups = block(rng, 2, 2, 12, 2, False, "")
    x = embedding(rng, labels, confounders, groups, 32, 0.5, 0.5, 1.0, 0)
    narrow = (1000 * np.ones(32) + x).astype(np.float32)
    case = Case(narrow.astype(np.float64), labels, confounders, groups, None)
    ours = margins(survey(narrow, case.cohort, grid=(1,)), "case", 5)
    theirs = quietly(croma.CRoMa.compute, **case.asked(m=5))
    assert ours.median == pytest.approx(theirs.value, abs=CROMA_TOLERANCE)
    rows = case.x.tolist()
    by_kind = [
        [
            sorted(
                distance(rows[i], rows[j])
                for j in range(len(labels))
                if groups[i] != groups[j]
                and (labels[i] == labels[j]) == same_label
                and (confounders[i] == confounders[j]) != same_label
            )[:5]
            for i in range(len(labels))
        ]
        for same_label in (True, False)
    ]
    units = [(sum(os) - sum(so)) / (sum(os) + sum(so)) for so, os in zip(*by_kind, strict=True)]
    assert ours.median == pytest.approx(statistics.median(units), abs=CROMA_TOLERANCE)
