"""Arrays in, numbers out."""

from trueup.metrics.binned import (
    DebiasedError,
    ace,
    bins,
    classwise_ece,
    debiased_ece,
    ece,
    ece_by_group,
    mce,
    top_label_ece,
)
from trueup.metrics.cumulative import (
    CalibrationBound,
    calibration_bound,
    ecce,
    ecce_classes,
    ecce_mad,
    ecce_pvalue,
    ecce_sigma,
)
from trueup.metrics.curves import ReliabilityCurve
from trueup.metrics.features import FeatureMap, fit_features
from trueup.metrics.grouped import GroupErrors, by_group
from trueup.metrics.isotonic import isotonic
from trueup.metrics.levelsets import discretize, k1, k2, kinf, msce
from trueup.metrics.local import LceCurve, LocalErrors, lce, lce_curve, local_errors, mean_lce, mlce, top_label
from trueup.metrics.multicalibration import MulticalibrationError, discretized_error, multicalibration_error
from trueup.metrics.reliability import reliability
from trueup.metrics.scores import (
    Corp,
    HosmerLemeshow,
    ObservedExpected,
    SlopeIntercept,
    brier,
    corp,
    hosmer_lemeshow,
    log_loss,
    normalized_entropy,
    observed_expected,
    prr,
    slope_intercept,
)
from trueup.metrics.smooth import smooth_ece, smooth_ece_at

__all__ = [
    "CalibrationBound",
    "Corp",
    "DebiasedError",
    "FeatureMap",
    "GroupErrors",
    "HosmerLemeshow",
    "LceCurve",
    "LocalErrors",
    "MulticalibrationError",
    "ObservedExpected",
    "ReliabilityCurve",
    "SlopeIntercept",
    "ace",
    "bins",
    "brier",
    "by_group",
    "calibration_bound",
    "classwise_ece",
    "corp",
    "debiased_ece",
    "discretize",
    "discretized_error",
    "ecce",
    "ecce_classes",
    "ecce_mad",
    "ecce_pvalue",
    "ecce_sigma",
    "ece",
    "ece_by_group",
    "fit_features",
    "hosmer_lemeshow",
    "isotonic",
    "k1",
    "k2",
    "kinf",
    "lce",
    "lce_curve",
    "local_errors",
    "log_loss",
    "mce",
    "mean_lce",
    "mlce",
    "msce",
    "multicalibration_error",
    "normalized_entropy",
    "observed_expected",
    "prr",
    "reliability",
    "slope_intercept",
    "smooth_ece",
    "smooth_ece_at",
    "top_label",
    "top_label_ece",
]
