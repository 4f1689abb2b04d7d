"""Materiality: simultaneous intervals of observed / expected, which errors certainly exceed a tolerance, and which may."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_number
from trueup.errors import ArgumentError
from trueup.kernels import tails
from trueup.kernels import tally as sums
from trueup.kernels._jit import run
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import AnyArray, BoolArray, FloatArray
    from trueup.audits.dispersion import Noise
    from trueup.kernels.tally import Tally

MATERIAL, POSSIBLE, WITHIN_TOLERANCE, DETECTED = "material", "possibly material", "within tolerance", "miscalibrated"
NOT_DETECTED, NOT_TESTABLE = "no miscalibration found", "not testable"
SEVERITY = (MATERIAL, DETECTED, POSSIBLE, WITHIN_TOLERANCE, NOT_DETECTED, NOT_TESTABLE)  # the most serious state first
MAX_PERCENT = 10_000.0


@dataclass(frozen=True)
class Tolerance:
    """The largest calibration error that does not matter.

    Attributes
    ----------
    value : float
        An absolute difference of observed and expected mean, or a share of the expected mean: 0.1 allows observed /
        expected from 1/1.1 to 1.1.
    relative : bool
    """

    value: float
    relative: bool

    @classmethod
    def parse(cls, given: Any) -> Tolerance | None:
        """Validate an absolute difference (0.02) or a percentage of the expected mean ("10%"); None stays None."""
        if given is None or isinstance(given, cls):
            return given
        hint = 'write 0.02 for a difference of two percentage points, "10%" for a tenth of the expected rate'
        if not isinstance(given, str):
            check_number("tolerance", given, 0, hint=hint)
            return cls(float(given), relative=False)
        text = given.strip()
        try:
            value = float(text.removesuffix("%"))
        except ValueError:
            value = math.nan
        if not 0 <= value <= MAX_PERCENT:
            raise ArgumentError(f"tolerance must be a number or a percentage; got {given!r}", hint, parameter="tolerance")
        relative = text.endswith("%")
        return cls(value / 100.0 if relative else value, relative)

    def check_task(self, task: str) -> None:
        """Raise if no probabilities of this ``task`` can differ by the tolerance: a percent sign was left out."""
        if task != "regression" and not self.relative and self.value >= 1:
            raise ArgumentError(
                f"tolerance must be below 1 for probabilities; got {self.value:g}",
                "write {tolerance} for a share of the expected mean",
                parameter="tolerance", settings={"tolerance": f"{self.value:g}%"},
            )  # fmt: skip

    def limits(self, expected: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Return the lowest and highest mean outcome within the tolerance of each ``expected`` mean."""
        if not self.relative:
            return expected - self.value, expected + self.value
        ends = expected / (1.0 + self.value), expected * (1.0 + self.value)
        return np.minimum(*ends), np.maximum(*ends)  # means of real outcomes can be negative

    def excludes(self, expected: FloatArray, ratios: FloatArray) -> BoolArray:
        """Return where the interval of the mean outcome, ``ratios`` times the ``expected`` mean, excludes the tolerance."""
        low, high = self.limits(expected)
        with np.errstate(invalid="ignore"):
            ends = ratios * expected
            return np.asarray((np.minimum(*ends) > high) | (np.maximum(*ends) < low))

    def includes(self, expected: FloatArray, ratios: FloatArray) -> BoolArray:
        """Return where the whole interval of the mean outcome, ``ratios`` times ``expected``, is within the tolerance."""
        low, high = self.limits(expected)
        with np.errstate(invalid="ignore"):
            ends = ratios * expected
            return np.asarray((np.minimum(*ends) >= low) & (np.maximum(*ends) <= high))

    def allowed(self, expected: FloatArray) -> FloatArray:
        """Return the largest range of cumulative differences per unit of weight if every score is within the tolerance."""
        return np.asarray(self.value * (np.abs(expected) if self.relative else np.ones(len(expected))))

    def __str__(self) -> str:
        return f"{100 * self.value:g}%" if self.relative else f"{self.value:g}"


def adjusted_ratios(
    columns: Mapping[str, AnyArray], sizes: FloatArray, levels: FloatArray, noise: Noise | None
) -> FloatArray:
    """Return lower and upper limits of observed / expected that hold for all segments at once, shape (2, segments).

    ``levels`` has the level of each segment's test, its share of alpha. If outcomes are real, with this ``noise``,
    ``sizes`` has the half-widths of the intervals of their means; else the effective numbers of rows, whose limits are
    those of `trueup.kernels.tails.rate_limits`. Segments without a level have no limits (NaN).
    """
    observed, expected = columns["observed"], columns["expected"]
    limits = np.full((2, len(levels)), np.nan)
    if noise is not None:
        limits[:] = np.maximum(observed - sizes, noise.lowest_mean), observed + sizes
    else:
        z = np.full(len(levels), np.nan)
        for level in np.unique(levels[levels > 0]):
            z[levels == level] = inference.normal_quantile(level)
        run(tails.rate_limits, 40 * len(z), observed, sizes, z, limits)
    with np.errstate(invalid="ignore", divide="ignore"):
        ends = limits / expected
    return np.vstack([np.minimum(*ends), np.maximum(*ends)])


def exceeds_tolerance(
    tolerance: Tolerance, tally: Tally, columns: Mapping[str, AnyArray], ratios: FloatArray, levels: FloatArray
) -> BoolArray:
    """Return which segments have an error that certainly exceeds the tolerance, at the ``levels`` of their tests.

    Either the simultaneous interval of the mean outcome, ``ratios`` times the expected mean, lies outside the tolerance;
    or the range of cumulative differences does, for errors that cancel in the mean: scores within the tolerance can have a
    range of at most the tolerance times the weight, so the range less that is tested as the range of calibrated scores is,
    with the variance at the limit of the tolerance.
    """
    expected, weight = columns["expected"], columns["weight"]
    outside = tolerance.excludes(expected, ratios)
    with np.errstate(invalid="ignore"):
        allowed = tolerance.allowed(expected)
        span = np.maximum(tally.span - allowed * weight, 0.0)
        variance = (columns["ecce"] * weight / columns["sigma"]) ** 2  # with clusters, and the noise of real outcomes
    variance = np.where(np.isfinite(variance), variance, tally.state[:, sums.VARIANCE])
    if not tally.real:
        variance = np.maximum(variance, tally.weights[:, sums.SQUARES] / tally.rise_ratio)
    factor = _variance_factor(tolerance, tally, variance, allowed)
    rise = np.where(tally.rises, span, 0.0)
    p = inference.segment_pvalues(span, rise, variance * factor, tally.state[:, sums.SKEW] * factor)
    return np.asarray(outside | (p <= levels))


def is_within_tolerance(
    tolerance: Tolerance, columns: Mapping[str, AnyArray], ratios: FloatArray, levels: FloatArray
) -> BoolArray:
    """Return which segments have an error that is certainly within the tolerance, at the ``levels`` of their tests.

    The whole simultaneous interval of the mean outcome lies within it; and so does the upper limit of the range of
    cumulative differences, which is the observed range and the quantile of the range of noise. A range of scores that has
    few of the rows may still be off by more.
    """
    expected = columns["expected"]
    limit = columns["ecce"] * (1.0 + _noise_share(columns["sigma"], levels))
    return np.asarray(tolerance.includes(expected, ratios) & (limit <= tolerance.allowed(expected)))


def find_states(
    tolerance: Tolerance | None, columns: Mapping[str, AnyArray], rejected: BoolArray, material: BoolArray,
    ratios: FloatArray, levels: FloatArray,
) -> AnyArray:  # fmt: skip
    """Return the state of every segment; ``ratios`` are the simultaneous intervals of observed/expected."""
    state = np.where(columns["testable"], NOT_DETECTED, NOT_TESTABLE).astype(object)
    state[rejected] = DETECTED if tolerance is None else MATERIAL
    if tolerance is not None:
        unsure = np.flatnonzero(rejected & ~material)
        values = {name: columns[name][unsure] for name in ("expected", "ecce", "sigma")}
        within = is_within_tolerance(tolerance, values, ratios[:, unsure], levels[unsure])
        state[unsure] = np.where(within, WITHIN_TOLERANCE, POSSIBLE)
    return state


def certain_excess(columns: Mapping[str, AnyArray], remaining: FloatArray, levels: FloatArray) -> FloatArray:
    """Return how many events of each problem are certainly in excess or missing, over the range of scores with the most.

    Problems are sorted by it. It is the range of cumulative differences, times the share of its sigma that is ``remaining``
    after the errors of stronger problems are removed, less the quantile of the range of noise at the ``levels``.
    """
    with np.errstate(invalid="ignore"):
        share = np.where(np.isfinite(columns["sigma"]), np.minimum(remaining / columns["sigma"], 1.0), 1.0)
    share = np.maximum(share - _noise_share(columns["sigma"], levels), 0.0)
    return np.asarray(columns["weight"] * columns["ecce"] * share)


def _noise_share(sigma: FloatArray, levels: FloatArray) -> FloatArray:
    """Return the quantile of the range of noise at each level as a share of the observed range, ``sigma`` deviations."""
    distinct, index = np.unique(levels, return_inverse=True)
    quantiles = np.array([inference.range_quantile(float(level)) for level in distinct])[index]
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(quantiles / sigma)


def _variance_factor(tolerance: Tolerance, tally: Tally, variance: FloatArray, allowed: FloatArray) -> FloatArray:
    """Return how many times as large variances can be if means differ by the tolerance, on average by ``allowed``.

    A probability that changes by d changes its variance p (1 - p) by at most d. Variances of amounts can rise with the
    square of the mean.
    """
    if tally.real:
        return np.full(len(variance), (1.0 + tolerance.value) ** 2 if tolerance.relative else 1.0)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(variance > 0, 1.0 + allowed * tally.weights[:, sums.WEIGHT2] / variance, 1.0)
