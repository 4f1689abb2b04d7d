"""`trueup explain`: describe the corrections of a model, or of one row."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.patches.map import PatchMap
from trueup.calibrators.row_explanation import LARGEST
from trueup.cli import console, io, output
from trueup.cli.next_steps import predict_command
from trueup.errors import ArgumentError, DataError
from trueup.modelfile import load

if TYPE_CHECKING:
    import argparse

    from trueup.calibrators.model import Model
    from trueup.calibrators.row_explanation import RowExplanation
    from trueup.cli.output import TextTable

TOP = 20  # table rows
ROW_HINT = """write it as --row '{"p": 0.2, "country": "BR"}'"""


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    io.check_outputs([(arguments.json, "model.json")], [arguments.model])
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        progress.start("reading")
        model = load(arguments.model)
        progress.note(*output.model_notes(model))
    after = ["", "next:", f"  {predict_command(arguments.model)}"]
    top = TOP if arguments.top is None else arguments.top
    if arguments.row is None:
        if arguments.details:
            raise ArgumentError("--details are of one row, and there is no --row", hint=ROW_HINT)
        data, page = output.model_data(model), [*_model_page(model, top), *after]
        line = model.history.reason
    else:
        given = _parse_row(arguments.row)
        row = _convert_row(given, model)
        explanation: Any = model.explain(row, details=arguments.details)
        count = arguments.top or (TOP if arguments.details else LARGEST)
        data, page = {"row": given, **explanation.to_dict()}, _row_page(model, row, explanation, count)
        line = str(page[0])
        if explanation.effects:
            more = [] if arguments.details else ["", "every condition that the row meets: --details"]
            page += [*more, *after]
    if arguments.json is None:
        output.show_page([line] if arguments.quiet else page)
        return 0
    io.write_json(arguments.json, data)
    if arguments.json != io.STANDARD_OUTPUT:
        console.say(line if arguments.quiet else f"wrote {arguments.json}")
    return 0


def _model_page(model: Model, top: int) -> list[str | TextTable]:
    explanation, history = model.explanation, model.history
    parts: list[str | TextTable] = [*repr(model.info()).splitlines(), ""]
    count = max(len(explanation.corrections), len(explanation.excluded))
    parts += [explanation.note, ""] if explanation.note else []
    if explanation.corrections:
        parts += [explanation.headline(), explanation.coverage()]
    elif model.map.changes:
        parts.append(explanation.headline())
    else:
        parts.append("no corrections: the model leaves every score unchanged")
    parts += output.corrections_tables(explanation, top)
    parts += [f"{count - top} more: --top {count}"] if count > top else []
    if isinstance(model.map, PatchMap) and model.map.patches:
        patches = model.map.patch_list
        parts += ["", "patches, in order; each applies to the scores left by those above it"]
        parts.append(output.patches_table(patches, top))
        parts += [f"{len(patches) - top} more: --top {len(patches)}"] if len(patches) > top else []
    if not history.is_evaluated:
        return [*parts, "", f"{output.describe_evaluation(history)}; {history.reason}"]
    parts += ["", f"{output.describe_evaluation(history)}, {history.measure}; {history.reason}"]
    parts.append(output.history_table(history, top))
    hidden = len(history.rounds) - max(top, output.MIN_ROUNDS)
    if hidden > 0:
        parts.append(f"{hidden} more rounds between these: --top {len(history.rounds)}")
    return parts


def _row_page(model: Model, row: dict[str, Any], explanation: RowExplanation, top: int) -> list[str | TextTable]:
    parts: list[str | TextTable] = [explanation.headline()]
    if not explanation.effects:
        return [*parts, "the model leaves this score unchanged"]
    if explanation.details:
        parts += [f"contributions to the change of the {explanation.scale}:", ""]
        parts.append(output.contributions_table(explanation, top))
    else:
        headings, rows = explanation.table(top)
        parts += ["", output.TextTable(headings, rows, name_width=output.CONTRIBUTION_WIDTH)]
    known = {*model.schema.prediction, *(feature.name for feature in model.schema.features)}
    missing = [feature.name for feature in model.schema.features if row.get(feature.name) is None]
    unused = [name for name in row if name not in known]
    parts += [""] if missing or unused else []
    parts += [f"not given, treated as missing: {', '.join(missing)}"] if missing else []
    parts += [f"not used by the model: {', '.join(unused)}"] if unused else []
    return parts


def _parse_row(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text, parse_constant=int)  # raises: NaN and Infinity are not JSON
    except (ValueError, RecursionError):
        raise ArgumentError(f"--row is not JSON: {text[:80]}", hint=ROW_HINT) from None
    if not isinstance(row, dict):
        raise ArgumentError(f"--row must be one JSON object; got {text[:80]}", hint=ROW_HINT)
    return row


def _convert_row(row: dict[str, Any], model: Model) -> dict[str, Any]:
    """Return ``row`` with texts converted to numbers or dates where the columns of the model have that type."""
    for name in model.schema.prediction:
        if row.get(name) is None:
            hint = ROW_HINT.replace('"p"', f'"{name}"')
            raise ArgumentError(f"--row has no value for the prediction {name!r}", hint=hint)
    kinds = dict.fromkeys(model.schema.prediction, "numeric")
    kinds |= {feature.name: feature.kind for feature in model.schema.features}
    converted = dict(row)
    for name, kind in kinds.items():
        value = row.get(name)
        if isinstance(value, (list, dict)):
            raise DataError(f"--row has several values for {name!r}", hint="give one: a text, a number or null")
        if not isinstance(value, str) or kind == "categorical":
            continue
        try:
            converted[name] = float(value) if kind == "numeric" else np.datetime64(value)
        except ValueError:
            what, hint = ("a number", "write it as 0.5") if kind == "numeric" else ("a date", "write it as 2024-01-31")
            raise DataError(f"--row: {name!r} must be {what}; got {value!r}", hint=hint) from None
    return converted
