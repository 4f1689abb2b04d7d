"""The inner loops, compiled by numba, which no other package of trueup imports."""
