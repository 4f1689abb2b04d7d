"""Docstrings of methods from papers name the paper so that it can be found: authors, title, year, and an identifier."""

from __future__ import annotations

import re

import pytest

import trueup as tu

METHODS = (
    tu.MCGrad, tu.LSBoost, tu.DepthTwo, tu.LoRe, tu.HKRR, tu.Multiaccuracy, tu.Temperature, tu.Beta, tu.Isotonic,
    tu.MatrixScaling, tu.PriorCorrection, tu.Grouped, tu.Logistic, tu.Auto, tu.swap_regret, tu.weak_learning,
    *(getattr(tu.metrics, name) for name in (
        "ecce", "ecce_mad", "ecce_sigma", "ecce_pvalue", "ecce_classes", "calibration_bound", "ece", "mce", "ace",
        "top_label_ece", "classwise_ece", "debiased_ece", "smooth_ece", "smooth_ece_at", "lce", "mlce", "mean_lce",
        "lce_curve", "local_errors", "multicalibration_error", "k1", "k2", "kinf", "msce", "corp", "isotonic",
        "rank_calibration_error", "covariance_error", "discretized_error", "region_error", "fit_steps", "interval_complexity",
        "complexity_bound", "uniform_bound", "natarajan_bound", "lsboost_rows", "multicalibration_rows", "prr",
    )),
    *(getattr(tu.decisions, name) for name in (
        "expected_cost", "best_rule", "expected_roc", "omnipredict", "omni_gap", "abstain", "reward_curve", "decision_curve",
    )),
)  # fmt: skip


@pytest.mark.parametrize("method", METHODS, ids=lambda method: method.__name__)
def test_methods_of_papers_cite_them(method):
    text = method.__doc__
    assert re.search(r"[A-Z]\w+.* \(?(19|20)\d\d\)?", text), "authors and year"
    assert re.search(r'"[A-Z][^"]{12,}"', text), "a title"
    assert re.search(r"arXiv:\d{4}\.\d{4,5}|doi:10\.\d{4,}/\S+", text), "an identifier"
