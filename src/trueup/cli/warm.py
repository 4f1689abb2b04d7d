"""`trueup warm`: compile kernels into a cache directory, for images of containers and for the first user of a machine.

Without models, all kernels are compiled that audits, fits and predictions of the usual kinds of data take, by running them
on a few simulated rows.
"""

from __future__ import annotations

import os
import warnings
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import trueup as tu
from trueup.cli import console
from trueup.cli.options import MATRIX, METHODS, PRIOR
from trueup.errors import FileError
from trueup.kernels import _cache
from trueup.kernels._jit import compiling_at_once

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

    from trueup.calibrators.model import Model

    Step = tuple[str, Callable[[], Any]]

ROWS = 6000  # of simulated data
WARMED_ROWS = 3  # of a model
SCORE_ONLY = ("isotonic", "platt", "temperature", "beta", "histogram")
FEATURES = ["region", "age"]
ERROR = 3.0  # of the odds of one region, and of the others, so that every method has something to correct


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    if arguments.cache is not None:
        os.environ[_cache.VARIABLE] = str(Path(arguments.cache).absolute())
    directory = _cache.writable_directory()
    if directory is None:
        raise FileError(
            f"no cache directory can be written to: {', '.join(map(str, _cache.directories()))}",
            hint="name one with --cache, and in the environment of later processes as NUMBA_CACHE_DIR",
        )
    steps = chain.from_iterable(map(_model_steps, arguments.models)) if arguments.models else _all_steps()
    before = set(_cache.kernels_in(directory))
    with compiling_at_once(), console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        for phase, work in steps:
            progress.start(phase)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                work()
    kernels = set(_cache.kernels_in(directory))
    count, new = len(kernels), len(kernels - before)
    console.say(f"{count:,} compiled kernels in {directory}, {new:,} of them new")
    if arguments.cache is not None and not arguments.quiet:
        console.say(f"processes that use them need NUMBA_CACHE_DIR={os.environ[_cache.VARIABLE]} in their environment")
    return 0


def _model_steps(path: str) -> Iterator[Step]:
    """Yield what compiles the kernels that score the rows of a model: many, and one."""
    model = tu.load(path)
    rows = sample_rows(model)

    def score() -> None:
        model.predict(rows)
        model.predict_one({name: column[0] for name, column in rows.items()})

    yield f"compiling {path}", score


def sample_rows(model: Model) -> dict[str, Any]:
    """Return a few rows that the model can score."""
    schema = model.schema
    columns: dict[str, Any] = {name: np.full(WARMED_ROWS, 1 / max(len(schema.prediction), 2)) for name in schema.prediction}
    for feature in schema.features:
        if feature.name not in columns:
            values = {"categorical": (feature.levels or ("",))[0], "date": np.datetime64("2024-01-01"), "numeric": 1.0}
            columns[feature.name] = np.array([values[feature.kind]] * WARMED_ROWS)
    return columns


def _all_steps() -> Iterator[Step]:
    """Yield what compiles the kernels of audits, then of each method, then of decisions."""
    loans = {name: column for name, column in tu.simulate.lending(ROWS, seed=0).items() if name not in ("truth", "opened")}
    random = np.random.default_rng(0)
    odds = loans["prediction"] / (1 - loans["prediction"])
    odds = odds * np.where(loans["region"] == loans["region"][0], ERROR, 1 / ERROR)
    loans["prediction"] = odds / (1 + odds)
    weight, customer = random.uniform(0.5, 2.0, ROWS), random.integers(0, ROWS // 3, ROWS)
    amount = loans["prediction"] + random.normal(size=ROWS)
    roles = {"outcome": "outcome", "prediction": "prediction"}

    def audit(data: dict[str, Any], **settings: Any) -> None:
        result = tu.audit(data, **{**roles, "depth": 2, "min_rows": 20, **settings})
        str(result)
        tu.report(result, os.devnull) if not settings else None

    yield "compiling audits", lambda: audit(loans)
    yield "compiling audits with weights", lambda: audit({**loans, "w": weight}, weight="w", tolerance=0.02)
    yield "compiling audits of clusters", lambda: audit({**loans, "customer": customer}, cluster="customer")
    yield "compiling audits of amounts", lambda: audit({**loans, "outcome": amount}, task="regression")
    counts = {**loans, "outcome": random.poisson(loans["prediction"])}
    yield "compiling audits of counts", lambda: audit(counts, task="regression", family="poisson")
    yield "compiling audits with draws", lambda: audit(loans, adjust="max", draws=19)
    for name, method in METHODS.items():
        if name not in (MATRIX, PRIOR):
            yield f"compiling {name}", partial(_fit, getattr(tu, method), loans, name)
    yield "compiling classes", lambda: _fit_classes(random)
    yield "compiling groups", lambda: _predict(tu.Grouped(tu.Platt(), by=["region"], prediction="prediction"), loans)


def _fit(method: Any, loans: dict[str, Any], name: str) -> None:
    settings: dict[str, Any] = {} if name in (*SCORE_ONLY, "additive", "multiplicative") else {"features": FEATURES}
    _predict(method("prediction", **settings), loans)


def _predict(estimator: Any, loans: dict[str, Any]) -> None:
    fix = estimator.fit({name: column for name, column in loans.items() if name != "outcome"}, loans["outcome"])
    rows = sample_rows(fix.model_)
    fix.predict(rows)
    fix.predict_one({name: column[0] for name, column in rows.items()})


def _fit_classes(random: Any) -> None:
    scores = random.dirichlet(np.ones(3), ROWS)
    names = ["a", "b", "c"]
    data = {**dict(zip(names, scores.T, strict=True)), "age": random.normal(size=ROWS)}
    outcome = np.array(names)[np.where(random.random(ROWS) < 0.5, scores.argmax(axis=1), random.integers(0, 3, ROWS))]
    for estimator in (tu.MCGrad(names, ["age"]), tu.Temperature(names), tu.MatrixScaling(names)):
        fix = estimator.fit(data, outcome)
        fix.predict({name: column[:WARMED_ROWS] for name, column in data.items()})
