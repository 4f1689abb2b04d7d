"""Levels of single columns: the segments of one column, and their names without it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from trueup.audits.result import Audit


def column_levels(audit: Audit) -> dict[int, list[int]]:
    """Return for every column index the ranks (positions in the audit) of its levels as segments, in order of levels."""
    keys = audit.keys
    single = np.flatnonzero((keys.depth == 1) & (keys.target == 0))
    columns, codes = (part[single].max(axis=1) for part in (keys.columns, keys.codes))  # unused places hold -1
    order = np.lexsort((codes, columns))
    levels: dict[int, list[int]] = {index: [] for index in range(len(audit.schema.features))}
    for index, rank in zip(columns[order].tolist(), single[order].tolist(), strict=True):
        if index in levels:  # user-defined segments come after the columns
            levels[index].append(rank)
    return levels


def level_name(audit: Audit, column: int, rank: int) -> str:
    """Return the level of the single-column segment at position ``rank`` in the audit, without the name of the column."""
    feature = audit.schema.features[column]
    level = _label(audit, column, rank).removeprefix(feature.name)
    if level.startswith("="):
        return level[1:]
    if is_missing(audit, column, rank):
        return "is missing" if "missing" in feature.levels else "missing"
    sign = ">=" if level.startswith(">=") else "<"
    return f"{sign} {level.removeprefix(sign)}"


def is_pooled(audit: Audit, rank: int) -> bool:
    """Return whether the segment at position ``rank`` pools rare levels."""
    return any(pooled for _, pooled in audit.keys.parts(rank))


def _label(audit: Audit, column: int, rank: int) -> str:
    return audit.keys.labels[column][int(audit.keys.codes[rank].max())]


def is_missing(audit: Audit, column: int, rank: int) -> bool:
    """Return whether the segment at position ``rank`` has the rows without a value in the column."""
    return _label(audit, column, rank) == f"{audit.schema.features[column].name} is missing"
