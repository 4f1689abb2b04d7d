"""`trueup fit`: a saved model and its description."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import polars as pl
import pytest

import trueup as tu
from commands import call
from trueup.cli.fit import CURVES
from trueup.cli.options import MATRIX, METHODS

GIVEN = ["--outcome", "y", "--prediction", "p", "--features", "country,age"]


@pytest.mark.parametrize("name", ["rows.parquet", "rows.csv"])
def test_fit_saves_and_describes_a_model(workdir, capsys, name):
    code, out, err = call(capsys, "fit", name, *GIVEN, "-o", "m.trueup")
    assert (code, err) == (0, "")
    model, frame = tu.load("m.trueup"), pl.read_parquet("rows.parquet")
    made = tu.MCGrad("p", ["country", "age"]).fit(frame, frame["y"])
    assert (model.predict(frame) == made.predict(frame)).all()
    assert out.startswith(made.history_.reason + "\nMCGrad on 4,000 rows and 2 features; evaluated by cross-validation")
    assert "\nsegment " in out
    assert "country=BR" in out
    assert f"\nwrote m.trueup ({model.info().map}; " in out
    # What was fitted is not scored as if it were new.
    assert out.endswith("\nnext:\n  trueup predict m.trueup new.parquet -o scored.parquet\n  trueup explain m.trueup\n")
    assert not list(workdir.glob(".trueup*"))


def test_only_needed_columns_are_read(workdir, capsys, monkeypatch):
    from trueup.cli import io

    asked, original = {}, io.read_files
    monkeypatch.setattr(io, "read_files", lambda paths, **given: asked.update(given) or original(paths, **given))
    call(capsys, "fit", "rows.parquet", *GIVEN, "-o", "m.trueup", "--threads", "1")
    assert asked["columns"] == ["y", "p", "country", "age"]
    assert asked["threads"] == 1


def test_options_reach_the_calibrator(workdir, capsys):
    given = ["--outcome", "y", "--prediction", "p", "--features", "zip,country", "--categorical", "zip"]
    more = ["--depth", "1", "--seed", "3", "--monotone", "--method", "mcgrad", "--quiet"]
    code, out, err = call(capsys, "fit", "rows.csv", *given, *more, "-o", "m.trueup")
    assert (code, err, out.count("\n")) == (0, "", 1)
    model = tu.load("m.trueup")
    parameters = model.about.parameters
    assert (parameters["depth"], parameters["random_state"], parameters["monotone"], parameters["categorical"]) == (
        1,
        3,
        True,
        ["zip"],
    )
    assert model.schema.features[0].levels == ("01", "02", "03")


def test_json_contains_the_whole_fit(workdir, capsys):
    code, out, _ = call(capsys, "fit", "rows.parquet", *GIVEN, "-o", "m.trueup", "--json", "-")
    output = json.loads(out)
    assert code == 0
    assert output["file"] == "m.trueup"
    assert output["model"]["features"] == ["country", "age"]
    assert output["history"]["chosen"] > 0
    assert output["model"]["map"].startswith("a line and 1 round (")
    assert output["explanation"]["corrections"]
    code, out, _ = call(capsys, "fit", "rows.parquet", *GIVEN, "-o", "m.trueup", "--json", "m.json")
    assert "\nwrote m.json\nnext:\n" in out
    assert json.loads((workdir / "m.json").read_text()) == output


def test_several_classes_and_amounts_are_fitted(workdir, capsys):
    given = ["--outcome", "species", "--prediction", "q0,q1,q2", "--classes", "cat,dog,fox", "--features", "country"]
    assert call(capsys, "fit", "rows.csv", *given, "-o", "c.trueup")[0] == 0
    assert tu.load("c.trueup").schema.classes == ("cat", "dog", "fox")
    given = ["--outcome", "amount", "--prediction", "forecast", "--features", "country"]
    code, _, err = call(capsys, "fit", "rows.csv", *given, "-o", "a.trueup")
    assert code == 2
    assert "--task regression" in err
    assert call(capsys, "fit", "rows.csv", *given, "--task", "regression", "-o", "a.trueup")[0] == 0
    assert tu.load("a.trueup").schema.task == "regression"


def test_calibrated_scores_are_left_unchanged(workdir, capsys):
    pl.DataFrame({"y": [0, 1] * 200, "p": [0.5] * 400, "g": ["a", "a", "b", "b"] * 100}).write_csv("calm.csv")
    code, out, _ = call(capsys, "fit", "calm.csv", "--outcome", "y", "--prediction", "p", "-o", "m.trueup")
    assert code == 0
    assert out.startswith("no round lowered the held-out loss significantly; scores are left unchanged\n")
    assert "segment" not in out
    _, out, _ = call(capsys, "explain", "m.trueup")
    assert "no corrections: the model leaves every score unchanged" in out
    assert (
        call(capsys, "explain", "m.trueup", "--row", '{"p": 0.5}')[1]
        == "0.5 -> 0.5\nthe model leaves this score unchanged\n"
    )


def test_rows_without_an_outcome_are_an_error_or_dropped(workdir, capsys):
    frame = pl.read_parquet("rows.parquet").with_columns(y=pl.when(pl.col("id") < 100).then(None).otherwise(pl.col("y")))
    frame.write_csv("gaps.csv")
    code, _, err = call(capsys, "fit", "gaps.csv", *GIVEN, "-o", "m.trueup")
    assert code == 2
    assert "--unlabelled drop" in err
    _, out, _ = call(capsys, "fit", "gaps.csv", *GIVEN, "-o", "m.trueup", "--unlabelled", "drop")
    assert "MCGrad on 3,900 rows" in out
    assert "100 rows without an outcome were dropped" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([*GIVEN, "-o", "m.trueup"], "no FILE was named"),
        (["rows.parquet", *GIVEN], "required: -o/--output"),
        (["rows.parquet", *GIVEN, "-o", "no/m.trueup"], "there is no directory no"),
        (["rows.parquet", *GIVEN, "-o", "."], "hint: name a file, such as model.trueup"),
        (["rows.parquet", *GIVEN, "-o", "rows.parquet"], "rows.parquet would overwrite an input file\nhint: name another"),
        (["rows.*", *GIVEN, "-o", "m.trueup"], "files of different formats"),
        (["rows.parquet", *GIVEN, "-o", "/dev/null"], "/dev/null is not a regular file"),
        (["rows.parquet", *GIVEN, "--feature", "age", "-o", "m"], "hint: did you mean --features?"),
        (["rows.parquet", *GIVEN[:4], "--features", "contry", "-o", "m"], "no column 'contry' to use as feature\nhint: did you"),
        (["rows.parquet", *GIVEN, "--method", "magic", "-o", "m"], "invalid choice: 'magic'"),
        (["rows.parquet", *GIVEN, "--depth", "0", "-o", "m"], "--depth must be an integer from 1 to"),
        (["rows.parquet", *GIVEN, "-o", "m", "--json", "no/m.json"], "there is no directory no"),
        (["rows.parquet", *GIVEN, "-o", "m", "--json", "rows.parquet"], "rows.parquet would overwrite an input file"),
        (["rows.parquet", *GIVEN, "-o", "m", "--json", "./m"], "./m would be written twice"),
        (["rows.parquet", *GIVEN, "-o", "m", "--held-out", "h.xlsx"], "cannot tell the format of 'h.xlsx' by its name"),
        (["rows.parquet", *GIVEN, "-o", "m", "--held-out", "rows.parquet"], "rows.parquet would overwrite an input file"),
        (["rows.parquet", *GIVEN, "-o", "m.csv", "--held-out", "./m.csv"], "./m.csv would be written twice"),
        (["rows.parquet", *GIVEN, "-o", "m", "--json", "h.json", "--held-out", "h.json"], "h.json would be written twice"),
        (["rows.parquet", *GIVEN, "-o", "m", "--held-out", "no/h.csv"], "there is no directory no"),
        (["rows.parquet", *GIVEN[:4], "--method", "platt", "-o", "m", "--held-out", "h.csv"], "--held-out: platt holds no rows out\nhint: add --cross-validate"),
        (["rows.parquet", "--outcome", "species", "--prediction", "q0,q1,q2", "-o", "m", "--held-out", "h.csv"], "--held-out needs one prediction column and a binary outcome"),
        (["rows.parquet", "--outcome", "amount", "--prediction", "forecast", "--task", "regression", "-o", "m", "--held-out", "h.csv"], "--held-out needs one prediction column"),
        (["--sql", "SELECT *, p AS P_trueup FROM 'rows.parquet'", *GIVEN, "-o", "m", "--held-out", "h.csv"], "column 'p_trueup' exists already"),
        (["--sql", "SELECT * FROM 'rows.parquet' ORDER BY random()", *GIVEN, "-o", "m", "--held-out", "h.csv"], "--held-out reads the rows again, and they differ from those of the fit\nhint: give the rows of a query a fixed order"),
        (["--sql", "FROM 'rows.parquet' LIMIT 10", *GIVEN[:4], "--method", "auto", "-o", "m", "--held-out", "h.csv"], "--held-out: Auto held no rows out"),
    ],
)  # fmt: skip
def test_invalid_input_exits_with_code_2(workdir, capsys, arguments, message):
    before = sorted(workdir.iterdir())
    code, out, err = call(capsys, "fit", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert sorted(workdir.iterdir()) == before


def test_an_interrupted_fit_leaves_the_old_model(workdir, capsys, monkeypatch):
    (workdir / "m.trueup").write_text("old")

    def interrupt(*_, **__):
        raise KeyboardInterrupt

    monkeypatch.setattr("trueup.calibrators.mcgrad.estimator.MCGrad.fit_table", interrupt)
    assert call(capsys, "fit", "rows.parquet", *GIVEN, "-o", "m.trueup") == (130, "", "interrupted\n")
    assert (workdir / "m.trueup").read_text() == "old"


def test_pipes_receive_plain_text(workdir, capfd):
    given = ["fit", "rows.parquet", "--outcome", "y", "--prediction", "p", "--method", "platt", "-o", "m.trueup"]
    code, out, err = call(capfd, *given)
    assert (code, err) == (0, "")
    assert "\x1b" not in out


# ------------------------------------------------------------------ other methods


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("mcgrad", MATRIX)])
def test_every_method_is_fitted_saved_and_described(workdir, capsys, method):
    columns = [] if method in CURVES or method == "prior" else ["--features", "country,age"]
    columns += ["--prevalence", "0.3"] if method == "prior" else []
    given = ["--outcome", "y", "--prediction", "p", "--method", method, *columns]
    code, out, err = call(capsys, "fit", "few.parquet", *given, "-o", "m.trueup")
    assert (code, err) == (0, "")
    model = tu.load("m.trueup")
    assert model.about.method.split(":")[0] == METHODS[method]
    assert out.startswith(model.history.reason)
    code, out, _ = call(capsys, "explain", "m.trueup")
    assert code == 0
    assert model.info().map in out
    assert call(capsys, "predict", "m.trueup", "few.parquet", "-o", "out.parquet", "--quiet")[0] == 0
    result = pl.read_parquet("out.parquet")
    np.testing.assert_array_equal(result["p_trueup"].to_numpy(), model.predict(result))


@pytest.fixture
def logit_rows(workdir):
    random = np.random.default_rng(0)
    Z = 2 * random.normal(size=(400, 3))
    y = np.argmax(Z / 2 + random.gumbel(size=Z.shape), axis=1)
    columns = {f"z{number}": Z[:, number] for number in range(3)}
    frame = pl.DataFrame({**columns, "label": y, "first": (y == 0).astype(int), "group": y % 2})
    frame.write_parquet("logits.parquet")
    return frame


@pytest.mark.parametrize("method", ["temperature", MATRIX])
def test_logits_of_classes_are_corrected(logit_rows, capsys, method):
    given = ["--outcome", "label", "--prediction", "z0,z1,z2", "--logits", "--method", method]
    code, _, err = call(capsys, "fit", "logits.parquet", *given, "-o", "m.trueup")
    assert (code, err) == (0, "")
    expected = {"temperature": tu.Temperature, MATRIX: tu.MatrixScaling}[method](logits=True)
    Z = logit_rows.select("z0", "z1", "z2").to_numpy()
    code, out, _ = call(capsys, "predict", "m.trueup", "logits.parquet", "-o", "out.parquet")
    assert code == 0
    assert "--against" not in out  # logits are no scores to be audited
    corrected = pl.read_parquet("out.parquet").select(f"z{number}_trueup" for number in range(3)).to_numpy()
    np.testing.assert_allclose(corrected, expected.fit(Z, logit_rows["label"].to_numpy()).predict(Z), rtol=1e-9)


def test_held_out_rows_of_logits_are_written(logit_rows, capsys):
    given = ["--outcome", "first", "--prediction", "z0", "--logits", "--method", "platt", "--cross-validate"]
    assert call(capsys, "fit", "logits.parquet", *given, "--held-out", "held.parquet", "-o", "m.trueup")[0] == 0
    held = pl.read_parquet("held.parquet")
    np.testing.assert_array_equal(held["z0"].to_numpy(), logit_rows["z0"].to_numpy())
    assert held["z0_trueup"].is_between(0, 1).all()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "temperature"], "hint: calibrators take logits with --logits; or pass"),
        (["--method", "platt", "--logits", "--task", "regression"], "hint: leave out --logits"),
        (["--method", "hkrr", "--logits"], "error: --logits is not for hkrr"),
        (["--method", MATRIX, "--logits"], "MatrixScaling needs the scores of several classes"),
        (["--method", MATRIX, "--by", "group"], "matrixscaling corrects all rows alike\nhint: leave --by out"),
        (["--method", MATRIX, "--features", "group"], "--features is not for matrixscaling"),
    ],
)
def test_logits_that_do_not_fit_are_rejected(logit_rows, capsys, options, message):
    given = ["--outcome", "first", "--prediction", "z0", *options]
    code, _, err = call(capsys, "fit", "logits.parquet", *given, "-o", "m.trueup")
    assert code == 2
    assert message in err


def test_curves_can_be_fitted_per_group(workdir, capsys):
    given = ["--outcome", "y", "--prediction", "p", "--method", "platt", "--by", "country"]
    assert call(capsys, "fit", "rows.parquet", *given, "-o", "m.trueup")[0] == 0
    model = tu.load("m.trueup")
    assert (model.about.method, [item.name for item in model.schema.features]) == ("Grouped", ["country"])


def test_a_single_correction_is_described_in_the_singular(workdir, capsys):
    Path("equal.csv").write_text("amount,forecast\n" + "9,5\n11,5\n" * 100)
    given = ["--outcome", "amount", "--prediction", "forecast", "--task", "regression", "--method", "additive"]
    _, out, _ = call(capsys, "fit", "equal.csv", *given, "-o", "m.trueup")
    assert len(tu.load("m.trueup").explanation.corrections) == 1
    assert "; the largest correction:\n" in out


def test_patches_are_listed(workdir, capsys):
    given = ["--outcome", "y", "--prediction", "p", "--method", "multiaccuracy", "--features", "country"]
    assert call(capsys, "fit", "rows.parquet", *given, "-o", "m.trueup")[0] == 0
    patches = tu.load("m.trueup").map.patch_list
    assert len(patches) > 0
    _, out, _ = call(capsys, "explain", "m.trueup")
    assert "patches, in order" in out
    assert f"\n1  {patches[0].group}  " in out
    assert "theta" not in out  # there are no trees
    assert "more: --top" not in out.split("patches, in order")[1]
    _, out, _ = call(capsys, "explain", "m.trueup", "--top", "0")
    assert f"{len(patches)} more: --top {len(patches)}" in out.split("patches, in order")[1]
    _, out, _ = call(capsys, "explain", "m.trueup", "--json", "-")
    assert json.loads(out)["patches"] == json.loads(json.dumps(patches.to_dict()))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--method", "isotonic", "--features", "age"], "--features is not for isotonic, which reads the prediction alone"),
        (["--method", "isotonic", "--depth", "2"], "--depth is not for isotonic"),
        (["--method", "hkrr", "--monotone"], "--monotone is not for hkrr\nhint: supported by mcgrad"),
        (["--method", "mcgrad", "--by", "country"], "--by is for the methods isotonic, platt"),
        (["--method", "platt", "--by", ""], "--by names no column\nhint: write it as --by region,product"),
        (["--method", "magic"], "invalid choice: 'magic'"),
    ],
)
def test_options_of_other_methods_are_rejected(workdir, capsys, more, message):
    code, _, err = call(capsys, "fit", "rows.parquet", "--outcome", "y", "--prediction", "p", *more, "-o", "m.trueup")
    assert code == 2
    assert message in err


def test_methods_for_one_score_reject_classes(workdir, capsys):
    given = ["--outcome", "species", "--prediction", "q0,q1,q2", "--classes", "cat,dog,fox", "--method", "hkrr"]
    code, _, err = call(capsys, "fit", "rows.csv", *given, "-o", "m.trueup")
    assert code == 2
    assert (
        "hkrr corrects one prediction column; got several classes\nhint: supported by auto, mcgrad, isotonic, platt, "
        in err
    )


def test_the_comparison_of_auto_and_saturation_are_reported(workdir, capsys):
    given = ["--outcome", "y", "--prediction", "p", "--features", "country,age"]
    code, out, _ = call(capsys, "fit", "few.parquet", *given, "--method", "auto", "-o", "m.trueup", "--json", "m.json")
    output = json.loads((workdir / "m.json").read_text())
    assert code == 0
    assert output["model"]["method"].startswith("Auto: ")
    assert {item["name"] for item in output["choice"]["candidates"]} >= {"identity", "platt", "mcgrad"}
    assert "-> " in out
    assert "behind (s.e.)" in out
    code, out, _ = call(capsys, "fit", "few.parquet", *given, "--method", "depthtwo", "-o", "m.trueup", "--json", "m.json")
    output = json.loads((workdir / "m.json").read_text())
    assert output["saturation"]["sentence"] in out
    assert output["saturation"]["sentence"] in tu.load("m.trueup").history.reason


def test_curves_are_cross_validated_on_request(workdir, capsys):
    given = ["--outcome", "y", "--prediction", "p", "--method", "platt"]
    for more, judged in ((["--cross-validate"], "cross-validation"), ([], "training rows")):
        assert call(capsys, "fit", "rows.parquet", *given, *more, "-o", "m.trueup")[0] == 0
        assert tu.load("m.trueup").history.evaluated_on == judged
