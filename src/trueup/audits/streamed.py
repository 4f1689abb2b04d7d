"""The family of segments of rows that come in parts: counted first, then summed up in the order of the scores."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.family import Block, Family, Target, in_order, listed_levels, pairs_of
from trueup.kernels import cumulative as sums
from trueup.kernels.tally import DENSE_CELLS, Cells, Rows, Tally, assign, slots
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import Int32Array, IntArray
    from trueup.audits.family import Grid


MOST_HELD = 20_000_000  # rows whose scores are held at once, where p-values are refined
BYTES_HELD = 50  # of one of them


@dataclass(frozen=True, eq=False)
class StreamedFamily(Family):
    """A family whose rows are gone through part by part."""

    again: Callable[[], Iterator[Target]] = field(default=lambda: iter(()))

    def parts(self) -> Iterator[Target]:
        """Go through the rows, in the order of their scores, once more."""
        return self.again()


@dataclass(eq=False)
class Job:
    """One combination of columns: ``parent`` and ``code`` say in which cell of ``shape`` each row of a part is.

    ``codes`` are those of the parent's segments, one row each.
    """

    columns: tuple[int, ...]
    codes: Int32Array
    parent: Callable[[Target], Int32Array]
    code: Callable[[Target], Int32Array]
    shape: tuple[int, int]
    last: IntArray
    """The level that each code of the last column stands for."""
    cells: Cells | None = None
    counts: Any = None
    state: Any = None
    weights: Any = None
    slot: Any = None

    @property
    def size(self) -> int:
        """Cells there may be."""
        return self.shape[0] * self.shape[1]

    def count(self, part: Target) -> None:
        """Count the rows of every cell of a part."""
        width = self.shape[1]
        parent, code = self.parent(part), self.code(part)
        if self.size <= DENSE_CELLS:
            if self.counts is None:
                self.counts = np.zeros(self.size, np.int64)
            sums.count_cells(parent, code, width, self.counts)
            return
        cell = parent.astype(np.int64) * width + code
        numbers, times = np.unique(cell[(parent >= 0) & (code >= 0)], return_counts=True)
        if self.counts is not None:
            both = np.concatenate([self.counts[0], numbers])
            numbers, place = np.unique(both, return_inverse=True)
            times = np.bincount(place, np.concatenate([self.counts[1], times])).astype(np.int64)
        self.counts = numbers, times

    def settle(self, min_rows: int) -> None:
        """Keep the cells with rows enough."""
        if self.counts is None:
            numbers = times = np.empty(0, np.int64)
        elif isinstance(self.counts, tuple):
            numbers, times = self.counts
        else:
            numbers = np.flatnonzero(self.counts)
            times = self.counts[numbers]
        keep = times >= min_rows
        self.cells = Cells(numbers[keep], times[keep], int(len(keep) - keep.sum()))
        self.counts = None

    def begin(self, *, real: bool) -> None:
        """Make room for the sums."""
        assert self.cells is not None
        self.state, self.weights = np.zeros((len(self.cells), 15 if real else 8)), np.zeros((len(self.cells), 2))
        dense = self.size <= DENSE_CELLS
        self.slot = slots(self.size, self.cells.numbers) if dense else slots(len(self.cells), np.arange(len(self.cells)))

    def advance(self, part: Target) -> None:
        """Take in the rows of a part."""
        assert self.cells is not None
        if not len(self.cells):
            return
        rows, width = part.rows, self.shape[1]
        parent, code = self.parent(part), self.code(part)
        if self.size > DENSE_CELLS:
            parent = code = assign(parent, code, self.shape, self.cells.numbers)
            width = 0
        run = sums.advance_real if rows.real else sums.advance
        w = rows.w if len(rows.w) else None
        run(parent, code, width, self.slot, rows.step, rows.e, rows.p, w, self.state, self.weights)

    def block(self, *, real: bool, weighted: bool, thin: int | None = None) -> Block:
        """End the sums, and name the segments."""
        assert self.cells is not None
        (sums.close_real if real else sums.close)(self.state)
        if not weighted:
            self.weights[:] = self.cells.rows[:, None]
        self.slot = None
        tally = Tally(np.asarray(self.cells.rows, np.int64), self.state, self.weights, real)
        return in_order(Block(self.columns, self.segments(), tally, self.cells.thin if thin is None else thin))

    def segments(self) -> Int32Array:
        """Give the codes of every segment, one row each."""
        assert self.cells is not None
        own = np.empty((len(self.cells), len(self.columns)), np.int32)
        if self.columns:
            own[:, :-1] = self.codes[self.cells.numbers // self.shape[1]]
            own[:, -1] = self.last[self.cells.numbers % self.shape[1]]
        return own


def stream_family(
    label: str,
    grid: Grid,
    rows: int,
    again: Callable[[], Iterator[Target]],
    workers: Workers,
    *,
    real: bool,
    weighted: bool,
    room: int,
) -> StreamedFamily:
    """Find every segment and sum it up, as `find_family` does, of rows that come in parts.

    ``room`` is how many bytes the tables of cells may take at once: rows are gone through again for what is more.
    """
    alone = [whole_job(rows), *(column_job(grid, at) for at in range(len(grid.all_columns)))]
    thin = [0, *(listed_levels(grid, at)[1] for at in range(len(grid.all_columns)))]
    pairs = pairs_of(grid)
    crossed = {pair: pair_job(grid, *pair) for pair in pairs}
    run = partial(_run, again, workers, rows)
    _count(list(crossed.values()), grid, rows, room, run)
    deeper = {pair: [triple_job(grid, job, third) for third in pairs[pair]] for pair, job in crossed.items()}
    _count([job for jobs in deeper.values() for job in jobs], grid, rows, room, run)
    jobs = [*alone, *(one for pair, job in crossed.items() for one in (job, *deeper[pair]))]
    few = [*thin, *(None for _ in jobs[len(alone) :])]
    blocks: list[Block] = []
    for group in _groups(jobs, [4 * min(job.size, DENSE_CELLS) for job in jobs], room):
        for job in group:
            job.begin(real=real)
        run("advance", group)
        blocks += [job.block(real=real, weighted=weighted, thin=few[len(blocks) + at]) for at, job in enumerate(group)]
    none = np.empty(0)
    nobody = Rows(none.astype(np.int64), none.astype(np.int32), none, none, none, real)
    return StreamedFamily(Target(label, nobody, grid, workers.threads), blocks, min(MOST_HELD, room // BYTES_HELD), again)


def _groups(jobs: Sequence[Job], sizes: Sequence[int], room: int) -> list[list[Job]]:
    """Cut jobs into groups whose tables take no more than some room; one that takes more is a group of its own."""
    groups: list[list[Job]] = []
    total = 0
    for job, size in zip(jobs, sizes, strict=True):
        if not groups or total + size > room:
            groups.append([])
            total = 0
        groups[-1].append(job)
        total += size
    return groups


def _run(again: Callable[[], Iterator[Target]], workers: Workers, rows: int, what: str, jobs: Sequence[Job]) -> None:
    """Let every job take in every part."""
    done, quiet = 0, Workers(workers.threads)
    for part in again():
        part.nought, part.pruned  # noqa: B018  # made here, once, and not by every thread at the same time
        quiet.map(partial(_take_in, what, part), jobs)
        done += len(part.rows)
        if workers.progress is not None:
            workers.progress(done, rows)


def _take_in(what: str, part: Target, job: Job) -> None:
    getattr(job, what)(part)


def _count(jobs: Sequence[Job], grid: Grid, rows: int, room: int, run: Callable[[str, Sequence[Job]], None]) -> None:
    """Count the rows of every cell, and keep the cells with rows enough."""
    sizes = [8 * job.size if job.size <= DENSE_CELLS else 48 * min(job.size, rows) for job in jobs]
    for group in _groups(jobs, sizes, room):
        run("count", group)
        for job in group:
            job.settle(grid.min_rows)


def _nought(part: Target) -> Int32Array:
    return part.nought


def whole_job(rows: int) -> Job:
    """Take all rows."""
    cells = Cells(np.zeros(1, np.int64), np.array([rows]))
    return Job((), np.empty((1, 0), np.int32), _nought, _nought, (1, 1), np.empty(0, np.int64), cells)


def column_job(grid: Grid, at: int) -> Job:
    """Take the levels of one column that are listed."""
    counts, (levels, _) = grid.counts[at], listed_levels(grid, at)
    cells, every = Cells(levels, counts[levels]), np.arange(len(counts))
    return Job((at,), np.empty((1, 0), np.int32), _nought, lambda part: part.codes[at], (1, len(counts)), every, cells)


def pair_job(grid: Grid, a: int, b: int) -> Job:
    """Cross two columns."""
    kept = grid.kept
    shape = len(kept[a]), len(kept[b])
    return Job(
        (a, b), kept[a][:, None].astype(np.int32), lambda part: part.pruned[a], lambda part: part.pruned[b], shape, kept[b]
    )


def triple_job(grid: Grid, pair: Job, third: int) -> Job:
    """Cross the segments of a pair with a third column."""
    cells, (a, b), shape = pair.cells, pair.columns, pair.shape
    assert cells is not None

    def parent(part: Target) -> Int32Array:
        return assign(part.pruned[a], part.pruned[b], shape, cells.numbers)

    kept = grid.kept[third]
    return Job((a, b, third), pair.segments(), parent, lambda part: part.pruned[third], (len(cells), len(kept)), kept)
