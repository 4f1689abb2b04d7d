"""LoRe: the score of a row is reset to the observed rate of similar rows."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import clone

from trueup._validate import MAX_INTEGER, check_choice, check_integer, check_number
from trueup.calibrators import stopping
from trueup.calibrators.base import FeatureCalibrator, FitResult
from trueup.calibrators.curves.estimators import cut_by_mass
from trueup.calibrators.explain import Explanation, find_corrections
from trueup.calibrators.groups import fit_groups
from trueup.calibrators.history import History
from trueup.calibrators.lore import map as local
from trueup.calibrators.lore.map import Design, Embedding, KernelMap, LocalMap, TransformerMap, sort_equal
from trueup.calibrators.model import Map, UnchangedMap
from trueup.calibrators.stopping import Holdout, Split
from trueup.data.folds import MAX_DUPLICATES
from trueup.data.frame import read_like
from trueup.errors import ArgumentError, TrueupError
from trueup.kernels import pairs
from trueup.kernels.fitting import log_losses
from trueup.kernels.laplace import as_bytes
from trueup.kernels.pairs import GAUSSIAN, LAPLACE, check_device, kernel_scale
from trueup.kernels.trees import MIN_PROBABILITY
from trueup.metrics.local import fit_features

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.data.table import Table, Task

RESET, SHIFT = "reset", "shift"
TIE = 1e-9  # relative difference of losses below which the smoother candidate is preferred
GAMMAS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, math.inf)
SHRINKAGES = (1.0, 3.0, 10.0, 30.0, 100.0)
MAX_LEAVE_ONE_OUT = 50_000  # distinct rows; of more, HELD_OUT_ROWS are held out instead
HELD_OUT_ROWS = 20_000
MAX_HELD_OUT_SHARE = 0.5
AUTO_MIN_BINS, AUTO_MAX_BINS = 5, 15
# Of equal width as in the paper: 5 bins for 500 rows, else 15. Of equal weight, where none is empty, fewer are better.
ROWS_PER_BIN = {"width": 100, "mass": 1000}
MAX_NUMBERS = 2**27  # of the design matrix of a fit: 1 GiB, of which there are several copies
MAX_PCA_SIZE = 4096  # columns or rows, whichever are fewer: principal components take seconds, not minutes


@dataclass(eq=False, repr=False, kw_only=True)
class LoRe(FeatureCalibrator):
    """Reset scores to the observed rate of similar rows: local recalibration.

    Rows are similar if they have nearly the same score and are close in a space of features. With phi the point of a row
    in d dimensions and ``k(x, x') = exp(-|phi(x) - phi(x')|_1 / (d gamma))``, the new score of x is the mean outcome of the
    rows in its bin of scores, weighted by k: Eq. 6 of the paper. Segments on which scores are miscalibrated need not be
    named: the rows of such a segment are close together.

    For several classes, the highest score is reset to the rate at which its class is correct, and the class is kept, as in
    the paper; the other classes share the rest in proportion, as far as none exceeds it. See ``keep_class``.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, or one column per class. For an array a position, 0 by default.
    features : column names, optional
        What makes rows similar; every other column by default. Without any features this is histogram binning.
    exclude : column names
        Columns that the correction must not use, such as protected attributes; `explain` still reports what the correction
        does on their levels. A name that is also a feature, or is no column, is an error.
    gamma : "auto" or float
        The bandwidth of the kernel, as a share of the mean distance between two random rows. "auto" tries nine, from
        0.0125 to infinity, and leaves scores unchanged unless one lowers the loss significantly on rows whose own outcome
        is left out. A number is used as it is: 0.4 is the paper's for principal components, 0.2 for two or three
        coordinates of a t-SNE, infinity is histogram binning; as it approaches 0, only the nearest row counts.
    shrinkage : "auto" or float
        The number of rows that the score itself counts for: ``(sum k y + m p) / (sum k + m)``. A row without neighbours
        then keeps its score. "auto" chooses it together with gamma; if gamma is a number it is 0, which is Eq. 6.
    move : {"auto", "reset", "shift"}
        "reset" replaces the score by the observed rate of the neighbours, as Eq. 6 does. "shift" adds their mean residual,
        ``p + sum k (y - p_i) / (sum k + m)``: scores that differ within a bin still differ. "auto" chooses it together with
        gamma; if gamma is a number it is "reset".
    bins : "auto" or int
        The maximum number of bins of the score, or of the highest score for several classes. "auto" is 5 to 15: one per 100
        rows for bins of equal width, one per 1,000 for bins of equal weight. A row in a bin without training rows uses the
        nearest bin that has some, the lower of two.
    strategy : {"auto", "mass", "width"}
        Bins of equal weight, or of equal width over [0, 1] as in the paper: if most scores are close to 0 or 1, bins of
        equal width contain rows that have little in common. "auto" is "width" if gamma is a number, else "mass".
    embedding : {"pca", "columns", "groups"} or scikit-learn transformer
        The space in which distances are measured.

        - "pca": each number divided by its standard deviation, each category as 0/1 columns with a total variance of 1;
          then their first principal components.
        - "columns": the features are the coordinates, unscaled: those of a t-SNE computed beforehand, or the last layer of
          a network.
        - "groups": k is 1 for rows of the same group and 0 for others, for every finite gamma. Groups are the combinations
          of the features; numbers and dates are cut into ten bins. A group without rows in a bin uses all rows of the bin.
          This is histogram binning in each group.
        - A transformer is fitted to the unscaled design matrix, and its output is the point. Such a model cannot be saved.

    components : int or None
        The maximum number of principal components; None keeps the scaled columns.
    unit : bool
        Whether coordinates have a common factor so that two random rows are 1 apart per dimension on average. False leaves
        the units of the embedding, as in the paper: with "columns" or a transformer, those of its output.
    kernel : {"laplace", "gaussian"} or function
        "gaussian" is ``exp(-|phi(x) - phi(x')|_2^2 / (2 d gamma^2))``. A function of two arrays of points returns their
        similarities, as for `trueup.metrics.lce`; it is used as it is for every finite gamma, and a row that is similar to
        no row of its bin uses the whole bin. Such a model cannot be saved.
    keep_class : bool
        For several classes: whether the predicted class stays the highest, as in the paper, which resets its confidence
        only. The confidence is then at least 1/k, k the number of classes, and what another class would have above it is
        shared by all others. False allows any confidence, and the predicted class may change.
    closed : {"right", "left"}
        The end that bins of equal width contain; "left" as in the paper.
    task : {"auto", "binary"}
        "auto" is binary for one prediction column, multiclass for several. Real outcomes are rejected.
    categorical : column names
        Numeric columns that are categories.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    threads : int, optional
        The number of cores by default.
    device : {"cpu", "auto", "cuda"}
        Where the Laplace kernel, the only one that a GPU sums, is summed, in the fit and for predictions. It is not saved.

    Attributes
    ----------
    gamma_, shrinkage_ : float
        As given or chosen; both infinite if scores are left unchanged.
    candidates_ : tuple of LocalCandidate
        Each combination of gamma, shrinkage and move that was evaluated, with its loss.
    model_ : Model
        The fitted model, which is saved and shipped. It contains the training rows as points; ``describe`` has its size.
    embedding_ : Embedding
        The function from features to points, also if scores are left unchanged; see `points`. Saved only as far as the
        model needs it.
    history_ : History
        The loss before and after, on rows whose own outcome is left out.
    held_out_, held_out_rows_, held_out_before_
        The rows that losses were evaluated on, and their scores, as in `trueup.MCGrad`.

    Notes
    -----
    A missing number is replaced by the mean, and if the training rows have missing values, an indicator column is added
    (not for "columns"). A missing category, or one not seen in training, is a level of its own. An infinite number has no
    distance to others: it is rejected wherever distances count. Groups accept it, in the first or the last bin.

    Losses are by leave-one-out. Rows equal in features and prediction are left out together if there are at most ten of
    them, so that a copy does not predict its original; of more, which is common in discrete data, only one is left out. Of
    more than 50,000 distinct rows, 20,000 are held out for evaluation, and the final model has all rows.

    Within a bin, every training row is compared with every row to predict: the time of a prediction is proportional to both
    numbers. In one to three dimensions large bins are summed faster.

    References
    ----------
    Luo, Bhatnagar, Bai, Zhao, Wang, Xiong, Savarese, Ermon, Schmerling & Pavone (2022), "Local Calibration: Metrics and
    Recalibration", UAI 2022, arXiv:2102.10809.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.LoRe("prediction", features=["region", "age"]).fit(data, data["outcome"])
    >>> fix.history_.loss_after < fix.history_.loss_before
    True
    >>> paper = tu.LoRe("prediction", features=["region", "age"], gamma=0.4).fit(data, data["outcome"])
    >>> paper.gamma_, paper.shrinkage_
    (0.4, 0.0)

    Measure the local calibration error in the same space:

    >>> phi = fix.points(data)
    >>> phi.shape
    (20000, 14)
    >>> error = tu.metrics.lce(phi, data["prediction"], data["outcome"], gamma=fix.gamma_)
    """

    gamma: Any = "auto"
    shrinkage: Any = "auto"
    move: str = "auto"
    bins: Any = "auto"
    strategy: str = "auto"
    embedding: Any = "pca"
    components: int | None = 20
    unit: bool = True
    kernel: Any = LAPLACE
    keep_class: bool = True
    closed: str = "right"
    classes: Any = None
    logits: bool = False
    threads: int | None = None
    device: str = "cpu"

    gamma_ = property(lambda self: self._chosen("gamma"), doc="The kernel's bandwidth; infinite if scores are unchanged.")
    shrinkage_ = property(lambda self: self._chosen("shrinkage"), doc="Rows the score counts for; infinite if unchanged.")

    def _chosen(self, name: str) -> float:
        fitted = self._fitted().map
        return float(getattr(fitted, name)) if isinstance(fitted, LocalMap) else math.inf

    def points(self, X: Any) -> FloatArray | IntArray:
        """Return the points of rows in the space of the neighbours, as the phi of `trueup.metrics.lce`.

        Parameters
        ----------
        X : pandas, polars or pyarrow frame, dict of arrays, or ndarray
            With the columns of the fit, those of the prediction too.

        Returns
        -------
        ndarray of float64, shape (n, d)
            Also if scores were left unchanged. With ``embedding="groups"`` the group of each row instead, shape (n,), for
            ``kernel="group"``; 0 for combinations that did not occur in training.
        """
        table = read_like(X, self._fitted().schema)
        columns = [table.columns[feature.name] for feature in table.schema.features]
        side = 1 if self.embedding_.index is None else 2
        return np.concatenate([chunk[side] for chunk in local.place_chunks(self.embedding_, columns, len(table))])

    def _fit_map(self, table: Table, progress: Any) -> FitResult:  # noqa: ARG002
        self._check(table.schema.task)
        stopping.check_row_count(table)
        pooled = pool_rows(table)
        embedding = fit_embedding(self.embedding, self.components, table, pooled, unit=bool(self.unit))
        edges = self._score_edges(table.prediction[pooled.first], pooled)
        keeps = bool(self.keep_class) and table.schema.task == "multiclass"
        selector = MapSelector(
            embedding, edges, *self._candidate_values(embedding), self.threads, self.kernel, keeps, self.device
        )
        placed = place_rows(table, pooled, embedding, edges)
        # Leaving out one row would leave the others of its cluster.
        leave_one_out = len(pooled.first) <= MAX_LEAVE_ONE_OUT and table.cluster is None
        if leave_one_out:
            rows = np.arange(len(table))
            selection = selector.by_leave_one_out(placed, table)
        else:
            split = _hold_out_rows(table)
            rows, selection = split.valid, selector.by_holdout(table, split)
        kept = selection.kept or not isinstance(self.gamma, str)
        history = self._history(selection, "leave-one-out" if leave_one_out else "held-out rows", kept=kept)
        fitted: Map = selector.build(placed, *selection.chosen[:3]) if kept else UnchangedMap()
        self.candidates_: tuple[LocalCandidate, ...] = selection.candidates
        self.embedding_: Embedding = embedding
        held = stopping.collect_held_out(table, rows, selection.scores if kept else table.prediction[rows])
        return FitResult(fitted, history, selection.scores if kept else None, held)

    def _explain_change(self, table: Table, fitted: Map, after: FloatArray) -> Explanation:
        evaluated = table if len(after) == len(table) else table.take(_hold_out_rows(table).valid)
        return find_corrections(evaluated, fitted.feature_sets(), evaluated.prediction, after)

    def _score_edges(self, prediction: FloatArray, pooled: PooledRows) -> FloatArray:
        """Return the edges between the bins of the score, by ``bins`` and ``strategy``, from the rows ``pooled``."""
        strategy = self.strategy
        if strategy == "auto":
            strategy = "mass" if isinstance(self.gamma, str) else "width"
        if isinstance(self.bins, str):
            weight = pooled.weight / pooled.rows
            effective = float((weight * pooled.rows).sum() ** 2 / (weight**2 * pooled.rows).sum())
            bins = min(max(int(effective * (1 + 1e-9)) // ROWS_PER_BIN[strategy], AUTO_MIN_BINS), AUTO_MAX_BINS)
        else:
            bins = int(self.bins)
        if strategy == "width":
            # The map has bins closed on the right: at the float below an edge they are those closed on the left.
            edges = local.even_edges(bins)
            return edges if self.closed == "right" else np.nextafter(edges, 0.0)
        score, place = np.unique(local.confidence_of(prediction)[0] + 0.0, return_inverse=True)
        return cut_by_mass(score, np.bincount(place.ravel(), pooled.weight).astype(np.float64), bins)[0]

    def _candidate_values(self, embedding: Embedding) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
        """Return the values of gamma, shrinkage and move to try, of which all combinations are evaluated."""
        auto = isinstance(self.gamma, str)
        gammas: tuple[float, ...] = GAMMAS if auto else (float(self.gamma),)
        if auto and embedding.features is None:
            gammas = (math.inf,) if embedding.index is None else (1.0, math.inf)
        elif auto and callable(self.kernel):
            gammas = (1.0, math.inf)
        shrinkages: tuple[float, ...] = SHRINKAGES if auto else (0.0,)
        if not isinstance(self.shrinkage, str):
            shrinkages = (float(self.shrinkage),)
        moves = (RESET, SHIFT) if auto else (RESET,)
        return gammas, shrinkages, moves if self.move == "auto" else (self.move,)

    def _history(self, selection: Selection, rows: str, *, kept: bool) -> History:
        chosen = selection.chosen
        change = f"{rows.removesuffix(' rows')} loss {selection.before:.6g} -> {chosen.loss:.6g}"
        if not isinstance(self.gamma, str):
            reason = f"fitted with the given gamma: {change}"
        elif kept:
            groups = isinstance(self.embedding, str) and self.embedding == "groups" and not math.isinf(chosen.gamma)
            kernel = "by groups" if groups else f"with gamma {chosen.gamma:g}"
            count, gain = len(selection.candidates), selection.before - chosen.loss
            shrunk = stopping.shrink_gain(gain, selection.error, stopping.LATER_ROUND_ERRORS)
            change += f" (a gain of {gain:.3g}, {shrunk:.3g} shrunken for selection)"
            reason = f"{chosen.move} {kernel} and shrinkage {chosen.shrinkage:g}, best of {count}: {change}"
        else:
            reason = f"{change} is within noise: scores are left unchanged"
        error = selection.error if math.isfinite(selection.error) else 0.0
        threshold = stopping.LATER_ROUND_ERRORS if isinstance(self.gamma, str) else None
        kept_loss = stopping.Evaluation(chosen.loss, selection.gain, error, threshold)
        return History.of([stopping.Evaluation(selection.before), kept_loss], int(kept), reason, rows, "log loss")

    def _check(self, task: Task) -> None:
        if task == "regression":
            raise ArgumentError(
                "LoRe corrects probabilities: it has no meaning for task='regression'",
                hint="MCGrad, LSBoost, DepthTwo and Grouped accept real outcomes",
                parameter="task",
            )
        auto = '"auto" chooses it by leave-one-out'
        if self.gamma not in ("auto", math.inf):
            check_number(
                "gamma", self.gamma, local.MIN_GAMMA, local.MAX_GAMMA, hint=f"{auto}; infinity is histogram binning"
            )
        if self.shrinkage != "auto":
            check_number("shrinkage", self.shrinkage, 0, 1e9, hint=auto)
        if self.bins != "auto":
            check_integer("bins", self.bins, 1, local.MAX_BINS, hint='"auto" chooses it by the number of rows')
        check_choice("move", self.move, ("auto", RESET, SHIFT))
        check_choice("strategy", self.strategy, ("auto", "mass", "width"))
        check_choice("closed", self.closed, ("right", "left"))
        check_device(self.device, self.kernel)
        if not callable(self.kernel):
            check_choice("kernel", self.kernel, (LAPLACE, GAUSSIAN))
        if isinstance(self.embedding, str) and self.embedding == "groups" and self.kernel != LAPLACE:
            raise ArgumentError(
                "groups have no distances: a kernel of other points cannot be combined with them",
                hint="leave kernel out, or use {embedding}",
                parameter="kernel",
                settings={"embedding": "pca"},
            )
        check_integer("components", self.components, 1, MAX_INTEGER, optional=True)
        check_integer("threads", self.threads, 1, MAX_INTEGER, optional=True)
        if isinstance(self.embedding, str):
            check_choice("embedding", self.embedding, ("pca", "columns", "groups"))
        elif isinstance(self.embedding, type) or not all(hasattr(self.embedding, name) for name in ("fit", "get_params")):
            raise ArgumentError(
                f'embedding must be "pca", "columns", "groups" or a scikit-learn transformer; got {self.embedding!r}',
                hint="write it as embedding=PCA(5), with parentheses",
                parameter="embedding",
            )
        elif not hasattr(self.embedding, "transform"):
            raise ArgumentError(
                f"embedding must have a method transform, to place new rows; {type(self.embedding).__name__} has none",
                hint="apply it beforehand to all rows together, those to predict included, name its columns as features, "
                "and use {embedding}",
                parameter="embedding",
                settings={"embedding": "columns"},
            )


def _hold_out_rows(table: Table) -> Split:
    """Split the rows of a large table, or of one with clusters: about HELD_OUT_ROWS of them are held out, at most half."""
    share = min(max(HELD_OUT_ROWS / len(table), 1 / stopping.HOLDOUT_FOLDS), MAX_HELD_OUT_SHARE)
    return stopping.split_rows(table, Holdout(share), 0)[0]


def fit_embedding(
    embedding: Any, components: int | None, table: Table, pooled: PooledRows, *, unit: bool = True
) -> Embedding:
    """Fit the space that the `LoRe` parameters of these names define, to a table and its pooled rows."""
    named = isinstance(embedding, str)
    if named and embedding == "groups":
        return Embedding(index=fit_groups(table)[0])
    if not table.schema.features:
        return Embedding()
    local.reject_infinite(tuple(table.columns), tuple(table.columns.values()))
    coordinates = named and embedding == "columns"
    for feature in table.schema.features:
        if coordinates and feature.kind == "categorical":
            raise ArgumentError(
                f"embedding 'columns' uses the features as coordinates, but column {feature.name!r} is categorical",
                hint="name the coordinates as features=[...], or use {embedding}",
                parameter="embedding",
                settings={"embedding": "pca"},
            )
    scaled = named and not coordinates
    distinct = table.take(pooled.first)
    design = _fit_design(distinct, pooled.weight, scaled=scaled, gaps=not coordinates)
    components = components if scaled else None
    width, rows = sum(design.sizes), len(pooled.weight)
    if rows * width > MAX_NUMBERS or (components is not None and min(rows, width) > MAX_PCA_SIZE):
        raise ArgumentError(
            f"a design matrix of {rows:,} rows and {width:,} columns, one per category, is too large",
            hint="leave out columns of many categories, or name fewer features",
        )
    X = design.transform([distinct.columns[name] for name in design.names], rows)
    if not named:
        transformer = _fit_transformer(embedding, X, pooled.rows)
        points = local.transform_points(transformer, X)
        return Embedding(design, fit_features(points, scaling="none", weight=pooled.weight, unit=unit), transformer)
    if not (X.max(axis=0) > X.min(axis=0)).any():
        return Embedding()
    count = None if components is None else min(int(components), *X.shape)
    return Embedding(design, fit_features(X, components=count, scaling="none", weight=pooled.weight, unit=unit))


def _fit_design(table: Table, weight: FloatArray, *, scaled: bool, gaps: bool) -> Design:
    """Fit means for missing numbers, indicators of missing values if ``gaps``, factors for unit variance if ``scaled``."""
    names, levels = tuple(feature.name for feature in table.schema.features), table.schema.levels
    fill, indicators, factors = np.zeros(len(levels)), np.zeros(len(levels), np.uint8), []
    for place, (name, count) in enumerate(zip(names, levels, strict=True)):
        column = table.columns[name]
        if count >= 0:
            share = np.bincount(np.where(column < 0, count, column), weight, count + 1) / weight.sum()
            variance = max(1.0 - float((share**2).sum()), 0.0) if (share > 0).sum() > 1 else 0.0
            factors.append(np.full(count + 1, _inverse(math.sqrt(variance))))
            continue
        missing = np.isnan(column)
        values = np.clip(np.where(missing, 0.0, column), -local.MAX_FEATURE, local.MAX_FEATURE)
        fill[place], deviation = _mean_and_deviation(values[~missing], weight[~missing])
        factors.append(np.array([_inverse(deviation)]))
        indicators[place] = gaps and missing.any()
        if indicators[place]:
            rate = float(weight[missing].sum() / weight.sum())
            factors.append(np.array([_inverse(math.sqrt(rate * (1.0 - rate))) if not missing.all() else 0.0]))
    factor = np.concatenate(factors)
    return Design(levels, fill, indicators, factor if scaled else np.ones(len(factor)), names)


def _mean_and_deviation(values: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return the weighted mean and standard deviation; the latter is exactly 0 if all values are equal."""
    if not len(values):
        return 0.0, 0.0
    low, high = float(values.min()), float(values.max())
    mean = min(max(float((weight * values).sum() / weight.sum()), low), high)
    if low == high:
        return mean, 0.0
    scaled = (values - mean) / (high - low)
    return mean, (high - low) * math.sqrt(float((weight * scaled**2).sum() / weight.sum()))


def _inverse(deviation: float) -> float:
    return 1.0 / deviation if deviation > 1 / local.MAX_FEATURE else 0.0


def _fit_transformer(embedding: Any, X: FloatArray, repeats: IntArray) -> Any:
    transformer = clone(embedding)
    unset = [name for name, value in transformer.get_params().items() if name.endswith("random_state") and value is None]
    transformer.set_params(**dict.fromkeys(unset, 0))  # those of the steps of a pipeline too
    try:
        transformer.fit(np.repeat(X, repeats, axis=0))  # it may not accept weights, but it accepts repeated rows
    except TrueupError:
        raise
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{type(transformer).__name__} could not be fitted to {len(X):,} rows of {X.shape[1]:,} columns: "
            f"{(str(error).splitlines() or [''])[0]}",
            hint="name features that it accepts, or use another transformer",
        ) from error
    return transformer


@dataclass(frozen=True, eq=False)
class PooledRows:
    """Rows that are equal in features, prediction and outcome, pooled; sorted by content, whatever their order was."""

    first: IntArray  # a row of the table for each pooled row
    index: IntArray  # the pooled row of each row of the table
    alike: IntArray  # ascending; pooled rows with the same number differ in the outcome alone
    weight: FloatArray  # counts, or with a sum equal to the effective number of rows
    rows: IntArray  # the number of rows; weights that are counts are counted


def pool_rows(table: Table) -> PooledRows:
    """Pool the rows of a table that are equal in features, prediction and outcome."""
    scaled = stopping.scale_weights(table.weight, len(table))
    weight = np.ones(len(table)) if scaled is None else scaled
    columns = [*table.columns.values(), *table.prediction.reshape(len(table), -1).T, table.y]
    content = np.column_stack([np.where(np.isnan(c), np.nan, c + 0.0) for c in columns])  # one NaN, no minus zero
    order, starts = sort_equal(content, weight)
    index = np.empty(len(table), np.int64)
    index[order] = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(order)))
    total = np.add.reduceat(weight[order], starts)
    counts = stopping.are_row_counts(weight)
    rows = np.rint(total).astype(np.int64) if counts else np.diff(starts, append=len(order))
    without_outcome = as_bytes(content[order[starts], :-1])
    alike = np.cumsum(np.append(False, without_outcome[1:] != without_outcome[:-1]))
    return PooledRows(order[starts], index, alike, total, rows)


@dataclass(frozen=True, eq=False)
class PlacedRows:
    """Pooled rows with their scores and outcomes, their point and group in an embedding, and their bin of the score."""

    pooled: PooledRows
    confidence: FloatArray  # the score; for several classes the highest
    hit: FloatArray  # the outcome; for several classes whether the predicted class is correct
    share: FloatArray  # of the true class in what the confidence leaves to other classes; 1 if it is the predicted one
    largest: FloatArray  # the share of the largest of the other classes
    classes: int  # 1 for a single score
    points: FloatArray  # (n, d)
    group: IntArray
    bin: IntArray

    def losses(self, rate: FloatArray, *, keeps: bool = False) -> FloatArray:
        """Return the log loss of every row if its confidence were ``rate``; ``keeps`` as for `trueup.LoRe`."""
        out, chances = np.empty(len(rate)), (1.0 - rate) * self.share
        if keeps:
            rate, chances = local.keep_called(rate, self.share, self.largest, self.classes)
        log_losses(self.hit, rate, MIN_PROBABILITY, out)
        missed = self.share < 1
        chance = chances[missed]
        out[missed] = -np.log(np.where(chance > 0, chance, MIN_PROBABILITY))
        return out


def place_rows(table: Table, pooled: PooledRows, embedding: Embedding, edges: FloatArray) -> PlacedRows:
    """Place the pooled rows of a table in the space of an embedding and in the bins between ``edges``."""
    table = table.take(pooled.first)
    points, group = embedding.place([table.columns[feature.name] for feature in table.schema.features], len(table))
    confidence, top = local.confidence_of(table.prediction)
    hit, share, largest = table.y, np.ones(len(table)), np.ones(len(table))
    if top is not None:
        hit = (table.y == top).astype(np.float64)
        others = local.reset(table.prediction, top, np.zeros(len(table)))
        largest = others.max(axis=1)
        share = np.where(hit == 1, 1.0, others[np.arange(len(table)), table.y.astype(np.int64)])
    bins = local.number_bins(confidence, edges)
    classes = 1 if top is None else table.prediction.shape[1]
    return PlacedRows(pooled, np.ascontiguousarray(confidence), hit, share, largest, classes, points, group, bins)


def _sum_cells(
    content: FloatArray, columns: FloatArray, left_out: FloatArray, sizes: IntArray
) -> tuple[IntArray, IntArray, FloatArray, FloatArray]:
    """Sum ``columns`` over cells (rows with equal ``content``): in full, and for each row without its ``left_out``.

    Return the first row of each cell, the cell of each row, the sums per cell, and for each row the sum of its cell minus
    ``left_out``: exactly 0 if the cell has no more than the ``sizes`` rows that are left out with it.
    """
    order, starts = sort_equal(content)
    cell, size = np.empty(len(order), np.int64), np.diff(starts, append=len(order))
    cell[order] = np.repeat(np.arange(len(starts)), size)
    summed = np.column_stack([np.bincount(cell, column, len(starts)) for column in columns.T]).astype(np.float64)
    rest = np.where((size[cell] == sizes)[:, None], 0.0, summed[cell] - left_out)
    return order[starts], cell, summed, rest


class LocalCandidate(NamedTuple):
    """One combination of gamma, shrinkage and move, and the mean loss of the rows it was evaluated on."""

    gamma: float
    shrinkage: float
    move: str
    loss: float


class Selection(NamedTuple):
    """All candidates, the best of them, and whether it is significantly better than no correction."""

    candidates: tuple[LocalCandidate, ...]
    chosen: LocalCandidate
    before: float
    gain: float
    error: float
    kept: bool
    scores: FloatArray  # of the evaluated rows, by the best candidate


@dataclass(frozen=True, eq=False)
class MapSelector:
    """Evaluates every combination of gammas, shrinkages and moves in one embedding and one set of bins."""

    embedding: Embedding
    edges: FloatArray
    gammas: tuple[float, ...]
    shrinkages: tuple[float, ...]
    moves: tuple[str, ...]
    threads: int | None
    kernel: Any = LAPLACE
    keeps: bool = False
    device: str = "cpu"

    def scales(self, gammas: FloatArray, dimensions: int) -> FloatArray:
        """Return the scale of the kernel for each of ``gammas``."""
        return np.array([kernel_scale(self.kernel, dimensions, gamma, local.MAX_SCALE) for gamma in gammas])

    def build(self, placed: PlacedRows, gamma: float, shrinkage: float, move: str) -> LocalMap:
        """Return the map fitted on all rows, pooled if bin and point are equal (only the bin if gamma is infinite)."""
        infinite, shifts, weight = math.isinf(gamma), move == SHIFT, placed.pooled.weight
        space = Embedding() if infinite else self.embedding
        groups = 1 if space.index is None else 1 + len(space.index)
        rows, targets = np.arange(len(weight)), placed.hit - placed.confidence if shifts else placed.hit
        key, points = placed.bin * groups, np.zeros((len(weight), 1)) if infinite else placed.points
        if groups > 1:  # a row counts for its group, and for the group of all rows of its bin
            rows, key = np.concatenate([rows, rows]), np.concatenate([key, key + placed.group])
        order, starts = sort_equal(np.column_stack([key.astype(np.float64), points[rows] + 0.0]), weight[rows])
        mass, total = (np.add.reduceat(column[rows][order], starts) for column in (weight, weight * targets))
        first = order[starts]
        in_order = np.argsort(key[first], kind="stable")  # bytes do not sort as numbers
        keys, place = np.unique(key[first][in_order], return_inverse=True)
        points = np.ascontiguousarray(points[rows[first][in_order]])
        near = (keys, place.ravel(), points, mass[in_order], total[in_order])
        kind = LocalMap if space.transformer is None else TransformerMap
        if callable(self.kernel) and not infinite:
            kind = KernelMap
        kernel = LAPLACE if infinite else self.kernel
        return kind(space, *near, self.edges, groups, gamma, shrinkage, shifts, kernel, self.keeps, self.device)

    def by_leave_one_out(self, placed: PlacedRows, table: Table) -> Selection:
        """Evaluate all candidates on every row, left out with all rows of equal features and prediction, if at most ten."""
        pooled = placed.pooled
        targets = (np.ones(len(pooled.weight)), placed.hit, placed.hit - placed.confidence)
        rows = np.column_stack([pooled.weight * target for target in targets])
        together = np.column_stack([np.bincount(pooled.alike, column)[pooled.alike] for column in rows.T])
        common = np.bincount(pooled.alike, pooled.rows)[pooled.alike] > MAX_DUPLICATES
        left_out = np.where(common[:, None], rows / pooled.rows[:, None], together)
        sizes = np.where(common, 0, np.bincount(pooled.alike)[pooled.alike])
        key = placed.bin * (int(placed.group.max()) + 1) + placed.group
        content = np.column_stack([key.astype(np.float64), placed.points + 0.0])
        first, cell, totals, rest = _sum_cells(content, rows, left_out, sizes)
        whole_bin = _sum_cells(placed.bin[:, None].astype(np.float64), rows, left_out, sizes)[3]
        occupied = rest[:, 0] > 0  # by other rows at the same point
        sums, factors = np.zeros((len(self.gammas), len(rows), 3)), np.ones((len(self.gammas), len(rows)))
        finite = [number for number, gamma in enumerate(self.gammas) if not math.isinf(gamma)]
        if finite:
            scales = self.scales(np.array(self.gammas)[finite], placed.points.shape[1])
            numbers, at = np.unique(key[first], return_inverse=True)[1].ravel(), placed.points[first]
            given = (self.kernel, at, totals, numbers, scales)
            others = pairs.sums(*given, own=False, threads=self.threads, device=self.device)
            same = np.exp(-pairs.self_distances(self.kernel, at))[cell]  # the kernel at a point itself
            for number, scale, total, shift in zip(finite, scales, *others, strict=True):
                decay = np.exp(-scale * shift)[cell]
                sums[number] = total[cell] * np.where(occupied, decay, 1.0)[:, None] + same[:, None] * rest
                factors[number] = np.where(occupied, 1.0, decay)
        for columns, factor in zip(sums, factors, strict=True):
            alone = columns[:, 0] <= 0  # no neighbours, or distances do not count: use the rest of the bin
            columns[alone], factor[alone] = whole_bin[alone], 1.0
        return self._select(sums, factors, placed, table)

    def by_holdout(self, table: Table, split: Split) -> Selection:
        """Evaluate all candidates on the held-out rows of a split."""
        sides = [table.take(rows) for rows in (split.train, split.valid)]
        placed, held = (place_rows(side, pool_rows(side), self.embedding, self.edges) for side in sides)
        rows = len(held.hit)
        sums, factors = np.zeros((len(self.gammas), rows, 3)), np.ones((len(self.gammas), rows))
        for infinite in (False, True):
            chosen = [number for number, gamma in enumerate(self.gammas) if math.isinf(gamma) == infinite]
            if not chosen:
                continue
            gamma = self.gammas[chosen[0]]
            by_hits, by_residuals = (self.build(placed, gamma, 0.0, move) for move in (RESET, SHIFT))
            scales = self.scales(np.array(self.gammas)[chosen], by_hits.points.shape[1])
            points, group = (np.zeros((rows, 1)), np.zeros(rows, np.int64)) if infinite else (held.points, held.group)
            sources = np.column_stack([by_hits.weight, by_hits.total, by_residuals.total])
            targets = (points, by_hits.keys_of(held.confidence, group))
            given = (by_hits.kernel, by_hits.points, sources, by_hits.place, scales)
            total, shift = pairs.sums(*given, at=targets, threads=self.threads, device=self.device)
            alone = total[:, :, 0] <= 0  # of a kernel of the user's: use the whole bin, as the map does
            if alone.any():
                starts = np.searchsorted(by_hits.place, np.arange(len(by_hits.keys)))
                total[alone] = np.broadcast_to(np.add.reduceat(sources, starts)[targets[1]], total.shape)[alone]
            sums[chosen], factors[chosen] = total, np.exp(-scales[:, None] * shift)
        return self._select(sums, factors, held, sides[1])

    def _select(self, sums: FloatArray, factors: FloatArray, placed: PlacedRows, table: Table) -> Selection:
        """Select the candidate of lowest loss; ``sums`` times ``factors`` are kernel sums of weights, hits and residuals.

        It is kept if its gain is above two standard errors, since the best of many candidates looks better than it is.
        """
        base, pooled, weight = placed.losses(placed.confidence), placed.pooled, placed.pooled.weight
        before = float(np.average(base, weights=weight))
        candidates: list[LocalCandidate] = []
        lowest, best, best_losses, best_rates = math.inf, 0, base, placed.confidence
        # The smoother first: of two that tie, the first is chosen.
        numbers = sorted(range(len(self.gammas)), key=lambda number: -self.gammas[number])
        for number, m, move in itertools.product(numbers, sorted(self.shrinkages, reverse=True), self.moves):
            mass, hits, residuals = sums[number].T
            empty, shifts = mass <= 0, move == SHIFT  # rows without neighbours keep their confidence
            total, mass = residuals if shifts else hits, np.where(empty, 1.0, mass)
            mixed = local.mix(mass, total, factors[number], placed.confidence, m, shifts=shifts)
            rates = np.where(empty, placed.confidence, mixed)
            losses = placed.losses(rates, keeps=self.keeps)
            loss = float(np.average(losses, weights=weight))
            if loss < lowest * (1 - TIE) or not candidates:
                lowest, best, best_losses, best_rates = loss, len(candidates), losses, rates
            candidates.append(LocalCandidate(self.gammas[number], m, move, loss))
        rows, difference = pooled.rows, base - best_losses
        if table.cluster is None:
            gain, error, effective_rows = stopping.paired_gain(np.repeat(difference, rows), np.repeat(weight / rows, rows))
        else:
            gain, error, effective_rows = stopping.paired_gain(
                difference[pooled.index], (weight / rows)[pooled.index], cluster=stopping.cluster_numbers(table)
            )
        kept = gain > stopping.required_gain(stopping.LATER_ROUND_ERRORS, error, effective_rows, before)
        top = local.confidence_of(table.prediction)[1]
        scores = local.reset(table.prediction, top, best_rates[pooled.index], keeps=self.keeps)
        return Selection(tuple(candidates), candidates[best], before, gain, error, kept, scores)
