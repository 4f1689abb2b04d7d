"""Geometry of plots: axes, reliability curves and ratio marks."""

from __future__ import annotations

import math
from types import SimpleNamespace

import numpy as np
import pytest

from trueup.metrics.reliability import ReliabilityCurve
from trueup.reports.model import RATIO_SCALES, Axis, axis_labels, curve_axis, plot_curve
from trueup.reports.profiles import Vocabulary


def curve(predicted, observed):
    predicted, observed = np.array(predicted, float), np.array(observed, float)
    rows, weight = np.ones(len(predicted), np.int64), np.ones(len(predicted))
    return ReliabilityCurve(predicted, observed, observed, observed, rows, weight)


def plot(predicted, observed):
    finding = SimpleNamespace(curve=curve(predicted, observed))
    return plot_curve(finding, curve_axis([], probabilities=True), Vocabulary())


def test_equal_scores_and_outcomes_lie_on_the_diagonal():
    result = plot([0.1, 0.3], [0.1, 0.3])
    for x, y, *_ in result["bins"]:
        across, up = x - result["frame"].left, result["frame"].top + result["frame"].height - y
        assert across == pytest.approx(up, abs=0.11)


def test_labels_of_large_axes_are_in_thousands():
    assert Axis(0.0, 60000.0, (), 0).label(20000.0) == "20k"
    assert Axis(0.0, 1.0, (), 1).label(0.2) == "0.2"


def test_axes_have_the_labels_of_the_vocabulary():
    assert axis_labels(Vocabulary()) == ("observed", "predicted")
    assert axis_labels(Vocabulary(observed="default rate", expected="mean PD")) == ("default rate", "mean PD")


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
    assert len(plot([0.1, math.nan], [0.1, 0.2])["bins"]) == 1
    assert plot([math.nan], [0.2]) is None


def test_ratios_of_zero_and_infinity_stay_on_the_scale():
    scale = RATIO_SCALES[-1]
    assert [scale.position(ratio) for ratio in (0.0, 0.5, 1.0, 8.0, math.inf)] == [0.0, 25.0, 50.0, 100.0, 100.0]
