"""Figures of local calibration: where errors are, how they are distributed, and how they depend on the bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup._validate import check_number
from trueup.errors import ArgumentError, DataError
from trueup.metrics import LceCurve, LocalErrors
from trueup.reports.figures.style import (
    GREY,
    INK,
    check_array,
    get_axes,
    line_styles,
    place_legend,
    results_by_name,
    style_axes,
)

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray

# From a grey that is visible on white, for no error, to a dark end on either side: darker is worse, also without colour.
OVERCONFIDENT = (GREY, "#F0A04B", "#D55E00", "#5C1D00")
UNDERCONFIDENT = (GREY, "#6FB1DE", "#0072B2", "#00263F")
# Opacity of errors that are not significant, and of those significant only without adjustment.
FAINT, HALF = 0.12, 0.5
MAX_VECTOR_MARKS = 20_000  # rows from which a landscape is rasterized in vector formats


def draw_landscape(
    phi: ArrayLike, lce: ArrayLike | LocalErrors, ax: Axes | None = None, *, max_error: float | None = None, title: str = ""
) -> Axes:
    """Draw where in an embedding confidence is miscalibrated: one point per row, coloured by local calibration error.

    After Luo et al. (2022), Figure 2, left. Rows with larger errors are drawn over others; rows without a value (those
    without neighbours) are empty circles.

    Parameters
    ----------
    phi : array-like, shape (n, 2)
        Coordinates of the rows: two principal components, a t-SNE, two features. The columns of a frame name the axes.
    lce : array-like, shape (n,), or LocalErrors
        Error of each row, from ``metrics.lce``; if some are negative, colours distinguish overconfident (above 0) from
        underconfident. For the result of ``metrics.local_errors`` the size of each error is drawn, faded to grey unless it
        is significant: full colour where ``p_adjusted`` is at most 1 - level, half where only ``p_value`` is.
    ax : matplotlib Axes, optional
        A new figure by default.
    max_error : float, optional
        End of the colour scale; by default the largest error, of the significant ones if these are known. Set it for
        figures side by side.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> ax = tu.figures.draw_landscape([[0, 0], [1, 2]], [0.1, 0.3], title="two rows")
    >>> ax.get_title(loc="left")
    'two rows'
    """
    check_number("max_error", max_error, 0, above=True, optional=True)
    errors, opacity = _opacities(lce)
    places = check_array("phi", phi, 2, hint="the order is phi, lce; phi has two columns, such as principal components")
    hint = "pass the result of metrics.lce or metrics.local_errors, one value per row"
    error = check_array("lce", errors, 1, allow_nan=True, hint=hint)
    if places.shape != (len(error), 2):
        raise DataError(
            f"phi must have two columns and a row for each error; got {places.shape} and {len(error)} errors",
            hint="pass two columns of an embedding, such as two principal components",
        )
    signed, known = bool((error < 0).any()), np.isfinite(error)
    # The largest errors are mostly noise: if significance is known, only significant errors set the scale.
    significant = known if opacity is None or not (opacity[known] > FAINT).any() else known & (opacity > FAINT)
    scale_errors = error[significant]
    limit = float(max_error) if max_error is not None else float(np.abs(scale_errors).max()) or 1.0
    ax = get_axes(ax, 4.6, 4.0)
    size = float(np.clip(12_000 / len(error), 3.0, 40.0))
    style: dict[str, Any] = {"s": size, "rasterized": len(error) > MAX_VECTOR_MARKS}
    if not known.all():
        ax.scatter(
            places[~known, 0], places[~known, 1], facecolors="none", edgecolors=GREY, linewidths=0.6, zorder=0, **style
        )
    priority = np.zeros(len(error)) if opacity is None else opacity
    order = np.flatnonzero(known)[np.lexsort((np.abs(error[known]), priority[known]))]
    if opacity is not None:
        ax.scatter(places[known, 0], places[known, 1], color=GREY, linewidths=0, zorder=0.5, **style)
        style["alpha"] = opacity[order]
    colours = require("matplotlib.colors", extra="plots").LinearSegmentedColormap
    shades = [*UNDERCONFIDENT[::-1], *OVERCONFIDENT[1:]] if signed else OVERCONFIDENT
    marks = ax.scatter(
        places[order, 0], places[order, 1], c=error[order], cmap=colours.from_list("errors", shades),
        vmin=-limit if signed else 0.0, vmax=limit, linewidths=0, **style,
    )  # fmt: skip
    over, under = bool(scale_errors.max() > limit), bool(scale_errors.min() < -limit)
    extend = "both" if over and under else "max" if over else "min" if under else "neither"
    bar = ax.figure.colorbar(marks, ax=ax, extend=extend, shrink=0.9, pad=0.02)
    bar.outline.set_visible(False)
    note = "\n(above 0: overconfident)" if signed else "" if opacity is None else "\n(grey: not significant)"
    bar.set_label("local calibration error" + note, color=INK)
    bar.ax.tick_params(color=INK, labelcolor=INK, length=2)
    names = getattr(phi, "column_names", getattr(phi, "columns", None))  # the former in pyarrow only
    listed = [] if names is None else list(names)
    named = [type(name) for name in listed] == [str, str]
    style_axes(ax, title, *(listed if named else ("embedding, first column", "second column")))
    return ax


def _opacities(lce: ArrayLike | LocalErrors) -> tuple[ArrayLike, FloatArray | None]:
    """Return the errors to draw and the opacity of each; None for errors without p-values."""
    if not isinstance(lce, LocalErrors):
        return lce, None
    # Slightly more than 1 - level, so that rounding does not lose a p-value of 1/20 at a level of 0.95.
    alpha = (1.0 - lce.level) * (1.0 + 1e-9)
    conditions = [np.asarray(lce.p_adjusted) <= alpha, np.asarray(lce.p_value) <= alpha]
    return np.abs(lce.error), np.select(conditions, [1.0, HALF], FAINT)


def draw_lce_cdf(
    lce: ArrayLike | Mapping[str, ArrayLike], ax: Axes | None = None, *,
    bin_error: float | Mapping[str, float] | None = None, title: str = "",
) -> Axes:  # fmt: skip
    """Draw the distribution of local calibration errors: the share of rows whose error is at most x.

    After Luo et al. (2022), Figure 2, right. A dot on each line is its mean error, a short stroke above the axis the error
    of the bin as a whole: if the stroke lies far to the left of the line, errors of both signs cancel within the bin.

    Parameters
    ----------
    lce : array-like, shape (n,), or a mapping of names to them
        Errors from ``metrics.lce``; signed errors are drawn by their size, and rows without a value are left out.
    ax : matplotlib Axes, optional
        A new figure by default.
    bin_error : float, or a mapping of the same names to floats, optional
        The calibration error of all rows together.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> ax = tu.figures.draw_lce_cdf({"before": [0.1, 0.2], "after": [0.0, 0.1]}, bin_error={"before": 0.05})
    >>> ax.get_ylabel()
    'share of rows'
    """
    named = results_by_name("lce", lce, object, "errors")
    if isinstance(bin_error, Mapping):
        unknown = [name for name in bin_error if name not in named]
        if unknown:
            raise ArgumentError(f"bin_error names {unknown[0]!r}, which has no errors", hint=f"names are {list(named)}")
    ax = get_axes(ax, 6.2, 3.6)
    for (name, values), style in zip(named.items(), line_styles(len(named)), strict=True):
        error = np.abs(check_array(f"lce of {name!r}" if name else "lce", values, 1, allow_nan=True))
        error = np.sort(error[np.isfinite(error)])
        share = np.arange(1, len(error) + 1) / len(error)
        ax.step(np.append(0.0, error), np.append(0.0, share), where="post", label=name or None, **style)
        mean = float(error.mean())
        height = float(np.searchsorted(error, mean, side="right") / len(error))
        ax.plot([mean], [height], marker="o", markersize=6, color=style["color"], linestyle="none", markeredgecolor="white")
        overall = bin_error.get(name) if isinstance(bin_error, Mapping) else bin_error
        if overall is not None:
            x = float(np.abs(check_array("bin_error", [overall], 1))[0])
            ax.plot([x, x], [0.0, 0.12], color=style["color"], linewidth=2.5, solid_capstyle="butt")
    marks = "dot: mean" + ("" if bin_error is None else "; stroke: error of the bin")
    style_axes(ax, title, f"local calibration error\n({marks})", "share of rows")
    ax.set_ylim(0.0, 1.0)
    ax.set_xlim(left=0.0)
    if "" not in named:
        place_legend(ax)
    return ax


def draw_mlce(
    curves: LceCurve | Mapping[str, LceCurve], ax: Axes | None = None, *, average: bool = False, title: str = ""
) -> Axes:
    """Draw the maximum local calibration error by bandwidth.

    After Luo et al. (2022), Figures 1, 3 and 5. Small bandwidths compare single rows, large ones whole bins; the limit for
    an infinite bandwidth, the MCE, is marked at the right edge.

    Parameters
    ----------
    curves : LceCurve, or a mapping of names to them
        From ``metrics.lce_curve``.
    ax : matplotlib Axes, optional
        A new figure by default.
    average : bool
        Draw the mean over rows instead of the maximum (their Figures 16 to 19), without the limit.
    title : str, optional

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> p, hit = np.array([0.9, 0.8, 0.9, 0.8]), np.array([1, 0, 0, 1])
    >>> curve = tu.metrics.lce_curve([[0.0], [1.0], [2.0], [3.0]], p, hit, gammas=[0.1, 1, 10], bins=1)
    >>> ax = tu.figures.draw_mlce({"uncorrected": curve})
    >>> ax.get_xscale()
    'log'
    """
    named = results_by_name("curves", curves, LceCurve, "a curve from metrics.lce_curve")
    ax = get_axes(ax, 6.2, 3.6)
    for (name, curve), style in zip(named.items(), line_styles(len(named)), strict=True):
        order = np.argsort(curve.gamma)
        error = curve.mean if average else curve.mlce
        ax.plot(curve.gamma[order], error[order], label=name or None, **style)
        if not average:
            ax.plot(
                [1.0], [curve.mce], marker="<", markersize=7, color=style["color"], markeredgecolor="white",
                linestyle="none", transform=ax.get_yaxis_transform(), clip_on=False, zorder=4,
            )  # fmt: skip
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_ylim(bottom=0.0)
    x_label = "bandwidth γ" if average else "bandwidth γ (triangles: MCE, the limit)"
    style_axes(ax, title, x_label, f"{'mean' if average else 'maximum'} local calibration error")
    if "" not in named:
        place_legend(ax)
    return ax
