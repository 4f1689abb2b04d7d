"""`trueup audit`: every option and every exit code."""

from __future__ import annotations

import json
import warnings

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import ROLES, run
from trueup.cli import main


def audit_json(capsys, *arguments):
    """Return the JSON of an audit."""
    code, out, err = run(capsys, *arguments, *ROLES, "--json", "-")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_verdict_the_worst_segments_and_the_notes_are_printed(loans_directory, capsys):
    code, out, err = run(capsys, "loans.csv", *ROLES, "--by", "region,product")
    expected = tu.audit(pl.read_csv("loans.csv"), outcome="outcome", prediction="prediction", by=["region", "product"])
    assert (code, err) == (0, "")
    assert out.startswith(expected.verdict + "\n")
    assert "region=harbour" in out
    assert "all rows" in out
    _, calm, _ = run(capsys, "calm.parquet", *ROLES, "--by", "region")
    assert calm.startswith("no miscalibration found")
    assert "would have been found with 80% power" in calm


def test_the_command_agrees_with_the_function(loans_directory, capsys):
    output = audit_json(
        capsys, "loans.parquet", "--by", "region,age", "--min-rows", "80", "--alpha", "0.01", "--depth", "1"
    )
    made = tu.audit(
        pl.read_parquet("loans.parquet"), outcome="outcome", prediction="prediction", by=["region", "age"],
        min_rows=80, alpha=0.01, depth=1,
    )  # fmt: skip
    added = ("source", "summary", "sections", "next")
    assert {key: value for key, value in output.items() if key not in added} == made.to_dict()
    assert output["summary"] == made.summary.to_dict()


def test_shares_of_a_sample_are_two_numbers(loans_directory, capsys):
    roles = [loans_directory / "loans.csv", "--outcome", "outcome", "--prediction", "prediction"]
    code, out, _ = run(capsys, *roles, "--sampling", "1,0.1")
    assert code == 0
    assert "weights are associated with the outcome: rows of outcome 1 weigh 0.10 times as much as rows of outcome 0" in out
    code, _, err = run(capsys, *roles, "--sampling", "0.1")
    assert code == 2
    assert "--sampling 0.1 is not two shares" in err
    code, _, err = run(capsys, *roles, "--sampling", "0,1")
    assert code == 2
    assert "must be a number at least 1e-09" in err


def test_all_columns_without_a_role_form_segments_by_default(loans_directory, capsys):
    output = audit_json(capsys, "loans.parquet", "--weight", "w", "--depth", "1")
    assert output["by"] == ["region", "product", "employment", "age", "income", "term", "opened", "zip"]
    assert output["roles"]["weight"] == "w"


def test_only_needed_columns_are_read(loans_directory, capsys, monkeypatch):
    from trueup.cli import io

    asked = {}
    original = io.read_files

    def spy(paths, **given):
        asked.update(given)
        return original(paths, **given)

    monkeypatch.setattr(io, "read_files", spy)
    run(capsys, "loans.parquet", *ROLES, "--by", "region", "--threads", "1")
    assert asked["columns"] == ["outcome", "prediction", "region"]
    assert asked["threads"] == 1
    run(capsys, "loans.parquet", *ROLES)
    assert asked["columns"] is None


def test_lists_are_split_at_commas_or_repeated(loans_directory, capsys):
    assert audit_json(capsys, "loans.parquet", "--by", "region, product", "--by", "term")["by"] == [
        "region",
        "product",
        "term",
    ]


def test_column_names_with_commas_are_not_split(tmp_path, capsys):
    rng = np.random.default_rng(0)
    p = rng.random(400)
    data = {
        "outcome": (rng.random(400) < p) * 1,
        "prediction": p,
        "b,c": ["u", "v"] * 200,
        "b": ["s", "t"] * 200,
        "d": [1, 2] * 200,
    }
    pl.DataFrame(data).write_parquet(tmp_path / "x.parquet")
    output = audit_json(capsys, str(tmp_path / "x.parquet"), "--by", "d", "--by", "b,c")
    assert output["by"] == ["d", "b,c"]


def test_bins_are_a_number_edges_or_a_calendar_unit(loans_directory, capsys):
    bins = ["--bins", "4", "--bins", "age=30:50", "--bins", "opened=year", "--bins", "term=36:"]
    output = audit_json(capsys, "loans.parquet", "--by", "age,income,opened,term", "--depth", "1", *bins)
    names = {finding["segment"] for finding in output["findings"]}
    assert {"age<30", "age=30 to 49", "age>=50", "opened=2022", "opened=2024", "term<36", "term>=36"} <= names
    assert len([name for name in names if name.startswith("income") and "missing" not in name]) == 4


def test_date_edges_are_dates(loans_directory, capsys):
    output = audit_json(capsys, "loans.csv", "--by", "opened", "--bins", "opened=2023-01-01:2024-01-01")
    assert "opened=[2023-01-01, 2024-01-01)" in {finding["segment"] for finding in output["findings"]}


@pytest.mark.parametrize("spec", ["ten", "age=", "age=:", "=3", ""])
def test_invalid_bins_are_rejected(loans_directory, capsys, spec):
    code, _, err = run(capsys, "loans.parquet", *ROLES, "--by", "age", "--bins", spec)
    assert code == 2
    assert f"error: --bins {spec} is not a specification of bins\nhint: write --bins 10" in err


def test_categorical_numbers_keep_leading_zeros(loans_directory, capsys):
    output = audit_json(capsys, "loans.csv", "--by", "zip", "--categorical", "zip")
    assert "zip=01001" in {finding["segment"] for finding in output["findings"]}


def test_several_predictions_are_classes(tmp_path, capsys):
    rng = np.random.default_rng(0)
    p = rng.dirichlet([2, 2], 600)
    data = {
        "p0": p[:, 0],
        "p1": p[:, 1],
        "outcome": np.where(rng.random(600) < p[:, 0], "cat", "dog"),
        "g": ["u", "v"] * 300,
    }
    pl.DataFrame(data).write_csv(tmp_path / "x.csv")
    given = ["--outcome", "outcome", "--prediction", "p0,p1", "--classes", "cat,dog", "--json", "-"]
    code, out, _ = run(capsys, str(tmp_path / "x.csv"), *given)
    assert code == 0
    assert json.loads(out)["roles"]["classes"] == ["cat", "dog"]


def test_regression_needs_its_task(tmp_path, capsys):
    rng = np.random.default_rng(0)
    p = rng.normal(100, 20, 600)
    pl.DataFrame({"outcome": p + rng.normal(0, 3, 600), "prediction": p, "g": ["u", "v"] * 300}).write_csv(
        tmp_path / "x.csv"
    )
    code, _, err = run(capsys, str(tmp_path / "x.csv"), *ROLES)
    assert code == 2
    assert "--task regression" in err
    assert 'task="regression"' not in err
    assert run(capsys, str(tmp_path / "x.csv"), *ROLES, "--task", "regression")[0] == 0


def test_a_family_is_a_regression_with_exposures(tmp_path, capsys):
    rng = np.random.default_rng(0)
    exposure, rate = rng.uniform(0.1, 1, 600), rng.uniform(0.5, 2, 600)
    counts = rng.poisson(exposure * rate) / exposure
    path = tmp_path / "x.csv"
    pl.DataFrame({"outcome": counts, "prediction": rate, "years": exposure}).write_csv(path)
    given = [*ROLES, "--weight", "years", "--family", "poisson", "--json", "-"]
    for more in ([], ["--memory", "1GB"]):
        code, out, _ = run(capsys, str(path), *given, *more)
        assert code == 0
        assert json.loads(out)["settings"]["family"] == "poisson"
        assert json.loads(out)["roles"]["task"] == "regression"
    code, _, err = run(capsys, str(path), *ROLES, "--family", "poisson", "--variance-power", "1.5")
    assert code == 2
    assert "use --family tweedie" in err


def test_rates_are_pointed_to_their_task(tmp_path, capsys):
    p = np.linspace(0.1, 0.9, 300)
    pl.DataFrame({"outcome": p, "prediction": p}).write_csv(tmp_path / "x.csv")
    for more in ([], ["--memory", "1GB"]):
        code, _, err = run(capsys, str(tmp_path / "x.csv"), *ROLES, *more)
        assert code == 0
        assert 'pass task "regression" for rates' in err
        assert "neither 0 nor 1" not in run(capsys, str(tmp_path / "x.csv"), *ROLES, "--task", "binary", *more)[2]


def test_rows_without_an_outcome_are_an_error_or_dropped(tmp_path, capsys):
    pl.DataFrame({"outcome": [0, 1, None] * 100, "prediction": [0.4] * 300, "g": ["u", "v"] * 150}).write_csv(
        tmp_path / "x.csv"
    )
    code, _, err = run(capsys, str(tmp_path / "x.csv"), *ROLES)
    assert code == 2
    assert "--unlabelled drop" in err
    code, out, _ = run(capsys, str(tmp_path / "x.csv"), *ROLES, "--unlabelled", "drop")
    assert code == 0
    assert "100 rows without an outcome were set aside" in out


def test_adjust_draws_and_seed_reach_the_audit(loans_directory, capsys):
    given = ["--by", "region", "--adjust", "max", "--draws", "199", "--seed", "7"]
    settings = audit_json(capsys, "loans.parquet", *given)["settings"]
    assert (settings["adjust"], settings["draws"], settings["random_state"]) == ("max", 199, 7)
    assert audit_json(capsys, "loans.parquet", "--by", "region", "--adjust", "by")["settings"]["adjust"] == "by"


def test_combinations_dropped_by_max_cells_are_reported(loans_directory, capsys):
    code, out, _ = run(capsys, "loans.parquet", *ROLES, "--by", "region,product", "--max-cells", "20")
    assert code == 0
    assert "left out to stay within 20 cells: 1 combinations (region x product)" in out


def test_top_limits_the_printed_segments(loans_directory, capsys):
    _, out, _ = run(capsys, "loans.parquet", *ROLES, "--by", "region", "--top", "1", "--tolerance", "5%")
    assert [line.split("  ")[0] for line in out.splitlines()[3:6]] == ["region=harbour", "all rows", ""]
    _, out, _ = run(capsys, "loans.parquet", *ROLES, "--by", "region", "--top", "0")
    assert "\nregion=" not in out


def test_quiet_prints_the_verdict_only(loans_directory, capsys):
    _, out, err = run(capsys, "loans.parquet", *ROLES, "--quiet", "--report", "quiet.html")
    assert out.startswith("miscalibrated: ")
    assert out.count("\n") == 1
    assert err == ""


def test_queries_need_no_file(loans_directory, capsys):
    output = audit_json(capsys, "--sql", "SELECT * FROM 'loans.parquet' WHERE region = 'north'", "--by", "product")
    assert 0 < output["rows"] < 12_000


def test_queries_read_files_as_the_table_data(loans_directory, capsys):
    output = audit_json(capsys, "loans.parquet", "--sql", "SELECT *, age > 40 AS older FROM data", "--by", "older")
    assert {finding["segment"] for finding in output["findings"]} == {"older=false", "older=true", "all rows"}


def test_several_files_are_concatenated(loans_directory, capsys):
    assert audit_json(capsys, "loans.parquet", "calm.parquet", "--by", "region")["rows"] == 15_000


def test_json_and_page_are_written_to_files(loans_directory, tmp_path, capsys):
    code, out, _ = run(
        capsys,
        "loans.parquet",
        *ROLES,
        "--by",
        "region",
        "--json",
        str(tmp_path / "a.json"),
        "--report",
        str(tmp_path / "a.html"),
    )
    assert code == 0
    assert f"wrote {tmp_path / 'a.html'}\nwrote {tmp_path / 'a.json'}\n" in out
    assert json.loads((tmp_path / "a.json").read_text())["rows"] == 12_000
    assert "<!DOCTYPE html>" in (tmp_path / "a.html").read_text(encoding="utf-8")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.html", "a.json"]


def test_json_is_strict(tmp_path, capsys):
    # A certain prediction contradicted has an infinite ratio, and thin segments have no p-value.
    data = {"outcome": [0, 1] * 100, "prediction": [0.0, 0.7] * 100, "g": ["a"] * 190 + ["b"] * 10}
    data["outcome"][0] = 1
    pl.DataFrame(data).write_csv(tmp_path / "x.csv")

    def refuse(word):
        raise AssertionError(word)

    code, out, _ = run(capsys, str(tmp_path / "x.csv"), *ROLES, "--json", "-")
    assert code == 0
    output = json.loads(out, parse_constant=refuse)
    assert any(finding["p_value"] is None for finding in output["findings"])


def test_fail_if_sets_exit_code_1(loans_directory, capsys):
    assert run(capsys, "loans.parquet", *ROLES, "--by", "region")[0] == 0
    assert run(capsys, "loans.parquet", *ROLES, "--by", "region", "--fail-if", "miscalibrated")[0] == 1
    assert run(capsys, "calm.parquet", *ROLES, "--by", "region", "--fail-if", "miscalibrated")[0] == 0
    material = ["loans.parquet", *ROLES, "--by", "region", "--fail-if", "material"]
    possible = [*material[:-1], "possibly-material"]
    for tolerance, state, codes in (
        ("1%", "material", [1, 1, 1]),
        ("60%", "possibly material", [0, 0, 1]),
        ("500%", "within tolerance", [0, 0, 0]),
    ):
        gates = [[*material[:-1], "miscalibrated"], material, possible]
        runs = [run(capsys, *gate, "--tolerance", tolerance, "--quiet") for gate in gates]
        assert [code for code, _, _ in runs] == codes
        assert all(out.startswith(f"{state}: ") for _, out, _ in runs)
    for gate in (material, possible):
        code, _, err = run(capsys, *gate)
        assert (code, err.splitlines()[0]) == (2, f"error: --fail-if {gate[-1]} needs a tolerance")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["loans.parquet", "--outcome", "outcom", "--prediction", "prediction"], "did you mean 'outcome'?"),
        (["loans.parquet", "--outcome", "outcome", "--prediction", "predictions"], "did you mean 'prediction'?"),
        (["loans.parquet", *ROLES, "--by", "regio"], "no column 'regio' to use as segment column\nhint: did you mean 'region'?"),
        (["loans.parquet", *ROLES, "--weight", "ww"], "no column 'ww' to use as weight"),
        (["loans.parquet", *ROLES, "--categorical", "zipp"], "did you mean 'zip'?"),
        (["nothing.parquet", *ROLES], "nothing.parquet"),
        (["loans.parquet", *ROLES, "--depth", "4"], "--depth must be an integer from 1 to 3; got 4\nhint: 2 combines two"),
        (["loans.parquet", *ROLES, "--bins", "opened=hour"], "'day'; got 'hour'\nhint: a day is the shortest"),
        (["loans.parquet", *ROLES, "--alpha", "2"], "alpha must lie between 0 and 1"),
        (["loans.parquet", *ROLES, "--alpha", "few"], "error: --alpha must be a number; got 'few'\nhint: see trueup audit --help"),
        (["loans.parquet", *ROLES, "--threads", "0"], "--threads must be an integer at least 1; got 0"),
        (["loans.parquet", *ROLES, "--adjust", "bonferroni"], "invalid choice: 'bonferroni'"),
        (["loans.parquet", *ROLES, "--fail-if", "rainy"], "invalid choice: 'rainy'"),
        (["loans.parquet", *ROLES, "--reprot", "x.html"], "hint: did you mean --report?"),
        (["loans.parquet", "--outcom", "outcome"], "hint: did you mean --outcome?"),
        (["loans.parquet", *ROLES, "--bogus"], "arguments: --bogus\nhint: see trueup audit --help"),
        (["loans.parquet"], "required: --outcome, --prediction\nhint: see trueup audit --help"),
        ([], "required: FILE, --outcome, --prediction\nhint: see trueup audit --help"),
        (["--outcome", "y"], "required: FILE, --prediction\n"),
        (["--sql", "FROM data"], "required: --outcome, --prediction\n"),
        (ROLES, "no FILE was named\nhint: name files, or pass a query with --sql"),
        (["loans.parquet", *ROLES, "--by", "region", "--bins", "age=5"], "bins are given for column 'age'"),
        (["loans.parquet", *ROLES, "--sql", "SELEC 1"], "hint: "),
        (["loans.parquet", *ROLES, "--report", "no/a.html"], "there is no directory no\nhint: make the directory first"),
        (["loans.parquet", *ROLES, "--json", "."], "it is a directory"),
        (["loans.parquet", *ROLES, "--json", "loans.parquet"], "loans.parquet would overwrite an input file"),
        (["loans.parquet", *ROLES, "--adjust", "max", "--draws", "100"], "hint: use 199 or 999 draws"),
    ],
)  # fmt: skip
def test_invalid_input_exits_with_code_2_and_a_hint(loans_directory, capsys, arguments, message):
    code, out, err = run(capsys, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err


def test_outputs_are_checked_before_rows_are_read(loans_directory, capsys, monkeypatch):
    monkeypatch.setattr("trueup.cli.io.read_files", lambda *_, **__: pytest.fail("read before the check"))
    assert run(capsys, "loans.parquet", *ROLES, "--report", "no/a.html")[0] == 2


def test_unexpected_errors_are_one_line_and_exit_with_code_3(loans_directory, capsys, monkeypatch):
    def break_down(*_, **__):
        raise RuntimeError("the \x1b[31mwheel came off")

    monkeypatch.setattr("trueup.cli.audit.audit", break_down)
    code, out, err = run(capsys, "loans.parquet", *ROLES)
    assert (code, out) == (3, "")
    assert "unexpected error: RuntimeError: the ·[31mwheel came off\n" in err
    assert "please report it; run with --debug" in err
    assert main(["audit", "loans.parquet", *ROLES, "--debug"]) == 3
    err = capsys.readouterr().err
    assert "Traceback (most recent call last)" in err
    assert "unexpected error: RuntimeError" in err


def test_memory_errors_are_reported(loans_directory, capsys, monkeypatch):
    def fill(*_, **__):
        raise MemoryError

    monkeypatch.setattr("trueup.cli.audit.audit", fill)
    code, _, err = run(capsys, "loans.parquet", *ROLES)
    assert code == 2
    assert "not enough memory\nhint: " in err


def test_interrupts_exit_with_code_130(loans_directory, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("trueup.cli.audit.audit", interrupt)
    code, out, err = run(capsys, "loans.parquet", *ROLES)
    assert (code, out, err) == (130, "", "interrupted\n")


def test_warnings_of_trueup_are_printed_on_one_line(loans_directory, tmp_path, capsys):
    pl.DataFrame({"outcome": [0] * 300, "prediction": [0.1, 0.2, 0.3] * 100, "g": ["u", "v", "w"] * 100}).write_csv(
        tmp_path / "x.csv"
    )
    code, _, err = run(capsys, str(tmp_path / "x.csv"), *ROLES)
    assert code == 0
    assert err.startswith("warning: every outcome in column 'outcome' is 0 (300 rows)")
    assert "OneClassWarning" not in err
    assert err.count("\n") == 1


def test_other_warnings_are_unchanged(loans_directory, capsys, monkeypatch):
    def warn(_):
        warnings.warn("from elsewhere", RuntimeWarning, stacklevel=1)
        return {}

    monkeypatch.setattr("trueup.cli.io.parse_bins", warn)
    with pytest.warns(RuntimeWarning, match="from elsewhere"):
        assert main(["audit", "loans.parquet", *ROLES]) == 0


def test_the_version_is_printed(capsys):
    assert main(["--version"]) == 0
    assert capsys.readouterr().out == f"trueup {tu.__version__}\n"


def test_a_missing_verb_shows_help_and_exits_with_code_2(capsys):
    assert main([]) == 2
    assert "trueup demo" in capsys.readouterr().err
    assert main(["fly"]) == 2
    assert "invalid choice: 'fly'" in capsys.readouterr().err


def test_help_lists_the_verbs(capsys):
    assert main(["--help"]) == 0
    out = capsys.readouterr().out
    assert "audit" in out
    assert "demo" in out
