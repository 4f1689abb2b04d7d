"""Actions and their costs, and rules that state which action is taken at which score."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_number
from trueup.decisions.evidence import format_amount, is_number
from trueup.errors import ArgumentError
from trueup.metrics.inputs import validate_scores
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trueup._types import FloatArray, IntArray


ERRORS = ("fn", "fp", "tp", "tn")
CAPACITY_SLACK = 1 + 1e-9  # sums of weights are rounded
LARGEST_COST = 1e90  # squares of costs times weights are summed
EXAMPLE = 'write {"fn": 5, "fp": 1}, or {"grant": (100, -10), "refuse": (0, 0)}: cost on a positive, on a negative row'


@dataclass(frozen=True)
class Action:
    """Something that can be done with a row.

    Attributes
    ----------
    name : str
    positive, negative : float
        Cost on a row of outcome 1, and on a row of outcome 0; a negative cost is a gain.
    fixed : float
        Cost of using the action at all, once.
    """

    name: str
    positive: float
    negative: float
    fixed: float = 0.0

    @property
    def difference(self) -> float:
        """Cost on a positive row minus cost on a negative row."""
        return self.positive - self.negative


@dataclass(frozen=True)
class Rule(Result):
    """Which action at which score: action j where edges[j] <= score < edges[j + 1].

    Attributes
    ----------
    actions : tuple of Action
        In the order of the scores; no two are the same.
    edges : tuple of float
        Ascending, one more than actions; the first is -inf, the last inf.
    """

    actions: tuple[Action, ...]
    edges: tuple[float, ...]

    def __post_init__(self) -> None:
        """Raise if some score in [0, 1] has no action."""
        ascending = all(low <= high for low, high in pairwise(self.edges))
        if not self.actions or len(self.edges) != len(self.actions) + 1 or not ascending:
            raise ArgumentError(
                f"a rule of {len(self.actions)} actions needs one more edge, ascending; got {self.edges!r:.80}",
                hint="Rule((first, second), (-math.inf, 0.2, math.inf))",
            )
        if not (self.edges[0] <= 0 and self.edges[-1] >= 1):
            raise ArgumentError(
                f"the edges of a rule must reach from 0 to 1; got {self.edges[0]:g} to {self.edges[-1]:g}",
                hint="begin with -math.inf and end with math.inf",
            )

    @property
    def positive(self) -> FloatArray:
        """Cost of each action on a positive row."""
        return np.array([action.positive for action in self.actions])

    @property
    def negative(self) -> FloatArray:
        """Cost of each action on a negative row."""
        return np.array([action.negative for action in self.actions])

    @property
    def fixed(self) -> float:
        """Total fixed cost of its actions."""
        return sum(action.fixed for action in self.actions)

    def action_index(self, p: FloatArray) -> IntArray:
        """Return for each score the index of its action in ``actions``."""
        return np.searchsorted(np.array(self.edges[1:-1]), p, side="right").astype(np.int64)

    def apply(self, p: ArrayLike) -> NDArray[np.object_]:
        """Return the name of each row's action.

        Examples
        --------
        >>> as_rule(0.2, as_actions({"fn": 5, "fp": 1})).apply([0.1, 0.2, 0.9]).tolist()
        ['pass', 'act', 'act']
        """
        names = np.array([action.name for action in self.actions], object)
        return np.asarray(names[self.action_index(validate_scores(np.zeros(np.size(p)), p).p)])

    def expected_costs(self, p: FloatArray) -> FloatArray:
        """Return the expected cost of each row, negative + (positive - negative) p, if the scores p are calibrated."""
        index = self.action_index(p)
        return np.asarray(self.negative[index] + (self.positive - self.negative)[index] * p)

    def realised_cost(self, y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
        """Return the total cost once outcomes are known, fixed costs included.

        Examples
        --------
        >>> as_rule(0.2, as_actions({"fn": 5, "fp": 1})).realised_cost([1, 0, 1], [0.1, 0.2, 0.9])
        6.0
        """
        rows = validate_scores(y, p, weight)
        index = self.action_index(rows.p)
        return float(rows.w @ (self.negative[index] + (self.positive - self.negative)[index] * rows.y)) + self.fixed

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent; infinite edges become None."""
        ends = [None if math.isinf(edge) else edge for edge in self.edges]
        intervals = zip(self.actions, ends[:-1], ends[1:], strict=True)
        return {"actions": [{**asdict(action), "from": low, "below": high} for action, low, high in intervals]}

    def describe(self) -> list[str]:
        """Return for each action the scores that it is taken for, such as "act from 0.2"."""
        parts = []
        for action, low, high in zip(self.actions, self.edges[:-1], self.edges[1:], strict=True):
            ends = [] if low == -math.inf else [f"from {low:.4g}"]
            ends += [] if high == math.inf else [f"below {high:.4g}"]
            parts.append(f"{action.name} {' to '.join(ends) or 'always'}")
        return parts

    def __repr__(self) -> str:
        return f"<Rule {'; '.join(self.describe())}>"


class CostPoint(NamedTuple):
    """A threshold and the expected cost there."""

    threshold: float
    cost: float


class Share(NamedTuple):
    """The rows assigned to one action, by the scores alone: their number, expected positives and expected cost."""

    action: str
    rows: float
    positives: float  # NaN for several classes
    cost: float


@dataclass(frozen=True, eq=False)
class BestRule(Result):
    """The cheapest rule, its cost, and the costs of alternatives.

    Attributes
    ----------
    rule : Rule or RowRule
        Can be passed to `expected_cost`; a `RowRule` where costs differ by row or by class.
    estimate : float
        Its expected total cost on these rows, fixed costs included.
    shares : tuple of Share
        The rows assigned to each action.
    curves : mapping of str to points (threshold, cost)
        The cost when one edge of the rule moves, "pass | act", and the others stay. A threshold of infinity leaves no rows
        to the upper action. Thresholds that exceed a capacity are left out.
    uniform_costs : mapping of str to float
        By action, the cost of taking it on all rows, whatever its capacity.
    over_capacity : tuple of str
        The actions whose capacity is too small for that.
    """

    rule: Any
    estimate: float
    shares: tuple[Share, ...]
    curves: Mapping[str, tuple[CostPoint, ...]]
    uniform_costs: Mapping[str, float]
    over_capacity: tuple[str, ...] = ()

    @property
    def curve(self) -> tuple[CostPoint, ...]:
        """The cost at each threshold if the rule has a single threshold, else empty."""
        return next(iter(self.curves.values())) if len(self.curves) == 1 else ()

    @property
    def threshold(self) -> float:
        """The score from which the upper action is taken; NaN unless the rule has two actions."""
        return float(self.rule.edges[1]) if isinstance(self.rule, Rule) and len(self.rule.actions) == 2 else math.nan

    def apply(self, p: ArrayLike, costs: Any = None) -> NDArray[np.object_]:
        """Return the name of each row's action; ``costs`` are those of the rows where they differ by row."""
        return np.asarray(self.rule.apply(p) if isinstance(self.rule, Rule) else self.rule.apply(p, costs), object)

    def __repr__(self) -> str:
        rows = ", ".join(f"{share.action} {share.rows:,.10g}" for share in self.shares)
        return f"<BestRule {format_amount(self.estimate)}: {'; '.join(self.rule.describe())} (rows: {rows})>"


def as_actions(costs: Any) -> tuple[Action, ...]:
    """Return actions from costs of errors, {"fn": 5, "fp": 1}, which define "pass" and "act", or from costs of actions.

    Actions are {name: (cost on a positive row, cost on a negative row)}, or a list of `Action`, of (name, positive,
    negative), or of (positive, negative), which are then numbered.
    """
    if isinstance(costs, Mapping) and costs and set(costs) <= set(ERRORS):
        if "fn" not in costs or "fp" not in costs:
            raise _cost_error(f"costs of errors must name both 'fn' and 'fp'; got {sorted(costs)}")
        fn, fp, tp, tn = (_read_cost(costs.get(name, 0.0), name) for name in ERRORS)
        return Action("pass", fn, tn), Action("act", tp, fp)
    if isinstance(costs, Mapping) and costs and {str(name).lower() for name in costs} <= set(ERRORS):
        raise _cost_error(f"costs of errors are named in lower case; got {', '.join(map(str, costs))}")
    if isinstance(costs, Mapping):
        listed: list[Any] = [
            (name, *_read_pair(pair, name, "costs, on a positive and on a negative row")) for name, pair in costs.items()
        ]
    elif _is_list(costs):
        listed = [(f"action {index}", *item) if _is_list(item, 2) else item for index, item in enumerate(costs)]
    else:
        raise _cost_error(f"costs must be a mapping or a list of actions; got {costs!r}")
    actions = []
    for item in listed:
        name, *costs = astuple(item) if isinstance(item, Action) else item if _is_list(item, 3) else [None]
        if not costs:
            raise _cost_error(f"an action is (name, cost on a positive row, cost on a negative row); got {item!r}")
        actions.append(Action(str(name), *(_read_cost(cost, name) for cost in costs)))
    if not actions:
        raise _cost_error("costs has no actions")
    names = [action.name for action in actions]
    if len(set(names)) < len(names):
        raise ArgumentError(f"actions must have different names; got {names}", hint="one entry per action")
    return tuple(actions)


def _cost_error(message: str) -> ArgumentError:
    return ArgumentError(message, hint=EXAMPLE, parameter="costs")


def _is_list(value: Any, length: int | None = None) -> bool:
    is_list = isinstance(value, Sequence) and not isinstance(value, (str, bytes))
    return is_list and (length is None or len(value) == length)


def _read_pair(pair: Any, name: Any, kind: str) -> tuple[Any, Any]:
    if not _is_list(pair, 2):
        raise _cost_error(f"action {name!r} needs two {kind}; got {pair!r:.60}")
    return pair[0], pair[1]


def _read_cost(value: Any, name: Any) -> float:
    check_number(f"a cost of {name!r}", value, -LARGEST_COST, LARGEST_COST, hint=EXAMPLE)
    return float(value)


def as_rule(rule: Any, actions: tuple[Action, ...]) -> Rule:
    """Read a rule: a threshold for two actions, score intervals for any number of them, or a Rule or BestRule.

    A threshold t means the first action below t and the second from t on. Intervals are {name: (from, below)}, or a list of
    (from, below) in the order of the actions; they must cover [0, 1]. A `Rule` keeps its intervals and takes the costs of
    ``actions``.
    """
    if isinstance(rule, BestRule):
        rule = rule.rule
    by_name = {action.name: action for action in actions}
    if isinstance(rule, Rule):
        _check_actions([action.name for action in rule.actions], by_name, "rule")
        priced = tuple(replace(by_name[action.name], fixed=action.fixed) for action in rule.actions)
        return replace(rule, actions=priced)
    if is_number(rule):
        if len(actions) != 2:
            hint = "pass {action: (from, below)} for all of them"
            raise ArgumentError(f"a threshold separates two actions; got costs of {len(actions)}", hint=hint)
        edge = check_threshold(rule, "write rule=0.2 to act from 0.2 on; infinity never acts")
        return Rule(actions, (-math.inf, edge, math.inf))
    if isinstance(rule, Mapping):
        return _from_intervals(rule, by_name)
    if _is_list(rule):
        if len(rule) != len(actions):
            raise ArgumentError(
                f"rule has {len(rule)} intervals for {len(actions)} actions",
                hint="one (from, below) per action, in their order",
                parameter="rule",
            )
        return _from_intervals(dict(zip(by_name, rule, strict=True)), by_name)
    raise ArgumentError(
        f"rule must be a threshold, intervals or a Rule; got {rule!r:.60}", hint="write rule=0.2", parameter="rule"
    )


def _check_actions(names: Iterable[Any], known: Mapping[str, Any], parameter: str) -> None:
    for name in names:
        if str(name) not in known:
            message = f"{parameter} names the action {name!r}, which has no costs"
            raise ArgumentError(message, hint=f"actions: {', '.join(known)}", parameter=parameter)


def check_threshold(threshold: Any, hint: str) -> float:
    """Validate a threshold: in [0, 1], or infinite for one that no score reaches."""
    if not is_number(threshold) or not (0 <= threshold <= 1 or threshold == math.inf):
        raise ArgumentError(f"the threshold must lie in [0, 1], as scores do; got {threshold!r:.60}", hint=hint)
    return float(threshold)


def _from_intervals(rule: Mapping[Any, Any], by_name: Mapping[str, Action]) -> Rule:
    """Return the rule {action: (from, below)}; raise unless its intervals cover [0, 1] without gaps or overlaps."""
    _check_actions(rule, by_name, "rule")
    parts = []
    for name, interval in rule.items():
        ends = _read_pair(interval, name, "ends, (from, below)")
        for end in ends:
            if not is_number(end) or math.isnan(end):
                hint = "write (0, 0.2)"
                raise ArgumentError(f"the interval of {name!r} must have numbers as ends; got {end!r:.60}", hint=hint)
        parts.append((float(ends[0]), float(ends[1]), by_name[str(name)]))
    parts.sort(key=lambda part: part[:2])
    adjacent = all(high == next_low for (_, high, _), (next_low, _, _) in pairwise(parts))
    ascending = all(low < high for low, high, _ in parts)
    if not parts or not adjacent or not ascending or not parts[0][0] <= 0 or not parts[-1][1] >= 1:
        listed = ", ".join(f"{action.name} [{low:g}, {high:g})" for low, high, action in parts)
        hint = "write (from, below) for each action; a score of 1 belongs to the last"
        raise ArgumentError(f"intervals must cover 0 to 1 without gaps or overlaps; got {listed or 'none'}", hint=hint)
    return Rule(tuple(action for _, _, action in parts), (-math.inf, *(low for low, _, _ in parts[1:]), math.inf))


def read_by_action(values: Any, names: Sequence[str], default: float, parameter: str) -> FloatArray:
    """Validate a mapping of action names to numbers; return one number per action, ``default`` if it is not named."""
    numbers = dict.fromkeys(names, default)
    if values is not None and not isinstance(values, Mapping):
        hint = f'write {parameter}={{"{names[-1]}": 500}}'
        raise ArgumentError(f"{parameter} must be a mapping of actions; got {values!r:.60}", hint=hint, parameter=parameter)
    _check_actions(values or (), numbers, parameter)
    for action, value in (values or {}).items():
        if not (is_number(value) and value == default):  # an infinite capacity is allowed
            check_number(f"{parameter} of {action!r}", value, 0)
        numbers[str(action)] = float(value)
    return np.array([numbers[name] for name in names])
