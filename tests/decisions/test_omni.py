import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
from trueup.decisions.omni import NAMED_LOSSES, omni_gap, omniloss, omnipredict
from trueup.errors import ArgumentError, DataError

probabilities = st.lists(st.floats(0, 1), min_size=1, max_size=20)
shares = st.floats(0.01, 0.99)
prices = st.floats(-10, 10).filter(lambda cost: cost == 0 or abs(cost) > 1e-60)
costs = st.fixed_dictionaries(
    {"fn": prices, "fp": prices},
    optional={"tp": prices, "tn": prices},
)
P = np.array([0.0, 1e-9, 0.1, 0.3, 0.49, 0.51, 0.8, 0.999, 1.0])


def pinball(q):
    return lambda y, t: np.where(y > t, q * (y - t), (1 - q) * (t - y))


def hinge(y, t):
    return np.maximum(0, 1 - (2 * y - 1) * t)


def expected(p, t, loss):
    """The NumPy twin: the expected loss of a prediction."""
    return p * loss(1.0, t) + (1 - p) * loss(0.0, t)


def nothing_loses_less(p, loss, plain, grid):
    for one, t in zip(p, omnipredict(p, loss), strict=True):
        least = expected(one, grid, plain).min()
        assert expected(one, np.array([t]), plain)[0] <= least + 1e-12


@given(probabilities)
def test_closed_forms_minimise_the_expected_loss(p):
    grid = np.linspace(0, 1, 1001)
    nothing_loses_less(p, "squared", lambda y, t: (y - t) ** 2, grid)
    nothing_loses_less(p, "absolute", lambda y, t: np.abs(y - t), grid)
    nothing_loses_less(p, "hinge", hinge, np.linspace(-3, 3, 1001))


@given(probabilities, shares)
def test_quantile_minimises_the_pinball_loss(p, q):
    nothing_loses_less(p, ("quantile", q), pinball(q), np.linspace(0, 1, 1001))


@given(st.lists(st.floats(1e-6, 1 - 1e-6), min_size=1, max_size=20))
def test_probability_minimises_the_log_loss(p):
    nothing_loses_less(p, "log", lambda y, t: -np.log(np.abs(1 - y - t)), np.linspace(1e-4, 1 - 1e-4, 1001))


@given(probabilities, costs)
def test_cost_predictions_minimise_the_cost(p, costs):
    def plain(y, t):
        act = costs.get("tp", 0) if y else costs["fp"]
        wait = costs["fn"] if y else costs.get("tn", 0)
        return t * act + (1 - t) * wait

    nothing_loses_less(p, costs, plain, np.array([0.0, 1.0]))


@given(probabilities, shares)
def test_soft_outcomes_give_the_expected_loss(p, q):
    t = omnipredict(p, ("quantile", q))
    by_hand = [expected(one, np.array([at]), pinball(q))[0] for one, at in zip(p, t, strict=True)]
    assert np.allclose(omniloss(p, t, ("quantile", q)), by_hand, atol=1e-12)


def test_ties_go_to_the_lower_prediction_except_for_costs():
    assert omnipredict([0.5], "absolute") == 0
    assert omnipredict([0.5], "hinge") == -1
    assert omnipredict([0.25, 0.75], ("quantile", 0.75)).tolist() == [0, 1]
    assert omnipredict([0.75], ("quantile", 0.25)) == 0
    assert omnipredict([0.25], {"fn": 3, "fp": 1}) == 1
    rule = tu.decisions.best_rule([0.25, 0.1, 0.9], {"fn": 3, "fp": 1}).rule
    assert rule.action_index(np.array([0.25])) == 1


def test_rounding_does_not_move_ties_of_a_quantile():
    small = 2.0**-60  # 1 - q rounds to 1
    assert omnipredict([1.0], ("quantile", small)) == 1
    assert omnipredict([2 * small, small, small / 2], ("quantile", np.nextafter(1, 0))).tolist() == [0, 0, 0]
    assert omnipredict([2.0**-53, 2.0**-52], ("quantile", 1 - 2.0**-53)).tolist() == [0, 1]


def test_costs_of_correct_decisions_move_the_threshold():
    # Acting costs 1 on every row and saves 10 on a positive one: cheaper from 0.1 on.
    costs = {"fn": 10, "fp": 1, "tp": 1, "tn": 0}
    assert omnipredict([0.1 - 1e-9, 0.1 + 1e-9], costs).tolist() == [0, 1]
    # If errors are cheaper than correct decisions, it is the other way around.
    assert omnipredict([0.2, 0.8], {"fn": 0, "fp": 0, "tp": 1, "tn": 1}).tolist() == [1, 0]
    assert omniloss([1, 1, 0, 0], [1, 0, 1, 0], {"fn": 5, "fp": 3, "tp": 2, "tn": 1}).tolist() == [2, 5, 3, 1]


@pytest.mark.parametrize(
    ("loss", "same", "ends"),
    [
        ("squared", lambda y, t: (y - t) ** 2, (0, 1)),
        ("log", lambda y, t: -np.log(t) if y else -np.log1p(-t), (0, 1)),
        ("absolute", lambda y, t: np.abs(y - t), (0, 1)),
        (("quantile", 0.85), pinball(0.85), (0, 1)),
        (("quantile", 0.25), pinball(0.25), (0, 1)),
        ("hinge", hinge, (-1, 1)),
        ("hinge", hinge, (-3, 2.5)),
    ],
)
def test_functions_agree_with_named_losses(loss, same, ends):
    low, high = ends
    p = P if ends != (-3, 2.5) else P[1:-1]  # certain outcomes lose nothing beyond 1 and -1
    assert np.abs(omnipredict(p, same, low=low, high=high) - omnipredict(p, loss)).max() < 1e-6
    assert np.array_equal(omniloss([0, 1, 1], [0.2, 0.3, 1], loss), omniloss([0, 1, 1], [0.2, 0.3, 1], same))


@given(probabilities)
@settings(max_examples=50)
def test_flat_minima_have_the_same_loss(p):
    result = omnipredict(p, lambda y, t: np.abs(y - t))
    assert np.allclose(omniloss(p, result, "absolute"), np.minimum(p, 1 - np.array(p)), atol=1e-9)
    assert ((result >= 0) & (result <= 1)).all()


@given(probabilities, st.floats(0.05, 0.95), st.floats(1, 200))
@settings(max_examples=50)
def test_kinks_and_steep_losses_are_minimised(p, kink, steep):
    def loss(y, t):
        return np.abs(t - kink) + np.exp(steep * np.abs(t - y)) / np.exp(steep)

    grid = np.append(np.linspace(0, 1, 2001), kink)
    for one, t in zip(p, omnipredict(p, loss), strict=True):
        least = expected(one, grid, loss).min()
        assert expected(one, np.array([t]), loss)[0] <= least + 1e-9 * max(1, least)


def test_kinks_are_found_to_rounding():
    result = omnipredict([0.3, 0.7], lambda y, t: 10 * np.abs(t - 0.123456789) + (y - t) ** 2)
    assert np.abs(result - 0.123456789).max() < 1e-15


def test_losses_with_a_narrow_finite_range_are_minimised():
    def loss(y, t):
        return np.where((t < 0.9) | (t > 0.97), np.inf, (y - t) ** 2)

    assert np.allclose(omnipredict([0.0, 0.5, 0.93, 1.0], loss), [0.9, 0.9, 0.93, 0.97], atol=1e-7)


@pytest.mark.parametrize("side", [1, -1])
def test_minima_at_an_infinite_wall_are_found(side):
    for wall in np.linspace(0.05, 0.95, 60):
        result = omnipredict([0.3], lambda y, t, wall=wall: np.where(side * t < side * wall, np.inf, side * t))
        assert abs(result[0] - wall) < 1e-12


@pytest.mark.parametrize(("first", "last"), [(0.495, 0.507), (0.999, 1.0), (0.0, 0.0007), (0.2499, 0.2501)])
def test_minima_between_close_walls_are_found(first, last):
    for side, wall in ((1, first), (-1, last)):
        result = omnipredict([0.3], lambda y, t, side=side: np.where((t < first) | (t > last), np.inf, side * t))
        assert abs(result[0] - wall) < 1e-12


def test_any_range_can_be_searched():
    result = omnipredict([0.1, 0.9], lambda y, t: (1e6 * y - t) ** 2, low=-1e6, high=1e7)
    assert np.allclose(result, [1e5, 9e5], rtol=1e-6)
    assert np.array_equal(omnipredict([0.1, 0.9], lambda y, t: (y - t) ** 2, low=0.3, high=0.6), [0.3, 0.6])


def test_losses_cannot_modify_scores():
    p = np.array([0.2, 0.7])

    def careless(y, t):
        t -= y
        t **= 2
        return t

    assert np.allclose(omnipredict(p, careless), p, atol=1e-7)
    assert omnipredict(p, "squared") is not p
    assert p.tolist() == [0.2, 0.7]


def test_predictions_do_not_depend_on_other_rows():
    p = np.random.default_rng(0).random(70_000)  # more than one block
    loss = lambda y, t: np.cosh(3 * (y - t))  # noqa: E731
    whole = omnipredict(p, loss)
    assert np.array_equal(whole[[5, 69_999]], np.concatenate([omnipredict(p[[k]], loss) for k in (5, 69_999)]))


@pytest.mark.parametrize(
    ("loss", "message"),
    [
        (lambda y, t: -((y - t) ** 2), "not convex in t: for y = 1 it is"),
        (lambda y, t: np.sqrt(np.abs(y - t)), "not convex in t"),
        (lambda y, t: np.where((t > 0.4) & (t < 0.6), np.inf, (y - t) ** 2), "not convex in t"),
        (lambda y, t: (y - t) ** 2 if y else np.sin(20 * t), "not convex in t: for y = 0"),
        (lambda y, t: 0.0, "got 0.0 for 33 t"),
        (lambda y, t: t[:-1], re.escape("got an array of shape (32,) for 33 t")),
        (lambda y, t: t[None], re.escape("shape (1, 33)")),
        (lambda y, t: t + 1j, "one number per t"),
        (lambda y, t: None, "got None"),
        (lambda y, t: t.astype(str), "one number per t"),
        (lambda y, t: np.where(t > 0.5, np.nan, t), "got nan for y = 1 and t = 0.53125"),
        (lambda y, t: -np.inf * np.ones(len(t)), "got -inf"),
        (lambda y, t: np.inf * np.ones(len(t)), "infinite at every t for y = 1"),
        (lambda y, t: np.where((t > 0.5) == (y > 0), np.inf, 1.0), "infinite at every t for p = 0.4"),
        (lambda y, t: max(0, y - t), "failed on an array of 33 t: The truth value"),
        (lambda t: t, "failed on an array of 33 t"),
        ("quadratic", "loss is unknown: 'quadratic'"),
        (("quantile",), "unknown"),
        (["quantile", 0.9], "unknown"),
        (("quantile", 0), "between 0 and 1; got 0"),
        (("quantile", 1.0), "between 0 and 1"),
        (("quantile", np.nan), "between 0 and 1"),
        (("quantile", True), "between 0 and 1"),
        (("quantile", "0.9"), "between 0 and 1; got '0.9'"),
        ({"fn": 1}, "both 'fn' and 'fp'"),
        ({"fn": 1, "fp": np.inf}, "a cost of 'fp' must be a number"),
        ({"fn": 1, "fp": 1, "cost": 2}, "unknown"),
        ({}, "unknown"),
        (None, "unknown: None"),
        (np.zeros(3), "unknown"),
    ],
)
def test_invalid_losses_are_rejected(loss, message):
    with pytest.raises(ArgumentError, match=message):
        omnipredict([0.4, 0.6], loss)


def test_unknown_losses_list_the_known_ones():
    with pytest.raises(ArgumentError) as caught:
        omnipredict([0.4], "l2")
    assert all(f'"{name}"' in caught.value.hint for name in NAMED_LOSSES)
    assert '("quantile", 0.9)' in caught.value.hint


@pytest.mark.parametrize(
    "p",
    [0.5, [], [np.nan], [[0.1, 0.2]], [1.5], [-0.1], ["a"], None],
    ids=["0-d", "empty", "nan", "2-d", ">1", "<0", "text", "none"],
)
def test_invalid_probabilities_are_rejected(p):
    for loss in ("squared", {"fn": 1, "fp": 1}, lambda y, t: (y - t) ** 2):
        with pytest.raises(DataError):
            omnipredict(p, loss)


def test_invalid_ranges_are_rejected():
    square = lambda y, t: (y - t) ** 2  # noqa: E731
    with pytest.raises(ArgumentError, match="low must be below high; got 1 and 1"):
        omnipredict([0.5], square, low=1)
    with pytest.raises(ArgumentError, match="high must be a number; got inf"):
        omnipredict([0.5], square, high=np.inf)
    with pytest.raises(ArgumentError, match="low must be a number; got 'a'"):
        omnipredict([0.5], square, low="a")
    with pytest.raises(ArgumentError, match="for functions, not for 'hinge'"):
        omnipredict([0.5], "hinge", low=-1)


def test_worked_examples_of_losses():
    assert omniloss([1, 0], [0.9, 0.9], "squared") == pytest.approx([0.01, 0.81])
    assert omniloss([1, 0], [0.9, 0.9], "absolute") == pytest.approx([0.1, 0.9])
    assert omniloss([1, 0], [0.9, 0.9], "log") == pytest.approx([-np.log(0.9), -np.log(0.1)])
    assert omniloss([1, 0], [0.9, 0.9], ("quantile", 0.75)) == pytest.approx([0.075, 0.225])
    assert omniloss([1, 0, 0], [2, 2, -2], "hinge").tolist() == [0, 3, 0]
    assert omniloss([1, 0, 1], [0, 0, 1], "log").tolist() == [np.inf, 0, 0]


@pytest.mark.parametrize(
    ("y", "t", "loss", "message"),
    [
        ([0, 1], [0.5], "squared", "equal length; got 2 and 1"),
        ([2], [0.5], "squared", "y must lie in"),
        ([1], [np.nan], "squared", "t must be finite"),
        ([], [], "squared", "empty"),
        ([1], [0.5], {"fn": 1, "fp": 1}, "must be 1, to act, or 0; got 0.5 at row 0"),
        ([1], [1.5], "log", "must be probabilities; got 1.5"),
    ],
)
def test_invalid_predictions_are_rejected(y, t, loss, message):
    with pytest.raises(DataError, match=message):
        omniloss(y, t, loss)


def test_a_calibrated_score_is_best_for_every_loss():
    # The true probability has the lowest mean loss for every loss, compared with a miscalibrated one.
    random = np.random.default_rng(3)
    p = random.random(20_000)
    y = (random.random(20_000) < p).astype(float)
    wrong = p**2
    for loss in ("squared", "absolute", ("quantile", 0.9), "hinge", {"fn": 5, "fp": 1}):
        ours, theirs = (omniloss(y, omnipredict(score, loss), loss) for score in (p, wrong))
        apart = ours - theirs
        assert apart.mean() < -4 * apart.std() / np.sqrt(len(apart))


@given(st.integers(1, 99), st.integers(1, 99), st.integers(0, 3), st.integers(-2, 2), st.booleans())
def test_costs_are_compared_exactly(miss, alarm, digits, ulps, turned):
    # Near the threshold, rounding of floats could give either action.
    fn, fp = miss / 10**digits, alarm / 10**digits
    p = fp / (fn + fp)
    for _ in range(abs(ulps)):
        p = np.nextafter(p, math.copysign(math.inf, ulps))
    exact, (fn_, fp_) = Fraction(float(p)), map(Fraction, (fn, fp))
    if turned:  # acting is better on negative rows
        (result,) = omnipredict([p], {"tp": fn, "tn": fp, "fn": 0, "fp": 0})
        assert result == (exact * fn_ <= (1 - exact) * fp_)
    else:
        (result,) = omnipredict([p], {"fn": fn, "fp": fp})
        assert result == ((1 - exact) * fp_ <= exact * fn_)


def test_costs_independent_of_the_outcome_give_one_prediction():
    np.testing.assert_array_equal(omnipredict(P, {"fn": 1, "fp": 2, "tp": 2, "tn": 1}), 0 * P + (1 >= 2))
    np.testing.assert_array_equal(omnipredict(P, {"fn": 2, "fp": 1, "tp": 1, "tn": 2}), 0 * P + 1)
    np.testing.assert_array_equal(omnipredict(P, {"fn": 1e-9, "fp": 1e60}), P == 1)


def test_functions_may_use_single_precision():
    q = 0.7
    result = omnipredict(P, lambda y, t: pinball(q)(y, t).astype(np.float32))
    away = np.abs(P - (1 - q)) > 1e-6
    np.testing.assert_allclose(result[away], omnipredict(P, ("quantile", q))[away], atol=1e-6)
    with pytest.raises(ArgumentError, match="not convex"):
        omnipredict(P, lambda y, t: np.sqrt(np.abs(y - t)).astype(np.float32))


def test_slightly_concave_losses_are_rejected():
    with pytest.raises(ArgumentError, match="not convex"):
        omnipredict(P, lambda y, t: 1 + (1 - 2 * y) * t - 1e-4 * t**2)


# The gap to the best function of a class (definition E.4, lemma E.5 and theorem E.6 of Globus-Harris et al. 2023)

LOSSES = ["absolute", "squared", "hinge", ("quantile", 0.8), {"fn": 5, "fp": 1}, lambda y, t: np.abs(y - t) ** 1.5]


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: "function" if callable(loss) else str(loss))
@pytest.mark.parametrize("seed", range(4))
def test_omnipredictions_are_within_the_gap_of_every_function(loss, seed):
    random = np.random.default_rng(seed)
    x, p = random.random((300, 3)), random.integers(0, 6, 300) / 5
    y = (random.random(300) < 0.3 * p + 0.7 * x[:, 0]).astype(float)  # far from multicalibrated
    h, w = np.column_stack([x, 2 * x - 1, y]), random.random(300)
    found = omni_gap(y, p, h, loss, w)
    assert found.excess <= found.gap
    assert found.gap <= 2 * found.lipschitz * (found.covariance + 2 * np.abs(p).max())
    assert found.covariance <= np.sqrt(found.alpha) * (1 + np.sqrt(found.bound))
    assert found.lipschitz_gap == pytest.approx(2 * found.lipschitz * np.sqrt(found.alpha) * (1 + np.sqrt(found.bound)))


def test_the_gap_of_calibrated_levels_is_two_alpha_l():
    # Levels .25 and .75 with these mean outcomes: only the covariance counts.
    y, p = np.tile([0, 0, 0, 1, 1, 1, 1, 0], 10), np.repeat([0.25, 0.75], 4)
    p = np.tile(p, 10)
    h = np.random.default_rng(0).random((80, 2))
    found = omni_gap(y, p, h, "absolute")
    covariance = max(
        sum(0.5 * abs(np.cov(column[p == v], y[p == v], bias=True)[0, 1]) for v in (0.25, 0.75)) for column in h.T
    )
    assert found.covariance == pytest.approx(covariance)
    assert found.lipschitz == pytest.approx(1.0)
    assert found.gap == pytest.approx(2 * covariance)
    assert found.loss == pytest.approx(0.25)
    assert found.losses == pytest.approx(np.abs(h - y[:, None]).mean(axis=0))
    assert repr(found).startswith("<OmniGap loss 0.25, the best of 2 functions 0.")


@pytest.mark.parametrize(
    ("loss", "slope"), [("squared", 2.0), ("hinge", 1.0), (("quantile", 0.9), 0.9), ({"fn": 5, "fp": 1}, 5.0)]
)
def test_the_lipschitz_constant_is_that_of_the_loss(loss, slope):
    y, p = [0, 1, 0, 1], [0.25, 0.25, 0.75, 0.75]
    assert omni_gap(y, p, [0.0, 1.0, 0.0, 1.0], loss).lipschitz == pytest.approx(slope, rel=1e-4)
    assert omni_gap(y, p, [0, 1, 0, 1], loss, lipschitz=7.0).lipschitz == 7.0


def test_the_log_loss_needs_predictions_away_from_0_and_1():
    with pytest.raises(ArgumentError, match="lipschitz must be a number"):
        omni_gap([0, 1, 1, 1], [0.5, 0.5, 0.75, 0.75], [0.5, 0.5, 0.5, 0.5], "log")
    inner = omni_gap([0, 1, 0, 1], [0.5, 0.5, 0.75, 0.75], [0.5, 0.5, 0.25, 0.5], "log")
    assert inner.lipschitz == pytest.approx(4.0, rel=1e-4)
