"""Grouped: a classical calibrator per group, shrunk towards the pooled one."""

from __future__ import annotations

import math
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import MAX_INTEGER, check_integer, check_number
from trueup.calibrators.curves.estimators import ScoreCalibrator, SingleMapCalibrator, count_rows
from trueup.calibrators.curves.linear_groups import LinearGroups
from trueup.calibrators.curves.logistic import Logistic
from trueup.calibrators.curves.map import CurveMap
from trueup.calibrators.groups import GroupIndex, fit_groups
from trueup.calibrators.stopping import Stopping, assign_folds, task_loss
from trueup.data.columns import as_tuple
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, Int32Array
    from trueup.calibrators.base import FitResult
    from trueup.data.table import Table, Task


# Candidates: how many rows the pooled curve counts for in a group, from the group's own curve to the pooled curve alone.
SHRINKAGES = (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, math.inf)
FOLDS = 5
MAX_BINS = 4096
TIE = 1e-9  # relative difference of losses below which the larger shrinkage is preferred
OWN_PARAMETERS = ("prediction", "exclude", "task", "categorical", "classes", "logits", "unlabelled", "stopping")
GroupedMap = CurveMap | LinearGroups


@dataclass(eq=False, repr=False)
class Grouped(SingleMapCalibrator):
    """Correct scores per group, each group shrunk towards the pooled correction; small groups are shrunk more.

    Groups are the combinations of some columns. Each has a curve of its own, and there is a pooled curve of all rows; with
    n rows in a group its prediction is ``(n own + k pooled) / (n + k)``. Groups that are too small, or did not occur in
    training, use the pooled curve.

    Parameters
    ----------
    calibrator : Isotonic, Platt, Temperature, Beta, Histogram, Additive, Multiplicative or Logistic
        The method that is fitted to each group, with parameters of the method alone: the roles of columns are parameters
        of Grouped, but for the ``features`` of Logistic.
    by : column names
        The columns that form groups. Numbers and dates are binned; missing values and categories not seen in training form
        a group of their own.
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position, 0 by default.
    shrinkage : "auto" or float
        k: how many rows the pooled curve counts for in each group. 0 uses the curve of the group alone, infinity the
        pooled curve alone. "auto" chooses by cross-validation.
    min_rows : int
        Groups of fewer rows (effective rows, if there are weights) use the pooled curve.
    bins : int
        The maximum number of bins of a number or date, of equal numbers of rows.
    exclude : column names
        Columns that the correction must not use, such as protected attributes; `explain` still reports what the correction
        does on their levels. A name that is also a feature, or is no column, is an error.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    categorical : column names
        Numeric columns that are categories.
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
    random_state : int
        Seed of the assignment of rows to folds.

    Attributes
    ----------
    shrinkage_ : float
        The given or chosen k; infinite if scores are left unchanged.
    groups_ : tuple of str
        The groups that have a curve of their own: "country=BR & age<40".
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The loss before and after, and the rows it was evaluated on.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Efron & Morris (1975), "Data analysis using Stein's estimator and its generalizations",
    doi:10.1080/01621459.1975.10479864, for shrinkage towards the pooled estimate.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.Grouped(tu.Platt(), by=["region"], prediction="prediction").fit(data, data["outcome"])
    >>> fix.history_.loss_after < fix.history_.loss_before
    True
    >>> fix.predict(data).shape
    (20000,)
    """

    calibrator: Any
    by: Any
    _: KW_ONLY
    prediction: Any = None
    shrinkage: Any = "auto"
    min_rows: int = 50
    bins: int = 10
    exclude: Any = ()
    task: str = "auto"
    categorical: Any = ()
    classes: Any = None
    logits: bool = False
    unlabelled: str = "error"
    stopping: Stopping = None
    random_state: int = 0

    @property
    def features(self) -> Any:
        """The columns ``by`` that form groups, and the features of the calibrator, as other calibrators name them."""
        if self.by is None:
            raise ArgumentError(
                "by must name the columns that form groups", hint='write it as by=["country"]', parameter="by"
            )
        if not isinstance(self.calibrator, Logistic):
            return self.by
        own = self.calibrator.features
        return None if own is None else list(dict.fromkeys([*as_tuple(self.by), *as_tuple(own)]))

    @property
    def shrinkage_(self) -> float:
        """The number of rows that the pooled curve counts for in each group; infinite if scores are left unchanged."""
        fitted = self._fitted().map
        return fitted.shrinkage if isinstance(fitted, GroupedMap) else math.inf

    @property
    def groups_(self) -> tuple[str, ...]:
        """The names of the groups that have a curve of their own; none if scores are left unchanged."""
        fitted = self._fitted().map
        if not isinstance(fitted, GroupedMap) or fitted.index is None:
            return ()
        return tuple(fitted.index.name_of(group) for group in range(1, len(fitted.share)))

    def _check(self, task: Task) -> None:
        if not isinstance(self.calibrator, (ScoreCalibrator, Logistic)):
            raise ArgumentError(
                f"calibrator must be a curve of the score, or Logistic; got {self.calibrator!r}",
                hint="write it as tu.Grouped(tu.Platt(), by=...), or with another method that reads the score alone",
                parameter="calibrator",
            )
        for name in OWN_PARAMETERS:
            if getattr(self.calibrator, name) != getattr(type(self.calibrator), name):
                raise ArgumentError(
                    f"calibrator must not set {name}; got {self.calibrator!r}",
                    hint=f"pass {name}= to Grouped itself",
                    parameter="calibrator",
                )
        self.calibrator._check(task)
        check_integer("min_rows", self.min_rows, 1, MAX_INTEGER)
        check_integer("bins", self.bins, 1, MAX_BINS)
        check_integer("random_state", self.random_state, 0, MAX_INTEGER)
        if self.shrinkage not in ("auto", math.inf):
            check_number("shrinkage", self.shrinkage, 0, hint='"auto" chooses it by cross-validation')

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        if isinstance(self.calibrator, Logistic):
            self.calibrator._check_table(table)
        fitted = super()._fit_map(table, progress)
        if not isinstance(fitted.map, GroupedMap):
            return fitted
        k, count = fitted.map.shrinkage, len(fitted.map.share) - 1
        summary = f"no group has {self.min_rows:,} rows: all use the pooled curve"
        if count:
            groups = f"{count:,} group{'' if count == 1 else 's'} of at least {self.min_rows:,} rows"
            shrunk = "use the pooled curve" if math.isinf(k) else f"are shrunk towards the pooled curve by {k:g} rows"
            summary = f"{groups} {shrunk}{' (by cross-validation)' if isinstance(self.shrinkage, str) else ''}"
        return fitted._replace(history=replace(fitted.history, reason=f"{fitted.history.reason}; {summary}"))

    def _fit_rows(self, table: Table) -> GroupedMap:
        curves, sizes = self._fit_groups(table)
        k = self.shrinkage
        if isinstance(k, str):
            k = self._choose_shrinkage(table) if len(sizes) else math.inf
        return _shrink(curves, sizes, float(k))

    def _fit_groups(self, table: Table) -> tuple[GroupedMap, FloatArray]:
        """Fit the pooled curve and one per group of at least ``min_rows`` rows; return the curves and the groups' sizes."""
        grouping, _ = self._positions(table)
        index, position = fit_groups(_with_features(table, grouping), int(self.bins))
        sizes = count_rows(table.weight, len(table), position.astype(np.int32), len(index))
        kept = np.flatnonzero(sizes >= self.min_rows) if index.binners else np.zeros(0, np.int64)
        number = np.zeros(len(index), np.int32)
        number[kept] = np.arange(1, len(kept) + 1)
        group, pooled = number[position], count_rows(table.weight, len(table))
        if isinstance(self.calibrator, Logistic):
            return self._fit_regressions(table, GroupIndex(index.binners, index.cells[kept]), group), sizes[kept]
        own = np.flatnonzero(group)
        if len(own):  # every row for the pooled curve, and once more for its group, if it has one
            rows = np.concatenate([np.arange(len(group)), own])
            code = np.concatenate([np.zeros(len(group), np.int32), group[own]])
            curves = self.calibrator._fit_curves(table.take(rows), np.concatenate([pooled, sizes[kept]]), code)
        else:
            curves = self.calibrator._fit_curves(table, pooled)
        return replace(curves, index=GroupIndex(index.binners, index.cells[kept])), sizes[kept]

    def _fit_regressions(self, table: Table, index: GroupIndex, group: Int32Array) -> LinearGroups:
        """Fit a logistic regression to all rows, and one to each group (1, 2, ...)."""
        grouping, features = self._positions(table)
        own, order = _with_features(table, features), np.argsort(group, kind="stable")
        ends = np.searchsorted(group[order], np.arange(len(index) + 2))
        maps = [self.calibrator._fit_rows(own)]
        maps += [
            self.calibrator._fit_rows(own.take(np.sort(order[ends[g] : ends[g + 1]]))) for g in range(1, len(index) + 1)
        ]
        return LinearGroups(tuple(maps), index, grouping, features, np.zeros(len(maps)))

    def _positions(self, table: Table) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """Return the positions in the schema of the columns that form groups, and of the features of the calibrator."""
        count = len(table.schema.features)
        if not isinstance(self.calibrator, Logistic):
            return tuple(range(count)), ()
        own = self.calibrator.features
        return _places(table, self.by), tuple(range(count)) if own is None else _places(table, own)

    def _choose_shrinkage(self, table: Table) -> float:
        """Return the one of SHRINKAGES with the lowest cross-validated loss; of several that tie, the largest."""
        fold = assign_folds(table, FOLDS, int(self.random_state))
        loss, sums = task_loss(table.schema.task), np.zeros(len(SHRINKAGES))
        for number in range(FOLDS):
            train, valid = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
            if not len(train) or not len(valid):
                continue
            fitted, held = self._fit_groups(table.take(train)), table.take(valid)
            w = np.ones(len(held)) if held.weight is None else held.weight
            for place, k in enumerate(SHRINKAGES):
                after = _shrink(*fitted, k).apply_table(held)
                sums[place] += (w * loss.per_row(held.y, loss.apply_link(after))).sum()
        return SHRINKAGES[int(np.flatnonzero(sums <= sums.min() * (1 + TIE))[-1])]


def _places(table: Table, keys: Any) -> tuple[int, ...]:
    """Return the positions in the schema of columns named by ``keys``; columns of an array are x0, x1, ..."""
    names, places = [feature.name for feature in table.schema.features], set[int]()
    for key in as_tuple(keys):
        labels = [label for label in (str(key), f"x{key}") if label in names]
        places.update(names.index(label) for label in labels[:1])
        if not labels and not {str(key), f"x{key}"} & set(table.left_out):
            raise ArgumentError(f"cannot tell which column is meant by {key!r}", hint="count positions from 0 on")
    return tuple(sorted(places))


def _with_features(table: Table, positions: Sequence[int]) -> Table:
    """Return a table with only the features at these positions of its schema."""
    features = tuple(table.schema.features[position] for position in positions)
    columns = {feature.name: table.columns[feature.name] for feature in features}
    return replace(table, schema=replace(table.schema, features=features), columns=columns)


def _shrink(curves: GroupedMap, sizes: FloatArray, k: float) -> GroupedMap:
    """Shrink each group's curve, fitted to ``sizes`` rows, towards the pooled curve, which counts for ``k`` rows."""
    share = sizes / (sizes + k) if k < math.inf else np.zeros(len(sizes))
    return replace(curves, share=np.append(0.0, share), shrinkage=k)
