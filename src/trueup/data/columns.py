"""Columns of frames and arrays as NumPy arrays, and results as frames.

The only importer of narwhals, which reads frames and series: arrays, dicts of arrays and lists of rows do without it.
"""

from __future__ import annotations

import datetime as dt
import decimal
import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from trueup._optional import require, require_installed
from trueup._validate import did_you_mean
from trueup.data.scan import Scan
from trueup.data.table import Feature, Kind, sort_levels
from trueup.errors import ArgumentError, ColumnError, DataError

if TYPE_CHECKING:
    import narwhals as nw

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array

FLAG_LEVELS = ("false", "true")
MAX_EXACT = 2.0**53  # integers up to here are exact as float64
UNSUPPORTED_HINT = "numbers, booleans, texts, categories, dates, times and durations are read; convert it, or leave it out"
ValueKind = Literal["number", "flag", "text", "date"]
FEATURE_KINDS: dict[ValueKind, Kind] = {"number": "numeric", "flag": "categorical", "text": "categorical", "date": "date"}
Engine = Literal["spark", "dask", "scan"]
PANDAS_LIKE = {"pandas", "modin", "cudf"}


@dataclass(frozen=True, eq=False)
class CodedColumn:
    """Codes into a sorted vocabulary; -1 is missing."""

    codes: Int32Array
    levels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.codes)


@dataclass(frozen=True, eq=False)
class RawColumn:
    """A column before it has a role: either ``values`` or ``coded`` is set."""

    kind: ValueKind
    values: FloatArray | None = None  # numbers, flags (0 and 1) and dates (days since 1970-01-01); NaN for missing
    coded: CodedColumn | None = None  # texts
    as_texts: Callable[[], RawColumn] | None = None  # of integers: distinct ones beyond 2**53 may be equal as floats

    def __len__(self) -> int:
        return len(self.codes_or_values)

    @property
    def codes_or_values(self) -> AnyArray:
        """The array ``values``, or the codes of ``coded``, whichever is set."""
        if self.coded is not None:
            return self.coded.codes
        assert self.values is not None
        return self.values

    @property
    def exceeds_floats(self) -> bool:
        """Whether these are integers, and some so large that distinct ones may be equal as floats."""
        return self.as_texts is not None and bool(np.nanmax(np.abs(self.codes_or_values), initial=0.0) >= MAX_EXACT)

    def missing(self) -> BoolArray:
        """Return a mask of the missing rows."""
        mask: BoolArray = self.coded.codes < 0 if self.coded is not None else np.isnan(self.codes_or_values)
        return mask

    def categories(self) -> CodedColumn:
        """Read the column as categories, whatever it contains."""
        if self.coded is not None:
            return self.coded
        values = self.codes_or_values
        if self.exceeds_floats:
            assert self.as_texts is not None
            return self.as_texts().categories()
        if self.kind == "flag":
            return CodedColumn(np.nan_to_num(values, nan=-1.0).astype(np.int32), FLAG_LEVELS)
        codes, distinct = _rank(values)
        if self.kind == "date":
            texts = [str(np.datetime64(int(np.floor(day)), "D")) for day in distinct]
        else:
            texts = [format_number(value) for value in distinct]
        return encode_texts(codes, texts)


@dataclass(frozen=True)
class UnreadColumn:
    """Stands for a column of a file or of a query that cannot be read."""

    error: ColumnError
    rows: int

    def __len__(self) -> int:
        return self.rows


def unread_type(name: str, declared: object) -> ColumnError:
    """Return the error for a column of a type that is not read."""
    return ColumnError(f"column {name!r} has a type that trueup does not read: {str(declared)[:60]}", UNSUPPORTED_HINT)


def untyped_if_missing(raw: RawColumn) -> RawColumn:
    """Return ``raw``, or a column of NaN if all values are missing, so that other partitions may have any type."""
    return RawColumn("number", np.full(len(raw), np.nan)) if raw.missing().all() else raw


def format_number(value: float) -> str:
    """Format a number as a level: integers without a decimal point."""
    return str(int(value)) if value.is_integer() and abs(value) < MAX_EXACT else repr(float(value))


def _rank(values: FloatArray) -> tuple[Int32Array, list[float]]:
    """Return each value's index among the sorted distinct values (-1 for NaN), and the distinct values."""
    known = ~np.isnan(values)
    present = values[known]
    codes = np.full(len(values), -1, np.int32)
    if not len(present):
        return codes, []
    low, high = present.min(), present.max()
    small_range = np.isfinite(low) and np.isfinite(high) and high - low <= 4 * len(present) + 1000
    if small_range and (present == np.floor(present)).all():
        offset = (present - low).astype(np.int64)
        seen = np.zeros(int(high - low) + 1, bool)
        seen[offset] = True
        codes[known] = (np.cumsum(seen) - 1)[offset]
        return codes, [float(low + step) for step in np.flatnonzero(seen)]
    distinct, inverse = np.unique(present, return_inverse=True)
    codes[known] = inverse
    return codes, distinct.tolist()


def encode_texts(codes: AnyArray, texts: Sequence[str]) -> CodedColumn:
    """Return ``codes`` into ``texts`` as codes into a sorted vocabulary; equal texts become one level."""
    levels = sort_levels(set(texts))
    return CodedColumn(_translation(texts, levels)[codes], levels)


def encode_used_texts(codes: AnyArray, texts: Sequence[str]) -> CodedColumn:
    """Encode texts as `encode_texts` does, without texts that no row has."""
    used = np.zeros(len(texts) + 1, bool)
    used[codes] = True  # code -1 marks the spare last entry
    move = np.append(np.where(used[:-1], np.cumsum(used[:-1]) - 1, -1), -1)
    return encode_texts(move[codes], [text for text, is_used in zip(texts, used[:-1], strict=True) if is_used])


def recode(coded: CodedColumn, levels: tuple[str, ...]) -> Int32Array:
    """Translate codes into the vocabulary ``levels``; a level that is not in it becomes -1, as missing."""
    return coded.codes if coded.levels == levels else _translation(coded.levels, levels)[coded.codes]


def _translation(texts: Sequence[str], levels: Sequence[str]) -> Int32Array:
    """Return the code of each text in ``levels``, -1 if it is absent, and one more -1 at the end, for code -1 (missing)."""
    index = {text: code for code, text in enumerate(levels)}
    return np.array([*(index.get(text, -1) for text in texts), -1], np.int32)


def _is_missing(value: object) -> bool:
    if value is None:
        return True
    try:
        return bool(value != value)
    except (TypeError, ValueError):  # a missing marker that cannot be compared, as pandas.NA
        return type(value).__name__ in {"NAType", "NaTType"}


def from_objects(values: Iterable[Any], name: str, *, as_text: bool = False) -> RawColumn:
    """Read Python objects by their common type; as texts if there is none, or if ``as_text``."""
    index: dict[Any, int] = {}
    values = list(values)
    try:
        codes = np.array([index.setdefault(value, len(index)) for value in values], np.int64)
    except TypeError:
        raise unread_type(name, next(type(value).__name__ for value in values if not _is_hashable(value))) from None
    distinct = [None if _is_missing(value) else value for value in index]
    known = [value for value in distinct if value is not None]
    types = set() if as_text else {type(value) for value in known}
    if types and all(issubclass(kind, (bool, np.bool_)) for kind in types):
        return RawColumn("flag", np.array([np.nan if v is None else float(v) for v in (*distinct, None)])[codes])
    if binary := next((kind for kind in types if issubclass(kind, (bytes, bytearray, memoryview))), None):
        raise unread_type(name, binary.__name__)
    if types and all(issubclass(kind, (dt.timedelta, np.timedelta64)) for kind in types):
        return RawColumn("number", seconds_of(np.array([*distinct, None], "timedelta64[us]"))[codes])
    if types and all(issubclass(kind, dt.time) for kind in types):
        return RawColumn("number", np.array([np.nan if v is None else _hours_of(v) for v in (*distinct, None)])[codes])
    if types and all(issubclass(kind, (int, float, decimal.Decimal, np.number)) for kind in types):
        originals = list(index)
        is_exact = any(not isinstance(value, (float, np.floating)) and abs(value) >= MAX_EXACT for value in known)
        return RawColumn(
            "number",
            np.array([as_float(value) for value in (*distinct, None)])[codes],
            as_texts=(lambda: from_objects([originals[code] for code in codes], name, as_text=True)) if is_exact else None,
        )
    if types and all(issubclass(kind, (dt.date, np.datetime64)) for kind in types):
        clock = [value.replace(tzinfo=None) if isinstance(value, dt.datetime) else value for value in (*distinct, None)]
        return RawColumn("date", days_of(np.array(clock, "datetime64[us]"))[codes])  # by its own clock in any time zone
    rank = np.cumsum([value is not None for value in distinct]) - 1
    move = np.array([*(r if value is not None else -1 for r, value in zip(rank, distinct, strict=True)), -1], np.int64)
    return RawColumn("text", coded=encode_texts(move[codes], [_as_text(value) for value in known]))


def as_float(value: Any) -> float:
    """Return a number as float: NaN for None, infinity for an integer that is too large."""
    if value is None:
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf") if value > 0 else float("-inf")


def _is_hashable(value: object) -> bool:
    try:
        hash(value)
    except TypeError:
        return False
    return True


def _as_text(value: Any) -> str:
    if isinstance(value, (bool, np.bool_)):
        return FLAG_LEVELS[int(value)]
    if isinstance(value, decimal.Decimal) and value == value.to_integral_value():
        return str(int(value))
    if isinstance(value, (float, np.floating)):
        return format_number(float(value))
    return str(value)


def days_of(times: AnyArray) -> FloatArray:
    """Return the days since 1970-01-01 of an array of datetime64, NaN for NaT."""
    micros = times.astype("datetime64[us]")
    days = micros.astype(np.int64) / 86_400e6
    days[np.isnat(micros)] = np.nan
    return days


def seconds_of(durations: AnyArray) -> FloatArray:
    """Return an array of timedelta64 in seconds, NaN for NaT."""
    return np.asarray(durations / np.timedelta64(1, "s"), np.float64)


def _hours_of(clock: dt.time) -> float:
    """Return a time of day in hours since midnight."""
    return (clock.hour * 3600 + clock.minute * 60 + clock.second + clock.microsecond / 1e6) / 3600


def from_array(array: Any, name: str) -> RawColumn:
    """Read a NumPy array (masked entries are missing), or anything that NumPy converts to a one-dimensional array."""
    array = array if isinstance(array, np.ma.MaskedArray) else np.asarray(array)
    plain, mask = np.ma.getdata(array), np.ma.getmask(array)  # np.ma.nomask, which is False, masks nothing
    if plain.ndim != 1:
        raise ColumnError(
            f"column {name!r} must be one-dimensional; got shape {plain.shape}", hint="pass one array per column"
        )
    kind = plain.dtype.kind
    if kind in "iufbMm":
        # Always a copy: a Table never shares memory that the caller may write to.
        values = days_of(plain) if kind == "M" else seconds_of(plain) if kind == "m" else plain.astype(np.float64)
        values[mask] = np.nan
        if kind in "iu":
            return RawColumn("number", values, as_texts=lambda: from_objects(array.tolist(), name, as_text=True))
        return RawColumn({"b": "flag", "M": "date"}.get(kind, "number"), values)  # type: ignore[arg-type]
    if kind in "OU":
        return from_objects(array.tolist(), name)  # masked entries are None
    raise unread_type(name, plain.dtype)


@dataclass(frozen=True, eq=False)
class ColumnSource:
    """Columns by name or position, each read when asked for."""

    keys: tuple[Hashable, ...]
    rows: int
    fetch: Callable[[Hashable], RawColumn]
    by_position: bool = False

    def __post_init__(self) -> None:
        check_unique_names([self.label(key) for key in self.keys])

    @classmethod
    def of_names(cls, names: Iterable[Hashable]) -> ColumnSource:
        """Return a source for looking up names alone; nothing can be read from it."""
        return cls(tuple(names), 0, dict[Hashable, RawColumn]().__getitem__)

    def label(self, key: Hashable) -> str:
        """Return the displayed name: x0, x1, ... for the columns of an array."""
        return f"x{key}" if self.by_position else str(key)

    def find(self, key: Hashable, role: str) -> Hashable:
        """Return the key of a column; if there is none, raise with its ``role`` and the most similar name."""
        if self.by_position and isinstance(key, (int, np.integer)) and -len(self.keys) <= key < len(self.keys):
            return int(key) % len(self.keys)
        if key in self.keys and not isinstance(key, bool):
            return key
        names = [str(known) for known in self.keys]
        hint = f"the columns are {', '.join(names[:12])}{', ...' if len(names) > 12 else ''}"
        if self.by_position:
            hint = f"columns of an array are named by position, 0 to {len(self.keys) - 1}"
        raise ColumnError(f"no column {key!r} to use as {role}", hint=did_you_mean(str(key), names) or hint)

    def find_all(self, keys: Sequence[Hashable], role: str) -> tuple[Hashable, ...]:
        """Return the keys of several columns; raise if one does not exist or is named twice."""
        columns = tuple(self.find(key, role) for key in keys)
        for index, key in enumerate(columns):
            if key in columns[:index]:
                raise ColumnError(f"column {self.label(key)!r} is named twice as {role}", hint="name each column once")
        return columns


def as_tuple(names: Any) -> tuple[Any, ...]:
    """Return one name or several as a tuple."""
    return tuple(names) if isinstance(names, Iterable) and not isinstance(names, (str, bytes)) else (names,)


def as_keys(names: Any, source: ColumnSource) -> tuple[Hashable, ...]:
    """Return one name or several as a tuple; in pandas, a tuple may itself be a name."""
    return (names,) if isinstance(names, tuple) and names in source.keys else as_tuple(names)


def find_excluded(source: ColumnSource, exclude: Any, scores: Sequence[Hashable]) -> tuple[Hashable, ...]:
    """Return the keys of the columns that must not be used; raise if one does not exist or is the prediction."""
    excluded = source.find_all(as_keys(() if exclude is None else exclude, source), "excluded column")
    for key in excluded:
        if key in scores:
            raise ColumnError(
                f"column {source.label(key)!r} is named both as prediction and in exclude",
                hint="exclude names columns that the correction must not use besides the prediction",
            )
    return excluded


def check_distinct_roles(
    roles: Mapping[str, Hashable | None], predictions: Sequence[Hashable], source: ColumnSource
) -> None:
    """Raise if a column has two of the ``roles``, or is also one of the ``predictions``."""
    taken: dict[Hashable | None, str] = dict.fromkeys(predictions, "prediction")
    for role, key in roles.items():
        if key is not None and (other := taken.setdefault(key, role)) != role:
            raise ColumnError(
                f"column {source.label(key)!r} is named both as {other} and as {role}", hint="a column has one role"
            )


def check_unique_names(names: Sequence[Hashable]) -> None:
    """Raise if a column name appears more than once."""
    repeated = [name for name, count in Counter(names).items() if count > 1]
    if repeated:
        count = f"{len(repeated)} such name{'s' if len(repeated) > 1 else ''}"
        raise ColumnError(
            f"column name {repeated[0]!r} appears more than once ({count})",
            hint="rename the columns so that names are unique",
        )


def open_array(array: np.ndarray[Any, Any]) -> ColumnSource:
    """Open a NumPy array as a source of columns by position; a one-dimensional array is a single column."""
    if array.ndim not in (1, 2):
        raise ColumnError(f"an array of data must have one or two dimensions; got shape {array.shape}")
    columns = array[None] if array.ndim == 1 else array.T
    keys = tuple(range(len(columns)))
    return ColumnSource(keys, len(array), lambda key: from_array(columns[cast("int", key)], f"x{key}"), by_position=True)


def open_mapping(columns: Mapping[Any, Any]) -> ColumnSource:
    """Open a dict of arrays or `CodedColumn`, of equal length, as a source of columns by key."""
    for key, column in columns.items():
        if not hasattr(column, "__len__") or isinstance(column, (str, bytes, Mapping)):
            raise ColumnError(
                f"column {key!r} must be an array; got {type(column).__name__}", hint="every array needs one entry per row"
            )
    check_aligned({f"column {key!r}": column for key, column in columns.items()})
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key!r} has {length}" for key, length in list(lengths.items())[:6])
        raise ColumnError(
            f"the columns must have equal lengths: {listed}{', ...' if len(lengths) > 6 else ''}",
            hint="every array needs one entry per row",
        )

    def fetch(key: Hashable) -> RawColumn:
        column = columns[key]
        if isinstance(column, UnreadColumn):
            raise column.error
        return RawColumn("text", coded=column) if isinstance(column, CodedColumn) else from_array(column, str(key))

    return ColumnSource(tuple(columns), next(iter(lengths.values()), 0), fetch)


def check_kind(raw: RawColumn, feature: Feature) -> None:
    """Raise if a column does not have the type of ``feature``, which comes from a schema."""
    kind = FEATURE_KINDS[raw.kind]
    as_categories = feature.kind == "categorical" and kind != "categorical" and feature.levels != FLAG_LEVELS
    if kind != feature.kind and not as_categories:
        raise ColumnError(
            f"column {feature.name!r} was {feature.kind} and now holds {raw.kind}s", hint="read it with the type it had"
        )


def tensor_to_array(data: Any) -> Any:
    """Return a two-dimensional tensor of PyTorch, JAX or TensorFlow as a NumPy array, anything else as it is."""
    if getattr(data, "ndim", None) != 2 or not hasattr(data, "__array__") or hasattr(data, "columns"):
        return data
    return np.asarray(data)


def open_rows(rows: Sequence[Mapping[Any, Any]]) -> ColumnSource:
    """Open a list of rows, mappings of keys to values, as a source of columns by key; absent values are missing."""
    columns = {}
    for key in dict.fromkeys(key for row in rows for key in row.keys()):  # noqa: SIM118  (pandas iterates over the values)
        columns[key] = np.empty(len(rows), object)
        columns[key][:] = [row.get(key) for row in rows]
    return ColumnSource(tuple(columns), len(rows), lambda key: from_array(columns[key], str(key)))


def open_source(data: Any) -> ColumnSource:
    """Open a frame, a dict of arrays, a list of rows or an array as a source of columns by name or position."""
    data = tensor_to_array(data)
    if isinstance(data, np.ndarray):
        return open_array(data)
    if isinstance(data, Mapping):
        return open_mapping(data)
    if isinstance(data, (list, tuple)) and data and all(isinstance(row, Mapping) for row in data):
        return open_rows(data)
    if (getattr(data, "ndim", None) == 1 and hasattr(data, "__array__")) or type(data).__name__ == "Series":
        return open_array(np.asarray(data))  # a series is the prediction itself, as a one-dimensional array is
    nw = _narwhals(data)
    try:
        frame = nw.from_native(data, eager_only=True)
    except nw.exceptions.DuplicateError:
        check_unique_names(getattr(data, "column_names", None) or list(data.columns))
        raise
    except TypeError as error:
        hint = "pass a pandas, polars or pyarrow frame, a dict of arrays, a list of dicts, or a NumPy array"
        if hasattr(data, "collect"):
            hint = "call .collect() on it first"
        elif hasattr(data, "toarray"):
            hint = "a sparse matrix: select the columns to use, and make them dense with .toarray()"
        kind = f"{type(data).__module__}.{type(data).__qualname__}"
        raise ColumnError(f"cannot read data of type {kind}", hint) from error
    return ColumnSource(tuple(frame.columns), len(frame), lambda key: _from_series(frame.get_column(key), str(key)))


def _narwhals(data: Any) -> Any:
    """Import narwhals; raise MissingPackageError that names the type of ``data`` if it is not installed."""
    require_installed(
        f"a {type(data).__module__}.{type(data).__qualname__}", "narwhals",
        otherwise="or pass a dict of arrays, a list of dicts or a NumPy array",
    )  # fmt: skip
    import narwhals

    return narwhals


def from_values(values: Any, name: str) -> RawColumn:
    """Read a series, an array, or anything that NumPy converts to an array."""
    if isinstance(values, (np.ndarray, list, tuple)):
        return from_array(values, name)
    nw = _narwhals(values)
    try:
        series = nw.from_native(values, series_only=True)
    except TypeError:
        return from_array(values, name)
    return _from_series(series, name)


def _from_series(series: nw.Series[Any], name: str) -> RawColumn:
    """Read a series by the fastest conversion of its library; ``name`` is for messages."""
    nw = _narwhals(series)
    dtype = series.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        is_integer = dtype.is_integer() or (dtype == nw.Decimal and _has_no_decimals(series))
        # A cast of pyarrow would fail for integers beyond 2^53.
        is_exact = series.implementation.is_pyarrow() and dtype.is_integer()
        # Always a copy: a Table never shares memory that the caller may write to.
        values = np.array((series if is_exact else series.cast(nw.Float64)).to_numpy(), np.float64)
        kind: ValueKind = "flag" if dtype == nw.Boolean else "number"
        return RawColumn(kind, values, as_texts=(lambda: _texts(series, name)) if is_integer else None)
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return _texts(series, name)
    if dtype == nw.Date:
        return RawColumn("date", days_of(series.cast(nw.Datetime("us")).to_numpy()))
    is_pandas = series.implementation.is_pandas_like()
    if dtype == nw.Datetime or (is_pandas and getattr(series.to_native().dtype, "tz", None) is not None):
        return RawColumn("date", days_of(series.dt.replace_time_zone(None).to_numpy()))
    if dtype == nw.Duration:
        return from_array(series.to_numpy(), name)
    if series.null_count() == len(series):
        return RawColumn("number", np.full(len(series), np.nan))  # no type, since it has no values
    if dtype in (nw.Object, nw.Time):
        return from_objects(series.to_list(), name)
    if is_pandas and hasattr(series.to_native(), "sparse"):
        return _from_series(nw.from_native(series.to_native().sparse.to_dense(), series_only=True), name)
    raise unread_type(name, dtype)


def _has_no_decimals(series: nw.Series[Any]) -> bool:
    """Return whether the decimals of a series are integers, by their type."""
    native = series.to_native()
    declared = getattr(native, "dtype", None) or native.type
    return getattr(getattr(declared, "pyarrow_dtype", declared), "scale", 0) == 0


def _texts(series: nw.Series[Any], name: str) -> RawColumn:
    nw = _narwhals(series)
    native = series.to_native()
    has_vocabulary = series.dtype in (nw.Categorical, nw.Enum)
    if series.implementation.is_pandas_like() and hasattr(native, "factorize"):
        if has_vocabulary:
            texts = [str(value) for value in native.cat.categories]
            return RawColumn("text", coded=encode_used_texts(native.cat.codes.to_numpy(), texts))
        codes, distinct = native.factorize()
        return RawColumn("text", coded=encode_texts(codes, [str(value) for value in distinct]))
    if series.implementation.is_polars():
        if not has_vocabulary:
            native = series.cast(nw.String).cast(nw.Categorical).to_native()
        unique = native.unique().drop_nulls()
        physical = unique.to_physical().to_numpy().astype(np.int64)
        move = np.full(int(physical.max(initial=-1)) + 2, -1, np.int64)
        move[physical] = np.arange(len(physical))
        codes = native.to_physical().fill_null(len(move) - 1).to_numpy()
        return RawColumn("text", coded=encode_texts(move[codes], [str(value) for value in unique.to_list()]))
    if series.implementation.is_pyarrow():
        array = native.combine_chunks()
        array = array if series.dtype == nw.Categorical else array.dictionary_encode()
        codes = array.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        texts = array.dictionary.to_pylist()
        nulls = [code for code, text in enumerate(texts) if text is None]
        codes = np.where(np.isin(codes, nulls), -1, codes) if nulls else codes
        return RawColumn("text", coded=encode_used_texts(codes, [str(text) for text in texts]))
    return from_objects(series.to_list(), name)


def check_aligned(named: Mapping[str, Any]) -> None:
    """Raise if two pandas objects of the same length have different indexes: their rows would be paired by position.

    A value that is itself a mapping stands for its values. Lengths are compared elsewhere.
    """
    first: tuple[str, Any] | None = None
    for name, index in _iter_indexes(named):
        if first is None:
            first = name, index
        elif index is not first[1] and len(index) == len(first[1]) and not index.equals(first[1]):
            raise _index_error(name, index, *first)


def _iter_indexes(named: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in named.items():
        if isinstance(value, Mapping):
            yield from _iter_indexes({f"{name}[{key!r}]": item for key, item in value.items()})
        elif _is_pandas_like(value):
            yield name, value.index


def _is_pandas_like(value: Any) -> bool:
    """Return whether a value is a series or a frame with an index."""
    kinds = [kind for kind in type(value).__mro__ if kind.__name__ in ("Series", "DataFrame")]
    return any(kind.__module__.partition(".")[0] in PANDAS_LIKE for kind in kinds)


def _index_error(name: str, index: Any, first_name: str, first: Any) -> DataError:
    pairs = zip(index.tolist(), first.tolist(), strict=True)
    differing = [(row, own, other) for row, (own, other) in enumerate(pairs) if own != other and not own != own != other]
    row, own, other = differing[0] if differing else (0, index[0], first[0])  # equal labels may differ in type
    reordered = index.isin(first).all() and first.isin(index).all()
    problem = f"the index of {first_name} in another order" if reordered else f"another index than {first_name}"
    rows = f"{len(differing):,} such row{'s' if len(differing) > 1 else ''}"
    return DataError(
        f"{name} has {problem}: {own!r} instead of {other!r} at row {row} ({rows})",
        hint="align it with .loc[frame.index], or pass .to_numpy() if the rows are in the same order",
    )


def frame_like(columns: Mapping[str, AnyArray], like: Any) -> Any:
    """Return columns as a frame of the library of ``like``; a dict of arrays if it is None, an array or a mapping."""
    if like is None or isinstance(like, (np.ndarray, Mapping)):
        return dict(columns)
    nw = _narwhals(like)
    try:
        backend = nw.get_native_namespace(nw.from_native(like))
    except TypeError as error:
        raise ArgumentError(
            f"cannot make a frame like {type(like).__qualname__}",
            hint="pass a pandas, polars or pyarrow frame, or None for a dict of arrays",
        ) from error
    return _native_frame(columns, backend)


def permute_column(frame: Any, key: Hashable, order: AnyArray) -> Any:
    """Return a frame of any library with the values of one column in another ``order``; its type stays the same."""
    nw = _narwhals(frame)
    native = nw.from_native(frame, eager_only=True)
    column = native.get_column(key)
    if native.implementation.is_pandas_like():  # a key need not be a text
        permuted = frame.copy(deep=False)
        permuted[key] = column.to_native().take(order).set_axis(frame.index)
        return permuted
    return native.with_columns(column[order.tolist()].alias(str(key))).to_native()


def frame_of(library: str, columns: Mapping[str, AnyArray]) -> Any:
    """Return columns as a frame of "pandas" or "polars"; raise if the user does not have it."""
    return _native_frame(columns, require(library))


def _native_frame(columns: Mapping[str, AnyArray], backend: Any) -> Any:
    lists = {name: column.tolist() if column.dtype == object else column for name, column in columns.items()}
    return _narwhals(backend).from_dict(lists, backend=backend).to_native()


def to_jsonable(value: Any) -> Any:
    """Return a value that JSON can represent: arrays as lists, numbers that are not finite as None."""
    if isinstance(value, Mapping):
        return {str(name): to_jsonable(item) for name, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(item) for item in value]
    if isinstance(value, np.ndarray):
        return to_jsonable(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_known_feature(raw: RawColumn, feature: Feature) -> AnyArray:
    """Return a column as numbers or codes of a feature of a schema; any type is accepted if all values are missing."""
    is_categorical = feature.kind == "categorical"
    if raw.missing().all():
        return np.full(len(raw), -1, np.int32) if is_categorical else np.full(len(raw), np.nan)
    check_kind(raw, feature)
    if not is_categorical:
        return raw.codes_or_values
    codes = recode(raw.categories(), feature.levels)
    if feature.unseen_level:
        codes = np.where((codes < 0) & ~raw.missing(), np.int32(len(feature.levels) - 1), codes)
    return codes


def encoder(feature: Feature) -> Callable[[Any], float]:
    """Return a function from a value of a feature to its number or code; missing is NaN or -1."""
    codes = {level: float(code) for code, level in enumerate(feature.levels)}
    missing = -1.0 if feature.kind == "categorical" else math.nan
    unseen = len(codes) - 1.0 if feature.unseen_level else missing

    def encode(value: Any) -> float:
        return missing if value is None else float(read_known_feature(from_array([value], feature.name), feature)[0])

    def encode_text(value: Any) -> float:
        return codes.get(value, unseen) if type(value) is str else encode(value)

    def encode_number(value: Any) -> float:
        if isinstance(value, float):  # includes np.float64
            return value
        return as_float(value) if type(value) is int else encode(value)

    return {"categorical": encode_text, "numeric": encode_number, "date": encode}[feature.kind]


def engine_of(data: Any) -> Engine | None:
    """Return the engine that holds the rows ("spark", "dask" or "scan"), by the type of the data; None if in memory."""
    if isinstance(data, Scan):
        return "scan"
    for kind in type(data).__mro__:
        if kind.__name__ == "DataFrame" and kind.__module__.startswith("pyspark.sql."):
            return "spark"
        if kind.__name__ == "DataFrame" and kind.__module__.split(".")[0] in ("dask", "dask_expr"):
            return "dask"
    return None
