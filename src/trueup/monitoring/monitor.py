"""Monitor: a sequential test of calibration on every segment, which may be looked at any time."""

from __future__ import annotations

import copy
import math
import re
import time
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer, check_number
from trueup.audits.materiality import Tolerance
from trueup.data.bins import check_bins, format_date
from trueup.data.columns import as_tuple
from trueup.errors import ArgumentError, DataError, NotFittedError
from trueup.kernels.threads import Workers
from trueup.monitoring.alarms import INTERVAL_LEVEL, Dates, advise, list_alarms
from trueup.monitoring.drift import DriftProcesses
from trueup.monitoring.eprocess import Budget, EProcesses, ratio_interval
from trueup.monitoring.periods import Clock, MonitorState, Tolerated, period_numbers, period_start
from trueup.monitoring.result import ALARM, CALIBRATED, WAITING, MonitorReport, RowCounts, detectable_ratio
from trueup.monitoring.rows import UNLABELLED, MonitoredRows, RowReader, as_day, parse_sampling
from trueup.monitoring.segments import MonitoredSegments
from trueup.monitoring.slices import open_slices

if TYPE_CHECKING:
    import os
    from collections.abc import Hashable, Iterator, Mapping, Sequence

    from trueup._types import IntArray
    from trueup.data.columns import ColumnSource
    from trueup.monitoring.ledger import Counts

SECONDS_PER_DAY = 86_400.0
ZONES_DAYS = 1.0  # between the clocks of two places
MIN_PERIOD_DAYS = 1 / 24
MAX_FIRST_GAP_DAYS = 366.0  # between the first two periods with rows
UNITS = {"": 1.0, "day": 1.0, "d": 1.0, "week": 7.0, "w": 7.0, "hour": 1 / 24, "h": 1 / 24}


def parse_days(name: str, given: Any, *, least: float = 0.0) -> float:
    """Return a duration in days: a number of days, or a text such as "90 days", "12 weeks" or "90d"."""
    hint = 'write 90, "90 days" or "12 weeks"'
    if isinstance(given, str):
        match = re.fullmatch(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*?)s?\s*", given.lower())
        unit = UNITS.get(match[2]) if match else None
        if match is None or unit is None:
            raise ArgumentError(f"{name} must be a duration; got {given!r}", hint, parameter=name)
        given = float(match[1]) * unit
    check_number(name, given, least, 36_500, hint=hint)
    return float(given)


class SetAside(NamedTuple):
    """Rows of a batch that are not read, by period: those that are not mature yet, and those of closed periods."""

    waiting: Counts
    closed: Counts


class Monitor:
    """Watch the calibration of scores over time, on every segment, by a test that may be looked at any time.

    Outcomes are compared with scores as they mature. The evidence of every segment is an e-process, a mixture of likelihood
    ratios over sizes, slopes and onsets of an error; an alarm is raised when it exceeds the reciprocal of its share of
    ``alpha``. While scores are right given everything that matured earlier, the probability that any segment ever raises an
    alarm is at most ``alpha``, however often and whenever one looks (Ville 1939; Shafer 2021; Ramdas et al. 2023).

    Parameters
    ----------
    outcome, prediction : column names
        The outcome, 0 or 1, and the score, a probability.
    by : column names, optional
        Columns that define the segments, as in `trueup.audit`; by default all without another role.
    time : column name, optional
        The date at which a row was scored. Without it every update is a period of its own.
    maturity : str or number
        The age at which the outcome of a row is final, such as "90 days". A row counts from then on, with the outcome that
        is recorded; younger rows are left for a later update, also if they have an outcome already.
    period : str or number
        Evidence is added by periods of this length, and alarms are raised when a period has ended: "7 days". How rows are
        divided into batches, and their order, changes nothing.
    id : column name, optional
        Identifies a row within its period, so that one that is given twice counts once, as it was first given. Without it,
        rows that are all later than those given before are new, a batch with the rows given before of a period that has not
        ended replaces them, and anything else is an error.
    cluster : column name, optional
        Identifies rows that belong together and may be correlated: those of a cluster within a period count as one
        observation, their mean likelihood ratio. A cluster that returns in a later period is taken to be calibrated given
        its past.
    alpha : float
    budget : {"life", "year"}
        "life": ``alpha`` is the probability of ever raising a false alarm. "year": that of a false alarm by the end of a
        year, and twice that by the end of two; a monitor for many years finds late errors sooner so.
    tolerance : str, optional
        Errors within ``"10%"`` of observed/expected raise no alarm. A score of 0 tolerates no event, but one of 1 some
        non-events.
    sampling : mapping, optional
        Shares of the rows with outcome 1 and 0 in the data, as in `trueup.audit`; scores are moved to that sample.
    depth, bins, categorical, min_rows : as in `trueup.audit`
        Segments need ``min_rows`` reference rows; a level or combination that gets them later becomes a segment then, with
        a share of alpha that was kept for it.
    score_bands : int
        Bands of the score that are segments, too, and combined with the other columns; 0 for none.
    max_segments : int
    unlabelled : {"error", "drop", "zero"}
        A mature row without an outcome is an error, is left out, or has the outcome 0.

    Examples
    --------
    >>> import trueup as tu
    >>> year = tu.simulate.lending(40_000, seed=3)
    >>> month = np.arange(40_000) * 12 // 40_000
    >>> year["day"] = np.datetime64("2024-01-01") + np.arange(40_000) * 365 // 40_000
    >>> monitor = tu.Monitor(outcome="outcome", prediction="prediction", by=["region", "product"], time="day",
    ...                      maturity="30 days")
    >>> report = monitor.start(year).update(year)
    >>> report.state, report.alarms[0].segment
    ('alarm', 'all rows')
    """

    def __init__(
        self,
        *,
        outcome: Hashable,
        prediction: Hashable,
        by: Sequence[Hashable] | Hashable | None = None,
        time: Hashable | None = None,
        maturity: str | float = 0,
        period: str | float = "7 days",
        id: Hashable | None = None,  # noqa: A002  (the word that users know)
        cluster: Hashable | None = None,
        alpha: float = 0.05,
        budget: Budget = "life",
        tolerance: str | None = None,
        sampling: Mapping[str, float] | None = None,
        depth: int = 2,
        bins: int | Mapping[str, Any] = 10,
        categorical: Sequence[Hashable] | Hashable = (),
        score_bands: int = 5,
        min_rows: int = 50,
        max_segments: int = 10_000,
        unlabelled: str = "error",
    ) -> None:
        check_fraction("alpha", alpha, hint="0.05 is a test at 5%")
        check_choice("budget", budget, ("life", "year"))
        check_choice("unlabelled", unlabelled, UNLABELLED)
        check_integer("depth", depth, 1, 3)
        check_integer("min_rows", min_rows, 1)
        check_integer("score_bands", score_bands, 0, 100)
        check_integer("max_segments", max_segments, 1, 1_000_000)
        self.outcome, self.prediction, self.by, self.time = outcome, prediction, by, time
        self.maturity = parse_days("maturity", maturity)
        self.period = parse_days("period", period, least=MIN_PERIOD_DAYS)
        self.id, self.cluster, self.alpha, self.budget = id, cluster, float(alpha), budget
        self.tolerance = parse_tolerance(tolerance)
        self.sampling = None if sampling is None else parse_sampling(sampling)
        self.depth, self.bins, self.categorical = int(depth), bins, categorical
        self.score_bands, self.min_rows, self.max_segments = int(score_bands), int(min_rows), int(max_segments)
        self.unlabelled = unlabelled
        if time is None and self.maturity:
            raise ArgumentError("maturity needs the time of every row", "name the column: {time}", parameter="maturity",
                                settings={"time": "date"})  # fmt: skip
        if time is None and id is not None:
            message = "id needs the time of every row, since it is unique within a period"
            raise ArgumentError(message, "name the column: {time}", parameter="id", settings={"time": "date"})
        self._state: MonitorState | None = None
        self.positive: str | None = None  # the outcome that counts as 1, for trueup watch
        self.revision = 0  # how often the state was saved
        self.contents: dict[str, str] = {}  # by path, the content of the file that this monitor read or wrote last

    # Segments

    def start(self, reference: Any) -> Monitor:
        """Fix segments and bins by reference rows, such as those of the last audit; outcomes are not used. Return self.

        Without this call the rows of the first update are the reference; of a `trueup.scan`, its first million rows.
        """
        state = self._state
        if state is not None and (state.clock.first is not None or state.drift_clock.first is not None):
            raise ArgumentError("the monitor has started: its evidence would be lost", hint="make a new Monitor")
        with self._open(reference, labelled=False) as slices:
            self._state = self._plan(slices.first())
        return self

    @property
    def is_started(self) -> bool:
        """Whether the segments are fixed."""
        return self._state is not None

    @property
    def state(self) -> MonitorState:
        """What the monitor has learned; raises if it has seen no rows."""
        if self._state is None:
            raise NotFittedError("the monitor has seen no rows", hint="call start(reference) or update(rows) first")
        return self._state

    @property
    def _reader(self) -> RowReader:
        return RowReader(self.outcome, self.prediction, self.by, self.time, self.id, self.cluster, self.categorical,
                         self.maturity, self.sampling, self.unlabelled)  # fmt: skip

    def _open(self, data: Any, *, labelled: bool) -> Any:
        columns: list[Hashable] | None = None
        if self.by is not None or self._state is not None:
            by = as_tuple(self.by) if self._state is None else [one.name for one in self._state.schema.features]
            roles = [self.prediction, self.time, self.id, self.cluster, *([self.outcome] if labelled else [])]
            columns = list(dict.fromkeys([*by, *(name for name in roles if name is not None)]))
        return open_slices(data, columns, as_tuple(self.categorical), self.time,
                           self.maturity if labelled else 0.0, self.period,
                           may_be_empty=self._state is not None)  # fmt: skip

    def _plan(self, source: ColumnSource) -> MonitorState:
        table, keep = self._reader.reference(source)
        features, p = table.schema.features, table.prediction
        segments = MonitoredSegments.plan(
            table, bins=check_bins([one.name for one in features], self.bins), score_bands=self.score_bands,
            depth=self.depth, min_rows=self.min_rows, max_segments=self.max_segments,
        )  # fmt: skip
        mean = min(max(float(p.mean()), 1e-9), 1 - 1e-9)
        keys = [next(key for key in source.keys if source.label(key) == one.name) for one in features]
        codes = segments.encode(source, keys, p, keep)
        state = MonitorState(segments, EProcesses.empty(len(segments)), math.log(mean / (1 - mean)), table.schema)
        state.drift = DriftProcesses.fit(segments, codes, self.alpha)
        state.notes = tuple(f"column {name!r} is left out: {reason}" for name, reason in table.left_out.items())
        if segments.dropped:
            state.notes += (f"{segments.dropped:,} combinations of columns are left out (max_segments)",)
        return state

    # Rows

    def update(self, data: Any, *, now: Any = None, threads: int | None = None) -> MonitorReport:
        """Count rows whose outcomes are mature, close the periods that have ended, and return the report.

        Rows that are older than those of the last update belong to closed periods, and are left out.

        Parameters
        ----------
        data : frame, dict of arrays, or `trueup.scan`
            Rows with outcomes; rows that are not mature yet may be among them, with or without an outcome. Those of a scan,
            of a Spark or of a Dask DataFrame are read period by period.
        now : date, optional
            The time up to which rows are known; by default the latest time of any row so far, which must not be in the
            future. Rows that were scored later wait.
        threads : int, optional

        Returns
        -------
        MonitorReport
        """
        workers, counts = Workers(threads), RowCounts()
        with self._open(data, labelled=True) as slices:
            state = self._plan(slices.first()) if self._state is None else copy.deepcopy(self._state)
            clock, tolerance = state.clock, self._tolerated
            self._advance(clock, slices.latest, now)
            state.reported |= state.distinct
            oldest = None if state.open is None else state.open.number
            for rows, numbers, aside in self._read(slices.iterate(), state, clock, oldest, labelled=True):
                for number, some in rows.by_period(numbers).items():
                    if state.open is not None and state.open.number != number:
                        self._check_gap(clock, state.open.number, number)
                        state.close(self.period, self.alpha, self.budget, tolerance)
                    fresh = state.add(some, number, workers, tolerance, ends=self._has_ended(number, clock))
                    complete = len(some.complete())
                    unscored = int(np.isnan(some.p).sum())
                    left_out = RowCounts(unscored=unscored, unlabelled=len(some) - complete - unscored)
                    counted = RowCounts(counted=fresh, added=max(fresh, 0), repeated=complete - max(fresh, 0))
                    counts = _add(counts, _add(counted, left_out))
                repeated = state.ledger.come_late(aside.closed, clock.first)
                begun = {} if state.open is None else {state.open.number: state.open.given_rows}
                state.ledger.wait({number: rows + begun.get(number, 0) for number, rows in aside.waiting.items()})
                if state.open is not None and aside.waiting:
                    self._check_gap(clock, state.open.number, min(aside.waiting))
                counts = _add(counts, RowCounts(waiting=sum(aside.waiting.values()), repeated=repeated,
                                                closed=sum(aside.closed.values()) - repeated))  # fmt: skip
            if state.open is not None and self._has_ended(state.open.number, clock):
                state.close(self.period, self.alpha, self.budget, tolerance)
        state.rows = replace(counts, counted=state.rows.counted + counts.counted, dropped=state.ledger.unlabelled,
                             missed=state.ledger.missed)  # fmt: skip
        state.cached = None
        self._state = state
        report = self.report()
        places = {label: at for at, label in enumerate(state.segments.labels)}
        state.distinct = frozenset(places[alarm.segment] for alarm in report.distinct)
        return report

    def update_drift(self, data: Any, *, now: Any = None) -> MonitorReport:
        """Compare the shares of segments and score bands with the reference, of rows that need no outcome.

        Rows count in the period in which they were scored, and otherwise as in `update`, apart from which they are counted.
        The probability that this ever reports a drift that there is not is at most ``alpha``, too, if rows are independent;
        a season is a drift. Levels that the reference does not have are not tested, and with ``cluster`` nothing is.
        """
        counts = RowCounts()
        with self._open(data, labelled=False) as slices:
            state = self._plan(slices.first()) if self._state is None else copy.deepcopy(self._state)
            clock = state.drift_clock  # that of the scores: rows that are mature were scored long before now
            self._advance(clock, slices.latest if now is None else min(slices.latest, as_day(now)), None)
            oldest = None if state.drift_open is None else state.drift_open.number
            for rows, numbers, aside in self._read(slices.iterate(), state, clock, oldest, labelled=False):
                for number, some in rows.by_period(numbers).items():
                    if state.drift_open is not None and state.drift_open.number != number:
                        self._check_gap(clock, state.drift_open.number, number)
                        state.close_drift(self.period, self.alpha)
                    fresh = state.add_drift(some, number, ends=self._has_ended(number, clock))
                    complete = len(some.complete())
                    counts = _add(counts, RowCounts(counted=fresh, added=max(fresh, 0), repeated=complete - max(fresh, 0),
                                                    unscored=len(some) - complete))  # fmt: skip
                counts = _add(counts, RowCounts(waiting=sum(aside.waiting.values()), closed=sum(aside.closed.values())))
            if state.drift_open is not None and self._has_ended(state.drift_open.number, clock):
                state.close_drift(self.period, self.alpha)
        state.drift_rows = replace(counts, counted=state.drift_rows.counted + counts.counted)
        self._state = state
        return self.report()

    def _advance(self, clock: Clock, latest: float, now: Any) -> None:
        """Move the clock to ``now``, by default to the latest time of the rows; neither may be in the future."""
        given, today = now is not None, time.time() / SECONDS_PER_DAY
        day = as_day(now) if given else latest
        if day > today + ZONES_DAYS:
            what = "now is" if given else f"time column {str(self.time)!r} has dates up to"
            raise DataError(
                f"{what} {self._format(day)}, which is in the future",
                hint="mend it, since outcomes would count before they are mature"
                + ("" if given else ", or pass {now}, the date up to which rows are known: later ones wait"),
                settings={"now": self._format(today)},
            )
        if given and clock.now > -math.inf and day < math.floor(clock.now):
            raise ArgumentError(
                f"now is {self._format(day)}, but the monitor knows rows up to {self._format(clock.now)}",
                hint="leave it out, or name a later date: what a monitor has counted stays counted", parameter="now",
            )  # fmt: skip
        clock.now = max(clock.now, day)

    def _check_gap(self, clock: Clock, number: int, following: int) -> None:
        """Raise if the first period is more than a year before the second one: a date is likely to be wrong."""
        if self.time is not None and not clock.count and (following - number) * self.period > MAX_FIRST_GAP_DAYS:
            raise DataError(
                f"the first rows enter until {self.end_date(number)}, all others only after "
                f"{self._format(period_start(following, self.period))}",
                hint="mend the dates of the first rows, or leave them out: the monitor would begin at them",
            )

    @property
    def _tolerated(self) -> Tolerated:
        positive, negative = self.sampling or (1.0, 1.0)
        return Tolerated(self.tolerance, positive / negative)

    def _read(
        self, slices: Iterator[Any], state: MonitorState, clock: Clock, oldest: int | None, *, labelled: bool
    ) -> Iterator[tuple[MonitoredRows, IntArray, SetAside]]:
        """Yield rows that count with the numbers of their periods, and those that do not; ``oldest`` is the open period."""
        reader, age = self._reader, self.maturity if labelled else 0.0
        following = 0 if clock.closed is None else clock.closed + 1
        oldest = oldest if oldest is not None else following if clock.closed is not None else None
        for source, only in slices:
            days = reader.days(source)
            numbers = np.full(source.rows, following) if days is None else period_numbers(days + age, self.period)
            inside = np.ones(source.rows, bool) if only is None else numbers == only
            if not inside.any():
                continue
            waiting = inside & (days + age > clock.now) if days is not None else np.zeros(source.rows, bool)
            closed = inside & (numbers < oldest) if oldest is not None else np.zeros(source.rows, bool)
            considered = inside & ~waiting & ~closed
            if clock.first is None and considered.any():
                clock.first = int(numbers[considered].min())
            rows = reader.read(source, days, state.schema, state.segments, considered, labelled=labelled)
            own = np.full(len(rows), following) if days is None else period_numbers(rows.day, self.period)
            yield rows, own, SetAside(*(reader.count_periods(source, numbers, some) for some in (waiting, closed)))

    def _has_ended(self, number: int, clock: Clock) -> bool:
        return self.time is None or period_start(number + 1, self.period) <= clock.now

    # The report

    def report(self) -> MonitorReport:
        """Return the state of the monitor."""
        state = self.state
        processes, clock = state.processes, state.clock
        alarms = list_alarms(state, self.period, self.budget, Dates(self.end_date, self.scoring_date))
        outcomes, expected, rows = processes.totals[0].tolist()
        low, high = ratio_interval(outcomes, expected, rows, INTERVAL_LEVEL)
        limit = float(state.segments.log_limits(self.alpha)[0])
        return MonitorReport(
            ALARM if alarms else CALIBRATED if clock.count else WAITING, alarms, advise(alarms), clock.count,
            None if clock.closed is None else self.end_date(clock.closed), len(state.segments), self.alpha, self.budget,
            outcomes / expected if expected else math.nan, low, high,
            detectable_ratio(expected / rows if rows else 0.0, rows, limit), state.rows,
            () if state.drift is None or self.cluster is not None else state.drift.alarms(state.segments),
            tuple(self._notes(state)),
        )  # fmt: skip

    def _notes(self, state: MonitorState) -> Iterator[str]:
        yield from state.notes
        if self.time is not None and not self.maturity:
            yield "outcomes count as soon as their rows are given: maturity is 0"
        if state.open is not None and state.open.count:
            yield f"{state.open.count:,} rows of a period that has not ended yet do not count so far"
        for count, text in (
            (state.rows.waiting, "rows of the last update are not mature yet: give them again later"),
            (state.rows.closed, "rows of the last update belong to closed periods: counted before, or too late"),
            (self._overdue(state), "rows that waited are mature by now, and were not given again"),
            (state.rows.unscored, "mature rows of the last update have no score"),
            (state.rows.unlabelled, "mature rows of the last update have no outcome, and are left out"),
            (state.rows.dropped, "rows since the start have no outcome, and are left out"),
            (state.rows.missed, "rows since the start, at least, were missing when their period closed: they waited, and "
             "were not given again, came too late, or were changed or deleted"),
            (state.drift_rows.closed, "rows of the last update are too late for the drift, or were given before"),
            (state.drift_rows.unscored, "rows of the last update have no score, and are left out of drift"),
        ):  # fmt: skip
            if count:
                yield f"{count:,} {text}"
        if state.rows.waiting and not state.rows.repeated + state.rows.closed + state.rows.added:
            yield (
                f"no row is mature by {self._format(state.clock.now)}, the latest date that is known: if outcomes are "
                "known up to a later date, pass it as now"
            )
        if self.cluster is not None and state.drift_rows.counted:
            yield "drift is shown, and not tested: rows of one cluster are not independent"
        if len(state.segments) >= self.max_segments and (ready := state.segments.unformed()):
            yield f"{ready:,} combinations of levels have enough rows, and are no segments (max_segments)"
        if state.segments.uncounted:
            yield f"{state.segments.uncounted:,} rows are of combinations of levels beyond those that can be counted"

    def _overdue(self, state: MonitorState) -> int:
        """Return the rows, at least, that waited, and were not given although their period has ended."""
        open_number = None if state.open is None else state.open.number
        waited = state.ledger.waiting.items()
        return sum(rows for number, rows in waited if number != open_number and self._has_ended(number, state.clock))

    def end_date(self, period: int) -> str:
        """Return the date at which a period ends."""
        return f"update {period + 1}" if self.time is None else self._format(period_start(period + 1, self.period))

    def scoring_date(self, period: int) -> str:
        """Return the date from which the rows of a period were scored."""
        if self.time is None:
            return f"update {period + 1}"
        return self._format(period_start(period, self.period) - self.maturity)

    @staticmethod
    def _format(day: float) -> str:
        return format_date(float(math.floor(day)))

    def restore(self, state: MonitorState) -> None:
        """Set what the monitor has learned, as read from a file."""
        self._state = state

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the monitor to a file, atomically; raise if another process has changed the file meanwhile."""
        from trueup.monitoring.state import save  # the file format needs the monitor

        save(self, path)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> Monitor:
        """Read a monitor that `save` wrote; raise FileError if the file is damaged or of a later version."""
        from trueup.monitoring.state import load

        return load(path)

    def __repr__(self) -> str:
        return "<Monitor that has seen no rows>" if self._state is None else f"<Monitor: {self.report().headline}>"


def _add(one: RowCounts, two: RowCounts) -> RowCounts:
    return RowCounts(*(getattr(one, item.name) + getattr(two, item.name) for item in fields(RowCounts)))


def parse_tolerance(given: Any) -> float:
    """Return a percentage as a fraction, 0 for None."""
    tolerance = Tolerance.parse(given)
    if tolerance is not None and not tolerance.relative:
        raise ArgumentError(
            f"the tolerance of a monitor is a percentage; got {given!r}", 'write "10%" for a tenth of the expected rate',
            parameter="tolerance",
        )  # fmt: skip
    return 0.0 if tolerance is None else tolerance.value
