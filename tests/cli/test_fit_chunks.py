"""`trueup fit` on files that need not fit in memory: the same model, and no partial output."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import duckdb
import polars as pl
import pytest

import trueup as tu
from commands import call
from trueup.cluster.files import ScanPartitions

ROLES = ["--outcome", "y", "--prediction", "p", "--features", "country,age,new,day"]
LARGE = [*ROLES, "--memory", "1GB"]
MANY = "SELECT random() AS p, (random() < 0.3)::INT AS y, random() AS a, random() AS b, 'DE' AS country FROM range({})"


def test_files_and_queries_give_the_same_model(workdir, capsys):
    code, out, err = call(capsys, "fit", "rows.parquet", *LARGE, "-o", "one.trueup", "--json", "one.json", "--verbose")
    assert code == 0
    assert "MCGrad on 4,000 rows and 4 features; evaluated by cross-validation" in out
    assert " scores raised by " in out
    assert "random sample" not in out
    assert "rows: 4,000" in err
    assert json.loads((workdir / "one.json").read_text())["model"]["rows"] == 4000
    assert call(capsys, "fit", "rows.csv", *LARGE, "-o", "two.trueup", "--quiet")[0] == 0
    query = "SELECT * FROM data ORDER BY hash(p)"
    assert call(capsys, "fit", "rows.csv", "--sql", query, *LARGE, "-o", "three.trueup", "--quiet")[0] == 0
    frame = pl.read_parquet("rows.parquet")
    first, second, third = (tu.load(f"{name}.trueup").predict(frame) for name in ("one", "two", "three"))
    assert first.tobytes() == second.tobytes()
    assert abs(first - third).max() < 1e-12
    made = tu.MCGrad("p", ["country", "age", "new", "day"]).fit(tu.scan("rows.parquet"), "y")
    assert made.predict(frame).tobytes() == first.tobytes()


def test_sampled_figures_are_marked(workdir, capsys, monkeypatch):
    monkeypatch.setattr("trueup.calibrators.mcgrad.partitioned.SAMPLE_ROWS", 1000)
    code, out, _ = call(capsys, "fit", "rows.parquet", *LARGE, "-o", "o.trueup")
    assert code == 0
    assert "MCGrad on 4,000 rows" in out
    assert "(on a random sample of 1,000 rows); the" in out


def test_positive_and_validation_work_with_chunks(workdir, capsys):
    frame = pl.read_parquet("rows.parquet").with_columns(status=pl.when(pl.col("y") == 1).then(pl.lit("late")))
    frame = frame.with_columns(pl.col("status").fill_null("paid")).drop("y")
    frame.head(3000).write_parquet("fit.parquet")
    frame.tail(1000).write_csv("judge.csv")
    roles = ["--outcome", "status", "--positive", "late", "--prediction", "p", "--features", "country,age"]
    words = ["fit.parquet", *roles, "--memory", "1GB", "--validation", "judge.csv", "-o", "o.trueup"]
    code, out, _ = call(capsys, "fit", *words)
    assert code == 0
    assert "MCGrad on 3,000 rows and 2 features; evaluated on given rows" in out
    code, _, err = call(capsys, "fit", *words[:3], "--positive", "never", *words[5:])
    assert code == 2
    assert "no labelled row has the outcome 'never' in column 'status'" in err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--spill", "."], "error: --spill needs --memory"),
        (["--memory", "much"], "error: --memory must be a number of bytes, or as 2GB; got 'much'"),
        (["--memory", "1GB", "--spill", "nowhere"], "error: --spill must be an existing directory; got 'nowhere'"),
        (["--memory", "1GB", "--method", "lsboost"], "error: --memory is for the method mcgrad; lsboost needs all rows in memory"),
        (["--memory", "1GB", "--held-out", "h.csv"], "error: --held-out and --memory cannot be combined"),
        (["--memory", "1GB", "--resume", "rows.parquet"], "error: rows.parquet would overwrite an input file"),
        (["--resume", "o.trueup"], "error: o.trueup would be written twice"),
        (["--resume", "r.rounds", "--method", "lsboost"], "error: --resume is not for lsboost\nhint: supported by mcgrad"),
    ],
)  # fmt: skip
def test_invalid_combinations_are_rejected(workdir, capsys, words, message):
    before = sorted(workdir.iterdir())
    code, out, err = call(capsys, "fit", "rows.parquet", *ROLES, "-o", "o.trueup", *words)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(workdir.iterdir()) == before


def test_exceeding_the_memory_budget_suggests_options(workdir, capsys, monkeypatch):
    monkeypatch.setattr("trueup.calibrators.mcgrad.partitioned.OUTPUT_BYTES", 10**6)
    refused = "error: a fit on 4,000 rows takes about 20 GB of memory; 1 GB are allowed\nhint: allow more (--memory "
    words = ["fit", "rows.parquet", *LARGE, "-o", "o.trueup"]
    code, _, err = call(capsys, *words, "--unlabelled", "drop")
    assert code == 2
    assert refused in err
    assert "GB), use one held-out set instead of 5 folds, or fit on a sample of the rows" in err
    monkeypatch.setattr("trueup.calibrators.mcgrad.partitioned.summarise_partitions", None)  # not needed here
    code, _, err = call(capsys, *words)
    assert code == 2
    assert refused in err


def test_an_interrupted_fit_is_resumed(workdir, capsys, monkeypatch):
    words = ["fit", "rows.parquet", *LARGE, "--quiet"]
    assert call(capsys, *words, "-o", "whole.trueup")[0] == 0
    original = ScanPartitions.run_workers
    begun = []

    def interrupt_second(self, work):
        begun.append(len(work.keywords["rounds"]))
        if len(begun) == 2:
            raise KeyboardInterrupt
        return original(self, work)

    monkeypatch.setattr(ScanPartitions, "run_workers", interrupt_second)
    code, _, err = call(capsys, *words, "-o", "o.trueup", "--resume", "fit.rounds")
    assert (code, err) == (
        130,
        "finished rounds are saved in fit.rounds: the same command continues from there\ninterrupted\n",
    )
    assert not (workdir / "o.trueup").exists()
    assert (workdir / "fit.rounds").exists()
    code, _, err = call(capsys, *words, "-o", "o.trueup", "--resume", "fit.rounds", "--verbose")
    assert code == 0
    assert "continuing from the finished rounds in fit.rounds" in err
    assert begun == [0, 1, 1, 2]  # a line; trees, interrupted; trees again; a round that is not kept
    assert not (workdir / "fit.rounds").exists()
    frame = pl.read_parquet("rows.parquet")
    expected, result = (tu.load(name).predict(frame).tobytes() for name in ("whole.trueup", "o.trueup"))
    assert expected == result


def test_a_full_disk_is_an_error_and_leaves_all_files_unchanged(workdir):
    duckdb.sql(f"COPY ({MANY.format(200_000)}) TO 'many.parquet'")
    (workdir / "spill").mkdir()
    before, source = sorted(workdir.iterdir()), (workdir / "many.parquet").read_bytes()
    code = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000,) * 2);"
        "from trueup.cli import main; sys.exit(main(sys.argv[1:]))"
    )
    words = ["fit", "many.parquet", "--outcome", "y", "--prediction", "p", "-o", "o.trueup", "--memory", "1GB"]
    done = subprocess.run(
        [sys.executable, "-c", code, *words, "--spill", "spill"], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: cannot spill rows to {workdir / 'spill' / 'trueup-'}")
    assert f"{os.strerror(27)}\nhint: free disk space there" in done.stderr
    assert (workdir / "many.parquet").read_bytes() == source
    assert sorted(workdir.iterdir()) == before
    assert not list((workdir / "spill").iterdir())


INTERRUPTED = """
import os, sys
from trueup.cli import main
from trueup.calibrators.mcgrad import grower

class TreeGrower(grower.TreeGrower):
    def grow(self, trees):
        os.write(1, b"tree\\n")  # at once, whichever thread it is
        return super().grow(trees)
grower.TreeGrower = TreeGrower
words = ["fit", "many.parquet", "--outcome", "y", "--prediction", "p", "-o", "o.trueup", "--memory", "1GB", "--spill", "spill"]
sys.exit(main(words))
"""


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="needs groups of processes")
def test_ctrl_c_during_training_leaves_no_file_and_no_process(workdir):
    duckdb.sql(f"COPY ({MANY.format(15_000)}) TO 'many.parquet'")
    (workdir / "spill").mkdir()
    (workdir / "o.trueup").write_text("old")
    before = sorted(workdir.iterdir())
    with subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stdout.readline() == "tree\n"
        process.send_signal(signal.SIGINT)
        try:
            _, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, err) == (130, "interrupted\n")
    with pytest.raises(ProcessLookupError):
        os.killpg(process.pid, 0)
    assert (workdir / "o.trueup").read_text() == "old"
    assert sorted(workdir.iterdir()) == before
    assert not list((workdir / "spill").iterdir())
