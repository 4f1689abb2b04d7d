"""Frames, dicts and arrays are read into the same Table."""

from __future__ import annotations

import datetime as dt
import decimal

import numpy as np
import pytest

from trueup.data.columns import frame_like, to_jsonable
from trueup.data.frame import read, read_like
from trueup.data.table import Feature
from trueup.errors import ColumnError, OneClassWarning

BASE = {"y": [0, 1, 0, 1], "p": [0.1, 0.2, 0.3, 0.4]}


def _read(data, **roles):
    return read(data, **{"outcome": "y", "prediction": "p", **roles})


def test_every_library_gives_the_same_columns(frame):
    table = _read(
        frame(
            {
                **BASE,
                "text": ["b", "a", None, "b"],
                "number": [1.5, None, 2.0, 3.0],
                "whole": [1, 2, 3, None],
                "flag": [True, None, False, True],
                "time": [dt.datetime(2024, 1, 1, 12), None, dt.datetime(2024, 5, 1), dt.datetime(1969, 12, 31)],
                "date": [dt.date(2024, 1, 1), None, dt.date(2024, 5, 1), dt.date(1970, 1, 2)],
            }
        )
    )
    assert table.columns["text"].tolist() == [1, 0, -1, 1]
    assert table.columns["flag"].tolist() == [1, -1, 0, 1]
    np.testing.assert_array_equal(table.columns["number"], [1.5, np.nan, 2, 3])
    np.testing.assert_array_equal(table.columns["whole"], [1, 2, 3, np.nan])
    np.testing.assert_array_equal(table.columns["time"], [19723.5, np.nan, 19844, -1])
    np.testing.assert_array_equal(table.columns["date"], [19723, np.nan, 19844, 1])
    kinds = {feature.name: (feature.kind, feature.levels) for feature in table.schema.features}
    assert kinds["text"] == ("categorical", ("a", "b"))
    assert kinds["flag"] == ("categorical", ("false", "true"))
    assert kinds["time"] == kinds["date"] == ("date", ())
    assert kinds["number"] == kinds["whole"] == ("numeric", ())


def test_a_dict_of_arrays_reads_like_a_frame(frame, scored):
    from_dict, from_frame = _read(scored), _read(frame(scored))
    assert from_dict.schema == from_frame.schema
    for name, column in from_dict.columns.items():
        np.testing.assert_array_equal(column, from_frame.columns[name])


def test_pandas_categories_lose_unused_levels_and_their_order():
    pd = pytest.importorskip("pandas")
    data = pd.DataFrame({**BASE, "c": pd.Categorical(["z", "a", None, "z"], categories=["z", "m", "a"], ordered=True)})
    table = _read(data)
    assert table.schema.features[0].levels == ("a", "z")
    assert table.columns["c"].tolist() == [1, 0, -1, 1]


def test_polars_and_pyarrow_categories_keep_nulls():
    pl, pa = pytest.importorskip("polars"), pytest.importorskip("pyarrow")
    texts = ["z", "a", None, "z"]
    data = pl.DataFrame(
        {**BASE, "c": pl.Series(texts, dtype=pl.Categorical), "e": pl.Series(texts, dtype=pl.Enum(["z", "q", "a"]))}
    )
    coded = pa.chunked_array([pa.array(texts[:2]).dictionary_encode(), pa.array(texts[2:]).dictionary_encode()])
    arrow = pa.table({**BASE, "c": coded, "e": pa.DictionaryArray.from_arrays([0, 1, 2, 0], ["z", "a", None])})
    for table in (_read(data), _read(arrow)):
        for name in "ce":
            assert table.columns[name].tolist() == [1, 0, -1, 1]
        assert [feature.levels for feature in table.schema.features] == [("a", "z")] * 2


def test_times_with_a_zone_keep_their_clock_time():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    times = [dt.datetime(2024, 1, 1, 23)] * 4
    in_pandas = pd.DataFrame({**BASE, "t": pd.Series(times).dt.tz_localize("America/Sao_Paulo")})
    in_polars = pl.DataFrame({**BASE, "t": pl.Series(times).dt.replace_time_zone("America/Sao_Paulo")})
    for data in (in_pandas, in_polars):
        np.testing.assert_allclose(_read(data).columns["t"], 19723 + 23 / 24)


def test_python_objects_are_read_by_their_type():
    columns = {
        **BASE,
        "flag": np.array([True, None, False, True], object),
        "money": np.array([decimal.Decimal("1.5"), None, 2, 3.0], object),
        "day": np.array([dt.date(1970, 1, 2), None, dt.date(1970, 1, 3), float("nan")], object),
        "mixed": np.array([1, "1", None, "b"], object),
    }
    table = _read(columns)
    assert table.columns["flag"].tolist() == [1, -1, 0, 1]
    np.testing.assert_array_equal(table.columns["money"], [1.5, np.nan, 2, 3])
    np.testing.assert_array_equal(table.columns["day"], [1, np.nan, 2, np.nan])
    assert table.columns["mixed"].tolist() == [0, 0, -1, 1]


def test_integers_can_be_read_as_categories(frame):
    data = frame({**BASE, "zip": [10, 9, None, 10]})
    table = _read(data, categorical=["zip"])
    assert table.schema.features[0] == Feature("zip", "categorical", ("9", "10"))
    assert table.columns["zip"].tolist() == [1, 0, -1, 1]


def test_an_unseen_level_is_read_as_missing(frame):
    old = _read(frame({**BASE, "c": ["a", "b", "a", "b"]}))
    new = _read(frame({**BASE, "c": ["b", "new", None, "a"]}), schema=old.schema)
    assert new.columns["c"].tolist() == [1, -1, -1, 0]


def test_a_column_of_another_kind_is_rejected():
    old = _read({**BASE, "c": [1.0, 2.0, 3.0, 4.0]})
    with pytest.raises(ColumnError, match="column 'c' was numeric and now holds texts"):
        _read({**BASE, "c": ["a", "b", "c", "d"]}, schema=old.schema)


def test_columns_of_an_array_are_named_by_position():
    array = np.column_stack([BASE["p"], BASE["y"], [5, 6, 7, 8]])
    table = read(array, outcome=1)
    assert table.prediction.tolist() == BASE["p"]
    assert list(table.columns) == ["x2"]
    assert read(array, outcome=-2, prediction=0, features=[2]).schema == table.schema


def test_a_one_dimensional_array_is_the_prediction():
    table = read(np.array(BASE["p"]), outcome=BASE["y"])
    assert table.prediction.tolist() == BASE["p"]
    assert table.outcome.tolist() == BASE["y"]
    assert not table.columns


def test_outcome_and_weight_can_be_arrays(frame):
    pd = pytest.importorskip("pandas")
    table = read(frame({"p": BASE["p"]}), outcome=pd.Series(BASE["y"]), prediction="p", weight=[1, 2, 3, 4])
    assert table.outcome.tolist() == BASE["y"]
    assert table.weight.tolist() == [1, 2, 3, 4]


def test_unlabelled_rows_and_rows_of_weight_zero_are_dropped_and_counted(frame):
    data = frame({"y": [0, None, 1, 1, None], "p": [0.1, 0.2, 0.3, 0.4, 0.5], "w": [1, 1, 0, 2, 0], "c": list("abcde")})
    table = _read(data, weight="w", unlabelled="drop")
    assert table.kept.tolist() == [0, 3]
    assert (table.unlabelled, table.weightless) == (2, 1)
    assert table.prediction.tolist() == [0.1, 0.4]
    assert table.columns["c"].tolist() == [0, 1]
    assert table.schema.features[0].levels == ("a", "d"), "a level of rows that were left out is no level"


def test_reading_neither_changes_nor_shares_the_input(scored):
    before = {name: column.copy() for name, column in scored.items()}
    table = _read(scored)
    for array in (table.prediction, table.outcome, *table.columns.values()):
        array[:] = 0
    for name, column in scored.items():
        np.testing.assert_array_equal(column, before[name])


def test_classes_are_found_by_name_prefix_position_or_argument():
    p = {"p_cat": [0.5, 0.2, 0.9], "p_dog": [0.5, 0.8, 0.1]}
    names = list(p)
    for outcome, classes in (
        (["cat", "dog", "cat"], None),
        (["p_cat", "p_dog", "p_cat"], None),
        ([0, 1, 0], None),
        (["K", "H", "K"], ["K", "H"]),
    ):
        table = read({**p, "y": outcome}, outcome="y", prediction=names, classes=classes)
        assert table.outcome.tolist() == [0, 1, 0]
        assert table.schema.task == "multiclass"


def test_class_probabilities_can_be_single_precision():
    p = np.array([[0.3, 0.7], [0.1, 0.9]], np.float32)
    table = read({"a": p[:, 0], "b": p[:, 1], "y": ["a", "b"]}, outcome="y", prediction=["a", "b"])
    np.testing.assert_array_equal(table.prediction, p.astype(float))


def test_classes_can_be_numbers_or_booleans():
    p = {"q0": [0.5, 0.2, 0.9], "q1": [0.5, 0.8, 0.1]}
    for outcome, classes in (([0, 1, 0], [0.0, 1.0]), ([False, True, False], [False, True]), ([0, 1, 0], np.array([0, 1]))):
        table = read({**p, "y": outcome}, outcome="y", prediction=["q0", "q1"], classes=classes)
        assert table.outcome.tolist() == [0, 1, 0]


def test_a_column_without_values_is_all_missing(frame):
    table = _read(frame({**BASE, "empty": [None] * 4}))
    column = table.columns["empty"]
    assert (np.isnan(column) | (column < 0)).all()


def test_a_series_is_the_prediction():
    pd, pl = pytest.importorskip("pandas"), pytest.importorskip("polars")
    for series in (pd.Series(BASE["p"]), pl.Series(BASE["p"])):
        assert read(series, outcome=BASE["y"]).prediction.tolist() == BASE["p"]


def test_pandas_columns_can_be_named_by_tuples():
    pd = pytest.importorskip("pandas")
    data = pd.DataFrame({("a", "y"): BASE["y"], ("a", "p"): BASE["p"], ("b", "c"): ["u", "v", "u", "v"]})
    table = read(data, outcome=("a", "y"), prediction=("a", "p"), features=[("b", "c")])
    assert list(table.columns) == ["('b', 'c')"]


def test_values_become_jsonable():
    assert to_jsonable({"a": np.array([1.5, np.inf]), "b": (np.int64(2), float("nan"))}) == {
        "a": [1.5, None],
        "b": [2, None],
    }


def test_frame_like_uses_the_library_of_another_frame(frame):
    like = frame({"a": [1]})
    created = frame_like({"n": np.array([1, 2]), "s": np.array(["x", None], object)}, like)
    assert type(created) is type(like)
    assert frame_like({"n": np.array([1])}, {"a": 1}) == {"n": np.array([1])}


def test_a_single_class_raises_a_warning():
    with pytest.warns(OneClassWarning, match=r"every outcome in column 'y' is 1 \(2 rows\)"):
        table = _read({"y": [1, 1], "p": [0.5, 0.6]})
    assert len(table) == 2


def test_column_names_can_be_numbers():
    pd = pytest.importorskip("pandas")
    table = read(pd.DataFrame(np.column_stack([BASE["p"], BASE["y"], [5, 6, 7, 8]])), outcome=1, prediction=0)
    assert list(table.columns) == ["2"]
    assert table.prediction.tolist() == BASE["p"]


def test_integers_beyond_float_precision_are_distinct_categories(frame):
    near = [2**60, 2**60 + 1, None, 2**60 + 1]
    plain = {**BASE, "id": np.ma.array([2**60, 2**60 + 1, 0, 2**60 + 1], mask=[0, 0, 1, 0])}
    import_pandas = pytest.importorskip("pandas")
    nullable = import_pandas.DataFrame({**BASE, "id": import_pandas.array(near, dtype="Int64")})
    frames = [plain, nullable] if frame.__name__ == "_pandas" else [frame({**BASE, "id": near})]
    for data in frames:
        table = _read(data, categorical=["id"])
        assert table.schema.features[0].levels == (str(2**60), str(2**60 + 1))
        assert table.columns["id"].tolist() == [0, 1, -1, 1]


def test_scores_can_be_arrays(scored):
    by_name = _read(scored)
    given = {name: column for name, column in scored.items() if name != "p"}
    assert read(given, outcome="y", prediction=scored["p"]).prediction.tolist() == by_name.prediction.tolist()
    two = np.column_stack([scored["p"], 1 - scored["p"]])
    table = read(given, outcome=1 - scored["y"], prediction=two)
    assert table.schema.classes == ("0", "1")
    assert table.prediction.shape == (200, 2)


def test_scores_as_arrays_hide_no_column_of_the_same_name(scored):
    data = {"prediction": scored["age"], "0": scored["country"], "y": scored["y"]}
    assert list(read(data, outcome="y", prediction=scored["p"]).columns) == ["prediction", "0"]
    classes = np.column_stack([scored["p"], 1 - scored["p"]])
    assert list(read(data, outcome="y", prediction=classes).columns) == ["prediction", "0"]
    array = np.column_stack([scored["age"], scored["y"]])
    table = read(array, outcome=1, prediction=scored["p"])
    assert (table.schema.prediction, list(table.columns)) == (("prediction",), ["x0"])


def test_names_can_be_in_any_collection(scored):
    pd = pytest.importorskip("pandas")
    for names in (
        ["age", "new"],
        ("age", "new"),
        pd.Index(["age", "new"]),
        np.array(["age", "new"]),
        (n for n in ["age", "new"]),
    ):
        assert list(_read(scored, features=names).columns) == ["age", "new"]
    assert list(_read(scored, features="age").columns) == ["age"]


def test_dates_read_as_categories_are_read_the_same_way_again(frame):
    days = [dt.date(2024, 1, 2), dt.date(2024, 1, 1)]
    data = frame({"p": [0.1, 0.2], "y": [0, 1], "day": days})
    table = read(data, outcome="y", prediction="p", categorical=["day"])
    assert table.schema.features[0].levels == ("2024-01-01", "2024-01-02")
    assert read_like(data, table.schema).columns["day"].tolist() == [1, 0]
