import json
import math
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
from trueup.decisions.confusion import COUNTS, RATES
from trueup.errors import ArgumentError, DataError, ShiftWarning

MEASURES = (*COUNTS, *RATES)
TARGETS = pytest.mark.parametrize("target", ["rows", "population"])
# What each count is as a cost: (on a positive, on a negative row) for rows that pass, and for rows that are called.
AS_COSTS = {"tp": ((0, 0), (1, 0)), "fp": ((0, 0), (0, 1)), "fn": ((1, 0), (0, 0)), "tn": ((0, 1), (0, 0))}


def table(y, p, threshold):
    """Give counts and rates; a rate of nothing is NaN."""
    y, called = np.asarray(y, float), np.asarray(p) >= threshold
    tp, fp, fn, tn = (float((side * who).sum()) for who in (called, ~called) for side in (y, 1 - y))
    n = tp + fp + fn + tn
    parts = {
        "prevalence": (tp + fn, n), "predicted_positive": (tp + fp, n), "precision": (tp, tp + fp), "recall": (tp, tp + fn),
        "specificity": (tn, tn + fp), "npv": (tn, tn + fn), "accuracy": (tp + tn, n), "f1": (2 * tp, 2 * tp + fp + fn),
    }  # fmt: skip
    rates = {name: of / by if by else math.nan for name, (of, by) in parts.items()}
    return {"tp": tp, "fp": fp, "fn": fn, "tn": tn} | rates


def labelled(seed, many, power=1.0):
    random = np.random.default_rng(seed)
    p = random.random(many)
    return (random.random(many) < p**power).astype(float), p


def test_a_small_matrix_is_as_worked_by_hand():
    found = tu.decisions.expected_confusion([0.1, 0.3, 0.9], 0.3)
    for name, value in table([0.1, 0.3, 0.9], [0.1, 0.3, 0.9], 0.3).items():
        assert getattr(found, name).estimate == pytest.approx(value)
    assert found.tp.estimate == pytest.approx(1.2)
    assert found.recall.estimate == pytest.approx(1.2 / 1.3)
    assert found.predicted_positive == pytest.approx((2 / 3, 2 / 3, 2 / 3))


@pytest.mark.parametrize("tuned", [False, True])
@pytest.mark.parametrize("bound", [None, 0.03, "labelled", "audit"])
@pytest.mark.parametrize("split", [False, True])
def test_counts_are_costs(bound, tuned, split):
    random = np.random.default_rng(0)
    p, w, region = random.random(80), random.random(80) + 0.5, random.choice(["n", "s"], 80)
    y, lp = labelled(1, 200, 1.3)
    lr = random.choice(["n", "s"], 200)
    if bound == "labelled":
        bound = tu.decisions.Labelled(y, lp, random.random(200) + 0.5, segments={"region": lr})
    elif bound == "audit":
        bound = tu.audit({"region": lr, "p": lp, "y": y}, outcome="y", prediction="p", by=["region"])
    options = {"weight": w, "tuned": tuned, "level": 0.8} | ({"segments": {"region": region}} if split else {})
    found = tu.decisions.expected_confusion(p, 0.4, bound, **options)
    for name, (passed, called) in AS_COSTS.items():
        cost = tu.decisions.expected_cost(p, {"pass": passed, "act": called}, 0.4, bound, **options)
        pairs = [(found, cost), *((found.by_segment[key], cost.by_segment[key]) for key in cost.by_segment)]
        assert len(pairs) == 1 + 2 * split
        for one, other in pairs:
            assert getattr(one, name) == pytest.approx((other.estimate, other.low, other.high), abs=1e-9)
    assert found.rows == pytest.approx(w.sum())


def test_shares_of_a_population_are_costs_a_row_and_no_narrower():
    random = np.random.default_rng(2)
    p, bound = random.random(900), labelled(3, 400)
    found = tu.decisions.expected_confusion(p, 0.4, bound, target="population")
    for name, (passed, called) in AS_COSTS.items():
        cost = tu.decisions.expected_cost(p, {"pass": passed, "act": called}, 0.4, bound, target="population")
        one = getattr(found, name)
        assert one.estimate == pytest.approx(cost.estimate)
        assert 1 - 1e-9 <= (one.high - one.low) / (cost.high - cost.low) < 1.2


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("bound", [None, 0.02, "labelled"])
def test_a_rate_ends_where_what_it_divides_less_its_share_of_the_rest_may_no_longer_be_nought(name, bound):
    p = np.random.default_rng(4).random(300)
    bound = labelled(5, 500) if bound == "labelled" else bound
    found = getattr(tu.decisions.expected_confusion(p, 0.5, bound), name)
    of, by = (np.array(side, float) for side in RATES[name])

    def may_be_nought(rate):
        tp, fp, fn, tn = of - rate * by
        cost = tu.decisions.expected_cost(p, {"pass": (fn, tn), "act": (tp, fp)}, 0.5, bound)
        return cost.low <= 1e-9 and cost.high >= -1e-9

    assert 0 < found.low <= found.estimate <= found.high < 1
    assert may_be_nought(found.low)
    assert may_be_nought(found.high)
    assert not may_be_nought(found.low - 1e-6)
    assert not may_be_nought(found.high + 1e-6)


@TARGETS
@settings(deadline=None, max_examples=60)
@given(
    p=st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=25),
    threshold=st.sampled_from([0.0, 0.2, 0.5, 1.0, math.inf]) | st.floats(0, 1),
    bound=st.none() | st.floats(0, 1) | st.just("labelled"),
    tuned=st.booleans(),
)
def test_intervals_hold_their_estimates_and_stay_where_values_can_be(target, p, threshold, bound, tuned):
    bound = labelled(6, 30) if bound == "labelled" else bound
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShiftWarning)
        found = tu.decisions.expected_confusion(p, threshold, bound, target=target, tuned=tuned)
    for name in MEASURES:
        middle, low, high = getattr(found, name)
        assert 0 <= low <= high <= (len(p) if name in COUNTS and target == "rows" else 1) + 1e-12
        assert low <= middle <= high or (math.isnan(middle) and name in RATES and (low, high) == (0, 1))
    if target == "rows":
        called = sum(one >= threshold for one in p)
        assert found.tp.high <= called + 1e-9
        assert found.fn.high <= len(p) - called + 1e-9


@TARGETS
def test_a_weight_of_two_equals_the_row_twice(target):
    random = np.random.default_rng(7)
    p, w, bound = random.random(40), random.integers(0, 3, 40), labelled(8, 100)
    one = tu.decisions.expected_confusion(p, 0.4, bound, weight=w, target=target)
    other = tu.decisions.expected_confusion(np.repeat(p, w), 0.4, bound, target=target)
    for name in MEASURES:
        assert getattr(one, name).estimate == pytest.approx(getattr(other, name).estimate)
    assert one.recall.high - one.recall.low > other.recall.high - other.recall.low


@TARGETS
def test_a_segment_has_the_matrix_of_its_rows_alone(target):
    random = np.random.default_rng(9)
    p, region, lr = random.random(90), random.choice(["n", "s"], 90), random.choice(["n", "s"], 300)
    y, lp = labelled(10, 300)
    bound = tu.decisions.Labelled(y, lp, segments=lr)
    found = tu.decisions.expected_confusion(p, 0.3, bound, segments=region, target=target)
    for name, one in found.by_segment.items():
        alone = tu.decisions.expected_confusion(p[region == name], 0.3, (y[lr == name], lp[lr == name]), target=target)
        for measure in MEASURES:
            assert getattr(one, measure) == pytest.approx(getattr(alone, measure))
    assert found.evidence == "2 segments, each by its own evidence"


def test_nothing_called_has_no_precision_and_all_called_no_npv():
    none, all_ = (tu.decisions.expected_confusion([0.2, 0.6], t) for t in (math.inf, 0))
    for found, empty, sure in ((none, "precision", "specificity"), (all_, "npv", "recall")):
        middle, low, high = getattr(found, empty)
        assert (math.isnan(middle), low, high) == (True, 0, 1)
        assert getattr(found, sure) == (1, 1, 1)
    assert none.recall == (0, 0, 0)
    zero = tu.decisions.expected_confusion([0.0, 0.0], 0.5)
    assert (math.isnan(zero.recall.estimate), zero.tn) == (True, (2, 2, 2))


@TARGETS
@pytest.mark.parametrize("power", [1.0, 1.6], ids=["calibrated", "miscalibrated"])
@pytest.mark.parametrize("shape", [(1.0, 1.0), (0.3, 6.0)], ids=["even", "rare"])
def test_every_interval_holds_as_often_as_promised(shape, power, target):
    random, repeats, threshold = np.random.default_rng(11), 120, 0.25
    held = dict.fromkeys(MEASURES, 0)
    large = random.beta(*shape, 400_000)
    truth = table(large**power, large, threshold)
    truth |= {name: truth[name] / len(large) for name in COUNTS}
    for _ in range(repeats):
        p, lp = random.beta(*shape, 500), random.beta(*shape, 600)
        y, ly = random.random(500) < p**power, random.random(600) < lp**power
        found = tu.decisions.expected_confusion(p, threshold, (ly, lp), target=target)
        value = table(y, p, threshold) if target == "rows" else truth
        for name in MEASURES:
            _, low, high = getattr(found, name)
            held[name] += math.isnan(value[name]) or low - 1e-9 <= value[name] <= high + 1e-9
    least = 0.9 - 3 * math.sqrt(0.9 * 0.1 / repeats)
    assert {name: count / repeats for name, count in held.items() if count / repeats < least} == {}


def test_labelled_rows_correct_what_scores_get_wrong():
    random = np.random.default_rng(12)
    p = random.random(20_000)
    y = random.random(20_000) < p**2
    found, truth = tu.decisions.expected_confusion(p, 0.5, labelled(13, 20_000, 2.0)), table(y, p, 0.5)
    plain = tu.decisions.expected_confusion(p, 0.5)
    assert abs(found.precision.estimate - truth["precision"]) < 0.02 < abs(plain.precision.estimate - truth["precision"])


def test_a_share_that_no_row_showed_is_not_ruled_out_for_the_population():
    found = tu.decisions.expected_confusion(np.full(200, 0.1), 0.5, target="population")
    assert (found.predicted_positive.estimate, found.predicted_positive.low) == (0, 0)
    assert 0.005 < found.predicted_positive.high < 0.05


def test_a_threshold_searched_for_has_wider_intervals():
    p = np.random.default_rng(14).random(200)
    fixed, tuned = (tu.decisions.expected_confusion(p, 0.5, labelled(15, 300), tuned=s) for s in (False, True))
    assert tuned.recall.low < fixed.recall.low
    assert tuned.recall.estimate == fixed.recall.estimate
    assert tuned.evidence == "300 labelled rows, for every rule at once"


def test_results_are_told_in_a_line_a_dict_and_a_frame():
    found = tu.decisions.expected_confusion([0.1, 0.3, 0.9], math.inf, segments=["a", "a", "b"])
    told = found.to_dict()
    assert json.loads(json.dumps(told, allow_nan=False)) == told
    assert told["precision"] == {"estimate": None, "low": 0.0, "high": 1.0}
    assert set(told["by_segment"]) == {"a", "b"}
    frame = found.to_frame(pd.DataFrame())
    assert list(frame) == ["measure", "estimate", "low", "high"]
    assert frame["measure"].tolist() == list(MEASURES)
    assert frame["high"].tolist() == [getattr(found, name).high for name in MEASURES]
    assert repr(found).startswith("<ExpectedConfusion at inf: tp 0, fp 0, fn 1.3, tn 1.7; precision nan (0 to 1), recall 0")


def test_scores_that_moved_are_warned_of():
    y, p = labelled(16, 500)
    with pytest.warns(ShiftWarning, match="the score distribution has shifted") as caught:
        found = tu.decisions.expected_confusion(p / 2, 0.2, (y, p))
    assert caught[0].filename == __file__
    assert found.distance > 0.4


@pytest.mark.parametrize(
    ("given_", "error", "message"),
    [
        ({"threshold": 1.2}, ArgumentError, r"the threshold must lie in \[0, 1\], as scores do; got 1.2"),
        ({"threshold": math.nan}, ArgumentError, "the threshold must lie in"),
        ({"threshold": "0.5"}, ArgumentError, "got '0.5'"),
        ({"p": [0.2, math.nan]}, DataError, "p must be finite"),
        ({"level": 0}, ArgumentError, "level must lie between 0 and 1; got 0"),
        ({"target": "row"}, ArgumentError, "target must be"),
        ({"labelled": "audit"}, ArgumentError, "labelled must be rows with outcomes"),
        ({"segments": ["a", "b"], "labelled": ([0, 1], [0.3, 0.5])}, ArgumentError, "the labelled rows have no segments"),
    ],
)
def test_what_cannot_be_told_is_refused(given_, error, message):
    with pytest.raises(error, match=message):
        tu.decisions.expected_confusion(**{"p": [0.2, 0.7], "threshold": 0.5, **given_})


def test_a_best_rule_names_the_threshold_if_it_has_one():
    p = [0.1, 0.3, 0.9]
    best = tu.decisions.best_rule(p, {"fn": 5, "fp": 1})
    one, other = (tu.decisions.expected_confusion(p, at) for at in (best, best.threshold))
    assert one.to_dict() == other.to_dict()
    with pytest.raises(ArgumentError, match="got nan") as refused:
        tu.decisions.expected_confusion(p, tu.decisions.best_rule(p, {"fn": 0, "fp": 1}))
    assert "a BestRule of one action has no threshold" in str(refused.value)
