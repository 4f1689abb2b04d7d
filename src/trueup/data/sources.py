"""Where columns come from: a frame of any library narwhals knows, a dict of arrays, or a NumPy array.

The frame itself is opened in `trueup.data.intake`; this module finds columns by name or position.
"""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.columns import Coded, Raw, from_array
from trueup.errors import ColumnError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


@dataclass(frozen=True, eq=False)
class Source:
    """Columns by key, each read when asked for."""

    keys: tuple[Hashable, ...]
    rows: int
    fetch: Callable[[Hashable], Raw]
    by_position: bool = False

    def __post_init__(self) -> None:
        refuse_twice([self.label(key) for key in self.keys])

    def label(self, key: Hashable) -> str:
        """Give the name people see: x0, x1, ... for the columns of an array."""
        return f"x{key}" if self.by_position else str(key)

    def find(self, key: Hashable, role: str) -> Hashable:
        """Check that a column is there; say which name is nearest where it is not."""
        if self.by_position and isinstance(key, (int, np.integer)) and -len(self.keys) <= key < len(self.keys):
            return int(key) % len(self.keys)
        if key in self.keys and not isinstance(key, bool):
            return key
        known_names = [str(known) for known in self.keys]
        near = [name for name in known_names if name.lower() == str(key).lower()]
        near = near or difflib.get_close_matches(str(key), known_names, n=1, cutoff=0.6)
        if near:
            hint = f"did you mean {near[0]!r}?"
        elif self.by_position:
            hint = f"columns of an array are named by position, 0 to {len(self.keys) - 1}"
        else:
            known = ", ".join(str(known) for known in self.keys[:12])
            hint = f"the columns are {known}{', ...' if len(self.keys) > 12 else ''}"
        raise ColumnError(f"no column {key!r} to use as {role}", hint=hint)

    def find_all(self, keys: Sequence[Hashable], role: str) -> tuple[Hashable, ...]:
        """Find several columns and refuse one that is named twice."""
        found = tuple(self.find(key, role) for key in keys)
        for at, key in enumerate(found):
            if key in found[:at]:
                raise ColumnError(f"column {self.label(key)!r} is named twice as {role}", hint="name each column once")
        return found


def refuse_twice(keys: Sequence[Hashable]) -> None:
    """Refuse a column name that is there more than once."""
    twice = [key for key, count in Counter(keys).items() if count > 1]
    if twice:
        raise ColumnError(
            f"column name {twice[0]!r} appears more than once ({len(twice)} such name{'s' if len(twice) > 1 else ''})",
            hint="rename the columns so that each name is there once",
        )


def open_array(array: np.ndarray[Any, Any]) -> Source:
    """Open a NumPy array: columns by position; one dimension is a single column."""
    if array.ndim not in (1, 2):
        raise ColumnError(f"an array of data must have one or two dimensions; got shape {array.shape}")
    table = array[:, None] if array.ndim == 1 else array

    def fetch(key: Hashable) -> Raw:
        assert isinstance(key, int)
        return from_array(table[:, key], f"x{key}")

    return Source(tuple(range(table.shape[1])), len(table), fetch, by_position=True)


def open_mapping(columns: Mapping[Any, Any]) -> Source:
    """Open a dict of equally long arrays (or columns that are coded already)."""
    for key, column in columns.items():
        if not hasattr(column, "__len__") or isinstance(column, (str, bytes, Mapping)):
            raise ColumnError(
                f"column {key!r} must be an array; got {type(column).__name__}", hint="every array needs one entry a row"
            )
    lengths = {key: len(column) for key, column in columns.items()}
    if len(set(lengths.values())) > 1:
        listed = ", ".join(f"{key!r} has {length}" for key, length in list(lengths.items())[:6])
        raise ColumnError(
            f"the columns must be equally long: {listed}{', ...' if len(lengths) > 6 else ''}",
            hint="every array needs one entry a row",
        )

    def fetch(key: Hashable) -> Raw:
        column = columns[key]
        return Raw("text", coded=column) if isinstance(column, Coded) else from_array(column, str(key))

    return Source(tuple(columns), next(iter(lengths.values()), 0), fetch)
