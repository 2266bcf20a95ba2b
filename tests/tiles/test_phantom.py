"""The cohort: its rows, its truth, and that the same spec gives the same pixels anywhere."""

import hashlib
import itertools
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from croma_bundle.errors import CohortError, SeveralErrors
from croma_bundle.tiles.phantom import (
    LABELS,
    MEDICAL_CENTERS,
    PhantomSpec,
    PhantomTile,
    nuclei_count,
    phantom_rows,
    render,
    section,
)
from croma_bundle.tiles.phantom_tissue import CLASSES, MARGIN

SPEC = PhantomSpec()


def tiles_of(label: str, count: int) -> list[PhantomTile]:
    return [tile for tile in phantom_rows(SPEC) if tile.label == label][:count]


def test_the_default_cohort_is_900_tiles_slide_by_slide():
    rows = phantom_rows(SPEC)
    assert len(rows) == len(LABELS) * len(MEDICAL_CENTERS) * 4 * 25 == 900
    assert len({row.sample_id for row in rows}) == 900
    slides = [row.group_id for row in rows]
    assert len(set(slides)) == 36
    assert sum(a != b for a, b in itertools.pairwise(slides)) == 35  # each slide is one run of rows
    for group in set(slides):
        cells = {(row.label, row.medical_center, row.slide) for row in rows if row.group_id == group}
        assert len(cells) == 1
        assert [row.index for row in rows if row.group_id == group] == list(range(25))
    cells = [(row.label, row.medical_center) for row in rows]
    assert all(cells.count((label, centre)) == 100 for label in LABELS for centre in MEDICAL_CENTERS)


def test_growing_the_cohort_keeps_the_tiles_it_had():
    larger = PhantomSpec(slides_per_cell=5, tiles_per_slide=26)
    assert set(phantom_rows(SPEC)) < set(phantom_rows(larger))
    tile = phantom_rows(SPEC)[77]
    np.testing.assert_array_equal(render(SPEC, tile), render(larger, tile))


@pytest.mark.parametrize("size", [32, 128, 224])
def test_a_tile_is_8_bit_rgb_of_the_size_asked_for(size):
    spec = PhantomSpec(tile_size=size)
    pixels = render(spec, phantom_rows(spec)[0])
    assert pixels.shape == (size, size, 3)
    assert pixels.dtype == np.uint8


def test_tiles_slides_centres_classes_and_seeds_all_draw_their_own_tissue():
    rows = phantom_rows(SPEC)
    chosen = [rows[0], rows[1], rows[25], rows[100], rows[300]]
    assert [(r.medical_center, r.label, r.slide, r.index) for r in chosen] == [
        ("harbour", "tumour", 0, 0),
        ("harbour", "tumour", 0, 1),
        ("harbour", "tumour", 1, 0),
        ("harbour", "lymphoid", 0, 0),
        ("meadow", "tumour", 0, 0),
    ]
    drawn = [section(SPEC, tile).haematoxylin for tile in chosen]
    drawn.append(section(PhantomSpec(seed=1), rows[0]).haematoxylin)
    hashes = {hashlib.sha256(field.tobytes()).hexdigest() for field in drawn}
    assert len(hashes) == 6


def test_tissue_does_not_depend_on_the_strength_of_the_centre():
    for tile in phantom_rows(SPEC)[::181]:
        here, there = section(SPEC, tile), section(PhantomSpec(centre_strength=2.5), tile)
        np.testing.assert_array_equal(here.haematoxylin, there.haematoxylin)
        np.testing.assert_array_equal(here.eosin, there.eosin)
        np.testing.assert_array_equal(here.nuclei.x, there.nuclei.x)
        assert not np.array_equal(render(SPEC, tile), render(PhantomSpec(centre_strength=2.5), tile))


def test_nuclei_counts_differ_between_the_classes_as_their_attempts_say():
    counts = {label: np.array([nuclei_count(SPEC, tile) for tile in tiles_of(label, 60)]) for label in LABELS}
    mean = {label: values.mean() for label, values in counts.items()}
    assert mean["lymphoid"] > 1.5 * mean["tumour"] > 1.5 * mean["stroma"]
    for tissue in CLASSES:  # on most tiles more are tried than fit
        most = tissue.host.attempts + tissue.guest.attempts
        assert counts[tissue.name].max() <= most
        assert counts[tissue.name].min() >= 1


def test_the_count_is_that_of_the_section_rendered():
    for tile in phantom_rows(SPEC)[::127]:
        assert nuclei_count(SPEC, tile) == section(SPEC, tile).nuclei.inside(SPEC.tile_size)


@pytest.mark.parametrize("tissue", CLASSES, ids=lambda tissue: tissue.name)
def test_nuclei_have_the_size_of_their_class_and_do_not_crowd(tissue):
    nuclei = section(SPEC, tiles_of(tissue.name, 1)[0]).nuclei
    low = min(tissue.host.semi_major[0], tissue.guest.semi_major[0]) * 0.96  # a slide's swelling is within 4 %
    high = max(tissue.host.semi_major[1], tissue.guest.semi_major[1]) * 1.04
    assert nuclei.major.min() >= low
    assert nuclei.major.max() <= high
    assert (np.abs(np.concatenate([nuclei.x, nuclei.y]) - 64) <= 64 + MARGIN).all()
    radius = np.sqrt(nuclei.major * nuclei.minor)
    apart = np.hypot(nuclei.x[:, None] - nuclei.x, nuclei.y[:, None] - nuclei.y) + 1e9 * np.eye(nuclei.x.size)
    assert (apart >= tissue.crowding * (radius[:, None] + radius) * (1 - 1e-9)).all()


def test_spindle_nuclei_follow_the_fibres_and_others_do_not():
    def alignment(label: str) -> float:
        """Mean length of the doubled-angle resultant of elongated nuclei: 1 parallel, near 0 at random."""
        lengths = []
        for tile in tiles_of(label, 30):
            nuclei = section(SPEC, tile).nuclei
            spindle = nuclei.minor / nuclei.major < 0.7
            lengths.append(abs(np.exp(2j * nuclei.angle[spindle]).mean()))
        return float(np.mean(lengths))

    assert alignment("stroma") > 0.9
    assert alignment("tumour") < 0.5


def test_every_nucleus_is_where_the_truth_says_and_darker_than_its_surroundings():
    for label in LABELS:
        grown = section(SPEC, tiles_of(label, 1)[0])
        x, y = np.floor(grown.nuclei.x).astype(int), np.floor(grown.nuclei.y).astype(int)
        on_tile = (x >= 1) & (x < 127) & (y >= 1) & (y < 127)
        cytoplasm = CLASSES[LABELS.index(label)].cytoplasm
        centre = [
            grown.haematoxylin[b - 1 : b + 2, a - 1 : a + 2].mean() for a, b in zip(x[on_tile], y[on_tile], strict=True)
        ]
        assert min(centre) > 2 * cytoplasm
        assert np.median(grown.haematoxylin) < np.median(centre)


PROBE = """
import hashlib
from croma_bundle.tiles.phantom import PhantomSpec, phantom_rows, render
spec = PhantomSpec()
digest = hashlib.sha256()
for tile in phantom_rows(spec)[::90]:
    digest.update(render(spec, tile).tobytes())
print(digest.hexdigest())
"""


def test_processes_agree_whatever_the_hash_seed_the_threads_and_the_order():
    digests = set()
    for hash_seed, threads in (("0", "1"), ("12345", "4")):
        env = {**os.environ, "PYTHONHASHSEED": hash_seed, "OMP_NUM_THREADS": threads, "OPENBLAS_NUM_THREADS": threads}
        env["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
        ran = subprocess.run([sys.executable, "-c", PROBE], env=env, capture_output=True, text=True, check=True)
        digests.add(ran.stdout.strip())
    backwards = [render(SPEC, tile).tobytes() for tile in reversed(phantom_rows(SPEC)[::90])]
    digests.add(hashlib.sha256(b"".join(reversed(backwards))).hexdigest())
    assert len(digests) == 1


@pytest.mark.parametrize(
    ("knob", "value"),
    [
        ("seed", -1),
        ("seed", 1.5),
        ("tile_size", 0),
        ("tile_size", 100),
        ("tile_size", 16),
        ("slides_per_cell", 0),
        ("tiles_per_slide", True),
        ("centre_strength", -0.1),
        ("centre_strength", math.nan),
        ("centre_strength", math.inf),
        ("centre_strength", 3.5),
        ("centre_strength", "1"),
    ],
)
def test_a_senseless_knob_is_refused_with_what_was_wanted(knob, value):
    with pytest.raises(CohortError, match=rf"{knob} cannot be used\n  wanted .*\n  found    {value!r}"):
        PhantomSpec(**{knob: value})


def test_several_senseless_knobs_are_named_together():
    with pytest.raises(SeveralErrors, match=r"(?s)seed cannot.*tile_size cannot"):
        PhantomSpec(seed=-1, tile_size=100)
