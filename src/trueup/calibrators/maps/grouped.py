"""Curves of the score, one for each group, drawn to that of the whole: what Grouped learns."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.map import Map
from trueup.calibrators.maps.scores import describe_curves

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.calibrators.maps.scores import Curves
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.data.bins import ColumnBinner
    from trueup.data.schema import Schema
    from trueup.kernels.threads import Workers


def number_cells(cuts: Sequence[ColumnBinner], columns: Iterable[AnyArray], rows: int) -> IntArray:
    """Number the combinations of groups that rows fall in, without gaps between combinations that could be."""
    found = np.zeros(rows, np.int64)
    for cut, column in zip(cuts, columns, strict=True):
        found = found * len(cut.labels) + cut.codes(column)
    return found


@dataclass(frozen=True, eq=False)
class GroupMap(Map):
    """A curve for the whole and one for each group; a row is read by both, and lies between the two.

    Attributes
    ----------
    curves : Curves
        The first group is the whole.
    cuts : tuple of ColumnBinner
        How each column falls into groups, in the order of the schema.
    cells : ndarray of int64
        The numbers of the combinations that have a curve of their own, ascending; the first is that of group 1.
    share : ndarray of float64
        How far each group goes by its own curve, from 0 to 1; the first is that of the whole, 0.
    shrinkage : float
        How many rows the whole counts for in each group; infinite where groups do not count.
    """

    kind = "grouped"

    curves: Curves
    cuts: tuple[ColumnBinner, ...]
    cells: IntArray
    share: FloatArray
    shrinkage: float

    @property
    def steps(self) -> int:
        """Count one step."""
        return 1

    def groups_of(self, columns: Iterable[AnyArray], rows: int) -> Int32Array:
        """Give every row its group, 0 where it has none of its own."""
        if not len(self.cells):
            return np.zeros(rows, np.int32)
        number = number_cells(self.cuts, columns, rows)
        place = np.minimum(np.searchsorted(self.cells, number), len(self.cells) - 1)
        return np.where(self.cells[place] == number, place + 1, 0).astype(np.int32)

    @cached_property
    def _places(self) -> dict[int, int]:
        return {cell: at for at, cell in enumerate(self.cells.tolist(), start=1)}

    def _group_of(self, row: Sequence[float]) -> int:
        number = 0
        for cut, value in zip(self.cuts, row, strict=True):
            number = number * len(cut.labels) + cut.code_of(value)
        return self._places.get(number, 0)

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Read every row."""
        return self.curves.read_many(prediction, self.groups_of(columns, len(prediction)), self.share, workers)

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Read one row."""
        return self._read_one(self._group_of(row), prediction)

    def _read_one(self, group: int, prediction: Sequence[float]) -> FloatArray:
        P: FloatArray = np.array([prediction], np.float64)
        out = np.empty(P.shape)
        self.curves.read(P, np.array([group], np.int32), self.share, out)
        return np.asarray(out[0])

    def describe(self) -> str:
        """Count the groups, and say what each has."""
        many = len(self.cells)
        return f"the whole and {many:,} group{'' if many == 1 else 's'}: {describe_curves(self.curves)}"

    def name_of(self, group: int) -> str:
        """Write a group as a segment: "country=BR & age<40".

        The whole is "every row".
        """
        if not group:
            return "every row"
        texts: list[str] = []
        number = int(self.cells[group - 1])
        for cut in reversed(self.cuts):
            number, code = divmod(number, len(cut.labels))
            texts.insert(0, cut.labels[code])
        return " & ".join(texts)

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Say how far the whole moves the row, and how much farther its group does."""
        from trueup.calibrators.losses import apply_link, task_loss
        from trueup.calibrators.rowwise import Part, explain_change

        link, group = task_loss(schema.task).link, self._group_of(row)
        whole, after = self._read_one(0, prediction), self._read_one(group, prediction)
        start, middle, end = (apply_link(np.array([values]), link)[0] for values in (prediction, whole, after))
        parts = []
        for c, label in enumerate(schema.classes or ("",)):
            parts.append(Part("every row", float(middle[c] - start[c]), label))
            if group:
                text = f"{self.name_of(group)} (own share {self.share[group]:.3g})"
                parts.append(Part(text, float(end[c] - middle[c]), label))
        return explain_change(link, prediction, after, tuple(parts))

    def tested(self) -> list[tuple[int, ...]]:
        """List the columns, and pairs of them, that groups are made of."""
        if not len(self.cells):
            return []
        at = range(len(self.cuts))
        return [*((one,) for one in at), *itertools.combinations(at, 2)]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_places"}
