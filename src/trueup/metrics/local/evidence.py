"""Local errors with their noise: what a neighbourhood can say, and whether it says it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.frame import frame_like, to_jsonable
from trueup.errors import ArgumentError
from trueup.metrics.local import draws as drawing
from trueup.metrics.local.bands import Means, limits, log_pvalue
from trueup.metrics.local.neighbourhoods import Kernel, Neighbourhoods, Options, ask, check_gamma

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.metrics.binned import Strategy
    from trueup.metrics.local.neighbourhoods import At


SHARP = 16.0  # the power of the kernel whose sum is little more than its largest term
SLACK = 1e-4  # a p-value below its least by so small a share is that least, rounded
COLUMNS = ("error", "size", "noise", "low", "high", "sigma", "p_value", "p_adjusted")


class Places(NamedTuple):
    """Where the points lie: coordinates, bins (with groups), and what distances are multiplied by."""

    points: FloatArray
    cell: IntArray
    scale: float

    def near(self, one: int, others: IntArray) -> BoolArray:
        """Say which other points count more than half at a point, in the same bin."""
        found = self.cell[others] == self.cell[one]
        same = np.flatnonzero(found)
        with np.errstate(over="ignore"):
            far = self.scale * np.abs(self.points[others[same]] - self.points[one]).sum(axis=1)
        found[same] = far < math.log(2.0)
        return np.asarray(found)


@dataclass(frozen=True, eq=False, repr=False)
class LocalErrors:
    """The signed local calibration error of each point, and how much of it may be chance.

    ``error`` is mean confidence less mean hit among the neighbours; ``size`` how many rows of equal weight would be as
    noisy (Kish); ``noise`` the standard deviation of the error if the confidences were right, and ``sigma`` the error in
    units of it. ``low`` and ``high`` are pointwise limits of the error, at ``level``. ``p_value`` is two-sided, for right
    confidences, and never too small on average: it holds for any number of neighbours. ``p_adjusted`` accounts for having
    looked at every point: the chance that right confidences would show as much evidence anywhere is no larger; it comes
    from a bound, or from ``draws`` drawn outcomes where there are any. All are NaN, and ``size`` 0, where there are no
    neighbours. ``neighbourhoods`` counts those that differ.
    """

    gamma: float | None
    level: float
    neighbourhoods: int
    draws: int
    places: Places
    error: FloatArray
    size: FloatArray
    noise: FloatArray
    low: FloatArray
    high: FloatArray
    sigma: FloatArray
    p_value: FloatArray
    p_adjusted: FloatArray
    log_p: FloatArray
    """The logarithm of ``p_value``, a number even where that is 0."""

    def __len__(self) -> int:
        return len(self.error)

    def worst(self, k: int = 10, *, apart: bool = True) -> IntArray:
        """Give the k points with the most evidence against them, most first: by p-value, and by noise units among equals.

        A large error among three neighbours is no evidence; a small one among thousands may be.

        Parameters
        ----------
        k : int
            How many points, at most.
        apart : bool
            Whether to pass over points that share most of their neighbourhood with one already listed: those in the same
            bin at which that one has a kernel above 1/2, |phi - phi'|_1 < d gamma ln 2; for groups, the same bin and
            group. Fewer than k may be left.
        """
        if isinstance(k, bool) or not isinstance(k, (int, np.integer)) or k < 0:
            raise ArgumentError(f"k must be a whole number of at least 0; got {k!r}")
        order = np.lexsort((-np.abs(self.sigma), self.log_p))
        order = np.asarray(order[~np.isnan(self.error[order])], np.int64)
        if not apart:
            return order[:k]
        listed: list[int] = []
        while len(order) and len(listed) < k:
            listed.append(int(order[0]))
            if len(listed) < k:
                order = order[1:][~self.places.near(listed[-1], order[1:])]
        return np.array(listed, np.int64)

    @property
    def worst_p_adjusted(self) -> float:
        """The smallest adjusted p-value: a test of local calibration as a whole. NaN if no point has neighbours."""
        first = self.worst(1, apart=False)
        return float(self.p_adjusted[first[0]]) if len(first) else np.nan

    def __repr__(self) -> str:
        points = f"{len(self):,} point{'' if len(self) == 1 else 's'}"
        first = self.worst(1, apart=False)
        if not len(first):
            return f"<LocalErrors of {points}, none of them with neighbours>"
        row = int(first[0])
        found = f"{self.error[row]:+.3g} ({self.low[row]:+.3g} to {self.high[row]:+.3g}; {self.size[row]:,.1f} rows' worth)"
        how = f"{self.draws:,} draw{'' if self.draws == 1 else 's'}" if self.draws else "a bound"
        looked = f"p {self.p_value[row]:.2g}, {self.p_adjusted[row]:.2g} for having looked everywhere (by {how})"
        return f"<LocalErrors of {points}: most evidence at row {row}, {found}; {looked}>"

    def to_dict(self) -> dict[str, Any]:
        """Give plain lists, one entry a point, fit for JSON: what is not finite becomes None."""
        names = ("gamma", "level", "neighbourhoods", "draws", *COLUMNS)
        return {name: to_jsonable(getattr(self, name)) for name in names}

    def to_frame(self, like: Any = None) -> Any:
        """Give one line a point, in their order, in a frame of the library of ``like``; a dict of arrays for None."""
        return frame_like({name: getattr(self, name).copy() for name in COLUMNS}, like)


def local_errors(
    phi: ArrayLike, confidence: ArrayLike, hit: ArrayLike, weight: ArrayLike | None = None, *,
    gamma: float | None = None, bins: int = 15, level: float = 0.95, strategy: Strategy = "width", at: At | None = None,
    leave_one_out: bool = False, kernel: Kernel = "laplace", tolerance: float | None = None, threads: int | None = None,
    device: str = "cpu", draws: int = 0, random_state: int = 0,
) -> LocalErrors:  # fmt: skip
    """Measure local calibration errors with their effective sample sizes, limits and p-values.

    Takes what `lce` takes, and three more.

    Parameters
    ----------
    level : float
        That of the limits.
    draws : int
        How many times outcomes are drawn to adjust the p-values for having looked at every point; 0 adjusts by a bound,
        which costs nothing and is far too cautious where neighbourhoods overlap. 199 or 999 are usual.
    random_state : int
        Seed of the draws.

    Notes
    -----
    With a_i = w_i k_i and p the confidences, size = (sum a)^2 / sum a^2 and noise = sqrt(sum a^2 p(1-p)) / sum a. Weights
    say how much a row counts; here a row of weight 2 is not two rows.

    The p-value bounds the chance of so large an error, whatever the number of neighbours: twice the smallest of a few
    bounds of large deviations (`trueup.metrics.local.bands` states them). Normal limits would give too many alarms where
    neighbours are few or confidences near 0 and 1. The price, at 95%: limits about a fifth wider than normal ones for
    a hundred rows that count alike, and half as wide again for as many that do not.

    The limits are those errors that the same bounds do not rule out, if the neighbours of a point are about equally far
    off. They leave out 0 where the p-value is below 1 - level.

    By the bound the adjusted p-value is p M(p), where M(p) counts the different neighbourhoods that could have had a
    p-value of p or less (Tarone 1990, "A modified Bonferroni method for discrete data"): those of few rows, which cannot,
    cost nothing. It is conservative, since neighbourhoods overlap. Points share a neighbourhood if they lie on the same
    spot, in the same bin; with ``leave_one_out`` none do.

    By ``draws`` it is the share of draws, the rows themselves counted as one, in which outcomes drawn from the confidences
    have a p-value as small at any point, stepping down (Westfall and Young 1993, "Resampling-based multiple testing"). It
    knows how neighbourhoods overlap, and is never below 1 / (draws + 1). Outcomes between 0 and 1 vary less than those
    drawn. The draws fall to the rows in their order: rows in another order have other draws of the same distribution.

    Examples
    --------
    >>> phi = np.repeat([0.0, 1.0], [3, 60])
    >>> hit = np.append([1, 1, 1], np.tile([1, 0, 0, 0, 0], 12))
    >>> found = local_errors(phi, np.full(63, 0.5), hit, gamma=0.01)
    >>> found
    <LocalErrors of 63 points: most evidence at row 3, +0.3 (+0.169 to +0.4; 60.0 rows' worth); p 6.1e-06, 6.1e-06 ...>
    >>> float(found.error[0]), round(float(found.p_value[0]), 2)  # the largest error of all is no news
    (-0.5, 0.25)
    """
    if isinstance(level, bool) or not isinstance(level, (int, float, np.integer, np.floating)) or not 0 < level < 1:
        raise ArgumentError(f"level must lie between 0 and 1; got {level!r}", hint="0.95 gives a 95% band")
    drawing.check(draws, random_state)
    options = Options(bins, strategy, at, leave_one_out, kernel, tolerance, threads, device)
    reach = check_gamma(gamma, kernel)
    asked = ask(phi, confidence, hit, weight, options)
    means, error, noise, some = _means(asked, reach)
    seen = np.clip(means.expected - error, 0.0, 1.0)
    log_p = log_pvalue(means, seen)
    number = asked.distinct(blind=np.isinf(reach))[some]
    first, which = np.unique(number, return_index=True, return_inverse=True)[1:]
    if draws:
        alone, points = Means(*(column[first] for column in means)), np.flatnonzero(some)[first]
        limit = log_p[first] + SLACK
        adjusted = drawing.adjust(asked, asked.scale(reach), points, alone, limit, int(draws), int(random_state))[which]
    else:
        adjusted = _bound(means, log_p, first)
    lowest, highest = limits(means, seen, float(level))
    with np.errstate(divide="ignore", invalid="ignore"):
        sigma = np.where(error == 0, 0.0, error / noise)
    found = (
        error, means.size, noise, means.expected - highest, means.expected - lowest, sigma, np.exp(log_p), adjusted, log_p,
    )  # fmt: skip
    places = Places(asked.asked, asked.asked_cell, asked.scale(reach))
    return LocalErrors(
        None if gamma is None else reach, float(level), len(first), int(draws), places, *_placed(found, some)
    )


def _bound(means: Means, log_p: FloatArray, first: IntArray) -> FloatArray:
    """Multiply p-values by the number of neighbourhoods, one point of each in ``first``, that could have one as small."""
    alone = Means(*(column[first] for column in means))
    least = np.minimum(log_pvalue(alone, np.zeros(len(first))), log_pvalue(alone, np.ones(len(first))))
    might = np.searchsorted(np.sort(least), log_p + SLACK, side="right")
    return np.asarray(np.minimum(1.0, np.exp(log_p) * np.maximum(might, 1)))


def _means(asked: Neighbourhoods, gamma: float) -> tuple[Means, FloatArray, FloatArray, BoolArray]:
    """Sum up the neighbourhoods that have rows; say which those are."""
    p, w = asked.confidence, asked.relative
    columns = (w, w * (p - asked.hit), w * p, w**2, w**2 * p, w**2 * p * (1 - p), np.ones(len(p)))
    scale = asked.scale(gamma)
    # The largest term needs no looking for where each row is its own neighbour.
    powers = (1.0, 2.0) if asked.options.at is None and not asked.options.leave_one_out else (1.0, 2.0, SHARP)
    sums = asked.sums(columns, [power * scale for power in powers])
    some = sums.total[0, :, 0] > 0
    one, two = sums.total[0, some], sums.total[1, some]
    # Sums of two scales meet as logarithms: each has a shift of its own, and their squares may vanish.
    mass, shift = np.log(one[:, 0]), scale * (sums.shift - sums.shift[0])[:, some]
    size = np.exp(np.maximum(2 * (mass + shift[1]) - np.log(two[:, 3]), 0.0))
    most = np.zeros(int(max(asked.cell.max(), asked.asked_cell.max())) + 1)
    np.maximum.at(most, asked.cell, w)
    # k at the nearest row is at most 1, and k^q at most the sum of all; both with the shift of the mass.
    nearest = scale * sums.shift[0, some]
    if len(powers) > 2:
        nearest = np.minimum(nearest, np.log(sums.total[2, some, 6]) / SHARP - shift[2])
    largest = np.log(most[asked.asked_cell[some]]) + nearest
    means = Means(
        np.clip(one[:, 2] / one[:, 0], 0.0, 1.0), np.clip(two[:, 4] / two[:, 3], 0.0, 1.0), size,
        np.exp(np.minimum(largest - mass, 0.0)),
    )  # fmt: skip
    return means, one[:, 1] / one[:, 0], np.sqrt(two[:, 5] / two[:, 3] / size), some


def _placed(columns: tuple[FloatArray, ...], some: BoolArray) -> list[FloatArray]:
    """Put values at their points; the others have none, and a size of 0."""
    found = []
    for at, column in enumerate(columns):
        whole = np.full(len(some), 0.0 if at == 1 else np.nan)
        whole[some] = column
        found.append(whole)
    return found
