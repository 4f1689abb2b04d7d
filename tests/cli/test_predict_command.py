"""`trueup predict`: all columns of the input, and the corrected score."""

from __future__ import annotations

import signal

import duckdb
import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call, interrupted


def expected(frame, model="binary.trueup"):
    return tu.load(model).predict(frame)


def test_parquet_keeps_its_columns_types_and_rows(workdir, capsys):
    frame = pl.read_parquet("rows.parquet").with_columns(
        many=pl.concat_list("id", "id"),
        price=pl.col("age").cast(pl.Decimal(10, 2)),
        loans_directory=pl.col("day").cast(pl.Datetime("us")).dt.replace_time_zone("UTC"),
    )
    frame.write_parquet("typed.parquet")
    code, out, err = call(capsys, "predict", "binary.trueup", "typed.parquet", "-o", "o.parquet")
    assert (code, err) == (0, "")
    assert out.startswith("wrote o.parquet: 4,000 rows with p_trueup (")
    result = pl.read_parquet("o.parquet")
    assert result.columns == [*frame.columns, "p_trueup"]
    assert result.drop("p_trueup").equals(frame.cast({"day": result.schema["day"]}))
    assert (result["p_trueup"].to_numpy() == expected(frame)).all()


def test_csv_values_are_copied_verbatim(workdir, capsys):
    assert call(capsys, "predict", "binary.trueup", "rows.csv", "-o", "o.csv", "--as", "fixed")[0] == 0
    old, new = (workdir / "rows.csv").read_text().splitlines(), (workdir / "o.csv").read_text().splitlines()
    assert new[0] == old[0] + ",fixed"
    assert all(b.startswith(a + ",") for a, b in zip(old, new, strict=True))
    result = np.array([float(line.rpartition(",")[2]) for line in new[1:]])
    assert (result == expected(pl.read_parquet("rows.parquet"))).all()


@pytest.mark.parametrize("name", ["o.tsv", "o.csv.gz", "o.json", "o.jsonl", "o.parquet"])
def test_the_extension_determines_the_format_and_no_digits_are_lost(workdir, capsys, name):
    lines = (workdir / "rows.csv").read_text().splitlines()
    (workdir / "more.csv").write_text(
        "\n".join([lines[0] + ",big,state", *[f"{x},12345678901234567890,NA" for x in lines[1:]]])
    )
    assert call(capsys, "predict", "binary.trueup", "more.csv", "-o", name)[0] == 0
    row = duckdb.sql(f"SELECT code, big, p_trueup, age FROM '{name}' LIMIT 1").fetchall()[0]
    if ".parquet" in name or ".json" in name:
        assert row[:2] == ("00", "12345678901234567890")  # a number would lose the zero, and the last digits
        assert isinstance(row[3], float)
    assert row[2] == expected(pl.read_parquet("rows.parquet"))[0]
    if name == "o.json":
        assert len(pl.read_json(name)) == 4000
    if name == "o.parquet":
        assert pl.read_parquet(name).schema["new"] == pl.Boolean
        assert call(capsys, "predict", "binary.trueup", name, "-o", "again.csv", "--as", "q")[0] == 0  # reads as before


def test_json_values_are_copied(workdir, capsys):
    frame = pl.read_parquet("rows.parquet").with_columns(box=pl.struct("id", "code"))
    frame.write_ndjson("rows.jsonl")
    assert call(capsys, "predict", "binary.trueup", "rows.jsonl", "-o", "o.jsonl")[0] == 0
    result = pl.read_ndjson("o.jsonl")
    assert result.drop("p_trueup").equals(pl.read_ndjson("rows.jsonl"))
    assert (result["p_trueup"].to_numpy() == expected(frame)).all()


def test_only_writes_just_the_new_columns(workdir, capsys):
    assert call(capsys, "predict", "classes.trueup", "rows.csv", "-o", "o.parquet", "--only")[0] == 0
    result = pl.read_parquet("o.parquet")
    assert result.columns == ["q0_trueup", "q1_trueup", "q2_trueup"]
    assert (result.to_numpy() == expected(pl.read_parquet("rows.parquet"), "classes.trueup")).all()
    code, out, _ = call(
        capsys, "predict", "classes.trueup", "rows.csv", "-o", "o.csv", "--as", "a,b", "--as", "c", "--quiet"
    )
    assert (code, out) == (0, "")
    assert pl.read_csv("o.csv").columns[-3:] == ["a", "b", "c"]


def test_regression_scores_are_corrected(workdir, capsys):
    assert call(capsys, "predict", "amounts.trueup", "rows.parquet", "-o", "o.parquet")[0] == 0
    result = pl.read_parquet("o.parquet")
    assert (result["forecast_trueup"].to_numpy() == expected(result, "amounts.trueup")).all()


def test_unseen_levels_are_reported_once(workdir, capsys):
    pl.DataFrame({"country": ["XX"] * 200, "forecast": np.linspace(0, 99, 200)}).write_csv("strange.csv")
    code, _, err = call(capsys, "predict", "amounts.trueup", "strange.csv", "-o", "strange-out.csv")
    assert code == 0
    assert err == "note: country: 200 rows have a level that the model has not seen ('XX'), treated as missing\n"


@pytest.mark.parametrize("ending", ["parquet", "csv"])
def test_rows_of_many_files_get_their_own_scores(workdir, capsys, ending):
    rng = np.random.default_rng(1)
    n = 90_000
    for part in range(3):
        frame = pl.DataFrame({
            "id": np.arange(part * n, (part + 1) * n),
            "country": np.array(["BR", "DE", "XX"])[rng.integers(0, 3, n)],
            "forecast": rng.uniform(0, 100, n),
        })  # fmt: skip
        getattr(frame, f"write_{ending}")(f"part-{part}.{ending}")
    code, out, err = call(capsys, "predict", "amounts.trueup", f"part-*.{ending}", "-o", f"all.{ending}")
    assert code == 0
    assert "270,000 rows" in out
    assert "note: country: " in err
    assert "rows have a level that the model has not seen ('XX'), treated as missing" in err
    result = getattr(pl, f"read_{ending}")(f"all.{ending}")
    assert (result["id"].to_numpy() == np.arange(3 * n)).all()
    assert (result["forecast_trueup"].to_numpy() == expected(result, "amounts.trueup")).all()


def test_queries_are_run_once(workdir, capsys):
    query = "SELECT *, random() AS luck FROM data WHERE age > 40 ORDER BY luck"
    code, _, _ = call(capsys, "predict", "binary.trueup", "rows.parquet", "--sql", query, "-o", "o.parquet")
    assert code == 0
    result = pl.read_parquet("o.parquet")
    assert result["luck"].is_sorted()
    assert (result["p_trueup"].to_numpy() == expected(result)).all()
    assert call(capsys, "predict", "binary.trueup", "--sql", "FROM 'rows.csv' LIMIT 5", "-o", "o.csv")[0] == 0
    assert len(pl.read_csv("o.csv")) == 5


def test_booleans_are_read_in_any_case(workdir, capsys):
    text = (workdir / "rows.csv").read_text()
    (workdir / "loud.csv").write_text(text.replace(",true,", ",True,").replace(",false,", ",FALSE,"))
    assert call(capsys, "predict", "binary.trueup", "loud.csv", "-o", "o.csv", "--only")[0] == 0
    assert (pl.read_csv("o.csv")["p_trueup"].to_numpy() == expected(pl.read_parquet("rows.parquet"))).all()


def test_an_empty_file_is_scored_to_an_empty_file(workdir, capsys):
    pl.read_parquet("rows.parquet").head(0).write_parquet("none.parquet")
    code, out, _ = call(capsys, "predict", "binary.trueup", "none.parquet", "-o", "o.parquet")
    assert code == 0
    assert "0 rows" in out
    assert len(pl.read_parquet("o.parquet")) == 0


def test_replaced_files_keep_permissions_and_symbolic_links(workdir, capsys):
    (workdir / "real.csv").write_text("old")
    (workdir / "real.csv").chmod(0o600)
    (workdir / "link.csv").symlink_to("real.csv")
    assert call(capsys, "predict", "binary.trueup", "rows.csv", "-o", "link.csv")[0] == 0
    assert (workdir / "link.csv").is_symlink()
    assert (workdir / "real.csv").stat().st_mode & 0o777 == 0o600
    assert (workdir / "real.csv").read_text() != "old"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["binary.trueup", "-o", "o.csv"], "no FILE was named"),
        (["binary.trueup", "rows.csv"], "required: -o/--output"),
        ([], "required: MODEL, FILE, -o/--output\nhint: see trueup predict --help"),
        (["binary.trueup", "rows.csv", "-o", "o.xlsx"], "cannot tell the format of 'o.xlsx' by its name\nhint: it must end in .parq"),
        (["binary.trueup", "rows.csv", "-o", "o.parquet.gz"], "cannot tell the format of"),
        (["binary.trueup", "rows.csv", "-o", "no/o.csv"], "there is no directory no"),
        (["binary.trueup", "rows.csv", "-o", "rows.csv"], "rows.csv would overwrite an input file"),
        (["binary.trueup", "r*.csv", "-o", "./rows.csv"], "./rows.csv would overwrite an input file"),
        (["rows.csv", "rows.csv", "-o", "o.csv"], "it is not an archive of trueup"),
        (["none.trueup", "rows.csv", "-o", "o.csv"], "there is no such file"),
        (["binary.trueup", "none.csv", "-o", "o.csv"], "no file 'none.csv'"),
        (["binary.trueup", "rows.csv", "-o", "o.csv", "--as", "AGE"], "there is a column 'AGE' already\nhint: choose another name, as --as ..."),
        (["binary.trueup", "rows.csv", "-o", "o.csv", "--as", ""], "--as needs one name; got ''"),
        (["classes.trueup", "rows.csv", "-o", "o.csv", "--as", "q"], "--as needs 3 names, one each for q0, q1, q2; got 'q'"),
        (["classes.trueup", "rows.csv", "-o", "o.csv", "--as", "q,r,Q"], "--as needs 3 names"),
        (["binary.trueup", "lacks.csv", "-o", "o.csv"], "no column 'age' to use as feature\nhint: did you mean 'aged'?"),
        (["binary.trueup", "other.csv", "-o", "o.csv"], "age"),
        (["binary.trueup", "bad.csv", "-o", "o.csv"], "prediction column 'p'"),
        (["binary.trueup", "--sql", "SELECT 1 AS a", "-o", "o.csv"], "no column 'country' to use as feature"),
        (["amounts.trueup", "--sql", "SELECT 'DE' AS country", "-o", "o.csv"], "no column 'forecast' to use as prediction"),
        (["binary.trueup", "rows.csv", "--onyl", "-o", "o.csv"], "hint: did you mean --only?"),
    ],
)  # fmt: skip
def test_invalid_input_exits_with_code_2_and_leaves_no_file(workdir, capsys, arguments, message):
    frame = pl.read_parquet("rows.parquet").head(100)
    frame.rename({"age": "aged"}).write_csv("lacks.csv")
    frame.with_columns(age=pl.lit("old")).write_csv("other.csv")
    frame.with_columns(p=pl.col("p") + 1).write_csv("bad.csv")
    before = sorted(workdir.iterdir())
    code, out, err = call(capsys, "predict", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(workdir.iterdir()) == before


def test_damaged_models_are_rejected(workdir, capsys):
    content = (workdir / "binary.trueup").read_bytes()
    middle = len(content) // 2
    for damaged in (
        content[:middle],
        content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :],
        b"",
        b"PK",
    ):
        (workdir / "hurt.trueup").write_bytes(damaged)
        code, out, err = call(capsys, "predict", "hurt.trueup", "rows.csv", "-o", "o.csv")
        assert (code, out) == (2, "")
        assert err.startswith("error: cannot read hurt.trueup: ")
        assert err.count("\n") == 2
    assert not (workdir / "o.csv").exists()


def test_rows_that_change_between_readings_are_an_error(workdir, capsys, monkeypatch):
    from trueup.cli import predict

    frame = pl.read_parquet("rows.parquet")
    frame.write_parquet("changing.parquet")

    def change(*arguments, **options):
        frame.reverse().write_parquet("changing.parquet")
        return original(*arguments, **options)

    original = predict.read_like
    monkeypatch.setattr(predict, "read_like", change)
    code, _, err = call(capsys, "predict", "binary.trueup", "changing.parquet", "-o", "o.parquet")
    assert code == 2
    assert "cannot write the result: " in err
    assert "the rows are not those that were read before" in err
    assert not list(workdir.glob("*o.parquet")) + list(workdir.glob(".trueup*"))


WORK = """
import sys, threading, time, os
from trueup.cli import main
from trueup.data import chunks

usual = chunks._run
def slowly(con, query):
    def tell():
        while not any(name.startswith(".trueup") and name.endswith(".tmp") and os.path.getsize(name) for name in os.listdir()):
            time.sleep(0.005)
        print("ready", flush=True)
    threading.Thread(target=tell, daemon=True).start()
    usual(con, query)
chunks._run = slowly
query = "SELECT random() AS forecast, 'DE' AS country, md5(i::VARCHAR) AS text FROM range(2000000) AS r(i)"
sys.exit(main(["predict", "amounts.trueup", "--sql", query, "-o", "o.csv"]))
"""


def test_ctrl_c_while_writing_keeps_the_old_file(workdir):
    (workdir / "o.csv").write_text("old")
    before = sorted(workdir.iterdir())
    assert interrupted(WORK) == (130, "", "interrupted\n")
    assert (workdir / "o.csv").read_text() == "old"
    assert sorted(workdir.iterdir()) == before


SENT = {"SIGTERM": "terminated\n", "SIGHUP": "terminated: the terminal was closed\n"}


@pytest.mark.parametrize(("name", "exit_code"), [("SIGTERM", 143), ("SIGHUP", 129)])
def test_signals_while_writing_keep_the_old_file(workdir, monkeypatch, name, exit_code):
    (workdir / "o.csv").write_text("old")
    spill = workdir / "temporary"
    spill.mkdir()
    monkeypatch.setenv("TMPDIR", str(spill))
    before = sorted(workdir.iterdir())
    assert interrupted(WORK, getattr(signal, name))[::2] == (exit_code, SENT[name])
    assert (workdir / "o.csv").read_text() == "old"
    assert sorted(workdir.iterdir()) == before
    assert list(spill.iterdir()) == []


@pytest.mark.parametrize(("name", "exit_code"), [("SIGINT", 130), ("SIGTERM", 143)])
def test_a_process_that_does_not_react_leaves_no_partial_file_and_no_spill(workdir, monkeypatch, name, exit_code):
    spill = workdir / "temporary"
    spill.mkdir()
    monkeypatch.setenv("TMPDIR", str(spill))
    code = """
import hashlib, sys
from trueup.cli import console, io, main
console.INTERRUPT_GRACE_S = 0.2
def stuck(*_, **__):
    from trueup._temporary import create_directory
    (create_directory() / "rows").write_bytes(b"x")
    print("ready", flush=True)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2_000_000_000)
io.add_columns = stuck
sys.exit(main(["predict", "amounts.trueup", "rows.csv", "-o", "o.csv"]))
"""
    before = sorted(workdir.iterdir())
    returned, _, err = interrupted(code, getattr(signal, name))
    assert (returned, err) == (exit_code, "interrupted\n" if name == "SIGINT" else "terminated\n")
    assert sorted(workdir.iterdir()) == before
    assert list(spill.iterdir()) == []


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_rows_without_a_valid_score_stay_empty_on_request(workdir, capsys, ending):
    frame = pl.read_parquet("few.parquet").head(5).with_columns(p=pl.Series([0.1, None, 0.3, 7.0, 0.5]))
    getattr(frame, f"write_{ending}")(f"bad.{ending}")
    code, _, err = call(capsys, "predict", "binary.trueup", f"bad.{ending}", "-o", f"o.{ending}")
    assert code == 2
    assert "must hold finite numbers; got nan at row 1" in err
    code, _, err = call(capsys, "predict", "binary.trueup", f"bad.{ending}", "-o", f"o.{ending}", "--on-error", "nan")
    assert code == 0
    assert "note: 2 of 5 rows have no valid score: their corrected score is missing" in err
    result = getattr(pl, f"read_{ending}")(f"o.{ending}")["p_trueup"]
    assert result.is_null().to_list() == [False, True, False, True, False]
    assert (result.drop_nulls().to_numpy() == expected(frame[[0, 2, 4]])).all()
