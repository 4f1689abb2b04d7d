"""The noise of real outcomes: the variance and third cumulant of every row, estimated or known from a family.

The variance of one segment, estimated from its own rows, is too small whenever it happens to lack the large outcomes that
skewed noise produces rarely. So the variance is pooled: it is a function of the score, estimated in score bins of all rows,
times a factor for categories that vary more than others; categories and pairs of them with unexpectedly many zeros have at
least the variance that these imply. Bins, categories and pairs need only sums, which add over partitions.
With a ``family`` (Poisson, gamma, Tweedie) the variance is a known function of the prediction, but for its dispersion.
"""

from __future__ import annotations

import math
import operator
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import numpy as np

from trueup._validate import check_choice, check_number
from trueup.audits.segments import (
    AuditRows,
    Combination,
    ScorePartition,
    SegmentGrid,
    SortedChunk,
    batches,
    cell_codes,
    single_and_paired_columns,
)
from trueup.errors import ArgumentError, DataError
from trueup.kernels import tails
from trueup.kernels import tally as sums
from trueup.kernels._jit import run
from trueup.kernels.tally import Cells
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array
    from trueup.audits.settings import AuditSettings
    from trueup.kernels.tally import SortedRows, Tally

    # Rows, sum of residuals, non-zero outcomes, whether one is negative, lowest score, largest absolute score or residual.
    ScoreRange = tuple[int, float, int, bool, float, float]

ROWS_PER_BIN, MAX_BINS = 150, 30
MIN_NONZERO = 10  # outcomes other than zero in a score bin; bins with fewer are merged
MIN_CELL_NONZERO = 10  # in a level or pair of levels with more zeros than its scores explain; with fewer, it is not tested
MIN_NONZERO_ROWS = 30  # in all, if most outcomes are zero; with fewer, nothing is testable
# Scores do not explain the zeros where the outcomes other than zero are fewer than expected by this factor, significantly
# so at this level over all cells. Fewer of them by a smaller factor are an error to be found.
MAX_ZERO_RATIO, ZERO_LEVEL = 3.0, 0.05
SMALL_SAMPLE = 10.0  # the skewness of k outcomes is taken for too low by the factor 1 + SMALL_SAMPLE / sqrt(k)
MIN_SCALE, MAX_SCALE = 1e-50, 1e50  # of outcomes and predictions: their sixth powers are finite and not 0
MAX_DISPERSION = 1e50  # of a family: its cube is finite
ROWS_PER_COARSE_BIN, MAX_COARSE_BINS = 1000, 8
LOW_FLOOR, HIGH_FLOOR = 0.25, 0.5  # of the variance beyond the outer bins, as shares of the variance in them
MIN_SLOPE_BINS = 4
MAX_SLOPE = 2.0
BIN_NONZERO = 1  # column of the sums by score bin
BYTES_PER_LEVEL = 8 * 6
BYTES_PER_CELL = 8 * 3
MAX_ZERO_CELLS = 1 << 20  # combinations of columns with more cells are not examined for zeros: a cell has few rows
FAMILIES = {"poisson": 1.0, "gamma": 2.0, "tweedie": 1.5}  # exponents of the variance; a default for tweedie
MIN_POWER, MAX_POWER = 1.0, 3.0
MIN_STATED_DISPERSION = 1.05
MAX_ZEROS = 0.01  # share of rows with outcomes so small that they look like zero beside the prediction
WHOLE = 1e-6  # a count may differ from a whole number by this much, relative to it


class ZeroCells(NamedTuple):
    """Cells of one combination of columns in which significantly more outcomes are zero than at the same scores elsewhere.

    ``odds`` has (n - k) / (k + 1) for each cell, k of its n outcomes being not zero; ``few`` is true for cells of mostly
    zeros in which k is too small for a test.
    """

    columns: tuple[int, ...]
    codes: Int32Array
    odds: FloatArray
    few: BoolArray


@dataclass(frozen=True, eq=False)
class PooledNoise:
    """A model of the noise of real outcomes.

    Attributes
    ----------
    score, mean, variance : ndarray
        Mean score, mean residual and variance of the residuals of each score bin, in ascending order of the score.
    skewness, kurtosis : float
        Third and fourth standardised cumulants of the residuals.
    slope : float
        Lower limit of the slope of the log variance on the log score, 0 to 2: about 1 for counts, 2 for amounts.
    factors : tuple of ndarray
        Per segment column, the factor of the variance of each level, at least 1.
    nonzero : ndarray or None
        Share of the outcomes of each score bin that are not zero; None if no outcome is zero.
    zeros : tuple of ZeroCells
        Levels, and pairs of levels, with more zeros than the scores explain.
    lowest_mean : float
        Limit of intervals of means: 0 if no outcome is negative, else minus infinity.
    rows, outcomes : int
        Number of rows from which the noise was estimated, and of their outcomes other than zero.
    reason : str
        Why no segment can be tested; empty if segments can be.
    """

    score: FloatArray
    mean: FloatArray
    variance: FloatArray
    skewness: float = 0.0
    kurtosis: float = 0.0
    slope: float = 0.0
    factors: tuple[FloatArray, ...] = ()
    nonzero: FloatArray | None = None
    zeros: tuple[ZeroCells, ...] = ()
    lowest_mean: float = -math.inf
    rows: int = 1
    outcomes: int = 1
    reason: str = ""
    approximate_rows: ClassVar[int] = 3000  # below, p-values are called approximate

    def row_variance(self, p: FloatArray) -> FloatArray:
        """Return the variance of the outcome at scores ``p``: linear between the bins, and beyond them with a floor."""
        c, v = self.score, self.variance
        out = np.interp(p, c, v)
        if len(c) > 1:
            # Scores are sorted, so that those beyond the outer bins are slices.
            low, high = np.searchsorted(p, c[0]), np.searchsorted(p, c[-1], side="right")
            below, above = (v[1] - v[0]) / (c[1] - c[0]), (v[-1] - v[-2]) / (c[-1] - c[-2])
            out[:low] = np.maximum(v[0] + (p[:low] - c[0]) * below, LOW_FLOOR * v[0])
            out[high:] = np.maximum(v[-1] + (p[high:] - c[-1]) * above, HIGH_FLOOR * v[-1])
        return out

    def apply(self, chunk: SortedChunk) -> SortedChunk:
        """Return the rows with variance and third cumulant of w (y - p): w^2 sigma^2 f, and that to the power 1.5 times g3.

        f is the largest factor of the row's levels. In `ZeroCells` the variance is at least (w p)^2 (1 - q) / q with
        q = (k + 1) / (n + 1): that of an outcome of mean p which is p / q with probability q and else zero.
        """
        rows = chunk.rows
        v = self.row_variance(rows.p)
        if len(rows.w):
            v *= rows.w**2
        largest = np.ones(len(rows))
        for factor, codes in zip(self.factors, chunk.codes, strict=True):
            if (factor > 1).any():
                # The last entry is for rows in no level, whose code is -1.
                np.maximum(largest, np.append(factor, 1.0)[codes], out=largest)
        v *= largest
        for cells in self.zeros:
            odds = np.append(cells.odds, 0.0)[chunk.segment_of_rows(cells.columns, cells.codes)]
            np.maximum(v, odds * (rows.p * rows.w if len(rows.w) else rows.p) ** 2, out=v)
        return replace(chunk, rows=replace(rows, v=v, k3=self.skewness * v * np.sqrt(v)))

    def remarks(self) -> list[str]:
        """Return remarks on the noise: none."""
        return []

    def interval_deviation(self, tally: Tally) -> FloatArray:
        """Return the standard deviation of sum w y of each segment, for the interval of its mean."""
        return self.deviation(tally)

    def deviation(self, tally: Tally) -> FloatArray:
        """Return sd(sum w (y - p)) of each segment: the larger of the modelled one and that by successive differences.

        It is NaN where the noise is not known.
        """
        scale = np.sqrt(np.fmax(tally.state[:, sums.VARIANCE], difference_variance(tally)))
        return np.full(len(tally), np.nan) if self.reason else scale

    def pvalues(self, tally: Tally) -> FloatArray:
        """Return the p-value of each segment: the larger of the default one with V and K3 of the model, and F(x sqrt(h/D)).

        D is the variance by successive differences. Large outcomes that a segment lacks by chance are part of V, those that
        it has by chance are part of D; h = max(1, observed / expected)^slope, if the differences rise, keeps a higher mean
        from hiding itself by its own noise.
        """
        state, x = tally.state, tally.span
        modelled = inference.segment_pvalues(x, state[:, sums.RISE], state[:, sums.VARIANCE], self.third_cumulant(tally))
        d = difference_variance(tally)
        with np.errstate(invalid="ignore", divide="ignore"):
            own = inference.limit_pvalues(np.where(d > 0, x * np.sqrt(self.allowance(tally) / d), 0.0))
        own[d == 0] = np.where(x[d == 0] > 0, 0.0, 1.0)
        return np.maximum(modelled, own)

    def third_cumulant(self, tally: Tally) -> FloatArray:
        """Return K3 (1 - 3 s) of each segment, s being its share of the rows and K3 the sum of third cumulants.

        V is estimated from all rows: skewed outcomes whose sum is low by chance have a low V, too, which takes 3 s K3 from
        the third cumulant of x / sqrt(V). Over all rows, -2 K3 is left (Hall 1992, section 2.6). Such a low sum has a low
        estimate of K3, too, so that negative factors of it are larger for few outcomes, by 1 + 10 / sqrt(k).
        """
        factor = 1.0 - 3.0 * tally.rows / self.rows
        factor[factor < 0] *= 1.0 + SMALL_SAMPLE / np.sqrt(self.outcomes)
        return np.asarray(tally.state[:, sums.SKEW] * factor)

    def allowance(self, tally: Tally) -> FloatArray:
        """Return h = max(1, observed / expected)^slope of each segment whose differences rise: the excess of its noise."""
        return tally.rise_ratio**self.slope

    def few_nonzero(self, columns: tuple[int, ...], codes: Int32Array) -> BoolArray:
        """Return which segments of a combination have unexplained zeros and too few other outcomes for a test."""
        few = {tuple(code) for cells in self.zeros if cells.columns == columns for code in cells.codes[cells.few].tolist()}
        return np.array([tuple(code) in few for code in codes.tolist()], bool) if few else np.zeros(len(codes), bool)

    def detectable(self, tally: Tally, level: float) -> FloatArray:
        """Return the smallest range whose p-value is at most ``level``, in the direction of the skewness."""
        plain, skewed = inference.range_quantile(level), inference.range_quantile(level, inflated=True)
        out = np.empty(len(tally))
        v, k3 = tally.state[:, sums.VARIANCE], self.third_cumulant(tally)
        run(tails.detectable_ranges, 20 * len(tally), v, k3, plain, skewed, out)
        return np.fmax(out, plain * np.sqrt(difference_variance(tally)))

    def detectable_shift(self, tally: Tally, reach: FloatArray) -> FloatArray:
        """Return the shift of the sum that is found with 80% power if ranges beyond ``reach`` are."""
        return np.asarray(reach + inference.Z_POWER * self.deviation(tally))


@dataclass(frozen=True, eq=False)
class FamilyNoise:
    """The noise of outcomes of a known family, whose weights are exposures: Var(y) = dispersion * mean^power / weight.

    Attributes
    ----------
    family : {"poisson", "gamma", "tweedie"}
    power : float
        Exponent of the variance function.
    pearson : float
        Pearson's statistic, the mean of w (y - p)^2 / p^power; 1 is expected of a Poisson outcome.
    dispersion : float
        The factor of the variance: the larger of Pearson's statistic and sum w^2 (y - p)^2 / sum w p^power, which differ if
        the variance is not that of the family; at least 1 for a Poisson outcome.
    skewness_factor : float
        Third cumulant of the residuals relative to that of the family, at least 1.
    whole : float
        Share of rows in which weight times outcome is a whole number.
    """

    family: str
    power: float
    pearson: float
    dispersion: float
    skewness_factor: float
    whole: float
    reason: ClassVar[str] = ""
    lowest_mean: ClassVar[float] = 0.0
    approximate_rows: ClassVar[int] = 200

    def apply(self, chunk: SortedChunk) -> SortedChunk:
        """Return the rows with variance phi w p^q and third cumulant q phi^2 w p^(2q-1) of w (y - p) (Jorgensen 1997)."""
        rows, q, phi = chunk.rows, self.power, self.dispersion
        w = rows.w if len(rows.w) else 1.0
        k3 = self.skewness_factor * q * phi**2 * w * rows.p ** (2.0 * q - 1.0)
        return replace(chunk, rows=replace(rows, v=phi * w * rows.p**q, k3=k3))

    def allowance(self, tally: Tally) -> FloatArray:
        """Return max(1, observed / expected)^power of each segment whose differences rise: the excess of its noise."""
        return tally.rise_ratio**self.power

    def deviation(self, tally: Tally) -> FloatArray:
        """Return sd(sum w (y - p)) of each segment."""
        return np.asarray(np.sqrt(tally.state[:, sums.VARIANCE]))

    def interval_deviation(self, tally: Tally) -> FloatArray:
        """Return the standard deviation of sum w y of each segment, larger if its mean is higher than predicted."""
        with np.errstate(invalid="ignore", divide="ignore"):
            ratio = np.maximum(1.0, 1.0 + tally.residual / tally.expected)
        return np.asarray(self.deviation(tally) * ratio ** (self.power / 2.0))

    def pvalues(self, tally: Tally) -> FloatArray:
        """Return the p-value of each segment, `trueup.kernels.tails.family_tail`."""
        state, out = tally.state, np.empty(len(tally))
        v, k3 = state[:, sums.VARIANCE], state[:, sums.SKEW]
        run(tails.family_tails, 10 * len(tally), tally.span, state[:, sums.RISE], v, k3, self.family == "poisson", out)
        return out

    def detectable(self, tally: Tally, level: float) -> FloatArray:
        """Return the smallest range whose p-value is at most ``level``, in the direction of the skewness."""
        v, k3, out = tally.state[:, sums.VARIANCE], tally.state[:, sums.SKEW], np.empty(len(tally))
        plain, skewed = inference.range_quantile(level), inference.range_quantile(level, inflated=True)
        if self.family == "poisson":
            run(tails.detectable_ranges, 20 * len(tally), v, k3, plain, skewed, out)
        else:
            run(tails.gamma_detectable, 20 * len(tally), v, k3, skewed, out)
        return out

    def detectable_shift(self, tally: Tally, reach: FloatArray) -> FloatArray:
        """Return the shift of the sum that is found with 80% power if ranges beyond ``reach`` are."""
        if self.family != "poisson":
            return np.asarray(reach + inference.Z_POWER * self.deviation(tally))
        v, k3, out = tally.state[:, sums.VARIANCE], tally.state[:, sums.SKEW], np.empty(len(tally))
        run(tails.detectable_shifts, 20 * len(tally), v, k3, reach, 0.0, inference.Z_POWER, out)
        return out

    def remarks(self) -> list[str]:
        """Return remarks on the fit of the family: dispersion, and outcomes that are not counts."""
        found = f"Pearson's statistic is {self.pearson:.3g}"
        lines = []
        if self.family == "poisson" and self.dispersion >= MIN_STATED_DISPERSION:
            lines.append(f"{found}, where a Poisson outcome has 1: variances are multiplied by {self.dispersion:.3g}")
        elif self.family != "poisson":
            lines.append(f"dispersion of the {self.family} outcome: {self.dispersion:.3g}")
        if self.family == "poisson" and self.whole < 0.5:
            lines.append("most outcomes times their weights are not whole numbers: is the weight the exposure of a count?")
        return lines


Noise = PooledNoise | FamilyNoise


def resolve_family(family: str | None, variance_power: float | None, task: str) -> tuple[str, float | None]:
    """Validate the family; return the task, "regression" if there is a family, and the exponent of its variance."""
    if family is None:
        if variance_power is not None:
            hint, example = "pass {family} too", {"family": "tweedie"}
            raise ArgumentError("variance_power needs a family", hint, parameter="variance_power", settings=example)
        return task, None
    check_choice("family", family, FAMILIES)
    if task == "binary":
        raise ArgumentError("a family is for real outcomes, not for task 'binary'", "leave it out", parameter="family")
    if variance_power is None:
        return "regression", FAMILIES[family]
    check_number("variance_power", variance_power, MIN_POWER, MAX_POWER, hint="1.5 is common for claims per exposure")
    if family != "tweedie" and variance_power != FAMILIES[family]:
        message = f"the variance of family {family!r} has the exponent {FAMILIES[family]:g}; got {variance_power:g}"
        raise ArgumentError(message, "use {family}", parameter="variance_power", settings={"family": "tweedie"})
    return "regression", float(variance_power)


def fit_noise(rows: AuditRows, grid: SegmentGrid, settings: AuditSettings) -> Noise | None:
    """Estimate the noise of real outcomes; None if outcomes are probabilities."""
    if rows.real and settings.adjust == "max":
        reason = "draws outcomes from predicted probabilities, and cannot be used for real outcomes"
        raise ArgumentError(f"adjust='max' {reason}", "use {adjust}", parameter="adjust", settings={"adjust": "holm"})
    if settings.family is None or settings.variance_power is None:
        return fit_pooled_noise(rows, grid) if rows.real else None
    if not rows.real:
        raise ArgumentError("a family is for real outcomes", "read the rows with {task}", settings={"task": "regression"})
    return fit_family_noise(rows, settings.family, settings.variance_power)


def fit_family_noise(rows: AuditRows, family: str, power: float) -> FamilyNoise:
    """Estimate the dispersion of outcomes of a family in one pass; raise if outcomes or predictions are impossible."""
    totals = rows.map_reduce(partial(_family_pass, power), _add_family)[0]
    check_scale(totals.largest)
    _check_family(family, power, totals)
    n, pearson, square, variance, cube, third, whole = totals.sums.tolist()
    dispersion = max(pearson / n, square / variance, 1.0 if family == "poisson" else 0.0)
    if not dispersion <= MAX_DISPERSION:
        message = f"outcomes vary {dispersion:.3g} times as much as family {family!r} allows: a prediction is nearly 0"
        raise DataError(message, "leave rows with predictions near 0 out, or leave the family out")
    factor = max(1.0, cube / (power * dispersion**2 * third)) if dispersion > 0 else 1.0
    return FamilyNoise(family, power, pearson / n, dispersion, factor, whole / n)


class FamilyTotals(NamedTuple):
    """Sums over rows for `FamilyNoise`, invalid rows (how many, and the lowest of their values), zeros, largest value."""

    sums: FloatArray
    predictions: tuple[int, float]
    outcomes: tuple[int, float]
    zeros: int
    largest: float


def _family_pass(power: float, partition: ScorePartition) -> FamilyTotals:
    totals = FamilyTotals(np.zeros(7), (0, 0.0), (0, 0.0), 0, 0.0)
    for chunk in partition.chunks:
        rows = chunk.rows
        w, e, p = rows.w if len(rows.w) else np.ones(len(rows)), rows.e, rows.p
        y, negative = _residuals(rows) + p, _is_negative(rows)
        counts = w * y
        with np.errstate(invalid="ignore", divide="ignore", over="ignore", under="ignore"):
            scale = w * p**power
            more = [
                len(rows), np.sum(e**2 / scale), np.sum(e**2), scale.sum(), np.sum(e**3), np.sum(w * p ** (2 * power - 1)),
                np.sum(np.abs(counts - np.round(counts)) <= WHOLE * np.maximum(1.0, counts)),
            ]  # fmt: skip
        low = int(np.searchsorted(p, 0.0, side="right"))
        invalid = (low, float(p[0])), (int(negative.sum()), float(y.min()))
        zeros = len(rows) - int(_is_nonzero(rows).sum())
        totals = _add_family(totals, FamilyTotals(np.array(more), *invalid, zeros, largest_value(rows)))
    return totals


def _add_family(one: FamilyTotals, other: FamilyTotals) -> FamilyTotals:
    pairs = (one.predictions, other.predictions), (one.outcomes, other.outcomes)
    predictions, outcomes = ((a[0] + b[0], min(a[1], b[1])) for a, b in pairs)
    return FamilyTotals(
        one.sums + other.sums, predictions, outcomes, one.zeros + other.zeros, max(one.largest, other.largest)
    )


def _check_family(family: str, power: float, totals: FamilyTotals) -> None:
    """Raise if a family cannot have these predictions or outcomes."""
    (predictions, lowest), (outcomes, low) = totals.predictions, totals.outcomes
    hint = "leave those rows out, or leave the family out"
    if predictions:
        message = f"family {family!r} needs positive predictions; {predictions:,} are not, the lowest is {lowest:g}"
        raise DataError(message, hint)
    if outcomes:
        raise DataError(f"family {family!r} needs outcomes of at least 0; {outcomes:,} are negative, as {low:g}", hint)
    if power >= FAMILIES["gamma"] and totals.zeros > MAX_ZEROS * totals.sums[0]:
        settings = {"family": "tweedie", "variance_power": 1.5}  # amounts with zeros have a power below 2
        message = f"family {family!r} with variance power {power:g} needs positive outcomes; {totals.zeros:,} are 0"
        hint = "use {family} and {variance_power}, or audit the rows with positive outcomes only"
        raise DataError(message, hint, parameter="family", settings=settings)


def unexplained_zeros(nonzero: FloatArray, expected: FloatArray, cells: int) -> BoolArray:
    """Return where significantly more outcomes are zero than at the same scores elsewhere; ``cells`` are compared in all.

    By the Poisson distribution, whose tail is heavier than that of a sum of 0/1 variables, and Bonferroni's bound.
    """
    from scipy.special import pdtr

    return np.asarray((nonzero * MAX_ZERO_RATIO < expected) & (pdtr(nonzero, expected) * cells <= ZERO_LEVEL))


def difference_variance(tally: Tally) -> FloatArray:
    """Return the variance of sum w (y - p) by successive differences in score order, averaged over all orders within ties.

    n / (n-1) [sum_j SS_j + 1/2 sum_j (V_j + V_{j+1} + (m_j - m_{j+1})^2)] over distinct scores j, with mean m_j, sum of
    squares SS_j and variance V_j of w (y - p) (von Neumann 1941 without ties). NaN for fewer than two rows.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        stretch = np.where(tally.rows > 1, tally.rows / (tally.rows - 1.0), np.nan)
    return np.asarray(stretch * (tally.state[:, sums.WITHIN] + 0.5 * tally.state[:, sums.BETWEEN]))


def fit_pooled_noise(rows: AuditRows, grid: SegmentGrid) -> PooledNoise:
    """Estimate the noise of real outcomes in four passes over the rows (`partitions.NOISE_PASSES`), three without zeros."""
    ranges = rows.map_reduce(_range_pass, operator.or_)[0]
    first, offsets = 0, {}
    for number in sorted(ranges):
        offsets[number] = first
        first += ranges[number][0]
    check_scale(max(largest for *_, largest in ranges.values()))
    centre = sum(residual for _, residual, *_ in ranges.values()) / rows.rows
    nonzero = sum(count for _, _, count, *_ in ranges.values())
    positive = min(lowest for *_, lowest, _ in ranges.values()) > 0
    lowest_mean = -math.inf if any(negative for *_, negative, _, _ in ranges.values()) else 0.0
    if nonzero < min(MIN_NONZERO_ROWS, rows.rows / 2):
        reason = f"only {nonzero} outcomes are not zero, too few to estimate their noise"
        return PooledNoise(np.zeros(1), np.zeros(1), np.zeros(1), factors=_no_factors(grid), reason=reason)
    bins = int(np.clip(rows.rows // ROWS_PER_BIN, 1, MAX_BINS))
    by_bin = rows.map_reduce(partial(_bin_pass, offsets, rows.rows, bins, centre), np.add)[0]
    n, some, score, residual, square = merge_bins(by_bin).T
    mean = residual / n
    variance = np.maximum(square - n * mean**2, 0.0) / np.maximum(n - 1, 1)
    slope = variance_slope(score / n, variance) if positive else 0.0
    share = some / n if nonzero < rows.rows else None
    noise = PooledNoise(
        score / n, mean + centre, variance, slope=slope, nonzero=share, lowest_mean=lowest_mean, rows=rows.rows,
        outcomes=nonzero,
    )  # fmt: skip
    return _fit_shape(noise, rows, grid)


def _no_factors(grid: SegmentGrid) -> tuple[FloatArray, ...]:
    return tuple(np.ones(len(counts)) for counts in grid.counts)


def _fit_shape(noise: PooledNoise, rows: AuditRows, grid: SegmentGrid) -> PooledNoise:
    """Return the noise with skewness, kurtosis and factors of levels; columns with many levels take several passes."""
    coarse = int(np.clip(rows.rows // ROWS_PER_COARSE_BIN, 1, MAX_COARSE_BINS))
    sizes = [BYTES_PER_LEVEL * len(counts) for counts in grid.counts]
    powers: FloatArray | None = None
    levels: list[FloatArray] = []
    for batch in batches(range(len(sizes)), sizes, rows.max_result_bytes) or [[]]:
        work = partial(_shape_pass, noise, coarse, batch, [len(grid.counts[column]) for column in batch])
        first, *more = rows.map_reduce(work, _add_arrays)[0]
        powers = first if powers is None else powers
        levels += more
    assert powers is not None
    skewness, kurtosis = standardised_cumulants(powers)
    factors = tuple(level_factors(one, kurtosis, noise.slope, grid.min_rows) for one in levels)
    zeros = () if noise.nonzero is None else _find_zero_cells(noise, rows, grid)
    return replace(noise, skewness=skewness, kurtosis=kurtosis, factors=factors, zeros=zeros)


def _find_zero_cells(noise: PooledNoise, rows: AuditRows, grid: SegmentGrid) -> tuple[ZeroCells, ...]:
    """Find the levels and the pairs of levels with more zeros than the scores explain."""
    combinations = [one for one in single_and_paired_columns(rows.rows, grid) if math.prod(one.shape) <= MAX_ZERO_CELLS]
    sizes = [BYTES_PER_CELL * math.prod(combination.shape) for combination in combinations]
    found = []
    for batch in batches(combinations, sizes, min(rows.max_result_bytes, BYTES_PER_CELL * MAX_ZERO_CELLS)):
        by_cell = rows.map_reduce(partial(_zero_pass, noise, batch), _add_arrays)[0]
        for combination, (n, nonzero, expected) in zip(batch, by_cell, strict=True):
            compared = len(combinations) * int(np.count_nonzero(n))  # every combination has an equal share of the level
            cells = np.flatnonzero(unexplained_zeros(nonzero, expected, compared))
            if len(cells):
                codes, n, k = replace(combination, cells=Cells(cells, n[cells])).segments(), n[cells], nonzero[cells]
                few = k < np.minimum(MIN_CELL_NONZERO, n / 2)
                found.append(ZeroCells(combination.columns, codes, (n - k) / (k + 1.0), few))
    return tuple(found)


# Passes over the rows


def _residuals(rows: SortedRows) -> FloatArray:
    return rows.e / rows.w if len(rows.w) else rows.e


def _is_negative(rows: SortedRows) -> BoolArray:
    """Return which outcomes, sums of prediction and residual, are below zero by more than rounding."""
    return np.asarray(_residuals(rows) + rows.p < -1e-12 * np.abs(rows.p))


def largest_value(rows: SortedRows) -> float:
    """Return the largest absolute value among predictions, and residuals as they are and times their weights."""
    return max(float(np.abs(values).max(initial=0.0)) for values in (rows.p, rows.e, _residuals(rows)))


def check_scale(largest: float) -> None:
    """Raise if powers of outcomes and predictions, of which ``largest`` is the largest value, overflow or vanish."""
    if largest > 0 and not MIN_SCALE <= largest <= MAX_SCALE:
        unit = "larger" if largest > MAX_SCALE else "smaller"
        message = f"outcomes and predictions are at most {largest:.3g}: sums of their powers are not finite, or 0"
        raise DataError(message, f"measure both in a {unit} unit")


def _is_nonzero(rows: SortedRows) -> FloatArray:
    """Return 1 for rows whose outcome is not zero, else 0."""
    zero = -rows.p * rows.w if len(rows.w) else -rows.p
    return np.asarray(rows.e != zero, np.float64)


def _range_pass(partition: ScorePartition) -> dict[int, ScoreRange]:
    """Return the `ScoreRange` of the partition, by its number."""
    count, residual, nonzero, negative, lowest, largest = 0, 0.0, 0, False, np.inf, 0.0
    for chunk in partition.chunks:
        count += len(chunk.rows)
        residual += float(_residuals(chunk.rows).sum())
        nonzero += int(_is_nonzero(chunk.rows).sum())
        negative = negative or bool(_is_negative(chunk.rows).any())
        lowest = min(lowest, float(chunk.rows.p[0]))
        largest = max(largest, largest_value(chunk.rows))
    return {partition.number: (count, residual, nonzero, negative, lowest, largest)}


def _bin_pass(offsets: dict[int, int], total: int, bins: int, centre: float, partition: ScorePartition) -> FloatArray:
    """Return by score bin: rows, non-zero outcomes, and sums of scores, residuals and their squares.

    Bins have equal counts, but rows of equal score share a bin. ``offsets`` has the number of rows with lower scores, by
    partition number; residuals are relative to ``centre``.
    """
    by_bin = np.zeros((bins, 5))
    rank = offsets[partition.number]
    last, start = np.nan, rank  # score and rank of the first row of the step under way
    for chunk in partition.chunks:
        rows = chunk.rows
        first = np.flatnonzero(np.diff(rows.step, prepend=rows.step[:1] - 1))
        ranks = rank + first
        if rows.p[0] == last:  # a score continues from the chunk before
            ranks[0] = start
        place = np.repeat(ranks * bins // total, np.diff(first, append=len(rows)))
        e = _residuals(rows) - centre
        for column, values in enumerate((None, _is_nonzero(rows), rows.p, e, e * e)):
            by_bin[:, column] += np.bincount(place, values, bins)
        rank += len(rows)
        last, start = rows.p[-1], int(ranks[-1])
    return by_bin


def _shape_pass(
    noise: PooledNoise, coarse: int, columns: Sequence[int], sizes: Sequence[int], partition: ScorePartition
) -> list[FloatArray]:
    """Return sums of powers 0 to 4 of standardised residuals by coarse bin and, per column, sums by level.

    These are numbers of rows, sums of residuals, predictions, squared residuals, variances and squared variances.
    """
    out = [np.zeros((coarse, 5)), *(np.zeros((size, 6)) for size in sizes)]
    edges = 0.5 * (noise.score[1:] + noise.score[:-1])
    for chunk in partition.chunks:
        rows = chunk.rows
        variance = noise.row_variance(rows.p)
        off = _residuals(rows) - np.interp(rows.p, noise.score, noise.mean)
        z = np.divide(off, np.sqrt(variance), out=np.zeros(len(rows)), where=variance > 0)
        place = np.searchsorted(edges, rows.p, side="right") * coarse // len(noise.score)
        for power, values in enumerate(_powers(z)):
            out[0][:, power] += np.bincount(place, values, coarse)
        v = variance * rows.w**2 if len(rows.w) else variance
        expected = rows.p * rows.w if len(rows.w) else rows.p
        of_rows = np.ones(len(rows)), rows.e, expected, rows.e**2, v, v**2
        for by_level, column in zip(out[1:], columns, strict=True):
            codes = chunk.codes[column]
            inside = slice(None) if (codes >= 0).all() else codes >= 0
            for name, values in enumerate(of_rows):
                by_level[:, name] += np.bincount(codes[inside], values[inside], len(by_level))
    return out


def _zero_pass(noise: PooledNoise, combinations: Sequence[Combination], partition: ScorePartition) -> list[FloatArray]:
    """Return (3, cells) for each combination: rows, outcomes other than zero, and those expected at their scores."""
    assert noise.nonzero is not None
    out = [np.zeros((3, math.prod(combination.shape))) for combination in combinations]
    for chunk in partition.chunks:
        nonzero, expected = _is_nonzero(chunk.rows), np.interp(chunk.rows.p, noise.score, noise.nonzero)
        for by_cell, combination in zip(out, combinations, strict=True):
            parent, code = cell_codes([combination], chunk)[0]
            inside = (parent >= 0) & (code >= 0)
            cell = parent[inside].astype(np.int64) * combination.shape[1] + code[inside]
            for row, values in zip(by_cell, (None, nonzero[inside], expected[inside]), strict=True):
                row += np.bincount(cell, values, len(row))
    return out


def _powers(z: FloatArray) -> Iterator[FloatArray]:
    power = np.ones(len(z))
    for _ in range(5):
        yield power
        power = power * z


def _add_arrays(one: list[FloatArray], other: list[FloatArray]) -> list[FloatArray]:
    return [a + b for a, b in zip(one, other, strict=True)]


# Estimates from sums


def merge_bins(by_bin: FloatArray) -> FloatArray:
    """Merge neighbouring score bins until each has MIN_NONZERO outcomes other than zero; ``by_bin``: see `_bin_pass`.

    Where most outcomes are zero (claims, rare counts), a bin with few others would have nearly no variance by chance.
    """
    merged = [np.zeros(by_bin.shape[1])]
    for row in by_bin:
        if merged[-1][BIN_NONZERO] >= MIN_NONZERO:
            merged.append(np.zeros(by_bin.shape[1]))
        merged[-1] = merged[-1] + row
    if merged[-1][BIN_NONZERO] < MIN_NONZERO and len(merged) > 1:
        rest = merged.pop()
        merged[-1] = merged[-1] + rest
    return np.array(merged)


def variance_slope(score: FloatArray, variance: FloatArray) -> float:
    """Return the slope of the log variance on the log of positive scores less its standard error, from 0 to MAX_SLOPE.

    It is 0 unless at least MIN_SLOPE_BINS bins have a variance.
    """
    some = variance > 0
    if some.sum() < MIN_SLOPE_BINS:
        return 0.0
    x, y = np.log(score[some]), np.log(variance[some])
    x, y = x - x.mean(), y - y.mean()
    slope = (x @ y) / (x @ x)
    error = np.sqrt(np.sum((y - slope * x) ** 2) / (len(x) - 2) / (x @ x))
    return float(np.clip(slope - error, 0.0, MAX_SLOPE))


def standardised_cumulants(powers: FloatArray) -> tuple[float, float]:
    """Return skewness and excess kurtosis over all bins, each bin standardised; ``powers``: sums of z^0 to z^4 by bin."""
    powers = powers[powers[:, 0] > 0]
    n, first, second, third, fourth = powers.T
    m = first / n
    variance = second / n - m**2
    some = variance > 1e-12 * (second / n)
    n, m, second, third, fourth, scale = (column[some] for column in (n, m, second, third, fourth, np.sqrt(variance)))
    if not len(n):
        return 0.0, 0.0
    skewness = (third - 3 * m * second + 2 * n * m**3) / scale**3
    kurtosis = (fourth - 4 * m * third + 6 * m**2 * second - 3 * n * m**4) / scale**4
    return float(skewness.sum() / n.sum()), float(kurtosis.sum() / n.sum() - 3.0)


def level_factors(by_level: FloatArray, kurtosis: float, slope: float, min_rows: int) -> FloatArray:
    """Return the factor of the variance of each level of a column, at least 1; 1 for levels that are not tested.

    With Q = sum u^2 - (sum u)^2 / n, V the sum of modelled variances, h = max(1, observed / expected)^slope, the excess
    that a rise of the mean explains, and se the standard error of Q / V, the factor is max(1, Q / (V h) - se).
    """
    n, residual, expected, square, variance, variance2 = by_level.T
    with np.errstate(invalid="ignore", divide="ignore"):
        rise = np.where(expected > 0, np.maximum(1.0, 1.0 + residual / expected), 1.0) ** slope
        error = np.sqrt(np.maximum(variance2 * (kurtosis + 2.0) / variance**2, 2.0 / n))
        excess = (square - residual**2 / n) / (variance * rise) - error
    usable = (n >= max(min_rows, 2)) & (variance > 0)
    return np.where(usable, np.maximum(1.0, np.nan_to_num(excess, nan=1.0)), 1.0)
