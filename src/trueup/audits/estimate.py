"""From tallies to the numbers of a finding: rates, bias, statistic, p-value, what could have been found."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.kernels import cumulative as sums
from trueup.kernels import tails
from trueup.kernels.cumulative import curves, draw_paths, rows_of
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

    from trueup.audits.family import Block, Family, Workers
    from trueup.kernels.tally import Tally

    Floats = NDArray[np.float64]

LEAST_REAL_ROWS = 10  # below, the variance of a real outcome is not worth its name
WORTH_PARTS = 10_000
CURVE_BINS = 10
ROWS_PER_CURVE_BIN = 20
DRAWS_AT_ONCE = 8_000_000  # numbers held for one batch of Monte-Carlo draws


def noise(tally: Tally) -> Floats:
    """Give the standard deviation of the unnormalised sums: sqrt(v), or by successive differences for real outcomes."""
    state = tally.state
    if not tally.real:
        root: Floats = np.sqrt(state[:, sums.VARIANCE])
        return root
    with np.errstate(invalid="ignore", divide="ignore"):
        stretch = tally.rows / (tally.rows - 1.0)
        total = state[:, sums.R_WITHIN] + 0.5 * state[:, sums.R_BETWEEN]
        return np.where(tally.rows > 1, np.sqrt(stretch * total), np.nan)


def deviation(tally: Tally) -> Floats:
    """Give the statistic in units of its noise; NaN where there is nothing to measure."""
    with np.errstate(invalid="ignore", divide="ignore"):
        span, scale = tally.span, noise(tally)
        # A path that never left zero has no deviation, whatever its noise.
        return np.where(span > 0, span / scale, np.where(np.isnan(scale) | (tally.weight == 0), np.nan, 0.0))


def estimate(tally: Tally, alpha: float, level: float) -> dict[str, NDArray[Any]]:
    """Compute what a finding says beside its statistic and p-value; ``level`` is that of the test of one segment."""
    w, scale = tally.weight, noise(tally)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected, bias = tally.expected / w, tally.residual / w
        observed = (tally.expected + tally.residual) / w if tally.real else _events(tally) / w
        low, high = (bound / expected for bound in _limits(tally, observed, scale / w, alpha))
        return {
            "n": tally.rows, "weight": w, "observed": observed, "expected": expected, "ratio": observed / expected,
            "ratio_low": np.minimum(low, high), "ratio_high": np.maximum(low, high), "bias": bias,
            "ecce": tally.span / w, "mde": detectable_shift(tally, scale, level),
        }  # fmt: skip


def _events(tally: Tally) -> Floats:
    """Give the sum of w y. It is recovered from two other sums, and is a whole number where outcomes are 0 and 1."""
    events = tally.expected + tally.residual
    whole = np.rint(events)
    near = (tally.weight == tally.weights[:, sums.WEIGHT2]) & (np.abs(events - whole) <= 1e-9 * tally.weight)
    return np.clip(np.where(near, whole, events), 0.0, tally.weight)


def _limits(tally: Tally, observed: Floats, error: Floats, alpha: float) -> tuple[Floats, Floats]:
    """Give confidence limits of the observed mean: Wilson's with Kish's effective size, or Student's for real outcomes."""
    if not tally.real:
        return inference.wilson(observed, tally.weight**2 / tally.weights[:, sums.WEIGHT2], alpha)
    from scipy.special import stdtrit

    half = stdtrit(np.maximum(2.0 * (tally.rows - 1.0) / 3.0, 0.1), 1.0 - alpha / 2.0) * error
    return observed - half, observed + half


def enough_rows(tally: Tally, min_rows: int) -> NDArray[np.bool_]:
    """Say which segments have rows enough for a verdict."""
    enough = (tally.rows >= max(min_rows, 1)) & (tally.weight > 0)
    if tally.real:
        enough &= (tally.rows >= LEAST_REAL_ROWS) & (noise(tally) > 0)
    return enough


def in_parts(work: Callable[[Tally], dict[str, NDArray[Any]]], tally: Tally, workers: Workers) -> dict[str, NDArray[Any]]:
    """Do some work segment by segment, in a few parts at once where there are many segments."""
    if len(tally) < WORTH_PARTS:
        return work(tally)
    edges = np.linspace(0, len(tally), 2 * workers.threads + 1).astype(int)
    parts = workers.map(lambda ends: work(tally.part(*ends)), list(itertools.pairwise(edges)))
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def pvalues(tally: Tally) -> Floats:
    """Compute the default p-value of every segment."""
    if tally.real:
        scale = noise(tally)
        with np.errstate(invalid="ignore", divide="ignore"):
            x = np.where(tally.span > 0, tally.span / scale, 0.0)
        out = np.full(len(tally), np.nan)
        known = scale > 0
        out[known] = inference.real_pvalues(x[known], tally.rows[known])
        return out
    state = tally.state
    return inference.segment_pvalues(tally.span, state[:, sums.RISE], state[:, sums.VARIANCE], state[:, sums.SKEW])


def detectable_shift(tally: Tally, scale: Floats, level: float) -> Floats:
    """Give the shift that would be found with 80% power at the level of one segment: x*/W + z sigma.

    x* is the smallest range that is rejected, in the direction in which the sum is skewed. sigma is the noise under
    calibration; a shift that makes a rare outcome much more frequent adds noise of its own, and the power is then nearer
    70%.
    """
    if tally.real:
        reach = inference.detectable_real(np.maximum(tally.rows, LEAST_REAL_ROWS), level) * scale
    else:
        reach = inference.detectable(tally.state[:, sums.VARIANCE], tally.state[:, sums.SKEW], level)
    with np.errstate(invalid="ignore", divide="ignore"):
        shift: Floats = (reach + inference.Z_POWER * scale) / tally.weight
    return shift


def refine(family: Family, p: Floats, which: NDArray[np.int64], workers: Workers) -> None:
    """Replace some default p-values by those of the exact cumulant function; it takes their rows once more."""
    if not len(which):
        return
    target, rows, some = family.target, family.target.rows, family.tally.take(which)
    columns, codes = (key[which] for key in family.keys)
    rise, v, k3 = (some.state[:, c] for c in (sums.RISE, sums.VARIANCE, sums.SKEW))
    index = target.index

    def work(k: int) -> None:
        room = np.empty(len(rows), np.int32)
        at = room[: rows_of(columns[k], codes[k], target.codes, *index, room)]
        w = rows.w[at] if len(rows.w) else rows.w
        p[which[k]] = tails.refined_tail(rows.p[at], w, some.span[k], rise[k], v[k], k3[k])

    workers.map(work, range(len(which)))


def draw_pvalues(family: Family, e: Floats, workers: Workers) -> Floats:
    """Compute the default p-values of all segments for several draws of the outcomes, shape (draws, segments).

    ``e`` is w (y* - p) in the order of the target's scores, shape (draws, rows).
    """
    rows = family.target.rows

    def work(block: Block) -> Floats:
        size = len(block.codes)
        ids = family.target.ids(block)
        at = np.flatnonzero(ids >= 0).astype(np.int32)
        span, rise = np.empty((len(e), size)), np.empty((len(e), size))
        draw_paths(at, ids[at], rows.step, e, span, rise, np.empty((size, 5)))
        v = np.tile(block.tally.state[:, sums.VARIANCE], len(e))
        k3 = np.tile(block.tally.state[:, sums.SKEW], len(e))
        return inference.segment_pvalues(span.ravel(), rise.ravel(), v, k3).reshape(len(e), size)

    return np.concatenate(workers.map(work, family.blocks), axis=1)


def reliability(family: Family, which: NDArray[np.int64], workers: Workers) -> Floats:
    """Sum up the reliability curves of some segments, in bins of equal weight, fewer for few rows."""
    target, rows, some = family.target, family.target.rows, family.tally.take(which)
    columns, codes = (key[which] for key in family.keys)
    bins = np.clip(some.rows // ROWS_PER_CURVE_BIN, 1, CURVE_BINS).astype(np.int32)
    cells, weight, index = np.zeros((len(which), CURVE_BINS, 6)), some.weight.copy(), target.index
    shares = 4 * workers.threads

    def work(share: int) -> None:
        curves(
            share, shares, columns, codes, target.codes, *index,
            rows.step, rows.e, rows.p, rows.w, weight, bins, cells,
        )  # fmt: skip

    workers.map(work, range(shares))
    return cells


def batches(draws: int, rows: int, segments: int) -> Sequence[int]:
    """Cut the draws into batches that fit a fixed budget of memory."""
    size = int(np.clip(DRAWS_AT_ONCE // max(rows + 3 * segments, 1), 1, draws))
    return [min(size, draws - at) for at in range(0, draws, size)]
