"""The page of a monitor: its alarms, evidence and observed/expected over time, the maturity of labels, and drift."""

from __future__ import annotations

import base64
import csv
import hashlib
import math
import re
from dataclasses import dataclass, fields
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import number, shorten
from trueup.monitoring.alarms import INTERVAL_LEVEL
from trueup.monitoring.eprocess import onset_prior, ratio_interval
from trueup.monitoring.periods import DAYS_PER_WEEK
from trueup.monitoring.result import ADVICE, ALARM, CALIBRATED, CERTAIN, OFFSET, MonitorAlarm
from trueup.reports.model import (
    Axis,
    Cell,
    Column,
    Figure,
    Frame,
    TableView,
    count_cell,
    make_table,
    number_cell,
    text_cell,
)
from trueup.reports.profiles import Profile, load_profile
from trueup.reports.summary import NextStep
from trueup.reports.text import count_text, interval_text, percent

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup.monitoring.history import SegmentCourse
    from trueup.monitoring.monitor import Monitor
    from trueup.monitoring.result import MonitorReport
    from trueup.reports.profiles import Vocabulary

MAX_ALARMS = 12  # of the table
MAX_COURSES = 5  # alarms with curves
MAX_POINTS = 26  # of a plot of observed/expected; more periods are joined
MAX_TICKS = 7
MIN_LOG_EVIDENCE, MAX_LOG_EVIDENCE = -3.0, 9.0  # powers of ten: other evidence is drawn at the end of the scale
EVIDENCE_SIZE, RATIO_SIZE = (880.0, 300.0), (300.0, 150.0)
RATIO_LIMITS = (1.25, 1.5, 2.0, 3.0, 5.0, 10.0)
DRIFT_LEAD = (
    "Scores and segments may change their shares of the rows without any error of the scores, and scores may become wrong "
    "without drift: this section says nothing about calibration. It needs no outcomes."
)
STATES = {ALARM: "flagged", CALIBRATED: "passed"}
PSI_MEANING = "population stability index against the reference; by a rule of thumb small below 0.1, large above 0.25"


@dataclass(frozen=True)
class EvidencePlot:
    """Evidence of several segments over time, times their share of alpha, as powers of ten, and the line of the alarm."""

    frame: Frame
    lines: tuple[tuple[str, str], ...]  # names and points
    alarm: float
    dates: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class RatioPlot:
    """Observed/expected of one segment by period, with intervals that hold for all periods at once."""

    name: str
    caption: str
    frame: Frame
    bars: tuple[tuple[float, float, float, float, str], ...]  # x, y, low, high, text
    onset: float | None
    dates: tuple[tuple[float, str], ...]


@dataclass(frozen=True)
class WatchPage:
    """Contents of the page of a monitor."""

    title: str
    report: MonitorReport
    vocabulary: Vocabulary
    subject: tuple[str, ...]
    lead: str
    step: NextStep
    figures: tuple[Figure, ...]
    alarms: TableView
    evidence: EvidencePlot | None
    ratios: tuple[RatioPlot, ...]
    labels: tuple[Figure, ...]
    drift: TableView
    stability: TableView
    settings: tuple[tuple[str, str], ...]
    sign_off: tuple[str, ...]

    @property
    def state(self) -> str:
        """The kind of the verdict, for its colour."""
        return STATES.get(self.report.state, "untested")


def build(
    monitor: Monitor, *, profile: Profile | str = "general", title: str | None = None, command: str = ""
) -> WatchPage:
    """Collect the contents of the page; ``command`` is that which carries out the next step."""
    report, profile = monitor.report(), profile if isinstance(profile, Profile) else load_profile(profile)
    vocabulary = profile.vocabulary
    plotted = [("all " + vocabulary.rows, 0, None), *_numbered(monitor, report.distinct[:MAX_COURSES])]
    labels = monitor.state.segments.labels
    courses = [(name, at, alarm, monitor.state.history.course(at)) for name, at, alarm in plotted if at < len(labels)]
    return WatchPage(
        title or ("Calibration monitor" if profile.name == "general" else f"Calibration monitor: {profile.name}"),
        report, vocabulary, _subject(monitor, report, vocabulary), _lead(report, vocabulary), _next_step(report, command),
        _key_figures(report, vocabulary), _alarm_table(report, vocabulary), _evidence_plot(monitor, courses),
        tuple(_ratio_plot(monitor, *course) for course in courses if len(course[3].periods)),
        _label_figures(report, vocabulary),
        _drift_table(report, vocabulary), _stability_table(monitor), _settings(monitor, report), profile.sign_off,
    )  # fmt: skip


def _numbered(monitor: Monitor, alarms: Sequence[MonitorAlarm]) -> Iterator[tuple[str, int, MonitorAlarm]]:
    for alarm in alarms:
        at = monitor.state.segments.labels.index(alarm.segment)
        if at:
            yield alarm.segment, at, alarm


def _subject(monitor: Monitor, report: MonitorReport, vocabulary: Vocabulary) -> tuple[str, ...]:
    until = [] if report.until is None else [f"until {report.until}"]
    return (f"score {monitor.prediction}", f"{report.rows.counted:,} {vocabulary.rows}", *until)


def _lead(report: MonitorReport, vocabulary: Vocabulary) -> str:
    if report.state == ALARM:
        first = report.distinct[0]
        return f"The strongest: {shorten(first.segment, 90)}, {first.size} since about {first.since}."
    if report.state == CALIBRATED:
        return f"No {vocabulary.segment} of {report.segments:,} has raised an alarm in {report.periods:,} periods."
    return "No period has closed yet: outcomes count when they are mature, at the end of their period."


def _next_step(report: MonitorReport, command: str) -> NextStep:
    if report.advice is None:
        return NextStep(("Nothing. Run the monitor again when more outcomes are mature; any time is a good time.",))
    steps = [f"{ADVICE[report.advice][0].upper()}{ADVICE[report.advice][1:]}."]
    if report.advice == CERTAIN:
        return NextStep((*steps, "Find where these scores come from: no correction can help them."))
    kind = "factor" if report.advice == OFFSET else "correction"
    steps.append(f"Put the {kind} into production, and start a new monitor for the corrected scores: it has its own alpha.")
    return NextStep(tuple(steps), command)


def _key_figures(report: MonitorReport, vocabulary: Vocabulary) -> tuple[Figure, ...]:
    detectable = "not yet" if report.detectable is None else number(report.detectable)
    return (
        Figure("distinct errors", f"{len(report.distinct):,}",
               f"{len(report.alarms):,} of {report.segments:,} {vocabulary.segments} raised an alarm"),
        Figure(f"observed/expected, all {vocabulary.rows}", number(report.ratio) if report.until else "-",
               f"{interval_text(report.low, report.high)}, 90% at all times" if report.until else ""),
        Figure("detectable by now", detectable, f"observed/expected over all {vocabulary.rows}, with 80% power"),
        Figure("chance of a false alarm", f"at most {percent(report.alpha)}",
               "over all segments and looks" if report.budget == "life" else "in the first year"),
    )  # fmt: skip


def _alarm_table(report: MonitorReport, vocabulary: Vocabulary) -> TableView:
    shown = report.distinct[:MAX_ALARMS]

    def name(alarm: MonitorAlarm) -> Cell:
        more = f"Explains {len(alarm.explains):,} more alarms." if alarm.explains else ""
        cell = text_cell(alarm.segment)
        return Cell(cell.text, "name", title=cell.title, value=cell.value, detail=more)

    def ratio(alarm: MonitorAlarm) -> Cell:
        if alarm.varies or alarm.contradictions:
            return Cell("varies" if alarm.varies else "certain scores", "number", value=alarm.ratio)
        return number_cell(alarm.ratio)

    columns = [
        Column("alarm", name, kind="name"),
        Column("since about", lambda a: Cell(a.since), "when the wrong scores were made, most likely"),
        Column("obs/exp", ratio, "observed/expected since then; varies: the error is not one of the mean"),
        Column("90% interval", lambda a: Cell(interval_text(a.low, a.high), "interval"), "holds at all times",
               kind="interval"),
        Column(vocabulary.rows, lambda a: count_cell(a.rows), "since then"),
        Column("raised by", lambda a: Cell(a.raised), "end of the period of the alarm"),
        Column("p", lambda a: number_cell(a.p_value, digits=2), "adjusted for all segments and looks"),
    ]  # fmt: skip
    return make_table(columns, shown, len(report.distinct) - len(shown))


def _label_figures(report: MonitorReport, vocabulary: Vocabulary) -> tuple[Figure, ...]:
    rows = report.rows
    texts = {
        "counted": ("counted", "mature, with outcome and score"),
        "waiting": ("waiting", "of the last update, not mature yet"),
        "closed": ("of closed periods", "counted before, or too late"),
        "repeated": ("repeated", "given twice, count once"),
        "unscored": ("without a score", "mature, left out"),
        "unlabelled": ("without an outcome", "mature, of the last update, left out"),
        "dropped": ("dropped", "without an outcome, since the start"),
        "missed": ("missed", "at least; missing when their period closed"),
    }
    return tuple(Figure(f"{vocabulary.rows} {name}", f"{getattr(rows, key):,}", detail)
                 for key, (name, detail) in texts.items())  # fmt: skip


def _drift_table(report: MonitorReport, vocabulary: Vocabulary) -> TableView:
    columns = [
        Column(vocabulary.segment, lambda d: text_cell(d.segment), kind="name"),
        Column("reference", lambda d: number_cell(d.reference, f"{d.reference:.2%}"), "share of the reference"),
        Column("now", lambda d: number_cell(d.share, f"{d.share:.2%}"), "share since the start"),
        Column("p", lambda d: number_cell(d.p_value, digits=2), "adjusted for all levels and looks"),
    ]  # fmt: skip
    return make_table(columns, report.drift[:MAX_ALARMS], max(len(report.drift) - MAX_ALARMS, 0))


def _stability_table(monitor: Monitor) -> TableView:
    drift, segments = monitor.state.drift, monitor.state.segments
    if drift is None or not drift.total:
        return make_table([], ())
    whole, last = (drift.stability(segments, last=last) for last in (False, True))
    columns = [
        Column("column", lambda item: text_cell(item[0]), kind="name"),
        Column("PSI, last period", lambda item: number_cell(item[2], digits=2), PSI_MEANING),
        Column("PSI, since the start", lambda item: number_cell(item[1], digits=2), PSI_MEANING),
    ]
    items = sorted(((name, whole[name], last[name]) for name in whole), key=lambda item: -item[1])
    return make_table(columns, items)


def _settings(monitor: Monitor, report: MonitorReport) -> tuple[tuple[str, str], ...]:
    columns = [column.name for column in monitor.state.segments.columns]
    return (
        ("outcome and score", f"{monitor.outcome}, {monitor.prediction}"),
        ("columns", shorten(", ".join(columns) or "none", 200)),
        ("combined columns", f"up to {monitor.depth}"),
        ("maturity", f"{monitor.maturity:g} days"),
        ("period", f"{monitor.period:g} days"),
        ("alpha", f"{percent(monitor.alpha)}, {'over the whole life' if report.budget == 'life' else 'a year'}"),
        ("tolerance", percent(monitor.tolerance) if monitor.tolerance else "none"),
        ("clusters", "none" if monitor.cluster is None else f"{monitor.cluster}; each counts once a period"),
        ("revision of the state", f"{monitor.revision:,}"),
    )


# Plots


def _dates(monitor: Monitor, frame: Frame, first: int, last: int, most: int = MAX_TICKS) -> tuple[tuple[float, str], ...]:
    step = max(-(-(last - first + 1) // most), 1)
    return tuple((frame.x(period + 1), monitor.end_date(period)) for period in range(first, last + 1, step))


def _evidence_plot(monitor: Monitor, courses: Sequence[tuple[str, int, Any, SegmentCourse]]) -> EvidencePlot | None:
    known = [(name, at, course) for name, at, _, course in courses if len(course.periods)]
    if not known:
        return None
    shares, alarm = monitor.state.segments.shares, -math.log10(monitor.alpha)
    heights = [(course.evidence + math.log(shares[at])) / math.log(10) for _, at, course in known]
    heights = [np.clip(own, MIN_LOG_EVIDENCE, MAX_LOG_EVIDENCE) for own in heights]
    low, high = min(own.min() for own in heights), max(own.max() for own in heights)
    low, high = math.floor(min(low, -1.0)), math.ceil(max(high, alarm) + 0.3)
    first = min(int(course.periods[0]) for _, _, course in known)
    last = max(int(course.periods[-1]) for _, _, course in known)
    step = max(-(-(high - low) // 8), 1)
    y_axis = Axis(low, high, tuple(float(tick) for tick in range(low, high + 1) if tick % step == 0), 0)
    frame = Frame(Axis(first, max(last + 1, first + 2), (), 0), y_axis, 58, 14, *EVIDENCE_SIZE)
    lines = tuple(
        (shorten(name, 60), frame.points(course.periods + 1, own))
        for (name, _, course), own in zip(known, heights, strict=True)
    )
    return EvidencePlot(frame, lines, frame.y(alarm), _dates(monitor, frame, first, last))


def power_text(tick: float) -> str:
    """Format a power of ten."""
    digits = str(int(tick)).translate(str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹"))
    return f"{10.0**tick:g}" if -3 < tick < 4 else f"10{digits}"


def ratio_text(tick: float) -> str:
    """Format the exponent of a ratio."""
    return f"{math.exp(tick):.2g}"


def _ratio_plot(monitor: Monitor, name: str, at: int, alarm: MonitorAlarm | None, course: SegmentCourse) -> RatioPlot:
    """Plot observed/expected of blocks of consecutive periods; the levels of all intervals add up to 10%."""
    clock, length = monitor.state.clock, monitor.period
    assert clock.first is not None
    size = -(-len(course.periods) // MAX_POINTS)
    blocks = []
    for start in range(0, len(course.periods), size):
        some = slice(start, start + size)
        weeks = (int(course.periods[some][0]) - clock.first) * length / DAYS_PER_WEEK
        end = (int(course.periods[some][-1]) + 1 - clock.first) * length / DAYS_PER_WEEK
        counts = [float(column[some].sum()) for column in (course.outcomes, course.expected, course.rows)]
        level = INTERVAL_LEVEL * float(onset_prior(weeks, end))
        if counts[1] > 0:
            blocks.append((course.periods[some], counts, ratio_interval(counts[0], counts[1], counts[2], level)))
    ends = [end for _, counts, interval in blocks for end in (*interval, counts[0] / counts[1]) if 0 < end < math.inf]
    ratios = sorted(max(counts[0] / counts[1], counts[1] / max(counts[0], 1e-9)) for _, counts, _ in blocks)
    need = max([*ratios[: max(len(ratios) - 1, 1)], 1.2], default=1.2) * 1.15
    limit = next((one for one in RATIO_LIMITS if one >= need), RATIO_LIMITS[-1])
    edge = math.log(limit)
    first, last = int(course.periods[0]), int(course.periods[-1])
    frame = Frame(
        Axis(first, max(last + 1, first + 2), (), 0), Axis(-edge, edge, (-edge, 0.0, edge), 2), 42, 8, *RATIO_SIZE
    )
    bars = []
    for periods, (outcomes, expected, rows), (low, high) in blocks:
        ratio = outcomes / expected
        middle = float(periods.mean()) + 0.5
        text = (f"{monitor.end_date(int(periods[0]) - 1)} to {monitor.end_date(int(periods[-1]))}: {number(ratio)} "
                f"({interval_text(low, high)}), {count_text(outcomes)} of {count_text(rows)}")  # fmt: skip
        at_ratio, at_low, at_high = (frame.y(math.log(max(value, 1e-9))) for value in (ratio, low, high))
        bars.append((frame.x(middle), at_ratio, at_low, at_high, text))
    onset = None
    if alarm is not None:
        period = monitor.state.processes.onset(at)[0]
        onset = frame.x(period) if period > first else None
    caption = f"{len(blocks)} {'periods' if size == 1 else f'blocks of {size} periods'}"
    if course.periods[0] > clock.first:
        caption += f", from {monitor.end_date(first - 1)}, when there first was some evidence"
    assert ends or not blocks
    return RatioPlot(shorten(name, 60), caption, frame, tuple(bars), onset, _dates(monitor, frame, first, last, 3))


# Files


def page(monitor: Monitor, **options: Any) -> str:
    """Return the HTML page of a monitor; ``options`` are those of `build`."""
    from trueup.reports.page import environment

    content = build(monitor, **options)
    assets: Any = environment().get_template("assets.html.j2").module
    script = assets.script()
    return environment().get_template("watch.html.j2").render(
        page=content, report=content.report, vocabulary=content.vocabulary, assets=assets, script=script,
        digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(), power_text=power_text,
        ratio_text=ratio_text, drift_lead=DRIFT_LEAD, psi=PSI_MEANING,
    )  # fmt: skip


def markdown(monitor: Monitor, **options: Any) -> str:
    """Return the Markdown summary of a monitor; ``options`` are those of `build`."""
    from trueup.reports.page import environment

    content = build(monitor, **options)
    text = environment().get_template("watch.md.j2").render(page=content, report=content.report, drift_lead=DRIFT_LEAD)
    return re.sub("\n{3,}", "\n\n", text).strip() + "\n"


def csv_lines(report: MonitorReport) -> Iterator[str]:
    """Yield all alarms as lines of CSV, the strongest evidence first."""
    from trueup.reports.page import csv_value

    sink: Any = SimpleNamespace(write=str)  # a writer returns what this does: the line
    writer = csv.writer(sink, lineterminator="\r\n")
    names = [item.name for item in fields(MonitorAlarm) if item.name != "explains"]
    yield writer.writerow(names)
    for alarm in report.alarms:
        yield writer.writerow([csv_value(getattr(alarm, name)) for name in names])
