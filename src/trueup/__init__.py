"""True up any model: probabilities that are right on every segment.

>>> import trueup as tu
>>> tu.audit  # doctest: +ELLIPSIS
<function audit at ...>
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup import decisions, figures, metrics, simulate
    from trueup.audits.audit import Audit, Finding, audit
    from trueup.audits.swap_regret import swap_regret
    from trueup.calibrators.auto import Auto
    from trueup.calibrators.curves.estimators import Beta, Histogram, Isotonic, Platt, Temperature
    from trueup.calibrators.curves.grouped import Grouped
    from trueup.calibrators.depthtwo import DepthTwo
    from trueup.calibrators.lore.estimator import LoRe
    from trueup.calibrators.lsboost.estimator import LSBoost
    from trueup.calibrators.mcgrad.estimator import MCGrad
    from trueup.calibrators.model import Model
    from trueup.calibrators.patches.estimators import HKRR, Multiaccuracy
    from trueup.calibrators.stopping import CrossValidation, Holdout, Validation
    from trueup.calibrators.wrapper import CalibratedClassifier, CalibratedRegressor
    from trueup.data.scan import scan
    from trueup.modelfile import load, save
    from trueup.reports.page import report

__all__ = [
    "HKRR",
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
    "MCGrad",
    "Model",
    "Multiaccuracy",
    "Platt",
    "Temperature",
    "Validation",
    "audit",
    "decisions",
    "figures",
    "load",
    "metrics",
    "report",
    "save",
    "scan",
    "simulate",
    "swap_regret",
]

# Public name -> where it lives. Nothing is imported before it is asked for: `import trueup` costs next to nothing.
_HOMES = {
    "Audit": "trueup.audits.audit",
    "Auto": "trueup.calibrators.auto",
    "Beta": "trueup.calibrators.curves.estimators",
    "CalibratedClassifier": "trueup.calibrators.wrapper",
    "CalibratedRegressor": "trueup.calibrators.wrapper",
    "CrossValidation": "trueup.calibrators.stopping",
    "DepthTwo": "trueup.calibrators.depthtwo",
    "Finding": "trueup.audits.audit",
    "Grouped": "trueup.calibrators.curves.grouped",
    "HKRR": "trueup.calibrators.patches.estimators",
    "Histogram": "trueup.calibrators.curves.estimators",
    "Holdout": "trueup.calibrators.stopping",
    "Isotonic": "trueup.calibrators.curves.estimators",
    "LSBoost": "trueup.calibrators.lsboost.estimator",
    "LoRe": "trueup.calibrators.lore.estimator",
    "MCGrad": "trueup.calibrators.mcgrad.estimator",
    "Model": "trueup.calibrators.model",
    "Multiaccuracy": "trueup.calibrators.patches.estimators",
    "Platt": "trueup.calibrators.curves.estimators",
    "Temperature": "trueup.calibrators.curves.estimators",
    "Validation": "trueup.calibrators.stopping",
    "audit": "trueup.audits.audit",
    "decisions": "",
    "figures": "",
    "load": "trueup.modelfile",
    "metrics": "",
    "report": "trueup.reports.page",
    "save": "trueup.modelfile",
    "scan": "trueup.data.scan",
    "simulate": "",
    "swap_regret": "trueup.audits.swap_regret",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("trueup")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trueup' has no attribute {name!r}")
    found: Any = getattr(importlib.import_module(home), name) if home else importlib.import_module(f"trueup.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
