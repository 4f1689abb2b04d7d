"""`trueup explain`: describe the corrections of a model, or of one row."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.patches.map import PatchMap
from trueup.cli import console, io, output
from trueup.cli.next_steps import predict_command
from trueup.errors import ArgumentError, DataError
from trueup.modelfile import load

if TYPE_CHECKING:
    import argparse

    from trueup.calibrators.explain import RowExplanation
    from trueup.calibrators.model import Model
    from trueup.cli.output import TextTable

ROW_HINT = """write it as --row '{"p": 0.2, "country": "BR"}'"""


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    io.check_outputs([(arguments.json, "model.json")], [arguments.model])
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        progress.start("reading")
        model = load(arguments.model)
        progress.note(*output.model_notes(model))
    after = ["", "next:", f"  {predict_command(arguments.model)}"]
    if arguments.row is None:
        data, page = output.model_data(model), [*_model_page(model, arguments.top), *after]
        line = model.history.reason
    else:
        given = _parse_row(arguments.row)
        row = _convert_row(given, model)
        explanation: Any = model.explain(row)
        data, page = {"row": given, **explanation.to_dict()}, _row_page(model, row, explanation, arguments.top)
        line = str(page[0])
        page += after if explanation.contributions else []
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
    count = len(explanation.corrections)
    parts += [explanation.note, ""] if explanation.note else []
    if count:
        parts += [
            f"largest corrections: mean absolute change of the score {explanation.mean_change:.2g}; all {count} explain "
            f"{100 * explanation.explained_share:.0f}% of the squared changes",
            output.corrections_table(explanation, top),
        ]
        parts += [f"{count - top} more: --top {count}"] if count > top else []
    elif model.map.changes:
        parts.append(f"mean absolute change of the score {explanation.mean_change:.2g}")
    else:
        parts.append("no corrections: the model leaves every score unchanged")
    if explanation.excluded:
        reported = replace(explanation, corrections=explanation.excluded)
        parts += ["", "columns that the correction does not use", output.corrections_table(reported, top)]
        count = len(explanation.excluded)
        parts += [f"{count - top} more: --top {count}"] if count > top else []
    if isinstance(model.map, PatchMap) and model.map.patches:
        patches = model.map.patch_list
        parts += ["", "patches, in order; each applies to the scores left by those above it"]
        parts.append(output.patches_table(patches, top))
        parts += [f"{len(patches) - top} more: --top {len(patches)}"] if len(patches) > top else []
    parts += ["", f"{output.describe_evaluation(history)}, {history.measure}; {history.reason}"]
    parts.append(output.history_table(history, top))
    hidden = len(history.rounds) - max(top, output.MIN_ROUNDS)
    if hidden > 0:
        parts.append(f"{hidden} more rounds between these: --top {len(history.rounds)}")
    return parts


def _row_page(model: Model, row: dict[str, Any], explanation: RowExplanation, top: int) -> list[str | TextTable]:
    scale = explanation.scale
    if isinstance(explanation.before, tuple):
        assert isinstance(explanation.after, tuple)
        changes = zip(model.schema.prediction, explanation.before, explanation.after, strict=True)
        parts: list[str | TextTable] = [f"{name}: {before:.6g} -> {after:.6g}" for name, before, after in changes]
        parts.append(f"contributions to the change of each {scale}, largest first:")
    else:
        parts = [
            f"{explanation.before:.6g} -> {explanation.after:.6g}",
            f"the {scale} changed by {explanation.change:+.4f}; contributions:",
        ]
    if not explanation.contributions:
        return [parts[0], "the model leaves every score unchanged"]
    known = {*model.schema.prediction, *(feature.name for feature in model.schema.features)}
    missing = [feature.name for feature in model.schema.features if row.get(feature.name) is None]
    unused = [name for name in row if name not in known]
    parts += ["", output.contributions_table(explanation, top)]
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
