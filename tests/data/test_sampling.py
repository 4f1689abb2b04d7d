"""Samples that kept different shares of positive and negative rows."""

from __future__ import annotations

import numpy as np
import pytest

import trueup as tu
from trueup.data.frame import read
from trueup.data.sampling import Sampling
from trueup.errors import ArgumentError

ROLES = {"outcome": "y", "prediction": "p"}
SHARES = {"positive": 0.5, "negative": 0.1}


def make_sample(seed=0, n=20_000, share=0.1):
    """Return all positive rows, and a share of the negative ones, of rows with a planted error in segment "a"."""
    random = np.random.default_rng(seed)
    segment, p = np.array([*"abcd"], object)[random.integers(0, 4, n)], random.beta(1, 15, n)
    y = random.random(n) < 1 / (1 + (1 - p) / p * np.exp(-0.8 * (segment == "a")))
    kept = y | (random.random(n) < share)
    every = {"s": segment, "p": p, "y": y.astype(float)}
    return every, {name: column[kept] for name, column in every.items()}


def test_weights_are_divided_by_the_share_of_their_outcome():
    data = {"y": [0.0, 1.0, 1.0, 0.0], "p": [0.1, 0.2, 0.3, 0.4], "w": [1.0, 2.0, 3.0, 0.0]}
    table = read(data, **ROLES, features=[], sampling=SHARES)
    np.testing.assert_allclose(table.weight, [10, 2, 2, 10])
    assert table.sampling == Sampling(0.5, 0.1)
    assert table.given_weight is None
    weighted = read(data, **ROLES, features=[], weight="w", sampling=SHARES)
    np.testing.assert_allclose(weighted.weight, [10, 4, 6])  # the row of weight 0 is set aside
    np.testing.assert_allclose(weighted.given_weight, [1, 2, 3])


def test_a_share_that_is_not_named_is_1():
    assert Sampling.parse({"negative": 0.25}) == Sampling(1.0, 0.25)
    assert Sampling.parse({"positive": 0.25}).ratio == 4


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "sampling must map positive, negative or both to the share of the rows that was kept; got {}"),
        ([1, 0.1], r"sampling must map .*; got \[1, 0\.1\]"),
        ({"negatives": 0.1}, "sampling must map positive, negative or both"),
        (
            {"negative": 10},
            r"the share of the rows that was kept, at most 1; got 10\nhint: write 0.1 if one in 10 was kept",
        ),
        ({"negative": 0}, "must be a number at least 1e-09 and at most 1; got 0"),
        ({"negative": -0.5}, "must be a number at least 1e-09 and at most 1; got -0.5"),
        ({"negative": float("nan")}, "must be a number at least 1e-09 and at most 1; got nan"),
        ({"negative": True}, "must be a number at least 1e-09 and at most 1; got True"),
    ],
)
def test_shares_that_are_none_are_rejected(given, message):
    with pytest.raises(ArgumentError, match=message) as caught:
        tu.audit({"y": [0, 1], "p": [0.5, 0.5]}, **ROLES, sampling=given)
    assert str(caught.value.parameter).startswith("sampling")


def test_only_outcomes_of_0_and_1_are_sampled_by_outcome():
    _, data = make_sample(n=2000)
    for changed, more in [({"y": data["p"]}, {}), ({}, {"task": "regression"})]:
        with pytest.raises(ArgumentError, match="sampling needs outcomes that are 0 or 1"):
            tu.audit(data | changed, **ROLES, **more, sampling=SHARES)
    with pytest.raises(ArgumentError, match="sampling needs an outcome"):
        tu.PriorCorrection(prediction="p", prevalence=0.1).fit(data, sampling=SHARES)


# Weights and shares together


@pytest.mark.parametrize("share", [0.5, 0.1, 0.01])
@pytest.mark.parametrize("spread", [0.0, 0.5, 1.0])
def test_weights_that_contain_the_shares_are_rejected(share, spread):
    _, data = make_sample(1, 40_000, share)
    random = np.random.default_rng(0)
    w = np.where(data["y"] == 1, 1.0, 1 / share) * random.lognormal(0, spread, len(data["y"]))
    for call in (tu.audit, lambda data, **given: fit_platt(data, given["weight"], given["sampling"])):
        with pytest.raises(ArgumentError, match=r"sampling would be counted twice: by the weights in column 'w', rows of "):
            call(data | {"w": w}, **ROLES, weight="w", sampling={"negative": share})


def test_weights_passed_as_an_array_are_not_called_a_column():
    _, data = make_sample(1, 40_000, 0.1)
    weight = np.where(data["y"] == 1, 1.0, 10.0)
    with pytest.raises(ArgumentError, match=r"sampling would be counted twice: by the weights, rows of outcome 0 "):
        tu.audit(data, **ROLES, weight=weight, sampling={"negative": 0.1})


def fit_platt(data, weight=None, sampling=None):
    """Fit a curve of the score."""
    return tu.Platt(prediction="p").fit(data, "y", weight, sampling=sampling)


@pytest.mark.parametrize("share", [0.5, 0.1])
def test_weights_that_do_not_contain_the_shares_are_multiplied_by_them(share):
    _, data = make_sample(2, 40_000, share)
    random = np.random.default_rng(0)
    exposures = {
        "unrelated": random.lognormal(0, 1, len(data["y"])),
        "of the score": 1 / data["p"],
        "of the outcome, otherwise": random.lognormal(0, 0.5, len(data["y"])) * np.where(data["y"] == 1, 1.2, 1.0),
        "in the other direction": np.where(data["y"] == 1, 1 / share, 1.0),
    }
    for w in exposures.values():
        audit = tu.audit(data | {"w": w}, **ROLES, by=["s"], weight="w", sampling={"negative": share})
        product = w * np.where(data["y"] == 1, 1.0, 1 / share)
        assert audit.overall.observed == pytest.approx(np.average(data["y"], weights=product))
        (line,) = (line for line in audit.notes if line.startswith("the rows are a sample"))
        assert line.endswith("times its weight (w), which must not contain that share")


def test_weights_of_a_sample_may_depend_on_the_outcome_besides():
    _, data = make_sample(3, 40_000)
    w = np.random.default_rng(0).lognormal(0, 0.3, len(data["y"])) * np.where(data["y"] == 1, 1.5, 1.0)
    audit = tu.audit(data | {"w": w}, **ROLES, by=["s"], weight="w", sampling={"negative": 0.1})
    assert audit.weight_ratio == pytest.approx(0.15, rel=0.05)
    same = tu.audit(data | {"w": w * np.where(data["y"] == 1, 1.0, 10.0)}, **ROLES, by=["s"], weight="w")
    np.testing.assert_allclose(audit.columns["p_value"], same.columns["p_value"], rtol=1e-6)


@pytest.mark.repeated(100, 400)
def test_unrelated_weights_are_rarely_taken_for_those_of_the_shares(repetitions):
    rejected = 0
    for seed in range(repetitions):
        random = np.random.default_rng([seed, 5])
        data = {"p": random.beta(1, 4, 300), "w": random.lognormal(0, 1.5, 300)}
        data["y"] = (random.random(300) < data["p"]).astype(float)
        try:
            read(data, **ROLES, features=[], weight="w", sampling={"negative": 0.5})
        except ArgumentError:
            rejected += 1
    assert rejected == 0  # five standard errors: once in millions


# Fits


def test_a_fit_with_shares_is_that_with_weights():
    _, data = make_sample(4)
    fitted = fit_platt(data, sampling={"negative": 0.1}).predict(data)
    w = np.where(data["y"] == 1, 1.0, 10.0)
    weighted = fit_platt(data, w / w.mean()).predict(data)
    np.testing.assert_allclose(fitted, weighted, rtol=1e-9)
    assert abs(fit_platt(data).predict(data).mean() - weighted.mean()) > 0.1


def test_a_fit_with_shares_has_the_scale_of_all_rows():
    every, data = make_sample(5, 60_000)
    fix = tu.MCGrad("p", ["s"]).fit(data, "y", sampling={"negative": 0.1})
    corrected = fix.predict(every)
    for level in "abcd":
        rows = every["s"] == level
        assert corrected[rows].mean() == pytest.approx(every["y"][rows].mean(), rel=0.1)
    assert fix.model_.about.parameters["fit"] == {"sampling": {"positive": 1.0, "negative": 0.1}}


def test_weights_of_a_sample_are_no_row_counts():
    _, data = make_sample(6)
    w = np.where(data["y"] == 1, 1.0, 10.0)
    fits = [
        tu.MCGrad("p", ["s"]).fit(data, "y", **given).predict(data)
        for given in ({"sampling": {"negative": 0.1}}, {"sample_weight": w * np.pi}, {"sample_weight": w})
    ]
    np.testing.assert_allclose(fits[0], fits[1], rtol=1e-6)
    assert np.abs(fits[0] - fits[2]).max() > 1e-4  # each row of weight 10 counts as ten


def test_shares_need_rows_in_memory(tmp_path):
    path = tmp_path / "rows.csv"
    path.write_text("y,p\n0,0.5\n1,0.5\n")
    for call in (
        lambda rows: tu.audit(rows, **ROLES, sampling=SHARES),
        lambda rows: tu.MCGrad("p").fit(rows, "y", sampling=SHARES),
    ):
        with pytest.raises(ArgumentError, match="sampling needs rows in memory") as caught:
            call(tu.scan(path))
        assert "weight=" in str(caught.value)
