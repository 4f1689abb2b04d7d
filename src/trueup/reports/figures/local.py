"""Pictures of local calibration: where confidence is wrong, how errors are spread, how they shrink with the bandwidth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from trueup._optional import require
from trueup.errors import ArgumentError, DataError
from trueup.reports.figures.style import CALM, INK, axes_of, by_name, legend, looks, numbers, plain, positive

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray
    from trueup.metrics.local import LceCurve, LocalErrors


# From a grey that is seen on white, for no error, to a dark end on either side: darker is worse, also without colour.
TOO_SURE = (CALM, "#F0A04B", "#D55E00", "#5C1D00")
UNSURE = (CALM, "#6FB1DE", "#0072B2", "#00263F")
FAINT, HALF = 0.12, 0.5  # what is left of the colour of errors that may be chance, and that are news only by themselves
LCE_CURVE = "pass metrics.lce_curve(phi, confidence, hit), or a mapping of names to such curves"
MOST_MARKS = 20_000  # rows from which a landscape is kept as pixels in files that keep lines


def draw_landscape(
    phi: ArrayLike, lce: ArrayLike | LocalErrors, ax: Axes | None = None, *, highest: float | None = None, title: str = ""
) -> Axes:
    """Draw where in an embedding confidence is wrong: a point a row, its colour the local calibration error.

    After Luo et al. (2022), Figure 2, left. Rows of larger errors are drawn over others, rows without a value (those with
    no neighbours) as empty rings beneath.

    Parameters
    ----------
    phi : array-like, shape (n, 2)
        Where rows lie: the first two columns of a PCA, a t-SNE, two features. The columns of a frame name the axes.
    lce : array-like, shape (n,), or LocalErrors
        The error at each row, by ``metrics.lce``. Where some are negative they are signed, and colours tell too sure
        (above 0) from not sure enough. With what ``metrics.local_errors`` gives, the size of each error is drawn, and its
        colour fades to grey unless it is news: in full where ``p_adjusted`` is at most 1 - level, half where only
        ``p_value`` is.
    ax : matplotlib Axes, optional
        A new figure by default.
    highest : float, optional
        The error that the scale of colours ends with; by default that of the worst row, or of the worst that is news.
        Pictures side by side want one.
    title : str, optional
        Which rows these are, such as "confidence 0.8 to 0.87".

    Examples
    --------
    >>> import trueup as tu
    >>> ax = tu.figures.draw_landscape([[0, 0], [1, 2]], [0.1, 0.3], title="two rows")
    >>> ax.get_title(loc="left")
    'two rows'
    """
    errors, shade = _shades(lce)
    place = numbers(phi, "phi", 2, hint="the order is phi, lce; phi has two columns, such as those of a PCA")
    error = numbers(errors, "lce", 1, gaps=True, hint="pass what metrics.lce or metrics.local_errors gives, one a row")
    if place.shape != (len(error), 2):
        raise DataError(
            f"phi must have two columns and a row for each error; got {place.shape} and {len(error)} errors",
            hint="take two columns of an embedding, such as those of a PCA",
        )
    signed = bool((error < 0).any())
    some = np.isfinite(error)
    # Chance makes the largest errors of all: where it is known which are news, they alone set the scale.
    news = error[some] if shade is None or not (shade[some] > FAINT).any() else error[some & (shade > FAINT)]
    top = float(np.abs(news).max()) or 1.0 if highest is None else positive(highest, "highest")
    ax = axes_of(ax, 4.6, 4.0)
    look: dict[str, Any] = {"s": _size(len(error)), "rasterized": len(error) > MOST_MARKS}
    if not some.all():
        ax.scatter(place[~some, 0], place[~some, 1], facecolors="none", edgecolors=CALM, linewidths=0.6, zorder=0, **look)
    if shade is not None:
        ax.scatter(place[some, 0], place[some, 1], color=CALM, linewidths=0, zorder=0.5, **look)
    least = np.zeros(len(error)) if shade is None else shade
    order = np.flatnonzero(some)[np.lexsort((np.abs(error[some]), least[some]))]
    if shade is not None:
        look["alpha"] = shade[order]
    marks = ax.scatter(
        place[order, 0], place[order, 1], c=error[order], cmap=_colours(signed=signed), vmin=-top if signed else 0.0,
        vmax=top, linewidths=0, **look,
    )  # fmt: skip
    bar = ax.figure.colorbar(marks, ax=ax, extend=_extend(news, top), shrink=0.9, pad=0.02)
    bar.outline.set_visible(False)
    note = "\n(above 0: too sure)" if signed else "" if shade is None else "\n(grey: may be chance)"
    bar.set_label("local calibration error" + note, color=INK)
    bar.ax.tick_params(color=INK, labelcolor=INK, length=2)
    plain(ax, title, *_names(phi, ("embedding, first column", "second column")))
    return ax


def draw_lce_cdf(
    lce: ArrayLike | Mapping[str, ArrayLike], ax: Axes | None = None, *,
    bin_error: float | Mapping[str, float] | None = None, title: str = "",
) -> Axes:  # fmt: skip
    """Draw how local calibration errors are spread: the share of rows whose error is at most so large.

    After Luo et al. (2022), Figure 2, right. A dot on each line is its mean error, a short stroke on the axis below the
    error of the bin as a whole: where that is small and the line lies far to the right of it, errors of both signs hide
    behind each other.

    Parameters
    ----------
    lce : array-like, shape (n,), or a mapping of names to them
        Errors by ``metrics.lce``; signed ones are drawn by their size, and rows without a value are not counted.
    ax : matplotlib Axes, optional
        A new figure by default.
    bin_error : float, or a mapping of the same names to floats, optional
        The calibration error of all rows together.
    title : str, optional
        Which rows these are.

    Examples
    --------
    >>> import trueup as tu
    >>> ax = tu.figures.draw_lce_cdf({"before": [0.1, 0.2], "after": [0.0, 0.1]}, bin_error={"before": 0.05})
    >>> ax.get_ylabel()
    'share of rows'
    """
    named = lce if isinstance(lce, Mapping) else {"": lce}
    if isinstance(bin_error, Mapping):
        strangers = [name for name in bin_error if name not in named]
        if strangers:
            raise ArgumentError(f"bin_error names {strangers[0]!r}, which has no errors", hint=f"names are {list(named)}")
    ax = axes_of(ax, 6.2, 3.6)
    for (name, values), look in zip(named.items(), looks(named), strict=True):
        error = np.abs(numbers(values, f"lce of {name!r}" if name else "lce", 1, gaps=True))
        error = np.sort(error[np.isfinite(error)])
        share = np.arange(1, len(error) + 1) / len(error)
        ax.step(np.append(0.0, error), np.append(0.0, share), where="post", label=name or None, **look)
        mean = float(error.mean())
        at = float(np.searchsorted(error, mean, side="right") / len(error))
        ax.plot([mean], [at], marker="o", markersize=6, color=look["color"], linestyle="none", markeredgecolor="white")
        whole = bin_error.get(name) if isinstance(bin_error, Mapping) else bin_error
        if whole is not None:
            across = float(np.abs(numbers([whole], "bin_error", 1))[0])
            ax.plot([across] * 2, [0.0, 0.12], color=look["color"], linewidth=2.5, solid_capstyle="butt")
    marks = "dot: mean" + ("" if bin_error is None else "; stroke: error of the bin")
    plain(ax, title, f"local calibration error\n({marks})", "share of rows")
    ax.set_ylim(0.0, 1.0)
    ax.set_xlim(left=0.0)
    legend(ax, named)
    return ax


def draw_mlce(
    curves: LceCurve | Mapping[str, LceCurve], ax: Axes | None = None, *, average: bool = False, title: str = ""
) -> Axes:
    """Draw the maximum local calibration error against the bandwidth, a line for each method.

    After Luo et al. (2022), Figures 1, 3 and 5. Small bandwidths ask about single rows, large ones about whole bins; what
    the error comes to where the bandwidth has no end, the MCE, is marked at the right edge.

    Parameters
    ----------
    curves : LceCurve, or a mapping of names to them
        By ``metrics.lce_curve``.
    ax : matplotlib Axes, optional
        A new figure by default.
    average : bool
        Draw the mean over rows in place of the maximum (their Figures 16 to 19); nothing is marked then.
    title : str, optional
        What was measured.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> p, hit = np.array([0.9, 0.8, 0.9, 0.8]), np.array([1, 0, 0, 1])
    >>> curve = tu.metrics.lce_curve([[0.0], [1.0], [2.0], [3.0]], p, hit, gammas=[0.1, 1, 10], bins=1)
    >>> ax = tu.figures.draw_mlce({"as it is": curve})
    >>> ax.get_xscale()
    'log'
    """
    named = by_name(curves, "curves", "curve by metrics.lce_curve", ("gamma", "mlce", "mean", "mce"), LCE_CURVE)
    ax = axes_of(ax, 6.2, 3.6)
    for (name, curve), look in zip(named.items(), looks(named), strict=True):
        gamma, error = np.asarray(curve.gamma, float), np.asarray(curve.mean if average else curve.mlce, float)
        order = np.argsort(gamma)
        ax.plot(gamma[order], error[order], label=name or None, **look)
        if not average:
            ax.plot(
                [1.0], [curve.mce], marker="<", markersize=7, color=look["color"], markeredgecolor="white",
                linestyle="none", transform=ax.get_yaxis_transform(), clip_on=False, zorder=4,
            )  # fmt: skip
    ax.set_xscale("log")
    ax.xaxis.set_major_formatter("{x:g}")
    ax.set_ylim(bottom=0.0)
    across, what = ("bandwidth γ", "mean") if average else ("bandwidth γ (triangles: MCE, its limit)", "largest")
    plain(ax, title, across, f"{what} local calibration error")
    legend(ax, named)
    return ax


def _shades(lce: ArrayLike | LocalErrors) -> tuple[ArrayLike, FloatArray | None]:
    """Give the errors to draw and how much of its colour each keeps; None for errors that come without evidence."""
    level, p, adjusted = (getattr(lce, name, None) for name in ("level", "p_value", "p_adjusted"))
    if level is None or p is None or adjusted is None:
        return cast("ArrayLike", lce), None
    # A hair more than 1 - level, whose rounding would lose a p-value of 1/20 at a level of 0.95.
    alarm = (1.0 - level) * (1.0 + 1e-9)
    shade = np.select([np.asarray(adjusted) <= alarm, np.asarray(p) <= alarm], [1.0, HALF], FAINT)
    return np.abs(cast("LocalErrors", lce).error), shade


def _colours(*, signed: bool) -> Any:
    """Give the scale of colours."""
    colours = require("matplotlib.colors", extra="plots").LinearSegmentedColormap
    return colours.from_list("errors", [*UNSURE[::-1], *TOO_SURE[1:]] if signed else TOO_SURE)


def _names(phi: Any, otherwise: tuple[str, str]) -> tuple[str, str]:
    """Read the names of the two columns of a frame."""
    names = getattr(phi, "column_names", getattr(phi, "columns", None))  # the first of them in pyarrow alone
    listed = [] if names is None else list(names)
    return (listed[0], listed[1]) if [type(name) for name in listed] == [str, str] else otherwise


def _size(rows: int) -> float:
    return float(np.clip(12_000 / rows, 3.0, 40.0))


def _extend(error: FloatArray, top: float) -> str:
    over, under = bool(error.max() > top), bool(error.min() < -top)
    return "both" if over and under else "max" if over else "min" if under else "neither"
