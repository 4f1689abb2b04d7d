"""The calibrators by the names that `trueup fit --method` takes, and the recipe that a command asks for."""

from __future__ import annotations

import importlib
import inspect
from typing import TYPE_CHECKING, Any

from trueup.errors import ArgumentError

if TYPE_CHECKING:
    import argparse

    from trueup.data.schema import Schema

CLASSICS = ("isotonic", "platt", "temperature", "beta", "histogram")
LOCAL = "lore"  # reads features, or with --by the group of a row
# Name -> class; importing the package of each costs seconds, so it is done when one is asked for.
METHODS = {
    "auto": "Auto", "mcgrad": "MCGrad", "lsboost": "LSBoost", "depthtwo": "DepthTwo", "hkrr": "HKRR",
    "multiaccuracy": "Multiaccuracy", "isotonic": "Isotonic", "platt": "Platt", "temperature": "Temperature",
    "beta": "Beta", "histogram": "Histogram", "lore": "LoRe",
}  # fmt: skip


def feature_names(arguments: argparse.Namespace) -> list[str] | None:
    """Say which columns the method reads beside the prediction; None is every one without a role."""
    method = arguments.method
    if method not in (*CLASSICS, *([LOCAL] if arguments.by is not None else [])):
        if arguments.by is not None:
            raise ArgumentError(
                f"--by is for the methods {', '.join((*CLASSICS, LOCAL))}; {method} finds segments by itself",
                hint="name the columns with --features",
            )
        found: list[str] | None = arguments.features
        return found
    if arguments.features is not None and method == LOCAL:
        raise ArgumentError(
            "lore takes --features or --by, not both",
            hint="--features are what makes rows similar; with --by rows are similar that are of one group",
        )
    if arguments.features is not None:
        raise ArgumentError(
            f"{method} reads the prediction alone: --features is for other methods",
            hint="name the columns with --by to correct each group by itself, or use --method mcgrad",
        )
    if arguments.by is not None and not any(names.strip(" ,") for names in arguments.by):
        raise ArgumentError("--by names no column", hint="write it as --by region,product, or leave it out")
    return list(arguments.by or [])


def make_recipe(arguments: argparse.Namespace, schema: Schema, validation: Any = None) -> Any:
    """Make the calibrator that a command asks for, with the roles of the rows that were read.

    ``validation`` are rows of their own that judge it.
    """
    from trueup.cli.names import split_names  # with NumPy, which `trueup --help` does without

    method = arguments.method
    names = [feature.name for feature in schema.features]
    given = {
        "prediction": list(schema.prediction) if len(schema.prediction) > 1 else schema.prediction[0],
        "features": names, "by": names, "task": arguments.task, "unlabelled": arguments.unlabelled,
        "categorical": [name for name in split_names(arguments.categorical or []) if name in names],
        "classes": list(schema.classes) or None, "random_state": arguments.seed, "threads": arguments.threads,
    }  # fmt: skip
    made = getattr(importlib.import_module("trueup"), METHODS[method])
    if arguments.by is not None and method == LOCAL:
        given["embedding"] = "groups"
    elif arguments.by is not None:
        from trueup.calibrators.curves.grouped import Grouped

        given["calibrator"], made = made(), Grouped
    if validation is not None:
        given["stopping"] = validation
    elif arguments.judge:
        from trueup.calibrators.stopping import CrossValidation

        given["stopping"] = CrossValidation()
    known = inspect.signature(made).parameters
    told = (("depth", arguments.depth), ("monotone", arguments.monotone or None), ("resume", arguments.resume))
    for option, value in told:
        if value is not None and option not in known:
            takers = [name for name, kind in METHODS.items() if option in parameters_of(kind)]
            raise ArgumentError(f"--{option} is not for {method}", hint=f"it is for {', '.join(takers)}")
        if value is not None:
            given[option] = value
    if schema.classes and "classes" not in known:
        takers = [name for name, kind in METHODS.items() if "classes" in parameters_of(kind)]
        raise ArgumentError(f"{method} corrects one prediction column", hint=f"several classes are for {', '.join(takers)}")
    return made(**{name: value for name, value in given.items() if name in known})


def parameters_of(kind: str) -> Any:
    """Give the parameters that a calibrator takes."""
    return inspect.signature(getattr(importlib.import_module("trueup"), kind)).parameters
