"""Contents of a page: everything it shows of an audit, as text and coordinates for the templates to lay out."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import ADJUSTMENTS, how_far, number, shorten
from trueup.reports import plots
from trueup.reports.profiles.profile import DEFAULT_VOCABULARY, Vocabulary
from trueup.reports.text import (
    NextStep,
    audit_notes,
    count_text,
    detectable_shifts,
    interval_text,
    nearest_integer,
    next_step,
    percent,
    provenance,
    summarize,
    summary_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from trueup._types import Int32Array, IntArray
    from trueup.audits.result import Audit, Finding
    from trueup.audits.summary import AuditSummary

MAX_TABLE_ROWS = 1000
MAX_CURVES = 4
MAX_UNTESTED = 20
MAX_NOTES = 30
MAX_LISTED_NAMES = 60
MAX_NAME_LENGTH = 90
MAX_TOOLTIP_LENGTH = 1000
MAX_TOOLTIP_LENGTH_IN_LONG_TABLE = 160  # keeps the page small
LONG_TABLE_ROWS = 100
MAX_TOOLTIP_BYTES_PER_CHARACTER = 2  # an escaped quotation mark takes six bytes
MAX_MAP_COLUMNS = 16
MAX_MAP_NAME_LENGTH = 24
MAP_SHADES = (2.0, 3.0, 4.0, 6.0, 10.0)  # sigma from which the next darker shade is used
VERDICTS = {
    "flagged": "Miscalibrated",
    "passed": "No miscalibration found",
    "untested": "Nothing could be tested",
}
STATES = {
    "flagged": "miscalibrated",
    "passed": "within noise",
    "untested": "not tested",
    "absent": "absent",
}
STATE_MEANING = "miscalibrated: the adjusted p-value is at most alpha"
SIGMA_MEANING = "range of the cumulative differences, in standard deviations under calibration"
METRICS = {
    "brier": ("Brier score", "mean squared difference between score and outcome; lower is better"),
    "log loss": ("log loss", "mean negative log-likelihood of the outcomes, in nats; lower is better"),
    "normalized entropy": (
        "normalised entropy",
        "log loss divided by that of always predicting the mean; below 1 the scores are informative",
    ),
    "auc": (
        "AUC",
        "probability that a positive has a higher score than a negative; 0.5 is random. It does not measure calibration",
    ),
    "slope": ("slope", "1 if calibrated; below 1 the scores are too extreme, above 1 not extreme enough"),
    "intercept": ("intercept", "0 if calibrated, given the slope; on the logit scale"),
    "in the large": ("calibration in the large", "0 if calibrated; above 0 the scores are too low; on the logit scale"),
    "rmse": ("root mean squared error", "typical difference between prediction and outcome, in their units"),
}
MULTICALIBRATION_ERROR = "multicalibration error"


# Elements of a page


@dataclass(frozen=True)
class Name:
    """A text from the data: a short form to show, and for the tooltip as much of it as the page may hold."""

    short: str
    full: str

    @classmethod
    def of(cls, text: str, width: int = MAX_NAME_LENGTH, max_tooltip: int = MAX_TOOLTIP_LENGTH) -> Name:
        """Shorten a text of any length and content."""
        short, full = shorten(text, width), shorten(text, max_tooltip)
        max_bytes = MAX_TOOLTIP_BYTES_PER_CHARACTER * max_tooltip
        while len(full) > len(short) and len(html.escape(full).encode()) > max_bytes:
            full = shorten(full, 3 * len(full) // 4)
        return cls(short, full if len(full) > len(short) else "")


@dataclass(frozen=True)
class KeyFigure:
    """A key figure: label, value, and a remark below it."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class CurveView:
    """A reliability curve with its caption; ``audit`` names the audit on a page of several."""

    name: Name
    caption: str
    state: str
    state_text: str
    plot: plots.ReliabilityPlot | None
    audit: str = ""


@dataclass(frozen=True)
class Cell:
    """A table cell; ``sort`` is its sort key (empty if it has none), ``value`` its value when exported as data."""

    text: str
    kind: str = "number"
    sort: str = ""
    title: str = ""
    state: str = ""
    ratio: plots.RatioMark | None = None
    value: Any = None


@dataclass(frozen=True)
class Heading:
    """A column heading and its explanation."""

    text: str
    meaning: str = ""
    kind: str = "number"


@dataclass(frozen=True)
class TableView:
    """A table and the number of rows that were left out of it.

    ``groups`` are headings over several columns. ``filters`` has, per row, the indices of its data columns and its number
    of rows of data; ``columns`` are the data columns to filter by, as index and name.
    """

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0
    groups: tuple[tuple[str, int], ...] = ()
    filters: tuple[tuple[str, int], ...] = ()
    columns: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Section:
    """A section of a page that comes from a profile or a fix: title, lead, and a table or a plot."""

    title: str
    lead: str
    table: TableView | None = None
    svg: str | None = None


@dataclass(frozen=True)
class Metric:
    """A metric: name, value with a 95% confidence interval where one is known, and meaning."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class BrierTerm(Metric):
    """A term of the Brier decomposition, with a bar from ``start``, in percent of the longest."""

    start: float
    width: float
    kind: str


@dataclass(frozen=True)
class MapCell:
    """A pair of columns: its largest sigma, the shade of the cell, and how many of its segments are miscalibrated."""

    first: int
    second: int
    sigma: str
    shade: int
    flagged: int
    tested: int
    title: str


@dataclass(frozen=True)
class ColumnMap:
    """The lower triangle of columns against columns; None where nothing was tested. ``more`` columns were left out."""

    names: tuple[Name, ...]
    rows: tuple[tuple[MapCell | None, ...], ...]
    more: int


@dataclass(frozen=True)
class AuditView:
    """Everything a page shows of one audit, except the table of segments."""

    name: str
    state: str
    verdict: str
    summary: str
    step: NextStep
    figures: tuple[KeyFigure, ...]
    overall: CurveView
    path: plots.PathPlot | None
    brier: tuple[BrierTerm, ...]
    metrics: tuple[Metric, ...]
    worst: tuple[CurveView, ...]
    map: ColumnMap | None
    detectable: tuple[str, ...]
    notes: tuple[str, ...]
    untested: tuple[tuple[Name, str], ...]
    more_untested: int
    settings: tuple[tuple[str, str], ...]
    provenance: tuple[tuple[str, str, bool], ...]


# Cells


def number_cell(value: float, text: str = "") -> Cell:
    """Show a number; NaN sorts last."""
    infinity = "Infinity" if value > 0 else "-Infinity"  # as JavaScript spells it
    sort = "" if math.isnan(value) else infinity if math.isinf(value) else f"{value:.7g}"
    return Cell(text or number(value), "number", sort, value=value)


def count_cell(value: float) -> Cell:
    """Show a count or a sum of weights; as data, a sum that equals an integer up to rounding is that integer."""
    nearest = nearest_integer(value) if math.isfinite(value) else None
    return number_cell(value if nearest is None else nearest, count_text(value))


def p_cell(value: float) -> Cell:
    """Show a p-value."""
    return number_cell(value, number(value, 2))


def interval_cell(low: float, high: float) -> Cell:
    """Show an interval; as data it is a pair."""
    return Cell(interval_text(low, high), "interval", value=[low, high])


def text_cell(text: str, kind: str = "name", rows: int = 1) -> Cell:
    """Show a text from the data in a table of so many rows; long tables have shorter tooltips."""
    limit = MAX_TOOLTIP_LENGTH if rows <= LONG_TABLE_ROWS else MAX_TOOLTIP_LENGTH_IN_LONG_TABLE
    name = Name.of(text, max_tooltip=limit)
    return Cell(name.short, kind, title=name.full, value=text)


def finding_state(audit: Audit, finding: Finding | None) -> str:
    """Return the key of `STATES` for a segment; None is a segment that the audit does not have."""
    if finding is None:
        return "absent"
    if not finding.testable:
        return "untested"
    return "flagged" if finding.p_adjusted <= audit.settings.alpha else "passed"


def state_cell(audit: Audit, finding: Finding | None) -> Cell:
    """Show whether a segment is miscalibrated."""
    state = finding_state(audit, finding)
    note = "" if finding is None else finding.note
    return Cell(STATES[state], "state", str(list(STATES).index(state)), title=note, state=state)


def ratio_cell(audit: Audit, finding: Finding, scale: plots.RatioScale, before: float = math.nan) -> Cell:
    """Show a ratio and its interval on a line, with the ratio of an earlier audit."""
    mark = plots.ratio_mark(finding.ratio, finding.ratio_low, finding.ratio_high, before, limit=scale.limit)
    return Cell("", "forest", state=finding_state(audit, finding), ratio=mark)


# One audit


def view_audit(
    audit: Audit, name: str = "", axis: plots.Axis | None = None, vocabulary: Vocabulary = DEFAULT_VOCABULARY
) -> AuditView:
    """Collect what a page shows of one audit; ``axis`` is shared with other audits of the page."""
    state = "untested" if not audit.tested else "flagged" if audit.miscalibrated else "passed"
    overall, summary = audit.overall, summary_of(audit)
    worst = [finding for finding in audit.worst(min(MAX_CURVES + 1, audit.tested)) if finding.segment != overall.segment]
    untested = [audit.finding(rank) for rank in range(audit.tested, min(audit.tested + MAX_UNTESTED, len(audit)))]
    return AuditView(
        name=name,
        state=state,
        verdict=VERDICTS[state],
        summary=summarize(audit, vocabulary),
        step=next_step(audit, vocabulary),
        figures=_key_figures(audit, vocabulary),
        overall=view_curve(audit, overall, axis, large=True, vocabulary=vocabulary),
        path=plots.plot_path(audit, vocabulary),
        brier=_brier_terms(summary),
        metrics=_metrics(summary, audit.mce_absolute, vocabulary),
        worst=tuple(view_curve(audit, finding, vocabulary=vocabulary) for finding in worst[:MAX_CURVES]),
        map=map_columns(audit, vocabulary),
        detectable=detectable_shifts(audit, vocabulary),
        notes=_notes(audit, vocabulary),
        untested=tuple((Name.of(finding.segment), finding.note) for finding in untested),
        more_untested=len(audit) - audit.tested - len(untested),
        settings=_settings(audit, vocabulary),
        provenance=provenance(audit, vocabulary),
    )


def view_curve(
    audit: Audit, finding: Finding, axis: plots.Axis | None = None, *, large: bool = False, name: str = "",
    vocabulary: Vocabulary = DEFAULT_VOCABULARY,
) -> CurveView:  # fmt: skip
    """Place the reliability curve of a segment, on an axis of its own by default; ``large`` is for the overall curve."""
    state = finding_state(audit, finding)
    size = how_far(finding) if state == "flagged" else _mean_difference(finding)
    caption = f"{finding.n:,} {vocabulary.rows}, {size}, {number(finding.sigma)} sigma"
    plot = None
    if finding.curve is not None and len(finding.curve):
        probabilities = audit.schema.task != "regression"
        axis = axis or plots.curve_axis([finding.curve], probabilities=probabilities, ticks=7 if large else 5)
        if large:
            plot = plots.plot_overall(finding, axis, summary_of(audit), vocabulary)
        else:
            plot = plots.plot_curve(finding.curve, axis)
    return CurveView(Name.of(finding.segment), caption, state, STATES[state], plot if plot and plot.points else None, name)


def _mean_difference(finding: Finding) -> str:
    if math.isfinite(finding.ratio) and finding.expected > 0:
        return f"observed/expected {finding.ratio:.2f}"
    return f"observed minus expected {finding.bias:+.3g}"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value)


def _key_figures(audit: Audit, vocabulary: Vocabulary) -> tuple[KeyFigure, ...]:
    overall, rows = audit.overall, vocabulary.rows
    mean = "mean outcome" if vocabulary.observed == DEFAULT_VOCABULARY.observed else vocabulary.observed
    weight = f"total weight {number(overall.weight)}" if audit.schema.weight is not None else ""
    if math.isnan(audit.worst_sigma):
        evidence = KeyFigure("strongest evidence", "none")
    else:
        evidence = KeyFigure("strongest evidence", f"{number(audit.worst_sigma)} sigma", "in standard deviations")
    if math.isfinite(overall.ratio) and overall.expected > 0:
        interval = f"{percent(1 - audit.settings.alpha)} interval {interval_text(overall.ratio_low, overall.ratio_high)}"
        difference = KeyFigure(f"observed/expected, all {rows}", number(overall.ratio), interval)
    else:
        difference = KeyFigure(f"observed - expected, all {rows}", _signed(overall.bias))
    return (
        KeyFigure(rows, f"{audit.rows:,}", weight),
        KeyFigure(f"{vocabulary.segments} tested", f"{audit.tested:,}", f"of up to {audit.settings.depth} columns each"),
        KeyFigure(
            f"{vocabulary.segments} miscalibrated", f"{audit.rejected:,}", f"adjusted p at most {audit.settings.alpha:g}"
        ),
        evidence,
        difference,
        KeyFigure(
            f"{mean}, all {rows}", number(overall.observed, 4), f"{vocabulary.expected} {number(overall.expected, 4)}"
        ),
    )


def _notes(audit: Audit, vocabulary: Vocabulary) -> tuple[str, ...]:
    notes = [shorten(note, 400) for note in audit_notes(audit, vocabulary)]
    more = len(notes) - MAX_NOTES
    return (*notes[:MAX_NOTES], *([f"and {more:,} more notes"] if more > 0 else []))


def _settings(audit: Audit, vocabulary: Vocabulary) -> tuple[tuple[str, str], ...]:
    schema, settings = audit.schema, audit.settings

    def listed(names: Iterable[str]) -> str:
        names = list(names)
        more = len(names) - MAX_LISTED_NAMES
        shown = ", ".join(shorten(name, 60) for name in names[:MAX_LISTED_NAMES])
        return shown + (f" and {more:,} more" if more > 0 else "")

    categorical = (feature.name for feature in schema.features if feature.kind == "categorical")
    items = [
        ("task", schema.task),
        ("outcome", shorten(schema.outcome or "passed as values", 60)),
        ("prediction", listed(schema.prediction)),
        ("classes", listed(schema.classes)),
        ("weight", shorten(schema.weight or "none", 60)),
        (f"columns that form {vocabulary.segments}", listed(feature.name for feature in schema.features) or "none"),
        ("categorical columns", listed(categorical) or "none"),
        (f"maximum columns per {vocabulary.segment}", str(settings.depth)),
        (f"minimum {vocabulary.rows} per {vocabulary.segment}", f"{settings.min_rows:,}"),
        ("significance level (alpha)", f"{settings.alpha:g}"),
        ("p-values adjusted by", ADJUSTMENTS[settings.adjust]),
        ("draws", f"{settings.draws:,}" if settings.draws else ""),
        ("seed", str(settings.random_state) if settings.draws else ""),
        (f"maximum number of {vocabulary.segments}", f"{settings.max_cells:,}"),
    ]
    return tuple((label, value) for label, value in items if value)


def _metrics(summary: AuditSummary | None, multicalibration_error: float, vocabulary: Vocabulary) -> tuple[Metric, ...]:
    scores: Mapping[str, float] = {} if summary is None else summary.scores
    metrics = [
        Metric(name, _with_error(scores[key], scores.get(f"{key}_se", math.nan)), meaning)
        for key, (name, meaning) in METRICS.items()
        if math.isfinite(scores.get(key, math.nan))
    ]
    if math.isfinite(multicalibration_error):
        meaning = f"largest sigma of all {vocabulary.segments}, in the units of the score; lower is better"
        metrics.append(Metric(MULTICALIBRATION_ERROR, number(multicalibration_error, 4), meaning))
    return tuple(metrics)


def _with_error(value: float, standard_error: float) -> str:
    half = 1.96 * standard_error
    if not math.isfinite(half) or not half > 0:
        return number(value, 4)
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 12)
    return f"{value:.{decimals}f} ± {half:.{decimals}f}"


def _brier_terms(summary: AuditSummary | None) -> tuple[BrierTerm, ...]:
    """Decompose the Brier score: uncertainty - discrimination + miscalibration (CORP; Dimitriadis et al. 2021)."""
    names = ("uncertainty", "discrimination", "miscalibration", "brier")
    values = [math.nan if summary is None else summary.scores.get(name, math.nan) for name in names]
    if not all(map(math.isfinite, values)):
        return ()
    uncertainty, discrimination, miscalibration, brier = values
    remainder = uncertainty - discrimination
    longest = max(uncertainty, brier) or 1.0

    def term(name: str, value: float, sign: str, meaning: str, start: float, kind: str) -> BrierTerm:
        position, width = (round(100 * max(length, 0.0) / longest, 2) for length in (start, value))
        return BrierTerm(name, sign + number(value, 4), meaning, position, width, kind)

    return (
        term("uncertainty", uncertainty, "", "the score of always predicting the mean", 0.0, "plain"),
        term("discrimination", discrimination, "− ", "gain from ranking rows by risk", remainder, "gain"),
        term("miscalibration", miscalibration, "+ ", "loss that recalibration can remove", remainder, "loss"),
        term("Brier score", brier, "= ", "total", 0.0, "total"),
    )


# Segments


def column_names(audit: Audit) -> list[str]:
    """Return the names of the columns that form segments, in order of their index; user-defined segments last."""
    names = [feature.name for feature in audit.schema.features]
    return [*names, *(labels[0] for labels in audit.keys.labels[len(names) :])]


def view_table(audit: Audit, vocabulary: Vocabulary, max_rows: int | None = None) -> TableView:
    """Lay out the worst segments."""
    weighted = audit.schema.weight is not None
    scale = plots.ratio_scale(audit)
    level, segments = percent(1 - audit.settings.alpha), vocabulary.segments
    headings = (
        Heading(vocabulary.segment, "", "name"),
        Heading("state", STATE_MEANING, "state"),
        Heading(vocabulary.rows),
        *([Heading("weight", "sum of the weights")] if weighted else []),
        Heading(vocabulary.observed, "mean outcome"),
        Heading(vocabulary.expected, "mean prediction"),
        Heading("obs/exp", "observed/expected"),
        Heading(f"{level} interval", f"of observed/expected, not adjusted for the number of {segments}", "interval"),
        Heading(scale.text, "observed/expected and its interval on a logarithmic axis", "forest"),
        Heading("sigma", SIGMA_MEANING),
        Heading("adjusted p", f"p-value adjusted for the number of {segments}"),
        Heading("bias", "observed - expected"),
        Heading("detectable", "the shift that would have been detected with 80% power"),
    )
    findings = audit.worst(min(MAX_TABLE_ROWS if max_rows is None else max_rows, audit.tested))
    rows = tuple(
        (
            text_cell(finding.segment, rows=len(findings)),
            state_cell(audit, finding),
            count_cell(finding.n),
            *([number_cell(finding.weight)] if weighted else []),
            number_cell(finding.observed),
            number_cell(finding.expected),
            number_cell(finding.ratio),
            interval_cell(finding.ratio_low, finding.ratio_high),
            ratio_cell(audit, finding, scale),
            number_cell(finding.sigma),
            p_cell(finding.p_adjusted),
            number_cell(finding.bias, _signed(finding.bias)),
            number_cell(finding.mde, number(finding.mde, 2)),
        )
        for finding in findings
    )
    columns = [[int(column) for column in audit.keys.columns[rank] if column >= 0] for rank in range(len(findings))]
    filters = tuple((" ".join(map(str, used)), finding.n) for used, finding in zip(columns, findings, strict=True))
    names = column_names(audit)
    choices = tuple((index, shorten(names[index], 60)) for index in sorted({index for used in columns for index in used}))
    return TableView(headings, rows, audit.tested - len(rows), filters=filters, columns=choices)


def map_columns(audit: Audit, vocabulary: Vocabulary = DEFAULT_VOCABULARY) -> ColumnMap | None:
    """Lay out the largest sigma of every pair of columns; the diagonal has the single columns."""
    features = len(audit.schema.features)
    ranks = _ranks_by_pair(audit, features)
    largest: dict[int, float] = {}
    for key, members in ranks.items():
        sigma = float(audit.columns["sigma"][members].max())
        for column in divmod(key, features):
            largest[column] = max(largest.get(column, sigma), sigma)
    if len(largest) < 2:
        return None
    shown = sorted(sorted(sorted(largest), key=lambda column: -largest[column])[:MAX_MAP_COLUMNS])
    pairs = [[min(a, b) * features + max(a, b) for b in shown[: index + 1]] for index, a in enumerate(shown)]
    rows = tuple(
        tuple(_map_cell(audit, ranks[key], divmod(key, features), vocabulary) if key in ranks else None for key in row)
        for row in pairs
    )
    names = column_names(audit)
    return ColumnMap(
        tuple(Name.of(names[column], MAX_MAP_NAME_LENGTH) for column in shown), rows, len(largest) - len(shown)
    )


def _ranks_by_pair(audit: Audit, features: int) -> dict[int, IntArray]:
    """Return the ranks of the tested segments of every pair of columns, sorted once since there may be many pairs."""
    pairs = _pair_keys(audit.keys.columns, features)
    tested = np.flatnonzero((pairs >= 0) & audit.columns["testable"])
    tested = tested[np.argsort(pairs[tested], kind="stable")]
    keys, first = np.unique(pairs[tested], return_index=True)
    return dict(zip(keys.tolist(), np.split(tested, first[1:]), strict=True)) if len(keys) else {}


def _pair_keys(columns: Int32Array, features: int) -> IntArray:
    """Return first * features + second per segment of one or two columns (one column pairs with itself), else -1."""
    count = (columns >= 0).sum(axis=1)
    last = columns.max(axis=1, initial=-1).astype(np.int64)
    none = np.iinfo(np.int32).max
    first = np.where(columns >= 0, columns, none).min(axis=1, initial=none)
    valid = ((count == 1) | (count == 2)) & (last < features)
    return np.where(valid, first.astype(np.int64) * features + last, -1)


def _map_cell(audit: Audit, ranks: IntArray, pair: tuple[int, int], vocabulary: Vocabulary) -> MapCell:
    sigma = audit.columns["sigma"][ranks]
    largest = float(sigma.max())
    flagged = int((audit.columns["p_adjusted"][ranks] <= audit.settings.alpha).sum())
    shade = sum(largest >= limit for limit in MAP_SHADES) if not math.isnan(largest) else 0
    worst = shorten(audit.keys.name(int(ranks[int(np.argmax(sigma))])), 120)
    title = f"worst: {worst}; {flagged:,} of {len(ranks):,} {vocabulary.segments} miscalibrated"
    return MapCell(*pair, number(largest, 2 if largest < 10 else 3), shade, flagged, len(ranks), title)
