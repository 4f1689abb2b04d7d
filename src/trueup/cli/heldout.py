"""`trueup fit --held-out`: the rows that judged a fix, with the scores of models that have not seen them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.cli.methods import CLASSICS
from trueup.cli.names import Columns
from trueup.cli.output import check_output, whole_file
from trueup.cli.predict import roles_of, texts_of
from trueup.data.export import add_columns, format_to_write
from trueup.data.sql import column_names
from trueup.errors import ArgumentError, ColumnError, DataError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable

    from trueup._types import FloatArray
    from trueup.data.table import Table

EXAMPLE = "held.parquet"


def check_held_out(arguments: argparse.Namespace, sources: Iterable[str | Path]) -> None:
    """Refuse before the work what could not be written after it."""
    path = arguments.held_out
    if path is None:
        return
    if arguments.method in CLASSICS and not arguments.judge:
        raise ArgumentError(
            f"{arguments.method} holds no rows out: --held-out has nothing to write",
            hint="add --judge, which fits it by cross-validation, or use another --method",
        )
    format_to_write(path)
    check_output(path, sources, example=EXAMPLE)
    for other, what in ((arguments.output, "the model"), (arguments.json, "what --json writes")):
        if other not in (None, "-") and Path(other).resolve() == Path(path).resolve():
            raise ArgumentError(f"--held-out {path} would overwrite {what}", hint="name another file")
    columns = Columns(column_names(arguments.files or None, arguments.sql))
    found = columns.several(arguments.prediction, "prediction")
    if len(found) > 1 or arguments.task == "regression":
        raise ArgumentError(
            "--held-out is for one score of outcomes that are 0 or 1: they are evidence for decisions", hint="leave it out"
        )
    for name in found:
        if f"{name}_trueup".lower() in {known.lower() for known in columns.known}:
            raise ColumnError(
                f"there is a column '{name}_trueup' already: --held-out writes one of that name",
                hint="give the rows as they were before they were scored, or leave that column out with --sql",
            )


def need_held_out(recipe: Any, arguments: argparse.Namespace) -> None:
    """Refuse a fit that turned out to have held nothing out."""
    if arguments.held_out is not None and (recipe.held_out_ is None or recipe.held_out_rows_ is None):
        raise DataError(
            f"this {type(recipe).__name__} held no rows out: --held-out has nothing to write",
            hint="give more rows, or leave --held-out out",
        )


def write_held_out(recipe: Any, table: Table, arguments: argparse.Namespace) -> int:
    """Write the rows that judged as they are in the files, with the score that a fix gives which has not seen them.

    Files are read again, a query is run again: rows whose predictions are not those of the fit are refused.
    """
    rows, before = recipe.held_out_rows_, recipe.held_out_before_
    (prediction,) = table.schema.prediction

    def make(columns: dict[str, Any]) -> dict[str, FloatArray]:
        found = np.ma.getdata(columns[prediction]).astype(np.float64)
        if len(found) <= rows.max() or not np.array_equal(found[rows], before):
            raise DataError(
                "the rows are not those of the fit: --held-out reads them again",
                hint="let a query give rows in a certain order: ORDER BY; and change no file meanwhile",
            )
        corrected = np.full(len(found), np.nan)
        corrected[rows] = recipe.held_out_.p
        return {f"{prediction}_trueup": corrected}

    with whole_file(arguments.held_out, example=EXAMPLE) as place:
        return add_columns(
            arguments.files or None, place, make, sql=arguments.sql, roles=roles_of(recipe.model_),
            text=texts_of(recipe.model_.schema), written=format_to_write(arguments.held_out), some=rows,
            threads=arguments.threads,
        )  # fmt: skip
