"""An estimator and its calibrator as one scikit-learn estimator, cross-fitted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.linear_model import LinearRegression, LogisticRegression
from sklearn.utils import check_array, get_tags
from sklearn.utils.metadata_routing import _raise_for_params
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted

from trueup._validate import check_choice
from trueup.calibrators.wrapping.crossfit import Reading, check_cv_parameter, fit_curve
from trueup.calibrators.wrapping.fitting import Calibrated, Outcome, open_data
from trueup.errors import ArgumentError, DataError
from trueup.kernels.cascade import SMALLEST

if TYPE_CHECKING:
    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.wrapping.crossfit import Curve


class CalibratedClassifier(ClassifierMixin, Calibrated):  # type: ignore[misc]
    """Fit a classifier and correct its probabilities on every segment, as one scikit-learn classifier.

    The calibrator learns from predictions of rows that the classifier has not seen: each fold is predicted by a clone that
    was fitted on the others. Then the classifier is fitted once more on all rows, and that one predicts.

    Parameters
    ----------
    estimator : classifier, optional
        Anything with ``fit`` and ``predict_proba`` or ``decision_function``, pipelines included;
        ``LogisticRegression()`` by default. X reaches it as it was given.
    calibrator : trueup calibrator, optional
        ``MCGrad()`` by default, ``Platt()`` where there are fewer than 300 rows. Its ``prediction`` is left out; its
        ``features`` and ``categorical`` name columns of X. Columns of an array are called x0, x1, ...
    cv : int, splitter, iterable of splits, or "prefit"
        The folds. A number deals rows by their content, each fold with its share of the classes, whatever their order; rows
        that are alike stay together (up to ten of them). "prefit" takes a classifier that is fitted
        already, and fits the calibrator alone, to its predictions of X: rows it was not trained on. Where such a model is
        cloned, as by a grid search, put the classifier into scikit-learn's ``FrozenEstimator``.
    features : column names or positions, optional
        What of X the calibrator may use. All that it can read by default: numbers, flags, texts, categories and dates, of a
        sparse matrix nothing. Columns of a sparse matrix that are named are made dense, the others never.
    method : {"auto", "predict_proba", "decision_function"}
        What the classifier is asked for; "auto" is the first that it has. Margins become probabilities by a logistic curve,
        fitted to the same predictions as the calibrator. So do probabilities where one of 0 was given to what then
        happened, as trees and nearest neighbours do: `MCGrad` hardly finds its way back from there.
    n_jobs : int, optional
        Processes for the folds, as in scikit-learn.

    Attributes
    ----------
    estimator_ : classifier
        Fitted on all rows; with "prefit" the one that was given.
    calibrator_ : calibrator
        Fitted on the out-of-fold predictions. ``tu.save`` takes it.
    held_out_ : Scored or None
        That of the calibrator, as in `trueup.MCGrad`: 1 is the second of two classes.
    classes_ : ndarray
    n_features_in_ : int
    feature_names_in_ : ndarray
        Where X is a frame with names of text.

    Notes
    -----
    One classifier and one calibrator, rather than a pair for each fold: the model that predicts has learned from all rows,
    is as fast and as large as without calibration, can be looked into, and has one correction to explain and to ship. The
    price is that the calibrator has seen classifiers fitted on fewer rows, four fifths of them with five folds. A class
    that the training rows of a fold lack has probability 0 there.

    Rows of weight 0 are left out before anything else. Weights go to the calibrator, and to the estimator where its ``fit``
    takes them; with scikit-learn's metadata routing enabled, as it requests. A weight of 2 is the row twice as far as
    estimator and calibrator hold to that: trees do roughly, and deal their own folds by the last digits of predictions.

    Examples
    --------
    >>> import numpy as np, trueup as tu
    >>> from sklearn.naive_bayes import GaussianNB
    >>> random = np.random.default_rng(0)
    >>> X = random.normal(size=(2_000, 2)).repeat(2, axis=1)  # each feature twice: naive Bayes is too sure of itself
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
        X : frame, array, sparse matrix, or whatever the estimator takes
        y : array
            Labels of any kind.
        sample_weight : array, optional
        **params
            Routed to the estimator and the splitter, where metadata routing is enabled.

        Returns
        -------
        self
        """
        _raise_for_params(params, self, "fit")
        check_cv_parameter(self.cv)
        estimator = self._estimator()
        self._check_prefit(estimator)
        X, labels, weight = open_data(self, X, y, sample_weight)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        classes = self._classes(estimator, labels, weight)
        reading = Reading(self._method_of(estimator), classes)
        code = np.minimum(np.searchsorted(classes, labels), len(classes) - 1)  # of rows of weight 0 any will do
        whole, rows, scores = self._fit(X, labels, code.astype(np.float64), weight, reading, params)
        curve = None
        if reading.method == "decision_function" or _denied(scores, code[rows]):
            curve = fit_curve(_margins(scores), code[rows], None if weight is None else weight[rows], len(classes))
            scores = curve(_margins(scores))
        scores = scores[:, 1:] if len(classes) == 2 else scores
        calibrator, layout = self._learn(X, rows, scores, _outcome(classes, code), weight)
        self.estimator_, self.calibrator_, self.classes_ = whole, calibrator, classes
        self._reading_, self._curve_, self._layout_ = reading, curve, layout
        self.held_out_ = calibrator.held_out_
        return self

    def predict_proba(self, X: Any) -> FloatArray:
        """Give the corrected probability of each class, shape (n, k)."""
        X, scores = self._before(X)
        if scores.shape[1] > 2:
            return self._correct(X, scores)
        p = self._correct(X, scores[:, 1:])
        return np.column_stack([1 - p, p])

    def predict_uncorrected(self, X: Any) -> FloatArray:
        """Give the probabilities before the correction, shape (n, k): what ``calibrator_`` takes as its predictions."""
        return self._before(X)[1]

    def predict(self, X: Any) -> AnyArray:
        """Give the class of the highest corrected probability."""
        p = self.predict_proba(X)
        found: AnyArray = self.classes_[p.argmax(axis=1)]
        return found

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        base = get_tags(self._estimator()).classifier_tags
        if base is not None:
            tags.classifier_tags.multi_class = base.multi_class
            tags.classifier_tags.poor_score = base.poor_score
        return tags

    def _before(self, X: Any) -> tuple[Any, FloatArray]:
        check_is_fitted(self)
        X, scores = self._ask(X, self._reading_)
        curve: Curve | None = self._curve_
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
            f"{type(estimator).__name__} has no {' and no '.join(methods)}",
            hint="give a classifier that tells how sure it is",
        )

    def _classes(self, estimator: Any, labels: AnyArray, weight: FloatArray | None) -> AnyArray:
        found = np.unique(labels if weight is None else labels[weight > 0])
        if len(found) < 2:
            raise DataError(
                f"y holds one class only ({found[0]!r}): there is nothing to tell apart",
                hint="give rows of two classes or more",
            )
        if not isinstance(self.cv, str):
            return found
        known = np.unique(estimator.classes_)  # in order, whatever theirs is
        strange = [one for one in found.tolist() if one not in known.tolist()]
        if strange:
            raise DataError(
                f"y holds a class that the fitted estimator does not know: {strange[0]!r}",
                hint=f"it knows {', '.join(map(repr, known.tolist()[:12]))}",
            )
        return known


class CalibratedRegressor(RegressorMixin, Calibrated):  # type: ignore[misc]
    """Fit a regressor and correct its forecasts on every segment, as one scikit-learn regressor.

    As `trueup.CalibratedClassifier`, for real outcomes: ``predict`` gives the corrected forecast.

    Parameters
    ----------
    estimator : regressor, optional
        ``LinearRegression()`` by default.
    calibrator : trueup calibrator, optional
        ``MCGrad()`` by default, ``Platt()`` where there are fewer than 300 rows; its task is set to "regression".
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
        X : frame, array, sparse matrix, or whatever the estimator takes
        y : array
        sample_weight : array, optional
        **params
            Routed to the estimator and the splitter, where metadata routing is enabled.

        Returns
        -------
        self
        """
        _raise_for_params(params, self, "fit")
        check_cv_parameter(self.cv)
        self._check_prefit(self._estimator())
        X, found, weight = open_data(self, X, y, sample_weight)
        outcome = check_array(found, ensure_2d=False, dtype=np.float64, input_name="y")
        whole, rows, scores = self._fit(X, outcome, np.zeros(len(outcome)), weight, Reading("predict"), params)
        calibrator, layout = self._learn(X, rows, scores, Outcome("regression", outcome, outcome), weight)
        self.estimator_, self.calibrator_, self._layout_ = whole, calibrator, layout
        self.held_out_ = calibrator.held_out_
        return self

    def predict(self, X: Any) -> FloatArray:
        """Give the corrected forecast."""
        X, scores = self._ask(X, Reading("predict"))
        return self._correct(X, scores)[:, 0]

    def _estimator(self) -> Any:
        return LinearRegression() if self.estimator is None else self.estimator


def _denied(p: FloatArray, code: IntArray) -> bool:
    """Say whether something happened to which the classifier gave no probability."""
    return bool((p[np.arange(len(p)), code] <= SMALLEST).any())


def _margins(scores: FloatArray) -> FloatArray:
    """Give one column for two classes, one a class for more."""
    return scores[:, -1:] if scores.shape[1] <= 2 else scores


def _outcome(classes: AnyArray, code: IntArray) -> Outcome:
    place = code.astype(np.float64)
    if len(classes) == 2:
        return Outcome("binary", place, place)
    texts = [str(one) for one in classes.tolist()]
    return Outcome("multiclass", np.array(texts, object)[code], place, [f"prediction of {text}" for text in texts], texts)
