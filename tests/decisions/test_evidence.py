"""Evidence about the errors of scores, detection of shifts, and inequalities that always hold."""

from __future__ import annotations

import itertools
import warnings
from types import SimpleNamespace

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup as tu
import trueup.decisions as td
from trueup.decisions.evidence import (
    UnlabelledRows,
    compare_scores,
    find_strata,
    mean_errors,
    post_stratify,
    quantile,
    upper_bound,
)
from trueup.decisions.intervals import half_variation
from trueup.decisions.rules import as_actions, as_rule
from trueup.errors import ArgumentError, DataError, HardPredictionWarning, ShiftWarning
from trueup.metrics import calibration_bound, ecce
from trueup.metrics.inputs import Scored


def swing(rule):
    return float(half_variation(rule.positive - rule.negative))


ERRORS = {"fn": 5, "fp": 1}


@st.composite
def labelled_rows_and_rule(draw):
    """Labelled rows, and a rule of one to four actions."""
    n = draw(st.integers(1, 40))
    p = np.array(draw(st.lists(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]) | st.floats(0, 1), min_size=n, max_size=n)))
    y = np.array(draw(st.lists(st.sampled_from([0.0, 1.0]), min_size=n, max_size=n)))
    w = np.array(draw(st.lists(st.sampled_from([1.0, 2.0, 0.5]), min_size=n, max_size=n)))
    cuts = sorted(draw(st.sets(st.floats(0.01, 0.99), max_size=3)))
    cost = st.floats(-10, 10)
    actions = [(draw(cost), draw(cost)) for _ in range(len(cuts) + 1)]
    ends = [0.0, *cuts, 1.0]
    return y, p, w, actions, list(itertools.pairwise(ends))


def realised(y, p, w, rule):
    at = rule.action_index(p)
    positive, negative = (np.array([getattr(one, of) for one in rule.actions]) for of in ("positive", "negative"))
    return float(np.sum(w * np.where(y == 1, positive[at], negative[at])))


@given(labelled_rows_and_rule())
def test_claim_1_and_equation_2_are_never_violated(case):
    # |realised cost - expected cost| <= n c_emp sum |a - b| (Gao, Parameswaran & Peng 2017), and with our own factor.
    y, p, w, actions, intervals = case
    rule = as_rule(intervals, as_actions(actions))
    error = abs(realised(y, p, w, rule) - float(w @ rule.expected_costs(p)))
    c = ecce(y, p, w)
    claim = float(np.abs(rule.positive - rule.negative).sum())
    assert error <= w.sum() * c * swing(rule) + 1e-9
    assert swing(rule) <= claim + 1e-9


@given(st.floats(-5, 5), st.floats(-5, 5))
def test_half_variation_of_two_actions_is_the_largest_possible_error(low, high):
    # Cumulative differences within a range of 1: the error is D0 C_t + D1 (C_n - C_t), over all such C.
    rule = as_rule([(0, 0.5), (0.5, 1)], as_actions([(low, 0), (high, 0)]))
    ends = np.linspace(-1, 1, 41)
    at, last = np.meshgrid(ends, ends)
    fits = np.maximum(0, np.maximum(at, last)) - np.minimum(0, np.minimum(at, last)) <= 1 + 1e-9
    largest = np.abs(low * at + high * (last - at))[fits].max()
    assert swing(rule) == pytest.approx(largest, abs=1e-9)


def test_half_variation_equals_claim_1_for_alternating_signs():
    assert swing(as_rule(0.2, as_actions(ERRORS))) == 6
    assert swing(as_rule([(0, 0.3), (0.3, 1)], as_actions([(5, 0), (2, 1)]))) == 5  # both cost more on positives


def rows(n, seed=0, off=0.0):
    random = np.random.default_rng(seed)
    p = random.beta(1, 3, n)
    return (random.random(n) < np.clip(p + off, 0, 1)).astype(float), p


def test_every_kind_of_evidence_is_accepted():
    y, p = rows(2000)
    frame = {"y": y, "p": p, "region": np.where(p > 0.3, "n", "s")}
    expected = {
        "rows": td.expected_cost(p, ERRORS, 0.2, (y, p)),
        "weighted": td.expected_cost(p, ERRORS, 0.2, (y, p, np.ones(2000))),
        "labelled": td.expected_cost(p, ERRORS, 0.2, td.Labelled(y, p)),
        "bound": td.expected_cost(p, ERRORS, 0.2, calibration_bound(y, p)),
        "audit": td.expected_cost(p, ERRORS, 0.2, tu.audit(frame, outcome="y", prediction="p")),
        "number": td.expected_cost(p, ERRORS, 0.2, 0.01),
        "none": td.expected_cost(p, ERRORS, 0.2),
    }
    assert expected["rows"].evidence == expected["labelled"].evidence == "2,000 labelled rows"
    assert expected["rows"].high == expected["weighted"].high == expected["labelled"].high
    assert expected["bound"].evidence.startswith("c at most")
    assert "from the audit of all rows" in expected["audit"].evidence
    assert expected["number"].half_widths["calibration"] == pytest.approx(2000 * 0.01 * 6)
    assert set(expected["none"].half_widths) == {"label noise"}
    assert expected["none"].evidence == ""


def test_an_audit_bounds_c_about_as_its_rows_do():
    y, p = rows(5000, off=0.03)
    result = tu.audit({"y": y, "p": p}, outcome="y", prediction="p")
    assert upper_bound(result, 0.05)[0] == pytest.approx(calibration_bound(y, p, delta=0.05).upper, rel=0.05)


def test_audit_without_errors_still_has_a_positive_bound():
    y, p = np.array([0.0, 1.0] * 50), np.full(100, 0.5)
    result = tu.audit({"y": y, "p": p}, outcome="y", prediction="p")
    assert result.overall.ecce == 0
    assert upper_bound(result, 0.05)[0] > 0.05


def test_audit_segments_are_found_by_name():
    y, p = rows(4000)
    region = np.where(np.arange(4000) % 3, "north", "south")
    result = tu.audit({"y": y, "p": p, "region": region}, outcome="y", prediction="p", by=["region"])
    cost = td.expected_cost(p, ERRORS, 0.2, result, segments={"region": region})
    assert set(cost.by_segment) == {"region=north", "region=south"}
    assert "region=south" in cost.by_segment["region=south"].evidence


def test_audit_bounds_c_for_overconfident_scores():
    # c is .24: scores of .02 come true half of the time. Their noise is then that of outcomes, not that of such scores.
    random, covered = np.random.default_rng(3), 0
    for _ in range(200):
        p = random.choice([0.02, 0.98], 1000)
        y = (random.random(1000) < np.where(p < 0.5, 0.5, 0.98)).astype(float)
        covered += upper_bound(tu.audit({"y": y, "p": p}, outcome="y", prediction="p"), 0.1)[0] >= 0.24
    assert covered / 200 >= 0.9 - 3 * np.sqrt(0.9 * 0.1 / 200)


def test_a_weighted_audit_bounds_c_by_the_noise_of_its_weights():
    y, p = rows(2000, off=0.05)
    w = np.random.default_rng(4).exponential(1, 2000)
    result = tu.audit({"y": y, "p": p, "w": w}, outcome="y", prediction="p", weight="w")
    noise = quantile(0.05) * np.sqrt(np.sum((w * (y - p)) ** 2)) / w.sum()
    by_rows = calibration_bound(y, p, w, delta=0.05).upper
    assert result.overall.ecce + 0.97 * noise <= upper_bound(result, 0.05)[0] <= by_rows


def test_a_weighted_audit_of_one_score_bounds_c_by_the_noise_of_outcomes():
    random = np.random.default_rng(6)
    p, w = np.full(3000, 0.05), random.exponential(1, 3000)
    y = (random.random(3000) < 0.2).astype(float)
    result = tu.audit({"y": y, "p": p, "w": w}, outcome="y", prediction="p", weight="w")
    noise = np.sqrt(np.sum((w * (y - p)) ** 2)) / w.sum()
    assert upper_bound(result, 0.05)[0] - result.overall.ecce > 0.97 * quantile(0.05) * noise


def test_audits_of_other_tasks_are_rejected():
    random = np.random.default_rng(5)
    result = tu.audit(
        {"y": random.normal(10, 1, 300), "p": random.normal(10, 1, 300)}, outcome="y", prediction="p", task="regression"
    )
    with pytest.raises(ArgumentError, match="this audit has task 'regression'"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, result)


def test_audit_bins_can_be_passed_as_labels():
    y, p = rows(1000)
    age = np.arange(1000) % 60
    result = tu.audit({"y": y, "p": p, "age": age}, outcome="y", prediction="p", by=["age"], bins={"age": [30]})
    with pytest.raises(ArgumentError, match="the audit has no segment 'age=0'") as error:
        td.expected_cost(p, ERRORS, 0.2, result, segments={"age": age})
    assert "bins numbers and dates" in str(error.value)
    expected = td.expected_cost(p, ERRORS, 0.2, result, segments=np.where(age < 30, "age<30", "age>=30"))
    assert "from the audit of age<30" in expected.by_segment["age<30"].evidence


LABELS = {
    "texts": (["a", None] * 200, ["r is missing", "r=a"]), "truth": ([True, False] * 200, ["r=false", "r=true"]),
    "numbers": ([1.0, np.nan] * 200, ["r is missing", "r=1"]),
    "categories": (pd.Series(["a", None] * 200).astype("category"), ["r is missing", "r=a"]),
    "whole": (pd.Series([1, None] * 200, dtype="Int64"), ["r is missing", "r=1"]),
    "polars": (pl.Series(["a", None] * 200), ["r is missing", "r=a"]),
}  # fmt: skip


@pytest.mark.parametrize("kind", LABELS)
def test_labels_are_formatted_as_in_an_audit(kind):
    values, names = LABELS[kind]
    y, p = rows(400)
    result = tu.audit({"y": y, "p": p, "r": values}, outcome="y", prediction="p", by=["r"])
    expected = td.expected_cost(p, ERRORS, 0.2, result, segments={"r": values})
    assert list(expected.by_segment) == names
    for name, one in expected.by_segment.items():
        assert f"from the audit of {name}" in one.evidence


def test_integer_and_float_labels_are_equal():
    y, p = rows(400)
    segment = np.arange(400) % 2
    expected = td.expected_cost(p, ERRORS, 0.2, td.Labelled(y, p, segments=segment.astype(float)), segments=segment)
    assert list(expected.by_segment) == ["0", "1"]
    missing = td.expected_cost(p, ERRORS, 0.2, segments=np.where(segment, 3.0, np.nan))
    assert list(missing.by_segment) == ["(missing)", "3"]
    days = np.where(segment, np.datetime64("2024-05-01"), np.datetime64("2024-04-30")).astype("datetime64[ns]")
    assert list(td.expected_cost(p, ERRORS, 0.2, segments=days).by_segment) == ["2024-04-30", "2024-05-01"]


def test_labelled_rows_are_copied():
    y, p = rows(50)
    p = p.copy()
    labelled = td.Labelled(y, p)
    before = td.expected_cost([0.1, 0.3], ERRORS, 0.2, labelled).high
    y[:], p[:] = 1, 0
    assert td.expected_cost([0.1, 0.3], ERRORS, 0.2, labelled).high == before
    with pytest.raises(ValueError, match="read-only"):
        labelled.rows.p[0] = 1


@pytest.mark.parametrize("weight", [[1e308, 1e308, 1e-300, 1e-300], [1, 1, 1e-200, 1e-200]])
def test_negligible_weights_keep_segments_aligned(weight):
    labelled = td.Labelled([0, 1, 1, 0], [0.2, 0.3, 0.4, 0.5], weight, segments=[*"aabb"])
    expected = td.expected_cost([0.2, 0.3], ERRORS, 0.2, labelled, segments=[*"aa"])
    assert expected.estimate == pytest.approx(td.expected_cost([0.2, 0.3], ERRORS, 0.2, ([0, 1], [0.2, 0.3])).estimate)
    if weight[0] == 1:
        light = td.expected_cost([0.4, 0.5], ERRORS, 0.2, labelled, segments=[*"bb"])
        assert light.high == td.expected_cost([0.4, 0.5], ERRORS, 0.2, ([1, 0], [0.4, 0.5])).high


@pytest.mark.parametrize(
    ("bound", "message"),
    [
        (2.0, "labelled must be rows with outcomes, a fitted calibrator, a model with evidence, an audit, a calibration bound"),
        (-0.1, "labelled must be"), (True, "labelled must be"), ("audit", "labelled must be"), ([0.1, 0.2], "labelled must be"),
    ],
)  # fmt: skip
def test_invalid_evidence_is_rejected(bound, message):
    with pytest.raises(ArgumentError, match=message):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, bound)


def test_invalid_labelled_rows_are_rejected():
    with pytest.raises(DataError, match="equal length"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, ([0, 1, 1], [0.1, 0.2]))
    with pytest.raises(DataError, match=r"y must lie in \[0, 1\]"):
        td.Labelled([2, 0], [0.1, 0.2])


def test_segments_without_labelled_rows_are_rejected():
    y, p = rows(100)
    labelled = td.Labelled(y, p, segments=["n"] * 100)
    with pytest.raises(ArgumentError, match="no labelled row is in segment 's'") as error:
        td.expected_cost(p, ERRORS, 0.2, labelled, segments=["s"] * 100)
    assert "labelled segments are n" in str(error.value)
    with pytest.raises(ArgumentError, match="the labelled rows have no segments"):
        td.expected_cost(p, ERRORS, 0.2, (y, p), segments=["s"] * 100)
    with pytest.raises(ArgumentError, match="does not hold for a segment"):
        td.expected_cost(p, ERRORS, 0.2, calibration_bound(y, p), segments=["s"] * 100)


def test_segments_must_match_the_rows():
    with pytest.raises(DataError, match=r"segments must have one label per row; got shape \(3,\) for 2 rows"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, segments=["a", "b", "c"])
    with pytest.raises(DataError, match="region must have one label per row"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, segments={"region": ["a"]})
    with pytest.raises(ArgumentError, match="segments has no columns"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, segments={})


def test_rows_of_weight_zero_have_no_segment():
    expected = td.expected_cost([0.1, 0.2, 0.9], ERRORS, 0.2, weight=[1, 1, 0], segments=["a", "a", "b"])
    assert set(expected.by_segment) == {"a"}
    labelled = td.Labelled([0, 1, 1], [0.1, 0.2, 0.9], [1, 0, 1], ["a", "b", "a"])
    assert labelled.segments.names == ("a",)
    assert len(labelled) == 2


def test_combinations_of_the_same_name_are_one_segment():
    segments = {"a": ["1 & b=2", "1"], "b": ["3", "2 & b=3"]}
    expected = td.expected_cost([0.1, 0.4], ERRORS, 0.2, segments=segments)
    assert list(expected.by_segment) == ["a=1 & b=2 & b=3"]
    assert expected.estimate == td.expected_cost([0.1, 0.4], ERRORS, 0.2).estimate


def test_two_columns_form_segments_named_as_in_an_audit():
    expected = td.expected_cost([0.1, 0.2], ERRORS, 0.2, segments={"a": ["x", "y"], "b": [1, 2]})
    assert set(expected.by_segment) == {"a=x & b=1", "a=y & b=2"}


def test_shifted_scores_raise_a_warning():
    y, p = rows(2000)
    with pytest.warns(
        ShiftWarning, match="the score distribution has shifted: .* away from that of the labelled rows"
    ) as caught:
        assert td.expected_cost(p**2, ERRORS, 0.2, (y, p)).distance > 0.1
    with pytest.warns(ShiftWarning) as deeper:
        td.abstain(p**2, ratio=4, labelled=(y, p))
    assert {one.filename for one in [*caught, *deeper]} == {__file__}  # it points at the calling line, however deep
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert td.expected_cost(rows(3000, 1)[1], ERRORS, 0.2, (y, p)).distance < 0.05


def test_score_distributions_are_weighted():
    random = np.random.default_rng(2)
    one, other, w = random.random(2000), random.random(4000), random.random(4000)
    lighter = np.where(other < 0.5, 0.2, 1.0)
    assert not compare_scores(one, other).relevant
    assert compare_scores(one, other, weight=lighter).relevant
    kept = random.random(4000) < lighter  # fewer low scores, and the weights that compensate
    assert compare_scores(one, other[kept]).relevant
    assert not compare_scores(one, other[kept], weight=1 / lighter[kept]).relevant
    assert not compare_scores(other[kept], one, reference_weight=1 / lighter[kept]).relevant
    # A weight of 2 counts the row twice, but enters through the effective sample size.
    whole = 1.0 + (w > 0.5)
    twice = compare_scores(one, np.repeat(other, whole.astype(int)) ** 1.2)
    weighted = compare_scores(one, other**1.2, weight=whole)
    assert weighted.distance == pytest.approx(twice.distance)
    assert twice.distance > 0.01
    assert twice.p_value < weighted.p_value < 1
    heavy = np.ones(4000)
    heavy[0] = 4000
    assert not compare_scores(one, other, weight=heavy).relevant


def test_small_shifts_are_not_reported_however_significant():
    one = np.repeat([0.2, 0.8], [500_000, 500_000])
    result = compare_scores(one, np.repeat([0.2, 0.8], [510_000, 490_000]))
    assert result.distance == pytest.approx(0.01)
    assert result.p_value < 1e-9
    assert not result.relevant


def test_held_out_rows_of_a_calibrator_have_a_larger_tolerance():
    # Other fold models scored them: steps may differ by a quarter of a standard deviation.
    p = np.repeat([0.1, 0.3, 0.6], [500, 300, 200])
    y = (np.arange(1000) % 4 == 0).astype(float)
    elsewhere = p + 0.2 * p.std()
    fitted = SimpleNamespace(held_out_=Scored(y, p, np.ones(1000)), held_out_before_=None)
    assert td.expected_cost(elsewhere, ERRORS, 0.2, fitted).distance == 0
    with pytest.warns(ShiftWarning):
        td.expected_cost(elsewhere, ERRORS, 0.2, (y, p))
    with pytest.raises(ArgumentError, match="has no held-out rows"):
        td.expected_cost(p, ERRORS, 0.2, SimpleNamespace(held_out_=None, held_out_before_=None))


def test_shifts_caused_by_weights_raise_a_warning():
    y, p = rows(2000)
    with pytest.warns(ShiftWarning, match="the score distribution has shifted"):
        td.expected_cost(p, ERRORS, 0.2, (y, p), weight=np.where(p < 0.2, 0.1, 1.0))


def test_shift_test_keeps_its_level():
    random = np.random.default_rng(0)
    values = [compare_scores(random.random(300), random.random(500)).p_value for _ in range(400)]
    assert np.mean(np.array(values) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_shifts_of_half_a_standard_deviation_are_detected():
    random = np.random.default_rng(1)
    result = [compare_scores(random.normal(0.5, 0.1, 300), random.normal(0.55, 0.1, 500)).relevant for _ in range(200)]
    assert np.mean(result) > 0.9


def test_small_moves_of_steps_are_tolerated():
    steps = np.repeat([0.1, 0.3, 0.6], [500, 300, 200])
    assert compare_scores(steps, steps + 0.01).distance == 0
    assert compare_scores(steps, steps + 0.1).relevant


def test_distance_is_that_of_the_distribution_functions():
    # A tenth of the standard deviation is .005.
    assert compare_scores(np.array([0.1, 0.2]), np.array([0.2, 0.3])).distance == 0.5
    assert compare_scores(np.array([0.1, 0.2]), np.array([0.0, 0.2])).distance == 0.5
    assert compare_scores(np.array([0.1, 0.2]), np.array([0.1, 0.204])).distance == 0.0
    assert compare_scores(np.array([0.5]), np.array([0.5])).distance == 0.0


def test_swapped_outcomes_and_scores_are_detected():
    y, p = rows(200)
    with pytest.raises(DataError, match="are they swapped"):
        td.expected_cost(p, ERRORS, 0.2, (p, y))
    with pytest.warns(HardPredictionWarning, match="every score is 0 or 1") as caught:
        td.expected_cost(y, ERRORS, 0.2)
    assert caught[0].filename == __file__
    with pytest.warns(HardPredictionWarning, match="every score of the labelled rows is 0 or 1"):
        td.Labelled(y, y)


def test_uncorrected_scores_raise_a_warning():
    random = np.random.default_rng(0)
    p = random.beta(1, 3, 6000)
    y = (random.random(6000) < 0.1 + 0.6 * p).astype(float)
    fix = tu.Platt(prediction="p", stopping=tu.CrossValidation(5)).fit({"p": p[:3000]}, y[:3000])
    with pytest.warns(ShiftWarning, match="look like those before the correction"):
        td.expected_cost(p[3000:], ERRORS, 0.2, fix)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        td.expected_cost(fix.predict({"p": p[3000:]}), ERRORS, 0.2, fix)


def test_frames_as_evidence_are_named_not_printed():
    pandas = pytest.importorskip("pandas")
    with pytest.raises(ArgumentError, match="got DataFrame"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, pandas.DataFrame({"y": [0, 1]}))


# Post-stratification


def unlabelled(p, w=None):
    return UnlabelledRows(np.asarray(p, float), np.ones(len(p)) if w is None else np.asarray(w, float))


def test_strata_of_labelled_rows_get_the_weight_they_have_among_the_rows():
    # 300 labelled rows at 0.2 and 100 at 0.6; of the other rows, half of the weight is at each.
    known = Scored(np.repeat([0.0, 1.0], [300, 100]), np.repeat([0.2, 0.6], [300, 100]), np.full(400, 2.0))
    weighted = post_stratify(known, unlabelled([0.1, 0.2, 0.7], [1, 2, 3]))
    assert weighted.w == pytest.approx(2 * np.repeat([0.5 / 0.75, 0.5 / 0.25], [300, 100]))
    assert weighted.w.sum() == pytest.approx(known.w.sum())
    assert mean_errors(known, unlabelled([0.1, 0.2, 0.7])) == pytest.approx([-0.1, -0.2, 0.3])  # -0.2, -0.2, 0.4, in [0, 1]
    # The same scores: the same weights, bit by bit.
    assert np.array_equal(post_stratify(known, unlabelled(known.p)).w, known.w)


def test_few_labelled_rows_or_a_single_score_are_one_stratum():
    few = Scored(np.zeros(199), np.linspace(0, 1, 199), np.ones(199))
    assert post_stratify(few, unlabelled([0.5])) is few
    one = Scored(np.zeros(900), np.full(900, 0.4), np.ones(900))
    assert post_stratify(one, unlabelled([0.5])) is one


@given(st.integers(0, 10**6), st.integers(200, 900), st.integers(1, 30))
def test_strata_are_never_small_and_do_not_split_equal_scores(seed, n, distinct):
    random = np.random.default_rng(seed)
    p, w = random.integers(0, distinct, n) / distinct, random.integers(1, 5, n).astype(float)
    edges = find_strata(Scored(np.zeros(n), p, w))
    assert len(edges) < 20
    assert (np.diff(edges) > 0).all()
    assert np.isin(edges, p).all()
    assert np.bincount(np.searchsorted(edges, p, side="right")).min() >= 50


@pytest.mark.filterwarnings("ignore::trueup.errors.ShiftWarning")
@pytest.mark.repeated(15, 40)
def test_intervals_cover_if_the_score_distribution_shifts_moderately(repetitions):
    # Scores that are too extreme, and a shift by 0.1 standard deviations: unweighted labelled rows bias average precision
    # by 0.05, and its interval then covers in about 6 of 10 runs.
    random, covered = np.random.default_rng(0), np.zeros(4)
    for _ in range(repetitions):
        x, new = random.normal(size=2_000), random.normal(size=4_000) + 0.1
        y, outcome = (random.random(len(z)) < 1 / (1 + np.exp(2 - 0.6 * z)) for z in (x, new))
        known, p = (1 / (1 + np.exp(1.6 - 1.2 * z)) for z in (x, new))
        labelled = y.astype(float), known
        curve, cost = td.expected_pr(p, labelled), td.expected_cost(p, ERRORS, 0.25, labelled)
        confusion = td.expected_confusion(p, 0.25, labelled)
        hits = outcome[np.argsort(-p)]
        precision = float((np.cumsum(hits) / np.arange(1, 4_001))[hits].mean())
        tp = int(outcome[p >= 0.25].sum())
        for k, (low, value, high) in enumerate((
            (curve.area_low, precision, curve.area_high),
            (cost.low, 5 * outcome[p < 0.25].sum() + (~outcome[p >= 0.25]).sum(), cost.high),
            (confusion.recall.low, tp / outcome.sum(), confusion.recall.high),
            (confusion.precision.low, tp / (p >= 0.25).sum(), confusion.precision.high),
        )):  # fmt: skip
            covered[k] += low <= value <= high
    assert (covered / repetitions >= 0.9 - 2 * np.sqrt(0.09 / repetitions)).all()


def test_results_state_what_their_intervals_assume():
    y, p = rows(500)
    for function in (lambda e: td.expected_cost(p, ERRORS, 0.2, e), lambda e: td.expected_confusion(p, 0.2, e),
                     lambda e: td.expected_roc(p, e)):  # fmt: skip
        with_rows, without = function((y, p)), function(None)
        assert with_rows.assumption == "if nothing has changed since the labelled rows"
        assert with_rows.to_dict()["assumption"] == with_rows.assumption
        assert "500 labelled rows, if nothing has changed since)" in repr(with_rows)
        assert without.assumption == "if the scores are calibrated"
        assert "assuming calibrated scores" in repr(without)
    curve = td.decision_curve(None, p, labelled=(y, p))
    assert curve.verdict.endswith("if nothing has changed since the labelled rows")
    assert "if nothing has changed" not in td.decision_curve(y, p).verdict
