"""What can be done with a row and what it costs, as it is written on a command line."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING, NamedTuple

from trueup.decisions.rules import Action, as_actions
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

ACT = "act"  # as `as_actions` calls it, where costs are those of errors
COSTS = "write --cost-fn 500 --cost-fp 20, what a miss and a false alarm cost; or --action NAME:X,Y for each action"
ACTION = "write --action review:40,40, its name and what it costs on a positive and on a negative row"


class Question(NamedTuple):
    """What can be done, at what cost, and under which limits.

    ``of_errors`` where costs are those of errors: the actions are then "pass" and "act".
    """

    actions: tuple[Action, ...]
    of_errors: bool
    threshold: float | None
    capacity: dict[str, float]

    def fits(self, taken: dict[str, float]) -> bool:
        """Say whether no action takes more rows than it may; sums of weights are rounded."""
        return all(taken.get(name, 0.0) <= most * (1 + 1e-9) for name, most in self.capacity.items())

    def told(self) -> str:
        """Say the costs and limits again."""
        if self.of_errors:
            leave, act = self.actions
            words = [f"a miss costs {_plain(leave.positive)}", f"a false alarm {_plain(act.negative)}"]
            words += [f"a hit {_plain(act.positive)}"] if act.positive else []
            words += [f"a negative row passed over {_plain(leave.negative)}"] if leave.negative else []
        else:
            first, *more = self.actions
            each = f"{_plain(first.positive)} on a positive and {_plain(first.negative)} on a negative row"
            words = [f"{first.name} costs {each}"]
            words += [f"{one.name} {_plain(one.positive)} and {_plain(one.negative)}" for one in more]
        once = [f"{self._named(one.name)} at all costs {_plain(one.fixed)}, once" for one in self.actions if one.fixed]
        does = {ACT: "acts on"}.get
        most = [
            f"{does(name, 'passes over') if self.of_errors else f'{name} takes'} at most {_plain(rows)} rows"
            for name, rows in self.capacity.items()
        ]
        return "; ".join([", ".join(words), *once, *(f"the rule {one}" if self.of_errors else one for one in most)])

    def _named(self, name: str) -> str:
        return {ACT: "acting"}.get(name, "passing over") if self.of_errors else name


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def worthless(actions: Sequence[Action]) -> list[str]:
    """Name the actions that are the cheapest at no score, capacities and start-up costs aside.

    Examples
    --------
    >>> worthless([Action("pass", 5, 0), Action("review", 3, 3), Action("block", 0, 1)])
    ['review']
    """
    crossings = {
        (other.negative - one.negative) / (one.difference - other.difference)
        for one in actions
        for other in actions
        if one.difference != other.difference
    }
    ends = sorted({0.0, 1.0, *(at for at in crossings if 0 < at < 1)})
    useful = set()
    for low, high in pairwise(ends):  # between two crossings the order of the costs stays
        middle = (low + high) / 2
        costs = [one.negative + one.difference * middle for one in actions]
        useful |= {one.name for one, cost in zip(actions, costs, strict=True) if cost == min(costs)}
    return [one.name for one in actions if one.name not in useful]


def read_question(arguments: argparse.Namespace) -> Question:
    """Read what can be done and what it costs."""
    given = {name: getattr(arguments, f"cost_{name}") for name in ("fn", "fp", "tp", "tn")}
    named = {name: cost for name, cost in given.items() if cost is not None}
    if arguments.action is not None:
        if named:
            raise ArgumentError(
                f"--action and --cost-{next(iter(named))} exclude each other", hint="name every action by --action"
            )
        if arguments.threshold is not None:
            raise ArgumentError(
                "--threshold goes with --cost-fn and --cost-fp", hint="leave it out: the best rule is found"
            )
        actions = tuple(map(_action, arguments.action))
        if len(actions) < 2:
            raise ArgumentError(
                "one action leaves nothing to decide", hint="doing nothing is one, too: --action pass:500,0"
            )
    else:
        _check_errors(named)
        _check_threshold(arguments.threshold)
        actions = as_actions(named)
    of_errors = arguments.action is None
    fixed = _by_action(arguments.fixed_cost, "--fixed-cost", actions, of_errors=of_errors)
    actions = as_actions([replace(action, fixed=fixed.get(action.name, 0.0)) for action in actions])
    capacity = _by_action(arguments.capacity, "--capacity", actions, of_errors=of_errors)
    return Question(actions, of_errors, arguments.threshold, capacity)


def _check_errors(costs: dict[str, float]) -> None:
    if not costs:
        raise ArgumentError("no costs were given", hint=COSTS)
    for name in ("fn", "fp"):
        if name not in costs:
            raise ArgumentError(f"--cost-{name} is missing", hint=COSTS)
        if costs[name] < 0:
            raise ArgumentError(
                f"--cost-{name} is what an error costs, and cannot be below 0; got {costs[name]:g}",
                hint="a gain is a cost below 0 of what is right: --cost-tp -50",
            )
    if not any(costs.values()):
        raise ArgumentError("all costs are 0: there is nothing to decide", hint=COSTS)


def _check_threshold(threshold: float | None) -> None:
    if threshold is not None and not 0 <= threshold <= 1:
        percent = f"for {threshold:g}% write --threshold {threshold / 100:g}; " if 1 < threshold <= 100 else ""
        raise ArgumentError(
            f"--threshold must lie in [0, 1], as scores do; got {threshold:g}",
            hint=f"{percent}--threshold 0.2 acts where the score is 0.2 or more",
        )


def _action(text: str) -> Action:
    """Read an action.

    Examples
    --------
    >>> _action("grant:100,-10")
    Action(name='grant', positive=100.0, negative=-10.0, fixed=0.0)
    """
    name, _, costs = text.rpartition(":")
    try:
        positive, negative = map(float, costs.split(","))
    except ValueError:
        positive = negative = math.nan
    if not name.strip() or not (math.isfinite(positive) and math.isfinite(negative)):
        raise ArgumentError(f"--action does not understand {text!r}", hint=ACTION)
    return Action(name.strip(), positive, negative)


def _by_action(
    given: Sequence[str] | None, option: str, actions: tuple[Action, ...], *, of_errors: bool
) -> dict[str, float]:
    """Read numbers of actions: NAME=N, or N alone where it is about acting."""
    found: dict[str, float] = {}
    names = [action.name for action in actions]
    for text in given or ():
        name, told, value = text.rpartition("=")
        name = name.strip() if told else ACT if of_errors else ""
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        if name not in names:
            raise ArgumentError(
                f"{option} {text} names no action",
                hint=f"write {option} {names[-1]}={value or 500}; actions: {', '.join(names)}",
            )
        if not 0 <= number < math.inf:
            raise ArgumentError(f"{option} {text}: a number that is not negative is needed", hint=f"write {option} 500")
        if name in found:
            raise ArgumentError(f"{option} is given twice for {name!r}", hint="give it once")
        found[name] = number
    return found
