"""The bound from leading components: never below the product, tight where the embedding has few directions."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from test_metrics_search import same

from croma_bundle.metrics import arrangement, candidates, leading
from croma_bundle.metrics.kernel import chosen
from croma_bundle.metrics.neighbours import typed_neighbours

KINDS = ["few directions", "all directions", "duplicates", "one direction", "rows of zeros", "in a cone", "large"]


def rows_of(kind, n=600, width=300):
    rng = np.random.default_rng(0)
    if kind == "all directions":
        return rng.normal(size=(n, width)).astype(np.float32)
    if kind == "one direction":
        return np.outer(rng.normal(size=n), rng.normal(size=width)).astype(np.float32)
    x = rng.normal(size=(n, 20)) @ rng.normal(size=(20, width)) + 0.3 * rng.normal(size=(n, width)) + 2
    if kind == "duplicates":
        x[::2] = x[0]
    if kind == "rows of zeros":
        x[::5] = 0
    if kind == "in a cone":
        x = 1 + 1e-4 * x
    return (x * 1e18 if kind == "large" else x).astype(np.float32)


def arranged(x):
    n = len(x)
    with ThreadPoolExecutor(1) as pool:
        return arrangement.arrange(x, np.arange(n), np.arange(n) % 3, np.arange(n) % 2, np.arange(n), pool)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 16, 64])
def test_the_bound_is_nowhere_below_minus_the_distance_by_more_than_the_band(monkeypatch, kind, count):
    monkeypatch.setattr(leading, "COUNT", count)
    a = arranged(rows_of(kind))
    along = leading.directions(a.held[: a.sampled])
    np.testing.assert_allclose(along.T @ along, np.eye(count), rtol=0, atol=1e-13)
    with ThreadPoolExecutor(2) as pool:
        lines = leading.components(a, slice(0, len(a.held)), along, pool)
    everyone = slice(0, len(a.held))
    bound = a.product(everyone, lines, everyone, lines).astype(np.float64)
    unit = a.x[a.source].astype(np.float64)
    length = np.linalg.norm(unit, axis=1, keepdims=True)
    unit /= np.where(length > 0, length, 1)
    centred = unit - a.centre
    exact = -((centred[:, None] - centred) ** 2).sum(axis=2) / 2
    exact[(length == 0) | (length == 0).T] = -1  # no direction, so at right angles to all
    assert (bound >= exact - a.band()[:, None]).all()


def test_the_bound_is_tight_where_the_rows_have_no_more_directions(monkeypatch):
    monkeypatch.setattr(leading, "COUNT", 9)  # eight, and the mean's
    rng = np.random.default_rng(1)
    a = arranged((rng.normal(size=(400, 8)) @ rng.normal(size=(8, 300)) + 3).astype(np.float32))
    with ThreadPoolExecutor(1) as pool:
        lines = leading.components(a, slice(0, 400), leading.directions(a.held), pool)
    everyone = slice(0, 400)
    bound, product = (a.product(everyone, of, everyone, of) for of in (lines, a.held))
    np.testing.assert_allclose(bound, product, rtol=0, atol=1e-6)


def spread(n, width, directions, noise):
    rng = np.random.default_rng(2)
    x = rng.normal(size=(n, directions)) @ rng.normal(size=(directions, width)) + noise * rng.normal(size=(n, width))
    return x.astype(np.float32), np.arange(n) % 2, np.arange(n) // 2 % 2, np.arange(n) // 8


@pytest.mark.parametrize(
    ("data", "sifts"),
    [
        (spread(3000, 640, 10, 0.1), True),
        (spread(3000, 640, 640, 1), False),  # no direction leads
        (spread(1000, 640, 10, 0.1), False),  # too few rows
        (spread(3000, 200, 10, 0.1), False),  # too few columns
    ],
)
def test_it_is_used_where_it_pays_and_changes_no_bit(monkeypatch, data, sifts):
    if chosen() is None:
        pytest.skip("no compiled kernel")
    asked = []
    decide = candidates._Walk.sifts
    monkeypatch.setattr(candidates._Walk, "sifts", lambda self, pool: asked.append(decide(self, pool)) or asked[-1])
    found = typed_neighbours(*data, k=31, m=10)
    assert asked == [sifts]
    monkeypatch.setenv("CROMA_KERNEL", "numpy")
    assert same(typed_neighbours(*data, k=31, m=10), found)
