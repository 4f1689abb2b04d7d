"""`trueup predict`: a model and files to the same files with corrected scores."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup.cli import console, reasons
from trueup.cli.following import name_options
from trueup.cli.names import split_names
from trueup.cli.output import check_output, file_size, files_in_query, whole_file
from trueup.cli.reading import need_rows
from trueup.data.checks import RowPosition
from trueup.data.chunks import ChunkSettings
from trueup.data.export import add_columns, format_to_write
from trueup.data.frame import read_like
from trueup.data.paths import find_files
from trueup.data.scan import parse_memory
from trueup.data.schema import sort_levels
from trueup.errors import ArgumentError, FileError
from trueup.modelfile import load

if TYPE_CHECKING:
    import argparse

    from trueup._types import FloatArray
    from trueup.calibrators.model import Model
    from trueup.data.schema import Schema

EXAMPLE = "scored.parquet"
MODEL_ENDING = ".trueup"
AT_ONCE = 1_000_000  # rows
MOST_VALUES = 100_000  # distinct values that the model has not seen, and that are counted one by one
FLAGS = {"false", "true"}


def run(arguments: argparse.Namespace) -> int:
    """Score, write, say what was written; give the exit code."""
    need_rows(arguments)
    _not_swapped(arguments)
    written = format_to_write(arguments.output)
    paths = [*(find_files(arguments.files).paths if arguments.files else []), *files_in_query(arguments.sql)]
    check_output(arguments.output, [arguments.model, *paths], example=EXAMPLE)
    strange = _Strange()
    with console.Watch(quiet=arguments.quiet, verbose=arguments.verbose) as watch:
        watch.say("reading")
        model = load(arguments.model)
        watch.note(*reasons.of_model(model))
        names = _names(model, arguments.name)
        portions = _portions(model, arguments, strange, watch)
        first = 0

        def make(columns: dict[str, Any]) -> dict[str, FloatArray]:
            nonlocal first
            if not first:
                watch.say("scoring")
            table = read_like(columns, model.schema, RowPosition(first))
            found = model.predict_table(table, threads=arguments.threads)
            first += len(found)
            return dict(zip(names, found.reshape(len(found), len(names)).T, strict=True))

        with whole_file(arguments.output, example=EXAMPLE) as place:
            rows = add_columns(
                arguments.files or None, place, make, sql=arguments.sql, roles=roles_of(model), text=texts_of(model.schema),
                written=written, only=arguments.only, threads=arguments.threads, portions=portions,
            )  # fmt: skip
    notes = strange.notes()
    for note in notes:
        console.complain(f"note: {note}")
    if not arguments.quiet:
        listed = ", ".join(names)
        console.say(f"wrote {arguments.output}: {rows:,} rows with {listed} ({file_size(arguments.output)})")
        for line in _next(model, names, arguments):
            console.say(line)
    return 0


def _not_swapped(arguments: argparse.Namespace) -> None:
    """Refuse rows in place of the model, where a model is among the rows."""
    swapped = [one for one in arguments.files if Path(one).suffix == MODEL_ENDING]
    if swapped and Path(arguments.model).suffix != MODEL_ENDING:
        rows = [arguments.model, *(one for one in arguments.files if one != swapped[0])]
        words = shlex.join(["trueup", "predict", swapped[0], *rows, "-o", arguments.output])
        raise ArgumentError(f"{swapped[0]} is named among the rows; the model comes first", hint=f"write {words}")


def _portions(model: Model, arguments: argparse.Namespace, strange: _Strange, watch: console.Watch) -> ChunkSettings:
    """Settle how many rows are held at once: so many that there is progress to tell of; no score depends on the others."""
    spill = None if arguments.spill is None else Path(arguments.spill)
    if spill is not None and not (spill.is_dir() and os.access(spill, os.W_OK | os.X_OK)):
        what = "no permission to write in" if spill.is_dir() else "there is no folder"
        raise FileError(f"cannot spill to {spill}: {what} {spill}", hint="make it, or name another folder")
    memory = None if arguments.memory is None else parse_memory(arguments.memory)
    known = {feature.name: feature.levels for feature in model.schema.features if feature.kind == "categorical"}

    def progress(done: int, total: int) -> None:
        watch.step(done, total)
        if done == total:
            watch.say("writing")

    return ChunkSettings(AT_ONCE, memory, spill, known, strange.add, progress)


def _next(model: Model, names: list[str], arguments: argparse.Namespace) -> list[str]:
    """Name the command that checks the scores, once it is known what happened."""
    schema = model.schema
    if arguments.only or not schema.prediction or not schema.outcome:
        return []
    words = ["trueup", "audit", arguments.output, "--outcome", schema.outcome, *name_options("--prediction", names)]
    words += [*name_options("--against", schema.prediction), "--fix", arguments.model]
    words += ["--weight", schema.weight] if schema.weight else []
    words += ["--task", "regression"] if schema.task == "regression" else []
    words += name_options("--classes", schema.classes) + name_options("--by", [one.name for one in schema.features])
    return ["next, once outcomes are known:", f"  {shlex.join(words)}"]


def _names(model: Model, given: list[str] | None) -> list[str]:
    """Name the new columns."""
    base = model.schema.prediction or ("prediction",)  # a model that predicts from the features alone
    if given is None:
        return list(model.schema.scored)
    names = given if len(base) == 1 and len(given) == 1 else split_names(given)
    if len(names) != len(base) or len({name.lower() for name in names}) < len(names) or not all(names):
        what = "one name" if len(base) == 1 else f"{len(base)} names, one for each of {', '.join(base)}"
        raise ArgumentError(f"--as needs {what}; got {', '.join(given)!r}", hint="separate names by commas")
    return names


def roles_of(model: Model) -> dict[str, list[str]]:
    """Name the columns that a model reads, the prediction first."""
    schema = model.schema
    return {"prediction": list(schema.prediction), "feature": [feature.name for feature in schema.features]}


def texts_of(schema: Schema) -> list[str]:
    """Name the columns to be read as text, so that 01234 stays as it is; true and True are one, however."""
    found = (feature for feature in schema.features if feature.kind == "categorical")
    return [feature.name for feature in found if not set(feature.levels) <= FLAGS]


class _Strange:
    """Values that the model has not seen, counted portion by portion."""

    def __init__(self) -> None:
        self._rows: dict[str, int] = {}
        self._values: dict[str, set[str]] = {}

    def add(self, name: str, rows: int, values: list[str]) -> None:
        """Count rows of a column; of very many values only the first are kept."""
        self._rows[name] = self._rows.get(name, 0) + rows
        kept = self._values.setdefault(name, set())
        kept.update(values[: max(MOST_VALUES - len(kept), 0)])

    def notes(self) -> list[str]:
        """Tell how many rows there are, and give an example."""
        notes = []
        for name, rows in self._rows.items():
            values = sort_levels(self._values[name])
            more = f"at least {MOST_VALUES - 1:,}" if len(values) >= MOST_VALUES else f"{len(values) - 1:,}"
            example = f"{values[0]!r}" + (f" and {more} more" if len(values) > 1 else "")
            notes.append(f"{name}: {rows:,} rows have a value the model has not seen ({example}), taken as missing")
        return notes
