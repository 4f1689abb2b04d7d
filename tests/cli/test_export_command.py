"""`trueup export`."""

import json

import pytest

import exported
import trueup as tu
from trueup.cli import main


@pytest.fixture
def model(tmp_path):
    tu.save(exported.MODELS["mcgrad_tables"](), tmp_path / "m.trueup")
    return tmp_path / "m.trueup"


def test_an_export_is_written_with_its_certificate(model, tmp_path, capsys):
    assert main(["export", str(model), "-o", str(tmp_path / "m.h"), "--prefix", "loans"]) == 0
    printed = capsys.readouterr().out
    assert f"wrote {tmp_path / 'm.h'}" in printed
    assert "largest difference" in printed
    certificate = json.loads((tmp_path / "m.h.parity.json").read_text())
    assert certificate["target"] == "c"
    assert certificate["exact_values"] == 1
    assert "loans_predict" in (tmp_path / "m.h").read_text()


def test_the_check_can_be_left_out(model, tmp_path, capsys):
    assert main(["export", str(model), "-o", str(tmp_path / "m"), "--to", "c", "--no-verify"]) == 0
    assert "not compared with the model" in capsys.readouterr().out
    assert not (tmp_path / "m.parity.json").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["-o", "m.pmml"], "--to onnx"),
        (["-o", "m.h", "--to", "pmml"], "invalid choice: 'pmml'"),
        ([], "required: -o/--output"),
        (["-o", "m.h", "--prefix", "1"], "--prefix must be a C identifier"),
    ],
)
def test_wrong_options_are_named(model, words, message, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["export", str(model), *words]) == 2
    assert message in capsys.readouterr().err
