"""Errors of class probabilities on intersections of half-spaces, against searches over many directions."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from trueup import metrics
from trueup.errors import ArgumentError


def draw(rows, classes=3, seed=0, digits=None):
    random = np.random.default_rng(seed)
    p = random.dirichlet(np.ones(classes), rows)
    if digits is not None:  # ties, points on common lines
        p = np.round(p * digits) / digits
        p = np.where(p.sum(axis=1, keepdims=True) > 0, p, 1.0)
        p /= p.sum(axis=1, keepdims=True)
    return random.integers(0, classes, rows), p, random.integers(1, 4, rows).astype(float)


def best_over_directions(y, p, w, normals):
    """Return the largest error over all half-spaces with these normals, by definition."""
    best = 0.0
    for k, normal in itertools.product(range(p.shape[1]), normals):
        place = p @ normal
        for limit in np.unique(place):
            inside = place <= limit + 1e-12
            best = max(best, abs((w * ((y == k) - p[:, k]))[inside].sum()) / w.sum())
    return best


def separating_normals(p):
    """Return normals of which one orders the points of three classes in every way that a direction can."""
    flat = p[:, :2]
    turns = [np.arctan2(*(b - a)[::-1]) for a, b in itertools.combinations(flat, 2) if np.abs(a - b).max() > 1e-12]
    turns = np.sort(np.unique(np.round(np.mod(np.array([*turns, 0.0]) + np.pi / 2, 2 * np.pi), 9)))
    turns = np.unique(np.concatenate([turns, turns + np.pi]) % (2 * np.pi))
    middles = (turns + np.append(turns[1:], turns[0] + 2 * np.pi)) / 2
    return [np.array([np.cos(turn), np.sin(turn), 0.0]) for turn in middles]


@pytest.mark.parametrize(("seed", "digits"), [(0, None), (1, None), (2, 4), (3, 4), (4, 2)])
def test_half_planes_of_three_classes_are_exact(seed, digits):
    y, p, w = draw(14, seed=seed, digits=digits)
    found = metrics.region_error(y, p, w)
    assert found.exact
    assert found.value == pytest.approx(best_over_directions(y, p, w, separating_normals(p)))
    inside = found.contains(p)
    assert abs((w * ((y == found.label) - p[:, found.label]))[inside].sum()) / w.sum() == pytest.approx(found.value)


def test_two_classes_are_half_lines_and_intervals():
    y, p, w = draw(200, 2, digits=20)
    half_lines, intervals = (metrics.region_error(y, p, w, actions=actions) for actions in (2, 3))
    scores = np.unique(p[:, 1])
    e = w * (y - p[:, 1]) / w.sum()
    below = [e[p[:, 1] <= s].sum() for s in scores]
    assert half_lines.value == pytest.approx(max(max(map(abs, below)), *(abs(e.sum() - b) for b in below)))
    assert intervals.value == pytest.approx(metrics.ecce(y, p[:, 1], w))
    for found in (half_lines, intervals):
        assert found.exact
        assert abs(e[found.contains(p)].sum()) == pytest.approx(found.value)


def test_a_search_is_a_lower_bound_that_is_attained_and_grows_with_the_actions():
    y, p, w = draw(60, seed=5)
    exact = metrics.region_error(y, p, w)
    values = [exact.value]
    for actions in (3, 4):
        found = metrics.region_error(y, p, w, actions=actions)
        assert not found.exact
        assert len(found.region) <= actions - 1
        assert abs((w * ((y == found.label) - p[:, found.label]))[found.contains(p)].sum()) / w.sum() == (
            pytest.approx(found.value)
        )
        values.append(found.value)
    assert values[1] > 0.9 * values[0]
    assert values[2] >= values[1] - 1e-12
    four = metrics.region_error(*draw(60, 4, seed=6))
    assert not four.exact
    assert four.value > 0


def test_calibrated_probabilities_have_small_errors_and_a_planted_region_is_found():
    random = np.random.default_rng(0)
    p = random.dirichlet([1, 1, 1], 2000)
    y = (random.random((2000, 1)) > np.cumsum(p, axis=1)).sum(axis=1)
    calibrated = metrics.region_error(y, p, actions=3, directions=50).value
    region = (p[:, 0] > 0.2) & (p[:, 1] > 0.2)
    y[region & (random.random(2000) < 0.5)] = 2
    found = metrics.region_error(y, p, actions=3, directions=50)
    assert found.value > 2 * calibrated
    assert found.label == 2
    assert found.value > 0.9 * abs(((y == 2) - p[:, 2])[region].mean() * region.mean())


def test_decision_errors_are_means_over_regions():
    y, p, w = draw(50, seed=7)
    costs = np.array([[0, 1.0, 5], [2, 1.5, 1], [9, 3, 0]])
    errors, action = metrics.decision_error(y, p, costs, w), np.argmin(p @ costs, axis=1)
    for a, k in itertools.product(range(3), range(3)):
        assert errors[a, k] == pytest.approx((w * (action == a) * ((y == k) - p[:, k])).sum() / w.sum())
    assert np.abs(errors).max() <= metrics.region_error(y, p, w, actions=3, directions=2000).value * 1.1


def test_wrong_arguments_are_rejected():
    with pytest.raises(ArgumentError, match="actions must be an integer"):
        metrics.region_error([0, 1], [[0.5, 0.5], [0.1, 0.9]], actions=1)
    with pytest.raises(ArgumentError, match="costs must be finite numbers"):
        metrics.decision_error([0, 1], [[0.5, 0.5], [0.1, 0.9]], [[1, 2, 3]])
