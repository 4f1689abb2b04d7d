"""Trees, grown by LightGBM on features that are binned once. The only importer of lightgbm.

Category codes are shifted by one on the way in, since LightGBM cannot set a code of -1 apart; what comes out is our own
arrays, in the codes of the Table.
"""

from __future__ import annotations

import ctypes
import os
import sys
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

    from trueup._types import AnyArray, FloatArray, IntArray


Joined = lgb.Dataset

Loss = Literal["log", "squared", "classes"]
OBJECTIVES = {"log": "cross_entropy", "squared": "regression", "classes": "multiclass"}
METRICS = {"log": "cross_entropy", "squared": "l2", "classes": "multi_logloss"}
ONE_BY_ONE = 100  # categories of up to so many levels are set apart one level at a time: less noise, and plainer to read
SAMPLE = 100_000  # rows from which bins are found; more would cost memory and change next to nothing
BATCH = 65_536  # rows that are read at a time where there are more than that
NOTHING = 1e-30  # the weight of a row that stands for none: LightGBM takes no empty data, and no weights that sum to 0
CONNECT_MINUTES = 2  # that LightGBM waits for its connections: all workers are running by then
CATEGORICAL, DEFAULT_LEFT, MISSING_KIND, MISSING_NAN = 1, 2, 12, 8  # bits of LightGBM's decision_type
_connected = False


def silence() -> None:
    """Tell LightGBM to say nothing in this thread: it keeps its level of speech for each thread apart."""
    lgb.Dataset(np.zeros((1, 1)), params={"verbosity": -1, "num_threads": 1}).construct()


def connect_workers(addresses: Sequence[tuple[str, int]], rank: int) -> None:
    """Open LightGBM's own connections between workers, once per process; ``tree_learner="data"`` then sees all rows."""
    global _connected
    if len(addresses) < 2 or _connected:
        return
    silence()
    machines = ",".join(f"{host}:{port}" for host, port in addresses).encode()
    _safe_call(_LIB.LGBM_NetworkInit(machines, addresses[rank][1], CONNECT_MINUTES, len(addresses)))
    _connected = True


def release_memory() -> None:
    """Give memory that was freed back to the system: the C library of Linux keeps what each thread has let go.

    It is that of the whole process; it takes some milliseconds, and nothing is slower afterwards.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@dataclass(frozen=True)
class GrowthParameters:
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
    machines : int
        How many processes grow each tree together, each from its own rows; LightGBM's network must stand. The trees are
        those of one process, but where a category has more than 100 levels: LightGBM then asks how many rows have each,
        and of several machines takes the share of the hessians for it.
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
    machines: int = 1

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
        if self.machines > 1:
            found |= {"tree_learner": "data", "num_machines": self.machines, "pre_partition": True}
        return found

    def binning(self) -> dict[str, Any]:
        """Say how values are cut into bins; LightGBM wants to hear the same words again in training."""
        return {
            "max_bin": self.bins, "feature_pre_filter": False, "enable_bundle": False, "verbosity": -1,
            "bin_construct_sample_cnt": SAMPLE,
            "num_threads": self.threads,
        }  # fmt: skip


class _Rows(lgb.Sequence):
    """Rows of columns for LightGBM, codes shifted by one: some at a time, from memory or from a mapped file."""

    batch_size = BATCH

    def __init__(self, columns: Sequence[AnyArray], categorical: Sequence[bool]) -> None:
        self._columns = [(column, 1.0 if is_code else 0.0) for column, is_code in zip(columns, categorical, strict=True)]

    def __len__(self) -> int:
        return len(self._columns[0][0])

    def __getitem__(self, rows: Any) -> FloatArray:
        first = self._columns[0][0][rows]
        found = np.empty((len(first), len(self._columns)))
        for at, (column, shift) in enumerate(self._columns):
            np.add(column[rows], shift, out=found[:, at])
        return found


class BinnedDataset:
    """The features of all rows, cut into bins once; what is held is a byte a value, and rows a few at a time.

    Parameters
    ----------
    columns : sequence of ndarray
        float64 with NaN for missing, or int32 codes with -1 for missing; in memory, or mapped from a file. Of no rows, one
        of missing values stands for them.
    categorical : sequence of bool
    growth : GrowthParameters
    reference : BinnedDataset, optional
        Some rows whose bins are taken, so that parts of the rows are cut alike everywhere. Without, they are found from
        up to 100,000 of the rows.
    """

    def __init__(
        self,
        columns: Sequence[AnyArray],
        categorical: Sequence[bool],
        growth: GrowthParameters,
        *,
        reference: BinnedDataset | None = None,
    ) -> None:
        self.columns = len(columns)
        self._dataset: lgb.Dataset | None = None
        if not columns:
            return
        if not len(columns[0]):
            columns = [np.full(1, -1 if is_code else np.nan) for is_code in categorical]
        rows, words = _Rows(columns, categorical), growth.binning()
        places = [at for at, is_code in enumerate(categorical) if is_code]
        if reference is not None:
            like = reference._dataset
        else:
            some = slice(None) if len(rows) <= SAMPLE else _sampled(len(rows), growth)
            like = lgb.Dataset(rows[some], params=words, categorical_feature=places).construct()
            if len(rows) <= SAMPLE:
                self._dataset = like
                return
        self._dataset = lgb.Dataset(rows, reference=like, params=words, categorical_feature=places).construct()
        _let_go(self._dataset)

    def join(
        self,
        F: FloatArray,
        label: FloatArray,
        weight: FloatArray | None,
        start: FloatArray | None,
        growth: GrowthParameters,
        *,
        sample: FloatArray | None = None,
    ) -> lgb.Dataset:
        """Put the prediction columns before the features; nothing of the features is binned again.

        Where ``sample`` is given, the predictions of some rows, the bins of the prediction columns are found from it.
        """
        if not len(F):
            F, label, weight = np.zeros((1, F.shape[1])), np.zeros(1), np.full(1, NOTHING)
            start = None if start is None else F
        scores = None if start is None else start.ravel(order="F")
        words = growth.binning()
        like = None if sample is None else lgb.Dataset(sample, params=words).construct()
        found = lgb.Dataset(F, label=label, weight=weight, init_score=scores, reference=like, params=words).construct()
        _let_go(found)
        if self._dataset is not None:
            # `Dataset.add_features_from` does this and then warns of raw data, which we have no use for.
            _safe_call(_LIB.LGBM_DatasetAddFeaturesFrom(found._handle, self._dataset._handle))
            found.feature_name = found.get_feature_name()
        return found


def _sampled(rows: int, growth: GrowthParameters) -> IntArray:
    """Say which rows LightGBM would find its bins from, ascending."""
    some = lgb.Dataset(np.zeros((1, 1)), params=growth.binning())._create_sample_indices(total_nrow=rows)
    return np.asarray(some, np.int64)


def _let_go(data: lgb.Dataset) -> None:
    """Forget what a Dataset was made from: LightGBM has its own copy of everything, and the others may go."""
    data.reference = data.used_indices = data.label = data.weight = data.init_score = None


def _forget_start(data: lgb.Dataset) -> None:
    """Forget the scores that a booster starts from, 8 bytes a row: it has taken its own copy."""
    data.set_field("init_score", None)


class TreeGrower:
    """Trees on some of the rows, judged on others.

    Parameters
    ----------
    binned : BinnedDataset
    data : lightgbm.Dataset
        What `BinnedDataset.join` gave.
    train, valid : ndarray of int64 or None
        Rows to learn from and to judge by; None is all of them, and none.
    """

    def __init__(
        self,
        binned: BinnedDataset,
        data: lgb.Dataset,
        train: IntArray | None,
        valid: IntArray | None,
        growth: GrowthParameters,
    ) -> None:
        self._outputs, self._features, self._shared = growth.outputs, binned.columns, growth.machines > 1
        self._counts = [0]
        if train is None:
            own = data
        elif len(train):
            own = _subset(data, train)
        else:  # there is nothing here to learn from, and another machine has it
            own = _subset(data, np.zeros(1, np.int64)).set_weight(np.full(1, NOTHING))
        self._booster = lgb.Booster(growth.parameters(binned.columns), own)
        self._judged = valid is not None and len(valid) > 0
        if own is not data:
            _forget_start(own)
        if valid is not None and self._judged:
            judge = _subset(data, valid)
            self._booster.add_valid(judge, "valid")
            _forget_start(judge)

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
        text = self._booster.model_to_string(num_iteration=self._counts[trees])
        return _read(text, self._outputs, self._features, by_weight=self._shared)


def _subset(data: lgb.Dataset, rows: IntArray) -> lgb.Dataset:
    """Take some rows, ascending; `subset` alone would sort a list of Python's own numbers, at ten times the time."""
    found = data.subset([0])
    found.used_indices = np.sort(rows).astype(np.int32)  # type: ignore[assignment]
    found.construct()
    _let_go(found)
    return found


def _read(text: str, outputs: int, features: int, *, by_weight: bool) -> Forest:
    """Read LightGBM's text of a model that it has just written."""
    forests = []
    for at, block in enumerate(text.split("\nTree=")[1:]):
        lines = dict(line.split("=", 1) for line in block.split("\n\n", 1)[0].splitlines() if "=" in line)
        grown = lines if int(lines["num_leaves"]) > 1 else {}
        arrays = _nodes(grown, outputs, features, by_weight=by_weight)
        arrays["root"] = np.array([0 if len(arrays["feature"]) else ~0])
        arrays["output"] = np.array([at % outputs])
        arrays["value"] = _numbers(lines, "leaf_value", np.float64)
        forests.append(Forest(**{name: array.astype(KINDS.get(name, np.int32)) for name, array in arrays.items()}))
    return join_forests(forests)


def _nodes(lines: dict[str, str], outputs: int, features: int, *, by_weight: bool) -> dict[str, AnyArray]:
    """Read the nodes of one tree; no lines are no nodes."""
    places, decision = (_numbers(lines, name, np.int64) for name in ("split_feature", "decision_type"))
    left, right = (_numbers(lines, name, np.int64) for name in ("left_child", "right_child"))
    threshold = _numbers(lines, "threshold", np.float64)
    categorical = decision & CATEGORICAL > 0
    # Where a feature had no missing values LightGBM would read one as 0; here it goes the way of most rows.
    # Where several machines grew the tree its counts are wrong, and the sums of its hessians are right.
    names = ("internal_weight", "leaf_weight") if by_weight else ("internal_count", "leaf_count")
    mass = np.concatenate([_numbers(lines, name, np.float64) for name in names])
    heavier = mass[_at(left, len(places))] >= mass[_at(right, len(places))]
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


def _at(child: IntArray, nodes: int) -> IntArray:
    """Give the place of a child among the nodes and, after them, the leaves."""
    return np.where(child >= 0, child, nodes + ~child)


def _numbers(lines: dict[str, str], name: str, kind: Any) -> AnyArray:
    return np.array(lines.get(name, "").split(), kind)
