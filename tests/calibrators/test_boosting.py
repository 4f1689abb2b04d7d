"""MCGrad: every task, every way to stop, no harm, and a plain NumPy twin of its history."""

from __future__ import annotations

import math
import re
import warnings

import numpy as np
import pytest

import trueup as tu
import twins
from checks import CLASSES, FEATURES, rows, take
from trueup.calibrators.stopping import choose_rounds, task_loss
from trueup.data.folds import assign_folds
from trueup.data.frame import read
from trueup.data.simulate import Shift, population
from trueup.errors import ArgumentError, ColumnError, DataError, OneClassWarning, TrainingRowsWarning

ALL = {"binary": "p", "regression": "p", "multiclass": ["p_cat", "p_dog", "p_owl"]}


def mcgrad(task="binary", **own):
    kind = {"task": "regression"} if task == "regression" else {}
    return tu.MCGrad(**{"prediction": ALL[task], "features": FEATURES, "threads": 1} | kind | own)


def log_loss(y, p):
    return float(np.mean(-np.log(np.where(y == 1, p, 1 - p))))


def twin_of(model, data):
    """Score a model's rounds with the plain walk; also the scores of every round of every cascade, unlinked."""
    table = read({k: v for k, v in data.items() if k != "y"}, prediction=list(model.schema.prediction), features=FEATURES,
                 task=model.schema.task if model.schema.task != "multiclass" else "auto", classes=model.schema.classes or None,
                 schema=model.schema)  # fmt: skip
    X = np.array([table.columns[name].astype(float) for name in FEATURES])
    stages = [(at, one.thetas[at], forest) for one in model.map.rounds for at, forest in enumerate(one.forests)]
    P = table.prediction.reshape(len(table), -1)
    return twins.run_cascade(stages, list(model.map.levels), model.map.cascades, model.map.link, X, P)


@pytest.mark.parametrize("task", sorted(ALL))
@pytest.mark.parametrize(
    "stopping", [tu.CrossValidation(3), tu.Holdout(0.3), None, tu.CrossValidation(3, refit=True)], ids=str
)
def test_predictions_equal_a_tree_by_tree_evaluation(task, stopping):
    data = rows(task, 500)
    few = take(data, slice(60))
    model = mcgrad(task, stopping=stopping, rounds=2, trees=8).fit(data, data["y"]).model_
    assert model.map.rounds
    assert model.map.cascades == (12 if stopping == tu.CrossValidation(3) else 1)  # 4 repeats
    np.testing.assert_allclose(model.predict(few).reshape(60, -1), twin_of(model, few), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("task", sorted(ALL))
def test_the_holdout_history_equals_a_direct_computation(task):
    data = rows(task, 900)
    fix = mcgrad(task, stopping=tu.Holdout(0.3), depth=None, rounds=4).fit(data, data["y"])
    table = read(
        data, outcome="y", prediction=ALL[task], features=FEATURES, task="regression" if task == "regression" else "auto"
    )
    content = [*table.columns.values(), *table.prediction.reshape(900, -1).T]
    strata = table.outcome if task == "binary" else np.zeros(900)
    held = np.flatnonzero(assign_folds(content, strata, 1000, 0) < 300)
    assert 200 < len(held) < 340
    history, loss = fix.history_, task_loss(table.schema.task)
    X = np.array([table.columns[name][held].astype(float) for name in FEATURES])
    F, y, losses = loss.apply_link(table.prediction[held]), table.outcome[held], []
    losses.append(loss.per_row(y, F))
    for one, expected in zip(fix.model_.map.rounds, history.rounds[1:], strict=False):
        moved = F + twins.sum_trees(one.forests[0], X, F, list(fix.model_.map.levels))
        if not one.is_line:  # a line is fitted on the training rows
            grid = np.linspace(0.5, 2.0, 601)
            best = grid[np.argmin([loss.per_row(y, theta * moved).mean() for theta in grid])]
            assert abs(one.thetas[0] - best) <= 0.0025  # one step of the grid
        assert one.thetas[0] == expected.theta
        assert one.trees == expected.trees
        F = one.thetas[0] * moved
        losses.append(loss.per_row(y, F))
    assert history.chosen == len(losses) - 1 >= 1
    rounds = fix.model_.map.rounds
    chosen, judged = choose_rounds(iter(losses), None, is_line=lambda number: rounds[number - 1].is_line)
    assert chosen == history.chosen
    for (mean, gain, error, threshold), expected in zip(judged, history.rounds, strict=False):
        np.testing.assert_allclose(
            (expected.loss, expected.gain, expected.error), (mean, gain, error), rtol=1e-9, atol=1e-12
        )
        assert expected.number == 0 or math.isfinite(threshold)
    assert [one.kept for one in history.rounds] == [one.number <= history.chosen for one in history.rounds]
    assert history.evaluated_on == "held-out rows"


@pytest.mark.parametrize("task", sorted(ALL))
@pytest.mark.parametrize("stopping", [tu.CrossValidation(), tu.Holdout(0.3), tu.CrossValidation(3, refit=True)], ids=str)
def test_miscalibrated_scores_improve_on_new_rows(task, stopping):
    data, more = rows(task, 3000), rows(task, 3000, seed=1)
    fix = mcgrad(task, stopping=stopping).fit(data, data["y"])
    found = fix.predict(more)
    if task == "binary":
        losses = log_loss(more["y"], more["p"]), log_loss(more["y"], found)
    elif task == "regression":
        losses = np.mean((more["y"] - more["p"]) ** 2), np.mean((more["y"] - found) ** 2)
    else:
        hit = np.arange(3000), [CLASSES.index(y) for y in more["y"]]
        losses = -np.log(np.column_stack([more[p] for p in ALL[task]])[hit]).mean(), -np.log(found[hit]).mean()
    assert losses[1] < 0.93 * losses[0]
    # What the fit believed of held-out rows is what new rows show: 5 standard errors of two means of 3,000 (and 900).
    assert fix.history_.loss_after == pytest.approx(losses[1], rel=0.15)
    assert fix.history_.loss_before == pytest.approx(losses[0], rel=0.15)


@pytest.mark.repeated(8, 40)
def test_calibrated_scores_are_not_harmed(repetitions):
    n = 1000
    harms, untouched = [], 0
    for seed in range(repetitions):
        data = population(n, seed, levels=(4, 3), numeric=1)
        more = population(n, 1000 + seed, levels=(4, 3), numeric=1)
        assert (data["prediction"] == data["truth"]).all()
        fix = tu.MCGrad("prediction", ["c0", "c1", "x0"]).fit(data, data["outcome"])
        t, p = more["truth"], fix.predict(more)
        untouched += fix.history_.chosen == 0
        harms.append(float(np.mean(t * np.log(t / p) + (1 - t) * np.log((1 - t) / (1 - p)))))
    # A single parameter fitted to n rows would cost 1 / (2 n) on average. A gain of chance passes a gate of one standard
    # error (or more) in at most 16 cases of 100, were it a mean of zero: three standard errors of a share of so many below that.
    assert np.mean(harms) < 1 / (2 * n)
    assert untouched / repetitions >= 0.84 - twins.three_se(0.84, repetitions)


def test_without_rounds_scores_are_bitwise_unchanged():
    data = population(300, 4, levels=(3,))
    data["prediction"] = np.where(np.arange(300) % 50, data["prediction"], np.round(data["outcome"]))  # 0 and 1 among them
    fix = tu.MCGrad("prediction", ["c0"]).fit(data, data["outcome"])
    assert fix.history_.chosen == 0
    found = fix.predict(data)
    assert found.tobytes() == data["prediction"].tobytes()
    assert not np.shares_memory(found, data["prediction"])
    assert fix.predict_one({"prediction": 1.0}) == 1.0
    assert fix.explain().corrections == ()
    assert fix.explain({"prediction": 0.0, "c0": "c0_1"}).change == 0
    assert "scores are left unchanged" in fix.history_.reason


def test_weights_alone_can_reveal_a_shift():
    # Every row is there, but those of c0_1 with the outcome 1 weigh more: the weighted rate there is higher.
    data = population(2000, 0, levels=(3,))
    weight = np.where((data["c0"] == "c0_1") & (data["outcome"] == 1), 4.0, 1.0)
    fix = tu.MCGrad("prediction", ["c0"]).fit(data, data["outcome"], sample_weight=weight)
    inside = data["c0"] == "c0_1"
    found = fix.predict(data)
    wanted = np.average(data["outcome"][inside], weights=weight[inside])
    assert np.average(found[inside], weights=weight[inside]) == pytest.approx(wanted, rel=0.15)  # trees shrink
    assert found[~inside].mean() == pytest.approx(data["prediction"][~inside].mean(), rel=0.15)


def test_soft_labels_are_not_rounded():
    data = population(1500, 2, levels=(3,), shifts=[Shift({"c0": "c0_0"}, 1.0)])
    fix = tu.MCGrad("prediction", ["c0"], rounds=1, trees=100).fit(data, data["truth"])
    assert np.abs(fix.predict(data) - data["truth"]).mean() < 0.25 * np.abs(data["prediction"] - data["truth"]).mean()


def test_a_class_without_training_rows_keeps_a_positive_probability():
    data = rows("multiclass", 600)
    data = take(data, np.flatnonzero(data["y"] != "owl"))
    fix = mcgrad("multiclass", classes=CLASSES).fit(data, data["y"])
    found = fix.predict(data)
    assert fix.model_.schema.classes == tuple(CLASSES)
    np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)
    assert (found[:, 2] > 0).all()
    assert found[:, 2].mean() < data["p_owl"].mean()


@pytest.mark.parametrize(
    "own",
    [{"repeats": 1}, {"depth": None, "leaves": 8, "repeats": 1}, {"stopping": None, "trees": 60, "rounds": 2}],
    ids=str,
)
def test_monotone_corrections_keep_the_order_of_rows_with_equal_features(own):
    data = rows("binary", 1500)
    falling = data | {"y": (np.random.default_rng(0).random(1500) < 1 - data["p"]).astype(int)}  # made to tempt it
    half = {name: np.concatenate([data[name][:750], falling[name][750:]]) for name in data}
    grid = np.linspace(0, 1, 301)
    worst = {}
    for monotone in (True, False):
        fix = mcgrad(monotone=monotone, **own).fit(half, half["y"])
        every = {name: np.repeat(data[name][:25], len(grid)) for name in FEATURES} | {"p": np.tile(grid, 25)}
        worst[monotone] = np.diff(fix.predict(every).reshape(25, -1)).min()
    assert worst[True] >= -1e-12
    assert worst[False] < -0.01


def test_a_validation_set_equals_a_holdout_of_the_same_rows():
    data = rows("binary", 900)
    table = read(data, outcome="y", prediction="p", features=FEATURES)
    held = assign_folds([*table.columns.values(), table.prediction], table.outcome, 1000, 0) < 300
    judge = take(data, held)
    given = mcgrad(stopping=tu.Validation(judge, judge["y"])).fit(take(data, ~held), data["y"][~held])
    assert given.history_.evaluated_on == "given rows"
    assert given.history_.loss_before == pytest.approx(log_loss(judge["y"], judge["p"]), rel=1e-12)
    found = given.predict(judge)
    assert given.history_.loss_after == pytest.approx(log_loss(judge["y"], found), rel=1e-9)
    assert given.model_.about.rows == int((~held).sum())


@pytest.mark.parametrize("task", sorted(ALL))
def test_a_validation_set_may_be_weighted_and_of_any_frame_library(task, frame):
    data, judge = rows(task, 500), rows(task, 400, seed=3)
    plain = {name: [None if x != x else x for x in column.tolist()] for name, column in judge.items()}
    weight = np.linspace(0.5, 2, 400)
    a, b = (
        mcgrad(task, features=names, stopping=tu.Validation(given, judge["y"], weight)).fit(data, data["y"])
        for given, names in ((judge, FEATURES), (frame(plain), FEATURES))
    )
    assert a.history_ == b.history_
    assert a.history_.chosen >= 1


def test_a_base_model_trained_on_the_same_rows_is_warned_about():
    random = np.random.default_rng(0)
    data, judge = rows("binary", 1500), rows("binary", 1500, seed=1)
    learned = data | {"p": np.clip(0.5 * data["p"] + 0.5 * data["y"], 0.01, 0.99)}  # it has seen the outcomes
    with pytest.warns(TrainingRowsWarning, match=r"training rows.*\nhint: was the base model trained"):
        mcgrad(stopping=tu.Validation(judge, judge["y"])).fit(learned, learned["y"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        mcgrad(stopping=tu.Validation(judge, judge["y"])).fit(data, data["y"])
        noisy = judge | {"p": np.clip(judge["p"] + random.normal(0, 0.02, 1500), 0.01, 0.99)}
        mcgrad(stopping=tu.Validation(noisy, noisy["y"])).fit(data, data["y"])


def test_without_stopping_the_number_of_rounds_and_trees_is_exact():
    data = rows("binary", 400)
    fix = mcgrad(stopping=None).fit(data, data["y"])
    assert [(one.number, one.trees) for one in fix.history_.rounds] == [(0, 0), (1, 100)]
    fix = mcgrad(stopping=None, rounds=3, trees=5).fit(data, data["y"])
    assert [(one.number, one.trees, one.kept) for one in fix.history_.rounds] == [
        (0, 0, True),
        *((t, 5, True) for t in (1, 2, 3)),
    ]
    assert fix.history_.evaluated_on == "training rows"
    assert fix.model_.map.trees == 15


def test_trees_and_rounds_are_upper_limits():
    data = rows("binary", 900)
    fix = mcgrad(rounds=1, trees=3).fit(data, data["y"])
    base, *rounds = fix.history_.rounds
    assert base.trees == 0
    assert [0 < one.trees <= 3 for one in rounds] == [False, True]  # a line does not count
    assert re.match(r"a line \(score test: p = [^)]*\) and 1 round: ", fix.history_.reason)
    assert "stopped at the maximum number of rounds" in fix.history_.reason


def test_a_refit_is_one_cascade_with_the_chosen_rounds():
    data = rows("binary", 900)
    given = {"depth": 2, "learning_rate": 0.1, "rounds": 1, "repeats": 1}  # later rounds start from more trees in the mean
    mean = mcgrad(stopping=tu.CrossValidation(4), **given).fit(data, data["y"])
    again = mcgrad(stopping=tu.CrossValidation(4, refit=True), **given).fit(data, data["y"])
    assert [one.loss for one in again.history_.rounds] == [one.loss for one in mean.history_.rounds]
    assert (mean.model_.map.cascades, again.model_.map.cascades) == (4, 1)
    assert [one.thetas[0] for one in again.model_.map.rounds if not one.is_line] == [
        one.thetas[0] for one in mean.model_.map.rounds if not one.is_line
    ]


def test_a_mean_of_models_has_half_as_many_trees_again_as_the_best_single_one():
    data = rows("binary", 900)
    given = {"depth": 2, "learning_rate": 0.1, "rounds": 1, "repeats": 1}
    single = mcgrad(stopping=tu.CrossValidation(4, refit=True), **given).fit(data, data["y"]).history_
    mean = mcgrad(stopping=tu.CrossValidation(4), **given).fit(data, data["y"]).history_
    assert mean.rounds[-1].trees == math.ceil(1.5 * single.rounds[-1].trees)


def test_too_few_rows_are_rejected():
    data = rows("binary", 9)
    with pytest.raises(DataError, match="9 rows are too few"):
        mcgrad().fit(data, data["y"])
    few = rows("binary", 12)
    with pytest.raises(DataError, match="cannot be split"):
        mcgrad(stopping=tu.CrossValidation(50)).fit(few, few["y"])
    with pytest.raises(ColumnError, match="is identical to the outcome"):
        mcgrad(features=["y"]).fit(few, "y")
    with pytest.raises(ArgumentError, match="no prediction column was named"):
        tu.MCGrad().fit(few, few["y"])


def test_unlabelled_rows_are_dropped_on_request():
    data = rows("binary", 400)
    y = np.where(np.arange(400) % 4, data["y"], np.nan)
    with pytest.raises(DataError, match="is missing"):
        mcgrad().fit(data, y)
    some = np.flatnonzero(np.arange(400) % 4)
    a, b = mcgrad(unlabelled="drop").fit(data, y), mcgrad().fit(take(data, some), data["y"][some])
    assert a.predict(data).tobytes() == b.predict(data).tobytes()
    assert a.model_.about.rows == 300


def test_the_frame_of_a_history_has_its_rounds(frame):
    data = rows("binary", 400)
    history = mcgrad(rounds=2).fit(data, data["y"]).history_
    found = history.to_frame(like=frame({"a": [1]}))
    assert [float(x) for x in found["loss"].to_numpy()] == [one.loss for one in history.rounds]
    assert "cross-validation" in repr(history)
    assert history.loss_after == history.rounds[history.chosen].loss


def test_the_unit_of_validation_weights_does_not_matter():
    data, other = rows("binary", 2000), rows("binary", 2000, seed=5)
    plain, *scaled = (
        mcgrad(stopping=tu.Validation(other, other["y"], sample_weight=np.full(2000, unit))).fit(data, data["y"])
        for unit in (1.0, 1e6, 0.001)
    )
    assert plain.history_.chosen > 0
    for fix in scaled:
        np.testing.assert_allclose(fix.predict(data), plain.predict(data), rtol=1e-9)


def test_monotone_is_rejected_for_several_classes():
    data = rows("multiclass", 100)
    with pytest.raises(ArgumentError, match="monotone needs a single prediction column"):
        mcgrad("multiclass", monotone=True).fit(data, data["y"])


def test_outcomes_that_are_all_equal_give_finite_factors():
    data = rows("binary", 500) | {"y": np.ones(500)}
    with pytest.warns(OneClassWarning):
        fix = mcgrad(stopping=tu.CrossValidation(3)).fit(data, data["y"])
    assert fix.history_.rounds[1].trees == 0  # a line
    assert all(0.02 <= one.theta <= 50 for one in fix.history_.rounds)
    assert fix.predict(data).min() > 0.9


def test_score_is_minus_the_mean_loss():
    for task in sorted(ALL):
        data = rows(task, 600)
        fix = mcgrad(task, rounds=1, trees=5, stopping=None).fit(data, data["y"])
        table = read(
            data, outcome="y", prediction=ALL[task], features=[], task="regression" if task == "regression" else "auto"
        )
        loss = task_loss(table.schema.task)
        expected = -np.mean(loss.per_row(table.outcome, loss.apply_link(fix.predict(data))))
        np.testing.assert_allclose(fix.score(data, data["y"]), expected, rtol=1e-12)
