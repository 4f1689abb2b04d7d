"""Sums over rows and over residuals of labelled rows, by score interval, and the intervals that follow from them.

Costs and counts are linear in the outcomes: a row in score interval j contributes a_j if its outcome is 1 and b_j if it is
0. A few sums per score interval, over the rows (`RowSums`) and over residuals of labelled rows (`ErrorSums`), then suffice
for the estimate and its interval. With d_j = a_j - b_j, scores f, weights w and their sum W_j in interval j, the scores
alone estimate L = sum_j (b_j W_j + d_j sum w f). Labelled rows, weighted so that their scores are distributed like those of
the rows (`post_stratify`), add sum W_j times their mean of d (y - f). See `expected_cost`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.decisions.clusters import (
    ClusterNorms,
    cluster_norms,
    design_effect,
    pair_sums,
    quadratic_form,
    threshold_pair_sums,
)
from trueup.decisions.evidence import (
    Labelled,
    bound_for_all_intervals,
    describe_labelled,
    mean_errors,
    quantile,
    upper_bound,
)
from trueup.metrics.inference import likely_root

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike

    from trueup._types import FloatArray
    from trueup.decisions.evidence import Inputs, UnlabelledRows


UNIT_INTERVAL = np.array([0.0, 1.0])


class RowSums(NamedTuple):
    """Sums over unlabelled rows with weights w and scores f; the last axis is the score interval, lowest scores first."""

    heaviest: float
    shift: tuple[float, float]  # the smallest and the largest g - f
    weight: FloatArray  # sum w
    positive: FloatArray  # sum w f
    noise: FloatArray  # sum w^2 f (1 - f)
    squares: FloatArray  # sum w^2
    squares_g: FloatArray  # sum w^2 g, with g = f plus the mean error of labelled rows of similar score
    squares_gg: FloatArray  # sum w^2 g^2


class ErrorSums(NamedTuple):
    """Sums over labelled rows with weights w, outcomes y and scores f, by score interval; W is their total weight."""

    heaviest: float  # max w / W
    size: float  # effective sample size W^2 / sum w^2
    residual: FloatArray  # sum w (y - f) / W
    squares: FloatArray  # sum (w (y - f) / W)^2
    pairs: FloatArray | None = None  # of rows of one cluster, as `pair_sums` or `threshold_pair_sums` returns them
    norms: ClusterNorms | None = None  # with clusters only
    design: float = 1.0  # the factor by which clusters raise the variance of sums

    def likely_variance(self, difference: FloatArray, failing: float) -> FloatArray:
        """Return an upper bound on the variance of sum d (y - f) / W of each quantity, ``difference`` d.

        It is at least that without clusters.
        """
        largest, variance = self.heaviest * np.abs(difference).max(axis=1), sum_products(difference**2, self.squares)
        if self.pairs is not None:
            variance = variance + np.maximum(quadratic_form(difference, self.pairs), 0.0)
        likely = np.asarray(likely_root(variance, largest, failing) ** 2)
        if self.norms is None:
            return likely
        return np.maximum(likely, self.norms.likely_variance(difference, variance, failing))


class SegmentSums(NamedTuple):
    """Sums over the rows of one segment, and the evidence about the errors of their scores."""

    rows: RowSums
    errors: ErrorSums | None
    bound: float  # on the error per row over any score interval
    evidence: str
    failing: float  # error probability of one side for which the errors are bounded


def sum_segments(
    inputs: Inputs, edges: ArrayLike, *, thresholds: bool = False
) -> tuple[list[SegmentSums], dict[str, SegmentSums]]:
    """Sum rows and labelled residuals by the score intervals that ``edges`` separate.

    Return the segments as a list for one overall confidence interval, with the error probability divided among them, and as
    a dict for one interval per segment. With ``thresholds``, sums have shape (edges, 2): below each edge, and from it on.
    """
    rows, evidence, failing, cuts = inputs.rows, inputs.evidence, inputs.failing, np.asarray(edges, np.float64)
    segments: list[tuple[str | None, UnlabelledRows]] = list(rows.by_segment())
    overall: list[SegmentSums] = []
    single: dict[str, SegmentSums] = {}
    for name, part in segments or [(None, rows)]:
        p, w, _ = part
        known = evidence.of(name, part) if isinstance(evidence, Labelled) else None
        clusters = evidence.clusters_in(name) if isinstance(evidence, Labelled) else None
        moved = np.zeros(1)
        if isinstance(evidence, Labelled) and inputs.target == "population":
            moved = mean_errors(evidence.in_segment(name), part)
        g = p + moved
        powers = (w, w * p, w**2 * p * (1 - p), w**2, w**2 * g, w**2 * g**2)
        by_interval = _sum_by_interval(p, cuts, powers, thresholds=thresholds)
        sums = RowSums(float(w.max()), (float(moved.min()), float(moved.max())), *by_interval)
        errors = None
        if known is not None and len(known.y):
            total = float(known.w.sum())
            residuals = known.w * (known.y - known.p) / total
            columns = (residuals, residuals**2)
            size = float(total**2 / np.sum(known.w**2))
            residual, squares = _sum_by_interval(known.p, cuts, columns, thresholds=thresholds)
            errors = ErrorSums(float(known.w.max()) / total, size, residual, squares)
            if clusters is not None:
                index = np.searchsorted(cuts, known.p, side="right")
                sum_pairs, count = (threshold_pair_sums, len(cuts)) if thresholds else (pair_sums, len(cuts) + 1)
                errors = errors._replace(
                    pairs=sum_pairs(index, residuals, clusters, count),
                    norms=cluster_norms(known, index, clusters, count, thresholds=thresholds),
                    design=design_effect(known, clusters),
                )
        for probability in (failing, failing / len(segments)) if name is not None else (failing,):
            bound, source = 0.0, ""
            if evidence is not None and not isinstance(evidence, Labelled):
                bound, source = upper_bound(evidence, probability, name)
            elif known is not None and errors is not None:
                source = describe_labelled(known)
                if inputs.tuned:
                    bound = bound_for_all_intervals(known, probability, clusters)
                    source = f"{source}, for every rule at once"
            segment = SegmentSums(sums, errors, bound, source, probability)
            if name is not None:
                single.setdefault(name, segment)
        overall.append(segment)
    return overall, single


def _sum_by_interval(
    score: FloatArray, edges: FloatArray, columns: Sequence[FloatArray], *, thresholds: bool
) -> list[FloatArray]:
    """Sum each of ``columns`` by the score intervals that ``edges`` separate; ``thresholds`` as in `sum_segments`."""
    index = np.searchsorted(edges, score, side="right")
    sums = [np.bincount(index, column, len(edges) + 1).astype(np.float64, copy=False) for column in columns]
    if not thresholds:
        return sums
    return [np.stack([np.cumsum(one)[:-1], np.cumsum(one[::-1])[::-1][1:]], axis=1) for one in sums]


class Interval(NamedTuple):
    """Estimates of quantities, with limits and half-widths: totals of these rows, or means per row of the population."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray
    correction: FloatArray
    half_widths: dict[str, FloatArray]
    total: FloatArray  # of these rows, not limited to possible values, and its half-width
    half_width: FloatArray


def compute_interval(
    segments: Sequence[SegmentSums],
    positive: FloatArray,
    negative: FloatArray,
    inputs: Inputs,
    ends: FloatArray = UNIT_INTERVAL,
    *,
    z: float | None = None,
) -> Interval:
    """Estimate sums over rows, each with a confidence interval limited to values that some outcomes could produce.

    ``positive`` and ``negative``, of shape (quantities, score intervals), are what a row of outcome 1 or 0 adds. ``ends``
    are the lowest and the highest possible score of each score interval, shape (..., 2). ``z`` is the number of standard
    errors of an interval; by default that of a single one.
    """
    difference = positive - negative
    total, correction, own, known, bounded = np.zeros((5, len(positive)))
    for rows, errors, bound, _, failing in segments:
        weight = rows.weight.sum(axis=-1)
        total += sum_products(negative, rows.weight) + sum_products(difference, rows.positive)
        bounded += weight * bound * half_variation(difference)
        if errors is None:
            own += sum_products(difference**2, rows.noise)
            continue
        correction += weight * sum_products(difference, errors.residual)
        variance = errors.likely_variance(difference, failing)
        known += 0.0 if inputs.tuned else weight**2 * variance
        own += rows.squares.sum(axis=-1) * errors.size * variance
    total += correction
    low, high = np.minimum(positive, negative), np.maximum(positive, negative)
    weights = np.sum([segment.rows.weight for segment in segments], axis=0)
    if inputs.target == "rows":
        component, unit, least, most = "label noise", np.ones(1), sum_products(low, weights), sum_products(high, weights)
    else:
        component, unit, least, most = "sampling", weights.sum(axis=-1), low.min(axis=1), high.max(axis=1)
        own = _sampling_variance(segments, negative, difference, total / unit, ends, inputs.failing)
    z = quantile(inputs.failing) if z is None else z
    half_widths = {component: z * np.sqrt(own) / unit}
    if any(segment.evidence for segment in segments):
        half_widths["calibration"] = (z * np.sqrt(known) + bounded) / unit
    half = z * np.sqrt(own + known) + bounded
    estimate, lower, upper = (np.clip((total + side) / unit, least, most) for side in (0.0, -half, half))
    return Interval(estimate, lower, upper, correction / unit, half_widths, total, half)


def half_variation(difference: FloatArray) -> FloatArray:
    """Return the largest error per row of each quantity, in units of c, if no interval of scores has an error above c.

    ``difference`` has d_j = a_j - b_j per quantity. With C_j the sum of y - f, per row, up to the end of score interval j,
    the error is sum_j d_j (C_j - C_{j-1}) = sum_j C_j (d_j - d_{j+1}), d being 0 beyond both ends. The factors of C add up
    to 0, and all C_j lie within c of each other: the error is at most c times half of sum_j |d_j - d_{j+1}|, and some C
    attains it. This is at most c sum |d_j| of Claim 1 (Gao, Parameswaran & Peng 2017), and equal if the signs alternate.
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
    """Bound the sampling variance of the sum of expected contributions of rows drawn from the population.

    Each segment has its own correction, and the segment of a drawn row is random too: deviations are from the overall mean.
    """
    squares, largest = np.zeros((2, len(negative)))
    base = negative - mean[:, None]
    for rows, *_ in segments:
        squares += sum_products(base**2, rows.squares) + 2 * sum_products(base * difference, rows.squares_g)
        squares += sum_products(difference**2, rows.squares_gg)
        for side, moved in enumerate(rows.shift):
            end = np.clip(ends[..., side] + moved, 0.0, 1.0)
            largest = np.maximum(largest, np.abs(base + difference * end).max(axis=1))
    heaviest = max(segment.rows.heaviest for segment in segments)
    return np.asarray(likely_root(np.maximum(squares, 0.0), heaviest * largest, failing) ** 2)


def sum_products(values: FloatArray, sums: FloatArray) -> FloatArray:
    """Return the sum of ``values`` times ``sums`` over the score intervals, the last axis."""
    return np.asarray((values * sums).sum(axis=-1))


def describe_evidence(segments: Sequence[SegmentSums]) -> str:
    """Describe where the corrections and error bounds of ``segments`` come from; empty without evidence."""
    sources = [segment.evidence for segment in segments if segment.evidence]
    return f"{len(sources)} segments, each by its own evidence" if len(sources) > 1 else "".join(sources)
