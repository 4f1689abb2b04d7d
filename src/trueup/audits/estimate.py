"""From tallies to the numbers of a finding: rates, bias, statistic, p-value, what could have been found."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.kernels import cumulative as sums
from trueup.kernels import tails
from trueup.kernels.cumulative import curves, draw_paths, rows_of
from trueup.kernels.tally import join
from trueup.kernels.threads import Workers
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray
    from trueup.audits.family import Block, Family, Target
    from trueup.kernels.tally import Tally

    Collected = list[list[tuple[FloatArray, FloatArray]]]

LEAST_REAL_ROWS = 10  # below, the variance of a real outcome is not worth its name
CURVE_BINS = 10
ROWS_PER_CURVE_BIN = 20
DRAWS_AT_ONCE = 8_000_000  # numbers held for one batch of Monte-Carlo draws


def noise(tally: Tally) -> FloatArray:
    """Give the standard deviation of the unnormalised sums: sqrt(v), or by successive differences for real outcomes."""
    state = tally.state
    if not tally.real:
        root: FloatArray = np.sqrt(state[:, sums.VARIANCE])
        return root
    with np.errstate(invalid="ignore", divide="ignore"):
        stretch = tally.rows / (tally.rows - 1.0)
        total = state[:, sums.R_WITHIN] + 0.5 * state[:, sums.R_BETWEEN]
        return np.where(tally.rows > 1, np.sqrt(stretch * total), np.nan)


def findings(family: Family, alpha: float, level: float, workers: Workers) -> FloatArray:
    """Compute the numbers of every segment, one row a number, in the order of `tails.FINDINGS`.

    ``alpha`` is the level of the interval, ``level`` that of the test of one segment.
    """
    if family.target.rows.real:
        columns = _real_findings(join([block.tally for block in family.blocks]), alpha, level)
        return np.vstack([columns[name] for name in tails.FINDINGS])
    out = np.empty((len(tails.FINDINGS), len(family)))
    quantiles = inference.range_quantile(level), inference.range_quantile(level, inflated=True)
    normal = inference.normal_quantile(alpha)

    def work(share: range) -> None:
        for at in share:
            tally, start = family.blocks[at].tally, int(family.starts[at])
            tails.findings(tally.weights, tally.state, normal, *quantiles, inference.Z_POWER, start, out)

    shares = 4 * workers.threads
    workers.map(work, [range(at, len(family.blocks), shares) for at in range(shares)])
    return out


def _real_findings(tally: Tally, alpha: float, level: float) -> dict[str, FloatArray]:
    """Compute the numbers of segments with real outcomes: no model of the variance, Student's t for the normal."""
    from scipy.special import stdtrit

    w, scale, n = tally.weight, noise(tally), tally.rows
    with np.errstate(invalid="ignore", divide="ignore"):
        expected, bias, span = tally.expected / w, tally.residual / w, tally.span
        observed = expected + bias
        half = stdtrit(np.maximum(2.0 * (n - 1.0) / 3.0, 0.1), 1.0 - alpha / 2.0) * scale / w
        edges = (observed - half) / expected, (observed + half) / expected
        reach = inference.detectable_real(np.maximum(n, LEAST_REAL_ROWS), level)
        # A path that never left zero has no deviation, whatever its noise.
        sigma = np.where(span > 0, span / scale, np.where(np.isnan(scale), np.nan, 0.0))
        # Where there is no noise at all, being off is certain, and being right too.
        p = np.where(scale == 0, np.where(span > 0, 0.0, 1.0), np.nan)
        p[scale > 0] = inference.real_pvalues(sigma[scale > 0], n[scale > 0])
        return {
            "weight": w, "observed": observed, "expected": expected, "ratio": observed / expected,
            "ratio_low": np.minimum(*edges), "ratio_high": np.maximum(*edges), "bias": bias, "ecce": span / w,
            "sigma": sigma, "mde": (reach + inference.Z_POWER) * scale / w, "p_value": p,
        }  # fmt: skip


def enough_rows(family: Family, min_rows: int) -> BoolArray:
    """Say which segments have rows enough for a verdict."""
    return np.concatenate([_enough_rows(block.tally, min_rows) for block in family.blocks])


def _enough_rows(tally: Tally, min_rows: int) -> BoolArray:
    least = max(min_rows, LEAST_REAL_ROWS if tally.real else 1)
    return (tally.rows >= least) & (tally.weight > 0)


def refine(family: Family, p: FloatArray, which: IntArray, workers: Workers) -> None:
    """Replace some default p-values by those of the exact cumulant function; it takes their rows once more.

    Of rows that come in parts, those of some segments at a time are held; a segment of more than that keeps its default,
    which is then next to exact.
    """
    rows = family.take(which).rows
    fit = np.ones(len(rows), bool) if family.held is None else rows <= family.held
    for group in _groups(which[fit], rows[fit], family.held):
        found = _collect(family, group, Workers(workers.threads))
        workers.map(partial(_refine_one, family.take(group), found, group, p), range(len(group)))


def _refine_one(some: Tally, found: Collected, group: IntArray, p: FloatArray, k: int) -> None:
    scores, weights = (np.concatenate(part) for part in zip(*found[k], strict=True))
    rise, v, k3 = (some.state[k, c] for c in (sums.RISE, sums.VARIANCE, sums.SKEW))
    p[group[k]] = tails.refined_tail(scores, weights, some.span[k], rise, v, k3)


def _groups(which: IntArray, rows: IntArray, held: int | None) -> list[IntArray]:
    """Cut segments into groups of no more rows than are held at once; rows that are in memory anyway make one group.

    Examples
    --------
    >>> [group.tolist() for group in _groups(np.array([3, 5, 8, 9]), np.array([6, 4, 1, 10]), 10)]
    [[3, 5], [8], [9]]
    """
    if held is None or not len(which):
        return [which] if len(which) else []
    cuts, total = [], 0
    for at, more in enumerate(rows.tolist()):
        total = total + more if total + more <= held else more
        if total == more and at:
            cuts.append(at)
    return np.split(which, cuts)


def _collect(family: Family, which: IntArray, workers: Workers) -> Collected:
    """Give the scores and weights of the rows of some segments, part by part."""
    columns, codes = (key[which] for key in family.keys)
    found: Collected = [[] for _ in which]
    for target in family.parts():
        target.index  # noqa: B018  # made here, once, and not by every thread at the same time
        workers.map(partial(_collect_one, target, columns, codes, found), range(len(which)))
    return found


def _collect_one(target: Target, columns: Int32Array, codes: Int32Array, found: Collected, k: int) -> None:
    rows, (order, start, first) = target.rows, target.index
    room = np.empty(len(rows), np.int32)
    at = room[: rows_of(columns[k], codes[k], target.codes, order, start, first, room)]
    found[k].append((rows.p[at], rows.w[at] if len(rows.w) else rows.w))


def draw_pvalues(family: Family, e: FloatArray, workers: Workers) -> FloatArray:
    """Compute the default p-values of all segments for several draws of the outcomes, shape (draws, segments).

    ``e`` is w (y* - p) in the order of the target's scores, shape (draws, rows).
    """
    rows = family.target.rows

    def work(block: Block) -> FloatArray:
        size = len(block.codes)
        ids = family.target.ids(block)
        at = np.flatnonzero(ids >= 0).astype(np.int32)
        span, rise = np.empty((len(e), size)), np.empty((len(e), size))
        draw_paths(at, ids[at], rows.step, e, span, rise, np.empty((size, 5)))
        v = np.tile(block.tally.state[:, sums.VARIANCE], len(e))
        k3 = np.tile(block.tally.state[:, sums.SKEW], len(e))
        return inference.segment_pvalues(span.ravel(), rise.ravel(), v, k3).reshape(len(e), size)

    return np.concatenate(workers.map(work, family.blocks), axis=1)


def reliability(family: Family, which: IntArray, workers: Workers) -> FloatArray:
    """Sum up the reliability curves of some segments, in bins of equal weight, fewer for few rows."""
    some = family.take(which)
    columns, codes = (key[which] for key in family.keys)
    bins = np.clip(some.rows // ROWS_PER_CURVE_BIN, 1, CURVE_BINS).astype(np.int32)
    if (found := family.curve_sums(which, bins, CURVE_BINS)) is not None:
        return found
    cells, weight, shares = np.zeros((len(which), CURVE_BINS, 6)), some.weight.copy(), 4 * workers.threads
    carried = np.tile([0.0, -1.0, 0.0], (len(which), 1))
    for target in family.parts():
        rows, (order, start, first) = target.rows, target.index
        work = partial(
            _curves, shares, (columns, codes, target.codes, order, start, first),
            (rows.step, rows.e, rows.p, rows.w, weight, bins, cells, carried),
        )  # fmt: skip
        workers.map(work, range(shares))
    return cells


def _curves(shares: int, keys: tuple[Any, ...], rest: tuple[Any, ...], share: int) -> None:
    curves(share, shares, *keys, *rest)


def batches(draws: int, rows: int, segments: int) -> Sequence[int]:
    """Cut the draws into batches that fit a fixed budget of memory."""
    size = int(np.clip(DRAWS_AT_ONCE // max(rows + 3 * segments, 1), 1, draws))
    return [min(size, draws - at) for at in range(0, draws, size)]
