"""The output of `trueup decide`: rule, cost, alternatives, segments and notes."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import number, shorten
from trueup.cli.decide.problem import action_phrase, describe_problem
from trueup.cli.tables import TextTable
from trueup.decisions.evaluate import ACT, dominated_actions, threshold_of
from trueup.metrics.result import to_plain

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from trueup.decisions import ExpectedCost, Rule
    from trueup.decisions.evaluate import RuleEvaluation, SegmentCosts

MAX_BAR_WIDTH = 30
MIN_READABLE, MAX_READABLE = 1e-9, 1e15  # between these, amounts are written without an exponent
DIGITS, DIGITS_PER_ROW = 3, 4


class AmountFormat:
    """Formats amounts with as many decimals as the largest of them needs; NaN becomes an empty text."""

    def __init__(self, amounts: Iterable[float], digits: int = DIGITS) -> None:
        largest = max((abs(amount) for amount in amounts), default=1.0) or 1.0
        self._decimals = max(0, digits - 1 - math.floor(math.log10(largest)))
        self._readable = MIN_READABLE <= largest < MAX_READABLE

    def __call__(self, value: float) -> str:
        """Format an amount."""
        if math.isnan(value):
            return ""
        if not self._readable:
            return f"{value + 0.0:.4g}"
        return f"{round(value, self._decimals) + 0.0:,.{self._decimals}f}"

    def interval(self, cost: ExpectedCost) -> str:
        """Format the interval of a cost."""
        return f"{self(cost.low)} to {self(cost.high)}"


class DecisionText:
    """Texts and tables of an evaluated rule."""

    def __init__(self, evaluation: RuleEvaluation) -> None:
        self.evaluation, self.problem, self.cost = evaluation, evaluation.problem, evaluation.cost
        self.level = f"{100 * self.cost.level:g}%"
        if self.cost.target == "population":
            self.amount = AmountFormat([self.cost.estimate or self.cost.high], DIGITS_PER_ROW)
        else:
            others = (other.cost.estimate for other in evaluation.alternatives)
            self.amount = AmountFormat([self.cost.high, self.cost.low, *others])

    def page(self, top: int) -> list[str | TextTable]:
        """Return all results as sentences and tables."""
        blocks: list[Sequence[str | TextTable]] = [
            [self._alternatives()],
            self._confusion() if self.problem.error_costs else self._shares(),
            self._cost_curve(),
            *(self._segments(segments, top) for segments in self.evaluation.segments if top),
            [*self._action_notes(), *self._labelled_notes(), *self._row_notes()],
        ]
        return [*self._head(), *(part for block in blocks if block for part in ("", *block))]

    def line(self) -> str:
        """Return the rule and its cost on one line."""
        return f"{self._rule_sentence()}: {self._cost_sentence()}"

    def _cost_sentence(self) -> str:
        unit = "expected cost" if self.cost.target == "rows" else "expected cost per row"
        return f"{unit} {self.amount(self.cost.estimate)}, {self.level} interval {self.amount.interval(self.cost)}"

    def _rule_sentence(self) -> str:
        rule, prediction = self.evaluation.rule, self.evaluation.prediction
        if len(rule.actions) == 1:
            name = rule.actions[0].name
            if not self.problem.error_costs:
                return f"{name}: every row"
            return "act on every row" if name == ACT else "act on no row"
        shown = [ACT] if self.problem.error_costs else [action.name for action in rule.actions]
        ranges = zip(rule.actions, rule.edges[:-1], rule.edges[1:], strict=True)
        return "; ".join(
            f"{action.name} where {prediction} is {_score_range(low, high)}"
            for action, low, high in ranges
            if action.name in shown
        )

    def _rule_name(self, rule: Rule) -> str:
        if not self.problem.error_costs:
            return f"{rule.actions[0].name}: every row" if len(rule.actions) == 1 else "cheapest rule"
        if len(rule.actions) == 1:
            return "every row" if rule.actions[0].name == ACT else "no row"
        return f"{self.evaluation.prediction} {'>=' if rule.actions[1].name == ACT else '<'} {rule.edges[1]:.4g}"

    def _head(self) -> list[str]:
        cost, amount = self.cost, self.amount
        rows = f"{_rows(cost.rows)} rows{' by weight' if self.evaluation.table.weight is not None else ''}"
        taken = {share.action: share.rows for share in cost.shares}
        count = f"{_rows(taken.get(ACT, 0.0))} of {rows}" if self.problem.error_costs else rows
        exceeded = [most for name, most in self.problem.capacity.items() if taken.get(name, 0.0) > most]
        over = "" if self.evaluation.fits else f", above the capacity of {_rows(exceeded[0])}"
        widths = " and ".join(f"{name} (±{amount(half)})" for name, half in cost.half_widths.items())
        change = f"{'raise' if cost.correction >= 0 else 'lower'} the estimate by {amount(abs(cost.correction))}"
        evidence = f"; {cost.evidence} {change}"
        if not cost.evidence:
            evidence = " and assumes calibrated scores; pass --labelled to correct for miscalibration"
        return [
            f"{self._rule_sentence()}: {count}{over}",
            self._cost_sentence(),
            describe_problem(self.problem),
            f"the interval covers {widths}{evidence}",
        ]

    def _alternatives(self) -> TextTable:
        evaluation, amount = self.evaluation, self.amount
        error_costs, interval = self.problem.error_costs, f"{self.level} interval"
        rules: list[tuple[Rule, ExpectedCost, bool, ExpectedCost | None]] = [(evaluation.rule, self.cost, True, None)]
        rules += [(other.rule, other.cost, other.fits, other.saving) for other in evaluation.alternatives]
        rows: list[tuple[str, ...]] = []
        for rule, cost, fits, saving in rules:
            acted = sum(share.rows for share in cost.shares if share.action == ACT)
            first = [
                self._rule_name(rule) + ("" if fits else " (above capacity)"),
                *([_rows(acted)] if error_costs else []),
            ]
            saved = ["", ""] if saving is None else [amount(saving.estimate), amount.interval(saving)]
            rows.append((*first, amount(cost.estimate), amount.interval(cost), *saved))
        names = ("act on", "rows") if error_costs else ("rule",)
        return TextTable((*names, "cost", interval, "rule saves", interval), rows, ("rows", "interval"))

    def _shares(self) -> list[str | TextTable]:
        shares, edges = self.cost.shares, self.evaluation.rule.edges
        amount = self.amount if self.cost.target == "rows" else AmountFormat([abs(share.cost) for share in shares])
        rows: list[tuple[str, ...]] = [
            (share.action, _score_range(low, high), _rows(share.rows), f"{share.positives:,.0f}", amount(share.cost))
            for share, low, high in zip(shares, edges[:-1], edges[1:], strict=True)
        ]
        table = TextTable(("action", "scores", "rows", "positives", "cost"), rows)
        return ["expected per action, before any correction", table]

    def _confusion(self) -> list[str | TextTable]:
        confusion = self.evaluation.confusion
        if confusion is None:
            return []
        counts = {
            "true positives": confusion.tp, "false negatives (misses)": confusion.fn,
            "false positives (false alarms)": confusion.fp, "true negatives": confusion.tn,
        }  # fmt: skip
        write = (lambda value: f"{value:,.0f}") if confusion.target == "rows" else number
        rows: list[tuple[str, ...]] = [(name, *map(write, values)) for name, values in counts.items()]
        for name, values in (("recall", confusion.recall), ("precision", confusion.precision)):
            if not any(map(math.isnan, values)):
                rows.append((name, *(f"{100 * value:.1f}%" for value in values)))
        head = "expected rows" if confusion.target == "rows" else "expected share of the population"
        return [TextTable((head, "estimate", "low", "high"), rows)]

    def _cost_curve(self) -> list[str | TextTable]:
        points = self.evaluation.cost_curve
        if not points:
            return []
        origin = min(0.0, *(point.cost for point in points))
        longest = (max(point.cost for point in points) - origin) or 1.0
        marks = {self.problem.threshold: "given"}
        marks[threshold_of(self.evaluation.best.rule)] = "best before correction" if self.cost.evidence else "best"
        rows: list[tuple[str, ...]] = []
        for threshold, acted, cost, fits in points:
            name = "every row" if threshold == 0 else "no row" if math.isinf(threshold) else f"{threshold:.4g}"
            name += f"  <- {marks[threshold]}" if threshold in marks else ""
            bar = _bar((cost - origin) / longest) if fits else "above capacity"
            rows.append((name, _rows(acted), self.amount(cost), bar))
        return [TextTable(("threshold", "rows", "cost", ""), rows, ("rows",), bars=True)]

    def _segments(self, segments: SegmentCosts, top: int) -> list[str | TextTable]:
        """Return the table of one segmentation, the largest costs first and the sum last."""
        error_costs, labelled = self.problem.error_costs, self.evaluation.labelled is not None
        actions = [ACT] if error_costs else [action.name for action in self.evaluation.rule.actions]
        ordered = sorted(segments.costs.items(), key=lambda item: (-item[1].estimate, item[0]))
        labelled_rows, without = segments.segmentation.labelled_rows, set(segments.without_labelled)
        shown = [(f"{name} *" if name in without else name, cost, labelled_rows[name]) for name, cost in ordered[:top]]
        if labelled:
            shown.append((f"sum of segments{' *' if without else ''}", segments.total, sum(labelled_rows.values())))
        rows: list[tuple[str, ...]] = []
        for name, cost, count in shown:
            taken = {share.action: share.rows for share in cost.shares}
            cells = [_rows(cost.rows), *(_rows(taken.get(action, 0.0)) for action in actions)]
            cells += [self.amount(value) for value in (cost.estimate, cost.low, cost.high)]
            rows.append((name, *cells, *([f"{count:,}"] if labelled else [])))
        acted = ["acted on"] if error_costs else [shorten(action) for action in actions]
        names = ("segment", "rows", *acted, "cost", f"low, {self.level}", f"high, {self.level}")
        table = TextTable((*names, *(["labelled"] if labelled else [])), rows, ("labelled", "rows"))
        lines: list[str | TextTable] = [table]
        hidden = [name in without for name, _ in ordered[top:]]
        if hidden:
            suffix = f", {sum(hidden):,} of them without labelled rows" if any(hidden) else ""
            lines.append(f"{len(hidden):,} more{suffix}: --top {len(ordered)}")
        if without:
            lines.append("* without labelled rows: not corrected, and without an interval")
        return lines

    def _action_notes(self) -> Iterator[str]:
        problem = self.problem
        dominated = dominated_actions(problem.actions)
        for name in dominated:
            yield f"{action_phrase(problem, name)} is never worthwhile: another action costs less at every score"
        if problem.error_costs:
            return
        limits = ["capacities"] if problem.capacity else []
        limits += ["fixed costs"] if any(action.fixed for action in problem.actions) else []
        reason = f"given these scores, {' and '.join(limits)}" if limits else "no score lies where it is cheapest"
        used = {share.action for share in self.cost.shares if share.rows}
        for action in problem.actions:
            if action.name not in used and action.name not in dominated:
                yield f"no row gets {action.name}: {reason}"

    def _labelled_notes(self) -> Iterator[str]:
        evaluation, labelled = self.evaluation, self.evaluation.labelled
        if labelled is None:
            return
        assert labelled.outcome is not None
        columns = (labelled.outcome, labelled.prediction)
        observed, expected = (100 * float(np.average(column, weights=labelled.weight)) for column in columns)
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
        yield (
            f"the score distribution {'differs from' if evaluation.shifted else 'matches'} that of the labelled rows "
            f"(largest difference of distribution functions {self.cost.distance:.3f})"
        )
        if labelled.unlabelled:
            yield f"{labelled.unlabelled:,} labelled rows without an outcome were dropped"

    def _row_notes(self) -> Iterator[str]:
        tables = (self.evaluation.table, self.evaluation.labelled)
        weightless = sum(table.weightless for table in tables if table is not None)
        if weightless:
            yield f"{weightless:,} rows of weight 0 were dropped"
        if any(action.fixed for action in self.evaluation.rule.actions):
            if self.cost.target == "population":
                yield "the cost per row does not include fixed costs"
            elif self.evaluation.segments:
                yield "fixed costs are part of the total, but of no segment"

    def data(self) -> dict[str, Any]:
        """Return all results as plain data."""
        evaluation, rule = self.evaluation, self.evaluation.rule
        data: dict[str, Any] = {
            "rule": self._rule_sentence(),
            "threshold": rule.edges[1] if len(rule.actions) == 2 else None,
            "alternatives": [{**other._asdict(), "rule": self._rule_name(other.rule)} for other in evaluation.alternatives],
            "by_segment": {name: cost for segments in evaluation.segments for name, cost in segments.costs.items()},
            "segment_sums": {
                " & ".join(segments.segmentation.by): replace(segments.total, by_segment={})
                for segments in evaluation.segments
            },
            "without_labelled_rows": [name for segments in evaluation.segments for name in segments.without_labelled],
            "labelled": None,
        }
        if evaluation.labelled is not None:
            names = ("calibration", "p_value", "miscalibrated", "shifted", "auc", "reversed_scores")
            data["labelled"] = {
                "rows": len(evaluation.labelled),
                "distance": self.cost.distance,
                **{name: getattr(evaluation, name) for name in names},
            }
        shown = {name: getattr(evaluation, name) for name in ("fits", "cost", "confusion", "cost_curve", "best")}
        plain: dict[str, Any] = to_plain({**data, **shown})
        return plain

    def notes(self) -> Iterator[str]:
        """Describe rows, costs, segments, rule and interval for --verbose."""
        evaluation, cost, labelled = self.evaluation, self.cost, self.evaluation.labelled
        yield f"rows: {len(evaluation.table):,}, score {evaluation.prediction}"
        yield f"costs: {describe_problem(self.problem)}"
        if labelled is None:
            yield "no labelled rows: the scores are assumed to be calibrated"
        else:
            yield f"labelled rows: {len(labelled):,}; they change the cost by {cost.correction:+.6g}"
        for segments in evaluation.segments:
            by, names, without = segments.segmentation.by, segments.segmentation.names, len(segments.without_labelled)
            suffix = f", {without:,} of them without labelled rows" if without else ""
            yield f"segments by {' x '.join(by)}: {len(names):,}{suffix}"
        yield f"rule: {'given by --threshold' if self.problem.threshold is not None else 'the cheapest by the scores'}"
        widths = ", ".join(f"{name} ±{half:.6g}" for name, half in cost.half_widths.items())
        yield f"interval at {self.level}, for {cost.target}: {widths}"


def _rows(count: float) -> str:
    """Format a number of rows, or their total weight."""
    return f"{round(count, 1):,.10g}"


def _score_range(low: float, high: float) -> str:
    if low == -math.inf:
        return f"below {high:.4g}"
    return f"{low:.4g} or more" if high == math.inf else f"{low:.4g} to below {high:.4g}"


def _bar(share: float) -> str:
    """Draw a bar in eighths of a character, or with # if the terminal cannot encode these."""
    eighths = round(8 * MAX_BAR_WIDTH * share)
    bar = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8] or ("▏" if share else "")
    try:
        bar.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "#" * math.ceil(MAX_BAR_WIDTH * share)
    return bar
