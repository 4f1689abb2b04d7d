"""Dask: rows that lie in the partitions of a DataFrame."""
