"""Roles and vocabularies of the columns of a Table, without its rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Collection

Kind = Literal["categorical", "numeric", "date"]
Task = Literal["binary", "regression", "multiclass"]


def sort_levels(levels: Collection[str]) -> tuple[str, ...]:
    """Sort level texts: as numbers if all of them are integers, else by code point."""
    try:
        return tuple(sorted(levels, key=lambda text: (int(text), text)))
    except ValueError:
        return tuple(sorted(levels))


@dataclass(frozen=True)
class Feature:
    """A column without a role."""

    name: str
    kind: Kind  # dates are stored as days since 1970-01-01
    levels: tuple[str, ...] = ()  # of a categorical column, in the order of its codes


@dataclass(frozen=True)
class Schema:
    """Roles and features of a Table."""

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
