"""Files or a query into a Table, by the words of the command line: what audit and fit share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.cli.names import Columns, split_names
from trueup.data.files import column_names, read_files
from trueup.data.intake import read
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trueup.data.table import Table

__all__ = ["need_rows", "read_table"]


def need_rows(arguments: argparse.Namespace) -> None:
    """Refuse a command that names neither a file nor a query."""
    if not arguments.files and arguments.sql is None:
        raise ArgumentError("no FILE to read was named", hint="name files, or pass a query with --sql")


def read_table(arguments: argparse.Namespace, features: Sequence[str] | None, role: str) -> Table:
    """Read the columns that are needed, and no others.

    Parameters
    ----------
    arguments : Namespace
    features : sequence of str, optional
        As they were written: lists with commas. All columns without a role by default.
    role : str
        What they are called in messages.
    """
    paths = arguments.files or None
    columns = Columns(column_names(paths, arguments.sql))
    outcome = columns.one(arguments.outcome, "outcome")
    prediction = columns.several(arguments.prediction, "prediction")
    weight = None if arguments.weight is None else columns.one(arguments.weight, "weight")
    categorical = columns.several(arguments.categorical or [], "categorical")
    by = None if features is None else columns.several(features, role)
    needed = None if by is None else list(dict.fromkeys([outcome, *prediction, *([weight] if weight else []), *by]))
    if needed is not None:
        categorical = [name for name in categorical if name in needed]
    data = read_files(paths, sql=arguments.sql, columns=needed, text=categorical, threads=arguments.threads)
    return read(
        data, outcome=outcome, prediction=prediction, weight=weight, features=by, task=arguments.task,
        categorical=categorical, unlabelled=arguments.unlabelled,
        classes=None if arguments.classes is None else split_names(arguments.classes),
    )  # fmt: skip
