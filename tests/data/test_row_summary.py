"""Summaries of partitions add up to the summary of all rows."""

from __future__ import annotations

import itertools
from functools import reduce
from operator import add

import numpy as np
import pytest

from trueup.data.frame import RowSummary, read, read_labelled
from trueup.data.values import RowPosition
from trueup.errors import ColumnError, DataError, HardPredictionWarning, OneClassWarning

BOUNDARIES = (0, 40, 130, 131, 200)


@pytest.fixture(scope="module")
def tables():
    """200 rows, all at once and in partitions: ``copy`` and ``same`` restate the outcome, ``near`` in all rows but one."""
    random = np.random.default_rng(0)
    y = (random.random(200) < 0.4) * 1.0
    near = np.where(y > 0, "bad", "good")
    near[150] = "bad" if y[150] == 0 else "good"
    features = {"copy": np.where(y > 0, "a", "b"), "same": y.copy(), "near": near, "other": random.normal(size=200)}
    features["other"][[3, 135, 180]] = np.inf, -np.inf, np.inf
    w = np.ones(200)
    y[5], w[[7, 60]] = np.nan, 0.0
    frame = {"y": y, "p": random.random(200), "w": w, **features}
    full = read(frame, outcome="y", prediction="p", weight="w", unlabelled="drop", position=RowPosition())
    partitions = [{name: column[a:b] for name, column in frame.items()} for a, b in itertools.pairwise(BOUNDARIES)]
    return full, [read_labelled(partition, full.schema, "drop", RowPosition()) for partition in partitions]


def test_summaries_add_up_in_any_order(tables):
    full, partitions = tables
    expected = RowSummary().include(full)
    assert (expected.rows, expected.unlabelled, expected.weightless) == (197, 1, 2)
    assert (expected.lowest, expected.highest, expected.hard) == (0.0, 1.0, None)
    assert (expected.equal, set(expected.pairs)) == ({"same"}, {"copy"})
    assert expected.infinite == {"other": 3}
    summaries = [RowSummary().include(partition) for partition in partitions]
    for total in (
        reduce(add, summaries),
        reduce(add, summaries[::-1]),
        summaries[0] + reduce(add, summaries[1:]),
        reduce(RowSummary.include, partitions, RowSummary()),
    ):
        assert total == expected


def test_properties_of_all_rows_are_checked_once_all_are_included(tables):
    full, partitions = tables
    with pytest.raises(ColumnError, match="columns 'copy', 'same' are identical to the outcome"):
        reduce(RowSummary.include, partitions, RowSummary()).check(full.schema)
    with pytest.raises(DataError, match="no rows are left: 3 have no outcome and 4 have weight 0"):
        RowSummary(0, 3, 4).check(full.schema)
    with pytest.warns(HardPredictionWarning):
        RowSummary(900, lowest=0.0, highest=1.0, hard=frozenset({0.0, 1.0})).check(full.schema)
    with pytest.warns(OneClassWarning, match="is 1 "):
        RowSummary(900, lowest=1.0, highest=1.0, hard=None).check(full.schema)
