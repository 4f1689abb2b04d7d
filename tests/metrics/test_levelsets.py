"""Errors over level sets against their definitions, worked by hand and level by level."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.errors import ArgumentError, DataError
from trueup.metrics.groups import covariance_error, discretize, k1, k2, kinf, msce

QUICK = settings(max_examples=60, deadline=None)
MEASURES = [k1, k2, kinf]

units = st.integers(0, 8).map(lambda k: k / 8)
signed = st.integers(-8, 8).map(lambda k: k / 8)
weights = st.one_of(st.just(1.0), st.integers(0, 40).map(lambda k: k / 8))


@st.composite
def samples(draw, outcome=units, level=units, function=signed):
    functions = draw(st.integers(1, 3))
    row = st.tuples(outcome, level, st.lists(function, min_size=functions, max_size=functions), weights)
    rows = draw(st.lists(row, min_size=1, max_size=30))
    y, f, h, w = (np.array(column) for column in zip(*rows, strict=True))
    w[draw(st.integers(0, len(w) - 1))] = 1.0  # at least one row counts
    return y, f, h, w


wide = samples(st.floats(-50, 50), st.integers(-3, 3).map(float), st.floats(-10, 10))


def twin(y, f, h, w):
    """Return K1, K2 and Kinf of one function, level by level."""
    parts = []
    for v in set(f[w > 0]):
        on = (f == v) & (w > 0)
        parts.append((w[on].sum() / w.sum(), np.average(h[on] * (y[on] - v), weights=w[on])))
    return sum(s * abs(e) for s, e in parts), sum(s * e**2 for s, e in parts), max(s * abs(e) for s, e in parts)


# --- the measures


def test_worked_example():
    # Level .5: three rows, residuals .5, .5, -.5, mean 1/6; level 0: one row, residual 1.
    y, f = [1, 1, 0, 1], [0.5, 0.5, 0.5, 0.0]
    assert k1(y, f, np.ones(4)) == pytest.approx(3 / 4 / 6 + 1 / 4)
    assert k2(y, f, np.ones(4)) == pytest.approx(3 / 4 / 36 + 1 / 4)
    assert kinf(y, f, np.ones(4)) == pytest.approx(1 / 4)
    assert msce(y, f) == pytest.approx(3 / 4 / 36 + 1 / 4)
    # h picks out the third row, twice and with the other sign: E[h (y - v)] is 1/3 on level .5 and 0 on level 0.
    h = [0, 0, -2, 0]
    assert k1(y, f, h) == pytest.approx(1 / 4)
    assert k2(y, f, h) == pytest.approx(3 / 4 / 9)
    assert kinf(y, f, h) == pytest.approx(1 / 4)


def test_negative_errors_count_by_absolute_value():
    # The paper prints Kinf without absolute value, which would be 1/8 here: level 1 has -.5 on half the rows.
    assert kinf([0.25, 0.5], [0.0, 1.0], [1, 1]).tolist() == [0.25]


def test_a_calibrated_predictor_may_fail_on_a_function():
    y, f = [0, 1, 0, 1], [0.5, 0.5, 0.5, 0.5]
    assert msce(y, f) == 0
    assert k1(y, f, [1, -1, 1, -1]).tolist() == [0.5]


@QUICK
@given(wide)
def test_measures_equal_their_definitions(sample):
    y, f, h, w = sample
    expected = np.transpose([twin(y, f, h[:, j], w) for j in range(h.shape[1])])
    for measure, values in zip(MEASURES, expected, strict=True):
        np.testing.assert_allclose(measure(y, f, h, w), values, rtol=1e-9, atol=1e-9)


@QUICK
@given(wide)
def test_inequalities_between_the_measures_hold(sample):
    _, f, _, w = sample
    one, two, top = (measure(*sample) for measure in MEASURES)
    levels = len(np.unique(f[w > 0]))
    slack = 1e-9 * (1 + one)
    assert (one <= np.sqrt(two) + slack).all()
    assert (top <= one + slack).all()
    assert (one <= levels * top + slack).all()


@QUICK
@given(samples())
def test_k2_is_at_most_k1_for_bounded_functions_and_probabilities(sample):
    assert (k2(*sample) <= k1(*sample) + 1e-12).all()


@QUICK
@given(samples())
def test_msce_is_k2_of_the_function_one(sample):
    y, f, _, w = sample
    assert msce(y, f, w) == k2(y, f, np.ones(len(y)), w)[0]


@QUICK
@given(wide)
def test_functions_are_independent(sample):
    y, f, h, w = sample
    for measure in MEASURES:
        separate = [measure(y, f, h[:, j], w) for j in range(h.shape[1])]
        np.testing.assert_array_equal(measure(y, f, h, w), np.concatenate(separate))


@pytest.mark.parametrize("measure", MEASURES)
def test_result_has_one_value_per_function(measure):
    y, f = [0, 1, 1], [0.5, 0.5, 1]
    assert measure(y, f, [1, 0, 1]).shape == (1,)
    assert measure(y, f, np.ones((3, 4))).shape == (4,)
    assert measure(y, f, np.ones((3, 0))).shape == (0,)
    assert measure(y, f, np.ones((3, 4), order="F")[:, ::2]).dtype == np.float64


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("kind", [bool, np.int8, np.uint8, np.float32, object])
def test_functions_may_be_indicators_or_any_numbers(measure, kind):
    y, f, h = [0, 1, 1, 0], [0.5, 0.5, 1, 1], [[1, 0], [0, 1], [1, 1], [1, 0]]
    np.testing.assert_array_equal(measure(y, f, np.array(h, kind)), measure(y, f, h))


# --- rows and weights


@QUICK
@given(wide, st.data())
def test_weight_two_equals_duplicated_rows(sample, data):
    y, f, h, w = sample
    at = data.draw(st.integers(0, len(y) - 1))
    heavier = w.copy()
    heavier[at] *= 2
    rows = [*range(len(y)), at]
    for measure in MEASURES:
        twice = measure(y[rows], f[rows], h[rows], w[rows])
        np.testing.assert_allclose(measure(y, f, h, heavier), twice, rtol=1e-9, atol=1e-9)


@QUICK
@given(wide, st.randoms(use_true_random=False))
def test_row_order_does_not_matter(sample, random):
    order = list(range(len(sample[0])))
    random.shuffle(order)
    for measure in MEASURES:
        shuffled = measure(*(column[order] for column in sample))
        np.testing.assert_allclose(measure(*sample), shuffled, rtol=1e-9, atol=1e-9)


def test_rows_of_weight_zero_are_dropped():
    y, f, h = [0, 1, 9], [0.5, 0.5, 7], [[1, 2], [3, 4], [5, 6]]
    for measure in MEASURES:
        np.testing.assert_array_equal(measure(y, f, h, [1, 2, 0]), measure(y[:2], f[:2], h[:2], [1, 2]))


@pytest.mark.parametrize("scale", [5e-324, 1e-300, 3.0, 1e308])
def test_scale_of_weights_does_not_matter(scale):
    y, f, h = [0, 1, 1], [0.5, 0.5, 1], [1, 2, 3]
    for measure in MEASURES:
        np.testing.assert_allclose(measure(y, f, h, np.full(3, scale)), measure(y, f, h), rtol=1e-12)


def test_zero_and_minus_zero_are_one_level():
    assert kinf([1, 1], [0.0, -0.0], [1, 1]).tolist() == [1]


def test_inputs_are_not_modified():
    arrays = [np.array(column, float) for column in ([1, 0, 1], [0.0, 0.5, 1.0], [1, 2, 3], [1, 0, 2])]
    before = [array.copy() for array in arrays]
    for array in arrays:
        array.setflags(write=False)
    for measure in MEASURES:
        measure(*arrays)
    msce(arrays[0], arrays[1], arrays[3])
    assert not np.shares_memory(discretize(arrays[1], 1), arrays[1])
    for array, copy in zip(arrays, before, strict=True):
        np.testing.assert_array_equal(array, copy)


# --- rounding to levels


def test_ties_are_rounded_down():
    assert discretize([0.125, 0.375, 0.625, 0.875], 4).tolist() == [0, 0.25, 0.5, 0.75]


def test_predictions_outside_the_range_are_clipped():
    levels = discretize([-1e300, -0.1, 1.1, 1e300], 10)
    assert levels.tolist() == [0, 0, 1, 1]
    assert not np.signbit(levels).any()


@QUICK
@given(st.lists(st.floats(-0.5, 1.5), max_size=30), st.integers(1, 200))
def test_each_prediction_goes_to_the_nearest_level(f, m):
    levels = np.arange(m + 1) / m
    rounded = discretize(f, m)
    assert np.isin(rounded, levels).all()
    nearest = np.abs(np.subtract.outer(f, levels)).min(axis=1) if f else []
    np.testing.assert_allclose(np.abs(rounded - f), nearest, rtol=0, atol=1e-12)


@QUICK
@given(st.lists(st.floats(0, 1), max_size=30), st.integers(1, 1000))
def test_rounding_twice_is_rounding_once(f, m):
    once = discretize(f, m)
    np.testing.assert_array_equal(discretize(once, m), once)


# --- errors


@pytest.mark.parametrize(
    ("y", "f", "h", "weight", "message"),
    [
        ([], [], [], None, "empty"),
        ([0, 1], [0.5], [1], None, "equal length; got 2 and 1"),
        ([0, np.nan], [0.5, 0.5], [1, 1], None, "y must be finite; got nan at row 1"),
        ([0, 1], [0.5, np.inf], [1, 1], None, "f must be finite; got inf at row 1"),
        ([0, 1], [0.5, 0.5], [1, 1, 1], None, r"h must have shape \(2,\) or \(2, q\); got \(3,\)"),
        ([0, 1], [0.5, 0.5], [[1, 1], [1, np.nan]], None, "column 1 of h must be finite; got nan at row 1"),
        ([0, 1], [0.5, 0.5], 1.0, None, r"or \(2, q\); got \(\)"),
        ([0, 1], [0.5, 0.5], np.ones((2, 1, 1)), None, r"or \(2, q\); got \(2, 1, 1\)"),
        ([0, 1], [0.5, 0.5], ["a", "b"], None, "h must hold numbers"),
        ([0, 1], [0.5, 0.5], [[1], [1, 2]], None, "h must hold numbers"),
        ([0, 1], [0.5, 0.5], [1, 1], [0, 0], "all zero"),
        ([0, 1], [0.5, 0.5], [1, 1], [1, -1], "weight must not be negative; got -1 at row 1"),
    ],
)
@pytest.mark.parametrize("measure", MEASURES)
def test_invalid_data_is_rejected_with_its_position(measure, y, f, h, weight, message):
    with pytest.raises(DataError, match=message):
        measure(y, f, h, weight)


def test_msce_rejects_invalid_data():
    with pytest.raises(DataError, match="equal length; got 1 and 2"):
        msce([0], [0.5, 0.5])
    with pytest.raises(DataError, match="y must be one-dimensional"):
        msce(1.0, [0.5])


@pytest.mark.parametrize("m", [0, -1, 2.0, True, "ten"])
def test_invalid_numbers_of_levels_are_rejected(m):
    with pytest.raises(ArgumentError, match="m must be an integer at least 1"):
        discretize([0.5], m)


def test_non_numeric_predictions_are_rejected():
    with pytest.raises(DataError, match="f must be finite; got nan at row 1"):
        discretize([0.5, np.nan], 10)


# Covariance on level sets (definition E.4 and lemma E.5 of Globus-Harris et al. 2023)


def covariances(y, f, h, w):
    total = 0.0
    for v in np.unique(f):
        on = f == v
        hv, yv = (np.average(values[on], weights=w[on]) for values in (h, y))
        total += w[on].sum() / w.sum() * abs(np.average((h[on] - hv) * (y[on] - yv), weights=w[on]))
    return total


@pytest.mark.parametrize("seed", range(4))
def test_covariance_error_is_definition_e4_and_obeys_lemma_e5(seed):
    random = np.random.default_rng(seed)
    f = random.integers(0, 5, 200) / 4
    h, w = random.normal(size=(200, 3)), random.integers(0, 3, 200).astype(float)
    y = (random.random(200) < 0.8 * f + 0.1).astype(float)
    found = covariance_error(y, f, h, w)
    assert found == pytest.approx([covariances(y, f, column, w) for column in h.T])
    alpha = max(*k2(y, f, h, w), msce(y, f, w))
    assert found.max() <= np.sqrt(alpha) * (1 + np.abs(h).max())
    assert covariance_error(y, f, h[:, 0], w) == pytest.approx(found[:1])
    assert covariance_error(y, 1 - f, h, w) == pytest.approx(found)  # the values of levels do not matter
