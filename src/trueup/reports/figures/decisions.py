"""Figures of decisions: costs of thresholds, net benefit, rates without labels, and abstention."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.decisions import BestRule, DecisionCurve, ExpectedCurve, RewardCurve, RiskCoverage
from trueup.decisions.evidence import format_amount
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import validate_scores
from trueup.reports.figures.style import (
    COLOURS,
    GRID,
    INK,
    LINE_STYLES,
    MAX_LEGEND_WIDTH,
    band_alpha,
    check_result,
    get_axes,
    line_styles,
    point_marker,
    results_by_name,
    style_axes,
    thin_line,
)
from trueup.reports.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trueup._types import FloatArray

MAX_UNIFORM_COSTS = 4  # actions for all rows that are drawn, the cheapest
MAX_EXACT_POINTS = 50  # up to which a cost curve has all thresholds, and is drawn as steps
MAX_SHOWN_COST = 2.0  # times the cheapest uniform cost: the top of the axis if some thresholds cost far more
FAR_MORE = 3.0  # times the top of the axis
MARGIN = 1.06  # of an axis beyond the data
MARGIN_BEFORE_CAPACITY = 0.06  # of the axis, left of the first threshold that a capacity allows
MIN_DEPTH, MAX_DEPTH = 0.1, 0.5  # how far below 0 net benefit is shown, as shares of its maximum
NEAR_ZERO = 0.05  # the axis starts at 0 if the smallest threshold is below this share of the largest
PER_ROWS = 1_000
MAX_LINES_INSIDE, MAX_NAME_INSIDE = 4, 16  # lines, and characters of a name, that fit a legend inside the axes
LABELS = {
    "roc": ("AUC", "false positive rate", "true positive rate"),
    "pr": ("average precision", "recall", "precision"),
}
REWARD_CURVE = "a curve from decisions.reward_curve"
REFERENCE: dict[str, Any] = {"color": COLOURS[-1], "linewidth": 1.2, "zorder": 2}
EXPECTED: dict[str, Any] = {"color": COLOURS[1], "linestyle": "--", "linewidth": 1.4, "zorder": 3}
EXPECTED_LABEL = "expected by confidence"
BAND = 2.0  # standard errors


# Costs and net benefit


def draw_cost_curve(best: BestRule, ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the expected cost of each threshold, the best one marked, and the cost of one action for all rows.

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
    last = list(best.curves.values())[-1]
    largest = max((t for points in best.curves.values() for t, _ in points if t < math.inf), default=0.0)
    end = 1.04 * largest or 1.0  # where the threshold above all scores is drawn: to the right of all others
    lower_only = [action.name for action in best.rule.actions] == list(best.uniform_costs)[:1]
    # The threshold above all scores is drawn if there are few thresholds, or if it is the best.
    shows_end = last[-1][0] == math.inf and (len(last) <= MAX_EXACT_POINTS or lower_only)
    ax = get_axes(ax, 6.6, 3.6)
    left, right, bottom, top = _cost_limits(best, end if shows_end or largest == 0 else largest)
    for (name, points), style in zip(best.curves.items(), line_styles(len(best.curves)), strict=True):
        threshold, cost = np.array([point for point in points if point[0] < math.inf or shows_end]).T
        style["drawstyle"] = "steps-pre" if len(points) <= MAX_EXACT_POINTS else "default"
        label = name if len(best.curves) > 1 else None
        ax.plot(np.minimum(threshold, end), cost, label=label, zorder=3, **style)
    # A rule of one action has no threshold: it is above all scores, or below them.
    _mark_best(ax, best, list(best.rule.edges[1:-1]) or [end if lower_only else last[0][0]])
    cheapest = sorted(best.uniform_costs, key=lambda name: best.uniform_costs[name])[:MAX_UNIFORM_COSTS]
    shown = ((name, cost) for name, cost in best.uniform_costs.items() if name in cheapest)
    for (name, cost), line_style in zip(shown, cycle(LINE_STYLES[1:]), strict=False):
        over = ", over capacity" if name in best.over_capacity else ""
        label = f"{name} for all rows\n{format_amount(cost)}{over}"
        ax.axhline(cost, color=COLOURS[-1], linestyle=line_style, linewidth=1.2, label=label)
    ax.set(xlim=(left, right), ylim=(bottom, top))
    ax.yaxis.set_major_formatter(lambda value, _: format_amount(value))
    at_end = " (right end: above all scores)" if shows_end and right == end else ""
    return style_axes(ax, title, f"threshold{at_end}", "expected cost", legend=True)


def _cost_limits(best: BestRule, right: float) -> tuple[float, float, float, float]:
    """Return left, right, bottom and top of the axes; ``right`` is the last threshold.

    Thresholds that a capacity forbids, or that cost far more than the cheapest action for all rows, are left out.
    """
    threshold, cost = np.concatenate([np.array(points) for points in best.curves.values()]).T
    lowest, highest = min(float(cost.min()), 0.0), max(float(cost.max()), 0.0)
    left, first = 0.0, float(threshold.min())
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


def _mark_best(ax: Axes, best: BestRule, thresholds: list[float]) -> None:
    """Mark the thresholds of the best rule, and describe it in the legend."""
    parts = best.rule.describe()
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

    After Vickers & Elkin (2006). The shaded intervals are pointwise: they hold at one threshold by itself. For two scores,
    such as before and after a fix, the area between them is shaded, and labelled with the largest gain that is significant
    for all thresholds at once. The axis ends a little below 0, and gains below it are not reported.

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
    return style_axes(ax, title, "threshold", "net benefit\n(true positives per row)", legend=True)


def _shade_difference(ax: Axes, result: DecisionCurve, before: str, after: str, bottom: float) -> None:
    """Shade gains and losses of ``after``, and label the largest significant one above ``bottom``, the end of the axis."""
    t, first, second = result.threshold, result.benefit[before], result.benefit[after]
    low, high = result.difference[after].band_low, result.difference[after].band_high
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


# Rates without labels


def draw_roc(
    curve: ExpectedCurve | Mapping[str, ExpectedCurve], ax: Axes | None = None, *, truth: Any = None, title: str = ""
) -> Axes:
    """Draw the expected ROC curve of rows without labels, with its band.

    After Gao, Parameswaran & Peng (2017), Figure 4. The band lies between the best and the worst curve that the errors of
    the scores allow. If labels have become known, the realised curve is drawn over it.

    Parameters
    ----------
    curve : ExpectedCurve, or a mapping of names to them
        From ``decisions.expected_roc``.
    ax : matplotlib Axes, optional
        A new figure by default.
    truth : (y, p) or (y, p, weight), or a mapping of the same names to such tuples, optional
        Outcomes and scores of rows whose outcomes are known.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> p = [0.1, 0.4, 0.8, 0.9]
    >>> ax = tu.figures.draw_roc(tu.decisions.expected_roc(p), truth=([0, 1, 0, 1], p))
    >>> ax.get_legend().get_texts()[-1].get_text()
    'realised: AUC 0.750'
    """
    return _draw("roc", curve, ax, truth, title)


def draw_pr(
    curve: ExpectedCurve | Mapping[str, ExpectedCurve], ax: Axes | None = None, *, truth: Any = None, title: str = ""
) -> Axes:
    """Draw the expected precision-recall curve of rows without labels, with its band.

    Parameters
    ----------
    curve : ExpectedCurve, or a mapping of names to them
        From ``decisions.expected_pr``.
    ax : matplotlib Axes, optional
        A new figure by default.
    truth : (y, p) or (y, p, weight), or a mapping of the same names to such tuples, optional
        Outcomes and scores of rows whose outcomes are known.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> p = [0.1, 0.4, 0.8, 0.9]
    >>> ax = tu.figures.draw_pr(tu.decisions.expected_pr(p), truth=([0, 1, 0, 1], p))
    >>> ax.get_legend().get_texts()[-1].get_text()
    'realised: average precision 0.833'
    """
    return _draw("pr", curve, ax, truth, title)


def _draw(kind: str, curve: Any, ax: Axes | None, truth: Any, title: str) -> Axes:
    named = results_by_name("curve", curve, ExpectedCurve, f"a curve from decisions.expected_{kind}")
    for name, item in named.items():
        which = f"the curve of {name!r}" if name else "the curve"
        if item.kind != kind:
            raise ArgumentError(f"{which} is of kind {item.kind!r}, not {kind!r}", hint=f"use draw_{item.kind}")
        if not np.isfinite(item.area):
            raise DataError(f"{which} has no rates: all scores are 0, or all are 1", hint="the rates need both outcomes")
    known, styles = _check_truth(truth, named), line_styles(len(named))
    area, x_label, y_label = LABELS[kind]
    crowded = len(named) + len(known) > MAX_LINES_INSIDE or max(map(len, named)) > MAX_NAME_INSIDE
    separator = "\n" if crowded else " "
    ax = get_axes(ax, 8.2 if crowded else 4.8, 4.8)
    shares = dict.fromkeys(round(float(item.y[-1]), 3) for item in named.values())
    for start, end in [(0.0, 1.0)] if kind == "roc" else [(share, share) for share in shares]:  # uninformative scores
        ax.plot([0.0, 1.0], [start, end], color=COLOURS[-1], linestyle=":", linewidth=1.2, zorder=2)
    levels = ", ".join(
        dict.fromkeys("by c alone" if np.isnan(item.level) else percent(item.level) for item in named.values())
    )
    band_label = f"{'bands' if len(named) > 1 else 'band'}: {levels}"  # once for all bands
    for (name, item), style in zip(named.items(), styles, strict=True):
        interval = f"{item.area:.3f} ({item.area_low:.3f} to {item.area_high:.3f})"
        label = f"{name or 'expected'}:{separator}{area} {interval}"
        ax.plot(*thin_line(item.x, item.y), label=label, zorder=3, **style)
    for index, (item, style) in enumerate(zip(named.values(), styles, strict=True)):
        alpha = band_alpha(len(named), 0.16)
        label = "" if index else band_label
        ax.fill(*band_outline(item), label=label, color=style["color"], alpha=alpha, linewidth=0, zorder=1)
    for name, rows in known.items():
        x, y, value = _realised_curve(kind, *rows)
        colour = styles[list(named).index(name)]["color"] if name else COLOURS[4]
        label = f"{name + ', ' if name else ''}realised:{separator}{area} {value:.3f}"
        ax.plot(*thin_line(x, y), color=colour, linewidth=1.0, label=label, zorder=4)
    ax.grid(axis="x", color=GRID, linewidth=0.8)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    if not crowded:  # the legend fits where no line runs: below a high curve, above a low one
        low = kind == "pr" and np.mean([item.area for item in named.values()]) < 0.5
        place: Any = "upper right" if low else "lower right" if kind == "roc" else "lower left"
        ax.legend(loc=place, frameon=False, labelcolor=INK, fontsize=9, handlelength=2.2)
    return style_axes(ax, title, x_label, y_label, legend=crowded)


def _check_truth(truth: Any, named: Mapping[str, Any]) -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
    """Validate outcomes, scores and weights; return them by the name of their curve, empty for a single tuple."""
    if truth is None:
        return {}
    checked = {}
    for name, rows in (truth if isinstance(truth, Mapping) else {"": truth}).items():
        if name and name not in named:
            raise ArgumentError(f"truth names {name!r}, which has no curve", hint=f"names are {list(named)}")
        if not isinstance(rows, tuple) or len(rows) not in (2, 3):
            hint = "outcomes first, then scores, optionally weights; or a mapping of names to such tuples"
            raise ArgumentError(f"truth must be (y, p) or (y, p, weight); got {type(rows).__name__}", hint=hint)
        y, p, w = validate_scores(*rows)
        if not 0 < float(w @ y) < float(w.sum()):
            raise DataError("truth must have rows of both outcomes", hint="otherwise a rate has no denominator")
        checked[name] = (y, p, w)
    return checked


def _realised_curve(kind: str, y: FloatArray, p: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return the curve of known outcomes, one point per distinct score from the highest down, and the area below it."""
    order = np.argsort(-p, kind="stable")
    last = np.flatnonzero(np.append(np.diff(p[order]) != 0, True))
    hits, taken = np.cumsum((w * y)[order])[last], np.cumsum(w[order])[last]
    recall = hits / hits[-1]
    if kind == "pr":
        precision = hits / taken
        return recall, precision, float(np.diff(recall, prepend=0.0) @ precision)
    x, y = np.append(0.0, (taken - hits) / (taken[-1] - hits[-1])), np.append(0.0, recall)
    return x, y, float(np.diff(x) @ (y[1:] + y[:-1]) / 2)


def band_outline(curve: ExpectedCurve) -> tuple[FloatArray, FloatArray]:
    """Return the outline of all points that lie within the limits at some threshold."""
    finite = np.isfinite(curve.x) & np.isfinite(curve.y)
    left, right, low, high = (np.asarray(part)[finite] for part in (curve.x_low, curve.x_high, curve.y_low, curve.y_high))
    if curve.kind == "roc":  # increasing: the outline follows the upper left and the lower right corners
        above = thin_line([0.0, *left, 1.0], [0.0, *high, 1.0])
        below = thin_line([0.0, *right, 1.0], [0.0, *low, 1.0])
    else:  # decreasing: the upper right and the lower left corners
        above = thin_line([0.0, *right], [high[0], *high])
        below = thin_line([0.0, *left, 1.0], [low[0], *low, low[-1]])
    x, y = (np.concatenate([first, second[::-1]]) for first, second in zip(above, below, strict=True))
    return x, y


# Abstention


def draw_reward(
    curves: RewardCurve | Mapping[str, RewardCurve], against: str | RewardCurve | None = None, ax: Axes | None = None, *,
    title: str = "",
) -> Axes:  # fmt: skip
    """Draw the reward per row of answering only if confident, by the cost of a wrong answer.

    Parameters
    ----------
    curves : RewardCurve, or a mapping of names to them
        From ``decisions.reward_curve``. For a single curve with known outcomes, the reward that the confidences predict is
        drawn too.
    against : str or RewardCurve, optional
        Draw the difference to this curve, a name among the curves or a curve (Luo et al. 2022, Figure 4).
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> p, y = [0.9, 0.8, 0.6], [1, 1, 0]
    >>> curves = {"before": tu.decisions.reward_curve(p, y), "after": tu.decisions.reward_curve([0.95, 0.9, 0.5], y)}
    >>> tu.figures.draw_reward(curves).get_xscale()
    'log'
    >>> tu.figures.draw_reward(curves, against="before").get_ylabel()
    "reward per row minus that of 'before'"
    """
    named = results_by_name("curves", curves, RewardCurve, REWARD_CURVE)
    baseline, y_label = None, "reward per row (abstaining: −1)"
    if isinstance(against, str):
        if against not in named:
            raise ArgumentError(f"against names {against!r}, which is no curve", hint=f"names are {list(named)}")
        baseline = named[against]
        y_label = textwrap.fill(f"reward per row minus that of {against!r}", MAX_LEGEND_WIDTH + 6)
    elif against is not None:
        check_result("against", against, RewardCurve, f"a name or {REWARD_CURVE}")
        baseline, y_label = against, "difference in reward per row"
    lines = {name: curve.reward if baseline is None else curve.gain(baseline) for name, curve in named.items()}
    ax = get_axes(ax, 6.6, 3.6)
    for (name, curve), style in zip(named.items(), line_styles(len(named)), strict=True):
        if curve is not baseline:
            order = np.argsort(curve.ratio)
            band = f" (±{BAND:g} standard errors)" if baseline is None and curve.labelled else ""
            label = name or f"{'realised' if curve.labelled else 'expected'}{band}"
            ax.plot(curve.ratio[order], lines[name][order], label=label, zorder=3, **style, **point_marker(order))
    if baseline is None:
        _draw_references(ax, list(named.values()), single="" in named)
        lowest = min(float(np.min(line)) for line in lines.values())
        ax.set_ylim(min(1.1 * lowest, -1.08), 0.0)
    else:
        ax.axhline(0.0, **REFERENCE)
    ticks = require("matplotlib.ticker", extra="plots")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(ticks.LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_minor_locator(ticks.NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    return style_axes(ax, title, "cost of a wrong answer relative to abstaining", y_label, legend=True)


def _draw_references(ax: Axes, curves: list[Any], *, single: bool) -> None:
    """Draw the expected reward of a single curve, and the oracle, never and always rewards if equal for all curves."""
    first = curves[0]
    order = np.argsort(first.ratio)
    ratio, marker = first.ratio[order], point_marker(order)
    if single and first.labelled:
        ax.plot(ratio, first.expected[order], label=EXPECTED_LABEL, **EXPECTED, **marker)
        low, high = (first.reward + sign * BAND * first.standard_error for sign in (-1, 1))
        ax.fill_between(ratio, low[order], high[order], color=COLOURS[0], alpha=0.16, linewidth=0, zorder=1)
    for name, label, line_style in (
        ("oracle", "only correct answers", "--"),
        ("never", "never answer", ":"),
        ("always", "always answer", "-."),
    ):
        line = getattr(first, name)
        others = [getattr(curve, name) for curve in curves]
        if all(np.shape(line) == np.shape(other) and np.allclose(line, other) for other in others):
            ax.plot(ratio, line[order], linestyle=line_style, label=label, **REFERENCE, **marker)


def draw_risk_coverage(
    curves: RiskCoverage | Mapping[str, RiskCoverage], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw the share of wrong answers by the share of rows answered, the most confident rows first.

    Parameters
    ----------
    curves : RiskCoverage, or a mapping of names to them
        From ``decisions.risk_coverage``. For a single curve with known outcomes, the risk that the confidences predict is
        drawn too.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> ax = tu.figures.draw_risk_coverage(tu.decisions.risk_coverage([0.9, 0.8, 0.6, 0.6], [1, 1, 0, 1]))
    >>> ax.get_legend().get_texts()[0].get_text()
    'realised: PRR 0.667'
    """
    named = results_by_name("curves", curves, RiskCoverage, "a curve from decisions.risk_coverage")
    ax = get_axes(ax, 6.6, 3.6)

    def line(curve: RiskCoverage, risk: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Add a point at coverage 0 with the risk of the first step, whose rows are tied: any subset has that risk."""
        return thin_line(np.append(0.0, curve.coverage), np.append(risk[0], risk))

    for (name, curve), style in zip(named.items(), line_styles(len(named)), strict=True):
        prr = "" if np.isnan(curve.prr) else f": PRR {curve.prr:.3f}"  # undefined without errors, or with nothing else
        label = name or ("realised" if curve.labelled else "expected")
        ax.plot(*line(curve, curve.risk), label=f"{label}{prr}", zorder=3, **style)
    if "" in named and named[""].labelled:
        ax.plot(*line(named[""], named[""].expected), label=EXPECTED_LABEL, **EXPECTED)
    error_rates = [curve.random_area for curve in named.values()]
    if np.allclose(error_rates, error_rates[0]):
        coverage = np.linspace(0.0, 1.0, 201)[1:]
        ideal = np.maximum(0.0, coverage - (1 - error_rates[0])) / coverage
        ax.plot(coverage, ideal, linestyle="--", label="all errors last", **REFERENCE)
        ax.plot([0.0, 1.0], error_rates[:1] * 2, linestyle=":", label="random order", **REFERENCE)
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(bottom=0.0)
    x_label = "share of rows answered, most confident first"
    return style_axes(ax, title, x_label, "share of wrong answers", legend=True)
