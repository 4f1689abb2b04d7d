"""Shared by all figures: colours and line styles, axes, legends, and validation of what is drawn."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.audits.text import shorten
from trueup.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray

# Colours of Okabe & Ito and a grey, distinguishable with colour-blindness; line styles distinguish lines without colour.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#000000", "#56B4E9", "#E69F00", "#888888")
LINE_STYLES = ("-", "--", "-.", ":", (0, (6, 1.5, 1, 1.5, 1, 1.5)), (0, (2, 1)), (0, (8, 2)))
INK, GRID, SPINE = "#333333", "#E4E4E4", "#999999"
GREY = "#C3C8CD"  # visible on white, for what needs no attention
MAX_LEGEND_WIDTH = 34  # characters per line
MAX_NAME_LENGTH = 44
MAX_VECTOR_MARKS = 20_000  # marks from which a scatter is rasterized in vector formats
MAX_POINTS = 1_000  # of a line: more make a file larger, but no difference that can be seen


def get_axes(ax: Axes | None, width: float, height: float) -> Axes:
    """Return the given axes, or those of a new pyplot figure of this size in inches."""
    if ax is None:
        pyplot = require("matplotlib.pyplot", extra="plots")
        new: Axes = pyplot.figure(figsize=(width, height), layout="constrained", facecolor="white").add_subplot()
        return new
    if not hasattr(ax, "get_yaxis_transform"):
        raise ArgumentError(
            f"ax must be axes of matplotlib; got {type(ax).__name__}", hint="for a figure, figure.gca()", parameter="ax"
        )
    return ax


def detached_axes(width: float = 6.6, height: float = 3.6) -> Axes:
    """Return axes of a new figure that pyplot does not keep, for a picture that is only written to a file."""
    figure = require("matplotlib.figure", extra="plots")
    new: Axes = figure.Figure(figsize=(width, height), layout="constrained", facecolor="white").add_subplot()
    return new


def check_result(name: str, result: Any, kinds: type | tuple[type, ...], source: str) -> None:
    """Raise unless ``result`` is of one of ``kinds``; ``source`` describes such a result and its origin."""
    if not isinstance(result, kinds):
        raise ArgumentError(
            f"{name} must be {source}; got {type(result).__name__}",
            hint="pass one such result, or a mapping of names to them",
        )


def results_by_name(name: str, results: Any, kinds: type | tuple[type, ...], source: str) -> Mapping[str, Any]:
    """Return validated results by name; a single result has the empty name."""
    named = results if isinstance(results, Mapping) else {"": results}
    if not named:
        raise ArgumentError("there is nothing to draw: the mapping is empty")
    for key, result in named.items():
        check_result(repr(key) if key else name, result, kinds, source)
    return named


def check_array(
    name: str, values: ArrayLike, dimensions: int, *, allow_nan: bool = False, hint: str | None = None
) -> FloatArray:
    """Return an array of finite numbers; with ``allow_nan`` some of them, but not all, may be NaN."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} must be numbers; got {type(values).__name__}", hint=hint) from error
    if array.ndim != dimensions or not array.size:
        expected = f"{dimensions} dimension{'s'[: dimensions - 1]}"
        raise DataError(f"{name} must have {expected} and rows; got shape {array.shape}", hint=hint)
    bad = np.isinf(array) if allow_nan and not np.isnan(array).all() else ~np.isfinite(array)
    if bad.any():
        raise DataError(f"{name} must be finite; got {int(bad.sum())} values that are not")
    return array


def escaped_name(segment: str) -> str:
    """Shorten the name of a segment, and escape what matplotlib would read as a formula."""
    return shorten(segment, MAX_NAME_LENGTH).replace("$", r"\$")


def thin_line(x: ArrayLike, y: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Drop points of a long line that make no visible difference; the remaining ones are evenly spaced along it."""
    points = np.column_stack([np.asarray(x, np.float64), np.asarray(y, np.float64)])
    points = points[np.isfinite(points).all(axis=1)]
    if len(points) > MAX_POINTS:
        length = np.append(0.0, np.cumsum(np.hypot(*np.diff(points, axis=0).T)))
        kept = np.searchsorted(length, np.linspace(0.0, length[-1], MAX_POINTS))
        points = points[np.unique(np.append(kept, len(points) - 1))]
    return points[:, 0], points[:, 1]


def line_styles(count: int) -> list[dict[str, Any]]:
    """Return a colour and a line style for each of several lines."""
    turns = [divmod(index, len(COLOURS)) for index in range(count)]
    # Line styles shift after each turn of the colours, so that no two lines look the same.
    return [
        {"color": COLOURS[index], "linestyle": LINE_STYLES[(index + turn) % len(LINE_STYLES)], "linewidth": 1.8}
        for turn, index in turns
    ]


def style_axes(ax: Axes, title: str, x_label: str, y_label: str, *, legend: bool = False) -> Axes:
    """Set title and labels, and reduce the frame to two axes and faint horizontal lines.

    A legend is beside the axes, or inside if the layout of the figure would not make room for it.
    """
    ax.set_title(title, loc="left", fontsize=11, color=INK)
    ax.set_xlabel(x_label, color=INK)
    ax.set_ylabel(y_label, color=INK)
    ax.spines[["top", "right"]].set_visible(False)
    ax.spines[["left", "bottom"]].set_color(SPINE)
    ax.tick_params(color=SPINE, labelcolor=INK)
    ax.grid(axis="y", color=GRID, linewidth=0.8)
    ax.set_axisbelow(True)
    if not legend:
        return ax
    handles, labels = ax.get_legend_handles_labels()
    wrapped = [
        "\n".join(part for line in label.split("\n") for part in textwrap.wrap(line, MAX_LEGEND_WIDTH)) for label in labels
    ]
    figure: Any = ax.figure
    has_room = type(figure.get_layout_engine()).__name__ == "ConstrainedLayoutEngine" or len(figure.axes) == 1
    outside: dict[str, Any] = {"loc": "upper left", "bbox_to_anchor": (1.02, 1.0)}
    place = outside if has_room else {"loc": "best", "fontsize": "small"}
    ax.legend(handles, wrapped, frameon=False, labelcolor=INK, handlelength=2.6, **place)
    return ax


def band_alpha(count: int, alpha: float) -> float:
    """Return the opacity of each of ``count`` bands: ``alpha`` for up to three, less for more."""
    return alpha * min(1.0, 3 / max(count, 1))


def point_marker(points: Any) -> dict[str, Any]:
    """Return a marker for a line of a single point, which would be invisible without one."""
    return {"marker": "o", "markersize": 5} if len(points) == 1 else {}
