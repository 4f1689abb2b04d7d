"""`trueup decide`: rows with their actions, and notes about costs and actions."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call
from trueup.decisions import Action
from trueup.decisions.evaluate import compute_auc, dominated_actions

COSTS = ["--prediction", "p", "--cost-fn", "5", "--cost-fp", "1"]
THREE = ["--prediction", "p", "--action", "pass:5,0", "--action", "review:0.4,0.4", "--action", "block:0,1.2"]


@pytest.fixture
def new(tmp_path, monkeypatch):
    """Change to a directory with rows to decide on, and return them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(2)
    frame = pl.DataFrame({
        "id": [f"{index:05}" for index in range(800)],
        "p": rng.beta(1, 4, 800),
        "seen": rng.random(800) < 0.5,
        "w": np.where(np.arange(800) % 9 == 0, 0.0, 2.0),
    })  # fmt: skip
    frame.write_parquet("new.parquet")
    frame.write_csv("new.csv")
    return frame


# ------------------------------------------------------------------ rows with what to do


@pytest.mark.parametrize(
    ("source", "written"), [("new.parquet", "d.parquet"), ("new.csv", "d.csv"), ("new.csv", "d.parquet")]
)
def test_rows_are_written_with_their_actions(new, capsys, source, written):
    code, out, err = call(capsys, "decide", source, *COSTS, "--capacity", "50", "-o", written)
    assert (code, err) == (0, "")
    assert out.endswith(
        f"\n\nwrote {written}: 800 rows with column action\n\nnext, once outcomes are known:\n"
        f"  trueup audit {written} --outcome Y --prediction p\n"
    )
    result = (
        pl.read_csv(written, schema_overrides={"id": pl.String}) if written.endswith("csv") else pl.read_parquet(written)
    )
    assert result.columns == ["id", "p", "seen", "w", "action"]
    assert result["id"].to_list() == new["id"].to_list()
    best = tu.decisions.best_rule(new["p"], {"fn": 5, "fp": 1}, capacity={"act": 50})
    assert result["action"].to_list() == best.apply(new["p"]).tolist()
    assert (result["action"] == "act").sum() == 50
    assert result.filter(pl.col("action") == "act")["p"].min() > result.filter(pl.col("action") == "pass")["p"].max()


def test_actions_and_their_column_are_named_by_options(new, capsys):
    code, out, _ = call(capsys, "decide", "new.parquet", *THREE, "-o", "d.jsonl", "--as", "to do", "-o", "c.svg", "--quiet")
    assert (code, out.count("\n")) == (0, 1)
    result = [json.loads(line) for line in Path("d.jsonl").read_text().splitlines()]
    expected = np.select([new["p"] < 0.08, new["p"] < 2 / 3], ["pass", "review"], "block")
    assert [row["to do"] for row in result] == expected.tolist()
    assert Path("c.svg").read_text().startswith("<?xml")


def test_rows_of_weight_zero_get_an_action_too(new, capsys):
    code, *_ = call(capsys, "decide", "new.parquet", *COSTS, "--threshold", "0.3", "--weight", "w", "-o", "d.parquet")
    assert code == 0
    result = pl.read_parquet("d.parquet")
    assert (result["action"] == np.where(new["p"] >= 0.3, "act", "pass")).all()


def test_the_rows_of_a_query_are_written(new, capsys):
    code, *_ = call(capsys, "decide", "--sql", "SELECT p, id FROM 'new.csv' WHERE seen", *COSTS, "-o", "d.parquet")
    assert code == 0
    assert pl.read_parquet("d.parquet").columns == ["p", "id", "action"]
    assert len(pl.read_parquet("d.parquet")) == new["seen"].sum()


def test_existing_columns_are_not_overwritten(new, capsys):
    new.with_columns(Action=pl.lit("x")).write_parquet("taken.parquet")
    code, _, err = call(capsys, "decide", "taken.parquet", *COSTS, "-o", "d.parquet")
    assert code == 2
    assert "column 'action' exists already\nhint: name the new column with --as" in err
    assert call(capsys, "decide", "taken.parquet", *COSTS, "-o", "d.parquet", "--as", "todo")[0] == 0
    assert call(capsys, "decide", "taken.parquet", *COSTS)[0] == 0


# ------------------------------------------------------------------ costs, again


@pytest.mark.parametrize(
    ("given", "output"),
    [
        (COSTS, "a miss costs 5, a false alarm 1"),
        (
            [*COSTS, "--cost-tp", "-2", "--cost-tn", "0.25"],
            "a miss costs 5, a false alarm 1, a true positive -2, a true negative 0.25",
        ),
        (
            [*COSTS, "--capacity", "1000", "--fixed-cost", "3"],
            "a miss costs 5, a false alarm 1; fixed cost of acting 3; at most 1,000 rows for acting",
        ),
        ([*COSTS, "--capacity", "pass=790"], "a miss costs 5, a false alarm 1; at most 790 rows for passing"),
        (
            [*THREE, "--capacity", "review=70", "--fixed-cost", "block=7"],
            "pass costs 5 on a positive and 0 on a negative row, review 0.4 and 0.4, block 0 and 1.2; "
            "fixed cost of block 7; at most 70 rows for review",
        ),
    ],
)
def test_costs_and_limits_are_printed(new, capsys, given, output):
    assert call(capsys, "decide", "new.parquet", *given)[1].splitlines()[2] == output


def test_the_cost_per_row_has_four_digits(new, capsys):
    given = ["--prediction", "p", "--cost-fn", "500", "--cost-fp", "60", "--target", "population"]
    _, out, _ = call(capsys, "decide", "new.parquet", *given)
    cost = tu.decisions.expected_cost(new["p"], {"fn": 500, "fp": 60}, 60 / 560, target="population")
    assert (
        out.splitlines()[1] == f"expected cost per row {cost.estimate:.2f}, 90% interval {cost.low:.2f} to {cost.high:.2f}"
    )
    assert 10 < cost.estimate < 100


# ------------------------------------------------------------------ actions that nobody should take


def test_actions_that_are_never_cheapest_are_dominated():
    assert dominated_actions([Action("pass", 5, 0), Action("block", 0, 1)]) == []
    assert dominated_actions([Action("pass", 5, 0), Action("review", 0.5, 0.5), Action("block", 0, 1)]) == []
    assert dominated_actions([Action("pass", 5, 0), Action("dear", 9, 9), Action("block", 0, 1)]) == ["dear"]
    assert dominated_actions([Action("pass", 1, 1), Action("act", 1, 1)]) == []  # as good as each other
    assert dominated_actions([Action("pass", 5, 0), Action("act", 5, 1)]) == ["act"]


def test_dominated_actions_are_reported(new, capsys):
    _, out, _ = call(capsys, "decide", "new.parquet", *THREE, "--action", "visit:2,2")
    assert "\nvisit is never worthwhile: another action costs less at every score\n" in out
    assert out.count("never worthwhile") == 1
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--cost-tp", "6")
    assert "\nacting is never worthwhile: another action costs less at every score\n" in out
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--cost-tn", "2")
    assert "\npassing is never worthwhile: " in out
    assert "worthwhile" not in call(capsys, "decide", "new.parquet", *COSTS)[1]


def test_actions_that_no_row_gets_are_reported(new, capsys):
    new.with_columns(p=pl.col("p") * 0.5).write_parquet("low.parquet")
    _, out, _ = call(capsys, "decide", "low.parquet", *THREE)
    assert "\nno row gets block: no score lies where it is cheapest\n" in out
    _, out, _ = call(capsys, "decide", "new.parquet", *THREE, "--capacity", "review=0", "--fixed-cost", "block=1")
    assert "\nno row gets review: given these scores, capacities and fixed costs\n" in out
    assert "no row gets" not in call(capsys, "decide", "new.parquet", *THREE)[1]


# ------------------------------------------------------------------ outcomes the wrong way round


def test_inverted_outcomes_are_reported(new, capsys):
    rng = np.random.default_rng(3)
    wrong = new.with_columns(y=pl.Series((rng.random(800) >= new["p"].to_numpy()).astype(int)))
    wrong.write_parquet("old.parquet")
    given = ["new.parquet", *COSTS, "--labelled", "old.parquet", "--outcome", "y"]
    code, out, _ = call(capsys, "decide", *given)
    assert code == 0
    auc = pairs(wrong["y"].to_numpy(), wrong["p"].to_numpy())
    assert f"(AUC {auc:.3g} on the labelled rows): check whether the outcome is inverted" in out
    assert "trueup fit" not in out  # a fix would learn what is a slip
    output = json.loads(call(capsys, "decide", *given, "--json", "-")[1])["labelled"]
    assert (output["reversed_scores"], output["auc"]) == (True, pytest.approx(auc))


def pairs(y, p):
    """Compare each positive with each negative row."""
    high, low = p[y == 1][:, None], p[y == 0]
    return ((high > low) + 0.5 * (high == low)).mean()


def judged(y, p, w=None):
    return compute_auc(SimpleNamespace(prediction=np.asarray(p), outcome=np.asarray(y, float), weight=w))


def test_ties_count_half_and_a_weight_of_two_is_the_row_twice():
    rng = np.random.default_rng(0)
    p, y, w = rng.integers(0, 9, 60) / 10, rng.integers(0, 2, 60), rng.integers(1, 4, 60)
    assert judged(y, p)[0] == pytest.approx(pairs(y, p))
    twice = np.repeat(np.arange(60), w)
    assert judged(y, p, w.astype(float))[0] == pytest.approx(pairs(y[twice], p[twice]))
    assert np.isnan(judged(np.ones(5), np.full(5, 0.2))[0])


def test_random_scores_are_rarely_called_reversed():
    rng = np.random.default_rng(1)
    result = [judged(rng.random(300) < 0.1, rng.random(300))[1] for _ in range(500)]
    assert sum(result) <= 1
    assert judged(rng.random(3000) < 0.3, rng.random(3000))[1] is False
    p = rng.random(3000)
    assert judged(rng.random(3000) < 1 - p, p)[1]
