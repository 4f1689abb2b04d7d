"""What an audit does with every part of the rows, wherever it lies; and how the results of two parts add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.audits.facts import Facts
from trueup.audits.family import pairs_of, scores_of
from trueup.audits.layout import RATIO, Marks
from trueup.audits.portrait import Pool, outcomes
from trueup.audits.spilled import Part
from trueup.audits.streamed import Job, column_job, pair_job, triple_job, whole_job
from trueup.kernels import cells as kernel
from trueup.kernels.cells import CellTally
from trueup.kernels.cumulative import rows_of
from trueup.kernels.tally import DENSE_CELLS, Cells, Rows, assign, slots, sort_rows

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import FloatArray, Int32Array, IntArray, UInt64Array
    from trueup.audits.family import Grid
    from trueup.audits.layout import Layout, Pieces, Room
    from trueup.data.bins import ColumnBinner
    from trueup.data.schema import Schema
    from trueup.data.table import Table

    Found = Mapping[tuple[int, ...], Cells]

SEEDS = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)
WORD = (1 << 64) - 1


def _mixed(x: UInt64Array) -> UInt64Array:
    """Mix the bits of every number: the last steps of SplitMix64 (Steele, Lea & Flood 2014)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return x ^ (x >> np.uint64(31))


def _print(y: FloatArray, p: FloatArray, w: FloatArray, seed: int) -> int:
    """Add up a hash of every row: a fingerprint that does not know their order."""
    total = np.full(len(y), seed, np.uint64)
    for column in (y, p, w):
        total = _mixed(total ^ np.ascontiguousarray(column + 0.0).view(np.uint64))
    return int(total.sum(dtype=np.uint64))


class Gathered(NamedTuple):
    """What is known of all rows: facts, marks of every score, and two sums of hashes of the rows."""

    facts: Facts
    marks: dict[str, Marks]
    prints: tuple[int, ...]

    @property
    def fingerprint(self) -> str:
        """Digest outcomes, predictions and weights, whatever their order; never that of an order."""
        return "sum-" + "".join(f"{one:016x}" for one in self.prints)

    @staticmethod
    def join(one: Gathered, other: Gathered) -> Gathered:
        """Add what is known of other rows."""
        prints = tuple((a + b) & WORD for a, b in zip(one.prints, other.prints, strict=True))
        marks = {label: found + other.marks[label] for label, found in one.marks.items()}
        return Gathered(one.facts + other.facts, marks, prints)


@dataclass(frozen=True, eq=False)
class Gather:
    """Learn what is known of the rows of a part."""

    cutters: Sequence[ColumnBinner]
    schema: Schema
    left_out: Mapping[str, str]

    def __call__(self, table: Table, _: int) -> Gathered:
        """Look at the rows of a part."""
        facts = Facts(self.schema, self.left_out, [np.zeros(len(one.labels), np.int64) for one in self.cutters])
        facts.add(table, _codes(table, self.cutters))
        marks, prints = {}, []
        for at, (label, p, y) in enumerate(scores_of(table)):
            marks[label] = Marks.of(p)
            if at == 0:
                w = np.ones(len(y)) if table.weight is None else table.weight
                prints = [_print(outcomes(p, w * (y - p), w), p, w, seed) for seed in SEEDS]
        return Gathered(facts, marks, tuple(prints))


def _codes(table: Table, cutters: Sequence[ColumnBinner]) -> list[Int32Array]:
    return [one.codes(table.columns[one.name]) for one in cutters]


def _part(label: str, rows: Rows, grid: Grid, codes: Sequence[Int32Array]) -> Part:
    """Put the rows of a part in the order of their scores, codes and all."""
    given = np.empty((len(codes), len(rows)), np.int32)
    for at, column in enumerate(codes):
        np.take(column, rows.order, out=given[at], mode="clip")
    return Part(label, rows, grid, 1, given)


def jobs_of(grid: Grid, rows: int, found: Found) -> list[Job]:
    """List the combinations of columns, in the order of an audit in memory; ``found`` has the cells of those crossed."""
    jobs = [whole_job(rows), *(column_job(grid, at) for at in range(len(grid.all_columns)))]
    for pair, thirds in pairs_of(grid).items():
        crossed = pair_job(grid, *pair)
        crossed.cells = found[pair]
        jobs.append(crossed)
        for third in thirds:
            jobs.append(triple_job(grid, crossed, third))
            jobs[-1].cells = found[*pair, third]
    return jobs


@dataclass(frozen=True, eq=False)
class Count:
    """Count the rows of every cell of some combinations; the cells of a pair are known where a third column is crossed."""

    cutters: Sequence[ColumnBinner]
    grid: Grid
    wanted: Sequence[tuple[int, ...]]
    found: Found

    def __call__(self, table: Table, _: int) -> list[tuple[IntArray, IntArray]]:
        """Count the rows of a part."""
        none = np.empty(0)
        rows = Rows(np.arange(len(table)), none.astype(np.int32), none, none, none, real=False)
        part = _part("", rows, self.grid, _codes(table, self.cutters))
        return [self._count(columns, part) for columns in self.wanted]

    def _count(self, columns: tuple[int, ...], part: Part) -> tuple[IntArray, IntArray]:
        job = pair_job(self.grid, *columns[:2])
        if len(columns) > 2:
            job.cells = self.found[columns[:2]]
            job = triple_job(self.grid, job, columns[2])
        job.count(part)
        job.settle(1)
        assert job.cells is not None
        return job.cells.numbers, np.asarray(job.cells.rows, np.int64)


def add_counts(
    one: list[tuple[IntArray, IntArray]], other: list[tuple[IntArray, IntArray]]
) -> list[tuple[IntArray, IntArray]]:
    """Add the counts of other rows."""
    return [_both(a, b) for a, b in zip(one, other, strict=True)]


def _both(a: tuple[IntArray, IntArray], b: tuple[IntArray, IntArray]) -> tuple[IntArray, IntArray]:
    numbers, place = np.unique(np.append(a[0], b[0]), return_inverse=True)
    times = np.zeros(len(numbers), np.int64)
    times[place[: len(a[0])]] = a[1]
    times[place[len(a[0]) :]] += b[1]
    return numbers, times


class Summed(NamedTuple):
    """Of every score its tally, and the lowest and highest score in each of the finest cells."""

    tallies: list[CellTally]
    low: list[FloatArray]
    high: list[FloatArray]

    @staticmethod
    def join(one: Summed, other: Summed) -> Summed:
        """Add the sums of other rows."""
        return Summed(
            [a + b for a, b in zip(one.tallies, other.tallies, strict=True)],
            [np.minimum(a, b) for a, b in zip(one.low, other.low, strict=True)],
            [np.maximum(a, b) for a, b in zip(one.high, other.high, strict=True)],
        )


@dataclass(frozen=True, eq=False)
class Sum:
    """Sum up the segments of some combinations, by cells of every score."""

    cutters: Sequence[ColumnBinner]
    grid: Grid
    rows: int
    found: Found
    jobs: slice
    layouts: Sequence[Layout]
    rooms: Sequence[Room]

    def __call__(self, table: Table, _: int) -> Summed:
        """Sum up the rows of a part."""
        jobs, codes = jobs_of(self.grid, self.rows, self.found)[self.jobs], _codes(table, self.cutters)
        out = Summed([], [], [])
        for (label, p, y), layout, room in zip(scores_of(table), self.layouts, self.rooms, strict=True):
            rows = sort_rows(y, p, table.weight, real=False)
            out.tallies.append(_tally(_part(label, rows, self.grid, codes), jobs, layout, room))
            for ends, extreme, nobody in ((out.low, np.minimum, np.inf), (out.high, np.maximum, -np.inf)):
                ends.append(np.full(len(layout.edges) + 1, nobody))
                extreme.at(ends[-1], layout.place(p), p)
        return out


def _tally(part: Part, jobs: Sequence[Job], layout: Layout, room: Room) -> CellTally:
    rows, place, start = part.rows, layout.place(part.rows.p), 0
    tally = CellTally.empty(len(room.level), int(room.first[-1]))
    last, step = np.full(len(room.level), -1, np.int64), np.full(len(room.level), -1, np.int32)
    for job in jobs:
        assert job.cells is not None
        some = slice(start, start + len(job.cells))
        start = some.stop
        parent, code, width, slot = _slots(job, part)
        kernel.advance(
            parent, code, width, slot, rows.step, rows.e, rows.p, rows.w if len(rows.w) else None,
            place, layout.maps, room.level[some], room.first[some], tally.state[some], tally.weights[some],
            tally.cells, tally.parts, last[some], step[some],
        )  # fmt: skip
    kernel.close(tally.cells, last)
    return tally


def _slots(job: Job, part: Part) -> tuple[Int32Array, Int32Array, int, Int32Array]:
    """Say in which segment of a combination each row is, as the kernels are told."""
    parent, code, cells = job.parent(part), job.code(part), job.cells
    assert cells is not None
    if job.size <= DENSE_CELLS:
        return parent, code, job.shape[1], slots(job.size, cells.numbers)
    own = assign(parent, code, job.shape, cells.numbers)
    return own, own, 0, slots(len(cells), np.arange(len(cells)))


@dataclass(frozen=True, eq=False)
class Look:
    """Look at some cells of the segments again, in pieces."""

    given: Sum
    pieces: Sequence[Pieces]

    def __call__(self, table: Table, _: int) -> list[CellTally]:
        """Sum up the rows of a part."""
        known = self.given
        jobs, codes = jobs_of(known.grid, known.rows, known.found)[known.jobs], _codes(table, known.cutters)
        out = []
        where = zip(known.layouts, known.rooms, self.pieces, strict=True)
        for (label, p, y), (layout, room, pieces) in zip(scores_of(table), where, strict=True):
            rows = sort_rows(y, p, table.weight, real=False)
            out.append(_look(_part(label, rows, known.grid, codes), jobs, layout, room, pieces))
        return out


def _look(part: Part, jobs: Sequence[Job], layout: Layout, room: Room, pieces: Pieces) -> CellTally:
    rows, place, start = part.rows, layout.finer(part.rows.p), 0
    tally, chosen = CellTally.empty(0, int(pieces.starts[-1])), pieces.numbers(int(room.first[-1]))
    last, step = np.full(len(room.level), -1, np.int64), np.full(len(room.level), -1, np.int32)
    for job in jobs:
        assert job.cells is not None
        some = slice(start, start + len(job.cells))
        start = some.stop
        kernel.advance_finer(
            *_slots(job, part), rows.step, rows.e, place, RATIO, layout.maps, layout.begins, room.level[some],
            room.first[some], pieces.shift[some], chosen, pieces.starts, tally.cells, tally.parts, last[some], step[some],
        )  # fmt: skip
    kernel.close(tally.cells, last)
    return tally


def add_looks(one: list[CellTally], other: list[CellTally]) -> list[CellTally]:
    """Add what was seen of other rows."""
    return [a + b for a, b in zip(one, other, strict=True)]


@dataclass(eq=False)
class Drawn:
    """Sums of curves, a row a cell, and of the finest cells of the whole."""

    cells: FloatArray
    whole: FloatArray

    def __add__(self, other: Drawn) -> Drawn:
        """Add those of other rows."""
        return Drawn(self.cells + other.cells, self.whole + other.whole)

    def __getstate__(self) -> dict[str, Any]:
        """Leave empty cells behind: of few rows there are many."""
        some = np.flatnonzero(self.cells[:, 0]).astype(np.int32)
        return {"size": len(self.cells), "some": some, "cells": self.cells[some], "whole": self.whole}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.cells, self.whole = np.zeros((state["size"], 6)), state["whole"]
        self.cells[state["some"]] = state["cells"]


@dataclass(frozen=True, eq=False)
class Curves:
    """Sum up the curves of some segments of one score by cells; and of the finest cells what a portrait needs."""

    cutters: Sequence[ColumnBinner]
    grid: Grid
    target: int
    layout: Layout
    columns: Int32Array
    codes: Int32Array
    room: Room

    def __call__(self, table: Table, _: int) -> Drawn:
        """Sum up the rows of a part."""
        cells, whole = np.zeros((int(self.room.first[-1]), 6)), np.zeros((len(self.layout.edges) + 1, 6))
        if not len(table):
            return Drawn(cells, whole)
        label, p, y = list(scores_of(table))[self.target]
        rows = sort_rows(y, p, table.weight, real=False)
        part = _part(label, rows, self.grid, _codes(table, self.cutters))
        place, (order, start, first) = self.layout.place(rows.p), part.index
        room, at = np.empty(len(rows), np.int32), {}
        for k, level in enumerate(self.room.level.tolist()):
            if level not in at:
                at[level] = self.layout.maps[level][place]
            found = rows_of(self.columns[k], self.codes[k], part.codes, order, start, first, room)
            own = cells[self.room.first[k] : self.room.first[k + 1]]
            kernel.gather(room[:found], at[level], rows.e, rows.p, rows.w, own)
        for at_column, values in enumerate(_sums(rows)):
            whole[:, at_column] = np.bincount(place, values, len(whole))
        return Drawn(cells, whole)


def _sums(rows: Rows) -> tuple[FloatArray, ...]:
    """Give what the entries of a `Pool` are summed up from."""
    pool = Pool.of(rows)
    return pool.rows.astype(np.float64), pool.w, pool.w * pool.p, pool.e, pool.spread, pool.square
