"""Segments as CSV, and sections as plain data."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError
from trueup.reports.model import Column, Section, TableView, number_cell
from trueup.reports.page import csv_lines, json_lines, section_dict
from trueup.reports.profiles import Profile, SectionPlan, Vocabulary
from trueup.reports.profiles.sections import build_sections

ROLES = {"outcome": "outcome", "prediction": "prediction"}
HOSTILE = ('comma, "quote"', "line\nbreak\r\n", "=1+1", "+1", "-1", "@SUM(A1)", "\tx", "＝1", "plain", "\ud800 lone", "'x")


def named_segments(names, rows=600):
    random = np.random.default_rng(0)
    p = random.random(rows)
    data = {"prediction": p, "outcome": (random.random(rows) < p).astype(float)}
    return tu.audit(
        data, by=[], segments={name: np.arange(rows) % len(names) != index for index, name in enumerate(names)}, **ROLES
    )


def read(lines):
    return list(csv.DictReader(io.StringIO("".join(lines), newline="")))


def test_csv_has_all_segments_with_all_digits():
    audit = tu.audit(tu.simulate.lending(20_000, seed=1), by=["region", "product"], **ROLES)
    found, frame = read(csv_lines(audit)), audit.to_frame()
    assert list(found[0]) == [*frame, "problem"]
    assert len(found) == len(audit)
    names = {
        name: problem.finding.segment for problem in audit.problems for name in (problem.finding.segment, *problem.folded)
    }
    assert [row["problem"] for row in found] == [names.get(name, "") for name in frame["segment"]]
    assert audit.rejected > len(audit.problems) > 0
    for name, column in frame.items():
        values = [row[name] for row in found]
        if name in ("segment", "state"):
            assert values == column.tolist()
        elif name == "testable":
            assert values == ["true" if value else "false" for value in column]
        else:
            np.testing.assert_array_equal([float(value or "nan") for value in values], column)
    assert "nan" not in "".join(csv_lines(audit))


def test_csv_is_quoted_and_names_are_not_formulas():
    audit = named_segments(HOSTILE)
    text = "".join(csv_lines(audit))
    assert all(line.endswith("\r\n") for line in csv_lines(audit))
    names = {row["segment"] for row in read(csv_lines(audit))}
    assert 'comma, "quote"' in names
    assert "line\nbreak\r\n" in names
    assert '"comma, ""quote"""' in text
    assert {"'=1+1", "'+1", "'-1", "'@SUM(A1)", "'\tx", "'＝1", "plain", "? lone", "'x", "all rows"} <= names
    assert not any(name[0] in "=+-@\t" for name in names)
    text.encode("utf-8")
    assert all(float(row["bias"]) == audit.to_frame()["bias"][rank] for rank, row in enumerate(read(csv_lines(audit))))


def test_csv_does_not_depend_on_the_batch_size(monkeypatch):
    audit = tu.audit(tu.simulate.lending(2_000, seed=1), by=["region", "product"], **ROLES)
    all_lines = list(csv_lines(audit))
    monkeypatch.setattr("trueup.reports.page.CSV_BATCH", 7)
    lines = csv_lines(audit)
    assert next(lines) == all_lines[0]
    assert [all_lines[0], *lines] == all_lines


def test_csv_of_several_audits_has_their_names():
    audit = named_segments(("a", "b"))
    found = read(csv_lines({"=before": audit, "after": audit}))
    assert [row["prediction"] for row in found] == ["'=before"] * len(audit) + ["after"] * len(audit)
    assert [row["prediction"] for row in read(csv_lines([audit, audit]))][:: len(audit)] == ["before", "after"]
    assert "prediction" in read(csv_lines({"one": audit}))[0]


def test_anything_but_audits_is_rejected_before_the_first_line():
    with pytest.raises(ArgumentError, match="needs at least one audit"):
        csv_lines([])
    with pytest.raises(ArgumentError, match="made of audits; got ndarray"):
        csv_lines(np.zeros(3))


def test_sections_are_plain_values():
    data = tu.simulate.lending(3_000, seed=1)
    audit = tu.audit(data, by=["region"], **ROLES)
    for name in ("credit", "ads", "health"):
        for section in build_sections(audit, name):
            plain = section_dict(section)
            assert json.loads(json.dumps(plain, allow_nan=False)) == plain
            assert len(plain["rows"]) == (0 if section.table is None else len(section.table.rows))
    grades = section_dict(build_sections(audit, "credit")[0])
    total = grades["rows"][-1]
    assert total["grade" if "grade" in total else "PD band"] == "all rows"
    assert total["rows"] == 3_000
    assert math.isclose(total["default rate"], data["outcome"].mean(), rel_tol=1e-12)
    assert section_dict(build_sections(tu.audit(data, by=[], **ROLES), "ads")[1])["rows"] == []


def test_numbers_are_exported_as_numbers():
    audit = tu.audit(tu.simulate.lending(3_000, seed=1), by=["region", "age"], **ROLES)
    texts = {"value", "field", "worst value", "state", "measure", "metric", "meaning", "interpretation", "best"}
    for name in ("credit", "ads", "health"):
        for section in build_sections(audit, name):
            for row in section_dict(section)["rows"]:
                for key, value in row.items():
                    named = key in texts | {"PD band"} and not (key == "value" and {"measure", "metric"} & set(row))
                    assert named == isinstance(value, str), (key, value)
                    if key.endswith("% interval") and value is not None:  # not every measure has one
                        assert len(value) == 2
                        assert value[0] <= value[1]
                    if key in ("rows", "defaults", "events", "values", "miscalibrated"):
                        assert isinstance(value, int)


def test_long_names_are_exported_in_full_and_equal_headings_are_numbered():
    random, long = np.random.default_rng(0), "x" * 500
    p = random.random(600)
    data = {"prediction": p, "outcome": (random.random(600) < p).astype(float), long: np.where(p > 0.5, "y" * 300, "z")}
    profile = Profile("own", vocabulary=Vocabulary(observed="rate", expected="rate"), sections=(
        SectionPlan("values", "v"), SectionPlan("grades", "g", parameters={"columns": (long,)})))  # fmt: skip
    values, grades = (section_dict(section) for section in build_sections(tu.audit(data, by=[long], **ROLES), profile))
    assert {(row["value"], row["field"]) for row in values["rows"]} == {("y" * 300, long), ("z", long)}
    assert {"rate", "rate (2)"} <= set(grades["rows"][0])
    assert values["more"] == 0


def test_json_states_what_a_fix_corrected():
    data = tu.simulate.lending(20_000, seed=1)
    fix = tu.MCGrad("prediction", ["region", "product"]).fit(data, data["outcome"])
    before = tu.audit(data, by=["region"], **ROLES)
    after = tu.audit(data | {"prediction": fix.predict(data)}, by=["region"], **ROLES)
    exported = json.loads("".join(json_lines({"prediction": before, "fixed": after}, fix=fix.model_)))
    assert exported["fix"][0]["title"] == "What the fix corrected"
    assert all(isinstance(row["after"], float) for row in exported["fix"][0]["rows"])
    assert "fix" not in json.loads("".join(json_lines({"prediction": before, "fixed": after})))


def test_infinite_values_are_exported_as_none():
    table = TableView((Column("x", number_cell),), ((number_cell(float("inf")),), (number_cell(2.0),)), 0)
    assert section_dict(Section("t", "", table))["rows"] == [{"x": None}, {"x": 2.0}]
