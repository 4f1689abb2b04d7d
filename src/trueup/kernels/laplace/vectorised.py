"""NumPy versions of the kernels that sum over neighbours; see `trueup.kernels.vectorised`."""

from __future__ import annotations

import bisect
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.kernels import laplace
from trueup.kernels._jit import plain
from trueup.kernels.laplace import sweeps, tiles
from trueup.kernels.laplace.sweeps import (
    FADE,
    FEW,
    FIRST,
    GROW,
    NOTHING,
    ORIGIN,
    OUT,
    PAIRS,
    REACH,
    SECOND,
    SHARE,
    SIDE,
    SOURCE,
    TARGET,
    X,
    Y,
    Z,
)  # fmt: skip
from trueup.kernels.vectorised import each, replaces

if TYPE_CHECKING:
    from trueup._types import AnyArray, FloatArray, Int32Array, IntArray, UInt8Array


@replaces(laplace._mark, by_rows=False)
def hash_rows(words: AnyArray, bins: IntArray, out: AnyArray) -> None:
    """Do as `trueup.kernels.laplace._mark` does."""
    mark = bins.astype(np.uint64)
    for k in range(words.shape[1]):
        mark = (mark ^ np.where(words[:, k] == laplace.MINUS_ZERO, laplace.ZERO, words[:, k])) * laplace.MIX
        mark ^= (mark >> laplace.RIGHT) | (mark << laplace.LEFT)
    out[:] = mark


@replaces(tiles.between, by_rows=False)
def sum_blocks(
    Q: AnyArray, totals: AnyArray | None, lanes: FloatArray, filled: IntArray, low: AnyArray, high: AnyArray,
    A: AnyArray, mine: AnyArray | None, skip: IntArray, tasks: IntArray, factors: FloatArray, cut: float, most: Any,
    even: int, total: FloatArray, shift: AnyArray,
) -> None:  # fmt: skip
    """Do as `trueup.kernels.laplace.tiles.between` does, a block of rows at a time."""

    def distances(b: int, i: int) -> FloatArray:
        far = _far_reals(Q[b], A[i]) if totals is None or mine is None else _far_steps(Q[b], A[i], totals[b], mine[i])
        far[filled[b] :] = most
        if 0 <= skip[i] - tiles.BLOCK * b < tiles.BLOCK:
            far[skip[i] - tiles.BLOCK * b] = most
        return far

    limits = low.astype(np.float64), high.astype(np.float64)
    for begin, end, first, last in tasks.tolist():
        for i in range(begin, end):
            if i > begin and skip[i] == skip[i - 1] and (A[i] == A[i - 1]).all():  # repeated to fill up four
                total[i], shift[i] = total[i - 1], shift[i - 1]
                continue
            apart = np.zeros(last - first)
            for k in range(low.shape[1]):
                here = float(A[i, k])
                apart += np.maximum(np.maximum(limits[0][first:last, k] - here, here - limits[1][first:last, k]), 0.0)
            reach = (cut + float(distances(first + int(np.argmin(apart)), i).min())) * tiles.ROUNDED
            less, sums = float(most), np.zeros(total[i].shape)
            for b in (first + np.flatnonzero(apart <= reach)).tolist():
                far = distances(b, i)
                if (least := float(far.min())) < less:
                    sums *= each("exp2", -((less - least) * factors))[:, None]
                    less = least
                if least < most:
                    _add_block(far, skip[i] - tiles.BLOCK * b, less, lanes[b], factors, sums, even=bool(even))
            total[i], shift[i] = sums, less


def _add_block(
    far: FloatArray, omitted: int, less: float, lanes: FloatArray, factors: FloatArray, sums: FloatArray, *, even: bool
) -> None:  # fmt: skip
    """Add a block (``lanes``) to the sums of one row, relative to ``less``; row ``omitted`` of the block does not count."""
    for g, factor in enumerate(factors.tolist()):
        near = _weights(far, less, factor) if even else each("exp2", -((far - less) * factor))
        if 0 <= omitted < tiles.BLOCK:
            near[omitted] = 0.0
        for k, column in enumerate(lanes):
            for part in _add_lanes(near * column):
                sums[g, k] += part


def _far_steps(Q: AnyArray, a: AnyArray, total: AnyArray, mine: Any) -> FloatArray:
    """Return the integer distances of one row to a block, which are computed modulo 2^32."""
    larger = np.maximum(Q, a[:, None]).sum(axis=0, dtype=np.int64)
    return np.asarray((2 * larger - int(mine) - total).astype(np.int32).astype(np.float64))


def _far_reals(Q: FloatArray, a: FloatArray) -> FloatArray:
    """Return the distances of one row to a block, four coordinates at a time."""
    gaps, far = np.abs(a[:, None] - Q), np.zeros(Q.shape[1])
    for k in range(0, len(gaps), tiles.TOGETHER):
        far += (gaps[k] + gaps[k + 1]) + (gaps[k + 2] + gaps[k + 3])
    return far


def _weights(far: FloatArray, less: float, factor: float) -> FloatArray:
    """Return 2^-(factor * (far - less)) in float32, as `trueup.kernels.laplace.tiles._weigh` computes it."""
    z = np.minimum((far - less) * factor, tiles.FARTHEST)
    whole = z.astype(np.int32)
    x = (z - whole).astype(np.float32)
    near = np.full(x.shape, tiles.P6)
    for coefficient in (tiles.P5, tiles.P4, tiles.P3, tiles.P2, tiles.P1, tiles.P0):
        near = coefficient + x * near
    powers = ((np.int32(tiles.BIAS) - whole) << np.int32(tiles.MANTISSA)).astype(np.int32).view(np.float32)
    return np.asarray((near * powers).astype(np.float64))


def _add_lanes(products: FloatArray) -> list[float]:
    """Return the sums of every sixteenth product, in the order of `trueup.kernels.laplace.tiles._add_lanes`."""
    p = products.reshape(-1, tiles.LANES)
    sums: list[float] = (((p[0] + p[1]) + (p[2] + p[3])) + ((p[4] + p[5]) + (p[6] + p[7]))).tolist()
    return sums


@replaces(sweeps._deal, by_rows=False)
def deal(order: IntArray, bins: IntArray, _starts: IntArray) -> IntArray:
    """Do as `trueup.kernels.laplace.sweeps._deal` does."""
    return np.asarray(order[np.argsort(bins[order], kind="stable")])


@replaces(sweeps.merged, by_rows=False)
def merge(
    values: FloatArray, starts: IntArray, order: IntArray, targets: FloatArray, target_starts: IntArray,
    target_order: IntArray,
) -> IntArray:  # fmt: skip
    """Do as `trueup.kernels.laplace.sweeps.merged` does."""
    n, out = len(order), np.empty(len(order) + len(target_order), np.int64)
    for begin, end, first, last in _bounds(starts, target_starts):
        rows, asked, whole = order[begin:end], target_order[first:last], out[begin + first : end + last]
        place = np.searchsorted(values[rows], targets[asked], side="right") + np.arange(len(asked))
        real = np.ones(len(whole), bool)
        real[place] = False
        whole[place], whole[real] = n + asked, rows
    return out


def _bounds(starts: IntArray, others: IntArray) -> list[list[int]]:
    """Return for each bin the begin and the end of its rows and of others."""
    return np.stack([starts[:-1], starts[1:], others[:-1], others[1:]], axis=1).tolist()  # type: ignore[no-any-return]


def _reached(values: FloatArray, start: int, scale: float) -> int:
    """Return the first position whose value is farther than REACH from that at ``start``; values are in order."""
    origin = float(values[start])
    return bisect.bisect_right(range(len(values)), REACH, start, key=lambda i: scale * abs(float(values[i]) - origin))


@replaces(sweeps._sweep_line, by_rows=False)
def sweep_line(
    x: FloatArray, columns: FloatArray, starts: IntArray, queries: FloatArray, bounds: IntArray, first: int, last: int,
    scale: float, itself: int, out: FloatArray,
) -> None:  # fmt: skip
    """Do as `trueup.kernels.laplace.sweeps._sweep_line` does."""
    for begin, end, start, stop in _bounds(starts, bounds)[first:last]:
        if begin == end or start == stop:
            continue
        own, C, asked = x[begin:end], columns[begin:end], queries[start:stop]
        below = np.arange(end - begin) if itself else np.searchsorted(own, asked, side="right")
        above = end - begin - below - itself
        for values, added, place in ((own, C, below), (own[::-1], C[::-1], above)):
            sums, origins = _joined(values, added, scale)
            out[start:stop] += sums[place] * each("exp", -scale * np.abs(asked - origins[place]))[:, None]


def _joined(values: FloatArray, columns: FloatArray, scale: float) -> tuple[FloatArray, FloatArray]:
    """Return the sums of a sweep over no row, the first, the first two, ..., and the origins that they are relative to."""
    sums, origins = np.zeros((len(values) + 1, columns.shape[1])), np.full(len(values) + 1, values[0])
    start = 0
    while start < len(values):
        stop = _reached(values, start, scale)
        fade = each("exp", -(scale * np.abs(values[start : start + 1] - origins[start])))
        grow = each("exp", scale * np.abs(values[start:stop] - values[start]))
        run = np.concatenate([sums[start : start + 1] * fade, columns[start:stop] * grow[:, None]])
        sums[start + 1 : stop + 1] = np.add.accumulate(run)[1:]
        origins[start + 1 : stop + 1] = values[start]
        start = stop
    return sums, origins


@replaces(sweeps._set_origins, by_rows=False)
def set_origins(records: FloatArray, kinds: UInt8Array, by_z: Int32Array, bounds: IntArray, scale: float) -> None:
    """Do as `trueup.kernels.laplace.sweeps._set_origins` does."""
    for begin, end in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True):
        own = by_z[begin:end]
        z, real = records[own, Z], (kinds[own] & SOURCE) != 0
        values, start = z[real], 0
        origins = np.full(len(values) + 1, np.nan)
        while start < len(values):
            stop = _reached(values, start, scale)
            origins[start + 1 : stop + 1] = values[start]
            start = stop
        before = origins[np.cumsum(real)]
        far = scale * (z - before)
        near = far <= REACH
        far = np.where(near, far, 0.0)
        records[own, ORIGIN], records[own, FADE] = np.where(near, before, z), each("exp", -far)
        records[own, GROW] = each("exp", far)


def _decay(u: AnyArray) -> FloatArray:
    """Return exp(-u), as `trueup.kernels.laplace.sweeps._decay` computes it."""
    return np.where(u < NOTHING, plain(sweeps._series)(np.minimum(u, NOTHING)), 0.0)


class _Half(NamedTuple):
    """The rows and targets of a bin, or of a half of it by x, in the order of y; see `trueup.kernels.laplace.sweeps`."""

    v: FloatArray  # rows X to SHARE
    marks: UInt8Array
    place: IntArray  # positions of the sources
    scale: float
    whole: bool  # whether every row counts, rather than those across the cut in x


@replaces(sweeps.sum_halves, by_rows=False)
def sum_halves(
    rows: sweeps._Rows, jobs: IntArray, scale: float, base: int, _v: FloatArray, _flow: FloatArray, out: FloatArray
) -> None:
    """Do as `trueup.kernels.laplace.sweeps.sum_halves` does, without its scratch space."""
    for begin, end, start, stop, low, high, deep in jobs.tolist():
        ids = [order[(order >= start) & (order < stop)] for order in (rows.by_y[low:high], rows.by_z[low:high])]
        stack = [(begin, end, start, stop, *ids)]
        while stack:
            first, last, lo, hi, ys, zs = stack.pop()
            if hi == lo or (hi - lo == last - first and not rows.kinds[lo] & TARGET):
                continue
            few, half = last - first <= PAIRS, (first + last) >> 1
            whole = few or rows.planar == 1
            mid = hi if whole else int(rows.sources[half])
            own = _load(rows, ys, mid, scale, whole=whole)
            if few:
                _leaf(own, 0, hi - lo)
            else:
                rank = np.empty(hi - lo, np.int64)
                rank[ys - lo] = np.arange(hi - lo)
                _plane(own, 2 * rank[zs - lo] + (zs >= mid))
            out[ys - base] += (own.v[OUT : OUT + 2] * own.v[SHARE]).T
            if deep and not whole:
                stack.append((half, last, mid, hi, ys[ys >= mid], zs[zs >= mid]))
                stack.append((first, half, lo, mid, ys[ys < mid], zs[zs < mid]))


def _load(rows: sweeps._Rows, ys: IntArray, mid: int, scale: float, *, whole: bool) -> _Half:
    """Return the rows ``ys`` (in the order of y), times the factor of x unless ``whole``."""
    v, records, kinds = np.zeros((SHARE + 1, len(ys))), rows.records[ys].T, rows.kinds[ys]
    v[X : SECOND + 1], v[SHARE] = records, 1.0
    if not whole:
        v[SHARE] = _decay(scale * np.abs(records[X] - rows.records[mid, X]))
        v[X] = 0.0
        v[FIRST : SECOND + 1] *= v[SHARE]
    marks = kinds if whole else kinds | (ys >= mid)
    return _Half(v, marks, np.flatnonzero(kinds & SOURCE), scale, whole)


def _plane(own: _Half, codes: IntArray) -> None:
    """Do as `trueup.kernels.laplace.sweeps._plane` does for more than FEW sources."""
    stack = [(0, len(own.place), 0, len(own.marks), codes)]
    while stack:
        first, last, lo, hi, codes = stack.pop()
        if hi == lo or (hi - lo == last - first and not own.marks[lo] & TARGET):
            continue
        if last - first <= FEW:
            _leaf(own, lo, hi)
        elif own.whole or 0 < np.count_nonzero(own.marks[lo:hi] & SIDE) < hi - lo:
            half = (first + last) >> 1
            mid = int(own.place[half])
            _sweep(own, codes, lo, mid, hi)
            low = codes < 2 * mid
            stack += [(half, last, mid, hi, codes[~low]), (first, half, lo, mid, codes[low])]


def _sweep(own: _Half, codes: IntArray, lo: int, mid: int, hi: int) -> None:
    """Add to each row lo:hi, cut in y at ``mid``, the sums of its opposites: upwards and downwards in z."""
    v = own.v
    height = _decay(own.scale * np.abs(v[Y, lo:hi] - v[Y, mid]))
    grown, faded, values = height * v[GROW, lo:hi], height * v[FADE, lo:hi], v[FIRST : SECOND + 1, lo:hi]
    upwards = _opposite_sums(own, codes, lo, mid, grown * values)
    downwards = _opposite_sums(own, codes[::-1], lo, mid, faded * values)
    v[OUT : OUT + 2, lo:hi] += faded * upwards + grown * downwards


def _opposite_sums(own: _Half, codes: IntArray, lo: int, mid: int, brings: FloatArray) -> FloatArray:
    """Return what each row receives in a sweep in the order of ``codes``; see `trueup.kernels.laplace.sweeps._sweep`."""
    rows = codes >> 1
    quarter, every = 2 * (rows >= mid) + (codes & 1), np.arange(len(rows))
    origin, sources = own.v[ORIGIN, rows], np.flatnonzero(own.marks[rows] & SOURCE)
    added = np.zeros((len(rows), 4, 2))
    added[every, quarter] = brings[:, rows - lo].T
    moves = sources[origin[sources] != np.append(origin[:1], origin[sources[:-1]])].tolist()
    sums, here = added.reshape(-1, 8), np.repeat(origin[0], len(rows))
    for start, stop in zip([0, *moves], [*moves, len(rows)], strict=True):
        if start:
            here[start:] = origin[start]
            sums[start] += sums[start - 1] * _decay(own.scale * np.abs(here[start : start + 1] - here[start - 1]))
        np.add.accumulate(sums[start:stop], out=sums[start:stop])
    received = sums.reshape(-1, 4, 2)[every, quarter ^ (2 if own.whole else 3)]
    away = here != origin  # targets that are their own origin
    received[away] *= _decay(own.scale * np.abs(origin[away] - here[away]))[:, None]
    result = np.empty_like(brings)
    result[:, rows - lo] = received.T
    return result


def _leaf(own: _Half, lo: int, hi: int) -> None:
    """Do as `trueup.kernels.laplace.sweeps._leaf` does."""
    v, marks, mask = own.v, own.marks[lo:hi], 0 if own.whole else SIDE
    for side in range(1 if own.whole else 2):
        sources = lo + np.flatnonzero((marks & (SOURCE | mask)) == (SOURCE | side))
        targets = lo + np.flatnonzero((marks & (TARGET | mask)) == (TARGET | ((1 - side) & mask)))
        apart = np.abs(v[X, targets] - v[X, sources, None])
        for k in (Y, Z):
            apart = apart + np.abs(v[k, targets] - v[k, sources, None])
        near = np.where(sources[:, None] == targets, 0.0, _decay(own.scale * apart))  # a row is not among the others
        for column, to in ((FIRST, OUT), (SECOND, OUT + 1)):
            sums = np.zeros(len(targets))
            for j, value in enumerate(v[column, sources].tolist()):
                sums += near[j] * value
            v[to, targets] += sums
