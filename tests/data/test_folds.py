"""Folds, shuffles and samples depend on the content of rows, not on their order, outcomes or partition."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.data.folds import MAX_DUPLICATES, assign_folds, assign_folds_by_hash, digest_rows, random_row_keys, shuffle_rows


def test_identical_rows_share_a_fold_and_strata_are_spread():
    folds = assign_folds([np.array([0.1, 0.1, 0.2, 0.3, 0.4])], np.array([1.0, 1, 0, 0, 0]), 2, seed=0)
    assert folds.tolist() == [1, 1, 0, 1, 0]


@pytest.mark.parametrize("values", [3, 10**6])
def test_the_input_order_does_not_change_the_shuffle(values):
    random = np.random.default_rng(0)
    x, y = random.integers(0, values, 500) * 1.0, random.integers(0, 2, 500) * 1.0
    mixed = random.permutation(500)
    order, starts = shuffle_rows([x], [y], 1)
    again, same = shuffle_rows([x[mixed]], [y[mixed]], 1)
    np.testing.assert_array_equal(x[order], x[mixed][again])
    np.testing.assert_array_equal(y[order], y[mixed][again])
    np.testing.assert_array_equal(starts, same)
    assert sorted(order) == list(range(500))


def test_up_to_ten_identical_rows_are_never_split():
    x = np.repeat([1.0, 2.0, 3.0], [MAX_DUPLICATES, MAX_DUPLICATES + 1, 1])
    order, starts = shuffle_rows([x], [np.arange(len(x)) * 1.0], 0)
    block = np.flatnonzero(x[order] == 1)
    np.testing.assert_array_equal(block, block[0] + np.arange(MAX_DUPLICATES))
    assert starts[block].tolist() == [True] + [False] * (MAX_DUPLICATES - 1)
    assert starts[x[order] != 1].all()


def test_outcomes_of_identical_rows_fall_on_either_side_at_random():
    # 40 identical rows, 20 of them events: the number in the first half is hypergeometric, variance 20 * 20 * 20 * 20 / (40^2 * 39).
    y = np.repeat([0.0, 1.0], 20)
    counts = [y[shuffle_rows([np.zeros(40)], [y], seed)[0][:20]].sum() for seed in range(2000)]
    variance = 20**4 / (40**2 * 39)
    assert abs(np.mean(counts) - 10) < 4 * np.sqrt(variance / 2000)
    assert abs(np.var(counts) / variance - 1) < 4 * np.sqrt(2 / 2000)


def test_rows_without_columns_are_distinguished_by_tie_breakers():
    order, starts = shuffle_rows([], [np.arange(50) * 1.0], 0)
    assert sorted(order) == list(range(50))
    assert starts.all()


def test_another_seed_gives_another_order():
    x = np.arange(100) * 1.0
    assert (shuffle_rows([x], [x], 0)[0] != shuffle_rows([x], [x], 1)[0]).any()


def split(arrays, spans):
    return [[array[start:stop] for array in arrays] for start, stop in spans]


def test_unique_rows_have_the_same_fold_key_and_digest_in_any_partition():
    random = np.random.default_rng(0)
    x, y = [random.normal(size=900), random.integers(0, 3, 900).astype(np.int32)], [random.integers(0, 2, 900) * 1.0]
    spans = [(0, 1), (1, 1), (1, 500), (500, 900)]
    partitions = list(zip(split(x, spans), split(y, spans), strict=True))
    folds = [assign_folds_by_hash(columns, ties, 5, 1) for columns, ties in partitions]
    keys = [random_row_keys(columns, ties, 1) for columns, ties in partitions]
    np.testing.assert_array_equal(np.concatenate(folds), assign_folds_by_hash(x, y, 5, 1))
    np.testing.assert_array_equal(np.concatenate(keys), random_row_keys(x, y, 1))
    with np.errstate(over="ignore"):
        total = np.sum([digest_rows(columns, ties) for columns, ties in partitions], dtype=np.uint64)
    assert total == digest_rows(x, y) != digest_rows(x, [1 - y[0]])


def test_up_to_ten_identical_rows_share_a_fold_and_more_are_spread():
    x = np.repeat([1.0, 2.0], [MAX_DUPLICATES, 40 * MAX_DUPLICATES])
    folds = assign_folds_by_hash([x], [np.arange(len(x)) * 1.0], 4, 0)
    assert len(set(folds[:MAX_DUPLICATES])) == 1
    assert set(folds[MAX_DUPLICATES:]) == {0, 1, 2, 3}


@pytest.mark.parametrize("values", [7, 300, 8000, 10**9])  # thousands, hundreds, about five and no identical rows
def test_every_fold_has_its_share_of_rows_and_events(values):
    # Each unit, a row or up to ten identical rows, falls into a fold at random, with probability 1/5.
    random = np.random.default_rng(1)
    n, folds = 40_000, 5
    x, y = random.integers(0, values, n) * 1.0, (random.random(n) < 0.02) * 1.0
    _, group, size = np.unique(x, return_inverse=True, return_counts=True)
    for seed in range(3):
        fold = assign_folds_by_hash([x], [y], folds, seed)
        for counted in (np.ones(n), y):
            units = np.append(np.bincount(group, counted)[size <= MAX_DUPLICATES], counted[size[group] > MAX_DUPLICATES])
            spread = np.sqrt((units**2).sum() / folds * (1 - 1 / folds))
            counts = np.bincount(fold, counted, minlength=folds)
            assert np.abs(counts - n * counted.mean() / folds).max() < 4 * spread


def test_identical_rows_of_many_partitions_are_spread_over_folds():
    # 11 identical rows in each of 400 partitions: without the digest, the first of each would be in one fold.
    x, y = np.zeros(MAX_DUPLICATES + 1), np.zeros(MAX_DUPLICATES + 1)
    partitions = [np.append(x, number) for number in range(400)]  # one more row distinguishes the partitions
    fold = np.array([assign_folds_by_hash([column], [np.append(y, 0)], 5, 0)[0] for column in partitions])
    assert np.abs(np.bincount(fold, minlength=5) - 80).max() < 4 * np.sqrt(400 * 0.2 * 0.8)


def test_the_smallest_keys_are_a_random_sample():
    random = np.random.default_rng(2)
    x = np.where(random.random(50_000) < 0.5, 1.0, random.normal(size=50_000))  # half of the rows are identical
    rows = np.argsort(random_row_keys([x], [np.zeros(50_000)], 0))[:5000]
    assert abs(np.mean(x[rows] == 1) - np.mean(x == 1)) < 4 * np.sqrt(0.25 / 5000)
    assert abs(x[rows].mean() - x.mean()) < 4 * x.std() / np.sqrt(5000)
