"""What one part of the rows says of their columns; what all parts say adds up to what `read` would make of all rows."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice
from trueup.data import checks
from trueup.data.checks import RowPosition
from trueup.data.columns import FLAG_LEVELS, ColumnSource, RawColumn, untyped_if_missing
from trueup.data.folds import random_row_keys
from trueup.data.frame import NO_PREDICTION, open_source
from trueup.data.schema import Feature, Schema, sort_levels
from trueup.errors import ArgumentError, ColumnError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import FloatArray, IntArray, UInt64Array
    from trueup.data.schema import Task


MOST_ROWS, MOST_NUMBERS = 200_000, 4_000_000  # of the sample: many of them meet where all parts are added up
MOST_LEVELS = 1 << 20  # of one column
MOST_OUTCOMES = 10_000  # of several classes
SKETCH = 4096  # hashes: the number of levels is then known to 1.6%

Sort = Literal["number", "flag", "text", "date"]


@dataclass(frozen=True)
class Roles:
    """What each column is for, settled by the names of the columns alone."""

    outcome: str | None
    prediction: tuple[str, ...]
    weight: str | None
    features: tuple[str, ...]
    categorical: frozenset[str]
    task: Task
    unlabelled: Any = "error"
    classes: tuple[Any, ...] | None = None

    @property
    def columns(self) -> tuple[str, ...]:
        """Name every column that is read."""
        return tuple(dict.fromkeys([*self.prediction, *_some(self.outcome, self.weight), *self.features]))

    @property
    def sampled(self) -> int:
        """Say how many rows a sample has: fewer of many columns."""
        return min(MOST_ROWS, MOST_NUMBERS // max(len(self.columns), 1))


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
) -> Roles:
    """Settle the roles of columns as `trueup.data.frame.read` does, before any row is read.

    Examples
    --------
    >>> settle_roles(["y", "p", "sex"], outcome="y", prediction="p").features
    ('sex',)
    """
    check_choice("task", task, ("auto", "binary", "regression"))
    check_choice("unlabelled", unlabelled, ("error", "drop"))
    source = ColumnSource(tuple(names), 0, _unread)
    scores = _find_scores(source, prediction)
    taken = {role: _find_one(source, given, role) for role, given in (("outcome", outcome), ("weight", weight))}
    checks.distinct_roles(taken, scores, source)
    kind = checks.settle_task(task, several=len(scores) > 1)
    if kind == "multiclass" and classes is not None:
        checks.class_names((), scores, classes)
    elif classes is not None:
        checks.outcome(None, None, kind, scores, classes)
    named = source.find_all(_several(categorical), "categorical")
    if features is None:
        chosen: tuple[Any, ...] = tuple(name for name in names if name not in {*scores, *taken.values()})
    else:
        chosen = source.find_all(_several(features), "feature")
        checks.check_not_outcome(chosen, taken["outcome"], source)
    told = None if classes is None else tuple(classes)
    return Roles(taken["outcome"], scores, taken["weight"], chosen, frozenset(map(str, named)), kind, unlabelled, told)


def _unread(key: Any) -> RawColumn:
    raise AssertionError(f"column {key!r} is not read here")


def _some(*names: str | None) -> list[str]:
    return [name for name in names if name is not None]


def _several(names: Any) -> tuple[Any, ...]:
    return tuple(names) if isinstance(names, Iterable) and not isinstance(names, (str, bytes)) else (names,)


def _find_scores(source: ColumnSource, prediction: Any) -> tuple[str, ...]:
    if prediction is NO_PREDICTION:
        return ()
    if prediction is None:
        raise ArgumentError("no prediction column was named", hint='name it, as prediction="p"')
    for one in _several(prediction):
        _must_be_named(one, "prediction")
    found = source.find_all(_several(prediction), "prediction")
    if not found:
        raise ArgumentError("an empty list of prediction columns", hint="name one column, or one a class")
    return tuple(map(str, found))


def _find_one(source: ColumnSource, given: Any, role: str) -> str | None:
    if given is None:
        return None
    _must_be_named(given, role)
    return str(source.find(given, role))


def _must_be_named(given: Any, role: str) -> None:
    if not isinstance(given, str):
        raise ArgumentError(
            f"the {role} must be the name of a column of the frame; got {type(given).__name__}",
            hint="put it into the frame and name it; values can be given where rows are in memory",
        )


@dataclass(frozen=True)
class DistinctLevels:
    """The levels of a column; where there are very many, only about how many."""

    texts: frozenset[str] | None
    hashes: tuple[int, ...] = ()

    def __add__(self, other: DistinctLevels) -> DistinctLevels:
        if self.texts is not None and other.texts is not None:
            return DistinctLevels(self.texts | other.texts).capped()
        return DistinctLevels(None, tuple(sorted({*self._smallest(), *other._smallest()})[:SKETCH]))

    def __len__(self) -> int:
        if self.texts is not None or len(self.hashes) < SKETCH:
            return len(self.hashes if self.texts is None else self.texts)
        # The smallest of n even numbers in [0, 1) lie 1/n apart (Bar-Yossef et al. 2002).
        return round((len(self.hashes) - 1) / (self.hashes[-1] / 2.0**64))

    def capped(self) -> DistinctLevels:
        """Forget the texts of more levels than can be held."""
        return self if self.texts is None or len(self.texts) <= MOST_LEVELS else DistinctLevels(None, self._smallest())

    def _smallest(self) -> tuple[int, ...]:
        if self.texts is None:
            return self.hashes
        digests = np.array([hashlib.blake2b(text.encode(), digest_size=8).digest() for text in self.texts], "S8")
        found = np.frombuffer(digests.tobytes(), "<u8")
        return tuple(np.unique(found)[:SKETCH].tolist())


@dataclass(frozen=True)
class ColumnProfile:
    """What is known of one column."""

    kind: Sort | None
    """Of the rows that have a value."""
    bare: Sort | None
    """By its type alone, where none has a value; of no rows none."""
    part: int
    levels: DistinctLevels = DistinctLevels(frozenset())
    known: int = 0
    lacks: bool = False

    def join(self, other: ColumnProfile, name: str) -> ColumnProfile:
        """Join what two parts say."""
        first, second = (self, other) if self.part <= other.part else (other, self)
        if None not in (first.kind, second.kind) and first.kind != second.kind:
            raise ColumnError(
                f"column {name!r} holds {first.kind}s in part {first.part} and {second.kind}s in part {second.part}",
                hint="give it one type in all parts",
            )
        told = min(first, second, key=lambda one: (one.kind is None, one.bare is None, one.part))
        return ColumnProfile(
            told.kind, told.bare, told.part,
            self.levels + other.levels, self.known + other.known, self.lacks or other.lacks,
        )  # fmt: skip


class PartitionProfile(NamedTuple):
    """What is known of one part: its rows, those that are not set aside, and the lowest and highest score of these."""

    rows: int
    kept: int
    lowest: tuple[float, ...] = ()
    highest: tuple[float, ...] = ()


@dataclass(frozen=True, eq=False)
class RowSample:
    """The rows whose numbers, drawn for each by its place, are the smallest: a fair sample, or all rows."""

    keys: UInt64Array
    columns: Mapping[str, FloatArray]
    most: int
    """Rows, the same for all parts."""

    def __add__(self, other: RowSample) -> RowSample:
        keys = np.concatenate([self.keys, other.keys])
        order = np.argsort(keys)[: self.most]
        # A column that one part knows to be of texts is none of numbers, though it has no value in the other.
        names = [name for name in self.columns if name in other.columns]
        columns = {n: np.concatenate([self.columns[n], other.columns[n]])[order] for n in names}
        return RowSample(keys[order], columns, self.most)


@dataclass(frozen=True, eq=False)
class TableProfile:
    """What is known of the columns; surveys of parts add up, in whatever order."""

    parts: Mapping[int, PartitionProfile]
    columns: Mapping[str, ColumnProfile]
    sample: RowSample
    outcomes: frozenset[str] = frozenset()
    """Of several classes."""
    unlabelled: int = 0
    weightless: int = 0
    weighs: bool = False
    whole_outcomes: bool = True
    """Whether every outcome is 0 or 1, or a class."""

    @property
    def rows(self) -> int:
        """Count all rows."""
        return sum(part.rows for part in self.parts.values())

    @property
    def kept(self) -> int:
        """Count the rows that are not set aside."""
        return sum(part.kept for part in self.parts.values())

    def __add__(self, other: TableProfile) -> TableProfile:
        columns = {name: column.join(other.columns[name], name) for name, column in self.columns.items()}
        return TableProfile(
            {**self.parts, **other.parts}, columns, self.sample + other.sample,
            frozenset(sorted(self.outcomes | other.outcomes)[:MOST_OUTCOMES]),
            self.unlabelled + other.unlabelled, self.weightless + other.weightless,
            self.weighs or other.weighs, self.whole_outcomes and other.whole_outcomes,
        )  # fmt: skip

    @classmethod
    def of(cls, frame: Any, part: int, roles: Roles) -> TableProfile:
        """Look at one part: a frame that `read` takes."""
        source = open_source(frame)
        if not source.rows:
            return _nothing(part, roles)
        seen = _Seen.of(source, roles, RowPosition(0, part))
        rows = np.arange(source.rows) if seen.keep is None else seen.keep
        raws = {name: source.fetch(name) for name in roles.features}
        columns = {name: _look(name, raw, part, seen.keep, roles) for name, raw in raws.items()}
        keys = random_row_keys([np.full(source.rows, float(part)), np.arange(source.rows, dtype=np.float64)], [], 0)[rows]
        some = np.argsort(keys)[: roles.sampled]
        numbers = {name: raw.codes_or_values for name, raw in raws.items() if columns[name].kind in ("number", "date")}
        numbers |= {name: np.full(source.rows, np.nan) for name, one in columns.items() if one.kind is None}
        values = {name: one[rows[some]] for name, one in {**numbers, **seen.scores}.items()}
        scores = [one[rows] for one in seen.scores.values()] if len(rows) else []
        told = PartitionProfile(
            source.rows, len(rows), tuple(float(one.min()) for one in scores), tuple(float(one.max()) for one in scores)
        )
        return cls(
            {part: told}, columns, RowSample(keys[some], values, roles.sampled), seen.outcomes, *seen.counts,
            seen.weighs, seen.whole_outcomes,
        )  # fmt: skip

    def describe(self, roles: Roles) -> tuple[Schema, dict[str, str]]:
        """Give the schema of all rows, and the columns that are left out and why; refuse and warn as `read` does."""
        checks.some_rows(self.rows)
        if roles.weight is not None and not self.weighs:
            raise DataError(
                f"weights in column {roles.weight!r} are all zero ({self.rows:,} rows)",
                hint="leave weight out to count rows alike",
            )
        checks.rows_are_left(self.kept, self.unlabelled, self.weightless)
        classes: tuple[str, ...] = ()
        if roles.task == "multiclass":
            classes = checks.class_names(sort_levels(set(self.outcomes)), roles.prediction, roles.classes)
        features, left_out = [], {}
        for name in roles.features:
            column = self.columns[name]
            if (reason := checks.identifier_reason(name, len(column.levels), column.known)) is not None:
                left_out[name] = reason
            else:
                features.append(self._feature(name, column, as_categories=name in roles.categorical))
        return Schema(roles.task, roles.outcome, roles.prediction, roles.weight, tuple(features), classes), left_out

    def _feature(self, name: str, column: ColumnProfile, *, as_categories: bool) -> Feature:
        kind = column.kind or column.bare
        if kind in ("number", "date") and not as_categories:
            return Feature(name, "date" if kind == "date" else "numeric")
        if kind == "flag" and not self.unlabelled + self.weightless:
            return Feature(name, "categorical", FLAG_LEVELS)
        if column.levels.texts is None:
            raise DataError(
                f"column {name!r} has about {len(column.levels):,} levels, of which {MOST_LEVELS:,} can be held",
                hint="leave it out, or make fewer of them",
            )
        return Feature(name, "categorical", sort_levels(set(column.levels.texts)))


class _Seen(NamedTuple):
    """The roles of one part, checked."""

    scores: dict[str, FloatArray]
    keep: IntArray | None
    counts: tuple[int, int]
    outcomes: frozenset[str]
    weighs: bool
    whole_outcomes: bool

    @classmethod
    def of(cls, source: ColumnSource, roles: Roles, position: RowPosition) -> _Seen:
        """Check the values of the roles in the order in which `read` does."""
        scores = {
            name: checks.as_numbers(untyped_if_missing(source.fetch(name)), name, "prediction", position)
            for name in roles.prediction
        }
        raw, weights = (
            None if one is None else untyped_if_missing(source.fetch(one)) for one in (roles.outcome, roles.weight)
        )
        found: Iterable[str] = ()
        if roles.task == "multiclass":  # which class stands where is known when all parts have been seen
            y = None if raw is None else np.where(raw.missing(), np.nan, 0.0)
            found = () if raw is None else raw.categories().levels
        else:
            y, _ = checks.outcome(raw, roles.outcome, roles.task, roles.prediction, None, position)
        if scores:
            table = list(scores.values())
            checks.prediction(
                table[0] if len(table) == 1 else np.column_stack(table), roles.prediction, roles.task, position
            )
        w = checks.weight(weights, roles.weight, position)
        keep, counts = checks.rows_to_keep(y, w, roles.outcome, roles.unlabelled, position)
        kept = y if y is None or keep is None else y[keep]
        whole = kept is None or bool(np.isin(kept, (0.0, 1.0)).all())
        return cls(scores, keep, counts, frozenset(found), w is not None and bool(w.any()), whole)


def _look(name: str, raw: RawColumn, part: int, keep: IntArray | None, roles: Roles) -> ColumnProfile:
    """Say what a part knows of a feature; what rows that are set aside hold is no level."""
    missing = raw.missing()
    gone = missing if keep is None else missing[keep]
    known, lacks = int((~gone).sum()), bool(gone.any())
    if missing.all():
        return ColumnProfile(None, raw.kind, part, lacks=lacks)
    if raw.kind not in ("text", "flag") and name not in roles.categorical:
        return ColumnProfile(raw.kind, raw.kind, part, known=known, lacks=lacks)
    coded = raw.categories()
    codes = coded.codes if keep is None else coded.codes[keep]
    used = np.bincount(codes + 1, minlength=len(coded.levels) + 1)[1:] > 0
    levels = DistinctLevels(frozenset(itertools.compress(coded.levels, used)))
    return ColumnProfile(raw.kind, raw.kind, part, levels.capped(), known, lacks)


def _nothing(part: int, roles: Roles) -> TableProfile:
    """Tell of a part without rows, which agrees with every other."""
    names = (*roles.features, *roles.prediction)
    sample = RowSample(np.empty(0, np.uint64), {name: np.empty(0) for name in names}, roles.sampled)
    return TableProfile(
        {part: PartitionProfile(0, 0)}, {name: ColumnProfile(None, None, part) for name in roles.features}, sample
    )
