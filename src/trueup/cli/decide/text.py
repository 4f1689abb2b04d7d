"""A decision as text and as data: the rule, its cost and alternatives, segments, and what the figures rest on."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import number, shorten
from trueup.cli.decide.problem import action_phrase, describe_problem
from trueup.cli.next_steps import correction_steps
from trueup.cli.tables import TextTable
from trueup.data.frame import to_jsonable
from trueup.decisions.evaluate import ACT, dominated_actions, threshold_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from trueup.data.table import Table
    from trueup.decisions import ExpectedCost, Rule
    from trueup.decisions.evaluate import DecisionProblem, RuleEvaluation, Segmentation, SegmentCosts

MAX_BAR_WIDTH = 30
MIN_READABLE, MAX_READABLE = 1e-9, 1e15  # between these, amounts are written without an exponent
DIGITS, DIGITS_PER_ROW = 3, 4


class AmountFormat:
    """Format amounts with as many decimals as the largest of them needs.

    Examples
    --------
    >>> AmountFormat([12345.6, 20])(1234.56), AmountFormat([0.0321])(0.0321), AmountFormat([5.0])(-0.001)
    ('1,235', '0.0321', '0.00')
    >>> AmountFormat([2e20])(1.5e20), AmountFormat([33.74], 4)(33.74), AmountFormat([1.0])(math.nan)
    ('1.5e+20', '33.74', '')
    """

    def __init__(self, amounts: Iterable[float], digits: int = DIGITS) -> None:
        largest = max((abs(amount) for amount in amounts), default=1.0) or 1.0
        self._decimals = max(0, digits - 1 - math.floor(math.log10(largest)))
        self._readable = MIN_READABLE <= largest < MAX_READABLE

    def __call__(self, value: float) -> str:
        """Format an amount; NaN becomes an empty text."""
        if math.isnan(value):
            return ""
        if not self._readable:
            return f"{value + 0.0:.4g}"
        return f"{round(value, self._decimals) + 0.0:,.{self._decimals}f}"

    def interval(self, cost: ExpectedCost) -> str:
        """Format the interval of a cost."""
        return f"{self(cost.low)} to {self(cost.high)}"


def _amount_format(evaluation: RuleEvaluation) -> AmountFormat:
    cost = evaluation.cost
    if cost.target == "population":
        return AmountFormat([cost.estimate or cost.high], DIGITS_PER_ROW)
    return AmountFormat([cost.high, cost.low, *(other.cost.estimate for other in evaluation.alternatives)])


def _rows(count: float) -> str:
    """Format a number of rows, or their total weight."""
    return f"{round(count, 1):,.10g}"


def _level(evaluation: RuleEvaluation) -> str:
    return f"{100 * evaluation.cost.level:g}%"


def _unit(evaluation: RuleEvaluation) -> str:
    return "expected cost" if evaluation.cost.target == "rows" else "expected cost per row"


# Rules


def rule_sentence(evaluation: RuleEvaluation) -> str:
    """Describe the rule in a sentence."""
    rule, prediction = evaluation.rule, evaluation.prediction
    if len(rule.actions) == 1:
        name = rule.actions[0].name
        if not evaluation.problem.error_costs:
            return f"{name}: every row"
        return "act on every row" if name == ACT else "act on no row"
    if evaluation.problem.error_costs:
        acting = next(index for index, action in enumerate(rule.actions) if action.name == ACT)
        return f"act where {prediction} {_condition(*rule.edges[acting : acting + 2])}"
    parts = zip(rule.actions, rule.edges[:-1], rule.edges[1:], strict=True)
    return "; ".join(f"{action.name} where {prediction} {_condition(low, high)}" for action, low, high in parts)


def _condition(low: float, high: float) -> str:
    if low == -math.inf:
        return f"is below {high:.4g}"
    return f"is {low:.4g} or more" if high == math.inf else f"is {low:.4g} to below {high:.4g}"


def rule_name(evaluation: RuleEvaluation, rule: Rule) -> str:
    """Name a rule in a table."""
    if not evaluation.problem.error_costs:
        return f"{rule.actions[0].name}: every row" if len(rule.actions) == 1 else "cheapest rule"
    if len(rule.actions) == 1:
        return "every row" if rule.actions[0].name == ACT else "no row"
    sign = ">=" if rule.actions[1].name == ACT else "<"
    return f"{evaluation.prediction} {sign} {rule.edges[1]:.4g}"


# The page


def decision_line(evaluation: RuleEvaluation) -> str:
    """Return the rule and its cost on one line."""
    return f"{rule_sentence(evaluation)}: {_cost_line(evaluation, _amount_format(evaluation))}"


def _cost_line(evaluation: RuleEvaluation, amount: AmountFormat) -> str:
    cost = evaluation.cost
    return f"{_unit(evaluation)} {amount(cost.estimate)}, {_level(evaluation)} interval {amount.interval(cost)}"


def decision_page(evaluation: RuleEvaluation, arguments: argparse.Namespace) -> list[str | TextTable]:
    """Return all results as sentences and tables."""
    amount = _amount_format(evaluation)
    blocks: list[Sequence[str | TextTable]] = [
        [_alternatives_table(evaluation, amount)],
        _confusion_table(evaluation) if evaluation.problem.error_costs else _shares_table(evaluation, amount),
        _cost_curve_table(evaluation, amount),
        *(_segment_table(evaluation, costs, amount, arguments.top) for costs in evaluation.segments if arguments.top),
        [*_action_notes(evaluation), *_labelled_notes(evaluation), *_row_notes(evaluation)],
        correction_steps(evaluation, arguments),
    ]
    return [*_head(evaluation, amount), *(part for block in blocks if block for part in ("", *block))]


def _head(evaluation: RuleEvaluation, amount: AmountFormat) -> list[str]:
    cost, problem = evaluation.cost, evaluation.problem
    rows = f"{_rows(cost.rows)} rows{' by weight' if evaluation.table.weight is not None else ''}"
    taken = {share.action: share.rows for share in cost.shares}
    count = f"{_rows(taken.get(ACT, 0.0))} of {rows}" if problem.error_costs else rows
    exceeded = [most for name, most in problem.capacity.items() if taken.get(name, 0.0) > most]
    over = "" if evaluation.fits else f", above the capacity of {_rows(exceeded[0])}"
    widths = " and ".join(f"{name} (±{amount(half)})" for name, half in cost.half_widths.items())
    lines = [
        f"{rule_sentence(evaluation)}: {count}{over}",
        _cost_line(evaluation, amount),
        describe_problem(problem),
    ]
    if not cost.evidence:
        return [
            *lines,
            f"the interval covers {widths} and assumes calibrated scores; pass --labelled to correct for miscalibration",
        ]
    change = f"{'raise' if cost.correction >= 0 else 'lower'} the estimate by {amount(abs(cost.correction))}"
    return [*lines, f"the interval covers {widths}; {cost.evidence} {change}"]


def _alternatives_table(evaluation: RuleEvaluation, amount: AmountFormat) -> TextTable:
    error_costs, interval = evaluation.problem.error_costs, f"{_level(evaluation)} interval"
    rules: list[tuple[Rule, ExpectedCost, bool, ExpectedCost | None]] = [(evaluation.rule, evaluation.cost, True, None)]
    rules += [(other.rule, other.cost, other.fits, other.saving) for other in evaluation.alternatives]
    rows: list[tuple[str, ...]] = []
    for rule, cost, fits, saving in rules:
        acted = sum(share.rows for share in cost.shares if share.action == ACT)
        name = rule_name(evaluation, rule) + ("" if fits else " (above capacity)")
        saved = ("", "") if saving is None else (amount(saving.estimate), amount.interval(saving))
        rows.append((
            name, *([_rows(acted)] if error_costs else []), amount(cost.estimate), amount.interval(cost), *saved
        ))  # fmt: skip
    first = ("act on", "rows") if error_costs else ("rule",)
    return TextTable((*first, "cost", interval, "rule saves", interval), rows, ("rows", "interval"))


def _shares_table(evaluation: RuleEvaluation, amount: AmountFormat) -> list[str | TextTable]:
    rule, shares = evaluation.rule, evaluation.cost.shares
    total = amount if evaluation.cost.target == "rows" else AmountFormat([abs(share.cost) for share in shares])
    rows: list[tuple[str, ...]] = [
        (share.action, _condition(low, high)[3:], _rows(share.rows), f"{share.positives:,.0f}", total(share.cost))
        for share, low, high in zip(shares, rule.edges[:-1], rule.edges[1:], strict=True)
    ]
    return [
        "expected per action, before any correction",
        TextTable(("action", "scores", "rows", "positives", "cost"), rows),
    ]


def _confusion_table(evaluation: RuleEvaluation) -> list[str | TextTable]:
    confusion = evaluation.confusion
    if confusion is None:
        return []
    counts = (
        ("true positives", confusion.tp),
        ("false negatives (misses)", confusion.fn),
        ("false positives (false alarms)", confusion.fp),
        ("true negatives", confusion.tn),
    )
    write = (lambda value: f"{value:,.0f}") if confusion.target == "rows" else number
    rows: list[tuple[str, ...]] = [(name, *map(write, values)) for name, values in counts]
    rows += [
        (name, *(f"{100 * value:.1f}%" for value in values))
        for name, values in (("recall", confusion.recall), ("precision", confusion.precision))
        if not any(map(math.isnan, values))
    ]
    head = "expected rows" if confusion.target == "rows" else "expected share of the population"
    return [TextTable((head, "estimate", "low", "high"), rows)]


def _cost_curve_table(evaluation: RuleEvaluation, amount: AmountFormat) -> list[str | TextTable]:
    """Draw the cost of thresholds as bars and mark the best one."""
    if not evaluation.cost_curve:
        return []
    costs = [point.cost for point in evaluation.cost_curve]
    origin = min(0.0, *costs)
    longest = (max(costs) - origin) or 1.0
    best = threshold_of(evaluation.best.rule)
    best_mark = "best before correction" if evaluation.cost.evidence else "best"
    rows: list[tuple[str, ...]] = []
    for threshold, acted, cost, fits in evaluation.cost_curve:
        mark = best_mark if threshold == best else "given" if threshold == evaluation.problem.threshold else ""
        name = "every row" if threshold == 0 else "no row" if math.isinf(threshold) else f"{threshold:.4g}"
        bar = _bar((cost - origin) / longest) if fits else "above capacity"
        rows.append((f"{name}{f'  <- {mark}' if mark else ''}", _rows(acted), amount(cost), bar))
    return [TextTable(("threshold", "rows", "cost", ""), rows, ("rows",), bars=True)]


def _bar(share: float) -> str:
    """Draw a bar in eighths of a character, or with # if the terminal cannot encode these."""
    eighths = round(8 * MAX_BAR_WIDTH * share)
    bar = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8] or ("▏" if share else "")
    try:
        bar.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "#" * math.ceil(MAX_BAR_WIDTH * share)
    return bar


def _segment_table(
    evaluation: RuleEvaluation, segments: SegmentCosts, amount: AmountFormat, top: int
) -> list[str | TextTable]:
    """Return the table of one segmentation, the largest costs first and the sum last."""
    problem, level = evaluation.problem, _level(evaluation)
    actions = [ACT] if problem.error_costs else [action.name for action in evaluation.rule.actions]
    ordered = sorted(segments.costs.items(), key=lambda item: (-item[1].estimate, item[0]))
    labelled_rows, has_labelled = segments.segmentation.labelled_rows, evaluation.labelled is not None
    without = set(segments.without_labelled)
    shown = [(f"{name} *" if name in without else name, cost, labelled_rows[name]) for name, cost in ordered[:top]]
    if has_labelled:
        shown.append((f"sum of segments{' *' if without else ''}", segments.total, sum(labelled_rows.values())))
    rows: list[tuple[str, ...]] = []
    for name, cost, labelled in shown:
        taken = {share.action: share.rows for share in cost.shares}
        cells = [_rows(cost.rows), *(_rows(taken.get(action, 0.0)) for action in actions)]
        cells += [amount(value) for value in (cost.estimate, cost.low, cost.high)]
        rows.append((name, *cells, *([f"{labelled:,}"] if has_labelled else [])))
    acted = ["acted on"] if problem.error_costs else [shorten(action) for action in actions]
    names = ("segment", "rows", *acted, "cost", f"low, {level}", f"high, {level}")
    lines: list[str | TextTable] = [
        TextTable((*names, *(["labelled"] if has_labelled else [])), rows, ("labelled", "rows"))
    ]
    hidden = ordered[top:]
    if hidden:
        count = sum(name in without for name, _ in hidden)
        suffix = f", {count:,} of them without labelled rows" if count else ""
        lines.append(f"{len(hidden):,} more{suffix}: --top {len(ordered)}")
    if without:
        lines.append("* without labelled rows: not corrected, and without an interval")
    return lines


# Notes


def _action_notes(evaluation: RuleEvaluation) -> Iterator[str]:
    problem = evaluation.problem
    dominated = dominated_actions(problem.actions)
    for name in dominated:
        yield f"{action_phrase(problem, name)} is never worthwhile: another action costs less at every score"
    if problem.error_costs:
        return
    limits = ["capacities"] if problem.capacity else []
    limits += ["fixed costs"] if any(action.fixed for action in problem.actions) else []
    reason = f"given these scores, {' and '.join(limits)}" if limits else "no score lies where it is cheapest"
    used = {share.action for share in evaluation.cost.shares if share.rows}
    for action in problem.actions:
        if action.name not in used and action.name not in dominated:
            yield f"no row gets {action.name}: {reason}"


def _labelled_notes(evaluation: RuleEvaluation) -> Iterator[str]:
    labelled = evaluation.labelled
    if labelled is None:
        return
    assert labelled.outcome is not None
    observed, expected = (
        100 * float(np.average(column, weights=labelled.weight)) for column in (labelled.outcome, labelled.prediction)
    )
    weighted = "" if labelled.weight is None else " by weight"
    verdict = "the scores are miscalibrated" if evaluation.miscalibrated else "no significant miscalibration"
    yield (
        f"{len(labelled):,} labelled rows: {observed:.3g}% positive{weighted}, {expected:.3g}% expected; {verdict} "
        f"(p = {number(evaluation.p_value, 2)})"
    )
    if evaluation.reversed_scores:
        yield (
            f"higher scores go with fewer positives (AUC {evaluation.auc:.3g} on the labelled rows): check whether the "
            "outcome is inverted"
        )
    compared = "differs from" if evaluation.shifted else "matches"
    yield (
        f"the score distribution {compared} that of the labelled rows (largest difference of distribution functions "
        f"{evaluation.cost.distance:.3f})"
    )
    if labelled.unlabelled:
        yield f"{labelled.unlabelled:,} labelled rows without an outcome were dropped"


def _row_notes(evaluation: RuleEvaluation) -> Iterator[str]:
    labelled = evaluation.labelled
    weightless = evaluation.table.weightless + (0 if labelled is None else labelled.weightless)
    if weightless:
        yield f"{weightless:,} rows of weight 0 were dropped"
    if any(action.fixed for action in evaluation.rule.actions):
        if evaluation.cost.target == "population":
            yield "the cost per row does not include fixed costs"
        elif evaluation.segments:
            yield "fixed costs are part of the total, but of no segment"


def input_notes(
    table: Table, labelled: Table | None, segmentations: Sequence[Segmentation], problem: DecisionProblem
) -> Iterator[str]:
    """Describe the rows, costs and segments for --verbose."""
    yield f"rows: {len(table):,}, score {table.schema.prediction[0]}"
    yield f"costs: {describe_problem(problem)}"
    if labelled is None:
        yield "no labelled rows: the scores are assumed to be calibrated"
    else:
        yield f"labelled rows: {len(labelled):,}; they correct the cost and widen its interval"
    for segmentation in segmentations:
        empty = sum(not rows for rows in segmentation.labelled_rows.values()) if labelled is not None else 0
        without = f", {empty:,} of them without labelled rows" if empty else ""
        yield f"segments by {' x '.join(segmentation.by)}: {len(segmentation.names):,}{without}"


def result_notes(evaluation: RuleEvaluation) -> Iterator[str]:
    """Describe the choice of the rule and its interval for --verbose."""
    cost = evaluation.cost
    yield f"rule: {'given by --threshold' if evaluation.problem.threshold is not None else 'the cheapest by the scores'}"
    yield f"within the capacities: {'yes' if evaluation.fits else 'no'}"
    widths = ", ".join(f"{name} ±{half:.6g}" for name, half in cost.half_widths.items())
    yield f"interval at {_level(evaluation)}, for {cost.target}: {widths}"
    if cost.evidence:
        yield f"correction from {cost.evidence}: {cost.correction:+.6g}"


# Data


def decision_data(evaluation: RuleEvaluation) -> dict[str, Any]:
    """Return all results as plain data."""
    labelled = None
    if evaluation.labelled is not None and evaluation.calibration is not None:
        labelled = {
            "rows": len(evaluation.labelled),
            "calibration": evaluation.calibration.to_dict(),
            "p_value": evaluation.p_value,
            "miscalibrated": evaluation.miscalibrated,
            "shifted": evaluation.shifted,
            "distance": evaluation.cost.distance,
            "auc": to_jsonable(evaluation.auc),
            "reversed": evaluation.reversed_scores,
        }
    return {
        "rule": rule_sentence(evaluation),
        "threshold": to_jsonable(evaluation.rule.edges[1]) if len(evaluation.rule.actions) == 2 else None,
        "fits": evaluation.fits,
        "cost": evaluation.cost.to_dict(),
        "alternatives": [
            {
                "rule": rule_name(evaluation, other.rule),
                "fits": other.fits,
                "cost": other.cost.to_dict(),
                "saving": {name: getattr(other.saving, name) for name in ("estimate", "low", "high", "level")},
            }
            for other in evaluation.alternatives
        ],
        "confusion": None if evaluation.confusion is None else evaluation.confusion.to_dict(),
        "cost_curve": [to_jsonable(point._asdict()) for point in evaluation.cost_curve],
        "best": evaluation.best.to_dict(),
        "by_segment": {name: cost.to_dict() for segments in evaluation.segments for name, cost in segments.costs.items()},
        "segment_sums": {
            " & ".join(segments.segmentation.by): segments.total.to_dict() | {"by_segment": {}}
            for segments in evaluation.segments
        },
        "without_labelled_rows": [name for segments in evaluation.segments for name in segments.without_labelled],
        "labelled": labelled,
    }
