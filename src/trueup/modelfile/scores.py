"""Curves of the score in a file: their form in the manifest, coefficients or knots in a part for each array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.maps.reading import is_whole, numbers, require
from trueup.calibrators.maps.scores import FORMS, Curves, ScoreMap

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import FloatArray, IntArray
    from trueup.data.schema import Schema

SMOOTH = ("line", "logit", "softmax")
LARGEST = 1e200  # no score of ours, of 1e100 at most, times such a coefficient overflows
SCORES = 1e150  # more than any score or outcome of ours


def pack_curves(curves: Curves) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the form of the curves, and their arrays as parts."""
    kinds = {"coefficients": "<f8"} if curves.form in SMOOTH else {"at": "<i8", "x": "<f8", "value": "<f8"}
    parts = {f"curves/{name}": np.ascontiguousarray(getattr(curves, name), kind).tobytes() for name, kind in kinds.items()}
    return {"form": curves.form, "groups": curves.groups}, parts


def unpack_curves(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> tuple[Curves, set[str]]:
    """Make the curves again, and say which parts they came from."""
    form, groups, outputs = found["form"], found["groups"], len(schema.prediction)
    allowed = {"binary": ("logit",), "regression": ("line",), "multiclass": ("logit", "softmax")}[schema.task]
    require(
        isinstance(form, str) and form in FORMS and form in (*allowed, "knots", "steps"), "the form of a curve is wrong"
    )
    require(is_whole(groups) and groups >= 1 and outputs >= 1, "the number of groups is wrong")
    many = groups if form == "softmax" else groups * outputs
    if form in SMOOTH:
        flat = numbers(parts["curves/coefficients"], "<f8")
        require(len(flat) == 3 * many, "curves have other coefficients than they should")
        require(bool((np.abs(flat) <= LARGEST).all()), "a coefficient is wrong")
        if form == "softmax":
            require(bool((flat.reshape(-1, 3)[:, 0] > 0).all()), "a temperature is wrong")
        return Curves.of_coefficients(form, groups, outputs, flat.reshape(-1, 3)), {"curves/coefficients"}
    at = numbers(parts["curves/at"], "<i8")
    x, value = (numbers(parts[f"curves/{name}"], "<f8") for name in ("x", "value"))
    require(len(at) == many + 1 and at[0] == 0 and at[-1] == len(x) == len(value), "knots and curves do not fit")
    require(bool((np.diff(at) >= 1).all() and (np.diff(at) <= len(x)).all()), "a curve has no knots")
    _check_pieces(form, schema, at, x, value)
    return Curves(form, groups, outputs, np.zeros((0, 3)), at, x, value), {
        f"curves/{name}" for name in ("at", "x", "value")
    }


def _check_pieces(form: str, schema: Schema, at: IntArray, x: FloatArray, value: FloatArray) -> None:
    """Refuse knots out of order, and values that are none."""
    require(bool((np.abs(x) <= SCORES).all() and (np.abs(value) <= SCORES).all()), "a knot holds no number")
    inside = np.ones(max(len(x) - 1, 0), bool)
    inside[at[1:-1] - 1] = False  # from the last knot of a curve to the first of the next
    require(bool((np.diff(x)[inside] > 0).all()), "knots are out of order")
    if form == "knots":
        require(bool((np.diff(value)[inside] >= 0).all()), "a curve falls")
    if schema.task != "regression":
        require(bool(((value >= 0) & (value <= 1)).all()), "a value is no probability")


def write(found: ScoreMap) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the entry of the manifest, and the parts."""
    return pack_curves(found.curves)


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> ScoreMap:
    """Make the map again; what does not belong together is refused."""
    curves, used = unpack_curves(found, schema, parts)
    require(set(parts) == used, "it has parts that it does not speak of")
    require(curves.groups == 1, "a map without groups has several")
    return ScoreMap(curves)
