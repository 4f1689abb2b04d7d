"""Profiles of partitions add up to the schema of all rows."""

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


def profile_partitions(partitions, **roles):
    """Profile every partition, pickled as between machines; return the sum of the profiles and the roles."""
    assigned = assign_roles([str(name) for name in column_names(partitions[0])], **roles)
    return total_profile(partitions, assigned), assigned


def column_names(frame):
    return frame.column_names if isinstance(frame, pa.Table) else frame.columns


def total_profile(partitions, assigned):
    result = [
        pickle.loads(pickle.dumps(TableProfile.of(partition, number, assigned)))
        for number, partition in enumerate(partitions)
    ]
    return reduce(add, result)


def describe_partitions(partitions, **roles):
    result, assigned = profile_partitions(partitions, **roles)
    return result.describe(assigned)


def expected_schema(frame, **roles):
    """The schema of all rows at once, the columns that were left out, and the warnings of identifiers."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        table = read(frame, **roles)
    return (table.schema, dict(table.left_out)), sorted(str(w.message) for w in seen if w.category is IdentifierWarning)


def make_frame(rows, seed):
    random = np.random.default_rng(seed)
    days = pd.Timestamp("2021-03-01") + pd.to_timedelta(random.integers(0, 40, rows), "D")
    frame = pd.DataFrame({
        "p": random.uniform(0, 1, rows),
        "y": random.integers(0, 2, rows).astype(float),
        "w": random.choice([0.0, 2.0, 2.5], rows),
        "text": random.choice(np.array(["b", "a", "10", None], object), rows),
        "rare": np.where(random.random(rows) < 0.05, "seldom", None),
        "number": np.where(random.random(rows) < 0.2, np.nan, random.normal(size=rows)),
        "whole": random.integers(-3, 12, rows),
        "flag": random.random(rows) < 0.5,
        "maybe": random.choice(np.array([True, False, None], object), rows),
        "day": days,
        "nothing": np.full(rows, np.nan),
        "void": np.full(rows, None),
        "name": [f"customer {number}" for number in range(rows)],
        "kind": pd.Categorical(random.choice(["x", "y", "z"], rows), categories=["z", "y", "x", "unused"]),
    })  # fmt: skip
    frame.loc[random.random(rows) < 0.1, "y"] = np.nan
    return frame


def split(frame, places):
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
def test_partitions_have_the_schema_of_all_rows(rows, seed, places, weighted, categorical, arrow):
    frame = make_frame(rows, seed)
    frame.loc[0, ["y", "w"]] = [1.0, 2.0]  # at least one row is kept, and the weight is no copy of the outcome
    frame.loc[1, ["y", "w"]] = np.nan, 0.0
    roles = {**ROLES, "unlabelled": "drop", "weight": "w" if weighted else None, "categorical": categorical}
    partitions = split(frame, places)
    if arrow:
        frame, partitions = (
            pa.Table.from_pandas(frame),
            [pa.Table.from_pandas(partition, preserve_index=False) for partition in partitions],
        )
        frame = frame.select([name for name in frame.column_names if not name.startswith("__")])
    expected, messages = expected_schema(frame, **roles)
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        assert describe_partitions(partitions, **roles) == expected
    assert sorted(str(w.message) for w in seen) == messages


def test_a_column_without_values_has_the_type_of_the_first_partition_with_rows():
    none, number, flag = ColumnProfile(None, None, 0), ColumnProfile(None, "number", 1), ColumnProfile(None, "flag", 2)
    for a, b, c in itertools.permutations([none, number, flag]):
        assert a.merge(b, "x").merge(c, "x").empty_kind == a.merge(b.merge(c, "x"), "x").empty_kind == "number"


@given(places=st.lists(st.integers(0, 60), max_size=5), seed=st.integers(0, 100))
def test_partitions_without_dropped_rows_have_the_schema_of_all_rows(places, seed):
    frame = make_frame(60, seed).assign(y=1.0).drop(columns=["name", "w"])
    expected, _ = expected_schema(frame.assign(y=np.arange(60) % 2.0), **ROLES)
    assert describe_partitions(split(frame.assign(y=np.arange(60) % 2.0), places), **ROLES) == expected


@pytest.mark.parametrize("labels", [["cat", "dog", "elk"], [0, 1, 2], [False, True, None]])
def test_classes_are_those_of_all_partitions(labels):
    outcomes = [labels[number] for number in (0, 0, 0, 1, 1, 2, 2, 1)]
    scores = {f"p_{item}": np.full(8, 1 / 3) for item in ("cat", "dog", "elk")}
    frame = pd.DataFrame({"y": pd.Series(outcomes, dtype=object), **scores, "a": list("xyxyxyzz")})
    roles = {"outcome": "y", "prediction": list(scores), "unlabelled": "drop"}
    if labels[0] is False:
        roles["classes"] = [False, True, "other"]
    expected, _ = expected_schema(frame, **roles)
    assert describe_partitions(split(frame, [3, 3, 5, 7]), **roles) == expected
    assert expected[0].classes


def test_categories_of_partitions_are_united():
    partitions = [
        pd.DataFrame({"p": [0.1, 0.2], "y": [0, 1], "c": pd.Categorical(pair)}) for pair in (["a", "b"], ["z", "b"])
    ]
    schema, _ = describe_partitions(partitions, **ROLES)
    assert schema.features[0].levels == ("a", "b", "z")


def test_a_column_of_two_kinds_is_rejected():
    partitions = [pd.DataFrame({"p": [0.1], "y": [0], "c": column}) for column in ([None], ["x"], [1.5])]
    with pytest.raises(ColumnError, match="column 'c' holds texts in partition 1 and numbers in partition 2"):
        profile_partitions(partitions, **ROLES)


def test_the_error_for_a_bad_row_names_its_partition():
    partitions = [pd.DataFrame({"p": [0.1, 0.2], "y": [0, 1]}), pd.DataFrame({"p": [0.5, 1.5], "y": [0, 1]})]
    with pytest.raises(DataError, match=r"probabilities in \[0, 1\]; got 1.5 at row 1 of partition 1\n"):
        profile_partitions(partitions, **ROLES)
    partitions[1]["p"] = [None, None]
    with pytest.raises(DataError, match="must hold finite numbers; got nan at row 0 of partition 1\n"):
        profile_partitions(partitions, **ROLES)


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
def test_roles_are_rejected_as_in_memory(roles, error):
    frame = pd.DataFrame({"y": [0, 1], "p": [0.2, 0.8], "a": [0.8, 0.2]})
    with pytest.raises((ArgumentError, ColumnError)) as here:
        read(frame, **roles)
    with pytest.raises(type(here.value)) as apart:
        assign_roles(list(frame), **roles)
    assert error in str(apart.value)
    assert str(apart.value) == str(here.value)


@pytest.mark.parametrize("given", [np.array([0, 1]), pd.Series([0, 1]), [0, 1], 3])
def test_roles_must_be_column_names(given):
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
def test_partitions_without_rows_are_rejected_as_in_memory(frame):
    frame = pd.DataFrame(frame)
    roles = {**ROLES, "unlabelled": "drop", "weight": "w" if "w" in frame else None}
    with pytest.raises(DataError) as here:
        read(frame, **roles)
    with pytest.raises(DataError) as apart:
        describe_partitions(split(frame, [0, 1, 1]), **roles)
    assert str(apart.value) == str(here.value)


def test_the_prediction_is_optional():
    frame = pd.DataFrame({"y": [0.0, 3.0, 5.0], "a": list("xyz")})
    roles = {"outcome": "y", "prediction": NO_PREDICTION, "task": "regression"}
    assert describe_partitions(split(frame, [1]), **roles)[0] == read(frame, **roles).schema


def test_the_sample_has_all_rows_or_a_random_share_of_every_partition(monkeypatch):
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"p": random.random(4000), "y": 1, "a": np.arange(4000.0)})
    partitions = split(frame, [100, 1000, 1000])
    result, assigned = profile_partitions(partitions, **ROLES)
    assert sorted(result.sample.columns["a"]) == list(range(4000))
    monkeypatch.setattr(profile, "MAX_SAMPLE_ROWS", 1000)
    some = total_profile(partitions, assigned)
    reordered = reduce(add, [TableProfile.of(partitions[number], number, assigned) for number in (3, 0, 2, 1)])
    drawn = some.sample.columns["a"]
    assert len(drawn) == 1000
    np.testing.assert_array_equal(drawn, reordered.sample.columns["a"])
    np.testing.assert_array_equal(some.sample.columns["p"], frame["p"].to_numpy()[drawn.astype(int)])
    # 750 +- 13.7 rows of the last 3000 are expected.
    assert abs((drawn >= 1000).sum() - 750) < 5 * 13.7


def test_a_sample_of_many_columns_has_fewer_rows(monkeypatch):
    monkeypatch.setattr(profile, "MAX_SAMPLE_VALUES", 1000)
    random = np.random.default_rng(1)
    frame = pd.DataFrame({f"a{number}": random.random(300) for number in range(8)}).assign(p=0.5, y=1)
    frame["a0"] = np.where(np.arange(300) < 150, None, "text")  # texts, which the first partition cannot know
    result, assigned = profile_partitions(split(frame, [150, 150]), **ROLES)
    reordered = reduce(
        add,
        [
            TableProfile.of(partition, number, assigned)
            for number, partition in reversed([*enumerate(split(frame, [150, 150]))])
        ],
    )
    assert len(result.sample.keys) == 1000 // 10
    assert len(result.sample.columns) == 8
    np.testing.assert_array_equal(result.sample.keys, reordered.sample.keys)


def test_a_profile_counts_rows_and_describes_columns():
    frame = pd.DataFrame({"p": [0.1, 0.5, 0.9, 0.3], "y": [0, 1, np.nan, 1], "a": [1, 2, np.nan, 4]})
    result, _ = profile_partitions(split(frame, [3, 3]), **ROLES, unlabelled="drop")
    assert (result.rows, result.kept, result.unlabelled) == (4, 3, 1)
    assert not result.columns["a"].has_missing
    assert result.discrete_outcomes
    soft, _ = profile_partitions(split(frame.assign(y=[0, 1, 1, 0.5]), [2]), **ROLES)
    assert not soft.discrete_outcomes
    assert soft.columns["a"].has_missing


def test_too_many_levels_are_only_counted(monkeypatch):
    monkeypatch.setattr(profile, "MAX_LEVELS", 1000)
    names = [f"n{number}" for number in range(12_000)]
    result = reduce(
        add, [DistinctLevels(frozenset(names[number : number + 3000])).capped() for number in (0, 2000, 6000, 9000)]
    )
    assert result.texts is None
    assert abs(len(result) - 11_000) < 5 * 0.016 * 11_000  # some are in two partitions
    frame = pd.DataFrame({"p": 0.5, "y": np.arange(12_000) % 2, "id": names})
    with pytest.warns(IdentifierWarning, match="column 'id' is left out"):
        _, left_out = describe_partitions(split(frame, [500, 5000]), **ROLES)
    assert list(left_out) == ["id"]
    frame["id"] = [names[number // 4] for number in range(12_000)]
    with pytest.raises(DataError, match=r"column 'id' has about .* levels; at most 1,000 are possible"):
        describe_partitions(split(frame, [500, 5000]), **ROLES)
