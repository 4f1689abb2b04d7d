"""Frames in and out: a frame or array becomes a validated Table, and results frames. The only importer of narwhals."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Literal

import narwhals as nw
import numpy as np

from trueup._validate import check_choice
from trueup.data import checks
from trueup.data.columns import (
    FEATURE_KINDS,
    UNSUPPORTED_HINT,
    ColumnSource,
    RawColumn,
    as_tuple,
    check_unique_names,
    days_of,
    encode_texts,
    encode_used_texts,
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
    from trueup.data.columns import ValueKind

Unlabelled = Literal["error", "drop"]
NO_PREDICTION = object()
"""Passed as the prediction if there is none: the outcome is predicted from the features alone."""


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
    """Read a frame, a dict of arrays or a NumPy array into a Table, and validate everything.

    Roles are column names (positions in an array, whose default prediction is column 0) or arrays of values. Several
    prediction columns are the probabilities of ``classes``; NO_PREDICTION stands for none. By default the features are all
    columns without a role; ``categorical`` names numbers to be read as categories. With a ``schema``, its vocabularies
    are used, and other levels are missing. A ``position`` means that these are only some of all rows: messages count rows
    from there, and what only all rows can show is left to `trueup.data.checks.RowSummary.check`.
    """
    check_choice("task", task, ("auto", "binary", "regression"))
    check_choice("unlabelled", unlabelled, ("error", "drop"))
    source = open_source(data)
    checks.check_has_rows(source.rows)
    keys, labels, scores = _scores(source, prediction, position)
    y_key, y_raw = _role(source, outcome, "outcome", position)
    w_key, w_raw = _role(source, weight, "weight", position)
    checks.check_distinct_roles({"outcome": y_key, "weight": w_key}, keys, source)
    y_name, w_name = (None if key is None else source.label(key) for key in (y_key, w_key))
    resolved_task = checks.resolve_task(task, classes, several=scores.ndim == 2)
    y, class_names = None, tuple[str, ...]()
    if resolved_task == "multiclass":
        coded = None if y_raw is None else y_raw.categories()
        class_names = checks.class_names(() if coded is None else coded.levels, labels, classes)
        y = None if coded is None else checks.class_indices(coded, y_name or "outcome", class_names, position)
    elif y_raw is not None:
        y = checks.check_outcome(y_raw, y_name or "outcome", resolved_task, position)
    checks.check_scores(scores, labels, resolved_task, position)
    if labels and position is None and resolved_task == "binary" and checks.are_hard(scores):
        checks.warn_hard_predictions(labels[0])
    w = checks.check_weight(w_raw, w_name, position)
    keep, counts = checks.rows_to_keep(y, w, y_name, unlabelled, position)
    chosen = choose_features(source, features, keys, y_key, w_key)
    described, columns, left_out = _read_features(source, chosen, categorical, keep, schema)
    if keep is not None:
        scores = scores[keep]
        y, w = (None if array is None else array[keep] for array in (y, w))
    if y is not None and position is None:
        checks.warn_one_class(y_name, float(y.min()), float(y.max()), len(y), resolved_task)
        checks.check_outcome_copies(described, columns, y, resolved_task)
    y_name = "outcome" if y_name is None and y is not None else y_name
    w_name = "weight" if w_name is None and w is not None else w_name
    own_schema = Schema(resolved_task, y_name, labels, w_name, tuple(described), class_names)
    return Table(own_schema, columns, scores, y, w, keep, *counts, left_out)


def read_labelled(
    data: Any, schema: Schema, unlabelled: Unlabelled = "error", position: RowPosition | None = None
) -> Table:
    """Read rows with the roles, classes and vocabularies of a schema."""
    table = read(
        data, outcome=schema.outcome, prediction=list(schema.prediction) or NO_PREDICTION, weight=schema.weight,
        features=[feature.name for feature in schema.features], task="auto" if schema.classes else schema.task,
        unlabelled=unlabelled, classes=schema.classes or None, schema=schema, position=position,
    )  # fmt: skip
    return replace(table, schema=schema)


def read_like(data: Any, schema: Schema, position: RowPosition | None = None) -> Table:
    """Read data to be scored, maybe without rows: the prediction and features of a schema, in its vocabularies."""
    source = open_source(data)
    keys = {source.label(key): key for key in source.keys}

    def fetch(name: str, role: str) -> RawColumn:
        if name not in keys:
            similar = [key for key in keys if key.lower() == name.lower()]
            needed = [*schema.prediction, *(feature.name for feature in schema.features)]
            listed = ", ".join(needed[:12]) + (", ..." if len(needed) > 12 else "")
            raise ColumnError(
                f"the data has no column {name!r}, which the model needs as {role}",
                hint=f"did you mean {similar[0]!r}?" if similar else f"the model needs {listed}",
            )
        return source.fetch(keys[name])

    scores = [checks.as_numbers(fetch(name, "prediction"), name, "prediction", position) for name in schema.prediction]
    prediction = scores[0] if len(scores) == 1 else np.column_stack(scores) if scores else np.zeros(source.rows)
    checks.check_scores(prediction, schema.prediction, schema.task, position)
    columns = {}
    for feature in schema.features:
        raw = fetch(feature.name, "feature")
        columns[feature.name] = _read_known_feature(raw, None, feature)
        if feature.kind == "categorical" and position is None and not raw.missing().all():
            checks.warn_unseen(columns[feature.name], raw, feature)
    return Table(schema, columns, prediction)


def choose_features(
    source: ColumnSource, features: Any, scores: Sequence[Hashable], outcome: Hashable | None, weight: Hashable | None
) -> tuple[Hashable, ...]:
    """Return the keys of the features, by default of all columns without a role; raise if the outcome is one of them."""
    if features is None:
        return tuple(key for key in source.keys if key not in {*scores, outcome, weight})
    chosen = source.find_all(_as_keys(features, source), "feature")
    if outcome is not None and outcome in chosen:
        raise ColumnError(
            f"column {source.label(outcome)!r} is identical to the outcome: it is the outcome", hint="leave it out"
        )
    return chosen


def _read_features(
    source: ColumnSource,
    chosen: Sequence[Hashable],
    categorical: Sequence[Hashable] | Hashable,
    keep: IntArray | None,
    schema: Schema | None,
) -> tuple[list[Feature], dict[str, AnyArray], dict[str, str]]:
    """Read the features, in the vocabularies of a schema if there is one; return also those left out, and why."""
    known = {} if schema is None else {feature.name: feature for feature in schema.features}
    as_categories = source.find_all(_as_keys(categorical, source), "categorical")
    described, columns, left_out = [], {}, {}
    for key in chosen:
        name, raw = source.label(key), source.fetch(key)
        if name in known:
            feature, column = known[name], _read_known_feature(raw, keep, known[name])
        elif FEATURE_KINDS[raw.kind] == "categorical" or key in as_categories:
            coded = raw.categories()
            if keep is not None:
                coded = encode_used_texts(coded.codes[keep], coded.levels)  # levels of rows that were set aside are none
            feature, column = Feature(name, "categorical", coded.levels), coded.codes
            if reason := checks.identifier_reason(name, len(coded.levels), int((coded.codes >= 0).sum())):
                left_out[name] = reason
                continue
        else:
            values = raw.codes_or_values
            feature, column = Feature(name, FEATURE_KINDS[raw.kind]), values if keep is None else values[keep]
        described.append(feature)
        columns[name] = column
    return described, columns, left_out


def _read_known_feature(raw: RawColumn, keep: IntArray | None, feature: Feature) -> AnyArray:
    """Read a column in the vocabulary of a schema; if all values are missing, any type will do."""
    is_categorical = feature.kind == "categorical"
    if raw.missing().all():
        rows = len(raw) if keep is None else len(keep)
        return np.full(rows, -1, np.int32) if is_categorical else np.full(rows, np.nan)
    checks.check_kind(raw, feature)
    column = recode(raw.categories(), feature.levels) if is_categorical else raw.codes_or_values
    return column if keep is None else column[keep]


def _as_keys(names: Sequence[Hashable] | Hashable, source: ColumnSource) -> tuple[Hashable, ...]:
    """Return names as a tuple; in pandas, a tuple may itself be a name."""
    if isinstance(names, tuple) and names in source.keys:
        return (names,)
    return as_tuple(names)


def open_source(data: Any) -> ColumnSource:
    """Open a frame, a dict of arrays or an array: its columns by name or position."""
    if isinstance(data, np.ndarray):
        return open_array(data)
    if isinstance(data, Mapping):
        return open_mapping(data)
    if (getattr(data, "ndim", None) == 1 and hasattr(data, "__array__")) or type(data).__name__ == "Series":
        return open_array(np.asarray(data))  # a series is the prediction itself, as a one-dimensional array is
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
    """Return the key of a role (None if values were passed) and its column."""
    if given is None:
        return None, None
    if isinstance(given, (str, int, np.integer)) or (isinstance(given, tuple) and given in source.keys):
        key = source.find(given, role)
        raw = source.fetch(key)
        return key, raw if position is None else untyped_if_missing(raw)
    try:
        raw = _from_series(nw.from_native(given, series_only=True), role)
    except TypeError:
        raw = from_array(given, role)
    if len(raw) != source.rows:
        raise ColumnError(
            f"the {role} has {len(raw)} values and the data {source.rows} rows", hint="pass one value per row"
        )
    return None, raw


def _scores(
    source: ColumnSource, prediction: Any, position: RowPosition | None
) -> tuple[tuple[Hashable, ...], tuple[str, ...], FloatArray]:
    """Return the keys of the prediction columns (none if values were passed), their labels, and the scores."""
    if prediction is NO_PREDICTION:
        return (), (), np.zeros(source.rows)
    keys: tuple[Hashable, ...] = ()
    if hasattr(prediction, "__array__"):
        values = np.asarray(prediction)
        if values.ndim not in (1, 2) or len(values) != source.rows or values.shape[-1] == 0:
            raise ColumnError(
                f"the prediction has shape {values.shape} and the data {source.rows} rows", hint="pass one value per row"
            )
        is_matrix, columns = values.ndim == 2, values.reshape(source.rows, -1).T
        labels = tuple(str(index) for index in range(len(columns))) if is_matrix else ("prediction",)
        raws = [from_array(column, label) for column, label in zip(columns, labels, strict=True)]
    else:
        keys = find_scores(source, prediction)
        labels = tuple(source.label(key) for key in keys)
        is_matrix, raws = len(keys) > 1, [source.fetch(key) for key in keys]
    scores = [checks.as_numbers(raw, name, "prediction", position) for raw, name in zip(raws, labels, strict=True)]
    return keys, labels, np.column_stack(scores) if is_matrix else scores[0]


def find_scores(source: ColumnSource, prediction: Any) -> tuple[Hashable, ...]:
    """Return the keys of the prediction columns, by default the first column of an array."""
    if prediction is None and not source.by_position:
        raise ArgumentError("no prediction column was named", hint="name it, as {prediction}", settings={"prediction": "p"})
    keys = source.find_all(_as_keys(0 if prediction is None else prediction, source), "prediction")
    if not keys:
        raise ArgumentError("an empty list of prediction columns", hint="name one column, or one per class")
    return keys


def _from_series(series: nw.Series[Any], name: str) -> RawColumn:
    """Read a series, by the fastest way that its library offers."""
    dtype = series.dtype
    if dtype.is_numeric() or dtype == nw.Boolean:
        # A cast of pyarrow would fail for integers beyond 2^53.
        is_exact = series.implementation.is_pyarrow() and dtype.is_integer()
        # Always a copy: a Table never shares memory that the caller may write to.
        values = np.array((series if is_exact else series.cast(nw.Float64)).to_numpy(), np.float64)
        kind: ValueKind = "flag" if dtype == nw.Boolean else "number"
        return RawColumn(kind, values, as_texts=(lambda: _texts(series, name)) if dtype.is_integer() else None)
    if dtype in (nw.String, nw.Categorical, nw.Enum):
        return _texts(series, name)
    if dtype == nw.Date:
        return RawColumn("date", days_of(series.cast(nw.Datetime("us")).to_numpy()))
    is_pandas = series.implementation.is_pandas_like()
    if dtype == nw.Datetime or (is_pandas and getattr(series.to_native().dtype, "tz", None) is not None):
        return RawColumn("date", days_of(series.dt.replace_time_zone(None).to_numpy()))
    if series.null_count() == len(series):
        return RawColumn("number", np.full(len(series), np.nan))  # no type, since it has no values
    if dtype == nw.Object:
        return from_objects(series.to_list(), name)
    raise ColumnError(f"column {name!r} has a type that trueup does not read: {dtype}", hint=UNSUPPORTED_HINT)


def _texts(series: nw.Series[Any], name: str) -> RawColumn:
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


def frame_like(columns: Mapping[str, AnyArray], like: Any) -> Any:
    """Return columns as a frame of the library that `like` comes from; as a dict of arrays if that is none."""
    if like is None or isinstance(like, (np.ndarray, Mapping)):
        return dict(columns)
    try:
        backend = nw.get_native_namespace(nw.from_native(like))
    except TypeError as error:
        raise ArgumentError(
            f"cannot make a frame like {type(like).__qualname__}",
            hint="pass a pandas, polars or pyarrow frame, or None for a dict of arrays",
        ) from error
    lists = {name: column.tolist() if column.dtype == object else column for name, column in columns.items()}
    return nw.from_dict(lists, backend=backend).to_native()


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
