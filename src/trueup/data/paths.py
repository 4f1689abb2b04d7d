"""Finding local files by path or pattern, their format, and the header of CSV. Knows nothing of DuckDB."""

from __future__ import annotations

import contextlib
import csv
import difflib
import glob
import gzip
import os
import re
import zlib
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO, cast

from trueup.errors import ArgumentError, ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv"}
FORMATS |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
SEPARATORS = (",", "\t", ";", "|")
NEAR = 0.75  # how like two names are (difflib) of which one may be meant for the other
LONGEST_LINE = 2_000_000  # characters: a file without line ends must not be read whole to find its header

HINTS = {
    "parquet": "is it a Parquet file, and whole? write or copy it again",
    "csv": 'it must be UTF-8 text, with as many fields on every line as in the header, and quoted by "',
    "json": "it must hold records, {...} with the names of the columns, as one array or one a line",
    "twice": "rename one; upper and lower case make no difference",
    "sql": "DuckDB runs the query: name a file in quotes, as FROM 'f.parquet'; the files of paths are the table data",
}


class Files(NamedTuple):
    """Files of one format, and of one separator if they are CSV."""

    paths: list[Path]
    format: str
    separator: str = ""
    headers: tuple[list[str], ...] = ()
    """The names of the columns of each CSV file."""

    def __str__(self) -> str:
        first = repr(str(self.paths[0]))
        return first if len(self.paths) == 1 else f"{len(self.paths)} files ({first}, ...)"


def is_zipped(path: Path) -> bool:
    """Say whether a file is compressed, by its name."""
    return path.suffix.lower() == ".gz"


def find_files(paths: Any) -> Files:
    """Find the files that are named, their format, and the header of CSV."""
    given = [paths] if isinstance(paths, (str, os.PathLike)) else list(paths)
    found = [path for one in given for path in _locate(one)]
    if not found:
        raise ArgumentError("the list of files is empty", hint="name at least one")
    real = [path.resolve() for path in found]
    if len(set(real)) < len(real):
        twice = next(path for path, one in zip(found, real, strict=True) if real.count(one) > 1)
        raise FileError(f"file {str(twice)!r} is named twice", hint="its rows would count twice: name it once")
    formats = sorted({_format(path) for path in found})
    headers = [_header(path) for path in found] if formats == ["csv"] else []
    separators = sorted({one for one, names in headers if len(names) > 1} or {one for one, _ in headers[:1]})
    for kinds, what in ((formats, "formats"), (separators, "separators")):
        if len(kinds) > 1:
            listed = " and ".join(map(repr, kinds))
            raise FileError(f"files of different {what} cannot be read together: {listed}", hint="read them one by one")
    return Files(found, formats[0], separators[0] if separators else "", tuple(names for _, names in headers))


def _locate(given: Any) -> list[Path]:
    """Find the file of a path, or the files of a pattern."""
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"a file is named by a text or a Path; got {given!r}")
    named, path = str(given), Path(os.path.expanduser(given))  # noqa: PTH111  leaves a ~name that is nobody's alone
    try:
        for literal in (Path(given), path):
            if literal.exists():
                return [_readable(literal)]
        if re.match(r"[a-zA-Z][\w+.-]+:/", named):
            raise FileError(f"trueup reads local files only; got {named!r}", hint="download it first")
        found = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207  takes a root
        if found := [_readable(match) for match in found if not match.is_dir()]:
            return found
        pattern = bool(set("*?[") & set(named))
        near = "" if pattern else _nearest(path)
        folder = f"looked in {str(path.parent.absolute())!r}{'' if path.parent.is_dir() else ', which is no folder'}"
        hint = f"did you mean {str(path.parent / near)!r}?" if near else folder
        raise FileError(f"no file {'matches ' if pattern else ''}{named!r}", hint=hint)
    except OSError as error:
        raise FileError(f"cannot read {named!r}: {error.strerror}", hint="check the permissions on it") from error


def _nearest(path: Path) -> str:
    """Find the file beside whose name is most like another, endings aside; none is better than a wild guess."""
    if not path.parent.is_dir():
        return ""
    names = sorted(child.name for child in path.parent.iterdir())
    stems = {_stem(name).lower(): name for name in reversed(names) if _stem(name) != name}
    near = difflib.get_close_matches(_stem(path.name).lower(), stems, n=1, cutoff=NEAR)
    return stems[near[0]] if near else ""


def _stem(name: str) -> str:
    """Take the endings off that say the format; a name without one stays as it is."""
    bare = name[:-3] if name.lower().endswith(".gz") else name
    ending = Path(bare).suffix
    return bare.removesuffix(ending) if ending.lower() in FORMATS else name


def _readable(path: Path) -> Path:
    """Refuse what is no file, has nothing in it, or may not be opened."""
    if path.is_dir():
        ending = min({child.suffix for child in path.iterdir()} & set(FORMATS), default=".parquet")
        raise FileError(f"{str(path)!r} is a folder", hint=f"name its files, as {str(path / f'*{ending}')!r}")
    if not path.is_file():
        raise FileError(f"{str(path)!r} is not a file on disk", hint="write what it gives to a file first")
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):  # how Python writes bytes that are no letters
        raise FileError(f"the name of {str(path)!r} is not UTF-8 text", hint="rename the file")
    with path.open("rb") as handle:
        if not handle.read(1):
            raise FileError(f"file {str(path)!r} is empty", hint="was it written to the end?")
    return path


def _format(path: Path) -> str:
    found = FORMATS.get(Path(path.name.lower().removesuffix(".gz")).suffix)
    if found is None or (found == "parquet" and is_zipped(path)):
        hint = f"it must end in {', '.join(FORMATS)}; CSV and JSON also in .gz after that"
        raise FileError(f"cannot tell the format of {str(path)!r} by its name", hint=hint)
    return found


@contextlib.contextmanager
def _lines(path: Path) -> Iterator[TextIO]:
    """Open CSV as text, and say so if it is none."""
    try:
        with (gzip.open if is_zipped(path) else open)(path, "rt", encoding="utf-8-sig", newline="") as handle:
            yield cast("TextIO", handle)
    except UnicodeDecodeError as error:
        raise FileError(f"cannot read {str(path)!r}: it is not UTF-8 text", hint="save it again as UTF-8") from error
    except (csv.Error, EOFError, OSError, zlib.error) as error:
        raise FileError(f"cannot read {str(path)!r}: {error}", hint=HINTS["csv"]) from error


def _header(path: Path) -> tuple[str, list[str]]:
    """Find the separator of a CSV file, by which the header has most fields, and the names of its columns."""
    choice = "\t" if path.name.lower().removesuffix(".gz").endswith(".tsv") else SEPARATORS
    with _lines(path) as handle:
        pieces = iter(lambda: handle.readline(LONGEST_LINE), "")
        first = next(pieces, "")
        separator = max(choice, key=lambda one: len(next(csv.reader([first], delimiter=one), [])))
        names = [name.strip() for name in next(csv.reader(chain([first], pieces), delimiter=separator), [])]
    if not any(names):
        raise FileError(f"the first line of {str(path)!r} is blank", hint="it must name the columns")
    seen: set[bytes] = set()
    for name in filter(None, names):
        if (folded := name.encode().lower()) in seen:  # bytes fold only ASCII, as DuckDB does
            raise ColumnError(f"column name {name!r} appears more than once in {str(path)!r}", hint=HINTS["twice"])
        seen.add(folded)
    return separator, names


def uneven_line(path: Path, separator: str) -> str | None:
    """Find the first line of CSV with more or fewer fields than the header: DuckDB does not always say."""
    with _lines(path) as handle:
        reader, width, line = csv.reader(handle, delimiter=separator), 0, 1
        for fields in reader:
            width = width or len(fields)
            if fields and len(fields) != width:
                return f"line {line} has {len(fields)} field{'s' * (len(fields) > 1)} and the header has {width}"
            line = reader.line_num + 1
    return None
