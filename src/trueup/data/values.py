"""Checks of the values of each role: scores, outcomes, classes and weights; which rows are kept."""

from __future__ import annotations

import os
import re
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import (
    FLAG_LEVELS,
    RawColumn,
    from_objects,
)
from trueup.errors import (
    ArgumentError,
    DataError,
)

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.data.columns import CodedColumn
    from trueup.data.table import Task

PERCENTAGE = re.compile(r"\s*[-+]?[0-9]*[.,]?[0-9]+\s*%\s*")
MIN_ROWS = 50  # with fewer rows, what looks like a copy of the outcome or like labels may be chance
SUM_TOLERANCE = 1e-3  # of the probabilities of the classes: single precision, and a few decimals
MAX_WEIGHT = 1e50  # third powers of weights are summed
MAX_VALUE = 1e100  # squares of real outcomes are summed
LOGIT_HINT = "calibrators take logits with {logits}; or pass them through expit (softmax for several classes) first"
LOGIT_SETTING = {"logits": True}
HARD_SCORES = frozenset((0.0, 1.0))
TASK_SETTING = {"task": "regression"}
SCORE_SETTINGS = {**LOGIT_SETTING, **TASK_SETTING}


class RowPosition(NamedTuple):
    """Position of some rows among all rows: their first row, and the number of their partition if there are partitions."""

    first: int = 0
    partition: int | None = None


def format_rows(rows: int) -> str:
    """Format a number of rows: "1 row", "3,000 rows"."""
    return "1 row" if rows == 1 else f"{rows:,} rows"


def describe_rows(bad: BoolArray, position: RowPosition | None = None) -> str:
    """Return as text where the first bad row is; without ``position``, ``bad`` has all rows, and bad ones are counted."""
    row = int(np.argmax(bad))
    if position is not None:
        partition = "" if position.partition is None else f" of partition {position.partition}"
        return f"at row {position.first + row}{partition}"
    count = int(bad.sum())
    return f"at row {row} ({count:,} such row{'s' if count > 1 else ''})"


def _reject(
    bad: BoolArray, values: FloatArray, rule: str, hint: str, position: RowPosition | None, settings: Any = None
) -> None:
    """Raise DataError if a value is ``bad``, with the ``rule`` that it breaks, the first such value, and where it is."""
    if bad.any():
        raise DataError(f"{rule}; got {values[bad][0]:g} {describe_rows(bad, position)}", hint=hint, settings=settings)


def check_has_rows(rows: int) -> None:
    """Raise if the data has no rows."""
    if rows == 0:
        raise DataError("the data has no rows", hint="check the filter or file that it comes from")


def resolve_task(task: str, classes: Sequence[Any] | None, *, several: bool) -> Task:
    """Return the task; "auto" is multiclass for ``several`` prediction columns, else binary. Raise on contradictions."""
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


def as_numbers(
    raw: RawColumn, name: str, role: str, position: RowPosition | None = None, *, lenient: bool = False
) -> FloatArray:
    """Return the numbers of a column; raise if it contains anything else, or if ``lenient``, if it contains no number."""
    if raw.kind != "date" and raw.coded is None:
        return raw.codes_or_values
    levels = () if raw.coded is None else raw.coded.levels
    not_numbers = np.array([not _is_number(level) for level in levels] + [False])
    if lenient and raw.coded is not None and not not_numbers[:-1].all():
        return np.array([*(float(x) if _is_number(x) else np.nan for x in levels), np.nan])[raw.coded.codes]
    if raw.coded is None:
        content, hint = "dates", "name another column"
    elif not levels:
        content, hint = f"only missing values ({format_rows(len(raw))})", "fill it in"
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
    """Raise unless scores are finite, and probabilities unless the task is regression; without names nothing is checked."""
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
            _reject(bad, column, f"{rule} hold probabilities in [0, 1]", hint, position, SCORE_SETTINGS)
    if task == "multiclass":
        total = scores.sum(axis=1)
        hint = "name every class column; audit classes that do not exclude each other one by one"
        rule = "the probabilities of the classes must add up to 1"
        _reject(np.abs(total - 1) > SUM_TOLERANCE, total, rule, hint, position)


def to_probabilities(
    scores: FloatArray, names: tuple[str, ...], task: Task, position: RowPosition | None = None, *, logits: bool = False
) -> FloatArray:
    """Return valid scores as probabilities (as they are in regression); with ``logits``, by a sigmoid or a softmax."""
    if not logits:
        check_scores(scores, names, task, position)
        return scores
    if task == "regression" or not names:
        raise ArgumentError(
            "logits are scores of classes: task='regression' has none" if names else "logits need a prediction column",
            hint="leave {logits}",
            parameter="logits",
            settings={"logits": False},
        )
    check_scores(scores, names, "regression", position)
    if task == "binary":
        return np.asarray(np.exp(-np.logaddexp(0.0, -scores)))
    if len(scores) >= MIN_ROWS and scores.min() >= 0 and (np.abs(scores.sum(axis=1) - 1) <= SUM_TOLERANCE).all():
        raise DataError(
            f"the prediction columns {', '.join(names[:3])}, ... hold probabilities: all are in [0, 1] and add up to 1",
            hint="leave {logits}",
            parameter="logits",
            settings={"logits": False},
        )
    odds = np.exp(scores - scores.max(axis=1, keepdims=True, initial=-np.inf))
    return np.asarray(odds / odds.sum(axis=1, keepdims=True))


def are_hard(scores: FloatArray) -> bool:
    """Return whether scores look like labels: many rows, all scores 0 or 1, and both occur."""
    return len(scores) >= MIN_ROWS and hard_scores(scores) == HARD_SCORES


def hard_scores(scores: FloatArray) -> frozenset[float] | None:
    """Return the distinct scores if all are 0 or 1, else None; the first 1,000 are tested first, which is fast."""
    is_hard = all(np.isin(some, (0.0, 1.0)).all() for some in (scores[:1000], scores))
    return frozenset(np.unique(scores).tolist()) if is_hard else None


def _check_size(values: FloatArray, rule: str, position: RowPosition | None) -> None:
    rule = f"{rule} lie within {MAX_VALUE:g} of 0"
    _reject(np.abs(values) > MAX_VALUE, values, rule, "measure it in a larger unit", position)


def check_outcome(raw: RawColumn, name: str, task: Task, position: RowPosition | None = None) -> FloatArray:
    """Return the outcome of a binary or regression task, NaN for unlabelled rows; raise if it is not valid."""
    if position is None and len(raw) and raw.missing().all():
        raise no_outcomes(name, len(raw))
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


def no_outcomes(name: str, rows: int) -> DataError:
    """Return the error for an outcome column without any value."""
    return DataError(
        f"outcome column {name!r} has no values: it is missing in {'its only row' if rows == 1 else f'all {rows:,} rows'}",
        hint="is it the right column, and are the outcomes known yet? Rows without outcomes can only be scored",
    )


def _escape(text: str) -> str:
    """Escape braces, which in the hint of an error enclose the name of a setting."""
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
    ("p_cat", "p_dog"); or the outcomes are the positions 0, 1, ..., or False and True for two columns.
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
    positions = [tuple(str(index) for index in range(len(labels))), *([FLAG_LEVELS] if len(labels) == 2 else [])]
    for names in (labels, stripped, *positions):
        if set(outcomes) <= set(names):
            return names
    listed = list(outcomes)
    if len(listed) > len(labels):
        raise DataError(
            f"{len(labels)} prediction columns for {len(listed)} classes ({_list_some(listed, 12)})",
            hint="name one prediction column per class",
        )
    raise DataError(
        f"cannot tell which outcome each prediction column stands for: outcomes {_list_some(listed, 6)}, "
        f"columns {_list_some(labels, 6)}",
        hint="pass {classes}, the outcome of each prediction column in their order",
        settings={"classes": ...},
    )


def _list_some(names: Sequence[str], count: int) -> str:
    return ", ".join([*names[:count], *(["…"] if len(names) > count else [])])


def check_weight(raw: RawColumn | None, name: str | None, position: RowPosition | None = None) -> FloatArray | None:
    """Return the weights; raise unless they are finite, not negative and, without ``position``, not all zero."""
    if raw is None:
        return None
    w = as_numbers(raw, str(name), "weight", position)
    for bad, rule in (
        (~np.isfinite(w), "be finite"),
        (w < 0, "not be negative"),
        (w > MAX_WEIGHT, f"be at most {MAX_WEIGHT:g}"),
        ((w > 0) & (w < 1 / MAX_WEIGHT), f"be at least {1 / MAX_WEIGHT:g}, or 0"),
    ):
        _reject(bad, w, f"weights in column {name!r} must {rule}", "a row that should not count has weight 0", position)
    if position is None:
        check_some_weight(str(name), len(w), some=bool(w.any()))
    return w


def check_some_weight(name: str, rows: int, *, some: bool) -> None:
    """Raise unless ``some`` of the weights in the column ``name`` are positive."""
    if not some:
        raise DataError(
            f"weights in column {name!r} are all zero ({format_rows(rows)})", hint="leave weight out for equal weights"
        )


def rows_to_keep(
    y: FloatArray | None,
    w: FloatArray | None,
    name: str | None,
    unlabelled: str,
    position: RowPosition | None = None,
) -> tuple[IntArray | None, tuple[int, int]]:
    """Return indices of rows with outcome and positive weight (None: all), and counts of unlabelled and weightless rows."""
    no_outcome = None if y is None else np.isnan(y)
    if no_outcome is not None and no_outcome.any() and unlabelled == "error":
        raise DataError(
            f"outcome column {name!r} is missing {describe_rows(no_outcome, position)}",
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
    return np.flatnonzero(~drop), counts


def check_rows_left(kept: int, unlabelled: int, weightless: int) -> None:
    """Raise if no row was kept; the counts of the rows set aside are for the message."""
    if not kept:
        raise DataError(
            f"no rows are left: {unlabelled:,} have no outcome and {weightless:,} have weight 0",
            hint="check the outcome and weight columns",
        )
