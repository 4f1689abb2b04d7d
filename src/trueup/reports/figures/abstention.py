"""Figures of abstention: reward by cost ratio, and risk by coverage."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.decisions import RewardCurve, RiskCoverage
from trueup.errors import ArgumentError
from trueup.reports.figures.style import (
    COLOURS,
    MAX_LEGEND_WIDTH,
    check_result,
    get_axes,
    line_styles,
    place_legend,
    point_marker,
    results_by_name,
    style_axes,
    thin_line,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes

    from trueup._types import FloatArray

REWARD_CURVE = "a curve from decisions.reward_curve"
REFERENCE: dict[str, Any] = {"color": COLOURS[-1], "linewidth": 1.2, "zorder": 2}
EXPECTED: dict[str, Any] = {"color": COLOURS[1], "linestyle": "--", "linewidth": 1.4, "zorder": 3}
EXPECTED_LABEL = "expected by confidence"
BAND = 2.0  # standard errors


def draw_reward(
    curves: RewardCurve | Mapping[str, RewardCurve], against: str | RewardCurve | None = None, ax: Axes | None = None, *,
    title: str = "",
) -> Axes:  # fmt: skip
    """Draw the reward per row of answering only if confident, by the cost of a wrong answer.

    Parameters
    ----------
    curves : RewardCurve, or a mapping of names to them
        From ``decisions.reward_curve``. For a single curve with known outcomes, the reward that the confidences predict is
        drawn too.
    against : str or RewardCurve, optional
        Draw the difference to this curve, a name among the curves or a curve (Luo et al. 2022, Figure 4).
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> p, y = [0.9, 0.8, 0.6], [1, 1, 0]
    >>> curves = {"before": tu.decisions.reward_curve(p, y), "after": tu.decisions.reward_curve([0.95, 0.9, 0.5], y)}
    >>> tu.figures.draw_reward(curves).get_xscale()
    'log'
    >>> tu.figures.draw_reward(curves, against="before").get_ylabel()
    "reward per row minus that of 'before'"
    """
    named = results_by_name("curves", curves, RewardCurve, REWARD_CURVE)
    baseline, y_label = _baseline(against, named)
    lines = {name: curve.reward if baseline is None else curve.gain(baseline) for name, curve in named.items()}
    ax = get_axes(ax, 6.6, 3.6)
    for (name, curve), style in zip(named.items(), line_styles(len(named)), strict=True):
        if curve is not baseline:
            order = np.argsort(curve.ratio)
            band = f" (±{BAND:g} standard errors)" if baseline is None and curve.labelled else ""
            label = name or f"{'realised' if curve.labelled else 'expected'}{band}"
            ax.plot(curve.ratio[order], lines[name][order], label=label, zorder=3, **style, **point_marker(order))
    if baseline is None:
        _draw_references(ax, list(named.values()), single="" in named)
        lowest = min(float(np.min(line)) for line in lines.values())
        ax.set_ylim(min(1.1 * lowest, -1.08), 0.0)
    else:
        ax.axhline(0.0, **REFERENCE)
    ticks = require("matplotlib.ticker", extra="plots")
    ax.set_xscale("log")
    ax.xaxis.set_major_locator(ticks.LogLocator(subs=(1.0, 2.0, 5.0)))
    ax.xaxis.set_minor_locator(ticks.NullLocator())
    ax.xaxis.set_major_formatter("{x:g}")
    style_axes(ax, title, "cost of a wrong answer relative to abstaining", y_label)
    place_legend(ax)
    return ax


def _baseline(against: Any, named: Mapping[str, Any]) -> tuple[RewardCurve | None, str]:
    """Return the curve to compare with, and the label of the axis."""
    if against is None:
        return None, "reward per row (abstaining: −1)"
    if isinstance(against, str):
        if against not in named:
            raise ArgumentError(f"against names {against!r}, which is no curve", hint=f"names are {list(named)}")
        return named[against], textwrap.fill(f"reward per row minus that of {against!r}", MAX_LEGEND_WIDTH + 6)
    check_result("against", against, RewardCurve, f"a name or {REWARD_CURVE}")
    return against, "difference in reward per row"


def _draw_references(ax: Axes, curves: list[Any], *, single: bool) -> None:
    """Draw the expected reward of a single curve, and the policies whose reward is the same for all curves."""
    first = curves[0]
    order = np.argsort(first.ratio)
    ratio, marker = first.ratio[order], point_marker(order)
    if single and first.labelled:
        ax.plot(ratio, first.expected[order], label=EXPECTED_LABEL, **EXPECTED, **marker)
        low, high = (first.reward + sign * BAND * first.standard_error for sign in (-1, 1))
        ax.fill_between(ratio, low[order], high[order], color=COLOURS[0], alpha=0.16, linewidth=0, zorder=1)
    for name, label, line_style in (
        ("oracle", "only correct answers", "--"),
        ("never", "never answer", ":"),
        ("always", "always answer", "-."),
    ):
        line = getattr(first, name)
        others = [getattr(curve, name) for curve in curves]
        if all(np.shape(line) == np.shape(other) and np.allclose(line, other) for other in others):
            ax.plot(ratio, line[order], linestyle=line_style, label=label, **REFERENCE, **marker)


def draw_risk_coverage(
    curves: RiskCoverage | Mapping[str, RiskCoverage], ax: Axes | None = None, *, title: str = ""
) -> Axes:
    """Draw the share of wrong answers by the share of rows answered, the most confident rows first.

    Parameters
    ----------
    curves : RiskCoverage, or a mapping of names to them
        From ``decisions.risk_coverage``. For a single curve with known outcomes, the risk that the confidences predict is
        drawn too.
    ax : matplotlib Axes, optional
        A new figure by default.
    title : str, optional

    Examples
    --------
    >>> import trueup as tu
    >>> ax = tu.figures.draw_risk_coverage(tu.decisions.risk_coverage([0.9, 0.8, 0.6, 0.6], [1, 1, 0, 1]))
    >>> ax.get_legend().get_texts()[0].get_text()
    'realised: PRR 0.667'
    """
    named = results_by_name("curves", curves, RiskCoverage, "a curve from decisions.risk_coverage")
    ax = get_axes(ax, 6.6, 3.6)

    def line(curve: RiskCoverage, risk: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return a curve from coverage 0 on: the most confident rows are answered in any order."""
        return thin_line(np.append(0.0, curve.coverage), np.append(risk[0], risk))

    for (name, curve), style in zip(named.items(), line_styles(len(named)), strict=True):
        prr = "" if np.isnan(curve.prr) else f": PRR {curve.prr:.3f}"  # undefined without errors, or with nothing else
        label = name or ("realised" if curve.labelled else "expected")
        ax.plot(*line(curve, curve.risk), label=f"{label}{prr}", zorder=3, **style)
    if "" in named and named[""].labelled:
        ax.plot(*line(named[""], named[""].expected), label=EXPECTED_LABEL, **EXPECTED)
    error_rates = [curve.random_area for curve in named.values()]
    if np.allclose(error_rates, error_rates[0]):
        coverage = np.linspace(0.0, 1.0, 201)[1:]
        ideal = np.maximum(0.0, coverage - (1 - error_rates[0])) / coverage
        ax.plot(coverage, ideal, linestyle="--", label="all errors last", **REFERENCE)
        ax.plot([0.0, 1.0], error_rates[:1] * 2, linestyle=":", label="random order", **REFERENCE)
    style_axes(ax, title, "share of rows answered, most confident first", "share of wrong answers")
    ax.set_xlim(0.0, 1.0)
    ax.set_ylim(bottom=0.0)
    place_legend(ax)
    return ax
