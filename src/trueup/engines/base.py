"""Rows that lie in parts, on this machine or on many: what is done with each part, and what they do together.

An engine lends three things: `Frames.fold` (every part by itself, the results added up), `Frames.stream` (one part after
the other, here) and `Frames.gang` (all parts at the same time, talking to each other). What is done with the rows is
written once, for all engines, in the rooms above.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from trueup._types import FloatArray
    from trueup.data.schema import Schema
    from trueup.data.table import Table


T = TypeVar("T")


class Team(Protocol):
    """Processes that each hold a part of the rows and take every step together.

    All of them must call `sum`, `largest` and `link` equally often, in the same order; all hear the same answer, to the
    last bit.
    ``threads`` is how many threads this process may use; 0 is as many as there are cores.
    """

    rank: int
    size: int
    threads: int

    def sum(self, own: Any) -> FloatArray:
        """Add the vectors of all."""

    def largest(self, own: Any) -> FloatArray:
        """Take the largest of all, place by place."""

    def link(self) -> None:
        """Open the connections over which trees are grown together, unless they are open."""


class Alone:
    """A team of one: all rows are here."""

    rank = 0
    size = 1
    threads = 0

    def sum(self, own: Any) -> FloatArray:
        """Give back what was told."""
        return np.asarray(own, np.float64)

    def largest(self, own: Any) -> FloatArray:
        """Give back what was told."""
        return np.asarray(own, np.float64)

    def link(self) -> None:
        """Do nothing: there is no one else."""


ALONE = Alone()


class Frames(ABC):
    """The frames of one engine, a part each: what Spark and Dask lend us.

    Functions that are passed on travel to other machines: they are functions of this package, `functools.partial` of
    them, or plain objects. What they raise of `TrueupError` is raised here again as it was.

    Attributes
    ----------
    names : tuple of str
        The columns.
    """

    names: tuple[str, ...]

    @abstractmethod
    def fold(self, work: Callable[[Any, int], T], add: Callable[[T, T], T], columns: Sequence[str]) -> T:
        """Do the work on every part, told its frame (pyarrow or pandas) and its number; add up, in pairs of neighbours."""

    @abstractmethod
    def stream(self, columns: Sequence[str]) -> Iterator[Any]:
        """Give one frame after the other, in their order; no more than one is held here at a time."""

    @abstractmethod
    def shuffle(
        self,
        split: Callable[[Any, int], tuple[T, Mapping[int, bytes]]],
        add: Callable[[T, T], T],
        columns: Sequence[str],
        partitions: int,
    ) -> tuple[T, ShuffledRecords]:
        """Move the records of all rows to new partitions, in one pass over the frame.

        ``split`` is called with the frame of a partition and its number; it returns a value and the records by number of
        their new partition. The values are added up in pairs of neighbours and returned with the new partitions, which are
        kept until they are closed.
        """

    @abstractmethod
    def gang(
        self,
        prepare: Callable[[Any, int], Table],
        work: Callable[[Table, Sequence[int], Team], T],
        columns: Sequence[str],
    ) -> T:
        """Let processes that hold all parts work at the same time; give what the first of them found.

        Each process has the rows of one part or of several, joined: the work is told them, how many rows each of these
        parts has, and the team. A process that is lost is a `LostWorkerError` within a minute.
        """


class ShuffledRecords(ABC):
    """Records in new partitions, numbered from 0, kept by the workers of a cluster until they are closed."""

    @abstractmethod
    def map_reduce(self, work: Callable[[list[bytes], int], T], add: Callable[[T, T], T]) -> T:
        """Call ``work`` on the records and the number of every partition that has some; add the results in their order.

        Records come as one item per partition of the frame that they were moved from, in its order.
        """

    @abstractmethod
    def close(self) -> None:
        """Release the records."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()


class Parts(Protocol):
    """Rows in parts with their roles settled: one schema, one vocabulary for all.

    Attributes
    ----------
    schema : Schema
    roles : mapping of str to Any
        As they were given: outcome, prediction, weight, task, categorical, unlabelled, classes.
    left_out : mapping of str to str
        Columns that were left out of the features, and why.
    rows : int
        In all parts, those that are set aside included.
    room : int
        Bytes that rows may take here at once.
    folder : Path
        For what does not fit; it goes when the rows are closed.
    whole_outcomes : bool
        Whether every outcome is 0 or 1, or a class.
    """

    @property
    def schema(self) -> Schema:
        """Say what the columns are."""

    @property
    def roles(self) -> Mapping[str, Any]:
        """Give the roles as they were given."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """Name the columns that were left out, and why."""

    @property
    def rows(self) -> int:
        """Count all rows."""

    @property
    def room(self) -> int:
        """Say how many bytes rows may take here."""

    @property
    def folder(self) -> Path:
        """Give the folder for what does not fit."""

    @property
    def whole_outcomes(self) -> bool:
        """Say whether every outcome is 0 or 1, or a class."""

    def fold(self, work: Callable[[Table, int], T], add: Callable[[T, T], T]) -> T:
        """Do the work on the Table of every part, told its number too; add up what was found."""

    def tables(self) -> Iterator[Table]:
        """Give one Table after the other, here."""

    def gang(self, work: Callable[[Table, Sequence[int], Team], T]) -> T:
        """Let processes that hold all parts work at the same time; see `Frames.gang`."""

    def values(self, name: str) -> tuple[FloatArray, bool]:
        """Give a column of numbers, dates or predictions, or a fair sample; say whether it is all of it.

        Of rows that are not set aside.
        """

    def distinct(self, name: str, most: int, *, days: bool = False) -> FloatArray:
        """Give the distinct values of a column of numbers or dates (whole days), NaN if one is missing.

        Of more than ``most`` some are given, more than that.
        """

    def lacks(self, name: str) -> bool:
        """Say whether some row that is not set aside has no value in a column."""
