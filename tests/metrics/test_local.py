from __future__ import annotations

import itertools
import json
import math

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.special import ndtr

import twins
from trueup import metrics
from trueup.errors import ArgumentError, DataError
from trueup.kernels import pairs
from trueup.metrics import bins as numbered
from trueup.metrics import deviations, lce, lce_curve, local, local_errors, mce, mean_lce, mlce, top_label
from trueup.metrics.deviations import LocalMeans, limit_rates, log_pvalue

CLOSE = 1e-6  # accuracy of the kernels
GAMMAS = [1e-300, 1e-6, 0.02, 0.3, 1.0, 20.0, 1e6, 1e300, np.inf]


@st.composite
def samples(draw, dimensions=(1, 2, 3, 4, 7, 64)):
    """Points on a grid of eighths, so that distances are exact: ties are ties in any order of addition."""
    n, d = draw(st.integers(1, 25)), draw(st.sampled_from(dimensions))
    random = np.random.default_rng(draw(st.integers(0, 10**6)))
    phi = random.integers(0, draw(st.sampled_from([1, 2, 5, 40])), (n, d)) / 8
    phi[:, random.random(d) < 0.2] = 1.0
    p = random.choice([0.0, 0.03, 0.1, 0.5, 0.52, 1.0], n) if draw(st.booleans()) else random.random(n)
    w = random.choice([0.0, 0.5, 1.0, 3.0], n)
    w[random.integers(n)] = 1.0
    hit = random.choice([0.0, 0.25, 1.0], n, p=[0.5, 0.1, 0.4])
    # Soft hits with certain confidences only are rejected: they look swapped.
    return phi, p, hit if ((p > 0) & (p < 1)).any() else np.round(hit), w


def data(n=200, d=2, seed=0):
    random = np.random.default_rng(seed)
    phi, p = random.normal(size=(n, d)), random.random(n)
    return phi, p, (random.random(n) < p).astype(float)


# --- lce


def gaussian_lce(phi, p, hit, w, number, gamma, *, own=True):
    """Evaluate equation 4 of Luo et al. (2022) row by row with the kernel exp(-|phi - phi'|^2 / (2 d gamma^2))."""
    out = np.full(len(p), np.nan)
    for i in range(len(p)):
        inside = (number == number[i]) & (w > 0) & (own | (np.arange(len(p)) != i))
        if inside.any():
            far = ((phi[inside] - phi[i]) ** 2).mean(axis=1) / (2 * gamma**2)
            k = w[inside] * np.exp(-(far - far.min()))
            out[i] = (k * (p[inside] - hit[inside])).sum() / k.sum()
    return out


@pytest.mark.parametrize("leave_one_out", [False, True])
@pytest.mark.parametrize("gamma", [1e-3, 0.3, 2.0])
def test_the_gaussian_kernel_equals_its_formula(gamma, leave_one_out):
    phi, p, hit = data(150, 3)
    phi[:20] = phi[20:40]
    w = np.random.default_rng(2).choice([0.0, 0.5, 1.0, 3.0], 150)
    result = lce(phi, p, hit, w, gamma=gamma, bins=4, kernel="gaussian", leave_one_out=leave_one_out, signed=True)
    expected = gaussian_lce(phi, p, hit, w, numbered(p, w, n_bins=4), gamma, own=not leave_one_out)
    used = w > 0
    np.testing.assert_allclose(result[used], expected[used], atol=CLOSE)
    curve = lce_curve(phi, p, hit, w, gammas=[gamma], bins=4, kernel="gaussian", leave_one_out=leave_one_out)
    assert curve.mlce[0] == pytest.approx(np.nanmax(np.abs(result)))
    wide = lce(phi, p, hit, w, gamma=np.inf, bins=4, kernel="gaussian")
    assert wide.max() == pytest.approx(mce(hit, p, w, n_bins=4), abs=CLOSE)


def test_a_function_as_kernel_is_used_as_it_is():
    phi, p, hit = data(80, 2)
    laplace_kernel = lambda a, b: 3 * np.exp(-np.abs(a[:, None] - b).sum(axis=2) / (2 * 0.3))  # noqa: E731
    for options in ({}, {"leave_one_out": True}, {"query": (phi[:10] + 0.1, p[:10])}):
        expected = lce(phi, p, hit, gamma=0.3, bins=5, signed=True, **options)
        result = lce(phi, p, hit, kernel=laplace_kernel, bins=5, signed=True, **options)
        np.testing.assert_allclose(result, expected, atol=CLOSE)
    errors = local_errors(phi, p, hit, kernel=laplace_kernel, bins=5)
    named = local_errors(phi, p, hit, gamma=0.3, bins=5)
    assert errors.gamma is None
    for column in ("error", "size", "noise"):
        np.testing.assert_allclose(getattr(errors, column), getattr(named, column), rtol=1e-6, atol=CLOSE)
    # The largest kernel is estimated from its 16th powers, never too small.
    assert (errors.p_value >= named.p_value * (1 - 1e-6)).all()
    np.testing.assert_array_equal(errors.worst(3), named.worst(3))


@pytest.mark.parametrize(
    ("kernel", "message"),
    [
        (lambda a, b: np.ones(len(a)), "must return an array of shape"),
        (lambda a, b: -np.ones((len(a), len(b))), "similarities of at least 0; got -1.0"),
        (lambda a, b: np.full((len(a), len(b)), np.nan), "similarities of at least 0; got nan"),
    ],
)
def test_invalid_similarities_are_rejected(kernel, message):
    phi, p, hit = data(20, 2)
    with pytest.raises(DataError, match=message):
        lce(phi, p, hit, kernel=kernel)


def test_gaussian_and_own_kernels_are_rejected_where_they_have_no_meaning():
    phi, p, hit = data(20, 2)
    with pytest.raises(ArgumentError, match="the GPU sums the Laplace kernel only"):
        lce(phi, p, hit, gamma=0.3, kernel="gaussian", device="cuda")
    with pytest.raises(ArgumentError, match="gamma belongs to the Laplace and the Gaussian kernel"):
        lce(phi, p, hit, gamma=0.3, kernel=lambda a, b: np.ones((len(a), len(b))))
    with pytest.raises(ArgumentError, match="kernel must be one of"):
        lce_curve(phi, p, hit, kernel="group")


def test_bins_closed_on_the_left_are_those_of_the_paper():
    # Luo et al. (2022): bins [0, e), [e, 2e), ...; scores on an edge belong to the bin above it.
    p, hit, phi = [0.2, 0.2, 0.3, 0.5], [0, 1, 0, 1], np.zeros(4)
    left = lce(phi, p, hit, gamma=np.inf, bins=5, closed="left", signed=True)
    np.testing.assert_allclose(left, [(0.2 + 0.2 + 0.3 - 1) / 3] * 3 + [-0.5], atol=CLOSE)
    right = lce(phi, p, hit, gamma=np.inf, bins=5, signed=True)
    np.testing.assert_allclose(right, [-0.3, -0.3, 0.3, -0.5], atol=CLOSE)
    for closed in ("left", "right"):
        largest = mlce(phi, p, hit, gamma=np.inf, bins=5, closed=closed)
        assert largest == pytest.approx(mce(hit, p, n_bins=5, closed=closed), abs=CLOSE)


@given(samples(), st.sampled_from(GAMMAS), st.sampled_from([1, 4, 15]), st.sampled_from(["width", "mass"]), st.booleans())
@settings(max_examples=60)
def test_lce_equals_its_formula(sample, gamma, bins, strategy, leave_one_out):
    phi, p, hit, w = sample
    number = numbered(p, w, n_bins=bins, strategy=strategy)
    twin = twins.lce(phi, p, hit, w, number, gamma, own=not leave_one_out)
    options = {"gamma": gamma, "bins": bins, "strategy": strategy, "leave_one_out": leave_one_out}
    result = lce(phi, p, hit, w, signed=True, **options)
    np.testing.assert_allclose(result, twin, atol=CLOSE)
    np.testing.assert_array_equal(lce(phi, p, hit, w, **options), np.abs(result))


@given(samples(), samples(), st.sampled_from(GAMMAS), st.sampled_from(["width", "mass"]))
@settings(max_examples=60)
def test_query_points_use_the_bin_of_their_confidence(sample, other, gamma, strategy):
    (phi, p, hit, w), (points, level, _, _) = sample, other
    assume(phi.shape[1] == points.shape[1])
    both = numbered(np.append(p, level), np.append(w, 0 * level), n_bins=6, strategy=strategy)
    number, places = both[: len(p)], both[len(p) :]
    twin = twins.lce(phi, p, hit, w, number, gamma, at=(points, places))
    result = lce(phi, p, hit, w, gamma=gamma, bins=6, strategy=strategy, query=(points, level), signed=True)
    np.testing.assert_allclose(result, twin, atol=CLOSE)


def test_worked_example():
    # Distances 1 and 2 of two coordinates with gamma 1/2: kernels exp(-1) and exp(-2); the last row has a bin of its own.
    phi = [[0, 0], [1, 0], [1, 1], [0, 0]]
    result = lce(phi, [0.5, 0.5, 0.5, 0.9], [1, 0, 0, 1], gamma=0.5, bins=2, signed=True)
    a, b = math.exp(-1), math.exp(-2)
    own = [(-1 + a + b) / 2 / (1 + a + b), (1 + a - a) / 2 / (1 + 2 * a), (1 + a - b) / 2 / (1 + a + b), -0.1]
    np.testing.assert_allclose(result, own, atol=CLOSE)


def test_one_dimensional_phi_is_accepted():
    phi, p, hit = data(50, 1)
    np.testing.assert_array_equal(lce(phi[:, 0], p, hit, gamma=0.3), lce(phi, p, hit, gamma=0.3))
    np.testing.assert_array_equal(lce(phi[:, 0].tolist(), p, hit, gamma=0.3), lce(phi, p, hit, gamma=0.3))


@pytest.mark.parametrize("strategy", ["width", "mass"])
def test_infinite_gamma_gives_the_mce_of_the_bins(strategy):
    phi, p, hit = data()
    w = np.random.default_rng(1).integers(0, 4, len(p)).astype(float)
    for gamma in (np.inf, 1e12):
        result = mlce(phi, p, hit, w, gamma=gamma, strategy=strategy)
        assert result == pytest.approx(mce(hit, p, w, n_bins=15, strategy=strategy), abs=CLOSE)


def test_tiny_gamma_averages_the_nearest_rows():
    phi, p, hit = (
        [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [5.0, 5.0]],
        np.array([0.6, 0.62, 0.64, 0.65]),
        np.array([0, 1, 0, 1.0]),
    )
    r = p - hit
    options = {"gamma": 1e-300, "bins": 3, "signed": True}
    np.testing.assert_allclose(lce(phi, p, hit, **options), r)
    np.testing.assert_allclose(
        lce(phi, p, hit, leave_one_out=True, **options), [(r[1] + r[2]) / 2, r[0], r[0], (r[1] + r[2]) / 2]
    )
    np.testing.assert_allclose(lce(phi, p, hit, query=([[0.5, 0.5], [9, 9]], [0.4, 0.5]), **options), [r[:3].mean(), r[3]])


def test_weight_two_equals_duplicated_rows():
    phi, p, hit = data(60, 3)
    w = np.random.default_rng(2).integers(0, 3, 60)
    twice = [np.repeat(one, w, axis=0) for one in (phi, p, hit)]
    options = {"gamma": 0.4, "bins": 4}
    for strategy in ("width", "mass"):
        result = lce(phi, p, hit, w, strategy=strategy, **options)
        np.testing.assert_allclose(np.repeat(result, w), lce(*twice, strategy=strategy, **options), atol=CLOSE)
        assert mean_lce(phi, p, hit, w, strategy=strategy, **options) == pytest.approx(
            mean_lce(*twice, strategy=strategy, **options)
        )


def test_rows_of_weight_zero_get_a_value_without_influence():
    phi, p, hit = data(40)
    w = np.ones(40)
    w[::4] = 0
    for leave_one_out in (False, True):
        result = lce(phi, p, hit, w, gamma=0.5, bins=3, leave_one_out=leave_one_out)
        kept = w > 0
        separate = lce(phi[kept], p[kept], hit[kept], gamma=0.5, bins=3, leave_one_out=leave_one_out)
        np.testing.assert_allclose(result[kept], separate, atol=CLOSE)
        other = lce(phi[kept], p[kept], hit[kept], gamma=0.5, bins=3, query=(phi[~kept], p[~kept]))
        np.testing.assert_allclose(result[~kept], other, atol=CLOSE)


def test_row_order_and_scale_of_weights_do_not_matter():
    phi, p, hit = data(80, 4)
    w = np.random.default_rng(3).random(80)
    order = np.random.default_rng(4).permutation(80)
    result = lce(phi, p, hit, w, gamma=0.4)
    np.testing.assert_allclose(lce(phi[order], p[order], hit[order], w[order], gamma=0.4), result[order], atol=CLOSE)
    for unit in (1e-250, 3.0, 1e250):
        np.testing.assert_allclose(lce(phi, p, hit, w * unit, gamma=0.4), result, atol=CLOSE)
        assert mean_lce(phi, p, hit, w * unit, gamma=0.4) == pytest.approx(np.average(result, weights=w))


@pytest.mark.parametrize("gamma", [0.5, np.inf, None])
def test_neighbours_of_a_heavy_row_count_when_it_is_left_out(gamma):
    options = {"gamma": gamma, "signed": True, "leave_one_out": True, "kernel": "group" if gamma is None else "laplace"}
    phi = ["a", "a", "b"] if gamma is None else [0.0, 0.0, 0.0]
    result = lce(phi, [0.5, 0.5, 0.5], [1, 0, 0], [1e-12, 1e12, 1e-12], **options)
    # The neighbours of the second row are the first and, except for groups, the third.
    np.testing.assert_allclose(result, [0.5, -0.5, np.nan] if gamma is None else [0.5, 0, 0.5], atol=CLOSE)


@pytest.mark.parametrize("options", [{}, {"leave_one_out": True}, {"query": True}])
def test_sizes_are_correct_for_weights_of_any_scale(options):
    random = np.random.default_rng(14)
    phi, w = random.normal(size=(150, 5)), 10.0 ** random.uniform(-12, 12, 150)
    p = np.full(150, 0.5)
    arguments = phi + 0.1 if "query" in options else phi
    options = {**options, "query": (arguments, p)} if "query" in options else options
    result = local_errors(phi, p, (random.random(150) < p).astype(float), w, gamma=0.02, bins=1, **options)
    log = np.log(w) - np.abs(arguments[:, None] - phi).sum(axis=2) / (5 * 0.02)
    if "leave_one_out" in options:
        np.fill_diagonal(log, -np.inf)
    a = np.exp(log - log.max(axis=1, keepdims=True))
    np.testing.assert_allclose(result.size, a.sum(axis=1) ** 2 / (a**2).sum(axis=1), rtol=2 * CLOSE)


@pytest.mark.parametrize("d", [2, 5, 50])
def test_nearest_row_is_found_for_any_gamma(d):
    phi, p, hit = data(300, d)
    near = np.abs(phi[:, None] + 0.1 - phi).sum(axis=2).argmin(axis=1)
    for gamma in (1e-300, 1e-18):
        result = lce(phi, p, hit, gamma=gamma, bins=1, query=(phi + 0.1, p), signed=True)
        np.testing.assert_allclose(result, (p - hit)[near], atol=CLOSE)


def test_points_without_neighbours_are_nan():
    result = lce([0.0, 1.0, 2.0], [0.1, 0.12, 0.9], [0, 0, 1], gamma=1, bins=5, leave_one_out=True)
    assert np.isnan(result).tolist() == [False, False, True]
    assert np.isnan(lce([0.0], [0.1], [0], gamma=1, query=([0.0, 0.0], [0.1, 0.5]))).tolist() == [False, True]
    assert math.isnan(mlce([0.0], [0.1], [0], gamma=1, leave_one_out=True))
    assert math.isnan(mean_lce([0.0], [0.1], [0], gamma=1, leave_one_out=True))


def test_maximum_and_mean_ignore_nan():
    p, hit, w = [0.1, 0.12, 0.9], [0, 0, 1], [1.0, 3.0, 1.0]
    options = {"gamma": 1e-9, "bins": 5, "leave_one_out": True}
    assert mlce([0.0, 1.0, 2.0], p, hit, w, **options) == pytest.approx(0.12)
    assert mean_lce([0.0, 1.0, 2.0], p, hit, w, **options) == pytest.approx((1 * 0.12 + 3 * 0.1) / 4)
    # Rows of weight 0 do not count in the mean; query points count equally.
    assert mean_lce([0.0, 9.0], [0.1, 0.2], [0, 0], [1, 0], gamma=1, bins=1) == pytest.approx(0.1)
    assert mean_lce([0.0, 9.0], [0.1, 0.2], [0, 0], [5, 1], gamma=0.01, bins=1, query=([0, 9], [0, 0])) == pytest.approx(
        0.15
    )


def test_the_tolerance_is_passed_on():
    phi, p, hit = data(300, 2)
    rough = lce(phi, p, hit, gamma=0.2, bins=2, tolerance=0.01, signed=True)
    np.testing.assert_allclose(rough, lce(phi, p, hit, gamma=0.2, bins=2, signed=True), atol=0.01)


# --- groups


def test_group_kernel_is_the_binned_error_by_group():
    _, p, hit = data(120)
    random = np.random.default_rng(5)
    group, w = random.choice(["a", "b", "c"], 120), random.integers(1, 4, 120).astype(float)
    result = lce(group, p, hit, w, gamma=None, bins=4, kernel="group")
    by = metrics.by_group(mce, hit, p, group, w, n_bins=4)
    for name, worst in zip(by.groups, by.values, strict=True):
        assert result[group == name].max() == pytest.approx(worst)
    number = numbered(p, n_bins=4)
    for name, b in itertools.product("abc", range(4)):
        cell = (group == name) & (number == b)
        np.testing.assert_allclose(result[cell], abs(np.average((p - hit)[cell], weights=w[cell])), rtol=1e-9)
    assert mlce(group, p, hit, w, gamma=None, bins=4, kernel="group") == pytest.approx(by.values.max())


def test_group_labels_may_be_of_any_type():
    p, hit = [0.4, 0.4, 0.4, 0.4], [1, 0, 0, 0]
    for labels in (
        [1, 1, 2, 2],
        np.array([[1], [1], [2], [2]]),
        ["x", "x", None, float("nan")],
        [("a", 1), ("a", 1), 3, 3],
    ):
        if isinstance(labels, list) and isinstance(labels[0], tuple):
            boxed = np.empty(4, object)
            boxed[:] = labels
            labels = boxed
        result = lce(labels, p, hit, gamma=None, kernel="group", signed=True)
        np.testing.assert_allclose(result, [-0.1, -0.1, 0.4, 0.4])


def test_groups_without_rows_are_nan():
    result = lce(
        ["a", "b"], [0.4, 0.4], [1, 0], gamma=None, kernel="group", signed=True, query=(["b", "a", "c"], [0.4, 0.4, 0.4])
    )
    np.testing.assert_allclose(result, [0.4, -0.6, np.nan])
    separate = lce(["a", "b", "b"], [0.4] * 3, [1, 0, 1], gamma=None, kernel="group", signed=True, leave_one_out=True)
    np.testing.assert_allclose(separate, [np.nan, -0.6, 0.4])


# --- curves


def test_curve_equals_single_calls_and_sums_once(monkeypatch):
    phi, p, hit = data(90, 3)
    w = np.random.default_rng(6).random(90) + 0.1
    calls = []

    def counted(*args, **options):
        calls.append(len(args[4]))
        return pairs.sums(*args, **options)

    monkeypatch.setattr(local, "sums", counted)
    curve = lce_curve(phi, p, hit, w, gammas=[0.1, 1.0], bins=5)
    assert calls == [3]
    for k, gamma in enumerate([0.1, 1.0]):
        values = lce(phi, p, hit, w, gamma=gamma, bins=5)
        assert curve.mlce[k] == pytest.approx(values.max(), abs=CLOSE)
        assert curve.worst[k] == values.argmax()
        assert curve.mean[k] == pytest.approx(mean_lce(phi, p, hit, w, gamma=gamma, bins=5), abs=CLOSE)
    assert curve.mce == pytest.approx(mce(hit, p, w, n_bins=5))


def test_the_default_grid_reaches_both_limits():
    phi, p, hit = data(100)
    curve = lce_curve(phi, p, hit)
    assert (np.diff(curve.gamma) > 0).all()
    assert {0.01, 0.1, 1.0, 10.0} <= set(curve.gamma)
    assert curve.mlce[0] == pytest.approx(np.abs(p - hit).max(), rel=1e-3)
    assert curve.mlce[-1] == pytest.approx(curve.mce, rel=0.05)


def test_curve_has_a_repr_and_converts_to_frames_and_json(frame):
    curve = lce_curve([0.0, 0.0, 1.0, 1.0], [0.5] * 4, [1, 1, 0, 0], gammas=[0.1, np.inf])
    assert repr(curve) == "<LceCurve of 2 gammas: MLCE 0.5 at gamma 0.1 to 0 at inf; MCE 0>"
    plain = json.loads(json.dumps(curve.to_dict()))
    assert plain["gamma"] == [0.1, None]
    assert plain["mce"] == 0
    table = curve.to_frame(like=frame({"a": [1]}))
    assert list(table["mlce"].to_numpy() if hasattr(table["mlce"], "to_numpy") else table["mlce"]) == curve.mlce.tolist()
    assert set(curve.to_frame()) == {"gamma", "mlce", "mean", "worst"}
    empty = lce_curve([0.0], [0.5], [1], gammas=1, leave_one_out=True)
    assert empty.worst.tolist() == [-1]
    assert np.isnan(empty.mlce).all()
    assert "MLCE nan" in repr(empty)


# --- errors with p-values


@given(samples((1, 2, 5)), st.sampled_from([1e-9, 0.05, 0.4, 3.0, np.inf]), st.booleans())
@settings(max_examples=30)
def test_size_and_noise_equal_their_formulas(sample, gamma, leave_one_out):
    phi, p, hit, w = sample
    number = numbered(p, w, n_bins=4)
    result = local_errors(phi, p, hit, w, gamma=gamma, bins=4, leave_one_out=leave_one_out)
    np.testing.assert_allclose(
        result.error, lce(phi, p, hit, w, gamma=gamma, bins=4, leave_one_out=leave_one_out, signed=True), atol=CLOSE
    )
    for t in range(len(p)):
        near = (number == number[t]) & (w > 0) & (~np.eye(len(p), dtype=bool)[t] | (not leave_one_out))
        if not near.any():
            assert result.size[t] == 0
            assert np.isnan([result.error[t], result.p_value[t], result.low[t], result.sigma[t]]).all()
            continue
        far = np.abs(phi[near] - phi[t]).mean(axis=1)
        a = w[near] * np.exp(-(far - far.min()) / gamma)
        assert result.size[t] == pytest.approx(a.sum() ** 2 / (a**2).sum(), rel=CLOSE)
        noise = math.sqrt((a**2 * (p * (1 - p))[near]).sum()) / a.sum()
        assert result.noise[t] == pytest.approx(noise, rel=CLOSE)
        if noise > 0:
            assert result.sigma[t] == pytest.approx(result.error[t] / noise, rel=CLOSE)
        else:
            assert abs(result.sigma[t]) == (0 if result.error[t] == 0 else np.inf)
        assert result.low[t] <= result.error[t] + CLOSE
        assert result.error[t] <= result.high[t] + CLOSE


def tails(a, p):
    """Return the exact distribution of sum a y / sum a: its values, and the probability of each or more."""
    outcomes = np.array(list(itertools.product([0, 1], repeat=len(a))))
    chance = np.where(outcomes == 1, p, 1 - p).prod(axis=1)
    mean = (outcomes * a).sum(axis=1) / a.sum()
    values = np.unique(mean.round(12))
    return values, np.array([chance[mean >= value - 1e-11].sum() for value in values])


def means_of(a, p, points):
    whole = [(a @ p) / a.sum(), (a**2 @ p) / (a**2).sum(), a.sum() ** 2 / (a**2).sum(), a.max() / a.sum()]
    return LocalMeans(*(np.full(points, value) for value in whole))


def neighbourhoods_to_try():
    random = np.random.default_rng(7)
    for n, kind, centre in itertools.product((1, 2, 3, 5, 8, 10), range(5), (0.003, 0.03, 0.2, 0.5, 0.8, 0.99)):
        a = [
            np.ones(n),
            np.exp(-random.exponential(1, n)),
            np.r_[1.0, np.full(n - 1, 0.1)],
            2.0 ** -np.arange(n),
            random.random(n),
        ]
        spread = random.uniform(-0.03, 0.03, n) if kind % 2 else 0.0 * np.arange(n)
        yield a[kind], np.clip(centre + spread, 1e-4, 1 - 1e-4)


def test_p_value_is_at_least_the_exact_probability():
    """Compared with exact distributions, for unequal weights and rates, on both sides."""
    for a, p in neighbourhoods_to_try():
        for q in (p, 1 - p):
            values, chance = tails(a, q)
            above = values > (a @ q) / a.sum() + 1e-9
            bound = np.exp(log_pvalue(means_of(a, q, above.sum()), values[above]))
            assert (bound >= np.minimum(1, 2 * chance[above]) * (1 - 1e-9)).all()


def test_p_value_is_nearly_exact_for_many_equal_weights():
    for n, k, p in ((400, 230, 0.5), (2000, 1080, 0.5), (1000, 40, 0.02)):
        i = np.arange(k, n + 1)
        logs = [
            math.lgamma(n + 1) - math.lgamma(j + 1) - math.lgamma(n - j + 1) + j * math.log(p) + (n - j) * math.log1p(-p)
            for j in i
        ]
        exact = 2 * math.fsum(math.exp(one) for one in logs)
        bound = math.exp(log_pvalue(means_of(np.ones(n), np.full(n, p), 1), np.array([k / n]))[0])
        assert exact <= bound <= 2 * exact


def test_p_value_of_one_neighbour_is_twice_its_probability():
    for p in (1e-12, 0.001, 0.2):
        result = local_errors([0.0], [p], [1], gamma=1)
        assert result.p_value[0] == pytest.approx(2 * p, rel=1e-6)
    assert local_errors([0.0], [0.5], [1], gamma=1).p_value[0] == 1
    assert local_errors([0.0], [0.01], [0], gamma=1).p_value[0] == 1


def test_certain_predictions_have_p_value_0_or_1():
    result = local_errors([0.0, 5.0], [1.0, 1.0], [0, 1], gamma=0.001)
    assert result.sigma.tolist() == [np.inf, 0]
    assert result.p_value.tolist() == [0, 1]
    assert result.worst().tolist() == [0, 1]
    assert result.worst_p_adjusted == 0


def test_limits_are_where_the_p_value_equals_the_level():
    means = LocalMeans(*map(np.concatenate, zip(*(means_of(a, p, 5) for a, p in neighbourhoods_to_try()), strict=True)))
    seen = np.random.default_rng(8).random(len(means.expected))
    low, high = limit_rates(means, seen, 0.9)
    assert ((low <= seen) & (seen <= high)).all()
    ruled_out = np.exp(log_pvalue(means, seen)) < 0.1
    outside = (means.expected < low - 1e-6) | (means.expected > high + 1e-6)
    inside = (means.expected > low + 1e-6) & (means.expected < high - 1e-6)
    assert not (outside & ~ruled_out).any()
    assert not (inside & ruled_out).any()


def simulate(draw, truth, gamma, repetitions, n=80, **options):
    """Simulate points of given confidence and true rate; return the shares of points covered and alarmed, and of any alarm."""
    random = np.random.default_rng(9)
    covered, alarmed, any_alarm, points = 0, 0, 0, 0
    for _ in range(repetitions):
        phi, p = random.normal(size=(n, 2)), draw(random, n)
        rate = truth(p)
        hit = (random.random(n) < rate).astype(float)
        result = local_errors(phi, p, hit, gamma=gamma, bins=5, threads=1, **options)
        target = lce(
            phi, p, rate, gamma=gamma, bins=5, signed=True, threads=1, **{k: v for k, v in options.items() if k != "level"}
        )
        some = result.size > 0
        covered += ((result.low <= target + CLOSE) & (target <= result.high + CLOSE))[some].sum()
        alarmed += (result.p_value[some] <= 0.05).sum()
        any_alarm += result.worst_p_adjusted <= 0.05
        points += some.sum()
    return covered / points, alarmed / points, any_alarm / repetitions


CONFIDENCES = {
    "low": lambda random, n: random.beta(0.3, 8, n),
    "high": lambda random, n: random.beta(8, 0.3, n),
    "any": lambda random, n: random.random(n),
    "one": lambda _, n: np.full(n, 0.9),
}


@pytest.mark.parametrize("name", list(CONFIDENCES))
@pytest.mark.parametrize("gamma", [0.02, 0.4, np.inf])
@pytest.mark.repeated(10, 40)
def test_calibrated_confidences_have_coverage_and_few_alarms(name, gamma, repetitions):
    covered, alarmed, any_alarm = simulate(CONFIDENCES[name], lambda p: p, gamma, repetitions)
    # Neighbouring points are dependent: a repetition counts as one draw.
    slack = twins.three_se(0.05, repetitions)
    assert covered >= 0.95 - slack
    assert alarmed <= 0.05 + slack
    assert any_alarm <= 0.05 + slack


def test_normal_limits_fail_for_few_neighbours():
    """Of forty rows with confidence 0.01, three have more hits than normal tails allow."""
    spots = np.tile(np.arange(1000), 40)
    hit = (np.random.default_rng(10).random(40_000) < 0.01).astype(float)
    result = local_errors(spots, np.full(40_000, 0.01), hit, gamma=1e-3, bins=1, query=(np.arange(1000), [0.01] * 1000))
    np.testing.assert_allclose(result.error, 0.01 - np.bincount(spots, hit) / 40, atol=CLOSE)
    normal = 2 * ndtr(-np.abs(result.sigma))
    assert (normal <= 1e-3).mean() > 0.001 + twins.three_se(0.001, 1000)
    assert (result.p_value <= 1e-3).mean() <= 0.001 + twins.three_se(0.001, 1000)


@pytest.mark.parametrize("truth", [lambda p: 0.8 * p, lambda p: np.clip(p + 0.2, 0, 1), lambda p: 0 * p + 0.5])
@pytest.mark.repeated(5, 20)
def test_limits_have_coverage_for_miscalibrated_confidences(truth, repetitions):
    for name in ("low", "high", "any"):
        for leave_one_out in (False, True):
            covered, _, _ = simulate(CONFIDENCES[name], truth, 0.4, repetitions, leave_one_out=leave_one_out)
            assert covered >= 0.95 - twins.three_se(0.05, repetitions)


def test_miscalibrated_regions_are_found():
    random = np.random.default_rng(11)
    found_at = []
    for _ in range(20):
        phi, p = random.random((600, 2)), random.uniform(0.5, 0.9, 600)
        off = (phi > 0.5).all(axis=1)
        hit = (random.random(600) < np.where(off, p - 0.4, p)).astype(float)
        result = local_errors(phi, p, hit, gamma=0.1, bins=3)
        row = result.worst(1)[0]
        found_at.append(bool(off[row]) and result.p_adjusted[row] <= 0.05 and result.error[row] > 0.15)
    assert np.mean(found_at) >= 0.9


def test_large_errors_of_three_neighbours_are_not_significant():
    phi = np.r_[np.zeros(3), np.full(400, 9.0)]
    hit = np.r_[np.ones(3), np.tile([1.0, 0, 0], 134)[:400]]
    result = local_errors(phi, np.full(403, 0.5), hit, gamma=0.1)
    assert np.abs(result.error).argmax() < 3
    assert (result.worst(400, distinct=False) >= 3).all()
    assert result.worst(400).tolist() == [3, 0]  # one row per position
    assert result.p_value[0] == pytest.approx(0.25, rel=1e-6)
    assert result.neighbourhoods == 2


def test_bound_counts_neighbourhoods_that_could_be_as_extreme():
    # Four positions of 1, 2, 30 and 30 rows at confidence 1/2; those of 1 and 2 rows cannot fall below 1 and 1/2.
    phi, hit = np.repeat([0.0, 1, 2, 3], [1, 2, 30, 30]), np.r_[1, 1, 1, np.ones(28), 0, 0, np.tile([0, 1], 15)]
    result = local_errors(phi, np.full(63, 0.5), hit, gamma=1e-3)
    assert result.neighbourhoods == 4
    assert result.p_adjusted[5] == pytest.approx(2 * result.p_value[5], rel=1e-6)
    assert result.worst_p_adjusted == result.p_adjusted[5]
    whole = local_errors(phi, np.full(63, 0.5), hit, gamma=np.inf)
    assert whole.neighbourhoods == 1
    np.testing.assert_allclose(whole.p_adjusted, whole.p_value)


def test_groups_have_sizes_and_p_values_too():
    group = np.repeat(["a", "b"], [4, 50])
    result = local_errors(group, np.full(54, 0.5), np.r_[np.ones(4), np.zeros(50)], gamma=None, kernel="group")
    np.testing.assert_allclose(result.size, np.repeat([4, 50], [4, 50]))
    assert result.neighbourhoods == 2
    assert result.p_value[0] == pytest.approx(2 / 16, rel=1e-6)
    assert result.to_dict()["gamma"] is None
    assert result.worst(1)[0] >= 4


def test_distant_query_points_do_not_underflow():
    result = local_errors([0.0, 1.0, 1.0], [0.5, 0.5, 0.5], [1, 0, 0], gamma=1e-4, leave_one_out=True)
    np.testing.assert_allclose(result.size, [2, 1, 1], rtol=1e-9)
    np.testing.assert_allclose(result.noise, [math.sqrt(1 / 8), 0.5, 0.5], rtol=1e-9)
    far = local_errors([0.0, 1.0, 1.0], [0.5, 0.5, 0.5], [1, 0, 0], gamma=1e-4, query=([1e9, -1e9], [0.5, 0.5]))
    np.testing.assert_allclose(far.size, [2, 1], rtol=1e-9)
    np.testing.assert_allclose(far.error, [0.5, -0.5])


def test_coincident_rows_count_alike_at_any_distance():
    phi, hit = np.r_[0.0, np.full(10, 20.0)], np.r_[0.0, np.ones(9), 0.0]
    near = local_errors(phi, np.full(11, 0.3), hit, gamma=np.inf, leave_one_out=True)
    for gamma in (1e-4, 0.5, 1.0, 100.0):
        result = local_errors(phi, np.full(11, 0.3), hit, gamma=gamma, leave_one_out=True)
        # The kernel of the nearest row is known up to a factor: the p-value may be slightly larger, never smaller.
        assert near.p_value[0] * (1 - CLOSE) <= result.p_value[0] <= 1.5 * near.p_value[0]
        assert result.size[0] == pytest.approx(10, rel=CLOSE)


def test_row_order_does_not_matter_for_p_values():
    phi, p, hit = data(100, 3)
    order = np.random.default_rng(12).permutation(100)
    result, other = local_errors(phi, p, hit, gamma=0.4), local_errors(phi[order], p[order], hit[order], gamma=0.4)
    for name in ("size", "noise", "low", "high", "p_value", "p_adjusted"):
        np.testing.assert_allclose(getattr(other, name), getattr(result, name)[order], rtol=1e-6, atol=1e-9)


def asked_ways(random, n):
    """Return all kinds of queries: rows, weighted rows, leave-one-out, query points, groups."""
    group = random.choice(["a", "b", "c"], n)
    return {
        "rows": {"gamma": 0.4},
        "weighted": {"gamma": 0.4, "weight": random.choice([0.0, 0.5, 1.0, 4.0], n)},
        "left out": {"gamma": 0.4, "leave_one_out": True},
        "elsewhere": {"gamma": 0.4, "query": (random.normal(size=(40, 2)), random.random(40))},
        "bins": {"gamma": np.inf},
        "groups": {"kernel": "group", "phi": group},
    }


WAYS = ["rows", "weighted", "left out", "elsewhere", "bins", "groups"]


@pytest.mark.parametrize(("way", "together"), [*((way, 5) for way in WAYS), ("weighted", 1), ("elsewhere", 32)])
def test_draws_equal_the_step_down_min_p_method(way, together, monkeypatch):
    monkeypatch.setattr(deviations, "DRAWS_PER_BATCH", together)
    phi, p, _ = data(70)
    expected = {"bins": 3, **asked_ways(np.random.default_rng(20), 70)[way]}
    phi, weight = expected.pop("phi", phi), expected.pop("weight", None)
    hit = (np.random.default_rng(21).random(70) < 0.8 * p).astype(float)
    result = local_errors(phi, p, hit, weight, draws=12, random_state=3, **expected)
    # Only rows with weight have outcomes.
    random, kept = np.random.default_rng([3, deviations.STREAM]), slice(None) if weight is None else weight > 0
    drawn = []
    for _ in range(12):
        y = hit.copy()
        y[kept] = random.random(len(p[kept])) < p[kept]
        drawn.append(local_errors(phi, p, y, weight, **expected).p_value)
    twin = np.full(len(result), np.nan)
    order, highest = np.argsort(result.p_value, kind="stable"), 0.0
    order = order[result.size[order] > 0]
    for k, row in enumerate(order):
        count = sum((one[order[k:]] <= result.p_value[row] * (1 + 1e-4)).any() for one in drawn)
        highest = twin[row] = max(highest, (1 + count) / 13)
    np.testing.assert_allclose(result.p_adjusted, twin)
    plain = local_errors(phi, p, hit, weight, **expected)
    for name in ("error", "size", "noise", "low", "high", "p_value"):
        np.testing.assert_array_equal(getattr(result, name), getattr(plain, name))


@pytest.mark.parametrize(
    "way",
    [
        pytest.param("rows", marks=pytest.mark.repeated(60, 300)),
        *(pytest.param(way, marks=pytest.mark.repeated(30, 100)) for way in ("weighted", "groups")),
    ],
)
def test_draws_keep_their_level_for_calibrated_confidences(way, repetitions):
    random = np.random.default_rng(22)
    alarms = 0
    for _ in range(repetitions):
        phi, p = random.normal(size=(50, 2)), random.random(50)
        expected = asked_ways(random, 50)[way]
        phi, weight = expected.pop("phi", phi), expected.pop("weight", None)
        hit = (random.random(50) < p).astype(float)
        expected |= {"bins": 2, "draws": 19, "random_state": int(random.integers(10**6)), "threads": 1}
        result = local_errors(phi, p, hit, weight, **expected)
        alarms += result.worst_p_adjusted <= 0.05
    assert abs(alarms / repetitions - 0.05) <= twins.three_se(0.05, repetitions)


@pytest.mark.repeated(30, 100)
def test_soft_hits_keep_the_level(repetitions):
    random = np.random.default_rng(23)
    alarms = 0
    for seed in range(repetitions):
        phi, p = random.normal(size=(50, 2)), random.uniform(0.2, 0.8, 50)
        soft = (random.random((3, 50)) < p).mean(axis=0)
        result = local_errors(phi, p, soft, gamma=0.4, bins=2, draws=19, random_state=seed, threads=1)
        alarms += result.worst_p_adjusted <= 0.05
    assert alarms / repetitions <= 0.05 + twins.three_se(0.05, repetitions)


@pytest.mark.repeated(40, 200)
def test_stepping_down_keeps_the_level(repetitions):
    random = np.random.default_rng(24)
    found_off, false = 0, 0
    group = np.repeat(["off", "b", "c", "d"], 25)
    for seed in range(repetitions):
        hit = (random.random(100) < np.where(group == "off", 0.95, 0.5)).astype(float)
        result = local_errors(group, np.full(100, 0.5), hit, kernel="group", draws=59, random_state=seed, threads=1)
        found_off += result.p_adjusted[0] <= 0.05
        false += bool((result.p_adjusted[group != "off"] <= 0.05).any())
    assert found_off / repetitions >= 0.95
    assert false / repetitions <= 0.05 + twins.three_se(0.05, repetitions)


@pytest.mark.repeated(4, 10)
def test_draws_have_more_power_than_the_bound(repetitions):
    """Many overlapping neighbourhoods: the bound counts each, the draws account for their dependence."""
    random = np.random.default_rng(25)
    cautious, result = [], []
    for seed in range(repetitions):
        phi, p = random.normal(size=(1500, 2)), random.uniform(0.2, 0.8, 1500)
        hit = (random.random(1500) < p - 0.04).astype(float)
        options = {"gamma": 1.5, "bins": 1}
        cautious.append(local_errors(phi, p, hit, **options).worst_p_adjusted)
        result.append(local_errors(phi, p, hit, draws=99, random_state=seed, **options).worst_p_adjusted)
    assert np.median(cautious) > 0.5
    assert np.mean(np.array(result) < 0.05) >= 0.7


def test_draws_depend_on_the_seed_only():
    phi, p, hit = data(150, 4)
    one, same, other = (
        local_errors(phi, p, 1 - hit, gamma=0.4, draws=49, random_state=seed, threads=threads)
        for seed, threads in ((1, 1), (1, 2), (2, 1))
    )
    np.testing.assert_array_equal(one.p_adjusted, same.p_adjusted)
    assert (one.p_adjusted != other.p_adjusted).any()
    assert one.worst_p_adjusted == one.p_adjusted.min() == 1 / 50


def test_draws_without_neighbours_are_nan():
    separate = local_errors([0.0, 1.0], [0.1, 0.9], [1, 1], gamma=1, leave_one_out=True, draws=9)
    assert np.isnan(separate.p_adjusted).all()


def test_repr_names_the_adjustment():
    phi, p, hit = data(30)
    assert repr(local_errors(phi, p, hit, gamma=1)).endswith("adjusted for all points (by a bound)>")
    result = local_errors(phi, p, hit, gamma=1, draws=199)
    assert repr(result).endswith("adjusted for all points (by 199 draws)>")
    assert repr(local_errors(phi, p, hit, gamma=1, draws=1)).endswith("(by 1 draw)>")
    assert result.to_dict()["draws"] == 199


@pytest.mark.parametrize("way", WAYS)
def test_worst_points_have_distinct_neighbourhoods(way):
    phi, p, hit = data(80)
    expected = {"bins": 2, **asked_ways(np.random.default_rng(26), 80)[way]}
    phi, weight = expected.pop("phi", phi), expected.pop("weight", None)
    result = local_errors(phi, p, hit, weight, **expected)
    places, level = expected.get("query", (phi, p))
    cell = numbered(np.append(p, level), np.append(np.ones(80) if weight is None else weight, 0 * level), n_bins=2)[80:]
    every = result.worst(80, distinct=False).tolist()
    twin = []
    for row in every:
        if way == "groups":
            near = [places[row] == places[other] for other in twin]
        else:
            near = [np.abs(places[row] - places[other]).mean() < expected["gamma"] * math.log(2) for other in twin]
        if not any(close and cell[row] == cell[other] for close, other in zip(near, twin, strict=True)):
            twin.append(row)
    assert len(twin) < len(every)
    assert result.worst(80).tolist() == twin
    assert result.worst(3).tolist() == twin[:3]
    assert result.worst(1).tolist() == every[:1]


def test_positions_are_not_exported():
    result = local_errors(*data(20), gamma=1)
    assert "places" not in result.to_dict()
    assert "places" not in result.to_frame()


def test_local_errors_have_a_repr_and_convert_to_frames_and_json(frame):
    phi, p, hit = data(30)
    result = local_errors(phi, p, hit, gamma=0.5, bins=3, leave_one_out=True)
    assert repr(result).startswith(f"<LocalErrors of 30 points: most evidence at row {result.worst(1)[0]}, ")
    assert len(result) == 30
    plain = json.loads(json.dumps(result.to_dict()))
    assert plain["error"] == result.error.tolist()
    assert set(result.to_frame(like=None)) == {"error", "size", "noise", "low", "high", "sigma", "p_value", "p_adjusted"}
    assert len(result.to_frame(like=frame({"a": [1]}))) == 30
    assert result.worst(0).tolist() == []
    separate = local_errors([0.0], [0.5], [1], gamma=1, leave_one_out=True)
    assert repr(separate) == "<LocalErrors of 1 point, none of them with neighbours>"
    assert separate.to_dict()["p_value"] == [None]
    assert separate.to_dict()["size"] == [0.0]
    assert math.isnan(separate.worst_p_adjusted)
    with pytest.raises(ArgumentError, match="k must be an integer"):
        result.worst(1.5)


# --- top labels


def test_the_top_label_is_the_first_highest_column():
    confidence, hit = top_label([1, 0, 2], [[0.4, 0.4, 0.2], [0.1, 0.6, 0.3], [0, 0, 1.0005]])
    assert confidence.tolist() == [0.4, 0.6, 1]
    assert hit.tolist() == [0, 0, 1]
    with pytest.raises(DataError, match="class indices 0 to 1; got 2"):
        top_label([2], [[0.5, 0.5]])


def test_the_top_label_has_the_error_of_top_label_ece():
    random = np.random.default_rng(13)
    p = random.dirichlet([1, 1, 1], 200)
    y = random.integers(0, 3, 200)
    confidence, hit = top_label(y, p)
    assert mlce(p, confidence, hit, gamma=np.inf) == pytest.approx(metrics.top_label_ece(y, p, n_bins=15, norm="max"))


# --- errors

OK = {"phi": [[0.0], [1.0]], "confidence": [0.2, 0.3], "hit": [0, 1]}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"phi": [[0.0], [np.nan]]}, DataError, "phi must be finite; got nan at row 1"),
        ({"phi": [[0.0], [np.inf]]}, DataError, "phi must be finite; got inf at row 1"),
        ({"phi": ["a", "b"]}, DataError, "phi must hold numbers; got <U1"),
        ({"phi": [[[0.0]], [[1.0]]]}, DataError, "phi must have shape"),
        ({"phi": [[0.0], [1.0, 2.0]]}, DataError, "phi must hold rows of equal length"),
        ({"phi": [[0.0]]}, DataError, "must have equal length; got 1, 2, 2"),
        ({"weight": [1.0]}, DataError, "must have equal length; got 2, 2, 2, 1"),
        ({"weight": [1.0, -1.0]}, DataError, "weight must not be negative; got -1 at row 1"),
        ({"weight": [0, 0]}, DataError, "weights are all zero"),
        ({"weight": [1, np.inf]}, DataError, "weight must be finite"),
        ({"confidence": [0.2, 1.5]}, DataError, "confidence must lie in \\[0, 1\\]; got 1.5 at row 1"),
        ({"confidence": [[0.2, 0.8], [0.3, 0.7]]}, DataError, "confidence must be one-dimensional"),
        ({"hit": [0, 2]}, DataError, "hit must lie in \\[0, 1\\]; got 2 at row 1"),
        ({"hit": ["yes", "no"]}, DataError, "hit must hold numbers"),
        ({"phi": [], "confidence": [], "hit": []}, DataError, "confidence is empty"),
        ({"gamma": 0}, ArgumentError, "gamma must be a number above 0; got 0"),
        ({"gamma": -1.0}, ArgumentError, "gamma must be a number above 0"),
        ({"gamma": np.nan}, ArgumentError, "gamma must be a number above 0"),
        ({"gamma": None}, ArgumentError, "gamma is required by this kernel"),
        ({"confidence": [0, 1], "hit": [0.2, 0.3]}, DataError, "confidence and hit look swapped"),
        ({"confidence": [True, False], "hit": [1, 0.3]}, DataError, "confidence and hit look swapped"),
        ({"gamma": "0.4"}, ArgumentError, "gamma must be a number above 0"),
        ({"gamma": True}, ArgumentError, "gamma must be a number above 0"),
        ({"gamma": 10**400}, ArgumentError, "gamma must be a number above 0"),
        ({"gamma": 0.4, "kernel": "group"}, ArgumentError, "gamma belongs to the Laplace and the Gaussian kernel; got 0.4"),
        ({"kernel": "gauss"}, ArgumentError, "kernel must be one of"),
        ({"phi": [[0, 1], [1, 1]], "kernel": "group", "gamma": None}, DataError, "one label per row"),
        ({"bins": 0}, ArgumentError, "bins must be an integer from 1 to 1,000,000; got 0"),
        ({"bins": 2.5}, ArgumentError, "bins must be an integer"),
        ({"bins": True}, ArgumentError, "bins must be an integer"),
        ({"bins": 10**12}, ArgumentError, "bins must be an integer from 1 to 1,000,000; got 1000000000000"),
        ({"strategy": "equal"}, ArgumentError, "strategy must be one of"),
        ({"tolerance": 0}, ArgumentError, "tolerance must lie between 0 and 1; got 0"),
        ({"tolerance": 1.0}, ArgumentError, "tolerance must lie between 0 and 1"),
        ({"tolerance": "small"}, ArgumentError, "tolerance must lie between 0 and 1; got 'small'"),
        ({"threads": 0}, ArgumentError, "threads must be an integer"),
        ({"device": "gpu"}, ArgumentError, "device must be one of 'cpu', 'auto', 'cuda'; got 'gpu'"),
        ({"query": [[0.0]]}, ArgumentError, "query must be a pair \\(phi, confidence\\)"),
        ({"query": ([0.0], [0.1, 0.2])}, DataError, "equal length; got 1 and 2"),
        ({"query": ([[0.0, 1.0]], [0.1])}, DataError, "must have 1 columns, as phi has; got 2"),
        ({"query": ([np.nan], [0.1])}, DataError, "the phi of query must be finite"),
        ({"query": ([0.0], [1.1])}, DataError, "the confidence of query must lie in"),
        ({"query": ([0.0], [0.1]), "leave_one_out": True}, ArgumentError, "leave_one_out cannot be combined with query"),
    ],
)
@pytest.mark.parametrize("measure", [lce, mlce, mean_lce, local_errors])
def test_invalid_arguments_are_rejected(measure, changed, error, message):
    arguments = {**OK, "gamma": 0.5, **changed}
    rows = [arguments.pop(name) for name in ("phi", "confidence", "hit")]
    with pytest.raises(error, match=message):
        measure(*rows, **arguments)


def test_swapped_arguments_are_detected():
    phi, p, hit = data(30)
    for measure, expected in ((lce, {"gamma": 1}), (lce_curve, {})):
        with pytest.raises(DataError, match="every confidence is 0 or 1, and some hits lie between") as error:
            measure(phi, hit, p, **expected)
        assert "the order is phi, confidence, hit" in str(error.value)
    assert lce(phi, hit, hit, gamma=1).max() == 0
    assert lce([0.0, 0.0], [0.5, 1.0], [0.25, 1.0], gamma=1, bins=2)[0] == 0.25


def test_only_the_laplace_kernel_requires_gamma():
    p, hit = [0.4, 0.4, 0.4], [1, 0, 0]
    for measure in (lce, mlce, mean_lce):
        np.testing.assert_array_equal(
            measure(["a", "a", "b"], p, hit, kernel="group"), measure(["a", "a", "b"], p, hit, gamma=None, kernel="group")
        )
    assert local_errors(["a", "a", "b"], p, hit, kernel="group").gamma is None
    for measure in (lce, mlce, mean_lce, local_errors):
        with pytest.raises(ArgumentError) as error:
            measure([0.0, 1.0, 2.0], p, hit)
        for word in ("gamma is required", "in units of phi", "mean distance of two rows", "fit_features", "lce_curve"):
            assert word in str(error.value)


@pytest.mark.parametrize(
    ("expected", "message"),
    [
        ({"draws": -1}, "draws must be an integer from 0 to 1,000,000; got -1"),
        ({"draws": 10**7}, "draws must be an integer from 0 to 1,000,000; got 10000000"),
        ({"draws": 1.5}, "draws must be an integer"),
        ({"draws": True}, "draws must be an integer"),
        ({"random_state": -1}, "random_state must be an integer at least 0; got -1"),
        ({"random_state": None}, "random_state must be an integer at least 0; got None"),
    ],
)
def test_invalid_draws_are_rejected(expected, message):
    with pytest.raises(ArgumentError, match=message):
        local_errors(*OK.values(), gamma=1, **expected)


def test_invalid_levels_and_grids_are_rejected():
    for level in (0, 1, 95, "high", True):
        with pytest.raises(ArgumentError, match="level must lie between 0 and 1"):
            local_errors(*OK.values(), gamma=1, level=level)
    with pytest.raises(ArgumentError, match="gamma must be a number above 0; got 0"):
        lce_curve(*OK.values(), gammas=[1, 0])
    with pytest.raises(ArgumentError, match="gammas is empty"):
        lce_curve(*OK.values(), gammas=[])


def test_inputs_are_not_modified():
    phi, p, hit = data(20)
    before = phi.copy(), p.copy(), hit.copy()
    w = np.ones(20)
    local_errors(phi, p, hit, w, gamma=0.3)
    lce_curve(phi, p, hit, w)
    for one, other in zip((phi, p, hit, w), (*before, np.ones(20)), strict=True):
        np.testing.assert_array_equal(one, other)
