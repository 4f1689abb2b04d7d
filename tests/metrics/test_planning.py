"""Power of audits and monitors for errors of known size: against simulations, and worked by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trueup.kernels import tails
from trueup.metrics import inference
from trueup.metrics.planning import (
    PlannedScores,
    ScoreError,
    alarm_cost,
    audit_share,
    detectable_error,
    monitor_share,
)
from twins import three_se


def _simulated_power(p, shift, level, draws, seed=0):
    """Return the share of draws of the outcomes of sorted scores whose default p-value is at most the level."""
    random = np.random.default_rng(seed)
    q = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + shift)))
    v, k3 = (p * (1 - p)).sum(), (p * (1 - p) * (1 - 2 * p)).sum()
    found = []
    for _ in range(draws // 100):
        path = np.zeros((100, len(p) + 1))
        np.cumsum((random.random((100, len(p))) < q) - p, axis=1, out=path[:, 1:])
        low = np.minimum.accumulate(path, axis=1)
        span, rise = path.max(axis=1) - low[:, -1], (path - low).max(axis=1)
        found.append(inference.segment_pvalues(span, rise, np.full(100, v), np.full(100, k3)) <= level)
    return np.mean(found)


def _quantiles(distribution, rows):
    edges = np.cumsum(distribution.mass)
    return np.interp((np.arange(rows) + 0.5) / rows, edges - distribution.mass / 2, distribution.scores)


@pytest.mark.repeated(600, 4000)
@pytest.mark.parametrize(
    ("prevalence", "ratio", "level"), [(0.02, 2.0, 1e-4), (0.1, 1.5, 1e-6), (0.5, 1.25, 1e-2), (0.5, 0.8, 1e-4)]
)
def test_the_planned_rows_have_80_percent_power(prevalence, ratio, level, repetitions):
    distribution = PlannedScores.logit_normal(prevalence, 1.0)
    error = ScoreError.of_ratio(distribution, ratio)
    rows = math.ceil(error.audit_rows(level, 0.8))
    p = np.sort(_quantiles(distribution, rows))
    assert abs(_simulated_power(p, error.shift, level, repetitions) - 0.8) <= 0.03 + three_se(0.8, repetitions)


@pytest.mark.repeated(600, 4000)
@pytest.mark.parametrize(("rows", "rate", "level"), [(300, 0.005, 1e-3), (400, 0.02, 1e-6), (200, 0.3, 1e-3)])
def test_the_detectable_shift_of_weighted_rows_has_80_percent_power(rows, rate, level, repetitions):
    random = np.random.default_rng(3)
    p, w = np.full(rows, rate), random.choice([1.0, 2.0], rows)
    v, k3 = (w**2 * p * (1 - p)).sum(), (w**3 * p * (1 - p) * (1 - 2 * p)).sum()
    reach = tails.detectable(v, k3, inference.range_quantile(level), inference.range_quantile(level, inflated=True))
    shift = tails.detectable_shift(v, k3, reach, (w**2).sum() / w.sum() ** 2, inference.Z_POWER) / w.sum()
    e = w * ((random.random((repetitions, rows)) < rate + shift) - p)
    path = np.concatenate([np.zeros((repetitions, 1)), np.cumsum(e, axis=1)], axis=1)  # as of scores that hardly differ
    low = np.minimum.accumulate(path, axis=1)
    span, rise = path.max(axis=1) - low[:, -1], (path - low).max(axis=1)
    found = inference.segment_pvalues(span, rise, np.full(repetitions, v), np.full(repetitions, k3))
    assert abs(np.mean(found <= level) - 0.8) <= 0.05 + three_se(0.8, repetitions)


@pytest.mark.parametrize("scores", [np.linspace(0.1, 0.5, 300), np.repeat(np.linspace(0.1, 0.5, 5), 20), np.full(9, 0.3)])
def test_the_formula_agrees_with_simulations_of_few_rows_also_of_few_distinct_scores(scores):
    error = ScoreError.of_ratio(PlannedScores.of(scores), 1.5)
    assert error.simulated_power(120, 0.01) == pytest.approx(error.power(120, 0.01), abs=0.03)


def test_power_grows_with_rows_and_with_the_error():
    distribution = PlannedScores.logit_normal(0.05, 1.0)
    for up in (True, False):
        shifts = np.geomspace(1e-4, 6.0, 40) * (1 if up else -1)
        powers = [ScoreError.of_shift(distribution, shift).power(2000, 1e-3) for shift in shifts]
        assert (np.diff(powers) >= -1e-6).all()
        assert powers[0] < 0.05
    error = ScoreError.of_ratio(distribution, 1.2)
    assert (np.diff([error.power(rows, 1e-3) for rows in np.geomspace(10, 1e6, 40)]) >= -1e-6).all()


def test_rows_error_and_power_are_inverse_to_each_other():
    distribution = PlannedScores.logit_normal(0.1, 0.7)
    for ratio in (0.6, 1.4):
        error = ScoreError.of_ratio(distribution, ratio)
        rows = error.audit_rows(1e-3, 0.8)
        assert error.ratio == pytest.approx(ratio)
        assert error.power(rows, 1e-3) == pytest.approx(0.8, abs=1e-6)
        found = detectable_error(distribution, ratio > 1, lambda one, rows=rows: one.power(rows, 1e-3), 0.8)
        assert found.ratio == pytest.approx(ratio, rel=1e-3)
        cost = alarm_cost(1e-3)
        assert error.monitor_power(error.monitor_rows(cost, 0.8), cost) == pytest.approx(0.8)


def test_the_moments_of_an_error_are_those_of_its_rows():
    p = np.array([0.1, 0.3, 0.6])
    error = ScoreError.of_shift(PlannedScores.of(p), 0.5)
    q = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + 0.5)))
    assert error.moved == pytest.approx((q - p).mean())
    assert error.raised == pytest.approx((q * (1 - q)).mean() + (q - p).var())
    assert error.divergence == pytest.approx((q * np.log(q / p) + (1 - q) * np.log((1 - q) / (1 - p))).mean())
    # E log(1 + q (e^-a - 1)) + a E p = 0 at a = 2 / beyond
    a = 2 / error.beyond
    assert np.log1p(q * np.expm1(-a)).mean() + a * p.mean() == pytest.approx(0.0, abs=1e-8)


def test_many_scores_are_grouped_without_moving_their_mean():
    p = np.random.default_rng(0).beta(1, 20, 30_001)
    distribution = PlannedScores.of(p)
    assert len(distribution.scores) <= 400
    assert distribution.mean == pytest.approx(p.mean(), rel=1e-12)
    assert distribution.expect(distribution.scores * (1 - distribution.scores)) == pytest.approx(
        (p * (1 - p)).mean(), rel=1e-3
    )


@pytest.mark.parametrize("s", [1.0, -1.0])
def test_the_refined_reach_is_that_of_the_saddlepoint(s):
    p = np.linspace(0.002, 0.08, 200)
    x = PlannedScores.of(p).refined_reach(4.0**2 / (2 * 200), s) * 200
    assert tails.saddlepoint(p, np.empty(0), x, s) == pytest.approx(4.0, rel=2e-4)


def test_an_outcome_that_cannot_get_rare_enough_is_not_refined():
    # All outcomes zero have probability exp(-20 * 0.01): no deviate of 4.
    assert math.isinf(PlannedScores.of(np.full(20, 0.01)).refined_reach(4.0**2 / 40, -1.0))


@pytest.mark.parametrize(("depth", "combined", "share"), [(2, 1, 1 / 90), (1, 1, 1 / 60), (2, 2, 1 / 450), (2, 0, 1 / 3)])
def test_shares_of_alpha_are_those_of_an_audit(depth, combined, share):
    # Three columns of 10, 5 and 4 levels: 1/(depth + 1) per depth, equal shares per combination and per segment of it.
    assert audit_share([4, 10, 5], depth, combined) == pytest.approx(share)


def test_shares_of_alpha_of_a_monitor():
    assert monitor_share([], 2, 0, 0) == 1.0
    assert monitor_share([], 2, 0, 5) == monitor_share([10, 5], 2, 0, 5) == 0.1
    # 0.45 for single columns, a third of it for one of two and the score bands, 90% of that for segments that are known, and
    # 1/11 for one of ten levels and the pool.
    assert monitor_share([10, 5], 2, 1, 5) == pytest.approx(0.45 / 3 * 0.9 / 11)
    assert monitor_share([10, 5], 2, 2, 5) == pytest.approx(0.45 / 3 * 0.9 / 50)
    assert monitor_share([10], 2, 1, 0) == pytest.approx(0.9 * 0.9 / 11)


def test_the_cost_of_an_alarm_is_worked_by_hand():
    assert alarm_cost(0.01) == pytest.approx(math.log(100) + 2.6)
    assert alarm_cost(0.01, 1) == pytest.approx(math.log(100) + 0.4 + math.log(27))


@pytest.mark.repeated(400, 2000)
@pytest.mark.parametrize("change", [None, 20])
def test_a_monitor_raises_its_alarm_within_the_planned_rows(change, repetitions):
    """One level of scores, the recursion week by week; the true shift is one of the alternatives or lies between them."""
    random = np.random.default_rng(5)
    p, level = 0.1, 1e-3
    error = ScoreError.of_ratio(PlannedScores(np.array([p]), np.ones(1)), 1.4)
    rows = error.monitor_rows(alarm_cost(level, change), 0.8)
    weekly, onset = math.ceil(rows / 20), 0 if change is None else change - 1
    weights = np.array(2 * [0.25, 0.5, 1, 2, 2, 2, 1, 0.5, 0.25])
    shifts = np.array([s * 0.0125 * 2.0**k for s in (1, -1) for k in range(9)])
    prior = np.log(0.8 * weights / weights.sum())
    steady, changed = np.zeros((repetitions, 18)), np.full((repetitions, 18), -np.inf)
    alarm = np.zeros(repetitions, bool)
    for week in range(1, onset + 21):
        rate = p * error.ratio if week > onset else p
        factor = random.binomial(weekly, rate, repetitions)[:, None] * shifts - weekly * np.log1p(p * np.expm1(shifts))
        steady += factor
        changed = np.logaddexp(changed, math.log(26 / ((25 + week) * (26 + week)))) + factor
        both = np.logaddexp.reduce(np.concatenate([steady + prior, changed + prior], axis=1), axis=1)
        alarm |= (np.logaddexp(both, math.log(26 / (26 + week))) - math.log(2) >= -math.log(level)) & (week > onset)
    assert 0.75 - three_se(0.8, repetitions) <= alarm.mean() <= 0.92 + three_se(0.8, repetitions)
