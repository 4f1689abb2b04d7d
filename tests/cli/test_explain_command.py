"""`trueup explain`: descriptions of models and of single predictions."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import numpy as np
import pytest

import trueup as tu
from commands import call

ROW = {"p": 0.2, "country": "BR", "age": 31, "new": True, "zip": "01", "day": "2024-05-01"}


def test_explain_describes_a_model(workdir, capsys):
    code, out, err = call(capsys, "explain", "binary.trueup")
    model = tu.load("binary.trueup")
    assert (code, err) == (0, "")
    assert out.startswith(repr(model.info()) + "\n")
    assert "country=BR" in out
    assert f"evaluated by cross-validation, log loss; {model.history.reason}\n" in out
    assert "original scores" in out
    assert len(re.findall(r"^round \d", out, re.MULTILINE)) == len(model.history.rounds) - 1
    _, out, _ = call(capsys, "explain", "binary.trueup", "--top", "1")
    assert f"{len(model.explanation.corrections) - 1} more: --top {len(model.explanation.corrections)}\n" in out


def test_json_contains_the_whole_model(workdir, capsys):
    model = tu.load("binary.trueup")
    code, out, _ = call(capsys, "explain", "binary.trueup", "--json", "-")
    output = json.loads(out)
    assert code == 0
    assert output["model"]["rows"] == 4000
    assert output["history"] == model.history.to_dict()
    assert output["explanation"] == model.explanation.to_dict()
    assert call(capsys, "explain", "binary.trueup", "--json", "e.json")[1] == "wrote e.json\n"
    assert json.loads((workdir / "e.json").read_text()) == output


def test_the_contributions_of_a_row_add_up(workdir, capsys):
    model = tu.load("binary.trueup")
    code, out, _ = call(capsys, "explain", "binary.trueup", "--row", json.dumps(ROW), "--top", "3")
    explanation = model.explain({**ROW, "day": np.datetime64("2024-05-01")})
    assert code == 0
    change = 100 * (explanation.after - 0.2)
    assert out.startswith(f"0.2 -> {explanation.after:.6g}: {change:+.2f} points\n\ndue to ")
    parts = [float(item) for item in re.findall(r"  ([+-]\d+\.\d{2})$", out, re.MULTILINE)]
    assert len(parts) == 4  # three, and the rest as one
    assert sum(parts) == pytest.approx(change, abs=0.03)
    assert "missing:" not in out
    _, out, _ = call(capsys, "explain", "binary.trueup", "--row", json.dumps(ROW), "--top", "3", "--details")
    assert out.startswith(f"0.2 -> {explanation.after:.6g} (change of the logit {explanation.link_change:+.4f})\n")
    parts = [float(item) for item in re.findall(r"  ([+-]\d\.\d{4})$", out, re.MULTILINE)]
    assert len(parts) == 4
    assert sum(parts) == pytest.approx(explanation.link_change, abs=3e-4)
    _, out, _ = call(capsys, "explain", "binary.trueup", "--row", json.dumps(ROW), "--json", "-")
    output = json.loads(out)
    assert output["row"] == ROW
    assert output["change"] == output["after"] - output["before"]
    assert "link_change" not in output
    assert sum(item["change"] for item in output["effects"]) == pytest.approx(output["after"] - 0.2, abs=1e-15)
    _, out, _ = call(capsys, "explain", "binary.trueup", "--row", json.dumps(ROW), "--details", "--json", "-")
    details = json.loads(out)
    assert details["effects"] == output["effects"]
    assert sum(item["change"] for item in details["contributions"]) == pytest.approx(details["link_change"], abs=1e-12)


def test_text_values_are_converted_and_unused_columns_listed(workdir, capsys):
    plain = call(capsys, "explain", "binary.trueup", "--row", json.dumps(ROW), "--json", "-")[1]
    texts = {**ROW, "p": "0.2", "age": "31"}
    assert (
        json.loads(call(capsys, "explain", "binary.trueup", "--row", json.dumps(texts), "--json", "-")[1])["effects"]
        == json.loads(plain)["effects"]
    )
    _, out, _ = call(capsys, "explain", "binary.trueup", "--row", json.dumps({**ROW, "age": None, "x": [1]}))
    assert "not given, treated as missing: age\nnot used by the model: x\n" in out
    code, _, err = call(capsys, "explain", "binary.trueup", "--row", '{"p": 0.2, "contry": "BR"}')
    assert code == 2
    assert "the row has a key 'contry', which is not a column of the model, and no country, age" in err
    assert "hint: did you mean 'country'?" in err


def test_several_classes_and_amounts_are_explained(workdir, capsys):
    row = '{"q0": 0.2, "q1": 0.3, "q2": 0.5, "country": "US"}'
    code, out, _ = call(capsys, "explain", "classes.trueup", "--row", row)
    assert code == 0
    assert re.match(r"\(0\.2, 0\.3, 0\.5\) -> \(0\.\d+, 0\.\d+, 0\.\d+\)\n\ndue to +cat \(points\) +dog \(points\) ", out)
    assert re.search(r"country=US( +[+-]\d+\.\d\d){3}\n", out)
    _, out, _ = call(capsys, "explain", "classes.trueup", "--row", row, "--details")
    assert re.search(r"country=US .* cat +[+-]\d", out)
    code, out, _ = call(capsys, "explain", "amounts.trueup", "--row", '{"forecast": 30, "country": "DE"}')
    assert code == 0
    assert re.match(r"30 -> [0-9.]+: \+[0-9.]+\n", out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "required: MODEL"),
        (["none.trueup"], "cannot read none.trueup: there is no such file"),
        (["rows.csv"], "it is not an archive of trueup\nhint: name a file that trueup saved"),
        (["binary.trueup", "--row", "p=0.2"], '--row is not JSON: p=0.2\nhint: write it as --row \'{"p": 0.2'),
        (["binary.trueup", "--row", '{"p": 0.2, "age": NaN}'], "--row is not JSON"),
        (["binary.trueup", "--row", "[0.2]"], "--row must be one JSON object; got [0.2]"),
        (["binary.trueup", "--row", '{"country": "BR"}'], "--row has no value for the prediction 'p'"),
        (["binary.trueup", "--row", '{"p": 1.2}'], "prediction 'p' must be a probability in [0, 1]; got 1.2"),
        (["binary.trueup", "--row", '{"p": "high"}'], "--row: 'p' must be a number; got 'high'"),
        (["binary.trueup", "--row", '{"p": 0.2, "age": "old"}'], "age"),
        (["binary.trueup", "--row", '{"p": 0.2, "age": [1]}'], "--row has several values for 'age'"),
        (["binary.trueup", "--row", '{"p": 0.2, "day": "May"}'], "--row: 'day' must be a date; got 'May'"),
        (["classes.trueup", "--row", '{"q0": 0.2, "q1": 0.2, "q2": 0.2}'], "0.6"),
        (["binary.trueup", "--details"], "--details are of one row, and there is no --row\nhint: write it as --row"),
        (["binary.trueup", "--json", "no/e.json"], "there is no directory no"),
        (["binary.trueup", "--json", "binary.trueup"], "would overwrite an input file"),
        (["binary.trueup", "--rwo", "{}"], "hint: did you mean --row?"),
    ],
)
def test_invalid_input_exits_with_code_2(workdir, capsys, arguments, message):
    code, out, err = call(capsys, "explain", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_predicting_and_explaining_import_neither_scikit_learn_nor_lightgbm(workdir):
    code = (
        "import sys; from trueup.cli import main; main(['predict', 'binary.trueup', 'rows.parquet', '-o', 'o.csv']); "
        "main(['explain', 'binary.trueup']); print(sorted({'sklearn', 'lightgbm', 'pandas', 'pyarrow'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("[]\n")


def test_hidden_rounds_are_counted(workdir, capsys):
    given = ["--outcome", "y", "--prediction", "p", "--features", "country,age", "--method", "lsboost"]
    assert call(capsys, "fit", "rows.parquet", *given, "-o", "many.trueup")[0] == 0
    many = len(tu.load("many.trueup").history.rounds)
    assert many > 4
    _, out, _ = call(capsys, "explain", "many.trueup", "--top", "4")
    assert f"{many - 4} more rounds between these: --top {many}" in out
    _, out, _ = call(capsys, "explain", "many.trueup", "--top", str(many))
    assert "more rounds" not in out
