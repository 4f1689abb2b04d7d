"""Grouped: a curve per group, shrunk towards the pooled curve."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import trueup as tu
from checks import CLASSES, rows
from trueup.errors import ArgumentError, ClusterWarning, UnseenWarning

METHODS = [tu.Platt, tu.Temperature, tu.Beta, tu.Isotonic, tu.Histogram]
PROBABILITIES = [f"p_{name}" for name in CLASSES]


def expit(x):
    return 1 / (1 + np.exp(-x))


def population(n=3000, groups=4, spread=1.0, seed=0):
    """Make groups of very different sizes, each with its own shift."""
    random = np.random.default_rng([seed, 8])
    share = 1 / np.arange(1, groups + 1)
    g = random.choice(groups, n, p=share / share.sum())
    F, shift = random.normal(size=n), spread * random.normal(size=groups)
    y = (random.random(n) < expit(F + shift[g])).astype(float)
    return {"p": expit(F), "g": np.array([f"g{one}" for one in g], object), "truth": expit(F + shift[g])}, y


def some(data, inside):
    return {name: column[inside] for name, column in data.items()}


# ------------------------------------------------------------------ own and pooled curves


@pytest.mark.parametrize("kind", METHODS)
def test_shrinkage_of_zero_fits_groups_alone_and_infinity_pools_them(kind):
    data, y = population()
    own = tu.Grouped(kind(), by="g", prediction="p", shrinkage=0).fit(data, y)
    whole = tu.Grouped(kind(), by="g", prediction="p", shrinkage=np.inf).fit(data, y)
    assert whole.predict(data).tobytes() == kind("p").fit(data, y).predict(data).tobytes()
    for group in np.unique(data["g"]):
        inside = data["g"] == group
        alone = kind("p").fit(some(data, inside), y[inside])
        np.testing.assert_allclose(own.predict(data)[inside], alone.predict(data)[inside], rtol=1e-9, atol=1e-12)


def test_shrinkage_mixes_own_and_pooled_curve_by_rows():
    data, y = population()
    own, mixed, whole = (
        tu.Grouped(tu.Isotonic(), by="g", prediction="p", shrinkage=k).fit(data, y).predict(data) for k in (0, 80, np.inf)
    )
    n = np.array([np.sum(data["g"] == group) for group in data["g"]])
    np.testing.assert_allclose(mixed, (n * own + 80 * whole) / (n + 80), atol=1e-12)


def test_weighted_groups_count_effective_rows():
    data, y = population()
    weight = np.random.default_rng(0).uniform(0.2, 3, len(y))
    own, mixed, whole = (
        tu.Grouped(tu.Histogram(), by="g", prediction="p", shrinkage=k).fit(data, y, weight).predict(data)
        for k in (0, 80, np.inf)
    )
    for group in np.unique(data["g"]):
        inside = data["g"] == group
        w = weight[inside]
        n = w.sum() ** 2 / (w**2).sum()
        np.testing.assert_allclose(mixed[inside], (n * own[inside] + 80 * whole[inside]) / (n + 80), atol=1e-12)


def test_several_classes_and_real_outcomes_are_supported():
    for task, names in (("multiclass", PROBABILITIES), ("regression", ["p"])):
        data = rows(task)
        own = {"task": "regression"} if task == "regression" else {}
        for kind in (tu.Platt, tu.Isotonic, tu.Histogram, *([tu.Temperature, tu.Beta] if task == "multiclass" else [])):
            fix = tu.Grouped(kind(), by=["country"], prediction=names, shrinkage=0, min_rows=20, **own).fit(data, data["y"])
            inside = data["country"] == "BR"
            part = some(data, inside)
            alone = kind(prediction=names, **own).fit(part, part["y"])
            np.testing.assert_allclose(fix.predict(part), alone.predict(part), rtol=1e-9, atol=1e-12)


# ------------------------------------------------------------------ groups


def test_small_and_unseen_groups_use_the_pooled_curve():
    data, y = population(groups=6)
    random = np.random.default_rng(1)
    data["h"] = np.where(data["g"] == "g0", "a", np.array(["a", "b"], object)[random.integers(0, 2, len(y))])
    fix = tu.Grouped(tu.Platt(), by=["g", "h"], prediction="p", shrinkage=0, min_rows=150).fit(data, y)
    whole = tu.Platt("p").fit(data, y).predict(data)
    found, moved = fix.predict(data), []
    for g in np.unique(data["g"]):
        for h in "ab":
            inside = (data["g"] == g) & (data["h"] == h)
            if inside.any():
                assert (found[inside] == whole[inside]).all() == (inside.sum() < 150)
                moved += [f"g={g} & h={h}"] if inside.sum() >= 150 else []
    assert fix.groups_ == tuple(moved)
    never = data | {"g": np.full(len(y), "g0", object), "h": np.full(len(y), "b", object)}
    np.testing.assert_array_equal(fix.predict(never), whole)


def test_missing_and_unseen_levels_are_one_group():
    data, y = population()
    data["g"] = np.where(data["g"] == "g1", None, data["g"])
    fix = tu.Grouped(tu.Platt(), by="g", prediction="p", shrinkage=0).fit(data, y)
    assert fix.groups_[-1] == "g is missing"
    gone = data["g"] == None  # noqa: E711
    alone = tu.Platt("p").fit(some(data, gone), y[gone])
    np.testing.assert_allclose(fix.predict(data)[gone], alone.predict(data)[gone], rtol=1e-9)
    with pytest.warns(UnseenWarning):
        found = fix.predict(data | {"g": np.full(len(y), "never", object)})
    np.testing.assert_allclose(found, alone.predict(data), rtol=1e-9)


def test_numbers_and_dates_are_binned_and_may_be_missing():
    random = np.random.default_rng(2)
    n = 4000
    F, age = random.normal(size=n), random.uniform(18, 80, n)
    age[random.random(n) < 0.1] = np.nan
    day = np.datetime64("2024-01-01") + random.integers(0, 300, n)
    y = (random.random(n) < expit(F + np.where(age > 49, 1.0, -1.0))).astype(float)
    data = {"p": expit(F), "age": age, "day": day}
    fix = tu.Grouped(tu.Platt(), by=["age", "day"], prediction="p", bins=2, shrinkage=0).fit(data, y)
    assert len(fix.groups_) == 6
    assert fix.groups_[0].startswith("age<")
    assert "age is missing & day>=2024-" in fix.groups_[-1]
    old = np.nan_to_num(age) > 50
    assert (fix.predict(data) - data["p"])[old].mean() > 0.1
    ones = np.array([fix.predict_one({name: data[name][i] for name in data}) for i in range(200)])
    assert ones.tobytes() == fix.predict(some(data, slice(200))).tobytes()


def test_thousands_of_groups_are_fitted():
    data, y = population(60_000, groups=2500, spread=0.5)
    with pytest.warns(ClusterWarning):
        fix = tu.Grouped(tu.Isotonic(), by="g", prediction="p", shrinkage=50, min_rows=3).fit(data, y)
    assert len(fix.groups_) > 1900
    assert np.isfinite(fix.predict(data)).all()


# ------------------------------------------------------------------ the choice of shrinkage


def task_loss(p, truth):
    p = np.clip(p, 1e-6, 1 - 1e-6)
    return -np.mean(truth * np.log(p) + (1 - truth) * np.log1p(-p))


@pytest.mark.parametrize(("spread", "groups"), [(0.0, 30), (0.3, 30), (2.0, 5)])
def test_chosen_shrinkage_is_nearly_as_good_as_the_best_extreme(spread, groups):
    chosen, lost, won = [], [], []
    for seed in range(4):
        data, y = population(4000, groups, spread, seed)
        make = lambda k: tu.Grouped(tu.Platt(), by="g", prediction="p", min_rows=20, shrinkage=k)  # noqa: E731
        fix = make("auto").fit(data, y)
        chosen.append(fix.shrinkage_)
        ends = [task_loss(make(k).fit(data, y).predict(data), data["truth"]) for k in (0, np.inf)]
        lost.append(task_loss(fix.predict(data), data["truth"]) - min(ends))
        won.append(min(ends) - task_loss(fix.predict(data), data["truth"]))
    assert np.mean(lost) < 0.001
    if spread == 0:
        assert np.median(chosen) >= 1000
    elif spread == 2:
        assert np.median(chosen) <= 30
    else:
        assert np.mean(won) > 0
        assert all(0 < k < np.inf for k in chosen)


def test_chosen_shrinkage_is_saved(tmp_path):
    data, y = population()
    fix = tu.Grouped(tu.Platt(), by="g", prediction="p").fit(data, y)
    tu.save(fix, tmp_path / "grouped")
    assert tu.load(tmp_path / "grouped").map.shrinkage == fix.shrinkage_
    assert fix.model_.about.parameters["calibrator"] == "Platt()"


# ------------------------------------------------------------------ stopping rules and explanations


def test_stopping_rule_keeps_only_improvements():
    for spread, chosen in ((1.5, 1), (0.0, 0)):
        data, y = population(spread=spread)
        for stopping in (tu.CrossValidation(3), tu.Holdout(0.4)):
            fix = tu.Grouped(tu.Platt(), by="g", prediction="p", stopping=stopping).fit(data, y)
            assert fix.history_.chosen == chosen
            if not chosen:
                assert (fix.shrinkage_, fix.groups_) == (np.inf, ())
                np.testing.assert_array_equal(fix.predict(data), data["p"])


def test_explanation_has_pooled_and_group_contributions():
    data, y = population()
    fix = tu.Grouped(tu.Isotonic(), by="g", prediction="p", shrinkage=10).fit(data, y)
    found = fix.explain({"p": 0.4, "g": "g2"})
    assert sorted(part.condition.split(" (")[0] for part in found.contributions) == ["all rows", "g=g2"]
    assert sum(part.change for part in found.contributions) == pytest.approx(found.link_change)
    small = tu.Grouped(tu.Isotonic(), by="g", prediction="p", min_rows=10_000).fit(data, y)
    assert [part.condition for part in small.explain({"p": 0.4, "g": "g2"}).contributions] == ["all rows"]
    assert small.model_.map.describe().startswith("a pooled curve and 0 group curves")


def test_corrections_name_groups():
    data, y = population(6000, spread=2.0)
    fix = tu.Grouped(tu.Platt(), by="g", prediction="p").fit(data, y)
    assert any("g=g" in one.segment for one in fix.explain().corrections)


# ------------------------------------------------------------------ errors


def test_a_logistic_regression_per_group_is_that_of_its_rows():
    loans = tu.simulate.lending(3_000, seed=0)
    for features in (["age"], ["age", "region"]):
        inner = tu.Logistic(features=features)
        own = tu.Grouped(inner, by="region", prediction="prediction", shrinkage=0, min_rows=1).fit(loans, loans["outcome"])
        whole = tu.Grouped(inner, by="region", prediction="prediction", shrinkage=np.inf).fit(loans, loans["outcome"])
        half = tu.Grouped(
            inner, by="region", prediction="prediction", shrinkage=(loans["region"] == "east").sum(), min_rows=1
        )
        half.fit(loans, loans["outcome"])
        pooled = tu.Logistic("prediction", features, stopping=None).fit(loans, loans["outcome"])
        np.testing.assert_allclose(whole.predict(loans), pooled.predict(loans), rtol=1e-9)
        rows = {name: column[loans["region"] == "east"] for name, column in loans.items()}
        alone = tu.Logistic("prediction", features, stopping=None).fit(rows, rows["outcome"])
        np.testing.assert_allclose(own.predict(rows), alone.predict(rows), atol=1e-9)
        mean = (own.predict(rows) + pooled.predict(rows)) / 2
        np.testing.assert_allclose(half.predict(rows), mean, atol=1e-9)
    rows = {name: column[:40] for name, column in rows.items()} | {"region": np.full(40, "new")}
    np.testing.assert_allclose(own.predict(rows), pooled.predict(rows), rtol=1e-9)


def test_regressions_of_groups_have_all_other_columns_as_features_by_default():
    loans = {name: tu.simulate.lending(2_000, seed=0)[name] for name in ("region", "age", "prediction", "outcome")}
    fix = tu.Grouped(tu.Logistic(), by="region", prediction="prediction", shrinkage=50).fit(loans, "outcome")
    assert fix.model_.map.describe() == "a pooled regression and 12 group regressions on the logit and 2 features"
    assert len(fix.groups_) == 12
    assert fix.shrinkage_ == 50
    assert any(" & " not in one.segment for one in fix.explain().corrections)


def test_positions_of_an_array_name_groups_and_features():
    random = np.random.default_rng(0)
    X = np.column_stack([random.uniform(0.1, 0.9, 400), random.integers(0, 3, 400), random.normal(size=400)])
    y = random.random(400) < X[:, 0]
    fix = tu.Grouped(tu.Logistic(features=[2]), by=[1], prediction=0, min_rows=20, shrinkage=20).fit(X, y)
    named = tu.Grouped(tu.Logistic(features=["c"]), by=["b"], prediction="a", min_rows=20, shrinkage=20)
    frame = dict(zip("abc", X.T, strict=True))
    np.testing.assert_array_equal(fix.predict(X), named.fit(frame, y).predict(frame))
    assert len(fix.groups_) == 3
    with pytest.raises(ArgumentError, match="cannot tell which column is meant by -1\nhint: count positions from 0 on"):
        tu.Grouped(tu.Logistic(features=[-1]), by=[1], prediction=0).fit(X, y)


def test_a_calibrated_classifier_takes_regressions_of_groups():
    pandas = pytest.importorskip("pandas")
    from sklearn.linear_model import LogisticRegression

    X = pandas.DataFrame(tu.simulate.lending(1_500, seed=0))[["age", "term", "outcome"]]
    y = X.pop("outcome")
    inner = tu.Grouped(tu.Logistic(features=["age"]), by=["term"], shrinkage=100)
    model = tu.CalibratedClassifier(LogisticRegression(), inner, cv=2).fit(X, y)
    assert [feature.name for feature in model.calibrator_.model_.schema.features] == ["term", "age"]
    np.testing.assert_allclose(model.predict_proba(X).mean(axis=0)[1], y.mean(), atol=0.01)


def test_regressions_of_groups_need_one_probability_and_few_levels():
    random = np.random.default_rng(0)
    P = random.dirichlet(np.ones(3), 90)
    with pytest.raises(ArgumentError, match="Logistic corrects one prediction column; got 3"):
        tu.Grouped(tu.Logistic(features=[]), by=[], prediction=[0, 1, 2]).fit(P, random.integers(0, 3, 90))
    data, y = population(200)
    with pytest.raises(ArgumentError, match="Logistic corrects probabilities"):
        tu.Grouped(tu.Logistic(features=[]), by="g", prediction="p", task="regression").fit(data, y)
    for inner, name in (
        (tu.Logistic(features=[], stopping=None), "stopping"),
        (tu.Logistic(features=["g"], categorical=["g"]), "categorical"),
    ):
        with pytest.raises(ArgumentError, match=f"calibrator must not set {name}"):
            tu.Grouped(inner, by="g", prediction="p").fit(data, y)


def test_calibrators_with_roles_are_rejected():
    data, y = population(200)
    for inner, name in [
        (tu.Platt("p"), "prediction"), (tu.Platt(task="regression"), "task"), (tu.Platt(unlabelled="drop"), "unlabelled"),
        (tu.Platt(stopping=tu.Holdout()), "stopping"), (tu.Platt(classes=[1, 2]), "classes"),
    ]:  # fmt: skip
        with pytest.raises(ArgumentError, match=rf"calibrator must not set {name}.*\nhint: pass {name}= to Grouped"):
            tu.Grouped(inner, by="g", prediction="p").fit(data, y)
    for inner in (tu.MCGrad(), tu.Platt, None, tu.Grouped(tu.Platt(), by="g")):
        with pytest.raises(ArgumentError, match="calibrator must be a curve of the score"):
            tu.Grouped(inner, by="g", prediction="p").fit(data, y)
    with pytest.raises(ArgumentError, match="Beta corrects probabilities"):
        tu.Grouped(tu.Beta(), by="g", prediction="p", task="regression").fit(data, y)
    with pytest.raises(ArgumentError, match="bins must be an integer"):
        tu.Grouped(tu.Histogram(bins=0), by="g", prediction="p").fit(data, y)


def test_by_is_required():
    data, y = population(200)
    with pytest.raises(ArgumentError, match=r"by must name the columns.*\nhint: write it as by="):
        tu.Grouped(tu.Platt(), by=None, prediction="p").fit(data, y)


def test_too_many_combinations_are_rejected():
    random = np.random.default_rng(0)
    n = 2000
    data = {f"c{at}": random.integers(0, 300, n).astype(str).astype(object) for at in range(8)}
    data["p"] = random.random(n)
    with pytest.raises(ArgumentError, match="the 8 columns that form groups have too many combinations"):
        tu.Grouped(tu.Platt(), by=[f"c{at}" for at in range(8)], prediction="p").fit(data, random.integers(0, 2, n))


def test_inner_calibrator_is_not_modified_and_has_nested_parameters():
    data, y = population(400)
    inner = tu.Histogram(bins=3)
    fix = tu.Grouped(inner, by="g", prediction="p", shrinkage=0).fit(data, y)
    assert not hasattr(inner, "model_")
    assert fix.set_params(calibrator__bins=7).calibrator.bins == 7


def test_history_describes_groups_and_shrinkage():
    data = rows(n=700)
    for own, said in (
        ({"shrinkage": 50}, "groups of at least 50 rows are shrunk towards the pooled curve by 50 rows"),
        ({"shrinkage": np.inf}, "groups of at least 50 rows use the pooled curve"),
        ({"min_rows": 701}, "no group has 701 rows: all use the pooled curve"),
        ({}, "(by cross-validation)"),
    ):
        fix = tu.Grouped(tu.Platt(), by=["country"], prediction="p", **own).fit(data, data["y"])
        assert said in fix.history_.reason


def test_predictions_of_single_rows_do_not_enlarge_a_pickle():
    data, y = population()
    model = tu.Grouped(tu.Platt(), by="g", prediction="p").fit(data, y).model_
    before = len(pickle.dumps(model))
    model.predict_one({"p": 0.3, "g": "g1"})
    assert len(pickle.dumps(model)) == before
