"""Figures of plans: which errors so many rows show."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.monitoring.plan import Plan
from trueup.reports.figures.style import GREY, INK, check_result, escaped_name, get_axes, line_styles, style_axes

if TYPE_CHECKING:
    from matplotlib.axes import Axes


def draw_plan(plan: Plan, ax: Axes | None = None, *, segment: str | None = None, title: str = "") -> Axes:
    """Draw the observed/expected that is found against the number of rows in all, on logarithmic axes.

    One line per test (audit, monitor), for errors upwards and downwards; grey lines mark the error or the rows of the plan.

    Parameters
    ----------
    plan : Plan
    ax : matplotlib Axes, optional
        A new figure by default.
    segment : str, optional
        The first segment of the plan by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> plan = tu.plan(prevalence=0.02, ratio=1.2, share=0.05, segments=400)
    >>> ax = tu.figures.draw_plan(plan)
    >>> ax.get_xlabel(), ax.get_ylabel()
    ('rows in all', 'observed/expected found with 80% power')
    """
    check_result("plan", plan, Plan, "the result of tu.plan")
    curves = plan.curves(segment)
    ax = get_axes(ax, 6.6, 3.8)
    for curve, style in zip(curves, line_styles(len(curves)), strict=True):
        ratios, totals = np.array(curve.ratios), np.array(curve.totals)
        for side, label in ((ratios > 1, curve.test), (ratios < 1, "_")):
            known = side & np.isfinite(totals)
            ax.plot(totals[known], ratios[known], label=label, **style)
    ax.set_xscale("log")
    ax.set_yscale("log")
    low, high = ax.get_ylim()
    ticks = [tick for tick in (0.25, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0) if low <= tick <= high]
    ax.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
    ax.minorticks_off()
    ax.axhline(1.0, color=INK, linewidth=0.8)
    marks: dict[str, Any] = {"color": GREY, "linewidth": 1.0, "zorder": 0}
    if plan.settings.ratio is not None and low <= plan.settings.ratio <= high:
        ax.axhline(plan.settings.ratio, **marks)
    rows: float | None = plan.settings.rows
    if rows is None:
        name = plan.tests[0].segment if segment is None else segment
        rows = next(test.total for test in plan.tests if test.segment == name)
    if math.isfinite(rows):
        ax.axvline(rows, **marks)
    found = f"observed/expected found with {100 * plan.settings.power:.3g}% power"
    return style_axes(ax, escaped_name(title), "rows in all", found, legend=len(curves) > 1)
