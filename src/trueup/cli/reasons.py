"""What --verbose says: what was decided on the way, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.audits.text import shorten

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from trueup.audits.result import Audit
    from trueup.calibrators.model import Model
    from trueup.cli.judging import Answer
    from trueup.cli.question import Question
    from trueup.cli.together import Rows
    from trueup.data.table import Table

SHOWN = 4
MOST_ROUNDS = 30
KINDS = {"numeric": "numbers", "date": "dates", "categorical": "names"}
WHY_ADJUST = {
    "holm": "the chance of even one false alarm is bounded, whatever the segments share",
    "max": "as sharp as draws from the scores themselves allow; the chance of even one false alarm is bounded",
    "bh": "the share of false alarms is bounded, if segments depend positively",
    "by": "the share of false alarms is bounded, whatever the segments share",
}


def of_table(arguments: argparse.Namespace, table: Table, rows: int | None = None) -> Iterator[str]:
    """Say how the rows were read, of which the table may be some."""
    schema = table.schema
    asked = "as --task says" if arguments.task != "auto" else "several prediction columns are classes"
    asked = (
        "auto takes one prediction column for probabilities"
        if schema.task == "binary" and arguments.task == "auto"
        else asked
    )
    yield f"task: {schema.task} ({asked})"
    roles = [f"outcome {schema.outcome}", f"prediction {', '.join(schema.prediction)}"]
    yield "roles: " + "; ".join([*roles, *([f"weight {schema.weight}"] if schema.weight else [])])
    if arguments.positive is not None:
        yield f"outcome: {arguments.positive} counts as 1, everything else as 0 (--positive)"
    if schema.classes:
        yield f"classes: {', '.join(schema.classes[:12])} ({'--classes' if arguments.classes else 'found by their names'})"
    aside = [f"{table.unlabelled:,} without an outcome set aside"] if table.unlabelled else []
    aside += [f"{table.weightless:,} of weight 0 left out"] if table.weightless else []
    yield "rows: " + "; ".join([f"{len(table) if rows is None else rows:,}", *aside])
    for feature in schema.features:
        levels = f", {len(feature.levels):,} of them" if feature.kind == "categorical" else ""
        yield f"column {shorten(feature.name)}: {KINDS[feature.kind]}{levels}"
    for name, reason in table.left_out.items():
        yield f"column {shorten(name)} left out: {reason}"


def of_audit(found: Audit) -> Iterator[str]:
    """Say how columns were cut, what was tested, and what was not."""
    for feature, labels in zip(found.schema.features, found.keys.labels, strict=False):
        if feature.kind != "categorical":
            shown = ", ".join(shorten(label) for label in labels[:SHOWN]) + (", ..." if len(labels) > SHOWN else "")
            yield f"bins of {shorten(feature.name)}: {len(labels)} ({shown})"
    settings = found.settings
    budget = f"{len(found.dropped):,} left out by the budget of {settings.max_cells:,} cells"
    yield f"combinations: up to {settings.depth} columns; {budget}"
    thin = f"{found.thin:,} segments under {settings.min_rows:,} rows are not"
    yield f"segments: {len(found):,} seen, {found.tested:,} tested; {thin}"
    yield f"adjusted by {settings.adjust} at {settings.alpha:g}: {WHY_ADJUST[settings.adjust]}"
    yield f"off beyond chance: {found.rejected:,}"


def of_fit(model: Model, recipe: Any) -> Iterator[str]:
    """Say how a model was judged, round by round, and why it stopped."""
    history = model.history
    parameters = recipe.get_params(deep=False)
    told = {name: value for name, value in parameters.items() if name not in ("features", "by")}
    if hasattr(told.get("stopping"), "data"):
        told["stopping"] = "rows of --validation"  # not the rows themselves
    said = ", ".join(f"{name}={value!r}" for name, value in told.items())
    yield f"method: {type(recipe).__name__}({shorten(said, 400)})"
    yield f"judged by {history.evaluated_on}, by {history.measure}"
    for one in history.rounds[:MOST_ROUNDS]:
        gain = (
            ""
            if one.number == 0
            else f", gain {one.gain:.3g} with error {one.error:.3g}: {'kept' if one.kept else 'not kept'}"
        )
        yield f"round {one.number}: {history.measure} {one.loss:.6g}{gain}"
    yield f"why it stopped: {history.reason}"


def of_model(model: Model) -> Iterator[str]:
    """Say what a model reads and does."""
    yield from repr(model.info()).splitlines()
    for feature in model.schema.features:
        levels = f", {len(feature.levels):,} known" if feature.kind == "categorical" else ""
        yield f"reads {shorten(feature.name)}: {KINDS[feature.kind]}{levels}"


def of_rows(rows: Rows, question: Question) -> Iterator[str]:
    """Say what is decided on, by what, and at which costs."""
    yield f"rows: {len(rows.table):,}, decided on by {rows.prediction}"
    yield f"costs: {question.told()}"
    if rows.labelled is None:
        yield "no labelled rows: scores are taken at their word"
    else:
        yield f"labelled rows: {len(rows.labelled):,}; they correct the cost and bound its error"
    for cut in rows.cuts:
        empty = sum(1 for many in cut.labelled.values() if not many) if rows.labelled is not None else 0
        without = f", {empty:,} of them without labelled rows" if empty else ""
        yield f"segments by {' x '.join(cut.by)}: {len(cut.names):,}{without}"


def of_answer(found: Answer) -> Iterator[str]:
    """Say why a rule was taken, and how its interval was made."""
    given = found.question.threshold
    yield f"rule: {'the one that was given' if given is not None else 'the cheapest of all thresholds, by the scores'}"
    yield f"fits the capacities: {'yes' if found.fits else 'no'}"
    widths = ", ".join(f"{name} ±{half:.6g}" for name, half in found.cost.half_widths.items())
    yield f"interval at {100 * found.cost.level:g}%, for {found.cost.target}: {widths}"
    if found.cost.evidence:
        yield f"correction by {found.cost.evidence}: {found.cost.correction:+.6g}"
