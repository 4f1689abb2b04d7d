"""Auto: choose the method by the loss and by the audit of held-out rows; no correction at all may be the result."""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from trueup._validate import MAX_INTEGER, check_integer
from trueup.calibrators import stopping
from trueup.calibrators.base import Calibrator, FeatureCalibrator, FitResult
from trueup.calibrators.choice import (
    CHOICE_ERRORS,
    IDENTITY,
    Candidate,
    Choice,
    choose_simplest,
    compare_losses,
    explain_choice,
)
from trueup.calibrators.curves.estimators import (
    Beta,
    Histogram,
    Isotonic,
    Platt,
    ScoreCalibrator,
    SingleMapCalibrator,
    Temperature,
)
from trueup.calibrators.curves.grouped import Grouped
from trueup.calibrators.curves.map import CurveMap
from trueup.calibrators.depthtwo import DepthTwo
from trueup.calibrators.history import History
from trueup.calibrators.lsboost.estimator import LSBoost
from trueup.calibrators.matrix.estimator import MatrixScaling
from trueup.calibrators.matrix.map import MatrixMap
from trueup.calibrators.mcgrad.estimator import MCGrad
from trueup.calibrators.model import UnchangedMap
from trueup.calibrators.patches.estimators import HKRR, Multiaccuracy
from trueup.calibrators.stopping import CrossValidation, Holdout, Split, task_loss
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from trueup._types import FloatArray
    from trueup.calibrators.choice import LossDifference
    from trueup.data.table import Table, Task


CALIBRATORS: dict[str, type[Calibrator]] = {
    "temperature": Temperature, "platt": Platt, "beta": Beta, "isotonic": Isotonic, "histogram": Histogram,
    "matrixscaling": MatrixScaling, "depthtwo": DepthTwo, "mcgrad": MCGrad, "lsboost": LSBoost, "hkrr": HKRR,
    "multiaccuracy": Multiaccuracy,
}  # fmt: skip
NAMES = (IDENTITY, *CALIBRATORS)
# The simplest first: the easiest to understand and the cheapest to run.
DEFAULT_METHODS: dict[Task, tuple[str, ...]] = {
    "binary": (IDENTITY, "temperature", "platt", "beta", "isotonic", "mcgrad"),
    "multiclass": (IDENTITY, "temperature", "matrixscaling", "platt", "beta", "isotonic", "mcgrad"),
    "regression": (IDENTITY, "platt", "isotonic", "mcgrad"),
}
ROLES: dict[str, Any] = {
    "prediction": None, "features": None, "exclude": (), "task": "auto", "categorical": (), "classes": None,
    "unlabelled": "error", "logits": False,
}  # fmt: skip
SHARED: dict[str, Any] = {"random_state": 0, "threads": None}  # passed to a method that keeps the default
MAX_EVALUATION_ROWS = 100_000  # further folds are not evaluated
MIN_FOLDS = 2  # that are evaluated, however many rows there are; and before a method is dropped
DROP_ERRORS = 3.0  # standard errors behind the best at which a method that is fitted fold by fold is dropped
TRIAL_CLASSES = 20  # with as many, a method that is fitted once per fold needs a trial on one fold first
TRIAL_SHARE = 0.2  # of the rows of a trial, held out to stop it
MAX_AUDITED_CLASSES = 100  # with more, held-out rows are not audited
WRITE_METHODS = 'write it as methods=["identity", "platt", tu.MCGrad(depth=3)]'


@dataclass(eq=False, repr=False, kw_only=True)
class Auto(FeatureCalibrator):
    """Choose the method by held-out rows: the simplest that is as good as the best, which may be no correction at all.

    Methods are compared on shared folds, cheap ones first, by log loss, or squared error for real outcomes. A correction is
    chosen only if it lowers the loss significantly. Among those whose loss is within one standard error of the lowest (the
    error of the difference, row by row) and that lose at most a tenth of its gain, an audit of the held-out rows decides:
    the simplest of those under which the fewest segments are miscalibrated is chosen. `choice_` has the reason in three
    lines. A fit takes little longer than `MCGrad` alone.

    Parameters
    ----------
    prediction : column name, or several
        The score to correct: a probability, a real number (``task="regression"``), or one column per class. For an array
        a position; by default all columns, one per class, if every row adds up to 1 or holds ``logits``, else 0.
    features : column names, optional
        The columns that form segments; every other column by default. If the chosen method uses the score alone, the
        fitted model needs none of them.
    exclude : column names
        Columns that the correction must not use, such as protected attributes; `explain` still reports what the correction
        does on their levels. A name that is also a feature, or is no column, is an error.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, multiclass for several.
    methods : sequence of names and calibrators, optional
        The methods to choose from, the simplest first. Names are "identity" (uncorrected scores), "temperature", "platt",
        "beta", "isotonic", "histogram", "matrixscaling" (several classes), "depthtwo", "mcgrad", "lsboost", "hkrr" and
        "multiaccuracy"; calibrators, like ``tu.MCGrad(depth=3)``, have parameters of their own, but no roles; with
        ``resume=`` they keep the rounds of their fit to all rows, not those of the folds. By default identity,
        Temperature, MatrixScaling (for several classes), Platt, Beta, Isotonic and MCGrad; identity, Platt, Isotonic and
        MCGrad for real outcomes.
    folds : int
        The number of folds, also of methods with the default stopping rule, ``CrossValidation()``. With more than 100,000
        rows, only as many folds as contain that number are evaluated, and at least two.
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
        The method, the losses and segments of all candidates, and the reason: ``lines``, the first of which is
        ``sentence``.
    model_ : Model
        The fitted model, which is saved and shipped.
    history_ : History
        The history of the chosen method on all rows; a curve without a stopping rule has its cross-validated losses.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`, of the chosen method on all rows; for identity and for a curve of the score without a
        stopping rule, the folds that the methods were evaluated on.

    Notes
    -----
    *Evaluation.* Curves of the score are fitted once per fold. `MatrixScaling` chooses its strengths on the folds, and
    its losses are those of the best ones. A method whose own stopping rule is a cross-validation with
    the same folds and seed, as `MCGrad`, `DepthTwo` and `LSBoost` by default, is fitted once, to all rows: its held-out
    losses are compared, and its model is the result if it is chosen. These losses are the lowest of its search, and so
    somewhat optimistic; on the other hand they are those of single fold models, of which the mean is better. Other methods
    are fitted to the rows outside each fold, and dropped after two folds or more if they are three standard errors behind
    the best. With 20 classes and more, a method that is fitted once per fold must first pass a trial: a single model on
    one fold must not be behind the best curve by more than a standard error. ``Candidate.note`` says so.

    *No correction.* Identity is chosen unless a method is significantly better: by one standard error, or by its own
    stopping rule. On calibrated scores a curve of k coefficients gains about C / 2 - k over all rows, where C has a
    chi-squared distribution with k degrees of freedom (Stone 1977), with a standard error of sqrt(C): 1 run in 200 chooses
    such a curve by mistake.

    *Audit.* `trueup.audit` of the held-out rows, on pairs of the features, counts the segments that each of the close
    methods leaves miscalibrated. The count is valid for errors that a method leaves: one that has no access to a segment,
    such as a curve, is trained on other rows, and leaves its error on the held-out rows. It cannot show the errors that a
    method makes by overfitting the segment: those of the models of different folds cancel when rows of all folds are
    pooled. Therefore the audit only decides between methods whose held-out losses, which do include overfitting, are
    close; a count of 0 for MCGrad is no proof, and an audit of new rows is. With more than 100 classes it is left out.

    The loss of the chosen method is optimistic, as that of any best of several. ``choice_.shrunken_gain`` allows
    for that: the mean of a normal distribution that has the observed gain as its mean if it is truncated below at one
    standard error.

    References
    ----------
    Breiman, Friedman, Olshen & Stone (1984), "Classification and Regression Trees", section 3.4.3: the rule of one standard
    error. Stone (1977), "An asymptotic equivalence of choice of model by cross-validation and Akaike's criterion",
    doi:10.1111/j.2517-6161.1977.tb01603.x.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(10_000, seed=0)
    >>> fix = tu.Auto(prediction="prediction", features=["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.choice_.method
    'mcgrad'
    >>> fix = tu.Auto(prediction="truth", features=[], methods=["identity", "platt"]).fit(data, data["outcome"])
    >>> fix.choice_.sentence.startswith("no correction")
    True
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
        if isinstance(self.model_.map, (UnchangedMap, CurveMap, MatrixMap)):  # these use the score alone
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
            winner, before = methods[0], float(np.average(losses, weights=table.weight))
            result = "scores are left unchanged" if winner.calibrator is None else f"chose the simplest, {winner.title}"
            reason = f"{len(table)} rows are too few to choose: {result}"
            choice = Choice(winner.name, (), (reason,), loss.measure, 0)
            fitted, self.choice_ = _fit_chosen(table, winner, choice, before)
            return fitted
        folds = folds[: max(MIN_FOLDS, math.ceil(MAX_EVALUATION_ROWS * len(folds) / len(table)))]
        race = Race(table, folds, self.threads)
        for done, method in enumerate(sorted(methods, key=lambda method: self._cost(method.calibrator)), start=1):
            race.evaluate(method, self._cost(method.calibrator))
            if progress is not None:
                progress(done, len(methods))
        winner, choice = race.choose(methods)
        fitted, self.choice_ = _fit_chosen(table, winner, choice, race.base_loss)
        for method in methods:  # the checkpoint of a method that was not chosen is not needed
            if method is not winner and method.fitted is not None and method.fitted.on_success is not None:
                method.fitted.on_success()
        if fitted.held_out is None and isinstance(winner.calibrator, (SingleMapCalibrator, type(None))):
            return fitted._replace(held_out=stopping.collect_held_out(table, race.rows, winner.scores))
        return fitted

    def _cost(self, calibrator: Calibrator | None) -> int:
        """Return how a method is evaluated, the cheapest first: by curves, by its own cross-fit, or fold by fold."""
        if calibrator is None or (isinstance(calibrator, ScoreCalibrator) and calibrator.stopping is None):
            return CURVE
        if isinstance(calibrator, MatrixScaling) and calibrator.stopping is None and isinstance(calibrator.strength, str):
            return STRENGTH_SEARCH
        rule = calibrator.stopping
        own_folds = isinstance(rule, CrossValidation) and rule.folds == self.folds
        return CROSS_FIT if own_folds and calibrator.random_state == self.random_state else FOLD_BY_FOLD

    def _resolve_methods(self, task: Task) -> list[Method]:
        given = DEFAULT_METHODS[task] if self.methods is None else self.methods
        listed = [] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
        if not listed:
            raise _methods_error(f"must be a list of names and calibrators; got {given!r}", WRITE_METHODS)
        methods: list[Method] = []
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
                if own.get("stopping") == CrossValidation():
                    passed["stopping"] = CrossValidation(int(self.folds))  # so that its own folds are those of the choice
                if "saturation" in own:
                    passed["saturation"] = False  # takes time, and does not change the fit
                calibrator.set_params(**passed)
            methods.append(Method(title.lower(), title, calibrator))
        return methods


CURVE, STRENGTH_SEARCH, CROSS_FIT, FOLD_BY_FOLD = range(4)  # how a method is evaluated


@dataclass(eq=False)
class Method:
    """A method to choose from, and its evaluation so far; ``calibrator`` is None for no correction."""

    name: str
    title: str
    calibrator: Calibrator | None
    scores: FloatArray = field(default_factory=lambda: np.zeros(0))  # of the held-out rows, fold by fold
    losses: FloatArray = field(default_factory=lambda: np.zeros(0))
    folds: int = 0
    fitted: FitResult | None = None  # the fit to all rows, if its own cross-fit is the evaluation
    segments: int | None = None  # that are miscalibrated
    note: str = ""  # why it was dropped
    seconds: float = 0.0

    @property
    def has_rule(self) -> bool:
        """Return whether the method has a stopping rule of its own, and was fitted on these folds."""
        return self.fitted is not None and self.calibrator is not None and self.calibrator.stopping is not None

    @property
    def kept(self) -> bool:
        """Return whether the stopping rule of the method itself, on these folds, kept a correction."""
        return self.has_rule and self.fitted is not None and self.fitted.history.chosen > 0

    @property
    def outcome(self) -> str:
        """Return the note for the table: why it was dropped, or that its own rule kept no correction."""
        return self.note or ("changes nothing" if self.has_rule and not self.kept else "")


class Race:
    """The evaluation of methods on shared folds, cheap ones first, and the choice among them.

    A curve is fitted once per fold. A method whose own stopping rule is a cross-validation with the same folds is fitted
    once, to all rows: its held-out scores are its evaluation, and its model is the result if it is chosen. Any other
    method is fitted to the rows outside each fold, and dropped once it is far behind.
    """

    def __init__(self, table: Table, folds: list[Split], threads: int | None) -> None:
        self.table, self.folds, self.workers = table, folds, Workers(threads)
        self.loss = task_loss(table.schema.task)
        self.rows = np.concatenate([fold.valid for fold in folds])
        self.held = table.take(self.rows)
        self.base = self._losses(table.prediction[self.rows])
        self.base_loss = float(np.average(self.base, weights=self.held.weight))
        self.finished: list[Method] = []

    def evaluate(self, method: Method, cost: int) -> None:
        """Compute the losses of the held-out rows, in the way of this ``cost``, as CURVE."""
        start, calibrator = time.perf_counter(), method.calibrator
        if calibrator is None:
            self._add(method, self.table.prediction[self.rows], len(self.folds))
        elif cost == CURVE and isinstance(calibrator, ScoreCalibrator):
            calibrator._check(self.table.schema.task)
            self._add(method, calibrator._out_of_fold(self.table, self.folds)[0], len(self.folds))
        elif cost == STRENGTH_SEARCH and isinstance(calibrator, MatrixScaling):
            calibrator._check(self.table.schema.task)
            scores, method.fitted = calibrator._cross_fit(self.table, self.folds)
            self._add(method, scores, len(self.folds))
        elif cost == FOLD_BY_FOLD:
            self._evaluate_folds(method, calibrator)
        elif self._passes_trial(method, calibrator):
            fitted = method.fitted = calibrator._fit_map(self.table, None)
            if fitted.held_out is None or len(fitted.held_out.rows) < len(self.table):
                self._evaluate_folds(method, calibrator)
            else:
                self._add(method, fitted.held_out.scored.p[self.rows], len(self.folds))
        method.seconds = time.perf_counter() - start
        if not method.note:
            self.finished.append(method)

    def choose(self, methods: list[Method]) -> tuple[Method, Choice]:
        """Return the chosen method, and the choice with its reason."""
        complete = [method for method in methods if not method.note]
        weight, cluster = self.held.weight, self._cluster(len(self.rows))
        audited = self.table.prediction.ndim == 1 or self.table.prediction.shape[1] <= MAX_AUDITED_CLASSES
        own = choose_simplest(
            [method.losses for method in complete], self.base, weight, cluster, kept=[method.kept for method in complete],
            count_segments=(lambda number: self._count_segments(complete[number])) if audited else None,
        )  # fmt: skip
        winner, best = complete[own.chosen], complete[own.best]
        uncorrected = next((m for m in methods if m.calibrator is None), Method(IDENTITY, IDENTITY, None))
        if audited:
            uncorrected.scores = self.held.prediction
            for method in (uncorrected, winner):
                self._count_segments(method)
        candidates, lowest = [], float(np.average(best.losses, weights=weight))
        for method in methods:
            rows = len(method.losses)
            gain = self._compare(self.base[:rows], method.losses)
            behind = self._compare(method.losses, best.losses[:rows])
            candidates.append(Candidate(
                method.name, method.title, lowest + behind.mean, gain.mean, gain.error, behind.mean, behind.error,
                method.folds, method is winner, method.segments, method.outcome, method.seconds,
            ))  # fmt: skip
        selection = own._replace(
            chosen=methods.index(winner), best=methods.index(best),
            excluded=tuple(methods.index(complete[number]) for number in own.excluded),
        )  # fmt: skip
        cross_fit = winner.fitted is not None and winner.fitted.history.is_cross_fit
        lines = explain_choice(
            candidates, selection, self.base_loss, self.loss.measure, len(self.rows),
            base_segments=uncorrected.segments, cross_fit=cross_fit,
        )  # fmt: skip
        return winner, Choice(winner.name, tuple(candidates), lines, self.loss.measure, len(self.rows))

    def _evaluate_folds(self, method: Method, calibrator: Calibrator) -> None:
        """Fit a method to the rows outside each fold; drop it once it is DROP_ERRORS behind the best so far."""
        for number, fold in enumerate(self.folds, start=1):
            self._add(method, self._score_fold(calibrator, fold), number)
            if MIN_FOLDS <= number < len(self.folds):
                behind = self._behind_best(method)
                if behind is not None and behind.mean > DROP_ERRORS * behind.tolerance:
                    method.note = f"dropped after {number} of {len(self.folds)} folds"
                    return

    def _passes_trial(self, method: Method, calibrator: Calibrator) -> bool:
        """Return whether to fit a method that takes long with many classes: unless a trial on one fold is behind the best.

        The trial is a single model, stopped on rows of its own, where the fit has one per fold.
        """
        classes = 1 if self.table.prediction.ndim == 1 else self.table.prediction.shape[1]
        if classes < TRIAL_CLASSES or not self.finished:
            return True
        trial = copy.copy(calibrator).set_params(stopping=Holdout(TRIAL_SHARE))
        self._add(method, self._score_fold(trial, self.folds[0]), 1)
        behind = self._behind_best(method)
        if behind is not None and behind.mean > behind.tolerance:
            method.note = f"dropped after a trial on 1 of {len(self.folds)} folds"
            return False
        method.scores, method.losses = method.scores[:0], method.losses[:0]
        return True

    def _score_fold(self, calibrator: Calibrator, fold: Split) -> FloatArray:
        """Fit a method to the rows outside a fold; return the scores of the fold."""
        # A checkpoint belongs to one fit: the final one, to all rows.
        if getattr(calibrator, "resume", None) is not None:
            calibrator = copy.copy(calibrator).set_params(resume=None)
        fitted = calibrator._fit_map(self.table.take(fold.train), None).map
        return fitted.apply_table(self.table.take(fold.valid), self.workers)

    def _add(self, method: Method, scores: FloatArray, folds: int) -> None:
        """Append the scores of further rows to the evaluation of a method, which then has so many ``folds``."""
        method.scores = scores if not len(method.scores) else np.concatenate([method.scores, scores])
        method.losses, method.folds = self._losses(method.scores), folds

    def _losses(self, scores: FloatArray) -> FloatArray:
        return self.loss.per_row(self.held.y[: len(scores)], self.loss.apply_link(scores))

    def _behind_best(self, method: Method) -> LossDifference | None:
        """Return the loss of a method minus that of the best finished one, on the same rows; None if there is none."""
        rows = len(method.losses)
        weight = None if self.held.weight is None else self.held.weight[:rows]
        others = [other.losses[:rows] for other in self.finished]
        best = min(others, key=lambda losses: float(np.average(losses, weights=weight)), default=None)
        return None if best is None else self._compare(method.losses, best)

    def _compare(self, losses: FloatArray, others: FloatArray) -> LossDifference:
        """Compare the losses of the first held-out rows, as many as there are."""
        rows = len(losses)
        return compare_losses(
            losses, others, None if self.held.weight is None else self.held.weight[:rows], self._cluster(rows)
        )

    def _cluster(self, rows: int) -> Any:
        return stopping.cluster_numbers(self.table, self.rows[:rows])

    def _count_segments(self, method: Method) -> int:
        """Return the number of miscalibrated segments in an audit of the held-out rows with the scores of a method."""
        from trueup.audits.audit import audit  # only fits need it, not the scoring of rows

        if method.segments is None:
            table = replace(self.held, prediction=method.scores)
            method.segments = audit(table, threads=self.workers.threads).rejected
        return method.segments


def _fit_chosen(table: Table, winner: Method, choice: Choice, before: float) -> tuple[FitResult, Choice]:
    """Fit the method ``winner`` to all rows; return the result, with the reason in its history, and the updated choice."""
    base = stopping.Evaluation(before)
    evaluated_on = stopping.evaluation_rows(CrossValidation() if choice.candidates else None)
    if winner.calibrator is None:
        return FitResult(UnchangedMap(), History.of([base], 0, choice.sentence, evaluated_on, choice.measure)), choice
    fitted = winner.calibrator._fit_map(table, None) if winner.fitted is None else winner.fitted
    history = fitted.history
    if not history.chosen:
        sentence = f"{choice.sentence}; but fitted to all rows it changes nothing ({history.reason})"
        unchanged = fitted._replace(map=UnchangedMap(), history=replace(history, reason=sentence), after=None)
        return unchanged, replace(choice, lines=(sentence, *choice.lines[1:]))
    own = next((candidate for candidate in choice.candidates if candidate.chosen), None)
    if isinstance(winner.calibrator, SingleMapCalibrator) and winner.calibrator.stopping is None and own is not None:
        evaluations = [base, stopping.Evaluation(own.loss, own.gain, own.gain_error, CHOICE_ERRORS)]
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
