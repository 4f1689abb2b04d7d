"""What every role demands of its values; each refusal says what, where, how many rows, and what to do."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.errors import ArgumentError, ColumnError, DataError, IdentifierWarning, OneClassWarning

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from trueup.data.columns import Raw
    from trueup.data.schema import Feature, Task
    from trueup.data.sources import Source

IDENTIFIER_LEVELS = 20  # a column of fewer levels is never taken for an identifier
IDENTIFIER_SHARE = 0.9
COPY_ROWS = 50  # below this many rows a two-level column may follow the outcome by chance
SUM_TOLERANCE = 0.01
LARGEST_WEIGHT = 1e50  # third powers of weights are summed up
LARGEST_VALUE = 1e100  # squares of real outcomes are


def one_of(name: str, value: object, allowed: Collection[object]) -> None:
    """Refuse a word that is not among the allowed ones."""
    if not isinstance(value, str) or value not in allowed:
        listed = ", ".join(repr(word) for word in allowed)
        raise ArgumentError(f"{name} must be one of {listed}; got {value!r}")


def where(bad: NDArray[np.bool_]) -> str:
    """Say where the first bad row is and how many there are.

    Examples
    --------
    >>> where(np.array([False, True, True]))
    'at row 1 (2 such rows)'
    """
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


def as_numbers(raw: Raw, name: str, role: str) -> NDArray[np.float64]:
    """Take the numbers of a column, or say that it has none."""
    if raw.kind in ("text", "date"):
        got = (
            "dates"
            if raw.kind == "date"
            else f"text such as {raw.coded.levels[0]!r}"
            if raw.coded and raw.coded.levels
            else "only missing values"
        )
        raise DataError(f"{role} column {name!r} must hold numbers; got {got}", hint="convert it to numbers first")
    return raw.codes_or_values


def prediction(scores: NDArray[np.float64], names: tuple[str, ...], task: Task) -> NDArray[np.float64]:
    """Check scores: finite, and probabilities where the task is not regression."""
    for name, column in zip(names, scores.reshape(len(scores), -1).T, strict=True):
        bad = ~np.isfinite(column)
        if bad.any():
            raise DataError(
                f"prediction column {name!r} must hold finite numbers; got {column[bad][0]} {where(bad)}",
                hint="a row without a score cannot be audited: drop it, or score it first",
            )
        if task == "regression":
            _not_too_large(column, name, "prediction")
            continue
        bad = (column < 0) | (column > 1)
        if bad.any():
            raise DataError(
                f"prediction column {name!r} must hold probabilities in [0, 1]; got {column[bad][0]:g} {where(bad)}",
                hint='pass logits through scipy.special.expit first; for a real quantity use task="regression"',
            )
    if task == "multiclass":
        total = scores.sum(axis=1)
        bad = np.abs(total - 1) > SUM_TOLERANCE
        if bad.any():
            raise DataError(
                f"the probabilities of the classes must add up to 1; got {total[bad][0]:.6g} {where(bad)}",
                hint="name every class column; scores of classes that do not exclude each other are audited one by one",
            )
        scores = scores / total[:, None]
    return scores


def _not_too_large(values: NDArray[np.float64], name: str, role: str) -> None:
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
    scores: NDArray[np.float64],
) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
    """Check the outcome; NaN marks an unlabelled row. Give the classes too, where there are several."""
    if classes is not None and task != "multiclass":
        raise ArgumentError("classes= goes with several prediction columns", hint="name one prediction column a class")
    shown = name or "outcome"
    if task == "multiclass":
        assert scores.ndim == 2
        return _class_positions(raw, shown, labels, classes)
    if raw is None:
        return None, ()
    if raw.kind == "text" and raw.coded is not None:
        some = " and ".join(repr(level) for level in raw.coded.levels[:2]) or "only missing values"
        wanted = "numbers" if task == "regression" else "0 and 1, booleans, or probabilities in [0, 1]"
        raise DataError(
            f"outcome column {shown!r} must hold {wanted}; got text such as {some}",
            hint="turn it into numbers first, such as 1 where it is the event and 0 elsewhere",
        )
    y = as_numbers(raw, shown, "outcome")
    bad = np.isinf(y)
    if bad.any():
        raise DataError(f"outcome column {shown!r} must hold finite numbers; got {y[bad][0]} {where(bad)}")
    _not_too_large(y, shown, "outcome")
    bad = (y < 0) | (y > 1)
    if task == "binary" and bad.any():
        raise DataError(
            f"outcome column {shown!r} must hold 0 and 1, booleans, or probabilities in [0, 1]; "
            f"got {y[bad][0]:g} {where(bad)}",
            hint='for a real outcome pass task="regression"; for classes name one prediction column a class',
        )
    return y, ()


def _class_positions(
    raw: Raw | None, shown: str, labels: tuple[str, ...], classes: Sequence[Any] | None
) -> tuple[NDArray[np.float64] | None, tuple[str, ...]]:
    found = () if raw is None else raw.categories().levels
    names = _class_names(found, labels, classes)
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


def _class_names(found: tuple[str, ...], labels: tuple[str, ...], classes: Sequence[Any] | None) -> tuple[str, ...]:
    """Tell which outcome each prediction column stands for.

    Told; or the columns are named as the outcomes, with or without a common beginning ("p_cat", "p_dog"); or the
    outcomes are positions 0, 1, ...
    """
    if classes is not None:
        names = tuple(str(label) for label in classes)
        if len(set(names)) != len(labels):
            raise ArgumentError(
                f"classes must name one outcome for each of the {len(labels)} prediction columns; got {list(classes)!r}"
            )
        return names
    prefix = _common_start(labels)
    stripped = tuple(label[len(prefix) :] for label in labels)
    for names in (labels, stripped, tuple(str(at) for at in range(len(labels)))):
        if set(found) <= set(names):
            return names
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


def weight(raw: Raw | None, name: str | None) -> NDArray[np.float64] | None:
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
    if not w.any():
        raise DataError(
            f"weights in column {shown!r} are all zero ({len(w):,} rows)", hint="leave weight out to count rows alike"
        )
    return w


def rows_to_keep(
    y: NDArray[np.float64] | None, w: NDArray[np.float64] | None, name: str | None, unlabelled: str
) -> tuple[NDArray[np.int64] | None, tuple[int, int]]:
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
    if not len(kept):
        raise DataError(
            f"no rows are left: {counts[0]:,} have no outcome and {counts[1]:,} weigh nothing",
            hint="check the outcome and weight columns",
        )
    return kept, counts


def classes_present(y: NDArray[np.float64], name: str | None, task: Task) -> None:
    """Warn where every outcome is the same."""
    if task == "regression" or y.min() != y.max() or (task == "binary" and 0 < y[0] < 1):
        return
    warnings.warn(
        f"every outcome in column {name or 'outcome'!r} is {y[0]:g} ({len(y):,} rows): only one kind of error can show",
        OneClassWarning,
        stacklevel=4,
    )


def identifier(feature: Feature, codes: NDArray[Any]) -> str | None:
    """Say why a column is left out where it looks like an identifier, and warn."""
    if feature.kind != "categorical" or len(feature.levels) <= IDENTIFIER_LEVELS:
        return None
    known = int((codes >= 0).sum())
    levels = len(feature.levels)
    if levels < IDENTIFIER_SHARE * known:
        return None
    reason = f"{levels:,} levels in {known:,} rows: an identifier"
    warnings.warn(
        f"column {feature.name!r} is left out of the segments: {reason}\nhint: no level of it has rows enough to be tested",
        IdentifierWarning,
        stacklevel=5,
    )
    return reason


def same_kind(raw: Raw, saved: Feature) -> None:
    """Refuse a column whose type is not the one the schema was made with."""
    kind = {"number": "numeric", "flag": "categorical", "text": "categorical", "date": "date"}[raw.kind]
    if kind != saved.kind and not (saved.kind == "categorical" and kind == "numeric"):
        raise ColumnError(
            f"column {saved.name!r} was {saved.kind} and now holds {raw.kind}s", hint="read it with the type it had"
        )


def no_copy_of_the_outcome(
    features: Sequence[Feature], columns: Mapping[str, NDArray[Any]], y: NDArray[np.float64], task: Task
) -> None:
    """Refuse a feature that restates the outcome: value for value, or under two other names."""
    for feature in features:
        column = columns[feature.name]
        if feature.kind == "categorical":
            copied = task != "regression" and _renames(column, y, feature)
        else:
            copied = feature.kind == "numeric" and bool(y.min() != y.max()) and np.array_equal(column, y)
        if copied:
            raise ColumnError(
                f"column {feature.name!r} is identical to the outcome",
                hint="leave it out: it says what is to be predicted",
            )


def _renames(codes: NDArray[Any], y: NDArray[np.float64], feature: Feature) -> bool:
    """Say whether categories and outcomes determine each other, row by row."""
    outcomes = np.unique(y[: 10 * COPY_ROWS])
    if len(outcomes) < 2 or len(outcomes) > 50 or (len(y) < COPY_ROWS and feature.levels != ("0", "1")):
        return False
    if len(np.unique(codes[: 10 * COPY_ROWS])) != len(outcomes):
        return False
    found, place = np.unique(y, return_inverse=True)
    pairs = np.unique(codes.astype(np.int64) * len(found) + place)
    return len(pairs) == len(found) == len(np.unique(codes))
