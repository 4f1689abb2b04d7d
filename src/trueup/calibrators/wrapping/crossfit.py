"""Predictions of rows that the estimator has not seen: which rows go into which fold, and what the clones say of them."""

from __future__ import annotations

import reprlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression
from sklearn.utils.parallel import Parallel, delayed

from trueup.calibrators.wrapping.shown import rows_of
from trueup.data.folds import assign_folds
from trueup.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray

    Splits = list[tuple[IntArray, IntArray]]

STIFFNESS = 0.1  # of the logistic curve over margins: enough to keep it finite where they divide the classes
SEED = 0


@dataclass(frozen=True)
class Reading:
    """How a fitted estimator is asked for its scores, one row of them for each row of X.

    Attributes
    ----------
    method : {"predict_proba", "decision_function", "predict"}
    classes : ndarray, or None
        Of all rows, ascending; a model that knows fewer of them gives the others a probability of 0, a margin of -inf.
    """

    method: str
    classes: AnyArray | None = None

    def of(self, model: Any, X: Any) -> FloatArray:
        """Ask a fitted estimator."""
        found = np.asarray(getattr(model, self.method)(X))
        if self.classes is None:
            return self._forecast(found)
        if self.method == "predict_proba":
            if found.shape != (len(found), len(model.classes_)):
                raise DataError(
                    f"predict_proba gives shape {found.shape} for {len(model.classes_)} classes",
                    hint="one column a class is needed, in the order of classes_",
                )
            p = np.clip(found.astype(np.float64), 0.0, 1.0)
            # Single precision adds up to 1 in single precision.
            return self._spread(p if found.dtype == np.float64 else p / p.sum(axis=1, keepdims=True), model.classes_, 0.0)
        return self._margins(found.astype(np.float64), model.classes_)

    def constant(self, label: Any, rows: int) -> FloatArray:
        """Say what a model says that has seen this one class only."""
        assert self.classes is not None
        if self.method == "predict_proba":
            return self._spread(np.ones((rows, 1)), np.array([label]), 0.0)
        if len(self.classes) == 2:
            return np.full((rows, 1), np.inf if label == self.classes[1] else -np.inf)
        return self._spread(np.full((rows, 1), np.inf), np.array([label]), -np.inf)

    def _forecast(self, found: AnyArray) -> FloatArray:
        if found.ndim != 1 and found.size != len(found):
            raise DataError(
                f"the estimator predicts {found.shape[1]} values a row", hint="give one that predicts one outcome"
            )
        return found.reshape(-1, 1).astype(np.float64)

    def _margins(self, found: FloatArray, own: AnyArray) -> FloatArray:
        assert self.classes is not None
        columns = found.reshape(len(found), -1)
        if columns.shape[1] != (1 if len(own) == 2 else len(own)):
            raise DataError(
                f"decision_function gives {columns.shape[1]} columns for {len(own)} classes",
                hint='one margin a class is needed: decision_function_shape="ovr" in scikit-learn',
            )
        if len(self.classes) == 2:
            return columns if own[-1] == self.classes[1] else -columns  # of a model that has them the other way round
        return self._spread(np.column_stack([-columns, columns]) if len(own) == 2 else columns, own, -np.inf)

    def _spread(self, found: FloatArray, own: AnyArray, absent: float) -> FloatArray:
        assert self.classes is not None
        out = np.full((len(found), len(self.classes)), absent)
        out[:, np.searchsorted(self.classes, own)] = found
        return out


@dataclass(frozen=True, eq=False)
class Curve:
    """Margins to probabilities: a logistic curve (Platt 1999), for several classes one of all their margins."""

    low: float
    high: float
    unit: float
    model: Any
    classes: int

    def __call__(self, margins: FloatArray) -> FloatArray:
        """Give the probability of each class."""
        p = np.zeros((len(margins), self.classes))
        p[:, self.model.classes_] = self.model.predict_proba(np.clip(margins, self.low, self.high) / self.unit)
        return p


def fit_curve(margins: FloatArray, code: IntArray, weight: FloatArray | None, classes: int) -> Curve:
    """Fit the curve to margins of rows and the places of their classes."""
    finite = margins[np.isfinite(margins)]
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 1.0)
    unit = float(np.abs(finite).max(initial=0.0)) or 1.0
    model = LogisticRegression(C=1 / STIFFNESS, max_iter=1000)
    model.fit(np.clip(margins, low, high) / unit, code, sample_weight=weight)
    reach = max(high - low, unit)
    return Curve(low - reach, high + reach, unit, model, classes)


def take(params: Mapping[str, Any], rows: IntArray, total: int) -> dict[str, Any]:
    """Take the rows of whatever has one entry a row."""

    def one(value: Any) -> Any:
        by_row = hasattr(value, "__len__") and not isinstance(value, (str, bytes, dict)) and len(value) == total
        return rows_of(value, rows) if by_row else value

    return {name: one(value) for name, value in params.items()}


def divide_rows(
    cv: Any,
    X: Any,
    y: AnyArray,
    strata: FloatArray,
    content: Sequence[AnyArray],
    rows: IntArray,
    params: Mapping[str, Any],
) -> Splits:
    """Divide rows into folds, as ``cv`` says.

    Parameters
    ----------
    cv : int, splitter or iterable of splits
    X, y : all rows
    strata : ndarray
        Of the rows that count; every fold has its share of each.
    content : sequence of ndarray
        What the rows that count are known by.
    rows : ndarray of int64
        Those of positive weight.
    params : mapping
        For the splitter: groups, where they are routed to it.
    """
    if isinstance(cv, (int, np.integer)):
        fold = assign_folds(content or [np.arange(len(rows)) * 1.0], strata, int(cv), SEED)
        splits = [(rows[fold != at], rows[fold == at]) for at in range(int(cv))]
    elif hasattr(cv, "split"):
        found = cv.split(rows_of(X, rows), y[rows], **take(params, rows, len(y)))
        splits = [(rows[train], rows[test]) for train, test in found]
    else:
        counted = np.zeros(len(y), bool)
        counted[rows] = True
        splits = [_given_split(split, counted) for split in cv]
    splits = [split for split in splits if len(split[1])]
    _check_splits(splits, len(rows))
    return splits


def check_cv_parameter(cv: Any) -> None:
    """Refuse what is no way to divide rows."""
    if isinstance(cv, str) and cv == "prefit":
        return
    whole = isinstance(cv, (int, np.integer)) and not isinstance(cv, bool)
    if (whole and cv >= 2) or (hasattr(cv, "split") and not isinstance(cv, str)):
        return
    if whole or isinstance(cv, (str, bool)) or not isinstance(cv, Iterable):
        raise ArgumentError(
            f'cv must be a number of folds, at least 2, a splitter, an iterable of splits, or "prefit"; got {cv!r}',
            hint='cv="prefit" takes an estimator that is fitted already, and fits the calibrator alone',
        )


def _given_split(split: Any, counted: BoolArray) -> tuple[IntArray, IntArray]:
    """Read one split of an iterable, and leave out rows that do not count."""
    parts = [np.asarray(part) for part in split] if isinstance(split, (tuple, list, np.ndarray)) else []
    if len(parts) != 2 or not all(_are_places(part, len(counted)) for part in parts):
        raise ArgumentError(
            "a split of cv must be two lists of row numbers, those to learn from and those to predict, from 0 to "
            f"{len(counted) - 1:,}; got {' '.join(reprlib.repr(split).split())}",
            hint="write it as cv=[(train, test), ...], as the splitters of scikit-learn give them",
        )
    train, test = (part.astype(np.int64) for part in parts)
    return train[counted[train]], test[counted[test]]


def _are_places(part: AnyArray, total: int) -> bool:
    whole = part.dtype.kind in "iu" or not part.size
    return part.ndim == 1 and whole and bool(((part >= 0) & (part < total)).all())


def _check_splits(splits: Splits, rows: int) -> None:
    if not splits:
        raise ArgumentError("cv gives no rows to predict", hint="an iterator is spent after one fit: pass a list of splits")
    if any(not len(train) for train, _ in splits):
        raise DataError(
            f"the {rows:,} rows cannot be divided into rows to learn from and rows to predict",
            hint="give more rows, or other folds: rows that are alike stay together",
        )
    tested = np.concatenate([test for _, test in splits])
    if len(np.unique(tested)) < len(tested):
        raise ArgumentError(
            "cv predicts some rows more than once", hint="use a splitter in which each row is in one test part at most"
        )
    if any(np.isin(test, train).any() for train, test in splits):
        raise ArgumentError(
            "cv predicts rows that it has learned from", hint="no row may be in both parts of a split: such scores flatter"
        )


def out_of_fold(
    estimator: Any, X: Any, y: AnyArray, splits: Splits, reading: Reading, params: Mapping[str, Any], n_jobs: int | None
) -> tuple[IntArray, FloatArray]:
    """Predict the rows of each fold by a clone that was fitted on the others: the rows, ascending, and their scores."""
    found = Parallel(n_jobs=n_jobs)(
        delayed(_fit_and_ask)(clone(estimator), X, y, train, test, reading, params) for train, test in splits
    )
    rows = np.concatenate([test for _, test in splits])
    order = np.argsort(rows)
    return rows[order], np.concatenate(found)[order]


def _fit_and_ask(
    estimator: Any, X: Any, y: AnyArray, train: IntArray, test: IntArray, reading: Reading, params: Mapping[str, Any]
) -> FloatArray:
    own = y[train]
    if reading.classes is not None and (own == own[0]).all():
        return reading.constant(own[0], len(test))  # most classifiers refuse to be fitted to one class
    estimator.fit(rows_of(X, train), own, **take(params, train, len(y)))
    return reading.of(estimator, rows_of(X, test))
