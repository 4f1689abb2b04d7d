"""Measures equal those of other packages where these are correct; otherwise the correct value is worked by hand.

The peers come with the optional group: pip install 'trueup[parity]' (torch 2.13 first, for mcgrad, netcal and torchmetrics).
"""

from __future__ import annotations

import math
import warnings

import numpy as np
import pytest

from trueup import metrics

pytestmark = pytest.mark.filterwarnings("ignore")  # the peers warn about each other


def _peer(name):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return pytest.importorskip(
            name, reason=f"{name} is not installed: pip install 'trueup[parity]'", exc_type=ImportError
        )


@pytest.fixture(params=[0, 1, 2])
def sample(request):
    """Return continuous scores strictly inside (0, 1), slightly miscalibrated outcomes, and weights."""
    random = np.random.default_rng(request.param)
    n = (500, 3000, 20_000)[request.param]
    p = random.beta(2, 4, n) * 0.98 + 0.01
    y = (random.random(n) < np.clip(p * (1.1 if request.param else 1.0), 0, 1)).astype(float)
    return y, p, random.uniform(0.5, 2, n)


def test_log_loss_brier_and_isotonic_equal_scikit_learn(sample):
    sklearn = _peer("sklearn.metrics")
    isotonic = _peer("sklearn.isotonic")
    y, p, w = sample
    assert metrics.log_loss(y, p, w) == pytest.approx(sklearn.log_loss(y, p, sample_weight=w), rel=1e-12)
    assert metrics.brier(y, p, w) == pytest.approx(sklearn.brier_score_loss(y, p, sample_weight=w), rel=1e-12)
    ties = np.round(p, 2)
    fitted = isotonic.IsotonicRegression().fit_transform(ties, y, sample_weight=w)
    np.testing.assert_allclose(metrics.isotonic(y, ties, w).fitted, fitted, atol=1e-12)


def test_smooth_ece_equals_relplot_on_continuous_scores(sample):
    relplot = _peer("relplot")
    y, p, _ = sample
    assert metrics.smooth_ece(y, p) == pytest.approx(relplot.smECE(p, y), abs=1e-3)


def test_scores_at_the_ends_count_fully_unlike_in_relplot():
    # Half of the rows have score 0 and an error of .4, the others none: the error is .4 times a half.
    y, p = np.tile([0.4, 0.5], 200), np.tile([0.0, 0.5], 200)
    assert metrics.smooth_ece(y, p) == pytest.approx(0.2, abs=1e-3)


def test_decomposition_equals_model_diagnostics(sample):
    scoring = _peer("model_diagnostics.scoring")
    y, p, w = sample
    for name, function in (("brier", scoring.SquaredError()), ("log", scoring.LogLoss())):
        theirs = scoring.decompose(y_obs=y, y_pred=p, weights=w, scoring_function=function)
        ours = metrics.corp(y, p, w, score=name)
        for part in ("miscalibration", "discrimination", "uncertainty", "score"):
            assert getattr(ours, part) == pytest.approx(float(theirs[part][0]), abs=1e-9), (name, part)


def test_sigma_equals_mcgrad_without_ties(sample):
    mcgrad = _peer("mcgrad.metrics")
    y, p, w = sample
    assert metrics.ecce_sigma(y, p) == pytest.approx(mcgrad.ecce_sigma(labels=y, predicted_scores=p), rel=1e-6)
    theirs = mcgrad.ecce_sigma(labels=y, predicted_scores=p, sample_weight=w)
    assert metrics.ecce_sigma(y, p, w) == pytest.approx(theirs, rel=1e-6)


def test_entropies_and_relative_errors_equal_mcgrad(sample):
    mcgrad = _peer("mcgrad.metrics")
    y, p, w = sample
    given = {"labels": y, "predicted_scores": p, "sample_weight": w}
    assert metrics.normalized_entropy(y, p, w) == pytest.approx(mcgrad.normalized_entropy(**given), rel=1e-6)
    theirs = mcgrad.calibration_free_normalized_entropy(**given, tolerance=1e-12)
    assert metrics.calibration_free_normalized_entropy(y, p, w) == pytest.approx(theirs, rel=1e-6)
    assert metrics.ece(y, p, w, n_bins=40) == pytest.approx(mcgrad.expected_calibration_error(**given), rel=1e-6)
    theirs = mcgrad.proportional_expected_calibration_error(**given)
    assert metrics.proportional_ece(y, p, w, n_bins=40) == pytest.approx(theirs, rel=1e-6)
    ratio = metrics.observed_expected(y, p, w).ratio
    assert 1 / ratio == pytest.approx(mcgrad.calibration_ratio(**given), rel=1e-9)


def test_rank_calibration_equals_mcgrad_if_no_bins_tie(sample):
    mcgrad = _peer("mcgrad.metrics")
    _, p, w = sample
    outcome = p + w  # continuous, so that no mean outcomes are equal
    theirs = mcgrad.rank_calibration_error(outcome, p, num_bins=10)
    assert metrics.rank_calibration_error(outcome, p, n_bins=10, real=True) == pytest.approx(theirs, abs=1e-12)


def test_tied_scores_form_one_step_unlike_in_mcgrad():
    y, p = np.repeat([0.0, 1.0], [700, 300]), np.full(1000, 0.3)
    assert metrics.ecce_sigma(y, p) == pytest.approx(0.0, abs=1e-9)
    mcgrad = _peer("mcgrad.metrics")
    assert mcgrad.ecce_sigma(labels=y, predicted_scores=p) > 10


def test_tiny_p_values_are_positive():
    y, p = np.repeat([1.0, 0.0], [900, 100]), np.full(1000, 0.5)
    assert 0 < metrics.ecce_pvalue(y, p) < 1e-100


def test_range_starts_at_zero():
    # Without C_0 = 0 the range of the path .25, .45 would be .2.
    assert metrics.ecce([1, 1], [0.5, 0.6]) == pytest.approx(0.45)


def test_ece_equals_netcal(sample):
    netcal = _peer("netcal.metrics")
    y, p, _ = sample
    assert metrics.ece(y, p) == pytest.approx(float(netcal.ECE(10).measure(p, y)), abs=1e-9)


def test_ece_equals_torchmetrics_except_for_scores_of_one(sample):
    classification = _peer("torchmetrics.classification")
    torch = _peer("torch")
    y, p, _ = sample
    peer = classification.BinaryCalibrationError(n_bins=10, norm="l1")
    theirs = float(peer(torch.tensor(p, dtype=torch.float64), torch.tensor(y).int()))
    assert metrics.ece(y, p) == pytest.approx(theirs, abs=1e-6)


def test_scores_of_one_fall_in_the_last_bin():
    # Scores .95 and 1 share the last bin: mean score .975, every outcome 1.
    assert metrics.ece([1, 1], [0.95, 1.0]) == pytest.approx(0.025)
    assert math.isclose(metrics.mce([1, 0], [1.0, 0.0]), 0.0)
