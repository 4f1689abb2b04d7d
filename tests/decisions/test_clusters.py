"""Decisions with labelled rows in clusters: intervals are computed from sums over clusters."""

from __future__ import annotations

import math
import sys
import warnings

import numpy as np
import pytest

import trueup as tu
from trueup.decisions import Labelled, decision_curve, expected_confusion, expected_cost, expected_roc
from trueup.decisions.clusters import (
    UNSEEN,
    calibration_pvalue,
    cluster_norms,
    design_effect,
    effective_clusters,
    pair_sums,
    quadratic_form,
    student_factor,
    threshold_pair_sums,
)
from trueup.decisions.evidence import quantile
from trueup.metrics.inputs import Scored

COSTS = {"fn": 5.0, "fp": 1.0}


def clustered_scores(seed, clusters=150, size=8, icc=1.0):
    random = np.random.default_rng([seed, 11])
    cluster = np.repeat(np.arange(clusters), size)
    p = random.uniform(0.05, 0.6, clusters)[cluster]
    shared = random.random(len(p)) < math.sqrt(icc)
    y = (np.where(shared, random.random(clusters)[cluster], random.random(len(p))) < p).astype(float)
    return y, p, cluster


def test_pair_sums_agree_with_sums_over_clusters():
    random = np.random.default_rng(0)
    cluster, index, e = random.integers(0, 20, 200), random.integers(0, 4, 200), random.normal(size=200)
    d = random.normal(size=(5, 4))
    sums = pair_sums(index, e, cluster, 4)
    for row, found in zip(d, quadratic_form(d, sums), strict=True):
        by_cluster = np.bincount(cluster, row[index] * e)
        assert found == pytest.approx((by_cluster**2).sum() - ((row[index] * e) ** 2).sum())


def test_pair_sums_of_thresholds_are_those_of_two_intervals():
    random = np.random.default_rng(1)
    cluster, index, e = random.integers(0, 20, 200), random.integers(0, 6, 200), random.normal(size=200)
    found = threshold_pair_sums(index, e, cluster, 5)
    for edge in range(5):
        np.testing.assert_allclose(found[edge], pair_sums((index > edge).astype(int), e, cluster, 2), atol=1e-12)


def random_rows(seed, rows=200, intervals=4):
    random = np.random.default_rng(seed)
    p = random.uniform(0.05, 0.6, rows)
    known = Scored((random.random(rows) < p).astype(float), p, random.uniform(0.5, 2.0, rows))
    return known, random.integers(0, intervals, rows), random.integers(0, 20, rows)


def test_norms_agree_with_sums_over_clusters():
    known, index, cluster = random_rows(2)
    norms = cluster_norms(known, index, cluster, 4, thresholds=False)
    w, v = known.w / known.w.sum(), known.p * (1 - known.p)
    for j in range(4):
        U, F, T = (
            np.bincount(cluster, np.where(index == j, each, 0.0))
            for each in (w * (known.y - known.p), w * (v * (1 - 3 * v)) ** 0.25, w * np.sqrt(v))
        )
        assert [norms.fourth[j], norms.most_fourth[j], norms.most[j]] == pytest.approx(
            [(U**4).sum() ** 0.25, (F**4).sum() ** 0.25, (T**2).sum() ** 0.5]
        )
    one = cluster_norms(known, np.zeros(200, int), cluster, 1, thresholds=False)
    likely = one.likely_variance(np.array([[-2.0]]), np.array([0.01]), 0.05)
    U, F, T = (float(each[0]) for each in one[:3])
    seen = 0.01 + math.sqrt(2 * math.log(5 / 0.05)) * (2 * U) ** 2
    unseen = min(seen + UNSEEN * (2 * F) ** 4 / (2 * T) ** 2, (2 * T) ** 2)
    assert likely[0] == pytest.approx(max(seen, unseen) * student_factor(one.effective, 0.05) ** 2)


def test_norms_of_thresholds_are_those_of_two_intervals():
    known, index, cluster = random_rows(3, intervals=6)
    found = cluster_norms(known, index, cluster, 5, thresholds=True)
    for edge in range(5):
        two = cluster_norms(known, (index > edge).astype(int), cluster, 2, thresholds=False)
        for one, other in zip(found[:3], two[:3], strict=True):
            np.testing.assert_allclose(one[edge], other, rtol=1e-6)


def test_no_correlation_exceeds_the_largest_moments():
    # The outcomes of a cluster are the same (rho = 1), of scores .1 and .3: E U^2 <= T^2 and E U^4 <= F^4.
    f = np.array([0.1, 0.1, 0.3])
    U = np.array([sum((0.0 if u >= p else 1.0) - p for p in f) for u in (0.05, 0.2, 0.5)])
    probability = np.array([0.1, 0.2, 0.7])
    v = f * (1 - f)
    assert probability @ U**2 <= np.sqrt(v).sum() ** 2
    assert probability @ U**4 <= ((v * (1 - 3 * v)) ** 0.25).sum() ** 4
    assert [float(p * (1 - p) ** 4 + (1 - p) * p**4) for p in f] == pytest.approx(v * (1 - 3 * v))


def test_effective_clusters_are_counted_as_in_an_audit():
    rows = Scored(np.zeros(60), np.full(60, 0.3), np.ones(60))
    assert effective_clusters(rows, np.repeat(np.arange(12), 5)) == pytest.approx(12)
    uneven = np.repeat(np.arange(21), [20, *[2] * 20])  # squares 400 and 20 x 4
    assert effective_clusters(rows, uneven) == pytest.approx((400 + 80) ** 2 / (160_000 + 20 * 16))
    assert effective_clusters(rows, np.arange(60)) == math.inf
    assert student_factor(math.inf, 0.05) == 1
    assert student_factor(11.0, 0.05) == pytest.approx(1.812461 / 1.644854, rel=1e-5)  # 10 degrees of freedom


def test_fewer_than_ten_clusters_are_refused():
    y, p, cluster = clustered_scores(0, 9, 60)
    known = Labelled(y, p, cluster=cluster)
    for function in (lambda: expected_cost(p, COSTS, 0.3, known), lambda: expected_roc(p, known)):
        with pytest.raises(tu.errors.DataError, match=r"are in 7\.6 effective clusters; an interval needs 10"):
            function()
    y, p, cluster = clustered_scores(0, 90, 8)
    with pytest.raises(tu.errors.DataError, match="a few large clusters have most of the rows"):
        expected_cost(p, COSTS, 0.3, Labelled(y, p, cluster=np.maximum(cluster - 60, 0)))
    y, p, cluster = clustered_scores(0)
    segment = np.where(cluster < 5, "few", "many")
    known = Labelled(y, p, segments=segment, cluster=cluster)
    with pytest.raises(tu.errors.DataError, match=r"of segment .few. are in [0-9.]+ effective clusters"):
        expected_cost(p, COSTS, 0.3, known, segments=segment)


@pytest.mark.parametrize("prevalence", [0.25, 0.04])
@pytest.mark.parametrize(("clusters", "size", "icc"), [(60, 20, 0.0), (60, 20, 1.0), (300, 10, 0.3)])
@pytest.mark.parametrize("uneven", [False, True])
@pytest.mark.repeated(12, 60)
def test_intervals_of_counts_cover_and_are_not_much_wider_than_needed(clusters, size, icc, uneven, prevalence, repetitions):
    # fn below the threshold .3, as a share of the population; scores are beta(1, b), P(f > x) = (1 - x)^b.
    b, cut = 1 / prevalence - 1, 0.3
    truth = (1 - (1 - cut) ** (b + 1)) / (b + 1) - cut * (1 - cut) ** b
    errors, covered, widths = [], [], []
    for seed in range(repetitions):
        random = np.random.default_rng([seed, 12])
        sizes = random.integers(1, 2 * size, clusters) if uneven else size
        cluster = np.repeat(np.arange(clusters), sizes)
        p = random.beta(1, b, len(cluster))
        shared = random.random(len(p)) < math.sqrt(icc)
        y = (np.where(shared, random.random(clusters)[cluster], random.random(len(p))) < p).astype(float)
        known = Labelled(y, p, cluster=cluster)
        fn = expected_confusion(random.beta(1, b, 20_000), cut, known, target="population").fn
        covered.append(fn.low <= truth <= fn.high)
        errors.append(fn.estimate - truth)
        widths.append(fn.high - fn.low)
    assert np.mean(covered) >= 0.9 - 3 * math.sqrt(0.09 / repetitions)
    needed = 2 * 1.645 * np.std(errors) * (1 + 2 / math.sqrt(2 * repetitions))  # and two standard errors of it
    assert np.mean(widths) <= (1.85 if prevalence > 0.1 else 2.7) * needed


def test_clusters_of_one_row_change_no_interval():
    y, p, _ = clustered_scores(0)
    plain, one = Labelled(y, p), Labelled(y, p, cluster=np.arange(len(y)))
    for function in (lambda known: expected_cost(p, COSTS, 0.3, known), lambda known: expected_roc(p, known)):
        first, second = function(plain).to_dict(), function(one).to_dict()
        assert repr(first) == repr(second)


def test_intervals_are_wider_with_clusters():
    y, p, cluster = clustered_scores(0)
    known = {"plain": Labelled(y, p), "clusters": Labelled(y, p, cluster=cluster)}
    for function in (
        lambda evidence: expected_cost(p, COSTS, 0.3, evidence),
        lambda evidence: expected_cost(p, COSTS, 0.3, evidence, tuned=True),
        lambda evidence: expected_confusion(p, 0.3, evidence).tp,
    ):
        plain, clusters = (function(evidence) for evidence in known.values())
        assert clusters.high - clusters.low > 1.8 * (plain.high - plain.low)
        assert clusters.estimate == pytest.approx(plain.estimate)
    plain, clusters = (expected_roc(p, evidence) for evidence in known.values())
    assert np.nanmean(clusters.y_high - clusters.y_low) > 1.3 * np.nanmean(plain.y_high - plain.y_low)
    curves = [decision_curve(None, p, labelled=evidence).to_frame() for evidence in known.values()]
    widths = [np.nanmean(curve["high"] - curve["low"]) for curve in curves]
    assert widths[1] > 1.3 * widths[0]


@pytest.mark.repeated(30, 100)
def test_intervals_of_costs_cover_the_mean_cost_of_the_population(repetitions):
    # Outcomes are shared by the eight rows of a cluster. The mean cost per row at the threshold .3, by the true scores:
    # .3 is exceeded by (.6 - .3) / .55 of the clusters.
    low, high, cut = 0.05, 0.6, 0.3
    truth = (5.0 * (cut**2 - low**2) / 2 + ((high - cut) - (high**2 - cut**2) / 2)) / (high - low)
    covered = {True: 0, False: 0}
    for seed in range(repetitions):
        y, p, cluster = clustered_scores(seed)
        new = clustered_scores(1000 + seed, clusters=20_000, size=1)[1]
        for clustered, inside in covered.items():
            known = Labelled(y, p, cluster=cluster if clustered else None)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                cost = expected_cost(new, COSTS, cut, known, target="population", level=0.9)
            assert not (found and clustered)  # of a shift: scores of clusters vary more than those of rows
            covered[clustered] = inside + (cost.low <= truth <= cost.high)
    assert covered[True] >= repetitions * (0.9 - 3 * math.sqrt(0.09 / repetitions))
    assert covered[False] < 0.75 * repetitions


def test_segments_use_their_own_clusters():
    y, p, cluster = clustered_scores(3)
    segment = np.where(cluster % 2, "odd", "even")
    known = Labelled(y, p, segments=segment, cluster=cluster)
    cost = expected_cost(p, COSTS, 0.3, known, segments=segment)
    for name in ("odd", "even"):
        own = segment == name
        alone = expected_cost(p[own], COSTS, 0.3, Labelled(y[own], p[own], cluster=cluster[own]))
        assert cost.by_segment[name].high == pytest.approx(alone.high)


def test_the_design_effect_of_copies_is_their_number():
    y, p, cluster = clustered_scores(1)
    assert design_effect(Scored(y, p, np.ones(len(y))), cluster) == pytest.approx(8)
    assert design_effect(Scored(y, p, np.ones(len(y))), None) == 1
    first = np.arange(0, len(y), 8)
    single = Scored(y[first], p[first], np.ones(len(first)))
    # Copies of a row leave its p-value as it is, but for the estimated design effect.
    plain = calibration_pvalue(single, np.arange(len(first)))
    assert calibration_pvalue(Scored(y, p, np.ones(len(y))), cluster) == pytest.approx(plain, rel=1e-6)


def test_held_out_rows_of_a_fit_with_clusters_have_clusters():
    y, p, cluster = clustered_scores(2, 200)
    rows = {"p": p, "y": y, "customer": cluster}
    fitted = tu.Platt("p", stopping=tu.CrossValidation(5)).fit(rows, "y", cluster="customer")
    scores = fitted.predict(rows)
    wide = expected_cost(scores, COSTS, 0.3, fitted)
    narrow = expected_cost(scores, COSTS, 0.3, fitted.held_out_)
    assert wide.high - wide.low > 1.8 * (narrow.high - narrow.low)


def test_every_labelled_row_needs_an_identifier():
    with pytest.raises(tu.errors.DataError, match="cluster has 2 values for 3 rows"):
        Labelled([0, 1, 1], [0.2, 0.6, 0.7], cluster=[1, 2])
    with pytest.raises(tu.errors.DataError, match="cluster column 'cluster' is missing at row 1"):
        Labelled([0, 1, 1], [0.2, 0.6, 0.7], cluster=["a", None, "b"])


# Decision curves of rows with known outcomes


def two_scores(seed, clusters=200, size=10, icc=0.5):
    """Draw outcomes of clusters, and two equally good scores, whose errors are shared by the rows of a cluster."""
    random = np.random.default_rng([seed, 13])
    cluster = np.repeat(np.arange(clusters), size)
    logit, *errors = random.normal(size=(3, clusters))[:, cluster]
    shared = random.random(len(cluster)) < math.sqrt(icc)
    uniform = np.where(shared, random.random(clusters)[cluster], random.random(len(cluster)))
    y = (uniform < 1 / (1 + np.exp(1 - logit))).astype(float)
    return y, {name: 1 / (1 + np.exp(1 - logit - 0.5 * error)) for name, error in zip("ab", errors, strict=True)}, cluster


@pytest.mark.repeated(20, 60)
def test_decision_curves_of_clusters_rarely_call_equally_good_scores_different(repetitions):
    different = {True: 0, False: 0}
    for seed in range(repetitions):
        y, scores, cluster = two_scores(seed)
        for clustered in different:
            curve = decision_curve(y, scores, thresholds=np.arange(1, 19) / 20, cluster=cluster if clustered else None)
            gain = curve.difference["b"]
            different[clustered] += bool(((gain.band_low > 0) | (gain.band_high < 0)).any())
    assert different[True] <= 0.1 * repetitions + 2 * math.sqrt(repetitions * 0.1 * 0.9)
    assert different[False] >= repetitions / 3


def test_decision_curve_limits_follow_from_sums_over_clusters():
    y, scores, cluster = two_scores(0, icc=1.0)
    w = np.random.default_rng(0).uniform(0.5, 2.0, len(y))
    t = np.array([0.2, 0.4])
    curve = decision_curve(y, scores, thresholds=t, weight=w, cluster=cluster, level=0.9)
    rows = Scored(y, scores["a"], w)
    student = student_factor(effective_clusters(rows, cluster), 0.05)
    for k, threshold in enumerate(t):
        odds = threshold / (1 - threshold)
        gains = [(p >= threshold) * (y - (1 - y) * odds) for p in scores.values()]
        difference = gains[1] - gains[0]
        mean = np.average(difference, weights=w)
        U = np.bincount(cluster, w * (difference - mean))
        root = math.sqrt((U**2).sum() + math.sqrt(2 * math.log(5 / 0.05) * (U**4).sum())) / w.sum()
        assert curve.difference["b"].estimate[k] == pytest.approx(mean)
        assert curve.difference["b"].high[k] == pytest.approx(mean + quantile(0.05) * student * root)
    for other in (np.arange(len(y)), None):  # clusters of one row are rows
        single = decision_curve(y, scores, thresholds=t, weight=w, cluster=other)
        assert single.high["a"] == pytest.approx(decision_curve(y, scores, thresholds=t, weight=w).high["a"])


def test_decision_curves_do_not_depend_on_how_clusters_are_summed(monkeypatch):
    y, scores, cluster = two_scores(1)
    order = np.random.default_rng(1).permutation(len(y))
    whole = decision_curve(y, scores, cluster=cluster)
    monkeypatch.setattr(sys.modules[decision_curve.__module__], "MAX_CLUSTER_SUMS", 5_000)
    moved = decision_curve(y[order], {name: p[order] for name, p in scores.items()}, cluster=cluster[order].astype(str))
    np.testing.assert_allclose(moved.difference["b"].band_low, whole.difference["b"].band_low, rtol=1e-3)
    np.testing.assert_allclose(moved.low["a"], whole.low["a"], rtol=1e-9)


def test_decision_curves_need_enough_clusters_and_outcomes():
    y, scores, cluster = two_scores(2)
    with pytest.raises(tu.errors.DataError, match=r"the rows are in [0-9.]+ effective clusters; an interval needs 10"):
        decision_curve(y, scores, cluster=cluster % 6)
    with pytest.raises(tu.errors.DataError, match="the rows of segment 'few' are in"):
        decision_curve(y, scores, cluster=cluster, segments=np.where(cluster < 5, "few", "many"))
    with pytest.raises(tu.errors.ArgumentError, match="clusters are those of the labelled rows"):
        decision_curve(None, scores["a"], cluster=cluster)
    halves = decision_curve(y, scores, cluster=cluster, segments=cluster % 2)
    own = cluster % 2 == 0
    alone = decision_curve(y[own], {name: p[own] for name, p in scores.items()}, cluster=cluster[own])
    assert halves.by_segment["0"].high["a"] == pytest.approx(alone.high["a"])
