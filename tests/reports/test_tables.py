"""Every segment leaves as CSV, and sections as plain values."""

from __future__ import annotations

import csv
import io
import json
import math

import numpy as np
import pytest

import trueup as tu
from trueup.errors import ArgumentError
from trueup.reports.profiles import sections
from trueup.reports.tables import csv_lines, section_dict
from trueup.reports.view import Heading, Section, TableView, number_cell

ROLES = {"outcome": "outcome", "prediction": "prediction"}
HOSTILE = ('comma, "quote"', "line\nbreak\r\n", "=1+1", "+1", "-1", "@SUM(A1)", "\tx", "＝1", "plain", "\ud800 lone", "'x")


def named_segments(names, rows=600):
    random = np.random.default_rng(0)
    p = random.random(rows)
    data = {"prediction": p, "outcome": (random.random(rows) < p).astype(float)}
    return tu.audit(
        data, by=[], segments={name: np.arange(rows) % len(names) != at for at, name in enumerate(names)}, **ROLES
    )


def read(lines):
    return list(csv.DictReader(io.StringIO("".join(lines), newline="")))


def test_csv_has_every_segment_and_every_digit():
    audit = tu.audit(tu.simulate.lending(3_000, seed=1), by=["region", "product"], **ROLES)
    found, frame = read(csv_lines(audit)), audit.to_frame()
    assert list(found[0]) == list(frame)
    assert len(found) == len(audit)
    for name, column in frame.items():
        values = [row[name] for row in found]
        if name == "segment":
            assert values == column.tolist()
        elif name == "testable":
            assert values == ["true" if value else "false" for value in column]
        else:
            np.testing.assert_array_equal([float(value or "nan") for value in values], column)
    assert "nan" not in "".join(csv_lines(audit))


def test_csv_is_quoted_as_rfc_4180_and_names_are_not_formulas():
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
    assert all(float(row["bias"]) == audit.to_frame()["bias"][at] for at, row in enumerate(read(csv_lines(audit))))


def test_csv_comes_a_line_at_a_time_and_in_batches_alike(monkeypatch):
    audit = tu.audit(tu.simulate.lending(2_000, seed=1), by=["region", "product"], **ROLES)
    whole = list(csv_lines(audit))
    monkeypatch.setattr("trueup.reports.tables.BATCH", 7)
    lines = csv_lines(audit)
    assert next(lines) == whole[0]
    assert [whole[0], *lines] == whole


def test_several_audits_say_which_is_which():
    audit = named_segments(("a", "b"))
    found = read(csv_lines({"=before": audit, "after": audit}))
    assert [row["prediction"] for row in found] == ["'=before"] * len(audit) + ["after"] * len(audit)
    assert [row["prediction"] for row in read(csv_lines([audit, audit]))][:: len(audit)] == ["before", "after"]
    assert "prediction" in read(csv_lines({"one": audit}))[0]


def test_what_is_no_audit_is_refused_before_a_line_is_written():
    with pytest.raises(ArgumentError, match="needs at least one audit"):
        csv_lines([])
    with pytest.raises(ArgumentError, match="made of audits; got ndarray"):
        csv_lines(np.zeros(3))


def test_sections_are_plain_values():
    data = tu.simulate.lending(3_000, seed=1)
    audit = tu.audit(data, by=["region"], **ROLES)
    for name in ("credit", "ads", "health"):
        for section in sections(audit, name):
            plain = section_dict(section)
            assert json.loads(json.dumps(plain, allow_nan=False)) == plain
            assert len(plain["rows"]) == len(section.table.rows)
    (grades,) = (section_dict(section) for section in sections(audit, "credit"))
    total = grades["rows"][-1]
    assert total["grade" if "grade" in total else "PD band"] == "all rows"
    assert total["rows"] == 3_000
    assert math.isclose(total["default rate"], data["outcome"].mean(), rel_tol=1e-5)
    assert section_dict(sections(tu.audit(data, by=[], **ROLES), "ads")[0])["rows"] == []


def test_what_is_infinite_is_left_out_of_plain_values():
    table = TableView((Heading("x"),), ((number_cell(float("inf")),), (number_cell(2.0),)), 0)
    assert section_dict(Section("t", "", table))["rows"] == [{"x": None}, {"x": 2.0}]
