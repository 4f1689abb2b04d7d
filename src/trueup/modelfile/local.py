"""Neighbours in a file: the rows of the fit as points, and how features become a point or a group."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.maps.local import LocalMap, Neighbours, even_edges
from trueup.calibrators.maps.reading import are_numbers, is_whole, numbers, require
from trueup.calibrators.maps.spaces import LARGEST, Design, Groups, Space, design_sizes
from trueup.metrics.features import FeatureMap
from trueup.modelfile.cuts import pack_cuts, unpack_cuts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import AnyArray
    from trueup.calibrators.maps.spaces import Embedding
    from trueup.data.schema import Schema


ROWS = {
    "local/keys": "<i8", "local/place": "<i8", "local/points": "<f8", "local/weight": "<f8", "local/total": "<f8",
}  # fmt: skip
SPACE = {
    "space/fill": "<f8", "space/gaps": "|u1", "space/factor": "<f8", "space/center": "<f8", "space/scale": "<f8",
    "space/rotation": "<f8",
}  # fmt: skip
EDGES = {"local/edges": "<f8"}  # of bins that are not of equal width
GROUPS = {"groups/edges": "<f8", "groups/cells": "<i8"}
MOST_BINS = 4096
SMALL, LARGE = 1e-6, 1e6  # of gamma
MOST = 1e30  # features are no farther than this from 0, on the scale of their deviations
FAR = 1e140  # nor are points, in units of their mean distance, which may be tiny; nor are weights so small


def write(found: LocalMap) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the entry of the manifest, and the parts."""
    near = found.neighbours
    arrays: dict[str, AnyArray] = dict(
        zip(ROWS, (near.keys, near.place, near.points.ravel(), near.weight, near.total), strict=True)
    )
    entry: dict[str, Any] = {
        "bins": found.bins, "groups": found.groups, "dimensions": near.points.shape[1],
        "shrinkage": found.shrinkage, "shifts": found.shifts,
        "gamma": None if math.isinf(found.gamma) else found.gamma,
    }  # fmt: skip
    space, kinds = found.embedding, dict(ROWS)
    if not np.array_equal(found.edges, even_edges(found.bins)):
        entry["uneven"], arrays["local/edges"] = True, found.edges
        kinds |= EDGES
    if isinstance(space, Groups):
        entry["cuts"], edges = pack_cuts(space.cuts)
        arrays |= dict(zip(GROUPS, (edges, space.cells), strict=True))
        kinds |= GROUPS
    elif isinstance(space, Space) and space.design is not None and space.features is not None:
        design, features = space.design, space.features
        turn = np.zeros(0) if features.rotation is None else features.rotation.ravel()
        own = (design.fill, design.gaps, design.factor, features.center, features.scale, turn)
        arrays |= dict(zip(SPACE, own, strict=True))
        kinds |= SPACE
        entry["space"] = {"unit": features.unit, "turned": features.rotation is not None}
    return entry, {name: np.ascontiguousarray(arrays[name], kind).tobytes() for name, kind in kinds.items()}


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> LocalMap:
    """Make the map again; what would send the scorer outside its arrays is refused."""
    require(schema.task != "regression", "the map does not fit")
    own = GROUPS if "cuts" in found else SPACE if "space" in found else {}
    require(not ("cuts" in found and "space" in found), "it has groups and a space")
    uneven = EDGES if "uneven" in found else {}
    require(set(parts) == {*ROWS, *own, *uneven}, "it has parts that it does not speak of")
    bins, groups, d, m = (found[name] for name in ("bins", "groups", "dimensions", "shrinkage"))
    require(is_whole(bins) and 1 <= bins <= MOST_BINS, "its bins are wrong")
    edges = numbers(parts["local/edges"], EDGES["local/edges"]) if uneven else even_edges(bins)
    inside = len(edges) == bins - 1 and ((edges >= 0) & (edges < 1)).all() and (edges[1:] > edges[:-1]).all()
    require(bool(inside), "its bins are wrong")
    require(are_numbers(m) and 0 <= m <= MOST, "its shrinkage is wrong")
    gamma = math.inf if found["gamma"] is None else found["gamma"]
    require(gamma == math.inf or (are_numbers(gamma) and SMALL <= gamma <= LARGE), "its gamma is wrong")
    require(gamma < math.inf or not own, "it has features that do not count")
    space: Embedding = Space()
    if "cuts" in found:
        space = _groups(found, schema, parts)
    elif "space" in found:
        space = _space(found["space"], schema, parts, d)
    many = 1 + len(space.cells) if isinstance(space, Groups) else 1
    require(is_whole(groups) and groups == many, "its groups are wrong")
    require(is_whole(d) and d >= 1 and ("space" in found or d == 1), "its dimensions are wrong")
    shifts = found["shifts"]
    require(isinstance(shifts, bool), "its move is wrong")
    near = _neighbours(parts, bins, groups, d)
    slack = near.weight * 1e-9  # sums are rounded
    low = -near.weight if shifts else 0.0
    require(bool(((near.total >= low - slack) & (near.total <= near.weight + slack)).all()), "its rates are wrong")
    return LocalMap(space, near, edges, groups, float(gamma), float(m), shifts)


def _neighbours(parts: Mapping[str, bytes], bins: int, groups: int, d: int) -> Neighbours:
    keys, place, flat, weight, total = (numbers(parts[name], kind) for name, kind in ROWS.items())
    require(len(keys) > 0, "it has no neighbours")
    rising = bool((np.diff(keys) > 0).all())
    require(rising and keys[0] >= 0 and keys[-1] < bins * groups, "its bins do not fit its neighbours")
    whole = keys[keys % groups == 0] // groups  # every bin of a group has all rows of that bin too
    require(bool(np.isin(keys // groups, whole).all()), "its bins do not fit its neighbours")
    require(len(place) == len(weight) == len(total) and len(flat) == len(place) * d, "its neighbours are cut off")
    steps = np.diff(place, prepend=0)
    inside = len(place) > 0 and place[0] == 0 and place[-1] == len(keys) - 1
    require(bool(inside and ((steps == 0) | (steps == 1)).all()), "its bins do not fit its neighbours")
    require(bool((np.abs(flat) <= FAR).all()), "its points are no numbers")
    require(bool(((weight >= 1 / FAR) & (weight <= MOST)).all()), "its weights are wrong")
    return Neighbours(keys, place, flat.reshape(-1, d), weight, total)


def _groups(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> Groups:
    edges, cells = (numbers(parts[name], kind) for name, kind in GROUPS.items())
    require(len(cells) > 0, "the groups are wrong")
    return Groups(unpack_cuts(found["cuts"], schema, edges, cells), cells)


def _space(found: Any, schema: Schema, parts: Mapping[str, bytes], d: Any) -> Space:
    fill, gaps, factor, center, scale, flat = (numbers(parts[name], kind) for name, kind in SPACE.items())
    levels = schema.levels
    require(len(fill) == len(gaps) == len(levels) > 0 and bool((gaps <= 1).all()), "its space does not fit the features")
    categories = np.array(levels) >= 0
    require(not gaps[categories].any() and not fill[categories].any(), "its space does not fit the features")
    width = sum(design_sizes(levels, gaps))
    require(len(factor) == len(center) == len(scale) == width, "its space does not fit the features")
    require(bool((np.abs(fill) <= LARGEST).all()), "its space holds no numbers")
    require(bool(((factor >= 0) & (factor <= LARGEST)).all() and (np.abs(center) <= MOST).all()), "its space is wrong")
    require(bool((np.isfinite(scale) & (scale > 1 / MOST)).all()), "its space is wrong")
    turned, unit = found["turned"], found["unit"]
    require(isinstance(turned, bool) and are_numbers(unit) and 1 / FAR <= unit <= FAR, "its space is wrong")
    require(is_whole(d) and 1 <= d <= width and len(flat) == (width * d if turned else 0), "its dimensions are wrong")
    require(turned or d == width, "its dimensions are wrong")
    require(bool((np.abs(flat) <= 2.0).all()), "its space is no rotation")
    rotation = flat.reshape(width, d) if turned else None
    names = tuple(feature.name for feature in schema.features)
    return Space(Design(levels, fill, gaps, factor, names), FeatureMap(center, scale, rotation, float(unit)))
