"""`trueup predict` on files that need not fit in memory: the same rows and scores, and no partial output."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import duckdb
import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call
from trueup.data.chunks import MIN_CHUNK_ROWS, ChunkSettings

MANY = "SELECT random() AS forecast, 'DE' AS country, md5(i::VARCHAR) AS text FROM range({}) AS r(i)"


@pytest.fixture
def some_at_once(monkeypatch):
    """Read 333 rows at once, so that 4,000 rows are thirteen chunks and the last is short."""
    return lambda: monkeypatch.setattr("trueup.cli.predict.CHUNK_ROWS", 333)


def run_limited(*arguments, largest):
    """Run a command in a process with a maximum file size, which behaves like a full disk."""
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[1]),) * 2);"
        "from trueup.cli import main; sys.exit(main(sys.argv[2:]))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(largest), *arguments], capture_output=True, text=True, timeout=120, check=False
    )
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize(
    ("source", "name"),
    [
        *(("rows.parquet", name) for name in ("o.parquet", "o.csv", "o.tsv.gz", "o.json", "o.jsonl")),
        ("rows.csv", "o.csv"), ("rows.jsonl", "o.parquet"),
    ],
)  # fmt: skip
def test_chunks_give_the_same_bytes_as_all_rows(workdir, capsys, some_at_once, source, name):
    if source == "rows.jsonl":
        pl.read_parquet("rows.parquet").write_ndjson(source)
    assert call(capsys, "predict", "binary.trueup", source, "-o", f"whole-{name}")[0] == 0
    some_at_once()
    assert call(capsys, "predict", "binary.trueup", source, "-o", f"parts-{name}", "--memory", "300MB")[0] == 0
    assert (workdir / f"parts-{name}").read_bytes() == (workdir / f"whole-{name}").read_bytes()
    result = duckdb.sql(f"SELECT p_trueup FROM 'parts-{name}'").fetchnumpy()["p_trueup"]
    assert (result == tu.load("binary.trueup").predict(pl.read_parquet("rows.parquet"))).all()


def test_chunks_work_for_classes_queries_and_new_columns_only(workdir, capsys, some_at_once):
    some_at_once()
    query = "SELECT *, random() AS luck FROM data ORDER BY luck"
    arguments = ["predict", "classes.trueup", "rows.csv", "--sql", query, "-o", "o.parquet", "--memory", "1GB"]
    assert call(capsys, *arguments)[0] == 0
    result = pl.read_parquet("o.parquet")
    assert result["luck"].is_sorted()
    scores = result.select("q0_trueup", "q1_trueup", "q2_trueup").to_numpy()
    assert (scores == tu.load("classes.trueup").predict(result)).all()
    assert call(capsys, "predict", "classes.trueup", "o.parquet", "-o", "only.parquet", "--only")[0] == 0
    assert (pl.read_parquet("only.parquet").to_numpy() == scores).all()


def test_files_of_different_types_and_case_are_read_in_chunks(workdir, capsys, some_at_once):
    frame = pl.read_parquet("rows.parquet").select("p", "country", "age", "new", "zip", "day")
    frame.head(1000).with_columns(pl.col("age").cast(pl.Int16), pl.col("p").cast(pl.Float32)).write_parquet(
        "part-1.parquet"
    )
    frame.head(0).write_parquet("part-2.parquet")
    frame.tail(3000).rename({"country": "Country"}).select(
        reversed(["p", "Country", "age", "new", "zip", "day"])
    ).write_parquet("part-3.parquet")
    assert call(capsys, "predict", "binary.trueup", "part-*.parquet", "-o", "whole.parquet")[0] == 0
    some_at_once()
    assert call(capsys, "predict", "binary.trueup", "part-*.parquet", "-o", "parts.parquet")[0] == 0
    result = pl.read_parquet("parts.parquet")
    assert result.equals(pl.read_parquet("whole.parquet"))
    assert (result["p_trueup"].to_numpy() == tu.load("binary.trueup").predict(result)).all()


def test_missing_values_are_the_same_in_chunks(workdir, capsys, some_at_once):
    gone = pl.int_range(pl.len())
    frame = pl.read_parquet("rows.parquet").with_columns(
        country=pl.when(gone % 7 > 0).then("country"),
        age=pl.when(gone % 5 > 0).then("age"),
        day=pl.when(gone > 2000).then("day"),
    )
    frame.with_columns(zip=pl.lit(None, pl.String)).write_parquet("gaps.parquet")
    some_at_once()
    assert call(capsys, "predict", "binary.trueup", "gaps.parquet", "-o", "o.parquet")[0] == 0
    result = pl.read_parquet("o.parquet")["p_trueup"].to_numpy()
    assert (result == tu.load("binary.trueup").predict(pl.read_parquet("gaps.parquet"))).all()


def test_a_column_named_file_row_number_is_an_ordinary_column(workdir, capsys, some_at_once):
    frame = pl.read_parquet("rows.parquet").with_columns(File_Row_Number=pl.lit(7))
    frame.write_parquet("numbered.parquet")
    some_at_once()
    assert call(capsys, "predict", "binary.trueup", "numbered.parquet", "-o", "o.parquet")[0] == 0
    assert (pl.read_parquet("o.parquet")["p_trueup"].to_numpy() == tu.load("binary.trueup").predict(frame)).all()


def test_unseen_levels_are_counted_over_all_chunks(workdir, capsys, some_at_once, monkeypatch):
    country = ["DE", None, *[f"X{index % 1200}" for index in range(2398)]]
    pl.DataFrame({"country": country, "forecast": np.linspace(0, 99, 2400)}).write_parquet("new.parquet")
    some_at_once()
    _, _, err = call(capsys, "predict", "amounts.trueup", "new.parquet", "-o", "o.parquet")
    assert (
        err
        == "note: country: 2,398 rows have a level that the model has not seen ('X0' and 1,199 more), treated as missing\n"
    )
    monkeypatch.setattr("trueup.cli.predict.MAX_UNSEEN_LEVELS", 500)
    _, _, err = call(capsys, "predict", "amounts.trueup", "new.parquet", "-o", "o.parquet")
    assert "2,398 rows have a level that the model has not seen ('X0' and at least 499 more)" in err


def test_errors_name_the_row_number_in_the_file(workdir, capsys, some_at_once):
    p = pl.read_parquet("rows.parquet")["p"].to_numpy().copy()
    p[3456] = 1.5
    pl.read_parquet("rows.parquet").with_columns(p=p).write_parquet("bad.parquet")
    some_at_once()
    code, _, err = call(capsys, "predict", "binary.trueup", "bad.parquet", "-o", "o.parquet")
    assert code == 2
    assert "got 1.5 at row 3456\n" in err
    assert not (workdir / "o.parquet").exists()


def test_a_file_that_shrinks_between_chunks_is_an_error(workdir, capsys, some_at_once, monkeypatch):
    from trueup.cli import predict

    frame = pl.read_parquet("rows.parquet")
    frame.write_parquet("changing.parquet")

    def change(*arguments, **options):
        frame.head(100).write_parquet("changing.parquet")
        return original(*arguments, **options)

    original = predict.read_like
    monkeypatch.setattr(predict, "read_like", change)
    some_at_once()
    code, _, err = call(capsys, "predict", "binary.trueup", "changing.parquet", "-o", "o.parquet")
    assert code == 2
    assert err.startswith("error: ")
    assert not list(workdir.glob("*o.parquet")) + list(workdir.glob(".trueup*"))


def test_models_without_a_score_are_applied(workdir, capsys, some_at_once):
    frame = (
        pl.read_parquet("rows.parquet")
        .select("country", "age", "y")
        .with_columns(age=pl.when(pl.int_range(pl.len()) % 9 > 0).then("age"))
    )
    frame.write_parquet("alone.parquet")
    tu.save(tu.LSBoost(None, ["country", "age"], task="binary").fit(frame, frame["y"]), "alone.trueup")
    some_at_once()
    assert call(capsys, "predict", "alone.trueup", "alone.parquet", "-o", "o.parquet")[0] == 0
    result = pl.read_parquet("o.parquet")["prediction_trueup"].to_numpy()
    assert (result == tu.load("alone.trueup").predict(frame)).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--memory", "lots"], "memory must be a number of bytes, or as 2GB; got 'lots'"),
        (["--memory", "1MB"], "memory must be at least"),
        (["--spill", "nowhere"], "cannot spill to nowhere: no such directory\nhint: create it"),
        (["--spill", "rows.csv"], "cannot spill to rows.csv: no such directory"),
    ],
)
def test_invalid_limits_are_rejected(workdir, capsys, arguments, message):
    before = sorted(workdir.iterdir())
    code, out, err = call(capsys, "predict", "binary.trueup", "rows.csv", "-o", "o.csv", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(workdir.iterdir()) == before


def test_chunks_shrink_with_less_memory_and_more_columns():
    rows = [ChunkSettings(1_000_000, memory).chunk_rows(10) for memory in (300 * 10**6, 500 * 10**6, 10**9, 4 * 10**9)]
    assert rows == sorted(rows)
    assert rows[0] < rows[1] < rows[2] <= rows[3] == 1_000_000
    assert ChunkSettings(1_000_000, 10**9).chunk_rows(100) < ChunkSettings(1_000_000, 10**9).chunk_rows(10)
    assert ChunkSettings(1_000_000, 300 * 10**6).chunk_rows(10_000) == MIN_CHUNK_ROWS
    assert ChunkSettings(1_000_000).chunk_rows(10_000) == 1_000_000


def test_a_full_disk_is_an_error_and_leaves_all_files_unchanged(workdir):
    duckdb.sql(f"COPY ({MANY.format(100_000)}) TO 'many.parquet'")
    (workdir / "o.csv").write_text("old")
    before, source = sorted(workdir.iterdir()), (workdir / "many.parquet").read_bytes()
    code, err = run_limited("predict", "amounts.trueup", "many.parquet", "-o", "o.csv", largest=1_000_000)
    assert code == 2
    assert err == f"error: cannot write the result: {os.strerror(27)}\nhint: free some space, or write to another place\n"
    assert (workdir / "o.csv").read_text() == "old"
    assert (workdir / "many.parquet").read_bytes() == source
    assert sorted(workdir.iterdir()) == before


def test_a_full_spill_directory_is_an_error_and_left_empty(workdir):
    (workdir / "spill").mkdir()
    before = sorted(workdir.iterdir())
    arguments = ["predict", "amounts.trueup", "--sql", MANY.format(2_000_000), "-o", "o.parquet"]
    code, err = run_limited(*arguments, "--memory", "300MB", "--spill", "spill", largest=4_000_000)
    assert code == 2
    assert err.startswith("error: rows that do not fit in memory do not fit in spill")
    assert "\nhint: name a directory on a disk with more space, as --spill" in err
    assert sorted(workdir.iterdir()) == before
    assert not list((workdir / "spill").iterdir())


INTERRUPTED = """
import sys
from trueup.cli import main, predict

usual = predict.read_like
def announce(*arguments, **options):
    print("chunk", flush=True)
    return usual(*arguments, **options)
predict.read_like, predict.CHUNK_ROWS = announce, 20_000
arguments = ["predict", "amounts.trueup", "many.parquet", "-o", "o.csv", "--memory", "300MB", "--spill", "spill"]
sys.exit(main(arguments))
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs groups of processes")
def test_ctrl_c_between_chunks_leaves_no_file_and_no_process(workdir):
    duckdb.sql(f"COPY ({MANY.format(200_000)}) TO 'many.parquet'")
    (workdir / "spill").mkdir()
    (workdir / "o.csv").write_text("old")
    before = sorted(workdir.iterdir())
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["chunk\n"] * 3
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert (workdir / "o.csv").read_text() == "old"
    assert sorted(workdir.iterdir()) == before
    assert not list((workdir / "spill").iterdir())
