"""`trueup audit --fail-if`, --min-tested and --min-rows-total: the exit code, and the outputs that must agree with it."""

from __future__ import annotations

import json
import re

import numpy as np
import polars as pl
import pytest
from tests.commands import ROLES, run

import trueup as tu
from trueup.errors import ArgumentError

CALM = ["calm.parquet", *ROLES, "--by", "region"]
LOANS = ["loans.parquet", *ROLES, "--by", "region"]


def test_one_row_does_not_pass_a_gate(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one_row.csv").write_text("outcome,prediction\n1,0.3\n")
    code, out, err = run(capsys, "one_row.csv", *ROLES, "--fail-if", "miscalibrated", "--quiet")
    assert (code, out) == (4, "nothing could be tested: no segment has 50 rows\n")
    assert err.endswith("gate failed (exit code 4): nothing could be tested: no segment has 50 rows\n")
    assert run(capsys, "one_row.csv", *ROLES, "--quiet")[0] == 0  # no gate


@pytest.mark.parametrize(
    "states", ["untestable", "miscalibrated", "miscalibrated,untestable", "possibly-material,material"]
)
def test_every_gate_fails_where_nothing_could_be_tested(loans_directory, capsys, states):
    gate = ["--fail-if", states, "--tolerance", "10%", "--quiet"]
    assert run(capsys, *CALM, "--min-rows", "5000", *gate)[0] == 4
    assert run(capsys, *CALM, *gate)[0] == 0
    assert run(capsys, *LOANS, *gate)[0] == 1


@pytest.mark.parametrize(
    ("options", "code", "reason"),
    [
        (["--min-tested", "5"], 0, ""),
        (["--min-tested", "500"], 4, "segments were tested, fewer than the 500 required"),
        (["--min-tested", "100%"], 0, ""),
        (["--min-rows-total", "100"], 0, ""),
        (["--min-rows-total", "1000000"], 4, "rows have outcomes, fewer than the 1,000,000 required"),
    ],
)
def test_requirements_determine_exit_code_verdict_and_outputs(loans_directory, capsys, options, code, reason):
    outputs = ["--json", "gate.json", "--markdown", "gate.md", "--quiet"]
    returned, out, err = run(capsys, *CALM, *options, *outputs)
    written = json.loads((loans_directory / "gate.json").read_text())
    markdown = (loans_directory / "gate.md").read_text()
    assert returned == written["gate"]["exit_code"] == code
    assert f"(exit code {code})" in markdown
    assert written["state"] == ("not testable" if code else "no miscalibration found")
    for text in (out, err, markdown, " ".join(written["gate"]["reasons"]), written["verdict"], str(written["shortfalls"])):
        assert reason in text
    assert ("**Not testable.**" in markdown) == bool(code)


def test_a_share_counts_all_segments_that_have_rows(loans_directory, capsys):
    rows = ["loans.parquet", *ROLES, "--by", "region,product", "--quiet"]
    code, _, err = run(capsys, *rows, "--min-rows", "1000", "--min-tested", "99%")
    assert code == 4
    assert "less than the 99% required" in err


@pytest.mark.parametrize("output", [[], ["--quiet"], ["--json", "-"]])
def test_the_condition_that_was_met_is_one_line_on_standard_error(loans_directory, capsys, output):
    code, out, err = run(capsys, *LOANS, "--tolerance", "1%", "--fail-if", "possibly-material,miscalibrated", *output)
    assert code == 1
    assert re.fullmatch(
        r"gate failed \(exit code 1\): material: \d+ of \d+ segments \(--fail-if possibly-material,miscalibrated\)\n", err
    )
    assert "gate failed (exit code" not in out


def test_what_was_found_counts_before_what_could_not_be_tested(loans_directory, capsys):
    code, out, _ = run(capsys, *LOANS, "--fail-if", "miscalibrated", "--min-tested", "500", "--quiet")
    assert code == 1
    assert out.startswith("miscalibrated: ")
    assert out.endswith("fewer than the 500 required\n")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--fail-if", "miscalibrated,untestabel"], "hint: did you mean --fail-if untestable?"),
        (["--fail-if", "untestable,material"], "--fail-if material needs a tolerance"),
        (["--min-tested", "many"], "--min-tested must be a number of segments or a percentage of them; got 'many'"),
        (["--min-tested", "120%"], "got '120%'\nhint: write 10 for ten segments"),
        (["--min-rows-total", "0"], "--min-rows-total must be an integer at least 1; got 0"),
    ],
)
def test_invalid_gates_are_refused(loans_directory, capsys, options, message):
    code, out, err = run(capsys, *CALM, *options)
    assert (code, out) == (2, "")
    assert message in err


def test_held_out_scores_of_a_cross_fit_do_not_pass(loans_directory, capsys):
    rng = np.random.default_rng(0)
    lines = [f"{int(rng.random() < p)},{p},1" for p in rng.uniform(0.1, 0.5, 300)]
    (loans_directory / "held.csv").write_text("outcome,prediction,prediction_held_out\n" + "\n".join(lines) + "\n")
    code, out, err = run(capsys, "held.csv", *ROLES, "--by", "", "--fail-if", "miscalibrated", "--quiet")
    assert "nearly blind" in out
    assert (code, "an audit is nearly blind" in err) == (4, True)


@pytest.mark.parametrize("given", [-1, 1.5, True])
def test_python_requirements_are_validated(given):
    data = tu.simulate.lending(200, seed=1)
    with pytest.raises(ArgumentError, match="min_tested must be an integer at least 0"):
        tu.audit(data, outcome="outcome", prediction="prediction", by=["region"], min_tested=given)


def test_requirements_hold_in_python_too():
    data = tu.simulate.lending(2_000, seed=1, calibrated=True)
    roles = {"outcome": "outcome", "prediction": "prediction", "by": ["region"]}
    unmet = tu.audit(data, **roles, min_tested="100%", min_rows_total=3_000, min_rows=500)
    assert unmet.state == "not testable"
    assert len(unmet.unmet) == 2
    assert unmet.verdict.startswith(f"not testable: {'; '.join(unmet.unmet)}; nothing found in ")
    met = tu.audit(data, **roles, min_tested=1, min_rows_total=2_000)
    assert (met.state, met.unmet, met.shortfalls) == ("no miscalibration found", (), ())


def test_a_gate_fails_if_a_column_of_by_was_left_out(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    p = random.uniform(0.1, 0.4, 4_000)
    frame = pl.DataFrame({"y": (random.random(4_000) < p).astype(int), "p": p, "acct": [f"a{n}" for n in range(4_000)]})
    frame.write_parquet("g.parquet")
    options = ["g.parquet", "--outcome", "y", "--prediction", "p", "--by", "acct"]
    code, _, err = run(capsys, *options, "--fail-if", "miscalibrated")
    assert code == 4
    assert "column 'acct' of --by was left out" in err
    assert run(capsys, *options)[0] == 0
