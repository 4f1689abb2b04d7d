"""Pictures of decisions draw what results hold."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest

from pictures import dots, lines, named, words
from trueup import decisions
from trueup.errors import ArgumentError, DataError
from trueup.reports import figures

pytest.importorskip("matplotlib")

P = np.array([0.1, 0.15, 0.3, 0.9])
Y = np.array([0, 1, 0, 1])


def many(rows=5_000, seed=0):
    return np.random.default_rng(seed).beta(1, 3, rows)


# What thresholds cost


def test_a_cost_curve_of_few_scores_is_the_steps_it_is_with_the_best_marked_and_told():
    # Acting costs 1 - p on each row, passing 5 p: from 0.1667 on it is cheaper to act.
    best = decisions.best_rule(P, {"fn": 5, "fp": 1})
    ax = figures.draw_cost_curve(best, title="whom to call")
    curve = lines(ax)[0]
    assert curve.get_drawstyle() == "steps-pre"
    np.testing.assert_allclose(curve.get_xdata(), [0.1, 0.15, 0.3, 0.9, 0.9 * 1.04])
    np.testing.assert_allclose(curve.get_ydata(), [2.55, 2.15, 2.05, 2.85, 7.25])
    (dot,) = dots(ax)
    np.testing.assert_allclose(dot.get_xydata(), [[1 / 6, 2.05]])
    assert words(ax) == [
        "best: act from 0.1667\ncosts 2.05\n20% less than act for all",
        "pass for all rows\n7.25",
        "act for all rows\n2.55",
    ]
    assert [line.get_ydata()[0] for line in lines(ax)[1:]] == pytest.approx([7.25, 2.55])
    assert ax.get_title(loc="left") == "whom to call"
    assert "above all scores" in ax.get_xlabel()


def test_a_cost_curve_of_many_scores_is_a_line_through_its_points():
    best = decisions.best_rule(many(), {"fn": 5, "fp": 1})
    ax = figures.draw_cost_curve(best)
    curve = lines(ax)[0]
    assert curve.get_drawstyle() == "default"
    # The last threshold is above all scores; the highest of these are left out, so that nobody knows where that is.
    assert best.curve[-1][0] == math.inf
    np.testing.assert_array_equal(curve.get_xydata(), best.curve[:-1])
    assert ax.get_xlim() == (0.0, best.curve[-2][0])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("threshold", "expected cost, by the scores")


def test_of_many_scores_the_right_end_is_told_where_it_is_the_best():
    p = many()
    best = decisions.best_rule(p, {"fn": 1, "fp": 99})
    assert len(best.curve) > 50
    ax = figures.draw_cost_curve(best)
    assert ax.get_xlim()[1] == dots(ax)[0].get_xdata()[0] == pytest.approx(1.04 * p.max())
    assert "above all scores" in ax.get_xlabel()


@pytest.mark.parametrize(("room", "ends"), [(20, True), (500, False)])
def test_under_a_capacity_the_thresholds_that_it_allows_fill_the_picture(room, ends):
    p = many()
    best = decisions.best_rule(p, {"fn": 5, "fp": 1}, capacity={"act": room})
    ax = figures.draw_cost_curve(best)
    left, right = ax.get_xlim()
    first = best.curve[0][0]
    assert first == np.sort(p)[-room]
    assert 0 < (first - left) / (right - left) < 0.06
    assert right == pytest.approx(1.04 * p.max() if ends else best.curve[-2][0])
    assert ("above all scores" in ax.get_xlabel()) == ends
    assert "less than pass for all" in words(ax)[0]  # what acting on all rows costs is no matter: it is forbidden
    assert [one.endswith("over capacity") for one in words(ax)[1:]] == [False, True]


def test_thresholds_that_cost_many_times_the_best_are_left_out_of_sight():
    best = decisions.best_rule(many(), {"fn": 500, "fp": 1})
    ax = figures.draw_cost_curve(best)
    least = best.uniform_costs["act"]
    assert ax.get_ylim() == (0.0, pytest.approx(2 * 1.06 * least))
    assert ax.get_xlim()[0] == 0.0
    assert best.threshold < ax.get_xlim()[1] < 0.5
    assert ax.get_xlabel() == "threshold"


def test_a_rule_of_three_actions_has_a_line_for_each_threshold():
    best = decisions.best_rule(many(), {"nothing": (5, 0), "mail": (3, 0.3), "visit": (1, 1.2)})
    ax = figures.draw_cost_curve(best)
    assert words(ax)[:2] == ["nothing | mail", "mail | visit"]
    (dot,) = dots(ax)
    np.testing.assert_array_equal(dot.get_xdata(), best.rule.edges[1:-1])
    np.testing.assert_array_equal(dot.get_ydata(), [best.estimate] * 2)
    assert words(ax)[2].startswith("best:\nnothing below 0.13")


@pytest.mark.parametrize(
    ("costs", "at", "says"), [({"fn": 1, "fp": 99}, 0.9 * 1.04, "pass"), ({"fn": 99, "fp": 1}, 0.1, "act")]
)
def test_a_rule_that_treats_all_rows_alike_is_marked_at_the_end(costs, at, says):
    ax = figures.draw_cost_curve(decisions.best_rule(P, costs))
    assert dots(ax)[0].get_xdata()[0] == pytest.approx(at)
    assert words(ax)[0].startswith(f"best: {says} always\ncosts")
    assert "less than" not in words(ax)[0]


def test_gains_below_nought_are_shown_and_not_told_in_percent():
    best = decisions.best_rule(P, {"fn": 5, "fp": 1, "tp": -20})
    ax = figures.draw_cost_curve(best)
    assert best.estimate < 0
    assert ax.get_ylim()[0] < best.estimate
    assert "less than" not in words(ax)[0]


def test_large_amounts_are_written_out():
    best = decisions.best_rule(P, {"fn": 50_000, "fp": 10_000})
    assert "costs 20,500" in words(figures.draw_cost_curve(best))[0]


# What a fix is worth


def two_scores():
    p = many(20_000)
    y = (np.random.default_rng(1).random(len(p)) < p).astype(float)
    return y, np.sqrt(p), p


def test_a_decision_curve_draws_each_score_with_its_interval_beside_all_and_none():
    y, before, after = two_scores()
    found = decisions.decision_curve(y, {"before": before, "after": after})
    ax = figures.draw_decision_curve(found, title="whom to treat")
    for name in ("before", "after"):
        np.testing.assert_array_equal(named(ax, name).get_ydata(), found.benefit[name])
        np.testing.assert_array_equal(named(ax, name).get_xdata(), found.threshold)
    np.testing.assert_array_equal(named(ax, "act on all rows").get_ydata(), found.treat_all)
    np.testing.assert_array_equal(named(ax, "act on none").get_ydata(), found.treat_none)
    first = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert first.min() == pytest.approx(found.low["before"].min())
    assert first.max() == pytest.approx(found.high["before"].max())
    assert ax.get_title(loc="left") == "whom to treat"


def test_the_gain_of_a_fix_is_shaded_and_its_most_told():
    y, before, after = two_scores()
    found = decisions.decision_curve(y, {"before": before, "after": after})
    ax = figures.draw_decision_curve(found)
    gain = found.benefit["after"] - found.benefit["before"]
    at = int(np.argmax(gain))
    said = f"gain by 'after': up to {1000 * gain[at]:.3g}\nper 1,000 rows, at {found.threshold[at]:.4g}"
    assert said in words(ax)
    shaded = named(ax, "gain by").get_paths()[0].vertices
    assert shaded[:, 1].max() == pytest.approx(found.benefit["after"].max())
    turned = figures.draw_decision_curve(decisions.decision_curve(y, {"after": after, "before": before}))
    assert said.replace("gain by 'after'", "loss by 'before'") in words(turned)


def test_a_difference_that_may_be_chance_is_said_to_be():
    found = decisions.decision_curve([0, 0, 1, 1], {"a": [0.4, 0.7, 0.6, 0.9], "b": [0.2, 0.4, 0.6, 0.9]})
    assert "gain by 'b',\nmay be chance" in words(figures.draw_decision_curve(found))


def test_only_two_scores_are_compared():
    y, before, after = two_scores()
    three = decisions.decision_curve(y, {"a": before, "b": after, "c": after**2})
    assert words(figures.draw_decision_curve(three)) == ["a", "b", "c", "act on all rows", "act on none"]
    alone = decisions.decision_curve(None, after)
    assert words(figures.draw_decision_curve(alone)) == ["model", "act on all rows", "act on none"]


def test_net_benefit_far_below_nought_is_cut_but_not_the_harm_of_a_score():
    y, _, after = two_scores()
    calm = decisions.decision_curve(y, after)
    most = max(calm.treat_all.max(), calm.benefit["model"].max())
    assert calm.treat_all.min() < -10
    assert figures.draw_decision_curve(calm).get_ylim() == (pytest.approx(-0.1 * most), pytest.approx(1.06 * most))
    harm = decisions.decision_curve(y, 1 - after)
    assert figures.draw_decision_curve(harm).get_ylim()[0] == pytest.approx(-0.5 * harm.treat_all.max())


# Rates without labels


def test_a_roc_curve_is_drawn_with_its_band_and_area():
    curve = decisions.expected_roc(P, labelled=0.05)
    ax = figures.draw_roc(curve, title="four rows")
    chance, line = lines(ax)
    np.testing.assert_array_equal(chance.get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(line.get_xdata(), curve.x)
    np.testing.assert_array_equal(line.get_ydata(), curve.y)
    (band,) = ax.patches
    upper = np.column_stack([[0, *curve.x_low, 1], [0, *curve.y_high, 1]])
    lower = np.column_stack([[0, *curve.x_high, 1], [0, *curve.y_low, 1]])
    # The outline ends where it began, in the lower left corner.
    np.testing.assert_array_equal(band.get_xy(), np.concatenate([upper, lower[::-1]]))
    assert words(ax) == [f"expected: AUC {curve.area:.3f} ({curve.area_low:.3f} to {curve.area_high:.3f})", "band: 90%"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("false positive rate", "true positive rate")
    assert ax.get_title(loc="left") == "four rows"


def test_a_pr_curve_is_drawn_from_where_precision_is_defined():
    curve = decisions.expected_pr(P, labelled=0.05)
    ax = figures.draw_pr(curve)
    chance, line = lines(ax)
    np.testing.assert_allclose(chance.get_ydata(), P.mean(), atol=5e-4)
    np.testing.assert_array_equal(line.get_xdata(), curve.x[1:])
    np.testing.assert_array_equal(line.get_ydata(), curve.y[1:])
    outline = ax.patches[0].get_xy()
    corners = np.column_stack([curve.x_high[1:], curve.y_high[1:]])
    assert all((np.isclose(outline, corner).all(axis=1)).any() for corner in corners)
    span = f"({curve.area_low:.3f} to {curve.area_high:.3f})"
    assert words(ax) == [f"expected: average precision {curve.area:.3f} {span}", "band: 90%"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("recall", "precision")


def test_realised_curves_are_those_of_the_outcomes():
    # From the top: a positive, a negative, a positive, a negative.
    roc = figures.draw_roc(decisions.expected_roc(P), truth=(Y, P))
    np.testing.assert_array_equal(named(roc, "realised").get_xydata(), [[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1], [1, 1]])
    assert words(roc)[-1] == "realised: AUC 0.750"
    pr = figures.draw_pr(decisions.expected_pr(P), truth=(Y, P))
    np.testing.assert_allclose(named(pr, "realised").get_xydata(), [[0.5, 1], [0.5, 0.5], [1, 2 / 3], [1, 0.5]])
    assert words(pr)[-1] == "realised: average precision 0.833"


def test_rows_of_one_score_are_one_step_of_a_realised_curve_and_weights_count():
    p, y = [0.2, 0.2, 0.8, 0.8], [0, 0, 0, 1]
    ax = figures.draw_roc(decisions.expected_roc(p), truth=(y, p, [1, 1, 2, 1]))
    np.testing.assert_array_equal(named(ax, "realised").get_xydata(), [[0, 0], [0.5, 1], [1, 1]])


def test_several_curves_have_their_names_and_each_its_truth():
    curves = {"one": decisions.expected_roc(P), "two": decisions.expected_roc(P**2)}
    ax = figures.draw_roc(curves, truth={"two": (Y, P**2)})
    assert [word.split(":")[0] for word in words(ax)] == ["one", "two", "bands", "two, realised"]
    assert named(ax, "two, realised").get_color() == named(ax, "two:").get_color() != named(ax, "one").get_color()
    assert len(ax.patches) == 2
    wide = curves | {"wide": decisions.expected_roc(P, level=0.99)}
    assert [one for one in words(figures.draw_roc(wide)) if "band" in one] == ["bands: 90%, 99%"]


def test_a_long_curve_is_drawn_by_some_of_its_points_from_end_to_end():
    curve = decisions.expected_roc(many(20_000))
    line = lines(figures.draw_roc(curve))[1].get_xydata()
    assert len(line) <= 1_001
    assert {tuple(point) for point in line} <= set(zip(curve.x, curve.y, strict=True))
    np.testing.assert_array_equal(line[[0, -1]], [[0, 0], [1, 1]])
    apart = np.abs(np.diff(line, axis=0)).max()
    assert apart < 0.01


# Silence


def test_rewards_are_drawn_against_the_cost_ratio_beside_what_needs_no_confidence():
    one, two = decisions.reward_curve(P, Y), decisions.reward_curve(np.sqrt(P), Y)
    ax = figures.draw_reward({"one": one, "two": two}, title="four rows")
    np.testing.assert_array_equal(named(ax, "one").get_xdata(), one.ratio)
    np.testing.assert_array_equal(named(ax, "two").get_ydata(), two.realised)
    # The two give other answers, so that only silence is the same for both.
    assert words(ax) == ["one", "two", "never answer"]
    assert ax.get_xscale() == "log"
    same = figures.draw_reward({"one": one, "again": one})
    assert words(same) == ["one", "again", "only right answers", "never answer", "always answer"]


def test_a_reward_alone_stands_beside_what_was_promised():
    known, unknown = decisions.reward_curve(P, Y), decisions.reward_curve(P)
    ax = figures.draw_reward(known)
    assert words(ax)[:2] == ["came out (±2 standard errors)", "promised by confidence"]
    np.testing.assert_array_equal(named(ax, "promised").get_ydata(), known.expected)
    (band,) = ax.collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx((known.realised - 2 * known.standard_error).min())
    plain = figures.draw_reward(unknown)
    assert words(plain)[:2] == ["expected", "only right answers"]
    np.testing.assert_array_equal(named(plain, "expected").get_ydata(), unknown.expected)


def test_rewards_against_another_are_what_is_earned_more():
    one, two = decisions.reward_curve(P, Y), decisions.reward_curve(np.sqrt(P), Y)
    ax = figures.draw_reward({"one": one, "two": two}, against="one")
    assert words(ax) == ["two"]
    np.testing.assert_array_equal(named(ax, "two").get_ydata(), two.reward - one.reward)
    assert ax.get_ylabel() == "more reward a row than 'one'"
    other = figures.draw_reward({"two": two}, one)
    np.testing.assert_array_equal(named(other, "two").get_ydata(), two.reward - one.reward)
    assert other.get_ylabel() == "more reward a row"


def test_ratios_may_come_in_any_order():
    ax = figures.draw_reward(decisions.reward_curve(P, ratios=[10, 1, 3]))
    np.testing.assert_array_equal(named(ax, "expected").get_xdata(), [1, 3, 10])


def test_risk_is_drawn_against_coverage_from_no_rows_on():
    # Confidence 0.9, 0.9, 0.85 and 0.7; of the answers 1, 0, 0 and 0, the third is wrong.
    found = decisions.risk_coverage(P, Y)
    ax = figures.draw_risk_coverage(found)
    np.testing.assert_allclose(named(ax, "came out").get_xydata(), [[0, 0], [0.5, 0], [0.75, 1 / 3], [1, 0.25]])
    np.testing.assert_array_equal(named(ax, "promised").get_ydata()[1:], found.expected)
    assert words(ax) == [f"came out: PRR {found.prr:.3f}", "promised by confidence", "every error last", "blindly"]
    best = named(ax, "every error last")
    assert best.get_ydata()[-1] == pytest.approx(0.25)
    assert (best.get_ydata()[best.get_xdata() < 0.75] == 0).all()
    np.testing.assert_array_equal(named(ax, "blindly").get_ydata(), [0.25, 0.25])


def test_risks_of_several_have_their_names_and_share_what_is_the_same():
    one, two = decisions.risk_coverage(P, Y), decisions.risk_coverage(P**2, Y)
    ax = figures.draw_risk_coverage({"one": one, "two": two})
    assert words(ax) == [f"one: PRR {one.prr:.3f}", f"two: PRR {two.prr:.3f}", "every error last", "blindly"]
    other = decisions.risk_coverage(P, 1 - Y)
    assert words(figures.draw_risk_coverage({"one": one, "other": other}))[2:] == []


# All of them


def pictured():
    return (
        (figures.draw_cost_curve, decisions.best_rule(P, {"fn": 5, "fp": 1})),
        (figures.draw_decision_curve, decisions.decision_curve(Y, P)),
        (figures.draw_roc, decisions.expected_roc(P)),
        (figures.draw_pr, decisions.expected_pr(P)),
        (figures.draw_reward, decisions.reward_curve(P, Y)),
        (figures.draw_risk_coverage, decisions.risk_coverage(P, Y)),
    )


def test_axes_that_are_given_are_drawn_on_and_given_back():
    from matplotlib.figure import Figure

    for draw, result in pictured():
        ax = Figure().add_subplot()
        assert draw(result, ax=ax) is ax


def test_pictures_are_written_whatever_the_size_of_the_data(tmp_path):
    one = [
        (figures.draw_cost_curve, decisions.best_rule([0.0], {"fn": 5, "fp": 1})),
        (figures.draw_cost_curve, decisions.best_rule(P, {"fn": 5, "fp": 1}, capacity={"act": 0})),
        (figures.draw_cost_curve, decisions.best_rule(P, {"fn": 0, "fp": 0})),
        (figures.draw_decision_curve, decisions.decision_curve([0, 1], [0.2, 0.3], thresholds=[0.25])),
        (figures.draw_decision_curve, decisions.decision_curve([0, 0], [0.0, 0.0])),
        (figures.draw_roc, decisions.expected_roc([0.5])),
        (figures.draw_pr, decisions.expected_pr([0.5])),
        (figures.draw_reward, decisions.reward_curve([0.5], ratios=[2])),
        (figures.draw_risk_coverage, decisions.risk_coverage([0.5])),
    ]
    for draw, result in [*pictured(), *one]:
        path = tmp_path / "picture.svg"
        draw(result).figure.savefig(path)
        assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.draw_cost_curve(P), "best must be a rule by decisions.best_rule; got ndarray\nhint: pass what"),
        (
            lambda: figures.draw_cost_curve(decisions.best_rule(P, {"a": (1, 0), "b": (0, 0), "c": (2, 2)})),
            "no threshold to draw: 'b' is best for all rows",
        ),
        (lambda: figures.draw_decision_curve(P), "result must be a curve by decisions.decision_curve; got ndarray"),
        (lambda: figures.draw_roc(P), "curve must be a curve by decisions.expected_roc; got ndarray"),
        (lambda: figures.draw_pr({"a": P}), "'a' must be a curve by decisions.expected_pr; got ndarray"),
        (lambda: figures.draw_roc({}), "nothing to draw"),
        (lambda: figures.draw_roc(decisions.expected_pr(P)), "the curve is of kind 'pr', not 'roc'\nhint: use draw_pr"),
        (lambda: figures.draw_pr({"a": decisions.expected_roc(P)}), "the curve of 'a' is of kind 'roc', not 'pr'"),
        (lambda: figures.draw_roc(decisions.expected_roc(P), truth=Y), r"truth must be \(y, p\) .* got ndarray"),
        (
            lambda: figures.draw_roc({"a": decisions.expected_roc(P)}, truth={"b": (Y, P)}),
            r"truth names 'b', which has no curve\nhint: names are \['a'\]",
        ),
        (lambda: figures.draw_roc(decisions.expected_roc(P), ax="here"), "ax must be axes of matplotlib; got str"),
        (lambda: figures.draw_reward(P), "curves must be a curve by decisions.reward_curve; got ndarray"),
        (lambda: figures.draw_reward({}), "nothing to draw"),
        (lambda: figures.draw_reward({"a": decisions.reward_curve(P)}, "b"), "against names 'b', which is no curve"),
        (lambda: figures.draw_reward({"a": decisions.reward_curve(P)}, P), "against must be a name or a curve .* got nd"),
        (
            lambda: figures.draw_reward({"a": decisions.reward_curve(P)}, decisions.reward_curve(P, ratios=[2, 3])),
            "different ratios",
        ),
        (lambda: figures.draw_risk_coverage([1, 2]), "curves must be a curve by decisions.risk_coverage; got list"),
        (lambda: figures.draw_risk_coverage({}), "nothing to draw"),
    ],
)  # fmt: skip
def test_arguments_that_make_no_sense_are_named(draw, message):
    with pytest.raises(ArgumentError, match=message):
        draw()


def test_curves_without_rates_and_truths_of_one_outcome_are_refused():
    with pytest.raises(DataError, match="the curve has no rates: all scores are 0, or all are 1"):
        figures.draw_roc(decisions.expected_roc([0.0, 0.0]))
    with pytest.raises(DataError, match="the curve of 'a' has no rates"):
        figures.draw_pr({"a": replace(decisions.expected_pr(P), area=math.nan)})
    with pytest.raises(DataError, match="rows of both outcomes"):
        figures.draw_roc(decisions.expected_roc(P), truth=(np.zeros(4), P))
    with pytest.raises(DataError, match="must be equally long; got 4 and 2"):
        figures.draw_roc(decisions.expected_roc(P), truth=(Y, P[:2]))


# What is odd, but there


def test_one_point_is_seen():
    alone = decisions.decision_curve(Y, P, thresholds=[0.2])
    assert named(figures.draw_decision_curve(alone), "model").get_marker() == "o"
    assert named(figures.draw_reward(decisions.reward_curve(P, ratios=[3])), "expected").get_marker() == "o"
    assert named(figures.draw_decision_curve(decisions.decision_curve(Y, P)), "model").get_marker() == "None"


def test_what_is_cheaper_than_the_best_rule_is_over_capacity():
    best = decisions.best_rule(P, {"fn": 5, "fp": 1}, capacity={"act": 1})
    said = words(figures.draw_cost_curve(best))
    assert [one for one in said if "over capacity" in one] == ["act for all rows\n2.55, over capacity"]
    free = decisions.best_rule(P, {"fn": 5, "fp": 1})
    assert not any("over capacity" in one for one in words(figures.draw_cost_curve(free)))


def test_of_many_actions_the_cheapest_are_drawn_for_all_rows():
    best = decisions.best_rule(many(), {f"do {k}": (500 - 60 * k, 15 * k) for k in range(8)})
    said = [one for one in words(figures.draw_cost_curve(best)) if "for all rows" in one]
    cheapest = sorted(best.uniform_costs, key=best.uniform_costs.get)[:4]
    assert sorted(one.split(" for all")[0] for one in said) == sorted(cheapest)


def test_long_names_are_broken():
    name = "an action that has a name which goes on and on"
    best = decisions.best_rule(many(), {"nothing": (5, 0), name: (1, 1)})
    said = words(figures.draw_cost_curve(best))
    assert max(len(line) for one in said for line in one.split("\n")) <= 34
    assert any(name in one.replace("\n", " ") for one in said)


def test_many_curves_have_their_names_beside_them_and_faint_bands():
    curve = decisions.expected_roc(many(500), labelled=0.05)
    few, crowd = (figures.draw_roc({f"part {k}": curve for k in range(n)}) for n in (2, 9))
    for ax in (few, crowd):
        ax.figure.savefig(io.BytesIO())  # lays out
    inside, beside = (ax.get_legend().get_window_extent().x0 - ax.get_window_extent().x1 for ax in (few, crowd))
    assert inside < 0 < beside
    assert crowd.get_legend().get_window_extent().x1 <= crowd.figure.bbox.x1
    assert crowd.patches[0].get_alpha() < few.patches[0].get_alpha()


def test_a_gain_is_told_of_where_it_is_seen():
    # Far up, acting on scores that are twice too high does harm without end: that is out of the picture.
    y, _, p = two_scores()
    found = decisions.decision_curve(y, {"before": np.minimum(1.8 * p, 1), "after": p})
    ax = figures.draw_decision_curve(found)
    gain = found.difference["after"].estimate
    seen = np.minimum(*found.benefit.values()) >= ax.get_ylim()[0]
    assert gain[~seen].max() > 2 * gain[seen].max()
    assert any(f"up to {1000 * gain[seen].max():.3g}" in one for one in words(ax))


def test_where_there_is_no_ratio_none_is_told():
    said = words(figures.draw_risk_coverage(decisions.risk_coverage([0.7, 0.8], [1, 1])))
    assert said[0] == "came out"
