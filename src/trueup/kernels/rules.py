"""Dynamic programming for the cheapest decision rule: runs of ascending scores are assigned to actions."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from trueup._types import AnyArray, FloatArray


@jit
def extend_runs(
    rows: FloatArray, costs: FloatArray, before: FloatArray, fixed: float, capacity: float, action: int, best: FloatArray,
    start: AnyArray, last: AnyArray,
) -> None:  # fmt: skip
    """Let one more action take a run of scores that ends at each index, if that is cheaper than the best known.

    best[i] = min over l < i of before[l] + fixed + costs[i] - costs[l], where rows[i] - rows[l] is within the capacity: the
    minimum of a sliding window, kept in a queue. ``rows`` and ``costs`` are cumulative; ``before`` is the least cost with
    other actions, infinite if impossible. ``best``, ``start`` and ``last`` (cost, start and action of the last run) are
    updated.
    """
    m = rows.size
    queue = np.empty(m, np.int64)
    head = 0
    tail = 0
    for i in range(m):
        while head < tail and rows[i] - rows[queue[head]] > capacity:
            head += 1
        if head < tail:
            at = queue[head]
            found = fixed + (before[at] - costs[at]) + costs[i]
            if found < best[i]:
                best[i] = found
                start[i] = at
                last[i] = action
        if before[i] < np.inf:
            offer = before[i] - costs[i]
            while head < tail and before[queue[tail - 1]] - costs[queue[tail - 1]] >= offer:
                tail -= 1
            queue[tail] = i
            tail += 1
