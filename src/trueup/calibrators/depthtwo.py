"""DepthTwo: multicalibration by one ensemble of depth-2 trees, without levels."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.checking import check_numbers, check_whole
from trueup.calibrators.losses import task_loss
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.mcgrad.grower import CascadeGrower, Limits
from trueup.calibrators.splits import collect_held_out, scale_weights
from trueup.calibrators.stopping import CrossValidation, History, Round, choose_rounds, evaluation_rows, paired_gain
from trueup.data.frame import frame_like
from trueup.errors import ArgumentError
from trueup.kernels.cascade import SMALLEST
from trueup.kernels.threads import Workers
from trueup.learners.lightgbm import GrowthParameters

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.stopping import Stopping
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

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        self._check(table)
        whole, splits = self._split_rows(table)
        fixed = self.stopping is None
        growth = GrowthParameters(
            "squared", 1, 2, 4, FIXED_RATE, self.feature_fraction, self.l2, self.min_rows,
            bins=self.bins, seed=int(self.random_state),
        )  # fmt: skip
        limits = Limits(self.trees or (FIXED_TREES if fixed else MOST_TREES), self.patience)
        start = CascadeGrower(
            whole, task_loss("regression"), splits, growth, limits, scale_weights(whole.weight, len(table)),
            Workers(self.threads), progress, rescale=False,
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
        return FitResult(cascade, history, held_out=None if fixed else collect_held_out(whole, rows, scores))

    def _sweep(self, start: CascadeGrower) -> _Swept:
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
                       evaluation_rows(self.stopping), "squared error")  # fmt: skip

    def _saturation(self, first: _Swept, start: CascadeGrower, *, kept: bool) -> Saturation:
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

    def __init__(self, start: CascadeGrower, rate: float) -> None:
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


LEVELS = (10, 20, 50, 100)
MOST = 1e-2  # a gain above this is too much, however uncertain it is
SURE = 1e-3  # and one that lies above this beyond doubt is too
ERRORS = 2.0  # how many standard errors are beyond doubt


@dataclass(frozen=True)
class Saturation:
    """What a second pass would still gain on rows that neither pass has seen, and what follows for groups.

    Gains are of the mean squared error; of a real outcome, as a share of its variance. A fitted pass is not the best one
    there is: what it gains is a lower bound on what could be gained.

    Attributes
    ----------
    eps, error : float
        What the same procedure once more, on top of the corrected scores, gains (0 where it loses), and the standard error
        of such a gain: the largest of the learning rates that were tried.
    deeper, deeper_error : float
        The same of trees of depth 4, which see features act together where depth 2 does not (an exclusive or of three).
    saturated : bool
        False where one of the gains is above 0.01, or above 0.001 by two standard errors.
    rows : int
        How many rows judge.
    unit : float
        1 for probabilities; the standard deviation of a real outcome.
    span : float
        How far scores can lie apart, in this unit: 1 for probabilities.

    Notes
    -----
    Let g be the indicator of a group that the features tell apart, f the scores and f' = f rounded to m levels. The error
    ``K1(f', g) = sum_v P(f'=v) |E[g (y - v) | f'=v]|`` is at most ``sum_v P(f'=v) |E[g (y - f) | f'=v]|``, plus what
    rounding moves a score, which is at most half a step: span / (2 m). Adding ``E[y - f | f'=v, g=1]`` to the scores of the
    rows with g = 1 and f' = v is a sum of depth-2 trees (a threshold of f, then the group); it lowers the squared error by
    ``sum_v P(f'=v, g=1) E[y - f | f'=v, g=1]^2``, no less than the square of the first sum (Cauchy-Schwarz), and no more
    than the best second pass does. Hence ``K1 <= sqrt(eps) + span / (2 m)`` for all m, eps being that of the *best* pass.

    References
    ----------
    "Discretization-free Multicalibration through Loss Minimization over Tree Ensembles", arXiv 2505.17435, Lemma 4.4,
    Assumption 4.5, Theorem 4.6.
    """

    eps: float
    error: float
    deeper: float
    deeper_error: float
    saturated: bool
    rows: int
    unit: float = 1.0
    span: float = 1.0

    def rounding(self, m: int) -> float:
        """Give the most that rounding to m steps moves a score, in the unit.

        Examples
        --------
        >>> Saturation(1e-4, 0.0, 0.0, 0.0, True, 1000).rounding(10)
        0.05
        """
        if isinstance(m, bool) or not isinstance(m, (int, np.integer)) or m < 1:
            raise ArgumentError(f"m must be a whole number, 1 or more; got {m!r}", hint="10 to 100 levels are usual")
        return self.span / (2 * int(m))

    def bound(self, m: int, errors: float = ERRORS) -> float:
        """Bound the error of any group at m levels: ``sqrt(eps + errors * error) + rounding(m)``, in the unit.

        Parameters
        ----------
        m : int
            The steps that scores are rounded to later; nothing need be fitted again.
        errors : float
            How many standard errors are added to the measured gain; 0 takes it as it is.

        Examples
        --------
        >>> Saturation(1e-4, 0.0, 0.0, 0.0, True, 1000).bound(100)
        0.015
        """
        return float(np.sqrt(self.eps + errors * self.error)) + self.rounding(m)

    @property
    def sentence(self) -> str:
        """Say it in one sentence."""
        of = "" if self.unit == 1.0 else " of the outcome's variance"
        second = f"{self.eps:.2g} (s.e. {self.error:.1g})"
        deeper = f"trees of depth 4 by {self.deeper:.2g} (s.e. {self.deeper_error:.1g})"
        if self.saturated:
            unit = "" if self.unit == 1.0 else " standard deviations of the outcome"
            few, many = self.bound(LEVELS[0]), self.bound(LEVELS[-1])
            return (
                f"saturated: on held-out rows a second pass lowers the squared error by {second}{of}, {deeper}; as far "
                f"as such passes see, the error of any group is at most {few:.2g}{unit} at 10 levels, {many:.2g} at 100"
            )
        if _too_much(self.eps, self.error):
            found = f"on held-out rows a second pass still lowers the squared error by {second}{of}, {deeper}"
        else:
            found = (
                f"on held-out rows a second pass lowers the squared error by {second}{of}, but {deeper}: features act "
                "together in a way that depth 2 does not see"
            )
        return f"not saturated: {found}; go deeper: tu.MCGrad(depth=4, feature_fraction=1.0)"

    def to_frame(self, like: Any = None) -> Any:
        """Give the bound at 10, 20, 50 and 100 levels, in the library of ``like``; a dict of arrays without it."""
        found = {"rounding": [self.rounding(m) for m in LEVELS], "bound": [self.bound(m) for m in LEVELS]}
        return frame_like({"levels": np.array(LEVELS), **{name: np.array(each) for name, each in found.items()}}, like)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data."""
        return {**asdict(self), "sentence": self.sentence, "bounds": {str(m): self.bound(m) for m in LEVELS}}

    def __repr__(self) -> str:
        return f"Saturation: {self.sentence}"


def measure(
    y: FloatArray,
    before: FloatArray,
    second: Sequence[FloatArray],
    deeper: Sequence[FloatArray],
    weight: FloatArray | None,
    *,
    real: bool,
) -> Saturation:
    """Measure the gains of a second pass and of a deeper one.

    Parameters
    ----------
    y, before : ndarray
        Outcomes and corrected scores of the rows that judge.
    second, deeper : sequence of ndarray
        Their scores after another pass: the best, then others that were tried. Its gain is that of the best. A best pass
        that hardly moves a score has next to no error either; what the rows cannot tell shows in the bolder ones, so that
        the error is the largest of them.
    weight : ndarray or None
    real : bool
        Whether the outcome is a real number rather than a probability.
    """
    unit = span = 1.0
    if real:
        spread = float(np.sqrt(np.average((y - np.average(y, weights=weight)) ** 2, weights=weight)))
        unit = spread if spread > 0 else 1.0
        span = float(np.ptp(before)) / unit
    losses = ((y - before) / unit) ** 2
    found = []
    for tried in (second, deeper):
        gains = [paired_gain(losses - ((y - f) / unit) ** 2, weight) for f in tried]
        errors = [error if np.isfinite(error) else 1.0 for _, error, _ in gains]
        found.append((max(0.0, gains[0][0]), max(errors)))
    saturated = not any(_too_much(*one) for one in found)
    return Saturation(*found[0], *found[1], saturated, len(y), unit, span)


def _too_much(gain: float, error: float) -> bool:
    return gain > MOST or gain - ERRORS * error > SURE
