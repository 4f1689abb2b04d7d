import math
import re
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import trueup as tu
from trueup.decisions.omni import LOSSES, omniloss, omnipredict
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
    """The plain twin: what a prediction is expected to lose."""
    return p * loss(1.0, t) + (1 - p) * loss(0.0, t)


def nothing_loses_less(p, loss, plain, grid):
    for one, t in zip(p, omnipredict(p, loss), strict=True):
        least = expected(one, grid, plain).min()
        assert expected(one, np.array([t]), plain)[0] <= least + 1e-12


@given(probabilities)
def test_no_prediction_loses_less_than_the_closed_forms(p):
    grid = np.linspace(0, 1, 1001)
    nothing_loses_less(p, "squared", lambda y, t: (y - t) ** 2, grid)
    nothing_loses_less(p, "absolute", lambda y, t: np.abs(y - t), grid)
    nothing_loses_less(p, "hinge", hinge, np.linspace(-3, 3, 1001))


@given(probabilities, shares)
def test_no_prediction_loses_less_than_a_quantile(p, q):
    nothing_loses_less(p, ("quantile", q), pinball(q), np.linspace(0, 1, 1001))


@given(st.lists(st.floats(1e-6, 1 - 1e-6), min_size=1, max_size=20))
def test_no_prediction_loses_less_than_the_probability_by_the_log_loss(p):
    nothing_loses_less(p, "log", lambda y, t: -np.log(np.abs(1 - y - t)), np.linspace(1e-4, 1 - 1e-4, 1001))


@given(probabilities, costs)
def test_no_action_costs_less(p, costs):
    def plain(y, t):
        act = costs.get("tp", 0) if y else costs["fp"]
        wait = costs["fn"] if y else costs.get("tn", 0)
        return t * act + (1 - t) * wait

    nothing_loses_less(p, costs, plain, np.array([0.0, 1.0]))


@given(probabilities, shares)
def test_the_expected_loss_is_the_loss_at_a_probability_in_the_place_of_the_outcome(p, q):
    t = omnipredict(p, ("quantile", q))
    by_hand = [expected(one, np.array([at]), pinball(q))[0] for one, at in zip(p, t, strict=True)]
    assert np.allclose(omniloss(p, t, ("quantile", q)), by_hand, atol=1e-12)


def test_ties_go_to_the_lower_prediction_and_costs_act_as_a_rule_does():
    assert omnipredict([0.5], "absolute") == 0
    assert omnipredict([0.5], "hinge") == -1
    assert omnipredict([0.25, 0.75], ("quantile", 0.75)).tolist() == [0, 1]
    assert omnipredict([0.75], ("quantile", 0.25)) == 0
    assert omnipredict([0.25], {"fn": 3, "fp": 1}) == 1
    rule = tu.decisions.best_rule([0.25, 0.1, 0.9], {"fn": 3, "fp": 1}).rule
    assert rule.action_index(np.array([0.25])) == 1


def test_ties_of_a_quantile_are_not_moved_by_rounding():
    small = 2.0**-60  # 1 - q rounds to 1
    assert omnipredict([1.0], ("quantile", small)) == 1
    assert omnipredict([2 * small, small, small / 2], ("quantile", np.nextafter(1, 0))).tolist() == [0, 0, 0]
    assert omnipredict([2.0**-53, 2.0**-52], ("quantile", 1 - 2.0**-53)).tolist() == [0, 1]


def test_costs_of_what_went_right_move_the_threshold():
    # Acting costs 1 on every row and saves 10 on a positive one: worth it from 0.1 on.
    costs = {"fn": 10, "fp": 1, "tp": 1, "tn": 0}
    assert omnipredict([0.1 - 1e-9, 0.1 + 1e-9], costs).tolist() == [0, 1]
    # Where errors are what one wants, it is the other way around.
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
def test_a_function_of_a_named_loss_gives_what_its_name_gives(loss, same, ends):
    low, high = ends
    p = P if ends != (-3, 2.5) else P[1:-1]  # what is certain loses nothing beyond 1 and -1 either
    assert np.abs(omnipredict(p, same, low=low, high=high) - omnipredict(p, loss)).max() < 1e-6
    assert np.array_equal(omniloss([0, 1, 1], [0.2, 0.3, 1], loss), omniloss([0, 1, 1], [0.2, 0.3, 1], same))


@given(probabilities)
@settings(max_examples=50)
def test_the_loss_agrees_where_the_least_is_flat(p):
    found = omnipredict(p, lambda y, t: np.abs(y - t))
    assert np.allclose(omniloss(p, found, "absolute"), np.minimum(p, 1 - np.array(p)), atol=1e-9)
    assert ((found >= 0) & (found <= 1)).all()


@given(probabilities, st.floats(0.05, 0.95), st.floats(1, 200))
@settings(max_examples=50)
def test_kinks_and_steep_walls_are_found(p, kink, steep):
    def loss(y, t):
        return np.abs(t - kink) + np.exp(steep * np.abs(t - y)) / np.exp(steep)

    grid = np.append(np.linspace(0, 1, 2001), kink)
    for one, t in zip(p, omnipredict(p, loss), strict=True):
        least = expected(one, grid, loss).min()
        assert expected(one, np.array([t]), loss)[0] <= least + 1e-9 * max(1, least)


def test_a_kink_is_found_to_the_last_digits():
    found = omnipredict([0.3, 0.7], lambda y, t: 10 * np.abs(t - 0.123456789) + (y - t) ** 2)
    assert np.abs(found - 0.123456789).max() < 1e-15


def test_a_loss_that_is_finite_in_a_narrow_range_only_is_minimised_there():
    def loss(y, t):
        return np.where((t < 0.9) | (t > 0.97), np.inf, (y - t) ** 2)

    assert np.allclose(omnipredict([0.0, 0.5, 0.93, 1.0], loss), [0.9, 0.9, 0.93, 0.97], atol=1e-7)


@pytest.mark.parametrize("side", [1, -1])
def test_the_least_is_found_at_a_wall_wherever_it_stands(side):
    for wall in np.linspace(0.05, 0.95, 60):
        found = omnipredict([0.3], lambda y, t, wall=wall: np.where(side * t < side * wall, np.inf, side * t))
        assert abs(found[0] - wall) < 1e-12


@pytest.mark.parametrize(("first", "last"), [(0.495, 0.507), (0.999, 1.0), (0.0, 0.0007), (0.2499, 0.2501)])
def test_the_least_is_found_between_walls_that_are_close(first, last):
    for side, wall in ((1, first), (-1, last)):
        found = omnipredict([0.3], lambda y, t, side=side: np.where((t < first) | (t > last), np.inf, side * t))
        assert abs(found[0] - wall) < 1e-12


def test_the_range_may_be_any():
    found = omnipredict([0.1, 0.9], lambda y, t: (1e6 * y - t) ** 2, low=-1e6, high=1e7)
    assert np.allclose(found, [1e5, 9e5], rtol=1e-6)
    assert np.array_equal(omnipredict([0.1, 0.9], lambda y, t: (y - t) ** 2, low=0.3, high=0.6), [0.3, 0.6])


def test_scores_are_not_written_to_and_losses_cannot_write_to_what_they_are_given():
    p = np.array([0.2, 0.7])

    def careless(y, t):
        t -= y
        t **= 2
        return t

    assert np.allclose(omnipredict(p, careless), p, atol=1e-7)
    assert omnipredict(p, "squared") is not p
    assert p.tolist() == [0.2, 0.7]


def test_every_score_is_answered_by_itself():
    p = np.random.default_rng(0).random(70_000)  # more than one block
    loss = lambda y, t: np.cosh(3 * (y - t))  # noqa: E731
    whole = omnipredict(p, loss)
    assert np.array_equal(whole[[5, 69_999]], np.concatenate([omnipredict(p[[k]], loss) for k in (5, 69_999)]))


@pytest.mark.parametrize(
    ("loss", "told"),
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
def test_losses_that_cannot_be_are_refused(loss, told):
    with pytest.raises(ArgumentError, match=told):
        omnipredict([0.4, 0.6], loss)


def test_an_unknown_loss_is_told_all_that_are():
    with pytest.raises(ArgumentError) as caught:
        omnipredict([0.4], "l2")
    assert all(f'"{name}"' in caught.value.hint for name in LOSSES)
    assert '("quantile", 0.9)' in caught.value.hint


@pytest.mark.parametrize(
    "p",
    [0.5, [], [np.nan], [[0.1, 0.2]], [1.5], [-0.1], ["a"], None],
    ids=["0-d", "empty", "nan", "2-d", ">1", "<0", "text", "none"],
)
def test_scores_that_are_no_probabilities_are_refused(p):
    for loss in ("squared", {"fn": 1, "fp": 1}, lambda y, t: (y - t) ** 2):
        with pytest.raises(DataError):
            omnipredict(p, loss)


def test_ranges_that_cannot_be_are_refused():
    square = lambda y, t: (y - t) ** 2  # noqa: E731
    with pytest.raises(ArgumentError, match="low must be below high; got 1 and 1"):
        omnipredict([0.5], square, low=1)
    with pytest.raises(ArgumentError, match="high must be a number; got inf"):
        omnipredict([0.5], square, high=np.inf)
    with pytest.raises(ArgumentError, match="low must be a number; got 'a'"):
        omnipredict([0.5], square, low="a")
    with pytest.raises(ArgumentError, match="for functions, not for 'hinge'"):
        omnipredict([0.5], "hinge", low=-1)


def test_losses_of_predictions_by_hand():
    assert omniloss([1, 0], [0.9, 0.9], "squared") == pytest.approx([0.01, 0.81])
    assert omniloss([1, 0], [0.9, 0.9], "absolute") == pytest.approx([0.1, 0.9])
    assert omniloss([1, 0], [0.9, 0.9], "log") == pytest.approx([-np.log(0.9), -np.log(0.1)])
    assert omniloss([1, 0], [0.9, 0.9], ("quantile", 0.75)) == pytest.approx([0.075, 0.225])
    assert omniloss([1, 0, 0], [2, 2, -2], "hinge").tolist() == [0, 3, 0]
    assert omniloss([1, 0, 1], [0, 0, 1], "log").tolist() == [np.inf, 0, 0]


@pytest.mark.parametrize(
    ("y", "t", "loss", "told"),
    [
        ([0, 1], [0.5], "squared", "equal length; got 2 and 1"),
        ([2], [0.5], "squared", "y must lie in"),
        ([1], [np.nan], "squared", "t must be finite"),
        ([], [], "squared", "empty"),
        ([1], [0.5], {"fn": 1, "fp": 1}, "must be 1, to act, or 0; got 0.5 at row 0"),
        ([1], [1.5], "log", "must be probabilities; got 1.5"),
    ],
)
def test_predictions_that_cannot_be_judged_are_refused(y, t, loss, told):
    with pytest.raises(DataError, match=told):
        omniloss(y, t, loss)


def test_one_calibrated_score_serves_every_loss_best():
    # With the true probability no rule loses less on average, whatever the loss: here, than rules by a wrong one.
    random = np.random.default_rng(3)
    p = random.random(20_000)
    y = (random.random(20_000) < p).astype(float)
    wrong = p**2
    for loss in ("squared", "absolute", ("quantile", 0.9), "hinge", {"fn": 5, "fp": 1}):
        ours, theirs = (omniloss(y, omnipredict(score, loss), loss) for score in (p, wrong))
        apart = ours - theirs
        assert apart.mean() < -4 * apart.std() / np.sqrt(len(apart))


@given(st.integers(1, 99), st.integers(1, 99), st.integers(0, 3), st.integers(-2, 2), st.booleans())
def test_costs_are_weighed_without_rounding(miss, alarm, digits, ulps, turned):
    # Close to where acting and waiting cost the same, products and sums of floats say either.
    fn, fp = miss / 10**digits, alarm / 10**digits
    p = fp / (fn + fp)
    for _ in range(abs(ulps)):
        p = np.nextafter(p, math.copysign(math.inf, ulps))
    exact, (fn_, fp_) = Fraction(float(p)), map(Fraction, (fn, fp))
    if turned:  # acting is right where nothing happens
        (found,) = omnipredict([p], {"tp": fn, "tn": fp, "fn": 0, "fp": 0})
        assert found == (exact * fn_ <= (1 - exact) * fp_)
    else:
        (found,) = omnipredict([p], {"fn": fn, "fp": fp})
        assert found == ((1 - exact) * fp_ <= exact * fn_)


def test_costs_that_do_not_ask_for_the_probability_have_one_answer():
    np.testing.assert_array_equal(omnipredict(P, {"fn": 1, "fp": 2, "tp": 2, "tn": 1}), 0 * P + (1 >= 2))
    np.testing.assert_array_equal(omnipredict(P, {"fn": 2, "fp": 1, "tp": 1, "tn": 2}), 0 * P + 1)
    np.testing.assert_array_equal(omnipredict(P, {"fn": 1e-9, "fp": 1e60}), P == 1)


def test_a_function_may_count_in_single_precision():
    q = 0.7
    found = omnipredict(P, lambda y, t: pinball(q)(y, t).astype(np.float32))
    away = np.abs(P - (1 - q)) > 1e-6
    np.testing.assert_allclose(found[away], omnipredict(P, ("quantile", q))[away], atol=1e-6)
    with pytest.raises(ArgumentError, match="not convex"):
        omnipredict(P, lambda y, t: np.sqrt(np.abs(y - t)).astype(np.float32))


def test_a_slight_bend_is_seen():
    with pytest.raises(ArgumentError, match="not convex"):
        omnipredict(P, lambda y, t: 1 + (1 - 2 * y) * t - 1e-4 * t**2)
