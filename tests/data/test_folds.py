"""Which rows go where: by what they hold, and not by the order they came in, their outcomes or their neighbours."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.data.folds import MAX_DUPLICATES, assign_folds_by_hash, digest_rows, random_row_keys, shuffle_rows


@pytest.mark.parametrize("values", [3, 10**6])
def test_the_order_rows_came_in_does_not_matter(values):
    random = np.random.default_rng(0)
    x, y = random.integers(0, values, 500) * 1.0, random.integers(0, 2, 500) * 1.0
    mixed = random.permutation(500)
    order, starts = shuffle_rows([x], [y], 1)
    again, same = shuffle_rows([x[mixed]], [y[mixed]], 1)
    np.testing.assert_array_equal(x[order], x[mixed][again])
    np.testing.assert_array_equal(y[order], y[mixed][again])
    np.testing.assert_array_equal(starts, same)
    assert sorted(order) == list(range(500))


def test_up_to_ten_rows_alike_are_never_cut_apart():
    x = np.repeat([1.0, 2.0, 3.0], [MAX_DUPLICATES, MAX_DUPLICATES + 1, 1])
    order, starts = shuffle_rows([x], [np.arange(len(x)) * 1.0], 0)
    block = np.flatnonzero(x[order] == 1)
    np.testing.assert_array_equal(block, block[0] + np.arange(MAX_DUPLICATES))
    assert starts[block].tolist() == [True] + [False] * (MAX_DUPLICATES - 1)
    assert starts[x[order] != 1].all()


def test_outcomes_of_rows_alike_fall_on_either_side_by_chance():
    # 40 rows alike, 20 of them events: how many are in the first half is hypergeometric, variance 20 * 20 * 20 * 20 / (40^2 * 39).
    y = np.repeat([0.0, 1.0], 20)
    counts = [y[shuffle_rows([np.zeros(40)], [y], seed)[0][:20]].sum() for seed in range(2000)]
    variance = 20**4 / (40**2 * 39)
    assert abs(np.mean(counts) - 10) < 4 * np.sqrt(variance / 2000)
    assert abs(np.var(counts) / variance - 1) < 4 * np.sqrt(2 / 2000)


def test_without_columns_rows_are_told_apart_by_what_is_their_own():
    order, starts = shuffle_rows([], [np.arange(50) * 1.0], 0)
    assert sorted(order) == list(range(50))
    assert starts.all()


def test_another_seed_is_another_order():
    x = np.arange(100) * 1.0
    assert (shuffle_rows([x], [x], 0)[0] != shuffle_rows([x], [x], 1)[0]).any()


def cut(arrays, spans):
    return [[array[start:stop] for array in arrays] for start, stop in spans]


def test_rows_of_their_own_go_where_they_go_however_they_are_cut():
    random = np.random.default_rng(0)
    x, y = [random.normal(size=900), random.integers(0, 3, 900).astype(np.int32)], [random.integers(0, 2, 900) * 1.0]
    whole, keys = assign_folds_by_hash(x, y, 5, 1), random_row_keys(x, y, 1)
    spans = [(0, 1), (1, 1), (1, 500), (500, 900)]
    apart = [assign_folds_by_hash(a, b, 5, 1) for a, b in zip(cut(x, spans), cut(y, spans), strict=True)]
    drawn = [random_row_keys(a, b, 1) for a, b in zip(cut(x, spans), cut(y, spans), strict=True)]
    np.testing.assert_array_equal(np.concatenate(apart), whole)
    np.testing.assert_array_equal(np.concatenate(drawn), keys)
    with np.errstate(over="ignore"):
        total = np.sum([digest_rows(a, b) for a, b in zip(cut(x, spans), cut(y, spans), strict=True)], dtype=np.uint64)
    assert total == digest_rows(x, y) != digest_rows(x, [1 - y[0]])


def test_up_to_ten_rows_alike_go_together_and_more_go_anywhere():
    x = np.repeat([1.0, 2.0], [MAX_DUPLICATES, 40 * MAX_DUPLICATES])
    found = assign_folds_by_hash([x], [np.arange(len(x)) * 1.0], 4, 0)
    assert len(set(found[:MAX_DUPLICATES])) == 1
    assert set(found[MAX_DUPLICATES:]) == {0, 1, 2, 3}


@pytest.mark.parametrize("values", [7, 300, 8000, 10**9])  # rows alike in thousands, in hundreds, by fives, and none
def test_every_fold_gets_its_share_of_rows_and_of_events(values):
    # What is dealt falls at random, at a fifth each: a card is a row, or up to ten rows alike.
    random = np.random.default_rng(1)
    n, folds = 40_000, 5
    x, y = random.integers(0, values, n) * 1.0, (random.random(n) < 0.02) * 1.0
    _, group, size = np.unique(x, return_inverse=True, return_counts=True)
    for seed in range(3):
        fold = assign_folds_by_hash([x], [y], folds, seed)
        for counted in (np.ones(n), y):
            cards = np.append(np.bincount(group, counted)[size <= MAX_DUPLICATES], counted[size[group] > MAX_DUPLICATES])
            spread = np.sqrt((cards**2).sum() / folds * (1 - 1 / folds))
            counts = np.bincount(fold, counted, minlength=folds)
            assert np.abs(counts - n * counted.mean() / folds).max() < 4 * spread


def test_rows_alike_in_many_parts_do_not_all_go_to_one_place():
    # 11 rows alike in each of 400 parts: that a fold has the first of all parts would be a clump of 400.
    x, y = np.zeros(MAX_DUPLICATES + 1), np.zeros(MAX_DUPLICATES + 1)
    z = [np.append(x, part) for part in range(400)]  # one more row, that tells parts apart
    fold = np.array([assign_folds_by_hash([one], [np.append(y, 0)], 5, 0)[0] for one in z])
    assert np.abs(np.bincount(fold, minlength=5) - 80).max() < 4 * np.sqrt(400 * 0.2 * 0.8)


def test_the_smallest_numbers_are_a_fair_sample():
    random = np.random.default_rng(2)
    x = np.where(random.random(50_000) < 0.5, 1.0, random.normal(size=50_000))  # half of the rows are alike
    rows = np.argsort(random_row_keys([x], [np.zeros(50_000)], 0))[:5000]
    assert abs(np.mean(x[rows] == 1) - np.mean(x == 1)) < 4 * np.sqrt(0.25 / 5000)
    assert abs(x[rows].mean() - x.mean()) < 4 * x.std() / np.sqrt(5000)
