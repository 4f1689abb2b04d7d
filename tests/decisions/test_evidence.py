"""What labelled rows say of errors, and the inequalities that are never violated."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup as tu
import trueup.decisions as td
from trueup.decisions.evidence import swing, upper_bound
from trueup.decisions.moved import compare_scores
from trueup.decisions.rules import as_actions, as_rule
from trueup.errors import ArgumentError, DataError, ShiftWarning
from trueup.metrics import calibration_bound, ecce

ERRORS = {"fn": 5, "fp": 1}


@st.composite
def judged(draw):
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
    at = rule.places(p)
    positive, negative = (np.array([getattr(one, of) for one in rule.actions]) for of in ("positive", "negative"))
    return float(np.sum(w * np.where(y == 1, positive[at], negative[at])))


@given(judged())
def test_claim_1_and_equation_2_are_never_violated(case):
    # |cost that came out - cost by the scores| <= n c_emp sum |a - b| (Gao, Parameswaran & Peng 2017), and our own factor.
    y, p, w, actions, intervals = case
    rule = as_rule(intervals, as_actions(actions))
    error = abs(realised(y, p, w, rule) - float(w @ rule.costs(p)))
    c = ecce(y, p, w)
    claim = float(np.abs(rule.differences).sum())
    assert error <= w.sum() * c * swing(rule) + 1e-9
    assert swing(rule) <= claim + 1e-9


@given(st.floats(-5, 5), st.floats(-5, 5))
def test_of_two_actions_the_swing_is_the_largest_error_there_can_be(low, high):
    # Cumulative differences within a range of 1: the error is D0 C_t + D1 (C_n - C_t), over all such C.
    rule = as_rule([(0, 0.5), (0.5, 1)], as_actions([(low, 0), (high, 0)]))
    ends = np.linspace(-1, 1, 41)
    at, last = np.meshgrid(ends, ends)
    fits = np.maximum(0, np.maximum(at, last)) - np.minimum(0, np.minimum(at, last)) <= 1 + 1e-9
    largest = np.abs(low * at + high * (last - at))[fits].max()
    assert swing(rule) == pytest.approx(largest, abs=1e-9)


def test_where_signs_alternate_the_swing_is_that_of_claim_1():
    assert swing(as_rule(0.2, as_actions(ERRORS))) == 6
    assert swing(as_rule([(0, 0.3), (0.3, 1)], as_actions([(5, 0), (2, 1)]))) == 5  # both cost more on positives


def rows(n, seed=0, off=0.0):
    random = np.random.default_rng(seed)
    p = random.beta(1, 3, n)
    return (random.random(n) < np.clip(p + off, 0, 1)).astype(float), p


def test_every_kind_of_bound_is_taken():
    y, p = rows(2000)
    frame = {"y": y, "p": p, "region": np.where(p > 0.3, "n", "s")}
    told = {
        "rows": td.expected_cost(p, ERRORS, 0.2, (y, p)),
        "weighted": td.expected_cost(p, ERRORS, 0.2, (y, p, np.ones(2000))),
        "labelled": td.expected_cost(p, ERRORS, 0.2, td.Labelled(y, p)),
        "bound": td.expected_cost(p, ERRORS, 0.2, calibration_bound(y, p)),
        "audit": td.expected_cost(p, ERRORS, 0.2, tu.audit(frame, outcome="y", prediction="p")),
        "number": td.expected_cost(p, ERRORS, 0.2, 0.01),
        "none": td.expected_cost(p, ERRORS, 0.2),
    }
    assert told["rows"].told == told["labelled"].told == "2,000 labelled rows"
    assert told["rows"].high == told["weighted"].high == told["labelled"].high
    assert told["bound"].told.startswith("c at most")
    assert "from the audit of all rows" in told["audit"].told
    assert told["number"].parts["calibration"] == pytest.approx(2000 * 0.01 * 6)
    assert set(told["none"].parts) == {"label noise"}
    assert told["none"].told == ""


def test_an_audit_bounds_c_about_as_its_rows_do():
    y, p = rows(5000, off=0.03)
    found = tu.audit({"y": y, "p": p}, outcome="y", prediction="p")
    by_audit, by_rows = upper_bound(found, 0.05)[0], upper_bound(td.Labelled(y, p), 0.05)[0]
    assert by_audit == pytest.approx(by_rows, rel=0.05)


def test_an_audit_without_errors_still_bounds_c_away_from_nought():
    y, p = np.array([0.0, 1.0] * 50), np.full(100, 0.5)
    found = tu.audit({"y": y, "p": p}, outcome="y", prediction="p")
    assert found.overall.ecce == 0
    assert upper_bound(found, 0.05)[0] > 0.05


def test_segments_of_an_audit_are_asked_by_name():
    y, p = rows(4000)
    region = np.where(np.arange(4000) % 3, "north", "south")
    found = tu.audit({"y": y, "p": p, "region": region}, outcome="y", prediction="p", by=["region"])
    cost = td.expected_cost(p, ERRORS, 0.2, found, segments={"region": region})
    assert set(cost.by_segment) == {"region=north", "region=south"}
    assert "region=south" in cost.by_segment["region=south"].told


@pytest.mark.parametrize(
    ("bound", "told"),
    [
        (2.0, "bound must be labelled rows, an audit, a calibration bound or a number"),
        (-0.1, "bound must be"), (True, "bound must be"), ("audit", "bound must be"), ([0.1, 0.2], "bound must be"),
    ],
)  # fmt: skip
def test_other_bounds_are_refused(bound, told):
    with pytest.raises(ArgumentError, match=told):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, bound)


def test_bad_labelled_rows_are_refused():
    with pytest.raises(DataError, match="equally long"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, ([0, 1, 1], [0.1, 0.2]))
    with pytest.raises(DataError, match=r"y must lie in \[0, 1\]"):
        td.Labelled([2, 0], [0.1, 0.2])


def test_a_segment_without_labelled_rows_is_refused():
    y, p = rows(100)
    labelled = td.Labelled(y, p, segments=["n"] * 100)
    with pytest.raises(ArgumentError, match="no labelled row is of segment 's'") as refused:
        td.expected_cost(p, ERRORS, 0.2, labelled, segments=["s"] * 100)
    assert "labelled are n" in str(refused.value)
    with pytest.raises(ArgumentError, match="the labelled rows have no segments"):
        td.expected_cost(p, ERRORS, 0.2, (y, p), segments=["s"] * 100)
    with pytest.raises(ArgumentError, match="says nothing of a segment"):
        td.expected_cost(p, ERRORS, 0.2, calibration_bound(y, p), segments=["s"] * 100)


def test_segments_must_fit_the_rows():
    with pytest.raises(DataError, match=r"segments must have one label a row; got shape \(3,\) for 2 rows"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, segments=["a", "b", "c"])
    with pytest.raises(DataError, match="region must have one label a row"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, segments={"region": ["a"]})
    with pytest.raises(ArgumentError, match="segments name no column"):
        td.expected_cost([0.1, 0.2], ERRORS, 0.2, segments={})


def test_rows_of_weight_nought_have_no_segment():
    told = td.expected_cost([0.1, 0.2, 0.9], ERRORS, 0.2, weight=[1, 1, 0], segments=["a", "a", "b"])
    assert set(told.by_segment) == {"a"}
    labelled = td.Labelled([0, 1, 1], [0.1, 0.2, 0.9], [1, 0, 1], ["a", "b", "a"])
    assert labelled.segments.names == ("a",)
    assert len(labelled) == 2


def test_two_columns_make_segments_as_an_audit_names_them():
    told = td.expected_cost([0.1, 0.2], ERRORS, 0.2, segments={"a": ["x", "y"], "b": [1, 2]})
    assert set(told.by_segment) == {"a=x & b=1", "a=y & b=2"}


def test_scores_that_moved_are_told():
    y, p = rows(2000)
    with pytest.warns(ShiftWarning, match="the scores have moved: .* away from that of the labelled rows") as told:
        assert td.expected_cost(p**2, ERRORS, 0.2, (y, p)).distance > 0.1
    with pytest.warns(ShiftWarning) as deeper:
        td.abstain(p**2, ratio=4, bound=(y, p))
    assert {one.filename for one in [*told, *deeper]} == {__file__}  # it points at who asked, however deep
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert td.expected_cost(rows(3000, 1)[1], ERRORS, 0.2, (y, p)).distance < 0.05


def test_scores_that_did_not_move_are_seldom_said_to_have():
    random = np.random.default_rng(0)
    values = [compare_scores(random.random(300), random.random(500)).p_value for _ in range(400)]
    assert np.mean(np.array(values) < 0.05) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)


def test_scores_that_moved_by_half_a_standard_deviation_are_found():
    random = np.random.default_rng(1)
    found = [compare_scores(random.normal(0.5, 0.1, 300), random.normal(0.55, 0.1, 500)).matters for _ in range(200)]
    assert np.mean(found) > 0.9


def test_steps_that_moved_a_little_are_not_scores_that_moved():
    steps = np.repeat([0.1, 0.3, 0.6], [500, 300, 200])
    assert compare_scores(steps, steps + 0.01).distance == 0
    assert compare_scores(steps, steps + 0.1).matters


def test_the_distance_is_that_of_the_distribution_functions():
    # A tenth of the standard deviation is .005.
    assert compare_scores(np.array([0.1, 0.2]), np.array([0.2, 0.3])).distance == 0.5
    assert compare_scores(np.array([0.1, 0.2]), np.array([0.0, 0.2])).distance == 0.5
    assert compare_scores(np.array([0.1, 0.2]), np.array([0.1, 0.204])).distance == 0.0
    assert compare_scores(np.array([0.5]), np.array([0.5])).distance == 0.0
