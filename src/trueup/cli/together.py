"""Rows to decide on, and labelled ones beside them, cut into the same segments."""

from __future__ import annotations

import contextlib
import itertools
import warnings
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.cli.names import Columns, parse_bins
from trueup.cli.reading import count_positive
from trueup.data.bins import DEFAULT_BINS, calendar_unit, find_edges, fit_binner
from trueup.data.frame import read
from trueup.data.segments import bins_for, check_bins, segment_column
from trueup.data.sql import column_names, read_files
from trueup.errors import ArgumentError, ColumnError, IdentifierWarning, TrueupError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from trueup._types import AnyArray, IntArray
    from trueup.data.schema import Feature
    from trueup.data.table import Table

    Part = tuple[Sequence[str], AnyArray, AnyArray]  # names, and the code of each row and labelled row


class Cut(NamedTuple):
    """Segments by one column, or by several of them crossed: each row is in one.

    ``names`` are those that rows are of, ``codes`` the one of each row; ``theirs`` are those of the labelled rows, -1 for
    one that is of no segment that is decided on.
    """

    by: tuple[str, ...]
    names: list[str]
    codes: IntArray
    theirs: IntArray

    @property
    def labelled(self) -> dict[str, int]:
        """How many labelled rows each segment has."""
        many = np.bincount(self.theirs[self.theirs >= 0], minlength=len(self.names))
        return dict(zip(self.names, many.tolist(), strict=True))


class Rows(NamedTuple):
    """What was read; ``cuts`` are as many as there are ways to form segments."""

    prediction: str
    table: Table
    labelled: Table | None
    by: list[str]
    cuts: list[Cut]


def read_rows(arguments: argparse.Namespace) -> Rows:
    """Read the rows without outcomes and the labelled ones, and cut both alike."""
    prediction, by, table = _read(arguments, arguments.files or None, arguments.sql, None)
    labelled = None
    if arguments.labelled is not None:
        with _of_labelled_rows():
            labelled = _read(arguments, arguments.labelled, None, arguments.outcome)[2]
    bins = _bins(arguments, table)
    parts: dict[str, Part] = {}
    for feature in table.schema.features:
        own = segment_column(table, feature, bins)
        their = np.zeros(0, np.int64) if labelled is None else _cut_alike(feature, table, labelled, bins, own.labels)
        parts[feature.name] = (own.labels, own.codes, their)
    deepest = min(arguments.depth or 1, len(by))
    several = (group for many in range(1, deepest + 1) for group in itertools.combinations(by, many))
    return Rows(prediction, table, labelled, by, [_cut(group, parts) for group in several])


def _cut(by: tuple[str, ...], parts: dict[str, Part]) -> Cut:
    """Cross the segments of columns."""
    _, ours, theirs = parts[by[0]]
    found = [""], np.zeros(len(ours), np.int64), np.zeros(len(theirs), np.int64)
    for name in by:
        found = _cross(found, parts[name])
    return Cut(by, *found)


def _read(
    arguments: argparse.Namespace, paths: Sequence[str] | None, sql: str | None, outcome: str | None
) -> tuple[str, list[str], Table]:
    """Read the columns that are needed, and no others."""
    columns = Columns(column_names(paths, sql))
    found = columns.several(arguments.prediction, "prediction")
    if len(found) != 1:
        raise ArgumentError(
            f"a decision is made by one prediction; got {len(found)}: {', '.join(found[:6])}",
            hint="name the column with the probability of the outcome that costs",
        )
    by = columns.several(arguments.by or [], "segment column")
    y = None if outcome is None else columns.one(outcome, "outcome")
    weight = None if arguments.weight is None else columns.one(arguments.weight, "weight")
    needed = list(dict.fromkeys([*found, *([y] if y else []), *([weight] if weight else []), *by]))
    text = [name for name in columns.several(arguments.categorical or [], "categorical") if name in by]
    data: dict[str, Any] = read_files(paths, sql=sql, columns=needed, text=text, threads=arguments.threads)
    if y is not None and arguments.positive is not None:
        data = {**data, y: count_positive(data[y], arguments.positive, y)}
    with _in_own_words(), warnings.catch_warnings():
        warnings.simplefilter("ignore", IdentifierWarning)  # an error below
        table = read(
            data, outcome=y, prediction=found[0], weight=weight, features=by, task="binary", categorical=text,
            unlabelled=arguments.unlabelled,
        )  # fmt: skip
    for name, reason in table.left_out.items():
        raise ColumnError(f"column {name!r} forms no segments: {reason}", hint="leave it out of --by")
    return found[0], by, table


@contextlib.contextmanager
def _of_labelled_rows() -> Iterator[None]:
    """Say of an error that it is about the labelled rows."""
    try:
        yield
    except TrueupError as error:
        raise type(error)(f"labelled rows: {error.message}", hint=error.hint) from error


@contextlib.contextmanager
def _in_own_words() -> Iterator[None]:
    """Advise no task: a decision is about probabilities and what did or did not happen."""
    try:
        yield
    except TrueupError as error:
        advice = error.hint or ""
        if "task=" in advice:
            advice = f"{advice.partition(';')[0]}; " if advice.startswith("pass logits") else ""
            advice += "a decision needs probabilities, and outcomes that are 0 or 1"
        raise type(error)(error.message, hint=advice or None) from error


def _bins(arguments: argparse.Namespace, table: Table) -> Any:
    usual, single = parse_bins(arguments.bins or [])
    count = DEFAULT_BINS if usual is None else usual
    return check_bins(table.columns, {**single, ...: count})


def _cut_alike(feature: Feature, table: Table, labelled: Table, bins: Any, labels: tuple[str, ...]) -> IntArray:
    """Give labelled rows the segment of one column that they are in, as the other rows are cut; -1 for none."""
    ours, theirs = table.columns[feature.name], labelled.columns[feature.name]
    other = next(one for one in labelled.schema.features if one.name == feature.name)
    said, usual = bins_for(feature.name, bins)
    told = usual if said is None and feature.kind == "numeric" else said
    if _blank(theirs):
        found: tuple[tuple[str, ...], AnyArray] = ((f"{feature.name} is missing",), np.zeros(len(theirs), np.int64))
    elif other.kind != feature.kind and not _blank(ours):
        kinds = {"numeric": "numbers", "date": "dates", "categorical": "texts"}
        raise ColumnError(
            f"labelled rows: column {feature.name!r} holds {kinds[other.kind]}, and {kinds[feature.kind]} in the others",
            hint=f"read it as text in both, with --categorical {feature.name}, or write it alike",
        )
    elif isinstance(told, int) and feature.kind == other.kind:
        cut = fit_binner(feature, ours, told, for_new_rows=True)
        apart, _ = find_edges(ours[~np.isnan(ours)], told)
        codes = cut.codes(theirs)
        # Where values are kept apart, another value is of no segment, and not of that of its neighbour.
        found = cut.labels, codes if apart is None else np.where(np.isnan(theirs) | np.isin(theirs, apart), codes, -1)
    else:
        if feature.kind == "date" and told is None:
            bins = {feature.name: calendar_unit(ours)}  # of the other rows, whatever time these are from
        own = segment_column(labelled, other, bins if other.kind == feature.kind else DEFAULT_BINS)
        found = own.labels, own.codes
    place = {label: at for at, label in enumerate(labels)}
    return np.asarray(np.array([*(place.get(label, -1) for label in found[0]), -1])[found[1]], np.int64)


def _blank(column: AnyArray) -> bool:
    """Say whether all values are missing; such a column may be read as of any kind."""
    return bool((np.isnan(column) if column.dtype.kind == "f" else column < 0).all())


def _cross(before: Part, more: Part) -> tuple[list[str], IntArray, IntArray]:
    """Combine segments with those of one more column; keep the ones that rows are in.

    Examples
    --------
    >>> more = (["b=x", "b=y"], np.array([1, 1]), np.array([0]))
    >>> names, ours, theirs = _cross((["a=1"], np.array([0, 0]), np.array([0])), more)
    >>> names, ours.tolist(), theirs.tolist()
    (['a=1 & b=y'], [0, 0], [-1])
    """
    many = len(more[0])
    ours, their = (left.astype(np.int64) * many + right for left, right in zip(before[1:], more[1:], strict=True))
    pairs, codes = np.unique(ours, return_inverse=True)
    names = [" & ".join(filter(None, (before[0][pair // many], more[0][pair % many]))) for pair in pairs.tolist()]
    their = np.where((before[2] >= 0) & (more[2] >= 0), their, -1)
    place = np.minimum(np.searchsorted(pairs, their), len(pairs) - 1)
    return names, codes.astype(np.int64), np.where(pairs[place] == their, place, -1)
