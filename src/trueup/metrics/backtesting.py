"""Measures of the validation of scores: AUC, Gini and KS (ranking), PSI (stability), and tests of a default rate.

Throughout, y are outcomes (0, 1 or between), p scores, w weights (1 by default).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer, check_number
from trueup.errors import DataError
from trueup.metrics.inputs import Scored, validate_array, validate_scores, validate_weights
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray

STABLE_PSI, SHIFTED_PSI = 0.1, 0.25  # conventions of scorecard practice (Siddiqi 2006), not tests
EMPTY_BIN_ROWS = 0.5  # an empty bin counts as half a row: its logarithm would be infinite


# Ranking


class Separation(NamedTuple):
    """How well scores separate outcomes: Gini with its standard error (for weights that are counts), and KS."""

    gini: float
    gini_se: float
    ks: float


def separate(data: Scored) -> Separation:
    """Compute Gini, its standard error (DeLong, DeLong & Clarke-Pearson 1988) and KS; NaN if there is one outcome only."""
    rising = bool((data.p[1:] >= data.p[:-1]).all())
    p, y, w = data.p, data.y, data.w
    if not rising:
        order = np.argsort(p, kind="stable")
        p, y, w = p[order], y[order], w[order]
    first = np.flatnonzero(np.append(True, p[1:] != p[:-1]))
    events, others = (np.add.reduceat(column, first) for column in (w * y, w * (1.0 - y)))
    all_events, all_others = float(events.sum()), float(others.sum())
    if not (all_events > 0 and all_others > 0):
        return Separation(math.nan, math.nan, math.nan)
    events_to, others_to = np.cumsum(events), np.cumsum(others)
    # Per score, the share of others below an event, and of events above another; ties count half.
    of_event = (others_to - others / 2) / all_others
    of_other = 1.0 - (events_to - events / 2) / all_events
    auc = float(events @ of_event) / all_events
    variance = math.nan
    if min(all_events, all_others) > 1:
        between_events = float(events @ (of_event - auc) ** 2) / (all_events - 1)
        between_others = float(others @ (of_other - auc) ** 2) / (all_others - 1)
        variance = between_events / all_events + between_others / all_others
    ks = float(np.abs(events_to / all_events - others_to / all_others).max())
    return Separation(2 * auc - 1, 2 * math.sqrt(variance), ks)


def gini(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the Gini coefficient of a score, 2 AUC - 1: how well it ranks the outcomes, from -1 to 1; 0 is random.

    The share of pairs of an event and a non-event in which the event has the higher score, minus the share in which it has
    the lower one (Somers' D; the accuracy ratio of Engelmann, Hayden & Tasche 2003). It does not measure calibration.
    NaN if all outcomes are 0 or all are 1.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0, 1 or between), scores (any finite numbers, higher for events), and weights: a pair of rows counts the
        product of their weights.

    Examples
    --------
    >>> gini([0, 1, 0, 1], [0.1, 0.3, 0.3, 0.4])  # of four pairs three are won and one is tied
    0.75
    """
    return separate(_rankable(y, p, weight)).gini


def ks(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the Kolmogorov-Smirnov statistic of a score: max |F1(t) - F0(t)|, from 0 to 1.

    F1 and F0 are the weighted distribution functions of the scores of events and of non-events (Kolmogorov 1933,
    Smirnov 1939). NaN if all outcomes are 0 or all are 1.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        Outcomes (0, 1 or between), scores (any finite numbers), and weights.

    Examples
    --------
    >>> ks([0, 0, 1, 0, 1], [0.1, 0.2, 0.2, 0.3, 0.4])  # at 0.3 all non-events are reached, and half of the events
    0.5
    """
    return separate(_rankable(y, p, weight)).ks


def roc_auc(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None) -> float:
    """Compute the area under the ROC curve of rows with outcomes, from 0 to 1; 0.5 is random.

    The share of pairs of an event and a non-event in which the event has the higher score; ties count half (Hanley & McNeil
    1982). Equal to (`gini` + 1) / 2. NaN if all outcomes are 0 or all are 1.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        As for `gini`.

    Examples
    --------
    >>> roc_auc([0, 1, 0, 1], [0.1, 0.3, 0.3, 0.4])  # of four pairs three are won and one is tied
    0.875
    """
    return (1 + gini(y, p, weight)) / 2


def pr_auc(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, *, ties: Literal["step", "half"] = "step") -> float:
    """Compute the area under the precision-recall curve: the mean, over the events, of the precision at their score.

    NaN if there is no event. For a random score the area is about the prevalence.

    Parameters
    ----------
    y, p, weight : array-like, shape (n,)
        As for `gini`.
    ties : {"step", "half"}
        Rows of equal score form one step of the curve: their events have the precision of all rows of at least this score,
        as in the average precision of scikit-learn and in `trueup.decisions.expected_pr`. With "half", half of the rows of
        equal score count in that precision, as half of the tied pairs count in `roc_auc`; without ties the row itself is
        then half counted too.

    Examples
    --------
    >>> pr_auc([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.1])  # (1 + 2/3) / 2
    0.8333...
    >>> pr_auc([1, 0, 1, 0], [0.9, 0.5, 0.5, 0.5]), pr_auc([1, 0, 1, 0], [0.9, 0.5, 0.5, 0.5], ties="half")
    (0.75, 0.8)
    """
    check_choice("ties", ties, ("step", "half"))
    data = _rankable(y, p, weight)
    _, index = np.unique(-data.p, return_inverse=True)  # highest scores first
    events, rows = np.bincount(index, data.w * data.y), np.bincount(index, data.w)
    own = 0.5 if ties == "half" else 0.0
    precision = (np.cumsum(events) - own * events) / (np.cumsum(rows) - own * rows)
    total = float(events.sum())
    return float(events @ precision) / total if total > 0 else math.nan


def _rankable(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None) -> Scored:
    data = validate_scores(y, p, weight, real=True)
    bad = (data.y < 0) | (data.y > 1)
    if bad.any():
        raise DataError(f"y must lie in [0, 1]; got {data.y[bad][0]:.10g}", hint="outcomes are 0, 1 or between")
    return data


# Stability


class ScoreDistribution(NamedTuple):
    """The distribution of scores: share of the weight at or below each of some ascending scores.

    ``size`` is Kish's effective number of rows. ``complete`` is whether all distinct scores are listed; otherwise shares
    between two listed scores are interpolated.
    """

    score: FloatArray
    share: FloatArray
    size: float
    complete: bool

    @classmethod
    def of(cls, p: FloatArray, w: FloatArray | None = None, rows: IntArray | None = None) -> ScoreDistribution:
        """Return the distribution of ascending scores ``p``; an entry may stand for several ``rows`` of equal weight."""
        w = np.ones(len(p)) if w is None or not len(w) else w
        last = np.append(p[1:] != p[:-1], True)
        total = np.cumsum(w)
        squares = float((w**2).sum() if rows is None else (w**2 / rows).sum())
        return cls(p[last], total[last] / total[-1], float(total[-1]) ** 2 / squares, complete=True)

    def thin(self, points: int) -> ScoreDistribution:
        """Keep the quantiles at ``points`` equidistant shares, and the lowest score."""
        if len(self.score) <= points:
            return self
        kept = np.unique(np.append(0, self._position(np.linspace(0.0, 1.0, points)[1:])))
        return ScoreDistribution(self.score[kept], self.share[kept], self.size, complete=False)

    def quantiles(self, shares: FloatArray) -> FloatArray:
        """Return the lowest listed score that reaches each share."""
        return self.score[self._position(shares)]

    def _position(self, shares: FloatArray) -> IntArray:
        return np.minimum(np.searchsorted(self.share, shares - 1e-12), len(self.share) - 1)

    def share_to(self, scores: FloatArray) -> FloatArray:
        """Return the share of the weight at or below each of ``scores``."""
        if not self.complete:
            return np.interp(scores, self.score, self.share, left=0.0, right=1.0)
        return np.append(0.0, self.share)[np.searchsorted(self.score, scores, side="right")]


@dataclass(frozen=True, eq=False, repr=False)
class StabilityIndex(Result):
    """The population stability index, and the shares of both samples in bins closed on the right with inner ``edges``.

    If both samples have the same distribution, ``expected`` is the mean of the index, and ``p_value`` the probability of
    an index as large as this.
    """

    value: float
    expected: float
    p_value: float
    edges: FloatArray
    reference: FloatArray
    current: FloatArray

    @property
    def contributions(self) -> FloatArray:
        """The terms of the sum, one per bin."""
        return (self.current - self.reference) * np.log(self.current / self.reference)

    def __repr__(self) -> str:
        return (
            f"<PSI {self.value:.4g} in {len(self.reference)} bins; {self.expected:.2g} by chance, p = {self.p_value:.3g}>"
        )


def compare_distributions(reference: ScoreDistribution, current: ScoreDistribution, n_bins: int = 10) -> StabilityIndex:
    """Compute the population stability index of two distributions; see `psi`."""
    from scipy.special import gammaincc

    edges = np.unique(reference.quantiles(np.arange(1, n_bins) / n_bins))
    edges = edges[edges < reference.score[-1]]
    shares = []
    for sample in (reference, current):
        share = np.diff(np.concatenate([[0.0], sample.share_to(edges), [1.0]]))
        shares.append(np.maximum(share, EMPTY_BIN_ROWS / sample.size))
    degrees, noise = len(edges), 1 / reference.size + 1 / current.size
    value = float(((shares[1] - shares[0]) * np.log(shares[1] / shares[0])).sum())
    p_value = float(gammaincc(degrees / 2, value / noise / 2)) if degrees else 1.0
    return StabilityIndex(value, degrees * noise, p_value, edges, *shares)


def psi(
    reference: ArrayLike,
    current: ArrayLike,
    *,
    reference_weight: ArrayLike | None = None,
    current_weight: ArrayLike | None = None,
    n_bins: int = 10,
) -> StabilityIndex:
    """Compute the population stability index: how far the current scores have moved from those of a reference sample.

    The sum over bins of (c - r) ln(c / r), r and c the shares of the reference and of the current scores: the symmetric
    Kullback-Leibler (Jeffreys) divergence of the binned scores (Siddiqi 2006). Scorecard practice calls values below 0.1
    stable, and above 0.25 a major shift. These are conventions: they do not depend on the number of rows, chance does.

    Parameters
    ----------
    reference, current : array-like
        Scores at development or approval, and those of today: any finite numbers, of different lengths.
    reference_weight, current_weight : array-like, optional
        Weights of their rows; chance then goes by Kish's effective number of rows.
    n_bins : int
        Number of bins: quantiles of the reference, so that they do not depend on the current scores. Rows of equal score
        share a bin. A bin without current rows counts as half a row.

    Returns
    -------
    StabilityIndex

    Notes
    -----
    If nothing has changed, the index divided by (1/n + 1/m), n and m the numbers of rows, is about chi-squared with
    bins - 1 degrees of freedom (Yurdakul & Naranjo 2020): its mean is (bins - 1)(1/n + 1/m).

    Examples
    --------
    >>> round(psi([1, 2, 3, 4], [1, 1, 1, 4], n_bins=2).value, 4)  # shares 1/2, 1/2 and 3/4, 1/4: 1/4 ln 3
    0.2747
    """
    check_integer("n_bins", n_bins, 2)
    return compare_distributions(
        sample_distribution(reference, reference_weight, "reference"),
        sample_distribution(current, current_weight, "current"),
        int(n_bins),
    )


def sample_distribution(scores: ArrayLike, weight: ArrayLike | None, name: str) -> ScoreDistribution:
    """Validate scores and weights of a sample, and return their distribution; errors call the scores ``name``."""
    p = validate_array(scores, name)
    w = np.ones(len(p)) if weight is None else validate_array(weight, f"{name}_weight")
    if len(w) != len(p):
        message = f"{name} and {name}_weight must have equal length; got {len(p):,} and {len(w):,}"
        raise DataError(message, hint="pass one weight per score")
    if not len(p):
        raise DataError(f"{name} has no scores", hint="pass at least one score")
    w = validate_weights(w)
    p, w = p[w > 0], w[w > 0]
    order = np.argsort(p, kind="stable")
    return ScoreDistribution.of(p[order], w[order])


# Tests of a default rate


def jeffreys_interval(events: float, rows: float, *, alpha: float = 0.05) -> tuple[float, float]:
    """Return the 1 - alpha Jeffreys interval of a rate: quantiles of Beta(events + 1/2, rows - events + 1/2).

    The lower end is 0 without events, the upper end 1 if all rows are events (Brown, Cai & DasGupta 2001).

    Examples
    --------
    >>> low, high = jeffreys_interval(0, 100)
    >>> low, round(high, 4)
    (0.0, 0.0247)
    """
    from scipy.special import betaincinv

    _check_counts(events, rows)
    check_fraction("alpha", alpha, hint="0.05 gives 95% limits")
    a, b = events + 0.5, rows - events + 0.5
    low = 0.0 if events <= 0 else float(betaincinv(a, b, alpha / 2))
    high = 1.0 if events >= rows else float(betaincinv(a, b, 1 - alpha / 2))
    return low, high


def jeffreys_test(events: float, rows: float, rate: float) -> float:
    """Test whether the true rate exceeds ``rate``: the p-value of the Jeffreys test of PD back-testing.

    The posterior probability that the true rate is at most ``rate``, P(Beta(events + 1/2, rows - events + 1/2) <= rate),
    under the prior of Jeffreys (ECB 2019, Instructions for reporting the validation results of internal models, 2.5.3).
    Small if the rate is too low, near 1 if it is too high. One-sided, for one look at one group of independent rows. At
    level alpha it rejects a true rate in about alpha of samples; where less than one event is expected, in up to 3 alpha.

    Parameters
    ----------
    events, rows : float
        Numbers of events and of rows: counts, not sums of weights.
    rate : float
        The predicted rate, such as the mean PD of a grade.

    Examples
    --------
    >>> round(jeffreys_test(1, 1, 0.5), 4)  # 1/2 - 1/pi
    0.1817
    """
    from scipy.special import betainc

    _check_counts(events, rows)
    check_number("rate", rate, 0, 1)
    return float(betainc(events + 0.5, rows - events + 0.5, rate))


def binomial_test(events: float, rows: float, rate: float) -> float:
    """Test whether the true rate exceeds ``rate``: the p-value of the one-sided binomial test of PD back-testing.

    P(X >= events) for X binomial with ``rows`` and ``rate`` (Basel Committee 2005, Working Paper 14): at level alpha it
    rejects a true rate in at most alpha of samples, and in fewer if events are few. For one look at one group of
    independent rows; defaults that are correlated are rejected more often.

    Parameters
    ----------
    events, rows : float
        Numbers of events and of rows: counts, not sums of weights.
    rate : float
        The predicted rate, such as the mean PD of a grade.

    Examples
    --------
    >>> binomial_test(2, 3, 0.5)  # (3 + 1) / 8
    0.5
    """
    from scipy.special import betainc

    _check_counts(events, rows)
    check_number("rate", rate, 0, 1)
    return 1.0 if events <= 0 else float(betainc(events, rows - events + 1.0, rate))


def _check_counts(events: float, rows: float) -> None:
    check_number("rows", rows, 0)
    check_number("events", events, 0, rows, hint="pass counts: at most as many events as rows")
