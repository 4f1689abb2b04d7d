"""swap_regret(): test calibration against a class of functions instead of listed segments.

Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as boosting for regression", theorem 3.2: scores
are multicalibrated with respect to a class of functions if and only if no function h of the class has a lower squared error
than the score on any level set of the score. If h lowers it by a, the shift g = h - v is a witness:
``E[g (y - v) | v] = (a + E[g^2 | v]) / 2 >= a / 2``, whether or not the score is calibrated.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer
from trueup.audits.segments import require_outcome
from trueup.audits.text import number
from trueup.audits.witness import LevelRows, LineSearch, RegressorSearch, SwapRegret, SwapSettings, TreeSearch, Witness
from trueup.data.folds import assign_clusters, shuffle_rows
from trueup.data.frame import read
from trueup.errors import ArgumentError, DataError
from trueup.kernels.threads import Workers
from trueup.learners.level_regression import level_edges
from trueup.metrics import inference
from trueup.metrics.inference import MIN_CLUSTERS, MIN_EXCESS

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trueup._types import BoolArray, FloatArray, IntArray
    from trueup.data.table import Table

    WitnessSearch = TreeSearch | LineSearch | RegressorSearch  # a class of functions, and the regression over it

MIN_ROWS_PER_SIDE = 10  # training rows and held-out rows of a level that is tested
CLUSTER_FOLDS = 1000  # of which a share is held out
ALL_LEVELS = "all levels"
MAX_INTEGER = 2**31 - 1
NEAR_MEAN = 1e-3  # standard deviations: closer to the mean, the saddlepoint formula is rounding error
MAX_ITERATIONS = 200
TOLERANCE = 1e-12
MAX_EXPONENT = 600.0


def swap_regret(
    data: Any,
    *,
    outcome: Any = None,
    prediction: Any = None,
    features: Sequence[Hashable] | Hashable | None = None,
    learner: Any = "tree",
    depth: int = 2,
    levels: int = 10,
    held_out: float = 0.5,
    weight: Any = None,
    cluster: Any = None,
    task: str = "auto",
    alpha: float = 0.05,
    categorical: Sequence[Hashable] | Hashable = (),
    unlabelled: str = "error",
    min_rows: int = 100,
    bins: int = 64,
    random_state: int = 0,
    threads: int | None = None,
) -> SwapRegret:
    """Test whether a function of the features, from a given class, improves the scores on one of their levels.

    Scores are divided into levels of about equal numbers of rows. On each level, a squared-error regression of the residual
    ``y - p`` on the features is fitted to the training rows; the fit is the witness, and it is tested on held-out rows.
    Scores vary a little within a level: since each row's own score is subtracted, this is no evidence against them.

    Parameters
    ----------
    data : pandas, polars or pyarrow frame, dict of arrays, or ndarray
        One row per prediction. For a NumPy array columns are positions.
    outcome : column name or array
        The observed outcome: 0/1, booleans, probabilities in [0, 1], or real numbers with ``task="regression"``.
    prediction : column name or array
        The score.
    features : column names, optional
        The arguments of the functions; by default every column without another role. Without any, witnesses are constants.
    learner : {"tree", "linear"}, regressor or callable
        The class of functions: regression trees of ``depth`` or linear functions, both with a ridge penalty equal to 100
        pseudo-rows with residual 0; or copies of a regressor; or what a callable without arguments, called for each score
        level, returns. A regressor has ``fit(X, y)``, or ``fit(X, y, sample_weight=...)`` if there are weights, and
        ``predict(X)``. Columns of X are numbers, NaN where missing, and 0/1 for each level of a category.
    depth : int
        Depth of the trees, 1 to 3.
    levels : int
        Maximum number of score levels.
    held_out : float
        Share of the rows that are held out. The split depends on the values of features and score, not on the order of rows
        nor on the outcome; up to ten rows with equal features and score stay together.
    weight : column name or array, optional
        Importance weights. Rows of weight 0 are left out.
    cluster : column name or array, optional
        Identifies rows that belong together, such as the rows of one customer: whole clusters are held out, and p-values
        and standard errors are those of sums over clusters. Every row needs an identifier. Levels whose held-out rows are
        in fewer than 10 effective clusters are not tested.
    task : {"auto", "binary", "regression"}
    alpha : float
        Controls the family-wise error rate over all levels and their combination (Holm).
    categorical : column names
        Numeric columns whose values are categories rather than amounts.
    unlabelled : {"error", "drop"}
        How to treat rows without an outcome.
    min_rows : int
        Minimum number of rows per level: with few rows there are fewer levels.
    bins : int
        Maximum number of bins per numeric column, for trees.
    random_state : int
        Seed of the split into training and held-out rows.
    threads : int, optional
        Defaults to the cores available to this process.

    Returns
    -------
    SwapRegret

    Notes
    -----
    The p-value is that of the violation ``E[g (y - p)]``, which is 0 under calibration for any witness g. A gain in squared
    error requires more, ``2 E[g (y - p)] > E[g^2]``: a witness in the right direction that overshoots has none, though a
    multiple of it would (Globus-Harris et al. 2023, theorem 3.2, part 1). For outcomes of 0 and 1, calibration determines
    the distribution of the sum, and its tail is computed by a saddlepoint approximation, accurate for few rows and rare
    outcomes. For real outcomes the p-value is that of Student's t corrected for skewness, approximate with few rows. With
    clusters it is the larger one of two: that of Student's t of the sums over clusters, and the saddlepoint approximation
    of a sum whose terms are D times as large and 1/D times as many, D being the design effect.

    References
    ----------
    Globus-Harris, Harrison, Kearns, Roth & Sorrell (2023), "Multicalibration as Boosting for Regression",
    arXiv:2301.13767, Theorem 3.2.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> found = tu.swap_regret(data, outcome="outcome", prediction="prediction", features=["region", "product", "age"])
    >>> found.miscalibrated
    True
    """
    check_integer("depth", depth, 1, 3)
    check_integer("bins", bins, 2, 65_000)
    check_integer("threads", threads, 1, MAX_INTEGER, optional=True)
    check_learner(learner)
    settings = check_settings(learner, levels, held_out, min_rows, alpha, random_state)
    table = read(
        data, outcome=outcome, prediction=prediction, weight=weight, features=features, task=task, categorical=categorical,
        unlabelled=unlabelled, cluster=cluster, check_columns=True,  # type: ignore[arg-type]
    )  # fmt: skip
    own, order, held, rows = divide(table, settings, "swap_regret")
    search = make_search(learner, own, rows, depth, bins, min_rows)
    shift = search.fit(rows, Workers(threads))
    held_rows, size = (np.bincount(level, minlength=rows.levels) for level in (rows.level[held], rows.level))
    tested = (held_rows >= MIN_ROWS_PER_SIDE) & (size - held_rows >= MIN_ROWS_PER_SIDE)
    clusters = None if own.cluster is None else np.unique(own.cluster, return_inverse=True)[1].ravel()
    evaluation = _Evaluation(own, rows, held, search, shift, tested, replace(settings, learner=search.name), clusters)
    tested &= evaluation.effective_clusters() >= MIN_CLUSTERS
    shift[~tested[rows.level]] = 0.0
    return evaluation.result(table, order)


def check_settings(learner: Any, levels: Any, held_out: Any, min_rows: Any, alpha: Any, random_state: Any) -> SwapSettings:
    """Validate the parameters that define the family of tests."""
    check_integer("levels", levels, 1, 10_000)
    check_integer("min_rows", min_rows, 1, MAX_INTEGER)
    check_integer("random_state", random_state, 0, MAX_INTEGER)
    check_fraction("alpha", alpha)
    check_fraction("held_out", held_out)
    return SwapSettings(str(learner), int(levels), float(held_out), int(min_rows), float(alpha), int(random_state))


def divide(table: Table, settings: SwapSettings, caller: str) -> tuple[Table, IntArray, BoolArray, LevelRows]:
    """Divide a table into levels, training and held-out rows: the rows in a random order, that order, a mask, levels."""
    require_outcome(table.outcome)
    if table.schema.task == "multiclass":
        raise ArgumentError(
            f"{caller} audits one prediction column",
            hint="pass the probability of one class and whether it was that class; tu.audit takes several",
            parameter="prediction",
        )
    order, held = split_rows(table, settings)
    own = table.take(order)
    return own, order, held, level_rows(own, held, settings)


def check_learner(learner: Any, parameter: str = "learner") -> None:
    """Raise unless ``learner`` is the name of a class of functions, a regressor, or a callable."""
    if isinstance(learner, str):
        check_choice(parameter, learner, ("tree", "linear"))
    elif not callable(learner) and not _is_regressor(learner):
        message = f"{parameter} must be 'tree', 'linear', a regressor or a callable that returns one; got {learner!r}"
        hint = "pass an instance, such as DecisionTreeRegressor(max_depth=2)"
        raise ArgumentError(message, hint, parameter=parameter)


def make_search(learner: Any, table: Table, rows: LevelRows, depth: int, bins: int, min_rows: int) -> WitnessSearch:
    """Return the search over the class of functions ``learner``."""
    if isinstance(learner, str):
        return TreeSearch(table, depth, bins, min_rows) if learner == "tree" else LineSearch(table, rows.weight)
    make = (lambda: copy.deepcopy(learner)) if _is_regressor(learner) else learner
    return RegressorSearch(table, make, weighted=table.weight is not None)


def split_rows(table: Table, settings: SwapSettings) -> tuple[IntArray, BoolArray]:
    """Return a random order of the rows, which depends only on values and seed, and a mask of the held-out rows in it."""
    labels = [table.y] if table.weight is None else [table.y, table.weight]
    order, starts = shuffle_rows([*table.columns.values(), table.prediction], labels, settings.random_state)
    if table.cluster is None:
        positions = np.append(np.flatnonzero(starts), len(order))
        cut = int(positions[np.argmin(np.abs(positions - settings.held_out * len(order)))])
        held = np.arange(len(order)) < cut
    else:  # whole clusters, whatever the outcomes of their rows
        folds = assign_clusters(table.cluster, np.zeros(len(table)), CLUSTER_FOLDS, settings.random_state)
        held = folds[order] < settings.held_out * CLUSTER_FOLDS
    if held.all() or not held.any():
        raise DataError(
            f"the {len(order):,} rows cannot be split into training rows and held-out rows",
            hint="pass more rows, or another share to hold out",
        )
    return order, held


def level_rows(table: Table, held: BoolArray, settings: SwapSettings) -> LevelRows:
    """Divide the rows into levels of the score; real residuals are scaled to at most 1, so that squares are finite."""
    edges = level_edges(table.prediction, np.ones(len(table)), settings.levels, settings.min_rows)
    residual = table.y - table.prediction
    unit = 1.0 if table.schema.task == "binary" else float(np.abs(residual).max()) or 1.0
    weight = np.ones(len(table)) if table.weight is None else table.weight / table.weight.mean()
    level = np.searchsorted(edges, table.prediction).astype(np.int32)
    return LevelRows(level, len(edges) + 1, weight, residual / unit, np.flatnonzero(~held), unit)


def level_names(table: Table, rows: LevelRows) -> list[str]:
    """Format the score range of each level, with enough digits to distinguish them."""
    p = table.prediction
    low, high = np.full(rows.levels, math.inf), np.full(rows.levels, -math.inf)
    np.minimum.at(low, rows.level, p)
    np.maximum.at(high, rows.level, p)
    for digits in (3, 5, 9, 17):
        ends = [(number(float(a), digits), number(float(b), digits)) for a, b in zip(low, high, strict=True)]
        names = [a if a == b else f"{a} to {b}" for a, b in ends]
        if len(set(names)) == len(names):
            break
    return names


def _is_regressor(learner: object) -> bool:
    return not isinstance(learner, type) and hasattr(learner, "fit") and hasattr(learner, "predict")


@dataclass(frozen=True, eq=False)
class _Evaluation:
    """The witnesses of all score levels, given by their value ``shift`` at every row, to be evaluated on held-out rows."""

    table: Table
    rows: LevelRows
    held: BoolArray
    search: WitnessSearch
    shift: FloatArray
    tested: BoolArray
    settings: SwapSettings
    cluster: IntArray | None = None  # the number of the cluster of each row

    def effective_clusters(self) -> FloatArray:
        """Return the effective number of clusters of the held-out rows of each level; infinite where they hardly matter."""
        levels = (np.flatnonzero(self.held & (self.rows.level == level)) for level in range(self.rows.levels))
        return np.array([self._effective_clusters(own) for own in levels])

    def _effective_clusters(self, own: IntArray) -> float:
        """Return (sum T^2)^2 / sum T^4, with T the sum of |w g| sqrt(p(1-p)) over the rows of a cluster among ``own``.

        For real outcomes T is the sum of |w g|: that, too, does not depend on the outcomes.
        """
        if self.cluster is None or not len(own):
            return math.inf
        p, g, _, w, _ = self._values(own)
        t = np.abs(w * g) * (1.0 if self.table.schema.task == "regression" else np.sqrt(p * (1 - p)))
        squares = np.bincount(self.cluster[own], t) ** 2
        if squares.sum() <= (1 + MIN_EXCESS) * float((t**2).sum()):
            return math.inf
        return float(squares.sum() ** 2 / (squares**2).sum())

    def _design_effect(self, own: IntArray) -> float:
        """Return the factor by which clusters raise the variance of the sum of w g (y - p) over the rows ``own``."""
        effective = self._effective_clusters(own)
        if self.cluster is None or math.isinf(effective):
            return 1.0
        _, g, e, w, variance = self._values(own)
        u = w * (g * e - np.average(g * e, weights=w))
        pairs = float((np.bincount(self.cluster[own], u) ** 2).sum() - (u**2).sum())
        v = float((w**2 * g**2 * variance).sum())
        return 1 + max(pairs, 0.0) * effective / (max(effective - 1, 0.5) * v) if v > 0 else 1.0

    def result(self, original: Table, order: IntArray) -> SwapRegret:
        """Test every level, and all levels combined, as one family; row i is row ``order[i]`` of ``original``."""
        names = level_names(self.table, self.rows)
        every, held_out = np.arange(len(self.held)), np.flatnonzero(self.held)
        tested = bool(self.tested.any()) and self._effective_clusters(held_out) >= MIN_CLUSTERS
        overall = self._witness(held_out, ALL_LEVELS, every, tested=tested)
        witnesses = []
        for level in range(self.rows.levels):
            own = np.flatnonzero(self.rows.level == level)
            tested = bool(self.tested[level])
            witnesses.append(self._witness(own[self.held[own]], names[level], own, tested=tested, level=level))
        family = [witness for witness in (overall, *witnesses) if witness.tested]
        adjusted = iter(inference.adjust([witness.p_value for witness in family], "holm"))
        overall, *witnesses = (
            replace(witness, p_adjusted=float(next(adjusted))) if witness.tested else witness
            for witness in (overall, *witnesses)
        )
        witnesses.sort(key=lambda witness: (not witness.tested, witness.p_adjusted, witness.p_value, witness.low))
        k2, noise = self._k2()
        input_rows = len(original) + original.unlabelled + original.weightless
        shift, held = np.full(input_rows, np.nan), np.zeros(input_rows, bool)
        position = order if original.kept is None else original.kept[order]
        shift[position], held[position] = self.shift * self.rows.unit, self.held
        for array in (shift, held):
            array.setflags(write=False)
        return SwapRegret(
            overall, tuple(witnesses), k2, noise, len(original), original.unlabelled, original.weightless,
            original.left_out, original.schema, self.settings, shift, held,
            0 if self.cluster is None else int(self.cluster.max()) + 1,
        )  # fmt: skip

    def _witness(self, own: IntArray, name: str, every: IntArray, *, tested: bool, level: int | None = None) -> Witness:
        """Evaluate the witness of ``level`` (None: all combined), with rows ``every``, on its held-out rows ``own``."""
        unit, scores = self.rows.unit, self.table.prediction
        low, high = (float(end(scores[every])) for end in (np.min, np.max))
        if not tested:
            few = min(len(own), len(every) - len(own)) < MIN_ROWS_PER_SIDE
            rows = f"{len(every) - len(own)} training rows, {len(own)} held-out rows"
            rule = f"not tested: {rows if few else f'fewer than {MIN_CLUSTERS} effective clusters'}"
            return Witness(name, low, high, len(every), len(own), *(math.nan,) * 9, tested=False, rule=rule)
        p, g, e, w, variance = self._values(own)
        predicted, error = (float(np.average(values, weights=w)) for values in (p, e))
        cluster = None if self.cluster is None else np.unique(self.cluster[own], return_inverse=True)[1].ravel()
        gain, design = weighted_mean(g * (2 * e - g), w, cluster), self._design_effect(own)
        violation, size = (float(np.average(values, weights=w)) for values in (g * e, g * g))
        spread = math.sqrt(size * float(np.average(e * e, weights=w)))
        p_value, mde = 1.0, math.nan
        if g.any():
            real = self.table.schema.task == "regression"
            matters = real or math.isfinite(self._effective_clusters(own))
            of_clusters = mean_pvalue(g * e, w, cluster) if real or (cluster is not None and matters) else 0.0
            of_rows = 0.0 if real else sum_pvalue(w * g, p, float((w * g * e).sum()), design)
            p_value = max(of_rows, of_clusters)
        if size > 0:
            noise = math.sqrt(design * float((w * w * g * g * variance).sum()))
            reach = inference.normal_quantile(2 * self.settings.alpha / (1 + int(self.tested.sum()))) + inference.Z_POWER
            mde = reach * noise / math.sqrt(float((w * g * g).sum()) * float(w.sum())) * unit
        return Witness(
            name, low, high, len(every), len(own), predicted, predicted + error * unit,
            gain.value * unit**2, gain.error * unit**2, violation * unit**2, violation / spread if spread > 0 else 0.0,
            p_value, math.nan, mde, tested=True,
            rule="" if level is None else self.search.describe(level, own, self.rows, self.shift),
        )  # fmt: skip

    def _values(self, own: IntArray) -> tuple[FloatArray, ...]:
        """Return score, shift, residual and weight of the rows ``own``, and the variance of the residual."""
        p, residual = self.table.prediction[own], self.rows.residual[own]
        variance = residual**2 if self.table.schema.task == "regression" else p * (1 - p)
        return p, self.shift[own], residual, self.rows.weight[own], variance

    def _k2(self) -> tuple[float, float]:
        """Return `SwapRegret.k2` and its expectation under calibration."""
        own = np.flatnonzero(self.held)
        _, g, e, w, variance = self._values(own)
        size, violation, noise = (
            np.bincount(self.rows.level[own], values, self.rows.levels)
            for values in (w * g * g, w * g * e, w * w * g * g * variance)
        )
        if self.cluster is not None:
            levels = (own[self.rows.level[own] == level] for level in range(self.rows.levels))
            noise = noise * np.array([self._design_effect(rows) for rows in levels])
        nonzero = size > 0
        scale = self.rows.unit**2 / float(w.sum())
        k2, expected = (float((values[nonzero] / size[nonzero]).sum()) * scale for values in (violation**2, noise))
        return k2, expected


# P-values of a witness: tail probabilities of a sum of weighted residuals under calibration


class WeightedMean(NamedTuple):
    """A weighted mean, its standard error, and the effective number of rows that determine that error."""

    value: float
    error: float
    effective_rows: float


def sum_pvalue(c: FloatArray, p: FloatArray, total: float, design: float = 1.0) -> float:
    """Return P(sum c (Y - p) >= total) for independent Y of 0 and 1 with probabilities p, by a saddlepoint approximation.

    Lugannani & Rice (1980), with the continuity correction of Daniels (1987, section 6, second correction), for jumps of
    the mean size. For soft outcomes, Y in [0, 1] with mean p, the sum varies no more. With a ``design`` effect D the sum is
    one of 1/D times as many terms, each D times as large: with cumulant generating function K(D s) / D.
    """
    from scipy.special import ndtr

    varies = (c != 0) & (p > 0) & (p < 1)
    c, p = c[varies], p[varies]
    v = float((c**2 * p * (1 - p)).sum())
    if v <= 0:
        return 0.0 if total > 0 else 1.0
    unit = math.sqrt(v)
    c, x = c / unit, total / unit
    jump = float((np.abs(c) ** 3 * p * (1 - p)).sum())  # mean size of a jump, weighted by contribution to the variance
    x -= design * jump / 2
    if x == 0:
        return 0.5
    if x >= float(np.where(c > 0, c * (1 - p), -c * p).sum()) * (1 - TOLERANCE):
        return 0.0  # only wrong predictions of 0 or 1 can reach it
    if x <= float(np.where(c > 0, -c * p, c * (1 - p)).sum()) * (1 - TOLERANCE):
        return 1.0
    s, height, spread = _saddlepoint(c, p, x)
    r = math.copysign(math.sqrt(max(0.0, 2 * (s * x - height) / design)), s)
    tail = float(ndtr(-r))
    if abs(r) < NEAR_MEAN:
        return tail
    half = min(abs(s) * jump / 2, MAX_EXPONENT)
    u = math.copysign(2 * math.sinh(half) / jump * math.sqrt(spread / design), s)
    density = math.exp(-r * r / 2) / math.sqrt(2 * math.pi)
    return min(1.0, max(0.0, tail + density * (1 / u - 1 / r)))


def _saddlepoint(c: FloatArray, p: FloatArray, x: float) -> tuple[float, float, float]:
    """Return the tilt s under which sum c (Y - p) has mean x, and cumulant generating function and variance at s."""
    logit, log_none = np.log(p) - np.log1p(-p), np.log1p(-p)

    def tilted(s: float) -> FloatArray:
        with np.errstate(over="ignore"):
            q: FloatArray = 1 / (1 + np.exp(-(logit + s * c)))
        return q

    low, high, s = (0.0, math.inf, x) if x > 0 else (-math.inf, 0.0, x)  # without a tilt the mean is 0
    for _ in range(MAX_ITERATIONS):
        q = tilted(s)
        gap = float((c * (q - p)).sum()) - x
        low, high = (s, high) if gap < 0 else (low, s)
        if abs(gap) <= TOLERANCE * max(1.0, abs(x)) or high - low <= TOLERANCE * abs(s):
            break
        slope = float((c**2 * q * (1 - q)).sum())
        step = s - gap / slope if slope > 0 else math.nan
        if not low < step < high:  # outside the bracket: halve it, or widen it
            step = (low + high) / 2 if math.isfinite(low + high) else 2 * s
        s = step
    q = tilted(s)
    height = float((log_none + np.logaddexp(0.0, logit + s * c) - s * c * p).sum())
    return s, height, float((c**2 * q * (1 - q)).sum())


def weighted_mean(values: FloatArray, w: FloatArray, cluster: IntArray | None = None) -> WeightedMean:
    """Return a weighted mean with its standard error; weights are importance weights.

    The effective number of rows is ``(sum u^2)^2 / sum u^4`` of the weighted deviations u, and at most Kish's effective
    size: a handful of rare events or heavy rows count as a handful. Clusters, numbered from 0, count as rows.
    """
    total = float(w.sum())
    value = float((w * values).sum()) / total
    u = _cluster_sums(w * (values - value), cluster)
    largest = float(np.abs(u).max(initial=0.0))
    rows = total**2 / float((_cluster_sums(w, cluster) ** 2).sum())
    if largest == 0:
        return WeightedMean(value, 0.0, rows)
    squares, fourth = float(((u / largest) ** 2).sum()), float(((u / largest) ** 4).sum())
    effective = min(rows, squares**2 / fourth)
    error = largest * math.sqrt(squares) / total
    return WeightedMean(value, error * math.sqrt(effective / (effective - 1)) if effective > 1 else math.inf, effective)


def _cluster_sums(values: FloatArray, cluster: IntArray | None) -> FloatArray:
    return values if cluster is None else np.asarray(np.bincount(cluster, values), np.float64)


def mean_pvalue(values: FloatArray, w: FloatArray, cluster: IntArray | None = None) -> float:
    """Return the one-sided p-value of a weighted mean against 0, for values with any distribution.

    With a long lower tail, large rows that would decrease the mean are missing from most samples; then the statistic is
    transformed by the cubic of Hall (1992), which corrects for skewness. With a long upper tail Student's test is already
    conservative, and is not corrected.
    """
    from scipy.special import stdtr

    mean = weighted_mean(values, w, cluster)
    if mean.error == 0 or not math.isfinite(mean.error):
        return 0.0 if mean.error == 0 and mean.value > 0 else 1.0
    t = mean.value / mean.error
    if t > 0:
        u = _cluster_sums(w * (values - mean.value), cluster)
        u = u / np.abs(u).max()
        skew = min(0.0, float((u**3).sum() / (u**2).sum() ** 1.5))  # of the sum, not of a row
        t = t + skew * t**2 / 3 + skew**2 * t**3 / 27 + skew / 6
    return float(stdtr(max(mean.effective_rows - 1, 0.1), -t))
