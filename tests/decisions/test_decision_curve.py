import json
import re
import warnings

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trueup.decisions import Labelled, decision_curve, expected_cost
from trueup.decisions.evidence import quantile
from trueup.errors import ArgumentError, DataError, ShiftWarning
from trueup.metrics.inference import likely_root


def spread(errors, largest, failing):
    return float(likely_root(float(np.sum(errors**2)), largest, failing))


Y = np.array([0, 0, 0, 1, 0, 1, 1, 1], float)
P = np.array([0.1, 0.2, 0.3, 0.3, 0.6, 0.7, 0.8, 0.9])
Q = np.array([0.6, 0.2, 0.3, 0.9, 0.1, 0.7, 0.4, 0.9])


def twin(y, p, w, t):
    """Vickers and Elkin's definition, one threshold at a time."""
    treated = p >= t
    return (w[treated] @ y[treated] - w[treated] @ (1 - y[treated]) * t / (1 - t)) / w.sum()


def population(random, n):
    """Return true probabilities, an overconfident score, and a nearly calibrated one."""
    x, z = random.normal(size=n), 0.7 * random.normal(size=n)
    truth, before, after = (1 / (1 + np.exp(-s)) for s in (x + z - 1.8, 1.6 * x - 1.2, 0.95 * x + 0.9 * z - 1.75))
    return truth, before, after


def test_worked_example_of_net_benefit():
    curve = decision_curve(Y, P, thresholds=[0.25, 0.5])
    assert curve.benefit["model"] == pytest.approx([4 / 8 - 2 / 8 / 3, 3 / 8 - 1 / 8])  # 4 right and 2 wrong, 3 and 1
    assert curve.treat_all == pytest.approx([4 / 8 - 4 / 8 / 3, 0])
    assert curve.treat_none.tolist() == [0, 0]
    assert curve.standardized["model"] == pytest.approx(curve.benefit["model"] / 0.5)
    # At 0.25 two negative rows less are acted on than if all were, at no loss: 2 of 8.
    assert curve.interventions_avoided["model"][0] == pytest.approx(2 / 8)
    assert curve.prevalence == 0.5
    assert curve.rows == 8


def test_scores_at_the_threshold_are_acted_on():
    curve = decision_curve([1, 0], [0.07, 0.0])
    assert curve.benefit["model"][6] == 0.5
    assert curve.benefit["model"][7] == 0
    assert curve.threshold.tolist() == [k / 100 for k in range(1, 100)]


@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from(["hard", "soft"]))
@settings(max_examples=60)
def test_all_values_equal_their_definition(seed, n, kind):
    random = np.random.default_rng(seed)
    y = (random.random(n) < 0.4).astype(float) if kind == "hard" else random.random(n)
    w = random.integers(1, 4, n).astype(float)
    p, q = random.integers(0, 11, (2, n)) / 10
    t = np.array([0.0, 0.1, 0.25, 0.5, 0.9])
    curve = decision_curve(y, {"a": p, "b": q}, thresholds=t, weight=w)
    first, second = (np.array([twin(y, one, w, at) for at in t]) for one in (p, q))
    of_all = np.array([twin(y, np.ones(n), w, at) for at in t])
    assert curve.benefit["a"] == pytest.approx(first, abs=1e-12)
    assert curve.benefit["b"] == pytest.approx(second, abs=1e-12)
    assert curve.treat_all == pytest.approx(of_all, abs=1e-12)
    assert curve.difference["b"].estimate == pytest.approx(second - first, abs=1e-12)
    assert curve.advantage["a"].estimate == pytest.approx(first - np.maximum(of_all, 0), abs=1e-12)
    for gain in (curve.difference["b"], curve.advantage["a"], curve.advantage["b"]):
        assert (gain.low <= gain.estimate).all()
        assert (gain.estimate <= gain.high).all()


def test_intervals_equal_those_of_paired_differences():
    random = np.random.default_rng(4)
    y, w = random.random(60), random.integers(1, 4, 60).astype(float)
    p, q = random.random((2, 60))
    t = np.array([0.1, 0.4, 0.8])
    curve = decision_curve(y, {"a": p, "b": q}, thresholds=t, weight=w, level=0.8)
    for k, at in enumerate(t):
        odds = at / (1 - at)
        gain = y - (1 - y) * odds
        every = {
            "alone": ((p >= at) * gain, curve.benefit["a"], curve.low["a"], curve.high["a"], -odds, 1),
            "paired": (((q >= at) * 1.0 - (p >= at)) * gain, *curve.difference["b"][:3], -max(odds, 1), max(odds, 1)),
        }
        if curve.treat_all[k] > 0:
            every["all"] = ((q >= at) * gain - gain, *curve.advantage["b"][:3], -1, odds)
        for each, mean, low, high, least, most in every.values():
            errors = w * (each - w @ each / w.sum())
            assert mean[k] == pytest.approx(w @ each / w.sum())
            for end, reach in ((low, mean[k] - least), (high, most - mean[k])):
                half = quantile(0.1) * spread(errors, w.max() * reach, 0.1) / w.sum()
                assert end[k] == pytest.approx(np.clip(mean[k] + np.sign(end[k] - mean[k]) * half, least, most))


def test_weights_count_rows_and_zero_weights_drop_them():
    w = np.array([2.0, 1, 1, 3, 1, 0, 1, 2])
    many = w.astype(int)
    weighted = decision_curve(Y, {"a": P, "b": Q}, weight=w)
    repeated = decision_curve(np.repeat(Y, many), {"a": np.repeat(P, many), "b": np.repeat(Q, many)})
    for one, other in ((weighted.benefit, repeated.benefit), (weighted.standardized, repeated.standardized)):
        assert np.allclose(one["a"], other["a"])
    assert np.allclose(weighted.difference["b"].estimate, repeated.difference["b"].estimate)
    assert np.allclose(weighted.treat_all, repeated.treat_all)
    # Fewer rows give wider intervals.
    assert (weighted.high["a"] - weighted.low["a"] >= repeated.high["a"] - repeated.low["a"] - 1e-12).all()


def test_weight_scale_and_row_order_do_not_matter():
    order = np.random.default_rng(0).permutation(len(Y))
    one = decision_curve(Y, {"a": P, "b": Q})
    other = decision_curve(Y[order], {"a": P[order], "b": Q[order]}, weight=np.full(8, 5.0))
    assert np.allclose(one.difference["b"].low, other.difference["b"].low)
    assert np.allclose(one.high["a"], other.high["a"])


def test_identical_scores_gain_nothing_and_low_thresholds_treat_all():
    curve = decision_curve(Y, {"a": P, "b": P.copy()})
    assert (curve.difference["b"].estimate == 0).all()
    assert (curve.difference["b"].low < 0).all()
    low = curve.threshold <= P.min()
    assert (curve.advantage["a"].estimate[low] == 0).all()
    assert (curve.benefit["a"][low] == curve.treat_all[low]).all()


@pytest.mark.parametrize("n", [200, 2_000])
@pytest.mark.repeated(60, 300)
def test_intervals_cover_the_benefit_of_the_population(n, repetitions):
    random, t = np.random.default_rng(n), np.array([0.05, 0.2, 0.5, 0.8, 0.95])
    truth, before, after = population(random, 400_000)
    right = {
        name: np.array([twin(truth, p, np.ones(len(p)), at) for at in t])
        for name, p in (("before", before), ("after", after), ("all", np.ones(len(truth))))
    }
    covered = np.zeros((4, len(t)))
    for _ in range(repetitions):
        here = random.integers(0, len(truth), n)
        y = random.random(n) < truth[here]
        curve = decision_curve(y, {"before": before[here], "after": after[here]}, thresholds=t)
        gap, over = curve.difference["after"], curve.advantage["after"]
        apart = right["after"] - right["before"]
        above = right["after"] - np.where(curve.treat_all > 0, right["all"], 0.0)
        for k, (low, at, high) in enumerate(
            [
                *((curve.low[name], right[name], curve.high[name]) for name in ("before", "after")),
                (gap.low, apart, gap.high),
                (over.low, above, over.high),
            ]
        ):
            covered[k] += (low <= at) & (at <= high)
    assert (covered / repetitions >= 0.9 - 3 * np.sqrt(0.09 / repetitions)).all()
    assert (curve.high["before"] - curve.low["before"])[1] < (0.16 if n == 200 else 0.05)  # and they are informative


def test_without_outcomes_the_benefit_is_the_negative_expected_cost():
    random = np.random.default_rng(5)
    p, known = random.beta(1, 3, 500), random.beta(1, 3, 400)
    y, w = random.random(400) < known**1.3, random.integers(1, 4, 500).astype(float)
    segments, theirs = random.integers(0, 3, 500).astype(str), random.integers(0, 3, 400).astype(str)
    bounds = [None, 0.02, (y, known), Labelled(y, known, random.integers(1, 3, 400), theirs)]
    t = np.array([0.1, 0.3, 0.6])
    for bound in bounds:
        for target in ("rows", "population"):
            split = segments if isinstance(bound, Labelled) or bound is None else None
            curve = decision_curve(None, p, thresholds=t, weight=w, labelled=bound, target=target, segments=split)
            for k, at in enumerate(t):
                actions = {"pass": (0, 0), "act": (-1, at / (1 - at))}
                cost = expected_cost(p, actions, float(at), bound, weight=w, target=target, segments=split)
                pairs = [(curve, cost), *((curve.by_segment[name], cost.by_segment[name]) for name in cost.by_segment)]
                assert len(pairs) == (4 if split is not None else 1)
                for ours, other in pairs:
                    unit = other.rows if target == "rows" else 1.0
                    result = [side["model"][k] for side in (ours.benefit, ours.low, ours.high)]
                    assert result == pytest.approx([-other.estimate / unit, -other.high / unit, -other.low / unit])
                    assert {name: one[k] for name, one in ours.half_widths.items()} == pytest.approx(
                        {name: half / unit for name, half in other.half_widths.items()}
                    )
                    assert ours.evidence == other.evidence
                # Compared with acting on all, rows not acted on count with the opposite sign.
                less = {"pass": (1, -at / (1 - at)), "act": (0, 0)}
                over_all = expected_cost(p, less, float(at), bound, weight=w, target=target, segments=split)
                unit = over_all.rows if target == "rows" else 1.0
                if curve.treat_all[k] > 0:
                    gain = curve.advantage["model"]
                    assert [gain.estimate[k], gain.low[k], gain.high[k]] == pytest.approx(
                        [-over_all.estimate / unit, -over_all.high / unit, -over_all.low / unit]
                    )


@pytest.mark.repeated(75, 300)
def test_without_outcomes_intervals_cover_the_realised_benefit(repetitions):
    random, t = np.random.default_rng(8), np.array([0.05, 0.2, 0.5, 0.8])
    covered = np.zeros((2, len(t)))
    for _ in range(repetitions):
        truth, _, p = population(random, 1_500)
        y = (random.random(1_500) < truth).astype(float)
        known = y[:500], p[:500]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ShiftWarning)  # a false alarm in a thousand
            curve = decision_curve(None, p[500:], thresholds=t, labelled=known)
        right = np.array([twin(y[500:], p[500:], np.ones(1_000), at) for at in t])
        of_all = np.array([twin(y[500:], np.ones(1_000), np.ones(1_000), at) for at in t])
        gain = curve.advantage["model"]
        covered[0] += (curve.low["model"] <= right) & (right <= curve.high["model"])
        over = right - np.where(curve.treat_all > 0, of_all, 0)
        covered[1] += (gain.low <= over) & (over <= gain.high)
    assert (covered / repetitions >= 0.9 - 3 * np.sqrt(0.09 / repetitions)).all()


def test_without_evidence_the_expected_benefit_assumes_calibration():
    p = np.random.default_rng(1).beta(1, 4, 200_000)
    y = np.random.default_rng(2).random(200_000) < p
    expected, came = decision_curve(None, p), decision_curve(y, p)
    assert expected.prevalence == pytest.approx(p.mean())
    inside = (expected.low["model"] <= came.benefit["model"]) & (came.benefit["model"] <= expected.high["model"])
    assert inside.mean() > 0.5
    assert np.abs(expected.benefit["model"] - came.benefit["model"])[:50].max() < 0.003


def test_segments_equal_separate_curves():
    segments = np.array(["n", "s"] * 4)
    curve = decision_curve(Y, {"a": P, "b": Q}, segments={"region": segments}, weight=[1, 1, 1, 1, 1, 1, 0, 1])
    assert list(curve.by_segment) == ["region=n", "region=s"]
    separate = decision_curve(Y[1::2], {"a": P[1::2], "b": Q[1::2]})
    south = curve.by_segment["region=s"]
    assert np.array_equal(south.benefit["b"], separate.benefit["b"])
    assert np.array_equal(south.difference["b"].high, separate.difference["b"].high)
    assert curve.by_segment["region=n"].rows == 3


def test_verdict_names_benefits_and_harms():
    random = np.random.default_rng(0)
    truth, before, after = population(random, 20_000)
    y = random.random(20_000) < truth
    curve = decision_curve(y, {"before": before, "after": after})
    gain, at = curve.difference["after"], curve.threshold
    better = at[gain.band_low > 0]
    most = int(np.argmax(np.where(gain.band_low > 0, gain.estimate, -1)))
    assert curve.verdict.startswith(
        f"after is significantly better than before at {better[0]:g} to {better[-1]:g}, "
        f"by up to {1000 * gain.estimate[most]:.3g} net true positives per 1,000 rows at {at[most]:g}"
    )
    harmed = at[curve.advantage["before"].band_high < 0]
    assert f"before is worse than acting on all or none at {harmed[0]:g} to {harmed[-1]:g}, by up to" in curve.verdict
    assert "after is worse" not in curve.verdict
    assert repr(curve) == f"<DecisionCurve of 20,000 rows: {curve.verdict}>"
    back = decision_curve(y, {"after": after, "before": before}).verdict
    assert back.startswith("before is significantly worse than after")
    separate = decision_curve(y, before).verdict
    assert re.match(r"model is significantly better than acting on all or none .* rows at 0\.\d+, worse at 0\.", separate)
    assert decision_curve(Y, {"a": P, "b": Q}).verdict.startswith("b is neither significantly better nor worse than a")


def test_covariance_of_net_benefits_equals_its_definition():
    from trueup.decisions.decision_curve import _covariance, _realised_noise
    from trueup.metrics.inputs import Scored

    random = np.random.default_rng(3)
    y, w = random.random(50), random.random(50)
    scores, t = random.integers(0, 11, (2, 50)) / 10, np.array([0.0, 0.2, 0.5, 0.9])
    changes, means = [], []
    for score in (*scores, np.ones(50)):
        gains = np.array([(score >= at) * (y - (1 - y) * at / (1 - at)) for at in t])
        means.append(gains @ w / w.sum())
        changes.append(w / w.sum() * (gains - means[-1][:, None]))
    noise = _realised_noise({str(k): Scored(y, score, w) for k, score in enumerate(scores)}, t)
    twin = np.concatenate(changes) @ np.concatenate(changes).T
    assert _covariance(noise, means, t / (1 - t)) == pytest.approx(twin, abs=1e-12)


@pytest.mark.repeated(20, 60)
def test_equally_good_scores_rarely_differ_at_any_threshold(repetitions):
    # Pointwise limits at 99 thresholds differ somewhere in about half of these runs.
    random, differing, pointwise = np.random.default_rng(0), 0, 0
    for _ in range(repetitions):
        x, errors = random.normal(size=2_000), 0.7 * random.normal(size=(2, 2_000))
        a, b = 1 / (1 + np.exp(1.8 - x - errors))
        y = random.random(2_000) < 1 / (1 + np.exp(1.8 - x))
        curve = decision_curve(y, {"a": a, "b": b}, level=0.9)
        gain = curve.difference["b"]
        differing += "neither significantly better nor worse" not in curve.verdict
        pointwise += bool(((gain.low > 0) | (gain.high < 0)).any())
    assert differing / repetitions <= 0.1 + 2 * np.sqrt(0.09 / repetitions)
    assert pointwise / repetitions > 0.25


@pytest.mark.repeated(20, 60)
def test_simultaneous_limits_contain_the_pointwise_ones_and_cover_all_thresholds(repetitions):
    random, t, covered = np.random.default_rng(1), np.arange(1, 20) / 20, np.zeros(2)
    truth, before, after = population(random, 200_000)
    benefits = [np.array([twin(truth, p, np.ones(len(p)), at) for at in t]) for p in (before, after, np.ones(len(truth)))]
    for _ in range(repetitions):
        here = random.integers(0, len(truth), 1_000)
        y = (random.random(1_000) < truth[here]).astype(float)
        curve = decision_curve(y, {"before": before[here], "after": after[here]}, thresholds=t)
        expected = decision_curve(None, after[here[300:]], thresholds=t, labelled=(y[:300], after[here[:300]]))
        gap, over = curve.difference["after"], expected.advantage["model"]
        for gain in (gap, over, *curve.advantage.values()):
            assert (gain.band_low <= gain.low).all()
            assert (gain.high <= gain.band_high).all()
        difference = benefits[1] - benefits[0]
        covered[0] += bool(((gap.band_low <= difference) & (difference <= gap.band_high)).all())
        rows = [np.array([twin(y[300:], p, np.ones(700), at) for at in t]) for p in (after[here[300:]], np.ones(700))]
        realised = rows[0] - np.where(expected.treat_all > 0, rows[1], 0.0)
        covered[1] += bool(((over.band_low <= realised) & (realised <= over.band_high)).all())
    assert (covered / repetitions >= 0.9 - 2 * np.sqrt(0.09 / repetitions)).all()


def test_a_single_threshold_is_compared_with_a_narrower_band():
    random = np.random.default_rng(0)
    truth, before, after = population(random, 2_000)
    y = random.random(2_000) < truth
    alone = decision_curve(y, {"before": before, "after": after}, thresholds=[0.2]).difference["after"]
    of_many = decision_curve(y, {"before": before, "after": after}).difference["after"]
    assert alone.low[0] == pytest.approx(of_many.low[19])
    assert alone.band_high[0] - alone.band_low[0] < of_many.band_high[19] - of_many.band_low[19]
    # Of more thresholds than are simulated, the limits hardly change.
    fine = decision_curve(y, {"before": before, "after": after}, thresholds=np.arange(1, 1_000) / 1_000).difference["after"]
    assert fine.band_low[199] == pytest.approx(of_many.band_low[19], abs=0.1 * (fine.band_high[199] - fine.band_low[199]))


def test_runs_of_thresholds_are_listed_as_ranges():
    from trueup.decisions.decision_curve import _describe_ranges

    at = np.arange(1, 13) / 100
    assert (
        _describe_ranges(at, np.array([1, 1, 0, 1, 0, 0, 1, 1, 1, 0, 0, 1], bool))
        == "0.01 to 0.02, 0.04, 0.07 to 0.09, 0.12"
    )
    assert _describe_ranges(at, np.arange(12) % 2 == 0) == "0.01, 0.03, 0.05, 0.07 and 2 more ranges"


def test_curves_convert_to_frames_and_json():
    curve = decision_curve(Y, {"a": P, "b": Q}, thresholds=[0, 0.5], segments=["x"] * 8)
    frame = curve.to_frame(like=pd.DataFrame())
    assert frame["prediction"].tolist() == ["a", "a", "b", "b"]
    assert frame["threshold"].tolist() == [0, 0.5, 0, 0.5]
    assert frame["benefit"].tolist() == [*curve.benefit["a"], *curve.benefit["b"]]
    assert frame["difference"].isna().tolist() == [True, True, False, False]
    assert frame["advantage_low"].tolist() == [*curve.advantage["a"].low, *curve.advantage["b"].low]
    assert frame["advantage_band_high"].tolist() == [*curve.advantage["a"].band_high, *curve.advantage["b"].band_high]
    assert np.isnan(curve.to_frame()["interventions_avoided"][0])  # undefined at a threshold of 0
    plain = json.loads(json.dumps(curve.to_dict(), allow_nan=False))
    assert plain["benefit"]["b"] == curve.benefit["b"].tolist()
    assert plain["difference"]["b"]["low"] == curve.difference["b"].low.tolist()
    assert plain["by_segment"]["x"]["treat_all"] == curve.treat_all.tolist()
    assert plain["verdict"] == curve.verdict
    json.dumps(decision_curve(None, P, labelled=0.1).to_dict(), allow_nan=False)


def test_standardized_benefit_is_nan_without_positives():
    curve = decision_curve([0, 0], [0.2, 0.8])
    assert np.isnan(curve.standardized["model"]).all()
    assert curve.benefit["model"][49] == -0.5


def test_thresholds_are_sorted_and_one_is_enough():
    assert decision_curve(Y, P, thresholds=[0.5, 0.25, 0.5]).threshold.tolist() == [0.25, 0.5]
    assert decision_curve(Y, P, thresholds=0.3).benefit["model"].shape == (1,)


def test_shift_warning_points_at_the_calling_line():
    random = np.random.default_rng(0)
    known = random.random(2_000)
    with pytest.warns(ShiftWarning, match="has shifted") as caught:
        curve = decision_curve(None, random.random(2_000) / 2, labelled=(random.random(2_000) < known, known))
    assert caught[0].filename == __file__
    assert curve.distance > 0.4


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"thresholds": [0.5, 1.0]}, ArgumentError, "at least 0 and below 1; got 1"),
        ({"thresholds": [-0.1]}, ArgumentError, "got -0.1"),
        ({"thresholds": []}, ArgumentError, "got none"),
        ({"thresholds": [np.nan]}, DataError, "thresholds must be finite"),
        ({"thresholds": [[0.1]]}, DataError, "one-dimensional"),
        ({"thresholds": "a"}, DataError, "thresholds must hold numbers"),
        ({"level": 1}, ArgumentError, "level must lie between"),
        ({"target": "rows"}, ArgumentError, "the benefit of these rows is known"),
        ({"target": "all"}, ArgumentError, "target must be"),
        ({"y": None, "target": "all"}, ArgumentError, "target must be"),
        ({"labelled": 0.1}, ArgumentError, "labelled is not needed"),
        ({"y": None, "labelled": "c"}, ArgumentError, "labelled must be rows with outcomes"),
        ({"y": None, "predictions": {"a": P, "b": Q}}, ArgumentError, "one score can be evaluated; got a, b"),
        ({"predictions": {}}, ArgumentError, "predictions is empty"),
        ({"predictions": {"all": P}}, ArgumentError, "cannot be named 'all'"),
        ({"predictions": {3: P}}, ArgumentError, "cannot be named 3"),
        ({"predictions": {"a": P, "b": Q[:3]}}, DataError, "prediction 'b': .* equal length; got 8 and 3"),
        ({"predictions": 2 * P}, DataError, "prediction 'model': p must lie in"),
        ({"predictions": 0.5}, DataError, "one-dimensional"),
        ({"y": [], "predictions": []}, DataError, "empty"),
        ({"y": None, "predictions": []}, DataError, "empty"),
        ({"y": None, "predictions": [np.nan]}, DataError, "p must be finite"),
        ({"weight": -np.ones(8)}, DataError, "weight must not be negative"),
        ({"segments": ["a"]}, DataError, "one label per row"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected(arguments, error, message):
    options = {"y": Y, "predictions": P} | arguments
    with pytest.raises(error, match=message):
        decision_curve(options.pop("y"), options.pop("predictions"), **options)


def test_inputs_are_not_modified():
    y, p, w = Y.copy(), P.copy(), np.ones(8)
    for one in (y, p, w):
        one.setflags(write=False)
    decision_curve(y, {"a": p, "b": p}, weight=w, thresholds=np.array([0.2]))
    decision_curve(None, p, weight=w, labelled=(y, p))


def test_unnamed_columns_are_rejected():
    with pytest.raises(ArgumentError, match=r"shape \(3, 2\) and no names"):
        decision_curve([0, 1, 1], np.full((3, 2), 0.5))


def test_corrected_prevalence_stays_between_0_and_1():
    # Labelled rows at other scores add 0.4 to 0.9.
    known = ([1] * 50, [0.6] * 50)
    with pytest.warns(ShiftWarning):
        curve = decision_curve(None, [0.9] * 50, labelled=known, target="population", thresholds=[0.3, 0.95])
    assert curve.prevalence <= 1
