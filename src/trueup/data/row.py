"""A single row, a mapping of names to values, read by the rules of `trueup.data.frame` in microseconds."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.checks import LOGIT_HINT, MAX_VALUE, check_kind
from trueup.data.columns import as_float, from_array, recode
from trueup.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueup.data.schema import Feature, Task


def encoder(feature: Feature) -> Callable[[Any], float]:
    """Return a function from a value of a feature to its number or code; missing is NaN or -1."""
    codes = {level: float(code) for code, level in enumerate(feature.levels)}

    def encode_text(value: Any) -> float:
        if type(value) is str:
            return codes.get(value, -1.0)
        return -1.0 if value is None else _encode_as_column(value, feature)

    def encode_number(value: Any) -> float:
        if isinstance(value, float):  # includes np.float64
            return value
        return as_float(value) if type(value) is int else encode_date(value)

    def encode_date(value: Any) -> float:
        return math.nan if value is None else _encode_as_column(value, feature)

    return {"categorical": encode_text, "numeric": encode_number, "date": encode_date}[feature.kind]


def _encode_as_column(value: Any, feature: Feature) -> float:
    """Read a value that is not None, a text, a float or an integer as a column of one row."""
    raw = from_array([value], feature.name)
    if raw.missing()[0]:
        return -1.0 if feature.kind == "categorical" else math.nan
    check_kind(raw, feature)
    if feature.kind == "categorical":
        return float(recode(raw.categories(), feature.levels)[0])
    return float(raw.codes_or_values[0])


def check_prediction(value: Any, name: str, task: Task) -> float:
    """Return the prediction of one row; raise unless it is finite, and a probability unless the task is regression."""
    try:
        number = math.nan if isinstance(value, (str, bytes, np.ndarray, np.datetime64)) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise DataError(
            f"prediction {name!r} must be a finite number; got {value!r}", hint="every row needs the score to be corrected"
        )
    if task != "regression" and not 0.0 <= number <= 1.0:
        raise DataError(f"prediction {name!r} must be a probability in [0, 1]; got {number:g}", hint=LOGIT_HINT)
    if abs(number) > MAX_VALUE:
        raise DataError(
            f"prediction {name!r} must lie within {MAX_VALUE:g} of 0; got {number:g}", hint="measure it in a larger unit"
        )
    return number
