"""What every role demands of its values; each refusal says what, where, how many rows, and what to do."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import FLAG_LEVELS, RawColumn, from_objects
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
    from trueup.data.columns import ColumnSource
    from trueup.data.schema import Feature, Schema, Task
    from trueup.data.table import Table

PERCENTAGE = re.compile(r"\s*[-+]?[0-9]*[.,]?[0-9]+\s*%\s*")
PERCENT = "percentages written as text: take the percent sign off, and divide by 100"
NO_TEXT = "convert the column to numbers first; what has no value must be missing, not a text"
COPY_ROWS = 50  # below this many rows what looks like a copy or a label may be chance
SUM_TOLERANCE = 1e-3  # single precision, and a few decimals
MAX_WEIGHT = 1e50  # third powers of weights are summed up
MAX_VALUE = 1e100  # squares of real outcomes are


class RowPosition(NamedTuple):
    """Place of some rows among all rows: their first row, or the number of their partition."""

    first: int = 0
    partition: int | None = None


def describe_rows(bad: BoolArray, position: RowPosition | None = None) -> str:
    """Return where the first bad row is, and how many there are unless the rows are only some of all rows.

    Examples
    --------
    >>> describe_rows(np.array([False, True, True])), describe_rows(np.array([False, True, True]), RowPosition(100))
    ('at row 1 (2 such rows)', 'at row 101')
    """
    row = int(np.argmax(bad))
    if position is not None:
        return f"at row {position.first + row}" + (
            "" if position.partition is None else f" of partition {position.partition}"
        )
    count = int(bad.sum())
    return f"at row {row} ({count:,} such row{'s' if count > 1 else ''})"


def some_rows(rows: int) -> None:
    """Refuse data without rows."""
    if rows == 0:
        raise DataError("the data has no rows", hint="check the filter or file that it comes from")


def distinct_roles(named: Mapping[str, Hashable | None], predictions: tuple[Hashable, ...], source: ColumnSource) -> None:
    """Refuse one column in two roles."""
    taken: dict[Hashable, str] = dict.fromkeys(predictions, "prediction")
    for role, key in named.items():
        if key is None:
            continue
        if key in taken:
            raise ColumnError(
                f"column {source.label(key)!r} is named both as {taken[key]} and as {role}",
                hint="a column has one role",
            )
        taken[key] = role


def settle_task(task: str, *, several: bool) -> Task:
    """Tell the task from the number of prediction columns."""
    if not several:
        return "regression" if task == "regression" else "binary"
    if task != "auto":
        raise ArgumentError(
            f"task {task!r} takes one prediction column", hint='several columns are classes: leave task="auto"'
        )
    return "multiclass"


def as_numbers(raw: RawColumn, name: str, role: str, position: RowPosition | None = None) -> FloatArray:
    """Take the numbers of a column, or say that it has none."""
    if raw.kind == "date":
        raise DataError(f"{role} column {name!r} must hold numbers; got dates", hint="name another column")
    if raw.coded is None:
        return raw.codes_or_values
    if not raw.coded.levels:
        raise DataError(
            f"{role} column {name!r} must hold numbers; got only missing values ({len(raw):,} rows)", hint="fill it in"
        )
    strange = np.array([not _is_number(level) for level in raw.coded.levels] + [False])
    if not strange.any():
        raise DataError(
            f"{role} column {name!r} must hold numbers; got numbers written as text, such as {raw.coded.levels[0]!r}",
            hint="convert the column to a number type first",
        )
    bad = strange[raw.coded.codes]
    example = raw.coded.levels[raw.coded.codes[int(np.argmax(bad))]]
    raise DataError(
        f"{role} column {name!r} must hold numbers; got text such as {example[:60]!r} {describe_rows(bad, position)}",
        hint=PERCENT if PERCENTAGE.fullmatch(example) else NO_TEXT,
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def prediction(scores: FloatArray, names: tuple[str, ...], task: Task, position: RowPosition | None = None) -> None:
    """Check scores: finite, and probabilities where the task is not regression; no names are no scores."""
    if not names:
        return
    for name, column in zip(names, scores.reshape(len(scores), len(names)).T, strict=True):
        bad = ~np.isfinite(column)
        if bad.any():
            raise DataError(
                f"prediction column {name!r} must hold finite numbers; got {column[bad][0]} {describe_rows(bad, position)}",
                hint="a row without a score can be neither audited nor corrected: drop it, or score it first",
            )
        if task == "regression":
            _not_too_large(column, name, "prediction", position)
            continue
        bad = (column < 0) | (column > 1)
        if bad.any():
            raise DataError(
                f"prediction column {name!r} must hold probabilities in [0, 1]; "
                f"got {column[bad][0]:g} {describe_rows(bad, position)}",
                hint=_out_of_range_hint(column),
            )
    if task == "multiclass":
        total = scores.sum(axis=1)
        bad = np.abs(total - 1) > SUM_TOLERANCE
        if bad.any():
            raise DataError(
                f"the probabilities of the classes must add up to 1; "
                f"got {total[bad][0]:.6g} {describe_rows(bad, position)}",
                hint="name every class column; scores of classes that do not exclude each other are audited one by one",
            )


def are_hard(scores: FloatArray) -> bool:
    """Say whether many scores are all 0 or 1, and not all the same.

    Examples
    --------
    >>> are_hard(np.array([0.0, 1.0] * 25)), are_hard(np.array([0.0, 1.0]))
    (True, False)
    """
    if len(scores) < COPY_ROWS or not np.array_equal(np.unique(scores[:1000]), [0.0, 1.0]):
        return False
    return bool(((scores == 0) | (scores == 1)).all())


def hard_predictions(scores: FloatArray, names: tuple[str, ...], task: Task) -> None:
    """Warn where every prediction is 0 or 1."""
    if task == "binary" and are_hard(scores):
        warnings.warn(
            f"every prediction in column {names[0]!r} is 0 or 1\n"
            "hint: pass probabilities rather than labels; are outcome and prediction swapped?",
            HardPredictionWarning,
            stacklevel=4,
        )


def _out_of_range_hint(column: FloatArray) -> str:
    """Guess what was passed in place of probabilities."""
    if column.min() >= 0 and column.max() <= 100:
        return "percentages? divide them by 100"
    return 'pass logits through scipy.special.expit first; for a real quantity use task="regression"'


def _not_too_large(values: FloatArray, name: str, role: str, position: RowPosition | None = None) -> None:
    bad = np.abs(values) > MAX_VALUE
    if bad.any():
        raise DataError(
            f"{role} column {name!r} must lie within {MAX_VALUE:g} of 0; "
            f"got {values[bad][0]:g} {describe_rows(bad, position)}",
            hint="measure it in a larger unit",
        )


def outcome(
    raw: RawColumn | None,
    name: str | None,
    task: Task,
    labels: tuple[str, ...],
    classes: Sequence[Any] | None,
    position: RowPosition | None = None,
) -> tuple[FloatArray | None, tuple[str, ...]]:
    """Check the outcome; NaN marks an unlabelled row. Give the classes too, where there are several."""
    if classes is not None and task != "multiclass":
        raise ArgumentError("classes= goes with several prediction columns", hint="name one prediction column a class")
    shown = name or "outcome"
    if task == "multiclass":
        return _class_positions(raw, shown, labels, classes, position)
    if raw is None:
        return None, ()
    if raw.kind == "text" and raw.coded is not None:
        some = " and ".join(repr(level) for level in raw.coded.levels[:2]) or "only missing values"
        wanted = "numbers" if task == "regression" else "0 and 1, booleans, or probabilities in [0, 1]"
        raise DataError(
            f"outcome column {shown!r} must hold {wanted}; got text such as {some}",
            hint=f"write it as 1 where it is {raw.coded.levels[-1][:40]!r} (if that is the event) and 0 elsewhere"
            if raw.coded.levels
            else "fill it in, or leave these rows out",
        )
    y = as_numbers(raw, shown, "outcome", position)
    bad = np.isinf(y)
    if bad.any():
        raise DataError(
            f"outcome column {shown!r} must hold finite numbers; got {y[bad][0]} {describe_rows(bad, position)}",
            hint="leave those rows out, or make them missing and unlabelled",
        )
    _not_too_large(y, shown, "outcome", position)
    bad = (y < 0) | (y > 1)
    if task == "binary" and bad.any():
        raise DataError(
            f"outcome column {shown!r} must hold 0 and 1, booleans, or probabilities in [0, 1]; "
            f"got {y[bad][0]:g} {describe_rows(bad, position)}",
            hint=_outcome_hint(y),
        )
    return y, ()


def _outcome_hint(y: FloatArray) -> str:
    """Guess what was passed in place of 0 and 1."""
    found = np.unique(y[~np.isnan(y)])
    if len(found) == 2:
        return f"write {found[0]:g} as 0 and {found[1]:g} as 1, if {found[1]:g} is the event"
    return 'for a real outcome pass task="regression"; for classes name one prediction column a class'


def _class_positions(
    raw: RawColumn | None,
    shown: str,
    labels: tuple[str, ...],
    classes: Sequence[Any] | None,
    position: RowPosition | None,
) -> tuple[FloatArray | None, tuple[str, ...]]:
    found = () if raw is None else raw.categories().levels
    names = class_names(found, labels, classes)
    if raw is None:
        return None, names
    place = {text: float(at) for at, text in enumerate(names)}
    coded = raw.categories()
    y = np.array([*(place.get(level, -1.0) for level in coded.levels), np.nan])[coded.codes]
    bad = y < 0
    if bad.any():
        raise DataError(
            f"outcome column {shown!r} holds a class without a prediction column: "
            f"{coded.levels[coded.codes[bad][0]]!r} {describe_rows(bad, position)}",
            hint=f"the prediction columns stand for {', '.join(names)}; pass classes=[...] to say otherwise",
        )
    return y, names


def class_names(found: tuple[str, ...], labels: tuple[str, ...], classes: Sequence[Any] | None) -> tuple[str, ...]:
    """Tell which outcome each prediction column stands for.

    Told; or the columns are named as the outcomes, with or without a common beginning ("p_cat", "p_dog"); or the
    outcomes are positions 0, 1, ...
    """
    if classes is not None:
        told = from_objects(list(classes), "classes").categories()
        names = tuple(told.levels[code] if code >= 0 else "" for code in told.codes)
        if not len(names) == len(set(names)) == len(labels):
            raise ArgumentError(
                f"classes must name one outcome for each of the {len(labels)} prediction columns; got {list(classes)!r}",
                hint="name them in the order of the prediction columns, each once",
            )
        return names
    prefix = _common_start(labels)
    stripped = tuple(label[len(prefix) :] for label in labels)
    for names in (labels, stripped, tuple(str(at) for at in range(len(labels)))):
        if set(found) <= set(names):
            return names
    if len(found) > len(labels):
        raise DataError(
            f"{len(labels)} prediction columns for {len(found)} classes ({', '.join(found[:12])})",
            hint="name one prediction column a class",
        )
    raise DataError(
        f"cannot tell which outcome each prediction column stands for: outcomes {', '.join(found[:6])}, "
        f"columns {', '.join(labels[:6])}",
        hint="pass classes=[...], the outcome of each prediction column in their order",
    )


def _common_start(labels: tuple[str, ...]) -> str:
    """Give the letters that all labels begin with.

    Examples
    --------
    >>> _common_start(("p_cat", "p_dog"))
    'p_'
    """
    first, last = min(labels), max(labels)
    return first[: next((at for at, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), len(first))]


def weight(raw: RawColumn | None, name: str | None, position: RowPosition | None = None) -> FloatArray | None:
    """Check weights: finite, not negative, not all zero."""
    if raw is None:
        return None
    shown = name or "weight"
    w = as_numbers(raw, shown, "weight", position)
    for bad, rule in (
        (~np.isfinite(w), "be finite"),
        (w < 0, "not be negative"),
        (w > MAX_WEIGHT, f"be at most {MAX_WEIGHT:g}"),
        ((w > 0) & (w < 1 / MAX_WEIGHT), f"be at least {1 / MAX_WEIGHT:g}, or 0"),
    ):
        if bad.any():
            raise DataError(
                f"weights in column {shown!r} must {rule}; got {w[bad][0]:g} {describe_rows(bad, position)}",
                hint="a row that should not count has weight 0",
            )
    if not w.any() and position is None:
        raise DataError(
            f"weights in column {shown!r} are all zero ({len(w):,} rows)", hint="leave weight out to count rows alike"
        )
    return w


def rows_to_keep(
    y: FloatArray | None,
    w: FloatArray | None,
    name: str | None,
    unlabelled: str,
    position: RowPosition | None = None,
) -> tuple[IntArray | None, tuple[int, int]]:
    """Say which rows stay: those with an outcome (or all, if none may lack it) and a weight above zero."""
    blank = np.zeros(0, bool) if y is None else np.isnan(y)
    if blank.any() and unlabelled == "error":
        raise DataError(
            f"outcome column {name or 'outcome'!r} is missing {describe_rows(blank, position)}",
            hint='pass unlabelled="drop" to set unlabelled rows aside, or fill the column in',
        )
    gone = np.zeros(0, bool) if w is None else w == 0
    counts = int(blank.sum()), int((gone & ~blank).sum() if len(blank) == len(gone) else gone.sum())
    if not any(counts):
        return None, (0, 0)
    size = max(len(blank), len(gone))
    drop = np.zeros(size, bool)
    for part in (blank, gone):
        if len(part):
            drop |= part
    kept = np.flatnonzero(~drop)
    if position is None:
        rows_are_left(len(kept), *counts)
    return kept, counts


def rows_are_left(kept: int, unlabelled: int, weightless: int) -> None:
    """Refuse rows of which all were set aside."""
    if not kept:
        raise DataError(
            f"no rows are left: {unlabelled:,} have no outcome and {weightless:,} weigh nothing",
            hint="check the outcome and weight columns",
        )


def classes_present(y: FloatArray, name: str | None, task: Task) -> None:
    """Warn where every outcome is the same."""
    if task != "regression" and y.min() == y.max() and not (task == "binary" and 0 < y[0] < 1):
        one_class(name, float(y[0]), len(y))


def one_class(name: str | None, value: float, rows: int) -> None:
    """Warn that every outcome is the same."""
    warnings.warn(
        f"every outcome in column {name or 'outcome'!r} is {value:g} ({rows:,} rows): only one kind of error can show",
        OneClassWarning,
        stacklevel=5,
    )


IDENTIFIER_LEVELS = 20  # a column of fewer levels is never taken for an identifier
IDENTIFIER_SHARE = 0.9
MOST_CLASSES = 50  # an outcome of more values is no category in disguise


def identifier_reason(name: str, levels: int, known: int) -> str | None:
    """Say why a column of texts is left out where it looks like an identifier, and warn; ``known`` rows have a value."""
    if levels <= IDENTIFIER_LEVELS or levels < IDENTIFIER_SHARE * known:
        return None
    reason = f"{levels:,} levels in {known:,} rows: an identifier"
    warnings.warn(
        f"column {name!r} is left out: {reason}\nhint: no level of it has rows enough to say anything about",
        IdentifierWarning,
        stacklevel=5,
    )
    return reason


def check_kind(raw: RawColumn, saved: Feature) -> None:
    """Refuse a column whose type is not the one the schema was made with."""
    kind = {"number": "numeric", "flag": "categorical", "text": "categorical", "date": "date"}[raw.kind]
    read_as_text = saved.kind == "categorical" and kind != "categorical" and saved.levels != FLAG_LEVELS
    if kind != saved.kind and not read_as_text:
        raise ColumnError(
            f"column {saved.name!r} was {saved.kind} and now holds {raw.kind}s", hint="read it with the type it had"
        )


def warn_unseen(codes: AnyArray, raw: RawColumn, saved: Feature) -> None:
    """Warn where a column of many rows has no value that the schema knows: it is written in another way, most likely."""
    if not saved.levels or len(codes) < COPY_ROWS or (codes >= 0).any() or raw.missing().sum() > len(codes) - COPY_ROWS:
        return
    warnings.warn(
        f"no value of column {saved.name!r} is one that the model knows ({len(codes):,} rows): all count as missing\n"
        f"hint: it knows {', '.join(map(repr, saved.levels[:3]))}; are the values written in another way here?",
        UnseenWarning,
        stacklevel=4,
    )


def check_outcome_copies(features: Sequence[Feature], columns: Mapping[str, AnyArray], y: FloatArray, task: Task) -> None:
    """Refuse a feature that restates the outcome: value for value, or under two other names."""
    _refuse_copies([feature.name for feature in features if _copies(feature, columns[feature.name], y, task)])


def _refuse_copies(copies: Sequence[str]) -> None:
    if copies:
        listed = ", ".join(repr(name) for name in copies)
        raise ColumnError(
            f"column {listed} is identical to the outcome"
            if len(copies) == 1
            else f"columns {listed} are identical to the outcome",
            hint="leave it out: it says what is to be predicted",
        )


def _copies(feature: Feature, column: AnyArray, y: FloatArray, task: Task) -> bool:
    if feature.kind == "categorical":
        return task != "regression" and _renames(column, y, feature)
    return feature.kind == "numeric" and bool(y.min() != y.max()) and np.array_equal(column, y)


def _renames(codes: AnyArray, y: FloatArray, feature: Feature) -> bool:
    """Say whether categories and outcomes determine each other, row by row."""
    if len(y) < COPY_ROWS and feature.levels != ("0", "1"):
        return False
    # The first rows rule most columns out, so that the others are seldom looked at.
    for rows in (slice(10 * COPY_ROWS), slice(None)):
        found, place = np.unique(y[rows], return_inverse=True)
        if len(found) > MOST_CLASSES:
            return False
        pairs = np.unique(codes[rows].astype(np.int64) * len(found) + place)
        if not len(pairs) == len(found) == len(np.unique(codes[rows])):
            return False
    return len(found) > 1


class OutcomeCopies:
    """The features that restate the outcome in all pieces of the rows so far."""

    def __init__(self) -> None:
        self.equal: set[str] | None = None
        """Columns of numbers."""
        self.pairs: dict[str, set[tuple[float, int]]] = {}
        """Of columns of categories the outcomes and codes that were seen together."""
        self.outcomes: set[float] = set()

    def add(self, table: Table) -> None:
        """Take in a piece that has rows."""
        y, features = table.outcome, table.schema.features
        assert y is not None
        if self.equal is None:
            self.equal = {one.name for one in features if one.kind == "numeric"}
            some = [one.name for one in features if one.kind == "categorical" and table.schema.task != "regression"]
            self.pairs = {name: set() for name in some}
        self.equal = {name for name in self.equal if np.array_equal(table.columns[name], y)}
        if not self.equal and not self.pairs:
            return
        # The first rows rule most columns out, so that the others are seldom looked at.
        for rows in (slice(10 * COPY_ROWS), slice(None)):
            found, place = np.unique(y[rows], return_inverse=True)
            self.outcomes.update(found[: MOST_CLASSES + 1].tolist())
            self.pairs = {} if len(self.outcomes) > MOST_CLASSES else self.pairs
            for name in list(self.pairs):
                seen = np.unique(table.columns[name][rows].astype(np.int64) * len(found) + place)
                if len(seen) > len(found) or not self._pair(name, found[seen % len(found)], seen // len(found)):
                    del self.pairs[name]

    def _pair(self, name: str, outcomes: FloatArray, codes: IntArray) -> bool:
        """Note which outcomes and codes were seen together; say whether they still determine each other."""
        ours = self.pairs[name]
        ours.update(zip(outcomes.tolist(), codes.tolist(), strict=True))
        return len(ours) == len(self.outcomes) == len({code for _, code in ours})

    def __add__(self, other: OutcomeCopies) -> OutcomeCopies:
        """Give those that restate the outcome in the pieces of both."""
        if self.equal is None or other.equal is None:
            return other if self.equal is None else self
        out = OutcomeCopies()
        out.equal, out.outcomes = self.equal & other.equal, self.outcomes | other.outcomes
        if len(out.outcomes) <= MOST_CLASSES:
            both = {name: pairs | other.pairs[name] for name, pairs in self.pairs.items() if name in other.pairs}
            codes = {name: {code for _, code in pairs} for name, pairs in both.items()}
            out.pairs = {name: one for name, one in both.items() if len(one) == len(out.outcomes) == len(codes[name])}
        return out

    def check(self, schema: Schema, rows: int) -> None:
        """Refuse them once all rows have been taken in."""
        if len(self.outcomes) < 2:
            return
        levels = {feature.name: feature.levels for feature in schema.features}
        renamed = {name for name in self.pairs if rows >= COPY_ROWS or levels[name] == ("0", "1")}
        _refuse_copies([name for name in levels if name in renamed | (self.equal or set())])


def check_not_outcome(chosen: Collection[Hashable], outcome: Hashable | None, source: ColumnSource) -> None:
    """Refuse the outcome as a feature, by its name."""
    if outcome is not None and outcome in chosen:
        raise ColumnError(
            f"column {source.label(outcome)!r} is identical to the outcome: it is the outcome", hint="leave it out"
        )


@dataclass(frozen=True)
class RowSummary:
    """Rows that were seen, and what they have in common.

    Attributes
    ----------
    rows, unlabelled, weightless : int
        Rows that count, and rows that were set aside because they have no outcome or weigh nothing.
    lowest, highest : float
        Of the outcomes.
    hard : bool
        Whether every prediction is 0 or 1.
    copies : Copies
    """

    rows: int = 0
    unlabelled: int = 0
    weightless: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    hard: bool = True
    copies: OutcomeCopies = field(default_factory=OutcomeCopies)

    @classmethod
    def of(cls, table: Table) -> RowSummary:
        """Look at the rows of one part."""
        return cls().then(table)

    def then(self, table: Table) -> RowSummary:
        """Look at the rows of one more part; this is used up: columns that are no copies are not looked at again."""
        assert table.outcome is not None
        unlabelled, weightless = self.unlabelled + table.unlabelled, self.weightless + table.weightless
        if not len(table):
            return replace(self, unlabelled=unlabelled, weightless=weightless)
        self.copies.add(table)
        hard = self.hard and table.prediction.ndim == 1 and bool(np.isin(table.prediction, (0.0, 1.0)).all())
        lowest, highest = min(self.lowest, float(table.outcome.min())), max(self.highest, float(table.outcome.max()))
        return RowSummary(self.rows + len(table), unlabelled, weightless, lowest, highest, hard, self.copies)

    def __add__(self, other: RowSummary) -> RowSummary:
        return RowSummary(
            self.rows + other.rows, self.unlabelled + other.unlabelled, self.weightless + other.weightless,
            min(self.lowest, other.lowest), max(self.highest, other.highest), self.hard and other.hard,
            self.copies + other.copies,
        )  # fmt: skip

    def check(self, schema: Schema) -> None:
        """Refuse and warn of what all rows have in common, as is done for rows in memory."""
        rows_are_left(self.rows, self.unlabelled, self.weightless)
        self.copies.check(schema, self.rows)
        if self.hard and schema.task == "binary" and self.rows >= COPY_ROWS:
            hard_predictions(np.tile([0.0, 1.0], COPY_ROWS), schema.prediction, schema.task)
        one = self.lowest == self.highest and not (schema.task == "binary" and 0 < self.lowest < 1)
        if schema.task != "regression" and one:
            one_class(schema.outcome, self.lowest, self.rows)
