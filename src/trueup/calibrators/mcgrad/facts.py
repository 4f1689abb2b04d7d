"""What a fit must know of all rows before it begins, where they lie in parts: by one pass that adds up."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators.splits import append_rows
from trueup.data.checks import RowSummary
from trueup.data.folds import digest_rows, random_row_keys

if TYPE_CHECKING:
    from trueup._types import AnyArray, FloatArray, UInt64Array
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.table import Table


SAMPLE = 100_000  # rows from which bins are found, and corrections are read
SALT = 1_000_003  # what sets the draw of the sample apart from that of the folds
WRAP = 1 << 64


@dataclass(frozen=True, eq=False)
class Facts:
    """What is known of all rows.

    Attributes
    ----------
    seen : Seen
        What they have in common.
    digest : int
        By which the rows are known again, in whatever order.
    sizes : tuple of (int, int)
        The number of each part, and how many rows of it count.
    sample : Table
        A fair sample of up to 100,000 rows: those of the smallest ``keys``, by which they are sorted.
    """

    seen: RowSummary
    digest: int
    sizes: tuple[tuple[int, int], ...]
    sample: Table
    keys: UInt64Array

    def __len__(self) -> int:
        return self.seen.rows

    def __add__(self, other: Facts) -> Facts:
        sample, keys = _smallest(append_rows(self.sample, other.sample), np.concatenate([self.keys, other.keys]))
        digest = (self.digest + other.digest) % WRAP
        return Facts(self.seen + other.seen, digest, (*self.sizes, *other.sizes), sample, keys)


def facts_of(parts: PartitionedTable, seed: int) -> Facts:
    """Go through all rows once."""
    found = parts.map_reduce(partial(_look, seed=seed), _add)
    sample = replace(found.sample, unlabelled=found.seen.unlabelled, weightless=found.seen.weightless)
    return replace(found, sample=replace(sample, schema=parts.schema, left_out=parts.left_out))


def known_by(table: Table) -> tuple[list[AnyArray], list[FloatArray]]:
    """Give what rows are known by, and what else tells rows apart that are alike: outcome and weight."""
    assert table.outcome is not None
    content = [*table.columns.values(), *table.prediction.reshape(len(table), len(table.schema.prediction)).T]
    return content, [table.outcome] if table.weight is None else [table.outcome, table.weight]


def _add(one: Facts, other: Facts) -> Facts:
    return one + other


def _look(table: Table, number: int, *, seed: int) -> Facts:
    content, own = known_by(table)
    sample, keys = _smallest(table, random_row_keys(content, own, seed + SALT))
    return Facts(RowSummary.of(table), int(digest_rows(content, own)), ((number, len(table)),), sample, keys)


def _smallest(table: Table, keys: UInt64Array) -> tuple[Table, UInt64Array]:
    """Keep the rows of the smallest keys, sorted by them."""
    rows = np.argsort(keys, kind="stable")[:SAMPLE]
    return table.take(rows), keys[rows]
