from __future__ import annotations

from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.errors import DataError
from trueup.kernels.fitting import pool_adjacent_violators
from trueup.metrics.reliability import isotonic

QUICK = settings(max_examples=60, deadline=None)  # no deadline: the first example compiles the kernel

# Few distinct scores make ties; eighths make sums of outcomes and weights exact.
scores = st.integers(0, 12).map(lambda k: k / 12)
outcomes = st.one_of(st.sampled_from([0.0, 1.0]), st.integers(-80, 80).map(lambda k: k / 8))
weights = st.one_of(st.just(0.0), st.just(1.0), st.integers(1, 40).map(lambda k: k / 8))


@st.composite
def samples(draw):
    rows = draw(st.lists(st.tuples(outcomes, scores, weights), min_size=1, max_size=40))
    y, p, w = (np.array(column) for column in zip(*rows, strict=True))
    w[draw(st.integers(0, len(w) - 1))] = 1.0  # at least one row counts
    return y, p, w


def twin(y, p, w):
    """Min-max formula: the fit at a score is the largest, over starts before it, of the least mean up to an end."""
    levels = np.unique(p[w > 0])
    total = np.array([(w * y)[p == level].sum() for level in levels])
    mass = np.array([w[p == level].sum() for level in levels])
    at = range(len(levels))
    fit = [max(min(total[a : b + 1].sum() / mass[a : b + 1].sum() for b in at if b >= i) for a in at if a <= i) for i in at]
    return levels, np.array(fit)


def c_emp(y, p, w):
    """Return the range of the cumulative sums of w (y - p) at distinct p."""
    sums = [0.0, *(np.sum((w * (y - p))[p <= level]) for level in np.unique(p))]
    return (max(sums) - min(sums)) / w.sum()


# --- the fit


def test_worked_example():
    # Scores .1 .2 .2 .3 .4 .5 with outcomes 1 0 1 0 1 1: pooled at .2 to 1/2; then 1, 1/2 and 0 fall, and become one
    # block of four rows with two events; .4 and .5 have the same mean and are one block too.
    fit = isotonic([1, 0, 1, 0, 1, 1], [0.1, 0.2, 0.2, 0.3, 0.4, 0.5])
    assert fit.fitted.tolist() == [0.5, 0.5, 0.5, 0.5, 1, 1]
    assert fit.thresholds.tolist() == [0.1, 0.3, 0.4, 0.5]
    assert fit.values.tolist() == [0.5, 0.5, 1, 1]


def test_weights_decide_the_mean_of_a_block():
    # Outcomes 5, 1, 4 with weights 1, 3, 1: the first two pool to (5 + 3) / 4 = 2, which is below 4.
    fit = isotonic([5, 1, 4], [1, 2, 3], [1, 3, 1])
    assert fit.fitted.tolist() == [2, 2, 4]
    assert fit.thresholds.tolist() == [1, 2, 3]


def test_adjacent_blocks_of_equal_mean_are_merged():
    fit = isotonic([3, 1, 2], [1, 2, 3])
    assert fit.fitted.tolist() == [2, 2, 2]
    assert fit.thresholds.tolist() == [1, 3]


def test_fitted_values_keep_the_row_order():
    assert isotonic([1, 0, 0.5], [0.9, 0.1, 0.5]).fitted.tolist() == [1, 0, 0.5]


@QUICK
@given(samples())
def test_pooling_equals_the_min_max_formula(sample):
    y, p, w = sample
    levels, expected = twin(y, p, w)
    np.testing.assert_allclose(isotonic(y, p, w).predict(levels), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("seed", range(5))
def test_pooling_equals_the_min_max_formula_up_to_rounding(seed):
    rng = np.random.default_rng(seed)
    p = np.round(rng.random(120), 2)
    y, w = p + rng.standard_normal(120), rng.exponential(size=120)
    levels, expected = twin(y, p, w)
    np.testing.assert_allclose(isotonic(y, p, w).predict(levels), expected, rtol=0, atol=1e-12)


@QUICK
@given(st.lists(st.tuples(outcomes, st.integers(1, 40)), max_size=40))
def test_the_kernel_equals_the_min_max_formula(steps):
    mean, weight = (np.array([step[part] for step in steps], float) for part in (0, 1))
    first, value = pool_adjacent_violators(mean * weight, weight)
    _, expected = twin(mean, np.arange(len(mean), dtype=float), weight)
    np.testing.assert_allclose(np.repeat(value, np.diff(np.append(first, len(mean)))), expected, rtol=0, atol=1e-12)
    assert (np.diff(value) > 0).all()


@QUICK
@given(samples())
def test_the_value_of_a_block_is_the_mean_of_its_outcomes(sample):
    y, p, w = sample
    fit = isotonic(y, p, w)
    for value in np.unique(fit.values):
        block = (fit.fitted == value) & (w > 0)
        assert np.average(y[block], weights=w[block]) == pytest.approx(value, abs=1e-12)


@QUICK
@given(samples())
def test_the_calibration_error_is_zero_on_its_own_rows(sample):
    y, p, w = sample
    assert c_emp(y, isotonic(y, p, w).fitted, w) <= 1e-12


def test_the_calibration_error_is_zero_on_many_rows():
    rng = np.random.default_rng(5)
    p = rng.random(50_000)
    y = rng.random(50_000) < p**2
    fitted = isotonic(y, p).fitted
    order = np.argsort(fitted)
    sums = np.cumsum((y - fitted)[order])[np.append(np.diff(fitted[order]) > 0, True)]
    assert (max(sums.max(), 0) - min(sums.min(), 0)) / len(p) <= 1e-12


@QUICK
@given(samples())
def test_fit_is_non_decreasing(sample):
    y, p, w = sample
    fit = isotonic(y, p, w)
    assert (np.diff(fit.fitted[np.argsort(p)]) >= 0).all()
    assert (np.diff(fit.thresholds) > 0).all()
    assert (np.diff(fit.values) >= 0).all()
    assert (np.diff(fit.predict(np.linspace(-0.5, 1.5, 1001))) >= 0).all()


@QUICK
@given(samples())
def test_fit_is_idempotent(sample):
    y, p, w = sample
    fitted = isotonic(y, p, w).fitted
    np.testing.assert_allclose(isotonic(fitted, p, w).fitted, fitted, rtol=0, atol=1e-12)


@QUICK
@given(samples(), st.randoms(use_true_random=False))
def test_row_order_does_not_matter(sample, random):
    y, p, w = sample
    order = list(range(len(y)))
    random.shuffle(order)
    one, other = isotonic(y, p, w), isotonic(y[order], p[order], w[order])
    np.testing.assert_array_equal(one.fitted[order], other.fitted)
    np.testing.assert_array_equal(one.thresholds, other.thresholds)
    np.testing.assert_array_equal(one.values, other.values)


@pytest.mark.parametrize("seed", range(5))
def test_row_order_changes_no_bit(seed):
    random = np.random.default_rng(seed)
    y, p, w = random.normal(size=300), np.round(random.random(300), 1), random.uniform(0.1, 3, 300)
    order = random.permutation(300)
    one, other = isotonic(y, p, w), isotonic(y[order], p[order], w[order])
    np.testing.assert_array_equal(one.fitted[order], other.fitted)


@QUICK
@given(samples(), st.data())
def test_weight_two_equals_duplicated_rows(sample, data):
    y, p, w = sample
    at = data.draw(st.integers(0, len(y) - 1))
    heavier = w.copy()
    heavier[at] *= 2
    one = isotonic(y, p, heavier)
    other = isotonic(*(np.append(column, column[at]) for column in sample))
    np.testing.assert_array_equal(one.fitted, other.fitted[:-1])
    np.testing.assert_array_equal(one.thresholds, other.thresholds)


@QUICK
@given(samples())
def test_rows_of_weight_zero_have_no_influence(sample):
    y, p, w = sample
    counts = w > 0
    one, other = isotonic(y, p, w), isotonic(y[counts], p[counts], w[counts])
    np.testing.assert_array_equal(one.fitted[counts], other.fitted)
    np.testing.assert_array_equal(one.thresholds, other.thresholds)
    np.testing.assert_array_equal(one.fitted, other.predict(p))


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 3.0, 1e300])
def test_scale_of_weights_does_not_matter(scale):
    y, p = np.array([0.1, 0.7, 0.3, 0.9]), np.array([0.2, 0.4, 0.6, 0.8])
    np.testing.assert_allclose(isotonic(y, p, np.full(4, scale)).fitted, [0.1, 0.5, 0.5, 0.9], rtol=1e-15)


def test_negligible_weights_count_as_zero():
    fit = isotonic([0.5, 1.0], [0.1, 0.9], [5e-324, 1.0])
    assert fit.fitted.tolist() == [1, 1]
    assert fit.thresholds.tolist() == [0.9]


def test_equal_outcomes_are_one_block():
    fit = isotonic(np.ones(5), np.arange(5) / 5)
    assert fit.fitted.tolist() == [1] * 5
    assert fit.thresholds.tolist() == [0, 0.8]


def test_positive_and_negative_zero_are_one_score():
    fit = isotonic([0, 1, 1, 1], [0.0, -0.0, 0.0, -0.0])
    assert fit.fitted.tolist() == [0.75] * 4
    assert len(fit.thresholds) == 1
    assert fit.predict([-1, 0, 1]).tolist() == [0.75] * 3


def test_one_row_fits_itself():
    assert isotonic([0.3], [0.5]).predict([0, 1]).tolist() == [0.3, 0.3]


def test_large_outcomes_and_scores_do_not_overflow():
    fit = isotonic([1e300, -1e300, 1e300], [-1e300, 0, 1e300])
    assert fit.fitted.tolist() == [0, 0, 1e300]
    assert fit.predict([0.5e300]).tolist() == [0.5e300]


def test_inputs_are_not_modified():
    given_arrays = [np.array(column, float) for column in ([1, 0, 1, 0], [0.1, 0.2, 0.2, 0.3], [1, 0, 2, 1])]
    for array in given_arrays:
        array.setflags(write=False)
    before = [array.copy() for array in given_arrays]
    fit = isotonic(*given_arrays)
    fit.predict(given_arrays[1])
    for array, copy in zip(given_arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)
        assert not any(np.shares_memory(array, part) for part in (fit.fitted, fit.thresholds, fit.values))


# --- the function of the score


def test_predictions_are_constant_in_blocks_and_linear_between():
    fit = isotonic([0, 1, 0, 1], [0.25, 0.5, 0.75, 1.0])
    assert fit.values.tolist() == [0, 0.5, 0.5, 1]
    assert fit.predict([-3, 0.25, 0.375, 0.5, 0.6, 0.75, 0.875, 1, 9]).tolist() == [
        0, 0, 0.25, 0.5, 0.5, 0.5, 0.75, 1, 1,
    ]  # fmt: skip


@QUICK
@given(samples())
def test_predictions_at_the_rows_are_the_fitted_values(sample):
    y, p, w = sample
    fit = isotonic(y, p, w)
    np.testing.assert_array_equal(fit.predict(p), fit.fitted)


@QUICK
@given(samples(), st.lists(st.floats(-2, 2), max_size=30))
def test_predictions_agree_with_linear_interpolation(sample, at):
    fit = isotonic(*sample)
    np.testing.assert_allclose(fit.predict(at), np.interp(at, fit.thresholds, fit.values), rtol=0, atol=1e-12)


def test_neighbouring_scores_do_not_overshoot():
    tiny = np.nextafter(0, 1)
    fit = isotonic([0, 1], [0.0, 4 * tiny])
    assert fit.predict([0, tiny, 2 * tiny, 3 * tiny, 4 * tiny]).tolist() == [0, 0.25, 0.5, 0.75, 1]


def test_empty_input_gives_empty_predictions():
    assert isotonic([0, 1], [0.1, 0.2]).predict([]).shape == (0,)


@pytest.mark.parametrize("p", [[np.nan], [np.inf], [[0.5]], 0.5, ["x"], [None]])
def test_predict_rejects_invalid_scores(p):
    with pytest.raises(DataError, match=r"^p must"):
        isotonic([0, 1], [0.1, 0.2]).predict(p)


# --- errors


@pytest.mark.parametrize(
    ("y", "p", "weight", "message"),
    [
        ([], [], None, "the arrays are empty"),
        ([0, 1], [0.5], None, "equal length; got 2 and 1"),
        ([0, 1], [0.5, 0.6], [1], "equal length; got 2 and 2 and 1"),
        ([0, np.nan], [0.5, 0.6], None, r"y must be finite .* got nan at row 1 \(1 such row\)"),
        ([0, 1], [np.nan, np.nan], None, r"p must be finite .* got nan at row 0 \(2 such rows\)"),
        ([0, 1], [0.5, np.inf], None, "p must be finite .* got inf at row 1"),
        ([0, 1e301], [0.5, 0.6], None, r"y must be finite and at most 1e\+300 in absolute value; got 1e\+301 at row 1"),
        ([0, 1], [0.5, 0.6], [1, np.nan], "weight must be finite; got nan at row 1"),
        ([0, 1], [0.5, 0.6], [1, -2], r"weight must not be negative; got -2 at row 1 \(1 such row\)"),
        ([0, 1], [0.5, 0.6], [0, 0], r"all zero \(2 rows\)"),
        ([0, 1], [[0.5, 0.6]], None, r"p must be one-dimensional; got shape \(1, 2\)"),
        (["no", "yes"], [0.5, 0.6], None, "y must hold numbers"),
    ],
)
def test_invalid_data_is_rejected_with_its_position(y, p, weight, message):
    with pytest.raises(DataError, match=message):
        isotonic(y, p, weight)


def test_result_is_frozen_and_has_a_repr():
    fit = isotonic([0, 1, 0, 1], [0.1, 0.2, 0.4, 0.6])
    assert repr(fit) == "<IsotonicFit of 4 rows: 3 blocks, values 0 to 1>"
    with pytest.raises(FrozenInstanceError):
        fit.values = None
