"""The scorer against a plain walk through the whole cascade."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import twins
from forests import make_forest, make_rows
from trueup.kernels import trees as kernel
from trueup.kernels.trees import IDENTITY, LOGIT, ROWS, SOFTMAX, Stage, build, score

LINKS = {"identity": IDENTITY, "logit": LOGIT, "softmax": SOFTMAX}
LEVELS = st.lists(st.sampled_from([-1, -1, 0, 3, 70]), max_size=4)
SEEDS = st.integers(0, 2**32 - 1)


def _stages(random, levels, outputs, cascades, rounds, most):
    return [
        Stage(k, random.uniform(0.5, 1.5), make_forest(random, levels, outputs, 6, most).scaled(0.3))
        for _ in range(rounds)
        for k in range(cascades)
    ]


def _predictions(random, rows, outputs, link):
    if link == "identity":
        return random.choice([-np.inf, -1.0, 0.0, 0.5, 2.0, 3.7, np.nan], (rows, outputs))
    P = random.choice([0.0, 1.0, 0.5, 0.03, 1e-9, 0.999], (rows, outputs))
    return P / np.maximum(P.sum(axis=1, keepdims=True), 1e-12) if link == "softmax" else P


def _collapsed(program):
    return (np.diff(program.trees_at) == 0).sum()


def _score(program, X, P):
    out = np.empty_like(P)
    score(*program, X, P, out)
    return out


@settings(max_examples=60)
@given(LEVELS, st.sampled_from(sorted(LINKS)), st.integers(1, 3), st.integers(0, 3), st.integers(1, 3), SEEDS)
def test_a_cascade_scores_as_its_numpy_twin(levels, link, cascades, rounds, most, seed):
    random = np.random.default_rng(seed)
    outputs = {"logit": 1, "softmax": 3, "identity": 2}[link]
    stages = _stages(random, levels, outputs, cascades, rounds, most)
    X, P = make_rows(random, levels, 20), _predictions(random, 20, outputs, link)
    program = build(stages, levels, outputs, cascades, LINKS[link])
    expected = twins.run_cascade(stages, levels, cascades, link, X, P)
    np.testing.assert_allclose(_score(program, X, P), expected, atol=1e-12, rtol=1e-12)


@given(LEVELS, SEEDS)
def test_tables_and_walked_trees_give_the_same_scores(levels, seed):
    random = np.random.default_rng(seed)
    stages = _stages(random, levels, 2, 2, 2, 2)
    X, P = make_rows(random, levels, 40), random.normal(size=(40, 2))
    with pytest.MonkeyPatch.context() as patch:
        tables = build(stages, levels, 2, 2, IDENTITY)
        patch.setattr(kernel, "MAX_CELLS", -1)
        walked = build(stages, levels, 2, 2, IDENTITY)
    assert (_collapsed(tables), _collapsed(walked)) == (4, 0)
    np.testing.assert_allclose(_score(tables, X, P), _score(walked, X, P), atol=1e-12, rtol=1e-12)


def test_a_stage_is_collapsed_unless_a_leaf_tests_three_features():
    random = np.random.default_rng(5)
    levels = [-1, 4, -1]
    two, three = make_forest(random, levels, trees=9), make_forest(random, levels, trees=9, most=3, depth=4)
    empty = make_forest(random, levels, trees=0)
    stages = [Stage(0, 1.1, forest) for forest in (two, three, empty, two)]
    program = build(stages, levels, 1, 1, LOGIT)
    assert _collapsed(program) == 3
    assert np.diff(program.trees_at).tolist() == [0, 9, 0, 0]
    X, P = make_rows(random, levels, 30), _predictions(random, 30, 1, "logit")
    expected = twins.run_cascade(stages, levels, 1, "logit", X, P)
    np.testing.assert_allclose(_score(program, X, P), expected, atol=1e-12)


def test_all_tables_together_stay_within_the_bound(monkeypatch):
    random = np.random.default_rng(1)
    forest = make_forest(random, [-1, 5])
    cells = len(build([Stage(0, 1.0, forest)], [-1, 5], 1, 1, LOGIT).values)
    monkeypatch.setattr(kernel, "MAX_CELLS", 2 * cells)
    program = build([Stage(0, 1.0, forest)] * 3, [-1, 5], 1, 1, LOGIT)
    assert _collapsed(program) == 2
    assert len(program.values) == 2 * cells


@pytest.mark.parametrize("most", [2, 3])
@pytest.mark.parametrize("link", sorted(LINKS))
def test_a_row_scores_the_same_bits_in_any_batch(link, most):
    random = np.random.default_rng(8)
    levels, rows = [-1, 70, -1, 3], 2 * ROWS + 37
    outputs = 1 if link == "logit" else 3
    program = build(_stages(random, levels, outputs, 3, 2, most), levels, outputs, 3, LINKS[link])
    X, P = make_rows(random, levels, rows), random.dirichlet(np.ones(3), rows)[:, :outputs].copy()
    whole = _score(program, X, P)
    for size in (1, 2, 7, 15, 16, 17, 33, ROWS - 1, ROWS, ROWS + 1):
        parts = [slice(start, start + size) for start in range(0, rows, size)]
        found = np.concatenate([_score(program, np.ascontiguousarray(X[:, part]), P[part]) for part in parts])
        assert found.tobytes() == whole.tobytes()


@pytest.mark.parametrize("most", [2, 3])
def test_codes_beyond_the_vocabulary_score_as_missing(most):
    random = np.random.default_rng(2)
    levels = [3, -1, 40]
    program = build(_stages(random, levels, 1, 1, 3, most), levels, 1, 1, LOGIT)
    codes = np.array([-1.0, 3, 4, 31, 32, 1e5, 2.0**31, 2.0**63, 2.0**64, 1e300, np.inf, -np.inf, np.nan])
    X = np.zeros((3, len(codes)))
    X[0] = codes
    assert len(np.unique(_score(program, X, np.full((len(codes), 1), 0.3)))) == 1


def test_the_identity_link_leaves_predictions_unchanged():
    random = np.random.default_rng(3)
    stages = _stages(random, [-1], 1, 2, 2, 2)
    X, F = make_rows(random, [-1], 30), random.normal(size=(30, 1))
    program = build(stages, [-1], 1, 2, IDENTITY)
    expected = twins.run_cascade(stages, [-1], 2, "identity", X, F)
    np.testing.assert_allclose(_score(program, X, F), expected, atol=1e-12)


def test_no_rows_give_no_rows_and_no_stages_give_the_prediction():
    program = build([], [3, -1], 1, 1, IDENTITY)
    assert _collapsed(program) == 0
    P = np.array([[0.25], [np.inf]])
    assert _score(program, np.zeros((2, 2)), P).tolist() == P.tolist()
    assert _score(program, np.zeros((2, 0)), np.zeros((0, 1))).shape == (0, 1)


def test_the_scorer_may_overwrite_its_predictions():
    random = np.random.default_rng(4)
    program = build(_stages(random, [-1, 5], 3, 1, 1, 2), [-1, 5], 3, 1, SOFTMAX)
    X, P = make_rows(random, [-1, 5], 600), random.dirichlet(np.ones(3), 600)
    expected = _score(program, X, P)
    score(*program, X, P, P)
    assert P.tobytes() == expected.tobytes()
    np.testing.assert_allclose(P.sum(axis=1), 1.0, atol=1e-12)
