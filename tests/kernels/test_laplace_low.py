"""Sums of the Laplace kernel in one, two and three dimensions against all pairs."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twins
from trueup.kernels.laplace import halves, sweeps
from trueup.kernels.threads import Workers

SCALES = [0.0, 1e-300, 0.3, 4.0, 60.0, 3e3, 1e9, 1e300]
DIMENSIONS = [1, 2, 3]


def sums(points, columns, starts, targets=None, target_starts=None, scale=1.0, threads=1):
    asked = None if targets is None else (targets, target_starts)
    return sweeps.sums(points, columns, starts, asked, scale, Workers(threads))


def one_bin(n):
    return np.array([0, n])


def draw(seed, n, d, c=2, grid=0.0):
    random = np.random.default_rng(seed)
    points, columns = random.normal(size=(n, d)), random.normal(size=(n, c))
    columns[:, 0] = np.abs(columns[:, 0])
    return (np.round(points / grid) * grid + 0.0 if grid else points), columns


def assert_right(points, columns, starts, targets=None, target_starts=None, scale=1.0):
    found = sums(points, columns, starts, targets, target_starts, scale)
    total, size = twins.laplace_sums(points, columns, starts, targets, target_starts, scale)
    assert np.isfinite(found).all()
    assert (np.abs(found - total) <= 1e-12 * size + 1e-290).all()


@st.composite
def problems(draw_from):
    random = np.random.default_rng(draw_from(st.integers(0, 10**6)))
    d, c, bins = (
        draw_from(st.sampled_from(DIMENSIONS)),
        draw_from(st.sampled_from([1, 2, 3, 5])),
        draw_from(st.integers(1, 4)),
    )
    sizes, asked = (
        np.array(
            draw_from(st.lists(st.sampled_from([0, 1, 2, 31, 32, 33, 127, 128, 129, 300]), min_size=bins, max_size=bins))
        )
        for _ in range(2)
    )
    steps = np.array([draw_from(st.sampled_from([0.0, 1e-9, 0.5, 3.0, 100.0])) for _ in range(d)])  # 0: as they are

    def place(n):
        x = random.normal(size=(n, d))
        return np.where(steps > 0, np.round(x / np.where(steps > 0, steps, 1.0)) * steps, x)

    starts, target_starts = (np.append(0, np.cumsum(s)) for s in (sizes, asked))
    points, targets = place(starts[-1]), place(target_starts[-1])
    share = draw_from(st.sampled_from([0.0, 0.5]))  # targets equal to rows, of their own bin or of another
    if len(points) and len(targets):
        equal = random.random(len(targets)) < share
        targets[equal] = points[random.integers(0, len(points), equal.sum())]
    return points, random.normal(size=(len(points), c)), starts, targets, target_starts, draw_from(st.sampled_from(SCALES))


@settings(max_examples=60)
@given(problems())
def test_the_sums_are_those_of_all_pairs(problem):
    points, columns, starts, targets, target_starts, scale = problem
    assert_right(points, columns, starts, scale=scale)
    assert_right(points, columns, starts, targets, target_starts, scale)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("n", [63, 64, 65, 255, 256, 257, 1023, 1025, 2500])
def test_every_pair_is_met_once(d, n):
    # At scale 0 all kernels are 1: the sum is that of all others.
    points, columns = draw(n, n, d, grid=0.7)
    columns = np.round(columns * 100)
    assert (sums(points, columns, one_bin(n), scale=0.0) == columns.sum(axis=0) - columns).all()
    assert (sums(points, columns, one_bin(n), points[:40], one_bin(40), 0.0) == columns.sum(axis=0)).all()


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("scale", [0.5, 5.0, 200.0])
@pytest.mark.parametrize("grid", [0.0, 0.25])
def test_larger_bins_are_correct(d, scale, grid):
    points, columns = draw(d, 1500, d, grid=grid)
    targets, _ = draw(d + 1, 700, d, grid=grid)
    assert_right(points, columns, np.array([0, 1200, 1500]), scale=scale)
    assert_right(points, columns, np.array([0, 1200, 1500]), targets, np.array([0, 650, 700]), scale)


@pytest.mark.parametrize("d", [2, 3])
@pytest.mark.parametrize("constant", [0, 1, -1])
def test_constant_coordinates_are_supported(d, constant):
    points, columns = draw(5, 600, d)
    points[:, constant] = 3.0
    assert_right(points, columns, one_bin(600), scale=2.0)
    points[:] = 1.0
    assert_right(points, columns, one_bin(600), scale=2.0)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_clusters_far_apart_do_not_overflow(d):
    points, columns = draw(6, 500, d)
    points += 10.0 ** np.random.default_rng(6).integers(-3, 300, (500, 1))
    targets = np.concatenate([points[:50] + 1e-3, points[:50] * 2, -points[:50], points[:50] / 2])
    for scale in SCALES[1:]:
        assert_right(points, columns, one_bin(500), scale=scale)
        assert_right(points, columns, one_bin(500), targets, one_bin(200), scale)


@pytest.mark.parametrize("d", DIMENSIONS)
def test_targets_outside_all_rows_get_the_decayed_sums(d):
    points, columns = draw(7, 400, d)
    for shift in (30.0, -30.0, 2e3, -2e3):
        targets = points[:20] + shift
        assert_right(points, columns, one_bin(400), targets, one_bin(20), 1.0)


@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("scale", [0.4, 30.0, 5e3])
def test_the_sums_of_a_target_do_not_depend_on_other_targets(d, scale):
    points, columns = draw(8, 900, d, c=3, grid=0.05)
    targets, _ = draw(9, 600, d, grid=0.05)
    targets[:100] = points[:100]
    targets[100:120] *= 50
    starts, together = np.array([0, 0, 700, 900]), np.array([0, 20, 450, 600])
    found = sums(points, columns, starts, targets, together, scale)
    kept = np.flatnonzero(np.random.default_rng(1).random(600) < 0.1)
    some = sums(points, columns, starts, targets[kept], np.searchsorted(kept, together), scale)
    assert (some == found[kept]).all()
    for t in (0, 19, 20, 119, 449, 450, 599):
        single = sums(points, columns, starts, targets[t : t + 1], np.searchsorted([t], together), scale)
        assert (single == found[t]).all()


@pytest.mark.parametrize("d", DIMENSIONS)
def test_the_sums_of_a_target_do_not_depend_on_the_order_of_targets(d):
    points, columns = draw(10, 500, d)
    targets, _ = draw(11, 300, d)
    shuffled = np.random.default_rng(2).permutation(300)
    found = sums(points, columns, one_bin(500), targets, one_bin(300), 3.0)
    assert (sums(points, columns, one_bin(500), targets[shuffled], one_bin(300), 3.0) == found[shuffled]).all()


@pytest.fixture
def small_pieces(monkeypatch):
    """Cut the work as if some hundred rows were many."""
    monkeypatch.setattr(sweeps, "SPLIT", 300)
    monkeypatch.setattr(sweeps, "ENOUGH", 200)


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("d", DIMENSIONS)
@pytest.mark.parametrize("asked", [0, 250, 7001])
def test_the_number_of_threads_changes_no_bit(d, asked):
    points, columns = draw(12, 3500, d)
    starts = np.array([0, 60, 100, 3000, 3000, 3500])
    targets, target_starts = None, None
    if asked:
        targets, target_starts = draw(13, asked, d)[0], np.array([0, 10, 15, 200, 230, asked])
        assert_right(points, columns, starts, targets, target_starts)
    one, two, five = (sums(points, columns, starts, targets, target_starts, 1.0, threads) for threads in (1, 2, 5))
    assert (one == two).all()
    assert (one == five).all()


@pytest.mark.usefixtures("small_pieces")
@pytest.mark.parametrize("d", [2, 3])
def test_sums_do_not_depend_on_how_the_work_is_split(d):
    points, columns = draw(14, 2500, d)
    starts = np.array([0, 100, 2500])
    targets, _ = draw(15, 6000, d)
    found = sums(points, columns, starts, targets, np.array([0, 500, 6000]), 2.0)
    assert_right(points, columns, starts, targets, np.array([0, 500, 6000]), 2.0)
    assert (sums(points, columns, starts, targets[490:600], np.array([0, 10, 110]), 2.0) == found[490:600]).all()
    assert (sums(points, columns, starts, targets[700:701], np.array([0, 0, 1]), 2.0) == found[700]).all()


@pytest.mark.parametrize("d", DIMENSIONS)
def test_no_rows_or_no_targets_give_no_sums(d):
    points, columns = draw(16, 5, d)
    none = np.zeros((0, d))
    assert sums(none, columns[:0], one_bin(0)).shape == (0, 2)
    assert sums(points, columns, one_bin(5), none, one_bin(0)).shape == (0, 2)
    assert (sums(none, columns[:0], one_bin(0), points, one_bin(5)) == np.zeros((5, 2))).all()
    assert (sums(points[:1], columns[:1], one_bin(1)) == np.zeros((1, 2))).all()


@given(st.floats(0.0, 800.0))
def test_the_decay_is_the_exponential(u):
    assert sweeps._decay(u) == pytest.approx(math.exp(-u), rel=4e-15, abs=5e-308)


def test_the_decay_is_one_at_zero_and_zero_at_infinity():
    assert sweeps._decay(0.0) == 1.0
    assert sweeps._decay(math.inf) == 0.0


NUMPY = halves.ArrayTools(np, lambda keys: np.argsort(keys, kind="stable"), np.repeat)


def scan(decay, codes, brings, opposite):
    """What scan.cu does, row after row."""
    finds = np.zeros_like(brings)
    for way in (1, -1):
        sums = np.zeros((4, brings.shape[1]))
        for i in range(len(decay))[::way]:
            after = i + (way < 0)
            sums *= decay[after] if after < len(decay) else 0.0
            finds[i] += sums[codes[i] ^ opposite]
            sums[codes[i]] += brings[i]
    return finds


def halved_sums(points, columns, numbers, scale):
    def sum_pairs(cells, sides):
        far = np.abs(points[:, None] - points).sum(axis=2)
        apply = cells[:, None] == cells
        apply &= ~np.eye(len(cells), dtype=bool) if sides is None else sides[:, None] != sides
        return np.where(apply, np.exp(-scale * far), 0.0) @ columns

    return halves.sum_halves(points, columns, numbers, scale, NUMPY, scan, sum_pairs)


@settings(max_examples=40)
@given(problems())
def test_halves_of_the_gpu_give_the_sums_of_all_pairs(problem):
    points, columns, starts, _, _, scale = problem
    numbers = np.repeat(np.arange(len(starts) - 1), np.diff(starts))
    if not len(points):
        return
    mixed = np.random.default_rng(1).permutation(len(points))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(halves, "X_BITS", 4)
        patch.setattr(halves, "Y_BITS", 2)
        found = halved_sums(points[mixed], columns[mixed], numbers[mixed], scale)
    total, size = twins.laplace_sums(points, columns, starts, None, None, scale)
    assert (np.abs(found - total[mixed]) <= 1e-12 * size[mixed] + 1e-290).all()
