"""Segments of a plan and their shares of alpha, in an audit and in a monitor: those of a pilot, or stated by numbers."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.audit import MAX_CELLS
from trueup.audits.findings import alpha_shares, testable_segments
from trueup.audits.segments import MemoryRows, find_families, plan_grid, segment_codes
from trueup.audits.settings import AuditSettings
from trueup.data.bins import check_bins
from trueup.kernels.threads import Workers
from trueup.metrics.planning import audit_share, monitor_share
from trueup.monitoring.segments import MonitoredSegments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.audits.segments import SegmentColumns
    from trueup.data.table import Table

    Group = tuple[int, ...]  # columns that are combined, by position; none: all rows

MAX_SEGMENTS = 10_000  # of a monitor, by default


@dataclass(frozen=True)
class StatedSegments:
    """What shares alpha, by numbers: a ``count`` of segments, or columns with ``levels``; the segment is of ``combined``.

    Every combination of levels is taken to have enough rows, in a monitor from the start.
    """

    levels: tuple[int, ...] = ()
    depth: int = 1
    combined: int = 0
    score_bands: int = 0
    count: int | None = None

    def shares(self) -> tuple[float, float]:
        """Return the shares of a segment in an audit and in a monitor; without any numbers it is the only one."""
        if self.count is not None:
            return 1.0 / self.count, 1.0 / self.count
        audited = audit_share(self.levels, self.depth, self.combined)
        return audited, monitor_share(self.levels, self.depth, self.combined, self.score_bands)

    def notes(self, *, monitor: bool = False) -> Iterator[str]:
        """Yield what is assumed."""
        if self.count is not None:
            yield f"segments: {self.count:,}, with the same share of alpha each"
            return
        bands = f"{self.score_bands} score bands are one more column" if self.score_bands > 1 else ""
        if not self.levels:
            yield "segments: this one alone; with others it takes more rows, so state their columns, or their number"
            if monitor and bands:
                yield f"segments of a monitor: {bands}"
            return
        deepest = ("", ", and their pairs", ", their pairs and triples")[min(self.depth, len(self.levels)) - 1]
        yield f"segments: columns of {', '.join(map(str, self.levels))} levels{deepest}, each with enough rows to be tested"
        if monitor:
            also = f", and {bands}" if bands else ""
            yield f"segments of a monitor: each column has one more, of rare and new levels{also}"


@dataclass(frozen=True, eq=False)
class Pilot:
    """Scores and segment columns of rows that stand for those to come, and what shares alpha among their segments."""

    table: Table
    bins: int | Mapping[str, Any]
    depth: int
    min_rows: int
    score_bands: int

    def __len__(self) -> int:
        return len(self.table)

    def notes(self, *, monitor: bool) -> Iterator[str]:
        """Yield what is assumed."""
        yield "segments: those of the pilot with enough rows, in an audit of as many rows as are planned"
        if monitor:
            yield "segments of a monitor: those of one that starts with the pilot"

    def segments(self, combined: int) -> Iterator[tuple[Group, str, FloatArray]]:
        """Yield columns, label and scores of every segment of 1 to ``combined`` columns that has rows."""
        columns, columns_codes, _ = self._coded
        for size in range(1, combined + 1):
            for group in itertools.combinations(range(len(columns.names)), size):
                widths = [len(columns.labels[at]) for at in group]
                cell = np.ravel_multi_index([columns_codes[at] for at in group], widths)
                order = np.argsort(cell, kind="stable")
                cells, starts = np.unique(cell[order], return_index=True)
                for number, rows in zip(cells, np.split(order, starts[1:]), strict=True):
                    codes = np.unravel_index(number, widths)
                    labels = (columns.labels[at][code] for at, code in zip(group, codes, strict=True))
                    yield group, " & ".join(labels), self.table.prediction[rows]

    def audit_share(self, group: Group, rows: float) -> float:
        """Return the share of alpha of a segment of the columns ``group`` in an audit of so many rows like these."""
        return _share(self._audit_shares(max(math.ceil(self.min_rows * len(self) / rows), 1)), group)

    def monitor_share(self, group: Group) -> float:
        """Return the share of alpha of a segment of the columns ``group`` in a monitor that these rows start."""
        return _share(self._monitor_shares, group)

    @cached_property
    def _coded(self) -> tuple[SegmentColumns, list[Int32Array], list[IntArray]]:
        """Names and labels of the segment columns in an audit, codes of all rows, and rows per level."""
        return segment_codes(self.table, self.bins, None, Workers())

    @cached_property
    def _audit_shares(self) -> Callable[[int], dict[Group, float]]:
        """A function that returns the shares of tested segments by their columns, given the least rows of a segment."""
        table, workers = replace(self.table, outcome=np.zeros(len(self))), Workers()
        (columns, codes, counts), features = self._coded, len(table.schema.features)

        @cache
        def shares(least: int) -> dict[Group, float]:
            settings = AuditSettings(self.depth, least, 0.05, "holm", MAX_CELLS, 0, 0)
            _, grid = plan_grid(columns, counts, features, len(table), settings, 1)
            families, _ = find_families(MemoryRows.from_table(table, codes, grid, None), grid, workers)
            blocks = families[0].blocks
            testable = [testable_segments(families[0], block.tally, least) for block in blocks]
            own = alpha_shares(families, np.concatenate(testable), grid)
            parts = np.split(own, np.cumsum([len(block.codes) for block in blocks])[:-1])
            return {block.columns: float(part.max()) for block, part in zip(blocks, parts, strict=True) if part.any()}

        return shares

    @cached_property
    def _monitor_shares(self) -> dict[Group, float]:
        """Shares of the segments that a monitor has from the start, by their columns."""
        planned = MonitoredSegments.plan(
            self.table, bins=check_bins(self.table.columns, self.bins), score_bands=self.score_bands, depth=self.depth,
            min_rows=self.min_rows, max_segments=MAX_SEGMENTS,
        )  # fmt: skip
        shares = {}
        for one in planned.combinations:
            members = [*one.cells.values(), *([] if one.pool is None else [one.pool])]
            shares[one.columns] = planned.shares[members[0]] if members else one.share / 2  # of the first that appears
        return shares


def _share(shares: Mapping[Group, float], group: Group) -> float:
    """Return the share of a segment; the smallest of all if none of its columns has enough rows to be tested."""
    return shares.get(group, min(shares.values(), default=1.0))
