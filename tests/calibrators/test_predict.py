"""Rows without a valid score raise, or become NaN on request; a model may read columns of other names."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

import trueup as tu
from checks import CLASSES, rows
from frames import MAKERS
from trueup.errors import ArgumentError, ColumnError, DataError, InvalidScoreWarning


@pytest.fixture(scope="module")
def fix():
    data = rows("binary", 300)
    return tu.Grouped(tu.Platt(), ["country"], prediction="p", shrinkage=20).fit(data, data["y"])


def test_invalid_rows_become_nan_on_request_and_are_counted(fix):
    data = rows("binary", 6, seed=1)
    bad = data | {"p": np.array([0.2, np.nan, 0.3, 1.5, -0.1, np.inf])}
    with pytest.raises(DataError, match="must hold finite numbers"):
        fix.predict(bad)
    with pytest.warns(InvalidScoreWarning, match=r"^4 of 6 rows have no valid score, the first at row 1: their") as caught:
        predictions = fix.predict(bad, on_error="nan")
    assert len(caught) == 1
    assert np.isnan(predictions).tolist() == [False, True, False, True, True, True]
    valid = {name: column[[0, 2]] for name, column in bad.items()}
    assert predictions[[0, 2]].tobytes() == fix.predict(valid).tobytes()
    with pytest.warns(InvalidScoreWarning):
        assert np.array_equal(fix.model_.predict(bad, on_error="nan"), predictions, equal_nan=True)
    with pytest.warns(InvalidScoreWarning, match="4 of 6 rows") as caught:
        before, after = fix.staged_predict(bad, on_error="nan")
    assert len(caught) == 1
    assert np.array_equal(before, [0.2, np.nan, 0.3, np.nan, np.nan, np.nan], equal_nan=True)
    assert np.array_equal(after, predictions, equal_nan=True)
    with pytest.raises(DataError, match="must hold finite numbers"):
        fix.staged_predict(bad)
    with pytest.raises(ArgumentError, match="on_error must be one of"):
        fix.staged_predict(bad, on_error="skip")


def test_valid_rows_do_not_warn(fix):
    data = rows("binary", 50, seed=1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fix.predict(data, on_error="nan").tobytes() == fix.predict(data).tobytes()
        empty = {name: column[:0] for name, column in data.items()}
        assert fix.predict(empty, on_error="nan").shape == (0,)


def test_a_text_among_numbers_is_an_invalid_score_but_a_column_of_texts_is_an_error(fix):
    data = rows("binary", 3, seed=1)
    for make in MAKERS.values():
        frame = make({name: column.tolist() for name, column in data.items()} | {"p": ["0.2", "n/a", None]})
        with pytest.warns(InvalidScoreWarning, match="2 of 3 rows"):
            predictions = fix.predict(frame, on_error="nan")
        assert predictions[0] == fix.predict(data | {"p": np.array([0.2] * 3)})[0]
    with pytest.raises(DataError, match="must hold numbers; got text such as 'high'"):
        fix.predict(data | {"p": ["high", "low", "low"]}, on_error="nan")
    with pytest.raises(ColumnError, match="the data has no column 'p'"):
        fix.predict({"country": data["country"]}, on_error="nan")


def test_class_probabilities_that_do_not_add_up_are_invalid():
    data = rows("multiclass", 60)
    fix = tu.Temperature([f"p_{name}" for name in CLASSES], classes=CLASSES).fit(data, data["y"])
    data["p_cat"] = np.where(np.arange(60) == 7, data["p_cat"] + 0.1, data["p_cat"])
    with pytest.warns(InvalidScoreWarning, match="1 of 60 rows .* the first at row 7"):
        predictions = fix.predict(data, on_error="nan")
    assert np.flatnonzero(np.isnan(predictions).all(axis=1)).tolist() == [7]
    assert np.isnan(predictions).sum() == 3


def test_real_scores_are_invalid_only_if_missing_or_too_large():
    data = rows("regression", 60)
    fix = tu.Platt("p", task="regression").fit(data, data["y"])
    with pytest.warns(InvalidScoreWarning, match="2 of 4 rows"):
        predictions = fix.predict({"p": np.array([-50.0, np.nan, 1e120, 7.0])}, on_error="nan")
    assert np.isnan(predictions).tolist() == [False, True, True, False]


def test_on_error_has_two_values(fix):
    with pytest.raises(ArgumentError, match="on_error must be"):
        fix.predict(rows("binary", 5), on_error="coerce")


# ------------------------------------------------------------------ other names of the columns


def test_a_renamed_model_reads_other_columns_and_predicts_the_same(fix, tmp_path):
    data = rows("binary", 40, seed=2)
    model = fix.model_.rename({"p": "score", "country": "land"})
    other = {"score": data["p"], "land": data["country"]}
    expected = fix.predict(data)
    assert model.predict(other).tobytes() == expected.tobytes()
    assert model.predict_one({name: column[3] for name, column in other.items()}) == expected[3]
    assert (model.schema.prediction, model.schema.score_names) == (("score",), ("score_trueup",))
    tu.save(model, tmp_path / "renamed")
    again = tu.load(tmp_path / "renamed")
    assert again.predict(other).tobytes() == expected.tobytes()
    assert again.rename({"score": "p", "land": "country"}).predict(data).tobytes() == expected.tobytes()
    assert fix.model_.schema.prediction == ("p",)  # the model itself is not changed
    with pytest.raises(ColumnError, match="the data has no column 'score'"):
        model.predict(data)


def test_names_may_be_exchanged_but_not_shared():
    data = rows("binary", 60)
    model = tu.Logistic("p", ["age"], stopping=None).fit(data, data["y"]).model_
    swapped = model.rename({"p": "age", "age": "p"})
    assert swapped.predict({"age": data["p"], "p": data["age"]}).tobytes() == model.predict(data).tobytes()
    with pytest.raises(ColumnError, match="two columns of the model would have the same name: age, age"):
        model.rename({"p": "age"})
    with pytest.raises(ColumnError, match=r"the model has no column 'agee'\nhint: did you mean 'age'\?"):
        model.rename({"agee": "x"})
    with pytest.raises(ArgumentError, match="rename takes a mapping"):
        model.rename({"p": 3})
