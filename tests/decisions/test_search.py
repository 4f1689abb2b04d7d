"""The search for the cheapest rule is exact."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup.decisions as td
from trueup.errors import ArgumentError, DataError


def by_trying_all(p, w, actions, fixed, capacity):
    """Return the lowest cost over all rules that give each action one score interval."""
    scores, least = np.unique(p), math.inf
    for given_to in itertools.product(range(len(actions)), repeat=len(scores)):
        runs = [j for j, _ in itertools.groupby(given_to)]
        if len(set(runs)) < len(runs):
            continue
        total = 0.0
        for j in runs:
            rows = np.isin(p, scores[[at for at, one in enumerate(given_to) if one == j]])
            if w[rows].sum() > capacity[j] + 1e-9:
                break
            _, positive, negative = actions[j]
            total += fixed[j] + float(np.sum(w[rows] * (positive * p[rows] + negative * (1 - p[rows]))))
        else:
            least = min(least, total)
    return least


@st.composite
def problems(draw):
    n = draw(st.integers(1, 6))
    p = np.array(draw(st.lists(st.sampled_from([0.0, 0.1, 0.2, 0.35, 0.5, 0.8, 1.0]), min_size=n, max_size=n)))
    w = np.array(draw(st.lists(st.sampled_from([0.5, 1.0, 2.0, 3.0]), min_size=n, max_size=n)))
    cost = st.integers(-3, 9).map(float)
    actions = [(f"a{j}", draw(cost), draw(cost)) for j in range(draw(st.integers(1, 3)))]
    fixed = [draw(st.sampled_from([0.0, 0.0, 2.0, 5.0])) for _ in actions]
    capacity = [draw(st.sampled_from([math.inf, math.inf, 3.0, 6.0])) for _ in actions]
    return p, w, actions, fixed, capacity


@given(problems())
def test_best_rule_is_the_cheapest_of_all_rules(problem):
    p, w, actions, fixed, room = problem
    least = by_trying_all(p, w, actions, fixed, room)
    names = [name for name, _, _ in actions]
    arguments = {"fixed_costs": dict(zip(names, fixed, strict=True)), "capacity": dict(zip(names, room, strict=True))}
    if math.isinf(least):
        with pytest.raises(ArgumentError, match="no rule gives every row an action"):
            td.best_rule(p, actions, weight=w, **arguments)
        return
    best = td.best_rule(p, actions, weight=w, **arguments)
    assert best.estimate == pytest.approx(least, abs=1e-9)
    # The returned rule has the returned cost on these rows, and respects the capacities.
    taken = np.bincount(best.rule.action_index(p), w, len(best.rule.actions))
    assert float(w @ best.rule.expected_costs(p)) + best.rule.fixed == pytest.approx(least, abs=1e-9)
    assert all(taken[at] <= arguments["capacity"][one.name] + 1e-9 for at, one in enumerate(best.rule.actions))
    assert [share.rows for share in best.shares] == pytest.approx(taken.tolist())
    for points in best.curves.values():
        assert min(cost for _, cost in points) == pytest.approx(least, abs=1e-9)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60), st.floats(0, 10), st.floats(0, 10))
def test_two_actions_are_separated_where_costs_are_equal(p, fn, fp):
    best = td.best_rule(p, {"fn": fn, "fp": fp})
    assert best.estimate == pytest.approx(sum(min(fn * f, fp * (1 - f)) for f in p), abs=1e-9)


def test_worked_example():
    # Passing the two lower costs 5 x (.1 + .15), acting on the others .7 + .1; from 1/6 on it is cheaper to act.
    best = td.best_rule([0.9, 0.1, 0.3, 0.15], {"fn": 5, "fp": 1})
    assert best.estimate == pytest.approx(1.25 + 0.8)
    assert best.threshold == pytest.approx(1 / 6)
    assert best.shares == (td.Share("pass", 2.0, 0.25, 1.25), td.Share("act", 2.0, 1.2, pytest.approx(0.8)))
    assert best.uniform_costs == {"pass": pytest.approx(5 * 1.45), "act": pytest.approx(4 - 1.45)}
    assert dict(best.curve) == pytest.approx({0.1: 2.55, 0.15: 2.15, 0.3: 2.05, 0.9: 2.85, math.inf: 7.25})


def test_curve_contains_thresholds_within_capacity_only():
    best = td.best_rule([0.1, 0.15, 0.3, 0.9], {"fn": 5, "fp": 1}, capacity={"act": 1})
    assert [at for at, _ in best.curve] == [0.9, math.inf]
    assert best.threshold == 0.9


def test_actions_must_earn_their_fixed_cost():
    # Acting on the best row saves 5 x .9 - .1 = 4.4.
    costs = {"fn": 5, "fp": 1}
    assert td.best_rule([0.9, 0.01], costs, fixed_costs={"act": 4.3}).rule.actions[-1].name == "act"
    separate = td.best_rule([0.9, 0.01], costs, fixed_costs={"act": 4.5})
    assert [action.name for action in separate.rule.actions] == ["pass"]
    assert separate.estimate == pytest.approx(5 * 0.91)
    assert math.isnan(separate.threshold)
    assert min(separate.curve, key=lambda point: point[1]) == (math.inf, pytest.approx(5 * 0.91))


def test_three_actions_take_the_lower_envelope():
    costs = {"grant": (100, -10), "review": (30, 2), "refuse": (0, 0)}
    p = np.linspace(0, 1, 401)
    best = td.best_rule(p, costs)
    each = np.array([[a * f + b * (1 - f) for a, b in costs.values()] for f in p])
    assert best.estimate == pytest.approx(each.min(axis=1).sum())
    assert [action.name for action in best.rule.actions] == ["grant", "refuse"]  # review is never cheapest
    cheap = td.best_rule(p, costs | {"review": (5, -4)})
    assert [action.name for action in cheap.rule.actions] == ["grant", "review", "refuse"]
    assert set(cheap.curves) == {"grant | review", "review | refuse"}
    assert cheap.curve == ()


def test_weight_two_equals_duplicated_rows():
    p = np.array([0.1, 0.2, 0.2, 0.6, 0.9])
    w = np.array([1.0, 2.0, 1.0, 3.0, 1.0])
    costs = {"a": (5, 0), "b": (2, 0.7), "c": (0, 1)}
    arguments = {"capacity": {"b": 3, "c": 4}, "fixed_costs": {"b": 0.2}}
    one, other = (
        td.best_rule(p, costs, weight=w, **arguments),
        td.best_rule(np.repeat(p, w.astype(int)), costs, **arguments),
    )
    assert one.estimate == pytest.approx(other.estimate)
    assert one.rule == other.rule


@pytest.mark.parametrize("arguments", [{}, {"capacity": {"b": 30, "c": 40}}, {"fixed_costs": {"b": 0.2}}])
def test_row_order_changes_no_bit(arguments):
    random = np.random.default_rng(1)
    p, w, order = np.round(random.random(300), 1), random.random(300), random.permutation(300)
    costs = {"a": (5, 0), "b": (2, 0.7), "c": (0, 1)}
    one, other = td.best_rule(p, costs, weight=w, **arguments), td.best_rule(p[order], costs, weight=w[order], **arguments)
    assert one.to_dict() == other.to_dict()


def test_capacities_tolerate_rounding_of_weights():
    best = td.best_rule(np.repeat([0.2, 0.9], 10), {"fn": 5, "fp": 1}, weight=np.full(20, 0.1), capacity={"act": 1})
    assert best.shares[-1].rows == pytest.approx(1.0)
    three = td.best_rule([0.2, 0.9, 0.9, 0.9], {"fn": 5, "fp": 1}, weight=[1, 0.1, 0.1, 0.1], capacity={"act": 0.3})
    assert three.shares[-1].action == "act"
    assert three.shares[-1].rows > 0.3  # by rounding alone


def test_curve_exists_if_only_one_action_is_used():
    costs = {"fn": 5, "fp": 1}
    acted, passed = td.best_rule([0.5, 0.9], costs), td.best_rule([0.01, 0.02], costs)
    assert acted.curve == ((0.5, pytest.approx(0.6)), (0.9, pytest.approx(2.6)), (math.inf, pytest.approx(7)))
    assert passed.curve == ((0.01, pytest.approx(1.97)), (0.02, pytest.approx(1.03)), (math.inf, pytest.approx(0.15)))
    many = np.linspace(0.5, 0.9, 2000)  # all thresholds near the best are shown, and some everywhere
    assert [at for at, _ in td.best_rule(many, costs).curve[:50]] == many[:50].tolist()


def test_uniform_costs_include_fixed_costs():
    best = td.best_rule([0.5, 0.9], {"fn": 5, "fp": 1}, fixed_costs={"act": 2})
    assert best.uniform_costs == {"pass": pytest.approx(7), "act": pytest.approx(2.6)}


def test_result_converts_to_json():
    plain = json.loads(json.dumps(td.best_rule([0.1, 0.4], {"fn": 5, "fp": 1}).to_dict(), allow_nan=False))
    assert plain["rule"]["actions"][0] == {
        "name": "pass", "positive": 5.0, "negative": 0.0, "fixed": 0.0, "from": None, "below": pytest.approx(1 / 6),
    }  # fmt: skip
    assert plain["curves"]["pass | act"][-1]["threshold"] is None


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"capacity": {"review": 5}}, "capacity names the action 'review', which has no costs"),
        ({"capacity": {"act": -1}}, "capacity of 'act' must be a number at least 0; got -1"),
        ({"capacity": {"act": math.nan}}, "at least 0; got nan"),
        ({"capacity": 500}, "capacity must be a mapping of actions; got 500"),
        ({"fixed_costs": {"act": "free"}}, "fixed_costs of 'act' must be a number"),
        ({"fixed_costs": {"act": math.inf}}, "fixed_costs of 'act' must be a number"),
        ({"capacity": {"act": 1, "pass": 1}}, "capacity allows 2 of 3 rows"),
    ],
)
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        td.best_rule([0.1, 0.5, 0.9], {"fn": 5, "fp": 1}, **arguments)


def test_too_many_actions_with_a_capacity_are_rejected():
    costs = {f"a{j}": (j, 20 - j) for j in range(20)}
    with pytest.raises(ArgumentError, match="too much memory"):
        td.best_rule(np.linspace(0, 1, 1000), costs, capacity={"a3": 5})
    assert td.best_rule(np.linspace(0, 1, 1000), costs).estimate > 0


@pytest.mark.parametrize("fixed", [0.0, 1e-9])
def test_hundreds_of_actions_are_supported(fixed):
    # Action j costs (1 - j/299)^2 on positives and (j/299)^2 on negatives: at a score f, that near f is cheapest.
    p, share = np.linspace(0, 1, 2001), np.linspace(0, 1, 300)
    costs = {f"a{j}": ((1 - at) ** 2, at**2) for j, at in enumerate(share)}
    least = np.min(np.outer(p, (1 - share) ** 2) + np.outer(1 - p, share**2), axis=1).sum()
    best = td.best_rule(p, costs, fixed_costs={"a0": fixed})
    assert best.estimate == pytest.approx(least, abs=1e-6)
    assert len(best.rule.actions) == 300


def test_equally_expensive_actions_are_not_separated():
    p = np.random.default_rng(0).random(1000)
    best = td.best_rule(p, {"a": (0.1, 0.7), "b": (0.1, 0.7)})
    assert len(best.rule.actions) == 1


def test_ties_go_to_the_upper_action():
    best = td.best_rule([0.25, 0.5, 0.75], {"fn": 1, "fp": 1})
    assert best.threshold == 0.5
    assert [share.rows for share in best.shares] == [1.0, 2.0]


def test_numeric_action_names_can_have_capacities():
    best = td.best_rule([0.1, 0.5, 0.9], {0: (5, 0), 1: (0, 1)}, capacity={1: 1}, fixed_costs={1: 0.5})
    assert [(share.action, share.rows) for share in best.shares] == [("0", 2.0), ("1", 1.0)]
    assert best.rule.fixed == 0.5


def test_invalid_scores_are_rejected():
    with pytest.raises(DataError, match=r"p must lie in \[0, 1\]; got 1.2"):
        td.best_rule([0.1, 1.2], {"fn": 5, "fp": 1})


def test_over_capacity_names_the_limited_actions():
    assert td.best_rule([0.1, 0.5, 0.9], {"fn": 5, "fp": 1}).over_capacity == ()
    best = td.best_rule([0.1, 0.5, 0.9], {"fn": 5, "fp": 1}, capacity={"act": 2})
    assert best.over_capacity == ("act",)
    assert best.to_dict()["over_capacity"] == ["act"]
