"""Arrays in, numbers out."""

from trueup.metrics.cumulative import (
    CalibrationBound,
    calibration_bound,
    ecce,
    ecce_classes,
    ecce_mad,
    ecce_pvalue,
    ecce_sigma,
)
from trueup.metrics.isotonic import isotonic

__all__ = [
    "CalibrationBound",
    "calibration_bound",
    "ecce",
    "ecce_classes",
    "ecce_mad",
    "ecce_pvalue",
    "ecce_sigma",
    "isotonic",
]
