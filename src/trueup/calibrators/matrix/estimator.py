"""MatrixScaling: an affine function of the logits of several classes, shrunk towards temperature scaling.

The logits z of a row are the logarithms of its probabilities after temperature scaling, mixed with equal probabilities of
all classes: those of one more row. They are not centred: that the matrix sees how sure the model is of a row lets it
correct sure and unsure rows differently. Corrected logits are

    G = f z + b + v * x + A Q' x,    x = z / s,

with a factor f that all classes share, intercepts b, factors v per class and, for a matrix of low rank, A (classes, rank)
times directions Q of x: the mean over the classes and the leading principal components of what differs from it. s is the
root mean square of z. The log loss is convex in (f, b, v, A). Its penalty, ``strength / 2`` times the squares of b, v and
A, is that of a normal prior around temperature scaling; strengths are in rows, and cross-validation chooses that of the
diagonal (b and v) first, then that of A. Between strengths of nearly the same cross-validated loss, chance decides: unless
the best is better than the default by more than one standard error, the default is used. Without b, v and A, the result is
temperature scaling without a mixture.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import MAX_INTEGER, check_choice, check_integer, check_number
from trueup.calibrators import stopping
from trueup.calibrators.base import FitResult
from trueup.calibrators.curves.estimators import PRIOR_ROWS, SingleMapCalibrator
from trueup.calibrators.floors import find_floors
from trueup.calibrators.matrix.map import MatrixMap, mixed_logits
from trueup.calibrators.stopping import Split, Stopping
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.calibrators.floors import Floors
    from trueup.data.table import Table, Task


STRENGTHS = (3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)  # in rows; temperature scaling is infinity
MAX_RANK = 11  # one direction is the mean over the classes
FOLDS = 5
TIE = 1e-9  # relative difference of losses below which the larger strength is preferred
WORSE = 2  # candidates in a row with a higher loss, after which no smaller strength is tried
MAX_STEPS, MAX_INNER_STEPS = 50, 60  # of Newton's method, and of conjugate gradients for each of its steps
MIN_FACTOR = 1e-9  # of the logits, where the fit starts
SEARCH_TOLERANCE, TOLERANCE = 1e-4, 1e-11  # of the decrement of a step, relative to the number of rows
STRUCTURES = ("auto", "diagonal", "low-rank")


@dataclass(frozen=True, eq=False)
class _ScaledRows:
    """Rows of a fit: logits, their projections, targets and weights.

    Parameters are a factor, and an array of a row per class: its intercept, its diagonal element, and its row of A.
    """

    x: FloatArray  # (n, classes): logits / spread
    spread: float
    projected: FloatArray  # x times the components, (n, rank)
    target: FloatArray  # (n, classes): the outcome, and the prior
    weight: FloatArray  # of a row: the sum of its targets

    def logits(self, factor: float, theta: FloatArray) -> FloatArray:
        """Return G, (n, classes), which is linear in the parameters."""
        G = self.x * (factor * self.spread + theta[:, 1])
        G += theta[:, 0]
        if theta[:, 2:].any():
            G += self.projected @ theta[:, 2:].T
        return np.asarray(G)

    def adjoint(self, R: FloatArray) -> tuple[float, FloatArray]:
        """Return the products of R, (n, classes), with the derivatives of G in the parameters."""
        own = np.einsum("ij,ij->j", R, self.x)
        return self.spread * float(own.sum()), np.column_stack([R.sum(axis=0), own, R.T @ self.projected])

    def evaluate(self, factor: float, theta: FloatArray) -> tuple[float, FloatArray]:
        """Return the log loss and the predicted probabilities."""
        G = self.logits(factor, theta)
        G -= G.max(axis=1, keepdims=True)
        P = np.exp(G)
        total = P.sum(axis=1, keepdims=True)
        P /= total
        return float((self.weight * np.log(total[:, 0])).sum() - np.vdot(self.target, G)), P

    def row_losses(self, factor: float, theta: FloatArray) -> FloatArray:
        """Return the log loss of each row."""
        G = self.logits(factor, theta)
        G -= G.max(axis=1, keepdims=True)
        own = np.einsum("ij,ij->i", self.target, G)
        return np.asarray(self.weight * np.log(np.exp(G).sum(axis=1)) - own)

    def curvature(self, P: FloatArray) -> tuple[float, FloatArray]:
        """Return the second derivative in the factor, and the Hessian block of each class, without the penalty."""
        H = self.weight[:, None] * P * (1 - P)
        mean = np.einsum("ij,ij->i", P, self.x)
        factor = float(self.weight @ (np.einsum("ij,ij,ij->i", P, self.x, self.x) - mean**2)) * self.spread**2
        Hx, rank = H * self.x, self.projected.shape[1]
        blocks = np.empty((P.shape[1], 2 + rank, 2 + rank))
        blocks[:, 0, 0], blocks[:, 1, 1] = H.sum(axis=0), np.einsum("ij,ij->j", Hx, self.x)
        blocks[:, 0, 1] = blocks[:, 1, 0] = Hx.sum(axis=0)
        if rank:
            blocks[:, 0, 2:] = blocks[:, 2:, 0] = H.T @ self.projected
            blocks[:, 1, 2:] = blocks[:, 2:, 1] = Hx.T @ self.projected
            products = (self.projected[:, :, None] * self.projected[:, None, :]).reshape(len(P), -1)
            blocks[:, 2:, 2:] = (H.T @ products).reshape(-1, rank, rank)
        return factor, blocks


class Solution(NamedTuple):
    """Parameters of lowest penalised loss."""

    factor: float
    theta: FloatArray  # (classes, 2 + rank)


def _minimise(rows: _ScaledRows, start: Solution, strengths: FloatArray, tolerance: float) -> Solution:
    """Return the parameters of lowest penalised loss, by Newton's method with preconditioned conjugate gradients.

    ``strengths`` has the penalty of the intercepts, of the diagonal, and of each column of A; parameters of infinite
    strength stay at 0, and are left out of the equations if they are those of A.
    """
    free = np.isfinite(strengths)
    if not free[2:].any() and rows.projected.shape[1]:
        reduced = Solution(start.factor, start.theta[:, :2])
        slim = replace(rows, projected=rows.projected[:, :0])
        factor, theta = _minimise(slim, reduced, strengths[:2], tolerance)
        return Solution(factor, np.column_stack([theta, np.zeros((len(theta), len(strengths) - 2))]))
    penalty = np.where(free, strengths, 0.0)
    factor, theta, mass = start.factor, start.theta * free, float(rows.weight.sum())
    log_loss, P = rows.evaluate(factor, theta)
    loss = log_loss + 0.5 * float((penalty * theta**2).sum())
    for _ in range(MAX_STEPS):
        slope, gradient = rows.adjoint(rows.weight[:, None] * P - rows.target)
        gradient = (gradient + penalty * theta) * free
        step, direction = _newton_step(rows, P, slope, gradient, penalty, free)
        decrement = -(slope * step + float(np.vdot(gradient, direction)))
        size = 1.0
        while True:
            moved = Solution(factor + size * step, theta + size * direction)
            log_loss, after = rows.evaluate(*moved)
            lower = log_loss + 0.5 * float((penalty * moved.theta**2).sum())
            if lower <= loss - 1e-4 * size * decrement or size < 1e-6:
                break
            size /= 2
        if lower > loss:  # rounding: the minimum is reached
            break
        (factor, theta), P, loss = moved, after, lower
        if decrement <= tolerance * mass:
            break
    return Solution(factor, theta)


def _newton_step(
    rows: _ScaledRows, P: FloatArray, slope: float, gradient: FloatArray, penalty: FloatArray, free: BoolArray
) -> tuple[float, FloatArray]:
    """Solve for a Newton step, approximately, by conjugate gradients preconditioned with the blocks of the Hessian."""
    bend, blocks = rows.curvature(P)
    own = np.flatnonzero(free)
    inverse = np.zeros(blocks.shape)
    if len(own):
        damped = blocks[:, own[:, None], own] + np.diag(np.maximum(penalty[own], 1e-300))
        damped += np.eye(len(own)) * (1e-12 * np.maximum(np.trace(damped, axis1=1, axis2=2), 1e-300))[:, None, None]
        inverse[:, own[:, None], own] = np.linalg.inv(damped)
    inverse_bend = 1 / max(bend, 1e-300)

    def precondition(f: float, R: FloatArray) -> tuple[float, FloatArray]:
        return inverse_bend * f, np.matmul(inverse, R[:, :, None])[:, :, 0]

    residual = (-slope, -gradient)
    step, total = 0.0, np.zeros(gradient.shape)
    search = precondition(*residual)
    product = residual[0] * search[0] + float(np.vdot(residual[1], search[1]))
    limit = product * min(0.25, math.sqrt(max(product, 0.0) / max(float(rows.weight.sum()), 1e-300))) ** 2
    for _ in range(MAX_INNER_STEPS):
        if product <= limit or product <= 0:
            break
        change = rows.logits(*search)
        change -= np.einsum("ij,ij->i", P, change)[:, None]
        change *= P
        change *= rows.weight[:, None]
        curved_factor, curved = rows.adjoint(change)
        curved = (curved + penalty * search[1]) * free
        curvature = search[0] * curved_factor + float(np.vdot(search[1], curved))
        if curvature <= 0:
            break
        size = product / curvature
        step, total = step + size * search[0], total + size * search[1]
        residual = (residual[0] - size * curved_factor, residual[1] - size * curved)
        scaled = precondition(*residual)
        product, before = residual[0] * scaled[0] + float(np.vdot(residual[1], scaled[1])), product
        search = (scaled[0] + product / before * search[0], scaled[1] + product / before * search[1])
    return step, total


@dataclass(eq=False, repr=False)
class MatrixScaling(SingleMapCalibrator):
    """Correct the logits of several classes by a matrix and intercepts, shrunk towards temperature scaling.

    Structured matrix scaling: each class has a factor and an intercept (a diagonal matrix: vector scaling) and, if that
    lowers the cross-validated loss, a matrix of low rank lets logits of a class depend on those of the others. How far they
    may depart from `Temperature` is chosen by cross-validation.

    Parameters
    ----------
    prediction : column names
        The probabilities to correct, one column per class. For an array positions; by default all columns.
    exclude : column names
        Columns that the correction must not use, such as protected attributes. It uses the scores alone; `explain` reports
        what it does on the levels of these columns.
    structure : {"auto", "diagonal", "low-rank"}
        Of the matrix: a factor per class, or in any case also a matrix of rank 11 (of full rank with fewer classes). "auto"
        chooses by cross-validation.
    strength : "auto" or float
        The penalty of the squares of all parameters but the temperature, in rows: infinity is temperature scaling.
        "auto" chooses by cross-validation; those of Berta et al. (2025) unless others are better by a standard error.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits of the classes, for which a softmax gives probabilities. Corrected
        predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.
    random_state : int
        Seed of the assignment of rows to folds.

    Attributes
    ----------
    matrix_ : ndarray of shape (k, k)
        What multiplies the logits, which are log probabilities after temperature scaling, mixed with a share of equal ones;
        without a matrix, log probabilities less their mean over classes. The unit matrix if scores are left unchanged.
    intercept_ : ndarray of shape (k,)
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017), "On calibration of modern neural networks", arXiv:1706.04599, section 4.2: matrix
    and vector scaling. Berta, Holzmüller, Jordan & Bach (2025), "Structured matrix scaling for multi-class calibration",
    arXiv:2511.03685: penalties by structure.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> random = np.random.default_rng(0)
    >>> Z = 2 * random.normal(size=(20_000, 3))
    >>> y = np.argmax(Z / 2 + [0.5, 0, -0.5] + random.gumbel(size=Z.shape), axis=1)
    >>> fix = tu.MatrixScaling(logits=True).fit(Z, y)
    >>> fix.predict(Z).shape, fix.intercept_.round(1).tolist()
    ((20000, 3), [0.6, 0.0, -0.6])
    """

    prediction: Any = None
    _: KW_ONLY
    exclude: Any = ()
    structure: str = "auto"
    strength: Any = "auto"
    classes: Any = None
    logits: bool = False
    unlabelled: str = "error"
    stopping: Stopping = None
    random_state: int = 0

    task = "auto"

    @property
    def matrix_(self) -> FloatArray:
        """What multiplies the logits, (k, k)."""
        model = self._fitted()
        return model.map.matrix if isinstance(model.map, MatrixMap) else np.eye(len(model.schema.prediction))

    @property
    def intercept_(self) -> FloatArray:
        """What is added to the logit of each class."""
        model = self._fitted()
        return model.map.intercept.copy() if isinstance(model.map, MatrixMap) else np.zeros(len(model.schema.prediction))

    def _check(self, task: Task) -> None:
        if task != "multiclass":
            raise ArgumentError(
                "MatrixScaling needs the scores of several classes; got one prediction column",
                hint="tu.Platt corrects a single score by a slope and an intercept",
                parameter="prediction",
            )
        check_choice("structure", self.structure, STRUCTURES)
        check_integer("random_state", self.random_state, 0, MAX_INTEGER)
        if isinstance(self.strength, str) or self.strength is None:
            check_choice("strength", self.strength, ("auto",))
        elif self.strength != math.inf:
            check_number("strength", self.strength, 0, above=True, hint='"auto" chooses it by cross-validation')

    def _fit_rows(self, table: Table) -> MatrixMap:
        if not isinstance(self.strength, str):
            scaling = _Scaling.of(table, self._rank(table)) if math.isfinite(self.strength) else _Scaling.plain(table)
            strength = float(self.strength)
            return scaling.fit(scaling.scale(table), _strengths(strength, strength, scaling.rank))
        fold = stopping.assign_folds(table, FOLDS, int(self.random_state))
        splits = [Split(fold, number) for number in range(FOLDS)]
        return self._choose_strengths(table, [split for split in splits if 0 < len(split.valid) < len(table)])[1]

    def _cross_fit(self, table: Table, splits: Sequence[Split]) -> tuple[FloatArray, FitResult]:
        """Choose the strengths on ``splits``; return the scores of their held-out rows, and the fit to all rows."""
        scores, fitted = self._choose_strengths(table, splits)
        after = fitted.apply_table(table)
        return scores, FitResult(fitted, self._evaluate(table, after), after)

    def _choose_strengths(self, table: Table, splits: Sequence[Split]) -> tuple[FloatArray, MatrixMap]:
        """Choose the strengths on ``splits``; return the scores of their held-out rows, and the fit to all rows."""
        scaling, rank = _Scaling.of(table, self._rank(table)), self._rank(table)
        rows = scaling.scale(table)
        search, defaults = _StrengthSearch(rows, splits), _default_strengths(rows)
        diagonal = search.run((math.inf, *STRENGTHS), lambda strength: _strengths(strength, math.inf, rank), defaults[0])
        matrix = math.inf
        if rank:
            if self.structure == "low-rank":
                search.lowest = math.inf  # even if the diagonal alone is better
            matrix = search.run(STRENGTHS, lambda strength: _strengths(diagonal, strength, rank), defaults[1])
        if math.isinf(diagonal) and math.isinf(matrix):
            scaling, rank = _Scaling.plain(table), 0
            rows = scaling.scale(table)
            search = _StrengthSearch(rows, splits)
            search.run((math.inf,), lambda strength: _strengths(strength, strength, rank), math.inf)
        return search.scores(), scaling.fit(rows, _strengths(diagonal, matrix, rank))

    def _rank(self, table: Table) -> int:
        return 0 if self.structure == "diagonal" else min(MAX_RANK, table.prediction.shape[1])


@dataclass(frozen=True, eq=False)
class _Scaling:
    """How the logits of rows are computed, scaled and projected: as for the rows of a fit."""

    floors: Floors
    spread: float
    components: FloatArray  # (classes, rank)
    temperature_factor: float = 0.0  # of log probabilities before the mixture; 0 without one
    mixture: float = 0.0  # the share of equal probabilities

    @classmethod
    def plain(cls, table: Table) -> _Scaling:
        """Return logits less their mean over the classes, for temperature scaling."""
        floors = find_floors(table.prediction)
        return cls(floors, _root_mean_square(_centre_logits(table.prediction, floors)), _components(table.prediction, 0))

    @classmethod
    def of(cls, table: Table, rank: int) -> _Scaling:
        """Return logits after temperature scaling and a mixture; a matrix has this rank."""
        plain = cls.plain(table)
        rows = plain.scale(table)
        factor = _minimise(rows, _find_start(rows), _strengths(math.inf, math.inf, 0), TOLERANCE).factor
        if factor <= 0:  # the scores rank the classes the wrong way round
            return replace(plain, components=_components(rows.x, rank))
        mixture = 1 / (1 + float(rows.weight.sum()))
        z = mixed_logits(table.prediction, plain.floors, factor, mixture)
        spread = _root_mean_square(z)
        return cls(plain.floors, spread, _components(z / spread, rank), factor, mixture)

    @property
    def rank(self) -> int:
        return int(self.components.shape[1])

    def logits(self, P: FloatArray) -> FloatArray:
        """Return the logits of probabilities, (n, classes)."""
        if self.mixture:
            return mixed_logits(P, self.floors, self.temperature_factor, self.mixture)
        return _centre_logits(P, self.floors)

    def scale(self, table: Table) -> _ScaledRows:
        """Return the rows of a table with their targets."""
        x = self.logits(table.prediction) / self.spread
        w = stopping.scale_weights(table.weight, len(table))
        weight = np.ones(len(table)) if w is None else w
        share = PRIOR_ROWS / max(float(weight.sum()), PRIOR_ROWS)
        target = (share * weight)[:, None] * table.prediction / table.prediction.sum(axis=1, keepdims=True)
        target[np.arange(len(target)), table.y.astype(np.int64)] += weight
        return _ScaledRows(x, self.spread, x @ self.components, target, target.sum(axis=1))

    def fit(self, rows: _ScaledRows, strengths: FloatArray) -> MatrixMap:
        """Fit the map to scaled rows."""
        factor, theta = _minimise(rows, _find_start(rows), strengths, TOLERANCE)
        left = theta[:, 2:] / self.spread
        rank = left.shape[1] if left.any() else 0
        return MatrixMap(
            factor, factor + theta[:, 1] / self.spread, np.array(theta[:, 0]), np.ascontiguousarray(left[:, :rank]),
            self.components[:, :rank], self.floors, self.temperature_factor, self.mixture,
        )  # fmt: skip


class _StrengthSearch:
    """The search for the strengths of lowest cross-validated loss, from the largest; each fit starts from the last."""

    def __init__(self, rows: _ScaledRows, splits: Sequence[Split]) -> None:
        self.folds = [(_take(rows, split.train), _take(rows, split.valid)) for split in splits]
        self.chosen = [_find_start(rows)] * len(self.folds)
        self.lowest = math.inf

    def run(self, strengths: Sequence[float], penalties: Callable[[float], FloatArray], default: float) -> float:
        """Return the best of ``strengths``, or the ``default`` if it is as good; infinity if none lowers the loss.

        The solutions with this strength become the chosen ones.
        """
        losses: dict[float, FloatArray] = {}
        solutions: dict[float, list[Solution]] = {}
        starts = self.chosen

        def evaluate(strength: float) -> float:
            penalty = penalties(strength)
            own = [
                _minimise(train, start, penalty, SEARCH_TOLERANCE)
                for (train, _), start in zip(self.folds, starts, strict=True)
            ]
            pairs = zip(self.folds, own, strict=True)
            losses[strength] = np.concatenate([held.row_losses(*solution) for (_, held), solution in pairs])
            solutions[strength] = own
            return float(losses[strength].sum())

        best, worse, lowest = math.inf, 0, self.lowest
        for strength in strengths:
            loss = evaluate(strength)
            starts = solutions[strength]
            if math.isinf(lowest) or loss < lowest - TIE * abs(lowest):
                best, lowest, worse = strength, loss, 0
            else:
                worse += 1
            if worse >= WORSE:
                break
        if math.isfinite(best) and evaluate(default) < self.lowest:
            difference = losses[default] - losses[best]
            if difference.sum() <= math.sqrt(len(difference)) * difference.std():
                best = default
        if best in losses and losses[best].sum() < self.lowest:
            self.chosen, self.lowest = solutions[best], float(losses[best].sum())
        return best

    def scores(self) -> FloatArray:
        """Return the probabilities of the held-out rows, fold by fold, by the chosen solutions."""
        pairs = zip(self.folds, self.chosen, strict=True)
        return np.concatenate([held.evaluate(*solution)[1] for (_, held), solution in pairs])


def _centre_logits(P: FloatArray, floors: Floors) -> FloatArray:
    """Return the logarithms of probabilities, less their mean over the classes."""
    z = np.log(np.maximum(P, floors[0]))
    z -= z.mean(axis=1, keepdims=True)
    return z


def _root_mean_square(z: FloatArray) -> float:
    return math.sqrt(float((z**2).mean())) or 1.0


def _components(x: FloatArray, rank: int) -> FloatArray:
    """Return orthogonal directions, (classes, rank): the mean over the classes, then the leading ones of what differs.

    All directions need no rotation.
    """
    classes = x.shape[1]
    if rank in (0, classes):
        return np.eye(classes)[:, :rank]
    centred = x - x.mean(axis=1, keepdims=True)
    _, vectors = np.linalg.eigh(centred.T @ centred)
    mean = np.full((classes, 1), 1 / math.sqrt(classes))
    return np.ascontiguousarray(np.hstack([mean, vectors[:, ::-1][:, : rank - 1]]))


def _find_start(rows: _ScaledRows) -> Solution:
    """Return no change but a factor, halved while that lowers the loss: far too large logits have no curvature."""
    factor, theta = 1.0, np.zeros((rows.x.shape[1], 2 + rows.projected.shape[1]))
    loss = rows.evaluate(factor, theta)[0]
    while factor > MIN_FACTOR and (lower := rows.evaluate(factor / 2, theta)[0]) < loss:
        factor, loss = factor / 2, lower
    return Solution(factor, theta)


def _default_strengths(rows: _ScaledRows) -> tuple[float, float]:
    """Return the default strength of the diagonal, and of the matrix: more parameters have stronger penalties.

    With k classes, Berta et al. (2025) penalise intercepts and the diagonal by 2 k rows, other elements by 2 k (k - 1), of
    unscaled logits. Scaled ones divide by the squared spread; intercepts, which share the strength of the diagonal, do
    not, and the geometric mean stands for both.
    """
    classes = rows.x.shape[1]
    return 2 * classes / rows.spread, 2 * classes * (classes - 1) / rows.spread**2


def _strengths(diagonal: float, matrix: float, rank: int) -> FloatArray:
    """Return the penalty of the intercepts, of the diagonal, and of each column of the matrix of low rank."""
    return np.array([diagonal, diagonal, *[matrix] * rank])


def _take(rows: _ScaledRows, index: IntArray) -> _ScaledRows:
    return replace(rows, **{name: getattr(rows, name)[index] for name in ("x", "projected", "target", "weight")})
