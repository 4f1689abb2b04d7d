"""Which rows go where: dealt by what they hold, so that the order of the rows does not matter."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray, UInt64Array


GOLDEN = (5**0.5 - 1) / 2
MAX_DUPLICATES = 10  # rows alike up to this many times stay in one fold; more often, that is what discrete data look like
STEP = np.uint64(0x9E3779B97F4A7C15)


def assign_folds(
    columns: Sequence[AnyArray], strata: FloatArray, parts: int, seed: int, own: Sequence[FloatArray] = ()
) -> IntArray:
    """Deal rows into parts by what they hold, so that the order of the rows does not matter.

    Rows alike in all columns stay together where there are up to ten of them, so that a copy never judges its original;
    more of them are dealt out one by one, at random. Every part has its share of each stratum, and so has every run of
    parts: the first fifth of 1,000 parts are a fifth of each stratum, of however few rows. That holds for all rows
    together, and not for rows alike: had each part its share of their events, then what chance made of them in one part
    would be confirmed by all the others.

    Parameters
    ----------
    columns : sequence of ndarray
        What a row is known by.
    strata : ndarray
        Rows are dealt in its order: the outcome of a binary task.
    parts, seed : int
    own : sequence of ndarray
        What else tells rows apart that are alike in all columns: outcome and weight.

    Examples
    --------
    >>> deal([np.array([.1, .1, .2, .3, .4])], np.array([1., 1, 0, 0, 0]), 2, seed=0)
    array([1, 1, 0, 1, 0])
    """
    keys = _hash(columns, seed)
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
    group = group.ravel()
    level = np.bincount(group, strata) / count
    alone = count[group] > MAX_DUPLICATES
    # The order in which cards are dealt: by stratum, then by hash; the groups first, then the rows of common content.
    seat = np.empty(len(keys), np.int64)
    order = np.lexsort((np.arange(len(count)), np.round(level)))
    place = np.empty(len(count), np.int64)
    kept = count[order] <= MAX_DUPLICATES
    place[order] = np.cumsum(kept) - 1
    seat[~alone] = place[group[~alone]]
    rows = np.flatnonzero(alone)
    rows = rows[np.lexsort([array[rows] for array in (*own[::-1], strata, keys)])]
    hands = keys[rows]
    _mix(hands, (_ranks(hands) + 1).astype(np.uint64))
    seat[rows[np.lexsort((hands, np.round(strata[rows])))]] = int(kept.sum()) + np.arange(len(rows))
    return seat * _step(parts) % parts


def assign_folds_by_hash(columns: Sequence[AnyArray], own: Sequence[FloatArray], parts: int, seed: int) -> IntArray:
    """Deal rows of which the others lie elsewhere into parts, by what they hold and nothing else.

    As in `deal`, rows alike in all columns stay together where there are up to ten of them here, and more of them are dealt
    one by one. Rows of a content of their own go where they would go wherever they lay. Parts get their share of rows and
    events by chance alone, which for the many rows that this is meant for is near enough.

    Parameters
    ----------
    columns : sequence of ndarray
        What a row is known by.
    own : sequence of ndarray
        What else tells rows apart that are alike in all columns: outcome and weight.
    parts, seed : int

    Examples
    --------
    >>> whole = deal_apart([np.array([.1, .1, .2, .3])], [np.array([1., 0, 0, 1])], 5, seed=0)
    >>> rest = deal_apart([np.array([.2, .3])], [np.array([0., 1])], 5, seed=0)
    >>> whole[0] == whole[1], whole[2:].tolist() == rest.tolist()
    (np.True_, True)
    """
    keys = _hash(columns, seed)
    order = np.lexsort((*own[::-1], keys))
    rank, size = _runs(keys[order])
    alone = size > MAX_DUPLICATES
    # Stirred with all that is here, too: the first of such rows would else go to one place from everywhere.
    hands = keys[order[alone]]
    _mix(hands, np.full(len(hands), digest_rows(columns, own, seed)))
    _mix(hands, (rank[alone] + 1).astype(np.uint64))
    keys[order[alone]] = hands
    return (keys % np.uint64(parts)).astype(np.int64)


def random_row_keys(columns: Sequence[AnyArray], own: Sequence[FloatArray], seed: int) -> UInt64Array:
    """Give every row a number at random, by what it holds: the rows of the smallest numbers are a fair sample.

    However the rows are cut into parts, those of a content of their own have the same number.
    """
    keys = _hash(columns, seed)
    order = np.lexsort((*own[::-1], keys))
    rank, size = _runs(keys[order])
    salt = np.where(size > MAX_DUPLICATES, digest_rows(columns, own, seed), np.uint64(1))
    hands = keys[order]
    _mix(hands, rank.astype(np.uint64))
    _mix(hands, salt)
    keys[order] = hands
    return keys


def digest_rows(columns: Sequence[AnyArray], own: Sequence[FloatArray], seed: int = 0) -> np.uint64:
    """Give one number that rows are known by, in whatever order; those of parts add up (and wrap) to that of all.

    Examples
    --------
    >>> digest_of([np.array([1.0, 2.0])], []) == digest_of([np.array([2.0, 1.0])], [])
    np.True_
    """
    return np.uint64(_hash([*columns, *own], seed).sum(dtype=np.uint64))


@lru_cache
def _step(parts: int) -> int:
    """Choose how far apart two seats in succession are dealt, so that no run of parts is passed over for long.

    Steps of the golden section of a circle fill it most evenly, its continued fraction being all ones; nearby it is the
    step whose continued fraction comes nearest to that (Kuipers & Niederreiter 1974, chapter 2, theorem 3.4).
    """

    def largest(step: int) -> int:
        found, a, b = 0, parts, step
        while b:
            found, a, b = max(found, a // b), b, a % b
        return found

    golden = round(GOLDEN * parts)
    near = [step for step in range(max(1, golden - 50), min(parts, golden + 50)) if math.gcd(step, parts) == 1]
    return min(near, key=lambda step: (largest(step), abs(step - golden)), default=1)


def _hash(columns: Sequence[AnyArray], seed: int) -> UInt64Array:
    """Mix the bits of each row's values (the finaliser of splitmix64, Steele, Lea & Flood 2014)."""
    with np.errstate(over="ignore"):
        out = np.full(len(columns[0]), np.uint64(seed) * STEP + np.uint64(1))
        for column in columns:
            values = np.where(np.isnan(column), np.nan, column + 0.0).astype(np.float64)  # one NaN, and no minus zero
            _mix(out, values.view(np.uint64))
    return out


def _mix(out: UInt64Array, more: UInt64Array) -> None:
    """Stir more bits into each hash, in place."""
    with np.errstate(over="ignore"):
        out += more + STEP
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            out ^= out >> np.uint64(shift)
            out *= np.uint64(factor)
        out ^= out >> np.uint64(31)


def _ranks(keys: UInt64Array) -> IntArray:
    """Number the members of every run of equal keys, from 0 on."""
    at = np.arange(len(keys))
    fresh = np.append(True, np.diff(keys) != 0)[: len(keys)]
    return at - np.maximum.accumulate(np.where(fresh, at, 0))


def _runs(keys: UInt64Array) -> tuple[IntArray, IntArray]:
    """Give for every member of every run of equal keys its number, from 0 on, and how many members the run has."""
    rank = _ranks(keys)
    fresh = rank == 0
    size = np.diff(np.append(np.flatnonzero(fresh), len(keys)))
    return rank, size[np.cumsum(fresh) - 1] if len(keys) else rank


def shuffle_rows(columns: Sequence[AnyArray], own: Sequence[FloatArray], seed: int) -> tuple[IntArray, BoolArray]:
    """Put rows into an order that is random, and the same whatever order they came in; say where a cut may fall.

    The order has nothing to do with outcomes. So the rows before a cut say nothing about those after it by chance, as they
    would if each side had its share of the events: too many before would then mean too many after.

    Parameters
    ----------
    columns : sequence of ndarray
        What a row is known by. Rows alike in all of them stay together where there are up to ten, as in `deal`.
    own : sequence of ndarray
        What tells rows apart that are alike: outcome and weight. The order among them is random too.
    seed : int

    Returns
    -------
    order : ndarray of int64
    starts : ndarray of bool
        Whether a cut may fall before that place of the order.

    Examples
    --------
    >>> order, starts = shuffle([np.array([.1, .1, .2, .3])], [np.array([1., 0, 0, 1])], seed=0)
    >>> starts.tolist().count(True)
    3
    """
    keys = _hash(columns, seed) if len(columns) else np.zeros(len(own[0]), np.uint64)
    sort = np.lexsort((*own[::-1], keys))
    rank, size = _runs(keys[sort])
    # A row of common content is hashed once more with its rank, which makes it a row of its own.
    place = keys[sort]
    _mix(place, np.where(size > MAX_DUPLICATES, rank + 1, 0).astype(np.uint64))
    again = np.lexsort((rank, place))
    return sort[again], np.append(True, np.diff(place[again]) != 0)
