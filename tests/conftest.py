"""Fixtures shared by all tests."""

from __future__ import annotations

import gc

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

from frames import MAKERS

# The first call of a kernel compiles it: no deadlines. The same examples every run: no surprises in a release.
settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=50, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")


def pytest_collection_finish():
    """Exclude what was imported and collected from garbage collections until the end of the tests."""
    gc.collect()
    gc.freeze()


def pytest_sessionfinish():
    gc.unfreeze()


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
