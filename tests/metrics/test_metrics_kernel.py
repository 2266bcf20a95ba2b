"""The compiled kernel beside the numpy code, which is the reference: the same bytes, and a choice between them."""

import importlib.util
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from test_metrics_search import cohort, same

from croma_bundle.errors import DegenerateEmbedding, EnvironmentFault, UsageError
from croma_bundle.metrics import arrangement, candidates, kernel, leading, selection
from croma_bundle.metrics.neighbours import typed_neighbours

BUILD = Path(__file__).resolve().parents[2] / "hatch_build.py"


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    """The path of a library that was built just now."""
    pytest.importorskip("hatchling")
    module = importlib.util.module_from_spec(spec := importlib.util.spec_from_file_location("hatch_build", BUILD))
    spec.loader.exec_module(module)
    path = tmp_path_factory.mktemp("kernel") / "libkernel.so"
    if reason := module.compile_kernel(kernel.SOURCE, path):
        pytest.skip(f"no compiled kernel: {reason}")
    return path


@pytest.fixture
def compiled(library, monkeypatch):
    monkeypatch.setattr(kernel, "LIBRARY", library)
    monkeypatch.setenv("CROMA_KERNEL", "c")
    return kernel.chosen()


def by_numpy(x, rows, partners):
    """Products in float64, summed by numpy."""
    return np.add.reduce(x[rows].astype(np.float64) * x[partners].astype(np.float64), axis=-1)


@pytest.mark.parametrize("widths", [range(1, 150), range(150, 300), (512, 768, 1023, 1536, 2560, 5003)])
def test_dot_products_have_the_bytes_of_numpys(compiled, widths):
    rng = np.random.default_rng(0)
    for width in widths:
        x = rng.normal(size=(30, width)).astype(np.float32)
        x[0], x[1], x[2] = 0, x[1] * 1e-40, -0.0
        rows, partners = np.sort(rng.integers(0, 30, 61)), rng.integers(0, 30, 61)
        assert compiled.dots(x, rows, partners).tobytes() == by_numpy(x, rows, partners).tobytes(), width


def test_dot_products_of_huge_and_tiny_terms_have_the_bytes_of_numpys(compiled):
    rng = np.random.default_rng(1)
    x = (rng.normal(size=(40, 333)) * 10.0 ** rng.integers(-30, 30, (40, 333))).astype(np.float32)
    rows, partners = np.divmod(np.arange(1600), 40)
    assert compiled.dots(x, rows, partners).tobytes() == by_numpy(x, rows, partners).tobytes()


def test_no_pair_no_dot_product(compiled):
    none = np.empty(0, dtype=np.int64)
    assert compiled.dots(np.ones((3, 5), dtype=np.float32), none, none).tolist() == []


def arranged(x, codes, kernel=None, **options):
    with ThreadPoolExecutor(1) as pool:
        return arrangement.arrange(x, np.arange(len(x)), *codes, pool, kernel=kernel, **options)


@pytest.mark.parametrize("width", [*range(1, 40), 127, 128, 129, 300, 768, 1023, 1536, 2563])
def test_centred_rows_have_the_bytes_of_numpys(compiled, width):
    rng = np.random.default_rng(width)
    x = (3 + rng.normal(size=(60, width)) * 10.0 ** rng.integers(-20, 18, (60, 1))).astype(np.float32)
    x[7], x[8] = 0, 1e-42
    codes = [np.arange(60) % 3, np.arange(60) % 2, np.arange(60)]
    for hold in (True, False):
        one, other = (arranged(x, codes, kernel, hold=hold) for kernel in (compiled, None))
        assert one.scale.tobytes() == other.scale.tobytes()
        assert one.h.tobytes() == other.h.tobytes()
        assert one.factor(slice(0, 60)).tobytes() == other.factor(slice(0, 60)).tobytes()


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_rows_that_are_not_finite_are_refused_by_their_given_number(compiled, value):
    x, *codes = cohort(n=50)
    x[3] = 0  # no length, and finite
    x[41, 5] = x[17, 0] = value
    for way in (compiled, None):
        with pytest.raises(DegenerateEmbedding, match=r"not finite in row 17, 41$"):
            arranged(x, codes, way)


@pytest.mark.parametrize("ranks", [(1, 1), (29, 11), (90, 40), (500, 300)])  # and more than there are
@pytest.mark.parametrize("labels", [2, 25])
def test_the_guess_is_numpys(compiled, monkeypatch, labels, ranks):
    monkeypatch.setattr(arrangement, "SAMPLE", 400)
    x, *codes = cohort(n=1100, labels=labels, centres=labels, groups=40)
    guesses = []
    for way in (compiled, None):
        a = arranged(x, codes, way, block=150)
        sample = slice(0, a.sampled)
        for block in a.blocks:
            product = a.product(block.rows, a.factor(block.rows), sample, a.factor(sample))
            guesses.append(np.stack(candidates.guess(a, block, product, *ranks)))
    half = len(guesses) // 2
    assert half > 4
    for one, other in zip(guesses[:half], guesses[half:], strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("spread", [1, 1e-3, 1e-30, 0])
@pytest.mark.parametrize(("rows", "count"), [(1, 40), (300, 20_000), (2000, 1500), (5, 0)])
def test_pairs_are_ordered_as_by_a_stable_sort(compiled, rows, count, spread):
    rng = np.random.default_rng(count)
    row = rng.integers(0, rows, count).astype(np.int16)
    closeness = -(0.25 + spread * rng.normal(size=count)).astype(np.float32)  # some above 0
    closeness[::3] = closeness[: len(closeness[::3])]
    closeness[5::50] = [-0.0, 0.0] * (len(closeness[5::50]) // 2) + [0.0] * (len(closeness[5::50]) % 2)
    wanted = np.lexsort((np.maximum(-closeness, 0), row))
    for order in (compiled.order, selection._order):
        assert order(row, closeness, rows).tolist() == wanted.tolist()


@pytest.mark.parametrize("labels", [2, 25])  # one cell a block, and many
def test_the_pairs_within_the_limits_are_numpys_in_its_order(compiled, labels):
    x, *codes = cohort(n=1100, labels=labels, centres=labels, groups=40)
    rng = np.random.default_rng(0)
    a = arranged(x, codes, block=150)
    limits = -rng.uniform(0.05, 0.3, size=(4, 1100)).astype(np.float32)
    limits[:, ::7] = candidates.NO_LIMIT
    gatherings = [compiled.gathering(a, limits), candidates._Gathering(a, limits)]
    several = 0
    for one in a.blocks:
        for other in a.blocks:
            product = a.product(one.rows, a.factor(one.rows), other.rows, a.factor(other.rows))
            theirs, ours = (gather(product.copy(), one, other, both=one is not other) for gather in gatherings)
            assert [part.tobytes() for pairs in theirs if pairs for part in pairs] == [
                part.tobytes() for pairs in ours if pairs for part in pairs
            ]
            several += len(ours[0].row)
    assert several > 10_000


@pytest.mark.parametrize("width", [40, 600, 1553])  # below a chunk of columns, and above one
def test_what_is_sifted_is_what_the_whole_rows_say(compiled, width):
    x, *codes = cohort(n=700, width=width, groups=40)
    a = arranged(x, codes, compiled, block=290)  # more than a tile
    limits = -np.random.default_rng(0).uniform(0.05, 0.3, size=(4, 700)).astype(np.float32)
    unit = x[a.source].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    closeness, candidate = unit @ unit.T - 1, a.groups[:, None] != a.groups
    same_label, same_confounder = (code[:, None] == code for code in (a.labels, a.confounders))
    kinds = candidates.kinds_of(same_label, same_confounder)
    limit, band = limits[kinds, np.arange(700)[:, None]], a.band()[:, None]
    surely, maybe = (candidate & (closeness >= limit + sign * band) for sign in (1, -1))
    found = np.zeros((700, 700))
    passing = np.zeros((290, 290), dtype=np.float32)  # a bound that rules nothing out
    sift = compiled.sifting(a, limits)
    for i, one in enumerate(a.blocks):
        for j, other in enumerate(a.blocks[i:], i):
            bound = passing[: one.stop - one.start, : other.stop - other.start]
            factors = a.factor(one.rows), a.factor(other.rows)
            sifted = sift(bound, one, other, both=i != j, factors=factors)
            for block, pairs in zip((one, other), sifted, strict=True):
                if pairs is not None:
                    np.add.at(found, (block.start + pairs.row, pairs.partner), 1)
                    error = np.abs(pairs.closeness - closeness[block.start + pairs.row, pairs.partner])
                    assert (error <= band[block.start + pairs.row, 0]).all()
    assert found.max() == 1
    assert (found[surely] == 1).all()
    assert (found[~maybe] == 0).all()
    assert 1000 < surely.sum() < 700 * 600


def test_a_pair_that_the_bound_rules_out_is_not_multiplied(compiled):
    x, *codes = cohort(n=300, groups=300)
    a = arranged(x, codes, compiled)
    block = a.blocks[0]
    bound = np.full((block.stop, block.stop), -3, dtype=np.float32)
    bound[2, 7] = bound[5, 7] = -1
    everything = np.full((4, 300), -2.5, dtype=np.float32)  # within these limits, but for the bound
    pairs, _ = compiled.sifting(a, everything)(bound, block, block, both=False, factors=(a.held, a.held))
    assert list(zip(pairs.row.tolist(), pairs.partner.tolist(), strict=True)) == [(2, 7), (5, 7)]


ALWAYS = {"FEWEST": 0, "WIDER": 1, "COUNT": 4}


@pytest.mark.parametrize("sifted", [False, True])
@pytest.mark.parametrize("options", [{}, {"block": 70}, {"hold": False}, {"cuts": (1, 3, 11, 21)}, {"threads": 3}])
@pytest.mark.parametrize("kind", ["float32", "float16", "float64", "duplicates", "cells", "of a larger matrix"])
def test_neighbours_have_the_same_bytes(compiled, monkeypatch, kind, options, sifted):
    x, *codes = cohort(n=1300, labels=25 if kind == "cells" else 3)
    monkeypatch.setattr(arrangement, "SAMPLE", 200)
    used = []
    if sifted:
        for name, value in ALWAYS.items():
            monkeypatch.setattr(leading, name, value)
        monkeypatch.setattr(candidates, "WORTH", np.inf)
        sifting = compiled.sifting
        monkeypatch.setattr(kernel.Kernel, "sifting", lambda self, *given: used.append(1) or sifting(*given))
    if kind.startswith("float"):
        x = x.astype(kind)
    if kind == "duplicates":
        x[::3] = x[0]
    rows = np.arange(1300)[::-1].copy() if kind == "of a larger matrix" else None
    found = typed_neighbours(x, *codes, k=21, m=5, rows=rows, **options)
    assert bool(used) == sifted
    monkeypatch.setenv("CROMA_KERNEL", "numpy")
    assert same(typed_neighbours(x, *codes, k=21, m=5, rows=rows, **options), found)


def test_numpy_can_be_chosen(library, monkeypatch):
    monkeypatch.setattr(kernel, "LIBRARY", library)
    names = {}
    for asked in ("", "numpy", "c"):
        monkeypatch.setenv("CROMA_KERNEL", asked)
        names[asked] = kernel.name()
    assert names == {"": "c", "numpy": "numpy", "c": "c"}


def test_without_a_library_it_is_numpy_unless_c_is_demanded(monkeypatch, tmp_path):
    monkeypatch.setattr(kernel, "LIBRARY", tmp_path / "libkernel.so")
    monkeypatch.delenv("CROMA_KERNEL", raising=False)
    assert kernel.name() == "numpy"
    monkeypatch.setenv("CROMA_KERNEL", "c")
    with pytest.raises(EnvironmentFault, match="was built without it"):
        kernel.name()


def test_a_library_of_another_source_is_not_used(library, monkeypatch, tmp_path):
    other = tmp_path / "kernel.c"
    other.write_bytes(kernel.SOURCE.read_bytes() + b"\n")
    again = tmp_path / "libkernel.so"
    again.write_bytes(library.read_bytes())
    monkeypatch.setattr(kernel, "SOURCE", other)
    monkeypatch.setattr(kernel, "LIBRARY", again)
    monkeypatch.setenv("CROMA_KERNEL", "c")
    with pytest.raises(EnvironmentFault, match=r"libkernel\.so was built from another kernel\.c"):
        kernel.name()


def test_a_file_that_is_no_library_is_not_used(monkeypatch, tmp_path):
    broken = tmp_path / "libkernel.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(kernel, "LIBRARY", broken)
    monkeypatch.delenv("CROMA_KERNEL", raising=False)
    assert kernel.name() == "numpy"


def test_an_unknown_kernel_is_a_usage_error(monkeypatch):
    monkeypatch.setenv("CROMA_KERNEL", "fortran")
    with pytest.raises(UsageError, match="'fortran' is no kernel"):
        kernel.name()
