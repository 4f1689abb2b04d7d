"""Sums of exp(-scale * L1 distance) over the rows of a bin, exact.

With s the scale, columns c and rows j of the bin of a point x: sum_j c_j exp(-s |x - x_j|_1). How they are summed depends
on the number of dimensions: `line` (one: two sweeps over the sorted rows), `halves` (two or three: divide and conquer),
`tiles` (any: all pairs, a block at a time), `cuda` (any, on a graphics card).
"""

from trueup.kernels.laplace.summing import EXACT, Sources, Sums, sums

__all__ = ["EXACT", "Sources", "Sums", "sums"]
