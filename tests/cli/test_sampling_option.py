"""The options --sampling and --weight, and the commands that follow an audit with them."""

from __future__ import annotations

import csv
import json
import shlex
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call, run
from trueup.modelfile import load

ROLES = ["--outcome", "status", "--positive", "late", "--prediction", "p"]
N = 40_000


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    """Return a directory with all rows, and with a sample that has one in ten of those not late."""
    directory = tmp_path_factory.mktemp("sample")
    random = np.random.default_rng(0)
    group, p = np.array([*"abcd"])[random.integers(0, 4, N)], random.beta(1, 15, N)
    late = random.random(N) < 1 / (1 + (1 - p) / p * np.exp(-0.8 * (group == "a")))
    frame = pl.DataFrame({
        "p": p, "status": np.where(late, "late", "paid"), "group": group, "exposure": random.lognormal(0, 0.5, N),
        "customer": np.arange(N) // 2, "zip": random.integers(0, 3, N), "old": np.minimum(1.3 * p, 1.0),
        "share": np.where(late, 1.0, 0.1),
    })  # fmt: skip
    frame = frame.with_columns(w=1 / frame["share"], product=frame["exposure"] / frame["share"])
    frame.write_parquet(directory / "all.parquet")
    sample = frame.filter(pl.Series(late | (random.random(N) < 0.1))).drop("share")
    sample.write_parquet(directory / "sample.parquet")
    missing = pl.when(pl.int_range(pl.len()) % 40 == 0).then(None).otherwise(pl.col("status"))
    sample.with_columns(status=missing).write_parquet(directory / "partly.parquet")
    return directory


@pytest.fixture
def sample(directory, monkeypatch):
    monkeypatch.chdir(directory)
    return directory


def follow(capsys, out):
    """Run the command that fits a correction among the next steps; return the command, and the means by group.

    These are means over all rows: of what happened, and of the corrected scores.
    """
    (line,) = (line.strip() for line in out.splitlines() if line.startswith("  trueup fit "))
    code, _, err = call(capsys, *shlex.split(line)[1:])
    assert (code, err) == (0, "")
    assert call(capsys, "predict", "model.trueup", "all.parquet", "-o", "scored.parquet", "--quiet")[0] == 0
    frame = pl.read_parquet("scored.parquet").with_columns(late=pl.col("status") == "late")
    means = frame.group_by("group").agg(pl.col("late").mean(), pl.col("p_trueup").mean()).sort("group")
    return line, means["late"].to_numpy(), means["p_trueup"].to_numpy()


@pytest.mark.parametrize(
    "options",
    [
        ["--sampling", "1,0.1"],
        ["--weight", "w"],
        ["--sampling", "1,0.1", "--weight", "exposure"],
        ["--weight", "product", "--cluster", "customer"],
        ["--sampling", "1,0.1", "--cluster", "customer", "--categorical", "zip"],
    ],
)
def test_the_suggested_fit_has_the_scale_of_all_rows(sample, capsys, options):
    code, out, err = run(capsys, "sample.parquet", *ROLES, "--by", "group,zip", *options)
    assert (code, err) == (0, "")
    line, late, corrected = follow(capsys, out)
    words = shlex.split(line)
    for name, value in zip(options[::2], options[1::2], strict=True):
        assert words[words.index(name) + 1] == value
    assert words[words.index("--features") + 1] == "group,zip"
    np.testing.assert_allclose(corrected, late, rtol=0.12)


def test_rows_without_an_outcome_are_left_out_of_the_suggested_fit(sample, capsys):
    options = ["--sampling", "1,0.1", "--unlabelled", "drop"]
    out = run(capsys, "partly.parquet", *ROLES, "--by", "group", *options)[1]
    line, late, corrected = follow(capsys, out)
    assert "--unlabelled drop" in line
    np.testing.assert_allclose(corrected, late, rtol=0.12)


def test_exposures_that_were_no_segments_are_no_feature(sample, capsys):
    query = 'SELECT * EXCLUDE (w, product, "share", old) FROM data'
    words = ["all.parquet", *ROLES, "--cluster", "customer", "--sql", query, "--profile", "credit"]
    code, out, err = run(capsys, *words, "--exposure", "exposure", "-o", "a.json")
    assert (code, err) == (0, "")
    assert "--exclude exposure" in follow(capsys, out)[0]
    assert "exposure" not in [feature.name for feature in load("model.trueup").schema.features]


def test_page_summary_and_json_have_the_same_next_command(sample, tmp_path, capsys):
    files = [tmp_path / name for name in ("a.html", "a.md", "a.json")]
    outputs = [word for file in files for word in ("-o", file)]
    out = run(capsys, "sample.parquet", *ROLES, "--by", "group", "--sampling", "1,0.1", *outputs)[1]
    (line,) = (line.strip() for line in out.splitlines() if line.startswith("  trueup fit "))
    assert "--sampling 1,0.1" in line
    page, summary, data = (file.read_text(encoding="utf-8") for file in files)
    assert line in page.replace("<span>", "").replace("</span>", "")
    assert line in summary
    found = json.loads(data)
    assert found["next"]["code"] == line
    assert found["sampling"] == {"positive": 1.0, "negative": 0.1}
    note = "the rows are a sample, 100% of the rows with outcome 1 and 10% of those with outcome 0"
    assert any(line.startswith(note) for line in found["notes"])
    assert note in out
    for text in (page, summary):
        assert note in text


def test_python_next_steps_keep_sampling_arrays_and_labels(sample):
    frame = pl.read_parquet("sample.parquet")
    y = [None if index % 40 == 0 else float(value == "late") for index, value in enumerate(frame["status"])]
    rows = {"p": frame["p"].to_numpy(), "group": frame["group"].to_numpy(), "y": np.array(y, float)}
    roles = {"outcome": "y", "prediction": "p", "by": ["group"], "unlabelled": "drop"}
    audit = tu.audit(rows, **roles, sampling={"negative": 0.1}, cluster=np.arange(len(frame)))
    from trueup.reports.summary import next_step
    from trueup.reports.text import audit_code

    code = next_step(audit).code
    assert code == (
        'trueup.MCGrad("p", ["group"], unlabelled="drop").fit(rows, rows["y"], sampling={"positive": 1, "negative": 0.1}, '
        "cluster=cluster)"
    )
    fitted = eval(code, {"trueup": tu, "rows": rows, "cluster": np.arange(len(frame))})
    every = pl.read_parquet("all.parquet")
    corrected = fitted.predict({"p": every["p"].to_numpy(), "group": every["group"].to_numpy()})
    assert corrected.mean() == pytest.approx((every["status"] == "late").mean(), rel=0.1)
    again = eval(audit_code(audit), {"trueup": tu, "data": rows, "cluster": np.arange(len(frame))})
    assert again.verdict == audit.verdict
    weighted = tu.audit(rows, **roles, weight=np.ones(len(frame)), sampling={"negative": 0.1})
    assert 'fit(rows, rows["y"], sample_weight=weight, sampling={' in next_step(weighted).code


def test_python_next_steps_name_the_classes():
    random = np.random.default_rng(0)
    p = random.dirichlet([2, 2, 2], 3000)
    rows = {f"q{index}": p[:, index] for index in range(3)} | {"g": random.choice(["u", "v"], 3000).astype(object)}
    rows["y"] = np.array(["cat", "dog", "fox"], object)[(random.random((3000, 1)) > (p**2).cumsum(1)).sum(1).clip(0, 2)]
    from trueup.reports.summary import next_step

    roles = {"outcome": "y", "prediction": ["q0", "q1", "q2"], "by": ["g"]}
    code = next_step(tu.audit(rows, **roles, classes=["cat", "dog", "fox"])).code
    assert 'classes=["cat", "dog", "fox"]' in code
    assert eval(code, {"trueup": tu, "rows": rows}).predict(rows).shape == (3000, 3)


def test_what_the_code_cannot_have_is_said_in_the_step():
    random = np.random.default_rng(0)
    p = random.uniform(0.1, 0.5, 3000)
    y = (random.random(3000) < np.where(p > 0.3, p + 0.3, p)).astype(float)
    from trueup.reports.summary import next_step

    roles = {"outcome": y, "prediction": p, "by": ["g"], "segments": {"high": p > 0.3}}
    steps = next_step(tu.audit({"g": random.choice(["u", "v"], 3000).astype(object)}, **roles)).steps
    assert "make the scores (as prediction) and the segment high columns of these rows, fit a correction" in steps[-1]


# The fit


def test_a_fit_states_that_its_rows_are_a_sample(sample, capsys):
    words = ["sample.parquet", *ROLES, "--features", "group", "--sampling", "1,0.1"]
    _, out, _ = call(capsys, "fit", *words, "-o", "m.trueup")
    assert "the rows are a sample, 100% of the rows with outcome 1 and 10% of those with outcome 0" in out
    _, out, _ = call(capsys, "fit", *words, "--keep-evidence", "-o", "m.trueup")
    (line,) = (line.strip() for line in out.splitlines() if "decide" in line)
    assert line == "trueup decide scored.parquet --prediction p_trueup --cost-fn X --cost-fp Y --labelled m.trueup"
    w = load("m.trueup").evidence.scored.w
    assert w.max() / w.min() == pytest.approx(10)
    assert call(capsys, "predict", "m.trueup", "all.parquet", "-o", "s.parquet", "--quiet")[0] == 0
    words = line.replace("X", "5").replace("Y", "1").replace("scored", "s")
    code, out, _ = call(capsys, *shlex.split(words)[1:])
    assert code == 0
    assert "no significant miscalibration" in out


def test_held_out_rows_keep_the_positive_outcome_in_the_next_command(sample, capsys):
    words = ["sample.parquet", *ROLES, "--features", "group", "--weight", "w", "--held-out", "held.csv"]
    _, out, _ = call(capsys, "fit", *words, "-o", "m.trueup")
    (line,) = (line.strip() for line in out.splitlines() if "decide" in line)
    assert "--outcome status --positive late --weight w" in line


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--held-out", "h.csv"], "--held-out and --sampling cannot be combined"),
        (["--validation", "all.parquet"], "--validation and --sampling cannot be combined"),
        (["--memory", "1GB"], "--sampling needs rows in memory"),
        (["--weight", "w"], "--sampling would be counted twice: by the weights in column 'w'"),
        (["--task", "regression"], "--positive and --task regression cannot be combined"),
    ],
)
def test_what_does_not_go_with_a_sample_is_rejected(sample, capsys, options, message):
    words = ["fit", "sample.parquet", *ROLES, "--features", "group", "--sampling", "1,0.1", "-o", "m.trueup", *options]
    code, _, err = call(capsys, *words)
    assert code == 2
    assert message in err
    assert "hint: " in err


@pytest.mark.parametrize("words", [["--sampling", "1,10"], ["--sampling", "0,1"], ["--sampling", "nan,1"]])
@pytest.mark.parametrize("verb", ["audit", "fit"])
def test_shares_are_above_0_and_at_most_1(sample, capsys, verb, words):
    output = ["-o", "m.trueup"] if verb == "fit" else []
    code, _, err = call(capsys, verb, "sample.parquet", *ROLES, *words, *output)
    assert code == 2
    assert "at most 1; got" in err


# Clusters


@pytest.fixture
def customers(tmp_path, monkeypatch):
    """Write rows of customers that are not independent, with an error that is found even so."""
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(5)
    customer = np.repeat(np.arange(500), 6)
    p = random.uniform(0.1, 0.6, 500)[customer]
    y = (random.random(500)[customer] < p).astype(int)
    rows = {"y": y, "p": 0.5 * p, "region": random.choice(["n", "s"], 500)[customer], "customer": customer}
    with Path("rows.csv").open("w", newline="") as file:
        csv.writer(file).writerows([list(rows), *zip(*rows.values(), strict=True)])


@pytest.mark.parametrize("memory", [[], ["--memory", "1GB"]])
def test_a_warning_of_clusters_is_on_page_summary_json_and_terminal(customers, capsys, memory):
    roles = ["--outcome", "y", "--prediction", "p", "--by", "region"]
    outputs = ["-o", "a.html", "-o", "a.md", "-o", "a.json", "--profile", "general"]
    code, out, err = run(capsys, "rows.csv", *roles, *outputs, *memory)
    warning = "rows with the same 'customer' are not independent (correlation of residuals"
    assert code == 0
    assert warning in err
    assert warning in out
    page, summary, data = (Path(name).read_text(encoding="utf-8") for name in ("a.html", "a.md", "a.json"))
    assert warning.replace("'", "&#39;") in page
    assert "rows with the same 'customer' are not independent" in summary.replace("&#39;", "'")
    found = json.loads(data)
    assert [record["category"] for record in found["warnings"]] == ["ClusterWarning"]
    assert found["warnings"][0]["column"] == "customer"
    assert any(note.startswith(warning) for note in found["notes"])
    *_, sentence, command = out.splitlines()
    assert sentence == "next: audit again with --cluster customer: rows with the same customer are not independent."
    again = shlex.split(command)[1:]
    assert again[again.index("--cluster") + 1] == "customer"
    assert found["next"]["code"] == command.strip()
    assert command.strip() in page.replace("<span>", "").replace("</span>", "")
    code, out, err = call(capsys, *again)
    assert (code, err) == (0, "")
    assert "not independent" not in out
    (line,) = (line for line in out.splitlines() if line.startswith("  trueup fit "))
    assert "--cluster customer" in line
    assert call(capsys, *shlex.split(line)[1:], "--quiet")[0] == 0


def test_draws_of_independent_rows_are_not_suggested_with_clusters(customers, capsys):
    words = ["rows.csv", "--outcome", "y", "--prediction", "p", "--by", "region", "--adjust", "max"]
    command = run(capsys, *words)[1].splitlines()[-1]
    assert call(capsys, *shlex.split(command)[1:])[0] == 0


def test_a_column_of_clusters_that_was_named_as_segment_has_no_command(customers, capsys):
    out = run(capsys, "rows.csv", "--outcome", "y", "--prediction", "p", "--by", "region,customer", "--depth", "1")[1]
    assert out.splitlines()[-1].startswith("next: audit again with --cluster customer, and leave that column out of the")


def test_the_suggested_fit_of_a_family_has_the_exposure(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    random = np.random.default_rng(0)
    years, rate = random.uniform(0.1, 1, 8_000), 0.5 * random.lognormal(0, 0.4, 8_000)
    group = random.choice(["a", "b"], 8_000)
    truth = rate * np.where(group == "a", 1.6, 1.0)
    claims = random.poisson(years * truth) / years
    pl.DataFrame({"rate": rate, "claims": claims, "years": years, "group": group}).write_parquet("rows.parquet")
    roles = ["--outcome", "claims", "--prediction", "rate", "--by", "group", "--family", "poisson", "--weight", "years"]
    out = run(capsys, "rows.parquet", *roles)[1]
    (line,) = (line.strip() for line in out.splitlines() if line.startswith("  trueup fit "))
    assert "--weight years --task regression" in line
    assert call(capsys, *shlex.split(line)[1:], "--quiet")[0] == 0
    corrected = tu.load("model.trueup").predict({"rate": rate, "group": group})
    for level in ("a", "b"):
        rows = group == level
        assert corrected[rows].mean() == pytest.approx(truth[rows].mean(), rel=0.08)
