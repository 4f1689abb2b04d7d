"""Expected cost of a rule: its definition, its components, and the coverage of intervals."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup.decisions as td
from trueup.decisions.evidence import UnlabelledRows, mean_errors, post_stratify, quantile
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inference import likely_root
from trueup.metrics.inputs import Scored
from twins import three_se


def spread(errors, largest, failing):
    return float(likely_root(float(np.sum(errors**2)), largest, failing))


ERRORS = {"fn": 5, "fp": 1}


def test_worked_example():
    # Passed: .1, which costs 5 x .1. Acted on: .3 and .9, which cost .7 and .1.
    result = td.expected_cost([0.1, 0.3, 0.9], ERRORS, 0.2)
    assert result.estimate == pytest.approx(0.5 + 0.7 + 0.1)
    noise = math.sqrt(25 * 0.09 + 0.21 + 0.09)
    assert result.half_widths == {"label noise": pytest.approx(quantile(0.05) * noise)}
    assert (result.low, result.high) == (0.0, pytest.approx(1.3 + quantile(0.05) * noise))  # nothing can cost less than 0
    assert result.shares == (td.Share("pass", 1.0, 0.1, 0.5), td.Share("act", 2.0, 1.2, pytest.approx(0.8)))
    assert (result.correction, result.rows, result.evidence) == (0.0, 3.0, "")
    assert math.isnan(result.distance)


def test_labelled_rows_correct_the_estimate_and_determine_the_interval():
    # One labelled row in four was passed and cost 5: e = 5 (y - f) below .2, -(y - f) from there on.
    y, p = np.array([1.0, 0, 0, 1]), np.array([0.1, 0.1, 0.4, 0.4])
    e = np.array([5 * 0.9, -5 * 0.1, 0.4, -0.6])
    scores = np.array([0.05, 0.3, 0.3])
    result = td.expected_cost(scores, ERRORS, 0.2, (y, p))
    by_scores = 5 * 0.05 + 0.7 + 0.7
    assert result.correction == pytest.approx(3 * e.mean())
    assert result.estimate == pytest.approx(by_scores + 3 * e.mean())
    tau = spread(e, 5.0, 0.05) / 2
    z = quantile(0.05)
    assert result.half_widths["label noise"] == pytest.approx(z * tau * math.sqrt(3))
    assert result.half_widths["calibration"] == pytest.approx(z * tau * 3 / math.sqrt(4))
    wide = z * tau * math.sqrt(3 + 9 / 4)
    assert result.estimate - wide < 0 < 5 + 2 < result.estimate + wide  # so few rows allow every possible cost
    assert (result.low, result.high) == (0.0, 7.0)


def test_target_population_gives_the_cost_per_row():
    random = np.random.default_rng(0)
    p, labelled = random.beta(1, 3, 400), random.beta(1, 3, 300)
    y = (random.random(300) < labelled).astype(float)
    result = td.expected_cost(p, ERRORS, 0.2, (y, labelled), target="population")
    rows = UnlabelledRows(p, np.ones(400))
    weight = post_stratify(Scored(y, labelled, np.ones(300)), rows).w
    e, moved = np.where(labelled >= 0.2, -1, 5) * (y - labelled), mean_errors(Scored(y, labelled, np.ones(300)), rows)
    each, corrected = np.where(p >= 0.2, 1 - p, 5 * p), np.where(p >= 0.2, 1 - p - moved, 5 * (p + moved))
    assert result.estimate == pytest.approx(each.mean() + e @ weight / weight.sum())
    z, tau = quantile(0.05), spread(e * weight, 5.0 * weight.max(), 0.05) / weight.sum()
    # The expected cost of a row lies within these limits, and so does its distance from the mean.
    most = max(5 * min(0.2 + moved.max(), 1) - result.estimate, result.estimate)
    s = spread(corrected - result.estimate, most, 0.05) / 400
    assert result.half_widths == {"sampling": pytest.approx(z * s), "calibration": pytest.approx(z * tau)}
    assert result.high - result.estimate == pytest.approx(z * math.hypot(s, tau))


@given(
    st.lists(st.tuples(st.floats(0, 1), st.integers(1, 3)), min_size=1, max_size=12),
    st.sampled_from(["rows", "population"]),
)
def test_weight_two_equals_duplicated_rows(rows, target):
    p, w = (np.array(column, float) for column in zip(*rows, strict=True))
    one = td.expected_cost(p, ERRORS, 0.2, weight=w, target=target)
    other = td.expected_cost(np.repeat(p, w.astype(int)), ERRORS, 0.2, target=target)
    assert one.estimate == pytest.approx(other.estimate)
    assert [share.rows for share in one.shares] == [share.rows for share in other.shares]


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20), st.floats(0, 1), st.floats(0.5, 0.99))
def test_interval_contains_its_estimate_and_possible_costs_only(p, threshold, level):
    result = td.expected_cost(p, ERRORS, threshold, 0.2, level=level)
    acted = sum(score >= threshold for score in p)
    assert 0 <= result.low <= result.estimate <= result.high <= acted + 5 * (len(p) - acted) + 1e-9


def test_fixed_costs_count_for_these_rows_only():
    p = np.linspace(0, 1, 50)
    best = td.best_rule(p, ERRORS, fixed_costs={"act": 7})
    assert td.expected_cost(p, ERRORS, best).estimate == pytest.approx(best.estimate)
    halves = td.expected_cost(p, ERRORS, best, segments=p > 0.5)
    assert halves.estimate == pytest.approx(best.estimate)
    assert sum(one.estimate for one in halves.by_segment.values()) == pytest.approx(best.estimate - 7)
    per_row = td.expected_cost(p, ERRORS, best, target="population")
    assert per_row.estimate == pytest.approx((best.estimate - 7) / 50)


def test_segments_add_up_and_equal_separate_calls():
    random = np.random.default_rng(1)
    p, segment = random.beta(1, 3, 600), random.choice(["n", "s"], 600)
    y, labelled, own = (random.random(500) < 0.3).astype(float), random.beta(1, 3, 500), random.choice(["n", "s"], 500)
    result = td.expected_cost(p, ERRORS, 0.2, td.Labelled(y, labelled, segments=own), segments=segment)
    for name in ("n", "s"):
        separate = td.expected_cost(p[segment == name], ERRORS, 0.2, (y[own == name], labelled[own == name]))
        part = result.by_segment[name]
        assert (part.estimate, part.low, part.high) == pytest.approx((separate.estimate, separate.low, separate.high))
        assert part.half_widths == pytest.approx(separate.half_widths)
        assert part.evidence == separate.evidence
    assert result.estimate == pytest.approx(sum(one.estimate for one in result.by_segment.values()))
    assert result.high - result.low < sum(one.high - one.low for one in result.by_segment.values())


def test_without_evidence_segments_only_split_the_cost():
    p, segment = np.linspace(0, 1, 40), np.arange(40) % 4
    result, whole = td.expected_cost(p, ERRORS, 0.2, segments=segment), td.expected_cost(p, ERRORS, 0.2)
    assert (result.estimate, result.low, result.high) == pytest.approx((whole.estimate, whole.low, whole.high))
    assert list(result.by_segment) == ["0", "1", "2", "3"]


def test_result_converts_to_json():
    result = td.expected_cost([0.1, 0.3], ERRORS, 0.2, 0.01, segments=["a", "b"])
    plain = json.loads(json.dumps(result.to_dict(), allow_nan=False))
    assert plain["distance"] is None
    assert plain["by_segment"]["a"]["estimate"] == 0.5
    assert plain["shares"][0] == {"action": "pass", "rows": 1.0, "positives": 0.1, "cost": 0.5}


def test_repr_is_one_line():
    result = td.expected_cost([0.1, 0.3, 0.9], ERRORS, 0.2, 0.01, target="population")
    assert repr(result).startswith("<ExpectedCost 0.4333 per row, ")
    assert "calibration 0.06; c at most 0.01, as given)>" in repr(result)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"level": 1}, "level must lie between 0 and 1; got 1"), ({"level": "90%"}, "level must lie between 0 and 1"),
        ({"target": "all"}, "target must be"), ({"rule": 20}, r"must lie in \[0, 1\]"),
        ({"costs": {"fn": 5}}, "must name both 'fn' and 'fp'"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        td.expected_cost([0.1, 0.2], **({"costs": ERRORS, "rule": 0.2} | arguments))


@pytest.mark.parametrize(
    ("p", "weight", "message"),
    [
        ([0.1, math.nan], None, "p must be finite"), ([], None, "the arrays are empty"), ([0.1, 7], None, "got 7"),
        ([0.1, 0.2], [1], "equal length"), ([0.1, 0.2], [1e60, 1], "too far from 1 to be summed"),
        ([0.1, 0.2], [1e-60, 0], "too far from 1 to be summed; the largest is 1e-60"),
        ([0.1, 0.2], [0, 0], "all zero"), ("scores", None, "must hold numbers|one-dimensional"),
    ],
)  # fmt: skip
def test_invalid_rows_are_rejected(p, weight, message):
    with pytest.raises(DataError, match=message):
        td.expected_cost(p, ERRORS, 0.2, weight=weight)


def test_tiny_costs_are_rejected():
    with pytest.raises(ArgumentError, match="costs are too small to add; the largest is 1e-200"):
        td.expected_cost([0.1, 0.2], {"fn": 1e-200, "fp": 1e-201}, 0.2)
    for unit in (1e-80, 1e80):
        result, expected = (td.expected_cost([0.1, 0.3], {"fn": 5 * by, "fp": by}, 0.2) for by in (unit, 1.0))
        assert result.high / unit == pytest.approx(expected.high)


@pytest.mark.parametrize("target", ["rows", "population"])
def test_level_close_to_one_gives_the_possible_range(target):
    p = np.linspace(0, 1, 40)
    labelled = td.Labelled(p > 0.5, p, segments=np.arange(40) % 20)
    for bound in (labelled, 0.1):
        result = td.expected_cost(p, ERRORS, 0.2, bound, level=1 - 1e-16, segments=np.arange(40) % 20, target=target)
        assert result.low == 0
        assert result.high > 1


def test_repr_of_a_single_row():
    assert "of 1 row, " in repr(td.expected_cost([0.3], ERRORS, 0.2, ([1], [0.3])))
    assert repr(td.expected_cost([0.3], ERRORS, 0.2, ([1], [0.3]))).endswith(
        "1 labelled row, if nothing has changed since)>"
    )


# Coverage of intervals

ONCE_IN_A_WHILE = pytest.mark.filterwarnings("ignore::trueup.errors.ShiftWarning")  # one in a thousand by chance
SHAPES = {"calibrated": lambda f: f, "too sure": lambda f: 0.1 + 0.6 * f, "rare": lambda f: f / 15}


def draw(random, n, shape):
    f = random.beta(1, 3, n) / (15 if shape == "rare" else 1)
    chance = f if shape == "rare" else SHAPES[shape](f)
    return f, (random.random(n) < chance).astype(float), chance


@ONCE_IN_A_WHILE
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("target", ["rows", "population"])
@pytest.mark.repeated(60, 300)
def test_intervals_of_a_fixed_rule_have_their_coverage(shape, target, repetitions):
    random, covered = np.random.default_rng(7), 0
    rule = 0.2 / (15 if shape == "rare" else 1)
    many, _, chance = draw(random, 300_000, shape)
    truth = float(np.mean(np.where(many >= rule, 1 - chance, 5 * chance)))
    for _ in range(repetitions):
        (p, y, _), (scores, outcome, _) = draw(random, 800, shape), draw(random, 500, shape)
        result = td.expected_cost(p, ERRORS, rule, (outcome, scores), target=target)
        cost = truth if target == "population" else float(np.sum(np.where(p >= rule, 1 - y, 5 * y)))
        covered += result.low <= cost <= result.high
    assert covered / repetitions >= 0.9 - three_se(0.9, repetitions)


@pytest.mark.repeated(25, 100)
def test_corrections_vary_with_the_number_of_rows_per_segment(repetitions):
    # Scores are uninformative: the cost of a row depends on its segment alone, which is random.
    random, covered = np.random.default_rng(2), {"cost": 0, "precision": 0}
    y = np.repeat([1, 0, 1, 0], [9000, 1000, 1000, 9000])
    labelled = td.Labelled(y, np.full(20_000, 0.5), segments=np.repeat([0, 1], 10_000))
    for _ in range(repetitions):
        segment, p = random.integers(0, 2, 200), np.full(200, 0.5)
        cost = td.expected_cost(p, ERRORS, 0.2, labelled, segments=segment, target="population")
        rates = td.expected_confusion(p, 0.2, labelled, segments=segment, target="population")
        covered["cost"] += cost.low <= 0.5 <= cost.high
        covered["precision"] += rates.precision.low <= 0.5 <= rates.precision.high
    assert min(covered.values()) / repetitions >= 0.9 - three_se(0.9, repetitions)


def test_sampling_variance_includes_the_corrections_of_segments():
    # Rows of both segments cost .5 by their scores; labelled rows subtract .4 from one and add .4 to the other.
    y = np.repeat([1.0, 0, 1, 0], [9, 1, 1, 9])
    labelled = td.Labelled(y, np.full(20, 0.5), segments=np.repeat(["a", "b"], 10))
    result = td.expected_cost(np.full(5, 0.5), ERRORS, 0.2, labelled, segments=[*"aaabb"], target="population")
    each = np.array([0.1, 0.1, 0.1, 0.9, 0.9])
    mean = each.mean()
    assert result.estimate == pytest.approx(mean)
    # Scores from .2 on are moved by -.4 to .4, and then cost 0 to 1; those below cost 0 to 5 (.2 + .4).
    s = spread(each - mean, 3 - mean, 0.05) / math.sqrt(5)
    assert result.half_widths["sampling"] == pytest.approx(quantile(0.05) * s / math.sqrt(5))


def test_sampling_variance_of_weighted_segments_is_that_of_row_costs():
    random = np.random.default_rng(4)
    p, w, segment = random.random(60), random.exponential(1, 60), np.repeat(["a", "b"], 30)
    lp, own = random.random(400), np.repeat(["a", "b"], 200)
    y = (random.random(400) < lp / 2 + 0.4 * (own == "b")).astype(float)
    result = td.expected_cost(
        p, ERRORS, 0.2, td.Labelled(y, lp, segments=own), weight=w, segments=segment, target="population"
    )
    g, added, most = p.copy(), 0.0, 0.0
    for name in ("a", "b"):
        known, here = Scored(y[own == name], lp[own == name], np.ones(200)), segment == name
        rows = UnlabelledRows(p[here], w[here])
        weight, moved = post_stratify(known, rows).w, mean_errors(known, rows)
        added += w[here].sum() * np.average(np.where(known.p >= 0.2, -1, 5) * (known.y - known.p), weights=weight)
        g[here] += moved
        most = max(most, 5 * min(0.2 + moved.max(), 1))
    mean = float(w @ np.where(p >= 0.2, 1 - p, 5 * p) + added) / w.sum()
    each, most = np.where(p >= 0.2, 1 - g, 5 * g), w.max() * max(most - mean, mean)
    assert result.estimate == pytest.approx(mean)
    assert result.half_widths["sampling"] == pytest.approx(quantile(0.05) * spread(w * (each - mean), most, 0.05) / w.sum())


@ONCE_IN_A_WHILE
@pytest.mark.repeated(60, 300)
def test_tuned_rules_need_wider_intervals(repetitions):
    """Thresholds chosen on the labelled rows: the interval of a fixed rule fails, that of a tuned rule holds."""
    random, covered = np.random.default_rng(3), {False: 0, True: 0}
    costs = {"fn": 1, "fp": 1}
    for _ in range(repetitions):
        labelled, scores = (random.random(2000) < 0.5).astype(float), random.random(2000)  # uninformative scores
        p = random.random(10_000)
        y = (random.random(10_000) < 0.5).astype(float)
        order = np.argsort(scores)
        below = np.append(0.0, np.cumsum(2 * labelled[order] - 1))  # cost of a threshold at each score, up to a constant
        best = np.append(scores[order], 1.0)[np.argmin(below)]
        cost = float(np.sum(np.where(p >= best, 1 - y, y)))
        for searched in covered:
            result = td.expected_cost(p, costs, float(best), (labelled, scores), tuned=searched)
            covered[searched] += result.low <= cost <= result.high
    assert covered[True] / repetitions >= 0.9 - three_se(0.9, repetitions)
    assert covered[False] / repetitions < 0.86


@ONCE_IN_A_WHILE
@pytest.mark.repeated(75, 300)
def test_best_rule_of_the_scores_is_not_tuned(repetitions):
    random, covered = np.random.default_rng(5), 0
    for _ in range(repetitions):
        (p, y, _), (scores, outcome, _) = draw(random, 800, "too sure"), draw(random, 500, "too sure")
        best = td.best_rule(p, ERRORS)
        result = td.expected_cost(p, ERRORS, best, (outcome, scores))
        covered += result.low <= float(np.sum(np.where(p >= best.threshold, 1 - y, 5 * y))) <= result.high
    assert covered / repetitions >= 0.9 - three_se(0.9, repetitions)


@ONCE_IN_A_WHILE
@pytest.mark.repeated(75, 300)
def test_tuned_intervals_also_hold_for_a_fixed_rule(repetitions):
    random, covered = np.random.default_rng(6), 0
    for _ in range(repetitions):
        (p, y, _), (scores, outcome, _) = draw(random, 800, "too sure"), draw(random, 500, "too sure")
        result = td.expected_cost(p, ERRORS, 0.3, td.Labelled(outcome, scores), tuned=True)
        covered += result.low <= float(np.sum(np.where(p >= 0.3, 1 - y, 5 * y))) <= result.high
    assert covered / repetitions >= 0.9 - three_se(0.9, repetitions)
