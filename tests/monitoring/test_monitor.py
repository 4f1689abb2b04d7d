"""Monitors: the same answer in any batching and order, rows that count, alarms, and files."""

from __future__ import annotations

import json
import math
from pathlib import Path

import numpy as np
import pytest

import trueup as tu
from logs import SETTINGS, comparable, take
from logs import make_log as log
from trueup import storage
from trueup.errors import ArgumentError, ColumnError, DataError, FileError
from trueup.monitoring.state import KIND, MANIFEST, locked

ROWS = 6_000
GOLDEN = Path(__file__).parent.parent / "golden"


def give(monitor, data, batches):
    """Update a monitor with consecutive batches of the log; each contains all rows that are not mature when it is given again."""
    report = None
    for rows in batches:
        report = monitor.update(take(data, rows))
    return report


def test_an_error_in_one_region_raises_an_alarm_that_names_it():
    data = log(factor=2.0)
    report = tu.Monitor(**SETTINGS).update(data)
    assert report.state == "alarm"
    assert report.alarms[0].segment == "region=north"
    assert report.alarms[0].low > 1
    assert report.alarms[0].low < 2 < report.alarms[0].high
    assert report.advice == "refit"
    assert "region=north" in repr(report)


def test_an_error_everywhere_asks_for_a_shift():
    data = log(1)
    data["y"] = (np.random.default_rng(2).random(ROWS) < np.minimum(1.8 * data["p"], 1)).astype(float)
    report = tu.Monitor(**SETTINGS).update(data)
    assert report.alarms[0].segment == "all rows"
    assert report.advice == "offset"


def test_a_calibrated_log_raises_none():
    report = tu.Monitor(**SETTINGS).update(log(3))
    assert report.state == "calibrated so far"
    assert report.alarms == ()
    assert report.low < 1 < report.high
    assert report.detectable > 1


@pytest.mark.parametrize("cluster", [None, "customer"])
def test_batches_and_the_order_of_rows_change_nothing(cluster):
    data = log(4, 2_500, factor=1.6, since=80, new_level=90)
    data["customer"] = np.arange(2_500) // 3
    rng = np.random.default_rng(5)
    settings = {**SETTINGS, "maturity": 0, "cluster": cluster}
    whole = tu.Monitor(**settings).start(data)
    first = whole.update(data)
    for count in (7, 61):
        monitor = tu.Monitor(**settings).start(take(data, rng.permutation(2_500)))
        batches = [rng.permutation(part) for part in np.array_split(np.arange(2_500), count)]
        last = give(monitor, data, batches)
        assert comparable(last) == comparable(first)
        assert np.array_equal(monitor.state.processes.evidence, whole.state.processes.evidence)


def test_immature_rows_wait_until_they_are_given_again():
    data = log(6, 3_000)
    half = np.flatnonzero(data["day"] < data["day"][0] + 100)
    monitor = tu.Monitor(**SETTINGS).start(data)
    report = monitor.update(take(data, half))
    young = int((data["day"][half] + 30 > data["day"][half].max()).sum())
    assert report.rows.waiting == young
    assert report.rows.counted == len(half) - young
    assert comparable(monitor.update(data)) == comparable(tu.Monitor(**SETTINGS).start(data).update(data))


def test_outcomes_of_immature_rows_do_not_matter():
    data = log(7, 3_000)
    early = dict(data)
    young = data["day"] + 30 > data["day"].max()
    early["y"] = np.where(young, np.nan, data["y"])
    first, second = (tu.Monitor(**SETTINGS).start(data).update(own) for own in (data, early))
    assert comparable(first) == comparable(second)


def test_rows_with_the_same_id_count_once():
    data = log(8, 3_000)
    twice = {name: np.concatenate([column, column]) for name, column in data.items()}
    first, second = (tu.Monitor(**SETTINGS).start(data).update(own) for own in (data, twice))
    assert comparable(first) == comparable(second)
    assert second.rows.repeated == first.rows.counted


def test_rows_with_the_same_id_and_another_outcome_are_rejected():
    data = log(8, 300)
    twice = {name: np.concatenate([column, column]) for name, column in data.items()}
    twice["y"][300:] = 1 - twice["y"][:300]
    with pytest.raises(DataError, match="rows have the id of another row"):
        tu.Monitor(**{**SETTINGS, "maturity": 0}).start(data).update(twice)


def test_rows_scored_after_now_wait():
    data = log(28, 2_000)
    now = data["day"][0] + 60
    report = tu.Monitor(**{**SETTINGS, "maturity": 0}).start(data).update(data, now=now)
    assert report.rows.waiting == int((data["day"] > now).sum())


def test_a_monitor_with_evidence_is_not_started_again():
    data = log(29, 1_000)
    monitor = tu.Monitor(**SETTINGS)
    monitor.update(data)
    with pytest.raises(ArgumentError, match="its evidence would be lost"):
        monitor.start(data)


def test_the_same_batch_without_ids_counts_once():
    data = log(9, 3_000)
    monitor = tu.Monitor(**{**SETTINGS, "id": None}).start(data)
    first = monitor.update(take(data, slice(0, 1_000)))
    second = monitor.update(take(data, slice(0, 1_000)))
    assert second.rows.counted == first.rows.counted
    assert second.rows.repeated > 0
    assert second.rows.repeated + second.rows.closed == first.rows.counted


def test_a_log_that_grows_needs_no_ids():
    data = log(9, 3_000)
    settings = {**SETTINGS, "id": None}
    monitor = tu.Monitor(**settings).start(data)
    for stop in (900, 1_000, 1_001, 1_800, 3_000):
        report = monitor.update(take(data, slice(0, stop)))
    assert comparable(report) == comparable(tu.Monitor(**settings).start(data).update(data))


def test_rows_of_closed_periods_are_left_out_and_counted():
    data = log(10, 3_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    monitor.update(take(data, slice(300, 3_000)))
    before = monitor.state.processes.evidence
    report = monitor.update(take(data, slice(0, 300)))
    assert report.rows.closed == 300
    assert np.array_equal(monitor.state.processes.evidence, before)


def test_rows_without_a_score_are_counted():
    data = log(11, 3_000)
    data["p"] = np.where(np.arange(3_000) % 10 == 0, np.nan, data["p"])
    report = tu.Monitor(**SETTINGS).update(data)
    mature = data["day"] + 30 <= data["day"].max()
    assert report.rows.unscored == int((mature & np.isnan(data["p"])).sum())
    assert report.rows.counted == int((mature & ~np.isnan(data["p"])).sum())


def test_missing_outcomes_of_mature_rows():
    data = log(12, 2_000)
    data["y"][5] = np.nan
    with pytest.raises(DataError, match="mature row is missing at row 5"):
        tu.Monitor(**SETTINGS).update(data)
    assert tu.Monitor(**SETTINGS, unlabelled="drop").update(data).rows.unlabelled == 1
    assert tu.Monitor(**SETTINGS, unlabelled="zero").update(data).rows.unlabelled == 0


def test_levels_that_appear_later_become_segments_with_the_share_kept_for_them():
    data = log(13, 4_000, new_level=100)
    early = take(data, np.flatnonzero(data["day"] < data["day"][0] + 100))
    monitor = tu.Monitor(**{**SETTINGS, "maturity": 0}).start(early)
    assert "region=west" not in monitor.state.segments.labels
    monitor.update(data)
    segments = monitor.state.segments
    assert "region=west" in segments.labels
    region = next(one for one in segments.combinations if one.columns == (0,))
    assert segments.shares[segments.labels.index("region=west")] == pytest.approx(region.share * 0.1 / 2)
    assert math.fsum(segments.shares) <= 1 + 1e-12


def test_shares_of_alpha_add_up_to_at_most_one():
    segments = tu.Monitor(**SETTINGS).start(log()).state.segments
    assert segments.labels[0] == "all rows"
    assert segments.shares[0] == pytest.approx(0.1)
    assert math.fsum(segments.shares) <= 1


def test_a_contradicted_certain_score_raises_an_alarm():
    data = log(14, 2_000)
    data["p"][3], data["y"][3] = 0.0, 1.0
    report = tu.Monitor(**SETTINGS).update(data)
    assert report.alarms[0].contradictions == 1
    assert report.advice == "check certain scores"


def test_an_error_within_the_tolerance_raises_no_alarm():
    rng = np.random.default_rng(15)
    p = np.full(40_000, 0.2)
    data = {
        "y": (rng.random(40_000) < 0.216).astype(float),
        "p": p,
        "day": np.datetime64("2024-01-01") + np.arange(40_000) // 200,
    }
    settings = {"outcome": "y", "prediction": "p", "by": (), "time": "day", "score_bands": 0}
    assert tu.Monitor(**settings).update(data).state == "alarm"
    assert tu.Monitor(**settings, tolerance="10%").update(data).state == "calibrated so far"


def test_scores_of_a_population_are_moved_to_the_sample():
    rng = np.random.default_rng(16)
    p = 0.01 + 0.1 * rng.random(60_000)
    y = (rng.random(60_000) < p).astype(float)
    kept = (y == 1) | (rng.random(60_000) < 0.1)
    data = {"y": y[kept], "p": p[kept], "day": np.datetime64("2024-01-01") + np.arange(kept.sum()) // 100}
    settings = {"outcome": "y", "prediction": "p", "by": (), "time": "day"}
    assert tu.Monitor(**settings).update(data).state == "alarm"
    assert tu.Monitor(**settings, sampling={"negative": 0.1}).update(data).state == "calibrated so far"


def test_without_times_every_update_is_a_period():
    data = log(17, 2_000)
    monitor = tu.Monitor(outcome="y", prediction="p", by=["region"])
    for part in np.array_split(np.arange(2_000), 4):
        report = monitor.update(take(data, part))
    assert report.periods == 4
    assert report.rows.counted == 2_000


def test_a_file_continues_where_the_monitor_stopped(tmp_path):
    data = log(18, 3_000, factor=1.5, new_level=80)
    for cluster in (None, "customer"):
        data["customer"] = np.arange(3_000) // 2
        settings = {**SETTINGS, "cluster": cluster}
        whole = tu.Monitor(**settings).start(data)
        first, second = take(data, slice(0, 1_700)), take(data, slice(1_200, 3_000))
        whole.update(first)
        path = tmp_path / f"{cluster}.watch"
        whole.save(path)
        again = tu.Monitor.load(path)
        assert comparable(again.report()) == comparable(whole.report())
        assert comparable(again.update(second)) == comparable(whole.update(second))
        assert again.update_drift(data).to_dict() == whole.update_drift(data).to_dict()
        again.save(path)
        assert comparable(tu.Monitor.load(path).report()) == comparable(again.report())


def test_an_update_that_fails_changes_nothing():
    data = log(19, 2_000)
    monitor = tu.Monitor(**SETTINGS).start(data)
    first = repr(monitor.update(take(data, slice(0, 1_000))).to_dict())
    bad = take(data, slice(0, 2_000))
    bad["y"] = np.full(2_000, 7.0)
    with pytest.raises(DataError):
        monitor.update(bad)
    assert repr(monitor.report().to_dict()) == first


def test_two_writers_do_not_overwrite_each_other(tmp_path):
    data, path = log(20, 2_000), tmp_path / "m.watch"
    tu.Monitor(**SETTINGS).start(data).save(path)
    one, two = tu.Monitor.load(path), tu.Monitor.load(path)
    one.update(data)
    one.save(path)
    with pytest.raises(FileError, match="changed by another process"):
        two.save(path)
    with locked(path), pytest.raises(FileError, match="in use by another process"):
        one.save(path)


def test_damaged_files_are_refused(tmp_path):
    path = tmp_path / "m.watch"
    monitor = tu.Monitor(**SETTINGS)
    report = comparable(monitor.update(log(21, 1_500)))
    monitor.save(path)
    content = path.read_bytes()
    rng = np.random.default_rng(22)
    refused = 0
    for _ in range(40):
        damaged = bytearray(content)
        damaged[rng.integers(len(content))] ^= int(rng.integers(1, 256))
        path.write_bytes(bytes(damaged))
        try:
            assert comparable(tu.Monitor.load(path).report()) == report  # a byte that means nothing, such as a date
        except FileError:
            refused += 1
    assert refused >= 35


def test_drift_of_scores_and_segments_needs_no_outcomes():
    data = log(23, 6_000)
    reference = take(data, slice(0, 3_000))
    later = log(24, 6_000)
    later["region"] = np.where(np.random.default_rng(25).random(6_000) < 0.15, "south", later["region"])
    del later["y"]
    monitor = tu.Monitor(**{**SETTINGS, "maturity": 0}).start(reference)
    report = monitor.update_drift(later)
    assert report.state == "no outcomes yet"
    assert "region=south" in [alarm.segment for alarm in report.drift]
    stability = monitor.state.drift.stability(monitor.state.segments, last=False)
    assert stability["region"] > stability["age"]
    same = tu.Monitor(**{**SETTINGS, "maturity": 0}).start(reference).update_drift(log(26, 6_000))
    assert same.drift == ()


@pytest.mark.parametrize("seed", range(3))
def test_levels_that_the_reference_happens_to_lack_are_no_drift(seed):
    random = np.random.default_rng(seed)
    rows = {
        "p": random.uniform(0.1, 0.3, 4_000), "shop": random.integers(0, 2_000, 4_000).astype(str),
        "day": np.datetime64("2024-01-01") + np.arange(4_000) // 40,
    }  # fmt: skip
    monitor = tu.Monitor(outcome="y", prediction="p", by=["shop"], time="day").start(take(rows, slice(0, 2_000)))
    assert monitor.update_drift(take(rows, slice(2_000, 4_000))).drift == ()


@pytest.mark.repeated(20, 400)
def test_calibrated_monitors_raise_no_alarm(repetitions):
    alarms = 0
    for seed in range(repetitions):
        data = log(1_000 + seed, 2_000)
        alarms += tu.Monitor(**SETTINGS).update(data).state == "alarm"
    assert alarms <= 0.05 * repetitions + 3 * math.sqrt(0.05 * 0.95 * repetitions)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"maturity": "three months"}, ArgumentError, "maturity must be a duration"),
        ({"period": 0}, ArgumentError, "period must be a number"),
        ({"tolerance": 0.02}, ArgumentError, "the tolerance of a monitor is a percentage"),
        ({"sampling": {"neutral": 1}}, ArgumentError, "sampling has no share"),
        ({"budget": "week"}, ArgumentError, "budget must be one of"),
        ({"time": None}, ArgumentError, "maturity needs the time"),
        ({"time": None, "maturity": 0}, ArgumentError, "id needs the time"),
        ({"time": "age"}, ColumnError, "must hold dates"),
        ({"id": "keys"}, ColumnError, "did you mean 'key'"),
    ],
)
def test_errors(settings, error, message):
    with pytest.raises(error, match=message):
        tu.Monitor(**{**SETTINGS, **settings}).update(log(27, 1_000))


def test_a_file_of_the_first_format_is_read():
    monitor = tu.Monitor.load(GOLDEN / "monitor-1.watch")
    expected = json.loads((GOLDEN / "monitor-1.json").read_text())
    assert rounded(monitor.report().to_dict()) == rounded(expected["report"])
    report = monitor.update(log(32, 2_000, factor=1.8, since=60), now="2024-09-01")
    assert rounded(report.to_dict()) == rounded(expected["continued"])


def rounded(content):
    """Return plain data with nine digits of every number."""
    return json.loads(json.dumps(content), parse_float=lambda text: float(f"{float(text):.9g}"))


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("settings", "period"), 1e-300), (("settings", "id"), ["key"]), (("settings", "prediction"), None),
        (("state", "clock", "closed"), 10**11), (("state", "clock", "first"), None), (("state", "open", "number"), 0),
        (("state", "open", "count"), 10**30), (("state", "open", "latest"), 1e300), (("state", "rows", "missed"), -1),
        (("state", "ledger", "unlabelled"), "5"), (("revision",), -1), (("content",), 5), (("format",), 2),
    ],
)  # fmt: skip
def test_forged_states_are_refused(tmp_path, path, value):
    file = tmp_path / "m.watch"
    monitor = tu.Monitor(**SETTINGS).start(log(33, 800))
    monitor.update(log(33, 800))
    monitor.save(file)
    blobs = storage.read(file, kind=KIND)
    manifest = json.loads(blobs[MANIFEST])
    place = manifest
    for name in path[:-1]:
        place = place[name]
    place[path[-1]] = value
    storage.write(file, {**blobs, MANIFEST: json.dumps(manifest).encode()}, kind=KIND)
    with pytest.raises(FileError):
        tu.Monitor.load(file)
