"""Corrections as SQL, run in DuckDB: the scores of the model."""

import re

import numpy as np
import pytest

import exported
import trueup as tu
from sql_rows import ROW, assert_same, dated_model, hostile_model, rows
from trueup.data.table import Feature, Schema
from trueup.errors import ArgumentError
from trueup.exports.dialects import DIALECTS
from trueup.exports.lower import lower
from trueup.exports.program import Expression, Program, constant, count, where
from trueup.exports.sql import ROW_NUMBER, run_sql, write_sql, write_statements


def run(model, columns, table="scores", **options):
    text = write_sql(lower(model), table=table, keep=[ROW_NUMBER], checks=True, **options)
    return run_sql(text, columns, table)


@pytest.mark.parametrize("name", exported.MODELS)
def test_sql_returns_the_scores_of_the_model(name):
    model = exported.MODELS[name]()
    columns = rows(lower(model))
    assert_same(run(model, columns), model, columns)


@pytest.mark.parametrize("name", ["mcgrad_default", "mcgrad_trees", "lsboost", "grouped_isotonic", "mcgrad_classes"])
def test_statements_are_divided_at_the_limit(name):
    model = exported.MODELS[name]()
    columns, statements = rows(lower(model)), write_statements(lower(model), limit=8_000)
    assert len(statements) > 1
    assert max(map(len, statements)) <= 8_000
    assert_same(run(model, columns, limit=8_000), model, columns)


def test_long_lists_of_cuts_are_divided():
    model = exported.MODELS["grouped_isotonic"]()
    for dialect in DIALECTS:
        assert max(map(len, write_statements(lower(model), dialect=dialect, limit=8_000))) <= 8_000


@pytest.mark.parametrize("closed", ["left", "right"])
def test_blocks_of_cuts_count_as_one_list(closed):
    cuts = np.array([-np.inf, *np.linspace(-1, 1, 101), np.inf])
    schema = Schema("regression", None, ("p",), None, (Feature("x", "numeric"),))
    counted = count(Expression("numbers", "float", 1), [cuts], closed)
    score = Expression("scores", "float", 1)
    program = Program(schema, score, constant(np.array([True])), (counted,), (np.zeros(0),), {"x": cuts})
    x = np.concatenate([cuts, np.nextafter(cuts, 3), np.nextafter(cuts, -3), [np.nan, 1e300]])
    scores = np.zeros(len(x))
    expected = program.evaluate(scores[:, None], x[:, None], np.zeros((len(x), 0), np.int64))[counted]
    found = [
        run_sql(write_sql(program, keep=[ROW], checks=True, limit=limit), {"p": scores, "x": x}, "scores")
        for limit in (8_000, 200_000)
    ]
    np.testing.assert_array_equal(found[0][:, 1:], expected)
    np.testing.assert_array_equal(found[1][:, 1:], expected)


def test_levels_and_names_are_inert():
    model = hostile_model()
    table = "ta\"ble'; --"
    columns = rows(lower(model))
    assert_same(run(model, columns, table=table), model, columns)
    assert_same(run(model, columns, table=table, limit=8_000), model, columns)


def test_internal_names_do_not_clash_with_those_of_the_table():
    model = hostile_model(("v1", "c", "trueup_levels_0"))
    columns = rows(lower(model))
    assert_same(run(model, columns, table="TRUEUP_1"), model, columns)


def test_dates_are_days():
    model = dated_model()
    assert model.schema.features[0].kind == "date"
    assert len(lower(model).number_cuts["day"])
    columns = rows(lower(model))
    assert_same(run(model, columns), model, columns)


def test_numbers_of_other_types_are_cast():
    model = exported.MODELS["mcgrad_tables"]()
    columns = rows(lower(model))
    columns["age"] = np.ma.masked_array(
        np.random.default_rng(0).integers(18, 80, len(columns["p"])), np.arange(len(columns["p"])) % 7 == 0
    )
    floats = columns | {"age": columns["age"].astype(float).filled(np.nan)}
    assert_same(run(model, columns), model, floats)


def test_null_scores_and_numbers_are_missing():
    model = exported.MODELS["mcgrad_default"]()
    columns = rows(lower(model))
    nulls = {name: np.ma.masked_invalid(column) if column.dtype.kind == "f" else column for name, column in columns.items()}
    known = {
        name: np.where(np.isinf(column), np.nan, column) if column.dtype.kind == "f" else column
        for name, column in columns.items()
    }
    assert_same(run(model, nulls), model, known)


def test_columns_of_the_model_are_kept_by_default():
    text = write_sql(lower(exported.MODELS["mcgrad_tables"]()))
    assert re.findall(r'AS ("\w+")', text.rpartition("SELECT")[2]) == [
        '"p"',
        '"country"',
        '"age"',
        '"income"',
        '"device"',
        '"p_trueup"',
    ]


def test_a_table_may_have_a_schema():
    assert 'FROM "sales"."scores" AS t' in write_sql(lower(exported.MODELS["platt"]()), table="sales.scores")


def with_columns(features, levels=("a", "b")):
    """Return a correction by columns of these names, the first of which is a category."""
    kinds = [Feature(features[0], "categorical", levels), *(Feature(name, "numeric") for name in features[1:])]
    code, score = Expression("codes", "int", 1), Expression("scores", "float", 1)
    result = where(code.equals(1), constant(0.5), score)
    return Program(Schema("binary", None, ("p",), None, tuple(kinds)), result, constant(True), (), (np.zeros(0),), {})


def test_names_that_differ_only_by_case_are_rejected_where_sql_ignores_case():
    for names in (["Age", "age"], ["P"]):
        for dialect in ("duckdb", "bigquery", "spark"):
            with pytest.raises(ArgumentError, match="whose names differ only by case"):
                write_sql(with_columns(names), dialect=dialect)
        assert f't."{names[0]}"' in write_sql(with_columns(names), dialect="postgres")


def test_levels_that_are_no_text_are_rejected():
    for dialect in DIALECTS:
        with pytest.raises(ArgumentError, match="column 'g' has a level that is no valid text"):
            write_sql(with_columns(["g"], ("\ud800", "b")), dialect=dialect)


def test_booleans_dates_and_numbers_are_read_in_their_own_types():
    rng = np.random.default_rng(0)
    rows = 2_000
    data = {
        "p": rng.beta(1, 3, rows), "flag": rng.random(rows) < 0.5, "kind": rng.integers(0, 4, rows), "i": rng.integers(-5, 5, rows),
        "day": (np.datetime64("2024-01-01") + rng.integers(0, 700, rows)).astype("datetime64[us]"),
    }  # fmt: skip
    late = data["day"] > np.datetime64("2025-01-01")
    y = np.clip(data["p"] + 0.2 * data["flag"] - 0.1 * late + 0.2 * (data["kind"] == 2), 0, 1) > rng.random(rows)
    fix = tu.MCGrad("p", list(data)[1:], categorical=["kind"], stopping=None, rounds=1, trees=10).fit(data, y)
    assert [feature.kind for feature in fix.model_.schema.features] == ["categorical", "categorical", "numeric", "date"]
    found = run(fix.model_, data)
    np.testing.assert_allclose(found[:, 0], fix.predict(data), rtol=0, atol=4e-16)


def test_wrong_arguments_are_rejected():
    program = lower(exported.MODELS["platt"]())
    with pytest.raises(ArgumentError, match="dialect"):
        write_sql(program, dialect="oracle")
    with pytest.raises(ArgumentError, match="limit must be an integer at least 8,000"):
        write_sql(program, limit=100)
    with pytest.raises(ArgumentError, match="two columns of the result would be called 'p_trueup'"):
        write_sql(program, keep=["p_trueup"])
    with pytest.raises(ArgumentError, match="cannot name a column"):
        write_sql(program, keep=["a\0b"])
    with pytest.raises(ArgumentError, match="is a variable"):
        write_sql(program, dialect="spark", keep=["${x}"])


@pytest.mark.parametrize(
    ("dialect", "value", "literal"),
    [
        ("duckdb", 0.1, "0.1e0"),
        ("duckdb", -2.0, "(-2e0)"),
        ("duckdb", 1e-7, "1e-07"),
        ("postgres", 0.1, "'0.1'::float8"),
        ("postgres", -np.inf, "'-Infinity'::float8"),
        ("bigquery", 0.1, "0.1e0"),
        ("bigquery", np.inf, "CAST('Infinity' AS FLOAT64)"),
        ("spark", 0.1, "0.1e0D"),
        ("spark", -1e300, "(-1e+300D)"),
    ],
)
def test_floats_are_literals_that_are_read_back_exactly(dialect, value, literal):
    assert DIALECTS[dialect].number(value) == literal


@pytest.mark.parametrize(
    ("dialect", "literal", "name"),
    [
        ("duckdb", "'a''b\\`\"${x}\n'", '"a\'b\\`""${x}\n"'),
        ("postgres", "E'a''b\\\\`\"${x}\n'", '"a\'b\\`""${x}\n"'),
        ("bigquery", "'a\\'b\\\\`\"${x}\\u000a'", "`a\\'b\\\\\\`\"${x}\\u000a`"),
        ("spark", "'a\\'b\\\\`\"\\u0024{x}\\u000a'", None),
    ],
)
def test_texts_and_names_are_quoted_by_dialect(dialect, literal, name):
    text = "a'b\\`\"${x}\n"
    assert DIALECTS[dialect].text(text) == literal
    if name is not None:
        assert DIALECTS[dialect].identifier(text) == name


def test_bigquery_has_its_own_functions():
    text = write_sql(lower(exported.MODELS["mcgrad_default"]()), dialect="bigquery", table="project.data.scores")
    assert "FROM `project`.`data`.`scores` AS t" in text
    assert re.search(r"COALESCE\(RANGE_BUCKET\(v\d+, ARRAY<FLOAT64>\[[-0-9e., ()+]+\]\), \d+\)", text)
    assert re.search(r"ARRAY<FLOAT64>\[[-0-9e., ()+]+\]\[OFFSET\(", text)
    assert "IF(IS_NAN(" in text
    assert "LEAST(GREATEST((-abs(" in text  # an exponential that underflows would be an error
    assert not re.search(r"VARCHAR|DOUBLE|::", text)


def test_scripts_for_bigquery_have_tables():
    statements = write_statements(lower(exported.MODELS["mcgrad_default"]()), dialect="bigquery", limit=8_000, keep=())
    assert statements[0].startswith(
        "CREATE OR REPLACE TEMP TABLE trueup_cells_float_part_0 AS\nSELECT * FROM UNNEST(ARRAY<STRUCT<a INT64, i INT64, v FLOAT64>>[(0, 0, "
    )
    assert "ARRAY_AGG(IF(a = 0, v, NULL) IGNORE NULLS ORDER BY i) AS a0" in "".join(statements)
    assert not any("VIEW" in statement for statement in statements)


def test_many_levels_are_joined_in_bigquery():
    text = write_sql(lower(hostile_model()), dialect="bigquery", keep=())
    assert "SELECT * FROM UNNEST(ARRAY<STRUCT<k STRING, c INT64>>[('', 1), ('\\u001a', 2), " in text
    assert '\nLEFT JOIN trueup_levels_0 ON trueup_levels_0.k = CAST(t.`le"vel; DROP TABLE "x" --` AS STRING)' in text


def test_the_row_number_has_one_name():
    assert ROW == ROW_NUMBER
