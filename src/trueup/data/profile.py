"""Profiles of the columns of partitions; they add up to the schema that `trueup.data.frame.read` finds on all rows."""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.data import frame, values
from trueup.data.columns import (
    FEATURE_KINDS,
    FLAG_LEVELS,
    ColumnSource,
    as_tuple,
    check_distinct_roles,
    find_excluded,
    open_source,
    untyped_if_missing,
)
from trueup.data.folds import random_row_keys
from trueup.data.identifiers import identifier_reason, unread_reason, warn_of_unread
from trueup.data.table import Feature, Schema, Task, sort_levels
from trueup.errors import ArgumentError, ColumnError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import FloatArray, IntArray, UInt64Array
    from trueup.data.columns import RawColumn, ValueKind


MAX_SAMPLE_ROWS, MAX_SAMPLE_VALUES = 200_000, 4_000_000  # samples of many partitions meet where they are added
MAX_LEVELS = 1 << 20  # of one column
MAX_OUTCOMES = 10_000  # of several classes
SKETCH_SIZE = 4096  # hashes: the standard error of the number of levels is then 1.6%


@dataclass(frozen=True)
class Roles:
    """The roles of the columns, found by their names alone."""

    outcome: str | None
    prediction: tuple[str, ...]
    weight: str | None
    features: tuple[str, ...]
    categorical: frozenset[str]
    task: Task
    unlabelled: Any = "error"
    classes: tuple[Any, ...] | None = None
    cluster: str | None = None
    default_features: bool = False  # whether the features were not named
    logits: bool = False

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns that are read."""
        names = [*self.prediction, self.outcome, self.weight, self.cluster, *self.features]
        return tuple(dict.fromkeys(name for name in names if name is not None))


def assign_roles(
    names: Sequence[str],
    *,
    outcome: Any,
    prediction: Any,
    weight: Any = None,
    features: Any = None,
    task: str = "auto",
    categorical: Any = (),
    unlabelled: str = "error",
    classes: Sequence[Any] | None = None,
    cluster: Any = None,
    exclude: Any = (),
    logits: bool = False,
) -> Roles:
    """Assign roles to columns as `trueup.data.frame.read` does, before any row is read."""
    check_choice("task", task, ("auto", "binary", "regression"))
    check_choice("unlabelled", unlabelled, ("error", "drop"))
    source = ColumnSource.of_names(names)
    scores: tuple[str, ...] = ()
    if prediction is not frame.NO_PREDICTION:
        given = None if prediction is None else [_check_name(name, "prediction") for name in as_tuple(prediction)]
        scores = tuple(map(str, frame.find_scores(source, given)))
    y, w, c = (
        None if name is None else str(source.find(_check_name(name, role), role))
        for name, role in ((outcome, "outcome"), (weight, "weight"), (cluster, "cluster"))
    )
    check_distinct_roles({"outcome": y, "weight": w, "cluster": c}, scores, source)
    resolved_task = values.resolve_task(task, classes, several=len(scores) > 1)
    if classes is not None:
        values.class_names((), scores, classes)
    as_categories = source.find_all(as_tuple(categorical), "categorical")
    hidden = find_excluded(source, exclude, scores)
    chosen = tuple(map(str, frame.choose_features(source, features, scores, y, w, c, hidden)))
    class_tuple = None if classes is None else tuple(classes)
    return Roles(
        y, scores, w, chosen, frozenset(map(str, as_categories)), resolved_task, unlabelled, class_tuple, c,
        default_features=features is None, logits=logits,
    )  # fmt: skip


def _check_name(given: Any, role: str) -> str:
    if not isinstance(given, str):
        raise ArgumentError(
            f"the {role} must be the name of a column; got {type(given).__name__}",
            hint="add it to the data as a column; values can only be passed with rows in memory",
        )
    return given


@dataclass(frozen=True)
class DistinctLevels:
    """The levels of a column; if there are too many to hold, hashes that estimate their number."""

    texts: frozenset[str] | None
    hashes: tuple[int, ...] = ()

    def __add__(self, other: DistinctLevels) -> DistinctLevels:
        if self.texts is not None and other.texts is not None:
            return DistinctLevels(self.texts | other.texts).capped()
        return DistinctLevels(None, tuple(sorted({*self._smallest(), *other._smallest()})[:SKETCH_SIZE]))

    def __len__(self) -> int:
        if self.texts is not None or len(self.hashes) < SKETCH_SIZE:
            return len(self.hashes if self.texts is None else self.texts)
        # The k smallest of n uniform numbers in [0, 1) lie 1/n apart (Bar-Yossef et al. 2002).
        return round((len(self.hashes) - 1) / (self.hashes[-1] / 2.0**64))

    def capped(self) -> DistinctLevels:
        """Return hashes of the levels instead of texts if there are more than MAX_LEVELS."""
        if self.texts is None or len(self.texts) <= MAX_LEVELS:
            return self
        return DistinctLevels(None, self._smallest())

    def _smallest(self) -> tuple[int, ...]:
        if self.texts is None:
            return self.hashes
        digests = np.array([hashlib.blake2b(text.encode(), digest_size=8).digest() for text in self.texts], "S8")
        return tuple(np.unique(np.frombuffer(digests.tobytes(), "<u8"))[:SKETCH_SIZE].tolist())


@dataclass(frozen=True)
class ColumnProfile:
    """The type, the levels and the number of known values of one column, in some of the partitions."""

    kind: ValueKind | None  # of the rows that have a value
    empty_kind: ValueKind | None  # the declared type if no row has a value; None without rows
    partition: int  # the number of the partition that the kind comes from
    levels: DistinctLevels = DistinctLevels(frozenset())
    known: int = 0
    has_missing: bool = False
    exceeds_floats: bool = False  # whether there are integers that floats cannot tell apart, read as numbers
    unread: str = ""  # why the column cannot be read

    @classmethod
    def of(cls, name: str, raw: RawColumn, partition: int, keep: IntArray | None, roles: Roles) -> ColumnProfile:
        """Profile a feature of one partition; its levels are those of the rows ``keep``, None for all."""
        missing = raw.missing()
        kept_missing = missing if keep is None else missing[keep]
        known, has_missing = int((~kept_missing).sum()), bool(kept_missing.any())
        if missing.all():
            return cls(None, raw.kind if len(raw) else None, partition, has_missing=has_missing)
        if FEATURE_KINDS[raw.kind] != "categorical" and name not in roles.categorical:
            exceeds = raw.exceeds_floats
            return cls(raw.kind, raw.kind, partition, known=known, has_missing=has_missing, exceeds_floats=exceeds)
        coded = raw.categories()
        codes = coded.codes if keep is None else coded.codes[keep]
        used = np.bincount(codes + 1, minlength=len(coded.levels) + 1)[1:] > 0
        levels = DistinctLevels(frozenset(itertools.compress(coded.levels, used)))
        return cls(raw.kind, raw.kind, partition, levels.capped(), known, has_missing)

    def merge(self, other: ColumnProfile, name: str) -> ColumnProfile:
        """Merge the profiles of two sets of partitions; raise if the types differ."""
        first, second = (self, other) if self.partition <= other.partition else (other, self)
        if unread := first.unread or second.unread:
            return ColumnProfile(None, None, first.partition, unread=unread)
        if None not in (first.kind, second.kind) and first.kind != second.kind:
            raise ColumnError(
                f"column {name!r} holds {first.kind}s in partition {first.partition} "
                f"and {second.kind}s in partition {second.partition}",
                hint="use one type in all partitions",
            )
        typed = min(first, second, key=lambda one: (one.kind is None, one.empty_kind is None, one.partition))
        return ColumnProfile(
            typed.kind, typed.empty_kind, typed.partition,
            self.levels + other.levels, self.known + other.known, self.has_missing or other.has_missing,
            self.exceeds_floats or other.exceeds_floats,
        )  # fmt: skip

    def feature(self, name: str, *, as_categories: bool, all_kept: bool) -> Feature:
        """Return the feature that `read` would find on all rows; ``all_kept`` means that no row was set aside."""
        kind = self.kind or self.empty_kind or "text"
        if FEATURE_KINDS[kind] != "categorical" and not as_categories:
            return Feature(name, FEATURE_KINDS[kind])
        if kind == "flag" and all_kept:
            return Feature(name, "categorical", FLAG_LEVELS)
        if self.levels.texts is None:
            raise DataError(
                f"column {name!r} has about {len(self.levels):,} levels; at most {MAX_LEVELS:,} are possible",
                hint="leave it out, or group its levels",
            )
        return Feature(name, "categorical", sort_levels(self.levels.texts))


@dataclass(frozen=True, eq=False)
class RowSample:
    """The rows with the smallest random keys: a random sample of at most ``size`` rows, or all rows."""

    keys: UInt64Array
    columns: Mapping[str, FloatArray]
    size: int

    def __add__(self, other: RowSample) -> RowSample:
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys)[: self.size]
        # A column of texts in one partition is not numeric, though it has no value in the other.
        names = [name for name in self.columns if name in other.columns]
        columns = {name: np.concatenate([self.columns[name], other.columns[name]])[order] for name in names}
        return RowSample(keys[order], columns, self.size)


@dataclass(frozen=True, eq=False)
class TableProfile:
    """Row counts, column profiles and a sample of some partitions; profiles are added with ``+``, in any order."""

    rows: int
    kept: int  # rows that are not set aside
    columns: Mapping[str, ColumnProfile]
    sample: RowSample
    outcomes: frozenset[str] = frozenset()  # of several classes
    unlabelled: int = 0
    weightless: int = 0
    has_weight: bool = False  # whether some weight is positive
    discrete_outcomes: bool = True  # whether every outcome is 0 or 1, or a class

    def __add__(self, other: TableProfile) -> TableProfile:
        columns = {name: column.merge(other.columns[name], name) for name, column in self.columns.items()}
        return TableProfile(
            self.rows + other.rows, self.kept + other.kept, columns, self.sample + other.sample,
            frozenset(sorted(self.outcomes | other.outcomes)[:MAX_OUTCOMES]),
            self.unlabelled + other.unlabelled, self.weightless + other.weightless,
            self.has_weight or other.has_weight, self.discrete_outcomes and other.discrete_outcomes,
        )  # fmt: skip

    @classmethod
    def of(cls, data: Any, partition: int, roles: Roles) -> TableProfile:
        """Profile one partition: a frame that `trueup.data.frame.read` accepts."""
        source = open_source(data)
        position = values.RowPosition(0, partition)
        scores = {}
        for name in roles.prediction:
            scores[name] = values.as_numbers(untyped_if_missing(source.fetch(name)), name, "prediction", position)
        raw_y, raw_w = (
            None if name is None else untyped_if_missing(source.fetch(name)) for name in (roles.outcome, roles.weight)
        )
        y, outcomes = None, frozenset[str]()
        if raw_y is not None and roles.task == "multiclass":  # the index of a class is known once all partitions are read
            y, outcomes = np.where(raw_y.missing(), np.nan, 0.0), frozenset(raw_y.categories().levels)
        elif raw_y is not None:
            y = values.check_outcome(raw_y, str(roles.outcome), roles.task, position)
        if scores:
            matrix = np.column_stack(list(scores.values()))
            given = matrix if len(scores) > 1 else matrix[:, 0]
            P = values.to_probabilities(given, roles.prediction, roles.task, position, logits=roles.logits)
            scores = dict(zip(scores, P.reshape(matrix.shape).T, strict=True))
        w = values.check_weight(raw_w, roles.weight, position)
        keep, counts = values.rows_to_keep(y, w, roles.outcome, roles.unlabelled, position)
        rows = np.arange(source.rows) if keep is None else keep
        raws, columns = {}, {}
        for name in roles.features:
            try:
                raws[name] = source.fetch(name)
            except ColumnError as error:
                if not roles.default_features:
                    raise
                columns[name] = ColumnProfile(None, None, partition, unread=unread_reason(name, error))
            else:
                columns[name] = ColumnProfile.of(name, raws[name], partition, keep, roles)
        # The sample has numbers, dates and scores, of rows that are drawn by their place in the partition.
        places = [np.full(source.rows, float(partition)), np.arange(source.rows, dtype=np.float64)]
        keys = random_row_keys(places, [], 0)[rows]
        size = min(MAX_SAMPLE_ROWS, MAX_SAMPLE_VALUES // max(len(roles.columns), 1))  # fewer with many columns
        drawn = np.argsort(keys)[:size]
        numbers = {name: raw.codes_or_values for name, raw in raws.items() if columns[name].kind in ("number", "date")}
        empty = [name for name, column in columns.items() if column.kind is None and not column.unread]
        numbers |= {name: np.full(source.rows, np.nan) for name in empty}
        sampled = {name: column[rows[drawn]] for name, column in {**numbers, **scores}.items()}
        return cls(
            source.rows, len(rows), columns,
            RowSample(keys[drawn], sampled, size), outcomes,
            *counts, w is not None and bool(w.any()), y is None or bool(np.isin(y[rows], (0.0, 1.0)).all()),
        )  # fmt: skip

    def large_integers(self) -> list[str]:
        """Return the columns of integers that floats cannot tell apart, read as numbers: they must be categories."""
        return [name for name, column in self.columns.items() if column.exceeds_floats]

    def describe(self, roles: Roles) -> tuple[Schema, dict[str, str]]:
        """Return the schema of all rows, and the columns left out and why; raise and warn as `read` does."""
        values.check_has_rows(self.rows)
        if roles.weight is not None:
            values.check_some_weight(roles.weight, self.rows, some=self.has_weight)
        values.check_rows_left(self.kept, self.unlabelled, self.weightless)
        classes: tuple[str, ...] = ()
        if roles.task == "multiclass":
            classes = values.class_names(sort_levels(self.outcomes), roles.prediction, roles.classes)
        features, left_out = [], {name: column.unread for name, column in self.columns.items() if column.unread}
        all_kept = not self.unlabelled + self.weightless
        warn_of_unread(left_out, stacklevel=4)
        for name in roles.features:
            column = self.columns[name]
            if name in left_out:
                continue
            if (reason := identifier_reason(name, len(column.levels), column.known)) is not None:
                left_out[name] = reason
                continue
            features.append(column.feature(name, as_categories=name in roles.categorical, all_kept=all_kept))
        schema = Schema(
            roles.task, roles.outcome, roles.prediction, roles.weight, tuple(features), classes, roles.cluster,
            roles.logits,
        )  # fmt: skip
        return schema, left_out
