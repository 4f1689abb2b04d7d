"""What pictures share: colours and strokes, axes, legends, and the reading of what is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray


# Okabe & Ito's colours and a grey, told apart by all kinds of sight; the strokes tell lines apart without any colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#888888")
STROKES = ("-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (2, 1)), (0, (8, 2)))
INK, GRID = "#333333", "#E4E4E4"
CALM = "#C3C8CD"  # a grey that is seen on white, for what asks for no look
WIDEST = 34  # letters of a line in a legend
MOST_POINTS = 1_000  # of a line: more of them make a file larger, not a picture better


def axes_of(ax: Axes | None, width: float, height: float) -> Axes:
    """Give the axes to draw on: those that are given, or those of a new figure."""
    figure = require("matplotlib.figure", extra="plots")
    if ax is None:
        made: Axes = figure.Figure(figsize=(width, height), layout="constrained", facecolor="white").add_subplot()
        return made
    if not hasattr(ax, "get_yaxis_transform"):
        raise ArgumentError(f"ax must be axes of matplotlib; got {type(ax).__name__}", hint="for a figure, figure.gca()")
    return ax


def by_name(results: Any, name: str, what: str, parts: tuple[str, ...], hint: str) -> Mapping[str, Any]:
    """Give results by name; one alone has the empty name. Each must have the parts that are drawn."""
    named = results if isinstance(results, Mapping) else {"": results}
    for one, result in named.items():
        if not all(hasattr(result, part) for part in parts):
            raise ArgumentError(f"{repr(one) if one else name} must be a {what}; got {type(result).__name__}", hint=hint)
    return named


def numbers(values: ArrayLike, name: str, dimensions: int, *, gaps: bool = False, hint: str | None = None) -> FloatArray:
    """Read an array of finite numbers; with ``gaps`` some of them, but not all, may be missing."""
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be numbers; got {type(values).__name__}", hint=hint) from error
    if found.ndim != dimensions or not found.size:
        many = f"{dimensions} dimension{'s'[: dimensions - 1]}"
        raise DataError(f"{name} must have {many} and rows; got shape {found.shape}", hint=hint)
    bad = np.isinf(found) if gaps and not np.isnan(found).all() else ~np.isfinite(found)
    if bad.any():
        raise DataError(f"{name} must be finite; got {int(bad.sum())} values that are not")
    return found


def thinned(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Leave out points of a long line that nobody would see: what stays are some of its points, at even distances."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    seen = np.flatnonzero(np.isfinite(x) & np.isfinite(y))
    x, y = x[seen], y[seen]
    if len(x) <= MOST_POINTS:
        return x, y
    walked = np.append(0.0, np.cumsum(np.hypot(np.diff(x), np.diff(y))))
    kept = np.unique(np.searchsorted(walked, np.linspace(0.0, walked[-1], MOST_POINTS)))
    kept = np.unique(np.append(kept, len(x) - 1))
    return x[kept], y[kept]


def positive(value: float, name: str) -> float:
    """Read a number above 0."""
    try:
        found = float(value)
    except (TypeError, ValueError):
        found = np.nan
    if not 0 < found < np.inf:
        raise ArgumentError(f"{name} must be a number above 0; got {value!r}")
    return found


def looks(named: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Give each line its colour and stroke."""
    if not named:
        raise ArgumentError("there is nothing to draw: the mapping is empty")
    turns = [divmod(at, len(COLOURS)) for at in range(len(named))]
    # After one turn of the colours strokes are shifted, so that no two lines look the same.
    return [
        {"color": COLOURS[at], "linestyle": STROKES[(at + turn) % len(STROKES)], "linewidth": 1.8} for turn, at in turns
    ]


def plain(ax: Axes, title: str, across: str, up: str) -> None:
    """Leave what is read: two axes, faint lines across, words in one ink."""
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.set_xlabel(across, color=INK)
    ax.set_ylabel(up, color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color("#999999")
    ax.tick_params(color="#999999", labelcolor=INK)
    ax.grid(axis="y", color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)


def legend(ax: Axes, named: Mapping[str, Any]) -> None:
    """Name the lines, unless there is one alone, which has no name."""
    if "" not in named:
        beside(ax)


def beside(ax: Axes) -> None:
    """Put the legend beside the axes: within, lines run everywhere.

    On axes of a figure that makes no room for it, it goes within all the same: beside, it would lie on the next axes, and
    a tight layout would squeeze them all.
    """
    handles, labels = ax.get_legend_handles_labels()
    wrapped = ["\n".join(part for line in label.split("\n") for part in textwrap.wrap(line, WIDEST)) for label in labels]
    figure: Any = ax.figure
    roomy = type(figure.get_layout_engine()).__name__ == "ConstrainedLayoutEngine" or len(figure.axes) == 1
    place: Any = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)} if roomy else {"loc": "best", "fontsize": "small"}
    ax.legend(handles, wrapped, frameon=False, labelcolor=INK, handlelength=2.6, **place)


def shade(many: int, alpha: float) -> float:
    """Say how strong bands are: where many lie upon each other, each is fainter."""
    return alpha * min(1.0, 3 / max(many, 1))


def seen_alone(points: Any) -> dict[str, Any]:
    """Make a line of one point seen: without a mark it has no length."""
    return {"marker": "o", "markersize": 5} if len(points) == 1 else {}


def amount(value: float) -> str:
    """Write an amount as people do: 12,345 or 0.1234."""
    return f"{value:,.0f}" if abs(value) >= 1_000 else f"{value:.4g}"
