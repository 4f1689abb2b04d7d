"""Account for having looked at every point by drawing outcomes from the confidences."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.metrics.inference import step_down
from trueup.metrics.local.bands import Means, log_pvalue

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.metrics.local.neighbourhoods import Neighbourhoods


STREAM = int.from_bytes(b"near", "big")
MOST_DRAWS = 1_000_000
TOGETHER = 32  # draws that share the distances of the rows
AT_ONCE = 16_000_000  # numbers held for one batch of draws
BLOCK = 4096  # p-values at a time: they stay in the cache


def check(draws: int, random_state: int) -> None:
    """Check the number of draws and their seed."""
    for name, value, most in (("draws", draws, MOST_DRAWS), ("random_state", random_state, None)):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < 0 or (most is not None and value > most):
            limit = "of at least 0" if most is None else f"from 0 to {most:,}"
            hint = "199 or 999 are usual; 0 adjusts by a bound" if name == "draws" else "it seeds the draws"
            raise ArgumentError(f"{name} must be a whole number {limit}; got {value!r}", hint=hint)


def adjust(
    asked: Neighbourhoods, scale: float, points: IntArray, means: Means, limit: FloatArray, draws: int, random_state: int
) -> FloatArray:
    """Adjust p-values by their smallest over the points, for outcomes drawn from the confidences, stepping down.

    Westfall and Young (1993), "Resampling-based multiple testing". ``points`` are those of different neighbourhoods,
    ``means`` what they say; ``limit`` is the logarithm of a p-value that counts as no larger than theirs.
    """
    # A stream of its own: the data may have been made with the same seed, and must not share its draws.
    random = np.random.default_rng([random_state, STREAM])
    p, w = asked.confidence, asked.relative
    order = np.argsort(limit, kind="stable")
    ranked, points, limit = Means(*(column[order] for column in means)), points[order], limit[order]
    counts = np.zeros(len(order), np.int64)
    workers = Workers(asked.options.threads)
    size = int(np.clip(AT_ONCE // (len(p) + len(asked.asked) + 2 * len(points)), 1, TOGETHER))
    for start in range(0, draws, size):
        drawn = [w * (p - (random.random(len(p)) < p)) for _ in range(min(size, draws - start))]
        total = asked.sums([w, *drawn], [scale]).total[0, points]
        with np.errstate(divide="ignore", invalid="ignore"):
            errors = (total[:, 1:] / total[:, :1]).T
        few = max(1, BLOCK // max(len(points), 1))
        parts = [errors[at : at + few] for at in range(0, len(errors), few)]
        counts += sum(workers.map(partial(_count, ranked, limit), parts))
    return step_down(counts, order, draws)


def _count(means: Means, limit: FloatArray, errors: FloatArray) -> IntArray:
    """Count the draws, shape (draws, ranks), that have a p-value within the limit of a rank there or at a later one."""
    log_p = np.empty(errors.shape)
    for start in range(0, len(limit), BLOCK):
        part = slice(start, start + BLOCK)
        some = Means(*(column[part] for column in means))
        log_p[:, part] = log_pvalue(some, np.clip(some.expected - errors[:, part], 0.0, 1.0))
    smallest = np.minimum.accumulate(log_p[:, ::-1], axis=1)[:, ::-1]
    return np.asarray((smallest <= limit).sum(axis=0), np.int64)
