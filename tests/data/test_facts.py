"""What parts know of their rows adds up to what is known of all of them."""

from __future__ import annotations

import itertools
from functools import reduce
from operator import add

import numpy as np
import pytest

from trueup.data.checks import RowPosition, RowSummary
from trueup.data.frame import read
from trueup.errors import ColumnError, DataError, HardPredictionWarning, OneClassWarning

ROLES = {"outcome": "y", "prediction": "p", "weight": "w", "unlabelled": "drop"}
CUTS = (0, 40, 130, 131, 200)


def rows():
    """200 rows, some of them without an outcome or a weight; ``copy`` restates the outcome, ``near`` all but one."""
    random = np.random.default_rng(0)
    y = (random.random(200) < 0.4) * 1.0
    near = np.where(y > 0, "bad", "good")
    near[150] = "bad" if y[150] == 0 else "good"
    told = {"copy": np.where(y > 0, "a", "b"), "same": y.copy(), "near": near, "other": random.normal(size=200)}
    w = np.ones(200)
    y[5], w[[7, 60]] = np.nan, 0.0
    return {"y": y, "p": random.random(200), "w": w, **told}


def parts_of(frame):
    """Read all rows, and part by part; by themselves parts may hold copies of the outcome."""
    full = read(frame, **ROLES, position=RowPosition())
    cuts = [{n: c[a:b] for n, c in frame.items()} for a, b in itertools.pairwise(CUTS)]
    return [read(one, **ROLES, schema=full.schema, position=RowPosition()) for one in cuts], full


def told(seen):
    return (
        seen.rows, seen.unlabelled, seen.weightless, seen.lowest, seen.highest, seen.hard, seen.copies.equal,
        seen.copies.pairs, seen.copies.outcomes,
    )  # fmt: skip


def test_parts_that_add_and_parts_one_after_the_other_say_the_same():
    parts, full = parts_of(rows())
    whole = RowSummary.of(full)
    assert told(whole)[:6] == (197, 1, 2, 0.0, 1.0, False)
    assert (whole.copies.equal, set(whole.copies.pairs)) == ({"same"}, {"copy"})
    found = [RowSummary.of(one) for one in parts]
    assert (
        told(reduce(add, found)) == told(reduce(add, found[::-1])) == told(found[0] + reduce(add, found[1:])) == told(whole)
    )
    assert told(reduce(RowSummary.include, parts, RowSummary())) == told(whole)


def test_what_all_rows_have_in_common_is_told_once_all_were_seen():
    parts, full = parts_of(rows())
    with pytest.raises(ColumnError, match="identical to the outcome"):
        reduce(RowSummary.include, parts, RowSummary()).check(full.schema)
    with pytest.raises(DataError, match="no rows are left: 3 have no outcome and 4 have weight 0"):
        RowSummary(0, 3, 4).check(full.schema)
    with pytest.warns(HardPredictionWarning):
        RowSummary(900, lowest=0.0, highest=1.0).check(full.schema)
    with pytest.warns(OneClassWarning, match="is 1 "):
        RowSummary(900, lowest=1.0, highest=1.0, hard=False).check(full.schema)
