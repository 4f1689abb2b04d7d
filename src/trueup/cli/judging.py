"""A rule judged on rows without outcomes, and beside what else could be done."""

from __future__ import annotations

import copy
import math
import warnings
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.cli.question import ACT
from trueup.decisions import Labelled, best_rule, expected_confusion, expected_cost, expected_saving
from trueup.decisions.costs import Share
from trueup.decisions.moved import STEPS
from trueup.decisions.rules import Rule, as_rule
from trueup.errors import ShiftWarning
from trueup.metrics.cumulative import calibration_bound, ecce_pvalue
from trueup.metrics.scores import prr

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup._types import FloatArray
    from trueup.cli.question import Question
    from trueup.cli.together import Cut, Rows
    from trueup.data.table import Table
    from trueup.decisions import Action, BestRule, ExpectedConfusion, ExpectedCost
    from trueup.metrics.cumulative import CalibrationBound


AROUND = range(-3, 4)  # thresholds of the chart, by doublings of the odds from the middle one
USUAL = 0.5  # what most people use
CORRECTED = "_trueup"  # ends the name of a score that was put right
ALPHA = 0.05  # how often scores that are right are called off
BACKWARDS = -4.0  # standard errors below 0.5 from which an AUC is no chance


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


class Segments(NamedTuple):
    """What the segments of one cut cost, each by its own labelled rows, and all of them.

    Where a segment has no labelled rows, though there are some, nothing tells how far off it may be: it has no interval,
    and so has the whole.
    """

    cut: Cut
    costs: dict[str, ExpectedCost]
    whole: ExpectedCost
    unknown: list[str]


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
    segments: list[Segments]
    calibration: CalibrationBound | None
    p_value: float
    auc: float
    backwards: bool
    moved: bool
    fits: bool

    @property
    def off(self) -> bool:
        """Whether labelled rows show the scores to be off, beyond chance."""
        return self.p_value < ALPHA


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
    auc, backwards = (math.nan, False) if told is None else _auc(told)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShiftWarning)  # once is enough
        return Answer(
            rows, question, rule, best, cost, list(judge.instead(rule, best)), list(judge.points(best)),
            judge.confusion(rule), [judge.segments(rule, cut) for cut in rows.cuts],
            None if told is None else calibration_bound(**judge.known, delta=round(1 - level, 12)),
            math.nan if told is None else ecce_pvalue(**judge.known), auc, backwards, moved, judge.fits(cost),
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
        self.bound = self._labelled(**self.known) if self.known else None
        self.given: dict[str, Any] = {"level": level, "target": target}

    def _labelled(self, *given: Any, **more: Any) -> Labelled:
        """Make evidence of labelled rows; those that judged a fix have scores of other models, with steps elsewhere."""
        found = Labelled(*given, **more)
        if self.rows.prediction.endswith(CORRECTED):
            found.free = STEPS
        return found

    def cost(self, rule: Rule) -> ExpectedCost:
        """Say what a rule costs."""
        return expected_cost(self.p, rule.actions, rule, self.bound, weight=self.w, **self.given)

    def in_use(self, rule: Rule) -> Rule:
        """Start up no action that takes no row."""
        rows = np.bincount(rule.action_index(self.p), minlength=len(rule.actions))
        used = (one if many else replace(one, fixed=0.0) for one, many in zip(rule.actions, rows, strict=True))
        return replace(rule, actions=tuple(used))

    def saved(self, rule: Rule, other: Rule) -> ExpectedCost:
        """Say what a rule saves against another."""
        return expected_saving(self.p, self.question.actions, rule, other, self.bound, weight=self.w, **self.given)

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
        return bool((rule.apply(self.p) == other.apply(self.p)).all())

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
            pooled.bound = self._labelled(np.clip(y, 0.0, 1.0), p, w)
        return pooled

    def confusion(self, rule: Rule) -> ExpectedConfusion | None:
        """Count what is caught, missed and flagged wrongly, where the rule is a threshold."""
        if not self.question.of_errors or (len(rule.actions) == 2 and rule.actions[1].name != ACT):
            return None
        return expected_confusion(self.p, threshold_of(rule), self.bound, weight=self.w, **self.given)

    def segments(self, rule: Rule, cut: Cut) -> Segments:
        """Judge each segment by its own labelled rows; one without any is taken at its word.

        What it costs to use an action at all belongs to no segment.
        """
        rule = replace(rule, actions=tuple(replace(action, fixed=0.0) for action in rule.actions))
        bound: Any = self._labelled(**self.known, segments=cut.theirs) if self.known else None
        every = np.arange(len(cut.names))
        known = np.isin(every, cut.theirs) if self.known else np.ones(len(every), bool)
        found: dict[str, ExpectedCost] = {}
        wholes = []
        for part, evidence in ((known[cut.codes], bound), (~known[cut.codes], None)):
            if part.any():
                whole = expected_cost(
                    self.p[part], rule.actions, rule, evidence, weight=None if self.w is None else self.w[part],
                    segments=cut.codes[part], **self.given,
                )  # fmt: skip
                wholes.append(whole)
                found |= {cut.names[int(code)]: one for code, one in whole.by_segment.items()}
        unknown = [name for name, one in zip(cut.names, known, strict=True) if not one]
        found |= {name: _without_interval(found[name]) for name in unknown}
        return Segments(cut, found, _together(wholes) if unknown else wholes[0], unknown)


def _without_interval(cost: ExpectedCost) -> ExpectedCost:
    return replace(cost, low=math.nan, high=math.nan, half_widths={})


def _together(costs: list[ExpectedCost]) -> ExpectedCost:
    """Add up what rows with and without labelled ones of their own cost: no interval is known of that."""
    rows = sum(one.rows for one in costs)
    share = [1.0 if one.target == "rows" else one.rows / rows for one in costs]
    estimate, correction = (
        sum(part * getattr(one, name) for part, one in zip(share, costs, strict=True))
        for name in ("estimate", "correction")
    )
    shares = tuple(
        Share(parts[0].action, *(sum(of) for of in zip(*(part[1:] for part in parts), strict=True)))
        for parts in zip(*(one.shares for one in costs), strict=True)
    )
    return replace(
        _without_interval(costs[0]), estimate=estimate, correction=correction, rows=rows, shares=shares, by_segment={}
    )


def _auc(told: Table) -> tuple[float, bool]:
    """Say how often a positive row has a higher score than a negative one, and whether that is too rare for chance.

    Its error is that of scores which know nothing (Hanley & McNeil 1982), of so many equal rows as would be as sure.
    """
    p, y = told.prediction, told.outcome
    assert y is not None
    w = np.ones(len(p)) if told.weight is None else told.weight
    auc = (1 + prr(y, -p, w)) / 2
    if math.isnan(auc):
        return auc, False
    many = [float(each.sum() ** 2 / (each @ each)) for each in (w * y, w * (1 - y))]
    error = math.sqrt((many[0] + many[1] + 1) / (12 * many[0] * many[1]))
    return auc, (auc - 0.5) / error < BACKWARDS


def threshold_of(rule: Rule) -> float:
    """Give the score from which a rule acts: 0 where it always does, infinity where it never does."""
    return rule.edges[1] if len(rule.actions) == 2 else 0.0 if rule.actions[0].name == ACT else math.inf


def _pool(
    thresholds: list[float], p: FloatArray, w: FloatArray | None, y: FloatArray | None = None
) -> tuple[FloatArray, FloatArray, FloatArray]:
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
