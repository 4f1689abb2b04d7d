"""The segments of a monitor: fixed before outcomes are seen, with a share of alpha each, and more as new levels appear."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.bins import ColumnBinner, bins_for, fit_binner, plan_combinations
from trueup.data.columns import MAX_EXACT, CodedColumn, read_known_feature
from trueup.data.table import Feature, sort_levels
from trueup.metrics.planning import LATER_SHARE, OVERALL_SHARE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray
    from trueup.data.columns import ColumnSource, RawColumn
    from trueup.data.table import Table

OVERALL = "all rows"
SCORE_BANDS = "score"
MAX_LEVELS = 100_000  # of a column; later ones count as one
OTHER_LEVELS = "(other new levels)"
MAX_CANDIDATES = 200_000  # combinations of levels whose rows are counted until they are enough
DENSE_CELLS = 4_000_000  # of a lookup table

Key = tuple[int, ...]


@dataclass(eq=False)
class MonitoredColumn:
    """A column that forms segments; of a category, code 0 is missing and level k has code k + 1.

    ``listed`` has the codes that are segments from the start. Levels of a category that the reference rows do not have are
    appended; ``known`` is the number of codes that they had.
    """

    feature: Feature
    binner: ColumnBinner | None  # None of a category
    levels: list[str]
    listed: tuple[int, ...]
    known: int

    @classmethod
    def fit(cls, feature: Feature, column: AnyArray, bins: Any, default_bins: int, min_rows: int) -> MonitoredColumn:
        """Fix the levels or bins of a column by the reference rows."""
        if feature.kind == "categorical":
            counts = np.bincount(column + 1, minlength=len(feature.levels) + 1)
            listed = tuple(np.flatnonzero(counts >= min_rows).tolist())
            return cls(feature, None, list(feature.levels), listed, len(counts))
        binner = fit_binner(feature, column, bins, default_bins, for_new_rows=True)
        counts = np.bincount(binner.codes(column), minlength=len(binner.labels))
        return cls(feature, binner, [], tuple(np.flatnonzero(counts >= min_rows).tolist()), len(counts))

    @property
    def name(self) -> str:
        """The name of the column."""
        return self.feature.name

    @property
    def codes(self) -> int:
        """The number of codes so far."""
        return len(self.levels) + 1 if self.binner is None else len(self.binner.labels)

    @property
    def pool_label(self) -> str | None:
        """The label of the levels of a category that are no segments from the start."""
        return f"{self.name}=(rare or new levels)" if self.binner is None else None

    def label(self, code: int) -> str:
        """Return the label of a level."""
        if self.binner is not None:
            return self.binner.labels[code]
        return f"{self.name}={self.levels[code - 1]}" if code else f"{self.name} is missing"

    def encode(self, raw: RawColumn) -> Int32Array:
        """Return the code of every row; levels that are new get codes of their own, in sorted order."""
        if self.binner is not None:
            return self.binner.codes(read_known_feature(raw, self.feature))
        if raw.missing().all():
            return np.zeros(len(raw), np.int32)
        coded = raw.categories()
        index = self._index
        new = sort_levels([level for level in coded.levels if level not in index])
        room = max(MAX_LEVELS - len(self.levels), 0)
        for level in [*new[:room], *([OTHER_LEVELS] if len(new) > room and OTHER_LEVELS not in index else [])]:
            index[level] = len(self.levels) + 1
            self.levels.append(level)
        overflow = index.get(OTHER_LEVELS, 0)
        return np.array([*(index.get(level, overflow) for level in coded.levels), 0], np.int32)[coded.codes]

    @cached_property
    def _index(self) -> dict[str, int]:
        return {level: code for code, level in enumerate(self.levels, start=1)}


@dataclass(eq=False)
class SegmentCombination:
    """A combination of columns (none: all rows) with its segments by level codes, and rows of cells that are none yet."""

    columns: tuple[int, ...]
    share: float  # of alpha
    cells: dict[Key, int]
    listed: int  # segments that exist from the start
    pool: int | None = None  # segment of the levels that are not listed
    later: int = 0  # segments added since
    candidates: dict[Key, int] = field(default_factory=dict)

    def add_candidates(self, rows: Mapping[Key, int], limit: int) -> int:
        """Add rows of cells that are no segments; return the number of rows of new cells beyond ``limit``."""
        beyond = 0
        for key in sorted(rows):
            if key in self.candidates or len(self.candidates) < limit:
                self.candidates[key] = self.candidates.get(key, 0) + rows[key]
            else:
                beyond += rows[key]
        return beyond


@dataclass(eq=False)
class MonitoredSegments:
    """The segments of a monitor, numbered in the order in which they were added; the first has all rows."""

    columns: list[MonitoredColumn]
    combinations: list[SegmentCombination]
    labels: list[str]
    shares: list[float]  # of alpha
    min_rows: int
    max_segments: int
    dropped: int = 0  # combinations of columns left out to stay within max_segments
    uncounted: int = 0  # rows of cells beyond MAX_CANDIDATES

    @classmethod
    def plan(
        cls, table: Table, *, bins: int | Mapping[str, Any], score_bands: int, depth: int, min_rows: int, max_segments: int
    ) -> MonitoredSegments:
        """Choose the segments by reference rows: levels of every column, score bands, and their combinations."""
        columns = [
            MonitoredColumn.fit(one, table.columns[one.name], *bins_for(one.name, bins), min_rows)
            for one in table.schema.features
        ]
        if score_bands > 1:
            band = Feature(_free_name(SCORE_BANDS, [one.name for one in columns]), "numeric")
            columns.append(MonitoredColumn.fit(band, table.prediction, score_bands, score_bands, min_rows))
        levels = {one.name: max(len(one.listed), 1) for one in columns}
        pairs, dropped = plan_combinations(levels, len(table), depth=depth, min_rows=min_rows, max_cells=max_segments)
        groups = [(), *((at,) for at in range(len(columns))), *pairs]
        segments = cls(columns, [], [], [], min_rows, max_segments, len(dropped))
        codes = _table_codes(columns, table)
        shares = _depth_shares(groups)
        for group in groups:
            segments._add_combination(group, shares[len(group)], codes)
        return segments

    def __len__(self) -> int:
        return len(self.labels)

    def _add_combination(self, group: tuple[int, ...], share: float, codes: Sequence[Int32Array]) -> None:
        """Add the cells of a combination that have enough reference rows."""
        combination = SegmentCombination(group, share, {}, 0)
        if not group:
            combination.cells[()] = self._append(OVERALL, share)
            combination.listed = 1
            self.combinations.append(combination)
            return
        keys = self._frequent_cells(group, codes)
        has_pool = len(group) == 1 and self.columns[group[0]].pool_label is not None
        combination.listed = len(keys) + has_pool
        each = share * (1.0 - LATER_SHARE) / max(combination.listed, 1)
        for key in keys:
            combination.cells[key] = self._append(self.label(group, key), each)
        if has_pool:
            combination.pool = self._append(str(self.columns[group[0]].pool_label), each)
        self.combinations.append(combination)

    def _frequent_cells(self, group: tuple[int, ...], codes: Sequence[Int32Array]) -> list[Key]:
        """Return the level codes of the cells with at least ``min_rows`` reference rows, of levels that are listed."""
        if len(group) == 1:
            return [(code,) for code in self.columns[group[0]].listed]
        cell = self._cell_ids(group, codes)
        distinct, counts = np.unique(cell, return_counts=True)
        keys = self._keys(group, distinct[counts >= self.min_rows])
        listed = [set(self.columns[at].listed) for at in group]
        return [key for key in keys if all(code in own for code, own in zip(key, listed, strict=True))]

    def _append(self, label: str, share: float) -> int:
        self.labels.append(label)
        self.shares.append(share)
        return len(self.labels) - 1

    def label(self, group: tuple[int, ...], key: Key) -> str:
        """Return the label of a cell of the columns ``group``."""
        return " & ".join(self.columns[at].label(code) for at, code in zip(group, key, strict=True))

    def _cell_ids(self, group: tuple[int, ...], codes: Sequence[Int32Array]) -> IntArray:
        cell = codes[group[0]].astype(np.int64)
        for at in group[1:]:
            cell = cell * self.columns[at].codes + codes[at]
        return cell

    def _keys(self, group: tuple[int, ...], cells: IntArray) -> list[Key]:
        """Return the level codes of cell numbers."""
        parts = []
        for at in reversed(group[1:]):
            cells, code = np.divmod(cells, self.columns[at].codes)
            parts.append(code.tolist())
        return list(zip(cells.tolist(), *reversed(parts), strict=True))

    def locators(self) -> list[CellLocator]:
        """Return one locator per row of the array that `locate` fills: of every combination, and of every pool."""
        widths = [column.codes for column in self.columns]
        found = []
        for number, combination in enumerate(self.combinations):
            found.append(CellLocator.of(number, combination, widths))
            if combination.pool is not None:
                column = self.columns[combination.columns[0]]
                found.append(CellLocator.of_pool(number, combination, column))
        return found

    def locate(
        self, locators: Sequence[CellLocator], codes: Sequence[Int32Array], rows: int
    ) -> tuple[Int32Array, list[dict[Key, int]]]:
        """Return the segment of every row by locator, -1 for none, and by combination the rows of cells that are none."""
        out = np.empty((len(locators), rows), np.int32)
        candidates: list[dict[Key, int]] = [{} for _ in self.combinations]
        for place, locator in enumerate(locators):
            group = locator.columns
            if not group:
                out[place] = 0
                continue
            cell = self._cell_ids(group, codes)
            out[place] = locator.segments(cell)
            if locator.is_pool:
                continue
            missing = out[place] < 0
            if missing.any():
                distinct, counts = np.unique(cell[missing], return_counts=True)
                keys = self._keys(group, distinct)
                candidates[locator.combination] = dict(zip(keys, counts.tolist(), strict=True))
        return out, candidates

    def promote(self) -> int:
        """Make segments of the cells that have enough rows by now; return their number.

        The r-th of a combination gets 1/(r (r + 1)) of what is kept of its share. They are added in the order of their
        labels, which does not depend on the order of the rows.
        """
        added = 0
        for combination in self.combinations:
            ready = [key for key, rows in combination.candidates.items() if rows >= self.min_rows]
            for label, key in sorted((self.label(combination.columns, key), key) for key in ready):
                if len(self) >= self.max_segments:
                    break
                combination.later += 1
                rank = combination.later
                kept = LATER_SHARE if combination.listed else 1.0
                combination.cells[key] = self._append(label, combination.share * kept / (rank * (rank + 1)))
                del combination.candidates[key]
                added += 1
        return added

    def unformed(self) -> int:
        """Return the number of cells that have enough rows, and are no segments."""
        return sum(rows >= self.min_rows for one in self.combinations for rows in one.candidates.values())

    def places(self) -> dict[int, tuple[tuple[int, ...], Key]]:
        """Return the columns and the level codes of every segment, except of those that pool levels."""
        return {at: (one.columns, key) for one in self.combinations for key, at in one.cells.items()}

    def number_of(self, columns: tuple[int, ...], key: Key) -> int | None:
        """Return the segment of level codes, None if there is none."""
        combination = self._by_columns.get(columns)
        return None if combination is None else combination.cells.get(key)

    @cached_property
    def _by_columns(self) -> dict[tuple[int, ...], SegmentCombination]:
        return {one.columns: one for one in self.combinations}

    def log_limits(self, alpha: float) -> FloatArray:
        """Return the logarithm of the evidence at which each segment raises an alarm."""
        return -np.log(alpha * np.array(self.shares))

    def encode(self, source: ColumnSource, keys: Sequence[Any], scores: FloatArray, take: AnyArray) -> list[Int32Array]:
        """Return the codes of all columns for the rows ``take``; the score bands, if any, are last."""
        codes = [
            column.encode(_rows_of(source.fetch(key), take))
            for column, key in zip(self.columns[: len(keys)], keys, strict=True)
        ]
        if len(self.columns) > len(keys):
            binner = self.columns[-1].binner
            assert binner is not None
            codes.append(binner.codes(scores))
        return codes


@dataclass(frozen=True, eq=False)
class CellLocator:
    """Finds the segment of a cell number of one combination of columns, by a table if it is small, else by bisection."""

    combination: int
    columns: tuple[int, ...]
    numbers: IntArray  # of the cells that are segments, ascending; not used with a table
    members: Int32Array  # their segments, and -1 at the end; or the table
    dense: bool
    is_pool: bool = False

    @classmethod
    def of(cls, number: int, combination: SegmentCombination, widths: Sequence[int]) -> CellLocator:
        """Return the locator of the segments of a combination, given the number of codes of every column."""
        group = combination.columns
        size = math.prod(widths[at] for at in group)
        cells = []
        for key in combination.cells:
            cell = 0
            for at, code in zip(group, key, strict=True):
                cell = cell * widths[at] + code
            cells.append(cell)
        numbers, members = np.array(cells, np.int64), np.array(list(combination.cells.values()), np.int32)
        if size <= DENSE_CELLS:
            table = np.full(max(size, 1), -1, np.int32)
            table[numbers] = members
            return cls(number, group, numbers, table, dense=True)
        order = np.argsort(numbers)
        return cls(number, group, numbers[order], np.append(members[order], np.int32(-1)), dense=False)

    @classmethod
    def of_pool(cls, number: int, combination: SegmentCombination, column: MonitoredColumn) -> CellLocator:
        """Return the locator of the levels that were no segments from the start."""
        assert combination.pool is not None
        table = np.full(column.codes, combination.pool, np.int32)
        table[list(column.listed)] = -1
        return cls(number, combination.columns, np.empty(0, np.int64), table, dense=True, is_pool=True)

    def segments(self, cells: IntArray) -> Int32Array:
        """Return the segment of every cell number, -1 for none."""
        if self.dense:
            return np.asarray(self.members[cells])
        place = np.searchsorted(self.numbers, cells)
        known = np.minimum(place, max(len(self.numbers) - 1, 0))
        hit = (
            (place < len(self.numbers)) & (self.numbers[known] == cells)
            if len(self.numbers)
            else np.zeros(len(cells), bool)
        )
        return np.where(hit, self.members[known], np.int32(-1)).astype(np.int32)


def _rows_of(raw: RawColumn, take: AnyArray) -> RawColumn:
    """Return some rows of a column."""
    if raw.coded is not None:
        return replace(raw, coded=CodedColumn(raw.coded.codes[take], raw.coded.levels))
    if raw.as_texts is not None and np.nanmax(np.abs(raw.codes_or_values), initial=0.0) >= MAX_EXACT:
        return _rows_of(raw.as_texts(), take)
    return replace(raw, values=raw.codes_or_values[take], as_texts=None)


def _table_codes(columns: Sequence[MonitoredColumn], table: Table) -> list[Int32Array]:
    """Return the codes of the reference rows."""
    codes = []
    for column in columns:
        values = table.columns.get(column.name, table.prediction)
        codes.append((values + 1).astype(np.int32) if column.binner is None else column.binner.codes(values))
    return codes


def _depth_shares(groups: Sequence[tuple[int, ...]]) -> dict[int, float]:
    """Return the share of alpha of a combination by its number of columns: OVERALL_SHARE, and equal shares of the rest."""
    counts = {depth: sum(len(group) == depth for group in groups) for depth in range(4)}
    depths = [depth for depth in (1, 2, 3) if counts[depth]]
    if not depths:
        return {0: 1.0}
    rest = (1.0 - OVERALL_SHARE) / len(depths)
    return {0: OVERALL_SHARE, **{depth: rest / counts[depth] for depth in depths}}


def _free_name(name: str, taken: Sequence[str]) -> str:
    """Return the name, numbered if a column has it already."""
    numbered = itertools.chain([name], (f"{name} ({number})" for number in itertools.count(2)))
    return next(one for one in numbered if one not in taken)
