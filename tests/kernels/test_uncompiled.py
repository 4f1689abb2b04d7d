"""Kernels return the same bits compiled, as the Python functions that they are, and as NumPy versions."""

from __future__ import annotations

import copy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
from forests import make_forest, make_rows
from scoring import golden_models, many_rows
from trueup.kernels import _jit, curves, laplace, pairs, sorting, tails, tally
from trueup.kernels.laplace import sweeps, tiles
from trueup.kernels.threads import Workers
from trueup.kernels.trees import IDENTITY, LOGIT, SOFTMAX, Stage, build, score
from trueup.kernels.vectorised import FEW, numpy_version

LEVELS = st.lists(st.sampled_from([-1, -1, 0, 3, 70]), max_size=4)
SEEDS = st.integers(0, 2**32 - 1)
LINKS = {IDENTITY: 2, LOGIT: 1, SOFTMAX: 3}  # and the number of outputs
ROWS = FEW + 4


def compiled(function, *arguments, **named):
    with _jit.compiling_at_once():
        return function(*arguments, **named)


def uncompiled(function, *arguments, plain=False, **named):
    """Call a function with every kernel uncompiled: its NumPy version if it has one, or always the function if ``plain``."""

    def run(self, steps, *arguments, instead=None):
        return self._run_plain(instead or (self.plain if plain else self.uncompiled), arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_jit.Kernel, "run", run)
        patch.setattr(_jit.Kernel, "answer", run)
        patch.setattr(_jit.Kernel, "__call__", lambda self, *arguments: run(self, 0, *arguments))
        patch.setattr(_jit.Kernel, "compiled", property(lambda self: False), raising=False)
        return function(*arguments, **named)


def contents(values):
    return [value.tobytes() if isinstance(value, np.ndarray) else value for value in values]


def assert_same_bits(kernel, *arguments):
    """Assert that all versions of a kernel return the same and leave the same in their arguments."""
    results = []
    for version in (kernel, kernel.plain, numpy_version(kernel)):
        own = copy.deepcopy(arguments)
        if version is not None:
            with np.errstate(all="ignore"):
                results.append(contents([np.asarray(version(*own)), *own]))
    assert all(result == results[0] for result in results)


def near(random, values, count):
    """Draw from values, their neighbours one ulp to each side, missing and unseen ones."""
    drawn = random.choice([*values, 0.3, -5.0, np.nan, 1e300, np.inf, -np.inf], count)
    return np.where(random.random(count) < 0.5, drawn, np.nextafter(drawn, random.choice([-np.inf, np.inf], count)))


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.sampled_from(sorted(LINKS)), st.integers(1, 3), st.integers(1, 3), SEEDS)
def test_cascades(levels, link, rounds, most, seed):
    random = np.random.default_rng(seed)
    outputs = LINKS[link]
    forests = [make_forest(random, levels, outputs, 6, most).scaled(0.3) for _ in range(2 * rounds)]
    stages = [Stage(number % 2, random.uniform(0.5, 1.5), forest) for number, forest in enumerate(forests)]
    program = compiled(build, stages, levels, outputs, 2, link)
    X = make_rows(random, levels, ROWS)
    for feature, count in enumerate(levels):
        cuts = program.cuts[program.cuts_at[feature] : program.cuts_at[feature + 1]]
        if count < 0 and len(cuts):
            X[feature] = near(random, cuts, ROWS)
    P = random.dirichlet(np.ones(3), ROWS)[:, :outputs].copy()
    P[0], P[1, 0], P[2, 0] = 1e-300, 1.0, 0.0
    assert_same_bits(score, *program, X, P, np.zeros_like(P))


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.integers(1, 3), SEEDS)
def test_tables_of_trees(levels, most, seed):
    random = np.random.default_rng(seed)
    given = [Stage(0, 0.9, make_forest(random, levels, 1, 8, most))], levels, 1, 1, LOGIT
    expected = contents(compiled(build, *given))
    assert contents(uncompiled(build, *given)) == expected
    assert contents(uncompiled(build, *given, plain=True)) == expected


@pytest.mark.parametrize("path", golden_models(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_saved_models(path):
    """Many rows are scored by NumPy versions, a single row by Python functions where these take less time."""
    model = tu.load(path)
    rows = many_rows(model, 2 * ROWS)
    expected = compiled(model.predict, rows)
    assert uncompiled(tu.load(path).predict, rows).tobytes() == expected.tobytes()
    for number in range(ROWS):
        row = {name: column[number] for name, column in rows.items()}
        row = {name: None if value != value else value for name, value in row.items()}
        assert np.asarray(uncompiled(model.predict_one, row)).tobytes() == expected[number].tobytes()


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
    P = random.dirichlet(np.ones(3), ROWS)[:, :outputs].copy()
    P[:8, 0] = [0.0, 1.0, *random.choice(x, 6)]
    group = random.integers(0, groups, ROWS).astype(np.int32) if grouped else np.zeros(0, np.int32)
    given = form, coefficient, starts, x, value, floors, groups, group, share, P
    assert_same_bits(curves.read_rows, *given, np.zeros_like(P))


def test_patches_of_extreme_logits():
    """The exponential of a large number is infinite: Python raises, a compiled kernel does not."""
    program = (
        np.array([2]), np.array([0, 0]), np.zeros(0), np.array([[0, -1]]), np.array([[0, 0]]), np.array([-np.inf]),
        np.array([np.inf]), np.array([0.0]), True, np.array([-np.inf, np.inf]),
    )  # fmt: skip
    P = np.resize([0.5, 1e-9, 1.0], ROWS)
    for shift in (-2000.0, -709.9, -709.0, 0.0, 709.9, 2000.0):
        assert_same_bits(
            curves.score, *program[:7], np.array([shift]), *program[8:], np.zeros((1, ROWS)), P, np.zeros(ROWS)
        )


# ------------------------------------------------------------------ neighbours


def assert_same_sums(sums, *arguments, **named):
    expected = contents(compiled(sums, *arguments, **named))
    assert contents(uncompiled(sums, *arguments, **named)) == expected
    return expected


@settings(max_examples=20, deadline=None)
@given(SEEDS, st.sampled_from([1, 4, 5]), st.booleans(), st.booleans())
def test_sums_over_blocks_of_rows(seed, dimensions, fine, even):
    random = np.random.default_rng(seed)
    points, starts = random.normal(size=(400, dimensions)), np.array([0, 300, 400])
    columns = np.column_stack([random.uniform(0.5, 2.0, 400), random.random(400)])
    targets, bounds = random.normal(size=(30, dimensions)) * 2, np.array([0, 20, 30])
    skip = random.integers(0, 300, 30) if seed % 2 else None
    blocks, scales = tiles.Blocks(points, columns, starts), np.array([0.3, 2.0])
    given = blocks, targets, bounds, scales, 30.0, Workers(1)
    assert_same_sums(tiles.sum_at, *given, fine=fine, even=even, skip=skip)


@given(SEEDS, st.integers(1, 3), st.sampled_from([1, 5, 200, 700]), st.sampled_from([1e-3, 1.7, 40.0, 1e6]), st.booleans())
def test_sums_over_halves_of_the_rows(seed, dimensions, count, scale, itself):
    random = np.random.default_rng(seed)
    points = np.round(random.normal(size=(count, dimensions)), random.integers(0, 9))
    columns = np.column_stack([np.ones(count), random.normal(size=(count, random.integers(3)))])
    asked = random.choice([*points[:3], *random.normal(size=(3, dimensions))], 7)
    starts, bounds = (np.array([0, *np.sort(random.integers(0, n + 1, 2)), n]) for n in (count, 7))
    targets = None if itself else (asked, bounds)
    assert_same_sums(sweeps.sums, points, columns, starts, targets, scale, Workers(1))


def test_few_rows_of_large_bins_are_split_as_many_are(monkeypatch):
    monkeypatch.setattr(sweeps, "SPLIT", 300)
    monkeypatch.setattr(sweeps, "ENOUGH", 200)
    random = np.random.default_rng(0)
    points, columns, targets = random.normal(size=(2000, 3)), np.ones((2000, 1)), random.normal(size=(3, 3))
    for asked in ((targets, np.array([0, 1, 3])), None):
        assert_same_sums(sweeps.sums, points, columns, np.array([0, 500, 2000]), asked, 1.3, Workers(1))


@given(SEEDS)
def test_hashes_of_rows(seed):
    random = np.random.default_rng(seed)
    words = random.choice([0.0, -0.0, 1.5, -3e300], (20, 3)).view(np.uint64)
    assert_same_bits(laplace._mark, words, random.integers(0, 5, 20), np.zeros(20, np.uint64))


@given(SEEDS, st.integers(1, 20), st.sampled_from([pairs.LAPLACE, pairs.GAUSSIAN]))
def test_distances_do_not_depend_on_whether_scipy_is_imported(seed, dimensions, kernel):
    points = np.random.default_rng(seed).normal(size=(pairs.FEW_POINTS + 1, dimensions))
    many, few = pairs.distances(kernel, points, points), pairs.distances(kernel, points[:-1], points)
    assert few.tobytes() == many[:-1].tobytes()


# ------------------------------------------------------------------ audits


@given(st.lists(st.floats(1e-12, 1e6), min_size=4, max_size=4))
def test_tails(numbers):
    x, rise, v, k3 = numbers
    for kernel, arguments in (
        (tails.segment_tail, (x, rise, v, k3)), (tails.detectable, (v, k3, 2.0, 2.5)), (tails.mad_tail, (x,)),
        (tails.family_tail, (x, rise, v, k3, True)), (tails.family_tail, (x, x, v, k3, False)),
        (tails.inflated_tail, (x, True)),
    ):  # fmt: skip
        assert_same_bits(kernel, *arguments)


@given(SEEDS, st.booleans())
def test_refined_tails(seed, weighted):
    random = np.random.default_rng(seed)
    p = random.choice([0.0, 1.0, 1e-12, 0.3, 0.7, *random.random(5)], 30)
    w = random.uniform(0.1, 3.0, 30) if weighted else np.zeros(0)
    for x in (1e-9, 0.5, 3.0, 40.0):
        assert_same_bits(tails.refined_tail, p, w, x, x * random.integers(2), 2.0, 0.1, 1.5)


@given(SEEDS)
def test_digits_and_groups(seed):
    random = np.random.default_rng(seed)
    edges = np.sort(random.normal(size=random.integers(0, 40)))
    values = near(random, [*edges, 0.0], 50)
    codes, levels = random.integers(-1, 5, 50).astype(np.int32), 5
    results = []
    for digitize, group in (
        (sorting._digitize, tally._group_rows),
        (sorting._digitize_uncompiled, tally._group_rows_uncompiled),
    ):
        out, start, order = np.empty(50, np.int32), np.zeros(levels + 1, np.int32), np.full(50, -7, np.int32)
        digitize(values, edges, out)
        group(codes, start, order)
        results.append((out.tobytes(), start.tobytes(), order.tobytes()))
    assert results[0] == results[1]


@pytest.mark.parametrize("kind", ["binary", "weights", "amounts", "counts", "clusters"])
def test_audits(kind):
    loans = {name: column for name, column in tu.simulate.lending(700, seed=3).items() if name not in ("truth", "opened")}
    random = np.random.default_rng(2)
    settings = {"outcome": "outcome", "prediction": "prediction", "min_rows": 20}
    if kind == "weights":
        loans["w"], settings["weight"] = random.uniform(0.5, 2.0, 700), "w"
    elif kind == "clusters":
        loans["customer"], settings["cluster"] = random.integers(0, 250, 700), "customer"
    elif kind == "amounts":
        loans["outcome"], settings["task"] = loans["prediction"] + random.normal(size=700), "regression"
    elif kind == "counts":
        loans["outcome"], settings["task"], settings["family"] = (
            random.poisson(loans["prediction"]),
            "regression",
            "poisson",
        )
    first, second = compiled(tu.audit, loans, **settings), uncompiled(tu.audit, loans, **settings)
    assert len(first) == len(second)
    assert repr(first.to_dict()) == repr(second.to_dict())


@pytest.mark.parametrize(
    ("name", "x"),
    [("log", 0.0), ("log", -1.0), ("log1p", -1.0), ("log1p", -2.0), ("sqrt", -1.0), ("exp", 1000.0), ("expm1", 1000.0)],
)
def test_functions_of_numbers_without_a_value_return_what_compiled_code_does(name, x):
    with np.errstate(all="ignore"):
        expected = getattr(np, name)(x)
    assert getattr(_jit.PLAIN_MATH, name)(x) == pytest.approx(float(expected), nan_ok=True)
