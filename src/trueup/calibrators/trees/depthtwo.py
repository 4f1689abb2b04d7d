"""DepthTwo: multicalibration by one ensemble of depth-2 trees, without levels."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.base import Calibrator, Fitted
from trueup.calibrators.checking import check_numbers, check_whole
from trueup.calibrators.losses import loss_of
from trueup.calibrators.maps.cascade import Cascade
from trueup.calibrators.rounds import CrossValidation, History, Round, choose_rounds, describe, paired_gain
from trueup.calibrators.splits import hold_out, weigh
from trueup.calibrators.trees.growing import Cascades, Limits
from trueup.calibrators.trees.saturation import Saturation, measure
from trueup.data.frame import frame_like
from trueup.engines.trees import Growth
from trueup.errors import ArgumentError
from trueup.kernels.cascade import SMALLEST
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.rounds import Stopping
    from trueup.data.table import Table


RATES = (1.0, 0.3, 0.1, 0.03, 0.01)  # the sweep begins with the second and the third, and goes on the better way
FIXED_RATE = 0.1
MOST_TREES, FIXED_TREES = 2000, 100
DEEPER = 4
ENDS = np.geomspace(1e-6, 0.05, 48)  # how near to 0 or 1 a corrected probability may come
EXPECTED = 1.0  # events that rows below an end would have on average, were it the truth: fewer say too little of it
# A lower rate takes more trees: it must be better than the next by this many standard errors of the difference, and by this
# share of all that is gained.
TIE, SHARE = 0.5, 0.05


@dataclass(frozen=True)
class Tried:
    """One learning rate of a sweep: its best number of trees, and the held-out squared error with them."""

    learning_rate: float
    trees: int
    loss: float


@dataclass(frozen=True)
class Sweep:
    """The learning rates that were tried, the highest first.

    Attributes
    ----------
    tried : tuple of Tried
    learning_rate : float
        The one that was chosen.
    """

    tried: tuple[Tried, ...]
    learning_rate: float

    def to_frame(self, like: Any = None) -> Any:
        """Give one row a learning rate, in the library of ``like``; a dict of arrays without it."""
        names = ("learning_rate", "trees", "loss")
        return frame_like({name: np.array([getattr(one, name) for one in self.tried]) for name in names}, like)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return asdict(self)

    def __repr__(self) -> str:
        lines = [f"Sweep: learning rate {self.learning_rate:g} was chosen", "   rate  trees  squared error"]
        return "\n".join([*lines, *(f"  {one.learning_rate:>5g}  {one.trees:>5}  {one.loss:.6f}" for one in self.tried)])


class DepthTwo(Calibrator):
    """Make predictions right on every group by one ensemble of depth-2 trees, committed to no set of levels.

    Trees over the score and the features are added to the score itself, and lower its squared error. They are kept only
    where they lower the error of rows they were not trained on; no tree at all is a legal answer, and leaves scores
    unchanged. A second pass then says how much there is still to be had (`saturation_`), which bounds the error of every
    group at whatever levels scores are rounded to later.

    Parameters
    ----------
    prediction : column name
        The score to be corrected: a probability, or a real number (``task="regression"``). For an array a position, 0 by
        default.
    features : column names, optional
        What groups are made of: flags of groups that may overlap, or any other columns; every other column by default.
    task : {"auto", "binary", "regression"}
        "auto" is binary. Several classes are for `MCGrad`.
    learning_rate : float, optional
        By default 0.3 and 0.1 are tried, and then 0.03 and 0.01, or 1, while it helps; 0.1 where ``stopping`` is None.
    trees : int, optional
        The most trees, 2,000 by default; exactly so many where ``stopping`` is None, and then 100 by default.
    patience : int
        How many trees without a gain end the growth.
    feature_fraction : float
        The share of the features that each tree may use.
    min_rows : float
        The least number of rows in a leaf, or their weight.
    l2 : float
        Shrinks leaves that hold few rows.
    bins : int
        The most bins a numeric feature is cut into.
    stopping : CrossValidation, Holdout, Validation or None
        Which rows judge. None trains on all rows for a fixed number of trees, and nothing guards or checks the result.
    saturation : bool
        Whether to check what a second pass would gain; takes about as long as the fit again.
    categorical : column names
        Numeric columns to be read as categories.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    random_state : int
        Fixes everything, whatever the number of threads.
    threads : int, optional
        As many as there are cores by default.

    Attributes
    ----------
    model_ : Model
        What is saved and shipped.
    history_ : History
        The held-out squared error before and after, what was chosen, and why.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`.
    sweep_ : Sweep
        The learning rates that were tried.
    saturation_ : Saturation or None
        What is left to be had; None where nothing was held out, or ``saturation=False``.

    Notes
    -----
    Sums of trees may leave [0, 1]; probabilities are cut off there, and a probability of 0 or 1 that is wrong has a large
    log loss. Trees that raise the held-out log loss are not kept, whatever they do for the squared error. `MCGrad`, whose
    trees act on logits, is the better choice for rare events.

    References
    ----------
    "Discretization-free Multicalibration through Loss Minimization over Tree Ensembles", arXiv 2505.17435.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.DepthTwo(prediction="prediction", features=["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.history_.loss_after < fix.history_.loss_before
    True
    >>> fix.saturation_.saturated
    True
    """

    classes = None

    def __init__(
        self,
        prediction: Any = None,
        features: Any = None,
        *,
        task: str = "auto",
        learning_rate: float | None = None,
        trees: int | None = None,
        patience: int = 50,
        feature_fraction: float = 0.7,
        min_rows: float = 20.0,
        l2: float = 20.0,
        bins: int = 63,
        stopping: Stopping = CrossValidation(),  # noqa: B008  (a frozen value)
        saturation: bool = True,
        categorical: Any = (),
        unlabelled: str = "error",
        random_state: int = 0,
        threads: int | None = None,
    ) -> None:
        self.prediction = prediction
        self.features = features
        self.task = task
        self.learning_rate = learning_rate
        self.trees = trees
        self.patience = patience
        self.feature_fraction = feature_fraction
        self.min_rows = min_rows
        self.l2 = l2
        self.bins = bins
        self.stopping = stopping
        self.saturation = saturation
        self.categorical = categorical
        self.unlabelled = unlabelled
        self.random_state = random_state
        self.threads = threads

    def _fit_map(self, table: Table, progress: Any) -> Fitted:
        self._check(table)
        whole, splits = self._split(table)
        fixed = self.stopping is None
        growth = Growth(
            "squared", 1, 2, 4, FIXED_RATE, self.feature_fraction, self.l2, self.min_rows,
            bins=self.bins, seed=int(self.random_state),
        )  # fmt: skip
        limits = Limits(self.trees or (FIXED_TREES if fixed else MOST_TREES), self.patience)
        start = Cascades(
            whole, loss_of("regression"), splits, growth, limits, weigh(whole.weight, len(table)), Workers(self.threads),
            progress, rescale=False,
        )  # fmt: skip
        first = self._sweep(start)
        if not fixed and whole.schema.task == "binary":
            first.best.clip(*_ends(first.best.raw, start.y[start.judged], _of(start.weight, start.judged)))
        history = self._judge(first, whole)
        kept = tuple(first.best.grown.rounds[: history.chosen])
        saturation = None
        if self.saturation and not fixed:
            saturation = self._saturation(first, start, kept=bool(kept))
        if kept and isinstance(self.stopping, CrossValidation) and self.stopping.refit:
            kept = first.best.grown.refit(kept)
        cascade = Cascade("identity", start.levels, 1, kept, first.best.bounds)
        self.sweep_, self.saturation_ = first.result, saturation
        if saturation is not None:
            history = replace(history, reason=f"{history.reason}; {saturation.sentence}")
        rows = start.judged
        scores = first.best.scores if history.chosen else whole.prediction[rows]
        return Fitted(cascade, history, held=None if fixed else hold_out(whole, rows, scores))

    def _sweep(self, start: Cascades) -> _Swept:
        """Try learning rates: two in the middle, then one after another on the better side of them."""
        tried: dict[float, _Fit] = {}

        def at(place: int) -> _Fit:
            rate = RATES[place]
            if rate not in tried:
                tried[rate] = _Fit(start, rate)
            return tried[rate]

        if self.learning_rate is not None or self.stopping is None:
            rate = self.learning_rate or FIXED_RATE
            tried[rate] = _Fit(start, rate)
            return _Swept(tried, rate)
        best = 1
        while best + 1 < len(RATES) and at(best + 1).is_worth_it(at(best)):
            best += 1
        # A lower rate that is a little better, if not enough, says that a higher one is worse.
        if best == 1 and at(1).loss <= at(2).loss and at(0).loss < at(1).loss:
            best = 0
        return _Swept(tried, RATES[best])

    def _judge(self, first: _Swept, table: Table) -> History:
        found, fixed = first.best, self.stopping is None
        rows, trees = found.grown.judged, found.grown.rounds[0].trees
        y, p, weight = found.y, table.prediction[rows], found.weight
        chosen, judged = choose_rounds(iter([(y - p) ** 2, found.each]), weight)
        harmful = False
        if fixed:
            chosen = 1
        elif chosen and table.schema.task == "binary":
            harmful = bool(np.average(_log_loss(y, found.scores) - _log_loss(y, p), weights=weight) > 0)
            chosen = 0 if harmful else chosen
        rounds = (Round(0, 0, 1.0, judged[0][0], 0.0, 0.0, kept=True), Round(1, trees, 1.0, *judged[1], kept=chosen > 0))
        return History(rounds, chosen, _reason(rounds, first.rate, fixed=fixed, harmful=harmful),
                       describe(self.stopping), "squared error")  # fmt: skip

    def _saturation(self, first: _Swept, start: Cascades, *, kept: bool) -> Saturation:
        """Run everything once more on top of what was found, by the same splits.

        Each model of a cross-validation goes on from its own scores: none of its labels, and none of the labels that its
        scores were learned from, is among the rows that judge it.
        """
        table, rows, before = start.table, start.judged, start.held()[:, 0]
        if kept:
            start = replace(start, starts=[first.best.within(F) for F in first.best.grown.F])
            before = first.best.scores
        second = self._sweep(start) if kept else first
        wider = replace(start.growth, depth=DEEPER, leaves=2**DEEPER, feature_fraction=1.0)
        deeper = self._sweep(replace(start, growth=wider))
        real = table.schema.task == "regression"
        return measure(start.y[rows], before, second.scores, deeper.scores, _of(table.weight, rows), real=real)

    def _check(self, table: Table) -> None:
        if table.schema.task == "multiclass":
            raise ArgumentError(
                "DepthTwo corrects one prediction column, not several classes", hint="use tu.MCGrad, which takes them"
            )
        many = 2**31 - 1
        check_whole(self, {"trees": (1, many), "threads": (1, many)}, optional=True)
        check_whole(self, {"patience": (1, many), "bins": (2, 4096), "random_state": (0, many)})
        check_numbers(self, {"learning_rate": (0, 1)}, above=True, optional=True)
        check_numbers(self, {"feature_fraction": (0, 1)}, above=True)
        check_numbers(self, {"min_rows": (0, np.inf), "l2": (0, np.inf)})
        if not isinstance(self.saturation, bool):
            raise ArgumentError(f"saturation must be True or False; got {self.saturation!r}")
        self._check_stopping()


class _Fit:
    """Trees of one learning rate, and what they do for the rows that judge."""

    def __init__(self, start: Cascades, rate: float) -> None:
        self.grown = replace(start, growth=replace(start.growth, learning_rate=rate))
        self.grown.grow()
        self.raw = self.grown.held()[:, 0]
        self.y, self.weight = start.y[start.judged], _of(start.table.weight, start.judged)
        self.base = float(np.average((self.y - start.held()[:, 0]) ** 2, weights=self.weight))
        self.bounds: tuple[float, float] | None = None
        self._settle()
        if start.table.schema.task != "regression":
            self.clip(0.0, 1.0)

    def clip(self, low: float, high: float) -> None:
        """Keep scores within bounds from now on."""
        self.bounds = (low, high)
        self._settle()

    def _settle(self) -> None:
        self.scores = self.within(self.raw)
        self.each = (self.y - self.scores) ** 2
        self.loss = float(np.average(self.each, weights=self.weight))

    def within(self, scores: FloatArray) -> FloatArray:
        """Give scores within the bounds; always a new array."""
        return scores.copy() if self.bounds is None else np.clip(scores, *self.bounds)

    def is_worth_it(self, other: _Fit) -> bool:
        """Say whether this lower rate, and the trees it takes, is better than the next beyond a tie."""
        gain, error, _ = paired_gain(other.each - self.each, self.weight)
        whole = self.base - self.loss
        return whole > 0 and gain > max(TIE * error, SHARE * whole)


@dataclass(frozen=True, eq=False)
class _Swept:
    """What a sweep found, by learning rate."""

    tried: dict[float, _Fit]
    rate: float

    @property
    def best(self) -> _Fit:
        return self.tried[self.rate]

    @property
    def scores(self) -> list[FloatArray]:
        """Give the scores of the rows that judge: the best, then those of the other rates."""
        return [self.best.scores, *(fit.scores for fit in self.tried.values() if fit is not self.best)]

    @property
    def result(self) -> Sweep:
        found = [Tried(rate, fit.grown.rounds[0].trees, fit.loss) for rate, fit in sorted(self.tried.items(), reverse=True)]
        return Sweep(tuple(found), self.rate)


def _ends(scores: FloatArray, y: FloatArray, weight: FloatArray | None) -> tuple[float, float]:
    """Find the lowest and the highest probability that the rows which judge let us claim.

    Sums of trees go below 0 where the truth is merely small. The lowest is the one of least log loss over those rows and
    one more of outcome 1 at the very end, as if it had been seen: rows without a single event are no proof of a 0. Where
    few rows lie so low, nothing is claimed of them but that one in all rows might be an event.
    """
    w = np.ones(len(y)) if weight is None else weight
    found = []
    for p, event in ((scores, y), (1 - scores, 1 - y)):
        ends = [end for end in ENDS if end * w.sum() <= 1 or end * w[p < end].sum() >= EXPECTED] or [ENDS[0]]
        near = p < ends[-1]
        each, hit, mass = p[near], event[near], w[near]
        cost = [-np.log(end) + float((mass * _log_loss(hit, np.maximum(each, end))).sum()) for end in ends]
        found.append(float(ends[int(np.argmin(cost))]))
    return found[0], 1 - found[1]


def _of(weight: FloatArray | None, rows: IntArray) -> FloatArray | None:
    return None if weight is None else weight[rows]


def _log_loss(y: FloatArray, p: FloatArray) -> FloatArray:
    inside = np.clip(p, SMALLEST, 1 - SMALLEST)
    return np.asarray(-(y * np.log(inside) + (1 - y) * np.log1p(-inside)))


def _reason(rounds: Sequence[Round], rate: float, *, fixed: bool, harmful: bool) -> str:
    trees = f"{rounds[1].trees} tree{'s' if rounds[1].trees > 1 else ''} at learning rate {rate:g}"
    if fixed:
        return f"{trees} as told; nothing was held out to judge by"
    if harmful:
        return f"{trees} lowered the held-out squared error but raised the log loss: scores are left unchanged"
    if not rounds[1].kept:
        return "no trees lowered the held-out squared error beyond noise: scores are left unchanged"
    return f"{trees}: held-out squared error {rounds[0].loss:.6g} -> {rounds[1].loss:.6g}"
