"""Files that `trueup audit` writes, comparisons of two scores, and notes."""

from __future__ import annotations

import csv
import hashlib
import io
import json
from importlib import resources
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import ROLES, call, run
from trueup.audits.text import number
from trueup.cli import audit as audit_command
from trueup.storage import cannot_write

BY = ["--by", "region"]


@pytest.fixture
def scored(tmp_path, monkeypatch):
    """Write a file with two scores of the same rows and a text outcome."""
    monkeypatch.chdir(tmp_path)
    data = tu.simulate.lending(6000, 0)
    frame = pl.DataFrame({
        "status": np.where(data["outcome"] == 1, "late", "paid"), "outcome": data["outcome"],
        "prediction": data["truth"], "old": data["prediction"], "region": data["region"],
    })  # fmt: skip
    frame.write_csv("scored.csv")
    return frame


# Files


def test_the_extension_determines_what_is_written(loans_directory, tmp_path, capsys):
    places = [tmp_path / name for name in ("a.html", "a.md", "a.csv", "a.json")]
    code, out, _ = run(capsys, "loans.parquet", *ROLES, *BY, *(word for item in places for word in ("-o", item)))
    assert code == 0
    assert [line for line in out.splitlines() if line.startswith("wrote")] == [f"wrote {item}" for item in places]
    page, summary, table, data = (path.read_text(encoding="utf-8") for path in places)
    assert page.startswith("<!DOCTYPE html>")
    assert summary.startswith("## ")
    assert json.loads(data)["rows"] == 12_000
    rows = list(csv.DictReader(io.StringIO(table)))
    assert [row["segment"] for row in rows] == [item["segment"] for item in json.loads(data)["findings"]]


def test_options_write_the_same_as_extensions(loans_directory, tmp_path, capsys):
    run(capsys, "loans.parquet", *ROLES, *BY, "-o", tmp_path / "a.csv", "--csv", tmp_path / "b.txt")
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.txt").read_bytes()


@pytest.mark.parametrize(("option", "begins"), [("--csv", "segment,"), ("--markdown", "## "), ("--json", '{"verdict"')])
def test_a_hyphen_writes_only_data_to_standard_output(loans_directory, capsys, option, begins):
    code, out, err = run(capsys, "loans.parquet", *ROLES, *BY, option, "-")
    assert (code, err) == (0, "")
    assert out.startswith(begins)
    assert "wrote" not in out
    assert "next:" not in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-o", "report.docx"], "-o report.docx has no known extension\nhint: -o report.html is the page"),
        (["-o", "-"], "-o - has no known extension"),
        (["-o", "."], "-o . is a directory\nhint: name a file in it, such as report.html"),
        (["-o", "report.pdf"], "-o report.pdf: PDF is not supported\nhint: write .html and print it to PDF in a browser"),
        (["--title", "Loans", "-o", "a.csv"], "--title needs a page or a summary to be written\nhint: add -o"),
        (["--title", "  "], "--title is empty\nhint: leave it out for the default title"),
        (["-o", "a.csv", "--csv", "a.csv"], "a.csv would be written twice"),
        (["--csv", "-", "--json", "-"], "only one output can go to standard output"),
        (["--profile", "credits"], "there is no profile 'credits'\nhint: did you mean 'credit'?"),
        (["--profile", "none.toml"], "cannot read the profile 'none.toml'"),
        (["--tolerance", "much"], "--tolerance must be a number or a percentage; got 'much'\nhint: write 0.02 for "),
        (["--fail-if", "miscalibrated", "--tolerance", "-1"], "--tolerance must be a number or a percentage; got '-1'"),
        (["--against", "prediction"], "--against prediction is also the --prediction"),
        (["--against", "age,term"], "--against must name as many columns as --prediction, 1; got 2"),
        (["--against", "p_old"], "no column 'p_old' to use as other prediction\nhint: the columns are "),  # not product
        (["--against", "agee"], "no column 'agee' to use as other prediction\nhint: did you mean 'age'?"),
        (["--fix", "m.trueup"], "--fix needs --against"),
        (["--fix", "m.trueup", "--against", "age"], "m.trueup"),
        (["--positive", "2"], "no row has the outcome '2' in column 'outcome'\nhint: its values are '0', '1'"),
        (["--positive", "1", "--task", "regression"], "--positive and --task regression cannot be combined"),
        (["--outcome", "region", "--positive", "harbor"], "did you mean 'harbour'?"),
    ],
)  # fmt: skip
def test_invalid_input_has_a_hint(loans_directory, capsys, arguments, message):
    code, out, err = run(capsys, "loans.parquet", *ROLES, *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_an_unwritable_directory_is_not_reported_as_missing(tmp_path):
    # As /proc does: opening a new file there says that there is no such file or directory.
    error = cannot_write(tmp_path / "x.html", FileNotFoundError(), example="a.html")
    assert error.message == f"cannot write {tmp_path / 'x.html'}: no permission to write in {tmp_path}"
    gone = cannot_write(tmp_path / "no" / "x.html", FileNotFoundError(), example="a.html")
    assert gone.message.endswith(f"there is no directory {tmp_path / 'no'}")


def test_json_states_the_files_and_the_command(loans_directory, tmp_path, capsys):
    place = tmp_path / "it's.json"
    run(capsys, "loans.parquet", *ROLES, *BY, "-o", place)
    source = json.loads(place.read_text())["source"]
    rows = Path("loans.parquet").read_bytes()
    assert source["files"] == [{"name": "loans.parquet", "bytes": len(rows), "sha256": hashlib.sha256(rows).hexdigest()}]
    quoted = "'" + str(place).replace("'", "'\"'\"'") + "'"
    assert source["command"] == f"trueup audit loans.parquet {' '.join(ROLES)} --by region -o {quoted}"


def test_json_contains_only_the_names_of_files(loans_directory, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    run(capsys, loans_directory / "loans.parquet", *ROLES, *BY, "--json", "a.json")
    assert json.loads(Path("a.json").read_text())["source"]["files"][0]["name"] == "loans.parquet"


def test_large_files_have_no_digest(loans_directory, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(audit_command, "MAX_DIGEST_BYTES", 10)
    run(capsys, "loans.parquet", *ROLES, *BY, "-o", tmp_path / "a.json")
    (file,) = json.loads((tmp_path / "a.json").read_text())["source"]["files"]
    assert file["sha256"] == audit_command.NO_DIGEST


def test_files_are_not_digested_without_output(loans_directory, monkeypatch, capsys):
    monkeypatch.setattr("trueup.cli.audit.find_source", lambda *_: pytest.fail("digested"))
    assert run(capsys, "loans.parquet", *ROLES, *BY)[0] == 0


# Two scores


def test_two_scores_are_compared_on_the_same_rows(scored, capsys):
    given = ["scored.csv", *ROLES, "--against", "old", *BY]
    code, out, _ = run(capsys, *given, "-o", "both.html", "-o", "both.csv", "-o", "both.json", "-o", "both.md")
    assert code == 0
    new, old = (tu.audit(scored, outcome="outcome", prediction=name, by=["region"]) for name in ("prediction", "old"))
    assert out.startswith(new.verdict + "\n")
    assert f"\nold: {old.verdict}\n" in out
    (line,) = (line for line in out.splitlines() if line.startswith("Brier score"))
    assert line.split()[2:] == [number(item.summary.scores["brier"], 4) for item in (old, new)]
    assert any(line.startswith("AUC ") for line in out.splitlines())
    output = json.loads(Path("both.json").read_text())
    assert (output["verdict"], output["against"]["verdict"]) == (new.verdict, old.verdict)
    rows = list(csv.DictReader(io.StringIO(Path("both.csv").read_text())))
    assert {row["prediction"] for row in rows} == {"old", "prediction"}
    assert "old" in Path("both.html").read_text(encoding="utf-8")


def test_the_other_score_forms_no_segments_and_sets_no_exit_code(scored, capsys):
    gate = ["--fail-if", "miscalibrated", "--json", "-"]
    roles = ["--sql", "SELECT outcome, prediction, old, region FROM data"]
    code, out, _ = run(capsys, "scored.csv", *roles, *ROLES, "--against", "old", *gate)
    assert code == 0
    assert json.loads(out)["by"] == json.loads(out)["against"]["by"] == ["region"]
    swapped = ["--outcome", "outcome", "--prediction", "old", "--against", "prediction"]
    assert run(capsys, "scored.csv", *roles, *swapped, *gate)[0] == 1


def test_the_page_of_two_scores_shows_the_corrections(workdir, capsys):
    assert call(capsys, "predict", "binary.trueup", "rows.parquet", "-o", "scored.parquet")[0] == 0
    given = ["--outcome", "y", "--prediction", "p_trueup", "--against", "p", "--by", "country"]
    assert run(capsys, "scored.parquet", *given, "--fix", "binary.trueup", "-o", "both.html")[0] == 0
    assert "What the fix corrected" in Path("both.html").read_text(encoding="utf-8")


def test_the_next_command_of_predict_works(workdir, capsys):
    import shlex

    roles = ["--outcome", "y", "--prediction", "p", "--method", "platt", "--by", "country"]
    assert call(capsys, "fit", "rows.parquet", *roles, "-o", "m.trueup", "--quiet")[0] == 0
    _, out, _ = call(capsys, "predict", "m.trueup", "rows.parquet", "-o", "scored.parquet")
    line = out.splitlines()[-1]
    assert line.startswith("  trueup audit scored.parquet --outcome y --prediction p_trueup --against p ")
    assert call(capsys, *shlex.split(line)[1:])[0] == 0


# Outcomes, profiles, gates


def test_positive_encodes_text_outcomes(scored, capsys):
    given = ["scored.csv", "--prediction", "prediction", *BY, "--json", "-"]
    words = json.loads(run(capsys, *given, "--outcome", "status", "--positive", "late")[1])
    numbers = json.loads(run(capsys, *given, "--outcome", "outcome")[1])
    assert words["findings"] == numbers["findings"]
    assert words["roles"]["outcome"] == "status"
    _, _, err = run(capsys, *given, "--outcome", "status")
    assert err.endswith("hint: name the positive outcome, such as --positive paid\n")


def test_options_override_profile_defaults(loans_directory, tmp_path, capsys):
    (tmp_path / "mine.toml").write_text('name = "mine"\n[defaults]\ndepth = 1\nmin_rows = 80\nby = ["REGION", "nowhere"]\n')
    given = ["loans.parquet", *ROLES, "--profile", tmp_path / "mine.toml", "--json", "-"]
    output = json.loads(run(capsys, *given)[1])
    assert (output["by"], output["settings"]["depth"], output["settings"]["min_rows"]) == (["region"], 1, 80)
    output = json.loads(run(capsys, *given, "--by", "product,term", "--depth", "2")[1])
    assert (output["by"], output["settings"]["depth"], output["settings"]["min_rows"]) == (["product", "term"], 2, 80)


def test_profiles_change_the_page_but_no_number(loans_directory, tmp_path, capsys):
    result = []
    for profile in ("general", "ads"):
        places = ["-o", tmp_path / f"{profile}.html", "-o", tmp_path / f"{profile}.csv"]
        run(capsys, "loans.parquet", *ROLES, *BY, "--profile", profile, *places)
        result.append(((tmp_path / f"{profile}.html").read_text(), (tmp_path / f"{profile}.csv").read_text()))
    assert result[0][1] == result[1][1]
    assert "Calibration ratio by field and value" not in result[0][0]
    assert "Calibration ratio by field and value" in result[1][0]


def test_tolerance_ignores_small_errors_but_not_cancelling_ones(tmp_path, capsys):
    # Right on average, and off by 0.1 on either side: no mean shows it, the cumulative differences do.
    rng = np.random.default_rng(0)
    p = np.repeat([0.3, 0.7], 4000)
    y = rng.random(8000) < np.repeat([0.4, 0.6], 4000)
    pl.DataFrame({"outcome": y * 1, "prediction": p, "g": ["u", "v"] * 4000}).write_csv(tmp_path / "x.csv")
    given = [tmp_path / "x.csv", *ROLES, "--fail-if", "miscalibrated"]
    assert run(capsys, *given)[0] == 1
    code, out, _ = run(capsys, *given, "--tolerance", "0.03", "--quiet")
    assert code == 1
    assert out.startswith("material: ")
    code, out, _ = run(capsys, *given, "--tolerance", "0.2", "--quiet")
    assert code == 0
    assert out.startswith(
        "within tolerance: 3 of 3 segments miscalibrated at 5% (Holm), the mean of each certainly within 0.2; "
    )


def test_hard_predictions_are_named_in_the_verdict(tmp_path, capsys):
    rng = np.random.default_rng(0)
    p = rng.integers(0, 2, 400)
    y = np.where(rng.random(400) < 0.1, 1 - p, p)
    pl.DataFrame({"outcome": y, "prediction": p, "g": ["u", "v"] * 200}).write_csv(tmp_path / "x.csv")
    _, out, err = run(capsys, tmp_path / "x.csv", *ROLES, "--quiet")
    assert out.endswith("(every prediction is 0 or 1: labels rather than probabilities)\n")
    assert out.count("\n") == 1
    assert err.startswith("warning: every prediction")


# What is said


def test_hidden_problems_and_findings_are_counted(loans_directory, capsys):
    expected = tu.audit(pl.read_parquet("loans.parquet"), outcome="outcome", prediction="prediction", by=["region"])
    _, out, _ = run(capsys, "loans.parquet", *ROLES, *BY, "--top", "1")
    problems = len(expected.problems)
    folded = expected.rejected - problems
    assert problems > 1
    assert folded > 0
    more = problems - 1
    assert f"\n{more} more problem{'s' if more > 1 else ''}: --top {problems}\n" in out
    findings = f"{folded} finding{'s' if folded > 1 else ''}"
    assert f"\n{findings} that these problems explain, and all {len(expected)} segments: -o segments.csv\n" in out
    assert "more problem" not in run(capsys, "loans.parquet", *ROLES, *BY, "--top", "100")[1]


def test_the_next_commands_of_audit_work(loans_directory, tmp_path, monkeypatch, capsys):
    import shlex

    monkeypatch.chdir(tmp_path)
    Path("my loans.parquet").symlink_to(loans_directory / "loans.parquet")
    _, out, _ = run(capsys, "my loans.parquet", *ROLES, *BY)
    page, fit = out.splitlines()[-2:]
    assert page == "  trueup audit 'my loans.parquet' --outcome outcome --prediction prediction --by region -o report.html"
    assert (
        fit == "  trueup fit 'my loans.parquet' --outcome outcome --prediction prediction --features region -o model.trueup"
    )
    assert call(capsys, *shlex.split(page)[1:])[0] == 0
    assert call(capsys, *shlex.split(fit)[1:], "--method", "platt", "--quiet")[0] == 2  # platt reads no features
    _, out, _ = run(capsys, loans_directory / "calm.parquet", *ROLES, *BY, "-o", "calm.html")
    assert "next:" not in out


def test_verbose_prints_notes_on_standard_error(loans_directory, tmp_path, capsys):
    plain = run(capsys, "loans.parquet", *ROLES, "--by", "region,age", "--top", "3")
    code, out, err = run(capsys, "loans.parquet", *ROLES, "--by", "region,age", "--top", "3", "--verbose")
    assert (code, out) == plain[:2]
    assert plain[2] == ""
    for output in ("task: binary", "roles: outcome outcome; prediction prediction", "rows: 12,000", "column region: categorical, 12 levels",
                 "bins of age: 10 (", "adjustment: holm at 0.05; ", "with fewer than 50 rows", "auditing: "):  # fmt: skip
        assert f"  {output}" in err or output in err
    _, _, err = run(capsys, "loans.parquet", *ROLES, *BY, "--verbose", "--profile", "credit", "-o", tmp_path / "a.html")
    assert "SHA-256" in err


@pytest.mark.parametrize(
    ("arguments", "output"),
    [
        (["fit", "rows.parquet", "--outcome", "y", "--prediction", "p", "--method", "platt", "--cross-validate", "-o", "m.trueup"],
         ["method: Platt(", "evaluated by cross-validation", "round 0: log loss", "stopped: "]),
        (["predict", "binary.trueup", "rows.parquet", "-o", "s.parquet"], ["column country: categorical, 3 levels", "scoring: "]),
        (["explain", "binary.trueup"], ["column age: numeric"]),
        (["decide", "rows.parquet", "--prediction", "p", "--cost-fn", "5", "--cost-fp", "1", "--by", "country"],
         ["no labelled rows", "segments by country: 3", "rule: the cheapest"]),
    ],
)  # fmt: skip
def test_every_verb_has_verbose_notes(workdir, capsys, arguments, output):
    code, out, _ = call(capsys, *arguments)
    loud = call(capsys, *arguments, "--verbose")
    assert (code, loud[0]) == (0, 0)
    assert [line for line in output if line not in loud[2]] == []
    if arguments[0] != "fit":  # the size of a file may differ by the day that is written into it
        assert loud[1] == out


@pytest.mark.parametrize(
    "before",
    ["SET VARIABLE password = 'hunter2'", "CREATE SECRET s (TYPE http, BEARER_TOKEN 'hunter2')",
     "SELECT 'postgres://me:hunter2@db/x'", "SET VARIABLE u = 'https://x/y.parquet?sig=hunter2'",
     "SET s3_secret_access_key TO 'hunter2'", "ATTACH 'e.db' AS e (ENCRYPTION_KEY 'hunter2')",
     "PRAGMA add_parquet_key('k', 'hunter2')", "SELECT MAP {'X-Api-Key': 'hunter2'}", "SELECT MAP {'Cookie': 'hunter2'}",
     "ATTACH 'x' AS d (PASSWORD $$hunter2$$)", "ATTACH 'x' AS d (PASSWORD /* of db */ E'hunter2')",
     "ATTACH 'user=me pass=hunter2' AS d", "SELECT 'https://x/y.csv?key=hunter2'", "SELECT 'pg://me:hunter2/x@db/x'",
     "SET VARIABLE pw = 'hunter2'", "SELECT 'AKIAHUNTER2HUNTER2HU', 'hunter2'"],
)  # fmt: skip
@pytest.mark.parametrize("equals", [False, True])
def test_queries_with_credentials_are_omitted(before, equals):
    query = f"{before}; FROM 'loans.parquet'"
    words = [f"--sql={query}"] if equals else ["--sql", query]
    command = audit_command.shareable_command(["audit", *words, *ROLES])
    assert "hunter2" not in command
    assert "omitted" in command
    assert command.endswith(" ".join(ROLES))


def test_no_output_contains_the_credentials_of_a_query(loans_directory, tmp_path, capsys):
    query = "SET VARIABLE password = 'hunter2'; FROM 'loans.parquet'"
    places = [tmp_path / f"a.{ending}" for ending in ("html", "md", "json", "csv")]
    words = [word for place in places for word in ("-o", place)]
    assert run(capsys, "--sql", query, *ROLES, *BY, *words)[0] == 0
    assert [place.name for place in places if "hunter2" in place.read_text()] == []


def test_queries_without_credentials_are_kept_and_home_is_abbreviated(monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    words = ["audit", "/home/somebody/my loans.csv", "--sql", "FROM data WHERE token_count > 3"]
    command = audit_command.shareable_command(words)
    assert command == "trueup audit ~/'my loans.csv' --sql 'FROM data WHERE token_count > 3'"
    for query in ("FROM data WHERE customer_key = 5", "FROM data WHERE passed = 1", "SELECT * FROM 'https://x/y.csv?v=2'"):
        assert "omitted" not in audit_command.shareable_command(["audit", "--sql", query])


@pytest.mark.parametrize("named", ["loans.csv", "./loans.csv", "lo*.csv"])
def test_files_read_by_a_query_are_not_overwritten(loans_directory, capsys, named):
    before = Path("loans.csv").read_bytes()
    for words in (["audit", *ROLES], ["fit", *ROLES], ["decide", *ROLES[2:], "--cost-fn", "5", "--cost-fp", "1"]):
        code, out, err = call(capsys, *words, "--sql", f"FROM '{named}'", "-o", "loans.csv")
        assert (code, out) == (2, "")
        assert err.startswith("error: loans.csv would overwrite an input file")
    assert Path("loans.csv").read_bytes() == before


def test_text_literals_in_queries_are_not_file_patterns(loans_directory, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    query = f"SELECT * REPLACE (replace(region, '*', '') AS region) FROM '{loans_directory / 'loans.parquet'}'"
    for _ in range(2):  # the second time the page is there
        assert run(capsys, "--sql", query, *ROLES, *BY, "-o", "page.html")[0] == 0


def test_the_page_cannot_be_standard_output(loans_directory, capsys):
    code, out, err = run(capsys, "loans.parquet", *ROLES, *BY, "--report", "-")
    assert (code, out) == (2, "")
    assert "--report cannot be standard output" in err
    assert not Path("-").exists()


def test_models_and_profiles_are_not_overwritten(workdir, capsys):
    words = ["rows.parquet", "--outcome", "y", "--prediction", "p", "--by", "country"]
    against = ["--against", "forecast", "--fix", "binary.trueup"]
    code, _, err = run(capsys, *words, *against, "--json", "binary.trueup")
    assert code == 2
    assert "binary.trueup would overwrite an input file" in err
    with resources.as_file(resources.files("trueup.reports.profiles") / "credit.toml") as place:
        Path("mine.toml").write_text(place.read_text())
    code, _, err = run(capsys, *words, "--profile", "mine.toml", "--csv", "mine.toml")
    assert code == 2
    assert "mine.toml would overwrite an input file" in err


def test_the_next_command_keeps_the_settings_of_the_audit(loans_directory, capsys):
    words = ["--depth", "1", "--alpha", "0.5", "--min-rows", "400"]
    _, out, _ = run(capsys, *ROLES, *BY, *words, "--", "loans.parquet")
    settings = " ".join([*ROLES, *BY, *words])
    assert f"\n  trueup audit {settings} -o report.html -- loans.parquet\n" in out


def test_csv_alone_needs_no_digest(loans_directory, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("trueup.cli.audit.find_source", lambda *_: pytest.fail("digested"))
    assert run(capsys, "loans.parquet", *ROLES, *BY, "-o", tmp_path / "a.csv")[0] == 0


def test_all_rows_are_shown_beside_the_problems(loans_directory, capsys):
    _, out, _ = run(capsys, "loans.parquet", *ROLES, *BY, "--depth", "1", "--top", "1", "--tolerance", "5%")
    shown = [line for line in out.splitlines() if line.startswith(("region=", "all rows  "))]
    assert (len(shown), shown[-1][:8]) == (2, "all rows")


# Reference and exposure of the profile of credit


@pytest.fixture
def book(tmp_path, monkeypatch):
    """Write the loans of today with grade and exposure, and the scores at development."""
    monkeypatch.chdir(tmp_path)
    data = tu.simulate.lending(5_000, 0)
    columns = {
        "outcome": data["outcome"], "prediction": data["prediction"], "region": data["region"],
        "grade": np.digitize(data["prediction"], [0.02, 0.05, 0.1]), "ead": np.random.default_rng(0).lognormal(8, 1, 5_000),
    }  # fmt: skip
    pl.DataFrame(columns).write_parquet("loans.parquet")
    pl.DataFrame({"prediction": tu.simulate.lending(3_000, 1)["prediction"]}).write_csv("development.csv")
    return columns


CREDIT = ["--profile", "credit", "--reference", "development.csv", "--exposure", "ead"]


@pytest.mark.parametrize("memory", [[], ["--memory", "500MB"]])
def test_reference_and_exposure_are_read_from_files(book, capsys, memory):
    code, _, _ = run(capsys, "loans.parquet", *ROLES, *CREDIT, *memory, "-o", "a.json", "-o", "a.html", "-o", "a.md")
    assert code == 0
    data = json.loads(Path("a.json").read_text(encoding="utf-8"))
    assert data["by"] == ["region", "grade"]  # the exposure forms no segments
    grades, _, measures, stability = data["sections"]
    here = book["grade"] == 1
    y, p, w = (book[name][here] for name in ("outcome", "prediction", "ead"))
    assert grades["rows"][1]["obs/exp by number"] == pytest.approx(y.sum() / p.sum())
    assert grades["rows"][1]["obs/exp by exposure"] == pytest.approx(w @ y / (w @ p))
    earlier = pl.read_csv("development.csv")["prediction"].to_numpy()
    expected = tu.metrics.psi(earlier, book["prediction"]).value
    assert measures["rows"][-1]["value"] == pytest.approx(expected, rel=0.1 if memory else 1e-9)
    assert len(stability["rows"]) == 10
    assert "obs/exp by exposure" in Path("a.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--reference", "development.csv", "-o", "a.html"], "the profile 'general' has no section for reference"),
        (["--profile", "credit", "--exposure", "ead"], "--exposure needs a page, a summary or JSON to be written"),
        (["--profile", "credit", "--exposure", "eat", "-o", "a.html"], "did you mean 'ead'"),
        ([*CREDIT, "--weight", "ead", "-o", "a.html"], "--exposure and --weight cannot be combined"),
        ([*CREDIT, "--sampling", "1,0.5", "-o", "a.html"], "--exposure and --sampling cannot be combined"),
        (["--profile", "credit", "--reference", "none.csv", "-o", "a.html"], "no file 'none.csv'"),
        ([*CREDIT, "-o", "development.md", "--json", "development.csv"], "would overwrite an input file"),
    ],
)
def test_options_that_nothing_would_show_are_rejected(book, capsys, words, message):
    code, _, err = run(capsys, "loans.parquet", *ROLES, *words)
    assert code == 2
    assert message in err


def test_reference_scores_need_their_weights(book, capsys):
    words = ["--profile", "credit", "--weight", "ead", "--reference", "development.csv", "-o", "a.html"]
    code, _, err = run(capsys, "loans.parquet", *ROLES, *words)
    assert code == 2
    assert "'ead'" in err
