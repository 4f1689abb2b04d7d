"""Several audits side by side: which segments were, still are or newly are miscalibrated, and what a fix corrected."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.materiality import DETECTED, MATERIAL, WITHIN_TOLERANCE
from trueup.audits.text import describe_scores, format_share, number, shorten, signed_count, unclustered_column
from trueup.calibrators.model import Model
from trueup.calibrators.patches.map import PatchMap
from trueup.errors import ArgumentError
from trueup.reports import model
from trueup.reports.model import Cell, Column, Figure, Section, TableView, make_table, number_cell, text_cell
from trueup.reports.profiles import DEFAULT_VOCABULARY, Vocabulary
from trueup.reports.summary import (
    AUDIT_AGAIN,
    MAIN_PROBLEMS,
    MAX_NAME_LENGTH,
    NextStep,
    count_problems,
    next_step,
    problems_of,
    tolerance_text,
)
from trueup.reports.text import TIME_WORD, count_segments

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.page import Page

    Row = Sequence[Finding | None]  # the findings of a segment, one per audit
    Key = tuple[tuple[str, bool], ...]  # what identifies a segment in several audits

DIFFERENT_ROWS = (
    "These audits are of different rows: differences may come from the rows, not from the scores. P-values are for one "
    "look: each audit may raise a false alarm at its own level."
)
MAX_PAIRS = 4
WORSE = 1.1  # an error that has grown by this factor has become worse
MAX_TABLE_ROWS = 500
MAX_PATCHES = 100


# Sentences, metrics and settings


def same_rows(before: Audit, after: Audit) -> bool:
    """Return whether two audits may be of the same rows: equal number, weight and mean outcome."""
    first, second = before.overall, after.overall
    pairs = ((first.n, second.n), (first.weight, second.weight), (first.observed, second.observed))
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs)


def worse_segments(before: Audit, after: Audit) -> list[tuple[int, int]]:
    """Return ranks, before and after, of segments that are miscalibrated after a change and whose error has grown.

    Distinct problems come first, then the largest growth. The error is the range of cumulative differences, which is what
    is tested; it has grown by a tenth or more.
    """
    pairs = [(rank, before.ranks[key]) for rank in range(after.rejected) if (key := after.keys.parts(rank)) in before.ranks]
    new, old = np.array(pairs, np.int64).reshape(-1, 2).T
    size, previous = after.columns["ecce"][new], before.columns["ecce"][old]
    growth = (size - previous) * after.columns["weight"][new]
    other = ~np.isin(new, [problem.rank for problem in problems_of(after)])
    order = np.lexsort((-growth, other))
    return [(int(old[at]), int(new[at])) for at in order if size[at] >= WORSE * previous[at]]


def compared_step(
    audits: Mapping[str, Audit], vocabulary: Vocabulary = DEFAULT_VOCABULARY, *, training_rows: bool = False
) -> NextStep:
    """Recommend steps after several audits of the same rows: use the last score, keep the first, or fit again."""
    (_, before), *_, (name, after) = audits.items()
    rows, same = vocabulary.rows, same_rows(before, after)
    if unclustered_column(after) is not None:
        return next_step(after, vocabulary)
    if same and training_rows:
        return NextStep(
            (
                f"Compare on {rows} that were not used for the fit.",
                f"These look like the {rows} the model was fitted on; results on them are optimistic.",
            )
        )
    if not same or not after.tested or not (after.rejected or before.rejected):
        return next_step(after, vocabulary)
    scores = f"the scores {name}" if TIME_WORD.match(name) else name
    scores = "the corrected scores" if name.lower() == "after" else scores
    worse = worse_segments(before, after)
    matters = (MATERIAL, DETECTED)
    serious = any(after.derived["state"][rank] in matters for _, rank in worse)
    warning: tuple[str, ...] = ()
    if worse:
        first, now = before.finding(worse[0][0]), after.finding(worse[0][1])
        warning = (_describe_worse(len(worse), first, now, vocabulary),)
    matter = after.state in matters
    again = f"Fit again on more {rows}, and compare on {rows} that were not used for the fit."
    if serious or (matter and after.rejected > before.rejected):
        counts = f"{count_segments(after.rejected, vocabulary)} miscalibrated, {before.rejected:,} before."
        return NextStep((f"Do not use {scores} yet: {counts}", *warning, again))
    if matter:
        verb = "is" if after.rejected == 1 else "are"
        remain = f"{count_segments(after.rejected, vocabulary)} {verb} still miscalibrated: {count_problems(after)}."
        return NextStep((remain, *warning, f"{again[:-1]}, with the columns that form them among the features."))
    found = "no miscalibration was found"
    if after.rejected:
        limit = "is certainly within" if after.state == WITHIN_TOLERANCE else "is not certainly beyond"
        found = f"what remains {limit} {tolerance_text(after)}{' on average' if after.state == WITHIN_TOLERANCE else ''}"
    provided = f"Use {scores}, provided that these {rows} were not used for the fit: {found}."
    return NextStep((provided, *warning, AUDIT_AGAIN))


def _describe_worse(count: int, before: Finding, after: Finding, vocabulary: Vocabulary) -> str:
    """State how many segments have become worse, and the change of one of them: of its mean error if that has grown."""
    verb = "has" if count == 1 else "have"
    ratios = f"observed/expected {number(before.ratio)} before, {number(after.ratio)} now"
    if not (math.isfinite(before.ratio) and math.isfinite(after.ratio)) or after.expected <= 0:
        ratios = f"observed minus expected {number(before.bias)} before, {number(after.bias)} now"
    if abs(after.bias) < abs(before.bias):
        sizes = f"ecce {number(before.ecce, 2)} before, {number(after.ecce, 2)} now"
        ratios = f"errors that vary with the score have grown ({sizes})"
    name = shorten(after.segment, MAX_NAME_LENGTH)
    return f"{count_segments(count, vocabulary)} {verb} become worse, most in {name}: {ratios}."


def compared_sentences(audits: Mapping[str, Audit], vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the headline of a comparison of audits and the sentence below it."""
    (first, before), *_, (last, after) = audits.items()
    same = same_rows(before, after)

    def phrase(name: str) -> str:
        if TIME_WORD.match(name):
            return name
        return f"with {name}" if same and not name.startswith("audit ") else f"in {name}"

    counts, word = [before.rejected, after.rejected], "miscalibrated"
    if before.settings.tolerance is not None and MATERIAL in (before.state, after.state):
        counts, word = (
            [audit.count_state(MATERIAL) for audit in (before, after)],
            "materially miscalibrated",
        )
    headline = f"{count_segments(counts[0], vocabulary)} {word} {phrase(first)}, {counts[1]:,} {phrase(last)}"
    if not same:
        return headline, DIFFERENT_ROWS
    was, now = ({audit.keys.parts(rank) for rank in range(audit.rejected)} for audit in (before, after))
    if not was and not now:
        return headline, f"No {vocabulary.segment} was found miscalibrated in either; see which errors could be detected."
    parts = [
        f"{len(was & now):,} of {count_segments(len(was), vocabulary)} still miscalibrated",
        f"{len(was - now):,} no longer miscalibrated",
    ]
    return headline, ", ".join([*(parts if was else []), f"{len(now - was):,} newly miscalibrated"]) + "."


def compared_figures(
    audits: Mapping[str, Audit], vocabulary: Vocabulary, figures: Callable[[Audit, Vocabulary], Iterable[Figure]]
) -> dict[str, list[Figure]]:
    """Return by name what ``figures`` returns for each audit; "-" where an audit does not have that figure."""
    tables = [{item.name: item for item in figures(audit, vocabulary)} for audit in audits.values()]
    names = dict.fromkeys(name for table in tables for name in table)
    return {name: [table.get(name, Figure(name, "-")) for table in tables] for name in names}


def compared_settings(audits: Mapping[str, Audit], vocabulary: Vocabulary) -> dict[str, tuple[tuple[str, str], ...]]:
    """Return the settings by name of the audit, or once, under an empty name, if all audits have the same."""
    settings = {name: model.audit_settings(audit, vocabulary) for name, audit in audits.items()}
    return settings if len(set(settings.values())) > 1 else {"": next(iter(settings.values()))}


# Curves


def overall_curves(audits: Mapping[str, Audit], vocabulary: Vocabulary) -> list[dict[str, Any]]:
    """Return the plots of the reliability curves over all rows, one per audit, on the same axis."""
    probabilities = all(audit.schema.task != "regression" for audit in audits.values())
    axis = model.curve_axis([audit.overall.curve for audit in audits.values()], probabilities=probabilities, ticks=7)
    items = audits.items()
    return [model.view_curve(audit, audit.overall, vocabulary, axis, large=True) | {"audit": name} for name, audit in items]


def curve_pairs(page: Page, vocabulary: Vocabulary) -> list[tuple[Cell, list[dict[str, Any]]]]:
    """Return names and plots of the main problems, or else of a few segments, preferably with curves in all audits."""
    audits = list(page.audits.values())
    probabilities = all(audit.schema.task != "regression" for audit in audits)
    overall = {audit.overall.segment for audit in audits}
    problems = [row for row in main_problems(page.audits) if _segment(row) not in overall]
    segments = problems or [row for row in page.findings if _segment(row) not in overall]
    plotted = [row for row in segments if all(f is not None and f.curve is not None and len(f.curve) for f in row)]
    pairs = []
    for row in (plotted or segments)[:MAX_PAIRS]:
        axis = model.curve_axis([f.curve for f in row if f is not None], probabilities=probabilities)
        curves = [
            model.view_curve(audit, finding, vocabulary, axis) | {"audit": name}
            for (name, audit), finding in zip(page.audits.items(), row, strict=True)
            if finding is not None
        ]
        pairs.append((text_cell(_segment(row)), curves))
    return pairs


def _segment(row: Row) -> str:
    return next(finding.segment for finding in row if finding is not None)


# The table of segments


def compare_segments(
    audits: Mapping[str, Audit], vocabulary: Vocabulary, max_rows: int | None = None
) -> tuple[TableView, list[Row]]:
    """Return the table of the worst segments, with observed/expected and tests of every audit, and their findings."""
    results = list(audits.values())
    count = MAX_TABLE_ROWS if max_rows is None else max_rows
    # By key, since the text of a segment may be ambiguous if values contain "&": best rank, and which audit has it.
    ranks: dict[Key, tuple[int, int]] = {}
    for index, result in enumerate(results):
        for rank in range(min(count, result.tested)):
            key = result.keys.parts(rank)
            ranks[key] = min(ranks.get(key, (rank, index)), (rank, index))
    ranks = dict(sorted(ranks.items(), key=lambda item: item[1])[:count])
    known = [model.column_names(result) for result in results]
    all_names = list(dict.fromkeys(name for listed in known for name in listed))
    used = [
        [all_names.index(known[index][code]) for code in results[index].keys.columns[rank] if code >= 0]
        for rank, index in ranks.values()
    ]
    rows = [_findings_of(results, key) for key in ranks]
    more = max(max(result.tested for result in results) - len(rows), 0)
    filters = model.make_filters(used, map(_largest, rows), all_names)
    return _compared_table(audits, vocabulary, rows, more, **filters), rows


def main_problems(audits: Mapping[str, Audit]) -> list[Row]:
    """Return the findings of the main problems of every audit, and of the segment that has become worst."""
    results = list(audits.values())
    keys: dict[Key, None] = {}
    for result in results:
        keys |= {result.keys.parts(problem.rank): None for problem in problems_of(result)[:MAIN_PROBLEMS]}
    if same_rows(results[0], results[-1]):
        keys |= {results[-1].keys.parts(rank): None for _, rank in worse_segments(results[0], results[-1])[:1]}
    return [_findings_of(results, key) for key in keys]


def compare_problems(audits: Mapping[str, Audit], vocabulary: Vocabulary) -> TableView:
    """Return the table of the main problems: how they changed, and their state in every audit."""
    return _compared_table(audits, vocabulary, main_problems(audits), brief=True)


def _findings_of(results: Sequence[Audit], key: Key) -> Row:
    return [result.finding(result.ranks[key]) if key in result.ranks else None for result in results]


def _largest(row: Row) -> int:
    return max(f.n for f in row if f is not None)


def _compared_table(
    audits: Mapping[str, Audit],
    vocabulary: Vocabulary,
    rows: list[Row],
    more: int = 0,
    *,
    brief: bool = False,
    **filters: Any,
) -> TableView:
    """Return a table of segments with their change and, per audit, their state and test; a ``brief`` one has no tests."""
    names, results = list(audits), list(audits.values())
    scale, adjusted = model.ratio_scale(*results), f"p-value adjusted for the number of {vocabulary.segments}"

    def change(row: Row) -> Cell:
        """Return the cell with observed/expected before and after, sorted by how much closer to 1 it came."""
        if row[0] is None or row[-1] is None:
            return Cell("", "moved")
        ratios = (row[0].ratio, row[-1].ratio)
        before, after = (abs(math.log(r)) if r > 0 and math.isfinite(r) else math.nan for r in ratios)
        sort = f"{before - after:.7g}" if math.isfinite(before - after) else ""
        return Cell(" → ".join(map(number, ratios)), "moved", sort)

    def excess(row: Row) -> Cell:
        known = [finding for finding in (row[0], row[-1]) if finding is not None]
        return Cell(" → ".join(signed_count(finding.excess) for finding in known) if len(known) == 2 else "", "interval")

    def marks(row: Row) -> Cell:
        if row[0] is None or row[-1] is None:
            return Cell("", "forest")
        return model.ratio_cell(results[-1], row[-1], scale, before=row[0].ratio)

    def name(row: Row) -> Cell:
        """Return the cell of a name; in a brief table, also of the scores that are off in the first and the last audit."""
        cell = text_cell(_segment(row), rows=len(rows))
        texts = {names[k]: "" if (finding := row[k]) is None else describe_scores(finding) for k in (0, -1)}
        lines = [f"{shorten(audit, 24)}: {line}" for audit, line in texts.items() if line]
        return replace(cell, detail="; ".join(lines)) if brief else cell

    def share(row: Row) -> Cell:
        largest = max(finding.share for finding in row if finding is not None)
        return number_cell(largest, format_share(largest))

    def value(index: int, cell: Callable[[Finding], Cell]) -> Callable[[Any], Cell]:
        return lambda row: Cell("") if row[index] is None else cell(row[index])

    def test_columns(index: int) -> list[Column]:
        heading = shorten(names[index], 24) if brief else "state"
        state = Column(heading, lambda row: model.state_cell(row[index]), model.STATE_MEANING, "state")
        if brief:
            return [state]
        ratio = Column("obs/exp", value(index, lambda f: number_cell(f.ratio)), "observed/expected")
        p = Column("adjusted p", value(index, lambda f: number_cell(f.p_adjusted, digits=2)), adjusted)
        return [state, *([ratio] if len(results) > 2 else []), p]

    tests = [test_columns(index) for index in range(len(results))]
    both = "on a logarithmic axis: hollow before, filled after, with its interval"
    ends = f"{names[0]}, then {names[-1]}"
    first = (
        Column(vocabulary.rows, share, f"share of all {vocabulary.rows}, or of their weight")
        if brief
        else Column(vocabulary.rows, lambda row: model.count_cell(_largest(row)))
    )
    columns = [
        Column("problem" if brief else vocabulary.segment, name, kind="name"),
        first,
        Column("obs/exp", change, f"observed/expected: {ends}", "moved"),
        Column(scale.text, marks, both, "forest"),
        Column("excess", excess, f"{model.excess_meaning(results[0])}: {ends}", "interval"),
        *(column for listed in tests for column in listed),
    ]
    groups = (("", 2), ("change", 3), *((name, len(tests[0])) for name in names))
    return make_table(columns, rows, more, groups=() if brief else groups, **filters)


# The fix between two audits


def fix_sections(
    fix: Any, audits: Sequence[Audit] = (), vocabulary: Vocabulary = DEFAULT_VOCABULARY, *, training_rows: bool = False
) -> tuple[Section, ...]:
    """Return sections on what the model ``fix`` corrected; ``training_rows`` means that audits are of its training rows."""
    fitted = _model_of(fix)
    if fitted is None:
        raise ArgumentError(
            f"fix must be a fitted calibrator or a model; got {type(fix).__qualname__}",
            hint="pass a fitted calibrator, such as trueup.MCGrad().fit(...), or the result of trueup.load",
        )
    sections = [_corrections(fitted, audits, vocabulary, training_rows=training_rows)]
    if isinstance(fitted.map, PatchMap) and fitted.map.patches:
        sections.append(_patches(fitted.map))
    return tuple(sections)


def _model_of(fix: Any) -> Model | None:
    fitted = fix if isinstance(fix, Model) else getattr(fix, "model_", None)
    return fitted if isinstance(fitted, Model) else None


def looks_like_training_data(fix: Any, audits: Sequence[Audit]) -> bool:
    """Return whether the audits, before and after ``fix``, look like audits of its training rows; False if unknown."""
    fitted = _model_of(fix)
    if fitted is None or len(audits) < 2:
        return False
    if any(audit.source is not None and audit.source.training_rows for audit in audits):
        return True
    before, after = (audit.sorted_rows for audit in (audits[0], audits[-1]))
    if before is None or after is None or len(before) != len(after):
        return False
    columns = [(before.order, before.p), (after.order, after.p), *([(after.order, after.w)] if len(after.w) else [])]
    in_order = [np.empty_like(values) for _, values in columns]
    for values, (order, of_sorted) in zip(in_order, columns, strict=True):
        values[order] = of_sorted  # undoes the sorting of rows by score
    return fitted.looks_like_training_data(*in_order)


def _corrections(fitted: Model, audits: Sequence[Audit], vocabulary: Vocabulary, *, training_rows: bool) -> Section:
    title, explanation, method, rows = "What the fix corrected", fitted.explanation, fitted.about.method, vocabulary.rows
    if not explanation.corrections:
        lead = f"{method} corrected nothing: the scores are unchanged. {_other_score(fitted, audits)}"
        return Section(title, lead.strip())
    these = f", not of the {rows} on this page"
    if training_rows:
        these = f", and the {rows} on this page look like the same {rows}: results on them are optimistic"
    lead = (
        f"{method} changed scores by {number(explanation.mean_change, 2)} on average. {_other_score(fitted, audits)}The "
        f"figures are those of the {explanation.rows:,} {rows} the model was fitted on{these}. The {vocabulary.segments} "
        f"below account for {100 * explanation.explained_share:.0f}% of the squared changes, largest first."
    )
    unit = "weight" if fitted.schema.weight else rows
    share = f"of the {unit} the model was fitted on"
    columns = [
        Column(vocabulary.segment, lambda c: text_cell(c.segment), kind="name"),
        Column("scores", lambda c: model.interval_cell(c.low, c.high), "range of scores before the fix", "interval"),
        Column(rows, lambda c: model.count_cell(c.rows)),
        Column(f"share of {unit}", lambda c: number_cell(c.share, f"{100 * c.share:.1f}%"), share),
        Column("before", lambda c: number_cell(c.before), "mean score before the fix"),
        Column("after", lambda c: number_cell(c.after), "mean score after the fix"),
        Column(vocabulary.observed, lambda c: number_cell(c.observed), "mean outcome"),
    ]
    return Section(title, lead, make_table(columns, explanation.corrections))


def _other_score(fitted: Model, audits: Sequence[Audit]) -> str:
    """Return a warning if the model corrects another score than that of the first of two audits, else an empty text."""
    corrected = fitted.schema.prediction
    before = audits[0].schema.prediction if len(audits) > 1 else ()
    if not corrected or not before or corrected == before:
        return ""
    own, other = (", ".join(repr(shorten(name, 60)) for name in names[:3]) for names in (corrected, before))
    return f"It was fitted to correct {own}, which is not the score it is compared with here ({other}). "


def _patches(patches: PatchMap) -> Section:
    listed = patches.patch_list
    columns = [
        Column("patch", lambda item: text_cell(f"{item[0]}. {item[1].group}"), kind="name"),
        Column("scores", lambda item: Cell(str(item[1].score_range), "interval"), kind="interval"),
        Column("rows", lambda item: model.count_cell(item[1].rows)),
        Column("predicted", lambda item: number_cell(item[1].before)),
        Column("observed", lambda item: number_cell(item[1].observed)),
        Column(f"change of {listed.scale}", lambda item: number_cell(item[1].shift, f"{item[1].shift:+.4g}")),
    ]
    lead = "Each patch corrects the error left by the patches before it. Figures are those of the training rows."
    return Section("Patches, in order", lead, make_table(columns, enumerate(listed.patches[:MAX_PATCHES], start=1)))
