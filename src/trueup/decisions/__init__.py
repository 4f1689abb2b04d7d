"""What a calibrated score is worth: costs, rules and curves of rows without labels."""

from trueup.decisions.abstention import Abstention, RealisedCost, abstain
from trueup.decisions.benefit import DecisionCurve, decision_curve
from trueup.decisions.confusion import ExpectedConfusion, expected_confusion
from trueup.decisions.costs import ExpectedCost, Share, expected_cost
from trueup.decisions.curves import ExpectedCurve, expected_pr, expected_roc
from trueup.decisions.evidence import Labelled
from trueup.decisions.gains import Gain
from trueup.decisions.omni import omniloss, omnipredict
from trueup.decisions.rejection import RewardCurve, RiskCoverage, reward_curve, risk_coverage
from trueup.decisions.rules import Action, Rule
from trueup.decisions.saving import expected_saving
from trueup.decisions.search import BestRule, best_rule

__all__ = [
    "Abstention",
    "Action",
    "BestRule",
    "DecisionCurve",
    "ExpectedConfusion",
    "ExpectedCost",
    "ExpectedCurve",
    "Gain",
    "Labelled",
    "RealisedCost",
    "RewardCurve",
    "RiskCoverage",
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
    "omniloss",
    "omnipredict",
    "reward_curve",
    "risk_coverage",
]


def __dir__() -> list[str]:
    return sorted(__all__)
