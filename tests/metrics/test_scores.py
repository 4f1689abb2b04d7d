from __future__ import annotations

import itertools
import json
import math
from dataclasses import FrozenInstanceError

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import expit, logit

from trueup.errors import ArgumentError, DataError
from trueup.metrics.inference import wilson
from trueup.metrics.scores import (
    brier,
    calibration_free_normalized_entropy,
    corp,
    hosmer_lemeshow,
    log_loss,
    normalized_entropy,
    observed_expected,
    prr,
    slope_intercept,
)
from twins import three_se

QUICK = settings(max_examples=60, deadline=None)
LN = math.log

# Few distinct scores make ties; 0 and 1 are among them.
scores = st.integers(0, 10).map(lambda k: k / 10)
outcomes = st.one_of(st.sampled_from([0.0, 1.0]), st.integers(0, 8).map(lambda k: k / 8))


@st.composite
def samples(draw):
    rows = draw(st.lists(st.tuples(outcomes, scores, st.integers(1, 4)), min_size=1, max_size=40))
    return tuple(np.array(column, float) for column in zip(*rows, strict=True))


def drawn(seed, n=400, slope=1.0, intercept=0.0):
    rng = np.random.default_rng(seed)
    p = np.round(rng.uniform(0.02, 0.98, n), 2)
    y = (rng.random(n) < expit(intercept + slope * logit(p))).astype(float)
    return y, p, rng.integers(1, 4, n).astype(float)


def values(measure, *arrays):
    """Return the point estimates of a measure."""
    result = measure(*arrays)
    if isinstance(result, float):
        return [result]
    spread = ("low", "high", "slope_se", "intercept_se", "calibration_in_the_large_se")
    return [value for name, value in result.to_dict().items() if name not in spread]


def log_corp(y, p, weight=None):
    return corp(y, p, weight, score="log")


POINT = [log_loss, brier, normalized_entropy, corp, log_corp, slope_intercept, observed_expected]
ALL = [*POINT, hosmer_lemeshow, prr]

# --- all of them


@pytest.mark.parametrize("measure", [*POINT, prr])
def test_weight_two_equals_duplicated_rows(measure):
    y, p, w = drawn(1)
    times = w.astype(int)
    np.testing.assert_allclose(values(measure, y, p, w), values(measure, y.repeat(times), p.repeat(times)), rtol=1e-10)


@pytest.mark.parametrize("measure", ALL)
@pytest.mark.parametrize("scale", [3.0, 1e-200, 1e200])
def test_scale_of_weights_does_not_matter(measure, scale):
    y, p, w = drawn(2)
    one, other = measure(y, p, w), measure(y, p, scale * w)
    if isinstance(one, float):
        assert other == pytest.approx(one, rel=1e-11)
    else:
        assert other.to_dict() == pytest.approx(one.to_dict(), rel=1e-9)


@pytest.mark.parametrize("measure", ALL)
def test_row_order_does_not_matter(measure):
    y, p, w = drawn(3)
    order = np.random.default_rng(0).permutation(len(y))
    np.testing.assert_allclose(values(measure, y, p, w), values(measure, y[order], p[order], w[order]), rtol=1e-10)


@pytest.mark.parametrize("measure", ALL)
def test_inputs_are_not_modified(measure):
    arrays = drawn(4)
    for array in arrays:
        array.setflags(write=False)
    before = [array.copy() for array in arrays]
    measure(*arrays)
    assert all(np.array_equal(a, b) for a, b in zip(arrays, before, strict=True))


@pytest.mark.parametrize("measure", ALL)
def test_rows_of_weight_zero_do_not_count(measure):
    y, p, w = drawn(5)
    more = measure(np.append(y, 1), np.append(p, 0), np.append(w, 0))
    assert more == measure(y, p, w)


@pytest.mark.parametrize("measure", ALL)
def test_invalid_arrays_are_rejected(measure):
    for bad in ([], [0, np.nan], [0, 2], [[0, 1]], ["a", "b"]):
        with pytest.raises(DataError):
            measure(bad, [0.5] * len(bad))
    with pytest.raises(DataError, match="negative"):
        measure([0, 1], [0.5, 0.5], [1, -1])


@pytest.mark.parametrize("measure", [corp, slope_intercept, observed_expected, hosmer_lemeshow])
def test_results_are_frozen_and_convert_to_json(measure):
    result = measure(*drawn(6))
    with pytest.raises(FrozenInstanceError):
        setattr(result, next(iter(result.to_dict())), 0)
    assert json.loads(json.dumps(result.to_dict(), allow_nan=False)) == result.to_dict()
    assert len(repr(result)) < 130


# --- log loss, Brier score, normalized entropy


def test_log_loss_by_hand():
    assert log_loss([1, 0, 0.5], [0.5, 0.75, 0.5]) == pytest.approx((LN(2) + LN(4) + LN(2)) / 3, rel=1e-14)
    assert log_loss([1, 0], [0.5, 0.75], [3, 1]) == pytest.approx((3 * LN(2) + LN(4)) / 4, rel=1e-14)


@QUICK
@given(samples())
def test_log_loss_equals_the_formula_of_scikit_learn(sample):
    y, p, w = sample
    eps = np.finfo(float).eps
    both = np.clip(np.stack([1 - p, p]), eps, 1 - eps)
    rows = -(np.log(both) * np.stack([1 - y, y])).sum(axis=0)
    assert log_loss(y, p, w) == pytest.approx(np.average(rows, weights=w), rel=1e-12, abs=1e-14)


def test_eps_limits_the_cost_of_certain_errors():
    assert log_loss([1], [0]) == pytest.approx(52 * LN(2))
    assert log_loss([0], [1]) == pytest.approx(52 * LN(2))
    assert log_loss([1], [0], eps=1e-6) == pytest.approx(6 * LN(10))
    assert log_loss([0, 1], [1, 1], eps=0) == math.inf
    assert log_loss([0, 1], [0, 1], eps=0) == 0
    for eps in (-1e-9, 0.5, math.nan):
        with pytest.raises(ArgumentError, match="eps"):
            log_loss([1], [0.5], eps=eps)


def test_default_eps_keeps_small_probabilities():
    assert log_loss([1, 0], [1e-15, 1e-15]) == pytest.approx(15 * LN(10) / 2, rel=1e-13)
    assert log_loss([0], [1e-12]) == pytest.approx(1e-12, rel=1e-12)


def test_brier_by_hand():
    assert brier([1, 0, 0.5], [0.5, 0.75, 0.25], [1, 2, 1]) == (0.25 + 2 * 0.5625 + 0.0625) / 4
    assert brier([0, 1], [1, 0]) == 1


def test_normalized_entropy_is_one_for_the_base_rate_and_nan_without_one():
    assert normalized_entropy([1, 0, 0, 0], [0.25] * 4) == pytest.approx(1, rel=1e-14)
    assert normalized_entropy([1, 0], [0.75, 0.25]) == pytest.approx(LN(4 / 3) / LN(2))
    assert math.isnan(normalized_entropy([1, 1], [0.5, 0.75]))
    assert math.isnan(normalized_entropy([0, 0], [0.5, 0.75]))


def test_a_factor_of_the_odds_does_not_change_the_calibration_free_entropy():
    y, p, w = drawn(0, intercept=0.7)
    expected = calibration_free_normalized_entropy(y, p, w)
    for shift in (-3, 0.5, 2):
        assert calibration_free_normalized_entropy(y, expit(logit(p) + shift), w) == pytest.approx(expected, rel=1e-9)
    assert expected < normalized_entropy(y, p, w)
    # Odds of 4, 1 and 1/4 times 1: already on average right, so nothing changes. Doubled odds are halved again.
    y, p = [1, 1, 0, 0, 0.5], np.array([0.8, 0.5, 0.2, 0.5, 0.5])
    assert calibration_free_normalized_entropy(y, p) == pytest.approx(normalized_entropy(y, p), rel=1e-12)
    assert calibration_free_normalized_entropy(y, 2 * p / (1 + p)) == pytest.approx(normalized_entropy(y, p), rel=1e-12)


def test_certain_scores_have_no_odds():
    # The scores of 0 and 1 stay; the other two have to sum to 1, as .5 and .5 do.
    fixed = calibration_free_normalized_entropy([0, 1, 1, 0], [0, 1, 0.2, 0.2])
    assert fixed == pytest.approx(0.5, rel=1e-12)  # half of the rows cost ln 2
    assert math.isnan(calibration_free_normalized_entropy([0, 0, 1], [1, 1, 0.5]))
    assert math.isnan(calibration_free_normalized_entropy([1, 1], [0.5, 0.75]))
    assert calibration_free_normalized_entropy([1, 0], [1, 0]) == pytest.approx(0, abs=1e-12)


# --- CORP


def test_corp_by_hand():
    # Fit: 0 at .25 and 2/3 at .5. Brier of the scores (1/16 + 3/4) / 4, of the fit (4/9 + 1/9 + 1/9) / 4, of 1/2 1/4.
    split = corp([0, 1, 0, 1], [0.25, 0.5, 0.5, 0.5])
    expected = (13 / 64, 13 / 64 - 1 / 6, 1 / 4 - 1 / 6, 1 / 4)
    assert tuple(split.to_dict().values()) == pytest.approx(expected, rel=1e-13)
    # The log loss of the same fit: 0 at the first row, the entropy of 2/3 at the others.
    split = corp([0, 1, 0, 1], [0.25, 0.5, 0.5, 0.5], score="log")
    own, best = (LN(4 / 3) + 3 * LN(2)) / 4, 3 / 4 * (LN(3) - 2 / 3 * LN(2))
    assert tuple(split.to_dict().values()) == pytest.approx((own, own - best, LN(2) - best, LN(2)), rel=1e-13)


def direct(y, p, w, loss):
    """The definition, with blocks found by the min-max formula and losses taken row by row."""
    levels = np.unique(p)
    total, mass = (np.array([v[p == level].sum() for level in levels]) for v in (w * y, w))
    k = len(levels)
    fit = [
        max(min(total[a : b + 1].sum() / mass[a : b + 1].sum() for b in range(i, k)) for a in range(i + 1))
        for i in range(k)
    ]
    forecasts = p, np.array(fit)[np.searchsorted(levels, p)], np.full(len(y), np.average(y, weights=w))
    own, best, base = (np.average(loss(y, q), weights=w) for q in forecasts)
    return own, own - best, base - best, base


def log_rows(y, q):
    q = np.clip(q, 2.0**-52, 1 - 2.0**-52)
    return -y * np.log(q) - (1 - y) * np.log1p(-q)


@QUICK
@given(samples())
def test_corp_equals_its_definition_adds_up_and_is_never_negative(sample):
    for name, loss in (("brier", lambda y, q: (y - q) ** 2), ("log", log_rows)):
        split = corp(*sample, score=name)
        assert tuple(split.to_dict().values()) == pytest.approx(direct(*sample, loss), rel=1e-11, abs=1e-13)
        total = split.miscalibration - split.discrimination + split.uncertainty
        assert total == pytest.approx(split.score, rel=1e-14, abs=1e-15)
        assert min(split.miscalibration, split.discrimination) >= -1e-13
    assert corp(*sample).score == brier(*sample)


def test_a_perfect_forecast_has_no_miscalibration_and_all_discrimination():
    for name, uncertainty in (("brier", 0.25), ("log", LN(2))):
        split = corp([0, 1], [0, 1], score=name)
        assert split.miscalibration == pytest.approx(0, abs=1e-15)
        assert split.discrimination == split.uncertainty == pytest.approx(uncertainty)


def test_log_decomposition_is_finite_for_blocks_near_one():
    split = corp([0, 1, 1], [0.75, 0.5, 0.5], [1e-20, 1, 1], score="log")
    assert np.isfinite(list(split.to_dict().values())).all()
    assert split.discrimination == pytest.approx(0, abs=1e-15)


def test_unknown_scores_are_rejected():
    with pytest.raises(ArgumentError, match="'brier', 'log'; got 'crps'"):
        corp([0, 1], [0.5, 0.5], score="crps")


# --- slope and intercept


def test_two_scores_are_fitted_exactly():
    # Rates 1/4 at logit -ln 2 (p = 1/3) and 3/4 at ln 2: the line through -ln 3 and ln 3 has slope ln 3 / ln 2.
    y, p = [1, 0, 0, 0, 1, 1, 1, 0], [1 / 3] * 4 + [2 / 3] * 4
    fit = slope_intercept(y, p)
    assert fit.slope == pytest.approx(LN(3) / LN(2), rel=1e-12)
    assert fit.intercept == pytest.approx(0, abs=1e-12)
    assert fit.calibration_in_the_large == pytest.approx(0, abs=1e-12)
    # Var logit rate = 1 / (n r (1 - r)) = 4/3 at each: 2/3 for the half sum, and over (ln 2)^2 for the half difference.
    assert fit.intercept_se == pytest.approx(math.sqrt(2 / 3), rel=1e-12)
    assert fit.slope_se == pytest.approx(math.sqrt(2 / 3) / LN(2), rel=1e-12)
    # With slope 1: A = 8 (1/3)(2/3) = 16/9; B = 2 (1 (2/3)^2 + 3 (1/3)^2) = 14/9.
    assert fit.calibration_in_the_large_se == pytest.approx(math.sqrt(14 / 9) / (16 / 9), rel=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_the_fit_solves_its_equations_and_the_errors_are_the_sandwich(seed):
    y, p, w = drawn(seed, slope=0.7, intercept=0.3)
    fit = slope_intercept(y, p, w)
    for beta, X, offset in (
        ((fit.intercept, fit.slope), np.column_stack([np.ones(len(p)), logit(p)]), 0.0),
        ((fit.calibration_in_the_large,), np.ones((len(p), 1)), logit(p)),
    ):
        m = expit(X @ np.array(beta) + offset)
        np.testing.assert_allclose(X.T @ (w * (y - m)), 0, atol=1e-9)
        A, B = (X.T @ (X * v[:, None]) for v in (w * m * (1 - m), (w * (y - m)) ** 2))
        cov = np.linalg.inv(A) @ B @ np.linalg.inv(A)
        result = (fit.intercept_se, fit.slope_se) if len(beta) == 2 else (fit.calibration_in_the_large_se,)
        np.testing.assert_allclose(result, np.sqrt(np.diag(cov)), rtol=1e-9)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.repeated(200, 1000)
def test_slope_and_intercept_intervals_have_their_coverage(weighted, repetitions):
    rng = np.random.default_rng(7)
    n, slope, intercept = 1500, 0.8, 0.3
    inside = np.zeros(3)
    for _ in range(repetitions):
        p = rng.uniform(0.05, 0.95, n)
        y = rng.random(n) < expit(intercept + slope * logit(p))
        separate = rng.random(n) < expit(intercept + logit(p))
        w = rng.exponential(size=n) if weighted else None  # independent of the outcome: the same truth, more noise
        fit, large = slope_intercept(y, p, w), slope_intercept(separate, p, w)
        inside[0] += abs(fit.slope - slope) < 1.96 * fit.slope_se
        inside[1] += abs(fit.intercept - intercept) < 1.96 * fit.intercept_se
        inside[2] += abs(large.calibration_in_the_large - intercept) < 1.96 * large.calibration_in_the_large_se
    # Half a percent for the sandwich estimator, which is slightly small in finite samples.
    assert (np.abs(inside / repetitions - 0.95) < three_se(0.95, repetitions) + 0.005).all()


def test_soft_outcomes_on_the_line_are_fitted_without_error():
    p = np.linspace(0.1, 0.9, 9)
    fit = slope_intercept(expit(0.5 + 2 * logit(p)), p)
    assert (fit.slope, fit.intercept) == pytest.approx((2, 0.5), rel=1e-10)
    assert max(fit.slope_se, fit.intercept_se) < 1e-10


def test_scores_of_zero_and_one_are_clipped():
    y, p = np.array([0, 1, 1, 0, 1]), np.array([0, 0, 0.5, 1, 1])
    assert slope_intercept(y, p) == slope_intercept(y, np.clip(p, 1e-6, 1 - 1e-6))


def test_a_hard_start_still_converges():
    # Far too low and far too extreme: full Newton steps would overshoot.
    y, p = np.array([1, 1, 0, 1] * 50), np.tile([1e-6, 2e-6, 3e-6, 4e-6], 50)
    assert slope_intercept(y, p).calibration_in_the_large > 13
    p = np.tile([1e-6, 1 - 1e-6], 100)
    y = (p > 0.5).astype(float)
    y[:2] = 1 - y[:2]
    assert slope_intercept(y, p).slope == pytest.approx(LN(99) / logit(1 - 1e-6), rel=1e-9)


@pytest.mark.parametrize(
    ("y", "p"),
    [
        ([0, 0, 1, 1], [0.1, 0.2, 0.3, 0.4]),
        ([1, 1, 0, 0], [0.1, 0.2, 0.3, 0.4]),
        ([0, 0, 1, 1], [0.1, 0.2, 0.2, 0.4]),
        ([0, 0.5, 1], [0.1, 0.2, 0.4]),
    ],
)
def test_separated_outcomes_are_rejected(y, p):
    with pytest.raises(DataError, match="one score separates the outcomes"):
        slope_intercept(y, p)


def test_negligible_weights_do_not_prevent_separation():
    with pytest.raises(DataError, match="one score separates the outcomes"):
        slope_intercept([0, 0, 1, 1, 0], [0.1, 0.2, 0.3, 0.4, 0.5], [1, 1, 1, 1, 1e-20])
    assert slope_intercept([0, 0, 1, 1, 0], [0.1, 0.2, 0.3, 0.4, 0.5], [1, 1, 1, 1, 1e-6]).slope > 10


def test_one_class_and_one_score_are_rejected():
    for y in ([0, 0], [1, 1]):
        with pytest.raises(DataError, match=f"every outcome is {y[0]}"):
            slope_intercept(y, [0.2, 0.7])
    with pytest.raises(DataError, match="every score is the same"):
        slope_intercept([0, 1], [0.5, 0.5])


# --- observed over expected


def test_observed_over_expected_by_hand():
    result = observed_expected([1, 0, 0, 1], [0.5, 0.25, 0.25, 0.25], [1, 2, 1, 2])
    # Kish's size of the weights 1, 2, 1, 2 is 36 / 10.
    low, high = wilson(np.array([0.5]), np.array([3.6]), 0.05)
    assert (result.observed, result.expected) == pytest.approx((0.5, 1.75 / 6))
    assert (result.ratio, result.low, result.high) == pytest.approx((12 / 7, low[0] * 24 / 7, high[0] * 24 / 7))


def test_no_events_still_have_an_upper_limit():
    result = observed_expected([0] * 10, [0.25] * 10)
    assert (result.ratio, result.low) == (0, 0)
    assert result.high == pytest.approx(4 * 0.27754, rel=1e-3)


def test_smaller_alpha_is_wider_and_invalid_alpha_is_rejected():
    y, p, w = drawn(8)
    assert observed_expected(y, p, w, alpha=0.01).high > observed_expected(y, p, w).high
    for alpha in (0, 1, math.nan):
        with pytest.raises(ArgumentError, match="alpha"):
            observed_expected(y, p, alpha=alpha)
    with pytest.raises(DataError, match="every score is 0"):
        observed_expected([0, 1], [0, 0])


# --- Hosmer and Lemeshow


def test_hosmer_lemeshow_by_hand():
    # Bins {.2, .2} and {.5, .5}: gaps .6 and 0 over .32 and .5; weights 2 and 1: gaps 1.4 over .8.
    test = hosmer_lemeshow([1, 0, 1, 0], [0.2, 0.2, 0.5, 0.5], n_bins=2)
    assert (test.statistic, test.degrees_of_freedom, test.bins) == (pytest.approx(0.36 / 0.32), 2, 2)
    assert test.p_value == pytest.approx(math.exp(-0.36 / 0.64))  # the tail of chi-squared with 2 degrees of freedom
    test = hosmer_lemeshow([1, 0, 1, 0], [0.2, 0.2, 0.5, 0.5], [2, 1, 1, 1], n_bins=2)
    assert test.statistic == pytest.approx(1.4**2 / 0.8)


def test_hosmer_lemeshow_bins_never_split_ties():
    p = np.arange(1, 101) / 101
    y = np.zeros(100)
    bins = p.reshape(10, 10)
    expected = (bins.sum(axis=1) ** 2 / (bins * (1 - bins)).sum(axis=1)).sum()
    assert hosmer_lemeshow(y, p).statistic == pytest.approx(expected, rel=1e-12)
    tied = np.repeat([0.25, 0.5, 0.75], [30, 50, 20])
    test = hosmer_lemeshow(np.zeros(100), tied)
    assert (test.bins, test.degrees_of_freedom) == (3, 3)
    assert test.statistic == pytest.approx(sum(n * q / (1 - q) for n, q in ((30, 0.25), (50, 0.5), (20, 0.75))))


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.repeated(600, 2000)
def test_hosmer_lemeshow_pvalues_are_uniform_under_calibration(weighted, repetitions):
    rng = np.random.default_rng(9)
    n = 2000
    result = np.empty(repetitions)
    for at in range(repetitions):
        p = rng.beta(1, 3, n)
        w = rng.uniform(0.5, 2, n) if weighted else None
        result[at] = hosmer_lemeshow(rng.random(n) < p, p, w).p_value
    for level in (0.05, 0.25, 0.5, 0.75, 0.95):
        assert abs((result <= level).mean() - level) < three_se(level, repetitions) + 0.01


def test_fitted_scores_lose_two_degrees_of_freedom():
    y, p, _ = drawn(10)
    out, own = hosmer_lemeshow(y, p), hosmer_lemeshow(y, p, fitted=True)
    assert (out.degrees_of_freedom, own.degrees_of_freedom) == (10, 8)
    assert own.statistic == out.statistic
    assert own.p_value < out.p_value


def test_certain_scores_add_no_degree_of_freedom_unless_contradicted():
    y, p = np.repeat([0, 0, 1, 1], 5), np.repeat([0, 0.5, 0.5, 1], 5)
    right = hosmer_lemeshow(y, p, n_bins=4)
    assert (right.statistic, right.degrees_of_freedom) == (0, 1)
    wrong = hosmer_lemeshow(1 - y, p, n_bins=4)
    assert (wrong.statistic, wrong.p_value) == (math.inf, 0)
    assert wrong.to_dict()["statistic"] is None


def test_too_few_bins_are_rejected():
    with pytest.raises(DataError, match="too few bins to test: 2"):
        hosmer_lemeshow([0, 1, 1], [0.2, 0.5, 0.5], fitted=True)
    with pytest.raises(DataError, match="too few bins to test: 0"):
        hosmer_lemeshow([0, 1], [0, 1])
    for n_bins in (0, 2.5, True):
        with pytest.raises(ArgumentError, match="n_bins"):
            hosmer_lemeshow([0, 1], [0.2, 0.7], n_bins=n_bins)


# --- prediction-rejection ratio


@QUICK
@given(samples())
def test_prr_equals_the_count_over_pairs(sample):
    error, confidence, w = sample
    won = lost = total = 0.0
    for i, j in itertools.product(range(len(error)), repeat=2):
        mass = w[i] * w[j] * error[i] * (1 - error[j])
        total += mass
        won += mass * (confidence[i] < confidence[j])
        lost += mass * (confidence[i] > confidence[j])
    rate = np.average(error, weights=w)
    assume(0 < rate < 1)
    assert prr(error, confidence, w) == pytest.approx((won - lost) / total, rel=1e-11, abs=1e-13)


def test_prr_equals_the_areas_of_its_definition():
    rng = np.random.default_rng(11)
    n = 200
    confidence = rng.permutation(n) / n
    error = rng.random(n) < 0.7 - 0.5 * confidence
    rate = error.mean()
    # Errors kept, over n, against the share rejected, the least confident first: trapezoids of width 1/n.
    kept = np.append(error.sum() - np.append(0, np.cumsum(error[np.argsort(confidence)])[:-1]), 0) / n
    area = np.sum((kept[1:] + kept[:-1]) / 2) / n
    assert prr(error, confidence) == pytest.approx((rate / 2 - area) / (rate * (1 - rate) / 2), rel=1e-12)


def test_prr_of_the_best_worst_and_constant_confidence():
    assert prr([1, 1, 0, 0, 0], [-5, -4, 3, 8, 9]) == 1
    assert prr([0, 0, 1], [0.1, 0.2, 0.3]) == -1
    assert prr([0, 1, 0, 1], [0.5] * 4) == 0


def test_prr_is_nan_if_all_are_correct_or_wrong():
    assert math.isnan(prr([0, 0], [0.1, 0.2]))
    assert math.isnan(prr([1, 1], [0.1, 0.2]))
    assert math.isnan(prr([1, 0], [0.1, 0.2], [1, 0]))
    with pytest.raises(DataError, match=r"error must lie in \[0, 1\]; got 2 at row 1"):
        prr([0, 2], [0.1, 0.2], [0, 1])


# --- several classes


def test_scores_of_classes_are_sums_over_classes():
    random = np.random.default_rng(4)
    P = random.dirichlet([1.0, 2.0, 0.5], 300)
    y, w = random.integers(0, 3, 300), random.integers(0, 4, 300).astype(float)
    hot = np.eye(3)[y]
    assert log_loss(y, P, w) == pytest.approx(-np.average(np.log((P * hot).sum(axis=1)), weights=w), rel=1e-12)
    assert brier(y, P, w) == pytest.approx(np.average(((P - hot) ** 2).sum(axis=1), weights=w), rel=1e-12)
    p = P[:, 0]
    both = np.column_stack([1 - p, p])
    event = (y == 0).astype(float)
    assert log_loss(event, both) == pytest.approx(log_loss(event, p), rel=1e-12)
    assert brier(event, both) == pytest.approx(2 * brier(event, p), rel=1e-12)
    assert brier([0, 1], np.eye(2)) == 0.0
    assert log_loss([1], [[1.0, 0.0]]) == pytest.approx(-LN(np.finfo(float).eps))
    assert log_loss([1], [[1.0, 0.0]], eps=0) == math.inf
    for measure in (log_loss, brier):
        with pytest.raises(DataError, match="y must hold class indices 0 to 1; got 2"):
            measure([2, 0], [[0.5, 0.5], [0.3, 0.7]])
        with pytest.raises(DataError, match="add up to 1"):
            measure([1, 0], [[0.5, 0.6], [0.3, 0.7]])


@pytest.mark.parametrize("measure", [log_loss, brier])
def test_scores_of_unequal_lengths_are_rejected(measure):
    with pytest.raises(DataError, match="p must hold numbers"):
        measure([0, 1], [[0.2, 0.8], [0.1]])


def test_complex_numbers_are_rejected():
    with pytest.raises(DataError, match="p must hold real numbers; got complex128"):
        brier([0, 1], np.array([0.2, 0.3 + 1j]))
