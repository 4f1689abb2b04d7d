"""Bounds over classes of scores and numbers of rows, against plain implementations of the formulas of the papers."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from trueup import metrics
from trueup.errors import ArgumentError, DataError


def supremum(scores, signs):
    """Return sup over a < b of sum sigma 1[a < f <= b], over all pairs of values."""
    ends = [-math.inf, *np.unique(scores)]
    return max(signs[(a < scores) & (scores <= b)].sum() for a, b in itertools.combinations_with_replacement(ends, 2))


def test_interval_complexity_is_the_mean_of_the_supremum_over_all_signs():
    scores = np.array([0.2, 0.2, 0.5, 0.1, 0.9])
    exact = np.mean([supremum(scores, np.array(signs)) for signs in itertools.product((-1, 1), repeat=5)]) / 5
    found = metrics.interval_complexity(scores, draws=20_000)
    assert found.value == pytest.approx(exact, abs=4 * found.error)
    assert found.error < 0.01


def test_interval_complexity_of_several_scores_is_that_of_their_union():
    random = np.random.default_rng(0)
    scores = random.random((4, 3)).round(1)
    exact = (
        np.mean(
            [
                max(supremum(column, np.array(signs)) for column in scores.T)
                for signs in itertools.product((-1, 1), repeat=4)
            ]
        )
        / 4
    )
    found = metrics.interval_complexity(scores, draws=20_000)
    assert found.value == pytest.approx(exact, abs=4 * found.error)
    assert found.value >= metrics.interval_complexity(scores[:, 0], draws=20_000).value


def test_claim_2_bounds_the_complexity_of_its_class():
    # Step functions 1[x > t] / 10 * j: eleven values, of VC dimension 1 for fixed thresholds.
    x = np.linspace(0, 1, 300)
    scores = np.column_stack([np.where(x > t, j / 10, 0.0) for t in np.linspace(0, 1, 20) for j in range(1, 11)])
    bound = metrics.complexity_bound(300, dimension=1, values=11)
    assert bound == math.sqrt((2 * (math.log(300) + 1) + 4 * math.log(12)) / 300)
    assert metrics.interval_complexity(scores, draws=50).value < bound


def test_theorem_2_holds_in_simulation():
    # One score and its c: for a calibrated score c is 0, and c_emp must stay below the bound.
    random = np.random.default_rng(1)
    p = random.random(2000)
    bound = metrics.uniform_bound(2000, metrics.interval_complexity(p).value, delta=0.05)
    assert bound == pytest.approx(4 * 1.2533 / math.sqrt(2000) + 2 * math.sqrt(2 * math.log(160) / 2000), rel=0.06)
    assert all(metrics.ecce(random.random(2000) < p, p) < bound for _ in range(100))


@pytest.mark.parametrize(("epsilon", "dimension", "values"), [(0.3, 1, 2), (0.05, 3, 50), (0.9, 40, 1)])
def test_uniform_rows_is_the_smallest_number_with_that_bound(epsilon, dimension, values):
    def bound(n):
        return metrics.uniform_bound(n, metrics.complexity_bound(n, dimension=dimension, values=values), delta=0.02)

    rows = metrics.uniform_rows(epsilon, dimension=dimension, values=values, delta=0.02)
    assert bound(rows) <= epsilon
    assert rows == dimension + 2 or bound(rows - 1) > epsilon


def test_lemma_c7_and_the_order_of_theorem_c8():
    assert metrics.natarajan_bound(0.1, 1.0, dimension=3) == pytest.approx(24 * 10**3 * 3 * math.log(20**3 * 3))
    order = 3 * 10**3 * math.log(3 * 10) ** 2 / 0.05**2 + math.log(10) / 0.05**2
    assert metrics.lsboost_rows(0.05, alpha=0.1, bound=1.0, dimension=3, constant=2.0) == pytest.approx(2 * order)


def test_the_explicit_number_of_rows_solves_its_inequality():
    rows = metrics.lsboost_rows(0.1, alpha=0.5, bound=1.0, dimension=2, delta=0.2)
    natarajan, levels = metrics.natarajan_bound(0.5, 1.0, dimension=2), 5

    def error(n):
        models = natarajan * (math.log(n) + 2 * math.log(levels))
        return 2 * math.sqrt(2 * models / n) + math.sqrt(2 * math.log(4 / 0.2) / n)

    assert error(rows) <= 0.1 < error(rows - 2)


def test_theorem_c9_is_theorem_c8_at_alpha_over_4b():
    expected = metrics.lsboost_rows(0.2 / 8, alpha=0.2, bound=2.0, dimension=2, delta=0.05)
    assert metrics.multicalibration_rows(alpha=0.2, bound=2.0, dimension=2, delta=0.1) == expected


def test_wrong_arguments_are_rejected():
    with pytest.raises(ArgumentError, match="rows must be an integer at least 5"):
        metrics.complexity_bound(4, dimension=3, values=2)
    with pytest.raises(ArgumentError, match="alpha must be at most the bound"):
        metrics.natarajan_bound(2.0, 1.0, dimension=1)
    with pytest.raises(DataError, match="p must be finite"):
        metrics.interval_complexity([0.1, math.nan])
    with pytest.raises(DataError, match="shape"):
        metrics.interval_complexity(np.zeros((2, 2, 2)))
