"""Files that need not fit in memory, named for `trueup.audit` and `trueup.MCGrad`; `trueup.data.chunks` reads them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from collections.abc import Sequence

UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
UNITS |= {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
BASE_MEMORY = 250 * 10**6  # bytes that Python, NumPy, the kernels and DuckDB take before the first row
MIN_MEMORY = 300 * 10**6
MIN_SCAN_MEMORY = 400 * 10**6  # an audit of 10 million rows was measured to take 360 MB, with however small a budget


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
    """Return an amount of memory in bytes; raise if it is too small."""
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
