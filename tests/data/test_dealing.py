"""A random order of rows that does not depend on the order they came in, nor on their outcomes."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.data.dealing import TOGETHER, shuffle


@pytest.mark.parametrize("values", [3, 10**6])
def test_the_order_rows_came_in_does_not_matter(values):
    random = np.random.default_rng(0)
    x, y = random.integers(0, values, 500) * 1.0, random.integers(0, 2, 500) * 1.0
    mixed = random.permutation(500)
    order, starts = shuffle([x], [y], 1)
    again, same = shuffle([x[mixed]], [y[mixed]], 1)
    np.testing.assert_array_equal(x[order], x[mixed][again])
    np.testing.assert_array_equal(y[order], y[mixed][again])
    np.testing.assert_array_equal(starts, same)
    assert sorted(order) == list(range(500))


def test_up_to_ten_rows_alike_are_never_cut_apart():
    x = np.repeat([1.0, 2.0, 3.0], [TOGETHER, TOGETHER + 1, 1])
    order, starts = shuffle([x], [np.arange(len(x)) * 1.0], 0)
    block = np.flatnonzero(x[order] == 1)
    np.testing.assert_array_equal(block, block[0] + np.arange(TOGETHER))
    assert starts[block].tolist() == [True] + [False] * (TOGETHER - 1)
    assert starts[x[order] != 1].all()


def test_outcomes_of_rows_alike_fall_on_either_side_by_chance():
    # 40 rows alike, 20 of them events: how many are in the first half is hypergeometric, variance 20 * 20 * 20 * 20 / (40^2 * 39).
    y = np.repeat([0.0, 1.0], 20)
    counts = [y[shuffle([np.zeros(40)], [y], seed)[0][:20]].sum() for seed in range(2000)]
    variance = 20**4 / (40**2 * 39)
    assert abs(np.mean(counts) - 10) < 4 * np.sqrt(variance / 2000)
    assert abs(np.var(counts) / variance - 1) < 4 * np.sqrt(2 / 2000)


def test_without_columns_rows_are_told_apart_by_what_is_their_own():
    order, starts = shuffle([], [np.arange(50) * 1.0], 0)
    assert sorted(order) == list(range(50))
    assert starts.all()


def test_another_seed_is_another_order():
    x = np.arange(100) * 1.0
    assert (shuffle([x], [x], 0)[0] != shuffle([x], [x], 1)[0]).any()
