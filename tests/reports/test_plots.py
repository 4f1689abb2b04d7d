"""Geometry of plots: axes, reliability curves and ratio marks."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trueup.metrics.reliability import ReliabilityCurve
from trueup.reports.plots import curve_axis, plot_curve, ratio_mark


def curve(predicted, observed):
    predicted, observed = np.array(predicted, float), np.array(observed, float)
    rows, weight = np.ones(len(predicted), np.int64), np.ones(len(predicted))
    return ReliabilityCurve(predicted, observed, observed, observed, rows, weight)


def test_equal_scores_and_outcomes_lie_on_the_diagonal():
    plot = plot_curve(curve([0.1, 0.3], [0.1, 0.3]), curve_axis([], probabilities=True))
    for point in plot.points:
        across, up = point.x - plot.left, plot.top + plot.side - point.y
        assert across == pytest.approx(up, abs=0.11)


def test_probability_axes_start_at_zero_and_end_at_one_at_most():
    axis = curve_axis([curve([0.01, 0.98], [0.02, 1.0])], probabilities=True)
    assert (axis.low, axis.high) == (0.0, 1.0)
    small = curve_axis([curve([0.001, 0.002], [0.001, 0.004])], probabilities=True)
    assert small.low == 0.0
    assert 0.004 <= small.high <= 0.006
    assert all(small.low <= tick <= small.high for tick in small.ticks)


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [5.0, 5.0], [1e300, -1e300], [1e-320, 2e-320], [-1e9, -1e9 + 1e-3], [7e250, 7e250]]
)
def test_axes_of_extreme_values_have_positive_width_and_few_ticks(values):
    axis = curve_axis([curve(values, values)], probabilities=False)
    assert axis.low < axis.high
    assert len(axis.ticks) <= 20
    assert all(math.isfinite(axis.position(value)) for value in values)
    assert all(len(axis.label(tick)) < 24 for tick in axis.ticks)


def test_axis_of_all_zero_scores_spans_zero_to_one():
    axis = curve_axis([curve([0.0], [0.0])], probabilities=True)
    assert (axis.low, axis.high) == (0.0, 1.0)


def test_non_finite_bins_are_left_out():
    plot = plot_curve(curve([0.1, math.nan], [0.1, 0.2]), curve_axis([], probabilities=True))
    assert len(plot.points) == 1


def test_ratios_of_zero_and_infinity_stay_on_the_scale():
    mark = ratio_mark(0.0, 0.0, math.inf, limit=4.0)
    assert mark is not None
    assert (mark.ratio, mark.low, mark.high, mark.beyond_low, mark.beyond_high) == (0.0, 0.0, 100.0, True, True)
    assert ratio_mark(-1.0, -2.0, 0.0, limit=4.0) is None
    assert ratio_mark(math.nan, 0.5, 2.0, limit=4.0) is None
