"""Every error about the input states what is wrong, where, in how many rows, and what to do."""

from __future__ import annotations

import pickle

import numpy as np
import pytest

import trueup as tu
from trueup.data.columns import frame_like
from trueup.data.frame import read
from trueup.errors import ArgumentError, ColumnError, DataError, IdentifierWarning, MissingPackageError, TrueupError

GOOD = {"y": [0, 1, 0, 1], "p": [0.1, 0.2, 0.3, 0.4]}

CASES = [
    ({"p": [0.1, 1.5, 0.3, 7.0]}, {}, r"prediction column 'p' must hold probabilities in \[0, 1\]; got 1.5 at row 1 \(2 such rows\)\nhint: percentages"),
    ({"p": [0.1, -0.5, 0.3, 0.4]}, {}, r"got -0.5 at row 1 \(1 such row\)\nhint: calibrators take logits"),
    ({"p": [0.1, float("nan"), 0.3, 0.4]}, {}, r"prediction column 'p' must hold finite numbers; got nan at row 1"),
    ({"p": [0.1, None, 0.3, 0.4]}, {}, r"must hold finite numbers; got nan at row 1 \(1 such row\)\nhint: a row without a score"),
    ({"p": [0.1, 0.2, float("inf"), 0.4]}, {}, r"got inf at row 2"),
    ({"p": ["a", "b", "c", "d"]}, {}, r"prediction column 'p' must hold numbers; got text such as 'a' at row 0 \(4 such rows\)"),
    ({"p": ["0.1", "0.2", "n/a", "0.4"]}, {}, r"must hold numbers; got text such as 'n/a' at row 2 \(1 such row\)"),
    ({"p": ["8.859%", "9%", "1 %", "0.4%"]}, {}, r"got text such as '8.859%' .*\nhint: percentages written as text: remove the"),
    ({"p": ["0.1", "0.2", "0.3", "0.4"]}, {}, r"got numbers written as text, such as '0.1'"),
    ({"y": [1, 2, 1, 2]}, {}, r"got 2 at row 1 .*\nhint: write 1 as 0 and 2 as 1"),
    ({"y": [True, False, True, False], "c": [1, 2, 3, 4]}, {"features": ["c", "y"]}, r"column 'y' is identical to the outcome: it is the outcome"),
    ({"q": [0.9, 0.8, 0.7, 0.6], "y": ["a", "b", "c", "a"]}, {"prediction": ["p", "q"], "classes": ["a", "b", "b"]}, r"classes must name one outcome for each of the 2"),
    ({"y": [0, None, 1, None]}, {}, r"outcome column 'y' is missing at row 1 \(2 such rows\)\nhint: pass unlabelled=\"drop\""),
    ({"y": [0, 2, 1, 3]}, {}, r"outcome column 'y' must hold 0 and 1, booleans, or probabilities in \[0, 1\]; got 2 at row 1 .*\nhint: for a real outcome pass task=\"regression\""),
    ({"y": ["no", "yes", "no", "yes"]}, {}, r"got text such as 'no' and 'yes'\nhint: write it as 1 where it is 'yes'"),
    ({"y": [0, float("inf"), 1, 1]}, {"task": "regression"}, r"outcome column 'y' must hold finite numbers; got inf at row 1"),
    ({"w": [1, -1, 1, -2]}, {"weight": "w"}, r"weights in column 'w' must not be negative; got -1 at row 1 \(2 such rows\)"),
    ({"w": [1, None, 1, 1]}, {"weight": "w"}, r"weights in column 'w' must be finite; got nan at row 1"),
    ({"w": [0, 0, 0, 0]}, {"weight": "w"}, r"weights in column 'w' are all zero \(4 rows\)"),
    ({"w": ["a", "b", "c", "d"]}, {"weight": "w"}, r"weight column 'w' must hold numbers"),
    ({"w": [1, 1e60, 1, 1]}, {"weight": "w"}, r"weights in column 'w' must be at most 1e\+50; got 1e\+60 at row 1"),
    ({"w": [1, 1e-60, 1, 1]}, {"weight": "w"}, r"weights in column 'w' must be at least 1e-50, or 0; got 1e-60 at row 1"),
    ({"y": [0, 1e120, 1, 1]}, {"task": "regression"}, r"outcome column 'y' must lie within 1e\+100 of 0; got 1e\+120 at row 1"),
    ({"p": [0, 1e120, 1, 1]}, {"task": "regression"}, r"prediction column 'p' must lie within 1e\+100 of 0; got 1e\+120"),
    ({}, {"prediction": np.array([0.5, 0.5])}, r"the prediction has shape \(2,\) and the data 4 rows"),
    ({"leak": [0, 1, 0, 1]}, {}, r"column 'leak' is identical to the outcome"),
    ({}, {"outcome": "Y"}, r"no column 'Y' to use as outcome\nhint: did you mean 'y'\?"),
    ({}, {"outcome": "zzz"}, r"no column 'zzz' to use as outcome\nhint: the columns are y, p"),
    ({"clicked": [1, 2, 3, 4]}, {"outcome": "cliked"}, r"no column 'cliked' to use as outcome\nhint: did you mean 'clicked'\?"),
    ({"region": list("abcd")}, {"features": ["reg"]}, r"no column 'reg' to use as feature\nhint: did you mean 'region'\?"),
    ({"age": [1, 2, 3, 4], "age_2": [1, 2, 3, 5]}, {"features": "AG"}, r"hint: did you mean 'age' or 'age_2'\?"),
    ({}, {"features": ["a"]}, r"no column 'a' to use as feature"),
    ({"a": [1, 2, 3, 4]}, {"features": ["a", "a"]}, r"column 'a' is named twice as feature"),
    ({}, {"outcome": "p"}, r"column 'p' is named both as prediction and as outcome"),
    ({}, {"weight": "y"}, r"column 'y' is named both as outcome and as weight"),
    ({}, {"outcome": [0, 1]}, r"the outcome has 2 values and the data 4 rows"),
    ({}, {"task": "ranking"}, r"task must be one of 'auto', 'binary', 'regression'; got 'ranking'"),
    ({}, {"unlabelled": "keep"}, r"unlabelled must be one of 'error', 'drop'"),
    ({}, {"prediction": []}, r"an empty list of prediction columns"),
    ({}, {"prediction": None}, r"no prediction column was named"),
    ({"q": [0.9, 0.8, 0.7, 0.6]}, {"prediction": ["p", "q"], "task": "regression"}, r"task 'regression' takes one prediction column"),
    ({}, {"classes": ["a"]}, r"classes can only be named with several prediction columns"),
    ({"q": [0.9, 0.8, 0.6, 0.6]}, {"prediction": ["p", "q"]}, r"must add up to 1; got 0.9 at row 2 \(1 such row\)"),
    ({"q": [0.9, 0.8, 0.7, 0.6], "y": ["a", "b", "c", "a"]}, {"prediction": ["p", "q"]}, r"2 prediction columns for 3 classes \(a, b, c\)"),
    ({"q": [0.9, 0.8, 0.7, 0.6], "y": ["a", "b", "b", "a"]}, {"prediction": ["p", "q"]}, r"cannot tell which outcome each prediction column stands for"),
    ({"q": [0.9, 0.8, 0.7, 0.6], "y": ["a", "b", "c", "a"]}, {"prediction": ["p", "q"], "classes": ["a", "b"]}, r"holds a class without a prediction column: 'c' at row 2"),
    ({"q": [0.9, 0.8, 0.7, 0.6]}, {"prediction": ["p", "q"], "classes": ["a"]}, r"classes must name one outcome for each of the 2"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "roles", "message"), CASES)
def test_invalid_input_is_rejected_by_name(change, roles, message, frame):
    data = frame({**GOOD, **change})
    with pytest.raises(TrueupError, match=message):
        read(data, **{"outcome": "y", "prediction": "p", **roles})


@pytest.mark.parametrize(("change", "roles", "message"), CASES)
def test_invalid_input_in_a_dict_is_rejected_with_the_same_message(change, roles, message):
    data = {
        name: np.array(column, object) if None in column else np.array(column)
        for name, column in {**GOOD, **change}.items()
    }
    with pytest.raises(TrueupError, match=message):
        read(data, **{"outcome": "y", "prediction": "p", **roles})


def test_data_without_rows_is_rejected(frame):
    empty = frame({"y": [0.0], "p": [0.5]})
    with pytest.raises(DataError, match="the data has no rows"):
        read(empty[:0], outcome="y", prediction="p")
    with pytest.raises(DataError, match="the data has no rows"):
        read({"y": [], "p": []}, outcome="y", prediction="p")
    with pytest.raises(DataError, match="the data has no rows"):
        read(np.empty((0, 2)), outcome=1)


def test_data_without_remaining_rows_is_rejected():
    with pytest.raises(DataError, match="no rows are left: 1 have no outcome and 1 have weight 0"):
        read({"y": [None, 1], "p": [0.5, 0.5], "w": [1, 0]}, outcome="y", prediction="p", weight="w", unlabelled="drop")


def test_a_duplicate_column_name_is_rejected():
    pd, pa = pytest.importorskip("pandas"), pytest.importorskip("pyarrow")
    twice = pd.DataFrame([[0, 0.5, 1, 2]], columns=["y", "p", "a", "a"])
    arrow = pa.Table.from_arrays([pa.array([0]), pa.array([0.5]), pa.array([1]), pa.array([2])], names=["y", "p", "a", "a"])
    for data in (twice, arrow):
        with pytest.raises(ColumnError, match="column name 'a' appears more than once"):
            read(data, outcome="y", prediction="p")


def test_two_columns_with_the_same_text_as_name_are_rejected():
    with pytest.raises(ColumnError, match="column name '1' appears more than once"):
        read({**GOOD, 1: ["a", "b", "c", "d"], "1": ["e", "f", "g", "h"]}, outcome="y", prediction="p")


def test_a_copy_of_a_rare_outcome_is_rejected_though_it_begins_with_one_class():
    y = np.r_[np.zeros(900), np.ones(100)]
    data = {"y": y, "p": np.full(1000, 0.1), "leak": np.where(y == 1, "yes", "no"), "twin": np.where(y == 1, "u", "v")}
    with pytest.raises(ColumnError, match="columns 'leak', 'twin' are identical to the outcome"):
        read(data, outcome="y", prediction="p")


def test_columns_of_unequal_length_are_rejected():
    with pytest.raises(ColumnError, match="the columns must have equal lengths: 'y' has 2, 'p' has 3"):
        read({"y": [0, 1], "p": [0.1, 0.2, 0.3]}, outcome="y", prediction="p")


def test_a_dict_without_arrays_is_rejected():
    with pytest.raises(ColumnError, match="column 'y' must be an array; got int"):
        read({"y": 3, "p": [0.5]}, outcome="y", prediction="p")


@pytest.mark.parametrize("value", [3, "frame.csv", [1, 2]])
def test_data_that_is_no_frame_is_rejected(value):
    with pytest.raises(ColumnError, match="cannot read data of type"):
        read(value, outcome="y", prediction="p")


def test_the_error_for_a_lazy_frame_suggests_collect():
    pl = pytest.importorskip("polars")
    with pytest.raises(ColumnError, match=r"call \.collect\(\) on it first"):
        read(pl.LazyFrame(GOOD), outcome="y", prediction="p")


def test_a_nested_column_is_rejected_only_when_it_is_read():
    pl = pytest.importorskip("polars")
    data = pl.DataFrame({**GOOD, "many": [[1], [2], [3], [4]]})
    with pytest.raises(ColumnError, match="column 'many' has a type that trueup does not read"):
        read(data, outcome="y", prediction="p", features=["many"])
    assert len(read(data, outcome="y", prediction="p", features=[])) == 4
    with pytest.raises(ColumnError, match="has a type that trueup does not read: list"):
        read(
            {**GOOD, "many": np.array([[1], [2], [3], [4], None], object)[:4]}, outcome="y", prediction="p", features="many"
        )


def test_a_renamed_copy_of_the_outcome_is_rejected(frame):
    y = [0, 1] * 50
    data = frame({"y": y, "p": [0.5] * 100, "answer": ["yes" if v else "no" for v in y]})
    with pytest.raises(ColumnError, match="column 'answer' is identical to the outcome"):
        read(data, outcome="y", prediction="p")


def test_an_identifier_is_left_out_with_a_warning(frame):
    n = 100
    data = frame({"y": [0, 1] * 50, "p": [0.5] * n, "user": [f"u{i}" for i in range(n)], "c": ["a", "b", "b", "a"] * 25})
    with pytest.warns(IdentifierWarning, match="column 'user' is left out: 100 levels in 100 rows"):
        table = read(data, outcome="y", prediction="p")
    assert list(table.columns) == ["c"]
    assert table.left_out == {"user": "100 levels in 100 rows: an identifier"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"depth": 0}, "depth must be an integer from 1 to 3; got 0"),
        ({"depth": 4}, "depth must be an integer from 1 to 3; got 4"),
        ({"depth": True}, "depth must be an integer from 1 to 3; got True"),
        ({"min_rows": 0}, "min_rows must be an integer at least 1; got 0"),
        ({"max_cells": 0.5}, "max_cells must be an integer at least 1"),
        ({"alpha": 0}, "alpha must lie between 0 and 1; got 0"),
        ({"alpha": 5}, "alpha must lie between 0 and 1; got 5"),
        ({"alpha": "5%"}, "alpha must lie between 0 and 1"),
        ({"threads": 0}, "threads must be an integer at least 1; got 0"),
        ({"random_state": -1}, "random_state must be an integer at least 0; got -1"),
        ({"adjust": "none"}, "adjust must be one of 'holm', 'max', 'bh', 'by'; got 'none'"),
        ({"adjust": "max", "draws": 100}, r"alpha \* \(draws \+ 1\) must be an integer"),
        ({"bins": 0}, "must be an integer from 1 to 10,000; got 0"),
        ({"bins": {"nobody": 3}}, "bins are given for column 'nobody'"),
        ({"bins": {"country": 3}}, "bins are given for column 'country', which is categorical"),
        ({"bins": {"age": [3, 2]}}, "list of ascending finite numbers; got"),
        ({"bins": {"age": []}}, "list of ascending finite numbers; got"),
        ({"bins": {"age": "quarter"}}, "list of ascending finite numbers; got 'quarter'"),
        ({"bins": {"age": [1, float("nan")]}}, "list of ascending finite numbers"),
        ({"bins": {"age": 1.5}}, "list of ascending finite numbers; got 1.5"),
        ({"segments": [np.ones(200, bool)]}, "segments must be a dict of names and boolean arrays; got list"),
        ({"segments": {"": np.ones(200, bool)}}, "a segment cannot be called ''"),
        ({"segments": {"all rows": np.ones(200, bool)}}, "a segment cannot be called 'all rows'"),
        ({"segments": {"country=BR": np.ones(200, bool)}}, "a segment cannot be called 'country=BR'"),
        ({"segments": {1: np.ones(200, bool), "1": np.ones(200, bool)}}, "a segment cannot be called '1'"),
        ({"segments": {"old": np.arange(200)}}, "segment 'old' must be a one-dimensional boolean array; got int64"),
        ({"segments": {"old": np.ones(3, bool)}}, "segment 'old' has 3 entries and the data 200 rows"),
        ({"task": "regression", "adjust": "max"}, "cannot be used for real outcomes"),
        ({"outcome": None}, "an audit needs the outcome"),
    ],
)
def test_invalid_audit_arguments_are_rejected_by_name(arguments, message, scored):
    with pytest.raises(TrueupError, match=message):
        tu.audit(scored, **{"outcome": "y", "prediction": "p", **arguments})


def test_roles_cannot_be_passed_with_a_table(scored):
    table = read(scored, outcome="y", prediction="p")
    for extra in ({"outcome": "y"}, {"categorical": ["age"]}):
        with pytest.raises(ArgumentError, match="a Table already has its roles"):
            tu.audit(table, **extra)


def test_frame_like_rejects_values_that_are_no_frame():
    with pytest.raises(ArgumentError, match="cannot make a frame like int"):
        frame_like({"a": np.array([1])}, like=3)


def test_errors_can_be_pickled():
    for kind in (DataError, MissingPackageError):
        back = pickle.loads(pickle.dumps(kind("no", hint="yes")))
        assert (type(back), str(back), back.hint) == (kind, "no\nhint: yes", "yes")
