"""CalibratedClassifier and CalibratedRegressor: an estimator and its calibrator as one scikit-learn estimator."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self, overload

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils import assert_all_finite, check_array, column_or_1d, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, _raise_for_params, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.parallel import Parallel, delayed
from sklearn.utils.validation import _check_method_params, check_is_fitted, has_fit_parameter, validate_data

from trueup._validate import check_choice
from trueup.calibrators import crossfit
from trueup.calibrators.base import Calibrator
from trueup.calibrators.crossfit import MarginCurve, ScoreReader
from trueup.calibrators.curves.estimators import Platt
from trueup.calibrators.mcgrad.estimator import MCGrad
from trueup.calibrators.stopping import MIN_ROWS, scale_weights
from trueup.data.columns import as_tuple, check_aligned
from trueup.errors import (
    ArgumentError,
    DataError,
    DroppedColumnWarning,
    HardPredictionWarning,
    IdentifierWarning,
    TrueupWarning,
)
from trueup.kernels.trees import MIN_PROBABILITY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.explain import Explanation
    from trueup.calibrators.row_explanation import RowExplanation
    from trueup.data.table import Task


# Fewer rows contain next to no information about segments. In simulations with 50 to 200 rows, boosting hardly ever kept a
# correction (a few fits changed slightly), and Platt scaling gained 0.01 to 0.08 of log loss on overconfident classifiers,
# and lost at most 0.02 on calibrated ones; from 300 rows on boosting gained more, except for random forests.
MIN_MCGRAD_ROWS = 300


@dataclass(eq=False, repr=False)
class CalibratedEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of the calibrated classifier and regressor: cross-fitting, metadata routing, and the fit of the calibrator."""

    _default_estimator: ClassVar[Any]

    estimator: Any = None
    calibrator: Any = None
    _: KW_ONLY
    cv: Any = 5
    features: Any = None
    exclude: Any = ()
    n_jobs: int | None = None

    def fit(self, X: Any, y: Any, sample_weight: Any = None, *, cluster: Any = None, **params: Any) -> Self:
        """Fit the estimator and its calibrator.

        Parameters
        ----------
        X : frame, array, sparse matrix, or whatever the estimator accepts
        y : array
            Labels of any kind for a classifier, numbers for a regressor.
        sample_weight : array, optional
        cluster : array, optional
            Identifies rows that belong together, such as the rows of one customer: folds keep them together. A splitter
            in ``cv`` receives it as ``groups``, and must not divide a cluster.
        **params
            Routed to the estimator and the splitter, if metadata routing is enabled.

        Returns
        -------
        self
        """
        X, y, weight = self._check_data(X, y, sample_weight, params)
        y, outcome, reader = self._read_outcome(y, weight)
        check_aligned({"X": X, "cluster": cluster})
        clusters = None if cluster is None else crossfit.read_clusters(cluster, len(y))
        fitted, rows, scores = self._cross_fit(X, y, weight, reader, params, clusters)
        curve, code = None, outcome[rows]
        # A logistic curve for margins, and for probabilities of 0 of what then occurred.
        if reader.classes is not None and (
            reader.method == "decision_function" or (scores[np.arange(len(scores)), code] <= MIN_PROBABILITY).any()
        ):
            w = None if weight is None else weight[rows]
            curve = MarginCurve(_margins(scores), code, w, len(reader.classes))
            scores = curve(_margins(scores))
        self._fit_calibrator(X, rows, scores, outcome, weight, reader, clusters)
        self.estimator_, self._reader_, self._curve_ = fitted, reader, curve
        if self.features is None and getattr(self.calibrator, "features", None) is None:
            self._warn_of_dropped_columns(crossfit.take_rows(X, rows, len(outcome)))
        return self

    @overload
    def explain(self, row: None = None, *, details: bool = False) -> Explanation: ...

    @overload
    def explain(self, row: Any, *, details: bool = False) -> RowExplanation: ...

    def explain(self, row: Mapping[str, Any] | None = None, *, details: bool = False) -> Explanation | RowExplanation:
        """Return the segments that were corrected; or, for one ``row`` (column names to values), what changed its score.

        For a row these are the effects of its features; with ``details`` every condition that it meets.
        """
        check_is_fitted(self)
        return self.calibrator_.explain(row, details=details)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return the routing of metadata: to the estimator's ``fit`` and, if ``cv`` is a splitter, to its ``split``."""
        to_fit = MethodMapping().add(caller="fit", callee="fit")
        router = MetadataRouter(owner=type(self).__name__).add_self_request(self)
        router.add(estimator=self._estimator(), method_mapping=to_fit)
        if hasattr(self.cv, "get_metadata_routing"):
            router.add(splitter=self.cv, method_mapping=MethodMapping().add(caller="fit", callee="split"))
        return router

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        own, base = tags.input_tags, get_tags(self._estimator()).input_tags
        for name in ("one_d_array", "two_d_array", "sparse", "categorical", "string", "dict", "positive_only", "allow_nan"):
            setattr(own, name, getattr(base, name))
        return tags

    def _estimator(self) -> Any:
        return self._default_estimator() if self.estimator is None else self.estimator

    def _check_data(
        self, X: Any, y: Any, sample_weight: Any, params: Mapping[str, Any]
    ) -> tuple[Any, AnyArray, FloatArray | None]:
        """Validate all arguments as scikit-learn does; return X unchanged, y as an array, and the weights or None."""
        _raise_for_params(params, self, "fit")
        check_aligned({"X": X, "y": y, "sample_weight": sample_weight})
        crossfit.check_cv_parameter(self.cv)
        if isinstance(self.cv, str):
            if self.estimator is None:
                raise ArgumentError('cv="prefit" needs a fitted estimator', hint="pass it as estimator=", parameter="cv")
            try:
                check_is_fitted(self.estimator)
            except (ValueError, TypeError) as error:
                raise ArgumentError(
                    f'cv="prefit" needs a fitted estimator; this {type(self.estimator).__name__} is not fitted',
                    hint="fit it on other rows first, or keep {cv}",
                    parameter="cv",
                    settings={"cv": 5},
                ) from error
        validate_data(self, X, y, skip_check_array=True)
        labels = column_or_1d(y, warn=True)
        X, labels = indexable(X, labels)
        _check_rows(len(labels))
        if sample_weight is None:
            return X, labels, None
        weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
        if weight.shape != (len(labels),):
            raise DataError(
                f"sample_weight has shape {weight.shape} for {len(labels):,} rows",
                hint="pass one weight per row",
                parameter="sample_weight",
            )
        if (weight < 0).any() or not (weight > 0).any():
            problem = "must not be negative" if (weight < 0).any() else "are all zero"
            raise DataError(f"the sample weights {problem}", hint="use weight 0 for rows that should not count")
        return X, labels, weight

    def _cross_fit(
        self, X: Any, y: AnyArray, weight: FloatArray | None, reader: ScoreReader, params: Mapping[str, Any],
        clusters: IntArray | None,
    ) -> tuple[Any, IntArray, FloatArray]:  # fmt: skip
        """Return the estimator fitted on all rows, the indices of the rows with out-of-fold scores, and these scores."""
        estimator = self._estimator()
        rows = np.arange(len(y)) if weight is None else np.flatnonzero(weight > 0)
        _check_rows(len(rows))
        if isinstance(self.cv, str):
            if params:
                process_routing(self, "fit", **params)  # raises for metadata that was not requested
            return estimator, rows, reader.read(estimator, crossfit.take_rows(X, rows, len(y)))
        given: dict[str, Any] = dict(params) if weight is None else {**params, "sample_weight": weight}
        fit_params, split_params = given, dict[str, Any]()
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **given)
            fit_params = routed["estimator"]["fit"]
            split_params = routed.get("splitter", {}).get("split", {}) if given else {}
        elif weight is not None and not has_fit_parameter(estimator, "sample_weight"):
            warnings.warn(
                f"{type(estimator).__name__} does not accept sample_weight: only the calibrator uses the weights\n"
                "hint: a pipeline accepts them if scikit-learn's metadata routing is enabled",
                TrueupWarning,
                stacklevel=3,
            )
            fit_params = {}
        strata = np.zeros(len(rows))
        if reader.classes is not None:
            strata += np.searchsorted(reader.classes, y[rows])
        folds = crossfit.divide_rows(self.cv, X, y, strata, rows, split_params, clusters)
        scores = Parallel(n_jobs=self.n_jobs)(
            delayed(crossfit.fit_and_predict)(clone(estimator), X, y, fold, reader, fit_params) for fold in folds
        )
        predicted = np.concatenate([test for _, test in folds])
        order = np.argsort(predicted)
        # The estimator is fitted after its clones: the first of them raises for what it does not accept.
        fitted = clone(estimator).fit(
            crossfit.take_rows(X, rows, len(y)), y[rows], **_check_method_params(X, fit_params, rows)
        )
        return fitted, predicted[order], np.concatenate(scores)[order]

    def _fit_calibrator(
        self, X: Any, rows: IntArray, scores: FloatArray, outcome: AnyArray, weight: FloatArray | None, reader: ScoreReader,
        clusters: IntArray | None,
    ) -> None:  # fmt: skip
        """Fit the calibrator to the out-of-fold ``scores`` of ``rows``; ``outcome`` has class indices for a classifier."""
        labels = [] if reader.classes is None else [str(label) for label in reader.classes.tolist()]
        task: Task = "regression" if reader.classes is None else "binary" if len(labels) == 2 else "multiclass"
        several, scores = task == "multiclass", scores[:, 1:] if task == "binary" else scores
        X, code, w = crossfit.take_rows(X, rows, len(outcome)), outcome[rows], None if weight is None else weight[rows]
        calibrator = self._make_calibrator(task, len(rows), w)
        own = calibrator.get_params(deep=False)
        # A curve uses the score alone, a curve per group only the columns that form groups.
        features = calibrator.features if self.features is None else self.features
        names = [f"prediction of {label}" for label in labels] if several else ["prediction"]
        exclude = self.exclude if _names_any(self.exclude) else own["exclude"]
        columns = crossfit.choose_columns(X, code.astype(np.float64), task, features, names, exclude)
        names = list(columns.prediction)
        roles: dict[str, Any] = {"prediction": names if several else names[0], "features": list(columns.features)}
        roles["exclude"] = list(columns.excluded)
        if task != "binary":
            roles |= {"classes": labels} if several else {"task": task}
        if "categorical" in own:
            roles["categorical"] = crossfit.find_columns(own["categorical"], X, "categorical")
        calibrator.set_params(**{name: value for name, value in roles.items() if name in own})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HardPredictionWarning)  # the user did not choose these predictions
            if features is None:
                warnings.simplefilter("ignore", IdentifierWarning)  # nor these columns
            values = np.array(labels, object)[code] if several else code.astype(np.float64)
            options = {} if clusters is None else {"cluster": clusters[rows]}
            calibrator.fit(columns.extract(X, scores, excluded=True), values, sample_weight=w, **options)
        self.calibrator_, self._columns_ = calibrator, columns
        self.held_out_, self.held_out_before_ = calibrator.held_out_, calibrator.held_out_before_
        self.held_out_cluster_ = calibrator.held_out_cluster_

    def _make_calibrator(self, task: Task, rows: int, weight: FloatArray | None) -> Calibrator:
        """Return the unfitted calibrator: a clone of the given one, or the default for this number of rows."""
        given = self.calibrator
        if given is None:
            counted = rows if weight is None else float(np.asarray(scale_weights(weight, rows)).sum())
            given = MCGrad() if counted >= MIN_MCGRAD_ROWS else Platt()
        if not isinstance(given, Calibrator):
            kind = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
            raise ArgumentError(
                f"calibrator must be a calibrator of trueup; got {kind}",
                hint="write it as calibrator=tu.MCGrad()",
                parameter="calibrator",
            )
        own, named = given.get_params(deep=False), self.features is not None
        problem: tuple[str, str, str] | None = None
        if own.get("prediction") is not None:
            text = f"must not name a prediction column; got {own['prediction']!r}"
            problem = "calibrator", text, "leave prediction out: the estimator makes the predictions"
        elif own.get("logits"):
            problem = "calibrator", "must not have logits=True", "leave logits out: the estimator makes probabilities"
        elif own.get("task", "auto") not in ("auto", task):
            problem = "calibrator", f"must not have task {own['task']!r} with this estimator", 'leave task="auto"'
        elif _names_any(self.exclude) and _names_any(own["exclude"]):
            problem = "exclude", "is set twice, here and in the calibrator", "set it in one place"
        elif named and own.get("features") is not None:
            problem = "features", "are named twice, here and in the calibrator", "name them in one place"
        elif named and self.calibrator is not None and not {"features", "by"} & set(own):
            problem = "features", f"are not used by {type(given).__name__}", "leave features out"
        if problem is not None:
            parameter, text, hint = problem
            raise ArgumentError(f"{parameter} {text}", hint, parameter=parameter)
        return clone(given)  # type: ignore[no-any-return]

    def _correct(self, X: Any, scores: FloatArray) -> FloatArray:
        return self.calibrator_.predict(self._columns_.extract(X, scores)).reshape(len(scores), -1)

    def _read_scores(self, X: Any) -> tuple[Any, FloatArray]:
        """Validate X; return it and its uncorrected scores, mapped to probabilities by the logistic curve, if any."""
        check_is_fitted(self)
        if getattr(X, "ndim", 2) != 1:  # for one dimension the estimator has the better error message
            validate_data(self, X, reset=False, skip_check_array=True)
        scores = self._reader_.read(self.estimator_, X)
        return indexable(X)[0], scores if self._curve_ is None else self._curve_(_margins(scores))

    def _warn_of_dropped_columns(self, X: Any) -> None:
        """Warn if the correction uses columns that nobody named and that the base estimator does not use."""
        if not self._columns_.features or not self.calibrator_.model_.map.changes:
            return

        def predict(rows: Any) -> FloatArray:
            scores = self._reader_.read(self.estimator_, rows)
            return scores if self._curve_ is None else self._curve_(_margins(scores))

        def correct(rows: Any, scores: FloatArray) -> FloatArray:
            return self._correct(rows, scores[:, 1:] if scores.shape[1] == 2 else scores)

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dropped = crossfit.find_dropped_columns(X, self._columns_, predict, correct)
        if dropped:
            named = ", ".join(map(repr, dropped[:6])) + (f" and {len(dropped) - 6} more" if len(dropped) > 6 else "")
            one = len(dropped) == 1
            warnings.warn(
                f"the correction uses {'a column' if one else 'columns'} that the predictions of the estimator do not "
                f"depend on: {named}\n"
                f"hint: if {'it was' if one else 'they were'} dropped on purpose, pass exclude={dropped[:6]!r}; if the "
                f"correction may use {'it' if one else 'them'}, name all its columns with features=",
                DroppedColumnWarning,
                stacklevel=3,
            )

    @abstractmethod
    def _read_outcome(self, y: AnyArray, weight: FloatArray | None) -> tuple[AnyArray, AnyArray, ScoreReader]:
        """Validate y; return y, its values as numbers (class indices for a classifier), and the reader of scores."""


@dataclass(eq=False, repr=False)
class CalibratedClassifier(ClassifierMixin, CalibratedEstimator):  # type: ignore[misc]
    """Fit a classifier and correct its probabilities on every segment, as one scikit-learn classifier.

    The calibrator is fitted on out-of-fold predictions: each fold is predicted by a clone that was fitted on the others.
    The classifier that predicts is then fitted on all rows.

    Parameters
    ----------
    estimator : classifier, optional
        Anything with ``fit`` and ``predict_proba`` or ``decision_function``, pipelines included;
        ``LogisticRegression()`` by default. It receives X unchanged.
    calibrator : trueup calibrator, optional
        ``MCGrad()`` by default, ``Platt()`` for fewer than 300 rows. Its ``prediction`` is left out; its ``features`` and
        ``categorical`` name columns of X. Columns of an array are called x0, x1, ...
    cv : int, splitter, iterable of splits, or "prefit"
        The folds. A number assigns rows by their content, stratified by class, whatever their order; equal rows (up to
        ten) stay together. "prefit" uses a classifier that is already fitted, and fits the calibrator alone to its
        predictions of X, which must not be its training rows. If such a model is cloned, as by a grid search, wrap the
        classifier in scikit-learn's ``FrozenEstimator``.
    features : column names or positions, optional
        The columns of X that the calibrator may use. By default all that it can read: numbers, flags, texts, categories
        and dates. Columns of a sparse matrix are made dense; if it has more than 100, they must be named (``[]`` for none).
    exclude : column names or positions
        Columns of X that the correction must not use, such as protected attributes; the estimator receives them. If the
        correction uses columns that nobody named, and that the estimator does not use (as those that a pipeline drops),
        ``fit`` warns.
    method : {"auto", "predict_proba", "decision_function"}
        The method of the classifier; "auto" is the first that it has. Margins become probabilities by a logistic curve,
        fitted to the same predictions as the calibrator. If an outcome occurred that had a probability of 0, as with trees
        and nearest neighbours, probabilities are mapped by such a curve too: `MCGrad` can hardly correct 0.
    n_jobs : int, optional
        Processes for the folds, as in scikit-learn.

    Attributes
    ----------
    estimator_ : classifier
        Fitted on all rows; with "prefit" the given one.
    calibrator_ : calibrator
        Fitted on the out-of-fold predictions. ``tu.save`` accepts it.
    held_out_, held_out_before_
        Held-out rows of the calibrator, as in `trueup.MCGrad`; outcome 1 is the second of two classes.
    classes_ : ndarray
    n_features_in_ : int
    feature_names_in_ : ndarray
        If X is a frame with text names.

    Notes
    -----
    There is one classifier and one calibrator, rather than a pair per fold: the model that predicts is trained on all rows,
    is as fast and as large as without calibration, can be inspected, and has one correction to explain and to ship. The
    price is that the calibrator is fitted on predictions of classifiers trained on fewer rows, four fifths of them with
    five folds. A class that the training rows of a fold lack has probability 0 there.

    Rows of weight 0 are left out first. Weights go to the calibrator, and to the estimator if its ``fit`` accepts them
    (with scikit-learn's metadata routing, if it requests them). A row of weight 2 is equivalent to two equal rows if it is
    so for estimator and calibrator; with boosted trees approximately, as folds depend on the digits of predictions.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> from sklearn.naive_bayes import GaussianNB
    >>> random = np.random.default_rng(0)
    >>> X = random.normal(size=(2_000, 2)).repeat(2, axis=1)  # each feature twice: naive Bayes is overconfident
    >>> y = np.where(random.random(2_000) < 1 / (1 + np.exp(-X.sum(axis=1) / 2)), "yes", "no")
    >>> model = tu.CalibratedClassifier(GaussianNB(), tu.MCGrad(), cv=5).fit(X, y)
    >>> model.classes_.tolist(), model.predict_proba(X).shape
    (['no', 'yes'], (2000, 2))
    >>> model.calibrator_.history_.loss_after < model.calibrator_.history_.loss_before
    True
    """

    _default_estimator = LogisticRegression

    _: KW_ONLY
    method: str = "auto"

    @property
    def classes_(self) -> Any:
        """The classes, ascending."""
        return self._reader_.classes

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the corrected probability of each class, shape (n, k)."""
        X, scores = self._read_scores(X)
        if scores.shape[1] > 2:
            return self._correct(X, scores)
        p = self._correct(X, scores[:, 1:])
        return np.column_stack([1 - p, p])

    def predict_uncorrected(self, X: Any) -> FloatArray:
        """Return the uncorrected probabilities, shape (n, k): the predictions that ``calibrator_`` corrects."""
        return self._read_scores(X)[1]

    def predict(self, X: Any) -> AnyArray:
        """Return the class of the highest corrected probability of each row."""
        p = self.predict_proba(X)
        labels: AnyArray = self.classes_[p.argmax(axis=1)]
        return labels

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        base = get_tags(self._estimator()).classifier_tags
        if base is not None:
            tags.classifier_tags.multi_class = base.multi_class
            tags.classifier_tags.poor_score = base.poor_score
        return tags

    def _read_outcome(self, y: AnyArray, weight: FloatArray | None) -> tuple[AnyArray, IntArray, ScoreReader]:
        assert_all_finite(y, input_name="y")
        check_classification_targets(y)
        classes = self._classes(y, weight)
        code = np.minimum(np.searchsorted(classes, y), len(classes) - 1)  # any class for rows of weight 0
        return y, code, ScoreReader(self._method(), classes)

    def _method(self) -> str:
        estimator = self._estimator()
        check_choice("method", self.method, ("auto", "predict_proba", "decision_function"))
        methods = ("predict_proba", "decision_function") if self.method == "auto" else (self.method,)
        for name in methods:
            if hasattr(estimator, name):
                return name
        raise ArgumentError(
            f"estimator must have a method {' or '.join(methods)}; {type(estimator).__name__} has none",
            hint="use a classifier that returns probabilities or margins",
            parameter="estimator",
        )

    def _classes(self, labels: AnyArray, weight: FloatArray | None) -> AnyArray:
        present = np.unique(labels if weight is None else labels[weight > 0])
        if len(present) < 2:
            raise DataError(f"y has one class only: {present[0]!r}", hint="pass rows of two or more classes", parameter="y")
        if not isinstance(self.cv, str):
            return present
        known = np.unique(self.estimator.classes_)  # ascending, whatever their order
        unknown = [label for label in present.tolist() if label not in known.tolist()]
        if unknown:
            raise DataError(
                f"y has a class that the fitted estimator does not know: {unknown[0]!r}",
                hint=f"it knows {', '.join(map(repr, known.tolist()[:12]))}",
                parameter="y",
            )
        return known


class CalibratedRegressor(RegressorMixin, CalibratedEstimator):  # type: ignore[misc]
    """Fit a regressor and correct its forecasts on every segment, as one scikit-learn regressor.

    As `trueup.CalibratedClassifier`, for real outcomes: ``predict`` returns the corrected forecast.

    Parameters
    ----------
    estimator : regressor, optional
        ``LinearRegression()`` by default.
    calibrator : trueup calibrator, optional
        ``MCGrad()`` by default, ``Platt()`` for fewer than 300 rows; its task is set to "regression".
    cv : int, splitter, iterable of splits, or "prefit"
    features : column names or positions, optional
    exclude : column names or positions
    n_jobs : int, optional
        As for the classifier.

    Attributes
    ----------
    estimator_ : regressor
    calibrator_ : calibrator
    n_features_in_ : int
    feature_names_in_ : ndarray

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> random = np.random.default_rng(0)
    >>> X = random.normal(size=(1_000, 2))
    >>> y = X[:, 0] + 2 * (X[:, 1] > 1) + random.normal(size=1_000)
    >>> plain = tu.CalibratedRegressor().fit(X, y)
    >>> plain.score(X, y) > plain.estimator_.score(X, y)
    True
    """

    _default_estimator = LinearRegression

    def predict(self, X: Any) -> FloatArray:
        """Return the corrected forecast of each row, shape (n,)."""
        X, scores = self._read_scores(X)
        return self._correct(X, scores)[:, 0]

    def _read_outcome(self, y: AnyArray, weight: FloatArray | None) -> tuple[AnyArray, AnyArray, ScoreReader]:  # noqa: ARG002
        outcome = check_array(y, ensure_2d=False, dtype=np.float64, input_name="y")
        return outcome, outcome, ScoreReader("predict")


def _names_any(names: Any) -> bool:
    return names is not None and len(as_tuple(names)) > 0


def _margins(scores: FloatArray) -> FloatArray:
    """Return the score columns that a `MarginCurve` takes: the last one for two classes, all for more."""
    return scores[:, -1:] if scores.shape[1] <= 2 else scores


def _check_rows(rows: int) -> None:
    if rows < MIN_ROWS:
        raise DataError(
            f"{rows} sample{'' if rows == 1 else 's'} (rows of positive weight) are too few to calibrate on",
            hint=f"pass at least {MIN_ROWS} rows",
        )
