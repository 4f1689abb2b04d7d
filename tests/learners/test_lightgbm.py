"""What LightGBM grew, as our own arrays, against LightGBM's own predictions."""

from __future__ import annotations

import threading
from dataclasses import replace

import lightgbm as lgb
import numpy as np
import pytest

import twins
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.kernels.trees import IDENTITY, Stage, build, join_forests, score
from trueup.learners import lightgbm as engine
from trueup.learners.lightgbm import (
    BinnedDataset,
    FoldDataset,
    GrowthParameters,
    LevelColumn,
    TreeGrower,
    check_other_parameters,
    silence,
)

ROWS = 1_500


def _data(*, missing=True, rows=ROWS, seed=0, outputs=1):
    """Make columns (two numbers, one with many zeros, a text of 6 levels, one of 80), scores and an outcome that needs all."""
    random = np.random.default_rng(seed)
    x, z = random.normal(size=rows), np.maximum(random.normal(size=rows), 0)
    few, many = random.integers(-1, 6, rows).astype(np.int32), (80 * random.random(rows) ** 2).astype(np.int32) - 1
    F = random.normal(size=(rows, outputs))
    drift = 0.6 * (x > 0.3) * (few == 2) + 0.5 * (few == -1) - 0.7 * (many % 3 == 0) + 0.4 * (z == 0) + 0.2 * (F[:, 0] > 1)
    if missing:
        x[random.random(rows) < 0.15] = np.nan
        drift = drift + 0.8 * np.isnan(x)
    y = (random.random(rows) < 1 / (1 + np.exp(-F[:, 0] - drift))).astype(float)
    return [x, z, few, many], F, y, drift


CATEGORICAL = [False, False, True, True]
LEVELS = [-1, -1, 6, 80]


def _grown(columns, F, label, growth, *, weight=None, start=None, train=None, valid=None, trees=12):
    binned = BinnedDataset(columns, CATEGORICAL[: len(columns)], growth)
    grower = TreeGrower(FoldDataset(binned, binned.with_prediction(F, label, weight, start, growth), train, valid), growth)
    return grower, grower.grow(trees)


def _sums(forest, columns, F):
    """Sum the trees with the scorer, from raw scores of zero added to F."""
    program = build([Stage(0, 1.0, forest)], LEVELS[: len(columns)], F.shape[1], 1, IDENTITY)
    X, out = np.array(columns, np.float64).reshape(len(columns), len(F)), np.empty_like(F)
    score(*program, X, np.ascontiguousarray(F), out)
    return out - F


def _own(grower, columns, F, trees=-1):
    """Ask LightGBM for the sum of its trees, codes shifted as it saw them."""
    shifted = [column + 1.0 if kind else column for column, kind in zip(columns, CATEGORICAL, strict=False)]
    X = np.column_stack([F, *shifted])
    found = grower._booster.predict(X, raw_score=True, num_iteration=trees, num_threads=1, verbosity=-1)
    return found.reshape(len(F), -1)


def _same(one, other):
    return all(np.array_equal(a, b) for a, b in zip(one.arrays().values(), other.arrays().values(), strict=True))


GROWTHS = {
    "depth two": GrowthParameters("log"),
    "five leaves": GrowthParameters("log", depth=None, leaves=5, feature_fraction=1.0),
    "deep": GrowthParameters("log", depth=6, leaves=31, min_hessian=1.0, l2=0.0),
    "monotone": GrowthParameters("log", monotone=(0, 0, 0, 0, 1)),
    "coarse": GrowthParameters("log", bins=7),
}


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("name", GROWTHS)
def test_the_forest_equals_the_model_of_lightgbm(name, missing):
    columns, F, y, _ = _data(missing=missing)
    grower, _ = _grown(columns, F, y, GROWTHS[name], start=F)
    forest = grower.forest(12)
    assert len(forest) == 12
    assert (forest.words_at >= 0).any()
    np.testing.assert_allclose(_sums(forest, columns, F), _own(grower, columns, F), atol=1e-12, rtol=0)
    np.testing.assert_allclose(twins.sum_trees(forest, np.array(columns), F, LEVELS), _own(grower, columns, F), atol=1e-12)


@pytest.mark.parametrize("name", ["weights", "soft labels", "regression", "classes"])
def test_the_forest_equals_the_model_of_lightgbm_for_every_task(name):
    outputs = 3 if name == "classes" else 1
    columns, F, y, drift = _data(outputs=outputs)
    random = np.random.default_rng(1)
    growth, weight, start = GrowthParameters("log"), None, F
    if name == "weights":
        weight = random.exponential(size=ROWS)
    elif name == "soft labels":
        y = 1 / (1 + np.exp(-F[:, 0] - drift))
    elif name == "regression":
        growth, y, start = GrowthParameters("squared"), drift + 0.1 * random.normal(size=ROWS), None
    else:
        growth = GrowthParameters("classes", outputs=3)
        y = np.argmax(F + random.gumbel(size=F.shape) + np.outer(drift, [1, 0, -1]), axis=1).astype(float)
    grower, _ = _grown(columns, F, y, growth, weight=weight, start=start)
    for trees in (1, 5, 12):
        forest = grower.forest(trees)
        assert len(forest) == trees * outputs
        assert forest.output.tolist() == list(range(outputs)) * trees
        np.testing.assert_allclose(_sums(forest, columns, F), _own(grower, columns, F, trees), atol=1e-12, rtol=0)


def test_soft_labels_are_not_rounded():
    F = np.zeros((ROWS, 1)) + np.linspace(-1, 1, ROWS)[:, None]
    grower, _ = _grown([], F, np.full(ROWS, 0.2), GrowthParameters("log", l2=0.0, feature_fraction=1.0), start=F, trees=60)
    p = 1 / (1 + np.exp(-F - _sums(grower.forest(60), [], F)))
    np.testing.assert_allclose(p, 0.2, atol=0.02)


def test_values_missing_only_at_prediction_follow_the_majority():
    # One split at 0.5 between 400 rows of 0 and 1,100 of 1; LightGBM itself would take missing for 0.
    x = np.repeat([0.0, 1.0], [400, 1_100])
    growth = GrowthParameters("log", depth=1, leaves=2, feature_fraction=1.0)
    F = np.zeros((ROWS, 1))
    grower, _ = _grown([x], F, x, growth, start=F, trees=1)
    forest = grower.forest(1)
    zero, one, lost = _sums(forest, [np.array([0.0, 1.0, np.nan])], np.zeros((3, 1)))[:, 0]
    assert zero < 0 < one == lost
    flipped, _ = _grown([-x], F, x, growth, start=F, trees=1)
    assert _sums(flipped.forest(1), [np.array([np.nan])], np.zeros((1, 1)))[0, 0] == one


def test_unseen_codes_score_as_missing():
    columns, F, _, _ = _data()
    grower, _ = _grown(columns, F, (columns[2] == -1).astype(float), GROWTHS["five leaves"], start=F, trees=30)
    row = [np.zeros(9), np.zeros(9), np.array([-1, 6, 7, 40, 2**30, 0, 1, 2, 3]), np.zeros(9)]
    found = _sums(grower.forest(30), row, np.zeros((9, 1)))[:, 0]
    assert len(set(found[:5])) == 1
    assert found[0] > 1 > 0 > found[5:].max()


@pytest.mark.parametrize("loss", ["log", "classes"])
def test_the_number_of_threads_does_not_change_the_forest(loss):
    outputs = 1 if loss == "log" else 3
    columns, F, y, _ = _data(rows=6_000, outputs=outputs)
    train = np.flatnonzero(np.arange(6_000) % 5)
    found = [
        _grown(columns, F, y, GrowthParameters(loss, outputs=outputs, threads=threads), start=F, train=train)[0].forest(12)
        for threads in (1, 2)
    ]
    assert _same(*found)


def test_the_seed_changes_the_forest():
    columns, F, y, _ = _data()
    a, b, c = (_grown(columns, F, y, GrowthParameters("log", seed=seed), start=F)[0].forest(12) for seed in (1, 1, 2))
    assert _same(a, b)
    assert not _same(a, c)


@pytest.mark.parametrize("missing", [False, True])
def test_features_binned_once_give_the_same_trees_as_binning_again(missing):
    columns, F, y, _ = _data(missing=missing)
    growth = GROWTHS["five leaves"]
    grower, _ = _grown(columns, F, y, growth, start=F)
    shifted = [column + 1.0 if kind else column for column, kind in zip(columns, CATEGORICAL, strict=True)]
    anew = lgb.Dataset(
        np.column_stack([F, *shifted]),
        y,
        init_score=F[:, 0],
        categorical_feature=[3, 4],
        params=growth.binning_parameters(),
    )
    other = lgb.Booster(growth.training_parameters([-1, 0, 1, 2, 3]), anew.construct())
    for _ in range(12):
        other.update()
    trees, expected = (booster.model_to_string().split("\nTree=")[1:] for booster in (grower._booster, other))
    assert [tree.split("end of trees")[0] for tree in trees] == [tree.split("end of trees")[0] for tree in expected]


def _text(binned, F, y, growth, **sample):
    grower = TreeGrower(FoldDataset(binned, binned.with_prediction(F, y, None, F, growth, **sample), None, None), growth)
    grower.grow(12)
    return grower._booster.model_to_string()


@pytest.mark.parametrize("where", ["memory", "files"])
def test_rows_read_in_batches_are_binned_as_a_matrix(where, monkeypatch, tmp_path):
    # More rows than bins are found from, and many more than are read at a time.
    monkeypatch.setattr(engine, "SAMPLE_ROWS", 2_000)
    monkeypatch.setattr(engine._RowSequence, "batch_size", 700)
    columns, F, y, _ = _data(rows=7_100)
    columns.append(np.where(np.arange(7_100) % 40, 0.0, columns[1] + 0.5))  # hardly ever anything but 0
    kinds, growth = [*CATEGORICAL, False], replace(GROWTHS["five leaves"], bins=31)
    matrix = np.column_stack([column + 1.0 if kind else column for column, kind in zip(columns, kinds, strict=True)])
    whole = BinnedDataset([], [], growth)
    whole.columns, whole._dataset = (
        5,
        lgb.Dataset(matrix, categorical_feature=[2, 3], params=growth.binning_parameters()).construct(),
    )
    if where == "files":
        for at, column in enumerate(columns):
            np.save(tmp_path / f"{at}.npy", column)
        columns = [np.load(tmp_path / f"{at}.npy", mmap_mode="r") for at in range(5)]
    assert _text(BinnedDataset(columns, kinds, growth), F, y, growth) == _text(whole, F, y, growth)


def test_a_reference_determines_the_bins():
    columns, F, y, _ = _data(rows=4_000)
    growth, half = replace(GROWTHS["five leaves"], bins=15), slice(0, 2_000)
    some = [column[half] for column in columns]
    whole = BinnedDataset(columns, CATEGORICAL, growth)
    grower = TreeGrower(FoldDataset(whole, whole.with_prediction(F, y, None, F, growth), np.arange(2_000), None), growth)
    grower.grow(12)
    expected = grower._booster.model_to_string()
    own = BinnedDataset(some, CATEGORICAL, growth, reference=whole)
    assert _text(own, F[half], y[half], growth, sample=F) == expected
    assert _text(own, F[half], y[half], growth) != expected, "the bins of the prediction are its own"
    assert _text(BinnedDataset(some, CATEGORICAL, growth), F[half], y[half], growth, sample=F) != expected


def test_without_training_rows_no_trees_are_grown():
    columns, F, y, _ = _data(rows=100)
    growth, none = GrowthParameters("log"), np.arange(0)
    whole = BinnedDataset(columns, CATEGORICAL, growth)
    empty = BinnedDataset([column[:0] for column in columns], CATEGORICAL, growth, reference=whole)
    data = empty.with_prediction(F[:0], y[:0], None, F[:0], growth, sample=F)
    alone = TreeGrower(FoldDataset(empty, data, None, none), growth)
    assert alone.grow(3) == []
    unlearned = TreeGrower(FoldDataset(whole, whole.with_prediction(F, y, None, F, growth), none, np.arange(100)), growth)
    losses = unlearned.grow(3)
    np.testing.assert_allclose(losses, np.mean(np.logaddexp(0, F[:, 0]) - y * F[:, 0]), rtol=1e-6)
    for grower in (alone, unlearned):
        assert np.abs(_sums(grower.forest(3), columns, F)).max() == 0


def test_missing_values_follow_the_larger_weight_in_distributed_trees():
    # 400 rows of 0 that weigh 10 each, 1,100 of 1: the counts say right, the hessians left.
    x, F = np.repeat([0.0, 1.0], [400, 1_100]), np.zeros((ROWS, 1))
    growth = GrowthParameters("log", depth=1, leaves=2, feature_fraction=1.0)
    grower, _ = _grown([x], F, x, growth, weight=np.where(x == 0, 10.0, 1.0), start=F, trees=1)
    text = grower._booster.model_to_string()
    assert [
        engine._parse_model(text, 1, [(1, None), (0, None)], by_weight=weight).missing_left.tolist()
        for weight in (False, True)
    ] == [
        [0],
        [1],
    ]


def test_parameters_of_distributed_training_need_several_machines():
    alone, together = (GrowthParameters("log", machines=many).training_parameters([-1, 0, 1]) for many in (1, 3))
    assert together == alone | {"tree_learner": "data", "num_machines": 3, "pre_partition": True}


@pytest.mark.parametrize("loss", ["log", "squared", "classes"])
def test_losses_are_those_of_held_out_rows(loss):
    outputs = 3 if loss == "classes" else 1
    columns, F, y, drift = _data(outputs=outputs)
    random = np.random.default_rng(2)
    weight = random.exponential(size=ROWS)
    start = None if loss == "squared" else F
    label = {"log": y, "squared": drift, "classes": (y + (drift > 0.5)).astype(float)}[loss]
    order = random.permutation(ROWS)  # rows may come in any order
    train, valid = order[:1_000], order[1_000:]
    growth = GrowthParameters(loss, outputs=outputs)
    grower, losses = _grown(columns, F, label, growth, weight=weight, start=start, train=train, valid=valid, trees=4)
    assert len(losses) == 4
    for trees in (1, 4):
        G = _sums(grower.forest(trees), columns, F) + (0 if start is None else F)
        if loss == "log":
            each = np.logaddexp(0, G[:, 0]) - label * G[:, 0]
        elif loss == "squared":
            each = (label - G[:, 0]) ** 2
        else:
            each = np.log(np.exp(G).sum(axis=1)) - G[np.arange(ROWS), label.astype(int)]
        np.testing.assert_allclose(losses[trees - 1], np.average(each[valid], weights=weight[valid]), rtol=1e-6)


def test_held_out_rows_do_not_affect_the_trees():
    columns, F, y, _ = _data()
    train = np.arange(0, ROWS, 2)
    other = np.where(np.arange(ROWS) % 2, 1 - y, y)
    a, b = (_grown(columns, F, label, GrowthParameters("log"), start=F, train=train)[0].forest(12) for label in (y, other))
    assert _same(a, b)


def test_a_monotone_forest_does_not_decrease_in_the_prediction():
    columns, F, _, _ = _data()
    falling = (np.random.default_rng(3).random(ROWS) < 1 / (1 + np.exp(2 * F[:, 0]))).astype(float)
    grid = np.linspace(-4, 4, 201)[:, None]

    def steps(*monotone):
        growth = GrowthParameters("log", depth=None, leaves=8, monotone=monotone, feature_fraction=1.0)
        grower, _ = _grown(columns, F, falling, growth, start=np.zeros_like(F), trees=20)
        rows = [[np.full(201, column[i]) for column in columns] for i in range(0, ROWS, 60)]
        return np.array([np.diff(_sums(grower.forest(20), row, grid)[:, 0]) for row in rows])

    assert steps().min() < -0.1
    assert steps(0, 0, 0, 0, 1).min() >= -1e-12


def test_a_monotone_forest_does_not_increase_in_a_feature():
    columns, F, y, _ = _data(missing=False)
    grid = [np.linspace(-4, 4, 201), *(np.full(201, column[0]) for column in columns[1:])]

    def largest_step(*monotone):
        growth = GrowthParameters("log", depth=None, leaves=8, monotone=monotone, feature_fraction=1.0)
        grower, _ = _grown(columns, F, y, growth, start=F, trees=20)
        return np.diff(_sums(grower.forest(20), grid, np.zeros((201, 1)))[:, 0]).max()

    assert largest_step() > 0.05
    assert largest_step(-1, 0, 0, 0, 0) <= 1e-12


def test_splits_of_a_level_column_are_sets_of_levels():
    columns, F, _, _ = _data(missing=False)
    codes = columns[3]
    rare = (codes >= 0) & (np.bincount(codes + 1)[codes + 1] < 12)
    y = np.where(rare, 0.9, 0.5)
    counts = np.bincount(codes + 1, minlength=81).astype(float)
    growth = GrowthParameters("log", depth=1, leaves=2, feature_fraction=1.0)
    binned = BinnedDataset(columns, CATEGORICAL, growth, levels=[LevelColumn(3, codes, counts)])
    start = np.zeros_like(F)
    grower = TreeGrower(FoldDataset(binned, binned.with_prediction(F, y, None, start, growth), None, None), growth)
    grower.grow(1)
    forest = grower.forest(1)
    assert forest.feature.tolist() == [3]
    added = _sums(forest, columns, F)[:, 0]
    assert (added[rare] > 0.1).all()
    assert (added[~rare] < 0.01).all()
    # A level that was not seen in training has no rows: it is as rare as can be.
    unseen = [*columns[:3], np.full(ROWS, -1.0 if not (codes == -1).any() else 80.0)]
    assert (_sums(forest, unseen, F) > 0.1).all() == ((codes == -1).sum() < 12)


def test_level_columns_after_the_scores_belong_to_the_fold():
    columns, F, _, _ = _data(missing=False)
    codes, effects = columns[2], np.array([0.0, 1.0, -1.0, 1.0, -1.0, 1.0, -1.0])
    y = (effects[codes + 1] > 0) * 0.8 + 0.1
    growth = GrowthParameters("log", depth=1, leaves=2, feature_fraction=1.0)
    binned = BinnedDataset(columns, CATEGORICAL, growth)
    column = LevelColumn(2, codes, effects)
    data = binned.with_prediction(np.column_stack([F, column[:]]), y, None, np.zeros_like(F), growth)
    grower = TreeGrower(FoldDataset(binned, data, None, None, [column]), growth)
    grower.grow(1)
    forest = grower.forest(1)
    assert forest.feature.tolist() == [2]
    added = _sums(forest, columns, F)[:, 0]
    assert np.unique(np.sign(added[effects[codes + 1] > 0])).tolist() == [1.0]
    assert np.unique(np.sign(added[effects[codes + 1] <= 0])).tolist() == [-1.0]


def test_forests_of_consecutive_trees_add_up():
    columns, F, y, _ = _data()
    grower, _ = _grown(columns, F, y, GrowthParameters("log"), start=F)
    parts = [grower.forest(5), grower.forest(12, 5)]
    assert list(map(len, parts)) == [5, 7]
    assert _same(join_forests(parts), grower.forest(12))
    assert len(grower.forest(5, 5)) == 0


def test_leaves_have_about_the_least_number_of_rows():
    columns, F, y, _ = _data()

    def smallest(rows):
        growth = GrowthParameters("log", depth=None, leaves=31, min_hessian=0.0, min_rows=rows)
        grower, _ = _grown(columns, F, y, growth, start=F)
        counts = [line for line in grower._booster.model_to_string().splitlines() if line.startswith("leaf_count=")]
        return min(int(count) for line in counts for count in line.removeprefix("leaf_count=").split())

    assert smallest(1) < 20
    assert smallest(200) > 150  # LightGBM estimates the number of rows of a split from their hessians


def test_splits_have_the_least_gain_and_trees_a_share_of_the_rows():
    columns, F, y, _ = _data()
    plain = _grown(columns, F, y, GrowthParameters("log"), start=F)[0].forest(12)
    assert len(_grown(columns, F, y, GrowthParameters("log", min_gain=1e6), start=F)[0].forest(12).feature) == 0
    assert not _same(plain, _grown(columns, F, y, GrowthParameters("log", subsample=0.5), start=F)[0].forest(12))


def test_further_parameters_reach_lightgbm_by_their_own_name():
    other = check_other_parameters({"path_smooth": 3, "cat_l2": 5.0, "reg_alpha": 0.5})
    assert other == (("cat_l2", 5.0), ("lambda_l1", 0.5), ("path_smooth", 3))
    parameters = GrowthParameters("log", other=other).training_parameters([-1, 0])
    assert (parameters["lambda_l1"], parameters["path_smooth"]) == (0.5, 3)
    assert check_other_parameters(None) == ()


@pytest.mark.parametrize(
    ("given", "message", "hint"),
    [
        ({"path_smoth": 1}, "no parameter 'path_smoth'", "path_smooth"),
        ({"num_leaves": 9}, "must not set 'num_leaves'", "leaves="),
        ({"n_jobs": 9}, "must not set 'n_jobs'", "threads="),
        ({"objective": "mae"}, "must not set 'objective'", "task="),
        ({"device": "gpu"}, "must not set 'device'", "leave it out"),
        ({"path_smooth": object()}, "must be a number", "lightgbm="),
        ([("path_smooth", 1)], "must be a mapping", "lightgbm="),
    ],
)
def test_further_parameters_are_validated(given, message, hint):
    with pytest.raises(ArgumentError, match=message) as error:
        check_other_parameters(given)
    assert hint in str(error.value)
    assert error.value.parameter == "lightgbm"


def test_a_tree_without_a_split_is_counted_but_not_kept():
    # Half the trees may read only the constant column: they find nothing to split.
    F = np.zeros((ROWS, 1))
    x = np.tile([0.0, 1.0, 2.0], ROWS // 3)
    growth = GrowthParameters("log", feature_fraction=0.5, learning_rate=0.1, leaves=3, depth=None)
    noisy = (np.random.default_rng(0).random(ROWS) < 0.2 + 0.2 * x).astype(float)
    valid = np.arange(0, ROWS, 2)
    binned = BinnedDataset([x, np.full(ROWS, 3.0)], [False, False], growth)
    growth = replace(growth, min_hessian=60.0)
    grower = TreeGrower(
        FoldDataset(binned, binned.with_prediction(F, noisy, None, F, growth), np.arange(1, ROWS, 2), valid), growth
    )
    losses = grower.grow(400)
    assert len(grower.forest(400)) < 400
    for trees in range(0, 401, 8):
        G = _sums(grower.forest(trees), [x, x], F)[valid, 0]
        expected = losses[trees - 1] if trees else np.log(2)
        np.testing.assert_allclose(np.mean(np.logaddexp(0, G) - noisy[valid] * G), expected, atol=1e-6)


@pytest.mark.parametrize("with_features", [False, True])
def test_without_splits_the_forest_adds_nothing(with_features):
    columns, F = [np.zeros(ROWS)] if with_features else [], np.ones((ROWS, 1))
    y = np.tile([0.0, 1.0], ROWS // 2)
    grower, _ = _grown(columns, F, y, GrowthParameters("log"), start=np.zeros_like(F), trees=3)
    assert np.abs(_sums(grower.forest(3), columns, F)).max() == 0
    assert len(grower.forest(0)) == 0


def test_lightgbm_is_silent_in_every_thread(capfd):
    F, y = np.ones((ROWS, 1)), np.tile([0.0, 1.0], ROWS // 2)
    growth = GrowthParameters("log")

    def grow(seed):
        # No feature can be split: LightGBM would warn of that.
        grower, _ = _grown([np.zeros(ROWS)], F, y, replace(growth, seed=seed), start=np.zeros_like(F), trees=3)
        return grower

    growers = Workers(2, begin=silence).map(grow, range(4))
    Workers(2, begin=silence).map(lambda grower: grower.grow(3), growers)  # not in the thread that made them
    alone = threading.Thread(target=lambda: (silence(), growers[0].grow(2)))
    alone.start()
    alone.join()
    grow(0).forest(3)
    assert capfd.readouterr() == ("", "")
