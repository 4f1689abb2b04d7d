"""Figures of rates without labels: ROC curves and precision-recall curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.decisions import ExpectedCurve
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import validate_scores
from trueup.reports.figures.style import (
    COLOURS,
    GRID,
    INK,
    band_alpha,
    get_axes,
    line_styles,
    place_legend,
    results_by_name,
    style_axes,
    thin_line,
)
from trueup.reports.text import percent

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trueup._types import FloatArray

MAX_LINES_INSIDE, MAX_NAME_INSIDE = 4, 16  # lines, and characters of a name, that fit a legend inside the axes
LABELS = {
    "roc": ("AUC", "false positive rate", "true positive rate"),
    "pr": ("average precision", "recall", "precision"),
}


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
    named = _check_curves(kind, curve)
    known, styles = _check_truth(truth, named), line_styles(len(named))
    area, x_label, y_label = LABELS[kind]
    crowded = len(named) + len(known) > MAX_LINES_INSIDE or max(map(len, named)) > MAX_NAME_INSIDE
    separator = "\n" if crowded else " "
    ax = get_axes(ax, 8.2 if crowded else 4.8, 4.8)
    shares = dict.fromkeys(round(float(item.y[-1]), 3) for item in named.values())
    for start, end in [(0.0, 1.0)] if kind == "roc" else [(share, share) for share in shares]:  # uninformative scores
        ax.plot([0.0, 1.0], [start, end], color=COLOURS[-1], linestyle=":", linewidth=1.2, zorder=2)
    levels = ", ".join(dict.fromkeys(percent(item.level) for item in named.values()))
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
    style_axes(ax, title, x_label, y_label)
    ax.grid(axis="x", color=GRID, linewidth=0.8)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    if crowded:
        place_legend(ax)
        return ax
    # Where no line runs: below a high curve, above a low one.
    low = kind == "pr" and np.mean([item.area for item in named.values()]) < 0.5
    place: Any = "upper right" if low else "lower right" if kind == "roc" else "lower left"
    ax.legend(loc=place, frameon=False, labelcolor=INK, fontsize=9, handlelength=2.2)
    return ax


def _check_curves(kind: str, curve: Any) -> Mapping[str, ExpectedCurve]:
    named = results_by_name("curve", curve, ExpectedCurve, f"a curve from decisions.expected_{kind}")
    for name, item in named.items():
        which = f"the curve of {name!r}" if name else "the curve"
        if item.kind != kind:
            raise ArgumentError(f"{which} is of kind {item.kind!r}, not {kind!r}", hint=f"use draw_{item.kind}")
        if not np.isfinite(item.area):
            raise DataError(f"{which} has no rates: all scores are 0, or all are 1", hint="the rates need both outcomes")
    return named


def _check_truth(truth: Any, named: Mapping[str, Any]) -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
    """Return outcomes, scores and weights by the name of their curve; for a single tuple the name is empty."""
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
