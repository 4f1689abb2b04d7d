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
        with pytest.raises(DataError, match="which is in the future"):
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


@pytest.mark.parametrize("changed", ["y", "p", "region"])
def test_a_log_that_has_grown_replaces_the_rows_of_the_open_period(changed):
    data = make_log(2, 3_000)
    settings = {**PLAIN, "period": 1_000}
    monitor = tu.Monitor(**settings).start(data)
    first = {name: column[:1_000].copy() for name, column in data.items()}
    first[changed][:50] = {"y": 1.0, "p": 0.9, "region": "south"}[changed]
    assert monitor.update(first).rows.counted == 1_000
    report = monitor.update(data)
    assert report.rows.counted == 3_000
    assert np.array_equal(monitor.state.open.sums, _whole(settings, data).state.open.sums)


def test_deleted_rows_of_the_open_period_do_not_count(tmp_path):
    data = make_log(3, 3_000)
    monitor = tu.Monitor(**{**PLAIN, "period": 1_000}).start(data)
    assert monitor.update(data).rows.counted == 3_000
    report = monitor.update(take(data, slice(20, 3_000)))
    assert report.rows.counted == 2_980
    assert monitor.state.open.count == 2_980
    assert (report.rows.added, report.rows.repeated, report.rows.missed) == (0, 2_980, 20)
    monitor.save(tmp_path / "m.watch")
    assert tu.Monitor.load(tmp_path / "m.watch").report().to_dict() == report.to_dict()


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (slice(0, 1_000), slice(200, 1_500)),  # a window of the last rows
        (slice(0, 1_000, 2), slice(1, 1_000, 2)),  # the rest of the same days
        (slice(500, 1_000), slice(0, 500)),  # earlier days
    ],
)
def test_batches_that_are_neither_later_nor_grown_need_ids(first, second):
    data = make_log(4, 3_000)
    monitor = tu.Monitor(**{**PLAIN, "period": 1_000}).start(data)
    monitor.update(take(data, first), now="2024-08-01")
    with pytest.raises(DataError, match="which of its rows are new cannot be known"):
        monitor.update(take(data, second), now="2024-08-01")


def test_rows_of_equal_content_do_not_tell_a_log_that_has_grown():
    count = 400
    data = {"p": np.tile([0.1, 0.2], count // 2), "y": np.zeros(count), "region": np.repeat("a", count),
            "day": np.repeat(np.datetime64("2024-01-02"), count)}  # fmt: skip
    settings = {**PLAIN, "by": "region", "period": 1_000}
    monitor = tu.Monitor(**settings).start(data)
    monitor.update(take(data, slice(0, 10)))
    with pytest.raises(DataError, match="cannot be known"):
        monitor.update(data)
    data["day"] = np.datetime64("2024-01-02") + np.arange(count) // 10
    monitor = tu.Monitor(**settings).start(data)
    monitor.update(take(data, slice(0, 100)))
    with pytest.raises(DataError, match="has 100, and 20 of them differ"):
        monitor.update(data)
    data["key"] = np.arange(count)
    monitor = tu.Monitor(**{**settings, "id": "key"}).start(data)
    monitor.update(take(data, slice(0, 100)))
    assert monitor.update(data).rows.counted == count


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
    if keys is None:  # without ids only whole days can follow each other
        stops = np.searchsorted(data["day"], np.append(data["day"][stops[:-1]], data["day"].max() + 1))
    for start, stop in itertools.pairwise(stops):
        report = monitor.update(take(data, slice(0 if batches == "growing" else start, stop)))
    closed = data["day"] < np.datetime64(report.until)
    assert report.rows.dropped == int((np.isnan(data["y"]) & closed).sum())
    assert (
        f"{report.rows.dropped:,} are, at least: {report.rows.dropped / (report.rows.dropped + report.rows.counted):.1%})"
        in report.guarantee
    )
    assert report.rows.missed == 0


def test_rows_that_waited_and_do_not_come_back_are_counted():
    data = make_log(5, 4_000)
    stops = np.searchsorted(data["day"], data["day"][0] + np.arange(0, 201, 10)).tolist()
    growing, forgetful = (tu.Monitor(**SETTINGS).start(data) for _ in range(2))
    for start, stop in itertools.pairwise(stops):
        complete = growing.update(take(data, slice(0, stop)))
        report = forgetful.update(take(data, slice(start, stop)))
    assert complete.rows.missed == 0
    assert "at least" not in complete.guarantee
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
    assert any("too late for the drift" in note for note in report.notes)


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


def test_rows_without_scores_and_duplicates_are_not_missing():
    data = make_log(14, 3_000)
    data["p"] = np.where((data["day"] >= data["day"][0] + 50) & (data["day"] < data["day"][0] + 80), np.nan, data["p"])
    twice = {name: np.repeat(column, 2) for name, column in data.items()}
    monitor = tu.Monitor(**SETTINGS).start(data)
    for stop in np.searchsorted(data["day"], data["day"][0] + np.arange(5, 205, 5)).tolist():
        report = monitor.update(take(twice, slice(0, 2 * stop)))
    assert (report.rows.missed, report.rows.dropped) == (0, 0)
    assert report.rows.counted == int((np.isfinite(data["p"]) & (data["day"] + 30 <= data["day"].max())).sum())


def test_rows_before_the_start_are_not_missing():
    data = make_log(15, 3_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    monitor.update(take(data, slice(1_000, 2_500)))
    first = int(monitor.state.clock.first * 7 - 3 - 30)  # the day from which its rows were scored
    begun = int(np.sum(data["day"][:1_000].astype(int) >= first))  # the first period was given in part
    assert monitor.update(data).rows.missed == begun < 100


def test_a_first_date_long_before_the_others_is_an_error():
    data = make_log(16, 2_000)
    data["day"][0] = np.datetime64("1970-01-01")
    monitor = tu.Monitor(**SETTINGS).start(data)
    for update in (monitor.update, monitor.update_drift):
        with pytest.raises(DataError, match="the first rows enter until 1970"):
            update(data)


def test_dates_before_1970_are_an_error():
    data = make_log(16, 500)
    data["day"][3] = np.datetime64("1900-01-01")
    with pytest.raises(DataError, match="has dates before 1970 at row 3"):
        tu.Monitor(**SETTINGS).start(make_log(16, 500)).update(data)


@pytest.mark.parametrize("now", [20240901, True, 3.5, "soon"])
def test_now_is_a_date(now):
    with pytest.raises(ArgumentError, match="now must be a date"):
        tu.Monitor(**SETTINGS).update(make_log(17, 500), now=now)


@pytest.mark.parametrize("now", ["2424-01-01", np.datetime64("2424-01-01")])
def test_now_is_not_in_the_future(now):
    data = make_log(17, 1_000)
    with pytest.raises(DataError, match="now is 2424-01-01, which is in the future"):
        tu.Monitor(**SETTINGS).start(data).update(data, now=now)


def test_now_may_have_a_time_zone():
    data = make_log(17, 1_000)
    answers = [comparable(tu.Monitor(**SETTINGS).update(data, now=now))
               for now in ("2024-09-01T02:00:00+02:00", "2024-09-01")]  # fmt: skip
    assert answers[0] == answers[1]


@pytest.mark.parametrize(("sampling", "rate"), [({"positive": 0.1}, 1.08), ({"negative": 0.1}, 0.92)])
def test_a_tolerance_is_that_of_the_population(sampling, rate):
    rng = np.random.default_rng(18)
    p = rng.uniform(0.6, 0.9, 60_000)
    y = (rng.random(60_000) < p * rate).astype(float)
    kept = rng.random(60_000) < np.where(y == 1, sampling.get("positive", 1.0), sampling.get("negative", 1.0))
    data = {"y": y[kept], "p": p[kept], "day": np.datetime64("2020-01-01") + np.arange(kept.sum()) // 100}
    settings = {"outcome": "y", "prediction": "p", "by": (), "time": "day", "score_bands": 0, "sampling": sampling}
    assert tu.Monitor(**settings).update(data).state == "alarm"
    assert tu.Monitor(**settings, tolerance="10%").update(data).alarms == ()


def test_a_state_of_many_columns_is_saved(tmp_path):
    rng = np.random.default_rng(19)
    data = {f"x{k}": rng.integers(0, 3, 1_500).astype(str) for k in range(60)}
    data |= {"p": np.full(1_500, 0.2), "y": (rng.random(1_500) < 0.2).astype(float),
             "day": np.datetime64("2024-01-01") + np.arange(1_500) // 10}  # fmt: skip
    monitor = tu.Monitor(outcome="y", prediction="p", time="day").start(data)
    monitor.update(take(data, slice(0, 1_004)))
    monitor.save(tmp_path / "m.watch")
    again = tu.Monitor.load(tmp_path / "m.watch")
    rest = take(data, slice(1_010, 1_500))
    assert again.update(rest).to_dict() == monitor.update(rest).to_dict()


def test_levels_beyond_the_limit_are_one_level(monkeypatch):
    monkeypatch.setattr("trueup.monitoring.segments.MAX_LEVELS", 4)
    data = make_log(20, 3_000)
    early = take(data, slice(0, 600))
    data["region"] = np.where(np.arange(3_000) < 600, data["region"], np.char.add("r", (np.arange(3_000) % 9).astype(str)))
    monitor = tu.Monitor(**PLAIN).start(early)
    monitor.update(data)
    labels = monitor.state.segments.labels
    assert "region=(other new levels)" in labels
    assert sum(label.startswith("region=r") and "&" not in label for label in labels) <= 1


def test_contradictions_of_nested_segments_are_one_error():
    data = make_log(21, 2_000)
    data["p"][700], data["y"][700] = 0.0, 1.0
    report = tu.Monitor(**PLAIN).update(data)
    (alarm,) = report.distinct
    assert len(report.alarms) > 1
    assert alarm.since <= str(data["day"][700]) <= alarm.raised
    assert "1 outcome contradicts" in str(alarm)
    assert (alarm.low, alarm.high) == (0.0, np.inf)


def test_errors_of_other_sizes_inside_a_segment_are_errors_of_their_own():
    rng = np.random.default_rng(22)
    n = 40_000
    region, rate = rng.integers(0, 3, n), np.array([0.05, 0.3, 0.9])
    data = {"p": np.full(n, 0.3), "y": (rng.random(n) < rate[region]).astype(float),
            "region": np.array(["low", "right", "high"])[region], "kind": rng.integers(0, 2, n).astype(str),
            "day": np.datetime64("2024-01-01") + np.arange(n) // 200}  # fmt: skip
    report = tu.Monitor(outcome="y", prediction="p", by=["region", "kind"], time="day", score_bands=0).update(data)
    distinct = [alarm.segment for alarm in report.distinct]
    assert {"region=low", "region=high"} <= set(distinct)
    assert not any("&" in name for name in distinct)


def test_a_started_monitor_with_rows_of_an_open_period_is_not_started_again():
    data = make_log(23, 500)
    monitor = tu.Monitor(**{**PLAIN, "period": 1_000})
    monitor.update(data)
    with pytest.raises(ArgumentError, match="its evidence would be lost"):
        monitor.start(data)


def test_mature_rows_without_now_are_noticed():
    data = make_log(24, 2_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    first = data["day"][0]
    week = np.flatnonzero((data["day"] >= first) & (data["day"] < first + 7))
    assert any("if outcomes are known up to a later date, pass it as now" in note
               for note in monitor.update(take(data, week)).notes)  # fmt: skip
    report = monitor.update(take(data, week), now=first + 40)
    assert not any("pass it as now" in note for note in report.notes)
    assert report.rows.counted == len(week)


def test_rows_that_waited_and_are_overdue_are_noticed():
    data = make_log(25, 2_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    first = data["day"][0]
    monitor.update(take(data, data["day"] < first + 7), now=first + 7)
    report = monitor.update(take(data, data["day"] >= first + 150), now=first + 199)
    waited = int((data["day"] < first + 7).sum())
    assert f"{waited:,} rows since the start, at least, were missing when their period closed" in " ".join(report.notes)
    monitor = tu.Monitor(**SETTINGS).start(data)
    monitor.update(take(data, data["day"] < first + 7), now=first + 7)
    report = monitor.update(take(data, data["day"] >= first + 190), now=first + 199)
    assert f"{waited:,} rows that waited are mature by now, and were not given again" in report.notes


def test_a_whole_log_that_is_given_again_is_repeated_and_not_late():
    data = make_log(26, 3_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    monitor.update(data)
    report = monitor.update(data)
    assert (report.rows.closed, report.rows.added) == (0, 0)
    assert report.rows.repeated == report.rows.counted
    assert not any("closed periods" in note for note in report.notes)


def test_a_level_that_was_rare_has_the_alarm_of_rare_levels():
    rng = np.random.default_rng(27)
    n = 30_000
    late = np.arange(n) >= 300
    region = np.where(late, rng.choice(["a", "b", "c"], n), rng.choice(["a", "b", "c"], n, p=[0.8, 0.1, 0.1]))
    p = 0.05 + 0.2 * rng.random(n)
    data = {"p": p, "region": region, "y": (rng.random(n) < p * np.where(region == "b", 1.8, 1.0)).astype(float),
            "day": np.datetime64("2023-01-02") + np.arange(n) // 100}  # fmt: skip
    settings = {"outcome": "y", "prediction": "p", "by": "region", "time": "day", "score_bands": 0, "min_rows": 50}
    report = tu.Monitor(**settings).start(take(data, slice(0, 300))).update(data)
    assert {"region=b", "region=(rare or new levels)"} <= {alarm.segment for alarm in report.alarms}
    assert len(report.distinct) == 1


def test_an_onset_is_not_after_its_alarm():
    rng = np.random.default_rng(28)
    n = 40_000
    p = 0.05 + 0.2 * rng.random(n)
    week = np.arange(n) // 400
    rate = np.where(week < 20, 2.0, np.where(week < 60, 1.0, 2.5))
    data = {"p": p, "y": (rng.random(n) < p * rate).astype(float), "day": np.datetime64("2022-01-03") + 7 * week}
    settings = {"outcome": "y", "prediction": "p", "by": (), "time": "day", "score_bands": 0}
    alarms = [alarm for stop in (4_000, 20_000, n)
              for alarm in tu.Monitor(**settings).start(data).update(take(data, slice(0, stop))).alarms]  # fmt: skip
    assert len(alarms) == 3
    assert all(alarm.since < alarm.raised for alarm in alarms)


@pytest.mark.parametrize("others", [1.0, 1.3])
def test_an_alarm_of_new_levels_and_that_of_all_rows(others):
    rng = np.random.default_rng(29)
    n = 30_000
    late = np.arange(n) >= 3_000
    region = np.where(late & (rng.random(n) < 0.5), np.char.add("n", rng.integers(0, 900, n).astype(str)), "a")
    p = 0.05 + 0.2 * rng.random(n)
    rate = p * np.where(region == "a", np.where(late, others, 1.0), 2.0 if others == 1 else 0.4)
    data = {"p": p, "region": region, "y": (rng.random(n) < rate).astype(float),
            "day": np.datetime64("2023-01-02") + np.arange(n) // 100}  # fmt: skip
    settings = {"outcome": "y", "prediction": "p", "by": "region", "time": "day", "score_bands": 0}
    report = tu.Monitor(**settings).start(take(data, slice(0, 3_000))).update(data)
    distinct = {alarm.segment: alarm.direction for alarm in report.distinct}
    assert distinct["region=(rare or new levels)"] == (1 if others == 1 else -1)
    assert ("region=a" in distinct) == (others != 1)
    assert "all rows" in {alarm.segment for alarm in report.alarms} - set(distinct)


def test_an_error_is_new_until_a_run_has_reported_it_as_a_distinct_one():
    rng = np.random.default_rng(30)
    n, half = 40_000, 20_000
    week = np.arange(n) // 400
    north, card = rng.random(n) < 0.3, rng.random(n) < 0.5
    p = 0.05 + 0.2 * rng.random(n)
    rate = p * np.where(north & (week >= 10), 1.6, 1.0) * np.where(card & (week >= 50), 1.5, 1.0)
    data = {"p": p, "region": np.where(north, "north", "south"), "product": np.where(card, "card", "loan"),
            "y": (rng.random(n) < rate).astype(float), "day": np.datetime64("2022-01-03") + 7 * week}  # fmt: skip
    monitor = tu.Monitor(outcome="y", prediction="p", by=["region", "product"], time="day", score_bands=0).start(data)
    new, seen = [], set()
    for stop in range(2_000, n + 1, 2_000):
        report = monitor.update(take(data, slice(0, stop)))
        own = {alarm.segment for alarm in report.distinct if alarm.new}
        assert not own & seen
        seen |= {alarm.segment for alarm in report.distinct}
        new.append((stop > half, own))
    assert any(own for _, own in new[:10])
    assert any("product=card" in own for late, own in new if late)


def test_drift_of_mature_rows_goes_by_their_own_clock():
    data = make_log(31, 3_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    days = np.unique(data["day"])
    for day in days[:60]:
        monitor.update_drift(take(data, data["day"] == day), now=day + 40)
    assert monitor.state.drift_rows.counted == int((data["day"] <= days[59]).sum())


def test_a_first_date_long_before_rows_that_wait_is_an_error():
    data = make_log(32, 1_000)
    data["day"][0] = np.datetime64("1990-01-01")
    with pytest.raises(DataError, match="the first rows enter until 1990"):
        tu.Monitor(**{**SETTINGS, "maturity": "300 days"}).start(data).update(data)


def test_a_period_with_too_many_rows_is_an_error(monkeypatch):
    monkeypatch.setattr("trueup.monitoring.periods.MAX_PERIOD_ROWS", 100)
    with pytest.raises(DataError, match="a period has more than 100 rows"):
        tu.Monitor(**PLAIN | {"period": 1_000}).update(make_log(33, 500))


def test_rows_that_all_wait_are_noticed_after_others_have_counted():
    data = make_log(34, 2_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    first = data["day"][0]
    monitor.update(take(data, data["day"] < first + 60))
    report = monitor.update(take(data, data["day"] >= first + 60), now=first + 60)
    assert report.rows.added == 0
    assert any("pass it as now" in note for note in report.notes)
