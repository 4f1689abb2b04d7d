"""Actions, what they cost, and rules: which action at which score."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.decisions.inputs import is_number, number
from trueup.errors import ArgumentError
from trueup.metrics.inputs import scored

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trueup._types import FloatArray, IntArray


ERRORS = ("fn", "fp", "tp", "tn")
LARGEST_COST = 1e90  # squares of costs times weights are summed up


@dataclass(frozen=True)
class Action:
    """Something that can be done with a row.

    Attributes
    ----------
    name : str
    positive, negative : float
        What it costs on a row whose outcome is 1, and on one whose outcome is 0; below 0 it earns.
    fixed : float
        What it costs to use it at all, once.
    """

    name: str
    positive: float
    negative: float
    fixed: float = 0.0

    @property
    def difference(self) -> float:
        """Give what it costs more on a positive than on a negative row."""
        return self.positive - self.negative


@dataclass(frozen=True)
class Rule:
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
        """Refuse edges that give some score no action."""
        rising = all(low <= high for low, high in pairwise(self.edges))
        if not self.actions or len(self.edges) != len(self.actions) + 1 or not rising:
            raise ArgumentError(
                f"a rule of {len(self.actions)} actions needs one edge more, ascending; got {self.edges!r:.80}",
                hint="Rule((one, other), (-math.inf, 0.2, math.inf))",
            )
        if not (self.edges[0] <= 0 and self.edges[-1] >= 1):
            raise ArgumentError(
                f"the edges of a rule must reach from 0 to 1; got {self.edges[0]:g} to {self.edges[-1]:g}",
                hint="begin with -math.inf and end with math.inf",
            )

    @property
    def differences(self) -> FloatArray:
        """Give what each action costs more on a positive than on a negative row."""
        return np.array([action.difference for action in self.actions])

    def action_index(self, p: FloatArray) -> IntArray:
        """Give the number of each row's action."""
        return np.searchsorted(np.array(self.edges[1:-1]), p, side="right").astype(np.int64)

    def apply(self, p: ArrayLike) -> NDArray[np.object_]:
        """Give the name of the action that each row gets.

        Examples
        --------
        >>> as_rule(0.2, as_actions({"fn": 5, "fp": 1})).apply([0.1, 0.2, 0.9]).tolist()
        ['pass', 'act', 'act']
        """
        names = np.array([action.name for action in self.actions], object)
        return np.asarray(names[self.action_index(scored(np.zeros(np.size(p)), p).p)])

    @property
    def fixed(self) -> float:
        """Give what its actions cost to be used at all."""
        return sum(action.fixed for action in self.actions)

    def expected_costs(self, p: FloatArray) -> FloatArray:
        """Give what each row is expected to cost: b + (a - b) f."""
        at = self.action_index(p)
        base = np.array([action.negative for action in self.actions])
        return np.asarray(base[at] + self.differences[at] * p)

    def realised_cost(self, y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
        """Add up what it cost once outcomes are known, start-up costs included.

        Examples
        --------
        >>> as_rule(0.2, as_actions({"fn": 5, "fp": 1})).realised_cost([1, 0, 1], [0.1, 0.2, 0.9])
        6.0
        """
        rows = scored(y, p, weight)
        at = self.action_index(rows.p)
        base = np.array([action.negative for action in self.actions])
        return float(rows.w @ (base[at] + self.differences[at] * rows.y)) + self.fixed

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; an edge that is not finite becomes None."""
        ends = [None if math.isinf(edge) else edge for edge in self.edges]
        return {
            "actions": [
                {**asdict(one), "from": low, "below": high}
                for one, low, high in zip(self.actions, ends[:-1], ends[1:], strict=True)
            ]
        }

    def __repr__(self) -> str:
        parts = []
        for action, low, high in zip(self.actions, self.edges[:-1], self.edges[1:], strict=True):
            where = "always" if low == -math.inf and high == math.inf else _span(low, high)
            parts.append(f"{action.name} {where}")
        return f"<Rule {'; '.join(parts)}>"


def _span(low: float, high: float) -> str:
    if low == -math.inf:
        return f"below {high:.4g}"
    return f"from {low:.4g}" if high == math.inf else f"from {low:.4g} to below {high:.4g}"


def as_actions(costs: Any) -> tuple[Action, ...]:
    """Read costs: {"fn": 5, "fp": 1}, or the actions themselves.

    Parameters
    ----------
    costs : mapping or sequence
        {"fn": .., "fp": ..}, perhaps with "tp" and "tn": what a row costs that is missed, flagged wrongly, flagged rightly
        and passed rightly; two actions, "pass" and "act". Or {name: (cost on a positive row, cost on a negative row)}, or
        a list of `Action`, of (name, positive, negative), or of (positive, negative), which are then numbered.

    Examples
    --------
    >>> as_actions({"fn": 5, "fp": 1})[1]
    Action(name='act', positive=0.0, negative=1.0, fixed=0.0)
    >>> as_actions({"grant": (100, -10), "refuse": (0, 0)})[0].difference
    110.0
    """
    if isinstance(costs, Mapping) and costs and set(costs) <= set(ERRORS):
        if "fn" not in costs or "fp" not in costs:
            raise ArgumentError(f"costs of errors must name both 'fn' and 'fp'; got {sorted(costs)}", hint=EXAMPLE)
        fn, fp, tp, tn = (_number(costs.get(name, 0.0), name) for name in ERRORS)
        return Action("pass", fn, tn), Action("act", tp, fp)
    if isinstance(costs, Mapping) and costs and {str(name).lower() for name in costs} <= set(ERRORS):
        raise ArgumentError(f"costs of errors are named in small letters; got {', '.join(map(str, costs))}", hint=EXAMPLE)
    if isinstance(costs, Mapping):
        listed: list[Any] = [(name, *_pair(pair, name)) for name, pair in costs.items()]
    elif isinstance(costs, Sequence) and not isinstance(costs, (str, bytes)):
        listed = [(f"action {at}", *one) if _is_pair(one) else one for at, one in enumerate(costs)]
    else:
        raise ArgumentError(f"costs must be a mapping or a list of actions; got {costs!r}", hint=EXAMPLE)
    actions = tuple(_action(one) for one in listed)
    names = [action.name for action in actions]
    if not actions:
        raise ArgumentError("costs name no action", hint=EXAMPLE)
    if len(set(names)) < len(names):
        raise ArgumentError(f"every action needs a name of its own; got {names}", hint="one entry an action")
    return actions


def check_squares(actions: tuple[Action, ...]) -> None:
    """Refuse costs whose squares are too small to be added up: an interval would have no width."""
    largest = max(abs(cost) for one in actions for cost in (one.positive, one.negative))
    if 0 < largest < 1 / LARGEST_COST:
        raise ArgumentError(
            f"costs are too small to add up; the largest is {largest:g}", hint="measure them in another unit"
        )


EXAMPLE = 'write {"fn": 5, "fp": 1}, or {"grant": (100, -10), "refuse": (0, 0)}: cost on a positive, on a negative row'


def _action(one: Any) -> Action:
    if isinstance(one, Action):
        return Action(str(one.name), *(_number(cost, one.name) for cost in (one.positive, one.negative, one.fixed)))
    if isinstance(one, Sequence) and not isinstance(one, (str, bytes)) and len(one) == 3:
        return Action(str(one[0]), _number(one[1], one[0]), _number(one[2], one[0]))
    raise ArgumentError(f"an action is (name, cost on a positive row, cost on a negative row); got {one!r}", hint=EXAMPLE)


def _is_pair(pair: Any) -> bool:
    return isinstance(pair, Sequence) and not isinstance(pair, (str, bytes)) and len(pair) == 2


def _pair(pair: Any, name: Any, of: str = "costs, on a positive and on a negative row") -> tuple[Any, Any]:
    if not _is_pair(pair):
        raise ArgumentError(f"action {name!r} needs two {of}; got {pair!r:.60}", hint=EXAMPLE)
    return pair[0], pair[1]


def _number(value: Any, name: Any) -> float:
    cost = number(value, f"a cost of {name!r}", EXAMPLE)
    if abs(cost) > LARGEST_COST:
        raise ArgumentError(
            f"a cost of {name!r} is too large to add up; got {cost:g}", hint="measure costs in another unit"
        )
    return cost


def as_rule(rule: Any, actions: tuple[Action, ...]) -> Rule:
    """Read a rule: a threshold for two actions, intervals for any number of them, or what `best_rule` found.

    Parameters
    ----------
    rule : float, mapping, list, Rule or BestRule
        A number t: the first action where the score is below t, the second from t on. {name: (from, below)}, or a list of
        (from, below) in the order of the actions: every score in [0, 1] must fall to one action. A `Rule` keeps its
        intervals and takes the costs that are given here.

    Examples
    --------
    >>> as_rule(0.2, as_actions({"fn": 5, "fp": 1}))
    <Rule pass below 0.2; act from 0.2>
    >>> as_rule([(0.3, 1), (0, 0.3)], as_actions([(0, 1), (5, 0)]))
    <Rule action 1 below 0.3; action 0 from 0.3>
    """
    rule = getattr(rule, "rule", rule)
    known = {action.name: action for action in actions}
    if isinstance(rule, Rule):
        again = [replace(_known(one.name, known), fixed=one.fixed) for one in rule.actions]
        return replace(rule, actions=tuple(again))
    if is_number(rule):
        return _from_threshold(float(rule), actions)
    if isinstance(rule, Mapping):
        return _from_intervals(rule, known)
    if isinstance(rule, Sequence) and not isinstance(rule, (str, bytes)):
        if len(rule) != len(actions):
            raise ArgumentError(
                f"the rule has {len(rule)} intervals for {len(actions)} actions",
                hint="one (from, below) for each action, in their order",
            )
        return _from_intervals({action.name: part for action, part in zip(actions, rule, strict=True)}, known)
    raise ArgumentError(f"rule must be a threshold, intervals or a Rule; got {rule!r:.60}", hint="write rule=0.2")


def _known(name: Any, known: Mapping[str, Action]) -> Action:
    if str(name) not in known:
        raise ArgumentError(f"the rule names an action {name!r} that has no costs", hint=f"actions: {', '.join(known)}")
    return known[str(name)]


def _from_threshold(threshold: float, actions: tuple[Action, ...]) -> Rule:
    if len(actions) != 2:
        raise ArgumentError(
            f"a threshold parts two actions; got costs of {len(actions)}", hint="give {action: (from, below)} for each"
        )
    if not (0 <= threshold <= 1 or math.isinf(threshold)):
        raise ArgumentError(
            f"the threshold must lie in [0, 1], as scores do; got {threshold!r}",
            hint="write rule=0.2 to act where the score is 0.2 or more; infinity never acts",
        )
    return Rule(actions, (-math.inf, threshold, math.inf))


def _from_intervals(rule: Mapping[Any, Any], known: Mapping[str, Action]) -> Rule:
    """Put intervals in order and make sure that they leave no gap in [0, 1]."""
    parts = []
    for name, interval in rule.items():
        action = _known(name, known)
        low, high = (_end(end, name) for end in _pair(interval, name, "ends, (from, below)"))
        parts.append((low, high, action))
    parts.sort(key=lambda part: part[:2])
    told = ", ".join(f"{action.name} [{low:g}, {high:g})" for low, high, action in parts)
    joined = all(high == after for (_, high, _), (after, _, _) in pairwise(parts))
    rising = all(low < high for low, high, _ in parts)
    if not parts or not joined or not rising or not parts[0][0] <= 0 or not parts[-1][1] >= 1:
        hint = "write (from, below) for each action; a score of 1 belongs to the last"
        raise ArgumentError(f"intervals must follow on each other from 0 to 1; got {told or 'none'}", hint=hint)
    return Rule(tuple(action for _, _, action in parts), (-math.inf, *(low for low, _, _ in parts[1:]), math.inf))


def _end(value: Any, name: Any) -> float:
    if not is_number(value) or math.isnan(value):
        raise ArgumentError(f"the interval of {name!r} must have numbers as ends; got {value!r:.60}", hint="write (0, 0.2)")
    return float(value)
