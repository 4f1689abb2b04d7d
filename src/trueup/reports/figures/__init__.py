"""Figures of results, drawn with matplotlib (the extra ``plots``): each function draws on axes and returns them.

Without ``ax`` a function creates a pyplot figure, so that it appears in notebooks and ``plt.savefig`` writes it. Like any
pyplot figure it stays open until ``plt.close`` is called; without a display, matplotlib draws it in memory.
"""

from trueup.reports.figures.calibration import (
    draw_cumulative,
    draw_landscape,
    draw_lce_cdf,
    draw_mlce,
    draw_reliability,
)
from trueup.reports.figures.decisions import (
    draw_cost_curve,
    draw_decision_curve,
    draw_pr,
    draw_reward,
    draw_risk_coverage,
    draw_roc,
)
from trueup.reports.figures.fits import draw_history
from trueup.reports.figures.plans import draw_plan
from trueup.reports.figures.segments import draw_segment_scatter, draw_segments

__all__ = [
    "draw_cost_curve",
    "draw_cumulative",
    "draw_decision_curve",
    "draw_history",
    "draw_landscape",
    "draw_lce_cdf",
    "draw_mlce",
    "draw_plan",
    "draw_pr",
    "draw_reliability",
    "draw_reward",
    "draw_risk_coverage",
    "draw_roc",
    "draw_segment_scatter",
    "draw_segments",
]
