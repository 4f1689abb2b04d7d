"""Several audits side by side: which segments were, still are or newly are miscalibrated, and what a fix corrected."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import number, shorten
from trueup.calibrators.model import Model
from trueup.calibrators.patches.map import PatchMap
from trueup.errors import ArgumentError
from trueup.reports import model
from trueup.reports.model import Cell, Column, Figure, Section, TableView, make_table, number_cell, text_cell
from trueup.reports.profiles import DEFAULT_VOCABULARY, Vocabulary
from trueup.reports.text import AUDIT_AGAIN, TIME_WORD, NextStep, count_segments, next_step

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.page import Page

    Row = Sequence[Finding | None]  # the findings of a segment, one per audit

DIFFERENT_ROWS = (
    "These audits are of different rows: differences may come from the rows, not from the scores. P-values are for one "
    "look: each audit may raise a false alarm at its own level."
)
MAX_PAIRS = 4
MAX_TABLE_ROWS = 500
MAX_PATCHES = 100


# Sentences, metrics and settings


def same_rows(before: Audit, after: Audit) -> bool:
    """Return whether two audits may be of the same rows: equal number, weight and mean outcome."""
    first, second = before.overall, after.overall
    pairs = ((first.n, second.n), (first.weight, second.weight), (first.observed, second.observed))
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs)


def compared_step(
    audits: Mapping[str, Audit], vocabulary: Vocabulary = DEFAULT_VOCABULARY, *, training_rows: bool = False
) -> NextStep:
    """Recommend a step after several audits of the same rows: use the last score, keep the first, or fit again."""
    (_, before), *_, (name, after) = audits.items()
    rows, same = vocabulary.rows, same_rows(before, after)
    if same and training_rows:
        return NextStep(
            f"Next: compare on {rows} that were not used for the fit. These look like the {rows} the model was fitted on; "
            "results on them are optimistic."
        )
    if not same or not after.tested or not (after.rejected or before.rejected):
        return next_step(after, vocabulary)
    scores = f"the scores {name}" if TIME_WORD.match(name) else name
    scores = "the corrected scores" if name.lower() == "after" else scores
    remaining = f"{count_segments(after.rejected, vocabulary)} {'is' if after.rejected == 1 else 'are'}"
    if after.rejected > before.rejected:
        return NextStep(
            f"Next: do not use {scores} yet. {remaining} miscalibrated, compared with {before.rejected:,} before."
        )
    if after.rejected:
        return NextStep(
            f"Next: {remaining} still miscalibrated. Fit again on more {rows}, with the columns that form them among the "
            f"features, and compare on {rows} that were not used for the fit."
        )
    return NextStep(
        f"Next: use {scores}, provided that these {rows} were not used for the fit: no miscalibration was found. "
        f"{AUDIT_AGAIN}"
    )


def compared_sentences(audits: Mapping[str, Audit], vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the headline of a comparison of audits and the sentence below it."""
    (first, before), *_, (last, after) = audits.items()
    same = same_rows(before, after)

    def phrase(name: str) -> str:
        if TIME_WORD.match(name):
            return name
        return f"with {name}" if same and not name.startswith("audit ") else f"in {name}"

    count = count_segments(before.rejected, vocabulary)
    headline = f"{count} miscalibrated {phrase(first)}, {after.rejected:,} {phrase(last)}"
    if not same:
        return headline, DIFFERENT_ROWS
    was, now = ({audit.keys.parts(rank) for rank in range(audit.rejected)} for audit in (before, after))
    if not was and not now:
        return headline, f"No {vocabulary.segment} was found miscalibrated in either; see which errors could be detected."
    parts = [
        f"{len(was & now):,} of the {len(was):,} still miscalibrated",
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
    """Return names and plots of a few segments, preferably miscalibrated in some audit and with curves in all of them."""
    audits = list(page.audits.values())
    probabilities = all(audit.schema.task != "regression" for audit in audits)
    overall = {audit.overall.segment for audit in audits}
    segments = [row for row in page.findings if _segment(row) not in overall]
    plotted = [row for row in segments if all(f is not None and f.curve is not None and len(f.curve) for f in row)]
    flagged = [row for row in plotted if "flagged" in map(model.finding_state, audits, row)]
    pairs = []
    for row in (flagged or plotted or segments)[:MAX_PAIRS]:
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
    names, results = list(audits), list(audits.values())
    count = MAX_TABLE_ROWS if max_rows is None else max_rows
    # By key, since the text of a segment may be ambiguous if values contain "&": best rank, and which audit has it.
    ranks: dict[tuple[tuple[str, bool], ...], tuple[int, int]] = {}
    for index, result in enumerate(results):
        for rank in range(min(count, result.tested)):
            key = result.keys.parts(rank)
            ranks[key] = min(ranks.get(key, (rank, index)), (rank, index))
    ranks = dict(sorted(ranks.items(), key=lambda item: item[1])[:count])
    rows: list[Row] = [
        [result.finding(result.ranks[key]) if key in result.ranks else None for result in results] for key in ranks
    ]
    scale, adjusted = model.ratio_scale(*results), f"p-value adjusted for the number of {vocabulary.segments}"

    def change(row: Row) -> Cell:
        """Return the cell with observed/expected before and after, sorted by how much closer to 1 it came."""
        if row[0] is None or row[-1] is None:
            return Cell("", "moved")
        ratios = (row[0].ratio, row[-1].ratio)
        before, after = (abs(math.log(r)) if r > 0 and math.isfinite(r) else math.nan for r in ratios)
        sort = f"{before - after:.7g}" if math.isfinite(before - after) else ""
        return Cell(" → ".join(map(number, ratios)), "moved", sort)

    def marks(row: Row) -> Cell:
        if row[0] is None or row[-1] is None:
            return Cell("", "forest")
        return model.ratio_cell(results[-1], row[-1], scale, before=row[0].ratio)

    def largest(row: Row) -> int:
        return max(f.n for f in row if f is not None)

    def value(index: int, cell: Callable[[Finding], Cell]) -> Callable[[Any], Cell]:
        return lambda row: Cell("") if row[index] is None else cell(row[index])

    def test_columns(index: int) -> list[Column]:
        ratio = Column("obs/exp", value(index, lambda f: number_cell(f.ratio)), "observed/expected")
        return [
            Column("state", lambda row: model.state_cell(results[index], row[index]), model.STATE_MEANING, "state"),
            *([ratio] if len(results) > 2 else []),
            Column("sigma", value(index, lambda f: number_cell(f.sigma)), model.SIGMA_MEANING),
            Column("adjusted p", value(index, lambda f: number_cell(f.p_adjusted, digits=2)), adjusted),
        ]

    tests = [test_columns(index) for index in range(len(results))]
    both = "on a logarithmic axis: hollow before, filled after, with its interval"
    columns = [
        Column(vocabulary.segment, lambda row: text_cell(_segment(row), rows=len(rows)), kind="name"),
        Column(vocabulary.rows, lambda row: model.count_cell(largest(row))),
        Column("obs/exp", change, f"observed/expected: {names[0]}, then {names[-1]}", "moved"),
        Column(scale.text, marks, both, "forest"),
        *(column for listed in tests for column in listed),
    ]
    known = [model.column_names(result) for result in results]
    all_names = list(dict.fromkeys(name for listed in known for name in listed))
    used = [
        [all_names.index(known[index][code]) for code in results[index].keys.columns[rank] if code >= 0]
        for rank, index in ranks.values()
    ]
    more = max(max(result.tested for result in results) - len(rows), 0)
    groups = (("", 2), ("change", 2), *((name, len(tests[0])) for name in names))
    filters = model.make_filters(used, map(largest, rows), all_names)
    return make_table(columns, rows, more, groups=groups, **filters), rows


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
