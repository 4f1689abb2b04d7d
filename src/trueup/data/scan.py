"""Files named by paths and patterns, their format and the header of CSV, and scans of files that need not fit in memory."""

from __future__ import annotations

import contextlib
import csv
import difflib
import glob
import io
import os
import re
import zlib
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO
from urllib.parse import unquote, urlsplit

from trueup._validate import check_choice
from trueup.data.encodings import check_encoding, damaged, open_binary, wrong_encoding
from trueup.errors import ArgumentError, ColumnError, FileError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
BASE_MEMORY = 250 * 10**6  # bytes that Python, NumPy, the kernels and DuckDB take before the first row
MIN_MEMORY = 300 * 10**6
MIN_SCAN_MEMORY = 400 * 10**6  # an audit of 10 million rows was measured to take 360 MB, with however small a budget
FORMATS = {".parquet": "parquet", ".pq": "parquet", ".csv": "csv", ".tsv": "csv", ".txt": "csv"}
FORMATS |= {".json": "json", ".jsonl": "json", ".ndjson": "json"}
FORMAT_NAMES = ("parquet", "csv", "json")
COMPRESSIONS = (".gz", ".bz2", ".zst")  # of CSV and JSON
REMOTE = re.compile(r"(?:s3|s3a|s3n|gs|gcs|r2|https?|hf)://", re.IGNORECASE)  # read by DuckDB's extension httpfs
PARTITION = re.compile(r"([^=]+)=(.*)")  # the name of a directory of a Hive partition
SEPARATORS = (",", "\t", ";", "|")
MIN_SIMILARITY = 0.75  # of two file names (difflib), for one to be suggested instead of the other
MAX_LINE_LENGTH = 2_000_000  # characters: a file without line ends must not be read entirely to find its header
HINTS = {
    "parquet": "is it a complete Parquet file? write or copy it again",
    "csv": 'it must be UTF-8 text, with as many fields on every line as in the header, and quoted by "',
    "json": "it must contain records, {...} with the names of the columns, as one array or one per line",
    "duplicate": "rename one",
    "case": "rename one: in files, upper and lower case make no difference; columns that are not used may keep their names",
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
    format: str | None = None
    encoding: str | None = None

    @property
    def input(self) -> Any:
        """The files as `find_files` takes them; None for a query alone."""
        found = self.paths is None or isinstance(self.paths, Files)
        return self.paths if found else InputFiles(self.paths, self.format, self.encoding)

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
    format: str | None = None,  # noqa: A002  (the word of the command line)
    encoding: str | None = None,
) -> Scan:
    """Name files that are larger than memory, for `trueup.audit` and `trueup.MCGrad` to read in chunks.

    Parameters
    ----------
    paths : path, pattern, or several
        Parquet, CSV or JSON, as on the command line: files, patterns, directories, or URLs such as s3://bucket/file.parquet.
        CSV and JSON are copied once to Parquet.
    sql : str, optional
        A query in DuckDB's SQL, run once; the files of ``paths`` are its table ``data``.
    memory : int or str
        The memory budget, in bytes or as "2GB".
    spill : path, optional
        The directory for rows that do not fit: about 30 bytes per row for an audit, up to 8 per value for a fit. By default
        the system's temporary directory; the files written there are deleted at the end.
    threads : int, optional
        By default one per core.
    format : {"parquet", "csv", "json"}, optional
        By default by the names of the files.
    encoding : str, optional
        Of CSV and JSON, such as "latin-1" or "utf-16"; UTF-8 by default. Files in another encoding are copied as UTF-8 to
        the spill directory, and the copies are deleted at the end.

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
    if format is not None:
        check_choice("format", format, FORMAT_NAMES)
    check_encoding(encoding)
    return Scan(paths, sql, parse_memory(memory, MIN_SCAN_MEMORY), directory, threads, format, encoding)


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


class RemoteFile(str):
    """A URL, with the name and the suffix that a Path has."""

    __slots__ = ()

    @property
    def name(self) -> str:
        """The last part of its path."""
        return unquote(urlsplit(self).path.rpartition("/")[2])

    @property
    def suffix(self) -> str:
        """What its name ends in."""
        return Path(self.name).suffix

    @property
    def shown(self) -> str:
        """The URL without user, password and query, which may be credentials."""
        parts = urlsplit(self)
        return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"

    def resolve(self) -> RemoteFile:
        """Return the URL, which needs no resolution."""
        return self


@dataclass(frozen=True)
class InputFiles:
    """Files as users name them: paths or patterns, their format (None: by their names) and encoding (None: UTF-8)."""

    paths: Any
    format: str | None = None
    encoding: str | None = None
    shown: str = ""  # what messages call them


class Files(NamedTuple):
    """Files of one format; for CSV with one separator and the column names of each file, once they are known."""

    paths: list[Path | RemoteFile]
    format: str
    separator: str = ""
    headers: tuple[list[str], ...] = ()
    partitions: tuple[str, ...] = ()  # names of the columns that directories such as year=2026 stand for
    encoding: str = ""  # if it is not UTF-8
    originals: tuple[Path | RemoteFile, ...] = ()  # if the paths are copies of them
    shown: str = ""  # what messages call them

    def __str__(self) -> str:
        named = self.originals or self.paths
        first = self.shown or repr(display_name(named[0]))
        return first if len(named) == 1 else f"{len(named)} files ({first}, ...)"

    @property
    def is_remote(self) -> bool:
        """Whether these are URLs."""
        return any(isinstance(path, RemoteFile) for path in self.paths)

    @property
    def needs_copy(self) -> bool:
        """Whether DuckDB cannot read these files as they are."""
        return bool(self.encoding) or any(is_compressed(path, ".bz2") for path in self.paths)

    def partition_values(self, path: Path | RemoteFile) -> dict[str, str]:
        """Return the texts of the partition columns of one file."""
        return {name: value for name, value in path_partitions(path) if name in self.partitions}


def display_name(path: Path | RemoteFile) -> str:
    """Return a path as messages show it."""
    return path.shown if isinstance(path, RemoteFile) else str(path)


def is_compressed(path: Path | RemoteFile, *kinds: str) -> bool:
    """Return whether a file is compressed, in one of the given ways, by its name."""
    return path.suffix.lower() in (kinds or COMPRESSIONS)


def is_gzipped(path: Path | RemoteFile) -> bool:
    """Return whether a file is compressed with gzip, by its name."""
    return is_compressed(path, ".gz")


def without_compression(name: str) -> str:
    """Return the name of a file without the suffix of its compression."""
    return name[: -len(Path(name).suffix)] if name.lower().endswith(COMPRESSIONS) else name


def file_format(path: Path | RemoteFile) -> str | None:
    """Return the format of a file by its name; None if it is not one that trueup reads."""
    name = FORMATS.get(Path(without_compression(path.name.lower())).suffix)
    return None if name == "parquet" and is_compressed(path) else name


def find_files(paths: Any) -> Files:
    """Return the files of paths and patterns, of directories or `InputFiles`, their format, and the header of CSV."""
    if isinstance(paths, Files):
        return paths
    if not isinstance(paths, InputFiles):
        paths = InputFiles(paths)
    encoding, named = check_encoding(paths.encoding), paths.paths
    given = [named] if isinstance(named, (str, os.PathLike)) else list(named)
    located = [_locate(one, any_name=paths.format is not None) for one in given]
    files = [path for found, _ in located for path in found]
    if not files:
        raise ArgumentError("the list of files is empty", hint="name at least one")
    remote = [isinstance(path, RemoteFile) for path in files]
    if any(remote) and not all(remote):
        raise FileError("remote and local files cannot be read together", hint="download the remote ones first")
    resolved = [path.resolve() for path in files]
    if len(set(resolved)) < len(resolved):
        repeated = next(path for path, target in zip(files, resolved, strict=True) if resolved.count(target) > 1)
        raise FileError(f"file {str(repeated)!r} is named twice", hint="its rows would count twice: name it once")
    formats = {paths.format or _format_by_name(path) for path in files}
    if encoding and formats == {"parquet"}:
        raise ArgumentError("encoding is for CSV and JSON; Parquet has none", hint="leave it out", parameter="encoding")
    partitions = _find_partitions(located)
    if formats != {"csv"} or any(isinstance(path, RemoteFile) or is_compressed(path, ".zst") for path in files):
        headers: list[tuple[str, list[str]]] = []  # those of files that only DuckDB can read are found by it
    else:
        headers = [_header(path, encoding) for path in files if isinstance(path, Path)]
    separators = {mark for mark, names in headers if len(names) > 1} or {mark for mark, _ in headers[:1]}
    for kinds, what in ((formats, "formats"), (separators, "separators")):
        if len(kinds) > 1:
            listed = " and ".join(map(repr, sorted(kinds)))
            raise FileError(f"files of different {what} cannot be read together: {listed}", hint="read them one by one")
    return Files(
        files, formats.pop(), next(iter(separators), ""), tuple(names for _, names in headers), partitions, encoding,
        shown=paths.shown,
    )  # fmt: skip


def _format_by_name(path: Path | RemoteFile) -> str:
    """Return the format of a file by its name; raise if it is unknown."""
    found = file_format(path)
    if found is None:
        raise FileError(
            f"cannot tell the format of {display_name(path)!r} by its name",
            hint=f"it must end in {', '.join(FORMATS)}, CSV and JSON also in {', '.join(COMPRESSIONS)} after that; or name "
            "the format, as {format}",
            settings={"format": "csv"},
        )
    return found


def path_partitions(path: Path | RemoteFile) -> list[tuple[str, str]]:
    """Return names and values of the partitions that the directories of a path stand for."""
    parts = urlsplit(path).path.split("/") if isinstance(path, RemoteFile) else path.parts
    matches = [match for part in parts[:-1] if (match := PARTITION.fullmatch(part))]
    return [(unquote(match[1]), unquote(match[2])) for match in matches]


def _find_partitions(located: Sequence[tuple[list[Path | RemoteFile], int]]) -> tuple[str, ...]:
    """Return the columns that directories stand for, below the directory, or after the fixed start of the pattern, given.

    Raise if they differ between files, or if a directory above stands for a column of the same name.
    """
    names: dict[tuple[str, ...], Path | RemoteFile] = {}
    for paths, depth in located:
        for path in paths:
            below = path if isinstance(path, RemoteFile) else Path(*path.parts[depth:])
            names.setdefault(tuple(name for name, _ in path_partitions(below)), path)
            every = [name.lower() for name, _ in path_partitions(path)]
            repeated = next((name for name in next(reversed(names)) if every.count(name.lower()) > 1), None)
            if repeated is not None:
                raise FileError(
                    f"the directories of {display_name(path)!r} name the column {repeated!r} twice",
                    hint="rename one of them",
                )
    if len(names) > 1:
        (first, one), (second, other) = list(names.items())[:2]
        raise FileError(
            f"the directories of the files stand for different columns: {', '.join(first) or 'none'} in "
            f"{display_name(one)!r}, {', '.join(second) or 'none'} in {display_name(other)!r}",
            hint="name files of one kind of directory",
        )
    return next(iter(names), ())


def _locate(given: Any, *, any_name: bool) -> tuple[list[Path | RemoteFile], int]:
    """Return the file of a path, or the files of a pattern or directory, and the number of fixed components of the paths.

    A URL is not resolved. With ``any_name``, files of a directory may have any name.
    """
    if not isinstance(given, (str, os.PathLike)):
        raise ArgumentError(f"a file is named by a text or a Path; got {given!r}")
    named, path = str(given), Path(os.path.expanduser(given))  # noqa: PTH111  (keeps ~name if there is no such user)
    try:
        for literal in (Path(given), path):
            if literal.is_dir():
                return _files_below(literal, any_name=any_name), len(literal.parts)
            if literal.exists():
                return [_check_readable(literal)], len(literal.parts)
        if path.is_symlink():
            target = os.readlink(path)  # noqa: PTH115  (as it is written in the link)
            raise FileError(
                f"{named!r} is a link to {target!r}, which does not exist", hint="restore the file, or the link"
            )
        if REMOTE.match(named):
            return [RemoteFile(named)], 0
        if re.match(r"[a-zA-Z][\w+.-]+:/", named):
            known = "files on disk, s3://, gs:// and https:// are read"
            raise FileError(
                f"cannot read {named!r}: {known}", hint="download it first; write a URL as a text, not as a Path"
            )
        matches = [Path(match) for match in sorted(glob.glob(str(path), recursive=True))]  # noqa: PTH207  (any root)
        if files := [_check_readable(match) for match in matches if not match.is_dir()]:
            return files, next(index for index, part in enumerate(path.parts) if set("*?[") & set(part))  # type: ignore[return-value]
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
    bare = without_compression(name)
    suffix = Path(bare).suffix
    return bare.removesuffix(suffix) if suffix.lower() in FORMATS else name


def _files_below(directory: Path, *, any_name: bool) -> list[Path | RemoteFile]:
    """Return the files of a directory and its subdirectories, except those that are hidden or begin with _ (_SUCCESS)."""
    found = []
    for path in sorted(directory.rglob("*")):
        names = path.relative_to(directory).parts
        if path.is_dir() or any(name.startswith((".", "_")) for name in names):
            continue
        if not any_name and file_format(path) is None:
            raise FileError(
                f"directory {str(directory)!r} has a file of an unknown format: {str(Path(*names))!r}",
                hint=f"move it, or name the others, as {str(directory / '**' / '*.parquet')!r}",
            )
        found.append(_check_readable(path))
    if not found:
        raise FileError(
            f"directory {str(directory)!r} has no files", hint=f"it needs files such as part-0{next(iter(FORMATS))}"
        )
    return found  # type: ignore[return-value]


def _check_readable(path: Path) -> Path:
    """Return a path; raise unless it is a file that can be opened and is not empty."""
    if path.is_symlink() and not path.exists():
        target = os.readlink(path)  # noqa: PTH115
        raise FileError(
            f"{str(path)!r} is a link to {target!r}, which does not exist", hint="restore the file, or the link"
        )
    if not path.is_file():
        hint = "write its content to a file first; standard input is named -"
        raise FileError(f"{str(path)!r} is not a file on disk", hint=hint)
    if any("\ud800" <= letter <= "\udfff" for letter in str(path)):  # Python's stand-ins for bytes that are not UTF-8
        raise FileError(f"the name of {str(path)!r} is not UTF-8 text", hint="rename the file")
    with path.open("rb") as handle:
        if not handle.read(1):
            raise FileError(f"file {str(path)!r} is empty", hint="was it written to the end?")
    return path


@contextlib.contextmanager
def _open_csv(path: Path, encoding: str = "") -> Iterator[TextIO]:
    """Open a CSV file as text, maybe compressed; raise FileError if it is not valid text or CSV."""
    try:
        with open_binary(path) as stream, io.TextIOWrapper(stream, encoding or "utf-8-sig", newline="") as text:
            yield text
    except UnicodeError as error:
        raise wrong_encoding(path, encoding) from error
    except (csv.Error, EOFError, OSError, zlib.error) as error:
        if is_compressed(path) and not isinstance(error, csv.Error):
            raise damaged(path, error) from error
        raise FileError(f"cannot read {str(path)!r}: {error}", hint=HINTS["csv"]) from error


def _header(path: Path, encoding: str) -> tuple[str, list[str]]:
    """Return the separator and the column names of a CSV file."""
    with _open_csv(path, encoding) as handle:
        return parse_header(path, iter(lambda: handle.readline(MAX_LINE_LENGTH), ""))


def parse_header(path: Path | RemoteFile, lines: Iterable[str]) -> tuple[str, list[str]]:
    """Return the separator of CSV, the one that splits its header into most fields, and the column names."""
    choice = "\t" if without_compression(path.name.lower()).endswith(".tsv") else SEPARATORS
    lines = iter(lines)
    first = next(lines, "").removeprefix("\ufeff")
    separator = max(choice, key=lambda mark: len(next(csv.reader([first], delimiter=mark), [])))
    names = [name.strip() for name in next(csv.reader(chain([first], lines), delimiter=separator), [])]
    if not any(names):
        raise FileError(f"the first line of {display_name(path)!r} is blank", hint="it must name the columns")
    repeated = next((name for name in names if name and names.count(name) > 1), None)
    if repeated is not None:
        hint = HINTS["duplicate"]
        raise ColumnError(f"column name {repeated!r} appears more than once in {display_name(path)!r}", hint=hint)
    return separator, names


def fold_case(name: str) -> bytes:
    """Return a name in lower case as DuckDB compares names: ASCII letters only."""
    return name.encode().lower()


def find_uneven_line(path: Path | RemoteFile, separator: str) -> str | None:
    """Describe the first line of CSV with more or fewer fields than the header, which DuckDB does not always report."""
    if not isinstance(path, Path) or is_compressed(path, ".zst"):
        return None
    if is_compressed(path):
        with _open_csv(path) as handle:
            while handle.read(MAX_LINE_LENGTH):  # raises if the file is damaged
                pass
    with _open_csv(path) as handle:
        reader, width, line = csv.reader(handle, delimiter=separator), 0, 1
        for fields in reader:
            width = width or len(fields)
            if fields and len(fields) != width:
                return f"line {line} has {len(fields)} field{'s' * (len(fields) > 1)} and the header has {width}"
            line = reader.line_num + 1
    return None
