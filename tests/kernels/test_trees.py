"""Forests and their collapse into pair tables, against plain walks."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

import twins
from forests import GRID, make_forest, make_rows
from trueup.kernels import trees as kernel
from trueup.kernels.trees import Forest, collapse, find_bins, join_forests

LEVELS = st.lists(st.sampled_from([-1, -1, 0, 1, 5, 70]), max_size=4)
SEEDS = st.integers(0, 2**32 - 1)


def _tested(forest):
    """Return the features that each leaf tests."""
    found = {}

    def descend(here, seen):
        if here < 0:
            found[~here] = seen
        else:
            for child in (forest.left[here], forest.right[here]):
                descend(int(child), seen | {int(forest.feature[here])})

    for root in forest.root:
        descend(int(root), frozenset())
    return list(found.values())


@settings(max_examples=60)
@example([], 2, 0, 0)
@example([70, 70], 1, 9, 3)
@given(LEVELS, st.integers(1, 3), st.integers(0, 12), SEEDS)
def test_tables_add_up_to_the_sum_of_all_trees(levels, outputs, trees, seed):
    random = np.random.default_rng(seed)
    forest = make_forest(random, levels, outputs, trees)
    X, F = make_rows(random, levels, 12), random.choice([*GRID, np.nan], (12, outputs))
    bins = find_bins(forest, [*levels, *[-1] * outputs])
    found = collapse(forest, bins)
    expected = twins.sum_trees(forest, X, F, levels)
    np.testing.assert_allclose(twins.look_up(found, bins, np.vstack([X, F.T]), outputs), expected, atol=1e-12, rtol=0)


@given(st.lists(st.sampled_from([-1, -1, 6]), min_size=2, max_size=4), SEEDS)
def test_a_forest_collapses_unless_a_leaf_tests_three_features(levels, seed):
    forest = make_forest(np.random.default_rng(seed), levels, trees=2, most=3)
    found = collapse(forest, find_bins(forest, [*levels, -1]))
    assert (found is None) == any(len(features) > 2 for features in _tested(forest))


@given(LEVELS, SEEDS)
def test_the_bound_on_cells_is_met_exactly(levels, seed):
    forest = make_forest(np.random.default_rng(seed), levels, trees=6)
    bins = find_bins(forest, [*levels, -1])
    cells = len(collapse(forest, bins).values)
    assert collapse(forest, bins, cells) is not None
    assert collapse(forest, bins, cells - 1) is None


def test_a_table_has_only_the_cells_that_its_leaves_distinguish():
    # x at most 1 is worth 1; else a code of 0 or 2 is worth 2, and all others 4. Missing goes right.
    forest = _chain([(0, 1.0), (1, [0, 2])], [1.0, 2.0, 4.0])
    other = _chain([(0, 7.0), (1, list(range(1, 50)))], [0.0, 0.0, 0.0])
    bins = find_bins(join_forests([forest, other]), [-1, 50])
    found = collapse(forest, bins)
    assert found.values.reshape(3, 2).tolist() == [[1.0, 1.0], [4.0, 2.0], [4.0, 2.0]]
    assert bins.count(0) == 4
    assert bins.count(1) == 4  # 0; 2; the others; missing


def _chain(tests, values):
    """Make one tree: each node has a leaf on its left and the next node on its right."""
    count = len(tests)
    words, words_at, words_in = [], [], []
    for _, test in tests:
        codes = test if isinstance(test, list) else None
        words_at.append(-1 if codes is None else len(words))
        mask = sum(1 << code + 1 for code in codes or ())
        own = [] if codes is None else [mask >> 32 * k & 0xFFFFFFFF for k in range(mask.bit_length() // 32 + 1)]
        words_in.append(len(own))
        words += own
    parts = {
        "root": [0 if count else ~0],
        "output": [0],
        "feature": [feature for feature, _ in tests],
        "threshold": [0.0 if isinstance(test, list) else test for _, test in tests],
        "left": [~k for k in range(count)],
        "right": [k + 1 for k in range(count - 1)] + [~count] * (count > 0),
        "missing_left": [0] * count,
        "words_at": words_at,
        "words_in": words_in,
        "words": words,
        "value": values,
    }
    return Forest(**{name: np.array(part, kernel.ARRAY_TYPES.get(name, np.int32)) for name, part in parts.items()})


@given(LEVELS, SEEDS)
def test_categories_share_a_bin_if_no_node_distinguishes_them(levels, seed):
    forest = make_forest(np.random.default_rng(seed), levels, trees=6)
    bins = find_bins(forest, [*levels, -1])
    for at, count in enumerate(levels):
        if count >= 0:
            nodes = np.flatnonzero(forest.feature == at)
            sets = [
                forest.words[forest.words_at[node] : forest.words_at[node] + forest.words_in[node]].tolist()
                for node in nodes
            ]
            seen = [tuple(sum(w << 32 * k for k, w in enumerate(s)) >> code & 1 for s in sets) for code in range(count + 1)]
            pairs = {(kind, int(label)) for kind, label in zip(seen, bins.classes[at], strict=True)}
            assert len(pairs) == len({kind for kind, _ in pairs}) == len({label for _, label in pairs}) == bins.count(at)


def test_a_forest_of_constants_has_one_cell_per_output():
    forest = join_forests([_chain([], [1.5]), _chain([], [2.0])])
    found = collapse(forest, find_bins(forest, [-1]))
    assert found.values.tolist() == [3.5]


def test_a_constant_needs_no_table_of_its_own():
    forest = join_forests([_chain([(0, 1.0), (1, 2.0)], [1.0, 2.0, 4.0]), _chain([], [1.5])])
    assert len(collapse(forest, find_bins(forest, [-1, -1])).table) == 1


@given(LEVELS, st.integers(1, 3), SEEDS)
def test_a_joined_forest_sums_its_parts(levels, outputs, seed):
    random = np.random.default_rng(seed)
    parts = [make_forest(random, levels, outputs, trees, most=3) for trees in (3, 0, 1, 4)]
    X, F = make_rows(random, levels, 5), random.normal(size=(5, outputs))
    joined = join_forests(parts)
    assert len(joined) == 8
    # Trees keep their output: the parts begin with output 0 each, as they were made.
    expected = sum(twins.sum_trees(part, X, F, levels) for part in parts)
    np.testing.assert_allclose(twins.sum_trees(joined, X, F, levels), expected, atol=1e-12)
    assert [array.dtype for array in joined.arrays().values()] == [array.dtype for array in parts[0].arrays().values()]


def test_no_forests_join_to_a_forest_without_trees():
    empty = join_forests([])
    assert len(empty) == 0
    assert len(collapse(empty, find_bins(empty, [3, -1])).values) == 0


def test_scaling_a_forest_does_not_change_the_original():
    forest = make_forest(np.random.default_rng(0), [-1, 4])
    before = forest.value.copy()
    assert forest.scaled(0.25).value.tolist() == (before / 4).tolist()
    assert forest.value.tolist() == before.tolist()


def test_huge_vocabularies_take_little_memory_and_too_many_cells_are_rejected_early():
    random = np.random.default_rng(0)
    nodes, levels = 1_000, 100_000
    words = levels // 32 + 1
    sets = np.zeros((nodes, words), np.uint32)
    for own in sets:
        own[random.integers(0, words, 32)] = random.integers(1, 2**32, 32)
    forest = join_forests([_chain([(0, []), (1, [])], [1.0, 2.0, 3.0])] * (nodes // 2))
    at = np.arange(nodes, dtype=np.int32) * words
    forest = Forest(
        **{**forest.arrays(), "words_at": at, "words_in": np.full(nodes, words, np.int32), "words": sets.ravel()}
    )
    collapse(forest, find_bins(forest, [3, 3]))  # compiled
    tracemalloc.start()
    bins = find_bins(forest, [levels, levels])
    found = collapse(forest, bins)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert bins.count(0) > 10_000
    assert found is None
    assert peak < 20e6


def test_too_many_places_are_rejected(monkeypatch):
    forest = _chain([(0, 1.0), (1, 2.0)], [1.0, 2.0, 4.0])
    bins = find_bins(forest, [-1, -1])
    monkeypatch.setattr(kernel, "MAX_PLACES", 6)
    assert collapse(forest, bins) is not None
    monkeypatch.setattr(kernel, "MAX_PLACES", 5)
    assert collapse(forest, bins) is None


@pytest.mark.parametrize("most", [2**31, 2**40])
def test_a_bound_beyond_32_bits_is_reduced(most):
    forest = _chain([(0, 1.0)], [1.0, 2.0])
    assert collapse(forest, find_bins(forest, [-1]), most).values.tolist() == [1.0, 2.0, 2.0]
