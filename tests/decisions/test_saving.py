"""Expected saving of one rule compared with another."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import trueup.decisions as td

COSTS = {"fn": 5, "fp": 1}


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(0, 1), st.floats(0, 1))
def test_saving_is_the_difference_of_both_costs(p, rule, instead):
    saved = td.expected_saving(p, COSTS, rule, instead)
    one, other = (td.expected_cost(p, COSTS, each).estimate for each in (rule, instead))
    assert saved.estimate == pytest.approx(other - one, abs=1e-9)
    assert saved.low <= saved.estimate <= saved.high


def test_rows_treated_alike_add_no_uncertainty():
    saved = td.expected_saving([0.1, 0.3, 0.9], COSTS, 0.4, 0.5)
    assert (saved.estimate, saved.low, saved.high) == (0, 0, 0)
    assert saved.half_widths == {"label noise": 0}


def test_fixed_costs_and_several_actions_count():
    p = np.linspace(0, 1, 41)
    actions = {"grant": (100, -10), "review": (5, -4), "refuse": (0, 0)}
    best = td.best_rule(p, actions, fixed_costs={"review": 3})
    saved = td.expected_saving(p, actions, best, {"grant": (0, 0.1), "refuse": (0.1, 1)})
    plain = td.expected_cost(p, actions, {"grant": (0, 0.1), "refuse": (0.1, 1)}).estimate
    assert saved.estimate == pytest.approx(plain - best.estimate)


@pytest.mark.filterwarnings("ignore::trueup.errors.ShiftWarning")
def test_saving_interval_has_coverage_and_is_narrower_than_two():
    tries, covered, random = 300, 0, np.random.default_rng(2)
    for _ in range(tries):
        p, scores = random.beta(1, 3, 800), random.beta(1, 3, 500)
        y, outcome = ((random.random(len(f)) < 0.1 + 0.6 * f).astype(float) for f in (p, scores))
        saved = td.expected_saving(p, COSTS, 0.2, 0.3, (outcome, scores))
        came = sum(sign * np.where(p >= at, 1 - y, 5 * y).sum() for at, sign in ((0.3, 1), (0.2, -1)))
        covered += saved.low <= came <= saved.high
    assert covered / tries >= 0.9 - 3 * math.sqrt(0.09 / tries)
    one = td.expected_cost(p, COSTS, 0.2, (outcome, scores))
    assert saved.high - saved.low < one.high - one.low
