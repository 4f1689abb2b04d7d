"""The scikit-learn shell of every calibrator: roles in the constructor, fit, predict, and a Model underneath."""

from __future__ import annotations

import datetime as dt
import inspect
from abc import abstractmethod
from dataclasses import asdict, is_dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from sklearn.base import BaseEstimator

from trueup._validate import check_choice
from trueup.calibrators import splits
from trueup.calibrators.explain import Explanation, find_corrections
from trueup.calibrators.losses import loss_of
from trueup.calibrators.model import About, Model
from trueup.calibrators.rounds import CrossValidation, Holdout, Split, Validation
from trueup.cluster.partitions import engine_of, need, open_partitions
from trueup.data.frame import NO_PREDICTION, read, read_like
from trueup.errors import ArgumentError, NotFittedError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trueup._types import FloatArray
    from trueup.calibrators.maps.base import Map
    from trueup.calibrators.rounds import History, Stopping
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.calibrators.splits import Held
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.schema import Schema
    from trueup.data.table import Table


ENGINES = ("auto", "local", "spark", "dask")


class Fitted(NamedTuple):
    """What a recipe makes of a Table; ``after`` are the corrected scores of its rows, where they are at hand.

    ``held`` are the rows that judged, each scored by a model that was not trained on it; ``end`` is called when the model
    stands.
    """

    map: Map
    history: History
    after: FloatArray | None = None
    held: Held | None = None
    end: Callable[[], None] | None = None


class Calibrator(BaseEstimator):  # type: ignore[misc]
    """What every calibrator shares. A subclass names its parameters and writes ``_fit_map``.

    The parameters ``prediction``, ``features``, ``task``, ``categorical``, ``classes`` and ``unlabelled`` have one meaning
    everywhere; see `trueup.MCGrad`.
    """

    prediction: Any
    task: str
    classes: Any
    unlabelled: Any
    # A calibrator that has no such parameter reads the prediction alone, holds nothing out, and leaves nothing to chance.
    features: Any = ()
    categorical: Any = ()
    stopping: Stopping = None
    random_state: int = 0
    threads: int | None = None
    engine: str = "auto"

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Calibrator:
        """Learn the correction.

        Parameters
        ----------
        X : pandas, polars or pyarrow frame, dict of arrays, or ndarray
            With the prediction and the features. `trueup.MCGrad` also takes what need not fit in memory: a
            `trueup.scan` of files, a Spark DataFrame or a Dask DataFrame.
        y : array or column name
            The outcome, one value a row; a name is that of a column of ``X``, and there must be one where rows are not
            in memory.
        sample_weight : array or column name, optional

        Returns
        -------
        self
        """
        if y is None:
            raise ArgumentError("fit needs the outcome", hint='name its column, as fit(frame, "clicked")')
        if self._engine(X) is not None:
            roles = {
                "outcome": y, "prediction": self._role(), "weight": sample_weight, "features": self.features,
                "task": self._task(), "categorical": self.categorical, "unlabelled": self.unlabelled,
                "classes": self.classes,
            }  # fmt: skip
            with open_partitions(X, **roles) as parts:
                self._fit_apart(parts)
            return self
        table = read(
            X, outcome=y, prediction=self._role(), weight=sample_weight, features=self.features, task=self._task(),
            categorical=self.categorical, unlabelled=self.unlabelled, classes=self.classes,
        )  # fmt: skip
        return self.fit_table(table)

    def fit_table(self, table: Table, progress: Any = None) -> Calibrator:
        """Learn the correction from a Table, as `fit` does from a frame."""
        fitted = self._fit_map(table, progress)
        self._take(table, fitted, len(table))
        if fitted.end is not None:
            fitted.end()
        return self

    def _take(self, table: Table, fitted: Fitted, rows: int) -> None:
        """Make a Model of what was learned from so many rows; a table of some of them tells what was corrected."""
        about = About(type(self).__name__, self._plain_parameters(), rows, _today(), _version())
        found, after = fitted.map, fitted.after
        explanation = self._explain(table, found) if after is None else self._compare(table, found, after)
        self.model_ = Model(table.schema, fitted.map, fitted.history, explanation, about)
        self.history_ = fitted.history
        held = fitted.held
        self.held_out_ = None if held is None else held.scored
        self.held_out_rows_ = None if held is None else held.rows_given(table)
        self.held_out_before_ = None if held is None else held.before
        self.n_features_in_ = len(table.schema.features) + len(table.schema.prediction)

    def _engine(self, X: Any) -> str | None:
        """Say whose frame this is, where its rows need not be in memory; refuse another than the engine that is named."""
        found = engine_of(X)
        check_choice("engine", self.engine, ENGINES)
        if self.engine in ("spark", "dask"):
            need(self.engine)
        if self.engine not in ("auto", "local" if found in (None, "scan") else found):
            raise ArgumentError(
                f"engine={self.engine!r} does not take a {type(X).__module__}.{type(X).__qualname__}",
                hint='leave engine="auto": it goes by the frame',
            )
        if found is not None and type(self)._fit_apart is Calibrator._fit_apart:
            where = "files that need not fit in memory" if found == "scan" else f"a {found.capitalize()} DataFrame"
            raise ArgumentError(
                f"{type(self).__name__} takes rows in memory; got {where}",
                hint="trueup.MCGrad fits them where they are; or give this one a sample of them, in memory",
            )
        return found

    def _fit_apart(self, parts: PartitionedTable) -> None:
        """Learn from rows in parts; a calibrator that can do so writes this."""
        raise NotImplementedError

    def predict(self, X: Any) -> FloatArray:
        """Correct the predictions of a frame: shape (n,), or (n, k) for k classes."""
        return self._fitted().predict(X)

    def predict_one(self, row: Mapping[str, Any]) -> float | FloatArray:
        """Correct one prediction, given as a mapping of names to values; a feature that is not there is missing."""
        return self._fitted().predict_one(row)

    def explain(self, row: Mapping[str, Any] | None = None) -> Explanation | RowExplanation:
        """Say what was corrected; or, for one row (a mapping), which conditions moved it and by how much."""
        return self._fitted().explain(row)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Give minus the mean loss of the corrected predictions, so that larger is better: log loss, or squared error.

        Grid search and cross-validation use it where no other scoring is named.
        """
        model = self._fitted()
        table = self._labelled(X, y, sample_weight, model.schema)
        loss = loss_of(model.schema.task)
        assert table.outcome is not None
        each = loss.each(table.outcome, loss.enter(model.predict_table(table)))
        return -float(np.average(each, weights=table.weight))

    def _role(self) -> Any:
        """Say what the door is to read as the prediction."""
        return self.prediction

    def _task(self) -> str:
        """Say which task the door is to read for."""
        return self.task

    def _labelled(self, X: Any, y: Any, sample_weight: Any, schema: Schema) -> Table:
        """Read other rows with their outcomes, in the vocabularies of the rows of the fit."""
        like = read_like(X, schema)
        table = read(
            X, outcome=y, prediction=like.prediction if schema.prediction else NO_PREDICTION, weight=sample_weight,
            features=[], task=self._task(), classes=schema.classes or None, unlabelled=self.unlabelled,
        )  # fmt: skip
        kept = slice(None) if table.kept is None else table.kept
        return replace(table, schema=schema, columns={name: column[kept] for name, column in like.columns.items()})

    def _explain(self, table: Table, found: Map) -> Explanation:
        if not found.changes:
            return Explanation((), len(table), 0.0, 0.0)
        columns = [table.columns[feature.name] for feature in table.schema.features]
        return self._compare(table, found, found.apply(columns, table.prediction, Workers(self.threads)))

    def _compare(self, table: Table, found: Map, after: FloatArray) -> Explanation:
        return find_corrections(table, found.tested(), self._before(table, found), after, int(self.random_state))

    def _before(self, table: Table, found: Map) -> FloatArray:  # noqa: ARG002
        """Give the scores that the map changes."""
        return table.prediction

    def _split(self, table: Table) -> tuple[Table, list[Split]]:
        """Say which rows are trained on and which judge; rows of a given validation come after the others."""
        splits.enough_rows(table)
        rows = np.arange(len(table))
        if self.stopping is None:
            return table, [Split(rows, rows[:0])]
        if not isinstance(self.stopping, Validation):
            return table, splits.divide(table, self.stopping, int(self.random_state))
        given = self.stopping
        held = self._labelled(given.data, given.outcome, given.sample_weight, table.schema)
        splits.warn_of_training_rows(table, held, loss_of(table.schema.task))
        joined = splits.append_rows(table, held)
        return joined, [Split(rows, np.arange(len(rows), len(joined)))]

    def _check_stopping(self) -> None:
        if self.stopping is not None and not isinstance(self.stopping, (Holdout, CrossValidation, Validation)):
            raise ArgumentError(
                f"stopping must be a CrossValidation, a Holdout, a Validation or None; got {self.stopping!r}",
                hint="write it as stopping=tu.CrossValidation(5)",
            )

    @abstractmethod
    def _fit_map(self, table: Table, progress: Any) -> Fitted:
        """Make the map; every parameter is checked here."""

    def _fitted(self) -> Model:
        try:
            model: Model = self.model_
        except AttributeError:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet", hint="call fit(frame, outcome) first"
            ) from None
        return model

    def _plain_parameters(self) -> dict[str, Any]:
        return {name: _plain(getattr(self, name)) for name in inspect.signature(type(self)).parameters}


def _plain(value: Any) -> Any:
    """Write a parameter as JSON can hold it."""
    if isinstance(value, Validation):
        return {"Validation": {"patience": value.patience}}
    if is_dataclass(value) and not isinstance(value, type):
        return {type(value).__name__: asdict(value)}
    if isinstance(value, float) and not np.isfinite(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, np.generic):
        return _plain(value.item())
    if isinstance(value, (set, frozenset)):
        return sorted((_plain(one) for one in value), key=str)  # the order of a set differs from run to run
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(one) for one in value]
    return str(value)


def _today() -> str:
    return dt.datetime.now(dt.UTC).date().isoformat()


def _version() -> str:
    from importlib.metadata import version

    return version("trueup")
