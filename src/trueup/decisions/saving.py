"""What one rule saves against another."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.decisions.costs import expected_cost
from trueup.decisions.rules import Action, Rule, as_actions, as_rule

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup.decisions.costs import ExpectedCost
    from trueup.decisions.inputs import Target


def expected_saving(
    p: ArrayLike, costs: Any, rule: Any, baseline: Any, labelled: Any = None, *,
    level: float = 0.9, target: Target = "rows", weight: ArrayLike | None = None, segments: Any = None,
    tuned: bool = False,
) -> ExpectedCost:  # fmt: skip
    """Say what a rule saves on rows without labels against another, with an interval.

    Parameters
    ----------
    p, costs, labelled, level, target, weight, segments, tuned
        As for `expected_cost`.
    rule, baseline : float, mapping, list, Rule or BestRule
        The rule to be judged, and the one that would be followed otherwise. Above 0, the first is cheaper.

    Notes
    -----
    The difference of two costs is a cost: that of a rule whose actions cost the difference. Its interval is much narrower
    than the two taken apart, since where both rules do the same nothing is in doubt.

    Examples
    --------
    >>> round(expected_saving([0.1, 0.3, 0.9], {"fn": 5, "fp": 1}, 0.2, 0.5).estimate, 9)    # 0.3: 5 x .3 less .7
    0.8
    """
    actions = as_actions(costs)
    found = difference(as_rule(rule, actions), as_rule(baseline, actions))
    return expected_cost(
        p,
        list(found.actions),
        found,
        labelled,
        level=level,
        target=target,
        weight=weight,
        segments=segments,
        tuned=tuned,
    )


def difference(rule: Rule, baseline: Rule) -> Rule:
    """Give the rule whose cost is what ``baseline`` costs more."""
    edges = sorted({*rule.edges, *baseline.edges})
    ours, theirs = ([of.actions[at] for at in of.action_index(np.array(edges[:-1]))] for of in (rule, baseline))
    actions = [
        Action(f"{our.name} for {their.name}" if our != their else our.name, their.positive - our.positive,
               their.negative - our.negative)
        for our, their in zip(ours, theirs, strict=True)
    ]  # fmt: skip
    named = [replace(one, name=f"{one.name} ({at})") for at, one in enumerate(actions)]
    named[0] = replace(named[0], fixed=baseline.fixed - rule.fixed)
    return Rule(tuple(named), tuple(edges))
