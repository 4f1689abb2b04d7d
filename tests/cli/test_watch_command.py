"""`trueup watch`: state, settings, exit codes, outputs, and processes that are killed or come at the same time."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call
from logs import make_log, take
from trueup.monitoring.state import locked

OPTIONS = ["--outcome", "y", "--prediction", "p", "--by", "region,age", "--time", "day", "--maturity", "30d", "--id", "key"]
KILLED = """
import os, signal, sys
from trueup import storage
from trueup.cli import main

replace = os.replace
def die(*paths):
    if sys.argv[1] == "after":
        replace(*paths)
    os.kill(os.getpid(), signal.SIGKILL)
if sys.argv[1] == "writing":
    storage._zip = lambda members: (die() for _ in [0])
os.replace = die
main(sys.argv[2:])
"""


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    """Return a directory with a log, its first 3,000 rows, and a calibrated one."""
    directory = tmp_path_factory.mktemp("watch")
    data = make_log(0, 5_000, factor=2.0, since=60)
    pl.DataFrame(data).write_parquet(directory / "log.parquet")
    pl.DataFrame(take(data, slice(0, 2_000))).write_csv(directory / "early.csv")
    pl.DataFrame(make_log(1, 2_500)).write_parquet(directory / "calm.parquet")
    return directory


@pytest.fixture
def here(logs, tmp_path, monkeypatch):
    """Run in a directory of its own, with links to the logs."""
    for path in logs.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_state_continues_and_keeps_its_settings(here, capsys):
    code, out, _ = call(capsys, "watch", "early.csv", "--state", "m.watch", *OPTIONS)
    assert code == 0
    assert "segments and all looks, is at most 5%" in out
    code, out, err = call(capsys, "watch", "log.parquet", "--state", "m.watch", "--fail-if", "alarm")
    assert code == 1
    assert "gate failed (exit code 1): " in err
    assert "segments raised an alarm (--fail-if alarm)" in err
    assert out.startswith("alarm: 1 distinct error")
    assert "region=north" in out
    assert "trueup fit log.parquet --sql" in out
    assert tu.Monitor.load("m.watch").revision == 2
    direct = tu.Monitor.load("m.watch").report()
    code, out, _ = call(capsys, "watch", "log.parquet", "--state", "m.watch", "--quiet")
    assert code == 0
    assert out.splitlines() == [direct.headline, *map(str, direct.distinct)]


def test_contradicting_options_are_named(here, capsys):
    call(capsys, "watch", "early.csv", "--state", "m.watch", *OPTIONS)
    before = (here / "m.watch").read_bytes()
    code, _, err = call(capsys, "watch", "log.parquet", "--state", "m.watch", "--by", "region", "--maturity", "60d",
                        "--alpha", "0.05", "--reference", "calm.parquet")  # fmt: skip
    assert code == 2
    assert "--by (region,age in the state, region here)" in err
    assert "--maturity (30 in the state, 60 here)" in err
    assert "--reference" in err
    assert "--alpha" not in err
    assert (here / "m.watch").read_bytes() == before


def test_a_new_state_needs_columns(here, capsys):
    code, _, err = call(capsys, "watch", "log.parquet", "--state", "new.watch", "--outcome", "y")
    assert code == 2
    assert "a new one needs --prediction, --time" in err
    assert not (here / "new.watch").exists()


def test_the_gate_of_a_state_without_closed_periods(here, capsys):
    options = ["watch", "early.csv", "--state", "m.watch", *OPTIONS, "--now", "2023-12-28"]
    pl.read_csv(here / "early.csv").head(100).write_csv(here / "few.csv")
    options[1] = "few.csv"
    assert call(capsys, *options, "--fail-if", "alarm")[0] == 4
    assert call(capsys, "watch", "few.csv", "--state", "m.watch", "--fail-if", "untestable")[0] == 4


def test_files_in_chunks_and_dates_since_when(here, capsys):
    answers = []
    for name, more in (("a", []), ("b", ["--memory", "1GB"])):
        code, out, _ = call(
            capsys, "watch", "log.parquet", "--state", f"{name}.watch", *OPTIONS, "--reference", "early.csv", "--since",
            "2024-01-16", "--json-lines", "-", *more,
        )  # fmt: skip
        assert code == 0
        answers.append(out)
    assert answers[0] == answers[1]
    *alarms, state = map(json.loads, answers[0].splitlines())
    assert alarms[0]["segment"] == "region=north"
    assert {alarm["kind"] for alarm in alarms} == {"alarm"}
    assert state["kind"] == "state"
    data = make_log(0, 5_000, factor=2.0, since=60)
    since = data["day"] >= np.datetime64("2024-01-16")
    mature = data["day"] + 30 <= data["day"].max()
    assert state["rows"]["counted"] == int((since & mature).sum())


def test_page_summary_and_alarms_are_written(here, capsys):
    outputs = ["watch.html", "summary.md", "alarms.csv", "state.json"]
    words = [word for name in outputs for word in ("-o", name)]
    code, _out, _ = call(capsys, "watch", "log.parquet", "--state", "m.watch", *OPTIONS, "--profile", "credit", *words)
    assert code == 0
    page = (here / "watch.html").read_text()
    for text in ('id="evidence"', 'id="drift"', "is at most 5%", "region=north", "trueup", "says nothing about calibration",
                 "Risk committee"):  # fmt: skip
        assert text in page
    assert "### Distinct alarms" in (here / "summary.md").read_text()
    lines = (here / "alarms.csv").read_text().splitlines()
    report = tu.Monitor.load("m.watch").report()
    assert len(lines) == 1 + len(report.alarms)
    assert json.loads((here / "state.json").read_text())["alarms"][0]["segment"] == report.alarms[0].segment


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "m.pdf"], "has no known extension"),
        (["--title", "x"], "--title needs a page"),
        (["--now", "soon"], "--now must be a date"),
        (["--since", "once"], "--since must be a date"),
        (["--prediction", "p,q"], "--prediction must name one column"),
        (["-o", "log.parquet.html", "--json-lines", "log.parquet"], "would overwrite an input file"),
    ],
)
def test_errors(here, capsys, words, message):
    code, _, err = call(capsys, "watch", "log.parquet", "--state", "m.watch", *OPTIONS, *words)
    assert code == 2
    assert message in err


def test_a_process_that_is_killed_leaves_the_old_or_the_new_state(here, capsys):
    call(capsys, "watch", "early.csv", "--state", "m.watch", *OPTIONS)
    old = (here / "m.watch").read_bytes()
    call(capsys, "watch", "log.parquet", "--state", "m.watch")
    new = tu.Monitor.load("m.watch").report().to_dict()
    for moment, revision in (("writing", 1), ("before", 1), ("after", 2)):
        (here / "m.watch").write_bytes(old)
        command = [sys.executable, "-c", KILLED, moment, "watch", "log.parquet", "--state", "m.watch"]
        done = subprocess.run(command, capture_output=True, check=False)
        assert done.returncode == -9
        assert tu.Monitor.load("m.watch").revision == revision
        call(capsys, "watch", "log.parquet", "--state", "m.watch")  # the batch is given again
        again = tu.Monitor.load("m.watch").report().to_dict()
        del again["rows"], again["notes"]
        for alarm in (*again["alarms"], *new["alarms"]):
            alarm.pop("new", None)  # raised by the last of two updates, or by the first
        assert {name: new[name] for name in again} == again


def test_a_second_process_is_refused_while_the_first_one_works(here, capsys):
    call(capsys, "watch", "early.csv", "--state", "m.watch", *OPTIONS)
    before = (here / "m.watch").read_bytes()
    with locked(here / "m.watch"):
        code, _, err = call(capsys, "watch", "log.parquet", "--state", "m.watch")
    assert code == 2
    assert "is in use by another process" in err
    assert (here / "m.watch").read_bytes() == before


def test_the_positive_outcome_is_a_setting_of_the_state(here, capsys):
    pl.read_parquet(here / "log.parquet").with_columns(y=1 - pl.col("y")).write_parquet(here / "good.parquet")
    for _ in range(2):
        call(capsys, "watch", "log.parquet", "--state", "bad.watch", *OPTIONS)
    call(capsys, "watch", "good.parquet", "--state", "m.watch", *OPTIONS, "--positive", "0")
    call(capsys, "watch", "good.parquet", "--state", "m.watch")  # without the option
    assert tu.Monitor.load("m.watch").report().alarms == tu.Monitor.load("bad.watch").report().alarms
    code, _, err = call(capsys, "watch", "good.parquet", "--state", "m.watch", "--positive", "1")
    assert code == 2
    assert "--positive (0 in the state, 1 here)" in err


def test_batches_without_a_positive_outcome_are_counted(here, capsys):
    call(capsys, "watch", "early.csv", "--state", "m.watch", *OPTIONS, "--positive", "1")
    before = tu.Monitor.load("m.watch").report().rows.counted
    none = pl.read_parquet(here / "log.parquet").filter(pl.col("y") == 0)
    none.with_columns(key=pl.col("key") + 10_000).write_parquet(here / "none.parquet")
    assert call(capsys, "watch", "none.parquet", "--state", "m.watch")[0] == 0
    assert tu.Monitor.load("m.watch").report().rows.counted > before


def test_rows_without_a_time_are_an_error_with_since_too(here, capsys):
    frame = pl.read_parquet(here / "log.parquet").with_columns(
        day=pl.when(pl.col("key") % 7 == 0).then(None).otherwise(pl.col("day"))
    )
    frame.write_parquet(here / "gaps.parquet")
    code, _, err = call(capsys, "watch", "gaps.parquet", "--state", "g.watch", *OPTIONS, "--since", "2024-01-06")
    assert code == 2
    assert "time column 'day' is missing" in err


def test_a_gate_on_new_alarms_fails_once(here, capsys):
    codes = []
    for _ in range(2):
        code, _, err = call(capsys, "watch", "log.parquet", "--state", "m.watch", *OPTIONS, "--fail-if", "new-alarm")
        codes.append(code)
    assert codes == [1, 0]
    assert err == ""
    assert call(capsys, "watch", "log.parquet", "--state", "m.watch", "--fail-if", "alarm,new-alarm")[0] == 1
    code, out, _ = call(capsys, "watch", "log.parquet", "--state", "m.watch", "--json-lines", "-")
    assert [json.loads(line)["new"] for line in out.splitlines()[:-1]] == [False] * (len(out.splitlines()) - 1)


def test_files_without_rows_and_columns_in_another_order(here, capsys):
    call(capsys, "watch", "log.parquet", "--state", "m.watch", *OPTIONS)
    pl.read_parquet(here / "log.parquet").head(0).write_parquet(here / "none.parquet")
    before = tu.Monitor.load("m.watch").report().alarms
    for more in ([], ["--by", "age,region", "--maturity", "30"], ["--memory", "1GB"]):
        code, out, err = call(capsys, "watch", "none.parquet", "--state", "m.watch", *more)
        assert (code, err) == (0, "")
        assert out.startswith("alarm")
    after = tu.Monitor.load("m.watch").report().alarms
    assert [alarm.p_value for alarm in after] == [alarm.p_value for alarm in before]
    code, _, err = call(capsys, "watch", "none.parquet", "--state", "other.watch", *OPTIONS)
    assert code == 2
    assert "the data has no rows" in err


def test_the_next_step_does_not_name_a_file_that_lacks_the_rows(here, capsys):
    rows = pl.read_parquet(here / "log.parquet").sort("day")
    rows.filter(pl.col("day") < np.datetime64("2024-07-01")).write_parquet(here / "one.parquet")
    rows.filter(pl.col("day") >= np.datetime64("2024-07-01")).write_parquet(here / "two.parquet")
    _, whole, _ = call(capsys, "watch", "one.parquet", "--state", "m.watch", *OPTIONS, "--now", "2024-08-19")
    _, part, _ = call(capsys, "watch", "two.parquet", "--state", "m.watch", "--now", "2024-08-26")
    assert "trueup fit one.parquet --sql" in whole
    assert "trueup fit FILES-SINCE-THEN --sql" in part
