"""What a monitor reports: the state of calibration so far, its alarms, and which rows it counted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.columns import frame_like
from trueup.metrics.inference import POWER
from trueup.metrics.planning import START_COST, PlannedScores, detectable_error
from trueup.metrics.result import Result, html_table

if TYPE_CHECKING:
    from trueup._types import AnyArray

ALARM, CALIBRATED, WAITING = "alarm", "calibrated so far", "no outcomes yet"
OFFSET, REFIT, CERTAIN = "offset", "refit", "check certain scores"
ADVICE = {
    OFFSET: "all rows are off by about the same factor: multiply all scores by it (Multiplicative)",
    REFIT: "fit a correction on the rows since then (MCGrad), and audit it on later rows; if they are too few for a "
    "correction, fit again when more are mature",
    CERTAIN: "a score of exactly 0 or 1 was contradicted by its outcome: such scores can never be calibrated",
}
MAX_PRINTED = 8


@dataclass(frozen=True)
class MonitorAlarm(Result):
    """A segment whose scores are not calibrated.

    Attributes
    ----------
    segment : str
    raised : str
        Date at which the period ended in which the alarm was raised; of a distinct one, the first that has its error.
    since : str
        Scoring date from which the scores most likely are miscalibrated.
    ratio, low, high : float
        Observed/expected since then, and its 90% interval, which holds at all times.
    observed, expected, rows : float
        Outcomes, expected outcomes and rows since then; with ``cluster`` the sums of the means of clusters, and clusters.
    p_value : float
        Adjusted for all segments and all looks: min(1, 1/(share E)).
    contradictions : int
        Scores of exactly 0 or 1 that the outcome contradicts.
    share : float
        The share of alpha of the segment.
    direction : int
        1 if outcomes are more frequent than expected, else -1.
    part_of : str or None
        The stronger alarm that has the same error; None of a distinct one.
    explains : tuple of str
        The weaker alarms that have this error.
    new : bool
        Whether the last update was the first one to report its error as a distinct alarm.
    """

    derived = ("varies",)

    segment: str
    raised: str
    since: str
    ratio: float
    low: float
    high: float
    observed: float
    expected: float
    rows: float
    p_value: float
    contradictions: int
    share: float
    direction: int
    part_of: str | None = None
    explains: tuple[str, ...] = ()
    new: bool = False

    @property
    def varies(self) -> bool:
        """Whether the interval contains 1, so that the error is not one of the mean but varies with the score."""
        return self.low <= 1.0 <= self.high

    @property
    def size(self) -> str:
        """How large the error is, in words."""
        if self.contradictions:
            many = f"{self.contradictions:,} outcomes contradict" if self.contradictions > 1 else "1 outcome contradicts"
            return f"{many} a score of exactly 0 or 1"
        if self.varies:
            return f"the error varies with the score (observed/expected {self.low:.3g} to {self.high:.3g})"
        return f"observed/expected {self.ratio:.3g} ({self.low:.3g} to {self.high:.3g})"

    def __str__(self) -> str:
        others = f"{len(self.explains):,} more alarms have" if len(self.explains) > 1 else "1 more alarm has"
        more = f"; {others} this error" if self.explains else ""
        if self.contradictions:
            return f"{self.segment}: {self.size}"
        return (
            f"{self.segment}: {self.size} since about {self.since}, {self.rows:,.0f} rows, raised by {self.raised}, "
            f"p {self.p_value:.2g}{more}"
        )


@dataclass(frozen=True)
class RowCounts(Result):
    """What became of the rows that a monitor was given: of all its life, or of the last update those that did not count.

    Attributes
    ----------
    counted : int
        Rows that are part of the evidence.
    waiting : int
        Rows that had not reached their maturity: give them again later.
    repeated : int
        Rows that were counted before: of an open period, by their id or else by their content, or of a closed one that was
        given with as many rows as it had.
    closed : int
        Other rows of periods that were closed already: counted before, or too late.
    unscored, unlabelled : int
        Rows without a score; mature rows without an outcome.
    added : int
        Rows that the last update counted.
    dropped : int
        Mature rows without an outcome that were left out, over the life of the monitor.
    missed : int
        Rows, at least, that were missing when their period closed, over the life of the monitor: they waited, and were not
        given again, came too late, or were changed or deleted.
    """

    counted: int = 0
    waiting: int = 0
    repeated: int = 0
    closed: int = 0
    unscored: int = 0
    unlabelled: int = 0
    added: int = 0
    dropped: int = 0
    missed: int = 0


@dataclass(frozen=True, eq=False)
class MonitorReport(Result):
    """The state of a monitor.

    Attributes
    ----------
    state : str
        "alarm", "calibrated so far" or "no outcomes yet".
    alarms : tuple of MonitorAlarm
        All alarms so far, the strongest evidence first.
    advice : str or None
        "offset", "refit" or "check certain scores"; None without an alarm.
    periods : int
        Closed periods; alarms are raised when a period closes.
    until : str or None
        Date at which the last closed period ended.
    segments : int
        Segments that are monitored.
    alpha : float
        Probability that a monitor of calibrated scores ever raises an alarm (of an alarm per year with ``budget="year"``).
    budget : str
    ratio, low, high : float
        Observed/expected over all rows so far, and its 90% interval, which holds at all times.
    detectable : float or None
        Observed/expected above 1 over all rows that would have been found with 80% probability by now.
    rows : RowCounts
    drift : tuple of DriftAlarm
        Columns and scores whose distribution differs from the reference; that says nothing about calibration.
    notes : tuple of str
    """

    state: str
    alarms: tuple[MonitorAlarm, ...]
    advice: str | None
    periods: int
    until: str | None
    segments: int
    alpha: float
    budget: str
    ratio: float
    low: float
    high: float
    detectable: float | None
    rows: RowCounts
    drift: tuple[DriftAlarm, ...]
    notes: tuple[str, ...]

    @property
    def distinct(self) -> tuple[MonitorAlarm, ...]:
        """The alarms without those that have the error of a stronger one."""
        return tuple(alarm for alarm in self.alarms if alarm.part_of is None)

    @property
    def guarantee(self) -> str:
        """The guarantee in two sentences."""
        over = "ever raises a false alarm" if self.budget == "life" else "raises a false alarm by the end of its first year"
        silence = "Silence says only that nothing above the detectable size has shown yet."
        if self.detectable is not None:
            silence = (
                "Silence says only that no error above the detectable size, observed/expected "
                f"{self.detectable:.3g} over all rows, has shown yet."
            )
        left_out = self.rows.dropped + self.rows.missed
        known = f" ({left_out:,} are, at least: {left_out / (left_out + self.rows.counted):.1%})" if left_out else ""
        return (
            "If the scores are right given everything that matured earlier, and whether a row is left out does not depend "
            f"on its outcome{known}, the chance that this monitor {over}, over all {self.segments:,} segments and all "
            f"looks, is at most {100 * self.alpha:.3g}%. {silence}"
        )

    @property
    def headline(self) -> str:
        """The state in one line."""
        head = self.state
        if self.state == ALARM:
            count, alarms = len(self.distinct), len(self.alarms)
            head = (
                f"alarm: {count:,} distinct error{'' if count == 1 else 's'}, in {alarms:,} of {self.segments:,} segments"
            )
        if self.until is not None:
            head += f"; {self.periods:,} periods until {self.until}, {self.rows.counted:,} rows"
        return head

    def __repr__(self) -> str:
        return "\n".join(self.lines())

    def lines(self) -> list[str]:
        """Return the report as lines of text."""
        lines = [self.headline]
        lines += [str(alarm) for alarm in self.distinct[:MAX_PRINTED]]
        if len(self.distinct) > MAX_PRINTED:
            lines.append(f"and {len(self.distinct) - MAX_PRINTED:,} more distinct alarms")
        if self.advice is not None:
            lines.append(f"next: {ADVICE[self.advice]}")
        if self.until is not None:
            lines.append(f"all rows: observed/expected {self.ratio:.3g}, 90% interval {self.low:.3g} to {self.high:.3g}")
        lines.append(self.guarantee)
        lines += [str(item) for item in self.drift[:MAX_PRINTED]]
        lines += self.notes
        return lines

    def to_frame(self, like: Any = None) -> Any:
        """Return the alarms as a frame of the library of ``like``, or as a dict of arrays."""
        names = list(MonitorAlarm.__dataclass_fields__)
        columns: dict[str, AnyArray] = {
            name: np.array([getattr(alarm, name) for alarm in self.alarms]) for name in names if name != "explains"
        }
        columns["part_of"] = np.array([alarm.part_of or "" for alarm in self.alarms])
        return frame_like(columns, like)

    def _repr_html_(self) -> str:
        heads = ["segment", "obs/exp", "90% interval", "since", "raised", "p"]
        rows = [
            [alarm.segment, "varies" if alarm.varies else f"{alarm.ratio:.3g}", f"{alarm.low:.3g} to {alarm.high:.3g}",
             alarm.since, alarm.raised, f"{alarm.p_value:.2g}"]
            for alarm in self.distinct
        ]  # fmt: skip
        return html_table(self.lines()[0], heads, rows, notes=[self.guarantee, *self.notes])


@dataclass(frozen=True)
class DriftAlarm(Result):
    """A level or score band whose share of the rows differs from its share of the reference rows."""

    segment: str
    reference: float
    share: float
    p_value: float

    def __str__(self) -> str:
        return (
            f"drift: {self.segment} has {self.share:.1%} of the rows, {self.reference:.1%} of the reference "
            f"(p {self.p_value:.2g}); that says nothing about calibration"
        )


def detectable_ratio(mean: float, rows: float, log_limit: float) -> float | None:
    """Return the observed/expected above 1 that a monitor of ``rows`` rows finds with 80% probability; None if none.

    All scores are taken to be ``mean``; ``log_limit`` is the logarithm of the evidence that raises an alarm.
    """
    if rows <= 0 or not 0 < mean < 1:
        return None
    scores = PlannedScores.logit_normal(mean, 0.0)
    cost = log_limit + START_COST
    error = detectable_error(scores, True, lambda error: error.monitor_power(rows, cost), POWER)  # noqa: FBT003
    return None if error is None else error.ratio
