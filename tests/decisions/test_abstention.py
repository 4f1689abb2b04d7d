"""Abstention: the rule and its costs, reward curves, risk and coverage."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup as tu
from trueup.decisions import Labelled, RewardCurve, abstain, expected_cost, reward_curve, risk_coverage
from trueup.decisions.abstention import _mirror
from trueup.errors import ArgumentError, DataError, ShiftWarning

HAND_P = [0.95, 0.9, 0.7, 0.2]  # confidences .95, .9, .7, .8
HAND_Y = [1, 0, 1, 0]  # right, wrong, right, right


def twin_costs(confidence, hit, u, w, r):
    """Cost of each row, answered where that costs no more than abstaining in expectation."""
    return np.array(
        [(r if right else w) if (1 - c) * w + c * r <= u else u for c, right in zip(confidence, hit, strict=True)]
    )


def twin_auroc(wrong, doubt):
    """Share of pairs of a wrong and a correct row in which the wrong one is less confident, ties half."""
    won = [
        (a > b) + 0.5 * (a == b)
        for a, e in zip(doubt, wrong, strict=True)
        if e
        for b, f in zip(doubt, wrong, strict=True)
        if not f
    ]
    return float(np.mean(won))


def twin_area(confidence, wrong, cells=200_000):
    """The mean risk over coverages, by brute force; errors within one confidence are spread evenly."""
    order = np.argsort(-np.asarray(confidence), kind="stable")
    c, e = np.asarray(confidence)[order], np.asarray(wrong, float)[order]
    for value in np.unique(c):
        e[c == value] = e[c == value].mean()
    n = len(c)
    share = (np.arange(cells) + 0.5) / cells
    kept = np.interp(share * n, np.arange(n + 1), np.append(0.0, np.cumsum(e)))
    return float(np.mean(kept / (share * n)))


@st.composite
def labelled_rows(draw, most=12):
    n = draw(st.integers(2, most))
    p = draw(st.lists(st.integers(0, 20).map(lambda k: k / 20), min_size=n, max_size=n))
    y = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n))
    return np.array(p), np.array(y)


def confidence_and_hit(p, y):
    return np.maximum(p, 1 - p), np.where(p >= 0.5, y, 1 - y)


# The rule


def test_worked_example_of_four_rows():
    result = abstain(HAND_P, HAND_Y, ratio=4)
    assert result.threshold == 0.75
    assert result.answered == 0.75
    # Unsure of one row, and 4 x (.05 + .1 + .2) expected of the others; one of them was wrong.
    assert result.expected.estimate == pytest.approx(2.4)
    assert result.realised.total == 5
    assert result.realised.mean == 1.25
    assert result.expected_risk == pytest.approx(0.35 / 3)
    assert result.risk == pytest.approx(1 / 3)
    # Costs 0, 4, 1, 0: squares about the mean 10.75, over 3 and 4.
    assert result.realised.standard_error == pytest.approx(math.sqrt(10.75 / 12))
    noise = 4 * math.sqrt(0.95 * 0.05 + 0.9 * 0.1 + 0.8 * 0.2)
    assert result.realised.z_score == pytest.approx((5 - 2.4) / noise)
    assert (result.reward, result.expected_reward, result.expected_total) == pytest.approx((-1.25, -0.6, 2.4))
    assert result.prr == pytest.approx(-1 / 3)
    assert result.costs == {"unsure": 1.0, "wrong": 4.0, "right": 0.0}


def test_correct_answers_may_have_negative_cost():
    result = abstain(HAND_P, HAND_Y, costs={"unsure": 0, "wrong": 3, "right": -1})
    assert (result.threshold, result.ratio) == (0.75, 4.0)
    assert result.realised.total == -1 + 3 + 0 - 1
    assert result.expected.estimate == pytest.approx(3 * 0.35 - (0.95 + 0.9 + 0.8))


@given(labelled_rows(), st.tuples(st.integers(-3, 3), st.integers(0, 8), st.integers(0, 8)))
def test_costs_equal_the_numpy_twin(rows, steps):
    right, more, most = steps
    if more + most == 0:
        more = 1
    unsure, wrong = right + more, right + more + most
    p, y = rows
    c, hit = confidence_and_hit(p, y)
    result = abstain(p, y, costs={"unsure": unsure, "wrong": wrong, "right": right})
    t = (wrong - unsure) / (wrong - right)
    close = np.abs(c - t) < 1e-9  # there both cost the same, up to rounding
    wanted = twin_costs(c, hit, unsure, wrong, right)
    wanted[close] = np.where(c >= t, np.where(hit == 1, right, wrong), unsure)[close]
    assert result.realised.total == pytest.approx(wanted.sum())
    assert result.expected.estimate == pytest.approx(np.where(c >= t, (1 - c) * wrong + c * right, unsure).sum(), abs=1e-9)


@given(labelled_rows(), st.floats(1, 60))
def test_threshold_minimises_the_expected_cost(rows, ratio):
    p, _ = rows
    c = np.maximum(p, 1 - p)
    result = abstain(p, ratio=ratio)
    for t in [*np.unique(c), 0.0, 2.0]:
        assert result.expected.estimate <= np.where(c >= t, (1 - c) * ratio, 1.0).sum() + 1e-9


def test_one_score_and_two_class_columns_agree():
    random = np.random.default_rng(0)
    p = random.uniform(0, 1, 300)
    y = (random.random(300) < p).astype(int)
    w = random.integers(1, 4, 300)
    for ratio in (1, 1.5, 2, 3, 10, 40):
        one = abstain(p, y, ratio=ratio, weight=w)
        two = abstain(np.column_stack([1 - p, p]), y, ratio=ratio, weight=w)
        for name in ("threshold", "answered", "risk", "expected_risk", "reward", "prr", "expected_total"):
            assert getattr(one, name) == pytest.approx(getattr(two, name), rel=1e-12), name
        assert (one.expected.low, one.expected.high) == pytest.approx((two.expected.low, two.expected.high))
        assert one.coverage.area == pytest.approx(two.coverage.area)
        assert one.curve.reward == pytest.approx(two.curve.reward)


def test_ties_predict_class_1_or_the_first_column():
    assert abstain([0.5], [1], ratio=1).risk == 0
    assert abstain([[0.5, 0.5]], [1], ratio=1).risk == 1


@given(st.floats(0.5, 1, exclude_min=True), st.integers(-3, 3))
def test_mirrored_threshold_is_exact_to_the_last_bit(threshold, ulps):
    cut = _mirror(threshold)
    assert 1 - cut < threshold <= 1 - np.nextafter(cut, -1)
    assert 0 < cut <= 0.5
    near = 1 - threshold
    for _ in range(abs(ulps)):
        near = np.nextafter(near, math.copysign(1, ulps))
    near = min(max(near, 0.0), 0.5)
    assert (near < cut) == (1 - near >= threshold)


def test_scores_at_the_threshold_are_answered_on_both_sides():
    result = abstain([0.2, 0.8], ratio=5)
    assert result.answered == 1
    assert [(share.action, share.rows) for share in result.expected.shares] == [
        ("answer 0", 1), ("unsure", 0), ("answer 1", 1),
    ]  # fmt: skip


def test_predicted_class_can_be_passed():
    p = np.array([[0.5, 0.3, 0.2], [0.1, 0.2, 0.7]])
    result = abstain(p, [1, 2], ratio=2, predicted_class=[1, 2])
    assert result.coverage.threshold.tolist() == [0.7, 0.3]
    assert result.coverage.area == 0
    # Confidences themselves.
    one = abstain([0.3, 0.7], [1, 1], ratio=2, predicted_class=1)
    assert one.coverage.threshold.tolist() == [0.7, 0.3]
    assert one.answered == 0.5
    assert abstain([0.3, 0.7], [0, 1], ratio=2, predicted_class=[0, 1]).risk == 0


def test_weight_two_equals_duplicated_rows():
    random = np.random.default_rng(1)
    p, w = random.integers(0, 11, 40) / 10, random.integers(0, 3, 40)
    y = (random.random(40) < p).astype(int)
    heavy, twice = abstain(p, y, ratio=3, weight=w), abstain(np.repeat(p, w), np.repeat(y, w), ratio=3)
    for name in ("rows", "answered", "risk", "expected_risk", "reward", "prr", "expected_total"):
        assert getattr(heavy, name) == pytest.approx(getattr(twice, name)), name
    for curve in ("curve", "coverage"):
        one, other = (getattr(result, curve).to_frame() for result in (heavy, twice))
        for name in set(one) - {"standard_error"}:
            assert one[name] == pytest.approx(other[name]), name
    assert heavy.coverage.area == pytest.approx(twice.coverage.area)


def test_ratio_1_always_answers_and_equal_costs_answer_certain_rows_only():
    assert abstain([0.5, 0.6], ratio=1).answered == 1
    result = abstain([1.0, 0.9, 0.0], costs={"unsure": 0, "wrong": 1})
    assert (result.threshold, result.ratio, result.answered) == (1.0, math.inf, pytest.approx(2 / 3))


def test_risk_is_nan_without_answers():
    result = abstain([0.6, 0.7], [1, 0], ratio=50)
    assert result.answered == 0
    assert math.isnan(result.risk)
    assert result.reward == -1
    assert result.realised.z_score == 0
    assert "of them wrong" not in repr(result)


def test_certain_wrong_answers_have_an_infinite_z_score():
    assert abstain([1.0, 1.0], [1, 0], ratio=2).realised.z_score == math.inf


def test_standard_error_is_that_of_the_mean():
    random = np.random.default_rng(2)
    means, errors = [], []
    for _ in range(400):
        p = random.uniform(0, 1, 200)
        result = abstain(p, random.random(200) < p, ratio=4).realised
        means.append(result.mean)
        errors.append(result.standard_error)
    # The spread of 400 means is known to within 3.5% (one standard deviation).
    assert np.mean(errors) == pytest.approx(np.std(means), rel=0.12)
    assert math.isnan(abstain([0.9], [1], ratio=2).realised.standard_error)


def test_z_score_is_standard_normal_for_calibrated_scores():
    random = np.random.default_rng(3)
    p = random.uniform(0, 1, 400)
    result = [abstain(p, random.random(400) < p, ratio=4).realised.z_score for _ in range(400)]
    assert abs(np.mean(result)) < 4 / 20
    assert np.std(result) == pytest.approx(1, abs=0.15)


# Labelled rows


def test_expected_cost_is_that_of_a_rule_on_scores():
    random = np.random.default_rng(4)
    p, q = random.uniform(0, 1, 500), random.uniform(0, 1, 400)
    known = ((random.random(400) < q**2).astype(int), q)
    actions = {"no": (4, 0), "unsure": (1, 1), "yes": (0, 4)}
    rule = {"no": (0, 0.25), "unsure": (0.25, 0.75), "yes": (0.75, 1)}
    for bound in (None, known, Labelled(*known), 0.03, tu.metrics.calibration_bound(*known)):
        result, wanted = abstain(p, ratio=4, labelled=bound).expected, expected_cost(p, actions, rule, bound)
        assert (result.estimate, result.low, result.high) == pytest.approx((wanted.estimate, wanted.low, wanted.high))


def test_labelled_scores_and_labelled_confidences_agree():
    random = np.random.default_rng(5)
    p, q = random.uniform(0, 1, 500), random.uniform(0, 1, 400)
    y = (random.random(400) < q**2).astype(int)
    one = abstain(p, ratio=4, labelled=(y, q))
    two = abstain(np.column_stack([1 - p, p]), ratio=4, labelled=(y, np.column_stack([1 - q, q])))
    c, hit = confidence_and_hit(q, y)
    three = abstain(np.column_stack([1 - p, p]), ratio=4, labelled=(hit, c, np.ones(400)))
    four = abstain(np.maximum(p, 1 - p), ratio=4, predicted_class=1, labelled=Labelled(hit, c))
    assert one.expected.correction > 0
    for other in (three, four):
        assert other.expected.estimate == pytest.approx(two.expected.estimate)
        assert (other.expected.low, other.expected.high) == pytest.approx((two.expected.low, two.expected.high))
    # Strata of scores are not strata of confidences.
    assert two.expected.estimate == pytest.approx(one.expected.estimate, rel=0.03)
    heavy = abstain(np.column_stack([1 - p, p]), ratio=4, labelled=(y, np.column_stack([1 - q, q]), np.full(400, 2.0)))
    assert heavy.expected.estimate == pytest.approx(two.expected.estimate)


@pytest.mark.filterwarnings("ignore::trueup.errors.ShiftWarning")  # a false alarm in a thousand
def test_interval_covers_the_realised_cost_at_its_level():
    random = np.random.default_rng(6)
    covered = 0
    for _ in range(300):
        p, q = random.uniform(0, 1, 300), random.uniform(0, 1, 600)
        result = abstain(p, random.random(300) < p**1.5, ratio=4, labelled=(random.random(600) < q**1.5, q))
        covered += result.expected.low <= result.realised.total <= result.expected.high
    assert covered / 300 >= 0.9 - 3 * math.sqrt(0.09 / 300)


def test_shifted_scores_raise_a_warning():
    with pytest.warns(ShiftWarning, match="the score distribution has shifted"):
        abstain(np.linspace(0.5, 1, 400), ratio=4, labelled=(np.tile([0, 1], 200), np.linspace(0, 0.6, 400)))


def test_target_population_gives_the_cost_per_row():
    p = np.random.default_rng(7).uniform(0, 1, 500)
    rows, population = (abstain(p, ratio=4, target=target) for target in ("rows", "population"))
    assert population.expected.estimate == pytest.approx(rows.expected.estimate / 500)
    assert population.expected_total == pytest.approx(rows.expected_total)
    assert population.expected_reward == pytest.approx(rows.expected_reward)
    assert " per row" in repr(population)


def test_segments_equal_separate_calls():
    random = np.random.default_rng(8)
    p, region = random.uniform(0, 1, 300), np.array(["north", "south"])[random.integers(0, 2, 300)]
    y, w = (random.random(300) < p).astype(int), random.integers(0, 3, 300)
    result = abstain(p, y, ratio=4, segments={"region": region}, weight=w)
    assert list(result.by_segment) == ["region=north", "region=south"]
    for name, one in result.by_segment.items():
        here = region == name.removeprefix("region=")
        separate = abstain(p[here], y[here], ratio=4, weight=w[here])
        for part in ("rows", "answered", "risk", "reward", "prr", "expected_total"):
            assert getattr(one, part) == pytest.approx(getattr(separate, part)), part
        assert one.expected.high == pytest.approx(separate.expected.high)
    assert sum(one.realised.total for one in result.by_segment.values()) == pytest.approx(result.realised.total)
    several = abstain(np.column_stack([1 - p, p]), y, ratio=4, segments=region, weight=w)
    assert several.by_segment["north"].reward == pytest.approx(result.by_segment["region=north"].reward)


def test_an_audit_bounds_each_segment():
    random = np.random.default_rng(9)
    p, region = random.uniform(0, 1, 2000), np.array(["n", "s"], object)[random.integers(0, 2, 2000)]
    y = (random.random(2000) < p).astype(int)
    audit = tu.audit({"p": p, "y": y, "region": region}, outcome="y", prediction="p", by=["region"])
    result = abstain(p, ratio=4, labelled=audit, segments={"region": region})
    assert set(result.by_segment) == {"region=n", "region=s"}
    assert result.expected.half_widths["calibration"] > 0


# Rewards over ratios


def test_reward_curve_equals_abstain_at_each_ratio():
    random = np.random.default_rng(10)
    p, w = random.dirichlet([0.5] * 4, 200), random.integers(1, 4, 200).astype(float)
    y = np.array([random.choice(4, p=row) for row in p])
    ratios = [1, 1.3, 4, 10, 50]
    curve = reward_curve(p, y, ratios=ratios, weight=w)
    for at, ratio in enumerate(ratios):
        one = abstain(p, y, ratio=ratio, weight=w)
        assert curve.threshold[at] == one.threshold
        assert curve.answered[at] == pytest.approx(one.answered)
        assert curve.realised[at] == pytest.approx(one.reward)
        assert curve.standard_error[at] == pytest.approx(one.realised.standard_error)
        assert curve.expected[at] == pytest.approx(one.expected_reward)
    hit = p.argmax(axis=1) == y
    wrong = np.average(~hit, weights=w)
    assert curve.always == pytest.approx(-np.array(ratios) * wrong)
    assert (curve.never == -1).all()
    assert curve.oracle == pytest.approx(np.full(5, -wrong))
    assert curve.random == pytest.approx(-(1 - curve.answered) - curve.answered * np.array(ratios) * wrong)


def test_random_reward_is_the_mean_over_all_subsets():
    from itertools import combinations

    p, y = [0.9, 0.85, 0.6, 0.3], [1, 0, 1, 1]
    curve = reward_curve(p, y, ratios=[4])
    wrong = np.array([0, 1, 0, 1])
    ways = [-(2 + 4 * wrong[list(two)].sum()) / 4 for two in combinations(range(4), 2)]
    assert curve.answered[0] == 0.5
    assert curve.random[0] == pytest.approx(np.mean(ways))


@given(labelled_rows())
def test_oracle_is_an_upper_bound_and_always_and_never_are_lower_bounds(rows):
    p, y = rows
    result, blind = reward_curve(p, y), reward_curve(p)
    assert (result.oracle >= result.realised - 1e-12).all()
    assert (result.oracle >= np.maximum(result.always, result.never) - 1e-12).all()
    assert (blind.expected >= np.maximum(blind.always, blind.never) - 1e-12).all()
    assert (blind.expected >= blind.random - 1e-12).all()
    assert result.expected == pytest.approx(blind.reward)


def test_without_outcomes_the_curve_is_expected():
    curve = reward_curve([0.9, 0.8, 0.6], ratios=[1, 4])
    assert not curve.labelled
    assert np.isnan(curve.realised).all()
    assert curve.reward * 3 == pytest.approx([-0.7, -2.2])
    assert curve.always * 3 == pytest.approx([-0.7, -2.8])
    assert curve.oracle * 3 == pytest.approx([-0.7, -0.7])
    assert repr(curve) == "<RewardCurve of 3 rows: expected reward -0.2333 per row at ratio 1 to -0.7333 at 4>"


def test_default_ratios_range_from_1_to_50():
    ratio = reward_curve([0.9, 0.8]).ratio
    assert (ratio[0], ratio[-1], len(ratio)) == (1.0, 50.0, 50)
    ratio[0] = 7.0
    assert reward_curve([0.9, 0.8]).ratio[0] == 1.0


def test_gain_is_the_difference_of_rewards_at_equal_ratios():
    y = [1, 1, 0]
    before, after = (reward_curve(p, y, ratios=[2, 5]) for p in ([0.9, 0.9, 0.9], [0.9, 0.9, 0.6]))
    assert after.gain(before) * 3 == pytest.approx([0, 4])
    with pytest.raises(ArgumentError, match="the two curves have different ratios"):
        after.gain(reward_curve([0.9, 0.9, 0.9], y))
    with pytest.raises(ArgumentError, match="one curve is realised, the other expected"):
        after.gain(reward_curve([0.9, 0.9, 0.9], ratios=[2, 5]))


# Risk and coverage


def test_tied_confidences_form_one_step():
    result = risk_coverage([0.9, 0.8, 0.6, 0.6], [1, 1, 0, 1])
    assert result.threshold.tolist() == [0.9, 0.8, 0.6]
    assert result.coverage.tolist() == [0.25, 0.5, 1]
    assert result.risk.tolist() == [0, 0, 0.25]
    assert result.expected == pytest.approx([0.1, 0.15, 1.1 / 4])
    # Errors grow as (s - 1/2)/2 from s = 1/2 on: the integral of that over s.
    assert result.area == pytest.approx(0.25 - math.log(2) / 4)
    # Best order: three right ones first.
    assert result.oracle_area == pytest.approx(0.25 + 0.75 * math.log(0.75))
    assert result.random_area == 0.25


@given(labelled_rows())
def test_area_is_the_mean_risk_over_coverages(rows):
    p, y = rows
    c, hit = confidence_and_hit(p, y)
    result = risk_coverage(p, y)
    assert result.area == pytest.approx(twin_area(c, 1 - hit), abs=2e-4)
    assert result.expected_area == pytest.approx(twin_area(c, 1 - c), abs=2e-4)
    assert result.oracle_area == pytest.approx(twin_area(hit, 1 - hit), abs=2e-4)
    assert result.oracle_area - 1e-12 <= result.area
    assert result.risk[-1] == pytest.approx(result.random_area)


@given(labelled_rows())
def test_prr_is_twice_the_auroc_of_errors_minus_1(rows):
    p, y = rows
    c, hit = confidence_and_hit(p, y)
    result = risk_coverage(p, y)
    if 0 < hit.sum() < len(hit):
        assert result.prr == pytest.approx(2 * twin_auroc(1 - hit, -c) - 1)
    else:
        assert math.isnan(result.prr)
    assert risk_coverage(p).prr == pytest.approx(result.expected_prr, nan_ok=True)


def test_expected_and_realised_area_agree_for_calibrated_scores():
    random = np.random.default_rng(11)
    p = random.uniform(0, 1, 20_000)
    result = risk_coverage(p, random.random(20_000) < p)
    assert result.prr == pytest.approx(result.expected_prr, abs=0.03)
    assert result.area == pytest.approx(result.expected_area, abs=0.01)


def test_areas_are_1_and_0_if_all_answers_are_wrong_or_correct():
    wrong, right = risk_coverage([0.9, 0.8], [0, 0]), risk_coverage([0.9, 0.8], [1, 1])
    assert (wrong.area, wrong.oracle_area, wrong.random_area) == pytest.approx((1, 1, 1))
    assert (right.area, right.oracle_area, right.random_area) == (0, 0, 0)
    assert math.isnan(wrong.prr)
    assert math.isnan(right.prr)


def test_negligible_weights_are_harmless():
    result = risk_coverage([0.9, 0.8, 0.7], [1, 1, 0], weight=[1, 1e-30, 1])
    assert result.area == pytest.approx(risk_coverage([0.9, 0.7], [1, 0]).area)


# Results


def test_row_order_does_not_matter():
    random = np.random.default_rng(12)
    p = random.uniform(0, 1, 100)
    y = (random.random(100) < p).astype(int)
    order = random.permutation(100)
    one, other = abstain(p, y, ratio=4).to_dict(), abstain(p[order], y[order], ratio=4).to_dict()
    assert one["curve"]["realised"] == pytest.approx(other["curve"]["realised"])
    assert one["coverage"]["realised"] == pytest.approx(other["coverage"]["realised"])
    assert one["realised"]["total"] == pytest.approx(other["realised"]["total"])


def test_repr_is_one_line():
    assert repr(abstain(HAND_P, HAND_Y, ratio=4)) == (
        "<Abstention unsure below 0.75: answers 75% of 4 rows, 33.3% of them wrong (expected 11.7%); "
        "cost 5, expected cost 2.4, 1 to 6.22 at 90%>"
    )
    assert repr(risk_coverage(HAND_P)).startswith("<RiskCoverage of 4 rows: expected area ")


def test_results_convert_to_json_and_frames(frame):
    import narwhals as nw

    result = abstain(HAND_P, ratio=4, segments=["a", "a", "b", "b"])
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["realised"] is None
    assert plain["risk"] is None
    assert plain["reward"] is None
    assert set(plain["by_segment"]) == {"a", "b"}
    assert plain["curve"]["ratio"][-1] == 50
    given_frame = frame({"x": [1.0]})
    curve = nw.from_native(result.curve.to_frame(given_frame))
    assert curve.columns == [
        "ratio", "threshold", "answered", "expected", "realised", "standard_error", "always", "never", "oracle", "random",
    ]  # fmt: skip
    assert len(curve) == 50
    steps = nw.from_native(result.coverage.to_frame(given_frame))
    assert steps.columns == ["threshold", "coverage", "expected", "realised"]


def test_long_curves_are_thinned_in_dicts_but_not_in_frames():
    result = risk_coverage(np.linspace(0.5, 1, 5000))
    plain = result.to_dict()
    assert len(plain["coverage"]) == 201
    assert plain["coverage"][-1] == 1
    assert plain["threshold"][0] == 1
    assert len(result.to_frame()["coverage"]) == 5000


def test_inputs_are_not_modified():
    p, y, w = np.array(HAND_P), np.array(HAND_Y, float), np.array([1.0, 2, 0, 1])
    before = [column.copy() for column in (p, y, w)]
    abstain(p, y, ratio=3, weight=w, segments=["a", "b", "b", "a"])
    for column, old in zip((p, y, w), before, strict=True):
        assert (column == old).all()


# Bad input


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "either ratio or costs; got neither"),
        ({"ratio": 2, "costs": {"unsure": 1, "wrong": 2}}, "either ratio or costs; got both"),
        ({"ratio": 0.5}, 'below 1 a wrong answer costs less than "unsure"'),
        ({"ratio": math.inf}, "ratio must be a number at least 1 and at most 1e\\+100; got inf"),
        ({"ratio": "10"}, "ratio must be a number at least 1 and at most 1e\\+100; got '10'"),
        ({"ratio": True}, "got True"),
        ({"costs": {"unsure": 1}}, r"costs must have 'unsure' and 'wrong', and may have 'right'; got \['unsure'\]"),
        ({"costs": {"unsure": 1, "wrong": 2, "rigth": 0}}, "'rigth'"),
        ({"costs": 5}, "got 5"),
        ({"costs": {"unsure": 1, "wrong": "x"}}, "the cost 'wrong' must be a number"),
        (
            {"costs": {"unsure": 3, "wrong": 2}},
            '"unsure" costs 3, more than a wrong answer \\(2\\): one would always answer',
        ),
        (
            {"costs": {"unsure": -1, "wrong": 2}},
            '"unsure" costs -1, less than a right answer \\(0\\): one would never answer',
        ),
        ({"costs": {"unsure": 1, "wrong": 1, "right": 1}}, "no more than a right one \\(1\\): nothing to decide"),
        ({"ratio": 4, "level": 90}, "level must lie between 0 and 1"),
        ({"ratio": 4, "target": "row"}, "target must be one of"),
        ({"ratio": 4, "labelled": "audit"}, "labelled must be rows with outcomes"),
        ({"ratio": 4, "predicted_class": 2}, "predicted_class must be from 0 to 1; got 2 at row 0 \\(4 such rows\\)"),
        ({"ratio": 4, "predicted_class": [0, 1, 0.5, 1]}, "predicted_class must be from 0 to 1; got 0.5 at row 2"),
    ],
)
def test_invalid_arguments_are_rejected(given, message):
    with pytest.raises(ArgumentError, match=message):
        abstain(HAND_P, HAND_Y, **given)


@pytest.mark.parametrize(
    ("rows", "given", "message"),
    [
        ([0.2, 1.5], {}, r"p must lie in \[0, 1\]; got 1.5 at row 1"),
        ([0.2, math.nan], {}, "p must be finite"),
        ([], {}, "the arrays are empty"),
        ([[0.2], [0.1, 0.9]], {}, "p must hold numbers"),
        (0.5, {}, "p must be one-dimensional"),
        ([[[0.5, 0.5]]], {}, "p must be one-dimensional"),
        ([[0.2], [0.3]], {}, "one column per class, two or more"),
        ([[0.2, 0.2], [0.3, 0.7]], {}, "must add up to 1; got 0.4 at row 0"),
        ([0.2, 0.3], {"y": [0, 1, 1]}, "equal length; got 3 and 2"),
        ([0.2, 0.3], {"y": [0, 2]}, r"y must lie in \[0, 1\]; got 2"),
        ([[0.2, 0.8], [0.3, 0.7]], {"y": [0, 2]}, "y must hold class indices 0 to 1; got 2 at row 1"),
        ([0.2, 0.3], {"weight": [1, -1]}, "weight must not be negative"),
        ([[0.2, 0.8], [0.3, 0.7]], {"weight": [0, 0]}, "the weights are all zero"),
        ([0.2, 0.3], {"segments": ["a"]}, "segments must have one label per row"),
        ([0.2, 0.3], {"predicted_class": [1, 0, 1]}, "predicted_class must have one class per row; got 3 for 2 rows"),
        ([0.2, 0.3], {"predicted_class": "yes"}, "predicted_class must hold numbers"),
    ],
)
def test_invalid_rows_are_rejected(rows, given, message):
    with pytest.raises(DataError, match=message):
        abstain(rows, given.pop("y", None), ratio=4, **given)


@pytest.mark.parametrize(
    ("ratios", "message"),
    [
        ([], "ratios is empty"),
        ([1, 0.5], "costs more than an error\\); got 0.5"),
        ([2, math.nan], "got nan"),
        ([2, math.inf], "got inf"),
        (["a"], "ratios must be numbers"),
    ],
)
def test_invalid_ratios_are_rejected(ratios, message):
    with pytest.raises(ArgumentError, match=message):
        reward_curve(HAND_P, ratios=ratios)


def test_names_are_public():
    assert isinstance(tu.decisions.reward_curve(HAND_P), RewardCurve)
    assert {"abstain", "reward_curve", "risk_coverage", "Abstention", "RiskCoverage"} <= set(tu.decisions.__all__)


@pytest.mark.parametrize("target", ["rows", "population"])
@pytest.mark.parametrize("several", [False, True])
def test_expected_risk_agrees_with_the_expected_cost(target, several):
    # Labelled rows correct both: cost = unsure rows + 4 x wrong answers.
    random = np.random.default_rng(3)
    p, q = random.beta(1, 3, 2000), random.beta(1, 3, 1000)
    y = (random.random(1000) < 0.1 + 0.8 * q).astype(int)
    scores = np.stack([1 - p, p], axis=1) if several else p
    bound = (y, np.stack([1 - q, q], axis=1) if several else q)
    result = abstain(scores, ratio=4, labelled=bound, target=target)
    plain = abstain(scores, ratio=4, target=target)
    assert result.expected_risk > plain.expected_risk + 0.01
    wrong = result.expected_risk * result.answered * 2000
    assert (1 - result.answered) * 2000 + 4 * wrong == pytest.approx(result.expected_total)


def test_corrected_risk_stays_between_0_and_1():
    wrong = ([0] * 50, [0.9] * 50)
    with pytest.warns(ShiftWarning):
        assert abstain([0.99] * 50, ratio=4, labelled=wrong).expected_risk <= 1
    right = ([1] * 50, [0.8] * 50)
    with pytest.warns(ShiftWarning):
        assert abstain([0.99] * 50, ratio=4, labelled=right).expected_risk == 0


def test_labelled_class_scores_need_the_predicted_class():
    p = np.full((4, 3), 1 / 3)
    with pytest.raises(ArgumentError, match="the predicted class of its rows is unknown"):
        abstain(p, ratio=2, predicted_class=1, labelled=([0, 1, 2, 0], p))
