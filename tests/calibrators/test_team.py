"""Growing together: workers that hold parts of the rows find what one finds that holds them all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from checks import FEATURES, rows
from partitioned import Threads
from teamwork import FOLDS, Fit, all_of, grow
from trueup.calibrators.losses import task_loss
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.splits import are_row_counts, scale_weights
from trueup.calibrators.stopping import choose_rounds, paired_gain, weighted_mean
from trueup.cluster.worker import run_here
from trueup.data.frame import read

PREDICTIONS = {"binary": "p", "regression": "p", "multiclass": ["p_cat", "p_dog", "p_owl"]}
CLOSE = {"rtol": 1e-9, "atol": 1e-15}


def table_of(task, n=900, seed=0, weight=None):
    return read(rows(task, n, seed), outcome="y", prediction=PREDICTIONS[task], features=FEATURES, weight=weight,
                task="regression" if task == "regression" else "auto")  # fmt: skip


def many_levels(n):
    """Make rows with a category of more levels than are set apart one by one."""
    random = np.random.default_rng(5)
    city = random.integers(0, 130, n)
    p = 1 / (1 + np.exp(-random.normal(size=n)))
    y = random.random(n) < np.clip(p + 0.3 * (city % 4 == 0) - 0.1, 0, 1)
    return read({"city": [f"c{one}" for one in city], "p": p}, outcome=y.astype(int), prediction="p", features=["city"])


def fits():
    random = np.random.default_rng(0)
    fold = random.integers(0, FOLDS, 900)
    found = {}
    binary = table_of("binary")
    found["log"] = Fit(binary, fold, np.sort(random.integers(0, 3, 900)), refit=True)
    weighted = table_of("binary", weight=random.exponential(size=900))
    # The second member has no rows at all; the first has none of the first fold, the third has nothing else.
    found["weights, none, one fold"] = Fit(weighted, fold, np.where(fold == 0, 2, 0))
    found["counts"] = Fit(table_of("binary", weight=random.integers(1, 4, 900).astype(float)), fold, fold)
    found["squared"] = Fit(table_of("regression"), fold, np.where(random.random(900) < 0.2, 0, 2))
    found["classes"] = Fit(table_of("multiclass"), fold, np.where(binary.columns["country"] == 0, 1, 0))
    found["nothing held out"] = Fit(binary, fold, np.arange(900) % 3, held=False)
    found["many levels"] = Fit(many_levels(4000), random.integers(0, FOLDS, 4000), np.arange(4000) % 3)
    found["given"] = replace(found["log"], given=grow(found["log"])["rounds"][:1], refit=False)
    return found


@pytest.fixture(scope="module")
def apart():
    """Do all the fits with three processes and with one."""
    told = fits()
    some = next(iter(told.values())).table.take(np.arange(2))
    together = run_here([[some], [some], [some]], partial(all_of, fits=list(told.values())))
    return {name: (grow(fit), found, fit) for (name, fit), found in zip(told.items(), together, strict=True)}


NAMES = ["log", "weights, none, one fold", "counts", "squared", "classes", "nothing held out", "given"]


@pytest.mark.parametrize("name", NAMES)
def test_three_members_find_what_one_finds(apart, name):
    alone, together, fit = apart[name]
    assert together["rows"] == np.bincount(fit.member, minlength=3).tolist()
    assert together["apart"] == 0.0, "all members hold the same trees"
    assert together["chosen"] == alone["chosen"]
    assert [one.trees for one in together["rounds"]] == [one.trees for one in alone["rounds"]]
    assert len(alone["rounds"]) == 2
    np.testing.assert_allclose(together["judged"], alone["judged"], rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose([x[0] for x in together["judged"]], [x[0] for x in alone["judged"]], **CLOSE)
    np.testing.assert_allclose([one.theta for one in together["rounds"]], [one.theta for one in alone["rounds"]], **CLOSE)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("of", ["rounds", "refit"])
def test_the_models_are_alike_on_other_rows(apart, name, of):
    alone, together, fit = apart[name]
    if not alone[of]:
        assert of == "refit"
        assert not together[of]
        return
    schema = fit.table.schema
    loss, other = task_loss(schema.task), table_of(schema.task, 600, seed=3)
    found = []
    for rounds in (alone[of], together[of]):
        cascade = Cascade(loss.link, schema.levels, len(schema.prediction), rounds)
        scores = cascade.apply([other.columns[name] for name in FEATURES], other.prediction)
        found.append(loss.per_row(other.outcome, loss.apply_link(scores)))
    assert np.abs(found[0] - loss.per_row(other.outcome, loss.apply_link(other.prediction))).max() > 0.1
    np.testing.assert_allclose(*found, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(found[0].mean(), found[1].mean(), **CLOSE)


def test_categories_of_many_levels_are_cut_a_little_differently(apart):
    alone, together, _ = apart["many levels"]
    assert together["apart"] == 0.0, "all members hold the same trees"
    before, first = np.array(alone["judged"])[:2, 0]
    assert first < 0.99 * before
    np.testing.assert_allclose(together["judged"][0], alone["judged"][0], **CLOSE)
    np.testing.assert_allclose(together["judged"][1][0], first, rtol=0.01)


def test_a_missing_value_unknown_in_training_goes_the_way_of_most_rows_of_all_members(apart):
    # Of a squared loss without weights a row's hessian is 1: the way of most weight is the way of most rows.
    alone, together, _ = apart["squared"]
    seen = 0
    for one, other in zip(alone["rounds"], together["rounds"], strict=True):
        for a, b in zip(one.forests, other.forests, strict=True):
            assert a.missing_left.tolist() == b.missing_left.tolist()
            seen += int(np.isin(a.feature, [FEATURES.index("day"), len(FEATURES)]).sum())  # these have no missing values
    assert seen > 10


def parts(arrays, members, size):
    return [[None if one is None else one[members == at] for one in arrays] for at in range(size)]


@pytest.mark.parametrize("weighted", [False, True])
def test_gains_and_choices_of_a_team_are_those_of_all_rows(weighted):
    random = np.random.default_rng(1)
    base = random.exponential(size=500)
    tried = [base, base - 0.1 + 0.2 * random.normal(size=500), base - 0.11 + 0.2 * random.normal(size=500)]
    weight = random.exponential(size=500) if weighted else None
    cut = parts([*tried, weight], random.choice([0, 2], 500), 3)  # the second has none
    found = Threads(3).run(
        lambda communicator: choose_rounds(
            iter(cut[communicator.rank][:3]), cut[communicator.rank][3], patience=2, communicator=communicator
        )
    )
    chosen, judged = choose_rounds(iter(tried), weight, patience=2)
    assert found[0] == found[1] == found[2], "all hear the same"
    assert (found[0][0], chosen) == (1, 1)
    np.testing.assert_allclose(found[0][1], judged, rtol=1e-12)
    gains = Threads(3).run(
        lambda communicator: paired_gain(
            cut[communicator.rank][0] - cut[communicator.rank][1], cut[communicator.rank][3], communicator
        )
    )
    np.testing.assert_allclose(gains[1], paired_gain(tried[0] - tried[1], weight), rtol=1e-12)


def test_the_largest_losses_of_a_team_have_an_error():
    own = [np.array([1e200, 2e200]), np.array([1.0])]
    found = Threads(2).run(lambda communicator: paired_gain(own[communicator.rank], None, communicator))
    np.testing.assert_allclose(found[0], paired_gain(np.concatenate(own), None), rtol=1e-12)


@pytest.mark.parametrize("task", sorted(PREDICTIONS))
def test_the_factor_of_a_team_is_that_of_all_rows(task):
    table, loss = table_of(task, 300), task_loss(task)
    F = 0.7 * loss.apply_link(table.prediction)
    member, weight = np.arange(300) % 2 * 2, np.random.default_rng(2).exponential(size=300)
    cut = parts([table.outcome, F, weight], member, 3)
    found = Threads(3).run(lambda communicator: loss.theta(*cut[communicator.rank], communicator))
    assert found[0] == found[1] == found[2]
    assert 0.5 < found[0] < 2
    np.testing.assert_allclose(found[0], loss.theta(table.outcome, F, weight), rtol=1e-11)


@pytest.mark.parametrize(
    "weight",
    [
        np.arange(1.0, 41), np.arange(1.0, 41) / 7,
        np.where(np.arange(40) < 20, 1.0, 0.5),  # those of the first member are whole
        np.where(np.arange(40) < 39, 1.0, 1e4),  # so many on average: no counts, although the first has nothing but ones
    ],
)  # fmt: skip
def test_a_team_weighs_its_rows_as_one_does(weight):
    member = np.repeat([0, 1], 20)
    more = np.array([0.5, 2.0, 8.0])
    own = [np.concatenate([weight[member == 0], more[:1]]), np.concatenate([weight[member == 1], more[1:]]), np.empty(0)]
    found = Threads(3).run(
        lambda communicator: scale_weights(own[communicator.rank], [20, 20, 0][communicator.rank], communicator)
    )
    expected = scale_weights(np.concatenate([weight, more]), 40)
    np.testing.assert_allclose(np.concatenate([found[0][:20], found[1][:20]]), expected[:40], rtol=1e-14)
    np.testing.assert_allclose(np.concatenate([found[0][20:], found[1][20:]]), expected[40:], rtol=1e-14)
    counts = Threads(3).run(
        lambda communicator: are_row_counts(own[communicator.rank][: [20, 20, 0][communicator.rank]], communicator)
    )
    assert set(counts) == {are_row_counts(weight)}
    assert scale_weights(None, 0) is None


def test_a_mean_of_one_is_that_of_numpy_to_the_last_bit():
    random = np.random.default_rng(3)
    for n in (1, 7, 1000, 12345):
        x, w = random.normal(size=n), random.exponential(size=n)
        assert weighted_mean(x, w) == np.average(x, weights=w)
        assert weighted_mean(x, None) == np.average(x)


def test_rounds_that_are_given_are_replayed_to_the_last_bit():
    for name, fit in fits().items():
        whole = grow(replace(fit, given=(), rounds=3, refit=False))
        for many in (1, 3):
            again = grow(replace(fit, given=whole["rounds"][:many], rounds=3, refit=False))
            assert again["judged"] == whole["judged"], name
            for one, other in zip(again["rounds"], whole["rounds"], strict=True):
                assert (one.theta, one.trees) == (other.theta, other.trees)
                for a, b in zip(one.forests, other.forests, strict=True):
                    assert all(np.array_equal(x, y) for x, y in zip(a.arrays().values(), b.arrays().values(), strict=True))
