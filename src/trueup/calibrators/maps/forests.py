"""Forests, and rounds of them, in a file: an array of all forests in one part; checked as if a stranger had written it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.losses import THETA
from trueup.calibrators.maps.cascade import CascadeRound
from trueup.calibrators.maps.reading import is_whole, require
from trueup.kernels.trees import DEEPEST, Forest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray

KINDS = {
    "root": "<i4", "output": "<i4", "feature": "<i4", "threshold": "<f8", "left": "<i4", "right": "<i4",
    "missing_left": "|u1", "words_at": "<i4", "words_in": "<i4", "words": "<u4", "value": "<f8",
}  # fmt: skip
PER_TREE, PER_NODE = ("root", "output"), ("feature", "threshold", "left", "right", "missing_left", "words_at", "words_in")


def pack_forests(forests: Sequence[Forest]) -> tuple[list[dict[str, int]], dict[str, bytes]]:
    """Give the lengths of the arrays of each forest, and the parts; no forest is no part."""
    arrays = [forest.arrays() for forest in forests]
    parts = {
        f"forests/{name}": b"".join(np.ascontiguousarray(one[name], kind).tobytes() for one in arrays)
        for name, kind in KINDS.items()
        if arrays
    }
    return [{name: len(array) for name, array in one.items()} for one in arrays], parts


def unpack_forests(sizes: Sequence[Any], parts: Mapping[str, bytes], levels: tuple[int, ...], outputs: int) -> list[Forest]:
    """Cut the forests off the parts again; every byte belongs to one."""
    if not sizes:
        return []
    stored = {name: np.frombuffer(parts[f"forests/{name}"], np.dtype(kind)) for name, kind in KINDS.items()}
    begin = dict.fromkeys(KINDS, 0)
    found = []
    for at, size in enumerate(sizes):
        forest = _forest(f"forest {at}", size, stored, begin)
        _check_forest(forest, f"forest {at}", levels, outputs)
        found.append(forest)
    require(all(begin[name] == len(array) for name, array in stored.items()), "it has trees that no round speaks of")
    return found


def pack_rounds(rounds: Sequence[CascadeRound]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Give an entry for each round, and the parts; no round is no part."""
    sizes, parts = pack_forests([forest for one in rounds for forest in one.forests])
    cut = iter(sizes)
    return [{"theta": one.theta, "trees": one.trees, "forests": [next(cut) for _ in one.forests]} for one in rounds], parts


def unpack_rounds(
    entries: Any, parts: Mapping[str, bytes], levels: tuple[int, ...], outputs: int
) -> tuple[CascadeRound, ...]:
    """Make the rounds again; what does not belong together is refused."""
    require(
        set(parts) == ({f"forests/{name}" for name in KINDS} if entries else set()),
        "it has parts that it does not speak of",
    )
    sizes = [size for one in entries for size in one["forests"]]
    forests = iter(unpack_forests(sizes, parts, levels, outputs))
    rounds: list[CascadeRound] = []
    for one in entries:
        theta = one["theta"]
        require(isinstance(theta, float) and THETA[0] / THETA[1] <= theta <= THETA[1] / THETA[0], "a factor is wrong")
        require(is_whole(one["trees"]) and one["trees"] >= 0 and len(one["forests"]) >= 1, "a round is empty")
        require(not rounds or len(one["forests"]) == len(rounds[0].forests), "rounds differ in their number of cascades")
        rounds.append(CascadeRound(theta, tuple(next(forests) for _ in one["forests"]), one["trees"]))
    return tuple(rounds)


def _forest(place: str, sizes: Any, stored: Mapping[str, AnyArray], begin: dict[str, int]) -> Forest:
    """Cut the next forest off the stored arrays."""
    require(isinstance(sizes, dict) and set(sizes) == set(KINDS), f"{place} has other arrays than a forest")
    arrays: dict[str, AnyArray] = {}
    for name, many in sizes.items():
        end = begin[name] + many if is_whole(many) and many >= 0 else -1
        require(begin[name] <= end <= len(stored[name]), f"{place} is longer than what is stored")
        arrays[name] = stored[name][begin[name] : end].astype(stored[name].dtype.newbyteorder("="))
        begin[name] = end
    trees, nodes = {len(arrays[name]) for name in PER_TREE}, {len(arrays[name]) for name in PER_NODE}
    require(len(trees) == 1 and len(nodes) == 1, f"{place} has arrays of unequal length")
    return Forest(**arrays)


def _check_forest(forest: Forest, place: str, levels: tuple[int, ...], outputs: int) -> None:
    """Refuse what would send the scorer outside its arrays or round in circles."""
    nodes, leaves = len(forest.feature), len(forest.value)
    links = np.concatenate([forest.root, forest.left, forest.right]).astype(np.int64)
    # Every node and every leaf hangs from exactly one place, and a node comes after the one it hangs from: no circles.
    places = np.where(links >= 0, links, nodes + ~links)
    require(bool((links < nodes).all() and (~links < leaves).all()), f"{place} has a link that leads nowhere")
    require(len(places) == nodes + leaves and len(np.unique(places)) == len(places), f"{place} is not made of trees")
    own = np.arange(nodes)
    for child in (forest.left, forest.right):
        require(bool(((child < 0) | (child > own)).all()), f"{place} has a tree that runs in circles")
    front = forest.root[forest.root >= 0]
    for _ in range(DEEPEST):
        below = np.concatenate([forest.left[front], forest.right[front]])
        front = below[below >= 0]
    require(not len(front), f"{place} has a tree deeper than {DEEPEST}")
    kinds = np.array([*(level >= 0 for level in levels), *[False] * outputs], bool)
    known = (forest.feature >= 0) & (forest.feature < len(kinds))
    require(bool(known.all()), f"{place} tests a feature that is not there")
    categorical = forest.words_at >= 0
    require(np.array_equal(categorical, kinds[forest.feature]), f"{place} tests a feature as what it is not")
    ends = forest.words_at.astype(np.int64) + forest.words_in
    require(
        bool(((forest.words_in >= 0) & (~categorical | (ends <= len(forest.words)))).all()),
        f"{place} has a set that ends nowhere",
    )
    require(bool(((forest.output >= 0) & (forest.output < outputs)).all()), f"{place} adds to an output that is not there")
    require(bool(np.isfinite(forest.value).all() and not np.isnan(forest.threshold).any()), f"{place} holds no numbers")
    require(bool((forest.missing_left <= 1).all()), f"{place} has a turn that is neither left nor right")
