"""The values of single columns: which segments they are, what they are called, and their cells."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import number
from trueup.reports.view import Cell, name_cell, number_cell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup.audits.result import Audit

    Levels = Mapping[int, list[int]]


def levels_of(audit: Audit) -> dict[int, list[int]]:
    """Give for every column the ranks of the segments of it alone, in the order of its levels."""
    keys = audit.keys
    found = np.flatnonzero((keys.depth == 1) & (keys.target == 0))
    columns, codes = (part[found].max(axis=1) for part in (keys.columns, keys.codes))  # places without a column hold -1
    order = np.lexsort((codes, columns))
    levels: dict[int, list[int]] = {at: [] for at in range(len(audit.schema.features))}
    for column, at in zip(columns[order].tolist(), found[order].tolist(), strict=True):
        if column in levels:  # the user's own segments come after the columns
            levels[column].append(at)
    return levels


def value_of(audit: Audit, column: int, at: int) -> str:
    """Write the value that a segment of one column stands for, without the name of the column.

    Examples
    --------
    >>> import trueup as tu
    >>> data = {"p": [0.2, 0.4, 0.3, 0.1], "y": [0, 1, 0, 0], "age": [17, 30, 40, None], "sex": ["f", "m", None, "f"]}
    >>> found = tu.audit(data, outcome="y", prediction="p", min_rows=1, depth=1, bins={"age": [18, 35]})
    >>> [[value_of(found, column, at) for at in ranks] for column, ranks in levels_of(found).items()]
    [['< 18', '[18, 35)', '>= 35', 'missing'], ['f', 'm', 'missing']]
    """
    feature = audit.schema.features[column]
    label = audit.keys.labels[column][int(audit.keys.codes[at].max())]
    told = label.removeprefix(feature.name)
    if told.startswith("="):
        return told[1:]
    if is_missing(audit, column, at):
        return "is missing" if "missing" in feature.levels else "missing"
    sign = ">=" if told.startswith(">=") else "<"
    return f"{sign} {told.removeprefix(sign)}"


def is_missing(audit: Audit, column: int, at: int) -> bool:
    """Say whether a segment of one column is that of the rows without a value."""
    label = audit.keys.labels[column][int(audit.keys.codes[at].max())]
    return label == f"{audit.schema.features[column].name} is missing"


def text_cell(text: str, kind: str = "name", rows: int = 1) -> Cell:
    """Show a text from the data, in a table of so many rows; as data it is whole."""
    return replace(name_cell(text, rows), kind=kind, value=text)


def interval_cell(low: float, high: float) -> Cell:
    """Show an interval; as data it is its two ends."""
    return Cell(f"{number(low)} to {number(high)}", "interval", value=[low, high])


def p_cell(value: float) -> Cell:
    """Show an adjusted p-value."""
    return number_cell(value, number(value, 2))
