"""Sections of a validation: ranking (Gini, KS), the Hosmer-Lemeshow test, and the stability of the scores (PSI)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.audits.result import Audit
from trueup.audits.text import number
from trueup.errors import ArgumentError
from trueup.metrics.backtesting import (
    SHIFTED_PSI,
    STABLE_PSI,
    ScoreDistribution,
    StabilityIndex,
    compare_distributions,
    sample_distribution,
)
from trueup.metrics.inference import normal_quantile
from trueup.reports.model import Cell, Column, Section, interval_cell, make_table, number_cell
from trueup.reports.profiles import plural
from trueup.reports.text import percent, summary_of

if TYPE_CHECKING:
    from trueup.reports.profiles import SectionPlan, Vocabulary

NO_REFERENCE = "Not measured: no reference scores were passed (reference= or --reference)."
CONVENTION = (
    f"By convention, below {STABLE_PSI} is stable, {STABLE_PSI} to {SHIFTED_PSI} a shift to examine, above a major one"
)
SIGNIFICANCE = 0.05
ONE_LOOK = "a test for one look, which depends on the bins"


class Measure(NamedTuple):
    """A row of the table: name, value, its interpretation, its interval, and the value of the reference."""

    name: str
    value: float
    reading: str
    low: float = math.nan
    high: float = math.nan
    reference: float = math.nan


def validation_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan, reference: Any = None) -> Section:
    """List Gini, KS, the Hosmer-Lemeshow test and PSI, beside those of a reference audit."""
    level = float(plan.parameters.get("level", 1 - audit.settings.alpha))
    earlier = _reference_scores(reference)
    measures = [*_ranking(audit, vocabulary, earlier, level), *_hosmer_lemeshow(audit)]
    if reference is None:
        measures.append(Measure("PSI", math.nan, f"{NO_REFERENCE[0].lower()}{NO_REFERENCE[1:-1]}"))
    else:
        index = stability(audit, reference)
        measures.append(Measure("PSI", index.value, f"{_call(index)}, {_chance(index)}"))
    columns = [
        Column("measure", lambda m: Cell(m.name, "name"), kind="name"),
        Column("value", lambda m: number_cell(m.value, digits=3)),
        Column(f"{percent(level)} interval", _interval, kind="interval"),
        *([Column("reference", lambda m: number_cell(m.reference), "the value of the reference audit")] if earlier else []),
        Column("interpretation", lambda m: Cell(m.reading, "interval"), kind="interval"),
    ]
    return Section(plan.title, plan.lead, make_table(columns, measures))


def _interval(measure: Measure) -> Cell:
    return interval_cell(measure.low, measure.high) if math.isfinite(measure.low) else Cell("", "interval")


def _reference_scores(reference: Any) -> dict[str, float]:
    """Return the measures of a reference audit; empty if the reference is a sample of scores, or has one outcome."""
    if not isinstance(reference, Audit) or reference.schema.task != "binary" or summary_of(reference) is None:
        return {}
    return dict(reference.summary.scores)


def _ranking(audit: Audit, vocabulary: Vocabulary, earlier: dict[str, float], level: float) -> list[Measure]:
    scores, z = audit.summary.scores, normal_quantile(1 - level)
    value, error = scores["gini"], scores["gini_se"]
    if not math.isfinite(value):
        return []
    before, before_error = earlier.get("gini", math.nan), earlier.get("gini_se", math.nan)
    reading = "2 AUC - 1; 0 is random, 1 a perfect ranking"
    if math.isfinite(before):
        change = f"{abs(value - before):.3f} {'below' if value < before else 'above'} the reference"
        noise = math.hypot(error, before_error)
        within = "" if not noise > 0 else " (within noise)" if abs(value - before) < z * noise else " (significant)"
        reading += f"; {change}{within}"
    sides = f"of rows with and without {vocabulary.outcome}"
    gap = f"largest distance between the distributions of the {plural(vocabulary.score)} {sides}"
    return [
        Measure("Gini", value, reading, value - z * error, min(value + z * error, 1.0), before),
        Measure("KS", scores["ks"], gap, reference=earlier.get("ks", math.nan)),
    ]


def _hosmer_lemeshow(audit: Audit) -> list[Measure]:
    scores = audit.summary.scores
    value, degrees, p_value = (scores[name] for name in ("hosmer-lemeshow", "hosmer-lemeshow_df", "hosmer-lemeshow_p"))
    if not math.isfinite(p_value):
        return []
    verdict = "significant miscalibration" if p_value <= audit.settings.alpha else "no significant miscalibration"
    reading = f"chi-squared with {degrees:.0f} degrees of freedom, p = {number(p_value, 2)}: {verdict}; {ONE_LOOK}"
    return [Measure("Hosmer-Lemeshow", value, reading)]


# Stability


def stability(audit: Audit, reference: Any) -> StabilityIndex:
    """Compute the PSI of an audit against a reference: another audit, or a sample of scores."""
    if isinstance(reference, Audit):
        if reference.schema.task != audit.schema.task or summary_of(reference) is None:
            problem = "the reference audit has no distribution of scores to compare with"
            raise ArgumentError(problem, hint="pass an audit of the same kind of outcome", parameter="reference")
        earlier = score_distribution(reference)
    else:
        earlier = (
            reference if isinstance(reference, ScoreDistribution) else sample_distribution(reference, None, "reference")
        )
        if earlier.score[0] < 0 or earlier.score[-1] > 1:
            hint = "pass an audit of the reference rows, or their scores as an array"
            raise ArgumentError("reference must hold probabilities between 0 and 1", hint=hint, parameter="reference")
    return compare_distributions(earlier, score_distribution(audit))


def score_distribution(audit: Audit) -> ScoreDistribution:
    """Return the distribution of the scores: of all rows if they are in memory, else the quantiles of the summary."""
    rows = audit.sorted_rows
    return audit.summary.distribution if rows is None else ScoreDistribution.of(rows.p, rows.w)


def stability_section(audit: Audit, vocabulary: Vocabulary, plan: SectionPlan, reference: Any = None) -> Section:
    """List the shares of reference and current scores in bins fixed on the reference, and what each adds to the PSI."""
    if reference is None:
        return Section(plan.title, NO_REFERENCE)
    index = stability(audit, reference)
    ends = np.concatenate([[math.nan], index.edges, [math.nan]])
    terms = index.contributions

    def name(k: int) -> Cell:
        low, high = (number(float(end)) for end in (ends[k], ends[k + 1]))
        if k == 0:
            return Cell(f"up to {high}" if len(index.edges) else "all", "name")
        return Cell(f"above {low}" if k == len(index.edges) else f"{low} to {high}", "name")

    def share(values: Any) -> Any:
        return lambda k: number_cell(float(values[k]), f"{values[k]:.1%}")

    columns = [
        Column(vocabulary.score, name, "bins are quantiles of the reference, closed on the right", "name"),
        Column("reference", share(index.reference), "share of the reference scores"),
        Column("current", share(index.current), "share of the scores of this audit"),
        Column("PSI", lambda k: number_cell(float(terms[k]), f"{terms[k]:.4f}"), "what the bin adds to the index"),
    ]
    lead = f"{plan.lead} PSI {number(index.value)}: {_call(index)}, {_chance(index)}."
    note = f"{CONVENTION}. Bins are tenths of the reference scores, fixed before the current scores are counted."
    if audit.sorted_rows is None:
        note += " Shares of the current scores are interpolated between 400 quantiles."
    return Section(plan.title, lead.strip(), make_table(columns, range(len(index.reference))), note=note)


def _call(index: StabilityIndex) -> str:
    if index.value < STABLE_PSI:
        return f"stable (below {STABLE_PSI})"
    return (
        f"a shift to examine (above {STABLE_PSI})" if index.value <= SHIFTED_PSI else f"a major shift (above {SHIFTED_PSI})"
    )


def _chance(index: StabilityIndex) -> str:
    small = "though " if index.value < STABLE_PSI else ""
    explained = "chance alone explains it" if index.p_value > SIGNIFICANCE else f"{small}more than chance explains"
    return f"{explained} ({number(index.expected, 2)} on average if nothing has changed, p = {number(index.p_value, 2)})"
