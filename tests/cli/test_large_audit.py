"""`trueup audit --memory` says what `trueup audit` says."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import trueup as tu
from trueup.cli import main


@pytest.fixture
def here(tmp_path, monkeypatch):
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


def told(capsys, *words):
    """Give what the command writes as JSON, but for the command itself."""
    assert main(["audit", *words, "--json", "out.json", "--quiet"]) == 0
    capsys.readouterr()
    found = json.loads(Path("out.json").read_text())
    for one in (found, found.get("against", {})):
        one.get("source", {}).pop("command", None)
    return found


def near(one, other):
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(near(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(near, one, other))
    return one == (pytest.approx(other, rel=1e-8, abs=1e-12) if isinstance(other, float) else other)


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
def test_pieces_are_told_as_rows_in_memory(here, capsys, words):
    assert near(told(capsys, *words), told(capsys, *words, "--memory", "1GB"))


def test_the_fit_that_is_named_next_keeps_to_the_memory(here, capsys):
    words = ["loans.parquet", "--outcome", "outcome", "--prediction", "half", "--by", "region"]
    assert main(["audit", *words, "--memory", "1GB"]) == 0
    said = capsys.readouterr().out
    assert "trueup fit loans.parquet --outcome outcome --prediction half --features region --memory 1GB -o" in said


def test_a_page_of_pieces_can_be_written(here, capsys):
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
def test_what_cannot_be_is_refused(here, capsys, words, message):
    assert main(["audit", "loans.csv", "--outcome", "outcome", "--prediction", "prediction", "--by", "region", *words]) == 2
    assert message in capsys.readouterr().err


@pytest.mark.filterwarnings("ignore::trueup.errors.OneClassWarning")
def test_an_outcome_that_no_row_has_is_told(here, capsys):
    words = ["--outcome", "status", "--positive", "o'k", "--prediction", "prediction", "--by", "region", "--memory", "1GB"]
    assert main(["audit", "loans.parquet", *words]) == 2
    assert "no labelled row has the outcome" in capsys.readouterr().err
