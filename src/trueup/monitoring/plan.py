"""plan(): how many rows an audit or a monitor needs to find an error, or which error so many rows show."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_fraction, check_integer, check_number
from trueup.audits.text import number
from trueup.data.bins import DEFAULT_BINS
from trueup.data.columns import frame_like
from trueup.data.frame import read
from trueup.data.values import format_rows
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inference import MIN_CLUSTERS, MIN_EXCESS
from trueup.metrics.planning import (
    MAX_ROWS,
    SMALL,
    PlannedScores,
    ScoreError,
    alarm_cost,
    detectable_error,
)
from trueup.metrics.result import Result, html_table
from trueup.monitoring.plan_segments import Pilot, StatedSegments

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray

OVERALL = "all rows"
AUDIT, START, CHANGE = "audit", "monitor, error from the start", "monitor, error from week {}"
MIN_PILOT_ROWS = 10  # scores of a level, from which its distribution is estimated
CURVE_POINTS = 24  # in each direction
LARGEST_CURVE_RATIO = 4.0
SMALLEST_CURVE_CHANGE = 0.03  # of the logarithm of the ratio
MAX_PRINTED = 20
RATIO_HINT = "1.2 is 20% more outcomes than expected, 0.8 is 20% fewer"


@dataclass(frozen=True)
class PlannedTest(Result):
    """One segment, one way to test it, and one error: the rows it takes to find it.

    Attributes
    ----------
    segment : str
    test : str
        "audit", "monitor, error from the start" or "monitor, error from week 52".
    share : float
        Share of the rows that are in the segment.
    mean : float
        Mean score of the segment, the expected rate of the outcome.
    level : float
        Level of the test of the segment: its share of alpha, divided by the number of looks for an audit.
    ratio : float
        The error: observed/expected; NaN if no error is found with so few rows.
    power : float
        Probability with which the error is found.
    rows : float
        Rows in the segment; since the error began. Infinite if no number of rows is enough.
    total : float
        Rows in all, ``rows`` / ``share``.
    events : float
        Expected outcomes in the segment, ``rows`` x ``mean``.
    mean_total : float
        For a monitor, the rows in all until the alarm, on average; NaN for an audit.
    weeks : float
        For a monitor with ``weekly_rows``, the weeks in which ``total`` rows arrive; otherwise NaN.
    mean_weeks : float
        The weeks in which ``mean_total`` rows arrive.
    """

    segment: str
    test: str
    share: float
    mean: float
    level: float
    ratio: float
    power: float
    rows: float
    total: float
    events: float
    mean_total: float
    weeks: float
    mean_weeks: float


@dataclass(frozen=True)
class PlanCurve(Result):
    """Errors and the rows in all with which a test finds them.

    Attributes
    ----------
    test : str
    ratios : tuple of float
        Observed/expected, ascending.
    totals : tuple of float
        Rows in all.
    """

    test: str
    ratios: tuple[float, ...]
    totals: tuple[float, ...]


@dataclass(frozen=True, eq=False)
class PlanSettings(Result):
    """The parameters of a plan."""

    ratio: float | None
    rows: int | None
    power: float
    alpha: float
    looks: int
    cluster_size: float
    icc: float
    min_rows: int
    monitor: bool
    weekly_rows: float | None
    change_week: int

    @property
    def design_effect(self) -> float:
        """The factor by which clusters raise the variance: 1 + (rows per cluster - 1) icc."""
        return 1.0 + (self.cluster_size - 1.0) * self.icc

    @property
    def least_rows(self) -> int:
        """The rows of a segment from which an audit tests it."""
        clustered = self.design_effect > 1.0 + MIN_EXCESS
        return max(self.min_rows, math.ceil(MIN_CLUSTERS * self.cluster_size)) if clustered else self.min_rows

    @property
    def tests(self) -> tuple[str, ...]:
        """The names of the planned tests."""
        return (AUDIT, START, CHANGE.format(self.change_week)) if self.monitor else (AUDIT,)


@dataclass(frozen=True, eq=False)
class _Segment:
    """A segment to plan for: its scores, its share of the rows, and its levels in an audit and in a monitor."""

    name: str
    scores: PlannedScores
    share: float
    audit_level: float
    monitor_level: float  # NaN of a segment that a monitor does not have from the start

    @property
    def in_monitor(self) -> bool:
        """Whether the segment is one of a monitor."""
        return not math.isnan(self.monitor_level)

    @classmethod
    def of(
        cls, name: str, scores: PlannedScores, share: float, shares: tuple[float, float], settings: PlanSettings
    ) -> _Segment:
        """Return a segment with these ``shares`` of alpha, in an audit and in a monitor; raise if the error cannot be."""
        if settings.ratio is not None:
            _check_ratio(settings.ratio, name, scores)
        return cls(name, scores, share, settings.alpha * shares[0] / settings.looks, settings.alpha * shares[1])


@dataclass(frozen=True, eq=False)
class Plan(Result):
    """How many rows are needed, or what so many rows show: the result of `trueup.plan`.

    Attributes
    ----------
    tests : tuple of PlannedTest
        One per segment and way to test it; two, an error upwards and one downwards, if the error was asked for.
    settings : PlanSettings
    notes : tuple of str
        The assumptions.
    """

    tests: tuple[PlannedTest, ...]
    settings: PlanSettings
    notes: tuple[str, ...]
    _segments: tuple[_Segment, ...]
    derived = ("verdict",)

    def __len__(self) -> int:
        return len(self.tests)

    def __getitem__(self, index: int) -> PlannedTest:
        return self.tests[index]

    @property
    def verdict(self) -> str:
        """The answer for the first segment, as a sentence."""
        first = self.tests[0]
        rows = "" if self.settings.rows is None else format_rows(self.settings.rows)
        where = "over all rows" if first.share == 1.0 else f"in {first.segment}"
        if self.settings.ratio is None:
            own = [test.ratio for test in self.tests if test.segment == first.segment and test.test == AUDIT]
            found = [number(ratio) for ratio in own if not math.isnan(ratio)]
            if not found:
                total = f"{rows} show{'s' if rows == '1 row' else ''} no error {where}"
                own_rows = "" if first.share == 1.0 else f"{first.rows:,.0f} in the segment are "
                return f"{total}: {own_rows}too few for an audit"
            both = f"observed/expected {' and '.join(found)} {where}"
            return f"an audit of {rows} finds {both} with {_percent(self.settings.power)} power"
        error = f"observed/expected {number(first.ratio)} {where}"
        if self.settings.rows is not None:
            return f"an audit of {rows} finds {error} with {_percent(first.power)} power"
        if math.isinf(first.rows):
            return f"no number of rows is enough to find {error}"
        inside = "" if first.share == 1.0 else f"{first.rows:,.0f} of them in it, "
        return (
            f"an audit finds {error} with {_percent(first.power)} power in {first.total:,.0f} rows ({inside}"
            f"{number(first.events)} expected outcomes)"
        )

    def table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        """Return headings and rows of text."""
        monitor, weekly = self.settings.monitor, self.settings.weekly_rows is not None
        headings = [
            "segment",
            *(["test"] if monitor else []),
            "obs/exp",
            "power",
            "rows",
            "expected outcomes",
            "rows in all",
        ]
        if monitor:
            headings += ["mean", *(["weeks", "mean weeks"] if weekly else [])]
        rows = []
        for test in self.tests:
            cells = [test.segment, *([test.test] if monitor else []), number(test.ratio), _percent(test.power)]
            cells += [_count(test.rows), number(test.events), _count(test.total)]
            if monitor:
                cells += [_count(test.mean_total), *([_count(test.weeks), _count(test.mean_weeks)] if weekly else [])]
            rows.append(tuple(cells))
        return tuple(headings), rows

    def __repr__(self) -> str:
        headings, rows = self.table()
        shown = [headings, *rows[:MAX_PRINTED]]
        widths = [max(map(len, column)) for column in zip(*shown, strict=True)]
        left = 2 if self.settings.monitor else 1

        def line(row: tuple[str, ...]) -> str:
            cells = zip(row, widths, strict=True)
            padded = [cell.ljust(width) if k < left else cell.rjust(width) for k, (cell, width) in enumerate(cells)]
            return "  ".join(padded).rstrip()

        more = [f"and {len(rows) - MAX_PRINTED:,} more"] if len(rows) > MAX_PRINTED else []
        return "\n".join([self.verdict, "", *map(line, shown), *more, "", *self.notes])

    def _repr_html_(self) -> str:
        headings, rows = self.table()
        return html_table(self.verdict, headings, rows, notes=self.notes)

    def to_dict(self) -> dict[str, Any]:
        """Return plain values that JSON can represent; non-finite numbers become None."""
        return {name: value for name, value in super().to_dict().items() if name != "_segments"}

    def to_frame(self, like: Any = None) -> Any:
        """Return the planned tests as a frame of the library of ``like``, or as a dict of arrays."""
        names = list(PlannedTest.__dataclass_fields__)
        columns: Mapping[str, AnyArray] = {name: np.array([getattr(test, name) for test in self.tests]) for name in names}
        return frame_like(columns, like)

    def curves(self, segment: str | None = None) -> tuple[PlanCurve, ...]:
        """Return, for every test of a segment (the first by default), errors and the rows with which it finds them."""
        names = [own.name for own in self._segments]
        if segment is not None and segment not in names:
            raise ArgumentError(
                f"segment {segment!r} is not in the plan", hint=f"it has {', '.join(names[:6])}", parameter="segment"
            )
        own = self._segments[0 if segment is None else names.index(segment)]
        top = min(math.log(LARGEST_CURVE_RATIO), math.log(0.97 * _highest_ratio(own.scores)))
        sizes = np.geomspace(SMALLEST_CURVE_CHANGE, math.log(LARGEST_CURVE_RATIO), CURVE_POINTS)
        logs = [*-sizes[::-1], *(sizes[sizes < top])]
        errors = [ScoreError.of_ratio(own.scores, math.exp(size)) for size in logs]
        curves = []
        for test in self.settings.tests if own.in_monitor else (AUDIT,):
            totals = [_rows_needed(own, error, test, self.settings) / own.share for error in errors]
            curves.append(PlanCurve(test, tuple(error.ratio for error in errors), tuple(totals)))
        return tuple(curves)


def plan(
    data: Any = None,
    *,
    prediction: Any = None,
    by: Sequence[Hashable] | Hashable | None = None,
    prevalence: float | None = None,
    spread: float = 1.0,
    ratio: float | None = None,
    rows: int | None = None,
    power: float = 0.8,
    share: float | None = None,
    alpha: float = 0.05,
    segments: int | None = None,
    columns: Sequence[int] | None = None,
    depth: int = 2,
    combined: int | None = None,
    score_bands: int = 5,
    looks: int = 1,
    cluster_size: float = 1.0,
    icc: float = 0.0,
    monitor: bool = False,
    weekly_rows: float | None = None,
    change_week: int = 52,
    bins: int | Mapping[Any, Any] = DEFAULT_BINS,
    categorical: Sequence[Hashable] | Hashable = (),
    min_rows: int = 50,
) -> Plan:
    """Plan an audit or a monitor: how many rows find an error of a given size, or which errors so many rows show.

    With ``ratio`` the answer is a number of rows, with ``rows`` the observed/expected that is found (upwards and
    downwards), and with both the power. An error shifts the logits of all scores of a segment by the same amount.

    Parameters
    ----------
    data : frame, dict of arrays, or array of scores, optional
        Scores of a pilot, whose distribution stands for that of the rows to come. Outcomes are not needed.
    prediction : column name or array, optional
        The score.
    by : column names, optional
        Plan for all rows and for each level of these columns: its scores and its share of the rows are those of the pilot.
    prevalence : float, optional
        Instead of a pilot: the mean score. The logits are normal.
    spread : float
        Standard deviation of these logits; 0 for equal scores.
    ratio : float, optional
        The error to be found: observed/expected. 1.2 if neither ``ratio`` nor ``rows`` is given.
    rows : int, optional
        Rows in all.
    power : float
        Probability with which the error shall be found.
    share : float, optional
        Share of the rows that are in the segment; by default, and with ``by``, all rows and each level.
    alpha : float
        Probability of any false alarm, over all segments and looks.
    segments : int, optional
        Number of segments, each with the same share of alpha.
    columns : sequence of int, optional
        Instead: the number of levels of each column that forms segments. Shares of alpha are then those of an audit of
        ``depth``, or of a monitor, all of whose combinations have enough rows; the segment is one of ``combined`` columns,
        of those with the most levels. Without ``segments`` and ``columns`` they follow from ``by``: shares are those of an
        audit of as many rows as are planned (at least those of the pilot), and of a monitor that starts with the pilot.
        Without any of the three, there is one segment.
    depth : int
        How many columns the segments of the audit or monitor combine, 1 to 3.
    combined : int, optional
        How many columns define the segment: 1 by default with ``share``, else 0 for all rows. With ``by``, up to how many.
    score_bands : int
        Bands of the score that are segments of the monitor, as in `trueup.Monitor`; 0 for none.
    looks : int
        Number of audits of growing data that share alpha equally.
    cluster_size : float
        Rows per cluster in the segment, such as loans per customer.
    icc : float
        Correlation of the residuals of two rows of a cluster.
    monitor : bool
        Also plan a monitor that may be looked at any time: rows until its alarm if the error is there from the start, and
        if it begins in ``change_week``.
    weekly_rows : float, optional
        Rows in all that arrive in a week: delays are then also stated in weeks.
    change_week : int
        Week in which the error begins.
    bins : int or dict
        Bins of numbers and dates in ``by``, as in an audit.
    categorical : column names
        Numeric columns of ``by`` whose values are categories.
    min_rows : int
        Segments with fewer rows are not tested.

    Returns
    -------
    Plan

    Notes
    -----
    The formulas are in the guide on statistics, the share found in simulations on the page of evidence. Below 100 rows of
    the segment, the power of an audit is simulated. Clusters count as rows / (1 + (cluster_size - 1) icc) independent rows.

    Examples
    --------
    >>> import trueup as tu
    >>> plan = tu.plan(prevalence=0.02, ratio=1.2, share=0.05, columns=[10, 5, 4])
    >>> f"{plan[0].rows:,} rows in the segment, {plan[0].total:,} in all"
    '25,180 rows in the segment, 503,600 in all'
    """
    settings = _check_settings(
        ratio=ratio, rows=rows, power=power, alpha=alpha, looks=looks, cluster_size=cluster_size, icc=icc,
        min_rows=min_rows, monitor=monitor, weekly_rows=weekly_rows, change_week=change_week,
    )  # fmt: skip
    check_integer("depth", depth, 1, 3)
    check_integer("segments", segments, 1, optional=True)
    check_integer("combined", combined, 0, depth, optional=True)
    check_integer("score_bands", score_bands, 0, 100)
    if segments is not None and columns is not None:
        raise ArgumentError("segments and columns both state the shares of alpha", hint="pass one", parameter="segments")
    if (data is None) == (prevalence is None):
        raise ArgumentError("a plan needs either scores or their prevalence", hint="pass a frame, or prevalence=0.02")
    if by is not None and data is None:
        raise ArgumentError("by needs a pilot: rows with these columns", hint="pass a frame", parameter="by")
    for name, value in {"share": share, "columns": columns}.items() if by is not None else ():
        if value is not None:
            raise ArgumentError(f"{name} follows from the columns by", hint=f"leave {name} out", parameter=name)
    levels = _check_levels(columns)
    if by is not None:
        table = read(data, prediction=prediction, features=by, task="binary", categorical=categorical)
        pilot = Pilot(table, bins, depth, min_rows, score_bands)
        chosen, notes = _pilot_segments(pilot, 1 if combined is None else combined, segments, settings)
    else:
        scores = _scores(data, prediction, prevalence, spread)
        own = _check_share(share)
        bands = score_bands if levels or share is None else 0  # a segment without columns is the only one
        stated = StatedSegments(tuple(levels), depth, _check_combined(combined, share, levels), bands, segments)
        name = OVERALL if own == 1.0 else f"a segment of {_percent(own)} of the rows"
        chosen = [_Segment.of(name, scores, own, stated.shares(), settings)]
        notes = list(stated.notes(monitor=monitor))
    tests = tuple(planned for segment in chosen for planned in _plan_segment(segment, settings))
    return Plan(tests, settings, (*_assumptions(settings, chosen), *notes), tuple(chosen))


def _check_settings(**given: Any) -> PlanSettings:
    """Validate scalar parameters."""
    check_number("ratio", given["ratio"], 0.0, above=True, optional=True, hint=RATIO_HINT)
    if given["ratio"] is not None and abs(math.log(given["ratio"])) < 1e-4:
        raise ArgumentError(
            f"ratio must differ from 1, which is no error; got {given['ratio']!r}", hint="pass 1.2", parameter="ratio"
        )
    check_integer("rows", given["rows"], 1, optional=True)
    check_fraction("power", given["power"], hint="0.8 is 80%, which is usual")
    check_fraction("alpha", given["alpha"], hint="0.05 is 5%")
    if given["power"] <= given["alpha"]:
        raise ArgumentError(
            f"power must exceed alpha, {given['alpha']:g}; got {given['power']!r}", hint="0.8 is usual", parameter="power"
        )
    check_integer("looks", given["looks"], 1)
    check_number("cluster_size", given["cluster_size"], 1.0)
    check_number("icc", given["icc"], 0.0, 1.0)
    check_integer("min_rows", given["min_rows"], 1)
    check_number("weekly_rows", given["weekly_rows"], 0.0, above=True, optional=True)
    check_integer("change_week", given["change_week"], 1)
    if given["weekly_rows"] is not None and not given["monitor"]:
        raise ArgumentError("weekly_rows is of a monitor", hint="plan one, too: monitor=True", parameter="weekly_rows")
    if given["ratio"] is None and given["rows"] is None:
        given["ratio"] = 1.2
    return PlanSettings(**given)


def _check_levels(columns: Sequence[int] | None) -> list[int]:
    levels = [] if columns is None else list(columns)
    for count in levels:
        check_integer("columns", count, 1, hint="pass the number of levels of each column: columns=[10, 5]")
    return levels


def _check_combined(combined: int | None, share: float | None, levels: list[int]) -> int:
    if combined is None:
        return 0 if share is None or not levels else 1
    if combined > len(levels):
        raise ArgumentError(
            f"combined must be at most the number of columns, {len(levels)}; got {combined}",
            hint="pass the number of levels of every column: columns=[10, 5]", parameter="combined",
        )  # fmt: skip
    if levels and (combined == 0) != (share is None or share == 1.0):
        problem = "combined=0 is for all rows" if combined == 0 else "a segment of columns needs its share of the rows"
        raise ArgumentError(f"{problem}; got share={share!r}", hint="pass {share}, or leave {combined} out",
                            parameter="combined", settings={"share": 0.05, "combined": combined})  # fmt: skip
    return combined


def _highest_ratio(scores: PlannedScores) -> float:
    """Return the observed/expected at which every outcome is 1, except those of scores of 0."""
    return float(np.sum(scores.mass[scores.scores > 0.0])) / scores.mean


def _check_ratio(ratio: float, name: str, scores: PlannedScores) -> None:
    highest = _highest_ratio(scores)
    if ratio >= highest:
        raise ArgumentError(
            f"ratio must be below {highest:.4g}, where every outcome of {name} is 1; got {ratio:g}",
            hint="plan for a smaller error",
            parameter="ratio",
        )


def _scores(data: Any, prediction: Any, prevalence: float | None, spread: float) -> PlannedScores:
    """Return the distribution of the scores of a pilot, or of normal logits."""
    if prevalence is not None:
        check_fraction("prevalence", prevalence, hint="0.02 is 2%")
        check_number("spread", spread, 0.0, 10.0)
        return PlannedScores.logit_normal(prevalence, spread)
    return _distribution(read(data, prediction=prediction, features=[], task="binary").prediction, "the pilot")


def _distribution(scores: AnyArray, name: str) -> PlannedScores:
    if scores.ndim != 1:
        raise ArgumentError("a plan is for one score", hint="name one prediction column", parameter="prediction")
    if not ((scores > 0) & (scores < 1)).any():
        raise DataError(f"all scores of {name} are 0 or 1: any outcome that differs is an error", hint="pass probabilities")
    return PlannedScores.of(scores)


def _check_share(share: float | None) -> float:
    if share is None:
        return 1.0
    if isinstance(share, (int, float)) and 1 < share <= 100:
        raise ArgumentError(
            f"share must be at most 1; got {share!r}", f"write {{share}} for {share:g}% of the rows", parameter="share",
            settings={"share": share / 100},
        )  # fmt: skip
    check_number("share", share, 0.0, 1.0, above=True, hint="0.05 is 5% of the rows")
    return share


def _pilot_segments(
    pilot: Pilot, combined: int, count: int | None, settings: PlanSettings
) -> tuple[list[_Segment], list[str]]:
    """Return all rows of a pilot and each of its segments that has enough scores, and what is assumed of them."""
    found = [_pilot_segment(pilot, (), OVERALL, pilot.table.prediction, count, settings)]
    few = 0
    for group, label, scores in pilot.segments(combined):
        if len(scores) < MIN_PILOT_ROWS or not ((scores > 0) & (scores < 1)).any():
            few += 1
        else:
            found.append(_pilot_segment(pilot, group, label, scores, count, settings))
    later = sum(not segment.in_monitor for segment in found) if settings.monitor and count is None else 0
    notes = list(pilot.notes(monitor=settings.monitor) if count is None else StatedSegments(count=count).notes())
    if later:
        notes.append(
            f"{later:,} segment{'' if later == 1 else 's'} with fewer than {settings.min_rows} rows in the pilot "
            f"{'is' if later == 1 else 'are'} planned for an audit only: a monitor pools rare levels until they have enough"
        )
    if few:
        notes.append(
            f"{few:,} segment{'' if few == 1 else 's'} with fewer than {MIN_PILOT_ROWS} scores, or with scores of 0 and 1 "
            f"only, {'is' if few == 1 else 'are'} left out"
        )
    return found, notes


def _pilot_segment(
    pilot: Pilot, group: tuple[int, ...], name: str, scores: FloatArray, count: int | None, settings: PlanSettings
) -> _Segment:
    """Return a segment of the pilot, with its shares of alpha in an audit of the rows that it needs or of those there are.

    More rows make more segments, which makes shares smaller and needs more rows: the audit has at least those of the pilot.
    """
    distribution, share = _distribution(scores, name), len(scores) / len(pilot)

    def in_audit_of(rows: float) -> _Segment:
        shares = (1.0 / (count or 1),) * 2
        if count is None:
            begins = settings.monitor and (not group or len(scores) >= settings.min_rows)
            shares = pilot.audit_share(group, rows), pilot.monitor_share(group) if begins else math.nan
        return _Segment.of(name, distribution, share, shares, settings)

    rows = settings.rows or len(pilot)
    segment = in_audit_of(rows)
    while count is None and settings.rows is None:
        assert settings.ratio is not None
        needed = _rows_needed(segment, ScoreError.of_ratio(distribution, settings.ratio), AUDIT, settings) / share
        if math.isinf(needed) or needed <= rows:
            break
        rows = len(pilot) * 2 ** math.ceil(math.log2(needed / len(pilot)))  # few different audits for all segments
        segment = in_audit_of(rows)
    return segment


def _cost(segment: _Segment, test: str, settings: PlanSettings) -> float:
    return alarm_cost(segment.monitor_level, None if test == START else settings.change_week)


def _power(segment: _Segment, test: str, settings: PlanSettings, rows: float, error: ScoreError) -> float:
    """Return the power of a test with so many rows of the segment."""
    independent = rows / settings.design_effect
    if test != AUDIT:
        return error.monitor_power(independent, _cost(segment, test, settings))
    if rows < settings.least_rows:
        return 0.0
    if independent == rows < SMALL:
        return error.simulated_power(math.floor(rows), segment.audit_level)
    return error.power(independent, segment.audit_level)


def _rows_needed(segment: _Segment, error: ScoreError, test: str, settings: PlanSettings) -> float:
    """Return the rows of the segment with which a test finds an error."""
    if test != AUDIT:
        needed = error.monitor_rows(_cost(segment, test, settings), settings.power) * settings.design_effect
        return math.ceil(max(needed, 1.0))
    rows = error.audit_rows(segment.audit_level, settings.power) * settings.design_effect
    if math.isinf(rows):
        return math.inf
    rows = max(math.ceil(rows), settings.least_rows)
    if rows >= SMALL or settings.design_effect > 1.0:
        return rows
    low, high = settings.least_rows - 1, 2 * SMALL
    while high - low > 1:
        middle = (low + high) // 2
        enough = _power(segment, test, settings, middle, error) >= settings.power
        low, high = (low, middle) if enough else (middle, high)
    return high


def _plan_segment(segment: _Segment, settings: PlanSettings) -> list[PlannedTest]:
    planned = []
    for test in settings.tests if segment.in_monitor else (AUDIT,):
        if settings.rows is None:
            assert settings.ratio is not None
            error = ScoreError.of_ratio(segment.scores, settings.ratio)
            planned.append(_planned(segment, test, settings, error, _rows_needed(segment, error, test, settings)))
            continue
        rows = settings.rows * segment.share
        if settings.ratio is not None:
            planned.append(_planned(segment, test, settings, ScoreError.of_ratio(segment.scores, settings.ratio), rows))
            continue
        found = partial(_power, segment, test, settings, rows)
        errors = (detectable_error(segment.scores, up, found, settings.power) for up in (True, False))
        planned += [_planned(segment, test, settings, error, rows) for error in errors]
    return planned


def _planned(segment: _Segment, test: str, settings: PlanSettings, error: ScoreError | None, rows: float) -> PlannedTest:
    """Return the planned test of an error; None stands for no error that is found."""
    level = segment.audit_level if test == AUDIT else segment.monitor_level
    total, weekly = rows / segment.share, settings.weekly_rows
    if settings.rows is None:
        total = math.ceil(total) if total < MAX_ROWS else math.inf
    average = power = math.nan
    if error is not None:
        power = settings.power
        if settings.rows is not None and settings.ratio is not None:
            power = _power(segment, test, settings, rows, error)
        if test != AUDIT:
            average = error.monitor_rows(_cost(segment, test, settings), None) * settings.design_effect / segment.share
    mean = segment.scores.mean

    def weeks(count: float) -> float:
        return math.nan if weekly is None or test == AUDIT or not math.isfinite(count) else float(math.ceil(count / weekly))

    return PlannedTest(
        segment.name, test, segment.share, mean, level, math.nan if error is None else error.ratio, power, rows, total,
        rows * mean, average, weeks(total), weeks(average),
    )  # fmt: skip


def _assumptions(settings: PlanSettings, segments: Sequence[_Segment]) -> list[str]:
    """Return sentences on what the plan assumes."""
    levels = _range(segment.audit_level for segment in segments)
    if settings.monitor:
        levels += f", in a monitor {_range(segment.monitor_level for segment in segments)}"
    looks = f" and {settings.looks} looks" if settings.looks > 1 else ""
    rate = f"; expected rate {number(segments[0].scores.mean)}" if len(segments) == 1 else ""
    notes = [
        f"level of the test of a segment in an audit: {levels}, its share of alpha {settings.alpha:g}{looks}{rate}",
        "an error shifts the logits of all scores of a segment by the same amount",
    ]
    if settings.design_effect > 1.0:
        notes.append(
            f"design effect {number(settings.design_effect)}: {settings.cluster_size:g} rows, icc {settings.icc:g}"
        )
    if settings.monitor:
        notes.append("rows of a monitor are those since the error began; mean: rows in all until its alarm, on average")
    return notes


def _range(values: Iterable[float]) -> str:
    low, high = min(ordered := list(values)), max(ordered)
    return f"{low:.3g} to {high:.3g}" if high > low else f"{low:.3g}"


def _percent(value: float) -> str:
    return "" if math.isnan(value) else f"{100 * value:.3g}%"


def _count(value: float) -> str:
    return "" if math.isnan(value) else f"{value:,.0f}"
