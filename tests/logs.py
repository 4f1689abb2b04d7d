"""Simulated logs of scored rows."""

from __future__ import annotations

import numpy as np

DAYS = 200
SETTINGS = {
    "outcome": "y", "prediction": "p", "by": ["region", "age"], "time": "day", "maturity": "30 days", "id": "key",
    "score_bands": 3, "bins": 3,
}  # fmt: skip


def make_log(seed=0, rows=6_000, *, factor=1.0, since=0, new_level=None):
    """Return a log of scored rows in the order of time; from day ``since`` outcomes in the north are more frequent."""
    rng = np.random.default_rng(seed)
    day = np.sort(rng.integers(0, DAYS, rows))
    region = rng.choice(["north", "south", "east"], rows, p=[0.3, 0.5, 0.2]).astype(object)
    if new_level is not None:
        region[(day >= new_level) & (rng.random(rows) < 0.2)] = "west"
    p = 0.02 + 0.3 * rng.random(rows) ** 2
    rate = np.where((region == "north") & (day >= since), np.minimum(p * factor, 1.0), p)
    return {
        "y": (rng.random(rows) < rate).astype(float), "p": p, "region": region.astype(str),
        "age": rng.integers(18, 70, rows).astype(float), "key": np.arange(rows),
        "day": np.datetime64("2024-01-01") + day,
    }  # fmt: skip


def take(data, rows):
    """Return some rows of a log."""
    return {name: column[rows] for name, column in data.items()}


def comparable(report):
    """Return what must not depend on how rows were given."""
    plain = report.to_dict()
    del plain["rows"], plain["notes"]
    return repr(plain)
