import json
import math
from statistics import NormalDist

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import trueup as tu
from trueup.decisions import curves
from trueup.decisions.curves import limit_by_errors, sum_shares
from trueup.errors import ArgumentError, DataError, ShiftWarning
from trueup.metrics import calibration_bound, ecce
from trueup.metrics.inference import likely_root, range_quantile
from trueup.metrics.inputs import validate_scores
from twins import three_se

BOTH = pytest.mark.parametrize("draw", [tu.decisions.expected_roc, tu.decisions.expected_pr])
TARGETS = pytest.mark.parametrize("target", ["rows", "population"])
SIDES = ("x", "y")
LIMITS = ("threshold", *(f"{side}{end}" for side in SIDES for end in ("", "_low", "_high")))
ANY = st.sampled_from([0.0, 0.05, 0.2, 0.2, 0.5, 0.7, 0.95, 1.0]) | st.floats(0, 1).map(lambda p: p if p >= 1e-100 else 0.0)
SCORES = st.lists(ANY, min_size=1, max_size=30)


def realised(y, p, w=None):
    """Return TPR, FPR and precision at each distinct score, from the highest down, starting with no predicted positive."""
    y, p = np.asarray(y, float), np.asarray(p, float)
    w = np.ones(len(p)) if w is None else np.asarray(w, float)
    thresholds = [math.inf, *sorted(set(p.tolist()), reverse=True)]
    tp, fp = (np.array([(w * side)[p >= t].sum() for t in thresholds]) for side in (y, 1 - y))
    with np.errstate(invalid="ignore"):
        return tp / tp[-1], fp / fp[-1], tp / (tp + fp)


def inside(values, low, high, slack=1e-9):
    """Return whether all defined values lie between their limits."""
    known = ~np.isnan(values)
    return bool(((values >= low - slack) & (values <= high + slack))[known].all())


def test_worked_example():
    roc, pr = tu.decisions.expected_roc([0.1, 0.4, 0.8]), tu.decisions.expected_pr([0.1, 0.4, 0.8])
    assert roc.threshold.tolist() == [math.inf, 0.8, 0.4, 0.1]
    np.testing.assert_allclose(roc.y, [0, 0.8 / 1.3, 1.2 / 1.3, 1])
    np.testing.assert_allclose(roc.x, [0, 0.2 / 1.7, 0.8 / 1.7, 1])
    np.testing.assert_allclose(pr.x, roc.y)
    np.testing.assert_allclose(pr.y, [math.nan, 0.8, 0.6, 1.3 / 3])
    assert pr.area == pytest.approx((0.8 * 0.8 + 0.4 * 0.6 + 0.1 * 1.3 / 3) / 1.3)


def test_limits_by_c_are_the_published_ones_within_the_possible_range():
    p, c = np.linspace(0.2, 0.8, 61), 0.01
    shares = sum_shares(p, np.ones(61))
    fpr, tpr, _ = limit_by_errors("roc", shares, c, c, "rows")
    precision = limit_by_errors("pr", shares, c, c, "rows")[1]
    middle = slice(10, 50)
    for rate, by in ((tpr, p.sum()), (fpr, (1 - p).sum()), (precision, np.arange(62))):
        width = 61 * c / np.broadcast_to(by, 62)[middle]
        np.testing.assert_allclose(rate.low[middle], rate.estimate[middle] - width)
        np.testing.assert_allclose(rate.high[middle], rate.estimate[middle] + width)


def test_the_band_of_the_paper_is_n_c_over_the_denominator_of_each_rate():
    # Gao, Parameswaran & Peng (2017), section 4, with the n that it omits.
    random = np.random.default_rng(3)
    p, c = random.beta(2, 5, 500), 0.01
    curve = tu.decisions.expected_roc(p, c, band="paper")
    for threshold, *limits in zip(curve.threshold, curve.x_low, curve.x_high, curve.y_low, curve.y_high, strict=True):
        above = p >= threshold
        tpr, fpr = p[above].sum() / p.sum(), (1 - p)[above].sum() / (1 - p).sum()
        fpr_half, tpr_half = 500 * c / (1 - p).sum(), 500 * c / p.sum()
        expected = [fpr - fpr_half, fpr + fpr_half, tpr - tpr_half, tpr + tpr_half]
        np.testing.assert_allclose(limits, np.clip(expected, 0, 1), atol=1e-12)
    assert curve.half_widths == {"calibration": c}
    assert math.isnan(curve.level)
    assert "by c alone (c 0.01, as given)" in repr(curve)
    joint = tu.decisions.expected_roc(p, c)
    assert sum(joint.half_widths.values()) > 4 * c  # the noise of labels is far more than c
    json.dumps(curve.to_dict(), allow_nan=False)
    tu.figures.draw_roc(curve)
    pr = tu.decisions.expected_pr(p, c, band="paper")
    inner = slice(100, 400)
    half = 500 * c / np.arange(501)[inner]
    np.testing.assert_allclose(pr.y_high[inner], np.minimum(pr.y[inner] + half, 1), atol=1e-12)
    assert pr.area_low < pr.area < pr.area_high


def test_the_band_of_the_paper_uses_c_emp_of_the_evidence():
    random = np.random.default_rng(4)
    p, q = random.random(300), random.random(200)
    y = (random.random(200) < q).astype(float)
    c = ecce(y, q)
    audit = tu.audit({"y": y, "p": q, "group": np.repeat(["a", "b"], 100)}, outcome="y", prediction="p")
    for evidence in ((y, q), calibration_bound(y, q), audit, c):
        assert tu.decisions.expected_roc(p, evidence, band="paper").half_widths["calibration"] == pytest.approx(c)
    names = np.repeat(["a", "b"], 150)
    known = tu.decisions.Labelled(y, q, segments=np.repeat(["a", "b"], 100))
    by_segment = tu.decisions.expected_roc(p, known, band="paper", segments=names).by_segment
    assert by_segment["b"].half_widths["calibration"] == pytest.approx(ecce(y[100:], q[100:]))
    with pytest.raises(ArgumentError, match='band="paper" is computed from the error c of the scores'):
        tu.decisions.expected_roc(p, band="paper")
    with pytest.raises(ArgumentError, match="band must be one of"):
        tu.decisions.expected_roc(p, c, band="plain")


def test_label_noise_with_a_bound_is_the_range_of_brownian_motion():
    p = np.array([0.1, 0.4, 0.8])
    for c in (0.0, 0.05):
        more = c * (0.8 + 0.6 + 1.4) / 2
        noise = range_quantile(0.05) * math.sqrt((p * (1 - p) + more).sum()) / 3
        assert tu.decisions.expected_roc(p, c).half_widths == pytest.approx({"calibration": c, "label noise": noise})


def test_sampling_with_a_bound_is_the_range_of_brownian_motion():
    p, w = np.array([0.1, 0.4, 0.7]), np.array([1.0, 2.0, 0.5])
    sides = [
        range_quantile(0.8 * 0.025) * float(likely_root(np.sum((w * share) ** 2), 2.0, 0.025)) / 3.5 for share in (p, 1 - p)
    ]
    result = tu.decisions.expected_roc(p, 0.05, weight=w, target="population")
    assert result.half_widths == pytest.approx({"calibration": 0.05, "sampling": max(sides)})
    random, many = np.random.default_rng(13), np.round(np.random.default_rng(14).random(4000), 1)
    rates, covered = realised(many, many), 0
    for _ in range(40):
        curve = tu.decisions.expected_roc(random.choice(many, 300), 0.0, target="population")
        inside_both = inside(rates[0], curve.y_low, curve.y_high) and inside(rates[1], curve.x_low, curve.x_high)
        covered += len(curve.threshold) == len(rates[0]) and inside_both
    assert covered >= 36


def test_residuals_of_labelled_rows_determine_the_label_noise():
    # The variance of one residual, over 100 rows and over 400: twice the spread, whatever the scores.
    random = np.random.default_rng(15)
    p = random.random(100)
    result = tu.decisions.expected_roc(p, (random.random(400) < 0.5, np.repeat(p, 4)))
    assert result.half_widths["label noise"] == pytest.approx(2 * result.half_widths["calibration"])


def test_expected_events_count_if_none_was_observed():
    f, w = np.full(200, 0.01), np.random.default_rng(16).random(200) + 0.5
    expected = np.sum(w**2) * 0.0099 / w.sum() ** 2
    assert curves._Residuals(validate_scores(np.zeros(200), f, w)).variance == pytest.approx(expected)
    seen = curves._Residuals(validate_scores(np.ones(200), f, w)).variance
    assert seen == pytest.approx(np.sum(w**2) * 0.99**2 / w.sum() ** 2)


def test_a_single_score_has_no_sampling_error():
    assert tu.decisions.expected_roc([0.3] * 50, target="population").half_widths == {
        "sampling": pytest.approx(0, abs=1e-12)
    }


def test_limits_allow_for_thresholds_between_the_simulated_ones(monkeypatch):
    p = np.linspace(0.2, 0.8, 4000)
    result = tu.decisions.expected_roc(p)
    monkeypatch.setattr(curves, "OVERSHOOT", 0.0)
    wider = (result.y_high - tu.decisions.expected_roc(p).y_high)[500:3500]
    # About 232 steps, each with its share of the noise: what a path reaches beyond both ends of one.
    expected = 0.5826 * math.sqrt(np.sum(p * (1 - p)) / 232) / p.sum()
    assert np.all((wider > 0.6 * expected) & (wider < 1.6 * expected))


def test_simulated_label_noise_is_the_maximum_of_brownian_motion():
    p, random = np.full(400, 0.3) + np.arange(400) * 1e-6, np.random.default_rng(0)
    walks = np.abs(np.cumsum(random.normal(size=(4000, 400)), axis=1)).max(axis=1) / 20
    result = tu.decisions.expected_roc(p)
    assert result.half_widths == pytest.approx({"label noise": np.quantile(walks, 0.9) * math.sqrt(0.21 / 400)}, rel=0.05)


@pytest.mark.parametrize("level", [0.99, 0.999, 0.9999, 1 - 1e-7])
def test_extrapolated_levels_follow_brownian_motion(level):
    p = np.full(400, 0.3) + np.arange(400) * 1e-6
    result = tu.decisions.expected_roc(p, level=level)
    # P(max |B| > x) is 4 Q(x) that far out; steps take a little away.
    exact = -NormalDist().inv_cdf((1 - level) / 4) * math.sqrt(0.21 / 400)
    assert 0.93 * exact < result.half_widths["label noise"] < 1.15 * exact
    near = tu.decisions.expected_roc(p, level=0.9)
    assert result.area_high - result.area > 1.4 * (near.area_high - near.area)


@settings(deadline=None, max_examples=60)
@given(SCORES, st.integers(0, 2**32 - 1))
def test_auc_is_the_share_of_ordered_pairs(p, seed):
    p, w = np.array(p), np.random.default_rng(seed).integers(1, 4, len(p))
    assume(0 < p.sum() < len(p))
    pairs = np.outer(w * p, w * (1 - p))
    order = np.sign(np.subtract.outer(p, p)) / 2 + 0.5
    assert tu.decisions.expected_roc(p, weight=w).area == pytest.approx((pairs * order).sum() / pairs.sum(), abs=1e-12)


def test_areas_equal_scikit_learn_for_expected_outcomes():
    from sklearn.metrics import average_precision_score, roc_auc_score

    p = np.round(np.random.default_rng(0).random(80), 1)
    both, twice, w = np.repeat([1, 0], 80), np.tile(p, 2), np.append(p, 1 - p)
    kept = w > 0
    both, twice, w = both[kept], twice[kept], w[kept]
    assert tu.decisions.expected_pr(p).area == pytest.approx(average_precision_score(both, twice, sample_weight=w))
    assert tu.decisions.expected_roc(p).area == pytest.approx(roc_auc_score(both, twice, sample_weight=w))


@settings(deadline=None, max_examples=60)
@given(SCORES, st.integers(0, 2**32 - 1))
def test_limits_by_errors_contain_every_curve_with_those_errors(p, seed):
    random = np.random.default_rng(seed)
    p, y, w = np.array(p), random.integers(0, 2, len(p)), random.integers(1, 4, len(p)).astype(float)
    if random.random() < 0.5:
        y = np.sort(y)[np.argsort(np.argsort(-p))]  # as wrong as possible
    c = ecce(y, p, w)
    tpr, fpr, precision = realised(y, p, w)
    shares = sum_shares(p, w)
    across, up, auc = limit_by_errors("roc", shares, c, c, "rows")
    recall, exact, ap = limit_by_errors("pr", shares, c, c, "rows")
    for values, limits in ((fpr, across), (tpr, up), (tpr, recall), (precision, exact)):
        assert inside(values, limits.low, limits.high)
    if 0 < y.sum() < len(y):
        area = np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1])) / 2
        assert auc[1] - 1e-9 <= area <= auc[2] + 1e-9
    if y.any():
        assert ap[1] - 1e-9 <= np.sum(np.diff(tpr) * precision[1:]) <= ap[2] + 1e-9
    public = tu.decisions.expected_roc(p, c, weight=w)
    assert inside(tpr, public.y_low, public.y_high)
    assert inside(fpr, public.x_low, public.x_high)


LABELLED = st.lists(
    st.tuples(st.integers(0, 1), st.sampled_from([0.0, 0.2, 0.5, 1.0]) | st.floats(0, 1)), min_size=1, max_size=9
)


@TARGETS
@BOTH
@pytest.mark.filterwarnings("ignore::trueup.errors.ShiftWarning")
@settings(deadline=None, max_examples=40)
@given(p=SCORES, bound=st.none() | st.floats(0, 1) | LABELLED.map(lambda rows: tuple(np.transpose(rows))))
def test_limits_contain_the_estimate_and_rates_increase(draw, target, p, bound):
    result = draw(p, bound, target=target)
    assert np.all(np.diff(result.threshold) < 0)
    for side in SIDES:
        middle, low, high = (getattr(result, side + end) for end in ("", "_low", "_high"))
        assert inside(middle, low, high, slack=0)
        assert np.all((low >= 0) & (low <= high) & (high <= 1))
        if (result.kind, side) != ("pr", "y"):
            assert np.all(np.diff(low) >= 0)
            assert np.all(np.diff(high) >= 0)
            if target == "rows" and not np.isnan(middle).any():
                assert (low[0], high[0], low[-1], high[-1]) == (0, 0, 1, 1)
    assert 0 <= result.area_low <= result.area_high <= 1
    assert math.isnan(result.area) or result.area_low <= result.area <= result.area_high
    assert all(0 <= part < math.inf for part in result.half_widths.values())


@TARGETS
@BOTH
def test_weight_two_equals_duplicated_rows(draw, target):
    random = np.random.default_rng(1)
    p, w = np.round(random.random(40), 1), random.integers(0, 3, 40)
    # The correction has as many knots as labelled rows allow, and all of them from 1,600 rows on.
    ly, lp, lw = random.integers(0, 2, 3000), np.round(random.random(3000), 1), random.integers(0, 3, 3000)
    for bounds in ((None, None), ((ly, lp, lw), (np.repeat(ly, lw), np.repeat(lp, lw)))):
        one, other = draw(p, bounds[0], weight=w, target=target), draw(np.repeat(p, w), bounds[1], target=target)
        for name in ("threshold", *SIDES):
            np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)
        assert one.area == pytest.approx(other.area)
        for part in one.half_widths:  # a duplicated row is less informative than two rows
            assert one.half_widths[part] > other.half_widths[part]


@TARGETS
@BOTH
@pytest.mark.parametrize("bound", ["none", "c", "labelled"])
def test_row_order_changes_no_bit(draw, target, bound):
    random = np.random.default_rng(8)
    p, w = np.round(random.random(500), 2), random.random(500) + 0.1
    y, f, v = random.integers(0, 2, 300), np.round(random.random(300), 2), random.random(300) + 0.1
    order, other = random.permutation(500), random.permutation(300)
    bounds = {"none": (None, None), "c": (0.03, 0.03), "labelled": ((y, f, v), (y[other], f[other], v[other]))}[bound]
    first, again = (draw(p, bounds[0], weight=w, target=target) for _ in range(2))
    shuffled = draw(p[order], bounds[1], weight=w[order], target=target)
    for result in (again, shuffled):
        for name in LIMITS:
            np.testing.assert_array_equal(getattr(result, name), getattr(first, name))
        assert (result.area, result.area_low, result.area_high) == (first.area, first.area_low, first.area_high)
        assert result.half_widths == first.half_widths


@TARGETS
@BOTH
def test_segments_equal_separate_curves(draw, target):
    random = np.random.default_rng(2)
    p, w, region = random.random(90), random.random(90) + 0.5, random.choice(["n", "s"], 90)
    lp, lr = random.random(300), random.choice(["n", "s"], 300)
    ly = random.random(300) < lp
    result = draw(p, tu.decisions.Labelled(ly, lp, segments=lr), weight=w, segments=region, target=target)
    assert set(result.by_segment) == {"n", "s"}
    for name, one in result.by_segment.items():
        separate = draw(p[region == name], (ly[lr == name], lp[lr == name]), weight=w[region == name], target=target)
        np.testing.assert_allclose(one.y_low, separate.y_low, atol=1e-12)
        assert one.area_high == pytest.approx(separate.area_high)
        assert one.evidence == separate.evidence == f"{(lr == name).sum()} labelled rows"
    assert result.evidence == "300 labelled rows"


def test_calibration_bound_and_number_give_the_same_limits():
    random = np.random.default_rng(9)
    p = random.random(300)
    bound = calibration_bound(random.random(300) < p, p, delta=0.05)
    known, number = (tu.decisions.expected_roc(p, one) for one in (bound, bound.upper))
    np.testing.assert_array_equal(known.y_low, number.y_low)
    assert known.half_widths == number.half_widths
    assert known.evidence == f"c at most {bound.upper:.4g} (95%, {bound.method})"


# Corrections


def twin(y, f, w, threshold):
    """Return the residuals of labelled rows with scores from each threshold on, as a share of their weight."""
    return np.array([np.sum(w * (y - f) * (f >= t)) for t in threshold]) / w.sum()


def test_labelled_rows_add_their_residuals():
    random = np.random.default_rng(10)
    p, f, w = np.round(random.random(700), 2), np.round(random.random(2000), 2), random.random(2000) + 0.5
    y = random.random(2000) < f**2
    shares, errors = sum_shares(p, np.ones(700)), curves._Residuals(validate_scores(y, f, w))
    exact, smooth = twin(y, f, w, shares.threshold), errors.smoothed(shares)
    assert (smooth[0], smooth[-1]) == pytest.approx((0, exact[-1]))
    at_knots = np.isclose(smooth, exact, rtol=0, atol=1e-12)
    assert at_knots.sum() > curves.KNOTS / 2
    assert np.abs(smooth - exact).max() < 0.02
    along = shares.predicted + shares.positive / shares.positive[-1]
    np.testing.assert_allclose(smooth, np.interp(along, along[at_knots], exact[at_knots]), atol=1e-12)


def test_few_labelled_rows_give_few_knots():
    # 49 rows: both ends only. All were positive, at a score of 0.4: 0.6 of all rows more, evenly along rows and positives.
    shares = sum_shares(np.array([0.2, 0.4, 0.6]), np.ones(3))
    smooth = curves._Residuals(validate_scores(np.ones(49), np.full(49, 0.4))).smoothed(shares)
    np.testing.assert_allclose(smooth, np.array([0, 1 / 3 + 0.6 / 1.2, 2 / 3 + 1 / 1.2, 2]) * 0.6 / 2)


def test_worked_example_of_a_corrected_curve():
    # Rows of 0.2 and of 0.6, one each. Labelled: half of the 50 at 0.6 were positive, none of the 50 at 0.2.
    y, f = np.repeat([1, 0, 0], [25, 25, 50]), np.repeat([0.6, 0.2], 50)
    roc, pr = (draw([0.2, 0.6], (y, f)) for draw in (tu.decisions.expected_roc, tu.decisions.expected_pr))
    # Positives from 0.6 on: 0.3 - 0.05 of all rows; from 0.2 on: 0.4 - 0.15.
    np.testing.assert_allclose(roc.y, [0, 1, 1], atol=1e-12)
    np.testing.assert_allclose(roc.x, [0, 0.25 / 0.75, 1])
    np.testing.assert_allclose(pr.y, [math.nan, 0.5, 0.25])
    assert roc.area == pytest.approx(1 - 1 / 6)
    assert pr.area == pytest.approx(0.5)
    assert (roc.evidence, pr.evidence) == ("100 labelled rows",) * 2


@settings(deadline=None, max_examples=60)
@given(SCORES, st.integers(0, 2**32 - 1))
def test_corrections_keep_shares_in_range(p, seed):
    random = np.random.default_rng(seed)
    shares = sum_shares(np.array(p), random.random(len(p)) + 0.1)
    result = shares.corrected(random.normal(0, 0.3, len(shares.predicted)))
    for rows in (result.positive, result.negative):
        assert np.all(np.diff(rows, prepend=0) >= 0)
    np.testing.assert_allclose(result.positive + result.negative, result.predicted, atol=2e-12)


def test_labelled_rows_remove_an_error_of_the_scores():
    random = np.random.default_rng(11)
    p, f = random.random(20_000), random.random(20_000)
    y, z = random.random(20_000) < p**3, random.random(20_000) < f**3
    result, plain = tu.decisions.expected_roc(p, (z, f)), tu.decisions.expected_roc(p)
    tpr, fpr, _ = realised_fast(y, p)
    for exact, corrected, separate in ((tpr, result.y, plain.y), (fpr, result.x, plain.x)):
        assert np.abs(corrected - exact).max() < 0.03
        assert np.abs(separate - exact).max() > 0.06


@pytest.mark.filterwarnings("ignore::trueup.errors.HardPredictionWarning")
def test_correct_certain_scores_still_have_limits():
    # None of 400 labelled rows was wrong: three may be (rule of three), of 100 positives among 400 rows.
    p = np.repeat([0.0, 1.0], [300, 100])
    result = tu.decisions.expected_roc(p, (p, p))
    assert result.area == 1
    assert result.y_low[1] < 1 - 3 / 100
    assert result.x_high[1] > 3 / 300
    assert result.area_low < 1 - 3 / 100
    assert tu.decisions.expected_roc(p).area_low == 1  # assuming calibrated scores


@TARGETS
@pytest.mark.parametrize("score", [0.0, 1.0])
@pytest.mark.parametrize("bound", ["none", "c", "labelled"])
def test_rates_without_denominator_are_nan_with_limits_0_and_1(score, target, bound):
    known = {"none": None, "c": 0.1, "labelled": ([score] * 50, [score] * 50)}[bound]
    roc, pr = (draw([score] * 3, known, target=target) for draw in (tu.decisions.expected_roc, tu.decisions.expected_pr))
    side = "y" if score == 0 else "x"
    assert np.isnan(getattr(roc, side)).all()
    assert (getattr(roc, f"{side}_low") == 0).all()
    assert (getattr(roc, f"{side}_high") == 1).all()
    assert (math.isnan(roc.area), roc.area_low, roc.area_high) == (True, 0, 1)
    if score == 0:
        assert (math.isnan(pr.area), pr.area_low, pr.area_high) == (True, 0, 1)
    else:
        assert pr.area == 1
    assert pr.y[1] == score
    assert json.dumps(roc.to_dict(), allow_nan=False)


@pytest.mark.filterwarnings("ignore::trueup.errors.ShiftWarning")
@pytest.mark.parametrize("bound", [None, 0.2, ([0, 0, 1], [0.3, 0.3, 0.3])])
def test_a_single_row_has_a_curve(bound):
    result = tu.decisions.expected_roc([0.3], bound)
    assert (result.x.tolist(), result.y.tolist(), result.area) == ([0, 1], [0, 1], 0.5)


def test_only_positive_labels_leave_the_auc_undefined():
    p = np.repeat([0.0, 1.0], 20)
    result = tu.decisions.expected_roc(p, (np.ones(40), p))
    assert np.isnan(result.x).all()
    assert (math.isnan(result.area), result.area_low, result.area_high) == (True, 0, 1)


def test_undefined_simulated_areas_widen_the_limits():
    off = np.append(np.full(20, math.nan), np.tile([0.01, -0.01], 40))
    assert curves._limit_area(0.8, off, 0.9, 0.0, 0.0) == (0.8, 0.0, 1.0)
    result = tu.decisions.expected_roc([0.01, 0.02, 0.03])  # usually none of them is positive
    assert (result.area_low, result.area_high) == (0, 1)


def test_thresholds_between_scores_use_the_point_above():
    result = tu.decisions.expected_roc([0.1, 0.4, 0.8], 0.01)
    for threshold, place in ((math.inf, 0), (1, 0), (0.81, 0), (0.8, 1), (0.5, 1), (0.4, 2), (0.1, 3), (0, 3)):
        point = result.at(threshold)
        assert (point.x, point.y) == (result.x[place], result.y[place])
        assert (point.x_low, point.y_high) == (result.x_low[place], result.y_high[place])
    for bad in (-0.1, 1.2, math.nan, "0.2", None):
        with pytest.raises(ArgumentError, match=r"threshold must lie in \[0, 1\]"):
            result.at(bad)


@BOTH
def test_long_curves_are_thinned_in_dicts_but_not_in_frames(draw):
    p = np.random.default_rng(3).beta(0.2, 20, 20_000)
    result = draw(p)
    plain, frame = result.to_dict(), result.to_frame(pd.DataFrame())
    assert 500 < len(plain["threshold"]) <= 1001
    assert len(frame) == len(result.threshold) > 10_000
    assert plain["threshold"][0] is None
    assert (plain["threshold"][-1], plain["x"][-1]) == (p.min(), 1.0)
    recall = np.array(plain["y" if result.kind == "roc" else "x"])
    assert np.diff(recall).max() < 0.01
    names = ["fpr", "tpr"] if result.kind == "roc" else ["recall", "precision"]
    assert list(frame) == ["threshold", *(f"{name}{end}" for name in names for end in ("", "_low", "_high"))]
    assert np.array_equal(frame[names[0]], result.x)
    assert json.loads(json.dumps(plain, allow_nan=False)) == plain


# Coverage


def even(random, many):
    return random.random(many)


def rounded(random, many):
    return np.round(random.random(many), 2)


def tied(random, many):
    return np.round(random.beta(1, 4, many), 1)


SHAPES = {
    "calibrated": (even, lambda p: p), "too sure": (rounded, lambda p: 0.25 + 0.5 * p), "tied": (tied, lambda p: p * (1 - p / 2)),
}  # fmt: skip
LEVEL = 0.9


def realised_fast(y, p):
    """Return TPR, FPR and precision as `realised` does, for many rows."""
    order = np.argsort(-p)
    last = np.flatnonzero(np.append(np.diff(p[order]) != 0, True))
    tp, fp = (np.append(0.0, np.cumsum(side[order])[last]) for side in (y, 1.0 - y))
    with np.errstate(invalid="ignore"):
        return tp / tp[-1], fp / fp[-1], tp / (tp + fp)


def true_curve(kind, tpr, fpr, precision):
    """Return both axes and the area."""
    if kind == "roc":
        return fpr, tpr, np.sum(np.diff(fpr) * (tpr[1:] + tpr[:-1])) / 2
    return tpr, precision, np.sum(np.diff(tpr) * precision[1:])


def population(random, score, truth):
    """Return the positions of thresholds among very many rows, with TPR, FPR and precision there."""
    p = np.sort(score(random, 200_000))
    at = np.flatnonzero(np.append(True, np.diff(p) != 0))
    above = [np.append(np.cumsum(side[::-1])[::-1][at], 0.0)[::-1] for side in (truth(p), 1 - truth(p))]
    with np.errstate(invalid="ignore"):
        return p[at], (above[0] / above[0][-1], above[1] / above[1][-1], above[0] / (above[0] + above[1]))


@pytest.mark.parametrize(
    ("shape", "kind", "target", "rows"),
    [
        ("calibrated", "roc", "rows", 150), ("calibrated", "pr", "population", 150), ("too sure", "pr", "rows", 400),
        ("too sure", "roc", "population", 400), ("tied", "roc", "rows", 1000), ("tied", "pr", "rows", 600),
        ("tied", "roc", "population", 600), ("tied", "pr", "population", 1000),
    ],
)  # fmt: skip
@pytest.mark.repeated(25, 100)
def test_bands_and_areas_have_simultaneous_coverage(shape, kind, target, rows, repetitions):
    score, truth = SHAPES[shape]
    random, covered, areas = np.random.default_rng(4), 0, 0
    scores, whole = population(random, score, truth)
    draw = getattr(tu.decisions, f"expected_{kind}")
    for _ in range(repetitions):
        p, f = score(random, rows), score(random, rows)
        result = draw(p, (random.random(rows) < truth(f), f), target=target, level=LEVEL)
        if target == "rows":
            x, y, area = true_curve(kind, *realised_fast(random.random(rows) < truth(p), p))
        else:
            x, y, area = true_curve(kind, *whole)
            at = len(scores) - np.searchsorted(scores, result.threshold)
            x, y = x[at], y[at]
        covered += inside(x, result.x_low, result.x_high) and inside(y, result.y_low, result.y_high)
        areas += result.area_low <= area <= result.area_high
    assert min(covered, areas) / repetitions >= LEVEL - three_se(LEVEL, repetitions)


@pytest.mark.repeated(25, 100)
def test_bands_without_evidence_need_calibrated_scores(repetitions):
    random, covered = np.random.default_rng(5), {1.0: 0, 0.6: 0}
    for right in covered:
        for _ in range(repetitions):
            p = np.round(random.random(500), 2)
            result = tu.decisions.expected_roc(p, level=LEVEL)
            tpr, fpr, _ = realised_fast(random.random(500) < p**right, p)
            covered[right] += inside(tpr, result.y_low, result.y_high) and inside(fpr, result.x_low, result.x_high)
    assert covered[1.0] / repetitions >= LEVEL - three_se(LEVEL, repetitions)
    assert covered[0.6] / repetitions < 0.5


def test_more_rows_and_more_labels_give_narrower_bands():
    random = np.random.default_rng(6)
    p = random.random(4000)
    y = random.random(4000) < p
    few, many = (tu.decisions.expected_roc(p, (y[:n], p[:n])) for n in (200, 4000))
    assert many.half_widths["calibration"] < few.half_widths["calibration"] / 3
    assert many.area_high - many.area_low < few.area_high - few.area_low
    assert np.mean(many.y_high - many.y_low) < np.mean(few.y_high - few.y_low) / 2
    few, many = (tu.decisions.expected_roc(p[:n], target="population") for n in (200, 4000))
    assert many.half_widths["sampling"] < few.half_widths["sampling"]


def test_labelled_rows_give_narrower_limits_than_a_bound_on_c():
    random = np.random.default_rng(12)
    p, f = random.beta(1, 3, (2, 5000))
    y = random.random(5000) < f
    by_rows = tu.decisions.expected_roc(p, (y, f))
    by_c = tu.decisions.expected_roc(p, calibration_bound(y, f, delta=0.05))
    assert by_rows.area_high - by_rows.area_low < 0.06 < by_c.area_high - by_c.area_low
    assert np.mean(by_rows.y_high - by_rows.y_low) < np.mean(by_c.y_high - by_c.y_low) / 2


def test_curves_are_read_only():
    p = np.array([0.1, 0.4, 0.8])
    for bound in (None, 0.1, ([0, 1], [0.2, 0.7])):
        result = tu.decisions.expected_roc(p, bound)
        for name in LIMITS:
            with pytest.raises(ValueError, match="read-only"):
                getattr(result, name)[0] = 0
            result.to_frame()["threshold"][0] = 0  # a copy
    p[0] = 0.2  # the input stays writable


def test_shifted_scores_raise_a_warning():
    random = np.random.default_rng(7)
    p = random.random(500)
    with pytest.warns(ShiftWarning, match="the score distribution has shifted") as caught:
        result = tu.decisions.expected_roc(p / 2, (random.random(500) < p, p))
    assert caught[0].filename == __file__
    assert result.distance > 0.4


def test_repr_is_one_line():
    result = tu.decisions.expected_pr([0.2, 0.6, 0.9], 0.02)
    assert repr(result).startswith("<ExpectedCurve average precision 0.")
    assert repr(result).endswith("at 90% (c at most 0.02, as given)>")


@BOTH
@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"p": [0.2, 1.4]}, DataError, r"p must lie in \[0, 1\]; got 1.4 at row 1"),
        ({"p": []}, DataError, "the arrays are empty"),
        ({"level": 1}, ArgumentError, "level must lie between 0 and 1; got 1"),
        ({"target": "all"}, ArgumentError, "target must be"),
        ({"labelled": 1.5}, ArgumentError, "labelled must be rows with outcomes"),
        ({"weight": [-1, 1]}, DataError, "weight must not be negative"),
        ({"segments": ["a"]}, DataError, "segments must have one label per row"),
        ({"segments": ["a", "b"], "labelled": ([0, 1], [0.3, 0.5])}, ArgumentError, "the labelled rows have no segments"),
    ],
)
def test_invalid_arguments_are_rejected(draw, arguments, error, message):
    with pytest.raises(error, match=message):
        draw(**{"p": [0.2, 0.7], **arguments})


@pytest.mark.parametrize("p", [[2e-309], [5e-324], [1e-300, 1e-309], [5e-324, 1.0], [0.0, 5e-324], [1 - 1e-16]])
@pytest.mark.parametrize("bound", [None, 0.02, ([0, 1], [0.1, 0.2]), ([0, 0], [5e-324, 0.0])])
def test_scores_next_to_0_and_1_are_rounded(p, bound):
    for target in ("rows", "population"):
        result = tu.decisions.expected_roc(p, bound, target=target)
        assert ((result.y_low >= 0) & (result.y_low <= result.y_high) & (result.y_high <= 1)).all()
        assert 0 <= tu.decisions.expected_pr(p, bound, target=target).area_low <= 1
