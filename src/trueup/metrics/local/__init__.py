"""Local calibration: the error of the confidence among similar rows of similar confidence.

Luo et al. (2022), "Local calibration: metrics and recalibration": the LCE (equation 4) and its maximum, the MLCE (equation
5), with the kernel exp(-|phi - phi'|_1 / (d gamma)).
"""

from trueup.metrics.local.evidence import LocalErrors, local_errors
from trueup.metrics.local.measures import LceCurve, lce, lce_curve, mean_lce, mlce, top_label

__all__ = ["LceCurve", "LocalErrors", "lce", "lce_curve", "local_errors", "mean_lce", "mlce", "top_label"]
