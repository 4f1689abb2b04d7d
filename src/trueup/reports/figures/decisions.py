"""Figures of decisions: the cost of thresholds, and the net benefit of scores."""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING

import numpy as np

from trueup.decisions import BestRule, DecisionCurve
from trueup.errors import ArgumentError
from trueup.reports.figures.style import (
    COLOURS,
    INK,
    LINE_STYLES,
    band_alpha,
    check_result,
    format_amount,
    get_axes,
    line_styles,
    place_legend,
    point_marker,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MAX_UNIFORM_COSTS = 4  # actions for all rows that are drawn, the cheapest
MAX_EXACT_POINTS = 50  # up to which a cost curve has all thresholds, and is drawn as steps
MAX_SHOWN_COST = 2.0  # times the cheapest uniform cost: the top of the axis if some thresholds cost far more
FAR_MORE = 3.0  # times the top of the axis
MARGIN = 1.06  # of an axis beyond the data
MARGIN_BEFORE_CAPACITY = 0.06  # of the axis, left of the first threshold that a capacity allows
MIN_DEPTH, MAX_DEPTH = 0.1, 0.5  # how far below 0 net benefit is shown, as shares of its maximum
NEAR_ZERO = 0.05  # the axis starts at 0 if the smallest threshold is below this share of the largest
PER_ROWS = 1_000


def draw_cost_curve(best: BestRule, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the expected cost of each threshold, the best one marked, and the cost of treating all rows alike.

    Parameters
    ----------
    best : BestRule
        From ``decisions.best_rule``. A rule with several thresholds has one line for each: the cost of the rule if that
        threshold changes and the others do not.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> best = tu.decisions.best_rule([0.1, 0.15, 0.3, 0.9], {"fn": 5, "fp": 1})
    >>> ax = tu.figures.draw_cost_curve(best, title="whom to call")
    >>> print(ax.get_legend().get_texts()[0].get_text())
    best: act from 0.1667
    costs 2.05
    20% less than act for all
    """
    check_result("best", best, BestRule, "a rule from decisions.best_rule")
    if not best.curves:
        raise ArgumentError(
            f"there is no threshold to draw: {best.rule.actions[0].name!r} is best for all rows",
            hint="a rule has a curve if it has two actions or uses more than one",
        )
    ax = get_axes(ax, 6.6, 3.6)
    left, right, bottom, top = _cost_limits(best)
    for (name, points), style in zip(best.curves.items(), line_styles(len(best.curves)), strict=True):
        threshold, cost = np.array([point for point in points if point[0] < math.inf or _shows_end(best)]).T
        style["drawstyle"] = "steps-pre" if len(points) <= MAX_EXACT_POINTS else "default"
        label = name if len(best.curves) > 1 else None
        ax.plot(np.minimum(threshold, _end_position(best)), cost, label=label, zorder=3, **style)
    _mark_best(ax, best)
    cheapest = sorted(best.uniform_costs, key=lambda name: best.uniform_costs[name])[:MAX_UNIFORM_COSTS]
    shown = ((name, cost) for name, cost in best.uniform_costs.items() if name in cheapest)
    for (name, cost), line_style in zip(shown, cycle(LINE_STYLES[1:]), strict=False):
        over = ", over capacity" if name in best.over_capacity else ""
        label = f"{name} for all rows\n{format_amount(cost)}{over}"
        ax.axhline(cost, color=COLOURS[-1], linestyle=line_style, linewidth=1.2, label=label)
    ax.set(xlim=(left, right), ylim=(bottom, top))
    at_end = _shows_end(best) and right == _end_position(best)
    style_axes(ax, title, "threshold" + (" (right end: above all scores)" if at_end else ""), "expected cost")
    ax.yaxis.set_major_formatter(lambda value, _: format_amount(value))
    place_legend(ax)
    return ax


def _shows_end(best: BestRule) -> bool:
    """Return whether the threshold above all scores is drawn: if there are few thresholds, or if it is the best."""
    last = list(best.curves.values())[-1]
    return last[-1][0] == math.inf and (len(last) <= MAX_EXACT_POINTS or _lower_action_only(best))


def _lower_action_only(best: BestRule) -> bool:
    return len(best.rule.actions) == 1 and best.rule.actions[0].name == next(iter(best.uniform_costs))


def _largest_threshold(best: BestRule) -> float:
    return max((t for points in best.curves.values() for t, _ in points if t < math.inf), default=0.0)


def _end_position(best: BestRule) -> float:
    """Return where the threshold above all scores is drawn: to the right of all others."""
    return 1.04 * _largest_threshold(best) or 1.0


def _cost_limits(best: BestRule) -> tuple[float, float, float, float]:
    """Return left, right, bottom and top of the axes.

    Thresholds that cost many times the best uniform cost are left out, and those that a capacity forbids.
    """
    threshold, cost = np.concatenate([np.array(points) for points in best.curves.values()]).T
    lowest, highest = min(float(cost.min()), 0.0), max(float(cost.max()), 0.0)
    largest = _largest_threshold(best)
    left, right = 0.0, _end_position(best) if _shows_end(best) or largest == 0 else largest
    first = float(threshold.min())
    if best.over_capacity and first < right:
        left = max(0.0, first - MARGIN_BEFORE_CAPACITY * (right - first))
    limit = MAX_SHOWN_COST * min(best.uniform_costs.values())
    if lowest == 0 < limit and len(best.rule.actions) > 1 and highest > FAR_MORE * limit:
        affordable = threshold[cost <= limit]
        left, right, highest = float(affordable.min()), min(float(affordable.max()), right), limit
        left = 0.0 if left < right / 2 else left
    height = highest - lowest
    uniform = [value for value in best.uniform_costs.values() if lowest - height <= value <= highest + height]
    return left, right, MARGIN * min([lowest, *uniform]), MARGIN * max([highest, *uniform]) or 1.0


def _mark_best(ax: Axes, best: BestRule) -> None:
    """Mark the thresholds of the best rule, and describe it in the legend."""
    parts = repr(best.rule).removeprefix("<Rule ").removesuffix(">").split("; ")
    thresholds = list(best.rule.edges[1:-1])
    if not thresholds:  # one action for all rows: the threshold is above all scores, or below them
        (points,) = best.curves.values()
        thresholds = [_end_position(best) if _lower_action_only(best) else points[0][0]]
    rule = parts[-1] if len(parts) <= 2 else "\n" + "\n".join(parts)
    allowed = {name: cost for name, cost in best.uniform_costs.items() if name not in best.over_capacity} or {"": 0.0}
    name, least = min(allowed.items(), key=lambda item: item[1])
    saving = f"\n{1 - best.estimate / least:.0%} less than {name} for all" if 0 < best.estimate < least else ""
    ax.plot(
        thresholds, [best.estimate] * len(thresholds), marker="o", markersize=8, color=COLOURS[1], markeredgecolor="white",
        linestyle="none", clip_on=False, zorder=5, label=f"best: {rule}\ncosts {format_amount(best.estimate)}{saving}",
    )  # fmt: skip
    ax.vlines(thresholds, 0.0, best.estimate, color=COLOURS[1], linewidth=0.9, zorder=2)


def draw_decision_curve(result: DecisionCurve, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the net benefit of acting on scores by threshold, compared with acting on all rows or on none.

    After Vickers & Elkin (2006). For two scores, such as before and after a fix, the area between them is shaded. The axis
    ends a little below 0, and gains beyond it are not reported.

    Parameters
    ----------
    result : DecisionCurve
        From ``decisions.decision_curve``.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> y, before, after = [0, 0, 1, 1], [0.4, 0.7, 0.6, 0.9], [0.2, 0.4, 0.6, 0.9]
    >>> curve = tu.decisions.decision_curve(y, {"before": before, "after": after})
    >>> ax = tu.figures.draw_decision_curve(curve)
    >>> print(ax.get_legend().get_texts()[2].get_text())
    gain of 'after',
    not significant
    """
    check_result("result", result, DecisionCurve, "a curve from decisions.decision_curve")
    t, names = result.threshold, list(result.benefit)
    ax = get_axes(ax, 6.8, 3.8)
    marker = point_marker(t)
    highest = max(float(np.max(line)) for line in (*result.benefit.values(), result.treat_all)) or 1.0
    lowest = min(float(np.min(line)) for line in result.benefit.values())
    bottom = min(-MIN_DEPTH * highest, max(lowest, -MAX_DEPTH * highest))
    for name, style in zip(names, line_styles(len(names)), strict=True):
        alpha = band_alpha(len(names), 0.13)
        ax.fill_between(t, result.low[name], result.high[name], color=style["color"], alpha=alpha, linewidth=0, zorder=1)
        ax.plot(t, result.benefit[name], label=name, zorder=4, **style, **marker)
    if len(names) == 2:
        _shade_difference(ax, result, names[0], names[1], bottom)
    ax.plot(
        t, result.treat_all, color=COLOURS[-1], linestyle="-.", linewidth=1.2, label="act on all rows", zorder=2, **marker
    )
    ax.plot(t, result.treat_none, color=INK, linewidth=1.0, label="act on none", zorder=2, **marker)
    if len(t) > 1:
        ax.set_xlim(0.0 if t[0] < NEAR_ZERO * t[-1] else t[0], t[-1])
    ax.set_ylim(bottom, MARGIN * highest)
    style_axes(ax, title, "threshold", "net benefit\n(true positives per row)")
    place_legend(ax)
    return ax


def _shade_difference(ax: Axes, result: DecisionCurve, before: str, after: str, bottom: float) -> None:
    """Shade gains and losses of the second score, and report the largest that is significant and visible."""
    t, first, second = result.threshold, result.benefit[before], result.benefit[after]
    _, low, high = result.difference[after]
    visible = np.minimum(first, second) >= bottom
    for kind, difference, significant, colour in (
        ("gain", second - first, visible & (low > 0), COLOURS[2]),
        ("loss", first - second, visible & (high < 0), COLOURS[3]),
    ):
        if (difference <= 0).all():
            continue
        size = ",\nnot significant"
        if significant.any():
            largest = int(np.argmax(np.where(significant, difference, -math.inf)))
            size = f": up to {PER_ROWS * difference[largest]:.3g}\nper {PER_ROWS:,} rows, at {t[largest]:.4g}"
        ax.fill_between(
            t, first, second, where=difference >= 0, interpolate=True, color=colour, alpha=0.35, linewidth=0, zorder=3,
            label=f"{kind} of {after!r}{size}",
        )  # fmt: skip
