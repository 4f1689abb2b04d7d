"""Expected sums over unlabelled rows with intervals: the core of costs, savings, confusion matrices and net benefit.

All of these are linear in the outcomes: a row in score interval j contributes a_j if its outcome is 1 and b_j if it is 0.
Five sums per score interval, and two of the labelled rows' residuals, then suffice for the estimate and its interval. With
d_j = a_j - b_j and scores f, the scores alone estimate L = sum_j (b_j W_j + d_j sum w f). Labelled rows add W times their
mean of d (y - f). The notes of `expected_cost` state the intervals.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.decisions.evidence import Labelled, bound_for_all_intervals, describe_labelled, quantile, upper_bound
from trueup.metrics.inference import likely_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from trueup._types import FloatArray
    from trueup.decisions.evidence import Inputs


UNIT_INTERVAL = np.array([0.0, 1.0])


class RowSums(NamedTuple):
    """Sums over unlabelled rows; the last axis is the score interval, ascending."""

    heaviest: float
    weight: FloatArray  # sum w
    positive: FloatArray  # sum w f
    noise: FloatArray  # sum w^2 f (1 - f)
    squares: FloatArray  # sum w^2
    squares_f: FloatArray  # sum w^2 f
    squares_ff: FloatArray  # sum w^2 f^2


class ErrorSums(NamedTuple):
    """Sums over the residuals of labelled rows, by score interval; W is their total weight."""

    heaviest: float  # max w / W
    size: float  # effective sample size W^2 / sum w^2
    residual: FloatArray  # sum w (y - f) / W
    squares: FloatArray  # sum (w (y - f) / W)^2


class SegmentSums(NamedTuple):
    """The rows of one segment, and what is known about the errors of their scores.

    ``bound`` limits the error per row over any score interval. ``failing`` is the error probability of one side for which
    the errors are bounded.
    """

    rows: RowSums
    errors: ErrorSums | None
    bound: float
    evidence: str
    failing: float


def sum_segments(
    inputs: Inputs, edges: ArrayLike, *, thresholds: bool = False
) -> tuple[list[SegmentSums], dict[str, SegmentSums]]:
    """Sum rows and labelled residuals by the score intervals between ``edges``.

    Returns the segments for an overall interval, whose error probability they share, and each segment for an interval of
    its own. With ``thresholds``, sums have shape (edges, 2) instead: below each edge, and from it on.
    """
    rows, evidence, failing, cuts = inputs.rows, inputs.evidence, inputs.failing, np.asarray(edges, np.float64)
    segments: list[tuple[str | None, FloatArray, FloatArray]] = [(name, p, w) for name, (p, w, _) in rows.by_segment()]
    overall: list[SegmentSums] = []
    single: dict[str, SegmentSums] = {}
    for name, p, w in segments or [(None, rows.p, rows.w)]:
        powers = (w, w * p, w**2 * p * (1 - p), w**2, w**2 * p, w**2 * p**2)
        sums = RowSums(float(w.max()), *_sum_by_interval(p, cuts, powers, thresholds=thresholds))
        known, errors = None, None
        if isinstance(evidence, Labelled):
            known = evidence.of(name)
        if known is not None and len(known.y):
            total = float(known.w.sum())
            residuals = known.w * (known.y - known.p) / total
            columns = (residuals, residuals**2)
            size = float(total**2 / np.sum(known.w**2))
            by_interval = _sum_by_interval(known.p, cuts, columns, thresholds=thresholds)
            errors = ErrorSums(float(known.w.max()) / total, size, *by_interval)
        for probability in (failing, failing / len(segments)) if name is not None else (failing,):
            bound, source = 0.0, ""
            if known is None and evidence is not None:
                bound, source = upper_bound(evidence, probability, name)
            elif known is not None and errors is not None:
                source = describe_labelled(known)
                if inputs.tuned:
                    bound, source = bound_for_all_intervals(known, probability), f"{source}, for every rule at once"
            segment = SegmentSums(sums, errors, bound, source, probability)
            if name is not None:
                single.setdefault(name, segment)
        overall.append(segment)
    return overall, single


def _sum_by_interval(
    score: FloatArray, edges: FloatArray, columns: Sequence[FloatArray], *, thresholds: bool
) -> list[FloatArray]:
    """Sum columns over the rows between edges; see `sum_segments`."""
    index = np.searchsorted(edges, score, side="right")
    sums = [np.bincount(index, column, len(edges) + 1).astype(np.float64, copy=False) for column in columns]
    if not thresholds:
        return sums
    return [np.stack([np.cumsum(one)[:-1], np.cumsum(one[::-1])[::-1][1:]], axis=1) for one in sums]


class Interval(NamedTuple):
    """Estimates with limits and half-widths: totals of these rows, or means per row of the population.

    ``total`` and ``half_width`` are the total of these rows and its half-width, not limited to possible values.
    """

    estimate: FloatArray
    low: FloatArray
    high: FloatArray
    correction: FloatArray
    half_widths: dict[str, FloatArray]
    total: FloatArray
    half_width: FloatArray


def compute_interval(
    segments: Sequence[SegmentSums],
    positive: FloatArray,
    negative: FloatArray,
    inputs: Inputs,
    ends: FloatArray = UNIT_INTERVAL,
) -> Interval:
    """Estimate quantities with intervals, limited to values that some outcomes could produce.

    ``positive`` and ``negative`` have shape (quantities, intervals): what a row of outcome 1 or 0 contributes. ``ends`` are
    the lowest and the highest score of each interval, shape (..., 2).
    """
    difference = positive - negative
    total, correction, own, known, bounded = np.zeros((5, len(positive)))
    for rows, errors, bound, _, failing in segments:
        weight = rows.weight.sum(axis=-1)
        total += _dot(negative, rows.weight) + _dot(difference, rows.positive)
        bounded += weight * bound * half_variation(difference)
        if errors is None:
            own += _dot(difference**2, rows.noise)
            continue
        correction += weight * _dot(difference, errors.residual)
        largest = errors.heaviest * np.abs(difference).max(axis=1)
        variance = likely_root(_dot(difference**2, errors.squares), largest, failing) ** 2
        known += 0.0 if inputs.tuned else weight**2 * variance
        own += rows.squares.sum(axis=-1) * errors.size * variance
    total += correction
    low, high = np.minimum(positive, negative), np.maximum(positive, negative)
    weights = np.sum([segment.rows.weight for segment in segments], axis=0)
    if inputs.target == "rows":
        component, unit, least, most = "label noise", np.ones(1), _dot(low, weights), _dot(high, weights)
    else:
        component, unit, least, most = "sampling", weights.sum(axis=-1), low.min(axis=1), high.max(axis=1)
        own = _sampling_variance(segments, negative, difference, total / unit, ends, inputs.failing)
    z = quantile(inputs.failing)
    half_widths = {component: z * np.sqrt(own) / unit}
    if any(segment.evidence for segment in segments):
        half_widths["calibration"] = (z * np.sqrt(known) + bounded) / unit
    half = z * np.sqrt(own + known) + bounded
    estimate, lower, upper = (np.clip((total + side) / unit, least, most) for side in (0.0, -half, half))
    return Interval(estimate, lower, upper, correction / unit, half_widths, total, half)


def half_variation(difference: FloatArray) -> FloatArray:
    """Return the largest error of each quantity per row, where the scores of some interval are wrong by 1.

    With C_j the cumulative difference at the end of interval j, the error is sum_j d_j (C_j - C_{j-1}), which is
    sum_j C_j (d_j - d_{j+1}) with zeros beyond both ends. These factors add up to 0, and all C lie in a range of c: the
    error is at most c times half of sum_j |d_j - d_{j+1}|, and some C attains it. It never exceeds sum |d_j|, the factor of
    Claim 1 (Gao, Parameswaran & Peng 2017), and equals it where signs alternate, as for costs of fn and fp.
    """
    return np.asarray(np.abs(np.diff(difference, prepend=0.0, append=0.0)).sum(axis=-1) / 2)


def _sampling_variance(
    segments: Sequence[SegmentSums],
    negative: FloatArray,
    difference: FloatArray,
    mean: FloatArray,
    ends: FloatArray,
    failing: float,
) -> FloatArray:
    """Bound the variance of the sum of expected contributions over rows drawn from the population.

    Corrections differ between segments, and the segment of a drawn row is random too.
    """
    squares, largest = np.zeros((2, len(negative)))
    for rows, errors, *_ in segments:
        added = 0.0 if errors is None else _dot(difference, errors.residual)
        base = negative + (added - mean)[:, None]
        squares += _dot(base**2, rows.squares) + 2 * _dot(base * difference, rows.squares_f)
        squares += _dot(difference**2, rows.squares_ff)
        for end in (ends[..., 0], ends[..., 1]):
            largest = np.maximum(largest, np.abs(base + difference * end).max(axis=1))
    heaviest = max(segment.rows.heaviest for segment in segments)
    return np.asarray(likely_root(np.maximum(squares, 0.0), heaviest * largest, failing) ** 2)


def _dot(values: FloatArray, sums: FloatArray) -> FloatArray:
    return np.asarray((values * sums).sum(axis=-1))


def describe_evidence(segments: Sequence[SegmentSums]) -> str:
    """Return the source of the corrections and bounds as text; empty without evidence."""
    sources = [segment.evidence for segment in segments if segment.evidence]
    return f"{len(sources)} segments, each by its own evidence" if len(sources) > 1 else "".join(sources)
