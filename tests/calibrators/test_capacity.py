"""The first round of MCGrad, the capacity of its trees, and columns of many levels."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize
from scipy.special import expit, logit

import trueup as tu
from checks import CLASSES, rows
from trueup.calibrators.mcgrad.grower import _most_leaves, _TreeSearch, _Trial
from trueup.calibrators.mcgrad.levels import LevelStatistics, variance_of_effects
from trueup.calibrators.mcgrad.line import LINE_L2, fit_lines, line_p_value
from trueup.calibrators.stopping import Split, hold_out_last, task_loss
from trueup.data.frame import read
from trueup.errors import ArgumentError
from trueup.kernels.trees import constant_forest, join_forests
from trueup.learners.lightgbm import GrowthParameters
from twins import three_se

PREDICTION = {"binary": "p", "regression": "p", "multiclass": [f"p_{name}" for name in CLASSES]}


def log_loss(truth, p):
    return -np.mean(truth * np.log(p) + (1 - truth) * np.log1p(-p))


# ------------------------------------------------------------------ lines


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_line_has_the_lowest_penalised_loss(task, weighted):
    data = rows(task, 400)
    table = read(data, outcome="y", prediction=PREDICTION[task], features=[], task="auto" if task != "regression" else task)
    loss, w = task_loss(task), np.random.default_rng(0).uniform(0.5, 2, 400) if weighted else None
    F, weight = loss.apply_link(table.prediction), np.ones(400) if w is None else w
    intercepts = max(F.shape[1] - 1, 1)

    def total(line):
        G = line[0] * F
        G[:, :intercepts] += line[1:]
        penalty = 0.5 * LINE_L2 * ((line[0] - 1) ** 2 + (line[1:] ** 2).sum())
        half = 0.5 if task == "regression" else 1.0
        return half * (weight * loss.per_row(table.y, G)).sum() + (0 if task == "regression" else penalty)

    (found,) = fit_lines(loss, table.y, F, w, hold_out_last(400))
    start = np.array([found.slope, *found.intercept[:intercepts]])
    best = minimize(
        total,
        np.r_[1.0, np.zeros(intercepts)],
        method="Nelder-Mead",
        options={"xatol": 1e-9, "fatol": 1e-10, "maxiter": 20_000},
    )
    assert total(start) <= best.fun + 1e-6
    np.testing.assert_allclose(start, best.x, atol=2e-3)


@pytest.mark.parametrize("rate", [0.5, 0.03])
@pytest.mark.repeated(300, 2000)
def test_calibrated_scores_seldom_need_a_line(rate, repetitions):
    random, loss, alarms = np.random.default_rng(3), task_loss("binary"), 0
    for _ in range(repetitions):
        F = logit(rate) + random.normal(0, 1, 500)
        y = (random.random(500) < expit(F)).astype(float)
        alarms += line_p_value(loss, y, F[:, None], None) < 0.01
    assert alarms / repetitions <= 0.01 + three_se(0.01, repetitions)


@pytest.mark.parametrize("kind", ["slope", "offset"])
def test_few_rows_show_that_a_line_is_needed(kind):
    random, found = np.random.default_rng(4), []
    for _ in range(20):
        truth = random.normal(0, 1.5, 300)
        F = 2 * truth if kind == "slope" else truth + 1
        y = (random.random(300) < expit(truth)).astype(float)
        found.append(line_p_value(task_loss("binary"), y, F[:, None], None))
    assert np.mean(np.array(found) < 0.01) >= 0.9


def test_a_line_recovers_what_platt_scaling_recovers():
    random, gains = np.random.default_rng(5), np.zeros(2)
    for seed in range(5):
        truth = random.normal(0, 1.5, 5200)
        data = {
            "x": random.normal(size=5200),
            "p": expit(2 * truth),
            "y": (random.random(5200) < expit(truth)).astype(float),
        }
        train, test = ({name: column[part] for name, column in data.items()} for part in (slice(200), slice(200, None)))
        fits = tu.MCGrad("p", ["x"], threads=1, random_state=seed).fit(train, "y"), tu.Platt("p").fit(train, "y")
        gains += [log_loss(expit(truth[200:]), test["p"]) - log_loss(expit(truth[200:]), fix.predict(test)) for fix in fits]
    assert gains[0] >= 0.8 * gains[1] > 0


def scores_with_zeros(n=3000, seed=6):
    """Return rows of a forest-like score: a third of the predictions are exactly 0, though 3% of those are events."""
    random = np.random.default_rng(seed)
    truth = expit(random.normal(-1, 1, n))
    zero = random.random(n) < 1 / 3
    p = np.where(zero, 0.0, truth)
    y = (random.random(n) < np.where(zero, 0.03, truth)).astype(float)
    return {"x": random.normal(size=n), "p": p, "y": y}


def test_probabilities_of_0_that_were_not_certain_are_raised_before_the_logit(tmp_path):
    data = scores_with_zeros()
    fix = tu.MCGrad("p", ["x"], threads=1).fit(data, "y")
    assert fix.model_.map.floors == (0.01, 0.01)
    after, zero = fix.predict(data), data["p"] == 0
    assert after[zero].mean() == pytest.approx(data["y"][zero].mean(), abs=0.01)
    assert after.mean() == pytest.approx(data["y"].mean(), abs=0.005)
    path = tmp_path / "model.trueup"
    tu.save(fix, path)
    np.testing.assert_array_equal(tu.load(path).predict(data), after)
    for at in (int(np.argmax(zero)), int(np.argmin(zero))):
        row = {name: column[at] for name, column in data.items()}
        explained = fix.explain(row)
        assert explained.after == fix.predict_one(row) == pytest.approx(after[at], rel=1e-12)
        assert sum(part.change for part in explained.contributions) == pytest.approx(explained.link_change, abs=1e-12)
        named = [part.condition for part in explained.contributions if "from 0 and 1" in part.condition]
        assert named == (["probabilities are at least 0.01 from 0 and 1"] if row["p"] == 0 else [])


# ------------------------------------------------------------------ capacity


def interacting(n, seed, features):
    """Return calibrated scores but for an error whose sign is the product of the signs of some features."""
    random = np.random.default_rng(seed)
    X = {f"x{at}": random.choice([-1.0, 1.0], n) for at in range(4)}
    F = random.normal(-0.5, 0.7, n)
    sign = np.prod([X[f"x{at}"] for at in range(features)], axis=0) if features else 0.0
    return {**X, "p": expit(F), "y": (random.random(n) < expit(F + 0.8 * sign)).astype(float)}


def test_interactions_of_three_features_get_larger_trees_than_depth_2():
    fix = tu.MCGrad("p", feature_fraction=1.0, threads=1).fit(interacting(6000, 0, 3), "y")
    chosen = [trial for trial in fix.history_.capacities if trial.chosen]
    assert [trial.depth for trial in chosen] == [None]
    new = interacting(4000, 1, 3)
    assert log_loss(new["y"], fix.predict(new)) < log_loss(new["y"], new["p"]) - 0.035
    tables = tu.MCGrad("p", depth=2, feature_fraction=1.0, threads=1).fit(interacting(6000, 0, 3), "y")
    assert tables.history_.capacities == ()
    assert log_loss(new["y"], fix.predict(new)) < log_loss(new["y"], tables.predict(new)) - 0.02


def test_the_simplest_capacity_near_the_best_is_chosen_and_recorded(tmp_path):
    fix = tu.MCGrad("p", threads=1).fit(interacting(4000, 2, 1), "y")
    trials = fix.history_.capacities
    assert [trial.leaves for trial in trials] == sorted(trial.leaves for trial in trials)
    assert min(trial.difference for trial in trials) == 0
    within = [trial for trial in trials if trial.difference <= 0.5 * trial.error]
    assert [trial.chosen for trial in within] == [True] + [False] * (len(within) - 1)
    tu.save(fix, tmp_path / "model.trueup")
    assert tu.load(tmp_path / "model.trueup").history == fix.history_


@pytest.mark.parametrize("given", [{"depth": 3}, {"leaves": 6}, {"stopping": None}, {"depth": None}])
def test_a_capacity_that_is_given_is_not_chosen(given):
    fix = tu.MCGrad("p", trees=3, threads=1, **given).fit(interacting(500, 3, 1), "y")
    assert fix.history_.capacities == ()


def test_a_model_of_a_sample_and_of_threads_has_the_same_capacity(monkeypatch):
    monkeypatch.setattr("trueup.calibrators.mcgrad.grower.TRIAL_ROWS", 1500)
    data = interacting(4000, 4, 3)
    one, two = (tu.MCGrad("p", feature_fraction=1.0, threads=threads).fit(data, "y") for threads in (1, 2))
    assert one.history_.capacities == two.history_.capacities
    np.testing.assert_array_equal(one.predict(data), two.predict(data))


# ------------------------------------------------------------------ levels


def test_effects_of_levels_leave_out_folds_and_are_shrunken():
    random = np.random.default_rng(7)
    n, levels = 600, 40
    codes = random.integers(0, levels, n)
    data = {"c": np.array([f"l{code:02d}" for code in codes], object), "p": np.full(n, 0.3)}
    data["y"] = (random.random(n) < np.where(codes % 2, 0.6, 0.1)).astype(float)
    table = read(data, outcome="y", prediction="p", features=["c"])
    fold = np.arange(n) % 3
    splits = [Split(fold, at) for at in range(3)]
    residual, variance = data["y"] - 0.3, np.full(n, 0.21)
    found = LevelStatistics.of(table, splits, (residual, variance))
    ((feature, counts),) = found.counts
    assert feature == 0
    np.testing.assert_array_equal(counts, np.r_[0, np.bincount(codes, minlength=levels)])

    def effects(kept):
        total, h = (np.bincount(codes[kept] + 1, x[kept], levels + 1) for x in (residual, variance))
        tau2 = max(0, (total**2 - h).sum() / (h**2).sum())
        assert variance_of_effects(total, h) == pytest.approx(tau2)
        return total / (h + 1 / tau2)

    (column,) = found.residual_columns([table.columns["c"]], 1)
    np.testing.assert_allclose(column.values, effects(fold != 1))
    (encoded,) = found.encode_rows([table.columns["c"]], 1)
    for own in (0, 2):
        np.testing.assert_allclose(encoded[fold == own], effects((fold != 1) & (fold != own))[codes[fold == own] + 1])


def test_an_error_that_rare_levels_share_is_corrected():
    random = np.random.default_rng(8)

    def draw():
        rare = np.repeat([f"rare{at}" for at in range(60)], 20)
        level = np.r_[rare, random.choice([f"common{at}" for at in range(8)], 10_000)].astype(object)
        p = expit(random.normal(-1.5, 0.7, len(level)))
        truth = expit(logit(p) + np.r_[np.full(len(rare), 1.0), np.zeros(10_000)])
        return {"level": level, "p": p, "y": (random.random(len(p)) < truth).astype(float)}, truth

    (train, _), (test, truth) = draw(), draw()
    fix = tu.MCGrad("p", threads=1).fit(train, "y")
    after, inside = fix.predict(test), np.arange(1200)
    first = fix.explain().corrections[0]
    assert (first.segment, first.rows) == ("level=(60 rare levels)", 1200)
    assert abs(first.after - first.observed) < 0.3 * (first.observed - first.before)
    assert (after - test["p"])[inside].mean() >= 0.7 * (truth - test["p"])[inside].mean()
    assert abs((after - test["p"])[1200:].mean()) < 0.005


# ------------------------------------------------------------------ options


def test_corrections_rise_or_fall_with_monotone_features():
    random = np.random.default_rng(9)
    n = 4000
    x, p = random.uniform(-1, 1, n), expit(random.normal(size=n))
    y = (random.random(n) < expit(logit(p) + np.sin(6 * x))).astype(float)
    fix = tu.MCGrad("p", ["x"], monotone={"x": 1}, threads=1).fit({"x": x, "p": p, "y": y}, "y")
    grid = np.linspace(-1, 1, 200)
    assert (np.diff(fix.predict({"x": grid, "p": np.full(200, 0.4)})) >= -1e-12).all()
    free = tu.MCGrad("p", ["x"], threads=1).fit({"x": x, "p": p, "y": y}, "y")
    assert (np.diff(free.predict({"x": grid, "p": np.full(200, 0.4)})) < -1e-3).any()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"monotone": {"country": 1}}, "whose values are categories"),
        ({"monotone": {"agee": 1}}, "neither a feature nor the prediction"),
        ({"monotone": {"age": 2}}, "must be 1 or -1"),
        ({"monotone": "age"}, "a mapping of columns"),
        ({"lightgbm": {"extra_treees": True}}, "LightGBM has no parameter"),
        ({"lightgbm": {"num_leaves": 9}}, "must not set 'num_leaves'"),
        ({"lightgbm": [1]}, "must be a mapping"),
        ({"min_rows": 0}, "min_rows"),
        ({"min_gain": -1.0}, "min_gain"),
        ({"subsample": 0.0}, "subsample"),
        ({"depth": "deep"}, "depth"),
    ],
)  # fmt: skip
def test_invalid_options_are_rejected(given, message):
    data = rows("binary", 200)
    with pytest.raises(ArgumentError, match=message):
        tu.MCGrad("p", ["country", "age"], threads=1, **given).fit(data, data["y"])


def test_further_parameters_reach_lightgbm():
    data = rows("binary", 600)
    fits = [
        tu.MCGrad("p", ["country", "age"], stopping=None, trees=5, threads=1, lightgbm=given).fit(data, data["y"])
        for given in (None, {"extra_trees": True}, {"extra_tree": True})
    ]
    plain, extra, alias = (fix.predict(data) for fix in fits)
    assert (plain != extra).any()
    np.testing.assert_array_equal(extra, alias)


# ------------------------------------------------------------------ found by review


@pytest.mark.parametrize("unit", [1.0, 1e5])
@pytest.mark.parametrize("offset", [0.0, 1e6])
def test_a_regression_line_does_not_depend_on_unit_and_offset(unit, offset):
    random = np.random.default_rng(10)
    x = random.normal(7, 1, 500)
    y = 10 + 2 * x + random.normal(0, 0.5, 500)
    f, y = unit * (x + offset), unit * y
    (line,) = fit_lines(task_loss("regression"), y, f[:, None], None, hold_out_last(500))
    expected = np.polyfit(x, y, 1)
    assert line.slope == pytest.approx(expected[0] / unit, rel=1e-6)
    assert np.abs(line.slope * f + line.intercept[0] - np.polyval(expected, x)).max() < 1e-5 * unit
    assert line_p_value(task_loss("regression"), y, f[:, None], None) < 1e-6


@pytest.mark.parametrize("kind", ["clusters", "lognormal"])
@pytest.mark.repeated(300, 1500)
def test_lines_of_few_clusters_and_skewed_noise_keep_their_level(kind, repetitions):
    random, alarms = np.random.default_rng(11), 0
    for _ in range(repetitions):
        if kind == "clusters":
            cluster = np.repeat(np.arange(20), 20)
            F = random.normal(size=20)[cluster]
            y = (random.random(20)[cluster] < expit(F)).astype(float)
            p_value = line_p_value(task_loss("binary"), y, F[:, None], None, cluster)
        else:
            F = random.normal(5, 1, 200)
            y = F + np.exp(1.2 * random.normal(size=200)) - np.exp(0.72)
            p_value = line_p_value(task_loss("regression"), y, F[:, None], None)
        alarms += p_value < 0.01
    assert alarms / repetitions <= 0.015 + three_se(0.015, repetitions)


def test_scores_of_one_half_can_get_an_intercept():
    y = (np.random.default_rng(12).random(300) < 0.2).astype(float)
    assert line_p_value(task_loss("binary"), y, np.zeros((300, 1)), None) < 1e-6


def test_rows_of_few_distinct_contents_can_be_sampled(monkeypatch):
    monkeypatch.setattr("trueup.calibrators.mcgrad.grower.TRIAL_ROWS", 1000)
    random = np.random.default_rng(13)
    level = random.integers(0, 3, 3000)
    data = {"c": level.astype(float), "p": np.array([0.2, 0.4, 0.6])[level]}
    data["y"] = (random.random(3000) < np.array([0.4, 0.2, 0.6])[level]).astype(float)
    for seed in range(5):
        assert tu.MCGrad("p", random_state=seed, threads=1).fit(data, "y").history_.chosen


def test_several_rounds_keep_features_monotone():
    random = np.random.default_rng(14)
    age, other, p = random.uniform(0, 1, 3000), random.normal(size=3000), expit(random.normal(size=3000))
    y = (random.random(3000) < expit(logit(p) + 2 * np.sin(5 * age) * np.sign(other))).astype(float)
    fix = tu.MCGrad("p", ["age", "other"], monotone={"age": 1}, stopping=None, rounds=4, trees=20, threads=1)
    fix.fit({"age": age, "other": other, "p": p, "y": y}, "y")
    grid = np.linspace(0, 1, 300)
    for value in (-1.0, 1.0):
        after = fix.predict({"age": grid, "other": np.full(300, value), "p": np.full(300, 0.4)})
        assert (np.diff(after) >= -1e-12).all()


def test_the_losses_of_capacities_are_in_the_unit_of_the_history():
    data = interacting(2000, 15, 1)
    data["y"] = 1e4 * (data["y"] + np.random.default_rng(16).normal(size=2000))
    data["p"] = 1e4 * data["p"]
    history = tu.MCGrad("p", task="regression", threads=1).fit(data, "y").history_
    assert all(0.5 < trial.loss / history.loss_before < 1.5 for trial in history.capacities)


@pytest.mark.parametrize("given", [{"path_smooth": -1.0}, {"lambda_l1": 1.0, "reg_alpha": 2.0}, {"use_missing": False}])
def test_parameters_that_lightgbm_or_trueup_cannot_use_are_rejected(given):
    data = rows("binary", 200)
    with pytest.raises(ArgumentError, match=r"LightGBM rejects|twice|must not set"):
        tu.MCGrad("p", ["country", "age"], threads=1, lightgbm=given).fit(data, data["y"])


# ------------------------------------------------------------------ trees that would be the same


def count_leaves(forest, root):
    if root < 0:
        return 1
    return count_leaves(forest, forest.left[root]) + count_leaves(forest, forest.right[root])


def test_the_largest_tree_of_a_forest_is_found():
    data = rows("multiclass", 500)
    fix = tu.MCGrad(PREDICTION["multiclass"], ["age", "new"], classes=CLASSES, stopping=None, leaves=9, trees=4)
    (forest,) = fix.fit(data, data["y"]).model_.map.rounds[0].forests
    assert _most_leaves(forest) == max(count_leaves(forest, root) for root in forest.root) > 4
    single = constant_forest(np.zeros(3))  # trees without a split
    assert (_most_leaves(single), _most_leaves(join_forests([single, forest, single]))) == (1, _most_leaves(forest))
    assert _most_leaves(join_forests([])) == 0


def test_more_leaves_are_not_tried_if_no_tree_has_as_many_as_it_may_have():
    growth = GrowthParameters("log", depth=None, leaves=31)
    search = _TreeSearch({0: 1.0}, growth, {})
    trial = _Trial(growth, {}, search, np.zeros(0, int), np.zeros(0), 0.0, 0.0, 0.0, None, largest=12)
    assert trial.would_be_same(replace(growth, leaves=64))
    assert not trial.would_be_same(replace(growth, leaves=64, learning_rate=0.05))
    assert not replace(trial, largest=31).would_be_same(replace(growth, leaves=64))
