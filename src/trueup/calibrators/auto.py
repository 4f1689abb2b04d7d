"""Auto: choose the simplest method, which may be no correction, whose held-out loss is within noise of the lowest."""

from __future__ import annotations

import copy
import math
import textwrap
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import clone

from trueup._validate import MAX_INTEGER, check_integer
from trueup.calibrators import stopping
from trueup.calibrators.base import Calibrator, FeatureCalibrator, FitResult
from trueup.calibrators.curves.estimators import Beta, Histogram, Isotonic, Platt, ScoreCalibrator, Temperature
from trueup.calibrators.curves.grouped import Grouped
from trueup.calibrators.curves.map import CurveMap
from trueup.calibrators.depthtwo import DepthTwo
from trueup.calibrators.lsboost.estimator import LSBoost
from trueup.calibrators.matrix.estimator import MatrixScaling
from trueup.calibrators.mcgrad.estimator import MCGrad
from trueup.calibrators.model import Map, UnchangedMap
from trueup.calibrators.patches.estimators import HKRR, Multiaccuracy
from trueup.calibrators.stopping import CrossValidation, History, Split, task_loss
from trueup.data.columns import frame_like
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.metrics.result import html_table

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.data.table import Table, Task


CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": Temperature, "platt": Platt, "beta": Beta, "isotonic": Isotonic, "histogram": Histogram,
    "matrixscaling": MatrixScaling, "depthtwo": DepthTwo, "mcgrad": MCGrad, "lsboost": LSBoost, "hkrr": HKRR, "multiaccuracy": Multiaccuracy,
}  # fmt: skip
IDENTITY = "identity"
NAMES = (IDENTITY, *CALIBRATORS)
# The simplest first: the easiest to understand and the cheapest to run.
DEFAULT_METHODS: dict[Task, tuple[str, ...]] = {
    "binary": (IDENTITY, "temperature", "platt", "beta", "isotonic", "depthtwo", "mcgrad"),
    "multiclass": (IDENTITY, "temperature", "matrixscaling", "platt", "beta", "isotonic", "mcgrad"),
    "regression": (IDENTITY, "platt", "isotonic", "depthtwo", "mcgrad"),
}
ROLES: dict[str, Any] = {
    "prediction": None, "features": None, "task": "auto", "categorical": (), "classes": None, "unlabelled": "error",
    "logits": False,
}  # fmt: skip
SHARED: dict[str, Any] = {"random_state": 0, "threads": None}  # passed to a method that keeps the default
MAX_EVALUATION_ROWS = 100_000  # further folds are not evaluated
MIN_FOLDS = 2  # that are evaluated, however many rows there are; and before a method is dropped
CHOICE_ERRORS = 1.0  # standard errors within which a simpler method is chosen
DROP_ERRORS = 3.0  # standard errors behind the best at which a method is dropped
REPR_WIDTH = 100
WRITE_METHODS = 'write it as methods=["identity", "platt", tu.MCGrad(depth=3)]'


class LossDifference(NamedTuple):
    """The mean difference of two losses on the same rows, and its standard error."""

    mean: float
    error: float
    tolerance: float  # the difference that counts as a tie: one standard error, or more if a handful of rows dominate it


def compare_losses(
    losses: FloatArray, best: FloatArray, weight: FloatArray | None, cluster: IntArray | None = None
) -> LossDifference:
    """Return the mean of ``losses - best``, paired by row, with its standard error and the tolerance for a tie."""
    mean, error, rows = stopping.paired_gain(losses - best, weight, cluster=cluster)
    loss = float(np.average(losses, weights=weight))
    return LossDifference(mean, error, stopping.required_gain(CHOICE_ERRORS, error, rows, loss))


def choose_simplest(
    losses: Sequence[FloatArray], weight: FloatArray | None, cluster: IntArray | None = None
) -> tuple[int, int]:
    """Return the index of the first (simplest) candidate that ties with the best, and that of the best (lowest mean loss).

    This is the one-standard-error rule of Breiman et al. (1984), section 3.4.3, with the error of the paired difference.
    """
    means = [float(np.average(row_losses, weights=weight)) for row_losses in losses]
    best = int(np.argmin(means))
    lowest = np.inf
    for number, row_losses in enumerate(losses[:best]):
        difference = compare_losses(row_losses, losses[best], weight, cluster)
        # Not one that is worse than a simpler one: a few rows with a huge loss also have a huge standard error.
        if means[number] < lowest and difference.mean <= difference.tolerance:
            return number, best
        lowest = min(lowest, means[number])
    return best, best


@dataclass(frozen=True)
class Candidate:
    """One method that was evaluated: its loss, and its differences from no correction and from the best method."""

    name: str  # as in ``methods``; a second method of the same class has a 2 after it
    title: str  # as in a sentence
    loss: float  # cross-validated; if dropped early, the loss of the uncorrected scores minus the gain so far
    gain: float  # the loss of the uncorrected scores minus that of the method
    gain_error: float  # its standard error
    behind: float  # the loss of the method minus that of the best
    behind_error: float
    folds: int  # the number of folds it was evaluated on: fewer than the best if it was dropped early
    chosen: bool
    seconds: float = field(default=0.0, compare=False)  # the time of the evaluation


@dataclass(frozen=True)
class Choice:
    """The chosen method, and why it was chosen."""

    method: str  # "identity" leaves scores unchanged
    candidates: tuple[Candidate, ...]  # the simplest first; empty if there were too few rows to choose
    sentence: str
    measure: str  # "log loss" or "squared error"
    rows: int  # the number of rows of the evaluation

    @property
    def shrunken_gain(self) -> float:
        """Return the gain of the chosen method, shrunken since the best of several is chosen; 0 without a correction."""
        chosen = [item for item in self.candidates if item.chosen and item.name != IDENTITY]
        return stopping.shrink_gain(chosen[0].gain, chosen[0].gain_error, CHOICE_ERRORS) if chosen else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and those of the candidates, as plain data."""
        candidates = [asdict(candidate) for candidate in self.candidates]
        return {**asdict(self), "candidates": candidates, "shrunken_gain": self.shrunken_gain}

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per candidate, as a frame of the library of ``like``; a dict of arrays without it."""
        names = ("name", "loss", "gain", "gain_error", "behind", "behind_error", "folds", "chosen", "seconds")
        return frame_like({name: np.array([getattr(item, name) for item in self.candidates]) for name in names}, like)

    def __repr__(self) -> str:
        lines = textwrap.wrap(f"Choice: {self.sentence}", REPR_WIDTH, subsequent_indent="  ")
        if not self.candidates:
            return "\n".join(lines)
        wide = max(6, *(len(candidate.name) for candidate in self.candidates))
        lines.append(f"    {'method':<{wide}}  {self.measure:>13}  {'gain (s.e.)':>21}  {'behind (s.e.)':>21}  seconds")
        folds = max(candidate.folds for candidate in self.candidates)
        for c in self.candidates:
            gain, behind = (
                "" if value == error == 0 else f"{value:.3g} ({error:.2g})"  # no difference of a method to itself
                for value, error in ((c.gain, c.gain_error), (c.behind, c.behind_error))
            )
            early = "" if c.folds == folds else f"  {c.folds} of {folds} folds"
            mark = "->" if c.chosen else "  "
            lines.append(f" {mark} {c.name:<{wide}}  {c.loss:>13.6g}  {gain:>21}  {behind:>21}  {c.seconds:>7.2f}{early}")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        heads = ("method", self.measure, "gain", "s.e.", "behind", "s.e.", "seconds")
        rows = [
            (c.name, f"{c.loss:.6g}", *(f"{value:.3g}" for value in (c.gain, c.gain_error, c.behind, c.behind_error)),
             f"{c.seconds:.2f}")
            for c in self.candidates
        ]  # fmt: skip
        chosen = [at for at, candidate in enumerate(self.candidates) if candidate.chosen]
        return html_table(f"Choice: {self.sentence}", heads, rows, bold=chosen)


def explain_choice(candidates: Sequence[Candidate], best: int, before: float, measure: str) -> str:
    """Return why a method was chosen; ``best`` is the index of the lowest loss, ``before`` the loss without correction."""
    number, chosen = next((number, item) for number, item in enumerate(candidates) if item.chosen)
    within_error = chosen.behind <= chosen.behind_error
    if chosen.name == IDENTITY:
        others = [candidate for candidate in candidates if candidate.name != IDENTITY]
        detectable = min(others, key=lambda other: other.loss).gain_error if others else 0.0
        limit = f"; a gain below about {detectable:.2g} cannot be detected on these rows" if detectable else ""
        noise = "by more than its standard error" if within_error else "significantly: a few rows dominate the gain"
        return f"no correction is needed: no method lowers the cross-validated {measure} ({before:.6g}) {noise}{limit}"
    own = f"chose {chosen.title}"
    loss = f"its cross-validated {measure} {chosen.loss:.6g}"
    tail = f"that of the uncorrected scores is {before:.6g}"
    if len(candidates) == 1:
        return f"{own}, the only method to choose from: {loss}; {tail}"
    shrunken = stopping.shrink_gain(chosen.gain, chosen.gain_error, CHOICE_ERRORS)
    tail += f" (a gain of {chosen.gain:.3g}, {shrunken:.3g} shrunken for selection)"
    if number == best:
        rest = "significantly lower than that of any simpler method" if number else "the lowest, and it is the simplest"
        return f"{own}: {loss} is {rest}; {tail}"
    close = f"one standard error ({chosen.behind_error:.2g})" if within_error else "the noise of a few dominant rows"
    first = candidates[best]
    return f"{own}: {loss} is within {close} of the best, {first.title}'s {first.loss:.6g}, and it is simpler; {tail}"


@dataclass(eq=False, repr=False, kw_only=True)
class Auto(FeatureCalibrator):
    """Choose the method: the simplest whose held-out loss is within noise of the best, which may be no correction at all.

    Every method, with its own stopping rule, is fitted on the rows outside each fold, and evaluated on the fold by log
    loss, or squared error for real outcomes. The simplest whose loss is within one standard error of the lowest (the error
    of the difference, row by row) is then fitted to all rows. `choice_` has the chosen method and the reason.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position; by default all columns, one per class, if every row adds up to 1 or holds ``logits``, else 0.
    features : column names, optional
        The columns that form segments; every other column by default. If the chosen method uses the score alone, the
        fitted model needs none of them.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    methods : sequence of names and calibrators, optional
        The methods to choose from, the simplest first. Names are "identity" (uncorrected scores), "temperature", "platt",
        "beta", "isotonic", "histogram", "depthtwo", "mcgrad", "lsboost", "hkrr" and "multiaccuracy"; calibrators, like
        ``tu.MCGrad(depth=3)``, have parameters of their own, but no roles; with ``resume=`` they keep the rounds of their
        fit to all rows, not those of the folds. By default identity, Temperature, Platt, Beta, Isotonic, DepthTwo (not for
        several classes) and MCGrad; identity, Platt, Isotonic, DepthTwo and MCGrad for real outcomes.
    folds : int
        The number of folds. With more than 100,000 rows, only as many folds as contain that number are evaluated, and at
        least two.
    categorical : column names
        Numeric columns that are categories.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    logits : bool
        Whether prediction columns hold logits: of the classes, for which a softmax gives probabilities, or of one
        probability, by a sigmoid. Corrected predictions are probabilities.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    random_state : int
        The seed. The result does not depend on the number of threads.
    threads : int, optional
        The number of cores by default.

    Attributes
    ----------
    choice_ : Choice
        The method, the losses of all candidates, and a sentence with the reason.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The history of the chosen method on all rows; a curve without a stopping rule has its cross-validated losses.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`, of the chosen method on all rows; for identity and for a curve of the score without a
        stopping rule, the folds that the methods were evaluated on.

    Notes
    -----
    Identity is chosen unless a method is significantly better. On calibrated scores a curve of k coefficients gains about
    C / 2 - k over all rows, where C has a chi-squared distribution with k degrees of freedom (Stone 1977), with a standard
    error of sqrt(C): 1 run in 200 chooses such a curve by mistake.

    A method of trees or patches that is more than three standard errors behind the best after two folds is not evaluated
    further. The loss of the chosen method is optimistic, as that of any best of several. ``choice_.shrunken_gain`` allows
    for that: the mean of a normal distribution that has the observed gain as its mean if it is truncated below at one
    standard error.

    References
    ----------
    Breiman, Friedman, Olshen & Stone (1984), "Classification and Regression Trees", section 3.4.3: the rule of one standard
    error. Stone (1977), "An asymptotic equivalence of choice of model by cross-validation and Akaike's criterion".

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(10_000, seed=0)
    >>> fix = tu.Auto(prediction="prediction", features=["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.choice_.method in ("depthtwo", "mcgrad")
    True
    >>> fix = tu.Auto(prediction="truth", features=[], methods=["identity", "platt"]).fit(data, data["outcome"])
    >>> fix.choice_.sentence[:23]
    'no correction is needed'
    """

    methods: Any = None
    folds: int = 5
    classes: Any = None
    logits: bool = False
    random_state: int = 0
    threads: int | None = None

    def fit_table(self, table: Table, progress: Any = None) -> Calibrator:
        """Fit on a Table, as `fit` does on a frame; ``progress(done, most)`` is called after each evaluation."""
        super().fit_table(table, progress)
        chosen = next((item.title for item in self.choice_.candidates if item.chosen), self.choice_.method)
        self.model_ = replace(self.model_, about=replace(self.model_.about, method=f"Auto: {chosen}"))
        if isinstance(self.model_.map, (UnchangedMap, CurveMap)):  # these use the score alone
            self.model_ = replace(self.model_, schema=replace(self.model_.schema, features=()))
        return self

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        check_integer("folds", self.folds, 2, MAX_INTEGER)
        check_integer("random_state", self.random_state, 0, MAX_INTEGER)
        check_integer("threads", self.threads, 1, MAX_INTEGER, optional=True)
        methods, loss = self._resolve_methods(table.schema.task), task_loss(table.schema.task)
        stopping.check_row_count(table)
        folds = stopping.split_rows(table, CrossValidation(int(self.folds)), int(self.random_state))
        if min(len(fold.train) for fold in folds) < stopping.MIN_ROWS:
            losses = loss.per_row(table.y, loss.apply_link(table.prediction))
            first, folds, before = methods[0], [], float(np.average(losses, weights=table.weight))
            result = "scores are left unchanged" if first.calibrator is None else f"chose the simplest, {first.title}"
            choice = Choice(first.name, (), f"{len(table)} rows are too few to choose: {result}", loss.measure, 0)
        else:
            folds = folds[: max(MIN_FOLDS, math.ceil(MAX_EVALUATION_ROWS * len(folds) / len(table)))]
            choice, before = self._choose(table, methods, folds, progress)
        winner = next(method for method in methods if method.name == choice.method)
        fitted, self.choice_ = _fit_chosen(table, winner, choice, before)
        own = winner.calibrator
        if fitted.held_out is None and folds and table.schema.task == "binary":
            # The rows of the choice; curves are fitted again, which takes less than keeping the scores of all candidates.
            rows = np.concatenate([fold.valid for fold in folds])
            if own is None:
                return fitted._replace(held_out=stopping.collect_held_out(table, rows, table.prediction[rows]))
            if isinstance(own, ScoreCalibrator):
                held_out = stopping.collect_held_out(table, rows, own._out_of_fold(table, folds)[0])
                return fitted._replace(held_out=held_out)
        return fitted

    def _choose(self, table: Table, methods: list[_Method], folds: list[Split], progress: Any) -> tuple[Choice, float]:
        """Evaluate the methods fold by fold, and drop poor ones; return the choice, and the loss of uncorrected scores."""
        base, rows, workers = _Method(IDENTITY, IDENTITY, None), np.zeros(0, np.int64), Workers(self.threads)
        for number, fold in enumerate(folds):
            train, held = table.take(fold.train), table.take(fold.valid)
            rows = np.concatenate([rows, fold.valid])
            weight = None if table.weight is None else table.weight[rows]
            cluster = stopping.cluster_numbers(table, rows)
            base.evaluate(train, held, workers)
            for done, method in enumerate(methods, start=1):
                if not method.dropped:
                    method.evaluate(train, held, workers)
                if progress is not None:
                    progress(number * len(methods) + done, len(folds) * len(methods))
            complete = [method for method in methods if not method.dropped]
            if MIN_FOLDS <= number + 1 < len(folds):  # drop slow methods; curves of the score cost almost nothing
                best = min(complete, key=lambda method: float(np.average(method.losses, weights=weight)))
                for method in complete:
                    if method.calibrator is not None and not isinstance(method.calibrator, ScoreCalibrator):
                        difference = compare_losses(method.losses, best.losses, weight, cluster)
                        method.dropped = difference.mean > DROP_ERRORS * difference.tolerance
        chosen, lowest = choose_simplest([method.losses for method in complete], weight, cluster)
        winner, best = complete[chosen], complete[lowest]
        before, candidates = float(np.average(base.losses, weights=weight)), []
        for method in methods:
            losses, count = method.losses, len(method.losses)
            w = None if weight is None else weight[:count]
            own = None if cluster is None else cluster[:count]
            gain = compare_losses(base.losses[:count], losses, w, own)
            behind = compare_losses(losses, best.losses[:count], w, own)
            loss = before - gain.mean if method.dropped else float(np.average(losses, weights=w))
            candidates.append(Candidate(
                method.name, method.title, loss, gain.mean, gain.error, behind.mean, behind.error,
                len(method.fold_losses), method is winner, method.seconds,
            ))  # fmt: skip
        measure = task_loss(table.schema.task).measure
        sentence = explain_choice(candidates, methods.index(best), before, measure)
        return Choice(winner.name, tuple(candidates), sentence, measure, len(base.losses)), before

    def _resolve_methods(self, task: Task) -> list[_Method]:
        given = DEFAULT_METHODS[task] if self.methods is None else self.methods
        listed = [] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
        if not listed:
            raise _methods_error(f"must be a list of names and calibrators; got {given!r}", WRITE_METHODS)
        methods: list[_Method] = []
        counts: dict[str, int] = {}
        for item in listed:
            calibrator = _make_calibrator(item)
            title = IDENTITY if calibrator is None else type(calibrator).__name__
            if title in counts and isinstance(item, str):
                raise _methods_error(f"contains {item!r} twice", "give the second one other parameters")
            counts[title] = counts.get(title, 0) + 1
            title = title if counts[title] == 1 else f"{title} {counts[title]}"
            if calibrator is not None:  # pass on the roles, and what the calibrator leaves at the default
                own = calibrator.get_params(deep=False)
                shared = [name for name, default in SHARED.items() if name in own and own[name] == default]
                passed = {name: getattr(self, name) for name in (*(role for role in ROLES if role in own), *shared)}
                if "saturation" in own:
                    passed["saturation"] = False  # takes time, and does not change the fit
                calibrator.set_params(**passed)
            methods.append(_Method(title.lower(), title, calibrator))
        return methods


@dataclass(eq=False)
class _Method:
    """A method to choose from, and its losses on each fold so far; ``calibrator`` is None for no correction."""

    name: str
    title: str
    calibrator: Calibrator | None
    fold_losses: list[FloatArray] = field(default_factory=list)
    seconds: float = 0.0
    dropped: bool = False

    def evaluate(self, train: Table, held: Table, workers: Workers) -> None:
        """Fit the method to the rows ``train``, and append its losses on the rows ``held``."""
        start = time.perf_counter()
        loss, calibrator = task_loss(held.schema.task), self.calibrator
        # A checkpoint belongs to one fit: the final one, to all rows.
        if calibrator is not None and getattr(calibrator, "resume", None) is not None:
            calibrator = copy.copy(calibrator).set_params(resume=None)
        fitted: Map = UnchangedMap() if calibrator is None else calibrator._fit_map(train, None).map
        self.fold_losses.append(loss.per_row(held.y, loss.apply_link(fitted.apply_table(held, workers))))
        self.seconds += time.perf_counter() - start

    @property
    def losses(self) -> FloatArray:
        """The losses of the rows of all folds so far, concatenated."""
        return np.concatenate(self.fold_losses)


def _fit_chosen(table: Table, winner: _Method, choice: Choice, before: float) -> tuple[FitResult, Choice]:
    """Fit the method ``winner`` to all rows; return the result, with the reason in its history, and the updated choice."""
    base = (before, 0.0, 0.0)
    evaluated_on = stopping.evaluation_rows(CrossValidation() if choice.candidates else None)
    if winner.calibrator is None:
        return FitResult(UnchangedMap(), History.of([base], 0, choice.sentence, evaluated_on, choice.measure)), choice
    fitted = winner.calibrator._fit_map(table, None)
    history = fitted.history
    if not history.chosen:
        sentence = f"{choice.sentence}; but fitted to all rows it changes nothing ({history.reason})"
        unchanged = fitted._replace(map=UnchangedMap(), history=replace(history, reason=sentence), after=None)
        return unchanged, replace(choice, sentence=sentence)
    own = next((candidate for candidate in choice.candidates if candidate.chosen), None)
    if isinstance(winner.calibrator, ScoreCalibrator) and winner.calibrator.stopping is None and own is not None:
        evaluations = [base, (own.loss, own.gain, own.gain_error)]
        history = History.of(evaluations, 1, choice.sentence, evaluated_on, choice.measure)
    else:
        history = replace(history, reason=f"{choice.sentence}; {history.reason}")
    return fitted._replace(history=history), choice


def _make_calibrator(item: Any) -> Calibrator | None:
    """Return an unfitted calibrator for an item of ``methods``, a name or a calibrator; None for "identity"."""
    if isinstance(item, str):
        if item not in NAMES:
            close = get_close_matches(item.lower(), NAMES, 1)
            hint = f"did you mean {close[0]!r}?" if close else f"the methods are {', '.join(NAMES)}"
            raise _methods_error(f"contains an unknown method, {item!r}", hint)
        return None if item == IDENTITY else CALIBRATORS[item]()
    if not isinstance(item, Calibrator) or isinstance(item, (Auto, Grouped)):
        nested = "Auto cannot be nested, and Grouped needs columns of its own: fit it separately and compare"
        hint = nested if isinstance(item, (Auto, Grouped)) else WRITE_METHODS
        raise _methods_error(f"must contain names and calibrators; got {item!r}", hint)
    own = item.get_params(deep=False)
    for name, default in ROLES.items():
        if name in own and not (isinstance(own[name], type(default)) and own[name] == default):
            raise _methods_error(f"contains a calibrator that sets {name}: {item!r}", f"pass {name}= to Auto itself")
    return clone(item)  # type: ignore[no-any-return]


def _methods_error(problem: str, hint: str) -> ArgumentError:
    return ArgumentError(f"methods {problem}", hint, parameter="methods")
