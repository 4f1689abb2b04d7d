"""`trueup fit --held-out`: held-out rows as evidence for decisions with corrected scores."""

from __future__ import annotations

import json
import shlex

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call
from trueup.cli import main

GIVEN = ["--outcome", "y", "--prediction", "p", "--features", "country,age"]


def read(path):
    return pl.read_parquet(path) if path.endswith("parquet") else pl.read_csv(path, schema_overrides={"code": pl.String})


@pytest.mark.parametrize(("source", "held"), [("rows.parquet", "h.csv"), ("rows.csv", "h.parquet")])
def test_held_out_rows_have_all_columns_and_held_out_scores(workdir, capsys, source, held):
    code, out, err = call(capsys, "fit", source, *GIVEN, "-o", "m.trueup", "--held-out", held)
    assert (code, err) == (0, "")
    frame, result = read(source), read(held)
    fix = tu.MCGrad("p", ["country", "age"]).fit(frame, frame["y"])
    assert result.columns == [*frame.columns, "p_trueup", "p_trueup_held_out"]
    np.testing.assert_array_equal(result["p_trueup"], fix.held_out_.p)
    assert result["code"].to_list() == frame["code"].to_list()
    assert np.abs(result["p_trueup"] - fix.predict(frame)).max() > 0.001  # not those of the model, which has seen them
    assert f"\nwrote {held}: 4,000 rows with held-out corrected scores\nnext:\n" in out
    decide = f"--prediction p_trueup --cost-fn X --cost-fp Y --labelled {held} --outcome y"
    assert f"  trueup predict m.trueup new.parquet -o scored.parquet\n  trueup decide scored.parquet {decide}\n" in out


def test_only_held_out_rows_are_written(workdir, capsys, monkeypatch):
    monkeypatch.setattr("trueup.calibrators.auto.MAX_EVALUATION_ROWS", 100)
    gap = pl.when(pl.col("id") % 10 == 0).then(None).otherwise(pl.col("y"))
    frame = pl.read_parquet("rows.parquet").with_columns(y=gap, w=(pl.col("id") % 4).cast(pl.Float64))
    frame.write_parquet("gaps.parquet")
    given = ["--outcome", "y", "--prediction", "p", "--weight", "w", "--unlabelled", "drop", "--features", "country"]
    code, out, _ = call(
        capsys, "fit", "gaps.parquet", *given, "--method", "auto", "-o", "m.trueup", "--held-out", "h.parquet"
    )
    assert code == 0
    result = pl.read_parquet("h.parquet")
    assert 100 < len(result) < 4000
    assert result["id"].is_sorted()
    assert result["y"].null_count() == 0
    assert (result["w"] > 0).all()
    assert result["p_trueup"].is_not_nan().all()
    same = frame.filter(pl.col("id").is_in(result["id"].to_list()))
    assert result.drop("p_trueup", "p_trueup_held_out").equals(same)
    assert "--outcome y --weight w\n" in out


def test_cross_validated_curves_hold_rows_out(workdir, capsys):
    given = ["--outcome", "y", "--prediction", "p", "--method", "platt", "--cross-validate", "-o", "m.trueup"]
    code, out, _ = call(capsys, "fit", "rows.csv", *given, "--held-out", "h.csv", "--json", "-")
    assert code == 0
    assert json.loads(out)["held_out"] == {"file": "h.csv", "rows": 4000}
    code, out, _ = call(capsys, "fit", "rows.csv", *given, "--held-out", "h.csv", "--quiet")
    assert (code, out.count("\n")) == (0, 1)


def test_ordered_queries_can_be_run_again_for_held_out_rows(workdir, capsys):
    query = "SELECT y, p, country, age FROM 'rows.parquet' WHERE age > 30 ORDER BY id DESC"
    code, _, _ = call(capsys, "fit", "--sql", query, *GIVEN, "-o", "m.trueup", "--held-out", "h.parquet")
    assert code == 0
    result = pl.read_parquet("h.parquet")
    assert result.columns == ["y", "p", "country", "age", "p_trueup", "p_trueup_held_out"]
    assert len(result) == (pl.read_parquet("rows.parquet")["age"] > 30).sum()


def test_interrupts_leave_no_model_and_no_partial_file(workdir, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("trueup.cli.io.add_columns", interrupt)
    before = sorted(workdir.iterdir())
    given = [*GIVEN, "-o", "m.trueup", "--held-out", "h.parquet"]
    assert call(capsys, "fit", "rows.parquet", *given) == (130, "", "interrupted\n")
    assert sorted(workdir.iterdir()) == before


def test_steps_of_cross_fitted_scores_are_no_shift(workdir, capsys):
    # Every fold has bins of its own: the steps of held-out scores are a little beside those of the model.
    random = np.random.default_rng(1)
    z = random.normal(-1, 1.2, 6000)
    frame = pl.DataFrame({"p": 1 / (1 + np.exp(-z)), "y": 1 * (random.random(6000) < 1 / (1 + np.exp(-0.5 * z)))})
    frame.head(2000).write_parquet("old.parquet")
    frame.tail(4000).drop("y").write_parquet("new.parquet")
    given = ["--outcome", "y", "--prediction", "p", "--method", "histogram", "--cross-validate"]
    assert call(capsys, "fit", "old.parquet", *given, "-o", "m.trueup", "--held-out", "h.parquet")[0] == 0
    assert call(capsys, "predict", "m.trueup", "new.parquet", "-o", "s.parquet")[0] == 0
    decide = ["--cost-fn", "5", "--cost-fp", "1", "--labelled", "h.parquet", "--outcome", "y"]
    assert call(capsys, "decide", "s.parquet", "--prediction", "p_trueup", *decide)[2] == ""
    # By another name they are any scores, and are said to have moved.
    for name in "hs":
        pl.read_parquet(f"{name}.parquet").rename({"p_trueup": "q"}).write_parquet(f"{name}.parquet")
    assert "the score distribution has shifted" in call(capsys, "decide", "s.parquet", "--prediction", "q", *decide)[2]


def test_the_next_commands_of_decide_lead_to_calibrated_scores(workdir, capsys):
    frame = pl.read_parquet("rows.parquet")
    frame.filter(pl.col("id") % 2 == 0).write_parquet("old.parquet")
    frame.filter(pl.col("id") % 2 == 1).drop("y").write_parquet("new.parquet")
    costs = "--cost-fn 500 --cost-fp 60 --capacity 900 --by country --level 0.8"
    given = f"decide new.parquet --prediction p {costs} --labelled old.parquet --outcome y"
    code, out, _ = call(capsys, *shlex.split(given))
    assert code == 0
    commands = [line.removeprefix("  trueup ") for line in out.splitlines() if line.startswith("  trueup ")]
    assert [item.split()[0] for item in commands] == ["fit", "predict", "decide"]
    assert "--features country --held-out held.parquet -o model.trueup" in commands[0]
    for item in commands[:2]:
        assert main(shlex.split(item)) == 0
    capsys.readouterr()
    code, out, err = call(capsys, *shlex.split(commands[2]), "--json", "-")
    assert (code, err) == (0, "")
    output = json.loads(out)
    assert not output["labelled"]["miscalibrated"]
    # What the functions say of the same fix, which held its own rows out.
    old, new = (pl.read_parquet(f"{name}.parquet") for name in ("old", "new"))
    fix = tu.MCGrad("p", ["country"]).fit(old, old["y"])
    p, asked = fix.predict(new), {"fn": 500, "fp": 60}
    best = tu.decisions.best_rule(p, asked, capacity={"act": 900})
    result = tu.decisions.expected_cost(p, asked, best, tuple(fix.held_out_), level=0.8)
    for name in ("estimate", "low", "high"):
        assert output["cost"][name] == pytest.approx(getattr(result, name))
    assert set(output["by_segment"]) == {"country=BR", "country=DE", "country=US"}


def test_an_audit_of_held_out_scores_says_that_it_is_nearly_blind(workdir, capsys):
    assert call(capsys, "fit", "rows.csv", *GIVEN, "-o", "m.trueup", "--held-out", "h.csv")[0] == 0
    assert call(capsys, "predict", "m.trueup", "rows.csv", "-o", "scored.csv")[0] == 0
    for options in ([], ["--memory", "1GB", "--by", "country"], ["--against", "p"]):
        audited = ["--outcome", "y", "--prediction", "p_trueup", *options]
        code, out, _ = call(capsys, "audit", "h.csv", *audited)
        assert code == 0
        assert "; nearly blind: these are held-out scores of a cross-fit" in out.splitlines()[0]
        assert "an audit of them is nearly blind; audit rows that were not used for the fit" in " ".join(out.split())
        assert "p_trueup_held_out" not in out
        assert "nearly blind" not in call(capsys, "audit", "scored.csv", *audited)[1]
