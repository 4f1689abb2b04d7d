"""Output of commands: pages of sentences and tables, laid out for a terminal or as plain text, and their contents."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NamedTuple, TextIO

from trueup.audits.text import MAX_NAME_WIDTH, number, shorten
from trueup.cli import console

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

    from trueup.audits.result import Audit
    from trueup.calibrators.explain import Explanation
    from trueup.calibrators.history import History
    from trueup.calibrators.model import Model
    from trueup.calibrators.patches.map import PatchList
    from trueup.calibrators.row_explanation import RowExplanation
    from trueup.data.table import Schema, Table

NAME_WIDTH = 28
MIN_NAME_WIDTH = 10
COLUMN_GAP = 2
MAX_BIN_LABELS = 4
MAX_ROUNDS = 30
MIN_ROUNDS = 4  # always shown: two at either end
CONTRIBUTION_WIDTH = 120
ADJUST_REASONS = {
    "holm": "controls the familywise error rate under any dependence of the segments",
    "max": "controls the familywise error rate, by simulation from the scores",
    "bh": "controls the false discovery rate if segments depend positively",
    "by": "controls the false discovery rate under any dependence of the segments",
}


class TextTable(NamedTuple):
    """A table whose first column is text and whose other columns are formatted numbers."""

    headings: tuple[str, ...]
    rows: list[tuple[str, ...]]
    optional: tuple[str, ...] = ()  # the columns that a narrow terminal omits, in this order
    name_width: int = MAX_NAME_WIDTH
    bars: bool = False  # whether the last column is a bar chart
    styles: Sequence[str] = ()  # of the rows, on a terminal


def show_page(parts: Sequence[str | TextTable], *, style: str = "bold") -> None:
    """Print sentences and tables below each other; a terminal styles the first sentence up to its colon."""
    if sys.stdout is not None and sys.stdout.isatty():
        console.emit(lambda stream: _show_on_terminal(parts, stream, style))
    else:
        console.say("\n".join(part if isinstance(part, str) else _plain_table(part) for part in parts))


def _show_on_terminal(parts: Sequence[str | TextTable], stream: TextIO, style: str) -> None:
    from rich.console import Console
    from rich.text import Text

    screen = Console(file=stream, highlight=False, markup=False, emoji=False)
    for index, part in enumerate(parts):
        if isinstance(part, str):
            start, colon, rest = console.printable(part).partition(": ")
            text = Text.assemble((start, "" if index else style), colon + rest)
            screen.print(text, soft_wrap=part.startswith("  trueup "))  # a command must be copied as one line
        else:
            screen.print(_rich_table(part, _fitting_columns(part, screen.width)))


def _rich_table(table: TextTable, kept: list[int]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    left_aligned = {0, *([len(table.headings) - 1] if table.bars else [])}
    result = Table(box=None, pad_edge=False, padding=(0, COLUMN_GAP, 0, 0), header_style="bold")
    for index in kept:
        result.add_column(
            Text(table.headings[index]),
            justify="left" if index in left_aligned else "right",
            no_wrap=index > 0,
            overflow="fold",
            min_width=min(MIN_NAME_WIDTH, max(len(row[0]) for row in table.rows)) if index == 0 and table.rows else None,
        )
    for row, style in zip(table.rows, table.styles or [""] * len(table.rows), strict=True):
        cells = [Text(shorten(row[index], 200) if index == 0 else row[index]) for index in kept]
        result.add_row(*cells, style=style)
    return result


def _fitting_columns(table: TextTable, width: int) -> list[int]:
    """Return the indices of the columns to show: optional ones are omitted until the first column has enough space."""
    widths = [max(map(len, column)) + COLUMN_GAP for column in zip(table.headings, *table.rows, strict=True)]
    kept = list(range(len(widths)))
    for word in table.optional:
        if sum(widths[index] for index in kept if index) + min(widths[0], NAME_WIDTH) <= width:
            break
        kept = [index for index in kept if word not in table.headings[index]]
    needed = min(widths[0], MIN_NAME_WIDTH + COLUMN_GAP) + sum(widths[index] for index in kept if index) - COLUMN_GAP
    return kept[:-1] if table.bars and needed > width else kept


def _plain_table(table: TextTable) -> str:
    rows = [(shorten(row[0], table.name_width), *row[1:]) for row in [table.headings, *table.rows]]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        first, *others = zip(row, widths, strict=True)
        cells = [first[0].ljust(first[1]), *(cell.rjust(width) for cell, width in others)]
        lines.append("  ".join([*cells[:-1], row[-1]] if table.bars else cells).rstrip())
    return "\n".join(lines)


# Tables of models


def corrections_tables(explanation: Explanation, top: int) -> list[str | TextTable]:
    """Return the ``top`` largest corrections of a model: those that raise scores, then those that lower them."""
    return [
        part
        for title, headings, rows in explanation.blocks(top)
        for part in ("", title, TextTable(headings, rows, ("scores", "before", "after", "observed")))
    ]


def patches_table(patches: PatchList, top: int) -> TextTable:
    """Return the table of the first ``top`` patches."""
    rows: list[tuple[str, ...]] = [
        (
            f"{index}  {patch.group}",
            patch.score_range,
            f"{patch.rows:,}",
            number(patch.before),
            number(patch.observed),
            f"{patch.shift:+.4g}",
        )
        for index, patch in enumerate(patches.patches[:top], start=1)
    ]
    headings = ("patch", "scores", "rows", "predicted", "observed", f"change of {patches.scale}")
    return TextTable(headings, rows, ("rows", "observed"))


def history_table(history: History, top: int = 20) -> TextTable:
    """Return the table of rounds with their losses; of more than ``top``, the first and the last ones."""
    has_trees = any(step.trees for step in history.rounds)
    is_trained = any(step.training_loss is not None for step in history.rounds)
    limit = max(top, MIN_ROUNDS)
    rounds = history.rounds
    if len(rounds) > limit:
        rounds = (*rounds[: limit // 2], *rounds[-(limit - limit // 2) :])
    rows: list[tuple[str, ...]] = []
    for step in rounds:
        trees = (f"{step.trees:,}", f"{step.theta:.3f}") if step.number else ("", "")
        name = f"round {step.number}{'' if step.kept else ' (rejected)'}" if step.number else "original scores"
        change = (f"{-step.gain:+.3g}", f"{step.error:.2g}") if step.number else ("", "")
        training = ("" if step.training_loss is None else f"{step.training_loss:.6g}",) if is_trained else ()
        rows.append((name, *(trees if has_trees else ()), *training, f"{step.loss:.6g}", *change))
    headings = ("round", *(("trees", "theta") if has_trees else ()), *(("training",) if is_trained else ()), "loss")
    return TextTable((*headings, "change", "s.e."), rows, ("theta", "training", "s.e."))


def contributions_table(explanation: RowExplanation, top: int) -> TextTable:
    """Return the table of contributions to the change of one prediction; those beyond ``top`` are summed."""
    if isinstance(explanation.link_change, tuple):
        headings: tuple[str, ...] = ("contribution", "class", "change")
        return TextTable(headings, [*explanation.lines()[:top]], name_width=CONTRIBUTION_WIDTH)
    rows: list[tuple[str, ...]] = [(part.condition, f"{part.change:+.4f}") for part in explanation.contributions[:top]]
    rest = explanation.contributions[top:]
    if rest:
        rows.append((f"{len(rest):,} more", f"{sum(part.change for part in rest):+.4f}"))
    return TextTable(("contribution", "change"), rows, name_width=CONTRIBUTION_WIDTH)


def describe_evaluation(history: History) -> str:
    """Return a phrase that states which rows a model was evaluated on."""
    if not history.is_evaluated:
        reason = "imported" if history.is_imported else "fitted without outcomes"
        return f"{reason}: not evaluated"
    preposition = "by" if history.evaluated_on == "cross-validation" else "on"
    return f"evaluated {preposition} {history.evaluated_on}"


def model_data(model: Model) -> dict[str, Any]:
    """Return origin, history, explanation and patches of a model as plain data."""
    from trueup.calibrators.patches.map import PatchMap  # audits need no calibrators

    patches = {"patches": model.map.patch_list.to_dict()} if isinstance(model.map, PatchMap) else {}
    return {
        "model": model.info().to_dict(),
        "history": model.history.to_dict(),
        "explanation": model.explanation.to_dict(),
        **patches,
    }


# Notes for --verbose


def table_notes(arguments: argparse.Namespace, table: Table, rows: int | None = None) -> Iterator[str]:
    """Yield lines for --verbose on how the rows were read; ``rows`` is their number if the table is a sample."""
    schema = table.schema
    if arguments.task != "auto":
        reason = "given by --family" if getattr(arguments, "family", None) else "given by --task"
    elif schema.task == "binary":
        reason = "auto: one prediction column is a probability"
    else:
        reason = "auto: several prediction columns are classes"
    yield f"task: {schema.task} ({reason})"
    scores = ", ".join(schema.prediction)
    roles = {"outcome": schema.outcome, "prediction": scores, "weight": schema.weight, "cluster": schema.cluster}
    yield "roles: " + "; ".join(f"{role} {name}" for role, name in roles.items() if name)
    if arguments.positive is not None:
        yield f"outcome: {arguments.positive} counts as 1, every other as 0 (--positive)"
    if schema.classes:
        source = "given by --classes" if arguments.classes else "found by their names"
        yield f"classes: {', '.join(schema.classes[:12])} ({source})"
    dropped = [f"{table.unlabelled:,} without an outcome dropped"] if table.unlabelled else []
    dropped += [f"{table.weightless:,} of weight 0 dropped"] if table.weightless else []
    yield "rows: " + "; ".join([f"{len(table) if rows is None else rows:,}", *dropped])
    yield from _feature_notes(schema)
    for name, reason in table.left_out.items():
        yield f"column {shorten(name)} left out: {reason}"


def audit_notes(audit: Audit) -> Iterator[str]:
    """Yield lines for --verbose on the bins, the tested segments and the adjustment of p-values."""
    for feature, labels in zip(audit.schema.features, audit.keys.labels, strict=False):
        if feature.kind != "categorical":
            shown = ", ".join(shorten(label) for label in labels[:MAX_BIN_LABELS])
            shown += ", ..." if len(labels) > MAX_BIN_LABELS else ""
            yield f"bins of {shorten(feature.name)}: {len(labels)} ({shown})"
    settings = audit.settings
    dropped = f"{len(audit.dropped):,} combinations dropped by the limit of {settings.max_cells:,} segments"
    yield f"combinations: up to {settings.depth} columns; {dropped}"
    small = f"{audit.thin:,} not tested with fewer than {settings.min_rows:,} rows"
    yield f"segments: {len(audit):,}, {audit.tested:,} tested; {small}"
    yield f"adjustment: {settings.adjust} at {settings.alpha:g}; {ADJUST_REASONS[settings.adjust]}"
    yield f"significantly miscalibrated: {audit.rejected:,}"


def fit_notes(model: Model, calibrator: Any) -> Iterator[str]:
    """Yield lines for --verbose on the parameters, the rounds and the stopping of a fit."""
    history = model.history
    parameters = calibrator.get_params(deep=False)
    shown = {name: value for name, value in parameters.items() if name not in ("features", "by", "labelled")}
    if hasattr(shown.get("stopping"), "data"):
        shown["stopping"] = "rows of --validation"  # instead of the data
    listed = ", ".join(f"{name}={value!r}" for name, value in shown.items())
    yield f"method: {type(calibrator).__name__}({shorten(listed, 400)})"
    yield f"{describe_evaluation(history)}: {history.measure}"
    for step in history.rounds[:MAX_ROUNDS]:
        gain = ""
        if step.number:
            gain = f", gain {step.gain:.3g} (s.e. {step.error:.3g}): {'kept' if step.kept else 'rejected'}"
        yield f"round {step.number}: {history.measure} {step.loss:.6g}{gain}"
    yield f"stopped: {history.reason}"


def model_notes(model: Model) -> Iterator[str]:
    """Yield lines for --verbose on a model and the columns it reads."""
    yield from repr(model.info()).splitlines()
    yield from _feature_notes(model.schema)


def _feature_notes(schema: Schema) -> Iterator[str]:
    for feature in schema.features:
        levels = f", {len(feature.levels):,} levels" if feature.kind == "categorical" else ""
        yield f"column {shorten(feature.name)}: {feature.kind}{levels}"
