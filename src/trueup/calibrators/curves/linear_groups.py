"""The map of Grouped around Logistic: a linear map per group, shrunk towards the pooled one; how it is stored."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.curves.linear import LinearMap
from trueup.calibrators.groups import GroupIndex
from trueup.calibrators.model import Map, are_finite, is_integer, pack_arrays, require, unpack_arrays
from trueup.calibrators.row_explanation import Contribution, EffectSums, RowExplanation, explain_change
from trueup.calibrators.stopping import apply_link

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.data.table import Schema
    from trueup.kernels.threads import Workers

DTYPES = {"groups/edges": "<f8", "groups/cells": "<i8", "groups/share": "<f8"}


@dataclass(frozen=True, eq=False)
class LinearGroups(Map):
    """Linear maps: a pooled one (group 0) and one per group.

    The corrected score of a row is ``share`` times the map of its group plus ``1 - share`` times the pooled map.
    """

    kind = "linear groups"

    maps: tuple[LinearMap, ...]
    index: GroupIndex
    grouping: tuple[int, ...]  # positions in the schema of the columns that form groups
    features: tuple[int, ...]  # positions of the features of the maps
    share: FloatArray  # the weight of each group's own map, from 0 to 1; the first, of the pooled map, is 0
    shrinkage: float = math.inf  # the number of rows that the pooled map counts for in each group

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return corrected predictions, shape (n,); ``columns`` are the features in the order of the schema."""
        given = list(columns)
        own = [given[position] for position in self.features]
        group = self.index.groups_of([given[position] for position in self.grouping], len(prediction))
        after = self.maps[0].apply(own, prediction, workers)
        order = np.argsort(group, kind="stable")
        ends = np.searchsorted(group[order], np.arange(len(self.maps) + 1))
        for number in np.unique(group[group > 0]).tolist():
            rows = order[ends[number] : ends[number + 1]]
            fitted = self.maps[number].apply([column[rows] for column in own], prediction[rows], workers)
            after[rows] = self._mix(number, fitted, after[rows])
        return after

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return the corrected prediction of one row, given as codes and numbers in the order of the schema."""
        own, number = self._own_values(row), self._group_of(row)
        pooled = self.maps[0].apply_one(own, prediction)
        return self._mix(number, self.maps[number].apply_one(own, prediction), pooled) if number else pooled

    def _mix(self, number: int, own: FloatArray, pooled: FloatArray) -> FloatArray:
        share = float(self.share[number])
        return share * own + (1.0 - share) * pooled

    def _own_values(self, row: Sequence[float]) -> list[float]:
        return [row[position] for position in self.features]

    def _group_of(self, row: Sequence[float]) -> int:
        return self.index.group_of([row[position] for position in self.grouping])

    def describe(self) -> str:
        """Return as text the numbers of maps and of features."""
        count, features = len(self.index), len(self.features)
        groups = f"a pooled regression and {count:,} group regression{'' if count == 1 else 's'}"
        return f"{groups} on the logit and {features:,} feature{'' if features == 1 else 's'}"

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return each column alone, and each feature within the columns that form groups."""
        single = sorted({*self.grouping, *self.features})
        pairs = {tuple(sorted({one, other})) for one in self.grouping for other in single if one != other}
        return [*((column,) for column in single), *sorted(pairs)]

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one prediction by the terms of the pooled map, and by the map of its group."""
        number, own = self._group_of(row), self._own_values(row)
        pooled = self.maps[0].explain_one(_restricted(schema, self.features), own, prediction)
        after, contributions = self.apply_one(list(row), list(prediction)), list(pooled.contributions)
        change, sums = sum(term.change for term in contributions), EffectSums(schema, row, prediction)
        effects = [self.maps[0].effect(at, value) for at, value in enumerate(own)]
        sums.add((), change - sum(effects))
        for position, effect in zip(self.features, effects, strict=True):
            sums.add((position,), effect)
        if number:
            middle = self.maps[0].apply_one(own, list(prediction))
            start, end = (float(apply_link(scores, "logit")[0, 0]) for scores in (middle, after))
            text = f"{self.index.name_of(number)} (weight of its own regression {self.share[number]:.3g})"
            contributions.append(Contribution(text, end - start))
            sums.add(self.grouping, end - start)
            change += end - start
        return explain_change("logit", prediction, after, contributions, sums, [change])

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        packed = [fitted.pack() for fitted in self.maps]
        cuts, edges = self.index.pack()
        entry = {
            "maps": [stored for stored, _ in packed], "cuts": cuts, "grouping": list(self.grouping),
            "features": list(self.features), "shrinkage": self.shrinkage if self.shrinkage < math.inf else None,
        }  # fmt: skip
        names = list(packed[0][1])
        blobs = {name: b"".join(own[name] for _, own in packed) for name in names}
        return entry, blobs | pack_arrays(DTYPES, edges, self.index.cells, self.share)

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> LinearGroups:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        stored, grouping, features = entry["maps"], entry["grouping"], entry["features"]
        for positions in (grouping, features):
            known = isinstance(positions, list) and all(is_integer(at) and 0 <= at < len(schema.levels) for at in positions)
            require(known and sorted(set(positions)) == sorted(positions), "the columns of groups are invalid")
        require(isinstance(stored, list) and len(stored) >= 1, "there is no regression")
        own = {name: blob for name, blob in blobs.items() if name not in DTYPES}
        require(len(blobs) - len(own) == len(DTYPES), "it has arrays that the manifest does not list")
        whole = all(len(blob) % (8 * len(stored)) == 0 for blob in own.values())
        require(whole, "the number of effects does not fit the groups")
        size, within = {name: len(blob) // len(stored) for name, blob in own.items()}, _restricted(schema, features)
        maps = tuple(
            LinearMap.unpack(one, within, {name: own[name][at * size[name] : (at + 1) * size[name]] for name in own})
            for at, one in enumerate(stored)
        )
        edges, cells, share = unpack_arrays(DTYPES, {name: blobs[name] for name in DTYPES})
        index = GroupIndex.unpack(entry["cuts"], _restricted(schema, grouping), edges, cells)
        require(len(cells) + 1 == len(share) == len(maps), "the number of groups does not fit the regressions")
        require(bool(((share >= 0) & (share <= 1)).all()) and share[0] == 0, "a share is not between 0 and 1")
        shrinkage = entry["shrinkage"]
        require(shrinkage is None or (are_finite(shrinkage) and shrinkage >= 0), "the shrinkage is invalid")
        limit = math.inf if shrinkage is None else float(shrinkage)
        return cls(maps, index, tuple(grouping), tuple(features), share, limit)


def _restricted(schema: Schema, positions: Sequence[int]) -> Schema:
    """Return a schema with only the features at these positions."""
    return replace(schema, features=tuple(schema.features[position] for position in positions))
