"""A rule judged on rows without outcomes, and beside what else could be done."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.cli.question import ACT
from trueup.decisions import Labelled, best_rule, expected_confusion, expected_cost
from trueup.decisions.rules import Action, Rule, as_rule
from trueup.errors import ShiftWarning
from trueup.metrics.cumulative import calibration_bound, ecce_pvalue

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from trueup.cli.question import Question
    from trueup.cli.together import Rows
    from trueup.decisions import BestRule, ExpectedConfusion, ExpectedCost
    from trueup.metrics.cumulative import CalibrationBound

    Floats = NDArray[np.float64]

__all__ = ["Answer", "Instead", "Point", "answer", "threshold_of"]

AROUND = range(-3, 4)  # thresholds of the chart, by doublings of the odds from the middle one
USUAL = 0.5  # what most people use
ALPHA = 0.05  # how often scores that are right are called off


class Instead(NamedTuple):
    """Another rule, what it costs, and what the rule in question saves against it."""

    rule: Rule
    cost: ExpectedCost
    saved: ExpectedCost
    fits: bool


class Point(NamedTuple):
    """A threshold of the chart: rows that are acted on, and what it costs."""

    threshold: float
    acted: float
    cost: float
    fits: bool


@dataclass(frozen=True)
class Answer:
    """All that is said of a decision."""

    rows: Rows
    question: Question
    rule: Rule
    best: BestRule
    cost: ExpectedCost
    instead: list[Instead]
    points: list[Point]
    confusion: ExpectedConfusion | None
    by_segment: dict[str, ExpectedCost]
    whole: ExpectedCost | None
    unknown: list[str]
    calibration: CalibrationBound | None
    p_value: float
    moved: bool
    fits: bool

    @property
    def off(self) -> bool:
        """Whether labelled rows show the scores to be off, beyond chance."""
        return self.p_value < ALPHA

    @property
    def labelled(self) -> dict[str, int]:
        """How many labelled rows each segment has."""
        names, codes = self.rows.segments, self.rows.their_codes
        return dict(zip(names, np.bincount(codes[codes >= 0], minlength=len(names)).tolist(), strict=True))


def answer(rows: Rows, question: Question, *, level: float, target: str) -> Answer:
    """Find the rule, or take the one that was given, and judge it beside others."""
    judge = _Judge(rows, question, level, target)
    best = best_rule(judge.p, question.actions, capacity=question.capacity, weight=judge.w)
    rule = best.rule if question.threshold is None else as_rule(question.threshold, question.actions)
    rule = judge.in_use(rule)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        cost = judge.cost(rule)
    moved = any(issubclass(one.category, ShiftWarning) for one in caught)
    for one in caught:
        warnings.warn(one.message, one.category, stacklevel=2)  # told as all others are
    told = rows.labelled
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShiftWarning)  # once is enough
        found, whole, unknown = judge.by_segment(rule)
        return Answer(
            rows, question, rule, best, cost, list(judge.instead(rule, best)), list(judge.points(best)),
            judge.confusion(rule), found, whole, unknown,
            None if told is None else calibration_bound(**judge.known, delta=round(1 - level, 12)),
            math.nan if told is None else ecce_pvalue(**judge.known), moved, judge.fits(cost),
        )  # fmt: skip


class _Judge:
    """Judge rules on the same rows by the same evidence."""

    def __init__(self, rows: Rows, question: Question, level: float, target: str) -> None:
        self.rows, self.question = rows, question
        self.p, self.w = rows.table.prediction, rows.table.weight
        told = rows.labelled
        self.known: dict[str, Any] = {}
        if told is not None:
            self.known = {"y": told.outcome, "p": told.prediction, "weight": told.weight}
        self.bound = Labelled(**self.known) if self.known else None
        self.given: dict[str, Any] = {"level": level, "target": target}

    def cost(self, rule: Rule) -> ExpectedCost:
        """Say what a rule costs."""
        return expected_cost(self.p, rule.actions, rule, self.bound, weight=self.w, **self.given)

    def in_use(self, rule: Rule) -> Rule:
        """Start up no action that takes no row."""
        rows = np.bincount(rule.places(self.p), minlength=len(rule.actions))
        used = (one if many else replace(one, fixed=0.0) for one, many in zip(rule.actions, rows, strict=True))
        return replace(rule, actions=tuple(used))

    def saved(self, rule: Rule, other: Rule) -> ExpectedCost:
        """Say what a rule saves against another: what a rule costs whose actions cost the difference."""
        edges = sorted({*rule.edges, *other.edges})
        ours, theirs = ([of.actions[at] for at in of.places(np.array(edges[:-1]))] for of in (rule, other))
        actions = [
            Action(str(at), their.positive - our.positive, their.negative - our.negative)
            for at, (our, their) in enumerate(zip(ours, theirs, strict=True))
        ]
        actions[0] = replace(actions[0], fixed=other.fixed - rule.fixed)
        return self.cost(Rule(tuple(actions), tuple(edges)))

    def instead(self, rule: Rule, best: BestRule) -> Iterator[Instead]:
        """Judge what else could be done: the best rule, the usual threshold, and one action for all rows."""
        others = [best.rule, as_rule(USUAL, self.question.actions)] if self.question.of_errors else [best.rule]
        others += [_always(action) for action in reversed(self.question.actions)]
        seen = [rule]
        for other in map(self.in_use, others):
            if not any(self._same(other, one) for one in seen):
                seen.append(other)
                cost = self.cost(other)
                yield Instead(other, cost, self.saved(rule, other), self.fits(cost))

    def _same(self, rule: Rule, other: Rule) -> bool:
        """Say whether two rules do the same with every row."""
        names = [[action.name for action in one.actions] for one in (rule, other)]
        return bool((np.array(names[0])[rule.places(self.p)] == np.array(names[1])[other.places(self.p)]).all())

    def fits(self, cost: ExpectedCost) -> bool:
        """Say whether no action takes more rows than it may."""
        return self.question.fits({share.action: share.rows for share in cost.shares})

    def points(self, best: BestRule) -> Iterator[Point]:
        """Judge thresholds for the chart: around the best one, the usual one, the given one, and both ends."""
        if not self.question.of_errors:
            return
        leave, act = self.question.actions
        steeper = leave.difference - act.difference
        if steeper <= 0:  # acting pays at low scores, if at all: no threshold says that
            return
        middle = best.threshold if len(best.rule.actions) == 2 else (act.negative - leave.negative) / steeper
        middle = middle if 0 < middle < 1 else USUAL
        odds = middle / (1 - middle)
        meant = {
            middle,
            USUAL,
            threshold_of(best.rule),
            *(() if self.question.threshold is None else (self.question.threshold,)),
        }
        ladder = {float(f"{odds * 2.0**k / (1 + odds * 2.0**k):.2g}") for k in AROUND if k}
        thresholds = sorted({0.0, *meant, *ladder, math.inf})
        pooled, last = self._pooled(thresholds), math.nan
        for threshold in thresholds:
            ends = {0.0: _always(act), math.inf: _always(leave)}
            found = pooled.cost(pooled.in_use(ends.get(threshold) or as_rule(threshold, (leave, act))))
            acted = sum(share.rows for share in found.shares if share.action == ACT)
            if acted != last or threshold in meant:
                yield Point(threshold, acted, found.estimate, self.fits(found))
            last = acted

    def _pooled(self, thresholds: list[float]) -> _Judge:
        """Make one row of all between two thresholds: what to expect of a rule stays what it is, and is quick to tell."""
        pooled = copy.copy(self)
        pooled.p, pooled.w, _ = _pool(thresholds, self.p, self.w)
        if self.known:
            p, w, y = _pool(thresholds, self.known["p"], self.known["weight"], self.known["y"])
            pooled.bound = Labelled(np.clip(y, 0.0, 1.0), p, w)
        return pooled

    def confusion(self, rule: Rule) -> ExpectedConfusion | None:
        """Count what is caught, missed and flagged wrongly, where the rule is a threshold."""
        if not self.question.of_errors or (len(rule.actions) == 2 and rule.actions[1].name != ACT):
            return None
        return expected_confusion(self.p, threshold_of(rule), self.bound, weight=self.w, **self.given)

    def by_segment(self, rule: Rule) -> tuple[dict[str, ExpectedCost], ExpectedCost | None, list[str]]:
        """Judge each segment by its own labelled rows; one without any is taken at its word.

        What it costs to use an action at all belongs to no segment.
        """
        names, codes = self.rows.segments, self.rows.codes
        if not names:
            return {}, None, []
        rule = replace(rule, actions=tuple(replace(action, fixed=0.0) for action in rule.actions))
        bound: Any = Labelled(**self.known, segments=self.rows.their_codes) if self.known else None
        known = np.isin(np.arange(len(names)), self.rows.their_codes) if self.known else np.ones(len(names), bool)
        found: dict[str, ExpectedCost] = {}
        whole = None
        for part, evidence in ((known[codes], bound), (~known[codes], None)):
            if part.any():
                whole = expected_cost(
                    self.p[part], rule.actions, rule, evidence, weight=None if self.w is None else self.w[part],
                    segments=codes[part], **self.given,
                )  # fmt: skip
                found |= {names[int(code)]: one for code, one in whole.by_segment.items()}
        return found, whole if known.all() else None, [name for name, one in zip(names, known, strict=True) if not one]


def threshold_of(rule: Rule) -> float:
    """Give the score from which a rule acts: 0 where it always does, infinity where it never does."""
    return rule.edges[1] if len(rule.actions) == 2 else 0.0 if rule.actions[0].name == ACT else math.inf


def _pool(thresholds: list[float], p: Floats, w: Floats | None, y: Floats | None = None) -> tuple[Floats, Floats, Floats]:
    """Give the mean score of all rows between two thresholds, their weight, and the mean outcome (or score again)."""
    at = np.searchsorted(thresholds, p, side="right")
    weights = np.ones(len(p)) if w is None else w
    total = np.bincount(at, weights)
    some = np.flatnonzero(total)
    score, outcome = (np.bincount(at, weights * column)[some] / total[some] for column in (p, p if y is None else y))
    ends = np.array([*thresholds, math.inf])
    # Rounding must not take a mean out of its bin, or out of the scores.
    inside = np.clip(score, ends[some - 1], np.minimum(np.nextafter(ends[some], 0), 1.0))
    return inside, total[some].astype(np.float64), outcome


def _always(action: Action) -> Rule:
    """Do one thing with every row."""
    return Rule((action,), (-math.inf, math.inf))
