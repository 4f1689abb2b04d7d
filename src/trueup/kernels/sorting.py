"""Sort a long column in two halves at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["argsort"]

WORTH_HALVING = 50_000


@jit
def _merge(
    values: NDArray[np.float64], left: NDArray[np.int64], right: NDArray[np.int64], shift: int, out: NDArray[np.int64]
) -> None:
    """Merge the orders of two halves; equal values come from the left first. ``shift`` is where the right half begins."""
    i = 0
    j = 0
    for k in range(out.size):
        if j == right.size or (i < left.size and values[left[i]] <= values[right[j] + shift]):
            out[k] = left[i]
            i += 1
        else:
            out[k] = right[j] + shift
            j += 1


def argsort(values: NDArray[np.float64]) -> NDArray[np.int64]:
    """Give the order that sorts the values; none of them NaN.

    The order among equal values does not depend on the number of threads.

    Examples
    --------
    >>> argsort(np.array([0.3, 0.1, 0.2]))
    array([1, 2, 0])
    """
    if len(values) < WORTH_HALVING:
        return np.argsort(values)
    half = len(values) // 2
    with ThreadPoolExecutor(2) as pool:
        left, right = pool.map(np.argsort, (values[:half], values[half:]))
    out = np.empty(len(values), np.int64)
    _merge(values, left, right, half, out)
    return out
