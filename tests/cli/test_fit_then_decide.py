"""`trueup fit --held-out`: rows that judged a fix, as evidence for decisions by corrected scores."""

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


@pytest.mark.parametrize(
    ("source", "held"), [("rows.parquet", "h.parquet"), ("rows.csv", "h.csv"), ("rows.csv", "h.parquet")]
)
def test_held_out_rows_have_all_their_columns_and_the_score_of_a_fix_that_has_not_seen_them(here, capsys, source, held):
    code, out, err = call(capsys, "fit", source, *GIVEN, "-o", "m.trueup", "--held-out", held)
    assert (code, err) == (0, "")
    frame, found = read(source), read(held)
    fix = tu.MCGrad("p", ["country", "age"]).fit(frame, frame["y"])
    assert found.columns == [*frame.columns, "p_trueup"]
    np.testing.assert_array_equal(found["p_trueup"], fix.held_out_.p)
    assert found["code"].to_list() == frame["code"].to_list()
    assert np.abs(found["p_trueup"] - fix.predict(frame)).max() > 0.001  # not those of the model, which has seen them
    assert f"\nwrote {held}: 4,000 rows with held-out corrected scores\nnext:\n" in out
    decide = f"--prediction p_trueup --cost-fn X --cost-fp Y --labelled {held} --outcome y"
    assert f"  trueup predict m.trueup new.parquet -o scored.parquet\n  trueup decide scored.parquet {decide}\n" in out


def test_only_the_rows_that_judged_are_written(here, capsys, monkeypatch):
    monkeypatch.setattr("trueup.calibrators.auto.MAX_EVALUATION_ROWS", 100)
    gap = pl.when(pl.col("id") % 10 == 0).then(None).otherwise(pl.col("y"))
    frame = pl.read_parquet("rows.parquet").with_columns(y=gap, w=(pl.col("id") % 4).cast(pl.Float64))
    frame.write_parquet("gaps.parquet")
    given = ["--outcome", "y", "--prediction", "p", "--weight", "w", "--unlabelled", "drop", "--features", "country"]
    code, out, _ = call(
        capsys, "fit", "gaps.parquet", *given, "--method", "auto", "-o", "m.trueup", "--held-out", "h.parquet"
    )
    assert code == 0
    found = pl.read_parquet("h.parquet")
    assert 100 < len(found) < 4000
    assert found["id"].is_sorted()
    assert found["y"].null_count() == 0
    assert (found["w"] > 0).all()
    assert found["p_trueup"].is_not_nan().all()
    same = frame.filter(pl.col("id").is_in(found["id"].to_list()))
    assert found.drop("p_trueup").equals(same)
    assert "--outcome y --weight w\n" in out


def test_a_curve_of_the_score_holds_rows_out_where_it_is_judged(here, capsys):
    given = ["--outcome", "y", "--prediction", "p", "--method", "platt", "--cross-validate", "-o", "m.trueup"]
    code, out, _ = call(capsys, "fit", "rows.csv", *given, "--held-out", "h.csv", "--json", "-")
    assert code == 0
    assert json.loads(out)["held_out"] == {"file": "h.csv", "rows": 4000}
    code, out, _ = call(capsys, "fit", "rows.csv", *given, "--held-out", "h.csv", "--quiet")
    assert (code, out.count("\n")) == (0, 1)


def test_a_query_is_run_again_where_its_rows_have_an_order(here, capsys):
    query = "SELECT y, p, country, age FROM 'rows.parquet' WHERE age > 30 ORDER BY id DESC"
    code, _, _ = call(capsys, "fit", "--sql", query, *GIVEN, "-o", "m.trueup", "--held-out", "h.parquet")
    assert code == 0
    found = pl.read_parquet("h.parquet")
    assert found.columns == ["y", "p", "country", "age", "p_trueup"]
    assert len(found) == (pl.read_parquet("rows.parquet")["age"] > 30).sum()


def test_an_interruption_leaves_neither_a_model_nor_half_a_file(here, capsys, monkeypatch):
    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("trueup.cli.fit.add_columns", interrupt)
    before = sorted(here.iterdir())
    given = [*GIVEN, "-o", "m.trueup", "--held-out", "h.parquet"]
    assert call(capsys, "fit", "rows.parquet", *given) == (130, "", "interrupted\n")
    assert sorted(here.iterdir()) == before


def test_scores_that_come_in_steps_have_not_moved_where_other_models_gave_them(here, capsys):
    # Every fold has bins of its own: the steps of held-out scores are a little beside those of the model.
    random = np.random.default_rng(1)
    z = random.normal(-1, 1.2, 6000)
    frame = pl.DataFrame({"p": 1 / (1 + np.exp(-z)), "y": 1 * (random.random(6000) < 1 / (1 + np.exp(-0.6 * z)))})
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


def test_the_commands_that_a_decision_names_lead_to_one_that_is_right(here, capsys):
    frame = pl.read_parquet("rows.parquet")
    frame.filter(pl.col("id") % 2 == 0).write_parquet("old.parquet")
    frame.filter(pl.col("id") % 2 == 1).drop("y").write_parquet("new.parquet")
    costs = "--cost-fn 500 --cost-fp 60 --capacity 900 --by country --level 0.8"
    given = f"decide new.parquet --prediction p {costs} --labelled old.parquet --outcome y"
    code, out, _ = call(capsys, *shlex.split(given))
    assert code == 0
    commands = [line.removeprefix("  trueup ") for line in out.splitlines() if line.startswith("  trueup ")]
    assert [one.split()[0] for one in commands] == ["fit", "predict", "decide"]
    assert "--features country --held-out held.parquet -o model.trueup" in commands[0]
    for one in commands[:2]:
        assert main(shlex.split(one)) == 0
    capsys.readouterr()
    code, out, err = call(capsys, *shlex.split(commands[2]), "--json", "-")
    assert (code, err) == (0, "")
    said = json.loads(out)
    assert not said["labelled"]["miscalibrated"]
    # What the functions say of the same fix, which held its own rows out.
    old, new = (pl.read_parquet(f"{name}.parquet") for name in ("old", "new"))
    fix = tu.MCGrad("p", ["country"]).fit(old, old["y"])
    p, asked = fix.predict(new), {"fn": 500, "fp": 60}
    best = tu.decisions.best_rule(p, asked, capacity={"act": 900})
    found = tu.decisions.expected_cost(p, asked, best, tuple(fix.held_out_), level=0.8)
    for name in ("estimate", "low", "high"):
        assert said["cost"][name] == pytest.approx(getattr(found, name))
    assert set(said["by_segment"]) == {"country=BR", "country=DE", "country=US"}
