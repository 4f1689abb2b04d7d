"""Fixtures shared by all tests."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

# The first call of a kernel compiles it: no deadlines. The same examples every run: no surprises in a release.
settings.register_profile("suite", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


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


@pytest.fixture(params=sorted(MAKERS))
def frame(request):
    """Make a frame of one of the libraries from a dict of lists."""
    return MAKERS[request.param]


@pytest.fixture
def scored():
    """Two hundred rows with a text, a number and a flag, calibrated."""
    random = np.random.default_rng(7)
    p = random.uniform(0.05, 0.95, 200)
    return {
        "country": np.array(["BR", "DE", "US"], object)[random.integers(0, 3, 200)],
        "age": random.integers(18, 80, 200).astype(float),
        "new": random.random(200) < 0.3,
        "p": p,
        "y": (random.random(200) < p).astype(int),
    }
