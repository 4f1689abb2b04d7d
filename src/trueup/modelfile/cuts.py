"""Columns cut into groups, in a file: labels in the manifest, all edges in one array."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.maps.reading import is_whole, require, texts
from trueup.data.bins import ColumnBinner

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.data.schema import Feature, Schema


MOST_CELLS = 2**62


def pack_cuts(cuts: Sequence[ColumnBinner]) -> tuple[list[Any], FloatArray]:
    """Give what the manifest says of each column, and the edges of all; a category is cut by its levels (see schema)."""
    told = [None if cut.edges is None else {"edges": len(cut.edges), "labels": list(cut.labels)} for cut in cuts]
    return told, np.concatenate([np.zeros(0), *(cut.edges for cut in cuts if cut.edges is not None)])


def unpack_cuts(found: Any, schema: Schema, edges: FloatArray, cells: IntArray) -> tuple[ColumnBinner, ...]:
    """Cut the edges off again, a run for each number or date; the numbers of combinations must be theirs, and rise."""
    require(isinstance(found, list) and len(found) == len(schema.features), "the columns of groups are wrong")
    cuts, begin = [], 0
    for feature, told in zip(schema.features, found, strict=True):
        require((told is None) == (feature.kind == "categorical"), "a column is cut as what it is not")
        cut, begin = _cut(feature, told, edges, begin)
        cuts.append(cut)
    require(begin == len(edges), "it has edges that no column speaks of")
    most = math.prod(len(cut.labels) for cut in cuts)
    require(most <= MOST_CELLS, "there are too many groups to be numbered")
    require(bool(((cells >= 0) & (cells < most)).all() and (cells[1:] > cells[:-1]).all()), "the groups are wrong")
    return tuple(cuts)


def _cut(feature: Feature, told: Any, edges: FloatArray, begin: int) -> tuple[ColumnBinner, int]:
    if told is None:
        levels = (f"{feature.name}={level}" for level in feature.levels)
        return ColumnBinner(feature.name, None, (*levels, f"{feature.name} is missing")), begin
    labels, many = texts(told["labels"], "labels"), told["edges"]
    require(is_whole(many) and 0 <= many <= len(edges) - begin, "a column has more edges than are stored")
    require(len(labels) == many + 2, "labels and edges do not fit")
    own = edges[begin : begin + many]
    require(bool(np.isfinite(own).all() and (np.diff(own) > 0).all()), "edges are out of order")
    return ColumnBinner(feature.name, own, labels), begin + many
