"""Repeated cross-validation: means over several, and where it is available."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit, logit

import trueup as tu
from checks import FEATURES, rows
from trueup.calibrators.mcgrad.repeats import REPEAT_SEED
from trueup.errors import ArgumentError

CV = tu.CrossValidation(3)


def mcgrad(**own):
    return tu.MCGrad(**{"prediction": "p", "features": FEATURES, "threads": 1, "stopping": CV, "rounds": 1} | own)


def test_scores_are_the_means_of_separate_cross_validations():
    data = rows("binary", 700)
    both = mcgrad(repeats=2).fit(data, "y")
    separate = [mcgrad(repeats=1, random_state=seed).fit(data, "y") for seed in (0, REPEAT_SEED)]
    assert both.history_.chosen == separate[0].history_.chosen == separate[1].history_.chosen
    expected = expit(np.mean([logit(fix.predict(data)) for fix in separate], axis=0))
    np.testing.assert_allclose(both.predict(data), expected, rtol=1e-9)
    held_out = expit(np.mean([logit(fix.held_out_.p) for fix in separate], axis=0))
    np.testing.assert_allclose(both.held_out_.p, held_out, rtol=1e-9)
    np.testing.assert_array_equal(both.held_out_.y, data["y"])
    y, p = both.held_out_.y, both.held_out_.p
    assert both.history_.loss_after == pytest.approx(-np.mean(y * np.log(p) + (1 - y) * np.log1p(-p)))
    assert both.model_.map.cascades == 6
    assert both.history_.capacities == separate[0].history_.capacities


def test_few_rows_are_repeated_by_default_and_many_are_not():
    for count, cascades in ((600, 12), (2499, 12), (2500, 3)):
        assert mcgrad(depth=2, trees=3).fit(rows("binary", count), "y").model_.map.cascades == cascades


def test_a_refit_after_repeats_is_one_cascade():
    data = rows("binary", 600)
    fix = mcgrad(stopping=tu.CrossValidation(3, refit=True), depth=2, trees=5).fit(data, "y")
    assert fix.history_.chosen
    assert fix.model_.map.cascades == 1


def test_a_repeated_fit_with_a_checkpoint_is_the_same_and_leaves_no_file(tmp_path):
    data, path = rows("binary", 600), tmp_path / "rounds"
    fix = mcgrad(depth=2, trees=5, resume=path).fit(data, "y")
    assert not path.exists()
    np.testing.assert_array_equal(fix.predict(data), mcgrad(depth=2, trees=5).fit(data, "y").predict(data))


def test_a_repeated_model_is_the_same_from_a_file(tmp_path):
    data = rows("binary", 600)
    fix = mcgrad().fit(data, "y")
    tu.save(fix, tmp_path / "fix.trueup")
    loaded = tu.load(tmp_path / "fix.trueup")
    np.testing.assert_array_equal(loaded.predict(data), fix.predict(data))
    assert loaded.history == fix.history_


@pytest.mark.repeated(10, 100)
def test_calibrated_scores_are_rarely_changed(repetitions):
    changed = 0
    for seed in range(repetitions):
        random = np.random.default_rng([seed, 77])
        p = expit(random.normal(-0.5, 1, 600))
        data = {"a": random.normal(size=600), "b": random.integers(0, 4, 600).astype(str), "p": p}
        fix = tu.MCGrad("p", ["a", "b"], threads=1).fit(data, (random.random(600) < p).astype(float))
        changed += fix.history_.chosen > 0
    assert changed <= 0.05 * repetitions + 3 * np.sqrt(0.05 * 0.95 * repetitions)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"repeats": 0}, "repeats must be"),
        ({"repeats": 2.5}, "repeats must be"),
        ({"repeats": 2, "stopping": tu.Holdout(0.3)}, "repeats=2 needs a cross-validation to repeat"),
        ({"repeats": 2, "stopping": None}, "repeats=2 needs a cross-validation to repeat"),
    ],
)
def test_invalid_repeats_are_rejected(given, message):
    data = rows("binary", 100)
    with pytest.raises(ArgumentError, match=message):
        mcgrad(**given).fit(data, "y")


def test_rows_of_files_are_not_repeated(tmp_path):
    data = rows("binary", 400)
    path = tmp_path / "rows.csv"
    lines = [",".join(map(str, row)) for row in zip(data["age"], data["p"], data["y"], strict=True)]
    path.write_text("\n".join(["age,p,y", *lines]))
    made = {"prediction": "p", "features": ["age"], "depth": 2, "trees": 3, "rounds": 1, "threads": 1}
    with pytest.raises(ArgumentError, match="repeats=2 needs rows in memory"):
        tu.MCGrad(**made, repeats=2).fit(tu.scan(path), "y")
    assert tu.MCGrad(**made).fit(tu.scan(path), "y").model_.map.cascades in (1, 5)
