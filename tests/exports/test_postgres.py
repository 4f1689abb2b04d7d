"""Corrections as SQL in a real PostgreSQL: the scores of the model."""

import os

import numpy as np
import pytest

import exported
import postgres
from sql_rows import ROW, as_csv, assert_same, dated_model, hostile_model, rows
from trueup.exports.dialects import DIALECTS
from trueup.exports.lower import lower
from trueup.exports.sql import write_statements

MODELS = [
    "mcgrad_tables", "mcgrad_trees", "mcgrad_default", "mcgrad_classes", "mcgrad_logits", "lsboost_lines", "hkrr", "isotonic",
    "isotonic_of_classes", "grouped_isotonic", "matrix", "logistic", "prior", "regression", "temperature_of_classes",
]  # fmt: skip
TYPES = {"f": "float8", "O": "text", "M": "timestamp", "i": "int"}


@pytest.fixture(scope="module")
def server():
    if postgres.binaries() is None:
        reason = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    with postgres.server() as running:
        yield running


def run(server, model, columns, table="scores", limit=200_000):
    """Copy rows into a table, run the SQL on it, and return the numbers that it selects, in the order of the rows."""
    dialect, names = DIALECTS["postgres"], (ROW, *columns)
    kinds = ["int", *(TYPES[column.dtype.kind] for column in columns.values())]
    typed = ", ".join(f"{dialect.identifier(name)} {kind}" for name, kind in zip(names, kinds, strict=True))
    *before, last = write_statements(lower(model), dialect="postgres", table=table, keep=[ROW], checks=True, limit=limit)
    script = [f"CREATE TEMP TABLE {dialect.table(table)} ({typed});\nCOPY {dialect.table(table)} FROM STDIN (FORMAT csv);"]
    script += [as_csv(columns) + "\\."]
    script += ["SET client_min_messages = warning;", *(f"{statement};" for statement in before)]
    script += [f"COPY ({last}) TO STDOUT (FORMAT csv);"]
    lines = [line.split(",") for line in server.query("\n".join(script)).splitlines()]
    found = np.array([[float(value or "nan") for value in line] for line in lines])
    return found[np.argsort(found[:, 0]), 1:]


@pytest.mark.parametrize("name", MODELS)
def test_postgres_returns_the_scores_of_the_model(server, name):
    model = exported.MODELS[name]()
    columns = rows(lower(model), 200)
    assert_same(run(server, model, columns), model, columns, tiny=1e-300)  # smaller scores are 0: underflow is an error


@pytest.mark.parametrize("name", ["mcgrad_default", "grouped_isotonic"])
def test_statements_are_divided_at_the_limit(server, name):
    model = exported.MODELS[name]()
    columns = rows(lower(model), 200)
    assert_same(run(server, model, columns, limit=8_000), model, columns)


def test_levels_and_names_are_inert(server):
    model = hostile_model()
    columns = rows(lower(model))
    text = next(name for name, column in columns.items() if column.dtype.kind == "O")
    columns[text] = np.where(
        columns[text] == "nul\0byte", "unseen", columns[text]
    )  # no text of PostgreSQL has this character
    assert_same(run(server, model, columns, table="ta\"ble'; --"), model, columns)


def test_dates_are_days(server):
    model = dated_model()
    columns = rows(lower(model))
    assert_same(run(server, model, columns), model, columns)
