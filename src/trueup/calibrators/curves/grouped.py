"""Grouped: a classical calibrator for each group, drawn to that of the whole."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators import splits
from trueup.calibrators.checking import check_whole
from trueup.calibrators.curves.classic import Classic, Judged, Sample, count_rows, sample_of
from trueup.calibrators.losses import task_loss
from trueup.calibrators.maps.grouped import GroupMap, number_cells
from trueup.data.bins import fit_binner
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.calibrators.base import FitResult
    from trueup.calibrators.map import Map
    from trueup.calibrators.maps.scores import Curves
    from trueup.calibrators.stopping import Stopping
    from trueup.data.schema import Task
    from trueup.data.table import Table


# Rows that the whole counts for in a group, as they are tried: from the group alone to the whole alone.
TRIED = (0.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0, 10_000.0, math.inf)
FOLDS = 5
MOST_CELLS = 2**62  # combinations that could be, numbered by 64 bits
MOST_BINS = 4096
ALIKE = 1e-9  # of a loss: nearer than this, the calmer shrinkage is taken
ROLES: dict[str, Any] = {"prediction": None, "task": "auto", "classes": None, "unlabelled": "error", "stopping": None}


class Grouped(Judged):
    """Correct scores group by group, each group drawn to the whole by how few rows it has.

    Groups are the combinations of some columns. Each has a curve of its own, and the whole has one; with n rows in a group
    its prediction is ``(n own + k whole) / (n + k)``. A group that is too small, or was not there, goes by the whole.

    Parameters
    ----------
    calibrator : Isotonic, Platt, Temperature, Beta or Histogram
        What is fitted to each group, with parameters of its method alone: which columns are what is told to Grouped.
    by : column names
        Numbers and dates are cut into bins; a missing value is a group, and so is read a category not seen in the fit.
    prediction : column name, or several
        The score to be corrected: a probability, a real number (``task="regression"``), or one column for each class. For
        an array a position, 0 by default.
    shrinkage : "auto" or float
        k: how many rows the whole counts for in each group. 0 takes groups by themselves, infinity the whole alone. "auto"
        chooses by cross-validation.
    min_rows : int
        Groups of fewer rows (of a smaller effective number of them, where there are weights) go by the whole.
    bins : int
        The most bins of a number or date, of equal numbers of rows.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, several classes for several.
    categorical : column names
        Numeric columns to be read as categories.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge whether the correction is kept; where it lowers their loss by no more than noise, scores are left
        unchanged. None fits all rows and keeps the result.
    random_state : int
        Deals the rows of cross-validations.

    Attributes
    ----------
    shrinkage_ : float
        The k that was told or chosen; infinite where scores are left unchanged.
    groups_ : tuple of str
        The groups that have a curve of their own: "country=BR & age<40".
    model_ : Model
        What is saved and shipped.
    history_ : History
        The loss before and after, and of which rows.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    References
    ----------
    Efron & Morris (1975), "Data analysis using Stein's estimator and its generalizations", for drawing groups to the whole.

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

    def __init__(
        self,
        calibrator: Any,
        by: Any,
        *,
        prediction: Any = None,
        shrinkage: Any = "auto",
        min_rows: int = 50,
        bins: int = 10,
        task: str = "auto",
        categorical: Any = (),
        classes: Any = None,
        unlabelled: str = "error",
        stopping: Stopping = None,
        random_state: int = 0,
    ) -> None:
        self.calibrator = calibrator
        self.by = by
        self.prediction = prediction
        self.shrinkage = shrinkage
        self.min_rows = min_rows
        self.bins = bins
        self.task = task
        self.categorical = categorical
        self.classes = classes
        self.unlabelled = unlabelled
        self.stopping = stopping
        self.random_state = random_state

    @property
    def features(self) -> Any:
        """The columns that groups are made of, by the name that they have in a schema."""
        if self.by is None:
            raise ArgumentError("by must name the columns that groups are made of", hint='write it as by=["country"]')
        return self.by

    @property
    def shrinkage_(self) -> float:
        """How many rows the whole counts for in each group."""
        found = self._fitted().map
        return found.shrinkage if isinstance(found, GroupMap) else math.inf

    @property
    def groups_(self) -> tuple[str, ...]:
        """The groups that have a curve of their own."""
        found = self._fitted().map
        return tuple(found.name_of(at) for at in range(1, len(found.share))) if isinstance(found, GroupMap) else ()

    def _check(self, task: Task) -> None:
        if not isinstance(self.calibrator, Classic):
            raise ArgumentError(
                f"calibrator must be an Isotonic, Platt, Temperature, Beta or Histogram; got {self.calibrator!r}",
                hint="write it as tu.Grouped(tu.Isotonic(), by=...)",
            )
        told = [name for name, value in ROLES.items() if getattr(self.calibrator, name) != value]
        if told:
            raise ArgumentError(
                f"the calibrator of a Grouped must not be told its {told[0]}; got {self.calibrator!r}",
                hint=f"pass {told[0]}= to Grouped itself",
            )
        self.calibrator._check(task)
        check_whole(self, {"min_rows": (1, 2**31 - 1), "bins": (1, MOST_BINS), "random_state": (0, 2**31 - 1)})
        k = self.shrinkage
        number = isinstance(k, (int, float, np.number)) and not isinstance(k, bool) and bool(k >= 0)
        if not number and not (isinstance(k, str) and k == "auto"):
            raise ArgumentError(f'shrinkage must be "auto" or a number, at least 0; got {k!r}')

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        fitted = super()._fit_map(table, progress)
        if not isinstance(fitted.map, GroupMap):
            return fitted
        k, own = fitted.map.shrinkage, len(fitted.map.cells)
        how = " (by cross-validation)" if isinstance(self.shrinkage, str) and own else ""
        drawn = "go by the whole" if math.isinf(k) else f"are drawn to the whole as by {k:g} rows"
        groups = f"{own:,} group{'' if own == 1 else 's'} of {self.min_rows:,} rows or more"
        said = f"{groups} {drawn}{how}" if own else f"no group has {self.min_rows:,} rows: all go by the whole"
        history = replace(fitted.history, reason=f"{fitted.history.reason}; {said}")
        return fitted._replace(history=history)

    def _learn(self, table: Table) -> Map:
        found = self._fit_groups(table)
        k = self._choose(table, found) if isinstance(self.shrinkage, str) else float(self.shrinkage)
        return found.shrunk(k)

    def _fit_groups(self, table: Table) -> _Groups:
        """Fit the whole and every group that is large enough."""
        features = table.schema.features
        cuts = tuple(
            fit_binner(one, splits.repeat_by_weight(table, one.name), default_bins=int(self.bins), for_new_rows=True)
            for one in features
        )
        if math.prod(len(cut.labels) for cut in cuts) > MOST_CELLS:
            raise ArgumentError(
                f"the {len(cuts)} columns of by have too many combinations to be numbered", hint="name fewer columns"
            )
        number = number_cells(cuts, [table.columns[feature.name] for feature in features], len(table))
        cells, place = np.unique(number, return_inverse=True)
        code = place.ravel().astype(np.int32)
        worth = count_rows(table.weight, len(table), code, len(cells))
        kept = np.flatnonzero(worth >= self.min_rows) if cuts else np.zeros(0, np.int64)
        move = np.zeros(len(cells), np.int32)
        move[kept] = np.arange(1, len(kept) + 1)
        curves = self.calibrator._fit_curves(_twice(table, move[code], worth[kept]))
        return _Groups(curves, cuts, cells[kept], worth[kept])

    def _choose(self, table: Table, found: _Groups) -> float:
        """Choose the shrinkage that serves rows best that were not fitted to; of two alike, the calmer."""
        if not len(found.cells):
            return math.inf
        fold = splits.assign_folds(table, FOLDS, int(self.random_state))
        loss, sums = task_loss(table.schema.task), np.zeros(len(TRIED))
        for at in range(FOLDS):
            train, valid = np.flatnonzero(fold != at), np.flatnonzero(fold == at)
            if not len(train) or not len(valid):
                continue
            fitted, held = self._fit_groups(table.take(train)), table.take(valid)
            columns = [held.columns[feature.name] for feature in table.schema.features]
            assert held.outcome is not None
            w = np.ones(len(held)) if held.weight is None else held.weight
            for place, k in enumerate(TRIED):
                after = fitted.shrunk(k).apply(columns, held.prediction, Workers())
                sums[place] += (w * loss.per_row(held.outcome, loss.apply_link(after))).sum()
        return TRIED[int(np.flatnonzero(sums <= sums.min() * (1 + ALIKE))[-1])]


class _Groups:
    """Curves of the whole and of groups, before they are drawn to each other."""

    def __init__(self, curves: Curves, cuts: Any, cells: IntArray, worth: FloatArray) -> None:
        self.curves, self.cuts, self.cells, self.worth = curves, cuts, cells, worth

    def shrunk(self, k: float) -> GroupMap:
        """Draw every group to the whole as if that counted for k rows."""
        own = self.worth / (self.worth + k) if k < math.inf else np.zeros(len(self.worth))
        return GroupMap(self.curves, self.cuts, self.cells, np.append(0.0, own), k)


def _twice(table: Table, group: Int32Array, worth: FloatArray) -> Sample:
    """Take every row for the whole, and once more for its group where it has one."""
    whole = sample_of(table)
    own = np.flatnonzero(group)
    if not len(own):
        return whole
    rows = np.concatenate([np.arange(len(group)), own])
    code = np.concatenate([np.zeros(len(group), np.int32), group[own]])
    weight = None if whole.weight is None else whole.weight[rows]
    return Sample(
        whole.task, whole.prediction[rows], whole.outcome[rows], weight, code, np.concatenate([whole.worth, worth])
    )
