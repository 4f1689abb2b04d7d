"""Materiality: tolerances, simultaneous intervals, and errors that certainly exceed a tolerance."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import beta

import trueup as tu
from trueup.audits.materiality import Tolerance, is_within_tolerance
from trueup.audits.text import describe_limit, signed_count
from trueup.errors import ArgumentError
from trueup.kernels import tails
from trueup.metrics.inference import normal_quantile, range_quantile

ROLES = {"outcome": "y", "prediction": "p"}


def rows_of_rate(n, seed, factor, low=0.05, high=0.3):
    """Draw outcomes whose probability is ``factor`` times the score, in four segments."""
    random = np.random.default_rng(seed)
    p = random.uniform(low, high, n)
    y = (random.random(n) < factor * p).astype(float)
    return {"p": p, "y": y, "g": np.array([*"abcd"])[random.integers(0, 4, n)]}


@pytest.mark.parametrize("size", [10, 50, 1000, 20_000])
@pytest.mark.parametrize("level", [0.05, 1e-3, 1e-5, 1e-9])
def test_limits_of_a_rate_contain_the_exact_ones_and_are_hardly_wider(size, level):
    count = np.unique(np.linspace(0, size, 60).astype(int))
    limits = np.empty((2, len(count)))
    tails.rate_limits(count / size, np.full(len(count), float(size)), np.full(len(count), normal_quantile(level)), limits)
    with np.errstate(invalid="ignore"):
        low = np.where(count > 0, beta.ppf(level / 2, count, size - count + 1), 0.0)
        high = np.where(count < size, beta.isf(level / 2, count + 1, size - count), 1.0)
    assert (limits[0] <= low * (1 + 1e-6)).all()
    assert (1 - limits[1] <= (1 - high) * (1 + 1e-6)).all()
    assert ((limits[1] - limits[0]) <= 1.05 * (high - low)).all()


@pytest.mark.parametrize(
    ("given", "low", "high"),
    [(0.02, 0.18, 0.22), ("0.02", 0.18, 0.22), ("10%", 0.2 / 1.1, 0.22), (" 25 %".replace(" ", ""), 0.16, 0.25)],
)
def test_a_tolerance_is_a_difference_or_a_percentage(given, low, high):
    limits = Tolerance.parse(given).limits(np.array([0.2]))
    assert [float(limit[0]) for limit in limits] == pytest.approx([low, high])


@pytest.mark.parametrize("given", ["ten", "-1%", -0.1, math.nan, "nan%", True])
def test_other_tolerances_are_refused(given):
    with pytest.raises(ArgumentError, match="tolerance must be"):
        tu.audit(rows_of_rate(100, 0, 1.0), **ROLES, tolerance=given)


def test_a_tolerance_of_zero_changes_no_finding():
    data = rows_of_rate(4000, 1, 1.4)
    plain, zero = (tu.audit(data, **ROLES, tolerance=tolerance) for tolerance in (None, 0))
    for name, column in plain.to_frame().items():
        if name != "state":
            np.testing.assert_array_equal(zero.to_frame()[name], column)
    assert zero.rejected == int(zero.is_material.sum()) > 0
    assert (plain.state, zero.state) == ("miscalibrated", "material")


def test_states_follow_the_simultaneous_interval():
    data = rows_of_rate(40_000, 2, 1.25)
    for tolerance, state in (("5%", "material"), ("60%", "within tolerance")):
        audit = tu.audit(data, **ROLES, tolerance=tolerance)
        assert audit.state == audit.overall.state == state
        assert audit.verdict.startswith(f"{state}: ")
    finding = audit.overall
    assert finding.ratio_low_adjusted < finding.ratio_low < finding.ratio < finding.ratio_high < finding.ratio_high_adjusted
    assert finding.excess == pytest.approx(float((data["y"] - data["p"]).sum()))
    assert audit["g=a"].share == pytest.approx((data["g"] == "a").mean())


def test_errors_that_cancel_on_average_can_be_material():
    random = np.random.default_rng(3)
    p = random.uniform(0.1, 0.9, 20_000)
    data = {"p": p, "y": random.random(20_000) < 0.5 + 0.3 * (p - 0.5)}
    audit = tu.audit(data, **ROLES, tolerance="10%")
    assert abs(audit.overall.ratio - 1) < 0.05
    assert audit.overall.state == "material"


@pytest.mark.parametrize(("factor", "tolerance"), [(1.1, "10%"), (1 / 1.1, "10%"), (1.0, 0.02)])
def test_errors_at_the_tolerance_are_called_material_as_rarely_as_alpha(factor, tolerance):
    repetitions, called = 100, 0
    for seed in range(repetitions):
        data = rows_of_rate(3000, seed, factor)
        if tolerance == 0.02:
            data["y"] = (np.random.default_rng([seed, 1]).random(3000) < data["p"] + 0.02).astype(float)
        called += bool(tu.audit(data, **ROLES, tolerance=tolerance, threads=1).is_material.any())
    assert called <= 100 * (0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions))


@pytest.mark.parametrize(("factor", "tolerance"), [(1.3, "30%"), (1 / 1.3, "30%"), (1.0, 0.05)])
def test_errors_at_the_tolerance_are_called_within_it_as_rarely_as_alpha(factor, tolerance):
    repetitions, called, detected = 100, 0, 0
    for seed in range(repetitions):
        data = rows_of_rate(3000, seed, factor)
        if tolerance == 0.05:
            data["y"] = (np.random.default_rng([seed, 1]).random(3000) < data["p"] + 0.05).astype(float)
        audit = tu.audit(data, **ROLES, tolerance=tolerance, threads=1)
        called, detected = called + (audit.count_state("within tolerance") > 0), detected + audit.miscalibrated
    assert called <= 100 * (0.05 + 3 * math.sqrt(0.05 * 0.95 / repetitions)) < detected


def test_a_segment_is_within_the_tolerance_if_its_interval_and_the_range_of_its_differences_are():
    columns = {name: np.full(5, value) for name, value in {"expected": 0.2, "ecce": 0.01, "sigma": 4.0}.items()}
    columns["sigma"][3], columns["ecce"][4] = 0.8, 0.0199
    level = 0.05  # range_quantile(0.05) is 2.4977: the limit of the range is .01 (1 + 2.4977 / 4) = .0162
    assert range_quantile(level) == pytest.approx(2.4977, abs=1e-3)
    ratios = np.array([[1.02, 0.95, 0.90, 1.0, 1.0], [1.09, 1.11, 1.05, 1.05, 1.05]])
    found = is_within_tolerance(Tolerance.parse("10%"), columns, ratios, np.full(5, level))
    # inside; above 1.1; below 1/1.1; range .01 (1 + 2.4977 / .8) = .0412; range .0199 (1 + 2.4977 / 4) = .0323 > .02
    assert found.tolist() == [True, False, False, False, False]


def test_a_segment_whose_estimate_is_beyond_the_tolerance_is_not_called_within_it():
    data = rows_of_rate(8000, 2, 1.12)
    audit = tu.audit(data, **ROLES, tolerance="10%")
    assert audit.overall.ratio > 1.1 > audit.overall.ratio_low_adjusted
    assert audit.state == audit.overall.state == "possibly material"
    assert audit.verdict.startswith("possibly material: ")
    assert ", none certainly beyond 10%, " in audit.verdict


@pytest.mark.parametrize(
    ("ratio", "low", "high", "text"),
    [(1.4, 1.319, 1.5, "certainly above 1.31"), (0.7, 0.6, 0.781, "certainly below 0.79"), (1.02, 1.0087, 1.03, "certainly above 1.008"),
     (0.98, 0.97, 0.9912, "certainly below 0.992"), (1.1, 0.9, 1.3, "")],
)  # fmt: skip
def test_a_certain_limit_is_rounded_towards_1(ratio, low, high, text):
    finding = tu.audit(rows_of_rate(500, 0, 1.0), **ROLES).overall
    assert describe_limit(replace(finding, ratio=ratio, ratio_low_adjusted=low, ratio_high_adjusted=high)) == text


def test_real_outcomes_have_materiality():
    random = np.random.default_rng(5)
    p = random.uniform(10, 20, 20_000)
    data = {"p": p, "y": 1.2 * p + random.normal(0, 3, 20_000), "g": np.array([*"ab"])[random.integers(0, 2, 20_000)]}
    states = [tu.audit(data, **ROLES, task="regression", tolerance=one).state for one in ("10%", 1.0, "30%", 6.0)]
    assert states == ["material", "material", "within tolerance", "within tolerance"]


@pytest.mark.parametrize(
    ("value", "written"), [(57_175_389.4, "+57,175,389"), (-120.4, "-120"), (2.53, "+2.5"), (2e15, "+2e+15")]
)
def test_sums_of_money_are_written_in_full(value, written):
    assert signed_count(value) == written


@pytest.mark.parametrize("given", [1, 10, "1.5"])
def test_an_absolute_tolerance_of_probabilities_is_below_1(given, tmp_path):
    data = rows_of_rate(200, 0, 1.0)
    np.savetxt(tmp_path / "rows.csv", np.column_stack([data["p"], data["y"]]), "%.6f", ",", header="p,y", comments="")
    message = rf"tolerance must be below 1 for probabilities; got {given}\nhint: write tolerance=\"{given}%\""
    for source in (data, tu.scan(tmp_path / "rows.csv")):
        with pytest.raises(ArgumentError, match=message):
            tu.audit(source, **ROLES, tolerance=given)


def test_an_error_that_is_material_at_some_scores_only_is_described_as_such():
    random = np.random.default_rng(3)
    p = random.uniform(0.1, 0.9, 20_000)
    audit = tu.audit({"p": p, "y": random.random(20_000) < 0.5 + 0.3 * (p - 0.5)}, **ROLES, tolerance="10%")
    assert audit.overall.ratio_low_adjusted < 1.1
    assert audit.overall.ratio_high_adjusted > 1 / 1.1
    assert "at some scores certainly off by more than 10% (100% of rows), with scores too low below 0.49" in audit.verdict
    assert "certainly above" not in audit.verdict
    by_mean = tu.audit(rows_of_rate(40_000, 2, 1.5), **ROLES, tolerance="10%")
    assert "certainly above" in by_mean.verdict
    assert "at some scores" not in by_mean.verdict


@pytest.mark.parametrize("settings", [{"task": "regression"}, {"family": "tweedie"}, {"family": "poisson"}])
def test_intervals_of_outcomes_that_are_not_negative_are_not_either(settings):
    random = np.random.default_rng(6)
    p, g = random.uniform(0.5, 2, 1200), np.repeat([*"abcdefghijkl"], 100)
    y = np.where(random.random(1200) < 0.1, 10 * p, 0.0) * (g != "a")
    frame = tu.audit({"p": p, "y": y, "g": g}, **ROLES, **settings).to_frame()
    for name in ("ratio_low", "ratio_low_adjusted"):
        assert np.nanmin(frame[name]) == 0
    assert (frame["ratio_high_adjusted"][frame["testable"]] > 0).all()
    if "task" in settings:
        y[0] = -1e-3
        assert np.nanmin(tu.audit({"p": p, "y": y, "g": g}, **ROLES, **settings).to_frame()["ratio_low_adjusted"]) < 0
