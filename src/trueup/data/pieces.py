"""Files larger than memory: rows in pieces, in the order of the files, with one schema for all of them."""

# ruff: noqa: S608  Columns are called c0, r0, ... in SQL, and what a user or a file says goes through quote.

from __future__ import annotations

import contextlib
import tempfile
import warnings
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data import features as feature_checks
from trueup.data.checks import class_names, part_of_rows, some_rows
from trueup.data.columns import FLAG_LEVELS, Coded, from_array, merge_texts
from trueup.data.files import (
    IS_NAN,
    Rows,
    choose,
    connect,
    find_names,
    open_rows,
    quote,
    refuse_gaps,
    several,
    telling,
)
from trueup.data.intake import read
from trueup.data.ranges import has_ranges, parquet_range, piece_of, read_range
from trueup.data.scan import OURS
from trueup.data.schema import Feature, Schema, sort_levels
from trueup.errors import ArgumentError, ColumnError, DataError, FileError, HardPredictionWarning, OneClassWarning

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup._types import FloatArray
    from trueup.data.scan import Scan
    from trueup.data.table import Table

SMALLEST_PIECE, LARGEST_PIECE = 50_000, 4_000_000  # rows
BYTES_A_LEVEL = 800  # of a text, its label and its numbers, and of what sorts them
MOST_OUTCOMES = 10_000  # of several classes


@dataclass(frozen=True, eq=False)
class Opened:
    """Rows that are open: their schema, and a way to go through them, as often as needed."""

    con: Any
    scan: Scan
    folder: Path
    files: tuple[tuple[str, int], ...]
    """The SQL of each file, its columns named c0, c1, ... and its row numbers ``place``; and how many rows it has."""
    plain: dict[str, str]
    texts: dict[str, str]
    words: dict[str, Coded]
    """For each column of texts its levels, and the code of every word by its number; the last is for no word."""
    roles: dict[str, Any]
    schema: Schema
    left_out: dict[str, str] = field(default_factory=dict)
    kinds: dict[str, str] = field(default_factory=dict)
    """The kinds that NumPy gives to the columns of values: a float may be NaN, which is missing as well."""

    @cached_property
    def rows(self) -> int:
        """Rows of the files, those that are set aside included."""
        return sum(rows for _, rows in self.files)

    @property
    def room(self) -> int:
        """Bytes that rows may take at once."""
        return max(self.scan.memory - OURS, 50 * 10**6) // 2

    @property
    def piece(self) -> int:
        """Rows of a piece."""
        width = 3 * 8 * (len(self.plain) + len(self.texts) + 4)
        rows = int(np.clip(self.room // (2 * width), SMALLEST_PIECE, LARGEST_PIECE))
        return rows // SMALLEST_PIECE * SMALLEST_PIECE  # `engines.here` cuts them in parts of that many

    def spans(self) -> Iterator[tuple[int, str, int, int]]:
        """Cut the files into pieces: where each begins among all rows, its SQL, and its first and last row there."""
        before = 0
        for source, rows in self.files:
            for start in range(0, rows, self.piece):
                yield before + start, source, start, min(start + self.piece, rows)
            before += rows

    def tables(self) -> Iterator[Table]:
        """Read piece after piece, checked."""
        roles = {**self.roles, "features": [feature.name for feature in self.schema.features]}
        for first, source, start, stop in self.spans():
            data = self._fetch(source, start, stop)
            with part_of_rows(first), warnings.catch_warnings():
                # These speak of all rows: `audits.large` asks them of all.
                for kind in (HardPredictionWarning, OneClassWarning):
                    warnings.simplefilter("ignore", kind)
                table = read(data, **roles, schema=self.schema)
            yield replace(table, schema=replace(self.schema, classes=table.schema.classes))

    def _fetch(self, source: str, start: int, stop: int) -> dict[str, Any]:
        """Read the rows of a range; texts as codes, by the words of all rows."""
        piece = piece_of(source, start, stop, self.plain, self.texts)
        with telling(None, "read a piece of the rows"):
            found = read_range(self.con, piece, stop - start, len(self.plain), len(self.texts), -1)
        out: dict[str, Any] = {name: found[f"r{at}"] for at, name in enumerate(self.plain)}
        for at, (name, words) in enumerate(self.words.items()):
            out[name] = Coded(words.codes[found[f"t{at}"]], words.levels)
        return out

    @cached_property
    def kept(self) -> str:
        """Say in SQL which rows are not set aside."""
        weight, present = self.roles["weight"], f"NOT ({self._absent(self.roles['outcome'])})"
        if self.kinds.get(weight, "M") not in "iufb":  # of none, or one that is refused when it is read
            return present
        return f"{present} AND CAST({self.plain[weight]} AS DOUBLE) > 0"

    def _absent(self, name: str) -> str:
        sql = (self.plain | self.texts)[name]
        return f"{sql} IS NULL OR {IS_NAN.format(sql)}" if self.kinds.get(name) == "f" else f"{sql} IS NULL"

    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Read one column of numbers or dates, of rows not set aside; say whether it is whole.

        Of very many rows evenly spread ones are read, as many as memory holds.
        """
        every = -(-self.rows // max(self.room // 40, SMALLEST_PIECE))
        parts, before = [], 0
        for source, rows in self.files:
            # By a hash: rows that come in turns, as one an hour, would else all be of one kind.
            some = f" AND hash(place + {before}) % {every} = 0" if every > 1 else ""
            parts.append(self._numbers(self.plain[name], source, f"{self.kept}{some}"))
            before += rows
        return np.concatenate(parts), every == 1

    def distinct(self, name: str, most: int, *, days: bool = False) -> FloatArray:
        """Give the distinct values of a column of numbers or dates, of rows not set aside; NaN if one is missing.

        Of more than ``most`` some are given, more than that. ``days`` rounds dates down to whole days.
        """
        sql = f"date_trunc('day', {self.plain[name]})" if days else self.plain[name]
        parts = []
        for source, _ in self.files:
            inner = f"(SELECT DISTINCT {sql} AS c0 FROM {source} WHERE {self.kept} LIMIT {most + 3})"
            parts.append(self._numbers("c0", inner, "true"))
        return np.unique(np.concatenate(parts))

    def _numbers(self, sql: str, source: str, where: str) -> FloatArray:
        with telling(None, "read a column"):
            found = self.con.execute(f"SELECT {sql} AS r0 FROM {source} WHERE {where}").fetchnumpy()["r0"]
        values: FloatArray = from_array(found, "values").codes_or_values
        return values

    @cached_property
    def whole_outcomes(self) -> bool:
        """Whether every outcome is 0 or 1, or a class."""
        if self.schema.task == "multiclass" or self.roles["outcome"] not in self.plain:
            return self.schema.task == "multiclass"
        sql = f"CAST({self.plain[self.roles['outcome']]} AS DOUBLE)"
        return not self._some(f"{sql} NOT IN (0, 1)")

    def lacks(self, name: str) -> bool:
        """Say whether some row that is not set aside has no value in a column."""
        return self._some(self._absent(name))

    def _some(self, condition: str) -> bool:
        """Say whether something is so of some row that is not set aside."""
        with telling(None, "read a column"):
            return any(
                self.con.execute(f"SELECT 1 FROM {source} WHERE {self.kept} AND ({condition}) LIMIT 1").fetchall()
                for source, _ in self.files
            )


@contextlib.contextmanager
def open_scan(
    given: Scan,
    *,
    outcome: str,
    prediction: str | Sequence[str],
    weight: str | None = None,
    features: Sequence[str] | str | None = None,
    task: str = "auto",
    categorical: Sequence[str] | str = (),
    unlabelled: str = "error",
    classes: Sequence[Any] | None = None,
) -> Iterator[Opened]:
    """Open the rows of a scan: settle their columns, and number the texts of all rows; what is written goes at the end."""
    scores, taken = _roles(outcome, prediction, weight)
    named = [name for name in several(categorical) if name not in taken]
    roles = {
        "outcome": outcome, "prediction": prediction if isinstance(prediction, str) else list(scores), "weight": weight,
        "task": task, "categorical": named, "unlabelled": unlabelled, "classes": classes,
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(spill_folder(given.spill)))
        con = stack.enter_context(connect(given.threads, memory=max(given.memory // 3, 120 * 10**6), spill=folder))
        rows = open_rows(con, given.paths, given.sql, named, role="categorical")
        for name, role in taken.items():
            find_names(rows.names, [name], role)
        chosen = None if features is None else find_names(rows.names, several(features), "feature")
        plain, texts = choose(rows, None if chosen is None else [*dict.fromkeys((*taken, *chosen))], named)
        order = [name for name in rows.names if name in plain or name in texts]
        with telling(rows.files):
            refuse_gaps(con, rows.files, [*plain, *texts])
            files, plain, texts = _settle(con, rows, plain, texts, folder)
        some_rows(sum(count for _, count in files))
        opened = Opened(con, given, folder, files, plain, texts, {}, roles, Schema("binary", None, (), None, ()))
        yield _described(opened, [name for name in order if name not in taken] if chosen is None else chosen)


def _roles(outcome: str, prediction: str | Sequence[str], weight: str | None) -> tuple[tuple[str, ...], dict[str, str]]:
    """Give the names of the predictions, and the role of every column that has one; each is named, and has one."""
    given = {"outcome": [outcome], "prediction": prediction, "weight": [] if weight is None else [weight]}
    taken: dict[str, str] = {}
    for role, names in given.items():
        for name in several(names) if isinstance(names, (str, list, tuple)) else [names]:
            if not isinstance(name, str):
                raise ArgumentError(
                    f"the {role} must be the name of a column of the files; got {type(name).__name__}",
                    hint="values can be given where rows are in memory",
                )
            if name in taken:
                told = f"named twice as {role}" if taken[name] == role else f"named both as {taken[name]} and as {role}"
                raise ColumnError(f"column {name!r} is {told}", hint="a column has one role")
            taken[name] = role
    return tuple(name for name, role in taken.items() if role == "prediction"), taken


@contextlib.contextmanager
def spill_folder(spill: Path | None) -> Iterator[str]:
    """Make a folder of our own for what does not fit."""
    try:
        made = tempfile.TemporaryDirectory(prefix="trueup-", dir=spill, ignore_cleanup_errors=True)
    except OSError as error:
        raise FileError(f"cannot write to {spill}: {error.strerror}", hint="name another folder to spill to") from error
    with made as name:
        yield name


def _settle(
    con: Any, rows: Rows, plain: dict[str, str], texts: dict[str, str], folder: Path
) -> tuple[tuple[tuple[str, int], ...], dict[str, str], dict[str, str]]:
    """Write the rows of each file as SQL that can be read by ranges; what is no Parquet is copied to such a file."""
    if has_ranges(rows):
        assert rows.files is not None
        return tuple(parquet_range(con, rows, path, {*plain, *texts}) for path in rows.files.paths), plain, texts
    path = folder / "rows.parquet"
    every = [*plain.items(), *texts.items()]
    listed = ", ".join(f"{sql} AS c{at}" for at, (_, sql) in enumerate(every))
    con.execute(f"COPY (SELECT {listed} FROM {rows.table}) TO {quote(str(path))} (FORMAT parquet, COMPRESSION snappy)")
    at = {name: f"c{place}" for place, (name, _) in enumerate(every)}
    source = f"(SELECT *, file_row_number AS place FROM read_parquet({quote(str(path))}, file_row_number = true))"
    count = int(con.execute(f"SELECT count(*) FROM read_parquet({quote(str(path))})").fetchall()[0][0])
    return ((source, count),), {name: at[name] for name in plain}, {name: at[name] for name in texts}


def _described(opened: Opened, chosen: Sequence[str]) -> Opened:
    """Number the texts of all rows, and say what each column is: by its type, which is that of all rows."""
    source, rows = opened.files[0]
    first = replace(opened, texts={})._fetch(source, 0, min(rows, 1000))
    opened = replace(opened, kinds={name: np.ma.getdata(column).dtype.kind for name, column in first.items()})
    words, left_out = _number(opened, chosen)
    opened = replace(opened, words=words, texts={name: opened.texts[name] for name in words})
    features = [_feature(name, first.get(name, words.get(name))) for name in chosen if name not in left_out]
    roles = dict(opened.roles)
    scores = several(roles["prediction"])
    kind: Any = "multiclass" if len(scores) > 1 else "regression" if roles["task"] == "regression" else "binary"
    if kind == "multiclass":
        roles["classes"] = class_names(_outcomes(opened), scores, roles["classes"])
    schema = Schema(kind, roles["outcome"], scores, roles["weight"], tuple(features))
    return replace(opened, roles=roles, schema=schema, left_out=left_out)


def _outcomes(opened: Opened) -> tuple[str, ...]:
    """List the outcomes of all rows, as categories; of very many some."""
    name = opened.roles["outcome"]
    if name in opened.words:
        return opened.words[name].levels
    found: set[str] = set()
    for source, _ in opened.files:
        with telling(None, "read a column"):
            query = f"SELECT DISTINCT {opened.plain[name]} AS r0 FROM {source} LIMIT {MOST_OUTCOMES}"
            found.update(from_array(opened.con.execute(query).fetchnumpy()["r0"], name).categories().levels)
    return sort_levels(found)


def _feature(name: str, column: Any) -> Feature:
    if isinstance(column, Coded):
        return Feature(name, "categorical", column.levels)
    raw = from_array(column, name)
    if raw.kind == "flag":
        return Feature(name, "categorical", FLAG_LEVELS)
    return Feature(name, "date" if raw.kind == "date" else "numeric")


def _number(opened: Opened, chosen: Sequence[str]) -> tuple[dict[str, Coded], dict[str, str]]:
    """Number the texts of every column in all files; leave out identifiers, whose texts may be more than memory holds."""
    words: dict[str, Coded] = {}
    left_out = {}
    for name, sql in opened.texts.items():
        table = f"words{len(words)}"
        is_outcome = name == opened.roles["outcome"]  # its classes are those of all rows
        where = f"{sql} IS NOT NULL" + ("" if is_outcome else f" AND {opened.kept}")
        union = " UNION ALL ".join(f"SELECT {sql} AS word FROM {source} WHERE {where}" for source, _ in opened.files)
        with telling(None, "number the texts of a column"):
            query = f"SELECT word, count(*) AS times FROM ({union}) GROUP BY word"
            opened.con.execute(f"CREATE OR REPLACE TEMP TABLE counted AS {query}")
            counted = opened.con.execute("SELECT count(*), coalesce(sum(times), 0) FROM counted").fetchall()[0]
        levels, known = map(int, counted)
        if name in chosen and (reason := feature_checks.identifier(name, levels, known)) is not None:
            left_out[name] = reason
            continue
        if levels * BYTES_A_LEVEL > opened.scan.memory:
            raise DataError(
                f"column {name!r} has {levels:,} levels, more than {opened.scan.memory / 1e9:.3g} GB hold",
                hint="leave it out, or allow more memory",
            )
        words[name] = _words(opened, table)
    opened.con.execute("DROP TABLE IF EXISTS counted")
    return words, left_out


def _words(opened: Opened, table: str) -> Coded:
    """Number the words that were counted; the code of each is at its number, and the last is for no word."""
    with telling(None, "number the texts of a column"):
        code = "CAST(row_number() OVER (ORDER BY word) - 1 AS INTEGER)"
        opened.con.execute(f"CREATE TEMP TABLE {table} AS SELECT word, {code} AS code FROM counted")
        words = opened.con.execute(f"SELECT word FROM {table} ORDER BY code").fetchnumpy()["word"].tolist()
    numbers = np.append(np.arange(len(words), dtype=np.int32), np.int32(-1))
    return Coded(numbers, tuple(words)) if sort_levels(words) == tuple(words) else merge_texts(numbers, words)
