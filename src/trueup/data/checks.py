"""Checks of the input: what the values of each role must be, and what only all rows together can show."""

from __future__ import annotations

import os
import re
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import FEATURE_KINDS, FLAG_LEVELS, from_objects
from trueup.errors import (
    ArgumentError,
    ColumnError,
    DataError,
    HardPredictionWarning,
    IdentifierWarning,
    OneClassWarning,
    UnseenWarning,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray
    from trueup.data.columns import CodedColumn, ColumnSource, RawColumn
    from trueup.data.schema import Feature, Schema, Task
    from trueup.data.table import Table

PERCENTAGE = re.compile(r"\s*[-+]?[0-9]*[.,]?[0-9]+\s*%\s*")
MIN_ROWS = 50  # with fewer rows, what looks like a copy of the outcome or like labels may be chance
SUM_TOLERANCE = 1e-3  # of the probabilities of the classes: single precision, and a few decimals
MAX_WEIGHT = 1e50  # third powers of weights are summed
MAX_VALUE = 1e100  # squares of real outcomes are summed
MIN_IDENTIFIER_LEVELS = 20  # a column with at most so many levels is never treated as an identifier
IDENTIFIER_SHARE = 0.9  # levels per row
MAX_CLASSES = 50  # an outcome with more distinct values cannot be restated by a category
LOGIT_HINT = "pass logits through scipy.special.expit first"
TASK_SETTING = {"task": "regression"}


class RowPosition(NamedTuple):
    """Position of some rows among all rows: their first row, and the number of their partition if there are any."""

    first: int = 0
    partition: int | None = None


def describe_rows(bad: BoolArray, position: RowPosition | None = None) -> str:
    """Return where the first bad row is, and how many there are unless the rows are only some of all rows."""
    row = int(np.argmax(bad))
    if position is not None:
        partition = "" if position.partition is None else f" of partition {position.partition}"
        return f"at row {position.first + row}{partition}"
    count = int(bad.sum())
    return f"at row {row} ({count:,} such row{'s' if count > 1 else ''})"


def _reject(
    bad: BoolArray, values: FloatArray, rule: str, hint: str, position: RowPosition | None, settings: Any = None
) -> None:
    """Raise if some value is bad: the rule that it breaks, the first such value, and where it is."""
    if bad.any():
        raise DataError(f"{rule}; got {values[bad][0]:g} {describe_rows(bad, position)}", hint=hint, settings=settings)


def check_has_rows(rows: int) -> None:
    """Raise if the data has no rows."""
    if rows == 0:
        raise DataError("the data has no rows", hint="check the filter or file that it comes from")


def check_distinct_roles(
    roles: Mapping[str, Hashable | None], predictions: Sequence[Hashable], source: ColumnSource
) -> None:
    """Raise if one column has two roles."""
    taken: dict[Hashable | None, str] = dict.fromkeys(predictions, "prediction")
    for role, key in roles.items():
        if key is not None and (other := taken.setdefault(key, role)) != role:
            raise ColumnError(
                f"column {source.label(key)!r} is named both as {other} and as {role}", hint="a column has one role"
            )


def resolve_task(task: str, classes: Sequence[Any] | None, *, several: bool) -> Task:
    """Return the task, given whether there are several prediction columns."""
    if not several and classes is not None:
        raise ArgumentError(
            "classes can only be named with several prediction columns", hint="name one prediction column per class"
        )
    if not several:
        return "regression" if task == "regression" else "binary"
    if task != "auto":
        raise ArgumentError(
            f"task {task!r} takes one prediction column",
            hint="several prediction columns are classes: leave {task}",
            settings={"task": "auto"},
        )
    return "multiclass"


def as_numbers(raw: RawColumn, name: str, role: str, position: RowPosition | None = None) -> FloatArray:
    """Return the numbers of a column; raise if it contains anything else."""
    if raw.kind != "date" and raw.coded is None:
        return raw.codes_or_values
    levels = () if raw.coded is None else raw.coded.levels
    not_numbers = np.array([not _is_number(level) for level in levels] + [False])
    if raw.coded is None:
        content, hint = "dates", "name another column"
    elif not levels:
        content, hint = f"only missing values ({len(raw):,} rows)", "fill it in"
    elif not not_numbers.any():
        content, hint = f"numbers written as text, such as {levels[0]!r}", "convert the column to a number type first"
    else:
        bad = not_numbers[raw.coded.codes]
        example = levels[raw.coded.codes[int(np.argmax(bad))]]
        content = f"text such as {example[:60]!r} {describe_rows(bad, position)}"
        hint = "convert the column to numbers first; rows without a value must be missing, not a text"
        if PERCENTAGE.fullmatch(example):
            hint = "percentages written as text: remove the percent sign, and divide by 100"
    raise DataError(f"{role} column {name!r} must hold numbers; got {content}", hint=hint)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def check_scores(scores: FloatArray, names: tuple[str, ...], task: Task, position: RowPosition | None = None) -> None:
    """Raise unless scores are finite, and probabilities unless the task is regression; no names mean no scores."""
    if not names:
        return
    for name, column in zip(names, scores.reshape(len(scores), len(names)).T, strict=True):
        rule = f"prediction column {name!r} must"
        hint = "a row without a score can be neither audited nor corrected: drop it, or score it first"
        _reject(~np.isfinite(column), column, f"{rule} hold finite numbers", hint, position)
        if task == "regression":
            _check_size(column, rule, position)
            continue
        bad = (column < 0) | (column > 1)
        if bad.any():
            is_percentage = column.min() >= 0 and column.max() <= 100
            hint = "percentages? divide them by 100" if is_percentage else f"{LOGIT_HINT}; for a real quantity use {{task}}"
            _reject(bad, column, f"{rule} hold probabilities in [0, 1]", hint, position, TASK_SETTING)
    if task == "multiclass":
        total = scores.sum(axis=1)
        hint = "name every class column; audit classes that do not exclude each other one by one"
        rule = "the probabilities of the classes must add up to 1"
        _reject(np.abs(total - 1) > SUM_TOLERANCE, total, rule, hint, position)


def are_hard(scores: FloatArray) -> bool:
    """Return whether there are many scores, all 0 or 1, and not all the same."""
    if len(scores) < MIN_ROWS or not np.array_equal(np.unique(scores[:1000]), [0.0, 1.0]):
        return False
    return bool(((scores == 0) | (scores == 1)).all())


def warn_hard_predictions(name: str) -> None:
    """Warn that every prediction is 0 or 1."""
    warnings.warn(
        f"every prediction in column {name!r} is 0 or 1\n"
        "hint: pass probabilities rather than labels; are outcome and prediction swapped?",
        HardPredictionWarning,
        stacklevel=4,
    )


def _check_size(values: FloatArray, rule: str, position: RowPosition | None) -> None:
    rule = f"{rule} lie within {MAX_VALUE:g} of 0"
    _reject(np.abs(values) > MAX_VALUE, values, rule, "measure it in a larger unit", position)


def check_outcome(raw: RawColumn, name: str, task: Task, position: RowPosition | None = None) -> FloatArray:
    """Return an outcome that is no class, NaN for unlabelled rows; raise if it is not valid."""
    if raw.coded is not None:
        levels = raw.coded.levels
        allowed = "numbers" if task == "regression" else "0 and 1, booleans, or probabilities in [0, 1]"
        examples = " and ".join(repr(level) for level in levels[:2]) or "only missing values"
        raise DataError(
            f"outcome column {name!r} must hold {allowed}; got text such as {examples}",
            hint=f"write it as 1 where it is {_escape(repr(levels[-1][:40]))} (if that is the event) and 0 elsewhere"
            if levels
            else "fill it in, or leave these rows out",
            settings={"positive": levels[-1]} if levels else None,
        )
    y = as_numbers(raw, name, "outcome", position)
    rule = f"outcome column {name!r} must"
    hint = "leave those rows out, or make them missing and unlabelled"
    _reject(np.isinf(y), y, f"{rule} hold finite numbers", hint, position)
    _check_size(y, rule, position)
    bad = (y < 0) | (y > 1)
    if task == "binary" and bad.any():
        hint, settings = "for a real outcome pass {task}; for classes name one prediction column per class", TASK_SETTING
        distinct = np.unique(y[~np.isnan(y)])
        if len(distinct) == 2:
            low, high = (f"{value:g}" for value in distinct)
            hint, settings = f"write {low} as 0 and {high} as 1, if {high} is the event", {"positive": high}
        _reject(bad, y, f"{rule} hold 0 and 1, booleans, or probabilities in [0, 1]", hint, position, settings)
    return y


def _escape(text: str) -> str:
    """Escape braces, which in a hint with settings stand for one of them."""
    return text.replace("{", "{{").replace("}", "}}")


def class_indices(coded: CodedColumn, name: str, names: tuple[str, ...], position: RowPosition | None) -> FloatArray:
    """Return the index of the class of each row, NaN for unlabelled rows; raise for a class that is not among the names."""
    index = {text: float(place) for place, text in enumerate(names)}
    y = np.array([*(index.get(level, -1.0) for level in coded.levels), np.nan])[coded.codes]
    bad = y < 0
    if bad.any():
        level = coded.levels[coded.codes[bad][0]]
        raise DataError(
            f"outcome column {name!r} holds a class without a prediction column: {level!r} {describe_rows(bad, position)}",
            hint=f"the prediction columns stand for {_escape(', '.join(names))}; pass {{classes}} if that is wrong",
            settings={"classes": ...},
        )
    return y


def class_names(outcomes: Collection[str], labels: tuple[str, ...], classes: Sequence[Any] | None) -> tuple[str, ...]:
    """Return the outcome that each prediction column stands for.

    That is what the user passed as ``classes``; or the columns are named as the outcomes, with or without a common prefix
    ("p_cat", "p_dog"); or the outcomes are the positions 0, 1, ...
    """
    if classes is not None:
        coded = from_objects(list(classes), "classes").categories()
        names = tuple(coded.levels[code] if code >= 0 else "" for code in coded.codes)
        if not len(names) == len(set(names)) == len(labels):
            raise ArgumentError(
                f"classes must name one outcome for each of the {len(labels)} prediction columns; got {list(classes)!r}",
                hint="name them in the order of the prediction columns, each once",
                parameter="classes",
            )
        return names
    prefix = os.path.commonprefix(labels)  # noqa: RUF071  (of texts)
    stripped = tuple(label[len(prefix) :] for label in labels)
    for names in (labels, stripped, tuple(str(index) for index in range(len(labels)))):
        if set(outcomes) <= set(names):
            return names
    listed = list(outcomes)
    if len(listed) > len(labels):
        raise DataError(
            f"{len(labels)} prediction columns for {len(listed)} classes ({', '.join(listed[:12])})",
            hint="name one prediction column per class",
        )
    raise DataError(
        f"cannot tell which outcome each prediction column stands for: outcomes {', '.join(listed[:6])}, "
        f"columns {', '.join(labels[:6])}",
        hint="pass {classes}, the outcome of each prediction column in their order",
        settings={"classes": ...},
    )


def check_weight(raw: RawColumn | None, name: str | None, position: RowPosition | None = None) -> FloatArray | None:
    """Return the weights; raise unless they are finite, not negative and not all zero."""
    if raw is None:
        return None
    name = name or "weight"
    w = as_numbers(raw, name, "weight", position)
    for bad, rule in (
        (~np.isfinite(w), "be finite"),
        (w < 0, "not be negative"),
        (w > MAX_WEIGHT, f"be at most {MAX_WEIGHT:g}"),
        ((w > 0) & (w < 1 / MAX_WEIGHT), f"be at least {1 / MAX_WEIGHT:g}, or 0"),
    ):
        _reject(bad, w, f"weights in column {name!r} must {rule}", "a row that should not count has weight 0", position)
    if position is None:
        check_some_weight(name, len(w), some=bool(w.any()))
    return w


def check_some_weight(name: str, rows: int, *, some: bool) -> None:
    """Raise if all weights are zero."""
    if not some:
        raise DataError(
            f"weights in column {name!r} are all zero ({rows:,} rows)", hint="leave weight out for equal weights"
        )


def rows_to_keep(
    y: FloatArray | None,
    w: FloatArray | None,
    name: str | None,
    unlabelled: str,
    position: RowPosition | None = None,
) -> tuple[IntArray | None, tuple[int, int]]:
    """Return the rows with outcome and positive weight, None for all; count those without outcome and of weight zero."""
    no_outcome = None if y is None else np.isnan(y)
    if no_outcome is not None and no_outcome.any() and unlabelled == "error":
        raise DataError(
            f"outcome column {name or 'outcome'!r} is missing {describe_rows(no_outcome, position)}",
            hint="pass {unlabelled} to set unlabelled rows aside, or fill the column in",
            settings={"unlabelled": "drop"},
        )
    no_weight = None if w is None else w == 0
    dropped = [mask for mask in (no_outcome, no_weight) if mask is not None]
    if not any(mask.any() for mask in dropped):
        return None, (0, 0)
    drop = np.logical_or.reduce(dropped)
    unlabelled_rows = 0 if no_outcome is None else int(no_outcome.sum())
    counts = unlabelled_rows, int(drop.sum()) - unlabelled_rows
    kept = np.flatnonzero(~drop)
    if position is None:
        check_rows_left(len(kept), *counts)
    return kept, counts


def check_rows_left(kept: int, unlabelled: int, weightless: int) -> None:
    """Raise if all rows were set aside."""
    if not kept:
        raise DataError(
            f"no rows are left: {unlabelled:,} have no outcome and {weightless:,} have weight 0",
            hint="check the outcome and weight columns",
        )


def warn_one_class(name: str | None, lowest: float, highest: float, rows: int, task: Task) -> None:
    """Warn if every outcome is the same; a constant probability as outcome is none of the classes."""
    if task != "regression" and lowest == highest and not (task == "binary" and 0 < lowest < 1):
        warnings.warn(
            f"every outcome in column {name or 'outcome'!r} is {lowest:g} ({rows:,} rows): only one kind of error can show",
            OneClassWarning,
            stacklevel=4,
        )


def identifier_reason(name: str, levels: int, known: int) -> str | None:
    """Return why a text column is left out if it looks like an identifier, and warn; ``known`` rows have a value."""
    if levels <= MIN_IDENTIFIER_LEVELS or levels < IDENTIFIER_SHARE * known:
        return None
    reason = f"{levels:,} levels in {known:,} rows: an identifier"
    warnings.warn(
        f"column {name!r} is left out: {reason}\nhint: none of its levels has enough rows for a result",
        IdentifierWarning,
        stacklevel=5,
    )
    return reason


def check_kind(raw: RawColumn, feature: Feature) -> None:
    """Raise if a column does not have the type that the schema was made with."""
    kind = FEATURE_KINDS[raw.kind]
    as_categories = feature.kind == "categorical" and kind != "categorical" and feature.levels != FLAG_LEVELS
    if kind != feature.kind and not as_categories:
        raise ColumnError(
            f"column {feature.name!r} was {feature.kind} and now holds {raw.kind}s", hint="read it with the type it had"
        )


def warn_unseen(codes: AnyArray, raw: RawColumn, feature: Feature) -> None:
    """Warn if a column has many rows and none of its values is in the schema: most likely their spelling has changed."""
    if not feature.levels or len(codes) < MIN_ROWS or (codes >= 0).any() or raw.missing().sum() > len(codes) - MIN_ROWS:
        return
    warnings.warn(
        f"no value of column {feature.name!r} is known to the model ({len(codes):,} rows): all are treated as missing\n"
        f"hint: it knows {', '.join(map(repr, feature.levels[:3]))}; check the spelling of the values",
        UnseenWarning,
        stacklevel=4,
    )


def check_outcome_copies(features: Sequence[Feature], columns: Mapping[str, AnyArray], y: FloatArray, task: Task) -> None:
    """Raise if a feature restates the outcome."""
    copies = OutcomeCopies()
    copies.add(features, columns, y, task)
    copies.check(features, len(y))


class OutcomeCopies:
    """Features that restate the outcome in all rows so far: value for value, or categories that map to it one to one."""

    def __init__(self) -> None:
        self.equal: set[str] | None = None  # numeric columns; None before the first rows
        self.pairs: dict[str, set[tuple[float, int]]] = {}  # of outcome and code that occur, by categorical column
        self.outcomes: set[float] = set()

    def add(self, features: Sequence[Feature], columns: Mapping[str, AnyArray], y: FloatArray, task: Task) -> None:
        """Include more rows, at least one."""
        if self.equal is None:
            self.equal = {feature.name for feature in features if feature.kind == "numeric"}
            categorical = (feature.name for feature in features if feature.kind == "categorical" and task != "regression")
            self.pairs = {name: set() for name in categorical}
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
                    pairs.update(
                        zip(outcomes[keys % len(outcomes)].tolist(), (keys // len(outcomes)).tolist(), strict=True)
                    )
                if len(keys) > len(outcomes) or not self._one_to_one(pairs):
                    del self.pairs[name]

    def _one_to_one(self, pairs: set[tuple[float, int]]) -> bool:
        return len(pairs) == len(self.outcomes) == len({code for _, code in pairs})

    def __add__(self, other: OutcomeCopies) -> OutcomeCopies:
        if self.equal is None or other.equal is None:
            return other if self.equal is None else self
        total = OutcomeCopies()
        total.equal, total.outcomes = self.equal & other.equal, self.outcomes | other.outcomes
        if len(total.outcomes) <= MAX_CLASSES:
            both = {name: pairs | other.pairs[name] for name, pairs in self.pairs.items() if name in other.pairs}
            total.pairs = {name: pairs for name, pairs in both.items() if total._one_to_one(pairs)}
        return total

    def check(self, features: Sequence[Feature], rows: int) -> None:
        """Raise if there are any, once all rows are included."""
        if len(self.outcomes) < 2:
            return
        renamed = {
            one.name for one in features if one.name in self.pairs and (rows >= MIN_ROWS or one.levels == ("0", "1"))
        }
        copies = [feature.name for feature in features if feature.name in renamed | (self.equal or set())]
        if copies:
            subject = f"column {copies[0]!r} is" if len(copies) == 1 else f"columns {', '.join(map(repr, copies))} are"
            raise ColumnError(f"{subject} identical to the outcome", hint="leave it out: it is what is to be predicted")


@dataclass(frozen=True)
class RowSummary:
    """Counts and checks of rows that come in chunks or partitions; summaries add up to that of all rows."""

    rows: int = 0  # that were not set aside
    unlabelled: int = 0
    weightless: int = 0
    lowest: float = np.inf  # outcome
    highest: float = -np.inf
    hard: bool = True  # whether every prediction is 0 or 1
    copies: OutcomeCopies = field(default_factory=OutcomeCopies)

    def include(self, table: Table) -> RowSummary:
        """Return the summary with the rows of one more table; this one must not be used afterwards."""
        y = table.outcome
        assert y is not None
        unlabelled, weightless = self.unlabelled + table.unlabelled, self.weightless + table.weightless
        if not len(table):
            return replace(self, unlabelled=unlabelled, weightless=weightless)
        self.copies.add(table.schema.features, table.columns, y, table.schema.task)
        hard = self.hard and table.prediction.ndim == 1 and bool(np.isin(table.prediction, (0.0, 1.0)).all())
        lowest, highest = min(self.lowest, float(y.min())), max(self.highest, float(y.max()))
        return RowSummary(self.rows + len(table), unlabelled, weightless, lowest, highest, hard, self.copies)

    def __add__(self, other: RowSummary) -> RowSummary:
        return RowSummary(
            self.rows + other.rows, self.unlabelled + other.unlabelled, self.weightless + other.weightless,
            min(self.lowest, other.lowest), max(self.highest, other.highest), self.hard and other.hard,
            self.copies + other.copies,
        )  # fmt: skip

    def check(self, schema: Schema) -> None:
        """Raise and warn about what all rows have in common, as `trueup.data.frame.read` does for rows in memory."""
        check_rows_left(self.rows, self.unlabelled, self.weightless)
        self.copies.check(schema.features, self.rows)
        if self.hard and schema.prediction and schema.task == "binary" and self.rows >= MIN_ROWS:
            warn_hard_predictions(schema.prediction[0])
        warn_one_class(schema.outcome, self.lowest, self.highest, self.rows, schema.task)
