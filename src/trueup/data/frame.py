"""Read frames and arrays into Tables: roles, features, and checks of the values of each role and of all rows together."""

from __future__ import annotations

import contextlib
import warnings
from collections import Counter
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from trueup._validate import check_choice, did_you_mean
from trueup.data.clusters import cluster_keys, warn_of_repeated_identifiers
from trueup.data.columns import (
    FEATURE_KINDS,
    ColumnSource,
    RawColumn,
    as_keys,
    check_aligned,
    check_distinct_roles,
    encode_used_texts,
    find_excluded,
    from_array,
    from_values,
    open_source,
    read_known_feature,
    untyped_if_missing,
)
from trueup.data.identifiers import (
    identifier_reason,
    unread_reason,
    warn_of_integers,
    warn_of_large_integers,
    warn_of_unread,
)
from trueup.data.leakage import warn_of_leakage
from trueup.data.sampling import weight_by_sampling
from trueup.data.table import HELD_OUT_SUFFIX, MAX_UNUSED, Feature, Schema, Table
from trueup.data.values import (
    HARD_SCORES,
    MIN_ROWS,
    RowPosition,
    as_numbers,
    check_has_rows,
    check_outcome,
    check_rows_left,
    check_weight,
    class_indices,
    class_names,
    describe_rows,
    format_rows,
    hard_scores,
    resolve_task,
    rows_to_keep,
    to_probabilities,
)
from trueup.errors import (
    ArgumentError,
    ColumnError,
    DataError,
    HardPredictionWarning,
    IdentifierWarning,
    InfiniteValueWarning,
    OneClassWarning,
    UnseenWarning,
    WarningRecord,
    warn,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
MAX_LISTED = 6  # columns named in a warning
MAX_CLASSES = 50  # an outcome with more distinct values cannot be restated by a category
Unlabelled = Literal["error", "drop"]
NO_PREDICTION = object()
"""Passed as the prediction if there is none: the outcome is predicted from the features alone."""


def warn_unseen(codes: AnyArray, raw: RawColumn, feature: Feature) -> None:
    """Warn if a column has many rows and no value in the schema, most likely because the spelling has changed."""
    seen = (codes >= 0) & (codes < len(feature.levels) - feature.unseen_level)
    if not feature.levels or len(codes) < MIN_ROWS or seen.any() or raw.missing().sum() > len(codes) - MIN_ROWS:
        return
    treated, rows = "alike" if feature.unseen_level else "as missing", format_rows(len(codes))
    warnings.warn(
        f"no value of column {feature.name!r} is known to the model ({rows}): all are treated {treated}\n"
        f"hint: it knows {', '.join(map(repr, feature.levels[:3]))}; check the spelling of the values",
        UnseenWarning,
        stacklevel=4,
    )


@dataclass
class RowSummary:
    """Counts and checks of rows that come in chunks or partitions; summaries add up to that of all rows.

    A feature restates the outcome if it is equal to it in all rows, or if its categories map to the outcomes one to one.
    """

    rows: int = 0  # that were not set aside
    unlabelled: int = 0
    weightless: int = 0
    lowest: float = np.inf  # outcome
    highest: float = -np.inf
    hard: frozenset[float] | None = frozenset()  # the distinct scores, if all of them are 0 or 1
    equal: set[str] | None = None  # numeric features that are equal to the outcome; None before the first rows
    pairs: dict[str, set[tuple[float, int]]] = field(default_factory=dict)  # of outcome and code, by categorical feature
    outcomes: set[float] = field(default_factory=set)
    soft: int = 0  # outcomes of a binary task between 0 and 1, neither of them
    infinite: Counter[str] = field(default_factory=Counter)  # rows with an infinite value, by numeric feature

    def include(self, table: Table) -> RowSummary:
        """Include the rows of one more table, and return the summary itself."""
        y = table.outcome
        self.rows += len(table)
        self.unlabelled += table.unlabelled
        self.weightless += table.weightless
        for feature in table.schema.features:
            if feature.kind == "numeric" and (count := int(np.count_nonzero(np.isinf(table.columns[feature.name])))):
                self.infinite[feature.name] += count
        if len(table):
            self.hard = _union(self.hard, hard_scores(table.prediction) if table.prediction.ndim == 1 else None)
        if len(table) and y is not None:
            self.lowest, self.highest = min(self.lowest, float(y.min())), max(self.highest, float(y.max()))
            self._include_copies(table, y)
            if table.schema.task == "binary":
                self.soft += int(np.count_nonzero((y > 0) & (y < 1)))
        return self

    def _include_copies(self, table: Table, y: FloatArray) -> None:
        """Remove the features from ``equal`` and ``pairs`` that do not restate the outcome in these rows."""
        features, columns = table.schema.features, table.columns
        if self.equal is None:
            self.equal = {feature.name for feature in features if feature.kind == "numeric"}
            if table.schema.task != "regression":
                self.pairs = {feature.name: set() for feature in features if feature.kind == "categorical"}
        self.equal = {name for name in self.equal if np.array_equal(columns[name], y)}
        # The first rows exclude most columns, so that the rest of those is not looked at.
        for rows in (slice(10 * MIN_ROWS), slice(None)):
            if not self.equal and not self.pairs:
                return
            outcomes, inverse = np.unique(y[rows], return_inverse=True)
            self.outcomes.update(outcomes[: MAX_CLASSES + 1].tolist())
            self.pairs = {} if len(self.outcomes) > MAX_CLASSES else self.pairs
            for name, pairs in list(self.pairs.items()):
                keys = np.unique(columns[name][rows].astype(np.int64) * len(outcomes) + inverse)
                if len(keys) <= len(outcomes):
                    codes, places = np.divmod(keys, len(outcomes))
                    pairs.update(zip(outcomes[places].tolist(), codes.tolist(), strict=True))
                if len(keys) > len(outcomes) or not self._one_to_one(pairs):
                    del self.pairs[name]

    def _one_to_one(self, pairs: set[tuple[float, int]]) -> bool:
        return len(pairs) == len(self.outcomes) == len({code for _, code in pairs})

    def __add__(self, other: RowSummary) -> RowSummary:
        total = RowSummary(
            self.rows + other.rows, self.unlabelled + other.unlabelled, self.weightless + other.weightless,
            min(self.lowest, other.lowest), max(self.highest, other.highest), _union(self.hard, other.hard),
        )  # fmt: skip
        total.soft, total.infinite = self.soft + other.soft, self.infinite + other.infinite
        if self.equal is None or other.equal is None:
            one = other if self.equal is None else self
            return replace(total, equal=one.equal, pairs=one.pairs, outcomes=one.outcomes)
        total.equal, total.outcomes = self.equal & other.equal, self.outcomes | other.outcomes
        if len(total.outcomes) <= MAX_CLASSES:
            both = {name: pairs | other.pairs[name] for name, pairs in self.pairs.items() if name in other.pairs}
            total.pairs = {name: pairs for name, pairs in both.items() if total._one_to_one(pairs)}
        return total

    def check(self, schema: Schema, stacklevel: int = 4) -> list[WarningRecord]:
        """Raise if no rows are left or a feature restates the outcome; warn of scores 0 and 1 only, or of one outcome.

        Return the warnings.
        """
        records = []
        check_rows_left(self.rows, self.unlabelled, self.weightless)
        copies = [
            feature.name
            for feature in schema.features
            if feature.name in (self.equal or ())
            or (feature.name in self.pairs and (self.rows >= MIN_ROWS or feature.levels == ("0", "1")))
        ]
        if copies and len(self.outcomes) > 1:
            subject = f"column {copies[0]!r} is" if len(copies) == 1 else f"columns {', '.join(map(repr, copies))} are"
            raise ColumnError(f"{subject} identical to the outcome", hint="leave it out: it is what is to be predicted")
        if self.hard == HARD_SCORES and schema.prediction and schema.task == "binary" and self.rows >= MIN_ROWS:
            message = f"every prediction in column {schema.prediction[0]!r} is 0 or 1"
            hint = "pass probabilities rather than labels; are outcome and prediction swapped?"
            records.append(warn(HardPredictionWarning, message, hint, column=schema.prediction[0], stacklevel=stacklevel))
        if self.infinite:
            names = [feature.name for feature in schema.features if feature.name in self.infinite][:MAX_LISTED]
            listed = ", ".join(f"{name!r} ({self.infinite[name]:,})" for name in names)
            others = len(self.infinite) - MAX_LISTED
            listed += f" and {others:,} more" if others > 0 else ""
            several = "columns have" if len(self.infinite) > 1 else "column has"
            message = f"{len(self.infinite):,} {several} infinite values: {listed}"
            hint = "bins and trees take them for the largest and smallest numbers; if they are unknown, make them missing"
            records.append(warn(InfiniteValueWarning, message, hint, stacklevel=stacklevel))
        is_probability = schema.task == "binary" and 0 < self.lowest < 1  # and none of the classes
        if schema.task != "regression" and self.lowest == self.highest and not is_probability:
            message = f"every outcome in column {schema.outcome!r} is {self.lowest:g} ({format_rows(self.rows)})"
            more = "only one kind of error can show"
            records.append(warn(OneClassWarning, f"{message}: {more}", column=schema.outcome, stacklevel=stacklevel))
        return records


def _union(one: frozenset[float] | None, other: frozenset[float] | None) -> frozenset[float] | None:
    return None if one is None or other is None else one | other


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
    cluster: Any = None,
    exclude: Sequence[Hashable] | Hashable = (),
    check_columns: bool = False,
    schema: Schema | None = None,
    position: RowPosition | None = None,
    logits: bool = False,
    sampling: Any = None,
) -> Table:
    """Read a frame, a dict of arrays or a NumPy array into a Table, and validate everything.

    Roles are column names (positions in an array, whose default prediction is column 0) or arrays of values. Several
    prediction columns are the probabilities of ``classes``, or their ``logits``; NO_PREDICTION stands for none. By default
    the features are all columns without a role; ``categorical`` names numbers to be read as categories. ``cluster``
    identifies rows that belong together; columns in ``exclude`` are never features, only reported; ``sampling`` has the
    shares of the rows with outcome 1 and 0 that were kept, by which weights are divided; ``check_columns`` warns of a
    column of clusters if no cluster is given, and of columns that may leak the outcome. With a ``schema``, its
    vocabularies are used, and other levels are missing. A ``position`` means that these are only some of all rows:
    messages count rows from there, and what only all rows can show is left to `RowSummary.check`.
    """
    check_choice("task", task, ("auto", "binary", "regression"))
    check_choice("unlabelled", unlabelled, ("error", "drop"))
    if not isinstance(logits, (bool, np.bool_)):
        raise ArgumentError(f"logits must be True or False; got {logits!r}", parameter="logits")
    source = open_source(data)
    check_has_rows(source.rows)
    roles = {"the outcome": outcome, "the prediction": prediction, "the weight": weight, "the cluster": cluster}
    check_aligned({"the data": data, **roles})
    keys, labels, scores = _scores(source, prediction, position)
    y_key, y_name, y_raw = _role(source, outcome, "outcome", position)
    w_key, w_name, w_raw = _role(source, weight, "weight", position)
    c_key, c_name, c_raw = _role(source, cluster, "cluster", position)
    check_distinct_roles({"outcome": y_key, "weight": w_key, "cluster": c_key}, keys, source)
    resolved_task = resolve_task(task, classes, several=scores.ndim == 2)
    y, names = None, tuple[str, ...]()
    if resolved_task == "multiclass":
        coded = None if y_raw is None else y_raw.categories()
        names = class_names(() if coded is None else coded.levels, labels, classes)
        y = None if coded is None else class_indices(coded, str(y_name), names, position)
    elif y_raw is not None:
        try:
            y = check_outcome(y_raw, str(y_name), resolved_task, position)
        except DataError as error:
            if source.by_position and prediction is None and len(source.keys) > 1 and resolved_task == "binary":
                every = f"prediction=list(range({len(source.keys)}))"
                hint = f"the prediction is column 0 of the array; for a column per class pass {every}"
                raise DataError(error.message, hint) from None
            raise
    scores = to_probabilities(scores, labels, resolved_task, position, logits=logits)
    w = check_weight(w_raw, w_name, position)
    clusters = None if c_raw is None else cluster_keys(c_raw, str(c_name), partial(describe_rows, position=position))
    keep, counts = rows_to_keep(y, w, y_name, unlabelled, position)
    hidden = find_excluded(source, exclude, keys)
    chosen = choose_features(source, features, keys, y_key, w_key, c_key, hidden)
    read_own = partial(read_features, source, categorical=categorical, keep=keep)
    unread: dict[str, str] = {}
    described, columns, left_out, found = read_own(chosen, schema, unread=unread if features is None else None)
    warn_of_unread(unread, stacklevel=3)
    left_out = {**unread, **left_out}
    excluded = _read_excluded(read_own, [key for key in hidden if key not in (y_key, w_key, c_key)])
    if keep is not None:
        scores = scores[keep]
        y, w = (None if array is None else array[keep] for array in (y, w))
        clusters = None if clusters is None else clusters[keep]
    own_schema = Schema(resolved_task, y_name, labels, w_name, tuple(described), names, c_name, bool(logits))
    given = {"outcome": y_raw, "weight": w_raw, "cluster": c_raw}
    by_key = {"outcome": y_key, "weight": w_key, "cluster": c_key}
    arrays = {role for role, raw in given.items() if raw is not None and by_key[role] is None}
    arrays |= set() if keys or prediction is NO_PREDICTION else {"prediction"}
    read_keys = {*keys, *chosen, y_key, w_key} - set(left_out)
    unused = tuple(source.label(key) for key in source.keys if key not in read_keys)
    table = Table(
        own_schema, columns, scores, y, w, keep, *counts, left_out, clusters, excluded,
        arrays=frozenset(arrays), unused=unused if len(unused) <= MAX_UNUSED else (),
    )  # fmt: skip
    records = found if position is not None else found + RowSummary().include(table).check(own_schema)
    if check_columns and y is not None:
        records += warn_of_leakage(table, default_features=features is None)
    if check_columns and cluster is None and y is not None and resolved_task != "multiclass" and labels:
        records += warn_of_repeated_identifiers(table, source)
    table = replace(table, warnings=tuple(records)) if records else table
    return table if sampling is None else weight_by_sampling(table, sampling)


def read_labelled(
    data: Any, schema: Schema, unlabelled: Unlabelled = "error", position: RowPosition | None = None
) -> Table:
    """Read rows with the roles, classes and vocabularies of a schema."""
    table = read(
        data, outcome=schema.outcome, prediction=list(schema.prediction) or NO_PREDICTION, weight=schema.weight,
        features=[feature.name for feature in schema.features], task="auto" if schema.classes else schema.task,
        unlabelled=unlabelled, classes=schema.classes or None, schema=schema, position=position, cluster=schema.cluster,
        logits=schema.logits,
    )  # fmt: skip
    return replace(table, schema=schema)


def read_like(
    data: Any, schema: Schema, position: RowPosition | None = None, *, lenient: bool = False,
    observe: Callable[[Feature, RawColumn], None] | None = None,
) -> Table:  # fmt: skip
    """Read the prediction and features of a schema, in its vocabularies, from data to be scored, which may have no rows.

    If ``lenient``, predictions are not checked, and a text among numbers is NaN. ``observe`` is called with each feature
    and its column as it was read.
    """
    source = open_source(data)
    keys = {source.label(key): key for key in source.keys}

    def fetch(name: str, role: str) -> RawColumn:
        if name not in keys:
            needed = [*schema.prediction, *(feature.name for feature in schema.features)]
            listed = ", ".join(needed[:12]) + (", ..." if len(needed) > 12 else "")
            raise ColumnError(
                f"the data has no column {name!r}, which the model needs as {role}",
                hint=did_you_mean(name, list(keys)) or f"the model needs {listed}",
            )
        return source.fetch(keys[name])

    names = schema.prediction
    scores = [as_numbers(fetch(name, "prediction"), name, "prediction", position, lenient=lenient) for name in names]
    prediction = scores[0] if len(scores) == 1 else np.column_stack(scores) if scores else np.zeros(source.rows)
    if names and not lenient:
        prediction = to_probabilities(prediction, names, schema.task, position, logits=schema.logits)
    columns = {}
    for feature in schema.features:
        raw = fetch(feature.name, "feature")
        columns[feature.name] = read_known_feature(raw, feature)
        if observe is not None:
            observe(feature, raw)
        if feature.kind == "categorical" and position is None and not raw.missing().all():
            warn_unseen(columns[feature.name], raw, feature)
    return Table(schema, columns, prediction)


def choose_features(
    source: ColumnSource,
    features: Any,
    scores: Sequence[Hashable],
    outcome: Hashable | None,
    weight: Hashable | None,
    cluster: Hashable | None = None,
    excluded: Sequence[Hashable] = (),
) -> tuple[Hashable, ...]:
    """Return the keys of the features, by default of all columns without a role; raise if the outcome is one of them."""
    if features is None:
        marks = {f"{score}{HELD_OUT_SUFFIX}" for score in scores}
        return tuple(key for key in source.keys if key not in {*scores, *marks, outcome, weight, cluster, *excluded})
    chosen = source.find_all(as_keys(features, source), "feature")
    if both := [key for key in chosen if key in excluded]:
        raise ColumnError(
            f"column {source.label(both[0])!r} is named both as feature and in exclude", hint="leave it out of one of them"
        )
    if outcome is not None and outcome in chosen:
        raise ColumnError(
            f"column {source.label(outcome)!r} is identical to the outcome: it is the outcome", hint="leave it out"
        )
    if cluster is not None and cluster in chosen:
        raise ColumnError(
            f"column {source.label(cluster)!r} is named both as cluster and as feature",
            hint="leave it out of the features: a segment of one cluster cannot be tested",
        )
    return chosen


def read_features(
    source: ColumnSource,
    chosen: Sequence[Hashable],
    schema: Schema | None,
    *,
    categorical: Sequence[Hashable] | Hashable,
    keep: IntArray | None,
    unread: dict[str, str] | None = None,
) -> tuple[list[Feature], dict[str, AnyArray], dict[str, str], list[WarningRecord]]:
    """Return features, their columns (rows ``keep``, levels of ``schema`` if given), columns left out and why, warnings.

    Columns that cannot be read are collected in ``unread``, with the reason, or raise if it is None.
    """
    known = {} if schema is None else {feature.name: feature for feature in schema.features}
    as_categories = source.find_all(as_keys(categorical, source), "categorical")
    described, columns, left_out, records = [], {}, {}, []
    for key in chosen:
        name = source.label(key)
        try:
            raw = source.fetch(key)
        except ColumnError as error:
            if unread is None:
                raise
            unread[name] = unread_reason(name, error)
            continue
        if name in known:
            feature, column = known[name], read_known_feature(raw, known[name])
            column = column if keep is None else column[keep]
        elif FEATURE_KINDS[raw.kind] == "categorical" or key in as_categories or raw.exceeds_floats:
            coded = raw.categories()
            if keep is not None:
                coded = encode_used_texts(coded.codes[keep], coded.levels)  # levels of rows that were set aside are none
            feature, column = Feature(name, "categorical", coded.levels), coded.codes
            if reason := identifier_reason(name, len(coded.levels), int((coded.codes >= 0).sum())):
                left_out[name] = reason
                continue
            if key not in as_categories and raw.exceeds_floats:
                records.append(warn_of_large_integers(name, stacklevel=4))
        else:
            values = raw.codes_or_values
            feature, column = Feature(name, FEATURE_KINDS[raw.kind]), values if keep is None else values[keep]
            records += warn_of_integers(name, column, stacklevel=4) if raw.kind == "number" else []
        described.append(feature)
        columns[name] = column
    return described, columns, left_out, records


def _read_excluded(read_own: Any, keys: Sequence[Hashable]) -> dict[Feature, AnyArray]:
    """Read columns that are only reported; identifiers, and columns that cannot be read, are left out."""
    excluded: dict[Feature, AnyArray] = {}
    for key in keys:
        with contextlib.suppress(ColumnError), warnings.catch_warnings():
            warnings.simplefilter("ignore", IdentifierWarning)
            described, columns, _, _ = read_own([key], None)
            excluded |= zip(described, columns.values(), strict=True)
    return excluded


def _role(
    source: ColumnSource, given: Any, role: str, position: RowPosition | None
) -> tuple[Hashable | None, str | None, RawColumn | None]:
    """Return the key of a role (None if values were passed), its name and its values."""
    if given is None:
        return None, None, None
    if isinstance(given, (str, int, np.integer)) or (isinstance(given, tuple) and given in source.keys):
        key = source.find(given, role)
        raw = source.fetch(key)
        return key, source.label(key), raw if position is None else untyped_if_missing(raw)
    raw = from_values(given, role)
    if len(raw) != source.rows:
        raise ColumnError(
            f"the {role} has {len(raw)} values and the data {source.rows} rows", hint="pass one value per row"
        )
    return None, role, raw


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
    scores = [as_numbers(raw, name, "prediction", position) for raw, name in zip(raws, labels, strict=True)]
    return keys, labels, np.column_stack(scores) if is_matrix else scores[0]


def find_scores(source: ColumnSource, prediction: Any) -> tuple[Hashable, ...]:
    """Return the keys of the prediction columns, by default the first column of an array."""
    if prediction is None and not source.by_position:
        raise ArgumentError("no prediction column was named", hint="name it, as {prediction}", settings={"prediction": "p"})
    keys = source.find_all(as_keys(0 if prediction is None else prediction, source), "prediction")
    if not keys:
        raise ArgumentError("an empty list of prediction columns", hint="name one column, or one per class")
    return keys
