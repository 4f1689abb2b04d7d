"""Pool adjacent violators: the best fit that never falls.

Ayer, Brunk, Ewing, Reid and Silverman (1955), "An empirical distribution function for sampling with incomplete
information", Annals of Mathematical Statistics 26(4). The plain NumPy twin that defines the kernel, by the min-max
formula, is in the tests.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from trueup.kernels._jit import jit

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Ints = NDArray[np.int64]
    Floats = NDArray[np.float64]

__all__ = ["pool_adjacent_violators"]


@jit
def pool_adjacent_violators(total: Floats, weight: Floats) -> tuple[Ints, Floats]:
    """Pool neighbours until the means ascend: one pass, each step is put on the stack and taken off once at most.

    Takes sums and weights, not means and weights: sums of whole numbers add without rounding, and the mean of a block
    is then the mean of its rows.

    Parameters
    ----------
    total : ndarray of float64, shape (k,)
        Weighted sum of the values at each distinct score, scores ascending.
    weight : ndarray of float64, shape (k,)
        Sum of the weights there; positive.

    Returns
    -------
    first : ndarray of int64, shape (b,)
        Where each block begins; the first begins at 0.
    mean : ndarray of float64, shape (b,)
        Mean of each block; strictly ascending, as neighbours of equal mean are one block.

    Examples
    --------
    >>> import numpy as np
    >>> from trueup.kernels.pav import pool_adjacent_violators
    >>> first, mean = pool_adjacent_violators(np.array([1.0, 0.0, 2.0]), np.array([1.0, 3.0, 2.0]))
    >>> first.tolist(), mean.tolist()
    ([0, 2], [0.25, 1.0])
    """
    first = np.empty(total.size, np.int64)
    mean = np.empty(total.size)
    sums = np.empty(total.size)
    masses = np.empty(total.size)
    blocks = 0
    for i in range(total.size):
        begin, s, w = i, total[i], weight[i]
        while blocks > 0 and mean[blocks - 1] >= s / w:
            blocks -= 1
            begin = first[blocks]
            s += sums[blocks]
            w += masses[blocks]
        first[blocks], mean[blocks], sums[blocks], masses[blocks] = begin, s / w, s, w
        blocks += 1
    return first[:blocks].copy(), mean[:blocks].copy()
