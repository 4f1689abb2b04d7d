"""Columns that look like identifiers, integers that floats cannot tell apart, and columns of types that are not read."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

import numpy as np

from trueup.data.clusters import IDENTIFIER_NAME
from trueup.data.columns import UNSUPPORTED_HINT
from trueup.errors import IdentifierWarning, UnreadColumnWarning, warn

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import FloatArray
    from trueup.errors import ColumnError, WarningRecord

MIN_IDENTIFIER_LEVELS = 20  # a column with at most so many levels is never treated as an identifier
IDENTIFIER_SHARE = 0.9  # levels per row
MIN_INTEGERS = 100  # rows, below which numbers are never called identifiers
MIN_EXPECTED_REPEATS = 30.0  # of random integers of the same range
MAX_REPEATS = 0.1  # of the expected ones
SAMPLE_ROWS = 2000
MAX_LISTED = 5


def identifier_reason(name: str, levels: int, known: int, *, stacklevel: int = 5) -> str | None:
    """Warn and return the reason if a column of ``levels`` levels in ``known`` rows looks like an identifier, else None."""
    if levels <= MIN_IDENTIFIER_LEVELS or levels < IDENTIFIER_SHARE * known:
        return None
    reason = f"{levels:,} levels in {known:,} rows: an identifier"
    warnings.warn(
        f"column {name!r} is left out: {reason}\nhint: none of its levels has enough rows for a result",
        IdentifierWarning,
        stacklevel=stacklevel,
    )
    return reason


def warn_of_integers(name: str, values: FloatArray, stacklevel: int) -> list[WarningRecord]:
    """Warn if a numeric column looks like an identifier: nearly all its values are distinct integers.

    Amounts are distinct integers as well if there are few of them in a wide range. Unless the name is that of an
    identifier, there must be far fewer repeated values than random integers of the same range would have: at least
    n^2 / (2 N) for n integers among N, which the uniform distribution has, and every other distribution exceeds.
    """
    known = values[~np.isnan(values)]
    if not may_be_identifier(known):
        return []
    low, high, is_named = known.min(), known.max(), bool(IDENTIFIER_NAME.search(name))
    if not (np.isfinite(low) and np.isfinite(high)):
        return []
    expected = len(known) ** 2 / (2 * (high - low + 1))
    if (not is_named and expected < MIN_EXPECTED_REPEATS) or (known != np.floor(known)).any():
        return []
    distinct = len(np.unique(known))
    if distinct < IDENTIFIER_SHARE * len(known) or (not is_named and len(known) - distinct > MAX_REPEATS * expected):
        return []
    record = warn(
        IdentifierWarning,
        f"column {name!r} looks like an identifier: {distinct:,} distinct integers in {len(known):,} rows",
        "leave it out, unless the order of its values has a meaning, such as a time",
        column=name,
        stacklevel=stacklevel + 1,
    )
    return [record]


def may_be_identifier(values: FloatArray) -> bool:
    """Return whether some of these numbers are nearly all distinct integers."""
    if len(values) < MIN_INTEGERS:
        return False
    sample = values[:: max(1, len(values) // SAMPLE_ROWS)]
    return bool((sample == np.floor(sample)).all()) and len(np.unique(sample)) >= IDENTIFIER_SHARE * len(sample)


def warn_of_large_integers(name: str, stacklevel: int) -> WarningRecord:
    """Warn that a column of integers is read as categories, since numbers would merge distinct values."""
    return warn(
        IdentifierWarning,
        f"column {name!r} holds integers beyond 2**53, which floating-point numbers cannot tell apart: it is read as "
        "categories",
        "leave it out if it is an identifier; if it is a quantity, divide it by a power of ten first",
        column=name,
        stacklevel=stacklevel + 1,
    )


def unread_reason(name: str, error: ColumnError) -> str:
    """Return why a column is left out, from the error that reading it raises."""
    return f"it {error.message.removeprefix(f'column {name!r} ')}"


def warn_of_unread(reasons: Mapping[str, str], stacklevel: int) -> None:
    """Warn, once, of the columns without a role that are left out because they cannot be read, and why."""
    if not reasons:
        return
    listed = [f"{name!r}, {reason}" for name, reason in list(reasons.items())[:MAX_LISTED]]
    more = f" (and {len(reasons) - MAX_LISTED:,} more)" if len(reasons) > MAX_LISTED else ""
    subject = "1 column is" if len(reasons) == 1 else f"{len(reasons):,} columns are"
    warnings.warn(
        f"{subject} left out: {'; '.join(listed)}{more}\nhint: {UNSUPPORTED_HINT}",
        UnreadColumnWarning,
        stacklevel=stacklevel + 1,
    )
