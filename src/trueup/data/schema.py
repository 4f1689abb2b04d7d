"""Roles and vocabularies of the columns of a Table, without its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

from trueup.errors import ColumnError

if TYPE_CHECKING:
    from collections.abc import Collection

Kind = Literal["categorical", "numeric", "date"]
Task = Literal["binary", "regression", "multiclass"]


def sort_levels(levels: Collection[str]) -> tuple[str, ...]:
    """Sort level texts: as numbers if all of them are integers, else by code point.

    Examples
    --------
    >>> sort_levels(["10", "9", "-1"]), sort_levels(["b", "a", "10"])
    (('-1', '9', '10'), ('10', 'a', 'b'))
    """
    try:
        return tuple(sorted(levels, key=lambda text: (int(text), text)))
    except ValueError:
        return tuple(sorted(levels))


@dataclass(frozen=True)
class Feature:
    """A column without a role.

    ``levels`` is the vocabulary of a categorical column, in the order of its codes; empty for the other kinds. Dates are
    stored as days since 1970-01-01.
    """

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()

    def __or__(self, other: Feature) -> Feature:
        """Merge the vocabularies of one column in two data sets."""
        if (self.name, self.kind) != (other.name, other.kind):
            raise ColumnError(
                f"column {self.name!r} is {self.kind} in one data set and {other.name!r} is {other.kind} in the other",
                hint="read both with the same types",
            )
        if self.levels == other.levels:
            return self
        return replace(self, levels=sort_levels({*self.levels, *other.levels}))


@dataclass(frozen=True)
class Schema:
    """Roles and features of a Table.

    ``a | b`` merges the schemas of two subsets of one data set: vocabularies are united, everything else must agree.

    Examples
    --------
    >>> a = Schema("binary", "y", ("p",), None, (Feature("country", "categorical", ("BR", "US")),))
    >>> b = Schema("binary", "y", ("p",), None, (Feature("country", "categorical", ("DE",)),))
    >>> (a | b).features[0].levels
    ('BR', 'DE', 'US')
    """

    task: Task
    outcome: str | None
    prediction: tuple[str, ...]
    weight: str | None
    features: tuple[Feature, ...]
    classes: tuple[str, ...] = ()

    @property
    def levels(self) -> tuple[int, ...]:
        """The number of levels of each feature; -1 for numbers and dates."""
        return tuple(len(feature.levels) if feature.kind == "categorical" else -1 for feature in self.features)

    @property
    def score_names(self) -> tuple[str, ...]:
        """The names of the columns of corrected scores."""
        return tuple(f"{name}_trueup" for name in self.prediction or ("prediction",))

    def __or__(self, other: Schema) -> Schema:
        mine, theirs = (replace(schema, features=()) for schema in (self, other))
        names, other_names = ([feature.name for feature in schema.features] for schema in (self, other))
        if mine != theirs or names != other_names:
            raise ColumnError(
                f"schemas with different roles or columns cannot be merged: {mine} {names} and {theirs} {other_names}",
                hint="read all data with the same outcome, prediction, weight and features",
            )
        return replace(self, features=tuple(f | g for f, g in zip(self.features, other.features, strict=True)))
