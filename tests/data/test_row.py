"""A single row is read like a frame of one row."""

from __future__ import annotations

import datetime as dt
import decimal
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trueup.calibrators.model import check_prediction
from trueup.data.columns import encoder
from trueup.data.frame import read_like
from trueup.data.table import Feature, Schema
from trueup.errors import ColumnError, DataError, TrueupError

DAY = st.dates(dt.date(1800, 1, 1), dt.date(2200, 1, 1))
TIME = st.datetimes(dt.datetime(1800, 1, 1), dt.datetime(2200, 1, 1))
FLOAT = st.floats(allow_nan=True, allow_infinity=True)
INTEGER = st.integers(-(2**63), 2**64 - 1)
SHORT = st.sampled_from(
    ["BR", "US", "", "1", "2.5", "true", "false", "True", "a\nb", '"', "Ω", "\ud800", "nan", "2024-02-29"]
)
VALUES = st.one_of(
    st.sampled_from([None, math.nan, pd.NA, pd.NaT, np.datetime64("NaT"), np.nan, np.float32("nan"), decimal.Decimal("NaN")]),
    SHORT, st.text(max_size=4).filter(lambda text: not text.endswith("\0")), SHORT.map(np.str_), FLOAT, INTEGER, st.booleans(),
    st.integers(-9, 9), st.booleans().map(np.bool_), st.integers(-128, 127).map(np.int8), st.integers(0, 2**64 - 1).map(np.uint64),
    INTEGER.filter(lambda x: x < 2**63).map(np.int64), st.floats(width=32).map(np.float32), FLOAT.map(np.float64),
    st.decimals(-1000, 1000, places=3), DAY, TIME, DAY.map(np.datetime64), TIME.map(np.datetime64), TIME.map(pd.Timestamp),
    TIME.map(lambda time: time.replace(tzinfo=dt.timezone(dt.timedelta(hours=5)))),
)  # fmt: skip
FEATURES = [
    Feature("x", "numeric"),
    Feature("x", "date"),
    Feature("x", "categorical", ("", "2.5", "BR", "US", "a\nb", "true", "Ω", "\ud800")),
    Feature("x", "categorical", ("-3", "0", "1", "2.5", "9007199254740993", "1e+20")),
    Feature("x", "categorical", ("2024-02-29",)),
    Feature("x", "categorical", ("false", "true")),
    Feature("x", "categorical"),
]


def _read_in_frame(value, feature):
    table = read_like({"p": np.array([0.5]), "x": [value]}, Schema("binary", None, ("p",), None, (feature,)))
    return float(table.columns["x"][0])


def _outcome_of(call):
    try:
        return call()
    except TrueupError as error:
        return type(error), error.message


@settings(max_examples=200)
@given(VALUES, st.sampled_from(FEATURES))
@example(2**53 + 1, FEATURES[3])
@example(True, FEATURES[0])
@example(1.0, FEATURES[3])
@example(np.datetime64("2024-02-29T12:00"), FEATURES[1])
def test_a_value_is_encoded_as_in_a_frame(value, feature):
    expected, result = (
        _outcome_of(lambda read=read: read(value)) for read in (lambda v: _read_in_frame(v, feature), encoder(feature))
    )
    assert result == expected or (result != result and expected != expected)


def test_every_missing_marker_is_missing():
    for value in (None, math.nan, pd.NA, pd.NaT, np.datetime64("NaT"), np.float32("nan"), decimal.Decimal("NaN")):
        for feature in FEATURES:
            result = encoder(feature)(value)
            assert result == -1 if feature.kind == "categorical" else math.isnan(result)


def test_an_integer_beyond_floats_is_infinite():
    assert encoder(FEATURES[0])(10**400) == math.inf
    assert encoder(FEATURES[0])(-(10**400)) == -math.inf


@pytest.mark.parametrize("value", [b"BR", [1, 2], {"a": 1}, object(), np.zeros(3), 1j])
def test_values_of_other_types_are_rejected_or_unknown(value):
    for feature in FEATURES:
        result = _outcome_of(lambda feature=feature: encoder(feature)(value))
        assert result == -1.0 or result[0] is ColumnError


@settings(max_examples=150)
@given(VALUES, st.sampled_from(["binary", "regression"]))
def test_a_prediction_is_checked_as_in_a_frame(value, task):
    schema = Schema(task, None, ("p",), None, ())
    expected = _outcome_of(lambda: float(read_like({"p": [value]}, schema).prediction[0]))
    result = _outcome_of(lambda: check_prediction(value, "p", task))
    assert result == expected or (isinstance(result, tuple) and result[0] is expected[0] is DataError)


@pytest.mark.parametrize("value", [None, "0.5", b"0.5", [0.5], np.array([0.5]), 10**400, 1j, math.nan, math.inf, -0.1, 1.1])
def test_invalid_probabilities_are_rejected(value):
    with pytest.raises(DataError, match="prediction 'p' must be"):
        check_prediction(value, "p", "binary")
