"""The decision curve: net benefit of acting on the scores against treating all and treating none."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.audits.text import number
from trueup.decisions.decision_curve import odds
from trueup.reports.model import Cell, Section, column, make_table, number_cell
from trueup.reports.plots import Frame, choose_axis

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueup._types import BoolArray, FloatArray
    from trueup.audits.audit import Audit
    from trueup.reports.profiles.profile import SectionPlan, Vocabulary

DEFAULT_THRESHOLDS = (0.01, 0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5)
MIN_TREATED_SHARE = 0.005  # the curve ends where fewer rows would be treated
MIN_CURVE_END = 0.1
MAX_DEPTH = 0.25  # how far below 0 the curve is drawn, as a share of its maximum
SIGNIFICANT = 1.96  # standard errors that a difference must exceed
MAX_STRETCHES = 3  # of thresholds, in a sentence
NO_BEST = "The rows are weighted, so the standard errors of the differences are unknown: no strategy is called best."


class NetBenefit(NamedTuple):
    """Net benefit per row at each threshold: of the model and of treating all; that of treating none is 0.

    ``treated`` and ``events`` count the rows at or above the threshold and the events among them.
    """

    threshold: FloatArray
    share: FloatArray
    model: FloatArray
    treat_all: FloatArray
    treated: FloatArray
    events: FloatArray


def net_benefit(audit: Audit) -> NetBenefit:
    """Compute net benefit at thresholds 0, 0.01, ..., 0.99: tp - fp t / (1 - t), per row (Vickers & Elkin 2006)."""
    called = audit.summary.called
    assert called is not None  # the section is built for binary outcomes only
    t, treated, events = called.threshold[:-1], called.rows[:-1], called.positives[:-1]
    total, rate = treated[0], events[0] / treated[0]
    share, hits = treated / total, events / total
    return NetBenefit(t, share, hits - (share - hits) * odds(t), rate - (1 - rate) * odds(t), treated, events)


def decision_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan) -> Section:
    """Plot the decision curve and tabulate it at some thresholds."""
    benefit, weighted = net_benefit(audit), audit.schema.weight is not None
    enough = benefit.threshold[benefit.share >= MIN_TREATED_SHARE]
    end = plan.parameters.get("max_threshold") or max(float(enough[-1]) if len(enough) else 0.0, MIN_CURVE_END)
    thresholds = plan.parameters.get("thresholds", DEFAULT_THRESHOLDS)
    indices = sorted({int(np.argmin(np.abs(benefit.threshold - t))) for t in thresholds})
    unit = f"net benefit per 1,000 {vocabulary.rows}"

    def per_1000(values: FloatArray) -> Callable[[int], Cell]:
        return lambda index: number_cell(1000 * float(values[index]), _per_1000(float(values[index])))

    def threshold(index: int) -> Cell:
        text = f"{benefit.threshold[index]:.2f}"
        return Cell(text, "name", text, value=float(text))

    def winner(index: int) -> Cell:
        differences = {other: compare_strategies(benefit, index)["model", other] for other in ("treat all", "treat none")}
        tooltip = "; ".join(
            f"model - {other}: {_per_1000(gain.value)} ± {_per_1000(SIGNIFICANT * gain.error)}"
            for other, gain in differences.items()
        )
        return Cell("", "interval") if weighted else Cell(best_strategy(benefit, index), "interval", title=tooltip)

    share = f"share of the {vocabulary.rows} at or above the threshold"
    meaning = "the strategy significantly better than both others, at this threshold alone"
    columns = [
        column("threshold", threshold, kind="name"),
        column("treated", lambda index: number_cell(float(benefit.share[index]), f"{benefit.share[index]:.1%}"), share),
        column("model", per_1000(benefit.model), unit),
        column("treat all", per_1000(benefit.treat_all), unit),
        column("treat none", lambda _: number_cell(0, "0"), unit),
        column("best", winner, meaning, "interval"),
    ]
    best = (
        f"A strategy is called best if it exceeds both others by more than {SIGNIFICANT} standard errors of the paired "
        "difference."
    )
    lead = (
        f"{plan.lead} Figures in the table are net true positives per 1,000 {vocabulary.rows}. "
        f"{_describe_losses(benefit, end)} {NO_BEST if weighted else best}"
    )
    return Section(plan.title, lead.strip(), make_table(columns, indices), _plot(benefit, end, unit))


# Which strategy is best


class BenefitDifference(NamedTuple):
    """The difference in net benefit per row between two strategies, and its standard error."""

    value: float
    error: float

    @property
    def significant(self) -> bool:
        """Whether the first strategy is significantly better."""
        return self.value > SIGNIFICANT * self.error


def treatment_gain(rows: float, events: float, total: float, cost: float) -> BenefitDifference:
    """Compute what treating some rows gains over not treating them: the mean of y - (1 - y) cost over them, 0 elsewhere.

    Both strategies treat the other rows alike, so the difference is paired and its standard error is that of a mean; for
    outcomes between 0 and 1 it is an upper bound.
    """
    mean = (events - (rows - events) * cost) / total
    mean_square = (events + (rows - events) * cost**2) / total
    return BenefitDifference(mean, math.sqrt(max(mean_square - mean**2, 0.0) / total))


def compare_strategies(benefit: NetBenefit, index: int) -> dict[tuple[str, str], BenefitDifference]:
    """Compare the model, treating all and treating none at a threshold, in pairs."""
    total, total_events = float(benefit.treated[0]), float(benefit.events[0])
    rows, events, cost = (
        float(benefit.treated[index]), float(benefit.events[index]), float(odds(benefit.threshold[index]))
    )  # fmt: skip
    pairs = {
        ("model", "treat none"): treatment_gain(rows, events, total, cost),
        ("treat all", "model"): treatment_gain(total - rows, total_events - events, total, cost),
        ("treat all", "treat none"): treatment_gain(total, total_events, total, cost),
    }
    return pairs | {(b, a): BenefitDifference(-gain.value, gain.error) for (a, b), gain in pairs.items()}


def best_strategy(benefit: NetBenefit, index: int) -> str:
    """Name the strategy that is significantly better than the others; a model that treats all or none is that strategy."""
    differences = compare_strategies(benefit, index)
    degenerate = benefit.treated[index] in (0.0, benefit.treated[0])
    strategies = ["treat none", "treat all", *([] if degenerate else ["model"])]
    for strategy in strategies:
        if all(differences[strategy, other].significant for other in strategies if other != strategy):
            return strategy
    return "no clear winner"


def _per_1000(value: float) -> str:
    """Format a net benefit per row as net true positives per 1,000 rows."""
    value *= 1000
    return f"{round(value, 1) + 0.0:,.1f}" if abs(value) < 1e6 else number(value)  # + 0.0 removes the sign of -0.0


# Where the model is worse than treating all or none


def _describe_losses(benefit: NetBenefit, end: float) -> str:
    shown = (benefit.threshold > 0) & (benefit.threshold <= end + 1e-12)
    t, model = benefit.threshold[shown], benefit.model[shown]
    parts = [
        f"below {name} {stretches}"
        for name, other in (("treating none", 0.0 * model), ("treating all", benefit.treat_all[shown]))
        if (stretches := describe_stretches(t, model < other - 1e-12))
    ]
    shown_range = f"In the range shown, {t[0]:.2f} to {t[-1]:.2f}," if len(t) else "In the range shown"
    if not parts:
        return f"{shown_range} the model lies nowhere below treating none or all."
    return f"{shown_range} the model lies {', and '.join(parts)} (significant or not)."


def describe_stretches(t: FloatArray, inside: BoolArray) -> str:
    """Describe where a condition holds along increasing thresholds."""
    changes = np.flatnonzero(np.diff(np.concatenate([[0], inside.astype(int), [0]]))).tolist()
    stretches = []
    for first, stop in zip(changes[::2], changes[1::2], strict=True):
        to_end = stop == len(t)
        if first == 0 and to_end:
            stretches.append("throughout")
        elif to_end:
            stretches.append(f"from {t[first]:.2f} on")
        elif first == stop - 1:
            stretches.append(f"at {t[first]:.2f}")
        else:
            stretches.append(f"up to {t[stop - 1]:.2f}" if first == 0 else f"from {t[first]:.2f} to {t[stop - 1]:.2f}")
    more = len(stretches) - MAX_STRETCHES
    stretches = [*stretches[:MAX_STRETCHES], *([f"in {more:,} more places"] if more > 0 else [])]
    return " and ".join([part for part in (", ".join(stretches[:-1]), *stretches[-1:]) if part])


# The plot


class DecisionPlot(NamedTuple):
    """The decision curve: polylines of the model and of treating all, which may leave the frame at the bottom."""

    frame: Frame
    model: str
    treat_all: str
    unit: str


def _plot(benefit: NetBenefit, end: float, unit: str) -> DecisionPlot:
    shown = benefit.threshold <= end + 1e-12
    t, model, treat_all = benefit.threshold[shown], 1000 * benefit.model[shown], 1000 * benefit.treat_all[shown]
    highest = max(float(model.max()), float(treat_all.max()))
    highest = highest if highest > 0 else 1.0  # without events there is nothing to gain
    x_axis, y_axis = choose_axis(0.0, max(end, 0.01), 6), choose_axis(-MAX_DEPTH * highest, 1.06 * highest, 8)
    frame = Frame(x_axis, y_axis, 62, 30, 486, 230)
    return DecisionPlot(frame, frame.points(t, model), frame.points(t, treat_all), unit)
