"""The map of LoRe (local recalibration): the neighbours of each row, by distance or group, and their observed outcomes."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.groups import GroupIndex
from trueup.calibrators.model import Map, are_finite, is_integer, pack_arrays, require, unpack_arrays
from trueup.calibrators.row_explanation import Contribution, EffectSums, RowExplanation, explain_change
from trueup.calibrators.stopping import apply_link, task_loss
from trueup.errors import DataError
from trueup.kernels.laplace import Sums, as_bytes
from trueup.kernels.pairs import GAUSSIAN, LAPLACE, kernel_scale, sources
from trueup.kernels.sorting import digitize
from trueup.kernels.threads import Workers
from trueup.metrics.inputs import validate_points
from trueup.metrics.local import FeatureMap

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray, UInt8Array
    from trueup.data.table import Schema

    _Stage = tuple[str, float, float]


MAX_FEATURE = 1e100  # larger values are clipped: squares must stay finite
MAX_COORDINATE = 1e30  # in standard deviations
MAX_UNIT = MAX_POINT = 1e140  # of points, in units of the mean distance, which may be tiny
CHUNK_NUMBERS = 2**23  # numbers of a design matrix that are computed at once
MAX_BINS = 4096
MIN_GAMMA, MAX_GAMMA = 1e-6, 1e6  # beyond these, only the nearest row counts, or distances do not count
MAX_WEIGHT = 1e30
MAX_SCALE = 1e200
CALLED_MARGIN = 1e-9  # relative: a class that stays the highest exceeds the others by this much
SPACE_DTYPES = {
    "space/fill": "<f8", "space/gaps": "|u1", "space/factor": "<f8", "space/center": "<f8", "space/scale": "<f8",
    "space/rotation": "<f8",
}  # fmt: skip
GROUP_DTYPES = {"groups/edges": "<f8", "groups/cells": "<i8"}
NEIGHBOUR_DTYPES = {
    "local/keys": "<i8", "local/place": "<i8", "local/points": "<f8", "local/weight": "<f8", "local/total": "<f8",
}  # fmt: skip
EDGE_DTYPES = {"local/edges": "<f8"}  # of bins that are not of equal width


@dataclass(frozen=True, eq=False)
class Design:
    """The design matrix: a number is a column, plus one for missing values if ``gaps``; a category is one per level."""

    levels: tuple[int, ...]  # of each feature, in the order of the schema; -1 for a number. Missing is one level more
    fill: FloatArray  # what replaces a missing number, its mean; 0 for a category
    gaps: UInt8Array  # whether a number has an indicator of its missing values
    factor: FloatArray  # what each column of the matrix is multiplied by; 0 for a constant one
    names: tuple[str, ...]  # of the features

    @property
    def sizes(self) -> list[int]:
        """The number of columns of the design matrix that each feature has."""
        return [count + 1 if count >= 0 else 1 + int(gap) for count, gap in zip(self.levels, self.gaps, strict=True)]

    def transform(self, columns: Sequence[AnyArray], rows: int) -> FloatArray:
        """Return the design matrix of ``columns``, shape (rows, width)."""
        X = np.zeros((rows, len(self.factor)))
        start = 0
        for count, fill, gap, column, size in zip(self.levels, self.fill, self.gaps, columns, self.sizes, strict=True):
            if count >= 0:
                code = np.where((column >= 0) & (column < count), column, count).astype(np.int64)
                X[np.arange(rows), start + code] = self.factor[start + code]
            else:
                missing = np.isnan(column)
                X[:, start] = np.clip(np.where(missing, fill, column), -MAX_FEATURE, MAX_FEATURE) * self.factor[start]
                if gap:
                    X[:, start + 1] = missing * self.factor[start + 1]
            start += size
        return np.clip(X, -MAX_COORDINATE, MAX_COORDINATE, out=X)


@dataclass(frozen=True, eq=False)
class Embedding:
    """Places each row at a point of a feature space, or in a group, to find its neighbours; by default all at one point."""

    design: Design | None = None
    features: FeatureMap | None = None  # from the design matrix to points
    transformer: Any = None  # a fitted transformer of another library, applied to the design matrix first
    index: GroupIndex | None = None  # groups instead of distances: the neighbours of a row are the rows of its group

    def place(self, columns: Sequence[AnyArray], rows: int) -> tuple[FloatArray, IntArray]:
        """Return the points of ``rows`` rows, (rows, d), and their groups, which are 0 without an index of groups."""
        group = np.zeros(rows, np.int64) if self.index is None else self.index.groups_of(columns, rows)
        if self.design is None or self.features is None:
            return np.zeros((rows, 1)), group
        if self.transformer is None:
            return self.features.transform(self.design.transform(columns, rows)), group
        if not rows:
            return np.zeros((0, self.features.dimensions)), group
        return self.features.transform(transform_points(self.transformer, self.design.transform(columns, rows))), group

    def describe(self) -> str:
        """Return the number of groups, or of dimensions, as text."""
        if self.index is not None:
            return f"in {len(self.index):,} group{'' if len(self.index) == 1 else 's'}"
        count = 1 if self.features is None else self.features.dimensions
        source = "" if self.transformer is None else f" of {type(self.transformer).__name__}"
        return f"in {count} dimension{'' if count == 1 else 's'}{source}"

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return an entry of the JSON manifest and arrays as bytes by name; both are empty if all rows are at one point."""
        if self.index is not None:
            cuts, edges = self.index.pack()
            return {"cuts": cuts}, pack_arrays(GROUP_DTYPES, edges, self.index.cells)
        if self.design is None or self.features is None:
            return {}, {}
        design, features = self.design, self.features
        rotation = np.zeros(0) if features.rotation is None else features.rotation.ravel()
        arrays = (design.fill, design.gaps, design.factor, features.center, features.scale, rotation)
        entry = {"unit": features.unit, "turned": features.rotation is not None}
        return {"space": entry}, pack_arrays(SPACE_DTYPES, *arrays)

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes], d: Any) -> Embedding:
        """Restore a space of ``d`` dimensions from what `pack` returned; raise FileContentError if it is invalid."""
        fill, gaps, factor, center, scale, flat = unpack_arrays(SPACE_DTYPES, blobs)
        levels, mismatch = schema.levels, "the space does not fit the features"
        require(len(fill) == len(gaps) == len(levels) > 0 and bool((gaps <= 1).all()), mismatch)
        categories = np.array(levels) >= 0
        require(not gaps[categories].any() and not fill[categories].any(), mismatch)
        design = Design(levels, fill, gaps, factor, tuple(feature.name for feature in schema.features))
        width = sum(design.sizes)
        require(len(factor) == len(center) == len(scale) == width, mismatch)
        valid = (np.abs(fill) <= MAX_FEATURE).all() and ((factor >= 0) & (factor <= MAX_FEATURE)).all()
        require(bool(valid and (np.abs(center) <= MAX_COORDINATE).all()), "the space has invalid numbers")
        require(bool((np.isfinite(scale) & (scale > 1 / MAX_COORDINATE)).all()), "the space has invalid numbers")
        turned, unit = entry["turned"], entry["unit"]
        require(are_finite(unit) and 1 / MAX_UNIT <= unit <= MAX_UNIT, "the space has invalid numbers")
        wrong = "the number of dimensions is invalid"
        require(isinstance(turned, bool) and is_integer(d) and 1 <= d <= width and (turned or d == width), wrong)
        require(len(flat) == (width * d if turned else 0), wrong)
        require(bool((np.abs(flat) <= 2.0).all()), "the rotation of the space is invalid")
        rotation = flat.reshape(width, d) if turned else None
        return cls(design, FeatureMap(center, scale, rotation, float(unit)))


def reject_infinite(names: Sequence[str], columns: Sequence[AnyArray]) -> None:
    """Raise if a feature is infinite in some rows."""
    for name, column in zip(names, columns, strict=True):
        count = int(np.isinf(column).sum())
        if count:
            raise DataError(
                f"feature {name!r} is infinite in {count:,} of {len(column):,} rows, which have no distance to others",
                hint="replace it by missing, or by the largest number that makes sense; or leave the column out",
            )


def place_chunks(space: Embedding, columns: Sequence[AnyArray], rows: int) -> Iterator[tuple[slice, FloatArray, IntArray]]:
    """Yield (slice, points, groups) of chunks of rows that fit in memory; raise for infinite numbers if distances count."""
    step = CHUNK_NUMBERS // max(len(columns), 1)
    if space.design is not None:
        reject_infinite(space.design.names, columns)
        step = max(1, CHUNK_NUMBERS // len(space.design.factor))
    for start in range(0, max(rows, 1), step):
        chunk = slice(start, min(start + step, rows))
        yield chunk, *space.place([column[chunk] for column in columns], chunk.stop - start)


def sort_equal(content: FloatArray, weight: FloatArray | None = None) -> tuple[IntArray, IntArray]:
    """Sort rows by their bytes, equal rows by weight; return the order and where runs of equal rows start."""
    order = np.arange(len(content)) if weight is None else np.argsort(weight, kind="stable")
    keys = as_bytes(content[order])
    by_content = np.argsort(keys, kind="stable")
    keys = keys[by_content]
    return order[by_content], np.flatnonzero(np.append(True, keys[1:] != keys[:-1])[: len(keys)])


def transform_points(transformer: Any, X: FloatArray) -> FloatArray:
    """Return the points of a design matrix by a transformer of another library; raise if they are invalid."""
    points = transformer.transform(X)
    points = points.toarray() if hasattr(points, "toarray") else np.asarray(points)
    if points.shape[:1] != (len(X),):
        raise DataError(
            f"{type(transformer).__name__} must return one point per row; got shape {points.shape} for {len(X):,} rows",
            hint="use another transformer",
        )
    return validate_points(points, f"the output of {type(transformer).__name__}")


@dataclass(frozen=True, eq=False)
class LocalMap(Map):
    """Reset a row's confidence (highest score) to the observed rate of neighbours in its bin, or add their mean residual.

    This is Eq. 6 of Luo et al. (2022), or minus the error of Eq. 4; ``shrinkage`` pseudo-rows have its score as outcome.
    """

    kind = "local"

    embedding: Embedding
    keys: IntArray  # of bins with training rows, ascending: bin * groups + group. Group 0 has all rows of the bin
    place: IntArray  # the position of the key of each neighbour, ascending: training rows in one bin and at one point
    points: FloatArray  # (n, d)
    weight: FloatArray  # the number of rows of each neighbour
    total: FloatArray  # the sum of their outcomes (for several classes, of hits); of residuals, if scores are shifted
    edges: FloatArray  # between the bins of the score, ascending; each belongs to the bin below it
    groups: int  # per bin, the one of all rows included
    gamma: float  # the bandwidth of the kernel; infinite if distances do not count
    shrinkage: float  # m
    shifts: bool = False  # whether scores are shifted rather than reset
    kernel: Any = LAPLACE  # "laplace", "gaussian", or a function of the user's
    keeps: bool = False  # whether the highest class of a row stays the highest
    device: str = "cpu"  # where sums of the Laplace kernel are computed; not saved

    @property
    def bins(self) -> int:
        """The number of bins of the score."""
        return len(self.edges) + 1

    @property
    def scale(self) -> float:
        """The factor of distances in the kernel, such as exp(-|phi - phi'|_1 / (d gamma)); 0 if gamma is infinite."""
        return kernel_scale(self.kernel, self.points.shape[1], self.gamma, MAX_SCALE)

    @cached_property
    def _nearest_bin(self) -> IntArray:
        """Return for every bin the nearest bin with training rows; of two at the same distance, the lower."""
        filled = np.unique(self.keys // self.groups)
        bins = np.arange(self.bins)
        above = filled[np.minimum(np.searchsorted(filled, bins), len(filled) - 1)]
        below = filled[np.maximum(np.searchsorted(filled, bins, side="right") - 1, 0)]
        return np.where(np.abs(bins - below) <= np.abs(above - bins), below, above)

    def keys_of(self, confidence: FloatArray, group: IntArray) -> IntArray:
        """Return each row's position in ``keys``: of its group in its bin, or of the bin if the group has no rows in it."""
        keys = self.keys
        pooled = self._nearest_bin[number_bins(confidence, self.edges)] * self.groups
        place = np.minimum(np.searchsorted(keys, pooled + group), len(keys) - 1)
        return np.where(keys[place] == pooled + group, place, np.searchsorted(keys, pooled))

    def sums_at(self, points: FloatArray, keys: IntArray, scales: FloatArray, threads: int | None = None) -> Sums:
        """Sum ``weight`` and ``total`` of neighbours with the key of each point, weighted by the kernel, for each scale."""
        if not scales.any() or not self.points.any():  # no distances
            return Sums(np.repeat(self._whole_bins[keys][None], len(scales), axis=0), np.zeros((len(scales), len(keys))))
        settings = {"device": self.device} if self.kernel == LAPLACE and len(points) > 1 else {}
        result: Sums = self._sources.at(points, keys, scales, threads, **settings)
        alone = result.total[:, :, 0] <= 0  # a kernel of the user's may be 0 for all rows of the bin: they count equally
        if alone.any():
            result.total[alone] = np.broadcast_to(self._whole_bins[keys], result.total.shape)[alone]
        return result

    @cached_property
    def _whole_bins(self) -> FloatArray:
        """Sums of weight and total for each key, without a kernel."""
        starts = np.searchsorted(self.place, np.arange(len(self.keys)))
        return np.asarray(np.add.reduceat(np.column_stack([self.weight, self.total]), starts, axis=0))

    @cached_property
    def _sources(self) -> Any:
        return sources(self.kernel, self.points, np.column_stack([self.weight, self.total]), self.place)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_sources"}

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return corrected predictions, (n,) or (n, outputs); ``columns`` are the features in the order of the schema."""
        out, threads = np.empty(prediction.shape), None if workers is None else workers.threads
        for rows, points, group in place_chunks(self.embedding, list(columns), len(prediction)):
            confidence, top = confidence_of(prediction[rows])
            sums = self.sums_at(points, self.keys_of(confidence, group), np.array([self.scale]), threads)
            weight, total = sums.total[0].T
            factor = np.exp(-self.scale * sums.shift[0])
            rate = mix(weight, total, factor, confidence, self.shrinkage, shifts=self.shifts)
            out[rows] = reset(prediction[rows], top, rate, keeps=self.keeps)
        return out

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return the corrected prediction of one row, given as codes and numbers in the order of the schema."""
        P = np.array(prediction if len(prediction) == 1 else [prediction], np.float64)
        return self.apply([np.array([value]) for value in row], P, Workers(1)).reshape(-1)

    def describe(self) -> str:
        """Return the numbers of neighbours, dimensions or groups, and bytes as text."""
        count = len(self.weight)
        size = sum(array.nbytes for array in (self.keys, self.place, self.points, self.weight, self.total))
        text = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
        if math.isinf(self.gamma):
            return f"{count:,} bins of the score ({text})"
        return f"{count:,} neighbours {self.embedding.describe()} ({text})"

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return each feature and each pair of features, in the order of the schema: distances weigh them equally."""
        design, index = self.embedding.design, self.embedding.index
        features = range(len(index.binners) if index else len(design.levels) if design else 0)
        return [*((feature,) for feature in features), *itertools.combinations(features, 2)]

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one row: by its bin, by its neighbours there, and by shrinkage towards the score."""
        link = task_loss(schema.task).link
        P = np.array(prediction if len(prediction) == 1 else [prediction], np.float64)
        after = self.apply_one(list(row), list(prediction))
        confidence, top = confidence_of(P)
        stages = self._stages(row, confidence, top)
        own, labels = 0 if top is None else int(top[0]), schema.classes or ("",)
        contributions, start, end = [], *(apply_link(values.reshape(1, -1), link)[0] for values in (P, after))
        rates = [float(confidence[0]), *(rate for _, rate, _ in stages)]
        if self.shrinkage:
            rows = stages[-1][2]
            weight = self.shrinkage / (rows + self.shrinkage)
            counts = f"which counts for {_row_count(self.shrinkage)} against {_number(rows)}"
            stages.append((f"shrinkage towards the score, {counts}: {weight:.1%} of the weight", 0.0, rows))
        if top is not None and self.keeps:
            free = float(replace(self, keeps=False).apply_one(list(row), list(prediction))[own])
            if free < after[own]:
                stages[-1] = (stages[-1][0], free, stages[-1][2])
                stages.append((f"the predicted class stays the highest of {len(labels)}", 0.0, 0.0))
        values = [float(apply_link(np.array([rate]), link)[0, 0]) for _, rate, _ in stages[:-1]]
        # The last stage ends at the corrected score, to the last bit.
        for (text, _, _), (before, value) in zip(stages, itertools.pairwise([start[own], *values, end[own]]), strict=True):
            if value != before:
                contributions.append(Contribution(text, float(value - before), labels[own]))
        highest = int(after.argmax())
        lost = f"; {labels[highest]} is now the highest" if highest != own else ""
        change = f"{labels[own]}, predicted, changes from {confidence[0]:.4g} to {after[own]:.4g}"
        left = f"others share the rest, {1 - float(confidence[0]):.4g} before, {1 - float(after[own]):.4g} after"
        rest = f"{change}; {left}{lost}"
        contributions += [
            Contribution(rest, float(end[c] - start[c]), label)
            for c, label in enumerate(labels)
            if c != own and end[c] != start[c]
        ]
        sums = self._sum_effects(EffectSums(schema, row, prediction), rates, float(after[own]), own, len(row))
        return explain_change(link, prediction, after, contributions, sums, in_order=True)

    def _sum_effects(self, sums: EffectSums, rates: Sequence[float], after: float, own: int, features: int) -> EffectSums:
        """Add to ``sums`` what the bin (due to the score) and the neighbours (due to the features) change; return them.

        ``rates`` are the confidence before, and those that the bin and the neighbours imply. Shrinkage reduces both changes
        by the same factor. The logit of the predicted class, the output ``own``, changes; others share the rest.
        """
        logits = [float(apply_link(np.array([rate]), "logit")[0, 0]) for rate in (*rates, after)]
        changes = [after - before for before, after in itertools.pairwise(logits[:-1])]
        total, wanted = sum(changes), logits[-1] - logits[0]
        factor = wanted / total if 0 < wanted * total <= total**2 else 1.0
        for place, change in enumerate(changes):
            sums.add(range(features) if place else (), factor * change, own)
        sums.add((), wanted - factor * total, own)
        return sums

    def _stages(self, row: Sequence[float], confidence: FloatArray, top: IntArray | None) -> list[_Stage]:
        """Return (text, implied confidence, number of rows) for the bin of a row, then for its neighbours in the bin."""
        points, group = self.embedding.place([np.array([value]) for value in row], 1)
        pooled, own = (self.keys_of(confidence, which) for which in (np.zeros(1, np.int64), group))
        inside = self.place == pooled[0]
        rows, total = float(self.weight[inside].sum()), float(self.total[inside].sum())
        number = int(self.keys[pooled[0]] // self.groups)
        low, high = np.concatenate([[0.0], self.edges, [1.0]])[number : number + 2]
        nearest = "the nearest range with rows, " * (int(number_bins(confidence, self.edges)[0]) != number)
        name = "score" if top is None else "confidence"
        text = f"{_row_count(rows)} in {nearest}{name} {low:.6g} to {high:.6g}"
        stages = [self._stage(text, rows, total / rows, confidence)]
        if math.isinf(self.gamma) or (self.groups > 1 and own[0] == pooled[0]):  # no group of its own there
            return stages
        sums = self.sums_at(points, own, np.array([self.scale, 2 * self.scale]))
        share = float(sums.total[0, 0, 1] / sums.total[0, 0, 0])
        kernel_sum = float(sums.total[0, 0, 0]) * math.exp(-self.scale * float(sums.shift[0, 0]))
        if self.embedding.index is not None:
            text = f"{_row_count(kernel_sum)} of its group in that range"
        else:
            # Kish (1965): (sum k)^2 / sum k^2, where each training row counts for one.
            ratio = math.exp(min(2 * self.scale * float(sums.shift[1, 0] - sums.shift[0, 0]), 700.0))
            kish = float(sums.total[0, 0, 0]) ** 2 / float(sums.total[1, 0, 0]) * ratio
            weight = f"kernel weight of {_row_count(kernel_sum)}, effective size {_number(kish)}"
            text = f"its neighbours in that range ({weight})"
        return [*stages, self._stage(text, kernel_sum, share, confidence)]

    def _stage(self, text: str, rows: float, share: float, confidence: FloatArray) -> _Stage:
        """Return (text, confidence, rows): the confidence that ``rows`` rows of mean ``share`` imply, without shrinkage."""
        ones = np.ones(1)
        rate = float(mix(ones, share * ones, ones, confidence, 0.0, shifts=self.shifts)[0])
        result = f"mean residual {share:+.4g}" if self.shifts else f"observed rate {max(share, 0.0):.4g}"
        return f"{text}: {result}", rate, rows

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        entry: dict[str, Any] = {
            "bins": self.bins, "groups": self.groups, "dimensions": self.points.shape[1],
            "shrinkage": self.shrinkage, "shifts": self.shifts,
            "gamma": None if math.isinf(self.gamma) else self.gamma,
        }  # fmt: skip
        if self.kernel == GAUSSIAN:
            entry["kernel"] = GAUSSIAN
        if self.keeps:
            entry["keeps"] = True
        blobs = pack_arrays(NEIGHBOUR_DTYPES, self.keys, self.place, self.points.ravel(), self.weight, self.total)
        if not np.array_equal(self.edges, even_edges(self.bins)):
            entry["uneven"] = True
            blobs |= pack_arrays(EDGE_DTYPES, self.edges)
        own_entry, own_blobs = self.embedding.pack()
        return entry | own_entry, blobs | own_blobs

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> LocalMap:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        require(schema.task != "regression", "the map does not fit the task")
        require(not ("cuts" in entry and "space" in entry), "it has both groups and a space")
        own = GROUP_DTYPES if "cuts" in entry else SPACE_DTYPES if "space" in entry else {}
        uneven = EDGE_DTYPES if "uneven" in entry else {}
        listed = set(blobs) == {*NEIGHBOUR_DTYPES, *own, *uneven}
        require(listed, "it has arrays that the manifest does not list")
        bins, groups, d, shrinkage, shifts = (entry[n] for n in ("bins", "groups", "dimensions", "shrinkage", "shifts"))
        require(is_integer(bins) and 1 <= bins <= MAX_BINS, "the bins are invalid")
        edges = unpack_arrays(EDGE_DTYPES, blobs)[0] if uneven else even_edges(bins)
        inside = len(edges) == bins - 1 and ((edges >= 0) & (edges < 1)).all() and (edges[1:] > edges[:-1]).all()
        require(bool(inside), "the bins are invalid")
        require(are_finite(shrinkage) and 0 <= shrinkage <= MAX_WEIGHT, "the shrinkage is invalid")
        gamma = math.inf if entry["gamma"] is None else entry["gamma"]
        require(gamma == math.inf or (are_finite(gamma) and MIN_GAMMA <= gamma <= MAX_GAMMA), "the gamma is invalid")
        require(gamma < math.inf or not own, "it has features, but distances do not count")
        embedding, count = Embedding(), 1
        if "cuts" in entry:
            index = GroupIndex.unpack(entry["cuts"], schema, *unpack_arrays(GROUP_DTYPES, blobs))
            require(len(index) > 0, "the group numbers are invalid")
            embedding, count = Embedding(index=index), 1 + len(index)
        elif "space" in entry:
            embedding = Embedding.unpack(entry["space"], schema, blobs, d)
        require(is_integer(groups) and groups == count, "the number of groups is invalid")
        require(is_integer(d) and d >= 1 and ("space" in entry or d == 1), "the number of dimensions is invalid")
        require(isinstance(shifts, bool), "the kind of correction is invalid")
        kernel, keeps = entry.get("kernel", LAPLACE), entry.get("keeps", False)
        require(isinstance(kernel, str) and kernel in (LAPLACE, GAUSSIAN), "the kernel is invalid")
        require(isinstance(keeps, bool) and not (keeps and schema.task == "binary"), "the kept class is invalid")
        keys, place, points, weight, total = _unpack_neighbours(blobs, bins, groups, d)
        slack = weight * 1e-9  # sums are rounded
        valid = (total >= (-weight if shifts else 0.0) - slack) & (total <= weight + slack)
        require(bool(valid.all()), "the outcomes are invalid")
        neighbours = (keys, place, points, weight, total)
        return cls(embedding, *neighbours, edges, groups, float(gamma), float(shrinkage), shifts, kernel, keeps)


def _unpack_neighbours(blobs: Mapping[str, bytes], bins: int, groups: int, d: int) -> list[AnyArray]:
    """Return keys, place, points, weight and total of a `LocalMap`; raise FileContentError if they are invalid."""
    keys, place, flat, weight, total = unpack_arrays(NEIGHBOUR_DTYPES, blobs)
    require(len(keys) > 0, "it has no neighbours")
    mismatch = "the bins do not fit the neighbours"
    require(bool((np.diff(keys) > 0).all()) and keys[0] >= 0 and keys[-1] < bins * groups, mismatch)
    pooled = keys[keys % groups == 0] // groups  # every bin of a group has all rows of that bin too
    require(bool(np.isin(keys // groups, pooled).all()), mismatch)
    require(len(place) == len(weight) == len(total) and len(flat) == len(place) * d, "the neighbours are incomplete")
    steps = np.diff(place, prepend=0)
    inside = len(place) > 0 and place[0] == 0 and place[-1] == len(keys) - 1
    require(bool(inside and ((steps == 0) | (steps == 1)).all()), mismatch)
    require(bool((np.abs(flat) <= MAX_POINT).all()), "a point is not a number")
    require(bool(((weight >= 1 / MAX_POINT) & (weight <= MAX_WEIGHT)).all()), "the weights are invalid")
    return [keys, place, flat.reshape(-1, d), weight, total]


class TransformerMap(LocalMap):
    """A map with a transformer of another library: it predicts, but cannot be saved."""

    kind = "foreign embedding"
    unsavable_hint = 'embedding="pca", or apply the transformer beforehand and use embedding="columns"'


class KernelMap(LocalMap):
    """A map with a kernel of the user's: it predicts, but cannot be saved."""

    kind = "foreign kernel"
    unsavable_hint = 'kernel="laplace" or kernel="gaussian"'


def _row_count(count: float) -> str:
    return f"{_number(count)} row{'' if count == 1 else 's'}"


def _number(count: float) -> str:
    """Return a number of rows as text, never in scientific notation."""
    if count < 0.001:
        return "less than 0.001"
    return f"{count:,.0f}" if count >= 1000 else f"{count:,.4g}"


def even_edges(bins: int) -> FloatArray:
    """Return the edges between bins of equal width over [0, 1], as in `trueup.metrics.bins`."""
    return np.arange(1, bins) / bins


def number_bins(confidence: FloatArray, edges: FloatArray) -> IntArray:
    """Return the bin of each row: the number of ``edges`` below its confidence (bins are closed on the right)."""
    out = np.empty(len(confidence), np.int32)
    digitize(np.ascontiguousarray(confidence), np.nextafter(edges, np.inf), out)
    return out.astype(np.int64)


def confidence_of(prediction: FloatArray) -> tuple[FloatArray, IntArray | None]:
    """Return the score and None; for several classes the highest score of each row and its class (the first of equals)."""
    if prediction.ndim == 1:
        return prediction, None
    top = np.argmax(prediction, axis=1)
    return prediction[np.arange(len(top)), top], top


def mix(
    weight: FloatArray, total: FloatArray, factor: FloatArray, confidence: FloatArray, shrinkage: float, *, shifts: bool
) -> FloatArray:
    """Return the observed rate of neighbours or, if ``shifts``, the confidence p plus their mean residual.

    With m = ``shrinkage``, they are (sum k y + m p) / (sum k + m) and p + sum k (y - p_i) / (sum k + m), clipped to the
    rates if all outcomes were 0 or all 1. The sums are ``weight`` and ``total`` times ``factor``, which cancels if m is 0.
    """
    if shrinkage == 0:
        mean = total / weight
        return np.asarray(np.clip(confidence + mean if shifts else mean, 0.0, 1.0))
    mass = weight * factor + shrinkage
    if not shifts:
        return np.asarray(np.clip((total * factor + shrinkage * confidence) / mass, 0.0, 1.0))
    own = shrinkage / mass
    return np.asarray(np.clip(confidence + total * factor / mass, own * confidence, 1.0 - own * (1.0 - confidence)))


def keep_called(rate: FloatArray, share: FloatArray, largest: FloatArray, k: int) -> tuple[FloatArray, FloatArray]:
    """Return the confidence of a called class that stays the highest of ``k``, and what of ``share`` another class has.

    The confidence is ``rate``, but at least 1/k. The others share the rest; ``share`` is that of a class, ``largest`` that
    of the largest class. If that would exceed the confidence, all shares move towards equal ones until it does not.
    """
    confidence = np.maximum(rate, (1.0 + CALLED_MARGIN) / k)
    rest = 1.0 - confidence
    equal, cap = rest / (k - 1), confidence * (1.0 - CALLED_MARGIN)
    over = rest * largest > np.maximum(cap, equal)
    mixed = np.where(over, (rest * largest - cap) / np.where(over, rest * largest - equal, 1.0), 0.0)
    mixed = np.minimum(mixed, 1.0)
    return confidence, (1.0 - mixed) * rest * share + mixed * equal


def reset(prediction: FloatArray, top: IntArray | None, rate: FloatArray, *, keeps: bool = False) -> FloatArray:
    """Replace the score of class ``top`` by ``rate``; other classes share the rest in proportion, equally if all were 0.

    If ``keeps``, the class stays the highest; see `keep_called`.
    """
    if top is None:
        return rate
    rows, k = np.arange(len(top)), prediction.shape[1]
    out = prediction.copy()
    out[rows, top] = 0.0
    rest = out[:, 0].copy()
    for c in range(1, k):  # one class after another: the sum of a row must not depend on its batch
        rest += out[:, c]
    none = rest <= 0
    out[none] = 1.0
    rest[none] = k - 1.0
    out /= rest[:, None]  # first: the others may be so small that their quotient overflows
    if keeps:
        largest = out.copy()
        largest[rows, top] = 0.0
        largest = largest.max(axis=1)
        for c in range(k):
            confidence, out[:, c] = keep_called(rate, out[:, c], largest, k)
        out[rows, top] = confidence
        return out
    out *= (1.0 - rate)[:, None]
    out[rows, top] = rate
    return out
