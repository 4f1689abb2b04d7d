"""What every role demands of its values; each refusal says what, where, how many rows, and what to do."""

from __future__ import annotations

import contextlib
import contextvars
import re
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.columns import Raw, from_objects
from trueup.errors import (
    ArgumentError,
    ColumnError,
    DataError,
    HardPredictionWarning,
    OneClassWarning,
)

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.data.schema import Task
    from trueup.data.sources import Source

PERCENTAGE = re.compile(r"\s*[-+]?[0-9]*[.,]?[0-9]+\s*%\s*")
PERCENT = "percentages written as text: take the percent sign off, and divide by 100"
NO_TEXT = "convert the column to numbers first; what has no value must be missing, not a text"
COPY_ROWS = 50  # below this many rows what looks like a copy or a label may be chance
SUM_TOLERANCE = 1e-3  # single precision, and a few decimals
LARGEST_WEIGHT = 1e50  # third powers of weights are summed up
LARGEST_VALUE = 1e100  # squares of real outcomes are


_FIRST: contextvars.ContextVar[tuple[int, int | None] | None] = contextvars.ContextVar("first", default=None)


@contextlib.contextmanager
def part_of_rows(first: int, part: int | None = None) -> Iterator[None]:
    """Check rows that are a part of more: they are counted from their first, and may all weigh nothing or be set aside.

    Where rows have no place among all of them, they are counted within their part, and its number is told.
    """
    token = _FIRST.set((first, part))
    try:
        yield
    finally:
        _FIRST.reset(token)


def in_part() -> bool:
    """Say whether the rows being checked are a part of more."""
    return _FIRST.get() is not None


def where(bad: BoolArray) -> str:
    """Say where the first bad row is and how many there are.

    Examples
    --------
    >>> where(np.array([False, True, True]))
    'at row 1 (2 such rows)'
    """
    if (told := _FIRST.get()) is not None:  # how many there are in later parts is not known
        first, part = told
        return f"at row {first + int(np.argmax(bad))}" + ("" if part is None else f" of part {part}")
    count = int(bad.sum())
    return f"at row {int(np.argmax(bad))} ({count:,} such row{'s' if count > 1 else ''})"


def some_rows(rows: int) -> None:
    """Refuse data without rows."""
    if rows == 0:
        raise DataError("the data has no rows", hint="check the filter or file that it comes from")


def distinct_roles(named: Mapping[str, Hashable | None], predictions: tuple[Hashable, ...], source: Source) -> None:
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


def as_numbers(raw: Raw, name: str, role: str) -> FloatArray:
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
        f"{role} column {name!r} must hold numbers; got text such as {example[:60]!r} {where(bad)}",
        hint=PERCENT if PERCENTAGE.fullmatch(example) else NO_TEXT,
    )


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def prediction(scores: FloatArray, names: tuple[str, ...], task: Task) -> None:
    """Check scores: finite, and probabilities where the task is not regression; no names are no scores."""
    if not names:
        return
    for name, column in zip(names, scores.reshape(len(scores), len(names)).T, strict=True):
        bad = ~np.isfinite(column)
        if bad.any():
            raise DataError(
                f"prediction column {name!r} must hold finite numbers; got {column[bad][0]} {where(bad)}",
                hint="a row without a score can be neither audited nor corrected: drop it, or score it first",
            )
        if task == "regression":
            _not_too_large(column, name, "prediction")
            continue
        bad = (column < 0) | (column > 1)
        if bad.any():
            raise DataError(
                f"prediction column {name!r} must hold probabilities in [0, 1]; got {column[bad][0]:g} {where(bad)}",
                hint=_out_of_range_hint(column),
            )
    if task == "multiclass":
        total = scores.sum(axis=1)
        bad = np.abs(total - 1) > SUM_TOLERANCE
        if bad.any():
            raise DataError(
                f"the probabilities of the classes must add up to 1; got {total[bad][0]:.6g} {where(bad)}",
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


def _not_too_large(values: FloatArray, name: str, role: str) -> None:
    bad = np.abs(values) > LARGEST_VALUE
    if bad.any():
        raise DataError(
            f"{role} column {name!r} must lie within {LARGEST_VALUE:g} of 0; got {values[bad][0]:g} {where(bad)}",
            hint="measure it in a larger unit",
        )


def outcome(
    raw: Raw | None,
    name: str | None,
    task: Task,
    labels: tuple[str, ...],
    classes: Sequence[Any] | None,
) -> tuple[FloatArray | None, tuple[str, ...]]:
    """Check the outcome; NaN marks an unlabelled row. Give the classes too, where there are several."""
    if classes is not None and task != "multiclass":
        raise ArgumentError("classes= goes with several prediction columns", hint="name one prediction column a class")
    shown = name or "outcome"
    if task == "multiclass":
        return _class_positions(raw, shown, labels, classes)
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
    y = as_numbers(raw, shown, "outcome")
    bad = np.isinf(y)
    if bad.any():
        raise DataError(
            f"outcome column {shown!r} must hold finite numbers; got {y[bad][0]} {where(bad)}",
            hint="leave those rows out, or make them missing and unlabelled",
        )
    _not_too_large(y, shown, "outcome")
    bad = (y < 0) | (y > 1)
    if task == "binary" and bad.any():
        raise DataError(
            f"outcome column {shown!r} must hold 0 and 1, booleans, or probabilities in [0, 1]; "
            f"got {y[bad][0]:g} {where(bad)}",
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
    raw: Raw | None, shown: str, labels: tuple[str, ...], classes: Sequence[Any] | None
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
            f"{coded.levels[coded.codes[bad][0]]!r} {where(bad)}",
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


def weight(raw: Raw | None, name: str | None) -> FloatArray | None:
    """Check weights: finite, not negative, not all zero."""
    if raw is None:
        return None
    shown = name or "weight"
    w = as_numbers(raw, shown, "weight")
    for bad, rule in (
        (~np.isfinite(w), "be finite"),
        (w < 0, "not be negative"),
        (w > LARGEST_WEIGHT, f"be at most {LARGEST_WEIGHT:g}"),
        ((w > 0) & (w < 1 / LARGEST_WEIGHT), f"be at least {1 / LARGEST_WEIGHT:g}, or 0"),
    ):
        if bad.any():
            raise DataError(
                f"weights in column {shown!r} must {rule}; got {w[bad][0]:g} {where(bad)}",
                hint="a row that should not count has weight 0",
            )
    if not w.any() and not in_part():
        raise DataError(
            f"weights in column {shown!r} are all zero ({len(w):,} rows)", hint="leave weight out to count rows alike"
        )
    return w


def rows_to_keep(
    y: FloatArray | None, w: FloatArray | None, name: str | None, unlabelled: str
) -> tuple[IntArray | None, tuple[int, int]]:
    """Say which rows stay: those with an outcome (or all, if none may lack it) and a weight above zero."""
    blank = np.zeros(0, bool) if y is None else np.isnan(y)
    if blank.any() and unlabelled == "error":
        raise DataError(
            f"outcome column {name or 'outcome'!r} is missing {where(blank)}",
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
    if not in_part():
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
