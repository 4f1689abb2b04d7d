"""Notations of costs, actions and rules."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup.decisions as td
from trueup.decisions.rules import as_actions, as_rule
from trueup.errors import ArgumentError

ERRORS = {"fn": 5, "fp": 1}


def test_costs_of_errors_are_two_actions():
    assert as_actions({"fn": 5, "fp": 1, "tp": 0.5, "tn": -2}) == (
        td.Action("pass", 5.0, -2.0), td.Action("act", 0.5, 1.0),
    )  # fmt: skip


def test_actions_have_four_notations():
    named = as_actions({"a": (1, 2), "b": (3, 4)})
    assert named == as_actions([("a", 1, 2), ("b", 3, 4)]) == as_actions([td.Action("a", 1, 2), td.Action("b", 3, 4)])
    assert [action.name for action in as_actions([(1, 2), (3, 4)])] == ["action 0", "action 1"]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1))
def test_threshold_belongs_to_the_upper_action(p, threshold):
    rule = as_rule(threshold, as_actions(ERRORS))
    assert rule.action_index(np.array(p)).tolist() == [int(score >= threshold) for score in p]


def test_a_score_of_one_belongs_to_the_last_interval():
    rule = as_rule({"b": (0.3, 1), "a": (0, 0.3)}, as_actions({"a": (1, 2), "b": (3, 4)}))
    assert [rule.actions[at].name for at in rule.action_index(np.array([0.0, 0.3, 1.0]))] == ["a", "b", "b"]
    assert repr(rule) == "<Rule a below 0.3; b from 0.3>"


def test_expected_costs_are_those_of_the_action_at_the_score():
    rule = as_rule([(0, 0.5), (0.5, 0.8), (0.8, 1)], as_actions([(10, 1), (4, 2), (0, 3)]))
    assert rule.expected_costs(np.array([0.2, 0.5, 0.9])).tolist() == pytest.approx([0.2 * 10 + 0.8, 0.5 * 4 + 1, 0.1 * 3])
    assert repr(rule) == "<Rule action 0 below 0.5; action 1 from 0.5 to below 0.8; action 2 from 0.8>"


def test_rule_takes_the_costs_that_are_passed():
    best = td.best_rule([0.1, 0.4, 0.9], ERRORS, fixed_costs={"act": 0.5})
    again = as_rule(best, as_actions({"fn": 50, "fp": 10}))
    assert again.edges == best.rule.edges
    assert [(one.positive, one.negative, one.fixed) for one in again.actions] == [(50, 0, 0), (0, 10, 0.5)]


def test_a_single_action_is_always_taken():
    assert repr(as_rule({"a": (0, 1)}, as_actions({"a": (1, 2)}))) == "<Rule a always>"


@pytest.mark.parametrize(
    ("costs", "message"),
    [
        ({"fn": 5}, "must name both 'fn' and 'fp'"),
        ({"fn": 5, "fp": "much"}, "a cost of 'fp' must be a number .*; got 'much'"),
        ({"fn": 5, "fp": math.inf}, "a cost of 'fp' must be a number"),
        ({"fn": True, "fp": 1}, "a cost of 'fn' must be a number"),
        ({"fn": 5, "fp": 1, "review": (1, 1)}, "action 'fn' needs two costs"),
        ({"grant": 3}, "action 'grant' needs two costs, on a positive and on a negative row; got 3"),
        ({}, "costs has no actions"),
        ([("a", 1, 2), ("a", 2, 3)], "actions must have different names"),
        ([(1, 2, 3, 4)], r"an action is \(name, cost on a positive row, cost on a negative row\)"),
        (5, "costs must be a mapping or a list of actions; got 5"),
        ("fn", "costs must be a mapping or a list of actions"),
    ],
)
def test_invalid_costs_are_rejected(costs, message):
    with pytest.raises(ArgumentError, match=message):
        as_actions(costs)


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        (20, r"must lie in \[0, 1\], as scores do; got 20"),
        (math.nan, r"must lie in \[0, 1\]"),
        (True, "rule must be a threshold, intervals or a Rule; got True"),
        ("0.2", "rule must be a threshold"),
        ({"act": (0, 1), "review": (1, 2)}, "names the action 'review', which has no costs"),
        ({"pass": (0, 0.2), "act": (0.3, 1)}, "must cover 0 to 1 without gaps"),
        ({"pass": (0.1, 0.2), "act": (0.2, 1)}, "must cover 0 to 1 without gaps"),
        ({"pass": (0, 0.2), "act": (0.2, 0.9)}, "must cover 0 to 1 without gaps"),
        ({"pass": (0.5, 0.5), "act": (0.5, 1)}, "must cover 0 to 1"),
        ({}, "without gaps or overlaps; got none"),
        ({"pass": (0, "x"), "act": (0.5, 1)}, "must have numbers as ends; got 'x'"),
        ({"pass": 0.3, "act": (0.3, 1)}, r"action 'pass' needs two ends, \(from, below\); got 0.3"),
        ([(0, 1)], "rule has 1 intervals for 2 actions"),
    ],
)
def test_invalid_rules_are_rejected(rule, message):
    with pytest.raises(ArgumentError, match=message):
        as_rule(rule, as_actions(ERRORS))


def test_threshold_for_three_actions_is_rejected():
    with pytest.raises(ArgumentError, match="a threshold separates two actions; got costs of 3"):
        as_rule(0.5, as_actions([(1, 2), (2, 3), (3, 4)]))


def test_actions_may_be_named_by_numbers():
    costs = as_actions({0: (1, 2), 1: (3, 4)})
    assert repr(as_rule({0: (0, 0.5), 1: (0.5, 1)}, costs)) == "<Rule 0 below 0.5; 1 from 0.5>"


@pytest.mark.parametrize(
    ("edges", "message"),
    [
        ((-math.inf, math.inf), "a rule of 2 actions needs one more edge, ascending"),
        ((0.0, 0.9, 0.1), "needs one more edge, ascending"), ((0.0, math.nan, 1.0), "needs one more edge, ascending"),
        ((0.2, 0.5, 1.0), "must reach from 0 to 1; got 0.2 to 1"), ((0.0, 0.5, 0.9), "must reach from 0 to 1"),
    ],
)  # fmt: skip
def test_rules_with_gaps_are_rejected(edges, message):
    with pytest.raises(ArgumentError, match=message):
        td.Rule(as_actions(ERRORS), edges)
    with pytest.raises(ArgumentError, match="a rule of 0 actions"):
        td.Rule((), (0.0,))


@pytest.mark.parametrize("cost", [1e91, -1e300, 10**400])
def test_huge_costs_are_rejected(cost):
    with pytest.raises(ArgumentError, match=r"a cost of 'fn' must be a number .*; got"):
        as_actions({"fn": cost, "fp": 1})


def test_infinity_never_acts():
    assert as_rule(math.inf, as_actions(ERRORS)).action_index(np.array([0.0, 1.0])).tolist() == [0, 0]


def test_rules_assign_actions_and_realised_costs():
    rule = as_rule([(0, 0.3), (0.3, 1)], as_actions({"wait": (10, 0), "call": (1, 2)}))
    assert rule.apply([0.1, 0.3, 1.0]).tolist() == ["wait", "call", "call"]
    assert rule.realised_cost([1, 0, 1], [0.1, 0.3, 1.0]) == 10 + 2 + 1
    assert rule.realised_cost([1, 0, 1], [0.1, 0.3, 1.0], [2, 1, 0]) == 20 + 2
    best = td.best_rule([0.1, 0.3, 1.0], {"wait": (10, 0), "call": (1, 2)}, fixed_costs={"call": 0.5})
    assert best.apply([0.0, 1.0]).tolist() == ["wait", "call"]
    assert best.rule.realised_cost([0, 1], [0.0, 1.0]) == 0 + 1 + 0.5


def test_upper_case_error_names_are_explained():
    with pytest.raises(ArgumentError, match="named in lower case; got FN, FP"):
        as_actions({"FN": 5, "FP": 1})
