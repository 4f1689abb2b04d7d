"""The figure of a plan."""

from __future__ import annotations

import pytest

import trueup as tu
from trueup.errors import ArgumentError
from trueup.reports.figures.style import detached_axes


def test_a_plan_is_drawn_with_a_line_per_test_and_direction():
    plan = tu.plan(prevalence=0.05, ratio=1.3, monitor=True)
    ax = tu.figures.draw_plan(plan, detached_axes(), title="rows")
    labels = ["audit", "monitor, error from the start", "monitor, error from week 52"]
    assert [text.get_text().replace("\n", " ") for text in ax.get_legend().get_texts()] == labels
    lines = {line.get_label(): line for line in ax.get_lines()}
    audit = plan.curves()[0]
    totals = [total for ratio, total in zip(audit.ratios, audit.totals, strict=True) if ratio > 1]
    assert lines["audit"].get_xdata().tolist() == totals
    assert any(list(line.get_xdata()) == [plan[0].total] * 2 for line in ax.get_lines())
    assert ax.get_ylabel() == "observed/expected found with 80% power"


def test_a_segment_of_a_pilot_is_drawn():
    plan = tu.plan(tu.simulate.lending(2_000, seed=0), prediction="prediction", by=["product"], rows=30_000)
    ax = tu.figures.draw_plan(plan, detached_axes(), segment="product=car")
    assert ax.get_legend() is None
    assert any(list(line.get_xdata()) == [30_000] * 2 for line in ax.get_lines())


def test_only_plans_are_drawn():
    with pytest.raises(ArgumentError, match=r"plan must be the result of tu\.plan; got int"):
        tu.figures.draw_plan(3)
