"""Pictures of decisions: what a threshold costs, what a fix is worth."""

from __future__ import annotations

import math
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.errors import ArgumentError
from trueup.reports.figures.style import (
    COLOURS,
    INK,
    STROKES,
    amount,
    axes_of,
    beside,
    by_name,
    looks,
    plain,
    seen_alone,
    shade,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trueup.decisions import BestRule, DecisionCurve

ASIDE = 0.06  # room left of the first threshold that a capacity allows, in shares of the stretch
ALONE = 4  # actions for all rows that are drawn, the cheapest
FEW = 50  # points up to which a cost curve has all there are, and is drawn as the steps that it is
NEAR, FAR, MARGIN = 2.0, 3.0, 1.06  # a modest cost and one far off, in times of the one before; room at the end of an axis
HARM, DEEP = 0.1, 0.5  # how far below 0 net benefit is shown, in shares of the most: at least, and where scores do harm
NOUGHT = 0.05  # of the largest threshold: where the smallest is below it, the axis begins with 0
PER = 1_000  # rows, for telling a benefit
BEST_RULE = "pass what decisions.best_rule(p, costs) gives"
DECISION_CURVE = 'pass decisions.decision_curve(y, {"before": p, "after": q})'


def draw_cost_curve(best: BestRule, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw what each threshold would cost, the best one marked, and what it costs to treat all rows alike.

    Parameters
    ----------
    best : BestRule
        By ``decisions.best_rule``. Where a rule has more than one threshold there is a line for each: what the rule costs
        when that one moves and the others stay.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional
        What is decided.

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
    by_name(
        best,
        "best",
        "rule by decisions.best_rule",
        ("rule", "estimate", "curves", "uniform_costs", "over_capacity"),
        BEST_RULE,
    )
    if not best.curves:
        raise ArgumentError(
            f"there is no threshold to draw: {best.rule.actions[0].name!r} is best for all rows",
            hint="a rule has a curve where it has two actions or uses more than one",
        )
    ax = axes_of(ax, 6.6, 3.6)
    left, right, bottom, top = _seen(best)
    for (name, points), look in zip(best.curves.items(), looks(best.curves), strict=True):
        at, cost = np.array([one for one in points if one[0] < math.inf or _ends(best)]).T
        look["drawstyle"] = "steps-pre" if len(points) <= FEW else "default"
        ax.plot(np.minimum(at, _beyond(best)), cost, label=name if len(best.curves) > 1 else None, zorder=3, **look)
    _mark_best(ax, best)
    _draw_alone(ax, best)
    ax.set(xlim=(left, right), ylim=(bottom, top))
    ends = _ends(best) and right == _beyond(best)
    across = "threshold" + (" (at the right end above all scores)" if ends else "")
    plain(ax, title, across, "expected cost, by the scores")
    ax.yaxis.set_major_formatter(lambda value, _: amount(value))
    beside(ax)
    return ax


def _draw_alone(ax: Axes, best: BestRule) -> None:
    """Draw what it costs to treat all rows alike, also where a capacity forbids it."""
    cheapest = sorted(best.uniform_costs, key=lambda name: best.uniform_costs[name])[:ALONE]
    named = ((name, cost) for name, cost in best.uniform_costs.items() if name in cheapest)
    for (name, cost), stroke in zip(named, cycle(STROKES[1:]), strict=False):
        over = ", over capacity" if name in best.over_capacity else ""
        label = f"{name} for all rows\n{amount(cost)}{over}"
        ax.axhline(cost, color=COLOURS[-1], linestyle=stroke, linewidth=1.2, label=label)


def _ends(best: BestRule) -> bool:
    """Say whether all thresholds of the right end are there: of many, some are left out unless the best is among them."""
    last = list(best.curves.values())[-1]
    return last[-1][0] == math.inf and (len(last) <= FEW or _none_above(best))


def _none_above(best: BestRule) -> bool:
    """Say whether the best rule leaves all rows to the lower of two actions."""
    return len(best.rule.actions) == 1 and best.rule.actions[0].name == next(iter(best.uniform_costs))


def _highest(best: BestRule) -> float:
    return max((at for points in best.curves.values() for at, _ in points if at < math.inf), default=0.0)


def _beyond(best: BestRule) -> float:
    """Give where to draw a threshold above every score, which leaves no row to the action above: right of them all."""
    return 1.04 * _highest(best) or 1.0


def _seen(best: BestRule) -> tuple[float, float, float, float]:
    """Give the ends of both axes. Where thresholds far off cost many times the best, they are left out of sight.

    So are those that a capacity forbids.
    """
    at, cost = np.concatenate([np.array(points) for points in best.curves.values()]).T
    least, most = min(float(cost.min()), 0.0), max(float(cost.max()), 0.0)
    left, right = 0.0, _beyond(best) if _ends(best) or _highest(best) == 0 else _highest(best)
    if best.over_capacity and at.min() < right:
        left = max(0.0, float(at.min()) - ASIDE * (right - float(at.min())))
    modest = NEAR * min(best.uniform_costs.values())
    if least == 0 < modest and len(best.rule.actions) > 1 and most > FAR * modest:
        near = at[cost <= modest]
        left, right, most = float(near.min()), min(float(near.max()), right), modest
        left = 0.0 if left < right / 2 else left
    around = [each for each in best.uniform_costs.values() if least - (most - least) <= each <= most + (most - least)]
    return left, right, MARGIN * min([least, *around]), MARGIN * max([most, *around]) or 1.0


def _mark_best(ax: Axes, best: BestRule) -> None:
    """Put a dot where each cut is, and tell the rule."""
    parts, cuts = str(best.rule)[6:-1].split("; "), list(best.rule.edges[1:-1])
    if not cuts:  # one action for all rows: the cut is above all scores, or below them
        (points,) = best.curves.values()
        cuts = [_beyond(best) if _none_above(best) else points[0][0]]
    told = parts[-1] if len(parts) <= 2 else "\n" + "\n".join(parts)
    look: dict[str, Any] = {
        "marker": "o",
        "markersize": 8,
        "color": COLOURS[1],
        "markeredgecolor": "white",
        "linestyle": "none",
    }
    allowed = {name: cost for name, cost in best.uniform_costs.items() if name not in best.over_capacity} or {"": 0.0}
    name, least = min(allowed.items(), key=lambda one: one[1])
    saved = f"\n{1 - best.estimate / least:.0%} less than {name} for all" if 0 < best.estimate < least else ""
    label = f"best: {told}\ncosts {amount(best.estimate)}{saved}"
    ax.plot(cuts, [best.estimate] * len(cuts), label=label, clip_on=False, zorder=5, **look)
    ax.vlines(cuts, 0.0, best.estimate, color=COLOURS[1], linewidth=0.9, zorder=2)


def draw_decision_curve(result: DecisionCurve, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the net benefit of acting on scores against the threshold to act from, beside acting on all rows or on none.

    After Vickers & Elkin (2006). Of two scores, before and after a fix, what lies between them is shaded. Far below 0 the
    picture is cut: nobody would act there, and no gain is told from there.

    Parameters
    ----------
    result : DecisionCurve
        By ``decisions.decision_curve``.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional
        What is decided.

    Examples
    --------
    >>> import trueup as tu
    >>> y, before, after = [0, 0, 1, 1], [0.4, 0.7, 0.6, 0.9], [0.2, 0.4, 0.6, 0.9]
    >>> curve = tu.decisions.decision_curve(y, {"before": before, "after": after})
    >>> ax = tu.figures.draw_decision_curve(curve)
    >>> print(ax.get_legend().get_texts()[2].get_text())
    gain by 'after',
    may be chance
    """
    parts = ("threshold", "benefit", "low", "high", "treat_all", "treat_none", "difference")
    by_name(result, "result", "curve by decisions.decision_curve", parts, DECISION_CURVE)
    t, names = result.threshold, list(result.benefit)
    ax = axes_of(ax, 6.8, 3.8)
    faint = shade(len(names), 0.13)
    dot = seen_alone(t)
    most = max(float(np.max(line)) for line in (*result.benefit.values(), result.treat_all)) or 1.0
    least = min(float(np.min(line)) for line in result.benefit.values())
    bottom = min(-HARM * most, max(least, -DEEP * most))
    for name, look in zip(names, looks(result.benefit), strict=True):
        colour = look["color"]
        ax.fill_between(t, result.low[name], result.high[name], color=colour, alpha=faint, linewidth=0, zorder=1)
        ax.plot(t, result.benefit[name], label=name, zorder=4, **look, **dot)
    if len(names) == 2:
        _shade_difference(ax, result, names[0], names[1], bottom)
    ax.plot(t, result.treat_all, color=COLOURS[-1], linestyle="-.", linewidth=1.2, label="act on all rows", zorder=2, **dot)
    ax.plot(t, result.treat_none, color=INK, linewidth=1.0, label="act on none", zorder=2, **dot)
    if len(t) > 1:
        ax.set_xlim(0.0 if t[0] < NOUGHT * t[-1] else t[0], t[-1])
    ax.set_ylim(bottom, MARGIN * most)
    plain(ax, title, "threshold to act from", "net benefit\n(true positives a row)")
    beside(ax)
    return ax


def _shade_difference(ax: Axes, result: DecisionCurve, before: str, after: str, bottom: float) -> None:
    """Shade what the second score gains over the first, and what it loses; tell the most of what is sure and in sight."""
    t, first, second = result.threshold, result.benefit[before], result.benefit[after]
    _, low, high = result.difference[after]
    seen = np.minimum(first, second) >= bottom
    for what, more, sure, colour in (
        ("gain", second - first, seen & (low > 0), COLOURS[2]), ("loss", first - second, seen & (high < 0), COLOURS[3])
    ):  # fmt: skip
        if (more <= 0).all():
            continue
        at = int(np.argmax(np.where(sure, more, -math.inf)))
        told = f": up to {PER * more[at]:.3g}\nper {PER:,} rows, at {t[at]:.4g}" if sure.any() else ",\nmay be chance"
        ax.fill_between(
            t, first, second, where=more >= 0, interpolate=True, color=colour, alpha=0.35, linewidth=0, zorder=3,
            label=f"{what} by {after!r}{told}",
        )  # fmt: skip
