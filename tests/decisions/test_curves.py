import json
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import trueup as tu
from trueup.decisions import curves
from trueup.decisions.inputs import Unlabelled
from trueup.errors import ArgumentError, DataError, ShiftWarning
from trueup.metrics import calibration_bound, ecce
from trueup.metrics.inference import range_quantile

BOTH = pytest.mark.parametrize("draw", [tu.decisions.expected_roc, tu.decisions.expected_pr])
TARGETS = pytest.mark.parametrize("target", ["rows", "population"])
SIDES = ("x", "y")
SCORES = st.lists(st.sampled_from([0.0, 0.05, 0.2, 0.2, 0.5, 0.7, 0.95, 1.0]) | st.floats(0, 1), min_size=1, max_size=30)


def realised(y, p, w=None):
    """Give TPR, FPR and precision at each distinct score, from the highest down, none called first."""
    y, p = np.asarray(y, float), np.asarray(p, float)
    w = np.ones(len(p)) if w is None else np.asarray(w, float)
    thresholds = [math.inf, *sorted(set(p.tolist()), reverse=True)]
    tp, fp = (np.array([(w * side)[p >= t].sum() for t in thresholds]) for side in (y, 1 - y))
    with np.errstate(invalid="ignore"):
        return tp / tp[-1], fp / fp[-1], tp / (tp + fp)


def inside(values, low, high, slack=1e-9):
    """Say whether all values that exist lie between their limits."""
    known = ~np.isnan(values)
    return bool(((values >= low - slack) & (values <= high + slack))[known].all())


def test_a_small_curve_is_as_worked_by_hand():
    roc, pr = tu.decisions.expected_roc([0.1, 0.4, 0.8]), tu.decisions.expected_pr([0.1, 0.4, 0.8])
    assert roc.threshold.tolist() == [math.inf, 0.8, 0.4, 0.1]
    np.testing.assert_allclose(roc.y, [0, 0.8 / 1.3, 1.2 / 1.3, 1])
    np.testing.assert_allclose(roc.x, [0, 0.2 / 1.7, 0.8 / 1.7, 1])
    np.testing.assert_allclose(pr.x, roc.y)
    np.testing.assert_allclose(pr.y, [math.nan, 0.8, 0.6, 1.3 / 3])
    assert pr.area == pytest.approx((0.8 * 0.8 + 0.4 * 0.6 + 0.1 * 1.3 / 3) / 1.3)


def test_limits_are_the_published_ones_where_rows_leave_room():
    p, c = np.linspace(0.2, 0.8, 61), 0.01
    error = curves._Error(c, c, {}, "")
    _, fpr, tpr, _ = curves._curve("roc", Unlabelled(p, np.ones(61)), error, "rows")
    precision = curves._curve("pr", Unlabelled(p, np.ones(61)), error, "rows")[2]
    middle = slice(10, 50)
    for rate, by in ((tpr, p.sum()), (fpr, (1 - p).sum()), (precision, np.arange(62))):
        width = 61 * c / np.broadcast_to(by, 62)[middle]
        np.testing.assert_allclose(rate.low[middle], rate.estimate[middle] - width)
        np.testing.assert_allclose(rate.high[middle], rate.estimate[middle] + width)


def test_label_noise_is_the_range_of_brownian_motion_and_grows_with_what_may_be_wrong():
    p = np.array([0.1, 0.4, 0.8])
    assert tu.decisions.expected_roc(p).error == pytest.approx(range_quantile(0.1) * math.sqrt((p * (1 - p)).sum()) / 3)
    found = tu.decisions.expected_roc(p, 0.05)
    more = 0.05 * (0.8 + 0.6 + 1.4) / 2
    noise = range_quantile(0.05) * math.sqrt((p * (1 - p) + more).sum()) / 3
    assert found.parts == pytest.approx({"calibration": 0.05, "label noise": noise})
    assert found.error == pytest.approx(0.05 + noise)


@settings(deadline=None, max_examples=60)
@given(SCORES, st.integers(0, 2**32 - 1))
def test_the_auc_is_the_share_of_pairs_in_order(p, seed):
    p, w = np.array(p), np.random.default_rng(seed).integers(1, 4, len(p))
    assume(0 < p.sum() < len(p))
    pairs = np.outer(w * p, w * (1 - p))
    order = np.sign(np.subtract.outer(p, p)) / 2 + 0.5
    assert tu.decisions.expected_roc(p, weight=w).area == pytest.approx((pairs * order).sum() / pairs.sum(), abs=1e-12)


def test_average_precision_and_auc_are_those_of_scikit_learn_for_expected_outcomes():
    from sklearn.metrics import average_precision_score, roc_auc_score

    p = np.round(np.random.default_rng(0).random(80), 1)
    both, twice, w = np.repeat([1, 0], 80), np.tile(p, 2), np.append(p, 1 - p)
    kept = w > 0
    both, twice, w = both[kept], twice[kept], w[kept]
    assert tu.decisions.expected_pr(p).area == pytest.approx(average_precision_score(both, twice, sample_weight=w))
    assert tu.decisions.expected_roc(p).area == pytest.approx(roc_auc_score(both, twice, sample_weight=w))


@settings(deadline=None, max_examples=100)
@given(SCORES, st.integers(0, 2**32 - 1))
def test_no_outcomes_leave_limits_that_are_made_of_their_own_error(p, seed):
    random = np.random.default_rng(seed)
    p, y, w = np.array(p), random.integers(0, 2, len(p)), random.integers(1, 4, len(p)).astype(float)
    if random.random() < 0.5:
        y = np.sort(y)[np.argsort(np.argsort(-p))]  # as wrong as can be
    c = ecce(y, p, w)
    tpr, fpr, precision = realised(y, p, w)
    rows, error = Unlabelled(p, w), curves._Error(c, c, {}, "")
    _, across, up, auc = curves._curve("roc", rows, error, "rows")
    _, recall, exact, ap = curves._curve("pr", rows, error, "rows")
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


@TARGETS
@BOTH
@settings(deadline=None, max_examples=40)
@given(p=SCORES, bound=st.none() | st.floats(0, 1))
def test_limits_hold_the_estimate_and_rates_rise(draw, target, p, bound):
    found = draw(p, bound, target=target)
    assert np.all(np.diff(found.threshold) < 0)
    for side in SIDES:
        middle, low, high = (getattr(found, side + end) for end in ("", "_low", "_high"))
        assert inside(middle, low, high, slack=0)
        assert np.all((low >= 0) & (low <= high) & (high <= 1))
        if (found.kind, side) != ("pr", "y"):
            assert np.all(np.diff(low) >= 0)
            assert np.all(np.diff(high) >= 0)
    assert 0 <= found.area_low <= found.area_high <= 1
    assert math.isnan(found.area) or found.area_low <= found.area <= found.area_high
    assert found.error == pytest.approx(sum(found.parts.values()))


@TARGETS
@BOTH
def test_a_weight_of_two_equals_the_row_twice(draw, target):
    random = np.random.default_rng(1)
    p, w = np.round(random.random(40), 1), random.integers(0, 3, 40)
    one, other = draw(p, weight=w, target=target), draw(np.repeat(p, w), target=target)
    for name in ("threshold", *SIDES):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=1e-12)
    assert one.area == pytest.approx(other.area)
    assert one.error > other.error  # twice the same row tells less than two rows


@TARGETS
@BOTH
def test_a_segment_has_the_curve_of_its_rows_alone(draw, target):
    random = np.random.default_rng(2)
    p, w, region = random.random(90), random.random(90) + 0.5, random.choice(["n", "s"], 90)
    lp, lr = random.random(300), random.choice(["n", "s"], 300)
    ly = random.random(300) < lp
    found = draw(p, tu.decisions.Labelled(ly, lp, segments=lr), weight=w, segments=region, target=target)
    assert set(found.by_segment) == {"n", "s"}
    for name, one in found.by_segment.items():
        alone = draw(p[region == name], (ly[lr == name], lp[lr == name]), weight=w[region == name], target=target)
        np.testing.assert_allclose(one.y_low, alone.y_low, atol=1e-12)
        assert one.area_high == pytest.approx(alone.area_high)
        assert one.told == alone.told
    assert found.told == f"c at most {calibration_bound(ly, lp, delta=0.05).upper:.4g}, from 300 labelled rows"


@TARGETS
@pytest.mark.parametrize("score", [0.0, 1.0])
def test_scores_that_expect_no_positive_or_no_negative_give_nan_between_0_and_1(score, target):
    roc, pr = (draw([score] * 3, 0.1, target=target) for draw in (tu.decisions.expected_roc, tu.decisions.expected_pr))
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


def test_one_row_has_a_curve():
    found = tu.decisions.expected_roc([0.3])
    assert (found.x.tolist(), found.y.tolist(), found.area) == ([0, 1], [0, 1], 0.5)


def test_a_threshold_between_scores_is_looked_up_below():
    found = tu.decisions.expected_roc([0.1, 0.4, 0.8], 0.01)
    for threshold, place in ((math.inf, 0), (1, 0), (0.81, 0), (0.8, 1), (0.5, 1), (0.4, 2), (0.1, 3), (0, 3)):
        point = found.at(threshold)
        assert (point.x, point.y) == (found.x[place], found.y[place])
        assert (point.x_low, point.y_high) == (found.x_low[place], found.y_high[place])
    for bad in (-0.1, 1.2, math.nan, "0.2", None):
        with pytest.raises(ArgumentError, match=r"threshold must lie in \[0, 1\]"):
            found.at(bad)


@BOTH
def test_a_long_curve_is_thinned_in_a_dict_and_whole_in_a_frame(draw):
    p = np.random.default_rng(3).beta(0.2, 20, 20_000)
    found = draw(p)
    told, frame = found.to_dict(), found.to_frame(pd.DataFrame())
    assert 500 < len(told["threshold"]) <= 1001
    assert len(frame) == len(found.threshold) > 10_000
    assert told["threshold"][0] is None
    assert (told["threshold"][-1], told["x"][-1]) == (p.min(), 1.0)
    recall = np.array(told["y" if found.kind == "roc" else "x"])
    assert np.diff(recall).max() < 0.01
    names = ["fpr", "tpr"] if found.kind == "roc" else ["recall", "precision"]
    assert list(frame) == ["threshold", *(f"{name}{end}" for name in names for end in ("", "_low", "_high"))]
    assert np.array_equal(frame[names[0]], found.x)
    assert json.loads(json.dumps(told, allow_nan=False)) == told


def _scores(random, kind, many):
    return random.random(many) if kind == "even" else np.round(random.beta(1, 4, many), 2)


@TARGETS
@pytest.mark.parametrize("wrong", [0.0, 0.5], ids=["calibrated", "miscalibrated"])
@pytest.mark.parametrize("kind", ["even", "tied"])
def test_the_whole_true_curve_is_inside_as_often_as_promised(kind, wrong, target):
    random, held, repeats = np.random.default_rng(4), 0, 60

    def truth(p):
        return p * (1 - wrong * p)

    large = _scores(random, kind, 200_000)
    rising = np.sort(large)
    positive, negative = (np.append(np.cumsum(side[::-1])[::-1], 0) for side in (truth(rising), 1 - truth(rising)))
    for _ in range(repeats):
        p, lp = _scores(random, kind, 800), _scores(random, kind, 400)
        bound = (random.random(400) < truth(lp), lp)
        y = random.random(800) < truth(p)
        roc = tu.decisions.expected_roc(p, bound, target=target, level=0.8)
        pr = tu.decisions.expected_pr(p, bound, target=target, level=0.8)
        if target == "rows":
            tpr, fpr, precision = realised(y, p)
        else:
            at = np.searchsorted(rising, roc.threshold)
            tpr, fpr = positive[at] / positive[0], negative[at] / negative[0]
            precision = np.append(math.nan, (positive[at] / (positive[at] + negative[at] + 1e-300))[1:])
        held += inside(tpr, roc.y_low, roc.y_high) and inside(fpr, roc.x_low, roc.x_high) and (
            inside(precision, pr.y_low, pr.y_high)
        )  # fmt: skip
    assert held / repeats >= 0.8 - 3 * math.sqrt(0.8 * 0.2 / repeats)


def test_bands_without_a_bound_hold_for_scores_that_are_right_and_only_for_those():
    random, held = np.random.default_rng(5), {1.0: 0, 0.6: 0}
    for right in held:
        for _ in range(200):
            p = random.random(500)
            found = tu.decisions.expected_roc(p, level=0.8)
            tpr, fpr, _ = realised(random.random(500) < p**right, p)
            held[right] += inside(tpr, found.y_low, found.y_high) and inside(fpr, found.x_low, found.x_high)
    assert held[1.0] / 200 >= 0.8 - 3 * math.sqrt(0.8 * 0.2 / 200)
    assert held[0.6] / 200 < 0.5


def test_more_labels_and_more_rows_give_narrower_bands():
    random = np.random.default_rng(6)
    p = random.random(4000)
    y = random.random(4000) < p
    few, many = (tu.decisions.expected_roc(p, (y[:n], p[:n])) for n in (200, 4000))
    assert many.error < few.error
    assert many.area_high - many.area_low < few.area_high - few.area_low
    few, many = (tu.decisions.expected_roc(p[:n], target="population") for n in (200, 4000))
    assert many.parts["sampling"] < few.parts["sampling"]


def test_scores_that_moved_are_warned_of():
    random = np.random.default_rng(7)
    p = random.random(500)
    with pytest.warns(ShiftWarning, match="the scores have moved") as caught:
        found = tu.decisions.expected_roc(p / 2, (random.random(500) < p, p))
    assert caught[0].filename == __file__
    assert found.distance > 0.4


def test_the_answer_is_told_in_one_line():
    found = tu.decisions.expected_pr([0.2, 0.6, 0.9], 0.02)
    assert repr(found).startswith("<ExpectedCurve average precision 0.")
    assert repr(found).endswith("at 90% (calibration 0.02, label noise 0.631; c at most 0.02, as given)>")


@BOTH
@pytest.mark.parametrize(
    ("given_", "error", "message"),
    [
        ({"p": [0.2, 1.4]}, DataError, r"p must lie in \[0, 1\]; got 1.4 at row 1"),
        ({"p": []}, DataError, "the arrays are empty"),
        ({"level": 1}, ArgumentError, "level must lie between 0 and 1; got 1"),
        ({"target": "all"}, ArgumentError, "target must be"),
        ({"bound": 1.5}, ArgumentError, "bound must be labelled rows"),
        ({"weight": [-1, 1]}, DataError, "weight must not be negative"),
        ({"segments": ["a"]}, DataError, "segments must have one label a row"),
        ({"segments": ["a", "b"], "bound": ([0, 1], [0.3, 0.5])}, ArgumentError, "the labelled rows have no segments"),
    ],
)
def test_what_cannot_be_drawn_is_refused(draw, given_, error, message):
    with pytest.raises(error, match=message):
        draw(**{"p": [0.2, 0.7], **given_})
