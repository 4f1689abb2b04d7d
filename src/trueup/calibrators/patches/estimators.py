"""HKRR and Multiaccuracy: shift the scores of the worst cell (a group within a score range), one cell after another."""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.special import expit, ndtri

from trueup._validate import MAX_INTEGER, check_choice, check_integer, check_number
from trueup.calibrators import stopping
from trueup.calibrators.base import FeatureCalibrator, FitResult
from trueup.calibrators.groups import fit_binners
from trueup.calibrators.history import History, Round
from trueup.calibrators.patches.map import ALL_ROWS, Patch, PatchList, PatchMap
from trueup.calibrators.stopping import CrossValidation, Split, Stopping, TaskLoss, apply_link, task_loss
from trueup.kernels.curves import find_shift, shift_scores, tally, to_logits
from trueup.kernels.sorting import digitize
from trueup.kernels.trees import MIN_PROBABILITY

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.bins import ColumnBinner
    from trueup.data.table import Table

    PatchValidation = tuple[Round, FloatArray, list[tuple[IntArray, float]]]


DEFAULT_ALPHA = 0.01  # without a stopping rule; with one, held-out rows alone decide
MAX_BINS, MAX_LEVELS, MAX_DEPTH = 4096, 1000, 2
MAX_REJECTED = 100  # consecutive rejected proposals that end the search, per unit of patience
SPREAD_BINS, MIN_BIN_ROWS = 10, 50  # score bins in which the variance of real outcomes is estimated
FALSE_POSITIVE_RATE = 0.05  # of a false patch, over all cells together


@dataclass(eq=False, repr=False, kw_only=True)
class PatchCalibrator(FeatureCalibrator):
    """Base class of HKRR and Multiaccuracy, with their common parameters, the search and the list of patches."""

    ADDS_RESIDUALS = False  # to the prediction itself, if there is no stopping rule
    classes = None  # there is one prediction column, so there are no classes to name

    depth: int = 1
    bins: int = 10
    alpha: float | None = None
    min_rows: int = 50
    rounds: int = 500
    stopping: Stopping = CrossValidation()  # noqa: RUF009  (a frozen value)
    random_state: int = 0

    @property
    def patches_(self) -> PatchList:
        """The patches, in the order in which they are applied."""
        fitted = self._fitted().map
        assert isinstance(fitted, PatchMap)
        return fitted.patch_list

    def _score_edges(self, table: Table, weight: FloatArray) -> FloatArray:  # noqa: ARG002
        """Return the edges between score ranges; by default none, so that all scores are one range."""
        return np.empty(0)

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check()
        self._check_single_prediction(table)
        joined, splits = self._split_rows(table)
        scaled = stopping.scale_weights(joined.weight, len(table))
        weight = np.ones(len(joined)) if scaled is None else scaled
        binners = fit_binners(table, int(self.bins))
        loss = task_loss(table.schema.task)
        link = "identity" if self.ADDS_RESIDUALS and self.stopping is None else loss.link
        clip = (0.0, 1.0) if link == "identity" and table.schema.task == "binary" else None
        search = PatchSearch(
            PatchRows(joined, splits, binners, int(self.depth), weight, float(self.min_rows)), loss, link,
            self._score_edges(table, weight[: len(table)]), self._scaled_alpha(table, weight[: len(table)]),
            float(self.min_rows), int(self.rounds), None if self.stopping is None else int(self.stopping.patience),
            np.array(clip or (-np.inf, np.inf), np.float64),
        )  # fmt: skip
        for done, _ in enumerate(search.run(), start=1):
            if progress is not None:
                progress(done, int(self.rounds))
        edges = tuple(np.empty(0) if binner.edges is None else binner.edges for binner in binners)
        fitted = PatchMap(link, table.schema.levels, edges, tuple(search.patches), clip)
        reason = self._reason(search, fitted.describe())
        history = History(tuple(search.rounds), fitted.steps, reason, stopping.evaluation_rows(self.stopping), loss.measure)
        held_out = None if self.stopping is None else stopping.collect_held_out(joined, *search.held_out_scores())
        return FitResult(fitted, history, held_out=held_out)

    def _scaled_alpha(self, table: Table, weight: FloatArray) -> float:
        """Return alpha on the scale of the outcome; the parameter is a share of the standard deviation of real outcomes."""
        alpha = (DEFAULT_ALPHA if self.stopping is None else 0.0) if self.alpha is None else float(self.alpha)
        if table.schema.task == "binary":
            return alpha
        y, w = _pool_sorted(table.y, weight)
        unit = float(np.abs(y).max()) or 1.0
        mean = float(np.average(y / unit, weights=w))
        return alpha * unit * float(np.sqrt(np.average((y / unit - mean) ** 2, weights=w)))

    def _reason(self, search: PatchSearch, patches: str) -> str:
        ends = {
            "exhausted": "no other patch lowers it significantly",
            "rounds": "stopped at the maximum number of rounds",
            "patience": "stopped after many consecutive patches that did not lower it significantly",
        }
        if self.stopping is None:
            ends["exhausted"] = f"no cell of at least {self.min_rows:,} rows has an error above {search.alpha:.3g}"
            found = patches if search.patches else "no patch"
            return f"{found}; {ends[search.end]}; no rows were held out to evaluate them"
        if not search.patches:
            return "no patch lowered the held-out loss significantly: scores are left unchanged"
        evaluations = [stopping.Evaluation(step.loss, step.gain, step.error, step.threshold) for step in search.rounds]
        return f"{patches}: {stopping.describe_gain(len(search.patches), evaluations)}; {ends[search.end]}"

    def _check(self) -> None:
        check_integer("depth", self.depth, 1, MAX_DEPTH)
        check_integer("bins", self.bins, 2, MAX_BINS)
        check_integer("min_rows", self.min_rows, 1, MAX_INTEGER)
        check_integer("rounds", self.rounds, 1, MAX_INTEGER)
        check_integer("random_state", self.random_state, 0, MAX_INTEGER)
        check_number("alpha", self.alpha, 0, optional=True)
        self._check_stopping()


@dataclass(eq=False, repr=False, kw_only=True)
class HKRR(PatchCalibrator):
    """Calibrate predictions on every group at every score level, by a readable list of patches.

    If the mean of ``outcome - prediction`` of a group within a score range is not 0, the predictions there are shifted by
    it, then those of the next such cell. A patch is kept only if it lowers the loss of rows that were not used to estimate
    it. If no patch does, scores are left unchanged.

    Parameters
    ----------
    prediction : column name
        The score to correct: a probability, or a real number (``task="regression"``). For an array a position, 0 by
        default.
    features : column names, optional
        The columns that form groups; every other column by default. A group is a level of a category, a bin of a number, a
        value of an indicator column, or the missing values of a column. Groups overlap. All rows are always a group.
    exclude : column names
        Columns that the correction must not use, such as protected attributes; `explain` still reports what the correction
        does on their levels. A name that is also a feature, or is no column, is an error.
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
    Masses", ICML, arXiv:1711.08513.

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

    ADDS_RESIDUALS = True

    levels: int = 10
    spacing: str = "mass"

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


class Multiaccuracy(PatchCalibrator):
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
    Masses", ICML, arXiv:1711.08513; Kim, Ghorbani & Zou (2019), "Multiaccuracy: Black-Box Post-Processing for Fairness in
    Classification", AIES, arXiv:1805.12317, for the logit scale.

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
      3  age=20 to 24    2,403     0.1483    0.1136      -0.3229
    """


def _pool_sorted(values: FloatArray, weight: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return the distinct values, ascending, and the sum of weights of each, independent of the order of the rows."""
    order = np.lexsort((weight, values))
    values, weight = values[order], weight[order]
    new = np.ones(len(values), bool)
    new[1:] = np.diff(values) > 0
    return values[new], np.bincount(np.cumsum(new) - 1, weight).astype(np.float64)


class Group(NamedTuple):
    """Rows in the same bin of one column, or of two columns."""

    set_number: int  # of the columns, among all sets of columns
    conditions: tuple[tuple[int, int], ...]
    text: str


class PatchRows:
    """The rows of a fit, sorted by content so that no sum depends on the order of the input; equal rows are pooled."""

    def __init__(
        self,
        table: Table,
        splits: Sequence[Split],
        binners: Sequence[ColumnBinner],
        depth: int,
        weight: FloatArray,
        min_rows: float,
    ) -> None:
        codes = [binner.codes(table.columns[binner.name]) for binner in binners]
        fold, masks = np.zeros(len(table), np.int64), np.zeros((len(splits), 2, len(table)), bool)
        for number, split in enumerate(splits):
            fold[split.valid] = number + 1
            masks[number, 0, split.train], masks[number, 1, split.valid] = True, True
        keys: list[AnyArray] = [table.y, table.prediction, *codes]
        self.order = np.lexsort((fold, weight, *keys))  # the position of each row in the table
        keys = [key[self.order] for key in keys]
        self.y, self.p, *codes = keys  # of all rows, held-out rows included
        self.weight = weight = weight[self.order]
        self.held_out = masks[:, 1, self.order].any(axis=0)
        self.cluster = stopping.cluster_numbers(table, self.order[self.held_out])  # of the held-out rows
        self.splits = masks[:, :, self.order]  # of each split, the training rows and the held-out rows
        searched = self.splits[:, 0].any(axis=0)
        # Groups of every set of columns, the smallest sets first; groups of too little weight get no number.
        sets = [columns for size in range(1, depth + 1) for columns in itertools.combinations(range(len(binners)), size)]
        self.member = np.zeros((len(sets) + 1, len(weight)), np.int32)  # per set, the group of each row, or -1
        self.groups = [Group(0, (), ALL_ROWS)]
        for place, columns in enumerate(sets, start=1):
            sizes = [len(binners[column].labels) for column in columns]
            combination = np.ravel_multi_index([codes[column] for column in columns], sizes)
            distinct, inverse = np.unique(combination[searched], return_inverse=True)
            enough = np.bincount(inverse.ravel(), weight[searched]) >= min_rows
            numbers = np.where(enough, len(self.groups) + np.cumsum(enough) - 1, -1)
            position = np.searchsorted(distinct, combination).clip(max=len(distinct) - 1)
            self.member[place] = np.where(distinct[position] == combination, numbers[position], -1)
            for value in distinct[enough].tolist():
                conditions = tuple(zip(columns, map(int, np.unravel_index(value, sizes)), strict=True))
                text = " & ".join(binners[column].labels[code] for column, code in conditions)
                self.groups.append(Group(place, conditions, text))
        rows = np.flatnonzero(searched)
        new = np.arange(len(rows)) == 0
        for key in keys:
            new[1:] |= np.diff(key[rows]) != 0
        self.first = rows[new]  # one row for each distinct combination of values among the rows that are searched
        pool, w = np.cumsum(new) - 1, weight[rows]
        # The sum of weights of each such combination, the sum of squared weights, and the number of rows.
        self.total, self.square, self.count = (np.bincount(pool, x).astype(np.float64) for x in (w, w**2, np.ones(len(w))))


def _halve(first: int, last: int) -> Iterator[tuple[int, int]]:
    """Yield a range of score levels, its halves, theirs, and so on: (0, 3), (0, 1), (1, 3), (1, 2), (2, 3) for 0 and 3."""
    yield first, last
    if last - first > 1:
        middle = (first + last) // 2
        yield from _halve(first, middle)
        yield from _halve(middle, last)


@dataclass(eq=False)
class PatchSearch:
    """Algorithm 1 of Hébert-Johnson et al. (2018), cell of largest gain first, with optional validation of each patch."""

    rows: PatchRows
    loss: TaskLoss
    link: str  # "identity" or "logit": the scale on which shifts are added
    score_edges: FloatArray  # between the score ranges; empty if a cell is a group at all scores
    alpha: float  # the tolerated mean residual, on the scale of the outcome
    min_rows: float
    max_patches: int
    patience: int | None  # None if held-out rows need not confirm a patch; if they must, shifts are shrunk by their noise
    bounds: FloatArray  # the range of scores on the scale of the link

    def __post_init__(self) -> None:
        rows, loss = self.rows, self.loss
        self.validated = self.patience is not None
        self.y = rows.y[rows.first]
        self.member = np.ascontiguousarray(rows.member[:, rows.first])
        base, self.edges = (to_logits(values) if self.link == "logit" else values for values in (rows.p, self.score_edges))
        self.base = base
        self.value = base[rows.first]
        self.binary_outcomes = loss.name == "log" and bool(((rows.y == 0) | (rows.y == 1)).all())
        # Residuals are squared: those of real outcomes in a unit that keeps squares finite. A power of two is exact.
        largest = float(np.abs(rows.y - rows.p).max())
        self.unit = 2.0 ** np.floor(np.log2(largest)) if loss.name == "squared" and largest > 0 else 1.0
        self.spread = np.zeros(len(rows.p))
        if loss.name == "squared":  # the mean squared residual of real outcomes among rows of similar prediction
            bins = min(SPREAD_BINS, max(len(rows.p) // MIN_BIN_ROWS, 1))
            number = np.searchsorted(np.sort(rows.p), rows.p, side="left") * bins // len(rows.p)
            squares = np.bincount(number, rows.weight * ((rows.y - rows.p) / self.unit) ** 2)
            mass = np.maximum(np.bincount(number, rows.weight), np.finfo(float).tiny)
            self.spread = np.asarray((squares / mass)[number])
        self.levels = len(self.score_edges) + 1
        levels = range(self.levels)
        self.ranges = list(_halve(0, self.levels)) if self.validated else [(level, level + 1) for level in levels]
        self.sums = np.zeros((len(rows.groups), self.levels, 4))
        self.closed = np.zeros((len(rows.groups), len(self.ranges)), bool)
        self.states = [base.copy() for _ in rows.splits] if self.validated else []
        self.held_out, self.cluster = rows.held_out, rows.cluster
        self.losses = self._row_losses(rows.y, base) if self.validated else self._row_losses(self.y, self.value)
        self._tally(np.arange(self.levels))
        tests = max(int((self.cells[0] >= self.min_rows).sum()), 1)
        # In standard errors, the gain of a patch is about half of the bias it removes.
        self.threshold = max(stopping.FIRST_ROUND_ERRORS, float(-ndtri(FALSE_POSITIVE_RATE / (2 * tests))) / 2)
        self.patches: list[Patch] = []
        self.rounds: list[Round] = [Round(0, 0, 1.0, self._mean_loss(self.losses), 0.0, 0.0, kept=True)]
        self.end = "exhausted"

    def run(self) -> Iterator[Patch]:
        """Yield one patch after another; then ``end`` is why the search stopped: "exhausted", "rounds" or "patience"."""
        failed, most = 0, MAX_REJECTED * (self.patience or 1)
        rejected: Round | None = None
        while (cell := self._largest_error()) is not None:
            if len(self.patches) == self.max_patches or failed == most:
                self.end = "rounds" if failed < most else "patience"
                break
            patch, inside = self._propose(cell)
            after = shift_scores(self.value[inside], patch.shift, self.bounds)
            validation = self._validate(cell) if self.validated else self._evaluate(inside, after)
            if (after == self.value[inside]).all() or not validation[0].kept:
                self.closed[cell] = True
                if self.validated:
                    failed, rejected = failed + 1, replace(validation[0], kept=False)
                continue
            failed, rejected = 0, None
            self._apply(patch, inside, after, validation)
            yield patch
        if rejected is not None:
            self.rounds.append(rejected)

    def held_out_scores(self) -> tuple[IntArray, FloatArray]:
        """Return the held-out rows, by position in the table, and their scores by patches fitted without them."""
        scores = self.rows.p.copy()
        for state, (_, valid) in zip(self.states, self.rows.splits, strict=True):
            changed = np.flatnonzero(valid & (state != self.base))  # other rows keep their score to the last bit
            scores[changed] = self._to_prediction(state[changed])
        return self.rows.order[self.held_out], scores[self.held_out]

    def _tally(self, changed: IntArray) -> None:
        """Sum weights, residuals and variances per cell (group and score level) again, for the levels ``changed``."""
        self.level = np.empty(len(self.value), np.int32)
        digitize(self.value, self.edges, self.level)
        again = np.zeros(self.levels, bool)
        again[changed] = True
        rows = np.flatnonzero(again[self.level])
        p, total, square = self._to_prediction(self.value[rows]), self.rows.total[rows], self.rows.square[rows]
        residual = (self.y[rows] - p) / self.unit
        null = square * self._variance(p, self.rows.first[rows])
        self.sums[:, again] = 0.0
        tally(
            self.member, rows, self.level[rows], self.levels, total, total * residual, square * residual**2, null,
            self.sums.reshape(-1, 4),
        )  # fmt: skip
        self.cells = np.moveaxis(self._sum_ranges(self.sums), 2, 0)

    def _variance(self, p: FloatArray, rows: IntArray) -> FloatArray:
        """Return the outcome variance that predictions imply: p (1 - p) for outcomes 0 and 1, else ``spread[rows]``."""
        return p * (1 - p) if self.binary_outcomes else self.spread[rows]

    def _sum_ranges(self, sums: AnyArray) -> FloatArray:
        """Sum over the levels of every score range: from (groups, levels, k) to (groups, ranges, k)."""
        if len(self.ranges) == self.levels:
            return sums
        return np.stack([sums[:, first:last].sum(axis=1) for first, last in self.ranges], axis=1)

    def _largest_error(self) -> tuple[int, int] | None:
        """Return the cell (group, range), not yet rejected, of largest gain with an error above ``alpha``; None if none."""
        weight, residual, square, null = self.cells
        total = np.maximum(weight, np.finfo(float).tiny)
        large = np.abs(residual) > self.alpha / self.unit * total
        off = (weight >= self.min_rows) & large & ~self.closed
        if self.validated:  # held-out rows could not confirm an error within noise
            off &= residual**2 > self.threshold**2 * np.maximum(square, null)
        gain = np.where(off, residual**2 / total, 0.0)
        best = int(np.argmax(gain))
        return divmod(best, len(self.ranges)) if gain.flat[best] > 0 else None

    def _propose(self, cell: tuple[int, int]) -> tuple[Patch, IntArray]:
        number, (first, last) = cell[0], self.ranges[cell[1]]
        group = self.rows.groups[number]
        inside = np.flatnonzero((self.member[group.set_number] == number) & (self.level >= first) & (self.level < last))
        value, y, w = self.value[inside], self.y[inside], self.rows.total[inside]
        shift = self._shift(value, self.rows.first[inside], w, self.rows.square[inside])
        ends = [-np.inf, *self.score_edges.tolist(), np.inf]
        before, observed = (float((w * values).sum() / w.sum()) for values in (self._to_prediction(value), y))
        rows = int(self.rows.count[inside].sum())
        return Patch(group.text, group.conditions, ends[first], ends[last], shift, rows, before, observed), inside

    def _shift(self, value: FloatArray, rows: IntArray, w: FloatArray, square: FloatArray) -> float:
        """Return the shift that removes a cell's mean residual of z standard errors; ``1 - 1 / z^2`` of it if validated."""
        p, total = self._to_prediction(value), w.sum()
        residual = (self.rows.y[rows] - p) / self.unit
        gap = float((w * residual).sum() / total)
        if self.validated:  # z standard errors are shrunk by 1 - 1 / z^2, the share of z^2 that is not noise
            noise = max(float((square * residual**2).sum()), float((square * self._variance(p, rows)).sum()))
            signal = (gap * float(total)) ** 2
            gap *= 1 - noise / signal if signal > noise else 0.0
        if self.link == "identity":
            return gap * self.unit
        target = float((w * p).sum() / total) + gap
        return float(find_shift(value, w, min(max(target, MIN_PROBABILITY), 1 - MIN_PROBABILITY)))

    def _apply(self, patch: Patch, inside: IntArray, after: FloatArray, validation: PatchValidation) -> None:
        changed_rows = inside[after != self.value[inside]]
        level_before = self.level
        self.value[inside] = after
        level_after = np.empty(len(inside), np.int32)
        digitize(after, self.edges, level_after)
        self._tally(np.union1d(level_before[inside], level_after))
        changed = np.zeros(self.sums.shape[:2], bool)
        for level in (level_before, self.level):  # a rejected cell whose rows have changed may be proposed again
            known = self.member[:, changed_rows]
            place = np.broadcast_to(level[changed_rows], known.shape)[known >= 0]
            changed[known[known >= 0], place] = True
        self.closed[self._sum_ranges(changed[:, :, None])[:, :, 0] > 0] = False
        self.patches.append(patch)
        round_, self.losses, shifts = validation
        self.rounds.append(round_)
        for state, (rows, shift) in zip(self.states, shifts, strict=True):
            state[rows] = shift_scores(state[rows], shift, self.bounds)

    def _evaluate(self, inside: IntArray, after: FloatArray) -> PatchValidation:
        """Evaluate a patch that sets the rows ``inside`` to the scores ``after``, on all rows; return as `_validate`."""
        losses = self.losses.copy()
        losses[inside] = self._row_losses(self.y[inside], after)
        loss = self._mean_loss(losses)
        return Round(len(self.rounds), 0, 1.0, loss, self.rounds[-1].loss - loss, 0.0, kept=True), losses, []

    def _validate(self, cell: tuple[int, int]) -> PatchValidation:
        """Evaluate a cell's shift per split on held-out rows; return the Round, losses, and (rows, shift) per split."""
        number, (first, last), w = cell[0], self.ranges[cell[1]], self.rows.weight
        low, high = ([-np.inf, *self.edges, np.inf][end] for end in (first, last))
        group = np.flatnonzero(self.rows.member[self.rows.groups[number].set_number] == number)
        losses, shifts, null = self.losses.copy(), [], 0.0
        for state, (train, valid) in zip(self.states, self.rows.splits, strict=True):
            inside = group[(state[group] >= low) & (state[group] < high)]
            own, held = inside[train[inside]], inside[valid[inside]]
            shift = self._shift(state[own], own, w[own], w[own] ** 2) if len(own) else 0.0
            shifts.append((inside, shift))
            old = state[held]
            new = shift_scores(old, shift, self.bounds)
            losses[held] = self._row_losses(self.rows.y[held], new)
            # The gain of a row is linear in its outcome, with this slope.
            slope = self._to_logit(new) - self._to_logit(old) if self.loss.name == "log" else 2 * (new - old)
            null += float((w[held] ** 2 * slope**2 * self._variance(self._to_prediction(old), held)).sum())
        weight = w[self.held_out]
        gain, error, effective_rows = stopping.paired_gain(
            (self.losses - losses)[self.held_out], weight, cluster=self.cluster
        )
        error = max(error, float(self.unit * np.sqrt(null) / weight.sum()))
        kept = gain > stopping.required_gain(self.threshold, error, effective_rows, self.rounds[0].loss)
        error = error if np.isfinite(error) else 0.0
        threshold = stopping.required_errors(self.threshold, effective_rows) if effective_rows > 1 else None
        return Round(len(self.rounds), 0, 1.0, self._mean_loss(losses), gain, error, kept, threshold), losses, shifts

    def _mean_loss(self, losses: FloatArray) -> float:
        if self.validated:
            return float(np.average(losses[self.held_out], weights=self.rows.weight[self.held_out]))
        return float(np.average(losses, weights=self.rows.total))

    def _to_prediction(self, value: FloatArray) -> FloatArray:
        return np.asarray(expit(value)) if self.link == "logit" else value

    def _to_logit(self, value: FloatArray) -> FloatArray:
        return value if self.link == "logit" else apply_link(value, "logit")[:, 0]

    def _row_losses(self, y: FloatArray, value: FloatArray) -> FloatArray:
        F = self._to_logit(value) if self.loss.name == "log" else value
        return self.loss.per_row(y, F[:, None])
