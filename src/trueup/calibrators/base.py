"""The base class of all calibrators, with the scikit-learn interface: constructor parameters, fit, predict and score."""

from __future__ import annotations

import copy
import inspect
from abc import abstractmethod
from dataclasses import KW_ONLY, asdict, dataclass, is_dataclass, replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, overload

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils import ClassifierTags, RegressorTags
from sklearn.utils.metaestimators import available_if

from trueup._validate import check_choice
from trueup.calibrators import stopping
from trueup.calibrators.explain import Explanation, find_corrections, report_excluded, summarise_changes
from trueup.calibrators.model import FitRecord, Map, Model, date_of_fit
from trueup.calibrators.scoring import RuleScore, refuse_score, score_name
from trueup.calibrators.stopping import CrossValidation, HeldOut, Holdout, Split, Stopping, Validation, task_loss
from trueup.calibrators.validation_rows import refuse_training_rows, warn_if_trained_on
from trueup.cluster.partitions import PartitionedTable, open_partitions, require_engine
from trueup.data.clusters import warn_of_shared_features
from trueup.data.columns import as_tuple, engine_of, tensor_to_array
from trueup.data.frame import NO_PREDICTION, read, read_like
from trueup.data.sampling import reject_sampling
from trueup.data.table import remember_cross_fitted
from trueup.data.values import SUM_TOLERANCE
from trueup.errors import ArgumentError, ColumnError, NotFittedError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.history import History
    from trueup.calibrators.model import OnError
    from trueup.calibrators.row_explanation import RowExplanation
    from trueup.data.table import Schema, Table


ENGINES = ("auto", "local", "spark", "dask")


class FitResult(NamedTuple):
    """What `Calibrator._fit_map` returns: the fitted `Map`, the history of its rounds, and scores known from the fit."""

    map: Map
    history: History
    after: FloatArray | None = None  # corrected scores of the training rows, if they are known already
    held_out: HeldOut | None = None  # with out-of-sample scores
    importances: FloatArray | None = None  # share of each feature, then of each prediction, in the gain of all splits
    on_success: Callable[[], None] | None = None  # called once the Model exists


class Calibrator(BaseEstimator):  # type: ignore[misc]
    """Base class of all calibrators; a subclass defines its parameters and ``_fit_map``.

    The parameters ``prediction``, ``features``, ``exclude``, ``task``, ``categorical``, ``classes`` and ``unlabelled`` have
    the same meaning in all calibrators; see `trueup.MCGrad`.
    """

    needs_outcome: ClassVar[bool] = True  # whether `fit` raises without an outcome
    uses_score: ClassVar[bool] = False  # whether it evaluates the score of a stopping rule
    score_refusal: ClassVar[str] = "its search minimises its own loss"
    prediction: Any
    task: str
    classes: Any
    unlabelled: Any
    # Defaults of calibrators that read one probability alone, hold out no rows, and are deterministic.
    logits: bool = False
    features: Any = ()
    categorical: Any = ()
    exclude: Any = ()
    stopping: Stopping = None
    random_state: int = 0
    threads: int | None = None
    engine: str = "auto"

    def fit(
        self, X: Any, y: Any = None, sample_weight: Any = None, *, cluster: Any = None, sampling: Any = None
    ) -> Calibrator:
        """Fit the correction.

        Parameters
        ----------
        X : pandas, polars or pyarrow frame, dict of arrays, or ndarray
            With the prediction and the features; an array of shape (n, k) may have a column per class. `trueup.MCGrad`
            also takes data larger than memory: a `trueup.scan` of files, a Spark DataFrame or a Dask DataFrame.
        y : array or column name
            The outcome, one value per row (for an array with a column per class, class indices 0 to k - 1, or one of
            ``classes``), or the name of a column of ``X``; data that is not in memory needs a name.
            Pandas objects must have the index of ``X``.
        sample_weight : array or column name, optional
        cluster : array or column name, optional
            Identifies rows that belong together, such as the rows of one customer: held-out rows are whole clusters, and
            standard errors of the gain are those of independent clusters. It is not a feature.
        sampling : mapping, optional
            Shares of the rows with outcome 1 and 0 that were kept in ``X``, ``{"negative": 0.1}``: as in `trueup.audit`,
            weights are divided by them, and the corrected scores are those of the rows before the sampling. The rows of a
            `Validation` have weights of their own.

        Returns
        -------
        self
        """
        if y is None and self.needs_outcome:
            raise ArgumentError("fit needs the outcome", hint='name its column, as fit(frame, "clicked")', parameter="y")
        X = tensor_to_array(X)
        prediction = self._prediction_role()
        if prediction is None and self._holds_classes(X):
            prediction = tuple(range(X.shape[1]))
        roles = {
            "outcome": y, "prediction": prediction, "weight": sample_weight, "features": self.features,
            "task": self._task(), "categorical": self.categorical, "unlabelled": self.unlabelled, "classes": self.classes,
            "exclude": self.exclude, "logits": self.logits,
        }  # fmt: skip
        if self._check_engine(X) is None:
            self.fit_table(read(X, cluster=cluster, sampling=sampling, check_columns=True, **roles))
            outcome = np.asarray(y)
            self._outcome_kind = outcome.dtype.kind if outcome.ndim else "O"  # of a column by name, classes are texts
            return self
        reject_sampling(sampling)
        with open_partitions(X, cluster=cluster, **roles) as partitions:
            self._fit_partitioned(partitions)
        return self

    def fit_table(self, table: Table, progress: Any = None) -> Calibrator:
        """Fit on a Table, as `fit` does on a frame; ``progress(done, most)`` may be called with the number of steps."""
        names = {feature.name for feature in table.schema.features}
        if used := [str(name) for name in as_tuple(self.exclude) if str(name) in names]:
            raise ColumnError(f"column {used[0]!r} is a feature of the table and in exclude", "read the table without it")
        if table.sampling is not None and table.weight is not None:  # integers such as 1 / 0.1 are no row counts
            table = replace(table, weight=table.weight / table.weight.mean())
        if table.cluster is None and table.outcome is not None:
            warn_of_shared_features(table, stacklevel=4)
        result = self._fit_map(table, progress)
        self._set_model(table, result, len(table))
        if result.on_success is not None:
            result.on_success()
        return self

    def _set_model(self, table: Table, result: FitResult, rows: int) -> None:
        """Set the fitted attributes from ``result``; ``table`` has the ``rows`` training rows, or a sample of them."""
        parameters = self._json_parameters()
        fit: dict[str, Any] = {} if table.sampling is None else {"sampling": table.sampling._asdict()}
        fit |= {"unused": list(table.unused)} if table.unused else {}
        parameters |= {"fit": fit} if fit else {}
        about = FitRecord(type(self).__name__, parameters, rows, date_of_fit(), version("trueup"))
        fitted, after = result.map, result.after
        if after is None and fitted.changes:
            after = fitted.apply_table(table, Workers(self.threads))
        if after is None:
            explanation = summarise_changes(table, table.prediction, table.prediction)
        else:
            explanation = self._explain_change(table, fitted, after)
        if table.excluded and table.outcome is not None:
            before = self._base_scores(table, fitted)
            reported = report_excluded(table, before, before if after is None else after)
            explanation = replace(explanation, excluded=reported)
        schema = table.schema if table.cluster is None else replace(table.schema, cluster=None)  # not needed to predict
        self.model_ = Model(schema, fitted, result.history, explanation, about)
        self.history_ = result.history
        held = None if table.schema.task == "regression" else result.held_out
        self.held_out_ = None if held is None else held.scored
        if self.held_out_ is not None and self.held_out_.p.ndim == 1 and result.history.is_cross_fit:
            remember_cross_fitted(self.held_out_.p)
        self.held_out_rows_ = None if held is None else held.input_rows(table)
        self.held_out_before_ = None if held is None else held.before
        self.held_out_cluster_ = None if held is None else held.cluster
        names = [*(feature.name for feature in table.schema.features), *table.schema.prediction]
        self.n_features_in_ = len(names)
        self.feature_names_in_ = np.array(names, object)
        if result.importances is not None:
            self.feature_importances_ = result.importances
        elif hasattr(self, "feature_importances_"):  # of a fit before
            del self.feature_importances_

    def _check_engine(self, X: Any) -> str | None:
        """Return what holds X: "scan", "spark", "dask", or None for memory; raise if this calibrator does not take it."""
        found = engine_of(X)
        check_choice("engine", self.engine, ENGINES)
        if self.engine in ("spark", "dask"):
            require_engine(self.engine)
        if self.engine not in ("auto", "local" if found in (None, "scan") else found):
            raise ArgumentError(
                f"engine={self.engine!r} does not take a {type(X).__module__}.{type(X).__qualname__}",
                hint="leave {engine}: it depends on the type of the frame",
                parameter="engine",
                settings={"engine": "auto"},
            )
        if found is not None and type(self)._fit_partitioned is Calibrator._fit_partitioned:
            where = "files that need not fit in memory" if found == "scan" else f"a {found.capitalize()} DataFrame"
            raise ArgumentError(
                f"{type(self).__name__} takes rows in memory; got {where}",
                hint="trueup.MCGrad fits them where they are; or pass a sample of them, in memory",
            )
        return found

    def _fit_partitioned(self, partitions: PartitionedTable) -> None:
        """Fit on rows in partitions (files, Spark, Dask); only calibrators that can do so override it."""
        raise NotImplementedError

    def predict(self, X: Any, *, on_error: OnError = "raise") -> FloatArray:
        """Return the corrected predictions of a frame, shape (n,), or (n, k) for k classes.

        With ``on_error="nan"``, rows without a valid score are predicted as NaN, and a warning counts them.
        """
        scores: FloatArray = self._fitted().predict(X, on_error=on_error)
        return scores

    @available_if(lambda calibrator: calibrator._task() != "regression")  # type: ignore[untyped-decorator]
    def predict_proba(self, X: Any) -> FloatArray:
        """Return the corrected probability of each class, shape (n, k), in the order of ``classes_``.

        scikit-learn's scorers use it, such as ``scoring="neg_log_loss"``. For one probability p the columns are 1 - p and
        p. Real outcomes have no such method.
        """
        p = self.predict(X)
        return np.column_stack([1 - p, p]) if p.ndim == 1 else p[:, np.argsort(self._class_values())]

    @property
    def classes_(self) -> AnyArray:
        """The values of the outcome, ascending: 0 and 1, or the classes, as numbers if the outcome was numbers."""
        return np.sort(self._class_values())

    def _class_values(self) -> AnyArray:
        """Return the values of the outcome in the order of the predictions; raise AttributeError for real outcomes."""
        schema = self._fitted().schema
        if schema.task == "regression":
            raise AttributeError("real outcomes have no classes")
        if schema.task == "binary":
            return np.array([0, 1])
        kind = getattr(self, "_outcome_kind", "O")
        if kind == "b":
            return np.array([name == "true" for name in schema.classes])
        try:
            return np.array(schema.classes, {"i": np.int64, "u": np.int64, "f": np.float64}.get(kind, object))
        except ValueError:  # a class that is not a number, and did not occur
            return np.array(schema.classes, object)

    def __sklearn_tags__(self) -> Any:
        """Return the tags of a classifier with ``predict_proba``, or of a regressor for real outcomes."""
        tags = super().__sklearn_tags__()
        if self._task() == "regression":
            tags.estimator_type, tags.regressor_tags = "regressor", RegressorTags()
        else:
            tags.estimator_type, tags.classifier_tags = "classifier", ClassifierTags()
        tags.target_tags.required = self.needs_outcome
        return tags

    def staged_predict(self, X: Any, *, on_error: OnError = "raise") -> Iterator[FloatArray]:
        """Yield the predictions of a frame after 0, 1, 2, ... rounds, from the scores before the correction on."""
        return self._fitted().staged_predict(X, on_error=on_error)

    def predict_one(self, row: Mapping[str, Any], *, strict: bool = False) -> float | FloatArray:
        """Return the corrected prediction of one ``row``, column names to values; an absent feature counts as missing.

        If a feature is absent, or if ``strict``, a key that is not a column of the fit is an error: it may be misspelled.
        """
        return self._fitted().predict_one(row, strict=strict)

    @overload
    def explain(self, row: None = None, *, details: bool = False) -> Explanation: ...

    @overload
    def explain(self, row: Any, *, details: bool = False) -> RowExplanation: ...

    def explain(self, row: Mapping[str, Any] | None = None, *, details: bool = False) -> Explanation | RowExplanation:
        """Return the segments that were corrected; or, for one ``row`` (column names to values), what changed its score.

        For a row these are the effects of its features on the prediction, the five largest and the sum of the rest; with
        ``details`` every condition that it meets. See `trueup.Model.explain`.
        """
        return self._fitted().explain(row, details=details)

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return minus the mean log loss (squared error for real outcomes) of corrected predictions: larger is better.

        Grid search and cross-validation use it unless another scoring is named.
        """
        model = self._fitted()
        table = self._read_labelled(X, y, sample_weight, model.schema)
        loss = task_loss(model.schema.task)
        losses = loss.per_row(table.y, loss.apply_link(model.predict_table(table)))
        return -float(np.average(losses, weights=table.weight))

    def _prediction_role(self) -> Any:
        return self.prediction

    def _holds_classes(self, X: Any) -> bool:
        """Return whether all columns of an array are scores of classes, though none is named as the prediction.

        They are if this calibrator reads no features; else if they are ``logits``, or if every row adds up to 1.
        """
        if not isinstance(X, np.ndarray) or X.ndim != 2 or X.shape[1] < 2 or self._task() == "regression":
            return False
        if type(self).features == ():
            return True
        if self.features is not None and len(as_tuple(self.features)):
            return False
        if self.logits or X.dtype.kind != "f":
            return bool(self.logits)
        return bool((np.abs(X.sum(axis=1) - 1) <= SUM_TOLERANCE).all() and X.min(initial=0.0) >= 0)

    def _task(self) -> str:
        return self.task

    def _read_labelled(self, X: Any, y: Any, sample_weight: Any, schema: Schema, cluster: Any = None) -> Table:
        """Read rows ``X`` with outcomes ``y`` as a Table, with categories coded by the levels of ``schema``."""
        like = read_like(X, schema)
        table = read(
            X, outcome=y, prediction=like.prediction if schema.prediction else NO_PREDICTION, weight=sample_weight,
            features=[], task=self._task(), classes=schema.classes or None, unlabelled=self.unlabelled, cluster=cluster,
        )  # fmt: skip
        kept = slice(None) if table.kept is None else table.kept
        return replace(table, schema=schema, columns={name: column[kept] for name, column in like.columns.items()})

    def _explain_change(self, table: Table, fitted: Map, after: FloatArray) -> Explanation:
        return find_corrections(
            table, fitted.feature_sets(), self._base_scores(table, fitted), after, int(self.random_state)
        )

    def _base_scores(self, table: Table, fitted: Map) -> FloatArray:  # noqa: ARG002
        """Return the scores before the correction: the prediction, or what a subclass starts from without a prediction."""
        return table.prediction

    def _split_rows(self, table: Table) -> tuple[Table, list[Split]]:
        """Split rows by ``stopping``; return the table, with any rows of a `Validation` appended, and the splits."""
        stopping.check_row_count(table)
        if self.stopping is None:
            return table, stopping.hold_out_last(len(table))
        if not isinstance(self.stopping, Validation):
            return table, stopping.split_rows(table, self.stopping, int(self.random_state))
        given = self.stopping
        held = self._read_labelled(given.data, given.outcome, given.sample_weight, table.schema, given.cluster)
        refuse_training_rows(table, held)
        warn_if_trained_on(table, held, task_loss(table.schema.task))
        return stopping.append_rows(table, held), stopping.hold_out_last(len(table), len(held))

    def _check_single_prediction(self, table: Table) -> None:
        if table.schema.task == "multiclass":
            raise ArgumentError(
                f"{type(self).__name__} corrects one prediction column; got {len(table.schema.prediction)}, one per class",
                hint="tu.MCGrad corrects several classes together; or correct the score of one class at a time",
                parameter="prediction",
            )

    def _check_stopping(self) -> None:
        if self.stopping is not None and not isinstance(self.stopping, (Holdout, CrossValidation, Validation)):
            raise ArgumentError(
                f"stopping must be a CrossValidation, a Holdout, a Validation or None; got {self.stopping!r}",
                hint="write it as stopping=tu.CrossValidation(5)",
                parameter="stopping",
            )
        if not self.uses_score:
            refuse_score(self.stopping, type(self).__name__, self.score_refusal)

    def _rule_score(self, table: Table, rows: IntArray) -> RuleScore | None:
        """Return the score of the stopping rule on held-out rows, None if it has none."""
        return RuleScore.of(self.stopping, table, rows, int(self.random_state))

    @abstractmethod
    def _fit_map(self, table: Table, progress: Any) -> FitResult:
        """Validate all parameters and fit the map to the rows of ``table``; ``progress`` is that of `fit_table`."""

    def _fitted(self) -> Model:
        try:
            model: Model = self.model_
        except AttributeError:
            raise NotFittedError(
                f"this {type(self).__name__} is not fitted yet", hint="call fit(frame, outcome) first"
            ) from None
        return model

    def _json_parameters(self) -> dict[str, Any]:
        """Return the parameters as JSON values, except for the number of threads, which does not affect the model."""
        names = [name for name in inspect.signature(type(self)).parameters if name != "threads"]
        return {name: _to_json(getattr(self, name)) for name in names}


@dataclass(eq=False, repr=False)
class FeatureCalibrator(Calibrator):
    """Base class of calibrators that use features, with the parameters that name the columns of X and their roles."""

    prediction: Any = None
    features: Any = None
    _: KW_ONLY
    exclude: Any = ()
    task: str = "auto"
    categorical: Any = ()
    unlabelled: str = "error"


@dataclass(eq=False, repr=False, kw_only=True)
class SegmentCalibrator(FeatureCalibrator):
    """Base class of MCGrad, DepthTwo and LSBoost, with shared parameters: the stopping rule, the seed and threads."""

    stopping: Stopping = CrossValidation()  # noqa: RUF009  (a frozen value)
    classes = None
    random_state: int = 0
    threads: int | None = None


def _to_json(value: Any) -> Any:
    """Return the value of a parameter as JSON; an object without a JSON form becomes a text."""
    if isinstance(value, Validation):
        return {"Validation": {"patience": value.patience} | ({"score": score_name(value.score)} if value.score else {})}
    if isinstance(value, (Holdout, CrossValidation)):
        fields = {name: own for name, own in vars(value).items() if name != "score"}
        return {type(value).__name__: fields | ({} if value.score is None else {"score": score_name(value.score)})}
    if is_dataclass(value) and not isinstance(value, (type, Calibrator)):
        return {type(value).__name__: asdict(value)}
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and np.isfinite(value)):
        return value
    if isinstance(value, Calibrator) and value.threads is not None:
        value = copy.copy(value)
        value.threads = None
    if isinstance(value, (set, frozenset)):
        return sorted((_to_json(item) for item in value), key=str)  # the order of a set differs from run to run
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_to_json(item) for item in value]
    return str(value)
