"""Commands read standard input, directories, other encodings and compressed files, and write to standard output."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import sys

import polars as pl
import pytest

from commands import call
from trueup.data.sources import sniff_suffix

ROLES = ["--outcome", "y", "--prediction", "p"]
FEATURES = ["--by", "country,age"]


@pytest.fixture
def feed(monkeypatch):
    """Return a function that sets what is read from standard input."""

    def set_input(content):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(content)))

    return set_input


@pytest.fixture
def spill(tmp_path, monkeypatch):
    """Use an empty temporary directory, in which no command may leave a file."""
    directory = tmp_path / "temporary"
    directory.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(directory))
    yield directory
    assert list(directory.iterdir()) == []


@pytest.mark.parametrize("name", ["-", "/dev/stdin"])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("csv", []),
        ("csv.gz", []),
        ("csv.bz2", ["--memory", "1GB"]),
        ("parquet", []),
        ("json", []),
        ("csv", ["--format", "csv"]),
    ],
)
def test_an_audit_of_standard_input_equals_that_of_the_file(name, kind, options, workdir, feed, spill, capsys):
    frame = pl.read_parquet(workdir / "few.parquet").drop("day")
    text = frame.write_csv().encode()
    content = {
        "csv": text, "csv.gz": gzip.compress(text), "csv.bz2": bz2.compress(text), "json": frame.write_ndjson().encode(),
    }.get(kind)  # fmt: skip
    (workdir / f"few.{kind}").unlink(missing_ok=True)
    if content is None:
        frame.write_parquet(workdir / "few.parquet")
        content = (workdir / "few.parquet").read_bytes()
    (workdir / f"few.{kind}").write_bytes(content)
    feed(content)
    words = [*ROLES, *FEATURES, *options, "--csv", "-"]
    assert call(capsys, "audit", name, *words) == call(capsys, "audit", f"few.{kind}", *words)


@pytest.mark.parametrize("header", ["[p],[y]", "{p},y", '"[p]",y'])
def test_a_header_that_begins_with_a_bracket_is_csv(header, feed, spill, capsys):
    feed((header + "\n" + "0.2,0\n0.3,1\n" * 40).encode())
    names = [name.strip('"') for name in header.split(",")]
    code, out, _ = call(capsys, "audit", "-", "--prediction", names[0], "--outcome", names[1], "--csv", "-")
    assert code == 0
    assert out.splitlines()[1].startswith("all rows,")


@pytest.mark.parametrize("text", ['[{"p": 0.2, "y": 0}]', '[\n  {"p": 0.2, "y": 0}\n]', '\ufeff { "p": 0.2, "y": 0}\n'])
def test_records_and_arrays_of_records_are_json(text, tmp_path):
    path = tmp_path / "content"
    path.write_text(text)
    assert sniff_suffix(path, None, "") == ".json"
    assert sniff_suffix(path, "csv", "") == ".csv"


def test_pages_name_standard_input_and_its_digest(workdir, feed, spill, capsys):
    feed((workdir / "rows.csv").read_bytes())
    code, out, _ = call(capsys, "audit", "-", *ROLES, *FEATURES, "--json", "-")
    (file,) = json.loads(out)["source"]["files"]
    assert code == 0
    assert "standard-input.csv" in json.dumps(file)


def test_predictions_go_to_standard_output(workdir, feed, spill, capsys):
    frame = pl.read_parquet("few.parquet")
    call(capsys, "predict", "binary.trueup", "few.parquet", "-o", "expected.csv")
    feed((workdir / "few.parquet").read_bytes())
    code, out, err = call(capsys, "predict", "binary.trueup", "-", "-o", "-")
    assert (code, err) == (0, "wrote 1,000 rows with p_trueup to standard output\n")
    assert out == (workdir / "expected.csv").read_text()
    words = ["predict", "binary.trueup", "few.parquet", "-o", "-", "--output-format", "json", "--only", "--quiet"]
    code, out, err = call(capsys, *words)
    assert (code, err, len(out.splitlines())) == (0, "", len(frame))
    assert json.loads(out.splitlines()[0]) == {"p_trueup": pl.read_csv("expected.csv")["p_trueup"][0]}


def test_one_row_is_one_row(workdir, feed, capsys):
    frame = pl.read_parquet("few.parquet").with_columns(country=pl.lit("Atlantis"))
    frame.head(1).write_parquet("one.parquet")
    _, _, err = call(capsys, "predict", "binary.trueup", "one.parquet", "-o", "-")
    assert "note: country: 1 row has a level that the model has not seen ('Atlantis'), treated as missing" in err
    assert err.endswith("wrote 1 row with p_trueup to standard output\n")
    frame.with_columns(y=pl.when(pl.int_range(pl.len()) > 0).then("y")).write_parquet("unlabelled.parquet")
    _, out, _ = call(capsys, "audit", "unlabelled.parquet", *ROLES, *FEATURES, "--unlabelled", "drop")
    assert "1 row without an outcome was set aside" in out


def test_a_fit_on_standard_input_is_that_of_the_file(workdir, feed, spill, capsys):
    feed((workdir / "few.parquet").read_bytes())
    words = [*ROLES, "--method", "platt", "--quiet", "-o"]
    assert call(capsys, "fit", "-", *words, "piped.trueup")[0] == 0
    assert call(capsys, "fit", "few.parquet", *words, "named.trueup")[0] == 0
    for model in ("piped", "named"):
        call(capsys, "predict", f"{model}.trueup", "few.parquet", "-o", f"{model}.csv")
    assert (workdir / "piped.csv").read_text() == (workdir / "named.csv").read_text()


@pytest.mark.parametrize(
    ("content", "words", "message"),
    [
        (b"", ["-"], "error: standard input is empty\nhint: did the command before it fail?"),
        (b"y,p\n", ["-", "/dev/stdin"], "error: standard input is named twice"),
        (b"\x28\xb5\x2f\xfd", ["-"], "error: cannot tell the format of standard input: it is compressed with zstd"),
        (b"\x1f\x8bxx", ["-"], "error: cannot decompress 'standard input'"),
        (b"y,p\n1,2,3\n", ["-"], "error: cannot read standard input: line 2 has 3 fields and the header has 2"),
    ],
)
def test_unusable_standard_input_is_named(content, words, message, feed, spill, capsys):
    feed(content)
    code, _, err = call(capsys, "audit", *words, *ROLES)
    assert code == 2
    assert err.startswith(message)


def test_a_terminal_is_not_waited_for(feed, spill, monkeypatch, capsys):
    feed(b"")
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True)
    assert "error: standard input is a terminal" in call(capsys, "audit", "-", *ROLES)[2]


@pytest.mark.parametrize("options", [[], ["--memory", "1GB"]])
def test_files_in_other_encodings_are_read_and_copies_are_deleted(options, workdir, spill, capsys):
    frame = pl.read_parquet("few.parquet").with_columns(country=pl.col("country").replace("BR", "São Tomé"))
    frame.write_csv("utf8.csv")
    (workdir / "latin.csv").write_bytes(frame.write_csv().encode("latin-1"))
    words = [*ROLES, *FEATURES, *options, "--csv", "-"]
    expected = call(capsys, "audit", "utf8.csv", *words)
    assert "São Tomé" in expected[1]
    assert call(capsys, "audit", "latin.csv", "--encoding", "latin-1", *words) == expected
    code, _, err = call(capsys, "audit", "latin.csv", *words)
    assert code == 2
    assert "is not UTF-8 text\nhint: name its encoding, as --encoding ..., or save it again as UTF-8" in err


def test_partitions_form_segments(workdir, capsys):
    frame = pl.read_parquet("few.parquet")
    for country, rows in frame.group_by("country"):
        (workdir / "data" / f"region={country[0]}").mkdir(parents=True)
        rows.write_parquet(workdir / "data" / f"region={country[0]}" / "rows.parquet")
    code, out, _ = call(capsys, "audit", "data", *ROLES, "--by", "region", "--csv", "-")
    assert code == 0
    assert {line.split(",")[0] for line in out.splitlines()} >= {"region=BR", "region=DE", "region=US"}


def test_a_column_that_is_not_read_is_named_with_its_type(workdir, capsys):
    pl.read_parquet("few.parquet").with_columns(odd=pl.lit([1])).write_parquet("odd.parquet")
    code, _, err = call(capsys, "audit", "odd.parquet", *ROLES, "--by", "odd")
    assert code == 2
    assert err.startswith("error: column 'odd' has a type that trueup does not read: ")
    for options in ([], ["--memory", "1GB"]):
        roles = [*ROLES, "--unlabelled", "drop", "--depth", "1"]
        code, out, err = call(capsys, "audit", "odd.parquet", *roles, *options)
        assert code == 0
        assert "column is left out: 'odd', it has a type that trueup does not read: " in err
        assert "column odd left out: it has a type that trueup does not read: " in out


def test_text_scores_are_named_with_their_row(workdir, capsys):
    frame = pl.read_parquet("few.parquet").with_columns(p=pl.col("p").cast(pl.String))
    frame = frame.with_columns(p=pl.when(pl.int_range(pl.len()) == 3).then(pl.lit("high")).otherwise("p"))
    frame.write_parquet("text.parquet")
    code, _, err = call(capsys, "predict", "binary.trueup", "text.parquet", "-o", "out.csv")
    assert code == 2
    assert "prediction column 'p' must hold numbers; got text such as 'high' at row 3" in err
    code, _, err = call(capsys, "predict", "binary.trueup", "text.parquet", "-o", "out.csv", "--on-error", "nan")
    assert code == 0
    assert "note: 1 of 1,000 rows has no valid score" in err


def test_remote_files_are_refused_without_the_extension(monkeypatch, capsys):
    monkeypatch.setattr("trueup.data.sql.HTTPFS", "no such extension")
    code, _, err = call(capsys, "audit", "s3://bucket/rows.parquet", *ROLES)
    assert code == 2
    assert err.startswith("error: cannot read 's3://bucket/rows.parquet': DuckDB's extension httpfs")
    assert "INSTALL httpfs" in err


def test_the_format_of_standard_output_is_only_for_standard_output(workdir, capsys):
    words = ["predict", "binary.trueup", "few.parquet", "-o", "out.csv", "--output-format", "json"]
    assert "error: --output-format is for -o -" in call(capsys, *words)[2]
