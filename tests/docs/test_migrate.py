"""The page for users of mcgrad: every public name and parameter has a row, and the code of every row runs."""

from __future__ import annotations

import doctest
import re
import warnings

import numpy as np
import pytest

import trueup as tu
from mcgrad_names import SECTION, TEXT, public_names, row_code, row_names, table_rows
from trueup.calibrators.base import Calibrator

NONE = "no counterpart"
ROWS_OF_DATA = 2_500  # of fewer, fits are repeated
HEADINGS = {
    "base": "Fit and predict", "methods": "Fit and predict", "metrics": "Measures", "plotting": "Plots", "tuning": "Tuning",
    "tutorials": "Tutorial helpers",
}  # fmt: skip


ROWS = table_rows()


@pytest.fixture(scope="module")
def namespace(tmp_path_factory):
    """The names that the blocks of the section define, and fewer rows of data, so that fits are quick."""
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    names = {}
    for example in doctest.DocTestParser().get_examples(TEXT[: TEXT.index("## From netcal")]):
        source = example.source.replace("10_000", str(ROWS_OF_DATA))
        exec(compile(source, "migrate.md", "single", dont_inherit=True), names)
    return names


def test_every_row_has_code_or_says_why_there_is_none():
    assert len(ROWS) > 120
    for row in ROWS:
        assert len(row) == 3, row
        assert row_code(row) or (row[1] == NONE and row[2]), row


@pytest.mark.parametrize("row", [row for row in ROWS if row_code(row)], ids=lambda row: row[0].replace("`", "")[:40])
def test_the_code_of_a_row_runs(namespace, row, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # for files
    code = row_code(row)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", tu.errors.TrueupWarning)
        value = eval(code, dict(namespace))
        if isinstance(value, Calibrator) and not hasattr(value, "model_"):
            value = value.fit(namespace["loans"], namespace["y"])
            assert np.isfinite(value.predict(namespace["later"])).all()
    if isinstance(value, (float, np.ndarray)):
        assert np.isfinite(value).any()


@pytest.mark.parametrize("name", list(public_names()))
def test_a_public_name_of_mcgrad_and_its_parameters_have_a_row(name):
    module, member = name.split(".")[0], name.rpartition(".")[2]
    own = row_names(ROWS)
    assert member in own
    heading = HEADINGS[module]
    if re.search(r"\.(RegressionMCGrad|MCGrad)$", name):
        heading = "Parameters of the constructor"
    elif name.endswith("MulticalibrationError"):
        heading = "Multicalibration error"
    elif not re.search(r"\.(fit|predict|fit_transform)$", name) and module == "methods":
        heading = "Classes" if public_names()[name] and member[0].isupper() else "Fitted attributes and constants"
    (part,) = (part for part in SECTION.split("\n### ") if part.startswith(heading))
    listed = row_names(table_rows(part))
    others = row_names(
        table_rows(next(part for part in SECTION.split("\n### ") if part.startswith("Multicalibration error")))
    )
    shared = others if member == "wrap_multicalibration_error_metric" else set()
    missing = [parameter for parameter in public_names()[name] if parameter not in listed | shared]
    assert not missing, f"{heading}: {missing}"
