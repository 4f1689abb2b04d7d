"""Pandas objects that are paired by row must have the same index."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest

import trueup as tu
from trueup import decisions, metrics
from trueup.data.columns import check_aligned
from trueup.errors import DataError

ROWS = 600
HINT = r"\nhint: align it with \.loc\[frame\.index\], or pass \.to_numpy\(\) if the rows are in the same order"


@pytest.fixture
def frame():
    random = np.random.default_rng(0)
    p = random.uniform(0.1, 0.9, ROWS)
    columns = {"p": p, "g": random.choice(["a", "b"], ROWS), "y": (random.random(ROWS) < p) * 1.0, "w": np.ones(ROWS)}
    return pd.DataFrame(columns | {"c": np.arange(ROWS) // 2}, index=np.arange(ROWS) + 100)


def test_equal_indexes_are_accepted(frame):
    tu.audit(frame, outcome=frame["y"], prediction="p", weight=frame["w"], by=["g"], segments={"low": frame["p"] < 0.3})
    plain = frame.reset_index(drop=True)
    tu.audit(plain, outcome=pd.Series(plain["y"].to_numpy()), prediction="p", by=["g"])
    check_aligned({"a": plain["y"], "b": pd.Series(np.zeros(ROWS), index=list(range(ROWS)))})
    check_aligned({"a": frame["y"].to_numpy(), "b": plain["y"], "c": None, "d": "w", "e": pl.Series([1.0])})


@pytest.mark.parametrize("role", ["outcome", "weight", "cluster", "prediction"])
def test_a_role_with_another_index_is_an_error(frame, role):
    names = {"outcome": "y", "weight": "w", "cluster": "c", "prediction": "p"}
    values = frame[names[role]].reset_index(drop=True)
    rule = rf"the {role} has another index than the data: 0 instead of 100 at row 0 \(600 such rows\){HINT}"
    with pytest.raises(DataError, match=rule):
        tu.audit(frame, **{**names, role: values}, by=["g"])
    aligned = tu.audit(frame, **{**names, role: values.to_numpy()}, by=["g"])
    assert aligned.verdict == tu.audit(frame, **names, by=["g"]).verdict


def test_the_same_index_in_another_order_is_an_error(frame):
    shuffled = frame["y"].sample(frac=1, random_state=0)
    with pytest.raises(
        DataError, match=r"the outcome has the index of the data in another order: \d+ instead of 100 at row 0"
    ):
        tu.audit(frame, outcome=shuffled, prediction="p", by=["g"])
    with pytest.raises(DataError, match="in another order"):
        tu.Platt("p").fit(frame, shuffled)
    tu.Platt("p").fit(frame, shuffled.loc[frame.index])


def test_the_first_differing_label_is_named():
    index = ["a", "b", "c", "d"]
    with pytest.raises(DataError, match=r"y has another index than p: 'x' instead of 'c' at row 2 \(1 such row\)"):
        check_aligned({"p": pd.Series(range(4), index=index), "y": pd.Series(range(4), index=["a", "b", "x", "d"])})
    missing = pd.Series(range(2), index=[np.nan, 1.0])
    check_aligned({"p": missing, "y": pd.Series(range(2), index=[np.nan, 1.0])})
    with pytest.raises(DataError, match=r"2\.0 instead of 1\.0 at row 1"):
        check_aligned({"p": missing, "y": pd.Series(range(2), index=[np.nan, 2.0])})


def test_unequal_lengths_keep_their_own_error(frame):
    with pytest.raises(tu.errors.ColumnError, match="the outcome has 10 values and the data 600 rows"):
        tu.audit(frame, outcome=frame["y"].head(10), prediction="p")


def test_segments_and_columns_of_a_dict_are_checked(frame):
    with pytest.raises(DataError, match="segment 'low' has another index than the data"):
        tu.audit(frame, outcome="y", prediction="p", by=["g"], segments={"low": (frame["p"] < 0.3).reset_index(drop=True)})
    with pytest.raises(DataError, match="column 'y' has another index than column 'p'"):
        tu.audit({"p": frame["p"], "y": frame["y"].reset_index(drop=True)}, outcome="y", prediction="p")


def test_calibrated_estimators_check_their_arguments(frame):
    X, y = frame[["p", "w"]], frame["y"].reset_index(drop=True)
    with pytest.raises(DataError, match="y has another index than X"):
        tu.CalibratedClassifier().fit(X, y)
    with pytest.raises(DataError, match="cluster has another index than X"):
        tu.CalibratedClassifier().fit(X, y.to_numpy(), cluster=frame["c"].reset_index(drop=True))


def test_measures_check_their_arguments(frame):
    y, p, other = frame["y"], frame["p"], frame["g"].reset_index(drop=True)
    with pytest.raises(DataError, match="p has another index than y"):
        metrics.brier(y, p.reset_index(drop=True))
    with pytest.raises(DataError, match="weight has another index than y"):
        metrics.ece(y, p.to_numpy(), frame["w"].reset_index(drop=True))
    for call in (
        lambda: metrics.by_group(metrics.ece, y, p, other),
        lambda: metrics.multicalibration_error(y.to_numpy(), p, other),
    ):
        with pytest.raises(DataError, match="groups has another index than"):
            call()
    both = pd.DataFrame({"no": 1 - p, "yes": p}).reset_index(drop=True)
    with pytest.raises(DataError, match="p has another index than y"):
        metrics.top_label_ece(y.astype(int), both)
    with pytest.raises(DataError, match="hit has another index than phi"):
        metrics.lce(frame[["w"]], p.to_numpy(), y.reset_index(drop=True), gamma=0.5)


def test_decisions_check_their_arguments(frame):
    y, p, other = frame["y"], frame["p"], frame["g"].reset_index(drop=True)
    costs = {"fn": 5, "fp": 1}
    with pytest.raises(DataError, match="segments has another index than p"):
        decisions.expected_cost(p, costs, 0.2, segments=other)
    with pytest.raises(DataError, match=r"segments\['g'\] has another index than p"):
        decisions.expected_cost(p, costs, 0.2, segments={"g": other})
    with pytest.raises(DataError, match="p has another index than y"):
        decisions.expected_cost(p, costs, 0.2, labelled=(y, p.reset_index(drop=True)))
    with pytest.raises(DataError, match="cluster has another index than y"):
        decisions.Labelled(y, p, cluster=other)
    with pytest.raises(DataError, match=r"predictions\['b'\] has another index than y"):
        decisions.decision_curve(y, {"a": p, "b": p.reset_index(drop=True)})
    with pytest.raises(DataError, match="y has another index than p"):
        decisions.abstain(p, y.reset_index(drop=True), ratio=5)
    with pytest.raises(DataError, match="t has another index than y"):
        decisions.omniloss(y, p.reset_index(drop=True), "squared")
