"""docs/papers.md leads from every item of the papers to names, tests and benches that exist; items that had no test have one."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import inspect
import itertools
import math
import re
from pathlib import Path

import lightgbm as lgb
import numpy as np
import pytest
from scipy.optimize import minimize_scalar

import trueup as tu
from trueup import metrics
from trueup.calibrators.depthtwo import Saturation

ROOT = Path(__file__).parents[2]
TEXT = (ROOT / "docs" / "papers.md").read_text()
COLUMNS = ("item", "public name", "parameters", "checked by", "slips, and our form")
LEAST_ROWS = {"2017": 24, "2022": 28, "2023": 25, "2025": 11, "2026": 11}
NOTHING = "proof only: nothing to compute"
NUMBERED = {  # what each paper numbers; the method description of 2026 numbers its insights only
    "2017": {"Theorem": range(1, 4), "Lemma": range(1, 3), "Claim": range(1, 8), "Example": range(1, 3),
             "Equation": range(1, 4), "Definition": range(1, 3), "Algorithm": [1], "Figure": range(1, 5), "Table": [1]},
    "2022": {"Theorem": [1, 2], "Lemma": [1, 2], "Equation": range(1, 8), "Figure": range(1, 20), "Table": range(1, 5)},
    "2023": {"Theorem": ["3.2", "4.3", "4.5", "5.2", "6.2", "C.4", "C.8", "C.9", "D.2", "E.3", "E.6"],
             "Lemma": ["B.1", "B.2", "B.4", "B.5", "C.5", "C.7", "E.1", "E.5"], "Corollary": ["E.7"], "Algorithm": [1],
             "Definition": ["2.1", "2.2", "3.1", "4.1", "4.2", "4.4", "5.1", "6.1", "D.1", "E.2", "E.4", "C.1", "C.6"],
             "Remark": ["B.3"], "Figure": range(1, 9), "Table": [1, 2]},
    "2025": {"Definition": ["3.1", "3.2"], "Equation": [3, 4], "Lemma": ["4.2", "4.4"], "Assumption": ["4.5"],
             "Theorem": ["4.6"], "Algorithm": [1], "Table": [1, 2], "Figure": [2]},
    "2026": {"Insight": [1, 2, 3]},
}  # fmt: skip


def rows_of(part):
    """Return the cells of every row of the table in a section, without its heading."""
    lines = [line for line in part.splitlines() if line.startswith("|")]
    return [tuple(cell.strip() for cell in line.strip("|").split("|")) for line in lines]


SECTIONS = {re.search(r"\((\d{4})\)", part)[1]: rows_of(part) for part in re.split(r"^## ", TEXT, flags=re.MULTILINE)[1:]}
ROWS = [(year, row) for year, rows in SECTIONS.items() for row in rows[2:]]
BIBLIOGRAPHY = rows_of(re.split(r"^## ", TEXT, flags=re.MULTILINE)[0])[2:]
BY_ITEM = pytest.mark.parametrize(("year", "row"), ROWS, ids=lambda x: x if isinstance(x, str) else x[0][:40])


def code(cell):
    return re.findall(r"`([^`]+)`", cell)


@functools.cache
def functions_in(path):
    return {node.name for node in ast.parse((ROOT / path).read_text()).body if isinstance(node, ast.FunctionDef)}


def public(name):
    """Return what a name stands for, found as a user would: from ``tu``, by public names."""
    value = tu
    for part in name.split("."):
        names = getattr(value, "__all__", None)
        assert names is None or part in names, f"{name} is not public"
        value = getattr(value, part)
    return value


# ------------------------------------------------------------------ the page


def test_every_paper_of_the_bibliography_has_a_table():
    assert len(BIBLIOGRAPHY) == len(SECTIONS) == 5
    for link, paper in BIBLIOGRAPHY:
        year, anchor = re.fullmatch(r"\[(\d{4})\]\(#([\w-]+)\)", link).groups()
        assert f"({year})." in paper
        assert re.search(r"\]\(https://arxiv\.org/abs/\d{4}\.\d{5}\)", paper)
        title = next(line[3:] for line in TEXT.splitlines() if line.startswith("## ") and year in line)
        assert re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") == anchor
        assert SECTIONS[year][0] == COLUMNS
        assert len(SECTIONS[year]) - 2 >= LEAST_ROWS[year]


@BY_ITEM
def test_no_cell_is_empty(year, row):
    assert len(row) == len(COLUMNS)
    assert all(len(cell) > 2 or cell == "`m`" for cell in row)
    assert row[4][-1] != "."


@BY_ITEM
def test_public_names_exist(year, row):
    names = code(row[1])
    assert names or row[1] == NOTHING
    for name in names:
        assert public(name) is not None
    assert names or row[2].startswith("not literal: ")


def parameters_of(function):
    with contextlib.suppress(TypeError, ValueError):
        return set(inspect.signature(function).parameters)
    return set()


@functools.cache
def parameters_in(year):
    """Return the parameters of all public names in a table; some pass parameters on to others."""
    names = {name for own, row in ROWS if own == year for name in code(row[1])}
    passed_on = {"2023": [tu.LSBoost], "2025": [Saturation.bound]}
    return set.union(*(parameters_of(one) for one in [*map(public, names), *passed_on.get(year, [])]))


@BY_ITEM
def test_parameters_exist(year, row):
    named = {word for one in code(row[2]) for word in re.findall(r"(?<![\w.])([a-z_0-9]+)=(?!=)", one)}
    assert named <= parameters_in(year)


@BY_ITEM
def test_tests_and_benches_exist(year, row):
    tests = [one.partition("::") for one in code(row[3]) if one.startswith("tests/")]
    benches = [one for one in code(row[3]) if one.startswith("bench/")]
    assert len(tests) + len(benches) == len(code(row[3])) >= 1
    for path, _, name in tests:
        assert name in functions_in(path), f"{path} has no test {name}"
    for path in benches:
        assert (ROOT / path).is_file(), path
    # An experiment may be repeated by a bench alone; everything else is compared with a formula.
    is_experiment = re.match(r"(Figures? |Table )", row[0])
    assert tests or is_experiment or row[1] == NOTHING


@pytest.mark.parametrize("year", NUMBERED)
def test_every_numbered_item_has_a_row(year):
    items = "; ".join(row[0] for own, row in ROWS if own == year)
    listed = set()
    for kind, number, last, more in re.findall(
        r"(\w+?)s? ([A-Z]?\.?\d+(?:\.\d+)?)(?: to ([A-Z]?\.?\d+(?:\.\d+)?))?((?:(?:,| and|, and) (?:\d+ to \d+|[A-Z]?\.?\d+(?:\.\d+)?))*)",
        items,
    ):
        spans = [(number, last or number)]
        spans += [(a, b or a) for a, b in re.findall(r"([A-Z]?\.?\d+(?:\.\d+)?)(?: to (\d+))?", more)]
        for first, end in spans:
            if first.isdigit():
                listed |= {(kind, str(k)) for k in range(int(first), int(end) + 1)}
            else:
                listed |= {(kind, first), (kind, end)}
    expected = {(kind, str(number)) for kind, numbers in NUMBERED[year].items() for number in numbers}
    assert expected - listed == set()


def test_methods_of_the_tables_cite_their_paper():
    names = sorted({name for _, row in ROWS for name in code(row[1]) if not name.startswith("figures.")})
    assert len(names) > 50
    of_no_paper = {"audit", "metrics.by_group", "metrics.fit_features", "metrics.log_loss", "metrics.brier", "Platt",
                   "Histogram", "Grouped", "Holdout", "CrossValidation", "decisions.Rule.realised_cost",
                   "metrics.top_label", "decisions.risk_coverage"}  # fmt: skip
    assert of_no_paper <= set(names)
    identifier = re.compile(r"arXiv:\d{4}\.\d{4,5}|doi:10\.\d{4,}/\S+|PMLR \d+:")
    without = [name for name in names if not identifier.search(public(name).__doc__)]
    assert set(without) <= of_no_paper


def test_the_readme_names_the_five_papers():
    readme = (ROOT / "README.md").read_text()
    assert "docs/papers.md" in readme
    for _, paper in BIBLIOGRAPHY:
        author, year = re.match(r"([\w-]+), ", paper)[1], re.search(r"\((\d{4})\)", paper)[1]
        assert re.search(rf"^- {author}, .*\b{year}$", readme, re.MULTILINE), paper


# ------------------------------------------------------------------ 2017


def lower_hull(x, y):
    """Return the lower boundary of the convex hull of points with ascending x, at every x (Graham's scan)."""
    kept = []
    for i in range(len(x)):
        while len(kept) > 1:
            a, b = kept[-2:]
            if (y[b] - y[a]) * (x[i] - x[a]) < (y[i] - y[a]) * (x[b] - x[a]):
                break
            kept.pop()
        kept.append(i)
    return np.interp(x, x[kept], y[kept])


@pytest.mark.parametrize("seed", range(5))
def test_algorithm_1_of_2017_is_the_lower_convex_hull(seed):
    random = np.random.default_rng(seed)
    p = random.random(200)
    y = (random.random(200) < p).astype(float)
    order = np.argsort(p)
    sums = np.append(0, np.cumsum(y[order]))
    z = np.diff(lower_hull(np.arange(201.0), sums))
    assert 3 < len(np.unique(z.round(9))) < 100
    np.testing.assert_allclose(metrics.isotonic(y, p).fitted[order], z, atol=1e-12)
    np.testing.assert_allclose(tu.Isotonic().fit(p, y).predict(p)[order], z, atol=1e-12)


def test_example_2_of_2017_has_the_largest_complexity():
    # 2^n scores i / 2^n, lower by half a step on the i-th subset of n points: a threshold cuts out any subset.
    n = 4
    subsets = np.array(list(itertools.product([0, 1], repeat=n)))
    scores = (np.arange(1, 2**n + 1)[:, None] / 2**n - subsets / 2 ** (n + 1)).T
    every = metrics.interval_complexity(scores, draws=4000)
    assert every.value == pytest.approx(0.5, abs=4 * every.error)
    one = metrics.interval_complexity(scores[:, 5], draws=4000)
    assert one.value < 0.45


@pytest.mark.parametrize("chance", [np.square, lambda p: np.abs(2 * p - 1)], ids=["monotone", "valley"])
def test_claim_7_of_2017_bounds_the_distance_of_pav_from_the_truth(chance):
    random = np.random.default_rng(0)
    p, t = random.random(50_000), np.linspace(0, 1, 2001)
    y = (random.random(50_000) < chance(p)).astype(float)
    integral = lambda values: np.append(0, np.cumsum((values[1:] + values[:-1]) / 2 * np.diff(t)))  # noqa: E731
    epsilon = metrics.uniform_bound(50_000, metrics.interval_complexity(p, draws=20).value, delta=0.01)
    fitted, hull = integral(metrics.isotonic(y, p).predict(t)), lower_hull(t, integral(chance(t)))
    assert np.abs(fitted - hull).max() < 2 * epsilon < 0.13
    assert np.abs(integral(t * 0 + 1) - hull).max() > 2 * epsilon  # the bound excludes a constant


@pytest.mark.parametrize("seed", range(5))
def test_equation_2_of_2017_is_the_expected_cost(seed):
    random = np.random.default_rng(seed)
    p = random.random(300)
    y = (random.random(300) < p**1.5).astype(float)
    actions = {name: (a, b) for name, a, b in zip("abc", *random.normal(0, 5, (2, 3)), strict=True)}
    rule = {"b": (0.0, 0.25), "a": (0.25, 0.7), "c": (0.7, 1.0)}
    inside = {name: (low <= p) & (p < high) for name, (low, high) in rule.items()}
    total = sum(np.where(y == 1, *actions[name])[rows].sum() for name, rows in inside.items())
    estimate = sum(
        actions[k][1] * rows.sum() + (actions[k][0] - actions[k][1]) * p[rows].sum() for k, rows in inside.items()
    )
    c = metrics.ecce(y, p)
    bound = 300 * c * sum(abs(a - b) for a, b in actions.values())
    found = tu.decisions.expected_cost(p, actions, rule, labelled=c)
    assert found.estimate == pytest.approx(estimate)
    assert abs(total - estimate) <= found.half_widths["calibration"] + 1e-9
    assert found.half_widths["calibration"] <= bound + 1e-9


# ------------------------------------------------------------------ 2022


def confidences(n, seed):
    """Draw features of four dimensions, confidences of which many are edges of 15 bins, and hits."""
    random = np.random.default_rng(seed)
    confidence = np.where(random.random(n) < 0.4, random.integers(8, 16, n) / 15, random.uniform(0.5, 1, n))
    return random.normal(size=(n, 4)), confidence, (random.random(n) < confidence**1.5).astype(float)


def bins_of_the_paper(confidence, count):
    """Return the number of the bin of each confidence: [0, 1/count), ..., [1 - 1/count, 1]."""
    edges = np.arange(count + 1) / count
    return np.array([max(k for k in range(count) if edges[k] <= c) for c in confidence])


def bin_errors(confidence, hit, count):
    """Return the rows and |conf - acc| of every bin that has rows."""
    number = bins_of_the_paper(confidence, count)
    rows = [number == k for k in range(count) if (number == k).any()]
    return [(bin_.sum(), abs(confidence[bin_].mean() - hit[bin_].mean())) for bin_ in rows]


def neighbours(points, confidence, phi, of, gamma):
    """Return the Laplace kernel between points and rows, 0 where their confidences are in different bins."""
    distance = np.abs(points[:, None] - phi[None]).sum(axis=2)
    return np.exp(-distance / (phi.shape[1] * gamma)) * (
        bins_of_the_paper(confidence, 15)[:, None] == bins_of_the_paper(of, 15)
    )


@pytest.mark.parametrize("seed", range(3))
def test_measures_of_2022_are_those_of_its_equations(seed):
    phi, confidence, hit = confidences(400, seed)
    left = {"closed": "left"}
    errors = bin_errors(confidence, hit, 15)
    assert metrics.ece(hit, confidence, n_bins=15, **left) == pytest.approx(sum(n * e for n, e in errors) / 400)
    assert metrics.mce(hit, confidence, n_bins=15, **left) == pytest.approx(max(e for _, e in errors))
    assert metrics.mce(hit, confidence, n_bins=15) != pytest.approx(max(e for _, e in errors))  # closed on the right
    k = neighbours(phi, confidence, phi, confidence, 0.4)
    signed = (k * (confidence - hit)).sum(axis=1) / k.sum(axis=1)
    own = {"gamma": 0.4, "bins": 15, **left}
    np.testing.assert_allclose(metrics.lce(phi, confidence, hit, signed=True, **own), signed, atol=1e-6)
    np.testing.assert_allclose(metrics.lce(phi, confidence, hit, **own), np.abs(signed), atol=1e-6)
    assert metrics.mlce(phi, confidence, hit, **own) == pytest.approx(np.abs(signed).max(), abs=1e-6)
    assert metrics.mean_lce(phi, confidence, hit, **own) == pytest.approx(np.abs(signed).mean(), abs=1e-6)
    group = np.array(["a", "b", "c"])[np.arange(400) % 3]
    largest = {g: max(e for _, e in bin_errors(confidence[group == g], hit[group == g], 5)) for g in "abc"}
    worst = metrics.by_group(metrics.mce, hit, confidence, group, n_bins=5, **left).worst
    assert worst == (max(largest, key=largest.get), pytest.approx(max(largest.values())))


@pytest.mark.parametrize("gamma", [0.4, math.inf])
def test_lore_of_2022_is_equation_6_and_histogram_binning(gamma):
    (phi, own, hit), (points, asked, _) = confidences(400, 0), confidences(100, 1)
    frame = lambda X, c: {**{f"z{i}": X[:, i] for i in range(4)}, "no": 1 - c, "yes": c}  # noqa: E731
    names = ["z0", "z1", "z2", "z3"]
    literal = {"gamma": gamma, "bins": 15, "embedding": "columns", "unit": False, "closed": "left", "keep_class": False}
    found = tu.LoRe(["no", "yes"], names, **literal).fit(frame(phi, own), hit.astype(int)).predict(frame(points, asked))
    k = neighbours(points, asked, phi, own, gamma)
    np.testing.assert_allclose(found[:, 1], (k @ hit) / k.sum(axis=1), atol=1e-6)
    if gamma == math.inf:
        number, at = bins_of_the_paper(own, 15), bins_of_the_paper(asked, 15)
        np.testing.assert_allclose(found[:, 1], [hit[number == k].mean() for k in at], atol=1e-6)


# ------------------------------------------------------------------ 2023


GRID = np.array(list(itertools.product([0.0, 1.0], repeat=2)))  # four points of equal probability


def stumps(X):
    return [X[:, k] <= cut for k in range(X.shape[1]) for cut in np.unique(X[:, k])[:-1]]


def explained(X, y):
    """Return how much the best stump lowers the squared error of the best constant."""
    best = 0.0
    for side in stumps(X):
        means = np.where(side, y[side].mean(), y[~side].mean())
        best = max(best, np.mean((y - y.mean()) ** 2 - (y - means) ** 2))
    return best


def test_theorem_4_5_of_2023_bounds_the_squared_error():
    # y = 1 on one of four points. By enumeration stumps satisfy the condition at gamma = .05, and would not at .1.
    y = (GRID.sum(axis=1) == 2).astype(float)
    sets = [list(s) for size in range(1, 5) for s in itertools.combinations(range(4), size)]
    violated = lambda gamma: [s for s in sets if np.var(y[s]) > gamma >= explained(GRID[s], y[s])]  # noqa: E731
    gamma = 0.05
    assert violated(gamma) == []
    assert violated(0.1) != []
    data = {"a": np.tile(GRID[:, 0], 10), "b": np.tile(GRID[:, 1], 10), "p": np.full(40, y.mean())}
    outcome = np.tile(y, 10)
    assert np.mean((data["p"] - outcome) ** 2) > 2 * gamma
    fix = tu.LSBoost.for_weak_learning(gamma, "p", task="regression", limits=(0, 1)).fit(data, outcome)
    assert np.mean((fix.predict(data) - outcome) ** 2) <= 2 * gamma
    assert fix.history_.chosen <= 2 / gamma**2


def test_theorem_5_2_of_2023_fails_for_stumps_and_holds_for_all_functions():
    y = (GRID.sum(axis=1) == 1).astype(float)  # exclusive or
    constant = np.full(4, 0.5)
    h = np.column_stack([np.ones(4), *stumps(GRID)]).astype(float)
    assert explained(GRID, y) == 0 < np.var(y)  # stumps have no advantage,
    assert metrics.k2(y, constant, h).max() == 0  # and so the constant is multicalibrated and not Bayes optimal
    for f in itertools.product([0.0, 0.5, 1.0], repeat=4):
        error = metrics.k2(y, f, y - f)[0]  # a function of the class of all functions
        assert (error == 0) == (np.array(f) == y).all()


@pytest.mark.parametrize("seed", range(20))
def test_theorem_d_2_of_2023_bounds_the_squared_error(seed):
    # All functions on 30 points satisfy the condition for every gamma; the worst one of modulus 1 is the sign of f* - f.
    random = np.random.default_rng(seed)
    truth, weight = random.random(30), random.random(30)
    f = np.round(np.clip(truth + random.normal(0, 0.02 * (1 + seed % 5), 30), 0, 1) * 20) / 20
    h = np.sign(truth - f)
    alpha = metrics.k2(truth, f, h, weight)[0]
    gamma = np.cbrt(16 * len(np.unique(f)) * alpha)
    excess = np.average((truth - f) ** 2, weights=weight)
    assert 0 < excess <= 3 * gamma
    # The steps of the proof: no bounded function has a larger K2.
    others = random.uniform(-1, 1, (30, 50))
    assert metrics.k2(truth, f, others, weight).max() <= alpha + 1e-12


def test_the_surfaces_of_2023_are_those_of_its_equations(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    spec = importlib.util.spec_from_file_location("surfaces", ROOT / "bench" / "surfaces.py")
    surfaces = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(surfaces)
    for x, y in np.random.default_rng(0).uniform(-1, 1, (200, 2)):
        to_x, to_y = (x + 1) ** 2 if x <= 0 else (x - 1) ** 2, (y - 1) ** 2 if y >= 0 else (y + 1) ** 2
        wave = math.cos(-8 * x if x <= 0 else 8 * x) * math.sin(8 * y)
        hill = x + 20 * x * y**2 * wave * ((1.5 * x + 4) * to_x / (y + 3) + to_y)
        assert surfaces.cones(np.array(x), np.array(y)) == pytest.approx(to_x + to_y)
        assert surfaces.hills(np.array(x), np.array(y)) == pytest.approx(hill)


# ------------------------------------------------------------------ 2025


def numbers(n, seed=0):
    """Draw two whole numbers, a score of few values that errs on some rows, and an outcome."""
    random = np.random.default_rng(seed)
    X, p = random.integers(0, 9, (n, 2)).astype(float), random.integers(1, 8, n) / 8
    drift = 0.8 * (X[:, 0] > 5) - 0.6 * (X[:, 1] < 2) * (p > 0.5)
    y = (random.random(n) < 1 / (1 + (1 / p - 1) * np.exp(-drift))).astype(float)
    return X, p, y, {"a": X[:, 0], "b": X[:, 1], "p": p}


def plain_trees(X, F, y, trees, **parameters):
    """Return the sum of LightGBM's trees on score and features, started at the score."""
    Z = np.column_stack([F, X])
    quiet = {"verbosity": -1, "max_bin": 63}
    rows = lgb.Dataset(Z, label=y, init_score=F, params=quiet)
    exact = {"lambda_l2": 0.0, "min_data_in_leaf": 1, "deterministic": True, "num_threads": 1, "force_col_wise": True}
    options = {"boost_from_average": False, **quiet, **exact, **parameters}
    return lgb.train(options, rows, trees).predict(Z, raw_score=True)


@pytest.mark.parametrize("trees", [1, 30])
def test_algorithm_1_of_2025_is_an_ensemble_of_lightgbm(trees):
    X, p, y, data = numbers(800)
    fix = tu.DepthTwo(
        "p", stopping=None, trees=trees, learning_rate=0.1, l2=0, min_rows=1, feature_fraction=1.0, clip=(0, 1), threads=1
    )
    found = fix.fit(data, y).predict(data)
    added = plain_trees(X, p, y, trees, objective="regression", max_depth=2, num_leaves=4, learning_rate=0.1)
    np.testing.assert_allclose(found, np.clip(p + added, 0, 1), atol=1e-7)
    assert np.ptp(added) > 0.01


@pytest.mark.parametrize("rate", [0.1, 1.0])
def test_algorithm_1_of_2025_stops_where_lightgbm_does(rate):
    X, p, y, data = numbers(4000)
    fix = tu.DepthTwo(
        "p", stopping=tu.Holdout(0.2), learning_rate=rate, patience=50, l2=0, min_rows=1, feature_fraction=1.0,
        clip=(0, 1), threads=1, saturation=False,
    ).fit(data, y)  # fmt: skip
    held_out = np.isin(np.arange(4000), fix.held_out_rows_)
    Z, own = np.column_stack([p, X]), {"verbosity": -1, "max_bin": 63}
    train = lgb.Dataset(Z[~held_out], label=y[~held_out], init_score=p[~held_out], params=own)
    validation = lgb.Dataset(Z[held_out], label=y[held_out], init_score=p[held_out], reference=train)
    parameters = {
        "objective": "regression", "max_depth": 2, "num_leaves": 4, "learning_rate": rate, "min_data_in_leaf": 1,
        "boost_from_average": False, "num_threads": 1, **own,
    }  # fmt: skip
    stop = lgb.early_stopping(50, verbose=False)
    plain = lgb.train(parameters, train, 2000, valid_sets=[validation], callbacks=[stop])
    assert fix.history_.rounds[1].trees == plain.best_iteration
    assert 0 < held_out.sum() < 1000
    added = plain.predict(Z, raw_score=True, num_iteration=plain.best_iteration)
    np.testing.assert_allclose(fix.predict(data), np.clip(p + added, 0, 1), atol=1e-7)


@pytest.mark.parametrize("m", [5, 10, 50])
@pytest.mark.parametrize("seed", range(4))
def test_lemma_4_4_of_2025_is_the_gain_of_shifting_a_group(seed, m):
    random = np.random.default_rng(seed)
    group, f = random.random(500) < 0.3, metrics.discretize(random.random(500), m)
    y = (random.random(500) < np.clip(f + 0.2 * group, 0, 1)).astype(float)
    corrected = f.copy()
    for v in np.unique(f[group]):
        rows = group & (f == v)
        corrected[rows] += (y - f)[rows].mean()
    gain = np.mean((y - f) ** 2) - np.mean((y - corrected) ** 2)
    alpha = metrics.k1(y, f, group)[0]
    assert 0 < alpha**2 < alpha**2 / group.mean() <= gain + 1e-12


# ------------------------------------------------------------------ 2026


def test_the_recursion_of_2026_is_rounds_of_lightgbm():
    X, p, y, data = numbers(600)
    fix = tu.MCGrad(
        "p", ["a", "b"], stopping=None, rounds=2, trees=5, depth=None, leaves=5, learning_rate=0.3, feature_fraction=1.0,
        l2=0, min_hessian=2, threads=1,
    ).fit(data, y)  # fmt: skip
    F = np.log(p / (1 - p))
    for number in (1, 2):
        growth = {"num_leaves": 5, "learning_rate": 0.3, "min_sum_hessian_in_leaf": 2.0}
        moved = F + plain_trees(X, F, y, 5, objective="binary", **growth)
        loss = lambda theta, G=moved: np.mean(np.logaddexp(0, theta * G) - y * theta * G)  # noqa: E731
        theta = minimize_scalar(loss, bounds=(0.1, 10), method="bounded", options={"xatol": 1e-10}).x
        assert fix.history_.rounds[number].theta == pytest.approx(theta, rel=1e-5)
        F = theta * moved
    np.testing.assert_allclose(fix.predict(data), 1 / (1 + np.exp(-F)), atol=1e-5)
    step = 1e-6  # the residual y - f is the negative gradient of the log loss by the logit
    plain = lambda F: np.logaddexp(0, F) - y * F  # noqa: E731
    np.testing.assert_allclose((plain(F - step) - plain(F + step)) / (2 * step), y - 1 / (1 + np.exp(-F)), atol=1e-8)


def test_every_leaf_of_2026_has_the_minimum_hessian():
    _, p, y, data = numbers(600, seed=1)
    least = {}
    for minimum in (0, 8):
        fix = tu.MCGrad(
            "p", ["a", "b"], stopping=None, rounds=1, trees=1, depth=None, leaves=60, feature_fraction=1.0, l2=0,
            min_hessian=minimum, threads=1,
        ).fit(data, y)  # fmt: skip
        q = fix.predict(data)
        leaf = (np.log(q / (1 - q)) / fix.history_.rounds[1].theta - np.log(p / (1 - p))).round(9)
        least[minimum] = min((p * (1 - p))[leaf == value].sum() for value in np.unique(leaf))
    assert least[0] < 8 <= least[8] + 1e-6
