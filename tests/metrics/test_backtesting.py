"""Measures of the validation of credit scores: Gini, KS, PSI, and tests of a default rate."""

from __future__ import annotations

import math
from itertools import product

import numpy as np
import pytest
from scipy import stats

from trueup import metrics
from trueup.errors import ArgumentError, DataError
from trueup.metrics.backtesting import ScoreDistribution, compare_distributions, sample_distribution, separate
from trueup.metrics.inputs import Scored


def drawn(rows=400, seed=0, digits=2):
    """Draw outcomes, scores with ties and weights."""
    random = np.random.default_rng(seed)
    p = np.round(random.beta(2, 5, rows), digits)
    return (random.random(rows) < p).astype(float), p, random.integers(1, 4, rows).astype(float)


# Gini and KS


def test_gini_counts_pairs():
    y, p, _ = drawn(120)
    pairs = [np.sign(a - b) for a, b in product(p[y == 1], p[y == 0])]
    assert metrics.gini(y, p) == pytest.approx(np.mean(pairs), abs=1e-12)


def test_ks_equals_that_of_scipy():
    y, p, _ = drawn()
    assert metrics.ks(y, p) == pytest.approx(stats.ks_2samp(p[y == 1], p[y == 0]).statistic, abs=1e-12)


@pytest.mark.parametrize("measure", [metrics.gini, metrics.ks])
def test_ranking_depends_on_the_order_of_the_scores_alone(measure):
    y, p, w = drawn()
    copies = np.repeat(np.arange(len(y)), w.astype(int))
    assert measure(y, p, w) == pytest.approx(measure(y[copies], p[copies]), abs=1e-12)
    assert measure(y, p, w) == pytest.approx(measure(y, 3 * p - 7, w), abs=1e-12)
    order = np.random.default_rng(1).permutation(len(y))
    assert measure(y, p, w) == pytest.approx(measure(y[order], p[order], w[order]), abs=1e-12)


def test_ranking_has_the_sign_of_the_order():
    y = [0, 0, 1, 1]
    assert metrics.gini(y, [1, 2, 3, 4]) == 1.0
    assert metrics.gini(y, [4, 3, 2, 1]) == -1.0
    assert metrics.ks(y, [1, 2, 3, 4]) == metrics.ks(y, [4, 3, 2, 1]) == 1.0
    assert metrics.gini(y, [1, 1, 1, 1]) == metrics.ks(y, [1, 1, 1, 1]) == 0.0


@pytest.mark.parametrize("outcome", [0, 1])
def test_one_outcome_has_no_ranking(outcome):
    assert math.isnan(metrics.gini([outcome] * 3, [0.1, 0.2, 0.3]))
    assert math.isnan(metrics.ks([outcome] * 3, [0.1, 0.2, 0.3]))


def test_outcomes_of_a_ranking_are_probabilities():
    with pytest.raises(DataError, match=r"y must lie in \[0, 1\]; got 2"):
        metrics.gini([0, 2], [0.1, 0.2])


def test_the_standard_error_of_gini_is_that_of_delong():
    y, p, _ = drawn(150)
    events, others = p[y == 1], p[y == 0]
    wins = (events[:, None] > others) + 0.5 * (events[:, None] == others)
    variance = wins.mean(axis=1).var(ddof=1) / len(events) + wins.mean(axis=0).var(ddof=1) / len(others)
    found = separate(Scored(y, p, np.ones(len(y))))
    assert found.gini_se == pytest.approx(2 * math.sqrt(variance), rel=1e-12)
    drawings = [separate(Scored(*drawn(300, seed=seed, digits=6)[:2], np.ones(300))) for seed in range(200)]
    spread = np.std([one.gini for one in drawings])
    # The standard deviation of 200 draws has a relative standard error of 1/20.
    assert np.mean([one.gini_se for one in drawings]) == pytest.approx(spread, rel=0.15)


# PSI


def test_psi_equals_the_plain_formula():
    random = np.random.default_rng(0)
    reference, current = random.beta(2, 8, 5_000), random.beta(2.3, 8, 3_000)
    edges = np.sort(reference)[np.arange(500, 5_000, 500) - 1]  # the last score of every tenth
    r, c = (
        np.histogram(-sample, np.r_[-np.inf, -edges[::-1], np.inf])[0][::-1] / len(sample)
        for sample in (reference, current)
    )
    found = metrics.psi(reference, current)
    np.testing.assert_allclose(found.edges, edges)
    np.testing.assert_allclose(found.reference, r)
    np.testing.assert_allclose(found.current, c)
    assert found.value == pytest.approx(((c - r) * np.log(c / r)).sum(), rel=1e-12)
    assert found.value == pytest.approx(found.contributions.sum(), rel=1e-12)
    assert repr(found).startswith(f"<PSI {found.value:.4g} in 10 bins")


def test_equal_samples_have_no_psi_and_weights_count_copies():
    _, p, w = drawn()
    assert metrics.psi(p, p).value == 0.0
    copies = np.repeat(p, w.astype(int))
    other = drawn(seed=1)[1]
    assert metrics.psi(p, other, reference_weight=w).value == pytest.approx(metrics.psi(copies, other).value, rel=1e-12)
    found = metrics.psi(other, p, current_weight=w)
    assert found.value == pytest.approx(metrics.psi(other, copies).value, rel=1e-12)
    kish = w.sum() ** 2 / (w**2).sum()
    assert found.expected == pytest.approx((len(found.reference) - 1) * (1 / len(other) + 1 / kish), rel=1e-12)


def test_bins_of_psi_depend_on_the_reference_alone():
    reference = drawn()[1]
    edges = metrics.psi(reference, [0.5]).edges
    np.testing.assert_array_equal(edges, metrics.psi(reference, [0.1, 0.9]).edges)


def test_an_empty_bin_counts_as_half_a_row():
    found = metrics.psi([1, 2, 3, 4], [1, 1, 1, 1, 1], n_bins=2)
    np.testing.assert_allclose(found.current, [1.0, 0.1])
    assert found.value == pytest.approx(0.5 * math.log(2) - 0.4 * math.log(0.2))


def test_one_reference_score_has_one_bin():
    found = metrics.psi([0.2, 0.2], [0.1, 0.9])
    assert (found.value, found.p_value, len(found.edges)) == (0.0, 1.0, 0)


def test_psi_of_an_unchanged_population_exceeds_its_quantile_as_often_as_it_should():
    random = np.random.default_rng(0)
    found = [metrics.psi(random.random(800), random.random(500)) for _ in range(400)]
    assert np.mean([one.p_value <= 0.1 for one in found]) == pytest.approx(0.1, abs=3 * math.sqrt(0.09 / 400))
    assert np.mean([one.value for one in found]) == pytest.approx(found[0].expected, rel=0.1)


def test_a_thinned_distribution_has_nearly_the_same_psi():
    random = np.random.default_rng(0)
    exact = [sample_distribution(random.beta(2, b, 20_000), None, "reference") for b in (8, 7)]
    thin = [one.thin(401) for one in exact]
    assert [len(one.score) for one in thin] == [401, 401]
    assert not thin[0].complete
    np.testing.assert_array_equal(thin[0].quantiles(np.arange(1, 10) / 10), exact[0].quantiles(np.arange(1, 10) / 10))
    assert compare_distributions(*thin).value == pytest.approx(compare_distributions(*exact).value, rel=0.02)
    few = ScoreDistribution.of(np.array([0.1, 0.1, 0.2]))
    assert few.thin(401) is few


@pytest.mark.parametrize(
    ("reference", "current", "weight", "message"),
    [
        ([], [0.1], None, "reference has no scores"),
        ([0.1], [math.nan], None, "current must be finite"),
        ([0.1, 0.2], [0.1], [1], "reference and reference_weight must have equal length; got 2 and 1"),
        ([0.1, 0.2], [0.1], [0, 0], "the weights are all zero"),
        (["a"], [0.1], None, "reference must hold numbers"),
    ],
)
def test_invalid_samples_are_rejected(reference, current, weight, message):
    with pytest.raises(DataError, match=message):
        metrics.psi(reference, current, reference_weight=weight)
    with pytest.raises(ArgumentError, match="n_bins must be"):
        metrics.psi([0.1], [0.1], n_bins=1)


# Tests of a default rate


def test_jeffreys_intervals_equal_hand_computed_ones():
    # One row and its event: Beta(3/2, 1/2), whose distribution is (2/pi) (arcsin sqrt(x) - sqrt(x (1 - x))); the interval
    # ends with 1. At x = 1/2 that is (2/pi) (pi/4 - 1/2) = 1/2 - 1/pi.
    assert metrics.jeffreys_test(1, 1, 0.5) == pytest.approx(0.5 - 1 / math.pi)
    low, high = metrics.jeffreys_interval(1, 1, alpha=0.1)
    assert high == 1.0
    assert 2 / math.pi * (math.asin(math.sqrt(low)) - math.sqrt(low * (1 - low))) == pytest.approx(0.05)
    # No rows: the prior alone, the arcsine distribution, (2/pi) arcsin sqrt(x).
    assert metrics.jeffreys_test(0, 0, math.sin(math.pi * 0.3 / 2) ** 2) == pytest.approx(0.3)
    # No event among n rows begins with 0, and mirrors n events of n.
    low, high = metrics.jeffreys_interval(0, 20)
    assert low == 0.0
    assert metrics.jeffreys_interval(20, 20) == (pytest.approx(1 - high), 1.0)
    # By adding up the density of Beta(3.5, 7.5): three events of ten.
    x = (np.arange(1_000_000) + 0.5) / 1_000_000
    share = np.cumsum(x**2.5 * (1 - x) ** 6.5)
    ends = x[np.searchsorted(share, share[-1] * np.array([0.025, 0.975]))]
    assert metrics.jeffreys_interval(3, 10) == pytest.approx(ends, abs=2e-6)


def test_jeffreys_intervals_have_about_nominal_coverage():
    rows, rate = 200, 0.1
    covered = [k for k in range(rows + 1) if (ends := metrics.jeffreys_interval(k, rows, alpha=0.1))[0] <= rate <= ends[1]]
    assert stats.binom.pmf(covered, rows, rate).sum() == pytest.approx(0.9, abs=0.03)


def test_tests_of_a_rate_equal_those_of_scipy():
    for events, rows, rate in ((0, 50, 0.01), (3, 200, 0.005), (40, 400, 0.08), (7, 7, 0.9)):
        exact = stats.binomtest(events, rows, rate, alternative="greater").pvalue
        assert metrics.binomial_test(events, rows, rate) == pytest.approx(exact, rel=1e-9)
        posterior = stats.beta(events + 0.5, rows - events + 0.5).cdf(rate)
        assert metrics.jeffreys_test(events, rows, rate) == pytest.approx(posterior, rel=1e-9)
    assert metrics.binomial_test(1, 2, 0.5) == pytest.approx(0.75)
    assert metrics.binomial_test(0, 0, 0.5) == 1.0


def false_alarms(test, rows, rate, level):
    """Return the probability that a test rejects a rate that is right, added up over all numbers of events."""
    rejected = [k for k in range(rows + 1) if test(k, rows, rate) < level]
    return stats.binom.pmf(rejected, rows, rate).sum()


def test_false_alarms_of_both_tests_are_at_their_level():
    cases = [(rows, rate) for rows in (50, 200, 800) for rate in (0.005, 0.02, 0.1, 0.3)]
    for level in (0.05, 0.01):
        binomial = [false_alarms(metrics.binomial_test, *case, level) for case in cases]
        jeffreys = [false_alarms(metrics.jeffreys_test, *case, level) for case in cases]
        assert max(binomial) <= level
        # The Jeffreys test is at its level on average over rates, neither above nor below it everywhere; it is above
        # where a fraction of an event is expected (0.25 of 50 rows), and more so at 1%.
        assert np.mean(jeffreys) == pytest.approx(level, rel=0.3)
        assert max(jeffreys) <= 2.7 * level
        assert all(b <= j for b, j in zip(binomial, jeffreys, strict=True))


def test_counts_of_a_test_are_validated():
    for test in (metrics.jeffreys_test, metrics.binomial_test):
        with pytest.raises(ArgumentError, match="events must be a number at least 0 and at most 10; got 11"):
            test(11, 10, 0.5)
        with pytest.raises(ArgumentError, match="rate must be a number"):
            test(1, 10, 1.5)
        with pytest.raises(ArgumentError, match="rows must be a number"):
            test(1, -1, 0.5)
    with pytest.raises(ArgumentError, match="alpha"):
        metrics.jeffreys_interval(1, 10, alpha=0)


# ROC and precision-recall areas


def pairs_won(y, p, w):
    higher = (p[:, None] > p) + 0.5 * (p[:, None] == p)
    events, others = w * y, w * (1 - y)
    return events @ higher @ others / (events.sum() * others.sum())


def mean_precision(y, p, w, own):
    found = []
    for event in range(len(y)):
        above, tied = p > p[event], p == p[event]
        counts = [(w * v)[above].sum() + (1 - own) * (w * v)[tied].sum() for v in (y, np.ones(len(y)))]
        found.append(counts[0] / counts[1])
    return np.average(found, weights=w * y)


@pytest.mark.parametrize("seed", range(5))
def test_areas_are_those_of_pairs_and_of_events_with_ties_and_weights(seed):
    random = np.random.default_rng(seed)
    p = random.random(80).round(1)
    y, w = (random.random(80) < p).astype(float), random.integers(1, 4, 80).astype(float)
    assert metrics.roc_auc(y, p, w) == pytest.approx(pairs_won(y, p, w))
    assert metrics.roc_auc(y, p, w) == pytest.approx((1 + metrics.gini(y, p, w)) / 2)
    for ties, own in (("step", 0.0), ("half", 0.5)):
        assert metrics.pr_auc(y, p, w, ties=ties) == pytest.approx(mean_precision(y, p, w, own))
    copies = w.astype(int)
    assert metrics.pr_auc(np.repeat(y, copies), np.repeat(p, copies)) == pytest.approx(metrics.pr_auc(y, p, w))


def test_areas_agree_with_scikit_learn():
    from sklearn.metrics import average_precision_score, roc_auc_score

    random = np.random.default_rng(9)
    p, w = random.random(300).round(2), random.random(300)
    y = (random.random(300) < p).astype(float)
    assert metrics.roc_auc(y, p, w) == pytest.approx(roc_auc_score(y, p, sample_weight=w))
    assert metrics.pr_auc(y, p, w) == pytest.approx(average_precision_score(y, p, sample_weight=w))


def test_areas_of_one_outcome_are_undefined():
    assert math.isnan(metrics.roc_auc([1, 1], [0.2, 0.3]))
    assert math.isnan(metrics.pr_auc([0, 0], [0.2, 0.3]))
    assert metrics.pr_auc([1, 1], [0.2, 0.3]) == 1.0
