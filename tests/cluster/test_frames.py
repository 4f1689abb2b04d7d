"""Partitions of Spark and Dask frames are read as all rows in memory are."""

from __future__ import annotations

import datetime as dt
import decimal
import itertools

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import remote
import trueup as tu
from trueup.cluster.partitions import as_cluster_frame, open_partitions
from trueup.data.columns import engine_of
from trueup.data.frame import read
from trueup.errors import ColumnError, DataError, IdentifierWarning, LostWorkerError, TrueupError, UnreadColumnWarning

ROLES = {"outcome": "y", "prediction": "p", "weight": "w", "unlabelled": "drop", "categorical": ["rank"]}
ROWS = 400


def _loans():
    random = np.random.default_rng(5)
    p = random.uniform(0.05, 0.95, ROWS)
    start = dt.datetime(2022, 1, 1, tzinfo=dt.UTC).replace(tzinfo=None)
    hours = random.integers(0, 24 * 30, ROWS).tolist()
    # Sorted by country: each partition lacks most levels of the others.
    return {
        "country": np.sort(random.choice(["BR", "DE", "US"], ROWS)).tolist(),
        "a.b": random.normal(size=ROWS).tolist(),
        "age": [None if random.random() < 0.2 else int(age) for age in random.integers(18, 80, ROWS)],
        "rank": random.integers(0, 12, ROWS).tolist(),
        "new": [None if random.random() < 0.2 else bool(random.random() < 0.3) for _ in range(ROWS)],
        "amount": [decimal.Decimal(int(cents)).scaleb(-2) for cents in random.integers(0, 10**6, ROWS)],
        "seen": [start + dt.timedelta(hours=hour) for hour in hours],
        "day": [(start + dt.timedelta(hours=hour)).date() for hour in hours],
        "w": random.choice([0.0, 1.0, 2.0], ROWS).tolist(),
        "p": p.tolist(),
        "y": [None if random.random() < 0.1 else int(one) for one in random.random(ROWS) < p],
    }


LOANS = _loans()
CUTS = (0, 90, 90, 250, ROWS)  # the second partition has no rows


def _on_spark(spark, columns, cuts=CUTS):
    """Return a Spark frame whose partitions create their own rows."""
    spark.sparkContext.addPyFile(remote.__file__)
    whole = pa.table(columns)
    parts = [whole.slice(a, b - a).to_batches() for a, b in itertools.pairwise(cuts)]

    def make(batches):
        for batch in batches:
            for number in batch["id"].to_pylist():
                yield from parts[number]

    return spark.range(0, len(parts), numPartitions=len(parts)).mapInArrow(make, spark.createDataFrame(whole).schema)


def _on_dask(columns, cuts=CUTS):
    import dask.dataframe as dd

    whole = pa.table(columns).to_pandas(types_mapper=pd.ArrowDtype)  # Dask converts objects to texts
    parts = [whole.iloc[a:b] for a, b in itertools.pairwise(cuts)]
    return dd.from_map(remote.identity, parts, meta=whole.iloc[:0])


@pytest.fixture
def cut_up(request):
    """Return rows in the same four partitions of either engine."""

    def make(engine, columns=LOANS):
        if engine == "spark":
            return _on_spark(request.getfixturevalue("spark"), columns)
        request.getfixturevalue("client")
        return _on_dask(columns)

    return make


ENGINES = pytest.mark.parametrize("engine", ["spark", "dask"])


@ENGINES
def test_every_partition_with_rows_is_visited_once(cut_up, engine):
    frames = as_cluster_frame(cut_up(engine))
    assert engine_of(cut_up(engine)) == engine
    assert frames.names == tuple(LOANS)
    for _ in range(2):  # Spark adds differently once it knows the number of partitions
        sizes = frames.map_reduce(remote.partition_sizes, remote.merge, ["p"])
        assert {number: rows for number, rows in sizes.items() if rows} == {0: 90, 2: 160, 3: 150}
    if engine == "dask":  # without workers, partitions are read in this process
        assert [len(part) for part in frames.iter_partitions(["p", "a.b"])] == [90, 0, 160, 150]


@ENGINES
def test_records_are_moved_to_new_partitions_and_added_in_their_order(cut_up, engine):
    frames = as_cluster_frame(cut_up(engine))
    sizes, shuffled = frames.shuffle(remote.split_by_score, remote.merge, ["p"], 3)
    assert sizes == {0: 90, 1: 0, 2: 160, 3: 150}
    scores = np.sort(LOANS["p"])
    with shuffled:
        for _ in range(2):
            assert shuffled.map_reduce(remote.sorted_scores, remote.add) == [
                (0, scores[scores < 0.5].tolist()),
                (2, scores[scores >= 0.5].tolist()),
            ]


def test_an_error_while_records_are_split_is_raised(cut_up):
    with pytest.raises(TrueupError, match=r"^the work on partition \d failed: KeyError: 'no such thing in partition \d'$"):
        as_cluster_frame(cut_up("spark")).shuffle(remote.fail_on_partition, remote.merge, ["p"], 3)


@ENGINES
def test_partitions_are_read_as_all_rows_in_memory_are(cut_up, engine):
    whole = read(pa.table(LOANS), **ROLES)
    with open_partitions(cut_up(engine), **ROLES) as partitions:
        tables = [table for _, table in sorted(partitions.map_reduce(remote.number_table, remote.merge).items())]
        assert (partitions.schema, partitions.rows) == (whole.schema, ROWS)
        sizes = partitions.map_reduce(remote.count_table, remote.merge)
        assert {number: size for number, size in sizes.items() if size} == {0: 90, 2: 160, 3: 150}
        assert partitions.has_missing("age")
        assert not partitions.has_missing("amount")
    assert sum(table.unlabelled for table in tables) == whole.unlabelled
    assert sum(table.weightless for table in tables) == whole.weightless
    for name, column in whole.columns.items():
        np.testing.assert_array_equal(np.concatenate([table.columns[name] for table in tables]), column)
    for role in ("prediction", "outcome", "weight"):
        np.testing.assert_array_equal(np.concatenate([getattr(table, role) for table in tables]), getattr(whole, role))


@ENGINES
def test_an_invalid_row_is_reported_with_its_partition(cut_up, engine):
    columns = {**LOANS, "p": [*LOANS["p"][:257], 1.5, *LOANS["p"][258:]]}
    with (
        pytest.raises(DataError, match=r"got 1.5 at row 7 of partition 3\nhint: percentages") as caught,
        open_partitions(cut_up(engine, columns), **ROLES),
    ):
        pass
    assert caught.value.hint == "percentages? divide them by 100"


def test_errors_and_lost_workers_of_spark_are_reported_in_one_line(cut_up):
    frames = as_cluster_frame(cut_up("spark"))
    with pytest.raises(TrueupError, match=r"^the work on partition 0 failed: KeyError: 'no such thing in partition 0'$"):
        frames.map_reduce(remote.fail_on_partition, remote.merge, ["p"])
    with pytest.raises(LostWorkerError, match="the Python worker of a Spark task ended unexpectedly") as caught:
        frames.map_reduce(remote.kill_on_partition_2, max, ["p"])
    assert len(str(caught.value).splitlines()) == 2
    assert frames.map_reduce(remote.partition_sizes, remote.merge, ["p"])[3] == 150


def test_a_lost_dask_worker_is_reported(client):
    import dask

    frames = as_cluster_frame(_on_dask({"p": LOANS["p"]}))
    with dask.config.set({"distributed.scheduler.allowed-failures": 0}):
        client.run_on_scheduler(remote.set_allowed_failures, failures=0)
        with pytest.raises(LostWorkerError, match="a Dask worker was lost: KilledWorker"):
            frames.map_reduce(remote.kill_on_partition_2, max, ["p"])
    client.run_on_scheduler(remote.set_allowed_failures, failures=3)
    client.wait_for_workers(2)
    assert frames.map_reduce(remote.partition_sizes, remote.merge, ["p"])[3] == 150


def test_results_of_many_partitions_are_added_on_the_cluster(spark):
    spark.sparkContext.addPyFile(remote.__file__)
    frame = spark.range(0, 500, numPartitions=40)
    frames = as_cluster_frame(frame)
    wanted = [(at * 500 // 40, (at + 1) * 500 // 40 - 1) for at in range(40)]
    assert sorted(frames.map_reduce(remote.id_range, remote.add, ["id"])) == wanted
    assert frames.map_reduce(remote.id_range, remote.add, ["id"]) == wanted  # in order


def test_a_frame_that_spark_knows_to_be_empty_has_no_rows(spark):
    frame = spark.sql("SELECT 0.5D AS p, 1 AS y").filter("1 = 0")
    assert as_cluster_frame(frame).map_reduce(remote.partition_sizes, remote.merge, ["p"]) == {0: 0}
    with pytest.raises(DataError, match="the data has no rows"), open_partitions(frame, outcome="y", prediction="p"):
        pass


def test_unsupported_types_are_rejected_before_anything_runs(spark):
    frame = spark.sql("SELECT 0.5D AS p, 1 AS y, array(1, 2) AS several")
    with (
        pytest.raises(ColumnError, match="column 'several' has a type that trueup does not read: array<int>"),
        open_partitions(frame, outcome="y", prediction="p", features=["several"]),
    ):
        pass
    with open_partitions(frame, outcome="y", prediction="p", features=[]) as partitions:
        assert partitions.schema.features == ()


def test_unsupported_types_without_a_role_are_left_out_with_the_reason(spark):
    frame = spark.sql("SELECT 0.5D AS p, 1 AS y, array(1, 2) AS several, INTERVAL '90' SECOND AS wait")
    with (
        pytest.warns(UnreadColumnWarning, match="'several', it has a type that trueup does not read: array<int>"),
        open_partitions(frame, outcome="y", prediction="p") as partitions,
    ):
        assert partitions.sample("wait")[0].tolist() == [90.0]
    assert partitions.left_out == {"several": "it has a type that trueup does not read: array<int>"}


def test_large_integers_are_categories_of_all_partitions(spark, client):
    import dask.dataframe as dd

    rows = pd.DataFrame({"y": [0, 1] * 60, "p": 0.5, "code": [7] * 60 + [2**53, 2**53 + 1] * 30})
    decimals = spark.createDataFrame(rows).selectExpr("y", "p", "cast(code as decimal(20, 0)) as code")
    for frame in (spark.createDataFrame(rows).repartition(2), decimals, dd.from_pandas(rows, npartitions=2)):
        with pytest.warns(IdentifierWarning, match="beyond 2"):
            audit = tu.audit(frame, outcome="y", prediction="p", by=["code"], min_rows=10)
        counts = {"code=7": 60, "code=9007199254740992": 30, "code=9007199254740993": 30}
        assert {name: audit[name].n for name in counts} == counts


def test_dask_reads_pandas_categories_and_strings_of_every_partition(client):
    import dask.dataframe as dd

    kinds = [pd.Categorical(["a", "b"]), pd.Categorical(["b", "c"], categories=["c", "b"])]
    parts = [pd.DataFrame({"p": [0.1, 0.9], "y": [0, 1], "kind": kind, "word": ["x", None]}) for kind in kinds]
    frame = dd.from_map(remote.identity, parts, meta=parts[0].iloc[:0].astype({"word": "string[pyarrow]"}))
    with open_partitions(frame, outcome="y", prediction="p") as opened:
        assert [feature.levels for feature in opened.schema.features] == [("a", "b", "c"), ("x",)]
        codes = np.concatenate([table.columns["kind"] for table in opened.iter_tables()])
    assert codes.tolist() == [0, 1, 1, 2]


def test_an_error_in_reading_a_partition_names_it():
    from trueup.cluster import spark

    batch = pa.RecordBatch.from_pydict({"a": [1, 2], "part": [3, 3]})
    (record,) = spark._map_task(lambda frame, _: len(frame), {"a": "int64", "b": "int64"}, None, None, iter([batch]))
    with pytest.raises(TrueupError, match=r"the work on partition 3 failed: ArrowInvalid"):
        spark._unpack(record["data"][0].as_py())
