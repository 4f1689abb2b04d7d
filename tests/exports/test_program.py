"""Lowered corrections compute what the scorer of the model computes; operations mean what they say."""

import dataclasses

import numpy as np
import pytest

import exported
import trueup as tu
from trueup.errors import ArgumentError, ExportError
from trueup.exports import program as ir
from trueup.exports.certificate import certify, check_rows, exact_values, largest_allowed, program_inputs
from trueup.exports.lower import _invert, lower


def scores_of(program, columns):
    values = program.evaluate(*program_inputs(program, columns))
    result, valid = values[program.result], values[program.valid]
    rows = len(next(iter(columns.values())))
    return np.where(np.broadcast_to(valid, (rows, 1)), result, np.nan)


@pytest.mark.parametrize("name", exported.MODELS)
def test_the_program_of_a_model_computes_its_scores(name):
    model = exported.MODELS[name]()
    program = lower(model)
    certificate = certify(model, program, "numpy", "its definition", [lambda columns: scores_of(program, columns)])
    assert certificate.largest_difference <= largest_allowed(program)
    assert certificate.rows >= 2_000


def test_check_rows_have_every_cut_and_the_floats_beside_it():
    program = lower(exported.MODELS["mcgrad_tables"]())
    columns = check_rows(program)
    cuts = {"p": program.score_cuts[0], **program.number_cuts}
    assert sum(map(len, cuts.values())) > 5
    for name, own in cuts.items():
        for beside in (own, np.nextafter(own, -np.inf), np.nextafter(own, np.inf)):
            inside = beside[(beside >= 0) & (beside <= 1)] if name == "p" else beside
            assert np.isin(inside, columns[name]).all()
    assert set(columns["device"]) > {"tv", "tablet", "phone", None}
    assert np.isnan(columns["income"]).any()


def test_an_export_that_is_not_exact_is_refused():
    model = exported.MODELS["mcgrad_tables"]()
    program = lower(model)

    def off_by_one_bit(columns):
        found = scores_of(program, columns)
        found[17] += 1e-15
        return found

    with pytest.raises(ExportError, match=r"1 of 2,000 test rows differ by more than 4e-16"):
        certify(model, program, "numpy", "", [off_by_one_bit])

    def fills_invalid(columns):
        return np.nan_to_num(scores_of(program, columns), nan=0.5)

    with pytest.raises(ExportError, match="are missing in one of both"):
        certify(model, program, "numpy", "", [fills_invalid])

    def other_sums(columns):
        sums = exact_values(program, columns)
        return np.column_stack([scores_of(program, columns), np.nextafter(sums, 9)])

    with pytest.raises(ExportError, match="have other sums"):
        certify(model, program, "numpy", "", [other_sums])


def test_a_cut_of_a_logit_becomes_a_cut_of_the_probability_between_the_same_floats():
    cuts = np.array([-2.0, 0.0, 3.5])
    moved = _invert(lambda p: np.log(p) - np.log1p(-p), cuts, 1e-300, 1 - 1e-16)
    beside = np.nextafter(moved, 1)
    assert (np.log(moved) - np.log1p(-moved) <= cuts).all()
    assert (np.log(beside) - np.log1p(-beside) > cuts).all()


def test_the_inverse_of_a_cut_outside_the_range_is_outside_of_it():
    assert _invert(lambda p: p, np.array([-1.0, 2.0]), 0.0, 1.0).tolist() == [-5e-324, 1.0]


def test_counts_are_numbers_of_cuts_below_or_at_most():
    x = ir.Expression("numbers", "float", 1)
    values = np.array([[0.5], [1.0], [2.5], [np.nan]])
    for closed, expected in (("right", [0, 0, 2, 3]), ("left", [0, 1, 2, 3])):
        counted = ir.count(x, [np.array([1.0, 2.0])], closed)
        assert ir.evaluate_one(counted, [values], {}).ravel().tolist() == expected


def test_totals_add_from_left_to_right():
    x = ir.Expression("numbers", "float", 3)
    assert ir.evaluate_one(ir.total(x), [np.array([[1e16, 1.0, -1e16]])], {}) == (1e16 + 1.0) - 1e16


def test_methods_that_keep_training_rows_cannot_be_exported(tmp_path):
    data = exported.frame(400)
    fix = tu.LoRe("p", ["age"], gamma=0.5, shrinkage=0.0).fit(data, data["y"])
    with pytest.raises(ArgumentError, match="LoRe cannot be exported"):
        tu.export(fix, tmp_path / "lore.h")
    assert not list(tmp_path.iterdir())


def test_arguments_are_checked(tmp_path):
    model = exported.MODELS["platt"]()
    for path, settings, message in (
        ("x.txt", {}, "names no target"), ("x", {"to": "pmml"}, "to must be"), ("x.h", {"prefix": "a b"}, "C identifier"),
    ):  # fmt: skip
        with pytest.raises(ArgumentError, match=message):
            tu.export(model, tmp_path / path, **settings)
    with pytest.raises(ArgumentError, match="takes a fitted calibrator or a Model"):
        tu.export(tu.Platt("p"), tmp_path / "x.h")
    assert not list(tmp_path.iterdir())


def test_a_column_may_be_score_and_feature(tmp_path):
    data = exported.frame()
    model = tu.MCGrad("p", ["p", "age"], depth=2, stopping=None, rounds=1, trees=5).fit(data, data["y"]).model_
    assert tu.export(model, tmp_path / "x.h").exact_values == 1


def test_dates_are_days(tmp_path):
    data = exported.frame()
    data["day"] = np.datetime64("2026-01-01") + np.arange(len(data["p"])) % 365
    data["y"] = np.where(data["day"] < np.datetime64("2026-05-01"), 1.0, data["y"])
    model = tu.MCGrad("p", ["day"], depth=2, stopping=None, rounds=1, trees=5).fit(data, data["y"]).model_
    assert lower(model).number_cuts["day"].size
    tu.export(model, tmp_path / "x.h")


def test_models_loaded_from_a_file_are_exported_alike(tmp_path):
    model = exported.MODELS["mcgrad_trees"]()
    tu.save(model, tmp_path / "m.trueup")
    tu.export(model, tmp_path / "a.h")
    tu.export(tu.load(tmp_path / "m.trueup"), tmp_path / "b.h")
    assert (tmp_path / "a.h").read_text() == (tmp_path / "b.h").read_text()
    assert (tmp_path / "a.h.parity.json").exists()


def test_an_export_that_is_not_verified_has_no_certificate(tmp_path):
    model = exported.MODELS["platt"]()
    tu.export(model, tmp_path / "a.h")
    assert tu.export(model, tmp_path / "a.h", verify=False) is None
    assert [path.name for path in tmp_path.iterdir()] == ["a.h"]


def test_certificates_state_what_was_compared(tmp_path):
    certificate = tu.export(exported.MODELS["mcgrad_rounds"](), tmp_path / "a.h")
    assert certificate.to_dict() == dataclasses.asdict(certificate) | {"notes": list(certificate.notes)}
    assert "Rounds after the first compare logits with cuts" in certificate.notes[0]
    assert "largest difference" in repr(certificate)
