"""Kernels give the same bits compiled and uncompiled."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
from forests import make_forest, make_rows
from trueup.cli.warm import sample_rows
from trueup.kernels import _jit, curves, sorting, tails, tally
from trueup.kernels.trees import IDENTITY, LOGIT, SOFTMAX, Stage, build, score

# The kernels of LoRe are always compiled.
GOLDEN = sorted(path for path in (Path(__file__).parents[1] / "golden").rglob("*.trueup") if path.parent.name != "local")
LEVELS = st.lists(st.sampled_from([-1, -1, 0, 3, 70]), max_size=4)
SEEDS = st.integers(0, 2**32 - 1)
LINKS = {IDENTITY: 2, LOGIT: 1, SOFTMAX: 3}  # and the number of outputs


@pytest.fixture
def uncompiled(monkeypatch):
    """Return a function that calls another one with every kernel uncompiled."""

    def run(self, steps, *arguments, instead=None):
        return self._run_plain(instead or self.plain, arguments)

    def call(function, *arguments, **settings):
        with monkeypatch.context() as patch:
            for name in ("run", "answer", "__call__"):
                patch.setattr(_jit.Kernel, name, run if name != "__call__" else lambda self, *a: run(self, 0, *a))
            return function(*arguments, **settings)

    return call


def compiled(function, *arguments, **settings):
    with _jit.compiling_at_once():
        return function(*arguments, **settings)


def plain(kernel, *arguments):
    with np.errstate(all="ignore"):
        return kernel.plain(*arguments)


def _near(random, values, count):
    """Draw from values, their neighbours one ulp to each side, missing and unseen ones."""
    drawn = random.choice([*values, 0.3, -5.0, np.nan, 1e300, -np.inf], count)
    return np.where(random.random(count) < 0.5, drawn, np.nextafter(drawn, random.choice([-np.inf, np.inf], count)))


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.sampled_from(sorted(LINKS)), st.integers(1, 3), st.integers(1, 3), SEEDS)
def test_cascades(levels, link, rounds, most, seed):
    random = np.random.default_rng(seed)
    outputs, rows = LINKS[link], 9
    forests = [make_forest(random, levels, outputs, 6, most).scaled(0.3) for _ in range(2 * rounds)]
    stages = [Stage(number % 2, random.uniform(0.5, 1.5), forest) for number, forest in enumerate(forests)]
    one = compiled(build, stages, levels, outputs, 2, link)
    X = make_rows(random, levels, rows)
    for feature, count in enumerate(levels):
        cuts = one.cuts[one.cuts_at[feature] : one.cuts_at[feature + 1]]
        if count < 0 and len(cuts):
            X[feature] = _near(random, cuts, rows)
    P = random.dirichlet(np.ones(3), rows)[:, :outputs].copy()
    P[0] = 1e-300
    expected, found = np.empty_like(P), np.empty_like(P)
    score(*one, X, P, expected)
    plain(score, *one, X, P, found)
    assert found.tobytes() == expected.tobytes()


@settings(max_examples=40, deadline=None)
@given(LEVELS, st.integers(1, 3), SEEDS)
def test_tables_of_trees(levels, most, seed):
    random = np.random.default_rng(seed)
    stages = [Stage(0, 0.9, make_forest(random, levels, 1, 8, most))]
    expected = compiled(build, stages, levels, 1, 1, LOGIT)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_jit.Kernel, "run", lambda self, steps, *arguments, instead: plain(self, *arguments))
        found = build(stages, levels, 1, 1, LOGIT)
    assert [array.tobytes() for array in found] == [array.tobytes() for array in expected]


@pytest.mark.parametrize("path", GOLDEN, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_saved_models(path, uncompiled):
    model = tu.load(path)
    assert model.map.kind != "local"
    rows, random = sample_rows(model), np.random.default_rng(1)
    count = 40
    many = {name: np.repeat(column[:1], count) for name, column in rows.items()}
    scores = random.dirichlet(np.ones(max(len(model.schema.prediction), 2)), count)
    many |= {name: scores[:, k] for k, name in enumerate(model.schema.prediction)}
    for feature in model.schema.features:
        if feature.kind == "numeric" and feature.name not in model.schema.prediction:
            many[feature.name] = random.choice([*random.normal(30, 40, 30), np.nan, 0.0, 1e9], count)
        elif feature.kind == "categorical":
            many[feature.name] = np.array(random.choice([*feature.levels, "unseen"], count), object)
            many[feature.name][0] = None
    expected = compiled(model.predict, many)
    assert uncompiled(model.predict, many).tobytes() == expected.tobytes()
    for number in range(count):
        row = {name: column[number] for name, column in many.items()}
        row = {name: None if value != value else value for name, value in row.items()}
        assert np.asarray(uncompiled(model.predict_one, row)).tobytes() == expected[number].tobytes()


def test_patches_of_extreme_logits():
    """The exponential of a large number is infinite: Python raises, a compiled kernel does not."""
    program = (
        np.array([2]), np.array([0, 0]), np.zeros(0), np.array([[0, -1]]), np.array([[0, 0]]), np.array([-np.inf]),
        np.array([np.inf]), np.array([0.0]), True, np.array([-np.inf, np.inf]),
    )  # fmt: skip
    for shift in (-2000.0, -709.9, -709.0, 0.0, 709.9, 2000.0):
        P, X = np.array([0.5, 1e-9, 1.0]), np.zeros((1, 3))
        arguments = (*program[:7], np.array([shift]), *program[8:], X, P)
        expected, found = np.empty(3), np.empty(3)
        curves.score(*arguments, expected)
        plain(curves.score, *arguments, found)
        assert found.tobytes() == expected.tobytes()


@given(st.lists(st.floats(1e-12, 1e6), min_size=4, max_size=4))
def test_tails(numbers):
    x, rise, v, k3 = numbers
    for kernel, arguments in (
        (tails.segment_tail, (x, rise, v, k3)), (tails.detectable, (v, k3, 2.0, 2.5)), (tails.mad_tail, (x,)),
        (tails.family_tail, (x, rise, v, k3, True)), (tails.family_tail, (x, x, v, k3, False)),
        (tails.inflated_tail, (x, True)),
    ):  # fmt: skip
        assert np.float64(plain(kernel, *arguments)).tobytes() == np.float64(kernel(*arguments)).tobytes()


@given(SEEDS, st.booleans())
def test_refined_tails(seed, weighted):
    random = np.random.default_rng(seed)
    p = random.choice([0.0, 1.0, 1e-12, 0.3, 0.7, *random.random(5)], 30)
    w = random.uniform(0.1, 3.0, 30) if weighted else np.zeros(0)
    for x in (1e-9, 0.5, 3.0, 40.0):
        arguments = p, w, x, x * random.integers(2), 2.0, 0.1, 1.5
        assert plain(tails.refined_tail, *arguments) == tails.refined_tail(*arguments)


@given(SEEDS)
def test_digits_and_groups(seed):
    random = np.random.default_rng(seed)
    edges = np.sort(random.normal(size=random.integers(0, 40)))
    values = _near(random, [*edges, 0.0], 50)
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
def test_audits(kind, uncompiled):
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
