"""The rows that judged a fit, with scores of models that were not trained on them: evidence for decisions."""

from __future__ import annotations

import copy
import pickle
import warnings

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

import trueup as tu
import trueup.decisions as td
from checks import CLASSES, FEATURES, rows, take
from trueup.calibrators import stopping
from trueup.calibrators.stopping import choose_rounds, task_loss
from trueup.data.frame import read
from trueup.errors import ArgumentError, NotFittedError, ShiftWarning

CV, HELD = tu.CrossValidation(3), tu.Holdout(0.3)
COSTS = {"fn": 4, "fp": 1}


def mcgrad(**own):
    return tu.MCGrad(**{"prediction": "p", "features": FEATURES, "threads": 1, "stopping": CV} | own)


def depthtwo(**own):
    given = {"prediction": "p", "features": FEATURES, "threads": 1, "stopping": CV, "learning_rate": 0.3}
    return tu.DepthTwo(**given | {"saturation": False} | own)


def lsboost(**own):
    return tu.LSBoost(**{"prediction": "p", "features": FEATURES, "threads": 1, "stopping": CV, "min_rows": 60} | own)


def platt(**own):
    return tu.Platt(**{"prediction": "p", "stopping": CV} | own)


def isotonic(**own):
    return tu.Isotonic(**{"prediction": "p", "stopping": CV} | own)


def grouped(**own):
    return tu.Grouped(tu.Platt(), ["country"], **{"prediction": "p", "stopping": CV, "shrinkage": 20.0} | own)


def hkrr(**own):
    return tu.HKRR(**{"prediction": "p", "features": FEATURES, "levels": 4, "stopping": CV} | own)


def multiaccuracy(**own):
    return tu.Multiaccuracy(**{"prediction": "p", "features": FEATURES, "stopping": CV} | own)


JUDGED = {
    "mcgrad": mcgrad, "depthtwo": depthtwo, "lsboost": lsboost, "platt": platt, "isotonic": isotonic, "grouped": grouped,
    "hkrr": hkrr, "multiaccuracy": multiaccuracy,
}  # fmt: skip


def mean_loss(fix):
    """Give the loss of the held-out rows, by the measure of the history."""
    loss = task_loss("regression" if fix.history_.measure == "squared error" else "binary")
    y, p, w = fix.held_out_
    return float(np.average(loss.per_row(y, loss.apply_link(p)), weights=w))


def right(n=700, seed=0):
    """Make rows whose scores need no correction."""
    data = rows(n=n, seed=seed)
    return data | {"y": (np.random.default_rng(seed).random(n) < data["p"]).astype(int)}


# ------------------------------------------------------------------ which rows, and which scores


@pytest.mark.parametrize("name", JUDGED)
def test_a_cross_validation_holds_out_all_rows_in_their_order(name):
    data = rows()
    fix = JUDGED[name]().fit(data, data["y"])
    y, p, w = fix.held_out_
    np.testing.assert_array_equal(y, data["y"])
    assert (w == 1).all()
    assert p.dtype == np.float64
    assert mean_loss(fix) == pytest.approx(fix.history_.rounds[fix.history_.chosen].loss, abs=1e-9)
    if name not in ("isotonic", "platt"):  # which correct nothing here
        assert fix.history_.chosen
        assert 0 < np.abs(p - fix.predict(data)).max() < 0.5  # not the scores of the model of all rows, but like them


@pytest.mark.parametrize("name", JUDGED)
def test_rows_of_a_holdout_have_the_scores_of_the_model(name):
    # One model was trained, and not on these rows: it is the one that predicts.
    data, weight = rows(n=1200), np.linspace(0.5, 1.5, 1200)
    fix = JUDGED[name](stopping=HELD).fit(data, data["y"], sample_weight=weight)
    given = {"prediction": "p", "features": fix.get_params().get("features", ()) or ()}
    if name == "grouped":
        given["features"] = ["country"]
    table = read(data, outcome=data["y"], weight=weight, task="auto", **given)
    at = stopping.split_rows(table, HELD, 0)[0].valid
    y, p, w = fix.held_out_
    np.testing.assert_array_equal(y, data["y"][at])
    np.testing.assert_array_equal(w, weight[at])
    np.testing.assert_allclose(p, fix.predict(take(data, at)), rtol=0, atol=1e-12)
    assert mean_loss(fix) == pytest.approx(fix.history_.loss_after, abs=1e-9)


@pytest.mark.parametrize("name", JUDGED)
def test_validation_rows_have_the_scores_of_the_model(name):
    data, other = rows(), rows(n=400, seed=3)
    weight = np.where(np.arange(400) % 7 == 0, 0.0, 2.0)
    fix = JUDGED[name](stopping=tu.Validation(other, other["y"], weight)).fit(data, data["y"])
    y, p, w = fix.held_out_
    at = np.flatnonzero(weight)
    np.testing.assert_array_equal(y, other["y"][at])
    np.testing.assert_array_equal(w, weight[at])
    np.testing.assert_allclose(p, fix.predict(take(other, at)), rtol=0, atol=1e-12)
    assert mean_loss(fix) == pytest.approx(fix.history_.loss_after, abs=1e-9)


@pytest.mark.parametrize("name", JUDGED)
def test_held_out_scores_are_unchanged_without_rounds(name):
    data = right()
    fix = JUDGED[name]().fit(data, data["y"])
    assert fix.history_.chosen == 0
    np.testing.assert_array_equal(fix.held_out_.p, data["p"])
    np.testing.assert_array_equal(fix.predict(data), data["p"])


def test_out_of_fold_scores_are_those_of_curves_fitted_without_the_fold():
    data = rows(n=900)
    data["p"] = data["p"] ** 3
    fix = platt().fit(data, data["y"])
    assert fix.history_.chosen == 1
    table = read(data, outcome=data["y"], prediction="p", features=[], task="auto")
    expected = np.empty(900)
    for one in stopping.split_rows(table, CV, 0):
        part = take(data, one.train)
        expected[one.valid] = platt(stopping=None).fit(part, part["y"]).predict(take(data, one.valid))
    np.testing.assert_array_equal(fix.held_out_.p, expected)


def test_held_out_scores_are_of_the_best_round():
    data = rows(n=1500)
    fix = mcgrad(stopping=tu.CrossValidation(3, patience=2), rounds=4).fit(data, data["y"])
    assert 0 < fix.history_.chosen < len(fix.history_.rounds) - 1
    last = fix.history_.rounds[-1].loss
    assert mean_loss(fix) == pytest.approx(fix.history_.loss_after, abs=1e-9)
    assert abs(mean_loss(fix) - last) > 1e-6


def test_a_refit_keeps_the_scores_of_the_folds():
    data = rows()
    plain, again = (
        mcgrad(stopping=tu.CrossValidation(3, refit=refit), depth=2, learning_rate=0.3).fit(data, data["y"])
        for refit in (False, True)
    )
    np.testing.assert_array_equal(plain.held_out_.p, again.held_out_.p)


def test_every_improvement_calls_back():
    improvements, base = [], np.array([0.7, 0.8, 0.6, 0.7] * 9)
    losses = iter([base, base - 0.2, base - 0.2, base - 0.4, base, base])
    chosen, _ = choose_rounds(losses, None, patience=2, on_improvement=lambda: improvements.append(len(improvements)))
    assert (chosen, improvements) == (3, [0, 1])


def test_without_a_prediction_the_base_score_is_the_mean():
    random = np.random.default_rng(0)
    data = {"x": random.normal(size=400), "y": random.random(400) < 0.27}
    for own in ({}, {"spacing": "equal", "levels": 4}):
        fix = lsboost(prediction=None, features=["x"], task="binary", stopping=HELD, **own).fit(data, data["y"])
        assert fix.history_.chosen == 0
        assert len(fix.held_out_.y) == pytest.approx(120, abs=2)
        assert set(fix.held_out_.p) == set(fix.predict(data))  # on a grid: rounded to it


def test_soft_outcomes_are_not_rounded():
    data = rows()
    soft = 0.1 + 0.8 * data["y"]
    fix = mcgrad().fit(data, soft)
    np.testing.assert_array_equal(fix.held_out_.y, soft)


# ------------------------------------------------------------------ which rows they were


@pytest.mark.parametrize("name", JUDGED)
def test_held_out_rows_are_positions_in_the_frame(name):
    data = rows(n=1200)
    y, weight = data["y"].astype(float), np.linspace(0.5, 1.5, 1200)
    y[::11], weight[::7] = np.nan, 0.0
    for rule in (CV, HELD):
        fix = JUDGED[name](stopping=rule, unlabelled="drop").fit(data, y, sample_weight=weight)
        at = fix.held_out_rows_
        assert at.dtype == np.int64
        assert (np.diff(at) > 0).all()
        np.testing.assert_array_equal(y[at], fix.held_out_.y)
        np.testing.assert_array_equal(weight[at], fix.held_out_.w)
        np.testing.assert_array_equal(data["p"][at], fix.held_out_before_)
        assert fix.held_out_before_.dtype == np.float64
        left = (~np.isnan(y) & (weight > 0)).sum()
        assert len(at) == left if rule is CV else 0.2 * left < len(at) < 0.4 * left


def test_validation_rows_have_no_positions_in_the_frame():
    data, other = rows(), rows(n=400, seed=3)
    fix = platt(stopping=tu.Validation(other, other["y"])).fit(data, data["y"])
    assert fix.held_out_rows_ is None
    np.testing.assert_array_equal(fix.held_out_before_, other["p"])


@pytest.mark.parametrize("methods", [["identity"], ["platt"], ["multiaccuracy"]])
def test_auto_and_local_fits_have_positions_of_held_out_rows(methods, monkeypatch):
    monkeypatch.setattr("trueup.calibrators.auto.MAX_EVALUATION_ROWS", 100)
    monkeypatch.setattr("trueup.calibrators.lore.estimator.MAX_LEAVE_ONE_OUT", 100)
    monkeypatch.setattr("trueup.calibrators.lore.estimator.HELD_OUT_ROWS", 200)
    data = rows(n=900)
    weight = np.where(np.arange(900) % 5 == 0, 0.0, 1.0)
    for fix in (tu.Auto("p", FEATURES, methods=methods, threads=1), tu.LoRe("p", ["country", "new"])):
        at = fix.fit(data, data["y"], sample_weight=weight).held_out_rows_
        assert len(at) == len(fix.held_out_.y)
        assert (weight[at] == 1).all()
        np.testing.assert_array_equal(data["y"][at], fix.held_out_.y)
        np.testing.assert_array_equal(data["p"][at], fix.held_out_before_)


def test_there_are_no_positions_without_held_out_rows():
    data = rows()
    real = rows("regression", 300)
    for fix in (platt(stopping=None).fit(data, data["y"]), platt(task="regression").fit(real, real["y"])):
        assert fix.held_out_rows_ is None
        assert fix.held_out_before_ is None
    alone = lsboost(prediction=None, features=["age"], task="binary").fit(data, data["y"])
    assert alone.held_out_before_ is None  # there is no score to correct
    np.testing.assert_array_equal(alone.held_out_rows_, np.arange(len(data["y"])))


# ------------------------------------------------------------------ LoRe


@pytest.mark.parametrize("gamma", ["auto", 0.4])
def test_rows_of_a_local_fit_have_leave_one_out_scores(gamma):
    data = rows(n=500)
    fix = tu.LoRe("p", ["country"], gamma=gamma).fit(data, data["y"])
    assert fix.history_.chosen == 1
    np.testing.assert_array_equal(fix.held_out_.y, data["y"])
    assert mean_loss(fix) == pytest.approx(fix.history_.loss_after, abs=1e-9)


def test_a_leave_one_out_score_equals_a_fit_without_the_row():
    data = rows(n=300)

    def fitted(part):
        return tu.LoRe("p", ["country"], gamma=0.4, embedding="groups", bins=3).fit(part, part["y"])

    held = fitted(data).held_out_.p
    for at in (0, 17, 123, 299):
        rest = np.flatnonzero(np.arange(300) != at)
        assert fitted(take(data, rest)).predict(take(data, [at]))[0] == pytest.approx(held[at], abs=1e-12)


def test_a_local_fit_of_many_rows_holds_out_some(monkeypatch):
    monkeypatch.setattr("trueup.calibrators.lore.estimator.MAX_LEAVE_ONE_OUT", 100)
    monkeypatch.setattr("trueup.calibrators.lore.estimator.HELD_OUT_ROWS", 200)
    for data, chosen in ((rows(n=900), 1), (right(900), 0)):
        fix = tu.LoRe("p", ["country", "new"]).fit(data, data["y"])
        assert fix.history_.chosen == chosen
        assert len(fix.held_out_.y) == pytest.approx(200, abs=3)
        assert mean_loss(fix) == pytest.approx(fix.history_.loss_after, abs=1e-9)


# ------------------------------------------------------------------ Auto and wrappers


@pytest.mark.parametrize("methods", [["identity"], ["platt"], [tu.Platt(stopping=CV)], ["multiaccuracy"]])
def test_auto_has_the_rows_of_its_history(methods):
    data, weight = rows(n=900), np.linspace(1, 3, 900)
    data["p"] = data["p"] ** 2
    fix = tu.Auto("p", FEATURES, methods=methods, threads=1).fit(data, data["y"], sample_weight=weight)
    np.testing.assert_array_equal(fix.held_out_.y, data["y"])
    np.testing.assert_array_equal(fix.held_out_.w, weight)
    assert fix.history_.chosen == 0 if methods == ["identity"] else fix.history_.chosen
    assert mean_loss(fix) == pytest.approx(fix.history_.loss_after, abs=1e-9)


def test_auto_has_only_the_evaluated_folds(monkeypatch):
    monkeypatch.setattr("trueup.calibrators.auto.MAX_EVALUATION_ROWS", 100)
    data = rows(n=900)
    data["p"] = data["p"] ** 3
    for methods in (["identity"], ["platt"]):
        fix = tu.Auto("p", [], methods=methods).fit(data, data["y"])
        assert len(fix.held_out_.y) == fix.choice_.rows < 500
        assert mean_loss(fix) == pytest.approx(fix.history_.loss_after, abs=1e-9)


def test_auto_has_no_held_out_rows_without_evaluation():
    data = rows()
    auto = tu.Auto("p", FEATURES, methods=[mcgrad(prediction=None, features=None, stopping=None, trees=5)], threads=1)
    assert auto.fit(data, data["y"]).held_out_ is None
    few = take(data, slice(11))
    assert tu.Auto("p", [], methods=["identity"], folds=11).fit(few, few["y"]).held_out_ is not None
    few = take(data, slice(10))
    assert tu.Auto("p", [], methods=["identity"]).fit(few, few["y"]).held_out_ is None


def test_a_wrapper_has_the_held_out_rows_of_its_calibrator():
    random = np.random.default_rng(0)
    X = random.normal(size=(500, 2))
    y = np.where(random.random(500) < 1 / (1 + np.exp(-2 * X[:, 0] * (X[:, 1] > 0))), "yes", "no")
    model = tu.CalibratedClassifier(LogisticRegression(), mcgrad(prediction=None, features=None), cv=3).fit(X, y)
    assert model.held_out_ is model.calibrator_.held_out_
    np.testing.assert_array_equal(model.held_out_.y, y == "yes")
    assert "500 labelled rows" in expected(model.predict_proba(X)[:, 1], model).evidence
    real = tu.CalibratedRegressor(calibrator=platt(prediction=None), cv=3).fit(X, X[:, 0])
    assert real.held_out_ is None


# ------------------------------------------------------------------ where there is nothing


@pytest.mark.parametrize("name", JUDGED)
def test_without_stopping_nothing_is_held_out(name):
    data = rows()
    assert JUDGED[name](stopping=None).fit(data, data["y"]).held_out_ is None


@pytest.mark.parametrize("name", JUDGED)
def test_real_outcomes_have_no_held_out_rows(name):
    data = rows("regression", 300)
    assert JUDGED[name](task="regression").fit(data, data["y"]).held_out_ is None


def test_held_out_rows_of_several_classes_have_a_score_per_class():
    data = rows("multiclass", 300)
    several = {"prediction": [f"p_{one}" for one in CLASSES], "classes": CLASSES}
    found = [mcgrad(**several), platt(**several), grouped(**several), tu.LoRe(features=["new"], **several)]
    found += [tu.Auto(features=[], methods=methods, **several) for methods in (["identity"], ["platt"])]
    for fix in found:
        held = fix.fit(data, data["y"]).held_out_
        rows_held = fix.held_out_rows_
        np.testing.assert_array_equal(np.array(CLASSES)[held.y.astype(int)], np.asarray(data["y"])[rows_held])
        np.testing.assert_allclose(held.p.sum(axis=1), 1, atol=1e-9)
        assert held.p.shape == fix.held_out_before_.shape == (len(rows_held), len(CLASSES))


def test_algorithm_1_holds_out_nothing():
    data = rows()
    assert lsboost(alpha=0.2).fit(data, data["y"]).held_out_ is None


# ------------------------------------------------------------------ decisions


def expected(p, bound, rule=0.25, **own):
    return td.expected_cost(p, COSTS, rule, labelled=bound, **own)


@pytest.mark.parametrize("name", ["mcgrad", "hkrr", "platt"])
def test_decisions_take_a_calibrator_as_labelled_rows(name):
    data = rows()
    fix = JUDGED[name]().fit(data, data["y"])
    p = fix.predict(data)
    found, same = expected(p, fix), expected(p, tuple(fix.held_out_))
    assert found.evidence == "700 labelled rows"
    assert (found.estimate, found.low, found.high) == (same.estimate, same.low, same.high)


def test_a_calibrator_without_held_out_rows_is_rejected():
    data = rows()
    fix = platt(stopping=None).fit(data, data["y"])
    with pytest.raises(ArgumentError, match="this Platt has no held-out rows"):
        expected(data["p"], fix)


@pytest.mark.parametrize("name", ["MCGrad", "Isotonic", "Auto", "CalibratedClassifier", "CalibratedRegressor"])
def test_an_unfitted_calibrator_is_rejected(name):
    with pytest.raises(NotFittedError, match=f"this {name} is not fitted yet"):
        expected([0.2, 0.4], getattr(tu, name)())


@pytest.mark.parametrize("strange", [tu.MCGrad, LogisticRegression(), "mcgrad"])
def test_other_objects_are_not_called_unfitted_calibrators(strange):
    with pytest.raises(ArgumentError, match="labelled must be rows with outcomes"):
        expected([0.2, 0.4], strange)


def test_held_out_rows_are_copied_and_pickled_but_not_cloned():
    data = rows()
    fix = platt().fit(data, data["y"])
    for again in (copy.deepcopy(fix), pickle.loads(pickle.dumps(fix))):
        assert type(again.held_out_) is type(fix.held_out_)
        for one, other in zip(again.held_out_, fix.held_out_, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one is not other
    assert not hasattr(clone(fix), "held_out_")


def test_held_out_rows_are_copies():
    data = rows()
    y = data["y"].astype(float)
    fix = isotonic().fit(data, y)
    y[:], data["p"][:] = 0.5, 0.5
    assert set(fix.held_out_.y) == {0.0, 1.0}
    assert len(set(fix.held_out_.p)) > 10


def simulated(n, random):
    z, group = random.normal(-1, 1.2, n), random.integers(0, 3, n)
    truth = 1 / (1 + np.exp(-0.6 * z - np.array([-0.8, 0.0, 0.8])[group]))
    return {"p": 1 / (1 + np.exp(-z)), "group": group.astype(str), "y": (random.random(n) < truth).astype(float)}


@pytest.mark.parametrize("make", [
    lambda: isotonic(stopping=tu.CrossValidation()),
    lambda: multiaccuracy(features=["group"], stopping=tu.CrossValidation()),
    lambda: tu.LoRe("p", ["group"], threads=1),
])  # fmt: skip
@pytest.mark.repeated(20, 60)
def test_cost_intervals_from_held_out_rows_have_their_coverage(make, repetitions):
    held = 0
    for seed in range(repetitions):
        random = np.random.default_rng([seed, 5])
        data, new = simulated(500, random), simulated(1500, random)
        fix = make().fit(data, data["y"])
        p = fix.predict(new)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShiftWarning)  # scores of a few steps differ a little from model to model
            found = expected(p, fix)
        cost = float(np.where(p >= 0.25, 1 - new["y"], 4 * new["y"]).sum())
        held += found.low <= cost <= found.high
    assert held / repetitions >= 0.9 - 3 * np.sqrt(0.9 * 0.1 / repetitions)


def test_an_audit_of_held_out_scores_of_a_cross_fit_says_that_it_is_nearly_blind():
    data = tu.simulate.lending(6_000, seed=1)
    by = ["region", "product"]
    fix = tu.MCGrad("prediction", by, threads=1).fit(data, data["outcome"])
    assert fix.history_.is_cross_fit

    def audit(p, order=slice(None)):
        frame = {"p": p[order], "y": data["outcome"][order], **{name: data[name][order] for name in by}}
        return tu.audit(frame, outcome="y", prediction="p", by=by, threads=1)

    order = np.random.default_rng(0).permutation(6_000)
    for found in (audit(fix.held_out_.p), audit(fix.held_out_.p, order)):
        assert found.cross_fitted
        assert found.verdict.endswith("; nearly blind: these are held-out scores of a cross-fit")
        assert "an audit of them is nearly blind" in repr(found)
    for scores in (fix.predict(data), np.asarray(data["prediction"])):
        assert not audit(scores).cross_fitted
    held = tu.MCGrad("prediction", by, threads=1, stopping=tu.Holdout(0.5)).fit(data, data["outcome"])
    assert not held.history_.is_cross_fit
    marked = {"p": fix.predict(data), "p_held_out": np.ones(6_000), "y": data["outcome"]}
    found = tu.audit(marked, outcome="y", prediction="p", threads=1)
    assert found.cross_fitted
    assert not found.schema.features  # the mark forms no segments


def test_errors_of_held_out_scores_cancel_within_groups():
    # Rates of 30 groups, estimated from the other folds: audits of the held-out scores find nothing, those of new rows do.
    alarms = np.zeros(2)
    for seed in range(8):
        random = np.random.default_rng(seed)
        rate, fold = random.beta(4, 8, 30), random.integers(0, 5, 1_500)
        group, new = random.integers(0, 30, 1_500), random.integers(0, 30, 6_000)
        y, outcome = (random.random(len(g)) < rate[g] for g in (group, new))
        counts = [
            np.bincount(group[fold != k], y[fold != k], 30) / np.bincount(group[fold != k], minlength=30) for k in range(5)
        ]
        fits = np.clip(counts, 0.01, 0.99)
        held_out = {"y": y, "p": fits[fold, group], "group": group.astype(str)}
        later = {"y": outcome, "p": fits.mean(axis=0)[new], "group": new.astype(str)}
        for k, frame in enumerate((held_out, later)):
            alarms[k] += tu.audit(frame, outcome="y", prediction="p", min_rows=20, threads=1).miscalibrated
    assert alarms[0] == 0
    assert alarms[1] >= 6
