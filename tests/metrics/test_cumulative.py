"""Cumulative differences as measures."""

from __future__ import annotations

import itertools
import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import twins
from trueup.errors import ArgumentError, DataError
from trueup.metrics.cumulative import calibration_bound, ecce, ecce_classes, ecce_mad, ecce_pvalue, ecce_sigma
from trueup.metrics.inference import range_quantile


@st.composite
def samples(draw, most=40):
    n = draw(st.integers(1, most))
    p = np.array(draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]) | st.floats(0, 1), min_size=n, max_size=n)))
    y = np.array(draw(st.lists(st.sampled_from([0.0, 1.0, 0.25]), min_size=n, max_size=n)))
    w = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 0.5]), min_size=n, max_size=n)))
    return y, p, w


@given(samples(most=60))
def test_ecce_is_the_largest_error_over_any_interval_of_scores(sample):
    y, p, w = sample
    edges = [-1.0, *np.unique(p)]
    over = [abs(np.sum((w * (y - p))[(p > a) & (p <= b)])) for a, b in itertools.combinations(edges, 2)]
    assert ecce(y, p, w) == pytest.approx(max([0.0, *over]) / w.sum(), abs=1e-12)


@given(samples())
def test_measures_equal_their_definitions(sample):
    y, p, w = sample
    path = twins.path(y, p, w)
    v, _ = twins.moments(p, w)
    assert ecce_mad(y, p, w) == pytest.approx(np.abs(path).max() / w.sum(), abs=1e-12)
    if v > 0:
        assert ecce_sigma(y, p, w) == pytest.approx(twins.span(y, p, w) / math.sqrt(v), rel=1e-9, abs=1e-12)
        assert ecce_sigma(y, p, w, statistic="mad") == pytest.approx(np.abs(path).max() / math.sqrt(v), rel=1e-9, abs=1e-12)


@given(samples(), st.randoms(use_true_random=False))
def test_row_order_does_not_matter(sample, random):
    order = list(range(len(sample[0])))
    random.shuffle(order)
    shuffled = [column[order] for column in sample]
    for measure in (ecce, ecce_mad, ecce_sigma, ecce_pvalue, partial(ecce_pvalue, statistic="mad")):
        assert measure(*sample) == pytest.approx(measure(*shuffled), rel=1e-9, abs=1e-12)


@given(samples(), st.data())
def test_integer_weights_count_rows(sample, data):
    y, p, _ = sample
    times = np.array(data.draw(st.lists(st.integers(0, 3), min_size=len(y), max_size=len(y))))
    if not times.any():
        return
    for measure in (ecce, ecce_mad):
        assert measure(y, p, times) == pytest.approx(measure(np.repeat(y, times), np.repeat(p, times)), abs=1e-12)


def test_tied_directions_have_one_p_value_in_any_row_order():
    p = np.r_[np.full(1000, 0.01), np.full(1000, 0.04)]
    y = (np.arange(2000) < 30).astype(float)
    orders = [np.random.default_rng(s).permutation(2000) for s in range(30)]
    assert len({round(ecce_pvalue(y[o], p[o], statistic="mad"), 12) for o in orders}) == 1


def test_draws_equal_up_to_rounding_count_as_extreme():
    assert ecce_pvalue([1] * 3 + [0] * 7, [0.3] * 10, draws=99) == 1.0


def test_tied_scores_form_one_step():
    # 300 events among 1,000 rows of score 0.3 are calibrated; sorted by label the path would range over 15 sigma.
    y = np.repeat([0.0, 1.0], [700, 300])
    assert ecce_sigma(y, np.full(1000, 0.3)) == pytest.approx(0.0, abs=1e-9)
    assert ecce_pvalue(y, np.full(1000, 0.3)) == 1.0


def test_path_starts_at_zero():
    # Every outcome is above its score: the range is the last point, and would miss the first step without C_0.
    assert ecce([1, 1], [0.5, 0.6]) == pytest.approx(0.45)


def test_tiny_p_values_are_resolved():
    y, p = np.r_[np.ones(900), np.zeros(100)], np.full(1000, 0.5)
    assert 0 < ecce_pvalue(y, p) < 1e-100


def test_certain_predictions_have_sigma_zero_or_infinity():
    assert ecce_sigma([0, 1], [0, 1]) == 0.0
    assert ecce_sigma([1, 1], [0, 1]) == math.inf
    assert ecce_pvalue([0, 1], [0, 1], statistic="mad") == 1.0
    assert ecce_pvalue([1, 1], [0, 1], statistic="mad") == 0.0


@pytest.mark.parametrize("statistic", ["range", "mad"])
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.5, 0.95])
@pytest.mark.repeated(1000, 4000)
def test_p_values_keep_their_level_under_calibration(statistic, rate, repetitions):
    random = np.random.default_rng(int(100 * rate))
    result = []
    for _ in range(repetitions):
        p = np.clip(rate * random.lognormal(0, 0.4, 80), 0, 0.999)
        result.append(ecce_pvalue(random.random(80) < p, p, statistic=statistic))
    for level in (0.1, 0.05, 0.01, 0.001):
        assert np.mean(np.array(result) <= level) <= level + twins.three_se(level, repetitions)


@pytest.mark.parametrize("statistic", ["range", "mad"])
def test_monte_carlo_p_value_agrees_with_the_analytic_one(statistic):
    random = np.random.default_rng(3)
    p = random.uniform(0.2, 0.8, 500)
    y = (random.random(500) < np.clip(p + 0.05, 0, 1)).astype(float)
    analytic = ecce_pvalue(y, p, statistic=statistic)
    drawn = ecce_pvalue(y, p, statistic=statistic, draws=2000, random_state=1)
    # The limit is a little conservative for a finite number of rows.
    assert drawn <= analytic + twins.three_se(analytic, 2000)
    assert drawn >= 0.6 * analytic - twins.three_se(analytic, 2000)
    assert drawn == ecce_pvalue(y, p, statistic=statistic, draws=2000, random_state=1)
    assert ecce_pvalue(y, p, np.full(500, 3.0), statistic=statistic, draws=2000, random_state=1) == drawn


def test_measure_of_several_classes_is_the_maximum():
    random = np.random.default_rng(0)
    p = random.dirichlet([1, 2, 3], 300)
    y = random.integers(0, 3, 300)
    assert ecce_classes(y, p) == max(ecce(y == k, p[:, k]) for k in range(3))


@pytest.mark.parametrize("delta", [0.1, 0.01])
@pytest.mark.parametrize("shift", [0.0, 0.08])
def test_bounds_have_their_coverage(delta, shift):
    # Scores uniform on [0, 1/2], truth = score + shift where the score is below 1/4: c = shift / 2 in closed form.
    repetitions, truth = 400, shift / 2
    random = np.random.default_rng(5)
    covered = {"upper": 0, "lower": 0, "bernstein": 0}
    for _ in range(repetitions):
        p = random.uniform(0, 0.5, 500)
        y = random.random(500) < p + shift * (p < 0.25)
        bound = calibration_bound(y, p, delta=delta)
        covered["upper"] += truth <= bound.upper
        covered["lower"] += bound.lower <= truth
        covered["bernstein"] += truth <= calibration_bound(y, p, delta=delta, method="bernstein").upper
    for count in covered.values():
        assert count / repetitions >= 1 - delta - twins.three_se(delta, repetitions)


def test_method_paper_is_the_published_formula():
    y, p = np.tile([0.0, 1.0], 50), np.full(100, 0.5)
    bound = calibration_bound(y, p, delta=0.1, method="paper")
    assert bound.upper == pytest.approx(math.sqrt(math.log(20) / 200))
    assert bound.lower == 0.0
    assert bound.to_dict()["method"] == "paper"


def test_bounds_equal_their_formulas():
    y, p, w = np.r_[np.ones(300), np.zeros(100)], np.full(400, 0.2), np.r_[np.ones(399), 3.0]
    m, d, total = 3.0, 0.08, w.sum()
    slack = math.log(5 / 0.1)
    v = (math.sqrt(np.sum((w * (y - p)) ** 2) + m * m * slack / 2) + m * math.sqrt(slack / 2)) ** 2
    result = calibration_bound(y, p, w)
    assert result.value == pytest.approx(abs(np.sum(w * (y - p))) / total)
    assert result.upper == pytest.approx(result.value + 1.405071560309632 * math.sqrt(v) / total)
    assert result.lower == pytest.approx(result.value - range_quantile(d) * math.sqrt(v) / total)
    proved = calibration_bound(y, p, w, method="bernstein")
    reach = math.sqrt(2 * v * math.log(1 / d)) / total + 2 * m * math.log(1 / d) / (3 * total)
    assert (proved.upper, proved.lower) == (pytest.approx(result.value + reach), 0.0)
    y, p = np.ones(200_000), np.full(200_000, 0.4)
    below = (16 * math.sqrt(2 * math.pi) + 2 * math.sqrt(2 * math.log(80))) / math.sqrt(200_000)
    assert calibration_bound(y, p, method="paper").lower == pytest.approx(0.6 - below)


def test_any_delta_is_accepted():
    y, p = np.tile([0.0, 1.0], 50), np.full(100, 0.5)
    assert calibration_bound(y, p, delta=1e-17).upper > calibration_bound(y, p, delta=0.1).upper
    assert calibration_bound(y, p, delta=0.9).upper >= calibration_bound(y, p, delta=0.9).value


def test_proved_bounds_are_wider():
    random = np.random.default_rng(1)
    p = random.random(2000) * 0.3
    y = (random.random(2000) < p).astype(float)
    normal, proved, paper = (calibration_bound(y, p, method=m).upper for m in ("normal", "bernstein", "paper"))
    assert normal < proved < paper


@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e-60, 1e60, 1e160, 1e300])
def test_scale_of_weights_does_not_matter(scale):
    random = np.random.default_rng(0)
    p, w = random.random(200), random.uniform(0.5, 2, 200)
    y = (random.random(200) < p).astype(float)
    for measure in (ecce, ecce_mad, ecce_sigma, ecce_pvalue, lambda *rows: calibration_bound(*rows).upper):
        assert measure(y, p, scale * w) == pytest.approx(measure(y, p, w), rel=1e-9)


def test_scale_of_weights_does_not_matter_for_bounds():
    random = np.random.default_rng(2)
    p, w = random.random(300), random.uniform(0.5, 2, 300)
    y = (random.random(300) < p).astype(float)
    one, thousand = calibration_bound(y, p, w), calibration_bound(y, p, 1000 * w)
    assert one.upper == pytest.approx(thousand.upper)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ecce([0, 1], [0.5]), "equal length; got 2 and 1"),
        (lambda: ecce([], []), "the arrays are empty"),
        (lambda: ecce([0, 2], [0.5, 0.5]), r"y must lie in \[0, 1\]; got 2 at row 1"),
        (lambda: ecce([0, 1], [0.5, 1.5]), r"p must lie in \[0, 1\]; got 1.5 at row 1 \(1 such row\)"),
        (lambda: ecce([0, 1], [0.5, float("nan")]), "p must be finite; got nan at row 1"),
        (lambda: ecce([[0, 1]], [0.5, 0.5]), "y must be one-dimensional"),
        (lambda: ecce(["a", "b"], [0.5, 0.5]), "y must hold numbers"),
        (lambda: ecce([0, 1], [0.5, 0.5], [-1, 1]), "weight must not be negative; got -1 at row 0"),
        (lambda: ecce([0, 1], [0.5, 0.5], [0, 0]), "the weights are all zero"),
        (lambda: ecce_pvalue([0, 1], [0.5, 0.5], draws=9.5), "draws must be an integer"),
        (lambda: ecce_sigma([0, 1], [0.5, 0.5], statistic="mean"), "statistic must be one of 'range', 'mad'"),
        (lambda: ecce_pvalue([0, 1], [0.5, 0.5], draws=-1), "draws must be an integer"),
        (lambda: ecce_classes([0, 1], [0.5, 0.5]), "p must have one column per class"),
        (lambda: ecce_classes([0, 1], [[50, 50], [50, 50]]), "must add up to 1; got 100 at row 0"),
        (lambda: ecce([0, 1], [[0.5, 0.5], [0.5, 0.5]]), "ecce_classes take scores of several classes"),
        (lambda: ecce_classes([0, 2], [[0.5, 0.5], [0.5, 0.5]]), "y must hold class indices 0 to 1; got 2 at row 1"),
        (lambda: calibration_bound([0, 1], [0.5, 0.5], delta=0), "delta must lie between 0 and 1"),
        (lambda: calibration_bound([0, 1], [0.5, 0.5], [1, 1], method="paper"), "does not support weights"),
        (lambda: calibration_bound([0, 1], [0.5, 0.5], method="magic"), "method must be one of"),
    ],
)
def test_invalid_inputs_are_named(call, message):
    with pytest.raises((DataError, ArgumentError), match=message):
        call()


def test_inputs_are_not_modified():
    y, p, w = np.array([0.0, 1.0]), np.array([0.9, 0.1]), np.array([1.0, 0.0])
    before = [column.copy() for column in (y, p, w)]
    for measure in (ecce, ecce_mad, ecce_sigma, ecce_pvalue, calibration_bound):
        measure(y, p, w)
    for column, old in zip((y, p, w), before, strict=True):
        np.testing.assert_array_equal(column, old)
