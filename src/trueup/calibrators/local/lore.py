"""LoRe: the confidence of a row is reset to the rate at which rows like it came true."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.calibrators import splits
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.checking import check_whole
from trueup.calibrators.curves.binning import cut_by_mass
from trueup.calibrators.explain import find_corrections
from trueup.calibrators.local import judging
from trueup.calibrators.local.embedding import ForeignLocal, ForeignSpace, fit_embedding
from trueup.calibrators.local.judging import RESET, SHIFT, Candidates
from trueup.calibrators.local.pooling import pool_rows
from trueup.calibrators.map import UnchangedMap
from trueup.calibrators.maps.local import LocalMap, confidence_of, even_edges, reset
from trueup.calibrators.maps.spaces import Groups, Space, place_all
from trueup.calibrators.stopping import History, Holdout, Round
from trueup.data.frame import read_like
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.explain import Explanation
    from trueup.calibrators.local.judging import Judged, Placed, Tried, Votes
    from trueup.calibrators.local.pooling import Units
    from trueup.calibrators.map import Map
    from trueup.calibrators.maps.spaces import Embedding
    from trueup.data.schema import Task
    from trueup.data.table import Table


GAMMAS = (0.0125, 0.025, 0.05, 0.1, 0.2, 0.4, 0.8, 1.6, math.inf)
SHRINKAGES = (1.0, 3.0, 10.0, 30.0, 100.0)
ALL, SOME = 50_000, 20_000  # up to so many different rows, all judge without their own vote; of more, some are held out
FEWEST_BINS, MOST_BINS = 5, 15
# Of equal width as in the paper: 5 bins for 500 rows, else 15. Of equal weight, where none is empty, fewer serve better.
ROWS_PER_BIN = {"width": 100, "mass": 1000}
EMBEDDINGS = ("pca", "columns", "groups")
END = (1e-6, 1e6)  # of gamma: beyond them a row sees its nearest alone, or the whole bin


class LoRe(Calibrator):
    """Reset scores to the rate at which similar rows came true: local recalibration.

    Rows are similar that have nearly the same score, and lie close together in a space of features. With phi the point of
    a row in d dimensions and ``k(x, x') = exp(-|phi(x) - phi(x')|_1 / (d gamma))``, the new score of x is the mean outcome
    of the rows in its bin of scores, each weighed by k: Eq. 6 of the paper. Nobody has to name the segments on which scores
    are wrong; rows of such a segment lie close together.

    Of several classes, the highest score is reset to the rate at which the class of it came true, and the other classes
    share what is left in the proportions they had. Their order may change, as in the paper: a class of which the model was
    too sure need not stay the highest.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, or one column for each class. For an array a position, 0 by default.
    features : column names, optional
        What makes rows similar; every other column by default. With none at all this is histogram binning.
    gamma : "auto" or float
        The reach of the kernel, as a share of the distance between two rows drawn at random. "auto" tries nine, from 0.0125
        to infinity, and leaves scores unchanged where none serves rows better, beyond noise, that have no say in their own
        score. A number applies as it is: 0.4 is the paper's for principal components, 0.2 for two or three coordinates of a
        t-SNE, infinity is histogram binning; as it goes to 0, the nearest row decides.
    shrinkage : "auto" or float
        How many rows the score itself counts for, beside the neighbours: ``(sum k y + m p) / (sum k + m)``. A row with no
        neighbours then keeps its score. "auto" chooses it with gamma; where gamma is a number it is 0, which is Eq. 6.
    move : {"auto", "reset", "shift"}
        "reset" puts the rate of the neighbours in place of the score, as Eq. 6 does. "shift" adds how far their outcomes
        are from their scores, ``p + sum k (y - p_i) / (sum k + m)``: scores that differ within a bin go on differing.
        "auto" chooses it with gamma; where gamma is a number it is "reset".
    bins : "auto" or int
        Bins of the score, or of the highest of several: the most. "auto" has from 5 to 15: one for each 100 rows where
        they are of equal width, for each 1,000 where of equal weight. A row in a bin that no row of the fit was in goes by
        the nearest bin that had some, the lower of two.
    strategy : {"auto", "mass", "width"}
        Bins of equal weight, or of equal width over [0, 1], as the paper has them: where most scores are close to 0 or 1,
        bins of equal width put rows together that have little in common. "auto" is "width" where gamma is a number, else
        "mass".
    embedding : {"pca", "columns", "groups"} or scikit-learn transformer
        Where distances are measured.

        - "pca": each number divided by its standard deviation, each category as 0/1 columns that together have a variance
          of 1; then the first principal components of them.
        - "columns": the features are the coordinates, in their own unit: those of a t-SNE made beforehand, or the last
          layer of a network.
        - "groups": k is 1 for rows of one group and 0 for others, whatever gamma is (but infinite). Groups are the
          combinations of the features; numbers and dates are cut into ten bins. A group without rows in a bin goes by the
          whole bin. This is histogram binning in each group.
        - A transformer is fitted to the features as numbers, unscaled, and its output is the point. Such a fix cannot be
          saved.

        Coordinates then have one common factor, so that two rows drawn at random are 1 apart for each dimension.
    components : int or None
        Principal components, at most; None leaves the scaled columns as they are.
    task : {"auto", "binary"}
        "auto" is binary for one prediction column, several classes for several. Real outcomes have no rate.
    categorical : column names
        Numeric columns to be read as categories.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    threads : int, optional
        As many as there are cores by default.

    Attributes
    ----------
    gamma_, shrinkage_ : float
        As told or chosen; both infinite where scores are left unchanged.
    tried_ : tuple of Tried
        Each gamma, shrinkage and move that was judged, with its loss.
    model_ : Model
        What is saved and shipped. It holds the rows of the fit as points, and says how large that is.
    embedding_ : Embedding
        What takes features to points, also where scores are left unchanged; see `points`. Saved only as far as the model
        needs it.
    history_ : History
        The loss before and after, of rows that have no say in their own score.
    held_out_, held_out_rows_, held_out_before_
        These rows and scores, as in `trueup.MCGrad`.

    Notes
    -----
    A missing number counts as the mean, and where the fit has met missing ones a column beside it says so (not for
    "columns"). A missing category, or one not seen in the fit, is a level of its own. An infinite number is at no distance
    from others: it is refused in the fit, and later wherever distances count. Groups take it: it is in the last, or first.

    Losses are by leave-one-out. Rows alike in features and prediction are left out together where there are up to ten of
    them, so that a copy never speaks for its original; more of them are what discrete data look like, and only one is left
    out. Of more than 50,000 different rows, 20,000 are held out to judge by, and the final model has all.

    Every row of the fit is compared with every row to be scored, within a bin: a prediction takes time in proportion to
    both. In one to three dimensions large bins are summed faster.

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

    Measure in the space that was fixed in:

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
        """The reach of the kernel."""
        found = self._fitted().map
        return found.gamma if isinstance(found, LocalMap) else math.inf

    @property
    def shrinkage_(self) -> float:
        """How many rows the score itself counts for."""
        found = self._fitted().map
        return found.shrinkage if isinstance(found, LocalMap) else math.inf

    def points(self, X: Any) -> FloatArray | IntArray:
        """Say where rows lie: the space in which neighbours were looked for, as the phi of `trueup.metrics.lce`.

        Parameters
        ----------
        X : pandas, polars or pyarrow frame, dict of arrays, or ndarray
            With the columns of the fit, those of the prediction too.

        Returns
        -------
        ndarray of float64, shape (n, d)
            Also where scores were left unchanged. With ``embedding="groups"`` the number of each row's group instead,
            shape (n,), for ``kernel="group"``; 0 for combinations that were not there in the fit.
        """
        table = read_like(X, self._fitted().schema)
        columns = [table.columns[one.name] for one in table.schema.features]
        return place_all(self.embedding_, columns, len(table))

    def _fit_map(self, table: Table, progress: Any) -> FitResult:  # noqa: ARG002
        self._check(table.schema.task)
        splits.check_row_count(table)
        units = pool_rows(table)
        embedding = fit_embedding(self.embedding, self.components, table, units)
        few = table.take(units.first)
        recipe = _Recipe(embedding, self._cut_scores(few, units), self._candidates(embedding), self.threads)
        own = judging.place_rows(few, embedding, recipe.edges)
        all_judge = len(units.first) <= ALL
        learn, rows = (None, np.arange(len(table))) if all_judge else _held(table)
        judged, after = recipe.judge_all(own, units, table) if learn is None else recipe.judge_some(table, learn, rows)
        kept = judged.kept or not isinstance(self.gamma, str)
        history = self._history(judged, all_judge=all_judge, kept=kept)
        found: Map = recipe.learn(own, units.weight, *judged.chosen[:3]) if kept else UnchangedMap()
        self.tried_: tuple[Tried, ...] = judged.tried
        self.embedding_ = embedding
        held = splits.collect_held_out(table, rows, after if kept else table.prediction[rows])
        return FitResult(found, history, after if kept else None, held)

    def _explain_change(self, table: Table, found: Map, after: FloatArray) -> Explanation:
        some = table if len(after) == len(table) else table.take(_held(table)[1])
        return find_corrections(some, found.tested(), some.prediction, after)

    def _cut_scores(self, few: Table, units: Units) -> FloatArray:
        """Give the edges between bins of the score."""
        strategy = self.strategy
        if strategy == "auto":
            strategy = "mass" if isinstance(self.gamma, str) else "width"
        bins = self._count_bins(units, ROWS_PER_BIN[strategy])
        if strategy == "width":
            return even_edges(bins)
        score, at = np.unique(confidence_of(few.prediction)[0] + 0.0, return_inverse=True)
        return cut_by_mass(score, np.bincount(at.ravel(), units.weight).astype(np.float64), bins)[0]

    def _count_bins(self, units: Units, rows: int) -> int:
        if not isinstance(self.bins, str):
            return int(self.bins)
        weight = units.weight / units.rows
        many = float((weight * units.rows).sum() ** 2 / (weight**2 * units.rows).sum())  # the effective number of rows
        return min(max(int(many * (1 + 1e-9)) // rows, FEWEST_BINS), MOST_BINS)

    def _candidates(self, embedding: Embedding) -> Candidates:
        """List what is tried."""
        free = isinstance(self.gamma, str)
        gammas: tuple[float, ...] = GAMMAS if free else (float(self.gamma),)
        if free and isinstance(embedding, Groups):
            gammas = (1.0, math.inf)
        if free and isinstance(embedding, Space) and embedding.features is None:
            gammas = (math.inf,)
        auto = isinstance(self.shrinkage, str)
        shrinkages = (SHRINKAGES if free else (0.0,)) if auto else (float(self.shrinkage),)
        moves = ((RESET, SHIFT) if free else (RESET,)) if self.move == "auto" else (self.move,)
        return Candidates(gammas, shrinkages, moves)

    def _history(self, judged: Judged, *, all_judge: bool, kept: bool) -> History:
        chosen = judged.chosen
        by = "leave-one-out" if all_judge else "held-out rows"
        moved = f"{by if all_judge else 'held-out'} loss {judged.before:.6g} -> {chosen.loss:.6g}"
        if not isinstance(self.gamma, str):
            reason = f"fitted as told: {moved}"
        else:
            grouped = isinstance(self.embedding, str) and self.embedding == "groups" and not math.isinf(chosen.gamma)
            reach = "by groups" if grouped else f"with gamma {chosen.gamma:g}"
            best = f"{chosen.move} {reach} and shrinkage {chosen.shrinkage:g}, best of {len(judged.tried)}"
            reason = f"{best}: {moved}" if kept else f"{moved} is nothing beyond noise: scores are left unchanged"
        rounds = (
            Round(0, 0, 1.0, judged.before, 0.0, 0.0, kept=True),
            Round(1, 0, 1.0, chosen.loss, judged.gain, judged.error if math.isfinite(judged.error) else 0.0, kept=kept),
        )
        return History(rounds, int(kept), reason, by, "log loss")

    def _check(self, task: Task) -> None:
        if task == "regression":
            raise ArgumentError(
                "LoRe corrects probabilities: it has no meaning for task='regression'",
                hint="MCGrad, LSBoost, DepthTwo and Grouped take real outcomes",
            )
        _check_number("gamma", self.gamma, END[0], END[1], ends="or infinity")
        _check_number("shrinkage", self.shrinkage, 0.0, 1e9)
        if not (isinstance(self.bins, str) and self.bins == "auto"):
            check_whole(self, {"bins": (1, 4096)})
        check_choice("move", self.move, ("auto", RESET, SHIFT))
        check_choice("strategy", self.strategy, ("auto", "mass", "width"))
        check_whole(self, {"components": (1, 2**31 - 1), "threads": (1, 2**31 - 1)}, optional=True)
        if isinstance(self.embedding, str):
            check_choice("embedding", self.embedding, EMBEDDINGS)
        else:
            _check_transformer(self.embedding)


class _Recipe:
    """What is the same for every map that is tried."""

    def __init__(self, embedding: Embedding, edges: FloatArray, candidates: Candidates, threads: int | None) -> None:
        self.embedding, self.edges, self.candidates, self.threads = embedding, edges, candidates, threads

    def learn(self, placed: Placed, weight: FloatArray, gamma: float, shrinkage: float, move: str) -> LocalMap:
        """Make the map of all rows."""
        shifts, space = move == SHIFT, Space() if math.isinf(gamma) else self.embedding
        groups = 1 + len(space.cells) if isinstance(space, Groups) else 1
        made = ForeignLocal if isinstance(space, ForeignSpace) else LocalMap
        near = judging.make_neighbours(placed, weight, groups, near=not math.isinf(gamma), shifts=shifts)
        return made(space, near, self.edges, groups, gamma, shrinkage, shifts)

    def judge_all(self, own: Placed, units: Units, table: Table) -> tuple[Judged, FloatArray]:
        """Judge by every row, without its own vote; give the scores of all rows too."""
        votes = judging.leave_one_out(own, units, self.candidates.gammas, self.embedding, self.threads)
        return self._choose(votes, own, units, table)

    def judge_some(self, table: Table, learn_from: IntArray, held_out: IntArray) -> tuple[Judged, FloatArray]:
        """Judge by rows that are held out; give their scores too."""
        sides = [table.take(rows) for rows in (learn_from, held_out)]
        units, judges = (pool_rows(side) for side in sides)
        placed, held = (
            judging.place_rows(side.take(pooled.first), self.embedding, self.edges)
            for side, pooled in zip(sides, (units, judges), strict=True)
        )

        def learn(gamma: float, move: str) -> LocalMap:
            return self.learn(placed, units.weight, gamma, 0.0, move)

        votes = judging.votes_at(learn, self.candidates.gammas, held, self.threads)
        return self._choose(votes, held, judges, sides[1])

    def _choose(self, votes: Votes, placed: Placed, units: Units, table: Table) -> tuple[Judged, FloatArray]:
        judged = judging.choose(votes, placed, units.weight, units.rows, self.candidates)
        return judged, reset(table.prediction, confidence_of(table.prediction)[1], judged.rate[units.unit])


def _held(table: Table) -> tuple[IntArray, IntArray]:
    """Deal out which rows are learned from, and which judge."""
    share = max(SOME / len(table), 1 / splits.HOLDOUT_FOLDS)
    split = splits.split_rows(table, Holdout(share), 0)[0]
    return split.train, split.valid


def _check_number(name: str, value: Any, least: float, most: float, ends: str = "") -> None:
    """Ask for "auto", or a number within bounds; infinity where the ends say so."""
    if isinstance(value, str) and value == "auto":
        return
    number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool)
    if not number or not (least <= value <= most or (ends and value == math.inf)):
        upto = f"from {least:g} to {most:g}{', ' * bool(ends)}{ends}"
        raise ArgumentError(
            f'{name} must be "auto" or a number {upto}; got {value!r}', hint='"auto" chooses the best of several'
        )


def _check_transformer(found: Any) -> None:
    if isinstance(found, type) or not hasattr(found, "fit") or not hasattr(found, "get_params"):
        raise ArgumentError(
            f'embedding must be "pca", "columns", "groups" or a scikit-learn transformer; got {found!r}',
            hint="write it as embedding=PCA(5), with the brackets",
        )
    if not hasattr(found, "transform"):
        raise ArgumentError(
            f"{type(found).__name__} has no transform: it cannot say where new rows lie",
            hint="run it beforehand on all rows together, those to be scored too, and name its columns as features with "
            'embedding="columns"',
        )
