"""Laws that every calibrator obeys: what a frame, a batch, a seed, a weight or a file may and may not change.

A law is a function of a `Case`: a recipe and how exactly it keeps what only trees round. ``LAWS`` lists them all; a test
runs each for each case. A law that does not apply to a task (`for_tasks`) is left out of ``laws_of``.
"""

from __future__ import annotations

import copy
import os
import pickle
import tempfile
import warnings
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import FunctionTransformer

import trueup as tu
from frames import MAKERS
from trueup.errors import ArgumentError, NotFittedError, OneClassWarning, TrueupError, UnseenWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FEATURES = ["country", "age", "new", "day"]
CLASSES = ["cat", "dog", "owl"]


@dataclass(frozen=True)
class Case:
    """A calibrator under the laws.

    Attributes
    ----------
    make : callable
        Gives an unfitted calibrator for the columns of `rows`, with these parameters changed.
    task : {"binary", "regression", "multiclass"}
    order : float
        How far a prediction may move when the rows of the fit are shuffled; 0 for methods without trees.
    counts : float
        How far it may move when every weight of 2 is written as the row twice, as a share of what the fit moves (root
        mean squares); 0 for methods without trees.
    plain : mapping
        Parameters that hold no rows out. Which rows judge depends on their content, and how far a round must improve on
        them depends on their number: laws that change either are laws of the method without a judge.
    refused : mapping
        Parameter to values it must refuse.
    """

    make: Callable[..., Any]
    task: str = "binary"
    order: float = 0.0
    counts: float = 0.0
    plain: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def prediction(self) -> list[str]:
        return [f"p_{name}" for name in CLASSES] if self.task == "multiclass" else ["p"]


def rows(task="binary", n=700, seed=0):
    """Make rows with a text, a number, a flag and a date, some of them missing, and scores that are wrong in places."""
    random = np.random.default_rng([seed, 11])
    country = np.array(["BR", "DE", "US", None], object)[random.choice(4, n, p=[0.4, 0.3, 0.2, 0.1])]
    age = np.where(random.random(n) < 0.15, np.nan, np.round(random.uniform(18, 80, n), 2))
    new = random.random(n) < 0.3
    day = np.datetime64("2024-01-01") + random.integers(0, 400, n)
    drift = (
        1.6 * (country == "BR")
        - 1.4 * (np.isnan(age))
        + 0.9 * (new & (age > 40))
        - 0.8 * (day > np.datetime64("2024-10-01"))
    )
    columns = {"country": country, "age": age, "new": new, "day": day}
    F = random.normal(size=n)
    if task == "regression":
        return columns | {"p": 10 * F, "y": 10 * F + 8 * drift + 3 * random.normal(size=n)}
    if task == "binary":
        return columns | {"p": _expit(F), "y": (random.random(n) < _expit(F + drift)).astype(int)}
    scores = np.column_stack([F, random.normal(size=n), np.zeros(n)])
    truth = scores + np.outer(drift, [1.0, 0.0, -1.0])
    y = np.array(CLASSES, object)[np.argmax(truth + random.gumbel(size=truth.shape), axis=1)]
    P = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    return columns | {f"p_{name}": P[:, at] for at, name in enumerate(CLASSES)} | {"y": y}


def _expit(x):
    return 1 / (1 + np.exp(-x))


def take(data, at):
    return {name: column[at] for name, column in data.items()}


def fit(case, data, weight=None, **parameters):
    return case.make(**parameters).fit(data, data["y"], sample_weight=weight)


def scores(case, data):
    found = np.column_stack([data[name] for name in case.prediction])
    return found if case.task == "multiclass" else found[:, 0]


def same(a, b):
    """Say whether two arrays are the same, bit for bit."""
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def away(a, b):
    return float(np.abs(a - b).max())


# ------------------------------------------------------------------ what stays as it is


def law_the_fit_moves_scores(case):
    # Without this the other laws would say nothing.
    data = rows(case.task)
    moved = fit(case, data).predict(data) - scores(case, data)
    assert np.abs(moved).mean() > 0.05 * np.std(scores(case, data))


def law_refitting_changes_nothing(case):
    data = rows(case.task)
    fix = fit(case, data)
    first = fix.predict(data)
    assert same(fix.fit(data, data["y"]).predict(data), first)
    other = rows(case.task, 300, seed=1)
    assert same(fix.fit(other, other["y"]).fit(data, data["y"]).predict(data), first)
    assert same(fit(case, data).predict(data), first)


def law_a_fit_that_fails_leaves_the_old_one(case):
    data = rows(case.task, 400)
    fix = fit(case, data)
    first = fix.predict(data)
    broken = data | {case.prediction[0]: np.full(400, np.inf)}
    with pytest.raises(TrueupError):
        fix.fit(broken, broken["y"])
    assert same(fix.predict(data), first)


def law_inputs_are_not_written_to(case):
    data = rows(case.task)
    before = copy.deepcopy(data)
    weight = np.linspace(0.5, 1.5, len(data["y"]))
    for column in (*data.values(), weight):
        column.flags.writeable = False
    fix = fit(case, data, weight)
    fix.predict(data)
    for name, column in data.items():
        np.testing.assert_array_equal(column, before[name])
    frame = MAKERS["pandas"](data)
    kept = frame.copy(deep=True)
    fix.fit(frame, frame["y"])
    found = fix.predict(frame)
    found[:] = 0.5  # what is given belongs to the caller
    assert frame.equals(kept)


def law_a_loaded_model_predicts_as_the_saved_one(case):
    data = rows(case.task)
    fix = fit(case, data)
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        tu.save(fix, f"{folder}/one")
        model = tu.load(f"{folder}/one")
        tu.save(model, f"{folder}/two")
        assert Path(folder, "one").read_bytes() == Path(folder, "two").read_bytes()
    more = rows(case.task, 500, seed=5)
    for table in (data, more):
        assert same(model.predict(table), fix.predict(table))
    assert (model.schema, model.history, model.explanation) == (fix.model_.schema, fix.history_, fix.explain())


def law_a_prediction_that_is_a_feature_too_is_saved_as_well(case):
    data = rows(case.task, 300)
    fix = case.make(features=["country", case.prediction[0]]).fit(data, data["y"])
    with tempfile.TemporaryDirectory() as folder, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        tu.save(fix, f"{folder}/one")
        assert same(tu.load(f"{folder}/one").predict(data), fix.predict(data))


# ------------------------------------------------------------------ what a prediction depends on


def law_a_row_scores_the_same_alone_in_a_batch_and_in_any_order(case):
    data, more = rows(case.task), rows(case.task, 300, seed=2)
    fix = fit(case, data)
    whole = fix.predict(more)
    order = np.random.default_rng(0).permutation(300)
    assert same(fix.predict(take(more, order)), whole[order])
    for size in (1, 7, 100):
        parts = [take(more, slice(start, start + size)) for start in range(0, 300 if size > 1 else 40, size)]
        found = np.concatenate([fix.predict(part) for part in parts])
        assert same(found, whole[: len(found)])
    ones = np.array([fix.predict_one({name: more[name][i] for name in more}) for i in range(300)])
    assert same(ones.reshape(whole.shape), whole)


def law_the_number_of_threads_changes_nothing(case):
    data = rows(case.task)
    found = [fit(case, data, threads=threads) for threads in (1, 2, 5)]
    first = found[0].predict(data)
    for other in found[1:]:
        assert same(other.predict(data), first)
        assert other.history_.chosen == found[0].history_.chosen
    assert same(found[0].model_.predict(data, threads=1), found[0].model_.predict(data, threads=3))
    for threads in (0, -1, 1.5, True, "2"):
        with pytest.raises(ArgumentError, match="threads must be an integer"):
            found[0].model_.predict(data, threads=threads)


def law_several_threads_may_predict_at_once(case):
    data = rows(case.task)
    model = fit(case, data).model_
    expected = copy.deepcopy(model).predict(data)
    with ThreadPoolExecutor(4) as pool:
        for found in pool.map(lambda _: model.predict(data), range(8)):
            assert same(found, expected)


def law_the_order_of_the_rows_matters_only_through_rounding(case):
    data = rows(case.task)
    order = np.random.default_rng(3).permutation(len(data["y"]))
    a, b = fit(case, data), fit(case, take(data, order))
    assert away(a.predict(data), b.predict(data)) <= case.order


def law_every_library_gives_the_same(case):
    data = rows(case.task)
    expected = fit(case, data).predict(data)
    for make in MAKERS.values():
        columns = {name: [None if x != x else x for x in column.tolist()] for name, column in data.items()}
        frame = make(columns)
        fix = case.make().fit(frame, frame["y"])
        assert same(fix.predict(frame), expected)
        assert same(fix.predict(data), expected)
    fix = case.make().fit({name: column.tolist() for name, column in data.items()}, data["y"].tolist())
    assert same(fix.predict(data), expected)


def law_an_array_gives_what_its_columns_give(case):
    data = rows(case.task)
    names = [*case.prediction, "age"]
    matrix = np.column_stack([data[name] for name in names])
    places = list(range(len(names)))
    y = data["y"]
    place = places[:-1] if len(names) > 2 else 0
    by_place = case.make(prediction=place, **_features(case, [places[-1]]), **_classes(case)).fit(matrix, y)
    named = case.make(**_features(case, ["age"]), **_classes(case)).fit({name: data[name] for name in names}, y)
    assert same(by_place.predict(matrix), named.predict(data))


def _reads_features(case):
    return bool({"features", "by"} & set(case.make().get_params()))  # the same role by two names


def _features(case, names):
    """Name features, for a calibrator that reads any."""
    return {"features": names} if _reads_features(case) else {}


def _classes(case):
    return {"classes": CLASSES} if case.task == "multiclass" else {}


def law_the_outcome_may_lie_in_the_frame(case):
    data = rows(case.task)
    apart = case.make(**_features(case, None)).fit({k: v for k, v in data.items() if k != "y"}, data["y"])
    inside = case.make(**_features(case, None)).fit(data, "y")
    assert same(apart.predict(data), inside.predict(data))
    assert same(inside.predict({k: v for k, v in data.items() if k != "y"}), inside.predict(data))


# ------------------------------------------------------------------ what may be missing


def law_unseen_levels_score_as_missing(case):
    data = rows(case.task)
    fix = fit(case, data)
    unseen, missing = (data | {"country": np.array([level] * len(data["y"]), object)} for level in ("XX", None))
    with pytest.warns(UnseenWarning, match="no value of column 'country' is one that the model knows"):
        found = fix.predict(unseen)
    assert same(found, fix.predict(missing))
    row = {name: column[0] for name, column in data.items()}
    absent = fix.predict_one({name: value for name, value in row.items() if name != "country"})
    assert np.array_equal(absent, fix.predict_one(row | {"country": "XX"}))
    assert np.array_equal(absent, fix.predict_one(row | {"country": None}))


def law_whatever_is_missing_is_scored(case):
    data = rows(case.task, 400)
    fix = fit(case, data)
    nothing = {"country": [None] * 400, "age": [None] * 400, "new": [None] * 400, "day": [None] * 400}
    found = fix.predict(data | nothing)
    _in_range(case, found)
    alone = fix.predict_one({name: data[name][7] for name in case.prediction})
    assert np.array_equal(alone, found[7])


def law_missing_only_at_prediction_is_scored(case):
    data = rows(case.task, 500)
    full = {name: np.where(data[name] == None, "DE", data[name]) if name == "country" else data[name] for name in data}  # noqa: E711
    full["age"] = np.nan_to_num(data["age"], nan=50.0)
    fix = fit(case, full)
    _in_range(case, fix.predict(data))


def law_columns_that_say_nothing_do_no_harm(case):
    data = rows(case.task, 400)
    idle = {"same": np.full(400, 3.0), "void": np.full(400, np.nan), "one": ["a"] * 400, "none": [None] * 400}
    wide = data | idle
    fix = case.make(features=[*FEATURES, *idle]).fit(wide, wide["y"])
    found = fix.predict(wide)
    _in_range(case, found)
    other = wide | {"same": np.linspace(-9, 9, 400), "one": ["b"] * 400}
    with pytest.warns(UnseenWarning, match="no value of column 'one'"):
        _in_range(case, fix.predict(other))


def law_no_features_are_enough(case):
    data = rows(case.task)
    fix = case.make(features=[]).fit(data, data["y"])
    assert fix.model_.schema.features == ()
    _in_range(case, fix.predict(data))
    assert np.array_equal(fix.predict_one({name: data[name][0] for name in case.prediction}), fix.predict(data)[0])


# ------------------------------------------------------------------ what comes out


def _in_range(case, found):
    assert np.isfinite(found).all()
    if case.task != "regression":
        assert found.min() >= 0
        assert found.max() <= 1
    if case.task == "multiclass":
        np.testing.assert_allclose(found.sum(axis=1), 1.0, atol=1e-12)


def law_output_stays_in_range(case):
    data, more = rows(case.task), rows(case.task, 2000, seed=9)
    if case.task == "multiclass":
        ends = np.eye(3)[np.arange(2000) % 3]
        more |= {name: ends[:, at] for at, name in enumerate(case.prediction)}
    else:
        more["p"] = np.where(np.arange(2000) % 2, 1.0, 0.0) if case.task == "binary" else 1e9 * more["p"]
    fix = fit(case, data)
    _in_range(case, fix.predict(data))
    _in_range(case, fix.predict(more))


def law_scores_at_the_ends_are_fitted(case):
    data = rows(case.task)
    if case.task == "multiclass":
        ends = np.eye(3)[np.arange(len(data["y"])) % 3]
        for at, name in enumerate(case.prediction):
            data[name] = np.where(np.arange(len(data["y"])) % 2, ends[:, at], data[name])
    elif case.task == "binary":
        data["p"] = np.where(data["p"] < 0.3, 0.0, np.where(data["p"] > 0.8, 1.0, data["p"]))
    _in_range(case, fit(case, data).predict(data))


def law_no_rows_give_no_rows(case):
    data = rows(case.task, 300)
    fix = fit(case, data)
    shape = (0, 3) if case.task == "multiclass" else (0,)
    assert fix.predict(take(data, slice(0))).shape == shape
    for make in MAKERS.values():
        frame = make({name: column.tolist() for name, column in data.items()})
        empty = frame.head(0) if hasattr(frame, "head") else frame.slice(0, 0)
        assert fix.predict(empty).shape == shape


def law_few_rows_are_fitted(case):
    for n in (10, 11, 15, 25, 60):
        data = rows(case.task, n, seed=n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OneClassWarning)
            fix = fit(case, data)
        _in_range(case, fix.predict(data))
        assert np.isfinite(fix.history_.loss_after)


def law_one_kind_of_outcome_is_fitted(case):
    data = rows(case.task, 300)
    for y in {"binary": [0, 1], "regression": [0.0, -4.5], "multiclass": ["cat", "owl"]}[case.task]:
        data["y"] = np.full(300, y)
        if case.task == "regression":
            fix = fit(case, data)
        else:
            with pytest.warns(OneClassWarning):
                fix = fit(case, data, **_classes(case))
        _in_range(case, fix.predict(data))


# ------------------------------------------------------------------ weights


def law_a_weight_of_two_equals_the_row_twice(case):
    data = rows(case.task)
    # Trees cut their bins by the number of rows: only where all weights are alike are the bins the same.
    times = np.where((np.arange(len(data["y"])) % 3 > 0) & (case.counts == 0), 1, 2)
    twice = np.repeat(np.arange(len(data["y"])), times)
    weighted, doubled, once = (
        fit(case, columns, weight, **case.plain).predict(data)
        for columns, weight in ((data, times.astype(float)), (take(data, twice), None), (data, None))
    )
    moved = np.sqrt(np.mean((weighted - scores(case, data)) ** 2))
    assert np.sqrt(np.mean((weighted - doubled) ** 2)) <= case.counts * moved
    assert not same(weighted, once) or not case.counts


def law_a_weight_of_zero_takes_the_row_away(case):
    data = rows(case.task)
    weight = np.where(np.arange(len(data["y"])) % 3, 1.0, 0.0)
    kept = np.flatnonzero(weight)
    a, b = fit(case, data, weight), fit(case, take(data, kept), np.ones(len(kept)))
    assert same(a.predict(data), b.predict(data))
    assert a.history_ == b.history_


def law_weights_of_one_change_nothing(case):
    data = rows(case.task)
    assert away(fit(case, data).predict(data), fit(case, data, np.ones(len(data["y"]))).predict(data)) <= case.order


def law_the_unit_of_fractional_weights_does_not_matter(case):
    data = rows(case.task)
    weight = np.random.default_rng(2).uniform(0.3, 1.7, len(data["y"]))
    expected = fit(case, data, weight).predict(data)
    assert same(fit(case, data, weight * 2.0**30).predict(data), expected)  # no digit is lost
    # Trees hold weights in single precision: 1 in 2^24, through a few dozen trees.
    scale = float(np.abs(expected).max())
    assert away(fit(case, data, weight * 1e-7).predict(data), expected) <= 1e-4 * scale


# ------------------------------------------------------------------ scikit-learn, and other company


def told(fix):
    """Give what a calibrator was told; one that it holds by its type and its own parameters, several in a list by their types."""

    def plain(value):
        if isinstance(value, list):
            return [plain(one) for one in value]
        return type(value) if hasattr(value, "get_params") else value

    return {name: plain(value) for name, value in fix.get_params().items()}


def law_it_is_an_estimator(case):
    fix = case.make()
    parameters = told(fix)
    assert told(clone(fix)) == parameters
    assert told(type(fix)(**fix.get_params(deep=False))) == parameters
    assert fix.set_params(unlabelled="drop").get_params()["unlabelled"] == "drop"
    data = rows(case.task, 300)
    fitted = fit(case, data)
    assert told(fitted) == parameters  # fit stores nothing in the parameters
    assert not hasattr(clone(fitted), "model_")
    repr(fix)


def law_nothing_works_before_fit(case):
    fix, data = case.make(), rows(case.task, 20)
    for ask in (lambda: fix.predict(data), lambda: fix.predict_one({}), fix.explain):
        with pytest.raises(NotFittedError, match=r"not fitted yet\nhint: call fit"):
            ask()
    with pytest.raises(ArgumentError, match="fit needs the outcome"):
        fix.fit(data)


def law_it_can_be_pickled_and_copied_before_and_after_use(case):
    data = rows(case.task, 300)
    fix = fit(case, data)
    row = {name: column[0] for name, column in data.items()}
    for _ in range(2):
        for other in (pickle.loads(pickle.dumps(fix)), copy.deepcopy(fix), pickle.loads(pickle.dumps(fix.model_))):
            assert same(other.predict(data), fix.predict(data))
            assert np.array_equal(other.predict_one(row), fix.predict_one(row))
        fix.predict_one(row)
    assert told(pickle.loads(pickle.dumps(case.make()))) == told(case.make())


def law_a_grid_search_and_a_pipeline_run(case):
    import pandas as pd

    data = rows(case.task, 400)
    frame, y = pd.DataFrame(data).drop(columns="y"), data["y"]

    def score(fix, X, y):
        found = fix.predict(X)
        if case.task == "multiclass":
            hit = found[np.arange(len(found)), [CLASSES.index(one) for one in y]]
            return float(np.mean(np.log(np.maximum(hit, 1e-6))))
        return -float(np.mean((found - y) ** 2))

    search = GridSearchCV(case.make(), {"unlabelled": ["error", "drop"]}, scoring=score, cv=2, error_score="raise").fit(
        frame, y
    )
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    pipe = Pipeline([("same", FunctionTransformer()), ("fix", case.make())]).fit(frame, y)
    assert same(pipe.predict(frame), fit(case, data).predict(data))


def law_bad_parameters_are_refused(case):
    data = rows(case.task, 60)
    for name, values in case.refused.items():
        for value in values:
            with pytest.raises(ArgumentError, match=name.split("_")[0]):
                fit(case, data, **{name: value})


# ------------------------------------------------------------------ laws of some tasks


def law_soft_labels_are_probabilities_of_labels(case):
    # A label of 0.25 is a quarter of a row of 1 and three quarters of a row of 0, for any loss linear in the outcome.
    data = rows(case.task)
    soft = np.clip(data["p"] + np.where(data["country"] == "BR", 0.3, 0.0), 0, 1)
    if not _reads_features(case):  # what a curve of the score can put right, even by one factor
        soft = data["p"] ** 2 / (data["p"] ** 2 + (1 - data["p"]) ** 2)
    fix = case.make().fit(data, soft)
    found = fix.predict(data)
    _in_range(case, found)
    assert np.mean((found - soft) ** 2) < 0.5 * np.mean((data["p"] - soft) ** 2)


def law_the_unit_of_a_real_outcome_does_not_matter(case):
    data = rows(case.task)
    expected = fit(case, data, **case.plain).predict(data)
    for scale in (2.0**-20, 2.0**40, 1e-6, 1e9):
        other = data | {"p": scale * data["p"], "y": scale * data["y"]}
        found = fit(case, other, **case.plain).predict(other) / scale
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    moved = data | {"p": 1e4 + data["p"], "y": 1e4 + data["y"]}
    # The factor of a round shrinks scores towards 0, wherever that is: an origin is not quite nothing. Judged by rows that
    # were not trained on it is near 1, and the origin matters little.
    expected = fit(case, data).predict(data)
    found = fit(case, moved).predict(moved) - 1e4
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.2 * np.std(expected - data["p"])


law_soft_labels_are_probabilities_of_labels.for_tasks = ("binary",)
law_the_unit_of_a_real_outcome_does_not_matter.for_tasks = ("regression",)

# Laws of a parameter, for the calibrators that have it.
for law, name in (
    (law_the_number_of_threads_changes_nothing, "threads"), (law_unseen_levels_score_as_missing, "features"),
    (law_columns_that_say_nothing_do_no_harm, "features"), (law_no_features_are_enough, "features"),
    (law_a_prediction_that_is_a_feature_too_is_saved_as_well, "features"),
):  # fmt: skip
    law.parameter = name

LAWS = [law for name, law in list(globals().items()) if name.startswith("law_")]


def laws_of(case):
    """List the laws that apply to a case."""
    known = set(case.make().get_params())
    known |= {"features"} if _reads_features(case) else set()
    return [
        law
        for law in LAWS
        if case.task in getattr(law, "for_tasks", (case.task,)) and getattr(law, "parameter", "task") in known
    ]
