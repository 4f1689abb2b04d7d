"""`trueup predict`: write files with corrected scores."""

from __future__ import annotations

import os
import shlex
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.cli import console, io
from trueup.cli.next_steps import after_predict
from trueup.cli.output import model_notes
from trueup.data.chunks import ChunkSettings
from trueup.data.frame import read_like
from trueup.data.scan import parse_memory
from trueup.data.table import Schema, sort_levels
from trueup.data.values import RowPosition, format_rows
from trueup.errors import ArgumentError, FileError
from trueup.modelfile import load

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from trueup._types import FloatArray
    from trueup.calibrators.model import Model

EXAMPLE = "scored.parquet"
MODEL_EXTENSION = ".trueup"
CHUNK_ROWS = 1_000_000
MAX_UNSEEN_LEVELS = 100_000  # counted per column
BOOLEAN_LEVELS = {"false", "true"}


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    models = [file for file in arguments.files if Path(file).suffix == MODEL_EXTENSION]
    if models and Path(arguments.model).suffix != MODEL_EXTENSION:
        files = [arguments.model, *(file for file in arguments.files if file != models[0])]
        command = shlex.join(["trueup", "predict", models[0], *files, "-o", arguments.output])
        raise ArgumentError(f"{models[0]} is named among the rows; the model comes first", hint=f"write {command}")
    io.row_format(arguments, arguments.output)  # raises if there is none
    io.check_outputs([(arguments.output, EXAMPLE)], [arguments.model, *io.source_files(arguments)])
    unseen = _UnseenLevels()
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        progress.start("reading")
        model = load(arguments.model)
        progress.note(*model_notes(model))
        names = _output_names(model, arguments.name)
        spill = None if arguments.spill is None else Path(arguments.spill)
        if spill is not None and not (spill.is_dir() and os.access(spill, os.W_OK | os.X_OK)):
            reason = "no permission to write there" if spill.is_dir() else "no such directory"
            raise FileError(f"cannot spill to {spill}: {reason}", hint="create it, or name another directory")
        memory = None if arguments.memory is None else parse_memory(arguments.memory)
        levels = {feature.name: feature.levels for feature in model.schema.features if feature.kind == "categorical"}
        first, invalid = 0, 0
        lenient = arguments.on_error == "nan"

        def show_progress(done: int, total: int) -> None:
            progress.step(done, total)
            if done == total:
                progress.start("writing")

        def make(columns: dict[str, Any]) -> dict[str, FloatArray]:
            nonlocal first, invalid
            if not first:
                progress.start("scoring")
            table = read_like(columns, model.schema, RowPosition(first), lenient=lenient)
            predict = model.predict_valid_rows if lenient else model.predict_table
            scores = predict(table, threads=arguments.threads).reshape(len(table), len(names))
            first += len(scores)
            invalid += int(np.isnan(scores[:, 0]).sum()) if lenient else 0
            return dict(zip(names, scores.T, strict=True))

        written = io.write_rows(
            arguments, arguments.output, make, example=EXAMPLE, roles=model_columns(model),
            text=text_columns(model.schema), only=arguments.only,
            chunks=ChunkSettings(CHUNK_ROWS, memory, spill, levels, unseen.add, show_progress, lenient),
        )  # fmt: skip
    if invalid:
        have, their = ("has", "its") if invalid == 1 else ("have", "their")
        console.complain(
            f"note: {invalid:,} of {format_rows(first)} {have} no valid score: {their} corrected score is missing"
        )
    for note in unseen.notes():
        console.complain(f"note: {note}")
    if arguments.quiet or written is None:  # a reader such as head has closed standard output
        return 0
    content = f"{format_rows(written)} with {', '.join(names)}"
    if arguments.output == io.STANDARD_OUTPUT:
        console.complain(f"wrote {content} to standard output")
    else:
        console.say(f"wrote {arguments.output}: {content} ({io.file_size(arguments.output)})")
        for line in after_predict(arguments, model, names):
            console.say(line)
    return 0


def _output_names(model: Model, names: list[str] | None) -> list[str]:
    """Return the names of the corrected scores: ``names``, given by --as, or those of the model."""
    if names is None:
        return list(model.schema.score_names)
    base = model.schema.prediction or ("prediction",)  # a model may predict from the features alone
    split = names if len(base) == 1 and len(names) == 1 else io.split_names(names)
    if len(split) != len(base) or len({name.lower() for name in split}) < len(split) or not all(split):
        expected = "one name" if len(base) == 1 else f"{len(base)} names, one each for {', '.join(base)}"
        raise ArgumentError(f"--as needs {expected}; got {', '.join(names)!r}", hint="separate names by commas")
    return split


def model_columns(model: Model) -> dict[str, list[str]]:
    """Return the columns that a model reads, by role."""
    schema = model.schema
    return {"prediction": list(schema.prediction), "feature": [feature.name for feature in schema.features]}


def text_columns(schema: Schema) -> list[str]:
    """Return the categorical columns to read as text, so that 01234 stays as it is: all but those with boolean levels."""
    categorical = (feature for feature in schema.features if feature.kind == "categorical")
    return [feature.name for feature in categorical if not set(feature.levels) <= BOOLEAN_LEVELS]


class _UnseenLevels:
    """Counts rows with levels that the model has not seen, over all chunks."""

    def __init__(self) -> None:
        self._rows: Counter[str] = Counter()
        self._levels: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, name: str, rows: int, levels: list[str]) -> None:
        """Add ``rows`` with unseen ``levels`` of the column ``name``; at most MAX_UNSEEN_LEVELS levels are kept."""
        self._rows[name] += rows
        self._levels[name].update(levels[: MAX_UNSEEN_LEVELS - len(self._levels[name])])

    def notes(self) -> Iterator[str]:
        """Yield one line per column with the number of rows and an example of an unseen level."""
        for name, rows in self._rows.items():
            first, *others = sort_levels(self._levels[name])
            limit = "at least " if len(others) + 1 >= MAX_UNSEEN_LEVELS else ""
            more = f" and {limit}{len(others):,} more" if others else ""
            which = f"{format_rows(rows)} {'has' if rows == 1 else 'have'} a level that the model has not seen"
            yield f"{name}: {which} ({first!r}{more}), treated as missing"
