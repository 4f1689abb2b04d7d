"""The inner loops: numba only here."""
