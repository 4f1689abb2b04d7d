"""Input and output of commands: columns and bins named on the command line, rows to read, files to write."""

from __future__ import annotations

import contextlib
import difflib
import glob
import json
import os
import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.cli import console
from trueup.cli.options import PRIOR
from trueup.data.bins import DEFAULT_BINS
from trueup.data.chunks import add_columns, format_to_write
from trueup.data.columns import ColumnSource, RawColumn, open_mapping
from trueup.data.encodings import check_encoding
from trueup.data.frame import read
from trueup.data.identifiers import unread_reason, warn_of_unread
from trueup.data.sampling import reject_sampling
from trueup.data.scan import FORMATS, Files, InputFiles, RemoteFile, Scan, find_files, scan, without_compression
from trueup.data.sources import copy_for_duckdb, spool
from trueup.data.spill import temporary_directory
from trueup.data.sql import describe_columns, quote, read_files
from trueup.data.table import HELD_OUT_SUFFIX
from trueup.errors import ArgumentError, DataError, FileError
from trueup.storage import cannot_write, check_writable, replacing, write_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from trueup._types import FloatArray
    from trueup.data.chunks import MakeColumns
    from trueup.data.table import Table

STANDARD_OUTPUT = "-"
STANDARD_INPUT = ("-", "/dev/stdin")
QUOTED = re.compile(r"'([^'\0]+)'|\"([^\"\0]+)\"")
MAX_LISTED_VALUES = 6


# Rows and bins


class InputRows:
    """Rows of the files or query of a command, or of the files ``paths``: finds columns by name, and reads them."""

    def __init__(self, arguments: argparse.Namespace, paths: Sequence[str] | None = None) -> None:
        self._arguments = arguments
        self._paths = input_files(arguments, arguments.files if paths is None else paths)
        self._sql: str | None = arguments.sql if paths is None else None
        self._errors = describe_columns(self._paths, self._sql)
        self.columns = list(self._errors)
        self._source = ColumnSource(tuple(self.columns), 0, lambda _: RawColumn("text"))

    def find(self, name: str, role: str) -> str:
        """Return the column with this name; else raise with the most similar one and the ``role`` it was needed for."""
        return str(self._source.find(name, role))

    def find_optional(self, name: str | None, role: str) -> str | None:
        """Return the column with this name, or None if no name was given."""
        return None if name is None else self.find(name, role)

    def find_all(self, lists: Sequence[str] | None, role: str) -> list[str]:
        """Return the columns of comma-separated lists; a text that is the name of a column is not split."""
        names = [name for text in lists or () for name in ([text] if text in self.columns else split_names([text]))]
        return [self.find(name, role) for name in names]

    def find_prediction(self) -> list[str]:
        """Return the prediction columns; raise if --positive is given and the outcome is not binary."""
        prediction = self.find_all(self._arguments.prediction, "prediction")
        if self._arguments.positive is not None and self._arguments.task == "regression":
            raise ArgumentError("--positive and --task regression cannot be combined", hint="leave --positive out")
        if self._arguments.positive is not None and len(prediction) > 1:
            hint = "for several classes name their outcomes with --classes"
            raise ArgumentError("--positive needs exactly one prediction column", hint=hint)
        return prediction

    def _find_roles(self, features: Sequence[str] | None, role: str) -> dict[str, Any]:
        """Return columns by role, without the prediction (features as "by"), and settings; ``role`` is for messages."""
        arguments = self._arguments
        for_labelled = getattr(arguments, "labelled", None) is not None  # the outcome is a column of those rows
        excluded = {"exclude": self.find_all(arguments.exclude, "excluded column")} if hasattr(arguments, "exclude") else {}
        logits = {"logits": True} if getattr(arguments, "logits", False) else {}
        return {
            **excluded,
            **logits,
            "outcome": self.find_optional(None if for_labelled else arguments.outcome, "outcome"),
            "weight": self.find_optional(arguments.weight, "weight"),
            "cluster": self.find_optional(getattr(arguments, "cluster", None), "cluster"),
            "by": None if features is None else self.find_all(features, role),
            "categorical": self.find_all(arguments.categorical, "categorical"),
            "task": arguments.task,
            "unlabelled": arguments.unlabelled,
            "classes": None if arguments.classes is None else split_names(arguments.classes),
            **self._find_sampling(),
        }

    def _find_sampling(self) -> dict[str, Any]:
        """Return the shares of --sampling, if these rows are a sample: for --method prior those of the score are."""
        text = getattr(self._arguments, "sampling", None)
        is_prior = getattr(self._arguments, "method", None) == PRIOR
        return {} if text is None or is_prior else {"sampling": parse_sampling(text)}

    def read(
        self,
        names: Sequence[str | None] | None,
        text: list[str],
        outcome: str | None = None,
        *,
        identifiers: bool = False,
        all_rows: bool = True,
    ) -> dict[str, Any]:
        """Read the columns ``names``, or all for None, those in ``text`` as text; ``outcome`` is encoded by --positive.

        With ``identifiers``, other columns that are named like identifiers are read as well. Unless these are ``all_rows``,
        none need have the positive outcome.
        """
        needed = None if names is None else list(dict.fromkeys(name for name in names if name is not None))
        threads, positive = self._arguments.threads, getattr(self._arguments, "positive", None)
        data: dict[str, Any] = read_files(
            self._paths, sql=self._sql, columns=needed, text=text, threads=threads, identifiers=identifiers
        )
        if outcome is None or positive is None:
            return data
        return {**data, outcome: encode_positive(data[outcome], positive, outcome, needed=all_rows)}

    def load(self, predictions: list[str], features: Sequence[str] | None, role: str) -> Callable[..., Table]:
        """Read the needed columns once; return a function that makes a Table with some of the columns ``predictions``.

        Its second argument is a column of weights to use instead of --weight: that of --exposure.
        """
        roles = self._find_roles(features, role)
        by = roles.pop("by")
        exposure = self.find_optional(getattr(self._arguments, "exposure", None), "exposure")
        taken = [roles["outcome"], *predictions, roles["weight"], roles["cluster"], exposure]
        if by is not None:
            roles["categorical"] = [name for name in roles["categorical"] if name in {*taken, *by}]
        excluded = roles.get("exclude", [])
        needed, check = None if by is None else [*taken, *by, *excluded], roles["cluster"] is None
        data = self.read(needed, roles["categorical"], roles["outcome"], identifiers=check)

        def make_table(prediction: list[str], weight: str | None = None) -> Table:
            is_first = prediction == predictions[: len(prediction)]  # of two that are compared: one warning is enough
            own = roles if weight is None else {**roles, "weight": weight}
            columns = data
            if by is None:  # other predictions and weights form no segments
                used = [own["outcome"], own["weight"], own["cluster"], *prediction]
                names = _columns_without_role(data, [name for name in taken if name not in used])
                columns = {name: data[name] for name in data if name in {*names, *used}}
            check_columns = is_first and weight is None
            return read(columns, prediction=prediction, features=by, check_columns=check_columns, **own)

        return make_table

    def scan(self, predictions: list[str], features: Sequence[str] | None, role: str) -> tuple[Scan, dict[str, Any]]:
        """Return a scan that reads the rows in chunks, and the roles of its columns except the prediction."""
        arguments, roles = self._arguments, self._find_roles(features, role)
        exposure = self.find_optional(getattr(arguments, "exposure", None), "exposure")
        taken = [roles["outcome"], roles["weight"], roles["cluster"], exposure, *predictions]
        reject_sampling(roles.pop("sampling", None))
        segments = _columns_without_role(self.columns, taken) if roles["by"] is None else roles["by"]
        roles["categorical"] = [name for name in roles["categorical"] if name in segments]
        if exposure or getattr(arguments, "against", None):  # other predictions and weights form no segments
            unread = {name: unread_reason(name, error) for name in segments if (error := self._errors[name]) is not None}
            warn_of_unread(unread if roles["by"] is None else {}, stacklevel=2)
            roles["by"] = [name for name in segments if roles["by"] is not None or name not in unread]
        sql = self._sql if arguments.positive is None else positive_query(arguments, roles["outcome"])
        budget = {"memory": arguments.memory, "spill": arguments.spill, "threads": arguments.threads}
        paths: Any = self._paths
        return scan(paths, sql=sql, **budget), roles


def scan_rows(arguments: argparse.Namespace, paths: Sequence[str] | None, sql: str | None) -> Scan:
    """Return a scan of files and a query within the memory budget of a command."""
    files: Any = input_files(arguments, paths)
    return scan(files, sql=sql, memory=arguments.memory, spill=arguments.spill, threads=arguments.threads)


def _columns_without_role(names: Iterable[str], taken: Sequence[str | None]) -> list[str]:
    """Return the names that are not ``taken``, and do not mark a taken column as held-out scores."""
    known = {*taken, *(f"{name}{HELD_OUT_SUFFIX}" for name in taken)}
    return [name for name in names if name not in known]


def split_names(lists: Sequence[str]) -> list[str]:
    """Split comma-separated lists into names."""
    return [name.strip() for text in lists for name in text.split(",") if name.strip()]


def parse_bins(specs: Sequence[str] | None) -> dict[Any, Any]:
    """Parse ``--bins`` to a dict of bins by column, those of all other columns under the key ``...``; edges stay text."""
    bins: dict[Any, Any] = {...: DEFAULT_BINS}
    for spec in specs or ():
        name, equals, value = (part.strip() for part in spec.rpartition("="))
        edges = [edge.strip() for edge in value.split(":") if edge.strip()]
        parsed: Any = edges if ":" in value else int(value) if value.removeprefix("-").isdecimal() else value
        if not edges or bool(name) != bool(equals) or not (name or isinstance(parsed, int)):
            raise ArgumentError(
                f"--bins {spec} is not a specification of bins",
                hint="write --bins 10, --bins age=18:30:50 or --bins opened=month",
            )
        bins[name or ...] = parsed
    return bins


def parse_sampling(text: str | None) -> dict[str, float] | None:
    """Parse ``--sampling``: the kept shares of rows with outcome 1 and 0, separated by a comma."""
    if text is None:
        return None
    try:
        positive, negative = map(float, text.split(","))
    except ValueError:
        problem, hint = f"--sampling {text} is not two shares", "write --sampling 1,0.1 if one in ten negatives was kept"
        raise ArgumentError(problem, hint) from None
    return {"positive": positive, "negative": negative}


# Positive outcomes


def positive_query(arguments: argparse.Namespace, outcome: str) -> str:
    """Return a query that encodes the outcome --positive as 1, every other as 0, and keeps missing ones."""
    name, value = quote(outcome, '"'), quote(arguments.positive)
    inner = "data" if arguments.sql is None else f"(\n{arguments.sql.rstrip().rstrip(';')}\n)"
    text, not_text = f"CAST({name} AS VARCHAR)", f"NOT regexp_matches(typeof({name}), '^(VARCHAR|ENUM)')"
    near = f"coalesce(TRY_CAST({text} AS DOUBLE) = TRY_CAST({value} AS DOUBLE), false) OR {text} = lower({value})"
    same = f"{text} = {value} OR ({not_text} AND ({near}))"  # 1 is 1.0, and true True, unless the column is text
    known = f"{name} IS NOT NULL AND NOT ({not_text} AND {text} = 'nan')"
    return f"SELECT * REPLACE (CASE WHEN {known} THEN CAST({same} AS INTEGER) END AS {name}) FROM {inner}"  # noqa: S608


def encode_positive(column: Any, positive: str, name: str, *, needed: bool = True) -> FloatArray:
    """Encode an outcome: 1 for the positive value, which may be ``needed``, 0 for every other, NaN where it is missing."""
    raw = open_mapping({name: column}).fetch(name)
    coded = raw.categories()
    spellings = [positive, positive.lower()] if raw.kind == "flag" else [positive]
    code = next((coded.levels.index(value) for value in spellings if value in coded.levels), None)
    if code is None and needed:
        similar = difflib.get_close_matches(positive, coded.levels, n=1, cutoff=0.5)
        listed = ", ".join(map(repr, coded.levels[:MAX_LISTED_VALUES]))
        listed += ", ..." if len(coded.levels) > MAX_LISTED_VALUES else ""
        raise DataError(
            f"no row has the outcome {positive!r} in column {name!r}",
            hint=f"did you mean {similar[0]!r}?" if similar else f"its values are {listed or 'all missing'}",
        )
    encoded: FloatArray = np.where(coded.codes < 0, np.nan, coded.codes == (-2 if code is None else code))
    return encoded


def no_positive_rows(positive: str, outcome: str) -> DataError:
    """Return the error for rows read in chunks, none of which has the positive outcome."""
    return DataError(f"no labelled row has the outcome {positive!r} in column {outcome!r}", hint="check its spelling")


# Files to write


def input_files(arguments: argparse.Namespace, paths: Sequence[str] | None) -> Files | None:
    """Return the files that an option names, found and copied once; None if it names none.

    Standard input, and files that DuckDB cannot read, are copied to the spill directory until the command ends.
    """
    if not paths:
        return None
    opened = vars(arguments).setdefault("opened", {})
    if tuple(paths) not in opened:
        opened[tuple(paths)] = _open_files(arguments, list(paths), opened)
    files: Files = opened[tuple(paths)]
    return files


def _open_files(arguments: argparse.Namespace, paths: list[str], opened: dict[Any, Any]) -> Files:
    kind, encoding = getattr(arguments, "format", None), getattr(arguments, "encoding", None)
    named: list[str | Path] = list(paths)
    if piped := [index for index, path in enumerate(paths) if path in STANDARD_INPUT]:
        if len(piped) > 1 or any(set(STANDARD_INPUT) & set(other) for other in opened):
            raise ArgumentError("standard input is named twice", hint="it can be read once: name a file")
        if sys.stdin is None or sys.stdin.isatty():
            hint = "pipe rows into the command, as in: trueup audit - < rows.csv"
            raise FileError("standard input is a terminal", hint=hint)
        named[piped[0]] = spool(sys.stdin.buffer, _copies(arguments), kind, check_encoding(encoding))
    shown = "standard input" if len(paths) == 1 and paths[0] in STANDARD_INPUT else ""
    is_parquet = shown != "" and str(named[0]).endswith(".parquet")
    files = find_files(InputFiles(named, "parquet" if is_parquet else kind, None if is_parquet else encoding, shown))
    return copy_for_duckdb(files, _copies(arguments)) if files.needs_copy and not files.is_remote else files


def _copies(arguments: argparse.Namespace) -> Path:
    """Return the directory of copies, which is deleted when the command ends."""
    if "copies" not in arguments:
        spill = getattr(arguments, "spill", None)
        cleanup: contextlib.ExitStack = vars(arguments).setdefault("cleanup", contextlib.ExitStack())
        arguments.copies = Path(cleanup.enter_context(temporary_directory(None if spill is None else Path(spill))))
    copies: Path = arguments.copies
    return copies


def local_files(arguments: argparse.Namespace, paths: Sequence[str] | None) -> list[Path]:
    """Return the files on disk that an option names, not their copies."""
    files = input_files(arguments, paths)
    return [] if files is None else [path for path in (files.originals or files.paths) if isinstance(path, Path)]


def remote_files(arguments: argparse.Namespace) -> list[RemoteFile]:
    """Return the URLs that a command reads."""
    files = input_files(arguments, arguments.files)
    return [] if files is None else [path for path in files.paths if isinstance(path, RemoteFile)]


def source_files(arguments: argparse.Namespace) -> list[Path]:
    """Return the files that a command reads: those it names and those that its query names in quotes."""
    paths = local_files(arguments, arguments.files)
    quoted = [os.path.expanduser(single or double) for single, double in QUOTED.findall(arguments.sql or "")]  # noqa: PTH111
    patterns = [name for name in quoted if without_compression(name.lower()).endswith(tuple(FORMATS))]  # '*' may be a text
    matches = [match for name in patterns for match in glob.glob(name, recursive=True)]  # noqa: PTH207
    return [*paths, *(Path(name) for name in (*filter(os.path.lexists, quoted), *matches))]


def check_is_file(path: str, *, example: str) -> None:
    """Raise if an output that is always a file is to be standard output."""
    if path == STANDARD_OUTPUT:
        raise ArgumentError("-o - is not possible here: the output is a file", hint=f"name it, such as -o {example}")


def check_outputs(outputs: Iterable[tuple[str | None, str]], sources: Iterable[str | Path]) -> None:
    """Raise if one of ``outputs``, pairs of path and example, cannot be written, is in ``sources``, or is given twice."""
    inputs = list(sources)
    seen: set[Path] = set()
    for path, example in outputs:
        if path is None or path == STANDARD_OUTPUT:
            continue
        check_writable(path, example=example)
        output = Path(path)
        same = any(output.exists() and Path(source).exists() and output.samefile(source) for source in inputs)
        if output.exists() and not output.is_file():
            raise ArgumentError(f"{path} is not a regular file", hint=f"name a file, such as {example}")
        if same:
            raise ArgumentError(f"{path} would overwrite an input file", hint=f"name another file, such as {example}")
        if output.resolve() in seen:
            raise ArgumentError(f"{path} would be written twice", hint="name another file")
        seen.add(output.resolve())


@contextlib.contextmanager
def replacing_file(path: str, *, example: str) -> Iterator[Path]:
    """Yield a temporary path that replaces ``path``, or the file it links to, at the end of the block."""
    try:
        with replacing(Path(os.path.realpath(path))) as temporary:
            yield temporary
    except OSError as error:
        raise cannot_write(Path(path), error, example=example) from error


def write_rows(arguments: argparse.Namespace, path: str, make: MakeColumns, *, example: str, **settings: Any) -> int | None:
    """Write the rows of a command, with columns by ``make``, to a file that replaces ``path``; return the row count.

    It is None if the reader of standard output closed it before it had all rows.
    """
    settings |= {"sql": arguments.sql, "threads": arguments.threads, "written": row_format(arguments, path)}
    files = input_files(arguments, arguments.files)
    if path == STANDARD_OUTPUT:
        temporary = _copies(arguments) / "standard-output"
        rows = add_columns(files, temporary, make, **settings)
        with temporary.open(encoding="utf-8", newline="") as written:
            complete = console.emit(lambda stream: shutil.copyfileobj(written, stream), data=True)
        return rows if complete else None
    with replacing_file(path, example=example) as temporary:
        return add_columns(files, temporary, make, **settings)


def row_format(arguments: argparse.Namespace, path: str) -> str:
    """Return the options of DuckDB's COPY for rows written to ``path``, or to standard output; raise if there are none."""
    kind = getattr(arguments, "output_format", None)
    if path == STANDARD_OUTPUT:
        return format_to_write({"csv": "rows.csv", "json": "rows.jsonl"}[kind or "csv"])
    if kind is not None:
        raise ArgumentError("--output-format is for -o -; files are written as their extension says", hint="leave it out")
    return format_to_write(path)


def write_json(path: str, data: dict[str, Any]) -> None:
    """Write plain data as strict, indented JSON to a file or to standard output."""
    write_chunks(path, [json.dumps(data, allow_nan=False, ensure_ascii=False, indent=1), "\n"])


def write_chunks(path: str, chunks: Iterable[str]) -> None:
    """Write text to a file or to standard output."""
    if path == STANDARD_OUTPUT:
        console.emit(lambda stream: stream.writelines(chunks), data=True)
    else:
        write_text(path, chunks)


def file_size(path: str | Path) -> str:
    """Return the size of a file with its unit."""
    size = float(Path(path).stat().st_size)
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.3g} {unit}"
        size /= 1000
    return f"{size:.3g} GB"
