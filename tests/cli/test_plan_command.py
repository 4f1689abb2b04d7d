"""`trueup plan`."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

import trueup as tu
from commands import call
from trueup.cli.parser import build_parser, check_arguments
from trueup.errors import ArgumentError


@pytest.fixture(autouse=True)
def pilot(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    data = tu.simulate.lending(2_000, seed=0)
    with (tmp_path / "pilot.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["p", "region", "zip"])
        rows.writerows(zip(data["prediction"], data["region"], [f"0{n % 3}" for n in range(2_000)], strict=True))


def test_prevalence_share_and_columns(capsys):
    code, out, _ = call(capsys, "plan", "--prevalence", "2%", "--ratio", "1.2", "--share", "5%", "--columns", "10,5,4")
    assert code == 0
    assert out.splitlines()[0] == tu.plan(prevalence=0.02, ratio=1.2, share=0.05, columns=[10, 5, 4]).verdict
    _, quiet, _ = call(
        capsys, "plan", "--prevalence", "2%", "--ratio", "1.2", "--share", "5%", "--segments", "90", "--quiet"
    )
    assert quiet == out.splitlines()[0] + "\n"


def test_a_pilot_with_columns_a_monitor_and_all_outputs(capsys):
    code, out, _ = call(
        capsys, "plan", "pilot.csv", "--prediction", "p", "--by", "region,zip", "--categorical", "zip", "--monitor",
        "--weekly-rows", "500", "--change-week", "9", "--top", "2", "--json", "plan.json", "-o", "plan.svg",
    )  # fmt: skip
    assert code == 0
    found = json.loads(Path("plan.json").read_text())
    assert f"{len(found['tests']) - 2} more: --top {len(found['tests'])}" in out
    assert {test["test"] for test in found["tests"]} >= {"audit", "monitor, error from week 9"}
    assert "zip=00" in {test["segment"] for test in found["tests"]}
    assert Path("plan.svg").read_text().startswith("<?xml")
    assert out.endswith("wrote plan.svg\nwrote plan.json\n")


def test_pairs_of_columns(capsys):
    words = ["plan", "pilot.csv", "--prediction", "p", "--by", "region,zip", "--categorical", "zip", "--json", "-"]
    singles, pairs = (json.loads(call(capsys, *words, *more)[1])["tests"] for more in ([], ["--combined", "2"]))
    assert pairs[: len(singles)] == singles
    assert {"region=east & zip=02", "region=north & zip=00"} < {test["segment"] for test in pairs[len(singles) :]}


def test_json_on_standard_output(capsys):
    code, out, _ = call(capsys, "plan", "pilot.csv", "--prediction", "p", "--rows", "900", "--json", "-")
    assert code == 0
    assert [test["rows"] for test in json.loads(out)["tests"]] == [900, 900]


@pytest.mark.parametrize(
    ("words", "message", "hint"),
    [
        ([], "no FILE was named", "name files, or pass a query with --sql, or --prevalence 0.02"),
        (["pilot.csv"], "--prediction is missing", "--prediction p"),
        (["pilot.csv", "--prediction", "p", "--spread", "2"], "--spread needs --prevalence", "has scores"),
        (["--prevalence", "0.1", "--columns", "a"], "--columns a is not a list of integers", "--columns 10,5,4"),
        (["--prevalence", "0.1", "--weekly-rows", "9"], "--weekly-rows needs --monitor", "--monitor"),
        (["--prevalence", "0.1", "-o", "plan.html"], "does not have the extension of a picture", "-o plan.svg"),
        (
            ["--prevalence", "0.1", "--ratio", "20%"],
            "observed/expected; got '20%'",
            "1.2 is 20% more outcomes than expected",
        ),
        (["--prevalence", "0.1", "--share", "5"], "--share must be at most 1; got 5.0", "--share 0.05 for 5% of the rows"),
        (["--prevalence", "0.1", "--power", "80"], "--power must lie between 0 and 1; got 80.0", "0.8 is 80%"),
        (["--prevalence", "2"], "--prevalence must lie between 0 and 1; got 2.0", "0.02 is 2%"),
        (["--prevalence", "x"], "--prevalence must be a number; got 'x'", "write 0.02 or 2%"),
        (["--prevalence", "0.1", "--rows", "0"], "--rows must be an integer at least 1; got 0", ""),
        (["--prevalence", "0.1", "--cluster-size", "0"], "--cluster-size must be a number at least 1; got 0.0", ""),
    ],
)
def test_errors_name_the_options(capsys, words, message, hint):
    code, _, err = call(capsys, "plan", *words)
    assert code == 2
    assert message in err
    assert hint in err


def test_the_demo_still_needs_a_thousand_loans():
    with pytest.raises(ArgumentError, match="rows must be an integer at least 1,000"):
        check_arguments(build_parser().parse_args(["demo", "--rows", "10"]))
