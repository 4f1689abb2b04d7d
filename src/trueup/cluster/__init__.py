"""Rows in partitions: files larger than memory, Spark and Dask frames, and workers that jointly fit models on them."""
