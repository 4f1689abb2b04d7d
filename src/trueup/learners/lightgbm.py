"""Boosted trees by LightGBM, on features that are binned once. No other module imports lightgbm.

Category codes are shifted by one on input, since LightGBM cannot isolate a code of -1; trees are returned as arrays of
`trueup.kernels.trees.Forest`, in the codes of the Table. A `LevelColumn` is a number per level of a categorical feature,
such as its frequency: a split on it is a set of levels, and is returned as such.
"""

from __future__ import annotations

import ctypes
import difflib
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # idle threads do not occupy the cores of others

import lightgbm as lgb
import numpy as np
from lightgbm.basic import _LIB, _ConfigAliases, _safe_call  # type: ignore[attr-defined]

from trueup._forks import usable_threads
from trueup.errors import ArgumentError, TrueupError
from trueup.kernels.trees import ARRAY_TYPES, MAX_DEPTH, Forest, join_forests

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray


Dataset = lgb.Dataset
Loss = Literal["log", "squared", "classes"]
OBJECTIVES = {"log": "cross_entropy", "squared": "regression", "classes": "multiclass"}
METRICS = {"log": "cross_entropy", "squared": "l2", "classes": "multi_logloss"}
ONE_HOT = 1 << 30  # categories are split one level against the rest, whatever their number: less noise, readable
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
    `connect_workers`. These are the trees of one process.
    """

    loss: Loss
    outputs: int = 1  # prediction columns, each with trees of its own
    depth: int | None = 2  # None is unlimited
    leaves: int = 4
    learning_rate: float = 0.2
    feature_fraction: float = 0.5
    l2: float = 1.0
    min_hessian: float = 5.0
    min_rows: int = 1  # in a leaf
    min_gain: float = 0.0  # of a split
    subsample: float = 1.0  # share of the rows that each tree is grown on
    monotone: tuple[int, ...] = ()  # 1, -1 or 0 per feature, then 1, -1 or 0 for the prediction; empty: no constraints
    bins: int = 63
    seed: int = 0
    trees: int = 100  # maximum of each model and round
    patience: int = 20  # number of trees without improvement after which a round stops growing
    threads: int = 1
    machines: int = 1
    other: tuple[tuple[str, Any], ...] = ()  # further parameters of LightGBM, as pairs of name and value

    def training_parameters(self, columns: Sequence[int]) -> dict[str, Any]:
        """Return the parameters of LightGBM; ``columns`` has the feature of each column, -1 for a prediction."""
        parameters: dict[str, Any] = {
            "objective": OBJECTIVES[self.loss], "metric": METRICS[self.loss], "boost_from_average": False, "verbosity": -1,
            "max_depth": min(self.depth or MAX_DEPTH, MAX_DEPTH), "num_leaves": self.leaves,
            "learning_rate": self.learning_rate, "feature_fraction": self.feature_fraction, "lambda_l2": self.l2,
            "min_sum_hessian_in_leaf": max(self.min_hessian, 1e-3), "min_data_in_leaf": self.min_rows,
            "min_gain_to_split": self.min_gain, "max_cat_to_onehot": ONE_HOT, "seed": self.seed, "deterministic": True,
            "force_col_wise": True, **dict(self.other), **self.binning_parameters(),
        }  # fmt: skip
        if self.subsample < 1:
            parameters |= {"bagging_fraction": self.subsample, "bagging_freq": 1}
        if self.loss == "classes":
            parameters["num_class"] = self.outputs
        if any(self.monotone):
            parameters["monotone_constraints"] = [self.monotone[feature] for feature in columns]
        if self.machines > 1:
            parameters |= {"tree_learner": "data", "num_machines": self.machines, "pre_partition": True}
        return parameters

    def binning_parameters(self) -> dict[str, Any]:
        """Return the parameters of LightGBM that determine bins; training must repeat them."""
        return {
            "max_bin": self.bins, "feature_pre_filter": False, "enable_bundle": False, "verbosity": -1,
            "bin_construct_sample_cnt": SAMPLE_ROWS, "num_threads": usable_threads(self.threads),
        }  # fmt: skip


# Parameters of LightGBM that are set by parameters of the calibrator, or must not be changed; with their aliases.
OWN_PARAMETERS = {
    "objective": "task", "metric": "task", "num_class": "classes", "boosting": None, "linear_tree": None,
    "tree_learner": None,
    "num_leaves": "leaves", "max_depth": "depth", "learning_rate": "learning_rate", "num_iterations": "trees",
    "feature_fraction": "feature_fraction", "lambda_l2": "l2", "min_sum_hessian_in_leaf": "min_hessian",
    "min_data_in_leaf": "min_rows", "min_gain_to_split": "min_gain", "bagging_fraction": "subsample",
    "bagging_freq": "subsample", "max_bin": "bins", "monotone_constraints": "monotone", "seed": "random_state",
    "num_threads": "threads", "early_stopping_round": "stopping", "categorical_feature": "categorical",
    "device_type": None, "num_machines": None, "machines": None, "deterministic": None, "force_col_wise": None,
    "force_row_wise": None, "boost_from_average": None, "feature_pre_filter": None, "enable_bundle": None,
    "verbosity": None,
    "bin_construct_sample_cnt": None, "max_cat_to_onehot": None, "pre_partition": None, "data_random_seed": "random_state",
    "label_column": None, "weight_column": None, "group_column": None, "ignore_column": None, "init_score_file": None,
    "input_model": None, "output_model": None, "config": None, "task": None, "data": None, "valid": None,
    "forcedsplits_filename": None, "forcedbins_filename": None, "use_missing": None, "zero_as_missing": None,
    "max_bin_by_feature": None, "min_data_in_bin": None, "interaction_constraints": None, "feature_contri": None,
    "cegb_penalty_feature_lazy": None, "cegb_penalty_feature_coupled": None, "reg_sqrt": None, "is_unbalance": None,
    "scale_pos_weight": None, "two_round": None, "predict_disable_shape_check": None,
}  # fmt: skip


def check_other_parameters(given: Any) -> tuple[tuple[str, Any], ...]:
    """Validate further parameters of LightGBM; return them as sorted pairs of name and value."""
    if given is None:
        return ()
    hint = 'write it as lightgbm={"path_smooth": 1.0}'
    if not isinstance(given, Mapping):
        raise ArgumentError(f"lightgbm must be a mapping of parameters; got {given!r}", hint=hint, parameter="lightgbm")
    aliases = {alias: name for name, own in _ConfigAliases._get_all_param_aliases().items() for alias in own}
    for name, value in given.items():
        plain = aliases.get(name)
        if plain is None:
            near = difflib.get_close_matches(str(name), aliases, n=1)
            guess = f"did you mean {near[0]!r}?" if near else hint
            raise ArgumentError(f"LightGBM has no parameter {name!r}", hint=guess, parameter="lightgbm")
        if plain in OWN_PARAMETERS:
            own = OWN_PARAMETERS[plain]
            guess = f"use {own}= of the calibrator" if own else "leave it out"
            raise ArgumentError(f"lightgbm must not set {name!r}", hint=guess, parameter="lightgbm")
        items = value if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(item, (bool, int, float, str)) for item in items):
            problem = f"lightgbm[{name!r}] must be a number, a text, True, False or a list of these; got {value!r}"
            raise ArgumentError(problem, hint=hint, parameter="lightgbm")
    plain_names = [aliases[name] for name in given]
    if len(set(plain_names)) < len(plain_names):
        raise ArgumentError(f"lightgbm names a parameter twice: {sorted(given)}", hint=hint, parameter="lightgbm")
    return tuple(sorted((aliases[name], value) for name, value in given.items()))


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


@dataclass(frozen=True, eq=False)
class LevelColumn:
    """A number for every level of a categorical feature, as a column that is computed in batches.

    ``values`` has the number of a level at index code + 1; index 0 is for missing or unseen levels.
    """

    feature: int
    codes: AnyArray
    values: FloatArray

    def __getitem__(self, rows: Any) -> FloatArray:
        return np.asarray(self.values[np.asarray(self.codes[rows]) + 1])


class BinnedDataset:
    """The features of all rows, binned once: one byte per value.

    Columns are float64 with NaN for missing, or int32 codes with -1 for missing, in memory or memory-mapped. Bins are
    those of ``reference``, so that all partitions of the rows are binned alike, or found from up to 100,000 of the rows.
    ``levels`` are further columns. Without rows, one row of missing values is a placeholder.
    """

    def __init__(
        self,
        columns: Sequence[AnyArray],
        categorical: Sequence[bool],
        growth: GrowthParameters,
        *,
        reference: BinnedDataset | None = None,
        levels: Sequence[LevelColumn] = (),
    ) -> None:
        self.features, self.levels = len(columns), tuple(levels)
        self._dataset: lgb.Dataset | None = None
        if not columns:
            return
        categorical = [*categorical, *(False for _ in levels)]
        columns = [*columns, *cast("Sequence[AnyArray]", levels)]
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
        """Return a Dataset with the columns of ``F`` before the features, which are not binned again.

        ``F`` are scores, followed by columns that change with them, if any. ``start`` are the initial scores of trees;
        ``sample``, these columns of some rows, determines the bins of ``F`` if given.
        """
        if not len(F):
            F, label, weight = np.zeros((1, F.shape[1])), np.zeros(1), np.full(1, NO_WEIGHT)
            start = None if start is None else np.zeros((1, start.shape[1]))
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


class FoldDataset:
    """Training rows and held-out rows of a Dataset of `BinnedDataset.with_prediction`, for trees of any capacity.

    ``train`` and ``valid`` are row indices; by default (None) all rows are trained on, and none are held out. ``encodings``
    are the level columns that follow the scores in the Dataset.
    """

    def __init__(
        self,
        binned: BinnedDataset,
        data: lgb.Dataset,
        train: IntArray | None,
        valid: IntArray | None,
        encodings: Sequence[LevelColumn] = (),
    ) -> None:
        self.features, self.encodings, self.counts = binned.features, tuple(encodings), binned.levels
        self.training, self.valid = data, None
        if train is not None and len(train):
            self.training = _subset(data, train)
        elif train is not None:  # another machine has all training rows
            self.training = _subset(data, np.zeros(1, np.int64)).set_weight(np.full(1, NO_WEIGHT))
        if valid is not None and len(valid):
            self.valid = _subset(data, valid)

    def origins(self, outputs: int) -> list[tuple[int, FloatArray | None]]:
        """Return the feature of every column, and the values of its levels if it is a `LevelColumn`."""
        scores, columns = range(self.features, self.features + outputs), range(self.features)
        first, last = ([(level.feature, level.values) for level in levels] for levels in (self.encodings, self.counts))
        return [*((score, None) for score in scores), *first, *((column, None) for column in columns), *last]


class TreeGrower:
    """Grows trees on the training rows of a fold, and evaluates them on its held-out rows."""

    def __init__(self, data: FoldDataset, growth: GrowthParameters) -> None:
        self._outputs, self._distributed = growth.outputs, growth.machines > 1
        self._features = data.features
        self._counts = [0]  # trees (of each output) after each call for one
        self._origins = data.origins(growth.outputs)
        names = [-1 if feature >= data.features else feature for feature, _ in self._origins]
        try:
            self._booster = lgb.Booster(growth.training_parameters(names), data.training)
        except lgb.basic.LightGBMError as error:
            raise ArgumentError(
                f"LightGBM rejects its parameters: {error}", hint=f"correct {dict(growth.other)}", parameter="lightgbm"
            ) from error
        self._evaluated = data.valid is not None
        if data.valid is not None:
            self._booster.add_valid(data.valid, "valid")

    def grow(self, trees: int, *, evaluate: bool = True) -> list[float]:
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
            if self._evaluated and evaluate:
                losses.append(float(self._booster.eval_valid()[0][2]))
        return losses

    def grow_to(self, trees: int) -> None:
        """Grow more trees until there are this many (of each output), without their losses."""
        self.grow(max(0, trees - len(self._counts) + 1), evaluate=False)

    def gains(self, trees: int) -> FloatArray:
        """Return the sum of the gains of the splits of the first ``trees`` trees on each feature, then on each score."""
        totals, count = np.zeros(self._features + self._outputs), self._counts[trees]
        if count:
            by_column = self._booster.feature_importance("gain", iteration=count)
            np.add.at(totals, [feature for feature, _ in self._origins], np.asarray(by_column, np.float64))
        return totals

    def forest(self, trees: int, start: int = 0) -> Forest:
        """Return the trees of the iterations from ``start`` to before ``trees`` as arrays."""
        first, last = self._counts[start], self._counts[trees]
        if first == last:
            return join_forests([])
        text = self._booster.model_to_string(num_iteration=last - first, start_iteration=first)
        return _parse_model(text, self._outputs, self._origins, by_weight=self._distributed)


def _parse_model(text: str, outputs: int, origins: Sequence[tuple[int, FloatArray | None]], *, by_weight: bool) -> Forest:
    """Return the forest in the text of a model that LightGBM has just written.

    ``origins`` has the feature of every column of LightGBM, and the values of its levels if it is a `LevelColumn`.

    Where a feature had no missing values in training, LightGBM would treat a missing value as 0; here it follows the branch
    that most training rows took. ``by_weight`` counts rows by their hessians, since LightGBM's own counts are wrong in
    trees grown by several machines.
    """
    blocks = [block.split("\n\n", 1)[0].splitlines() for block in text.split("\nTree=")[1:]]
    trees = [dict(line.split("=", 1) for line in block if "=" in line) for block in blocks]
    leaves = np.array([int(tree["num_leaves"]) for tree in trees])
    nodes, first_leaf = leaves - 1, np.cumsum(leaves) - leaves
    first_node = np.cumsum(nodes) - nodes
    split = [tree for tree, count in zip(trees, nodes, strict=True) if count]
    tree_of = np.repeat(np.arange(len(trees)), nodes)
    column, decision = (_numbers(split, name, np.int64) for name in ("split_feature", "decision_type"))
    threshold, categorical = _numbers(split, "threshold", np.float64), decision & CATEGORICAL > 0
    left, right = (
        np.where(child >= 0, child + first_node[tree_of], child - first_leaf[tree_of])
        for child in (_numbers(split, name, np.int64) for name in ("left_child", "right_child"))
    )
    names = ("internal_weight", "leaf_weight") if by_weight else ("internal_count", "leaf_count")
    node_mass = _numbers(split, names[0], np.float64)
    leaf_mass = np.zeros(leaves.sum())
    leaf_mass[np.repeat(nodes > 0, leaves)] = _numbers(split, names[1], np.float64)
    mass = np.concatenate([node_mass, leaf_mass])
    left_mass, right_mass = (mass[np.where(child >= 0, child, len(column) + ~child)] for child in (left, right))
    default_left = decision & DEFAULT_LEFT > 0
    missing_left = np.where((decision & MISSING_TYPE) == MISSING_NAN, default_left, left_mass >= right_mass)
    words_at, words_in, words = _parse_sets(trees, tree_of, np.where(categorical, threshold, -1).astype(np.int64))
    levels = np.array([values is not None for _, values in origins])
    added, count = [words], len(words)
    for node in np.flatnonzero(levels[column]).tolist():  # a threshold of a level column is a set of levels
        values = origins[column[node]][1]
        assert values is not None
        added.append(_pack_bits(values <= threshold[node]))
        words_at[node], words_in[node], categorical[node] = count, len(added[-1]), True
        count += len(added[-1])
    arrays = {
        "root": np.where(nodes > 0, first_node, ~first_leaf),
        "output": np.arange(len(trees)) % outputs,
        "feature": np.array([feature for feature, _ in origins])[column],
        "threshold": np.where(categorical, 0.0, threshold),
        "left": left,
        "right": right,
        "missing_left": missing_left & ~categorical,
        "words_at": words_at,
        "words_in": words_in,
        "words": np.concatenate(added),
        "value": _numbers(trees, "leaf_value", np.float64),
        "left_share": np.clip(np.rint(255 * left_mass / np.maximum(left_mass + right_mass, 1e-300)), 1, 254),
    }
    return Forest(**{name: array.astype(ARRAY_TYPES.get(name, np.int32)) for name, array in arrays.items()})


def _parse_sets(
    trees: Sequence[Mapping[str, str]], tree_of: IntArray, sets: IntArray
) -> tuple[AnyArray, AnyArray, AnyArray]:
    """Return per node the start (-1 for none) and the number of words of its set of categories; then all words.

    ``sets`` has the number of the set of each node in its tree, ``tree_of``; -1 for none.
    """
    bounds = [_numbers([tree], "cat_boundaries", np.int64) for tree in trees]
    sizes = np.array([own[-1] if len(own) else 0 for own in bounds])
    first_word = np.cumsum(sizes) - sizes
    lengths = np.array([len(own) for own in bounds])
    at = np.where(sets >= 0, (np.cumsum(lengths) - lengths)[tree_of] + sets, 0)
    joined = np.concatenate([np.zeros(0, np.int64), *bounds, np.zeros(2, np.int64)])
    words_at = np.where(sets >= 0, joined[at] + first_word[tree_of], -1)
    words_in = np.where(sets >= 0, joined[at + 1] - joined[at], 0)
    return words_at, words_in, _numbers(trees, "cat_threshold", np.uint32)


def _pack_bits(bits: BoolArray) -> AnyArray:
    """Return bits as 32-bit words, the first bit in the lowest place of the first word."""
    padded = np.zeros(-(-len(bits) // 32) * 32, bool)
    padded[: len(bits)] = bits
    return np.packbits(padded, bitorder="little").view("<u4").astype(np.uint32)


def _numbers(trees: Sequence[Mapping[str, str]], name: str, dtype: Any) -> AnyArray:
    """Return the numbers of one field of all ``trees``."""
    return np.array(" ".join(tree.get(name, "") for tree in trees).split(), dtype)
