"""Reliability curves and their bands."""

from __future__ import annotations

import math

import numpy as np
import pytest

import twins
from trueup import metrics
from trueup.errors import ArgumentError
from trueup.metrics.reliability import ReliabilityCurve, error_ranges, isotonic, reliability

KINDS = ("binned", "pav", "kernel")
BANDS = ("confidence", "consistency")


def _sample(n=400, seed=0, shift=0.0):
    random = np.random.default_rng(seed)
    p = np.round(random.uniform(0.05, 0.95, n), 2)
    return (random.random(n) < np.clip(p + shift, 0, 1)).astype(float), p


def test_bins_have_equal_weight_and_keep_ties_together():
    y, p = _sample()
    curve = reliability(y, p, n_bins=5)
    assert len(curve) == 5
    assert curve.rows.sum() == 400
    assert curve.rows.max() <= 100
    ends = np.cumsum(curve.rows)
    assert set(ends.tolist()) <= set(np.cumsum(np.unique(p, return_counts=True)[1]).tolist())
    order = np.argsort(p, kind="stable")
    parts = np.split(y[order], ends[:-1])
    np.testing.assert_allclose(curve.observed, [part.mean() for part in parts])


@pytest.mark.parametrize("bins", [{"n_bins": 8, "strategy": "width"}, {"n_bins": 6}, {"edges": [0, 0.2, 0.25, 0.9, 1]}])
def test_the_bins_of_a_curve_are_those_of_the_measures(bins):
    y, p = _sample()
    w = np.random.default_rng(1).uniform(0.5, 2, len(p))
    curve = reliability(y, p, w, **bins)
    index = metrics.bins(p, w, **({"strategy": "mass"} | bins))
    used = np.unique(index)
    np.testing.assert_array_equal(curve.rows, np.bincount(index)[used])
    np.testing.assert_allclose(curve.observed, [np.average(y[index == k], weights=w[index == k]) for k in used])
    np.testing.assert_allclose(curve.predicted, [np.average(p[index == k], weights=w[index == k]) for k in used])


def test_edges_close_bins_on_the_right_and_the_first_on_the_left():
    assert metrics.bins([0, 0.1, 0.2, 0.9, 1], edges=[0, 0.1, 0.9, 1]).tolist() == [0, 0, 1, 1, 2]
    assert metrics.bins([-3.0, 5.0, 2.0], edges=[-np.inf, 2, 9], real=True).tolist() == [0, 1, 0]
    width = np.linspace(0, 1, 11)
    p = np.random.default_rng(0).random(300)
    np.testing.assert_array_equal(metrics.bins(p, edges=width), metrics.bins(p))


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ([0.5], "edges must be two or more ascending numbers; got"),
        ([0, 0.5, 0.5, 1], "ascending"),
        ([[0, 1]], "edges must be two"),
        ([0, np.nan, 1], "ascending"),
        ([0.2, 1], r"edges go from 0.2 to 1; got a score of 0.1 at row 0 \(1 such row\)\nhint: let the first"),
    ],
)
def test_edges_that_are_no_bins_are_rejected(edges, message):
    with pytest.raises(ArgumentError, match=message):
        reliability([0, 1, 1], [0.1, 0.4, 0.8], edges=edges)


def test_edges_are_those_of_bins_only():
    with pytest.raises(ArgumentError, match="edges are those of bins; a curve of kind 'pav' has none"):
        reliability([0, 1], [0.1, 0.4], kind="pav", edges=[0, 1])


def test_the_pav_curve_is_the_isotonic_fit_at_its_knots():
    y, p = _sample()
    curve, fit = reliability(y, p, kind="pav", draws=5), isotonic(y, p)
    np.testing.assert_array_equal(curve.predicted, fit.thresholds)
    np.testing.assert_allclose(curve.observed, fit.values)
    assert (np.diff(curve.observed) >= 0).all()
    assert curve.rows.sum() == 400


def test_the_kernel_curve_of_a_constant_rate_is_that_rate():
    p = np.linspace(0.1, 0.9, 300)
    curve = reliability(np.full(300, 0.4), p, kind="kernel", draws=5)
    np.testing.assert_allclose(curve.observed, 0.4, atol=1e-12)
    assert curve.predicted[[0, -1]].tolist() == [0.1, 0.9]


def test_the_kernel_curve_of_one_score_is_one_point():
    curve = reliability([0, 1, 1, 1], [0.5] * 4, kind="kernel", draws=5)
    assert curve.predicted.tolist() == [0.5]
    assert curve.observed == pytest.approx([0.75])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("band", BANDS)
def test_curve_has_a_repr_and_a_seed(kind, band):
    y, p = _sample()
    first, again, other = (reliability(y, p, kind=kind, band=band, draws=30, random_state=s) for s in (1, 1, 2))
    assert (first.kind, first.band) == (kind, band)
    assert first.to_dict() == again.to_dict()
    assert (first.low <= first.high + 1e-12).all()
    if kind == "pav" or band == "consistency":  # the other limits are analytic
        assert first.to_dict() != other.to_dict()


@pytest.mark.parametrize("kind", KINDS)
def test_integer_weights_count_rows(kind):
    y, p = _sample(100)
    times = np.random.default_rng(1).integers(0, 4, 100)
    weighted = reliability(y, p, times.astype(float), kind=kind, draws=5)
    repeated = reliability(np.repeat(y, times), np.repeat(p, times), kind=kind, draws=5)
    np.testing.assert_allclose(weighted.observed, repeated.observed, atol=1e-9)
    np.testing.assert_allclose(weighted.weight, repeated.weight)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("band", BANDS)
def test_row_order_does_not_matter(kind, band):
    y, p = _sample(80)
    order = np.random.default_rng(2).permutation(80)
    one, other = (reliability(a, b, kind=kind, band=band, draws=20) for a, b in ((y, p), (y[order], p[order])))
    np.testing.assert_allclose(one.observed, other.observed, atol=1e-9)
    np.testing.assert_allclose(one.low, other.low, atol=1e-9)
    np.testing.assert_allclose(one.high, other.high, atol=1e-9)


def test_the_kernel_is_reflected_at_the_ends():
    # Scores 0 and .3: at 0 the row of score 0 counts twice (itself and its image), that of .3 twice as well.
    y, p = np.array([0.0, 1.0]), np.array([0.0, 0.3])
    curve = reliability(y, p, kind="kernel", draws=1)
    sigma = max(metrics.smooth_ece(y, p), 0.01)
    near = lambda d: math.exp(-0.5 * (d / sigma) ** 2)  # noqa: E731
    t = curve.predicted[10]
    mass = [near(t) * 2 + near(2 - t), near(t - 0.3) + near(t + 0.3) + near(2 - 0.3 - t)]
    assert curve.observed[10] == pytest.approx(mass[1] / sum(mass), rel=1e-6)


def test_a_gap_between_scores_has_no_points():
    y, p = np.tile([0.0, 1.0], 300), np.tile([0.05, 0.95], 300)
    curve = reliability(y, p, kind="kernel", draws=5)
    assert np.isfinite(curve.observed).all()
    assert not ((curve.predicted > 0.3) & (curve.predicted < 0.7)).any()


def test_ends_without_events_have_limits():
    for kind in KINDS:
        curve = reliability(np.zeros(50), np.linspace(0.01, 0.3, 50), kind=kind, n_bins=1, draws=20)
        assert (curve.high > 0.05).all()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.repeated(20, 60)
def test_the_curve_of_a_calibrated_score_lies_within_its_consistency_band(kind, repetitions):
    inside = []
    for seed in range(repetitions):
        y, p = _sample(300, seed)
        curve = reliability(y, p, kind=kind, band="consistency", draws=100, random_state=seed)
        inside.append(np.mean((curve.observed >= curve.low - 1e-9) & (curve.observed <= curve.high + 1e-9)))
    # Pointwise at 95%, from 100 draws; points of one curve are dependent, so curves are counted.
    assert np.mean(inside) >= 0.95 - twins.three_se(0.95, repetitions) - 0.02


def test_miscalibrated_curves_leave_the_consistency_band():
    y, p = _sample(2000, 1, shift=0.15)
    for kind in KINDS:
        curve = reliability(y, p, kind=kind, band="consistency", draws=100)
        assert np.mean((curve.observed < curve.low) | (curve.observed > curve.high)) > 0.5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.repeated(30, 100)
def test_the_confidence_band_covers_the_true_rate(kind, repetitions):
    covered, ends = [], []
    for seed in range(repetitions):
        y, p = _sample(400, seed)
        curve = reliability(y, p, kind=kind, draws=60, random_state=seed)
        inside = (curve.low <= curve.predicted) & (curve.predicted <= curve.high)
        covered.append(inside.mean())
        ends.append(inside[[0, -1]].mean())
    # Points of one curve are dependent, so curves are counted; the band does not include the bias of smoothing.
    assert np.mean(covered) >= 0.95 - twins.three_se(0.95, repetitions)
    assert np.mean(ends) >= 0.95 - twins.three_se(0.95, repetitions) - 0.05


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kind": "loess"}, "kind must be one of 'binned', 'pav', 'kernel'"),
        ({"band": "belief"}, "band must be one of 'confidence', 'consistency'"),
        ({"n_bins": 0}, "n_bins must be an integer at least 1"),
        ({"draws": 0}, "draws must be an integer at least"),
        ({"alpha": 1}, "alpha must lie between 0 and 1"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(ArgumentError, match=message):
        reliability([0, 1], [0.2, 0.8], **options)


def test_score_ranges_end_where_the_curve_crosses_the_diagonal():
    def ranges(observed, half=0.01):
        predicted, observed = np.array([0.1, 0.3, 0.5, 0.7]), np.array(observed)
        full = np.full(4, 100.0)
        curve = ReliabilityCurve(predicted, observed, observed - half, observed + half, full.astype(int), full)
        return [(found.low, found.high, round(found.excess, 9)) for found in error_ranges(curve)]

    # Differences of +0.1, -0.1, -0.1, +0.3: zero at 0.2, and a quarter of the way from 0.5 to 0.7.
    assert ranges([0.2, 0.2, 0.4, 1.0]) == [
        (-np.inf, pytest.approx(0.2), 10.0), (pytest.approx(0.2), pytest.approx(0.55), -20.0),
        (pytest.approx(0.55), np.inf, 30.0),
    ]  # fmt: skip
    # The first range has 4, with a margin of 5, and is merged: -16, with a margin of 5 * sqrt(3) = 8.7.
    high = (pytest.approx(0.55), np.inf, 30.0)
    assert ranges([0.14, 0.2, 0.4, 1.0], half=0.05) == [(-np.inf, pytest.approx(0.55), -16.0), high]
    # No two ranges are certain (-10 +- 20.8, then 20 +- 24): the one with the largest excess.
    assert ranges([0.2, 0.2, 0.4, 1.0], half=0.12) == [high]
    assert ranges([0.2, 0.2, 0.4, 0.8], half=0.2) == [(pytest.approx(0.2), pytest.approx(0.6), -20.0)]
    assert ranges([0.2, 0.4, 0.6, 0.8]) == [(-np.inf, np.inf, 40.0)]
    # Less than a tenth of the largest excess.
    assert ranges([0.08, 0.4, 0.6, 0.8]) == [(-np.inf, np.inf, 28.0)]
    assert ranges([0.1, 0.3, 0.5, 0.7]) == ranges([0.1, 0.3, np.nan, 0.7]) == []


def test_a_score_range_with_nearly_all_of_an_error_of_one_sign_is_named():
    def ranges(observed, half=0.01):
        predicted, observed = np.array([0.1, 0.3, 0.5, 0.7]), np.array(observed)
        full = np.full(4, 100.0)
        curve = ReliabilityCurve(predicted, observed, observed - half, observed + half, full.astype(int), full)
        return [(found.low, found.high, round(found.excess, 9)) for found in error_ranges(curve)]

    whole = [(-np.inf, np.inf)]
    # All 10 events in excess are below 0.2, the middle between the first two bins; or above 0.6.
    assert ranges([0.2, 0.3, 0.5, 0.7]) == [(-np.inf, pytest.approx(0.2), 10.0)]
    assert ranges([0.1, 0.3, 0.5, 0.9]) == [(pytest.approx(0.6), np.inf, 20.0)]
    assert ranges([0.1, 0.2, 0.5, 0.7]) == [(pytest.approx(0.2), pytest.approx(0.4), -10.0)]
    # A margin of 16 in all: the 10 events are not certainly there, and the range of all scores is within noise.
    assert [found[:2] for found in ranges([0.2, 0.31, 0.51, 0.71], half=0.06)] == whole
    # An additive error of 0.05: the first bin has a large relative error, and a quarter of the excess.
    assert [found[:2] for found in ranges([0.15, 0.35, 0.55, 0.75])] == whole
    # The same relative error everywhere.
    assert [found[:2] for found in ranges([0.12, 0.36, 0.6, 0.84])] == whole
