"""False alarms of monitors on streams that are calibrated, in the cases that are awkward, and their power beside it."""

from __future__ import annotations

import math

import numpy as np
import pytest

import trueup as tu
from logs import make_log, take

PLAIN = {"outcome": "y", "prediction": "p", "by": ["region", "age"], "time": "day", "score_bands": 3, "bins": 3}


def clusters(seed):
    """Return rows of which ten of a customer, scored in one week, have the same outcome."""
    data = {name: np.repeat(column, 10) for name, column in make_log(seed, 150).items()}
    data["age"] = np.random.default_rng(seed).integers(18, 70, 1_500).astype(float)
    return data, {"cluster": "key"}


def tolerated(seed):
    """Return rows whose rate is at the edge of the tolerance."""
    data = make_log(seed, 1_500)
    rng = np.random.default_rng([seed, 1])
    data["y"] = (rng.random(1_500) < data["p"] * (1.25 if seed % 2 else 0.8)).astype(float)
    return data, {"tolerance": "25%"}


def sampled(seed):
    """Return rows of which a fifth of those without an event are kept."""
    data = make_log(seed, 4_000)
    kept = (data["y"] == 1) | (np.random.default_rng([seed, 1]).random(4_000) < 0.2)
    return take(data, kept), {"sampling": {"negative": 0.2}}


def yearly(seed):
    """Return rows of less than a year."""
    return make_log(seed, 1_500), {"budget": "year"}


def appearing(seed):
    """Return rows with levels that the reference rows do not have."""
    data = make_log(seed, 2_000, new_level=60)
    rng = np.random.default_rng([seed, 1])
    old = data["day"] < data["day"][0] + 60
    data["region"] = np.where(old, data["region"], np.char.add(data["region"], rng.integers(0, 3, 2_000).astype(str)))
    return data, {"min_rows": 20, "start": old}


def monitor(data, settings):
    """Return the report on a log."""
    settings = dict(settings)
    start = settings.pop("start", slice(None))
    return tu.Monitor(**{**PLAIN, **settings}).start(take(data, start)).update(data)


@pytest.mark.repeated(25, 1000)
@pytest.mark.parametrize("stream", [clusters, tolerated, sampled, yearly, appearing])
def test_calibrated_streams_raise_at_most_alpha(stream, repetitions):
    alarms = sum(monitor(*stream(seed)).state == "alarm" for seed in range(repetitions))
    assert alarms <= 0.05 * repetitions + 3 * math.sqrt(0.05 * 0.95 * repetitions)


@pytest.mark.parametrize("stream", [clusters, tolerated, sampled])
def test_the_setting_is_what_keeps_them_from_alarms(stream):
    alarms = sum(monitor(stream(seed)[0], {}).state == "alarm" for seed in range(12))
    assert alarms >= 3  # probability .02 if each had one of .05


def test_levels_that_appear_later_are_tested():
    data, settings = appearing(0)
    assert any("north2" in name for name in _labels(data, settings))


def _labels(data, settings):
    settings = dict(settings)
    start = settings.pop("start")
    own = tu.Monitor(**{**PLAIN, **settings}).start(take(data, start))
    own.update(data)
    return own.state.segments.labels


@pytest.mark.repeated(20, 1000)
def test_a_p_value_under_a_yearly_budget_holds_for_all_looks_so_far(repetitions):
    small = 0
    for seed in range(repetitions):
        data = make_log(seed, 1_500)
        data["day"] = np.datetime64("2000-01-03") + (data["day"] - data["day"][0]).astype(int) * 10  # five years
        report = tu.Monitor(**PLAIN, budget="year", alpha=0.5).start(data).update(data)
        small += any(alarm.p_value <= 0.1 for alarm in report.alarms)
    assert small <= 0.1 * repetitions + 3 * math.sqrt(0.1 * 0.9 * repetitions)


@pytest.mark.repeated(20, 1000)
def test_drift_of_the_reference_itself_is_not_reported(repetitions):
    alarms = 0
    for seed in range(repetitions):
        data, more = make_log(seed, 1_500), make_log(10_000 + seed, 3_000)
        alarms += bool(tu.Monitor(**PLAIN).start(data).update_drift(more).drift)
    assert alarms <= 0.05 * repetitions + 3 * math.sqrt(0.05 * 0.95 * repetitions)


def delayed(seed, maturity):
    """Return the report on a log that grows every week: events are known within days, their absence after a month."""
    data = make_log(seed, 1_500)
    day = data["day"].astype(int)
    known = day + np.where(data["y"] == 1, np.random.default_rng([seed, 1]).integers(0, 30, 1_500), 30)
    own = tu.Monitor(**PLAIN, maturity=maturity, unlabelled="drop").start(data)
    for today in range(int(day[0]) + 7, int(day[-1]) + 40, 7):
        seen = day <= today
        log = take({**data, "y": np.where(known <= today, data["y"], np.nan)}, seen)
        report = own.update(log, now=np.datetime64(today, "D"))
    return report


@pytest.mark.repeated(20, 400)
def test_outcomes_that_arrive_early_raise_no_alarm_by_their_maturity(repetitions):
    reports = [delayed(seed, "30 days") for seed in range(repetitions)]
    assert sum(report.state == "alarm" for report in reports) <= 0.05 * repetitions + 3 * math.sqrt(0.0475 * repetitions)
    assert all(report.rows.dropped == 0 and report.rows.counted > 1_200 for report in reports)


def test_outcomes_counted_as_they_arrive_raise_alarms():
    assert all(delayed(seed, 0).state == "alarm" for seed in range(3))
