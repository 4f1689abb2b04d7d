"""What a page shows of an audit, as plain texts: the templates only lay them out."""

from __future__ import annotations

import html
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueup.audits.text import ADJUSTMENTS, deviation, how_far, notes, number, shorten, worst_deviation
from trueup.reports.advice import USUAL, tell
from trueup.reports.drawing import Forest, Plot, Range, Scale, common_range, forest, plot, ratio_scale
from trueup.reports.whole import draw_whole, portrait_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.profiles import Words

MOST_ROWS = 1000
FEW_ROWS = 100
MOST_CURVES = 4
MOST_UNTESTED = 20
MOST_NOTES = 30
MOST_NAMES = 60
WIDEST_NAME = 90
WIDEST_TITLE = 1000
SHORTER_TITLE = 160  # where there are many names, so that the page stays small
HEAVIEST = 2  # bytes a letter that a tooltip may take in the page: a quotation mark takes six
LABELS = {"off": "Miscalibrated", "fine": "No miscalibration found", "untested": "Nothing could be tested"}
STATES = {"off": "off", "fine": "within chance", "untested": "not tested", "absent": "not there"}


@dataclass(frozen=True)
class Name:
    """A text from the data: short enough to show, and as much of it as a tooltip may hold where it was cut."""

    short: str
    full: str

    @classmethod
    def of(cls, text: str, width: int = WIDEST_NAME, most: int = WIDEST_TITLE) -> Name:
        """Shorten a text of any length and content."""
        short = shorten(text, width)
        full = shorten(text, most)
        while len(full) > len(short) and len(html.escape(full).encode()) > HEAVIEST * most:
            full = shorten(full, 3 * len(full) // 4)
        return cls(short, full if len(full) > len(short) else "")


@dataclass(frozen=True)
class Figure:
    """A key figure: what it is, its value, and a word on it."""

    label: str
    value: str
    detail: str = ""


@dataclass(frozen=True)
class CurveView:
    """One reliability curve with its caption."""

    name: Name
    caption: str
    state: str
    state_text: str
    plot: Plot | None
    audit: str = ""


@dataclass(frozen=True)
class Cell:
    """One cell; ``sort`` is the number that its column is sorted by, empty where there is none.

    ``value`` is what leaves as data in place of the text: a number with all its digits, or several.
    """

    text: str
    kind: str = "number"
    sort: str = ""
    title: str = ""
    state: str = ""
    forest: Forest | None = None
    value: Any = None


@dataclass(frozen=True)
class Heading:
    """The head of a column, and what the column means."""

    text: str
    meaning: str = ""
    kind: str = "number"


@dataclass(frozen=True)
class TableView:
    """Headings, rows of cells, and how many segments there are besides; ``groups`` are heads over several columns.

    ``marks`` has for each row the numbers of its columns and how many rows of data it stands for, to filter by;
    ``columns`` has the names and numbers to choose from.
    """

    headings: tuple[Heading, ...]
    rows: tuple[tuple[Cell, ...], ...]
    more: int = 0
    groups: tuple[tuple[str, int], ...] = ()
    marks: tuple[tuple[str, int], ...] = ()
    columns: tuple[tuple[int, str], ...] = ()


@dataclass(frozen=True)
class Section:
    """A part of a page that a profile adds: a title, a sentence, and a table or a drawing."""

    title: str
    lead: str
    table: TableView | None = None
    svg: str | None = None


@dataclass(frozen=True)
class AuditView:
    """Everything a page says of one audit, except its table."""

    name: str
    state: str
    label: str
    sentence: str
    figures: tuple[Figure, ...]
    whole: CurveView
    worst: tuple[CurveView, ...]
    notes: tuple[str, ...]
    untested: tuple[tuple[Name, str], ...]
    more_untested: int
    settings: tuple[tuple[str, str], ...]


def view_audit(audit: Audit, name: str = "", shown: Range | None = None, words: Words = USUAL) -> AuditView:
    """Say everything of one audit; ``shown`` is a range of the axes shared with other audits."""
    state = "untested" if not audit.tested else "off" if audit.miscalibrated else "fine"
    whole = audit.overall
    others = [finding for finding in audit.worst(min(MOST_CURVES + 1, audit.tested)) if finding.segment != whole.segment]
    untested = [audit.finding(at) for at in range(audit.tested, min(audit.tested + MOST_UNTESTED, len(audit)))]
    return AuditView(
        name, state, LABELS[state], tell(audit, words), _figures(audit, words),
        view_curve(audit, whole, shown, large=True, words=words),
        tuple(view_curve(audit, finding, words=words) for finding in others[:MOST_CURVES]), _notes(audit),
        tuple((Name.of(finding.segment), finding.note) for finding in untested),
        len(audit) - audit.tested - len(untested), _settings(audit, words),
    )  # fmt: skip


def _interval(finding: Finding) -> str:
    return f"{number(finding.ratio_low)} to {number(finding.ratio_high)}"


def _signed(value: float) -> str:
    return ("+" if value > 0 else "") + number(value)


def _figures(audit: Audit, words: Words) -> tuple[Figure, ...]:
    whole = audit.overall
    share = 100 * (1 - audit.settings.alpha)
    mean = "mean outcome" if words.observed == USUAL.observed else words.observed
    weighed = f"total weight {number(whole.weight)}" if audit.schema.weight is not None else ""
    return (
        Figure(words.rows, f"{audit.rows:,}", weighed),
        Figure(f"{words.segments} tested", f"{audit.tested:,}", f"of up to {audit.settings.depth} columns each"),
        Figure(f"{words.segments} off", f"{audit.rejected:,}", f"adjusted p at most {audit.settings.alpha:g}"),
        Figure("strongest evidence", *_evidence(audit)),
        _distance(whole, f"{share:g}%", words),
        Figure(f"{mean}, all {words.rows}", number(whole.observed, 4), f"{words.expected} {number(whole.expected, 4)}"),
    )


def _evidence(audit: Audit) -> tuple[str, str]:
    """Say how strong the strongest evidence is, in units that the page explains at its foot."""
    if math.isnan(audit.worst_sigma):
        return "none", ""
    return f"{worst_deviation(audit)} sigma", "in units of noise; see the words below"


def _distance(whole: Finding, level: str, words: Words) -> Figure:
    """Say how far the whole is off: as a ratio where that has a meaning, else as a difference."""
    if math.isfinite(whole.ratio) and whole.expected > 0:
        return Figure(f"observed/expected, all {words.rows}", number(whole.ratio), f"{level} interval {_interval(whole)}")
    return Figure(f"observed - expected, all {words.rows}", _signed(whole.bias))


def finding_state(audit: Audit, finding: Finding) -> str:
    """Say whether a segment is off, within chance, or not tested."""
    if not finding.testable:
        return "untested"
    return "off" if finding.p_adjusted <= audit.settings.alpha else "fine"


def view_curve(
    audit: Audit, finding: Finding, shown: Range | None = None, *, large: bool = False, name: str = "",
    words: Words = USUAL,
) -> CurveView:  # fmt: skip
    """Draw the reliability curve of one segment; without a range of its own kind it gets its own."""
    state = finding_state(audit, finding)
    far = how_far(finding) if state == "off" else _mean(finding)
    caption = f"{finding.n:,} {words.rows}, {far}, {deviation(finding.sigma, finding.sigma_bound)} sigma"
    drawn = None
    if finding.curve is not None and len(finding.curve):
        real = audit.schema.task == "regression"
        own = shown or common_range([finding.curve], probabilities=not real, marks=7 if large else 5)
        drawn = draw_whole(finding, own, portrait_of(audit), words) if large else plot(finding.curve, own)
        drawn = drawn if drawn is not None and drawn.points else None
    return CurveView(Name.of(finding.segment), caption, state, STATES[state], drawn, name)


def _mean(finding: Finding) -> str:
    """Say how far the mean is off, as `how_far` does: its error by score is within chance."""
    ratio = math.isfinite(finding.ratio) and finding.expected > 0
    return f"observed/expected {finding.ratio:.2f}" if ratio else f"observed minus expected {finding.bias:+.3g}"


def _notes(audit: Audit) -> tuple[str, ...]:
    found = [shorten(note, 400) for note in notes(audit)]
    more = len(found) - MOST_NOTES
    return tuple(found[:MOST_NOTES]) + ((f"and {more:,} more notes",) if more > 0 else ())


def _listed(names: Sequence[str]) -> str:
    more = len(names) - MOST_NAMES
    return ", ".join(shorten(name, 60) for name in names[:MOST_NAMES]) + (f" and {more:,} more" if more > 0 else "")


def _settings(audit: Audit, words: Words) -> tuple[tuple[str, str], ...]:
    schema, chosen = audit.schema, audit.settings
    rows = [
        ("task", schema.task),
        ("outcome", shorten(schema.outcome or "given as values", 60)),
        ("prediction", _listed(schema.prediction)),
        ("classes", _listed(schema.classes)),
        ("weight", shorten(schema.weight or "none", 60)),
        (f"columns that form {words.segments}", _listed([one.name for one in schema.features]) or "none"),
        ("columns taken as names", _listed([one.name for one in schema.features if one.kind == "categorical"]) or "none"),
        ("columns combined, at most", str(chosen.depth)),
        (f"least {words.rows} of a {words.segment}", f"{chosen.min_rows:,}"),
        ("level (alpha)", f"{chosen.alpha:g}"),
        ("adjusted by", ADJUSTMENTS[chosen.adjust]),
        ("draws", f"{chosen.draws:,}" if chosen.draws else ""),
        ("seed", str(chosen.random_state) if chosen.draws else ""),
        (f"budget of {words.segments}", f"{chosen.max_cells:,}"),
    ]
    return tuple((label, value) for label, value in rows if value)


def number_cell(value: float, text: str = "") -> Cell:
    """Show a number; what is missing sorts last, what is infinite beyond all others."""
    endless = "Infinity" if value > 0 else "-Infinity"  # as a script reads it
    sort = "" if math.isnan(value) else endless if math.isinf(value) else f"{value:.7g}"
    return Cell(text or number(value), "number", sort, value=value)


def name_cell(segment: str, rows: int = 1) -> Cell:
    """Show a segment's text, whatever it holds; in a table of many rows less of what was cut."""
    name = Name.of(segment, most=WIDEST_TITLE if rows <= FEW_ROWS else SHORTER_TITLE)
    return Cell(name.short, "name", title=name.full)


def state_cell(state: str, note: str = "") -> Cell:
    """Show whether a segment is off, in words."""
    order = ("off", "fine", "untested", "absent").index(state)
    return Cell(STATES[state], "state", str(order), title=note, state=state)


def scale_of(*audits: Audit) -> Scale:
    """Choose how far the lines of ratios reach: one scale for a page, on which every segment that is off can be seen."""
    found, off = [], []
    for audit in audits:
        ratios = audit.columns["ratio"][: audit.tested]
        found += ratios.tolist()
        off += ratios[: audit.rejected].tolist()
    return ratio_scale(found, off)


def forest_cell(audit: Audit, finding: Finding, scale: Scale) -> Cell:
    """Show a ratio and its interval as a mark on a line."""
    drawn = forest(finding.ratio, finding.ratio_low, finding.ratio_high, widest=scale.widest)
    return Cell("", "forest", state=finding_state(audit, finding), forest=drawn)


def view_table(audit: Audit, words: Words) -> TableView:
    """Lay out the worst segments, in the words of a trade."""
    level = f"{100 * (1 - audit.settings.alpha):g}%"
    weighed = audit.schema.weight is not None
    scale = scale_of(audit)
    headings = [
        Heading(words.segment, "", "name"),
        Heading("state", "off: the adjusted p-value is at most alpha", "state"),
        Heading(words.rows),
        *([Heading("weight", "sum of the weights")] if weighed else []),
        Heading(words.observed, "mean outcome"),
        Heading(words.expected, "mean prediction"),
        Heading("obs/exp", "observed/expected"),
        Heading(f"{level} interval", f"of observed/expected, not adjusted for the number of {words.segments}", "interval"),
        Heading(scale.text, "the same on a line, logarithmic", "forest"),
        Heading("sigma", "largest cumulative deviation in units of its noise"),
        Heading("adjusted p", f"p-value adjusted for the number of {words.segments}"),
        Heading("bias", "observed - expected"),
        Heading("detectable", "the shift that would have been found with 80% power"),
    ]
    found = audit.worst(min(MOST_ROWS, audit.tested))
    rows = tuple(_row(audit, finding, len(found), scale, weighed=weighed) for finding in found)
    used = [[int(column) for column in audit.keys.columns[at] if column >= 0] for at in range(len(found))]
    marks = tuple((" ".join(map(str, by)), finding.n) for by, finding in zip(used, found, strict=True))
    return TableView(tuple(headings), rows, audit.tested - len(rows), marks=marks, columns=choices(audit, used))


def column_names(audit: Audit) -> list[str]:
    """Name the columns that segments are made of, in the order of their numbers; the user's own segments last."""
    names = [feature.name for feature in audit.schema.features]
    return [*names, *(labels[0] for labels in audit.keys.labels[len(names) :])]


def choices(audit: Audit, used: list[list[int]]) -> tuple[tuple[int, str], ...]:
    """List the columns that some segment uses, to choose from."""
    names = column_names(audit)
    return tuple((at, shorten(names[at], 60)) for at in sorted({column for by in used for column in by}))


def _row(audit: Audit, finding: Finding, many: int, scale: Scale, *, weighed: bool) -> tuple[Cell, ...]:
    return (
        name_cell(finding.segment, many),
        state_cell(finding_state(audit, finding), finding.note),
        number_cell(finding.n, f"{finding.n:,}"),
        *([number_cell(finding.weight)] if weighed else []),
        number_cell(finding.observed),
        number_cell(finding.expected),
        number_cell(finding.ratio),
        Cell(_interval(finding), "interval"),
        forest_cell(audit, finding, scale),
        number_cell(finding.sigma, deviation(finding.sigma, finding.sigma_bound)),
        number_cell(finding.p_adjusted, number(finding.p_adjusted, 2)),
        number_cell(finding.bias, _signed(finding.bias)),
        number_cell(finding.mde, number(finding.mde, 2)),
    )
