"""Adjustment for several tests, and intervals."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

import twins
from trueup.errors import ArgumentError
from trueup.kernels.tally import sort_rows
from trueup.metrics import inference

pvalues = st.lists(st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=12)


@given(pvalues)
def test_holm_equals_its_definition(p):
    np.testing.assert_allclose(inference.adjust(p, "holm"), twins.holm(p), rtol=1e-12)


@given(st.lists(st.tuples(st.floats(0, 1, allow_subnormal=False), st.floats(0.01, 1)), min_size=1, max_size=12))
def test_weighted_holm_equals_its_definition(tests):
    p, shares = np.array(tests).T
    shares = shares / shares.sum()
    np.testing.assert_allclose(inference.adjust(p, "holm", shares), twins.holm(p, shares), rtol=1e-9)
    for method in ("bh", "by"):
        equal = np.full(len(p), 1 / len(p))
        np.testing.assert_allclose(inference.adjust(p, method, equal), inference.adjust(p, method), rtol=1e-12)
        assert (inference.adjust(p, method, shares) >= p).all()


def test_weighted_adjustments_by_hand():
    p, shares = np.array([0.02, 0.001, 0.5]), np.array([0.5, 0.25, 0.25])
    # p/share is 0.04, 0.004 and 2: 0.004 (1), then 0.04 (0.75), then 2 (0.25).
    np.testing.assert_allclose(inference.adjust(p, "holm", shares), [0.03, 0.004, 0.5])
    # p/(3 share) is 0.01333, 0.001333 and 0.6667: times 3/2, 3/1 and 3/3.
    np.testing.assert_allclose(inference.adjust(p, "bh", shares), [0.02, 0.004, 2 / 3])


@given(pvalues)
def test_benjamini_hochberg_is_the_smallest_level_that_rejects(p):
    p = np.array(p)
    m = len(p)
    result = inference.adjust(p, "bh")
    for i in range(m):
        # By definition: min over the p_j >= p_i of m p_j / #{p <= p_j}.
        expected = min(1.0, min(m * p[j] / np.sum(p <= p[j]) for j in range(m) if p[j] >= p[i]))
        assert result[i] == pytest.approx(expected, rel=1e-12)
    harmonic = sum(1 / k for k in range(1, m + 1))
    np.testing.assert_allclose(inference.adjust(p, "by"), np.minimum(1.0, _unclipped_bh(p) * harmonic), rtol=1e-12)


def _unclipped_bh(p):
    m = len(p)
    return np.array([min(m * p[j] / np.sum(p <= p[j]) for j in range(m) if p[j] >= p[i]) for i in range(m)])


def test_empty_p_values_stay_empty():
    assert inference.adjust([], "holm").tolist() == []
    assert inference.adjust([], "by").tolist() == []


def test_nan_p_values_are_rejected():
    with pytest.raises(ArgumentError, match="1 are NaN"):
        inference.adjust([float("nan"), 0.01], "holm")


def test_unknown_adjustments_are_rejected():
    with pytest.raises(ArgumentError, match="'holm', 'bh' or 'by'; got 'sidak'"):
        inference.adjust([0.1], "sidak")


def test_step_down_p_values_grow_with_rank_and_start_at_one_over_the_draws():
    order = np.array([2, 0, 1])
    adjusted = inference.step_down(np.array([0, 5, 3]), order, 9)
    assert adjusted.tolist() == [0.6, 0.6, 0.1]


@pytest.mark.parametrize(("alpha", "draws"), [(0.05, 199), (0.05, 999), (0.01, 199), (0.1, 9)])
def test_common_numbers_of_draws_are_accepted(alpha, draws):
    assert inference.check_draws(alpha, draws) is None


@pytest.mark.parametrize(("alpha", "draws"), [(0.05, 100), (0.05, 9), (0.0333, 999)])
def test_numbers_of_draws_that_cannot_attain_alpha_are_rejected(alpha, draws):
    with pytest.raises(ArgumentError, match="must be an integer"):
        inference.check_draws(alpha, draws)


def test_wilson_limits_solve_the_score_equation():
    rate, size = np.array([0.03, 0.5, 1.0]), np.array([40.0, 12.0, 9.0])
    z = 1.959963984540054
    for bound in inference.wilson(rate, size, 0.05):
        inside = (bound > 1e-9) & (bound < 1 - 1e-9)
        deviation = np.abs(rate - bound)[inside] / np.sqrt(bound * (1 - bound) / size)[inside]
        np.testing.assert_allclose(deviation, z, rtol=1e-9)


def _sampled(kind, random, n=4000):
    """Return scores, outcomes and weights; ``kind`` says of which rows one in ten was kept."""
    p, noise = random.beta(2, 5, n), random.lognormal(0, 0.5, n)
    y = random.random(n) < p
    left_out = {"none": np.zeros(n, bool), "positives": y, "positives, lognormal weights": y, "low positives": y & (p < 0.2),
                "some positives": y & (random.random(n) < 0.5)}[kind]  # fmt: skip
    w = np.where(left_out, 10.0, 1.0) * (noise if kind in ("none", "positives, lognormal weights") else 1.0)
    kept = ~left_out | (random.random(n) < 0.1)
    return p[kept], y[kept].astype(float), w[kept]


@pytest.mark.parametrize(
    ("kind", "constant"),
    [("none", True), ("positives", True), ("positives, lognormal weights", True), ("low positives", False),
     ("some positives", False)],
)  # fmt: skip
def test_weights_that_depend_on_the_outcome_are_recognised(kind, constant):
    for seed in range(3):
        p, y, w = _sampled(kind, np.random.default_rng([seed, 7]))
        parts = [sort_rows(y[at], p[at], w[at], real=False) for at in (slice(0, 1000), slice(1000, None))]
        model = inference.WeightModel.fit(sum(inference.weight_sums(rows) for rows in parts))
        dependent = model.is_incomplete(sum(model.residual_sums(rows) for rows in parts))
        slope, z, drift = twins.weight_model(y, p, w)
        assert model.ratio == pytest.approx(np.exp(slope))
        assert dependent == (np.abs(z).max() > inference.Z_DEPENDENCE or drift > inference.BRIDGE)
        assert dependent != constant
    for rows in [
        sort_rows(y, p, np.full(len(y), 3.0), real=False),
        sort_rows(np.ones(3), np.full(3, 0.5), w[:3], real=False),
    ]:
        model = inference.WeightModel.fit(inference.weight_sums(rows))
        assert (model.ratio, model.is_incomplete(model.residual_sums(rows))) == (1, False)


def test_normal_quantiles_of_very_small_levels_are_exact_and_finite():
    for alpha in (0.05, 1e-8, 1e-10, 1e-15, 1e-300):
        assert inference.normal_quantile(alpha) == pytest.approx(norm.isf(alpha / 2), rel=1e-9)
    assert 38 < inference.normal_quantile(5e-324) < 39
