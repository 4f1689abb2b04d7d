"""NumPy versions of kernels, for processes without numba, return the same bits as the compiled kernels."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
from forests import make_forest, make_rows
from scoring import golden_models, many_rows
from trueup.kernels import _jit, curves, laplace
from trueup.kernels.laplace import tiles
from trueup.kernels.threads import Workers
from trueup.kernels.trees import IDENTITY, LOGIT, SOFTMAX, Stage, build, score
from trueup.kernels.vectorised import REPLACEMENTS

LEVELS = st.lists(st.sampled_from([-1, -1, 0, 3, 70]), max_size=4)
SEEDS = st.integers(0, 2**32 - 1)
LINKS = {IDENTITY: 2, LOGIT: 1, SOFTMAX: 3}  # and the number of outputs


@pytest.fixture
def without_numba(monkeypatch):
    """Return a function that calls another one as if numba were not installed."""

    def call(function, *arguments, **named):
        with monkeypatch.context() as patch:
            patch.setattr(_jit.Kernel, "__call__", lambda self, *a: self._without_numba()(*a))
            patch.setattr(_jit.Kernel, "answer", lambda self, steps, *a: self(*a))
            patch.setattr(_jit.Kernel, "run", lambda self, steps, *a, instead=None: self(*a))
            patch.setattr(_jit.Kernel, "compiled", False, raising=False)
            kernels = [kernel for kernel in REPLACEMENTS if kernel.compiled]
            for kernel in kernels:
                patch.setattr(kernel, "compiled", False)
            return function(*arguments, **named)

    return call


def compiled(function, *arguments, **named):
    with _jit.compiling_at_once():
        return function(*arguments, **named)


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.sampled_from(sorted(LINKS)), st.integers(1, 3), st.integers(1, 3), SEEDS)
def test_cascades(levels, link, rounds, most, seed):
    random = np.random.default_rng(seed)
    outputs, rows = LINKS[link], 40
    forests = [make_forest(random, levels, outputs, 6, most).scaled(0.3) for _ in range(2 * rounds)]
    stages = [Stage(number % 2, random.uniform(0.5, 1.5), forest) for number, forest in enumerate(forests)]
    program = compiled(build, stages, levels, outputs, 2, link)
    X = make_rows(random, levels, rows)
    for feature, count in enumerate(levels):
        cuts = program.cuts[program.cuts_at[feature] : program.cuts_at[feature + 1]]
        if count < 0 and len(cuts):
            X[feature] = random.choice([*cuts, *np.nextafter(cuts, np.inf), np.nan, np.inf, -np.inf, 1e300], rows)
    P = random.dirichlet(np.ones(3), rows)[:, :outputs].copy()
    P[0], P[1, 0], P[2, 0] = 1e-300, 1.0, 0.0
    expected, found = np.empty_like(P), np.empty_like(P)
    score(*program, X, P, expected)
    REPLACEMENTS[score](*program, X, P, found)
    assert found.tobytes() == expected.tobytes()


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.integers(1, 3), SEEDS)
def test_tables_of_trees(levels, most, seed):
    random = np.random.default_rng(seed)
    stages = [Stage(0, 0.9, make_forest(random, levels, 1, 8, most))]
    expected = compiled(build, stages, levels, 1, 1, LOGIT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_jit.Kernel, "run", lambda self, steps, *arguments, instead=None: self._without_numba()(*arguments))
        found = build(stages, levels, 1, 1, LOGIT)
    assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]


@pytest.mark.parametrize("path", golden_models(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_saved_models(path, without_numba):
    model = tu.load(path)
    rows = many_rows(model, 60)
    expected = compiled(model.predict, rows)
    assert without_numba(tu.load(path).predict, rows).tobytes() == expected.tobytes()
    one = {name: column[3] for name, column in rows.items()}
    one = {name: None if value != value else value for name, value in one.items()}
    assert np.asarray(without_numba(model.predict_one, one)).tobytes() == expected[3].tobytes()


@given(SEEDS, st.sampled_from([curves.LINE, curves.BOUNDED, curves.LOGIT, curves.SOFTMAX, curves.KNOTS, curves.STEPS]),
       st.sampled_from([1, 3]), st.booleans())  # fmt: skip
def test_curves(seed, form, outputs, grouped):
    random, groups = np.random.default_rng(seed), 3 if grouped else 1
    outputs = 3 if form == curves.SOFTMAX else outputs
    count = groups * (1 if form == curves.SOFTMAX else outputs)
    coefficient = random.uniform(0.1, 1.5, (count, 3))
    sizes = random.integers(1, 6, count)
    starts = np.append(0, np.cumsum(sizes))
    x = np.concatenate([np.sort(random.random(size)) for size in sizes])
    value = np.concatenate([np.sort(random.random(size)) for size in sizes])
    floors, share = np.array([1e-12, 2e-16]), np.append(0.0, random.choice([0.0, 0.4, 1.0], groups - 1))
    P = random.dirichlet(np.ones(3), 50)[:, :outputs].copy()
    P[:8, 0] = [0.0, 1.0, *random.choice(x, 6)]
    group = random.integers(0, groups, 50).astype(np.int32) if grouped else np.zeros(0, np.int32)
    expected, found = np.empty_like(P), np.empty_like(P)
    arguments = form, coefficient, starts, x, value, floors, groups, group, share, P
    curves.read_rows(*arguments, expected)
    REPLACEMENTS[curves.read_rows](*arguments, found)
    assert found.tobytes() == expected.tobytes()


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.sampled_from([1, 4, 5]), st.booleans(), st.booleans())
def test_sums_over_blocks_of_rows(seed, dimensions, fine, even):
    random = np.random.default_rng(seed)
    points, starts = random.normal(size=(400, dimensions)), np.array([0, 300, 400])
    columns = np.column_stack([random.uniform(0.5, 2.0, 400), random.random(400)])
    targets, bounds = random.normal(size=(30, dimensions)) * 2, np.array([0, 20, 30])
    blocks, scales = tiles.Blocks(points, columns, starts), np.array([0.3, 2.0])

    def sums():
        return tiles.sum_at(blocks, targets, bounds, scales, 30.0, Workers(1), fine=fine, even=even)

    expected = sums()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiles, "between", REPLACEMENTS[tiles.between])
        found = sums()
    assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]


@given(SEEDS)
def test_hashes_of_rows(seed):
    random = np.random.default_rng(seed)
    points = random.choice([0.0, -0.0, 1.5, -3e300], (20, 3))
    bins, found = random.integers(0, 5, 20), []
    for kernel in (laplace._mark, REPLACEMENTS[laplace._mark]):
        found.append(np.empty(20, np.uint64))
        kernel(points.view(np.uint64), bins, found[-1])
    assert found[0].tobytes() == found[1].tobytes()
