"""The swap-regret audit: a class of functions in place of listed segments."""

from __future__ import annotations

import itertools
import json
import math
import re
import warnings
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LinearRegression
from sklearn.tree import DecisionTreeRegressor

import trueup as tu
from trueup.audits.swap_regret import mean_pvalue, sum_pvalue, weighted_mean
from trueup.errors import ArgumentError, DataError, TrueupError

LEARNERS = {"tree": "tree", "linear": "linear", "foreign": lambda: DecisionTreeRegressor(max_depth=2, random_state=0)}


def people(n=4000, seed=0, shift=0.0, rate=None):
    """Scores that are right, but for young people of the harbour where ``shift`` more happens than predicted."""
    random = np.random.default_rng(seed)
    data = {
        "region": random.choice(["harbour", "valley", "plains"], n),
        "age": random.integers(18, 70, n).astype(float),
        "income": random.normal(size=n),
    }
    data["p"] = random.uniform(0.1, 0.7, n) if rate is None else np.clip(rate * random.gamma(2, 0.5, n), 0.001, 0.9)
    planted = (data["region"] == "harbour") & (data["age"] < 40)
    data["y"] = (random.random(n) < data["p"] + shift * planted).astype(float)
    return data


def regret(data, **more):
    return tu.swap_regret(data, **{"outcome": "y", "prediction": "p", "threads": 1, **more})


# What the numbers are


@pytest.mark.parametrize("learner", LEARNERS)
@pytest.mark.parametrize("task", ["binary", "regression"])
@pytest.mark.parametrize("weighted", [False, True])
def test_the_identity_of_the_theorem_holds_on_held_out_rows(learner, task, weighted):
    data = people(1500, seed=3, shift=0.1)
    data["w"] = np.random.default_rng(1).lognormal(0, 1, 1500)
    if task == "regression":
        data["p"], data["y"] = 100 * data["p"], 100 * data["y"] + data["income"]
    more = {"weight": "w"} if weighted else {}
    found = regret(data, features=["region", "age", "income"], learner=LEARNERS[learner], task=task, **more)
    w = data["w"] if weighted else np.ones(1500)
    for one in (found.overall, *found.witnesses):
        own = found.held & (data["p"] >= one.low) & (data["p"] <= one.high)
        assert one.rows_held == own.sum()
        g, y, p = found.shift[own], data["y"][own], data["p"][own]
        mean = lambda values, own=own: np.average(values, weights=w[own])  # noqa: E731
        gain = mean((y - p) ** 2 - (y - (p + g)) ** 2)
        assert one.gain == pytest.approx(gain, abs=1e-9 * mean((y - p) ** 2))
        assert one.violation == pytest.approx(mean(g * (y - p)), rel=1e-9)
        assert one.violation == pytest.approx((one.gain + mean(g**2)) / 2, rel=1e-9)
        assert one.violation >= one.gain / 2
        assert one.correlation == pytest.approx(one.violation / math.sqrt(mean(g**2) * mean((y - p) ** 2)))
        assert (one.observed, one.predicted) == pytest.approx((mean(y), mean(p)))


@given(seed=st.integers(0, 10**6), rows=st.integers(150, 600), levels=st.integers(1, 6), share=st.floats(0.2, 0.8))
def test_levels_are_disjoint_and_cover_all_rows(seed, rows, levels, share):
    data = people(rows, seed)
    data["p"] = np.round(data["p"], 1)
    found = regret(data, levels=levels, min_rows=40, held_out=share)
    assert sum(one.rows for one in found) == rows
    assert sum(one.rows_held for one in found) == found.held.sum() == found.overall.rows_held
    ends = sorted((one.low, one.high) for one in found)
    assert all(a[1] < b[0] for a, b in itertools.pairwise(ends))
    assert len({one.level for one in found}) == len(found) <= levels


def test_k2_is_what_the_best_multiples_of_the_witnesses_gain():
    data = people(3000, seed=1, shift=0.15)
    found = regret(data, levels=4)
    total = 0.0
    for one in found:
        own = found.held & (data["p"] >= one.low) & (data["p"] <= one.high)
        g, e = found.shift[own], (data["y"] - data["p"])[own]
        best = (g @ e) / (g @ g)
        total += (e**2 - (e - best * g) ** 2).sum()
    assert found.k2 == pytest.approx(total / found.held.sum())
    assert 0 < found.k2_noise < found.k2


def test_k2_of_calibrated_scores_is_noise():
    found = [regret(people(1200, seed)) for seed in range(60)]
    over = [one.k2 - one.k2_noise for one in found]
    assert abs(np.mean(over)) < 4 * np.std(over) / math.sqrt(60)


def test_without_features_the_shift_is_the_shrunken_mean():
    data = people(2000, seed=2)
    found = regret(data, features=[], levels=3)
    for one in found:
        own = (data["p"] >= one.low) & (data["p"] <= one.high)
        train = own & ~found.held
        e = (data["y"] - data["p"])[train]
        assert found.shift[own] == pytest.approx(e.sum() / (len(e) + 100))


# Statistics as statistics


@pytest.mark.parametrize(("n", "p", "k"), [(50, 0.02, 3), (50, 0.02, 6), (40, 0.5, 30), (40, 0.5, 40), (400, 0.1, 70)])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_p_value_of_equal_rows_is_binomial(n, p, k, sign):
    # P(at least k events), and by symmetry P(at most n - k) where events have the chance 1 - p.
    exact = math.fsum(math.comb(n, j) * p**j * (1 - p) ** (n - j) for j in range(k, n + 1))
    chance = p if sign > 0 else 1 - p
    assert sum_pvalue(np.full(n, sign * 0.3), np.full(n, chance), 0.3 * (k - n * p)) == pytest.approx(exact, rel=0.1)


def test_the_p_value_of_unequal_rows_is_at_least_the_exact_one():
    random = np.random.default_rng(0)
    for _ in range(20):
        p, c = random.uniform(0.05, 0.5, 12), random.normal(size=12)
        ways = np.array(list(itertools.product([0, 1], repeat=12)))
        chance = np.prod(np.where(ways == 1, p, 1 - p), axis=1)
        sums = (ways - p) @ c
        # Over the law of the sum itself: how often the p-value is at most alpha.
        at = np.argsort(-sums)
        tails = np.array([sum_pvalue(c, p, float(x)) for x in sums[at[::37]]])
        reached = np.cumsum(chance[at])[::37]
        for alpha in (0.05, 0.01):
            below = np.flatnonzero(tails <= alpha)
            assert not len(below) or reached[below[-1]] <= 1.25 * alpha


def test_p_values_at_the_ends_of_the_range():
    p = np.full(5, 0.2)
    assert sum_pvalue(np.zeros(5), p, 0.0) == 1.0
    assert sum_pvalue(np.ones(5), np.array([0.0, 0, 1, 1, 1]), 1.0) == 0.0  # a certain prediction contradicted
    assert sum_pvalue(np.ones(5), p, 9.0) == 0.0
    assert sum_pvalue(np.ones(5), p, -9.0) == 1.0
    assert sum_pvalue(np.ones(5), p, 4.0) == pytest.approx(0.2**5, rel=0.2)
    assert sum_pvalue(np.ones(2), np.full(2, 0.5), 0.5) == 0.5


def test_one_heavy_row_is_one_effective_row():
    light, heavy = (weighted_mean(np.arange(10.0), w) for w in (np.ones(10), np.append(np.ones(9), 1000.0)))
    assert light.effective_rows > 5 > 2 > heavy.effective_rows
    assert weighted_mean(np.ones(4), np.ones(4)) == (1.0, 0.0, 4.0)
    assert mean_pvalue(np.ones(4), np.ones(4)) == 0.0
    assert mean_pvalue(-np.ones(4), np.ones(4)) == 1.0
    assert mean_pvalue(np.array([1.0, 0.0]), np.array([1.0, 1e-30])) == 1.0  # one row is no evidence


def test_a_mean_of_skewed_values_keeps_its_level():
    # Large losses are rare, and most samples miss them: uncorrected, the test rejects at 1% more than twice as often.
    random = np.random.default_rng(0)
    repeats = 3000
    found = np.array([mean_pvalue(math.exp(0.5) - random.lognormal(0, 1, 60), np.ones(60)) for _ in range(repeats)])
    for alpha in (0.05, 0.01):
        assert np.mean(found <= alpha) <= alpha + 4 * math.sqrt(alpha / repeats)


SETTINGS = [(500, 0.02, "tree"), (2000, 0.02, "linear"), (1000, 0.1, "tree"), (600, None, "linear"), (2000, None, "tree")]


@pytest.mark.parametrize(("rows", "rate", "learner"), SETTINGS)
@pytest.mark.repeated(40, 200)
def test_the_false_alarm_rate_of_calibrated_scores_is_at_most_alpha(rows, rate, learner, repetitions):
    alpha = 0.05
    found = [regret(people(rows, seed, rate=rate), learner=learner, random_state=seed) for seed in range(repetitions)]
    for alarms in (np.mean([one.miscalibrated for one in found]), np.mean([one.p_value <= alpha for one in found])):
        assert alarms <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / repetitions)


@pytest.mark.repeated(50, 200)
def test_the_false_alarm_rate_of_discrete_rows_is_at_most_alpha(repetitions):
    alpha, alarms = 0.05, 0
    for seed in range(repetitions):
        random = np.random.default_rng(seed)
        p = random.choice([0.1, 0.2, 0.4], 900)
        data = {"sex": random.choice(["f", "m"], 900), "p": p, "y": (random.random(900) < p).astype(float)}
        alarms += regret(data).miscalibrated
    assert alarms / repetitions <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / repetitions)


@pytest.mark.repeated(40, 150)
def test_real_outcomes_with_long_tails_have_few_false_alarms(repetitions):
    alpha, alarms = 0.05, 0
    for seed in range(repetitions):
        random = np.random.default_rng(seed)
        p = random.lognormal(3, 0.7, 1000)
        data = {"line": random.choice(["home", "motor"], 1000), "x": random.normal(size=1000), "p": p}
        data["y"] = p * random.gamma(1, 1, 1000)
        alarms += regret(data, task="regression").miscalibrated
    assert alarms / repetitions <= alpha + 3 * math.sqrt(alpha * (1 - alpha) / repetitions)


@pytest.mark.repeated(50, 100)
def test_the_minimum_detectable_effect_has_its_power(repetitions):
    # Every score is off by the same shift, which every witness points to; learning it costs some of the power.
    quiet = regret(people(2000, 0), features=[], levels=1)
    shift = quiet.overall.mde
    found = []
    for seed in range(repetitions):
        data = people(2000, seed)
        data["y"] = (np.random.default_rng([seed, 1]).random(2000) < data["p"] + shift).astype(float)
        found.append(regret(data, features=[], levels=1).miscalibrated)
    assert 0.8 - 4 * math.sqrt(0.16 / repetitions) < np.mean(found) <= 0.8 + 4 * math.sqrt(0.16 / repetitions)


# What is found


def test_a_planted_interaction_is_found_and_named():
    found = regret(people(8000, shift=0.25), levels=4)
    assert found.miscalibrated
    assert found.rejected >= 3
    rule = found.witnesses[0].rule
    assert "region=harbour" in rule
    young, more = re.search(r"age <= (\S+).*: \+(\S+) \(fitted \+", rule).groups()
    assert 35 < float(young) < 43  # planted below 40
    assert 0.2 < float(more) < 0.3  # planted 0.25
    assert found.verdict.startswith(
        f"miscalibrated against trees of depth 2: {found.rejected} of 4 score levels at 5% (Holm), worst"
    )
    assert rule in found.verdict
    assert found.gain > 2 * found.error > 0


def test_calibrated_scores_are_not_rejected_and_the_power_is_stated():
    found = regret(people(4000, seed=5))
    assert not found.miscalibrated
    assert found.verdict.startswith("nothing found against trees of depth 2: 0 of 10 score levels at 5% (Holm)")
    assert "would have been found with 80% power" in repr(found)
    assert 0 < found.overall.mde < min(one.mde for one in found) < 0.5


def test_a_linear_function_finds_a_slope():
    data = people(6000, seed=2)
    random = np.random.default_rng(9)
    data["y"] = (random.random(6000) < data["p"] + 0.05 * np.clip(data["income"], -2, 2)).astype(float)
    found = regret(data, learner="linear", levels=3)
    assert found.miscalibrated
    assert found.settings.learner == "linear functions"
    assert found.witnesses[0].rule.startswith("income: +0.0")
    assert " per 1.0" in found.witnesses[0].rule or " per 0.99" in found.witnesses[0].rule


def test_a_linear_function_names_the_category():
    data = people(6000, seed=2)
    data["y"] = (np.random.default_rng(1).random(6000) < data["p"] + 0.15 * (data["region"] == "valley")).astype(float)
    found = regret(data, features=["region"], learner="linear", levels=2)
    assert "region=valley: +0." in found.witnesses[0].rule


def test_the_effect_of_a_category_is_relative_to_the_others():
    # Nine rows in ten need +0.2: most of that is the constant, and the few others stand out by nearly -0.2.
    random = np.random.default_rng(0)
    many, p = random.random(6000) < 0.9, random.uniform(0.2, 0.6, 6000)
    data = {"town": np.where(many, "large", "small"), "p": p, "y": (random.random(6000) < p + 0.2 * many).astype(float)}
    rule = regret(data, learner="linear", levels=1).witnesses[0].rule
    assert rule.startswith("town=small: -0.1")


@pytest.mark.parametrize("learner", [DecisionTreeRegressor, LEARNERS["foreign"], LinearRegression, LinearRegression()])
def test_any_regressor_can_be_passed(learner):
    found = regret(people(4000, seed=1, shift=0.4), learner=learner, levels=2)
    assert found.miscalibrated
    assert found.settings.learner in ("DecisionTreeRegressor", "LinearRegression")
    assert found.witnesses[0].rule.startswith("shifts from ")


def test_small_errors_of_all_levels_are_found_together():
    found = []
    for seed in range(20):
        data = people(1500, seed)
        data["y"] = (np.random.default_rng([seed, 2]).random(1500) < data["p"] + 0.06).astype(float)
        found.append(regret(data, features=[]))
    together = [one for one in found if one.miscalibrated and not one.rejected]
    assert together  # in some samples no single level would be rejected
    assert "0 of 10 score levels at 5% (Holm), but all together p = " in together[0].verdict


def test_missing_numbers_dates_and_categories_are_named():
    random = np.random.default_rng(0)
    n = 6000
    opened = np.datetime64("2024-01-01") + random.integers(0, 700, n).astype("timedelta64[D]")
    data = {
        "p": random.uniform(0.3, 0.6, n),
        "age": np.where(random.random(n) < 0.3, np.nan, random.uniform(18, 70, n)),
        "town": np.where(random.random(n) < 0.3, None, random.choice(["a", "b"], n)).astype(object),
        "opened": opened,
    }
    data["once"] = np.where(np.isnan(data["age"]), np.nan, 1.0)
    events = lambda where, size: (random.random(n) < data["p"] + size * where).astype(float)  # noqa: E731
    for name, where, expected in (
        ("once", np.isnan(data["age"]), "once is missing: +0."),
        ("once", ~np.isnan(data["age"]), "once is known: +0."),
        ("age", np.isnan(data["age"]) | (data["age"] > 50), " or missing"),
        ("town", np.equal(data["town"], None), "town is missing"),
        ("town", ~np.equal(data["town"], None), "town not missing"),
        ("opened", opened > np.datetime64("2025-01-01"), "opened > 202"),
    ):
        found = regret({**data, "y": events(where, 0.3)}, features=[name], levels=1, depth=1)
        assert expected in found.witnesses[0].rule, (name, found.witnesses[0].rule)
    strip = (data["age"] > 30) & (data["age"] < 50)
    rule = regret({**data, "y": events(strip, 0.4)}, features=["age"], levels=1, depth=2).witnesses[0].rule
    assert "< age <= " in rule
    assert "missing" not in rule
    lines = regret({**data, "y": events(1.0, 0.1)}, features=[], levels=1, learner="linear")
    assert lines.witnesses[0].rule.startswith("constant +0.")
    dated = regret({**data, "y": events((opened - opened.min()) / np.timedelta64(700, "D"), 0.4)}, features=["opened"],
                   levels=1, learner="linear")  # fmt: skip
    assert dated.witnesses[0].rule.endswith(" days")


# Rows, weights, frames


@pytest.mark.parametrize("learner", LEARNERS)
def test_the_order_of_rows_does_not_matter(learner):
    data = people(1000, seed=7, shift=0.2)
    mixed = np.random.default_rng(0).permutation(1000)
    found = regret(data, learner=LEARNERS[learner])
    again = regret({name: column[mixed] for name, column in data.items()}, learner=LEARNERS[learner])
    assert found.to_dict() == again.to_dict()
    np.testing.assert_array_equal(found.shift[mixed], again.shift)
    np.testing.assert_array_equal(found.held[mixed], again.held)


def test_the_number_of_threads_does_not_matter():
    data = people(1000, seed=7, shift=0.2)
    assert regret(data, threads=1).to_dict() == regret(data, threads=3).to_dict()


def test_the_scale_of_weights_does_not_matter():
    data = people(1500, seed=8, shift=0.2)
    data["w"] = np.random.default_rng(0).uniform(0.5, 2, 1500)
    base = regret(data, weight="w")
    scaled = regret({**data, "w": 1024 * data["w"]}, weight="w")
    assert base.overall.p_value == pytest.approx(scaled.overall.p_value, rel=1e-9)
    assert base.gain == pytest.approx(scaled.gain, rel=1e-9)


@pytest.mark.parametrize("task", ["binary", "regression"])
def test_the_p_value_is_that_of_the_weighted_sum(task):
    data = people(1500, seed=8, shift=0.1)
    data["w"] = np.random.default_rng(0).lognormal(0, 1, 1500)
    found = regret(data, weight="w", features=["region", "age"], task=task)
    own = found.held
    g, e, w, p = found.shift[own], (data["y"] - data["p"])[own], data["w"][own], data["p"][own]
    expected = sum_pvalue(w * g, p, float((w * g * e).sum())) if task == "binary" else mean_pvalue(g * e, w)
    assert found.p_value == pytest.approx(expected, rel=1e-6)


class Weighted:
    seen: ClassVar = []

    def fit(self, X, y, sample_weight):
        self.seen.append((X[:, 0], sample_weight))

    def predict(self, X):
        return np.zeros(len(X))


def test_a_regressor_receives_the_weights_of_its_rows():
    data = people(400, seed=1)
    data["age"] = np.arange(400) + 0.5
    data["w"] = np.random.default_rng(0).uniform(1, 3, 400)
    found = regret(data, features=["age"], weight="w", learner=Weighted, levels=2)
    assert len(Weighted.seen) == 2
    ages, weights = (np.concatenate(part) for part in zip(*Weighted.seen, strict=True))
    assert sorted(ages) == sorted(data["age"][~found.held])
    np.testing.assert_allclose(weights, data["w"][ages.astype(int)] / data["w"].mean())


def test_errors_in_rows_of_large_weight_are_found():
    # All events that are too many lie in rows that weigh little: by weight there is hardly a shift.
    data = people(6000, seed=1, shift=0.4)
    planted = (data["region"] == "harbour") & (data["age"] < 40)
    data["w"] = np.where(planted, 1e-6, 1.0)
    assert regret(data, features=["region", "age"]).miscalibrated
    assert not regret(data, features=["region", "age"], weight="w").miscalibrated


def test_rows_without_outcome_or_weight_are_set_aside_and_counted():
    data = people(1000)
    data["y"][:10] = np.nan
    data["w"] = np.ones(1000)
    data["w"][10:30] = 0
    found = regret(data, weight="w", unlabelled="drop")
    assert (found.rows, found.unlabelled, found.weightless) == (970, 10, 20)
    assert np.isnan(found.shift[:30]).all()
    assert np.isfinite(found.shift[30:]).all()
    assert not found.held[:30].any()
    assert "10 rows without an outcome were set aside" in repr(found)
    assert "20 rows of weight 0 were left out" in repr(found)


def test_frames_of_every_library_are_read(frame):
    data = people(600, seed=2, shift=0.3)
    found = tu.swap_regret(frame(data), outcome="y", prediction="p", features=["region", "age"])
    assert found.to_dict() == tu.swap_regret(data, outcome="y", prediction="p", features=["region", "age"]).to_dict()
    table = found.to_frame(like=frame(data))
    assert type(table) is type(frame(data))
    plain = found.to_frame()
    assert list(plain)[:4] == ["level", "low", "high", "rows"]
    assert plain["level"].tolist() == ["all levels", *(one.level for one in found)]


def test_soft_outcomes_have_no_smaller_p_values():
    data = people(3000, seed=3)
    assert regret({**data, "y": data["p"]}).p_value > 0.4  # outcomes without any noise, as predicted
    moved = regret({**data, "y": np.clip(data["p"] + 0.1, 0, 1)})
    assert moved.miscalibrated


def test_the_result_can_be_printed_and_written_as_json():
    found = regret(people(8000, shift=0.25), levels=np.int64(4), alpha=np.float32(0.05))
    page = repr(found)
    assert page.splitlines()[0] == found.verdict
    assert "score level" in page
    assert max(map(len, page.splitlines()[2:])) < 160
    assert found._repr_html_().startswith("<div><p><strong>miscalibrated against trees")
    assert "<script" not in regret({**people(400), "<script>": np.arange(400) + 0.5}, levels=1)._repr_html_()
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["miscalibrated"] is True
    assert len(plain["witnesses"]) == 4
    assert re.search(r"\(fitted \S+\)>$", repr(found.witnesses[0]))
    with pytest.raises(ValueError, match="read-only"):
        found.shift[0] = 1.0


def test_thin_levels_are_counted_and_not_tested():
    found = regret(people(150), min_rows=50, levels=3, held_out=0.1)
    assert found.tested == 0
    assert math.isnan(found.overall.p_value)
    assert not found.miscalibrated
    assert found.verdict.startswith("nothing could be tested")
    assert "not tested: 3 score levels" in repr(found)
    assert found.witnesses[0].rule.startswith("not tested: ")
    assert "not tested" in repr(found.witnesses[0])
    assert found.to_dict()["overall"]["p_value"] is None
    assert (found.shift == 0).all()


def test_some_thin_levels_leave_the_others_tested():
    data = people(400, seed=1)
    data["p"] = np.where(np.arange(400) < 12, 0.9, np.round(data["p"], 2))
    found = regret(data, min_rows=12, levels=40)
    assert 0 < found.tested < len(found)
    assert not found.witnesses[-1].tested
    assert math.isnan(found.witnesses[-1].p_adjusted)


def test_a_regressor_is_fitted_in_the_unit_of_the_outcome():
    data = people(600, seed=3)
    data = {**data, "p": 1000 * data["p"], "y": 1000 * data["y"]}
    found = regret(data, task="regression", features=["age"], learner=LinearRegression, levels=1)
    train = ~found.held
    line = LinearRegression().fit(data["age"][train, None], (data["y"] - data["p"])[train])
    np.testing.assert_allclose(found.shift, line.predict(data["age"][:, None]), rtol=1e-6, atol=1e-6)


def test_real_outcomes_of_any_size():
    data = people(2000, seed=3, shift=0.4)
    for unit in (1e-90, 1.0, 1e90):
        found = regret({**data, "p": unit * data["p"], "y": unit * data["y"]}, task="regression")
        assert found.miscalibrated
        assert 0 < found.gain / unit / unit < 0.1
        assert 0.01 < found.overall.mde / unit < 0.1


def test_linear_functions_take_numbers_of_any_size():
    data = people(1500, seed=2)
    data["y"] = (np.random.default_rng(9).random(1500) < data["p"] + 0.1 * np.clip(data["income"], -1, 1)).astype(float)
    for unit in (1e-200, 1.0, 1e200, 1e307):
        found = regret({**data, "income": unit * data["income"]}, features=["income"], learner="linear", levels=1)
        assert found.miscalibrated
        assert found.witnesses[0].rule.startswith("income: +0.0")


def test_perfect_scores_have_no_witness():
    data = people(500)
    found = regret({**data, "y": data["p"] * 1.0, "income": -data["income"]}, task="regression")
    assert not found.miscalibrated
    assert found.overall.gain == 0
    assert math.isnan(found.overall.mde)


# What is refused


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"depth": 4}, "depth must be an integer from 1 to 3; got 4"),
        ({"depth": True}, "depth must be an integer"),
        ({"levels": 0}, "levels must be an integer"),
        ({"bins": 1}, "bins must be an integer"),
        ({"min_rows": 0}, "min_rows must be an integer"),
        ({"random_state": -1}, "random_state must be an integer"),
        ({"threads": 0.5}, "threads must be an integer"),
        ({"threads": 0}, "threads must be an integer"),
        ({"held_out": 1.0}, "held_out must lie between 0 and 1; got 1.0"),
        ({"held_out": "half"}, "held_out must lie between 0 and 1; got 'half'"),
        ({"alpha": 0}, "alpha must lie between 0 and 1"),
        ({"learner": "forest"}, "learner must be one of 'tree', 'linear'; got 'forest'"),
        ({"learner": 3}, "a regressor or a callable that returns one"),
        ({"learner": dict}, "must return regressors with fit and predict; it returned dict"),
        ({"outcome": None}, "an audit needs the outcome"),
        ({"features": ["y"]}, "identical to the outcome"),
        ({"task": "classes"}, "task must be one of"),
    ],
)
def test_invalid_parameters_raise(more, message):
    with pytest.raises(TrueupError, match=message):
        regret(people(300), **more)


def test_several_classes_raise_with_a_hint():
    data = {"a": np.full(100, 0.5), "b": np.full(100, 0.5), "y": np.arange(100) % 2}
    with pytest.raises(ArgumentError, match=r"one prediction column\nhint: .*tu\.audit takes several"):
        tu.swap_regret(data, outcome="y", prediction=["a", "b"])


def test_rows_that_cannot_be_split_raise():
    data = {"p": np.full(8, 0.5), "y": np.arange(8) % 2}
    with pytest.raises(DataError, match="the 8 rows cannot be split"):
        tu.swap_regret(data, outcome="y", prediction="p")


def test_too_many_columns_of_a_linear_function_raise():
    random = np.random.default_rng(0)
    data = {"p": random.random(2000), "y": random.integers(0, 2, 2000), "zip": random.integers(0, 600, 2000)}
    with pytest.raises(ArgumentError, match=r"slopes, more than 500\nhint: leave out columns of many categories"):
        tu.swap_regret(data, outcome="y", prediction="p", learner="linear", categorical=["zip"])


class Unweighted:
    def fit(self, X, y):
        return self

    def predict(self, X):
        return np.zeros(len(X))


class Strange(Unweighted):
    def predict(self, X):
        return np.full(len(X), np.inf)


def test_errors_of_a_regressor_are_reported():
    data = people(400)
    with pytest.raises(TrueupError, match=r"Unweighted could not be fitted(.|\n)*leave out weights"):
        regret({**data, "w": np.ones(400)}, weight="w", learner=Unweighted)
    with pytest.raises(TrueupError, match="Strange must predict one finite number per row"):
        regret(data, learner=Strange)
    assert regret(data, learner=Unweighted).overall.p_value == 1.0
    gaps = {**data, "age": np.where(np.arange(400) < 5, np.nan, data["age"])}
    with pytest.raises(TrueupError, match=r"LinearRegression could not be fitted(.|\n)*fill in missing numbers"):
        regret(gaps, learner=LinearRegression)


# Clusters


def clustered_people(seed, clusters=250, size=10, icc=0.6, shift=0.0, *, real=False):
    """Draw scores that are right; rows of a cluster share features and score and, mostly, the outcome."""
    random = np.random.default_rng([seed, 17])
    cluster = np.repeat(np.arange(clusters), size)
    data = {name: column[cluster] for name, column in people(clusters, seed).items() if name != "y"}
    shared = random.random(len(cluster)) < math.sqrt(icc)
    uniform = np.where(shared, random.random(clusters)[cluster], random.random(len(cluster)))
    data["y"] = (uniform < data["p"] + shift * (data["region"] == "harbour")).astype(float)
    if real:
        data["y"] = data["p"] + np.log1p(-uniform) + 1 + 0.2 * random.normal(size=len(cluster))
    return {**data, "customer": cluster}


@pytest.mark.parametrize("real", [False, True])
@pytest.mark.repeated(20, 60)
def test_calibrated_clusters_are_rarely_called_miscalibrated(real, repetitions):
    found = {True: 0, False: 0}
    more = {"task": "regression"} if real else {}
    for seed in range(repetitions):
        data = clustered_people(seed, real=real)
        for clustered in found:
            own = {"cluster": "customer"} if clustered else {"features": ["region", "age", "income"]}
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", tu.errors.ClusterWarning)
                found[clustered] += regret(data, levels=4, **own, **more).miscalibrated
    assert found[True] <= 0.05 * repetitions + 2 * math.sqrt(repetitions * 0.05 * 0.95)
    assert found[False] >= repetitions / 4


def test_errors_of_clustered_rows_are_found():
    assert sum(regret(clustered_people(s, 400, 5, 0.1, 0.3), cluster="customer").miscalibrated for s in range(5)) >= 4


def test_held_out_rows_are_whole_clusters():
    data = clustered_people(0)
    found = regret(data, cluster="customer", held_out=0.3)
    by_cluster = np.bincount(data["customer"], found.held) / 10
    assert set(by_cluster) == {0.0, 1.0}
    assert found.held.mean() == pytest.approx(0.3, abs=0.02)
    assert found.clusters == 250
    assert "customer" not in [feature.name for feature in found.schema.features]
    assert found.to_dict()["roles"]["cluster"] == "customer"
    assert "rows are in 250 clusters (by customer): held-out rows are whole clusters" in repr(found)


def test_clusters_of_copies_have_the_numbers_of_single_rows():
    # With ten copies of each row, D = 10 but for the estimate: the p-value is close to that of single rows.
    random = np.random.default_rng(0)
    c, p = random.uniform(0.5, 1.5, 400), random.uniform(0.1, 0.6, 400)
    total = 1.5 * math.sqrt((c**2 * p * (1 - p)).sum())
    copies = np.repeat(c, 10), np.repeat(p, 10)
    assert sum_pvalue(*copies, 10 * total, 10.0) == pytest.approx(sum_pvalue(c, p, total), rel=1e-9)
    values, w = random.gamma(1.0, size=400) - 0.9, random.uniform(0.5, 2.0, 400)
    order = random.permutation(4000)
    cluster = np.repeat(np.arange(400), 10)[order]
    args = np.repeat(values, 10)[order], np.repeat(w, 10)[order], cluster
    assert mean_pvalue(*args) == pytest.approx(mean_pvalue(values, w), rel=1e-9)
    assert weighted_mean(*args) == pytest.approx(weighted_mean(values, w), rel=1e-9)


def test_levels_with_few_clusters_are_not_tested():
    data = clustered_people(0)
    found = regret({**data, "customer": data["customer"] % 12}, cluster="customer", features=["region", "age"])
    assert found.tested == 0
    assert "fewer than 10 effective clusters" in found.witnesses[0].rule
    assert found.verdict.endswith("held-out rows in enough clusters")
    assert "score levels with too few rows or clusters" in repr(found)
