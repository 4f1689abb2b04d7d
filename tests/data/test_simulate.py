"""Simulated populations have the documented columns, truth and planted errors."""

from __future__ import annotations

import pickle
from dataclasses import FrozenInstanceError

import numpy as np
import pytest

from trueup.data import simulate
from trueup.data.simulate import CLICKS_SHIFTS, LENDING_SHIFTS, Shift
from trueup.errors import ArgumentError

NAMED = pytest.mark.parametrize("make", [simulate.lending, simulate.clicks])
SIGMAS = 4.5  # two-sided chance 7e-6: with a fixed seed a failure means a wrong law, not bad luck


def logit(p):
    return np.log(p) - np.log1p(-p)


def planted(rows, shifts):
    total = np.zeros(len(rows["truth"]))
    for shift in shifts:
        total += shift.logit * shift.rows(rows)
    return total


def z_score(y, p):
    return (y.sum() - p.sum()) / np.sqrt((p * (1 - p)).sum())


def same(a, b):
    return list(a) == list(b) and all(np.array_equal(a[name], b[name], equal_nan=a[name].dtype.kind == "f") for name in a)


# --- what every population promises


@NAMED
def test_a_seed_determines_all_values(make):
    assert same(make(500, 3), make(500, 3))
    assert not same(make(500, 3), make(500, 4))


def test_a_seed_determines_a_population():
    options = {"levels": (3, 5), "numeric": 2, "shifts": [Shift({"x1": (0, 1)}, 0.5)]}
    assert same(simulate.population(500, 3, **options), simulate.population(500, 3, **options))
    assert not same(simulate.population(500, 3, **options), simulate.population(500, 4, **options))


@pytest.mark.parametrize(
    "rows",
    [
        simulate.lending(300),
        simulate.clicks(300),
        simulate.population(300, levels=(), numeric=1),
        simulate.population(300, decimals=2),
    ],
)
def test_columns_are_arrays_of_one_length_that_end_in_prediction_outcome_and_truth(rows):
    assert list(rows)[-3:] == ["prediction", "outcome", "truth"]
    assert {column.shape for column in rows.values()} == {(300,)}
    assert rows["outcome"].dtype == np.int8
    assert set(np.unique(rows["outcome"])) <= {0, 1}
    for name in ("prediction", "truth"):
        assert rows[name].dtype == np.float64
        assert ((rows[name] > 0) & (rows[name] < 1)).all()


def test_one_row_is_enough():
    assert len(simulate.lending(1)["truth"]) == len(simulate.clicks(1)["truth"]) == 1
    assert simulate.population(1)["truth"] == pytest.approx(0.2)


@pytest.mark.parametrize(
    "rows",
    [
        simulate.lending(),
        simulate.clicks(),
        simulate.population(50_000, spread=2),
        simulate.population(50_000, decimals=1),
    ],
)
def test_outcomes_follow_the_truth_in_every_decile(rows):
    for part in np.array_split(np.argsort(rows["truth"]), 10):
        assert abs(z_score(rows["outcome"][part], rows["truth"][part])) < SIGMAS


@NAMED
def test_planted_errors_change_only_the_prediction(make):
    wrong, right = make(400), make(400, calibrated=True)
    del wrong["prediction"], right["prediction"]
    assert same(wrong, right)


# --- lending


def test_calibrated_lending_predicts_its_truth():
    rows = simulate.lending(2_000, calibrated=True)
    assert np.array_equal(rows["prediction"], rows["truth"])
    assert not np.shares_memory(rows["prediction"], rows["truth"])


def test_eight_percent_of_loans_default():
    rows = simulate.lending()
    assert rows["truth"].mean() == pytest.approx(0.08, rel=1e-9)
    assert abs(z_score(rows["outcome"], rows["truth"])) < SIGMAS


def test_lending_has_its_documented_columns():
    rows = simulate.lending()
    assert list(rows)[:-3] == ["region", "product", "employment", "age", "income", "term", "opened"]
    levels = {name: len(set(rows[name]) - {None}) for name in ("region", "product", "employment")}
    assert levels == {"region": 12, "product": 5, "employment": 6}
    assert rows["age"].min() == 18
    assert sorted(set(rows["term"].tolist())) == [12, 24, 36, 48, 60, 72]
    assert rows["opened"].dtype == np.dtype("datetime64[D]")
    assert (str(rows["opened"].min()), str(rows["opened"].max())) == ("2022-01-01", "2024-12-31")


@pytest.mark.parametrize(
    ("make", "name", "share"),
    [(simulate.lending, "employment", 0.04), (simulate.lending, "income", 0.06), (simulate.clicks, "user_age", 0.15)],
)
def test_some_values_are_missing(make, name, share):
    rows = make()
    n = len(rows[name])
    missing = Shift({name: None}, 0.0).rows(rows)
    assert abs(missing.mean() - share) < SIGMAS * np.sqrt(share * (1 - share) / n)


# --- clicks


def test_calibrated_clicks_predict_their_truth():
    rows = simulate.clicks(2_000, calibrated=True)
    assert np.array_equal(rows["prediction"], rows["truth"])


def test_two_percent_of_advertisements_are_clicked():
    rows = simulate.clicks()
    assert rows["truth"].mean() == pytest.approx(0.02, rel=1e-9)
    assert abs(z_score(rows["outcome"], rows["truth"])) < SIGMAS


def test_clicks_has_its_documented_columns():
    rows = simulate.clicks()
    assert list(rows)[:-3] == ["country", "device", "browser", "ad_format", "hour", "user_age", "slot"]
    levels = [len(set(rows[name])) for name in ("country", "device", "browser", "ad_format")]
    assert levels == [30, 5, 8, 6]
    assert "BR" in rows["country"]
    assert {"tv", "tablet"} < set(rows["device"].tolist())
    assert sorted(set(rows["hour"].tolist())) == list(range(24))
    assert sorted(set(rows["slot"].tolist())) == list(range(1, 9))


def test_most_countries_are_rare():
    _, counts = np.unique(simulate.clicks()["country"], return_counts=True)
    assert (counts < 0.02 * counts.sum()).sum() > 15


# --- planted errors


@pytest.mark.parametrize(
    ("make", "shifts", "slope", "prevalence"),
    [
        (simulate.lending, LENDING_SHIFTS, simulate.LENDING_SLOPE, 0.08),
        (simulate.clicks, CLICKS_SHIFTS, simulate.CLICKS_SLOPE, 0.02),
    ],
)
def test_predictions_are_the_truth_stretched_and_shifted_as_exported(make, shifts, slope, prevalence):
    rows = make()
    centre = logit(prevalence)
    expected = centre + slope * (logit(rows["truth"]) - centre) - planted(rows, shifts)
    np.testing.assert_allclose(logit(rows["prediction"]), expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize(("make", "shifts"), [(simulate.lending, LENDING_SHIFTS), (simulate.clicks, CLICKS_SHIFTS)])
def test_every_planted_error_is_significant_in_the_default_sample(make, shifts):
    rows = make()
    for shift in shifts:
        result = shift.rows(rows)
        z = z_score(rows["outcome"][result], rows["prediction"][result])
        assert z * np.sign(shift.logit) > 4, shift


def test_a_shift_of_one_logit_puts_the_truth_one_logit_above_the_prediction():
    rows = simulate.population(3_000, shifts=[Shift({"c0": "c0_1"}, 1.0)])
    inside = rows["c0"] == "c0_1"
    np.testing.assert_allclose(logit(rows["truth"][inside]) - logit(rows["prediction"][inside]), 1.0, atol=1e-9)
    assert np.array_equal(rows["truth"][~inside], rows["prediction"][~inside])


@pytest.mark.parametrize("decimals", [None, 2])
@pytest.mark.parametrize("size", [0.7, -0.7])
def test_a_planted_shift_is_recovered_from_the_outcomes(size, decimals):
    rows = simulate.population(60_000, shifts=[Shift({"c0": "c0_1", "c1": "c1_0"}, size)], decimals=decimals)
    inside = (rows["c0"] == "c0_1") & (rows["c1"] == "c1_0")
    for part, expected in ((inside, size), (~inside, 0.0)):
        # The offset d of a logistic model: sum expit(logit p + d) = sum y, its standard error 1 / sqrt(information).
        y, z, d = rows["outcome"][part], logit(rows["prediction"][part]), 0.0
        for _ in range(20):
            q = 1 / (1 + np.exp(-z - d))
            d += (y.sum() - q.sum()) / (q * (1 - q)).sum()
        assert abs(d - expected) < SIGMAS / np.sqrt((q * (1 - q)).sum())


def test_shifts_add_where_they_overlap():
    shifts = [Shift({"c0": "c0_0"}, 0.5), Shift({"x0": (0.0, np.inf)}, -0.2), Shift({}, 0.1)]
    rows = simulate.population(2_000, levels=(2,), numeric=1, shifts=shifts)
    expected = 0.5 * (rows["c0"] == "c0_0") - 0.2 * (rows["x0"] >= 0) + 0.1
    np.testing.assert_allclose(logit(rows["truth"]) - logit(rows["prediction"]), expected, atol=1e-9)


# --- population


@pytest.mark.parametrize("prevalence", [0.001, 0.2, 0.97])
@pytest.mark.parametrize("spread", [0.0, 1.0, 30.0])
def test_the_mean_truth_is_the_prevalence(prevalence, spread):
    rows = simulate.population(5_000, prevalence=prevalence, spread=spread)
    assert rows["truth"].mean() == pytest.approx(prevalence, rel=1e-9)


def test_without_columns_and_spread_every_truth_is_the_prevalence():
    rows = simulate.population(50, levels=(), spread=0, shifts=[Shift({}, 1.0)])
    np.testing.assert_allclose(rows["truth"], 0.2, rtol=1e-12)
    np.testing.assert_allclose(logit(rows["prediction"]), logit(0.2) - 1, rtol=1e-12)


def test_shares_of_levels_fall_as_one_over_the_rank():
    n = 40_000
    rows = simulate.population(n, levels=(1, 3))
    assert set(rows["c0"]) == {"c0_0"}
    for rank, share in enumerate((6 / 11, 3 / 11, 2 / 11)):
        got = (rows["c1"] == f"c1_{rank}").mean()
        assert abs(got - share) < SIGMAS * np.sqrt(share * (1 - share) / n)


def test_numeric_columns_are_standard_normal_and_unrelated():
    n = 40_000
    rows = simulate.population(n, levels=(), numeric=2)
    for x in (rows["x0"], rows["x1"]):
        assert abs(x.mean()) < SIGMAS / np.sqrt(n)
        assert abs(x.std() - 1) < SIGMAS / np.sqrt(2 * n)
    assert abs((rows["x0"] * rows["x1"]).mean()) < SIGMAS / np.sqrt(n)


def test_the_spread_is_the_unexplained_standard_deviation():
    n = 40_000
    rows = simulate.population(n, levels=(3,), numeric=1, spread=1.5)
    left = logit(rows["truth"]) - 0.5 * rows["x0"]
    variances = [left[rows["c0"] == level].var() for level in ("c0_0", "c0_1", "c0_2")]
    smallest = n * 2 / 11
    assert np.abs(np.sqrt(variances) - 1.5).max() < SIGMAS * 1.5 / np.sqrt(2 * smallest) * 1.1


def test_every_seed_is_a_sample_of_one_population():
    rates = []
    for seed in range(2):
        rows = simulate.population(50_000, seed, levels=(4,))
        rates.append([rows["truth"][rows["c0"] == f"c0_{level}"].mean() for level in range(4)])
    # A truth has a standard deviation below 0.25, and the rarest level 12% of the rows.
    assert np.abs(np.subtract(*rates)).max() < SIGMAS * 0.25 * np.sqrt(2 / (0.12 * 50_000))


@pytest.mark.parametrize("decimals", [1, 2, 3])
def test_rounded_scores_stay_calibrated(decimals):
    rows = simulate.population(5_000, decimals=decimals, prevalence=0.02)
    assert np.array_equal(rows["prediction"], rows["truth"])
    assert np.array_equal(np.round(rows["prediction"], decimals), rows["prediction"])
    assert rows["prediction"].min() >= 10.0**-decimals
    assert rows["prediction"].max() <= 1 - 10.0**-decimals


def test_a_shift_is_relative_to_the_rounded_score():
    rows = simulate.population(2_000, decimals=2, shifts=[Shift({"c0": "c0_0"}, -0.8)])
    expected = np.where(rows["c0"] == "c0_0", -0.8, 0.0)
    assert np.array_equal(np.round(rows["prediction"], 2), rows["prediction"])
    np.testing.assert_allclose(logit(rows["truth"]) - logit(rows["prediction"]), expected, atol=1e-9)


@pytest.mark.parametrize("n", [0, -1, 2.5, "9", None, True])
@pytest.mark.parametrize("make", [simulate.lending, simulate.clicks, simulate.population])
def test_the_number_of_rows_must_be_a_positive_integer(make, n):
    with pytest.raises(ArgumentError, match="n must be an integer at least 1; got"):
        make(n)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"seed": -1}, "seed must be an integer at least 0; got -1"),
        ({"seed": 0.5}, "seed must be an integer"),
        ({"prevalence": 0}, "prevalence must lie between 0 and 1"),
        ({"prevalence": 1.0}, "prevalence must lie between 0 and 1"),
        ({"prevalence": float("nan")}, "prevalence must lie between 0 and 1"),
        ({"spread": -0.1}, "spread must be a number at least 0"),
        ({"spread": float("inf")}, "spread must be a number at least 0"),
        ({"levels": 4}, "levels must be a list"),
        ({"levels": (4, 0)}, r"levels\[1\] must be an integer at least 1; got 0"),
        ({"numeric": -1}, "numeric must be an integer"),
        ({"decimals": 0}, "decimals must be an integer from 1 to 15; got 0"),
        ({"decimals": 16}, "decimals must be an integer from 1 to 15; got 16"),
        ({"shifts": Shift({}, 1.0)}, "shifts must be a list of Shift"),
        ({"shifts": [1.0]}, "shifts must be a list of Shift"),
        ({"shifts": [Shift({"c2": "c2_0"}, 1.0)]}, "column 'c2', which does not exist\nhint: the columns are c0, c1"),
        ({"shifts": [Shift({"truth": (0, 1)}, 1.0)]}, "column 'truth', which does not exist"),
        ({"shifts": [Shift({"c0": "c0_9"}, 1.0)]}, "level 'c0_9' of column 'c0'"),
        ({"numeric": 1, "shifts": [Shift({"x0": "high"}, 1.0)]}, "column 'x0' contains numbers"),
    ],
)
def test_invalid_arguments_are_rejected_by_name(options, message):
    with pytest.raises(ArgumentError, match=message):
        simulate.population(10, **options)


# --- Shift


def test_a_shift_matches_values_ranges_dates_and_missing_values():
    columns = {
        "text": np.array(["a", None, "b", "a"], object),
        "word": np.array(["a", "b", "b", "c"]),
        "number": np.array([1.0, np.nan, 2.0, 3.0]),
        "whole": np.array([1, 2, 3, 4]),
        "date": np.array(["2024-01-01", "NaT", "2024-03-01", "2024-06-30"], "datetime64[D]"),
    }
    for where, expected in [
        ({}, [1, 1, 1, 1]),
        ({"text": "a"}, [1, 0, 0, 1]),
        ({"text": None}, [0, 1, 0, 0]),
        ({"word": "b"}, [0, 1, 1, 0]),
        ({"word": None}, [0, 0, 0, 0]),
        ({"number": 2}, [0, 0, 1, 0]),
        ({"number": (1, 3)}, [1, 0, 1, 0]),
        ({"number": None}, [0, 1, 0, 0]),
        ({"whole": (1.5, 4)}, [0, 1, 1, 0]),
        ({"whole": None}, [0, 0, 0, 0]),
        ({"date": ("2024-01-01", "2024-06-30")}, [1, 0, 1, 0]),
        ({"date": np.datetime64("2024-06-30")}, [0, 0, 0, 1]),
        ({"date": None}, [0, 1, 0, 0]),
        ({"text": "a", "number": (2, 9)}, [0, 0, 0, 1]),
    ]:
        assert Shift(where, 1.0).rows(columns).tolist() == [bool(result) for result in expected], where


@pytest.mark.parametrize(
    ("where", "message"),
    [
        ({"b": 1}, "column 'b', which does not exist"),
        ({"text": 1}, "column 'text' contains texts, which cannot be compared to 1"),
        ({"text": ("a", "b")}, "column 'text' contains texts"),
        ({"number": "a"}, "column 'number' contains numbers"),
    ],
)
def test_a_shift_rejects_columns_that_it_cannot_compare(where, message):
    with pytest.raises(ArgumentError, match=message):
        Shift(where, 1.0).rows({"text": np.array(["a"]), "number": np.array([1.0])})


@pytest.mark.parametrize("size", [float("nan"), float("inf"), "1", None, True])
def test_the_size_of_a_shift_must_be_a_finite_number(size):
    with pytest.raises(ArgumentError, match="logit must be a number"):
        Shift({}, size)


def test_a_range_is_a_pair():
    with pytest.raises(ArgumentError, match=r"range of column 'age' must be a pair \(low, high\)"):
        Shift({"age": (1, 2, 3)}, 1.0)


def test_a_shift_is_frozen_and_can_be_pickled():
    given = {"c0": "c0_1", "x0": (0, 1)}
    shift = Shift(given, 0.5)
    given["c0"] = "c0_2"
    assert shift.where["c0"] == "c0_1"
    with pytest.raises(FrozenInstanceError):
        shift.logit = 1.0
    with pytest.raises(TypeError):
        shift.where["c0"] = "c0_0"
    assert pickle.loads(pickle.dumps(shift)) == shift
    assert repr(shift) == "<Shift of +0.5 logit where c0=c0_1 & 0<=x0<1>"
