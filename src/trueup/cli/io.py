"""Input and output of commands: columns and bins named on the command line, rows to read, files to write."""

from __future__ import annotations

import contextlib
import difflib
import glob
import json
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.cli.interrupts import unfinished
from trueup.data.columns import ColumnSource, RawColumn, open_mapping
from trueup.data.frame import read
from trueup.data.paths import FORMATS, find_files
from trueup.data.scan import scan
from trueup.data.sql import column_names, quote, read_files
from trueup.errors import ArgumentError, DataError
from trueup.storage import cannot_write, check_writable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Iterator, Sequence

    from trueup._types import FloatArray
    from trueup.data.scan import Scan
    from trueup.data.table import Table

STANDARD_OUTPUT = "-"
QUOTED = re.compile(r"'([^'\0]+)'|\"([^\"\0]+)\"")
MAX_LISTED_VALUES = 6


# InputColumns and bins


class InputColumns:
    """The columns of the input, to look up those named on the command line.

    Examples
    --------
    >>> columns = InputColumns(["y", "p", "b,c"])
    >>> columns.find_all(["b,c", "y, p"], "feature")
    ['b,c', 'y', 'p']
    """

    def __init__(self, known: Sequence[str]) -> None:
        self.known = list(known)
        self._source = ColumnSource(tuple(known), 0, lambda _: RawColumn("text"))

    def find(self, name: str, role: str) -> str:
        """Return the column with this name, or raise with the most similar name."""
        return str(self._source.find(name, role))

    def find_all(self, lists: Sequence[str], role: str) -> list[str]:
        """Return the columns of comma-separated lists; a text that is the name of a column is not split."""
        names = [name for text in lists for name in ([text] if text in self.known else split_names([text]))]
        return [self.find(name, role) for name in names]


def split_names(lists: Sequence[str]) -> list[str]:
    """Split lists at their commas.

    Examples
    --------
    >>> split_names(["a, b,", "c"])
    ['a', 'b', 'c']
    """
    return [name.strip() for text in lists for name in text.split(",") if name.strip()]


def parse_bins(specs: Sequence[str] | None) -> tuple[int | None, dict[str, Any]]:
    """Parse ``--bins``: a number for all columns, and the specifications of single columns.

    Edges stay text, because the type of the column determines whether they are numbers or dates.

    Examples
    --------
    >>> parse_bins(["20", "age=18:30:50", "opened=month", "income=5", "term=24:"])
    (20, {'age': ['18', '30', '50'], 'opened': 'month', 'income': 5, 'term': ['24']})
    """
    default: int | None = None
    by_column: dict[str, Any] = {}
    for spec in specs or ():
        name, equals, value = spec.rpartition("=")
        value = value.strip()
        if ":" in value:
            edges = [edge.strip() for edge in value.split(":") if edge.strip()]
            parsed: Any = edges or None
        else:
            parsed = int(value) if value.removeprefix("-").isdecimal() else value
        if parsed is None or parsed == "" or (not name and (equals or not isinstance(parsed, int))):
            raise ArgumentError(
                f"--bins {spec} is not a specification of bins",
                hint="write --bins 10, --bins age=18:30:50 or --bins opened=month",
            )
        if name:
            by_column[name] = parsed
        else:
            default = parsed
    return default, by_column


# Rows to read


def check_has_rows(arguments: argparse.Namespace) -> None:
    """Raise if the command names neither a file nor a query."""
    if not arguments.files and arguments.sql is None:
        raise ArgumentError("no FILE was named", hint="name files, or pass a query with --sql")


def check_positive(arguments: argparse.Namespace, prediction: Sequence[str]) -> None:
    """Raise if --positive is combined with a task whose outcomes are not binary."""
    if arguments.positive is None:
        return
    if arguments.task == "regression":
        raise ArgumentError(
            "--positive cannot be combined with --task regression",
            hint="leave --positive out for amounts",
        )
    if len(prediction) > 1:
        raise ArgumentError(
            "--positive needs exactly one prediction column", hint="for several classes name their outcomes with --classes"
        )


def check_spill(arguments: argparse.Namespace) -> None:
    """Raise if --spill is given without --memory."""
    if arguments.spill is not None and arguments.memory is None:
        raise ArgumentError("--spill needs --memory", hint="set the memory budget, such as --memory 2GB")


def find_columns(arguments: argparse.Namespace) -> InputColumns:
    """Return the columns of the files or the query."""
    return InputColumns(column_names(arguments.files or None, arguments.sql))


class _Roles(NamedTuple):
    outcome: str
    weight: str | None
    by: list[str] | None
    categorical: list[str]
    settings: dict[str, Any]


def _find_roles(arguments: argparse.Namespace, columns: InputColumns, features: Sequence[str] | None, role: str) -> _Roles:
    """Look up the columns of all roles except the prediction; ``role`` names the features in messages."""
    settings = {
        "task": arguments.task,
        "unlabelled": arguments.unlabelled,
        "classes": None if arguments.classes is None else split_names(arguments.classes),
    }
    return _Roles(
        outcome=columns.find(arguments.outcome, "outcome"),
        weight=None if arguments.weight is None else columns.find(arguments.weight, "weight"),
        by=None if features is None else columns.find_all(features, role),
        categorical=columns.find_all(arguments.categorical or [], "categorical"),
        settings=settings,
    )


@dataclass(frozen=True, eq=False)
class LoadedRows:
    """Rows in memory, from which a Table can be made for each of several predictions."""

    data: dict[str, Any]
    roles: dict[str, Any]
    features: list[str] | None

    def table(self, prediction: list[str]) -> Table:
        """Validate the rows with these columns as the prediction."""
        return read(self.data, prediction=prediction, features=self.features, **self.roles)


def load_rows(
    arguments: argparse.Namespace, columns: InputColumns, predictions: list[str], features: Sequence[str] | None, role: str
) -> LoadedRows:
    """Read the needed columns of the rows; no prediction forms segments unless it is named as a feature."""
    roles = _find_roles(arguments, columns, features, role)
    taken = [roles.outcome, *predictions, *([roles.weight] if roles.weight else [])]
    by, needed, categorical = roles.by, None, roles.categorical
    if by is not None:
        needed = list(dict.fromkeys([*taken, *by]))
        categorical = [name for name in categorical if name in needed]
    data: dict[str, Any] = read_files(
        arguments.files or None, sql=arguments.sql, columns=needed, text=categorical, threads=arguments.threads
    )
    if arguments.positive is not None:
        data = {**data, roles.outcome: encode_positive(data[roles.outcome], arguments.positive, roles.outcome)}
    if by is None and getattr(arguments, "against", None):
        by = [name for name in data if name not in taken]
    named = {"outcome": roles.outcome, "weight": roles.weight, "categorical": categorical}
    return LoadedRows(data, {**named, **roles.settings}, by)


def load_table(arguments: argparse.Namespace, features: Sequence[str] | None, role: str) -> Table:
    """Read and validate the needed columns; ``features`` are comma-separated lists, by default all other columns."""
    columns = find_columns(arguments)
    prediction = columns.find_all(arguments.prediction, "prediction")
    check_positive(arguments, prediction)
    return load_rows(arguments, columns, prediction, features, role).table(prediction)


def open_scan(
    arguments: argparse.Namespace, columns: InputColumns, predictions: list[str], features: Sequence[str] | None, role: str
) -> tuple[Scan, dict[str, Any]]:
    """Return a scan that reads the rows in chunks, and the roles of its columns except the prediction."""
    roles = _find_roles(arguments, columns, features, role)
    by = roles.by
    if by is None:
        by = [name for name in columns.known if name not in {roles.outcome, roles.weight, *predictions}]
    sql = arguments.sql if arguments.positive is None else _positive_query(arguments, roles.outcome)
    rows = scan(arguments.files or None, sql=sql, memory=arguments.memory, spill=arguments.spill, threads=arguments.threads)
    categorical = [name for name in roles.categorical if name in by]
    named = {"outcome": roles.outcome, "weight": roles.weight, "by": by, "categorical": categorical}
    return rows, {**named, **roles.settings}


def _positive_query(arguments: argparse.Namespace, outcome: str) -> str:
    """Write a query that encodes one outcome as 1, every other as 0, and keeps missing ones."""
    name, value = quote(outcome, '"'), quote(arguments.positive)
    inner = "data" if arguments.sql is None else f"(\n{arguments.sql.rstrip().rstrip(';')}\n)"
    text, not_text = f"CAST({name} AS VARCHAR)", f"NOT regexp_matches(typeof({name}), '^(VARCHAR|ENUM)')"
    near = f"coalesce(TRY_CAST({text} AS DOUBLE) = TRY_CAST({value} AS DOUBLE), false) OR {text} = lower({value})"
    same = f"{text} = {value} OR ({not_text} AND ({near}))"  # 1 is 1.0, and true True, unless the column is text
    known = f"{name} IS NOT NULL AND NOT ({not_text} AND {text} = 'nan')"
    return f"SELECT * REPLACE (CASE WHEN {known} THEN CAST({same} AS INTEGER) END AS {name}) FROM {inner}"  # noqa: S608


def encode_positive(column: Any, positive: str, name: str) -> FloatArray:
    """Encode an outcome: 1 for the positive value, 0 for every other, NaN where it is missing.

    Examples
    --------
    >>> encode_positive(np.array([2.0, 1.0, np.nan, 2.0]), "2", "y")
    array([ 1.,  0., nan,  1.])
    """
    raw = open_mapping({name: column}).fetch(name)
    coded = raw.categories()
    spellings = [positive, positive.lower()] if raw.kind == "flag" else [positive]
    code = next((coded.levels.index(value) for value in spellings if value in coded.levels), None)
    if code is None:
        similar = difflib.get_close_matches(positive, coded.levels, n=1, cutoff=0.5)
        listed = ", ".join(map(repr, coded.levels[:MAX_LISTED_VALUES]))
        listed += ", ..." if len(coded.levels) > MAX_LISTED_VALUES else ""
        raise DataError(
            f"no row has the outcome {positive!r} in column {name!r}",
            hint=f"did you mean {similar[0]!r}?" if similar else f"its values are {listed or 'all missing'}",
        )
    encoded: FloatArray = np.where(coded.codes < 0, np.nan, coded.codes == code)
    return encoded


def no_positive_rows(positive: str, outcome: str) -> DataError:
    """Return the error for rows read in chunks, none of which has the positive outcome."""
    return DataError(f"no labelled row has the outcome {positive!r} in column {outcome!r}", hint="check its spelling")


# Files to write


def source_files(arguments: argparse.Namespace) -> list[Path]:
    """Return the files that a command reads: those it names and those that its query names in quotes."""
    paths = list(find_files(arguments.files).paths) if arguments.files else []
    quoted = [os.path.expanduser(single or double) for single, double in QUOTED.findall(arguments.sql or "")]  # noqa: PTH111
    patterns = [name for name in quoted if name.lower().removesuffix(".gz").endswith(tuple(FORMATS))]  # '*' may be a text
    matches = [match for name in patterns for match in glob.glob(name, recursive=True)]  # noqa: PTH207
    return [*paths, *(Path(name) for name in (*filter(os.path.lexists, quoted), *matches))]


def check_outputs(outputs: Iterable[tuple[str | None, str]], sources: Iterable[str | Path]) -> None:
    """Raise before the work if a file cannot be written, is an input file, or would be written twice.

    ``outputs`` are pairs of a path and an example for the hint; None and standard output are skipped.
    """
    inputs = list(sources)
    seen: set[Path] = set()
    for path, example in outputs:
        if path is None or path == STANDARD_OUTPUT:
            continue
        check_writable(path, example=example)
        output = Path(path)
        with _raising_file_errors(output, example):
            same = any(output.exists() and Path(source).exists() and output.samefile(source) for source in inputs)
        if output.exists() and not output.is_file():
            raise ArgumentError(f"{path} is not a regular file", hint=f"name a file, such as {example}")
        if same:
            raise ArgumentError(f"{path} would overwrite an input file", hint=f"name another file, such as {example}")
        if output.resolve() in seen:
            raise ArgumentError(f"{path} would be written twice", hint="name another file")
        seen.add(output.resolve())


@contextlib.contextmanager
def replacing(path: str, *, example: str) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path`` at the end of the block, or is removed after an error.

    A symbolic link keeps pointing to its file, and a replaced file keeps its permissions.
    """
    target = Path(os.path.realpath(path))
    temporary = target.parent / f".trueup-{secrets.token_hex(8)}.tmp"
    unfinished.add(temporary)
    try:
        with _raising_file_errors(Path(path), example):
            mode = stat.S_IMODE(target.stat().st_mode) if target.exists() else None
            temporary.touch(mode=0o666 if mode is None else 0o600, exist_ok=False)
        yield temporary
        with _raising_file_errors(Path(path), example):
            if mode is not None:
                temporary.chmod(mode)
            with temporary.open("rb") as stream:
                os.fsync(stream.fileno())
            temporary.replace(target)
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
        unfinished.discard(temporary)


@contextlib.contextmanager
def _raising_file_errors(path: Path, example: str) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError) as error:
        raise cannot_write(path, error, example=example) from error


def to_json(data: dict[str, Any]) -> Iterator[str]:
    """Return plain data as strict, indented JSON."""
    yield json.dumps(data, allow_nan=False, ensure_ascii=False, indent=1)
    yield "\n"


def file_size(path: str | Path) -> str:
    """Return the size of a file with its unit.

    Examples
    --------
    >>> import os
    >>> file_size(os.devnull)
    '0 bytes'
    """
    size = float(Path(path).stat().st_size)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
