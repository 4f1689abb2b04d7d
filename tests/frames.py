"""Make frames of each library from a dict of lists."""

from __future__ import annotations


def _pandas(columns):
    import pandas as pd

    return pd.DataFrame({name: list(column) for name, column in columns.items()})


def _polars(columns):
    import polars as pl

    return pl.DataFrame({name: list(column) for name, column in columns.items()}, strict=False)


def _pyarrow(columns):
    import pyarrow as pa

    return pa.table({name: [None if v is None else v for v in column] for name, column in columns.items()})


MAKERS = {"pandas": _pandas, "polars": _polars, "pyarrow": _pyarrow}
