"""The cheapest rule: which runs of ascending scores fall to which action."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.integer]

__all__ = ["extend_runs"]


@jit
def extend_runs(
    rows: Floats,
    costs: Floats,
    before: Floats,
    fixed: float,
    capacity: float,
    action: int,
    best: Floats,
    start: Ints,
    last: Ints,
) -> None:
    """Let one more action take a run of scores that ends at each place, where that is cheaper than what was known.

    Parameters
    ----------
    rows, costs : (m + 1,)
        Rows below each place, and what they cost under the action.
    before : (m + 1,)
        The least cost of the scores below each place with other actions; infinite where it cannot be.
    fixed, capacity : float
        What the action costs that is used at all; how many rows it may take.
    best, start, last : (m + 1,)
        Improved: the least cost below each place; in whole numbers, where its last run begins and whose it is.

    Notes
    -----
    best[i] = min over l < i of before[l] + fixed + costs[i] - costs[l], where rows[i] - rows[l] is within the capacity: the
    smallest of a window both ends of which only move on, kept in a queue.
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
