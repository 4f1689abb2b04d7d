"""Default columns, training rows, and suggested next commands."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest

from commands import ROLES, call, run
from trueup.cli import audit as audit_command
from trueup.cli.console import ProgressDisplay
from trueup.cli.next_steps import fit_words
from trueup.cli.parser import build_parser
from trueup.modelfile import load

TWO = ["--outcome", "y", "--prediction", "p_trueup", "--against", "p", "--by", "country"]
PLATT = ["--outcome", "y", "--prediction", "p", "--method", "platt", "--by", "country", "--quiet"]


def scored(capsys, model, rows, place):
    """Correct the scores of a file."""
    assert call(capsys, "predict", model, rows, "-o", place, "--quiet")[0] == 0


@pytest.fixture
def halves(workdir, capsys):
    """Write two files of different rows, and a model fitted on the first."""
    frame = pl.read_parquet("rows.parquet").select("country", "age", "p", "y")
    frame[:2000].write_csv("old.csv")
    frame[2000:].write_csv("new.csv")
    assert call(capsys, "fit", "old.csv", *PLATT, "-o", "m.trueup")[0] == 0
    return workdir


# Columns


def test_default_segment_columns_are_listed(halves, capsys):
    roles = ["--outcome", "y", "--prediction", "p"]
    _, out, err = run(capsys, "old.csv", *roles)
    assert "\nsegments of country and age: all columns without a role; choose columns with --by\n" in out
    assert err == ""
    assert "segments of" not in run(capsys, "old.csv", *roles, "--by", "country")[1]
    assert run(capsys, "old.csv", *roles, "--quiet")[1].count("\n") == 1


def test_many_columns_are_counted(loans_directory, capsys):
    _, out, _ = run(capsys, "loans.parquet", *ROLES, "--depth", "1")
    assert "\nsegments of region, product, employment, age, income and 4 more: all columns" in out


def test_untested_segments_are_not_counted_among_hidden_ones(loans_directory, capsys):
    _, out, _ = run(capsys, "loans.parquet", *ROLES, "--by", "region", "--min-rows", "3000", "--top", "2")
    assert "more segment" not in out
    assert "not tested: 12 segments have fewer than 3,000 rows" in out


# The fix


def test_errors_within_tolerance_are_followed_by_a_next_step(loans_directory, capsys):
    given = ["loans.parquet", *ROLES, "--by", "region", "--tolerance"]
    _, out, _ = run(capsys, *given, "500%")
    assert "\nnext: no correction is required for mean errors of up to 500%." in out
    assert "trueup fit" not in out
    _, out, _ = run(capsys, "loans.parquet", *ROLES, "--by", "region", "--min-rows", "50000")
    assert "\nnext: collect more rows. A segment needs at least 50,000 to be tested.\n" in out


def test_errors_are_followed_by_the_next_step_of_the_page_and_the_fit(loans_directory, capsys):
    given = ["loans.parquet", *ROLES, "--by", "region"]
    for more, sentence in (
        (
            [],
            "decide how large an error matters, and audit again with it, for example --tolerance 10%. If these errors matter",
        ),
        (
            ["--tolerance", "1%"],
            "do not rely on the scores in these segments until they are corrected. Correct the scores: fit",
        ),
    ):
        _, out, _ = run(capsys, *given, *more)
        step, page, fit = out.splitlines()[-3:]
        assert step.startswith(f"next: {sentence}")
        assert page == f"  trueup audit loans.parquet {' '.join([*ROLES, '--by', 'region', *more])} -o report.html"
        assert fit.startswith("  trueup fit loans.parquet ")


def test_a_model_of_another_score_is_rejected(halves, capsys):
    scored(capsys, "m.trueup", "new.csv", "s.csv")
    given = ["s.csv", "--outcome", "y", "--prediction", "p_trueup", "--against", "age", "--task", "regression"]
    code, out, err = run(capsys, *given, "--fix", "m.trueup")
    assert (code, out) == (2, "")
    assert err == (
        "error: --fix m.trueup corrects 'p', but --against names 'age'\n"
        "hint: name the score that it corrects with --against, or leave --fix out\n"
    )


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_training_rows_are_recognised_in_any_order(halves, capsys, ending):
    scored(capsys, "m.trueup", "old.csv", f"s.{ending}")
    frame = (pl.read_csv if ending == "csv" else pl.read_parquet)(f"s.{ending}").sample(fraction=1, shuffle=True, seed=1)
    getattr(frame, f"write_{ending}")(f"t.{ending}")
    code, out, err = run(capsys, f"t.{ending}", *TWO, "--fix", "m.trueup")
    assert code == 0
    assert err.startswith(
        "warning: these 2,000 rows look like those the model was fitted on; results on them are optimistic"
    )
    assert (
        "\nnext, on rows that the model was not fitted on:\n  trueup predict m.trueup other.parquet -o scored.parquet\n"
        in out
    )


def test_training_rows_of_classes_are_recognised(workdir, capsys):
    scored(capsys, "classes.trueup", "rows.parquet", "s.parquet")
    words = ["--prediction", "q0_trueup,q1_trueup,q2_trueup", "--against", "q0,q1,q2", "--classes", "cat,dog,fox"]
    words = ["--outcome", "species", *words, "--by", "country"]
    _, _, err = run(capsys, "s.parquet", *words, "--fix", "classes.trueup")
    assert err.startswith("warning: these 4,000 rows look like those the model was fitted on")


def test_other_rows_are_not_taken_for_training_rows(halves, capsys):
    scored(capsys, "m.trueup", "new.csv", "s.csv")
    assert load("m.trueup").about.rows == len(pl.read_csv("s.csv")) == 2000
    code, _, err = run(capsys, "s.csv", *TWO, "--fix", "m.trueup")
    assert (code, err) == (0, "")


def test_a_constant_shift_does_not_identify_training_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    for name in ("old.csv", "new.csv"):  # as many rows, and all of them 5 too low
        p = random.uniform(20, 50, 1000)
        pl.DataFrame({"p": p, "y": p + 5 + random.normal(0, 3, 1000), "g": random.choice(["a", "b"], 1000)}).write_csv(name)
    roles = ["--outcome", "y", "--task", "regression"]
    fit = ["--prediction", "p", "--features", "g", "--method", "multiaccuracy", "--quiet", "-o", "m.trueup"]
    assert call(capsys, "fit", "old.csv", *roles, *fit)[0] == 0
    scored(capsys, "m.trueup", "new.csv", "s.csv")
    two = ["--prediction", "p_trueup", "--against", "p", "--fix", "m.trueup", "--by", "g"]
    code, _, err = run(capsys, "s.csv", *roles, *two)
    assert (code, err) == (0, "")


@pytest.mark.parametrize(("rows", "taught"), [("old.csv", True), ("new.csv", False)])
def test_json_states_whether_rows_look_like_training_rows(halves, capsys, rows, taught):
    scored(capsys, "m.trueup", rows, "s.csv")
    assert run(capsys, "s.csv", *TWO, "--fix", "m.trueup", "-o", "both.json")[0] == 0
    assert json.loads(Path("both.json").read_text())["training_rows"] is taught


# What to do next


def test_names_with_a_leading_hyphen_survive_in_next_commands(loans_directory, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    pl.read_parquet(loans_directory / "loans.parquet").rename({"region": "-region"}).write_csv("-loans.csv")
    command = run(capsys, *ROLES, "--by=-region", "--", "-loans.csv")[1].splitlines()[-1].strip()
    assert command.startswith("trueup fit ./-loans.csv ")
    assert call(capsys, *shlex.split(command)[1:], "--quiet")[0] == 0


def test_a_successful_correction_suggests_predict(halves, capsys):
    scored(capsys, "m.trueup", "new.csv", "s.csv")
    _, out, _ = run(capsys, "s.csv", *TWO, "--fix", "m.trueup", "-o", "both.html")
    *_, sentence, command = out.splitlines()
    assert sentence.startswith("next: use p_trueup")
    assert command == "  trueup predict m.trueup new.parquet -o scored.parquet"


def test_a_partial_correction_suggests_to_fit_again(halves, capsys):
    frame = pl.read_csv("new.csv")
    off = pl.Series("y", np.random.default_rng(0).random(2000) < np.minimum(3 * frame["p"].to_numpy(), 1)).cast(pl.Int8)
    frame.with_columns(off).write_csv("moved.csv")
    scored(capsys, "m.trueup", "moved.csv", "s.csv")
    _, out, _ = run(capsys, "s.csv", *TWO, "--fix", "m.trueup", "-o", "both.html")
    *_, sentence, command = out.splitlines()
    assert sentence.startswith("next: ")
    assert command == "  trueup fit more.parquet --outcome y --prediction p --features country -o again.trueup"
    frame.write_parquet("more.parquet")
    assert call(capsys, *shlex.split(command)[1:], "--quiet")[0] == 0


def test_two_scores_without_a_model_get_a_recommendation(halves, capsys):
    scored(capsys, "m.trueup", "new.csv", "s.csv")
    _, out, _ = run(capsys, "s.csv", *TWO, "-o", "both.html")
    assert out.splitlines()[-1].startswith("next: use p_trueup")
    again = run(capsys, "s.csv", *TWO)[1].splitlines()[-1]
    assert again == f"  trueup audit s.csv {' '.join(TWO)} -o report.html"
    assert call(capsys, *shlex.split(again)[1:])[0] == 0


def test_an_explained_row_is_followed_by_a_next_command(workdir, capsys):
    _, out, _ = call(capsys, "explain", "binary.trueup", "--row", '{"p": 0.2, "country": "BR", "age": 31}')
    assert out.endswith("\n\nnext:\n  trueup predict binary.trueup new.parquet -o scored.parquet\n")


def test_decide_suggests_an_audit_once_outcomes_are_known(workdir, capsys):
    costs = ["--prediction", "p", "--cost-fn", "5", "--cost-fp", "1", "--by", "country"]
    _, out, _ = call(capsys, "decide", "rows.csv", *costs)
    assert out.endswith(
        "\n\nnext, once outcomes are known:\n  trueup audit rows.csv --outcome Y --prediction p --by country\n"
    )
    # Where labelled rows say that the scores are off, putting them right comes first.
    _, out, _ = call(capsys, "decide", "rows.csv", *costs, "--labelled", "rows.parquet", "--outcome", "y")
    assert "once outcomes are known" not in out
    assert "\n  trueup fit rows.parquet " in out


# The page


def test_the_page_has_the_same_fit_command_as_the_terminal(loans_directory, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    words = [str(loans_directory / "loans.csv"), *ROLES, "--by", "region,zip", "--categorical", "zip", "--positive", "1"]
    line = run(capsys, *words)[1].splitlines()[-1].strip()
    arguments = build_parser().parse_args(["audit", *words])
    arguments.words = ["audit", *words]
    source = audit_command.find_source(arguments, ProgressDisplay(), fit_words(arguments, ["loans.csv"]))
    assert source.fit == line.replace(str(loans_directory / "loans.csv"), "loans.csv")
    assert source.fit.startswith("trueup fit loans.csv --outcome outcome --positive 1 --prediction prediction --features ")
    assert "--categorical zip" in source.fit


def test_the_fit_command_of_a_page_has_no_directory_and_no_credentials(loans_directory, tmp_path, monkeypatch, capsys):
    seen = []
    original = audit_command.Source
    monkeypatch.setattr(audit_command, "Source", lambda *given: seen.append(original(*given)) or seen[-1])
    query = "SET VARIABLE password = 'hunter2'; SELECT * FROM data"
    words = [loans_directory / "loans.parquet", "--sql", query, *ROLES, "--by", "region", "-o", tmp_path / "a.html"]
    assert run(capsys, *words)[0] == 0
    (source,) = seen
    assert source.fit.startswith("trueup fit loans.parquet --sql '(omitted: ")
    assert "hunter2" not in source.fit


def test_two_scores_have_no_fit_command(halves, capsys):
    scored(capsys, "m.trueup", "new.csv", "s.csv")
    run(capsys, "s.csv", *TWO, "-o", "both.json")
    assert json.loads(Path("both.json").read_text())["source"].get("fit", "") == ""


def test_the_title_appears_on_the_page(loans_directory, tmp_path, capsys):
    place = tmp_path / "a.html"
    assert run(capsys, "loans.parquet", *ROLES, "--by", "region", "--title", "Loans <of> May", "-o", place)[0] == 0
    assert "Loans &lt;of&gt; May" in place.read_text(encoding="utf-8")


def test_next_commands_keep_the_weights(halves, capsys):
    frame = pl.read_csv("old.csv")
    frame.with_columns(pl.Series("w", np.random.default_rng(0).uniform(0.5, 3, len(frame)))).write_csv("heavy.csv")
    assert call(capsys, "fit", "heavy.csv", *PLATT, "--weight", "w", "-o", "h.trueup")[0] == 0
    command = call(capsys, "predict", "h.trueup", "heavy.csv", "-o", "s.csv")[1].splitlines()[-1]
    assert " --weight w " in command
    code, _, err = call(capsys, *shlex.split(command)[1:])
    assert code == 0
    assert err.startswith("warning: these 2,000 rows look like those the model was fitted on")
