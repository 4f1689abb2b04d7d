"""Evaluation of a decision rule on a Table without outcomes, by segment, and comparison with alternatives."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.bins import DEFAULT_BINS, bins_for, calendar_unit, check_bins, find_edges, fit_binner, segment_column
from trueup.decisions.confusion import expected_confusion
from trueup.decisions.costs import expected_cost, expected_saving
from trueup.decisions.counts import compute_interval, sum_segments
from trueup.decisions.evidence import Labelled, read_inputs
from trueup.decisions.rules import Rule, as_rule
from trueup.decisions.search import best_rule
from trueup.decisions.shift import CROSS_FITTED_TOLERANCE
from trueup.errors import ColumnError, ShiftWarning
from trueup.metrics.cumulative import calibration_bound, ecce_pvalue
from trueup.metrics.scores import prr

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trueup._types import AnyArray, IntArray
    from trueup.data.table import Feature, Table
    from trueup.decisions.confusion import ExpectedConfusion
    from trueup.decisions.costs import ExpectedCost
    from trueup.decisions.inputs import Target
    from trueup.decisions.rules import Action, BestRule
    from trueup.metrics.cumulative import CalibrationBound

    LabelledCodes = tuple[Sequence[str], AnyArray, AnyArray]  # segment names; codes of the rows and of the labelled rows

ACT = "act"  # the name that `as_actions` gives to acting where costs are those of errors
COMMON_THRESHOLD = 0.5
ODDS_DOUBLINGS = range(-3, 4)  # thresholds of the cost curve, in doublings of the odds around the best one
MISCALIBRATION_ALPHA = 0.05
REVERSED_Z = -4.0  # an AUC this many standard errors below 0.5 means that the scores are reversed
NO_INTERVAL: dict[str, Any] = {"low": math.nan, "high": math.nan, "half_widths": {}}
KINDS = {"numeric": "numbers", "date": "dates", "categorical": "text"}


class DecisionProblem(NamedTuple):
    """The actions, whether they are "pass" and "act" with costs of errors, a threshold to evaluate, and capacities."""

    actions: tuple[Action, ...]
    error_costs: bool
    threshold: float | None
    capacity: dict[str, float]

    def fits(self, rows: Mapping[str, float]) -> bool:
        """Return whether no action exceeds its capacity, up to rounding of sums of weights."""
        return all(rows.get(name, 0.0) <= most * (1 + 1e-9) for name, most in self.capacity.items())


@dataclass(frozen=True, eq=False)
class Segmentation:
    """Segments of one or several crossed columns: codes per row, and per labelled row (-1 if it is in no segment)."""

    by: tuple[str, ...]
    names: list[str]
    codes: IntArray
    labelled_codes: IntArray

    @property
    def labelled_rows(self) -> dict[str, int]:
        """Number of labelled rows per segment."""
        counts = np.bincount(self.labelled_codes[self.labelled_codes >= 0], minlength=len(self.names))
        return dict(zip(self.names, counts.tolist(), strict=True))


class Alternative(NamedTuple):
    """Another rule, its cost, and what the evaluated rule saves compared with it."""

    rule: Rule
    cost: ExpectedCost
    saving: ExpectedCost
    fits: bool


class ThresholdCost(NamedTuple):
    """A threshold of the cost curve: the rows that are acted on, and the expected cost."""

    threshold: float
    acted: float
    cost: float
    fits: bool


class SegmentCosts(NamedTuple):
    """Costs of the segments, and their total; segments without labelled rows have no interval, nor has then the total."""

    segmentation: Segmentation
    costs: dict[str, ExpectedCost]
    total: ExpectedCost
    without_labelled: list[str]


@dataclass(frozen=True, eq=False)
class RuleEvaluation:
    """A decision rule with its expected cost, its alternatives, and tests of the scores on the labelled rows."""

    table: Table
    labelled: Table | None
    problem: DecisionProblem
    rule: Rule
    best: BestRule
    cost: ExpectedCost
    alternatives: list[Alternative]
    cost_curve: list[ThresholdCost]
    confusion: ExpectedConfusion | None
    segments: list[SegmentCosts]
    calibration: CalibrationBound | None
    p_value: float
    auc: float
    reversed_scores: bool
    shifted: bool
    fits: bool

    @property
    def prediction(self) -> str:
        """The name of the score column."""
        return self.table.schema.prediction[0]

    @property
    def miscalibrated(self) -> bool:
        """Whether the labelled rows show significant miscalibration."""
        return self.p_value < MISCALIBRATION_ALPHA


def evaluate_rule(
    table: Table,
    problem: DecisionProblem,
    *,
    labelled: Table | None = None,
    segmentations: Sequence[Segmentation] = (),
    level: float = 0.9,
    target: Target = "rows",
    cross_fitted: bool = False,
) -> RuleEvaluation:
    """Evaluate the cheapest rule, or the threshold of the problem.

    ``cross_fitted`` states that the labelled scores come from other fold models, so that their steps differ.
    """
    evaluator = _Evaluator(table, problem, labelled, level, target, cross_fitted=cross_fitted)
    best = best_rule(evaluator.p, problem.actions, capacity=problem.capacity, weight=evaluator.w)
    rule = best.rule if problem.threshold is None else as_rule(problem.threshold, problem.actions)
    rule = evaluator.without_unused_fixed_costs(rule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cost = evaluator.cost(rule)
    for warning in caught:
        warnings.warn(warning.message, warning.category, stacklevel=2)
    calibration, p_value, (auc, is_reversed) = None, math.nan, (math.nan, False)
    if labelled is not None:
        calibration = calibration_bound(**evaluator.known, delta=round(1 - level, 12))
        p_value = ecce_pvalue(**evaluator.known)
        auc, is_reversed = compute_auc(labelled)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShiftWarning)  # raised above already
        return RuleEvaluation(
            table=table,
            labelled=labelled,
            problem=problem,
            rule=rule,
            best=best,
            cost=cost,
            alternatives=list(evaluator.alternatives(rule, best)),
            cost_curve=list(evaluator.cost_curve(best)),
            confusion=evaluator.confusion(rule),
            segments=[evaluator.segment_costs(rule, segmentation) for segmentation in segmentations],
            calibration=calibration,
            p_value=p_value,
            auc=auc,
            reversed_scores=is_reversed,
            shifted=any(issubclass(warning.category, ShiftWarning) for warning in caught),
            fits=evaluator.fits(cost),
        )


class _Evaluator:
    """Evaluates rules on the same rows with the same evidence."""

    def __init__(
        self,
        table: Table,
        problem: DecisionProblem,
        labelled: Table | None,
        level: float,
        target: Target,
        *,
        cross_fitted: bool,
    ) -> None:
        self.problem, self.cross_fitted = problem, cross_fitted
        self.p, self.w = table.prediction, table.weight
        self.known: dict[str, Any] = {}
        if labelled is not None:
            self.known = {"y": labelled.outcome, "p": labelled.prediction, "weight": labelled.weight}
        self.evidence = self._evidence(**self.known) if self.known else None
        self.settings: dict[str, Any] = {"level": level, "target": target}

    def _evidence(self, *columns: Any, **named: Any) -> Labelled:
        evidence = Labelled(*columns, **named)
        if self.cross_fitted:
            evidence.shift_tolerance = CROSS_FITTED_TOLERANCE
        return evidence

    def cost(self, rule: Rule) -> ExpectedCost:
        return expected_cost(self.p, rule.actions, rule, self.evidence, weight=self.w, **self.settings)

    def without_unused_fixed_costs(self, rule: Rule) -> Rule:
        """Set the fixed cost of actions that no row gets to zero."""
        rows = np.bincount(rule.action_index(self.p), minlength=len(rule.actions))
        actions = (
            action if count else replace(action, fixed=0.0) for action, count in zip(rule.actions, rows, strict=True)
        )
        return replace(rule, actions=tuple(actions))

    def fits(self, cost: ExpectedCost) -> bool:
        return self.problem.fits({share.action: share.rows for share in cost.shares})

    def alternatives(self, rule: Rule, best: BestRule) -> Iterator[Alternative]:
        """Evaluate the best rule, the common threshold of 0.5, and each action for all rows; skip equal decisions."""
        others = [best.rule]
        if self.problem.error_costs:
            others.append(as_rule(COMMON_THRESHOLD, self.problem.actions))
        others += [Rule((action,), (-math.inf, math.inf)) for action in reversed(self.problem.actions)]
        seen = [rule.apply(self.p)]
        for other in map(self.without_unused_fixed_costs, others):
            decisions = other.apply(self.p)
            if any((decisions == earlier).all() for earlier in seen):
                continue
            seen.append(decisions)
            cost = self.cost(other)
            saving = expected_saving(
                self.p, self.problem.actions, rule, other, self.evidence, weight=self.w, **self.settings
            )
            yield Alternative(other, cost, saving, self.fits(cost))

    def cost_curve(self, best: BestRule) -> Iterator[ThresholdCost]:
        """Evaluate thresholds around the best one, 0.5, the threshold of the problem, and both ends."""
        if not self.problem.error_costs:
            return
        passing, acting = self.problem.actions
        slope = passing.difference - acting.difference
        if slope <= 0:  # acting pays at low scores, if at all: no threshold expresses that
            return
        middle = best.threshold if len(best.rule.actions) == 2 else (acting.negative - passing.negative) / slope
        middle = middle if 0 < middle < 1 else COMMON_THRESHOLD
        odds = middle / (1 - middle)
        chosen = {middle, COMMON_THRESHOLD, threshold_of(best.rule)}
        if self.problem.threshold is not None:
            chosen.add(self.problem.threshold)
        ladder = {float(f"{odds * 2.0**k / (1 + odds * 2.0**k):.2g}") for k in ODDS_DOUBLINGS if k}
        thresholds = sorted({0.0, *chosen, *ladder, math.inf})
        inputs = read_inputs(self.p, self.evidence, weight=self.w, **self.settings)
        sums, _ = sum_segments(inputs, thresholds, thresholds=True)
        # Columns: rows below each threshold, and from it on.
        positive, negative, fixed = (
            np.tile([getattr(action, name) for action in (passing, acting)], (len(thresholds), 1))
            for name in ("positive", "negative", "fixed")
        )
        costs = compute_interval(sums, positive, negative, inputs).estimate
        weight = sums[0].rows.weight
        if inputs.target == "rows":
            costs = costs + (fixed * (weight > 0)).sum(axis=1)
        last = math.nan
        for threshold, cost, taken in zip(thresholds, costs.tolist(), weight.tolist(), strict=True):
            if taken[1] != last or threshold in chosen:
                fits = self.problem.fits({passing.name: taken[0], acting.name: taken[1]})
                yield ThresholdCost(threshold, taken[1], cost, fits)
            last = taken[1]

    def confusion(self, rule: Rule) -> ExpectedConfusion | None:
        """Compute the expected confusion matrix if the rule is a threshold."""
        if not self.problem.error_costs or (len(rule.actions) == 2 and rule.actions[1].name != ACT):
            return None
        return expected_confusion(self.p, threshold_of(rule), self.evidence, weight=self.w, **self.settings)

    def segment_costs(self, rule: Rule, segmentation: Segmentation) -> SegmentCosts:
        """Evaluate each segment on its own labelled rows; fixed costs belong to no segment."""
        rule = replace(rule, actions=tuple(replace(action, fixed=0.0) for action in rule.actions))
        names, evidence = segmentation.names, None
        has_labelled = np.ones(len(names), bool)
        if self.known:
            evidence = self._evidence(**self.known, segments=segmentation.labelled_codes)
            evidence.allow_missing_segments = True
            has_labelled = np.isin(np.arange(len(names)), segmentation.labelled_codes)
        total = expected_cost(
            self.p, rule.actions, rule, evidence, weight=self.w, segments=segmentation.codes, **self.settings
        )
        without = [name for name, known in zip(names, has_labelled, strict=True) if not known]
        costs = {names[int(code)]: cost for code, cost in total.by_segment.items()}
        costs |= {name: replace(costs[name], **NO_INTERVAL) for name in without}
        return SegmentCosts(segmentation, costs, replace(total, **NO_INTERVAL) if without else total, without)


def threshold_of(rule: Rule) -> float:
    """Return the score from which a rule acts: 0 if it always acts, infinity if it never does."""
    return rule.edges[1] if len(rule.actions) == 2 else 0.0 if rule.actions[0].name == ACT else math.inf


def compute_auc(labelled: Table) -> tuple[float, bool]:
    """Return the AUC, and whether it is significantly below 0.5 (Hanley & McNeil 1982, with effective class sizes)."""
    p, y = labelled.prediction, labelled.outcome
    assert y is not None
    w = np.ones(len(p)) if labelled.weight is None else labelled.weight
    auc = (1 + prr(y, -p, w)) / 2
    if math.isnan(auc):
        return auc, False
    positives, negatives = (float(each.sum() ** 2 / (each @ each)) for each in (w * y, w * (1 - y)))
    standard_error = math.sqrt((positives + negatives + 1) / (12 * positives * negatives))
    return auc, (auc - 0.5) / standard_error < REVERSED_Z


def dominated_actions(actions: Sequence[Action]) -> list[str]:
    """Return the actions that are cheapest at no score, ignoring capacities and fixed costs."""
    crossings = {
        (second.negative - first.negative) / (first.difference - second.difference)
        for first in actions
        for second in actions
        if first.difference != second.difference
    }
    ends = sorted({0.0, 1.0, *(score for score in crossings if 0 < score < 1)})
    useful = set()
    for low, high in itertools.pairwise(ends):  # between two crossings the order of the costs does not change
        middle = (low + high) / 2
        costs = [action.negative + action.difference * middle for action in actions]
        useful |= {action.name for action, cost in zip(actions, costs, strict=True) if cost == min(costs)}
    return [action.name for action in actions if action.name not in useful]


def segment_alike(table: Table, labelled: Table | None, bins: Mapping[Any, Any], depth: int = 1) -> list[Segmentation]:
    """Form segments of all features of a table, up to ``depth`` of them crossed, and assign labelled rows to them."""
    bins_by_column = check_bins(table.columns, bins)
    columns: dict[str, LabelledCodes] = {}
    for feature in table.schema.features:
        own = segment_column(table, feature, bins_by_column)
        labelled_codes = np.zeros(0, np.int64)
        if labelled is not None:
            labelled_codes = _labelled_codes(feature, table, labelled, bins_by_column, own.labels)
        columns[feature.name] = (own.labels, own.codes, labelled_codes)
    segmentations = []
    for size in range(1, min(depth, len(columns)) + 1):
        for by in itertools.combinations(columns, size):
            _, codes, labelled_codes = columns[by[0]]
            crossed = [""], np.zeros(len(codes), np.int64), np.zeros(len(labelled_codes), np.int64)
            for name in by:
                crossed = _cross(crossed, columns[name])
            segmentations.append(Segmentation(by, *crossed))
    return segmentations


def _labelled_codes(
    feature: Feature, table: Table, labelled: Table, bins: int | Mapping[str, Any], labels: tuple[str, ...]
) -> IntArray:
    """Assign labelled rows to the segments that the rows form by one column; -1 if a labelled row is in none."""
    column, labelled_column = table.columns[feature.name], labelled.columns[feature.name]
    other = next(item for item in labelled.schema.features if item.name == feature.name)
    own_bins, default_bins = bins_for(feature.name, bins)
    if own_bins is None and feature.kind == "numeric":
        own_bins = default_bins
    names: tuple[str, ...]
    codes: AnyArray
    if _all_missing(labelled_column):
        names, codes = (f"{feature.name} is missing",), np.zeros(len(labelled_column), np.int64)
    elif other.kind != feature.kind and not _all_missing(column):
        raise ColumnError(
            f"labelled rows: column {feature.name!r} holds {KINDS[other.kind]}, but the rows to decide on hold "
            f"{KINDS[feature.kind]}",
            hint="write it alike in both, or read it as text with {categorical}",
            settings={"categorical": feature.name},
        )
    elif isinstance(own_bins, int) and feature.kind == other.kind:
        binner = fit_binner(feature, column, default_bins=own_bins, for_new_rows=True)
        distinct, _ = find_edges(column[~np.isnan(column)], own_bins)
        names, codes = binner.labels, binner.codes(labelled_column)
        if distinct is not None:  # every value is a segment: a value that the rows do not have belongs to none
            codes = np.where(np.isnan(labelled_column) | np.isin(labelled_column, distinct), codes, -1)
    else:
        if feature.kind == "date" and own_bins is None:
            bins = {feature.name: calendar_unit(column)}  # of the rows, whatever dates the labelled rows have
        own = segment_column(labelled, other, bins if other.kind == feature.kind else DEFAULT_BINS)
        names, codes = own.labels, own.codes
    index = {label: position for position, label in enumerate(labels)}
    return np.asarray(np.array([*(index.get(name, -1) for name in names), -1])[codes], np.int64)


def _all_missing(column: AnyArray) -> bool:
    return bool((np.isnan(column) if column.dtype.kind == "f" else column < 0).all())


def _cross(left: LabelledCodes, right: LabelledCodes) -> tuple[list[str], IntArray, IntArray]:
    """Cross two sets of segments and keep the combinations that rows are in."""
    size = len(right[0])
    codes, labelled_codes = (a.astype(np.int64) * size + b for a, b in zip(left[1:], right[1:], strict=True))
    pairs, codes = np.unique(codes, return_inverse=True)
    names = [" & ".join(filter(None, (left[0][pair // size], right[0][pair % size]))) for pair in pairs.tolist()]
    labelled_codes = np.where((left[2] >= 0) & (right[2] >= 0), labelled_codes, -1)
    place = np.minimum(np.searchsorted(pairs, labelled_codes), len(pairs) - 1)
    return names, codes.astype(np.int64), np.where(pairs[place] == labelled_codes, place, -1)
