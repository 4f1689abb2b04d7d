"""Samples that kept different shares of positive and negative rows, and the weights that undo this."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_number
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.data.table import Table

MIN_RATE = 1e-9
SCORE_BINS = 20  # within which the weights of both outcomes are compared
MIN_RATIO = 1.1  # of two rates, below which weights cannot be recognised as those of the sample
MAX_DEVIATION, MAX_SIGMAS, MIN_SIGMAS = 0.25, 3.0, 5.0  # of the logarithm of a ratio, relative or in standard errors
EXAMPLE = 'write it as sampling={"negative": 0.1}, or --sampling 1,0.1 on the command line'


class Sampling(NamedTuple):
    """Shares of the rows with outcome 1 and with outcome 0 that were kept in a sample; 1 for one that is not named."""

    positive: float
    negative: float

    @classmethod
    def parse(cls, given: Any) -> Sampling:
        """Return the shares of a mapping with the keys positive, negative or both; raise unless they are valid."""
        rates = dict(given) if hasattr(given, "keys") else {}
        if not rates or set(rates) - set(cls._fields):
            problem = f"sampling must map positive, negative or both to the share of the rows that was kept; got {given!r}"
            raise ArgumentError(problem, EXAMPLE, parameter="sampling")
        rates = {name: rates.get(name, 1.0) for name in cls._fields}
        for name, rate in rates.items():
            if isinstance(rate, (int, float)) and not isinstance(rate, bool) and 1 < rate < math.inf:
                problem = f"sampling[{name!r}] must be the share of the rows that was kept, at most 1; got {rate!r}"
                raise ArgumentError(problem, f"write {1 / rate:.3g} if one in {rate:g} was kept", parameter="sampling")
            check_number(f"sampling[{name!r}]", rate, MIN_RATE, 1)
        return cls(float(rates["positive"]), float(rates["negative"]))

    @property
    def ratio(self) -> float:
        """How many times as much rows of outcome 1 weigh as rows of outcome 0."""
        return self.negative / self.positive

    def shares(self, y: FloatArray) -> FloatArray:
        """Return the share of rows with each outcome that was kept."""
        return np.where(y == 1, self.positive, self.negative)

    def __str__(self) -> str:
        return f"{100 * self.positive:g}% of the rows with outcome 1 and {100 * self.negative:g}% of those with outcome 0"


def reject_sampling(given: Any) -> None:
    """Raise if the shares of a sample are given for rows that are not in memory."""
    if given is not None:
        hint = "divide 1 (or the weights) by the share that was kept, in a column, and name it: {weight}"
        example = {"weight": "w"}
        raise ArgumentError("sampling needs rows in memory", hint, parameter="sampling", settings=example)


def weight_by_sampling(table: Table, given: Any) -> Table:
    """Return the rows with their weights divided by the share of the rows with their outcome that was kept.

    Raise if outcomes are not 0 or 1, or if the weights already differ between outcomes by about the ratio of the shares.
    """
    sampling = Sampling.parse(given)
    if table.outcome is None:
        raise ArgumentError("sampling needs an outcome", "pass the outcome, or leave sampling out", parameter="sampling")
    binary = table.schema.task == "binary" and table.prediction.ndim == 1 and np.isin(table.y, (0, 1)).all()
    if not binary:
        raise ArgumentError("sampling needs outcomes that are 0 or 1", "pass weights instead", parameter="sampling")
    if table.weight is not None:
        _check_not_contained(table.weight, table, sampling)
    shares = sampling.shares(table.y)
    weight = 1.0 / shares if table.weight is None else table.weight / shares
    return replace(table, weight=weight, sampling=sampling)


def _check_not_contained(weight: FloatArray, table: Table, sampling: Sampling) -> None:
    """Raise if rows of outcome 1 already weigh about ``sampling.ratio`` times as much as rows of outcome 0."""
    expected = math.log(sampling.ratio)
    if abs(expected) < math.log(MIN_RATIO):
        return
    slope, error = _outcome_slope(np.log(weight), table)
    tolerated = max(MAX_DEVIATION * abs(expected), MAX_SIGMAS * error)
    if slope / expected <= 0.5 or abs(slope - expected) > tolerated or abs(slope) < MIN_SIGMAS * error:
        return
    heavy, light = (1, 0) if slope > 0 else (0, 1)
    column = "" if table.schema.weight is None or "weight" in table.arrays else f" in column {table.schema.weight!r}"
    raise ArgumentError(
        f"sampling would be counted twice: by the weights{column}, rows of outcome {heavy} already weigh "
        f"{math.exp(abs(slope)):.3g} times as much as rows of outcome {light} with equal scores; sampling would multiply "
        f"that by {math.exp(abs(expected)):.3g}",
        "leave sampling out if the weights undo it; otherwise pass their product with 1 / share as the weight, alone",
        parameter="sampling",
    )


def _outcome_slope(logs: FloatArray, table: Table) -> tuple[float, float]:
    """Return the coefficient of the outcome in a regression of ``logs`` on it within score bins, and its standard error."""
    p = table.prediction
    bins = np.searchsorted(np.quantile(p, np.arange(1, SCORE_BINS) / SCORE_BINS), p, side="right")
    outcome, centred = (_centre(column, bins) for column in (table.y, logs))
    squares = float(outcome @ outcome)
    if not squares:
        return 0.0, 0.0
    slope = float(outcome @ centred) / squares
    residual = centred - slope * outcome
    return slope, math.sqrt(float((outcome * residual) @ (outcome * residual))) / squares


def _centre(column: FloatArray, bins: IntArray) -> FloatArray:
    """Return a column less its mean within each bin."""
    rows = np.maximum(np.bincount(bins, minlength=SCORE_BINS), 1)
    return np.asarray(column - (np.bincount(bins, column, SCORE_BINS) / rows)[bins])
