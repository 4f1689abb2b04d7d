"""Identifiers of clusters: rows that belong together, such as the rows of one customer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.data.columns import MAX_EXACT
from trueup.data.folds import hash_numbers, hash_texts
from trueup.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from trueup._types import BoolArray, UInt64Array
    from trueup.data.columns import RawColumn


def cluster_keys(raw: RawColumn, name: str, describe: Callable[[BoolArray], str]) -> UInt64Array:
    """Return a hash of the identifier of each row, the same in every partition.

    Raise if an identifier is missing: such rows may belong together or not. ``describe`` returns where those rows are.
    """
    missing = raw.missing()
    if missing.any():
        raise DataError(
            f"cluster column {name!r} is missing {describe(missing)}",
            hint="fill it in; a row that belongs to no other row needs an identifier of its own",
        )
    if raw.coded is not None:
        return np.asarray(hash_texts(raw.coded.levels)[raw.coded.codes])
    values = raw.codes_or_values
    keys = hash_numbers([values])
    if raw.as_texts is not None and np.abs(values).max(initial=0.0) >= MAX_EXACT:
        coded = raw.as_texts().categories()  # distinct integers beyond 2**53 are equal as floats
        return np.where(np.abs(values) < MAX_EXACT, keys, hash_texts(coded.levels)[coded.codes])
    return keys
