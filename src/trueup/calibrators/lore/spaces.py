"""Where LoRe looks for neighbours: points in a space of features, or groups of rows."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.groups import GroupIndex, fit_groups
from trueup.calibrators.map import are_finite, is_integer, pack_arrays, require, unpack_arrays
from trueup.errors import ArgumentError, DataError, TrueupError
from trueup.metrics.features import FeatureMap, fit_features
from trueup.metrics.inputs import validate_points

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray, UInt8Array
    from trueup.calibrators.lore.estimator import PooledRows
    from trueup.data.table import Schema, Table


MAX_FEATURE = 1e100  # larger values are clipped: squares must stay finite
MAX_COORDINATE = 1e30  # in standard deviations
MAX_UNIT = 1e140  # of points, whose mean distance may be tiny
CHUNK_NUMBERS = 2**23  # numbers of a design matrix that are computed at once
MAX_NUMBERS = 2**27  # of the design matrix of a fit: 1 GiB, of which there are several copies
MAX_PCA_SIZE = 4096  # columns or rows, whichever are fewer: principal components take seconds, not minutes
SPACE_DTYPES = {
    "space/fill": "<f8", "space/gaps": "|u1", "space/factor": "<f8", "space/center": "<f8", "space/scale": "<f8",
    "space/rotation": "<f8",
}  # fmt: skip
GROUP_DTYPES = {"groups/edges": "<f8", "groups/cells": "<i8"}


@dataclass(frozen=True, eq=False)
class Design:
    """The design matrix of features: a number and an indicator of its missing values, a 0/1 column per level."""

    levels: tuple[int, ...]  # of each feature, in the order of the schema; -1 for a number. Missing is one level more
    fill: FloatArray  # what replaces a missing number, its mean; 0 for a category
    gaps: UInt8Array  # whether a number has an indicator of its missing values
    factor: FloatArray  # what each column of the matrix is multiplied by; 0 for a constant one
    names: tuple[str, ...]  # of the features

    @property
    def sizes(self) -> list[int]:
        """The number of columns of each feature."""
        return [count + 1 if count >= 0 else 1 + int(gap) for count, gap in zip(self.levels, self.gaps, strict=True)]

    def transform(self, columns: Sequence[AnyArray], rows: int) -> FloatArray:
        """Return the design matrix, (rows, width)."""
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
class FeatureSpace:
    """Points in a space of features, where similar rows are close; without a design, all rows are at the same point."""

    design: Design | None = None
    features: FeatureMap | None = None  # from the design matrix to points
    transformer: Any = None  # a fitted transformer of another library, applied to the design matrix first

    @property
    def feature_count(self) -> int:
        """The number of features."""
        return 0 if self.design is None else len(self.design.levels)

    @property
    def width(self) -> int:
        """The number of columns of the design matrix."""
        return 1 if self.design is None else len(self.design.factor)

    def check(self, columns: Sequence[AnyArray]) -> None:
        """Raise if a number is infinite and distances matter."""
        if self.design is not None:
            reject_infinite(self.design.names, columns)

    def place(self, columns: Sequence[AnyArray], rows: int) -> tuple[FloatArray, IntArray]:
        """Return the points of rows; all are in group 0."""
        group = np.zeros(rows, np.int64)
        if self.design is None or self.features is None:
            return np.zeros((rows, 1)), group
        if self.transformer is None:
            return self.features.transform(self.design.transform(columns, rows)), group
        if not rows:
            return np.zeros((0, self.features.dimensions)), group
        return self.features.transform(_transform(self.transformer, self.design.transform(columns, rows))), group

    def describe(self) -> str:
        """Return the number of dimensions."""
        count = 1 if self.features is None else self.features.dimensions
        source = "" if self.transformer is None else f" of {type(self.transformer).__name__}"
        return f"in {count} dimension{'' if count == 1 else 's'}{source}"

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the manifest entry and the arrays; none of a space where all rows are at one point."""
        if self.design is None or self.features is None:
            return {}, {}
        design, features = self.design, self.features
        rotation = np.zeros(0) if features.rotation is None else features.rotation.ravel()
        arrays = (design.fill, design.gaps, design.factor, features.center, features.scale, rotation)
        entry = {"unit": features.unit, "turned": features.rotation is not None}
        return {"space": entry}, pack_arrays(SPACE_DTYPES, *arrays)

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes], d: Any) -> FeatureSpace:
        """Rebuild the space of d dimensions from a file; validate everything."""
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


@dataclass(frozen=True, eq=False)
class GroupSpace:
    """Groups instead of distances: the neighbours of a row are the rows of its group."""

    index: GroupIndex

    @property
    def feature_count(self) -> int:
        """The number of columns that form groups."""
        return len(self.index.binners)

    @property
    def width(self) -> int:
        """The number of columns, at least one."""
        return max(len(self.index.binners), 1)

    def check(self, columns: Sequence[AnyArray]) -> None:
        """Accept everything: an infinite number is in the first or the last bin."""

    def place(self, columns: Sequence[AnyArray], rows: int) -> tuple[FloatArray, IntArray]:
        """Return one point for all rows, and the group of each."""
        return np.zeros((rows, 1)), self.index.groups_of(columns, rows)

    def describe(self) -> str:
        """Return the number of groups."""
        return f"in {len(self.index):,} group{'' if len(self.index) == 1 else 's'}"

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the manifest entry and the arrays."""
        entry, edges = self.index.pack()
        return {"cuts": entry}, pack_arrays(GROUP_DTYPES, edges, self.index.cells)

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> GroupSpace:
        """Rebuild the groups from a file."""
        edges, cells = unpack_arrays(GROUP_DTYPES, blobs)
        require(len(cells) > 0, "the group numbers are invalid")
        return cls(GroupIndex.unpack(entry, schema, edges, cells))


Embedding = FeatureSpace | GroupSpace  # from features to a point, and to the group that neighbours must share


def reject_infinite(names: Sequence[str], columns: Sequence[AnyArray]) -> None:
    """Raise if a feature is infinite in some rows."""
    for name, column in zip(names, columns, strict=True):
        count = int(np.isinf(column).sum())
        if count:
            raise DataError(
                f"feature {name!r} is infinite in {count:,} of {len(column):,} rows, which have no distance to others",
                hint="replace it by missing, or by the largest number that makes sense; or leave the column out",
            )


# ------------------------------------------------------------------ fitting


def fit_embedding(embedding: Any, components: int | None, table: Table, pooled: PooledRows) -> Embedding:
    """Fit the space that the parameter ``embedding`` asks for to all rows of a table."""
    named = isinstance(embedding, str)
    if named and embedding == "groups":
        return GroupSpace(fit_groups(table)[0])
    features, distinct = table.schema.features, table.take(pooled.first)
    columns = [distinct.columns[feature.name] for feature in features]
    if not features:
        return FeatureSpace()
    names = tuple(feature.name for feature in features)
    reject_infinite(names, [table.columns[name] for name in names])
    coordinates = named and embedding == "columns"
    for feature in features:
        if coordinates and feature.kind == "categorical":
            raise ArgumentError(
                f"embedding 'columns' uses the features as coordinates, but column {feature.name!r} is categorical",
                hint="name the coordinates as features=[...], or use {embedding}",
                parameter="embedding",
                settings={"embedding": "pca"},
            )
    scaled = named and not coordinates
    design = _fit_design(names, columns, table.schema.levels, pooled.weight, scaled=scaled, gaps=not coordinates)
    components = components if scaled else None
    width, rows = sum(design.sizes), len(pooled.weight)
    if rows * width > MAX_NUMBERS or (components is not None and min(rows, width) > MAX_PCA_SIZE):
        raise ArgumentError(
            f"a design matrix of {rows:,} rows and {width:,} columns, one per category, is too large",
            hint="leave out columns of many categories, or name fewer features",
        )
    X = design.transform(columns, rows)
    if not named:
        transformer = _fit_transformer(embedding, X, pooled.rows)
        points = _transform(transformer, X)
        return FeatureSpace(design, fit_features(points, scaling="none", weight=pooled.weight), transformer)
    if not (X.max(axis=0) > X.min(axis=0)).any():
        return FeatureSpace()
    count = None if components is None else min(int(components), *X.shape)
    return FeatureSpace(design, fit_features(X, components=count, scaling="none", weight=pooled.weight))


def _fit_design(
    names: tuple[str, ...], columns: Sequence[AnyArray], levels: tuple[int, ...], weight: FloatArray, *,
    scaled: bool, gaps: bool,
) -> Design:  # fmt: skip
    """Find the mean that replaces missing numbers, and the factor that gives each feature, and its gaps, variance 1."""
    fill, indicators, factors = np.zeros(len(levels)), np.zeros(len(levels), np.uint8), []
    for place, (column, count) in enumerate(zip(columns, levels, strict=True)):
        if count >= 0:
            share = np.bincount(np.where(column < 0, count, column), weight, count + 1) / weight.sum()
            variance = max(1.0 - float((share**2).sum()), 0.0) if (share > 0).sum() > 1 else 0.0
            factors.append(np.full(count + 1, _inverse(math.sqrt(variance))))
            continue
        missing = np.isnan(column)
        values = np.clip(np.where(missing, 0.0, column), -MAX_FEATURE, MAX_FEATURE)
        fill[place], deviation = _mean_and_deviation(values[~missing], weight[~missing])
        factors.append(np.array([_inverse(deviation)]))
        indicators[place] = gaps and missing.any()
        if indicators[place]:
            rate = float(weight[missing].sum() / weight.sum())
            factors.append(np.array([_inverse(math.sqrt(rate * (1.0 - rate))) if not missing.all() else 0.0]))
    factor = np.concatenate(factors)
    return Design(levels, fill, indicators, factor if scaled else np.ones(len(factor)), names)


def _mean_and_deviation(values: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Return the weighted mean and standard deviation; exactly 0 if all values are equal."""
    if not len(values):
        return 0.0, 0.0
    low, high = float(values.min()), float(values.max())
    mean = min(max(float((weight * values).sum() / weight.sum()), low), high)
    if low == high:
        return mean, 0.0
    scaled = (values - mean) / (high - low)
    return mean, (high - low) * math.sqrt(float((weight * scaled**2).sum() / weight.sum()))


def _inverse(deviation: float) -> float:
    return 1.0 / deviation if deviation > 1 / MAX_FEATURE else 0.0


def _fit_transformer(embedding: Any, X: FloatArray, repeats: IntArray) -> Any:
    from sklearn.base import clone  # here, so that saved models load without it

    transformer = clone(embedding)
    unset = [name for name, value in transformer.get_params().items() if name.endswith("random_state") and value is None]
    transformer.set_params(**dict.fromkeys(unset, 0))  # those of the steps of a pipeline too
    try:
        transformer.fit(np.repeat(X, repeats, axis=0))  # it may not accept weights, but it accepts repeated rows
    except TrueupError:
        raise
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{type(transformer).__name__} could not be fitted to {len(X):,} rows of {X.shape[1]:,} columns: "
            f"{(str(error).splitlines() or [''])[0]}",
            hint="name features that it accepts, or use another transformer",
        ) from error
    return transformer


def _transform(transformer: Any, X: FloatArray) -> FloatArray:
    points = transformer.transform(X)
    points = points.toarray() if hasattr(points, "toarray") else np.asarray(points)
    if points.shape[:1] != (len(X),):
        raise DataError(
            f"{type(transformer).__name__} must return one point per row; got shape {points.shape} for {len(X):,} rows",
            hint="use another transformer",
        )
    return validate_points(points, f"the output of {type(transformer).__name__}")
