"""Drift without outcomes: shares of levels and score bands against the reference rows, tested sequentially."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels.sequential import EXTRA_COLUMNS, ROWS
from trueup.monitoring.eprocess import SHIFTS, EProcesses, alternatives, quantise
from trueup.monitoring.result import DriftAlarm

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray, Int32Array, IntArray
    from trueup.monitoring.segments import MonitoredSegments

SMOOTHING = 0.5  # rows added to every level, for the population stability index


@dataclass(eq=False)
class DriftProcesses:
    """Evidence that the share of a level differs from its reference share; a column of levels after the other.

    The reference share is only known within its Clopper-Pearson interval at half of alpha; the evidence is a likelihood
    ratio against the end of that interval that is nearer to the alternative, so that it is valid at the other half.
    """

    starts: IntArray  # of every column among the levels
    reference: IntArray  # rows per level
    rows: int  # of the reference
    low: FloatArray
    high: FloatArray
    processes: EProcesses
    counts: IntArray  # rows per level since the start
    total: int
    last_counts: IntArray  # of the last closed period
    last_total: int

    @classmethod
    def fit(cls, segments: MonitoredSegments, codes: Sequence[Int32Array], alpha: float) -> DriftProcesses:
        """Take the reference shares; levels of categories that appear later are one level, the last of their column."""
        from scipy.special import betaincinv  # a monitor without drift does not import scipy

        counts = [np.append(np.bincount(own, minlength=column.known), 0) for own, column in zip(codes, segments.columns)]  # noqa: B905
        sizes = [len(own) for own in counts]
        reference = np.concatenate(counts) if counts else np.empty(0, np.int64)
        rows = len(codes[0]) if codes else 0
        tail = alpha / 4 / max(len(reference), 1)
        low = np.where(reference > 0, betaincinv(np.maximum(reference, 1), rows - reference + 1, tail), 0.0)
        high = np.where(reference < rows, betaincinv(reference + 1, np.maximum(rows - reference, 1), 1 - tail), 1.0)
        starts = np.cumsum([0, *sizes])
        high[starts[1:] - 1] = 1.0  # the reference says little about levels that it does not have: shown, not tested
        size = len(reference)
        return cls(starts, reference, rows, low, high, EProcesses.empty(size), np.zeros(size, np.int64), 0,
                   np.zeros(size, np.int64), 0)  # fmt: skip

    def count(self, segments: MonitoredSegments, codes: Sequence[Int32Array]) -> IntArray:
        """Return the rows per level of a batch."""
        parts = []
        for own, column in zip(codes, segments.columns, strict=True):
            parts.append(np.bincount(np.minimum(own, column.known), minlength=column.known + 1))
        return np.concatenate(parts) if parts else np.empty(0, np.int64)

    def close(self, counts: IntArray, rows: int, period: int, before: float, now: float, alpha: float) -> None:
        """Add the rows per level of one period."""
        grid = alternatives()
        growth = np.expm1(np.array(SHIFTS))
        mean = np.where(growth > 0, self.high[:, None], self.low[:, None])
        hits = counts[:, None]
        factors = hits * np.array(SHIFTS) - rows * np.log1p(mean * growth)
        sums = np.zeros((len(counts), len(grid) + EXTRA_COLUMNS))
        sums[:, : len(SHIFTS)] = factors
        sums[:, len(grid) + ROWS] = rows
        limits = np.full(len(counts), -np.log(alpha / 2 / max(len(counts), 1)))
        self.processes.close(quantise(sums), period, before, now, limits, "life")
        self.counts += counts
        self.total += rows
        self.last_counts, self.last_total = counts, rows

    def stability(self, segments: MonitoredSegments, *, last: bool) -> dict[str, float]:
        """Return the population stability index of every column, of the last period or of all rows since the start."""
        counts, total = (self.last_counts, self.last_total) if last else (self.counts, self.total)
        found = {}
        for at, column in enumerate(segments.columns):
            some = slice(self.starts[at], self.starts[at + 1])
            used = (self.reference[some] > 0) | (counts[some] > 0)
            levels = max(int(used.sum()), 1)
            old = (self.reference[some][used] + SMOOTHING) / (self.rows + SMOOTHING * levels)
            new = (counts[some][used] + SMOOTHING) / (total + SMOOTHING * levels)
            found[column.name] = float(np.sum((new - old) * np.log(new / old))) if total else 0.0
        return found

    def alarms(self, segments: MonitoredSegments) -> tuple[DriftAlarm, ...]:
        """Return the levels whose share differs from the reference, the strongest evidence first."""
        found = []
        evidence = self.processes.largest
        for level in np.flatnonzero(self.processes.alarm >= 0):
            at = int(np.searchsorted(self.starts, level, side="right")) - 1
            column, code = segments.columns[at], int(level - self.starts[at])
            label = column.label(code) if code < column.known else f"{column.name}=(new levels)"
            p_value = min(1.0, 2 * len(self.reference) * float(np.exp(-evidence[level])))
            share = float(self.counts[level] / max(self.total, 1))
            found.append(DriftAlarm(label, float(self.reference[level] / self.rows), share, p_value))
        return tuple(sorted(found, key=lambda alarm: (alarm.p_value, alarm.segment)))
