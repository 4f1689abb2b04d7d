"""Where the marks of a drawing go."""

from __future__ import annotations

import math

import numpy as np
import pytest

from trueup.metrics.curves import ReliabilityCurve
from trueup.reports.drawing import common_range, forest, plot


def curve(predicted, observed, low=None, high=None):
    predicted, observed = np.array(predicted, float), np.array(observed, float)
    low = observed if low is None else np.array(low, float)
    high = observed if high is None else np.array(high, float)
    return ReliabilityCurve(predicted, observed, low, high, np.ones(len(predicted), np.int64), np.ones(len(predicted)))


def test_equal_scores_and_outcomes_lie_on_the_diagonal():
    drawn = plot(curve([0.1, 0.3], [0.1, 0.3]), common_range([], probabilities=True))
    for point in drawn.points:
        across, up = point.x - drawn.left, drawn.top + drawn.side - point.y
        assert across == pytest.approx(up, abs=0.11)


def test_axes_of_probabilities_begin_at_zero_and_end_by_one():
    shown = common_range([curve([0.01, 0.98], [0.02, 1.0])], probabilities=True)
    assert (shown.low, shown.high) == (0.0, 1.0)
    small = common_range([curve([0.001, 0.002], [0.001, 0.004])], probabilities=True)
    assert small.low == 0.0
    assert 0.004 <= small.high <= 0.006
    assert all(small.low <= tick <= small.high for tick in small.ticks)


@pytest.mark.parametrize(
    "values", [[0.0, 0.0], [5.0, 5.0], [1e300, -1e300], [1e-320, 2e-320], [-1e9, -1e9 + 1e-3], [7e250, 7e250]]
)
def test_axes_of_any_numbers_have_a_width_and_few_marks(values):
    shown = common_range([curve(values, values)], probabilities=False)
    assert shown.low < shown.high
    assert len(shown.ticks) <= 20
    assert all(math.isfinite(shown.place(value)) for value in values)
    assert all(len(shown.text(tick)) < 24 for tick in shown.ticks)


def test_axes_of_scores_that_are_all_zero_show_probabilities():
    shown = common_range([curve([0.0], [0.0])], probabilities=True)
    assert (shown.low, shown.high) == (0.0, 1.0)


def test_a_bin_that_is_not_finite_is_left_out():
    drawn = plot(curve([0.1, math.nan], [0.1, 0.2]), common_range([], probabilities=True))
    assert len(drawn.points) == 1


def test_a_ratio_of_zero_or_infinity_stays_on_its_line():
    mark = forest(0.0, 0.0, math.inf, widest=4.0)
    assert mark is not None
    assert (mark.at, mark.low, mark.high, mark.beyond_low, mark.beyond_high) == (0.0, 0.0, 100.0, True, True)
    assert forest(-1.0, -2.0, 0.0, widest=4.0) is None
