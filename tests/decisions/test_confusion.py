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
# Each count as a cost: (on a positive, on a negative row) for rows below the threshold, and from it on.
AS_COSTS = {"tp": ((0, 0), (1, 0)), "fp": ((0, 0), (0, 1)), "fn": ((1, 0), (0, 0)), "tn": ((0, 1), (0, 0))}


def table(y, p, threshold):
    """Return counts and rates; a rate without denominator is NaN."""
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


def test_worked_example():
    result = tu.decisions.expected_confusion([0.1, 0.3, 0.9], 0.3)
    for name, value in table([0.1, 0.3, 0.9], [0.1, 0.3, 0.9], 0.3).items():
        assert getattr(result, name).estimate == pytest.approx(value)
    assert result.tp.estimate == pytest.approx(1.2)
    assert result.recall.estimate == pytest.approx(1.2 / 1.3)
    assert result.predicted_positive == pytest.approx((2 / 3, 2 / 3, 2 / 3))


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
    result = tu.decisions.expected_confusion(p, 0.4, bound, **options)
    for name, (passed, called) in AS_COSTS.items():
        cost = tu.decisions.expected_cost(p, {"pass": passed, "act": called}, 0.4, bound, **options)
        pairs = [(result, cost), *((result.by_segment[key], cost.by_segment[key]) for key in cost.by_segment)]
        assert len(pairs) == 1 + 2 * split
        for one, other in pairs:
            assert getattr(one, name) == pytest.approx((other.estimate, other.low, other.high), abs=1e-9)
    assert result.rows == pytest.approx(w.sum())


def test_population_shares_are_costs_per_row_and_never_narrower():
    random = np.random.default_rng(2)
    p, bound = random.random(900), labelled(3, 400)
    result = tu.decisions.expected_confusion(p, 0.4, bound, target="population")
    for name, (passed, called) in AS_COSTS.items():
        cost = tu.decisions.expected_cost(p, {"pass": passed, "act": called}, 0.4, bound, target="population")
        one = getattr(result, name)
        assert one.estimate == pytest.approx(cost.estimate)
        assert 1 - 1e-9 <= (one.high - one.low) / (cost.high - cost.low) < 1.2


@pytest.mark.parametrize("name", RATES)
@pytest.mark.parametrize("bound", [None, 0.02, "labelled"])
def test_rate_limits_satisfy_the_fieller_condition(name, bound):
    p = np.random.default_rng(4).random(300)
    bound = labelled(5, 500) if bound == "labelled" else bound
    result = getattr(tu.decisions.expected_confusion(p, 0.5, bound), name)
    of, by = (np.array(side, float) for side in RATES[name])

    def may_be_nought(rate):
        tp, fp, fn, tn = of - rate * by
        cost = tu.decisions.expected_cost(p, {"pass": (fn, tn), "act": (tp, fp)}, 0.5, bound)
        return cost.low <= 1e-9 and cost.high >= -1e-9

    assert 0 < result.low <= result.estimate <= result.high < 1
    assert may_be_nought(result.low)
    assert may_be_nought(result.high)
    assert not may_be_nought(result.low - 1e-6)
    assert not may_be_nought(result.high + 1e-6)


@TARGETS
@settings(deadline=None, max_examples=30)
@given(
    p=st.lists(st.sampled_from([0.0, 0.2, 0.5, 1.0]) | st.floats(0, 1), min_size=1, max_size=25),
    threshold=st.sampled_from([0.0, 0.2, 0.5, 1.0, math.inf]) | st.floats(0, 1),
    bound=st.none() | st.floats(0, 1) | st.just("labelled"),
    tuned=st.booleans(),
)
def test_intervals_contain_their_estimates_and_stay_in_range(target, p, threshold, bound, tuned):
    bound = labelled(6, 30) if bound == "labelled" else bound
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ShiftWarning)
        result = tu.decisions.expected_confusion(p, threshold, bound, target=target, tuned=tuned)
    for name in MEASURES:
        middle, low, high = getattr(result, name)
        assert 0 <= low <= high <= (len(p) if name in COUNTS and target == "rows" else 1) + 1e-12
        assert low <= middle <= high or (math.isnan(middle) and name in RATES and (low, high) == (0, 1))
    if target == "rows":
        called = sum(one >= threshold for one in p)
        assert result.tp.high <= called + 1e-9
        assert result.fn.high <= len(p) - called + 1e-9


@TARGETS
def test_weight_two_equals_duplicated_rows(target):
    random = np.random.default_rng(7)
    p, w, bound = random.random(40), random.integers(0, 3, 40), labelled(8, 100)
    one = tu.decisions.expected_confusion(p, 0.4, bound, weight=w, target=target)
    other = tu.decisions.expected_confusion(np.repeat(p, w), 0.4, bound, target=target)
    for name in MEASURES:
        assert getattr(one, name).estimate == pytest.approx(getattr(other, name).estimate)
    assert one.recall.high - one.recall.low > other.recall.high - other.recall.low


@TARGETS
def test_segments_equal_separate_calls(target):
    random = np.random.default_rng(9)
    p, region, lr = random.random(90), random.choice(["n", "s"], 90), random.choice(["n", "s"], 300)
    y, lp = labelled(10, 300)
    bound = tu.decisions.Labelled(y, lp, segments=lr)
    result = tu.decisions.expected_confusion(p, 0.3, bound, segments=region, target=target)
    for name, one in result.by_segment.items():
        separate = tu.decisions.expected_confusion(p[region == name], 0.3, (y[lr == name], lp[lr == name]), target=target)
        for measure in MEASURES:
            assert getattr(one, measure) == pytest.approx(getattr(separate, measure))
    assert result.evidence == "2 segments, each by its own evidence"


def test_precision_and_npv_are_nan_without_their_denominator():
    none, all_ = (tu.decisions.expected_confusion([0.2, 0.6], t) for t in (math.inf, 0))
    for result, empty, sure in ((none, "precision", "specificity"), (all_, "npv", "recall")):
        middle, low, high = getattr(result, empty)
        assert (math.isnan(middle), low, high) == (True, 0, 1)
        assert getattr(result, sure) == (1, 1, 1)
    assert none.recall == (0, 0, 0)
    zero = tu.decisions.expected_confusion([0.0, 0.0], 0.5)
    assert (math.isnan(zero.recall.estimate), zero.tn) == (True, (2, 2, 2))


@TARGETS
@pytest.mark.parametrize("power", [1.0, 1.6], ids=["calibrated", "miscalibrated"])
@pytest.mark.parametrize("shape", [(1.0, 1.0), (0.3, 6.0)], ids=["even", "rare"])
@pytest.mark.repeated(25, 120)
def test_every_interval_has_its_coverage(shape, power, target, repetitions):
    random, threshold = np.random.default_rng(11), 0.25
    covered = dict.fromkeys(MEASURES, 0)
    large = random.beta(*shape, 200_000)
    truth = table(large**power, large, threshold)
    truth |= {name: truth[name] / len(large) for name in COUNTS}
    for _ in range(repetitions):
        p, lp = random.beta(*shape, 500), random.beta(*shape, 600)
        y, ly = random.random(500) < p**power, random.random(600) < lp**power
        result = tu.decisions.expected_confusion(p, threshold, (ly, lp), target=target)
        value = table(y, p, threshold) if target == "rows" else truth
        for name in MEASURES:
            _, low, high = getattr(result, name)
            covered[name] += math.isnan(value[name]) or low - 1e-9 <= value[name] <= high + 1e-9
    least = 0.9 - 3 * math.sqrt(0.9 * 0.1 / repetitions)
    assert {name: count / repetitions for name, count in covered.items() if count / repetitions < least} == {}


def test_labelled_rows_correct_miscalibrated_scores():
    random = np.random.default_rng(12)
    p = random.random(20_000)
    y = random.random(20_000) < p**2
    result, truth = tu.decisions.expected_confusion(p, 0.5, labelled(13, 20_000, 2.0)), table(y, p, 0.5)
    plain = tu.decisions.expected_confusion(p, 0.5)
    assert abs(result.precision.estimate - truth["precision"]) < 0.02 < abs(plain.precision.estimate - truth["precision"])


def test_shares_without_observed_rows_are_not_excluded_for_the_population():
    result = tu.decisions.expected_confusion(np.full(200, 0.1), 0.5, target="population")
    assert (result.predicted_positive.estimate, result.predicted_positive.low) == (0, 0)
    assert 0.005 < result.predicted_positive.high < 0.05


def test_tuned_thresholds_have_wider_intervals():
    p = np.random.default_rng(14).random(200)
    fixed, tuned = (tu.decisions.expected_confusion(p, 0.5, labelled(15, 300), tuned=s) for s in (False, True))
    assert tuned.recall.low < fixed.recall.low
    assert tuned.recall.estimate == fixed.recall.estimate
    assert tuned.evidence == "300 labelled rows, for every rule at once"


def test_results_have_a_repr_a_dict_and_a_frame():
    result = tu.decisions.expected_confusion([0.1, 0.3, 0.9], math.inf, segments=["a", "a", "b"])
    plain = result.to_dict()
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain
    assert plain["precision"] == {"estimate": None, "low": 0.0, "high": 1.0}
    assert set(plain["by_segment"]) == {"a", "b"}
    frame = result.to_frame(pd.DataFrame())
    assert list(frame) == ["measure", "estimate", "low", "high"]
    assert frame["measure"].tolist() == list(MEASURES)
    assert frame["high"].tolist() == [getattr(result, name).high for name in MEASURES]
    assert repr(result).startswith(
        "<ExpectedConfusion at inf: tp 0, fp 0, fn 1.3, tn 1.7; precision nan (0 to 1), recall 0"
    )


def test_shifted_scores_raise_a_warning():
    y, p = labelled(16, 500)
    with pytest.warns(ShiftWarning, match="the score distribution has shifted") as caught:
        result = tu.decisions.expected_confusion(p / 2, 0.2, (y, p))
    assert caught[0].filename == __file__
    assert result.distance > 0.4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
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
def test_invalid_arguments_are_rejected(arguments, error, message):
    with pytest.raises(error, match=message):
        tu.decisions.expected_confusion(**{"p": [0.2, 0.7], "threshold": 0.5, **arguments})


def test_best_rule_provides_the_threshold_if_it_has_one():
    p = [0.1, 0.3, 0.9]
    best = tu.decisions.best_rule(p, {"fn": 5, "fp": 1})
    one, other = (tu.decisions.expected_confusion(p, at) for at in (best, best.threshold))
    assert one.to_dict() == other.to_dict()
    with pytest.raises(ArgumentError, match="got nan") as error:
        tu.decisions.expected_confusion(p, tu.decisions.best_rule(p, {"fn": 0, "fp": 1}))
    assert "a BestRule of one action has no threshold" in str(error.value)
