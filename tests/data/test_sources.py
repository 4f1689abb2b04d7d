"""Directories, partitions, compressed files, encodings, names that differ in case, and remote files."""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import re
from pathlib import Path
from typing import ClassVar

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import trueup as tu
from trueup.cluster.partitions import open_partitions
from trueup.data import sql
from trueup.data.chunks import add_columns, format_to_write
from trueup.data.columns import CodedColumn
from trueup.data.scan import InputFiles
from trueup.data.sql import column_names, read_files
from trueup.errors import ArgumentError, ColumnError, FileError

N = 60
ROWS = {"y": [0, 1] * (N // 2), "p": [0.25, 0.75] * (N // 2), "word": ["é", "é", "数"] * (N // 3)}


def lists(columns):
    """Return columns that were read as lists."""
    texts = {name: [*column.levels, None] for name, column in columns.items() if isinstance(column, CodedColumn)}
    return {
        name: [texts[name][code] for code in column.codes] if name in texts else column.tolist()
        for name, column in columns.items()
    }


def text_in(encoding, ending):
    """Return the rows as the bytes of a file."""
    frame = pl.DataFrame(ROWS)
    text = frame.write_csv() if ending == "csv" else frame.write_ndjson()
    return text.encode(encoding)


@pytest.fixture(params=["parquet", "csv", "jsonl"])
def partitioned(request, tmp_path):
    """Return a directory of Hive partitions, and the columns that are read from it."""
    root = tmp_path / "run=7"  # above the directory that is named: no column
    expected: dict[str, list] = {"a": [], "year": [], "month": [], "place": []}
    for row, (year, month, place) in enumerate([("2025", "12", "x y"), ("2026", "01", None), ("2026", "02", "z")]):
        value = "__HIVE_DEFAULT_PARTITION__" if place is None else place.replace(" ", "%20")
        directory = root / f"year={year}" / f"month={month}" / f"place={value}"
        directory.mkdir(parents=True)
        frame = pl.DataFrame({"a": [row, row + 10]})
        path = directory / f"part-0.{request.param}"
        {"parquet": frame.write_parquet, "csv": frame.write_csv, "jsonl": frame.write_ndjson}[request.param](path)
        for name, item in {"year": int(year), "month": int(month), "place": place}.items():
            expected[name] += [item] * 2
        expected["a"] += [row, row + 10]
    (root / "_SUCCESS").touch()
    (root / ".part-0.crc").touch()
    return root, expected


def test_partition_columns_are_read_from_the_names_of_directories(partitioned):
    root, expected = partitioned
    assert lists(read_files(root)) == expected
    assert column_names(root) == list(expected)
    assert lists(read_files(str(root / "*" / "*" / "*" / "part-*"))) == expected
    assert list(read_files(next(root.rglob("part-*")))) == ["a"]  # a single file has no partitions
    assert lists(read_files(root, columns=["month"], text=["month"])) == {"month": ["12", "12", "01", "01", "02", "02"]}
    assert lists(read_files(root, sql="SELECT sum(a) AS s FROM data WHERE year = 2026"))["s"] == [26]


def test_partition_columns_are_read_in_chunks_and_written(partitioned, tmp_path):
    root, expected = partitioned
    query = "SELECT *, a % 2 AS y, 0.5 AS p FROM data"
    for scan in (tu.scan(root), tu.scan(root, sql=query)):
        roles = {"outcome": "a", "prediction": "month", "task": "regression", "features": ["year", "place"]}
        with open_partitions(scan, **roles) as partitions:
            tables = list(partitions.iter_tables())
        assert np.concatenate([table.columns["year"] for table in tables]).tolist() == expected["year"]
        assert np.concatenate([table.prediction for table in tables]).tolist() == expected["month"]
    target = tmp_path / "out.parquet"
    add_columns(root, target, lambda columns: {"new": columns["month"] * 2.0}, roles={"feature": ["month"]},
                written=format_to_write(target))  # fmt: skip
    written = pl.read_parquet(target)
    assert written["new"].to_list() == [2.0 * month for month in expected["month"]]
    assert written["place"].to_list() == expected["place"]


def test_dates_of_directories_are_dates(tmp_path):
    for day in ("2026-01-31", "2026-02-01"):
        (tmp_path / f"day={day}").mkdir()
        pl.DataFrame({"a": [1]}).write_parquet(tmp_path / f"day={day}" / "f.parquet")
    days = read_files(tmp_path)["day"].astype("datetime64[D]").tolist()
    assert days == [dt.date(2026, 1, 31), dt.date(2026, 2, 1)]


def test_directories_that_disagree_are_rejected(tmp_path):
    for folder in ("year=2025", "month=1"):
        (tmp_path / "mixed" / folder).mkdir(parents=True)
        pl.DataFrame({"a": [1]}).write_parquet(tmp_path / "mixed" / folder / "f.parquet")
    with pytest.raises(FileError, match=r"stand for different columns: month in .*, year in"):
        read_files(tmp_path / "mixed")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FileError, match="has no files"):
        read_files(tmp_path / "empty")
    above = tmp_path / "a=5" / "year=2025"
    above.mkdir(parents=True)
    pl.DataFrame({"a": [1]}).write_parquet(above / "f.parquet")
    with pytest.raises(FileError, match=r"column 'a' of .* has the name of a directory above them"):
        read_files(tmp_path / "a=5")


def test_the_format_can_be_named(tmp_path):
    (tmp_path / "part-00000").write_text("a;b\n1;x\n")
    assert lists(read_files(InputFiles(tmp_path, "csv"))) == {"a": [1], "b": ["x"]}
    with pytest.raises(FileError, match=r"has a file of an unknown format: 'part-00000'"):
        read_files(tmp_path)
    with pytest.raises(FileError, match=r"or name the format, as format=\"csv\""):
        read_files(tmp_path / "part-00000")
    with pytest.raises(ArgumentError, match="format must be one of"):
        tu.scan(tmp_path, format="xml")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("compression", ["", ".gz", ".bz2", ".zst"])
def test_compressed_files_are_read(ending, compression, tmp_path):
    path = tmp_path / f"rows.{ending}{compression}"
    content = text_in("utf-8", ending)
    if compression == ".zst":
        pl.DataFrame(ROWS).write_parquet(tmp_path / "rows.parquet")
        kind = "csv, HEADER" if ending == "csv" else "json"
        with duckdb.connect() as con:
            con.execute(f"COPY (FROM '{tmp_path}/rows.parquet') TO '{path}' (FORMAT {kind}, COMPRESSION zstd)")
    else:
        path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[compression](content))
    assert lists(read_files(path)) == ROWS
    with open_partitions(tu.scan(path), outcome="y", prediction="p") as partitions:
        (table,) = partitions.iter_tables()
    assert table.y.tolist() == ROWS["y"]
    assert partitions.schema.features[0].levels == ("é", "数")


@pytest.mark.parametrize("ending", ["csv", "jsonl"])
@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig", "utf-32", "gb18030"])
@pytest.mark.parametrize("compression", ["", ".gz", ".bz2"])
def test_other_encodings_are_read(ending, encoding, compression, tmp_path):
    path = tmp_path / f"rows.{ending}{compression}"
    path.write_bytes({"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress}[compression](text_in(encoding, ending)))
    assert lists(read_files(InputFiles(path, encoding=encoding))) == ROWS


def test_copies_are_made_in_the_spill_directory_and_deleted(tmp_path, monkeypatch):
    (tmp_path / "rows.csv").write_bytes(text_in("utf-16", "csv"))
    spill = tmp_path / "spill"
    spill.mkdir()
    copies = []
    copy = sql.copy_for_duckdb
    monkeypatch.setattr(
        sql, "copy_for_duckdb", lambda files, directory: copies.append(copy(files, directory)) or copies[-1]
    )
    audit = tu.audit(
        tu.scan(tmp_path / "rows.csv", encoding="utf-16", spill=spill), outcome="y", prediction="p", by=["word"]
    )
    assert len(audit) == 3
    (files,) = copies
    assert all(path.is_relative_to(spill) for path in files.paths)
    assert list(spill.iterdir()) == []


@pytest.mark.parametrize(
    ("encoding", "message"),
    [
        (None, r"is not UTF-8 text\nhint: name its encoding, as encoding=\"utf-16\""),
        ("utf-32", "is not utf-32 text"),
        ("klingon", "encoding 'klingon' is not known"),
        ("rot13", "encoding 'rot13' is not known"),
    ],
)
def test_a_wrong_encoding_is_rejected(encoding, message, tmp_path):
    (tmp_path / "rows.csv").write_bytes(text_in("utf-16", "csv"))
    with pytest.raises((FileError, ArgumentError), match=message):
        read_files(InputFiles(tmp_path / "rows.csv", encoding=encoding))


def test_encodings_that_cannot_be_applied_are_rejected(tmp_path):
    pl.DataFrame(ROWS).write_parquet(tmp_path / "rows.parquet")
    with pytest.raises(ArgumentError, match="encoding is for CSV and JSON"):
        read_files(InputFiles(tmp_path / "rows.parquet", encoding="latin-1"))
    (tmp_path / "rows.csv.zst").write_bytes(b"\x28\xb5\x2f\xfd")
    with pytest.raises(FileError, match="is compressed with zstd, and can only be read as it is"):
        read_files(InputFiles(tmp_path / "rows.csv.zst", encoding="latin-1"))
    with pytest.raises(FileError, match="cannot tell the format of"):
        format_to_write("out.csv.bz2")


def test_a_link_to_nothing_is_named(tmp_path):
    (tmp_path / "rows.csv").symlink_to(tmp_path / "gone.csv")
    for path in (tmp_path / "rows.csv", str(tmp_path / "*.csv"), tmp_path):
        with pytest.raises(FileError, match=r"rows.csv' is a link to .*gone.csv', which does not exist"):
            read_files(path)


@pytest.mark.parametrize("compress", [gzip.compress, bz2.compress])
def test_damaged_archives_are_named(compress, tmp_path):
    full = bytearray(compress(text_in("utf-8", "csv") * 50))
    path = tmp_path / f"rows.csv.{compress.__module__.replace('gzip', 'gz')}"
    for content in (full[: len(full) // 2], b"y,p\n1,0.5\n"):
        path.write_bytes(bytes(content))
        with pytest.raises(FileError, match=f"cannot decompress {re.escape(repr(str(path)))}"):
            read_files(path)


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl"])
def test_names_that_differ_in_case_are_rejected_only_if_they_are_used(ending, tmp_path):
    path = tmp_path / f"rows.{ending}"
    if ending == "parquet":
        pq.write_table(pa.table({"a": [1], "A": [2], "b": [3]}), path)
    else:
        path.write_text("a,A,b\n1,2,3\n" if ending == "csv" else '{"a": 1, "A": 2, "b": 3}\n')
    assert lists(read_files(path, columns=["b"])) == {"b": [3]}
    with pytest.raises(ColumnError, match=r"column 'a' appears more than once in .*: names differ only in case"):
        read_files(path, columns=["a"])
    make = lambda columns: {"new": columns["b"] * 2.0}  # noqa: E731
    target, roles = tmp_path / "out.parquet", {"feature": ["b"]}
    add_columns(path, target, make, roles=roles, written=format_to_write(target), only=True)
    assert pl.read_parquet(target)["new"].to_list() == [6.0]
    with pytest.raises(ColumnError, match="write the corrected scores alone, as only=True"):
        add_columns(path, target, make, roles=roles, written=format_to_write(target))


def test_text_scores_in_chunks_are_named_with_their_row(tmp_path):
    frame = pl.DataFrame({**ROWS, "p": ["0.5"] * (N - 1) + ["high"]})
    frame.write_csv(path := tmp_path / "rows.csv")
    with pytest.raises(ValueError, match="got text such as 'high' at row 59"):
        tu.audit(tu.scan(path), outcome="y", prediction="p")


def test_outcomes_that_are_all_missing_are_named(tmp_path):
    frame = pl.DataFrame({**ROWS, "y": [None] * N})
    message = "outcome column 'y' has no values: it is missing in all 60 rows"
    frame.write_csv(path := tmp_path / "rows.csv")
    for data in (frame, frame.with_columns(y=pl.lit(np.nan)), tu.scan(path)):
        with pytest.raises(ValueError, match=message):
            tu.audit(data, outcome="y", prediction="p")


def test_a_query_that_needs_too_much_memory_says_so():
    with (
        pytest.raises(FileError, match=r"not enough memory to run the query.*\nhint: name fewer columns, .*memory=\"2GB\""),
        sql.duckdb_errors(None),
    ):
        raise duckdb.OutOfMemoryException("Out of Memory Error: failed to allocate")


# Remote files


@pytest.fixture
def bucket(monkeypatch):
    """Let DuckDB read s3:// from a file system in memory, as if its extension were installed."""
    memory = pytest.importorskip("fsspec.implementations.memory").MemoryFileSystem

    class Bucket(memory):
        protocol = "s3"
        store: ClassVar[dict] = {}
        pseudo_dirs: ClassVar[list] = [""]

        @classmethod
        def _strip_protocol(cls, path):
            return "/" + path.removeprefix("s3://").strip("/")

        def unstrip_protocol(self, name):
            return f"s3://{name.lstrip('/')}"

    files = Bucket(skip_instance_cache=True)
    monkeypatch.setattr(sql, "_load_httpfs", lambda con, _: con.register_filesystem(files))
    return files


@pytest.mark.parametrize("ending", ["parquet", "csv", "jsonl", "csv.gz"])
def test_remote_files_are_read(ending, bucket, tmp_path):
    frame, path = pl.DataFrame(ROWS), tmp_path / f"rows.{ending}"
    if ending == "parquet":
        frame.write_parquet(path)
    else:
        content = text_in("utf-8", ending.split(".")[0])
        path.write_bytes(gzip.compress(content) if ending.endswith("gz") else content)
    with bucket.open(f"s3://b/rows.{ending}", "wb") as file:
        file.write(path.read_bytes())
    assert lists(read_files(f"s3://b/rows.{ending}")) == ROWS
    audit = tu.audit(tu.scan(f"s3://b/rows.{ending}"), outcome="y", prediction="p")
    assert audit.overall.n == N


def test_remote_files_that_cannot_be_read_as_they_are_are_rejected(bucket):
    for files in (InputFiles("s3://b/rows.csv", encoding="latin-1"), "s3://b/rows.csv.bz2"):
        with pytest.raises(FileError, match="is a remote file, and can only be read as it is"):
            read_files(files)
    with pytest.raises(FileError, match="remote and local files cannot be read together"):
        read_files(["s3://b/rows.csv", __file__])


def test_nothing_is_installed_for_remote_files(monkeypatch):
    monkeypatch.setattr(sql, "HTTPFS", "no such extension")
    with pytest.raises(FileError, match=r"cannot read 'https://h/rows.csv': DuckDB's extension httpfs.* is not installed"):
        read_files("https://user:secret@h/rows.csv?sig=1")
    assert not list(Path.home().glob(".duckdb/extensions/**/no such extension*"))
