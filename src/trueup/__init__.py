"""True up any model: probabilities that are right on every segment.

>>> import trueup as tu
>>> tu.audit  # doctest: +ELLIPSIS
<function audit at ...>
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trueup import metrics
    from trueup.audits.result import Audit, Finding
    from trueup.audits.run import audit
    from trueup.calibrators.boosting import MCGrad
    from trueup.calibrators.model import Model
    from trueup.calibrators.rounds import CrossValidation, Holdout, Validation
    from trueup.data import simulate
    from trueup.modelfile import load, save
    from trueup.reports.page import report

__all__ = [
    "Audit",
    "CrossValidation",
    "Finding",
    "Holdout",
    "MCGrad",
    "Model",
    "Validation",
    "audit",
    "load",
    "metrics",
    "report",
    "save",
    "simulate",
]

# Public name -> where it lives. Nothing is imported before it is asked for: `import trueup` costs next to nothing.
_HOMES = {
    "Audit": "trueup.audits.result",
    "CrossValidation": "trueup.calibrators.rounds",
    "Finding": "trueup.audits.result",
    "Holdout": "trueup.calibrators.rounds",
    "MCGrad": "trueup.calibrators.boosting",
    "Model": "trueup.calibrators.model",
    "Validation": "trueup.calibrators.rounds",
    "audit": "trueup.audits.run",
    "load": "trueup.modelfile",
    "metrics": "",
    "report": "trueup.reports.page",
    "save": "trueup.modelfile",
    "simulate": "trueup.data",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("trueup")
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'trueup' has no attribute {name!r}")
    if name in ("metrics", "simulate"):
        found: Any = importlib.import_module(f"{home or 'trueup'}.{name}")
    else:
        found = getattr(importlib.import_module(home), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
