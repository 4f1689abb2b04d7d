"""Files larger than memory, named: `trueup.data.chunks` reads them. Takes no other package."""

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
MIN_MEMORY = 300 * 10**6  # Python, NumPy, the kernels and DuckDB take some 250 MB before the first row
MIN_SCAN_MEMORY = 400 * 10**6  # an audit of 10 million rows was measured to take 360 MB, however little it was given
BASE_MEMORY = 250 * 10**6


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
    """Name files that are larger than memory, for `trueup.audit` and `trueup.MCGrad` to read in pieces.

    Parameters
    ----------
    paths : path, pattern, or several
        Parquet, CSV or JSON, as the command line reads them. CSV and JSON are copied once to Parquet.
    sql : str, optional
        A query in DuckDB's SQL, run once; the files of ``paths`` are its table ``data``.
    memory : int or str
        What may be held at once, in bytes or as "2GB".
    spill : path, optional
        The folder for what does not fit: about 30 bytes a row of an audit, up to 8 a value of a fit. By default the
        system's temporary folder; what is written there goes at the end.
    threads : int, optional
        By default one a core.

    Examples
    --------
    >>> scan("scores/*.parquet", memory="4GB")
    <Scan of scores/*.parquet, within 4 GB>
    """
    if paths is None and sql is None:
        raise ArgumentError("neither a file nor a query was given", hint="pass paths, sql or both")
    place = None if spill is None else Path(spill)
    if place is not None and not place.is_dir():
        raise FileError(f"there is no folder {str(place)!r} to spill to", hint="make it, or name another")
    return Scan(paths, sql, parse_memory(memory, MIN_SCAN_MEMORY), place, threads)


def parse_memory(given: int | str, least: int = MIN_MEMORY) -> int:
    """Read an amount of memory, of so many bytes at least.

    Examples
    --------
    >>> parse_memory("1.5 GB"), parse_memory("2GiB"), parse_memory(10**9)
    (1500000000, 2147483648, 1000000000)
    """
    found = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*([A-Za-z]*)\s*", str(given)) if not isinstance(given, bool) else None
    unit = UNITS.get(found[2].upper()) if found else None
    if found is None or unit is None:
        raise ArgumentError(f"memory must be a number of bytes, or as 2GB; got {given!r}", hint="units are KB, MB, GB, TB")
    amount = int(float(found[1]) * unit)
    if amount < least:
        raise ArgumentError(
            f"memory must be at least {least // 10**6} MB; got {given!r}", hint="the libraries alone take 250 MB"
        )
    return amount
