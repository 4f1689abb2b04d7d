"""Curves are evaluated as by NumPy, one score at a time or many; losses and their moments are those of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from trueup.kernels.curves import KNOTS, LINE, LOGIT, SOFTMAX, STEPS, count_below, interpolate, read_rows
from trueup.kernels.fitting import deviation_moments, log_losses

NOBODY, NONE, FLOORS = np.zeros(0, np.int32), np.zeros((0, 3)), np.array([1e-6, 1e-6])


def pieces(random, groups, outputs):
    """Make knots for each class and group, of very different number."""
    sizes = random.integers(1, 40, groups * outputs)
    x = [np.sort(random.random(size)) for size in sizes]
    value = [np.sort(random.random(size)) for size in sizes]
    return np.cumsum([0, *sizes]).astype(np.int64), x, value


def twin(form, x, value, p):
    if form == KNOTS:
        return np.interp(p, x, value)
    return value[np.minimum(np.searchsorted(x, p, side="left"), len(x) - 1)]


def read(form, coefficient, at, x, value, groups, group, share, P):
    out = np.empty(P.shape)
    read_rows(form, coefficient, at, np.concatenate([np.zeros(0), *x]), np.concatenate([np.zeros(0), *value]), FLOORS, groups, group, share, P, out)  # fmt: skip
    return out


@pytest.mark.parametrize("form", [KNOTS, STEPS])
def test_knots_and_steps_are_evaluated_as_by_numpy(form):
    for seed in range(20):
        random = np.random.default_rng(seed)
        at, x, value = pieces(random, 1, 1)
        p = np.concatenate([random.random(700), x[0], [0.0, 1.0]])
        found = read(form, NONE, at, x, value, 1, NOBODY, np.zeros(1), p[:, None])
        np.testing.assert_allclose(found[:, 0], twin(form, x[0], value[0], p), atol=1e-14)
        ones = [read(form, NONE, at, x, value, 1, NOBODY, np.zeros(1), p[i : i + 1, None])[0, 0] for i in range(len(p))]
        assert np.array(ones).tobytes() == found.tobytes()
        if form == KNOTS:
            out = np.empty(len(p))
            interpolate(x[0], value[0], p, out)
            assert out.tobytes() == found.tobytes()
        place = np.empty(len(p), np.int32)
        count_below(x[0], p, place)
        np.testing.assert_array_equal(place, np.searchsorted(x[0], p, side="left"))


@pytest.mark.parametrize("form", [KNOTS, STEPS])
def test_classes_and_groups_are_mixed_by_their_shares(form):
    random = np.random.default_rng(1)
    groups, outputs, n = 4, 3, 200
    at, x, value = pieces(random, groups, outputs)
    P = random.dirichlet(np.ones(outputs), n)
    group, share = random.integers(0, groups, n).astype(np.int32), np.array([0.0, 0.3, 1.0, 0.0])
    found = read(form, NONE, at, x, value, groups, group, share, P)
    for i in range(n):
        whole, own = (
            np.array([twin(form, x[c * groups + g], value[c * groups + g], P[i, c]) for c in range(outputs)])
            for g in (0, group[i])
        )
        s = share[group[i]]
        np.testing.assert_allclose(found[i], (1 - s) * whole / whole.sum() + s * own / own.sum(), atol=1e-13)


def test_smooth_curves_follow_their_formulas():
    random = np.random.default_rng(2)
    p = np.append(random.random(300), [0.0, 1.0])
    a, b, c = 1.3, 0.4, -0.2
    coefficient, at = np.array([[a, b, c]]), np.zeros(1, np.int64)
    q = np.clip(p, 1e-6, 1 - 1e-6)
    for form, expected in (
        (LINE, a * p + c),
        (LOGIT, 1 / (1 + np.exp(-(a * np.log(q) - b * np.log1p(-q) + c)))),
    ):
        found = read(form, coefficient, at, [], [], 1, NOBODY, np.zeros(1), p[:, None])
        np.testing.assert_allclose(found[:, 0], expected, rtol=1e-13)
    P = random.dirichlet(np.ones(4), 50)
    P[0] = [1, 0, 0, 0]
    powers = np.maximum(P, 1e-6) ** a
    found = read(SOFTMAX, coefficient, at, [], [], 1, NOBODY, np.zeros(1), P)
    np.testing.assert_allclose(found, powers / powers.sum(axis=1, keepdims=True), rtol=1e-13)


def test_losses_and_moments_are_those_of_numpy():
    random = np.random.default_rng(3)
    y, p = np.concatenate([random.random(50), [0, 0, 1, 1]]), np.concatenate([random.random(50), [0, 1, 0, 1]])
    out = np.empty(len(y))
    log_losses(y, p, 1e-6, out)
    q = np.clip(p, 1e-6, 1 - 1e-6)
    np.testing.assert_allclose(out, -(y * np.log(q) + (1 - y) * np.log1p(-q)), rtol=1e-13)
    for w in (np.ones(0), random.uniform(0.1, 1, len(y))):
        largest, squares, fourth = deviation_moments(out, w, 0.7)
        u = np.abs(out - 0.7) * (w if len(w) else 1.0)
        assert largest == u.max()
        np.testing.assert_allclose([squares, fourth], [((u / largest) ** 2).sum(), ((u / largest) ** 4).sum()], rtol=1e-12)
    assert deviation_moments(np.full(5, 0.7), np.ones(0), 0.7) == (0.0, 0.0, 0.0)
