"""Boosted trees by LightGBM, on features that are binned once. No other module imports lightgbm.

Category codes are shifted by one on input, since LightGBM cannot isolate a code of -1; trees are returned as arrays of
`trueup.kernels.trees.Forest`, in the codes of the Table.
"""

from __future__ import annotations

import ctypes
import os
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads do not occupy the cores of others

import lightgbm as lgb
import numpy as np
from lightgbm.basic import _LIB, _safe_call  # type: ignore[attr-defined]

from trueup.errors import TrueupError
from trueup.kernels.trees import ARRAY_TYPES, MAX_DEPTH, Forest, join_forests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, FloatArray, IntArray


Loss = Literal["log", "squared", "classes"]
OBJECTIVES = {"log": "cross_entropy", "squared": "regression", "classes": "multiclass"}
METRICS = {"log": "cross_entropy", "squared": "l2", "classes": "multi_logloss"}
MAX_ONE_HOT = 100  # categories of at most this many levels are split one level against the rest: less noise, readable
SAMPLE_ROWS = 100_000  # bins are found from this many rows; more would cost memory and hardly change them
BATCH_ROWS = 65_536  # rows read at a time
NO_WEIGHT = 1e-30  # weight of a placeholder row: LightGBM accepts neither empty data nor weights that sum to 0
CONNECT_MINUTES = 2  # timeout of LightGBM's connections; all workers are running by then
CATEGORICAL, DEFAULT_LEFT, MISSING_TYPE, MISSING_NAN = 1, 2, 12, 8  # bits of LightGBM's decision_type
_connected = False


def silence() -> None:
    """Disable the log messages of LightGBM in this thread; it keeps its verbosity per thread."""
    lgb.Dataset(np.zeros((1, 1)), params={"verbosity": -1, "num_threads": 1}).construct()


def connect_workers(addresses: Sequence[tuple[str, int]], rank: int) -> None:
    """Open LightGBM's own connections between workers, once per process: ``tree_learner="data"`` then uses all rows."""
    global _connected
    if len(addresses) < 2 or _connected:
        return
    silence()
    machines = ",".join(f"{host}:{port}" for host, port in addresses).encode()
    _safe_call(_LIB.LGBM_NetworkInit(machines, addresses[rank][1], CONNECT_MINUTES, len(addresses)))
    _connected = True


def release_memory() -> None:
    """Return freed memory to the system: the C library of Linux keeps it per thread. Takes a few milliseconds."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


@dataclass(frozen=True)
class GrowthParameters:
    """The parameters of LightGBM's trees, and of the search for their number.

    With several ``machines``, each process has some of the rows, and all grow the same trees, over the connections of
    `connect_workers`. These are the trees of one process, except for categories of more than 100 levels: LightGBM then uses
    the number of rows per level, which several machines estimate by shares of the hessians.
    """

    loss: Loss
    outputs: int = 1  # prediction columns, each with trees of its own
    depth: int | None = 2  # None is unlimited
    leaves: int = 4
    learning_rate: float = 0.2
    feature_fraction: float = 0.5
    l2: float = 1.0
    min_hessian: float = 5.0
    monotone: bool = False  # no tree decreases in the prediction
    bins: int = 63
    seed: int = 0
    trees: int = 100  # maximum of each model and round
    patience: int = 20  # number of trees without improvement after which a round stops growing
    finer: float | None = None  # a lower learning rate that the first round also tries if few trees are enough
    threads: int = 1
    machines: int = 1

    def training_parameters(self, features: int) -> dict[str, Any]:
        """Return the parameters of LightGBM for ``features`` features that follow the prediction columns."""
        parameters = {
            "objective": OBJECTIVES[self.loss], "metric": METRICS[self.loss], "boost_from_average": False, "verbosity": -1,
            "max_depth": min(self.depth or MAX_DEPTH, MAX_DEPTH), "num_leaves": self.leaves,
            "learning_rate": self.learning_rate, "feature_fraction": self.feature_fraction, "lambda_l2": self.l2,
            "min_sum_hessian_in_leaf": max(self.min_hessian, 1e-3), "min_data_in_leaf": 1, "max_cat_to_onehot": MAX_ONE_HOT,
            "seed": self.seed, "deterministic": True, "force_col_wise": True,
            **self.binning_parameters(),
        }  # fmt: skip
        if self.loss == "classes":
            parameters["num_class"] = self.outputs
        if self.monotone:
            parameters["monotone_constraints"] = [1] * self.outputs + [0] * features
        if self.machines > 1:
            parameters |= {"tree_learner": "data", "num_machines": self.machines, "pre_partition": True}
        return parameters

    def binning_parameters(self) -> dict[str, Any]:
        """Return the parameters of LightGBM that determine bins; training must repeat them."""
        return {
            "max_bin": self.bins, "feature_pre_filter": False, "enable_bundle": False, "verbosity": -1,
            "bin_construct_sample_cnt": SAMPLE_ROWS, "num_threads": self.threads,
        }  # fmt: skip


class _RowSequence(lgb.Sequence):
    """Rows of columns for LightGBM, codes shifted by one, read in batches from memory or a memory-mapped file."""

    batch_size = BATCH_ROWS

    def __init__(self, columns: Sequence[AnyArray], categorical: Sequence[bool]) -> None:
        self._columns = [(column, 1.0 if is_code else 0.0) for column, is_code in zip(columns, categorical, strict=True)]

    def __len__(self) -> int:
        return len(self._columns[0][0])

    def __getitem__(self, rows: Any) -> FloatArray:
        first = self._columns[0][0][rows]
        batch = np.empty((len(first), len(self._columns)))
        for index, (column, shift) in enumerate(self._columns):
            np.add(column[rows], shift, out=batch[:, index])
        return batch


class BinnedDataset:
    """The features of all rows, binned once: one byte per value.

    Columns are float64 with NaN for missing, or int32 codes with -1 for missing, in memory or memory-mapped. Bins are
    those of ``reference``, so that all partitions of the rows are binned alike, or found from up to 100,000 of the rows.
    Without rows, one row of missing values is a placeholder.
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
        rows, parameters = _RowSequence(columns, categorical), growth.binning_parameters()
        code_columns = [index for index, is_code in enumerate(categorical) if is_code]
        if reference is not None:
            like = reference._dataset
        else:
            sample: Any = slice(None)
            if len(rows) > SAMPLE_ROWS:  # the rows LightGBM itself would sample, ascending
                empty = lgb.Dataset(np.zeros((1, 1)), params=parameters)
                sample = np.asarray(empty._create_sample_indices(total_nrow=len(rows)), np.int64)
            like = lgb.Dataset(rows[sample], params=parameters, categorical_feature=code_columns).construct()
            if len(rows) <= SAMPLE_ROWS:
                self._dataset = like
                return
        self._dataset = lgb.Dataset(rows, reference=like, params=parameters, categorical_feature=code_columns).construct()
        _drop_inputs(self._dataset)

    def with_prediction(
        self,
        F: FloatArray,
        label: FloatArray,
        weight: FloatArray | None,
        start: FloatArray | None,
        growth: GrowthParameters,
        *,
        sample: FloatArray | None = None,
    ) -> lgb.Dataset:
        """Return a Dataset with the scores ``F`` as columns before the features, which are not binned again.

        ``start`` are the initial scores of trees; ``sample``, scores of some rows, determines the bins of ``F`` if given.
        """
        if not len(F):
            F, label, weight = np.zeros((1, F.shape[1])), np.zeros(1), np.full(1, NO_WEIGHT)
            start = None if start is None else F
        scores = None if start is None else start.ravel(order="F")
        parameters = growth.binning_parameters()
        like = None if sample is None else lgb.Dataset(sample, params=parameters).construct()
        joined = lgb.Dataset(
            F, label=label, weight=weight, init_score=scores, reference=like, params=parameters
        ).construct()
        _drop_inputs(joined)
        if self._dataset is not None:
            # `Dataset.add_features_from` does the same, and then warns of raw data, which is not needed.
            _safe_call(_LIB.LGBM_DatasetAddFeaturesFrom(joined._handle, self._dataset._handle))
            joined.feature_name = joined.get_feature_name()
        return joined


def _drop_inputs(data: lgb.Dataset) -> None:
    """Drop the references to what a Dataset was made from; LightGBM has its own copy."""
    data.reference = data.used_indices = data.label = data.weight = data.init_score = None


def _subset(data: lgb.Dataset, rows: IntArray) -> lgb.Dataset:
    """Return rows of a Dataset, ascending; `Dataset.subset` alone sorts a Python list, which takes ten times as long."""
    subset = data.subset([0])
    subset.used_indices = np.sort(rows).astype(np.int32)  # type: ignore[assignment]
    subset.construct()
    _drop_inputs(subset)
    return subset


class TreeGrower:
    """Grows trees on training rows and evaluates them on held-out rows of a Dataset of `BinnedDataset.with_prediction`.

    ``train`` and ``valid`` are row indices; by default (None) all rows are trained on, and none are held out.
    """

    def __init__(
        self,
        binned: BinnedDataset,
        data: lgb.Dataset,
        train: IntArray | None,
        valid: IntArray | None,
        growth: GrowthParameters,
    ) -> None:
        self._outputs, self._features, self._distributed = growth.outputs, binned.columns, growth.machines > 1
        self._counts = [0]  # trees (of each output) after each call for one
        if train is None:
            training = data
        elif len(train):
            training = _subset(data, train)
        else:  # another machine has all training rows
            training = _subset(data, np.zeros(1, np.int64)).set_weight(np.full(1, NO_WEIGHT))
        self._booster = lgb.Booster(growth.training_parameters(binned.columns), training)
        # A booster copies the scores it starts from, 8 bytes per row: they can be dropped.
        if training is not data:
            training.set_field("init_score", None)
        self._evaluated = valid is not None and len(valid) > 0
        if valid is not None and self._evaluated:
            held_out = _subset(data, valid)
            self._booster.add_valid(held_out, "valid")
            held_out.set_field("init_score", None)

    def grow(self, trees: int) -> list[float]:
        """Grow this many more trees (of each output); return the mean loss of the held-out rows after each."""
        losses = []
        for _ in range(trees):
            try:
                self._booster.update()
            except lgb.basic.LightGBMError as error:
                raise TrueupError(
                    f"LightGBM could not grow a tree: {error}", hint="increase min_hessian, or limit leaves"
                ) from error
            self._counts.append(self._booster.current_iteration())  # a tree without a split is not added
            if self._evaluated:
                losses.append(float(self._booster.eval_valid()[0][2]))
        return losses

    def forest(self, trees: int) -> Forest:
        """Return the trees of the first ``trees`` iterations as arrays."""
        if self._counts[trees] == 0:
            return join_forests([])
        text = self._booster.model_to_string(num_iteration=self._counts[trees])
        return _parse_model(text, self._outputs, self._features, by_weight=self._distributed)


def _parse_model(text: str, outputs: int, features: int, *, by_weight: bool) -> Forest:
    """Return the forest in the text of a model that LightGBM has just written; arguments as for `_parse_nodes`."""
    forests = []
    for index, block in enumerate(text.split("\nTree=")[1:]):
        lines = dict(line.split("=", 1) for line in block.split("\n\n", 1)[0].splitlines() if "=" in line)
        nodes = lines if int(lines["num_leaves"]) > 1 else {}
        arrays = _parse_nodes(nodes, outputs, features, by_weight=by_weight)
        arrays["root"] = np.array([0 if len(arrays["feature"]) else ~0])
        arrays["output"] = np.array([index % outputs])
        arrays["value"] = _numbers(lines, "leaf_value", np.float64)
        forests.append(Forest(**{name: array.astype(ARRAY_TYPES.get(name, np.int32)) for name, array in arrays.items()}))
    return join_forests(forests)


def _parse_nodes(lines: dict[str, str], outputs: int, features: int, *, by_weight: bool) -> dict[str, AnyArray]:
    """Return the nodes of one tree, features before ``outputs`` prediction columns; arrays are empty without lines.

    Where a feature had no missing values in training, LightGBM would treat a missing value as 0; here it follows the branch
    that most training rows took. ``by_weight`` counts rows by their hessians, since LightGBM's own counts are wrong in
    trees grown by several machines.
    """
    split_feature, decision = (_numbers(lines, name, np.int64) for name in ("split_feature", "decision_type"))
    left, right = (_numbers(lines, name, np.int64) for name in ("left_child", "right_child"))
    threshold = _numbers(lines, "threshold", np.float64)
    categorical = decision & CATEGORICAL > 0
    names = ("internal_weight", "leaf_weight") if by_weight else ("internal_count", "leaf_count")
    mass = np.concatenate([_numbers(lines, name, np.float64) for name in names])
    left_mass, right_mass = (mass[np.where(child >= 0, child, len(split_feature) + ~child)] for child in (left, right))
    default_left = decision & DEFAULT_LEFT > 0
    missing_left = np.where((decision & MISSING_TYPE) == MISSING_NAN, default_left, left_mass >= right_mass)
    bounds = np.concatenate([[0], _numbers(lines, "cat_boundaries", np.int64)])
    which = np.where(categorical, threshold + 1, 0).astype(np.int64)
    return {
        "feature": np.where(split_feature < outputs, features + split_feature, split_feature - outputs),
        "threshold": np.where(categorical, 0.0, threshold),
        "left": left,
        "right": right,
        "missing_left": missing_left & ~categorical,
        "words_at": np.where(categorical, bounds[which], -1),
        "words_in": np.where(categorical, bounds[np.minimum(which + 1, len(bounds) - 1)] - bounds[which], 0),
        "words": _numbers(lines, "cat_threshold", np.uint32),
    }


def _numbers(lines: dict[str, str], name: str, dtype: Any) -> AnyArray:
    return np.array(lines.get(name, "").split(), dtype)
