"""Rows without labels from the highest score down: who is called, and how many of them are positive."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from trueup.kernels.sorting import argsort

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.decisions.inputs import Unlabelled


Kind = Literal["roc", "pr"]
NOUGHT = 1e-100  # scores below this expect nothing: shares of it could not be divided by
DUST = 1e-12  # of all rows


class Range(NamedTuple):
    """An estimate a threshold, with its limits."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray


class Ground(NamedTuple):
    """Shares of all rows with scores from each threshold on, the first of which calls none.

    ``positive`` and ``negative`` are what the scores expect; ``squares`` and ``noise`` sum w^2 and w^2 f (1 - f), over the
    square of the total weight; ``heaviest`` is the share of the heaviest row.
    """

    threshold: FloatArray
    called: FloatArray
    positive: FloatArray
    negative: FloatArray
    squares: FloatArray
    noise: FloatArray
    heaviest: float

    def at(self, places: IntArray) -> Ground:
        """Keep some thresholds."""
        return Ground(
            self.threshold[places], self.called[places], self.positive[places], self.negative[places],
            self.squares[places], self.noise[places], self.heaviest,
        )  # fmt: skip

    def corrected(self, more: FloatArray) -> Ground:
        """Move some rows from the negatives to the positives at each threshold, as far as there are any.

        Both rise, and no more of them are added between two thresholds than there are rows.
        """
        positive = np.maximum.accumulate(np.clip(self.positive + more, 0.0, self.called))
        negative = np.maximum.accumulate(_without_dust(self.called - positive))
        positive = np.maximum.accumulate(_without_dust(self.called - negative))
        return self._replace(positive=positive, negative=negative)


def _without_dust(share: FloatArray) -> FloatArray:
    """Let nothing be left of a share of rows where rounding alone leaves something."""
    return np.where(share > DUST, share, 0.0)


def lay(rows: Unlabelled) -> Ground:
    """Sum rows up from the highest score down, rows of one score at once; the order they come in does not matter."""
    alike = rows.w.min() == rows.w.max()
    order = argsort(-rows.p) if alike else np.lexsort((rows.w, -rows.p))
    p, w = rows.p[order], rows.w[order]
    p = np.where(p < NOUGHT, 0.0, p)
    w = w / w.sum()
    last = np.flatnonzero(np.append(p[1:] != p[:-1], True))
    called, positive, negative, squares, noise = (
        np.append(0.0, np.cumsum(column)[last]) for column in (w, w * p, w * (1 - p), w**2, w**2 * p * (1 - p))
    )
    return Ground(np.append(math.inf, p[last]), called, positive, negative, squares, noise, float(w.max()))


def axes(kind: Kind, positive: FloatArray, negative: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Give FPR and TPR, or recall and precision; NaN where there is nothing to divide by. Several curves are lines."""
    recall = divide(positive, positive[..., -1:])
    if kind == "roc":
        return divide(negative, negative[..., -1:]), recall
    return recall, divide(positive, positive + negative)


def divide(one: FloatArray, by: FloatArray) -> FloatArray:
    """Divide where there is something to divide by; NaN elsewhere."""
    there = by > 0
    return np.where(there, one / np.where(there, by, 1.0), math.nan)


def rising(rate: Range) -> Range:
    """Make sure that a rate rises to the last bit, as it must."""
    return Range(*(np.maximum.accumulate(column) for column in rate))


def under(x: FloatArray, y: FloatArray) -> FloatArray:
    """Give the area under each line from (0, 0) to (1, 1)."""
    ends = [(0, 0)] * (x.ndim - 1) + [(1, 1)]
    xs, ys = (np.pad(side, ends, constant_values=((0.0, 1.0),)) for side in (x, y))
    return np.asarray(np.clip(np.sum(np.diff(xs) * (ys[..., 1:] + ys[..., :-1]), axis=-1) / 2, 0.0, 1.0))


def average_precision(recall: FloatArray, precision: FloatArray) -> FloatArray:
    """Add precision up over the growth of recall."""
    return np.asarray(np.sum(np.diff(recall) * precision[..., 1:], axis=-1))
