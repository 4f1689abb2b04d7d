"""Auto: the one-standard-error rule, the choices, their reasons, and errors."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from trueup.calibrators import auto
from trueup.calibrators.base import FitResult
from trueup.calibrators.choice import Candidate, MethodSelection, choose_simplest, compare_losses, explain_choice
from trueup.calibrators.model import UnchangedMap
from trueup.calibrators.stopping import CrossValidation, split_rows, task_loss
from trueup.data.frame import read
from trueup.errors import ArgumentError, ColumnError, DataError

CURVES = ["identity", "temperature", "platt", "beta", "isotonic"]


def _expit(x):
    return 1 / (1 + np.exp(-x))


def _rows(kind, seed=0, n=600):
    """Make scores that are calibrated, too steep, too steep and too low, or miscalibrated on segments."""
    random = np.random.default_rng([seed, n])
    F = 1.5 * random.normal(size=n)
    data = {"country": np.array(["BR", "DE", "US"], object)[random.integers(0, 3, n)], "age": random.uniform(18, 80, n)}
    brazil, old = data["country"] == "BR", (data["country"] == "DE") & (data["age"] > 50)
    truth = {"calibrated": F, "steep": 0.5 * F, "line": 0.5 * F + 0.5, "segments": F + 1.2 * brazil - 1.0 * old}[kind]
    return data | {"p": _expit(F), "y": (random.random(n) < _expit(truth)).astype(int)}


def _real(slope, seed=0, n=400):
    random = np.random.default_rng([seed, n, 3])
    p = 10 * random.normal(size=n)
    return {"p": p, "age": random.uniform(18, 80, n), "y": slope * p + 3 * random.normal(size=n)}


def _fit(data, methods=None, **more):
    return tu.Auto(**{"prediction": "p", "methods": methods, "threads": 1} | more).fit(data, "y")


def _chosen(kind, runs, n=600, methods=None):
    return Counter(_fit(_rows(kind, seed, n), methods).choice_.method for seed in range(runs))


# ------------------------------------------------------------------ the rule


def test_the_simplest_within_one_standard_error_is_chosen():
    a, b, c = np.full(40, 0.5), np.array([0.3, 0.5] * 20), np.array([0.2, 0.59] * 20)
    # b - c alternates between 0.1 and -0.09: a mean of 0.005 and deviations of 0.095 in all 40 rows. The standard error is
    # 0.095 / sqrt(39), and the tolerance is larger by 10 / 39 since there are few rows.
    found = compare_losses(b, c, None)
    assert found.mean == pytest.approx(0.005)
    assert found.error == pytest.approx(0.095 / np.sqrt(39))
    assert found.tolerance == pytest.approx(0.095 / np.sqrt(39) * (1 + 10 / 39))
    # a - c alternates between 0.3 and -0.09: 0.105, more than 0.195 / sqrt(39) * 49 / 39 = 0.0392.
    assert compare_losses(a, c, None).tolerance == pytest.approx(0.0392, abs=1e-4)
    # With base losses of 1 every method is a correction, and b loses 0.005 of a gain of 0.605.
    base = np.ones(40)
    assert choose_simplest([a, b, c], base, None) == MethodSelection(1, 2)
    assert choose_simplest([b, a, c], base, None) == MethodSelection(0, 2)
    assert choose_simplest([a, c], base, None) == MethodSelection(1, 1)
    assert choose_simplest([c, b, a], base, None) == MethodSelection(0, 0)


def test_simpler_method_is_chosen_if_no_other_is_better():
    same = np.linspace(0.1, 0.9, 50)
    assert choose_simplest([same, same.copy(), same.copy()], same, None) == MethodSelection(0, 0)
    assert choose_simplest([same, same * (1 - 1e-9)], same, None) == MethodSelection(0, 1)  # negligible


def test_large_standard_errors_do_not_excuse_a_worse_method():
    # Two rows put the wild method 0.04 behind, with an error as large: it loses a third of the gain of 0.1.
    best, first = np.full(1000, 0.3), np.full(1000, 0.3) + np.array([0.02, 0.04] * 500)
    wild, base = best.copy(), np.full(1000, 0.4) + np.array([0.001, -0.001] * 500)
    wild[[3, 500]] = 20.0
    behind, first_behind = compare_losses(wild, best, None), compare_losses(first, best, None)
    assert behind.mean < behind.tolerance
    assert first_behind.mean > first_behind.tolerance
    assert choose_simplest([wild, first, best], base, None) == MethodSelection(2, 2)


def test_simpler_method_of_lower_loss_is_preferred_to_one_with_larger_errors():
    # The first is 0.01 behind with certainty; the second 0.011, within its error.
    best = np.full(400, 0.3)
    first, noisy = best + 0.01 + np.array([0.001, -0.001] * 200), best + 0.011 + np.array([1.0, -1.0] * 200)
    assert choose_simplest([first, noisy, best], np.full(400, 0.6), None) == MethodSelection(0, 2)
    assert choose_simplest([first, best], np.full(400, 0.6), None) == MethodSelection(1, 1)


def test_gain_of_a_single_row_is_no_evidence():
    base = np.full(200, 0.4)
    one, many = base.copy(), base - 0.01 * np.array([1, 3] * 100)
    one[7] = 0.0
    assert choose_simplest([base, one], base, None).chosen == 0
    assert choose_simplest([base, many], base, None).chosen == 1
    # The stopping rule of the method itself, which required more, kept the correction.
    assert choose_simplest([base, one], base, None, kept=[False, True]).chosen == 1


def test_weights_change_the_choice():
    # Unweighted the second is worse by 0.1 on average; the rows where it is better weigh ten times as much.
    a, b = np.full(60, 0.5), np.array([0.4, 0.7] * 30)
    heavy = np.array([10.0, 1.0] * 30)
    assert choose_simplest([a, b], a, None) == MethodSelection(0, 0)
    assert choose_simplest([a, b], a, heavy).best == 1
    assert choose_simplest([a, b], a, 7 * heavy) == choose_simplest([a, b], a, heavy)


def test_segments_decide_between_methods_of_equal_loss():
    noise = np.array([0.1, -0.1] * 100)
    base, a, b = np.full(200, 0.7), 0.5 + noise, 0.501 - noise
    far = np.full(200, 0.6) + noise / 10
    for counts, chosen, excluded in (([9, 5, 5, 0], 1, ()), ([9, 5, 1, 0], 2, (1,)), ([9, 1, 5, 0], 1, ())):
        asked = []

        def count(number, counts=counts, asked=asked):
            asked.append(number)
            return counts[number]

        assert choose_simplest([base, a, b, far], base, None, count_segments=count) == MethodSelection(chosen, 1, excluded)
        assert asked == [1, 2]  # neither the uncorrected scores nor a method that is far behind
    # On calibrated scores nothing is changed, whatever an audit finds.
    close = base - 1e-9 + noise
    assert choose_simplest([base, close], base, None, count_segments=[1, 0].__getitem__).chosen == 0


def test_reason_has_three_lines():
    def candidate(title, loss, behind, error, **more):
        return Candidate(title.lower(), title, loss, 0.4302 - loss, 0.003, behind, error, 5, chosen=False, **more)

    none = replace(candidate("identity", 0.4302, 0.0091, 0.0011), gain=0.0, gain_error=0.0)
    platt = candidate("Platt", 0.4213, 0.0002, 0.0004, segments=12)
    best = candidate("MCGrad", 0.4211, 0.0, 0.0, segments=0)

    def explain(candidates, *selection, **more):
        return explain_choice(candidates, MethodSelection(*selection), 0.4302, "log loss", 5000, base_segments=14, **more)

    assert explain([none, platt, best], 1, 2) == (
        "chose Platt: log loss 0.4213, within a standard error (0.0004) of MCGrad's 0.4211, and simpler",
        "on 5,000 held-out rows: log loss 0.4302 -> 0.4213, a gain of 0.0089 (0.0087 shrunken)",
        "miscalibrated segments of these rows: 14 before, 12 after",
    )
    first, _, last = explain([none, platt, best], 2, 2, (1,), cross_fit=True)
    assert first == "chose MCGrad: Platt is as good in log loss, but leaves 12 segments miscalibrated (MCGrad: 0)"
    assert last == "miscalibrated segments of these rows: 14 before, 0 after (cannot show a cross-fit's own errors)"
    assert (
        explain([none, best], 1, 1)[0]
        == "chose MCGrad: log loss 0.4211, significantly lower than that of any simpler method"
    )
    assert (
        explain([none, platt, best], 2, 2)[0]
        == "chose MCGrad: log loss 0.4211, the lowest; no simpler method has 90% of its gain"
    )
    assert explain([none, replace(platt, behind=0.0005), best], 1, 2)[0].endswith(
        "within noise of MCGrad's 0.4211, and simpler"
    )
    assert explain([platt], 0, 0)[0] == "chose Platt, the only method to choose from: log loss 0.4213"
    assert explain([best, platt], 0, 0)[0] == "chose MCGrad: log loss 0.4211, the lowest, and it is the simplest"
    assert explain([none, platt], 0, 0) == (
        "no correction: no method lowers the log loss (0.4302) significantly",
        "on 5,000 held-out rows: a gain below about 0.003 cannot be detected",
        "miscalibrated segments of these rows: 14",
    )
    assert "left out" in explain_choice([none, platt], MethodSelection(0, 0), 0.4302, "log loss", 5000)[2]


# ------------------------------------------------------------------ choices


def test_calibrated_scores_are_left_unchanged():
    # For k coefficients on calibrated scores the gain of all rows is C / 2 - k and its error sqrt(C), with C of a chi-squared
    # law of k degrees: more than one error is C > (1 + sqrt(1 + 2 k))^2, of probability 0.0063, 0.0053, 0.0041 for k = 1, 2,
    # 3. If these were independent, 1.6 runs in 100 would choose one; a Poisson count of mean 0.8 exceeds 4 in 1 of 700 sets.
    found = _chosen("calibrated", 50, methods=CURVES)
    assert found["identity"] >= 46
    assert _chosen("calibrated", 2)["identity"] >= 1


def test_slope_errors_choose_temperature_or_platt():
    # The truth is a Temperature: a richer method is chosen only by chance, as above in a few of 100 runs.
    found = _chosen("steep", 25, methods=CURVES)
    assert found["temperature"] + found["platt"] >= 22
    assert found["temperature"] > found["platt"]
    found = _chosen("line", 12, methods=CURVES)
    assert found["platt"] >= 10
    # MCGrad has the lowest loss of a search on its side: it, or a curve closer to it, is chosen more often.
    found = _chosen("steep", 4)
    assert found["temperature"] + found["platt"] >= 2


def test_segment_errors_choose_trees():
    # The planted shifts lower the log loss by 0.06 and more, a dozen standard errors; no curve of the score can.
    fix = _fit(_rows("segments", 0, 1200))
    assert fix.choice_.method == "mcgrad"
    before, after = fix.choice_.candidates[0].segments, fix.choice_.candidates[-1].segments
    assert before > after == 0
    audit = tu.audit(_rows("segments", 0, 1200), outcome="y", prediction="p", by=["country", "age"])
    assert before == audit.rejected


def test_default_methods_of_regression():
    fix = _fit(_real(1.0), task="regression", folds=3)
    assert [one.name for one in fix.choice_.candidates] == ["identity", "platt", "isotonic", "mcgrad"]
    assert fix.choice_.method == "identity"
    assert fix.choice_.measure == "squared error"
    fix = _fit(_real(0.6), task="regression", folds=3)
    assert fix.choice_.method == "platt"
    assert "squared error" in fix.choice_.sentence


def test_default_methods_of_several_classes():
    data, y = _classes()
    fix = tu.Auto(prediction=["a", "b", "c"], classes=[0, 1, 2], folds=2).fit(data, y)
    assert [one.name for one in fix.choice_.candidates] == [
        "identity",
        "temperature",
        "matrixscaling",
        "platt",
        "beta",
        "isotonic",
        "mcgrad",
    ]
    assert fix.choice_.method == "temperature"
    assert fix.predict({name: data[name] for name in "abc"}).shape == (600, 3)


def _classes(n=600):
    """Make three class scores that are too steep, with classes drawn from the right ones."""
    random = np.random.default_rng(1)
    F = random.normal(size=(n, 3)) * 2
    P = np.exp(F) / np.exp(F).sum(axis=1, keepdims=True)
    y = np.argmax(0.4 * F + random.gumbel(size=F.shape), axis=1)
    return {"a": P[:, 0], "b": P[:, 1], "c": P[:, 2], "age": random.uniform(18, 80, n)}, y


@pytest.mark.parametrize("task", ["binary", "regression", "multiclass"])
def test_cross_fit_of_a_method_is_its_evaluation(task, monkeypatch):
    data = _rows("segments", 0, 1200) if task == "binary" else _real(0.6)
    roles, y = {"prediction": "p", "threads": 1}, data["y"]
    if task == "multiclass":
        data, y = _classes()
        roles |= {"prediction": ["a", "b", "c"], "classes": [0, 1, 2]}
    if task == "regression":
        roles["task"] = "regression"
    data = {name: column for name, column in data.items() if name != "y"}
    alone, fits = tu.MCGrad(**roles).fit(data, y), []
    own = tu.MCGrad._fit_map
    monkeypatch.setattr(tu.MCGrad, "_fit_map", lambda self, *rows: fits.append(1) or own(self, *rows))
    fix = tu.Auto(**roles, methods=["identity", "mcgrad"]).fit(data, y)
    assert len(fits) == 1
    assert alone.history_.chosen > 0
    assert fix.choice_.candidates[1].loss == pytest.approx(alone.history_.loss_after, rel=1e-6)
    assert np.array_equal(fix.predict(data), alone.predict(data))
    assert (fix.held_out_ is None) == (task == "regression")


class NextClass(tu.MCGrad):
    """Corrects the score of each class by the outcomes of the next one, and notes its stopping rules."""

    rules = ()

    def _fit_map(self, table, progress):
        NextClass.rules = (*NextClass.rules, type(self.stopping).__name__)
        return tu.Platt()._fit_map(replace(table, outcome=(table.outcome + 1) % 3), progress)


def test_many_classes_need_a_trial(monkeypatch):
    data, y = _classes()
    monkeypatch.setattr(auto, "TRIAL_CLASSES", 3)
    methods = ["identity", "temperature", NextClass()]
    fix = tu.Auto(prediction=["a", "b", "c"], classes=[0, 1, 2], methods=methods).fit(data, y)
    last = fix.choice_.candidates[-1]
    assert (last.folds, last.note) == (1, "dropped after a trial on 1 of 5 folds")
    assert NextClass.rules == ("Holdout",)
    assert last.behind > last.behind_error
    assert fix.choice_.method == "temperature"
    monkeypatch.setattr(auto, "MAX_AUDITED_CLASSES", 2)
    fix = tu.Auto(prediction=["a", "b", "c"], classes=[0, 1, 2], methods=["identity", "temperature"]).fit(data, y)
    assert fix.choice_.lines[2] == "the audit of these rows was left out: too many classes"


def test_order_of_rows_does_not_matter():
    data = _rows("segments", 1, 800) | {"who": np.arange(800) // 4}
    order = np.random.default_rng(0).permutation(800)
    shuffled = {name: column[order] for name, column in data.items()}
    fixes = [
        tu.Auto("p", ["country", "age"], threads=1).fit(rows, "y", sample_weight=1.0 + rows["age"] % 3, cluster="who")
        for rows in (data, shuffled)
    ]
    first, second = (fix.choice_ for fix in fixes)
    assert first.method == second.method
    assert [c.segments for c in first.candidates] == [c.segments for c in second.candidates]
    assert [c.loss for c in first.candidates] == pytest.approx([c.loss for c in second.candidates], rel=1e-9)
    assert fixes[1].predict(shuffled) == pytest.approx(fixes[0].predict(data)[order], rel=1e-9)


def test_order_of_methods_is_order_of_simplicity():
    data = _rows("steep", 1)
    assert _fit(data, ["temperature", "platt"]).choice_.method == "temperature"
    assert _fit(data, ["platt", "temperature"]).choice_.method == "platt"


# ------------------------------------------------------------------ evaluation


def test_losses_are_out_of_fold():
    data = _rows("line", 2)
    weight = np.linspace(0.5, 1.5, 600)
    fix = tu.Auto("p", methods=["identity", "platt"], folds=4, random_state=3).fit(data, "y", sample_weight=weight)
    table = read(data, outcome="y", prediction="p", weight=weight)
    losses, rows = [], []
    for part in split_rows(table, CrossValidation(4), 3):
        held, learned = table.take(part.valid), table.take(part.train)
        platt = tu.Platt("p").fit({"p": learned.prediction}, learned.outcome, sample_weight=learned.weight)
        p = platt.predict({"p": held.prediction})
        losses.append(-np.where(held.outcome == 1, np.log(p), np.log(1 - p)))
        rows.append(part.valid)
    w, each = weight[np.concatenate(rows)], np.concatenate(losses)
    p, y = data["p"][np.concatenate(rows)], data["y"][np.concatenate(rows)]
    base = -np.where(y == 1, np.log(p), np.log(1 - p))
    none, platt = fix.choice_.candidates
    assert none.loss == pytest.approx(np.average(base, weights=w))
    assert platt.loss == pytest.approx(np.average(each, weights=w))
    assert platt.gain == pytest.approx(np.average(base - each, weights=w))
    assert none.behind == pytest.approx(platt.gain)
    assert (platt.behind, platt.behind_error, none.gain) == (0, 0, 0)
    assert (platt.folds, fix.choice_.rows) == (4, 600)


def test_chosen_method_is_fitted_to_all_rows():
    data = _rows("line", 2)
    fix = _fit(data, CURVES)
    assert fix.choice_.method == "platt"
    assert np.array_equal(fix.predict(data), tu.Platt("p").fit(data, data["y"]).predict(data))
    history, own = fix.history_, fix.choice_.candidates[2]
    assert history.reason == fix.choice_.sentence
    assert (history.evaluated_on, history.chosen, fix.model_.map.steps) == ("cross-validation", 1, 1)
    assert (history.loss_before, history.loss_after) == (fix.choice_.candidates[0].loss, own.loss)
    assert (history.rounds[1].gain, history.rounds[1].error) == (own.gain, own.gain_error)
    data = _rows("segments", 0, 1200)
    fix, alone = _fit(data, ["identity", "mcgrad"]), tu.MCGrad("p").fit(data, "y")
    assert np.array_equal(fix.predict(data), alone.predict(data))
    assert fix.history_.rounds == alone.history_.rounds
    assert fix.history_.reason == f"{fix.choice_.sentence}; {alone.history_.reason}"


def test_identity_leaves_scores_unchanged():
    data = _rows("calibrated")
    fix = _fit(data, CURVES)
    assert isinstance(fix.model_.map, UnchangedMap)
    assert np.array_equal(fix.predict(data), data["p"])
    assert fix.history_.chosen == 0
    assert fix.history_.loss_before == fix.choice_.candidates[0].loss
    assert fix.explain().corrections == ()


@pytest.mark.parametrize("name", auto.NAMES)
def test_every_name_is_a_method(name):
    if name == "matrixscaling":
        fix = tu.Auto(["a", "b", "c"], methods=[name], classes=[0, 1, 2], folds=2).fit(*_classes())
    else:
        fix = _fit(_rows("segments", 5), [name], folds=2)
    assert fix.choice_.method == name
    assert len(fix.choice_.candidates) == 1
    assert fix.history_.chosen == fix.model_.map.steps
    assert fix.choice_.sentence in fix.history_.reason


class SmallDataPlatt(tu.Platt):
    """Keeps its correction only if it is fitted to few rows."""

    def _fit_map(self, table, progress):
        fitted = super()._fit_map(table, progress)
        if len(table) < 600:
            return fitted
        history = replace(fitted.history, rounds=fitted.history.rounds[:1], chosen=0, reason="too many rows")
        return FitResult(UnchangedMap(), history)


def test_chosen_method_may_change_nothing_on_all_rows():
    data = _rows("line")
    fix = _fit(data, ["identity", SmallDataPlatt()])
    assert fix.choice_.method == "smalldataplatt"
    assert fix.choice_.sentence.startswith("chose SmallDataPlatt: ")
    assert fix.choice_.sentence.endswith("; but fitted to all rows it changes nothing (too many rows)")
    assert fix.history_.reason == fix.choice_.sentence
    assert (fix.history_.chosen, fix.model_.map.steps) == (0, 0)
    assert np.array_equal(fix.predict(data), data["p"])


class ReversedOutcomes(tu.MCGrad):
    """Fits the opposite of every outcome, and counts its fits."""

    fits = 0

    def _fit_map(self, table, progress):
        ReversedOutcomes.fits += 1
        return tu.Platt()._fit_map(replace(table, outcome=1 - table.outcome), progress)


def test_hopeless_methods_are_dropped():
    data = _rows("line")
    ReversedOutcomes.fits = 0
    fix = _fit(data, ["identity", "platt", ReversedOutcomes()])
    assert ReversedOutcomes.fits == 3  # to all rows, without held-out scores, and to two folds
    last = fix.choice_.candidates[2]
    assert (last.folds, last.chosen, fix.choice_.candidates[0].folds) == (2, False, 5)
    assert last.loss == pytest.approx(fix.choice_.candidates[1].loss + last.behind)
    assert last.behind > 3 * last.behind_error
    assert repr(fix.choice_).splitlines()[-1].endswith("dropped after 2 of 5 folds")
    assert fix.choice_.method == "platt"


def test_large_data_is_evaluated_on_fewer_folds(monkeypatch):
    data = _rows("line")
    monkeypatch.setattr(auto, "MAX_EVALUATION_ROWS", 300)
    fix = _fit(data, CURVES)
    assert fix.choice_.rows == 360  # three folds of 120 contain 300
    assert {one.folds for one in fix.choice_.candidates} == {3}
    monkeypatch.setattr(auto, "MAX_EVALUATION_ROWS", 1)
    assert _fit(data, CURVES).choice_.rows == 240


def test_too_few_rows_choose_the_simplest_method():
    data = {name: column[:11] for name, column in _rows("line").items()}
    fix = _fit(data)
    assert fix.choice_.method == "identity"
    assert fix.choice_.sentence == "11 rows are too few to choose: scores are left unchanged"
    assert fix.choice_.candidates == ()
    assert repr(fix.choice_) == fix.choice_.sentence
    loss = task_loss("binary")
    assert fix.history_.loss_after == pytest.approx(np.mean(loss.per_row(data["y"], loss.apply_link(data["p"]))))
    fix = _fit(data, ["platt", "isotonic"])
    assert fix.choice_.sentence == "11 rows are too few to choose: chose the simplest, Platt"
    assert np.array_equal(fix.predict(data), tu.Platt("p").fit(data, data["y"]).predict(data))
    with pytest.raises(DataError, match="9 rows are too few to fit a correction"):
        _fit({name: column[:9] for name, column in data.items()})
    with pytest.raises(DataError, match=r"cannot be split(.|\n)*fewer folds"):
        _fit(data, folds=50)


# ------------------------------------------------------------------ features of the model


def test_curves_need_no_features_in_prediction(tmp_path):
    data = _rows("line")
    fix = _fit(data, CURVES)
    alone = {"p": data["p"]}
    assert fix.model_.schema.features == ()
    assert np.array_equal(fix.predict(alone), fix.predict(data))
    assert fix.predict_one({"p": 0.3}) == fix.predict({"p": [0.3]})[0]
    assert fix.score(alone, data["y"]) < 0
    tu.save(fix, tmp_path / "fix.trueup")
    model = tu.load(tmp_path / "fix.trueup")
    assert np.array_equal(model.predict(alone), fix.predict(alone))
    assert model.history == fix.history_
    assert model.info().method == "Auto: Platt"


def test_trees_need_features_in_prediction():
    data = _rows("segments", 0, 1200)
    fix = _fit(data, ["identity", "mcgrad"])
    assert [one.name for one in fix.model_.schema.features] == ["country", "age"]
    with pytest.raises(ColumnError, match="'country'"):
        fix.predict({"p": data["p"]})


# ------------------------------------------------------------------ methods


def test_methods_may_be_calibrators_with_parameters():
    data = _rows("segments", 0)
    own = tu.MCGrad(depth=3, stopping=tu.Holdout(0.3), random_state=5)
    fix = _fit(
        data, ["identity", tu.MCGrad(stopping=tu.Holdout(0.3)), own], random_state=2, threads=1, features=["country"]
    )
    assert [one.name for one in fix.choice_.candidates] == ["identity", "mcgrad", "mcgrad 2"]
    assert [one.title for one in fix.choice_.candidates] == ["identity", "MCGrad", "MCGrad 2"]
    assert (own.prediction, own.threads, hasattr(own, "model_")) == (None, None, False)
    _, first, second = (method.calibrator for method in fix._resolve_methods("binary"))
    assert (first.random_state, second.random_state) == (2, 5)
    assert (first.threads, second.threads, second.depth, second.features) == (1, 1, 3, ["country"])


def test_saturation_check_of_depthtwo_is_disabled():
    methods = tu.Auto("p", methods=["depthtwo", tu.DepthTwo(patience=9)])._resolve_methods("binary")
    named, given = (method.calibrator for method in methods)
    assert (named.saturation, given.saturation, given.patience) == (False, False, 9)


@pytest.mark.parametrize(
    ("methods", "message"),
    [
        ("platt", r"methods must be a list of names and calibrators; got 'platt'\nhint: write it as methods="),
        ([], r"methods must be a list of names and calibrators; got \[\]"),
        (["plat"], r"methods contains an unknown method, 'plat'\nhint: did you mean 'platt'\?"),
        (["MCGrad"], r"methods contains an unknown method, 'MCGrad'\nhint: did you mean 'mcgrad'\?"),
        (["svm"], r"methods contains an unknown method, 'svm'\nhint: the methods are identity, temperature"),
        (["platt", "platt"], "methods contains 'platt' twice"),
        ([tu.Platt], r"methods must contain names and calibrators; got <class.*\nhint: write it as"),
        (
            [tu.Platt("p")],
            r"contains a calibrator that sets prediction: Platt\(prediction='p'\)\nhint: pass prediction= to Auto itself",
        ),
        ([tu.MCGrad(features=["age"])], "a calibrator that sets features"),
        ([tu.MCGrad(categorical=["age"])], "a calibrator that sets categorical"),
        ([tu.Auto()], r"got Auto\(\)\nhint: Auto cannot be nested"),
        ([tu.Grouped(tu.Platt(), by=["country"])], "Grouped needs columns of its own"),
        ([tu.MCGrad(depth=0)], "depth must be"),
    ],
)
def test_invalid_methods_are_rejected(methods, message):
    with pytest.raises(ArgumentError, match=message):
        _fit(_rows("line", n=60), methods)


def test_methods_of_another_task_are_rejected():
    with pytest.raises(ArgumentError, match="Temperature corrects probabilities"):
        _fit(_real(1.0), ["identity", "temperature"], task="regression")


# ------------------------------------------------------------------ the result


def test_choice_repr_and_exports(frame):
    data = _rows("line")
    choice = _fit(data, CURVES).choice_
    lines = repr(choice).splitlines()
    assert max(map(len, lines)) <= 100
    assert [line.split()[0] for line in lines[-5:]] == ["identity", "temperature", "->", "beta", "isotonic"]
    assert lines[:3] == list(choice.lines)
    assert lines[0].startswith("chose Platt: log loss ")
    assert all(line in choice._repr_html_().replace("&gt;", ">").replace("&#x27;", "'") for line in choice.lines)
    assert json.loads(json.dumps(choice.to_dict())) == choice.to_dict()
    assert choice.to_dict()["candidates"][2]["chosen"] is True
    table = choice.to_frame(like=frame({"a": [1]}))
    assert type(table) is type(frame({"a": [1]}))
    assert list(choice.to_frame()["name"]) == CURVES
    assert choice.to_frame()["chosen"].sum() == 1


def test_choice_is_deterministic():
    data = _rows("steep", 4)
    first, again, other = (_fit(data, CURVES, random_state=seed).choice_ for seed in (1, 1, 2))
    assert first == again
    assert first != other


def test_progress_counts_the_methods():
    seen = []
    table = read(_rows("line"), outcome="y", prediction="p")
    tu.Auto("p", methods=CURVES, folds=3).fit_table(table, lambda *found: seen.append(found))
    assert seen == [(done, 5) for done in range(1, 6)]
