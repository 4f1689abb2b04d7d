"""Multicalibration over given groups."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup as tu
import twins
from trueup.errors import ArgumentError, DataError
from trueup.metrics.groups import discretized_error, multicalibration_error


@st.composite
def grouped(draw):
    n = draw(st.integers(2, 40))
    p = np.array(draw(st.lists(st.sampled_from([0.1, 0.25, 0.5, 0.9]), min_size=n, max_size=n)))
    y = np.array(draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)), float)
    w = np.array(draw(st.lists(st.sampled_from([1.0, 2.5]), min_size=n, max_size=n)))
    return y, p, w, np.array(draw(st.lists(st.integers(-1, 2), min_size=n, max_size=n)))


@given(grouped())
def test_group_deviations_equal_separate_calls(case):
    y, p, w, codes = case
    result = multicalibration_error(y, p, codes, w)
    assert result.groups == tuple(np.unique(codes).tolist())
    for group, sigma in zip(result.groups, result.by_group, strict=True):
        own = codes == group
        v, _ = twins.moments(p[own], w[own])
        assert sigma == pytest.approx(twins.span(y[own], p[own], w[own]) / math.sqrt(v), abs=1e-9)
    assert result.sigma == result.by_group.max() == result.by_group[result.groups.index(result.worst)]
    v, _ = twins.moments(p, w)
    assert result.absolute == pytest.approx(result.sigma * math.sqrt(v) / w.sum())
    rate = np.average(y, weights=w)
    rarer = min(rate, 1 - rate)
    assert result.relative == pytest.approx(result.absolute / rarer if rarer > 1e-12 else math.nan, nan_ok=True)


@given(grouped())
def test_labels_and_indicators_agree(case):
    y, p, w, codes = case
    labels = np.array(["u", "v", "x", "z"], object)[codes]
    indicators = labels[:, None] == np.unique(labels.astype(str))
    one, other = multicalibration_error(y, p, labels, w), multicalibration_error(y, p, indicators, w)
    np.testing.assert_allclose(one.by_group, other.by_group, rtol=1e-12)
    assert one.groups[other.worst] == one.worst or one.by_group[other.worst] == pytest.approx(one.sigma)
    assert discretized_error(y, p, labels, w) == pytest.approx(discretized_error(y, p, indicators, w))


def test_labels_are_kept_unchanged():
    result = multicalibration_error([0, 1, 1], [0.4, 0.5, 0.6], ["a", float("nan"), 1])
    assert set(result.groups) == {"a", 1}
    days = np.array(["2024-01-01", "2024-01-02", "2024-01-01"], "datetime64[ns]")
    assert str(multicalibration_error([0, 1, 1], [0.4, 0.5, 0.6], days).groups[0])[:10] == "2024-01-01"


def test_contradicted_certain_predictions_are_infinite():
    result = multicalibration_error([1, 1], [0, 1], [0, 1])
    assert (result.sigma, result.absolute) == (math.inf, math.inf)
    assert result.to_dict() == {"sigma": None, "absolute": None, "relative": None, "worst": 0}


def test_rows_without_a_label_are_in_no_group():
    result = multicalibration_error([0, 1, 1], [0.4, 0.5, 0.6], np.array(["a", None, "a"], object))
    assert result.groups == ("a",)


def test_the_audit_finds_the_same_worst_sigma():
    data = tu.simulate.population(3000, 1, levels=(4,))
    audit = tu.audit(data, outcome="outcome", prediction="prediction", by=["c0"], min_rows=1)
    result = multicalibration_error(data["outcome"], data["prediction"], data["c0"])
    assert result.sigma == pytest.approx(audit[f"c0={result.worst}"].sigma)


def test_rows_of_weight_zero_are_in_no_group():
    y, p = np.array([0.0, 1.0, 1.0]), np.array([0.4, 0.5, 0.6])
    with_row = multicalibration_error(y, p, [0, 0, 1], [1.0, 1.0, 0.0])
    without = multicalibration_error(y[:2], p[:2], [0, 0], [1.0, 1.0])
    assert with_row.sigma == without.sigma
    vanishing = multicalibration_error(y, p, [0, 0, 1], [1e60, 1e60, 1e-300])
    assert vanishing.sigma == pytest.approx(without.sigma)


@given(grouped(), st.sampled_from([10, 20, 50, 100]))
def test_the_discretized_error_is_that_of_the_rounded_score(case, m):
    y, p, w, codes = case
    groups = (codes[:, None] == np.arange(3)).astype(float)
    rounded = np.ceil(p * m - 0.5) / m  # ties go down
    worst = 0.0
    for g in groups.T:
        parts = [abs(np.sum((w * g * (y - rounded))[rounded == v])) for v in np.unique(rounded)]
        worst = max(worst, sum(parts) / w.sum())
    assert discretized_error(y, p, groups, w, m=m) == pytest.approx(worst, abs=1e-9)


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ([0, 1, 2], r"groups must have shape \(2,\) or \(2, g\); got \(3,\)"),
        ([[0, 2], [1, 1]], "must be 0 and 1, or booleans"),
        ([None, None], "every group is empty"),
        (np.zeros((2, 1)), "every group is empty"),
        (np.empty((2, 0)), "groups has no columns"),
    ],
)
def test_invalid_groups_are_rejected(groups, message):
    with pytest.raises(DataError, match=message):
        multicalibration_error([0, 1], [0.5, 0.5], groups)


def test_discretized_error_rejects_invalid_probabilities():
    for y, p in (([0, 1], [50, 60]), ([0, 2], [0.5, 0.6])):
        with pytest.raises(DataError, match=r"must lie in \[0, 1\]"):
            discretized_error(y, p, [0, 1])


def test_invalid_numbers_of_levels_are_rejected():
    with pytest.raises(ArgumentError, match="m must be an integer"):
        discretized_error([0, 1], [0.5, 0.5], [[1], [1]], m=0)
