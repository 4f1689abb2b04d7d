"""Logistic: a ridge logistic regression of the outcome on the logit of the score and the features."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy import sparse, special

from trueup._validate import MAX_INTEGER, check_integer, check_number
from trueup.calibrators.curves.estimators import MAX_SLOPE, PRIOR_ROWS, SingleMapCalibrator, count_rows
from trueup.calibrators.curves.linear import MAX_COEFFICIENT, LinearMap, effect_starts
from trueup.calibrators.floors import clip_scores, find_floors
from trueup.calibrators.stopping import CrossValidation, Stopping, apply_link
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup._types import AnyArray, FloatArray
    from trueup.calibrators.base import FitResult
    from trueup.data.table import Table, Task

MIN_L2 = 1e-9
MIN_UNIT = 1e-70  # a number that varies less is constant
MAX_EFFECTS = 4096  # a step of Newton's method solves as many equations
MAX_STEPS = 100
MAX_HALVINGS = 40
TOLERANCE = 1e-12  # of a step, relative to the coefficients
ROUNDING = 1e-13  # of a loss, relative to it: close to the minimum it need not fall


@dataclass(eq=False, repr=False)
class Logistic(SingleMapCalibrator):
    """Correct probabilities by a logistic regression on the logit of the score and the features, with a ridge penalty.

    The corrected logit is ``slope logit(p) + intercept + effects of the features``: Platt scaling with an effect per level
    of each category and a slope for each number. Effects add up; errors that depend on combinations of features need
    `MCGrad`, and curves that differ per group `Grouped`.

    Parameters
    ----------
    prediction : column name
        The score to correct, a probability. For an array a position, 0 by default.
    features : column names, optional
        By default every other column. Categories are one-hot encoded, with an effect for missing and unseen levels; numbers
        and dates are standardised, with an effect for missing values, and clipped to the range of the training rows.
    exclude : column names
        Columns that the correction must not use, such as protected attributes; `explain` reports what it does on their
        levels.
    l2 : float
        The ridge penalty ``l2 / 2 * (sum of squared effects)``, added to the sum of the log losses of the rows. Slope and
        intercept are not penalised.
    offset : bool
        Whether the slope of the logit of the score is fixed at 1.
    task : {"auto", "binary"}
        Real outcomes are rejected.
    categorical : column names
        Numeric columns that are categories.
    logits : bool
        Whether the prediction column holds logits, for which a sigmoid gives probabilities. Corrected predictions are
        probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that decide whether the correction is kept; scores are left unchanged unless it lowers their
        loss significantly. None fits all rows and keeps the result.
    random_state : int
        Seed of the assignment of rows to folds.

    Attributes
    ----------
    slope_, intercept_ : float
        Of the logit of the prediction; 1 and 0 if scores are left unchanged.
    effects_ : dict
        Feature to its effects on the logit: of a category a dict of levels, of a number or date the slope per unit (per
        day); empty if scores are left unchanged.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    Without features this is `Platt`: one pseudo-row at no change keeps slope and intercept finite. Weights that are no row
    counts enter through the effective number of rows.

    References
    ----------
    Cox (1958), "Two further applications of a model for binary regression", doi:10.1093/biomet/45.3-4.562, for the
    regression on the logit of a score. Le Cessie & Van Houwelingen (1992), "Ridge estimators in logistic regression",
    doi:10.2307/2347628.

    Examples
    --------
    >>> import trueup as tu
    >>> loans = tu.simulate.lending(10_000, seed=0)
    >>> fix = tu.Logistic("prediction", ["region", "age"]).fit(loans, loans["outcome"])
    >>> max(fix.effects_["region"], key=fix.effects_["region"].get)
    'harbour'
    >>> fix.history_.loss_after < fix.history_.loss_before
    True
    """

    prediction: Any = None
    features: Any = None
    _: KW_ONLY
    exclude: Any = ()
    l2: float = 1.0
    offset: bool = False
    task: str = "auto"
    categorical: Any = ()
    logits: bool = False
    unlabelled: str = "error"
    stopping: Stopping = CrossValidation()  # noqa: RUF009  (a frozen value)
    random_state: int = 0
    classes = None

    @property
    def slope_(self) -> float:
        """The factor of the logit of the score; 1 if scores are left unchanged."""
        fitted = self._fitted().map
        return fitted.slope if isinstance(fitted, LinearMap) else 1.0

    @property
    def intercept_(self) -> float:
        """What is added to the logit besides the effects; 0 if scores are left unchanged."""
        fitted = self._fitted().map
        return fitted.intercept if isinstance(fitted, LinearMap) else 0.0

    @property
    def effects_(self) -> dict[str, float | dict[str, float]]:
        """The effects of each feature on the logit; empty if scores are left unchanged."""
        model = self._fitted()
        if not isinstance(model.map, LinearMap):
            return {}
        effects: dict[str, float | dict[str, float]] = {}
        for feature, start in zip(model.schema.features, model.map.starts.tolist(), strict=False):
            own = model.map.effects[start:].tolist()
            effects[feature.name] = (
                dict(zip(feature.levels, own, strict=False)) if feature.kind == "categorical" else own[0]
            )
        return effects

    def _check(self, task: Task) -> None:
        if task == "regression":
            raise ArgumentError(
                "Logistic corrects probabilities: it has no meaning for task='regression'",
                hint="Platt fits a straight line to real outcomes; MCGrad corrects them by features",
            )
        check_number("l2", self.l2, MIN_L2, hint="it must be positive: effects of levels are not unique without it")
        if not isinstance(self.offset, (bool, np.bool_)):
            raise ArgumentError(f"offset must be True or False; got {self.offset!r}", parameter="offset")
        check_integer("random_state", self.random_state, 0, MAX_INTEGER)

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check_table(table)
        return super()._fit_map(table, progress)

    def _check_table(self, table: Table) -> None:
        """Raise if there are several predictions, or too many levels."""
        self._check_single_prediction(table)
        count = int(effect_starts(table.schema.levels)[-1])
        if count > MAX_EFFECTS:
            widest = max(table.schema.features, key=lambda feature: len(feature.levels))
            raise ArgumentError(
                f"the features have {count:,} levels in all, {len(widest.levels):,} of them in column {widest.name!r}; "
                f"Logistic takes up to {MAX_EFFECTS:,}",
                hint="leave such columns out, or use MCGrad, which groups levels",
                parameter="features",
            )

    def _fit_rows(self, table: Table) -> LinearMap:
        size = float(count_rows(table.weight, len(table))[0])
        w = np.ones(len(table)) if table.weight is None else table.weight * (size / table.weight.sum())
        floors = find_floors(table.prediction)
        p = clip_scores(table.prediction, floors)
        share = PRIOR_ROWS / max(size, PRIOR_ROWS)
        design, ranges, units = _encode(table, p, w)
        start = np.zeros(design.shape[1])
        start[0] = 1.0
        penalty = np.full(len(start), float(self.l2))
        penalty[:2] = 0.0
        free = np.ones(len(start), bool)
        free[0] = not self.offset and bool(p.min() < p.max())
        theta = _minimise(design, w * (1 + share), w * (table.y + share * p), penalty, free, start)
        return LinearMap(float(theta[0]), float(theta[1]), table.schema.levels, theta[2:] / units, ranges, floors)


def _encode(table: Table, p: FloatArray, w: FloatArray) -> tuple[Any, FloatArray, FloatArray]:
    """Return the design (sparse: logit of ``p``, 1 and an entry per feature), ranges of numbers and units of effects.

    A level, or a missing value, has a column of zeros and ones; numbers have mean 0 and variance 1.
    """
    rows, levels = len(table), table.schema.levels
    starts = effect_starts(levels)
    index = np.empty((rows, 2 + len(levels)), np.int32)
    value = np.ones((rows, 2 + len(levels)))
    index[:, :2], value[:, 0] = (0, 1), apply_link(p, "logit")[:, 0]
    ranges, units = np.zeros((len(levels), 3)), np.ones(int(starts[-1]))
    for place, feature in enumerate(table.schema.features):
        column, start = table.columns[feature.name], int(starts[place])
        if levels[place] >= 0:
            code = np.asarray(column, np.int64)
            index[:, 2 + place] = 2 + start + np.where(code >= 0, code, levels[place])
            continue
        missing = np.isnan(column)
        scaled, ranges[place], units[start] = _standardise(np.asarray(column, np.float64), missing, w)
        index[:, 2 + place] = 2 + start + missing
        value[:, 2 + place] = np.where(missing, 1.0, scaled)
    pointers = np.arange(0, index.size + 1, index.shape[1])
    shape = (rows, 2 + len(units))
    return sparse.csr_matrix((value.ravel(), index.ravel(), pointers), shape=shape), ranges, units


def _standardise(column: FloatArray, missing: AnyArray, w: FloatArray) -> tuple[FloatArray, FloatArray, float]:
    """Return a column with mean 0 and variance 1; its mean, lowest and highest value; and the unit it was divided by.

    Infinite values count as the nearest finite one (up to 1e150). A constant column becomes 0, with the unit 1.
    """
    column = np.clip(column, -MAX_COEFFICIENT, MAX_COEFFICIENT)
    finite = np.isfinite(column) & (np.abs(column) < MAX_COEFFICIENT)
    if not finite.any():
        return np.zeros(len(column)), np.zeros(3), 1.0
    low, high = float(column[finite].min()), float(column[finite].max())
    half, middle = high / 2 - low / 2, high / 2 + low / 2
    if half < MIN_UNIT:
        return np.zeros(len(column)), np.array([low, low, low]), 1.0
    scaled = np.where(missing, 0.0, (np.clip(column, low, high) - middle) / half)  # from -1 to 1: squares do not overflow
    known = w * ~missing
    mean = float(known @ scaled / known.sum())
    deviation = float(np.sqrt(known @ (scaled - mean) ** 2 / known.sum()))
    if deviation < MIN_UNIT:
        return np.zeros(len(column)), np.array([low, low, high]), 1.0
    return (scaled - mean) / deviation, np.array([middle + mean * half, low, high]), deviation * half


def _minimise(
    design: Any, weight: FloatArray, total: FloatArray, penalty: FloatArray, free: AnyArray, start: FloatArray
) -> FloatArray:
    """Return the coefficients of lowest penalised log loss by Newton's method; steps that increase it are shortened.

    ``weight`` and ``total`` are the weight and the weighted outcome of each row; only ``free`` coefficients change.
    """

    def loss(theta: FloatArray) -> float:
        logits = design @ theta
        return float((weight * np.logaddexp(0.0, logits) - total * logits).sum() + 0.5 * (penalty * theta**2).sum())

    theta, current = start.copy(), loss(start)
    for _ in range(MAX_STEPS):
        p = special.expit(design @ theta)
        gradient = (design.T @ (weight * p - total) + penalty * theta)[free]
        curved = design.multiply((weight * p * (1 - p))[:, None]).tocsr()
        hessian = (design.T @ curved).toarray()[np.ix_(free, free)] + np.diag(penalty[free])
        step = np.zeros(len(theta))
        step[free] = np.linalg.lstsq(hessian, gradient, rcond=None)[0] if _is_singular(hessian) else np.linalg.solve(
            hessian, gradient
        )  # fmt: skip
        for _ in range(MAX_HALVINGS):
            moved = theta - step
            moved[0] = min(max(moved[0], -MAX_SLOPE), MAX_SLOPE)
            after = loss(moved)
            if after <= current + ROUNDING * abs(current):
                break
            step = step / 2
        else:
            return theta
        done = np.abs(moved - theta).max() <= TOLERANCE * (1 + np.abs(theta).max())
        theta, current = moved, after
        if done:
            break
    return theta


def _is_singular(hessian: FloatArray) -> bool:
    """Return whether a Hessian has no Cholesky factor: probabilities are 0 or 1 to the last digit."""
    try:
        np.linalg.cholesky(hessian)
    except np.linalg.LinAlgError:
        return True
    return False
