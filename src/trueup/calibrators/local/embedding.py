"""From features to points: which space neighbours are looked for in, and what stands where."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from sklearn.base import clone

from trueup.calibrators import splits
from trueup.calibrators.maps.grouped import number_cells
from trueup.calibrators.maps.local import LocalMap
from trueup.calibrators.maps.spaces import LARGEST, Design, Groups, Space, design_sizes, refuse_infinite
from trueup.data.bins import fit_binner
from trueup.errors import ArgumentError, DataError, TrueupError
from trueup.metrics.features import as_points, fit_features

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.local.pooling import Units
    from trueup.calibrators.maps.spaces import Embedding
    from trueup.data.table import Table
    from trueup.metrics.features import FeatureMap


MOST_CELLS = 2**62  # combinations that could be, numbered by 64 bits
MOST_NUMBERS = 2**27  # laid out at once: 1 GiB, of which some copies are made
MOST_TURNED = 4096  # columns (or rows, where they are fewer) whose principal components take seconds, not minutes


def fit_embedding(told: Any, components: int | None, table: Table, units: Units) -> Embedding:
    """Fit the space that the user asked for to all rows of a table."""
    if isinstance(told, str) and told == "groups":
        return _fit_groups(table)
    features, own = table.schema.features, table.take(units.first)
    columns = [own.columns[feature.name] for feature in features]
    if not features:
        return Space()
    names = tuple(feature.name for feature in features)
    refuse_infinite(names, [table.columns[name] for name in names])
    if isinstance(told, str) and told == "columns":
        _only_numbers(table)
        design = _fit_design(names, columns, table.schema.levels, units.weight, scaled=False, gaps=False)
        return _fit_space(design, columns, None, units)
    design = _fit_design(names, columns, table.schema.levels, units.weight, scaled=isinstance(told, str), gaps=True)
    if isinstance(told, str):
        return _fit_space(design, columns, components, units)
    return _fit_foreign(told, design, columns, units)


def _fit_groups(table: Table) -> Groups:
    features = table.schema.features
    cuts = tuple(fit_binner(one, splits.repeat_by_weight(table, one.name), for_new_rows=True) for one in features)
    if math.prod(len(cut.labels) for cut in cuts) > MOST_CELLS:
        raise ArgumentError(
            f"the {len(cuts)} features have too many combinations to be numbered as groups", hint="name fewer columns"
        )
    number = number_cells(cuts, [table.columns[one.name] for one in features], len(table))
    return Groups(cuts, np.unique(number))


def _only_numbers(table: Table) -> None:
    for feature in table.schema.features:
        if feature.kind == "categorical":
            raise ArgumentError(
                f'embedding="columns" takes the features for coordinates, but column {feature.name!r} holds categories',
                hint='name the coordinates as features=[...], or use embedding="pca"',
            )


def _fit_design(
    names: tuple[str, ...], columns: Sequence[AnyArray], levels: tuple[int, ...], weight: FloatArray, *,
    scaled: bool, gaps: bool,
) -> Design:  # fmt: skip
    """Find what stands in for missing numbers, and what makes every feature weigh the same.

    A number has a standard deviation of 1, and so has the sign of its gaps; the columns of a category together have a
    variance of 1, as one number has.
    """
    fill, holes, factor = np.zeros(len(levels)), np.zeros(len(levels), np.uint8), []
    for at, (column, many) in enumerate(zip(columns, levels, strict=True)):
        if many >= 0:
            share = np.bincount(np.where(column < 0, many, column), weight, many + 1) / weight.sum()
            variance = 1.0 - float((share**2).sum())
            factor.append(np.full(many + 1, _inverse(math.sqrt(max(variance, 0.0))) if (share > 0).sum() > 1 else 0.0))
            continue
        missing = np.isnan(column)
        values = np.clip(np.where(missing, 0.0, column), -LARGEST, LARGEST)
        fill[at], size = _spread(values[~missing], weight[~missing])
        holes[at] = gaps and missing.any()
        factor.append(np.array([_inverse(size)]))
        if holes[at]:
            share = float(weight[missing].sum() / weight.sum())
            factor.append(np.array([_inverse(math.sqrt(share * (1.0 - share))) if not missing.all() else 0.0]))
    together = np.concatenate(factor)
    return Design(levels, fill, holes, together if scaled else np.ones(len(together)), names)


def _spread(values: FloatArray, weight: FloatArray) -> tuple[float, float]:
    """Give the mean and the standard deviation; a deviation of 0 where all values are one."""
    if not len(values):
        return 0.0, 0.0
    low, high = float(values.min()), float(values.max())
    mean = min(max(float((weight * values).sum() / weight.sum()), low), high)
    if low == high:
        return mean, 0.0
    apart = (values - mean) / (high - low)
    return mean, (high - low) * math.sqrt(float((weight * apart**2).sum() / weight.sum()))


def _inverse(deviation: float) -> float:
    """Give what makes a deviation 1; 0 where there is none to speak of."""
    return 1.0 / deviation if deviation > 1 / LARGEST else 0.0


def _lay(design: Design, columns: Sequence[AnyArray], rows: int, *, turned: bool = False) -> FloatArray:
    width = sum(design_sizes(design.levels, design.gaps))
    if rows * width > MOST_NUMBERS or (turned and min(rows, width) > MOST_TURNED):
        raise ArgumentError(
            f"{rows:,} rows of {width:,} columns, one for each category, are too many to be laid out",
            hint="leave out columns of many categories, or name fewer features",
        )
    return design.lay(columns, rows)


def _fit_space(design: Design, columns: Sequence[AnyArray], components: int | None, units: Units) -> Space:
    X = _lay(design, columns, len(units.weight), turned=components is not None)
    if not (X.max(axis=0) > X.min(axis=0)).any():
        return Space()
    most = None if components is None else min(int(components), *X.shape)
    return Space(design, fit_features(X, components=most, scaling="none", weight=units.weight))


# ------------------------------------------------------------------ transformers of other libraries


@dataclass(frozen=True, eq=False)
class ForeignSpace:
    """Points that a transformer of another library finds.

    Attributes
    ----------
    design : Design
    transformer : object
        Fitted, with ``transform``.
    features : FeatureMap
        The common factor that makes two rows drawn at random 1 apart.
    """

    design: Design
    transformer: Any
    features: FeatureMap

    @property
    def reads(self) -> int:
        """Count the features."""
        return len(self.design.levels)

    @property
    def width(self) -> int:
        """Count the columns of the design."""
        return len(self.design.factor)

    def check(self, columns: Sequence[AnyArray]) -> None:
        """Refuse infinite numbers."""
        self.design.check(columns)

    def place(self, columns: Sequence[AnyArray], rows: int) -> tuple[FloatArray, IntArray]:
        """Lay the features out, and have them transformed."""
        group = np.zeros(rows, np.int64)
        if not rows:
            return np.zeros((0, self.features.dimensions)), group
        return self.features.transform(_ask(self.transformer, self.design.lay(columns, rows))), group

    def describe(self) -> str:
        """Name the transformer."""
        many = self.features.dimensions
        return f"in {many} dimension{'' if many == 1 else 's'} of {type(self.transformer).__name__}"


class ForeignLocal(LocalMap):
    """A map that predicts, and cannot be saved."""

    kind = "external embedding"
    unsavable_hint = 'embedding="pca", or apply the transformer beforehand and use embedding="columns"'


def _fit_foreign(told: Any, design: Design, columns: Sequence[AnyArray], units: Units) -> ForeignSpace:
    made = clone(told)
    loose = [name for name, value in made.get_params().items() if name.endswith("random_state") and value is None]
    made.set_params(**dict.fromkeys(loose, 0))  # those of the steps of a pipeline too
    X = _lay(design, columns, len(units.weight))
    try:
        made.fit(np.repeat(X, units.rows, axis=0))  # it may take no weights, but it takes a row twice
    except TrueupError:
        raise
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"{type(made).__name__} could not be fitted to {len(X):,} rows of {X.shape[1]:,} columns: "
            f"{(str(error).splitlines() or [''])[0]}",
            hint="give it features it can take, or another transformer",
        ) from error
    points = _ask(made, X)
    return ForeignSpace(design, made, fit_features(points, scaling="none", weight=units.weight))


def _ask(transformer: Any, X: FloatArray) -> FloatArray:
    """Ask a transformer of another library for points."""
    found = transformer.transform(X)
    found = found.toarray() if hasattr(found, "toarray") else np.asarray(found)
    if found.shape[:1] != (len(X),):
        raise DataError(
            f"{type(transformer).__name__} must give a point for each row; got shape {found.shape} for {len(X):,} rows",
            hint="give another transformer",
        )
    return as_points(found, f"the output of {type(transformer).__name__}")
