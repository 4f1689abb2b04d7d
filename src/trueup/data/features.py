"""What a column must be to serve as a feature: no identifier, no copy of the outcome, of the kind it had."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from trueup.data.checks import COPY_ROWS
from trueup.data.columns import FLAG_LEVELS
from trueup.errors import ColumnError, IdentifierWarning, UnseenWarning

if TYPE_CHECKING:
    from collections.abc import Collection, Hashable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.columns import Raw
    from trueup.data.schema import Feature, Schema, Task
    from trueup.data.sources import Source
    from trueup.data.table import Table

IDENTIFIER_LEVELS = 20  # a column of fewer levels is never taken for an identifier
IDENTIFIER_SHARE = 0.9
MOST_CLASSES = 50  # an outcome of more values is no category in disguise


def identifier(name: str, levels: int, known: int) -> str | None:
    """Say why a column of texts is left out where it looks like an identifier, and warn; ``known`` rows have a value."""
    if levels <= IDENTIFIER_LEVELS or levels < IDENTIFIER_SHARE * known:
        return None
    reason = f"{levels:,} levels in {known:,} rows: an identifier"
    warnings.warn(
        f"column {name!r} is left out: {reason}\nhint: no level of it has rows enough to say anything about",
        IdentifierWarning,
        stacklevel=5,
    )
    return reason


def same_kind(raw: Raw, saved: Feature) -> None:
    """Refuse a column whose type is not the one the schema was made with."""
    kind = {"number": "numeric", "flag": "categorical", "text": "categorical", "date": "date"}[raw.kind]
    read_as_text = saved.kind == "categorical" and kind != "categorical" and saved.levels != FLAG_LEVELS
    if kind != saved.kind and not read_as_text:
        raise ColumnError(
            f"column {saved.name!r} was {saved.kind} and now holds {raw.kind}s", hint="read it with the type it had"
        )


def some_known(codes: AnyArray, raw: Raw, saved: Feature) -> None:
    """Warn where a column of many rows has no value that the schema knows: it is written in another way, most likely."""
    if not saved.levels or len(codes) < COPY_ROWS or (codes >= 0).any() or raw.missing().sum() > len(codes) - COPY_ROWS:
        return
    warnings.warn(
        f"no value of column {saved.name!r} is one that the model knows ({len(codes):,} rows): all count as missing\n"
        f"hint: it knows {', '.join(map(repr, saved.levels[:3]))}; are the values written in another way here?",
        UnseenWarning,
        stacklevel=4,
    )


def no_copy_of_the_outcome(features: Sequence[Feature], columns: Mapping[str, AnyArray], y: FloatArray, task: Task) -> None:
    """Refuse a feature that restates the outcome: value for value, or under two other names."""
    _refuse_copies([feature.name for feature in features if _copies(feature, columns[feature.name], y, task)])


def _refuse_copies(copies: Sequence[str]) -> None:
    if copies:
        listed = ", ".join(repr(name) for name in copies)
        raise ColumnError(
            f"column {listed} is identical to the outcome"
            if len(copies) == 1
            else f"columns {listed} are identical to the outcome",
            hint="leave it out: it says what is to be predicted",
        )


def _copies(feature: Feature, column: AnyArray, y: FloatArray, task: Task) -> bool:
    if feature.kind == "categorical":
        return task != "regression" and _renames(column, y, feature)
    return feature.kind == "numeric" and bool(y.min() != y.max()) and np.array_equal(column, y)


def _renames(codes: AnyArray, y: FloatArray, feature: Feature) -> bool:
    """Say whether categories and outcomes determine each other, row by row."""
    if len(y) < COPY_ROWS and feature.levels != ("0", "1"):
        return False
    # The first rows rule most columns out, so that the others are seldom looked at.
    for rows in (slice(10 * COPY_ROWS), slice(None)):
        found, place = np.unique(y[rows], return_inverse=True)
        if len(found) > MOST_CLASSES:
            return False
        pairs = np.unique(codes[rows].astype(np.int64) * len(found) + place)
        if not len(pairs) == len(found) == len(np.unique(codes[rows])):
            return False
    return len(found) > 1


class Copies:
    """The features that restate the outcome in all pieces of the rows so far."""

    def __init__(self) -> None:
        self.equal: set[str] | None = None
        """Columns of numbers."""
        self.pairs: dict[str, set[tuple[float, int]]] = {}
        """Of columns of categories the outcomes and codes that were seen together."""
        self.outcomes: set[float] = set()

    def add(self, table: Table) -> None:
        """Take in a piece that has rows."""
        y, features = table.outcome, table.schema.features
        assert y is not None
        if self.equal is None:
            self.equal = {one.name for one in features if one.kind == "numeric"}
            some = [one.name for one in features if one.kind == "categorical" and table.schema.task != "regression"]
            self.pairs = {name: set() for name in some}
        self.equal = {name for name in self.equal if np.array_equal(table.columns[name], y)}
        if not self.equal and not self.pairs:
            return
        # The first rows rule most columns out, so that the others are seldom looked at.
        for rows in (slice(10 * COPY_ROWS), slice(None)):
            found, place = np.unique(y[rows], return_inverse=True)
            self.outcomes.update(found[: MOST_CLASSES + 1].tolist())
            self.pairs = {} if len(self.outcomes) > MOST_CLASSES else self.pairs
            for name in list(self.pairs):
                seen = np.unique(table.columns[name][rows].astype(np.int64) * len(found) + place)
                if len(seen) > len(found) or not self._pair(name, found[seen % len(found)], seen // len(found)):
                    del self.pairs[name]

    def _pair(self, name: str, outcomes: FloatArray, codes: IntArray) -> bool:
        """Note which outcomes and codes were seen together; say whether they still determine each other."""
        ours = self.pairs[name]
        ours.update(zip(outcomes.tolist(), codes.tolist(), strict=True))
        return len(ours) == len(self.outcomes) == len({code for _, code in ours})

    def __add__(self, other: Copies) -> Copies:
        """Give those that restate the outcome in the pieces of both."""
        if self.equal is None or other.equal is None:
            return other if self.equal is None else self
        out = Copies()
        out.equal, out.outcomes = self.equal & other.equal, self.outcomes | other.outcomes
        if len(out.outcomes) <= MOST_CLASSES:
            both = {name: pairs | other.pairs[name] for name, pairs in self.pairs.items() if name in other.pairs}
            codes = {name: {code for _, code in pairs} for name, pairs in both.items()}
            out.pairs = {name: one for name, one in both.items() if len(one) == len(out.outcomes) == len(codes[name])}
        return out

    def check(self, schema: Schema, rows: int) -> None:
        """Refuse them once all rows have been taken in."""
        if len(self.outcomes) < 2:
            return
        levels = {feature.name: feature.levels for feature in schema.features}
        renamed = {name for name in self.pairs if rows >= COPY_ROWS or levels[name] == ("0", "1")}
        _refuse_copies([name for name in levels if name in renamed | (self.equal or set())])


def not_a_role(chosen: Collection[Hashable], outcome: Hashable | None, source: Source) -> None:
    """Refuse the outcome as a feature, by its name."""
    if outcome is not None and outcome in chosen:
        raise ColumnError(
            f"column {source.label(outcome)!r} is identical to the outcome: it is the outcome", hint="leave it out"
        )
