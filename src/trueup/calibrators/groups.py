"""Groups of rows: combinations of binned columns, each numbered by one integer."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.model import is_integer, read_texts, require
from trueup.calibrators.stopping import repeat_by_weight
from trueup.data.bins import DEFAULT_BINS, ColumnBinner, fit_binner
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.table import Schema, Table


MAX_COMBINATIONS = 2**62  # numbered by 64-bit integers


@dataclass(frozen=True, eq=False)
class GroupIndex:
    """The combinations of binned columns that form groups; every other combination is group 0."""

    binners: tuple[ColumnBinner, ...]  # one per column, in the order of the schema
    cells: IntArray  # numbers of the combinations, ascending; the first is group 1

    def __len__(self) -> int:
        return len(self.cells)

    def groups_of(self, columns: Iterable[AnyArray], rows: int) -> IntArray:
        """Return the group number of every row; ``columns`` are those of the binners, ``rows`` is their length."""
        if not len(self.cells):
            return np.zeros(rows, np.int64)
        number = _number_rows(self.binners, columns, rows)
        place = np.minimum(np.searchsorted(self.cells, number), len(self.cells) - 1)
        return np.where(self.cells[place] == number, place + 1, 0)

    def group_of(self, row: Sequence[float]) -> int:
        """Return the group number of one row, given as codes and numbers in the order of the binners."""
        number = 0
        for binner, value in zip(self.binners, row, strict=True):
            number = number * len(binner.labels) + binner.code_of(value)
        return self._places.get(number, 0)

    def name_of(self, group: int) -> str:
        """Return the name of a group, such as "country=BR & age<40"; group 0 is "all rows"."""
        if not group:
            return "all rows"
        number, labels = int(self.cells[group - 1]), list[str]()
        for binner in reversed(self.binners):
            number, code = divmod(number, len(binner.labels))
            labels.insert(0, binner.labels[code])
        return " & ".join(labels)

    def pack(self) -> tuple[list[Any], FloatArray]:
        """Return a JSON entry per column (None for a category, whose bins are its levels), and all edges, concatenated."""
        entry = [
            None if binner.edges is None else {"edges": len(binner.edges), "labels": list(binner.labels)}
            for binner in self.binners
        ]
        return entry, np.concatenate([np.zeros(0), *(binner.edges for binner in self.binners if binner.edges is not None)])

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, edges: FloatArray, cells: IntArray) -> GroupIndex:
        """Rebuild the index from what `pack` returned and ``cells``; raise FileContentError if anything is invalid."""
        require(isinstance(entry, list) and len(entry) == len(schema.features), "the columns of groups are invalid")
        binners, start = [], 0
        for feature, stored in zip(schema.features, entry, strict=True):
            require((stored is None) == (feature.kind == "categorical"), "the bins of a column do not fit its kind")
            if stored is None:
                binners.append(fit_binner(feature, np.zeros(0), for_new_rows=True))
                continue
            labels, count = read_texts(stored["labels"], "labels"), stored["edges"]
            inside = is_integer(count) and 0 <= count <= len(edges) - start
            require(inside, "a column has more bin edges than are stored")
            require(len(labels) == count + 2, "the number of labels does not fit the number of bin edges")
            own = edges[start : start + count]
            require(bool(np.isfinite(own).all() and (np.diff(own) > 0).all()), "bin edges are not in ascending order")
            binners.append(ColumnBinner(feature.name, own, labels))
            start += count
        require(start == len(edges), "there are bin edges that belong to no column")
        combinations = math.prod(len(binner.labels) for binner in binners)
        require(combinations <= MAX_COMBINATIONS, "there are too many groups to be numbered")
        valid = ((cells >= 0) & (cells < combinations)).all() and (cells[1:] > cells[:-1]).all()
        require(bool(valid), "the group numbers are invalid")
        return cls(tuple(binners), cells)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {cell: group for group, cell in enumerate(self.cells.tolist(), start=1)}

    def __getstate__(self) -> dict[str, Any]:
        return {"binners": self.binners, "cells": self.cells}


def fit_binners(table: Table, bins: int) -> tuple[ColumnBinner, ...]:
    """Fit a binner per feature of a table, with at most ``bins`` bins of a number, and a bin for missing values."""
    return tuple(
        fit_binner(feature, repeat_by_weight(table, feature.name), default_bins=bins, for_new_rows=True)
        for feature in table.schema.features
    )


def fit_groups(table: Table, bins: int = DEFAULT_BINS) -> tuple[GroupIndex, IntArray]:
    """Bin the features and index their combinations; return this index and the position in it of each row's combination."""
    binners = fit_binners(table, bins)
    if math.prod(len(binner.labels) for binner in binners) > MAX_COMBINATIONS:
        raise ArgumentError(
            f"the {len(binners)} columns that form groups have too many combinations to be numbered",
            hint="name fewer columns",
        )
    number = _number_rows(binners, [table.columns[binner.name] for binner in binners], len(table))
    cells, position = np.unique(number, return_inverse=True)
    return GroupIndex(binners, cells), position.ravel()


def _number_rows(binners: Sequence[ColumnBinner], columns: Iterable[AnyArray], rows: int) -> IntArray:
    """Number each row's combination of bins by the mixed-radix integer whose digits are the row's bin codes."""
    number = np.zeros(rows, np.int64)
    for binner, column in zip(binners, columns, strict=True):
        number = number * len(binner.labels) + binner.codes(column)
    return number
