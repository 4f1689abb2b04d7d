"""What would be answered of each row, how sure that is, and whether it came true."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.checks import describe_rows
from trueup.decisions.inputs import Segments, unlabelled
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import numbers, scored, scored_classes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray


class Answers(NamedTuple):
    """Rows with the answer that each would get.

    ``confidence`` is the probability that the answer is right, ``hit`` whether it was, None where that is not known.
    ``score`` is the probability of class 1 where the likelier of two classes is answered, and None otherwise.
    """

    confidence: FloatArray
    hit: FloatArray | None
    w: FloatArray
    score: FloatArray | None
    segments: Segments | None

    @property
    def error(self) -> FloatArray | None:
        """Give 1 where the answer was wrong, or None."""
        return None if self.hit is None else 1.0 - self.hit

    @property
    def labels(self) -> AnyArray | None:
        """Give the name of each row's segment, or None."""
        return None if self.segments is None else np.array(self.segments.names)[self.segments.codes]

    def parts(self) -> Iterator[tuple[str, Answers]]:
        """Give the rows of each segment, by its name."""
        for name, here in ({} if self.segments is None else self.segments.rows()).items():
            hit, score = (None if column is None else column[here] for column in (self.hit, self.score))
            yield name, Answers(self.confidence[here], hit, self.w[here], score, None)


def answers_of(
    p: ArrayLike,
    y: ArrayLike | None = None,
    *,
    predicted_class: Any = None,
    weight: ArrayLike | None = None,
    segments: Any = None,
) -> Answers:
    """Say what would be answered of each row, and how sure that is.

    Parameters
    ----------
    p : array-like, shape (n,) or (n, k)
        The probability of class 1, or of each of k classes.
    y : array-like, shape (n,), optional
        The class of each row: 0 or 1, or a position among the columns of p.
    predicted_class : int or array-like of int, shape (n,), optional
        The class that is answered. By default the likeliest: 1 where one score is 0.5 or more; among equal columns the
        first, as `metrics.top_label` has it.
    weight, segments : optional
        As for `inputs.unlabelled`.

    Examples
    --------
    >>> answers_of([0.2, 0.7], [0, 0]).confidence
    array([0.8, 0.7])
    >>> answers_of([[0.2, 0.5, 0.3]], [1]).hit
    array([1.])
    """
    try:
        classes = np.ndim(p) == 2
    except ValueError:  # lists of unequal length
        classes = numbers(p, "p").ndim == 2
    rows = unlabelled(np.zeros(np.shape(p)[0]) if classes else p, weight, segments)
    kept = np.ones(np.shape(p)[0], bool) if weight is None else numbers(weight, "weight") > 0
    if classes:
        data = scored_classes(np.zeros(len(kept)) if y is None else y, p, weight)
        at = data.p.argmax(axis=1) if predicted_class is None else _called(predicted_class, kept, data.p.shape[1])
        # Scores may add up to 1 by a hair too much: a confidence does not exceed 1.
        confidence = np.minimum(data.p[np.arange(len(at)), at], 1.0)
        return Answers(confidence, None if y is None else (at == data.y).astype(np.float64), rows.w, None, rows.segments)
    one = rows.p >= 0.5 if predicted_class is None else _called(predicted_class, kept, 2) == 1
    outcome = None if y is None else scored(y, p, weight).y
    hit = None if outcome is None else np.where(one, outcome, 1.0 - outcome)
    confidence = np.where(one, rows.p, 1.0 - rows.p)
    return Answers(confidence, hit, rows.w, rows.p if predicted_class is None else None, rows.segments)


def _called(predicted_class: Any, kept: BoolArray, classes: int) -> IntArray:
    """Read the class that is answered, of the rows that are kept."""
    given = numbers(
        np.full(len(kept), predicted_class) if np.ndim(predicted_class) == 0 else predicted_class, "predicted_class"
    )
    if len(given) != len(kept):
        raise DataError(
            f"predicted_class must name one class a row; got {len(given):,} for {len(kept):,} rows",
            hint="one entry a row, or one for all",
        )
    bad = (given < 0) | (given >= classes) | (given != np.floor(given))
    if bad.any():
        raise ArgumentError(
            f"predicted_class must hold classes 0 to {classes - 1}; got {given[bad][0]:g} {describe_rows(bad)}",
            hint="leave it out to answer with the likeliest class",
        )
    return given[kept].astype(np.int64)


def standard_error(squares: Any, weight: float, weights_squared: float) -> Any:
    """Give the standard error of a weighted mean from the sum of squares of weight times deviation.

    NaN for a single row, which says nothing of how rows vary.

    Examples
    --------
    >>> float(standard_error(1.0, 4.0, 4.0).round(3))  # of 0, 0, 1, 1
    0.289
    """
    many = weight**2 / weights_squared
    return np.sqrt(squares * many / (many - 1)) / weight if many > 1 + 1e-9 else squares * math.nan
