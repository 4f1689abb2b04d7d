"""Regressions that look for a witness on every score level at once, and what each of them says in words."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from trueup.audits.text import number
from trueup.data.bins import format_date
from trueup.errors import ArgumentError
from trueup.kernels.levels import order_by_level
from trueup.learners.level_regression import (
    BinnedColumns,
    LevelTrees,
    LineDesign,
    design_matrix,
    fit_external,
    fit_lines,
    grow_trees,
    line_values,
    min_leaf_rows,
    predict_external,
    tree_values,
)  # fmt: skip

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.data.schema import Feature
    from trueup.data.table import Table
    from trueup.kernels.threads import Workers


RIDGE = 100.0  # rows without a shift that leaves and slopes are shrunk by: on simulated loans of more power than 10 or none
SHOWN = 2  # slopes that are told


@dataclass(frozen=True, eq=False)
class Rows:
    """What a search is given: the level of every row, its weight, and what the score left over.

    ``unit`` is what residuals were divided by.
    """

    level: Int32Array
    levels: int
    weight: FloatArray
    residual: FloatArray
    train: IntArray
    unit: float


class Search(Protocol):
    """A class of functions, and the squared error regression over it."""

    name: str

    def find(self, rows: Rows, workers: Workers) -> FloatArray:
        """Fit the residuals of the training rows of each level; give the shift of every row."""

    def tell(self, v: int, own: IntArray, rows: Rows, shift: FloatArray) -> str:
        """Say in words what the witness of a level is, given the rows that judge it."""


def _signed(value: float, unit: float) -> str:
    return ("+" if value >= 0 else "-") + number(abs(value) * unit, 2)


class TreeSearch:
    """Regression trees of a small depth."""

    def __init__(self, table: Table, depth: int, bins: int, min_rows: int) -> None:
        self.name = f"trees of depth {depth}"
        self.depth, self.least = depth, min_leaf_rows(min_rows, depth)
        self.features = table.schema.features
        self.data = BinnedColumns([table.columns[one.name] for one in self.features], table.schema.levels, bins)
        self.trees: LevelTrees

    def find(self, rows: Rows, workers: Workers) -> FloatArray:
        """Grow one tree on each level."""
        self.trees = grow_trees(
            self.data, rows.level, rows.train, rows.levels, rows.residual, rows.weight, depth=self.depth, least=self.least,
            l2=RIDGE, workers=workers,
        )  # fmt: skip
        numbered = np.tile(np.arange(self.trees.value.shape[1], dtype=np.float64), (rows.levels, 1))
        self.leaf = tree_values(self.data, self.trees._replace(value=numbered), rows.level, workers).astype(np.int64)
        return self.trees.value[rows.level, self.leaf]

    def tell(self, v: int, own: IntArray, rows: Rows, shift: FloatArray) -> str:
        """Tell the leaf that carries most of the violation, and by how much the score is off there."""
        w, e, leaf = rows.weight[own], rows.residual[own], self.leaf[own]
        seats = np.unique(leaf)
        best = int(seats[np.argmax(np.bincount(leaf, w * e * shift[own])[seats])])
        seen = np.average(e[leaf == best], weights=w[leaf == best])
        fitted = self.trees.value[v, best]
        return f"{self._path(v, best)}: {_signed(float(seen), rows.unit)} (fitted {_signed(fitted, rows.unit)})"

    def _path(self, v: int, node: int) -> str:
        """Write the tests on the way to a node, those of one feature as one."""
        tests: dict[int, list[tuple[int, int, bool]]] = {}
        while node:
            above = (node - 1) // 2
            at = int(self.trees.feature[v, above])
            tests.setdefault(at, []).append(
                (int(self.trees.cut[v, above]), int(self.trees.side[v, above]), node == 2 * above + 1)
            )
            node = above
        return " & ".join(self._test(at, tests[at]) for at in reversed(tests)) or "all of them"

    def _test(self, at: int, tests: Sequence[tuple[int, int, bool]]) -> str:
        feature = self.features[at]
        if feature.kind == "categorical":
            for cut, _, left in tests:
                if left:
                    return _category(feature, cut)
            others = " or ".join("missing" if cut == 0 else feature.levels[cut - 1] for cut, _, _ in reversed(tests))
            return f"{feature.name} not {others}"
        ends = np.append(self.data.cuts[at], math.inf)
        low = max((float(ends[cut - 1]) for cut, _, left in tests if not left), default=-math.inf)
        high = min((float(ends[cut - 1]) for cut, _, left in tests if left), default=math.inf)
        missing = all((side == 1) == left for _, side, left in tests)
        return _interval(feature, low, high, missing=missing and bool((self.data.codes[at] == 0).any()))


def _category(feature: Feature, code: int) -> str:
    return f"{feature.name}={feature.levels[code - 1]}" if code else f"{feature.name} is missing"


def _interval(feature: Feature, low: float, high: float, *, missing: bool) -> str:
    """Write a range of a number or date, closed above.

    Examples
    --------
    >>> from trueup.data.schema import Feature
    >>> age = Feature("age", "numeric")
    >>> _interval(age, 18, 30, missing=False), _interval(age, -math.inf, 30, missing=True)
    ('18 < age <= 30', 'age <= 30 or missing')
    """
    write: Callable[[float], str] = format_date if feature.kind == "date" else "{:.6g}".format
    if low == math.inf:
        return f"{feature.name} is missing"
    if low == -math.inf and high == math.inf:
        return f"{feature.name} is known"
    if low == -math.inf:
        told = f"{feature.name} <= {write(high)}"
    else:
        told = f"{feature.name} > {write(low)}" if high == math.inf else f"{write(low)} < {feature.name} <= {write(high)}"
    return f"{told} or missing" if missing else told


class LineSearch:
    """Straight lines in the features."""

    name = "lines"

    def __init__(self, table: Table, weight: FloatArray) -> None:
        self.features = table.schema.features
        self.data = BinnedColumns([table.columns[one.name] for one in self.features], table.schema.levels, 2)
        self.lines = LineDesign.of(self.data, weight)

    def find(self, rows: Rows, workers: Workers) -> FloatArray:
        """Fit one line on each level."""
        self.slopes = fit_lines(
            self.data,
            self.lines,
            rows.level,
            rows.train,
            rows.levels,
            rows.residual,
            rows.weight,
            l2=RIDGE,
            workers=workers,
        )
        return line_values(self.data, self.lines, self.slopes, rows.level, workers)

    def tell(self, v: int, own: IntArray, rows: Rows, shift: FloatArray) -> str:  # noqa: ARG002
        """Tell the largest slopes, by how far they move the rows of the level."""
        found = sorted((self._effect(v, at, own, rows) for at in range(len(self.features))), key=lambda one: -one[0])
        told = [text for size, text in found[:SHOWN] if size > 0]
        constant = f"constant {_signed(float(self.slopes[v, 0]), rows.unit)}"
        return "; ".join(told) or constant

    def _effect(self, v: int, at: int, own: IntArray, rows: Rows) -> tuple[float, str]:
        """Give the spread of what a feature adds on the level, and the most of it in words."""
        feature, place = self.features[at], int(self.lines.place[at])
        column, w = self.data.raw[at][own], rows.weight[own]
        if feature.kind != "categorical":
            slope, scale = float(self.slopes[v, place]), float(self.lines.scale[at])
            with np.errstate(over="ignore"):
                far = (column - self.lines.centre[at]) / scale
            known = np.isfinite(far)
            size = float(np.std(far[known])) * abs(slope) if known.any() else 0.0
            unit = f"{number(scale, 3)} day{'' if scale == 1 else 's'}" if feature.kind == "date" else number(scale, 3)
            return size, f"{feature.name}: {_signed(slope, rows.unit)} for each {unit}"
        mass = np.bincount(column + 1, w, len(feature.levels) + 1) / w.sum()
        slopes = self.slopes[v, place : place + len(mass)]
        centred = slopes - mass @ slopes
        best = int(np.argmax(mass * centred**2))
        text = f"{_category(feature, best)}: {_signed(float(centred[best]), rows.unit)}"
        return float(np.sqrt(mass @ centred**2)), text


class ForeignSearch:
    """Any regressor: one made for each level, fitted and asked as scikit-learn's are."""

    def __init__(self, table: Table, make: Callable[[], Any], *, weighted: bool) -> None:
        self.make, self.weighted = make, weighted
        columns = [table.columns[one.name] for one in table.schema.features]
        self.X = design_matrix(columns, table.schema.levels, len(table))
        self.name = "a regressor"

    def find(self, rows: Rows, workers: Workers) -> FloatArray:
        """Fit a fresh regressor on each level."""
        train, starts = order_by_level(rows.level, rows.train, rows.levels)
        everyone, at = order_by_level(rows.level, np.arange(len(rows.level)), rows.levels)
        shift = np.zeros(len(rows.level))

        def one(v: int) -> str:
            regressor = self.make()
            if not (hasattr(regressor, "fit") and hasattr(regressor, "predict")):
                raise ArgumentError(
                    f"learner must make regressors that have fit and predict; it made {type(regressor).__name__}",
                    hint="write it as learner=lambda: DecisionTreeRegressor(max_depth=2)",
                )
            own = everyone[at[v] : at[v + 1]]
            if starts[v + 1] > starts[v]:
                shift[own] = self._shifts(regressor, train[starts[v] : starts[v + 1]], own, rows)
            return type(regressor).__name__

        self.name = workers.map(one, range(rows.levels))[0]
        return shift

    def _shifts(self, regressor: Any, train: IntArray, own: IntArray, rows: Rows) -> FloatArray:
        weight = rows.weight[train] if self.weighted else None
        fit_external(regressor, self.X[train], rows.residual[train] * rows.unit, weight)
        return predict_external(regressor, self.X[own]) / rows.unit

    def tell(self, v: int, own: IntArray, rows: Rows, shift: FloatArray) -> str:  # noqa: ARG002
        """Tell how far it moves the middle nine tenths of the rows."""
        low, high = np.quantile(shift[own], (0.05, 0.95))
        return f"shifts from {_signed(float(low), rows.unit)} to {_signed(float(high), rows.unit)}"
