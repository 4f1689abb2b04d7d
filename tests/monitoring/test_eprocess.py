"""Evidence of a segment: the recursion against its definition, and intervals that hold at all times."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trueup.kernels._jit import plain
from trueup.kernels.sequential import EXTRA_COLUMNS, SCALE, add_clusters, add_rows, row_factors
from trueup.monitoring.eprocess import (
    HALF_LIFE_WEEKS,
    EProcesses,
    alternatives,
    quantise,
    ratio_interval,
)

C = HALF_LIFE_WEEKS


def factors_twin(y, p, centre, tolerance=1.0):
    """The log likelihood ratio of every alternative, term by term as defined."""
    grid = alternatives()
    logit = math.log(p / (1 - p))
    out = []
    for shift, slope in zip(grid.shifts, grid.slopes, strict=True):
        move = shift + (slope - 1) * (logit - centre)
        q = min(1.0, p * tolerance) if move > 0 else p / tolerance
        out.append(math.log(1 + y * (math.exp(move) - 1)) - math.log(1 + q * (math.exp(move) - 1)))
    return np.array(out)


def row_table(y, p, centre=-2.0, tolerance=1.0, odds=1.0):
    grid = alternatives()
    out = np.empty((len(y), len(grid) + EXTRA_COLUMNS))
    row_factors(np.asarray(y, float), np.asarray(p, float), grid.shifts, grid.slopes, centre, tolerance, odds, out)
    return out


def test_weights_of_alternatives_add_up_to_one():
    grid = alternatives()
    assert len(grid) == 24
    assert np.exp(grid.log_weights).sum() == pytest.approx(1.0, abs=1e-12)
    assert np.exp(grid.log_weights)[18:].sum() == pytest.approx(0.2, abs=1e-12)


@pytest.mark.parametrize("tolerance", [1.0, 1.1])
def test_factors_are_those_of_the_definition(tolerance):
    y, p = [0.0, 1.0, 0.3, 1.0], [0.02, 0.4, 0.9, 0.999]
    table = row_table(y, p, tolerance=tolerance)
    for row in range(4):
        assert table[row, :24] == pytest.approx(factors_twin(y[row], p[row], -2.0, tolerance), rel=1e-9, abs=1e-12)
        assert table[row, 24:].tolist() == [y[row], p[row], 1.0, 0.0]


@pytest.mark.parametrize("p", [1e-12, 0.003, 0.5, 0.97])
def test_mean_likelihood_ratio_is_one_for_calibrated_scores(p):
    table = np.exp(row_table([0.0, 1.0], [p, p])[:, :24])
    assert (1 - p) * table[0] + p * table[1] == pytest.approx(np.ones(24), rel=1e-9)


@pytest.mark.parametrize("truth", [0.91, 1.0, 1.1])
def test_mean_likelihood_ratio_is_at_most_one_within_the_tolerance(truth):
    table = np.exp(row_table([0.0, 1.0], [0.2, 0.2], tolerance=1.1)[:, :24])
    q = 0.2 * truth
    assert ((1 - q) * table[0] + q * table[1]).max() <= 1 + 1e-12


@pytest.mark.parametrize("odds", [0.1, 7.0])
@pytest.mark.parametrize("truth", [1 / 1.1, 1.0, 1.1])
def test_a_tolerance_is_that_of_the_scores_before_sampling(odds, truth):
    def moved(p):
        return p * odds / (p * odds + 1 - p)

    table = np.exp(row_table([0.0, 1.0], [moved(0.6)] * 2, tolerance=1.1, odds=odds)[:, :24])
    q = moved(0.6 * truth)
    means = (1 - q) * table[0] + q * table[1]
    assert means.max() <= 1 + 1e-9
    if truth != 1:  # at the edge of the tolerance the mean is 1 for the alternatives beyond it
        assert (means > 1 - 1e-9).sum() >= 9


def test_certain_scores_have_no_factor_and_count_contradictions():
    table = row_table([1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 0.0, 1.0])
    assert not table[:, :24].any()
    assert table[:, 27].tolist() == [1.0, 1.0, 0.0, 0.0]


def test_rows_are_added_to_their_segments_as_exact_integers():
    rng = np.random.default_rng(0)
    factors = rng.normal(size=(200, 28))
    segments = rng.integers(-1, 5, size=(3, 200)).astype(np.int32)
    sums, again = np.zeros((5, 28), np.int64), np.zeros((5, 28), np.int64)
    add_rows(segments, factors, sums)
    order = rng.permutation(200)
    plain(add_rows)(segments[:, order], factors[order], again)
    expected = sum(np.stack([quantise(factors[segments[c] == s]).sum(axis=0) for s in range(5)]) for c in range(3))
    assert np.array_equal(sums, expected)
    assert np.array_equal(again, expected)


def test_a_cluster_counts_as_its_mean_likelihood_ratio():
    rng = np.random.default_rng(1)
    factors = rng.normal(size=(12, 28))
    segment = np.array([0, 0, 0, 1, 1, 1, -1, 1, 0, 0, -1, 1], np.int32)
    cluster = np.array([0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3, 3], np.int32)
    sums = np.zeros((2, 28), np.int64)
    add_clusters(segment, cluster, np.argsort(segment, kind="stable"), factors, EXTRA_COLUMNS, sums)
    for own in range(2):
        groups = [factors[(segment == own) & (cluster == c)] for c in range(4)]
        expected = sum(np.log(np.exp(group[:, :24]).mean(axis=0)) for group in groups if len(group))
        assert sums[own, :24] / SCALE == pytest.approx(expected, abs=1e-6)
        means = sum(group[:, 24:27].mean(axis=0) for group in groups if len(group))
        assert sums[own, 24:27] / SCALE == pytest.approx(means, abs=1e-6)
        assert sums[own, 27] / SCALE == pytest.approx(factors[segment == own, 27].sum(), abs=1e-6)


def run_periods(factors, budget="life"):
    """Close one period per array row of factors, of one segment and a week each."""
    processes = EProcesses.empty(1)
    evidence = []
    for week, row in enumerate(factors):
        sums = quantise(np.append(row, [1.0, 1.0, 10.0, 0.0]))[None]
        processes.close(sums, week, float(week), week + 1.0, np.full(1, math.log(1e9)), budget)
        evidence.append(processes.evidence[0])
    return processes, np.array(evidence)


def test_evidence_is_the_mixture_over_alternatives_and_onsets():
    rng = np.random.default_rng(2)
    factors = rng.normal(scale=0.3, size=(9, 24))
    weights = np.exp(alternatives().log_weights)
    _, evidence = run_periods(factors)
    for weeks in range(1, 10):
        steady = weights @ np.exp(factors[:weeks].sum(axis=0))
        changed = sum(
            (C / (C + k) - C / (C + k + 1)) * (weights @ np.exp(factors[k:weeks].sum(axis=0))) for k in range(weeks)
        )
        expected = 0.5 * steady + 0.5 * (changed + C / (C + weeks))
        assert evidence[weeks - 1] == pytest.approx(math.log(expected), abs=1e-6)


def test_yearly_budget_spends_a_week_at_a_time():
    factors = np.random.default_rng(3).normal(scale=0.3, size=(5, 24))
    weights = np.exp(alternatives().log_weights)
    _, evidence = run_periods(factors, "year")
    expected = sum(weights @ np.exp(factors[k:].sum(axis=0)) / 52 for k in range(5))
    assert evidence[-1] == pytest.approx(math.log(expected), abs=1e-6)


def test_onset_is_where_the_best_shift_began_to_rise():
    factors = np.full((8, 24), -0.5)
    factors[5:, 7] = 2.0
    processes, _ = run_periods(factors)
    period, shift, (outcomes, expected, rows) = processes.onset(0)
    assert (period, shift, outcomes, expected, rows) == (5, 7, 3.0, 3.0, 30.0)


def test_interval_of_the_ratio_contains_it_and_shrinks():
    widths = []
    for rows in (200, 2_000, 20_000):
        low, high = ratio_interval(0.12 * rows, 0.1 * rows, rows, 0.1)
        assert low < 1.2 < high
        widths.append(high - low)
    assert widths[0] > widths[1] > widths[2]
    assert ratio_interval(0, 0, 0, 0.1) == (0.0, math.inf)
    low, high = ratio_interval(0, 10, 100, 0.1)
    assert low == 0
    assert high < 1


@pytest.mark.repeated(40, 2000)
def test_interval_of_the_ratio_holds_at_all_times(repetitions):
    rng = np.random.default_rng(4)
    missed = 0
    for _ in range(repetitions):
        outcomes = rng.binomial(40, 0.05 * 1.4, size=60).cumsum()
        rows = 40 * np.arange(1, 61)
        intervals = [ratio_interval(float(o), 0.05 * n, float(n), 0.1) for o, n in zip(outcomes, rows, strict=True)]
        missed += any(not low <= 1.4 <= high for low, high in intervals)
    assert missed <= 0.1 * repetitions + 3 * math.sqrt(0.09 * repetitions)
