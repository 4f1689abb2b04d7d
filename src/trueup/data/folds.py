"""Folds, shuffles, samples and fingerprints of rows by a hash of their content, so that the order of rows is irrelevant."""

from __future__ import annotations

import math
from functools import lru_cache
from hashlib import md5
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray, UInt64Array


GOLDEN_RATIO = (5**0.5 - 1) / 2
MAX_DUPLICATES = 10  # up to so many identical rows stay in one fold; more are typical of discrete data
HASH_INCREMENT = np.uint64(0x9E3779B97F4A7C15)


def assign_folds(
    columns: Sequence[AnyArray], strata: FloatArray, folds: int, seed: int, tie_breakers: Sequence[FloatArray] = ()
) -> IntArray:
    """Assign rows to folds by their content; ``tie_breakers`` (outcome and weight) order rows with identical columns.

    Up to ten rows that are identical in all columns stay together, so that a copy is never evaluated by a model fitted on
    its original; more are assigned one by one, at random. Every run of consecutive folds has its share of each stratum,
    the outcome of a binary task. That holds for all rows together and not for identical rows: if each fold had its share of
    their events, random fluctuations in one fold would be confirmed by all the others.
    """
    keys = hash_numbers(columns, seed)
    _, group, count = np.unique(keys, return_inverse=True, return_counts=True)
    group = group.ravel()
    level = np.bincount(group, strata) / count
    is_common = count[group] > MAX_DUPLICATES
    # Rows are assigned in this order: by stratum, then by hash; first the groups, then the rows of common content.
    position = np.empty(len(keys), np.int64)
    order = np.lexsort((np.arange(len(count)), np.round(level)))
    group_position = np.empty(len(count), np.int64)
    together = count[order] <= MAX_DUPLICATES
    group_position[order] = np.cumsum(together) - 1
    position[~is_common] = group_position[group[~is_common]]
    rows = np.flatnonzero(is_common)
    rows = rows[np.lexsort([array[rows] for array in (*tie_breakers[::-1], strata, keys)])]
    row_keys = keys[rows]
    _mix(row_keys, (_ranks(row_keys) + 1).astype(np.uint64))
    position[rows[np.lexsort((row_keys, np.round(strata[rows])))]] = int(together.sum()) + np.arange(len(rows))
    return position * _step(folds) % folds


def assign_clusters(cluster: UInt64Array, strata: FloatArray, folds: int, seed: int) -> IntArray:
    """Assign rows to folds so that every cluster is in one fold; ``cluster`` has the identifier of each row as a hash.

    Clusters are assigned by size (powers of 2) and mean stratum, and within these by their hash: every run of consecutive
    folds has its share of large and of small clusters.
    """
    keys, group, count = np.unique(cluster, return_inverse=True, return_counts=True)
    level = np.round(np.bincount(group.ravel(), strata) / count)
    size = -np.floor(np.log2(count))  # the largest first: the smaller ones then fill the folds evenly
    _mix(keys, np.full(len(keys), np.uint64(seed)))
    position = np.empty(len(keys), np.int64)
    position[np.lexsort((keys, level, size))] = np.arange(len(keys))
    return (position * _step(folds) % folds)[group.ravel()]


def assign_folds_by_hash(
    columns: Sequence[AnyArray], tie_breakers: Sequence[FloatArray], folds: int, seed: int
) -> IntArray:
    """Assign the rows of one partition to folds as `assign_folds` does, without knowing the other partitions.

    The fold depends on a row's content alone if at most ten rows are equal. Folds have equal shares on average only.
    """
    keys, order, rank, size = _order_by_content(columns, tie_breakers, seed)
    is_common = size > MAX_DUPLICATES
    # Mixed with the digest of the partition: otherwise the first of such rows would go to the same fold in every partition.
    row_keys = keys[order[is_common]]
    _mix(row_keys, np.full(len(row_keys), digest_rows(columns, tie_breakers, seed)))
    _mix(row_keys, (rank[is_common] + 1).astype(np.uint64))
    keys[order[is_common]] = row_keys
    return (keys % np.uint64(folds)).astype(np.int64)


def assign_clusters_by_hash(cluster: UInt64Array, folds: int, seed: int) -> IntArray:
    """Assign rows to folds by a hash of their cluster alone, the same in every partition."""
    keys = cluster.copy()
    _mix(keys, np.full(len(keys), np.uint64(seed)))
    return (keys % np.uint64(folds)).astype(np.int64)


def random_row_keys(columns: Sequence[AnyArray], tie_breakers: Sequence[FloatArray], seed: int) -> UInt64Array:
    """Return a pseudo-random number per row, by its content; for unique content it is the same in every partition."""
    keys, order, rank, size = _order_by_content(columns, tie_breakers, seed)
    salt = np.where(size > MAX_DUPLICATES, digest_rows(columns, tie_breakers, seed), np.uint64(1))
    row_keys = keys[order]
    _mix(row_keys, rank.astype(np.uint64))
    _mix(row_keys, salt)
    keys[order] = row_keys
    return keys


def digest_rows(columns: Sequence[AnyArray], more_columns: Sequence[FloatArray] = (), seed: int = 0) -> np.uint64:
    """Return a fingerprint of rows in any order; those of partitions add up, modulo 2**64, to that of all rows."""
    return np.uint64(hash_numbers([*columns, *more_columns], seed).sum(dtype=np.uint64))


def shuffle_rows(columns: Sequence[AnyArray], tie_breakers: Sequence[FloatArray], seed: int) -> tuple[IntArray, BoolArray]:
    """Return a random order of rows, whatever their given order, and a mask of positions before which it may be split.

    Up to ten rows that are identical in all columns stay together. The order is independent of the outcomes: if each side
    of a split had its share of the events, too many before the split would imply too many after it.
    """
    keys, by_content, rank, size = _order_by_content(columns, tie_breakers, seed)
    # A row of common content is hashed again with its rank, so that it is no longer identical to the others.
    row_keys = keys[by_content]
    _mix(row_keys, np.where(size > MAX_DUPLICATES, rank + 1, 0).astype(np.uint64))
    by_key = np.lexsort((rank, row_keys))
    return by_content[by_key], np.append(True, np.diff(row_keys[by_key]) != 0)


@lru_cache
def _step(folds: int) -> int:
    """Return by how many folds two rows that are assigned in succession differ, so that every run of folds fills evenly.

    Multiples of the golden ratio, modulo 1, are the most evenly distributed, since its continued fraction is all ones; this
    is the nearby step, coprime to the number of folds, whose continued fraction comes closest to that (Kuipers &
    Niederreiter 1974, chapter 2, theorem 3.4).
    """

    def largest_quotient(step: int) -> int:
        largest, a, b = 0, folds, step
        while b:
            largest, a, b = max(largest, a // b), b, a % b
        return largest

    golden = round(GOLDEN_RATIO * folds)
    near = [step for step in range(max(1, golden - 50), min(folds, golden + 50)) if math.gcd(step, folds) == 1]
    return min(near, key=lambda step: (largest_quotient(step), abs(step - golden)), default=1)


def hash_texts(texts: Sequence[str]) -> UInt64Array:
    """Hash each text, the same in every process, by 52 bits of its MD5, which DuckDB computes as well (`text_hash_sql`)."""
    digests = (md5(text.encode("utf-8", "replace"), usedforsecurity=False).digest()[8:] for text in texts)
    return hash_numbers([(np.frombuffer(b"".join(digests), "<u8") >> np.uint64(12)).astype(np.float64)])


def text_hash_sql(sql: str) -> str:
    """Return the SQL of a number whose hash by `hash_numbers` is that of a text by `hash_texts`; NULL stays NULL."""
    return f"CAST(md5_number_lower({sql}) >> 12 AS DOUBLE)"


def hash_numbers(columns: Sequence[AnyArray], seed: int = 0) -> UInt64Array:
    """Hash the numbers of each row (the finaliser of splitmix64, Steele, Lea & Flood 2014)."""
    with np.errstate(over="ignore"):
        keys = np.full(len(columns[0]), np.uint64(seed) * HASH_INCREMENT + np.uint64(1))
        for own in columns:
            column = own[:]  # a column that is read from two places becomes one array
            values = np.where(np.isnan(column), np.nan, column + 0.0).astype(np.float64)  # one NaN, and no minus zero
            _mix(keys, values.view(np.uint64))
    return keys


def _mix(keys: UInt64Array, more: UInt64Array) -> None:
    """Mix ``more`` into the hashes ``keys``, in place."""
    with np.errstate(over="ignore"):
        keys += more + HASH_INCREMENT
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            keys ^= keys >> np.uint64(shift)
            keys *= np.uint64(factor)
        keys ^= keys >> np.uint64(31)


def _ranks(keys: UInt64Array) -> IntArray:
    """Number the members of every run of equal keys from 0."""
    index = np.arange(len(keys))
    is_first = np.append(True, np.diff(keys) != 0)[: len(keys)]
    return index - np.maximum.accumulate(np.where(is_first, index, 0))


def _order_by_content(
    columns: Sequence[AnyArray], tie_breakers: Sequence[FloatArray], seed: int
) -> tuple[UInt64Array, IntArray, IntArray, IntArray]:
    """Return row hashes, the order of rows by hash, and in that order the rank among rows of equal hash and their count."""
    keys = hash_numbers(columns, seed) if len(columns) else np.zeros(len(tie_breakers[0]), np.uint64)
    order = np.lexsort((*tie_breakers[::-1], keys))
    rank = _ranks(keys[order])
    is_first = rank == 0
    size = np.diff(np.append(np.flatnonzero(is_first), len(keys)))
    return keys, order, rank, size[np.cumsum(is_first) - 1] if len(keys) else rank
