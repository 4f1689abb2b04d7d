"""Cross-fitting of an estimator: folds, out-of-fold predictions, and the columns of X that a calibrator can use."""

from __future__ import annotations

import reprlib
import warnings
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse
from sklearn.linear_model import LogisticRegression
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _check_method_params

from trueup.data.clusters import cluster_keys
from trueup.data.columns import check_unique_names, from_array, from_values, permute_column
from trueup.data.folds import assign_clusters, assign_folds, hash_numbers
from trueup.data.frame import RowSummary, read
from trueup.data.values import describe_rows
from trueup.errors import ArgumentError, ColumnError, DataError, LeakageWarning

if TYPE_CHECKING:
    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray
    from trueup.data.table import Task

    Folds = list[tuple[IntArray, IntArray]]

MAX_SPARSE_FEATURES = 100  # columns of a sparse matrix that are made dense without being named
FIX_ROWS, BASE_ROWS = 2000, 250  # in which a column is permuted to see whether predictions depend on it
SAME: dict[str, Any] = {"rtol": 1e-9, "atol": 1e-12}
REGULARISATION = 0.1  # of the logistic curve of margins: keeps it finite if they separate the classes
SEED = 0


@dataclass(frozen=True)
class ScoreReader:
    """Reads the scores of rows from a fitted estimator by its ``method``, with columns in the order of ``classes``."""

    method: str  # "predict_proba", "decision_function" or "predict"
    classes: AnyArray | None = None  # ascending; those a model does not know have probability 0, or margin -inf

    def read(self, model: Any, X: Any) -> FloatArray:
        """Return the scores of X by ``model``: a column per class; a single one for two-class margins and regressors."""
        scores = np.asarray(getattr(model, self.method)(X))
        if self.classes is None:
            if scores.ndim != 1 and scores.size != len(scores):
                raise DataError(
                    f"the estimator predicts {scores.shape[1]} values per row", hint="use one that predicts one outcome"
                )
            return scores.reshape(-1, 1).astype(np.float64)
        if self.method == "predict_proba":
            if scores.shape != (len(scores), len(model.classes_)):
                raise DataError(
                    f"predict_proba returns shape {scores.shape} for {len(model.classes_)} classes",
                    hint="it must return one column per class, in the order of classes_",
                )
            p = np.clip(scores.astype(np.float64), 0.0, 1.0)
            # Single-precision probabilities add up to 1 in single precision only.
            p = p if scores.dtype == np.float64 else p / p.sum(axis=1, keepdims=True)
            return self._align(p, model.classes_, 0.0)
        own, margins = model.classes_, scores.astype(np.float64).reshape(len(scores), -1)
        if margins.shape[1] != (1 if len(own) == 2 else len(own)):
            raise DataError(
                f"decision_function returns {margins.shape[1]} columns for {len(own)} classes",
                hint='it must return one margin per class: decision_function_shape="ovr" in scikit-learn',
            )
        if len(self.classes) == 2:
            return margins if own[-1] == self.classes[1] else -margins  # a model may have them in descending order
        return self._align(np.column_stack([-margins, margins]) if len(own) == 2 else margins, own, -np.inf)

    def constant(self, label: Any, rows: int) -> FloatArray:
        """Return the scores of ``rows`` rows by a model that was trained on the class ``label`` alone."""
        assert self.classes is not None
        if self.method == "predict_proba":
            return self._align(np.ones((rows, 1)), np.array([label]), 0.0)
        if len(self.classes) == 2:
            return np.full((rows, 1), np.inf if label == self.classes[1] else -np.inf)
        return self._align(np.full((rows, 1), np.inf), np.array([label]), -np.inf)

    def _align(self, scores: FloatArray, own: AnyArray, absent: float) -> FloatArray:
        assert self.classes is not None
        out = np.full((len(scores), len(self.classes)), absent)
        out[:, np.searchsorted(self.classes, own)] = scores
        return out


class MarginCurve:
    """Maps margins to probabilities by a logistic regression (Platt 1999), a multinomial one for several classes."""

    def __init__(self, margins: FloatArray, code: IntArray, weight: FloatArray | None, classes: int) -> None:
        finite = margins[np.isfinite(margins)]
        low, high = (float(finite.min()), float(finite.max())) if len(finite) else (-1.0, 1.0)
        self.unit = float(np.abs(finite).max(initial=0.0)) or 1.0
        self.classes = classes
        self.model = LogisticRegression(C=1 / REGULARISATION, max_iter=1000)
        self.model.fit(np.clip(margins, low, high) / self.unit, code, sample_weight=weight)
        reach = max(high - low, self.unit)
        self.low, self.high = low - reach, high + reach

    def __call__(self, margins: FloatArray) -> FloatArray:
        """Return the probability of each class, shape (n, classes), of rows with these margins."""
        p = np.zeros((len(margins), self.classes))
        p[:, self.model.classes_] = self.model.predict_proba(np.clip(margins, self.low, self.high) / self.unit)
        return p


def check_cv_parameter(cv: Any) -> None:
    """Raise unless ``cv`` is a number of folds, a splitter, an iterable of splits, or "prefit"."""
    if isinstance(cv, str) and cv == "prefit":
        return
    integer = isinstance(cv, (int, np.integer)) and not isinstance(cv, bool)
    if (integer and cv >= 2) or (hasattr(cv, "split") and not isinstance(cv, str)):
        return
    if integer or isinstance(cv, (str, bool)) or not isinstance(cv, Iterable):
        raise ArgumentError(
            f'cv must be a number of folds, at least 2, a splitter, an iterable of splits, or "prefit"; got {cv!r}',
            hint='cv="prefit" uses an estimator that is already fitted, and fits the calibrator alone',
            parameter="cv",
        )


def read_clusters(cluster: Any, rows: int) -> IntArray:
    """Return the cluster of each row, numbered from 0; raise unless there is one identifier per row."""
    raw = from_values(cluster, "cluster")
    if len(raw) != rows:
        raise DataError(f"cluster has {len(raw):,} values for {rows:,} rows", "pass one per row", parameter="cluster")
    return np.unique(cluster_keys(raw, "cluster", describe_rows), return_inverse=True)[1].ravel()


def divide_rows(
    cv: Any, X: Any, y: AnyArray, strata: FloatArray, rows: IntArray, split_params: Mapping[str, Any],
    clusters: IntArray | None = None,
) -> Folds:  # fmt: skip
    """Return (train, test) indices per fold: ``rows`` split by ``cv``; an integer ``cv`` stratifies them by ``strata``.

    With ``clusters``, the number of the cluster of each row, an integer ``cv`` keeps clusters together, a splitter receives
    them as ``groups``, and other splits must not divide one.
    """
    if isinstance(cv, (int, np.integer)):
        if clusters is None:
            fold = assign_folds(_row_content(X, rows) or [np.arange(len(rows)) * 1.0], strata, int(cv), SEED)
        else:
            fold = assign_clusters(hash_numbers([clusters[rows]]), strata, int(cv), SEED)
        folds = [(rows[fold != number], rows[fold == number]) for number in range(int(cv))]
    elif hasattr(cv, "split"):
        groups = {} if clusters is None else {"groups": clusters[rows]}
        splits = cv.split(take_rows(X, rows), y[rows], **(groups | _check_method_params(X, split_params, rows)))
        folds = [(rows[train], rows[test]) for train, test in splits]
    else:
        counted = np.zeros(len(y), bool)
        counted[rows] = True
        folds = [_read_split(split, counted) for split in cv]
    folds = [fold for fold in folds if len(fold[1])]
    if folds and any(not len(train) for train, _ in folds):
        raise DataError(
            f"the {len(rows):,} rows cannot be divided into training rows and rows to predict",
            hint="pass more rows, or other folds: equal rows stay together",
        )
    tested = np.concatenate([np.zeros(0, np.int64), *(test for _, test in folds)])
    message = hint = ""
    if not folds:
        message, hint = "contains no rows to predict", "an iterator is exhausted after one fit: pass a list of splits"
    elif len(np.unique(tested)) < len(tested):
        message = "predicts some rows more than once"
        hint = "use a splitter in which each row is in at most one test set"
    elif any(np.isin(test, train).any() for train, test in folds):
        message, hint = "predicts training rows", "no row may be in both parts of a split: such scores are optimistic"
    elif clusters is not None and any(np.isin(clusters[test], clusters[train]).any() for train, test in folds):
        message, hint = "divides clusters", "pass a number of folds, or a splitter that respects groups, as GroupKFold"
    if message:
        raise ArgumentError(f"cv {message}", hint, parameter="cv")
    return folds


def _read_split(split: Any, counted: BoolArray) -> tuple[IntArray, IntArray]:
    """Return the training and test indices of a split, without rows of weight 0, which are False in ``counted``."""
    sides = [np.asarray(side) for side in split] if isinstance(split, (tuple, list, np.ndarray)) else []
    numbers = [
        side.ndim == 1 and (side.dtype.kind in "iu" or not side.size) and ((side >= 0) & (side < len(counted))).all()
        for side in sides
    ]
    if len(sides) != 2 or not all(numbers):
        raise ArgumentError(
            "cv must contain pairs of lists of row numbers, for training and prediction, from 0 to "
            f"{len(counted) - 1:,}; got {' '.join(reprlib.repr(split).split())}",
            hint="write it as cv=[(train, test), ...], as the splitters of scikit-learn return them",
            parameter="cv",
        )
    train, test = (side.astype(np.int64) for side in sides)
    return train[counted[train]], test[counted[test]]


def fit_and_predict(
    estimator: Any, X: Any, y: AnyArray, fold: tuple[IntArray, IntArray], reader: ScoreReader, params: Mapping[str, Any]
) -> FloatArray:
    """Fit an estimator on the training rows of ``fold``, a pair (train, test), and return its scores of the test rows."""
    train, test = fold
    own = y[train]
    if reader.classes is not None and (own == own[0]).all():
        return reader.constant(own[0], len(test))  # most classifiers cannot be fitted to one class
    estimator.fit(take_rows(X, train), own, **_check_method_params(X, params, train))
    return reader.read(estimator, take_rows(X, test))


def take_rows(X: Any, rows: IntArray, total: int | None = None) -> Any:
    """Return the ``rows`` of X, a frame, array or sparse matrix; X itself if their number is ``total``."""
    if len(rows) == total:
        return X
    return X.take(rows) if hasattr(X, "column_names") else _safe_indexing(X, rows)  # pyarrow; anything else


def _row_content(X: Any, rows: IntArray) -> list[AnyArray]:
    """Return the ``rows`` of all columns of X that can be read, to assign folds by; one number per row of a sparse X."""
    if issparse(X):
        # One number per row that depends on its entries alone: a fixed random combination of them.
        sparse = take_rows(X, rows).tocsr(copy=True)
        sparse.sum_duplicates()  # also sorts the entries of each row: equal rows are summed in the same order
        return [sparse @ np.random.default_rng(0).normal(size=sparse.shape[1])]
    content = []
    X = _as_array(X)
    columns = [_column(X, key) for key in column_keys(X).values()] or ([np.asarray(X)] if np.ndim(X) == 1 else [])
    for column in columns:
        try:
            content.append(from_array(column[rows], "").codes_or_values)
        except ColumnError:
            continue
    return content


def _open_columns(X: Any) -> Any:
    """Return X with columns that are fast to read: a sparse matrix by columns, a list as an array."""
    if issparse(X):
        return X.tocsc()  # type: ignore[attr-defined]
    return _as_array(X)


@dataclass(frozen=True)
class CalibratorColumns:
    """The columns that a calibrator is fitted on: features (name to key in X), and unused names for the predictions."""

    features: Mapping[str, Hashable]
    prediction: tuple[str, ...]
    excluded: Mapping[str, Hashable]  # reported by the fit, and not needed to predict

    def extract(self, X: Any, scores: FloatArray, *, excluded: bool = False) -> dict[str, Any]:
        """Return the ``scores`` as prediction columns and the features of X, also the ``excluded`` ones, as a dict."""
        X = _open_columns(X)
        keys = {**self.features, **self.excluded} if excluded else self.features
        columns = {name: _column(X, key) for name, key in keys.items()}
        return {**dict(zip(self.prediction, scores.T, strict=True)), **columns}


def choose_columns(
    X: Any, y: FloatArray, task: Task, features: Any, predictions: Sequence[str], exclude: Any = ()
) -> CalibratorColumns:
    """Choose the columns that the calibrator is fitted on: ``features`` or, if None, all usable ones not in ``exclude``."""
    keys = column_keys(X)
    excluded = {name: keys[name] for name in find_columns(exclude, X, "excluded column")}
    if features is not None:
        names = find_columns(features, X, "feature")
        check_unique_names(names)
        if both := [name for name in names if name in excluded]:
            raise ColumnError(f"column {both[0]!r} is named both as feature and in exclude", "leave it out of one of them")
        chosen = {name: keys[name] for name in names}
    else:
        if issparse(X) and len(keys) - len(excluded) > MAX_SPARSE_FEATURES:
            raise ArgumentError(
                f"X is a sparse matrix of {len(keys):,} columns, which are not made dense as features of the calibrator",
                hint="name some of them, as features=[0, 5]; features=[] corrects by the score alone",
                parameter="features",
            )
        X = _open_columns(X)
        others = {name: key for name, key in keys.items() if name not in excluded}
        chosen, copies = {}, []
        for name, key in others.items():
            try:
                if _is_usable(_column(X, key), name, y, task):
                    chosen[name] = key
            except _OutcomeCopyError:
                copies.append(name)
        if copies:
            warnings.warn(
                f"column {copies[0]!r} is identical to the outcome{f' ({len(copies)} such columns)' * (len(copies) > 1)}: "
                "the correction does not use it, but the estimator may\nhint: leave it out of X",
                LeakageWarning,
                stacklevel=4,
            )
    unused: list[str] = []
    for name in predictions:
        while name in keys or name in unused:
            name += "_"
        unused.append(name)
    return CalibratorColumns(chosen, tuple(unused), excluded)


def find_dropped_columns(
    X: Any,
    columns: CalibratorColumns,
    predict: Callable[[Any], FloatArray],
    correct: Callable[[Any, FloatArray], FloatArray],
) -> list[str]:
    """Return the columns that a correction depends on and the base estimator does not, such as those its pipeline drops.

    A column matters if a permutation of its values changes a prediction: ``predict(X)`` of the estimator, or
    ``correct(X, scores)``. One that seems not to matter to the estimator is permuted again in more rows.
    """
    random, rows = np.random.default_rng(SEED), len(X) if not issparse(X) else X.shape[0]  # type: ignore[attr-defined]
    drawn = random.permutation(rows)[:FIX_ROWS]
    sample = take_rows(X, drawn, None)
    scores = predict(sample)
    if (scores == scores[0]).all():
        return []  # a constant, which the correction replaces
    corrected, dropped = correct(sample, scores), []
    for name, key in columns.features.items():
        permuted = _permute_column(sample, key, random.permutation(len(drawn)))
        if np.array_equal(correct(permuted, scores), corrected):
            continue
        few = np.arange(min(BASE_ROWS, len(drawn)))
        # Sums over other numbers of rows may differ in the last bits.
        if all(
            np.allclose(predict(take_rows(permuted, some)), scores[some], **SAME) for some in (few, np.arange(len(drawn)))
        ):
            dropped.append(name)
    return dropped


def _permute_column(X: Any, key: Any, order: IntArray) -> Any:
    """Return a copy of X with one column in another order of its rows."""
    if issparse(X):
        sparse: Any = X
        changed = sparse.tolil(copy=True)
        changed[:, [key]] = sparse.tocsc()[order][:, [key]]
        return changed.asformat(sparse.format)
    if hasattr(X, "columns"):
        return permute_column(X, key, order)
    permuted = np.array(X)
    permuted[:, key] = permuted[order, key]
    return permuted.tolist() if isinstance(X, list) else permuted


def column_keys(X: Any) -> dict[str, Hashable]:
    """Return the keys of the columns of X by name: a frame's own names, else x0, x1, ...; none if X is one-dimensional."""
    names = getattr(X, "column_names", None)  # pyarrow
    if names is None:
        names = getattr(X, "columns", None)
    if names is not None:
        check_unique_names([str(name) for name in names])
        return {str(name): name for name in names}
    shape = X.shape if hasattr(X, "shape") else np.shape(X)
    return {f"x{position}": position for position in range(shape[1])} if len(shape) == 2 else {}


def _column(X: Any, key: Hashable) -> Any:
    if issparse(X):
        sparse: Any = X
        return sparse.tocsc()[:, [key]].toarray().ravel()
    if hasattr(X, "columns"):
        column = X[key]
        dictionary = "dictionary" in str(getattr(column, "type", ""))
        return np.array(column.to_pylist(), object) if dictionary else np.asarray(column)
    return X[:, key]


class _OutcomeCopyError(Exception):
    """A column is identical to the outcome."""


def _is_usable(column: AnyArray, name: str, y: FloatArray, task: Task) -> bool:
    """Return whether a column can be read; raise if it is a copy of the outcome."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            table = read({name: column}, prediction=np.zeros(len(column)), features=[name])
        except ColumnError:
            return False
        schema = replace(table.schema, task=task)
        try:
            RowSummary().include(replace(table, schema=schema, outcome=y)).check(schema)
        except ColumnError:
            raise _OutcomeCopyError from None
    return bool(table.columns)


def _as_array(X: Any) -> Any:
    return np.asarray(X) if isinstance(X, (list, tuple)) else X


def find_columns(given: Any, X: Any, role: str) -> list[str]:
    """Return the names of the columns of X ``given`` by name or position, one or several; raise if one is unknown."""
    keys, names = column_keys(X), []
    single = isinstance(given, (str, int, np.integer)) or (isinstance(given, tuple) and str(given) in keys)
    for name in [given] if single else given:
        if str(name) in keys and not isinstance(name, bool):
            names.append(str(name))
        elif isinstance(name, (int, np.integer)) and not isinstance(name, bool) and -len(keys) <= name < len(keys):
            names.append(list(keys)[name])
        else:
            listed = ", ".join([*list(keys)[:12], *(["..."] if len(keys) > 12 else [])])
            raise ColumnError(f"X has no column {name!r} to use as {role}", hint=f"its columns are {listed or 'none'}")
    return names
