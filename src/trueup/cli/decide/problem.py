"""Parse the actions, costs, capacities and threshold of `trueup decide`."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from trueup._validate import check_number
from trueup.decisions.evaluate import ACT, DecisionProblem
from trueup.decisions.rules import Action, as_actions
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

COSTS_HINT = "write --cost-fn 500 --cost-fp 20, the costs of a miss and of a false alarm; or --action NAME:X,Y per action"
ACTION_HINT = "write --action review:40,40: its name, and its costs on a positive and on a negative row"


def parse_problem(arguments: argparse.Namespace) -> DecisionProblem:
    """Parse the decision problem of a command."""
    given = {name: getattr(arguments, f"cost_{name}") for name in ("fn", "fp", "tp", "tn")}
    costs = {name: cost for name, cost in given.items() if cost is not None}
    error_costs = arguments.action is None
    actions: tuple[Action, ...]
    if error_costs:
        _check_error_costs(costs, arguments.threshold)
        actions = as_actions(costs)
    else:
        actions = tuple(map(_parse_action, arguments.action))
        if len(actions) < 2:
            hint = "doing nothing is an action too: --action pass:500,0"
            raise ArgumentError("--action must be given at least twice; got one", hint=hint)
    fixed = _parse_by_action(arguments.fixed_cost, "--fixed-cost", actions, error_costs=error_costs)
    actions = as_actions([replace(action, fixed=fixed.get(action.name, 0.0)) for action in actions])
    capacity = _parse_by_action(arguments.capacity, "--capacity", actions, error_costs=error_costs)
    return DecisionProblem(actions, error_costs, arguments.threshold, capacity)


def _check_error_costs(costs: dict[str, float], threshold: float | None) -> None:
    if not costs:
        raise ArgumentError("no costs were given", hint=COSTS_HINT)
    for name in ("fn", "fp"):
        if name not in costs:
            raise ArgumentError(f"--cost-{name} is missing", hint=COSTS_HINT)
        hint = "a gain is a negative cost of a correct decision: --cost-tp -50"
        check_number(f"cost_{name}", costs[name], 0, hint=hint)
    for name in ("tp", "tn"):
        check_number(f"cost_{name}", costs.get(name), optional=True)
    if not any(costs.values()):
        raise ArgumentError("all costs are 0, so there is nothing to decide", hint=COSTS_HINT)
    hint = "--threshold 0.2 acts where the score is 0.2 or more"
    if threshold is not None and 1 < threshold <= 100:
        hint = f"for {threshold:g}% write --threshold {threshold / 100:g}; {hint}"
    check_number("threshold", threshold, 0, 1, optional=True, hint=hint)


def _parse_action(text: str) -> Action:
    """Parse NAME:X,Y."""
    name, _, costs = text.rpartition(":")
    try:
        positive, negative = map(float, costs.split(","))
    except ValueError:
        positive = negative = math.nan
    if not name.strip() or not (math.isfinite(positive) and math.isfinite(negative)):
        raise ArgumentError(f"--action {text} is not of the form NAME:X,Y", hint=ACTION_HINT)
    return Action(name.strip(), positive, negative)


def _parse_by_action(
    texts: Sequence[str] | None, option: str, actions: tuple[Action, ...], *, error_costs: bool
) -> dict[str, float]:
    """Parse NAME=N per action; with costs of errors, N alone is about acting."""
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
    """Return the costs and limits as one line."""
    if problem.error_costs:
        passing, acting = problem.actions
        costs = [f"a miss costs {_number(passing.positive)}", f"a false alarm {_number(acting.negative)}"]
        costs += [f"a true positive {_number(acting.positive)}"] if acting.positive else []
        costs += [f"a true negative {_number(passing.negative)}"] if passing.negative else []
    else:
        first, *others = problem.actions
        each = f"{_number(first.positive)} on a positive and {_number(first.negative)} on a negative row"
        costs = [f"{first.name} costs {each}"]
        costs += [f"{action.name} {_number(action.positive)} and {_number(action.negative)}" for action in others]
    fixed = [
        f"fixed cost of {action_phrase(problem, action.name)} {_number(action.fixed)}"
        for action in problem.actions
        if action.fixed
    ]
    limits = [f"at most {_number(rows)} rows for {action_phrase(problem, name)}" for name, rows in problem.capacity.items()]
    return "; ".join([", ".join(costs), *fixed, *limits])


def action_phrase(problem: DecisionProblem, name: str) -> str:
    """Return an action as a noun: its name, or what the two actions of error costs do."""
    if not problem.error_costs:
        return name
    return "acting" if name == ACT else "passing"


def _number(value: float) -> str:
    return f"{value:,.10g}"
