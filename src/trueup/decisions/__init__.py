"""Decisions with scores: costs, rules, confusion matrices and curves of unlabelled rows, with intervals."""

from trueup.decisions.abstention import (
    Abstention,
    RealisedCost,
    RewardCurve,
    RiskCoverage,
    abstain,
    reward_curve,
    risk_coverage,
)
from trueup.decisions.confusion import ExpectedConfusion, expected_confusion
from trueup.decisions.costs import ExpectedCost, ExpectedSaving, expected_cost, expected_saving
from trueup.decisions.curves import ExpectedCurve, expected_pr, expected_roc
from trueup.decisions.decision_curve import DecisionCurve, Gain, decision_curve
from trueup.decisions.evidence import Labelled
from trueup.decisions.omni import OmniGap, omni_gap, omniloss, omnipredict
from trueup.decisions.rowwise import LabelledClasses, RowRule
from trueup.decisions.rules import Action, BestRule, Rule, Share
from trueup.decisions.search import best_rule

__all__ = [
    "Abstention",
    "Action",
    "BestRule",
    "DecisionCurve",
    "ExpectedConfusion",
    "ExpectedCost",
    "ExpectedCurve",
    "ExpectedSaving",
    "Gain",
    "Labelled",
    "LabelledClasses",
    "OmniGap",
    "RealisedCost",
    "RewardCurve",
    "RiskCoverage",
    "RowRule",
    "Rule",
    "Share",
    "abstain",
    "best_rule",
    "decision_curve",
    "expected_confusion",
    "expected_cost",
    "expected_pr",
    "expected_roc",
    "expected_saving",
    "omni_gap",
    "omniloss",
    "omnipredict",
    "reward_curve",
    "risk_coverage",
]


def __dir__() -> list[str]:
    return sorted(__all__)
