"""Curves of groups in a file: labels in the manifest; all curves, edges and shares in a part for each array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.maps.grouped import GroupMap
from trueup.data.groups import Cut
from trueup.modelfile.checking import are_numbers, is_whole, numbers, require, texts
from trueup.modelfile.scores import pack_curves, unpack_curves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from trueup.data.schema import Feature, Schema

__all__ = ["read", "write"]

KINDS = {"groups/edges": "<f8", "groups/cells": "<i8", "groups/share": "<f8"}
MOST_CELLS = 2**62


def write(found: GroupMap) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the entry of the manifest, and the parts."""
    entry, parts = pack_curves(found.curves)
    entry["shrinkage"] = found.shrinkage if found.shrinkage < math.inf else None
    # A category is cut by its levels, which the schema has.
    entry["cuts"] = [
        None if cut.edges is None else {"edges": len(cut.edges), "labels": list(cut.labels)} for cut in found.cuts
    ]
    edges = np.concatenate([np.zeros(0), *(cut.edges for cut in found.cuts if cut.edges is not None)])
    arrays = (edges, found.cells, found.share)
    own = {name: np.ascontiguousarray(a, kind).tobytes() for (name, kind), a in zip(KINDS.items(), arrays, strict=True)}
    return entry, {**parts, **own}


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> GroupMap:
    """Make the map again; what does not belong together is refused."""
    curves, used = unpack_curves(found, schema, parts)
    require(set(parts) == used | set(KINDS), "it has parts that it does not speak of")
    edges, cells, share = (numbers(parts[name], kind) for name, kind in KINDS.items())
    cuts = _cuts(found["cuts"], schema, edges)
    most = math.prod(len(cut.labels) for cut in cuts)
    require(most <= MOST_CELLS, "there are too many groups to be numbered")
    require(bool(((cells >= 0) & (cells < most)).all() and (cells[1:] > cells[:-1]).all()), "the groups are wrong")
    require(len(cells) + 1 == len(share) == curves.groups, "groups and curves do not fit")
    require(bool(((share >= 0) & (share <= 1)).all()) and share[0] == 0, "a share is wrong")
    k = found["shrinkage"]
    require(k is None or (are_numbers(k) and k >= 0), "the shrinkage is wrong")
    return GroupMap(curves, cuts, cells, share, math.inf if k is None else float(k))


def _cuts(found: Any, schema: Schema, edges: NDArray[np.float64]) -> tuple[Cut, ...]:
    """Cut the edges off their part again, a run for each number or date."""
    require(isinstance(found, list) and len(found) == len(schema.features), "the columns of groups are wrong")
    cuts, begin = [], 0
    for feature, told in zip(schema.features, found, strict=True):
        require((told is None) == (feature.kind == "categorical"), "a column is cut as what it is not")
        cut, begin = _cut(feature, told, edges, begin)
        cuts.append(cut)
    require(begin == len(edges), "it has edges that no column speaks of")
    return tuple(cuts)


def _cut(feature: Feature, told: Any, edges: NDArray[np.float64], begin: int) -> tuple[Cut, int]:
    if told is None:
        levels = (f"{feature.name}={level}" for level in feature.levels)
        return Cut(feature.name, None, (*levels, f"{feature.name} is missing")), begin
    labels, many = texts(told["labels"], "labels"), told["edges"]
    require(is_whole(many) and 0 <= many <= len(edges) - begin, "a column has more edges than are stored")
    require(len(labels) == many + 2, "labels and edges do not fit")
    own = edges[begin : begin + many]
    require(bool(np.isfinite(own).all() and (np.diff(own) > 0).all()), "edges are out of order")
    return Cut(feature.name, own, labels), begin + many
