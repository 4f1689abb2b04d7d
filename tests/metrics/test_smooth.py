"""Smooth calibration error against its definition, worked by hand and by brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

from trueup.errors import ArgumentError, DataError
from trueup.metrics.binned import smooth_ece, smooth_ece_at

QUICK = settings(max_examples=60, deadline=None)

scores = st.one_of(st.sampled_from([0.0, 0.25, 0.5, 1.0]), st.floats(0, 1))
outcomes = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1))
weights = st.one_of(st.just(1.0), st.integers(0, 40).map(lambda k: k / 8))


@st.composite
def samples(draw):
    rows = draw(st.lists(st.tuples(outcomes, scores, weights), min_size=1, max_size=25))
    y, p, w = (np.array(column) for column in zip(*rows, strict=True))
    w[draw(st.integers(0, len(w) - 1))] = 1.0  # at least one row counts
    return y, p, w


def twin(y, p, sigma, w=None, cells=4000):
    """Definition in O(n m): the reflected kernel integrated over each cell by the normal distribution, row by row."""
    w = np.ones(len(y)) if w is None else w
    edges = np.linspace(0, 1, cells + 1)[:, None]
    below = np.zeros((cells + 1, len(p)))
    for turn in range(-math.ceil(4 * sigma) - 1, math.ceil(4 * sigma) + 2):
        for image in (2 * turn + p, 2 * turn - p):
            below += ndtr((edges - image) / sigma)
    return np.abs(np.diff(below, axis=0) @ (w * (y - p))).sum() / w.sum()


def is_fixed_point(value, y, p, w=None, within=1e-4):
    """Return whether the curve of the twin crosses the diagonal within a tolerance of the value."""
    low, high = value - within, value + within
    return (low <= 0 or twin(y, p, low, w) >= low) and twin(y, p, high, w) <= high


# --- the curve


@QUICK
@given(samples(), st.floats(0.004, 2))
def test_the_curve_equals_its_definition(sample, sigma):
    y, p, w = sample
    assert smooth_ece_at(y, p, sigma, w) == pytest.approx(twin(y, p, sigma, w), abs=1e-4)


@pytest.mark.parametrize("sigma", [0.002, 0.01, 0.1, 0.5, 3.0])
def test_the_curve_equals_its_definition_on_many_rows(sigma):
    rng = np.random.default_rng(3)
    p = rng.random(200)
    y = (rng.random(200) < p**2).astype(float)
    assert smooth_ece_at(y, p, sigma) == pytest.approx(twin(y, p, sigma), abs=1e-4)


@QUICK
@given(samples())
def test_curve_is_non_increasing_even_below_one_cell(sample):
    y, p, w = sample
    curve = np.array([smooth_ece_at(y, p, sigma, w) for sigma in np.geomspace(1e-6, 5, 40)])
    assert (np.diff(curve) <= 1e-12).all()


def test_two_opposite_residuals_cancel_by_the_overlap_of_their_kernels():
    # Residuals +r and -r at distance 2a in the middle: the integral is 2r (2 Phi(a/s) - 1), over W = 2.
    y, p = [0.6, 0.2], [0.4, 0.4 + 2 * 0.05]
    y[1] = p[1] - 0.2
    assert smooth_ece_at(y, p, 0.05) == pytest.approx(0.2 * (2 * ndtr(1.0) - 1), abs=1e-5)


def test_residuals_of_one_sign_count_fully_at_every_bandwidth():
    for sigma in (1e-3, 0.1, 1, 1e200):
        assert smooth_ece_at([1, 1, 1], [0.2, 0.6, 0.7], sigma) == pytest.approx(0.5, abs=1e-12)


# --- the fixed point


@QUICK
@given(samples())
def test_the_measure_is_the_fixed_point_of_the_definition(sample):
    y, p, w = sample
    value = smooth_ece(y, p, w)
    assert 0 <= value <= 1
    assert is_fixed_point(value, y, p, w)


@pytest.mark.parametrize("power", [1.0, 1.2, 2.0])
def test_the_measure_is_the_fixed_point_on_many_rows(power):
    rng = np.random.default_rng(4)
    p = rng.random(400)
    y = (rng.random(400) < p**power).astype(float)
    assert is_fixed_point(smooth_ece(y, p), y, p)


def test_close_scores_cancel_correctly():
    # A dipole: +-.25 at distance d = 1e-5, E(s) = .25 d 2 phi(0) / s, so s* = sqrt(.5 d phi(0)) = .00141.
    y, p = [1, 0], [0.5, 0.5 + 1e-5]
    assert smooth_ece(y, p) == pytest.approx(math.sqrt(0.5e-5 / math.sqrt(2 * math.pi)), abs=2e-5)


@pytest.mark.parametrize("score", [0.0, 0.3, 1.0])
def test_a_single_score_has_the_gap_to_its_mean_outcome(score):
    assert smooth_ece([0, 1, 1, 1, 0], [score] * 5) == pytest.approx(abs(0.6 - score), abs=1e-6)


def test_scores_at_the_ends_count_fully():
    # Residuals .4 at 0 and 0 at 1/2: nothing cancels, so the mean of .2. relplot 1.0.3 returns .135: its reflection leaves
    # out the end point, and rows of score exactly 0 or 1 count half.
    assert smooth_ece([0.4, 0.5], [0.0, 0.5]) == pytest.approx(0.2, abs=1e-6)
    assert smooth_ece([0.6, 0.5], [1.0, 0.5]) == pytest.approx(0.2, abs=1e-6)


@pytest.mark.parametrize("shift", [0.05, 0.1, 0.2])
def test_a_constant_shift_is_found(shift):
    p = np.linspace(0, 1 - shift, 5001)
    assert smooth_ece(p + shift, p) == pytest.approx(shift, abs=1e-6)


def test_measure_of_calibrated_samples_decreases_as_the_cube_root():
    rng = np.random.default_rng(5)
    values = []
    for n in (1_000, 64_000):
        p = rng.random((20, n))
        values.append(np.mean([smooth_ece(rng.random(n) < row, row) for row in p]))
    assert values[1] < 0.01
    assert values[0] / values[1] == pytest.approx(4, rel=0.25)


def test_perfect_scores_have_no_error_and_opposite_ones_the_largest():
    assert smooth_ece([0, 1, 0.5], [0, 1, 0.5]) == 0
    assert smooth_ece([1, 1], [0, 0]) == 1
    assert smooth_ece_at([0, 1], [0, 1], 0.1) == 0


# --- rows and weights


@QUICK
@given(samples(), st.data())
def test_weight_two_equals_duplicated_rows(sample, data):
    y, p, w = sample
    at = data.draw(st.integers(0, len(y) - 1))
    assume(w[at] > 0)
    heavier = w.copy()
    heavier[at] *= 2
    twice = smooth_ece(*(np.append(column, column[at]) for column in sample))
    assert smooth_ece(y, p, heavier) == pytest.approx(twice, abs=1e-8)


@QUICK
@given(samples(), st.randoms(use_true_random=False))
def test_row_order_does_not_matter(sample, random):
    order = list(range(len(sample[0])))
    random.shuffle(order)
    assert smooth_ece(*sample) == pytest.approx(smooth_ece(*(column[order] for column in sample)), abs=1e-8)


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 3.0, 1e308])
def test_scale_of_weights_does_not_matter(scale):
    y, p = [0, 1, 1, 0], [0.2, 0.4, 0.6, 0.8]
    assert smooth_ece(y, p, np.full(4, scale)) == pytest.approx(smooth_ece(y, p), abs=1e-8)


def test_chunks_do_not_change_the_result():
    rng = np.random.default_rng(6)
    y, p = (rng.random(100) < 0.4).astype(float), rng.random(100)
    assert smooth_ece(np.tile(y, 1000), np.tile(p, 1000)) == pytest.approx(smooth_ece(y, p), abs=1e-8)


def test_a_finer_grid_changes_little():
    rng = np.random.default_rng(7)
    p = rng.random(500)
    y = rng.random(500) < p
    assert smooth_ece(y, p, grid=30_000) == pytest.approx(smooth_ece(y, p), abs=1e-5)
    assert smooth_ece_at(y, p, 0.1, grid=500) == pytest.approx(smooth_ece_at(y, p, 0.1), abs=1e-4)


def test_inputs_are_not_modified():
    arrays = [np.array(column, float) for column in ([1, 0, 1], [0.0, 0.5, 1.0], [1, 0, 2])]
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.setflags(write=False)
    smooth_ece(*arrays)
    smooth_ece_at(*arrays[:2], 0.1, arrays[2])
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


# --- errors


@pytest.mark.parametrize(
    ("y", "p", "weight", "message"),
    [
        ([], [], None, "empty"),
        ([0, 1], [0.5], None, "equal length; got 2 and 1"),
        ([0, 1], [0.5, 1.5], None, r"p must lie in \[0, 1\]; got 1.5 at row 1"),
        ([0, 2], [0.5, 0.5], None, r"y must lie in \[0, 1\]; got 2 at row 1"),
        ([0, 1], [0.5, np.nan], None, "p must be finite; got nan at row 1"),
        ([0, 1], [0.5, 0.5], [0, 0], "all zero"),
    ],
)
def test_invalid_data_is_rejected_with_its_position(y, p, weight, message):
    with pytest.raises(DataError, match=message):
        smooth_ece(y, p, weight)
    with pytest.raises(DataError, match=message):
        smooth_ece_at(y, p, 0.1, weight)


@pytest.mark.parametrize("sigma", [0, -0.1, np.nan, np.inf, "wide", None, [0.1, 0.2]])
def test_invalid_bandwidths_are_rejected(sigma):
    with pytest.raises(ArgumentError, match="sigma must be a number above 0"):
        smooth_ece_at([0, 1], [0.2, 0.8], sigma)


@pytest.mark.parametrize("grid", [1, 0, -5, 100.0, True, "fine"])
def test_invalid_grids_are_rejected(grid):
    with pytest.raises(ArgumentError, match="grid must be an integer at least 2"):
        smooth_ece([0, 1], [0.2, 0.8], grid=grid)
