"""swap_regret(): an audit over a class of functions rather than over listed segments.

Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as boosting for regression", theorem 3.2: scores
are multicalibrated against a class of functions just where no function h of it has a lower squared error than the score on
any level set of the score. Where h lowers it by a, the shift g = h - v is the witness:
``E[g (y - v) | v] = (a + E[g^2 | v]) / 2 >= a / 2``, calibrated or not.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.audits.rules import ForeignSearch, LineSearch, Rows, TreeSearch
from trueup.audits.text import number
from trueup.audits.tilted import mean_of, mean_tail, sum_tail
from trueup.audits.witnesses import SwapRegret, SwapSettings, Witness
from trueup.data.folds import shuffle_rows
from trueup.data.frame import read
from trueup.errors import ArgumentError, DataError
from trueup.kernels.threads import Workers
from trueup.learners.level_regression import level_edges
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.audits.rules import Search
    from trueup.data.table import Table


FEWEST = 10  # rows to learn from, and rows to be judged by, of a level that is tested
WHOLE = "all levels"


def swap_regret(
    data: Any,
    *,
    outcome: Any = None,
    prediction: Any = None,
    features: Sequence[Hashable] | Hashable | None = None,
    learner: str | Callable[[], Any] = "tree",
    depth: int = 2,
    levels: int = 10,
    held_out: float = 0.5,
    weight: Any = None,
    task: str = "auto",
    alpha: float = 0.05,
    categorical: Sequence[Hashable] | Hashable = (),
    unlabelled: str = "error",
    min_rows: int = 100,
    bins: int = 64,
    random_state: int = 0,
    threads: int | None = None,
) -> SwapRegret:
    """Look for any function of the features, out of a class, that would improve the scores on one of their levels.

    Scores are cut into levels of about equal numbers of rows. On each, a squared error regression of what the score leaves
    over, ``y - p``, on the features is fitted to some of the rows; its fit is the witness, and the rows held out say
    whether it holds. Scores differ a little within a level: since it is the row's own score that is taken off, their spread
    is no witness against them.

    Parameters
    ----------
    data : pandas, polars or pyarrow frame, dict of arrays, or ndarray
        One row a prediction. For a NumPy array columns are positions.
    outcome : column name or array
        What happened: 0/1, booleans, probabilities in [0, 1], or real numbers with ``task="regression"``.
    prediction : column name or array
        The score.
    features : column names, optional
        What witnesses are functions of; by default every column that has no role. Without any they are constants.
    learner : {"tree", "linear"}, regressor or callable
        The class of functions: regression trees of ``depth`` or straight lines, both shrunk as by 100 more rows that need
        no shift; or copies of a regressor, or what a callable makes, called without arguments for each level. A regressor
        has ``fit(X, y)``, or ``fit(X, y, sample_weight=...)`` where there are weights, and ``predict(X)``. Columns of X are
        numbers, NaN where missing, and 0/1 for each level of a category.
    depth : int
        Of the trees, 1 to 3.
    levels : int
        The most score levels.
    held_out : float
        Share of the rows that judge. Which they are depends on what they hold, not on their order, nor on their outcome; up
        to ten rows alike in features and score are on one side.
    weight : column name or array, optional
        Importance weights. Rows of weight 0 are left out.
    task : {"auto", "binary", "regression"}
    alpha : float
        Bounds the chance of any false alarm, over all levels and over all of them together (Holm).
    categorical : column names
        Numeric columns whose values are names rather than amounts.
    unlabelled : {"error", "drop"}
        What to do with rows that have no outcome.
    min_rows : int
        The fewest rows of a level: there are fewer levels where rows are few.
    bins : int
        The most bins a number is cut into for trees.
    random_state : int
        Which rows are held out.
    threads : int, optional
        By default every core this process may use.

    Returns
    -------
    SwapRegret

    Notes
    -----
    The p-value is that of the violation ``E[g (y - p)]``, 0 under calibration whatever the witness g. A gain in squared
    error asks for more, ``2 E[g (y - p)] > E[g^2]``: a witness that points the right way and goes too far has none, though
    a part of it would (theorem 3.2, 1). For outcomes of 0 and 1, calibration says how the sum is spread, and its tail is
    found by a saddlepoint, which holds with few rows and rare outcomes. For real outcomes it is Student's t corrected for
    skewness, approximate with few rows.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> found = tu.swap_regret(data, outcome="outcome", prediction="prediction", features=["region", "product", "age"])
    >>> found.miscalibrated
    True
    """
    settings = SwapSettings(str(learner), levels, held_out, min_rows, alpha, random_state)
    _check(
        settings,
        {"depth": (depth, 1, 3), "bins": (bins, 2, 65_000), "threads": (1 if threads is None else threads, 1, 2**31 - 1)},
        learner,
    )
    settings = settings.plain()
    table = read(
        data, outcome=outcome, prediction=prediction, weight=weight, features=features, task=task, categorical=categorical,
        unlabelled=unlabelled,  # type: ignore[arg-type]
    )  # fmt: skip
    _check_table(table)
    order, held = _divide(table, settings)
    own = table.take(order)
    rows = _rows(own, held, settings)
    search = _search(own, rows, learner, depth, bins, min_rows)
    shift = search.find(rows, Workers(threads))
    tested = _testable(rows, held)
    shift[~tested[rows.level]] = 0.0
    judged = _Judged(own, rows, held, search, shift, tested, replace(settings, learner=search.name))
    return judged.result(table, order)


def _check(settings: SwapSettings, more: dict[str, tuple[Any, int, int]], learner: object) -> None:
    """Refuse parameters outside their range."""
    whole = {
        **more,
        "levels": (settings.levels, 1, 10_000),
        "min_rows": (settings.min_rows, 1, 2**31 - 1),
        "random_state": (settings.random_state, 0, 2**31 - 1),
    }
    for name, (value, low, high) in whole.items():
        if not isinstance(value, (int, np.integer)) or isinstance(value, bool) or not low <= value <= high:
            raise ArgumentError(f"{name} must be a whole number from {low} to {high:,}; got {value!r}")
    for name, share in (("alpha", settings.alpha), ("held_out", settings.held_out)):
        if not isinstance(share, (int, float, np.floating)) or isinstance(share, bool) or not 0 < share < 1:
            raise ArgumentError(f"{name} must lie between 0 and 1; got {share!r}")
    if isinstance(learner, str):
        check_choice("learner", learner, ("tree", "linear"))
    elif not callable(learner) and not _is_regressor(learner):
        raise ArgumentError(
            f'learner must be "tree", "linear", a regressor or a callable that makes one; got {learner!r}',
            hint="write it as learner=DecisionTreeRegressor(max_depth=2)",
        )


def _check_table(table: Table) -> None:
    if table.outcome is None:
        raise ArgumentError("an audit needs the outcome", hint='name its column, as outcome="y"')
    if table.schema.task == "multiclass":
        raise ArgumentError(
            "swap_regret audits one prediction column",
            hint="pass the probability of one class and whether it was that class; tu.audit takes several",
        )


def _divide(table: Table, settings: SwapSettings) -> tuple[IntArray, BoolArray]:
    """Put the rows into an order of their own, and say which of them are held out."""
    assert table.outcome is not None
    told = [table.outcome] if table.weight is None else [table.outcome, table.weight]
    order, starts = shuffle_rows([*table.columns.values(), table.prediction], told, settings.random_state)
    places = np.append(np.flatnonzero(starts), len(order))
    wanted = settings.held_out * len(order)
    cut = int(places[np.argmin(np.abs(places - wanted))])
    if not 0 < cut < len(order):
        raise DataError(
            f"the {len(order):,} rows cannot be divided into rows to learn from and rows to judge by",
            hint="give more rows, or another share to hold out",
        )
    return order, np.arange(len(order)) < cut


def _rows(table: Table, held: BoolArray, settings: SwapSettings) -> Rows:
    """Cut the scores into levels, and measure residuals in a unit whose squares stay finite."""
    assert table.outcome is not None
    edges = level_edges(table.prediction, np.ones(len(table)), settings.levels, settings.min_rows)
    residual = table.outcome - table.prediction
    unit = 1.0 if table.schema.task == "binary" else float(np.abs(residual).max()) or 1.0
    weight = np.ones(len(table)) if table.weight is None else table.weight / table.weight.mean()
    level = np.searchsorted(edges, table.prediction).astype(np.int32)
    return Rows(level, len(edges) + 1, weight, residual / unit, np.flatnonzero(~held), unit)


def _is_regressor(learner: object) -> bool:
    return not isinstance(learner, type) and hasattr(learner, "fit") and hasattr(learner, "predict")


def _search(table: Table, rows: Rows, learner: Any, depth: int, bins: int, min_rows: int) -> Search:
    if not isinstance(learner, str):
        make = (lambda: copy.deepcopy(learner)) if _is_regressor(learner) else learner
        return ForeignSearch(table, make, weighted=table.weight is not None)
    return TreeSearch(table, depth, bins, min_rows) if learner == "tree" else LineSearch(table, rows.weight)


def _testable(rows: Rows, held: BoolArray) -> BoolArray:
    """Say which levels have rows enough to learn from and to be judged by."""
    judging, size = (np.bincount(level, minlength=rows.levels) for level in (rows.level[held], rows.level))
    return np.asarray((judging >= FEWEST) & (size - judging >= FEWEST))


@dataclass(frozen=True, eq=False)
class _Judged:
    """Witnesses, and the rows that judge them."""

    table: Table
    rows: Rows
    held: BoolArray
    search: Search
    shift: FloatArray
    tested: BoolArray
    settings: SwapSettings

    def result(self, whole: Table, order: IntArray) -> SwapRegret:
        """Test every level and all together, as one family."""
        tested, held, names = self.tested, self.held, self._names()
        overall = self._witness(np.flatnonzero(held), WHOLE, np.arange(len(held)), tested=bool(tested.any()))
        found = [self._level(v, names[v]) for v in range(self.rows.levels)]
        family = [one for one in (overall, *found) if one.tested]
        adjusted = iter(inference.adjust([one.p_value for one in family], "holm"))
        overall, *found = (
            replace(one, p_adjusted=float(next(adjusted))) if one.tested else one for one in (overall, *found)
        )
        found.sort(key=lambda one: (not one.tested, one.p_adjusted, one.p_value, one.low))
        k2, noise = self._k2()
        shift, aside = np.full(_input_rows(whole), np.nan), np.zeros(_input_rows(whole), bool)
        place = order if whole.kept is None else whole.kept[order]
        shift[place], aside[place] = self.shift * self.rows.unit, held
        for array in (shift, aside):
            array.setflags(write=False)
        return SwapRegret(
            overall, tuple(found), k2, noise, len(whole), whole.unlabelled, whole.weightless, whole.left_out, whole.schema,
            self.settings, shift, aside,
        )  # fmt: skip

    def _names(self) -> list[str]:
        """Write the range of scores of each level, with as many digits as tell them apart."""
        rows, p = self.rows, self.table.prediction
        low, high = np.full(rows.levels, math.inf), np.full(rows.levels, -math.inf)
        np.minimum.at(low, rows.level, p)
        np.maximum.at(high, rows.level, p)
        for digits in (3, 5, 9, 17):
            ends = [(number(float(a), digits), number(float(b), digits)) for a, b in zip(low, high, strict=True)]
            names = [a if a == b else f"{a} to {b}" for a, b in ends]
            if len(set(names)) == len(names):
                break
        return names

    def _level(self, v: int, name: str) -> Witness:
        every = np.flatnonzero(self.rows.level == v)
        return self._witness(every[self.held[every]], name, every, tested=bool(self.tested[v]), v=v)

    def _witness(self, own: IntArray, name: str, every: IntArray, *, tested: bool, v: int | None = None) -> Witness:
        """Measure the witness of a level by its held-out rows ``own``."""
        rows, p = self.rows, self.table.prediction[own]
        g, e, w, unit = self.shift[own], rows.residual[own], rows.weight[own], rows.unit
        low, high = (float(end(self.table.prediction[every])) for end in (np.min, np.max))
        if not tested:
            told = f"not tested: {len(every) - len(own)} rows to learn from, {len(own)} to be judged by"
            return Witness(name, low, high, len(every), len(own), *(math.nan,) * 9, tested=False, rule=told)
        predicted = float(np.average(p, weights=w))
        gain = mean_of(g * (2 * e - g), w)
        violation, size = (float(np.average(found, weights=w)) for found in (g * e, g * g))
        spread = math.sqrt(size * float(np.average(e * e, weights=w)))
        return Witness(
            name, low, high, len(every), len(own), predicted, predicted + float(np.average(e, weights=w)) * unit,
            gain.value * unit**2, gain.error * unit**2, violation * unit**2, violation / spread if spread > 0 else 0.0,
            self._p_value(own), math.nan, self._detectable(own), tested=True,
            rule="" if v is None else self.search.tell(v, own, rows, self.shift),
        )  # fmt: skip

    def _p_value(self, own: IntArray) -> float:
        g, e, w = self.shift[own], self.rows.residual[own], self.rows.weight[own]
        if not g.any():
            return 1.0
        if self.table.schema.task == "regression":
            return mean_tail(g * e, w)
        return sum_tail(w * g, self.table.prediction[own], float((w * g * e).sum()))

    def _variance(self, own: IntArray) -> FloatArray:
        """Give the variance of each residual: by the score, or for a real outcome by its square."""
        p = self.table.prediction[own]
        return self.rows.residual[own] ** 2 if self.table.schema.task == "regression" else p * (1 - p)

    def _detectable(self, own: IntArray) -> float:
        """Give the shift along the witness that would be found with 80% power (root mean square)."""
        g, w = self.shift[own], self.rows.weight[own]
        size = float((w * g * g).sum())
        if size == 0:
            return math.nan
        noise = math.sqrt(float((w * w * g * g * self._variance(own)).sum()))
        reach = inference.normal_quantile(2 * self.settings.alpha / (1 + int(self.tested.sum()))) + inference.Z_POWER
        return reach * noise / math.sqrt(size * float(w.sum())) * self.rows.unit

    def _k2(self) -> tuple[float, float]:
        """Sum up squared violations of witnesses of size 1, by the share of their level; and what noise adds to that."""
        own = np.flatnonzero(self.held)
        g, e, w, v = self.shift[own], self.rows.residual[own], self.rows.weight[own], self.rows.level[own]
        size, off, noise = (
            np.bincount(v, found, self.rows.levels) for found in (w * g * g, w * g * e, w * w * g * g * self._variance(own))
        )
        some = size > 0
        scale = self.rows.unit**2 / float(w.sum())
        return tuple(float((found[some] / size[some]).sum()) * scale for found in (off**2, noise))  # type: ignore[return-value]


def _input_rows(table: Table) -> int:
    """Count the rows that came in."""
    return len(table) + table.unlabelled + table.weightless
