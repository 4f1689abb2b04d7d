"""Files named by paths and patterns, their format and the header of CSV, and scans of files that need not fit in memory."""

from __future__ import annotations

import contextlib
import csv
import difflib
import glob
import gzip
import os
import re
import zlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from trueup.errors import ArgumentError, ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
BASE_MEMORY = 250 * 10**6  # bytes that Python, NumPy, the kernels and DuckDB take before the first row
MIN_MEMORY = 300 * 10**6
MIN_SCAN_MEMORY = 400 * 10**6  # an audit of 10 million rows was measured to take 360 MB, with however small a budget
FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv"}
FORMATS |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
SEPARATORS = (",", "\t", ";", "|")
MIN_SIMILARITY = 0.75  # of two file names (difflib), for one to be suggested instead of the other
MAX_LINE_LENGTH = 2_000_000  # characters: a file without line ends must not be read entirely to find its header
HINTS = {
    "parquet": "is it a complete Parquet file? write or copy it again",
    "csv": 'it must be UTF-8 text, with as many fields on every line as in the header, and quoted by "',
    "json": "it must contain records, {...} with the names of the columns, as one array or one per line",
    "duplicate": "rename one; upper and lower case make no difference",
    "sql": "DuckDB runs the query: name a file in quotes, as FROM 'f.parquet'; the files of paths are the table data",
}


@dataclass(frozen=True)
class Scan:
    """Rows of files or of a query that need not fit in memory; `trueup.scan` makes one."""

    paths: Any
    sql: str | None
    memory: int
    spill: Path | None
    threads: int | None = None

    def __repr__(self) -> str:
        what = "a query" if self.paths is None else str(self.paths)
        return f"<Scan of {what}, within {self.memory / 1e9:.3g} GB>"


def scan(
    paths: Sequence[str | Path] | str | Path | None = None,
    *,
    sql: str | None = None,
    memory: int | str = "2GB",
    spill: str | Path | None = None,
    threads: int | None = None,
) -> Scan:
    """Name files that are larger than memory, for `trueup.audit` and `trueup.MCGrad` to read in chunks.

    Parameters
    ----------
    paths : path, pattern, or several
        Parquet, CSV or JSON, as on the command line. CSV and JSON are copied once to Parquet.
    sql : str, optional
        A query in DuckDB's SQL, run once; the files of ``paths`` are its table ``data``.
    memory : int or str
        The memory budget, in bytes or as "2GB".
    spill : path, optional
        The directory for rows that do not fit: about 30 bytes per row for an audit, up to 8 per value for a fit. By default
        the system's temporary directory; the files written there are deleted at the end.
    threads : int, optional
        By default one per core.

    Examples
    --------
    >>> scan("scores/*.parquet", memory="4GB")
    <Scan of scores/*.parquet, within 4 GB>
    """
    if paths is None and sql is None:
        raise ArgumentError("neither a file nor a query was given", hint="pass paths, sql or both")
    directory = None if spill is None else Path(spill)
    if directory is not None and not directory.is_dir():
        raise FileError(
            f"spill must be an existing directory; got {str(directory)!r}",
            hint="create it, or name another",
            parameter="spill",
        )
    return Scan(paths, sql, parse_memory(memory, MIN_SCAN_MEMORY), directory, threads)


def parse_memory(memory: int | str, smallest: int = MIN_MEMORY) -> int:
    """Return an amount of memory, such as "2GB", in bytes; raise if it is below ``smallest`` bytes."""
    match = None if isinstance(memory, bool) else re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", str(memory))
    unit = UNITS.get(match[2].upper()) if match else None
    if match is None or unit is None:
        raise ArgumentError(
            f"memory must be a number of bytes, or as 2GB; got {memory!r}",
            hint="units are KB, MB, GB, TB",
            parameter="memory",
        )
    amount = int(float(match[1]) * unit)
    if amount < smallest:
        raise ArgumentError(
            f"memory must be at least {smallest // 10**6} MB; got {memory!r}",
            hint="the libraries alone take 250 MB",
            parameter="memory",
        )
    return amount


def row_memory(memory: int) -> int:
    """Return the bytes of a memory budget that rows may take at once: half of what the libraries leave."""
    return max(memory - BASE_MEMORY, 50 * 10**6) // 2


class Files(NamedTuple):
    """Files of one format; for CSV with one separator and the column names of each file."""

    paths: list[Path]
    format: str
    separator: str = ""
    headers: tuple[list[str], ...] = ()

    def __str__(self) -> str:
        first = repr(str(self.paths[0]))
        return first if len(self.paths) == 1 else f"{len(self.paths)} files ({first}, ...)"


def is_gzipped(path: Path) -> bool:
    """Return whether a file is compressed, by its name."""
    return path.suffix.lower() == ".gz"


def file_format(path: Path) -> str | None:
    """Return the format of a file by its name; None if it is not one that trueup reads and writes."""
    name = FORMATS.get(Path(path.name.lower().removesuffix(".gz")).suffix)
    return None if name == "parquet" and is_gzipped(path) else name


def find_files(paths: Any) -> Files:
    """Return the files of paths and patterns, their format, and the header of CSV."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    files = [path for one in given for path in _locate(one)]
    if not files:
        raise ArgumentError("the list of files is empty", hint="name at least one")
    resolved = [path.resolve() for path in files]
    if len(set(resolved)) < len(resolved):
        repeated = next(path for path, target in zip(files, resolved, strict=True) if resolved.count(target) > 1)
        raise FileError(f"file {str(repeated)!r} is named twice", hint="its rows would count twice: name it once")
    formats = set()
    for path in files:
        found = file_format(path)
        if found is None:
            hint = f"it must end in {', '.join(FORMATS)}; CSV and JSON also in .gz after that"
            raise FileError(f"cannot tell the format of {str(path)!r} by its name", hint=hint)
        formats.add(found)
    headers = [_header(path) for path in files] if formats == {"csv"} else []
    separators = {mark for mark, names in headers if len(names) > 1} or {mark for mark, _ in headers[:1]}
    for kinds, what in ((formats, "formats"), (separators, "separators")):
        if len(kinds) > 1:
            listed = " and ".join(map(repr, sorted(kinds)))
            raise FileError(f"files of different {what} cannot be read together: {listed}", hint="read them one by one")
    return Files(files, formats.pop(), next(iter(separators), ""), tuple(names for _, names in headers))


def _locate(given: Any) -> list[Path]:
    """Return the file of a path, or the files of a pattern."""
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"a file is named by a text or a Path; got {given!r}")
    named, path = str(given), Path(os.path.expanduser(given))  # noqa: PTH111  (keeps ~name if there is no such user)
    try:
        for literal in (Path(given), path):
            if literal.exists():
                return [_check_readable(literal)]
        if re.match(r"[a-zA-Z][\w+.-]+:/", named):
            raise FileError(f"trueup reads local files only; got {named!r}", hint="download it first")
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207  (any root)
        if files := [_check_readable(match) for match in matches if not match.is_dir()]:
            return files
        is_pattern = bool(set("*?[") & set(named))
        similar = "" if is_pattern else _similar_name(path)
        missing = "" if path.parent.is_dir() else ", which is no directory"
        searched = f"looked in {str(path.parent.absolute())!r}{missing}"
        hint = f"did you mean {str(path.parent / similar)!r}?" if similar else searched
        raise FileError(f"no file {'matches ' if is_pattern else ''}{named!r}", hint=hint)
    except OSError as error:
        raise FileError(f"cannot read {named!r}: {error.strerror}", hint="check the permissions on it") from error


def _similar_name(path: Path) -> str:
    """Return the name in the directory of a path that is most similar, ignoring suffixes; "" if none is similar."""
    if not path.parent.is_dir():
        return ""
    names = sorted(child.name for child in path.parent.iterdir())
    stems = {_stem(name).lower(): name for name in reversed(names) if _stem(name) != name}
    similar = difflib.get_close_matches(_stem(path.name).lower(), stems, n=1, cutoff=MIN_SIMILARITY)
    return stems[similar[0]] if similar else ""


def _stem(name: str) -> str:
    """Remove the suffixes of a known format."""
    bare = name[:-3] if name.lower().endswith(".gz") else name
    suffix = Path(bare).suffix
    return bare.removesuffix(suffix) if suffix.lower() in FORMATS else name


def _check_readable(path: Path) -> Path:
    """Return a path; raise unless it is a file that can be opened and is not empty."""
    if path.is_dir():
        suffix = min({child.suffix for child in path.iterdir()} & set(FORMATS), default=".parquet")
        raise FileError(f"{str(path)!r} is a directory", hint=f"name its files, as {str(path / f'*{suffix}')!r}")
    if not path.is_file():
        raise FileError(f"{str(path)!r} is not a file on disk", hint="write its content to a file first")
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):  # Python's stand-ins for bytes that are not UTF-8
        raise FileError(f"the name of {str(path)!r} is not UTF-8 text", hint="rename the file")
    with path.open("rb") as handle:
        if not handle.read(1):
            raise FileError(f"file {str(path)!r} is empty", hint="was it written to the end?")
    return path


@contextlib.contextmanager
def _open_csv(path: Path) -> Iterator[TextIO]:
    """Open a CSV file as text, maybe gzipped; raise FileError if it is not valid UTF-8 or CSV."""
    try:
        with (gzip.open if is_gzipped(path) else open)(path, "rt", encoding="utf-8-sig", newline="") as handle:
            yield cast("TextIO", handle)
    except UnicodeDecodeError as error:
        raise FileError(f"cannot read {str(path)!r}: it is not UTF-8 text", hint="save it again as UTF-8") from error
    except (csv.Error, EOFError, OSError, zlib.error) as error:
        raise FileError(f"cannot read {str(path)!r}: {error}", hint=HINTS["csv"]) from error


def _header(path: Path) -> tuple[str, list[str]]:
    """Return the separator of a CSV file, the one that splits its header into most fields, and the column names."""
    choice = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else SEPARATORS
    with _open_csv(path) as handle:
        lines = iter(lambda: handle.readline(MAX_LINE_LENGTH), "")
        first = next(lines, "")
        separator = max(choice, key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
        names = [name.strip() for name in next(csv.reader(chain([first], lines), delimiter=separator), [])]
    if not any(names):
        raise FileError(f"the first line of {str(path)!r} is blank", hint="it must name the columns")
    seen: set[bytes] = set()
    for name in filter(None, names):
        if (folded := fold_case(name)) in seen:
            raise ColumnError(f"column name {name!r} appears more than once in {str(path)!r}", hint=HINTS["duplicate"])
        seen.add(folded)
    return separator, names


def fold_case(name: str) -> bytes:
    """Return a name in lower case as DuckDB compares names: ASCII letters only."""
    return name.encode().lower()


def find_uneven_line(path: Path, separator: str) -> str | None:
    """Describe the first line of CSV with more or fewer fields than the header, which DuckDB does not always report."""
    with _open_csv(path) as handle:
        reader, width, line = csv.reader(handle, delimiter=separator), 0, 1
        for fields in reader:
            width = width or len(fields)
            if fields and len(fields) != width:
                return f"line {line} has {len(fields)} field{'s' * (len(fields) > 1)} and the header has {width}"
            line = reader.line_num + 1
    return None
