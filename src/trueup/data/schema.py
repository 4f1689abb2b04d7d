"""Column roles and vocabularies: what a Table means, without its rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from trueup.errors import ColumnError

Kind = Literal["categorical", "numeric", "date"]
Task = Literal["binary", "regression", "multiclass"]


def sort_levels(levels: set[str] | tuple[str, ...] | list[str]) -> tuple[str, ...]:
    """Sort level texts: as numbers where every one is a whole number, else by code point.

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
    """One column besides the roles.

    ``levels`` is the vocabulary of a categorical column, in the order of its codes; empty for the other kinds.
    A date is kept as days since 1970-01-01.
    """

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()

    def __or__(self, other: Feature) -> Feature:
        """Join the vocabularies of two parts of one column."""
        if (self.name, self.kind) != (other.name, other.kind):
            raise ColumnError(
                f"column {self.name!r} is {self.kind} in one part and {other.name!r} is {other.kind} in the other",
                hint="read both parts with the same types",
            )
        if self.levels == other.levels:
            return self
        return replace(self, levels=sort_levels({*self.levels, *other.levels}))


@dataclass(frozen=True)
class Schema:
    """Roles and features of a Table.

    Schemas of two parts of one data set are joined by ``|``: the vocabularies are united, everything else must agree.

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
        """Count the levels of each feature; -1 for a number or a date."""
        return tuple(len(one.levels) if one.kind == "categorical" else -1 for one in self.features)

    @property
    def scored(self) -> tuple[str, ...]:
        """Name the columns of corrected scores."""
        return tuple(f"{name}_trueup" for name in self.prediction or ("prediction",))

    def __or__(self, other: Schema) -> Schema:
        mine, theirs = (replace(schema, features=()) for schema in (self, other))
        names, other_names = ([f.name for f in schema.features] for schema in (self, other))
        if mine != theirs or names != other_names:
            raise ColumnError(
                f"two schemas with different roles or columns cannot be joined: {mine} {names} and {theirs} {other_names}",
                hint="read every part with the same outcome, prediction, weight and features",
            )
        return replace(self, features=tuple(f | g for f, g in zip(self.features, other.features, strict=True)))
