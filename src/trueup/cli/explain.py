"""`trueup explain`: what a model is and what it corrects, or why it moves one prediction."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trueup.calibrators.maps.patches import Patches
from trueup.cli import console, reasons
from trueup.cli.following import predict_command
from trueup.cli.output import check_output
from trueup.cli.terminal import show_page
from trueup.cli.told import LEAST_ROUNDS, correction_grid, history_grid, json_of, model_data, part_grid, patch_grid
from trueup.errors import ArgumentError, DataError
from trueup.modelfile import load
from trueup.storage import write_text

if TYPE_CHECKING:
    import argparse

    from trueup.calibrators.model import Model
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.calibrators.stopping import History
    from trueup.cli.terminal import Grid
    from trueup.data.schema import Feature

FORM = """write it as --row '{"p": 0.2, "country": "BR"}'"""


def run(arguments: argparse.Namespace) -> int:
    """Explain the model, or one row; give the exit code."""
    if arguments.json not in (None, "-"):
        check_output(arguments.json, [arguments.model], example="model.json")
    with console.Watch(quiet=arguments.quiet, verbose=arguments.verbose) as watch:
        watch.say("reading")
        model = load(arguments.model)
        watch.note(*reasons.of_model(model))
    if arguments.row is None:
        found, page = model_data(model), [*_model_page(model, arguments.top), *_next(arguments.model)]
        line = model.history.reason
    else:
        row = _typed(_parse(arguments.row), model)
        told: Any = model.explain(row)
        found, page = {"row": _parse(arguments.row), **told.to_dict()}, _row_page(model, row, told, arguments.top)
        line, page = str(page[0]), [*page, *(_next(arguments.model) if told.parts else [])]
    if arguments.json is None:
        show_page([line] if arguments.quiet else page)
    elif arguments.json == "-":
        console.emit(lambda stream: stream.writelines(json_of(found)), data=True)
    else:
        write_text(arguments.json, json_of(found))
        console.say(line if arguments.quiet else f"wrote {arguments.json}")
    return 0


def _next(model: str) -> list[str]:
    return ["", "next:", f"  {predict_command(model)}"]


def _model_page(model: Model, top: int) -> list[str | Grid]:
    found, history = model.explanation, model.history
    parts: list[str | Grid] = [*repr(model.info()).splitlines(), ""]
    if found.corrections:
        parts += [
            f"corrections, largest first: scores moved by {found.moved:.2g} on average;"
            f" all {len(found.corrections)} account for {100 * found.accounted:.0f}% of the squared changes",
            correction_grid(found, top),
        ]
        if len(found.corrections) > top:
            parts.append(f"{len(found.corrections) - top} more: --top {len(found.corrections)}")
    else:
        parts.append("nothing was corrected: the model leaves every score as it is")
    if isinstance(model.map, Patches) and model.map.patches:
        listed = model.map.listed
        parts += ["", "patches, in order; each reads the scores that those above it left", patch_grid(listed, top)]
        parts += [f"{len(listed) - top} more: --top {len(listed)}"] if len(listed) > top else []
    return [
        *parts,
        "",
        f"{history.measure} by {history.evaluated_on}; {history.reason}",
        history_grid(history, top),
        *_left(history, top),
    ]


def _left(history: History, top: int) -> list[str]:
    """Say how many rounds the table leaves out of its middle."""
    left = len(history.rounds) - max(top, LEAST_ROUNDS)
    return [f"{left} more rounds between these: --top {len(history.rounds)}"] if left > 0 else []


def _row_page(model: Model, row: dict[str, Any], told: RowExplanation, top: int) -> list[str | Grid]:
    scale = told.scale
    if isinstance(told.before, tuple):
        assert isinstance(told.after, tuple)
        moves = zip(model.schema.prediction, told.before, told.after, strict=True)
        parts: list[str | Grid] = [f"{name}: {before:.6g} -> {after:.6g}" for name, before, after in moves]
        parts.append(f"the parts of the change of each {scale}, largest first:")
    else:
        parts = [
            f"{told.before:.6g} -> {told.after:.6g}",
            f"the {scale} changed by {told.change:+.4f}, in these parts:",
        ]
    if not told.parts:
        return [parts[0], "the model leaves every score as it is"]
    known = {*model.schema.prediction, *(feature.name for feature in model.schema.features)}
    absent = [feature.name for feature in model.schema.features if row.get(feature.name) is None]
    idle = [name for name in row if name not in known]
    parts += ["", part_grid(told, top)]
    parts += [""] if absent or idle else []
    parts += [f"not given, taken as missing: {', '.join(absent)}"] if absent else []
    parts += [f"not used by the model: {', '.join(idle)}"] if idle else []
    return parts


def _no_constant(text: str) -> None:
    raise ValueError(text)


def _parse(text: str) -> dict[str, Any]:
    try:
        row = json.loads(text, parse_constant=_no_constant)
    except (ValueError, RecursionError):
        raise ArgumentError(f"--row is not JSON: {text[:80]}", hint=FORM) from None
    if not isinstance(row, dict):
        raise ArgumentError(f"--row must be one JSON object; got {text[:80]}", hint=FORM)
    return row


def _typed(row: dict[str, Any], model: Model) -> dict[str, Any]:
    """Give every value the type that the model knows the column by: numbers and dates may be written as texts."""
    schema = model.schema
    for name in schema.prediction:
        if row.get(name) is None:
            raise ArgumentError(f"--row has no value for the prediction {name!r}", hint=FORM.replace('"p"', f'"{name}"'))
    numbers = {name: _number(row[name]) for name in schema.prediction}
    return {**row, **numbers, **{one.name: _value(row[one.name], one) for one in schema.features if one.name in row}}


def _value(value: Any, feature: Feature) -> Any:
    if isinstance(value, (list, dict)):
        raise DataError(f"--row has several values for {feature.name!r}", hint="give one: a text, a number or null")
    if feature.kind == "numeric":
        return _number(value)
    if feature.kind == "date" and isinstance(value, str):
        import numpy as np

        try:
            return np.datetime64(value)
        except ValueError:
            raise DataError(
                f"--row has {value!r} for {feature.name!r}, which is a date", hint="write it as 2024-01-31"
            ) from None
    return value


def _number(value: Any) -> Any:
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value  # refused where it is read, with the column
    return value
