"""Trees, grown by LightGBM on features that are binned once. The only importer of lightgbm.

Category codes are shifted by one on the way in, since LightGBM cannot set a code of -1 apart; what comes out is our own
arrays, in the codes of the Table.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # threads that wait for each other do not take the others' cores

import lightgbm as lgb
import numpy as np
from lightgbm.basic import _LIB, _safe_call  # type: ignore[attr-defined]

from trueup.errors import TrueupError
from trueup.kernels.trees import DEEPEST, KINDS, Forest, join_forests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Rows = NDArray[np.int64]

__all__ = ["Binned", "Grower", "Growth", "Joined", "Loss", "quiet"]

Joined = lgb.Dataset

Loss = Literal["log", "squared", "classes"]
OBJECTIVES = {"log": "cross_entropy", "squared": "regression", "classes": "multiclass"}
METRICS = {"log": "cross_entropy", "squared": "l2", "classes": "multi_logloss"}
ONE_BY_ONE = 100  # categories of up to so many levels are set apart one level at a time: less noise, and plainer to read
SAMPLE = 100_000  # rows from which bins are found; more would cost memory and change next to nothing
CATEGORICAL, DEFAULT_LEFT, MISSING_KIND, MISSING_NAN = 1, 2, 12, 8  # bits of LightGBM's decision_type


def quiet() -> None:
    """Tell LightGBM to say nothing in this thread: it keeps its level of speech for each thread apart."""
    lgb.Dataset(np.zeros((1, 1)), params={"verbosity": -1, "num_threads": 1}).construct()


@dataclass(frozen=True)
class Growth:
    """How trees are grown.

    Attributes
    ----------
    loss : {"log", "squared", "classes"}
    outputs : int
        How many prediction columns there are, each with trees of its own.
    depth, leaves : int or None
        Bounds on each tree; depth None is none.
    learning_rate, feature_fraction, l2, min_hessian : float
    monotone : bool
        Let no tree fall where the prediction rises.
    bins : int
        The most bins a numeric feature is cut into.
    seed, threads : int
    """

    loss: Loss
    outputs: int = 1
    depth: int | None = 2
    leaves: int = 4
    learning_rate: float = 0.2
    feature_fraction: float = 0.5
    l2: float = 1.0
    min_hessian: float = 5.0
    monotone: bool = False
    bins: int = 63
    seed: int = 0
    threads: int = 1

    def parameters(self, features: int) -> dict[str, Any]:
        """Say it in LightGBM's words, for this many features after the prediction columns."""
        found = {
            "objective": OBJECTIVES[self.loss], "metric": METRICS[self.loss], "boost_from_average": False, "verbosity": -1,
            "max_depth": min(self.depth or DEEPEST, DEEPEST), "num_leaves": self.leaves,
            "learning_rate": self.learning_rate, "feature_fraction": self.feature_fraction, "lambda_l2": self.l2,
            "min_sum_hessian_in_leaf": max(self.min_hessian, 1e-3), "min_data_in_leaf": 1, "max_cat_to_onehot": ONE_BY_ONE,
            "seed": self.seed, "deterministic": True, "force_col_wise": True,
            **self.binning(),
        }  # fmt: skip
        if self.loss == "classes":
            found["num_class"] = self.outputs
        if self.monotone:
            found["monotone_constraints"] = [1] * self.outputs + [0] * features
        return found

    def binning(self) -> dict[str, Any]:
        """Say how values are cut into bins; LightGBM wants to hear the same words again in training."""
        return {
            "max_bin": self.bins, "feature_pre_filter": False, "enable_bundle": False, "verbosity": -1,
            "bin_construct_sample_cnt": SAMPLE,
            "num_threads": self.threads,
        }  # fmt: skip


class Binned:
    """The features of all rows, cut into bins once.

    Parameters
    ----------
    columns : sequence of ndarray
        float64 with NaN for missing, or int32 codes with -1 for missing.
    categorical : sequence of bool
    growth : Growth
    """

    def __init__(self, columns: Sequence[NDArray[Any]], categorical: Sequence[bool], growth: Growth) -> None:
        self.columns = len(columns)
        self._dataset = None
        if not columns:
            return
        matrix = np.empty((len(columns[0]), len(columns)), order="F")
        for at, column in enumerate(columns):
            np.add(column, 1.0 if categorical[at] else 0.0, out=matrix[:, at])
        places = [at for at, is_categorical in enumerate(categorical) if is_categorical]
        self._dataset = lgb.Dataset(matrix, params=growth.binning(), categorical_feature=places).construct()

    def join(self, F: Floats, label: Floats, weight: Floats | None, start: Floats | None, growth: Growth) -> lgb.Dataset:
        """Put the prediction columns before the features; nothing of the features is binned again."""
        scores = None if start is None else start.ravel(order="F")
        found = lgb.Dataset(F, label=label, weight=weight, init_score=scores, params=growth.binning()).construct()
        if self._dataset is not None:
            # `Dataset.add_features_from` does this and then warns of raw data, which we have no use for.
            _safe_call(_LIB.LGBM_DatasetAddFeaturesFrom(found._handle, self._dataset._handle))
            found.feature_name = found.get_feature_name()
        return found


class Grower:
    """Trees on some of the rows, judged on others.

    Parameters
    ----------
    binned : Binned
    data : lightgbm.Dataset
        What `Binned.join` gave.
    train, valid : ndarray of int64 or None
        Rows to learn from and to judge by; None is all of them, and none.
    """

    def __init__(self, binned: Binned, data: lgb.Dataset, train: Rows | None, valid: Rows | None, growth: Growth) -> None:
        self._outputs, self._features = growth.outputs, binned.columns
        self._counts = [0]
        own = data if train is None else _subset(data, train)
        self._booster = lgb.Booster(growth.parameters(binned.columns), own)
        self._judged = valid is not None and len(valid) > 0
        if valid is not None and self._judged:
            self._booster.add_valid(_subset(data, valid), "valid")

    def grow(self, trees: int) -> list[float]:
        """Grow so many more trees (of each output); give the mean loss of the rows to judge by after each."""
        losses = []
        for _ in range(trees):
            try:
                self._booster.update()
            except lgb.basic.LightGBMError as error:
                raise TrueupError(
                    f"LightGBM could not grow a tree: {error}", hint="raise min_hessian, or bound leaves"
                ) from error
            self._counts.append(self._booster.current_iteration())  # one that finds no split leaves no tree behind
            if self._judged:
                losses.append(float(self._booster.eval_valid()[0][2]))
        return losses

    def forest(self, trees: int) -> Forest:
        """Give what the first so many calls for a tree (of each output) left, as our own arrays."""
        if self._counts[trees] == 0:
            return join_forests([])
        return _read(self._booster.model_to_string(num_iteration=self._counts[trees]), self._outputs, self._features)


def _subset(data: lgb.Dataset, rows: Rows) -> lgb.Dataset:
    """Take some rows, ascending; `subset` alone would sort a list of Python's own numbers, at ten times the time."""
    found = data.subset([0])
    found.used_indices = np.sort(rows).astype(np.int32)  # type: ignore[assignment]
    return found.construct()


def _read(text: str, outputs: int, features: int) -> Forest:
    """Read LightGBM's text of a model that it has just written."""
    forests = []
    for at, block in enumerate(text.split("\nTree=")[1:]):
        lines = dict(line.split("=", 1) for line in block.split("\n\n", 1)[0].splitlines() if "=" in line)
        arrays = _nodes(lines, outputs, features) if int(lines["num_leaves"]) > 1 else _nodes({}, outputs, features)
        arrays["root"] = np.array([0 if len(arrays["feature"]) else ~0])
        arrays["output"] = np.array([at % outputs])
        arrays["value"] = _numbers(lines, "leaf_value", np.float64)
        forests.append(Forest(**{name: array.astype(KINDS.get(name, np.int32)) for name, array in arrays.items()}))
    return join_forests(forests)


def _nodes(lines: dict[str, str], outputs: int, features: int) -> dict[str, NDArray[Any]]:
    """Read the nodes of one tree; no lines are no nodes."""
    places, decision = (_numbers(lines, name, np.int64) for name in ("split_feature", "decision_type"))
    left, right = (_numbers(lines, name, np.int64) for name in ("left_child", "right_child"))
    threshold = _numbers(lines, "threshold", np.float64)
    categorical = decision & CATEGORICAL > 0
    # Where a feature had no missing values LightGBM would read one as 0; here it goes the way of most rows.
    counts = np.concatenate([_numbers(lines, name, np.int64) for name in ("internal_count", "leaf_count")])
    heavier = counts[_at(left, len(places))] >= counts[_at(right, len(places))]
    missing_left = np.where((decision & MISSING_KIND) == MISSING_NAN, decision & DEFAULT_LEFT > 0, heavier)
    bounds = np.concatenate([[0], _numbers(lines, "cat_boundaries", np.int64)])
    which = np.where(categorical, threshold + 1, 0).astype(np.int64)
    return {
        "feature": np.where(places < outputs, features + places, places - outputs),
        "threshold": np.where(categorical, 0.0, threshold),
        "left": left,
        "right": right,
        "missing_left": missing_left & ~categorical,
        "words_at": np.where(categorical, bounds[which], -1),
        "words_in": np.where(categorical, bounds[np.minimum(which + 1, len(bounds) - 1)] - bounds[which], 0),
        "words": _numbers(lines, "cat_threshold", np.uint32),
    }


def _at(child: NDArray[np.int64], nodes: int) -> NDArray[np.int64]:
    """Give the place of a child among the nodes and, after them, the leaves."""
    return np.where(child >= 0, child, nodes + ~child)


def _numbers(lines: dict[str, str], name: str, kind: Any) -> NDArray[Any]:
    return np.array(lines.get(name, "").split(), kind)
