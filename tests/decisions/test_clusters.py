"""Decisions with labelled rows in clusters: intervals are computed from sums over clusters."""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

import trueup as tu
from trueup.decisions import Labelled, decision_curve, expected_confusion, expected_cost, expected_roc
from trueup.decisions.clusters import (
    calibration_pvalue,
    design_effect,
    pair_sums,
    quadratic_form,
    threshold_pair_sums,
)
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


def test_intervals_of_costs_cover_the_mean_cost_of_the_population():
    # Outcomes are shared by the eight rows of a cluster. The mean cost per row at the threshold .3, by the true scores:
    # .3 is exceeded by (.6 - .3) / .55 of the clusters.
    low, high, cut = 0.05, 0.6, 0.3
    truth = (5.0 * (cut**2 - low**2) / 2 + ((high - cut) - (high**2 - cut**2) / 2)) / (high - low)
    covered = {True: 0, False: 0}
    for seed in range(100):
        y, p, cluster = clustered_scores(seed)
        new = clustered_scores(1000 + seed, clusters=20_000, size=1)[1]
        for clustered, inside in covered.items():
            known = Labelled(y, p, cluster=cluster if clustered else None)
            with warnings.catch_warnings(record=True) as found:
                warnings.simplefilter("always")
                cost = expected_cost(new, COSTS, cut, known, target="population", level=0.9)
            assert not (found and clustered)  # of a shift: scores of clusters vary more than those of rows
            covered[clustered] = inside + (cost.low <= truth <= cost.high)
    assert covered[True] >= 100 * (0.9 - 3 * math.sqrt(0.09 / 100))
    assert covered[False] < 75


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
