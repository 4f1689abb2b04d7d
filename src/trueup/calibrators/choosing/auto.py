"""Auto: the simplest correction that serves unseen rows as well as the best; none is a legal answer."""

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

from trueup.calibrators import splits
from trueup.calibrators.base import Calibrator, FitResult
from trueup.calibrators.checking import check_whole
from trueup.calibrators.choosing.choice import Candidate, Choice, choose_simplest, margin, tell
from trueup.calibrators.curves.binning import Histogram, Isotonic
from trueup.calibrators.curves.classic import Classic
from trueup.calibrators.curves.grouped import Grouped
from trueup.calibrators.curves.scaling import Beta, Platt, Temperature
from trueup.calibrators.depthtwo import DepthTwo
from trueup.calibrators.losses import task_loss
from trueup.calibrators.lsboost.estimator import LSBoost
from trueup.calibrators.map import UnchangedMap
from trueup.calibrators.maps.scores import ScoreMap
from trueup.calibrators.mcgrad.estimator import MCGrad
from trueup.calibrators.patches.patching import HKRR, Multiaccuracy
from trueup.calibrators.stopping import CrossValidation, History, Round, evaluation_rows
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray
    from trueup.calibrators.map import Map
    from trueup.calibrators.splits import HeldOut
    from trueup.calibrators.stopping import Split
    from trueup.data.schema import Task
    from trueup.data.table import Table


KINDS: dict[str, type[Calibrator]] = {
    "temperature": Temperature, "platt": Platt, "beta": Beta, "isotonic": Isotonic, "histogram": Histogram,
    "depthtwo": DepthTwo, "mcgrad": MCGrad, "lsboost": LSBoost, "hkrr": HKRR, "multiaccuracy": Multiaccuracy,
}  # fmt: skip
IDENTITY = "identity"
NAMES = (IDENTITY, *KINDS)
# From the simplest on: by what a person must read to follow them, and by what they cost to run.
STANDARD: dict[Task, tuple[str, ...]] = {
    "binary": (IDENTITY, "temperature", "platt", "beta", "isotonic", "depthtwo", "mcgrad"),
    "multiclass": (IDENTITY, "temperature", "platt", "beta", "isotonic", "mcgrad"),
    "regression": (IDENTITY, "platt", "isotonic", "depthtwo", "mcgrad"),
}
ROLES: dict[str, Any] = {
    "prediction": None, "features": None, "task": "auto", "categorical": (), "classes": None, "unlabelled": "error",
}  # fmt: skip
SHARED: dict[str, Any] = {"random_state": 0, "threads": None}  # given to a method that was not told its own
ENOUGH = 100_000  # rows that judge: folds beyond them are left out
FEWEST_FOLDS = 2  # that judge, however many rows there are; and before a method is dropped
HOPELESS = 3.0  # standard errors behind the best


class Auto(Calibrator):
    """Choose the correction: the simplest method that serves unseen rows as well as the best, which may be none at all.

    Every method is fitted on the rows outside each fold, its own stopping included, and judged on the fold by log loss, or
    squared error for real outcomes. The simplest whose loss is within one standard error of the lowest (the error of the
    difference, row by row) is then fitted to all rows. `choice_` says which it is, and why.

    Parameters
    ----------
    prediction : column name, or several
        The score to be corrected: a probability, a real number (``task="regression"``), or one column for each class.
        For an array a position, 0 by default.
    features : column names, optional
        What segments are made of; every other column by default. A chosen method that reads the score alone asks for none
        of them when it predicts.
    task : {"auto", "binary", "regression"}
        "auto" is binary for one prediction column, several classes for several.
    methods : sequence of names and calibrators, optional
        What to choose from, the simplest first. Names are "identity" (scores as they are), "temperature", "platt", "beta",
        "isotonic", "histogram", "depthtwo", "mcgrad", "lsboost", "hkrr" and "multiaccuracy"; calibrators, like
        ``tu.MCGrad(depth=3)``, have parameters of their own, but no roles; with ``resume=`` they keep the rounds of their
        fit to all rows, not those of the folds. By default identity, Temperature, Platt, Beta,
        Isotonic, DepthTwo (not for several classes) and MCGrad; identity, Platt, Isotonic, DepthTwo and MCGrad for real
        outcomes.
    folds : int
        How many parts the rows are dealt into. More than 100,000 rows are judged by no more folds than hold so many, and
        by two at least.
    categorical : column names
        Numeric columns to be read as categories.
    classes : sequence, optional
        For several prediction columns, the outcome that each stands for, in their order.
    unlabelled : {"error", "drop"}
        What to do with rows without an outcome.
    random_state : int
        Fixes everything, whatever the number of threads.
    threads : int, optional
        As many as there are cores by default.

    Attributes
    ----------
    choice_ : Choice
        The method, the losses of all candidates, and a sentence that says why.
    model_ : Model
        What is saved and shipped.
    history_ : History
        That of the chosen method on all rows. A curve of the score that holds nothing out has the losses of the choice.
    held_out_, held_out_rows_, held_out_before_
        As in `trueup.MCGrad`, of the chosen method on all rows; where that holds nothing out itself, a curve of the score
        and identity have the rows of the choice.

    Notes
    -----
    Identity is chosen unless something gains more than noise. On calibrated scores a curve of k coefficients gains about
    C / 2 - k over all rows, with C of a chi-squared law of k degrees (Stone 1977), and the standard error of that is
    sqrt(C): 1 run in 200 takes such a curve by mistake.

    A method of trees or patches that is behind the best by more than three standard errors after two folds is judged no
    further. The loss of the chosen method is a little too good, as that of any best of several; the difference is within
    the standard errors of `choice_`.

    References
    ----------
    Breiman, Friedman, Olshen & Stone (1984), "Classification and Regression Trees", section 3.4.3: the rule of one standard
    error. Stone (1977), "An asymptotic equivalence of choice of model by cross-validation and Akaike's criterion".

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> fix = tu.Auto(prediction="prediction", features=["region", "product", "age"]).fit(data, data["outcome"])
    >>> fix.choice_.method
    'mcgrad'
    >>> fix = tu.Auto(prediction="truth", features=[], methods=["identity", "platt"]).fit(data, data["outcome"])
    >>> fix.choice_.sentence[:20]
    'you do not need this'
    """

    def __init__(
        self,
        prediction: Any = None,
        features: Any = None,
        *,
        task: str = "auto",
        methods: Any = None,
        folds: int = 5,
        categorical: Any = (),
        classes: Any = None,
        unlabelled: str = "error",
        random_state: int = 0,
        threads: int | None = None,
    ) -> None:
        self.prediction = prediction
        self.features = features
        self.task = task
        self.methods = methods
        self.folds = folds
        self.categorical = categorical
        self.classes = classes
        self.unlabelled = unlabelled
        self.random_state = random_state
        self.threads = threads

    def fit_table(self, table: Table, progress: Any = None) -> Calibrator:
        """Learn the correction from a Table, as `fit` does from a frame."""
        super().fit_table(table, progress)
        chosen = next((one.title for one in self.choice_.candidates if one.chosen), self.choice_.method)
        self.model_ = replace(self.model_, about=replace(self.model_.about, method=f"Auto: {chosen}"))
        if isinstance(self.model_.map, (UnchangedMap, ScoreMap)):  # which read the score alone: the model asks for no more
            self.model_ = replace(self.model_, schema=replace(self.model_.schema, features=()))
        return self

    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        check_whole(self, {"folds": (2, 2**31 - 1), "random_state": (0, 2**31 - 1)})
        check_whole(self, {"threads": (1, 2**31 - 1)}, optional=True)
        tried = [_Tried(name, title, recipe) for name, title, recipe in self._resolve(table.schema.task)]
        splits.check_row_count(table)
        parts = splits.split_rows(table, CrossValidation(int(self.folds)), int(self.random_state))
        judged: list[Split] = []
        if min(len(part.train) for part in parts) < splits.MIN_ROWS:
            choice, before = _too_few(table, tried[0])
        else:
            judged = parts[: max(FEWEST_FOLDS, math.ceil(ENOUGH * len(parts) / len(table)))]
            choice, before = self._choose(table, tried, judged, progress)
        winner = next(one for one in tried if one.name == choice.method)
        fitted, self.choice_ = _settle(table, winner, choice, before)
        return fitted if fitted.held_out is not None else fitted._replace(held_out=_held(table, winner.recipe, judged))

    def _choose(self, table: Table, tried: list[_Tried], parts: list[Split], progress: Any) -> tuple[Choice, float]:
        """Judge every method by every fold; gives the choice, and the loss of the scores as they are."""
        base, rows, workers = _Tried(IDENTITY, IDENTITY, None), np.zeros(0, np.int64), Workers(self.threads)
        for at, part in enumerate(parts):
            train, held = table.take(part.train), table.take(part.valid)
            rows = np.concatenate([rows, part.valid])
            weight = None if table.weight is None else table.weight[rows]
            base.judge(train, held, workers)
            for done, one in enumerate(tried, start=1):
                if not one.dropped:
                    one.judge(train, held, workers)
                if progress is not None:
                    progress(at * len(tried) + done, len(parts) * len(tried))
            if FEWEST_FOLDS <= at + 1 < len(parts):
                _drop(tried, weight)
        return _decide(tried, base, weight, task_loss(table.schema.task).measure)

    def _resolve(self, task: Task) -> list[tuple[str, str, Calibrator | None]]:
        """Find what to choose from: a name, a title and a recipe each; none for identity."""
        given = STANDARD[task] if self.methods is None else self.methods
        listed = [] if isinstance(given, str) or not isinstance(given, Iterable) else list(given)
        if not listed:
            raise ArgumentError(
                f"methods must be a list of names and calibrators; got {given!r}",
                hint='write it as methods=["identity", "platt", tu.MCGrad(depth=3)]',
            )
        found: list[tuple[str, str, Calibrator | None]] = []
        seen: dict[str, int] = {}
        for one in listed:
            recipe = _recipe(one)
            title = IDENTITY if recipe is None else type(recipe).__name__
            if title in seen and isinstance(one, str):
                raise ArgumentError(f"methods has {one!r} twice", hint="give the second one parameters of its own")
            seen[title] = seen.get(title, 0) + 1
            title = title if seen[title] == 1 else f"{title} {seen[title]}"
            found.append((title.lower(), title, None if recipe is None else self._instruct(recipe)))
        return found

    def _instruct(self, recipe: Calibrator) -> Calibrator:
        """Give a method our roles, and what it was not told itself."""
        known = recipe.get_params(deep=False)
        told = {name: getattr(self, name) for name in ROLES if name in known}
        told |= {name: getattr(self, name) for name, value in SHARED.items() if name in known and known[name] == value}
        if "saturation" in known:
            told["saturation"] = False  # takes time, and changes nothing of the fit
        return recipe.set_params(**told)  # type: ignore[no-any-return]


@dataclass(eq=False)
class _Tried:
    """A method, and the losses of the rows of each fold that judged it."""

    name: str
    title: str
    recipe: Calibrator | None
    losses: list[FloatArray] = field(default_factory=list)
    seconds: float = 0.0
    dropped: bool = False

    def judge(self, train: Table, held: Table, workers: Workers) -> None:
        """Fit to some rows, and judge by others."""
        start = time.perf_counter()
        loss, found = task_loss(held.schema.task), UnchangedMap() if self.recipe is None else _fit(self.recipe, train)
        columns = [held.columns[feature.name] for feature in held.schema.features]
        assert held.outcome is not None
        self.losses.append(loss.per_row(held.outcome, loss.apply_link(found.apply(columns, held.prediction, workers))))
        self.seconds += time.perf_counter() - start

    @property
    def each(self) -> FloatArray:
        """Give the losses of all rows that judged so far."""
        return np.concatenate(self.losses)


def _fit(recipe: Calibrator, train: Table) -> Map:
    if getattr(recipe, "resume", None) is not None:  # a file of finished rounds is of one fit: that of all rows, in the end
        recipe = copy.copy(recipe).set_params(resume=None)
    return recipe._fit_map(train, None).map


def _drop(tried: Sequence[_Tried], weight: FloatArray | None) -> None:
    """Judge no further what is slow and hopeless; only curves of the score cost nothing."""
    still = [one for one in tried if not one.dropped]
    best = min((one.each for one in still), key=lambda each: float(np.average(each, weights=weight)))
    for one in still:
        if one.recipe is not None and not isinstance(one.recipe, Classic):
            found = margin(one.each, best, weight)
            one.dropped = found.behind > HOPELESS * found.allowed


def _decide(tried: Sequence[_Tried], base: _Tried, weight: FloatArray | None, measure: str) -> tuple[Choice, float]:
    """Choose by the one-standard-error rule, and describe every candidate."""
    full = [one for one in tried if not one.dropped]
    at, first = choose_simplest([one.each for one in full], weight)
    winner, best = full[at], full[first]
    before, found = float(np.average(base.each, weights=weight)), []
    for one in tried:
        each, rows = one.each, len(one.each)
        w = None if weight is None else weight[:rows]
        gain, behind = margin(base.each[:rows], each, w), margin(each, best.each[:rows], w)
        loss = before - gain.behind if one.dropped else float(np.average(each, weights=w))
        found.append(Candidate(
            one.name, one.title, loss, gain.behind, gain.error, behind.behind, behind.error, len(one.losses),
            one is winner, one.seconds,
        ))  # fmt: skip
    sentence = tell(found, tried.index(best), before, measure)
    return Choice(winner.name, tuple(found), sentence, measure, len(base.each)), before


def _too_few(table: Table, simplest: _Tried) -> tuple[Choice, float]:
    """Take the simplest where no fold leaves enough rows to learn from."""
    loss = task_loss(table.schema.task)
    assert table.outcome is not None
    before = float(np.average(loss.per_row(table.outcome, loss.apply_link(table.prediction)), weights=table.weight))
    what = "scores are left unchanged" if simplest.recipe is None else f"took the simplest, {simplest.title}"
    return Choice(simplest.name, (), f"{len(table)} rows are too few to choose by: {what}", loss.measure, 0), before


def _settle(table: Table, winner: _Tried, choice: Choice, before: float) -> tuple[FitResult, Choice]:
    """Fit the chosen method to all rows, and write the choice into its history."""
    nothing = Round(0, 0, 1.0, before, 0.0, 0.0, kept=True)
    evaluated_on = evaluation_rows(CrossValidation() if choice.candidates else None)
    if winner.recipe is None:
        return FitResult(UnchangedMap(), History((nothing,), 0, choice.sentence, evaluated_on, choice.measure)), choice
    fitted = winner.recipe._fit_map(table, None)
    history = fitted.history
    if not history.chosen:
        said = f"{choice.sentence}; but fitted to all rows it changes nothing ({history.reason})"
        unchanged = fitted._replace(map=UnchangedMap(), history=replace(history, reason=said), after=None)
        return unchanged, replace(choice, sentence=said)
    own = next((one for one in choice.candidates if one.chosen), None)
    if isinstance(winner.recipe, Classic) and winner.recipe.stopping is None and own is not None:
        rounds = nothing, Round(1, 0, 1.0, own.loss, own.gain, own.gain_error, kept=True)
        history = History(rounds, 1, choice.sentence, evaluated_on, choice.measure)
    else:
        history = replace(history, reason=f"{choice.sentence}; {history.reason}")
    return fitted._replace(history=history), choice


def _held(table: Table, winner: Calibrator | None, parts: Sequence[Split]) -> HeldOut | None:
    """Keep the rows of the choice, for a winner that holds none out itself: scores as they are, or of curves fitted again.

    Fitting them again takes next to no time, and keeping the scores of all that is tried would take room. Trees and patches
    that were told to hold nothing out have nothing to show.
    """
    if not parts or table.schema.task != "binary" or not (winner is None or isinstance(winner, Classic)):
        return None
    rows = np.concatenate([part.valid for part in parts])
    return splits.collect_held_out(
        table, rows, table.prediction[rows] if winner is None else winner._out_of_fold(table, parts)[0]
    )


def _recipe(one: Any) -> Calibrator | None:
    """Make an unfitted calibrator of a name, or of another calibrator; none of "identity"."""
    if isinstance(one, str):
        if one not in NAMES:
            near = get_close_matches(one.lower(), NAMES, 1)
            raise ArgumentError(
                f"methods has no method {one!r}",
                hint=f"did you mean {near[0]!r}?" if near else f"there are {', '.join(NAMES)}",
            )
        return None if one == IDENTITY else KINDS[one]()
    if not isinstance(one, Calibrator) or isinstance(one, (Auto, Grouped)):
        raise ArgumentError(
            f"methods must hold names and calibrators; got {one!r}",
            hint="an Auto cannot choose itself, and a Grouped asks for columns of its own: fit and compare it by itself"
            if isinstance(one, (Auto, Grouped)) else 'write it as methods=["identity", "platt", tu.MCGrad(depth=3)]',
        )  # fmt: skip
    known = one.get_params(deep=False)
    for name, unset in ROLES.items():
        if name in known and not (isinstance(known[name], type(unset)) and known[name] == unset):
            raise ArgumentError(
                f"a calibrator among methods must not be told its {name}; got {one!r}", hint=f"pass {name}= to Auto itself"
            )
    return clone(one)  # type: ignore[no-any-return]
