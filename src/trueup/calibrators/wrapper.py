"""CalibratedClassifier and CalibratedRegressor: an estimator and its calibrator as one scikit-learn estimator."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin, clone
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils import check_array, column_or_1d, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, _raise_for_params, process_routing
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, has_fit_parameter, validate_data

from trueup._validate import check_choice
from trueup.calibrators.base import Calibrator
from trueup.calibrators.crossfit import (
    ScoreReader,
    as_list,
    check_cv_parameter,
    choose_columns,
    divide_rows,
    find_column,
    fit_margin_curve,
    predict_out_of_fold,
    take_params,
    take_rows,
)  # fmt: skip
from trueup.calibrators.curves.scaling import Platt
from trueup.calibrators.mcgrad.estimator import MCGrad
from trueup.calibrators.splits import MIN_ROWS, scale_weights
from trueup.errors import ArgumentError, DataError, HardPredictionWarning, IdentifierWarning, TrueupWarning
from trueup.kernels.cascade import MIN_PROBABILITY

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.crossfit import CalibratorColumns, MarginCurve
    from trueup.calibrators.explain import Explanation, RowExplanation
    from trueup.data.schema import Task


# Fewer rows contain next to no information about segments. In simulations with 50 to 200 rows, boosting hardly ever kept a
# correction (a few fits changed slightly), and Platt scaling gained 0.01 to 0.08 of log loss on overconfident classifiers,
# and lost at most 0.02 on calibrated ones; from 300 rows on boosting gained more, except for random forests.
MIN_MCGRAD_ROWS = 300


class CalibratedEstimator(BaseEstimator):  # type: ignore[misc]
    """Base of the calibrated classifier and regressor: cross-fitting, metadata routing, and the fit of the calibrator."""

    estimator: Any
    calibrator: Any
    cv: Any
    features: Any
    n_jobs: int | None

    def explain(self, row: Mapping[str, Any] | None = None) -> Explanation | RowExplanation:
        """Explain what the calibrator corrected; or the change of one row, a mapping of its column names to values."""
        check_is_fitted(self)
        fitted: Calibrator = self.calibrator_
        return fitted.explain(row)

    def get_metadata_routing(self) -> MetadataRouter:
        """Return where metadata goes: to the estimator and, if ``cv`` is a splitter, to that."""
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

    @abstractmethod
    def _estimator(self) -> Any:
        """Return the estimator to fit: the given one, or the default."""

    def _check_data(self, X: Any, y: Any, sample_weight: Any) -> tuple[Any, AnyArray, FloatArray | None]:
        """Validate X, y and weights as scikit-learn does, and leave X unchanged."""
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

    def _check_prefit(self, estimator: Any) -> None:
        if not isinstance(self.cv, str):
            return
        if self.estimator is None:
            raise ArgumentError('cv="prefit" needs a fitted estimator', hint="pass it as estimator=", parameter="cv")
        try:
            check_is_fitted(estimator)
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                f'cv="prefit" needs a fitted estimator; this {type(estimator).__name__} is not fitted',
                hint="fit it on other rows first, or keep {cv}",
                parameter="cv",
                settings={"cv": 5},
            ) from error

    def _cross_fit(
        self,
        X: Any,
        y: AnyArray,
        strata: FloatArray,
        weight: FloatArray | None,
        reader: ScoreReader,
        params: Mapping[str, Any],
    ) -> tuple[Any, IntArray, FloatArray]:
        """Return the estimator fitted on all rows, the rows of the calibrator, and their out-of-fold scores."""
        estimator = self._estimator()
        rows = np.arange(len(y)) if weight is None else np.flatnonzero(weight > 0)
        _check_rows(len(rows))
        if isinstance(self.cv, str):
            if params:
                process_routing(self, "fit", **params)  # raises for metadata that was not requested
            return estimator, rows, reader.read(estimator, take_rows(X, rows, len(y)))
        fit_params, split_params = self._route(weight, params)
        folds = divide_rows(self.cv, X, y, strata[rows], rows, split_params)
        predicted, scores = predict_out_of_fold(estimator, X, y, folds, reader, fit_params, self.n_jobs)
        # The estimator is fitted after its clones: the first of them raises for what it does not accept.
        fitted = clone(estimator).fit(take_rows(X, rows, len(y)), y[rows], **take_params(fit_params, rows, len(y)))
        return fitted, predicted, scores

    def _route(self, weight: FloatArray | None, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the parameters of the estimator's ``fit`` and of the splitter's ``split``."""
        given = dict(params) if weight is None else {**params, "sample_weight": weight}
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **given)
            return dict(routed["estimator"]["fit"]), dict(routed.get("splitter", {}).get("split", {}) if given else {})
        estimator = self._estimator()
        if weight is not None and not has_fit_parameter(estimator, "sample_weight"):
            warnings.warn(
                f"{type(estimator).__name__} does not accept sample_weight: only the calibrator uses the weights\n"
                "hint: a pipeline accepts them if scikit-learn's metadata routing is enabled",
                TrueupWarning,
                stacklevel=4,
            )
            return {}, {}
        return given, {}

    def _fit_calibrator(
        self,
        X: Any,
        rows: IntArray,
        scores: FloatArray,
        outcome: AnyArray,
        weight: FloatArray | None,
        classes: AnyArray | None = None,
    ) -> tuple[Calibrator, CalibratorColumns]:
        """Fit the calibrator to out-of-fold scores; the outcome of a classifier is the position of its class."""
        labels = [] if classes is None else [str(label) for label in classes.tolist()]
        task: Task = "regression" if classes is None else "binary" if len(labels) == 2 else "multiclass"
        several = task == "multiclass"
        X, code, w = take_rows(X, rows, len(outcome)), outcome[rows], None if weight is None else weight[rows]
        calibrator = self._make_calibrator(task, labels, len(rows), w)
        own = calibrator.get_params(deep=False)
        features = own.get("features") if self.features is None else self.features
        names = [f"prediction of {label}" for label in labels] if several else ["prediction"]
        columns = choose_columns(X, code.astype(np.float64), task, features, names)
        names = list(columns.prediction)
        roles: dict[str, Any] = {"prediction": names if several else names[0], "features": list(columns.names)}
        if "categorical" in own:
            roles["categorical"] = [find_column(name, X, "categorical") for name in as_list(own["categorical"], X)]
        calibrator.set_params(**{name: value for name, value in roles.items() if name in own})
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HardPredictionWarning)  # the user did not choose these predictions
            if features is None:
                warnings.simplefilter("ignore", IdentifierWarning)  # nor these columns
            values = np.array(labels, object)[code] if several else code.astype(np.float64)
            calibrator.fit(columns.extract(X, scores), values, sample_weight=w)
        return calibrator, columns

    def _make_calibrator(self, task: Task, labels: list[str], rows: int, weight: FloatArray | None) -> Calibrator:
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
        own = given.get_params(deep=False)
        checks = [
            (
                own.get("prediction") is not None,
                "calibrator",
                f"must not name a prediction column; got {own.get('prediction')!r}",
                "leave prediction out: the estimator makes the predictions",
            ),
            (
                own.get("task", "auto") not in ("auto", task),
                "calibrator",
                f"must not have task {own.get('task')!r} with this estimator",
                'leave task="auto"',
            ),
            (
                self.features is not None and own.get("features") is not None,
                "features",
                "are named twice, here and in the calibrator",
                "name them in one place",
            ),
            (
                self.features is not None and self.calibrator is not None and not {"features", "by"} & set(own),
                "features",
                f"are not used by {type(given).__name__}",
                "leave features out",
            ),
        ]
        for wrong, parameter, message, hint in checks:
            if wrong:
                raise ArgumentError(f"{parameter} {message}", hint, parameter=parameter)
        roles = {"classes": labels} if task == "multiclass" else {"task": task} if task == "regression" else {}
        calibrator: Calibrator = clone(given)
        return calibrator.set_params(**{name: value for name, value in roles.items() if name in own})  # type: ignore[no-any-return]

    def _correct(self, X: Any, scores: FloatArray) -> FloatArray:
        fitted: Calibrator = self.calibrator_
        columns: CalibratorColumns = self._columns_
        return fitted.predict(columns.extract(X, scores)).reshape(len(scores), -1)

    def _read_scores(self, X: Any, reader: ScoreReader) -> tuple[Any, FloatArray]:
        """Validate X; return it with the scores of the estimator."""
        check_is_fitted(self)
        if getattr(X, "ndim", 2) != 1:  # for one dimension the estimator has the better error message
            validate_data(self, X, reset=False, skip_check_array=True)
        scores = reader.read(self.estimator_, X)
        return indexable(X)[0], scores


class CalibratedClassifier(ClassifierMixin, CalibratedEstimator):  # type: ignore[misc]
    """Fit a classifier and correct its probabilities on every segment, as one scikit-learn classifier.

    The calibrator is fitted on out-of-fold predictions: each fold is predicted by a clone that was fitted on the others.
    Then the classifier is fitted once more on all rows, and that one predicts.

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
        predictions of X: rows it was not trained on. If such a model is cloned, as by a grid search, wrap the classifier
        in scikit-learn's ``FrozenEstimator``.
    features : column names or positions, optional
        The columns of X that the calibrator may use. By default all that it can read: numbers, flags, texts, categories
        and dates; none of a sparse matrix. Named columns of a sparse matrix are made dense, the others never.
    method : {"auto", "predict_proba", "decision_function"}
        The method of the classifier; "auto" is the first that it has. Margins become probabilities by a logistic curve,
        fitted to the same predictions as the calibrator. So do probabilities if an outcome occurred that had a probability
        of 0, as with trees and nearest neighbours: `MCGrad` can hardly correct these.
    n_jobs : int, optional
        Processes for the folds, as in scikit-learn.

    Attributes
    ----------
    estimator_ : classifier
        Fitted on all rows; with "prefit" the given one.
    calibrator_ : calibrator
        Fitted on the out-of-fold predictions. ``tu.save`` accepts it.
    held_out_ : Scored or None
        That of the calibrator, as in `trueup.MCGrad`: 1 is the second of two classes.
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

    Rows of weight 0 are left out first. Weights go to the calibrator, and to the estimator if its ``fit`` accepts them;
    with scikit-learn's metadata routing enabled, as it requests. A weight of 2 equals the row twice as far as estimator and
    calibrator have that property: trees do approximately, and assign their own folds by the last digits of predictions.

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

    def __init__(
        self,
        estimator: Any = None,
        calibrator: Any = None,
        *,
        cv: Any = 5,
        features: Any = None,
        method: str = "auto",
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.features = features
        self.method = method
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> CalibratedClassifier:
        """Fit the classifier and its calibrator.

        Parameters
        ----------
        X : frame, array, sparse matrix, or whatever the estimator accepts
        y : array
            Labels of any kind.
        sample_weight : array, optional
        **params
            Routed to the estimator and the splitter, if metadata routing is enabled.

        Returns
        -------
        self
        """
        _raise_for_params(params, self, "fit")
        check_cv_parameter(self.cv)
        estimator = self._estimator()
        self._check_prefit(estimator)
        X, labels, weight = self._check_data(X, y, sample_weight)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        classes = self._classes(estimator, labels, weight)
        reader = ScoreReader(self._method_of(estimator), classes)
        code = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)  # any class for rows of weight 0
        fitted, rows, scores = self._cross_fit(X, labels, code.astype(np.float64), weight, reader, params)
        curve = None
        # A logistic curve for margins, and for probabilities of 0 of what then occurred.
        if reader.method == "decision_function" or (scores[np.arange(len(scores)), code[rows]] <= MIN_PROBABILITY).any():
            w = None if weight is None else weight[rows]
            curve = fit_margin_curve(_margins(scores), code[rows], w, len(classes))
            scores = curve(_margins(scores))
        scores = scores[:, 1:] if len(classes) == 2 else scores
        calibrator, columns = self._fit_calibrator(X, rows, scores, code, weight, classes)
        self.estimator_, self.calibrator_, self.classes_ = fitted, calibrator, classes
        self._reader_, self._curve_, self._columns_ = reader, curve, columns
        self.held_out_ = calibrator.held_out_
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Return the corrected probability of each class, shape (n, k)."""
        X, scores = self._uncorrected(X)
        if scores.shape[1] > 2:
            return self._correct(X, scores)
        p = self._correct(X, scores[:, 1:])
        return np.column_stack([1 - p, p])

    def predict_uncorrected(self, X: Any) -> FloatArray:
        """Return the uncorrected probabilities, shape (n, k): the predictions that ``calibrator_`` corrects."""
        return self._uncorrected(X)[1]

    def predict(self, X: Any) -> AnyArray:
        """Return the class of the highest corrected probability."""
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

    def _uncorrected(self, X: Any) -> tuple[Any, FloatArray]:
        check_is_fitted(self)
        X, scores = self._read_scores(X, self._reader_)
        curve: MarginCurve | None = self._curve_
        return X, scores if curve is None else curve(_margins(scores))

    def _estimator(self) -> Any:
        return LogisticRegression() if self.estimator is None else self.estimator

    def _method_of(self, estimator: Any) -> str:
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

    def _classes(self, estimator: Any, labels: AnyArray, weight: FloatArray | None) -> AnyArray:
        present = np.unique(labels if weight is None else labels[weight > 0])
        if len(present) < 2:
            raise DataError(f"y has one class only: {present[0]!r}", hint="pass rows of two or more classes", parameter="y")
        if not isinstance(self.cv, str):
            return present
        known = np.unique(estimator.classes_)  # ascending, whatever their order
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

    def __init__(
        self,
        estimator: Any = None,
        calibrator: Any = None,
        *,
        cv: Any = 5,
        features: Any = None,
        n_jobs: int | None = None,
    ) -> None:
        self.estimator = estimator
        self.calibrator = calibrator
        self.cv = cv
        self.features = features
        self.n_jobs = n_jobs

    def fit(self, X: Any, y: Any, sample_weight: Any = None, **params: Any) -> CalibratedRegressor:
        """Fit the regressor and its calibrator.

        Parameters
        ----------
        X : frame, array, sparse matrix, or whatever the estimator accepts
        y : array
        sample_weight : array, optional
        **params
            Routed to the estimator and the splitter, if metadata routing is enabled.

        Returns
        -------
        self
        """
        _raise_for_params(params, self, "fit")
        check_cv_parameter(self.cv)
        self._check_prefit(self._estimator())
        X, values, weight = self._check_data(X, y, sample_weight)
        outcome = check_array(values, ensure_2d=False, dtype=np.float64, input_name="y")
        reader, strata = ScoreReader("predict"), np.zeros(len(outcome))
        fitted, rows, scores = self._cross_fit(X, outcome, strata, weight, reader, params)
        calibrator, columns = self._fit_calibrator(X, rows, scores, outcome, weight)
        self.estimator_, self.calibrator_, self._columns_ = fitted, calibrator, columns
        self.held_out_ = calibrator.held_out_
        return self

    def predict(self, X: Any) -> FloatArray:
        """Return the corrected forecast."""
        X, scores = self._read_scores(X, ScoreReader("predict"))
        return self._correct(X, scores)[:, 0]

    def _estimator(self) -> Any:
        return LinearRegression() if self.estimator is None else self.estimator


def _margins(scores: FloatArray) -> FloatArray:
    """Return one column for two classes, one per class for more."""
    return scores[:, -1:] if scores.shape[1] <= 2 else scores


def _check_rows(rows: int) -> None:
    if rows < MIN_ROWS:
        raise DataError(
            f"{rows} sample{'' if rows == 1 else 's'} (rows of positive weight) are too few to calibrate on",
            hint=f"pass at least {MIN_ROWS} rows",
        )
