"""Trees from the text of a LightGBM model, read as untrusted input: LightGBM itself aborts the process on damaged text.

The text has lines ``name=value``: a header, one block per tree, and the line "end of trees". Inner nodes and leaves of a
tree are numbered separately; a child below 0 is the complement of a leaf. The decision rules are those of LightGBM 4:
numbers at most the threshold go left, a missing number to the default side of its node (or where 0 goes, if training had
no missing ones), and a category to the left if it is in the set of the node, else to the right.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.model import require
from trueup.kernels.trees import ARRAY_TYPES, HALF, Forest, join_forests

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from trueup._types import AnyArray, BoolArray, IntArray, UInt32Array

VERSIONS = ("v3", "v4")
CATEGORICAL, DEFAULT_LEFT = 1, 2  # bits of the decision type of a node
MISSING_NONE, MISSING_ZERO, MISSING_NAN = 0, 1, 2  # its missing type, from bit 2 on
MAX_DECISION = 4 * MISSING_NAN + DEFAULT_LEFT + CATEGORICAL
MAX_TEXT = 1 << 27  # characters
MAX_CODE = 1 << 22  # of a category
INTEGER = re.compile(r"-?\d{1,18}", re.ASCII)
WORD_BITS = 32


@dataclass(frozen=True, eq=False)
class TreeText:
    """The validated arrays of one tree, with features and categories numbered as in the text."""

    feature: IntArray
    decision: IntArray
    threshold: AnyArray  # of a categorical node, the number of its set
    left: IntArray
    right: IntArray
    sets: tuple[UInt32Array, ...]  # of categories that go left: bit per code
    value: AnyArray  # per leaf
    left_share: AnyArray  # of the training rows of each node, in 255ths

    @property
    def categorical(self) -> BoolArray:
        """Return which nodes test a category."""
        return np.asarray(self.decision & CATEGORICAL > 0)

    def node_sets(self) -> list[tuple[int, UInt32Array]]:
        """Return the node and the set of every categorical node."""
        return [(node, self.sets[int(self.threshold[node])]) for node in np.flatnonzero(self.categorical).tolist()]

    def to_forest(self, recode: Callable[[int, UInt32Array], UInt32Array]) -> Forest:
        """Return the tree; ``recode`` returns the set of a feature as `Forest` numbers it: bit code + 1, 0 for missing."""
        words = {node: recode(int(self.feature[node]), own) for node, own in self.node_sets()}
        starts = np.cumsum([0, *map(len, words.values())])
        words_at, words_in = np.full(len(self.feature), -1), np.zeros(len(self.feature), np.int64)
        words_at[list(words)], words_in[list(words)] = starts[:-1], np.diff(starts)
        missing = self.decision >> 2
        missing_left = np.where(missing == MISSING_NAN, self.decision & DEFAULT_LEFT > 0, self.threshold >= 0)
        arrays = {
            "root": np.array([0 if len(self.feature) else ~0]), "output": np.zeros(1), "feature": self.feature,
            "threshold": np.where(self.categorical, 0.0, self.threshold), "left": self.left, "right": self.right,
            "missing_left": missing_left & ~self.categorical, "words_at": words_at, "words_in": words_in,
            "words": np.concatenate([np.zeros(0, np.uint32), *words.values()]), "value": self.value,
            "left_share": self.left_share,
        }  # fmt: skip
        return Forest(**{name: array.astype(ARRAY_TYPES.get(name, np.int32)) for name, array in arrays.items()})


@dataclass(frozen=True, eq=False)
class BoosterText:
    """The parts of a LightGBM model that its raw score depends on."""

    objective: str  # its name alone: "binary"
    trees: tuple[TreeText, ...]

    def to_forest(self, recode: Callable[[int, UInt32Array], UInt32Array]) -> Forest:
        """Return all trees as a forest, whose sum is the raw score; see `TreeText.to_forest`."""
        return join_forests([tree.to_forest(recode) for tree in self.trees])


def parse_booster(text: str, columns: int, place: str) -> BoosterText:
    """Parse the text of a model with one output and so many ``columns``; raise FileContentError that names ``place``."""
    require(len(text) <= MAX_TEXT, f"{place} is too large")
    head, *blocks = re.split(r"^Tree=", text.partition("\nend of trees")[0] + "\n", flags=re.MULTILINE)
    require("\nend of trees" in text and head.startswith("tree\n"), f"{place} is no complete text of a LightGBM model")
    header = _parse_lines(head)
    require(header.get("version") in VERSIONS, f"{place} has the version {_shown(header, 'version')} of LightGBM's text")
    for name in ("num_class", "num_tree_per_iteration"):
        require(header.get(name) == "1", f"{place} predicts several classes ({name}={_shown(header, name)})")
    expected = header.get("max_feature_idx") == str(columns - 1)
    require(expected, f"{place} has other columns than the model (max_feature_idx={_shown(header, 'max_feature_idx')})")
    require(len(header.get("tree_sizes", "").split()) == len(blocks), f"{place} does not have the trees that it lists")
    require("average_output" not in header, f"{place} is a random forest")
    trees = []
    for number, block in enumerate(blocks):
        index, _, lines = block.partition("\n")
        require(index == str(number), f"{place} has trees out of order")
        trees.append(_parse_tree(_parse_lines(lines), columns, f"tree {number} of {place}"))
    return BoosterText(header.get("objective", "").partition(" ")[0], tuple(trees))


def _parse_lines(text: str) -> dict[str, str]:
    return {name: value for name, _, value in (line.partition("=") for line in text.split("\n"))}


def _shown(lines: Mapping[str, str], name: str) -> str:
    """Return a value for a message, shortened."""
    return repr(lines.get(name, "")[:20])


def _parse_tree(lines: Mapping[str, str], columns: int, place: str) -> TreeText:
    """Return the arrays of one tree; their links are validated with those of the whole forest later."""
    require(lines.get("is_linear", "0") == "0", f"{place} has linear functions in its leaves, which trueup does not have")
    leaves = _integers(lines, "num_leaves", 1, place)[0]
    require(leaves >= 1, f"{place} has no leaves")
    nodes = int(leaves) - 1
    value = _floats(lines, "leaf_value", nodes + 1, place)
    if nodes == 0:
        none = np.zeros(0, np.int64)
        return TreeText(none, none, np.zeros(0), none, none, (), value, np.zeros(0, np.uint8))
    feature, decision, left, right = (
        _integers(lines, name, nodes, place) for name in ("split_feature", "decision_type", "left_child", "right_child")
    )
    threshold = _floats(lines, "threshold", nodes, place)
    valid = bool(((feature >= 0) & (feature < columns)).all())
    require(valid, f"{place} tests a column that does not exist")
    require(bool(((decision >= 0) & (decision <= MAX_DECISION)).all()), f"{place} has an unknown kind of decision")
    categorical = decision & CATEGORICAL > 0
    zero = (decision >> 2 == MISSING_ZERO) & ~categorical
    require(not zero.any(), f"{place} treats zeros as missing values (zero_as_missing), which trueup does not")
    for child in (left, right):  # as 32-bit integers they must not become others
        require(bool(((child < nodes) & (~child < leaves)).all()), f"{place} has a link out of bounds")
    sets = _parse_sets(lines, place) if categorical.any() else ()
    numbers = threshold[categorical]
    valid = bool(((numbers >= 0) & (numbers < len(sets)) & (numbers == np.floor(numbers))).all())
    require(valid, f"{place} names a set of categories that does not exist")
    return TreeText(
        feature, decision, threshold, left, right, sets, value, _left_shares(lines, left, right, place)
    )  # fmt: skip


def _parse_sets(lines: Mapping[str, str], place: str) -> tuple[UInt32Array, ...]:
    """Return the sets of categories of a tree."""
    bounds, words = _integers(lines, "cat_boundaries", None, place), _integers(lines, "cat_threshold", None, place)
    rising = len(bounds) > 0 and bounds[0] == 0 and bounds[-1] == len(words) and bool((np.diff(bounds) >= 0).all())
    require(rising and bool(((words >= 0) & (words < 1 << WORD_BITS)).all()), f"{place} has invalid sets of categories")
    require(int(np.diff(bounds).max(initial=0)) <= MAX_CODE // WORD_BITS, f"{place} has categories above {MAX_CODE - 1:,}")
    return tuple(np.split(words.astype(np.uint32), bounds[1:-1]))


def _left_shares(lines: Mapping[str, str], left: IntArray, right: IntArray, place: str) -> AnyArray:
    """Return the share of the training rows of each node that went left, in 255ths; a half where counts are absent."""
    nodes = len(left)
    if not lines.get("internal_count") or not lines.get("leaf_count"):
        return np.full(nodes, HALF, np.uint8)
    counts = np.concatenate(
        [_integers(lines, "internal_count", nodes, place), _integers(lines, "leaf_count", nodes + 1, place)]
    )
    of = [np.maximum(counts[np.where(child >= 0, child, nodes + ~child)], 0).astype(float) for child in (left, right)]
    total = of[0] + of[1]
    share = np.where(total > 0, of[0] / np.maximum(total, 1.0), 0.5)
    return np.asarray(np.clip(np.rint(255 * share), 1, 254), np.uint8)


def _integers(lines: Mapping[str, str], name: str, count: int | None, place: str) -> IntArray:
    """Return a line of so many integers, or of any number of them."""
    texts = lines.get(name, "").split(" ") if lines.get(name) else []
    valid = (count is None or len(texts) == count) and all(map(INTEGER.fullmatch, texts))
    require(valid, f"{place} has an invalid {name}")
    return np.array([int(text) for text in texts], np.int64)


def _floats(lines: Mapping[str, str], name: str, count: int, place: str) -> AnyArray:
    """Return a line of so many numbers, none of them NaN."""
    texts = lines.get(name, "").split(" ")
    require(len(texts) == count, f"{place} has an invalid {name}")
    values: Any = np.zeros(0)
    try:
        values = np.array([float(text) for text in texts])
    except ValueError:
        require(condition=False, message=f"{place} has an invalid {name}")
    require(not np.isnan(values).any(), f"{place} has an invalid {name}")
    return np.asarray(values)
