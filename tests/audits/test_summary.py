"""The portrait of an audit: held to plain NumPy, row by row."""

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


def rows(n=2_000, *, seed=0, weights=False, ties=False, scale=1.0):
    rng = np.random.default_rng(seed)
    p = scale * rng.beta(1, 3, n)
    p = np.round(p, 2) if ties else p
    y = (rng.random(n) < np.clip(1.2 * p, 0, 1)).astype(int)
    data = {"y": y, "p": p, "g": rng.choice(["a", "b"], n)}
    return data | ({"w": rng.integers(1, 40, n) / 8} if weights else {})


def portray(data, **more):
    weight = "w" if "w" in data else None
    return tu.audit(data, outcome="y", prediction="p", by=["g"], weight=weight, **more)


def weights_of(data):
    return data.get("w", np.ones(len(data["y"])))


CASES = [{}, {"weights": True}, {"ties": True}, {"ties": True, "weights": True}, {"scale": 0.01}, {"n": 60}]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_histogram_holds_every_row_in_its_cell(case):
    data = rows(**case)
    found, w = portray(data).summary.histogram, weights_of(data)
    assert np.allclose(np.diff(found.edges), found.edges[1])
    assert found.edges[0] == 0
    assert data["p"].max() <= found.edges[-1] <= 1
    for at, (low, high) in enumerate(zip(found.edges[:-1], found.edges[1:], strict=True)):
        inside = (data["p"] >= low) & ((data["p"] < high) if at < len(found.weight) - 1 else True)
        assert found.weight[at] == pytest.approx(w[inside].sum())
        assert found.positives[at] == pytest.approx((w * data["y"])[inside].sum())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_path_has_the_extremes_of_the_differences_and_the_range_that_is_tested(case):
    data = rows(**case)
    audit, w = portray(data), weights_of(data)
    path, twin = audit.summary.path, twins.path(data["y"], data["p"], data.get("w")) / w.sum()
    assert path.value.min() == pytest.approx(twin.min(), abs=1e-12)
    assert path.value.max() == pytest.approx(twin.max(), abs=1e-12)
    assert path.value[-1] == pytest.approx(twin[-1], abs=1e-12)
    assert np.ptp(path.value) == pytest.approx(audit.overall.ecce, rel=1e-9)
    assert audit.overall.ecce / path.noise[-1] == pytest.approx(audit.overall.sigma, rel=1e-9)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_point_of_the_path_is_a_place_of_the_data(case):
    data = rows(**case)
    path, w, p, y = portray(data).summary.path, weights_of(data), data["p"], data["y"]
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
    data = rows(**{"n": 300, **case})
    w, p, y = weights_of(data), data["p"], data["y"]
    pairs = np.outer(w * y, w * (1 - y))
    wins = (p[:, None] > p[None, :]) + 0.5 * (p[:, None] == p[None, :])
    assert portray(data).summary.scores["auc"] == pytest.approx((pairs * wins).sum() / pairs.sum())


@pytest.mark.parametrize("case", CASES, ids=str)
def test_measures_are_those_of_the_metrics_and_the_split_adds_up(case):
    data = rows(**case)
    found, w = portray(data).summary.scores, weights_of(data)
    assert found["brier"] == pytest.approx(np.average((data["y"] - data["p"]) ** 2, weights=w))
    assert found["brier"] == pytest.approx(found["miscalibration"] - found["discrimination"] + found["uncertainty"])
    assert found["observed"] == pytest.approx(np.average(data["y"], weights=w))
    assert found["expected"] == pytest.approx(np.average(data["p"], weights=w))
    assert found["miscalibration"] >= 0
    assert found["discrimination"] >= 0


@pytest.mark.parametrize("case", CASES, ids=str)
def test_rows_called_are_those_at_or_above_each_hundredth(case):
    data = rows(**case)
    found, w = portray(data).summary.called, weights_of(data)
    for at in range(101):
        above = data["p"] >= float(f"{at / 100:.2f}")
        assert found.rows[at] == pytest.approx(w[above].sum())
        assert found.positives[at] == pytest.approx((w * data["y"])[above].sum())


def test_a_score_reaches_the_threshold_that_is_written_as_it_is():
    scores = np.array([float(f"0.{at:02d}") for at in range(1, 100)])
    data = {"y": np.tile([0, 1], 50)[:99], "p": scores, "g": np.full(99, "a")}
    assert portray(data).summary.called.rows[1:100].tolist() == list(range(99, 0, -1))


def test_the_band_has_the_quantiles_of_the_counts():
    for n, p in ((100, 0.001), (5_000, 1e-4), (50, 0.5), (20, 0.97), (1_000, 0.3), (10**7, 0.2)):
        low, high = _count_limits(np.array([n * p]), np.array([n * p * (1 - p)]), 0.05)
        assert (low[0], high[0]) == tuple(binom.ppf([0.025, 0.975], n, p))


def test_a_calibrated_score_lies_in_the_band_as_often_as_it_says_also_where_events_are_rare():
    rng = np.random.default_rng(3)
    p = np.sort(2e-3 * rng.beta(1, 2, 5_000))  # below one event in most bins
    audit = portray({"y": (rng.random(5_000) < p).astype(int), "p": p, "g": np.full(5_000, "a")})
    portrait, counts = audit.summary, audit.overall.curve.rows
    starts = np.append(0, np.cumsum(counts)[:-1])
    outside = [
        (rate < portrait.low - 1e-12) | (rate > portrait.high + 1e-12)
        for rate in (np.add.reduceat((rng.random(5_000) < p).astype(float), starts) / counts for _ in range(1_000))
    ]
    # Each bin by itself; a count can only be surer than 95%, never less so.
    assert (np.mean(outside, axis=0) <= 0.05 + twins.three_se(0.05, 1_000)).all()


def test_scores_that_are_certain_have_a_band_without_width():
    data = rows(400) | {"p": np.repeat([0.0, 1.0], 200), "y": np.repeat([0, 1], 200)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        portrait = portray(data).summary
    assert portrait.low.tolist() == portrait.high.tolist() == [0.0, 1.0]


def test_the_fingerprint_is_of_outcomes_predictions_and_weights_in_any_order():
    data = rows(weights=True)
    fingerprint = portray(data).summary.fingerprint
    assert re.fullmatch("[0-9a-f]{32}", fingerprint)
    assert portray({name: column[::-1] for name, column in data.items()}).summary.fingerprint == fingerprint
    for name in ("y", "p", "w"):
        changed = data | {name: np.append(1 / (3 + data[name][:1]), data[name][1:])}
        assert portray(changed).summary.fingerprint != fingerprint
    swapped = data | {"w": data["w"][::-1]}
    assert portray(swapped).summary.fingerprint != fingerprint


@pytest.mark.parametrize("ties", [False, True])
def test_real_outcomes_have_the_noise_of_the_test_whatever_their_error(ties):
    rng = np.random.default_rng(5)
    p = np.round(rng.normal(size=1_000), 1 if ties else 9)
    data = {"y": p + 50 + rng.normal(size=1_000), "p": p, "g": rng.choice(["a", "b"], 1_000)}
    audit = portray(data, task="regression")
    portrait, whole = audit.summary, audit.overall
    assert portrait.path.noise[-1] == pytest.approx(twins.real_noise(data["y"], p) / 1_000)
    assert whole.ecce / portrait.path.noise[-1] == pytest.approx(whole.sigma)
    # An error of 50 does not widen the band of scores that would be right: 1.96 standard errors of about 100 rows.
    assert np.allclose(portrait.high - whole.curve.predicted, 1.96 / np.sqrt(whole.curve.rows), rtol=0.5)
    assert portrait.called is None
    assert set(portrait.scores) == {"observed", "expected", "rmse"}
    assert portrait.scores["rmse"] == pytest.approx(np.sqrt(np.mean((data["y"] - p) ** 2)))
    assert portrait.histogram.weight.sum() == 1_000
    assert (portrait.histogram.edges[0], portrait.histogram.edges[-1]) == (p.min(), p.max())


@pytest.mark.parametrize("outcome", [0, 1])
def test_one_class_leaves_what_has_no_meaning_undefined(outcome):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        portrait = portray(rows() | {"y": np.full(2_000, outcome)}).summary
    assert all(np.isnan(portrait.scores[name]) for name in ("auc", "slope", "intercept", "in the large"))
    assert np.isfinite(portrait.scores["brier"])
    assert portrait.to_dict()["scores"]["auc"] is None


def test_a_weight_of_two_is_the_row_twice_in_sums_and_measures():
    data = rows(500)
    double = rows(500) | {"w": np.where(np.arange(500) % 2, 2.0, 1.0)}
    twice = {name: np.repeat(column, np.where(np.arange(500) % 2, 2, 1)) for name, column in data.items()}
    one, other = portray(double).summary, portray(twice).summary
    for name in ("brier", "log loss", "auc", "slope", "intercept", "miscalibration"):
        assert one.scores[name] == pytest.approx(other.scores[name])
    assert one.histogram.weight == pytest.approx(other.histogram.weight)
    assert one.called.positives == pytest.approx(other.called.positives)


def test_the_summary_is_computed_once_for_an_audit_and_its_copies():
    audit = portray(rows())
    other = replace(audit, source=None)
    assert audit.summary is audit.summary
    assert other.summary is audit.summary


def test_an_audit_cannot_be_changed():
    audit = portray(rows())
    before = dict(vars(audit))
    assert audit.summary.scores["brier"] > 0
    assert vars(audit)["summary_source"] is before["summary_source"]
    with pytest.raises(FrozenInstanceError):
        audit.rows = 0
    with pytest.raises(ValueError, match="read-only"):
        audit.columns["n"][0] = 0


def test_a_pickled_audit_has_the_summary_and_not_the_rows():
    audit = portray(rows(20_000))
    data = pickle.dumps(audit)
    again = pickle.loads(data)
    assert again.sorted_rows is None
    assert len(audit.sorted_rows) == 20_000
    assert again.summary.fingerprint == audit.summary.fingerprint
    assert len(data) < 20_000 * 8
    assert copy.deepcopy(audit).summary.scores == audit.summary.scores
    with pytest.raises(tu.errors.ArgumentError, match="no summary"):
        replace(audit, summary_source=None).summary  # noqa: B018


def test_a_mean_that_is_off_is_not_called_right_where_the_scores_are_more_so():
    rng = np.random.default_rng(2)
    p = rng.random(20_000)
    data = {"p": p, "g": np.full(20_000, "a")}
    even = portray(data | {"y": (rng.random(20_000) < 0.5 + 0.3 * (p - 0.5)).astype(int)})
    assert ": calibrated on average, errors varying with the score" in even.verdict
    uneven = portray(data | {"y": (rng.random(20_000) < 0.52 + 0.3 * (p - 0.5)).astype(int)})
    assert uneven.overall.ratio_low > 1
    assert abs(uneven.overall.bias) < 0.5 * uneven.overall.ecce
    assert f"observed/expected {uneven.overall.ratio:.2f}, with larger errors varying with the score" in uneven.verdict


def test_a_calibrated_score_lies_in_the_band_also_where_heavy_rows_have_the_higher_scores():
    rng = np.random.default_rng(1)
    p = np.repeat([0.02, 0.6], 19)  # one bin
    w = np.where(p > 0.1, 9.0, 1.0)
    portrait = portray({"y": np.tile([0, 1], 19), "p": p, "w": w, "g": np.full(38, "a")}, min_rows=10).summary
    rates = (rng.random((20_000, 38)) < p) @ w / w.sum()
    outside = (rates < portrait.low[0] - 1e-12) | (rates > portrait.high[0] + 1e-12)
    assert 0.01 < np.mean(outside) <= 0.05 + twins.three_se(0.05, 20_000)
