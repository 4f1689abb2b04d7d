"""Several audits side by side: which segments were, still are or newly are miscalibrated, and what a fix corrected."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import number, shorten
from trueup.calibrators.model import Model
from trueup.calibrators.patches.map import PatchMap
from trueup.errors import ArgumentError
from trueup.reports.model import (
    SIGMA_MEANING,
    STATE_MEANING,
    Cell,
    CurveView,
    Name,
    Section,
    TableView,
    audit_metrics,
    audit_settings,
    brier_terms,
    column,
    column_names,
    count_cell,
    finding_state,
    interval_cell,
    make_table,
    number_cell,
    p_cell,
    ratio_cell,
    state_cell,
    text_cell,
    view_curve,
)
from trueup.reports.plots import curve_axis, ratio_scale
from trueup.reports.profiles.profile import DEFAULT_VOCABULARY, Vocabulary
from trueup.reports.text import TIME_WORD, NextStep, count_segments, next_step, next_step_after_fix

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from trueup._types import FloatArray
    from trueup.audits.audit import Audit, Finding
    from trueup.kernels.tally import SortedRows

    Key = tuple[str, ...]  # of a segment, as `Keys.parts` returns it

DIFFERENT_ROWS = "These audits are of different rows: differences may come from the rows, not from the scores."
MAX_PAIRS = 4
MAX_TABLE_ROWS = 500
MAX_PATCHES = 100


def same_rows(before: Audit, after: Audit) -> bool:
    """Return whether two audits may be of the same rows: equal number, weight and mean outcome."""
    first, second = before.overall, after.overall
    pairs = ((first.n, second.n), (first.weight, second.weight), (first.observed, second.observed))
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-12) for a, b in pairs)


def compared_step(
    audits: Mapping[str, Audit], vocabulary: Vocabulary = DEFAULT_VOCABULARY, *, training_rows: bool = False
) -> NextStep:
    """Recommend a step after several audits; the first and the last are compared if they may be of the same rows."""
    (_, before), *_, (name, after) = audits.items()
    if not same_rows(before, after):
        return next_step(after, vocabulary)
    return next_step_after_fix(name, before, after, vocabulary, training_rows=training_rows)


# The page


@dataclass(frozen=True)
class Comparison:
    """What a page shows of several audits together.

    ``findings`` has per table row the finding of each audit; ``settings`` has one entry if they are the same for all.
    """

    headline: str
    summary: str
    step: NextStep
    overall: tuple[CurveView, ...]
    pairs: tuple[tuple[Name, tuple[CurveView, ...]], ...]
    metrics: tuple[tuple[str, tuple[str, ...], str], ...]
    table: TableView
    findings: tuple[Sequence[Finding | None], ...]
    settings: Mapping[str, tuple[tuple[str, str], ...]]


def compare(
    audits: Mapping[str, Audit], vocabulary: Vocabulary, *, training_rows: bool = False, max_rows: int | None = None
) -> Comparison:
    """Put audits side by side, in the given order; sentences compare the first and the last."""
    results = list(audits.values())
    count = MAX_TABLE_ROWS if max_rows is None else max_rows
    # By key, since the text of a segment may be ambiguous if values contain "&": best rank, and which audit has it.
    ranks: dict[Key, tuple[int, int]] = {}
    for index, result in enumerate(results):
        for rank in range(min(count, result.tested)):
            key = result.keys.parts(rank)
            ranks[key] = min(ranks.get(key, (rank, index)), (rank, index))
    ranks = dict(sorted(ranks.items(), key=lambda item: item[1])[:count])
    findings = {
        key: [result.finding(result.ranks[key]) if key in result.ranks else None for result in results] for key in ranks
    }
    probabilities = all(result.schema.task != "regression" for result in results)
    axis = curve_axis([result.overall.curve for result in results], probabilities=probabilities, ticks=7)
    headline, summary = _sentences(audits, vocabulary)
    settings = {name: audit_settings(result, vocabulary) for name, result in audits.items()}
    pairs = []
    for pair in _pairs_to_plot(results, findings.values()):
        shared = curve_axis([f.curve for f in pair if f is not None], probabilities=probabilities)
        curves = (
            view_curve(audit, finding, vocabulary, shared, name=name)
            for (name, audit), finding in zip(audits.items(), pair, strict=True)
            if finding is not None
        )
        pairs.append((Name.of(_segment(pair)), tuple(curves)))
    return Comparison(
        headline=headline,
        summary=summary,
        step=compared_step(audits, vocabulary, training_rows=training_rows),
        overall=tuple(
            view_curve(result, result.overall, vocabulary, axis, large=True, name=name) for name, result in audits.items()
        ),
        settings={"": next(iter(settings.values()))} if len(set(settings.values())) == 1 else settings,
        pairs=tuple(pairs),
        metrics=_metrics(results, vocabulary),
        table=_table(audits, findings, ranks, vocabulary),
        findings=tuple(findings.values()),
    )


def _segment(findings: Sequence[Finding | None]) -> str:
    return next(finding.segment for finding in findings if finding is not None)


def _pairs_to_plot(
    results: Sequence[Audit], candidates: Iterable[Sequence[Finding | None]]
) -> list[Sequence[Finding | None]]:
    """Choose the segments whose curves are shown: miscalibrated somewhere and with a curve in every audit, if any."""
    overall = {result.overall.segment for result in results}
    segments = [findings for findings in candidates if _segment(findings) not in overall]
    plotted = [
        findings for findings in segments if all(f is not None and f.curve is not None and len(f.curve) for f in findings)
    ]
    flagged = [
        findings for findings in plotted
        if any(finding_state(*pair) == "flagged" for pair in zip(results, findings, strict=True))
    ]  # fmt: skip
    return (flagged or plotted or segments)[:MAX_PAIRS]


def _metrics(results: Sequence[Audit], vocabulary: Vocabulary) -> tuple[tuple[str, tuple[str, ...], str], ...]:
    """Return per metric its name, its value in every audit and its meaning; discrimination and miscalibration included."""
    tables = [
        {item.name: item for item in (*audit_metrics(result, vocabulary), *brier_terms(result)[1:3])} for result in results
    ]
    meanings = {name: item.detail for table in tables for name, item in table.items()}
    return tuple(
        (name, tuple(table[name].value.lstrip("−+ ") if name in table else "-" for table in tables), meaning)
        for name, meaning in meanings.items()
    )


def _sentences(audits: Mapping[str, Audit], vocabulary: Vocabulary) -> tuple[str, str]:
    """Return the headline and the sentence below it."""
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


def _table(
    audits: Mapping[str, Audit],
    findings: Mapping[Key, Sequence[Finding | None]],
    ranks: Mapping[Key, tuple[int, int]],
    vocabulary: Vocabulary,
) -> TableView:
    """Lay out the segments with the change of their ratio, and with the test of every audit."""
    names, results = list(audits), list(audits.values())
    scale = ratio_scale(*results)

    def change(row: Sequence[Finding | None]) -> Cell:
        """Show how observed/expected changed, sorted by how much closer to 1 it came."""
        if row[0] is None or row[-1] is None:
            return Cell("", "moved")
        ratios = (row[0].ratio, row[-1].ratio)
        before, after = (abs(math.log(r)) if r > 0 and math.isfinite(r) else math.nan for r in ratios)
        sort = f"{before - after:.7g}" if math.isfinite(before - after) else ""
        return Cell(" → ".join(map(number, ratios)), "moved", sort)

    def marks(row: Sequence[Finding | None]) -> Cell:
        if row[0] is None or row[-1] is None:
            return Cell("", "forest")
        return ratio_cell(results[-1], row[-1], scale, before=row[0].ratio)

    def value(index: int, cell: Callable[[Finding], Cell]) -> Callable[[Any], Cell]:
        return lambda row: Cell("") if row[index] is None else cell(row[index])

    def audit_columns(index: int) -> list[Any]:
        ratio = column("obs/exp", value(index, lambda f: number_cell(f.ratio)), "observed/expected")
        adjusted = f"p-value adjusted for the number of {vocabulary.segments}"
        return [
            column("state", lambda row: state_cell(results[index], row[index]), STATE_MEANING, "state"),
            *([ratio] if len(results) > 2 else []),
            column("sigma", value(index, lambda f: number_cell(f.sigma)), SIGMA_MEANING),
            column("adjusted p", value(index, lambda f: p_cell(f.p_adjusted)), adjusted),
        ]

    per_audit = [audit_columns(index) for index in range(len(results))]
    both = "on a logarithmic axis: hollow before, filled after, with its interval"
    columns = [
        column(vocabulary.segment, lambda row: text_cell(_segment(row), rows=len(findings)), kind="name"),
        column(vocabulary.rows, lambda row: count_cell(max(f.n for f in row if f is not None))),
        column("obs/exp", change, f"observed/expected: {names[0]}, then {names[-1]}", "moved"),
        column(scale.text, marks, both, "forest"),
        *(item for listed in per_audit for item in listed),
    ]
    known = [column_names(result) for result in results]
    used = {
        key: [known[index][code] for code in results[index].keys.columns[rank] if code >= 0]
        for key, (rank, index) in ranks.items()
    }
    indices = {name: index for index, name in enumerate(dict.fromkeys(name for listed in known for name in listed))}
    shown = {name for listed in used.values() for name in listed}
    return make_table(
        columns,
        findings.values(),
        max(max(result.tested for result in results) - len(findings), 0),
        groups=(("", 2), ("change", 2), *((name, len(per_audit[0])) for name in names)),
        filters=tuple(
            (" ".join(str(indices[name]) for name in used[key]), max(f.n for f in row if f is not None))
            for key, row in findings.items()
        ),
        columns_to_filter=tuple((index, shorten(name, 60)) for name, index in indices.items() if name in shown),
    )


# The fix between two audits


def fix_sections(
    fix: Any, audits: Sequence[Audit] = (), vocabulary: Vocabulary = DEFAULT_VOCABULARY, *, training_rows: bool = False
) -> tuple[Section, ...]:
    """Describe what a fitted calibrator or a model corrected; ``training_rows`` if the audits are of its training rows."""
    if fix is None:
        return ()
    model = _model_of(fix)
    if model is None:
        raise ArgumentError(
            f"fix must be a fitted calibrator or a model; got {type(fix).__qualname__}",
            hint="pass a fitted calibrator, such as trueup.MCGrad().fit(...), or the result of trueup.load",
        )
    sections = [_corrections(model, audits, vocabulary, training_rows=training_rows)]
    if isinstance(model.map, PatchMap) and model.map.patches:
        sections.append(_patches(model.map))
    return tuple(sections)


def _model_of(fix: Any) -> Model | None:
    model = fix if isinstance(fix, Model) else getattr(fix, "model_", None)
    return model if isinstance(model, Model) else None


def looks_like_training_data(fix: Any, audits: Sequence[Audit]) -> bool:
    """Return whether the rows of two audits look like the training rows of the fix between them, as far as is known."""
    model = _model_of(fix)
    if model is None or len(audits) < 2:
        return False
    if any(audit.source is not None and audit.source.training_rows for audit in audits):
        return True
    before, after = (audit.sorted_rows for audit in (audits[0], audits[-1]))
    if before is None or after is None or len(before) != len(after):
        return False
    weight = _original_order(after, after.w) if len(after.w) else None
    return model.looks_like_training_data(_original_order(before, before.p), _original_order(after, after.p), weight)


def _original_order(rows: SortedRows, values: FloatArray) -> FloatArray:
    """Undo the sorting of rows by score."""
    original = np.empty_like(values)
    original[rows.order] = values
    return original


def _corrections(model: Model, audits: Sequence[Audit], vocabulary: Vocabulary, *, training_rows: bool) -> Section:
    title, explanation, method, rows = "What the fix corrected", model.explanation, model.about.method, vocabulary.rows
    if not explanation.corrections:
        lead = f"{method} corrected nothing: the scores are unchanged. {_other_score(model, audits)}"
        return Section(title, lead.strip())
    these = f", not of the {rows} on this page"
    if training_rows:
        these = f", and the {rows} on this page look like the same {rows}: results on them are optimistic"
    lead = (
        f"{method} changed scores by {number(explanation.moved, 2)} on average. {_other_score(model, audits)}The figures "
        f"are those of the {explanation.rows:,} {rows} the model was fitted on{these}. The {vocabulary.segments} below "
        f"account for {100 * explanation.accounted:.0f}% of the squared changes, largest first."
    )
    unit = "weight" if model.schema.weight else rows
    columns = [
        column(vocabulary.segment, lambda c: text_cell(c.segment), kind="name"),
        column("scores", lambda c: interval_cell(c.low, c.high), "range of scores before the fix", "interval"),
        column(rows, lambda c: count_cell(c.rows)),
        column(
            f"share of {unit}",
            lambda c: number_cell(c.share, f"{100 * c.share:.1f}%"),
            f"of the {unit} the model was fitted on",
        ),
        column("before", lambda c: number_cell(c.before), "mean score before the fix"),
        column("after", lambda c: number_cell(c.after), "mean score after the fix"),
        column(vocabulary.observed, lambda c: number_cell(c.observed), "mean outcome"),
    ]
    return Section(title, lead, make_table(columns, explanation.corrections))


def _other_score(model: Model, audits: Sequence[Audit]) -> str:
    """Return a warning if the fix was fitted to another score than the one it is compared with."""
    corrected = model.schema.prediction
    before = audits[0].schema.prediction if len(audits) > 1 else ()
    if not corrected or not before or corrected == before:
        return ""
    fitted, compared = (", ".join(repr(shorten(name, 60)) for name in names[:3]) for names in (corrected, before))
    return f"It was fitted to correct {fitted}, which is not the score it is compared with here ({compared}). "


def _patches(patches: PatchMap) -> Section:
    listed = patches.patch_list
    columns = [
        column("patch", lambda item: text_cell(f"{item[0]}. {item[1].group}"), kind="name"),
        column("scores", lambda item: Cell(str(item[1].score_range), "interval"), kind="interval"),
        column("rows", lambda item: count_cell(item[1].rows)),
        column("predicted", lambda item: number_cell(item[1].before)),
        column("observed", lambda item: number_cell(item[1].observed)),
        column(f"change of {listed.scale}", lambda item: number_cell(item[1].shift, f"{item[1].shift:+.4g}")),
    ]
    lead = "Each patch corrects the error left by the patches before it. Figures are those of the training rows."
    return Section("Patches, in order", lead, make_table(columns, enumerate(listed.patches[:MAX_PATCHES], start=1)))
