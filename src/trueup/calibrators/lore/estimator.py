"""LoRe: the score of a row is reset to the observed rate of similar rows."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice, check_integer, check_number
from trueup.calibrators import splits
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.curves.binning import cut_by_mass
from trueup.calibrators.explain import find_corrections
from trueup.calibrators.lore.map import MAX_BINS, MAX_GAMMA, MIN_GAMMA, LocalMap, confidence_of, even_edges
from trueup.calibrators.lore.selection import RESET, SHIFT, MapSelector, place_rows, pool_rows
from trueup.calibrators.lore.spaces import FeatureSpace, GroupSpace, fit_embedding, place_all
from trueup.calibrators.map import UnchangedMap
from trueup.calibrators.stopping import History, Holdout, Round
from trueup.data.frame import read_like
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.explain import Explanation
    from trueup.calibrators.lore.selection import LocalCandidate, PooledRows, Selection
    from trueup.calibrators.lore.spaces import Embedding
    from trueup.calibrators.map import Map
    from trueup.data.schema import Task
    from trueup.data.table import Table


GAMMAS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, math.inf)
SHRINKAGES = (1.0, 3.0, 10.0, 30.0, 100.0)
MAX_LEAVE_ONE_OUT = 50_000  # distinct rows; of more, HELD_OUT_ROWS are held out instead
HELD_OUT_ROWS = 20_000
AUTO_MIN_BINS, AUTO_MAX_BINS = 5, 15
# Of equal width as in the paper: 5 bins for 500 rows, else 15. Of equal weight, where none is empty, fewer are better.
ROWS_PER_BIN = {"width": 100, "mass": 1000}
MAX_INTEGER = 2**31 - 1


class LoRe(Calibrator):
    """Reset scores to the observed rate of similar rows: local recalibration.

    Rows are similar if they have nearly the same score and are close in a space of features. With phi the point of a row
    in d dimensions and ``k(x, x') = exp(-|phi(x) - phi(x')|_1 / (d gamma))``, the new score of x is the mean outcome of the
    rows in its bin of scores, weighted by k: Eq. 6 of the paper. Segments on which scores are miscalibrated need not be
    named: the rows of such a segment are close together.

    For several classes, the highest score is reset to the rate at which its class is correct, and the other classes share
    the rest in proportion. The order of classes may change, as in the paper: an overconfident class need not remain the
    highest.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, or one column per class. For an array a position, 0 by default.
    features : column names, optional
        What makes rows similar; every other column by default. Without any features this is histogram binning.
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

        Coordinates then have one common factor, so that two random rows are 1 apart per dimension on average.
    components : int or None
        The maximum number of principal components; None keeps the scaled columns.
    task : {"auto", "binary"}
        "auto" is binary for one prediction column, multiclass for several. Real outcomes are rejected.
    categorical : column names
        Numeric columns that are categories.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    threads : int, optional
        The number of cores by default.

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
        These rows and scores, as in `trueup.MCGrad`.

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
    Luo, Bhatnagar, Bai, Zhao, Wang, Xiong, Savarese, Ermon, Schmerling & Pavone (2022), "Local calibration: metrics and
    recalibration".

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

    def __init__(
        self,
        prediction: Any = None,
        features: Any = None,
        *,
        gamma: Any = "auto",
        shrinkage: Any = "auto",
        move: str = "auto",
        bins: Any = "auto",
        strategy: str = "auto",
        embedding: Any = "pca",
        components: int | None = 20,
        task: str = "auto",
        categorical: Any = (),
        classes: Any = None,
        unlabelled: str = "error",
        threads: int | None = None,
    ) -> None:
        self.prediction = prediction
        self.features = features
        self.gamma = gamma
        self.shrinkage = shrinkage
        self.move = move
        self.bins = bins
        self.strategy = strategy
        self.embedding = embedding
        self.components = components
        self.task = task
        self.categorical = categorical
        self.classes = classes
        self.unlabelled = unlabelled
        self.threads = threads

    @property
    def gamma_(self) -> float:
        """The bandwidth of the kernel."""
        fitted = self._fitted().map
        return fitted.gamma if isinstance(fitted, LocalMap) else math.inf

    @property
    def shrinkage_(self) -> float:
        """The number of rows that the score itself counts for."""
        fitted = self._fitted().map
        return fitted.shrinkage if isinstance(fitted, LocalMap) else math.inf

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
        return place_all(self.embedding_, columns, len(table))

    def _fit_map(self, table: Table, progress: Any) -> FitResult:  # noqa: ARG002
        self._check(table.schema.task)
        splits.check_row_count(table)
        pooled = pool_rows(table)
        embedding = fit_embedding(self.embedding, self.components, table, pooled)
        distinct = table.take(pooled.first)
        selector = MapSelector(
            embedding, self._score_edges(distinct, pooled), *self._candidate_values(embedding), self.threads
        )
        placed = place_rows(distinct, embedding, selector.edges)
        leave_one_out = len(pooled.first) <= MAX_LEAVE_ONE_OUT
        if leave_one_out:
            rows = np.arange(len(table))
            selection = selector.by_leave_one_out(placed, pooled, table)
        else:
            train, rows = _hold_out_rows(table)
            selection = selector.by_holdout(table, train, rows)
        kept = selection.kept or not isinstance(self.gamma, str)
        history = self._history(selection, "leave-one-out" if leave_one_out else "held-out rows", kept=kept)
        fitted: Map = selector.build(placed, pooled.weight, *selection.chosen[:3]) if kept else UnchangedMap()
        self.candidates_: tuple[LocalCandidate, ...] = selection.candidates
        self.embedding_ = embedding
        held = splits.collect_held_out(table, rows, selection.scores if kept else table.prediction[rows])
        return FitResult(fitted, history, selection.scores if kept else None, held)

    def _explain_change(self, table: Table, fitted: Map, after: FloatArray) -> Explanation:
        evaluated = table if len(after) == len(table) else table.take(_hold_out_rows(table)[1])
        return find_corrections(evaluated, fitted.feature_sets(), evaluated.prediction, after)

    def _score_edges(self, distinct: Table, pooled: PooledRows) -> FloatArray:
        """Return the edges between bins of the score."""
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
            return even_edges(bins)
        score, place = np.unique(confidence_of(distinct.prediction)[0] + 0.0, return_inverse=True)
        return cut_by_mass(score, np.bincount(place.ravel(), pooled.weight).astype(np.float64), bins)[0]

    def _candidate_values(self, embedding: Embedding) -> tuple[tuple[float, ...], tuple[float, ...], tuple[str, ...]]:
        """Return the gammas, shrinkages and moves to try."""
        auto = isinstance(self.gamma, str)
        gammas: tuple[float, ...] = GAMMAS if auto else (float(self.gamma),)
        if auto and isinstance(embedding, GroupSpace):
            gammas = (1.0, math.inf)
        if auto and isinstance(embedding, FeatureSpace) and embedding.features is None:
            gammas = (math.inf,)
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
            count = len(selection.candidates)
            reason = f"{chosen.move} {kernel} and shrinkage {chosen.shrinkage:g}, best of {count}: {change}"
        else:
            reason = f"{change} is within noise: scores are left unchanged"
        error = selection.error if math.isfinite(selection.error) else 0.0
        rounds = (
            Round(0, 0, 1.0, selection.before, 0.0, 0.0, kept=True),
            Round(1, 0, 1.0, chosen.loss, selection.gain, error, kept=kept),
        )
        return History(rounds, int(kept), reason, rows, "log loss")

    def _check(self, task: Task) -> None:
        if task == "regression":
            raise ArgumentError(
                "LoRe corrects probabilities: it has no meaning for task='regression'",
                hint="MCGrad, LSBoost, DepthTwo and Grouped accept real outcomes",
                parameter="task",
            )
        auto = '"auto" chooses it by leave-one-out'
        if self.gamma not in ("auto", math.inf):
            check_number("gamma", self.gamma, MIN_GAMMA, MAX_GAMMA, hint=f"{auto}; infinity is histogram binning")
        if self.shrinkage != "auto":
            check_number("shrinkage", self.shrinkage, 0, 1e9, hint=auto)
        if self.bins != "auto":
            check_integer("bins", self.bins, 1, MAX_BINS, hint='"auto" chooses it by the number of rows')
        check_choice("move", self.move, ("auto", RESET, SHIFT))
        check_choice("strategy", self.strategy, ("auto", "mass", "width"))
        check_integer("components", self.components, 1, MAX_INTEGER, optional=True)
        check_integer("threads", self.threads, 1, MAX_INTEGER, optional=True)
        if isinstance(self.embedding, str):
            check_choice("embedding", self.embedding, ("pca", "columns", "groups"))
        else:
            _check_transformer(self.embedding)


def _hold_out_rows(table: Table) -> tuple[IntArray, IntArray]:
    """Return the training rows and the held-out rows of a large table."""
    share = max(HELD_OUT_ROWS / len(table), 1 / splits.HOLDOUT_FOLDS)
    split = splits.split_rows(table, Holdout(share), 0)[0]
    return split.train, split.valid


def _check_transformer(embedding: Any) -> None:
    if isinstance(embedding, type) or not hasattr(embedding, "fit") or not hasattr(embedding, "get_params"):
        raise ArgumentError(
            f'embedding must be "pca", "columns", "groups" or a scikit-learn transformer; got {embedding!r}',
            hint="write it as embedding=PCA(5), with parentheses",
            parameter="embedding",
        )
    if not hasattr(embedding, "transform"):
        raise ArgumentError(
            f"embedding must have a method transform, to place new rows; {type(embedding).__name__} has none",
            hint="apply it beforehand to all rows together, those to predict included, name its columns as features, and "
            "use {embedding}",
            parameter="embedding",
            settings={"embedding": "columns"},
        )
