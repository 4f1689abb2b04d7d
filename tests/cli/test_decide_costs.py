"""`trueup decide` with costs in columns: exposure times loss given default, margins."""

from __future__ import annotations

import json

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call

NEW = ["new.parquet", "--prediction", "p", "--cost-fn", "loss", "--cost-fp", "margin"]
LABELLED = ["--labelled", "old.parquet", "--outcome", "y"]


def make(rows, seed):
    random = np.random.default_rng(seed)
    p = random.beta(1, 5, rows)
    return pl.DataFrame({
        "p": p,
        "loss": np.exp(random.normal(5, 1, rows)),
        "margin": random.uniform(5, 50, rows),
        "region": np.array(["north", "south"])[random.integers(0, 2, rows)],
        "w": random.integers(0, 3, rows).astype(float),
        "y": (random.random(rows) < p) * 1,
    })  # fmt: skip


@pytest.fixture
def workdir(tmp_path, monkeypatch):
    make(800, 1).drop("y").write_parquet(tmp_path / "new.parquet")
    make(600, 2).write_parquet(tmp_path / "old.parquet")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(capsys, *arguments):
    code, out, err = call(capsys, "decide", *arguments, "--json", "-")
    assert code == 0, err
    return json.loads(out)


def test_each_row_is_decided_by_its_own_costs_and_written(workdir, capsys):
    new, old = make(800, 1), make(600, 2)
    costs = {"fn": new["loss"].to_numpy(), "fp": new["margin"].to_numpy()}
    known = {"fn": old["loss"].to_numpy(), "fp": old["margin"].to_numpy()}
    best = tu.decisions.best_rule(new["p"], costs)
    labelled = tu.decisions.Labelled(old["y"], old["p"], costs=known)
    expected = tu.decisions.expected_cost(new["p"], costs, best, labelled)
    found = data(capsys, *NEW, *LABELLED, "-o", "decided.parquet")
    assert found["cost"]["estimate"] == pytest.approx(expected.estimate)
    assert (found["cost"]["low"], found["cost"]["high"]) == pytest.approx((expected.low, expected.high))
    written = pl.read_parquet("decided.parquet")["action"].to_list()
    acts = new["loss"] * new["p"] >= new["margin"] * (1 - new["p"])
    assert written == ["act" if act else "pass" for act in acts]
    assert found["threshold"] is None
    names = {other["rule"]: other for other in found["alternatives"]}
    assert set(names) > {"p >= 0.5", "every row", "no row"}
    by_score = tu.decisions.best_rule(new["p"], costs, by="score")
    assert names[f"p >= {by_score.threshold:.4g}"]["saving"]["estimate"] > 0


def test_the_page_names_columns_and_the_rule(workdir, capsys):
    code, out, _ = call(capsys, "decide", *NEW, *LABELLED, "--by", "region")
    assert code == 0
    assert "act where that costs less than passing, at the p and the costs of the row" in out
    assert "a miss costs loss, a false alarm margin" in out
    assert "each row by its costs" in out
    assert "region=north" in out
    assert "600 labelled rows" in out


def test_a_threshold_and_weights_are_evaluated_with_the_costs_of_the_rows(workdir, capsys):
    new = make(800, 1)
    found = data(capsys, *NEW, "--threshold", "0.2", "--weight", "w")
    acts = (new["p"] >= 0.2).to_numpy()
    each = np.where(acts, new["margin"] * (1 - new["p"]), new["loss"] * new["p"])
    assert found["cost"]["estimate"] == pytest.approx(float(each @ new["w"].to_numpy()))
    assert found["threshold"] == 0.2


def test_actions_with_columns_capacities_and_fixed_costs(workdir, capsys):
    new = make(800, 1)
    actions = ["--action", "grant:loss,-10", "--action", "review:25,25", "--action", "refuse:0,margin"]
    limits = ["--capacity", "review=20", "--fixed-cost", "review=100"]
    found = data(capsys, "new.parquet", "--prediction", "p", *actions, *limits)
    costs = {
        "grant": (new["loss"].to_numpy(), -10.0), "review": (25.0, 25.0), "refuse": (0.0, new["margin"].to_numpy()),
    }  # fmt: skip
    best = tu.decisions.best_rule(new["p"], costs, capacity={"review": 20}, fixed_costs={"review": 100})
    assert found["cost"]["estimate"] == pytest.approx(best.estimate)
    code, out, _ = call(capsys, "decide", "new.parquet", "--prediction", "p", *actions, *limits)
    assert code == 0
    assert "grant costs loss on a positive and -10 on a negative row, review 25 and 25, refuse 0 and margin" in out


def test_wrong_costs_in_columns_exit_with_code_2(workdir, capsys):
    make(20, 3).with_columns(loss=pl.lit(None, pl.Float64)).write_parquet("thin.parquet")
    for arguments, message in (
        (["new.parquet", "--prediction", "p", "--cost-fn", "losses", "--cost-fp", "1"], "no column 'losses'"),
        (["new.parquet", "--prediction", "p", "--cost-fn", "region", "--cost-fp", "1"], "holds no numbers"),
        (["thin.parquet", *NEW[1:]], "column 'loss' has no cost in 20 rows"),
        ([*NEW, "-o", "cost.svg"], "drawn for costs that are the same for all rows"),
        ([*NEW, "--labelled", "model.trueup"], "costs in columns need labelled rows"),
    ):
        code, _, err = call(capsys, "decide", *arguments)
        assert code == 2
        assert message in err
