"""Costs that differ by row, costs of several classes, and the rule that takes the cheapest action of each row."""

from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest

import trueup.decisions as td
from trueup.errors import ArgumentError, DataError
from trueup.metrics import decision_error, region_error
from twins import three_se

CLASSES = {"treat": [0, 2, 9], "test": [1, 1.5, 3], "wait": [5, 1, 0]}


def simulate(rows, seed=0, shift=0.0):
    """Draw scores, outcomes of probability p + shift, and exposures that grow with the score."""
    random = np.random.default_rng(seed)
    p = random.beta(2, 6, rows)
    loss = np.exp(random.normal(3 * p, 0.7))
    return p, (random.random(rows) < np.clip(p + shift, 0, 1)).astype(float), loss


def simulate_classes(rows, seed=0, mix=0.0):
    """Draw probabilities of three classes, and classes from them, mixed with the uniform distribution."""
    random = np.random.default_rng(seed)
    p = random.dirichlet([1, 1, 1], rows)
    draws = np.cumsum((1 - mix) * p + mix / 3, axis=1)
    return p, (random.random((rows, 1)) > draws).sum(axis=1)


# Costs by row


def test_estimate_and_noise_of_costs_by_row_worked_by_hand():
    # Passed: .1 of a loss of 5. Acted on: .3 and .9 of losses 20 and 2, at a cost of 1 and 2 per false alarm.
    costs = {"fn": [5, 20, 2], "fp": [1, 1, 2]}
    result = td.expected_cost([0.1, 0.3, 0.9], costs, threshold=0.2)
    assert result.estimate == pytest.approx(0.1 * 5 + 0.7 * 1 + 0.1 * 2)
    noise = math.sqrt(25 * 0.09 + 0.21 + 4 * 0.09)
    assert result.half_widths["label noise"] == pytest.approx(td.evidence.quantile(0.05) * noise)
    assert (result.low, result.high) == (0.0, pytest.approx(result.estimate + result.half_widths["label noise"]))
    assert [share.action for share in result.shares] == ["pass", "act"]
    assert result.shares[1].cost == pytest.approx(0.9)


def test_constant_arrays_equal_numbers():
    p, y, _ = simulate(150)
    for target in ("rows", "population"):
        plain = td.expected_cost(p, {"fn": 5, "fp": 1}, 0.2, (y, p), target=target)
        costs = {"fn": np.full(150, 5.0), "fp": 1}
        by_row = td.expected_cost(p, costs, 0.2, td.Labelled(y, p, costs=costs), target=target)
        assert by_row.estimate == pytest.approx(plain.estimate)
        assert by_row.correction == pytest.approx(plain.correction)
        assert 0.7 < by_row.half_widths["calibration"] / plain.half_widths["calibration"] < 1.02
        assert by_row.high <= plain.high


def test_correction_and_half_widths_are_those_of_weighted_outcomes():
    p, y, loss = simulate(120, shift=0.1)
    known, new = slice(70), slice(70, None)
    labelled = td.Labelled(y[known], p[known], costs={"fn": loss[known], "fp": 2.0})
    found = td.expected_cost(p[new], {"fn": loss[new], "fp": 2.0}, threshold=0.3, labelled=labelled)
    acts = p >= 0.3
    # Acting costs 2 z, z = 1 - y; passing costs the loss times z = y.
    s, q, z = np.where(acts, 2.0, loss), np.where(acts, 1 - p, p), np.where(acts, 1 - y, y)
    share = s[known] / s[known].sum()
    correction = s[new].sum() * (share * (z - q)[known]).sum()
    assert found.correction == pytest.approx(correction)
    assert found.estimate == pytest.approx((s * q)[new].sum() + correction)
    squares, expected = ((z - q) ** 2)[known], (q * (1 - q))[known]
    bounded = (math.sqrt(squares.sum() + math.log(100) / 2) + math.sqrt(math.log(100) / 2)) ** 2
    ratio = max(bounded / expected.sum(), (share**2 @ squares) / (share**2 @ expected))
    z90 = td.evidence.quantile(0.05)
    noise = math.sqrt(ratio * (s**2 * q * (1 - q))[new].sum())
    assert found.half_widths["label noise"] == pytest.approx(z90 * noise)
    error = s[new].sum() * math.sqrt(ratio * (share**2 @ expected))
    assert found.half_widths["calibration"] == pytest.approx(z90 * error)
    assert found.high == pytest.approx(min(found.estimate + z90 * math.hypot(noise, error), s[new].sum()))


def test_weights_and_copies_of_rows_agree_and_rows_without_weight_are_dropped():
    p, _, loss = simulate(60)
    w = np.random.default_rng(1).integers(0, 3, 60)
    copies = np.repeat(np.arange(60), w)
    weighted = td.expected_cost(p, {"fn": loss, "fp": 1}, "cheapest", weight=w)
    copied = td.expected_cost(p[copies], {"fn": loss[copies], "fp": 1}, "cheapest")
    assert weighted.estimate == pytest.approx(copied.estimate)
    assert weighted.rows == copied.rows


@pytest.mark.repeated(60, 400)
@pytest.mark.parametrize("target", ["rows", "population"])
@pytest.mark.parametrize("rule", [0.2, "cheapest"])
def test_intervals_of_costs_by_row_cover(repetitions, target, rule):
    everyone, outcomes, losses = simulate(200_000, seed=99, shift=0.05)
    costs = {"fn": losses, "fp": 2.0}
    d = td.expected_cost(everyone, costs, rule).rule
    acts = everyone >= rule if rule != "cheapest" else d.apply(everyone, costs) == "act"
    truth = np.where(acts, 2.0 * (1 - outcomes), losses * outcomes).mean()
    covered = 0
    for seed in range(repetitions):
        p, y, loss = simulate(1500, seed=seed, shift=0.05)
        known, new = slice(1000), slice(1000, None)
        labelled = td.Labelled(y[known], p[known], costs={"fn": loss[known], "fp": 2.0})
        result = td.expected_cost(p[new], {"fn": loss[new], "fp": 2.0}, rule, labelled, target=target)
        if target == "rows":
            acts = p >= rule if rule != "cheapest" else loss * p >= 2 * (1 - p)
            truth = np.where(acts, 2.0 * (1 - y), loss * y)[new].sum()
        covered += result.low <= truth <= result.high
    assert covered / repetitions >= 0.9 - three_se(0.9, repetitions)


def test_amounts_of_twice_the_size_have_twice_the_correction():
    p, y, loss = simulate(500, shift=0.1)
    labelled = td.Labelled(y, p, costs={"fn": loss, "fp": 1.0})
    one = td.expected_cost(p, {"fn": loss, "fp": 1.0}, "cheapest", labelled)
    two = td.expected_cost(p, {"fn": 2 * loss, "fp": 2.0}, "cheapest", labelled)
    assert two.correction == pytest.approx(2 * one.correction)
    assert two.estimate == pytest.approx(2 * one.estimate)


def test_segments_are_corrected_by_their_own_rows_and_add_up():
    p, y, loss = simulate(1200, shift=0.05)
    segments = np.array(["a", "b"])[np.arange(1200) % 2]
    y[segments == "b"] = 0.0
    labelled = td.Labelled(y, p, segments=segments, costs={"fn": loss, "fp": 1.0})
    result = td.expected_cost(p, {"fn": loss, "fp": 1.0}, "cheapest", labelled, segments=segments)
    parts = result.by_segment
    assert sum(part.estimate for part in parts.values()) == pytest.approx(result.estimate)
    alone = td.expected_cost(
        p[segments == "a"],
        {"fn": loss[segments == "a"], "fp": 1.0},
        "cheapest",
        td.Labelled(y[segments == "a"], p[segments == "a"], costs={"fn": loss[segments == "a"], "fp": 1.0}),
    )
    assert parts["a"].estimate == pytest.approx(alone.estimate)
    assert parts["b"].correction < 0 < parts["a"].correction


def test_savings_are_differences_of_costs():
    p, y, loss = simulate(400)
    costs = {"fn": loss, "fp": 2.0}
    labelled = td.Labelled(y, p, costs=costs)
    saving = td.expected_saving(p, costs, "cheapest", 0.4, labelled)
    first, second = (td.expected_cost(p, costs, rule, labelled) for rule in ("cheapest", 0.4))
    assert saving.estimate == pytest.approx(second.estimate - first.estimate, abs=0.05 * second.estimate)
    uncorrected = td.expected_saving(p, costs, "cheapest", 0.4)
    assert uncorrected.estimate >= 0
    assert uncorrected.high - uncorrected.low < second.high - second.low


def test_actions_by_name_may_have_costs_by_row():
    margin = np.array([10.0, 20.0, 30.0])
    costs = {"grant": (500, -margin), "refuse": (0, 0)}
    best = td.best_rule([0.01, 0.05, 0.02], costs)
    assert best.apply([0.01, 0.05, 0.02], costs).tolist() == ["grant", "refuse", "grant"]
    assert best.estimate == pytest.approx(5 - 9.9 + 10 - 29.4)
    assert best.estimate == pytest.approx(td.expected_cost([0.01, 0.05, 0.02], costs, best).estimate)


# The cheapest action of each row


def cheapest_assignment(expected, fixed, capacity):
    """Return the lowest total cost over all assignments of rows to actions."""
    rows, best = expected.shape[1], math.inf
    for actions in itertools.product(range(len(expected)), repeat=rows):
        used = np.bincount(actions, minlength=len(expected))
        if (used <= capacity).all():
            best = min(best, expected[list(actions), range(rows)].sum() + fixed[used > 0].sum())
    return best


@pytest.mark.parametrize("seed", range(12))
def test_best_rule_by_row_is_the_cheapest_assignment(seed):
    random = np.random.default_rng(seed)
    p, capacity = random.random(6), np.array([math.inf, 2, 1 + seed % 3])
    fixed = random.random(3) * (seed % 2) * 3
    table = {name: (random.random(6) * 10, random.random(6) * 5) for name in "abc"}
    best = td.best_rule(p, table, fixed_costs=dict(zip("abc", fixed, strict=True)), capacity={"b": 2, "c": 1 + seed % 3})
    expected = np.array([positive * p + negative * (1 - p) for positive, negative in table.values()])
    assert best.estimate == pytest.approx(cheapest_assignment(expected, fixed, capacity))
    assert best.estimate == pytest.approx(td.expected_cost(p, table, best).estimate)
    assert {share.action: share.rows for share in best.shares}.get("b", 0) <= 2


@pytest.mark.parametrize("seed", range(6))
def test_best_rule_of_classes_is_the_cheapest_assignment(seed):
    p, _ = simulate_classes(6, seed)
    best = td.best_rule(p, CLASSES, capacity={"treat": 1, "wait": 2}, fixed_costs={"test": 2 * (seed % 2)})
    expected = np.array([p @ cost for cost in CLASSES.values()])
    least = cheapest_assignment(expected, np.array([0, 2 * (seed % 2), 0]), np.array([1, math.inf, 2]))
    assert best.estimate == pytest.approx(least)
    assert td.expected_cost(p, CLASSES, best).estimate == pytest.approx(least)


def test_without_limits_each_row_gets_its_bayes_action():
    p, _ = simulate_classes(200)
    best = td.best_rule(p, CLASSES)
    matrix = np.column_stack(list(CLASSES.values()))
    assert best.apply(p).tolist() == [list(CLASSES)[j] for j in np.argmin(p @ matrix, axis=1)]
    assert best.estimate == pytest.approx((p @ matrix).min(axis=1).sum())
    assert best.uniform_costs["wait"] == pytest.approx((p @ matrix)[:, 2].sum())
    unnamed = td.best_rule(p, matrix)
    assert unnamed.estimate == pytest.approx(best.estimate)
    assert unnamed.rule.actions == ("action 0", "action 1", "action 2")
    assert math.isnan(best.threshold)
    json.dumps(best.to_dict(), allow_nan=False)


def test_one_threshold_for_all_rows_costs_at_least_as_much_as_rows_one_by_one():
    p, _, loss = simulate(12)
    costs = {"fn": loss, "fp": 2.0}
    by_score, by_row = td.best_rule(p, costs, by="score"), td.best_rule(p, costs)
    candidates = [*np.unique(p), math.inf]
    totals = [np.where(p >= t, 2 * (1 - p), loss * p).sum() for t in candidates]
    reverse = [np.where(p < t, 2 * (1 - p), loss * p).sum() for t in candidates]
    assert by_score.estimate == pytest.approx(min(totals + reverse))
    assert by_score.estimate >= by_row.estimate - 1e-9
    assert by_score.estimate == pytest.approx(td.expected_cost(p, costs, by_score).estimate)


# Several classes


def test_cost_of_classes_worked_by_hand():
    p = [[0.7, 0.2, 0.1], [0.2, 0.2, 0.6]]
    result = td.expected_cost(p, CLASSES)
    # treat: .4 + .9 = 1.3 and test: .7 + .3 + .3 = 1.3, of equal ones the last; wait: 1 + .2 = 1.2.
    assert result.rule.apply(p).tolist() == ["test", "wait"]
    assert result.estimate == pytest.approx(1.3 + 1.2)
    variance = (0.7 + 0.2 * 2.25 + 0.1 * 9 - 1.3**2) + (0.2 * 25 + 0.2 - 1.2**2)
    assert result.half_widths["label noise"] == pytest.approx(td.evidence.quantile(0.05) * math.sqrt(variance))
    assert (result.low, result.high) == (1.0, pytest.approx(min(3 + 5, 2.5 + result.half_widths["label noise"])))


def test_two_classes_equal_one_score():
    p, y, _ = simulate(150)
    both = np.column_stack([1 - p, p])
    one = td.expected_cost(p, {"fn": 5, "fp": 1}, 1 / 6, (y, p))
    two = td.expected_cost(both, {"pass": [0, 5], "act": [1, 0]}, labelled=(y.astype(int), both))
    assert two.estimate == pytest.approx(one.estimate)
    assert two.correction == pytest.approx(one.correction)
    assert all(0.7 < two.half_widths[name] / one.half_widths[name] < 1.02 for name in one.half_widths)


@pytest.mark.repeated(80, 400)
@pytest.mark.parametrize("target", ["rows", "population"])
def test_intervals_of_classes_cover(repetitions, target):
    matrix = np.column_stack(list(CLASSES.values()))
    everyone, labels = simulate_classes(200_000, seed=99, mix=0.2)
    truth = matrix[labels, np.argmin(everyone @ matrix, axis=1)].mean()
    covered = without = 0
    for seed in range(repetitions):
        p, y = simulate_classes(1500, seed=seed, mix=0.2)
        known, new = slice(1000), slice(1000, None)
        result = td.expected_cost(p[new], CLASSES, labelled=(y[known], p[known]), target=target)
        blind = td.expected_cost(p[new], CLASSES, target=target)
        if target == "rows":
            truth = matrix[y, np.argmin(p @ matrix, axis=1)][new].sum()
        covered += result.low <= truth <= result.high
        without += blind.low <= truth <= blind.high
    assert covered / repetitions >= 0.9 - three_se(0.9, repetitions)
    assert without / repetitions < 0.8  # the mixture makes rows more expensive than the probabilities state


def test_a_rule_of_other_costs_keeps_its_regions():
    p, y = simulate_classes(300)
    called = td.best_rule(p, 1 - np.eye(3))  # the most probable class
    costs = dict(zip(called.rule.actions, (10 * (1 - np.eye(3))).T.tolist(), strict=True))
    result = td.expected_cost(p, costs, called)
    assert result.estimate == pytest.approx(10 * (1 - p.max(axis=1)).sum())
    saving = td.expected_saving(p, costs, "cheapest", called, (y, p))
    assert (saving.estimate, saving.low, saving.high) == pytest.approx((0, 0, 0))


def test_a_bound_on_regions_bounds_the_cost():
    p, y = simulate_classes(400, mix=0.5)
    matrix = np.column_stack(list(CLASSES.values()))
    action = np.argmin(p @ matrix, axis=1)
    realised, predicted = matrix[y, action].sum(), (p @ matrix).min(axis=1).sum()
    errors = decision_error(y, p, matrix)
    assert realised - predicted == pytest.approx(400 * (errors * matrix.T).sum())
    bound = td.expected_cost(p, CLASSES, labelled=float(np.abs(errors).max()))
    factor = sum(np.abs(cost - np.median(cost)).sum() for cost in CLASSES.values())
    assert bound.half_widths["calibration"] == pytest.approx(400 * np.abs(errors).max() * factor)
    assert abs(realised - predicted) <= bound.half_widths["calibration"]
    found = region_error(y, p, actions=3)
    searched = td.expected_cost(p, CLASSES, labelled=found)
    assert searched.half_widths["calibration"] == pytest.approx(400 * found.value * factor)


def test_segments_and_clusters_of_classes():
    p, y = simulate_classes(600, mix=0.2)
    segments, cluster = np.array(["a", "b", "c"])[np.arange(600) % 3], np.arange(600) // 3
    labelled = td.LabelledClasses(y, p, segments=segments, cluster=cluster)
    result = td.expected_cost(p, CLASSES, labelled=labelled, segments=segments)
    assert sum(part.estimate for part in result.by_segment.values()) == pytest.approx(result.estimate)
    assert all(part.low < part.estimate < part.high for part in result.by_segment.values())


# Messages


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"costs": {"fn": [1, 2], "fp": 1}, "threshold": 0.2}, "has 2 values for 3 rows"),
        ({"costs": {"fn": [1, 2, math.inf], "fp": 1}, "threshold": 0.2}, "must be finite"),
        ({"costs": {"fn": [1, 2, 3], "fp": 1}}, "no rule was given"),
        ({"costs": {"fn": 1, "fp": 1}}, "no rule was given"),
        ({"costs": {"fn": 1, "fp": 1}, "rule": 0.2, "threshold": 0.2}, "both given"),
        ({"costs": {"fn": 1, "fp": 1}, "threshold": 2}, "threshold must lie in"),
        ({"costs": {"fn": [1, 2, 3], "fp": 1}, "rule": 0.2, "labelled": 0.1}, "same for all rows"),
        ({"costs": {"fn": [1, 2, 3], "fp": 1}, "rule": 0.2, "labelled": ([0, 1], [0.1, 0.2])}, "labelled rows are unknown"),
        ({"costs": {"fn": [1, 2, 3], "fp": 1}, "rule": 0.2, "tuned": True}, "tuned=True is for rules of one score"),
    ],
)
def test_wrong_costs_by_row_are_rejected(arguments, message):
    with pytest.raises((ArgumentError, DataError), match=message):
        td.expected_cost([0.1, 0.2, 0.3], **arguments)


@pytest.mark.parametrize(
    ("costs", "arguments", "message"),
    [
        ({"a": [1, 2]}, {}, "needs one cost per class, 3"),
        (np.zeros((3, 0)), {}, "no action"),
        ({"a": [1, 2, "x"]}, {}, "a cost of 'a' must be a number"),
        (CLASSES, {"rule": 0.2}, "a rule for several classes"),
        (CLASSES, {"labelled": "audit"}, "for several classes labelled must be"),
        (CLASSES, {"labelled": ([0, 1], [[0.5, 0.5], [0.1, 0.9]])}, "labelled rows have 2 classes, the rows 3"),
        (CLASSES, {"rule": td.best_rule([[0.5, 0.2, 0.3]], {"x": [1, 2, 3]})}, "the rule has the actions x"),
    ],
)
def test_wrong_costs_of_classes_are_rejected(costs, arguments, message):
    with pytest.raises((ArgumentError, DataError), match=message):
        td.expected_cost([[0.5, 0.3, 0.2], [0.2, 0.2, 0.6]], costs, **arguments)


def test_impossible_capacities_and_rules_without_costs_are_rejected():
    p, _ = simulate_classes(10)
    with pytest.raises(ArgumentError, match="no rule gives every row an action"):
        td.best_rule(p, CLASSES, capacity={"treat": 3, "test": 3, "wait": 3})
    with pytest.raises(ArgumentError, match="no rule keeps all actions within"):
        td.best_rule(np.tile(p[:1], (10, 1)), CLASSES, capacity={"treat": 4, "test": 4, "wait": 4})
    with pytest.raises(ArgumentError, match="which action is cheapest depends on them"):
        td.best_rule([0.1, 0.2], {"fn": [1, 2], "fp": 1}).apply([0.1, 0.2])
