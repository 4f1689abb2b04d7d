"""Files and queries are read as columns: types, order, names, and error messages."""

from __future__ import annotations

import datetime as dt
import functools
import gzip
import json
import os
import pickle
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from trueup.data import sql
from trueup.data.columns import CodedColumn, UnreadColumn, from_objects
from trueup.data.frame import read
from trueup.data.sql import column_names, read_files
from trueup.errors import ArgumentError, ColumnError, FileError

HOSTILE_NAMES = [
    "a b",
    "it's",
    'say "hi"',
    "ünï çødé 数",
    "st*r",
    "wh?t",
    "br[1]",
    "[!a]",
    "back\\slash",
    "~tilde",
    "semi;colon -- comment",
    "x'); DROP TABLE data; --",
    "new\nline",
    "{a,b}",
    "year=2024",
    "per%20cent",
    "http:",
]
HOSTILE_TEXTS = [
    "",
    " ",
    "'",
    '"',
    "''; --",
    "a\x00b",
    "a",
    "\x00",
    "é",
    "e\u0301",
    "数",
    "𝔘",
    "\n",
    "NA",
    "null",
    "-1",
    "A",
]


def write(path: Path, query: str) -> Path:
    """Write the result of a query by DuckDB, in the format of the file name."""
    form = "(FORMAT parquet)" if path.suffix in (".parquet", ".pq") else ""
    with duckdb.connect() as con:
        con.execute(f"COPY ({query}) TO '{path}' {form}")
    return path


def text_file(path: Path, content: str | bytes) -> Path:
    content = content.encode() if isinstance(content, str) else content
    path.write_bytes(gzip.compress(content) if path.suffix.lower() == ".gz" else content)
    return path


def texts(column: object) -> list[str | None]:
    """Decode a text column."""
    assert isinstance(column, CodedColumn)
    assert column.codes.dtype == np.int32
    return [None if code < 0 else column.levels[code] for code in column.codes]


def as_lists(columns: dict[str, object]) -> dict[str, list[object]]:
    """Return every column as a list, with None for missing."""
    return {name: texts(column) if isinstance(column, CodedColumn) else column.tolist() for name, column in columns.items()}


def assert_equal_tables(result, expected):
    assert result.schema == expected.schema
    np.testing.assert_array_equal(result.prediction, expected.prediction)
    np.testing.assert_array_equal(result.outcome, expected.outcome)
    for name in expected.columns:
        np.testing.assert_array_equal(result.columns[name], expected.columns[name])
        assert result.columns[name].dtype == expected.columns[name].dtype


def error_message(error: type[Exception], *args: object, **kwargs: object) -> str:
    """Return the message of an error in reading, which must have a hint and be picklable."""
    with pytest.raises(error) as caught:
        read_files(*args, **kwargs)
    assert type(caught.value) is error
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    return str(caught.value)


@pytest.fixture
def people() -> pd.DataFrame:
    """A frame with every supported type, with and without missing values."""
    rng = np.random.default_rng(5)
    n = 3000
    countries = np.array(["BR", "US", "São Tomé", "it's", 'a "b"', ""], object)
    frame = pd.DataFrame(
        {
            "y": rng.integers(0, 2, n),
            "p": rng.random(n),
            "country": countries[rng.integers(0, 6, n)],
            "zip": np.array(["10", "9", "-1", "100"], object)[rng.integers(0, 4, n)],
            "income": rng.normal(size=n),
            "age": pd.array(rng.integers(18, 90, n), dtype="Int64"),
            "member": rng.random(n) < 0.5,
            "joined": pd.Timestamp("2020-01-01") + pd.to_timedelta(rng.integers(0, 10**8, n), unit="s"),
        }
    )
    for step, name in enumerate(["country", "income", "age", "joined"], start=3):
        frame.loc[::step, name] = None
    return frame


# Types


def test_every_number_type_is_read_as_numbers():
    kinds = [*sql.NUMERIC_TYPES.split()[1:], "HUGEINT", "UHUGEINT"]
    listed = ", ".join(f"CAST(3 AS {kind}) AS {kind.lower()}" for kind in kinds)
    result = read_files(sql=f"SELECT {listed}, 3.25::DECIMAL(9, 2) AS money, 3::DECIMAL(38, 0) AS wide")
    assert all(column.dtype.kind in "iuf" for column in result.values())
    assert result["hugeint"].dtype == result["uhugeint"].dtype == result["money"].dtype == np.float64
    assert result["money"].tolist() == [3.25]
    assert {column.tolist()[0] for name, column in result.items() if name != "money"} == {3}


def test_missing_values_are_masked_and_nan_stays_a_number():
    result = read_files(sql="FROM (VALUES (1, 'nan'::DOUBLE, true), (NULL, 2, NULL)) AS t(i, x, b)")
    assert result["i"].tolist() == [1, None]
    assert not np.ma.isMaskedArray(result["x"])
    assert np.isnan(result["x"][0])
    assert result["b"].tolist() == [True, None]
    assert result["b"].dtype == bool


def test_a_column_without_missing_values_is_a_plain_array():
    assert type(read_files(sql="SELECT 1 AS a")["a"]) is np.ndarray


def test_dates_and_times_are_datetime64_and_zones_are_converted_to_utc():
    result = read_files(
        sql="""SELECT DATE '2024-01-31' AS d, TIMESTAMP '2024-01-31 09:30:00' AS t,
               TIMESTAMPTZ '2024-01-31 09:30:00+02' AS z, '2024-01-31'::TIMESTAMP_NS AS ns,
               '2024-01-31'::TIMESTAMP_S AS s, '2024-01-31'::TIMESTAMP_MS AS ms, NULL::DATE AS gone"""
    )
    assert all(column.dtype.kind == "M" for column in result.values())
    assert result["d"].astype("datetime64[D]").astype(str).tolist() == ["2024-01-31"]
    assert result["t"].astype("datetime64[m]").astype(str).tolist() == ["2024-01-31T09:30"]
    assert result["z"].astype("datetime64[m]").astype(str).tolist() == ["2024-01-31T07:30"]
    assert result["gone"].mask.tolist() == [True]


def test_the_time_zone_of_the_machine_does_not_matter(tmp_path, monkeypatch):
    zoned = pd.DataFrame({"t": pd.to_datetime(["2024-01-31 23:30"]).tz_localize("UTC")})
    zoned.to_parquet(tmp_path / "z.parquet")
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    result = read_files(tmp_path / "z.parquet", columns=["t"])["t"]
    assert result.astype("datetime64[m]").astype(str).tolist() == ["2024-01-31T23:30"]
    days = read_files(tmp_path / "z.parquet", sql="SELECT t::DATE AS day FROM data")["day"]
    assert days.astype("datetime64[D]").astype(str).tolist() == ["2024-01-31"]


def test_enums_uuids_and_json_texts_are_encoded():
    result = read_files(
        sql="""SELECT 'ok'::ENUM('sad', 'ok') AS e, '550e8400-e29b-41d4-a716-446655440000'::UUID AS u,
               '"quoted"'::JSON AS j, NULL AS n"""
    )
    assert texts(result["e"]) == ["ok"]
    assert result["e"].levels == ("ok",)
    assert texts(result["u"]) == ["550e8400-e29b-41d4-a716-446655440000"]
    assert texts(result["j"]) == ["quoted"]


UNREAD = {
    "bytes": "'ab'::BLOB",
    "list": "[1, 2]",
    "array": "[1, 2]::INTEGER[2]",
    "struct": "{'a': 1}",
    "map": "MAP {'a': 1}",
}


@pytest.mark.parametrize("kind", UNREAD)
def test_a_column_of_unsupported_type_is_left_out_unless_it_is_named(kind):
    query = f"SELECT 1 AS a, {UNREAD[kind]} AS odd"
    assert column_names(sql=query) == ["a", "odd"]
    left_out = read_files(sql=query)["odd"]
    assert isinstance(left_out, UnreadColumn)
    assert "has a type that trueup does not read" in left_out.error.message
    message = error_message(ColumnError, sql=query, columns=["odd"])
    assert message.startswith("column 'odd' has a type that trueup does not read: ")
    assert "categorical=['odd']" in message
    assert len(texts(read_files(sql=query, columns=["odd"], text=["odd"])["odd"])) == 1


def test_only_unsupported_columns_are_rejected():
    assert "no column to read among 'odd'" in error_message(ColumnError, sql="SELECT [1] AS odd")


# Texts


@pytest.mark.parametrize("form", ["parquet", "sql"])
def test_unusual_texts_are_preserved_and_sorted_by_code_point(form, tmp_path):
    values = [*HOSTILE_TEXTS, None, *reversed(HOSTILE_TEXTS), None]
    pq.write_table(pa.table({"t": values}), tmp_path / "t.parquet")
    query = {"parquet": None, "sql": "FROM data"}[form]
    result = read_files(tmp_path / "t.parquet", sql=query)["t"]
    assert texts(result) == values
    assert result.levels == tuple(sorted(HOSTILE_TEXTS))


def test_texts_that_are_all_integers_are_sorted_as_numbers():
    result = read_files(sql="FROM (VALUES ('10'), ('9'), ('-1'), ('9')) AS t(n)")["n"]
    assert result.levels == ("-1", "9", "10")
    assert result.codes.tolist() == [2, 1, 0, 1]


def test_a_text_column_of_only_missing_values_has_no_levels():
    result = read_files(sql="SELECT NULL::VARCHAR AS t FROM range(3)")["t"]
    assert result.levels == ()
    assert result.codes.tolist() == [-1, -1, -1]


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    values=st.lists(
        st.none() | st.sampled_from(HOSTILE_TEXTS) | st.text(st.characters(codec="utf-8"), max_size=5),
        min_size=1,
        max_size=60,
    )
)
def test_texts_are_encoded_as_in_python(values, tmp_path):
    pq.write_table(pa.table({"t": pa.array(values, pa.string())}), tmp_path / "any.parquet")
    result, expected = read_files(tmp_path / "any.parquet")["t"], from_objects(values, "t").coded
    assert result.levels == expected.levels
    np.testing.assert_array_equal(result.codes, expected.codes)


@pytest.mark.parametrize("levels", [3, 100_000, 300_000])
def test_rows_keep_their_order_however_many_levels_a_text_has(levels, tmp_path):
    query = f"SELECT i, 'id' || (i * 7919 % {levels}) AS id, 'g' || (i % 7) AS g FROM range(300000) AS t(i)"
    path = write(tmp_path / "ids.parquet", query)
    result = read_files(path, threads=4)
    np.testing.assert_array_equal(result["i"], np.arange(300_000))
    for at in (0, 1, 122_879, 122_880, 299_999):
        assert result["id"].levels[result["id"].codes[at]] == f"id{at * 7919 % levels}"
        assert result["g"].levels[result["g"].codes[at]] == f"g{at % 7}"
    assert len(result["id"].levels) == levels


def test_more_text_columns_than_one_query_encodes(tmp_path):
    listed = ", ".join(f"'v' || (i % {k}) AS t{k}" for k in range(1, 3 * sql.TEXTS_PER_QUERY))
    result = read_files(write(tmp_path / "wide.parquet", f"SELECT {listed} FROM range(50) AS r(i)"))
    assert all(texts(result[f"t{k}"]) == [f"v{i % k}" for i in range(50)] for k in range(1, 3 * sql.TEXTS_PER_QUERY))


# Round trips


@pytest.mark.parametrize("library", ["pandas", "polars", "pyarrow"])
def test_parquet_gives_the_same_table_as_the_frame(library, people, tmp_path):
    path = tmp_path / "people.parquet"
    if library == "pandas":
        people.to_parquet(path)
    elif library == "polars":
        pl.from_pandas(people).write_parquet(path)
    else:
        pq.write_table(pa.Table.from_pandas(people), path)
    roles = {"outcome": "y", "prediction": "p"}
    assert_equal_tables(read(read_files(path), **roles), read(people, **roles))


@pytest.mark.parametrize("ending", ["csv", "csv.gz", "tsv", "jsonl", "json"])
def test_csv_and_json_give_the_same_table_as_the_frame(ending, people, tmp_path):
    people["country"] = people["country"].replace("", "empty")  # in CSV an empty text is missing
    people["zip"] = "z" + people["zip"]  # in CSV a text of digits is a number
    path = tmp_path / f"people.{ending}"
    if "sv" in ending:
        people.to_csv(path, index=False, sep="\t" if ending == "tsv" else ",")
    else:
        rows = [{key: None if pd.isna(value) else value for key, value in row.items()} for row in people.to_dict("records")]
        lines = [json.dumps(row, default=str) for row in rows]
        path.write_text("\n".join(lines) if ending == "jsonl" else f"[{', '.join(lines)}]")
    roles = {"outcome": "y", "prediction": "p"}
    assert_equal_tables(read(read_files(path), **roles), read(people, **roles))


def test_dictionaries_categories_and_other_arrow_types_are_read(tmp_path):
    table = pa.table(
        {
            "words": pa.array(["b", None, "a", "b"]).dictionary_encode(),
            "large": pa.array(["b", None, "a", "b"], pa.large_string()),
            "view": pa.array(["b", None, "a", "b"], pa.string_view()),
            "half": pa.array([1.5, 2, None, 4], pa.float16()),
            "money": pa.array([1, 2, None, 4], pa.decimal128(9, 2)),
            "nulls": pa.nulls(4),
            "bytes": pa.array([b"\xff"] * 4),
            "utc": pa.array([0, 86_400_000_000, None, 1], pa.timestamp("us", "UTC")),
            "berlin": pa.array([0, 86_400_000_000, None, 1], pa.timestamp("us", "Europe/Berlin")),
            "day": pa.array([dt.date(2024, 1, 31)] * 4),
            "time": pa.array([dt.time(9, 30)] * 4),
        }
    )
    pq.write_table(table, tmp_path / "arrow.parquet")
    result = read_files(tmp_path / "arrow.parquet")
    assert isinstance(result["bytes"], UnreadColumn)
    assert result["time"].tolist() == [9.5] * 4
    for name in ("words", "large", "view"):
        assert result[name].levels == ("a", "b")
        assert texts(result[name]) == ["b", None, "a", "b"]
    assert result["half"].tolist() == [1.5, 2, None, 4]
    assert result["money"].tolist() == [1, 2, None, 4]
    assert result["utc"].astype("datetime64[D]").astype(str).tolist()[:2] == ["1970-01-01", "1970-01-02"]
    np.testing.assert_array_equal(result["utc"], result["berlin"])
    assert result["day"].astype("datetime64[D]").astype(str).tolist() == ["2024-01-31"] * 4


def test_a_pandas_category_gives_its_used_levels_sorted(tmp_path):
    frame = pd.DataFrame({"c": pd.Categorical(["b", "a", None, "b"], categories=["z", "b", "a"])})
    frame.to_parquet(tmp_path / "c.parquet")
    assert read_files(tmp_path / "c.parquet")["c"].levels == ("a", "b")


def test_the_pandas_row_index_is_left_out_unless_it_is_named(tmp_path):
    frame = pd.DataFrame({"a": [1, 2, 3, 4]}).loc[[0, 1, 3]]
    frame.to_parquet(tmp_path / "i.parquet")
    assert list(read_files(tmp_path / "i.parquet")) == column_names(tmp_path / "i.parquet") == ["a"]
    assert read_files(tmp_path / "i.parquet", columns=["__index_level_0__"])["__index_level_0__"].tolist() == [0, 1, 3]


@pytest.mark.parametrize("ending", ["parquet", "pq", "csv", "json"])
def test_no_rows_give_empty_columns(ending, tmp_path):
    path = write(tmp_path / f"none.{ending}", "SELECT 1 AS a, 'x' AS b WHERE false")
    if ending == "json":
        path.write_text("[]")
        assert "records" in error_message(FileError, path)
    else:
        assert {name: len(column) for name, column in read_files(path).items()} == {"a": 0, "b": 0}


# CSV


def test_leading_zeros_are_kept_in_columns_read_as_text(tmp_path):
    path = text_file(tmp_path / "z.csv", "zip,n\n01234,1\n2345,2\n")
    assert texts(read_files(path, text=["zip"])["zip"]) == ["01234", "2345"]
    assert texts(read_files(path, text="zip", columns="zip")["zip"]) == ["01234", "2345"]


def test_a_late_word_or_number_determines_the_type_of_the_column(tmp_path):
    path = text_file(tmp_path / "late.csv", "zip,n,m\n" + "12345,1,\n" * 60_000 + "12345,B2,7\n")
    result = read_files(path)
    assert result["n"].levels == ("1", "B2")
    assert result["m"].compressed().tolist() == [7]
    assert len(result["m"]) == 60_001


def test_typed_values_can_be_read_as_text(tmp_path):
    path = write(tmp_path / "t.parquet", "SELECT 7 AS i, 0.5::DOUBLE AS x, true AS b, DATE '2024-01-31' AS d")
    assert as_lists(read_files(path, text=["i", "x", "b", "d"])) == {
        "i": ["7"],
        "x": ["0.5"],
        "b": ["true"],
        "d": ["2024-01-31"],
    }
    path = write(
        tmp_path / "x.parquet", "SELECT * FROM (VALUES (7.0::DOUBLE), ('nan'), (0.25), (NULL), ('inf'), (-1e300)) AS t(x)"
    )
    assert as_lists(read_files(path, text=["x"])) == {"x": ["7", None, "0.25", None, "inf", "-1e+300"]}
    path = text_file(tmp_path / "t.json", '[{"i": 7, "s": "2024-01-31", "l": [1]}]')
    assert as_lists(read_files(path, text=["i", "s", "l"])) == {"i": ["7"], "s": ["2024-01-31"], "l": ["[1]"]}


def test_missing_values_of_csv(tmp_path):
    lines = ["", "NA", "N/A", "NaN", "nan", "null", "NULL", '""', '"NA"']
    path = text_file(tmp_path / "m.csv", "x,t\n1.5,a\n" + "".join(f"{word},{word}\n" for word in lines) + "2,None\n")
    result = read_files(path)
    assert result["x"].tolist() == [1.5, *[None] * len(lines), 2]
    assert texts(result["t"]) == ["a", *[None] * len(lines), "None"]


def test_the_documented_way_to_keep_na_works(tmp_path):
    path = text_file(tmp_path / "m.csv", "country,n\nNA,1\nDE,\n")
    result = read_files(sql=f"FROM read_csv('{path}', nullstr = '')")
    assert as_lists(result) == {"country": ["NA", "DE"], "n": [1, None]}


@pytest.mark.parametrize(("separator", "ending"), [(",", "csv"), (";", "csv"), ("|", "txt"), ("\t", "tsv"), ("\t", "csv")])
def test_the_separator_is_found_in_the_header(separator, ending, tmp_path):
    path = text_file(tmp_path / f"s.{ending}", f'a{separator}"b{separator}c"\n1{separator}x y\n')
    assert as_lists(read_files(path)) == {"a": [1], f"b{separator}c": ["x y"]}


def test_a_single_column_needs_no_separator(tmp_path):
    assert as_lists(read_files(text_file(tmp_path / "s.tsv", "words\nyes, we can\nno\n"))) == {
        "words": ["yes, we can", "no"]
    }


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["true", "False", "TRUE"], [True, False, True]),
        (["true", "", "false"], [True, None, False]),
        (["yes", "no", "yes"], ["yes", "no", "yes"]),
        (["t", "f", "t"], ["t", "f", "t"]),
        (["#1", "x", "y"], ["#1", "x", "y"]),
        (["12:30", "12:31", "12:32"], ["12:30", "12:31", "12:32"]),
        (["01/02/2024", "03/02/2024", "04/02/2024"], ["01/02/2024", "03/02/2024", "04/02/2024"]),
        (["01-02-2024 10:00:00", "x", "y"], ["01-02-2024 10:00:00", "x", "y"]),
        (["2024-02-30", "2024-02-28", "2024-02-27"], ["2024-02-30", "2024-02-28", "2024-02-27"]),
        (["2024-01-02-05", "2024-01-02Z", "a"], ["2024-01-02-05", "2024-01-02Z", "a"]),
        (["1e5", "-.5", "inf"], [1e5, -0.5, float("inf")]),
        (["1_000", "2_000", "3"], ["1_000", "2_000", "3"]),
        (["100000000000000000000", "1", "2"], [1e20, 1.0, 2.0]),
    ],
)
def test_types_of_csv_columns(words, expected, tmp_path):
    path = text_file(tmp_path / "w.csv", "a,b\n" + "".join(f"{word},1\n" for word in words))
    assert as_lists(read_files(path))["a"] == expected


@pytest.mark.parametrize("ending", ["csv", "json"])
def test_dates_are_read_if_all_are_in_iso_format(ending, tmp_path):
    words = ["2024-01-31", "2024-01-31 09:30", "2024-01-31T09:30:00Z", "2024-01-31 09:30:00.123456789+02:00", None]
    if ending == "csv":
        path = text_file(tmp_path / "d.csv", "d,n\n" + "".join(f"{word or ''},1\n" for word in words))
    else:
        path = text_file(tmp_path / "d.json", json.dumps([{"d": word, "n": 1} for word in words]))
    result = read_files(path)["d"]
    clock = ["00:00:00.000000", "09:30:00.000000", "09:30:00.000000", "09:30:00.123456"]
    assert result.compressed().astype(str).tolist() == [f"2024-01-31T{time}" for time in clock]
    assert result.mask.tolist() == [False] * 4 + [True]
    assert texts(read_files(path, text=["d"])["d"]) == words


@pytest.mark.parametrize(
    "content", [b"\xef\xbb\xbfa,b\n1,\xc3\xa9\n", b"a,b\r\n1,\xc3\xa9\r\n", b"a,b\r1,\xc3\xa9\r", b"a,b\n1,\xc3\xa9"]
)
def test_byte_order_marks_and_line_ends_of_all_kinds(content, tmp_path):
    assert as_lists(read_files(text_file(tmp_path / "e.csv", content))) == {"a": [1], "b": ["é"]}


def test_quotes_line_ends_and_comment_signs_inside_csv(tmp_path):
    path = text_file(tmp_path / "q.csv", 'a,b\n"x\ny",1\n"say ""hi""",2\n#z,3\n\n" pad ",4\n')
    assert as_lists(read_files(path)) == {"a": ["x\ny", 'say "hi"', "#z", " pad "], "b": [1, 2, 3, 4]}


def test_a_column_without_a_name_is_numbered(tmp_path):
    assert list(read_files(text_file(tmp_path / "i.csv", ",a\n0,x\n"))) == ["column0", "a"]


# JSON


def test_json_arrays_and_lines_are_read(tmp_path):
    expected = {"a": [1.0, 2.5, None], "b": ["x", None, "007"]}
    rows = [{"a": 1, "b": "x"}, {"a": 2.5}, {"b": "007", "a": None}]
    for name, content in {
        "array.json": json.dumps(rows),
        "pretty.json": json.dumps(rows, indent=2),
        "lines.jsonl": "\n".join(map(json.dumps, rows)),
        "lines.ndjson.gz": "\n".join(map(json.dumps, rows)) + "\n",
    }.items():
        assert as_lists(read_files(text_file(tmp_path / name, content))) == expected


def test_late_rows_of_json_determine_columns_and_types(tmp_path):
    path = text_file(tmp_path / "late.jsonl", '{"a": 1}\n' * 30_000 + '{"a": 2.5, "b": "new"}\n')
    result = read_files(path)
    assert result["a"][-1] == 2.5
    assert texts(result["b"])[-1] == "new"
    assert column_names(path) == ["a", "b"]


def test_mixed_json_values_are_texts_and_nested_ones_are_left_out(tmp_path):
    rows = [{"m": 1, "l": [1], "s": {"a": 1}}, {"m": "x", "l": [], "s": None}, {"m": True, "l": None, "s": {"b": 2}}]
    path = text_file(tmp_path / "m.json", json.dumps(rows))
    assert as_lists(read_files(path, columns=["m"])) == {"m": ["1", "x", "true"]}
    assert [name for name, column in read_files(path).items() if isinstance(column, UnreadColumn)] == ["l", "s"]
    assert "column 'l' has a type that trueup does not read" in error_message(ColumnError, path, columns=["l"])


# Several files


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_several_files_are_concatenated_by_column_name(ending, tmp_path):
    first = write(tmp_path / f"b.{ending}", "SELECT 1 AS a, 'x' AS t")
    second = write(tmp_path / f"a.{ending}", "SELECT 'y' AS t, 2 AS a, 0.5 AS new")
    expected = {"a": [1, 2], "t": ["x", "y"]}
    assert as_lists(read_files([first, str(second)], columns=["a", "t"])) == expected
    assert column_names([first, second]) == [*expected, "new"]
    sorted_by_name = as_lists(read_files(str(tmp_path / f"*.{ending}"), columns=["a", "t"]))
    assert sorted_by_name == {"a": [2, 1], "t": ["y", "x"]}
    assert as_lists(read_files(tmp_path / f"[ab].{ending}", columns=["a", "t"])) == sorted_by_name
    for more in ({}, {"columns": ["a", "new"]}) if ending != "jsonl" else ():  # records may leave a column out
        with pytest.raises(ColumnError, match=rf"b.{ending}' has no column 'new', which the others have"):
            read_files([first, second], **more)


def test_a_pattern_can_match_subdirectories(tmp_path):
    for name in ("x", "y"):
        (tmp_path / f"part={name}").mkdir()
        write(tmp_path / f"part={name}" / "f.parquet", f"SELECT '{name}' AS t")
    assert as_lists(read_files(f"{tmp_path}/**/*.parquet")) == {"t": ["x", "y"], "part": ["x", "y"]}


def test_a_number_in_one_file_and_a_word_in_another_are_read_as_text(tmp_path):
    first, second = text_file(tmp_path / "1.csv", "a,b\n1.50,1\n"), text_file(tmp_path / "2.csv", "a,b\nx,1\n")
    assert texts(read_files([first, second])["a"]) == ["1.50", "x"]


def test_compressed_and_plain_files_are_read_together(tmp_path):
    first, second = text_file(tmp_path / "1.csv", "a\n1\n"), text_file(tmp_path / "2.csv.gz", "a\n2\n")
    assert as_lists(read_files([first, second])) == {"a": [1, 2]}


# SQL


def test_a_query_over_files_sees_them_as_data(tmp_path):
    path = text_file(tmp_path / "f.csv", "zip,n\n00501,1\n10001,2\n")
    result = read_files(path, sql="SELECT zip, n * 2 AS twice FROM data ORDER BY n DESC; -- all", text=["zip"])
    assert as_lists(result) == {"zip": ["10001", "00501"], "twice": [4, 2]}


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
def test_a_query_over_files_sees_dates_and_booleans_as_such(ending, tmp_path):
    path = write(
        tmp_path / f"d.{ending}",
        "SELECT DATE '2024-01-31' + i::INTEGER AS d, i > 0 AS flag, 'x' AS t FROM range(2) AS r(i)",
    )
    result = read_files(
        path, sql="SELECT max(d) + INTERVAL 1 DAY AS next, bool_or(flag) AS some, any_value(t) AS t FROM data"
    )
    assert result["next"].astype("datetime64[D]").astype(str).tolist() == ["2024-02-02"]
    assert result["some"].tolist() == [True]
    assert texts(result["t"]) == ["x"]


def test_a_query_over_json_sees_nested_values(tmp_path):
    path = text_file(tmp_path / "n.json", '[{"user": {"first name": "Ann"}, "tags": ["a", "b"]}]')
    assert as_lists(read_files(path, sql='SELECT "user"."first name" AS name, len(tags) AS n FROM data')) == {
        "name": ["Ann"],
        "n": [2],
    }


@pytest.mark.parametrize("late", ["", "soon", "2024-02-30"])
def test_a_late_word_turns_dates_into_texts(late, tmp_path):
    path = text_file(tmp_path / "late.csv", "d,n\n" + ",1\n" * 2000 + "2024-01-31,1\n" * 3000 + f"{late},1\n")
    result = read_files(path)["d"]
    assert isinstance(result, CodedColumn) == bool(late)
    assert len(result) == 5001


def test_a_query_can_name_files(tmp_path):
    path = write(tmp_path / "f.parquet", "SELECT 1 AS a")
    assert as_lists(read_files(sql=f"SELECT a + 1 AS b FROM '{path}'")) == {"b": [2]}


def test_several_statements_and_comments(tmp_path):
    query = "CREATE TEMP TABLE t AS SELECT 'a;b' AS x; /* ; */ SELECT x FROM t -- the end;"
    assert as_lists(read_files(sql=query)) == {"x": ["a;b"]}


def test_a_query_is_run_once():
    result = read_files(sql="SELECT 'w' || (random() * 1e9)::BIGINT AS t, random() AS x FROM range(1000)")
    assert (result["t"].codes >= 0).all()


@pytest.mark.parametrize(
    "query", ["PIVOT (SELECT 'a' AS k, 2 AS v) ON k USING sum(v)", "WITH t AS (SELECT 2 AS a) FROM t", "VALUES (2)"]
)
def test_queries_need_not_begin_with_select(query):
    assert [column.tolist() for column in read_files(sql=query).values()] == [[2]]


def test_names_that_differ_in_case_are_two_columns_in_a_query():
    assert as_lists(read_files(sql="SELECT 1 AS a, 'x' AS A")) == {"a": [1], "A": ["x"]}


def test_a_query_does_not_see_python_variables():
    rows = pd.DataFrame({"a": [1]})
    assert "Table with name rows does not exist" in error_message(FileError, sql="FROM rows")
    assert len(rows) == 1


# Columns


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_only_the_named_columns_are_read_in_their_order(ending, tmp_path):
    path = write(tmp_path / f"c.{ending}", "SELECT 1 AS a, 'x' AS b, 2.5 AS c")
    assert as_lists(read_files(path, columns=["c", "b"])) == {"c": [2.5], "b": ["x"]}
    assert column_names(path) == ["a", "b", "c"]


def test_the_error_for_an_unknown_column_suggests_a_similar_name(tmp_path):
    path = write(tmp_path / "c.parquet", "SELECT 1 AS country, 2 AS Age")
    assert (
        error_message(ColumnError, path, columns=["contry"])
        == "no column 'contry' to use as data\nhint: did you mean 'country'?"
    )
    assert "did you mean 'Age'?" in error_message(ColumnError, path, columns=["age"])
    assert error_message(ColumnError, path, text=["Ages"]) == "no column 'Ages' to use as text\nhint: did you mean 'Age'?"
    assert "named twice" in error_message(ColumnError, path, columns=["Age", "Age"])


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_unusual_column_names(ending, tmp_path):
    names = [name for name in HOSTILE_NAMES if name != "new\nline"]
    names += ["select", "c0", "r0", "place", "word", "t", "a\tb", "a.b", "$x", "{0}", 'q"']
    path = tmp_path / f"n.{ending}"
    frame = pd.DataFrame({name: [at, at + 1] for at, name in enumerate(names)} | {"text": ["x", None]})
    if ending == "parquet":
        frame.to_parquet(path)
    elif ending == "csv":
        frame.to_csv(path, index=False)
    else:
        path.write_text(json.dumps(frame.astype(object).where(frame.notna(), None).to_dict("records")))
    expected = {name: [at, at + 1] for at, name in enumerate(names)} | {"text": ["x", None]}
    assert as_lists(read_files(path)) == expected
    assert as_lists(read_files(path, columns=names[::-1], text=[names[7]]))[names[7]] == ["7", "8"]
    assert column_names(path) == list(expected)


def test_a_duplicate_name_in_csv_is_rejected(tmp_path):
    path = text_file(tmp_path / "d.csv", "a,b,a\n1,2,3\n")
    assert error_message(ColumnError, path).startswith(f"column name 'a' appears more than once in {str(path)!r}")
    with pytest.raises(ColumnError, match="more than once"):
        column_names(path)


def test_a_duplicate_name_in_parquet_or_json_is_rejected(tmp_path):
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=["a", "a"]), tmp_path / "d.parquet")
    assert "column name 'a' appears more than once" in error_message(ColumnError, tmp_path / "d.parquet")
    assert "duplicate key" in error_message(FileError, text_file(tmp_path / "e.json", '{"a": 1, "a": 2}'))


def test_a_duplicate_name_in_a_query_is_rejected():
    message = error_message(ColumnError, sql="SELECT 1 AS a, 2 AS a")
    assert message.startswith("column name 'a' appears more than once")


@pytest.mark.parametrize("ending", ["parquet", "csv", "json"])
def test_a_name_that_looks_renamed_by_duckdb_is_read(ending, tmp_path):
    path = write(tmp_path / f"u.{ending}", "SELECT 1 AS a, 2 AS a_1, 3 AS a_b, 4 AS _1")
    assert as_lists(read_files(path)) == {"a": [1], "a_1": [2], "a_b": [3], "_1": [4]}


# Names of files


@functools.cache
def one_row(ending: str, query: str) -> bytes:
    """Return the contents of a file with the result of a query."""
    with tempfile.TemporaryDirectory() as folder:
        return write(Path(folder, f"plain.{ending}"), query).read_bytes()


@pytest.mark.parametrize("name", HOSTILE_NAMES)
@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_a_file_is_read_whatever_its_name(name, ending, tmp_path, monkeypatch):
    folder = tmp_path / name
    folder.mkdir()
    expected = folder / f"{name}.{ending}"
    expected.write_bytes(one_row(ending, "SELECT 1 AS a, 'x' AS t"))
    for other in ("star.", "what.", "br1.", "a."):  # what the name would match as a pattern
        (folder / f"{other}{ending}").write_bytes(one_row(ending, "SELECT 2 AS a, 'y' AS t"))
    assert as_lists(read_files(expected)) == {"a": [1], "t": ["x"]}
    monkeypatch.chdir(folder)
    assert as_lists(read_files(f"{name}.{ending}", sql="FROM data")) == {"a": [1], "t": ["x"]}


@pytest.mark.skipif(os.name != "posix", reason="names of files are bytes only there")
def test_a_file_name_that_is_not_unicode_is_rejected(tmp_path):
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff.csv"))
    text_file(path, "a\n1\n")
    assert error_message(FileError, path).endswith("\\udcff.csv' is not UTF-8 text\nhint: rename the file")


def test_a_path_can_begin_with_a_tilde(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    text_file(tmp_path / "h.csv", "a\n1\n")
    assert as_lists(read_files("~/h.csv")) == {"a": [1]}


def test_upper_case_suffixes_and_compressed_files(tmp_path):
    assert as_lists(read_files(text_file(tmp_path / "A.CSV", "a\n1\n"))) == {"a": [1]}
    assert as_lists(read_files(text_file(tmp_path / "B.TSV.GZ", "a,b\tc\n1\tx\n"))) == {"a,b": [1], "c": ["x"]}


# Files that cannot be read


def test_the_error_for_a_missing_file_suggests_a_similar_one(tmp_path):
    text_file(tmp_path / "scores.csv", "a\n1\n")
    message = error_message(FileError, tmp_path / "score.csv")
    assert message == f"no file {str(tmp_path / 'score.csv')!r}\nhint: did you mean {str(tmp_path / 'scores.csv')!r}?"
    assert f"looked in {str(tmp_path / 'no')!r}, which is no directory" in error_message(
        FileError, tmp_path / "no" / "scores.csv"
    )
    assert "looked in" in error_message(FileError, tmp_path / "0.parquet")
    assert "no file 'a\\x00b.csv'" in error_message(FileError, "a\x00b.csv")


def test_no_dissimilar_file_is_suggested(tmp_path):
    for name in ("x.csv", "ads.csv", "notes.md", "loans.parquet", "a.csv.gz"):
        text_file(tmp_path / name, "a\n1\n")
    for name in ("nope.csv", "day-*.csv", "ad[sz]s.csv", "note.csv", "bds.csv"):
        assert "hint: looked in" in error_message(FileError, tmp_path / name), name
    for name, near in (
        ("loans.csv", "loans.parquet"),
        ("Loans.csv", "loans.parquet"),
        ("X.csv", "x.csv"),
        ("a.csv", "a.csv.gz"),
    ):
        assert f"hint: did you mean {str(tmp_path / near)!r}?" in error_message(FileError, tmp_path / name)


def test_a_pattern_without_a_match_is_rejected(tmp_path):
    assert error_message(FileError, f"{tmp_path}/*.csv").startswith(f"no file matches '{tmp_path}/*.csv'")


def test_a_directory_with_a_file_of_an_unknown_format_is_rejected(tmp_path):
    text_file(tmp_path / "f.csv", "a\n1\n")
    text_file(tmp_path / "notes.doc", "x")
    assert "has a file of an unknown format: 'notes.doc'" in error_message(FileError, tmp_path)


@pytest.mark.parametrize("name", ["f.xlsx", "f", "f.parquet.gz", "f.gz", ".csv", "f.csv.zip"])
def test_an_unknown_suffix_is_rejected(name, tmp_path):
    assert "cannot tell the format" in error_message(FileError, text_file(tmp_path / name, "a\n1\n"))


@pytest.mark.parametrize(
    "url", ["http://a.b/c.csv", "https://a.b/*.csv", "s3://a/b.parquet", "hf://datasets/x.csv", "file:///a.csv"]
)
def test_a_url_is_rejected_without_the_extension_that_reads_it(url, monkeypatch):
    monkeypatch.setattr(sql, "HTTPFS", "no such extension")
    message = error_message(FileError, url)
    assert message.startswith(f"cannot read {url!r}: ")
    assert "download" in message
    assert "write a URL as a text" in error_message(FileError, Path(url))


def test_a_url_in_a_query_downloads_nothing():
    assert "requires the extension httpfs" in error_message(FileError, sql="FROM 'https://example.org/a.parquet'")


def test_files_of_several_formats_are_rejected(tmp_path):
    both = [text_file(tmp_path / "a.csv", "a\n1\n"), text_file(tmp_path / "a.json", '{"a": 1}')]
    assert error_message(FileError, both).startswith(
        "files of different formats cannot be read together: 'csv' and 'json'\nhint: "
    )


def test_a_file_named_twice_is_rejected(tmp_path):
    path = text_file(tmp_path / "a.csv", "a\n1\n")
    assert error_message(FileError, [path, f"{tmp_path}/*.csv"]).startswith(f"file {str(path)!r} is named twice\nhint: ")
    other = tmp_path / "." / "sub" / ".." / path.name
    (tmp_path / "sub").mkdir()
    assert "is named twice" in error_message(FileError, [path, other])


def test_files_of_several_separators_are_rejected(tmp_path):
    both = [text_file(tmp_path / "1.csv", "a,b\n1,2\n"), text_file(tmp_path / "2.csv", "a;b\n1;2\n")]
    assert "files of different separators cannot be read together: ',' and ';'" in error_message(FileError, both)


@pytest.mark.parametrize("ending", ["parquet", "csv", "json", "csv.gz"])
def test_an_empty_file_is_rejected(ending, tmp_path):
    path = tmp_path / f"e.{ending}"
    path.touch()
    assert error_message(FileError, path) == f"file {str(path)!r} is empty\nhint: was it written to the end?"


@pytest.mark.parametrize("content", ["\n", "\n\n", "\na,b\n1,2\n", ",,\n1,2,3\n"])
def test_csv_without_a_header_is_rejected(content, tmp_path):
    assert "is blank\nhint: it must name the columns" in error_message(FileError, text_file(tmp_path / "h.csv", content))
    assert "is blank" in error_message(FileError, text_file(tmp_path / "h.csv.gz", content))


DAMAGED = {
    "cut.parquet": (b"PAR1" + b"x" * 100, "is it a complete Parquet file?"),
    "text.parquet": (b"a,b\n1,2\n" * 9, "is it a complete Parquet file?"),
    "short.csv": (b"a,b,c\n1,2,3\n4,5\n", "line 3 has 2 fields and the header has 3"),
    "long.csv": (b"a,b\n" + b"1,2\n" * 50_000 + b"3,4,5\n", "line 50002 has 3 fields and the header has 2"),
    "after.csv": (b'a,b\n1,"x\ny"\n2\n', "line 4 has 1 field and the header has 2"),
    "title.csv": (b"My table\na,b\n1,2\n", "line 2 has 2 fields and the header has 1"),
    "quote.csv": (b'a,b\n1,"x\n2,y\n', "cannot read"),
    "latin.csv": ("a,b\n1,é\n".encode("latin-1"), "it is not UTF-8 text"),
    "late.csv": (b"a,b\n" + b"1,x\n" * 50_000 + b"1,\xe9\n", "it is not UTF-8 text"),
    "wide.csv": ("a,b\n1,2\n".encode("utf-16"), "it is not UTF-8 text"),
    "cut.json": (b'[{"a": 1}, {"a"', "Malformed JSON"),
    "bad.jsonl": (b'{"a": 1}\nxx\n{"a": 2}\n', "Malformed JSON"),
    "numbers.json": (b"[1, 2, 3]", "non-record JSON"),
    "latin.json": (b'{"a": "\xe9"}', "Malformed JSON"),
}


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_file_is_rejected(name, tmp_path):
    content, fact = DAMAGED[name]
    path = text_file(tmp_path / name, content)
    message = error_message(FileError, path)
    assert message.startswith(f"cannot read {str(path)!r}: ")
    assert fact in message
    assert "\nhint: " in message
    assert not {"sample_size", "strict_mode", "ignore_errors", "LINE 1", "records='auto'"} & set(
        message.replace("(", " ").split()
    )


@pytest.mark.parametrize("ending", ["csv.gz", "json.gz"])
def test_a_damaged_archive_is_rejected(ending, tmp_path):
    full = gzip.compress(b"a,b\n1,2\n" * 1000 if "csv" in ending else b'{"a": 1}\n' * 1000)
    for content in (full[:-20], b"not an archive at all"):
        path = tmp_path / f"g.{ending}"
        path.write_bytes(content)
        action = "decompress" if "csv" in ending else "read"
        assert error_message(FileError, path).startswith(f"cannot {action} {str(path)!r}: ")


@pytest.mark.parametrize(
    ("query", "fact"),
    [
        ("selec 1", 'syntax error at or near "selec"'),
        ("SELECT 1 +", "syntax error"),
        ("SELECT nothing FROM range(3)", '"nothing" not found'),
        ("FROM nowhere", "Table with name nowhere does not exist"),
        ("FROM 'nowhere.parquet'", "No files found"),
        ("SELECT 'x'::INTEGER AS a", "Could not convert string 'x'"),
        ("SELECT error('stop') AS a", "stop"),
        ("SELECT ? AS a", "parameter"),
        ("CREATE TABLE t (a INTEGER)", "syntax error"),
        ("COPY (SELECT 1) TO 'never.csv'", "syntax error"),
        ("SELECT '\ud800' AS a", "surrogates"),
    ],
)
def test_an_invalid_query_is_rejected(query, fact, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = error_message(FileError, sql=query)
    assert message.startswith("cannot run the query: ")
    assert fact in message
    assert message.endswith(f"\nhint: {sql.HINTS['sql']}")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("query", ["", "  ;", "-- nothing"])
def test_an_empty_query_is_rejected(query):
    assert error_message(FileError, sql=query).startswith("the query is empty\nhint: ")


def test_a_file_without_read_permission_is_rejected(tmp_path, monkeypatch):
    path = text_file(tmp_path / "p.csv", "a\n1\n")

    def forbidden(self, *args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", forbidden)
    assert (
        error_message(FileError, path) == f"cannot read {str(path)!r}: Permission denied\nhint: check the permissions on it"
    )


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="pipes with a name are of Unix")
def test_a_pipe_is_rejected_without_waiting(tmp_path):
    os.mkfifo(tmp_path / "p.csv")
    assert "is not a file on disk" in error_message(FileError, tmp_path / "p.csv")


def test_invalid_arguments_are_rejected(tmp_path):
    assert error_message(ArgumentError).startswith("neither a file nor a query was given\nhint: ")
    assert error_message(ArgumentError, []).startswith("the list of files is empty\nhint: ")
    assert error_message(ArgumentError, [3]) == "a file is named by a text or a Path; got 3"
    for threads in (0, -1, 1.5, True, "2"):
        assert "threads must be an integer at least 1" in error_message(ArgumentError, sql="SELECT 1", threads=threads)


# The connection


def test_nothing_is_downloaded_or_left_behind(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    result = read_files(
        sql="""SELECT current_setting('autoinstall_known_extensions') AS installs, current_setting('threads') AS threads,
               current_setting('autoload_known_extensions') AS loads, current_setting('temp_directory') AS spill""",
        threads=3,
    )
    assert not result["installs"][0]
    assert not result["loads"][0]
    assert result["threads"].tolist() == [3]
    assert result["spill"].levels[0].startswith(str(tmp_path))
    error_message(FileError, sql="selec 1")
    assert not list(tmp_path.iterdir())


def test_parquet_and_json_are_built_into_duckdb():
    result = read_files(sql="SELECT extension_name AS name FROM duckdb_extensions() WHERE loaded")
    assert {"parquet", "json"} <= set(result["name"].levels)


def test_the_connection_is_closed_after_an_error(monkeypatch):
    opened = []
    monkeypatch.setattr(sql, "describe", lambda con, query: opened.append(con) or 1 / 0)
    with pytest.raises(ZeroDivisionError):
        read_files(sql="SELECT 1")
    with pytest.raises(duckdb.ConnectionException):
        opened[0].execute("SELECT 1")


def test_an_interrupted_query_raises_keyboard_interrupt(monkeypatch):
    def interrupted(*_):
        raise RuntimeError("Query interrupted")

    monkeypatch.setattr(sql, "fetch", interrupted)
    with pytest.raises(KeyboardInterrupt):
        read_files(sql="SELECT 1 AS a")
