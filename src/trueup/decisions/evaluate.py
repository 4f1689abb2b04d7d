"""Evaluation of a decision rule on a Table without outcomes, by segment, and comparison with alternatives."""

from __future__ import annotations

import itertools
import math
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup.data.bins import DEFAULT_BINS, bins_for, calendar_unit, check_bins, find_edges, fit_binner, segment_column
from trueup.decisions.clusters import calibration_pvalue, design_effect, widen_bound
from trueup.decisions.confusion import expected_confusion
from trueup.decisions.costs import expected_cost, expected_saving
from trueup.decisions.evidence import CROSS_FITTED_TOLERANCE, SHIFT_TOLERANCE, Labelled, Segments, cross, read_inputs
from trueup.decisions.intervals import compute_interval, sum_segments
from trueup.decisions.rowwise import RowRule
from trueup.decisions.rules import Action, BestRule, Rule, as_rule
from trueup.decisions.search import best_rule
from trueup.errors import ColumnError, ShiftWarning
from trueup.metrics.cumulative import CalibrationBound, calibration_bound, ecce_pvalue
from trueup.metrics.scores import prr

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from trueup._types import AnyArray, FloatArray
    from trueup.data.table import Feature, Table
    from trueup.decisions.confusion import ExpectedConfusion
    from trueup.decisions.costs import ExpectedCost
    from trueup.decisions.evidence import Target

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
    costs: Mapping[str, Any] | None = None  # with arrays, where costs differ by row: instead of those of ``actions``
    labelled_costs: Mapping[str, Any] | None = None
    names: Mapping[str, Any] | None = None  # the costs as given: numbers, and names of columns

    @property
    def fixed(self) -> dict[str, float]:
        """Return the fixed cost of each action."""
        return {action.name: action.fixed for action in self.actions}

    def fits(self, rows: Mapping[str, float]) -> bool:
        """Return whether no action has more ``rows`` than its capacity, up to rounding of sums of weights."""
        return all(rows.get(name, 0.0) <= most * (1 + 1e-9) for name, most in self.capacity.items())


class Alternative(NamedTuple):
    """Another rule, its cost, what the evaluated rule saves compared with it, and whether it fits the capacities."""

    rule: Rule | RowRule
    cost: ExpectedCost
    saving: ExpectedCost
    fits: bool


class ThresholdCost(NamedTuple):
    """A threshold of the cost curve: the rows acted on, the expected cost, and whether the rule fits the capacities."""

    threshold: float
    acted: float
    cost: float
    fits: bool


class SegmentCosts(NamedTuple):
    """Costs of the segments that the columns ``by`` form, their total, and the labelled rows of each segment."""

    by: tuple[str, ...]
    costs: dict[str, ExpectedCost]
    total: ExpectedCost
    labelled_rows: dict[str, int]
    without_labelled: list[str]  # no labelled rows or too few clusters: without interval, and so is then the total


class RuleEvaluation:
    """Evaluation of the cheapest rule, or of a given threshold: cost, alternatives, segments, tests of labelled scores.

    Segments combine up to ``depth`` features of the table. ``cross_fitted`` states that the labelled scores come from
    models of other folds, so a larger difference of the score distributions is tolerated; ``uncorrected`` are these before
    the correction.
    """

    def __init__(
        self,
        table: Table,
        problem: DecisionProblem,
        *,
        labelled: Table | None = None,
        bins: Mapping[Any, Any] | None = None,
        depth: int = 1,
        level: float = 0.9,
        target: Target = "rows",
        cross_fitted: bool = False,
        uncorrected: FloatArray | None = None,
    ) -> None:
        self.table, self.problem, self.labelled = table, problem, labelled
        self.prediction = table.schema.prediction[0]
        self._p = table.prediction
        self._settings: dict[str, Any] = {"weight": table.weight, "level": level, "target": target}
        self._uncorrected = uncorrected
        self._shift_tolerance = CROSS_FITTED_TOLERANCE if cross_fitted else SHIFT_TOLERANCE
        segmentations = _segmentations(table, labelled, bins or {}, depth)
        self._evidence = self._read_labelled()
        self.best = self._best("row")
        chosen = self.best.rule if problem.threshold is None else as_rule(problem.threshold, problem.actions)
        self.rule = self._without_unused_fixed_costs(chosen)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            self.cost = self._cost(self.rule)
        for warning in caught:
            warnings.warn(warning.message, warning.category, stacklevel=2)
        self.shifted = any(issubclass(warning.category, ShiftWarning) for warning in caught)
        self.fits = self._fits(self.cost)
        self.calibration: CalibrationBound | None = None
        self.p_value, self.auc, self.reversed_scores = math.nan, math.nan, False
        if labelled is not None:
            columns: Any = labelled.outcome, labelled.prediction, labelled.weight
            self.calibration = calibration_bound(*columns, delta=round(1 - level, 12))
            self.p_value = ecce_pvalue(*columns)
            if self._evidence is not None and self._evidence.clusters is not None:
                rows, clusters = self._evidence.rows, self._evidence.clusters
                self.p_value = max(self.p_value, calibration_pvalue(rows, clusters))
                self.calibration = widen_bound(self.calibration, design_effect(rows, clusters))
            self.auc, self.reversed_scores = compute_auc(labelled)
        self.miscalibrated = self.p_value < MISCALIBRATION_ALPHA
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShiftWarning)  # raised above already
            self.alternatives = list(self._alternatives())
            self.cost_curve = list(self._cost_curve())
            self.confusion = self._confusion()
            self.segments = [self._segment_costs(*segmentation) for segmentation in segmentations]

    def _read_labelled(self, segments: Segments | None = None) -> Labelled | None:
        known = self.labelled
        if known is None:
            return None
        costs = self.problem.labelled_costs
        evidence = Labelled(known.y, known.prediction, known.weight, segments, cluster=known.cluster, costs=costs)
        evidence.uncorrected = self._uncorrected
        evidence.shift_tolerance, evidence.allow_missing_segments = self._shift_tolerance, segments is not None
        return evidence

    def _best(self, by: Literal["row", "score"]) -> BestRule:
        problem, costs = self.problem, self.problem.costs
        fixed = None if costs is None else problem.fixed
        settings: dict[str, Any] = {"capacity": problem.capacity, "weight": self.table.weight, "by": by}
        return best_rule(self._p, problem.actions if costs is None else costs, fixed_costs=fixed, **settings)

    def _costs_of(self, rule: Rule | RowRule) -> Any:
        """Return the costs with which a rule is evaluated; those of a Rule include fixed costs of the actions in use."""
        return self.problem.costs if self.problem.costs is not None or isinstance(rule, RowRule) else rule.actions

    def _cost(self, rule: Rule | RowRule) -> ExpectedCost:
        return expected_cost(self._p, self._costs_of(rule), rule, self._evidence, **self._settings)

    def apply(self, rule: Rule | RowRule) -> NDArray[np.object_]:
        """Return the action of each row of the table by a rule."""
        return rule.apply(self._p, self.problem.costs) if isinstance(rule, RowRule) else rule.apply(self._p)

    def _without_unused_fixed_costs(self, rule: Rule | RowRule) -> Rule | RowRule:
        """Return the rule with a fixed cost of zero for actions that no row gets."""
        if isinstance(rule, RowRule):  # which never counts them
            return rule
        rows = np.bincount(rule.action_index(self._p), minlength=len(rule.actions))
        actions = (
            action if count else replace(action, fixed=0.0) for action, count in zip(rule.actions, rows, strict=True)
        )
        return replace(rule, actions=tuple(actions))

    def _fits(self, cost: ExpectedCost) -> bool:
        return self.problem.fits({share.action: share.rows for share in cost.shares})

    def _alternatives(self) -> Iterator[Alternative]:
        """Evaluate the best rule, the threshold 0.5, and each action for all rows; skip rules with equal decisions."""
        others: list[Rule | RowRule] = [self.best.rule]
        if self.problem.costs is not None:
            others.append(self._best("score").rule)
        if self.problem.error_costs:
            others.append(as_rule(COMMON_THRESHOLD, self.problem.actions))
        others += [Rule((action,), (-math.inf, math.inf)) for action in reversed(self.problem.actions)]
        seen = [self.apply(self.rule)]
        for other in map(self._without_unused_fixed_costs, others):
            decisions = self.apply(other)
            if any((decisions == earlier).all() for earlier in seen):
                continue
            seen.append(decisions)
            cost = self._cost(other)
            pair = self.rule, other
            costs = self.problem.actions if self.problem.costs is None else self.problem.costs
            saving = expected_saving(self._p, costs, *pair, self._evidence, **self._settings)
            yield Alternative(other, cost, saving, self._fits(cost))

    def _cost_curve(self) -> Iterator[ThresholdCost]:
        """Evaluate thresholds around the best one, 0.5, that of the problem, 0 and infinity, if there are error costs."""
        if not self.problem.error_costs or self.problem.costs is not None:
            return
        passing, acting = self.problem.actions
        slope = passing.difference - acting.difference
        if slope <= 0:  # acting pays at low scores, if at all: no threshold expresses that
            return
        middle = self.best.threshold if len(self.best.rule.actions) == 2 else (acting.negative - passing.negative) / slope
        middle = middle if 0 < middle < 1 else COMMON_THRESHOLD
        odds = middle / (1 - middle)
        chosen = {middle, COMMON_THRESHOLD, threshold_of(self.best.rule)}
        if self.problem.threshold is not None:
            chosen.add(self.problem.threshold)
        ladder = {float(f"{odds * 2.0**k / (1 + odds * 2.0**k):.2g}") for k in ODDS_DOUBLINGS if k}
        thresholds = sorted({0.0, *chosen, *ladder, math.inf})
        inputs = read_inputs(self._p, self._evidence, **self._settings)
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

    def _confusion(self) -> ExpectedConfusion | None:
        """Return the expected confusion matrix if the rule is a threshold, else None."""
        rule = self.rule
        if not self.problem.error_costs or isinstance(rule, RowRule):
            return None
        if len(rule.actions) == 2 and rule.actions[1].name != ACT:
            return None
        return expected_confusion(self._p, threshold_of(rule), self._evidence, **self._settings)

    def _segment_costs(self, by: tuple[str, ...], rows: Segments, known: Segments | None) -> SegmentCosts:
        """Evaluate the rule on each segment of ``rows``, with its labelled rows in ``known`` and without fixed costs."""
        rule = without_fixed_costs(self.rule)
        evidence = None if known is None else self._read_labelled(known)
        total = expected_cost(self._p, self._costs_of(rule), rule, evidence, segments=rows, **self._settings)
        found = {} if known is None else dict(zip(known.names, np.bincount(known.codes).tolist(), strict=True))
        counts = {name: found.get(name, 0) for name in rows.names}
        without = [] if evidence is None else [name for name in counts if not len(evidence.in_segment(name).y)]
        costs = {**total.by_segment, **{name: replace(total.by_segment[name], **NO_INTERVAL) for name in without}}
        return SegmentCosts(by, costs, replace(total, **NO_INTERVAL) if without else total, counts, without)


def without_fixed_costs(rule: Rule | RowRule) -> Rule | RowRule:
    """Return the rule with fixed costs of zero."""
    if isinstance(rule, RowRule):
        return replace(rule, fixed=(0.0,) * len(rule.fixed))
    return replace(rule, actions=tuple(replace(action, fixed=0.0) for action in rule.actions))


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


def _segmentations(
    table: Table, labelled: Table | None, bins: Mapping[Any, Any], depth: int
) -> list[tuple[tuple[str, ...], Segments, Segments | None]]:
    """Return, for combinations of up to ``depth`` columns, names, segments of the rows and those of the labelled rows."""
    checked = check_bins(table.columns, bins)
    rows, known = {}, {}
    for feature in table.schema.features:
        own = segment_column(table, feature, checked)
        rows[feature.name] = Segments(own.labels, own.codes)
        if labelled is not None:
            known[feature.name] = _segment_labelled(feature, table, labelled, checked)
    return [
        (by, cross([rows[name] for name in by]), cross([known[name] for name in by]) if known else None)
        for size in range(1, min(depth, len(rows)) + 1)
        for by in itertools.combinations(rows, size)
    ]


def _segment_labelled(feature: Feature, table: Table, labelled: Table, bins: int | Mapping[str, Any]) -> Segments:
    """Assign labelled rows to the segments that one column of ``table`` forms."""
    name, column, labelled_column = feature.name, table.columns[feature.name], labelled.columns[feature.name]
    other = next(item for item in labelled.schema.features if item.name == name)
    own_bins, default_bins = bins_for(name, bins)
    if own_bins is None and feature.kind == "numeric":
        own_bins = default_bins
    if _all_missing(labelled_column):
        return Segments((f"{name} is missing",), np.zeros(len(labelled_column), np.int64))
    if other.kind != feature.kind and not _all_missing(column):
        raise ColumnError(
            f"labelled rows: column {name!r} holds {KINDS[other.kind]}, but the rows to decide on hold "
            f"{KINDS[feature.kind]}",
            hint="write it alike in both, or read it as text with {categorical}",
            settings={"categorical": name},
        )
    if isinstance(own_bins, int) and feature.kind == other.kind:
        binner = fit_binner(feature, column, default_bins=own_bins, for_new_rows=True)
        distinct, _ = find_edges(column[~np.isnan(column)], own_bins)
        codes = binner.codes(labelled_column)
        if distinct is not None:  # every value is a segment: a value that the rows do not have belongs to none
            codes = np.where(np.isnan(labelled_column) | np.isin(labelled_column, distinct), codes, len(binner.labels))
        return Segments((*binner.labels, f"{name} has another value"), codes)
    if feature.kind == "date" and own_bins is None:
        bins = {name: calendar_unit(column)}  # of the rows, whatever dates the labelled rows have
    own = segment_column(labelled, other, bins if other.kind == feature.kind else DEFAULT_BINS)
    return Segments(own.labels, own.codes)


def _all_missing(column: AnyArray) -> bool:
    return bool((np.isnan(column) if column.dtype.kind == "f" else column < 0).all())
