"""The summary of an audit, compared with plain NumPy row by row."""

from __future__ import annotations

import copy
import pickle
import re
import warnings
from dataclasses import FrozenInstanceError, replace

import numpy as np
import pytest
from scipy.stats import binom

import trueup as tu
import twins
from trueup.audits.summary import MAX_PATH_POINTS, _count_limits


def make_rows(n=2_000, *, seed=0, weights=False, ties=False, scale=1.0):
    rng = np.random.default_rng(seed)
    p = scale * rng.beta(1, 3, n)
    p = np.round(p, 2) if ties else p
    y = (rng.random(n) < np.clip(1.2 * p, 0, 1)).astype(int)
    data = {"y": y, "p": p, "g": rng.choice(["a", "b"], n)}
    return data | ({"w": rng.integers(1, 40, n) / 8} if weights else {})


def audit_of(data, **more):
    weight = "w" if "w" in data else None
    return tu.audit(data, outcome="y", prediction="p", by=["g"], weight=weight, **more)


def weights_of(data):
    return data.get("w", np.ones(len(data["y"])))


CASES = [{}, {"weights": True}, {"ties": True}, {"ties": True, "weights": True}, {"scale": 0.01}, {"n": 60}]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_histogram_counts_every_row_in_its_bin(case):
    data = make_rows(**case)
    found, w = audit_of(data).summary.histogram, weights_of(data)
    assert np.allclose(np.diff(found.edges), found.edges[1])
    assert found.edges[0] == 0
    assert data["p"].max() <= found.edges[-1] <= 1
    for at, (low, high) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True)):
        inside = (data["p"] >= low) & ((data["p"] < high) if at < len(found.weight) - 1 else True)
        assert found.weight[at] == pytest.approx(w[inside].sum())
        assert found.positives[at] == pytest.approx((w * data["y"])[inside].sum())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_path_has_the_range_of_the_test_statistic(case):
    data = make_rows(**case)
    audit, w = audit_of(data), weights_of(data)
    path, twin = audit.summary.path, twins.path(data["y"], data["p"], data.get("w")) / w.sum()
    assert path.value.min() == pytest.approx(twin.min(), abs=1e-12)
    assert path.value.max() == pytest.approx(twin.max(), abs=1e-12)
    assert path.value[-1] == pytest.approx(twin[-1], abs=1e-12)
    assert np.ptp(path.value) == pytest.approx(audit.overall.ecce, rel=1e-9)
    assert audit.overall.ecce / path.noise[-1] == pytest.approx(audit.overall.sigma, rel=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_point_of_the_path_is_a_score_of_the_data(case):
    data = make_rows(**case)
    path, w, p, y = audit_of(data).summary.path, weights_of(data), data["p"], data["y"]
    assert len(path.share) <= MAX_PATH_POINTS
    assert (path.share[0], path.value[0], path.noise[0]) == (0, 0, 0)
    assert path.share[-1] == pytest.approx(1)
    assert (np.diff(path.share) > 0).all()
    total = w.sum()
    levels = np.unique(p)
    share = np.array([w[p <= score].sum() for score in levels]) / total
    for at in range(1, len(path.share), 37):
        upto = p <= levels[np.argmin(np.abs(share - path.share[at]))]
        assert path.share[at] == pytest.approx(w[upto].sum() / total)
        assert path.value[at] == pytest.approx((w * (y - p))[upto].sum() / total, abs=1e-12)
        assert path.noise[at] == pytest.approx(np.sqrt((w**2 * p * (1 - p))[upto].sum()) / total)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_auc_counts_pairs_and_half_of_ties(case):
    data = make_rows(**{"n": 300, **case})
    w, p, y = weights_of(data), data["p"], data["y"]
    pairs = np.outer(w * y, w * (1 - y))
    wins = (p[:, None] > p[None, :]) + 0.5 * (p[:, None] == p[None, :])
    assert audit_of(data).summary.scores["auc"] == pytest.approx((pairs * wins).sum() / pairs.sum())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_measures_agree_with_metrics_and_the_decomposition_adds_up(case):
    data = make_rows(**case)
    found, w = audit_of(data).summary.scores, weights_of(data)
    assert found["brier"] == pytest.approx(np.average((data["y"] - data["p"]) ** 2, weights=w))
    assert found["brier"] == pytest.approx(found["miscalibration"] - found["discrimination"] + found["uncertainty"])
    assert found["observed"] == pytest.approx(np.average(data["y"], weights=w))
    assert found["expected"] == pytest.approx(np.average(data["p"], weights=w))
    assert found["miscalibration"] >= 0
    assert found["discrimination"] >= 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_threshold_counts_are_rows_at_or_above_each_hundredth(case):
    data = make_rows(**case)
    found, w = audit_of(data).summary.called, weights_of(data)
    for at in range(101):
        above = data["p"] >= float(f"{at / 100:.2f}")
        assert found.rows[at] == pytest.approx(w[above].sum())
        assert found.positives[at] == pytest.approx((w * data["y"])[above].sum())


def test_a_score_reaches_the_threshold_of_the_same_decimals():
    scores = np.array([float(f"0.{at:02d}") for at in range(1, 100)])
    data = {"y": np.tile([0, 1], 50)[:99], "p": scores, "g": np.full(99, "a")}
    assert audit_of(data).summary.called.rows[1:100].tolist() == list(range(99, 0, -1))


def test_the_band_has_binomial_quantiles():
    for n, p in ((100, 0.001), (5_000, 1e-4), (50, 0.5), (20, 0.97), (1_000, 0.3), (10**7, 0.2)):
        low, high = _count_limits(np.array([n * p]), np.array([n * p * (1 - p)]), 0.05)
        assert (low[0], high[0]) == tuple(binom.ppf([0.025, 0.975], n, p))


def test_the_band_has_its_coverage_for_rare_events():
    rng = np.random.default_rng(3)
    p = np.sort(2e-3 * rng.beta(1, 2, 5_000))  # below one event in most bins
    audit = audit_of({"y": (rng.random(5_000) < p).astype(int), "p": p, "g": np.full(5_000, "a")})
    summary, counts = audit.summary, audit.overall.curve.rows
    starts = np.append(0, np.cumsum(counts)[:-1])
    outside = [
        (rate < summary.low - 1e-12) | (rate > summary.high + 1e-12)
        for rate in (np.add.reduceat((rng.random(5_000) < p).astype(float), starts) / counts for _ in range(1_000))
    ]
    # Each bin by itself; a count can only be surer than 95%, never less so.
    assert (np.mean(outside, axis=0) <= 0.05 + twins.three_se(0.05, 1_000)).all()


def test_scores_of_zero_and_one_have_a_band_of_width_zero():
    data = make_rows(400) | {"p": np.repeat([0.0, 1.0], 200), "y": np.repeat([0, 1], 200)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = audit_of(data).summary
    assert summary.low.tolist() == summary.high.tolist() == [0.0, 1.0]


def test_the_fingerprint_is_of_outcomes_predictions_and_weights_in_any_order():
    data = make_rows(weights=True)
    fingerprint = audit_of(data).summary.fingerprint
    assert re.fullmatch("[0-9a-f]{32}", fingerprint)
    assert audit_of({name: column[::-1] for name, column in data.items()}).summary.fingerprint == fingerprint
    for name in ("y", "p", "w"):
        changed = data | {name: np.append(1 / (3 + data[name][:1]), data[name][1:])}
        assert audit_of(changed).summary.fingerprint != fingerprint
    swapped = data | {"w": data["w"][::-1]}
    assert audit_of(swapped).summary.fingerprint != fingerprint


@pytest.mark.parametrize("ties", [False, True])
def test_the_noise_of_real_outcomes_does_not_depend_on_their_error(ties):
    rng = np.random.default_rng(5)
    p = np.round(rng.normal(size=1_000), 1 if ties else 9)
    data = {"y": p + 50 + rng.normal(size=1_000), "p": p, "g": rng.choice(["a", "b"], 1_000)}
    audit = audit_of(data, task="regression")
    summary, whole = audit.summary, audit.overall
    assert summary.path.noise[-1] == pytest.approx(twins.real_noise(data["y"], p) / 1_000)
    assert whole.ecce / summary.path.noise[-1] == pytest.approx(whole.sigma)
    # An error of 50 does not widen the band of scores that would be right: 1.96 standard errors of about 100 rows.
    assert np.allclose(summary.high - whole.curve.predicted, 1.96 / np.sqrt(whole.curve.rows), rtol=0.5)
    assert summary.called is None
    assert set(summary.scores) == {"observed", "expected", "rmse"}
    assert summary.scores["rmse"] == pytest.approx(np.sqrt(np.mean((data["y"] - p) ** 2)))
    assert summary.histogram.weight.sum() == 1_000
    assert (summary.histogram.edges[0], summary.histogram.edges[-1]) == (p.min(), p.max())


@pytest.mark.parametrize("outcome", [0, 1])
def test_measures_undefined_for_one_class_are_nan(outcome):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        summary = audit_of(make_rows() | {"y": np.full(2_000, outcome)}).summary
    assert all(np.isnan(summary.scores[name]) for name in ("auc", "slope", "intercept", "in the large"))
    assert np.isfinite(summary.scores["brier"])
    assert summary.to_dict()["scores"]["auc"] is None


def test_a_weight_of_two_equals_two_rows():
    data = make_rows(500)
    double = make_rows(500) | {"w": np.where(np.arange(500) % 2, 2.0, 1.0)}
    twice = {name: np.repeat(column, np.where(np.arange(500) % 2, 2, 1)) for name, column in data.items()}
    one, other = audit_of(double).summary, audit_of(twice).summary
    for name in ("brier", "log loss", "auc", "slope", "intercept", "miscalibration"):
        assert one.scores[name] == pytest.approx(other.scores[name])
    assert one.histogram.weight == pytest.approx(other.histogram.weight)
    assert one.called.positives == pytest.approx(other.called.positives)


def test_the_summary_is_computed_once_for_an_audit_and_its_copies():
    audit = audit_of(make_rows())
    other = replace(audit, source=None)
    assert audit.summary is audit.summary
    assert other.summary is audit.summary


def test_an_audit_cannot_be_changed():
    audit = audit_of(make_rows())
    before = dict(vars(audit))
    assert audit.summary.scores["brier"] > 0
    assert vars(audit)["summary_source"] is before["summary_source"]
    with pytest.raises(FrozenInstanceError):
        audit.rows = 0
    with pytest.raises(ValueError, match="read-only"):
        audit.columns["n"][0] = 0


def test_a_pickled_audit_has_the_summary_and_not_the_rows():
    audit = audit_of(make_rows(20_000))
    data = pickle.dumps(audit)
    again = pickle.loads(data)
    assert again.sorted_rows is None
    assert len(audit.sorted_rows) == 20_000
    assert again.summary.fingerprint == audit.summary.fingerprint
    assert len(data) < 20_000 * 8
    assert copy.deepcopy(audit).summary.scores == audit.summary.scores
    with pytest.raises(tu.errors.ArgumentError, match="no summary"):
        replace(audit, summary_source=None).summary  # noqa: B018


def test_a_biased_mean_is_not_called_within_noise():
    rng = np.random.default_rng(2)
    p = rng.random(20_000)
    data = {"p": p, "g": np.full(20_000, "a")}
    even = audit_of(data | {"y": (rng.random(20_000) < 0.5 + 0.3 * (p - 0.5)).astype(int)})
    mean = f"observed/expected {even.overall.ratio:.2f}, within noise on average"
    assert f": {mean} (100% of rows), with scores too low below 0.5" in even.verdict
    uneven = audit_of(data | {"y": (rng.random(20_000) < 0.52 + 0.3 * (p - 0.5)).astype(int)})
    assert uneven.overall.ratio_low > 1
    assert abs(uneven.overall.bias) < 0.5 * uneven.overall.ecce
    assert f"observed/expected {uneven.overall.ratio:.2f}, certainly above 1.03" in uneven.verdict
    assert "within noise" not in uneven.verdict


def test_the_band_has_its_coverage_if_heavy_rows_have_high_scores():
    rng = np.random.default_rng(1)
    p = np.repeat([0.02, 0.6], 19)  # one bin
    w = np.where(p > 0.1, 9.0, 1.0)
    summary = audit_of({"y": np.tile([0, 1], 19), "p": p, "w": w, "g": np.full(38, "a")}, min_rows=10).summary
    rates = (rng.random((20_000, 38)) < p) @ w / w.sum()
    outside = (rates < summary.low[0] - 1e-12) | (rates > summary.high[0] + 1e-12)
    assert 0.01 < np.mean(outside) <= 0.05 + twins.three_se(0.05, 20_000)
