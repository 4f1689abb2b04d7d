"""The course of a monitor: evidence, outcomes and expected outcomes by period, for the segments that matter."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.kernels.sequential import OUTCOMES, ROWS, SCALE, SCORES
from trueup.monitoring.eprocess import alternatives

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.monitoring.eprocess import EProcesses
    from trueup.monitoring.segments import MonitoredSegments

MIN_EVIDENCE = math.log(20.0)  # at which a combination of columns is recorded; at most a twentieth of them ever reach it


class SegmentCourse(NamedTuple):
    """Periods of one segment, with the logarithm of its evidence, and outcomes, expected outcomes and rows of each."""

    periods: IntArray
    evidence: FloatArray
    outcomes: FloatArray
    expected: FloatArray
    rows: FloatArray


@dataclass(eq=False)
class SegmentHistory:
    """Records in the order of periods; all rows and single columns always, combinations once they have some evidence."""

    periods: list[IntArray] = field(default_factory=list)
    segments: list[IntArray] = field(default_factory=list)
    values: list[FloatArray] = field(default_factory=list)  # evidence, outcomes, expected outcomes, rows
    tracked: set[int] = field(default_factory=set)

    def record(self, period: int, processes: EProcesses, sums: IntArray, segments: MonitoredSegments) -> None:
        """Add one closed period."""
        for combination in segments.combinations:
            if len(combination.columns) < 2:
                self.tracked.update(combination.cells.values())
                if combination.pool is not None:
                    self.tracked.add(combination.pool)
        self.tracked.update(np.flatnonzero(processes.evidence >= MIN_EVIDENCE).tolist())
        which = np.array(sorted(one for one in self.tracked if one < len(processes)), np.int64)
        width = len(alternatives())
        counts = sums[which][:, [width + OUTCOMES, width + SCORES, width + ROWS]] / SCALE
        self.periods.append(np.full(len(which), period))
        self.segments.append(which)
        self.values.append(np.column_stack([processes.evidence[which], counts]))

    def __deepcopy__(self, memo: dict[int, object]) -> SegmentHistory:
        """Return a copy that shares the arrays, which never change."""
        return SegmentHistory(list(self.periods), list(self.segments), list(self.values), set(self.tracked))

    def course(self, segment: int) -> SegmentCourse:
        """Return the recorded periods of one segment."""
        if not self.periods:
            return SegmentCourse(np.empty(0, np.int64), *(np.empty(0) for _ in range(4)))
        some = np.concatenate(self.segments) == segment
        values = np.concatenate(self.values)[some]
        return SegmentCourse(np.concatenate(self.periods)[some], *values.T)
