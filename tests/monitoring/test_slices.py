"""Rows that are not in memory: the same answer as in memory, period by period."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import trueup as tu
from logs import SETTINGS, comparable, make_log, take
from trueup.errors import ArgumentError, DataError


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a directory with a log as Parquet and as CSV, out of order."""
    directory = tmp_path_factory.mktemp("logs")
    data = make_log(1, 3_000, factor=2.0, since=60, new_level=90)
    frame = pl.DataFrame(data)[np.random.default_rng(0).permutation(3_000)]
    frame.write_parquet(directory / "log.parquet")
    frame.write_csv(directory / "log.csv")
    return directory


@pytest.mark.parametrize("settings", [{}, {"id": None}, {"cluster": "age", "by": ["region"], "id": None}])
def test_a_scan_gives_the_answer_of_rows_in_memory(directory, settings):
    data = make_log(1, 3_000, factor=2.0, since=60, new_level=90)
    settings = {**SETTINGS, **settings}
    whole = tu.Monitor(**settings).start(take(data, slice(0, 1_000)))
    expected, drift = whole.update(data), whole.update_drift(data)
    assert expected.alarms
    for name in ("log.parquet", "log.csv"):
        monitor = tu.Monitor(**settings).start(take(data, slice(0, 1_000)))
        report = monitor.update(tu.scan(directory / name))
        assert comparable(report) == comparable(expected)
        assert report.rows == expected.rows
        assert monitor.update_drift(tu.scan(directory / name)).drift == drift.drift
        assert np.array_equal(monitor.state.processes.evidence, whole.state.processes.evidence)


def test_a_scan_continues_after_rows_in_memory(directory):
    data = make_log(1, 3_000, factor=2.0, since=60, new_level=90)
    expected = tu.Monitor(**SETTINGS).start(data).update(data)
    monitor = tu.Monitor(**SETTINGS).start(data)
    monitor.update(take(data, slice(0, 1_300)))
    assert comparable(monitor.update(tu.scan(directory / "log.parquet"))) == comparable(expected)


def test_a_scan_starts_a_monitor(directory):
    query = f"SELECT * FROM '{directory / 'log.parquet'}'"
    report = tu.Monitor(**SETTINGS).update(tu.scan(sql=query))
    assert report.alarms[0].segment == "region=north"


def test_only_rows_of_one_period_are_read_at_once(directory, monkeypatch):
    sizes = []
    fetch = tu.monitoring.slices.db.fetch_all
    monkeypatch.setattr(tu.monitoring.slices.db, "fetch_all", lambda *args: sizes.append(fetch(*args)) or sizes[-1])
    data = make_log(1, 3_000)
    tu.Monitor(**SETTINGS).start(data).update(tu.scan(directory / "log.parquet"))
    assert len(sizes) > 20
    assert max(len(columns["p"]) for columns in sizes) < 300


def test_dask_frames_give_the_answer_of_rows_in_memory():
    dd, pd = pytest.importorskip("dask.dataframe"), pytest.importorskip("pandas")
    import dask

    data = make_log(2, 2_000, factor=2.0, since=60)
    frame = pd.DataFrame(data).sample(frac=1, random_state=0)
    expected = tu.Monitor(**SETTINGS).start(data).update(data)
    with dask.config.set(scheduler="synchronous"):
        report = tu.Monitor(**SETTINGS).start(data).update(dd.from_pandas(frame, npartitions=5, sort=False))
        with pytest.raises(ArgumentError, match="not fixed by a Dask frame"):
            tu.Monitor(**SETTINGS).update(dd.from_pandas(frame, npartitions=2))
    assert comparable(report) == comparable(expected)
    assert report.rows == expected.rows


def test_times_of_scans_must_be_dates_and_known(directory):
    with pytest.raises(DataError, match="must hold dates"):
        tu.Monitor(**{**SETTINGS, "time": "region", "by": ["age"]}).update(tu.scan(directory / "log.parquet"))
    query = f"SELECT * REPLACE (CASE WHEN key > 5 THEN day END AS day) FROM '{directory / 'log.parquet'}'"
    with pytest.raises(DataError, match="missing in 6 rows"):
        tu.Monitor(**SETTINGS).update(tu.scan(sql=query))
    with pytest.raises(ArgumentError, match="there is no time column"):
        tu.Monitor(outcome="y", prediction="p", by="region").update(tu.scan(directory / "log.parquet"))
