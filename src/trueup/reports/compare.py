"""Several audits of the same rows side by side: what was off, what still is, what is newly so."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.audits.text import number
from trueup.reports.drawing import Range, common_range
from trueup.reports.view import (
    MOST_ROWS,
    AuditView,
    Cell,
    CurveView,
    Heading,
    Name,
    TableView,
    finding_state,
    forest_cell,
    name_cell,
    number_cell,
    state_cell,
    view_audit,
    view_curve,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup.audits.result import Audit, Finding

__all__ = ["Comparison", "compare"]

MOST_PAIRS = 4


@dataclass(frozen=True)
class Comparison:
    """Everything a page says of several audits."""

    headline: str
    sentence: str
    audits: tuple[AuditView, ...]
    pairs: tuple[tuple[Name, tuple[CurveView, ...]], ...]
    table: TableView

    @property
    def same_settings(self) -> bool:
        """Whether all audits were made alike, so that their settings can be shown once."""
        return all(view.settings == self.audits[0].settings for view in self.audits)


def compare(audits: Mapping[str, Audit]) -> Comparison:
    """Set audits side by side, in the order given; the first and the last are compared in words."""
    names, results = list(audits), list(audits.values())
    chosen = _segments(results)
    findings = {segment: [_find(result, segment) for result in results] for segment in chosen}
    real = any(result.schema.task == "regression" for result in results)
    shown = common_range([result.overall.curve for result in results], probabilities=not real, marks=7)
    wholes = {result.overall.segment for result in results}
    worst = [segment for segment in chosen if segment not in wholes][:MOST_PAIRS]
    pairs = tuple((Name.of(segment), _curves(audits, findings[segment], real=real)) for segment in worst)
    headline, sentence = _words(names[0], results[0], names[-1], results[-1])
    views = tuple(view_audit(result, name, shown) for name, result in audits.items())
    most = max(result.tested for result in results)
    return Comparison(headline, sentence, views, pairs, _table(audits, findings, most))


def _segments(results: Sequence[Audit]) -> list[str]:
    """List the worst segments of any audit: by their best rank, then by the order of the audits."""
    ranks: dict[str, tuple[int, int]] = {}
    for at, result in enumerate(results):
        for rank, finding in enumerate(result.worst(min(MOST_ROWS, result.tested))):
            ranks[finding.segment] = min(ranks.get(finding.segment, (rank, at)), (rank, at))
    return sorted(ranks, key=lambda segment: ranks[segment])[:MOST_ROWS]


def _find(audit: Audit, segment: str) -> Finding | None:
    try:
        return audit[segment]
    except ValueError:
        return None


def _words(first: str, before: Audit, last: str, after: Audit) -> tuple[str, str]:
    """Say how many segments were off, still are, and newly are."""
    # Segments come by adjusted p-value, so that those that are off come first.
    was = {finding.segment for finding in before.worst(before.rejected)}
    now = {finding.segment for finding in after.worst(after.rejected)}
    headline = f"{_count(len(was))} off {first}, {len(now):,} {last}"
    still, new = len(was & now), len(now - was)
    if not was and not now:
        return headline, "No segment was found off in either; see what could have been found before taking comfort."
    parts = [f"{still:,} of the {len(was):,} still off"] if was else []
    parts += [f"{len(was) - still:,} no longer found off"] if was else []
    return headline, ", ".join([*parts, f"{new:,} newly found off"]) + "."


def _count(segments: int) -> str:
    return f"{segments:,} segment{'' if segments == 1 else 's'}"


def _curves(audits: Mapping[str, Audit], findings: Sequence[Finding | None], *, real: bool) -> tuple[CurveView, ...]:
    """Draw one segment in every audit that has it, on the same axes."""
    shown: Range = common_range([f.curve for f in findings if f is not None], probabilities=not real, marks=5)
    return tuple(
        view_curve(audit, finding, shown, name=name)
        for (name, audit), finding in zip(audits.items(), findings, strict=True)
        if finding is not None
    )


def _table(audits: Mapping[str, Audit], findings: Mapping[str, Sequence[Finding | None]], most: int) -> TableView:
    each = (
        Heading("state", "off: the adjusted p-value is at most alpha", "state"),
        Heading("obs / exp", "observed / expected"),
        Heading("¼ – 1 – 4", "the same on a line, logarithmic, with its interval, not adjusted", "forest"),
        Heading("sigma", "largest cumulative deviation in units of its noise"),
        Heading("adjusted p", "p-value adjusted for the number of segments"),
    )
    rows = tuple(
        (
            name_cell(segment),
            number_cell(max(f.n for f in found if f is not None), f"{max(f.n for f in found if f is not None):,}"),
            *(cell for audit, f in zip(audits.values(), found, strict=True) for cell in _cells(audit, f)),
        )
        for segment, found in findings.items()
    )
    headings = (Heading("segment", "", "name"), Heading("rows"), *(each * len(audits)))
    groups = (("", 2), *((name, len(each)) for name in audits))
    return TableView(headings, rows, max(most - len(rows), 0), groups)


def _cells(audit: Audit, finding: Finding | None) -> tuple[Cell, ...]:
    if finding is None:
        return (state_cell("absent"), *(Cell("", kind) for kind in ("number", "forest", "number", "number")))
    return (
        state_cell(finding_state(audit, finding), finding.note),
        number_cell(finding.ratio),
        forest_cell(audit, finding),
        number_cell(finding.sigma),
        number_cell(finding.p_adjusted, number(finding.p_adjusted, 2)),
    )
