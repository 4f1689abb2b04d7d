"""What a calibrator is shown of X, whatever X is: a frame, an array, a sparse matrix, or nothing with columns."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from scipy.sparse import issparse
from sklearn.utils import _safe_indexing

from trueup.data.checks import check_outcome_copies
from trueup.data.columns import check_unique_names, from_array
from trueup.data.frame import read
from trueup.errors import ColumnError, IdentifierWarning

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.schema import Task


@dataclass(frozen=True)
class Layout:
    """What the calibrator is shown of X: names for it, keys of X, and names of the predictions that clash with neither."""

    names: tuple[str, ...]
    keys: tuple[Hashable, ...]
    prediction: tuple[str, ...]

    def show(self, X: Any, scores: FloatArray) -> dict[str, Any]:
        """Lay out predictions and features as a dict of columns."""
        X = _indexed(X)
        columns = {name: column_of(X, key) for name, key in zip(self.names, self.keys, strict=True)}
        return {**dict(zip(self.prediction, scores.T, strict=True)), **columns}


def keys_of(X: Any) -> dict[str, Hashable]:
    """Name the columns of X: a frame by its own names, anything else x0, x1, ...; one dimension has none."""
    names = getattr(X, "column_names", None)  # pyarrow
    if names is None:
        names = getattr(X, "columns", None)
    if names is not None:
        check_unique_names([str(name) for name in names])
        return {str(name): name for name in names}
    shape = X.shape if hasattr(X, "shape") else np.shape(X)
    return {f"x{at}": at for at in range(shape[1])} if len(shape) == 2 else {}


def column_of(X: Any, key: Hashable) -> Any:
    """Take one column off X."""
    if issparse(X):
        columns: Any = X
        return columns.tocsc()[:, [key]].toarray().ravel()
    if hasattr(X, "columns"):
        column = X[key]
        return (
            np.array(column.to_pylist(), object) if "dictionary" in str(getattr(column, "type", "")) else np.asarray(column)
        )
    return X[:, key]


def lay_out(X: Any, y: FloatArray, task: Task, wanted: Any, predictions: Sequence[str]) -> Layout:
    """Choose what the calibrator is shown.

    Parameters
    ----------
    X : frame, array, sparse matrix, ...
    y : ndarray
        The outcome; for several classes the place of each.
    task : {"binary", "regression", "multiclass"}
    wanted : column names or positions, or None
        None is every column that can be read and does not restate the outcome; none of a sparse matrix.
    predictions : sequence of str
        Names for the predictions, to be changed where X has them already.
    """
    keys = keys_of(X)
    if wanted is not None:
        names = [find_name(one, X, "feature") for one in several(wanted, X)]
        check_unique_names(names)
        keys = {name: keys[name] for name in names}
    elif issparse(X):
        keys = {}
    else:
        X = _indexed(X)
        keys = {name: key for name, key in keys.items() if _useful(column_of(X, key), name, y, task)}
    free: list[str] = []
    for name in predictions:
        while name in keys or name in free:
            name += "_"
        free.append(name)
    return Layout(tuple(keys), tuple(keys.values()), tuple(free))


def _useful(column: AnyArray, name: str, y: FloatArray, task: Task) -> bool:
    """Say whether a column can be read, and says something else than the outcome."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IdentifierWarning)
            table = read({name: column}, prediction=np.zeros(len(column)), features=[name])
        check_outcome_copies(table.schema.features, table.columns, y, task)
    except ColumnError:
        return False
    return bool(table.columns)


def _indexed(X: Any) -> Any:
    """Make one array of lists."""
    return np.asarray(X) if isinstance(X, (list, tuple)) else X


def rows_of(X: Any, rows: IntArray) -> Any:
    """Take some rows of whatever has rows."""
    return X.take(rows) if hasattr(X, "column_names") else _safe_indexing(X, rows)  # pyarrow, which came late to the latter


def several(names: Any, X: Any) -> list[Any]:
    """Take one name or position for a list of one."""
    if isinstance(names, (str, int, np.integer)) or (isinstance(names, tuple) and str(names) in keys_of(X)):
        return [names]
    return list(names)


def find_name(wanted: Any, X: Any, role: str) -> str:
    """Find a column of X by its name, or by its position."""
    keys = keys_of(X)
    if str(wanted) in keys and not isinstance(wanted, bool):
        return str(wanted)
    if isinstance(wanted, (int, np.integer)) and not isinstance(wanted, bool) and -len(keys) <= wanted < len(keys):
        return list(keys)[wanted]
    listed = ", ".join([*list(keys)[:12], *(["..."] if len(keys) > 12 else [])])
    raise ColumnError(f"X has no column {wanted!r} to use as {role}", hint=f"its columns are {listed or 'none'}")


def content_of(X: Any, rows: IntArray) -> list[AnyArray]:
    """Give what rows are known by when they are dealt into folds: every column that can be read."""
    if issparse(X):
        return _content_of_sparse(rows_of(X, rows))
    found = []
    X = _indexed(X)
    keys = keys_of(X)
    columns = [column_of(X, key) for key in keys.values()] or ([np.asarray(X)] if np.ndim(X) == 1 else [])
    for column in columns:
        try:
            found.append(from_array(column[rows], "").codes_or_values)
        except ColumnError:
            continue
    return found


def _content_of_sparse(X: Any) -> list[FloatArray]:
    """Give a number a row that depends on its entries alone: a fixed random mixture of them."""
    rows = X.tocsr(copy=True)
    rows.sum_duplicates()  # sorts the entries of each row too: equal rows are summed up in the same order
    return [rows @ np.random.default_rng(0).normal(size=rows.shape[1])]
