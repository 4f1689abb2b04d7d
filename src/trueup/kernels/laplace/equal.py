"""Find rows that are equal, so that they are met once: discrete features are the normal case."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["Groups", "add_others", "as_bytes", "find_equal"]

WORTH_POOLING = 0.9  # groups a row, at most
MIX = np.uint64(0x9E3779B97F4A7C15)
ZERO, MINUS_ZERO = np.uint64(0), np.uint64(1 << 63)  # two ways to write one number
LEFT, RIGHT = np.uint64(29), np.uint64(32)


class Groups(NamedTuple):
    """Rows that are equal: the first of each group, and the group of each row."""

    first: Ints
    group: Ints

    def add_up(self, columns: Floats) -> Floats:
        """Add up the rows of each group."""
        return _add_up(columns, self.group, len(self.first))


def add_others(columns: Floats, group: Ints) -> Floats:
    """Add up the other rows of each row's group; the first column holds weights.

    A row is taken from the sum of its group, but for one that outweighs all others: too little would be left of them.

    Examples
    --------
    >>> add_others(np.array([[1e20], [1.0], [2.0]]), np.zeros(3, np.int64))[:, 0]
    array([3.e+00, 1.e+20, 1.e+20])
    """
    many = int(group.max()) + 1
    most = np.zeros(many)
    np.maximum.at(most, group, columns[:, 0])
    heavy = columns[:, 0] == most[group]
    heavy &= (np.bincount(group, heavy, many) == 1)[group]
    without = _add_up(np.where(heavy[:, None], 0.0, columns), group, many)[group]
    return np.where(heavy[:, None], without, _add_up(columns, group, many)[group] - columns)


def _add_up(columns: Floats, group: Ints, many: int) -> Floats:
    found = np.empty((many, columns.shape[1]))
    for k in range(columns.shape[1]):
        found[:, k] = np.bincount(group, columns[:, k], many)
    return found


def find_equal(points: Floats, bins: Ints) -> Groups | None:
    """Group rows of one bin and equal coordinates; None where so few are equal that it is not worth it.

    Examples
    --------
    >>> first, group = find_equal(np.array([[1.0], [2.0], [1.0]]), np.zeros(3, np.int64))
    >>> first[group].tolist()
    [0, 1, 0]
    """
    marks = np.empty(len(points), np.uint64)
    _mark(points.view(np.uint64), bins, marks)
    rising = np.sort(marks)
    if 1 + np.count_nonzero(rising[1:] != rising[:-1]) > WORTH_POOLING * len(points):
        return None
    _, first, group = np.unique(marks, return_index=True, return_inverse=True)
    of = first[group]
    same = (bins[of] == bins) & (points[of] == points).all(axis=1)
    return Groups(first, group) if same.all() else None  # two rows of one mark that differ: rare beyond all measure


def as_bytes(rows: Floats) -> NDArray[np.void]:
    """Read each row as one value, to be sorted and compared by its bytes: every other NaN is another, and so is -0.

    Examples
    --------
    >>> len(np.unique(as_bytes(np.array([[1.0, 2.0], [1.0, 3.0], [1.0, 2.0]]))))
    2
    """
    whole = np.ascontiguousarray(rows)
    return whole.view(np.dtype((np.void, whole.shape[1] * whole.itemsize))).ravel()


@jit
def _mark(words: NDArray[np.uint64], bins: Ints, out: NDArray[np.uint64]) -> None:
    """Mix the bits of each row into one number."""
    for i in range(len(out)):
        mark = np.uint64(bins[i])
        for k in range(words.shape[1]):
            word = words[i, k]
            mark = (mark ^ (ZERO if word == MINUS_ZERO else word)) * MIX
            mark ^= (mark >> RIGHT) | (mark << LEFT)
        out[i] = mark
