"""Workers that each hold some of the rows fit the cascades that one process fits on all rows."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from checks import FEATURES, rows
from grower_workers import FOLDS, CascadeFit, fit_cascades, run_fits
from partitioned import run_threads
from remote import run_local_workers
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.stopping import are_row_counts, choose_rounds, paired_gain, scale_weights, task_loss, weighted_mean
from trueup.data.frame import read

PREDICTIONS = {"binary": "p", "regression": "p", "multiclass": ["p_cat", "p_dog", "p_owl"]}
CLOSE = {"rtol": 1e-9, "atol": 1e-15}


def table_of(task, n=900, seed=0, weight=None):
    return read(rows(task, n, seed), outcome="y", prediction=PREDICTIONS[task], features=FEATURES, weight=weight,
                task="regression" if task == "regression" else "auto")  # fmt: skip


def many_levels(n):
    """Return rows with a category of more levels than LightGBM splits one against all others."""
    random = np.random.default_rng(5)
    city = random.integers(0, 130, n)
    p = 1 / (1 + np.exp(-random.normal(size=n)))
    y = random.random(n) < np.clip(p + 0.3 * (city % 4 == 0) - 0.1, 0, 1)
    return read({"city": [f"c{one}" for one in city], "p": p}, outcome=y.astype(int), prediction="p", features=["city"])


def make_fits():
    random = np.random.default_rng(0)
    fold = random.integers(0, FOLDS, 900)
    found = {}
    binary = table_of("binary")
    found["log"] = CascadeFit(binary, fold, np.sort(random.integers(0, 3, 900)), refit=True)
    weighted = table_of("binary", weight=random.exponential(size=900))
    # The second worker has no rows; the first has none of the first fold, the third has nothing else.
    found["weights, none, one fold"] = CascadeFit(weighted, fold, np.where(fold == 0, 2, 0))
    found["counts"] = CascadeFit(table_of("binary", weight=random.integers(1, 4, 900).astype(float)), fold, fold)
    found["squared"] = CascadeFit(table_of("regression"), fold, np.where(random.random(900) < 0.2, 0, 2))
    found["classes"] = CascadeFit(table_of("multiclass"), fold, np.where(binary.columns["country"] == 0, 1, 0))
    found["nothing held out"] = CascadeFit(binary, fold, np.arange(900) % 3, held_out=False)
    found["many levels"] = CascadeFit(many_levels(4000), random.integers(0, FOLDS, 4000), np.arange(4000) % 3)
    found["given"] = replace(found["log"], given=fit_cascades(found["log"])["rounds"][:1], refit=False)
    return found


@pytest.fixture(scope="module")
def results():
    """Run all fits with three workers and in one process."""
    cases = make_fits()
    few = next(iter(cases.values())).table.take(np.arange(2))
    distributed = run_local_workers([[few], [few], [few]], partial(run_fits, fits=list(cases.values())))
    return {name: (fit_cascades(fit), result, fit) for (name, fit), result in zip(cases.items(), distributed, strict=True)}


def as_array(evaluations):
    """Return the losses, gains, standard errors and thresholds of evaluations as a matrix, NaN without a threshold."""
    return np.array(evaluations, np.float64)


NAMES = ["log", "weights, none, one fold", "counts", "squared", "classes", "nothing held out", "given"]


@pytest.mark.parametrize("name", NAMES)
def test_three_workers_fit_the_rounds_of_one_process(results, name):
    single, distributed, fit = results[name]
    assert distributed["rows"] == np.bincount(fit.rank, minlength=3).tolist()
    assert distributed["difference"] == 0.0, "all workers have the same trees"
    assert distributed["chosen"] == single["chosen"]
    assert [one.trees for one in distributed["rounds"]] == [one.trees for one in single["rounds"]]
    assert len(single["rounds"]) == 2
    np.testing.assert_allclose(as_array(distributed["evaluations"]), as_array(single["evaluations"]), rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose([x[0] for x in distributed["evaluations"]], [x[0] for x in single["evaluations"]], **CLOSE)
    np.testing.assert_allclose(
        [one.thetas for one in distributed["rounds"]], [one.thetas for one in single["rounds"]], **CLOSE
    )


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("of", ["rounds", "refit"])
def test_models_agree_on_other_rows(results, name, of):
    single, distributed, fit = results[name]
    if not single[of]:
        assert of == "refit"
        assert not distributed[of]
        return
    schema = fit.table.schema
    loss, other = task_loss(schema.task), table_of(schema.task, 600, seed=3)
    found = []
    for rounds in (single[of], distributed[of]):
        cascade = Cascade(loss.link, schema.levels, len(schema.prediction), rounds)
        scores = cascade.apply([other.columns[name] for name in FEATURES], other.prediction)
        found.append(loss.per_row(other.outcome, loss.apply_link(scores)))
    assert np.abs(found[0] - loss.per_row(other.outcome, loss.apply_link(other.prediction))).max() > 0.1
    np.testing.assert_allclose(*found, rtol=1e-7, atol=1e-12)
    np.testing.assert_allclose(found[0].mean(), found[1].mean(), **CLOSE)


def test_categories_of_many_levels_agree_approximately(results):
    single, distributed, _ = results["many levels"]
    assert distributed["difference"] == 0.0, "all workers have the same trees"
    before, first = as_array(single["evaluations"])[:2, 0]
    assert first < 0.99 * before
    np.testing.assert_allclose(distributed["evaluations"][0].loss, before, **CLOSE)
    np.testing.assert_allclose(distributed["evaluations"][1][0], first, rtol=0.01)


def test_missing_values_not_seen_in_training_follow_the_majority_of_all_workers(results):
    # Of a squared loss without weights a row's hessian is 1: the way of most weight is the way of most rows.
    single, distributed, _ = results["squared"]
    seen = 0
    for one, other in zip(single["rounds"], distributed["rounds"], strict=True):
        for a, b in zip(one.forests, other.forests, strict=True):
            assert a.missing_left.tolist() == b.missing_left.tolist()
            seen += int(np.isin(a.feature, [FEATURES.index("day"), len(FEATURES)]).sum())  # these have no missing values
    assert seen > 10


def split_arrays(arrays, ranks, size):
    return [[None if array is None else array[ranks == rank] for array in arrays] for rank in range(size)]


@pytest.mark.parametrize("weighted", [False, True])
def test_gains_and_chosen_rounds_of_workers_are_those_of_all_rows(weighted):
    random = np.random.default_rng(1)
    base = random.exponential(size=500)
    losses = [base, base - 0.1 + 0.2 * random.normal(size=500), base - 0.11 + 0.2 * random.normal(size=500)]
    weight = random.exponential(size=500) if weighted else None
    parts = split_arrays([*losses, weight], random.choice([0, 2], 500), 3)  # the second has none
    found = run_threads(
        3,
        lambda communicator: choose_rounds(
            iter(parts[communicator.rank][:3]), parts[communicator.rank][3], patience=2, communicator=communicator
        ),
    )
    chosen, evaluations = choose_rounds(iter(losses), weight, patience=2)
    assert found[0] == found[1] == found[2], "all workers receive the same"
    assert (found[0][0], chosen) == (1, 1)
    np.testing.assert_allclose(as_array(found[0][1]), as_array(evaluations), rtol=1e-12)
    gains = run_threads(
        3,
        lambda communicator: paired_gain(
            parts[communicator.rank][0] - parts[communicator.rank][1], parts[communicator.rank][3], communicator
        ),
    )
    np.testing.assert_allclose(gains[1], paired_gain(losses[0] - losses[1], weight), rtol=1e-12)


def test_gains_of_very_large_losses_are_finite():
    own = [np.array([1e200, 2e200]), np.array([1.0])]
    found = run_threads(2, lambda communicator: paired_gain(own[communicator.rank], None, communicator))
    np.testing.assert_allclose(found[0], paired_gain(np.concatenate(own), None), rtol=1e-12)


@pytest.mark.parametrize("task", sorted(PREDICTIONS))
def test_the_factor_of_workers_is_that_of_all_rows(task):
    table, loss = table_of(task, 300), task_loss(task)
    F = 0.7 * loss.apply_link(table.prediction)
    rank, weight = np.arange(300) % 2 * 2, np.random.default_rng(2).exponential(size=300)
    parts = split_arrays([table.outcome, F, weight], rank, 3)
    found = run_threads(3, lambda communicator: loss.theta(*parts[communicator.rank], communicator))
    assert found[0] == found[1] == found[2]
    assert 0.5 < found[0] < 2
    np.testing.assert_allclose(found[0], loss.theta(table.outcome, F, weight), rtol=1e-11)


@pytest.mark.parametrize(
    "weight",
    [
        np.arange(1.0, 41), np.arange(1.0, 41) / 7,
        np.where(np.arange(40) < 20, 1.0, 0.5),  # integers on the first worker
        np.where(np.arange(40) < 39, 1.0, 1e4),  # not counts by their mean, although the first worker has only ones
    ],
)  # fmt: skip
def test_workers_scale_weights_as_one_process_does(weight):
    rank = np.repeat([0, 1], 20)
    more = np.array([0.5, 2.0, 8.0])
    own = [np.concatenate([weight[rank == 0], more[:1]]), np.concatenate([weight[rank == 1], more[1:]]), np.empty(0)]
    found = run_threads(
        3, lambda communicator: scale_weights(own[communicator.rank], [20, 20, 0][communicator.rank], communicator)
    )
    expected = scale_weights(np.concatenate([weight, more]), 40)
    np.testing.assert_allclose(np.concatenate([found[0][:20], found[1][:20]]), expected[:40], rtol=1e-14)
    np.testing.assert_allclose(np.concatenate([found[0][20:], found[1][20:]]), expected[40:], rtol=1e-14)
    counts = run_threads(
        3, lambda communicator: are_row_counts(own[communicator.rank][: [20, 20, 0][communicator.rank]], communicator)
    )
    assert set(counts) == {are_row_counts(weight)}
    assert scale_weights(None, 0) is None


def test_the_weighted_mean_of_one_process_is_that_of_numpy_to_the_last_bit():
    random = np.random.default_rng(3)
    for n in (1, 7, 1000, 12345):
        x, w = random.normal(size=n), random.exponential(size=n)
        assert weighted_mean(x, w) == np.average(x, weights=w)
        assert weighted_mean(x, None) == np.average(x)


def test_given_rounds_are_replayed_to_the_last_bit():
    for name, fit in make_fits().items():
        whole = fit_cascades(replace(fit, given=(), rounds=3, refit=False))
        for many in (1, 3):
            again = fit_cascades(replace(fit, given=whole["rounds"][:many], rounds=3, refit=False))
            assert again["evaluations"] == whole["evaluations"], name
            for one, other in zip(again["rounds"], whole["rounds"], strict=True):
                assert (one.thetas, one.trees) == (other.thetas, other.trees)
                for a, b in zip(one.forests, other.forests, strict=True):
                    assert all(np.array_equal(x, y) for x, y in zip(a.arrays().values(), b.arrays().values(), strict=True))
