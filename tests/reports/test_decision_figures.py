"""Figures of decisions show the values of results."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest

from figure_parts import dots, labelled, legend_texts, lines
from trueup import decisions
from trueup.errors import ArgumentError, DataError
from trueup.reports import figures

pytest.importorskip("matplotlib")

P = np.array([0.1, 0.15, 0.3, 0.9])
Y = np.array([0, 1, 0, 1])


def random_scores(rows=5_000, seed=0):
    return np.random.default_rng(seed).beta(1, 3, rows)


# Cost curves


def test_a_cost_curve_of_few_scores_has_steps_and_its_best_threshold_marked():
    # Acting costs 1 - p per row, passing 5 p: acting is cheaper from 1/6 on.
    best = decisions.best_rule(P, {"fn": 5, "fp": 1})
    ax = figures.draw_cost_curve(best, title="whom to call")
    curve = lines(ax)[0]
    assert curve.get_drawstyle() == "steps-pre"
    np.testing.assert_allclose(curve.get_xdata(), [0.1, 0.15, 0.3, 0.9, 0.9 * 1.04])
    np.testing.assert_allclose(curve.get_ydata(), [2.55, 2.15, 2.05, 2.85, 7.25])
    (dot,) = dots(ax)
    np.testing.assert_allclose(dot.get_xydata(), [[1 / 6, 2.05]])
    assert legend_texts(ax) == [
        "best: act from 0.1667\ncosts 2.05\n20% less than act for all",
        "pass for all rows\n7.25",
        "act for all rows\n2.55",
    ]
    assert [line.get_ydata()[0] for line in lines(ax)[1:]] == pytest.approx([7.25, 2.55])
    assert ax.get_title(loc="left") == "whom to call"
    assert "above all scores" in ax.get_xlabel()


def test_a_cost_curve_of_many_scores_is_a_line():
    best = decisions.best_rule(random_scores(), {"fn": 5, "fp": 1})
    ax = figures.draw_cost_curve(best)
    curve = lines(ax)[0]
    assert curve.get_drawstyle() == "default"
    # The last threshold, above all scores, is not drawn: thresholds just below it are left out of the curve.
    assert best.curve[-1][0] == math.inf
    np.testing.assert_array_equal(curve.get_xydata(), best.curve[:-1])
    assert ax.get_xlim() == (0.0, best.curve[-2][0])
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("threshold", "expected cost")


def test_the_threshold_above_all_scores_is_drawn_if_it_is_the_best():
    p = random_scores()
    best = decisions.best_rule(p, {"fn": 1, "fp": 99})
    assert len(best.curve) > 50
    ax = figures.draw_cost_curve(best)
    assert ax.get_xlim()[1] == dots(ax)[0].get_xdata()[0] == pytest.approx(1.04 * p.max())
    assert "above all scores" in ax.get_xlabel()


@pytest.mark.parametrize(("capacity", "ends"), [(20, True), (500, False)])
def test_thresholds_within_capacity_fill_the_axis(capacity, ends):
    p = random_scores()
    best = decisions.best_rule(p, {"fn": 5, "fp": 1}, capacity={"act": capacity})
    ax = figures.draw_cost_curve(best)
    left, right = ax.get_xlim()
    first = best.curve[0][0]
    assert first == np.sort(p)[-capacity]
    assert 0 < (first - left) / (right - left) < 0.06
    assert right == pytest.approx(1.04 * p.max() if ends else best.curve[-2][0])
    assert ("above all scores" in ax.get_xlabel()) == ends
    assert "less than pass for all" in legend_texts(ax)[0]  # acting on all rows is over capacity
    assert [text.endswith("over capacity") for text in legend_texts(ax)[1:]] == [False, True]


def test_very_expensive_thresholds_are_outside_the_axis():
    best = decisions.best_rule(random_scores(), {"fn": 500, "fp": 1})
    ax = figures.draw_cost_curve(best)
    least = best.uniform_costs["act"]
    assert ax.get_ylim() == (0.0, pytest.approx(2 * 1.06 * least))
    assert ax.get_xlim()[0] == 0.0
    assert best.threshold < ax.get_xlim()[1] < 0.5
    assert ax.get_xlabel() == "threshold"


def test_a_rule_of_three_actions_has_a_line_per_threshold():
    best = decisions.best_rule(random_scores(), {"nothing": (5, 0), "mail": (3, 0.3), "visit": (1, 1.2)})
    ax = figures.draw_cost_curve(best)
    assert legend_texts(ax)[:2] == ["nothing | mail", "mail | visit"]
    (dot,) = dots(ax)
    np.testing.assert_array_equal(dot.get_xdata(), best.rule.edges[1:-1])
    np.testing.assert_array_equal(dot.get_ydata(), [best.estimate] * 2)
    assert legend_texts(ax)[2].startswith("best:\nnothing below 0.13")


@pytest.mark.parametrize(
    ("costs", "threshold", "action"), [({"fn": 1, "fp": 99}, 0.9 * 1.04, "pass"), ({"fn": 99, "fp": 1}, 0.1, "act")]
)
def test_a_rule_with_one_action_is_marked_at_the_end(costs, threshold, action):
    ax = figures.draw_cost_curve(decisions.best_rule(P, costs))
    assert dots(ax)[0].get_xdata()[0] == pytest.approx(threshold)
    assert legend_texts(ax)[0].startswith(f"best: {action} always\ncosts")
    assert "less than" not in legend_texts(ax)[0]


def test_negative_costs_are_shown_without_a_percentage():
    best = decisions.best_rule(P, {"fn": 5, "fp": 1, "tp": -20})
    ax = figures.draw_cost_curve(best)
    assert best.estimate < 0
    assert ax.get_ylim()[0] < best.estimate
    assert "less than" not in legend_texts(ax)[0]


def test_large_amounts_have_thousands_separators():
    best = decisions.best_rule(P, {"fn": 50_000, "fp": 10_000})
    assert "costs 20,500" in legend_texts(figures.draw_cost_curve(best))[0]


# Decision curves


def two_scores():
    p = random_scores(20_000)
    y = (np.random.default_rng(1).random(len(p)) < p).astype(float)
    return y, np.sqrt(p), p


def test_a_decision_curve_has_each_score_with_its_interval():
    y, before, after = two_scores()
    found = decisions.decision_curve(y, {"before": before, "after": after})
    ax = figures.draw_decision_curve(found, title="whom to treat")
    for name in ("before", "after"):
        np.testing.assert_array_equal(labelled(ax, name).get_ydata(), found.benefit[name])
        np.testing.assert_array_equal(labelled(ax, name).get_xdata(), found.threshold)
    np.testing.assert_array_equal(labelled(ax, "act on all rows").get_ydata(), found.treat_all)
    np.testing.assert_array_equal(labelled(ax, "act on none").get_ydata(), found.treat_none)
    first = ax.collections[0].get_paths()[0].vertices[:, 1]
    assert first.min() == pytest.approx(found.low["before"].min())
    assert first.max() == pytest.approx(found.high["before"].max())
    assert ax.get_title(loc="left") == "whom to treat"


def test_the_gain_of_a_fix_is_shaded_and_its_maximum_reported():
    y, before, after = two_scores()
    found = decisions.decision_curve(y, {"before": before, "after": after})
    ax = figures.draw_decision_curve(found)
    gain = found.benefit["after"] - found.benefit["before"]
    at = int(np.argmax(gain))
    label = f"gain of 'after': up to {1000 * gain[at]:.3g}\nper 1,000 rows, at {found.threshold[at]:.4g}"
    assert label in legend_texts(ax)
    shaded = labelled(ax, "gain of").get_paths()[0].vertices
    assert shaded[:, 1].max() == pytest.approx(found.benefit["after"].max())
    turned = figures.draw_decision_curve(decisions.decision_curve(y, {"after": after, "before": before}))
    assert label.replace("gain of 'after'", "loss of 'before'") in legend_texts(turned)


def test_an_insignificant_difference_is_labelled_as_such():
    found = decisions.decision_curve([0, 0, 1, 1], {"a": [0.4, 0.7, 0.6, 0.9], "b": [0.2, 0.4, 0.6, 0.9]})
    assert "gain of 'b',\nnot significant" in legend_texts(figures.draw_decision_curve(found))


def test_only_two_scores_are_shaded():
    y, before, after = two_scores()
    three = decisions.decision_curve(y, {"a": before, "b": after, "c": after**2})
    assert legend_texts(figures.draw_decision_curve(three)) == ["a", "b", "c", "act on all rows", "act on none"]
    alone = decisions.decision_curve(None, after)
    assert legend_texts(figures.draw_decision_curve(alone)) == ["model", "act on all rows", "act on none"]


def test_net_benefit_far_below_zero_is_outside_the_axis():
    y, _, after = two_scores()
    calm = decisions.decision_curve(y, after)
    most = max(calm.treat_all.max(), calm.benefit["model"].max())
    assert calm.treat_all.min() < -10
    assert figures.draw_decision_curve(calm).get_ylim() == (pytest.approx(-0.1 * most), pytest.approx(1.06 * most))
    harm = decisions.decision_curve(y, 1 - after)
    assert figures.draw_decision_curve(harm).get_ylim()[0] == pytest.approx(-0.5 * harm.treat_all.max())


# Rates without labels


def test_a_roc_curve_has_its_band_and_area():
    curve = decisions.expected_roc(P, labelled=0.05)
    ax = figures.draw_roc(curve, title="four rows")
    chance, line = lines(ax)
    np.testing.assert_array_equal(chance.get_xydata(), [[0, 0], [1, 1]])
    np.testing.assert_array_equal(line.get_xdata(), curve.x)
    np.testing.assert_array_equal(line.get_ydata(), curve.y)
    (band,) = ax.patches
    upper = np.column_stack([[0, *curve.x_low, 1], [0, *curve.y_high, 1]])
    lower = np.column_stack([[0, *curve.x_high, 1], [0, *curve.y_low, 1]])
    # The outline is closed in the lower left corner.
    np.testing.assert_array_equal(band.get_xy(), np.concatenate([upper, lower[::-1]]))
    assert legend_texts(ax) == [
        f"expected: AUC {curve.area:.3f} ({curve.area_low:.3f} to {curve.area_high:.3f})",
        "band: 90%",
    ]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("false positive rate", "true positive rate")
    assert ax.get_title(loc="left") == "four rows"


def test_a_pr_curve_starts_where_precision_is_defined():
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
    assert legend_texts(ax) == [f"expected: average precision {curve.area:.3f} {span}", "band: 90%"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("recall", "precision")


def test_realised_curves_equal_those_of_the_outcomes():
    # From the top: a positive, a negative, a positive, a negative.
    roc = figures.draw_roc(decisions.expected_roc(P), truth=(Y, P))
    np.testing.assert_array_equal(labelled(roc, "realised").get_xydata(), [[0, 0], [0, 0.5], [0.5, 0.5], [0.5, 1], [1, 1]])
    assert legend_texts(roc)[-1] == "realised: AUC 0.750"
    pr = figures.draw_pr(decisions.expected_pr(P), truth=(Y, P))
    np.testing.assert_allclose(labelled(pr, "realised").get_xydata(), [[0.5, 1], [0.5, 0.5], [1, 2 / 3], [1, 0.5]])
    assert legend_texts(pr)[-1] == "realised: average precision 0.833"


def test_realised_curves_handle_ties_and_weights():
    p, y = [0.2, 0.2, 0.8, 0.8], [0, 0, 0, 1]
    ax = figures.draw_roc(decisions.expected_roc(p), truth=(y, p, [1, 1, 2, 1]))
    np.testing.assert_array_equal(labelled(ax, "realised").get_xydata(), [[0, 0], [0.5, 1], [1, 1]])


def test_several_curves_have_names_and_realised_curves():
    curves = {"one": decisions.expected_roc(P), "two": decisions.expected_roc(P**2)}
    ax = figures.draw_roc(curves, truth={"two": (Y, P**2)})
    assert [text.split(":")[0] for text in legend_texts(ax)] == ["one", "two", "bands", "two, realised"]
    assert labelled(ax, "two, realised").get_color() == labelled(ax, "two:").get_color() != labelled(ax, "one").get_color()
    assert len(ax.patches) == 2
    wide = curves | {"wide": decisions.expected_roc(P, level=0.99)}
    assert [text for text in legend_texts(figures.draw_roc(wide)) if "band" in text] == ["bands: 90%, 99%"]


def test_long_curves_are_thinned_from_end_to_end():
    curve = decisions.expected_roc(random_scores(20_000))
    line = lines(figures.draw_roc(curve))[1].get_xydata()
    assert len(line) <= 1_001
    assert {tuple(point) for point in line} <= set(zip(curve.x, curve.y, strict=True))
    np.testing.assert_array_equal(line[[0, -1]], [[0, 0], [1, 1]])
    apart = np.abs(np.diff(line, axis=0)).max()
    assert apart < 0.01


# Abstention


def test_rewards_by_cost_ratio_are_drawn_with_reference_policies():
    one, two = decisions.reward_curve(P, Y), decisions.reward_curve(np.sqrt(P), Y)
    ax = figures.draw_reward({"one": one, "two": two}, title="four rows")
    np.testing.assert_array_equal(labelled(ax, "one").get_xdata(), one.ratio)
    np.testing.assert_array_equal(labelled(ax, "two").get_ydata(), two.realised)
    # The answers differ, so only the reward of never answering is the same for both.
    assert legend_texts(ax) == ["one", "two", "never answer"]
    assert ax.get_xscale() == "log"
    same = figures.draw_reward({"one": one, "again": one})
    assert legend_texts(same) == ["one", "again", "only correct answers", "never answer", "always answer"]


def test_a_single_reward_curve_is_compared_with_its_expectation():
    known, unknown = decisions.reward_curve(P, Y), decisions.reward_curve(P)
    ax = figures.draw_reward(known)
    assert legend_texts(ax)[:2] == ["realised (±2 standard errors)", "expected by confidence"]
    np.testing.assert_array_equal(labelled(ax, "expected by").get_ydata(), known.expected)
    (band,) = ax.collections
    assert band.get_paths()[0].vertices[:, 1].min() == pytest.approx((known.realised - 2 * known.standard_error).min())
    plain = figures.draw_reward(unknown)
    assert legend_texts(plain)[:2] == ["expected", "only correct answers"]
    np.testing.assert_array_equal(labelled(plain, "expected").get_ydata(), unknown.expected)


def test_rewards_against_a_baseline_are_differences():
    one, two = decisions.reward_curve(P, Y), decisions.reward_curve(np.sqrt(P), Y)
    ax = figures.draw_reward({"one": one, "two": two}, against="one")
    assert legend_texts(ax) == ["two"]
    np.testing.assert_array_equal(labelled(ax, "two").get_ydata(), two.reward - one.reward)
    assert ax.get_ylabel() == "reward per row minus that of 'one'"
    other = figures.draw_reward({"two": two}, one)
    np.testing.assert_array_equal(labelled(other, "two").get_ydata(), two.reward - one.reward)
    assert other.get_ylabel() == "difference in reward per row"


def test_ratios_are_sorted():
    ax = figures.draw_reward(decisions.reward_curve(P, ratios=[10, 1, 3]))
    np.testing.assert_array_equal(labelled(ax, "expected").get_xdata(), [1, 3, 10])


def test_risk_is_drawn_from_zero_coverage_on():
    # Confidence 0.9, 0.9, 0.85 and 0.7; of the answers 1, 0, 0 and 0, the third is wrong.
    found = decisions.risk_coverage(P, Y)
    ax = figures.draw_risk_coverage(found)
    np.testing.assert_allclose(labelled(ax, "realised").get_xydata(), [[0, 0], [0.5, 0], [0.75, 1 / 3], [1, 0.25]])
    np.testing.assert_array_equal(labelled(ax, "expected by").get_ydata()[1:], found.expected)
    assert legend_texts(ax) == [
        f"realised: PRR {found.prr:.3f}",
        "expected by confidence",
        "all errors last",
        "random order",
    ]
    best = labelled(ax, "all errors last")
    assert best.get_ydata()[-1] == pytest.approx(0.25)
    assert (best.get_ydata()[best.get_xdata() < 0.75] == 0).all()
    np.testing.assert_array_equal(labelled(ax, "random order").get_ydata(), [0.25, 0.25])


def test_several_risk_curves_share_their_references():
    one, two = decisions.risk_coverage(P, Y), decisions.risk_coverage(P**2, Y)
    ax = figures.draw_risk_coverage({"one": one, "two": two})
    assert legend_texts(ax) == [f"one: PRR {one.prr:.3f}", f"two: PRR {two.prr:.3f}", "all errors last", "random order"]
    other = decisions.risk_coverage(P, 1 - Y)
    assert legend_texts(figures.draw_risk_coverage({"one": one, "other": other}))[2:] == []


# All figures


def examples():
    return (
        (figures.draw_cost_curve, decisions.best_rule(P, {"fn": 5, "fp": 1})),
        (figures.draw_decision_curve, decisions.decision_curve(Y, P)),
        (figures.draw_roc, decisions.expected_roc(P)),
        (figures.draw_pr, decisions.expected_pr(P)),
        (figures.draw_reward, decisions.reward_curve(P, Y)),
        (figures.draw_risk_coverage, decisions.risk_coverage(P, Y)),
    )


def test_given_axes_are_used_and_returned():
    from matplotlib.figure import Figure

    for draw, result in examples():
        ax = Figure().add_subplot()
        assert draw(result, ax=ax) is ax


def test_figures_of_very_small_data_are_written(tmp_path):
    small = [
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
    for draw, result in [*examples(), *small]:
        path = tmp_path / "figure.svg"
        draw(result).figure.savefig(path)
        assert "<svg" in path.read_text()


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: figures.draw_cost_curve(P), "best must be a rule from decisions.best_rule; got ndarray\nhint: pass one"),
        (
            lambda: figures.draw_cost_curve(decisions.best_rule(P, {"a": (1, 0), "b": (0, 0), "c": (2, 2)})),
            "no threshold to draw: 'b' is best for all rows",
        ),
        (lambda: figures.draw_decision_curve(P), "result must be a curve from decisions.decision_curve; got ndarray"),
        (lambda: figures.draw_roc(P), "curve must be a curve from decisions.expected_roc; got ndarray"),
        (lambda: figures.draw_pr({"a": P}), "'a' must be a curve from decisions.expected_pr; got ndarray"),
        (lambda: figures.draw_roc({}), "nothing to draw"),
        (lambda: figures.draw_roc(decisions.expected_pr(P)), "the curve is of kind 'pr', not 'roc'\nhint: use draw_pr"),
        (lambda: figures.draw_pr({"a": decisions.expected_roc(P)}), "the curve of 'a' is of kind 'roc', not 'pr'"),
        (lambda: figures.draw_roc(decisions.expected_roc(P), truth=Y), r"truth must be \(y, p\) .* got ndarray"),
        (
            lambda: figures.draw_roc({"a": decisions.expected_roc(P)}, truth={"b": (Y, P)}),
            r"truth names 'b', which has no curve\nhint: names are \['a'\]",
        ),
        (lambda: figures.draw_roc(decisions.expected_roc(P), ax="here"), "ax must be axes of matplotlib; got str"),
        (lambda: figures.draw_reward(P), "curves must be a curve from decisions.reward_curve; got ndarray"),
        (lambda: figures.draw_reward({}), "nothing to draw"),
        (lambda: figures.draw_reward({"a": decisions.reward_curve(P)}, "b"), "against names 'b', which is no curve"),
        (lambda: figures.draw_reward({"a": decisions.reward_curve(P)}, P), "against must be a name or a curve .* got nd"),
        (
            lambda: figures.draw_reward({"a": decisions.reward_curve(P)}, decisions.reward_curve(P, ratios=[2, 3])),
            "different ratios",
        ),
        (lambda: figures.draw_risk_coverage([1, 2]), "curves must be a curve from decisions.risk_coverage; got list"),
        (lambda: figures.draw_risk_coverage({}), "nothing to draw"),
    ],
)  # fmt: skip
def test_invalid_arguments_are_rejected(draw, message):
    with pytest.raises(ArgumentError, match=message):
        draw()


def test_degenerate_curves_and_truths_are_rejected():
    with pytest.raises(DataError, match="the curve has no rates: all scores are 0, or all are 1"):
        figures.draw_roc(decisions.expected_roc([0.0, 0.0]))
    with pytest.raises(DataError, match="the curve of 'a' has no rates"):
        figures.draw_pr({"a": replace(decisions.expected_pr(P), area=math.nan)})
    with pytest.raises(DataError, match="rows of both outcomes"):
        figures.draw_roc(decisions.expected_roc(P), truth=(np.zeros(4), P))
    with pytest.raises(DataError, match="must have equal length; got 4 and 2"):
        figures.draw_roc(decisions.expected_roc(P), truth=(Y, P[:2]))


# Special cases


def test_a_single_point_has_a_marker():
    alone = decisions.decision_curve(Y, P, thresholds=[0.2])
    assert labelled(figures.draw_decision_curve(alone), "model").get_marker() == "o"
    assert labelled(figures.draw_reward(decisions.reward_curve(P, ratios=[3])), "expected").get_marker() == "o"
    assert labelled(figures.draw_decision_curve(decisions.decision_curve(Y, P)), "model").get_marker() == "None"


def test_actions_over_capacity_are_labelled():
    best = decisions.best_rule(P, {"fn": 5, "fp": 1}, capacity={"act": 1})
    texts = legend_texts(figures.draw_cost_curve(best))
    assert [text for text in texts if "over capacity" in text] == ["act for all rows\n2.55, over capacity"]
    free = decisions.best_rule(P, {"fn": 5, "fp": 1})
    assert not any("over capacity" in text for text in legend_texts(figures.draw_cost_curve(free)))


def test_uniform_costs_of_the_cheapest_actions_are_drawn():
    best = decisions.best_rule(random_scores(), {f"do {k}": (500 - 60 * k, 15 * k) for k in range(8)})
    texts = [text for text in legend_texts(figures.draw_cost_curve(best)) if "for all rows" in text]
    cheapest = sorted(best.uniform_costs, key=best.uniform_costs.get)[:4]
    assert sorted(text.split(" for all")[0] for text in texts) == sorted(cheapest)


def test_long_names_are_wrapped():
    name = "an action that has a name which goes on and on"
    best = decisions.best_rule(random_scores(), {"nothing": (5, 0), name: (1, 1)})
    texts = legend_texts(figures.draw_cost_curve(best))
    assert max(len(line) for text in texts for line in text.split("\n")) <= 34
    assert any(name in text.replace("\n", " ") for text in texts)


def test_many_curves_have_a_legend_beside_the_axes_and_faint_bands():
    curve = decisions.expected_roc(random_scores(500), labelled=0.05)
    few, crowd = (figures.draw_roc({f"part {k}": curve for k in range(n)}) for n in (2, 9))
    for ax in (few, crowd):
        ax.figure.savefig(io.BytesIO())  # lays out
    inside, beside = (ax.get_legend().get_window_extent().x0 - ax.get_window_extent().x1 for ax in (few, crowd))
    assert inside < 0 < beside
    assert crowd.get_legend().get_window_extent().x1 <= crowd.figure.bbox.x1
    assert crowd.patches[0].get_alpha() < few.patches[0].get_alpha()


def test_only_visible_gains_are_reported():
    # At high thresholds, acting on scores that are too high does unlimited harm, which is outside the axis.
    y, _, p = two_scores()
    found = decisions.decision_curve(y, {"before": np.minimum(1.8 * p, 1), "after": p})
    ax = figures.draw_decision_curve(found)
    gain = found.difference["after"].estimate
    seen = np.minimum(*found.benefit.values()) >= ax.get_ylim()[0]
    assert gain[~seen].max() > 2 * gain[seen].max()
    assert any(f"up to {1000 * gain[seen].max():.3g}" in text for text in legend_texts(ax))


def test_an_undefined_prr_is_not_shown():
    texts = legend_texts(figures.draw_risk_coverage(decisions.risk_coverage([0.7, 0.8], [1, 1])))
    assert texts[0] == "realised"
