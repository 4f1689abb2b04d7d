"""Effects of features on one prediction: values worked by hand, additive, and independent of the order of contributions."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace

import numpy as np
import pytest

import trueup as tu
from checks import CLASSES, FEATURES, rows
from trueup.calibrators.row_explanation import Effect, EffectSums, RowExplanation, TreeWalker
from trueup.data.table import Feature, Schema
from trueup.kernels.trees import Forest, join_forests

NUMBERS = tuple(Feature(name, "numeric", ()) for name in ("a", "b", "c"))
BINARY = Schema("binary", "y", ("p",), None, NUMBERS, ())
SEVERAL = Schema("multiclass", "y", ("q0", "q1", "q2"), None, NUMBERS, ("cat", "dog", "owl"))


def tree(nodes, values):
    """Return a tree of numeric splits, (feature, threshold, left, right) each; links are nodes or complements of leaves."""
    feature, threshold, left, right = (np.array(column) for column in zip(*nodes, strict=True))
    zeros = np.zeros(len(nodes), np.int32)
    return Forest(
        np.array([0], np.int32), np.array([0], np.int32), feature.astype(np.int32), threshold.astype(float),
        left.astype(np.int32), right.astype(np.int32), zeros.astype(np.uint8), zeros - 1, zeros, np.zeros(0, np.uint32),
        np.array(values, float),
    )  # fmt: skip


def sums_of(parts, schema=BINARY, prediction=(0.2,)):
    sums = EffectSums(schema, [1.0, 2.0, 3.0], list(prediction))
    for columns, change, *output in parts:
        sums.add(columns, change, *output)
    return sums


def logit(p):
    return np.log(p / (1 - p))


# ------------------------------------------------------------------ division of leaves


def test_a_leaf_is_divided_by_what_undoing_the_splits_of_a_feature_would_change():
    # a <= 0 ? (b <= 0 ? 5 : 1) : 0.  A row with a and b below 0 reaches 5. Without the split on b it would reach
    # (5 + 1) / 2 = 3; without that on a, (5 + 0) / 2 = 2.5: differences of 2 and 2.5.
    walker = TreeWalker(tree([(0, 0.0, 1, ~2), (1, 0.0, ~0, ~1)], [5.0, 1.0, 0.0]))
    assert dict(walker.divide(0, [-1.0, -1.0])) == pytest.approx({0: 2.5 / 4.5, 1: 2 / 4.5}, rel=1e-15)
    assert walker.divide(0, [1.0, -1.0]) == [(0, 1.0)]  # only a was tested
    assert walker.follow(0, [-1.0, -1.0]) == ([(0, -np.inf, 0.0), (1, -np.inf, 0.0)], 5.0)


def test_a_feature_that_is_tested_twice_is_undone_at_both_splits():
    # a <= 0 ? (a <= -2 ? 8 : 4) : (b <= 0 ? 0 : 2).  At a = -3 the value is 8; without a it is
    # ((8 + 4) / 2 + 0) / 2 = 3 if b is below 0, and 4 if it is above. b is not tested on the path.
    walker = TreeWalker(tree([(0, 0.0, 1, 2), (0, -2.0, ~0, ~1), (1, 0.0, ~2, ~3)], [8.0, 4.0, 0.0, 2.0]))
    assert walker.divide(0, [-3.0, 1.0]) == [(0, 1.0)]
    assert walker._walk(0, [-3.0, -1.0], 0) == 3.0
    assert walker._walk(0, [-3.0, 1.0], 0) == 4.0


def test_branches_count_by_their_training_rows():
    # As in the first test, but 51 of 255 rows go left at both splits: without b it is .2 * 5 + .8 * 1, without a .2 * 5.
    plain = tree([(0, 0.0, 1, ~2), (1, 0.0, ~0, ~1)], [5.0, 1.0, 0.0])
    walker = TreeWalker(replace(plain, left_share=np.array([51, 51], np.uint8)))
    assert dict(walker.divide(0, [-1.0, -1.0])) == pytest.approx({0: 4 / 7.2, 1: 3.2 / 7.2}, rel=1e-15)
    # A row that goes right at a reaches 0; without a it would reach .2 * 5.
    assert walker.divide(0, [1.0, -1.0]) == [(0, 1.0)]


def test_the_shares_of_training_rows_are_those_of_the_fit_and_are_saved(tmp_path):
    x = np.repeat([0.0, 1.0], [300, 700])
    y = np.random.default_rng(0).random(1000) < np.where(x < 0.5, 0.8, 0.3)
    data = {"x": x, "p": np.full(1000, 0.5)}
    fix = tu.MCGrad("p", ["x"], stopping=None, trees=1, depth=2, feature_fraction=1.0, threads=1).fit(data, y.astype(int))
    forest = fix.model_.map.rounds[0].forests[0]
    assert forest.left_share.tolist() == [round(255 * 0.3)]
    tu.save(fix, tmp_path / "m.trueup")
    again = tu.load(tmp_path / "m.trueup")
    assert again.explain({"x": 0.0, "p": 0.5}) == fix.explain({"x": 0.0, "p": 0.5})
    assert again.map.rounds[0].forests[0].left_share.tolist() == forest.left_share.tolist()
    joined = join_forests([forest, tree([(0, 0.0, ~0, ~1)], [1.0, 2.0])])
    assert joined.left_share.tolist() == [round(255 * 0.3), 128]  # a half where it is not known


def test_splits_that_change_nothing_have_no_share_unless_all_are_such():
    same = tree([(0, 0.0, 1, ~2), (1, 0.0, ~0, ~1)], [5.0, 5.0, 0.0])
    assert TreeWalker(same).divide(0, [-1.0, -1.0]) == [(0, 1.0)]
    constant = tree([(0, 0.0, 1, ~2), (1, 0.0, ~0, ~1)], [5.0, 5.0, 5.0])
    assert TreeWalker(constant).divide(0, [-1.0, -1.0]) == [(0, 0.5), (1, 0.5)]
    assert TreeWalker(constant).divide(~0, [-1.0, -1.0]) == []


# ------------------------------------------------------------------ logits to points


def test_contributions_to_a_logit_become_points_in_proportion():
    after = 1 / (1 + np.exp(-(logit(0.2) + 1.5)))
    effects = sums_of([((0,), 2.0), ((1,), -0.75), ((), 0.25)]).effects("logit", [0.2], [after])
    total = after - 0.2
    assert [effect.name for effect in effects] == ["a=1", "b=2", "p=0.2"]
    assert [effect.change for effect in effects] == pytest.approx(
        [total * 2 / 1.5, -total * 0.75 / 1.5, total * 0.25 / 1.5], rel=1e-14
    )
    assert [effect.features for effect in effects] == [("a",), ("b",), ("p",)]


def test_contributions_that_cancel_have_the_slope_of_the_sigmoid():
    effects = sums_of([((0,), 2.0), ((1,), -2.0)]).effects("logit", [0.2], [0.2])
    assert [effect.change for effect in effects] == pytest.approx([0.32, -0.32], rel=1e-14)  # 2 * 0.2 * 0.8


def test_the_points_do_not_depend_on_the_order_of_contributions():
    parts = [((0,), 0.7), ((1, 2), -0.2), ((), 0.4), ((0,), -0.1)]
    after = 1 / (1 + np.exp(-(logit(0.2) + 0.8)))
    expected = sums_of(parts).effects("logit", [0.2], [after])
    for order in itertools.permutations(parts):
        for effect, other in zip(sums_of(order).effects("logit", [0.2], [after]), expected, strict=True):
            assert (effect.name, effect.change) == (other.name, pytest.approx(other.change, rel=1e-13))


def test_points_of_classes_are_integrated_gradients():
    before, parts = np.array([0.2, 0.3, 0.5]), [((0,), 1.5, 0), ((1,), -2.0, 2), ((0,), 0.5, 1), ((), 0.3, 1)]
    C = np.array([[1.5, 0.5, 0.0], [0.0, 0.0, -2.0], [0.0, 0.3, 0.0]])
    after = before * np.exp(C.sum(axis=0))
    after /= after.sum()
    effects = sums_of(parts, SEVERAL, before).effects("softmax", before, after)
    # The twin: the integral of p_k (c_k - sum_j p_j c_j) by the midpoint rule with many points.
    t = (np.arange(20_000) + 0.5) / 20_000
    p = before * np.exp(t[:, None] * C.sum(axis=0))
    p /= p.sum(axis=1, keepdims=True)
    expected = np.array([(p * (c - (p @ c)[:, None])).mean(axis=0) for c in C])
    by_name = {name: [effect.change for effect in effects if effect.name == name] for name in ("a=1", "b=2", "q1=0.3")}
    np.testing.assert_allclose(list(by_name.values()), expected, atol=1e-9)
    np.testing.assert_allclose(np.sum(list(by_name.values()), axis=0), after - before, atol=1e-16)
    np.testing.assert_allclose(np.sum(list(by_name.values()), axis=1), 0, atol=1e-12)  # what one class gains others lose
    shifted = [*parts, *(((2,), 5.0, output) for output in range(3))]  # the same for all classes: changes nothing
    for effect in sums_of(shifted, SEVERAL, before).effects("softmax", before, after):
        assert effect.features != ("c",) or abs(effect.change) < 1e-12


def test_extreme_changes_still_add_up():
    for before, after in (([0.0], [0.3]), ([1.0], [1e-9]), ([1e-300], [1.0]), ([0.4], [0.4 + 1e-13])):
        effects = sums_of([((0,), 3.0), ((1,), -1.0)], prediction=before).effects("logit", before, after)
        assert sum(effect.change for effect in effects) == pytest.approx(after[0] - before[0], rel=1e-12, abs=1e-16)
    before, after = [1.0, 0.0, 0.0], [0.0, 0.25, 0.75]
    effects = sums_of([((0,), -800.0, 0), ((1,), 1.0, 2)], SEVERAL, before).effects("softmax", before, after)
    for label, change in zip(CLASSES, (-1.0, 0.25, 0.75), strict=True):
        assert sum(effect.change for effect in effects if effect.output == label) == pytest.approx(change, abs=1e-12)


def test_a_prediction_that_is_a_feature_is_one_column():
    schema = Schema("binary", "y", ("b",), None, NUMBERS, ())
    sums = EffectSums(schema, [1.0, 0.2, 3.0], [0.2])
    sums.add((1,), 0.5)
    sums.add((), 0.5)
    assert [effect.name for effect in sums.effects("logit", [0.2], [0.4])] == ["b=0.2"]


# ------------------------------------------------------------------ what is shown


def explained(count=8, **changes):
    effects = tuple(Effect(f"x{i}={i}", (f"x{i}",), 0.01 * (count - i) * (-1) ** i) for i in range(count))
    after = 0.2 + sum(effect.change for effect in effects)
    return RowExplanation(
        **{"before": 0.2, "after": after, "effects": effects, "link_change": 0.1, "contributions": ()} | changes
    )


def test_the_five_largest_effects_and_the_rest_are_shown_everywhere():
    found = explained()
    names = ["x0=0", "x1=1", "x2=2", "x3=3", "x4=4", "rest (3 more)"]
    assert [effect.name for effect in found.largest()] == names
    assert found.largest()[-1].change == pytest.approx(-0.03 + 0.02 - 0.01)
    assert found.to_frame()["feature"].tolist() == names
    assert [effect["name"] for effect in json.loads(json.dumps(found.to_dict()))["effects"]] == names
    assert "contributions" not in found.to_dict()
    assert repr(found) == (
        "0.2 -> 0.24: +4.00 points\n"
        "  due to         points\n"
        "  x0=0            +8.00\n"
        "  x1=1            -7.00\n"
        "  x2=2            +6.00\n"
        "  x3=3            -5.00\n"
        "  x4=4            +4.00\n"
        "  rest (3 more)   -2.00"
    )
    assert found._repr_html_().count("<tr>") == 7
    assert [effect.name for effect in explained(5).largest()] == names[:5]
    assert len(found.largest(2)) == 3


def test_small_changes_keep_three_digits():
    small = (Effect("a=1", ("a",), 1.23456e-6), Effect("b=1", ("b",), -1e-8))
    lines = repr(explained(effects=small, after=0.2 + 1.22456e-6)).splitlines()
    assert lines[0] == "0.2 -> 0.200001: +0.000122 points"
    assert [line.split()[-1] for line in lines[2:]] == ["+0.000123", "-0.000001"]
    amounts = explained(effects=(Effect("a=1", ("a",), 1234.6),), before=0.0, after=1234.6, unit="change")
    assert repr(amounts).splitlines()[0] == "0 -> 1234.6: +1,235"


def test_of_many_classes_those_are_shown_that_change_most():
    data = rows("multiclass", 800)
    fix = tu.MCGrad(["p_cat", "p_dog", "p_owl"], FEATURES, stopping=None, trees=5, threads=1).fit(data, data["y"])
    found = fix.explain({name: column[0] for name, column in data.items()})
    headings, lines = found.table()
    assert headings == ("due to", "cat (points)", "dog (points)", "owl (points)")
    assert lines[-1][0] == "all together"
    changes = [float(text) / 100 for text in lines[-1][1:]]
    np.testing.assert_allclose(changes, np.subtract(found.after, found.before), atol=6e-5)
    assert len(found.to_frame()["output"]) == 3 * (len(lines) - 1)


def test_a_feature_without_influence_has_no_effect():
    data = rows("binary", 700)
    data["constant"] = np.ones(700)
    fix = tu.MCGrad("p", [*FEATURES, "constant"], stopping=None, trees=20, threads=1).fit(data, data["y"])
    found = fix.explain({name: column[0] for name, column in data.items()})
    assert "constant" not in {name for effect in found.effects for name in effect.features}
    unchanged = tu.Platt("p", stopping=tu.Holdout(0.5)).fit({"p": np.full(50, 0.5)}, np.arange(50) % 2)
    assert unchanged.explain({"p": 0.5}).effects == ()
    assert repr(unchanged.explain({"p": 0.5})) == "0.5 -> 0.5"


def test_effects_of_a_linear_correction_are_its_terms():
    data = rows("binary", 700)
    fix = tu.Logistic("p", ["age", "country"]).fit(data, data["y"])
    found = fix.explain({"p": 0.3, "age": 40.0, "country": "BR"})
    linear, (values, _) = fix.model_.map, fix.model_._encode({"p": 0.3, "age": 40.0, "country": "BR"})
    scale = (found.after - 0.3) / found.link_change
    by_column = {effect.features: effect.change for effect in found.effects}
    for index, feature in enumerate(fix.model_.schema.features):
        assert by_column[(feature.name,)] == pytest.approx(linear.effect(index, values[index]) * scale, rel=1e-9)


def test_lines_of_level_sets_are_explained_by_feature():
    random = np.random.default_rng(0)
    x, p = random.normal(size=3000), random.uniform(0.3, 0.6, 3000)
    data = {"x": x, "z": random.normal(size=3000), "p": p}
    y = (random.random(3000) < p + 0.1 * x.clip(-2, 2)).astype(int)
    fix = tu.LSBoost("p", ["x", "z"], learner="linear", min_rows=100, threads=1).fit(data, y)
    for value, sign in ((2.0, 1), (-2.0, -1)):
        effects = {effect.features: effect.change for effect in fix.explain({"x": value, "z": 0.0, "p": 0.45}).effects}
        assert sign * effects[("x",)] > 0.1
        assert abs(effects.get(("z",), 0.0)) < 0.02


def test_equal_corrections_of_classes_have_equal_effects():
    random = np.random.default_rng(3)
    P = random.dirichlet([2.0, 2.0, 2.0], 2_000)
    sharper = P**2 / (P**2).sum(axis=1, keepdims=True)
    y = np.array(["a", "b", "c"])[(random.random(2_000)[:, None] > sharper.cumsum(axis=1)).sum(axis=1)]
    data = {"a": P[:, 0], "b": P[:, 1], "c": P[:, 2], "g": random.choice(["u", "v"], 2_000)}
    roles = {"prediction": ["a", "b", "c"]}
    whole = tu.Temperature(**roles).fit(data, y)
    pooled = tu.Grouped(tu.Temperature(), by=["g"], min_rows=3_000, **roles).fit(data, y)
    row = {"a": 0.5, "b": 0.3, "c": 0.2, "g": "u"}
    effects = [
        {(effect.name, effect.output): effect.change for effect in fix.explain(row).effects} for fix in (whole, pooled)
    ]
    assert effects[0] == pytest.approx(effects[1], abs=1e-12)
    assert effects[0]["a=0.5", "a"] > 0 > effects[0]["c=0.2", "c"]  # the largest score is raised, the smallest lowered
