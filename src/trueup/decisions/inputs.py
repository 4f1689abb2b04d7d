"""What every decision asks of its arguments, checked once and in the same words."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice
from trueup.data.checks import MAX_WEIGHT, are_hard
from trueup.data.columns import from_array
from trueup.errors import ArgumentError, DataError, HardPredictionWarning
from trueup.metrics.inputs import numbers, scored

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from trueup._types import BoolArray, FloatArray, IntArray


Target = Literal["rows", "population"]


class Segments(NamedTuple):
    """The segment of each row: names, ascending, and the place of each row's among them."""

    names: tuple[str, ...]
    codes: IntArray

    def rows(self) -> dict[str, NDArray[np.intp]]:
        """Give the numbers of the rows of each segment."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.cumsum(np.bincount(self.codes, minlength=len(self.names)))
        return dict(zip(self.names, np.split(order, ends[:-1]), strict=True))


class Unlabelled(NamedTuple):
    """Scores and weights of rows whose outcome is not known, and perhaps their segments."""

    p: FloatArray
    w: FloatArray
    segments: Segments | None = None

    def parts(self) -> Iterator[tuple[str, Unlabelled]]:
        """Give the rows of each segment, by its name."""
        for name, here in ({} if self.segments is None else self.segments.rows()).items():
            yield name, Unlabelled(self.p[here], self.w[here])


def unlabelled(p: ArrayLike, weight: ArrayLike | None = None, segments: Any = None) -> Unlabelled:
    """Check scores, weights and segments, and leave out rows of weight 0.

    Parameters
    ----------
    p : array-like, shape (n,)
        In [0, 1].
    weight : array-like, shape (n,), optional
    segments : array-like of labels, or mapping of column to values, optional
        See `segments_of`.

    Examples
    --------
    >>> unlabelled([0.2, 0.7], segments=["north", "south"]).segments.names
    ('north', 'south')
    """
    many = np.size(p)
    rows = scored(np.zeros(many), p, weight)
    kept = np.ones(many, bool)
    if weight is not None:
        given = numbers(weight, "weight")
        kept = given > 0
        if given.max() > MAX_WEIGHT or given.max() < 1 / MAX_WEIGHT:
            raise DataError(
                f"weights are too far from 1 to add up; got {given.max():g}", hint="measure them in another unit"
            )
    warn_of_hard_scores(rows.p, "score")
    return Unlabelled(rows.p, rows.w, None if segments is None else segments_of(segments, kept))


def warn_of_hard_scores(p: FloatArray, name: str) -> None:
    """Warn where many scores are all 0 or 1: no cost of them is in doubt, which is not so."""
    if are_hard(p):
        warnings.warn(
            f"every {name} is 0 or 1: labels rather than probabilities, or outcomes and scores are swapped",
            HardPredictionWarning,
            stacklevel=frames_within() + 1,
        )


def segments_of(segments: Any, kept: BoolArray) -> Segments:
    """Read the segment of each row, and keep those of some.

    Parameters
    ----------
    segments : array-like of labels, or mapping of column to values
        A mapping names segments as an audit does: {"region": [..], "device": [..]} gives "region=north & device=tv". Labels
        are written as there, too: 1.0 as "1", True as "true"; rows without one are a segment of their own.
    kept : ndarray of bool
        One entry for each row that segments are given for.

    Examples
    --------
    >>> segments_of({"region": ["n", "s"]}, np.array([True, True])).names
    ('region=n', 'region=s')
    """
    if isinstance(segments, Mapping):
        if not segments:
            raise ArgumentError("segments name no column", hint='write segments={"region": frame["region"]}')
        columns = [_labels(values, kept, str(name), f"{name}=", f"{name} is missing") for name, values in segments.items()]
    else:
        columns = [_labels(segments, kept, "segments", "", "(missing)")]
    names, codes = columns[0]
    for more, other in columns[1:]:
        pairs, codes = np.unique(codes * len(more) + other, return_inverse=True)
        names = [f"{names[pair // len(more)]} & {more[pair % len(more)]}" for pair in pairs.tolist()]
    order = np.argsort(np.array(names, object), kind="stable")
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    return Segments(tuple(names[at] for at in order.tolist()), place[codes])


def _labels(values: Any, kept: BoolArray, name: str, before: str, missing: str) -> tuple[list[str], IntArray]:
    """Number the labels of one column, those of rows that are kept."""
    shape = np.shape(values)
    if shape != kept.shape:
        raise DataError(
            f"{name} must have one label a row; got shape {shape} for {len(kept):,} rows", hint="give each row a label"
        )
    coded = from_array(values, name).categories()
    texts = [missing, *(f"{before}{level}" for level in coded.levels)]
    found, codes = np.unique(coded.codes[kept], return_inverse=True)
    return [texts[at + 1] for at in found.tolist()], np.asarray(codes, np.int64)


def is_number(value: Any) -> bool:
    """Say whether something is one number, and not a truth value, nor too large to be written with a point."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, (float, np.integer, np.floating))


def number(value: Any, name: str, hint: str, low: float = -math.inf, high: float = math.inf) -> float:
    """Check a finite number between two ends.

    Examples
    --------
    >>> number(3, "the cost", "a number", low=0)
    3.0
    """
    if not is_number(value) or not math.isfinite(value) or not low <= value <= high:
        asked = "a finite number"
        if low > -math.inf or high < math.inf:
            asked += f" of at least {low:g}" if high == math.inf else f" between {low:g} and {high:g}"
        raise ArgumentError(f"{name} must be {asked}; got {value!r:.60}", hint=hint)
    return float(value)


def check_level(level: Any) -> None:
    """Check the share of intervals that are to hold."""
    if not is_number(level) or not 0 < level < 1:
        raise ArgumentError(f"level must lie between 0 and 1; got {level!r}", hint="0.9: intervals that hold 9 times in 10")


def check_target(target: Any) -> None:
    """Check what is to be told: of these rows, or of the population they come from."""
    check_choice("target", target, ("rows", "population"))


def say(value: float, digits: int = 4) -> str:
    """Write an amount: to the unit where that is enough digits, and never in powers of ten that nobody reads.

    Examples
    --------
    >>> say(1234567.8), say(54.3212), say(0.043219), say(0.0)
    ('1,234,568', '54.32', '0.04322', '0')
    """
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e15 else f"{value:,.{digits}g}"


def frames_within() -> int:
    """Count the frames of this package that are running, so that a warning points at the line which called it."""
    frame, within = sys._getframe(1), 1
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_back.f_globals.get("__name__", "")).partition(".")[0] == package:
        frame, within = frame.f_back, within + 1
    return within
