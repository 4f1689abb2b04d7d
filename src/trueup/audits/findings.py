"""From tallies to findings: rates, statistic, p-values (refined, adjusted), detectable shift, rank and curves."""

from __future__ import annotations

import itertools
import math
import operator
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.clusters import ClusterEffects, cluster_effects, inflate
from trueup.audits.dispersion import PooledNoise
from trueup.audits.materiality import adjusted_ratios, exceeds_tolerance
from trueup.audits.segments import AuditRows, MemoryRows, ScorePartition, SegmentBlock, SegmentFamily, SortedChunk, batches
from trueup.kernels import tails
from trueup.kernels import tally as sums
from trueup.kernels._jit import run
from trueup.kernels.sorting import argsort
from trueup.kernels.tally import Tally, concatenate_tallies
from trueup.kernels.threads import Workers
from trueup.metrics import inference
from trueup.metrics.reliability import CurveSet, curves_from_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.audits.dispersion import Noise
    from trueup.audits.segments import SegmentGrid
    from trueup.audits.settings import AuditSettings
    from trueup.data.table import Table

    SegmentScores = list[list[tuple[FloatArray, FloatArray]]]  # of every segment, score and weight of its rows by chunk

MIN_REAL_ROWS = 10  # below, the variance of a real outcome cannot be estimated
MAX_CURVES = 1000
CURVE_BINS = 10
ROWS_PER_CURVE_BIN = 20
LAST = -1
MAX_DRAWN_NUMBERS = 8_000_000  # held for one batch of Monte-Carlo draws
DRAW_STREAM = int.from_bytes(b"null", "big")


@dataclass(frozen=True, eq=False)
class RankedFindings:
    """Columns of all findings, worst first; the index of each segment (``order``); curves by rank, 0 being the worst.

    ``overall_stretch`` is the factor by which clusters raise the standard deviation of the statistic over all rows;
    ``spread`` the largest factor by which weights that depend on the outcome raise variances (`_raise_variances`).
    ``levels`` and ``sizes`` are those of `trueup.audits.materiality.adjusted_ratios`; ``material`` tells which segments
    certainly have an error above the tolerance, all those rejected if there is none.
    """

    columns: dict[str, AnyArray]
    order: IntArray
    curves: CurveSet
    levels: FloatArray
    sizes: FloatArray
    material: BoolArray
    overall_stretch: float = 1.0
    clusters: int = 0
    effective_clusters: float = math.inf  # of equal weight
    spread: float = 1.0


def compute_findings(
    rows: AuditRows,
    families: Sequence[SegmentFamily],
    settings: AuditSettings,
    workers: Workers,
    grid: SegmentGrid,
    table: Table | None = None,
) -> RankedFindings:
    """Test the segments of all audited scores as one family, and rank them; only ``adjust="max"`` needs ``table``."""
    quiet = Workers(workers.threads)
    testable = np.concatenate(
        [testable_segments(family, block.tally, settings.min_rows) for family in families for block in family.blocks]
    )
    shares = alpha_shares(families, testable, grid)
    blocks = [block for family in families for block in family.blocks]
    modelled = [block.tally.state[:, [sums.VARIANCE, sums.SKEW]] for block in blocks]  # of draws, before they are raised
    observed = _observed_cumulants(families, rows.dependent) if rows.weighted and not rows.real else None
    spread = _raise_variances(families, observed) if observed is not None and any(rows.dependent) else 1.0
    effects = cluster_effects(rows, families) if rows.score_edges else None
    starts = np.cumsum([0, *(len(family) for family in families)])
    numbers = [
        segment_numbers(
            family, settings.alpha * shares[start : start + len(family)], settings.alpha, quiet,
            None if effects is None else effects.design[start : start + len(family)],
        )
        for family, start in zip(families, starts, strict=False)
    ]  # fmt: skip
    values = numbers[0] if len(numbers) == 1 else np.concatenate(numbers, axis=1)
    columns: dict[str, AnyArray] = dict(zip(tails.FINDINGS, values, strict=True))
    p = columns["p_value"]
    if effects is not None:
        tally = concatenate_tallies([block.tally for family in families for block in family.blocks])
        p[:] = effects.pvalues(tally, families[0].noise)
        columns["design_effect"] = effects.design.copy()  # it is sorted in place
    # Segments with too few clusters or non-zero outcomes are in the family, and never rejected.
    withheld = np.zeros(len(p), bool) if effects is None else effects.few
    if isinstance(families[0].noise, PooledNoise):
        unknown = np.concatenate([families[0].noise.few_nonzero(block.columns, block.codes) for block in blocks])
        for name in ("sigma", "ratio_low", "ratio_high", "mde", "size"):
            columns[name][unknown] = np.nan
        withheld = withheld | unknown
    p[withheld] = 1.0
    p[~testable] = np.nan
    adjusted = np.full(len(p), np.nan)
    if testable.any():
        if settings.adjust == "max":
            assert table is not None
            assert isinstance(rows, MemoryRows)
            adjusted[testable] = _monte_carlo(table, rows, families, modelled, p, testable, shares, settings, workers)
        else:
            if not rows.real:
                floor = 0.0 if observed is None else _weighted_floor(families, observed, effects)
                np.maximum(p, floor, out=p)
                _refine_pvalues(rows, families, p, columns["sigma"], shares, settings, workers, effects)
                np.maximum(p, floor, out=p)
            adjusted[testable] = inference.adjust(p[testable], settings.adjust, shares[testable])  # type: ignore[arg-type]
    testable &= ~withheld
    p[withheld] = adjusted[withheld] = np.nan
    order = _rank(adjusted, testable, columns["sigma"])
    n = np.concatenate([block.tally.rows for family in families for block in family.blocks])
    columns |= {"n": n, "p_adjusted": adjusted, "testable": testable}
    sizes, levels = columns.pop("size"), settings.alpha * shares
    material = _material(families, columns, sizes, levels, settings, testable & (adjusted <= settings.alpha))
    for column in columns.values():
        column[:] = column[order]  # in place: fresh memory costs more than the move
    starts = np.cumsum([0, *(len(family) for family in families)])
    shown = np.arange(min(MAX_CURVES, len(order)))
    if not isinstance(rows, MemoryRows):  # later there are no rows to compute curves of other segments from
        single = np.concatenate([(family.keys[0] >= 0).sum(axis=1) <= 1 for family in families])
        shown = np.union1d(shown, np.flatnonzero(single[order])[:MAX_CURVES])
    shown = np.union1d(shown, np.flatnonzero(np.isin(order, starts[:-1])))
    curves = segment_curves(rows, families, order, shown, settings.alpha, columns.get("design_effect"))
    ranked = RankedFindings(columns, order, curves, levels[order], sizes[order], material[order], spread=spread)
    if effects is None:
        return ranked
    stretch = math.sqrt(effects.design[0])
    return replace(ranked, overall_stretch=stretch, clusters=effects.clusters, effective_clusters=effects.equal)


def _material(
    families: Sequence[SegmentFamily], columns: dict[str, AnyArray], sizes: FloatArray, levels: FloatArray,
    settings: AuditSettings, rejected: BoolArray,
) -> BoolArray:  # fmt: skip
    """Return which of the rejected segments have an error that certainly exceeds the tolerance; all, if there is none."""
    tolerance, found = settings.tolerance, np.flatnonzero(rejected)
    if tolerance is None or tolerance.value == 0 or not len(found):
        return rejected
    starts = np.cumsum([0, *(len(family) for family in families)])
    own = [found[(found >= start) & (found < end)] - start for start, end in itertools.pairwise(starts)]
    tally = concatenate_tallies([family.take(which) for family, which in zip(families, own, strict=True)])
    taken = {name: columns[name][found] for name in ("observed", "expected", "weight", "ecce", "sigma")}
    ratios = adjusted_ratios(taken, sizes[found], levels[found], families[0].noise)
    material = np.zeros(len(rejected), bool)
    material[found] = exceeds_tolerance(tolerance, tally, taken, ratios, levels[found])
    return material


def alpha_shares(families: Sequence[SegmentFamily], testable: BoolArray, grid: SegmentGrid) -> FloatArray:
    """Return each segment's share of alpha: 0 if not testable, else a sum of 1 over all segments.

    Every audited score has an equal share, within it every depth, within a depth every combination of columns, within a
    combination every testable segment. Segments passed by the user are one combination of depth 1.
    """
    tested: Counter[tuple[int, int, tuple[int, ...]]] = Counter()
    keys, start = [], 0
    for target, block in ((target, block) for target, family in enumerate(families) for block in family.blocks):
        own = max(block.columns, default=-1) >= grid.features
        keys.append((target, len(block.columns), (grid.features,) if own else block.columns))
        tested[keys[-1]] += int(testable[start : start + len(block.codes)].sum())
        start += len(block.codes)
    combinations = Counter((target, depth) for (target, depth, _), count in tested.items() if count)
    depths = Counter(target for target, _ in combinations)
    divisors = [len(depths) * depths[key[0]] * combinations[key[:2]] * tested[key] for key in keys]
    sizes = [len(block.codes) for family in families for block in family.blocks]
    return np.where(testable, 1.0 / np.maximum(np.repeat(np.array(divisors, float), sizes), 1.0), 0.0)


# Numbers of a segment


def deviation(family: SegmentFamily, tally: Tally) -> FloatArray:
    """Return sd(sum w (y - p)) of each segment: sqrt(sum w^2 p(1-p)), or by the model of the noise of real outcomes."""
    return np.sqrt(tally.state[:, sums.VARIANCE]) if family.noise is None else family.noise.deviation(tally)


def testable_segments(family: SegmentFamily, tally: Tally, min_rows: int) -> BoolArray:
    """Return which segments have weight and at least ``min_rows`` rows (and MIN_REAL_ROWS if outcomes are real)."""
    enough = (tally.rows >= max(min_rows, MIN_REAL_ROWS if tally.real else 1)) & (tally.weight > 0)
    return enough if family.noise is None or not family.noise.reason else np.zeros(len(tally), bool)


def segment_numbers(
    family: SegmentFamily, levels: FloatArray, alpha: float, workers: Workers, design: FloatArray | None = None
) -> FloatArray:
    """Compute the statistics of every segment, p-value included, one array row per name in `tails.FINDINGS`.

    ``alpha`` is the level of the interval of the ratio; ``levels``, for ``mde``, has the level of the test of each segment,
    ``design`` the design effect of each segment (None: 1).
    """
    if family.noise is not None:
        tallies = concatenate_tallies([block.tally for block in family.blocks])
        columns = _real_numbers(family.noise, tallies if design is None else inflate(tallies, design), levels, alpha)
        return np.vstack([columns[name] for name in tails.FINDINGS])
    out = np.empty((len(tails.FINDINGS), len(family)))
    normal = inference.normal_quantile(alpha)

    def compute(share: range) -> None:
        for at in share:
            tally, start = family.blocks[at].tally, int(family.starts[at])
            level = levels[start : start + len(tally)].max(initial=0.0)  # that of every testable segment of a combination
            quantiles = inference.range_quantile(level), inference.range_quantile(level, inflated=True)
            if design is not None:
                tally = inflate(tally, design[start : start + len(tally)])
            levels_at = normal, *quantiles, inference.Z_POWER
            run(tails.findings, 40 * len(tally), tally.rows, tally.weights, tally.state, *levels_at, start, out)

    shares = 4 * workers.threads
    workers.map(compute, [range(first, len(family.blocks), shares) for first in range(shares)])
    return out


def _real_numbers(noise: Noise, tally: Tally, levels: FloatArray, alpha: float) -> dict[str, FloatArray]:
    """Compute the values of `tails.FINDINGS` for real outcomes."""
    from scipy.special import stdtrit

    w, scale, n = tally.weight, noise.deviation(tally), tally.rows
    wide = noise.interval_deviation(tally)
    with np.errstate(invalid="ignore", divide="ignore"):
        expected, bias, span = tally.expected / w, tally.residual / w, tally.span
        observed = expected + bias
        half = stdtrit(np.maximum(2.0 * (n - 1.0) / 3.0, 0.1), 1.0 - alpha / 2.0) * wide / w
        edges = np.maximum(observed - half, noise.lowest_mean) / expected, (observed + half) / expected
        reach = np.full(len(n), np.nan)
        for level in np.unique(levels[levels > 0]):
            at = np.flatnonzero(levels == level)
            reach[at] = noise.detectable(tally.take(at), level)
        # A path that never left zero has no deviation, whatever its noise.
        sigma = np.where(span > 0, span / scale, np.where(np.isnan(scale), np.nan, 0.0))
        return {
            "weight": w, "observed": observed, "expected": expected, "ratio": observed / expected,
            "ratio_low": np.minimum(*edges), "ratio_high": np.maximum(*edges), "bias": bias, "ecce": span / w,
            "sigma": sigma, "mde": noise.detectable_shift(tally, reach) / w,
            "p_value": noise.pvalues(tally), "size": np.where(scale == 0, 0.0, reach * wide / scale) / w,
        }  # fmt: skip


def _rank(adjusted: FloatArray, testable: BoolArray, sigma: FloatArray) -> IntArray:
    """Return indices of segments, worst first: by adjusted p-value, then by sigma (descending); untested ones are last."""
    key = np.where(testable, adjusted, 2.0)
    # Most adjusted p-values are 1: only the others need more than one sort.
    low, high = np.flatnonzero(key < 1), np.flatnonzero(key >= 1)
    descending = -np.nan_to_num(sigma, nan=-math.inf, posinf=math.inf)
    low = low[np.lexsort((descending[low], key[low]))]
    high = high[argsort(descending[high])]
    return np.concatenate([low, high[key[high] == 1], high[key[high] > 1]])


# Unequal weights


def _observed_cumulants(families: Sequence[SegmentFamily], dependent: Sequence[bool]) -> FloatArray:
    """Return variance and third cumulant of each segment as its residuals u = w (y - p) have them, (2, segments).

    The variance is S/h with S = sum u^2 and h of `Tally.rise_ratio`, which keeps a higher rate from hiding itself by its
    own noise; the third cumulant is 0. If weights are ``dependent`` on the outcome in an unknown way, heavy rows that a
    segment lacks by chance are missing in S too. With jumps up = sum_{u>0} u^3 / S and down = sum_{u<0} |u|^3 / S, each of
    the segment or of all rows, whichever is larger, differences of range x that rise lack down x of their variance and have
    up x too much; those that fall lack up x. (For u of two values, u^2 - (up - down) u has the variance as its mean.) The
    third cumulant is then the jump in that direction times the variance.
    """
    parts = []
    for family, has_jumps in zip(families, dependent, strict=True):
        tally = concatenate_tallies([block.tally for block in family.blocks])
        squares, cubes, sizes = tally.weights[:, [sums.SQUARES, sums.CUBES, sums.ABSOLUTE_CUBES]].T
        variance, third = squares / tally.rise_ratio, np.zeros(len(tally))
        if has_jumps:
            scale, x = np.maximum(squares, np.finfo(float).tiny), tally.span
            up, down = (np.maximum(part / scale, part[0] / scale[0]) for part in ((sizes + cubes) / 2, (sizes - cubes) / 2))
            variance = np.where(tally.rises, np.maximum(variance, squares - up * x) + down * x, squares + up * x)
            third = np.where(tally.rises, up, -down) * variance
        parts.append(np.stack([variance, third]))
    return np.concatenate(parts, axis=1)


def _raise_variances(families: Sequence[SegmentFamily], observed: FloatArray) -> float:
    """Raise, in place, the variances of all segments to ``observed`` ones; return the largest factor in single columns."""
    largest, start = 1.0, 0
    for block in (block for family in families for block in family.blocks):
        state = block.tally.state
        v, (variance, third) = state[:, sums.VARIANCE], observed[:, start : start + len(state)]
        start += len(state)
        larger = (variance > v) & (v > 0) & (third != 0)
        if len(block.columns) < 2:
            largest = max(largest, float((variance[larger] / v[larger]).max(initial=1.0)))
        state[larger, sums.VARIANCE], state[larger, sums.SKEW] = variance[larger], third[larger]
    return largest


def _weighted_floor(families: Sequence[SegmentFamily], observed: FloatArray, effects: ClusterEffects | None) -> FloatArray:
    """Return the lowest p-value of segments of unequal weights, the default one with ``observed`` cumulants; else 0."""
    tally = concatenate_tallies([block.tally for family in families for block in family.blocks])
    variance, third = observed
    out, counts = np.zeros(len(tally)), variance >= tally.state[:, sums.VARIANCE]
    counts &= unequal_weights(tally) | (third != 0)
    design = 1.0 if effects is None else effects.pooled[counts]
    span, rise = tally.span[counts], tally.state[counts, sums.RISE]
    out[counts] = inference.segment_pvalues(span, rise, variance[counts] * design, third[counts] * design**2)
    return out


def unequal_weights(tally: Tally) -> BoolArray:
    """Return which segments have rows of different weights."""
    weight, weight2 = tally.weights[:, sums.WEIGHT], tally.weights[:, sums.WEIGHT2]
    return np.asarray(weight2 * tally.rows > weight**2 * (1.0 + 1e-9))


# Refined p-values: the exact cumulant function of some segments, from the scores of their rows


def _refine_pvalues(
    rows: AuditRows, families: Sequence[SegmentFamily], p: FloatArray, sigma: FloatArray, shares: FloatArray,
    settings: AuditSettings, workers: Workers, effects: ClusterEffects | None = None,
) -> None:  # fmt: skip
    """Refine, in place, each of ``p`` on which the default p-value may err: some of those rejected, and of those not.

    First p-values that are not rejected, although the Brownian limit would be or, for far too few rare events, a refined
    one may be. Then rejected ones of segments with unequal weights, since heavy weights on small scores have larger jumps
    than the default allows for, unless Bennett's bound rejects too. P-values are adjusted for these comparisons, so a raw
    p-value can depend on the other segments. A segment with more rows than can be held at once keeps its default p-value.
    """
    method: Any = settings.adjust
    tested = np.flatnonzero(shares)
    starts = np.cumsum([0, *(len(family) for family in families)])
    # Others are never rejected, or certainly.
    low = tested[(sigma[tested] >= inference.range_quantile(settings.alpha)) & np.isfinite(sigma[tested])]
    own = [low[(low >= start) & (low < end)] - start for start, end in itertools.pairwise(starts)]
    tally = concatenate_tallies([family.take(which) for family, which in zip(families, own, strict=True)])
    design = np.ones(len(low)) if effects is None else effects.pooled[low]
    v, k3 = tally.state[:, sums.VARIANCE] * design, tally.state[:, sums.SKEW] * design**2

    def rejected(values: FloatArray) -> BoolArray:
        """Return which of the segments ``low`` are rejected if these are their p-values."""
        changed = p.copy()
        changed[low] = values
        adjusted = np.ones(len(p))
        adjusted[tested] = inference.adjust(changed[tested], method, shares[tested])
        return np.asarray(adjusted[low] <= settings.alpha)

    optimistic = inference.optimistic_pvalues(tally.span, tally.state[:, sums.RISE], v, k3)
    doubtful = rejected(np.minimum(optimistic, p[low])) & ~rejected(p[low])
    if effects is not None:
        doubtful &= ~effects.few[low]
    _refine(rows, families, p, low[doubtful], starts, workers, effects)
    if rows.weighted:
        largest = rows.heaviest * max(*rows.ratios, *(1 / ratio for ratio in rows.ratios))
        certain = inference.bennett_pvalues(tally.span, v, largest * design)
        unequal = unequal_weights(tally) & ~doubtful & rejected(p[low]) & (certain > settings.alpha * shares[low])
        _refine(rows, families, p, low[unequal], starts, workers, effects)


def _refine(
    rows: AuditRows, families: Sequence[SegmentFamily], p: FloatArray, which: IntArray, starts: IntArray,
    workers: Workers, effects: ClusterEffects | None,
) -> None:  # fmt: skip
    """Replace ``p`` of the segments ``which`` by refined p-values; ``starts`` has the first segment of each family."""
    for target, family in enumerate(families):
        own = which[(which >= starts[target]) & (which < starts[target + 1])] - starts[target]
        tally = family.take(own)
        small = tally.rows <= rows.max_held_rows
        for batch in batches(own[small].tolist(), tally.rows[small].tolist(), rows.max_held_rows):
            group = np.array(batch)
            keys = (key[group] for key in family.keys)
            scores = rows.map_reduce(partial(_score_pass, target, *keys), _add_scores)[target]
            taken, index = family.take(group), starts[target] + group
            lowest = 0.0 if effects is None else effects.take(index).floor(taken)
            design = np.ones(len(group)) if effects is None else effects.pooled[index]
            refined = workers.map(partial(_refined_pvalue, taken, scores, design), range(len(group)))
            p[index] = np.maximum(refined, lowest)


def _refined_pvalue(tally: Tally, scores: SegmentScores, design: FloatArray, segment: int) -> float:
    p, w = (np.concatenate(part) for part in zip(*scores[segment], strict=True))
    rise, v, k3 = (tally.state[segment, column] for column in (sums.RISE, sums.VARIANCE, sums.SKEW))
    steps = 12 * len(p)  # a dozen passes
    return float(run(tails.refined_tail, steps, p, w, tally.span[segment], rise, v, k3, design[segment]))


def _score_pass(target: int, columns: Int32Array, codes: Int32Array, partition: ScorePartition) -> SegmentScores:
    """Return, per segment of one audited score, a list with one pair per chunk: `SortedRows.null_rows` of its rows."""
    scores: SegmentScores = [[] for _ in columns]

    def collect(segment: int) -> None:
        rows, (order, start, first) = chunk.rows, chunk.index
        out = np.empty(len(rows), np.int32)
        count = run(sums.rows_of, len(rows), columns[segment], codes[segment], chunk.codes, order, start, first, out)
        at = out[:count]
        scores[segment].append(rows.null_rows(at))

    for chunk in partition.chunks if partition.target == target else ():
        chunk.index  # noqa: B018  # computed here, once, and not by every thread at the same time
        Workers(chunk.threads).map(collect, range(len(scores)))
    return scores


def _add_scores(one: SegmentScores, other: SegmentScores) -> SegmentScores:
    return [[*a, *b] for a, b in zip(one, other, strict=True)]


# Reliability curves of the worst segments and of all rows


def segment_curves(
    rows: AuditRows, families: Sequence[SegmentFamily], order: IntArray, ranks: IntArray, alpha: float,
    design: FloatArray | None = None,
) -> CurveSet:  # fmt: skip
    """Compute reliability curves of the segments at positions ``ranks``, in bins of equal weight.

    ``order`` has the index of each segment by rank, ``design`` its design effect by rank (None: 1).
    """
    starts = np.cumsum([0, *(len(family) for family in families)])
    owner = np.searchsorted(starts, order[ranks], side="right") - 1
    own_ranks = [ranks[owner == target] for target in range(len(families))]
    wanted = []
    for family, own, start in zip(families, own_ranks, starts, strict=False):
        which = order[own] - start
        tally = family.take(which)
        bins = np.clip(tally.rows // ROWS_PER_CURVE_BIN, 1, CURVE_BINS).astype(np.int32)
        wanted.append((*(keys[which] for keys in family.keys), tally.weight.copy(), bins))
    all_offsets: list[dict[int, FloatArray]] = [{} for _ in families]
    curves = partial(_curve_pass, wanted, all_offsets, sequential=rows.sequential)
    if not rows.sequential:
        # A bin is found by the weight of all rows with lower scores: first the weights by partition, then the curves.
        weights = rows.map_reduce(partial(_weights_by_partition, curves), operator.or_)
        for offsets, by_number in zip(all_offsets, weights, strict=True):
            numbers = sorted(by_number)
            totals = np.cumsum([by_number[number] for number in numbers], axis=0)
            offsets.update(zip(numbers[1:], totals, strict=False))
    cells, shown = np.concatenate(rows.map_reduce(curves, np.add)), np.concatenate(own_ranks)
    if design is not None:
        widen_curves(cells, design[shown, None])
    return curves_from_sums(shown.tolist(), cells, alpha=alpha, real=families[0].real)


def widen_curves(cells: FloatArray, design: FloatArray) -> None:
    """Multiply, in place, the variances of the bins of curves by the design effect of their segment."""
    cells[:, :, sums.CURVE_WEIGHT2] *= design
    mean_square = cells[:, :, sums.CURVE_RESIDUAL] ** 2 / np.maximum(cells[:, :, sums.CURVE_ROWS], 1)
    spread = cells[:, :, sums.CURVE_RESIDUAL2] - mean_square
    cells[:, :, sums.CURVE_RESIDUAL2] = np.where(
        design == 1, cells[:, :, sums.CURVE_RESIDUAL2], mean_square + design * spread
    )


def _curve_pass(
    wanted: list[tuple[Any, ...]], offsets: list[dict[int, FloatArray]], partition: ScorePartition, *, sequential: bool
) -> FloatArray:
    """Return sums by bin of reliability curves, (segments, bins, 6), as `trueup.kernels.tally.curves` writes them.

    ``wanted`` has columns, codes, weight and number of bins of the segments of each audited score; ``offsets`` the weight
    of their rows in lower partitions, by partition number, or by key LAST if ``sequential`` (partitions are read in order).
    """
    columns, codes, weight, bins = wanted[partition.target]
    cells, carried = np.zeros((len(columns), CURVE_BINS, 6)), np.tile([0.0, -1.0, 0.0], (len(columns), 1))
    carried[:, 0] = offsets[partition.target].get(LAST if sequential else partition.number, 0.0)

    def add_curves(share: int) -> None:
        rows, (order, start, first) = chunk.rows, chunk.index
        listed = sums.count_listed(columns, codes, start, first, len(rows))
        run(
            sums.curves, 1.0 * listed / shares, share, shares, columns, codes, chunk.codes, order, start, first,
            rows.step, rows.e, rows.p, rows.w, weight, bins, cells, carried,
        )  # fmt: skip

    for chunk in partition.chunks:
        chunk.index  # noqa: B018
        workers = Workers(chunk.threads)
        shares = 4 * workers.threads
        workers.map(add_curves, range(shares))
    if sequential:
        offsets[partition.target][LAST] = carried[:, 0]
    return cells


def _weights_by_partition(
    curves: Callable[[ScorePartition], FloatArray], partition: ScorePartition
) -> dict[int, FloatArray]:
    weight: FloatArray = curves(partition)[:, :, sums.CURVE_WEIGHT].sum(axis=1)
    return {partition.number: weight}


# Monte-Carlo adjustment of rows in memory


def _monte_carlo(
    table: Table, rows: MemoryRows, families: Sequence[SegmentFamily], modelled: Sequence[FloatArray], p: FloatArray,
    testable: BoolArray, shares: FloatArray, settings: AuditSettings, workers: Workers,
) -> FloatArray:  # fmt: skip
    """Return step-down adjusted p-values of the testable segments: how often drawn outcomes have a smaller minimum.

    The minimum is that of p / share of alpha over the segments; outcomes are drawn from the scores. ``modelled`` has
    variance and third cumulant of the segments of each block for such outcomes.
    """
    shares = shares[testable]
    observed = p[testable] / shares
    # A stream of its own: the data may have been simulated with the same seed, and must not share its draws.
    random = np.random.default_rng([settings.random_state, DRAW_STREAM])
    order = np.argsort(observed, kind="stable")
    counts = np.zeros(len(order), np.int64)
    limit = observed[order] * (1 + 1e-9)
    quiet = Workers(workers.threads)
    ratio = rows.chunks[0].rows.ratio
    top = np.argmax(table.prediction, axis=1) if table.prediction.ndim == 2 else None
    numbers_per_draw = max(len(table) * (len(families) + 1) + 3 * len(testable), 1)
    batch = int(np.clip(MAX_DRAWN_NUMBERS // numbers_per_draw, 1, settings.draws))
    sizes = [min(batch, settings.draws - start) for start in range(0, settings.draws, batch)]
    for done, size in enumerate(sizes, start=1):
        drawn = [_draw_outcomes(table.prediction, ratio, random) for _ in range(size)]
        cumulants = iter(modelled)
        drawn_p = []
        for target, (family, chunk) in enumerate(zip(families, rows.chunks, strict=True)):
            e = np.stack([_residuals(chunk, target, y, top) for y in drawn])
            drawn_p.append(_drawn_pvalues(chunk, [(block, next(cumulants)) for block in family.blocks], e, quiet))
        by_share = np.concatenate(drawn_p, axis=1)[:, testable] / shares
        smallest = np.minimum.accumulate(by_share[:, order][:, ::-1], axis=1)[:, ::-1]
        counts += (smallest <= limit).sum(axis=0)
        if workers.progress is not None:
            workers.progress(done, len(sizes))
    return inference.step_down(counts, order, settings.draws)


def _draw_outcomes(scores: FloatArray, ratio: float, random: np.random.Generator) -> AnyArray:
    """Draw the outcome of every row from its score, as if the model were calibrated; ``ratio``: see `SortedRows`."""
    uniform = random.random(len(scores))
    if scores.ndim == 1:
        return (uniform * (scores + ratio * (1.0 - scores)) < scores).astype(np.float64)
    # The probabilities of a row add up to 1 but for rounding; the draw must not fall beyond them.
    reached = np.cumsum(scores, axis=1)
    above = uniform[:, None] * reached[:, -1:] >= reached
    drawn: AnyArray = np.minimum(above.sum(axis=1), scores.shape[1] - 1)
    return drawn


def _residuals(chunk: SortedChunk, target: int, drawn: AnyArray, top: IntArray | None) -> FloatArray:
    """Return w (y - p) of one audited score for ``drawn`` outcomes y, in score order; ``top``: top label of each row."""
    rows = chunk.rows
    y = drawn if top is None else (drawn == (target - 1 if target else top)).astype(np.float64)
    q, a = rows.null_rows(slice(None))
    e: FloatArray = y[rows.order] - q
    return e * a if len(a) else e


def _drawn_pvalues(
    chunk: SortedChunk, blocks: list[tuple[SegmentBlock, FloatArray]], e: FloatArray, workers: Workers
) -> FloatArray:
    """Compute the default p-values of all segments for several draws of the outcomes, (draws, segments).

    ``e`` is w (y - p) for drawn outcomes y, in ascending score order, (draws, rows); each block has the variance and third
    cumulant of its segments.
    """

    def compute(item: tuple[SegmentBlock, FloatArray]) -> FloatArray:
        block, cumulants = item
        size = len(block.codes)
        segment = chunk.segment_of_rows(block.columns, block.codes)
        at = np.flatnonzero(segment >= 0).astype(np.int32)
        span, rise = np.empty((len(e), size)), np.empty((len(e), size))
        run(sums.draw_paths, 2.0 * e.size, at, segment[at], chunk.rows.step, e, span, rise, np.empty((size, 5)))
        v, k3 = np.tile(cumulants.T, len(e))
        return inference.segment_pvalues(span.ravel(), rise.ravel(), v, k3).reshape(len(e), size)

    return np.concatenate(workers.map(compute, blocks), axis=1)
