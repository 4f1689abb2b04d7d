"""Figures of audits: reliability curves, cumulative differences and the worst segments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_integer
from trueup.audits.audit import Audit, Finding
from trueup.audits.text import shorten
from trueup.errors import DataError
from trueup.reports.figures.style import (
    COLOURS,
    GREY,
    INK,
    band_alpha,
    check_result,
    get_axes,
    line_styles,
    place_legend,
    point_marker,
    results_by_name,
    style_axes,
)
from trueup.reports.text import percent, summary_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from matplotlib.axes import Axes

    from trueup._types import BoolArray, FloatArray

AUDIT = "an audit from trueup.audit"
HISTOGRAM_HEIGHT = 0.16  # of the axes
BAND = 2.0  # standard errors
MAX_RATIO = 8.0  # larger ratios, and those below its inverse, are drawn at the edge
MAX_NAME_LENGTH = 44
RATIO_TICKS = (1 / 8, 1 / 4, 1 / 2, 0.8, 0.9, 1, 1.1, 1.25, 1.5, 2, 4, 8)
FINE_RATIO_TICKS = (0.8, 0.9, 1.1, 1.25)


def draw_reliability(
    result: Audit | Finding | Mapping[str, Audit | Finding], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw reliability curves: mean outcome against mean score in bins of about equal weight, with intervals.

    For a single audit, the band in which each bin of a calibrated score would lie is shaded, and a histogram of the scores
    is drawn at the bottom.

    Parameters
    ----------
    result : Audit or Finding, or a mapping of names to them
        An audit stands for all rows, a finding for its segment.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> audit = tu.audit(tu.simulate.lending(2_000, seed=1), outcome="outcome", prediction="prediction", by=["region"])
    >>> ax = tu.figures.draw_reliability({"all rows": audit, "harbour": audit["region=harbour"]})
    >>> ax.get_ylabel()
    'mean outcome'
    """
    named = results_by_name("result", result, (Audit, Finding), "an audit or a finding")
    curves: dict[str, Any] = {}
    segments = {}
    for name, item in named.items():
        finding = item.overall if isinstance(item, Audit) else item
        if finding.curve is None or not len(finding.curve):
            raise DataError(
                f"there is no reliability curve of {shorten(finding.segment, 80)!r}",
                hint="curves are kept for the worst 1,000 segments and for all rows",
            )
        curves[name], segments[name] = finding.curve, finding.segment
    ax = get_axes(ax, 4.8 if "" in named else 6.6, 4.4)
    single = next(iter(named.values())) if len(named) == 1 else None
    summary = summary_of(single) if isinstance(single, Audit) else None
    if isinstance(single, Audit) and summary is not None:
        label = f"if calibrated ({percent(1 - single.settings.alpha)})"
        x = next(iter(curves.values())).predicted
        ax.fill_between(x, summary.low, summary.high, color=GREY, alpha=0.5, linewidth=0, zorder=1, label=label)
        histogram = summary.histogram
        heights = HISTOGRAM_HEIGHT * histogram.weight / (float(histogram.weight.max()) or 1.0)
        ax.bar(
            histogram.edges[:-1], heights, np.diff(histogram.edges), align="edge", color=GREY, alpha=0.7, linewidth=0,
            zorder=0.5, transform=ax.get_xaxis_transform(), label="scores",
        )  # fmt: skip
    for (name, curve), style in zip(curves.items(), line_styles(len(curves)), strict=True):
        bars = np.maximum([curve.observed - curve.low, curve.high - curve.observed], 0.0)
        ax.errorbar(
            curve.predicted, curve.observed, yerr=bars, marker="o", markersize=4.5, elinewidth=1.1, capsize=0, zorder=3,
            label=name or _escaped_name(segments[name]), **style,
        )  # fmt: skip
    low, high = _square_limits(curves.values())
    ax.plot([low, high], [low, high], color=INK, linestyle=":", linewidth=1.0, zorder=2, label="calibrated")
    ax.set_aspect("equal", adjustable="box")
    ax.set(xlim=(low, high), ylim=(low, high))
    style_axes(ax, title, "mean score", "mean outcome")
    if "" in named:
        ax.legend(frameon=False, labelcolor=INK, loc="upper left")
    else:
        place_legend(ax)
    return ax


def _escaped_name(segment: str) -> str:
    """Shorten the name of a segment, and escape what matplotlib would read as a formula."""
    return shorten(segment, MAX_NAME_LENGTH).replace("$", r"\$")


def _square_limits(curves: Iterable[Any]) -> tuple[float, float]:
    """Return limits for both axes that show all points, and intervals as far as they do not squeeze the points."""
    curves = list(curves)
    points = np.concatenate([values for curve in curves for values in (curve.predicted, curve.observed)])
    ends = np.concatenate([values for curve in curves for values in (curve.low, curve.high)])
    points, ends = points[np.isfinite(points)], ends[np.isfinite(ends)]
    low, high = float(points.min()), float(points.max())
    width = (high - low) or abs(high) or 1.0
    low = max(min(low, float(ends.min(initial=low))), low - 0.35 * width) - 0.04 * width
    high = min(max(high, float(ends.max(initial=high))), high + 0.35 * width) + 0.04 * width
    limits = (points.min(), points.max(), ends.min(initial=0), ends.max(initial=1))
    if all(0 <= value <= 1 for value in limits):
        return 0.0, min(high, 1.02)
    return min(low, 0.0) if low < 0.3 * high else low, high


def draw_cumulative(result: Audit | Mapping[str, Audit], ax: Axes | None = None, *, title: str = "") -> Axes:
    """Draw cumulative differences: the sum of outcome minus score over all rows in order of score, divided by their number.

    Where the line rises the scores are too low, where it falls too high. Its slope is the error at those scores, and its
    range is the test statistic (Arrieta-Ibarra et al. 2022). The band is two standard errors of a calibrated score.

    Parameters
    ----------
    result : Audit, or a mapping of names to audits
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> audit = tu.audit(tu.simulate.lending(2_000, seed=1), outcome="outcome", prediction="prediction", by=["region"])
    >>> tu.figures.draw_cumulative(audit).get_xlabel()
    'share of rows, by score'
    """
    named = results_by_name("result", result, Audit, AUDIT)
    for name, audit in named.items():
        if summary_of(audit) is None:
            raise DataError(
                f"{repr(name) if name else 'result'} is a copy of an audit without its rows", hint="draw the original audit"
            )
    ax = get_axes(ax, 6.4, 3.6)
    single = len(named) == 1
    for (name, audit), style in zip(named.items(), line_styles(len(named)), strict=True):
        path = audit.summary.path
        half = BAND * path.noise
        ax.fill_between(
            path.share, -half, half, color=GREY if single else style["color"], linewidth=0, zorder=1,
            alpha=band_alpha(len(named), 0.5 if single else 0.12), label="±2 standard errors" if single else None,
        )  # fmt: skip
        ax.plot(path.share, path.value, label=name or "all rows", zorder=3, **style, **point_marker(path.share))
    ax.axhline(0.0, color=INK, linewidth=0.9, zorder=2)
    ax.set_xlim(0.0, 1.0)
    weighted = any(audit.schema.weight is not None for audit in named.values())
    style_axes(ax, title, f"share of {'weight' if weighted else 'rows'}, by score", "cumulative outcome\nminus score")
    place_legend(ax)
    return ax


def draw_segments(audit: Audit, ax: Axes | None = None, *, count: int = 20, title: str = "") -> Axes:
    """Draw observed/expected of the worst segments with their intervals, which are not adjusted for their number.

    Segments that are miscalibrated after adjustment are filled. Ratios and ends beyond 8 or below 1/8 are drawn at the
    edge. If some expected mean is not positive, observed minus expected is drawn instead.

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
    values = np.array([(f.ratio, f.ratio_low, f.ratio_high) if as_ratio else _difference(f) for f in findings])
    values = np.clip(values, 1 / MAX_RATIO, MAX_RATIO) if as_ratio else values
    flagged = np.array([finding.p_adjusted <= audit.settings.alpha for finding in findings])
    _draw_intervals(ax, values, flagged, COLOURS[1], COLOURS[1], "miscalibrated")
    _draw_intervals(ax, values, ~flagged, COLOURS[7], "white", "within noise")
    ax.axvline(1.0 if as_ratio else 0.0, color=INK, linewidth=0.9, zorder=1)
    ax.set_yticks(range(len(findings)), [_escaped_name(finding.segment) for finding in findings])
    ax.set_ylim(len(findings) - 0.4, -0.6)
    quantity = "observed / expected" if as_ratio else "observed minus expected"
    style_axes(ax, title, f"{quantity} ({percent(1 - audit.settings.alpha)} interval)", "")
    ax.grid(visible=False, axis="y")
    if as_ratio:
        low, high = min(float(values.min()), 0.9), max(float(values.max()), 1.1)
        ticks = [tick for tick in RATIO_TICKS if high / low <= 2.5 or tick not in FINE_RATIO_TICKS]
        ticks = [tick for tick in ticks if low / 1.05 <= tick <= high * 1.05]
        ax.set_xscale("log")
        ax.set_xlim(low / 1.08, high * 1.08)
        ax.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
        ax.minorticks_off()
    place_legend(ax)
    return ax


def _difference(finding: Finding) -> tuple[float, float, float]:
    """Return the bias and the interval of the ratio in units of the bias; without a ratio the interval is empty."""
    low, high = sorted(finding.expected * (end - 1) for end in (finding.ratio_low, finding.ratio_high))
    return (finding.bias, low, high) if math.isfinite(low) and math.isfinite(high) else (finding.bias,) * 3


def _draw_intervals(ax: Axes, values: FloatArray, chosen: BoolArray, colour: str, face: str, label: str) -> None:
    places = np.flatnonzero(chosen)
    if len(places):
        ax.hlines(places, values[places, 1], values[places, 2], color=colour, linewidth=1.6, zorder=2)
        ax.plot(
            values[places, 0], places, linestyle="none", marker="o", markersize=6, markerfacecolor=face,
            markeredgecolor=colour, markeredgewidth=1.5, zorder=3, label=label,
        )  # fmt: skip
