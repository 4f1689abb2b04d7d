"""`trueup audit --memory` gives the same results as `trueup audit`."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import trueup as tu
from trueup.cli import main


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    loans = tu.simulate.lending(4_000, seed=0)
    frame = pl.DataFrame({name: loans[name] for name in ("region", "product", "age", "opened", "prediction", "outcome")})
    frame = frame.with_columns(
        status=pl.when(pl.col("outcome") == 1).then(pl.lit("late")).otherwise(pl.lit("paid")), half=pl.col("prediction") / 2,
        again=2 - pl.col("outcome").cast(float),
        gaps=pl.when(pl.int_range(pl.len()) % 7 == 0).then(float("nan")).otherwise(pl.col("outcome").cast(float)),
        mark=pl.when(pl.col("outcome") == 1).then(pl.lit("1")).otherwise(pl.lit("01")),
    )  # fmt: skip
    frame.write_parquet("loans.parquet")
    frame.write_csv("loans.csv")
    return tmp_path


def audit_json(capsys, *words):
    """Return the JSON of an audit without its command."""
    assert main(["audit", *words, "--json", "out.json", "--quiet"]) == 0
    capsys.readouterr()
    result = json.loads(Path("out.json").read_text())
    for item in (result, result.get("against", {})):
        item.get("source", {}).pop("command", None)
    return result


def near(item, other):
    if isinstance(item, dict):
        return item.keys() == other.keys() and all(near(item[key], other[key]) for key in item)
    if isinstance(item, list):
        return len(item) == len(other) and all(map(near, item, other))
    return item == (pytest.approx(other, rel=1e-8, abs=1e-12) if isinstance(other, float) else other)


@pytest.mark.parametrize(
    "words",
    [
        ["loans.parquet", "--outcome", "outcome", "--prediction", "prediction", "--by", "region,product,age,opened"],
        ["loans.csv", "--outcome", "outcome", "--prediction", "prediction", "--by", "region,age", "--bins", "4", "--bins", "age=30:50"],
        ["loans.csv", "--outcome", "status", "--positive", "late", "--prediction", "prediction", "--by", "region"],
        ["loans.csv", "--outcome", "again", "--positive", "1", "--prediction", "prediction", "--by", "region"],
        ["loans.parquet", "--outcome", "gaps", "--positive", "1", "--prediction", "prediction", "--by", "region", "--unlabelled", "drop"],
        ["loans.parquet", "--outcome", "mark", "--positive", "1", "--prediction", "prediction", "--by", "region"],
        ["loans.parquet", "--outcome", "outcome", "--prediction", "prediction", "--against", "half", "--by", "region,product"],
        ["loans.csv", "--sql", "select * from data where region <> 'north';", "--outcome", "status", "--positive", "late", "--prediction",
         "prediction", "--by", "region,age", "--categorical", "age"],
    ],
    ids=["parquet", "bins", "positive", "positive number", "positive NaN", "positive text", "against", "query"],
)  # fmt: skip
def test_audits_in_chunks_equal_those_in_memory(workdir, capsys, words):
    assert near(audit_json(capsys, *words), audit_json(capsys, *words, "--memory", "1GB"))


def test_the_suggested_fit_keeps_the_memory_budget(workdir, capsys):
    words = ["loans.parquet", "--outcome", "outcome", "--prediction", "half", "--by", "region"]
    assert main(["audit", *words, "--memory", "1GB"]) == 0
    output = capsys.readouterr().out
    assert "trueup fit loans.parquet --outcome outcome --prediction half --features region --memory 1GB -o" in output


def test_a_page_is_written_for_files_read_in_chunks(workdir, capsys):
    words = [
        "loans.csv",
        "--outcome",
        "outcome",
        "--prediction",
        "prediction",
        "--by",
        "region",
        "--memory",
        "1GB",
        "-o",
        "a.html",
    ]
    assert main(["audit", *words]) == 0
    assert "miscalibration" in capsys.readouterr().out
    assert "fingerprint of outcomes" in Path("a.html").read_text()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--memory", "much"], "error: --memory must be a number of bytes, or as 2GB; got 'much'"),
        (["--memory", "5MB"], "error: --memory must be at least 400 MB"),
        (["--spill", "."], "error: --spill needs --memory"),
        (["--memory", "1GB", "--spill", "nowhere"], "error: --spill must be an existing directory; got 'nowhere'"),
        (["--memory", "1GB", "--adjust", "max"], "needs them in memory"),
    ],
)
def test_invalid_combinations_are_rejected(workdir, capsys, words, message):
    assert main(["audit", "loans.csv", "--outcome", "outcome", "--prediction", "prediction", "--by", "region", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::trueup.errors.OneClassWarning")
def test_positive_outcomes_that_no_row_has_are_an_error(workdir, capsys):
    words = ["--outcome", "status", "--positive", "o'k", "--prediction", "prediction", "--by", "region", "--memory", "1GB"]
    assert main(["audit", "loans.parquet", *words]) == 2
    assert "no labelled row has the outcome" in capsys.readouterr().err
