"""Curves of the score: Platt, Temperature and Beta by maximum likelihood; Isotonic and Histogram by mean outcomes.

**Prior.** If all outcomes are equal, or a threshold of the score separates them, the likelihood has no maximum. So every
smooth fit includes one pseudo-row, spread over the scores like the data, whose outcome is the score itself (a conjugate
prior; Diaconis & Ylvisaker 1979). It shrinks the fit towards no change by 1/n, and makes every fit finite. Platt (1999)
smooths the labels for the same purpose, towards 1/2 and with a shift of the mean. Slopes are bounded by 10,000.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice, check_integer
from trueup.calibrators import stopping
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.curves.map import CHUNK, CurveMap
from trueup.calibrators.floors import OLD_FLOORS, clip_scores, find_floors
from trueup.calibrators.history import History
from trueup.calibrators.model import Map, UnchangedMap
from trueup.calibrators.stopping import CrossValidation, Split, Stopping, task_loss
from trueup.errors import ArgumentError
from trueup.kernels.fitting import effective_rows, fit_lines, fit_logistic, fit_powers, log_losses, pool_scores
from trueup.kernels.threads import Workers
from trueup.kernels.trees import MIN_PROBABILITY
from trueup.metrics.reliability import find_knots

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.calibrators.scoring import RuleScore
    from trueup.data.table import Table, Task
    from trueup.kernels.fitting import PooledScores

    Piece = tuple[FloatArray, FloatArray]  # knots or upper edges, and their values


PRIOR_ROWS = 1.0
MAX_SLOPE = 10_000.0  # logits may be cosine similarities, to be multiplied by hundreds
MAX_BINS = 100_000
ROUNDING = 1e-9  # a score at which a multiple of the weight of a bin is reached up to rounding starts a bin


class SingleMapCalibrator(Calibrator):
    """Base class of calibrators that fit one map; with a stopping rule it is kept only if it lowers the held-out loss."""

    uses_score = True

    def _fit_map(self, table: Table, progress: Any) -> FitResult:  # noqa: ARG002
        self._check(table.schema.task)
        self._check_stopping()
        joined, splits = self._split_rows(table)
        if self.stopping is None:
            fitted = self._fit_rows(table)
            after = fitted.apply_table(table)
            return FitResult(fitted, self._evaluate(table, after), after)
        scores, fitted = self._out_of_fold(joined, splits)
        rows = np.concatenate([split.valid for split in splits])
        held = joined.take(rows)
        history = self._evaluate(held, scores, self._rule_score(joined, rows))
        if not history.chosen:
            return FitResult(UnchangedMap(), history, held_out=stopping.collect_held_out(joined, rows, held.prediction))
        if isinstance(self.stopping, CrossValidation):
            fitted = self._fit_rows(table)
        return FitResult(fitted, history, held_out=stopping.collect_held_out(joined, rows, scores))

    def _out_of_fold(self, table: Table, splits: Sequence[Split]) -> tuple[FloatArray, Map]:
        """Fit a map per split to its training rows; return the scores of all held-out rows, in turn, and the last map."""
        scores = []
        for split in splits:
            fitted = self._fit_rows(table.take(split.train))
            scores.append(fitted.apply_table(table.take(split.valid)))
        return np.concatenate(scores), fitted

    def _evaluate(self, held: Table, after: FloatArray, score: RuleScore | None = None) -> History:
        """Return the history: losses of the rows ``held`` before and ``after`` the correction, and whether to keep it."""
        both, weight, cluster = (held.prediction, after), held.weight, stopping.cluster_numbers(held)
        losses = (_row_losses(held, scores) for scores in both)
        if score is not None:
            losses, weight, cluster = (score.values(scores) for scores in both), None, None
        compared = stopping.HELD_OUT_LOSS if score is None else f"held-out {score.name}"
        chosen, evaluations = stopping.choose_rounds(losses, weight, cluster=cluster)
        if self.stopping is None:
            chosen, reason = 1, "fitted on all rows; no rows were held out to evaluate it"
        elif chosen:
            reason = f"kept: {stopping.describe_gain(chosen, evaluations, compared)}"
        else:
            change = f"{compared} {evaluations[0][0]:.6g} -> {evaluations[1][0]:.6g}"
            reason = f"{change} is within noise: scores are left unchanged"
        measure = task_loss(held.schema.task).measure if score is None else score.name
        return History.of(evaluations, chosen, reason, stopping.evaluation_rows(self.stopping), measure)

    @abstractmethod
    def _check(self, task: Task) -> None:
        """Validate the parameters and the task."""

    @abstractmethod
    def _fit_rows(self, table: Table) -> Map:
        """Fit the map to all rows of a table."""


def _row_losses(table: Table, scores: FloatArray) -> FloatArray:
    """Return the loss of each row of a table with these scores; log losses are computed by a kernel, in threads."""
    loss, y = task_loss(table.schema.task), table.y
    if loss.name != "log":
        return loss.per_row(y, loss.apply_link(scores))
    out = np.empty(len(y))

    def evaluate_chunk(start: int) -> None:
        rows = slice(start, start + CHUNK)
        log_losses(y[rows], scores[rows], MIN_PROBABILITY, out[rows])

    Workers().map(evaluate_chunk, range(0, len(y), CHUNK))
    return out


def count_rows(weight: FloatArray | None, rows: int, group: Int32Array | None = None, groups: int = 1) -> FloatArray:
    """Return the rows per group: the sum of weights that are row counts, else the effective number (sum w)^2 / sum w^2."""
    if weight is None:
        return np.array([float(rows)]) if group is None else np.bincount(group, minlength=groups).astype(np.float64)
    codes = np.zeros(0, np.int32) if group is None else group
    if stopping.are_row_counts(weight):
        return np.asarray([weight.sum()] if group is None else np.bincount(codes, weight, groups), np.float64)
    counts = np.empty(groups)
    effective_rows(codes, weight / weight.max(), counts)
    return counts


@dataclass(eq=False, repr=False)
class ScoreCalibrator(SingleMapCalibrator):
    """Base class of calibrators that correct the score by a curve per class, which a subclass fits in ``_fit_output``."""

    PROBABILITIES_ONLY = False
    form = "logit"  # of the curves of probabilities; see `CurveMap`

    prediction: Any = None
    _: KW_ONLY
    exclude: Any = ()
    task: str = "auto"
    classes: Any = None
    logits: bool = False
    unlabelled: str = "error"
    stopping: Stopping = None

    def _check(self, task: Task) -> None:
        if self.PROBABILITIES_ONLY and task == "regression":
            raise ArgumentError(
                f"{type(self).__name__} corrects probabilities: it has no meaning for task='regression'",
                hint="Isotonic, Platt (a straight line) and Histogram accept real outcomes",
            )

    def _fit_rows(self, table: Table) -> CurveMap:
        return self._fit_curves(table, count_rows(table.weight, len(table)))

    def _fit_curves(self, table: Table, sizes: FloatArray, group: Int32Array | None = None) -> CurveMap:
        """Fit a curve per class (against the rest) and group; ``sizes`` are rows per group, ``group`` each row's group."""
        P, fits, task = table.prediction.reshape(len(table), -1), [], table.schema.task
        smooth = self.form not in ("knots", "steps")
        logarithms = smooth and self.form != "bounded" and task != "regression"
        floors = find_floors(table.prediction) if logarithms else OLD_FLOORS
        for output, scores in enumerate(P.T):
            y = table.y if len(P.T) == 1 else (table.y == output).astype(np.float64)
            pooled = pool_scores(np.ascontiguousarray(scores), y, table.weight, group, len(sizes))
            if logarithms:
                pooled = replace(pooled, score=clip_scores(pooled.score, floors))
            fits.append(self._fit_output(pooled, sizes, task))
        if not smooth:
            return CurveMap.of_pieces(self.form, list(itertools.chain(*fits)), len(fits))
        form = "line" if task == "regression" else self.form
        return CurveMap.of_coefficients(form, np.concatenate(fits), len(fits), floors)

    @abstractmethod
    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> Any:
        """Fit the curves of one class; return coefficients, (groups, 3), or knots (or edges) and values of each group.

        The scores of smooth curves are not 0 and not 1, so that they have a logit.
        """

    def _curves(self) -> CurveMap | None:
        """Return the fitted curves; None if scores are left unchanged."""
        fitted = self._fitted().map
        return fitted if isinstance(fitted, CurveMap) else None

    def _coefficient(self, column: int, unchanged: float) -> Any:
        """Return a ``column`` of the coefficients, a number or one per class; ``unchanged`` if there is no correction."""
        curves, outputs = self._curves(), len(self._fitted().schema.prediction)
        values = np.full(outputs, unchanged) if curves is None else curves.coefficients[:, column].copy()
        return float(values[0]) if len(values) == 1 else values

    def _pieces(self, side: int) -> Any:
        """Return knots or edges (``side`` 0) or values (1): an array, or a list with one per class; empty if unchanged."""
        curves, outputs = self._curves(), len(self._fitted().schema.prediction)
        pieces = [np.zeros(0) if curves is None else curves.piece(output)[side].copy() for output in range(outputs)]
        return pieces[0] if outputs == 1 else pieces


def _fit_coefficients(
    pooled: PooledScores, sizes: FloatArray, columns: list[FloatArray], low: list[float], start: list[float]
) -> FloatArray:
    """Fit a logistic regression on ``columns`` per group, slopes from ``low`` to 10,000; return coefficients per group."""
    p = pooled.score
    share = np.repeat(PRIOR_ROWS / np.maximum(sizes, PRIOR_ROWS), np.diff(pooled.at))
    weight, total = pooled.weight * (1 + share), pooled.total + share * pooled.weight * p
    theta = np.tile(np.array(start), (len(pooled), 1))
    lows, highs = np.tile(np.array(low), (len(pooled), 1)), np.tile(np.full(len(low), MAX_SLOPE), (len(pooled), 1))
    if len(columns) > 1:
        lows[:, -1], highs[:, -1] = -np.inf, np.inf
        ends = np.maximum(pooled.at[1:] - 1, 0)
        constant = p[np.minimum(pooled.at[:-1], len(p) - 1)] == p[ends]  # equal scores: only an intercept is fitted
        lows[constant, :-1] = highs[constant, :-1] = theta[constant, :-1]
    fit_logistic(pooled.at, np.column_stack(columns), weight, total, lows, highs, theta)
    return theta


def _logit(pooled: PooledScores) -> FloatArray:
    return np.asarray(np.log(pooled.score) - np.log1p(-pooled.score))


class Platt(ScoreCalibrator):
    """Correct scores by a slope and an intercept of their logits, by maximum likelihood: Platt scaling.

    Real outcomes are corrected by a straight line, fitted by least squares; several classes are corrected one against the
    rest and normalised to add up to 1.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position; by default all columns, one per class. A one-dimensional array is the prediction itself.
    exclude : column names
        Columns that the correction must not use, such as protected attributes. It uses the score alone; `explain` reports
        what it does on the levels of these columns.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    slope_, intercept_ : float, or ndarray of shape (k,) for k classes
        Of the logit of the prediction, or of a real prediction; 1 and 0 mean no change.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    A prior that weighs as much as one row, centred at no change, keeps the fit finite if all outcomes are equal or the
    score separates them; the slope is bounded by -10,000 and 10,000. If all scores are equal, the slope is 1.

    References
    ----------
    Platt (1999), "Probabilistic outputs for support vector machines and comparisons to regularized likelihood methods",
    Advances in Large Margin Classifiers, MIT Press.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> random = np.random.default_rng(0)
    >>> logit = random.normal(size=50_000)
    >>> y = random.random(50_000) < 1 / (1 + np.exp(-(0.5 * logit + 1)))
    >>> fix = tu.Platt().fit(1 / (1 + np.exp(-logit)), y)
    >>> round(fix.slope_, 1), round(fix.intercept_, 1)
    (0.5, 1.0)
    """

    slope_ = property(lambda self: self._coefficient(0, 1.0), doc="Factor of the logit or real score; 1 if left unchanged.")
    intercept_ = property(lambda self: self._coefficient(2, 0.0), doc="Added to the logit or real score; 0 if unchanged.")

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> FloatArray:
        if task == "regression":
            fitted = np.empty((len(pooled), 2))
            fit_lines(pooled.at, pooled.score, pooled.weight, pooled.total, fitted)
            slope, intercept = fitted.T
            return np.column_stack([slope, np.zeros(len(slope)), intercept])
        columns = [_logit(pooled), np.ones(len(pooled.score))]
        slope, intercept = _fit_coefficients(pooled, sizes, columns, [-MAX_SLOPE, 0.0], [1.0, 0.0]).T
        return np.column_stack([slope, slope, intercept])


class Temperature(ScoreCalibrator):
    """Divide the logits of scores by one temperature, fitted by maximum likelihood: temperature scaling.

    For several classes the log probabilities are divided by it, and then normalised by a softmax: the order of the classes
    of a row never changes.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, or one column per class. For an array a position; by default
        all columns, one per class. A one-dimensional array is the prediction itself.
    exclude : column names
        Columns that the correction must not use, such as protected attributes. It uses the score alone; `explain` reports
        what it does on the levels of these columns.
    task : {"auto", "binary"}
        Real outcomes are rejected.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    temperature_ : float
        What logits are divided by, between 1e-4 and 1e4: above 1 for overconfident scores.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017), "On calibration of modern neural networks", arXiv:1706.04599.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> random = np.random.default_rng(0)
    >>> logit = random.normal(size=50_000)
    >>> y = random.random(50_000) < 1 / (1 + np.exp(-0.5 * logit))
    >>> round(tu.Temperature().fit(1 / (1 + np.exp(-logit)), y).temperature_, 1)
    2.0
    """

    PROBABILITIES_ONLY = True

    @property
    def temperature_(self) -> float:
        """What logits are divided by; 1 if scores are left unchanged."""
        curves = self._curves()
        return 1.0 if curves is None else float(1 / curves.coefficients[0, 0])

    def _fit_curves(self, table: Table, sizes: FloatArray, group: Int32Array | None = None) -> CurveMap:
        """Fit one factor of the log probabilities of all classes per group; rows equal in scores and outcome are pooled."""
        if table.prediction.ndim == 1:
            return super()._fit_curves(table, sizes, group)
        group = np.zeros(len(table), np.int32) if group is None else group
        w = np.ones(len(table)) if table.weight is None else table.weight
        keys = [w, table.y, *table.prediction.T, group]
        order = np.lexsort(keys)
        new = np.append(True, np.any([key[order[1:]] != key[order[:-1]] for key in keys[1:]], axis=0))
        first = np.flatnonzero(new)
        mass = np.add.reduceat(w[order], first)
        mass = np.ldexp(mass, -int(np.frexp(mass.max())[1]))
        rows = order[first]
        floors = find_floors(table.prediction)
        P = np.maximum(table.prediction[rows], floors[0])
        F = np.log(P)
        prior_mean = (P / P.sum(axis=1, keepdims=True) * F).sum(axis=1)
        prior = (PRIOR_ROWS / np.maximum(sizes, PRIOR_ROWS))[group[rows]]
        target = mass * (F[np.arange(len(F)), table.y[rows].astype(np.int64)] + prior * prior_mean)
        starts = np.searchsorted(group[rows], np.arange(len(sizes) + 1)).astype(np.int64)
        factor = np.empty(len(sizes))
        fit_powers(starts, F, target, mass * (1 + prior), 1 / MAX_SLOPE, MAX_SLOPE, factor)
        return CurveMap.of_coefficients("softmax", np.column_stack([factor, np.zeros((len(sizes), 2))]), P.shape[1], floors)

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> FloatArray:  # noqa: ARG002
        factor = _fit_coefficients(pooled, sizes, [_logit(pooled)], [1 / MAX_SLOPE], [1.0])[:, 0]
        return np.column_stack([factor, factor, np.zeros(len(factor))])


class Beta(ScoreCalibrator):
    """Correct scores by ``a ln p - b ln(1 - p) + c`` on the logit scale, a and b not negative: beta calibration.

    Unlike `Platt`, it can correct low and high scores differently. Fitted by maximum likelihood; several classes are
    corrected one against the rest and normalised to add up to 1.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, or one column per class. For an array a position; by default
        all columns, one per class. A one-dimensional array is the prediction itself.
    exclude : column names
        Columns that the correction must not use, such as protected attributes. It uses the score alone; `explain` reports
        what it does on the levels of these columns.
    task : {"auto", "binary"}
        Real outcomes are rejected: the curve maps probabilities to probabilities.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    a_, b_, c_ : float, or ndarray of shape (k,) for k classes
        1, 1 and 0 mean no change. a and b are between 0 and 10,000, so that the order of scores is kept.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Kull, Silva Filho & Flach (2017), "Beta calibration: a well-founded and easily implemented improvement on logistic
    calibration for binary classifiers", AISTATS, PMLR 54:623-631, Equation 4; the longer doi:10.1214/17-EJS1338SI.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> random = np.random.default_rng(0)
    >>> p = random.uniform(size=50_000)
    >>> y = random.random(50_000) < p**2 / (p**2 + np.sqrt(1 - p))
    >>> fix = tu.Beta().fit(p, y)
    >>> round(fix.a_), round(fix.b_, 1), round(abs(fix.c_))
    (2, 0.5, 0)
    """

    PROBABILITIES_ONLY = True

    a_ = property(lambda self: self._coefficient(0, 1.0), doc="The factor of ln p; 1 if scores are left unchanged.")
    b_ = property(lambda self: self._coefficient(1, 1.0), doc="The factor of -ln(1 - p); 1 if scores are left unchanged.")
    c_ = property(lambda self: self._coefficient(2, 0.0), doc="The intercept; 0 if scores are left unchanged.")

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> FloatArray:  # noqa: ARG002
        p = pooled.score
        columns = [np.log(p), -np.log1p(-p), np.ones(len(p))]
        return _fit_coefficients(pooled, sizes, columns, [0.0, 0.0, 0.0], [1.0, 1.0, 0.0])


class Isotonic(ScoreCalibrator):
    """Correct scores by the best-fitting non-decreasing function: isotonic regression.

    On the training rows the cumulative error is 0 in every interval of corrected scores (Claim 6 of the reference), and
    no threshold decides at a higher cost than before. Several classes are corrected one against the rest and normalised
    to add up to 1; a row whose corrected probabilities are all 0 keeps the given ones.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position; by default all columns, one per class. A one-dimensional array is the prediction itself.
    exclude : column names
        Columns that the correction must not use, such as protected attributes. It uses the score alone; `explain` reports
        what it does on the levels of these columns.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    knots_, values_ : ndarray, or a list with one per class
        The lowest and highest score of each block, and the mean outcome of the block; empty if scores are left unchanged.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    The fit is constant on a block. Between the last score of one block and the first of the next the data contain no
    information: a straight line there keeps the order of scores, has no jump, and leaves every training score at the mean
    of its block. Outside the range of training scores, the value at the nearer end applies.

    References
    ----------
    Gao, Parameswaran & Peng (2017), "On the Interpretability of Conditional Probability Estimates in the Agnostic Setting",
    doi:10.1214/17-EJS1376SI, Algorithm 1 and Claim 6. Zadrozny & Elkan (2002), "Transforming classifier scores into
    accurate multiclass probability estimates", KDD, doi:10.1145/775047.775151.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> p, y = np.repeat([0.1, 0.2, 0.4, 0.6], 5), np.repeat([0, 1, 0, 1], 5)
    >>> fix = tu.Isotonic().fit(p, y)
    >>> fix.knots_.tolist(), fix.values_.tolist()
    ([0.1, 0.2, 0.4, 0.6], [0.0, 0.5, 0.5, 1.0])
    >>> fix.predict(np.array([0.0, 0.3, 0.5])).tolist()
    [0.0, 0.5, 0.75]
    """

    form = "knots"

    knots_ = property(lambda self: self._pieces(0), doc="The scores where blocks begin and end; empty if left unchanged.")
    values_ = property(lambda self: self._pieces(1), doc="The value at each knot; empty if scores are left unchanged.")

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> list[Piece]:  # noqa: ARG002
        return [find_knots(score, total, weight) for score, weight, total in _groups(pooled)]


@dataclass(eq=False, repr=False)
class Histogram(ScoreCalibrator):
    """Correct scores by the mean outcome of the bin they fall in: histogram binning.

    Several classes are corrected one against the rest and normalised to add up to 1; a row whose corrected probabilities
    are all 0 keeps the given ones.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position; by default all columns, one per class. A one-dimensional array is the prediction itself.
    bins : int
        The maximum number of bins; rows of equal score are always in one bin.
    strategy : {"mass", "width"}
        Bins of equal weight, or of equal width: of [0, 1], or between the lowest and the highest score for a real outcome.
        `trueup.metrics.ece` has the same options.
    exclude : column names
        Columns that the correction must not use, such as protected attributes. It uses the score alone; `explain` reports
        what it does on the levels of these columns.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.

    Attributes
    ----------
    edges_, values_ : ndarray, or a list with one per class
        The upper edge of each bin, which belongs to it, and the value of the bin; empty if scores are left unchanged. The
        last bin also contains all higher scores.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    An edge between bins of equal weight is midway between the neighbouring scores. The value of an empty bin of equal
    width is interpolated linearly between the nearest bins with rows; at an end, it is that of the nearest one.

    References
    ----------
    Zadrozny & Elkan (2001), "Obtaining calibrated probability estimates from decision trees and naive Bayesian
    classifiers", ICML.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> p, y = np.repeat([0.1, 0.2, 0.4, 0.6], 5), np.repeat([0, 1, 0, 1], 5)
    >>> fix = tu.Histogram(bins=2).fit(p, y)
    >>> fix.edges_.round(6).tolist(), fix.values_.tolist()
    ([0.3, 1.0], [0.5, 0.5])
    >>> tu.Histogram(bins=4, strategy="width").fit(p, y).values_.tolist()
    [0.5, 0.0, 1.0, 1.0]
    """

    form = "steps"

    _: KW_ONLY
    bins: int = 10
    strategy: str = "mass"

    edges_ = property(lambda self: self._pieces(0), doc="The upper edge of each bin; empty if scores are left unchanged.")
    values_ = property(lambda self: self._pieces(1), doc="The value of each bin; empty if scores are left unchanged.")

    def _check(self, task: Task) -> None:
        super()._check(task)
        check_integer("bins", self.bins, 1, MAX_BINS)
        check_choice("strategy", self.strategy, ("mass", "width"))

    def _fit_output(self, pooled: PooledScores, sizes: FloatArray, task: Task) -> list[Piece]:  # noqa: ARG002
        return [self._fit_bins(*group, real=task == "regression") for group in _groups(pooled)]

    def _fit_bins(self, score: FloatArray, weight: FloatArray, total: FloatArray, *, real: bool) -> Piece:
        """Return upper edges and mean outcomes of bins, interpolated if empty; ``total``: the sum of outcomes per score."""
        low, high = (float(score[0]), float(score[-1])) if real else (0.0, 1.0)
        if self.strategy == "mass":
            inner, first = cut_by_mass(score, weight, int(self.bins))
            return np.append(inner, high), np.add.reduceat(total, first) / np.add.reduceat(weight, first)
        inner = np.arange(1, int(self.bins)) / int(self.bins)
        edges = np.unique(low * (1 - inner) + high * inner)
        edges = edges[edges < high]
        number = np.searchsorted(edges, score, side="left")
        mass, sums = (np.bincount(number, values, len(edges) + 1) for values in (weight, total))
        filled = np.flatnonzero(mass > 0)
        values = np.interp(np.arange(len(mass)), filled, sums[filled] / mass[filled])
        return np.append(edges, high), values


def _groups(pooled: PooledScores) -> Iterator[tuple[FloatArray, FloatArray, FloatArray]]:
    """Yield for each group its distinct scores, and the weight and the sum of outcomes at each score."""
    for start, end in zip(pooled.at[:-1].tolist(), pooled.at[1:].tolist(), strict=True):
        yield pooled.score[start:end], pooled.weight[start:end], pooled.total[start:end]


def cut_by_mass(score: FloatArray, weight: FloatArray, bins: int) -> tuple[FloatArray, IntArray]:
    """Cut ascending scores into ``bins`` bins of equal weight; return the edges between them, and where each starts."""
    mass = np.cumsum(weight)
    below = np.append(0.0, mass[:-1])
    number = np.minimum(np.floor(bins * (below / mass[-1]) + ROUNDING), bins - 1)
    first = np.flatnonzero(np.append(True, number[1:] != number[:-1]))
    left, right = score[first[1:] - 1], score[first[1:]]
    middle = left + (right - left) / 2
    return np.where(middle < right, middle, left), first
