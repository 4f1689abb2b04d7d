"""Pictures of keeping silent where confidence is low: rewards over cost ratios, risk over coverage."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.errors import ArgumentError
from trueup.reports.figures.style import COLOURS, WIDEST, axes_of, beside, by_name, looks, plain, seen_alone, thinned

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

    from trueup._types import FloatArray
    from trueup.decisions import RewardCurve, RiskCoverage


REWARD = "pass decisions.reward_curve(p, y), or a mapping of names to such curves"
RISK = "pass decisions.risk_coverage(p, y), or a mapping of names to such curves"
REWARD_PARTS = ("ratio", "reward", "expected", "always", "never", "oracle", "labelled")
RISK_PARTS = ("coverage", "risk", "expected", "random_area", "prr", "labelled")
QUIET: dict[str, Any] = {"color": COLOURS[-1], "linewidth": 1.2, "zorder": 2}
PROMISED: dict[str, Any] = {"color": COLOURS[1], "linestyle": "--", "linewidth": 1.4, "zorder": 3}
WIDE = 2.0  # standard errors on each side of a line


def draw_reward(
    curves: RewardCurve | Mapping[str, RewardCurve], against: str | RewardCurve | None = None, ax: Axes | None = None, *,
    title: str = "",
) -> Axes:  # fmt: skip
    """Draw what a row earns where only confident answers are given, against how dear a wrong answer is.

    Parameters
    ----------
    curves : RewardCurve, or a mapping of names to them
        By ``decisions.reward_curve``. Beside one alone there is what its confidences promised, where outcomes are known.
    against : str or RewardCurve, optional
        Draw how much more is earned than by this one, a name among the curves or a curve (Luo et al. 2022, Figure 4).
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional
        What was measured.

    Examples
    --------
    >>> import trueup as tu
    >>> p, y = [0.9, 0.8, 0.6], [1, 1, 0]
    >>> curves = {"before": tu.decisions.reward_curve(p, y), "after": tu.decisions.reward_curve([0.95, 0.9, 0.5], y)}
    >>> tu.figures.draw_reward(curves).get_xscale()
    'log'
    >>> tu.figures.draw_reward(curves, against="before").get_ylabel()
    "more reward a row than 'before'"
    """
    named = by_name(curves, "curves", "curve by decisions.reward_curve", REWARD_PARTS, REWARD)
    drawn = looks(named)
    if against is None:
        lines, up = {name: one.reward for name, one in named.items()}, "reward a row (“unsure”: −1)"
    else:
        over, up = _against(against, named)
        lines = {name: one.gain(over) for name, one in named.items()}
    ax = axes_of(ax, 6.6, 3.6)
    for (name, one), line, look in zip(named.items(), lines.values(), drawn, strict=True):
        order = np.argsort(one.ratio)
        if one is not (None if against is None else over):
            band = " (±2 standard errors)" if against is None and one.labelled else ""
            dot = seen_alone(order)
            ax.plot(one.ratio[order], line[order], label=name or _came(one) + band, zorder=3, **look, **dot)
    if against is None:
        _draw_alternatives(ax, list(named.values()), alone="" in named)
        least = min(float(np.min(line)) for line in lines.values())
        ax.set_ylim(min(1.1 * least, -1.08), 0.0)
    else:
        ax.axhline(0.0, **QUIET)
    _ratio_axis(ax)
    plain(ax, title, "cost of a wrong answer, in times that of “unsure”", up)
    beside(ax)
    return ax


def _against(against: Any, named: Mapping[str, Any]) -> tuple[Any, str]:
    """Give the curve that others are compared with, and the words for the axis."""
    if isinstance(against, str):
        if against not in named:
            raise ArgumentError(f"against names {against!r}, which is no curve", hint=f"names are {list(named)}")
        return named[against], textwrap.fill(f"more reward a row than {against!r}", WIDEST)
    by_name(against, "against", "name or a curve by decisions.reward_curve", REWARD_PARTS, REWARD)
    return against, "more reward a row"


def _steps(one: Any, risk: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Give a curve from no rows on: those of the highest confidence are taken in any order."""
    return thinned(np.append(0.0, one.coverage), np.append(risk[0], risk))


def _came(one: Any) -> str:
    return "came out" if one.labelled else "expected"


def _draw_alternatives(ax: Axes, curves: list[Any], *, alone: bool) -> None:
    """Draw what needs no confidence, or all knowledge; each that is the same for all curves."""
    first = curves[0]
    order = np.argsort(first.ratio)
    if alone and first.labelled:
        dot = seen_alone(order)
        ax.plot(first.ratio[order], first.expected[order], label="promised by confidence", **PROMISED, **dot)
        low, high = first.reward - WIDE * first.standard_error, first.reward + WIDE * first.standard_error
        ax.fill_between(first.ratio[order], low[order], high[order], color=COLOURS[0], alpha=0.16, linewidth=0, zorder=1)
    for name, label, stroke in (
        ("oracle", "only right answers", "--"), ("never", "never answer", ":"), ("always", "always answer", "-.")
    ):  # fmt: skip
        line = getattr(first, name)
        if all(np.shape(line) == np.shape(getattr(one, name)) and np.allclose(line, getattr(one, name)) for one in curves):
            ax.plot(first.ratio[order], line[order], linestyle=stroke, label=label, **QUIET, **seen_alone(order))


def _ratio_axis(ax: Axes) -> None:
    """Count ratios 1, 2, 5, 10, 20, 50."""
    ticks = require("matplotlib.ticker", extra="plots")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(ticks.LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_minor_locator(ticks.NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")


def draw_risk_coverage(
    curves: RiskCoverage | Mapping[str, RiskCoverage], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw how many answers are wrong against how many are given, the most confident first.

    Parameters
    ----------
    curves : RiskCoverage, or a mapping of names to them
        By ``decisions.risk_coverage``. Beside one alone there is what its confidences promised, where outcomes are known.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional
        What was measured.

    Examples
    --------
    >>> import trueup as tu
    >>> ax = tu.figures.draw_risk_coverage(tu.decisions.risk_coverage([0.9, 0.8, 0.6, 0.6], [1, 1, 0, 1]))
    >>> ax.get_legend().get_texts()[0].get_text()
    'came out: PRR 0.667'
    """
    named = by_name(curves, "curves", "curve by decisions.risk_coverage", RISK_PARTS, RISK)
    drawn = looks(named)
    ax = axes_of(ax, 6.6, 3.6)
    for (name, one), look in zip(named.items(), drawn, strict=True):
        told = "" if np.isnan(one.prr) else f": PRR {one.prr:.3f}"  # no errors, or nothing else
        ax.plot(*_steps(one, one.risk), label=f"{name or _came(one)}{told}", zorder=3, **look)
    shares = [one.random_area for one in named.values()]
    if "" in named and named[""].labelled:
        ax.plot(*_steps(named[""], named[""].expected), label="promised by confidence", **PROMISED)
    if np.allclose(shares, shares[0]):
        at = np.linspace(0.0, 1.0, 201)[1:]
        ax.plot(at, np.maximum(0.0, at - (1 - shares[0])) / at, linestyle="--", label="every error last", **QUIET)
        ax.plot([0.0, 1.0], shares[:1] * 2, linestyle=":", label="blindly", **QUIET)
    plain(ax, title, "share of rows answered, the most confident first", "share of wrong answers")
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(bottom=0.0)
    beside(ax)
    return ax
