"""Alarms that are one error under several names, and what to do about them."""

from __future__ import annotations

import numpy as np
import pytest

import trueup as tu

SETTINGS = {"outcome": "y", "prediction": "p", "by": ["region", "product"], "time": "day"}


def stream(seed, wrong, rows=40_000):
    """Return a stream of a year; ``wrong`` returns the event rate from the columns."""
    rng = np.random.default_rng(seed)
    data = {
        "region": rng.choice(["north", "south", "east"], rows, p=[0.2, 0.5, 0.3]),
        "product": rng.choice(["card", "loan"], rows),
        "p": 0.02 + 0.3 * rng.random(rows) ** 2,
        "day": np.datetime64("2024-01-01") + np.sort(rng.integers(0, 364, rows)),
    }
    return {**data, "y": (rng.random(rows) < np.minimum(wrong(data), 1)).astype(float)}


def test_segments_of_one_error_are_one_alarm():
    data = stream(0, lambda d: d["p"] * np.where(d["region"] == "north", 1.8, 1.0))
    report = tu.Monitor(**SETTINGS).update(data)
    assert len(report.alarms) > 3
    assert [alarm.segment for alarm in report.distinct] == ["region=north"]
    assert set(report.distinct[0].explains) == {alarm.segment for alarm in report.alarms[1:]}
    assert all(alarm.part_of == "region=north" for alarm in report.alarms[1:])
    assert "1 distinct error, in" in report.headline


def test_two_errors_are_two_alarms():
    factor = {"north": 1.8, "south": 1.0, "east": 0.5}
    report = tu.Monitor(**SETTINGS).update(stream(1, lambda d: d["p"] * np.vectorize(factor.get)(d["region"])))
    assert {"region=north", "region=east"} <= {alarm.segment for alarm in report.distinct}
    assert {alarm.segment: alarm.direction for alarm in report.distinct}["region=east"] == -1
    assert report.advice == "refit"


def test_errors_that_cancel_in_the_mean_vary_with_the_score():
    flat = stream(2, lambda d: 0.12 + 0.25 * (d["p"] - 0.12), rows=80_000)
    report = tu.Monitor(**{**SETTINGS, "by": ["product"], "score_bands": 0}).update(flat)
    whole = next(alarm for alarm in report.alarms if alarm.segment == "all rows")
    assert whole.varies
    assert "the error varies with the score" in str(whole)
    assert report.advice == "refit"


@pytest.mark.parametrize(("factor", "advice"), [(1.5, "offset"), (0.6, "offset")])
def test_one_factor_asks_for_an_offset(factor, advice):
    report = tu.Monitor(**SETTINGS).update(stream(3, lambda d: d["p"] * factor))
    assert report.distinct[0].segment == "all rows"
    assert report.advice == advice
