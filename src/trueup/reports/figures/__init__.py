"""Figures of results, drawn with matplotlib (the extra ``plots``): each function draws on axes and returns them.

Without ``ax`` a function creates a figure of its own, ``ax.figure``, without pyplot: it needs no display, and nothing else
keeps a reference to it.
"""

from trueup.reports.figures.calibration import (
    draw_cumulative,
    draw_landscape,
    draw_lce_cdf,
    draw_mlce,
    draw_reliability,
    draw_segments,
)
from trueup.reports.figures.decisions import (
    draw_cost_curve,
    draw_decision_curve,
    draw_pr,
    draw_reward,
    draw_risk_coverage,
    draw_roc,
)

__all__ = [
    "draw_cost_curve",
    "draw_cumulative",
    "draw_decision_curve",
    "draw_landscape",
    "draw_lce_cdf",
    "draw_mlce",
    "draw_pr",
    "draw_reliability",
    "draw_reward",
    "draw_risk_coverage",
    "draw_roc",
    "draw_segments",
]
