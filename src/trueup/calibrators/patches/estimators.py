"""HKRR and Multiaccuracy: groups are corrected one patch at a time, and the patches can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice, check_integer, check_number
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.patches.map import PatchMap
from trueup.calibrators.patches.search import PatchSearch, PatchSettings, arrange_rows
from trueup.calibrators.stopping import (
    CrossValidation,
    History,
    collect_held_out,
    evaluation_rows,
    repeat_by_weight,
    scale_weights,
    task_loss,
)
from trueup.data.bins import fit_binner
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup._types import FloatArray
    from trueup.calibrators.patches.map import PatchList
    from trueup.calibrators.stopping import Stopping
    from trueup.data.table import Table


DEFAULT_ALPHA = 0.01  # without a stopping rule; with one, held-out rows alone decide
MAX_BINS, MAX_LEVELS, MAX_INTEGER = 4096, 1000, 2**31 - 1
MAX_DEPTH = 2


class _PatchCalibrator(Calibrator):
    """Base of HKRR and Multiaccuracy: groups, the search, and the list of patches."""

    classes: Any = None  # there is one prediction column, so there are no classes to name

    def __init__(
        self,
        prediction: Any = None,
        features: Any = None,
        *,
        task: str = "auto",
        depth: int = 1,
        bins: int = 10,
        alpha: float | None = None,
        min_rows: int = 50,
        rounds: int = 500,
        stopping: Stopping = CrossValidation(),  # noqa: B008  (a frozen value)
        categorical: Any = (),
        unlabelled: str = "error",
        random_state: int = 0,
    ) -> None:
        self.prediction = prediction
        self.features = features
        self.task = task
        self.depth = depth
        self.bins = bins
        self.alpha = alpha
        self.min_rows = min_rows
        self.rounds = rounds
        self.stopping = stopping
        self.categorical = categorical
        self.unlabelled = unlabelled
        self.random_state = random_state

    @property
    def patches_(self) -> PatchList:
        """The patches, in order."""
        fitted = self._fitted().map
        assert isinstance(fitted, PatchMap)
        return fitted.patch_list

    def _score_edges(self, table: Table, weight: FloatArray) -> FloatArray:  # noqa: ARG002
        """Return the edges between score ranges; none by default."""
        return np.empty(0)

    def _link(self, table: Table) -> str:
        return task_loss(table.schema.task).link

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check()
        if table.schema.task == "multiclass":
            raise ArgumentError(
                f"{type(self).__name__} corrects one prediction column; got {len(table.schema.prediction)}, one per class",
                hint="MCGrad corrects several classes together; or correct the score of one class at a time",
                parameter="prediction",
            )
        joined, splits = self._split_rows(table)
        scaled = scale_weights(joined.weight, len(table))
        weight = np.ones(len(joined)) if scaled is None else scaled
        binners = [
            fit_binner(feature, repeat_by_weight(table, feature.name), default_bins=int(self.bins), for_new_rows=True)
            for feature in table.schema.features
        ]
        loss, link, validated = task_loss(table.schema.task), self._link(table), self.stopping is not None
        clip = (0.0, 1.0) if link == "identity" and table.schema.task == "binary" else None
        settings = PatchSettings(
            self._score_edges(table, weight[: len(table)]), link, self._scaled_alpha(table, weight[: len(table)]),
            float(self.min_rows), int(self.rounds), 1 if self.stopping is None else int(self.stopping.patience),
            np.array(clip or (-np.inf, np.inf), np.float64), validated,
        )  # fmt: skip
        rows = arrange_rows(joined, splits, binners, int(self.depth), weight, settings.min_rows)
        search = PatchSearch(rows, settings, loss)
        for done, _ in enumerate(search.run(), start=1):
            if progress is not None:
                progress(done, settings.rounds)
        edges = tuple(np.empty(0) if binner.edges is None else binner.edges for binner in binners)
        fitted = PatchMap(link, table.schema.levels, edges, tuple(search.patches), clip)
        reason = self._reason(search, fitted.describe())
        history = History(tuple(search.rounds), fitted.steps, reason, evaluation_rows(self.stopping), loss.measure)
        return FitResult(
            fitted, history, held_out=collect_held_out(joined, *search.held_out_scores()) if validated else None
        )

    def _scaled_alpha(self, table: Table, weight: FloatArray) -> float:
        """Return alpha on the scale of the outcome: for real outcomes it is a share of the standard deviation."""
        alpha = (DEFAULT_ALPHA if self.stopping is None else 0.0) if self.alpha is None else float(self.alpha)
        if table.schema.task == "binary":
            return alpha
        assert table.outcome is not None
        y, w = _pool_sorted(table.outcome, weight)
        unit = float(np.abs(y).max()) or 1.0
        mean = float(np.average(y / unit, weights=w))
        return alpha * unit * float(np.sqrt(np.average((y / unit - mean) ** 2, weights=w)))

    def _reason(self, search: PatchSearch, patches: str) -> str:
        if self.stopping is None:
            end = "stopped at the maximum number of rounds"
            if search.end == "exhausted":
                end = f"no cell of at least {self.min_rows:,} rows has an error above {search.settings.alpha:.3g}"
            return f"{patches if search.patches else 'no patch'}; {end}; no rows were held out to evaluate them"
        if not search.patches:
            return "no patch lowered the held-out loss significantly: scores are left unchanged"
        before, after = search.rounds[0].loss, search.rounds[len(search.patches)].loss
        end = {
            "exhausted": "no other patch lowers it significantly",
            "rounds": "stopped at the maximum number of rounds",
            "patience": "stopped after many consecutive patches that did not lower it significantly",
        }[search.end]
        return f"{patches}: held-out loss {before:.6g} -> {after:.6g}; {end}"

    def _check(self) -> None:
        check_integer("depth", self.depth, 1, MAX_DEPTH)
        check_integer("bins", self.bins, 2, MAX_BINS)
        check_integer("min_rows", self.min_rows, 1, MAX_INTEGER)
        check_integer("rounds", self.rounds, 1, MAX_INTEGER)
        check_integer("random_state", self.random_state, 0, MAX_INTEGER)
        check_number("alpha", self.alpha, 0, optional=True)
        self._check_stopping()


class HKRR(_PatchCalibrator):
    """Calibrate predictions on every group at every score level, by a readable list of patches.

    If the mean of ``outcome - prediction`` of a group within a score range is not 0, the predictions there are shifted by
    it; and so on. A patch is kept only if it lowers the loss of rows that were not used to estimate it. If no patch does,
    scores are left unchanged.

    Parameters
    ----------
    prediction : column name
        The score to correct: a probability, or a real number (``task="regression"``). For an array a position, 0 by
        default.
    features : column names, optional
        The columns that form groups; every other column by default. A group is a level of a category, a bin of a number, a
        value of an indicator column, or the missing values of a column. Groups overlap. All rows are always a group.
    task : {"auto", "binary", "regression"}
    depth : {1, 2}
        2 also forms groups by pairs of columns: "country=BR & device=tv".
    bins : int
        The maximum number of bins of a numeric column.
    levels : int
        The number of score ranges. They are fixed; a row is in the range of its score after the patches so far.
    spacing : {"mass", "equal"}
        Score ranges of equal numbers of rows, by base score; or of equal width, as published. If outcomes are rare, almost
        all rows are in the first range of equal width.
    alpha : float, optional
        The tolerated mean error of a cell (a group within a score range): a probability, or in regression a share of the
        standard deviation of the outcome. By default 0 with a stopping rule, and 0.01 if ``stopping`` is None.
    min_rows : int
        Smaller cells are not corrected.
    rounds : int
        The maximum number of patches.
    stopping : CrossValidation, Holdout, Validation or None
        The held-out rows that confirm a patch. None is the published algorithm: patches until the error of every cell of
        ``min_rows`` is within ``alpha`` on the training rows. Nothing prevents overfitting then: on a few thousand rows
        the result is usually worse than no correction.
    categorical : column names
        Numeric columns that are categories.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    random_state : int
        Seed of the assignment of rows to folds.

    Attributes
    ----------
    patches_ : PatchList
        The patches, in order.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The held-out loss after every patch, and why the search stopped.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    The next cell is the one whose patch lowers squared error most: n times the square of its mean residual is largest.

    As published (``stopping=None``), the mean residual itself is added, and predictions are clipped to [0, 1]. That
    overfits small cells, and the log loss of a wrong prediction of 0 is infinite. With a stopping rule, therefore:

    - a patch is estimated again without each fold, and must lower the loss of the fold (log loss, or squared error) by more
      than 1.5 standard errors, or by as many as bound the probability of any false patch by 5% over all cells: about 2 for
      600 cells. Two standard errors of the gain are about four of the mean residual. Standard errors are at least those
      implied by the predictions: a few dozen rows of 2% without an event are no evidence;
    - probabilities are shifted on the logit scale, as in `Multiaccuracy`, and cannot reach 0 or 1; a shift is shrunk by
      ``1 - 1 / z^2``, z being its number of standard errors;
    - neighbouring score ranges are also tried together, from the whole group down by halves: a small error at all scores
      is found, and corrected by one patch.

    The published guarantee excludes cells of a small share of rows; here ``min_rows`` defines how small, and ``alpha``
    bounds the mean error of every other cell.

    Integer weights of at most 100 on average count as that many rows. Other weights are scaled to the effective number of
    rows, (sum w)^2 / sum w^2, so that their unit does not matter.

    References
    ----------
    Hébert-Johnson, Kim, Reingold & Rothblum (2018), "Multicalibration: Calibration for the (Computationally-Identifiable)
    Masses", ICML.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.HKRR("prediction", ["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.history_.loss_after < fix.history_.loss_before
    True
    >>> fix.patches_
    Patches: 2 in order; each applies to the scores after those above it
         group           score        rows  predicted  observed  logit shift
      1  all rows        from 0.182  2,000     0.2729     0.217      -0.3049
      2  region=harbour  any         2,194    0.06503    0.1126       +0.635
    """

    def __init__(
        self,
        prediction: Any = None,
        features: Any = None,
        *,
        task: str = "auto",
        depth: int = 1,
        bins: int = 10,
        levels: int = 10,
        spacing: str = "mass",
        alpha: float | None = None,
        min_rows: int = 50,
        rounds: int = 500,
        stopping: Stopping = CrossValidation(),  # noqa: B008  (a frozen value)
        categorical: Any = (),
        unlabelled: str = "error",
        random_state: int = 0,
    ) -> None:
        super().__init__(
            prediction, features, task=task, depth=depth, bins=bins, alpha=alpha, min_rows=min_rows, rounds=rounds,
            stopping=stopping, categorical=categorical, unlabelled=unlabelled, random_state=random_state,
        )  # fmt: skip
        self.levels = levels
        self.spacing = spacing

    def _link(self, table: Table) -> str:
        return "identity" if self.stopping is None else super()._link(table)

    def _check(self) -> None:
        super()._check()
        check_integer("levels", self.levels, 1, MAX_LEVELS)
        check_choice("spacing", self.spacing, ("mass", "equal"))

    def _score_edges(self, table: Table, weight: FloatArray) -> FloatArray:
        """Return the edges between score ranges; the range of a score is the count of edges at or below it."""
        shares = np.arange(1, self.levels) / self.levels
        if self.spacing == "equal":
            binary = table.schema.task == "binary"
            low, high = (0.0, 1.0) if binary else (float(table.prediction.min()), float(table.prediction.max()))
            edges = np.unique(low + shares * (high - low))
            return edges[(edges > low) & np.isfinite(edges)]
        scores, w = _pool_sorted(table.prediction, weight)
        below = (np.cumsum(w) - w) / w.sum()
        places = np.searchsorted(below, shares, side="left")
        edges = np.unique(scores[places[places < len(scores)]])
        return np.asarray(edges[edges > scores[0]])


class Multiaccuracy(_PatchCalibrator):
    """Make the mean prediction of every group equal its mean outcome, by a readable list of patches.

    As `HKRR` without score ranges: a weaker requirement, which fewer rows are enough to check. Probabilities are shifted on
    the logit scale, so that the mean prediction of the group becomes its mean outcome, and stay between 0 and 1; real
    predictions are shifted by the mean of ``outcome - prediction``.

    Parameters
    ----------
    prediction, features, task, depth, bins, alpha, min_rows, rounds, stopping, categorical, unlabelled, random_state
        As in `HKRR`; a cell is a group at all scores.

    Attributes
    ----------
    patches_, model_, history_, held_out_, held_out_rows_, held_out_before_
        As in `HKRR`.

    References
    ----------
    Hébert-Johnson, Kim, Reingold & Rothblum (2018), "Multicalibration: Calibration for the (Computationally-Identifiable)
    Masses", ICML; Kim, Ghorbani & Zou (2019), "Multiaccuracy: Black-Box Post-Processing for Fairness in Classification",
    AIES, for the logit scale.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.Multiaccuracy("prediction", ["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.patches_
    Patches: 3 in order; each applies to the scores after those above it
         group            rows  predicted  observed  logit shift
      1  region=harbour  2,194    0.06856    0.1126      +0.5846
      2  age<20          1,449     0.1762    0.1173      -0.5093
      3  age=[20, 25)    2,403     0.1483    0.1136      -0.3229
    """


def _pool_sorted(values: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distinct values, ascending, and their weights, summed in an order that does not depend on the rows'."""
    order = np.lexsort((weight, values))
    values, weight = values[order], weight[order]
    new = np.ones(len(values), bool)
    new[1:] = np.diff(values) > 0
    return values[new], np.bincount(np.cumsum(new) - 1, weight).astype(np.float64)
