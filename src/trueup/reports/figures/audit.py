"""Pictures of audits: observed against predicted, where the differences add up, and the worst segments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.result import Audit, Finding
from trueup.audits.text import shorten
from trueup.errors import ArgumentError, DataError
from trueup.reports.figures.style import (
    CALM,
    COLOURS,
    INK,
    axes_of,
    beside,
    by_name,
    looks,
    plain,
    seen_alone,
    shade,
)
from trueup.reports.text import portrait_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

    from trueup._types import BoolArray, FloatArray
    from trueup.audits.portrait import Histogram


AUDIT = 'pass what trueup.audit gives, or a mapping such as {"before": one, "after": other}'
CURVE = 'pass what trueup.audit gives, a finding such as audit["country=BR"], or a mapping of names to them'
FOOT = 0.16  # of the height: what the histogram of the scores takes
LIMITS = 2.0  # standard errors that the band of cumulative differences is wide, to either side
FARTHEST = 8.0  # a ratio beyond this, or under its inverse, is drawn at the edge
WIDEST_NAME = 44


def draw_reliability(
    result: Audit | Finding | Mapping[str, Audit | Finding], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw the mean outcome of rows against their mean score, in bins of about equal weight, with intervals.

    Of one audit alone the band in which the bins of a calibrated score would lie, each by itself, is shaded, and the
    scores themselves stand at the foot of the picture.

    Parameters
    ----------
    result : Audit or Finding, or a mapping of names to them
        Of an audit, all rows; of a finding, its segment.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional
        Which rows these are.

    Examples
    --------
    >>> import trueup as tu
    >>> found = tu.audit(tu.simulate.lending(2_000, seed=1), outcome="outcome", prediction="prediction", by=["region"])
    >>> ax = tu.figures.draw_reliability({"all rows": found, "the harbour": found["region=harbour"]})
    >>> ax.get_ylabel()
    'mean outcome'
    """
    named = by_name(result, "result", "audit or a finding", (), CURVE)
    found = {name: _finding(one, name) for name, one in named.items()}
    strokes = looks(named)
    ax = axes_of(ax, 4.8 if "" in named else 6.6, 4.4)
    alone = next(iter(named.values())) if len(named) == 1 else None
    portrait = portrait_of(alone) if isinstance(alone, Audit) else None
    if isinstance(alone, Audit) and portrait is not None:
        x = found[next(iter(found))].curve.predicted
        label = f"if calibrated ({100 * (1 - alone.settings.alpha):g}%)"
        ax.fill_between(x, portrait.low, portrait.high, color=CALM, alpha=0.5, linewidth=0, zorder=1, label=label)
    for (name, one), look in zip(found.items(), strokes, strict=True):
        curve = one.curve
        bars = np.maximum([curve.observed - curve.low, curve.high - curve.observed], 0.0)
        ax.errorbar(
            curve.predicted, curve.observed, yerr=bars, marker="o", markersize=4.5, elinewidth=1.1, capsize=0, zorder=3,
            label=name or _shown(one.segment), **look,
        )  # fmt: skip
    low, high = _square(ax, found)
    ax.plot([low, high], [low, high], color=INK, linestyle=":", linewidth=1.0, zorder=2, label="calibrated")
    if portrait is not None:
        _draw_foot(ax, portrait.histogram)
    ax.set(xlim=(low, high), ylim=(low, high))
    plain(ax, title, "mean score", "mean outcome")
    if "" in named:
        ax.legend(frameon=False, labelcolor=INK, loc="upper left")
    else:
        beside(ax)
    return ax


def _shown(segment: str) -> str:
    """Write a segment's text so that nothing in it is read as a formula."""
    return shorten(segment, WIDEST_NAME).replace("$", r"\$")


def _finding(one: Any, name: str) -> Any:
    """Give the segment to draw: of an audit the whole."""
    if not isinstance(one, (Audit, Finding)):
        told = repr(name) if name else "result"
        raise ArgumentError(f"{told} must be an audit or a finding; got {type(one).__name__}", hint=CURVE)
    found = one.overall if isinstance(one, Audit) else one
    if found.curve is None or not len(found.curve):
        raise DataError(
            f"there is no reliability curve of {shorten(found.segment, 80)!r}",
            hint="the worst thousand segments and the whole have one",
        )
    return found


def _square(ax: Axes, found: Mapping[str, Finding]) -> tuple[float, float]:
    """Give the ends of both axes: every point is seen, an interval as far as it does not squeeze the points."""
    curves = [one.curve for one in found.values() if one.curve is not None]
    points = np.concatenate([values for curve in curves for values in (curve.predicted, curve.observed)])
    ends = np.concatenate([values for curve in curves for values in (curve.low, curve.high)])
    points, ends = points[np.isfinite(points)], ends[np.isfinite(ends)]
    low, high = float(points.min()), float(points.max())
    wide = (high - low) or abs(high) or 1.0
    low = max(min(low, float(ends.min(initial=low))), low - 0.35 * wide) - 0.04 * wide
    high = min(max(high, float(ends.max(initial=high))), high + 0.35 * wide) + 0.04 * wide
    shares = all(0 <= value <= 1 for value in (points.min(), points.max(), ends.min(initial=0), ends.max(initial=1)))
    ax.set_aspect("equal", adjustable="box")
    return (min(low, 0.0) if low < 0.3 * high else low, high) if not shares else (0.0, min(high, 1.02))


def _draw_foot(ax: Axes, histogram: Histogram) -> None:
    """Draw how many rows have each score, at the foot, with no scale of its own."""
    top = float(histogram.weight.max()) or 1.0
    ax.bar(
        histogram.edges[:-1], FOOT * histogram.weight / top, np.diff(histogram.edges), align="edge", color=CALM,
        alpha=0.7, linewidth=0, zorder=0.5, transform=ax.get_xaxis_transform(), label="scores",
    )  # fmt: skip


def draw_cumulative(result: Audit | Mapping[str, Audit], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw the sum of outcome minus score over all rows, in the order of their scores.

    Where the line rises, more happened than was predicted; where it falls, less. Its slope is the error at those scores,
    and its range, from the lowest to the highest, is the statistic of the test (Arrieta-Ibarra et al. 2022). The band is
    what chance would do so far, two standard errors to either side.

    Parameters
    ----------
    result : Audit, or a mapping of names to audits
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional
        Which rows these are.

    Examples
    --------
    >>> import trueup as tu
    >>> found = tu.audit(tu.simulate.lending(2_000, seed=1), outcome="outcome", prediction="prediction", by=["region"])
    >>> tu.figures.draw_cumulative(found).get_xlabel()
    'share of rows, by score'
    """
    named = _audits(result)
    strokes = looks(named)
    ax = axes_of(ax, 6.4, 3.6)
    for (name, audit), look in zip(named.items(), strokes, strict=True):
        path = audit.portrait.path
        half, colour = LIMITS * path.noise, CALM if len(named) == 1 else look["color"]
        label = f"chance (±{LIMITS:g} standard errors)" if len(named) == 1 else None
        ax.fill_between(
            path.share, -half, half, color=colour, alpha=shade(len(named), 0.5 if len(named) == 1 else 0.12), linewidth=0,
            zorder=1, label=label,
        )  # fmt: skip
        ax.plot(path.share, path.value, label=name or "all rows", zorder=3, **look, **seen_alone(path.share))
    ax.axhline(0.0, color=INK, linewidth=0.9, zorder=2)
    ax.set_xlim(0.0, 1.0)
    weighed = any(audit.schema.weight is not None for audit in named.values())
    across = "share of the weight, by score" if weighed else "share of rows, by score"
    plain(ax, title, across, "outcome minus score,\nsum a row")
    beside(ax)
    return ax


def _audits(result: Any) -> Mapping[str, Audit]:
    """Read audits by name; each must have the rows that are drawn."""
    named = by_name(result, "result", "audit by trueup.audit", (), AUDIT)
    for name, one in named.items():
        told = repr(name) if name else "result"
        if not isinstance(one, Audit):
            raise ArgumentError(f"{told} must be an audit by trueup.audit; got {type(one).__name__}", hint=AUDIT)
        if portrait_of(one) is None:
            raise DataError(f"{told} is a copy of an audit without its rows", hint="draw the audit that was made of them")
    return named


def draw_segments(audit: Audit, ax: Axes | None = None, *, count: int = 20, title: str = "") -> Axes:
    """Draw observed over expected of the worst segments with intervals, each for one segment looked at alone.

    Segments that are off, their p-values adjusted for how many there are, are in full colour. A ratio or an end beyond
    8, or under 1/8, stands at the edge. Where expected means are not all above 0, the difference is drawn.

    Parameters
    ----------
    audit : Audit
    ax : matplotlib Axes, optional
        A new figure by default.
    count : int
        How many segments at most, of those that were tested; the worst is at the top.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> found = tu.audit(tu.simulate.lending(2_000, seed=1), outcome="outcome", prediction="prediction", by=["region"])
    >>> ax = tu.figures.draw_segments(found, count=3)
    >>> ax.get_yticklabels()[0].get_text()
    'region=harbour'
    """
    if not isinstance(audit, Audit):
        raise ArgumentError(f"audit must be an audit by trueup.audit; got {type(audit).__name__}", hint=AUDIT)
    if isinstance(count, bool) or not isinstance(count, (int, np.integer)) or count < 1:
        raise ArgumentError(f"count must be a whole number of at least 1; got {count!r}")
    found = audit.worst(min(int(count), audit.tested))
    if not found:
        raise DataError("no segment was tested", hint="lower min_rows, or gather more rows")
    ax = axes_of(ax, 7.6, 1.1 + 0.27 * len(found))
    as_ratio = all(one.expected > 0 and math.isfinite(one.ratio) and one.ratio >= 0 for one in found)
    right = 1.0 if as_ratio else 0.0
    values = np.array([(one.ratio, one.ratio_low, one.ratio_high) if as_ratio else _difference(one) for one in found])
    off = np.array([one.p_adjusted <= audit.settings.alpha for one in found])
    if as_ratio:
        values = np.clip(values, 1 / FARTHEST, FARTHEST)
        ax.set_xscale("log")
    _mark(ax, values, off)
    ax.axvline(right, color=INK, linewidth=0.9, zorder=1)
    ax.set_yticks(range(len(found)), [_shown(one.segment) for one in found])
    ax.set_ylim(len(found) - 0.4, -0.6)
    what = "observed / expected" if as_ratio else "observed minus expected"
    plain(ax, title, f"{what} ({100 * (1 - audit.settings.alpha):g}% interval)", "")
    ax.grid(visible=False, axis="y")
    if as_ratio:
        _mark_ratios(ax, values)
    beside(ax)
    return ax


def _difference(one: Finding) -> tuple[float, float, float]:
    """Give the bias and the ends that the interval of the ratio has in its units; none where there is no ratio."""
    ends = sorted(one.expected * (end - 1) for end in (one.ratio_low, one.ratio_high))
    return (one.bias, *ends) if all(map(math.isfinite, ends)) else (one.bias, one.bias, one.bias)  # type: ignore[return-value]


def _mark(ax: Axes, values: FloatArray, off: BoolArray) -> None:
    for these, colour, face, told in ((off, COLOURS[1], COLOURS[1], "off"), (~off, COLOURS[7], "white", "within chance")):
        at = np.flatnonzero(these)
        if not len(at):
            continue
        ax.hlines(at, values[at, 1], values[at, 2], color=colour, linewidth=1.6, zorder=2)
        ax.plot(
            values[at, 0], at, linestyle="none", marker="o", markersize=6, markerfacecolor=face, markeredgecolor=colour,
            markeredgewidth=1.5, zorder=3, label=told,
        )  # fmt: skip


def _mark_ratios(ax: Axes, values: FloatArray) -> None:
    """Mark the axis at ratios that people say."""
    low, high = min(float(values.min()), 0.9), max(float(values.max()), 1.1)
    steps = [1 / 8, 1 / 4, 1 / 2, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 8]
    if high / low > 2.5:
        steps = [step for step in steps if step not in (0.8, 0.9, 1.1, 1.25)]
    seen = [step for step in steps if low / 1.05 <= step <= high * 1.05]
    ax.set_xlim(low / 1.08, high * 1.08)
    ax.set_xticks(seen, [f"{step:g}" for step in seen])
    ax.minorticks_off()
