"""One column, taken off its library: numbers, flags, texts or dates as NumPy arrays."""

from __future__ import annotations

import datetime as dt
import decimal
import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup.data.schema import sort_levels
from trueup.errors import ColumnError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array

FLAG_LEVELS = ("false", "true")
LARGEST_EXACT = 2.0**53


@dataclass(frozen=True, eq=False)
class CodedColumn:
    """Codes into a sorted vocabulary; -1 is missing."""

    codes: Int32Array
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class RawColumn:
    """A column before it has a role.

    ``values`` is float64 with NaN for missing, for numbers, flags (0 and 1) and dates (days since 1970-01-01);
    ``coded`` holds texts. Exactly one of the two is set.
    """

    kind: Literal["number", "flag", "text", "date"]
    values: FloatArray | None = None
    coded: CodedColumn | None = None
    exact: Callable[[], RawColumn] | None = None
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

    def categories(self) -> CodedColumn:
        """Read the column as categories, whatever it holds."""
        if self.coded is not None:
            return self.coded
        values = self.codes_or_values
        if self.exact is not None and np.nanmax(np.abs(values), initial=0.0) >= LARGEST_EXACT:
            return self.exact().categories()
        if self.kind == "flag":
            return CodedColumn(np.nan_to_num(values, nan=-1.0).astype(np.int32), FLAG_LEVELS)
        codes, found = _rank(values)
        if self.kind == "date":
            texts = [str(np.datetime64(int(np.floor(day)), "D")) for day in found]
        else:
            texts = [format_number(value) for value in found]
        return encode_texts(codes, texts)


def untyped_if_missing(raw: RawColumn) -> RawColumn:
    """Take a part of a column that has no value for missing numbers: what it was read as says nothing of the others."""
    return RawColumn("number", np.full(len(raw), np.nan)) if raw.missing().all() else raw


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


def encode_texts(codes: AnyArray, texts: Sequence[str]) -> CodedColumn:
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
    return CodedColumn(move[codes], levels)


def recode(coded: CodedColumn, levels: tuple[str, ...]) -> Int32Array:
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


def from_objects(values: Iterable[Any], name: str, *, as_text: bool = False) -> RawColumn:
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
        return RawColumn("flag", np.array([np.nan if v is None else float(v) for v in (*found, None)])[codes])
    if kinds and all(issubclass(kind, (int, float, decimal.Decimal, np.number)) for kind in kinds):
        kept_values = list(index)
        return RawColumn(
            "number",
            np.array([_as_float(v) for v in (*found, None)])[codes],
            exact=lambda: from_objects([kept_values[code] for code in codes], name, as_text=True),
        )
    if kinds and all(issubclass(kind, (dt.date, np.datetime64)) for kind in kinds):
        return RawColumn("date", np.array([days_since_epoch(v) for v in (*found, None)])[codes])
    kept = np.cumsum([value is not None for value in found]) - 1
    move = np.array([*(at if value is not None else -1 for at, value in zip(kept, found, strict=True)), -1], np.int64)
    return RawColumn("text", coded=encode_texts(move[codes], [_as_text(value) for value in known]))


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


def days_since_epoch(value: Any) -> float:
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


def from_array(array: Any, name: str) -> RawColumn:
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
            return RawColumn("number", values, exact=lambda: from_objects(array.tolist(), name, as_text=True))
        return RawColumn("flag" if kind == "b" else "number", values)
    if kind == "M":
        values = days_of(plain)
        if mask is not None:
            values[mask] = np.nan
        return RawColumn("date", values)
    if kind in "OU":
        objects = plain.tolist()
        if mask is not None:
            objects = [None if gone else value for value, gone in zip(objects, mask.tolist(), strict=True)]
        return from_objects(objects, name)
    raise ColumnError(
        f"column {name!r} has a type trueup does not read: {plain.dtype}",
        hint="numbers, booleans, texts, categories and dates are read; convert it, or leave it out",
    )


@dataclass(frozen=True, eq=False)
class ColumnSource:
    """Columns by key, each read when asked for."""

    keys: tuple[Hashable, ...]
    rows: int
    fetch: Callable[[Hashable], RawColumn]
    by_position: bool = False

    def __post_init__(self) -> None:
        check_unique_names([self.label(key) for key in self.keys])

    def label(self, key: Hashable) -> str:
        """Give the name people see: x0, x1, ... for the columns of an array."""
        return f"x{key}" if self.by_position else str(key)

    def find(self, key: Hashable, role: str) -> Hashable:
        """Check that a column is there; say which name is nearest where it is not."""
        if self.by_position and isinstance(key, (int, np.integer)) and -len(self.keys) <= key < len(self.keys):
            return int(key) % len(self.keys)
        if key in self.keys and not isinstance(key, bool):
            return key
        known_names = [str(known) for known in self.keys]
        near = [name for name in known_names if name.lower() == str(key).lower()]
        near = near or difflib.get_close_matches(str(key), known_names, n=1, cutoff=0.6)
        if near:
            hint = f"did you mean {near[0]!r}?"
        elif self.by_position:
            hint = f"columns of an array are named by position, 0 to {len(self.keys) - 1}"
        else:
            known = ", ".join(str(known) for known in self.keys[:12])
            hint = f"the columns are {known}{', ...' if len(self.keys) > 12 else ''}"
        raise ColumnError(f"no column {key!r} to use as {role}", hint=hint)

    def find_all(self, keys: Sequence[Hashable], role: str) -> tuple[Hashable, ...]:
        """Find several columns and refuse one that is named twice."""
        found = tuple(self.find(key, role) for key in keys)
        for at, key in enumerate(found):
            if key in found[:at]:
                raise ColumnError(f"column {self.label(key)!r} is named twice as {role}", hint="name each column once")
        return found


def check_unique_names(keys: Sequence[Hashable]) -> None:
    """Refuse a column name that is there more than once."""
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise ColumnError(
            f"column name {twice[0]!r} appears more than once ({len(twice)} such name{'s' if len(twice) > 1 else ''})",
            hint="rename the columns so that each name is there once",
        )


def open_array(array: np.ndarray[Any, Any]) -> ColumnSource:
    """Open a NumPy array: columns by position; one dimension is a single column."""
    if array.ndim not in (1, 2):
        raise ColumnError(f"an array of data must have one or two dimensions; got shape {array.shape}")
    table = array[:, None] if array.ndim == 1 else array

    def fetch(key: Hashable) -> RawColumn:
        assert isinstance(key, int)
        return from_array(table[:, key], f"x{key}")

    return ColumnSource(tuple(range(table.shape[1])), len(table), fetch, by_position=True)


def open_mapping(columns: Mapping[Any, Any]) -> ColumnSource:
    """Open a dict of equally long arrays (or columns that are coded already)."""
    for key, column in columns.items():
        if not hasattr(column, "__len__") or isinstance(column, (str, bytes, Mapping)):
            raise ColumnError(
                f"column {key!r} must be an array; got {type(column).__name__}", hint="every array needs one entry a row"
            )
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key!r} has {length}" for key, length in list(lengths.items())[:6])
        raise ColumnError(
            f"the columns must be equally long: {listed}{', ...' if len(lengths) > 6 else ''}",
            hint="every array needs one entry a row",
        )

    def fetch(key: Hashable) -> RawColumn:
        column = columns[key]
        return RawColumn("text", coded=column) if isinstance(column, CodedColumn) else from_array(column, str(key))

    return ColumnSource(tuple(columns), next(iter(lengths.values()), 0), fetch)
