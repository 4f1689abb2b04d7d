"""The calibrators by the names of `trueup fit --method`. Imports nothing heavy, because the help lists the methods."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from trueup.errors import ArgumentError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from trueup.data.table import Schema

CURVES = ("isotonic", "platt", "temperature", "beta", "histogram")
LORE = "lore"  # uses features or, with --by, the group of a row
METHODS = {
    "auto": "Auto", "mcgrad": "MCGrad", "lsboost": "LSBoost", "depthtwo": "DepthTwo", "hkrr": "HKRR",
    "multiaccuracy": "Multiaccuracy", "isotonic": "Isotonic", "platt": "Platt", "temperature": "Temperature",
    "beta": "Beta", "histogram": "Histogram", "lore": "LoRe",
}  # fmt: skip


def find_class(method: str) -> Any:
    """Import the calibrator class of a method, which takes a second for some."""
    return getattr(importlib.import_module("trueup"), METHODS[method])


def check_supports(method: str, parameter: str, message: str) -> None:
    """Raise with this message, and the methods that have the parameter, unless the method has it."""
    if parameter not in _parameters(find_class(method)):
        methods = [name for name in METHODS if parameter in _parameters(find_class(name))]
        raise ArgumentError(message, hint=f"supported by {', '.join(methods)}")


def _parameters(calibrator: Any) -> Mapping[str, Any]:
    return inspect.signature(calibrator).parameters


def feature_lists(arguments: argparse.Namespace) -> list[str] | None:
    """Return the lists of columns that the method reads besides the prediction; None means all without a role."""
    method, by, features = arguments.method, arguments.by, arguments.features
    if method not in CURVES and (method != LORE or by is None):
        if by is not None:
            raise ArgumentError(
                f"--by is for the methods {', '.join((*CURVES, LORE))}; {method} finds segments itself",
                hint="name the columns with --features",
            )
        return None if features is None else list(features)
    if features is not None and method == LORE:
        raise ArgumentError(
            "--features and --by cannot be combined with lore",
            hint="--features define similarity; with --by, rows of the same group are similar",
        )
    if features is not None:
        raise ArgumentError(
            f"--features is not for {method}, which reads the prediction alone",
            hint="fit one curve per group with --by, or use --method mcgrad",
        )
    return list(by or [])


def make_calibrator(arguments: argparse.Namespace, schema: Schema, validation: Any = None) -> Any:
    """Return the calibrator of a command, with the roles of the rows; ``validation`` is its stopping rule, if given."""
    from trueup.cli.io import split_names  # imports NumPy

    method = arguments.method
    names = [feature.name for feature in schema.features]
    settings: dict[str, Any] = {
        "prediction": list(schema.prediction) if len(schema.prediction) > 1 else schema.prediction[0],
        "features": names,
        "by": names,
        "task": arguments.task,
        "unlabelled": arguments.unlabelled,
        "categorical": [name for name in split_names(arguments.categorical or []) if name in names],
        "classes": list(schema.classes) or None,
        "random_state": arguments.seed,
        "threads": arguments.threads,
    }
    calibrator = find_class(method)
    if arguments.by is not None and method == LORE:
        settings["embedding"] = "groups"
    elif arguments.by is not None:
        from trueup.calibrators.curves.grouped import Grouped

        settings["calibrator"], calibrator = calibrator(), Grouped
    if validation is not None:
        settings["stopping"] = validation
    elif arguments.cross_validate:
        from trueup.calibrators.stopping import CrossValidation

        settings["stopping"] = CrossValidation()
    known = _parameters(calibrator)
    optional = {"depth": arguments.depth, "monotone": arguments.monotone or None, "resume": arguments.resume}
    for parameter, value in optional.items():
        if value is not None:
            if parameter not in known:
                check_supports(method, parameter, f"--{parameter} is not for {method}")
            settings[parameter] = value
    if schema.classes and "classes" not in known:
        check_supports(method, "classes", f"{method} corrects one prediction column; got several classes")
    return calibrator(**{name: value for name, value in settings.items() if name in known})
