"""Tail probabilities against their series, published points, and brute force."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize_scalar
from scipy.special import erfcx, log_ndtr

import twins
from trueup.kernels import tails


@pytest.mark.parametrize(("x", "level"), [(2.498, 0.05), (3.023, 0.01)])
def test_the_range_tail_meets_its_published_points(x, level):
    assert tails.range_tail(x) == pytest.approx(level, abs=6e-5)


@pytest.mark.parametrize(("x", "level"), [(2.241, 0.05), (2.807, 0.01)])
def test_the_tail_of_the_maximum_modulus_meets_its_published_points(x, level):
    assert tails.mad_tail(x) == pytest.approx(level, abs=6e-5)


@given(st.floats(0.0, 12.0))
def test_the_range_tail_is_its_series(x):
    assert tails.range_tail(x) == pytest.approx(twins.range_tail(x), rel=1e-9, abs=1e-13)


@pytest.mark.parametrize("x", [9.0, 20.0, 37.0])
def test_the_range_tail_is_accurate_below_machine_precision(x):
    # Q(x) = erfcx(x / sqrt 2) exp(-x^2 / 2) / 2, and the second term of the series is nothing there.
    assert math.log(tails.range_tail(x)) == pytest.approx(math.log(8) + log_ndtr(-x), rel=1e-12)
    assert tails.range_tail(x) == pytest.approx(4 * erfcx(x / math.sqrt(2)) * math.exp(-x * x / 2), rel=1e-9)


def test_the_range_tail_decreases_from_one_to_zero():
    values = [tails.range_tail(x) for x in np.linspace(0, 45, 2000)]
    assert values[0] == 1.0
    assert values[-1] == 0.0
    assert (np.diff(values) <= 1e-12).all()


@given(st.data())
def test_the_default_p_value_is_its_definition(data):
    n = data.draw(st.integers(1, 30))
    p = np.array(
        data.draw(st.lists(st.sampled_from([0.0, 0.003, 0.1, 0.31, 0.5, 0.82, 0.99, 1.0]), min_size=n, max_size=n))
    )
    y = np.array(data.draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n)))
    w = np.array(data.draw(st.lists(st.sampled_from([0.5, 1.0, 1.7, 4.0]), min_size=n, max_size=n)))
    c = twins.path(y, p, w)
    x, up = twins.span(y, p, w), twins.rise(y, p, w)
    down = max(c[i] - c[j] for i in range(len(c)) for j in range(i, len(c)))
    if abs(up - down) < 1e-9 and x > 0:
        return  # the range is attained both ways: the definition leaves the sign open
    v, k3 = twins.moments(p, w)
    out = np.empty(1)
    tails.segment_tails(np.array([x]), np.array([up]), np.array([v]), np.array([k3]), out)
    assert out[0] == pytest.approx(twins.default_pvalue(y, p, w), rel=1e-7, abs=1e-300)


def test_a_contradicted_certain_prediction_has_p_value_zero():
    out = np.empty(2)
    tails.segment_tails(np.array([1.0, 0.0]), np.array([1.0, 0.0]), np.zeros(2), np.zeros(2), out)
    assert out.tolist() == [0.0, 1.0]


@pytest.mark.parametrize("v", [1e-310, 1e-200, 1e-9, 1.0, 1e200])
@pytest.mark.parametrize("k3", [-1.0, 0.0, 1.0])
def test_no_p_value_leaves_the_unit_interval(v, k3):
    out = np.empty(4)
    x = np.array([1e-300, 1e-3, 1.0, 1e150])
    tails.segment_tails(x, x, np.full(4, v), np.full(4, k3 * v), out)
    assert ((out >= 0) & (out <= 1)).all()


@given(st.integers(1, 40), st.floats(0.001, 0.6), st.floats(0.05, 0.95), st.sampled_from([-1.0, 1.0]), st.booleans())
def test_the_refined_deviation_is_the_supremum_of_the_exact_exponent(n, rate, share, s, weighted):
    random = np.random.default_rng(n)
    p = np.clip(random.beta(1, 1 / rate, n), 1e-4, 0.999)
    w = random.uniform(0.2, 3, n) if weighted else np.ones(n)
    x = share * np.sum(w * ((1 - p) if s > 0 else p))

    def exponent(l):
        return -(l * x - np.sum(np.logaddexp(np.log1p(-p), np.log(p) + s * l * w) - s * l * w * p))

    best = minimize_scalar(exponent, bounds=(0, 400), method="bounded", options={"xatol": 1e-9})
    found = tails.saddlepoint(p, w if weighted else np.empty(0), x, s)
    assert found**2 / 2 == pytest.approx(-best.fun, rel=1e-6, abs=1e-9)


def test_an_impossible_value_has_infinite_deviation():
    p = np.array([1.0, 1.0, 0.5])
    assert tails.saddlepoint(p, np.empty(0), 2.5, -1.0) == math.inf
    assert tails.refined_tail(p, np.empty(0), 2.5, 0.0, 0.25, 0.0) == 0.0


def test_the_refined_deviation_of_the_largest_possible_value_is_finite():
    p = np.full(5, 0.1)
    # All five outcomes are 1: the supremum is reached in the limit and is -5 ln 0.1.
    assert tails.saddlepoint(p, np.empty(0), 5 * 0.9, 1.0) ** 2 / 2 == pytest.approx(-5 * math.log(0.1), rel=1e-6)


@given(st.floats(1e-6, 1e4), st.floats(-0.99, 0.99), st.sampled_from([0.05, 1e-4, 1e-9]))
def test_the_detectable_range_is_the_smallest_that_is_rejected(v, skew, level):
    from trueup.metrics.inference import range_quantile, segment_pvalues

    x = np.array([tails.detectable(v, skew * v, range_quantile(level), range_quantile(level, inflated=True))])
    # In the harder direction: upward where the sum is skewed upward.
    harder = 1.0 if skew >= 0 else 0.0
    for factor, rejected in ((1 + 1e-6, True), (1 - 1e-6, False)):
        p = segment_pvalues(factor * x, factor * x * harder, np.array([v]), np.array([skew * v]))
        assert (p[0] <= level) == rejected
