"""What the calibrated classifier and the calibrated regressor share: cross-fitting, routing, and the calibrator's fit."""

from __future__ import annotations

import warnings
from abc import abstractmethod
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn import get_config
from sklearn.base import BaseEstimator, clone
from sklearn.utils import check_array, column_or_1d, get_tags, indexable
from sklearn.utils.metadata_routing import MetadataRouter, MethodMapping, process_routing
from sklearn.utils.validation import check_is_fitted, has_fit_parameter, validate_data

from trueup.calibrators.base import Calibrator
from trueup.calibrators.curves.scaling import Platt
from trueup.calibrators.mcgrad.estimator import MCGrad
from trueup.calibrators.splits import MIN_ROWS, scale_weights
from trueup.calibrators.wrapping.crossfit import divide_rows, out_of_fold, take
from trueup.calibrators.wrapping.shown import content_of, find_name, lay_out, rows_of, several
from trueup.errors import ArgumentError, DataError, HardPredictionWarning, IdentifierWarning, TrueupWarning

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.explain import Explanation
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.calibrators.wrapping.crossfit import Reading
    from trueup.calibrators.wrapping.shown import Layout
    from trueup.data.schema import Task


# Fewer rows than this teach next to nothing about segments. In simulations with 50 to 200 of them trees hardly ever kept
# anything (a few fits moved slightly), and a Platt scaling gained 0.01 to 0.08 of log loss where the classifier was too
# sure, against 0.02 lost at most where it was right; from 300 rows on trees gained more, but for random forests.
ENOUGH = 300


@dataclass(frozen=True, eq=False)
class Outcome:
    """The outcome as the calibrator reads it."""

    task: Task
    values: AnyArray
    place: FloatArray
    names: Sequence[str] = ("prediction",)
    classes: Sequence[str] = ()


class Calibrated(BaseEstimator):  # type: ignore[misc]
    """What the classifier and the regressor share."""

    estimator: Any
    calibrator: Any
    cv: Any
    features: Any
    n_jobs: int | None

    def explain(self, row: Mapping[str, Any] | None = None) -> Explanation | RowExplanation:
        """Say what the calibrator corrected; or why it moves one row, a mapping of its own column names to values."""
        check_is_fitted(self)
        fitted: Calibrator = self.calibrator_
        return fitted.explain(row)

    def get_metadata_routing(self) -> MetadataRouter:
        """Say where metadata goes: to the estimator and, where ``cv`` is a splitter, to that."""
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
        """Give what is to be fitted: what was given, or the default."""

    def _fit(
        self,
        X: Any,
        y: AnyArray,
        strata: FloatArray,
        weight: FloatArray | None,
        reading: Reading,
        params: Mapping[str, Any],
    ) -> tuple[Any, IntArray, FloatArray]:
        """Give the estimator that will predict, the rows the calibrator learns from, and their honest scores."""
        estimator = self._estimator()
        rows = np.arange(len(y)) if weight is None else np.flatnonzero(weight > 0)
        _enough(len(rows))
        if isinstance(self.cv, str):
            if params:
                process_routing(self, "fit", **params)  # refuses what nobody has asked for
            return estimator, rows, reading.of(estimator, _some(X, rows, len(y)))
        told, for_splitter = self._route(weight, params)
        content = content_of(X, rows) if isinstance(self.cv, (int, np.integer)) else []
        splits = divide_rows(self.cv, X, y, strata[rows], content, rows, for_splitter)
        seen, scores = out_of_fold(estimator, X, y, splits, reading, told, self.n_jobs)
        # The estimator is fitted after its clones: what it cannot take is refused by the first of them all the same.
        whole = clone(estimator).fit(_some(X, rows, len(y)), y[rows], **take(told, rows, len(y)))
        return whole, seen, scores

    def _route(self, weight: FloatArray | None, params: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Say what the estimator and the splitter are told besides X and y."""
        given = dict(params) if weight is None else {**params, "sample_weight": weight}
        if get_config()["enable_metadata_routing"]:
            routed = process_routing(self, "fit", **given)
            return dict(routed["estimator"]["fit"]), dict(routed.get("splitter", {}).get("split", {}) if given else {})
        estimator = self._estimator()
        if weight is not None and not has_fit_parameter(estimator, "sample_weight"):
            warnings.warn(
                f"{type(estimator).__name__} takes no sample_weight: the weights serve the calibrator alone\n"
                "hint: a pipeline takes them where scikit-learn's metadata routing is enabled",
                TrueupWarning,
                stacklevel=4,
            )
            return {}, {}
        return given, {}

    def _learn(
        self, X: Any, rows: IntArray, scores: FloatArray, outcome: Outcome, weight: FloatArray | None
    ) -> tuple[Calibrator, Layout]:
        """Fit the calibrator to honest scores."""
        w = None if weight is None else weight[rows]
        fresh = self._fresh(outcome, len(rows), w)
        own = fresh.get_params(deep=False)
        wanted = self._wanted(own)
        shown = _some(X, rows, len(outcome.place))
        layout = lay_out(shown, outcome.place[rows], outcome.task, wanted, outcome.names)
        told = {"prediction": layout.prediction[0] if len(layout.prediction) == 1 else list(layout.prediction)}
        if "features" in own:
            told["features"] = list(layout.names)
        if "categorical" in own:
            told["categorical"] = [find_name(one, shown, "categorical") for one in several(own["categorical"], shown)]
        fresh.set_params(**told)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", HardPredictionWarning)  # what an estimator predicts is no slip of the user's
            if wanted is None:
                warnings.simplefilter("ignore", IdentifierWarning)  # nor is a column that the estimator alone can use
            fresh.fit(layout.show(shown, scores), outcome.values[rows], sample_weight=w)
        return fresh, layout

    def _fresh(self, outcome: Outcome, rows: int, weight: FloatArray | None) -> Calibrator:
        """Make the calibrator that is to be fitted."""
        given = _default(rows, weight) if self.calibrator is None else self.calibrator
        if not isinstance(given, Calibrator):
            kind = f"the class {given.__name__}" if isinstance(given, type) else type(given).__name__
            raise ArgumentError(
                f"calibrator must be one of trueup's calibrators; got {kind}", hint="write it as calibrator=tu.MCGrad()"
            )
        own = given.get_params(deep=False)
        if own.get("prediction") is not None:
            raise ArgumentError(
                f"the calibrator names a prediction column, {own['prediction']!r}",
                hint="leave prediction out: the estimator makes the predictions",
            )
        if own.get("task", "auto") not in ("auto", outcome.task):
            raise ArgumentError(
                f"a calibrator of task {own['task']!r} does not go with this estimator", hint='leave task="auto"'
            )
        made: Calibrator = clone(given)
        told = {"classes": outcome.classes} if outcome.task == "multiclass" else {}
        if outcome.task == "regression":
            told = {"task": "regression"}
        made.set_params(**{name: value for name, value in told.items() if name in own})
        return made

    def _wanted(self, own: Mapping[str, Any]) -> Any:
        """Say which features were asked for, here or in the calibrator; None is all."""
        if self.features is not None and own.get("features") is not None:
            raise ArgumentError("features are named twice, here and in the calibrator", hint="name them in one place")
        if self.features is not None and self.calibrator is not None and not {"features", "by"} & set(own):
            raise ArgumentError(f"{type(self.calibrator).__name__} reads no features", hint="leave features out")
        return own.get("features") if self.features is None else self.features

    def _correct(self, X: Any, scores: FloatArray) -> FloatArray:
        fitted: Calibrator = self.calibrator_
        layout: Layout = self._layout_
        found = fitted.predict(layout.show(X, scores))
        return found.reshape(len(scores), -1)

    def _ask(self, X: Any, reading: Reading) -> tuple[Any, FloatArray]:
        """Check X and give it, with the scores of the estimator."""
        check_is_fitted(self)
        if getattr(X, "ndim", 2) != 1:  # the estimator says best what it thinks of a single dimension
            validate_data(self, X, reset=False, skip_check_array=True)
        scores = reading.of(self.estimator_, X)
        return indexable(X)[0], scores

    def _check_prefit(self, estimator: Any) -> None:
        if not isinstance(self.cv, str):
            return
        if self.estimator is None:
            raise ArgumentError('cv="prefit" needs an estimator that is fitted', hint="pass it as estimator=")
        try:
            check_is_fitted(estimator)
        except (ValueError, TypeError) as error:
            raise ArgumentError(
                f'cv="prefit" needs an estimator that is fitted; this {type(estimator).__name__} is not',
                hint="fit it on other rows first, or leave cv=5",
            ) from error


def open_data(own: Calibrated, X: Any, y: Any, sample_weight: Any) -> tuple[Any, AnyArray, FloatArray | None]:
    """Check what scikit-learn checks of X, y and weights, and leave X as it is."""
    validate_data(own, X, y, skip_check_array=True)
    labels = column_or_1d(y, warn=True)
    X, labels = indexable(X, labels)
    _enough(len(labels))
    if sample_weight is None:
        return X, labels, None
    weight = check_array(sample_weight, ensure_2d=False, dtype=np.float64, input_name="sample_weight")
    if weight.shape != (len(labels),):
        raise DataError(f"sample_weight has shape {weight.shape} for {len(labels):,} rows", hint="pass one weight a row")
    if (weight < 0).any() or not (weight > 0).any():
        what = "must not be negative" if (weight < 0).any() else "are all zero"
        raise DataError(f"the sample weights {what}", hint="a row that should not count has weight 0")
    return X, labels, weight


def _default(rows: int, weight: FloatArray | None) -> Calibrator:
    """Choose a calibrator by how many rows there are, counting a weight of 2 as two."""
    counted = rows if weight is None else float(np.asarray(scale_weights(weight, rows)).sum())
    return MCGrad() if counted >= ENOUGH else Platt()


def _enough(rows: int) -> None:
    if rows < MIN_ROWS:
        raise DataError(
            f"{rows} sample{'' if rows == 1 else 's'} (rows of positive weight) are too few to calibrate on",
            hint=f"give at least {MIN_ROWS} rows",
        )


def _some(X: Any, rows: IntArray, total: int) -> Any:
    return X if len(rows) == total else rows_of(X, rows)
