"""Curves of groups in a file: labels in the manifest; all curves, edges and shares in a part for each array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.maps.grouped import GroupMap
from trueup.calibrators.maps.reading import are_numbers, numbers, require
from trueup.modelfile.cuts import pack_cuts, unpack_cuts
from trueup.modelfile.scores import pack_curves, unpack_curves

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup.data.schema import Schema

KINDS = {"groups/edges": "<f8", "groups/cells": "<i8", "groups/share": "<f8"}


def write(found: GroupMap) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the entry of the manifest, and the parts."""
    entry, parts = pack_curves(found.curves)
    entry["shrinkage"] = found.shrinkage if found.shrinkage < math.inf else None
    entry["cuts"], edges = pack_cuts(found.cuts)
    arrays = (edges, found.cells, found.share)
    own = {name: np.ascontiguousarray(a, kind).tobytes() for (name, kind), a in zip(KINDS.items(), arrays, strict=True)}
    return entry, {**parts, **own}


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> GroupMap:
    """Make the map again; what does not belong together is refused."""
    curves, used = unpack_curves(found, schema, parts)
    require(set(parts) == used | set(KINDS), "it has parts that it does not speak of")
    edges, cells, share = (numbers(parts[name], kind) for name, kind in KINDS.items())
    cuts = unpack_cuts(found["cuts"], schema, edges, cells)
    require(len(cells) + 1 == len(share) == curves.groups, "groups and curves do not fit")
    require(bool(((share >= 0) & (share <= 1)).all()) and share[0] == 0, "a share is wrong")
    k = found["shrinkage"]
    require(k is None or (are_numbers(k) and k >= 0), "the shrinkage is wrong")
    return GroupMap(curves, cuts, cells, share, math.inf if k is None else float(k))
