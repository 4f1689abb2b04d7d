"""Scores of the user's in stopping rules, training losses, the time limit and importances of features."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV

import trueup as tu
from checks import FEATURES, rows
from trueup.calibrators import scoring
from trueup.calibrators.mcgrad import estimator, grower
from trueup.calibrators.scoring import RuleScore, score_name
from trueup.data.simulate import Shift, population
from trueup.errors import ArgumentError
from trueup.metrics import brier, ece, log_loss


def segment_data(rows=4000, seed=1, shift=1.5):
    return population(rows, seed, levels=(4, 3), shifts=[Shift({"c0": "c0_0"}, shift)])


def fit(data, stopping, method=tu.MCGrad, **own):
    return method("prediction", ["c0", "c1"], stopping=stopping, threads=1, **own).fit(data, data["outcome"])


def log_loss_score(y, p, weight):
    return float(np.average(-(y * np.log(p) + (1 - y) * np.log1p(-p)), weights=weight))


def constant(y, p, weight):
    return 1.0


# ------------------------------------------------------------------ the score


def test_values_of_groups_have_the_score_as_mean_and_the_jackknife_error():
    random = np.random.default_rng(0)
    n, groups = 600, 12
    y, p, w = (random.random(n) < 0.3).astype(float), random.uniform(0.1, 0.6, n), random.uniform(0.5, 2, n)
    group = random.integers(0, groups, n)
    score = RuleScore(brier, y, w, group)
    values = score.values(p)
    assert values.mean() == pytest.approx(brier(y, p, w), rel=1e-12)
    without = np.array([brier(y[group != g], p[group != g], w[group != g]) for g in range(groups)])
    variance = (groups - 1) / groups * ((without - without.mean()) ** 2).sum()  # the textbook formula
    assert values.var(ddof=1) / groups == pytest.approx(variance, rel=1e-10)
    assert score.name == "brier"


def test_the_jackknife_error_of_a_mean_is_close_to_that_of_the_rows():
    data = segment_data(6000)
    by_loss = fit(data, tu.CrossValidation(3))
    by_score = fit(data, tu.CrossValidation(3, score=log_loss_score))
    assert by_score.history_.chosen == by_loss.history_.chosen
    for own, other in zip(by_score.history_.rounds, by_loss.history_.rounds, strict=False):
        assert own.loss == pytest.approx(other.loss, rel=1e-12)
        assert own.error == pytest.approx(other.error, rel=0.5)  # 40 groups estimate it to 1 / sqrt(2 * 39) = 11%
    assert by_score.history_.measure == "log_loss_score"
    assert "held-out log_loss_score" in by_score.history_.reason
    np.testing.assert_array_equal(by_score.predict(data), by_loss.predict(data))


@pytest.mark.parametrize("method", [tu.MCGrad, tu.LSBoost, tu.Logistic], ids=lambda kind: kind.__name__)
def test_a_score_that_sees_no_gain_keeps_no_round(method):
    data = segment_data()
    own = {} if method is tu.Logistic else {"threads": 1}
    fix = method("prediction", ["c0", "c1"], stopping=tu.Holdout(0.3, score=constant), **own).fit(data, data["outcome"])
    assert fix.history_.chosen == 0
    assert [round_.loss for round_ in fix.history_.rounds] == [1.0] * len(fix.history_.rounds)
    np.testing.assert_array_equal(fix.predict(data), data["prediction"])


@pytest.mark.parametrize("method", [tu.MCGrad, tu.LSBoost, tu.Logistic], ids=lambda kind: kind.__name__)
def test_rounds_that_lower_the_score_are_kept(method):
    data = segment_data(6000)

    def segment_error(y, p, weight):
        return abs(float(np.average(y - p, weights=weight)))

    own = {} if method is tu.Logistic else {"threads": 1}
    fix = method("prediction", ["c0", "c1"], stopping=tu.CrossValidation(3, score=segment_error), **own)
    fix = fix.fit(data, data["outcome"])
    assert fix.history_.chosen > 0
    assert fix.history_.loss_after < fix.history_.loss_before / 2
    assert fix.history_.measure == "segment_error"


def test_the_score_gets_all_held_out_rows_with_their_weights():
    data, seen = segment_data(), []
    weight = np.random.default_rng(0).uniform(0.5, 2, 4000)

    def score(y, p, w):
        seen.append((len(y), w.sum()))
        return brier(y, p, w)

    rule = tu.CrossValidation(4, score=score)
    tu.MCGrad("prediction", ["c0"], stopping=rule, threads=1).fit(data, data["outcome"], sample_weight=weight)
    held_out = [(count, mass) for count, mass in seen if count == 4000]
    assert held_out  # the base score and each round
    assert all(mass == pytest.approx(held_out[0][1]) for _, mass in held_out)
    plain = []
    rule = tu.Holdout(0.25, score=lambda y, p, w: plain.append(set(w.tolist())) or brier(y, p, w))
    assert fit(data, rule).history_.measure == "score"
    assert set.union(*plain) == {1.0}


def test_a_validation_set_and_classes_are_scored():
    data, held = segment_data(3000), segment_data(2000, seed=2)
    fix = fit(data, tu.Validation(held, held["outcome"], score=brier))
    assert fix.history_.measure == "brier"
    assert fix.history_.loss_before == pytest.approx(brier(held["outcome"], held["prediction"]), rel=1e-12)
    several, shapes = rows("multiclass", 900), set()

    def top_error(y, p, weight):
        shapes.add(p.shape[1])
        return 1 - float(np.average(p[np.arange(len(y)), y.astype(int)], weights=weight))

    rule = tu.CrossValidation(2, score=top_error)
    tu.MCGrad(["p_cat", "p_dog", "p_owl"], FEATURES, stopping=rule, threads=1, trees=10).fit(several, several["y"])
    assert shapes == {3}


def test_false_alarms_of_a_score_are_rare():
    kept = 0
    for seed in range(25):
        data = population(1500, seed, levels=(4, 3))  # calibrated
        kept += fit(data, tu.CrossValidation(2, score=brier), depth=2, trees=20).history_.chosen > 0
    assert kept <= 4  # two standard errors and more are needed: 2.5% of 25, and three standard deviations of that


def test_order_of_the_rows_does_not_matter_to_the_groups():
    data = segment_data(2000)
    order = np.random.default_rng(0).permutation(2000)
    shuffled = {name: column[order] for name, column in data.items()}
    first, second = (fit(own, tu.CrossValidation(2, score=ece), depth=2, trees=10).history_ for own in (data, shuffled))
    for own, other in zip(first.rounds, second.rounds, strict=True):
        assert (own.loss, own.error) == pytest.approx((other.loss, other.error), rel=1e-6)


def test_rules_with_a_score_are_parameters_like_others(tmp_path):
    data = segment_data(1500)
    rule = tu.CrossValidation(2, score=brier)
    fix = tu.MCGrad("prediction", ["c0", "c1"], stopping=rule, threads=1, depth=2, trees=20)
    assert clone(fix).stopping == rule
    search = GridSearchCV(fix, {"stopping": [rule, tu.CrossValidation(2)]}, cv=2)
    import pandas as pd

    frame = pd.DataFrame(data)
    search.fit(frame, frame["outcome"])
    assert search.best_params_["stopping"] in (rule, tu.CrossValidation(2))
    fitted = fix.fit(data, data["outcome"])
    assert fitted.model_.about.parameters["stopping"]["CrossValidation"]["score"] == "brier"
    tu.save(fitted, tmp_path / "m.trueup")
    again = tu.load(tmp_path / "m.trueup")
    assert again.history == fitted.history_
    assert again.history.measure == "brier"


def test_auto_takes_methods_with_a_score():
    data = segment_data(3000)
    method = tu.MCGrad(stopping=tu.CrossValidation(3, score=brier), trees=30, depth=2)
    fix = tu.Auto("prediction", ["c0", "c1"], methods=["identity", "platt", method], folds=3, threads=1)
    fix.fit(data, data["outcome"])
    assert fix.choice_.method == "mcgrad"
    assert fix.history_.measure == "brier"
    assert fix.feature_importances_.sum() == pytest.approx(1.0)


@pytest.mark.parametrize("score", ["brier", 3, float, tu.Platt])
def test_a_score_must_be_a_function(score):
    for make in (tu.CrossValidation, tu.Holdout, lambda score: tu.Validation({"p": [0.5]}, [1], score=score)):
        with pytest.raises(ArgumentError, match="score must be a function of outcomes, scores and weights; got"):
            make(score=score)


@pytest.mark.parametrize("value", [float("nan"), None, "low", np.array([1.0, 2.0])], ids=str)
def test_a_score_must_return_a_finite_number(value):
    def bad(y, p, weight):
        return value

    data = segment_data(500)
    with pytest.raises(ArgumentError, match=r"the score bad of a stopping rule must return a finite number; got .* rows"):
        fit(data, tu.Holdout(0.3, score=bad))


@pytest.mark.parametrize("method", [tu.HKRR, tu.Multiaccuracy, tu.DepthTwo], ids=lambda kind: kind.__name__)
def test_methods_that_cannot_use_a_score_refuse_it(method):
    fix = method("prediction", ["c0", "c1"], stopping=tu.CrossValidation(2, score=brier))
    data = segment_data(500)
    rule = f"{method.__name__} cannot use the score of a stopping rule: its search minimises its own loss"
    with pytest.raises(ArgumentError, match=rule):
        fix.fit(data, data["outcome"])


def test_algorithm_1_has_no_rule_and_refuses_its_score():
    data = segment_data(500)
    fix = tu.LSBoost(prediction="prediction", features=["c0"], alpha=0.1, stopping=tu.CrossValidation(2, score=brier))
    with pytest.raises(ArgumentError, match=r"LSBoost\(alpha=...\) cannot use the score of a stopping rule"):
        fix.fit(data, data["outcome"])


def test_rows_in_files_refuse_a_score(tmp_path):
    data = segment_data(500)
    path = tmp_path / "rows.csv"
    names = ["c0", "c1", "prediction", "outcome"]
    lines = [",".join(names), *(",".join(map(str, row)) for row in zip(*(data[name] for name in names), strict=True))]
    path.write_text("\n".join(lines))
    fix = tu.MCGrad("prediction", ["c0", "c1"], stopping=tu.Holdout(0.2, score=brier))
    with pytest.raises(
        ArgumentError, match="rows in files cannot use the score of a stopping rule: it needs all held-out rows"
    ):
        fix.fit(tu.scan(str(path)), "outcome")


def test_scores_have_the_name_of_their_function():
    from functools import partial

    class Score:
        def __call__(self, y, p, weight):
            return 0.0

    assert [score_name(own) for own in (brier, lambda y, p, w: 0.0, partial(ece, n_bins=5), Score())] == [
        "brier", "score", "ece", "Score",
    ]  # fmt: skip
    assert scoring.evaluate(lambda y, p, w: np.float32(0.5), np.zeros(1), np.zeros(1), np.ones(1)) == 0.5


# ------------------------------------------------------------------ training losses


def test_training_losses_are_those_of_the_rows_that_models_were_trained_on():
    data, held = segment_data(3000), segment_data(1500, seed=2)
    fix = fit(data, tu.Validation(held, held["outcome"]), depth=2)
    stages = [log_loss(data["outcome"], p) for p in fix.staged_predict(data)]
    recorded = [round_.training_loss for round_ in fix.history_.rounds if round_.kept]
    np.testing.assert_allclose(recorded, stages, rtol=1e-9)
    np.testing.assert_allclose(fix.history_.to_frame()["training_loss"][: len(stages)], stages, rtol=1e-9)
    assert "training" in repr(fix.history_)
    plain = fit(data, None, rounds=2, trees=5)
    assert [own.training_loss for own in plain.history_.rounds] == pytest.approx(
        [own.loss for own in plain.history_.rounds]
    )


def test_training_losses_of_folds_are_averaged():
    data = segment_data(3000)
    weight = np.random.default_rng(0).uniform(0.5, 2, 3000)
    fix = tu.MCGrad("prediction", ["c0", "c1"], stopping=tu.CrossValidation(3), threads=1)
    fix.fit(data, data["outcome"], sample_weight=weight)
    first, *later = fix.history_.rounds
    assert first.training_loss == pytest.approx(first.loss, rel=0.01)  # the same rows, fold by fold
    kept = [own for own in later if own.kept]
    assert all(own.training_loss < own.loss for own in kept)


def test_training_losses_of_level_sets_are_recorded():
    data, held = segment_data(5000), segment_data(1500, seed=2)
    fix = tu.LSBoost("prediction", ["c0", "c1"], stopping=tu.Validation(held, held["outcome"]), threads=1)
    fix.fit(data, data["outcome"])
    stages = [log_loss(data["outcome"], p) for p in fix.staged_predict(data)]
    np.testing.assert_allclose([own.training_loss for own in fix.history_.rounds][: len(stages)], stages, rtol=1e-9)


# ------------------------------------------------------------------ importances


def test_the_feature_with_the_error_is_the_most_important():
    data = population(6000, 1, levels=(4, 3), numeric=1, shifts=[Shift({"c1": "c1_0"}, 1.5)])
    fix = tu.MCGrad("prediction", ["c0", "c1", "x0"], threads=1).fit(data, data["outcome"])
    assert fix.feature_names_in_.tolist() == ["c0", "c1", "x0", "prediction"]
    assert fix.feature_importances_.argmax() == 1
    assert fix.feature_importances_.sum() == pytest.approx(1.0)
    assert (fix.feature_importances_ >= 0).all()
    calm = population(2000, 1, levels=(4, 3))
    fix.fit(calm | {"x0": np.zeros(2000)}, calm["outcome"])
    assert fix.history_.chosen == 0
    assert fix.feature_importances_.tolist() == [0.0] * 4


def test_importances_are_the_gains_of_the_splits():
    # One tree with one split, on x: all gain is that of x.
    x = np.repeat([0.0, 1.0], 500)
    y = (np.random.default_rng(0).random(1000) < np.where(x < 0.5, 0.8, 0.3)).astype(int)
    fix = tu.MCGrad("p", ["x", "z"], stopping=None, trees=1, leaves=2, feature_fraction=1.0, threads=1)
    fix.fit({"x": x, "z": np.zeros(1000), "p": np.full(1000, 0.5)}, y)
    assert fix.feature_importances_.tolist() == [1.0, 0.0, 0.0]
    # Without features, only the score can be split.
    alone = tu.MCGrad("p", [], stopping=None, trees=5, threads=1).fit({"p": np.linspace(0.1, 0.9, 1000)}, y)
    assert alone.feature_importances_.tolist() == [1.0]
    assert not hasattr(tu.Platt("p").fit({"p": np.linspace(0.1, 0.9, 1000)}, y), "feature_importances_")


def test_importances_survive_an_interrupted_fit(tmp_path, monkeypatch):
    data = segment_data(2000)
    own = {"stopping": tu.Holdout(0.3), "resume": tmp_path / "rounds"}
    whole = fit(data, tu.Holdout(0.3))
    fix = tu.MCGrad("prediction", ["c0", "c1"], threads=1, **own)
    original = grower.CascadeGrower._training_loss
    calls = itertools.count()

    def fail_later(self, thetas):
        if next(calls) == 2:
            raise RuntimeError("interrupted")
        return original(self, thetas)

    monkeypatch.setattr(grower.CascadeGrower, "_training_loss", fail_later)
    with pytest.raises(RuntimeError, match="interrupted"):
        fix.fit(data, data["outcome"])
    monkeypatch.undo()
    again = fix.fit(data, data["outcome"])
    assert again.history_ == whole.history_
    np.testing.assert_array_equal(again.feature_importances_, whole.feature_importances_)


# ------------------------------------------------------------------ the time limit


class Clock:
    """A clock that advances by a step at each reading."""

    def __init__(self, step):
        self.time, self.step = 0.0, step

    def __call__(self):
        self.time += self.step
        return self.time


@pytest.fixture
def clock(monkeypatch):
    def install(step):
        own = Clock(step)
        for module in (grower, estimator):
            monkeypatch.setattr(module, "now", own)

    return install


def test_a_fit_without_time_keeps_the_scores(clock):
    clock(1.0)
    data = segment_data(2000)
    fix = fit(data, tu.Holdout(0.3), time_limit=0.5)
    assert fix.history_.stopped == "the time limit of 0.5 s ended the fit: the best rounds so far are kept"
    assert fix.history_.reason == "the time limit ended the fit before the first round; scores are left unchanged"
    assert "the time limit of 0.5 s ended the fit" in repr(fix.history_)
    np.testing.assert_array_equal(fix.predict(data), data["prediction"])


def test_the_time_limit_ends_the_growth_of_trees(clock):
    data = segment_data(4000)
    full = fit(data, tu.Holdout(0.3), depth=2, learning_rate=0.02)
    clock(1.0)
    fix = fit(data, tu.Holdout(0.3), depth=2, learning_rate=0.02, time_limit=6.5)
    trees = [own.trees for own in fix.history_.rounds if own.trees]
    assert trees
    assert max(trees) < max(own.trees for own in full.history_.rounds)
    assert fix.history_.chosen > 0
    assert fix.history_.loss_after < fix.history_.loss_before
    assert fix.history_.stopped
    assert full.history_.stopped == ""


@pytest.mark.parametrize("stopping", [None, tu.CrossValidation(2, refit=True), tu.CrossValidation(2)], ids=str)
def test_every_rule_has_a_time_limit(clock, stopping, tmp_path):
    clock(1.0)
    data = segment_data(2000)
    rounds = {"rounds": 3, "trees": 50} if stopping is None else {"learning_rate": 0.02}
    fix = fit(data, stopping, depth=2, time_limit=8.5, **rounds)
    assert fix.history_.stopped
    assert fix.history_.chosen == fix.model_.map.steps < 3
    if stopping is None:
        assert fix.history_.reason == "1 round, stopped at the time limit; no rows were held out"
    tu.save(fix, tmp_path / "m.trueup")
    assert tu.load(tmp_path / "m.trueup").history.stopped == fix.history_.stopped


def test_enough_time_changes_nothing():
    data = segment_data(2000)
    plain, limited = (fit(data, tu.Holdout(0.3), **own) for own in ({}, {"time_limit": 1e9}))
    np.testing.assert_array_equal(plain.predict(data), limited.predict(data))
    assert plain.history_ == limited.history_
    assert "time_limit" not in plain.model_.about.parameters
    for value in (0, -1, "5", True, float("inf")):
        with pytest.raises(ArgumentError, match="time_limit must be a number above 0"):
            fit(data, tu.Holdout(0.3), time_limit=value)
