"""The option --cluster of the commands."""

from __future__ import annotations

import csv
import json

import numpy as np
import pytest

import trueup as tu
from trueup.cli import main

ROLES = ["--outcome", "y", "--prediction", "p"]


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(5)
    customer = np.repeat(np.arange(200), 6)
    p = random.uniform(0.1, 0.6, 200)[customer]
    y = (random.random(200)[customer] < p).astype(int)
    region = np.array(["north", "south"])[random.integers(0, 2, 200)[customer]]
    return {"y": y, "p": p, "region": region, "customer": np.array([f"c{number}" for number in customer])}


@pytest.fixture(scope="module")
def path(rows, tmp_path_factory):
    path = tmp_path_factory.mktemp("clusters") / "rows.csv"
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(rows), *zip(*rows.values(), strict=True)])
    return str(path)


def test_audit_has_the_numbers_of_the_library(path, rows, capsys):
    assert main(["audit", path, *ROLES, "--cluster", "customer", "--json", "-"]) == 0
    found = json.loads(capsys.readouterr().out)
    expected = tu.audit(rows, outcome="y", prediction="p", cluster="customer")
    assert found["roles"]["cluster"] == "customer"
    assert found["overall"]["design_effect"] == pytest.approx(expected.overall.design_effect)
    assert found["by"] == ["region"]


def test_an_audit_in_chunks_is_that_in_memory(path, capsys):
    results = []
    for option in ([], ["--memory", "1GB"]):
        assert main(["audit", path, *ROLES, "--cluster", "customer", "--json", "-", *option]) == 0
        results.append({finding["segment"]: finding for finding in json.loads(capsys.readouterr().out)["findings"]})
    for segment, finding in results[0].items():
        for name in ("sigma", "p_value", "design_effect"):
            assert results[1][segment][name] == pytest.approx(finding[name], rel=1e-9)


def test_pages_and_summaries_state_the_design_effect(path, tmp_path, capsys):
    page, summary = tmp_path / "page.html", tmp_path / "summary.md"
    assert main(["audit", path, *ROLES, "--cluster", "customer", "-o", str(page), "-o", str(summary)]) == 0
    assert "rows are in 200 clusters (by customer): design effect" in capsys.readouterr().out
    for file in (page, summary):
        assert "200 clusters" in file.read_text()


def test_audit_rejects_an_unknown_cluster_column(path, capsys):
    assert main(["audit", path, *ROLES, "--cluster", "costumer"]) == 2
    assert "no column 'costumer' to use as cluster" in capsys.readouterr().err


def test_fit_keeps_clusters_whole(path, tmp_path, capsys):
    output = str(tmp_path / "model.trueup")
    command = ["fit", path, *ROLES, "--cluster", "customer", "--method", "platt", "--cross-validate", "-o", output]
    assert main([*command, "--verbose"]) == 0
    assert "cluster customer" in capsys.readouterr().err
    assert "customer" not in [feature.name for feature in tu.load(output).schema.features]


def test_fit_in_chunks_keeps_clusters_whole(path, tmp_path):
    output = str(tmp_path / "model.trueup")
    assert main(["fit", path, *ROLES, "--cluster", "customer", "--memory", "1GB", "-o", output, "--quiet"]) == 0
    assert [feature.name for feature in tu.load(output).schema.features] == ["region"]


def test_decide_widens_the_interval(path, capsys):
    command = [
        "decide",
        path,
        "--prediction",
        "p",
        "--cost-fn",
        "5",
        "--cost-fp",
        "1",
        "--labelled",
        path,
        "--outcome",
        "y",
    ]
    widths = []
    for option in ([], ["--cluster", "customer"]):
        assert main([*command, *option, "--json", "-"]) == 0
        cost = json.loads(capsys.readouterr().out)["cost"]
        widths.append(cost["high"] - cost["low"])
    assert widths[1] > 1.5 * widths[0]
    assert main([*command[:-4], "--cluster", "customer"]) == 2
    assert "--cluster needs --labelled" in capsys.readouterr().err


def test_next_steps_keep_the_cluster(path, capsys):
    command = ["audit", path, *ROLES, "--cluster", "customer", "--by", "region", "--alpha", "0.9"]
    assert main(command) == 0
    assert "--cluster customer" in capsys.readouterr().out


def test_two_predictions_have_one_warning(rows, tmp_path, capsys):
    path = tmp_path / "rows.csv"
    more = {**rows, "q": rows["p"] * 0.99}
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([list(more), *zip(*more.values(), strict=True)])
    assert main(["audit", str(path), *ROLES, "--against", "q"]) == 0
    assert capsys.readouterr().err.count("rows with the same 'customer' are not independent") == 1


@pytest.mark.parametrize("option", [[], ["--by", "region"], ["--by", "region", "--memory", "1GB"]])
def test_an_audit_warns_of_repeated_identifiers_in_files(path, capsys, option):
    assert main(["audit", path, *ROLES, *option]) in (0, 1)
    assert "rows with the same 'customer' are not independent" in capsys.readouterr().err
    assert main(["audit", path, *ROLES, *option, "--cluster", "customer"]) == 0
    assert "not independent" not in capsys.readouterr().err


def test_identifiers_that_only_some_files_have_are_ignored(path, tmp_path, capsys):
    other = tmp_path / "other.csv"
    other.write_text("y,p,region\n1,0.5,north\n0,0.5,south\n")
    assert main(["audit", path, str(other), *ROLES, "--by", "region"]) in (0, 1)
    assert "not independent" not in capsys.readouterr().err
