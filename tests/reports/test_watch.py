"""The page of a monitor: what it shows, in the words of a profile, whatever the data contain."""

from __future__ import annotations

import re

import numpy as np
import pytest

import trueup as tu
from logs import SETTINGS, make_log
from trueup.errors import ArgumentError
from trueup.reports import watch

HOSTILE = "<script>alert(1)</script>=|*"


@pytest.fixture(scope="module")
def monitor():
    """Return a monitor with an alarm, and drift, of a region with a hostile name."""
    data = make_log(0, 5_000, factor=2.0, since=60)
    early = {name: column[:1_500] for name, column in data.items()}
    for rows in (early, data):
        rows["region"] = np.where(rows["region"] == "north", HOSTILE, rows["region"])
    monitor = tu.Monitor(**SETTINGS).start(early)
    monitor.update(data)
    data["region"] = np.where(np.arange(5_000) % 3 == 0, "south", data["region"])
    monitor.update_drift(data)
    return monitor


def test_the_page_shows_alarms_evidence_labels_and_drift(monitor, tmp_path):
    page = tu.report(monitor, tmp_path / "watch.html").read_text()
    report = monitor.report()
    assert HOSTILE not in page
    assert f"{report.alarms[0].ratio:.2f}" in page
    assert report.alarms[0].since in page
    assert "is at most 5%" in page
    assert [
        name
        for name in ("verdict", "problems", "next", "evidence", "ratios", "labels", "drift")
        if f'id="{name}"' not in page
    ] == []
    assert page.count('class="line-') >= 4
    assert "nan" not in re.sub(r"<style>.*?</style>|<script>.*?</script>", "", page, flags=re.DOTALL).lower().replace(
        "finance", ""
    )
    assert report.drift


def test_points_of_the_evidence_are_those_of_the_history(monitor):
    content = watch.build(monitor)
    course = monitor.state.history.course(0)
    plot = content.evidence
    height = np.log(monitor.state.segments.shares[0]) + course.evidence
    last = plot.lines[0][1].split(" ")[-1].split(",")
    assert float(last[1]) == pytest.approx(plot.frame.y(max(height[-1] / np.log(10), watch.MIN_LOG_EVIDENCE)), abs=0.1)
    assert len(plot.lines[0][1].split(" ")) == monitor.report().periods
    assert plot.alarm == plot.frame.y(-np.log10(0.05))


def test_the_summary_uses_the_words_of_a_profile(monitor, tmp_path):
    text = tu.report(monitor, tmp_path / "watch.md", profile="credit", title="Loans").read_text()
    assert text.startswith("## Loans\n")
    assert "### Drift, apart from calibration" in text
    assert "<script>" not in text


def test_a_monitor_without_closed_periods_has_a_page(tmp_path):
    data = make_log(1, 500)
    monitor = tu.Monitor(**{**SETTINGS, "maturity": "300 days"})
    monitor.update(data)
    page = tu.report(monitor, tmp_path / "watch.html").read_text()
    assert "No period has closed yet" in page
    assert 'id="evidence"' not in page


def test_parts_of_audits_are_refused(monitor, tmp_path):
    with pytest.raises(ArgumentError, match="are for audits"):
        tu.report(monitor, tmp_path / "watch.html", reference=np.ones(3))
