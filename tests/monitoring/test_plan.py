"""tu.plan: rows, errors or power of an audit and of a monitor."""

from __future__ import annotations

import dataclasses
import inspect
import math

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.special import expit, logit

import trueup as tu
from trueup.errors import ArgumentError, ColumnError, DataError
from trueup.monitoring.plan_segments import MAX_SEGMENTS
from twins import three_se

PILOT = tu.simulate.lending(3_000, seed=0)
SHAPE = {"prevalence": 0.1, "share": 0.1, "columns": [8, 4]}


def test_the_verdict_answers_what_was_asked():
    assert tu.plan(**SHAPE, ratio=1.5).verdict.startswith(
        "an audit finds observed/expected 1.50 in a segment of 10% of the rows"
    )
    assert "finds observed/expected 1." in tu.plan(**SHAPE, rows=20_000).verdict
    power = tu.plan(**SHAPE, rows=20_000, ratio=1.5)
    assert power.verdict.endswith(f"with {100 * power[0].power:.3g}% power")
    assert tu.plan(prevalence=0.1).settings.ratio == 1.2


def test_rows_ratio_and_power_agree():
    planned = tu.plan(**SHAPE, ratio=1.3, power=0.9)[0]
    assert planned.total == pytest.approx(10 * planned.rows, abs=10)
    assert planned.events == pytest.approx(0.1 * planned.rows)
    assert tu.plan(**SHAPE, ratio=1.3, rows=planned.total)[0].power == pytest.approx(0.9, abs=0.002)
    up, down = tu.plan(**SHAPE, rows=planned.total, power=0.9)
    assert up.ratio == pytest.approx(1.3, abs=0.002)
    assert down.ratio < 1


@pytest.mark.repeated(60, 400)
def test_an_audit_of_the_planned_rows_finds_the_error(repetitions):
    # Ten levels of one column, alone and beside all rows: the level of a segment is alpha / 20.
    plan = tu.plan(prevalence=0.3, ratio=1.25, share=0.1, columns=[10])
    assert plan[0].level == pytest.approx(0.05 / 20)
    found = 0
    for seed in range(repetitions):
        random = np.random.default_rng(seed)
        n = math.ceil(plan[0].total)
        group = np.array([f"g{k}" for k in range(10)], object)[np.arange(n) % 10]
        logit = random.standard_normal(n) - 0.996  # mean 0.3
        p = 1 / (1 + np.exp(-logit))
        shift = plan_shift(p)
        y = random.random(n) < 1 / (1 + np.exp(-(logit + shift * (group == "g0"))))
        audit = tu.audit({"g": group, "p": p, "y": y}, outcome="y", prediction="p", by=["g"], depth=1, threads=1)
        found += audit["g=g0"].p_value <= plan[0].level
    assert abs(found / repetitions - 0.8) <= 0.03 + three_se(0.8, repetitions)


def plan_shift(p):
    low, high, logit = 0.0, 5.0, np.log(p / (1 - p))
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if (1 / (1 + np.exp(-(logit + middle)))).mean() < 1.25 * p.mean() else (low, middle)
    return high


def test_a_pilot_has_a_line_per_level():
    plan = tu.plan(PILOT, prediction="prediction", by=["region", "product"], ratio=1.3)
    frame = plan.to_frame()
    region = np.asarray(PILOT["region"])
    north = plan[frame["segment"].tolist().index("region=north")]
    assert frame["segment"][0] == "all rows"
    assert north.share == pytest.approx(np.mean(region == "north"))
    assert north.mean == pytest.approx(np.mean(np.asarray(PILOT["prediction"])[region == "north"]), rel=1e-9)
    levels = len(set(region))
    assert plan[0].level == pytest.approx(0.05 / 3)
    assert north.level == pytest.approx(0.05 / 3 / 2 / levels)
    product = plan[frame["segment"].tolist().index("product=car")]
    assert product.level == pytest.approx(0.05 / 3 / 2 / len(set(PILOT["product"])))


def test_a_pilot_may_be_an_array():
    scores = np.asarray(PILOT["prediction"])
    assert tu.plan(scores)[0] == tu.plan(PILOT, prediction="prediction")[0]


def test_few_scores_of_a_level_are_left_out_and_counted():
    data = {"p": np.linspace(0.1, 0.4, 200), "g": np.array(["a"] * 195 + ["b"] * 5, object)}
    plan = tu.plan(data, prediction="p", by=["g"])
    assert [test.segment for test in plan] == ["all rows", "g=a"]
    assert plan.notes[-1] == "1 segment with fewer than 10 scores, or with scores of 0 and 1 only, is left out"


def _varied_rows(rows=4_000, seed=2):
    """Rows with a rare level, levels that are rare together, a missing number, dates and few distinct scores."""
    random = np.random.default_rng(seed)
    return {
        "p": np.round(random.beta(1, 8, rows) * 0.98 + 0.01, 2),
        "region": random.choice(["north", "south", "east", "islet"], rows, p=[0.4, 0.3, 0.295, 0.005]),
        "code": random.choice([f"c{k}" for k in range(60)], rows, p=[0.4, *[0.6 / 59] * 59]),
        "age": np.where(random.random(rows) < 0.1, np.nan, random.integers(18, 90, rows)),
        "opened": np.datetime64("2025-01-01") + random.integers(0, 300, rows),
        "y": (random.random(rows) < 0.1).astype(float),
    }


@pytest.mark.parametrize("by", [["region"], ["region", "code", "age", "opened"]])
@pytest.mark.parametrize("depth", [1, 2])
def test_levels_are_those_of_an_audit_and_of_a_monitor_of_the_pilot(by, depth):
    data = _varied_rows()
    plan = tu.plan(
        data, prediction="p", by=by, depth=depth, combined=min(depth, len(by)), rows=4_000, ratio=1.3, monitor=True
    )
    audit = tu.audit(data, outcome="y", prediction="p", by=by, depth=depth)
    of_audit = dict(zip(audit.to_frame()["segment"], audit.levels.tolist(), strict=True))
    segments = tu.Monitor(outcome="y", prediction="p", by=by, depth=depth).start(data).state.segments
    of_monitor = dict(zip(segments.labels, segments.shares, strict=True))
    compared = {"audit": 0, "monitor, error from the start": 0}
    for test in plan:
        known = of_audit if test.test == "audit" else {name: 0.05 * share for name, share in of_monitor.items()}
        if known.get(test.segment):  # rare levels are tested together; dates have other bins in a monitor
            assert test.level == pytest.approx(known[test.segment], rel=1e-12), (test.test, test.segment)
            compared[test.test] = compared.get(test.test, 0) + 1
    tested = sum(level > 0 and "rare levels" not in name for name, level in of_audit.items())
    assert compared["audit"] == tested
    assert compared["monitor, error from the start"] >= (4 if len(by) == 1 else 20)
    # A level that is rare at the start is pooled by a monitor: it is planned for an audit only.
    assert [test.test for test in plan if test.segment == "region=islet"] == ["audit"]
    assert any("planned for an audit only" in note for note in plan.notes)


@pytest.mark.parametrize(("share", "combined"), [(None, 1), (None, 2), (0.05, 0)])
def test_a_segment_of_columns_has_a_share(share, combined):
    with pytest.raises(ArgumentError, match="combined"):
        tu.plan(prevalence=0.02, columns=[10, 5, 4], combined=combined, share=share)


@pytest.mark.parametrize("zeros", [0.3, 0.6, 0.9])
def test_curves_of_a_pilot_with_scores_of_zero(zeros):
    scores = np.r_[np.zeros(int(1_000 * zeros)), np.full(1_000 - int(1_000 * zeros), 0.5)]
    (curve,) = tu.plan(scores, ratio=1.5).curves()
    assert max(curve.ratios) < 2
    assert all(np.isfinite(curve.totals))


def test_levels_from_numbers_are_those_of_an_audit_and_of_a_monitor_without_rare_levels():
    random = np.random.default_rng(0)
    cells = np.arange(6_000) % 24
    data = {"a": cells // 4, "b": cells % 4, "p": random.random(6_000) * 0.2 + 0.1, "y": random.random(6_000) < 0.2}
    roles = {"outcome": "y", "prediction": "p", "by": ["a", "b"], "categorical": ["a", "b"]}
    audit = tu.audit(data, **roles)
    of_audit = dict(zip(audit.to_frame()["segment"], audit.levels.tolist(), strict=True))
    segments = tu.Monitor(**roles).start(data).state.segments
    of_monitor = dict(zip(segments.labels, segments.shares, strict=True))
    for combined, segment in [(0, "all rows"), (1, "a=0"), (2, "a=0 & b=0")]:
        audited, monitored, _ = tu.plan(prevalence=0.2, columns=[6, 4], combined=combined, monitor=True,
            share=0.2 if combined else None)  # fmt: skip
        assert audited.level == pytest.approx(of_audit[segment])
        assert monitored.level == pytest.approx(0.05 * of_monitor[segment])
    alone = tu.Monitor(outcome="y", prediction="p", by=[]).start(data).state.segments
    assert tu.plan(prevalence=0.2, monitor=True)[1].level == pytest.approx(0.05 * alone.shares[0])


def test_the_defaults_are_those_of_a_monitor():
    of_plan, of_monitor = (inspect.signature(one).parameters for one in (tu.plan, tu.Monitor))
    for name in ("alpha", "depth", "bins", "min_rows", "score_bands"):
        assert of_plan[name].default == of_monitor[name].default
    assert of_monitor["max_segments"].default == MAX_SEGMENTS


def test_an_audit_of_more_rows_than_the_pilot_tests_more_segments():
    # 40 levels of 20 rows: an audit of these rows tests none of them, one of 5,000 rows all.
    data = {"p": np.linspace(0.05, 0.35, 800), "g": np.array([f"g{k % 40}" for k in range(800)], object)}
    needed = tu.plan(data, prediction="p", by=["g"], ratio=1.5)[1]
    assert needed.total > 5_000
    assert needed.level == pytest.approx(0.05 / 2 / 40)
    given = tu.plan(data, prediction="p", by=["g"], ratio=1.5, rows=5_000)[1]
    assert given.level == needed.level


def test_an_audit_of_too_few_rows_tests_nothing():
    few = tu.plan(PILOT, prediction="prediction", by=["region"], rows=10, ratio=1.5, monitor=True)
    assert [test.power for test in few if test.test == "audit"] == [0.0] * (len(few) // 3)
    small = {name: column[:30] for name, column in PILOT.items()}
    assert tu.plan(small, prediction="prediction", by=["region"], ratio=1.5)[0].total >= 50


def test_the_assumptions_on_segments_are_stated():
    assert "this one alone" in tu.plan(prevalence=0.1).notes[-1]
    assert "5 score bands" in tu.plan(prevalence=0.1, monitor=True).notes[-1]
    assert tu.plan(prevalence=0.1, segments=40).notes[-1] == "segments: 40, with the same share of alpha each"
    stated = tu.plan(prevalence=0.1, columns=[8, 4], share=0.1, monitor=True).notes
    assert "segments: columns of 8, 4 levels, and their pairs, each with enough rows to be tested" in stated
    assert stated[-1].endswith("one more, of rare and new levels, and 5 score bands are one more column")
    assert "score bands" not in tu.plan(prevalence=0.1, columns=[8], share=0.1, monitor=True, score_bands=0).notes[-1]
    assert "those of the pilot" in tu.plan(PILOT, prediction="prediction", by=["region"]).notes[-1]


@pytest.mark.repeated(80, 400)
def test_a_monitor_raises_its_alarm_within_the_planned_rows(repetitions):
    """A real monitor of two columns and score bands, four weeks, an error in one level from the start."""
    random = np.random.default_rng(11)

    def draw(rows):
        a, b = random.integers(0, 4, rows), random.integers(0, 3, rows)
        return {"a": np.array(list("wxyz"))[a], "b": np.array(list("klm"))[b], "p": random.uniform(0.1, 0.5, rows)}

    pilot = draw(3_000)
    roles = {"prediction": "p", "by": ["a", "b"]}
    plan = tu.plan(pilot, **roles, ratio=1.4, monitor=True)
    planned = next(test for test in plan if test.segment == "a=x" and test.test == "monitor, error from the start")
    weeks = 4
    weekly = math.ceil(planned.total / weeks)
    p = np.linspace(0.1, 0.5, 1_001)
    shift = brentq(lambda d: expit(logit(p) + d).mean() - 1.4 * p.mean(), 0.0, 5.0)
    found = 0
    for _ in range(repetitions):
        monitor = tu.Monitor(outcome="y", **roles).start(pilot)
        for _ in range(weeks):
            rows = draw(weekly)
            rate = expit(logit(rows["p"]) + shift * (rows["a"] == "x"))
            monitor.update(rows | {"y": (random.random(weekly) < rate).astype(float)}, threads=1)
        found += any(alarm.segment == "a=x" for alarm in monitor.report().alarms)
    assert 0.75 - three_se(0.8, repetitions) <= found / repetitions <= 0.9 + three_se(0.8, repetitions)


def test_clusters_and_looks_cost_rows():
    alone, clustered = tu.plan(**SHAPE)[0], tu.plan(**SHAPE, cluster_size=6, icc=0.2)[0]
    assert clustered.rows == pytest.approx(2 * alone.rows, abs=2)
    looks = tu.plan(**SHAPE, looks=5)[0]
    assert looks.level == pytest.approx(alone.level / 5)
    assert looks.rows > alone.rows
    few = tu.plan(prevalence=0.5, ratio=1.8, cluster_size=40, icc=0.5)[0]
    assert few.rows >= 400  # ten clusters, from which an audit tests a segment


def test_small_segments_are_simulated_and_never_smaller_than_a_tested_one():
    assert tu.plan(prevalence=0.3, ratio=2.5)[0].rows == 50
    assert tu.plan(prevalence=0.3, ratio=2.5, min_rows=1)[0].rows < 50
    few = tu.plan(prevalence=0.3, rows=49)
    assert np.isnan(few.to_frame()["ratio"]).all()
    assert few.verdict == "49 rows show no error over all rows: too few for an audit"
    assert tu.plan(prevalence=0.3, rows=1).verdict == "1 row shows no error over all rows: too few for an audit"
    assert tu.plan(prevalence=0.3, rows=100, share=0.2).verdict == (
        "100 rows show no error in a segment of 20% of the rows: 20 in the segment are too few for an audit"
    )
    assert tu.plan(prevalence=0.3, rows=80)[0].ratio == pytest.approx(1.5, abs=0.15)


def test_a_monitor_takes_more_rows_than_an_audit_and_states_weeks():
    audit, start, change = tu.plan(**SHAPE, monitor=True, weekly_rows=1_000, change_week=30)
    assert audit.rows < start.rows < change.rows
    assert change.test == "monitor, error from week 30"
    assert start.weeks == math.ceil(start.total / 1_000)
    assert start.mean_total < start.total
    assert math.isnan(audit.weeks)
    # The prior of the week is nearly spread over as many weeks as have passed: a later change takes longer.
    later = tu.plan(**SHAPE, monitor=True, change_week=300)[2]
    assert later.rows > change.rows


def test_no_number_of_rows_shows_what_cannot_be():
    with pytest.raises(ArgumentError, match=r"ratio must be below 2, where every outcome of all rows is 1; got 2\.5"):
        tu.plan(prevalence=0.5, ratio=2.5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "either scores or their prevalence"),
        ({"data": PILOT, "prediction": "prediction", "prevalence": 0.1}, "either scores or their prevalence"),
        ({"prevalence": 0.1, "by": ["region"]}, "by needs a pilot"),
        ({"data": PILOT, "prediction": "prediction", "by": ["region"], "share": 0.1}, "share follows from the columns by"),
        ({"prevalence": 0.1, "segments": 3, "columns": [3]}, "both state the shares of alpha"),
        ({"prevalence": 0.1, "ratio": 1.0}, "ratio must differ from 1"),
        ({"prevalence": 0.1, "ratio": -1}, "ratio must be a number above 0"),
        ({"prevalence": 1.1}, "prevalence must lie between 0 and 1"),
        ({"prevalence": 0.1, "power": 0.03}, "power must exceed alpha"),
        ({"prevalence": 0.1, "columns": [2.5]}, "columns must be an integer"),
        ({"prevalence": 0.1, "columns": [3], "combined": 2}, "at most the number of columns, 1"),
        ({"prevalence": 0.1, "share": 0}, "share must be a number above 0 and at most 1"),
        ({"prevalence": 0.1, "share": 5}, r"share must be at most 1; got 5\nhint: write share=0\.05 for 5% of the rows"),
        ({"prevalence": 0.1, "icc": 2}, "icc must be a number at least 0 and at most 1"),
        ({"prevalence": 0.1, "weekly_rows": 5}, "weekly_rows is of a monitor"),
        ({"prevalence": 0.1, "rows": 0}, "rows must be an integer at least 1"),
    ],
)
def test_what_does_not_fit_is_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        tu.plan(**arguments)


def test_scores_and_columns_are_checked():
    with pytest.raises(ColumnError, match="regin"):
        tu.plan(PILOT, prediction="prediction", by=["regin"])
    with pytest.raises(DataError, match="all scores of the pilot are 0 or 1"):
        tu.plan(np.array([0.0, 1.0] * 20))


def test_a_plan_is_frozen_and_becomes_plain_values():
    plan = tu.plan(**SHAPE, monitor=True)
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.tests = ()
    found = plan.to_dict()
    assert sorted(found) == ["notes", "settings", "tests", "verdict"]
    assert found["tests"][0]["mean_total"] is None
    assert len(found["tests"]) == len(plan) == 3
    assert repr(plan).splitlines()[0] == plan.verdict
    assert "monitor, error from week 52" in plan._repr_html_()
    assert "monitor, error from week 52" in repr(plan)


def test_curves_go_down_to_one_as_rows_increase():
    plan = tu.plan(**SHAPE, monitor=True)
    audit, start, change = plan.curves()
    up = np.array(audit.ratios) > 1
    assert (np.diff(np.array(audit.totals)[up]) <= 0).all()
    assert (np.diff(np.array(audit.totals)[~up]) >= 0).all()
    assert (np.array(change.totals) >= np.array(start.totals)).all()
    assert np.interp(1.2, audit.ratios, audit.totals) == pytest.approx(plan[0].total, rel=0.05)
    with pytest.raises(ArgumentError, match="segment 'x' is not in the plan"):
        plan.curves("x")
