"""Decision curves: the net benefit of acting on a score, over thresholds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.columns import check_aligned, frame_like
from trueup.decisions.clusters import check_effective_clusters, read_clusters, student_factor
from trueup.decisions.curves import upper_quantile
from trueup.decisions.evidence import (
    NORMAL_SHARE,
    Inputs,
    Target,
    assumption_of,
    check_interval,
    has_weight,
    quantile,
    read_inputs,
    read_segments,
)
from trueup.decisions.intervals import SegmentSums, compute_interval, describe_evidence, sum_segments
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inference import likely_root
from trueup.metrics.inputs import Scored, validate_array, validate_scores
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray, IntArray


THRESHOLDS = np.arange(1, 100) / 100
MAX_RANGES = 4  # of thresholds listed in one sentence
PER_ROWS = 1_000  # unit in which a verdict states a net benefit
DRAWS = 2_000  # simulated curves, for limits that hold at all thresholds at once
MAX_SIMULATED = 200  # thresholds
ROUNDING = 1e-12  # of a variance, relative
JITTER = 1e-10  # added to the diagonal of a correlation matrix, which may be singular
MAX_CLUSTER_SUMS = 4_000_000  # held at once, of all thresholds and predictions
NO_DIFFERENCE = 1e-4  # a smaller standard deviation of a difference, as a share of those of its terms, is rounding error


class Gain(NamedTuple):
    """A net benefit, or a difference of two, at each threshold: estimates and limits.

    ``low`` and ``high`` are pointwise: they hold at one threshold that was fixed in advance. ``band_low`` and ``band_high``
    hold at all thresholds at once: those of the advantages of all predictions together, and those of all differences.
    """

    estimate: FloatArray
    low: FloatArray
    high: FloatArray
    band_low: FloatArray
    band_high: FloatArray


@dataclass(frozen=True, eq=False, repr=False)
class DecisionCurve(Result):
    """Net benefit of acting on scores, at each threshold.

    Attributes
    ----------
    threshold : ndarray
        Ascending. Rows of this score or more are acted on.
    benefit, low, high : mapping of str to ndarray
        Net benefit of each prediction: net true positives per row, with pointwise intervals: each holds by itself.
    treat_all, treat_none : ndarray
        Net benefit of acting on all rows, and on none, which is 0.
    advantage : mapping of str to Gain
        Net benefit of each prediction minus the better of acting on all and on none, paired by row.
    difference : mapping of str to Gain
        Net benefit of each later prediction minus that of the first, paired by row. Empty without outcomes.
    prevalence : float
        Share of positive rows; without outcomes, the share expected by the scores and their correction.
    rows : float
        Number of rows, or their total weight.
    level : float
        Coverage probability of each pointwise interval, of the limits ``band_low`` and ``band_high`` of all advantages
        together, and of those of all differences together.
    target : {"rows", "population"}
        What the intervals are for: these rows, or the population that they come from.
    half_widths : mapping of str to ndarray
        Components of the half-widths without outcomes, as in `ExpectedCost`.
    evidence : str
        Source of the calibration component; empty if scores are assumed to be calibrated, or outcomes are known.
    distance : float
        Distance of the score distribution from that of the labelled rows, beyond a tolerance; NaN without labelled rows.
    by_segment : mapping of str to DecisionCurve
    """

    threshold: FloatArray
    benefit: Mapping[str, FloatArray]
    low: Mapping[str, FloatArray]
    high: Mapping[str, FloatArray]
    treat_all: FloatArray
    treat_none: FloatArray
    advantage: Mapping[str, Gain]
    difference: Mapping[str, Gain]
    prevalence: float
    rows: float
    level: float
    target: Target
    half_widths: Mapping[str, FloatArray] = field(default_factory=dict)
    evidence: str = ""
    distance: float = math.nan
    by_segment: Mapping[str, DecisionCurve] = field(default_factory=dict)
    derived = ("verdict",)

    @property
    def standardized(self) -> Mapping[str, FloatArray]:
        """Net benefit as a share of its maximum, the prevalence."""
        return {name: benefit / (self.prevalence or math.nan) for name, benefit in self.benefit.items()}

    @property
    def interventions_avoided(self) -> Mapping[str, FloatArray]:
        """Actions avoided per row compared with acting on all, at no loss of true positives (NaN at threshold 0)."""
        cost = np.where(self.threshold > 0, odds(self.threshold), math.nan)
        return {name: (benefit - self.treat_all) / cost for name, benefit in self.benefit.items()}

    @property
    def verdict(self) -> str:
        """One sentence: the thresholds where acting on a score is significantly better or worse than the alternatives.

        It uses simultaneous limits: the chance of any false statement about differences is at most 1 - ``level``, and
        likewise about advantages over acting on all or none.
        """
        first = next(iter(self.benefit))
        if not self.difference:
            verdict = self._compare(self.advantage[first], f"{first} is {{}} than acting on all or none")
            return f"{verdict}, {assumption_of(self.evidence)}" if self.half_widths else verdict
        parts = [self._compare(gain, f"{name} is {{}} than {first}") for name, gain in self.difference.items()]
        for name, gain in self.advantage.items():
            if (gain.band_high < 0).any():
                parts.append(self._locate(gain.band_high < 0, f"{name} is worse than acting on all or none", gain, -1))
        return "; ".join(parts)

    def _compare(self, gain: Gain, template: str) -> str:
        better, worse = gain.band_low > 0, gain.band_high < 0
        level = f" ({100 * self.level:g}% for all thresholds at once)"
        if not better.any() and not worse.any():
            return template.format("neither significantly better nor worse") + level
        parts = [self._locate(better, template.format("significantly better"), gain, 1)] if better.any() else []
        if worse.any():
            parts.append(self._locate(worse, "worse" if parts else template.format("significantly worse"), gain, -1))
        return ", ".join(parts) + level

    def _locate(self, where: BoolArray, statement: str, gain: Gain, sign: int) -> str:
        index = int(np.argmax(np.where(where, sign * gain.estimate, -math.inf)))
        size = f"{PER_ROWS * abs(gain.estimate[index]):.3g} net true positives per {PER_ROWS:,} rows"
        ranges = _describe_ranges(self.threshold, where)
        return f"{statement} at {ranges}, by up to {size} at {self.threshold[index]:.4g}"

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per threshold and prediction, as a frame of the library of ``like``, or as a dict of arrays."""
        missing = Gain(*[np.full(len(self.threshold), math.nan)] * 5)
        blocks = []
        for name in self.benefit:
            block = {
                "threshold": self.threshold,
                "prediction": np.full(len(self.threshold), name, object),
                "benefit": self.benefit[name],
                "low": self.low[name],
                "high": self.high[name],
                "treat_all": self.treat_all,
                "treat_none": self.treat_none,
                "standardized": self.standardized[name],
                "interventions_avoided": self.interventions_avoided[name],
            }
            for kind, gain in (("advantage", self.advantage[name]), ("difference", self.difference.get(name, missing))):
                block |= {kind if name == "estimate" else f"{kind}_{name}": side for name, side in gain._asdict().items()}
            blocks.append(block)
        return frame_like({column: np.concatenate([block[column] for block in blocks]) for column in blocks[0]}, like)

    def __repr__(self) -> str:
        return f"<DecisionCurve of {self.rows:,.10g} rows: {self.verdict}>"


def _describe_ranges(threshold: FloatArray, where: BoolArray) -> str:
    """List the ranges of thresholds in which ``where`` is true, as text."""
    edges = np.flatnonzero(np.diff(where.astype(int), prepend=0, append=0))
    runs = [(threshold[first], threshold[last - 1]) for first, last in zip(edges[::2], edges[1::2], strict=True)]
    texts = [f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}" for low, high in runs]
    more = f" and {len(texts) - MAX_RANGES} more ranges" if len(texts) > MAX_RANGES else ""
    return ", ".join(texts[:MAX_RANGES]) + more


def odds(t: FloatArray) -> FloatArray:
    """Return t / (1 - t): the cost of a false positive in true positives, for someone who acts from probability t on."""
    return np.asarray(t / (1 - t))


def decision_curve(
    y: ArrayLike | None,
    predictions: Any,
    *,
    thresholds: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    level: float = 0.9,
    target: Target | None = None,
    labelled: Any = None,
    segments: Any = None,
    cluster: Any = None,
) -> DecisionCurve:
    """Compute the net benefit of acting on scores over thresholds, for example before and after a fix.

    Someone who acts from the probability t on considers a false positive to cost t/(1 - t) true positives. The net benefit
    is then TP/n - FP/n t/(1 - t), in true positives per row (Vickers & Elkin 2006), and is compared with acting on all rows
    or on none.

    Parameters
    ----------
    y : array-like, shape (n,), or None
        Outcomes. If None, the scores predict the benefit; see ``labelled``.
    predictions : array-like, or mapping of name to array-like, shape (n,)
        One score, or several of the same rows: {"before": p, "after": q}. Later ones are compared with the first. Without
        outcomes only one is allowed: two scores expect different outcomes.
    thresholds : array-like, optional
        At least 0, below 1. By default 0.01, 0.02, ..., 0.99.
    weight : array-like, shape (n,), optional
    level : float
        Coverage probability of each interval by itself, and of the limits of the verdict at all thresholds: two equally
        good scores differ somewhere with probability 1 - ``level`` at most. If a threshold is fixed in
        advance, pass it alone.
    target : {"rows", "population"}, optional
        What the intervals are for. With outcomes the benefit of these rows is known, and intervals are for the population.
        Without outcomes the default is "rows".
    labelled : optional
        Without outcomes, evidence about the errors of the score, as in `expected_cost`.
    segments : array-like of labels, or mapping of column to values, optional
        Adds a curve per segment.
    cluster : array-like, shape (n,), optional
        With outcomes: identifies rows that belong together, such as the rows of one customer. Intervals and limits are then
        computed from sums over clusters; fewer than 10 effective clusters are an error, also in a segment. Without
        outcomes, `Labelled` takes the clusters of the labelled rows.

    References
    ----------
    Vickers & Elkin (2006), "Decision curve analysis: a novel method for evaluating prediction models", Medical Decision
    Making 26(6), doi:10.1177/0272989X06295361.

    Examples
    --------
    >>> y = [0, 0, 0, 1, 0, 1, 1, 1]
    >>> curve = decision_curve(y, [0.1, 0.2, 0.3, 0.3, 0.6, 0.7, 0.8, 0.9], thresholds=[0.25, 0.5])
    >>> curve.benefit["model"].round(3), curve.treat_all.round(3)
    (array([0.417, 0.25 ]), array([0.333, 0.   ]))
    """
    check_interval(level, target or "rows")
    t = _read_thresholds(thresholds)
    named = _read_predictions(predictions)
    if y is None:
        if len(named) > 1:
            hint = "evaluate one score at a time, or pass y"
            raise ArgumentError(f"without outcomes only one score can be evaluated; got {', '.join(named)}", hint=hint)
        if cluster is not None:
            hint = "pass labelled=tu.decisions.Labelled(y, p, cluster=...)"
            raise ArgumentError("without outcomes, clusters are those of the labelled rows", hint, parameter="cluster")
        ((name, p),) = named.items()
        inputs = read_inputs(p, labelled, level=level, target=target or "rows", weight=weight, segments=segments)
        overall, single = sum_segments(inputs, t, thresholds=True)
        by_segment = {segment: _expected_curve(name, [part], t, inputs) for segment, part in single.items()}
        return replace(_expected_curve(name, overall, t, inputs), distance=inputs.distance, by_segment=by_segment)
    if labelled is not None:
        raise ArgumentError(
            "labelled is not needed: the outcomes are known",
            hint="leave it out, or pass y=None to rely on the scores",
            parameter="labelled",
        )
    if target == "rows":
        raise ArgumentError(
            "target cannot be 'rows' with outcomes: the benefit of these rows is known and needs no interval",
            hint="leave it out, or use {target}",
            parameter="target",
            settings={"target": "population"},
        )
    check_aligned({"y": y, "predictions": named, "weight": weight, "segments": segments, "cluster": cluster})
    scores = {}
    for name, p in named.items():
        try:
            scores[name] = validate_scores(y, p, weight)
        except DataError as error:
            raise DataError(f"prediction {name!r}: {error.message}", hint=error.hint) from None
    clusters = None if cluster is None else read_clusters(cluster, has_weight(weight, y))
    curve = _realised_curve(scores, t, level, clusters)
    if segments is None:
        return curve
    curves = {}
    for name, index in read_segments(segments, has_weight(weight, y)).indices().items():
        subset = {prediction: Scored(*(column[index] for column in rows)) for prediction, rows in scores.items()}
        curves[name] = _realised_curve(subset, t, level, None if clusters is None else clusters[index], name)
    return replace(curve, by_segment=curves)


def _read_thresholds(values: ArrayLike | None) -> FloatArray:
    if values is None:
        return THRESHOLDS.copy()
    thresholds = np.unique(validate_array(np.atleast_1d(np.asarray(values)), "thresholds"))
    bad = (thresholds < 0) | (thresholds >= 1)
    if bad.any() or not len(thresholds):
        got = f"{thresholds[bad][0]:.6g}" if len(thresholds) else "none"
        hint = "at a threshold of 1 no number of true positives outweighs a false one"
        raise ArgumentError(f"thresholds must be at least 0 and below 1; got {got}", hint=hint, parameter="thresholds")
    return thresholds


def _read_predictions(predictions: Any) -> dict[str, Any]:
    """Return predictions by name; a single one is "model"."""
    if not isinstance(predictions, Mapping):
        shape = np.shape(predictions) if isinstance(predictions, np.ndarray) else getattr(predictions, "shape", ())
        if len(shape) > 1:
            hint = 'name its columns: {"before": frame["p"], "after": frame["q"]}'
            raise ArgumentError(f"predictions have shape {shape} and no names", hint=hint, parameter="predictions")
        return {"model": predictions}
    if not predictions:
        raise ArgumentError("predictions is empty", hint='write {"before": p, "after": q}', parameter="predictions")
    for name in predictions:
        if not isinstance(name, str) or name in ("", "all", "none"):
            hint = '"all" and "none" are what predictions are compared with'
            raise ArgumentError(f"a prediction cannot be named {name!r:.60}", hint=hint)
    return dict(predictions)


def _sum_gains(rows: Scored, score: FloatArray, t: FloatArray) -> FloatArray:
    """Sum w g, w^2 g and (w g)^2 over the rows acted on at each threshold, where a row gains g = y - (1 - y) t/(1 - t)."""
    y, w, o = rows.y, rows.w, odds(t)
    index = np.searchsorted(t, score, side="right")
    columns = (w, w * y, w**2, w**2 * y, (w * y) ** 2)
    counts = np.stack([np.bincount(index, column, len(t) + 1) for column in columns])
    sw, swy, sww, swwy, swwyy = np.cumsum(counts[:, ::-1], axis=1)[:, ::-1][:, 1:]
    mixed = swwy - swwyy  # sum w^2 y (1 - y): zero unless labels are soft
    return np.stack([swy - (sw - swy) * o, swwy - (sww - swwy) * o, swwyy - 2 * o * mixed + o**2 * (sww - swwy - mixed)])


def _compare(
    first: FloatArray,
    second: FloatArray,
    both: FloatArray,
    rows: Scored,
    reach: tuple[FloatArray, FloatArray],
    level: float,
    critical: float,
    clustered: _ClusterSquares | None = None,
) -> Gain:
    """Return the gain per row of acting on one set of rows instead of another, from `_sum_gains` of each and of ``both``.

    With d the difference of a row, D its mean, W the total weight and V a bound on sum w^2 (d - D)^2 that holds for few
    events (`metrics.inference.likely_root`), the interval is D +- z sqrt(V) / W. The mean is overestimated if no large loss
    was observed and underestimated if no large gain was, so each side allows for the ``reach`` of a row on that side: the
    smallest and the largest possible difference. For simultaneous limits z is ``critical`` (see `_critical_values`). With
    clusters, V is at least the sum over clusters of U^2, U being the sum of w (d - D) over the rows of a cluster, plus
    sqrt(2 L sum U^4), by which it may vary (`trueup.decisions.clusters.ClusterNorms`).
    """
    weight, heaviest, failing = float(rows.w.sum()), float(rows.w.max()), (1 - level) / 2
    mean = (first[0] - second[0]) / weight
    squares = first[2] + second[2] - 2 * both[2] - 2 * mean * (first[1] - second[1])
    squares = np.maximum(squares + mean**2 * float(np.sum(rows.w**2)), 0.0)
    below, above = (likely_root(squares, heaviest * np.abs(end - mean), failing) / weight for end in reach)
    if clustered is not None:
        root = np.sqrt(clustered.squares + math.sqrt(2 * math.log(5 / failing)) * np.sqrt(clustered.fourths))
        below, above = (np.maximum(side, root) * clustered.student for side in (below, above))
    sides = [side for z in (quantile(failing), critical) for side in (mean - z * below, mean + z * above)]
    return Gain(*(np.clip(value, *reach) for value in (mean, *sides)))


def _realised_curve(
    scores: Mapping[str, Scored], t: FloatArray, level: float, cluster: IntArray | None = None, segment: str | None = None
) -> DecisionCurve:
    """Compute the decision curve of predictions by name at thresholds ``t``, from known outcomes (of a segment)."""
    o, one, zero = odds(t), np.ones(len(t)), np.zeros(len(t))
    reference, *others = scores
    rows = scores[reference]
    weight = float(rows.w.sum())
    nothing, everything = np.zeros((3, len(t))), _sum_gains(rows, np.ones(len(rows.y)), t)
    acted = {name: _sum_gains(rows, scores[name].p, t) for name in scores}
    treat_all = everything[0] / weight
    means = [acted[name][0] / weight for name in scores]
    noise, sums = _realised_noise(scores, t), None
    if cluster is not None and np.bincount(cluster).max(initial=0) > 1:
        effective = check_effective_clusters(rows, cluster, "the rows", segment)
        student = student_factor(effective, (1 - level) / 2)
        sums = _sum_clusters(noise.counts, rows, cluster, [*means, treat_all], t, student)
    critical = _critical_values(noise, means, treat_all, t, level, None if sums is None else sums.covariance)
    benefit, advantage, difference = {}, {}, {}
    for index, (name, own) in enumerate(acted.items()):
        with_none, with_all = (None, None) if sums is None else (sums.with_none[index], sums.with_all[index])
        benefit[name] = _compare(own, nothing, nothing, rows, (-o, one), level, critical.advantage, with_none)
        over_all = _compare(own, everything, own, rows, (-one, o), level, critical.advantage, with_all)
        advantage[name] = _over_better(over_all, benefit[name], treat_all)
    most = np.maximum(o, 1.0)
    for index, name in enumerate(others):
        both, with_first = _sum_gains(rows, np.minimum(rows.p, scores[name].p), t), None
        if sums is not None:
            with_first = sums.with_first[index]
        reach = -most, most
        difference[name] = _compare(
            acted[name], acted[reference], both, rows, reach, level, critical.difference, with_first
        )
    return DecisionCurve(
        threshold=t,
        benefit={name: gain.estimate for name, gain in benefit.items()},
        low={name: gain.low for name, gain in benefit.items()},
        high={name: gain.high for name, gain in benefit.items()},
        treat_all=treat_all,
        treat_none=zero,
        advantage=advantage,
        difference=difference,
        prevalence=float(rows.w @ rows.y) / weight,
        rows=weight,
        level=level,
        target="population",
    )


# Simultaneous limits


class _CriticalValues(NamedTuple):
    """Standard errors that all advantages, and all differences, of a curve stay within at all thresholds."""

    advantage: float  # of each prediction, over acting on all rows and over acting on none
    difference: float  # of each later prediction from the first


class _RowNoise(NamedTuple):
    """Rows, or groups of rows, with equal decisions, and the noise of their sums.

    ``counts`` has the number of thresholds at which they are acted on, per prediction, shape (rows, predictions). The other
    columns are the variances and the covariance of the number of rows and the number of positives, as shares of all rows.
    """

    counts: IntArray
    rows: FloatArray
    both: FloatArray
    positives: FloatArray


def _realised_noise(scores: Mapping[str, Scored], t: FloatArray) -> _RowNoise:
    first = next(iter(scores.values()))
    counts = np.stack([np.searchsorted(t, rows.p, side="right") for rows in scores.values()], axis=1)
    squares = (first.w / first.w.sum()) ** 2
    return _RowNoise(counts, squares, squares * first.y, squares * first.y**2)


class _ClusterSquares(NamedTuple):
    """Sums over clusters of U^2 and U^4 at each threshold, U being the change of the mean by the rows of a cluster."""

    squares: FloatArray
    fourths: FloatArray
    student: float  # by how much limits are wider, since clusters are few


class _ClusterSums(NamedTuple):
    """Noise of net benefits of rows in clusters: of comparisons of each prediction, and the covariance of all benefits."""

    with_none: list[_ClusterSquares]
    with_all: list[_ClusterSquares]
    with_first: list[_ClusterSquares]  # of each later prediction
    covariance: FloatArray  # as `_covariance` returns it, of the simulated thresholds


def _sum_clusters(
    counts: IntArray, rows: Scored, cluster: IntArray, benefits: Sequence[FloatArray], t: FloatArray, student: float
) -> _ClusterSums:
    """Sum the changes of net ``benefits`` (of each prediction, then of acting on all rows) by cluster.

    ``counts`` has the number of thresholds at which each row is acted on, per prediction.
    """
    o, size, kept = odds(t), len(t), _simulated_thresholds(t)
    counts = np.column_stack([counts, np.full(len(counts), size)])
    several, total = counts.shape[1] - 1, float(rows.w.sum())
    order = np.argsort(cluster, kind="stable")
    _, ends = np.unique(cluster[order], return_index=True)
    ends = np.append(ends, len(order))
    covariance = np.zeros((len(kept) * (several + 1),) * 2)
    pairs = [*((index, None) for index in range(several)), *((index, several) for index in range(several))]
    pairs += [(index, 0) for index in range(1, several)]
    powers = np.zeros((len(pairs), 2, size))
    step = max(1, MAX_CLUSTER_SUMS // ((several + 1) * size))
    for start in range(0, len(ends) - 1, step):
        stop = min(start + step, len(ends) - 1)
        own = order[ends[start] : ends[stop]]
        place = np.repeat(np.arange(stop - start), np.diff(ends[start : stop + 1]))
        w, y = rows.w[own], rows.y[own]
        weights = np.bincount(place, w, stop - start)[:, None]
        changes = []
        for index, benefit in enumerate(benefits):
            key = place * (size + 1) + counts[own, index]
            acted, positives = (
                np.bincount(key, column, (stop - start) * (size + 1)).reshape(stop - start, size + 1)[:, ::-1]
                for column in (w, w * y)
            )
            acted, positives = (np.cumsum(column, axis=1)[:, -2::-1] for column in (acted, positives))
            changes.append(((1 + o) * positives - o * acted - benefit * weights) / total)
        joined = np.concatenate([change[:, kept] for change in changes], axis=1)
        covariance += joined.T @ joined
        for number, (first, second) in enumerate(pairs):
            squares = (changes[first] - (0.0 if second is None else changes[second])) ** 2
            powers[number] += squares.sum(axis=0), (squares**2).sum(axis=0)
    found = [_ClusterSquares(squares, fourths, student) for squares, fourths in powers]
    return _ClusterSums(found[:several], found[several : 2 * several], found[2 * several :], covariance)


def _simulated_thresholds(t: FloatArray) -> IntArray:
    """Return the indices of all thresholds, or of some of very many."""
    return np.unique(np.linspace(0, len(t) - 1, min(len(t), MAX_SIMULATED)).round().astype(np.intp))


def _expected_noise(segments: Sequence[SegmentSums], target: Target) -> _RowNoise:
    """Return the noise, per score interval between thresholds, of the outcomes, rows and labelled rows of ``segments``."""
    total = sum(float(part.rows.weight[0].sum()) for part in segments)
    rows, both, positives = np.zeros((3, len(segments[0].rows.weight) + 1))
    for part in segments:
        sums, errors = part.rows, part.errors
        if errors is not None:
            known = _by_interval(errors.squares) * errors.design
            positives += float(sums.weight[0].sum() / total) ** 2 * known
            if target == "rows":
                positives += float(sums.squares[0].sum()) / total**2 * errors.size * known
        elif target == "rows":
            positives += _by_interval(sums.noise) / total**2
        if target == "population":
            for noise, column in ((rows, sums.squares), (both, sums.squares_g), (positives, sums.squares_gg)):
                noise += _by_interval(column) / total**2
    return _RowNoise(np.arange(len(rows))[:, None], rows, both, positives)


def _by_interval(sums: FloatArray) -> FloatArray:
    """Return sums per score interval between thresholds from those below and from each threshold on, shape (t, 2)."""
    return np.maximum(-np.diff(sums[:, 1], prepend=sums[0].sum(), append=0.0), 0.0)


def _critical_values(
    noise: _RowNoise, means: Sequence[FloatArray], treat_all: FloatArray, t: FloatArray, level: float,
    covariance: FloatArray | None = None,
) -> _CriticalValues:  # fmt: skip
    """Return how many standard errors comparisons stay within, at all thresholds at once, with probability ``level``.

    The noise of the net benefits ``means`` is simulated as normal with the covariance of the rows, over predictions and
    thresholds (the multiplier bootstrap of a maximum: Chernozhukov, Chetverikov & Kato 2013). Of very many thresholds, some
    are simulated. ``covariance`` is that of rows in clusters.
    """
    kept = _simulated_thresholds(t)
    counts = np.searchsorted(kept, noise.counts)  # of the simulated thresholds
    benefits = [mean[kept] for mean in (*means, treat_all)]
    o = odds(t[kept])
    if covariance is None:
        covariance = _covariance(noise._replace(counts=counts), benefits, o)
    # Without rows that vary, the variance is 0 up to rounding of the largest possible one.
    largest_variance = np.maximum(o, 1.0) ** 2 * float(max(noise.rows.sum(), noise.positives.sum()))
    variance = np.diagonal(covariance)
    scale = np.sqrt(np.where(variance > ROUNDING * np.tile(largest_variance, len(benefits)), variance, 0.0))
    inverse = np.divide(1.0, scale, out=np.zeros(len(scale)), where=scale > 0)
    correlation = covariance * np.outer(inverse, inverse)
    np.fill_diagonal(correlation, 1 + JITTER)
    try:
        root = np.linalg.cholesky(correlation)
    except np.linalg.LinAlgError:  # eigenvalues may be negative by rounding
        values, vectors = np.linalg.eigh(correlation)
        root = vectors * np.sqrt(np.maximum(values, 0.0))
    draws = np.random.default_rng(0).normal(size=(DRAWS, len(scale))) @ root.T * scale
    *own, of_all = np.split(draws, len(benefits), axis=1)
    with_all, with_first = ([gain - other for gain in gains] for gains, other in ((own, of_all), (own[1:], own[0])))
    advantages = zip([*own, *own], [*own, *with_all], strict=True)
    return _CriticalValues(*(_upper_limit(pairs, level) for pairs in (advantages, zip(own[1:], with_first, strict=True))))


def _upper_limit(pairs: Iterable[tuple[FloatArray, FloatArray]], level: float) -> float:
    """Return a limit of the largest difference, in standard errors; ``pairs`` are simulated benefits and differences."""
    largest = np.zeros(DRAWS)
    for own, difference in pairs:
        own_spread, spread = (np.sqrt(np.mean(errors**2, axis=0)) for errors in (own, difference))
        varies = (spread > 0) & (spread > NO_DIFFERENCE * own_spread)
        sizes = np.abs(difference)[:, varies] / spread[varies]
        largest = np.maximum(largest, sizes.max(axis=1, initial=0.0))
    return max(upper_quantile(largest, 1 - NORMAL_SHARE * (1 - level)), quantile((1 - level) / 2))


def _covariance(noise: _RowNoise, benefits: Sequence[FloatArray], o: FloatArray) -> FloatArray:
    """Return the covariance of net ``benefits``: of each prediction, then of acting on all rows; all thresholds of each.

    A row gains g = y (1 + o) - o at a threshold of odds o if it is acted on, and changes the mean by w (g - mean).
    """
    size, several = len(o), len(benefits) - 1
    counts = [*noise.counts.T, np.full(len(noise.counts), size)]
    variance, gain = float(noise.rows.sum()), 1 + o
    acted = []  # covariance of the net benefit with the number of rows
    for count in counts:
        rows, both = (_tail_sums([count], column, size) for column in (noise.rows, noise.both))
        acted.append(gain * both - o * rows)
    blocks = [[np.empty(0)] * (several + 1) for _ in range(several + 1)]
    for i, j in itertools.combinations_with_replacement(range(several + 1), 2):
        rows, both, positives = (_tail_sums([counts[i], counts[j]], column, size) for column in noise[1:])
        block = np.outer(gain, gain) * positives + np.outer(o, o) * rows
        block -= (np.outer(gain, o) + np.outer(o, gain)) * both
        block += variance * np.outer(benefits[i], benefits[j])
        block -= np.outer(acted[i], benefits[j]) + np.outer(benefits[i], acted[j])
        blocks[i][j], blocks[j][i] = block, block.T
    return np.block(blocks)


def _tail_sums(counts: Sequence[IntArray], column: FloatArray, size: int) -> FloatArray:
    """Sum ``column`` over the rows with counts above k = 0, ..., size - 1: those acted on at threshold k."""
    shape = [size + 1] * len(counts)
    sums = np.bincount(np.ravel_multi_index(counts, shape), column, math.prod(shape)).reshape(shape)
    for axis in range(len(counts)):
        sums = np.flip(np.cumsum(np.flip(sums, axis), axis), axis)
    return np.asarray(sums[(slice(1, None),) * len(counts)])


def _over_better(over_all: Gain, over_none: Gain, treat_all: FloatArray) -> Gain:
    """Return ``over_all`` at thresholds where acting on all rows beats acting on none, else ``over_none``."""
    return Gain(*(np.where(treat_all > 0, first, second) for first, second in zip(over_all, over_none, strict=True)))


def _expected_curve(name: str, segments: Sequence[SegmentSums], t: FloatArray, inputs: Inputs) -> DecisionCurve:
    """Estimate net benefits without outcomes: minus the expected cost, if acting costs -1 on a 1 and t/(1 - t) on a 0."""
    weight = float(sum(part.rows.weight[0].sum() for part in segments))
    zero, one, o = np.zeros(len(t)), np.ones(len(t)), odds(t)
    ends = np.stack([np.stack([zero, t], axis=1), np.stack([t, one], axis=1)], axis=1)
    unit = weight if inputs.target == "rows" else 1.0
    # Columns: rows below each threshold, and from it on.
    comparisons = (
        (np.stack([zero, one], 1), np.stack([zero, -o], 1)),  # with acting on none
        (np.stack([-one, zero], 1), np.stack([o, zero], 1)),  # with acting on all
    )
    over_none, over_all = (compute_interval(segments, *amounts, inputs, ends) for amounts in comparisons)
    treat_all = (over_none.estimate - over_all.estimate) / unit
    noise = _expected_noise(segments, inputs.target)
    critical = _critical_values(noise, [over_none.estimate / unit], treat_all, t, inputs.level)
    bands = (compute_interval(segments, *amounts, inputs, ends, z=critical.advantage) for amounts in comparisons)
    benefit, margin = (
        Gain(*(side / unit for side in (*interval[:3], *band[1:3])))
        for interval, band in zip((over_none, over_all), bands, strict=True)
    )
    return DecisionCurve(
        threshold=t,
        benefit={name: benefit.estimate},
        low={name: benefit.low},
        high={name: benefit.high},
        treat_all=treat_all,
        treat_none=zero,
        advantage={name: _over_better(margin, benefit, treat_all)},
        difference={},
        # Acting on all rows gains the positives minus the odds times the negatives.
        prevalence=min(max(float(treat_all[0] * (1 - t[0]) + t[0]), 0.0), 1.0),
        rows=weight,
        level=inputs.level,
        target=inputs.target,
        half_widths={component: half / unit for component, half in over_none.half_widths.items()},
        evidence=describe_evidence(segments),
    )
