"""Laws that every calibrator obeys: what a frame, a batch, a seed, a weight or a file may and may not change.

A law is a function of a `Case`: a calibrator and its numerical tolerances. ``LAWS`` lists them all; a test runs each law for
each case. A law that does not apply to a task (`for_tasks`) or to a calibrator without a `parameter` is left out of
``laws_of``. Laws that only predict share one fitted calibrator per case (`fitted`).
"""

from __future__ import annotations

import copy
import functools
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
from trueup.errors import (
    ArgumentError,
    ClusterWarning,
    ColumnError,
    NotFittedError,
    OneClassWarning,
    TrueupError,
    UnseenWarning,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

FEATURES = ["country", "age", "new", "day"]
CLASSES = ["cat", "dog", "owl"]


@dataclass(frozen=True, eq=False)
class Case:
    """A calibrator under the laws.

    Attributes
    ----------
    make : callable
        Returns an unfitted calibrator for the columns of `rows`, with these parameters changed.
    task : {"binary", "regression", "multiclass"}
    order : float
        How much a prediction may change when the training rows are shuffled; 0 for methods without trees.
    counts : float
        How much it may change when every weight of 2 is replaced by two rows, as a share of the correction (root mean
        squares); 0 for methods without trees.
    plain : mapping
        Parameters that hold out no rows. The held-out rows depend on the content of the rows, and the gain a round needs
        depends on their number: laws that change either are laws of the method without held-out rows. Laws about what a
        calibrator reads use these too, since such fits are quicker.
    invalid : mapping
        Parameter to invalid values.
    """

    make: Callable[..., Any]
    task: str = "binary"
    order: float = 0.0
    counts: float = 0.0
    plain: Mapping[str, Any] = field(default_factory=dict)
    invalid: Mapping[str, list[Any]] = field(default_factory=dict)

    @property
    def prediction(self) -> list[str]:
        return [f"p_{name}" for name in CLASSES] if self.task == "multiclass" else ["p"]


def rows(task="binary", n=700, seed=0):
    """Return rows with a text, a number, a flag and a date, some of them missing, and scores miscalibrated in places."""
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
    logits = np.column_stack([F, random.normal(size=n), np.zeros(n)])
    truth = logits + np.outer(drift, [1.0, 0.0, -1.0])
    y = np.array(CLASSES, object)[np.argmax(truth + random.gumbel(size=truth.shape), axis=1)]
    P = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    return columns | {f"p_{name}": P[:, index] for index, name in enumerate(CLASSES)} | {"y": y}


def _expit(x):
    return 1 / (1 + np.exp(-x))


def take(data, index):
    return {name: column[index] for name, column in data.items()}


def fit(case, data, weight=None, **parameters):
    return case.make(**parameters).fit(data, data["y"], sample_weight=weight)


@functools.cache
def fitted(case):
    """Return the calibrator of a case, fitted on ``rows(case.task)``; it must not be fitted again."""
    return fit(case, rows(case.task))


def scores(case, data):
    columns = np.column_stack([data[name] for name in case.prediction])
    return columns if case.task == "multiclass" else columns[:, 0]


def same(a, b):
    """Return whether two arrays are equal bit for bit."""
    return a.shape == b.shape and a.tobytes() == b.tobytes()


def distance(a, b):
    return float(np.abs(a - b).max())


# ------------------------------------------------------------------ fits and files


def law_the_fit_changes_scores(case):
    # Without this the other laws would state nothing.
    data = rows(case.task)
    change = fitted(case).predict(data) - scores(case, data)
    assert np.abs(change).mean() > 0.05 * np.std(scores(case, data))


def law_a_refit_equals_a_first_fit(case):
    data, other = rows(case.task), rows(case.task, 300, seed=1)
    fix = fit(case, other)
    fix.fit(data, data["y"])
    assert same(fix.predict(data), fitted(case).predict(data))


def law_a_failed_fit_keeps_the_old_model(case):
    data = rows(case.task, 400)
    fix = fit(case, data, **case.plain)
    first = fix.predict(data)
    broken = data | {case.prediction[0]: np.full(400, np.inf)}
    with pytest.raises(TrueupError):
        fix.fit(broken, broken["y"])
    assert same(fix.predict(data), first)


def law_inputs_are_not_modified(case):
    data = rows(case.task, 400)
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
    fix = case.make(**case.plain).fit(frame, frame["y"])
    predictions = fix.predict(frame)
    predictions[:] = 0.5  # the result belongs to the caller
    assert frame.equals(kept)


def law_a_loaded_model_predicts_as_the_saved_one(case):
    fix = fitted(case)
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        tu.save(fix, f"{directory}/one")
        model = tu.load(f"{directory}/one")
        tu.save(model, f"{directory}/two")
        assert Path(directory, "one").read_bytes() == Path(directory, "two").read_bytes()
    for data in (rows(case.task), rows(case.task, 500, seed=5)):
        assert same(model.predict(data), fix.predict(data))
    assert (model.schema, model.history, model.explanation) == (fix.model_.schema, fix.history_, fix.explain())


def law_a_prediction_that_is_also_a_feature_is_saved(case):
    data = rows(case.task, 300)
    fix = case.make(**case.plain, features=["country", case.prediction[0]]).fit(data, data["y"])
    with tempfile.TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda _: None)
        tu.save(fix, f"{directory}/one")
        assert same(tu.load(f"{directory}/one").predict(data), fix.predict(data))


# ------------------------------------------------------------------ what a prediction depends on


def law_a_row_scores_the_same_alone_in_a_batch_and_in_any_order(case):
    more, fix = rows(case.task, 300, seed=2), fitted(case)
    expected = fix.predict(more)
    order = np.random.default_rng(0).permutation(300)
    assert same(fix.predict(take(more, order)), expected[order])
    for size in (1, 7, 100):
        batches = [take(more, slice(start, start + size)) for start in range(0, 300 if size > 1 else 40, size)]
        predictions = np.concatenate([fix.predict(batch) for batch in batches])
        assert same(predictions, expected[: len(predictions)])
    single = np.array([fix.predict_one({name: more[name][i] for name in more}) for i in range(100)])
    assert same(single.reshape(expected[:100].shape), expected[:100])


def law_staged_predictions_end_with_the_prediction(case):
    fix, data = fitted(case), rows(case.task, 100, seed=3)
    stages = list(fix.staged_predict(data))
    assert len(stages) == fix.model_.map.steps + 1
    base = np.stack([data[name] for name in case.prediction], axis=-1).reshape(stages[0].shape)
    if fix.get_params().get("spacing") != "equal":  # which rounds scores to a grid first
        np.testing.assert_allclose(stages[0], base, rtol=1e-12)
    assert same(stages[-1], fix.predict(data))
    assert all(same(own, other) for own, other in zip(fix.model_.staged_predict(data), stages, strict=True))


def law_columns_are_named(case):
    fix = fitted(case)
    assert len(fix.feature_names_in_) == fix.n_features_in_
    assert fix.feature_names_in_.tolist()[-len(case.prediction) :] == case.prediction
    if hasattr(fix, "feature_importances_"):
        assert fix.feature_importances_.shape == (fix.n_features_in_,)
        assert fix.feature_importances_.sum() == pytest.approx(1.0 if fix.model_.map.steps else 0.0)


def law_the_effects_on_a_score_add_up_to_its_change(case):
    fix, data = fitted(case), rows(case.task, 700, seed=3)
    known = {*fix.model_.schema.prediction, *(feature.name for feature in fix.model_.schema.features)}
    for i in (0, 1, 5, 11):
        row = {name: column[i] for name, column in data.items()}
        found, after = fix.explain(row), np.ravel(fix.predict_one(row))
        before = [row[name] for name in case.prediction]
        unit = max(1.0, *np.abs(after), *np.abs(before))
        for effects in (found.effects, found.largest()):
            changes = dict.fromkeys(CLASSES if case.task == "multiclass" else [""], 0.0)
            for effect in effects:
                changes[effect.output] += effect.change
                assert {*effect.features} <= known
            np.testing.assert_allclose(list(changes.values()), after - before, atol=1e-13 * unit, rtol=0)
        assert len({effect.name for effect in found.largest()}) <= 6
        frame, plain = found.to_frame(), found.to_dict()
        assert [effect["change"] for effect in plain["effects"]] == frame["change"].tolist()
        assert len(found.to_frame()["feature"]) == len(found.largest())
        detailed = fix.explain(row, details=True)
        assert len(detailed.to_frame()["condition"]) == len(detailed.to_dict()["contributions"]) == len(found.contributions)


def law_the_number_of_threads_does_not_matter(case):
    data, first = rows(case.task), fitted(case)
    for threads in {None, 1, 3} - {case.make().get_params()["threads"]}:
        other = fit(case, data, threads=threads)
        assert same(other.predict(data), first.predict(data))
        assert other.history_.chosen == first.history_.chosen
        assert same(first.model_.predict(data, threads=threads), first.predict(data))
    for threads in (0, -1, 1.5, True, "2"):
        with pytest.raises(ArgumentError, match="threads must be an integer"):
            first.model_.predict(data, threads=threads)


def law_several_threads_may_predict_at_once(case):
    data, model = rows(case.task), copy.deepcopy(fitted(case).model_)
    expected = fitted(case).predict(data)
    with ThreadPoolExecutor(4) as pool:
        for predictions in pool.map(lambda _: model.predict(data), range(8)):
            assert same(predictions, expected)


def law_the_order_of_the_rows_matters_only_through_rounding(case):
    data = rows(case.task)
    order = np.random.default_rng(3).permutation(len(data["y"]))
    shuffled = fit(case, take(data, order))
    assert distance(fitted(case).predict(data), shuffled.predict(data)) <= case.order


def law_every_frame_library_gives_the_same(case):
    data = rows(case.task, 300)
    expected = fit(case, data, **case.plain).predict(data)
    for make in MAKERS.values():
        frame = make({name: [None if x != x else x for x in column.tolist()] for name, column in data.items()})
        fix = case.make(**case.plain).fit(frame, frame["y"])
        assert same(fix.predict(frame), expected)
        assert same(fix.predict(data), expected)
    fix = case.make(**case.plain).fit({name: column.tolist() for name, column in data.items()}, data["y"].tolist())
    assert same(fix.predict(data), expected)


def law_an_array_gives_what_its_columns_give(case):
    data = rows(case.task, 400)
    names = [*case.prediction, "age"]
    matrix = np.column_stack([data[name] for name in names])
    positions = list(range(len(names)))
    y = data["y"]
    position = positions[:-1] if len(names) > 2 else 0
    plain = case.plain | _classes(case)
    by_position = case.make(prediction=position, **plain, **_features(case, [positions[-1]])).fit(matrix, y)
    named = case.make(**plain, **_features(case, ["age"])).fit({name: data[name] for name in names}, y)
    assert same(by_position.predict(matrix), named.predict(data))


def _reads_features(case):
    return bool({"features", "by"} & set(case.make().get_params()))  # the same role by two names


def _features(case, names):
    """Return the parameter that names features, for a calibrator that reads any."""
    return {"features": names} if _reads_features(case) else {}


def _classes(case):
    return {"classes": CLASSES} if case.task == "multiclass" else {}


def law_the_outcome_may_be_a_column_of_the_frame(case):
    data = rows(case.task, 400)
    without = {name: column for name, column in data.items() if name != "y"}
    separate = case.make(**case.plain, **_features(case, None)).fit(without, data["y"])
    inside = case.make(**case.plain, **_features(case, None)).fit(data, "y")
    assert same(separate.predict(data), inside.predict(data))
    assert same(inside.predict(without), inside.predict(data))


# ------------------------------------------------------------------ missing values


def law_unseen_levels_score_as_missing(case):
    data, fix = rows(case.task), fitted(case)
    unseen, missing = (data | {"country": np.array([level] * len(data["y"]), object)} for level in ("XX", None))
    with pytest.warns(UnseenWarning, match="no value of column 'country' is known to the model"):
        predictions = fix.predict(unseen)
    assert same(predictions, fix.predict(missing))
    row = _inputs_of_one(fix, data)
    absent = fix.predict_one({name: value for name, value in row.items() if name != "country"})
    assert np.array_equal(absent, fix.predict_one(row | {"country": "XX"}))
    assert np.array_equal(absent, fix.predict_one(row | {"country": None}))


def _inputs_of_one(fix, data):
    schema = fix.model_.schema
    return {name: data[name][0] for name in (*schema.prediction, *(feature.name for feature in schema.features))}


def law_a_key_that_is_no_column_is_an_error_if_a_feature_is_absent(case):
    data, fix = rows(case.task), fitted(case)
    row = _inputs_of_one(fix, data)
    assert np.array_equal(fix.predict_one(row | {"contry": "BR"}), fix.predict_one(row))  # as a frame with more columns
    misspelled = {"contry" if name == "country" else name: value for name, value in row.items()}
    rule = r"the row has a key 'contry', which is not a column of the model, and no country\nhint: did you mean 'country'\?"
    for call in (fix.predict_one, fix.model_.predict_one, fix.explain):
        with pytest.raises(ColumnError, match=rule):
            call(misspelled)
    other = {name: value for name, value in row.items() if name != "country"} | {"zip": 1}
    with pytest.raises(ColumnError, match=r"a key 'zip', .*and no country\nhint: leave such keys out"):
        fix.predict_one(other)


def law_rows_without_any_feature_are_scored(case):
    data, fix = rows(case.task, 400), fitted(case)
    nothing = {"country": [None] * 400, "age": [None] * 400, "new": [None] * 400, "day": [None] * 400}
    predictions = fix.predict(data | nothing)
    _check_range(case, predictions)
    alone = fix.predict_one({name: data[name][7] for name in case.prediction})
    assert np.array_equal(alone, predictions[7])


def law_values_missing_only_at_prediction_are_scored(case):
    data = rows(case.task, 500)
    full = {name: np.where(data[name] == None, "DE", data[name]) if name == "country" else data[name] for name in data}  # noqa: E711
    full["age"] = np.nan_to_num(data["age"], nan=50.0)
    fix = fit(case, full, **case.plain)
    _check_range(case, fix.predict(data))


def law_uninformative_columns_do_no_harm(case):
    data = rows(case.task, 700)
    constant = {"same": np.full(700, 3.0), "void": np.full(700, np.nan), "one": ["a"] * 700, "none": [None] * 700}
    wide = data | constant
    fix = case.make(features=[*FEATURES, *constant]).fit(wide, wide["y"])
    _check_range(case, fix.predict(wide))
    other = wide | {"same": np.linspace(-9, 9, 700), "one": ["b"] * 700}
    with pytest.warns(UnseenWarning, match="no value of column 'one'"):
        _check_range(case, fix.predict(other))


def law_no_features_are_enough(case):
    data = rows(case.task, 400)
    fix = case.make(features=[]).fit(data, data["y"])
    assert fix.model_.schema.features == ()
    _check_range(case, fix.predict(data))
    assert np.array_equal(fix.predict_one({name: data[name][0] for name in case.prediction}), fix.predict(data)[0])


# ------------------------------------------------------------------ columns that must not be used


def law_excluded_columns_change_nothing(case):
    data = rows(case.task, 400) | {
        "group": np.array(["a", "b"], object)[np.arange(400) % 2],
        "odd": [[row] for row in range(400)],
    }
    names = {"features": [*FEATURES[:2]]} if _reads_features(case) else {}
    fix = case.make(**case.plain, exclude=["group", "new", "odd"], **names).fit(data, data["y"])
    assert not {"group", "new", "odd"} & {feature.name for feature in fix.model_.schema.features}
    flipped = data | {"group": data["group"][::-1], "new": ~data["new"]}
    if "features" in case.make().get_params():  # without named features: every other column but these
        every = {name: column for name, column in data.items() if name != "y"}
        default = case.make(**case.plain, exclude=["group", "new", "odd"], features=None)
        before = default.fit(every, data["y"]).predict(data)
        assert not {"group", "new", "odd"} & {feature.name for feature in default.model_.schema.features}
        assert same(default.predict(flipped), before)
        assert same(default.fit({name: flipped[name] for name in every}, data["y"]).predict(data), before)
    without = {name: column for name, column in data.items() if name not in ("group", "new", "odd")}
    for other in (flipped, without):  # at prediction
        assert same(fix.predict(other), fix.predict(data))
    plain = case.make(**case.plain, **names)
    assert same(plain.fit(without, without["y"]).predict(data), fix.predict(data))  # and in training
    described = fix.explain().excluded
    assert {level.segment.split(" & ")[-1] for level in described} == {"group=a", "group=b", "new=false", "new=true"}
    assert sum(level.share for level in described) == pytest.approx(2 * len(CLASSES) if case.task == "multiclass" else 2)
    for wrong in (["contry"], [case.prediction[0]], *([["country"]] if names else [])):
        with pytest.raises(ColumnError, match=r"exclude"):
            case.make(**case.plain, exclude=wrong, **names).fit(data, data["y"])


# ------------------------------------------------------------------ the range of predictions


def _check_range(case, predictions):
    assert np.isfinite(predictions).all()
    if case.task != "regression":
        assert predictions.min() >= 0
        assert predictions.max() <= 1
    if case.task == "multiclass":
        np.testing.assert_allclose(predictions.sum(axis=1), 1.0, atol=1e-12)


def law_predictions_stay_in_range(case):
    more, fix = rows(case.task, 2000, seed=9), fitted(case)
    if case.task == "multiclass":
        ends = np.eye(3)[np.arange(2000) % 3]
        more |= {name: ends[:, index] for index, name in enumerate(case.prediction)}
    else:
        more["p"] = np.where(np.arange(2000) % 2, 1.0, 0.0) if case.task == "binary" else 1e9 * more["p"]
    _check_range(case, fix.predict(rows(case.task)))
    _check_range(case, fix.predict(more))


def law_scores_of_0_and_1_are_fitted(case):
    data = rows(case.task, 500)
    if case.task == "multiclass":
        ends = np.eye(3)[np.arange(len(data["y"])) % 3]
        for index, name in enumerate(case.prediction):
            data[name] = np.where(np.arange(len(data["y"])) % 2, ends[:, index], data[name])
    elif case.task == "binary":
        data["p"] = np.where(data["p"] < 0.3, 0.0, np.where(data["p"] > 0.8, 1.0, data["p"]))
    _check_range(case, fit(case, data).predict(data))


def law_no_rows_give_no_predictions(case):
    data, fix = rows(case.task, 300), fitted(case)
    shape = (0, 3) if case.task == "multiclass" else (0,)
    assert fix.predict(take(data, slice(0))).shape == shape
    for make in MAKERS.values():
        frame = make({name: column.tolist() for name, column in data.items()})
        empty = frame.head(0) if hasattr(frame, "head") else frame.slice(0, 0)
        assert fix.predict(empty).shape == shape


def law_few_rows_are_fitted(case):
    for n in (10, 11, 25, 60):
        data = rows(case.task, n, seed=n)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", OneClassWarning)
            fix = fit(case, data)
        _check_range(case, fix.predict(data))
        assert np.isfinite(fix.history_.loss_after)


def law_a_constant_outcome_is_fitted(case):
    data = rows(case.task, 300)
    for y in {"binary": [0, 1], "regression": [0.0, -4.5], "multiclass": ["cat", "owl"]}[case.task]:
        data["y"] = np.full(300, y)
        if case.task == "regression":
            fix = fit(case, data)
        else:
            with pytest.warns(OneClassWarning):
                fix = fit(case, data, **_classes(case))
        _check_range(case, fix.predict(data))


# ------------------------------------------------------------------ weights


def law_a_weight_of_two_equals_two_rows(case):
    data = rows(case.task)
    # Trees find their bins from rows, not weights: bins are the same only if all weights are equal.
    times = np.where((np.arange(len(data["y"])) % 3 > 0) & (case.counts == 0), 1, 2)
    twice = np.repeat(np.arange(len(data["y"])), times)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "[0-9,]+ rows share all features", ClusterWarning)
        weighted, doubled, once = (
            fit(case, columns, weight, **case.plain).predict(data)
            for columns, weight in ((data, times.astype(float)), (take(data, twice), None), (data, None))
        )
    change = np.sqrt(np.mean((weighted - scores(case, data)) ** 2))
    assert np.sqrt(np.mean((weighted - doubled) ** 2)) <= case.counts * change
    assert not same(weighted, once) or not case.counts


def law_a_weight_of_zero_removes_the_row(case):
    data = rows(case.task)
    weight = np.where(np.arange(len(data["y"])) % 3, 1.0, 0.0)
    kept = np.flatnonzero(weight)
    a, b = fit(case, data, weight), fit(case, take(data, kept), np.ones(len(kept)))
    assert same(a.predict(data), b.predict(data))
    assert a.history_ == b.history_


def law_weights_of_one_change_nothing(case):
    data = rows(case.task)
    weighted = fit(case, data, np.ones(len(data["y"])))
    assert distance(fitted(case).predict(data), weighted.predict(data)) <= case.order


def law_the_unit_of_fractional_weights_does_not_matter(case):
    data = rows(case.task, 500)
    weight = np.random.default_rng(2).uniform(0.3, 1.7, len(data["y"]))
    expected = fit(case, data, weight).predict(data)
    assert same(fit(case, data, weight * 2.0**30).predict(data), expected)  # a power of 2 loses no digit
    # Trees hold weights in single precision: 1 in 2^24, through a few dozen trees.
    scale = float(np.abs(expected).max())
    assert distance(fit(case, data, weight * 1e-7).predict(data), expected) <= 1e-4 * scale


# ------------------------------------------------------------------ scikit-learn


def parameters_of(fix):
    """Return the parameters of a calibrator; estimators among them, also in lists, as their types."""

    def plain(value):
        if isinstance(value, list):
            return [plain(item) for item in value]
        return type(value) if hasattr(value, "get_params") else value

    return {name: plain(value) for name, value in fix.get_params().items()}


def law_it_is_an_estimator(case):
    fix = case.make()
    parameters = parameters_of(fix)
    assert parameters_of(clone(fix)) == parameters
    assert parameters_of(type(fix)(**fix.get_params(deep=False))) == parameters
    assert fix.set_params(unlabelled="drop").get_params()["unlabelled"] == "drop"
    assert parameters_of(fitted(case)) == parameters  # fit does not change the parameters
    assert not hasattr(clone(fitted(case)), "model_")
    repr(fix)


def law_nothing_works_before_fit(case):
    fix, data = case.make(), rows(case.task, 20)
    for call in (lambda: fix.predict(data), lambda: fix.predict_one({}), fix.explain):
        with pytest.raises(NotFittedError, match=r"not fitted yet\nhint: call fit"):
            call()
    if fix.needs_outcome:
        with pytest.raises(ArgumentError, match="fit needs the outcome"):
            fix.fit(data)


def law_it_can_be_pickled_and_copied_before_and_after_use(case):
    data, fix = rows(case.task, 300), copy.deepcopy(fitted(case))
    row = {name: column[0] for name, column in data.items()}
    for _ in range(2):
        for other in (pickle.loads(pickle.dumps(fix)), copy.deepcopy(fix), pickle.loads(pickle.dumps(fix.model_))):
            assert same(other.predict(data), fix.predict(data))
            assert np.array_equal(other.predict_one(row), fix.predict_one(row))
        fix.predict_one(row)
    assert parameters_of(pickle.loads(pickle.dumps(case.make()))) == parameters_of(case.make())


def law_a_grid_search_and_a_pipeline_run(case):
    import pandas as pd

    data = rows(case.task, 300)
    frame, y = pd.DataFrame(data).drop(columns="y"), data["y"]

    def score(fix, X, y):
        predictions = fix.predict(X)
        if case.task == "multiclass":
            hit = predictions[np.arange(len(predictions)), [CLASSES.index(label) for label in y]]
            return float(np.mean(np.log(np.maximum(hit, 1e-6))))
        return -float(np.mean((predictions - y) ** 2))

    grid = {"unlabelled": ["drop"]}
    search = GridSearchCV(case.make(**case.plain), grid, scoring=score, cv=2, error_score="raise").fit(frame, y)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    pipe = Pipeline([("same", FunctionTransformer()), ("fix", case.make(**case.plain))]).fit(frame, y)
    assert same(pipe.predict(frame), search.predict(frame))


def law_invalid_parameters_are_rejected(case):
    data = rows(case.task, 60)
    for name, values in case.invalid.items():
        for value in values:
            with pytest.raises(ArgumentError, match=name.split("_")[0]):
                fit(case, data, **{name: value})


# ------------------------------------------------------------------ laws of some tasks


def law_soft_labels_are_probabilities_of_labels(case):
    # A label of 0.25 is a quarter of a row of 1 and three quarters of a row of 0, for any loss linear in the outcome.
    data = rows(case.task)
    soft = np.clip(data["p"] + np.where(data["country"] == "BR", 0.3, 0.0), 0, 1)
    if not _reads_features(case):  # a miscalibration that a curve of the score can correct, even by one factor
        soft = data["p"] ** 2 / (data["p"] ** 2 + (1 - data["p"]) ** 2)
        if isinstance(case.make(), (tu.Additive, tu.Multiplicative)):  # or by one factor of the score itself
            soft = 0.7 * data["p"]
    few = {"rounds": 1, "trees": 100} if isinstance(case.make(), tu.MCGrad) else {}  # without noise there is no end
    predictions = case.make(**few).fit(data, soft).predict(data)
    _check_range(case, predictions)
    assert np.mean((predictions - soft) ** 2) < 0.5 * np.mean((data["p"] - soft) ** 2)


def law_the_unit_of_a_real_outcome_does_not_matter(case):
    data = rows(case.task)
    expected = fit(case, data, **case.plain).predict(data)
    for scale in (2.0**-20, 2.0**40, 1e-6, 1e9):
        other = data | {"p": scale * data["p"], "y": scale * data["y"]}
        predictions = fit(case, other, **case.plain).predict(other) / scale
        np.testing.assert_allclose(predictions, expected, rtol=1e-6, atol=1e-6 * np.abs(expected).max())
    shifted = data | {"p": 1e4 + data["p"], "y": 1e4 + data["y"]}
    # The factor of a round shrinks scores towards 0: the origin has an effect. Evaluated on held-out rows the factor is
    # near 1, and the effect is small.
    expected = fitted(case).predict(data)
    predictions = fit(case, shifted).predict(shifted) - 1e4
    assert np.sqrt(np.mean((predictions - expected) ** 2)) < 0.2 * np.sqrt(np.mean((expected - data["p"]) ** 2))


law_soft_labels_are_probabilities_of_labels.for_tasks = ("binary",)
law_the_unit_of_a_real_outcome_does_not_matter.for_tasks = ("regression",)

# Laws of a parameter, for the calibrators that have it.
for law, name in (
    (law_the_number_of_threads_does_not_matter, "threads"), (law_unseen_levels_score_as_missing, "features"),
    (law_a_key_that_is_no_column_is_an_error_if_a_feature_is_absent, "features"),
    (law_uninformative_columns_do_no_harm, "features"), (law_no_features_are_enough, "features"),
    (law_a_prediction_that_is_also_a_feature_is_saved, "features"),
):  # fmt: skip
    law.parameter = name

LAWS = [law for name, law in list(globals().items()) if name.startswith("law_")]


def laws_of(case):
    """Return the laws that apply to a case."""
    parameters = set(case.make().get_params())
    parameters |= {"features"} if _reads_features(case) else set()
    return [
        law
        for law in LAWS
        if (law is not law_soft_labels_are_probabilities_of_labels or case.make().needs_outcome)
        and case.task in getattr(law, "for_tasks", (case.task,))
        and getattr(law, "parameter", None) in {None, *parameters}
    ]
