"""Periods of a monitor: rows are summed over segments while a period is open, and become evidence when it closes."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.errors import DataError
from trueup.kernels._jit import run
from trueup.kernels.sequential import EXTRA_COLUMNS, MAX_SHIFT, SCALE, add_clusters, add_rows, row_factors
from trueup.monitoring.eprocess import alternatives
from trueup.monitoring.history import SegmentHistory
from trueup.monitoring.ledger import RowLedger
from trueup.monitoring.result import RowCounts
from trueup.monitoring.rows import GivenRows
from trueup.monitoring.segments import MAX_CANDIDATES

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.data.table import Schema
    from trueup.kernels.threads import Workers
    from trueup.monitoring.drift import DriftProcesses
    from trueup.monitoring.eprocess import Budget, EProcesses
    from trueup.monitoring.rows import MonitoredRows
    from trueup.monitoring.segments import CellLocator, Key, MonitoredSegments

MONDAY = 3.0  # days from the Monday before 1970-01-01 to that day: periods of a week begin on Mondays
DAYS_PER_WEEK = 7.0
BLOCK_ROWS = 15_984  # a multiple of a power of two would place all columns of a block in the same lines of a cache
ROWS_PER_THREAD = 100_000
MAX_PERIOD_ROWS = int(2.0**63 / (SCALE * MAX_SHIFT))  # whose sums are integers of 64 bits


class Tolerated(NamedTuple):
    """The relative error that raises no alarm, and by how much the sample multiplies the odds of the population."""

    error: float
    odds: float


@dataclass(eq=False)
class OpenPeriod:
    """A period that has not ended yet: sums of its rows so far or, with clusters, the rows themselves.

    ``unscored`` and ``unlabelled`` count the rows that were left out.
    """

    number: int
    sums: IntArray
    candidates: list[dict[Key, int]]
    given: GivenRows = field(default_factory=GivenRows)
    rows: MonitoredRows | None = None
    count: int = 0
    unscored: int = 0
    unlabelled: int = 0

    @property
    def given_rows(self) -> int:
        """The rows that the period has, with those that are left out."""
        return self.count + self.unscored + self.unlabelled


@dataclass(eq=False)
class OpenDrift:
    """A period of the drift that has not ended yet: rows per level, and all rows."""

    number: int
    levels: IntArray
    rows: int = 0
    given: GivenRows = field(default_factory=GivenRows)


@dataclass(eq=False)
class Clock:
    """Periods of one kind of rows: those closed, and the latest time seen, in days since 1970-01-01."""

    now: float = -math.inf
    first: int | None = None
    closed: int | None = None  # the last closed period
    count: int = 0  # closed periods with rows

    def weeks(self, period: int, length: float) -> float:
        """Return the weeks from the start of the first period to that of ``period``."""
        assert self.first is not None
        return (period - self.first) * length / DAYS_PER_WEEK

    def span(self, period: int, length: float) -> tuple[float, float]:
        """Return the weeks at which a period, with those without rows before it, began and ended."""
        before = 0.0 if self.closed is None else self.weeks(self.closed + 1, length)
        return before, self.weeks(period + 1, length)

    def close(self, period: int) -> None:
        """Count a period as closed."""
        self.closed, self.count = period, self.count + 1


def period_numbers(days: FloatArray, length: float) -> IntArray:
    """Return the number of the period of each time, in days since 1970-01-01."""
    return np.floor((days + MONDAY) / length).astype(np.int64)


def period_start(number: int, length: float) -> float:
    """Return the day on which a period begins."""
    return number * length - MONDAY


@dataclass(eq=False)
class MonitorState:
    """Everything that a monitor has learned; `Monitor.update` changes a copy, and replaces it at the end."""

    segments: MonitoredSegments
    processes: EProcesses
    centre: float  # logit of the mean reference score
    schema: Schema
    clock: Clock = field(default_factory=Clock)
    open: OpenPeriod | None = None
    history: SegmentHistory = field(default_factory=SegmentHistory)
    drift: DriftProcesses | None = None
    drift_clock: Clock = field(default_factory=Clock)
    drift_open: OpenDrift | None = None
    rows: RowCounts = field(default_factory=RowCounts)
    drift_rows: RowCounts = field(default_factory=RowCounts)
    ledger: RowLedger = field(default_factory=RowLedger)
    distinct: frozenset[int] = frozenset()  # segments of distinct alarms
    reported: frozenset[int] = frozenset()  # those of all updates before the last one
    notes: tuple[str, ...] = ()
    cached: tuple[Any, list[CellLocator]] | None = None  # locators, and the number of segments and levels that they know

    def locators(self) -> list[CellLocator]:
        """Return the locators of all segments."""
        known = (len(self.segments), *(column.codes for column in self.segments.columns))
        if self.cached is None or self.cached[0] != known:
            self.cached = known, self.segments.locators()
        return self.cached[1]

    def add(self, rows: MonitoredRows, number: int, workers: Workers, tolerance: Tolerated, *, ends: bool) -> int:
        """Add rows to a period, opened if it is not, and return how many more it counts.

        Rows of a period that ``ends`` now need not be remembered.
        """
        period = self.open
        if period is None:
            period = self._new_period(number)
        if period.number != number:
            raise DataError(f"rows of period {number} came while period {period.number} was open")
        before = period.count
        rows, replaces, lost = period.given.admit(rows, ends=ends)
        if replaces:
            period = replace(self._new_period(number), given=period.given)
            self.ledger.lose(number, lost)
        complete, unscored = rows.complete(), int(np.isnan(rows.p).sum())
        period.unscored += unscored
        period.unlabelled += len(rows) - len(complete) - unscored
        period.count += len(complete)
        if period.count > MAX_PERIOD_ROWS:
            hint = "start a monitor with a shorter {period}"
            raise DataError(f"a period has more than {MAX_PERIOD_ROWS:,} rows", hint, settings={"period": "1 day"})
        self.open = period
        if complete.cluster is not None:
            period.rows = complete if period.rows is None else period.rows.join(complete)
        elif len(complete):
            self._sum_rows(complete, period, workers, tolerance)
        return period.count - before

    def _new_period(self, number: int) -> OpenPeriod:
        width = len(alternatives()) + EXTRA_COLUMNS
        empty: list[dict[Key, int]] = [{} for _ in self.segments.combinations]
        return OpenPeriod(number, np.zeros((len(self.segments), width), np.int64), empty)

    def _sum_rows(self, rows: MonitoredRows, period: OpenPeriod, workers: Workers, tolerance: Tolerated) -> None:
        locators = self.locators()
        size = max(ROWS_PER_THREAD, -(-len(rows) // workers.threads))
        parts = [slice(start, start + size) for start in range(0, len(rows), size)]

        def work(part: slice) -> tuple[IntArray, list[dict[Key, int]]]:
            sums = np.zeros_like(period.sums)
            found: list[dict[Key, int]] = [{} for _ in self.segments.combinations]
            stop = min(part.stop, len(rows))
            for start in range(part.start, stop, BLOCK_ROWS):
                block = rows.take(slice(start, min(start + BLOCK_ROWS, stop)))
                segments, candidates = self.segments.locate(locators, block.codes, len(block))
                factors = self._factors(block, tolerance)
                run(add_rows, len(block) * len(locators) * factors.shape[1], segments, factors, sums)
                _add_counts(found, candidates)
            return sums, found

        for sums, found in workers.map(work, parts):
            period.sums += sums
            _add_counts(period.candidates, found)

    def _sum_clusters(self, rows: MonitoredRows, period: OpenPeriod, tolerance: Tolerated) -> None:
        """Add the rows of whole clusters; the order of rows within a cluster does not matter."""
        assert rows.cluster is not None
        rows = rows.take(np.lexsort((rows.y, rows.p, rows.cluster)))
        assert rows.cluster is not None
        cluster = np.unique(rows.cluster, return_inverse=True)[1].astype(np.int32)
        factors = self._factors(rows, tolerance)
        for locator in self.locators():
            segments, candidates = self.segments.locate([locator], rows.codes, len(rows))
            order = np.argsort(segments[0], kind="stable")
            run(add_clusters, factors.size, segments[0], cluster, order, factors, EXTRA_COLUMNS, period.sums)
            _add_counts(period.candidates, candidates)

    def _factors(self, rows: MonitoredRows, tolerance: Tolerated) -> FloatArray:
        grid = alternatives()
        out = np.empty((len(rows), len(grid) + EXTRA_COLUMNS))
        run(row_factors, 4 * out.size, rows.y, rows.p, grid.shifts, grid.slopes, self.centre, 1.0 + tolerance.error,
            tolerance.odds, out)  # fmt: skip
        return out

    def close(self, length: float, alpha: float, budget: Budget, tolerance: Tolerated) -> None:
        """Add the open period to the evidence, raise alarms, and make segments of levels that have enough rows by now."""
        period, clock, segments = self.open, self.clock, self.segments
        assert period is not None
        if period.rows is not None:
            self._sum_clusters(period.rows, period, tolerance)
        before, now = clock.span(period.number, length)
        self.processes.close(period.sums, period.number, before, now, segments.log_limits(alpha), budget)
        self.history.record(period.number, self.processes, period.sums, segments)
        for combination, found in zip(segments.combinations, period.candidates, strict=True):
            segments.uncounted += combination.add_candidates(found, MAX_CANDIDATES // max(len(segments.combinations), 1))
        self.processes.append(segments.promote(), now)
        clock.close(period.number)
        self.ledger.close(period.number, period.given_rows, period.unlabelled)
        self.open = None

    def add_drift(self, rows: MonitoredRows, number: int, *, ends: bool) -> int:
        """Add rows to the period of the drift, and return how many more it counts."""
        assert self.drift is not None
        period = self.drift_open
        if period is None:
            period = OpenDrift(number, np.zeros(len(self.drift.reference), np.int64))
        before = period.rows
        rows, replaces, _ = period.given.admit(rows, ends=ends)
        if replaces:
            period = OpenDrift(number, np.zeros_like(period.levels), given=period.given)
        complete = rows.complete()
        period.levels = period.levels + self.drift.count(self.segments, complete.codes)
        period.rows += len(complete)
        self.drift_open = period
        return period.rows - before

    def close_drift(self, length: float, alpha: float) -> None:
        """Add the open period of the drift to its evidence."""
        period = self.drift_open
        assert self.drift is not None
        assert period is not None
        span = self.drift_clock.span(period.number, length)
        self.drift.close(period.levels, period.rows, period.number, *span, alpha)
        self.drift_clock.close(period.number)
        self.drift_open = None


def _add_counts(total: list[dict[Key, int]], more: Sequence[Mapping[Key, int]]) -> None:
    for own, counts in zip(total, more, strict=True):
        for key, count in counts.items():
            own[key] = own.get(key, 0) + count
