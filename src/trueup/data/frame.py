"""The door: a frame or array becomes a checked Table. The only importer of narwhals.

Whatever is behind this door may trust its input; nothing is repaired on the way in.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import narwhals as nw
import numpy as np

from trueup._validate import check_choice
from trueup.data import checks
from trueup.data.columns import (
    ColumnSource,
    RawColumn,
    check_unique_names,
    days_of,
    encode_texts,
    from_array,
    from_objects,
    open_array,
    open_mapping,
    recode,
    untyped_if_missing,
)
from trueup.data.schema import Feature, Schema
from trueup.data.table import Table
from trueup.errors import ArgumentError, ColumnError

if TYPE_CHECKING:
    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.checks import RowPosition

Unlabelled = Literal["error", "drop"]
NO_PREDICTION = object()  # as the prediction: there is none, the outcome is predicted from the features alone


def read(
    data: Any,
    *,
    outcome: Any = None,
    prediction: Any = None,
    weight: Any = None,
    features: Sequence[Hashable] | Hashable | None = None,
    task: str = "auto",
    categorical: Sequence[Hashable] | Hashable = (),
    unlabelled: Unlabelled = "error",
    classes: Sequence[Any] | None = None,
    schema: Schema | None = None,
    position: RowPosition | None = None,
) -> Table:
    """Read a frame, a dict of arrays or a NumPy array into a Table, and check everything.

    Parameters
    ----------
    data : pandas, polars or pyarrow frame, dict of arrays, or ndarray
        Any eager frame narwhals knows. For an array the roles are positions; a one-dimensional array is the prediction.
    outcome, weight : column name or array, optional
        A name, or the values themselves, one a row.
    prediction : column name, or several, or ALONE
        Several name the probabilities of several classes. By default column 0 of an array. ALONE is none at all: the
        Table then has zeros in its place.
    features : column names, optional
        By default every column without a role.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction and multiclass for several.
    categorical : column names
        Numeric columns to be read as categories.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome; dropped ones are counted in the Table.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    schema : Schema, optional
        Use these vocabularies: a level that is not among them is read as missing.
    position : RowPosition, optional
        Where these rows stand among all rows, if they are only some of them. Messages then count rows from there, and what
        can only be checked on all rows is left to `RowSummary.check`.

    Examples
    --------
    >>> read({"y": [0, 1, 0], "p": [.1, .8, .3], "sex": ["f", "m", None]}, outcome="y", prediction="p").columns["sex"]
    array([ 0,  1, -1], dtype=int32)
    """
    check_choice("task", task, ("auto", "binary", "regression"))
    check_choice("unlabelled", unlabelled, ("error", "drop"))
    source = open_source(data)
    checks.some_rows(source.rows)
    names, labels, scores = _scores(source, prediction, position)
    y_name, y_raw = _role(source, outcome, "outcome", position)
    w_name, w_raw = _role(source, weight, "weight", position)
    taken = {*names, y_name, w_name}
    checks.distinct_roles({"outcome": y_name, "weight": w_name}, names, source)
    kind = checks.settle_task(task, several=scores.ndim == 2)
    y, found_classes = checks.outcome(y_raw, _label(source, y_name), kind, labels, classes, position)
    checks.prediction(scores, labels, kind, position)
    if prediction is not NO_PREDICTION and position is None:
        checks.hard_predictions(scores, labels, kind)
    w = checks.weight(w_raw, _label(source, w_name), position)
    keep, counts = checks.rows_to_keep(y, w, _label(source, y_name), unlabelled, position)
    described, columns, left_out = _features(source, features, taken, categorical, keep, schema, y_name)
    if keep is not None:
        scores = scores[keep]
        y, w = (None if array is None else array[keep] for array in (y, w))
    if y is not None and position is None:
        checks.classes_present(y, _label(source, y_name), kind)
        checks.check_outcome_copies(described, columns, y, kind)
    y_label = "outcome" if y_name is None and y is not None else _label(source, y_name)
    w_label = "weight" if w_name is None and w is not None else _label(source, w_name)
    own = Schema(kind, y_label, labels, w_label, tuple(described), found_classes)
    return Table(own, columns, scores, y, w, keep, *counts, left_out)


def read_like(data: Any, schema: Schema, position: RowPosition | None = None) -> Table:
    """Read data to be scored: the prediction and features that a schema names, in its vocabularies; no rows are fine.

    Other columns are left alone. A level the schema does not know is read as missing.

    Examples
    --------
    >>> schema = read({"p": [.1, .8], "sex": ["f", "m"]}, prediction="p").schema
    >>> read_like({"p": [.3], "sex": ["x"], "y": [1]}, schema).columns["sex"]
    array([-1], dtype=int32)
    """
    source = open_source(data)
    keys = {source.label(key): key for key in source.keys}

    def find(name: str, role: str) -> Hashable:
        if name not in keys:
            near = [key for key in keys if key.lower() == name.lower()]
            raise ColumnError(
                f"the data has no column {name!r}, which the model needs as {role}",
                hint=f"did you mean {near[0]!r}?" if near else f"the model needs {_listed(schema)}",
            )
        return keys[name]

    names = [find(name, "prediction") for name in schema.prediction]
    columns = [
        checks.as_numbers(source.fetch(k), n, "prediction", position) for k, n in zip(names, schema.prediction, strict=True)
    ]
    scores = columns[0] if len(columns) == 1 else np.column_stack(columns) if columns else np.zeros(source.rows)
    checks.prediction(scores, schema.prediction, schema.task, position)
    found = {}
    for feature in schema.features:
        raw = source.fetch(find(feature.name, "feature"))
        found[feature.name] = _known_feature(raw, None, feature)
        if feature.kind == "categorical" and position is None and not raw.missing().all():
            checks.warn_unseen(found[feature.name], raw, feature)
    return Table(schema, found, scores)


def _listed(schema: Schema) -> str:
    names = [*schema.prediction, *(feature.name for feature in schema.features)]
    return ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")


def _label(source: ColumnSource, name: Hashable | None) -> str | None:
    return None if name is None else source.label(name)


def _features(
    source: ColumnSource,
    features: Sequence[Hashable] | Hashable | None,
    taken: set[Hashable | None],
    categorical: Sequence[Hashable] | Hashable,
    keep: IntArray | None,
    schema: Schema | None,
    outcome: Hashable | None,
) -> tuple[list[Feature], dict[str, AnyArray], dict[str, str]]:
    """Read every feature, with the vocabularies of a given schema where there is one."""
    known = {} if schema is None else {feature.name: feature for feature in schema.features}
    named = source.find_all(_several(categorical, source), "categorical")
    if features is None:
        chosen = tuple(key for key in source.keys if key not in taken)
    else:
        chosen = source.find_all(_several(features, source), "feature")
        checks.check_not_outcome(chosen, outcome, source)
    described, columns, left_out = [], {}, {}

    def fetch(key: Hashable) -> tuple[Feature, AnyArray]:
        name, raw = source.label(key), source.fetch(key)
        saved = known.get(name)
        if saved is not None:
            return saved, _known_feature(raw, keep, saved)
        return _feature(name, raw, keep, None, as_categories=raw.kind in ("text", "flag") or key in named)

    for feature, column in map(fetch, chosen):
        if feature.name not in known and (reason := _identifier(feature, column)):
            left_out[feature.name] = reason
            continue
        described.append(feature)
        columns[feature.name] = column
    return described, columns, left_out


def _identifier(feature: Feature, column: AnyArray) -> str | None:
    levels = len(feature.levels)  # none of a column of numbers or dates
    return checks.identifier_reason(feature.name, levels, int((column >= 0).sum()) if levels else 0)


def _known_feature(raw: RawColumn, keep: IntArray | None, saved: Feature) -> AnyArray:
    """Read a column in the vocabulary of a schema; one without values has no type that could be another."""
    is_categorical = saved.kind == "categorical"
    if raw.missing().all():
        rows = len(raw) if keep is None else len(keep)
        return np.full(rows, -1, np.int32) if is_categorical else np.full(rows, np.nan)
    checks.check_kind(raw, saved)
    return _feature(saved.name, raw, keep, saved, as_categories=is_categorical)[1]


def _feature(
    name: str, raw: RawColumn, keep: IntArray | None, saved: Feature | None, *, as_categories: bool
) -> tuple[Feature, AnyArray]:
    if not as_categories:
        values = raw.codes_or_values
        return Feature(name, "date" if raw.kind == "date" else "numeric"), values if keep is None else values[keep]
    coded = raw.categories()
    if saved is None and keep is not None:
        coded = _used(coded.codes[keep], list(coded.levels))  # a level of rows that were left out is no level
        return Feature(name, "categorical", coded.levels), coded.codes
    levels = coded.levels if saved is None else saved.levels
    codes = recode(coded, levels)
    return Feature(name, "categorical", levels), codes if keep is None else codes[keep]


def _several(names: Sequence[Hashable] | Hashable, source: ColumnSource) -> tuple[Hashable, ...]:
    """Take one name for a list of one; a tuple may be a name, in pandas."""
    if isinstance(names, tuple) and names in source.keys:
        return (names,)
    return tuple(names) if isinstance(names, Iterable) and not isinstance(names, (str, bytes)) else (names,)


def open_source(data: Any) -> ColumnSource:
    """Open a frame, a dict of arrays or an array: its columns by name or position."""
    if isinstance(data, np.ndarray):
        return open_array(data)
    if isinstance(data, Mapping):
        return open_mapping(data)
    if (getattr(data, "ndim", None) == 1 and hasattr(data, "__array__")) or type(data).__name__ == "Series":
        return open_array(np.asarray(data))  # a series is the prediction itself, as a bare array is
    try:
        frame = nw.from_native(data, eager_only=True)
    except nw.exceptions.DuplicateError:
        check_unique_names(getattr(data, "column_names", None) or list(data.columns))
        raise
    except TypeError as error:
        lazy = hasattr(data, "collect")
        raise ColumnError(
            f"cannot read data of type {type(data).__module__}.{type(data).__qualname__}",
            hint="call .collect() on it first"
            if lazy
            else "pass a pandas, polars or pyarrow frame, a dict of arrays, or a NumPy array",
        ) from error
    return ColumnSource(tuple(frame.columns), len(frame), lambda key: _from_series(frame.get_column(key), str(key)))


def _role(
    source: ColumnSource, given: Any, role: str, position: RowPosition | None
) -> tuple[Hashable | None, RawColumn | None]:
    """Find a role by name, or take the values themselves."""
    if given is None:
        return None, None
    if isinstance(given, (str, int, np.integer)) or (isinstance(given, tuple) and given in source.keys):
        key = source.find(given, role)
        raw = source.fetch(key)
        return key, raw if position is None else untyped_if_missing(raw)
    raw = _from_anything(given, role)
    if len(raw) != source.rows:
        raise ColumnError(f"the {role} has {len(raw)} values and the data {source.rows} rows", hint="pass one value a row")
    return None, raw


def _scores(
    source: ColumnSource, prediction: Any, position: RowPosition | None
) -> tuple[tuple[Hashable, ...], tuple[str, ...], FloatArray]:
    """Find the prediction columns (none where values were given), their labels, and the values, (n,) or (n, k)."""
    if prediction is NO_PREDICTION:
        return (), (), np.zeros(source.rows)
    if prediction is None:
        if not source.by_position:
            raise ArgumentError("no prediction column was named", hint='name it, as prediction="p"')
        prediction = 0
    if isinstance(prediction, np.ndarray) or hasattr(prediction, "__array__"):
        return (), *_given_scores(source, prediction)
    names = source.find_all(_several(prediction, source), "prediction")
    if not names:
        raise ArgumentError("an empty list of prediction columns", hint="name one column, or one a class")
    labels = tuple(source.label(name) for name in names)
    columns = [
        checks.as_numbers(source.fetch(k), label, "prediction", position) for k, label in zip(names, labels, strict=True)
    ]
    return names, labels, columns[0] if len(columns) == 1 else np.column_stack(columns)


def _given_scores(source: ColumnSource, prediction: Any) -> tuple[tuple[str, ...], FloatArray]:
    """Take the scores themselves, one column or one a class."""
    values = np.asarray(prediction)
    if values.ndim not in (1, 2) or len(values) != source.rows or values.shape[-1] == 0:
        raise ColumnError(
            f"the prediction has shape {values.shape} and the data {source.rows} rows", hint="pass one value a row"
        )
    columns = values.reshape(source.rows, -1).T if source.rows else values.reshape(-1, 0)
    names = ("prediction",) if values.ndim == 1 else tuple(str(at) for at in range(len(columns)))
    scores = [checks.as_numbers(from_array(c, n), n, "prediction") for c, n in zip(columns, names, strict=True)]
    return names, scores[0] if values.ndim == 1 else np.column_stack(scores)


def _from_anything(values: Any, name: str) -> RawColumn:
    if isinstance(values, (np.ndarray, list, tuple)):
        return from_array(values, name)
    try:
        return _from_series(nw.from_native(values, series_only=True), name)
    except TypeError:
        return from_array(values, name)


def _from_series(series: nw.Series[Any], name: str) -> RawColumn:
    """Take a column off its library, by the library's own fast path where it has one."""
    dtype = series.dtype
    if dtype.is_integer():
        return RawColumn("number", _floats(series), exact=lambda: _texts(series, name))
    if dtype.is_numeric():
        return RawColumn("number", _floats(series))
    if dtype == nw.Boolean:
        return RawColumn("flag", _floats(series))
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return _texts(series, name)
    if dtype == nw.Date:
        return RawColumn("date", days_of(series.cast(nw.Datetime("us")).to_numpy()))
    if dtype == nw.Datetime or _is_zoned(series):
        return RawColumn("date", days_of(series.dt.replace_time_zone(None).to_numpy()))
    if series.null_count() == len(series):
        return RawColumn("number", np.full(len(series), np.nan))  # a column of no type, since it has no values
    if dtype == nw.Object:
        return from_objects(series.to_list(), name)
    raise ColumnError(
        f"column {name!r} has a type trueup does not read: {dtype}",
        hint="numbers, booleans, texts, categories and dates are read; convert it, or leave it out",
    )


def _is_zoned(series: nw.Series[Any]) -> bool:
    """Say whether pandas holds times with a zone that narwhals has no name for."""
    return series.implementation.is_pandas_like() and getattr(series.to_native().dtype, "tz", None) is not None


def _floats(series: nw.Series[Any]) -> FloatArray:
    """Copy numbers out as float64: a Table never shares memory that the caller may write to."""
    if series.implementation.is_pyarrow() and series.dtype.is_integer():
        return np.array(series.to_numpy(), np.float64)  # a cast would refuse whole numbers beyond 2^53
    return np.array(series.cast(nw.Float64).to_numpy(), np.float64)


def _texts(series: nw.Series[Any], name: str) -> RawColumn:
    native = series.to_native()
    if series.implementation.is_pandas_like() and hasattr(native, "factorize"):
        if series.dtype in (nw.Categorical, nw.Enum):
            return RawColumn("text", coded=_used(native.cat.codes.to_numpy(), [str(x) for x in native.cat.categories]))
        codes, found = native.factorize()
        return RawColumn("text", coded=encode_texts(codes, [str(value) for value in found]))
    if series.implementation.is_polars():
        if series.dtype not in (nw.Categorical, nw.Enum):
            native = series.cast(nw.String).cast(nw.Categorical).to_native()
        unique = native.unique().drop_nulls()
        places = unique.to_physical().to_numpy().astype(np.int64)
        move = np.full(int(places.max(initial=-1)) + 2, -1, np.int64)
        move[places] = np.arange(len(places))
        codes = native.to_physical().fill_null(len(move) - 1).to_numpy()
        return RawColumn("text", coded=encode_texts(move[codes], [str(value) for value in unique.to_list()]))
    if series.implementation.is_pyarrow():
        whole = native.combine_chunks()
        whole = whole if series.dtype == nw.Categorical else whole.dictionary_encode()
        codes = whole.indices.fill_null(-1).to_numpy(zero_copy_only=False)
        words = whole.dictionary.to_pylist()
        gone = [at for at, word in enumerate(words) if word is None]
        codes = np.where(np.isin(codes, gone), -1, codes) if gone else codes
        return RawColumn("text", coded=_used(codes, [str(word) for word in words]))
    return from_objects(series.to_list(), name)


def _used(codes: AnyArray, texts: list[str]) -> Any:
    """Drop the levels of a declared vocabulary that no row has."""
    seen = np.zeros(len(texts) + 1, bool)
    seen[codes] = True  # code -1 marks the spare last entry
    move = np.append(np.where(seen[:-1], np.cumsum(seen[:-1]) - 1, -1), -1)
    return encode_texts(move[codes], [text for text, used in zip(texts, seen[:-1], strict=True) if used])


def frame_like(columns: Mapping[str, AnyArray], like: Any) -> Any:
    """Put columns into a frame of the library that `like` comes from; a dict of arrays where it comes from none.

    Examples
    --------
    >>> frame_like({"n": np.array([1, 2])}, like=None)
    {'n': array([1, 2])}
    """
    if like is None or isinstance(like, (np.ndarray, Mapping)):
        return dict(columns)
    try:
        space = nw.get_native_namespace(nw.from_native(like))
    except TypeError as error:
        raise ArgumentError(
            f"cannot make a frame like {type(like).__qualname__}",
            hint="pass a pandas, polars or pyarrow frame, or None for a dict of arrays",
        ) from error
    plain = {name: column.tolist() if column.dtype == object else column for name, column in columns.items()}
    return nw.from_dict(plain, backend=space).to_native()


def to_jsonable(value: Any) -> Any:
    """Give a value as JSON can hold it: what is not finite becomes None, an array a list.

    Examples
    --------
    >>> plain({"a": np.array([1.5, np.inf]), "b": (np.int64(2), float("nan"))})
    {'a': [1.5, None], 'b': [2, None]}
    """
    if isinstance(value, Mapping):
        return {str(name): to_jsonable(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [to_jsonable(one) for one in value]
    if isinstance(value, np.ndarray):
        return to_jsonable(value.tolist())
    if isinstance(value, np.generic):
        value = value.item()
    return None if isinstance(value, float) and not math.isfinite(value) else value
