"""Validation of scores, weights, segments and numbers, shared by all decision functions."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice, check_fraction
from trueup.data.columns import from_array
from trueup.data.frame import MAX_WEIGHT, are_hard
from trueup.errors import ArgumentError, DataError, HardPredictionWarning
from trueup.metrics.inputs import validate_array, validate_scores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import ArrayLike, NDArray

    from trueup._types import BoolArray, FloatArray, IntArray


Target = Literal["rows", "population"]


class Segments(NamedTuple):
    """The segment of each row: sorted names, and per row the index of its name."""

    names: tuple[str, ...]
    codes: IntArray

    def indices(self) -> dict[str, NDArray[np.intp]]:
        """Return the row numbers of each segment, by name."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.cumsum(np.bincount(self.codes, minlength=len(self.names)))
        return dict(zip(self.names, np.split(order, ends[:-1]), strict=True))


class UnlabelledRows(NamedTuple):
    """Scores, weights and optionally segments of rows whose outcome is unknown."""

    p: FloatArray
    w: FloatArray
    segments: Segments | None = None

    def by_segment(self) -> Iterator[tuple[str, UnlabelledRows]]:
        """Yield the name and the rows of each segment."""
        for name, index in ({} if self.segments is None else self.segments.indices()).items():
            yield name, UnlabelledRows(self.p[index], self.w[index])


def read_unlabelled(p: ArrayLike, weight: ArrayLike | None = None, segments: Any = None) -> UnlabelledRows:
    """Validate scores in [0, 1], weights and segments, and drop rows of weight 0."""
    rows = validate_scores(np.zeros(np.size(p)), p, weight)
    if weight is not None and not 1 / MAX_WEIGHT <= (most := validate_array(weight, "weight").max()) <= MAX_WEIGHT:
        raise DataError(f"weights are too far from 1 to be summed; the largest is {most:g}", hint="use another unit")
    warn_of_hard_scores(rows.p, "score")
    return UnlabelledRows(rows.p, rows.w, None if segments is None else read_segments(segments, has_weight(weight, p)))


def has_weight(weight: ArrayLike | None, rows: ArrayLike) -> BoolArray:
    """Return per row whether its weight is above 0."""
    return np.ones(np.shape(rows)[0], bool) if weight is None else validate_array(weight, "weight") > 0


def warn_of_hard_scores(p: FloatArray, name: str) -> None:
    """Warn if many scores are all 0 or 1: they are labels, and intervals computed from them would have no width."""
    if are_hard(p):
        warnings.warn(
            f"every {name} is 0 or 1: labels rather than probabilities, or outcomes and scores are swapped",
            HardPredictionWarning,
            stacklevel=frames_in_package() + 1,
        )


def read_segments(segments: Any, kept: BoolArray) -> Segments:
    """Return the segments of the kept rows, from labels or from a mapping of column to values.

    A mapping names segments as an audit does: {"region": [..], "device": [..]} becomes "region=north & device=tv". Labels
    are formatted as in an audit (1.0 as "1", True as "true"), and rows without a label form a segment.
    """
    if isinstance(segments, Mapping):
        if not segments:
            hint = 'write segments={"region": frame["region"]}'
            raise ArgumentError("segments has no columns", hint=hint, parameter="segments")
        columns = [
            _label_codes(values, kept, str(name), f"{name}=", f"{name} is missing") for name, values in segments.items()
        ]
    else:
        columns = [_label_codes(segments, kept, "segments", "", "(missing)")]
    names, codes = columns[0]
    for more_names, more_codes in columns[1:]:
        pairs, codes = np.unique(codes * len(more_names) + more_codes, return_inverse=True)
        names = [f"{names[pair // len(more_names)]} & {more_names[pair % len(more_names)]}" for pair in pairs.tolist()]
    order = np.argsort(np.array(names, object), kind="stable")
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    return Segments(tuple(names[index] for index in order.tolist()), rank[codes])


def _label_codes(values: Any, kept: BoolArray, name: str, prefix: str, missing: str) -> tuple[list[str], IntArray]:
    """Return the label names of one column, and their codes for the kept rows."""
    shape = np.shape(values)
    if shape != kept.shape:
        raise DataError(
            f"{name} must have one label per row; got shape {shape} for {len(kept):,} rows", hint="label every row"
        )
    column = from_array(values, name).categories()
    names = [missing, *(f"{prefix}{level}" for level in column.levels)]
    present, codes = np.unique(column.codes[kept], return_inverse=True)
    return [names[code + 1] for code in present.tolist()], np.asarray(codes, np.int64)


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a number that float64 can represent (booleans are not numbers)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, (float, np.integer, np.floating))


def check_interval(level: Any, target: Any) -> None:
    """Validate the confidence level and the target of an interval."""
    check_choice("target", target, ("rows", "population"))
    check_fraction("level", level, hint="0.9: intervals that cover 9 times in 10")


def format_amount(value: float, digits: int = 4) -> str:
    """Format an amount without exponents: rounded to units where that has enough digits.

    >>> format_amount(1234567.8), format_amount(54.3212), format_amount(0.043219), format_amount(0.0)
    ('1,234,568', '54.32', '0.04322', '0')
    """
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e15 else f"{value:,.{digits}g}"


def frames_in_package() -> int:
    """Count the innermost stack frames inside this package, so that a warning points at the calling line."""
    frame, count = sys._getframe(1), 1
    package = __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_back.f_globals.get("__name__", "")).partition(".")[0] == package:
        frame, count = frame.f_back, count + 1
    return count
