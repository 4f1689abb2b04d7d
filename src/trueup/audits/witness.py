"""Witnesses, functions of the features that predict residuals on a score level: searches for them, and the result."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import aligned_lines, excluded_lines, number, shorten, significance_level
from trueup.data.bins import format_date
from trueup.data.columns import frame_like, to_jsonable
from trueup.errors import ArgumentError
from trueup.learners.level_regression import (
    BinnedColumns,
    ExternalLearner,
    LevelTrees,
    LineLearner,
    TreeLearner,
    design_matrix,
)
from trueup.metrics.result import html_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.data.table import Feature, Schema, Table
    from trueup.kernels.threads import Workers

RIDGE = 100.0  # ridge penalty in rows: on simulated loans it has more power than 10 or none
MAX_SLOPES_SHOWN = 2
HEADINGS = ("score level", "held-out rows", "observed", "predicted", "gain", "violation", "adjusted p", "witness")
MAX_RULE_WIDTH = 100


@dataclass(frozen=True, eq=False)
class LevelRows:
    """Score level, weight and residual of every row, and indices of training rows; residuals are divided by ``unit``."""

    level: Int32Array
    levels: int
    weight: FloatArray
    residual: FloatArray
    train: IntArray
    unit: float


def _signed(value: float, unit: float) -> str:
    return ("+" if value >= 0 else "-") + number(abs(value) * unit, 2)


class TreeSearch:
    """Search for witnesses, one per score level, among regression trees of a small depth."""

    def __init__(self, table: Table, depth: int, bins: int, min_rows: int) -> None:
        self.name = f"trees of depth {depth}"
        self.depth, self.min_rows = depth, min_rows
        self.features = table.schema.features
        self.data = BinnedColumns([table.columns[feature.name] for feature in self.features], table.schema.levels, bins)
        self.trees: LevelTrees

    def fit(self, rows: LevelRows, workers: Workers) -> FloatArray:
        """Grow one tree on the residuals of each score level; return the predicted residual (shift) of every row."""
        learner = TreeLearner(self.data, rows.weight, self.depth, self.min_rows, RIDGE)
        self.trees = learner.fit(rows.level, rows.train, rows.levels, rows.residual, 0.0, workers)
        numbered = np.tile(np.arange(self.trees.value.shape[1], dtype=np.float64), (rows.levels, 1))
        self.leaf = learner.values(self.trees._replace(value=numbered), rows.level, 0.0, workers).astype(np.int64)
        return self.trees.value[rows.level, self.leaf]

    def describe(self, level: int, own: IntArray, rows: LevelRows, shift: FloatArray) -> str:
        """Describe the leaf with the largest sum of weight * residual * shift over rows ``own``, and its mean residual."""
        w, e, leaf = rows.weight[own], rows.residual[own], self.leaf[own]
        leaves = np.unique(leaf)
        best = int(leaves[np.argmax(np.bincount(leaf, w * e * shift[own])[leaves])])
        observed = np.average(e[leaf == best], weights=w[leaf == best])
        fitted = self.trees.value[level, best]
        return f"{self._path(level, best)}: {_signed(float(observed), rows.unit)} (fitted {_signed(fitted, rows.unit)})"

    def _path(self, level: int, node: int) -> str:
        """Format the conditions on the path to ``node`` in the tree of a score level, one condition per feature."""
        tests: dict[int, list[tuple[int, int, bool]]] = {}
        while node:
            parent = (node - 1) // 2
            feature = int(self.trees.feature[level, parent])
            cut, side = int(self.trees.cut[level, parent]), int(self.trees.side[level, parent])
            tests.setdefault(feature, []).append((cut, side, node == 2 * parent + 1))
            node = parent
        return " & ".join(self._test(feature, tests[feature]) for feature in reversed(tests)) or "all rows"

    def _test(self, position: int, tests: Sequence[tuple[int, int, bool]]) -> str:
        feature = self.features[position]
        if feature.kind == "categorical":
            for cut, _, left in tests:
                if left:
                    return _category(feature, cut)
            others = " or ".join("missing" if cut == 0 else feature.levels[cut - 1] for cut, _, _ in reversed(tests))
            return f"{feature.name} not {others}"
        ends = np.append(self.data.cuts[position], math.inf)
        low = max((float(ends[cut - 1]) for cut, _, left in tests if not left), default=-math.inf)
        high = min((float(ends[cut - 1]) for cut, _, left in tests if left), default=math.inf)
        missing = all((side == 1) == left for _, side, left in tests)
        return _interval(feature, low, high, missing=missing and bool((self.data.codes[position] == 0).any()))


def _category(feature: Feature, code: int) -> str:
    return f"{feature.name}={feature.levels[code - 1]}" if code else f"{feature.name} is missing"


def _interval(feature: Feature, low: float, high: float, *, missing: bool) -> str:
    """Format an interval of a number or date, closed above, such as "18 < age <= 30" or "age <= 30 or missing"."""
    write: Callable[[float], str] = format_date if feature.kind == "date" else "{:.6g}".format
    if low == math.inf:
        return f"{feature.name} is missing"
    if low == -math.inf and high == math.inf:
        return f"{feature.name} is known"
    if low == -math.inf:
        text = f"{feature.name} <= {write(high)}"
    else:
        text = f"{feature.name} > {write(low)}" if high == math.inf else f"{write(low)} < {feature.name} <= {write(high)}"
    return f"{text} or missing" if missing else text


class LineSearch:
    """Search for witnesses, one per score level, among linear functions of the features."""

    name = "linear functions"

    def __init__(self, table: Table, weight: FloatArray) -> None:
        self.features = table.schema.features
        self.data = BinnedColumns([table.columns[feature.name] for feature in self.features], table.schema.levels, 2)
        self.lines = LineLearner(self.data, weight, RIDGE)

    def fit(self, rows: LevelRows, workers: Workers) -> FloatArray:
        """Fit one linear function to the residuals of each score level; return the predicted residual of every row."""
        self.slopes = self.lines.fit(rows.level, rows.train, rows.levels, rows.residual, 0.0, workers)
        return self.lines.values(self.slopes, rows.level, 0.0, workers)

    def describe(self, level: int, own: IntArray, rows: LevelRows, shift: FloatArray) -> str:  # noqa: ARG002
        """Describe the features whose effects on the rows ``own`` of a level have the largest standard deviations."""
        effects = [self._effect(level, position, own, rows) for position in range(len(self.features))]
        effects.sort(key=lambda effect: -effect[0])
        texts = [text for size, text in effects[:MAX_SLOPES_SHOWN] if size > 0]
        return "; ".join(texts) or f"constant {_signed(float(self.slopes[level, 0]), rows.unit)}"

    def _effect(self, level: int, position: int, own: IntArray, rows: LevelRows) -> tuple[float, str]:
        """Return the standard deviation of the effect of a feature on the rows ``own`` of a level, and its description."""
        feature, place = self.features[position], int(self.lines.place[position])
        column, w = self.data.raw[position][own], rows.weight[own]
        if feature.kind != "categorical":
            slope, scale = float(self.slopes[level, place]), float(self.lines.scale[position])
            with np.errstate(over="ignore"):
                scaled = (column - self.lines.centre[position]) / scale
            finite = np.isfinite(scaled)
            size = float(np.std(scaled[finite])) * abs(slope) if finite.any() else 0.0
            unit = f"{number(scale, 3)} day{'' if scale == 1 else 's'}" if feature.kind == "date" else number(scale, 3)
            return size, f"{feature.name}: {_signed(slope, rows.unit)} per {unit}"
        mass = np.bincount(column + 1, w, len(feature.levels) + 1) / w.sum()
        slopes = self.slopes[level, place : place + len(mass)]
        centred = slopes - mass @ slopes
        best = int(np.argmax(mass * centred**2))
        text = f"{_category(feature, best)}: {_signed(float(centred[best]), rows.unit)}"
        return float(np.sqrt(mass @ centred**2)), text


class RegressorSearch:
    """Search for witnesses by any regressor with the interface of scikit-learn, a new one for each score level."""

    def __init__(self, table: Table, make: Callable[[], Any], *, weighted: bool) -> None:
        self.make, self.weighted, self.name = make, weighted, "a regressor"
        columns = [table.columns[feature.name] for feature in table.schema.features]
        self.X = design_matrix(columns, table.schema.levels, len(table))

    def fit(self, rows: LevelRows, workers: Workers) -> FloatArray:
        """Fit a regressor to the residuals of each score level; return the predicted residual (shift) of every row."""
        learner = ExternalLearner(self._make_regressor, self.X, rows.weight if self.weighted else None)
        outcome = rows.residual * rows.unit
        fitted = learner.fit(rows.level, rows.train, rows.levels, outcome, 0.0, workers)
        shift = learner.values(fitted, rows.level, 0.0, workers)
        return np.where(np.isnan(shift), 0.0, shift / rows.unit)

    def _make_regressor(self) -> Any:
        regressor = self.make()
        if not (hasattr(regressor, "fit") and hasattr(regressor, "predict")):
            raise ArgumentError(
                f"learner must return regressors with fit and predict; it returned {type(regressor).__name__}",
                hint="pass a callable, such as lambda: DecisionTreeRegressor(max_depth=2)",
                parameter="learner",
            )
        self.name = type(regressor).__name__
        return regressor

    def describe(self, level: int, own: IntArray, rows: LevelRows, shift: FloatArray) -> str:  # noqa: ARG002
        """Describe the shifts (predicted residuals) of the rows ``own`` by their 5% and 95% quantiles."""
        low, high = np.quantile(shift[own], (0.05, 0.95))
        return f"shifts from {_signed(float(low), rows.unit)} to {_signed(float(high), rows.unit)}"


# The result


@dataclass(frozen=True)
class SwapSettings:
    """The parameters of `swap_regret` that define the family of tests."""

    learner: str
    levels: int
    held_out: float
    min_rows: int
    alpha: float
    random_state: int


@dataclass(frozen=True)
class Witness:
    """The witness of one score level or, combined, of all levels, evaluated on held-out rows.

    Attributes
    ----------
    level : str
        The scores from ``low`` to ``high``.
    rows, rows_held : int
        Rows of the level, and how many of them were held out.
    predicted, observed : float
        Weighted means of score and outcome.
    gain, error : float
        Decrease of the mean squared error by the witness, and its standard error.
    violation : float
        ``E[g (y - p)]`` for the witness g, the shift of the score; equal to ``(gain + E[g^2]) / 2``. 0 under calibration.
    correlation : float
        The violation over ``sqrt(E[g^2] E[(y - p)^2])``.
    p_value, p_adjusted : float
        Of the violation, one-sided; NaN if the level was not tested.
    mde : float
        Minimum detectable effect: the shift (root mean square) that is detected with 80% power at alpha over the number of
        tests, by a witness in exactly its direction.
    tested : bool
        False if there are too few training rows, held-out rows, or clusters of held-out rows.
    rule : str
        A description of the witness: for a tree, the leaf with the largest share of the violation, and the mean residual of
        its held-out rows; for a linear function, the largest slopes.
    """

    level: str
    low: float
    high: float
    rows: int
    rows_held: int
    predicted: float
    observed: float
    gain: float
    error: float
    violation: float
    correlation: float
    p_value: float
    p_adjusted: float
    mde: float
    tested: bool
    rule: str

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; values that are not finite become None."""
        return dict(to_jsonable(dataclasses.asdict(self)))

    def __repr__(self) -> str:
        tail = f"adjusted p {number(self.p_adjusted, 2)}, {shorten(self.rule, 120)}" if self.tested else self.rule
        return (
            f"<scores {self.level}: {self.rows:,} rows, observed {number(self.observed)}, "
            f"predicted {number(self.predicted)}, gain {number(self.gain)} (error {number(self.error, 2)}), {tail}>"
        )


COLUMNS = tuple(Witness.__dataclass_fields__)


@dataclass(frozen=True, eq=False, repr=False)
class SwapRegret:
    """The result of `trueup.swap_regret`: a verdict, and the witness of every score level, worst first.

    Attributes
    ----------
    overall : Witness
        All tested levels together, each with its own witness: one of the family of tests.
    witnesses : tuple of Witness
        One per level, by adjusted p-value; those that could not be tested come last.
    k2 : float
        ``sum Pr[v] E[g (y - p) | v]^2 / E[g^2 | v]`` over levels v: K2 of Globus-Harris et al. (2023, definition 2.1) with
        every witness scaled to norm 1. By their theorem 3.2 (1) the squared error decreases by this much if scores are
        shifted by the best multiple of each witness.
    k2_noise : float
        The expectation of ``k2`` under calibration.
    rows, unlabelled, weightless : int
        Rows audited, and rows set aside.
    left_out : mapping
        Columns left out, and why.
    schema : Schema
    settings : SwapSettings
    """

    overall: Witness
    witnesses: tuple[Witness, ...]
    k2: float
    k2_noise: float
    rows: int
    unlabelled: int
    weightless: int
    left_out: Mapping[str, str]
    schema: Schema
    settings: SwapSettings
    shift: Any = field(repr=False)
    """Fitted shift of every input row; NaN for rows that were set aside."""
    held: Any = field(repr=False)
    """Which input rows were held out."""
    clusters: int = 0
    """Number of clusters; 0 without clusters."""

    def __len__(self) -> int:
        return len(self.witnesses)

    def __iter__(self) -> Iterator[Witness]:
        """Iterate over the witnesses of the levels, worst first."""
        return iter(self.witnesses)

    @property
    def tested(self) -> int:
        """Number of levels tested."""
        return sum(witness.tested for witness in self.witnesses)

    @property
    def rejected(self) -> int:
        """Number of levels whose adjusted p-value is at most alpha."""
        return sum(witness.p_adjusted <= self.settings.alpha for witness in self.witnesses)

    @property
    def miscalibrated(self) -> bool:
        """Whether the test of some level, or that of all levels combined, rejects calibration at alpha."""
        return self.rejected > 0 or self.overall.p_adjusted <= self.settings.alpha

    @property
    def gain(self) -> float:
        """Decrease of the mean squared error of held-out rows if every score is shifted by the witness of its level."""
        return self.overall.gain

    @property
    def error(self) -> float:
        """Standard error of the gain."""
        return self.overall.error

    @property
    def p_value(self) -> float:
        """P-value of the test of all levels combined, not adjusted."""
        return self.overall.p_value

    @property
    def verdict(self) -> str:
        """The result in one sentence."""
        learner, level = self.settings.learner, significance_level(self.settings.alpha)
        if not self.tested:
            clusters = " in enough clusters" if self.clusters else ""
            return f"nothing could be tested: no score level has enough training rows and held-out rows{clusters}"
        family = f"{self.rejected} of {self.tested} score level{'' if self.tested == 1 else 's'} at {level} (Holm)"
        overall = f"all together p = {number(self.p_value, 2)}"
        if not self.miscalibrated:
            return f"nothing found against {learner}: {family}, {overall}"
        if not self.rejected:
            return f"miscalibrated against {learner}: {family}, but {overall}"
        worst = self.witnesses[0]
        return f"miscalibrated against {learner}: {family}, worst at scores {worst.level}: {shorten(worst.rule, 200)}"

    def to_frame(self, like: Any = None) -> Any:
        """Return a frame of the library of ``like``, or a dict of arrays: all levels combined, then one row per level."""
        rows = [self.overall, *self.witnesses]
        columns = {name: np.array([getattr(witness, name) for witness in rows]) for name in COLUMNS}
        return frame_like({name: c.astype(object) if c.dtype.kind == "U" else c for name, c in columns.items()}, like)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: verdict, settings, and witnesses, worst first."""
        summary = ("verdict", "miscalibrated", "rows", "tested", "rejected", "k2", "k2_noise", "unlabelled", "weightless")
        roles = ("task", "outcome", "prediction", "weight", *(["cluster"] if self.schema.cluster else []))
        return {
            **{name: to_jsonable(getattr(self, name)) for name in summary},
            "roles": {name: to_jsonable(getattr(self.schema, name)) for name in roles},
            "features": [feature.name for feature in self.schema.features],
            "settings": dataclasses.asdict(self.settings),
            "left_out": dict(self.left_out),
            "overall": self.overall.to_dict(),
            "witnesses": [witness.to_dict() for witness in self.witnesses],
        }

    def __repr__(self) -> str:
        rows = [HEADINGS, *map(_cells, (self.overall, *self.witnesses))]
        rows = [(*row[:-1], shorten(row[-1], MAX_RULE_WIDTH)) for row in rows]
        lines = aligned_lines(rows, left=(0, len(HEADINGS) - 1))
        return "\n".join([self.verdict, "", *lines, "", *_notes(self)]).rstrip()

    def _repr_html_(self) -> str:
        return html_table(self.verdict, HEADINGS, map(_cells, (self.overall, *self.witnesses)), notes=_notes(self))


def _notes(result: SwapRegret) -> list[str]:
    """Return remarks that qualify the result: change of the squared error, power, levels not tested, excluded rows."""
    overall = result.overall
    lines = []
    if result.tested:
        change = f"{'-' if overall.gain > 0 else '+'}{number(abs(overall.gain), 2)}"
        lines.append(
            f"the witnesses change the mean squared error of {overall.rows_held:,} held-out rows by {change} "
            f"(error {number(overall.error, 2)})"
        )
    if result.miscalibrated and overall.gain <= 0:
        lines.append(
            "they have the right direction and overshoot: the p-value is of the direction (violation), not of the gain; a "
            "calibrator shifts scores by a fraction of them"
        )
    if result.tested and not result.miscalibrated and not math.isnan(overall.mde):
        lines.append(
            f"a shift of {number(overall.mde, 2)} (root mean square) would have been found with 80% power, by a witness in "
            "its direction"
        )
    if result.clusters:
        count = f"{result.clusters:,} cluster{'' if result.clusters == 1 else 's'}"
        name = shorten(str(result.schema.cluster))
        lines.append(f"rows are in {count} (by {name}): held-out rows are whole clusters")
    thin = len(result) - result.tested
    if thin:
        too_few = "rows or clusters" if result.clusters else "rows"
        lines.append(f"not tested: {thin:,} score level{'' if thin == 1 else 's'} with too few {too_few}")
    return lines + excluded_lines(result)


def _cells(witness: Witness) -> tuple[str, ...]:
    return (
        witness.level,
        f"{witness.rows_held:,}",
        *(number(value) for value in (witness.observed, witness.predicted)),
        *(number(value, 2) for value in (witness.gain, witness.violation)),
        number(witness.p_adjusted, 2) if witness.tested else "not tested",
        witness.rule,
    )
