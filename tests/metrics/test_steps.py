"""Step functions of the smallest calibration error, against all choices of steps; unions of intervals by definition."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.optimize import minimize

from trueup import metrics
from trueup.errors import ArgumentError
from trueup.metrics import steps as module


def largest_error(y, p, w, g):
    """Return L_c of section 3.3.3 by definition: over all ranges of the score."""
    _, score = np.unique(p, return_inverse=True)
    below = np.append(0.0, np.cumsum(np.bincount(score, w * (y - g))))  # the sums of all scores below each
    return np.abs(np.subtract.outer(below, below)).max() / w.sum()


def draw(rows, seed=0, digits=2):
    random = np.random.default_rng(seed)
    p = random.random(rows).round(digits)
    return (random.random(rows) < p**2).astype(float), p, random.integers(1, 3, rows).astype(float)


@pytest.mark.parametrize("monotone", [True, False])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_the_error_is_that_of_the_definition_and_no_other_values_are_better(steps, monotone):
    y, p, w = draw(14, seed=steps)
    found = metrics.fit_steps(y, p, w, steps=steps, monotone=monotone)
    assert found.exact
    assert found.error == found.least == pytest.approx(largest_error(y, p, w, found.predict(p)))
    assert len(found.values) <= steps
    assert not monotone or (np.diff(found.values) >= 0).all()
    scores = np.unique(p)
    for cuts in itertools.combinations(scores[:-1], len(found.values) - 1):
        place = np.searchsorted(np.array(cuts), p, side="left")

        def error(values, place=place):
            values = np.clip(values, 0, 1)
            return largest_error(y, p, w, (np.sort(values) if monotone else values)[place])

        start = np.linspace(0.2, 0.8, len(found.values))
        other = minimize(error, start, method="Nelder-Mead", options={"maxfev": 150}).fun
        assert other >= found.error - 1e-9


@pytest.mark.parametrize("seed", range(4))
def test_enough_steps_give_the_isotonic_fit(seed):
    y, p, w = draw(60, seed)
    found = metrics.fit_steps(y, p, w, steps=50)
    isotonic = metrics.isotonic(y, p, w).fitted
    assert found.exact
    assert found.predict(p) == pytest.approx(isotonic)
    assert found.error == pytest.approx(largest_error(y, p, w, isotonic))
    assert metrics.ecce(y, found.predict(p), w) == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("seed", range(3))
def test_a_search_is_near_all_choices_and_above_the_lower_bound(seed, monkeypatch):
    y, p, w = draw(32, seed, digits=3)
    exact = metrics.fit_steps(y, p, w, steps=3)
    assert exact.exact
    monkeypatch.setattr(module, "MAX_EXACT", 1)
    found = metrics.fit_steps(y, p, w, steps=3)
    assert found.least <= exact.error + 1e-9
    assert exact.error - 1e-9 <= found.error <= 1.15 * exact.error
    assert found.error == pytest.approx(largest_error(y, p, w, found.predict(p)))
    free = metrics.fit_steps(y, p, w, steps=3, monotone=False)
    assert free.error == pytest.approx(largest_error(y, p, w, free.predict(p)))


def test_errors_fall_with_the_number_of_steps_on_many_rows():
    random = np.random.default_rng(0)
    p = random.random(1500)
    y = (random.random(1500) < p**2).astype(float)
    fits = [metrics.fit_steps(y, p, steps=steps) for steps in (1, 2, 4)]
    assert fits[0].error > 1.5 * fits[1].error > 1.5 * fits[2].error
    assert all(fit.least <= fit.error for fit in fits)
    assert fits[2].error >= metrics.fit_steps(y, p, steps=1000).error
    assert repr(fits[1]).startswith("<StepFit of 2 steps: error 0.0")


@pytest.mark.parametrize("intervals", [1, 2, 3])
def test_unions_of_intervals_by_definition(intervals):
    y, p, w = draw(9, seed=intervals, digits=1)
    scores = np.unique(p)
    e = [(w * (y - p))[p == score].sum() for score in scores]
    best = 0.0
    for chosen in itertools.product([0, 1], repeat=len(scores)):
        runs = np.sum(np.diff(np.append(0, chosen)) == 1)
        if runs <= intervals:
            best = max(best, abs(np.dot(chosen, e)))
    assert metrics.ecce_unions(y, p, w, intervals=intervals) == pytest.approx(best / w.sum())


def test_one_interval_is_ecce():
    y, p, w = draw(500)
    assert metrics.ecce_unions(y, p, w, intervals=1) == pytest.approx(metrics.ecce(y, p, w))


def test_wrong_arguments_are_rejected():
    with pytest.raises(ArgumentError, match="steps must be an integer"):
        metrics.fit_steps([0, 1], [0.1, 0.2], steps=0)
    with pytest.raises(ArgumentError, match="intervals must be an integer"):
        metrics.ecce_unions([0, 1], [0.1, 0.2], intervals=0)
