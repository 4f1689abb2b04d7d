"""Distinct problems: findings that have one cause are listed once.

Segments overlap, so one error is found under many names. Problems are chosen as variables are in forward selection: the
strongest finding first; its error, a shift per score band, is removed from all rows, and the other findings are tested
again on what remains. Those that are no longer significant are folded under the problem that explains them. With a
tolerance, material findings come before all others, so that none is folded under one that may not matter.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.audits import text
from trueup.audits.findings import RankedFindings, segment_curves, widen_curves
from trueup.audits.segments import AuditRows, MemoryRows, ScorePartition, SegmentFamily, SegmentGrid, SortedChunk
from trueup.data.columns import to_jsonable
from trueup.kernels.overlaps import overlaps
from trueup.kernels.threads import Workers
from trueup.metrics import inference
from trueup.metrics.binned import assign_bins
from trueup.metrics.reliability import curves_from_sums, sum_bins
from trueup.metrics.result import html_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.audits.result import Finding
    from trueup.kernels.tally import SortedRows
    from trueup.metrics.binned import Strategy
    from trueup.metrics.reliability import ReliabilityCurve

MAX_CANDIDATES = 512  # findings that are examined; weaker ones are counted
SCORE_BANDS = 5
SAME_ROWS = 0.9  # segments that share more of the rows of either are one
EXPLAINED = 0.9  # a finding that is barely significant is explained if its statistic falls below this share of it
PAIRS_PER_PASS = 8  # segments whose pairs are computed in one pass over rows in memory
ROWS_PER_SLICE = 1 << 16
MAX_SHOWN = 20  # explained segments, in a notebook


@dataclass(frozen=True, eq=False)
class Problem:
    """A distinct problem of an audit.

    Attributes
    ----------
    finding : Finding
        The segment in which the error is strongest.
    folded : tuple of str
        Other segments with a significant error that this one explains, strongest first.
    sigma : float
        The range of cumulative differences in standard deviations after the errors of earlier problems are removed.
    rank : int
        Position of the finding in the audit.
    """

    finding: Finding
    folded: tuple[str, ...]
    sigma: float
    rank: int

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON: the finding without its curve, the folded segments, and the remaining sigma."""
        values = self.finding.to_dict()
        del values["curve"]
        return values | {"folded": list(self.folded), "remaining_sigma": to_jsonable(self.sigma)}

    def __repr__(self) -> str:
        found = repr(self.finding).removesuffix(">")
        return f"{found}, explains {len(self.folded):,} more>" if self.folded else f"{found}>"

    def _repr_html_(self) -> str:
        explains = [f"explains {name}" for name in self.folded[:MAX_SHOWN]]
        explains += [f"and {len(self.folded) - MAX_SHOWN:,} more"] if len(self.folded) > MAX_SHOWN else []
        return html_table(text.describe_problem(self.finding), *text.plain_table([self.finding]), notes=explains)


class Problems(tuple[Problem, ...]):
    """The problems of an audit; as text, a table that counts the findings that each of them explains."""

    __slots__ = ()

    def _table(self) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        heads, rows = text.plain_table(problem.finding for problem in self)
        return (*heads, "explains"), [(*row, f"{len(item.folded):,}") for row, item in zip(rows, self, strict=True)]

    def _title(self) -> str:
        return f"{len(self):,} distinct problem{'' if len(self) == 1 else 's'}"

    def __repr__(self) -> str:
        heads, rows = self._table()
        lines = text.aligned_lines([heads, *((text.shorten(row[0]), *row[1:]) for row in rows)]) if self else []
        scores = text.score_lines(problem.finding for problem in self)
        return "\n".join([self._title(), *lines, *(["", *scores] if scores else [])])

    def _repr_html_(self) -> str:
        return html_table(self._title(), *self._table(), notes=text.score_lines(problem.finding for problem in self))


class ProblemRanks(NamedTuple):
    """A problem by ranks of findings: that of the problem, those folded under it, and the remaining sigma."""

    rank: int
    folded: tuple[int, ...]
    sigma: float


class OverlapSums(NamedTuple):
    """Sums of segments, and of pairs of some of them with every segment; see `trueup.kernels.overlaps.overlaps`."""

    residual: FloatArray
    common: IntArray
    shared: FloatArray


def _add(one: OverlapSums, other: OverlapSums) -> OverlapSums:
    return OverlapSums(one.residual + other.residual, one.common + other.common, one.shared + other.shared)


def find_problems(
    rows: AuditRows, families: Sequence[SegmentFamily], findings: RankedFindings, alpha: float
) -> tuple[ProblemRanks, ...]:
    """Choose the distinct problems among the significant findings: material ones first, then by strength.

    Scores of different classes are examined separately; of problems with the same rows, scores and outcomes one is kept.
    """
    ranks, material = np.flatnonzero(findings.columns["p_adjusted"] <= alpha), findings.material
    ranks = np.sort(ranks[np.argsort(~material[ranks], kind="stable")][:MAX_CANDIDATES])
    starts = np.cumsum([0, *(len(family) for family in families)])
    owner = np.searchsorted(starts, findings.order[ranks], side="right") - 1
    problems: list[ProblemRanks] = []
    for target, family in enumerate(families):
        own = ranks[owner == target]
        if not len(own):
            continue
        columns, codes = (key[findings.order[own] - starts[target]] for key in family.keys)
        overall = int(np.flatnonzero(findings.order == starts[target])[0])
        edges = _band_edges(findings.curves[overall].predicted)
        problems += _Selection(rows, target, (columns, codes), edges, own, findings, alpha).select()
    if len(families) > 1:
        problems = _merge_copies(sorted(problems, key=lambda one: (not material[one.rank], one.rank)), findings.columns)
    return tuple(problems)


def _merge_copies(problems: Sequence[ProblemRanks], columns: Mapping[str, AnyArray]) -> list[ProblemRanks]:
    """Fold problems that repeat one of another class: where one class is predicted, its score is that of the top label."""
    merged: dict[tuple[float, ...], ProblemRanks] = {}
    for problem in problems:
        key = tuple(float(f"{columns[name][problem.rank]:.9g}") for name in ("n", "observed", "expected", "ecce"))
        first = merged.setdefault(key, problem)
        if first is not problem:
            merged[key] = first._replace(folded=(*first.folded, problem.rank, *problem.folded))
    return list(merged.values())


@dataclass(frozen=True, eq=False)
class HeldRows:
    """The rows of an audit in memory, for curves and problems on request: about 30 bytes per row and one or two per column.

    ``codes`` has the level of every row in every segment column, in the smallest integer type; ``sorted_rows`` has the rows
    by every audited score.
    """

    codes: tuple[AnyArray, ...]
    sorted_rows: tuple[SortedRows, ...]
    grid: SegmentGrid
    families: Sequence[SegmentFamily]
    findings: RankedFindings
    alpha: float
    threads: int | None

    def restore(self) -> MemoryRows:
        """Return the rows with the codes of the grid."""
        codes = self.grid.encode([column.astype(np.int32) for column in self.codes])

        def sort(rows: SortedRows) -> SortedChunk:
            ordered = np.array([column[rows.order] for column in codes], np.int32).reshape(-1, len(rows))
            return SortedChunk(rows, ordered, self.grid, self.threads)

        chunks = tuple(map(sort, self.sorted_rows))
        first = chunks[0].rows
        return MemoryRows(
            targets=("",) * len(chunks), rows=len(first), real=first.real, weighted=bool(len(first.w)), chunks=chunks
        )

    def curve(self, rank: int) -> ReliabilityCurve:
        """Return the reliability curve of the segment at position ``rank``."""
        design = self.findings.columns.get("design_effect")
        return segment_curves(self.restore(), self.families, self.findings.order, np.array([rank]), self.alpha, design)[
            rank
        ]

    def curve_in_bins(
        self, rank: int, target: int, levels: Sequence[tuple[int, int]], n_bins: int, strategy: Strategy, edges: Any
    ) -> ReliabilityCurve:
        """Return the curve of a segment, of columns and codes ``levels`` of the score ``target``, in other bins."""
        rows = self.sorted_rows[target]
        inside = np.ones(len(rows), bool)
        for column, code in levels:
            inside &= self.codes[column][rows.order] == code
        p, e, w = rows.p[inside], rows.e[inside], rows.w[inside] if len(rows.w) else np.ones(int(inside.sum()))
        cells = sum_bins(assign_bins(p, w, n_bins, strategy, edges=edges, real=rows.real), p, e, w)
        design = self.findings.columns.get("design_effect")
        if design is not None:
            widen_curves(cells, design[[rank], None])
        return curves_from_sums([0], cells, alpha=self.alpha, real=rows.real)[0]

    @cached_property
    def problems(self) -> tuple[ProblemRanks, ...]:
        """The distinct problems, found on first use."""
        if not (self.findings.columns["p_adjusted"] <= self.alpha).any():
            return ()
        return find_problems(self.restore(), self.families, self.findings, self.alpha)


def _band_edges(predicted: FloatArray) -> FloatArray:
    """Return score bands of about equal weight, given the mean scores of the bins of a reliability curve."""
    ends = np.unique(np.linspace(0, len(predicted), SCORE_BANDS + 1).astype(int))[1:-1]
    return np.asarray(0.5 * (predicted[ends - 1] + predicted[ends]))


def _overlap_pass(
    target: int, columns: Int32Array, codes: Int32Array, edges: FloatArray, position: Int32Array, partition: ScorePartition
) -> OverlapSums:
    """Return the sums over the rows of a partition; ``position``: see `trueup.kernels.overlaps.overlaps`."""
    size, pairs, bands = len(columns), int(position.max()) + 1, len(edges) + 1

    def zeros() -> OverlapSums:
        return OverlapSums(np.zeros((size, bands)), np.zeros((pairs, size), np.int64), np.zeros((pairs, size, bands)))

    def add(chunk: SortedChunk) -> OverlapSums:
        rows, out = chunk.rows, zeros()
        # A shift of the log odds moves a mean by p (1 - p); one of a real outcome, by 1.
        u = np.ones(len(rows)) if rows.real else rows.p * (1.0 - rows.p)
        u = u * rows.w if len(rows.w) else u
        band = np.searchsorted(edges, rows.p, side="right").astype(np.int32)
        overlaps(columns, codes, chunk.codes, *chunk.index, position, band, rows.e, u, *out)
        return out

    total = zeros()
    for chunk in partition.chunks if partition.target == target else ():
        for part in Workers(chunk.threads).map(add, list(_slices(chunk))):
            total = _add(total, part)
    return total


def _slices(chunk: SortedChunk) -> Iterator[SortedChunk]:
    """Yield the rows of a chunk in slices whose lists of segments fit in memory."""
    for first in range(0, len(chunk.rows), ROWS_PER_SLICE):
        own = slice(first, first + ROWS_PER_SLICE)
        rows = chunk.rows
        part = replace(
            rows, order=rows.order[own], step=rows.step[own], p=rows.p[own], e=rows.e[own], w=rows.w[own], v=None, k3=None
        )
        yield SortedChunk(part, np.ascontiguousarray(chunk.codes[:, own]), chunk.grid, 1)


class _Selection:
    """Forward selection of problems among the findings ``ranks`` of one audited score.

    ``keys`` are columns and codes of their segments, ``edges`` separate score bands. The sums of pairs are computed when
    they are needed: for a few segments at a time if rows are in memory, else for all in one pass.
    """

    def __init__(
        self, rows: AuditRows, target: int, keys: tuple[Int32Array, Int32Array], edges: FloatArray, ranks: IntArray,
        findings: RankedFindings, alpha: float,
    ) -> None:  # fmt: skip
        columns = findings.columns
        self.rows, self.target, self.keys, self.edges, self.ranks = rows, target, keys, edges, ranks
        self.depth = (keys[0] >= 0).sum(axis=1)
        self.row_counts = columns["n"][ranks]
        self.batch = PAIRS_PER_PASS if isinstance(rows, MemoryRows) else len(ranks)
        self.common = np.full((len(ranks), len(ranks)), -1, np.int64)  # row i is -1 until it is computed
        self.shared: dict[int, FloatArray] = {}
        self.sigma, self.material = columns["sigma"][ranks], findings.material[ranks]
        self.residual: FloatArray = np.empty((0, 0))
        self._compute(np.argsort(-self.sigma, kind="stable"))
        span = columns["ecce"][ranks] * columns["weight"][ranks]
        # The range of sums by band, times a factor that makes it the statistic of the finding.
        with np.errstate(invalid="ignore", divide="ignore"):
            self.scale = self.sigma / np.where(span > 0, _range(self.residual), np.nan)
        # A finding may be rejected at more than its share of alpha, since others were rejected before.
        levels = np.maximum(findings.levels[ranks], np.minimum(columns["p_value"][ranks], alpha))
        limits = np.array([inference.range_quantile(float(level)) for level in levels])
        self.limits = np.fmin(limits, EXPLAINED * self.sigma)

    def select(self) -> list[ProblemRanks]:
        """Return the problems in the order of their selection."""
        remaining = np.ones(len(self.ranks), bool)
        chosen: list[int] = []
        strength: list[float] = []
        folded: list[list[int]] = []
        while remaining.any():
            statistic = self._statistic(chosen)
            if chosen:
                explained = remaining & ((statistic < self.limits) | self._same_rows(chosen[-1]))
                folded[-1] += np.flatnonzero(explained).tolist()
                remaining &= ~explained
                if not remaining.any():
                    break
            first = remaining & self.material if (remaining & self.material).any() else remaining
            order = np.argsort(np.where(first, -statistic, np.inf), kind="stable")[: first.sum()]
            self._compute(order)
            # Of segments with the same rows, the one with the fewest columns has the simplest name.
            alike = np.flatnonzero(first & self._same_rows(order[0]))
            pick = int(alike[np.lexsort((-statistic[alike], self.depth[alike]))[0]])
            self._compute(np.append(pick, order))
            chosen.append(pick)
            strength.append(float(statistic[pick]))
            folded.append([])
            remaining[pick] = False
        return [
            ProblemRanks(int(self.ranks[pick]), tuple(self.ranks[own].tolist()), value)
            for pick, own, value in zip(chosen, folded, strength, strict=True)
        ]

    def _compute(self, order: IntArray) -> None:
        """Compute the pairs of the first segment in ``order`` unless they are known, with those of the ones after it."""
        if int(order[0]) in self.shared:
            return
        wanted = [int(at) for at in dict.fromkeys(order.tolist()) if at not in self.shared][: self.batch]
        position = np.full(len(self.ranks), -1, np.int32)
        position[wanted] = np.arange(len(wanted))
        work = partial(_overlap_pass, self.target, *self.keys, self.edges, position)
        sums = self.rows.map_reduce(work, _add)[self.target]
        self.residual = sums.residual
        self.common[wanted] = sums.common
        self.shared.update(zip(wanted, sums.shared, strict=True))

    def _same_rows(self, segment: int) -> BoolArray:
        """Return which segments share more than SAME_ROWS of the rows of this one, and of their own."""
        larger = np.maximum(self.row_counts, self.row_counts[segment])
        return np.asarray(self.common[segment] > SAME_ROWS * larger)

    def _statistic(self, chosen: list[int]) -> FloatArray:
        """Return sigma of every finding after a shift per score band in each of the ``chosen``, fitted by least squares."""
        left = self.residual.copy()
        if chosen:
            shared = np.stack([self.shared[pick] for pick in chosen])
            for band in range(left.shape[1]):
                shift = np.linalg.lstsq(shared[:, chosen, band], self.residual[chosen, band], rcond=1e-10)[0]
                left[:, band] -= shared[:, :, band].T @ shift
        return np.where(np.isfinite(self.scale), self.scale * _range(left), np.inf)


def _range(by_band: FloatArray) -> FloatArray:
    """Return the range of the cumulative sums over score bands of each segment, 0 included."""
    path = np.cumsum(by_band, axis=1)
    return np.asarray(np.maximum(path.max(axis=1), 0.0) - np.minimum(path.min(axis=1), 0.0))
