"""The map of segments: which columns, alone and in pairs, hold the worst errors."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import number
from trueup.reports.advice import USUAL
from trueup.reports.view import Name, column_names

if TYPE_CHECKING:
    from trueup._types import Int32Array, IntArray
    from trueup.audits.result import Audit
    from trueup.reports.profiles import Words

MOST_COLUMNS = 16
SHADES = (2.0, 3.0, 4.0, 6.0, 10.0)
WIDEST_COLUMN = 24


@dataclass(frozen=True)
class Field:
    """One pair of columns: its worst sigma, how dark it is, and how many of its segments are off."""

    first: int
    second: int
    sigma: str
    shade: int
    off: int
    tested: int
    title: str


@dataclass(frozen=True)
class MapView:
    """Columns against columns, one row each, up to the diagonal; None where nothing was tested."""

    names: tuple[Name, ...]
    rows: tuple[tuple[Field | None, ...], ...]
    more: int


def view_map(audit: Audit, words: Words = USUAL) -> MapView | None:
    """Lay out the worst sigma of every pair of columns; on the diagonal that of the single columns."""
    features = len(audit.schema.features)
    places = _places(audit, features)
    worst: dict[int, float] = {}
    for key, found in places.items():
        size = float(audit.columns["sigma"][found].max())
        for at in divmod(key, features):
            worst[at] = max(worst.get(at, size), size)
    used = sorted(worst)
    if len(used) < 2:
        return None
    chosen = sorted(sorted(used, key=lambda at: -worst[at])[:MOST_COLUMNS])
    pairs = [[min(a, b) * features + max(a, b) for b in chosen[: place + 1]] for place, a in enumerate(chosen)]
    rows = tuple(tuple(_field(audit, places[key], key, words) if key in places else None for key in row) for row in pairs)
    names = column_names(audit)
    return MapView(tuple(Name.of(names[at], WIDEST_COLUMN) for at in chosen), rows, len(used) - len(chosen))


def _places(audit: Audit, features: int) -> dict[int, IntArray]:
    """Give the ranks of the tested segments of every pair; sorted once, for there may be many pairs."""
    pairs = _pairs(audit.keys.columns, features)
    tested = np.flatnonzero((pairs >= 0) & audit.columns["testable"])
    tested = tested[np.argsort(pairs[tested], kind="stable")]
    keys, first = np.unique(pairs[tested], return_index=True)
    return dict(zip(keys.tolist(), np.split(tested, first[1:]), strict=True)) if len(keys) else {}


def _pairs(columns: Int32Array, features: int) -> IntArray:
    """Give every segment of one or two columns the number of its pair, a column alone with itself; -1 to the others."""
    count = (columns >= 0).sum(axis=1)
    last = columns.max(axis=1, initial=-1).astype(np.int64)
    first = np.where(columns >= 0, columns, np.iinfo(np.int32).max).min(axis=1, initial=np.iinfo(np.int32).max)
    fits = ((count == 1) | (count == 2)) & (last < features)
    return np.where(fits, first.astype(np.int64) * features + last, -1)


def _field(audit: Audit, places: IntArray, key: int, words: Words) -> Field:
    sigma = audit.columns["sigma"][places]
    worst = int(places[int(np.argmax(sigma))])
    off = int((audit.columns["p_adjusted"][places] <= audit.settings.alpha).sum())
    size = float(sigma.max())
    shade = sum(size >= limit for limit in SHADES) if not math.isnan(size) else 0
    first, second = divmod(key, len(audit.schema.features))
    title = f"worst: {Name.of(audit.keys.name(worst), 120).short}; {off:,} of {len(places):,} {words.segments} off"
    return Field(first, second, number(size, 2 if size < 10 else 3), shade, off, len(places), title)
