"""One column, taken off its library: numbers, flags, texts or dates as NumPy arrays."""

from __future__ import annotations

import datetime as dt
import decimal
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup.data.schema import sort_levels
from trueup.errors import ColumnError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array

FLAG_LEVELS = ("false", "true")
LARGEST_EXACT = 2.0**53


@dataclass(frozen=True, eq=False)
class Coded:
    """Codes into a sorted vocabulary; -1 is missing."""

    codes: Int32Array
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class Raw:
    """A column before it has a role.

    ``values`` is float64 with NaN for missing, for numbers, flags (0 and 1) and dates (days since 1970-01-01);
    ``coded`` holds texts. Exactly one of the two is set.
    """

    kind: Literal["number", "flag", "text", "date"]
    values: FloatArray | None = None
    coded: Coded | None = None
    exact: Callable[[], Raw] | None = None
    """For whole numbers: read them as texts, where they are too large to be told apart as floats."""

    def __len__(self) -> int:
        return len(self.codes_or_values)

    @property
    def codes_or_values(self) -> AnyArray:
        """Give the one array that is set."""
        if self.coded is not None:
            return self.coded.codes
        assert self.values is not None
        return self.values

    def missing(self) -> BoolArray:
        """Say which rows are missing."""
        found: BoolArray = self.coded.codes < 0 if self.coded is not None else np.isnan(self.codes_or_values)
        return found

    def categories(self) -> Coded:
        """Read the column as categories, whatever it holds."""
        if self.coded is not None:
            return self.coded
        values = self.codes_or_values
        if self.exact is not None and np.nanmax(np.abs(values), initial=0.0) >= LARGEST_EXACT:
            return self.exact().categories()
        if self.kind == "flag":
            return Coded(np.nan_to_num(values, nan=-1.0).astype(np.int32), FLAG_LEVELS)
        codes, found = _rank(values)
        if self.kind == "date":
            texts = [str(np.datetime64(int(np.floor(day)), "D")) for day in found]
        else:
            texts = [format_number(value) for value in found]
        return merge_texts(codes, texts)


def blank(raw: Raw) -> Raw:
    """Take a part of a column that has no value for missing numbers: what it was read as says nothing of the others."""
    return Raw("number", np.full(len(raw), np.nan)) if raw.missing().all() else raw


def format_number(value: float) -> str:
    """Write a number as a level: whole ones without a point.

    Examples
    --------
    >>> format_number(3.0), format_number(0.25), format_number(1e20)
    ('3', '0.25', '1e+20')
    """
    return str(int(value)) if value.is_integer() and abs(value) < 1e15 else repr(float(value))


def _rank(values: FloatArray) -> tuple[Int32Array, list[float]]:
    """Give each value its place among the distinct ones, -1 where NaN; whole numbers of small range without a sort."""
    known = ~np.isnan(values)
    some = values[known]
    codes = np.full(len(values), -1, np.int32)
    if not len(some):
        return codes, []
    low, high = some.min(), some.max()
    if np.isfinite(low) and np.isfinite(high) and high - low <= 4 * len(some) + 1000 and (some == np.floor(some)).all():
        offset = (some - low).astype(np.int64)
        seen = np.zeros(int(high - low) + 1, bool)
        seen[offset] = True
        codes[known] = (np.cumsum(seen) - 1)[offset]
        return codes, [float(low + at) for at in np.flatnonzero(seen)]
    found, inverse = np.unique(some, return_inverse=True)
    codes[known] = inverse
    return codes, found.tolist()


def merge_texts(codes: AnyArray, texts: Sequence[str]) -> Coded:
    """Sort a vocabulary and translate the codes; texts that are equal become one level.

    Examples
    --------
    >>> merge_texts(np.array([0, 1, -1, 2]), ["b", "a", "b"])
    Coded(codes=array([ 1,  0, -1,  1], dtype=int32), levels=('a', 'b'))
    """
    levels = sort_levels(set(texts))
    place = {text: at for at, text in enumerate(levels)}
    # The last entry serves code -1: indexing from the end is what -1 means to NumPy.
    move = np.array([*(place[text] for text in texts), -1], np.int32)
    return Coded(move[codes], levels)


def recode(coded: Coded, levels: tuple[str, ...]) -> Int32Array:
    """Translate codes into another vocabulary; a level it does not know becomes -1, as missing.

    Examples
    --------
    >>> recode(Coded(np.array([0, 1, -1], np.int32), ("a", "b")), ("b", "c"))
    array([-1,  0, -1], dtype=int32)
    """
    if coded.levels == levels:
        return coded.codes
    place = {text: at for at, text in enumerate(levels)}
    return np.array([*(place.get(text, -1) for text in coded.levels), -1], np.int32)[coded.codes]


def _is_missing(value: object) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # a missing marker that refuses to be compared, as pandas.NA does
        return type(value).__name__ in {"NAType", "NaTType"}


def from_objects(values: Iterable[Any], name: str, *, as_text: bool = False) -> Raw:
    """Read Python objects: texts, or (unless told to read texts) what one type of them stands for."""
    index: dict[Any, int] = {}
    try:
        codes = np.array([index.setdefault(value, len(index)) for value in values], np.int64)
    except TypeError as error:
        raise ColumnError(
            f"column {name!r} holds values that cannot be compared for equality ({error})",
            hint="leave it out, or turn it into text or numbers first",
        ) from error
    found = [None if _is_missing(value) else value for value in index]
    known = [value for value in found if value is not None]
    kinds = set() if as_text else {type(value) for value in known}
    if kinds and all(issubclass(kind, (bool, np.bool_)) for kind in kinds):
        return Raw("flag", np.array([np.nan if v is None else float(v) for v in (*found, None)])[codes])
    if kinds and all(issubclass(kind, (int, float, decimal.Decimal, np.number)) for kind in kinds):
        kept_values = list(index)
        return Raw(
            "number",
            np.array([_as_float(v) for v in (*found, None)])[codes],
            exact=lambda: from_objects([kept_values[code] for code in codes], name, as_text=True),
        )
    if kinds and all(issubclass(kind, (dt.date, np.datetime64)) for kind in kinds):
        return Raw("date", np.array([days(v) for v in (*found, None)])[codes])
    kept = np.cumsum([value is not None for value in found]) - 1
    move = np.array([*(at if value is not None else -1 for at, value in zip(kept, found, strict=True)), -1], np.int64)
    return Raw("text", coded=merge_texts(move[codes], [_as_text(value) for value in known]))


def _as_float(value: Any) -> float:
    if value is None:
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _as_text(value: Any) -> str:
    """Write a value as a level, in the same way whatever other values its column holds."""
    if isinstance(value, (bool, np.bool_)):
        return FLAG_LEVELS[int(value)]
    if isinstance(value, (float, np.floating)):
        return format_number(float(value))
    return str(value)


def days(value: Any) -> float:
    """Count the days from 1970-01-01 to a date or time; NaN where there is none.

    A time with a zone counts by its own clock.

    Examples
    --------
    >>> days(dt.date(1970, 1, 3)), days(dt.datetime(1970, 1, 1, 12)), days(None)
    (2.0, 0.5, nan)
    """
    if value is None:
        return float("nan")
    if isinstance(value, dt.datetime):
        value = value.replace(tzinfo=None)
    return float(days_of(np.array([value], "datetime64[us]"))[0])


def days_of(times: AnyArray) -> FloatArray:
    """Count days from 1970-01-01 for an array of datetime64, NaN for NaT."""
    micros = times.astype("datetime64[us]")
    out = micros.astype(np.int64) / 86_400e6
    out[np.isnat(micros)] = np.nan
    return out


def from_array(array: Any, name: str) -> Raw:
    """Read a NumPy array (masked entries are missing), or anything NumPy makes a one-dimensional array of."""
    mask = np.ma.getmaskarray(array) if isinstance(array, np.ma.MaskedArray) else None
    plain = np.asarray(array.data if isinstance(array, np.ma.MaskedArray) else array)
    array = array if isinstance(array, np.ma.MaskedArray) else plain
    if plain.ndim != 1:
        raise ColumnError(
            f"column {name!r} must be one-dimensional; got shape {plain.shape}", hint="pass one array a column"
        )
    kind = plain.dtype.kind
    if kind in "iufb":
        values = plain.astype(np.float64)  # always a copy: a Table never shares memory that the caller may write to
        if mask is not None:
            values[mask] = np.nan
        if kind in "iu":
            return Raw("number", values, exact=lambda: from_objects(array.tolist(), name, as_text=True))
        return Raw("flag" if kind == "b" else "number", values)
    if kind == "M":
        values = days_of(plain)
        if mask is not None:
            values[mask] = np.nan
        return Raw("date", values)
    if kind in "OU":
        objects = plain.tolist()
        if mask is not None:
            objects = [None if gone else value for value, gone in zip(objects, mask.tolist(), strict=True)]
        return from_objects(objects, name)
    raise ColumnError(
        f"column {name!r} has a type trueup does not read: {plain.dtype}",
        hint="numbers, booleans, texts, categories and dates are read; convert it, or leave it out",
    )
