"""The rows of a fit of patches: sorted by what they hold, alike ones taken together, their groups numbered."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.calibrators.maps.patches import ALL_ROWS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.stopping import Split
    from trueup.data.bins import ColumnBinner
    from trueup.data.table import Table


class Group(NamedTuple):
    """Rows that have something in common."""

    set: int
    conditions: tuple[tuple[int, int], ...]
    text: str


@dataclass(frozen=True, eq=False)
class Rows:
    """The rows of a fit in an order of their own, so that no sum depends on the order they came in.

    Attributes
    ----------
    p, y, weight : ndarray of float64, shape (n,)
        All rows, those that judge among them.
    member : ndarray of int32, shape (sets, n)
        The group of each row in each set of columns; -1 for one of too few rows.
    first : ndarray of int64, shape (m,)
        One row each of the rows that patches are looked for in, alike in everything taken together.
    total, square, count : ndarray of float64, shape (m,)
        Of such rows alike, the sum of weights, the sum of their squares, and the number.
    groups : list of Group
    splits : list of (ndarray of bool, ndarray of bool)
        Which rows are learned from, and which judge.
    order : ndarray of int64, shape (n,)
        Where each row stands in the table.
    """

    p: FloatArray
    y: FloatArray
    weight: FloatArray
    member: Int32Array
    first: IntArray
    total: FloatArray
    square: FloatArray
    count: FloatArray
    groups: list[Group]
    splits: list[tuple[BoolArray, BoolArray]]
    order: IntArray


def arrange(
    table: Table, splits: Sequence[Split], cuts: Sequence[ColumnBinner], depth: int, weight: FloatArray, least: float
) -> Rows:
    """Sort the rows by what they hold, take rows alike together, and number the groups."""
    assert table.outcome is not None
    codes = [cut.codes(table.columns[cut.name]) for cut in cuts]
    fold = np.zeros(len(table), np.int64)
    for at, split in enumerate(splits):
        fold[split.valid] = at + 1
    searched = np.zeros(len(table), bool)
    for split in splits:
        searched[split.train] = True
    keys: list[AnyArray] = [table.outcome, table.prediction, *codes]
    order = np.lexsort((fold, weight, *keys))
    keys = [key[order] for key in keys]
    y, p, *codes = keys
    weight, searched = weight[order], searched[order]
    member, groups = _number(codes, cuts, depth, searched, weight, least)
    sought = np.flatnonzero(searched)
    new = np.zeros(len(sought), bool)
    new[:1] = True
    for key in keys:
        new[1:] |= np.diff(key[sought]) != 0
    pool = np.cumsum(new) - 1
    w = weight[sought]
    masks = []
    for split in splits:
        train, valid = np.zeros((2, len(table)), bool)
        train[split.train], valid[split.valid] = True, True
        masks.append((train[order], valid[order]))
    return Rows(
        p, y, weight, member, sought[new], _summed(pool, w), _summed(pool, w**2), _summed(pool, np.ones(len(w))), groups,
        masks, order,
    )  # fmt: skip


def _summed(place: IntArray, values: FloatArray) -> FloatArray:
    return np.bincount(place, values).astype(np.float64)


def _number(
    codes: Sequence[Int32Array],
    cuts: Sequence[ColumnBinner],
    depth: int,
    searched: BoolArray,
    weight: FloatArray,
    least: float,
) -> tuple[Int32Array, list[Group]]:
    """Number the groups of every set of columns, the simplest sets first; groups of too little weight have no number."""
    sets = [names for size in range(1, depth + 1) for names in itertools.combinations(range(len(cuts)), size)]
    member = np.zeros((len(sets) + 1, len(searched)), np.int32)
    groups = [Group(0, (), ALL_ROWS)]
    for at, names in enumerate(sets, start=1):
        key = np.zeros(len(searched), np.int64)
        for name in names:
            key = key * len(cuts[name].labels) + codes[name]
        found, inverse = np.unique(key[searched], return_inverse=True)
        enough = np.bincount(inverse.ravel(), weight[searched]) >= least
        number = np.where(enough, len(groups) + np.cumsum(enough) - 1, -1)
        place = np.searchsorted(found, key).clip(max=len(found) - 1)
        member[at] = np.where(found[place] == key, number[place], -1)
        groups += [_group(at, names, int(one), cuts) for one in found[enough]]
    return member, groups


def _group(at: int, names: tuple[int, ...], key: int, cuts: Sequence[ColumnBinner]) -> Group:
    conditions: list[tuple[int, int]] = []
    for name in reversed(names):
        key, code = divmod(key, len(cuts[name].labels))
        conditions.insert(0, (name, code))
    return Group(at, tuple(conditions), " & ".join(cuts[name].labels[code] for name, code in conditions))
