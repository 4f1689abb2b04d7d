"""Pictures of results, by matplotlib (the extra ``plots``): each function draws on axes and gives them back.

None of them touches pyplot: without ``ax`` they make a figure of their own, ``ax.figure``, which needs no screen and is not
kept by anybody else.
"""

from trueup.reports.figures.audit import draw_cumulative, draw_reliability, draw_segments
from trueup.reports.figures.decisions import draw_cost_curve, draw_decision_curve
from trueup.reports.figures.local import draw_landscape, draw_lce_cdf, draw_mlce
from trueup.reports.figures.rates import draw_pr, draw_roc
from trueup.reports.figures.silence import draw_reward, draw_risk_coverage

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
