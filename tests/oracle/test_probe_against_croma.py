"""The sweep, APD and nIPD against the public croma 1.0.1: every accuracy equal, not close."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from croma_bundle.probe.arrange import arrangements, replicate_seeds
from croma_bundle.probe.reduce import apd, degradation, nipd
from croma_bundle.probe.schedules import CAMELYON, PCABIOP, SCHEDULES, TCGA_4X4, TOLKACH_ESCA, Schedule
from croma_bundle.probe.sweep import replicate
from probe.probe_cohorts import SMALL, Columns, columns_of, embedding, metadata_columns

croma = pytest.importorskip("croma", reason="the oracle, croma==1.0.1, is a test-time extra")
if croma.__version__ != "1.0.1":
    pytest.skip(f"the oracle is croma 1.0.1, here is {croma.__version__}", allow_module_level=True)
from croma.downstream.probe import pathorob_schedule, probe_sweep_over_test_sets  # noqa: E402

THEIR_NAME = {"camelyon": "camelyon", "tcga-4x4": "tcga", "tolkach-esca": "tolkach_esca"}
METADATA = {"camelyon": "camelyon.csv", "tcga-4x4": "tcga_4x4.csv", "tolkach-esca": "tolkach_esca.csv"}


@pytest.fixture(autouse=True)
def _one_blas_thread():
    """The last digits of a product depend on the threads that shared it."""
    with threadpool_limits(1):
        yield


def their_plans(schedule: Schedule) -> list:
    return [
        ([(i, j, schedule.train_rows(split, (i, j))) for i, j in schedule.cells], schedule.max_slides)
        for split in range(len(schedule.steps))
    ]


def ours(x: np.ndarray, columns: Columns, schedule: Schedule, iterations: int, seed: int = 1000) -> dict:
    cells = columns.cut(schedule)
    orders = arrangements(schedule, cells, replicate_seeds(seed, iterations), "test")
    found = [replicate(x, schedule, cells, order) for order in orders]
    return {name: np.array([of[name] for of in found]).T for name in found[0]}


def theirs(x, columns: Columns, schedule: Schedule, iterations: int, seed: int = 1000, arrange=None) -> dict:
    rows, ood = columns.of("ID"), columns.of("OOD")
    label = np.array([schedule.labels.index(value) for value in columns.labels])
    confounder = np.array([schedule.confounders.index(columns.confounders[i]) for i in rows])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return probe_sweep_over_test_sets(
            x[rows],
            confounder,
            label[rows],
            schedule=their_plans(schedule),
            test_sets={"ood": (x[ood], label[ood])} if ood else None,
            rows_per_slide=schedule.rows_per_slide,
            iterations=iterations,
            seed=seed,
            validation_fraction=schedule.validation_fraction,
            arrange_slides=arrange,
        )


def assert_equal(found: dict, wanted: dict) -> None:
    np.testing.assert_array_equal(found["id"], wanted["in_domain"])
    if "ood" in found or "ood" in wanted:
        np.testing.assert_array_equal(found["ood"], wanted["ood"])


@pytest.mark.parametrize("name", THEIR_NAME)
def test_published_schedules_are_the_library_s(name: str) -> None:
    schedule = SCHEDULES[name]
    public = pathorob_schedule(THEIR_NAME[name], rows_per_slide=schedule.rows_per_slide)
    assert [(list(map(tuple, plan)), most) for plan, most in public] == their_plans(schedule)


WEAK_TO_STRONG = [(0.05, 0.4), (0.2, 0.2), (0.4, 0.05)]


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(("label", "confounder"), WEAK_TO_STRONG)
def test_random_cohorts(seed: int, label: float, confounder: float) -> None:
    columns = columns_of(SMALL, slides=6 + seed % 3, ood=30, seed=seed)
    x = embedding(columns, 12, label=label, confounder=confounder, seed=seed)
    found, wanted = ours(x, columns, SMALL, 3, seed), theirs(x, columns, SMALL, 3, seed)
    assert_equal(found, wanted)
    v = np.array(SMALL.v())
    for matrix in found.values():
        assert apd(matrix, "test") == pytest.approx(croma.apd(matrix), abs=1e-15)
        if matrix[0].mean() > 0.5:
            g = degradation(matrix, 0.5, "test")
            assert nipd(g, v) == pytest.approx(croma.nipd(matrix, v, 0.5), abs=1e-15)


def test_every_row_is_a_slide_and_a_fraction_validates() -> None:
    columns = columns_of(PCABIOP, slides=250)
    x = embedding(columns, 10, label=0.2, confounder=0.3)
    found = ours(x, columns, PCABIOP, 2)
    assert found["id"].shape == (11, 2)
    assert_equal(found, theirs(x, columns, PCABIOP, 2))


@pytest.mark.parametrize(("schedule", "slides"), [(CAMELYON, 17), (TCGA_4X4, 12)])
def test_published_schedules_at_their_real_counts(schedule: Schedule, slides: int) -> None:
    columns = columns_of(schedule, slides, ood=50)
    x = embedding(columns, 8, label=0.15, confounder=0.3)
    assert_equal(ours(x, columns, schedule, 2), theirs(x, columns, schedule, 2))


@pytest.mark.parametrize(("label", "confounder"), [(0.03, 0.1), (0.12, 0.1)])
def test_fits_side_by_side(label: float, confounder: float, monkeypatch) -> None:
    """Many columns, so that sums run over many blocks; hard, and so easy that searches end early."""
    monkeypatch.setattr("croma_bundle.probe.sweep.MANY", 0)
    columns = columns_of(CAMELYON, 17, ood=50)
    few = Columns(*([row for i, row in enumerate(of) if i % 6 == 0] for of in vars(columns).values()))
    schedule = replace(CAMELYON, rows_per_slide=50)
    x = embedding(few, 200, label=label, confounder=confounder)
    assert_equal(ours(x, few, schedule, 1), theirs(x, few, schedule, 1))


def arrange_cases(groups: list[str], feasible: list[list[tuple[str, ...]]]):
    """The case draw as the definition words it, written apart from ours, for the library's hook."""

    def arrange(cells, generator):
        sets = [options[generator.randint(0, len(options) - 1)] for options in feasible]
        for of_centre, drawn in zip(cells, sets, strict=True):
            for slides in of_centre:
                generator.shuffle(slides)
                for case in sorted(drawn):
                    held = [groups[slide[0]] for slide in slides]
                    if case in held:
                        slides.append(slides.pop(held.index(case)))
        return cells

    return arrange


@pytest.mark.parametrize("name", METADATA)
def test_real_labels_centres_and_slides(name: str, shared) -> None:
    path = shared / "data/pathorob" / METADATA[name]
    if not path.exists():
        pytest.skip(f"{path} does not exist")
    schedule, columns = SCHEDULES[name], metadata_columns(path)
    x = embedding(columns, 6, label=0.2, confounder=0.3)
    arrange = None
    if schedule.by_case:
        from croma_bundle.probe.arrange import _feasible

        feasible = _feasible(schedule, columns.cut(schedule), "test")
        assert [len(sets) for sets in feasible] == [17, 240], "as many as PathoROB lists"
        arrange = arrange_cases([columns.groups[i] for i in columns.of("ID")], feasible)
    assert_equal(ours(x, columns, schedule, 2), theirs(x, columns, schedule, 2, arrange=arrange))


def test_the_tolkach_schedule_is_cut_by_case() -> None:
    assert [name for name, schedule in SCHEDULES.items() if schedule.by_case] == ["tolkach-esca"]
    assert TOLKACH_ESCA.rows_per_slide == 100
