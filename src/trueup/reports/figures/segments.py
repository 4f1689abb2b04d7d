"""Figures of the segments of an audit: the worst with their intervals, and all of them by size."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice, check_integer
from trueup.audits.result import Audit, Finding
from trueup.errors import ArgumentError, DataError
from trueup.reports.figures.style import (
    COLOURS,
    GREY,
    INK,
    MAX_VECTOR_MARKS,
    check_result,
    escaped_name,
    get_axes,
    style_axes,
)
from trueup.reports.model import STATES
from trueup.reports.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray

AUDIT = "an audit from trueup.audit"
MAX_RATIO = 8.0  # larger ratios, and those below its inverse, are drawn at the edge
RATIO_TICKS = (1 / 8, 1 / 4, 1 / 2, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 8)
FINE_RATIO_TICKS = (0.8, 0.9, 1.1, 1.25)
STATE_COLOURS = {
    "flagged": COLOURS[1], "possible": COLOURS[6], "within": COLOURS[6], "passed": COLOURS[7], "untested": GREY,
}  # fmt: skip
FILLED = ("flagged", "possible")  # kinds of states that may matter
QUANTITIES = {
    "sigma": "largest cumulative difference\n(standard deviations)",
    "ecce": "largest cumulative difference",
    "relative": "multicalibration error\nrelative to the prevalence",
    "p_value": "p-value",
}
SMALLEST_P = 1e-300
LABEL_GAP = 0.055  # of the height of the axes, between labels
MAX_LEVELS = len(COLOURS) - 2  # of a highlighted column: one colour for other levels, black is hard to tell from ink


def draw_segments(audit: Audit, ax: Axes | None = None, *, count: int = 20, title: str = "") -> Axes:
    """Draw observed/expected of the worst segments with their intervals, which hold for all segments at once.

    Material errors (without a tolerance of the audit, all significant ones) and possibly material ones are filled, in
    colours of their own; other segments are hollow. A relative tolerance is shaded. Ratios and ends beyond 8 or below 1/8
    are drawn at the edge. If some expected mean is not positive, observed minus expected is drawn instead.

    Parameters
    ----------
    audit : Audit
    ax : matplotlib Axes, optional
        A new figure by default.
    count : int
        Maximum number of segments, of those that were tested; the worst is at the top.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> audit = tu.audit(tu.simulate.lending(2_000, seed=1), outcome="outcome", prediction="prediction", by=["region"])
    >>> ax = tu.figures.draw_segments(audit, count=3)
    >>> ax.get_yticklabels()[0].get_text()
    'region=harbour'
    """
    check_result("audit", audit, Audit, AUDIT)
    check_integer("count", count, 1)
    findings = audit.worst(min(int(count), audit.tested))
    if not findings:
        raise DataError("no segment was tested", hint="lower min_rows, or collect more rows")
    ax = get_axes(ax, 7.6, 1.1 + 0.27 * len(findings))
    as_ratio = all(f.expected > 0 and math.isfinite(f.ratio) and f.ratio >= 0 for f in findings)
    values = np.array(
        [(f.ratio, f.ratio_low_adjusted, f.ratio_high_adjusted) if as_ratio else _difference(f) for f in findings]
    )
    values = np.clip(values, 1 / MAX_RATIO, MAX_RATIO) if as_ratio else values
    for state, (label, kind) in STATES.items():
        chosen = np.array([finding.state == state for finding in findings])
        colour = STATE_COLOURS[kind]
        _draw_intervals(ax, values, chosen, colour, colour if kind in FILLED else "white", label)
    tolerance = audit.settings.tolerance
    if as_ratio and tolerance is not None and tolerance.relative and tolerance.value:
        ax.axvspan(1 / (1 + tolerance.value), 1 + tolerance.value, color=GREY, alpha=0.35, linewidth=0, zorder=0.5)
    ax.axvline(1.0 if as_ratio else 0.0, color=INK, linewidth=0.9, zorder=1)
    ax.set_yticks(range(len(findings)), [escaped_name(finding.segment) for finding in findings])
    ax.set_ylim(len(findings) - 0.4, -0.6)
    if as_ratio:
        low, high = min(float(values.min()), 0.9), max(float(values.max()), 1.1)
        ticks = [tick for tick in RATIO_TICKS if high / low <= 2.5 or tick not in FINE_RATIO_TICKS]
        ticks = [tick for tick in ticks if low / 1.05 <= tick <= high * 1.05]
        ax.set_xscale("log")
        ax.set_xlim(low / 1.08, high * 1.08)
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    quantity = "observed / expected" if as_ratio else "observed minus expected"
    level = percent(1 - audit.settings.alpha)
    style_axes(ax, title, f"{quantity} ({level} intervals, for all segments at once)", "", legend=True)
    ax.grid(visible=False, axis="y")
    return ax


def draw_segment_scatter(
    audit: Audit,
    ax: Axes | None = None,
    *,
    quantity: str = "sigma",
    highlight: str | None = None,
    labels: int = 5,
    title: str = "",
) -> Axes:
    """Draw all tested segments of an audit: the size of the error against the number of rows, on a logarithmic axis.

    Colours are the states of segments; material errors (without a tolerance, all significant ones) and possibly material
    ones are filled. With clusters the number
    of rows is the effective one: rows divided by the design effect.

    Parameters
    ----------
    audit : Audit
    ax : matplotlib Axes, optional
        A new figure by default.
    quantity : {"sigma", "ecce", "relative", "p_value"}
        The height of the points: the range of the cumulative differences in standard deviations or in units of the score;
        the former in units of the score over all rows, divided by the prevalence (its maximum is ``audit.mce_relative``);
        or the unadjusted p-value, on an inverted logarithmic axis.
    highlight : str, optional
        A column of ``by``: its segments are coloured by their level, in place of states.
    labels : int
        Number of segments to be labelled, those with the largest error.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> loans = tu.simulate.lending(2_000, seed=1)
    >>> audit = tu.audit(loans, outcome="outcome", prediction="prediction", by=["region", "product"])
    >>> ax = tu.figures.draw_segment_scatter(audit, labels=2)
    >>> ax.get_xscale(), [text.get_text() for text in ax.texts]
    ('log', ['region=harbour & product=personal', 'region=harbour'])
    """
    check_result("audit", audit, Audit, AUDIT)
    check_choice("quantity", quantity, tuple(QUANTITIES))
    check_integer("labels", labels, 0)
    ranks = np.flatnonzero(audit.columns["testable"])
    if not len(ranks):
        raise DataError("no segment was tested", hint="lower min_rows, or collect more rows")
    ax = get_axes(ax, 6.8, 4.2)
    rows, clustered = audit.columns["n"][ranks].astype(np.float64), "design_effect" in audit.columns
    if clustered:
        rows /= audit.columns["design_effect"][ranks]
    heights = _heights(audit, ranks, quantity)
    marks: dict[str, Any] = {"s": 30, "linewidths": 1.1, "rasterized": len(ranks) > MAX_VECTOR_MARKS}
    for number, (label, colour, is_filled, chosen) in enumerate(_colour_groups(audit, ranks, highlight)):
        if chosen.any():
            ax.scatter(
                rows[chosen], heights[chosen], facecolors=colour if is_filled else "none", edgecolors=colour, label=label,
                alpha=0.8, zorder=2 + number / 100, **marks,
            )  # fmt: skip
    ax.set_xscale("log")
    low, high = float(rows.min()), float(rows.max())
    ax.set_xlim(low / 1.25, high * 1.25)
    if quantity == "p_value":
        ax.set_yscale("log")
        ax.set_ylim(2.0, float(heights.min()) / 10)
    else:
        ax.set_ylim(0.0, 1.08 * float(heights.max()) or 1.0)
    order = np.argsort(heights if quantity == "p_value" else -heights, kind="stable")[: int(labels)]
    _label_points(ax, rows[order], heights[order], [audit.keys.name(int(rank)) for rank in ranks[order]])
    x_label = "effective rows of the segment" if clustered else "rows of the segment"
    return style_axes(ax, title, x_label, QUANTITIES[quantity], legend=True)


def _heights(audit: Audit, ranks: IntArray, quantity: str) -> FloatArray:
    """Return the quantity of the segments ``ranks``; one that is infinite is drawn at the largest finite value."""
    if quantity == "p_value":
        return np.maximum(audit.columns["p_value"][ranks], SMALLEST_P)
    values = np.asarray(audit.columns["ecce" if quantity == "ecce" else "sigma"][ranks], np.float64)
    if quantity == "relative":
        values = values * audit.global_sigma / audit.prevalence_scale
    finite = np.isfinite(values)
    return np.where(finite, values, values[finite].max(initial=1.0))


def _colour_groups(audit: Audit, ranks: IntArray, highlight: str | None) -> list[tuple[str, str, bool, BoolArray]]:
    """Return label, colour, whether marks are filled, and which of ``ranks`` they are, of each state or level."""
    if highlight is None:
        state: AnyArray = audit.derived["state"][ranks]
        groups = [
            (label, STATE_COLOURS[kind], kind in FILLED, np.asarray(state == name))
            for name, (label, kind) in STATES.items()
        ]
        return groups[::-1]  # significant ones are drawn last
    names = list(audit.keys.levels.names)
    if highlight not in names:
        raise ArgumentError(
            f"highlight must be a column of the audit; got {highlight!r}",
            hint=f"its columns are {', '.join(names)}",
            parameter="highlight",
        )
    own = audit.keys.columns[ranks] == names.index(highlight)
    code = np.where(own, audit.keys.codes[ranks], -1).max(axis=1)
    colours, places = [colour for colour in COLOURS if colour not in ("#000000", COLOURS[7])], np.unique(code[code >= 0])
    levels = audit.keys.labels[names.index(highlight)]
    groups = [("other segments", GREY, False, code < 0)]
    groups += [("other levels", COLOURS[7], True, np.isin(code, places[MAX_LEVELS:]))]
    shown = zip(places[:MAX_LEVELS].tolist(), colours, strict=False)
    return [*groups, *((escaped_name(levels[place]), colour, True, code == place) for place, colour in shown)]


def _label_points(ax: Axes, x: FloatArray, y: FloatArray, names: list[str]) -> None:
    """Write names beside points, towards the middle of the axes, apart from each other from the top down."""
    middle = float(np.log(ax.get_xlim()).mean())
    height = ax.transLimits.transform(ax.transScale.transform(np.column_stack([x, y])))[:, 1]
    points = ax.get_window_extent().height * 72 / ax.figure.dpi
    previous = math.inf
    for index in np.argsort(-height, kind="stable").tolist():
        is_right = bool(np.log(x[index]) > middle)
        previous = min(height[index], previous - LABEL_GAP)
        offset = (-9 if is_right else 9, (previous - height[index]) * points)
        ax.annotate(
            escaped_name(names[index]), (x[index], y[index]), xytext=offset, textcoords="offset points",
            ha="right" if is_right else "left", va="center", fontsize=8, color=INK, zorder=4,
            arrowprops={"arrowstyle": "-", "color": INK, "linewidth": 0.5, "shrinkA": 0, "shrinkB": 3},
        )  # fmt: skip


def _difference(finding: Finding) -> tuple[float, float, float]:
    """Return observed minus expected with the interval that follows from that of the ratio, of zero width without one."""
    ends = finding.ratio_low_adjusted, finding.ratio_high_adjusted
    low, high = sorted(finding.expected * (end - 1) for end in ends)
    return (finding.bias, low, high) if math.isfinite(low) and math.isfinite(high) else (finding.bias,) * 3


def _draw_intervals(ax: Axes, values: FloatArray, chosen: BoolArray, colour: str, face: str, label: str) -> None:
    places = np.flatnonzero(chosen)
    if len(places):
        ax.hlines(places, values[places, 1], values[places, 2], color=colour, linewidth=1.6, zorder=2)
        ax.plot(
            values[places, 0], places, linestyle="none", marker="o", markersize=6, markerfacecolor=face,
            markeredgecolor=colour, markeredgewidth=1.5, zorder=3, label=label,
        )  # fmt: skip
