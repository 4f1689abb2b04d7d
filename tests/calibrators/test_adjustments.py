"""Additive and Multiplicative make the mean score the mean outcome; Logistic minimises the penalised log loss."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import optimize, special

import trueup as tu
from checks import rows
from trueup.errors import ArgumentError, DataError

P, Y, W = np.tile([0.1, 0.2, 0.3, 0.6], 5), np.tile([0, 1, 0, 1], 5), np.tile([1.0, 1.0, 2.0, 1.0], 5)


def test_the_shift_and_the_factor_are_worked_by_hand():
    # Of four rows, without weights: sum of outcomes 2, of scores 1.2. With them: 2 of 5, and 1.5.
    assert tu.Additive().fit(P, Y).shift_ == pytest.approx(0.8 / 4)
    assert tu.Additive().fit(P, Y, W).shift_ == pytest.approx(0.5 / 5)
    assert tu.Multiplicative().fit(P, Y).factor_ == pytest.approx(2 / 1.2)
    assert tu.Multiplicative().fit(P, Y, W).factor_ == pytest.approx(2 / 1.5)
    np.testing.assert_allclose(tu.Additive().fit(P, Y).predict(np.array([0.0, 0.5, 0.9])), [0.2, 0.7, 1.0])
    np.testing.assert_allclose(tu.Additive().fit(P, np.tile([0, 0, 0, 0.4], 5)).predict(np.array([0.1, 0.9])), [0.0, 0.7])
    np.testing.assert_allclose(tu.Multiplicative().fit(P, Y).predict(np.array([0.3, 0.9])), [0.5, 1.0])


def test_real_scores_are_not_clipped():
    y, p = np.tile([30.0, 50.0], 5), np.tile([10.0, 30.0], 5)
    assert tu.Additive(task="regression").fit(p, y).predict(np.array([-70.0])).tolist() == [-50.0]
    assert tu.Multiplicative(task="regression").fit(p, y).predict(np.array([5e3])).tolist() == [1e4]


def test_classes_are_corrected_one_by_one_and_normalised():
    P = np.tile([[0.5, 0.3, 0.2], [0.5, 0.1, 0.4]], (5, 1))
    frame = {"a": P[:, 0], "b": P[:, 1], "c": P[:, 2]}
    fix = tu.Additive(["a", "b", "c"], classes=["a", "b", "c"]).fit(frame, ["a", "c"] * 5)
    np.testing.assert_allclose(fix.shift_, [0.0, -0.2, 0.2])
    np.testing.assert_allclose(fix.predict(frame)[:2], [[0.5, 0.1, 0.4], [0.5 / 1.1, 0.0, 0.6 / 1.1]])  # -0.1 is clipped


def test_scores_that_have_no_factor_are_left_unchanged_or_refused():
    assert tu.Multiplicative().fit(np.zeros(20), np.arange(20) % 2).factor_ == 1.0
    with pytest.raises(DataError, match="scores that are not negative; got 2 that are, such as -3"):
        tu.Multiplicative(task="regression").fit(np.array([-3.0, -1.0, *range(18)]), np.zeros(20))


def test_groups_have_their_own_number_shrunk_towards_that_of_all_rows():
    p, group = np.full(300, 0.4), np.repeat(["a", "b"], [100, 200])
    y = np.concatenate([np.repeat([1, 0], 50), np.repeat([1, 0], [50, 150])])  # 50% and 25%, a third of all
    own = tu.Grouped(tu.Additive(), ["g"], prediction="p", shrinkage=0).fit({"p": p, "g": group}, y)
    np.testing.assert_allclose(own.predict({"p": p, "g": group})[[0, 299]], [0.5, 0.25])
    mixed = tu.Grouped(tu.Multiplicative(), ["g"], prediction="p", shrinkage=100).fit({"p": p, "g": group}, y)
    expected = [(100 * 0.5 + 100 / 3) / 200, (200 * 0.25 + 100 / 3) / 300]
    np.testing.assert_allclose(mixed.predict({"p": p, "g": group})[[0, 299]], expected)


def test_explanations_name_the_number():
    fix = tu.Additive("p").fit({"p": P}, Y)
    assert fix.model_.map.describe() == "adds 0.2"
    assert [term.condition for term in fix.explain({"p": 0.1}).contributions] == ["adds 0.2"]
    assert tu.Multiplicative("p").fit({"p": P}, Y).model_.map.describe() == "multiplies by 1.667"


# ------------------------------------------------------------------ logistic regression with features


@pytest.fixture(scope="module")
def data():
    return rows("binary", 400)


def design(data):
    """Return the columns of the regression: logit, 1, levels of country and missing, standardised age and missing."""
    country, age = data["country"], data["age"]
    missing = np.isnan(age)
    z = np.where(missing, 0.0, (age - np.nanmean(age)) / np.nanstd(age))
    levels = [(country == level).astype(float) for level in ("BR", "DE", "US", None)]
    return np.column_stack([special.logit(data["p"]), np.ones(len(age)), *levels, z, missing])


@pytest.mark.parametrize("offset", [False, True])
def test_the_fit_has_the_lowest_penalised_loss(data, offset):
    X, y, l2, n = design(data), data["y"], 3.0, len(data["y"])
    w, target = 1 + 1 / n, y + data["p"] / n  # a pseudo-row whose outcomes are the scores
    slope = (1.0, 1.0) if offset else (None, None)

    def loss(theta):
        logits = X @ theta
        residual = w * special.expit(logits) - target
        penalty = l2 * np.append([0, 0], theta[2:])
        return (w * np.logaddexp(0, logits) - target * logits).sum() + penalty @ theta / 2, X.T @ residual + penalty

    start = np.eye(1, X.shape[1]).ravel()
    best = optimize.minimize(
        loss, start, jac=True, method="L-BFGS-B", bounds=[slope] + [(None, None)] * (X.shape[1] - 1),
        options={"ftol": 1e-15, "gtol": 1e-9, "maxiter": 1000},
    )  # fmt: skip
    fix = tu.Logistic("p", ["country", "age"], l2=l2, offset=offset, stopping=None).fit(data, y)
    np.testing.assert_allclose(fix.predict(data), special.expit(X @ best.x), atol=1e-6)
    assert fix.slope_ == pytest.approx(best.x[0], abs=1e-5)
    assert fix.effects_["country"]["BR"] == pytest.approx(best.x[2], abs=1e-5)
    assert fix.effects_["age"] == pytest.approx(best.x[6] / np.nanstd(data["age"]), abs=1e-6)


def test_without_features_it_is_platt(data):
    logistic = tu.Logistic("p", [], stopping=None).fit(data, data["y"])
    platt = tu.Platt("p").fit(data, data["y"])
    assert (logistic.slope_, logistic.intercept_) == pytest.approx((platt.slope_, platt.intercept_), rel=1e-9)


def test_values_beyond_the_training_range_count_as_its_end(data):
    fix = tu.Logistic("p", ["age"], stopping=None).fit(data, data["y"])
    one, row = fix.predict_one, {"p": 0.3}
    assert one(row | {"age": 1e9}) == one(row | {"age": float("inf")}) == one(row | {"age": float(np.nanmax(data["age"]))})
    assert one(row | {"age": 1e9}) != one(row | {"age": 30.0})


def test_the_contributions_of_a_row_are_the_terms_of_its_logit(data):
    fix = tu.Logistic("p", ["country", "age", "day"], stopping=None).fit(data, data["y"])
    row = {"p": 0.3, "country": "BR", "age": None, "day": np.datetime64("2024-03-05")}
    explained = fix.explain(row)
    after, before = (float(special.logit(value)) for value in (fix.predict_one(row), 0.3))
    assert explained.link_change == pytest.approx(after - before, abs=1e-9)
    assert sum(term.change for term in explained.contributions) == pytest.approx(explained.link_change, abs=1e-12)
    names = {term.condition for term in explained.contributions}
    assert {"country=BR", "age is missing", "day=2024-03-05", "intercept"} < names


def test_calibrated_scores_are_left_unchanged():
    calm = tu.simulate.lending(1_000, seed=3, calibrated=True)
    fix = tu.Logistic("prediction", ["region", "age"]).fit(calm, calm["outcome"])
    assert (fix.slope_, fix.intercept_, fix.effects_) == (1.0, 0.0, {})


def test_too_many_levels_and_several_classes_are_refused():
    names = [f"id {number // 4}" for number in range(20_000)]
    frame = {"p": np.full(20_000, 0.5), "who": names}
    with pytest.raises(ArgumentError, match=r"5,001 levels in all, 5,000 of them in column 'who'; Logistic takes up to"):
        tu.Logistic("p", ["who"]).fit(frame, np.arange(20_000) % 2)
    with pytest.raises(ArgumentError, match="corrects one prediction column; got 3"):
        tu.Logistic(["p_cat", "p_dog", "p_owl"], []).fit(rows("multiclass", 60), "y")
