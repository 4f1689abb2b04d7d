"""Platt, Temperature and Beta: smooth curves of the score with one to three coefficients, by maximum likelihood.

**Where likelihood has no maximum.** Outcomes of one kind, or outcomes that a threshold of the score separates, drive the
coefficients to infinity. So every fit also counts one row, spread over the scores as the data are, whose outcome is the
score itself: one row's worth of belief that the score was right (a conjugate prior; Diaconis & Ylvisaker 1979). Its own
best fit is no change at all, so that it pulls to the given scores by 1/n and to nothing else, and any fit is finite.
Platt (1999) smooths the labels to the same end, towards 1/2 and with a shift of the mean. Slopes stay within 100.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.curves.classic import Classic
from trueup.calibrators.losses import apply_link
from trueup.calibrators.maps.scores import Curves
from trueup.kernels.cascade import SMALLEST
from trueup.kernels.fitting import fit_lines, fit_logistic, fit_powers

if TYPE_CHECKING:
    from trueup._types import FloatArray
    from trueup.calibrators.curves.classic import Sample
    from trueup.calibrators.stopping import Stopping
    from trueup.data.schema import Task
    from trueup.kernels.pooling import Pooled


PRIOR = 1.0  # rows
STEEPEST = 100.0


def _maximise(
    pooled: Pooled, worth: FloatArray, columns: list[FloatArray], low: list[float], start: list[float]
) -> FloatArray:
    """Fit coefficients of some columns to each segment; where all scores are alike, only the intercept moves."""
    p = np.clip(pooled.score, SMALLEST, 1 - SMALLEST)
    share = np.repeat(PRIOR / np.maximum(worth, PRIOR), np.diff(pooled.at))
    weight, total = pooled.weight * (1 + share), pooled.total + share * pooled.weight * p
    theta = np.tile(np.array(start), (len(pooled), 1))
    lows, highs = np.tile(np.array(low), (len(pooled), 1)), np.tile(np.full(len(low), STEEPEST), (len(pooled), 1))
    if len(columns) > 1:
        lows[:, -1], highs[:, -1] = -np.inf, np.inf
        ends = np.maximum(pooled.at[1:] - 1, 0)
        alike = p[np.minimum(pooled.at[:-1], len(p) - 1)] == p[ends]
        lows[alike, :-1] = highs[alike, :-1] = theta[alike, :-1]
    fit_logistic(pooled.at, np.column_stack(columns), weight, total, lows, highs, theta)
    return theta


class Platt(Classic):
    """Correct scores by a slope and an intercept of their logits, by maximum likelihood: Platt scaling.

    Real outcomes get a straight line by least squares; several classes are corrected one against the rest and made to add
    up to 1.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, a real number (``task="regression"``), or one column for each class. For
        an array a position, 0 by default; a one-dimensional array is the prediction itself.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, several classes for several.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge whether the correction is kept; where it lowers their loss by no more than noise, scores are left
        unchanged. None fits all rows and keeps the result.

    Attributes
    ----------
    slope_, intercept_ : float, or ndarray of shape (k,) for k classes
        Of the logit, where 0 and 1 count as 1e-6 from the end; of the prediction itself for a real outcome.
    model_ : Model
        What is saved and shipped.
    history_ : History
        The loss before and after, and of which rows.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    One row's worth of belief that the given scores are right keeps the fit finite, where outcomes are of one kind or are
    separated by the score; the slope stays within -100 and 100. Where all scores are alike the slope is 1.

    References
    ----------
    Platt (1999), "Probabilistic outputs for support vector machines and comparisons to regularized likelihood methods".

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

    def __init__(
        self,
        prediction: Any = None,
        *,
        task: str = "auto",
        classes: Any = None,
        unlabelled: str = "error",
        stopping: Stopping = None,
    ) -> None:
        self.prediction = prediction
        self.task = task
        self.classes = classes
        self.unlabelled = unlabelled
        self.stopping = stopping

    @property
    def slope_(self) -> Any:
        """The factor of the logit, or of a real prediction; 1 where scores are left unchanged."""
        return self._coefficient(0, 1.0)

    @property
    def intercept_(self) -> Any:
        """What is added to the logit, or to a real prediction; 0 where scores are left unchanged."""
        return self._coefficient(2, 0.0)

    def _fit_output(self, pooled: Pooled, worth: FloatArray, task: Task) -> Curves:
        found = np.empty((len(pooled), 2))
        if task == "regression":
            fit_lines(pooled.at, pooled.score, pooled.weight, pooled.total, found)
        else:
            logit = apply_link(pooled.score, "logit")[:, 0]
            found = _maximise(pooled, worth, [logit, np.ones(len(logit))], [-STEEPEST, 0.0], [1.0, 0.0])
        slope, intercept = found.T
        again = np.zeros(len(slope)) if task == "regression" else slope
        form = "line" if task == "regression" else "logit"
        return Curves.of_coefficients(form, len(pooled), 1, np.column_stack([slope, again, intercept]))


class Temperature(Classic):
    """Make scores sharper or flatter by one factor of their logits, by maximum likelihood: temperature scaling.

    For several classes the factor is that of all log probabilities, which are then made to add up to 1 (softmax): the
    order of the classes of a row never changes.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, or one column for each class. For an array a position, 0 by default; a
        one-dimensional array is the prediction itself.
    task : {"auto", "binary"}
        A real outcome has no temperature, and is refused.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge whether the correction is kept; where it lowers their loss by no more than noise, scores are left
        unchanged. None fits all rows and keeps the result.

    Attributes
    ----------
    temperature_ : float
        What logits are divided by, between 0.01 and 100: above 1 for scores that were too sure of themselves.
    model_ : Model
        What is saved and shipped.
    history_ : History
        The loss before and after, and of which rows.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017), "On calibration of modern neural networks".

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> random = np.random.default_rng(0)
    >>> logit = random.normal(size=50_000)
    >>> y = random.random(50_000) < 1 / (1 + np.exp(-0.5 * logit))
    >>> round(tu.Temperature().fit(1 / (1 + np.exp(-logit)), y).temperature_, 1)
    2.0
    """

    ONLY_PROBABILITIES = True

    def __init__(
        self,
        prediction: Any = None,
        *,
        task: str = "auto",
        classes: Any = None,
        unlabelled: str = "error",
        stopping: Stopping = None,
    ) -> None:
        self.prediction = prediction
        self.task = task
        self.classes = classes
        self.unlabelled = unlabelled
        self.stopping = stopping

    @property
    def temperature_(self) -> float:
        """What logits are divided by; 1 where scores are left unchanged."""
        curves = self._curves()
        return 1.0 if curves is None else float(1 / curves.coefficients[0, 0])

    def _fit_curves(self, sample: Sample) -> Curves:
        return super()._fit_curves(sample) if sample.outputs == 1 else _fit_classes(sample)

    def _fit_output(self, pooled: Pooled, worth: FloatArray, task: Task) -> Curves:  # noqa: ARG002
        factor = _maximise(pooled, worth, [apply_link(pooled.score, "logit")[:, 0]], [1 / STEEPEST], [1.0])[:, 0]
        return Curves.of_coefficients("logit", len(factor), 1, np.column_stack([factor, factor, np.zeros(len(factor))]))


def _fit_classes(sample: Sample) -> Curves:
    """Fit one factor of the log probabilities of all classes; rows alike are added up first, in one order."""
    code = np.zeros(len(sample.outcome), np.int32) if sample.code is None else sample.code
    w = np.ones(len(code)) if sample.weight is None else sample.weight
    keys = [w, sample.outcome, *sample.prediction.T, code]
    order = np.lexsort(keys)
    new = np.append(True, np.any([key[order[1:]] != key[order[:-1]] for key in keys[1:]], axis=0))
    first = np.flatnonzero(new)
    mass = np.add.reduceat(w[order], first)
    mass = np.ldexp(mass, -int(np.frexp(mass.max())[1]))
    rows = order[first]
    P = np.maximum(sample.prediction[rows], SMALLEST)
    F = np.log(P)
    believed = (P / P.sum(axis=1, keepdims=True) * F).sum(axis=1)
    share = (PRIOR / np.maximum(sample.worth, PRIOR))[code[rows]]
    target = mass * (F[np.arange(len(F)), sample.outcome[rows].astype(np.int64)] + share * believed)
    at = np.searchsorted(code[rows], np.arange(sample.groups + 1)).astype(np.int64)
    factor = np.empty(sample.groups)
    fit_powers(at, F, target, mass * (1 + share), 1 / STEEPEST, STEEPEST, factor)
    coefficients = np.column_stack([factor, np.zeros((len(factor), 2))])
    return Curves.of_coefficients("softmax", sample.groups, sample.outputs, coefficients)


class Beta(Classic):
    """Correct scores by ``a ln p - b ln(1 - p) + c`` on the logit scale, a and b not negative: beta calibration.

    It bends where `Platt` is straight: low scores and high ones may be wrong in ways of their own. Fitted by maximum
    likelihood; several classes are corrected one against the rest and made to add up to 1.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, or one column for each class. For an array a position, 0 by default; a
        one-dimensional array is the prediction itself.
    task : {"auto", "binary"}
        A real outcome is refused: the curve is one of probabilities.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge whether the correction is kept; where it lowers their loss by no more than noise, scores are left
        unchanged. None fits all rows and keeps the result.

    Attributes
    ----------
    a_, b_, c_ : float, or ndarray of shape (k,) for k classes
        1, 1 and 0 is no change. a and b are between 0 and 100, so that the order of scores is kept.
    model_ : Model
        What is saved and shipped.
    history_ : History
        The loss before and after, and of which rows.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Kull, Silva Filho & Flach (2017), "Beta calibration: a well-founded and easily implemented improvement on logistic
    calibration for binary classifiers", Equation 4.

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

    ONLY_PROBABILITIES = True

    def __init__(
        self,
        prediction: Any = None,
        *,
        task: str = "auto",
        classes: Any = None,
        unlabelled: str = "error",
        stopping: Stopping = None,
    ) -> None:
        self.prediction = prediction
        self.task = task
        self.classes = classes
        self.unlabelled = unlabelled
        self.stopping = stopping

    @property
    def a_(self) -> Any:
        """The factor of ln p; 1 where scores are left unchanged."""
        return self._coefficient(0, 1.0)

    @property
    def b_(self) -> Any:
        """The factor of -ln(1 - p); 1 where scores are left unchanged."""
        return self._coefficient(1, 1.0)

    @property
    def c_(self) -> Any:
        """The intercept; 0 where scores are left unchanged."""
        return self._coefficient(2, 0.0)

    def _fit_output(self, pooled: Pooled, worth: FloatArray, task: Task) -> Curves:  # noqa: ARG002
        p = np.clip(pooled.score, SMALLEST, 1 - SMALLEST)
        columns = [np.log(p), -np.log1p(-p), np.ones(len(p))]
        found = _maximise(pooled, worth, columns, [0.0, 0.0, 0.0], [1.0, 1.0, 0.0])
        return Curves.of_coefficients("logit", len(pooled), 1, found)
