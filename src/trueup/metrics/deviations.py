"""Local errors with effective sizes, limits and p-values, adjusted for having examined every point.

Limits and p-values are large-deviation bounds, valid for few neighbours and for rates near 0 and 1.

A local mean is sum a_i y_i / sum a_i with a_i = w_i k_i and outcomes of rates r_i. With a = sum a_i and A the largest a_i,
the probability that it deviates by x or more to one side is at most exp(-E) for each of three exponents:

- x^2 n / (2 G), n = a^2 / sum a_i^2 (Kish): a Bernoulli sum is no wider than a normal one of variance G. Towards 1, with
  rate r: G = (1 - 2r) / (2 ln((1-r)/r)) for r < 1/2 (Kearns and Saul 1998, "Large deviation methods for approximate
  probabilistic inference"), and r (1-r) for r >= 1/2, where any tilt towards 1 reduces the variance.
- Bennett's (1962), (v/b^2) h(bx/v) with v = r (1-r) / n, b = A/a and h(u) = (1+u) ln(1+u) - u.
- (a/A) KL(observed, expected), as for a/A rows of equal weight (Hoeffding 1963): ln E exp(t a_i y_i) is convex in a_i and 0
  at 0, hence at most a_i/A of its value at A, and concave in the rate.

Each bounds the same event, so that the largest exponent does too. The first is exact for one neighbour, the third best for
equally weighted neighbours, the second for many small weights. G and r (1-r) are concave in r: at the mean rate, weighted
by a_i^2, they are at least their average.

With many neighbours exp(-E) is several times too large; there Q(sqrt(2 E(x - b))) is the smaller bound, Q the normal tail
and x - b the deviation minus one jump. For equally weighted neighbours and outcomes of 0 and 1 it is a theorem (Zubkov and
Serov 2013, "A complete proof of universal inequalities for the distribution function of the binomial law"; Hoeffding 1956
for unequal rates). For others it is an extension, which the tests compare with exact distributions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_fraction, check_integer
from trueup.data.columns import frame_like, to_jsonable
from trueup.kernels.pairs import LAPLACE, distances, self_distances
from trueup.kernels.threads import Workers
from trueup.metrics.inference import step_down
from trueup.metrics.local import Neighbourhoods, Options, check_gamma, read_neighbourhoods

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.metrics.binned import Closed, Strategy
    from trueup.metrics.local import Kernel, Query

BISECTIONS = 24  # limits are accurate to 1e-7 of their width, and never too narrow
SERIES_BELOW = 1e-4  # arguments for which a series is more accurate than the formula
LARGE_POWER = 16.0  # of the kernel: its sum is close to its largest term
LOG_P_TOLERANCE = 1e-4  # p-values this close are equal up to rounding
COLUMNS = ("error", "size", "noise", "low", "high", "sigma", "p_value", "p_adjusted")
STREAM = int.from_bytes(b"near", "big")  # of random numbers, apart from those that simulated the data
MAX_DRAWS = 1_000_000
DRAWS_PER_BATCH = 32  # draws that share the distances of the rows
BATCH_NUMBERS = 16_000_000  # held in memory for one batch of draws
BLOCK = 4096  # p-values at a time: they stay in the cache


class LocalMeans(NamedTuple):
    """Means over the neighbourhood of each point, in the symbols of the module.

    ``expected`` is the mean confidence weighted by a_i and ``expected2`` by a_i^2, ``size`` is n, ``largest`` is A/a.
    """

    expected: FloatArray
    expected2: FloatArray
    size: FloatArray
    largest: FloatArray


def log_pvalue(means: LocalMeans, observed: FloatArray) -> FloatArray:
    """Return the logarithm of the two-sided p-value of a mean outcome, if the confidences are calibrated."""
    return np.minimum(0.0, math.log(2.0) - _log_bound(means, means.expected, observed))


def limit_rates(means: LocalMeans, observed: FloatArray, level: float) -> FloatArray:
    """Return the lowest and the highest mean rate that the observation does not exclude, each side at (1 - level)/2.

    The rate weighted by a_i^2 is assumed to exceed the rate weighted by a_i by as much as for the confidences.
    """
    limits, threshold = np.empty((2, len(observed))), math.log(2.0 / (1.0 - level))
    for start in range(0, len(observed), BLOCK):
        block = slice(start, start + BLOCK)
        some, seen = LocalMeans(*(column[block] for column in means)), observed[block]
        reach = np.sqrt(threshold / (2.0 * some.size))  # Hoeffding's: the first exponent reaches the threshold there
        for side, end in enumerate((np.maximum(seen - reach, 0.0), np.minimum(seen + reach, 1.0))):
            excluded, allowed = end, seen
            for _ in range(BISECTIONS):
                middle = 0.5 * (excluded + allowed)
                beyond = _log_bound(some, middle, seen) >= threshold
                excluded, allowed = np.where(beyond, middle, excluded), np.where(beyond, allowed, middle)
            limits[side, block] = excluded
    return limits


def _log_bound(means: LocalMeans, rate: FloatArray, observed: FloatArray) -> FloatArray:
    """Return minus the logarithm of the one-sided bound of the module: the larger of E and -ln Q(sqrt(2 E(x - b)))."""
    from scipy.special import log_ndtr

    jump = means.largest
    nearer = np.where(observed > rate, np.maximum(observed - jump, rate), np.minimum(observed + jump, rate))
    tail = log_ndtr(-np.sqrt(2.0 * _exponent(means, rate, nearer)))
    return np.where(observed == rate, 0.0, np.maximum(_exponent(means, rate, observed), -tail))


def _exponent(means: LocalMeans, rate: FloatArray, observed: FloatArray) -> FloatArray:
    """Return E, the largest of the three exponents of the module, for mean rate ``rate`` and mean outcome ``observed``."""
    from scipy.special import rel_entr

    distance = np.abs(observed - rate)
    shifted = np.clip(rate + (means.expected2 - means.expected), 0.0, 1.0)
    upward = observed > rate
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # If the shift leaves [0, 1], the rate itself is used; otherwise it makes the bounds slightly wider.
        spread = np.maximum(_proxy_variance(rate, upward), _proxy_variance(shifted, upward))
        normal = distance**2 * means.size / (2.0 * spread)
        variance = np.maximum(rate * (1.0 - rate), shifted * (1.0 - shifted)) / means.size
        u = means.largest * distance / variance
        series = distance**2 / (2.0 * variance) * (1.0 - u / 3.0 + u**2 / 6.0)
        bennett = np.where(u < SERIES_BELOW, series, variance / means.largest**2 * ((1.0 + u) * np.log1p(u) - u))
        hoeffding = (rel_entr(observed, rate) + rel_entr(1.0 - observed, 1.0 - rate)) / means.largest
        return np.where(distance > 0, np.fmax(np.fmax(normal, bennett), hoeffding), 0.0)


def _proxy_variance(rate: FloatArray, upward: BoolArray) -> FloatArray:
    """Return G of the module, the variance of a normal bound on a Bernoulli tail, towards 1 if ``upward``, else 0."""
    other = 1.0 - rate
    odds = np.where(upward, 1.0, -1.0) * (np.log1p(-rate) - np.log(rate))  # positive for a rare outcome
    tilt = np.abs(other - rate)
    near = tilt < SERIES_BELOW
    wide = np.where(near, 0.25 * (1.0 - tilt**2 / 3.0), tilt / (2.0 * np.where(near, 1.0, np.abs(odds))))
    return np.where(odds > 0, wide, rate * other)


@dataclass(frozen=True, eq=False, repr=False)
class LocalErrors:
    """The signed local calibration error of each point, and its uncertainty.

    ``error`` is mean confidence minus mean hit among the neighbours; ``size`` the effective number of rows (Kish);
    ``noise`` the standard deviation of the error if the confidences are calibrated, and ``sigma`` the error in units of it.
    ``low`` and ``high`` are pointwise limits of the error, at ``level``. ``p_value`` is two-sided, for calibrated
    confidences, and valid for any number of neighbours. ``p_adjusted`` accounts for having examined every point: it bounds
    the probability that calibrated confidences would show as much evidence anywhere; it comes from a bound, or from
    ``draws`` simulated outcomes if there are any. For a point without neighbours ``size`` is 0 and the others are NaN.
    ``neighbourhoods`` counts the distinct neighbourhoods.
    """

    gamma: float | None
    level: float
    neighbourhoods: int
    draws: int
    points: tuple[FloatArray, IntArray, float, Any]
    """Positions of the points, their cells, the factor of distances, and the kernel."""
    error: FloatArray
    size: FloatArray
    noise: FloatArray
    low: FloatArray
    high: FloatArray
    sigma: FloatArray
    p_value: FloatArray
    p_adjusted: FloatArray
    log_p: FloatArray
    """The logarithm of ``p_value``, finite even where that is 0."""

    def __len__(self) -> int:
        return len(self.error)

    def worst(self, k: int = 10, *, distinct: bool = True) -> IntArray:
        """Return the k points with the most evidence, strongest first: by p-value, and by sigma among equals.

        A large error among three neighbours is no evidence; a small one among thousands may be.

        Parameters
        ----------
        k : int
            Maximum number of points.
        distinct : bool
            Whether to skip points that share most of their neighbourhood with a point already listed: those in the same
            bin at which that one has a kernel above 1/2, as |phi - phi'|_1 < d gamma ln 2; for groups, the same bin and
            group. Fewer than k may remain.
        """
        check_integer("k", k, 0)
        order = np.lexsort((-np.abs(self.sigma), self.log_p))
        order = np.asarray(order[~np.isnan(self.error[order])], np.int64)
        if not distinct:
            return order[:k]
        listed: list[int] = []
        points, cell, scale, kernel = self.points
        while len(order) and len(listed) < k:
            first, order = int(order[0]), order[1:]
            listed.append(first)
            if len(listed) < k:
                near = cell[order] == cell[first]
                with np.errstate(over="ignore"):
                    distance = scale * distances(kernel, points[order[near]], points[[first]])[:, 0]
                    own = scale * float(self_distances(kernel, points[[first]])[0])
                near[near] = distance - own < math.log(2.0)  # a kernel above half of that of the point itself
                order = order[~near]
        return np.array(listed, np.int64)

    @property
    def worst_p_adjusted(self) -> float:
        """The smallest adjusted p-value: a test of local calibration overall. NaN if no point has neighbours."""
        first = self.worst(1, distinct=False)
        return float(self.p_adjusted[first[0]]) if len(first) else math.nan

    def __repr__(self) -> str:
        points = f"{len(self):,} point{'' if len(self) == 1 else 's'}"
        first = self.worst(1, distinct=False)
        if not len(first):
            return f"<LocalErrors of {points}, none of them with neighbours>"
        row = int(first[0])
        limits = f"({self.low[row]:+.3g} to {self.high[row]:+.3g}; effective size {self.size[row]:,.1f})"
        source = f"{self.draws:,} draw{'' if self.draws == 1 else 's'}" if self.draws else "a bound"
        p_values = f"p {self.p_value[row]:.2g}, {self.p_adjusted[row]:.2g} adjusted for all points (by {source})"
        return f"<LocalErrors of {points}: most evidence at row {row}, {self.error[row]:+.3g} {limits}; {p_values}>"

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, one entry per point, that JSON can represent; non-finite numbers become None."""
        names = ("gamma", "level", "neighbourhoods", "draws", *COLUMNS)
        return {name: to_jsonable(getattr(self, name)) for name in names}

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per point, in order, as a frame of the library of ``like``, or as a dict of arrays."""
        return frame_like({name: getattr(self, name).copy() for name in COLUMNS}, like)


def local_errors(
    phi: ArrayLike,
    confidence: ArrayLike,
    hit: ArrayLike,
    weight: ArrayLike | None = None,
    *,
    gamma: float | None = None,
    level: float = 0.95,
    draws: int = 0,
    random_state: int = 0,
    bins: int = 15,
    strategy: Strategy = "width",
    query: Query | None = None,
    leave_one_out: bool = False,
    kernel: Kernel = "laplace",
    tolerance: float | None = None,
    threads: int | None = None,
    device: str = "cpu",
    closed: Closed = "right",
) -> LocalErrors:
    """Compute local calibration errors with their effective sample sizes, limits and p-values.

    Parameters as for `lce`, except ``signed``, and these:

    Parameters
    ----------
    level : float
        Coverage probability of the limits.
    draws : int
        Number of simulated outcomes to adjust the p-values for having examined every point; 0 adjusts by a bound, which
        costs nothing and is far too conservative if neighbourhoods overlap. 199 or 999 are common.
    random_state : int
        Seed of the draws.

    Notes
    -----
    With a_i = w_i k_i and p the confidences, size = (sum a)^2 / sum a^2 and noise = sqrt(sum a^2 p(1-p)) / sum a. Weights
    state importance here: a row of weight 2 is not two rows.

    The p-value bounds the probability of an error this large, for any number of neighbours: twice the smallest of several
    large-deviation bounds (`trueup.metrics.deviations` states them). Normal limits would cause too many false alarms
    if neighbours are few or confidences near 0 and 1. At 95%, the limits are about a fifth wider than normal ones for a
    hundred equally weighted rows, and half as wide again for as many unequally weighted ones.

    The limits contain the errors that the same bounds do not exclude, if the neighbours of a point have about the same
    error. They exclude 0 if the p-value is below 1 - level.

    By the bound the adjusted p-value is p M(p), where M(p) counts the distinct neighbourhoods that could have had a p-value
    of p or less (Tarone 1990, "A modified Bonferroni method for discrete data"): those of few rows, which cannot, do not
    count. It is conservative, since neighbourhoods overlap. Points share a neighbourhood if they have the same position and
    bin; with ``leave_one_out`` none do.

    By ``draws`` it is the share of draws, the observed data counted as one, in which outcomes drawn from the confidences
    have a p-value as small at any point, stepping down (Westfall and Young 1993, "Resampling-based multiple testing"). It
    accounts for the overlap of neighbourhoods, and is at least 1 / (draws + 1). Soft outcomes vary less than drawn ones.
    The draws depend on the order of the rows; their distribution does not.

    References
    ----------
    Luo, Bhatnagar, Bai, Zhao, Wang, Xiong, Savarese, Ermon, Schmerling & Pavone (2022), "Local Calibration: Metrics and
    Recalibration", arXiv:2102.10809, equation 4.

    Examples
    --------
    >>> phi = np.repeat([0.0, 1.0], [3, 60])
    >>> hit = np.append([1, 1, 1], np.tile([1, 0, 0, 0, 0], 12))
    >>> errors = local_errors(phi, np.full(63, 0.5), hit, gamma=0.01)
    >>> errors
    <LocalErrors of 63 points: most evidence at row 3, +0.3 (+0.169 to +0.4; effective size 60.0); p 6.1e-06, 6.1e-06 ...>
    >>> float(errors.error[0]), round(float(errors.p_value[0]), 2)  # the largest error is not significant
    (-0.5, 0.25)
    """
    check_fraction("level", level, hint="0.95 gives a 95% band")
    check_integer("draws", draws, 0, MAX_DRAWS, hint="199 or 999 are common; 0 adjusts by a bound")
    check_integer("random_state", random_state, 0, hint="it seeds the draws")
    options = Options(bins, strategy, query, leave_one_out, kernel, tolerance, threads, device, closed)
    reach = check_gamma(gamma, kernel)
    rows = read_neighbourhoods(phi, confidence, hit, weight, options)
    means, error, noise, used = _local_means(rows, reach)
    observed = np.clip(means.expected - error, 0.0, 1.0)
    log_p = log_pvalue(means, observed)
    number = rows.distinct(ignore_distance=math.isinf(reach))[used]
    first, which = np.unique(number, return_index=True, return_inverse=True)[1:]
    unique = LocalMeans(*(column[first] for column in means))
    if draws:
        points, limit = np.flatnonzero(used)[first], log_p[first] + LOG_P_TOLERANCE
        adjusted = _adjust_by_draws(rows, rows.scale(reach), points, unique, limit, int(draws), int(random_state))[which]
    else:
        # Multiply by the number of distinct neighbourhoods that could have a p-value as small.
        extremes = (np.zeros(len(first)), np.ones(len(first)))
        smallest = np.minimum(*(log_pvalue(unique, extreme) for extreme in extremes))
        possible = np.searchsorted(np.sort(smallest), log_p + LOG_P_TOLERANCE, side="right")
        adjusted = np.asarray(np.minimum(1.0, np.exp(log_p) * np.maximum(possible, 1)))
    lowest, highest = limit_rates(means, observed, float(level))
    with np.errstate(divide="ignore", invalid="ignore"):
        sigma = np.where(error == 0, 0.0, error / noise)
    low, high = means.expected - highest, means.expected - lowest
    columns = [error, means.size, noise, low, high, sigma, np.exp(log_p), adjusted, log_p]
    values = np.full((len(columns), len(used)), math.nan)
    values[1] = 0.0
    values[:, used] = columns
    places = rows.query, rows.query_cell, rows.scale(reach), LAPLACE if kernel == "group" else kernel
    return LocalErrors(None if gamma is None else reach, float(level), len(first), int(draws), places, *values)


def _local_means(rows: Neighbourhoods, gamma: float) -> tuple[LocalMeans, FloatArray, FloatArray, BoolArray]:
    """Return means, errors and noise of the points that have neighbours, and a mask of these points."""
    p, w = rows.confidence, rows.weight
    columns = (w, w * (p - rows.hit), w * p, w**2, w**2 * p, w**2 * p * (1 - p), np.ones(len(p)))
    scale = rows.scale(gamma)
    # If each row is its own neighbour, the largest kernel is 1 and need not be estimated.
    named = not callable(rows.options.kernel)  # a function may exceed 1, also at a point itself
    alone = rows.options.query is None and not rows.options.leave_one_out
    powers = (1.0, 2.0) if alone and named else (1.0, 2.0, LARGE_POWER)
    sums = rows.sums(columns, [power * scale for power in powers])
    used = sums.total[0, :, 0] > 0
    once, squared = sums.total[0, used], sums.total[1, used]
    # Sums of two scales are combined as logarithms: each has its own shift, and their squares may underflow.
    mass, shift = np.log(once[:, 0]), scale * (sums.shift - sums.shift[0])[:, used]
    size = np.exp(np.maximum(2 * (mass + shift[1]) - np.log(squared[:, 3]), 0.0))
    heaviest = np.zeros(int(max(rows.cell.max(), rows.query_cell.max())) + 1)
    np.maximum.at(heaviest, rows.cell, w)
    # The kernel of the nearest row is at most 1, and its power at most the sum of all; both with the shift of the mass.
    nearest = scale * sums.shift[0, used]
    if len(powers) > 2:
        largest_kernel = np.log(sums.total[2, used, 6]) / LARGE_POWER - shift[2]
        nearest = np.minimum(nearest, largest_kernel) if named else largest_kernel
    largest = np.log(heaviest[rows.query_cell[used]]) + nearest
    means = LocalMeans(
        np.clip(once[:, 2] / once[:, 0], 0.0, 1.0),
        np.clip(squared[:, 4] / squared[:, 3], 0.0, 1.0),
        size,
        np.exp(np.minimum(largest - mass, 0.0)),
    )
    return means, once[:, 1] / once[:, 0], np.sqrt(squared[:, 5] / squared[:, 3] / size), used


def _adjust_by_draws(
    rows: Neighbourhoods,
    scale: float,
    points: IntArray,
    means: LocalMeans,
    limit: FloatArray,
    draws: int,
    random_state: int,
) -> FloatArray:
    """Adjust p-values by their minimum over all points for outcomes drawn from the confidences, stepping down.

    ``points`` have distinct neighbourhoods with ``means``; ``limit`` their log p-values plus a rounding tolerance.
    """
    random = np.random.default_rng([random_state, STREAM])
    p, w = rows.confidence, rows.weight
    order = np.argsort(limit, kind="stable")
    ranked, points, limit = LocalMeans(*(column[order] for column in means)), points[order], limit[order]

    def count_smaller(errors: FloatArray) -> IntArray:
        """Count, for each rank k, the draws (rows of ``errors``) in which a rank from k on has log p <= limit[k]."""
        log_p = np.empty(errors.shape)
        for start in range(0, len(limit), BLOCK):
            block = slice(start, start + BLOCK)
            some = LocalMeans(*(column[block] for column in ranked))
            log_p[:, block] = log_pvalue(some, np.clip(some.expected - errors[:, block], 0.0, 1.0))
        smallest = np.minimum.accumulate(log_p[:, ::-1], axis=1)[:, ::-1]
        return np.asarray((smallest <= limit).sum(axis=0), np.int64)

    counts = np.zeros(len(order), np.int64)
    workers = Workers(rows.options.threads)
    size = int(np.clip(BATCH_NUMBERS // (len(p) + len(rows.query) + 2 * len(points)), 1, DRAWS_PER_BATCH))
    for start in range(0, draws, size):
        drawn = [w * (p - (random.random(len(p)) < p)) for _ in range(min(size, draws - start))]
        total = rows.sums([w, *drawn], [scale]).total[0, points]
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = (total[:, 1:] / total[:, :1]).T
        step = max(1, BLOCK // max(len(points), 1))
        blocks = [errors[begin : begin + step] for begin in range(0, len(errors), step)]
        counts += sum(workers.map(count_smaller, blocks))
    return step_down(counts, order, draws)
