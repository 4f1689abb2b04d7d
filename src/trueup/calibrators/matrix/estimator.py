"""MatrixScaling: an affine function of the logits of several classes, shrunk towards temperature scaling.

The logits z of a row are the logarithms of its probabilities, less their mean over the classes. Corrected logits are

    G = f z + b + v * x + A Q' x,    x = z / s,

with a factor f that all classes share (temperature scaling), intercepts b, factors v per class and, for a matrix of low
rank, A (classes, rank) times the leading principal components Q of x; s is the root mean square of z. The log loss is
convex in (f, b, v, A). Its penalty, ``strength / 2`` times the squares of b, v and A, is that of a normal prior around
temperature scaling; strengths are in rows, and cross-validation chooses that of the diagonal (b and v) first, then that of
A.
"""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import MAX_INTEGER, check_choice, check_integer, check_number
from trueup.calibrators import stopping
from trueup.calibrators.curves.estimators import PRIOR_ROWS, SingleMapCalibrator
from trueup.calibrators.floors import find_floors
from trueup.calibrators.matrix.map import MatrixMap
from trueup.calibrators.stopping import Stopping  # noqa: TC001  (resolved by dataclass tools)
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.data.table import Table, Task


STRENGTHS = (3000.0, 1000.0, 300.0, 100.0, 30.0, 10.0, 3.0, 1.0, 0.3)  # in rows; temperature scaling is infinity
MAX_RANK = 10
FOLDS = 5
TIE = 1e-9  # relative difference of losses below which the larger strength is preferred
WORSE = 2  # candidates in a row with a higher loss, after which no smaller strength is tried
MAX_STEPS, MAX_INNER_STEPS = 50, 60  # of Newton's method, and of conjugate gradients for each of its steps
SEARCH_TOLERANCE, TOLERANCE = 1e-4, 1e-11  # of the decrement of a step, relative to the number of rows
STRUCTURES = ("auto", "diagonal", "low-rank")


class Parameters(NamedTuple):
    """Parameters of the logits, or a direction in them."""

    factor: float
    intercept: FloatArray  # (classes,)
    diagonal: FloatArray  # (classes,)
    left: FloatArray  # (classes, rank)

    def plus(self, step: float, other: Parameters) -> Parameters:
        """Return these parameters plus ``step`` times the others."""
        pairs: Any = zip(self, other, strict=True)
        return Parameters(*(own + step * more for own, more in pairs))

    def dot(self, other: Parameters) -> float:
        """Return the scalar product."""
        pairs: Any = zip(self, other, strict=True)
        return float(sum(np.vdot(own, more) for own, more in pairs))

    def times(self, other: Parameters) -> Parameters:
        """Return the products of the elements."""
        pairs: Any = zip(self, other, strict=True)
        return Parameters(*(own * more for own, more in pairs))


@dataclass(frozen=True, eq=False)
class _ScaledRows:
    """Rows of a fit: logits, their projections, targets and weights."""

    z: FloatArray  # (n, classes)
    x: FloatArray  # z / spread
    projected: FloatArray  # x times the components, (n, rank)
    target: FloatArray  # (n, classes): the outcome, and the prior
    weight: FloatArray  # of a row: the sum of its targets

    def logits(self, theta: Parameters) -> FloatArray:
        """Return G, which is linear in the parameters."""
        G = theta.factor * self.z + theta.diagonal * self.x + theta.intercept
        return np.asarray(G + self.projected @ theta.left.T if theta.left.size else G)

    def adjoint(self, R: FloatArray) -> Parameters:
        """Return the products of R, (n, classes), with the derivatives of G in the parameters."""
        left = R.T @ self.projected
        return Parameters(float(np.vdot(R, self.z)), R.sum(axis=0), np.einsum("ij,ij->j", R, self.x), left)

    def evaluate(self, theta: Parameters) -> tuple[float, FloatArray]:
        """Return the log loss and the predicted probabilities."""
        G = self.logits(theta)
        G -= G.max(axis=1, keepdims=True)
        P = np.exp(G)
        total = P.sum(axis=1, keepdims=True)
        P /= total
        return float((self.weight * np.log(total[:, 0])).sum() - np.vdot(self.target, G)), P

    def curvature(self, P: FloatArray, strengths: Parameters) -> Parameters:
        """Return the diagonal of the Hessian."""
        H = self.weight[:, None] * P * (1 - P)
        mean = (P * self.z).sum(axis=1)
        factor = float((self.weight * ((P * self.z**2).sum(axis=1) - mean**2)).sum())
        own = Parameters(factor, H.sum(axis=0), np.einsum("ij,ij->j", H, self.x**2), H.T @ self.projected**2)
        return own.plus(1.0, strengths)


def _minimise(rows: _ScaledRows, start: Parameters, strengths: Parameters, tolerance: float) -> Parameters:
    """Return the parameters of lowest penalised loss, by Newton's method with preconditioned conjugate gradients.

    Elements of infinite strength stay at 0.
    """
    free = Parameters(*(np.isfinite(own).astype(np.float64) for own in strengths))  # type: ignore[arg-type]
    penalty = Parameters(*(np.where(np.isfinite(own), own, 0.0) for own in strengths))  # type: ignore[arg-type]
    theta, mass = start.times(free), float(rows.weight.sum())
    log_loss, P = rows.evaluate(theta)
    loss = log_loss + 0.5 * theta.times(theta).dot(penalty)
    for _ in range(MAX_STEPS):
        gradient = rows.adjoint(rows.weight[:, None] * P - rows.target).plus(1.0, theta.times(penalty)).times(free)
        step = _newton_step(rows, P, gradient, penalty, free)
        decrement = -gradient.dot(step)
        size = 1.0
        while True:
            moved = theta.plus(size, step)
            log_loss, after = rows.evaluate(moved)
            lower = log_loss + 0.5 * moved.times(moved).dot(penalty)
            if lower <= loss - 1e-4 * size * decrement or size < 1e-6:
                break
            size /= 2
        if lower > loss:  # rounding: the minimum is reached
            return theta
        theta, P, loss = moved, after, lower
        if decrement <= tolerance * mass:
            break
    return theta


def _newton_step(
    rows: _ScaledRows, P: FloatArray, gradient: Parameters, penalty: Parameters, free: Parameters
) -> Parameters:
    """Solve for a Newton step, approximately, by conjugate gradients preconditioned with the diagonal of the Hessian."""
    scale = Parameters(*(1 / np.maximum(own, 1e-300) for own in rows.curvature(P, penalty)))  # type: ignore[arg-type]
    residual = gradient.plus(-2.0, gradient)
    step = gradient.plus(1.0, residual)
    search = residual.times(scale)
    product = residual.dot(search)
    limit = product * min(0.25, math.sqrt(product / max(float(rows.weight.sum()), 1e-300))) ** 2
    for _ in range(MAX_INNER_STEPS):
        if product <= limit or product <= 0:
            break
        change = rows.logits(search)
        S = P * (change - (P * change).sum(axis=1, keepdims=True))
        curved = rows.adjoint(rows.weight[:, None] * S).plus(1.0, search.times(penalty)).times(free)
        bend = search.dot(curved)
        if bend <= 0:
            break
        size = product / bend
        step, residual = step.plus(size, search), residual.plus(-size, curved)
        scaled = residual.times(scale)
        product, before = residual.dot(scaled), product
        search = scaled.plus(product / before, search)
    return step


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
        Of the matrix: a factor per class, or also a matrix of rank 10 (of full rank with fewer classes). "auto" chooses by
        cross-validation.
    strength : "auto" or float
        The penalty of the squares of all parameters but the temperature, in rows: infinity is temperature scaling.
        "auto" chooses by cross-validation.
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
        What multiplies the logits, which are log probabilities less their mean over classes; the unit matrix if scores are
        left unchanged.
    intercept_ : ndarray of shape (k,)
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, the rows it was evaluated on, and the chosen strength.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Guo, Pleiss, Sun & Weinberger (2017), "On calibration of modern neural networks", arXiv:1706.04599, section 4.2: matrix
    and vector scaling. Berta, Holzmüller, Jordan & Bach (2025), "Structured matrix scaling for multi-class calibration":
    penalties by structure.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> random = np.random.default_rng(0)
    >>> Z = 2 * random.normal(size=(20_000, 3))
    >>> y = np.argmax(Z / 2 + [0.5, 0, -0.5] + random.gumbel(size=Z.shape), axis=1)
    >>> fix = tu.MatrixScaling(logits=True).fit(Z, y)
    >>> fix.predict(Z).shape, fix.intercept_.round(1).tolist()
    ((20000, 3), [0.5, 0.0, -0.5])
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
        floors = find_floors(table.prediction)
        z = np.log(np.maximum(table.prediction, floors[0]))
        z -= z.mean(axis=1, keepdims=True)
        spread = math.sqrt(float((z**2).mean())) or 1.0
        x = z / spread
        components = _components(x, 0 if self.structure == "diagonal" else min(MAX_RANK, x.shape[1]))
        w = stopping.scale_weights(table.weight, len(table))
        weight = np.ones(len(table)) if w is None else w
        share = PRIOR_ROWS / max(float(weight.sum()), PRIOR_ROWS)
        target = (share * weight)[:, None] * table.prediction / table.prediction.sum(axis=1, keepdims=True)
        target[np.arange(len(target)), table.y.astype(np.int64)] += weight
        rows = _ScaledRows(z, x, x @ components, target, target.sum(axis=1))
        fold = np.zeros(0, np.int64)
        if isinstance(self.strength, str):
            fold = stopping.assign_folds(table, FOLDS, int(self.random_state))
            strengths = self._choose_strengths(rows, fold)
        else:
            strengths = _strengths(rows, float(self.strength), float(self.strength))
        theta = _minimise(rows, _identity(rows), strengths, TOLERANCE)
        used = bool(theta.left.any())
        return MatrixMap(
            float(theta.factor), theta.factor + theta.diagonal / spread, np.array(theta.intercept),
            theta.left / spread if used else theta.left[:, :0], components if used else components[:, :0], floors,
        )  # fmt: skip

    def _choose_strengths(self, rows: _ScaledRows, fold: IntArray) -> Parameters:
        """Return the strengths of lowest cross-validated loss: of the diagonal, then of the matrix of low rank."""
        folds = [
            (_take(rows, np.flatnonzero(fold != number)), _take(rows, np.flatnonzero(fold == number)))
            for number in range(FOLDS)
        ]
        folds = [pair for pair in folds if all(len(own.weight) for own in pair)]
        best, lowest, starts = self._search(rows, folds, None, math.inf, [_identity(rows)] * len(folds))
        if rows.projected.shape[1]:
            matrix, _, _ = self._search(rows, folds, best, lowest, starts)
            if math.isfinite(matrix) or self.structure == "low-rank":
                return _strengths(rows, best, matrix)
        return _strengths(rows, best, math.inf)

    def _search(
        self,
        rows: _ScaledRows,
        folds: list[tuple[_ScaledRows, _ScaledRows]],
        diagonal: float | None,
        lowest: float,
        starts: list[Parameters],
    ) -> tuple[float, float, list[Parameters]]:
        """Return the best strength (of the matrix if that of the ``diagonal`` is given), its loss, and its parameters."""
        best, chosen, worse = math.inf, starts, 0
        for strength in STRENGTHS if diagonal is not None else (math.inf, *STRENGTHS):
            strengths = _strengths(rows, strength, math.inf) if diagonal is None else _strengths(rows, diagonal, strength)
            starts = [
                _minimise(train, start, strengths, SEARCH_TOLERANCE)
                for (train, _), start in zip(folds, starts, strict=True)
            ]
            loss = sum(held.evaluate(theta)[0] for (_, held), theta in zip(folds, starts, strict=True))
            if loss < lowest - TIE * abs(lowest) or not math.isfinite(lowest):
                best, lowest, chosen, worse = strength, loss, starts, 0
            else:
                worse += 1
            if worse >= WORSE:
                break
        return best, lowest, chosen


def _components(x: FloatArray, rank: int) -> FloatArray:
    """Return the leading principal directions of the rows of ``x``, (classes, rank); all directions need no rotation."""
    classes = x.shape[1]
    if rank in (0, classes):
        return np.eye(classes)[:, :rank]
    _, vectors = np.linalg.eigh(x.T @ x)
    return np.ascontiguousarray(vectors[:, ::-1][:, :rank])


def _identity(rows: _ScaledRows) -> Parameters:
    classes, rank = rows.z.shape[1], rows.projected.shape[1]
    return Parameters(1.0, np.zeros(classes), np.zeros(classes), np.zeros((classes, rank)))


def _strengths(rows: _ScaledRows, diagonal: float, matrix: float) -> Parameters:
    classes, rank = rows.z.shape[1], rows.projected.shape[1]
    return Parameters(0.0, np.full(classes, diagonal), np.full(classes, diagonal), np.full((classes, rank), matrix))


def _take(rows: _ScaledRows, index: IntArray) -> _ScaledRows:
    return replace(rows, **{name: getattr(rows, name)[index] for name in ("z", "x", "projected", "target", "weight")})
