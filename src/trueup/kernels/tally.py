"""Running sums per segment over rows in score order, and `Tally`: such sums of two score ranges can be added.

Rows are sorted by score once. A combination of columns assigns each row a cell, ``parent * width + code`` (rows with a
negative parent or code are excluded), and ``slot`` assigns each cell its segment, or -1; its last entry is for excluded
rows. Every segment advances its cumulative differences as its rows pass; rows of equal score (one ``step``) advance it
once. Unsigned indices avoid the test for negative ones. The NumPy twins in the tests define these kernels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit, run
from trueup.kernels.sorting import argsort

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray, UInt64Array


ROW_STEPS = 3  # of `advance`, see `trueup.kernels._jit`
DENSE_CELLS = 1 << 22  # up to here a table of all cells is cheaper than sorting the rows' cells
# Columns of the state, one cache line a segment: sums, then the path of the cumulative differences.
CUM, EXPECTED, VARIANCE, SKEW, HIGH, LOW, RISE, STEP = range(8)
BINARY_COLUMNS, REAL_COLUMNS = 8, 18
# Further columns for real outcomes: sums of squares within and between steps, then the current step (count, mean, sum of
# squares), the step before it, the first one, and the number of steps.
WITHIN, BETWEEN, COUNT, MEAN, SS, LAST_MEAN, LAST_VAR, FIRST_MEAN, FIRST_VAR, STEPS = range(8, 18)
# Columns of the weight sums: w, w^2 and, for binary outcomes, u^2, u^3, u^4 and |u|^3, u = w (y - p); of the curve sums.
WEIGHT, WEIGHT2, SQUARES, CUBES, FOURTHS, ABSOLUTE_CUBES = range(6)
WEIGHT_SUMS = 6
CURVE_ROWS, CURVE_WEIGHT, CURVE_WEIGHT2, CURVE_EXPECTED, CURVE_RESIDUAL, CURVE_RESIDUAL2 = range(6)


@jit
def find_dense(
    parent: Int32Array, code: Int32Array, height: int, width: int, min_rows: int
) -> tuple[IntArray, Int32Array, int, Int32Array]:
    """Find the cells with at least ``min_rows`` rows.

    Returns their numbers, their row counts, the number of cells with fewer rows (but some), and ``slot`` (see the module).
    Other rows have slot -1 or, if 3% to 80% of all rows, one beyond the last: adding them is then faster than branching.
    """
    size = height * width
    # Rows left out are counted in eight places by turns: one place would have to wait for itself. The sign is a mask of
    # ones where a part is negative, so that there is no branch to guess wrong.
    counts = np.zeros(size + 8, np.int32)
    for i in range(parent.size):
        out = np.int64((parent[i] | code[i]) >> 31)
        counts[np.uint64(((parent[i] * width + code[i]) & ~out) | ((size + (i & 7)) & out))] += 1
    kept, thin, inside = 0, 0, 0
    for cell in range(size):
        if counts[cell] >= min_rows:
            kept += 1
            inside += counts[cell]
        elif counts[cell] > 0:
            thin += 1
    numbers = np.empty(kept, np.int64)
    rows = np.empty(kept, np.int32)
    elsewhere = kept if 0.2 * parent.size < inside < 0.97 * parent.size else -1
    segment = 0
    for cell in range(size):
        if counts[cell] >= min_rows:
            numbers[segment], rows[segment] = cell, counts[cell]
            counts[cell] = segment
            segment += 1
        else:
            counts[cell] = elsewhere
    counts[size] = elsewhere
    return numbers, rows, thin, counts[: size + 1]


@jit
def look_up(parent: Int32Array, code: Int32Array, width: int, slot: Int32Array, out: Int32Array) -> None:
    """Write to ``out`` the segment of each row, ``slot[parent * width + code]``, or -1 for none."""
    for i in range(parent.size):
        out[i] = slot[np.uint64(slot.size - 1 if (parent[i] | code[i]) < 0 else parent[i] * width + code[i])]


@jit
def advance(
    parent: Int32Array, code: Int32Array, width: int, slot: Int32Array, step: Int32Array, e: FloatArray, p: FloatArray,
    w: FloatArray | None, ratio: float, state: FloatArray, sums: FloatArray,
) -> None:  # fmt: skip
    """Advance the state of every segment over rows in ascending score order, for binary outcomes; see the module.

    ``e`` is w (y - p). HIGH, LOW and RISE (the largest ascent) of the cumulative difference are updated with its value
    before each new ``step``, so that tied scores count as one; `close` adds the last value. ``w`` is None if every weight
    is 1: the kernel is then compiled without the branch; else ``sums`` adds up w, w^2, e^2, e^3 and e^4. If rows of
    outcome 1 weigh ``ratio`` times as much as rows of outcome 0, variance and skewness are those of `null_rows`.
    """
    for i in range(parent.size):
        k = slot[np.uint64(slot.size - 1 if (parent[i] | code[i]) < 0 else parent[i] * width + code[i])]
        if k < 0:
            continue
        s = state[np.uint64(k)]
        total = s[CUM]
        q = p[i]
        v = q * (1.0 - q)
        third = v * (1.0 - 2.0 * q)
        if w is not None:
            a = w[i]
            square = e[i] * e[i]
            sums[k, WEIGHT] += a
            sums[k, WEIGHT2] += a * a
            sums[k, SQUARES] += square
            sums[k, CUBES] += square * e[i]
            sums[k, ABSOLUTE_CUBES] += square * abs(e[i])
            sums[k, FOURTHS] += square * square
            if ratio != 1.0:
                b = a / (1.0 + (ratio - 1.0) * (q + e[i] / a))
                v *= b * b * ratio
                third = v * b * (ratio * (1.0 - q) - q)
            else:
                v *= a * a
                third *= a * a * a
            q *= a
        # Four neighbours are read, added to and written together: one instruction each, where the machine has it.
        following, expected, variance, skew = total + e[i], s[EXPECTED] + q, s[VARIANCE] + v, s[SKEW] + third
        if s[STEP] != step[i]:
            s[STEP] = step[i]
            low = s[LOW] if s[LOW] < total else total
            rise = total - low
            s[LOW] = low
            s[HIGH] = s[HIGH] if s[HIGH] > total else total
            s[RISE] = s[RISE] if s[RISE] > rise else rise
        s[CUM], s[EXPECTED], s[VARIANCE], s[SKEW] = following, expected, variance, skew


@jit
def close(state: FloatArray) -> None:
    """Update HIGH, LOW and RISE of every segment with the cumulative difference after its last row (binary outcomes)."""
    for k in range(state.shape[0]):
        s = state[k]
        s[LOW] = min(s[LOW], s[CUM])
        s[HIGH] = max(s[HIGH], s[CUM])
        s[RISE] = max(s[RISE], s[CUM] - s[LOW])


@jit
def _close_step(s: FloatArray) -> None:
    """Add the current step (rows of one score) of a segment to its state ``s``, for real outcomes, and clear the step."""
    s[LOW] = min(s[LOW], s[CUM])
    s[HIGH] = max(s[HIGH], s[CUM])
    s[RISE] = max(s[RISE], s[CUM] - s[LOW])
    variance = s[SS] / s[COUNT]
    s[WITHIN] += s[SS]
    if s[STEPS] == 0:
        s[FIRST_MEAN] = s[MEAN]
        s[FIRST_VAR] = variance
    else:
        jump = s[MEAN] - s[LAST_MEAN]
        s[BETWEEN] += variance + s[LAST_VAR] + jump * jump
    s[LAST_MEAN] = s[MEAN]
    s[LAST_VAR] = variance
    s[STEPS] += 1
    s[COUNT], s[MEAN], s[SS] = 0.0, 0.0, 0.0


@jit
def advance_real(
    parent: Int32Array, code: Int32Array, width: int, slot: Int32Array, step: Int32Array, e: FloatArray, p: FloatArray,
    w: FloatArray | None, v: FloatArray | None, k3: FloatArray | None, state: FloatArray, sums: FloatArray,
) -> None:  # fmt: skip
    """Advance the state of every segment over rows in ascending score order, for real outcomes; arguments as `advance`.

    ``v`` and ``k3`` are variance and third cumulant of e by row (`trueup.audits.dispersion`), or None. The state
    also has sums for the variance by successive differences: mean and sum of squares of e in the current step; over all
    steps, the sum of squares within steps and of squared jumps from each step to the next.
    """
    for i in range(parent.size):
        k = slot[np.uint64(slot.size - 1 if (parent[i] | code[i]) < 0 else parent[i] * width + code[i])]
        if k < 0:
            continue
        s = state[np.uint64(k)]
        if s[STEP] != step[i]:
            s[STEP] = step[i]
            if s[COUNT] > 0:
                _close_step(s)
        s[CUM] += e[i]
        s[COUNT] += 1.0
        off = e[i] - s[MEAN]
        s[MEAN] += off / s[COUNT]
        s[SS] += off * (e[i] - s[MEAN])
        if v is not None and k3 is not None:
            s[VARIANCE] += v[i]
            s[SKEW] += k3[i]
        if w is not None:
            s[EXPECTED] += w[i] * p[i]
            sums[k, WEIGHT] += w[i]
            sums[k, WEIGHT2] += w[i] * w[i]
        else:
            s[EXPECTED] += p[i]


@jit
def close_real(state: FloatArray) -> None:
    """Add the last step (rows of one score) of every segment to its state, for real outcomes."""
    for k in range(state.shape[0]):
        if state[k, COUNT] > 0:
            _close_step(state[k])


@jit
def count_rows(parent: Int32Array, code: Int32Array, width: int, slot: Int32Array, rows: IntArray) -> None:
    """Add the number of rows of every segment to ``rows``; the other arguments are explained in the module."""
    for i in range(parent.size):
        k = slot[np.uint64(slot.size - 1 if (parent[i] | code[i]) < 0 else parent[i] * width + code[i])]
        if k >= 0:
            rows[np.uint64(k)] += 1


@jit
def cross_dense(
    parent: Int32Array, code: Int32Array, height: int, width: int, min_rows: int,
    step: Int32Array, e: FloatArray, p: FloatArray, w: FloatArray | None, ratio: float, v: FloatArray | None,
    k3: FloatArray | None, real: int | None,
) -> tuple[IntArray, Int32Array, int, FloatArray, FloatArray]:  # fmt: skip
    """Find cells as `find_dense` does; return numbers, row counts, cells with too few rows, states and weight sums.

    One call without the global interpreter lock, so that threads do not wait for it between the two steps. ``real`` is None
    for binary outcomes: the other branch is then not compiled. For states and weight sums see `advance`.
    """
    numbers, rows, thin, slot = find_dense(parent, code, height, width, min_rows)
    state = np.zeros((numbers.size + 1, BINARY_COLUMNS if real is None else REAL_COLUMNS))
    sums = np.zeros((numbers.size + 1, WEIGHT_SUMS))
    if numbers.size > 0:
        if real is None:
            advance(parent, code, width, slot, step, e, p, w, ratio, state, sums)
            close(state)
        else:
            advance_real(parent, code, width, slot, step, e, p, w, v, k3, state, sums)
            close_real(state)
    return numbers, rows, thin, state[:-1], sums[:-1]


def group_rows(codes: Int32Array, start: Int32Array, order: Int32Array) -> None:
    """List the rows of each level of a column, in score order: those of level k are ``order[start[k] : start[k + 1]]``.

    ``start`` is zero on entry, with one more entry than levels; rows of code -1 are not listed.
    """
    run(_group_rows, 0.2 * len(codes), codes, start, order, instead=_group_rows_uncompiled)


def _group_rows_uncompiled(codes: Int32Array, start: Int32Array, order: Int32Array) -> None:
    """Do as `_group_rows` does."""
    kept = np.flatnonzero(codes >= 0)
    start[1:] = np.cumsum(np.bincount(codes[kept], minlength=len(start) - 1))
    order[: len(kept)] = kept[np.argsort(codes[kept], kind="stable")]


@jit
def _group_rows(codes: Int32Array, start: Int32Array, order: Int32Array) -> None:
    """Write what `group_rows` returns."""
    for i in range(codes.size):
        if codes[i] >= 0:
            start[codes[i] + 1] += 1
    for k in range(start.size - 1):
        start[k + 1] += start[k]
    for i in range(codes.size):
        if codes[i] >= 0:
            order[start[codes[i]]] = i
            start[codes[i]] += 1
    for k in range(start.size - 1, 0, -1):
        start[k] = start[k - 1]
    start[0] = 0


@jit
def rows_of(
    columns: Int32Array, wanted: Int32Array, codes: Int32Array, order: Int32Array, start: Int32Array, first: Int32Array,
    out: Int32Array,
) -> int:  # fmt: skip
    """Write the rows of one segment to ``out``, in score order; return their number.

    ``columns`` and ``wanted`` are the columns (-1 in place of missing ones) and codes of the segment; ``codes`` and
    ``order`` (see `group_rows`) have one row per column, and ``start`` has the starts of all columns, those of column c
    from ``first[c]`` on. Only the rows of the segment's rarest level are searched.
    """
    if columns[0] < 0:
        for i in range(codes.shape[1]):
            out[i] = i
        return i + 1
    rarest, low, high = 0, 0, codes.shape[1] + 1
    for c in range(columns.size):
        if columns[c] >= 0:
            level = first[columns[c]] + wanted[c]
            if start[level + 1] - start[level] < high - low:
                rarest, low, high = c, start[level], start[level + 1]
    # The other two columns; where there are fewer, the rarest itself, which every listed row agrees with.
    a = (rarest + 1) % columns.size
    b = (rarest + 2) % columns.size
    a = a if columns[a] >= 0 else rarest
    b = b if columns[b] >= 0 else rarest
    listed, first_codes, second_codes = order[columns[rarest]], codes[columns[a]], codes[columns[b]]
    count = 0
    for j in range(low, high):
        i = listed[j]
        out[count] = i
        count += (first_codes[i] == wanted[a]) & (second_codes[i] == wanted[b])
    return count


def count_listed(
    columns: Int32Array, wanted: Int32Array, start: Int32Array, first: Int32Array, rows: int
) -> int:  # fmt: skip
    """Count the rows that `rows_of` searches for all of these segments."""
    if not len(start):  # no columns
        return rows * len(columns)
    level = np.where(columns >= 0, first[columns] + wanted, 0)
    counts = np.where(columns >= 0, start[level + 1] - start[level], rows)
    return int(counts.min(axis=1, initial=rows).sum())


@jit
def draw_paths(
    at: Int32Array, ids: Int32Array, step: Int32Array, e: FloatArray, span: FloatArray, rise: FloatArray, work: FloatArray
) -> None:
    """Compute range and largest ascent of the cumulative differences of every segment, for several draws of the outcomes.

    Row at[j] is in segment ids[j]; ``step`` numbers the distinct scores; ``e`` (draws, rows) is w (y - p). ``span`` and
    ``rise`` (draws, segments) are written; ``work`` (segments, 5) is scratch space.
    """
    for d in range(e.shape[0]):
        work[:] = 0.0
        work[:, 4] = -1.0
        for j in range(ids.size):
            i = at[j]
            s = work[ids[j]]
            if s[4] != step[i]:
                s[4] = step[i]
                s[1] = max(s[1], s[0])
                s[2] = min(s[2], s[0])
                s[3] = max(s[3], s[0] - s[2])
            s[0] += e[d, i]
        for k in range(work.shape[0]):
            s = work[k]
            s[1] = max(s[1], s[0])
            s[2] = min(s[2], s[0])
            span[d, k] = s[1] - s[2]
            rise[d, k] = max(s[3], s[0] - s[2])


@jit
def curve(
    at: Int32Array, step: Int32Array, e: FloatArray, p: FloatArray, w: FloatArray, total: float, bins: int,
    out: FloatArray, carried: FloatArray,
) -> None:  # fmt: skip
    """Add the rows ``at`` of one segment to its score bins of equal weight; rows of equal score share a bin.

    ``total`` is the weight of the segment; ``out`` (bins or more, 6) has the columns CURVE_... and is added to. ``carried``
    is the state between chunks: the weight of all rows before, the last step and its bin, initially 0, -1 and 0.
    """
    weighted = w.size > 0
    seen, last, place = carried[0], int(carried[1]), int(carried[2])
    for j in range(at.size):
        i = at[j]
        if step[i] != last:
            last = step[i]
            # A hair is added so that a boundary met exactly does not depend on rounding.
            place = min(int(bins * (seen / total) + 1e-9), bins - 1)
        a = w[i] if weighted else 1.0
        cell = out[place]
        cell[CURVE_ROWS] += 1.0
        cell[CURVE_WEIGHT] += a
        cell[CURVE_WEIGHT2] += a * a
        cell[CURVE_EXPECTED] += a * p[i]
        cell[CURVE_RESIDUAL] += e[i]
        cell[CURVE_RESIDUAL2] += e[i] * e[i]
        seen += a
    carried[0], carried[1], carried[2] = seen, last, place


@jit
def curves(
    share: int, shares: int, columns: Int32Array, wanted: Int32Array, codes: Int32Array, order: Int32Array,
    start: Int32Array, first: Int32Array, step: Int32Array, e: FloatArray, p: FloatArray, w: FloatArray, total: FloatArray,
    bins: Int32Array, out: FloatArray, carried: FloatArray,
) -> None:  # fmt: skip
    """Call `curve` for segments share, share + shares, ..., the work of one thread, with the rows that `rows_of` finds."""
    rows = np.empty(codes.shape[1], np.int32)
    for k in range(share, total.size, shares):
        count = rows_of(columns[k], wanted[k], codes, order, start, first, rows)
        curve(rows[:count], step, e, p, w, total[k], bins[k], out[k], carried[k])


@dataclass(frozen=True, eq=False)
class SortedRows:
    """Outcome and score of every row, in score order.

    ``order`` sorts the input, ``step`` numbers the distinct scores, ``e`` is w (y - p), ``w`` is empty if every weight is
    1, and ``real`` is true if outcomes are not probabilities. ``v`` and ``k3`` are the variance and the third cumulant of
    ``e``, None until a model of the noise is fitted (`trueup.audits.dispersion`), and for probabilities. Rows of outcome 1
    weigh ``ratio`` times as much as they would with outcome 0.
    """

    order: IntArray
    step: Int32Array
    e: FloatArray
    p: FloatArray
    w: FloatArray
    real: bool
    v: FloatArray | None = None
    k3: FloatArray | None = None
    ratio: float = 1.0

    def __len__(self) -> int:
        return len(self.order)

    def null_rows(self, at: IntArray | Int32Array | slice) -> tuple[FloatArray, FloatArray]:
        """Return q and a of the rows ``at``, so that under calibration w (y - p) is a (B - q), B of probability q.

        They are p and w (empty if every weight is 1), unless weights depend on the outcome. Let b be the weight of a row
        of outcome 0, and b ratio that of outcome 1: w (y - p) is b ratio (1 - p) or -b p and has mean 0, so that
        q = p / (p + ratio (1 - p)) and a = b (p + ratio (1 - p)).
        """
        p, w = self.p[at], self.w[at] if len(self.w) else self.w
        if self.ratio == 1.0:
            return p, w
        total = p + self.ratio * (1.0 - p)
        return p / total, w / (1.0 + (self.ratio - 1.0) * (p + self.e[at] / w)) * total


def sort_rows(y: FloatArray, p: FloatArray, w: FloatArray | None, *, real: bool) -> SortedRows:
    """Sort rows by score; ``w`` is None if every weight is 1, and ``real`` true if outcomes are not probabilities."""
    order = argsort(p)
    scores = p[order]
    step = np.zeros(len(p), np.int32)
    np.cumsum(scores[1:] != scores[:-1], out=step[1:])
    weights = np.empty(0) if w is None else w[order]
    e = y[order] - scores
    if w is not None:
        e *= weights
    return SortedRows(order, step, e, scores, weights, real)


def cluster_rows(
    y: FloatArray, p: FloatArray, w: FloatArray | None, cluster: UInt64Array, order: IntArray
) -> SortedRows:  # fmt: skip
    """Return probabilities and outcomes in an ``order`` that keeps clusters together; ``step`` numbers the clusters."""
    keys, scores = cluster[order], p[order]
    step = np.zeros(len(p), np.int32)
    np.cumsum(keys[1:] != keys[:-1], out=step[1:])
    weights = np.empty(0) if w is None else w[order]
    e = y[order] - scores
    return SortedRows(order, step, e if w is None else e * weights, scores, weights, real=False)


@dataclass(frozen=True, eq=False)
class Cells:
    """Cells ``parent * width + code`` with enough rows: ascending numbers, row counts; ``thin`` counts those with fewer."""

    numbers: IntArray
    rows: AnyArray
    thin: int = 0

    def __len__(self) -> int:
        return len(self.numbers)


def find_cells(parent: Int32Array, code: Int32Array, shape: tuple[int, int], min_rows: int) -> Cells:
    """Find the cells ``parent * width + code`` with at least ``min_rows`` rows; ``shape`` is (number of parents, width)."""
    height, width = shape
    if _dense(shape, len(parent)):
        numbers, rows, thin, _ = run(find_dense, 2 * len(parent) + height * width, parent, code, height, width, min_rows)
        return Cells(numbers, rows, thin)
    cell = parent.astype(np.int64) * width + code
    numbers, counts = np.unique(cell[(parent >= 0) & (code >= 0)], return_counts=True)
    keep = counts >= min_rows
    return Cells(numbers[keep], counts[keep].astype(np.int32), int(len(keep) - keep.sum()))


def slots(size: int, numbers: IntArray) -> Int32Array:
    """Return the ``slot`` of ``size`` cells: their index in ``numbers`` or -1, and a last entry of -1 for excluded rows."""
    slot = np.full(size + 1, -1, np.int32)
    slot[numbers] = np.arange(len(numbers), dtype=np.int32)
    return slot


def assign(parent: Int32Array, code: Int32Array, shape: tuple[int, int], numbers: IntArray) -> Int32Array:
    """Return for each row the index of its cell ``parent * width + code`` in ``numbers``, -1 if it is not among them."""
    height, width = shape
    if _dense(shape, len(parent)):
        out = np.empty(len(parent), np.int32)
        run(look_up, len(parent), parent, code, width, slots(height * width, numbers), out)
        return out
    if not len(numbers):
        return np.full(len(parent), -1, np.int32)
    cell = parent.astype(np.int64) * width + code
    place = np.minimum(np.searchsorted(numbers, cell), len(numbers) - 1)
    known = (parent >= 0) & (code >= 0) & (numbers[place] == cell)
    return np.where(known, place, -1).astype(np.int32)


def _dense(shape: tuple[int, int], rows: int) -> bool:
    return shape[0] * shape[1] <= max(DENSE_CELLS, rows)


@dataclass(frozen=True, eq=False)
class Tally:
    """Running sums of some segments over rows in score order: number of rows, state, and weight sums.

    Two tallies add (``first + second``) if every score of the second lies above every score of the first. The columns of
    ``state`` are CUM to STEP of this module, and up to STEPS for ``real`` outcomes.
    """

    rows: IntArray
    state: FloatArray
    weights: FloatArray
    real: bool

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def weight(self) -> FloatArray:
        """Total weight of each segment."""
        return self.weights[:, WEIGHT]

    @property
    def residual(self) -> FloatArray:
        """Sum of w (y - p) of each segment."""
        return self.state[:, CUM]

    @property
    def expected(self) -> FloatArray:
        """Sum of w p of each segment."""
        return self.state[:, EXPECTED]

    @property
    def span(self) -> FloatArray:
        """Largest minus smallest cumulative difference, C_0 = 0 included: total weight times ECCE-R."""
        return np.asarray(self.state[:, HIGH] - self.state[:, LOW])

    @property
    def reach(self) -> FloatArray:
        """Largest absolute value of the cumulative differences: total weight times ECCE-MAD."""
        return np.maximum(self.state[:, HIGH], -self.state[:, LOW])

    @property
    def rises(self) -> BoolArray:
        """Whether the smallest cumulative difference of each segment comes before the largest."""
        return np.asarray(self.state[:, RISE] >= self.span * (1.0 - 1e-9))

    @property
    def rise_ratio(self) -> FloatArray:
        """max(1, observed / expected) of each segment whose differences rise, else 1."""
        rises = self.rises & (self.expected > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return np.where(rises, np.maximum(1.0, 1.0 + self.residual / self.expected), 1.0)

    def take(self, which: IntArray) -> Tally:
        """Return the tally of the segments with indices ``which``."""
        return Tally(self.rows[which], self.state[which], self.weights[which], self.real)

    def __add__(self, other: Tally) -> Tally:
        """Return the tally of the rows of both tallies; all scores of ``other`` must lie above those of this one."""
        a, b = self.state, other.state
        out = a + b
        start = a[:, CUM]
        out[:, HIGH] = np.maximum(a[:, HIGH], start + b[:, HIGH])
        out[:, LOW] = np.minimum(a[:, LOW], start + b[:, LOW])
        leap = start + b[:, HIGH] - a[:, LOW]
        out[:, RISE] = np.maximum(np.maximum(a[:, RISE], b[:, RISE]), leap)
        if self.real:
            # One more jump, where the two meet.
            some_a, some_b = a[:, STEPS] > 0, b[:, STEPS] > 0
            jump = a[:, LAST_MEAN] - b[:, FIRST_MEAN]
            meeting = a[:, LAST_VAR] + b[:, FIRST_VAR] + jump**2
            out[:, BETWEEN] += np.where(some_a & some_b, meeting, 0.0)
            for column in (FIRST_MEAN, FIRST_VAR):
                out[:, column] = np.where(some_a, a[:, column], b[:, column])
            for column in (LAST_MEAN, LAST_VAR):
                out[:, column] = np.where(some_b, b[:, column], a[:, column])
        return Tally(self.rows + other.rows, out, self.weights + other.weights, self.real)


def concatenate_tallies(tallies: Sequence[Tally]) -> Tally:
    """Concatenate the segments of several tallies."""
    rows, state, weights = (np.concatenate([getattr(t, name) for t in tallies]) for name in ("rows", "state", "weights"))
    return Tally(rows, state, weights, tallies[0].real)


class RunningTally:
    """The tally of the cells ``parent * width + code`` over chunks of rows in ascending score order.

    A score may continue from one chunk to the next, with the same step number.
    """

    def __init__(self, shape: tuple[int, int], cells: Cells, *, real: bool) -> None:
        self.shape, self.cells, self.real = shape, cells, real
        self.rows = np.zeros(len(cells), np.int64)
        self.state = np.zeros((len(cells), REAL_COLUMNS if real else BINARY_COLUMNS))
        self.weights = np.zeros((len(cells), WEIGHT_SUMS))

    def advance(self, rows: SortedRows, parent: Int32Array, code: Int32Array, *, count: bool = True) -> None:
        """Add the rows of the next chunk to the state, and to the row counts if ``count``."""
        (height, width), numbers = self.shape, self.cells.numbers
        if _dense(self.shape, len(parent)):
            slot = slots(height * width, numbers)
        else:
            parent = code = assign(parent, code, self.shape, numbers)
            width, slot = 0, slots(len(numbers), np.arange(len(numbers)))
        if count:
            run(count_rows, len(parent), parent, code, width, slot, self.rows)
        w = rows.w if len(rows.w) else None
        if self.real:
            noise = rows.v, rows.k3
            arrays = rows.step, rows.e, rows.p, w, *noise, self.state, self.weights
            run(advance_real, 5 * len(parent), parent, code, width, slot, *arrays)
        else:
            sums = rows.step, rows.e, rows.p, w, rows.ratio, self.state, self.weights
            run(advance, ROW_STEPS * len(parent), parent, code, width, slot, *sums)

    def finish(self, *, weighted: bool) -> Tally:
        """Return the tally of all chunks; unless ``weighted``, the row counts are the weights."""
        run(close_real if self.real else close, 3 * len(self.state), self.state)
        if not weighted:
            self.weights[:, :SQUARES] = self.rows[:, None]
        return Tally(self.rows, self.state, self.weights, self.real)


def tally(rows: SortedRows, parent: Int32Array, code: Int32Array, shape: tuple[int, int], cells: Cells) -> Tally:
    """Tally the given cells, ``parent * width + code`` for each row, in one pass over the rows."""
    running = RunningTally(shape, cells, real=rows.real)
    running.rows[:] = cells.rows
    running.advance(rows, parent, code, count=False)
    return running.finish(weighted=len(rows.w) > 0)


def tally_groups(rows: SortedRows, codes: Int32Array, count: int) -> Tally:
    """Tally ``count`` groups, also empty ones, by the code of each row in input order; code -1 means no group."""
    own = codes[rows.order]
    counts = np.bincount(own[own >= 0], minlength=count).astype(np.int32)
    return tally(rows, np.zeros(len(own), np.int32), own, (1, count), Cells(np.arange(count), counts))


def cross(
    rows: SortedRows, parent: Int32Array, code: Int32Array, shape: tuple[int, int], min_rows: int
) -> tuple[Cells, Tally]:
    """Find the cells ``parent * width + code`` with at least ``min_rows`` rows; return them and their tally."""
    if not _dense(shape, len(parent)):
        cells = find_cells(parent, code, shape, min_rows)
        return cells, tally(rows, parent, code, shape, cells)
    w, real = rows.w if len(rows.w) else None, 1 if rows.real else None
    numbers, counts, thin, state, weights = run(
        cross_dense, (ROW_STEPS + 2) * len(parent) + shape[0] * shape[1],
        parent, code, *shape, min_rows, rows.step, rows.e, rows.p, w, rows.ratio, rows.v, rows.k3, real,
    )  # fmt: skip
    if w is None:
        weights[:, :SQUARES] = counts[:, None]
    return Cells(numbers, counts, thin), Tally(counts.astype(np.int64), state, weights, rows.real)
