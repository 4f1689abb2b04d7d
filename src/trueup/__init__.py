"""True up any model: probabilities that are calibrated on every segment.

>>> import trueup as tu
>>> tu.audit  # doctest: +ELLIPSIS
<function audit at ...>
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from trueup import _forks as _forks  # notes forks from here on

if TYPE_CHECKING:
    from trueup import decisions, errors, figures, metrics, mlflow, simulate
    from trueup.audits.audit import audit
    from trueup.audits.result import Audit, Finding
    from trueup.audits.swap_regret import swap_regret
    from trueup.audits.weak_learning import weak_learning
    from trueup.calibrators.auto import Auto
    from trueup.calibrators.curves.adjustments import Additive, Multiplicative
    from trueup.calibrators.curves.estimators import Beta, Histogram, Isotonic, Platt, Temperature
    from trueup.calibrators.curves.grouped import Grouped
    from trueup.calibrators.curves.logistic import Logistic
    from trueup.calibrators.depthtwo import DepthTwo
    from trueup.calibrators.lore.estimator import LoRe
    from trueup.calibrators.lsboost.estimator import LSBoost
    from trueup.calibrators.matrix.estimator import MatrixScaling
    from trueup.calibrators.mcgrad.estimator import MCGrad
    from trueup.calibrators.mcgrad.imported import load_mcgrad
    from trueup.calibrators.model import Model
    from trueup.calibrators.patches.estimators import HKRR, Multiaccuracy
    from trueup.calibrators.prior.estimator import PriorCorrection
    from trueup.calibrators.stopping import CrossValidation, Holdout, Validation
    from trueup.calibrators.wrapper import CalibratedClassifier, CalibratedRegressor
    from trueup.data.scan import scan
    from trueup.exports import export
    from trueup.modelfile import load, save
    from trueup.monitoring.monitor import Monitor
    from trueup.monitoring.plan import Plan, plan
    from trueup.reports.page import report

__all__ = [
    "HKRR",
    "Additive",
    "Audit",
    "Auto",
    "Beta",
    "CalibratedClassifier",
    "CalibratedRegressor",
    "CrossValidation",
    "DepthTwo",
    "Finding",
    "Grouped",
    "Histogram",
    "Holdout",
    "Isotonic",
    "LSBoost",
    "LoRe",
    "Logistic",
    "MCGrad",
    "MatrixScaling",
    "Model",
    "Monitor",
    "Multiaccuracy",
    "Multiplicative",
    "Plan",
    "Platt",
    "PriorCorrection",
    "Temperature",
    "Validation",
    "audit",
    "decisions",
    "errors",
    "export",
    "figures",
    "load",
    "load_mcgrad",
    "metrics",
    "mlflow",
    "plan",
    "report",
    "save",
    "scan",
    "simulate",
    "swap_regret",
    "weak_learning",
]

# Module -> its public names. Nothing is imported before it is asked for: `import trueup` costs next to nothing.
_MODULES = {
    "audits.audit": ("audit",),
    "audits.result": ("Audit", "Finding"),
    "audits.swap_regret": ("swap_regret",),
    "audits.weak_learning": ("weak_learning",),
    "calibrators.auto": ("Auto",),
    "calibrators.curves.adjustments": ("Additive", "Multiplicative"),
    "calibrators.curves.estimators": ("Beta", "Histogram", "Isotonic", "Platt", "Temperature"),
    "calibrators.curves.grouped": ("Grouped",),
    "calibrators.curves.logistic": ("Logistic",),
    "calibrators.depthtwo": ("DepthTwo",),
    "calibrators.lore.estimator": ("LoRe",),
    "calibrators.matrix.estimator": ("MatrixScaling",),
    "calibrators.lsboost.estimator": ("LSBoost",),
    "calibrators.mcgrad.estimator": ("MCGrad",),
    "calibrators.mcgrad.imported": ("load_mcgrad",),
    "calibrators.model": ("Model",),
    "calibrators.patches.estimators": ("HKRR", "Multiaccuracy"),
    "calibrators.prior.estimator": ("PriorCorrection",),
    "calibrators.stopping": ("CrossValidation", "Holdout", "Validation"),
    "calibrators.wrapper": ("CalibratedClassifier", "CalibratedRegressor"),
    "data.scan": ("scan",),
    "exports": ("export",),
    "modelfile": ("load", "save"),
    "monitoring.monitor": ("Monitor",),
    "monitoring.plan": ("Plan", "plan"),
    "reports.page": ("report",),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
# What loads models and scores rows works with NumPy alone. Whatever audits, fits or decides needs these packages.
_SCORING = ("Model", "errors", "load", "metrics", "save", "simulate")
_PACKAGES = ("narwhals", "numba", "scipy", "sklearn")


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from trueup._optional import installed_version

        return installed_version()
    if name not in __all__:
        raise AttributeError(f"module 'trueup' has no attribute {name!r}")
    if name not in _SCORING:
        from trueup._optional import require_installed

        require_installed(f"trueup.{name}", *_PACKAGES)
    module = importlib.import_module(f"trueup.{_HOMES.get(name, name)}")
    found: Any = getattr(module, name) if name in _HOMES else module
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
