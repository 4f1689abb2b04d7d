"""The maximum mean calibration error against the sum over all pairs of rows."""

from __future__ import annotations

import numpy as np
import pytest

from trueup import metrics
from trueup.errors import ArgumentError
from trueup.metrics import kernel


def all_pairs(y, p, w, shape, width):
    distance = p[:, None] - p
    k = np.exp(-np.abs(distance) / width) if shape == "laplace" else np.exp(-(distance**2) / (2 * width**2))
    u = w * (y - p)
    return np.sqrt(u @ k @ u) / w.sum()


@pytest.mark.parametrize("shape", ["laplace", "gaussian"])
@pytest.mark.parametrize(("rows", "width"), [(1, 0.4), (7, 0.01), (300, 0.4), (300, 5.0)])
def test_it_is_the_sum_over_all_pairs(shape, rows, width, monkeypatch):
    monkeypatch.setattr(kernel, "PAIRS_PER_CHUNK", 1000)
    random = np.random.default_rng(rows)
    p = random.random(rows).round(2)  # with ties
    y, w = (random.random(rows) < p).astype(float), random.integers(1, 4, rows).astype(float)
    expected = all_pairs(y, p, w, shape, width)
    assert metrics.mmce(y, p, w, kernel=shape, width=width) == pytest.approx(expected, rel=1e-9)
    assert metrics.mmce(np.repeat(y, w.astype(int)), np.repeat(p, w.astype(int)), kernel=shape, width=width) == (
        pytest.approx(expected, rel=1e-9)
    )


def test_miscalibration_raises_it_above_the_noise_of_a_calibrated_score():
    random = np.random.default_rng(0)
    p = random.random(5000)
    calibrated = metrics.mmce(random.random(5000) < p, p)
    assert calibrated < 3 * np.sqrt(np.mean(p * (1 - p)) / 5000)
    assert metrics.mmce(random.random(5000) < p**2, p) > 10 * calibrated


def test_wrong_arguments_are_rejected():
    with pytest.raises(ArgumentError, match="width must be a number above 0"):
        metrics.mmce([0, 1], [0.1, 0.2], width=0)
    with pytest.raises(ArgumentError, match="kernel must be one of"):
        metrics.mmce([0, 1], [0.1, 0.2], kernel="cubic")
