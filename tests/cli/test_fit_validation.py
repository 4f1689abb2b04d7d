"""`trueup fit --validation`: validation rows in files of their own."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest

import trueup as tu
from commands import call

FIT = ["fit", "first.csv", "--outcome", "y", "--prediction", "p", "--features", "country,zip", "--categorical", "zip"]


@pytest.fixture
def halves(workdir):
    frame = pl.read_parquet("rows.parquet").select("y", "p", "country", "zip", status=pl.col("y").cast(pl.String))
    frame[:2500].write_csv("first.csv")
    frame[2500:].write_csv("second.csv")
    return frame


def test_validation_rows_evaluate_the_fit(halves, capsys):
    code, out, err = call(capsys, *FIT, "--validation", "second.csv", "-o", "m.trueup", "--json", "fit.json")
    assert (code, err) == (0, "")
    assert "evaluated on given rows" in out
    second = halves[2500:]
    recipe = tu.MCGrad("p", ["country", "zip"], stopping=tu.Validation(second, second["y"]))
    recipe.fit(halves[:2500], halves[:2500]["y"])
    assert tu.load("m.trueup").history.loss_after == recipe.history_.loss_after
    assert json.loads(Path("fit.json").read_text())["history"]["evaluated_on"] == "given rows"


def test_positive_applies_to_validation_rows_too(halves, capsys):
    words = ["fit", "first.csv", "--outcome", "status", "--positive", "1", "--prediction", "p", "--features", "country"]
    assert call(capsys, *words, "--validation", "second.csv", "--method", "platt", "-o", "m.trueup")[0] == 2
    words = words[:-2]
    code, out, _ = call(capsys, *words, "--validation", "second.csv", "--method", "platt", "-o", "m.trueup")
    assert code == 0
    assert "evaluated on given rows" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--validation", "first.csv"], "--validation first.csv is also a file to fit on"),
        (["--validation", "none.csv"], "none.csv"),
        (["--validation", "second.csv", "--held-out", "h.csv"], "--held-out and --validation cannot be combined"),
        (["--validation", "second.csv", "--method", "auto"], "--validation is not for auto"),
        (["--validation", "bare.csv"], "--validation: no column 'country' to use as feature"),
        (["--validation", "second.csv", "--json", "second.csv"], "second.csv would overwrite an input file"),
    ],
)
def test_invalid_validation_rows_are_rejected(halves, capsys, arguments, message):
    halves.select("y", "p").write_csv("bare.csv")
    code, out, err = call(capsys, *FIT, *arguments, "-o", "m.trueup")
    assert (code, out) == (2, "")
    assert message in err


def test_a_model_named_among_the_rows_is_an_error_with_the_right_command(workdir, capsys):
    code, out, err = call(capsys, "predict", "rows.csv", "binary.trueup", "-o", "scored.csv")
    assert (code, out) == (2, "")
    assert err == (
        "error: binary.trueup is named among the rows; the model comes first\n"
        "hint: write trueup predict binary.trueup rows.csv -o scored.csv\n"
    )


def test_scores_do_not_depend_on_the_chunk_size(workdir, capsys, monkeypatch):
    call(capsys, "predict", "binary.trueup", "rows.parquet", "-o", "whole.parquet")
    monkeypatch.setattr("trueup.cli.predict.CHUNK_ROWS", 333)
    call(capsys, "predict", "binary.trueup", "rows.parquet", "-o", "parts.parquet")
    assert pl.read_parquet("whole.parquet").equals(pl.read_parquet("parts.parquet"))


def test_quiet_prints_at_most_one_line(workdir, capsys):
    for arguments in (["explain", "binary.trueup"], ["explain", "binary.trueup", "--row", '{"p": 0.2, "country": "BR"}'],
                      ["demo", "--rows", "1000"]):  # fmt: skip
        code, out, err = call(capsys, *arguments, "--quiet")
        assert (code, err) == (0, "")
        assert out.count("\n") == 1
    assert out == "wrote trueup-demo.html: open it in a browser\n"


def test_decide_encodes_text_outcomes(workdir, capsys):
    frame = pl.read_parquet("rows.parquet").with_columns(
        status=pl.when(pl.col("y") == 1).then(pl.lit("yes")).otherwise(pl.lit("no"))
    )
    frame.write_csv("labelled.csv")
    costs = [
        "decide",
        "rows.csv",
        "--prediction",
        "p",
        "--cost-fn",
        "5",
        "--cost-fp",
        "1",
        "--quiet",
        "--labelled",
        "labelled.csv",
    ]
    words = call(capsys, *costs, "--outcome", "status", "--positive", "yes")
    assert words[0] == 0
    assert words[1] == call(capsys, *costs, "--outcome", "y")[1]
    assert call(capsys, *costs[:-2], "--positive", "yes")[0] == 2


def test_copies_of_training_rows_are_rejected_as_validation_rows(halves, capsys):
    halves[:2500].sample(fraction=1, shuffle=True, seed=0).write_csv("copy.csv")
    code, out, err = call(capsys, *FIT, "--validation", "copy.csv", "-o", "m.trueup")
    assert (code, out) == (2, "")
    assert "every row has the score of a training row" in err
    query = ["fit", "--sql", "FROM 'first.csv'", *FIT[2:]]
    assert call(capsys, *query, "--validation", "first.csv", "-o", "m.trueup")[0] == 2
    halves[1000:3000].write_csv("mixed.csv")
    code, _, err = call(capsys, *FIT, "--validation", "mixed.csv", "-o", "m.trueup")
    assert code == 2
    assert "1,500 of 2,000 validation rows are training rows" in err
    halves[1000:3000].with_columns(y=1 - pl.col("y")).write_csv("mixed.csv")
    code, _, err = call(capsys, *FIT, "--validation", "mixed.csv", "-o", "m.trueup")
    assert code == 0
    assert "1,500 of 2,000 rows have the score of a training row" in err


def test_rounded_scores_do_not_identify_training_rows(halves, capsys):
    for name in ("first.csv", "second.csv"):
        pl.read_csv(name).with_columns(pl.col("p").round(1)).write_csv(name)
    assert call(capsys, *FIT, "--validation", "second.csv", "-o", "m.trueup")[0] == 0


def test_verbose_does_not_print_the_validation_rows(halves, capsys):
    _, _, err = call(capsys, *FIT, "--validation", "second.csv", "-o", "m.trueup", "--verbose")
    assert "stopping='rows of --validation'" in err
    assert "array(" not in err
