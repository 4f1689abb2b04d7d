"""The noise of real outcomes: its estimates, the p-values that follow, false alarms and power."""

from __future__ import annotations

import math

import numpy as np
import pytest

import trueup as tu
import twins
from trueup.audits import dispersion, text
from trueup.data import chunks
from trueup.data.frame import read
from trueup.errors import ArgumentError, DataError

ROLES = {"outcome": "y", "prediction": "p", "task": "regression"}
NOISE = {
    "normal": lambda random, mean: mean + random.normal(size=len(mean)),
    "gamma": lambda random, mean: mean * random.gamma(2, 0.5, len(mean)),
    "lognormal": lambda random, mean: mean * np.exp(1.5 * random.normal(size=len(mean)) - 1.125),
    "claims": lambda random, mean: (random.random(len(mean)) < 0.1) * 10 * mean * random.gamma(2, 0.5, len(mean)),
    "counts": lambda random, mean: random.poisson(0.05 * mean) * 20.0,
    "rare counts": lambda random, mean: random.poisson(0.004 * mean) * 250.0,
}


def _simulate(random, noise, n=6000, groups=75, error=None):
    """Return calibrated predictions of positive means with ``noise``; ``error``: factor of the mean by group."""
    group, kind = random.integers(0, groups, n), random.integers(0, 4, n)
    mean = np.exp(0.5 * random.normal(size=n) + 0.2 * kind)
    truth = mean if error is None else mean * error(group, kind)
    return {"group": group, "kind": kind, "p": mean, "y": NOISE[noise](random, truth)}


def _audit(data, **options):
    return tu.audit(data, **ROLES, categorical=["group", "kind"], **options)


@pytest.mark.parametrize("noise", ["gamma", "claims", "normal", "zeros"])
@pytest.mark.parametrize("weighted", [False, True])
def test_p_values_equal_their_definition(noise, weighted):
    random = np.random.default_rng(1)
    data = _simulate(random, "gamma" if noise == "zeros" else noise, n=1500, groups=5)
    if noise == "zeros":  # in a level and in a combination
        inside = (data["group"] == 2) | ((data["group"] == 3) & (data["kind"] == 1))
        data["y"][inside & (random.random(1500) < 0.8)] = 0.0
    more = (data["kind"] == 2) & (data["y"] != 0)
    data["y"] = np.where(more, 3 * data["y"] - 2 * data["p"], data["y"])  # a category that varies more
    w = random.lognormal(0, 0.5, 1500) if weighted else None
    if weighted:
        data["w"] = w
    if noise == "normal":
        data["p"], data["y"] = data["p"].round(1) - 1, data["y"] - 1  # ties and negative scores
    audit = _audit(data, weight="w" if weighted else None)
    v, k3, slope = twins.pooled_noise(data["y"], data["p"], w, [data["group"], data["kind"]], 50)
    assert (slope > 1) == (noise != "normal")
    assert (len(audit.noise.zeros) == 2) == (noise == "zeros")
    for segment, keep in [
        ("all rows", np.ones(1500, bool)),
        ("kind=2", data["kind"] == 2),
        ("group=3 & kind=1", (data["group"] == 3) & (data["kind"] == 1)),
    ]:
        own = None if w is None else w[keep]
        expected = twins.real_pvalue(
            data["y"][keep], data["p"][keep], own, v[keep], k3[keep], slope, 1500, np.count_nonzero(data["y"])
        )
        assert audit[segment].p_value == pytest.approx(expected, rel=1e-6)
        differences = twins.real_noise(data["y"][keep], data["p"][keep], own)
        scale = max(math.sqrt(v[keep].sum()), differences)
        assert audit[segment].sigma == pytest.approx(twins.span(data["y"][keep], data["p"][keep], own) / scale)


def test_score_bins_with_few_outcomes_other_than_zero_are_merged():
    nonzero = np.array([4.0, 7, 0, 12, 3, 1, 2])
    by_bin = np.column_stack([np.full(7, 100.0), nonzero, *np.zeros((3, 7))])
    merged = dispersion.merge_bins(by_bin)
    assert merged[:, 0].tolist() == [200, 500]
    assert merged[:, 1].tolist() == [11, 18]
    assert dispersion.merge_bins(by_bin[:2, :])[:, 1].tolist() == [11]
    assert dispersion.merge_bins(by_bin[:1, :])[:, 1].tolist() == [4]


def test_the_slope_of_the_variance_is_that_of_its_logarithm():
    score = np.array([1.0, 2, 4, 8])
    assert dispersion.variance_slope(score, 3 * score**1.5) == pytest.approx(1.5)
    assert dispersion.variance_slope(score, score**3) == 2.0
    assert dispersion.variance_slope(score, 1 / score) == 0.0
    assert dispersion.variance_slope(score, np.array([1.0, 2, 0, 8])) == 0.0  # too few bins


def test_cumulants_are_standardised_within_bins():
    random = np.random.default_rng(0)
    values = [random.exponential(2.0, 40) + 5, random.normal(size=30)]
    powers = np.array([[np.sum(z**k) for k in range(5)] for z in values])
    z = np.concatenate([(v - v.mean()) / v.std() for v in values])
    assert dispersion.standardised_cumulants(powers) == pytest.approx((np.mean(z**3), np.mean(z**4) - 3))
    assert dispersion.standardised_cumulants(np.zeros((2, 5))) == (0.0, 0.0)


def test_a_level_that_varies_more_has_a_factor_and_a_rise_of_its_mean_does_not():
    # Columns: rows, sum u, sum w p, sum u^2, V, sum of squared variances.
    plain, varied, higher, small = (
        [100, 0, 200, 110, 100, 100],
        [100, 0, 200, 400, 100, 100],
        [100, 200, 200, 800, 100, 100],
        [9, 0, 18, 90, 9, 9],
    )
    factors = dispersion.level_factors(np.array([plain, varied, higher, small], float), 0.0, 2.0, 10)
    # h of the third level is (1 + 200/200)^2 = 4 and Q = 800 - 400: no factor.
    assert factors.tolist() == pytest.approx([1.0, 4 - math.sqrt(0.02), 1.0, 1.0])


def test_most_outcomes_zero_and_few_others_are_not_testable():
    random = np.random.default_rng(0)
    data = {"p": np.full(3000, 0.01), "y": (np.arange(3000) < 29).astype(float), "g": random.choice(["a", "b"], 3000)}
    audit = tu.audit(data, **ROLES)
    reason = "only 29 outcomes are not zero, too few to estimate their noise"
    assert (audit.tested, audit.miscalibrated) == (0, False)
    assert audit.verdict == f"not testable: {reason}"
    assert audit["g=a"].note == f"not testable: {reason}"
    data["y"][29] = 1.0
    assert tu.audit(data, **ROLES).tested == 3


def test_what_cannot_be_tested_has_neither_interval_nor_sigma():
    random = np.random.default_rng(0)
    data = {"p": np.full(3000, 0.01), "y": (np.arange(3000) < 20).astype(float), "g": random.choice(["a", "b"], 3000)}
    audit = tu.audit(data, **ROLES)
    for finding in audit:
        values = (finding.sigma, finding.ratio_low, finding.ratio_high, finding.mde, finding.p_value, finding.p_adjusted)
        assert np.isnan(values).all()
        assert finding.expected == pytest.approx(0.01)
    assert math.isnan(audit.global_sigma)
    assert "- to -" in repr(audit)


# Levels whose outcomes are mostly zero, unlike those of the others


def _with_zeros(random, *, share=0.01, n=4000, rows=1.0):
    """Return calibrated predictions; in one of 20 levels (or a share ``rows`` of it) most outcomes are zero, else gamma."""
    g, h = random.integers(0, 20, n), random.integers(0, 4, n)
    p = random.lognormal(0, 0.6, n)
    inside = (g == 0) & (random.random(n) < rows)
    y = np.where(inside, np.where(random.random(n) < share, p / share, 0.0), p * random.gamma(4, 0.25, n))
    return {"g": g, "h": h, "p": p, "y": y}


def test_the_zeros_of_a_level_imply_a_variance():
    # Of 99 outcomes 4 are not zero, where 99 * 304 / 399 = 75 are expected at the same score: odds of (99 - 4) / (4 + 1).
    y = np.concatenate([np.tile([1.0, 3.0], 150), np.repeat([50.0, 0.0], [4, 95])])
    audit = tu.audit({"g": np.repeat([*"ab"], [300, 99]), "p": np.full(399, 2.0), "y": y}, **ROLES)
    (cells,) = audit.noise.zeros
    assert cells.codes.tolist() == [[1]]
    assert cells.odds.tolist() == [19.0]
    assert cells.few.tolist() == [True]
    # 40 of 99 are fewer than expected, but more than a third; none where 7 are expected has probability exp(-7) = 0.0009.
    counts = np.array([4.0, 40, 0]), np.array([99.0, 99, 7])
    assert dispersion.unexplained_zeros(*counts, 50).tolist() == [True, False, True]
    assert dispersion.unexplained_zeros(*counts, 60).tolist() == [True, False, False]


@pytest.mark.parametrize("weighted", [False, True])
def test_non_zero_outcomes_are_counted_in_memory_and_in_files(tmp_path, monkeypatch, weighted):
    monkeypatch.setattr(chunks, "PARTITION_ROWS", 700)
    monkeypatch.setattr(chunks.ScanReader, "memory_budget", property(lambda _: 1_000))
    data = _with_zeros(np.random.default_rng(3))
    w = np.random.default_rng(4).lognormal(0, 1, 4000) if weighted else np.ones(4000)
    np.savetxt(tmp_path / "rows.csv", np.column_stack([*data.values(), w]), "%.17g", ",", header="g,h,p,y,w", comments="")
    roles = ROLES | {"categorical": ["g", "h"], "by": ["g", "h"], "weight": "w"}
    audit = tu.audit(data | {"w": w}, **roles)
    assert audit.noise.nonzero is not None
    scanned = tu.audit(tu.scan(tmp_path / "rows.csv"), **roles)
    names = audit.to_frame()["segment"]
    for name in names:
        one, other = audit[name], scanned[name]
        assert (one.testable, one.note) == (other.testable, other.note)
        assert one.sigma == pytest.approx(other.sigma, nan_ok=True)
    few = audit["g=0"]
    inside = data["g"] == 0
    assert np.count_nonzero(data["y"][inside]) < 10
    assert few.note == f"not testable: {text.FEW_NONZERO}"
    assert not few.testable
    assert np.isnan([few.sigma, few.ratio_low, few.mde, few.p_value]).all()
    withheld = sum(audit[name].note == few.note for name in names)
    assert f"not tested: {withheld} segments, where {text.FEW_NONZERO} (counted among the tests)" in repr(audit)
    # They keep their share of alpha, so that shares do not depend on outcomes: 3 depths, 2 columns, 20 levels.
    error = tu.audit(data | {"w": w, "y": data["y"] * np.where(data["g"] == 5, 2.0, 1.0)}, **roles).finding(0)
    assert error.segment == "g=5"
    assert error.p_adjusted == pytest.approx(error.p_value * 3 * 2 * 20)


@pytest.mark.repeated(40, 100)
def test_levels_of_mostly_zeros_raise_no_false_alarms(repetitions):
    alarms = sum(
        tu.audit(_with_zeros(np.random.default_rng(seed)), **ROLES, categorical=["g", "h"], threads=1).miscalibrated
        for seed in range(repetitions)
    )
    assert alarms / repetitions <= 0.05 + twins.three_se(0.05, repetitions)


@pytest.mark.repeated(60, 200)
def test_a_few_large_claims_raise_no_false_alarms(repetitions):
    alarms = 0
    for seed in range(repetitions):
        random = np.random.default_rng(seed)
        p = random.lognormal(0, 0.6, 4000)
        y = (random.random(4000) < 0.02) * 50 * p * np.exp(1.5 * random.normal(size=4000) - 1.125)
        alarms += tu.audit({"p": p, "y": y}, **ROLES, by=[], threads=1).miscalibrated
    assert alarms / repetitions <= 0.05 + twins.three_se(0.05, repetitions)


def test_fewer_events_at_unchanged_amounts_are_found():
    found = 0
    for seed in range(20):
        data = _simulate(np.random.default_rng(seed), "counts", error=lambda _, kind: np.where(kind == 0, 0.4, 1.0))
        found += _audit(data, depth=1)["kind=0"].p_adjusted <= 0.05
    assert found >= 16


@pytest.mark.parametrize("family", [None, "gamma"])
@pytest.mark.parametrize(
    ("scale", "message"),
    [
        (1e-200, r"are at most \d\.\d*e-200: sums of their powers are not finite, or 0\nhint: measure both in a smaller"),
        (1e90, r"are at most \d\.\d*e\+90: sums of their powers are not finite, or 0\nhint: measure both in a larger unit"),
        (1e200, r"must lie within 1e\+100 of 0"),
    ],
)
def test_outcomes_whose_powers_are_not_finite_or_zero_are_rejected(scale, message, family):
    data = _simulate(np.random.default_rng(0), "gamma", n=1000)
    for name in ("p", "y"):
        data[name] = data[name] * scale
    with pytest.raises(DataError, match=message):
        _audit(data, family=family)


@pytest.mark.parametrize("scale", [1e-45, 1e45])
def test_p_values_do_not_depend_on_the_unit(scale):
    data = _simulate(np.random.default_rng(0), "claims", n=1000)
    scaled = data | {name: data[name] * scale for name in ("p", "y")}
    one, other = _audit(data), _audit(scaled)
    assert [finding.segment for finding in one] == [finding.segment for finding in other]
    assert one.columns["p_value"] == pytest.approx(other.columns["p_value"], rel=1e-9, nan_ok=True)


@pytest.mark.parametrize("noise", NOISE)
@pytest.mark.repeated(20, 50)
def test_the_false_alarm_rate_of_real_outcomes_is_at_most_alpha(noise, repetitions):
    alarms = sum(_audit(_simulate(np.random.default_rng(seed), noise)).miscalibrated for seed in range(repetitions))
    assert alarms / repetitions <= 0.05 + twins.three_se(0.05, repetitions)


def test_categories_of_different_variance_raise_no_false_alarms():
    repetitions, alarms = 50, 0
    for seed in range(repetitions):
        random = np.random.default_rng(seed)
        data = _simulate(random, "normal")
        data["y"] = data["p"] + (random.exponential(size=6000) - 1) * np.array([1, 1, 1, 4])[data["kind"]]
        alarms += _audit(data).miscalibrated
    assert alarms / repetitions <= 0.05 + twins.three_se(0.05, repetitions)


def test_normal_noise_is_tested_with_the_power_of_its_own_variance():
    # The test of a segment by its own differences is valid for normal noise: the pooled test must not find less.
    repetitions, level, found, alone = 40, 1e-4, 0, 0
    for seed in range(repetitions):
        random = np.random.default_rng(seed)
        data = _simulate(random, "normal")
        keep = data["group"] == 0
        data["y"] += 0.65 * keep
        finding = _audit(data, depth=1)["group=0"]
        found += finding.p_value <= level
        y, p = data["y"][keep], data["p"][keep]
        alone += twins.range_tail(twins.span(y, p) / twins.real_noise(y, p)) <= level
    assert 0.5 < alone / repetitions < 0.95
    assert found >= alone - 3


# Outcomes of a known family


def _tweedie(random, mean, dispersion, weight, power=1.5):
    """Draw compound Poisson-gamma amounts per unit of exposure (Jorgensen 1997)."""
    phi = dispersion / weight
    claims = random.poisson(mean ** (2 - power) / (phi * (2 - power)))
    shape, scale = (2 - power) / (power - 1), phi * (power - 1) * mean ** (power - 1)
    return np.where(claims > 0, random.gamma(np.maximum(claims, 1) * shape) * scale, 0.0)


DRAWS = {
    "poisson": lambda random, mean, w: random.poisson(0.2 * w * mean) / w / 0.2,
    "gamma": lambda random, mean, w: mean * random.gamma(2 * w, 0.5 / w),
    "tweedie": lambda random, mean, w: _tweedie(random, mean, 5.0, w),
    "over-dispersed": lambda random, mean, w: random.poisson(0.2 * w * mean * random.gamma(0.2, 5, len(w))) / w / 0.2,
}


def _family(random, family, n=6000, error=None):
    data = _simulate(random, "normal", n)
    data["w"] = random.uniform(0.1, 1.0, n)
    truth = data["p"] if error is None else data["p"] * error(data["group"], data["kind"])
    data["y"] = DRAWS[family](random, truth, data["w"])
    if family in ("poisson", "over-dispersed"):
        data["y"], data["p"] = data["y"] * 0.2, data["p"] * 0.2
    return data, "poisson" if family == "over-dispersed" else family


@pytest.mark.parametrize("family", ["poisson", "gamma", "tweedie", "over-dispersed"])
def test_p_values_of_a_family_equal_their_definition(family):
    data, family = _family(np.random.default_rng(2), family, n=2000)
    q = {"poisson": 1, "gamma": 2, "tweedie": 1.5}[family]
    audit = _audit(data, weight="w", family=family)
    y, p, w = data["y"], data["p"], data["w"]
    e = y - p
    pearson = np.mean(w * e**2 / p**q)
    phi = max(pearson, np.sum((w * e) ** 2) / np.sum(w * p**q), float(family == "poisson"))
    k3 = q * phi**2 * w * p ** (2 * q - 1)
    k3 *= max(1.0, np.sum((w * e) ** 3) / k3.sum())
    assert audit.noise.pearson == pytest.approx(pearson)
    assert audit.noise.dispersion == pytest.approx(phi)
    for level in range(4):
        keep = data["kind"] == level
        path, x = twins.path(y[keep], p[keep], w[keep]), twins.span(y[keep], p[keep], w[keep])
        v, b = phi * np.sum((w * p**q)[keep]), np.sum(k3[keep]) / (phi * np.sum((w * p**q)[keep]))
        if np.argmin(path) > np.argmax(path):
            u = x / v
            expected = twins.range_tail(x / math.sqrt(v))
            if family == "poisson":
                expected = min(expected, 4 * math.exp(-v * ((1 - u) * math.log(1 - u) + u)))
        else:
            u = b * x / v
            exponent = (1 + u) * math.log1p(u) - u if family == "poisson" else 4 * (u / 2 - math.log1p(u / 2))
            r = math.sqrt(2 * v * exponent) / b
            expected = twins.range_tail(r) * max(1.0, r / 4)
        finding = audit[f"kind={level}"]
        assert finding.p_value == pytest.approx(expected, rel=1e-6)
        assert finding.sigma == pytest.approx(x / math.sqrt(v))


@pytest.mark.parametrize("family", DRAWS)
@pytest.mark.repeated(20, 50)
def test_the_false_alarm_rate_of_a_family_is_at_most_alpha(family, repetitions):
    alarms = 0
    for seed in range(repetitions):
        data, name = _family(np.random.default_rng(seed), family)
        alarms += _audit(data, weight="w", family=name).miscalibrated
    assert alarms / repetitions <= 0.05 + twins.three_se(0.05, repetitions)


@pytest.mark.parametrize("family", ["poisson", "gamma"])
@pytest.mark.parametrize("factor", [2.2, 0.35])
def test_an_error_of_a_family_is_found(family, factor):
    found = 0
    for seed in range(10):
        data, name = _family(np.random.default_rng(seed), family, error=lambda group, _: np.where(group < 3, factor, 1.0))
        audit = tu.audit({**data, "few": data["group"] < 3}, **ROLES, by=["few", "kind"], weight="w", family=name)
        found += audit["few=true"].p_adjusted <= 0.05
    assert found >= 8


@pytest.mark.parametrize("family", ["poisson", "gamma"])
def test_the_detectable_shift_of_a_family_is_found_with_about_80_percent_power(family):
    data, _ = _family(np.random.default_rng(0), family)
    shift = tu.audit(data, **ROLES, by=[], weight="w", family=family).overall
    found = 0
    for seed in range(60):
        random = np.random.default_rng([seed, 1])
        data, _ = _family(random, family, error=lambda group, _: 1 + shift.mde / shift.expected)
        found += tu.audit(data, **ROLES, by=[], weight="w", family=family, threads=1).overall.p_value <= 0.05
    assert 0.8 - twins.three_se(0.8, 60) - 0.1 <= found / 60 <= 0.8 + twins.three_se(0.8, 60)


def test_over_dispersion_is_stated():
    data, _ = _family(np.random.default_rng(0), "over-dispersed")
    audit = _audit(data, weight="w", family="poisson")
    stated = (
        f"Pearson's statistic is {audit.noise.pearson:.3g}, where a Poisson outcome has 1: variances are multiplied by "
    )
    assert any(line.startswith(stated) for line in repr(audit).splitlines())
    assert audit.noise.dispersion > 1.3
    data, _ = _family(np.random.default_rng(0), "poisson")
    assert "Pearson" not in repr(_audit(data, weight="w", family="poisson"))
    data["y"] += 0.5
    assert "is the weight the exposure of a count?" in repr(_audit(data, weight="w", family="poisson"))


def test_outcomes_and_predictions_outside_a_family_are_rejected():
    p, y = np.full(100, 2.0), np.ones(100)
    for family, column, value, message in [
        ("poisson", "p", 0.0, "family 'poisson' needs positive predictions; 2 are not, the lowest is 0"),
        ("gamma", "p", -3.0, "family 'gamma' needs positive predictions; 2 are not, the lowest is -3"),
        ("tweedie", "y", -1.0, "family 'tweedie' needs outcomes of at least 0; 2 are negative, as -1"),
        ("gamma", "y", 0.0, "family 'gamma' with variance power 2 needs positive outcomes; 2 are 0"),
    ]:
        data = {"p": p.copy(), "y": y.copy()}
        data[column][7:9] = value
        with pytest.raises(DataError, match=message):
            tu.audit(data, **ROLES, family=family, by=[])


def test_families_and_their_powers_are_validated():
    data = {"p": np.full(100, 0.5), "y": np.ones(100)}
    roles = {"outcome": "y", "prediction": "p", "by": []}
    assert tu.audit(data, **roles, family="poisson").settings.variance_power == 1
    assert tu.audit(data, **roles, family="tweedie", variance_power=1.7).noise.power == 1.7
    for options, message in [
        ({"family": "normal"}, "family must be one of"),
        ({"family": "poisson", "task": "binary"}, "a family is for real outcomes"),
        ({"family": "tweedie", "variance_power": 4}, "variance_power must be"),
        ({"family": "gamma", "variance_power": 1.5}, "the variance of family 'gamma' has the exponent 2; got 1.5"),
        ({"variance_power": 1.5}, "variance_power needs a family"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            tu.audit(data, **roles, **options)
    with pytest.raises(ArgumentError, match="a family is for real outcomes"):
        tu.audit(read(data | {"y": np.arange(100) % 2}, outcome="y", prediction="p", features=[]), family="poisson")


def test_a_higher_mean_of_skewed_outcomes_is_found():
    found = 0
    for seed in range(20):
        data = _simulate(np.random.default_rng(seed), "gamma", error=lambda group, _: np.where(group == 0, 1.7, 1.0))
        finding = _audit(data, depth=1)["group=0"]
        found += finding.p_adjusted <= 0.05
    assert found >= 14


def test_the_verdict_names_the_largest_segment_that_could_not_be_tested():
    random = np.random.default_rng(3)
    g = np.repeat([*"abcde"], 800)
    p = random.lognormal(0, 0.6, 4000)
    y = np.where(g == "a", 0.0, p * random.gamma(4, 0.25, 4000))
    audit = tu.audit({"g": g, "p": p, "y": y}, **ROLES)
    assert audit.state == "no miscalibration found"
    assert audit.verdict.endswith(f"; not tested: g=a, {p[:800].sum():,.0f} fewer than expected in 20% of rows")
    assert text.has_large_untested(audit)
    assert "the family tweedie can test amounts with zeros" in repr(audit)
    assert "g=a" in tu.audit({"g": g, "p": p, "y": y}, **ROLES, family="tweedie").verdict.split("largest")[1]
    rare = tu.audit(_with_zeros(random), **ROLES | {"categorical": ["g", "h"]})
    assert "; not tested: g=0" in rare.verdict
    assert not text.has_large_untested(rare)  # a twentieth of the rows


@pytest.mark.parametrize("family", ["poisson", "tweedie"])
def test_outcomes_where_the_prediction_of_a_family_is_nearly_zero_are_rejected(family):
    p = np.r_[np.ones(11), 1e-200]
    y = np.r_[np.zeros(11), 1.0]
    with pytest.raises(DataError, match=rf"times as much as family '{family}' allows: a prediction is nearly 0"):
        tu.audit({"y": y, "p": p}, outcome="y", prediction="p", family=family, task="regression")
