"""`trueup fit --validation`: rows of their own that judge a fix."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.cli.methods import METHODS, parameters_of
from trueup.cli.names import Columns
from trueup.cli.predict import texts_of
from trueup.cli.reading import count_positive
from trueup.data.paths import find_files
from trueup.data.sql import column_names, read_files
from trueup.errors import ArgumentError, DataError, TrainingRowsWarning, TrueupError

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from trueup.data.table import Table

DISTINCT = 0.9  # the share of scores that must differ for equal ones to say that rows are the same
KNOWN = 0.5


def check_validation(arguments: argparse.Namespace) -> list[Path]:
    """Find the files of the rows that judge; refuse before the work what cannot judge."""
    if arguments.validation is None:
        return []
    if "stopping" not in parameters_of(METHODS[arguments.method]):
        takers = [name for name, kind in METHODS.items() if "stopping" in parameters_of(kind)]
        raise ArgumentError(
            f"--validation is not for {arguments.method}, which judges by rows of its own choice",
            hint=f"it is for {', '.join(takers)}",
        )
    if arguments.held_out is not None:
        raise ArgumentError(
            "--held-out and --validation exclude each other: the rows that judge are in a file already",
            hint="score that file with trueup predict: its rows have taught the fix nothing but when to stop",
        )
    paths = find_files(arguments.validation).paths
    fitted = find_files(arguments.files).paths if arguments.files else []
    for path in paths:
        if any(path.samefile(other) for other in fitted):
            raise ArgumentError(
                f"{path} is fitted on, and cannot judge the fit",
                hint="name other rows, or leave --validation out: rows are then held out",
            )
    return paths


def read_validation(arguments: argparse.Namespace, table: Table) -> Any:
    """Read the rows that judge, with the columns of those that are fitted; None where none are named."""
    if arguments.validation is None:
        return None
    from trueup.calibrators.stopping import Validation

    schema = table.schema
    try:
        columns = Columns(column_names(arguments.validation))
        names = [columns.one(name, "prediction") for name in schema.prediction]
        names += [columns.one(feature.name, "feature") for feature in schema.features]
        outcome = columns.one(str(schema.outcome), "outcome")
        weight = None if schema.weight is None else columns.one(schema.weight, "weight")
        needed = list(dict.fromkeys([*names, outcome, *([weight] if weight else [])]))
        data: dict[str, Any] = read_files(
            arguments.validation, columns=needed, text=texts_of(schema), threads=arguments.threads
        )
        if arguments.positive is not None:
            data = {**data, outcome: count_positive(data[outcome], arguments.positive, outcome)}
    except TrueupError as error:
        raise type(error)(f"--validation: {error.message}", hint=error.hint) from error
    _check_apart(table, data[schema.prediction[0]])
    return Validation(data, outcome, weight)


def _check_apart(table: Table, scores: Any) -> None:
    """Refuse rows that are those of the fit under another name, by their scores; warn where most of them are.

    Scores that many rows share, rounded ones say, tell nothing.
    """
    own = np.unique(table.prediction.reshape(len(table), -1)[:, 0])
    if len(own) < DISTINCT * len(table) or np.ma.getdata(scores).dtype.kind not in "fiu":
        return
    known = np.isin(np.ma.getdata(scores).astype(np.float64), own)
    hint = "rows that were fitted judge every fit to be good: name rows that it has not seen"
    if known.all():
        raise DataError("--validation: every row has the score of a row that is fitted: they are the same rows", hint=hint)
    if known.mean() >= KNOWN:
        warnings.warn(
            f"--validation: {int(known.sum()):,} of {len(known):,} rows have the score of a row that is fitted; {hint}",
            TrainingRowsWarning, stacklevel=2,
        )  # fmt: skip
