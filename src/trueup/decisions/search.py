"""Search for the cheapest rule by the scores alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_number
from trueup.decisions.inputs import is_number, read_unlabelled
from trueup.decisions.rules import BestRule, Points, Rule, Share, as_actions
from trueup.errors import ArgumentError
from trueup.kernels.rules import extend_runs

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray
    from trueup.decisions.inputs import UnlabelledRows
    from trueup.decisions.rules import Action


CAPACITY_SLACK = 1 + 1e-9  # sums of weights are rounded
MAX_POINTS = 201  # of a cost curve
MAX_STATES = 200_000_000  # of a search, at 13 bytes each with capacities, 21 without

Run = tuple[int, int, int]  # index of an action, and the slice [begin, end) of distinct scores assigned to it


def best_rule(
    p: ArrayLike,
    costs: Any,
    *,
    fixed_costs: Mapping[str, float] | None = None,
    capacity: Mapping[str, float] | None = None,
    weight: ArrayLike | None = None,
) -> BestRule:
    """Find the rule of lowest expected cost, if the scores are calibrated.

    Parameters
    ----------
    p : array-like, shape (n,)
        Scores; no labels are needed.
    costs : mapping or list
        As for `expected_cost`. Doing nothing is an action too, with the cost of what is then missed: {"nothing": (500, 0)}.
    fixed_costs : mapping of action to cost, optional
        Cost of using an action at all.
    capacity : mapping of action to number of rows, optional
        Maximum number of rows per action: {"act": 500}.
    weight : array-like, optional

    Notes
    -----
    An action costs b + (a - b) f at score f, so that without capacities it is cheapest to give the highest scores to the
    actions with the smallest a - b: every action has one interval, and the order of the intervals is known. It remains to
    find the edges: for two actions, where the upper one stops being more expensive; otherwise by dynamic programming over
    the distinct scores, O(n log n + k n) in total. With capacities every order of the actions is searched, O(2^k k n): rows
    of equal score get the same action, so that a full action may have to give up its position.

    Examples
    --------
    >>> best_rule([0.1, 0.15, 0.3, 0.9], {"fn": 5, "fp": 1})
    <BestRule 2.05: pass below 0.1667; act from 0.1667 (rows: pass 2, act 2)>
    >>> best_rule([0.1, 0.15, 0.3, 0.9], {"fn": 5, "fp": 1}, capacity={"act": 1})
    <BestRule 2.85: pass below 0.9; act from 0.9 (rows: pass 3, act 1)>
    """
    rows = read_unlabelled(p, weight)
    ordered = tuple(sorted(as_actions(costs), key=lambda action: -action.difference))
    fixed = _read_by_action(fixed_costs, ordered, 0.0, "fixed_costs").tolist()
    actions = tuple(replace(action, fixed=action.fixed + cost) for action, cost in zip(ordered, fixed, strict=True))
    search = _RuleSearch(rows, actions, _read_by_action(capacity, actions, math.inf, "capacity"))
    return search.summarise(search.find_cheapest())


def _read_by_action(values: Any, actions: tuple[Action, ...], default: float, parameter: str) -> FloatArray:
    """Validate a mapping of action names to numbers; return one number per action."""
    numbers = {action.name: default for action in actions}
    if values is not None and not isinstance(values, Mapping):
        hint = f'write {parameter}={{"{actions[-1].name}": 500}}'
        raise ArgumentError(f"{parameter} must be a mapping of actions; got {values!r:.60}", hint=hint, parameter=parameter)
    for action, value in (values or {}).items():
        if str(action) not in numbers:
            hint = f"actions: {', '.join(numbers)}"
            raise ArgumentError(
                f"{parameter} names the action {action!r}, which has no costs", hint=hint, parameter=parameter
            )
        if not (is_number(value) and value == default):  # an infinite capacity is allowed
            check_number(f"{parameter} of {action!r}", value, 0)
        numbers[str(action)] = float(value)
    return np.array([numbers[action.name] for action in actions])


class _RuleSearch:
    """Distinct scores, ascending, and the expected cost of each action at them."""

    def __init__(self, rows: UnlabelledRows, actions: tuple[Action, ...], capacity: FloatArray) -> None:
        if (rows.w == rows.w[0]).all():
            score, w = np.sort(rows.p), rows.w
        else:
            order = np.lexsort((rows.w, rows.p))  # also by weight: sums must not depend on the order of rows
            score, w = rows.p[order], rows.w[order]
        first = np.flatnonzero(np.append(True, score[1:] != score[:-1]))
        self.score, self.weight = score[first], np.add.reduceat(w, first)
        self.positive = self.weight * self.score
        self.actions, self.capacity = actions, capacity * CAPACITY_SLACK
        self.limited = not np.isinf(self.capacity).all()
        self._check_size(len(actions))
        self.costs = np.stack([action.negative * self.weight + action.difference * self.positive for action in actions])
        self.fixed = np.array([action.fixed for action in actions])

    def _check_size(self, states_per_score: int) -> None:
        if states_per_score * len(self.score) > MAX_STATES:
            raise ArgumentError(
                f"{'capacity' if self.limited else 'costs'}: {len(self.actions)} actions and {len(self.score):,} distinct "
                "scores need too much memory",
                hint="round the scores, for example to three decimals, or leave out actions that are never cheapest",
            )

    def find_cheapest(self) -> list[Run]:
        """Return the runs of scores with the lowest total cost."""
        if self.limited:
            return self._search_all_orders()
        if len(self.actions) == 2 and not self.fixed.any():
            # The extra cost of the lower action grows with the score: the edge is where it stops being negative.
            upper = self.costs[1] <= self.costs[0]
            edge = int(np.argmax(upper)) if upper.any() else len(upper)
            return [run for run in ((0, 0, edge), (1, edge, len(self.score))) if run[1] < run[2]]
        return self._search_known_order()

    def _cumulative(self) -> tuple[FloatArray, FloatArray]:
        """Return the rows, and the cost of each action, below each position."""
        zeros = np.zeros((len(self.actions), 1))
        return np.append(0.0, np.cumsum(self.weight)), np.concatenate([zeros, np.cumsum(self.costs, axis=1)], axis=1)

    def _search_known_order(self) -> list[Run]:
        """Assign scores to actions in their order; an action may get none."""
        k, m = self.costs.shape
        rows, costs = self._cumulative()
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

    def _search_all_orders(self) -> list[Run]:
        """Assign scores to actions in every order: one state per set of actions used so far."""
        k, m = self.costs.shape
        self._check_size(2**k)
        rows, costs = self._cumulative()
        best = np.full((2**k, m + 1), math.inf)
        best[0, 0] = 0.0
        start, last = np.zeros(best.shape, np.int32), np.zeros(best.shape, np.int8)
        for used in range(2**k):
            for j in range(k):
                if not used >> j & 1:
                    into = used | 1 << j
                    extend_runs(
                        rows, costs[j], best[used], self.fixed[j], self.capacity[j], j, best[into], start[into], last[into]
                    )
        used = int(np.argmin(best[:, m]))
        if not math.isfinite(best[used, m]):
            raise ArgumentError(
                f"capacity allows {self.capacity.sum():,.6g} of {rows[-1]:,.10g} rows: no rule gives every row an action",
                hint="leave one action without a capacity; rows of equal score get the same action",
                parameter="capacity",
            )
        runs, end = [], m
        while used:
            j, begin = int(last[used, end]), int(start[used, end])
            runs.append((j, begin, end))
            used, end = used & ~(1 << j), begin
        return runs[::-1]

    def summarise(self, runs: list[Run]) -> BestRule:
        """Return the rule with its costs and alternatives."""
        inner = (self._edge(i, j, begin) for (i, _, _), (j, begin, _) in pairwise(runs))
        rule = Rule(tuple(self.actions[j] for j, _, _ in runs), (-math.inf, *inner, math.inf))
        shares = tuple(
            Share(self.actions[j].name, *(float(of[begin:end].sum()) for of in (self.weight, self.positive, self.costs[j])))
            for j, begin, end in runs
        )
        uniform = {action.name: float(self.costs[j].sum() + action.fixed) for j, action in enumerate(self.actions)}
        over = tuple(
            action.name for action, most in zip(self.actions, self.capacity, strict=True) if self.weight.sum() > most
        )
        return BestRule(rule, sum(share.cost for share in shares) + rule.fixed, shares, self._curves(runs), uniform, over)

    def _edge(self, i: int, j: int, begin: int) -> float:
        """Return the score where both actions cost the same, if it lies between the adjacent scores; else the upper one."""
        below, above = self.actions[i], self.actions[j]
        low, high = float(self.score[begin - 1]), float(self.score[begin])
        if below.difference == above.difference:
            return high
        equal = (above.negative - below.negative) / (below.difference - above.difference)
        return equal if low < equal <= high else high

    def _curves(self, runs: list[Run]) -> dict[str, Points]:
        """Return the cost as each edge moves and the others stay; the edge of an unused second action is at an end."""
        m = len(self.score)
        if len(self.actions) == 2 and len(runs) == 1:
            runs = [(0, 0, m), (1, m, m)] if runs[0][0] == 0 else [(0, 0, 0), (1, 0, m)]
        total = sum(float(self.costs[j, begin:end].sum() + self.fixed[j]) for j, begin, end in runs)
        curves = {}
        for (i, begin, edge), (j, _, end) in pairwise(runs):
            below = np.append(0.0, np.cumsum(self.costs[i, begin:end]))
            above = np.append(np.cumsum(self.costs[j, begin:end][::-1])[::-1], 0.0)
            costs = below + above
            costs += total - costs[edge - begin]
            costs[0] -= self.fixed[i]  # at the ends one of the two actions is not used
            costs[-1] -= self.fixed[j]
            rows = np.append(0.0, np.cumsum(self.weight[begin:end]))
            fits = (rows <= self.capacity[i]) & (rows[-1] - rows <= self.capacity[j])
            thresholds = np.append(self.score[begin:end], self.score[end] if end < m else math.inf)
            # Show some thresholds everywhere, all near the best, and both ends with their neighbours.
            allowed = np.flatnonzero(fits)
            end_index, centre = len(allowed) - 1, int(np.searchsorted(allowed, edge - begin))
            even = np.linspace(0, end_index, MAX_POINTS // 2).astype(np.intp)
            near = np.arange(max(0, centre - MAX_POINTS // 4), min(end_index, centre + MAX_POINTS // 4) + 1)
            shown = allowed[np.unique(np.concatenate([even, near, [min(1, end_index), max(0, end_index - 1)]]))]
            points = zip(thresholds[shown].tolist(), costs[shown].tolist(), strict=True)
            curves[f"{self.actions[i].name} | {self.actions[j].name}"] = tuple(points)
        return curves
