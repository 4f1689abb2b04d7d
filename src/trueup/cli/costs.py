"""Costs, actions and capacities of `trueup decide`, given as numbers or as columns with the cost of each row."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_number
from trueup.cli import io
from trueup.cli.options import number_or_name
from trueup.decisions.evaluate import ACT, DecisionProblem
from trueup.decisions.rules import Action, as_actions
from trueup.errors import ArgumentError, ColumnError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from trueup._types import FloatArray
    from trueup.data.table import Table

COSTS_HINT = "write --cost-fn 500 --cost-fp 20, the costs of a miss and of a false alarm; or --action NAME:X,Y per action"
ACTION_HINT = "write --action review:40,40: its name, and its costs on a positive and on a negative row"


def parse_problem(arguments: argparse.Namespace) -> DecisionProblem:
    """Return the actions with their costs, the threshold and the capacities given on the command line."""
    given = {name: getattr(arguments, f"cost_{name}") for name in ("fn", "fp", "tp", "tn")}
    costs: dict[str, Any] = {name: cost for name, cost in given.items() if cost is not None}
    error_costs = arguments.action is None
    actions: tuple[Action, ...]
    if error_costs:
        _check_error_costs(costs, arguments.threshold)
        actions = as_actions({name: _plain(cost) for name, cost in costs.items()})
    else:
        parsed = list(map(_parse_action, arguments.action))
        if len(parsed) < 2:
            hint = "doing nothing is an action too: --action pass:500,0"
            raise ArgumentError("--action must be given at least twice; got one", hint=hint)
        actions = as_actions([(name, *map(_plain, pair)) for name, pair in parsed])
        costs = dict(parsed)
    fixed = _parse_by_action(arguments.fixed_cost, "--fixed-cost", actions, error_costs=error_costs)
    actions = as_actions([replace(action, fixed=fixed.get(action.name, 0.0)) for action in actions])
    capacity = _parse_by_action(arguments.capacity, "--capacity", actions, error_costs=error_costs)
    return DecisionProblem(actions, error_costs, arguments.threshold, capacity, costs if cost_columns(costs) else None)


def _plain(cost: float | str) -> float:
    """Return a cost as a number; that of a column is read later."""
    return 0.0 if isinstance(cost, str) else cost


def _check_error_costs(costs: dict[str, Any], threshold: float | None) -> None:
    if not costs:
        raise ArgumentError("no costs were given", hint=COSTS_HINT)
    for name in ("fn", "fp"):
        if name not in costs:
            raise ArgumentError(f"--cost-{name} is missing", hint=COSTS_HINT)
        hint = "a gain is a negative cost of a correct decision: --cost-tp -50"
        check_number(f"cost_{name}", _plain(costs[name]), 0, hint=hint)
    for name in ("tp", "tn"):
        check_number(f"cost_{name}", _plain(costs.get(name, 0.0)))
    if not any(costs.values()):
        raise ArgumentError("all costs are 0, so there is nothing to decide", hint=COSTS_HINT)
    hint = "--threshold 0.2 acts where the score is 0.2 or more"
    if threshold is not None and 1 < threshold <= 100:
        hint = f"for {threshold:g}% write --threshold {threshold / 100:g}; {hint}"
    check_number("threshold", threshold, 0, 1, optional=True, hint=hint)


def _parse_action(text: str) -> tuple[str, tuple[float | str, float | str]]:
    """Parse NAME:X,Y to an action that costs X on a positive and Y on a negative row: numbers or names of columns."""
    name, _, listed = text.rpartition(":")
    costs = [number_or_name(cost.strip()) for cost in listed.split(",")]
    numbers = [cost for cost in costs if not isinstance(cost, str)]
    if not name.strip() or len(costs) != 2 or "" in costs or not all(map(math.isfinite, numbers)):
        raise ArgumentError(f"--action {text} is not of the form NAME:X,Y", hint=ACTION_HINT)
    return name.strip(), (costs[0], costs[1])


def _parse_by_action(
    texts: Sequence[str] | None, option: str, actions: tuple[Action, ...], *, error_costs: bool
) -> dict[str, float]:
    """Parse texts NAME=N to numbers by action; with ``error_costs``, N alone belongs to the action "act"."""
    parsed: dict[str, float] = {}
    names = [action.name for action in actions]
    for text in texts or ():
        name, separator, value = text.rpartition("=")
        name = name.strip() if separator else ACT if error_costs else ""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in names:
            raise ArgumentError(
                f"{option} {text} names no action",
                hint=f"write {option} {names[-1]}={value or 500}; the actions are {', '.join(names)}",
            )
        if not 0 <= number < math.inf:
            raise ArgumentError(f"{option} {text}: must be a number of at least 0", hint=f"write {option} 500")
        if name in parsed:
            raise ArgumentError(f"{option} is given twice for {name!r}", hint="give it once")
        parsed[name] = number
    return parsed


def describe_problem(problem: DecisionProblem) -> str:
    """Return the costs and capacities as one line."""
    if problem.error_costs:
        passing, acting = problem.actions
        given: dict[str, float | str] = {
            "fn": passing.positive,
            "fp": acting.negative,
            "tp": acting.positive,
            "tn": passing.negative,
        }
        given.update({name: cost for name, cost in (problem.names or {}).items() if isinstance(cost, str)})
        texts = {"fn": "a miss costs", "fp": "a false alarm", "tp": "a true positive", "tn": "a true negative"}
        costs = [f"{texts[name]} {format_cost(cost)}" for name, cost in given.items() if cost or name in ("fn", "fp")]
    else:
        pairs = problem.names or {action.name: (action.positive, action.negative) for action in problem.actions}
        (first, own), *others = pairs.items()
        costs = [f"{first} costs {format_cost(own[0])} on a positive and {format_cost(own[1])} on a negative row"]
        costs += [f"{name} {format_cost(cost[0])} and {format_cost(cost[1])}" for name, cost in others]
    fixed = [
        f"fixed cost of {action_phrase(problem, action.name)} {format_cost(action.fixed)}"
        for action in problem.actions
        if action.fixed
    ]
    limits = [
        f"at most {format_cost(rows)} rows for {action_phrase(problem, name)}" for name, rows in problem.capacity.items()
    ]
    return "; ".join([", ".join(costs), *fixed, *limits])


def action_phrase(problem: DecisionProblem, name: str) -> str:
    """Return an action as a noun: its name, or "acting" or "passing" if the costs are those of errors."""
    if not problem.error_costs:
        return name
    return "acting" if name == ACT else "passing"


def format_cost(value: float | str) -> str:
    """Format a cost: a number, or the name of the column with the cost of each row."""
    return value if isinstance(value, str) else f"{value:,.10g}"


# Columns with costs


def cost_columns(costs: Mapping[str, Any] | None) -> list[str]:
    """Return the columns that costs name, without repetition."""
    values = itertools.chain.from_iterable(v if isinstance(v, tuple) else (v,) for v in (costs or {}).values())
    return list(dict.fromkeys(value for value in values if isinstance(value, str)))


def with_columns(costs: Mapping[str, Any], columns: Mapping[str, FloatArray]) -> dict[str, Any]:
    """Return the costs with arrays for the names of columns."""

    def value(cost: Any) -> Any:
        return columns[cost] if isinstance(cost, str) else cost

    return {name: tuple(map(value, cost)) if isinstance(cost, tuple) else value(cost) for name, cost in costs.items()}


def as_amounts(values: Any) -> FloatArray:
    """Return a column as numbers, NaN where it is empty."""
    return np.ma.filled(np.ma.asarray(values, np.float64), np.nan)


def read_costs(
    costs: Mapping[str, Any], arguments: argparse.Namespace, table: Table, paths: Sequence[str] | None = None
) -> dict[str, Any]:
    """Return the costs with the columns of the rows of ``table``, read from the files ``paths`` or those to decide on."""
    rows = io.InputRows(arguments, paths)
    found = {name: rows.find(name, "cost") for name in cost_columns(costs)}
    data = rows.read(list(found.values()), [])
    columns = {}
    for name, column in found.items():
        try:
            amounts = as_amounts(data[column])
        except (TypeError, ValueError) as error:
            raise ColumnError(f"column {column!r} with costs holds no numbers", hint="convert it to numbers") from error
        amounts = amounts if table.kept is None else amounts[table.kept]
        if not np.isfinite(amounts).all():
            count = int((~np.isfinite(amounts)).sum())
            where = "labelled rows: " if paths is not None else ""
            raise ColumnError(
                f"{where}column {column!r} has no cost in {count:,} rows", hint="fill in the costs, or leave those rows out"
            )
        columns[name] = amounts
    return with_columns(costs, columns)
