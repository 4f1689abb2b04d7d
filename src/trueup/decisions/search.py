"""The search for the cheapest rule: the scores alone predict the cost of every rule."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

import numpy as np

from trueup._validate import check_choice
from trueup.decisions.evidence import UnlabelledRows, has_weight, read_unlabelled
from trueup.decisions.rowwise import RowCosts, best_row_rule, differ_by_row, is_matrix, read_row_costs, read_rows
from trueup.decisions.rules import CAPACITY_SLACK, Action, BestRule, CostPoint, Rule, Share, as_actions, read_by_action
from trueup.errors import ArgumentError
from trueup.kernels.fitting import extend_runs

if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any

    from numpy.typing import ArrayLike

    from trueup._types import FloatArray


MAX_COST_POINTS = 201  # of a cost curve
MAX_STATES = 200_000_000  # of a search, at 14 bytes each with capacities, 30 without

Run = tuple[int, int, int]  # index of an action, and the slice [begin, end) of distinct scores assigned to it


def best_rule(
    p: ArrayLike,
    costs: Any,
    *,
    fixed_costs: Mapping[str, float] | None = None,
    capacity: Mapping[str, float] | None = None,
    weight: ArrayLike | None = None,
    by: Literal["row", "score"] = "row",
) -> BestRule:
    """Find the rule of lowest expected cost, if the scores are calibrated.

    Parameters
    ----------
    p : array-like, shape (n,) or (n, k)
        Scores, or the probabilities of k classes; no labels are needed.
    costs : mapping or list
        As for `expected_cost`. Doing nothing is an action too, with the cost of what is then missed: {"nothing": (500, 0)}.
    fixed_costs : mapping of action to cost, optional
        Cost of using an action at all.
    capacity : mapping of action to number of rows, optional
        Maximum number of rows per action: {"act": 500}.
    weight : array-like, optional
    by : {"row", "score"}
        Where costs differ by row: "row" gives each row the action that is cheapest at its own costs; with "score" the
        action depends on the score alone, as with a threshold.

    Notes
    -----
    For several classes, and by row, each row gets the action of lowest expected cost sum_k f_k C_k. With capacities a price
    per row is added to the actions that are full, the same for all rows, so that no assignment of the rows is cheaper if
    weights are equal and at most as many rows tie as fit (prices of the assignment problem). Subsets of actions with fixed
    costs are all tried.

    One score and the same costs for all rows: an action costs a on positive and b on negative rows, b + (a - b) f at score
    f: without capacities the highest scores go to the actions with the smallest a - b, every action has one interval, and
    the order of the intervals is known. The edges remain: for two actions, where the upper one stops being more expensive;
    otherwise by dynamic programming over the distinct scores, O(n log n + k n) in total. With capacities every order of the
    actions is searched, O(2^k k n): rows of equal score get the same action, so that a full action may have to give up its
    position.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic
    Setting", Electronic Journal of Statistics 11(2), doi:10.1214/17-EJS1376SI, section 3.3.4.

    Examples
    --------
    >>> best_rule([0.1, 0.15, 0.3, 0.9], {"fn": 5, "fp": 1})
    <BestRule 2.05: pass below 0.1667; act from 0.1667 (rows: pass 2, act 2)>
    >>> best_rule([0.1, 0.15, 0.3, 0.9], {"fn": 5, "fp": 1}, capacity={"act": 1})
    <BestRule 2.85: pass below 0.9; act from 0.9 (rows: pass 3, act 1)>
    """
    check_choice("by", by, ("row", "score"))
    if is_matrix(p) or (differ_by_row(costs) and by == "row"):
        known = read_rows(p, weight, None, costs)
        charges = read_by_action(fixed_costs, known.costs.names, 0.0, "fixed_costs")
        return best_row_rule(known, charges, read_by_action(capacity, known.costs.names, math.inf, "capacity"))
    rows, table = read_unlabelled(p, weight), None
    if differ_by_row(costs):
        table = read_row_costs(costs, has_weight(weight, p))
        mean = np.average(table.cost, axis=1, weights=rows.w)
        costs = [Action(name, *ends[::-1].tolist()) for name, ends in zip(table.names, mean, strict=True)]
    ordered = tuple(sorted(as_actions(costs), key=lambda action: -action.difference))
    names = [action.name for action in ordered]
    fixed = read_by_action(fixed_costs, names, 0.0, "fixed_costs").tolist()
    actions = tuple(replace(action, fixed=action.fixed + cost) for action, cost in zip(ordered, fixed, strict=True))
    search = _RuleSearch(rows, actions, read_by_action(capacity, names, math.inf, "capacity"), table)
    return search.summarise(search.find_cheapest())


class _RuleSearch:
    """Search for the cheapest rule: distinct scores, ascending, and the expected cost of each action at each of them."""

    def __init__(
        self, rows: UnlabelledRows, actions: tuple[Action, ...], capacity: FloatArray, table: RowCosts | None = None
    ) -> None:
        if (rows.w == rows.w[0]).all():
            score, w = np.sort(rows.p), rows.w
        else:
            order = np.lexsort((rows.w, rows.p))  # also by weight: sums must not depend on the order of rows
            score, w = rows.p[order], rows.w[order]
        first = np.flatnonzero(np.append(True, score[1:] != score[:-1]))
        self.score, self.weight = score[first], np.add.reduceat(w, first)
        self.positive = self.weight * self.score
        self.actions, self.capacity = actions, capacity * CAPACITY_SLACK
        # Where costs differ by row (``table``), the order of the actions is not known either.
        self.by_row = table is not None
        self.limited = self.by_row or not np.isinf(self.capacity).all()
        if (2 ** len(actions) if self.limited else len(actions)) * len(self.score) > MAX_STATES:
            raise ArgumentError(
                f"{'capacity' if self.limited else 'costs'}: {len(self.actions)} actions and {len(self.score):,} distinct "
                "scores need too much memory",
                hint="round the scores, for example to three decimals, or leave out actions that are never cheapest",
            )
        self.costs = np.stack([action.negative * self.weight + action.difference * self.positive for action in actions])
        if table is not None:
            order = np.lexsort((rows.w, rows.p))
            expected = table.expected(np.column_stack([1 - rows.p, rows.p])) * rows.w
            place = [table.names.index(action.name) for action in actions]
            self.costs = np.add.reduceat(expected[place][:, order], first, axis=1)
        self.fixed = np.array([action.fixed for action in actions])

    def find_cheapest(self) -> list[Run]:
        """Return the split of the scores into runs, one per action, with the lowest total cost, by dynamic programming.

        Without capacities the order of the actions is known, and a state is the number of them considered so far; an action
        may get no score. With capacities every order is possible, and a state is the set of actions used so far, as bits.
        """
        k, m = self.costs.shape
        if k == 2 and not self.limited and not self.fixed.any():
            # The extra cost of the lower action grows with the score: the edge is where it stops being negative.
            upper = self.costs[1] <= self.costs[0]
            edge = int(np.argmax(upper)) if upper.any() else m
            return [run for run in ((0, 0, edge), (1, edge, m)) if run[1] < run[2]]
        rows = np.append(0.0, np.cumsum(self.weight))
        costs = np.concatenate([np.zeros((k, 1)), np.cumsum(self.costs, axis=1)], axis=1)
        moves = ((j, j, j + 1) for j in range(k))
        if self.limited:
            moves = ((used, j, used | 1 << j) for used in range(2**k) for j in range(k) if not used >> j & 1)
        best = np.full((2**k if self.limited else k + 1, m + 1), math.inf)
        best[0, 0] = 0.0
        start, last = np.zeros(best.shape, np.int32), np.full(best.shape, -1, np.int16)
        for state, j, into in moves:
            if not self.limited:
                best[into] = best[state]
            limit = self.fixed[j], self.capacity[j], j
            extend_runs(rows, costs[j], best[state], *limit, best[into], start[into], last[into])
        state = int(np.argmin(best[:, m])) if self.limited else k
        if not math.isfinite(best[state, m]):
            raise ArgumentError(
                f"capacity allows {self.capacity.sum():,.6g} of {rows[-1]:,.10g} rows: no rule gives every row an action",
                hint="leave one action without a capacity; rows of equal score get the same action",
                parameter="capacity",
            )
        runs, end = [], m
        while state and end:
            j, begin = int(last[state, end]), int(start[state, end])
            state = state & ~(1 << j) if self.limited else state - 1
            if j >= 0:
                runs.append((j, begin, end))
                end = begin
        return runs[::-1]

    def summarise(self, runs: list[Run]) -> BestRule:
        """Return the rule that ``runs`` (action, begin and end of its scores) form, with its costs and alternatives."""
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
        """Return the edge of actions i and j: where costs are equal, if in (score[begin-1], score[begin]], else the end."""
        below, above = self.actions[i], self.actions[j]
        low, high = float(self.score[begin - 1]), float(self.score[begin])
        if self.by_row or below.difference == above.difference:
            return high
        equal = (above.negative - below.negative) / (below.difference - above.difference)
        return equal if low < equal <= high else high

    def _curves(self, runs: list[Run]) -> dict[str, tuple[CostPoint, ...]]:
        """Return the cost by threshold as each edge moves; if one of two actions is unused, its edge is at an end."""
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
            even = np.linspace(0, end_index, MAX_COST_POINTS // 2).astype(np.intp)
            near = np.arange(max(0, centre - MAX_COST_POINTS // 4), min(end_index, centre + MAX_COST_POINTS // 4) + 1)
            shown = allowed[np.unique(np.concatenate([even, near, [min(1, end_index), max(0, end_index - 1)]]))]
            points = map(CostPoint, thresholds[shown].tolist(), costs[shown].tolist())
            curves[f"{self.actions[i].name} | {self.actions[j].name}"] = tuple(points)
        return curves
