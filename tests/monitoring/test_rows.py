"""Rows of a monitor: dates in the future, revised outcomes, and counts over its life of rows that were left out."""

from __future__ import annotations

import datetime as dt
import itertools

import numpy as np
import pytest

import trueup as tu
from logs import SETTINGS, comparable, make_log, take
from trueup.errors import ArgumentError, DataError, FileError

PLAIN = {**SETTINGS, "id": None, "maturity": 0}


def test_a_date_in_the_future_is_an_error_and_waits_with_now():
    data = make_log(0, 2_000)
    wrong = {name: column.copy() for name, column in data.items()}
    wrong["day"][7] = np.datetime64(dt.date.today() + dt.timedelta(days=400))
    monitor = tu.Monitor(**SETTINGS).start(data)
    for update in (monitor.update, monitor.update_drift):
        with pytest.raises(DataError, match="dates in the future, up to"):
            update(wrong)
    now = data["day"].max()
    report, expected = monitor.update(wrong, now=now), tu.Monitor(**SETTINGS).start(data).update(data, now=now)
    assert report.until == expected.until
    assert report.rows.waiting == expected.rows.waiting + (data["day"][7] + 30 <= now)


def test_now_does_not_go_back():
    data = make_log(1, 2_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    last = data["day"].max()
    monitor.update(data, now=last)
    monitor.update(data, now=last)
    with pytest.raises(ArgumentError, match="but the monitor knows rows up to"):
        monitor.update(data, now=last - 1)


@pytest.mark.parametrize("revised", [1.0, 0.0])
def test_a_revised_outcome_of_a_counted_row_changes_nothing(revised):
    data = make_log(2, 3_000)
    settings = {**PLAIN, "period": 1_000}
    monitor = tu.Monitor(**settings).start(data)
    monitor.update(take(data, slice(0, 1_000)))
    later = {name: column.copy() for name, column in data.items()}
    later["y"][np.flatnonzero(data["y"][:1_000] != revised)[:5]] = revised
    report = monitor.update(later)
    assert report.rows.counted == 3_000
    assert np.array_equal(monitor.state.open.sums, _whole(settings, data).state.open.sums)


def test_revised_outcomes_among_equal_rows_need_ids():
    data = {name: np.repeat(column[:40], 2) for name, column in make_log(3, 200).items()}
    data["y"] = np.tile([0.0, 1.0], 40)
    monitor = tu.Monitor(**{**PLAIN, "period": 1_000, "min_rows": 1}).start(data)
    monitor.update(take(data, slice(0, 80, 2)))
    grown = {name: column.copy() for name, column in data.items()}
    assert monitor.update(grown).rows.counted == 80
    grown["y"][:] = 1.0
    more = {name: np.concatenate([column, column[:1]]) for name, column in grown.items()}
    with pytest.raises(DataError, match="outcomes of rows that were counted have changed"):
        monitor.update(more)


def _whole(settings, data):
    monitor = tu.Monitor(**settings).start(data)
    monitor.update(data)
    return monitor


@pytest.mark.parametrize("keys", ["key", None])
@pytest.mark.parametrize("batches", ["growing", "following"])
def test_rows_without_an_outcome_are_counted_over_the_life(keys, batches):
    data = make_log(4, 3_000)
    data["y"][::10] = np.nan
    monitor = tu.Monitor(**{**PLAIN, "id": keys}, unlabelled="drop").start(data)
    stops = np.linspace(0, 3_000, 40).astype(int)
    for start, stop in itertools.pairwise(stops):
        report = monitor.update(take(data, slice(0 if batches == "growing" else start, stop)))
    closed = data["day"] < np.datetime64(report.until)
    assert report.rows.dropped == int((np.isnan(data["y"]) & closed).sum())
    assert "does not depend on its outcome" in report.guarantee
    assert f"{report.rows.dropped / (report.rows.dropped + report.rows.counted):.1%})" in report.guarantee
    assert report.rows.missed == 0


def test_rows_that_waited_and_do_not_come_back_are_counted():
    data = make_log(5, 4_000)
    stops = np.searchsorted(data["day"], data["day"][0] + np.arange(0, 201, 10)).tolist()
    growing, forgetful = (tu.Monitor(**SETTINGS).start(data) for _ in range(2))
    for start, stop in itertools.pairwise(stops):
        complete = growing.update(take(data, slice(0, stop)))
        report = forgetful.update(take(data, slice(start, stop)))
    assert complete.rows.missed == 0
    assert "left out" not in complete.guarantee
    report = forgetful.update(take(data, slice(stops[-2], 4_000)), now=data["day"].max() + 60)
    assert 3_000 < report.rows.missed <= 4_000 - report.rows.counted
    assert any("they waited, and were not given again" in note for note in report.notes)


def test_rows_that_come_too_late_are_counted_if_the_log_shows_them():
    data = make_log(6, 3_000)
    late = np.arange(3_000) % 50 == 0
    monitor = tu.Monitor(**SETTINGS).start(data)
    monitor.update(take(data, ~late))
    report = monitor.update(data)
    closed = data["day"] + 30 < np.datetime64(report.until)
    assert report.rows.missed == int((late & closed).sum())


def test_a_missing_outcome_in_a_closed_period_is_no_error():
    data = make_log(7, 2_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    first = monitor.update(data)
    data["y"][3] = np.nan
    assert comparable(monitor.update(data)) == comparable(first)


def test_counts_over_the_life_are_kept_in_the_file(tmp_path):
    data = make_log(8, 3_000)
    data["y"][::10] = np.nan
    monitor = tu.Monitor(**SETTINGS, unlabelled="drop").start(data)
    monitor.update(take(data, np.arange(3_000) % 7 != 0))
    monitor.save(tmp_path / "m.watch")
    again = tu.Monitor.load(tmp_path / "m.watch")
    for own in (monitor, again):
        own.update_drift(data)
    assert vars(again.state.ledger) == vars(monitor.state.ledger)
    assert again.update(data).to_dict() == monitor.update(data).to_dict()
    assert again.report().rows.missed > 0
    assert again.report().rows.dropped > 0


def test_a_monitor_is_saved_to_two_paths_and_another_one_to_neither(tmp_path):
    data = make_log(9, 1_500)
    one, two = (tu.Monitor(**SETTINGS).start(data) for _ in range(2))
    for name in ("a.watch", "b.watch", "a.watch"):
        one.save(tmp_path / name)
    with pytest.raises(FileError, match="has another monitor"):
        two.save(tmp_path / "a.watch")
    fork = tu.Monitor.load(tmp_path / "a.watch")
    fork.update(data)
    fork.save(tmp_path / "a.watch")
    one.update(data)
    one.save(tmp_path / "b.watch")
    with pytest.raises(FileError, match="changed by another process since it was read"):
        one.save(tmp_path / "a.watch")


def test_drift_is_not_tested_with_clusters():
    data = make_log(10, 4_000)
    data["customer"] = np.arange(4_000) // 2
    moved = {**data, "region": np.where(np.arange(4_000) % 3 == 0, "south", data["region"])}
    for cluster, found in ((None, True), ("customer", False)):
        monitor = tu.Monitor(**PLAIN | {"cluster": cluster}).start(data)
        report = monitor.update_drift(moved)
        assert bool(report.drift) == found
        assert any("drift is shown, and not tested" in note for note in report.notes) != found
        assert monitor.state.drift.stability(monitor.state.segments, last=False)["region"] > 0.01


def test_drift_counts_rows_that_it_leaves_out():
    data = make_log(11, 3_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    monitor.update_drift(take(data, slice(1_000, 3_000)))
    unscored = {**data, "p": np.where(np.arange(3_000) == 2_999, np.nan, data["p"])}
    report = monitor.update_drift(unscored)
    assert monitor.state.drift_rows.unscored == 1
    assert monitor.state.drift_rows.closed >= 1_000
    assert any("closed for drift" in note for note in report.notes)


def test_a_tolerance_holds_for_scores_of_one():
    rng = np.random.default_rng(12)
    p = np.where(np.arange(20_000) % 2 == 0, 1.0, 0.0)
    y = np.where(p == 1, (rng.random(20_000) < 0.97).astype(float), 0.0)
    data = {"y": y, "p": p, "day": np.datetime64("2024-01-01") + np.arange(20_000) // 100}
    settings = {"outcome": "y", "prediction": "p", "by": (), "time": "day", "score_bands": 0}
    assert tu.Monitor(**settings).update(data).advice == "check certain scores"
    assert tu.Monitor(**settings, tolerance="10%").update(data).alarms == ()
    bad = {**data, "y": np.where(p == 1, (rng.random(20_000) < 0.8).astype(float), 0.0)}
    alarm = tu.Monitor(**settings, tolerance="10%").update(bad).alarms[0]
    assert (alarm.contradictions, alarm.direction) == (0, -1)
    zero = {**data, "y": np.where(np.arange(20_000) == 1, 1.0, y)}
    assert tu.Monitor(**settings, tolerance="10%").update(zero).alarms[0].contradictions == 1


def test_combinations_beyond_the_limit_of_segments_are_counted():
    data = make_log(13, 4_000, new_level=100)
    early = take(data, np.flatnonzero(data["day"] < data["day"][0] + 100))
    monitor = tu.Monitor(**PLAIN).start(early)
    limited = tu.Monitor(**PLAIN, max_segments=len(monitor.state.segments)).start(early)
    assert len(limited.state.segments) == len(monitor.state.segments)
    assert not any("max_segments" in note for note in monitor.update(data).notes)
    assert any("are no segments (max_segments)" in note for note in limited.update(data).notes)
