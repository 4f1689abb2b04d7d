"""What parts of the rows say adds up to what all rows would."""

from __future__ import annotations

import itertools
import pickle
import warnings
from functools import reduce
from operator import add

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trueup.data import profile
from trueup.data.frame import NO_PREDICTION, read
from trueup.data.profile import ColumnProfile, DistinctLevels, TableProfile, assign_roles
from trueup.errors import ArgumentError, ColumnError, DataError, IdentifierWarning

ROLES = {"outcome": "y", "prediction": "p"}


def look(parts, **roles):
    """Survey every part, by itself and as it arrives from elsewhere; add up; give the survey and its roles."""
    settled = assign_roles([str(name) for name in names_of(parts[0])], **roles)
    return sum_of(parts, settled), settled


def names_of(frame):
    return frame.column_names if isinstance(frame, pa.Table) else frame.columns


def sum_of(parts, settled):
    found = [pickle.loads(pickle.dumps(TableProfile.of(part, at, settled))) for at, part in enumerate(parts)]
    return reduce(add, found)


def described(parts, **roles):
    found, settled = look(parts, **roles)
    return found.describe(settled)


def wanted(frame, **roles):
    """The schema of all rows at once, the columns that were left out, and the warnings of identifiers."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        table = read(frame, **roles)
    return (table.schema, dict(table.left_out)), sorted(str(w.message) for w in seen if w.category is IdentifierWarning)


def make(rows, seed):
    random = np.random.default_rng(seed)
    days = pd.Timestamp("2021-03-01") + pd.to_timedelta(random.integers(0, 40, rows), "D")
    frame = pd.DataFrame({
        "p": random.uniform(0, 1, rows),
        "y": random.integers(0, 2, rows).astype(float),
        "w": random.choice([0.0, 1.0, 2.5], rows),
        "text": random.choice(np.array(["b", "a", "10", None], object), rows),
        "rare": np.where(random.random(rows) < 0.05, "seldom", None),
        "number": np.where(random.random(rows) < 0.2, np.nan, random.normal(size=rows)),
        "whole": random.integers(-3, 12, rows),
        "flag": random.random(rows) < 0.5,
        "maybe": random.choice(np.array([True, False, None], object), rows),
        "day": days,
        "nothing": np.full(rows, np.nan),
        "void": np.full(rows, None),
        "name": [f"customer {at}" for at in range(rows)],
        "kind": pd.Categorical(random.choice(["x", "y", "z"], rows), categories=["z", "y", "x", "unused"]),
    })  # fmt: skip
    frame.loc[random.random(rows) < 0.1, "y"] = np.nan
    return frame


def cut(frame, places):
    ends = sorted(min(place, len(frame)) for place in places)
    return [frame.iloc[a:b] for a, b in zip([0, *ends], [*ends, len(frame)], strict=True)]


@given(
    rows=st.integers(2, 90),
    seed=st.integers(0, 10_000),
    places=st.lists(st.integers(0, 90), max_size=6),
    weighted=st.booleans(),
    categorical=st.lists(st.sampled_from(["whole", "number", "day", "nothing", "flag"]), unique=True),
    arrow=st.booleans(),
)
def test_parts_are_described_as_all_rows_are(rows, seed, places, weighted, categorical, arrow):
    frame = make(rows, seed)
    frame.loc[0, ["y", "w"]] = 1.0  # some row counts
    frame.loc[1, ["y", "w"]] = np.nan, 0.0
    roles = {**ROLES, "unlabelled": "drop", "weight": "w" if weighted else None, "categorical": categorical}
    parts = cut(frame, places)
    if arrow:
        frame, parts = (pa.Table.from_pandas(frame), [pa.Table.from_pandas(part, preserve_index=False) for part in parts])
        frame = frame.select([name for name in frame.column_names if not name.startswith("__")])
    want, told = wanted(frame, **roles)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert described(parts, **roles) == want
    assert sorted(str(w.message) for w in seen) == told


def test_a_column_without_values_has_the_type_of_the_first_part_that_has_rows_in_whatever_order_they_add():
    none, number, flag = ColumnProfile(None, None, 0), ColumnProfile(None, "number", 1), ColumnProfile(None, "flag", 2)
    for a, b, c in itertools.permutations([none, number, flag]):
        assert a.merge(b, "x").merge(c, "x").empty_kind == a.merge(b.merge(c, "x"), "x").empty_kind == "number"


@given(places=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 100))
def test_parts_without_rows_set_aside_are_described_as_all_rows_are(places, seed):
    frame = make(60, seed).assign(y=1.0).drop(columns=["name", "w"])
    want, _ = wanted(frame.assign(y=np.arange(60) % 2.0), **ROLES)
    assert described(cut(frame.assign(y=np.arange(60) % 2.0), places), **ROLES) == want


@pytest.mark.parametrize("labels", [["cat", "dog", "elk"], [0, 1, 2], [False, True, None]])
def test_classes_are_those_of_all_parts(labels):
    outcomes = [labels[at] for at in (0, 0, 0, 1, 1, 2, 2, 1)]
    scores = {f"p_{one}": np.full(8, 1 / 3) for one in ("cat", "dog", "elk")}
    frame = pd.DataFrame({"y": pd.Series(outcomes, dtype=object), **scores, "a": list("xyxyxyzz")})
    roles = {"outcome": "y", "prediction": list(scores), "unlabelled": "drop"}
    if labels[0] is False:
        roles["classes"] = [False, True, "other"]
    want, _ = wanted(frame, **roles)
    assert described(cut(frame, [3, 3, 5, 7]), **roles) == want
    assert want[0].classes


def test_categories_that_differ_by_part_are_joined():
    parts = [pd.DataFrame({"p": [0.1, 0.2], "y": [0, 1], "c": pd.Categorical(pair)}) for pair in (["a", "b"], ["z", "b"])]
    schema, _ = described(parts, **ROLES)
    assert schema.features[0].levels == ("a", "b", "z")


def test_a_column_of_two_kinds_is_refused_with_both():
    parts = [pd.DataFrame({"p": [0.1], "y": [0], "c": column}) for column in ([None], ["x"], [1.5])]
    with pytest.raises(ColumnError, match="column 'c' holds texts in partition 1 and numbers in partition 2"):
        look(parts, **ROLES)


def test_a_bad_row_is_told_with_its_part():
    parts = [pd.DataFrame({"p": [0.1, 0.2], "y": [0, 1]}), pd.DataFrame({"p": [0.5, 1.5], "y": [0, 1]})]
    with pytest.raises(DataError, match=r"probabilities in \[0, 1\]; got 1.5 at row 1 of partition 1\n"):
        look(parts, **ROLES)
    parts[1]["p"] = [None, None]
    with pytest.raises(DataError, match="must hold finite numbers; got nan at row 0 of partition 1\n"):
        look(parts, **ROLES)


@pytest.mark.parametrize(
    ("roles", "error"),
    [
        ({"outcome": "z", "prediction": "p"}, "no column 'z' to use as outcome"),
        ({"outcome": "y", "prediction": "P"}, "did you mean 'p'?"),
        ({"outcome": "y", "prediction": None}, "no prediction column was named"),
        ({"outcome": "y", "prediction": []}, "an empty list of prediction columns"),
        ({"outcome": "y", "prediction": ["p", "p"]}, "column 'p' is named twice as prediction"),
        ({"outcome": "p", "prediction": "p"}, "column 'p' is named both as prediction and as outcome"),
        ({"outcome": "y", "prediction": "p", "weight": "y"}, "column 'y' is named both as outcome and as weight"),
        ({"outcome": "y", "prediction": "p", "features": ["y"]}, "column 'y' is identical to the outcome"),
        ({"outcome": "y", "prediction": "p", "features": "b"}, "no column 'b' to use as feature"),
        ({"outcome": "y", "prediction": "p", "categorical": ["b"]}, "no column 'b' to use as categorical"),
        ({"outcome": "y", "prediction": "p", "task": "ranking"}, "task must be one of"),
        ({"outcome": "y", "prediction": "p", "unlabelled": "keep"}, "unlabelled must be one of"),
        (
            {"outcome": "y", "prediction": "p", "classes": ["a"]},
            "classes can only be named with several prediction columns",
        ),
        ({"outcome": "y", "prediction": ["p", "a"], "task": "binary"}, "task 'binary' takes one prediction column"),
        ({"outcome": "y", "prediction": ["p", "a"], "classes": ["x"]}, "classes must name one outcome for each of the 2"),
    ],
)
def test_roles_are_refused_as_in_memory(roles, error):
    frame = pd.DataFrame({"y": [0, 1], "p": [0.2, 0.8], "a": [0.8, 0.2]})
    with pytest.raises((ArgumentError, ColumnError)) as here:
        read(frame, **roles)
    with pytest.raises(type(here.value)) as apart:
        assign_roles(list(frame), **roles)
    assert error in str(apart.value)
    assert str(apart.value) == str(here.value)


@pytest.mark.parametrize("given", [np.array([0, 1]), pd.Series([0, 1]), [0, 1], 3])
def test_roles_are_named(given):
    with pytest.raises(ArgumentError, match="the outcome must be the name of a column; got"):
        assign_roles(["y", "p"], outcome=given, prediction="p")
    with pytest.raises(ArgumentError, match="the prediction must be the name"):
        assign_roles(["y", "p"], outcome="y", prediction=[3])


@pytest.mark.parametrize(
    "frame",
    [
        {"p": [], "y": []},
        {"p": [0.5, 0.5], "y": [0.0, 1.0], "w": [0.0, 0.0]},
        {"p": [0.5, 0.5], "y": [0.0, np.nan], "w": [0.0, 1.0]},
    ],
)
def test_no_rows_are_refused_as_in_memory(frame):
    frame = pd.DataFrame(frame)
    roles = {**ROLES, "unlabelled": "drop", "weight": "w" if "w" in frame else None}
    with pytest.raises(DataError) as here:
        read(frame, **roles)
    with pytest.raises(DataError) as apart:
        described(cut(frame, [0, 1, 1]), **roles)
    assert str(apart.value) == str(here.value)


def test_there_need_be_no_prediction():
    frame = pd.DataFrame({"y": [0.0, 3.0, 5.0], "a": list("xyz")})
    roles = {"outcome": "y", "prediction": NO_PREDICTION, "task": "regression"}
    assert described(cut(frame, [1]), **roles)[0] == read(frame, **roles).schema


def test_the_sample_is_all_rows_or_a_fair_share_of_every_part(monkeypatch):
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"p": random.random(4000), "y": 1, "a": np.arange(4000.0)})
    parts = cut(frame, [100, 1000, 1000])
    found, settled = look(parts, **ROLES)
    assert sorted(found.sample.columns["a"]) == list(range(4000))
    monkeypatch.setattr(profile, "MAX_SAMPLE_ROWS", 1000)
    some = sum_of(parts, settled)
    again = reduce(add, [TableProfile.of(parts[at], at, settled) for at in (3, 0, 2, 1)])
    drawn = some.sample.columns["a"]
    assert len(drawn) == 1000
    np.testing.assert_array_equal(drawn, again.sample.columns["a"])
    np.testing.assert_array_equal(some.sample.columns["p"], frame["p"].to_numpy()[drawn.astype(int)])
    # 750 +- 13.7 rows of the last 3000 are expected.
    assert abs((drawn >= 1000).sum() - 750) < 5 * 13.7


def test_a_sample_of_many_columns_has_fewer_rows(monkeypatch):
    monkeypatch.setattr(profile, "MAX_SAMPLE_VALUES", 1000)
    random = np.random.default_rng(1)
    frame = pd.DataFrame({f"a{at}": random.random(300) for at in range(8)}).assign(p=0.5, y=1)
    frame["a0"] = np.where(np.arange(300) < 150, None, "text")  # no numbers, which the first part does not know
    found, settled = look(cut(frame, [150, 150]), **ROLES)
    again = reduce(add, [TableProfile.of(part, at, settled) for at, part in reversed([*enumerate(cut(frame, [150, 150]))])])
    assert len(found.sample.keys) == 1000 // 10
    assert len(found.sample.columns) == 8
    np.testing.assert_array_equal(found.sample.keys, again.sample.keys)


def test_parts_tell_their_rows_and_scores():
    frame = pd.DataFrame({"p": [0.1, 0.5, 0.9, 0.3], "y": [0, 1, np.nan, 1], "a": [1, 2, np.nan, 4]})
    found, _ = look(cut(frame, [3, 3]), **ROLES, unlabelled="drop")
    assert found.partitions == {0: (3, 2, (0.1,), (0.5,)), 1: (0, 0, (), ()), 2: (1, 1, (0.3,), (0.3,))}
    assert (found.rows, found.kept, found.unlabelled) == (4, 3, 1)
    assert not found.columns["a"].has_missing
    assert found.discrete_outcomes
    soft, _ = look(cut(frame.assign(y=[0, 1, 1, 0.5]), [2]), **ROLES)
    assert not soft.discrete_outcomes
    assert soft.columns["a"].has_missing


def test_too_many_levels_are_counted_and_no_longer_held(monkeypatch):
    monkeypatch.setattr(profile, "MAX_LEVELS", 1000)
    names = [f"n{at}" for at in range(12_000)]
    found = reduce(add, [DistinctLevels(frozenset(names[at : at + 3000])).capped() for at in (0, 2000, 6000, 9000)])
    assert found.texts is None
    assert abs(len(found) - 11_000) < 5 * 0.016 * 11_000  # some are in two parts
    frame = pd.DataFrame({"p": 0.5, "y": np.arange(12_000) % 2, "id": names})
    with pytest.warns(IdentifierWarning, match="column 'id' is left out"):
        _, left_out = described(cut(frame, [500, 5000]), **ROLES)
    assert list(left_out) == ["id"]
    frame["id"] = [names[at // 4] for at in range(12_000)]
    with pytest.raises(DataError, match=r"column 'id' has about .* levels; at most 1,000 are possible"):
        described(cut(frame, [500, 5000]), **ROLES)
