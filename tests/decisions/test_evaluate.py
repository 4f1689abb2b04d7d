"""Evaluation of rules on tables: alternatives, cost curve and segments."""

from __future__ import annotations

import math

import numpy as np
import pytest

import trueup.decisions as td
from trueup.data.frame import read
from trueup.decisions.evaluate import DecisionProblem, RuleEvaluation, threshold_of
from trueup.decisions.rules import as_actions

COSTS = {"fn": 5, "fp": 1}


def make_tables(seed, regions="nse"):
    """Return a table without outcomes, a labelled table, and the arrays of both."""
    random = np.random.default_rng(seed)
    arrays = []
    for rows, known in ((900, "nse"), (700, regions)):
        p, w = random.beta(1, 4, rows), random.random(rows) + 0.5
        arrays.append({"p": p, "w": w, "region": random.choice([*known], rows)})
    arrays[1]["y"] = (random.random(700) < arrays[1]["p"] ** 1.2).astype(float)
    roles = {"prediction": "p", "weight": "w", "features": ["region"]}
    return read(arrays[0], **roles), read(arrays[1], outcome="y", **roles), *arrays


def problem(threshold=None, capacity=None, costs=COSTS):
    return DecisionProblem(as_actions(costs), costs is COSTS, threshold, capacity or {})


@pytest.mark.parametrize("target", ["rows", "population"])
def test_costs_and_alternatives_equal_the_public_functions(target):
    table, labelled, new, old = make_tables(0)
    result = RuleEvaluation(table, problem(0.3), labelled=labelled, target=target)
    settings = {"labelled": (old["y"], old["p"], old["w"]), "weight": new["w"], "target": target}
    assert result.cost.estimate == pytest.approx(td.expected_cost(new["p"], COSTS, 0.3, **settings).estimate)
    best = td.best_rule(new["p"], COSTS, weight=new["w"])
    assert result.alternatives[0].rule.edges == best.rule.edges
    saving = td.expected_saving(new["p"], COSTS, 0.3, best, **settings)
    assert result.alternatives[0].saving.low == pytest.approx(saving.low)
    assert result.confusion.recall == pytest.approx(td.expected_confusion(new["p"], 0.3, **settings).recall)


@pytest.mark.parametrize("target", ["rows", "population"])
def test_cost_curve_equals_the_cost_of_each_threshold(target):
    table, labelled, new, old = make_tables(1)
    result = RuleEvaluation(table, problem(0.3), labelled=labelled, target=target)
    settings = {"labelled": (old["y"], old["p"], old["w"]), "weight": new["w"], "target": target}
    thresholds = [point.threshold for point in result.cost_curve]
    assert {0.0, 0.3, 0.5, threshold_of(result.best.rule), math.inf} <= set(thresholds)
    for point in result.cost_curve:
        cost = td.expected_cost(new["p"], COSTS, point.threshold, **settings)
        assert point.cost == pytest.approx(cost.estimate)
        assert point.acted == pytest.approx(cost.shares[1].rows)


def test_segments_equal_the_costs_of_expected_cost():
    table, labelled, new, old = make_tables(2)
    result = RuleEvaluation(table, problem(0.2), labelled=labelled)
    evidence = td.Labelled(old["y"], old["p"], old["w"], segments={"region": old["region"]})
    cost = td.expected_cost(new["p"], COSTS, 0.2, evidence, weight=new["w"], segments={"region": new["region"]})
    (segments,) = result.segments
    assert segments.without_labelled == []
    assert (segments.total.low, segments.total.high) == pytest.approx((cost.low, cost.high))
    assert set(segments.costs) == set(cost.by_segment)
    for name, part in cost.by_segment.items():
        assert (segments.costs[name].low, segments.costs[name].high) == pytest.approx((part.low, part.high))


def test_segments_without_labelled_rows_have_no_interval():
    table, labelled, new, _ = make_tables(3, regions="ns")
    result = RuleEvaluation(table, problem(0.2), labelled=labelled)
    (segments,) = result.segments
    assert segments.without_labelled == ["region=e"]
    rows = new["region"] == "e"
    cost = td.expected_cost(new["p"][rows], COSTS, 0.2, weight=new["w"][rows])
    assert segments.costs["region=e"].estimate == pytest.approx(cost.estimate)
    assert math.isnan(segments.costs["region=e"].low)
    assert segments.costs["region=n"].low < segments.costs["region=n"].high
    assert segments.total.estimate == pytest.approx(sum(part.estimate for part in segments.costs.values()))
    assert math.isnan(segments.total.high)
    assert segments.total.half_widths == {}


def test_capacities_are_checked_for_the_rule_and_its_alternatives():
    table, _, new, _ = make_tables(4)
    result = RuleEvaluation(table, problem(0.0, {"act": 50.0}))
    assert not result.fits
    assert threshold_of(result.rule) == 0.0
    assert result.best.shares[-1].rows <= 50
    assert result.alternatives[0].rule.edges == result.best.rule.edges
    assert result.alternatives[0].fits
    assert result.cost.rows == pytest.approx(new["w"].sum())
