"""`trueup decide`: the cheapest rule for rows without outcomes, and its expected cost."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call
from trueup.decisions import evaluate
from trueup.decisions.evidence import quantile
from trueup.errors import MissingPackageError

COSTS = ["--prediction", "p", "--cost-fn", "5", "--cost-fp", "1"]
LABELLED = ["--labelled", "old.parquet", "--outcome", "y"]
ACTIONS = ["--action", "pass:5,0", "--action", "review:0.4,0.4", "--action", "block:0,1.2"]


def make(n, seed, region=("north", "south", "west")):
    rng = np.random.default_rng(seed)
    p = rng.beta(1, 4, n)
    return pl.DataFrame({
        "p": p,
        "region": np.array(region)[rng.integers(0, len(region), n)],
        "age": rng.integers(18, 80, n),
        "term": rng.choice([12, 24, 36], n),
        "day": np.datetime64("2024-01-01") + rng.integers(0, 300, n).astype("timedelta64[D]"),
        "w": rng.integers(1, 4, n).astype(float),
        "y": (rng.random(n) < p) * 1,
    })  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    directory = tmp_path_factory.mktemp("decide")
    make(2000, 1).drop("y").write_parquet(directory / "new.parquet")
    make(2000, 1).drop("y").write_csv(directory / "new.csv")
    make(1500, 3).write_parquet(directory / "old.parquet")
    make(1500, 3).write_csv(directory / "old.csv")
    return directory


@pytest.fixture
def workdir(made, tmp_path, monkeypatch):
    for path in made.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def data(capsys, *arguments):
    code, out, _ = call(capsys, "decide", *arguments, "--json", "-")
    assert code == 0
    return json.loads(out)


def scores(name="new.parquet"):
    return pl.read_parquet(name)["p"].to_numpy()


@pytest.mark.parametrize("name", ["new.parquet", "new.csv"])
def test_the_rule_its_cost_and_its_savings_are_printed(workdir, capsys, name):
    code, out, err = call(capsys, "decide", name, *COSTS)
    assert (code, err) == (0, "")
    p = scores()
    result = tu.decisions.expected_cost(p, {"fn": 5, "fp": 1}, 1 / 6)
    acted = (p >= 1 / 6).sum()
    lines = out.splitlines()
    assert lines[0] == f"act where p is 0.1667 or more: {acted:,} of 2,000 rows"
    assert lines[1] == f"expected cost {result.estimate:,.0f}, 90% interval {result.low:,.0f} to {result.high:,.0f}"
    assert lines[2] == "a miss costs 5, a false alarm 1"
    assert "label noise" in lines[3]
    assert "assumes calibrated scores; pass --labelled to correct for miscalibration" in lines[3]
    common = tu.decisions.expected_cost(p, {"fn": 5, "fp": 1}, 0.5)
    row = next(line for line in lines if line.startswith("p >= 0.5"))
    assert f"{common.estimate:,.0f}" in row
    assert f"{common.estimate - result.estimate:,.0f}" in row
    assert "true positives" in out
    assert re.search(r"^0\.1667  <- best +[\d,]+ +[\d,]+  █+", out, re.MULTILINE)
    assert "labelled rows" not in out


def test_savings_are_cost_differences_with_their_own_interval(workdir, capsys):
    output = data(capsys, "new.parquet", *COSTS, *LABELLED)
    for item in output["alternatives"]:
        assert item["saving"]["estimate"] == pytest.approx(item["cost"]["estimate"] - output["cost"]["estimate"])
        assert item["saving"]["low"] < item["saving"]["estimate"] < item["saving"]["high"]
    common = next(item for item in output["alternatives"] if item["rule"] == "p >= 0.5")
    width = sum(cost["high"] - cost["low"] for cost in (common["cost"], output["cost"]))
    assert common["saving"]["high"] - common["saving"]["low"] < 0.8 * width
    # Without labelled rows: only those between the thresholds count, and one costs 5 or saves 1.
    p = scores()
    between = p[(p >= 1 / 6) & (p < 0.5)]
    alone = data(capsys, "new.parquet", *COSTS)["alternatives"][0]
    assert alone["rule"] == common["rule"]
    assert alone["saving"]["estimate"] == pytest.approx((5 * between - (1 - between)).sum())
    half = quantile(0.05) * 6 * np.sqrt((between * (1 - between)).sum())
    assert alone["saving"]["high"] - alone["saving"]["estimate"] == pytest.approx(half)


def test_the_command_agrees_with_the_functions(workdir, capsys):
    output = data(capsys, "new.parquet", *COSTS, *LABELLED, "--level", "0.8", "--target", "population", "--weight", "w")
    new, old = pl.read_parquet("new.parquet"), pl.read_parquet("old.parquet")
    costs, given = {"fn": 5, "fp": 1}, {"level": 0.8, "target": "population"}
    best = tu.decisions.best_rule(new["p"], costs, weight=new["w"])
    bound = tu.decisions.Labelled(old["y"], old["p"], old["w"])
    assert output["best"] == best.to_dict()
    assert output["cost"] == tu.decisions.expected_cost(new["p"], costs, best, bound, weight=new["w"], **given).to_dict()
    confusion = tu.decisions.expected_confusion(new["p"], best.threshold, bound, weight=new["w"], **given)
    assert output["confusion"] == confusion.to_dict()
    assert (
        output["labelled"]["calibration"] == tu.metrics.calibration_bound(old["y"], old["p"], old["w"], delta=0.2).to_dict()
    )
    assert output["threshold"] == best.threshold


def test_the_cost_curve_has_the_cost_of_each_threshold(workdir, capsys):
    old = pl.read_parquet("old.parquet")
    bound = tu.decisions.Labelled(old["y"], old["p"])
    output = data(capsys, "new.parquet", *COSTS, *LABELLED)["cost_curve"]
    assert len(output) >= 8
    for item in output:
        threshold = np.inf if item["threshold"] is None else item["threshold"]
        result = tu.decisions.expected_cost(scores(), {"fn": 5, "fp": 1}, threshold, bound)
        assert item["cost"] == pytest.approx(result.estimate)
        assert item["acted"] == (scores() >= threshold).sum()


def test_labelled_rows_correct_the_cost_and_are_described(workdir, capsys):
    code, out, err = call(capsys, "decide", "new.parquet", *COSTS, "--labelled", "old.csv", "--outcome", "y")
    assert (code, err) == (0, "")
    assert re.search(r"label noise \(±\d+\) and calibration \(±\d+\); 1,500 labelled rows (raise|lower) ", out)
    old = pl.read_parquet("old.parquet")
    output = f"1,500 labelled rows: {100 * old['y'].mean():.3g}% positive, {100 * old['p'].mean():.3g}% expected; "
    assert output + "no significant miscalibration (p = 0." in out
    assert "the score distribution matches that of the labelled rows (largest difference of distribution" in out
    assert "inverted" not in out
    assert "<- best before correction" in out
    assert "trueup fit" not in out


def test_miscalibrated_and_shifted_scores_are_reported_with_next_commands(workdir, capsys):
    pl.read_parquet("old.parquet").with_columns(p=pl.col("p") ** 2).write_csv("it's off.csv")
    code, out, err = call(
        capsys, "decide", "new.parquet", *COSTS, "--labelled", "it's off.csv", "--outcome", "y", "--by", "region"
    )
    assert code == 0
    assert err.startswith("warning: the score distribution has shifted: ")
    assert err.count("\n") == 1
    assert "the score distribution differs from that of the labelled rows" in out
    assert "the scores are miscalibrated (p = " in out
    roles = "--outcome y --prediction p --features region"
    again = "--prediction p_trueup --cost-fn 5 --cost-fp 1 --by region --labelled held.parquet --outcome y"
    assert out.endswith(
        "decide with p_trueup:\n"
        f"  trueup fit 'it'\"'\"'s off.csv' {roles} --held-out held.parquet -o model.trueup\n"
        "  trueup predict model.trueup new.parquet -o scored.parquet\n"
        f"  trueup decide scored.parquet {again}\n"
    )


def test_a_given_threshold_is_compared_with_the_best(workdir, capsys):
    code, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--threshold", "0.3")
    assert code == 0
    assert out.startswith("act where p is 0.3 or more: ")
    assert "\np >= 0.1667 " in out
    assert "\n0.3  <- given " in out
    output = data(capsys, "new.parquet", *COSTS, "--threshold", "0.3")
    assert output["threshold"] == 0.3
    assert output["cost"]["estimate"] == tu.decisions.expected_cost(scores(), {"fn": 5, "fp": 1}, 0.3).estimate
    assert output["alternatives"][0]["saving"]["estimate"] < 0  # the best rule costs less


def test_capacity_limits_the_best_rule_and_marks_others(workdir, capsys):
    code, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--capacity", "100")
    assert code == 0
    assert ": 100 of 2,000 rows\n" in out
    assert "\nevery row (above capacity) " in out
    assert re.search(r"^every row +2,000 +[\d,]+  above capacity$", out, re.MULTILINE)
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--capacity", "act=100", "--threshold", "0.3")
    assert "rows, above the capacity of 100\n" in out.split("expected cost")[0]
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--capacity", "pass=7", "--threshold", "0.3")
    assert "rows, above the capacity of 7\n" in out.split("expected cost")[0]


def test_control_characters_of_score_and_action_names_are_replaced(workdir, capsys):
    pl.read_parquet("new.parquet").rename({"p": "chance of \x1b[31mloss"}).write_parquet("named.parquet")
    given = ["named.parquet", "--prediction", "chance of \x1b[31mloss"]
    code, out, _ = call(capsys, "decide", *given, *COSTS[2:])
    assert code == 0
    assert out.startswith("act where chance of ·[31mloss is 0.1667 or more: ")
    assert "\nchance of ·[31mloss >= 0.5 " in out
    _, out, _ = call(capsys, "decide", *given, *ACTIONS[:4], "--action", "\x1b[32mgo:0,1.2", "--by", "region")
    assert "\x1b" not in out
    assert "·[32mgo" in out


def test_fixed_costs_are_paid_once_and_only_for_used_actions(workdir, capsys):
    free = data(capsys, "new.parquet", *COSTS)
    paid = data(capsys, "new.parquet", *COSTS, "--fixed-cost", "50")
    assert paid["cost"]["estimate"] == pytest.approx(free["cost"]["estimate"] + 50)
    never = [
        next(item for item in output["alternatives"] if item["rule"] == "no row")["cost"]["estimate"]
        for output in (free, paid)
    ]
    assert never[0] == never[1]
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--fixed-cost", "100000")
    assert out.startswith("act on no row: 0 of 2,000 rows\n")
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--fixed-cost", "50", "--by", "region")
    assert "fixed costs are part of the total, but of no segment" in out
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--fixed-cost", "50", "--target", "population")
    assert "the cost per row does not include fixed costs" in out
    # One that no row reaches is not started up.
    top = data(capsys, "new.parquet", *COSTS, "--fixed-cost", "50", "--threshold", "1")
    assert top["cost"]["estimate"] == pytest.approx(never[0])


def test_segment_costs_add_up_and_are_sorted(workdir, capsys):
    output = data(capsys, "new.parquet", *COSTS, "--by", "region,term", "--depth", "2")
    result = output["by_segment"]
    assert len(result) == 3 + 3 + 9
    for names in (("region=", 3), ("term=", 3), ("region=north & term=12", 1)):
        assert sum(item.startswith(names[0]) and ("&" in item) == ("&" in names[0]) for item in result) == names[1]
    assert set(output["segment_sums"]) == {"region", "term", "region & term"}
    for crossed in (True, False):
        part = [item["estimate"] for name, item in result.items() if ("&" in name) == crossed]
        assert sum(part) == pytest.approx((1 if crossed else 2) * output["cost"]["estimate"])
    _, out, _ = call(
        capsys, "decide", "new.parquet", *COSTS, "--by", "region", "--by", "term", "--depth", "2", "--top", "4"
    )
    assert len(re.findall(r"^segment +rows +acted on +cost +low, 90% +high, 90%$", out, re.MULTILINE)) == 3
    costs = [float(line.split()[-3].replace(",", "")) for line in out.splitlines() if "&" in line]
    assert len(costs) == 4
    assert costs == sorted(costs, reverse=True)
    assert "\n5 more: --top 9\n" in out
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--by", "region", "--top", "0")
    assert "segment" not in out


def test_each_column_has_a_segment_table(workdir, capsys):
    code, out, _ = call(capsys, "decide", "new.parquet", *COSTS, *LABELLED, "--by", "region,term")
    assert code == 0
    assert "&" not in out
    assert len(re.findall(r"^segment ", out, re.MULTILINE)) == 2
    assert len(re.findall(r"^sum of segments +2,000 ", out, re.MULTILINE)) == 2
    item = data(capsys, "new.parquet", *COSTS, *LABELLED, "--by", "term")["by_segment"]
    both = data(capsys, "new.parquet", *COSTS, *LABELLED, "--by", "region,term")["by_segment"]
    assert {name: both[name] for name in item} == item
    assert data(capsys, "new.parquet", *COSTS, *LABELLED, "--by", "term", "--depth", "3")["by_segment"] == item


def test_hidden_segments_are_counted_and_summed(workdir, capsys):
    given = ["new.parquet", *COSTS, "--by", "region,age", "--bins", "4", "--depth", "2", "--top", "2"]
    old = pl.read_parquet("old.parquet").filter((pl.col("region") != "west") | (pl.col("age") > 45))
    old.write_parquet("few.parquet")
    output = data(capsys, *given, "--labelled", "few.parquet", "--outcome", "y")
    crossed = output["segment_sums"]["region & age"]
    names = [name for name in output["by_segment"] if "&" in name]
    assert crossed["estimate"] == pytest.approx(sum(output["by_segment"][name]["estimate"] for name in names))
    assert (crossed["rows"], crossed["low"], crossed["high"]) == (2000, None, None)
    assert sum(share["rows"] for share in crossed["shares"]) == 2000
    _, out, _ = call(capsys, "decide", *given, "--labelled", "few.parquet", "--outcome", "y")
    table = out[out.rindex("\nsegment ") :].split("\n\n")[0].splitlines()
    total = table[4]
    acted = next(share["rows"] for share in crossed["shares"] if share["action"] == "act")
    assert total.split() == [
        "sum",
        "of",
        "segments",
        "*",
        "2,000",
        f"{acted:,.0f}",
        f"{crossed['estimate']:,.0f}",
        f"{len(old):,}",
    ]
    shown = sum("*" in line for line in table[2:4])
    hidden = len([name for name in output["without_labelled_rows"] if "&" in name]) - shown
    assert table[5] == f"{len(names) - 2} more, {hidden} of them without labelled rows: --top {len(names)}"
    assert table[6:] == ["* without labelled rows: not corrected, and without an interval"]


def test_segment_sums_per_row_are_weighted_means(workdir, capsys):
    pl.read_parquet("old.parquet").filter(pl.col("region") != "west").write_parquet("older.parquet")
    given = ["--labelled", "older.parquet", "--outcome", "y", "--by", "region", "--target", "population"]
    output = data(capsys, "new.parquet", *COSTS, *given)
    parts = output["by_segment"].values()
    mean = sum(item["rows"] * item["estimate"] for item in parts) / 2000
    assert output["segment_sums"]["region"]["estimate"] == pytest.approx(mean)


def test_segments_are_corrected_by_their_own_labelled_rows(workdir, capsys):
    output = data(capsys, "new.parquet", *COSTS, *LABELLED, "--by", "region")
    new, old = pl.read_parquet("new.parquet"), pl.read_parquet("old.parquet")
    bound = tu.decisions.Labelled(old["y"], old["p"], segments={"region": old["region"]})
    result = tu.decisions.expected_cost(new["p"], {"fn": 5, "fp": 1}, 1 / 6, bound, segments={"region": new["region"]})
    for name, item in result.by_segment.items():
        assert output["by_segment"][name]["estimate"] == pytest.approx(item.estimate)
        assert output["by_segment"][name]["high"] == pytest.approx(item.high)
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, *LABELLED, "--by", "region")
    north = int((old["region"] == "north").sum())
    assert re.search(rf"^region=north .* {north}$", out, re.MULTILINE)
    assert re.search(rf"^sum of segments +2,000 .* {result.estimate:,.0f} .* 1,500$", out, re.MULTILINE)
    assert re.search(r"^expected cost ([\d,]+)", out, re.MULTILINE)[1] != f"{result.estimate:,.0f}"


def test_numbers_and_dates_are_binned_alike_in_both_files(workdir, capsys):
    new, old = pl.read_parquet("new.parquet"), pl.read_parquet("old.parquet").filter(pl.col("age") > 30)
    old.write_parquet("older.parquet")
    given = [*COSTS, "--labelled", "older.parquet", "--outcome", "y"]
    edges = tu.audit(
        new.with_columns(y=pl.Series(np.arange(2000) % 2)), outcome="y", prediction="p", by=["age"], bins=4, min_rows=1
    )
    output = data(capsys, "new.parquet", *given, "--by", "age", "--bins", "4")
    assert set(output["by_segment"]) == {finding.segment for finding in edges.worst(9)} - {edges.overall.segment}
    evidence = {name: item["evidence"] for name, item in output["by_segment"].items()}
    first, *_, last = sorted(evidence, key=lambda name: (">" in name, "[" in name, name))
    low, high = int(first.partition("<")[2]), int(last.partition(">=")[2])
    assert evidence[first] == f"{(old['age'] < low).sum():,} labelled rows"
    assert evidence[last] == f"{(old['age'] >= high).sum():,} labelled rows"
    output = data(capsys, "new.parquet", *given, "--by", "day")
    assert set(output["by_segment"]) == {f"day=2024-{month:02}" for month in range(1, 11)}
    assert output["by_segment"]["day=2024-01"]["evidence"] == f"{(old['day'].dt.month() == 1).sum():,} labelled rows"
    first = old.filter(pl.col("day") < pl.date(2024, 1, 15))  # two weeks by themselves are cut by day
    first.write_parquet("first.parquet")
    output = data(capsys, "new.parquet", *COSTS, "--labelled", "first.parquet", "--outcome", "y", "--by", "day")
    assert output["by_segment"]["day=2024-01"]["evidence"] == f"{len(first):,} labelled rows"
    output = data(capsys, "new.parquet", *given, "--by", "age", "--bins", "age=40:")
    assert output["by_segment"]["age<40"]["evidence"] == f"{(old['age'] < 40).sum():,} labelled rows"


def test_labelled_values_that_no_row_has_belong_to_no_segment(workdir, capsys):
    old = pl.read_parquet("old.parquet").with_columns(term=pl.when(pl.col("term") == 24).then(25).otherwise(pl.col("term")))
    old.write_parquet("older.parquet")
    output = data(capsys, "new.parquet", *COSTS, "--labelled", "older.parquet", "--outcome", "y", "--by", "term")
    assert output["without_labelled_rows"] == ["term=24"]
    assert output["by_segment"]["term=12"]["evidence"] == f"{(old['term'] == 12).sum():,} labelled rows"


def test_segments_without_labelled_rows_have_no_interval(workdir, capsys):
    pl.read_parquet("old.parquet").filter(pl.col("region") != "west").write_parquet("older.parquet")
    given = ["new.parquet", *COSTS, "--labelled", "older.parquet", "--outcome", "y", "--by", "region"]
    output = data(capsys, *given)
    assert output["without_labelled_rows"] == ["region=west"]
    new = pl.read_parquet("new.parquet").filter(pl.col("region") == "west")
    alone = tu.decisions.expected_cost(new["p"], {"fn": 5, "fp": 1}, 1 / 6)
    west = output["by_segment"]["region=west"]
    assert (west["estimate"], west["low"], west["high"], west["evidence"]) == (alone.estimate, None, None, "")
    assert west["half_widths"] == {}
    assert output["by_segment"]["region=north"]["low"] is not None
    _, out, _ = call(capsys, "decide", *given)
    acted = (new["p"] >= 1 / 6).sum()
    assert re.search(rf"^region=west \* +{len(new)} +{acted} +{alone.estimate:,.0f} +0$", out, re.MULTILINE)
    assert "\n* without labelled rows: not corrected, and without an interval\n" in out
    assert re.search(r"^sum of segments \* ", out, re.MULTILINE)


def test_missing_values_are_a_segment_of_their_own(workdir, capsys):
    gap = pl.when(pl.int_range(pl.len()) % 5 == 0).then(None)
    for name in ("new", "old"):
        frame = pl.read_parquet(f"{name}.parquet")
        frame.with_columns(region=gap.otherwise(pl.col("region")), age=gap.otherwise(pl.col("age"))).write_parquet(
            f"{name}2.parquet"
        )
    for column in ("region", "age"):
        output = data(capsys, "new2.parquet", *COSTS, "--labelled", "old2.parquet", "--outcome", "y", "--by", column)
        missing = output["by_segment"][f"{column} is missing"]
        assert (missing["rows"], missing["evidence"]) == (400, "300 labelled rows")
    # A column without any value may be read as of another kind.
    pl.read_parquet("old.parquet").with_columns(region=pl.lit(None)).write_parquet("old3.parquet")
    output = data(capsys, "new2.parquet", *COSTS, "--labelled", "old3.parquet", "--outcome", "y", "--by", "region")
    assert output["by_segment"]["region is missing"]["evidence"] == "1,500 labelled rows"
    assert len(output["without_labelled_rows"]) == 3


def test_each_action_has_a_score_interval(workdir, capsys):
    code, out, _ = call(capsys, "decide", "new.parquet", "--prediction", "p", *ACTIONS, "--by", "region")
    assert code == 0
    assert out.startswith(
        "pass where p is below 0.08; review where p is 0.08 to below 0.6667; block where p is 0.6667 or more:"
    )
    assert "\nexpected per action, before any correction\n" in out
    assert "\nreview: every row " in out
    assert re.search(r"^segment +rows +pass +review +block +cost", out, re.MULTILINE)
    given = ["--capacity", "review=200", "--fixed-cost", "block=1"]
    output = data(capsys, "new.parquet", "--prediction", "p", *ACTIONS, *given)
    costs = {"pass": (5, 0), "review": (0.4, 0.4), "block": (0, 1.2)}
    best = tu.decisions.best_rule(scores(), costs, capacity={"review": 200}, fixed_costs={"block": 1})
    assert output["cost"]["estimate"] == pytest.approx(best.estimate)
    assert output["confusion"] is None
    assert output["cost_curve"] == []
    _, out, _ = call(capsys, "decide", "new.parquet", "--prediction", "p", *ACTIONS[:2], "--action", "never:100,100")
    assert out.startswith("pass: every row: 2,000 rows\n")


def test_the_best_rule_may_act_at_low_scores(workdir, capsys):
    given = ["--prediction", "p", "--cost-fn", "1", "--cost-fp", "1", "--cost-tp", "100", "--cost-tn", "100"]
    code, out, _ = call(capsys, "decide", "new.parquet", *given)
    assert code == 0
    assert out.startswith("act where p is below 0.5: ")
    assert "true positives" not in out
    assert "threshold" not in out


def test_negative_costs_are_gains(workdir, capsys):
    code, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--cost-tp", "-2")
    assert code == 0
    assert out.startswith("act where p is 0.125 or more: ")


@pytest.mark.parametrize("p", [[0.3], [0.0, 0.0], [1.0, 1.0, 0.0], [0.5] * 40])
def test_few_rows_and_equal_scores_are_evaluated(workdir, capsys, p):
    pl.DataFrame({"p": p}).write_csv("few.csv")
    code, out, _ = call(capsys, "decide", "few.csv", *COSTS)
    assert code == 0
    assert f" of {len(p)} rows\n" in out
    assert "nan" not in out


def test_quiet_prints_one_line(workdir, capsys):
    code, out, err = call(capsys, "decide", "new.parquet", *COSTS, *LABELLED, "--by", "region", "--quiet")
    assert (code, err, out.count("\n")) == (0, "", 1)
    assert re.fullmatch(r"act where p is 0\.1667 or more: expected cost [\d,]+, 90% interval [\d,]+ to [\d,]+\n", out)


def test_target_population_gives_the_cost_per_row(workdir, capsys):
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--target", "population")
    assert "\nexpected cost per row 0." in out
    assert "sampling (±0.0" in out
    assert "expected share of the population" in out


def test_weights_enter_the_number_of_rows(workdir, capsys):
    _, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "--weight", "w")
    total = pl.read_parquet("new.parquet")["w"].sum()
    assert f" of {total:,.0f} rows by weight\n" in out
    frame = pl.read_parquet("new.parquet").with_columns(
        w=pl.when(pl.int_range(pl.len()) < 7).then(0.0).otherwise(pl.col("w"))
    )
    frame.write_parquet("some.parquet")
    _, out, _ = call(capsys, "decide", "some.parquet", *COSTS, "--weight", "w")
    assert "\n7 rows of weight 0 were dropped" in out


def test_labelled_rows_without_an_outcome_are_an_error_or_dropped(workdir, capsys):
    frame = pl.read_parquet("old.parquet").with_columns(
        y=pl.when(pl.int_range(pl.len()) < 9).then(None).otherwise(pl.col("y"))
    )
    frame.write_parquet("gaps.parquet")
    given = ["new.parquet", *COSTS, "--labelled", "gaps.parquet", "--outcome", "y"]
    code, _, err = call(capsys, "decide", *given)
    assert code == 2
    assert "labelled rows: outcome column 'y' is missing at row 0 (9 such rows)\nhint: pass --unlabelled drop" in err
    code, out, _ = call(capsys, "decide", *given, "--unlabelled", "drop")
    assert code == 0
    assert "9 labelled rows without an outcome were dropped" in out


def test_queries_several_files_and_patterns_are_read(workdir, capsys):
    output = data(capsys, "--sql", "FROM 'new.parquet' WHERE age > 40", *COSTS, "--labelled", "old.par*", "--outcome", "y")
    assert output["cost"]["rows"] == (pl.read_parquet("new.parquet")["age"] > 40).sum()
    make(100, 5).write_parquet("old-2.parquet")
    output = data(capsys, "new.parquet", *COSTS, *LABELLED, "--labelled", "old-2.parquet")
    assert output["labelled"]["rows"] == 1600


def test_categorical_columns_are_read_as_text_in_both_files(workdir, capsys):
    for name in ("new", "old"):
        (pl.read_csv(f"{name}.csv").with_columns(zip=pl.lit("0") + pl.col("term").cast(pl.String))).write_csv(
            f"{name}z.csv"
        )
    given = ["newz.csv", *COSTS, "--labelled", "oldz.csv", "--outcome", "y", "--by", "zip"]
    output = data(capsys, *given, "--categorical", "zip")
    assert set(output["by_segment"]) == {"zip=012", "zip=024", "zip=036"}


def test_pictures_and_json_are_written(workdir, capsys):
    for name, begins in (("c.svg", b"<?xml"), ("c.PNG", b"\x89PNG"), ("c.pdf", b"%PDF")):
        code, out, _ = call(capsys, "decide", "new.parquet", *COSTS, "-o", name, "--json", "c.json")
        assert code == 0
        assert f"\n\nwrote {name}\nwrote c.json\n\nnext, once outcomes are known:\n" in out
        assert (workdir / name).read_bytes().startswith(begins)
    assert json.loads((workdir / "c.json").read_text()) == data(capsys, "new.parquet", *COSTS)
    assert call(capsys, "decide", "new.parquet", "--prediction", "p", *ACTIONS, "-o", "a.svg")[0] == 0
    assert not list(workdir.glob(".trueup*"))


def test_missing_matplotlib_is_reported_before_the_work(workdir, capsys, monkeypatch):
    from trueup.cli import decide

    def missing(name, *, extra):
        raise MissingPackageError(f"this needs the package {name!r}", hint=f"pip install 'trueup[{extra}]'")

    monkeypatch.setattr(decide, "require", missing)
    monkeypatch.setattr(decide, "_read", None)
    code, _, err = call(capsys, "decide", "new.parquet", *COSTS, "-o", "c.svg")
    assert code == 2
    assert "'matplotlib'" in err
    assert "pip install 'trueup[plots]'" in err


def test_verbose_notes_contain_costs_and_segments_without_labelled_rows(workdir, capsys):
    make(1500, 3, region=("north", "south")).write_parquet("two.parquet")
    labelled = ["--labelled", "two.parquet", "--outcome", "y"]
    _, _, err = call(capsys, "decide", "new.parquet", *COSTS, *labelled, "--by", "region", "--verbose")
    assert "\n  costs: a miss costs 5, a false alarm 1\n" in err
    assert "\n  segments by region: 3, 1 of them without labelled rows\n" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (COSTS, "no FILE was named"),
        (["new.parquet", "--cost-fn", "5", "--cost-fp", "1"], "required: --prediction"),
        (["new.parquet", "--prediction", "p"], "no costs were given\nhint: write --cost-fn 500 --cost-fp 20"),
        (["new.parquet", "--prediction", "p", "--cost-fn", "5"], "--cost-fp is missing"),
        (["new.parquet", "--prediction", "p", "--cost-tp", "5"], "--cost-fn is missing"),
        (["new.parquet", "--prediction", "p", "--cost-fn", "-5", "--cost-fp", "1"], "--cost-fn must be a number at least 0; got -5.0\nhint: a gain is"),
        (["new.parquet", "--prediction", "p", "--cost-fn", "0", "--cost-fp", "0"], "all costs are 0, so there is nothing to decide"),
        (["new.parquet", "--prediction", "p", "--cost-fn", "five", "--cost-fp", "1"], "no column 'five' to use as cost"),
        (["new.parquet", "--prediction", "p", "--cost-fn", "inf", "--cost-fp", "1"], "--cost-fn must be a number at least 0; got inf"),
        (["new.parquet", "--prediction", "p", "--cost-fn", "5", "--cost-fp", "nan"], "--cost-fp must be a number at least 0; got nan"),
        (["new.parquet", "--prediction", "q", *COSTS[2:]], "no column 'q' to use as prediction\nhint:"),
        (["new.parquet", *COSTS, "--prediction", "w"], "--prediction must name one column; got 2: p, w"),
        (["new.parquet", "--prediction", ",", *COSTS[2:]], "--prediction must name one column; got 0"),
        (["new.parquet", "--prediction", "age", *COSTS[2:]], "prediction column 'age' must hold probabilities in [0, 1]; got"),
        (["new.parquet", "--prediction", "region", *COSTS[2:]], "prediction column 'region' must hold numbers; got text"),
        (["none.parquet", *COSTS], "the data has no rows"),
        (["gone.parquet", *COSTS], "gone.parquet"),
        (["new.parquet", *COSTS, "--weight", "ww"], "no column 'ww' to use as weight"),
        (["new.parquet", *COSTS, "--by", "regoin"], "no column 'regoin' to use as segment column\nhint: did you mean 'region'?"),
        (["new.parquet", *COSTS, "--by", "region,region"], "column 'region' is named twice as feature"),
        (["new.parquet", *COSTS, "--by", ","], "--by names no column"),
        (["names.parquet", *COSTS, "--by", "name"], "column 'name' cannot form segments: 30 levels in 30 rows: an identifier\nhint: leave it out of --by"),
        (["new.parquet", *COSTS, "--bins", "4"], "--bins needs --by"),
        (["new.parquet", *COSTS, "--by", "age", "--bins", "term=4"], "bins are given for column 'term', which is not among the segment columns"),
        (["new.parquet", *COSTS, "--by", "region", "--bins", "region=4"], "column 'region', which is categorical"),
        (["new.parquet", *COSTS, "--labelled", "old.parquet"], "--labelled needs --outcome"),
        (["new.parquet", *COSTS, "--outcome", "y"], "--outcome needs --labelled"),
        (["new.parquet", *COSTS, "--labelled", "new.parquet", "--outcome", "y"], "labelled rows: no column 'y' to use as outcome"),
        (["new.parquet", *COSTS, "--labelled", "none.parquet", "--outcome", "y"], "labelled rows: the data has no rows"),
        (["new.parquet", *COSTS, "--labelled", "gone.parquet", "--outcome", "y"], "gone.parquet"),
        (["new.parquet", *COSTS, "--labelled", "old.parquet", "--outcome", "age"], "labelled rows: outcome column 'age' must hold 0 and 1"),
        (["new.parquet", *COSTS, "--labelled", "old.parquet", "--outcome", "p"], "named both as prediction and as outcome"),
        (["new.parquet", *COSTS, "--labelled", "names.parquet", "--outcome", "y", "--by", "region"], "labelled rows: no column 'region' to use as segment column"),
        (["new.parquet", *COSTS, "--labelled", "names.parquet", "--outcome", "y", "--weight", "w"], "labelled rows: no column 'w' to use as weight"),
        (["new.parquet", *COSTS, "--labelled", "odd.parquet", "--outcome", "y", "--by", "age"], "labelled rows: column 'age' holds text, but the rows to decide on hold numbers\nhint: write it alike in both, or read it as text with --categorical age"),
        (["new.parquet", *COSTS, "--threshold", "20"], "--threshold must be a number at least 0 and at most 1; got 20.0\nhint: for 20% write --threshold 0.2; --threshold 0.2 acts where the score is 0.2 or more"),
        (["new.parquet", *COSTS, "--threshold", "-0.5"], "got -0.5\nhint: --threshold 0.2 acts where"),
        (["new.parquet", *COSTS, "--threshold", "nan"], "--threshold must be a number at least 0 and at most 1; got nan"),
        (["new.parquet", *COSTS, "--threshold", "high"], "--threshold must be a number; got 'high'"),
        (["new.parquet", *COSTS, "--depth", "2"], "--depth needs --by"),
        (["new.parquet", *COSTS, "--by", "region", "--depth", "4"], "--depth must be an integer from 1 to 3; got 4"),
        (["new.parquet", *COSTS, "--by", "region", "--depth", "0"], "--depth must be an integer from 1 to 3; got 0"),
        (["new.parquet", *COSTS, "--as", "todo"], "--as needs -o"),
        (["new.parquet", *COSTS, "--as", "todo", "-o", "c.svg"], "--as needs -o"),
        (["new.parquet", *COSTS, "--as", " ", "-o", "d.csv"], "--as needs one name"),
        (["new.parquet", *COSTS, "--as", "Region", "-o", "d.csv"], "column 'Region' exists already\nhint: name the new column with --as"),
        (["new.parquet", *COSTS, "-o", "new.parquet"], "new.parquet would overwrite an input file"),
        (["new.parquet", *COSTS, *LABELLED, "-o", "old.parquet"], "old.parquet would overwrite an input file"),
        (["new.parquet", *COSTS, "-o", "d.csv", "-o", "./d.csv"], "./d.csv would be written twice"),
        (["new.parquet", *COSTS, "-o", "no/d.csv"], "there is no directory no"),
        (["new.parquet", *COSTS, "--level", "1"], "--level must lie between 0 and 1; got 1.0"),
        (["new.parquet", *COSTS, "--target", "all"], "invalid choice: 'all'"),
        (["new.parquet", *COSTS, "--capacity", "many"], "--capacity many: must be a number of at least 0"),
        (["new.parquet", *COSTS, "--capacity", "-1"], "--capacity -1: must be a number of at least 0"),
        (["new.parquet", *COSTS, "--capacity", "review=5"], "--capacity review=5 names no action\nhint: write --capacity act=5; the actions are pass, act"),
        (["new.parquet", *COSTS, "--capacity", "5", "--capacity", "act=6"], "--capacity is given twice for 'act'"),
        (["new.parquet", *COSTS, "--capacity", "act=5", "--capacity", "pass=5"], "capacity allows 10 of 2,000 rows: no rule gives every row an action"),
        (["new.parquet", *COSTS, "--fixed-cost", "-3"], "--fixed-cost -3: must be a number of at least 0"),
        (["new.parquet", "--prediction", "p", *ACTIONS, "--cost-fn", "5"], "--action and --cost-fn cannot be combined"),
        (["new.parquet", "--prediction", "p", *ACTIONS, "--threshold", "0.2"], "--action and --threshold cannot be combined"),
        (["new.parquet", "--prediction", "p", *ACTIONS[:2]], "--action must be given at least twice"),
        (["new.parquet", "--prediction", "p", *ACTIONS[:2], *ACTIONS[:2]], "actions must have different names"),
        (["new.parquet", "--prediction", "p", "--action", "pass:5"], "--action pass:5 is not of the form NAME:X,Y\nhint: write --action review:40,40"),
        (["new.parquet", "--prediction", "p", "--action", "5,0"], "--action 5,0 is not of the form"),
        (["new.parquet", "--prediction", "p", "--action", "pass:5,nan"], "--action pass:5,nan is not of the form"),
        (["new.parquet", "--prediction", "p", *ACTIONS, "--capacity", "5"], "--capacity 5 names no action\nhint: write --capacity block=5"),
        (["new.parquet", *COSTS, "-o", "c.doc"], "-o c.doc has the extension neither of a picture (.svg, .png, .pdf) nor of rows (.parquet, .csv, .json)\nhint: -o cost.svg draws"),
        (["new.parquet", *COSTS, "-o", "no/c.svg"], "there is no directory no"),
        (["new.parquet", *COSTS, "--json", "new.parquet"], "new.parquet would overwrite an input file"),
        (["new.parquet", *COSTS, *LABELLED, "--json", "old.parquet"], "old.parquet would overwrite an input file"),
        (["new.parquet", *COSTS, "-o", "c.svg", "--json", "./c.svg"], "./c.svg would be written twice"),
        (["new.parquet", *COSTS, "--cost", "5"], "hint: did you mean --cost-"),
    ],
)  # fmt: skip
def test_invalid_input_exits_with_code_2(workdir, capsys, arguments, message):
    pl.read_parquet("new.parquet").head(0).with_columns(y=pl.lit(1)).write_parquet("none.parquet")
    pl.DataFrame({"name": [f"n{index}" for index in range(30)], "p": [0.2] * 30, "y": [0, 1] * 15}).write_parquet(
        "names.parquet"
    )
    pl.read_parquet("old.parquet").with_columns(age=pl.lit("a") + pl.col("age").cast(pl.String)).write_parquet(
        "odd.parquet"
    )
    before = sorted(workdir.iterdir())
    code, out, err = call(capsys, "decide", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert "hint:" in err or "error: " in err
    assert "--task" not in err
    assert sorted(workdir.iterdir()) == before


def test_interrupts_exit_with_code_130_and_keep_the_old_picture(workdir, capsys, monkeypatch):
    (workdir / "c.svg").write_text("old")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr(evaluate, "best_rule", interrupt)
    assert call(capsys, "decide", "new.parquet", *COSTS, "-o", "c.svg") == (130, "", "interrupted\n")
    assert (workdir / "c.svg").read_text() == "old"


def test_bars_fall_back_to_ascii(workdir):
    done = subprocess.run(
        [sys.executable, "-m", "trueup", "decide", "new.parquet", *COSTS],
        capture_output=True, check=True, env={"PYTHONIOENCODING": "ascii", "PATH": ""},
    )  # fmt: skip
    out = done.stdout.decode("ascii")
    assert re.search(r"^every row +[\d,]+ +[\d,]+  #+$", out, re.MULTILINE)


def test_help_has_examples_and_imports_nothing_heavy():
    code = "import sys; from trueup.cli import main; main(['decide', '--help']); print(sorted({'numpy', 'rich', 'duckdb', 'numba'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")
    assert "examples:" in done.stdout
    assert "--cost-fn 500 --cost-fp 20" in done.stdout


def test_labelled_rows_among_those_to_decide_on_raise_a_warning(workdir, capsys):
    code, _, err = call(capsys, "decide", "old.parquet", *COSTS, *LABELLED)
    assert code == 0
    assert "old.parquet is both labelled and to be decided on: the cost of its rows is known" in err
    assert "both labelled" not in call(capsys, "decide", "new.parquet", *COSTS, *LABELLED)[2]


def test_segment_sums_in_json_equal_those_printed(workdir, capsys):
    result = data(capsys, "new.parquet", *COSTS, *LABELLED, "--by", "region", "--fixed-cost", "7")
    total = result["segment_sums"]["region"]
    assert total["estimate"] == pytest.approx(sum(item["estimate"] for item in result["by_segment"].values()))
    page = call(capsys, "decide", "new.parquet", *COSTS, *LABELLED, "--by", "region", "--fixed-cost", "7")[1]
    line = next(line for line in page.splitlines() if line.startswith("sum of segments"))
    assert [f"{total[side]:,.0f}" for side in ("estimate", "low", "high")] == line.split()[-4:-1]
    assert data(capsys, "new.parquet", *COSTS)["segment_sums"] == {}


def test_json_states_whether_capacities_are_met(workdir, capsys):
    assert data(capsys, "new.parquet", *COSTS, "--capacity", "9")["fits"]
    assert not data(capsys, "new.parquet", *COSTS, "--capacity", "9", "--threshold", "0.1")["fits"]


def test_extreme_amounts_are_printed_with_exponents(workdir, capsys):
    line = call(capsys, "decide", "new.parquet", "--prediction", "p", "--cost-fn", "5e20", "--cost-fp", "1e20", "--quiet")[
        1
    ]
    assert re.search(r"expected cost \d\.\d+e\+\d\d, ", line)
    line = call(
        capsys, "decide", "new.parquet", "--prediction", "p", "--cost-fn", "5e-20", "--cost-fp", "1e-20", "--quiet"
    )[1]
    assert re.search(r"expected cost \d\.\d+e-\d\d, ", line)


def test_the_cost_curve_uses_all_labelled_rows(workdir, capsys):
    # It pools rows between thresholds, labelled ones too; what it says is the cost of each rule.
    result = data(capsys, "new.parquet", *COSTS, *LABELLED, "--weight", "w")
    old, new = pl.read_parquet("old.parquet"), pl.read_parquet("new.parquet")
    bound = tuple(old[name].to_numpy() for name in ("y", "p", "w"))
    for point in result["cost_curve"][1:-1]:
        cost = tu.decisions.expected_cost(
            new["p"].to_numpy(), {"fn": 5, "fp": 1}, point["threshold"], bound, weight=new["w"].to_numpy()
        )
        assert point["cost"] == pytest.approx(cost.estimate)


@pytest.mark.parametrize("labelled", [[], LABELLED])
def test_savings_include_fixed_costs(workdir, capsys, labelled):
    result = data(capsys, "new.parquet", *COSTS, *labelled, "--fixed-cost", "30", "--threshold", "0.15")
    assert len(result["alternatives"]) == 4
    for item in result["alternatives"]:
        apart = item["cost"]["estimate"] - result["cost"]["estimate"]
        assert item["saving"]["estimate"] == pytest.approx(apart)
        assert item["saving"]["low"] < apart < item["saving"]["high"]


def test_equivalent_thresholds_are_one_line_of_the_cost_curve(workdir, capsys):
    pl.DataFrame({"p": [0.1, 0.3] * 20}).write_parquet("steps.parquet")
    chart = data(capsys, "steps.parquet", *COSTS)["cost_curve"]
    assert [(item["threshold"], item["acted"]) for item in chart] == [
        (0.0, 40),
        (pytest.approx(1 / 6), 20),
        (0.44, 0),
        (0.5, 0),
    ]


def test_negative_corrections_are_reported_as_such(workdir, capsys):
    make(1500, 3).with_columns(y=0).with_columns(y=pl.Series([1] + [0] * 1499)).write_parquet("calm.parquet")
    rules = ["--labelled", "calm.parquet", "--outcome", "y", "--threshold", "1"]
    out = call(capsys, "decide", "new.parquet", *COSTS, *rules)[1]
    assert re.search(r"1,500 labelled rows lower the estimate by [\d,]+", out)
    assert re.search(
        r"rows (raise|lower) the estimate by [\d,.]+", call(capsys, "decide", "new.parquet", *COSTS, *LABELLED)[1]
    )


@pytest.mark.parametrize(("score", "line"), [(0.02, "no row  <- best"), (0.9, "every row  <- best")])
def test_the_best_threshold_is_marked_at_the_ends_too(workdir, capsys, score, line):
    pl.DataFrame({"p": [score] * 20}).write_parquet("alike.parquet")
    out = call(capsys, "decide", "alike.parquet", *COSTS)[1]
    assert any(item.startswith(line) for item in out.splitlines())
