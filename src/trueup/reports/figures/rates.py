"""Pictures of rates without labels: ROC, and precision against recall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import scored
from trueup.reports.figures.style import COLOURS, GRID, INK, axes_of, beside, by_name, looks, plain, shade, thinned

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from trueup._types import FloatArray
    from trueup.decisions import ExpectedCurve


PARTS = ("kind", "x", "y", "x_low", "x_high", "y_low", "y_high", "area", "area_low", "area_high", "level")
WITHIN, SHORT = 4, 16  # lines that have room for their names within the axes, and letters of a name
WORDS = {
    "roc": ("AUC", "false positive rate", "true positive rate"),
    "pr": ("average precision", "recall", "precision"),
}


def draw_roc(
    curve: ExpectedCurve | Mapping[str, ExpectedCurve], ax: Axes | None = None, *, truth: Any = None, title: str = ""
) -> Axes:
    """Draw the ROC curve of rows without labels, with its band.

    After Gao, Parameswaran & Peng (2017), Figure 4. The band runs between the best and the worst curve that the scores'
    errors leave room for; where labels have come in since, the curve that they make is drawn over it.

    Parameters
    ----------
    curve : ExpectedCurve, or a mapping of names to them
        By ``decisions.expected_roc``.
    ax : matplotlib Axes, optional
        A new figure by default.
    truth : (y, p) or (y, p, weight), or a mapping of the same names to such tuples, optional
        Rows whose outcomes are known by now, with their scores.
    title : str, optional
        Which rows these are.

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
    """Draw the precision of rows without labels against their recall, with its band.

    Parameters
    ----------
    curve : ExpectedCurve, or a mapping of names to them
        By ``decisions.expected_pr``.
    ax : matplotlib Axes, optional
        A new figure by default.
    truth : (y, p) or (y, p, weight), or a mapping of the same names to such tuples, optional
        Rows whose outcomes are known by now, with their scores.
    title : str, optional
        Which rows these are.

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
    named = _read(kind, curve)
    known, drawn = _truths(truth, named), looks(named)
    area, across, up = WORDS[kind]
    crowded = len(named) + len(known) > WITHIN or max(map(len, named)) > SHORT
    apart = "\n" if crowded else " "
    ax = axes_of(ax, 8.2 if crowded else 4.8, 4.8)
    _draw_chance(kind, ax, named)
    levels = dict.fromkeys(f"{100 * one.level:g}%" for one in named.values())
    said = f"{'bands' if len(named) > 1 else 'band'}: {', '.join(levels)}"  # once, whatever the number of bands
    for (name, one), look in zip(named.items(), drawn, strict=True):
        span = f"{one.area:.3f} ({one.area_low:.3f} to {one.area_high:.3f})"
        ax.plot(*thinned(one.x, one.y), label=f"{name or 'expected'}:{apart}{area} {span}", zorder=3, **look)
    for at, (one, look) in enumerate(zip(named.values(), drawn, strict=True)):
        faint = {"color": look["color"], "alpha": shade(len(named), 0.16), "linewidth": 0, "zorder": 1}
        ax.fill(*band(one), label="" if at else said, **faint)
    for name, rows in known.items():
        x, y, found = _realised(kind, *rows)
        colour = drawn[list(named).index(name)]["color"] if name else COLOURS[4]
        label = f"{name + ', ' if name else ''}realised:{apart}{area} {found:.3f}"
        ax.plot(*thinned(x, y), color=colour, linewidth=1.0, label=label, zorder=4)
    plain(ax, title, across, up)
    ax.grid(axis="x", color=GRID, linewidth=0.8)
    ax.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.01), aspect="equal")
    if crowded:
        beside(ax)
        return ax
    # Where no line runs: beneath a curve that is high, above one that is low.
    low = kind == "pr" and np.mean([one.area for one in named.values()]) < 0.5
    place: Any = "upper right" if low else "lower right" if kind == "roc" else "lower left"
    ax.legend(loc=place, frameon=False, labelcolor=INK, fontsize=9, handlelength=2.2)
    return ax


def _read(kind: str, curve: Any) -> Mapping[str, Any]:
    hint = f"pass decisions.expected_{kind}(p, labelled), or a mapping of names to such curves"
    named = by_name(curve, "curve", f"curve by decisions.expected_{kind}", PARTS, hint)
    for name, one in named.items():
        what = f"the curve of {name!r}" if name else "the curve"
        if one.kind != kind:
            raise ArgumentError(f"{what} is of kind {one.kind!r}, not {kind!r}", hint=f"use draw_{one.kind}")
        if not np.isfinite(one.area):
            raise DataError(f"{what} has no rates: all scores are 0, or all are 1", hint="there is nothing to tell apart")
    return named


def _truths(truth: Any, named: Mapping[str, Any]) -> dict[str, tuple[FloatArray, FloatArray, FloatArray]]:
    """Read the rows whose outcomes are known, by the name of their curve; rows alone have the empty name."""
    if truth is None:
        return {}
    given = truth if isinstance(truth, Mapping) else {"": truth}
    found = {}
    for name, rows in given.items():
        if name and name not in named:
            raise ArgumentError(f"truth names {name!r}, which has no curve", hint=f"names are {list(named)}")
        if not isinstance(rows, tuple) or len(rows) not in (2, 3):
            hint = "outcomes first, then scores, perhaps weights; or a mapping of names to such tuples"
            raise ArgumentError(f"truth must be (y, p) or (y, p, weight); got {type(rows).__name__}", hint=hint)
        y, p, w = scored(*rows)
        if not 0 < float(w @ y) < float(w.sum()):
            raise DataError("truth must have rows of both outcomes", hint="without them a rate has no denominator")
        found[name] = (y, p, w)
    return found


def _realised(kind: str, y: FloatArray, p: FloatArray, w: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Give the curve that outcomes make, one point a distinct score from the highest down, and the area under it."""
    order = np.argsort(-p, kind="stable")
    last = np.flatnonzero(np.append(np.diff(p[order]) != 0, True))
    hits, taken = np.cumsum((w * y)[order])[last], np.cumsum(w[order])[last]
    recall = hits / hits[-1]
    if kind == "pr":
        precision = hits / taken
        return recall, precision, float(np.diff(recall, prepend=0.0) @ precision)
    alarms = (taken - hits) / (taken[-1] - hits[-1])
    x, y = np.append(0.0, alarms), np.append(0.0, recall)
    return x, y, float(np.diff(x) @ (y[1:] + y[:-1]) / 2)


def band(one: Any) -> tuple[FloatArray, FloatArray]:
    """Give the outline of all points that lie within the limits at some threshold."""
    keep = np.isfinite(one.x) & np.isfinite(one.y)
    left, right, low, high = (np.asarray(part)[keep] for part in (one.x_low, one.x_high, one.y_low, one.y_high))
    if one.kind == "roc":  # rising: the outline is that of the upper left and of the lower right corners
        above, below = thinned([0.0, *left, 1.0], [0.0, *high, 1.0]), thinned([0.0, *right, 1.0], [0.0, *low, 1.0])
    else:  # falling: of the upper right and of the lower left corners
        above = thinned([0.0, *right], [high[0], *high])
        below = thinned([0.0, *left, 1.0], [low[0], *low, low[-1]])
    x, y = (np.concatenate([first, second[::-1]]) for first, second in zip(above, below, strict=True))
    return x, y


def _draw_chance(kind: str, ax: Axes, named: Mapping[str, Any]) -> None:
    """Draw what scores would do that know nothing: the diagonal, or the share of positives."""
    look: dict[str, Any] = {"color": COLOURS[-1], "linestyle": ":", "linewidth": 1.2, "zorder": 2}
    if kind == "roc":
        ax.plot([0.0, 1.0], [0.0, 1.0], **look)
        return
    for share in dict.fromkeys(round(float(one.y[-1]), 3) for one in named.values()):
        ax.plot([0.0, 1.0], [share, share], **look)
