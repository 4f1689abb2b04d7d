"""Several audits of the same rows side by side: what was off, what still is, what is newly so."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.audits.text import deviation, number, shorten
from trueup.reports.advice import USUAL, Step, next_after, next_step
from trueup.reports.details import details
from trueup.reports.drawing import Range, common_range, forest
from trueup.reports.sheet import Sheet, view_sheet
from trueup.reports.view import (
    AuditView,
    Cell,
    CurveView,
    Heading,
    Name,
    TableView,
    column_names,
    finding_state,
    name_cell,
    number_cell,
    scale_of,
    state_cell,
    view_audit,
    view_curve,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.drawing import Scale
    from trueup.reports.profiles import Words

    Parts = tuple[str, ...]

OTHER_ROWS = "These are audits of different rows: what moved may be the rows, not the scores."
MOST_PAIRS = 4
MOST_ROWS = 500


@dataclass(frozen=True)
class Comparison:
    """Everything a page says of several audits."""

    headline: str
    sentence: str
    step: Step
    audits: tuple[AuditView, ...]
    pairs: tuple[tuple[Name, tuple[CurveView, ...]], ...]
    table: TableView
    sheets: tuple[Sheet, ...]
    measures: tuple[tuple[str, tuple[str, ...], str], ...]
    details: str

    @property
    def same_settings(self) -> bool:
        """Whether all audits were made alike, so that their settings can be shown once."""
        return all(view.settings == self.audits[0].settings for view in self.audits)


def compare(audits: Mapping[str, Audit], words: Words, *, taught: bool = False) -> Comparison:
    """Set audits side by side, in the order given; the first and the last are compared in words.

    ``taught`` says that the rows look like those that taught the fix.
    """
    names, results = list(audits), list(audits.values())
    chosen = _segments(results)
    findings = {parts: [find(result, parts) for result in results] for parts in chosen}
    sheets = tuple(view_sheet(result, words) for result in results)
    real = any(result.schema.task == "regression" for result in results)
    shown = common_range([result.overall.curve for result in results], probabilities=not real, marks=7)
    pairs = tuple(
        (Name.of(_text(found)), _curves(audits, found, words, real=real)) for found in _showcase(results, findings.values())
    )
    headline, sentence = _words(names[0], results[0], names[-1], results[-1], words)
    views = tuple(view_audit(result, name, shown, words) for name, result in audits.items())
    most = max(result.tested for result in results)
    table = _table(audits, findings, most, chosen, words)
    told = details(audits, list(findings.values()), words)
    step = step_after(audits, words, taught=taught)
    return Comparison(headline, sentence, step, views, pairs, table, sheets, _measures(sheets), told)


def _showcase(results: Sequence[Audit], found: Iterable[Sequence[Finding | None]]) -> list[Sequence[Finding | None]]:
    """Choose whose curves to show: segments with a curve in every audit, if one is off anywhere only such, worst first."""
    wholes = {result.overall.segment for result in results}
    parts = [one for one in found if _text(one) not in wholes]
    drawn = [one for one in parts if all(f is not None and f.curve is not None and len(f.curve) for f in one)]
    off = [
        one for one in drawn
        if any(f is not None and finding_state(result, f) == "off" for result, f in zip(results, one, strict=True))
    ]  # fmt: skip
    return (off or drawn or parts)[:MOST_PAIRS]


def _measures(sheets: Sequence[Sheet]) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """Set the measures side by side: name, one value an audit, meaning; the split of the Brier score among them."""
    tables = [
        {m.name: (m.value, m.meaning) for m in sheet.measures} | {p.name: (p.value, p.meaning) for p in sheet.split[1:3]}
        for sheet in sheets
    ]
    names = list(dict.fromkeys(name for table in tables for name in table))
    meaning = {name: text for table in tables for name, (_, text) in table.items()}
    return tuple(
        (name, tuple(table[name][0].lstrip("−+ ") if name in table else "-" for table in tables), meaning[name])
        for name in names
    )


def _segments(results: Sequence[Audit]) -> dict[Parts, tuple[int, int]]:
    """List the worst segments of any audit by their best rank, then by the order of the audits: rank, and which audit."""
    ranks: dict[Parts, tuple[int, int]] = {}
    for at, result in enumerate(results):
        for rank in range(min(MOST_ROWS, result.tested)):
            parts = result.keys.parts(rank)
            ranks[parts] = min(ranks.get(parts, (rank, at)), (rank, at))
    return dict(sorted(ranks.items(), key=lambda item: item[1])[:MOST_ROWS])


def find(audit: Audit, parts: Parts) -> Finding | None:
    """Find a segment by its parts: its text may be that of another, where values hold "&" themselves."""
    rank = audit.ranks.get(parts)
    return None if rank is None else audit.finding(rank)


def off_parts(audit: Audit) -> set[Parts]:
    """Give the parts of every segment that is off. They come first, since segments come by adjusted p-value."""
    return {audit.keys.parts(at) for at in range(audit.rejected)}


def _text(found: Sequence[Finding | None]) -> str:
    return next(finding.segment for finding in found if finding is not None)


def _words(first: str, before: Audit, last: str, after: Audit, words: Words) -> tuple[str, str]:
    """Say how many segments were off, still are, and newly are."""
    same = same_rows(before, after)
    many = words.segment if before.rejected == 1 else words.segments
    headline = f"{before.rejected:,} {many} off {_where(first, same=same)}, {after.rejected:,} {_where(last, same=same)}"
    if not same:
        return headline, OTHER_ROWS
    was, now = off_parts(before), off_parts(after)
    still, new = len(was & now), len(now - was)
    if not was and not now:
        told = f"No {words.segment} was found off in either; see what could have been found before taking comfort."
        return headline, told
    parts = [f"{still:,} of the {len(was):,} still off"] if was else []
    parts += [f"{len(was) - still:,} no longer found off"] if was else []
    return headline, ", ".join([*parts, f"{new:,} newly found off"]) + "."


def _where(name: str, *, same: bool) -> str:
    """Say where a number was found: "before" and "after" say it themselves, scores are used, other rows are looked into.

    Examples
    --------
    >>> _where("after MCGrad", same=True), _where("pctr", same=True), _where("March", same=False)
    ('after MCGrad', 'with pctr', 'in March')
    """
    if re.match(r"(before|after|now|then)\b", name, re.IGNORECASE):
        return name
    return f"with {name}" if same and not name.startswith("audit ") else f"in {name}"


def step_after(audits: Mapping[str, Audit], words: Words = USUAL, *, taught: bool = False) -> Step:
    """Say what to do after several audits: the first and the last are compared, if they may be of the same rows."""
    (_, before), *_, (name, after) = audits.items()
    if not same_rows(before, after):
        return next_step(after, words)
    return next_after(name, before, after, words, taught=taught)


def same_rows(before: Audit, after: Audit) -> bool:
    """Say whether two audits may be of the same rows: as many, of the same weight and the same mean outcome."""
    one, other = before.overall, after.overall
    pairs = ((one.n, other.n), (one.weight, other.weight), (one.observed, other.observed))
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs)


def _curves(
    audits: Mapping[str, Audit], findings: Sequence[Finding | None], words: Words, *, real: bool
) -> tuple[CurveView, ...]:
    """Draw one segment in every audit that has it, on the same axes."""
    shown: Range = common_range([f.curve for f in findings if f is not None], probabilities=not real, marks=5)
    return tuple(
        view_curve(audit, finding, shown, name=name, words=words)
        for (name, audit), finding in zip(audits.items(), findings, strict=True)
        if finding is not None
    )


def _table(
    audits: Mapping[str, Audit],
    findings: Mapping[Parts, Sequence[Finding | None]],
    most: int,
    ranks: Mapping[Parts, tuple[int, int]],
    words: Words,
) -> TableView:
    each = (
        Heading("state", "off: the adjusted p-value is at most alpha", "state"),
        *([Heading("obs/exp", "observed/expected")] if len(audits) > 2 else []),
        Heading("sigma", "largest cumulative deviation in units of its noise"),
        Heading("adjusted p", f"p-value adjusted for the number of {words.segments}"),
    )
    names, scale = list(audits), scale_of(*audits.values())
    moved = (
        Heading("obs/exp", f"observed/expected: {names[0]}, then {names[-1]}", "moved"),
        Heading(scale.text, "the same on a line, logarithmic: hollow before, filled after, with its interval", "forest"),
    )
    rows = tuple(_row(audits, found, len(findings), scale) for found in findings.values())
    headings = (Heading(words.segment, "", "name"), Heading(words.rows), *moved, *(each * len(audits)))
    groups = (("", 2), ("movement", 2), *((name, len(each)) for name in audits))
    marks, columns = _marks(list(audits.values()), findings, ranks)
    return TableView(headings, rows, max(most - len(rows), 0), groups, marks, columns)


def _marks(
    results: Sequence[Audit], findings: Mapping[Parts, Sequence[Finding | None]], ranks: Mapping[Parts, tuple[int, int]]
) -> tuple[tuple[tuple[str, int], ...], tuple[tuple[int, str], ...]]:
    """Say which columns each segment uses, by numbers that all audits share, and how many rows it has."""
    names = [column_names(result) for result in results]
    shared = {name: at for at, name in enumerate(dict.fromkeys(name for some in names for name in some))}
    marks, used = [], set()
    for parts, found in findings.items():
        rank, which = ranks[parts]
        by = [shared[names[which][column]] for column in results[which].keys.columns[rank] if column >= 0]
        used.update(by)
        marks.append((" ".join(map(str, by)), _most_rows(found)))
    return tuple(marks), tuple((at, shorten(name, 60)) for name, at in shared.items() if at in used)


def _most_rows(found: Sequence[Finding | None]) -> int:
    return max(f.n for f in found if f is not None)


def _row(audits: Mapping[str, Audit], found: Sequence[Finding | None], many: int, scale: Scale) -> tuple[Cell, ...]:
    rows = _most_rows(found)
    return (
        name_cell(_text(found), many),
        number_cell(rows, f"{rows:,}"),
        *_movement(list(audits.values())[-1], found[0], found[-1], scale),
        *(
            cell
            for audit, f in zip(audits.values(), found, strict=True)
            for cell in _cells(audit, f, ratio=len(audits) > 2)
        ),
    )


def _movement(audit: Audit, first: Finding | None, last: Finding | None, scale: Scale) -> tuple[Cell, ...]:
    """Show where observed/expected was and is, sorted by how much nearer to 1 it came."""
    if first is None or last is None:
        return Cell("", "moved"), Cell("", "forest")
    text = f"{number(first.ratio)} → {number(last.ratio)}"
    far = [abs(math.log(f.ratio)) if f.ratio > 0 and math.isfinite(f.ratio) else math.nan for f in (first, last)]
    nearer = far[0] - far[1]
    drawn = forest(last.ratio, last.ratio_low, last.ratio_high, first.ratio, widest=scale.widest)
    sort = f"{nearer:.7g}" if math.isfinite(nearer) else ""
    return Cell(text, "moved", sort), Cell("", "forest", state=finding_state(audit, last), forest=drawn)


def _cells(audit: Audit, finding: Finding | None, *, ratio: bool) -> tuple[Cell, ...]:
    """Show one segment in one audit; of two audits the movement shows the ratios."""
    if finding is None:
        return (state_cell("absent"), *(Cell("") for _ in range(3 if ratio else 2)))
    return (
        state_cell(finding_state(audit, finding), finding.note),
        *([number_cell(finding.ratio)] if ratio else []),
        number_cell(finding.sigma, deviation(finding.sigma, finding.sigma_bound)),
        number_cell(finding.p_adjusted, number(finding.p_adjusted, 2)),
    )
