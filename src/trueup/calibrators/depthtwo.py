"""DepthTwo: multicalibration by one ensemble of depth-2 trees, independent of score levels."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import MAX_INTEGER, check_integer, check_number
from trueup.calibrators import stopping
from trueup.calibrators.base import FitResult, SegmentCalibrator
from trueup.calibrators.history import History
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.mcgrad.estimator import check_growth
from trueup.calibrators.mcgrad.grower import CascadeGrower, gain_shares
from trueup.calibrators.stopping import CrossValidation, choose_rounds, paired_gain
from trueup.data.columns import frame_like
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.kernels.trees import MIN_PROBABILITY
from trueup.learners.lightgbm import GrowthParameters
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.data.table import Table


RATES = (1.0, 0.3, 0.1, 0.03, 0.01)  # the search starts with the second and third and continues towards the better one
FIXED_RATE = 0.1
MAX_TREES, FIXED_TREES = 2000, 100
PAPER_DEPTH, MORE_LEVELS, MAX_DEPTH = 2, 2, 10  # of trees; the deeper trees of the saturation check have more levels
# A lower rate needs more trees: it must be better than the next higher one by this many standard errors of the difference,
# and by this share of the total gain.
RATE_ERRORS, RATE_SHARE = 0.5, 0.05
BOUNDS = np.geomspace(1e-6, 0.05, 48)  # candidates for the distance of corrected probabilities from 0 and 1
MIN_EVENTS = 1.0  # expected number of events beyond a bound, if it were the true rate of those rows: fewer are no evidence
LEVEL_COUNTS = (10, 20, 50, 100)
SMALL_SHARE = 0.1  # of the rows: the group whose bound is reported
# The check fails if a second pass gains more than MAX_GAIN, or more than SIGNIFICANT_GAIN by ERRORS standard errors.
MAX_GAIN, SIGNIFICANT_GAIN, ERRORS = 1e-2, 1e-3, 2.0


@dataclass(frozen=True)
class RateTrial(Result):
    """One learning rate: its best number of trees, and their held-out squared error."""

    learning_rate: float
    trees: int
    loss: float


@dataclass(frozen=True)
class Sweep(Result):
    """The learning rates that were tried, the highest first."""

    tried: tuple[RateTrial, ...]
    learning_rate: float  # the chosen one

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per learning rate, as a frame of the library of ``like``; a dict of arrays without it."""
        names = ("learning_rate", "trees", "loss")
        return frame_like({name: np.array([getattr(trial, name) for trial in self.tried]) for name in names}, like)

    def __repr__(self) -> str:
        lines = [f"Sweep: learning rate {self.learning_rate:g} was chosen", "   rate  trees  squared error"]
        return "\n".join([*lines, *(f"  {t.learning_rate:>5g}  {t.trees:>5}  {t.loss:.6f}" for t in self.tried)])


@dataclass(frozen=True)
class Saturation:
    """The gain of a second pass, fitted on top of the corrected scores, and the bounds on errors of groups that it implies.

    Gains are of the mean squared error; for a real outcome, as a share of its variance. A fitted pass is not
    the best possible one: its gain is a lower bound of what could be gained. With a cross-validation it is measured on the
    models of single folds, each on the rows it was not trained on, while the mean of these models is what predicts: ``eps``
    is not the gain on top of that mean, which has no held-out rows.

    Notes
    -----
    Let g be the indicator of a group that the features identify, f the scores and f' = f rounded to m levels. The error
    ``K1(f', g) = sum_v P(f'=v) |E[g (y - v) | f'=v]|`` is at most ``sum_v P(f'=v) |E[g (y - f) | f'=v]|`` plus the change
    by rounding, which is at most half a step: span / (2 m). Adding ``E[y - f | f'=v, g=1]`` to the scores of the rows with
    g = 1 and f' = v is a sum of depth-2 trees (a threshold of f, then the group); it lowers the squared error by
    ``sum_v P(f'=v, g=1) E[y - f | f'=v, g=1]^2``, at least the square of the first sum divided by the share P(g=1) of the
    group (Cauchy-Schwarz), and at most as much as the best second pass does. Hence
    ``K1 <= sqrt(share eps) + share span / (2 m)`` for all m, with eps of the *best* pass.

    K1 counts all rows, and is small for a small group whatever its error. The calibration error of the group itself,
    ``sum_v P(f'=v | g=1) |E[y - v | f'=v, g=1]|``, is K1 / share: at most ``sqrt(eps / share) + span / (2 m)``.

    References
    ----------
    Jin, Ding, Ngo & Wu (2025), "Discretization-free Multicalibration through Loss Minimization over Tree Ensembles",
    arXiv:2505.17435, Lemma 4.4, Assumption 4.5, Theorem 4.6.
    """

    eps: float  # gain of the same procedure on top of the corrected scores; 0 if it loses
    error: float  # its standard error: the largest over the learning rates that were tried
    deeper: float  # the same for trees with two more levels, which find other interactions (such as a three-way XOR)
    deeper_error: float
    saturated: bool  # False if one of the gains is above 0.01, or above 0.001 by two standard errors
    rows: int  # number of held-out rows
    unit: float = 1.0  # 1 for probabilities; the standard deviation of a real outcome
    span: float = 1.0  # range of the scores in this unit: 1 for probabilities
    depth: int = PAPER_DEPTH  # of the trees
    models: int = 1  # whose held-out rows these are, one per fold
    refitted: bool = False  # whether a model fitted to all rows predicts instead of the mean of the fold models

    def rounding(self, m: int) -> float:
        """Return the largest change of a score by rounding to ``m`` levels, ``span / (2 m)``, in units of ``unit``."""
        check_integer("m", m, 1, hint="10 to 100 levels are usual")
        return self.span / (2 * int(m))

    def bound(self, m: int, errors: float = ERRORS, *, share: float = 1.0) -> float:
        """Bound the calibration error of a group with this ``share`` of the rows, for scores rounded to ``m`` levels.

        The bound is ``sqrt((eps + errors * error) / share) + rounding(m)`` in units of ``unit``, with ``errors`` standard
        errors added to ``eps``. It holds if no other second pass gains more. With a share of 1 it is that of all rows, and
        bounds the K1 of every group, which counts all rows.
        """
        check_number("share", share, 0, 1, above=True)
        return float(np.sqrt((self.eps + errors * self.error) / share)) + self.rounding(m)

    @property
    def sentence(self) -> str:
        """Return the result as one sentence."""
        share = "" if self.unit == 1.0 else " of the outcome's variance"
        second = f"{self.eps:.2g} (s.e. {self.error:.1g}){share}"
        deeper = f"trees of depth {self.depth + MORE_LEVELS} by {self.deeper:.2g} (s.e. {self.deeper_error:.1g})"
        rows = "held-out rows"
        if self.models > 1:
            shipped = "a fit to all rows" if self.refitted else "their mean"
            rows = f"held-out rows of {self.models} fold models ({shipped} is used)"
        if self.saturated:
            unit = "" if self.unit == 1.0 else " standard deviations of the outcome"
            few, many = (self.bound(m, share=SMALL_SHARE) for m in (LEVEL_COUNTS[0], LEVEL_COUNTS[-1]))
            return (
                f"saturated: on {rows} a second pass lowers the squared error by {second}, {deeper}; if none gains "
                f"more, the calibration error of a group with a tenth of the rows is at most {few:.2g}{unit} at 10 levels "
                f"and {many:.2g} at 100, and larger for smaller groups"
            )
        finding = f"on {rows} a second pass still lowers the squared error by {second}, {deeper}"
        if not _is_large(self.eps, self.error):
            finding = (
                f"on {rows} a second pass lowers the squared error by {second}, but {deeper}: there are "
                f"interactions of features that depth {self.depth} does not find"
            )
        more = self.depth + MORE_LEVELS
        return f"not saturated: {finding}; use deeper trees: depth={more}, or tu.MCGrad(depth={more}, feature_fraction=1.0)"

    def to_frame(self, like: Any = None) -> Any:
        """Return the bounds at 10, 20, 50, 100 levels, as a frame of the library of ``like``; else a dict of arrays.

        Bounds are those of all rows and of a group with a tenth of them.
        """
        columns = {
            "levels": np.array(LEVEL_COUNTS),
            "rounding": np.array([self.rounding(m) for m in LEVEL_COUNTS]),
            "bound": np.array([self.bound(m) for m in LEVEL_COUNTS]),
            "bound_of_a_tenth": np.array([self.bound(m, share=SMALL_SHARE) for m in LEVEL_COUNTS]),
        }
        return frame_like(columns, like)

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, the sentence and the bounds as plain data."""
        bounds, of_a_tenth = ({str(m): self.bound(m, share=share) for m in LEVEL_COUNTS} for share in (1.0, SMALL_SHARE))
        return {**asdict(self), "sentence": self.sentence, "bounds": bounds, "bounds_of_a_tenth": of_a_tenth}

    def __repr__(self) -> str:
        return f"Saturation: {self.sentence}"


def measure_saturation(
    y: FloatArray,
    before: FloatArray,
    second: Sequence[FloatArray],
    deeper: Sequence[FloatArray],
    weight: FloatArray | None,
    *,
    real: bool,
    cluster: IntArray | None = None,
) -> Saturation:
    """Measure the gains of a second pass, and of one with deeper trees, on held-out rows with corrected scores ``before``.

    ``second`` and ``deeper`` have the scores after such a pass, an array per learning rate, that of the best rate first.
    The gain is that of the best rate. Its standard error is the largest over all rates: that of the best rate alone is
    too small if this rate hardly changes scores. ``real`` outcomes are divided by their standard deviation.
    """
    unit = span = 1.0
    if real:
        unit = float(np.sqrt(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight))) or 1.0
        span = float(np.ptp(before)) / unit
    losses = ((y - before) / unit) ** 2
    passes = []
    for scores in (second, deeper):
        gains = [paired_gain(losses - ((y - f) / unit) ** 2, weight, cluster=cluster) for f in scores]
        errors = [error if np.isfinite(error) else 1.0 for _, error, _ in gains]
        passes.append((max(0.0, gains[0][0]), max(errors)))
    saturated = not any(_is_large(*gain_and_error) for gain_and_error in passes)
    return Saturation(*passes[0], *passes[1], saturated, len(y), unit, span)


def _is_large(gain: float, error: float) -> bool:
    return gain > MAX_GAIN or gain - ERRORS * error > SIGNIFICANT_GAIN


@dataclass(eq=False, repr=False, kw_only=True)
class DepthTwo(SegmentCalibrator):
    """Calibrate predictions on every group by one ensemble of depth-2 trees, without a choice of score levels.

    Trees over the score and the features are added to the score and lower its squared error (Jin, Ding, Ngo & Wu 2025).
    They are kept only if they lower the error of held-out rows significantly; otherwise scores are left unchanged. A second
    pass then measures how much could still be gained (`saturation_`). This bounds the calibration error of a group, given
    its share of the rows, at whatever levels scores are rounded to later.

    Parameters
    ----------
    prediction : column name
        The score to be corrected: a probability, or a real number (``task="regression"``). For an array a position, 0 by
        default.
    features : column names, optional
        The columns that define groups: indicators of groups that may overlap, or any other columns; by default every
        other column.
    exclude : column names
        Columns that the correction must not use, such as protected attributes; `explain` still reports what the correction
        does on their levels. A name that is also a feature, or is no column, is an error.
    task : {"auto", "binary", "regression"}
        "auto" is binary. For several classes use `MCGrad`.
    depth : int
        The depth of the trees. 2, as in the paper, finds what depends on the score and one feature, or on two features, and
        is what the bound of `Saturation` is proved for; 3 and more find interactions of more columns. It also bounds the
        errors of groups that are intersections of up to ``depth - 1`` features.
    clip : "auto" or pair of float
        The lowest and the highest probability that is predicted. "auto" chooses both on held-out rows, up to 0.05 from 0
        and from 1, so that rows without events do not get a probability of 0; ``(0, 1)`` is the paper's. Without held-out
        rows it is ``(0, 1)``. Real predictions are not clipped.
    learning_rate : float, optional
        By default 0.3 and 0.1 are tried, and then 0.03 and 0.01, or 1, while it helps; 0.1 if ``stopping`` is None.
    trees : int, optional
        The maximum number of trees, 2,000 by default; the exact number if ``stopping`` is None, then 100 by default.
    patience : int
        The number of trees without a gain after which growth stops.
    feature_fraction : float
        The share of the features that each tree may use.
    min_rows : float
        The minimum number of rows in a leaf, or their weight.
    l2 : float
        L2 regularisation of leaf values.
    bins : int
        The maximum number of bins of a numeric feature.
    stopping : CrossValidation, Holdout, Validation or None
        The rows that trees are evaluated on. None trains on all rows for a fixed number of trees, without any protection
        against overfitting.
    saturation : bool
        Whether to measure the gain of a second pass; takes about as long as the fit.
    categorical : column names
        Numeric columns to be treated as categories.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    random_state : int
        Makes the fit reproducible, whatever the number of threads.
    threads : int, optional
        By default the number of cores.

    Attributes
    ----------
    model_ : Model
        The fitted model, which can be saved.
    history_ : History
        The held-out squared error before and after, and the reason of the choice.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.
    sweep_ : Sweep
        The learning rates that were tried.
    saturation_ : Saturation or None
        The gain of a second pass, on the models of single folds; None if no rows were held out, or ``saturation=False``.

    Notes
    -----
    Sums of trees may leave [0, 1]; probabilities are clipped (``clip``), and a wrong one near 0 or 1 has a large log loss.
    Trees that increase the held-out log loss are not kept, whatever they do for the squared error. `MCGrad`, whose trees
    act on logits, is the better choice for rare events.

    References
    ----------
    Jin, Ding, Ngo & Wu (2025), "Discretization-free Multicalibration through Loss Minimization over Tree Ensembles",
    arXiv:2505.17435.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.DepthTwo(prediction="prediction", features=["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.history_.loss_after < fix.history_.loss_before
    True
    >>> fix.saturation_.saturated
    True
    """

    depth: int = PAPER_DEPTH
    clip: Any = "auto"
    learning_rate: float | None = None
    trees: int | None = None
    patience: int = 50
    feature_fraction: float = 0.7
    min_rows: float = 20.0
    l2: float = 20.0
    bins: int = 63
    saturation: bool = True

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check_parameters(table)
        rows, splits = self._split_rows(table)
        fixed = self.stopping is None
        growth = GrowthParameters(
            "squared", 1, int(self.depth), 2 ** int(self.depth), FIXED_RATE, self.feature_fraction, self.l2, self.min_rows,
            bins=self.bins, seed=int(self.random_state),
            trees=self.trees or (FIXED_TREES if fixed else MAX_TREES), patience=self.patience,
        )  # fmt: skip
        grower = CascadeGrower(
            rows, stopping.task_loss("regression"), splits, growth, stopping.scale_weights(rows.weight, len(table)),
            Workers(self.threads), progress, rescale=False,
        )  # fmt: skip
        evaluated = grower.evaluated_rows
        search = self._search_rates(grower)
        best = search[0]
        if rows.schema.task == "binary":
            if self.clip != "auto":
                best.clip((float(self.clip[0]), float(self.clip[1])))
            elif not fixed:
                best.clip(_find_bounds(best.raw, best.y, _take(grower.weight, evaluated)))
        history = self._make_history(best, rows.prediction[evaluated], rows.schema.task)
        kept = tuple(best.grower.rounds[: history.chosen])
        saturation = None
        if self.saturation and not fixed:
            saturation = self._measure_saturation(search, grower, kept=bool(kept))
            history = replace(history, reason=f"{history.reason}; {saturation.sentence}")
        if kept and isinstance(self.stopping, CrossValidation) and self.stopping.refit:
            kept = best.grower.refit(kept)
        cascade = Cascade("identity", grower.levels, 1, kept, best.bounds)
        scores = best.scores if history.chosen else rows.prediction[evaluated]
        by_rate = sorted(search, key=lambda fit: -fit.rate)
        trials = tuple(RateTrial(fit.rate, fit.grower.rounds[0].trees, fit.loss) for fit in by_rate)
        self.sweep_, self.saturation_ = Sweep(trials, best.rate), saturation
        held_out = None if fixed else stopping.collect_held_out(rows, evaluated, scores)
        importances = gain_shares(kept, len(rows.schema.features) + 1)
        return FitResult(cascade, history, held_out=held_out, importances=importances)

    def _search_rates(self, grower: CascadeGrower) -> list[_RateFit]:
        """Fit trees at two learning rates, then at others towards the better one; return a fit per rate, the best first."""
        fits: dict[float, _RateFit] = {}

        def fit(index: int) -> _RateFit:
            rate = RATES[index]
            if rate not in fits:
                fits[rate] = _RateFit(grower, rate)
            return fits[rate]

        if self.learning_rate is not None or self.stopping is None:
            return [_RateFit(grower, self.learning_rate or FIXED_RATE)]
        best = 1
        while best + 1 < len(RATES) and fit(best + 1).improves_on(fit(best)):
            best += 1
        # If a lower rate is slightly better, though not enough, a higher one is worse.
        if best == 1 and fit(1).loss <= fit(2).loss and fit(0).loss < fit(1).loss:
            best = 0
        chosen = fits.pop(RATES[best])
        return [chosen, *fits.values()]

    def _make_history(self, fit: _RateFit, base: FloatArray, task: str) -> History:
        """Return the history: the trees of ``fit`` are chosen if they improve on the held-out scores ``base`` enough."""
        count = fit.grower.rounds[0].trees
        losses = iter([(fit.y - base) ** 2, fit.losses])
        chosen, evaluations = choose_rounds(losses, fit.weight, cluster=fit.cluster, errors=stopping.SEARCH_ERRORS)
        trees = f"{count} tree{'s' if count > 1 else ''} at learning rate {fit.rate:g}"
        reason = "no trees lowered the held-out squared error significantly; scores are left unchanged"
        if self.stopping is None:
            chosen, reason = 1, f"{trees} as specified; no rows were held out"
        elif chosen:
            reason = f"{trees}: {stopping.describe_gain(chosen, evaluations, 'held-out squared error')}"
            change = _log_loss(fit.y, fit.scores) - _log_loss(fit.y, base)
            if task == "binary" and np.average(change, weights=fit.weight) > 0:
                chosen = 0
                reason = f"{trees} lowered the held-out squared error but increased the log loss; scores are left unchanged"
        return History.of(evaluations, chosen, reason, stopping.evaluation_rows(self.stopping), "squared error", [count])

    def _measure_saturation(self, search: list[_RateFit], grower: CascadeGrower, *, kept: bool) -> Saturation:
        """Fit again on top of the corrected scores, with the same splits: trees of depth 2, then deeper trees.

        In a cross-validation each model continues from the scores of the model of the same fold, so that no outcome of its
        held-out rows was used. ``kept`` is False if scores are left unchanged: ``search`` is then the second pass.
        """
        table, rows, before = grower.table, grower.evaluated_rows, grower.held_out_scores()[:, 0]
        second = search
        if kept:
            grower = replace(grower, starts=[search[0].clipped(F) for F in search[0].grower.F])
            before = search[0].scores
            second = self._search_rates(grower)
        more = int(self.depth) + MORE_LEVELS
        wider = replace(grower.growth, depth=more, leaves=2**more, feature_fraction=1.0)
        deeper = self._search_rates(replace(grower, growth=wider))
        real = table.schema.task == "regression"
        after, after_deeper = ([fit.scores for fit in fits] for fits in (second, deeper))
        found = measure_saturation(
            grower.y[rows], before, after, after_deeper, _take(table.weight, rows), real=real,
            cluster=stopping.cluster_numbers(table, rows),
        )  # fmt: skip
        refitted = isinstance(self.stopping, CrossValidation) and self.stopping.refit
        return replace(found, depth=int(self.depth), models=len(grower.splits), refitted=refitted)

    def _check_parameters(self, table: Table) -> None:
        self._check_single_prediction(table)
        check_integer("depth", self.depth, 1, MAX_DEPTH)
        self._check_clip()
        check_integer("patience", self.patience, 1, MAX_INTEGER)
        check_number("min_rows", self.min_rows, 0)
        check_growth(self)
        if not isinstance(self.saturation, bool):
            raise ArgumentError(f"saturation must be True or False; got {self.saturation!r}", parameter="saturation")

    def _check_clip(self) -> None:
        if isinstance(self.clip, str) and self.clip == "auto":
            return
        try:
            low, high = (float(value) for value in self.clip)
        except (TypeError, ValueError):
            low = high = -1.0
        if not 0 <= low < high <= 1:
            raise ArgumentError(
                f'clip must be "auto" or the lowest and the highest probability; got {self.clip!r}',
                hint="write it as clip=(0, 1)",
                parameter="clip",
            )


class _RateFit:
    """The trees of one learning rate, and the scores and losses of the held-out rows."""

    def __init__(self, start: CascadeGrower, rate: float) -> None:
        self.rate = rate
        self.grower = replace(start, growth=replace(start.growth, learning_rate=rate))
        self.grower.grow()
        rows = start.evaluated_rows
        self.raw = self.grower.held_out_scores()[:, 0]
        self.y, self.weight = start.y[rows], _take(start.table.weight, rows)
        self.cluster = stopping.cluster_numbers(start.table, rows)
        self.base_loss = float(np.average((self.y - start.held_out_scores()[:, 0]) ** 2, weights=self.weight))
        self.clip(None if start.table.schema.task == "regression" else (0.0, 1.0))

    def clip(self, bounds: tuple[float, float] | None) -> None:
        """Set the lowest and the highest score, clip the held-out scores to them, and compute their losses."""
        self.bounds = bounds
        self.scores = self.clipped(self.raw)
        self.losses = (self.y - self.scores) ** 2
        self.loss = float(np.average(self.losses, weights=self.weight))

    def clipped(self, scores: FloatArray) -> FloatArray:
        """Return a copy of scores, clipped to the bounds."""
        return scores.copy() if self.bounds is None else np.clip(scores, *self.bounds)

    def improves_on(self, other: _RateFit) -> bool:
        """Return whether this rate improves on a higher one by RATE_ERRORS standard errors and RATE_SHARE of its gain."""
        gain, error, _ = paired_gain(other.losses - self.losses, self.weight, cluster=self.cluster)
        total = self.base_loss - self.loss
        return total > 0 and gain > max(RATE_ERRORS * error, RATE_SHARE * total)


def _find_bounds(scores: FloatArray, y: FloatArray, weight: FloatArray | None) -> tuple[float, float]:
    """Return the lowest and the highest probability to clip to, since sums of trees may leave [0, 1].

    The lower bound (the upper one likewise) minimises the log loss of the clipped held-out rows plus that of one event at
    the bound: rows without an event do not prove a probability of 0. Candidates are those BOUNDS for which at least
    MIN_EVENTS events would be expected below the bound, or at most one in all rows.
    """
    w = np.ones(len(y)) if weight is None else weight
    bounds = []
    for p, event in ((scores, y), (1 - scores, 1 - y)):
        candidates = [b for b in BOUNDS if b * w.sum() <= 1 or b * w[p < b].sum() >= MIN_EVENTS] or [BOUNDS[0]]
        near = p < candidates[-1]
        p_near, event_near, w_near = p[near], event[near], w[near]
        cost = [-np.log(b) + float((w_near * _log_loss(event_near, np.maximum(p_near, b))).sum()) for b in candidates]
        bounds.append(float(candidates[int(np.argmin(cost))]))
    return bounds[0], 1 - bounds[1]


def _take(weight: FloatArray | None, rows: IntArray) -> FloatArray | None:
    return None if weight is None else weight[rows]


def _log_loss(y: FloatArray, p: FloatArray) -> FloatArray:
    inside = np.clip(p, MIN_PROBABILITY, 1 - MIN_PROBABILITY)
    return np.asarray(-(y * np.log(inside) + (1 - y) * np.log1p(-inside)))
