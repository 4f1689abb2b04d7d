"""Whether a class of functions improves on the mean outcome of a level: gains, p-values and false alarms."""

from __future__ import annotations

import json

import numpy as np
import pytest

import trueup as tu
from trueup.audits.swap_regret import mean_pvalue
from trueup.errors import ArgumentError
from twins import three_se

ROLES = {"outcome": "y", "prediction": "p", "features": ["a", "b"]}


def draw(rows, seed=0, *, effect=0.0, interaction=0.0, rounds=3):
    """Draw two features, a score of three values, and outcomes that also depend on the features on the highest level."""
    random = np.random.default_rng(seed)
    a, b, level = random.normal(size=rows), random.normal(size=rows), random.integers(0, rounds, rows)
    p = (0.2 + 0.2 * level).round(3)
    high = level == rounds - 1
    chance = p + np.where(high, effect * np.sign(a) + interaction * np.sign(a * b), 0.0)
    return {"a": a, "b": b, "p": p, "y": (random.random(rows) < chance).astype(float)}


class Split:
    """Predict the mean outcome on either side of a = 0: a plain weak learner."""

    def fit(self, X, y):
        self.means = [y[side].mean() for side in (X[:, 0] <= 0, X[:, 0] > 0)]
        return self

    def predict(self, X):
        return np.where(X[:, 0] > 0, self.means[1], self.means[0])


def test_gains_are_those_of_the_fitted_functions_on_the_held_out_rows():
    data = draw(3000, effect=0.15)
    found = tu.weak_learning(data, **ROLES, learner=Split(), levels=3)
    split = tu.swap_regret(data, **ROLES, learner=Split(), levels=3)
    for level, value in zip(found.levels, np.unique(data["p"]), strict=True):
        on = data["p"] == value
        train, held = on & ~split.held, on & split.held
        means = [data["y"][train & side].mean() for side in (data["a"] <= 0, data["a"] > 0)]
        y, h = data["y"][held], np.where(data["a"] > 0, means[1], means[0])[held]
        gain = (y.mean() - y) ** 2 - (h - y) ** 2
        assert level.gain == pytest.approx(gain.mean())
        h = np.where(data["a"] > 0, means[1], means[0])[held]
        assert level.p_value == pytest.approx(mean_pvalue((h - h.mean()) / h.std() * (y - y.mean()), np.ones(len(y))))
        assert (level.rows, level.rows_held) == (on.sum(), held.sum())


def test_a_planted_advantage_is_found_on_its_level_only():
    found = tu.weak_learning(draw(6000, effect=0.15), **ROLES, levels=3)
    assert found.advantage == ("0.600",)
    assert "advantage on 1 of 2 levels: more rounds would help there" in found.verdict
    for gamma, found in ((0.01, 1), (0.04, 0)):  # stumps on the sign of a gain .15^2 = .0225
        assert len(tu.weak_learning(draw(6000, effect=0.15), **ROLES, levels=3, gamma=gamma).advantage) == found


def test_an_interaction_violates_weak_learning_of_stumps_relative_to_deeper_trees():
    found = tu.weak_learning(draw(8000, interaction=0.2), **ROLES, levels=3, relative_to="tree", depth=1)
    assert found.advantage == ()
    assert found.violated == ("0.600",)
    assert "weak learning relative to" in found.verdict
    assert "fails at scores 0.600" in found.verdict
    deep = tu.weak_learning(draw(8000, interaction=0.2), **ROLES, levels=3, relative_to="tree", depth=2)
    assert deep.violated == ()


@pytest.mark.repeated(100, 1000)
@pytest.mark.parametrize("clusters", [False, True])
def test_false_alarms_are_as_rare_as_stated(repetitions, clusters):
    alarms = 0
    for seed in range(repetitions):
        data, roles = draw(900, seed), dict(ROLES)
        if clusters:  # ten copies of each row
            data = {name: np.repeat(column[:300], 5) for name, column in data.items()}
            data["id"] = np.repeat(np.arange(300), 5)
            roles["cluster"] = "id"
        alarms += bool(tu.weak_learning(data, **roles, levels=3, random_state=seed, min_rows=50).advantage)
    assert alarms / repetitions <= 0.05 + three_se(0.05, repetitions)


def test_miscalibration_alone_is_no_advantage_over_the_best_constant():
    data = draw(6000)
    data["p"] = data["p"] / 2
    assert tu.weak_learning(data, **ROLES, levels=3).advantage == ()
    assert tu.swap_regret(data, **ROLES, levels=3).miscalibrated


def test_real_outcomes_and_linear_functions():
    random = np.random.default_rng(5)
    data = draw(3000)
    data["y"] = 100 + 10 * data["a"] + 20 * random.normal(size=3000)
    data["p"] = np.where(data["p"] > 0.3, 90.0, 100.0) + random.random(3000)
    found = tu.weak_learning(data, **ROLES, learner="linear", levels=2, task="regression")
    assert len(found.advantage) == 2
    assert found.levels[0].gain == pytest.approx(100, rel=0.3)


def test_results_convert_and_thin_levels_are_not_tested():
    data = draw(3000, effect=0.1)
    found = tu.weak_learning(data, **ROLES, levels=3, relative_to="linear")
    frame = found.to_frame()
    assert list(frame["level"]) == ["0.200", "0.400", "0.600"]
    assert len(frame["reference_gain"]) == 3
    assert json.loads(json.dumps(found.to_dict(), allow_nan=False))["verdict"] == found.verdict
    assert repr(found).startswith("<WeakLearning ")
    few = tu.weak_learning({name: column[:12] for name, column in data.items()}, **ROLES)
    assert few.verdict.startswith("nothing could be tested")
    assert not few.levels[0].tested


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"gamma": -1}, "gamma must be a number at least 0"),
        ({"relative_to": 3}, "relative_to must be 'tree', 'linear', a regressor"),
        ({"learner": "forest"}, "learner must be one of"),
        ({"depth": 4}, "depth must be an integer"),
    ],
)
def test_wrong_arguments_are_rejected(arguments, message):
    with pytest.raises(ArgumentError, match=message):
        tu.weak_learning(draw(100), **ROLES, **arguments)
