"""An audit of files in pieces is the audit of the same rows in memory, whatever the pieces."""

from __future__ import annotations

import itertools
import operator
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
from same_audit import assert_same_audit
from trueup.audits import partitions, segments
from trueup.audits.partitions import SpilledRecords, score_edges, split_by_score
from trueup.audits.summary import MAX_POOL_ENTRIES, Pool
from trueup.data import chunks
from trueup.data.scan import parse_memory
from trueup.data.sql import read_files
from trueup.errors import ArgumentError, DataError, FileError, HardPredictionWarning, OneClassWarning
from trueup.kernels.tally import sort_rows

BY = ["region", "product", "employment", "age", "income", "opened"]
ROLES = {"outcome": "outcome", "prediction": "prediction"}


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """12,000 loans with tied scores, weights (some 0), outcomes that are missing, and classes; in several formats."""
    folder = tmp_path_factory.mktemp("large")
    random = np.random.default_rng(0)
    loans = tu.simulate.lending(12_000, seed=0)
    frame = pl.DataFrame({name: np.asarray(column) for name, column in loans.items() if name != "truth"})
    p_a = np.round(random.random(12_000), 2)
    frame = frame.with_columns(
        pl.col("prediction").round(3),
        w=pl.Series(np.round(random.uniform(0, 3, 12_000), 2) * (random.random(12_000) > 0.02)),
        seen=pl.Series(np.where(random.random(12_000) < 0.05, np.nan, frame["outcome"].to_numpy())).fill_nan(None),
        late=pl.Series(random.random(12_000) < 0.3),
        p_a=pl.Series(p_a), p_b=pl.Series(1 - p_a), kind=pl.Series(np.where(random.random(12_000) < p_a, "a", "b")),
        same=pl.lit(0.25), sampled=pl.when(frame["outcome"] == 1).then(1.0).otherwise(10.0),
    )  # fmt: skip
    frame.write_parquet(folder / "all.parquet", row_group_size=2_000)
    frame.write_csv(folder / "all.csv")
    frame[:7_000].write_parquet(folder / "1.parquet")
    frame[7_000:].write_parquet(folder / "2.parquet")
    return folder


@pytest.fixture
def small(monkeypatch):
    """Pieces of 700 rows, and parts of at most 900."""
    monkeypatch.setattr(chunks, "PARTITION_ROWS", 700)
    monkeypatch.setattr(chunks, "MAX_CHUNK_ROWS", 700)
    monkeypatch.setattr(chunks.ScanReader, "memory_budget", property(lambda self: 40 * 12_000 * 40))
    monkeypatch.setattr(partitions, "BYTES_PER_ROW", 10**9)
    monkeypatch.setattr(partitions, "MIN_CHUNK_ROWS", 900)


def by_segment(audit):
    return {one.segment: one for one in audit}


@pytest.mark.parametrize(
    ("name", "given"),
    [
        ("all.parquet", {"weight": "sampled", "min_rows": 1500}), ("all.parquet", {"depth": 3, "min_rows": 100}),
        ("all.csv", {"weight": "w"}), ("[12].parquet", {}), ("[12].parquet", {"depth": 1, "bins": {"age": [30], ...: 4}}),
    ],
)  # fmt: skip
def test_files_give_the_findings_of_memory(files, small, name, given):
    path = f"{files}/{name}"
    rows = read_files(path)
    assert_same_audit(tu.audit(rows, by=BY, **ROLES, **given), tu.audit(tu.scan(path), by=BY, **ROLES, **given))


@pytest.mark.parametrize(
    "given",
    [
        {"outcome": "seen", "prediction": "prediction", "unlabelled": "drop", "weight": "w"},
        {"outcome": "income", "prediction": "age", "task": "regression", "unlabelled": "drop", "by": ["region", "late"]},
        {"outcome": "outcome", "prediction": "same", "by": ["region", "late", "opened"]},
        {"outcome": "kind", "prediction": ["p_a", "p_b"], "by": ["region", "product"]},
        {"outcome": "p_a", "prediction": "p_b", "by": ["region"], "adjust": "bh", "task": "binary"},
        {"outcome": "outcome", "prediction": "prediction", "by": ["age"], "categorical": ["age"]},
    ],
    ids=["set aside", "real", "one score", "classes", "soft", "numbers as names"],
)  # fmt: skip
def test_every_task_gives_the_findings_of_memory(files, small, given):
    path, given = files / "all.parquet", {"by": BY} | given
    rows = read_files(path, text=given.get("categorical", ()))
    assert_same_audit(tu.audit(rows, **given), tu.audit(tu.scan(path), **given))


def test_a_query_is_run_once_and_audited(files, small):
    query = "SELECT * FROM data WHERE region <> 'north'"
    rows = read_files(files / "all.csv", sql=query)
    assert_same_audit(
        tu.audit(rows, by=BY, **ROLES), tu.audit(tu.scan(files / "all.csv", sql=query, memory="1GB"), by=BY, **ROLES)
    )


def test_bins_of_columns_that_do_not_fit_are_those_of_a_sample(files, monkeypatch):
    monkeypatch.setattr(chunks, "PARTITION_ROWS", 3_000)
    monkeypatch.setattr(chunks.ScanReader, "memory_budget", property(lambda self: 1_000))
    found = tu.audit(tu.scan(files / "all.parquet"), by=["age", "income", "term"], depth=1, **ROLES)
    rows = found.to_frame()
    ages = [rows["n"][at] for at, name in enumerate(rows["segment"]) if name.startswith("age")]
    assert len(ages) == 10
    assert 700 < min(ages) <= max(ages) < 1_700
    assert {name for name in rows["segment"] if name.startswith("term")} == {f"term={x}" for x in (12, 24, 36, 48, 60, 72)}
    assert rows["n"][rows["segment"].tolist().index("income is missing")] > 0


def test_a_bad_row_is_reported_by_its_position_in_all_files(files, small, tmp_path):
    frame = pl.read_parquet(files / "all.parquet").with_columns(
        prediction=pl.when(pl.int_range(pl.len()) == 8_123).then(1.5).otherwise(pl.col("prediction"))
    )
    frame.write_parquet(tmp_path / "bad.parquet")
    with pytest.raises(DataError, match=r"got 1\.5 at row 8123\n"):
        tu.audit(tu.scan(tmp_path / "bad.parquet"), by=["region"], **ROLES)


def test_checks_of_all_rows_see_all_rows(files, small, tmp_path):
    frame = pl.read_parquet(files / "all.parquet").select(
        "region", outcome=pl.lit(0), prediction=pl.col("late").cast(float)
    )
    frame.write_parquet(tmp_path / "odd.parquet")
    with pytest.warns(HardPredictionWarning), pytest.warns(OneClassWarning, match="12,000 rows"):
        tu.audit(tu.scan(tmp_path / "odd.parquet"), by=["region"], **ROLES)
    one = frame.with_columns(outcome=(pl.int_range(pl.len()) == 11_000).cast(int), prediction=pl.lit(0.1))
    one.write_parquet(tmp_path / "one.parquet")
    tu.audit(tu.scan(tmp_path / "one.parquet"), by=["region"], **ROLES)  # most pieces have one class, all rows have two
    blank = frame.with_columns(outcome=pl.lit(None, pl.Int64), prediction=pl.lit(0.1))
    blank.write_parquet(tmp_path / "blank.parquet")
    with pytest.raises(DataError, match="has no values: it is missing in all 12,000 rows"):
        tu.audit(tu.scan(tmp_path / "blank.parquet"), by=["region"], unlabelled="drop", **ROLES)


def write(path, **columns):
    pl.DataFrame(columns).write_parquet(path, row_group_size=1_000)
    return path


def scored(rows=2_102, seed=3):
    """Scores of three digits, and outcomes; the last piece of 700 rows has two."""
    random = np.random.default_rng(seed)
    p = np.round(random.random(rows), 3)
    return random, p, (random.random(rows) < p).astype(float)


def test_a_copy_of_the_outcome_must_agree_in_all_rows(small, tmp_path):
    random, p, y = scored()
    flag = np.where(np.arange(2_102) >= 2_100, y, random.random(2_102).round())
    y[-2:] = flag[-2:] = 0, 1  # what may well be in the last piece
    found = tu.audit(tu.scan(write(tmp_path / "like.parquet", flag=flag, p=p, y=y)), outcome="y", prediction="p")
    assert {"flag=0", "flag=1"} <= by_segment(found).keys()
    order = np.argsort(y)  # most pieces have one outcome
    for column in (y, np.where(y == 1, "late", "paid")):
        path = write(tmp_path / "copy.parquet", flag=column[order], p=p[order], y=y[order])
        with pytest.raises(tu.errors.ColumnError, match="column 'flag' is identical to the outcome"):
            tu.audit(tu.scan(path), outcome="y", prediction="p")


def test_classes_are_found_in_all_rows(small, tmp_path):
    """Outcomes 0, 1, 2 of columns p_1, p_2, p_3 are positions, though a piece without a 0 might as well mean names."""
    random, *_ = scored()
    p = random.dirichlet([1, 1, 1], 2_102)
    kind = (p.cumsum(axis=1) < random.random((2_102, 1))).sum(axis=1)
    order = np.argsort(-kind)
    path = write(tmp_path / "k.parquet", p_1=p[order, 0], p_2=p[order, 1], p_3=p[order, 2], k=kind[order], g=kind % 2)
    given = {"outcome": "k", "prediction": ["p_1", "p_2", "p_3"], "by": ["g"]}
    assert_same_audit(tu.audit(read_files(path), **given), tu.audit(tu.scan(path), **given))


def test_nan_in_parquet_is_missing(small, tmp_path):
    """They pass over NaN, and DuckDB takes them at their word."""
    random, p, y = scored()
    name = np.where(random.random(2_102) < 0.9, "gone", np.arange(2_102).astype(str))
    y[name == "gone"] = np.nan
    x = random.choice([0.0, 0.5, 1.0, np.nan], 2_102)
    path = write(tmp_path / "nan.parquet", name=name, x=x, p=p, y=y)
    given = {"outcome": "y", "prediction": "p", "unlabelled": "drop", "categorical": ["x"], "min_rows": 10}
    with pytest.warns(tu.errors.IdentifierWarning):
        memory = tu.audit(read_files(path, text=["x"]), **given)
    with pytest.warns(tu.errors.IdentifierWarning):
        found = tu.audit(tu.scan(path), **given)
    assert_same_audit(memory, found)
    assert memory.left_out == found.left_out
    assert "x=nan" not in by_segment(found)
    assert "x is missing" in by_segment(found)


@pytest.mark.parametrize("given", [{"task": "regression", "weight": "w"}, {"by": ["p"]}, {"by": None}])
def test_files_may_differ_in_types_and_order_of_columns(small, tmp_path, given):
    random, p, y = scored()
    frame = pl.DataFrame({
        "it's": random.choice(["a", "b"], 2_102), "\u00c9": random.integers(0, 5, 2_102), "\u00e9": random.choice(["x", "y"], 2_102),
        "file_row_number": random.integers(0, 3, 2_102), "p": p, "y": y, "w": random.uniform(0.5, 2, 2_102), 'a "b"': p * 2,
    })  # fmt: skip
    kept = frame if given.get("by", "") is None else frame.drop("file_row_number")
    kept[:0].write_parquet(tmp_path / "1.parquet")
    kept[:900].with_columns(pl.col("y").cast(pl.Int8)).write_parquet(tmp_path / "2.parquet")
    kept[900:].select(kept.columns[::-1]).write_parquet(tmp_path / "3.parquet")
    for path in (f"{tmp_path}/*.parquet", tmp_path / "all.csv"):
        kept.write_csv(tmp_path / "all.csv")
        roles = {"outcome": "y", "prediction": "p"} | given
        assert_same_audit(tu.audit(read_files(path), **roles), tu.audit(tu.scan(path), **roles))


def test_rare_values_of_a_sampled_column_are_not_missing(small, monkeypatch, tmp_path):
    random, p, y = scored()
    rare = np.where(np.arange(2_102) % 100 == 3, random.random(2_102), np.nan)
    monkeypatch.setattr(chunks, "PARTITION_ROWS", 100)
    monkeypatch.setattr(chunks.ScanReader, "memory_budget", property(lambda self: 1_000))
    found = tu.audit(tu.scan(write(tmp_path / "r.parquet", x=rare, p=p, y=y)), outcome="y", prediction="p", min_rows=1)
    rows = {name: one.n for name, one in by_segment(found).items() if name.startswith("x")}
    assert rows.pop("x is missing") == np.isnan(rare).sum()
    assert sum(rows.values()) == (~np.isnan(rare)).sum()


def test_samples_of_periodic_rows_are_fair(monkeypatch, tmp_path):
    _, p, y = scored(20_000)
    monkeypatch.setattr(chunks, "PARTITION_ROWS", 5_000)
    monkeypatch.setattr(chunks.ScanReader, "memory_budget", property(lambda self: 1_000))
    path = write(tmp_path / "turns.parquet", hour=np.arange(20_000) % 4, p=p, y=y)
    with chunks.open_scan(tu.scan(path), outcome="y", prediction="p") as rows:
        values, whole = rows.sample("hour")
    assert not whole
    # 5,000 draws of 4 kinds: 1,250 each, give or take 31.
    assert np.abs(np.bincount(values.astype(int), minlength=4) - 1_250).max() < 5 * 31


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"weight": "t"}, "weight column 't' must hold numbers; got text"),
        ({"weight": "day"}, "weight column 'day' must hold numbers; got dates"),
        ({"outcome": "p"}, "named both as prediction and as outcome"),
        ({"by": ["y"]}, "it is the outcome"),
        ({"weight": "no"}, "no column 'no' to use as weight"),
        ({"outcome": np.zeros(3)}, "the outcome must be the name of a column"),
        ({"prediction": np.zeros(3)}, "the prediction must be the name of a column"),
    ],
)
def test_invalid_roles_raise(small, tmp_path, given, expected):
    _, p, y = scored()
    day = np.datetime64("2024-01-01") + np.arange(2_102) % 9
    path = write(tmp_path / "r.parquet", t=np.where(p > 0.5, "a", "b"), day=day, p=p, y=y)
    with pytest.raises(tu.errors.TrueupError, match=expected):
        tu.audit(tu.scan(path), **({"outcome": "y", "prediction": "p"} | given))


def test_identifiers_are_left_out_and_too_many_levels_raise(monkeypatch, tmp_path):
    _, p, y = scored()
    path = write(
        tmp_path / "id.parquet", id=np.arange(2_102).astype(str), half=(np.arange(2_102) // 2).astype(str), p=p, y=y
    )
    monkeypatch.setattr(chunks, "BYTES_PER_LEVEL", 10**6)
    with (
        pytest.warns(tu.errors.IdentifierWarning, match="'id' is left out"),
        pytest.raises(DataError, match="column 'half' has 1,051 levels, more than fit in 1 GB"),
    ):
        tu.audit(tu.scan(path, memory="1GB"), outcome="y", prediction="p")


def test_results_beyond_the_memory_budget_take_several_passes(files, small, monkeypatch):
    monkeypatch.setattr(partitions, "MAX_HELD_ROWS", 10_000)
    monkeypatch.setattr(segments, "MAX_UNCOUNTED_CELLS", 0)
    monkeypatch.setattr(segments, "BYTES_PER_TALLY", 10**6)
    monkeypatch.setattr(segments, "BYTES_PER_COUNT", 10**6)
    seen = []
    map_reduce = partitions.PartitionedRows.map_reduce
    monkeypatch.setattr(
        partitions.PartitionedRows, "map_reduce", lambda self, *given: (seen.append(given), map_reduce(self, *given))[1]
    )
    given = {"by": BY, "depth": 3, "min_rows": 100, **ROLES}
    found = tu.audit(tu.scan(files / "all.parquet"), **given)
    assert len(seen) > 10
    assert_same_audit(tu.audit(read_files(files / "all.parquet"), **given), found)


def test_progress_counts_the_rows_of_every_pass(files, small):
    reports = []
    tu.audit(tu.scan(files / "all.parquet"), by=BY, progress=lambda *now: reports.append(now), **ROLES)
    done = [done for done, total in reports if total == 12_000]  # others count the segments that are refined
    passes = np.split(done, np.flatnonzero(np.diff(done) <= 0) + 1)
    assert len(passes) == 5  # spill, tallies, scores of segments to refine, curves, overlaps of findings
    assert all(counted[-1] == 12_000 for counted in passes)


def test_the_spill_directory_is_emptied(files, small, tmp_path):
    tu.audit(tu.scan(files / "all.csv", spill=tmp_path), by=["region"], **ROLES)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"adjust": "max"}, "needs them in memory"),
        ({"segments": {"mine": [True]}}, "segments as arrays need rows in memory"),
        ({"outcome": None}, "an audit needs the outcome"),
        ({"by": ["regoin"]}, "did you mean 'region'"),
    ],
)
def test_parameters_that_need_rows_in_memory_raise(files, given, expected):
    with pytest.raises((ArgumentError, DataError, FileError, tu.errors.ColumnError), match=expected):
        tu.audit(tu.scan(files / "all.parquet"), **({"by": ["region"]} | ROLES | given))


@pytest.mark.parametrize(
    ("memory", "expected"), [("2XB", "units are"), ("lots", "2GB"), ("10MB", "at least 300 MB"), (True, "2GB")]
)
def test_invalid_amounts_of_memory_raise(memory, expected):
    with pytest.raises(ArgumentError, match=expected):
        parse_memory(memory)


def test_the_spill_directory_must_exist(tmp_path):
    with pytest.raises(FileError, match="spill must be an existing directory"):
        tu.scan("x.parquet", spill=tmp_path / "no")
    with pytest.raises(ArgumentError, match="neither a file nor a query"):
        tu.scan()


LIMITED = """
import resource, sys
import trueup as tu
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
try:
    tu.audit(tu.scan(sys.argv[1], spill=sys.argv[2]), outcome="outcome", prediction="prediction", by=["region", "age"])
except tu.errors.FileError as error:
    print(error)
"""


def test_a_full_disk_raises_and_leaves_the_input_unchanged(files, tmp_path):
    before = (files / "all.parquet").read_bytes()
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(files / "all.parquet"), str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "cannot spill to" in done.stdout, done.stdout + done.stderr
    assert "use another spill directory" in done.stdout
    assert list(tmp_path.iterdir()) == []
    assert (files / "all.parquet").read_bytes() == before


SLOW = """
import sys, time
from trueup.audits.partitions import SpilledRecords
from trueup.cli import main
write = SpilledRecords.write
def slow(self, rows):
    write(self, rows)
    print("spilled", flush=True)
    time.sleep(30)
SpilledRecords.write = slow
sys.exit(main(["audit", sys.argv[1], "--outcome", "outcome", "--prediction", "prediction", "--by", "region", "--memory", "1GB",
               "--spill", sys.argv[2], "-o", sys.argv[3]]))
"""


def test_ctrl_c_leaves_nothing_behind(files, tmp_path):
    (tmp_path / "spill").mkdir()
    page = tmp_path / "page.html"
    page.write_text("before")
    words = [sys.executable, "-c", SLOW, str(files / "all.parquet"), str(tmp_path / "spill"), str(page)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "spilled\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=20) == 130
    assert list((tmp_path / "spill").iterdir()) == []
    assert page.read_text() == "before"


# The rows on disk


def records_of(spilled, dtype):
    """Return the scores of every partition."""
    read = spilled.map_reduce(lambda blobs, number: [(number, np.frombuffer(blobs[0], dtype)["p"].copy())], operator.add)
    return [scores for _, scores in read]


@settings(max_examples=40)
@given(
    scores=st.lists(
        st.sampled_from([0.0, 0.1, 0.2, 0.25, 0.5, 0.50001, 0.9, 1.0]) | st.floats(0, 1), min_size=1, max_size=120
    ),
    ranges=st.integers(1, 20),
    seen=st.integers(1, 40),
)
def test_no_score_is_in_two_ranges_whatever_sample_they_were_chosen_by(scores, ranges, seen):
    p = np.array(scores)
    records = np.zeros(len(p), [("p", "f8"), ("c0", "u1")])
    records["p"], records["c0"] = p, np.arange(len(p))
    parts = [part for _, part in split_by_score(records, score_edges(p[:seen], ranges))]
    assert not any(low["p"].max() >= high["p"].min() for low, high in itertools.pairwise(parts))
    assert sorted(np.concatenate(parts).tolist()) == sorted(records.tolist())


def test_a_frequent_score_has_a_range_of_its_own():
    sample = np.concatenate([np.linspace(0, 1, 101), np.full(100, 0.5)])
    edges = score_edges(sample, 4)
    assert edges.tolist() == [0.5, np.nextafter(0.5, 1)]
    assert score_edges(np.linspace(0, 1, 101), 4).tolist() == [0.25, 0.5, 0.75]


def test_few_files_are_open_however_many_ranges_there_are(tmp_path, monkeypatch):
    monkeypatch.setattr(partitions, "MAX_OPEN_FILES", 2)
    p = np.random.default_rng(0).random(3_000)
    dtype = np.dtype([("p", "f8")])
    edges = score_edges(p, 60)
    spilled = SpilledRecords(tmp_path, dtype.itemsize, 60)
    for start in range(0, 3_000, 500):
        rows = p[start : start + 500].astype(dtype)
        spilled.write({number: part.tobytes() for number, part in split_by_score(rows, edges)})
        assert len(list(Path("/proc/self/fd").iterdir())) < 60
    spilled.flush()
    assert len(list(tmp_path.iterdir())) == 60
    np.testing.assert_array_equal(np.concatenate([np.sort(some) for some in records_of(spilled, dtype)]), np.sort(p))
    spilled.close()
    (tmp_path / "range-7").write_bytes(b"")
    with pytest.raises(FileError, match="range-7 has lost rows"):
        records_of(spilled, dtype)


def test_pooled_rows_keep_scores_together_and_every_sum(monkeypatch):
    random = np.random.default_rng(0)
    p = np.round(random.random(5_000), 2)
    y, w = (random.random(5_000) < p).astype(float), random.uniform(0.5, 2, 5_000)
    rows = sort_rows(y, p, w, real=False)
    whole, some = Pool.of(rows), Pool.of(rows, total=200 * MAX_POOL_ENTRIES)
    assert len(some.p) <= 5_000 / 200 + 2
    for name in ("w", "e", "spread", "square", "rows"):
        assert getattr(some, name).sum() == pytest.approx(getattr(whole, name).sum())
    ends = np.cumsum(some.rows) - 1
    assert whole.ends[ends].all()
