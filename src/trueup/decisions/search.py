"""The cheapest rule by the scores alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.frame import to_jsonable
from trueup.decisions.costs import Share
from trueup.decisions.inputs import is_number, say, unlabelled
from trueup.decisions.rules import Rule, as_actions
from trueup.errors import ArgumentError
from trueup.kernels.deciding import extend_runs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trueup._types import FloatArray
    from trueup.decisions.inputs import Unlabelled
    from trueup.decisions.rules import Action


SLACK = 1 + 1e-9  # of a capacity: sums of weights are rounded
SHOWN = 201  # points of a cost curve, at most
MOST_STATES = 200_000_000  # of a search: some 13 bytes each with capacities, 21 without


Run = tuple[int, int, int]  # an action, and the first and the last and one of the distinct scores that fall to it
Points = tuple[tuple[float, float], ...]


@dataclass(frozen=True, eq=False)
class BestRule:
    """The cheapest rule, what it costs, and what others would.

    Attributes
    ----------
    rule : Rule
        To be given to `expected_cost`.
    estimate : float
        Its expected total cost on these rows, start-up costs included.
    shares : tuple of Share
        What falls to each action.
    curves : mapping of str to points (threshold, cost)
        Around the best: what the rule costs when one of its cuts moves, "pass | act", and the others stay. A threshold of
        infinity leaves nothing to the action above. Cuts that a capacity forbids are left out.
    uniform_costs : mapping of str to float
        What it would cost to treat all rows alike, by action, whatever the capacity.
    over_capacity : tuple of str
        The actions whose capacity is too small for that.
    """

    rule: Rule
    estimate: float
    shares: tuple[Share, ...]
    curves: Mapping[str, Points]
    uniform_costs: Mapping[str, float]
    over_capacity: tuple[str, ...] = ()

    @property
    def curve(self) -> Points:
        """What each threshold costs, where the rule has one."""
        return next(iter(self.curves.values())) if len(self.curves) == 1 else ()

    @property
    def threshold(self) -> float:
        """From which score the upper action is taken; NaN unless the rule has two actions."""
        return self.rule.edges[1] if len(self.rule.actions) == 2 else math.nan

    def apply(self, p: ArrayLike) -> NDArray[np.object_]:
        """Give the name of the action that each row gets."""
        return self.rule.apply(p)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        curves = {
            name: [{"threshold": to_jsonable(at), "cost": cost} for at, cost in points]
            for name, points in self.curves.items()
        }
        return {
            "rule": self.rule.to_dict(), "estimate": self.estimate, "shares": [share._asdict() for share in self.shares],
            "curves": curves, "uniform_costs": dict(self.uniform_costs), "over_capacity": list(self.over_capacity),
        }  # fmt: skip

    def __repr__(self) -> str:
        told = ", ".join(f"{share.action} {share.rows:,.10g}" for share in self.shares)
        return f"<BestRule {say(self.estimate)}: {str(self.rule)[6:-1]} (rows: {told})>"


def best_rule(
    p: ArrayLike, costs: Any, *,
    fixed_costs: Mapping[str, float] | None = None, capacity: Mapping[str, float] | None = None,
    weight: ArrayLike | None = None,
) -> BestRule:  # fmt: skip
    """Find the rule that costs least if the scores are right.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores; no labels are needed.
    costs : mapping or list
        As for `expected_cost`; to do nothing is an action, too, and costs what is then missed: {"nothing": (500, 0), ...}.
    fixed_costs : mapping of action to cost, optional
        What it costs to use an action at all.
    capacity : mapping of action to number of rows, optional
        How many rows it may be used on: {"act": 500}.
    weight : array-like, optional

    Notes
    -----
    An action costs b + (a - b) f at score f, so that without capacities it is cheapest to give the highest scores to the
    actions with the smallest a - b: every action has one interval, and the order of the intervals is known. What is left
    are the cuts: of two actions where the upper one is no longer dearer, otherwise by dynamic programming over the distinct
    scores, O(n log n + k n) in all. With capacities every order of the actions is tried, O(2^k k n): rows of one score get
    one action, so that a full one may have to leave its place.

    Examples
    --------
    >>> best_rule([0.1, 0.15, 0.3, 0.9], {"fn": 5, "fp": 1})
    <BestRule 2.05: pass below 0.1667; act from 0.1667 (rows: pass 2, act 2)>
    >>> best_rule([0.1, 0.15, 0.3, 0.9], {"fn": 5, "fp": 1}, capacity={"act": 1})
    <BestRule 2.85: pass below 0.9; act from 0.9 (rows: pass 3, act 1)>
    """
    rows = unlabelled(p, weight)
    given = tuple(sorted(as_actions(costs), key=lambda action: -action.difference))
    fixed = _by_action(fixed_costs, given, 0.0, "fixed_costs")
    actions = tuple(replace(action, fixed=action.fixed + cost) for action, cost in zip(given, fixed.tolist(), strict=True))
    ground = _Ground(rows, actions, _by_action(capacity, actions, math.inf, "capacity"))
    return ground.told(ground.cheapest())


def _by_action(given: Mapping[str, float] | None, actions: tuple[Action, ...], default: float, name: str) -> FloatArray:
    """Read one number an action."""
    found = {action.name: default for action in actions}
    if given is not None and not isinstance(given, Mapping):
        raise ArgumentError(
            f"{name} must name actions; got {given!r:.60}", hint=f'write {name}={{"{actions[-1].name}": 500}}'
        )
    for action, value in (given or {}).items():
        if str(action) not in found:
            raise ArgumentError(f"{name} names an action {action!r} that has no costs", hint=f"actions: {', '.join(found)}")
        if not is_number(value) or not value >= 0 or (math.isinf(value) and math.isfinite(default)):
            raise ArgumentError(f"{name} of {action!r} must be a number, not negative; got {value!r}", hint="0 or more")
        found[str(action)] = float(value)
    return np.array([found[action.name] for action in actions])


class _Ground:
    """Distinct scores, ascending, and what each action would cost at them."""

    def __init__(self, rows: Unlabelled, actions: tuple[Action, ...], room: FloatArray) -> None:
        if (rows.w == rows.w[0]).all():
            rising, w = np.sort(rows.p), rows.w
        else:
            order = np.lexsort((rows.w, rows.p))  # by weight, too: sums do not depend on the order of rows
            rising, w = rows.p[order], rows.w[order]
        first = np.flatnonzero(np.append(True, rising[1:] != rising[:-1]))
        self.score, self.mass = rising[first], np.add.reduceat(w, first)
        self.positive = self.mass * self.score
        self.actions, self.room = actions, room * SLACK
        self._check_size(len(actions))
        self.each = np.stack([action.negative * self.mass + action.difference * self.positive for action in actions])
        self.fixed = np.array([action.fixed for action in actions])

    def _check_size(self, states: int) -> None:
        """Refuse a search that would not fit into memory, with so many states a score."""
        if states * len(self.score) > MOST_STATES:
            told = "" if np.isinf(self.room).all() else "a capacity with "
            raise ArgumentError(
                f"{told}{len(self.actions)} actions and {len(self.score):,} distinct scores asks for too much memory",
                hint="round the scores, to three decimals say, or leave out actions that are never cheapest",
            )

    def cheapest(self) -> list[Run]:
        """Find the runs of scores that cost least."""
        if len(self.actions) == 2 and not self.fixed.any() and np.isinf(self.room).all():
            # What the lower action costs more grows with the score: it is cut where that is no longer below nought.
            upper = self.each[1] <= self.each[0]
            at = int(np.argmax(upper)) if upper.any() else len(upper)
            return [run for run in ((0, 0, at), (1, at, len(self.score))) if run[1] < run[2]]
        return self._in_order() if np.isinf(self.room).all() else self._in_any_order()

    def _sums(self) -> tuple[FloatArray, FloatArray]:
        """Give rows, and the cost of each action, below each place."""
        nought = np.zeros((len(self.actions), 1))
        return np.append(0.0, np.cumsum(self.mass)), np.concatenate([nought, np.cumsum(self.each, axis=1)], axis=1)

    def _in_order(self) -> list[Run]:
        """Cut as often as there are actions, each taking scores above those of the one before, or none."""
        k, m = self.each.shape
        rows, costs = self._sums()
        best = np.full(m + 1, math.inf)
        best[0] = 0.0
        start, taken = np.zeros((k, m + 1), np.int32), np.zeros((k, m + 1), np.int8)
        for j in range(k):
            before = best.copy()
            extend_runs(rows, costs[j], before, self.fixed[j], math.inf, 1, best, start[j], taken[j])
        runs, end = [], m
        for j in reversed(range(k)):
            if end and taken[j, end]:
                runs.append((j, int(start[j, end]), end))
                end = int(start[j, end])
        return runs[::-1]

    def _in_any_order(self) -> list[Run]:
        """Cut as often as there are actions, in every order of them: one state a set of actions that were used."""
        k, m = self.each.shape
        self._check_size(2**k)
        rows, costs = self._sums()
        best = np.full((2**k, m + 1), math.inf)
        best[0, 0] = 0.0
        start, last = np.zeros(best.shape, np.int32), np.zeros(best.shape, np.int8)
        for used in range(2**k):
            for j in range(k):
                if not used >> j & 1:
                    into = used | 1 << j
                    extend_runs(
                        rows, costs[j], best[used], self.fixed[j], self.room[j], j, best[into], start[into], last[into]
                    )
        used = int(np.argmin(best[:, m]))
        if not math.isfinite(best[used, m]):
            raise ArgumentError(
                f"no rule gives every row an action: capacities allow {self.room.sum():,.6g} of {rows[-1]:,.10g} rows",
                hint="leave one action without a capacity; rows of one score are not parted",
            )
        runs, end = [], m
        while used:
            j, begin = int(last[used, end]), int(start[used, end])
            runs.append((j, begin, end))
            used, end = used & ~(1 << j), begin
        return runs[::-1]

    def told(self, used: list[Run]) -> BestRule:
        """Write the rule down."""
        inner = (self._edge(i, j, begin) for (i, _, _), (j, begin, _) in pairwise(used))
        rule = Rule(tuple(self.actions[j] for j, _, _ in used), (-math.inf, *inner, math.inf))
        shares = tuple(
            Share(self.actions[j].name, *(float(of[begin:end].sum()) for of in (self.mass, self.positive, self.each[j])))
            for j, begin, end in used
        )
        alone = {action.name: float(self.each[j].sum() + action.fixed) for j, action in enumerate(self.actions)}
        over = tuple(one.name for one, room in zip(self.actions, self.room, strict=True) if self.mass.sum() > room)
        return BestRule(rule, sum(share.cost for share in shares) + rule.fixed, shares, self._curves(used), alone, over)

    def _edge(self, i: int, j: int, begin: int) -> float:
        """Place a cut: where both actions cost the same, if that is between the scores on both its sides."""
        below, above = self.actions[i], self.actions[j]
        low, high = float(self.score[begin - 1]), float(self.score[begin])
        if below.difference == above.difference:
            return high
        even = (above.negative - below.negative) / (below.difference - above.difference)
        return even if low < even <= high else high

    def _curves(self, used: list[Run]) -> dict[str, Points]:
        """Move each cut and keep the others; of two actions of which one is not used, move the cut that would be there."""
        m = len(self.score)
        if len(self.actions) == 2 and len(used) == 1:
            used = [(0, 0, m), (1, m, m)] if used[0][0] == 0 else [(0, 0, 0), (1, 0, m)]
        total = sum(float(self.each[j, begin:end].sum()) for j, begin, end in used)
        total += sum(float(self.fixed[j]) for j, _, _ in used)
        found = {}
        for (i, begin, at), (j, _, end) in pairwise(used):
            costs = _one_cut(self.each[i, begin:end], self.each[j, begin:end])
            costs += total - costs[at - begin]
            costs[0] -= self.fixed[i]  # nothing is left to the action below, then to that above
            costs[-1] -= self.fixed[j]
            rows = np.append(0.0, np.cumsum(self.mass[begin:end]))
            fits = (rows <= self.room[i]) & (rows[-1] - rows <= self.room[j])
            places = np.append(self.score[begin:end], self.score[end] if end < m else math.inf)
            shown = _near(np.flatnonzero(fits), at - begin)
            points = zip(places[shown].tolist(), costs[shown].tolist(), strict=True)
            found[f"{self.actions[i].name} | {self.actions[j].name}"] = tuple(points)
        return found


def _one_cut(lower: FloatArray, upper: FloatArray) -> FloatArray:
    """Give what it costs to cut at each place: one action below it, the other from there on."""
    below = np.append(0.0, np.cumsum(lower))
    return np.asarray(below + np.append(np.cumsum(upper[::-1])[::-1], 0.0))


def _near(places: NDArray[np.intp], best: int) -> NDArray[np.intp]:
    """Choose places to show: some everywhere, all near the best, and both ends with their neighbours."""
    last = len(places) - 1
    spread = np.linspace(0, last, SHOWN // 2).astype(np.intp)
    at = int(np.searchsorted(places, best))
    near = np.arange(max(0, at - SHOWN // 4), min(last, at + SHOWN // 4) + 1)
    return np.asarray(places[np.unique(np.concatenate([spread, near, [min(1, last), max(0, last - 1)]]))])
