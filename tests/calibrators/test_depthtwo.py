"""DepthTwo: the best tree by brute force, the bound on groups, what saturation sees and what it does not, no harm."""

from __future__ import annotations

import numpy as np
import pytest

import trueup as tu
import twins
from checks import FEATURES, rows
from trueup.calibrators import depthtwo
from trueup.calibrators.depthtwo import BOUNDS, RATES, Saturation, _find_bounds, _is_large, measure_saturation
from trueup.data.folds import assign_folds
from trueup.data.frame import read
from trueup.data.simulate import Shift, population
from trueup.errors import ArgumentError
from trueup.metrics import discretize, k1

SHIFTS = [Shift({"c0": "c0_1"}, 0.9), Shift({"c1": "c1_2"}, -0.7), Shift({"c0": "c0_2", "c1": "c1_1"}, 1.2)]
COLUMNS = ["c0", "c1", "x0"]


def wrong(n, seed=0, **own):
    return population(n, seed, levels=(4, 3), numeric=1, **{"shifts": SHIFTS} | own)


def right(n, seed=0, **own):
    return wrong(n, seed, shifts=(), **own)


def fit(data, columns=COLUMNS, y="outcome", **own):
    return tu.DepthTwo("prediction", columns, **{"threads": 1} | own).fit(data, data[y])


def xor(n, seed=0, gamma=0.4, more=()):
    """Draw the counter-example of the paper: a score of 1/2, and outcomes that hang on the exclusive or of three groups."""
    random = np.random.default_rng([seed, 5])
    groups = random.random((n, 3)) < 0.5
    sign = np.where(groups.sum(axis=1) % 2 == 1, 1, -1)
    y = (random.random(n) < 0.5 + gamma / 2 * sign).astype(int)
    columns = {f"g{at + 1}": groups[:, at] for at in range(3)} | {name: random.random(n) < 0.5 for name in more}
    return columns | {"prediction": np.full(n, 0.5), "outcome": y}


# ------------------------------------------------------------------ what is learned


def best_split(columns, residual, rows):
    """Find the split of some rows that lowers their squared error the most, by trying every one."""
    best = (0.0, rows, rows[:0])
    for column in columns:
        for cut in np.unique(column[rows])[:-1]:
            left, right = rows[column[rows] <= cut], rows[column[rows] > cut]
            gain = sum(residual[part].sum() ** 2 / len(part) for part in (left, right)) - residual[rows].sum() ** 2 / len(
                rows
            )
            if gain > best[0] + 1e-12:
                best = (gain, left, right)
    return best[1:]


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_one_tree_equals_the_brute_force_optimum(task):
    random = np.random.default_rng(3)
    n = 240
    a, b = (random.integers(0, 2, n).astype(float) for _ in range(2))
    c = random.integers(0, 3, n).astype(float)
    p = random.choice([0.2, 0.5, 0.7], n)
    y = np.clip(p + 0.15 * a - 0.2 * a * (p > 0.4) + 0.1 * (c == 2) * b + random.normal(0, 0.05, n), 0, 1)
    scale = 1.0 if task == "binary" else 40.0
    data = {"a": a, "b": b, "c": c, "prediction": scale * p}
    fix = tu.DepthTwo(
        "prediction", task=task, stopping=None, trees=1, learning_rate=1.0, l2=0.0, min_rows=0, feature_fraction=1.0
    )
    found = fix.fit(data, scale * y).predict(data)
    residual, expected = y - p, p.copy()
    for half in best_split([p, a, b, c], residual, np.arange(n)):
        for leaf in best_split([p, a, b, c], residual, half):
            if len(leaf):
                expected[leaf] += residual[leaf].mean()
    assert np.ptp(expected - p) > 0.1
    np.testing.assert_allclose(found, scale * np.clip(expected, 0, 1), rtol=0, atol=1e-6 * scale)  # single precision inside


@pytest.mark.parametrize(
    "stopping", [tu.CrossValidation(3), tu.Holdout(0.3), None, tu.CrossValidation(3, refit=True)], ids=str
)
def test_the_map_is_one_round_with_factor_one_and_pair_tables(stopping):
    data = wrong(3000)
    fix = fit(data, stopping=stopping, trees=60, saturation=False)
    found = fix.model_.map
    assert (found.steps, found.link, found.cascades) == (1, "identity", 3 if stopping == tu.CrossValidation(3) else 1)
    assert set(found.rounds[0].thetas) == {1.0}
    assert found.cells > 0
    assert fix.history_.measure == "squared error"


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_holdout_history_is_the_squared_error_of_held_out_rows(task):
    data = rows(task, 1500)
    fix = tu.DepthTwo("p", FEATURES, task=task, stopping=tu.Holdout(0.3), saturation=False).fit(data, data["y"])
    table = read(data, outcome="y", prediction="p", features=FEATURES, task=task)
    strata = table.outcome if task == "binary" else np.zeros(1500)
    held = np.flatnonzero(assign_folds([*table.columns.values(), table.prediction], strata, 1000, 0) < 300)
    y, before, after = data["y"][held], data["p"][held], fix.predict(data)[held]
    gains = (y - before) ** 2 - (y - after) ** 2
    base, one = fix.history_.rounds
    assert (fix.history_.chosen, one.theta, fix.history_.evaluated_on) == (1, 1.0, "held-out rows")
    assert base.loss == pytest.approx(np.mean((y - before) ** 2))
    assert one.loss == pytest.approx(np.mean((y - after) ** 2))
    assert one.gain == pytest.approx(gains.mean())
    assert one.error == pytest.approx(gains.std() / np.sqrt(len(held)), rel=0.05)  # and a correction for few rows


@pytest.mark.parametrize("stopping", [tu.CrossValidation(), tu.Holdout(0.3), tu.CrossValidation(3, refit=True)], ids=str)
@pytest.mark.parametrize("task", ["binary", "regression"])
def test_miscalibrated_scores_improve_on_new_rows(task, stopping):
    data, more = rows(task, 3000), rows(task, 3000, seed=1)
    fix = tu.DepthTwo("p", FEATURES, task=task, stopping=stopping, saturation=False).fit(data, data["y"])
    before, after = (np.mean((more["y"] - p) ** 2) for p in (more["p"], fix.predict(more)))
    assert after < 0.93 * before
    assert fix.history_.loss_after == pytest.approx(after, rel=0.15)


def test_a_validation_set_is_used():
    data, held = wrong(3000), wrong(2000, 1)
    fix = fit(data, stopping=tu.Validation(held, held["outcome"]))
    after = np.mean((held["outcome"] - fix.predict(held)) ** 2)
    assert fix.history_.evaluated_on == "given rows"
    assert fix.history_.loss_after == pytest.approx(after, rel=1e-9)
    assert fix.saturation_.rows == 2000


def test_continuous_scores_are_better_than_scores_on_levels():
    # Lemma 4.2 of the paper: what is fitted on top of the scores is no worse than what is fitted on top of rounded scores.
    data = wrong(4000)
    own = {"stopping": None, "trees": 400, "learning_rate": 0.3, "l2": 0.0, "min_rows": 1, "feature_fraction": 1.0}
    y = data["outcome"]
    continuous = np.mean((y - fit(data, **own).predict(data)) ** 2)
    for m in (5, 10, 20):
        rounded = data | {"prediction": discretize(data["prediction"], m)}
        assert continuous < np.mean((y - fit(rounded, **own).predict(rounded)) ** 2)


# ------------------------------------------------------------------ the sweep


def test_the_rate_search_follows_the_lower_loss_and_a_given_rate_is_not_searched():
    data = wrong(4000)
    fix = fit(data, saturation=False)
    rates = [one.learning_rate for one in fix.sweep_.tried]
    assert set(rates) in ({0.3, 0.1}, {1.0, 0.3, 0.1}, {0.3, 0.1, 0.03}, {0.3, 0.1, 0.03, 0.01})
    assert rates == sorted(rates, reverse=True)
    chosen = next(one for one in fix.sweep_.tried if one.learning_rate == fix.sweep_.learning_rate)
    assert chosen.trees == fix.history_.rounds[1].trees
    gained = fix.history_.loss_before - chosen.loss
    assert chosen.loss - min(one.loss for one in fix.sweep_.tried) < 0.1 * gained  # ties go to the higher rate
    assert f"learning rate {chosen.learning_rate:g}" in fix.history_.reason
    given = fit(data, saturation=False, learning_rate=chosen.learning_rate)
    assert [one.learning_rate for one in given.sweep_.tried] == [chosen.learning_rate]
    assert given.predict(data).tobytes() == fix.predict(data).tobytes()
    assert list(fix.sweep_.to_frame()) == ["learning_rate", "trees", "loss"]
    assert fix.sweep_.to_dict()["learning_rate"] in RATES
    assert repr(fix.sweep_).startswith(f"Sweep: learning rate {chosen.learning_rate:g} was chosen")


def test_a_single_shift_is_fitted_at_the_highest_rate():
    # A single tree puts all of it right at once: many small steps have nothing to add.
    random = np.random.default_rng(0)
    group = random.random(3000) < 0.5
    data = {"group": group, "prediction": random.normal(size=3000)}
    y = data["prediction"] + 5.0 * group
    fix = tu.DepthTwo("prediction", task="regression", l2=0.0, trees=40, saturation=False).fit(data, y)
    assert fix.sweep_.learning_rate == 1.0
    np.testing.assert_allclose(fix.predict(data), y, atol=1e-5)


# ------------------------------------------------------------------ bounds of probabilities


def test_rows_without_events_do_not_allow_a_probability_of_zero():
    # k rows below 0 and no event among them: k c - log c is least at c = 1 / k.
    for k in (200, 1000, 5000):
        scores, y = np.r_[np.full(k, -0.01), np.full(k, 0.5)], np.r_[np.zeros(k), np.tile([0.0, 1.0], k // 2)]
        low, high = _find_bounds(scores, y, None)
        step = BOUNDS[1] / BOUNDS[0]
        assert 1 / step < low * k < step
        assert high == pytest.approx(1, abs=1 / k)  # nothing was seen there: one in all rows
        assert _find_bounds(1 - scores, 1 - y, None) == pytest.approx((1 - high, 1 - low))
        assert _find_bounds(scores, y, np.ones(2 * k)) == (low, high)


def test_probabilities_are_clipped_and_real_predictions_are_not():
    data = wrong(4000, prevalence=0.03)
    fix = fit(data | {"prediction": np.where(data["c0"] == "c0_1", 0.0, data["prediction"])}, saturation=False)
    low, high = fix.model_.map.clip
    ends = fix.predict(data | {"prediction": np.where(data["x0"] > 0, 0.0, 1.0)})
    assert fix.history_.chosen == 1
    assert 0 < low <= ends.min()
    assert ends.max() <= high < 1
    real = rows("regression", 1500)
    real = tu.DepthTwo("p", FEATURES, task="regression", saturation=False).fit(real, real["y"])
    assert real.model_.map.clip is None
    assert real.predict_one({"p": 1e6}) > 1e5


def test_clip_is_the_range_of_probabilities():
    data = wrong(6000, prevalence=0.1)
    literal, free = (fit(data, clip=clip, saturation=False, stopping=tu.Holdout(0.3)) for clip in ((0, 1), "auto"))
    assert literal.model_.map.clip == (0.0, 1.0)
    assert literal.history_.chosen == free.history_.chosen == 1
    low, high = free.model_.map.clip
    np.testing.assert_array_equal(np.clip(literal.predict(data), low, high), free.predict(data))
    assert low > 0
    narrow = fit(data, clip=(0.02, 0.5), saturation=False, stopping=None, trees=20)
    assert narrow.model_.map.clip == (0.02, 0.5)
    for wrong_clip in ((0.5, 0.2), "none", (0, 2), 3):
        with pytest.raises(ArgumentError, match='clip must be "auto" or the lowest and the highest probability'):
            fit(data, clip=wrong_clip)


def test_trees_that_increase_the_log_loss_are_dropped(monkeypatch):
    # The squared error falls in both fits; whether the log loss does is what the stand-ins for it say.
    data = wrong(3000)
    for sign, chosen in ((1, 1), (-1, 0)):
        monkeypatch.setattr(depthtwo, "_log_loss", lambda y, p, sign=sign: sign * (y - p) ** 2)
        fix = fit(data, saturation=False)
        assert fix.history_.chosen == chosen
        assert fix.history_.rounds[1].gain > 2 * fix.history_.rounds[1].error
        assert ("increased the log loss; scores are left unchanged" in fix.history_.reason) is (not chosen)
    assert fix.predict(data).tobytes() == data["prediction"].tobytes()


def test_the_contributions_of_a_row_add_up_and_include_clipping():
    data = wrong(4000)
    data["prediction"] = np.minimum(data["prediction"] + 0.3, 1.0)
    fix = fit(data, stopping=None)
    bounded = 0
    for at in range(150):
        row = {name: data[name][at] for name in [*COLUMNS, "prediction"]} | ({"prediction": 0.0} if at % 3 == 0 else {})
        explanation = fix.explain(row)
        assert explanation.scale == "prediction"
        assert explanation.after == fix.predict_one(row)
        assert sum(part.change for part in explanation.contributions) == pytest.approx(
            explanation.after - explanation.before, abs=1e-12
        )
        kept = sum(part.change for part in explanation.contributions if part.condition == "clipping to 0 and 1")
        assert kept > 0.1 if at % 3 == 0 else abs(kept) < 0.1
        bounded += kept > 0.1
    assert bounded == 50


# ------------------------------------------------------------------ saturation


def test_saturation_gains_match_their_definition():
    y, before, after = (
        np.array([0.0, 1, 1, 0] * 20),
        np.tile([0.5, 0.5, 0.75, 0.25], 20),
        np.tile([0.25, 0.75, 0.5, 0.25], 20),
    )
    found = measure_saturation(y, before, [after, before], [before], None, real=False)
    # Losses .25 .25 .0625 .0625 become .0625 .0625 .25 .0625: differences .1875 .1875 -.1875 0, mean .046875.
    assert found.eps == pytest.approx(0.046875)
    spread = np.std([0.1875, 0.1875, -0.1875, 0]) / np.sqrt(80)
    assert found.error == pytest.approx(spread, rel=0.02)
    assert (found.deeper, found.deeper_error, found.rows, found.unit, found.span) == (0.0, 0.0, 80, 1.0, 1.0)
    assert not found.saturated
    worse = measure_saturation(y, after, [before], [after], None, real=False)
    assert worse.eps == 0.0  # a pass that loses has nothing to gain
    weighted = measure_saturation(y, before, [after], [after], np.tile([2.0, 2, 0.5, 0.5], 20), real=False)
    assert weighted.eps == pytest.approx((2 * 2 * 0.1875 - 0.5 * 0.1875) / 5)
    real = measure_saturation(100 * y, 100 * before, [100 * after], [100 * before], None, real=True)
    assert real.eps == pytest.approx(0.046875 / 0.25)  # a share of the variance of the outcome
    assert (real.unit, real.span) == (pytest.approx(50), pytest.approx(1.0))


@pytest.mark.parametrize(
    ("second", "deeper", "saturated"),
    [((3e-6, 1e-6), (0.0, 1e-5), True), ((9e-4, 1e-5), (0.0, 0.0), True), ((2e-3, 1e-3), (2e-3, 1e-3), True),
     ((2e-3, 1e-4), (0.0, 0.0), False), ((0.0, 1e-4), (2e-3, 1e-4), False), ((0.011, 0.02), (0.0, 0.0), False),
     ((0.0, 0.0), (0.011, 0.02), False)],
)  # fmt: skip
def test_a_gain_is_large_above_001_or_significantly_above_0001(second, deeper, saturated):
    assert (not (_is_large(*second) or _is_large(*deeper))) is saturated
    sentence = Saturation(*second, *deeper, saturated, 1000).sentence
    assert sentence.startswith("saturated: " if saturated else "not saturated: ")
    assert ("use deeper trees" in sentence) is not saturated


def test_the_bound_is_the_root_of_the_gain_plus_half_a_step():
    found = Saturation(4e-4, 2.5e-4, 0.0, 0.0, True, 1000)
    assert found.rounding(20) == 1 / 40
    assert found.bound(20, errors=0) == pytest.approx(0.02 + 1 / 40)
    assert found.bound(20) == pytest.approx(0.03 + 1 / 40)
    assert found.bound(20, share=0.25) == pytest.approx(0.06 + 1 / 40)
    assert (
        found.to_dict()["bounds_of_a_tenth"]["50"] == found.to_frame()["bound_of_a_tenth"][2] == found.bound(50, share=0.1)
    )
    wide = Saturation(4e-4, 2.5e-4, 0.0, 0.0, True, 1000, unit=7.0, span=5.0)
    assert wide.rounding(20) == 5 / 40
    assert "standard deviations" in wide.sentence
    assert found.to_frame()["levels"].tolist() == [10, 20, 50, 100]
    np.testing.assert_allclose(found.to_frame()["bound"], [found.bound(m) for m in (10, 20, 50, 100)])
    assert found.to_dict()["bounds"]["50"] == found.bound(50)
    assert repr(found) == f"Saturation: {found.sentence}"
    # Rounding to m levels moves a score by at most half a step.
    p = np.random.default_rng(0).random(1000)
    for m in (1, 10, 33):
        assert np.abs(discretize(p, m) - p).max() <= found.rounding(m)
    for bad in (0, 1.5, True, "10"):
        with pytest.raises(ArgumentError, match="m must be an integer"):
            found.bound(bad)


def test_the_error_of_a_group_is_bounded_by_its_share():
    # A bound that ignores the share is that of K1, which counts all rows, and does not hold for the error of a group.
    columns, wrong, beyond = ["region", "product", "employment", "age"], 0, 0
    new = tu.simulate.lending(100_000, seed=999)
    masks = [np.asarray(new["region"]) == name for name in set(new["region"]) if name is not None]
    masks.append(np.asarray(new["age"]) < 20)
    for seed in range(4):
        data = tu.simulate.lending(5_000, seed=seed)
        fix = tu.DepthTwo("prediction", columns, threads=1).fit(data, data["outcome"])
        p, found = fix.predict(new), fix.saturation_
        assert found.saturated
        level = np.minimum(np.floor(100 * p), 99).astype(int)
        errors = [np.abs(np.bincount(level[g], (new["truth"] - (level + 0.5) / 100)[g])).sum() / g.sum() for g in masks]
        wrong += max(errors) > found.bound(100)
        beyond += any(error > found.bound(100, share=g.mean()) for error, g in zip(errors, masks, strict=True))
    assert wrong >= 1
    assert beyond == 0


def test_the_error_of_every_group_is_below_the_bound_if_saturated():
    shifts = [Shift({"c0": "c0_1"}, 2.0), Shift({"c1": "c1_2"}, -2.0)]
    data, more = (wrong(10_000, seed, spread=1.5, shifts=shifts) for seed in (0, 1))
    fix = fit(data)
    assert fix.saturation_.saturated
    assert fix.saturation_.sentence.startswith("saturated: ")
    groups = np.column_stack([more[name] == level for name in ("c0", "c1") for level in np.unique(more[name])])
    after = fix.predict(more)
    for m in (10, 20, 50, 100):
        # Against the truth of a simulation, K1 has no noise of outcomes.
        assert k1(more["truth"], discretize(after, m), groups).max() < fix.saturation_.bound(m)
    assert k1(more["truth"], discretize(more["prediction"], 100), groups).max() > fix.saturation_.bound(100)


def test_an_exclusive_or_of_three_groups_is_reported_as_not_saturated():
    data = xor(4000, 2)
    fix = fit(data, ["g1", "g2", "g3"])
    found = fix.saturation_
    assert fix.history_.chosen == 0
    # gamma^2 / 4 = .04 is there to be gained; the standard error of the mean gain of 4,000 rows is about .003.
    assert found.deeper == pytest.approx(0.04, abs=4 * found.deeper_error)
    assert found.deeper_error < 0.004
    assert found.eps < 1e-3
    assert not found.saturated
    assert "not saturated" in found.sentence
    assert found.sentence.endswith("use deeper trees: depth=4, or tu.MCGrad(depth=4, feature_fraction=1.0)")
    three = fit(data, ["g1", "g2", "g3"], depth=3)  # the advice helps
    assert np.mean((three.predict(data) - data["outcome"]) ** 2) < 0.25 - 0.03
    assert three.saturation_.deeper < 0.01
    assert "on held-out rows of 5 fold models (their mean is used) a second pass" in three.saturation_.sentence
    assert "trees of depth 5 by" in three.saturation_.sentence
    deep = tu.MCGrad("prediction", ["g1", "g2", "g3"], depth=4, feature_fraction=1.0).fit(data, data["outcome"])
    assert np.mean((deep.predict(data) - data["outcome"]) ** 2) < 0.25 - 0.03  # the advice helps


def test_an_exclusive_or_among_other_groups_is_reported():
    assert not fit(xor(3000, 1, more=("h1", "h2")), ["g1", "g2", "g3", "h1", "h2"]).saturation_.saturated


def test_on_noise_the_saturation_gain_is_within_its_error():
    # On pure noise a pass that judged its own rows would gain; one that does not gains nothing beyond its error.
    found = [fit(right(1000, seed), stopping=tu.CrossValidation(3)).saturation_ for seed in range(5)]
    assert all(one.saturated for one in found)
    assert np.mean([one.eps for one in found]) < 2 * np.mean([one.error for one in found])
    assert [one.rows for one in found] == [1000] * 5


def test_saturation_does_not_depend_on_the_unit_of_a_real_outcome():
    found = []
    for scale in (1.0, 2.0**20):
        data, more = (rows("regression", 1200, seed) for seed in (0, 1))
        for one in (data, more):
            one |= {"p": scale * one["p"], "y": scale * one["y"]}
        fix = tu.DepthTwo("p", FEATURES, task="regression", stopping=tu.Validation(more, more["y"]))
        found.append(fix.fit(data, data["y"]).saturation_)
    assert found[1].eps == pytest.approx(found[0].eps, rel=1e-6, abs=1e-9)
    assert found[1].unit == pytest.approx(2.0**20 * found[0].unit)
    assert found[1].bound(10) == pytest.approx(found[0].bound(10), rel=1e-6)
    assert "of the outcome's variance" in found[0].sentence


def test_saturation_is_optional_and_needs_held_out_rows():
    data = wrong(500)
    assert fit(data, stopping=None).saturation_ is None
    assert fit(data, saturation=False).saturation_ is None
    fixed = fit(data, stopping=None, trees=7)
    assert fixed.history_.reason == "7 trees at learning rate 0.1 as specified; no rows were held out"
    assert fixed.history_.evaluated_on == "training rows"


# ------------------------------------------------------------------ no harm, and refusals


@pytest.mark.repeated(6, 20)
def test_calibrated_scores_are_not_harmed(repetitions):
    n = 1000
    harms, untouched = [], 0
    for seed in range(repetitions):
        data, more = right(n, seed), right(n, 1000 + seed)
        fix = fit(data, saturation=False)
        t, p = more["truth"], fix.predict(more)
        untouched += fix.history_.chosen == 0
        harms.append(float(np.mean(t * np.log(t / p) + (1 - t) * np.log((1 - t) / (1 - p)))))
    assert np.mean(harms) < 0.001
    # A gate of 1.5 standard errors lets chance pass in 7 of 100 cases, were the mean gain of chance zero, which it is not.
    assert untouched / repetitions >= 0.93 - twins.three_se(0.93, repetitions)


def test_without_trees_scores_are_bitwise_unchanged():
    data = right(400, 2)
    data["prediction"] = np.where(np.arange(400) % 50, data["prediction"], np.round(data["outcome"]))
    fix = fit(data, saturation=False)
    assert fix.history_.chosen == 0
    assert fix.predict(data).tobytes() == data["prediction"].tobytes()
    assert "scores are left unchanged" in fix.history_.reason
    assert fix.explain({"prediction": 0.0}).change == 0


def test_several_classes_are_rejected_with_an_alternative():
    data = rows("multiclass", 100)
    with pytest.raises(ArgumentError, match=r"one prediction column; got \d, one per class\nhint: tu.MCGrad"):
        tu.DepthTwo(["p_cat", "p_dog", "p_owl"], FEATURES).fit(data, data["y"])
