"""LoRe: Eq. 6 of the paper against plain NumPy, its limits, its selection of candidates, and its errors."""

from __future__ import annotations

import contextlib
import math
import sys

import numpy as np
import pytest
from sklearn.decomposition import PCA
from sklearn.manifold import TSNE
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, StandardScaler
from sklearn.random_projection import GaussianRandomProjection

import trueup as tu
from checks import CLASSES, FEATURES, rows
from trueup.calibrators.lore import estimator
from trueup.calibrators.lore import map as local_map
from trueup.calibrators.lore.estimator import fit_embedding, pool_rows
from trueup.calibrators.lore.map import LocalMap
from trueup.data.frame import read
from trueup.errors import ArgumentError, DataError, NotFittedError, TrueupWarning
from twins import three_se

CLOSE = {"rtol": 1e-6, "atol": 1e-7}  # what the sums of the kernel keep
SEVERAL = [f"p_{name}" for name in CLASSES]


def plane(n=300, seed=0, drift=0.0):
    """Make points on a plane and scores that are too low by ``drift`` on its right half, and too high on the unchanged."""
    random = np.random.default_rng([seed, 3])
    x = random.normal(size=(n, 2))
    F = 1.5 * random.normal(size=n) - 0.3
    y = random.random(n) < _expit(F + drift * np.sign(x[:, 0]))
    return {"a": x[:, 0], "b": x[:, 1], "p": _expit(F), "y": y.astype(float)}


def _expit(f):
    return 1 / (1 + np.exp(-f))


def log_loss(y, p):
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return float(np.mean(-y * np.log(p) - (1 - y) * np.log(1 - p)))


def bin_of(p, bins):
    """Return bins closed on the right; the first contains 0."""
    return np.array([next(b for b in range(bins) if x <= (b + 1) / bins) for x in p])


def twin(points, p, hit, at, score, gamma, bins, weight=None):
    """Evaluate Eq. 6 row by row; if every kernel vanishes, by the nearest rows."""
    w = np.ones(len(p)) if weight is None else weight
    own, asked, out = bin_of(p, bins), bin_of(score, bins), []
    for x, b in zip(at, asked, strict=True):
        inside = own == min(set(own), key=lambda one: (abs(one - b), one))
        far = np.abs(points[inside] - x).sum(axis=1) / points.shape[1]
        k = np.exp(-(far - far.min()) / gamma) * w[inside]
        out.append((k * hit[inside]).sum() / k.sum())
    return np.array(out)


def mean_distance(points, weight=None):
    w = np.ones(len(points)) if weight is None else weight
    far = np.abs(points[:, None] - points[None]).mean(axis=2)
    return float((far * w[:, None] * w).sum() / w.sum() ** 2)


# ------------------------------------------------------------------ Eq. 6


@pytest.mark.parametrize("gamma", [0.05, 0.4, 3.0])
def test_scores_are_kernel_weighted_mean_outcomes_of_the_bin(gamma):
    data, new = plane(), plane(60, seed=1)
    points, at = (np.column_stack([one["a"], one["b"]]) for one in (data, new))
    unit = mean_distance(points)
    for weight in (None, np.random.default_rng(5).integers(1, 4, 300).astype(float)):
        unit = mean_distance(points, weight)
        fix = tu.LoRe("p", ["a", "b"], gamma=gamma, bins=6, embedding="columns").fit(data, data["y"], weight)
        expected = twin(points / unit, data["p"], data["y"], at / unit, new["p"], gamma, 6, weight)
        np.testing.assert_allclose(fix.predict(new), expected, **CLOSE)


def test_highest_class_is_reset_to_its_observed_rate():
    random = np.random.default_rng(0)
    P = random.dirichlet([1.0, 1.0, 1.0], 200)
    P[:2] = [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0]]  # the other classes have 0
    y = np.array([random.choice(3, p=one) for one in P])
    data = {f"q{c}": P[:, c] for c in range(3)} | {"a": random.normal(size=200)}
    own = {"gamma": 0.3, "bins": 4, "embedding": "columns", "classes": [0, 1, 2]}
    fix = tu.LoRe(["q0", "q1", "q2"], ["a"], keep_class=False, **own).fit(data, y)
    top, found = P.argmax(axis=1), fix.predict(data)
    points = data["a"][:, None] / mean_distance(data["a"][:, None])
    rate = twin(points, P.max(axis=1), (y == top).astype(float), points, P.max(axis=1), 0.3, 4)
    np.testing.assert_allclose(found[np.arange(200), top], rate, **CLOSE)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(found[0, 1:], (1 - rate[0]) / 2, **CLOSE)
    for i in range(2, 200):
        others = [c for c in range(3) if c != top[i]]
        expected = P[i, others] * (1 - rate[i]) / P[i, others].sum()
        np.testing.assert_allclose(found[i, others], expected, **CLOSE)
    changed = found.argmax(axis=1) != top
    assert changed.any()  # a class need not remain the highest
    # By default it does, as in the paper: equal where it is the highest anyway, else others share what exceeds it.
    kept = tu.LoRe(["q0", "q1", "q2"], ["a"], **own).fit(data, y).predict(data)
    np.testing.assert_array_equal(kept.argmax(axis=1), top)
    np.testing.assert_allclose(kept.sum(axis=1), 1.0, atol=1e-12)
    np.testing.assert_allclose(kept[np.arange(200), top], np.maximum(rate, 1 / 3), **CLOSE)
    np.testing.assert_allclose(kept[~changed], found[~changed], **CLOSE)
    for i in np.flatnonzero(changed & (rate > 0.34)):
        np.testing.assert_allclose(np.sort(kept[i])[::-1], [rate[i], rate[i], 1 - 2 * rate[i]], **CLOSE)


def test_losses_of_a_kept_class_are_those_of_its_predictions():
    random = np.random.default_rng(0)
    P = random.dirichlet([1.0, 1.0, 1.0], 300)
    y = random.integers(0, 3, 300)
    data = {f"q{c}": P[:, c] for c in range(3)}
    fix = tu.LoRe(["q0", "q1", "q2"], [], gamma=math.inf, bins=1, classes=[0, 1, 2]).fit(data, y)
    hit, top = P.argmax(axis=1) == y, P.argmax(axis=1)
    rate = (hit.sum() - hit) / 299
    expected = local_map.reset(P, top, rate, keeps=True)[np.arange(300), y]
    assert fix.history_.loss_after == pytest.approx(-np.log(expected).mean(), rel=1e-9)


def test_tiny_probabilities_share_the_rest():
    random = np.random.default_rng(0)
    P = random.dirichlet([0.05, 0.05, 0.05], 200)
    P[:3] = [[1.0, 1e-310, 0.0], [0.0, 1.0, 5e-324], [0.0, 0.0, 1.0]]
    y = np.array([random.choice(3, p=one) for one in P])
    data = {f"q{c}": P[:, c] for c in range(3)} | {"a": random.normal(size=200)}
    for own in ({"gamma": 0.3}, {"gamma": 0.3, "shrinkage": 1.0}, {"gamma": 0.3, "move": "shift"}, {}):
        fix = tu.LoRe(["q0", "q1", "q2"], ["a"], classes=[0, 1, 2], **own).fit(data, y)
        found = fix.predict(data)
        assert ((found >= 0) & (found <= 1)).all()
        np.testing.assert_allclose(found.sum(axis=1), 1.0, rtol=1e-12)
    plain = tu.LoRe(["q0", "q1", "q2"], ["a"], classes=[0, 1, 2], gamma=math.inf).fit(data, y).predict(data)
    np.testing.assert_allclose(plain[0, 1:], [1 - plain[0, 0], 0.0], atol=1e-12)


def test_infinite_gamma_is_histogram_binning():
    data = rows(n=400)
    for weight in (None, np.linspace(0.5, 2, 400)):
        found = tu.LoRe("p", FEATURES, gamma=math.inf, bins=8).fit(data, data["y"], weight).predict(data)
        expected = tu.Histogram("p", bins=8, strategy="width").fit(data, data["y"], weight).predict(data)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
    wide = tu.LoRe("p", FEATURES, gamma=1e6, bins=8).fit(data, data["y"]).predict(data)
    plain = tu.LoRe("p", FEATURES, gamma=math.inf, bins=8).fit(data, data["y"]).predict(data)
    np.testing.assert_allclose(wide, plain, atol=1e-5)


def test_equal_mass_bins_are_those_of_histogram_binning():
    data = rows(n=400) | {"p": np.round(rows(n=400)["p"] ** 4, 3)}  # many ties, most of them near 0
    for weight in (None, np.linspace(0.5, 2, 400)):
        fix = tu.LoRe("p", FEATURES, gamma=math.inf, bins=8, strategy="mass").fit(data, data["y"], weight)
        expected = tu.Histogram("p", bins=8, strategy="mass").fit(data, data["y"], weight).predict(data)
        np.testing.assert_allclose(fix.predict(data), expected, rtol=1e-12)
    same = tu.LoRe("p", [], gamma=math.inf, bins=8, strategy="mass").fit({"p": np.full(20, 0.3)}, np.arange(20) < 5)
    np.testing.assert_allclose(same.predict({"p": [0.0, 0.3, 1.0]}), 0.25, rtol=1e-12)


def test_without_features_it_is_histogram_binning():
    data = rows(n=400)
    expected = tu.LoRe("p", FEATURES, gamma=math.inf, bins=8).fit(data, data["y"]).predict(data)
    for features in ([], ["same"]):
        fix = tu.LoRe("p", features, gamma=0.1, bins=8).fit(data | {"same": np.full(400, 7.0)}, data["y"])
        np.testing.assert_allclose(fix.predict(data | {"same": np.arange(400.0)}), expected, rtol=1e-12)


def test_tiny_gamma_uses_the_nearest_rows():
    data = {"a": np.array([0.0, 1.0, 2.0, 2.0, 5.0, 9.0, 9.5, 10.0, 11.0, 12.0]), "p": np.full(10, 0.5)}
    y = np.array([0.0, 1, 1, 0, 0, 1, 0, 1, 1, 0])
    fix = tu.LoRe("p", ["a"], gamma=1e-6, embedding="columns").fit(data, y)
    asked = np.array([0.2, 0.9, 2.1, 0.5, 1.5, 1e6, -1e6])
    #                 row 0, row 1, rows 2 3, rows 0 1, rows 1 2 3, the last, the first
    expected = [0.0, 1.0, 0.5, 0.5, 2 / 3, 0.0, 0.0]
    np.testing.assert_allclose(fix.predict({"a": asked, "p": np.full(7, 0.5)}), expected, atol=1e-12)


def test_empty_bins_use_the_nearest_bin():
    p = np.repeat([0.05, 0.45, 0.85], 10)
    y = np.repeat([0.0, 1.0, 0.0, 1.0], [9, 6, 8, 7])
    fix = tu.LoRe("p", [], gamma=math.inf, bins=10).fit({"p": p}, y)
    rates = [y[:10].mean(), y[10:20].mean(), y[20:].mean()]
    asked = {0.0: 0, 0.15: 0, 0.25: 0, 0.35: 1, 0.45: 1, 0.55: 1, 0.65: 1, 0.75: 2, 1.0: 2}
    np.testing.assert_allclose(fix.predict({"p": list(asked)}), [rates[at] for at in asked.values()], rtol=1e-12)


def test_shrinkage_adds_pseudo_rows_at_the_score():
    data = rows(n=300)
    common = {"prediction": "p", "features": ["new"], "embedding": "groups", "gamma": 1.0, "bins": 4}
    plain, drawn = (tu.LoRe(**common, shrinkage=m).fit(data, data["y"]).predict(data) for m in (0, 12.5))
    key = list(zip(bin_of(data["p"], 4), data["new"], strict=True))
    many = np.array([key.count(one) for one in key])
    np.testing.assert_allclose(drawn, (many * plain + 12.5 * data["p"]) / (many + 12.5), rtol=1e-9)


def test_distant_rows_keep_their_score_with_shrinkage():
    data = plane(200)
    for move in ("reset", "shift"):
        fix = tu.LoRe("p", ["a", "b"], gamma=0.2, shrinkage=1, move=move).fit(data, data["y"])
        far = {"a": np.array([1e9]), "b": np.array([0.0]), "p": np.array([0.37])}
        assert fix.predict(far)[0] == 0.37


def test_shift_adds_the_mean_residual_of_neighbours():
    data, new = plane(), plane(50, seed=1)
    points, at = (np.column_stack([one["a"], one["b"]]) for one in (data, new))
    unit = mean_distance(points)
    fix = tu.LoRe("p", ["a", "b"], gamma=0.5, bins=5, embedding="columns", move="shift").fit(data, data["y"])
    error = twin(points / unit, data["p"], data["y"] - data["p"], at / unit, new["p"], 0.5, 5)
    np.testing.assert_allclose(fix.predict(new), np.clip(new["p"] + error, 0, 1), **CLOSE)


def test_shrunk_shifts_stay_within_the_range_of_resets():
    data = plane(400, drift=2.0)
    for gamma in (0.05, 1.0):
        fix = tu.LoRe("p", ["a", "b"], gamma=gamma, move="shift", shrinkage=2).fit(data, data["y"])
        found = fix.predict(data)
        assert found.min() > 0
        assert found.max() < 1


# ------------------------------------------------------------------ groups


def test_the_group_kernel_is_histogram_binning_in_each_group():
    data = rows(n=500)
    fix = tu.LoRe("p", ["country", "new"], embedding="groups", gamma=0.4, bins=3).fit(data, data["y"])
    found = fix.predict(data)
    for country in ("BR", "DE", "US", None):
        for new in (True, False):
            inside = (data["country"] == country) & (data["new"] == new)
            part = {name: column[inside] for name, column in data.items()}
            own = tu.Histogram("p", bins=3, strategy="width").fit(part, part["y"])
            np.testing.assert_allclose(found[inside], own.predict(part), rtol=1e-12)


def test_groups_without_rows_in_a_bin_use_the_whole_bin():
    data = {"g": ["a"] * 10 + ["b"] * 10, "p": np.repeat([0.2, 0.8], 10)}
    y = np.array([1.0] * 3 + [0.0] * 7 + [1.0] * 6 + [0.0] * 4)
    fix = tu.LoRe("p", ["g"], embedding="groups", gamma=1, bins=2).fit(data, y)
    asked = {"g": ["a", "a", "b", "b", "new", None], "p": [0.2, 0.8, 0.2, 0.8, 0.2, 0.8]}
    np.testing.assert_allclose(fix.predict(asked), [0.3, 0.6, 0.3, 0.6, 0.3, 0.6], rtol=1e-12)


def test_numbers_are_binned_into_groups():
    data = rows(n=400)
    fix = tu.LoRe("p", ["age"], embedding="groups", gamma=1, bins=1).fit(data, data["y"])
    assert len(np.unique(fix.predict(data))) <= 11
    assert "groups" in fix.model_.map.describe()


# ------------------------------------------------------------------ features


def embed(columns, embedding="pca", components=None, weight=None, **more):
    n = len(next(iter(columns.values())))
    table = read(columns | {"p": np.linspace(0.1, 0.9, n)}, outcome=np.arange(n) % 2, prediction="p", weight=weight, **more)
    fitted = fit_embedding(embedding, components, table, pool_rows(table))
    names = [feature.name for feature in table.schema.features]
    return fitted.place([table.columns[name] for name in names], n)[0]


def test_every_feature_has_the_same_variance():
    random = np.random.default_rng(0)
    number = random.normal(size=60) * 1000
    letter = np.array(["u", "v", "w"], object)[random.integers(0, 3, 60)]
    points = embed({"number": number, "letter": letter})
    scaled = np.column_stack([number / number.std(), *(letter == one for one in "uvw"), np.zeros(60)])
    share = np.array([(letter == one).mean() for one in "uvw"])
    scaled[:, 1:4] /= math.sqrt(1 - (share**2).sum())
    assert np.isclose(scaled[:, 1:4].var(axis=0).sum(), 1.0)
    expected = scaled / mean_distance(scaled)
    np.testing.assert_allclose(points - points[0], expected - expected[0], atol=1e-9)


def test_all_principal_components_keep_distances():
    random = np.random.default_rng(0)
    columns = {name: random.normal(size=50) for name in "abc"}
    plain, turned = embed(columns), embed(columns, components=20)
    squared = [((x[:, None] - x[None]) ** 2).sum(axis=2) for x in (plain, turned)]
    ratio = squared[1][~np.eye(50, dtype=bool)] / squared[0][~np.eye(50, dtype=bool)]
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-9)
    assert embed(columns, components=2).shape == (50, 2)


def test_missing_numbers_are_the_mean_with_an_indicator():
    age = np.array([10.0, 20, 30, np.nan, np.nan, 40, 50, 60, 70, 80])
    points = embed({"age": age})
    assert points.shape == (10, 2)
    known = ~np.isnan(age)
    gap = points[:, 1]
    assert len(set(gap[known])) == len(set(gap[~known])) == 1
    np.testing.assert_allclose(points[3, 0], points[known, 0].mean(), atol=1e-12)
    assert embed({"age": np.where(known, age, 1.0)}).shape == (10, 1)


def test_numbers_missing_only_in_prediction_are_the_mean():
    data = plane(200)
    fix = tu.LoRe("p", ["a"], gamma=0.2).fit(data, data["y"])
    found = fix.predict({"p": np.array([0.4]), "a": np.array([np.nan])})
    assert found[0] == pytest.approx(fix.predict({"p": np.array([0.4]), "a": np.array([data["a"].mean()])})[0])


def test_unseen_categories_are_equally_far_from_all_others():
    data = rows(n=300)
    fix = tu.LoRe("p", ["country"], gamma=1e-3, bins=1, components=None).fit(data, data["y"])
    known = data["country"] != None  # noqa: E711
    rate = data["y"][~known].mean()
    assert fix.predict_one({"p": 0.5, "country": "XX"}) == pytest.approx(rate)
    full = {name: column[known] for name, column in data.items()}
    fix = tu.LoRe("p", ["country"], gamma=1e-3, bins=1, components=None).fit(full, full["y"])
    assert fix.predict_one({"p": 0.5, "country": "XX"}) == pytest.approx(full["y"].mean())  # all are equally near


def test_huge_numbers_are_accepted():
    data = plane(200)
    for own in ({"embedding": "columns"}, {}, {"components": None}):
        fix = tu.LoRe("p", ["a", "b"], gamma=0.3, **own).fit(data, data["y"])
        found = fix.predict({"p": np.full(2, 0.4), "a": np.array([1e300, -1e300]), "b": np.zeros(2)})
        assert ((found >= 0) & (found <= 1)).all()


@pytest.mark.parametrize("own", [{}, {"embedding": "columns"}, {"embedding": PCA(1)}, {"gamma": math.inf}])
@pytest.mark.filterwarnings("ignore::trueup.errors.InfiniteValueWarning")
def test_infinite_numbers_are_rejected_in_training(own):
    data = plane(50)
    data["b"][[3, 7]] = np.inf, -np.inf
    message = "feature 'b' is infinite in 2 of 50 rows(.|\n)*hint: replace it by missing"
    with pytest.raises(DataError, match=message):
        tu.LoRe("p", ["a", "b"], **own).fit(data, data["y"])


@pytest.mark.parametrize("own", [{}, {"embedding": "columns"}, {"embedding": PCA(1)}])
def test_infinite_numbers_are_rejected_in_prediction(own, tmp_path):
    data = plane(50)
    fix = tu.LoRe("p", ["a", "b"], gamma=0.3, **own).fit(data, data["y"])
    models = [fix]
    if not isinstance(fix.embedding, PCA):
        tu.save(fix, tmp_path / "model")
        models.append(tu.load(tmp_path / "model"))
    row = {"a": 0.0, "b": np.inf, "p": 0.4}
    for model in models:
        with pytest.raises(DataError, match="feature 'b' is infinite in 1 of 2 rows"):
            model.predict({"a": np.zeros(2), "b": np.array([np.inf, 0.0]), "p": np.full(2, 0.4)})
        for ask in (model.predict_one, model.explain):
            with pytest.raises(DataError, match="feature 'b' is infinite in 1 of 1 rows"):
                ask(row)


@pytest.mark.filterwarnings("ignore::trueup.errors.InfiniteValueWarning")
def test_infinite_numbers_are_accepted_without_distances():
    data = plane(200)
    fix = tu.LoRe("p", ["a"], gamma=math.inf).fit(data, data["y"])
    assert fix.predict_one({"a": np.inf, "p": 0.4}) == fix.predict_one({"a": 0.0, "p": 0.4})
    data["a"][:40] = np.inf
    fix = tu.LoRe("p", ["a"], embedding="groups", gamma=1, bins=1).fit(data, data["y"])
    found = fix.predict(data)
    assert len(set(found[:40])) == 1
    assert found[0] == fix.predict_one({"a": np.inf, "p": 0.4})


# ------------------------------------------------------------------ points


@pytest.mark.parametrize("own", [{}, {"embedding": "columns"}, {"embedding": PCA(1)}, {"components": 1}])
def test_points_are_the_coordinates_of_neighbours(own):
    data, new = plane(), plane(60, seed=1)
    fix = tu.LoRe("p", ["a", "b"], gamma=0.4, bins=6, **own).fit(data, data["y"])
    points, at = fix.points(data), fix.points(new)
    expected = twin(points, data["p"], data["y"], at, new["p"], 0.4, 6)
    np.testing.assert_allclose(fix.predict(new), expected, **CLOSE)
    # The signed error of the measure is what the fix takes away from the mean score nearby.
    error = tu.metrics.lce(points, data["p"], data["y"], gamma=0.4, bins=6, query=(at, new["p"]), signed=True)
    said = twin(points, data["p"], data["p"], at, new["p"], 0.4, 6)
    np.testing.assert_allclose(said - error, fix.predict(new), rtol=1e-5, atol=1e-6)


def test_points_do_not_depend_on_the_correction(monkeypatch):
    data = rows(n=300) | {"p": np.full(300, rows(n=300)["y"].mean())}
    unchanged, given, pooled = (tu.LoRe("p", FEATURES, **own).fit(data, data["y"]) for own in (
        {"shrinkage": 1e9}, {"gamma": 0.4}, {"gamma": math.inf},
    ))  # fmt: skip
    assert unchanged.history_.chosen == 0
    assert given.points(data).tobytes() == unchanged.points(data).tobytes() == pooled.points(data).tobytes()
    assert unchanged.points({name: column[:0] for name, column in data.items()}).shape == (
        0,
        unchanged.points(data).shape[1],
    )
    monkeypatch.setattr(local_map, "CHUNK_NUMBERS", 500)  # some rows at a time
    assert unchanged.points(data).tobytes() == given.points(data).tobytes()
    assert (unchanged.points(data)[5:6] == unchanged.points({name: column[5:6] for name, column in data.items()})).all()


def test_points_of_groups_are_group_numbers():
    data = rows(n=300)
    fix = tu.LoRe("p", ["country", "new"], embedding="groups", gamma=1, bins=4).fit(data, data["y"])
    label = fix.points(data)
    key = [f"{one} {new}" for one, new in zip(data["country"], data["new"], strict=True)]
    assert len(set(label)) == len(set(key)) == len(set(zip(label, key, strict=True)))
    by_label, by_key = (
        tu.metrics.mlce(phi, data["p"], data["y"], gamma=None, kernel="group") for phi in (label, np.array(key))
    )
    assert by_label == pytest.approx(by_key)
    few = {name: column[data["new"] == np.True_] for name, column in data.items()}
    fix = tu.LoRe("p", ["country", "new"], embedding="groups", gamma=1).fit(few, few["y"])
    assert (fix.points(data)[data["new"] == np.False_] == 0).all()


def test_points_need_a_fitted_model_and_finite_numbers():
    data = plane(50)
    with pytest.raises(NotFittedError):
        tu.LoRe("p", ["a", "b"]).points(data)
    fix = tu.LoRe("p", ["a", "b"]).fit(data, data["y"])
    with pytest.raises(DataError, match="feature 'a' is infinite in 50 of 50 rows"):
        fix.points(data | {"a": np.full(50, np.inf)})


# ------------------------------------------------------------------ selection


def test_local_errors_select_a_finite_gamma_and_lower_the_loss_on_new_rows():
    data, new = plane(1500, drift=1.5), plane(5000, seed=1, drift=1.5)
    fix = tu.LoRe("p", ["a", "b"]).fit(data, data["y"])
    assert 0 < fix.gamma_ < math.inf
    before, after = log_loss(new["y"], new["p"]), log_loss(new["y"], fix.predict(new))
    assert after < before - 0.05
    # The gain in the history holds for new rows.
    assert fix.history_.loss_before - fix.history_.loss_after == pytest.approx(before - after, abs=0.03)
    plain = tu.LoRe("p", ["a", "b"], gamma=math.inf).fit(data, data["y"])
    assert after < log_loss(new["y"], plain.predict(new)) - 0.03


def test_global_errors_select_a_large_gamma():
    random = np.random.default_rng(2)
    F = 1.5 * random.normal(size=3000)
    data = {"p": _expit(F), "a": random.normal(size=3000), "y": (random.random(3000) < _expit(3 * F)).astype(float)}
    fix = tu.LoRe("p", ["a"], bins=15).fit(data, data["y"])
    assert fix.gamma_ > 0.7
    assert fix.history_.chosen == 1


def test_calibrated_scores_are_left_unchanged():
    kept = [tu.LoRe("p", ["a", "b"]).fit(data := plane(250, seed), data["y"]).history_.chosen for seed in range(60)]
    assert np.mean(kept) < 0.05 + three_se(0.05, 60)
    data = plane(250, seed=200)
    fix = tu.LoRe("p", ["a", "b"]).fit(data, data["y"])
    assert fix.history_.chosen == 0
    assert (fix.predict(data) == data["p"]).all()
    assert fix.gamma_ == fix.shrinkage_ == math.inf
    assert "within noise" in fix.history_.reason


def test_loss_is_by_leave_one_out():
    data = plane(120)
    points = np.column_stack([data["a"], data["b"]])
    points /= mean_distance(points)
    fix = tu.LoRe("p", ["a", "b"], gamma=0.3, bins=3, embedding="columns").fit(data, data["y"])
    found = []
    for i in range(120):
        rest = np.arange(120) != i
        here = slice(i, i + 1)
        found.append(twin(points[rest], data["p"][rest], data["y"][rest], points[here], data["p"][here], 0.3, 3)[0])
    assert fix.history_.loss_after == pytest.approx(log_loss(data["y"], np.array(found)), rel=1e-6)
    assert fix.history_.evaluated_on == "leave-one-out"


def test_multiclass_loss_is_that_of_the_true_class():
    random = np.random.default_rng(1)
    P = random.dirichlet([0.1, 0.1, 0.1, 0.1], 400)  # many of them next to 0 and 1
    y = np.where(random.random(400) < 0.3, random.integers(0, 4, 400), P.argmax(axis=1))
    names = ["q0", "q1", "q2", "q3"]
    data = dict(zip(names, P.T, strict=True))
    fix = tu.LoRe(names, [], gamma=math.inf, bins=1, classes=[0, 1, 2, 3]).fit(data, y)
    true = P[np.arange(400), y]
    assert fix.history_.loss_before == pytest.approx(-np.log(true).mean(), rel=1e-9)
    hit = P.argmax(axis=1) == y
    rate = (hit.sum() - hit) / 399
    chance = np.where(hit, rate, (1 - rate) * true / np.where(hit, 1.0, np.sort(P, axis=1)[:, :-1].sum(axis=1)))
    assert fix.history_.loss_after == pytest.approx(-np.log(chance).mean(), rel=1e-9)


def test_slightly_too_many_rows_for_leave_one_out_are_mostly_training_rows():
    random = np.random.default_rng(0)
    for n in (20_005, estimator.MAX_LEAVE_ONE_OUT + 5):
        p = random.random(n)
        fix = tu.LoRe("p", []).fit({"p": p}, random.random(n) < p**2)
        assert fix.history_.chosen == 1
        judges = fix.explain().rows
        assert judges == n if n <= estimator.MAX_LEAVE_ONE_OUT else judges <= n / 2


@pytest.mark.filterwarnings("ignore:[0-9,]+ rows share all features:trueup.errors.ClusterWarning")
def test_copies_are_left_out_together():
    data = plane(200)
    twice = {name: np.repeat(column, 2) for name, column in data.items()}
    once, doubled = (
        tu.LoRe("p", ["a", "b"], gamma=0.3, bins=3).fit(one, one["y"]).history_.loss_after for one in (data, twice)
    )
    assert doubled == pytest.approx(once, rel=1e-9)


def test_one_of_many_equal_rows_is_left_out():
    # 4 kinds of rows, 50 of each: with all of a kind left out, there would be no information on it.
    kind = np.repeat(np.arange(4), 50)
    y = (np.arange(200) % 50 < np.array([5, 15, 35, 45])[kind]).astype(float)
    data = {"kind": kind.astype(float), "p": np.full(200, 0.5)}
    fix = tu.LoRe("p", ["kind"], gamma=1e-3, bins=1).fit(data, y)
    rates = np.array([5, 15, 35, 45])[kind]
    assert fix.history_.loss_after == pytest.approx(log_loss(y, (rates - y) / 49), rel=1e-9)


def test_large_data_is_evaluated_on_held_out_rows(monkeypatch):
    data, new = plane(1500, drift=1.5), plane(2000, seed=1, drift=1.5)
    whole = tu.LoRe("p", ["a", "b"], gamma=0.3).fit(data, data["y"])
    monkeypatch.setattr(estimator, "MAX_LEAVE_ONE_OUT", 1000)
    monkeypatch.setattr(estimator, "HELD_OUT_ROWS", 500)
    fix = tu.LoRe("p", ["a", "b"]).fit(data, data["y"])
    assert fix.history_.evaluated_on == "held-out rows"
    assert 0 < fix.gamma_ < math.inf
    assert 490 <= fix.explain().rows <= 510
    assert fix.model_.map.weight.sum() == 1500  # the model has all rows
    assert log_loss(new["y"], fix.predict(new)) < log_loss(new["y"], new["p"]) - 0.05
    mixed = np.random.default_rng(0).permutation(1500)
    again = tu.LoRe("p", ["a", "b"]).fit({name: column[mixed] for name, column in data.items()}, data["y"][mixed])
    assert again.history_ == fix.history_
    assert again.predict(new).tobytes() == fix.predict(new).tobytes()
    same = tu.LoRe("p", ["a", "b"], gamma=0.3).fit(data, data["y"])
    assert same.predict(new).tobytes() == whole.predict(new).tobytes()
    grouped = tu.LoRe("p", ["a"], embedding="groups").fit(data, data["y"])
    assert grouped.history_.chosen == 1


@pytest.mark.filterwarnings("ignore:[0-9,]+ rows share all features:trueup.errors.ClusterWarning")
def test_evaluation_treats_weights_as_copies(monkeypatch):
    monkeypatch.setattr(estimator, "MAX_LEAVE_ONE_OUT", 450)
    data = plane(300, drift=1.5)
    twice = {name: np.repeat(column, 2) for name, column in data.items()}
    a = tu.LoRe("p", ["a", "b"]).fit(data, data["y"], np.full(300, 2.0))
    b = tu.LoRe("p", ["a", "b"]).fit(twice, twice["y"])
    assert a.history_.evaluated_on == b.history_.evaluated_on == "leave-one-out"
    assert a.history_.chosen == 1
    assert a.predict(data).tobytes() == b.predict(data).tobytes()


def test_equal_mass_bins_are_better_for_extreme_scores():
    # Overconfident scores near 1: one bin of equal width would contain most rows.
    random = np.random.default_rng(4)
    F = 6 + 3 * random.normal(size=6000)
    data = {"p": _expit(F), "a": random.normal(size=6000)}
    y = (random.random(6000) < _expit(F / 3)).astype(float)
    train, test = ({name: column[half] for name, column in data.items()} for half in (slice(3000), slice(3000, None)))
    losses = {}
    for strategy in ("auto", "width"):
        fix = tu.LoRe("p", ["a"], strategy=strategy).fit(train, y[:3000])
        losses[strategy] = log_loss(y[3000:], fix.predict(test))
    truth = log_loss(y[3000:], _expit(F[3000:] / 3))
    assert losses["auto"] - truth < 0.6 * (losses["width"] - truth)


def test_candidates_have_every_combination_and_loss():
    data = plane(400, drift=1.5)
    fix = tu.LoRe("p", ["a", "b"]).fit(data, data["y"])
    assert len(fix.candidates_) == 9 * 5 * 2
    best = min(fix.candidates_, key=lambda one: one.loss)
    assert (best.gamma, best.shrinkage) == (fix.gamma_, fix.shrinkage_)
    assert fix.history_.loss_after == best.loss
    assert len(tu.LoRe("p", ["a", "b"], gamma=0.4).fit(data, data["y"]).candidates_) == 1
    assert len(tu.LoRe("p", ["a", "b"], shrinkage=5, move="reset").fit(data, data["y"]).candidates_) == 9


def test_number_of_bins_depends_on_rows():
    for n, wide, heavy in ((60, 5, 5), (800, 8, 5), (2500, 15, 5), (8000, 15, 8), (20_000, 15, 15)):
        data = plane(n)
        found = tu.LoRe("p", [], gamma=0.4).fit(data, data["y"]).model_.map
        assert found.edges.tolist() == [b / wide for b in range(1, wide)]
        found = tu.LoRe("p", [], gamma=0.4, strategy="mass").fit(data, data["y"]).model_.map
        assert np.ptp(found.weight) <= 1
        assert len(found.weight) == heavy


# ------------------------------------------------------------------ explanations


def test_description_has_number_and_size_of_neighbours():
    data = plane(1000)
    fix = tu.LoRe("p", ["a", "b"], gamma=0.4).fit(data, data["y"])
    assert fix.model_.map.describe() == "1,000 neighbours in 2 dimensions (40.1 kB)"
    assert fix.model_.info().map == fix.model_.map.describe()
    assert (
        tu.LoRe("p", ["a"], gamma=math.inf, bins=7).fit(data, data["y"]).model_.map.describe()
        == "7 bins of the score (0.3 kB)"
    )


def test_rows_of_one_bin_and_point_are_summed():
    kind = np.arange(400) % 4
    data = {"kind": kind.astype(float), "p": np.where(np.arange(400) % 2, 0.31, 0.32)}
    found = tu.LoRe("p", ["kind"], gamma=0.4, bins=10).fit(data, kind % 3 > 0).model_.map
    assert isinstance(found, LocalMap)
    assert len(found.weight) == 4
    assert found.weight.tolist() == [100.0] * 4


@pytest.mark.parametrize("own", [{}, {"move": "shift", "shrinkage": 4}, {"embedding": "groups"}, {"gamma": math.inf}])
def test_contributions_add_up(own):
    data = rows(n=400)
    fix = tu.LoRe(**{"prediction": "p", "features": ["country", "age"], "gamma": 0.3} | own).fit(data, data["y"])
    for i in range(20):
        row = {name: column[i] for name, column in data.items()}
        explanation = fix.explain(row)
        assert explanation.after == fix.predict_one(row)
        assert sum(part.change for part in explanation.contributions) == pytest.approx(explanation.link_change)
        assert " rows in " in explanation.contributions[0].condition


def test_explanation_has_number_and_rate_of_neighbours():
    data = {"a": np.repeat([0.0, 1.0], 20), "p": np.full(40, 0.3)}
    y = np.array([1.0] * 5 + [0.0] * 15 + [1.0] * 18 + [0.0] * 2)
    explanation = tu.LoRe("p", ["a"], gamma=1e-3, bins=10).fit(data, y).explain({"a": 1.0, "p": 0.3})
    assert [part.condition for part in explanation.contributions] == [
        "40 rows in score 0.2 to 0.3: observed rate 0.575",
        "its neighbours in that range (kernel weight of 20 rows, effective size 20): observed rate 0.9",
    ]
    explanation = (
        tu.LoRe("p", ["a"], gamma=1e-3, bins=10, move="shift", shrinkage=1).fit(data, y).explain({"a": 1.0, "p": 0.3})
    )
    assert explanation.contributions[1].condition.startswith("its neighbours in that range (kernel weight of 20 rows, ")
    assert explanation.contributions[1].condition.endswith("): mean residual +0.6")
    assert (
        explanation.contributions[2].condition
        == "shrinkage towards the score, which counts for 1 row against 20: 4.8% of the weight"
    )


def test_neighbours_and_shrinkage_have_the_same_unit():
    # Points 2 apart, with equal numbers of rows: two random rows are 1 apart on average, and gamma is in that unit.
    data = {"a": np.repeat([0.0, 2.0], 12_000), "p": np.full(24_000, 0.3)}
    y = np.arange(24_000) % 12_000 < np.where(data["a"] > 0, 6000, 3000)
    fix = tu.LoRe("p", ["a"], gamma=0.5, bins=1, embedding="columns", shrinkage=1500).fit(data, y)
    explanation = fix.explain({"a": 4.0, "p": 0.3})  # 2 from the nearer rows, 4 from the others
    k = np.exp(-2 / 0.5) + np.exp(-4 / 0.5)
    rate = (0.5 * np.exp(-2 / 0.5) + 0.25 * np.exp(-4 / 0.5)) / k
    size = k**2 / (np.exp(-4 / 0.5) + np.exp(-8 / 0.5)) * 12_000
    assert [part.condition for part in explanation.contributions] == [
        "24,000 rows in score 0 to 1: observed rate 0.375",
        f"its neighbours in that range (kernel weight of {12_000 * k:.4g} rows, effective size {size:,.0f}): "
        f"observed rate {rate:.4g}",
        f"shrinkage towards the score, which counts for 1,500 rows against {12_000 * k:.4g}: "
        f"{1500 / (1500 + 12_000 * k):.1%} of the weight",
    ]
    assert explanation.after == pytest.approx((12_000 * k * rate + 1500 * 0.3) / (12_000 * k + 1500))
    far = fix.explain({"a": 1e6, "p": 0.3}).contributions
    assert "kernel weight of less than 0.001 rows" in far[1].condition
    assert far[2].condition.endswith("against less than 0.001: 100.0% of the weight")


def test_rows_of_unseen_groups_are_explained_by_the_whole_bin():
    data = {"g": ["a"] * 10 + ["b"] * 10, "p": np.repeat([0.2, 0.8], 10)}
    fix = tu.LoRe("p", ["g"], embedding="groups", gamma=1, bins=1, shrinkage=5).fit(data, np.arange(20) % 4 == 0)
    known, new = (fix.explain({"g": name, "p": 0.2}).contributions for name in ("a", "c"))
    assert known[1].condition == "10 rows of its group in that range: observed rate 0.3"
    assert [part.condition for part in new] == [
        "20 rows in score 0 to 1: observed rate 0.25",
        "shrinkage towards the score, which counts for 5 rows against 20: 20.0% of the weight",
    ]


def test_explanation_names_the_nearest_bin_with_rows():
    data = {"p": np.repeat([0.05, 0.45], 10)}
    fix = tu.LoRe("p", [], gamma=math.inf, bins=10).fit(data, np.arange(20) % 10 < 3)
    explanation = [fix.explain({"p": p}).contributions[0].condition for p in (0.45, 0.9)]
    assert explanation == [
        "10 rows in score 0.4 to 0.5: observed rate 0.3",
        "10 rows in the nearest range with rows, score 0.4 to 0.5: observed rate 0.3",
    ]


def test_multiclass_contributions_add_up_per_class():
    data = rows("multiclass", 400)
    fix = tu.LoRe(SEVERAL, FEATURES, gamma=0.4, shrinkage=3).fit(data, data["y"])
    explanation = fix.explain({name: column[3] for name, column in data.items()})
    for c, name in enumerate(CLASSES):
        assert sum(part.change for part in explanation.contributions if part.output == name) == pytest.approx(
            explanation.link_change[c]
        )
    assert any(" rows in confidence " in part.condition for part in explanation.contributions)


def test_explanations_of_ten_classes_are_short():
    random = np.random.default_rng(0)
    P = random.dirichlet(np.full(10, 0.5), 500)
    names = [f"q{c}" for c in range(10)]
    y = np.array([random.choice(10, p=one) for one in P**0.5 / (P**0.5).sum(axis=1, keepdims=True)])
    data = dict(zip(names, P.T, strict=True)) | {"a": random.normal(size=500)}
    fix = tu.LoRe(names, ["a"], classes=list("ABCDEFGHIJ"), gamma=0.4, shrinkage=3, keep_class=False).fit(
        data, np.array(list("ABCDEFGHIJ"))[y]
    )
    lost = 0
    for i in np.flatnonzero(P.min(axis=1) > 1e-4)[:20]:
        explanation = fix.explain({name: column[i] for name, column in data.items()}, details=True)
        top = P[i].argmax()
        predicted, before, after = "ABCDEFGHIJ"[top], P[i].max(), explanation.after[top]
        assert [part.output for part in explanation.contributions[:3]] == [predicted] * 3
        assert {part.output for part in explanation.contributions[3:]} == set("ABCDEFGHIJ") - {predicted}
        for c, name in enumerate("ABCDEFGHIJ"):
            assert sum(part.change for part in explanation.contributions if part.output == name) == pytest.approx(
                explanation.link_change[c]
            )
        lines = repr(explanation).splitlines()
        assert len(lines) == 5
        assert " and 6 more: " in lines[-1]
        assert f"{predicted}, predicted, changes from {before:.4g} to {after:.4g}; others share the rest" in lines[-1]
        assert ("is now the highest" in lines[-1]) == (np.argmax(explanation.after) != top)
        lost += np.argmax(explanation.after) != top
    assert 0 < lost < 20


def test_explanations_say_that_a_class_is_kept():
    random = np.random.default_rng(0)
    P = random.dirichlet([1.0, 1.0, 1.0], 200)
    data = {f"q{c}": P[:, c] for c in range(3)}
    y = (P.argmax(axis=1) + 1) % 3  # always wrong
    fix = tu.LoRe(["q0", "q1", "q2"], [], gamma=math.inf, bins=1, classes=[0, 1, 2], shrinkage=1.0).fit(data, y)
    explanation = fix.explain({name: column[3] for name, column in data.items()})
    assert any("the predicted class stays the highest of 3" in part.condition for part in explanation.contributions)
    for c in range(3):
        changes = [part.change for part in explanation.contributions if part.output == str(c)]
        assert sum(changes) == pytest.approx(explanation.link_change[c])


# ------------------------------------------------------------------ other kernels and units


def gaussian_twin(points, p, hit, at, score, gamma, bins):
    """Evaluate Eq. 6 row by row with the kernel exp(-|phi - phi'|^2 / (2 d gamma^2))."""
    own, asked = bin_of(p, bins), bin_of(score, bins)
    out = []
    for x, b in zip(at, asked, strict=True):
        inside = own == min(set(own), key=lambda one: (abs(one - b), one))
        far = ((points[inside] - x) ** 2).mean(axis=1) / (2 * gamma**2)
        k = np.exp(-(far - far.min()))
        out.append((k * hit[inside]).sum() / k.sum())
    return np.array(out)


@pytest.mark.parametrize("gamma", [0.02, 0.4])
def test_the_gaussian_kernel_equals_eq_6_and_is_saved(gamma, tmp_path):
    data, new = plane(), plane(60, seed=1)
    points, at = (np.column_stack([one["a"], one["b"]]) for one in (data, new))
    fix = tu.LoRe("p", ["a", "b"], gamma=gamma, bins=6, embedding="columns", unit=False, kernel="gaussian")
    fix.fit(data, data["y"])
    expected = gaussian_twin(points, data["p"], data["y"], at, new["p"], gamma, 6)
    np.testing.assert_allclose(fix.predict(new), expected, **CLOSE)
    rest = [np.delete(np.arange(300), i) for i in range(40)]
    left_out = [
        gaussian_twin(points[r], data["p"][r], data["y"][r], points[[i]], data["p"][[i]], gamma, 6)[0]
        for i, r in enumerate(rest)
    ]
    np.testing.assert_allclose(fix.held_out_.p[:40], left_out, **CLOSE)
    tu.save(fix, tmp_path / "model")
    assert tu.load(tmp_path / "model").predict(new).tobytes() == fix.predict(new).tobytes()
    row = {name: column[3] for name, column in new.items()}
    assert fix.model_.predict_one(row) == fix.predict(new)[3]
    assert sum(part.change for part in fix.explain(row).contributions) == pytest.approx(fix.explain(row).link_change)


def test_without_a_unit_gamma_is_in_units_of_the_embedding():
    data, new = plane(), plane(60, seed=1)
    points, at = (np.column_stack([one["a"], one["b"]]) for one in (data, new))
    fix = tu.LoRe("p", ["a", "b"], gamma=0.7, bins=6, embedding="columns", unit=False).fit(data, data["y"])
    np.testing.assert_allclose(fix.predict(new), twin(points, data["p"], data["y"], at, new["p"], 0.7, 6), **CLOSE)
    np.testing.assert_array_equal(fix.points(new), at)


def test_a_function_as_kernel_equals_eq_6_but_cannot_be_saved(tmp_path):
    data, new = plane(), plane(60, seed=1)
    points, at = (np.column_stack([one["a"], one["b"]]) for one in (data, new))
    kernel = lambda a, b: 0.5 * np.exp(-np.abs(a[:, None] - b).sum(axis=2) / (2 * 0.4))  # noqa: E731
    own = {"bins": 6, "embedding": "columns", "unit": False}
    fix = tu.LoRe("p", ["a", "b"], gamma=1.0, kernel=kernel, **own).fit(data, data["y"])
    named = tu.LoRe("p", ["a", "b"], gamma=0.4, **own).fit(data, data["y"])
    expected = twin(points, data["p"], data["y"], at, new["p"], 0.4, 6)
    np.testing.assert_allclose(fix.predict(new), expected, **CLOSE)
    np.testing.assert_allclose(fix.held_out_, named.held_out_, **CLOSE)
    with pytest.raises(ArgumentError, match='use kernel="laplace" or kernel="gaussian"'):
        tu.save(fix, tmp_path / "model")
    chosen = tu.LoRe("p", ["a", "b"], kernel=kernel, **own).fit(data, data["y"])
    assert {candidate.gamma for candidate in chosen.candidates_} == {1.0, math.inf}


def test_rows_similar_to_no_row_use_their_whole_bin():
    data = plane()
    near = lambda a, b: (np.abs(a[:, None] - b).sum(axis=2) < 1e-9).astype(float)  # noqa: E731
    fix = tu.LoRe("p", ["a", "b"], gamma=1.0, kernel=near, bins=6, embedding="columns").fit(data, data["y"])
    bins = bin_of(data["p"], 6)
    means = np.array([data["y"][bins == b].mean() for b in bins])
    shifted = data | {"a": data["a"] + 100}
    np.testing.assert_allclose(fix.predict(shifted), means, **CLOSE)
    np.testing.assert_allclose(fix.predict(data), data["y"], **CLOSE)


def test_bins_closed_on_the_left_contain_their_lower_edge(tmp_path):
    data = {"p": np.repeat([0.1, 0.2, 0.3], 20), "y": np.repeat([0.0, 1.0, 0.0], 20)}
    closed = {
        name: tu.LoRe("p", [], gamma=math.inf, bins=5, closed=name).fit(data, data["y"]) for name in ("left", "right")
    }
    np.testing.assert_allclose(closed["left"].predict(data), np.repeat([0.0, 0.5, 0.5], 20))  # [.2, .4)
    np.testing.assert_allclose(closed["right"].predict(data), np.repeat([0.5, 0.5, 0.0], 20))  # (0, .2]
    tu.save(closed["left"], tmp_path / "model")
    np.testing.assert_array_equal(tu.load(tmp_path / "model").predict(data), closed["left"].predict(data))


# ------------------------------------------------------------------ transformers of other libraries


def test_transformers_define_points_but_cannot_be_saved(tmp_path):
    data = plane(300, drift=1.0)
    fix = tu.LoRe("p", ["a", "b"], gamma=0.3, embedding=PCA(2)).fit(data, data["y"])
    turned = PCA(2).fit_transform(np.column_stack([data["a"], data["b"]]))
    given = {"p": data["p"], "u": turned[:, 0], "v": turned[:, 1]}
    same = tu.LoRe("p", ["u", "v"], gamma=0.3, embedding="columns").fit(given, data["y"])
    np.testing.assert_allclose(fix.predict(data), same.predict(given), rtol=1e-7)
    assert fix.predict_one({name: column[7] for name, column in data.items()}) == pytest.approx(fix.predict(data)[7])
    assert fix.predict({name: column[:0] for name, column in data.items()}).shape == (0,)
    with pytest.raises(ArgumentError, match=r"2 dimensions of PCA .* cannot be saved(.|\n)*embedding=\"pca\""):
        tu.save(fix, tmp_path / "model")


@pytest.mark.filterwarnings("ignore:[0-9,]+ rows share all features:trueup.errors.ClusterWarning")
def test_transformers_see_rows_of_weight_two_twice():
    data = plane(100)
    times = np.arange(100) % 2 + 1
    twice = {name: np.repeat(column, times) for name, column in data.items()}
    common = {"prediction": "p", "features": ["a", "b"], "gamma": 0.3, "embedding": PCA(1)}
    a = tu.LoRe(**common).fit(data, data["y"], times.astype(float))
    b = tu.LoRe(**common).fit(twice, twice["y"])
    assert a.predict(data).tobytes() == b.predict(data).tobytes()


def test_random_states_within_a_pipeline_are_fixed():
    data = plane(200)
    steps = make_pipeline(StandardScaler(), GaussianRandomProjection(1))
    a, b = (tu.LoRe("p", ["a", "b"], gamma=0.3, embedding=steps).fit(data, data["y"]).predict(data) for _ in range(2))
    assert a.tobytes() == b.tobytes()
    assert steps.get_params()["gaussianrandomprojection__random_state"] is None  # the user's transformer is not modified


def test_transformers_without_transform_are_rejected():
    data = plane(50)
    with pytest.raises(
        ArgumentError, match=r"must have a method transform, to place new rows; TSNE has none(.|\n)*embedding=\"columns\""
    ):
        tu.LoRe("p", ["a", "b"], embedding=TSNE()).fit(data, data["y"])


@pytest.mark.parametrize(
    ("transformer", "message"),
    [
        (PCA(5), "PCA could not be fitted to 50 rows of 2 columns"),
        (FunctionTransformer(lambda X: X[:10]), "must return one point per row; got shape"),
        (FunctionTransformer(lambda X: X.sum()), r"must return one point per row; got shape \(\)"),
        (FunctionTransformer(lambda X: X * np.nan), "the output of FunctionTransformer must be finite"),
    ],
)
def test_invalid_transformer_output_is_rejected(transformer, message):
    data = plane(50)
    with pytest.raises((ArgumentError, DataError), match=message):
        tu.LoRe("p", ["a", "b"], embedding=transformer).fit(data, data["y"])


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("own", "message"),
    [
        ({"gamma": 0}, 'gamma must be a number at least 1e-06 and at most 1e\\+06; got 0\nhint: "auto" chooses it'),
        ({"gamma": "best"}, "gamma must be .* got 'best'"),
        ({"gamma": math.nan}, "gamma must be"),
        ({"gamma": True}, "gamma must be"),
        ({"shrinkage": -1}, "shrinkage must be"),
        ({"shrinkage": math.inf}, "shrinkage must be"),
        ({"move": "jump"}, "move"),
        ({"strategy": "equal"}, "strategy"),
        ({"closed": "both"}, "closed must be one of"),
        ({"kernel": "cosine"}, "kernel must be one of"),
        ({"kernel": "gaussian", "embedding": "groups"}, "groups have no distances"),
        ({"bins": 0}, "bins must be an integer from 1 to 4,096; got 0"),
        ({"bins": "many"}, "bins must be"),
        ({"components": 0}, "components must be"),
        ({"embedding": "umap"}, "embedding"),
        ({"embedding": PCA}, "embedding must be .*\nhint: write it as embedding=PCA"),
        ({"embedding": 7}, "embedding must be"),
        ({"embedding": "columns", "features": ["country"]}, "column 'country' is categorical"),
        ({"task": "regression"}, "LoRe corrects probabilities: it has no meaning for task='regression'"),
    ],
)
def test_invalid_parameters_are_rejected(own, message):
    data = rows(n=60)
    with pytest.raises(ArgumentError, match=message):
        tu.LoRe(**{"prediction": "p", "features": ["age"]} | own).fit(data, data["y"])


def test_too_few_rows_are_rejected():
    data = plane(9)
    with pytest.raises(DataError, match="9 rows are too few"):
        tu.LoRe("p", ["a"]).fit(data, data["y"])


def test_too_large_design_matrices_are_rejected(monkeypatch):
    monkeypatch.setattr(estimator, "MAX_NUMBERS", 500)
    data = rows(n=100)
    with pytest.raises(ArgumentError, match="100 rows and 8 columns, one per category, is too large"):
        tu.LoRe("p", ["country", "new", "day"]).fit(data, data["y"])


def test_too_large_decompositions_are_rejected(monkeypatch):
    monkeypatch.setattr(estimator, "MAX_PCA_SIZE", 7)
    data = rows(n=100)
    with pytest.raises(ArgumentError, match="100 rows and 8 columns, one per category, is too large"):
        tu.LoRe("p", ["country", "new", "day"]).fit(data, data["y"])
    assert tu.LoRe("p", ["country", "new", "day"], components=None, gamma=0.4).fit(data, data["y"]).gamma_ == 0.4


def test_without_a_gpu_a_fit_on_one_is_that_of_the_cpu(monkeypatch):
    class Torch:
        class cuda:  # noqa: N801
            is_available = staticmethod(lambda: False)

    monkeypatch.setitem(sys.modules, "torch", Torch)
    data = rows(n=400)
    given = {"prediction": "p", "features": FEATURES, "gamma": 0.4}
    expected = tu.LoRe(**given).fit(data, data["y"]).predict(data)
    for device in ("auto", "cuda"):
        fix = tu.LoRe(**given, device=device)
        with pytest.warns(TrueupWarning, match="torch finds no GPU") if device == "cuda" else contextlib.nullcontext():
            assert (fix.fit(data, data["y"]).predict(data) == expected).all()
        assert fix.model_.map.device == device
    with pytest.raises(ArgumentError, match="device must be one of"):
        tu.LoRe(**given, device="gpu").fit(data, data["y"])
    with pytest.raises(ArgumentError, match="the GPU sums the Laplace kernel only"):
        tu.LoRe(**given, kernel="gaussian", device="cuda").fit(data, data["y"])
