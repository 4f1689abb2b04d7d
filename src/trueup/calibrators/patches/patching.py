"""HKRR and Multiaccuracy: groups are made right one patch at a time, and the patches can be read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.checking import check_numbers, check_whole
from trueup.calibrators.losses import task_loss
from trueup.calibrators.maps.patches import Patches
from trueup.calibrators.patches.rows import arrange
from trueup.calibrators.patches.search import Rule, Search
from trueup.calibrators.splits import collect_held_out, repeat_by_weight, scale_weights
from trueup.calibrators.stopping import CrossValidation, History, evaluation_rows
from trueup.data.bins import fit_binner
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup._types import FloatArray
    from trueup.calibrators.maps.patches import PatchList
    from trueup.calibrators.stopping import Stopping
    from trueup.data.table import Table


UNJUDGED = 0.01  # alpha where nothing is held out; where rows judge, they decide alone
MOST_BINS, MOST_LEVELS, MOST = 4096, 1000, 2**31 - 1
DEEPEST = 2


class _Patching(Calibrator):
    """What the two share: groups, the search, and the list of patches."""

    classes: Any = None  # one prediction column: there are no classes to name
    depth: int
    bins: int
    alpha: float | None
    min_rows: int
    rounds: int

    @property
    def patches_(self) -> PatchList:
        """Say what was changed, in order."""
        found = self._fitted().map
        assert isinstance(found, Patches)
        return found.listed

    def _edges(self, table: Table, weight: FloatArray) -> FloatArray:  # noqa: ARG002
        """Give the edges of the score cells; whole groups have none."""
        return np.empty(0)

    def _link(self, table: Table) -> str:  # noqa: ARG002
        return "identity"

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check()
        if table.schema.task == "multiclass":
            raise ArgumentError(
                f"{type(self).__name__} takes one prediction column; got {len(table.schema.prediction)}, one a class",
                hint="MCGrad corrects several classes together; or correct the score of one class at a time",
            )
        whole, splits = self._split_rows(table)
        scaled = scale_weights(whole.weight, len(table))
        weight = np.ones(len(whole)) if scaled is None else scaled
        cuts = [
            fit_binner(one, repeat_by_weight(table, one.name), default_bins=int(self.bins), for_new_rows=True)
            for one in table.schema.features
        ]
        loss, link, judged = task_loss(table.schema.task), self._link(table), self.stopping is not None
        clip = (0.0, 1.0) if link == "identity" and table.schema.task == "binary" else None
        rule = Rule(
            self._edges(table, weight[: len(table)]), link, self._tolerated(table, weight[: len(table)]),
            float(self.min_rows), int(self.rounds), 1 if self.stopping is None else int(self.stopping.patience),
            clip, judged,
        )  # fmt: skip
        search = Search(arrange(whole, splits, cuts, int(self.depth), weight, rule.min_rows), rule, loss)
        for done, _ in enumerate(search.run(), start=1):
            if progress is not None:
                progress(done, rule.rounds)
        edges = tuple(np.empty(0) if cut.edges is None else cut.edges for cut in cuts)
        found = Patches(link, table.schema.levels, edges, tuple(search.patches), clip)
        reason = self._reason(search, found.describe())
        history = History(tuple(search.tried), found.steps, reason, evaluation_rows(self.stopping), loss.measure)
        return FitResult(found, history, held_out=collect_held_out(whole, *search.held()) if judged else None)

    def _tolerated(self, table: Table, weight: FloatArray) -> float:
        """Put alpha on the scale of the outcome: of real outcomes it is a share of the standard deviation."""
        alpha = (UNJUDGED if self.stopping is None else 0.0) if self.alpha is None else float(self.alpha)
        if table.schema.task == "binary":
            return alpha
        y = table.outcome
        assert y is not None
        order = np.lexsort((weight, y))  # sums must not depend on the order of the rows
        unit = float(np.abs(y).max()) or 1.0
        y, w = _pooled(y[order], weight[order])
        mean = float(np.average(y / unit, weights=w))
        return alpha * unit * float(np.sqrt(np.average((y / unit - mean) ** 2, weights=w)))

    def _reason(self, search: Search, made: str) -> str:
        before, after = search.tried[0].loss, search.tried[len(search.patches)].loss
        within = f"no cell of {self.min_rows:,} rows or more is off by more than {search.rule.alpha:.3g}"
        if self.stopping is None:
            found = f"{made}; " if search.patches else "no patch; "
            held = "nothing was held out to judge by"
            return f"{found}{within}; {held}" if search.ended == "none" else f"{found}the most that were allowed; {held}"
        if not search.patches:
            return "no patch lowered the held-out loss beyond noise: scores are left unchanged"
        ended = {
            "none": "no other brings anything beyond noise", "rounds": "the most that were allowed",
            "patience": "many others in a row brought nothing beyond noise",
        }[search.ended]  # fmt: skip
        return f"{made}: held-out loss {before:.6g} -> {after:.6g}; {ended}"

    def _check(self) -> None:
        check_whole(self, {"depth": (1, DEEPEST), "bins": (2, MOST_BINS), "min_rows": (1, MOST), "rounds": (1, MOST)})
        check_whole(self, {"random_state": (0, MOST)})
        check_numbers(self, {"alpha": (0, np.inf)}, optional=True)
        self._check_stopping()


class HKRR(_Patching):
    """Make predictions right on every group at every score level, by a list of patches that people can read.

    Where the mean of ``outcome - prediction`` of a group within a score cell is off, the predictions there are moved by it;
    then the next. A patch is kept only where it lowers the loss of rows it was not sized by; no patch at all is a legal
    answer, and leaves scores unchanged.

    Parameters
    ----------
    prediction : column name
        The score to be corrected: a probability, or a real number (``task="regression"``). For an array a position, 0 by
        default.
    features : column names, optional
        What groups are made of; every other column by default. Each level of a category is a group, and so is each bin of a
        number, each value of an indicator column, and what is missing. Groups overlap. All rows are always a group.
    task : {"auto", "binary", "regression"}
    depth : {1, 2}
        2 also makes groups of what two columns have in common: "country=BR & device=tv".
    bins : int
        The most groups that a numeric column is cut into.
    levels : int
        How many cells scores are cut into. They stay as they are; a row is in the cell of its score as patched so far.
    spacing : {"mass", "equal"}
        Cells of equal numbers of rows, by their base score; or the textbook's cells of equal width, of which rare outcomes
        would all fall into the first.
    alpha : float, optional
        The mean error of a cell that is let be: a probability, or in regression a share of the standard deviation of the
        outcome. By default 0 where rows judge, for they decide; 0.01 where ``stopping`` is None.
    min_rows : int
        Cells of fewer rows are let be.
    rounds : int
        The most patches.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows confirm a patch. None is the textbook: patches until every cell of ``min_rows`` is within ``alpha`` on
        the rows of the fit. Nothing guards the result, and on a few thousand rows it is mostly worse than no change.
    categorical : column names
        Numeric columns to be read as categories.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    random_state : int
        Fixes everything.

    Attributes
    ----------
    patches_ : PatchList
        What was changed, in order.
    model_ : Model
        What is saved and shipped.
    history_ : History
        The held-out loss after every patch, and why there are no more.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.

    Notes
    -----
    The cell taken next is the one whose patch lowers squared error most: n times the square of its mean residual.

    As published (``stopping=None``), the mean residual itself is added, and predictions stop at 0 and 1. That overfits
    small cells, and log loss has no mercy with a prediction of 0. With a stopping rule, therefore:

    - a patch is sized again without each fold, and must lower the loss of the fold (log loss, or squared error) by more
      than 1.5 standard errors, or by as many as leave all cells together a chance of 5% of a false patch: about 2 for 600
      cells. Two standard errors of the gain are about four of the mean residual. They are no smaller than what the
      predictions say: a few dozen rows of 2% without an event are no evidence;
    - probabilities are moved on the logit scale, as in `Multiaccuracy`, and cannot reach 0 or 1; a shift is shrunk by
      ``1 - 1 / z^2``, z being its number of standard errors;
    - neighbouring cells are tried together as well, by halves down from the whole group: what is off by a little everywhere
      is seen, and mended by one patch.

    The published guarantee leaves out cells of a small share of rows; here ``min_rows`` says how small, and ``alpha``
    bounds the mean error of every other cell as it stands.

    Whole-number weights of up to 100 on average count as so many rows. Any others are scaled to the effective number of
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
    Patches: 2 in order; each reads the scores that those above it left
         group           score        rows  predicted  observed  logit moved
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
        self.prediction = prediction
        self.features = features
        self.task = task
        self.depth = depth
        self.bins = bins
        self.levels = levels
        self.spacing = spacing
        self.alpha = alpha
        self.min_rows = min_rows
        self.rounds = rounds
        self.stopping = stopping
        self.categorical = categorical
        self.unlabelled = unlabelled
        self.random_state = random_state

    def _link(self, table: Table) -> str:
        return "identity" if self.stopping is None else task_loss(table.schema.task).link

    def _check(self) -> None:
        super()._check()
        check_whole(self, {"levels": (1, MOST_LEVELS)})
        check_choice("spacing", self.spacing, ("mass", "equal"))

    def _edges(self, table: Table, weight: FloatArray) -> FloatArray:
        """Cut base scores into cells; a score is in the cell of how many edges are at most it."""
        parts = np.arange(1, self.levels) / self.levels
        if self.spacing == "equal":
            binary = table.schema.task == "binary"
            low, high = (0.0, 1.0) if binary else (float(table.prediction.min()), float(table.prediction.max()))
            edges = np.unique(low + parts * (high - low))
            return edges[(edges > low) & np.isfinite(edges)]
        order = np.lexsort((weight, table.prediction))
        scores, w = _pooled(table.prediction[order], weight[order])
        below = (np.cumsum(w) - w) / w.sum()
        places = np.searchsorted(below, parts, side="left")
        edges = np.unique(scores[places[places < len(scores)]])
        return np.asarray(edges[edges > scores[0]])


class Multiaccuracy(_Patching):
    """Make predictions right on the whole of every group, by a list of patches that people can read.

    As `HKRR` without score cells: fewer things are asked for, and fewer rows are enough to see them. Probabilities are
    moved on the logit scale, by the shift that makes the mean prediction of the group its mean outcome, and stay between 0
    and 1; real predictions by the mean of ``outcome - prediction``.

    Parameters
    ----------
    prediction, features, task, depth, bins, alpha, min_rows, rounds, stopping, categorical, unlabelled, random_state
        As in `HKRR`, with the whole of a group for a cell.

    Attributes
    ----------
    patches_, model_, history_, held_out_, held_out_rows_, held_out_before_
        As in `HKRR`.

    References
    ----------
    Hébert-Johnson, Kim, Reingold & Rothblum (2018), "Multicalibration: Calibration for the (Computationally-Identifiable)
    Masses", ICML; Kim, Ghorbani & Zou (2019), "Multiaccuracy: Black-Box Post-Processing for Fairness in Classification",
    AIES, from which the logit scale.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.Multiaccuracy("prediction", ["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.patches_
    Patches: 3 in order; each reads the scores that those above it left
         group            rows  predicted  observed  logit moved
      1  region=harbour  2,194    0.06856    0.1126      +0.5846
      2  age<20          1,449     0.1762    0.1173      -0.5093
      3  age=[20, 25)    2,403     0.1483    0.1136      -0.3229
    """

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

    def _link(self, table: Table) -> str:
        return task_loss(table.schema.task).link


def _pooled(values: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Take equal values, given in order, together."""
    new = np.ones(len(values), bool)
    new[1:] = np.diff(values) > 0
    return values[new], np.bincount(np.cumsum(new) - 1, weight).astype(np.float64)
