"""Files or a query into a Table, by the words of the command line: what audit and fit share."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.cli.names import Columns, split_names
from trueup.data.columns import open_mapping
from trueup.data.frame import read
from trueup.data.scan import scan
from trueup.data.sql import column_names, quote, read_files
from trueup.errors import ArgumentError, DataError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trueup._types import FloatArray
    from trueup.data.scan import Scan
    from trueup.data.table import Table


def need_rows(arguments: argparse.Namespace) -> None:
    """Refuse a command that names neither a file nor a query."""
    if not arguments.files and arguments.sql is None:
        raise ArgumentError("no FILE to read was named", hint="name files, or pass a query with --sql")


def find_columns(arguments: argparse.Namespace) -> Columns:
    """Name the columns that are there."""
    return Columns(column_names(arguments.files or None, arguments.sql))


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows as they were read; a Table is made of them for each prediction that is asked for."""

    data: dict[str, Any]
    given: dict[str, Any]
    features: list[str] | None

    def table(self, prediction: list[str]) -> Table:
        """Check the rows, with these columns as the prediction."""
        return read(self.data, prediction=prediction, features=self.features, **self.given)


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
    columns = find_columns(arguments)
    prediction = columns.several(arguments.prediction, "prediction")
    check_positive(arguments, prediction)
    return read_rows(arguments, columns, prediction, features, role).table(prediction)


def read_rows(
    arguments: argparse.Namespace, columns: Columns, predictions: list[str], features: Sequence[str] | None, role: str
) -> Rows:
    """Read the rows; none of the ``predictions``, also of those to compare with, forms segments unless it is named."""
    outcome = columns.one(arguments.outcome, "outcome")
    weight = None if arguments.weight is None else columns.one(arguments.weight, "weight")
    categorical = columns.several(arguments.categorical or [], "categorical")
    by = None if features is None else columns.several(features, role)
    roles = [outcome, *predictions, *([weight] if weight else [])]
    needed = None if by is None else list(dict.fromkeys([*roles, *by]))
    if needed is not None:
        categorical = [name for name in categorical if name in needed]
    data: dict[str, Any] = read_files(
        arguments.files or None, sql=arguments.sql, columns=needed, text=categorical, threads=arguments.threads
    )
    if arguments.positive is not None:
        data = {**data, outcome: count_positive(data[outcome], arguments.positive, outcome)}
    if by is None and getattr(arguments, "against", None):
        by = [name for name in data if name not in roles]
    given = {
        "outcome": outcome, "weight": weight, "task": arguments.task, "categorical": categorical,
        "unlabelled": arguments.unlabelled,
        "classes": None if arguments.classes is None else split_names(arguments.classes),
    }  # fmt: skip
    return Rows(data, given, by)


class Pieces(NamedTuple):
    """Files that need not fit in memory, and the roles of their columns but for the prediction."""

    scan: Scan
    roles: dict[str, Any]

    @staticmethod
    def score(names: list[str]) -> Any:
        """Write the columns of a prediction as an audit takes them."""
        return names[0] if len(names) == 1 else names


def name_scan(
    arguments: argparse.Namespace, columns: Columns, predictions: list[str], features: Sequence[str] | None, role: str
) -> Pieces:
    """Name the rows to be read in pieces, by the words of the command line."""
    outcome = columns.one(arguments.outcome, "outcome")
    weight = None if arguments.weight is None else columns.one(arguments.weight, "weight")
    by = None if features is None else columns.several(features, role)
    taken = {outcome, weight, *predictions}
    by = [name for name in columns.known if name not in taken] if by is None else by
    categorical = [name for name in columns.several(arguments.categorical or [], "categorical") if name in by]
    sql = arguments.sql if arguments.positive is None else _as_positive(arguments, outcome)
    given = scan(
        arguments.files or None, sql=sql, memory=arguments.memory, spill=arguments.spill, threads=arguments.threads
    )
    classes = None if arguments.classes is None else split_names(arguments.classes)
    roles = {
        "outcome": outcome, "weight": weight, "by": by, "categorical": categorical, "task": arguments.task,
        "unlabelled": arguments.unlabelled, "classes": classes,
    }  # fmt: skip
    return Pieces(given, roles)


def _as_positive(arguments: argparse.Namespace, outcome: str) -> str:
    """Write a query that counts one value of the outcome as 1, every other as 0, and leaves missing ones so."""
    name, value = quote(outcome, '"'), quote(arguments.positive)
    inner = "data" if arguments.sql is None else f"(\n{arguments.sql.rstrip().rstrip(';')}\n)"
    text, plain = f"CAST({name} AS VARCHAR)", f"NOT regexp_matches(typeof({name}), '^(VARCHAR|ENUM)')"
    near = f"coalesce(TRY_CAST({text} AS DOUBLE) = TRY_CAST({value} AS DOUBLE), false) OR {text} = lower({value})"
    same = f"{text} = {value} OR ({plain} AND ({near}))"  # 1 is 1.0, and true True, unless they are texts
    known = f"{name} IS NOT NULL AND NOT ({plain} AND {text} = 'nan')"
    return f"SELECT * REPLACE (CASE WHEN {known} THEN CAST({same} AS INTEGER) END AS {name}) FROM {inner}"  # noqa: S608


def check_positive(arguments: argparse.Namespace, prediction: Sequence[str]) -> None:
    """Refuse a positive outcome where outcomes are neither positive nor negative."""
    if arguments.positive is None:
        return
    if arguments.task == "regression":
        raise ArgumentError("--positive and --task regression exclude each other", hint="amounts have no positive value")
    if len(prediction) > 1:
        raise ArgumentError(
            "--positive goes with one prediction column", hint="for several classes name their outcomes with --classes"
        )


def count_positive(column: Any, value: str, name: str) -> FloatArray:
    """Write an outcome as 1 where it has a value, 0 where it has another, and NaN where it is missing.

    Examples
    --------
    >>> count_positive(np.array([2.0, 1.0, np.nan, 2.0]), "2", "y")
    array([ 1.,  0., nan,  1.])
    """
    raw = open_mapping({name: column}).fetch(name)
    coded = raw.categories()
    wanted = [value, value.lower()] if raw.kind == "flag" else [value]
    place = next((coded.levels.index(one) for one in wanted if one in coded.levels), None)
    if place is None:
        near = difflib.get_close_matches(value, coded.levels, n=1, cutoff=0.5)
        listed = ", ".join(map(repr, coded.levels[:6])) + (", ..." if len(coded.levels) > 6 else "")
        raise DataError(
            f"no row has the outcome {value!r} in column {name!r}",
            hint=f"did you mean {near[0]!r}?" if near else f"its values are {listed or 'all missing'}",
        )
    found: FloatArray = np.where(coded.codes < 0, np.nan, coded.codes == place)
    return found
