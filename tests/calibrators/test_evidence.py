"""Evidence kept with a model: decisions by a loaded model equal those by the fix, and forged evidence is rejected."""

from __future__ import annotations

import json
import os
import zlib
from types import SimpleNamespace

import numpy as np
import pytest

import trueup as tu
from checks import CLASSES, rows
from forged import STRANGE, changed, places, refused, store
from trueup import storage
from trueup.audits.text import notes  # noqa: F401  (imported for its warnings)
from trueup.errors import ArgumentError, FileError, ShiftWarning
from trueup.metrics.inputs import Scored
from trueup.modelfile import KIND, MANIFEST

COSTS = {"fn": 5, "fp": 1}


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(scope="module")
def data():
    return rows("binary", 400)


@pytest.fixture(scope="module", params=["plain", "soft, weighted, clustered"])
def fix(request, data):
    if request.param == "plain":
        return tu.Platt("p", stopping=tu.CrossValidation(3)).fit(data, data["y"])
    soft = np.clip(0.8 * data["y"] + 0.1, 0, 1)
    weight, cluster = np.linspace(0.5, 2, 400), np.arange(400) // 4
    return tu.Platt("p", stopping=tu.CrossValidation(3)).fit(data, soft, sample_weight=weight, cluster=cluster)


def test_a_loaded_model_is_evidence_with_the_same_numbers(fix, data, tmp_path):
    tu.save(fix, tmp_path / "model", evidence=True)
    model = tu.load(tmp_path / "model")
    for own, other in zip(fix.held_out_, model.held_out_, strict=True):
        assert own.tobytes() == other.tobytes()
    p = fix.predict(data)
    ours, theirs = (tu.decisions.expected_cost(p, COSTS, 0.2, labelled=labelled) for labelled in (fix, model))
    assert ours.to_dict() == theirs.to_dict()
    assert tu.decisions.expected_roc(p, labelled=fix).to_dict() == tu.decisions.expected_roc(p, labelled=model).to_dict()
    assert model.info().evidence == 400
    assert "evidence    400 held-out rows with outcomes" in repr(model)
    tu.save(model, tmp_path / "again", evidence=True)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def test_evidence_is_off_by_default(fix, tmp_path):
    tu.save(fix, tmp_path / "model", evidence=True)
    tu.save(tu.load(tmp_path / "model"), tmp_path / "without")
    tu.save(fix, tmp_path / "default")
    assert (tmp_path / "default").read_bytes() == (tmp_path / "without").read_bytes()
    model = tu.load(tmp_path / "default")
    assert model.info().evidence == 0
    assert not [name for name in storage.read(tmp_path / "default", kind=KIND) if name.startswith("evidence")]
    with pytest.raises(
        ArgumentError, match=r"this Model has no held-out rows, so its errors are unknown.*\n.*evidence=True"
    ):
        tu.decisions.expected_cost([0.1, 0.2], COSTS, 0.2, labelled=model)
    for other in (model, fix.model_, tu.Platt("p").fit(rows("binary", 60), "y")):
        with pytest.raises(ArgumentError, match="no held-out rows to keep as evidence"):
            tu.save(other, tmp_path / "more", evidence=True)


def test_held_out_scores_of_a_loaded_model_are_known_as_such(fix, tmp_path):
    if not fix.history_.is_cross_fit:
        pytest.skip("scores are left unchanged")
    tu.save(fix, tmp_path / "model", evidence=True)
    y, p, _ = tu.load(tmp_path / "model").held_out_
    audit = tu.audit({"p": p, "y": y, "g": np.arange(len(y)) % 2}, outcome="y", prediction="p", task="binary")
    assert "cross-fit" in repr(audit) or audit.cross_fitted


def forge(array):
    return zlib.compress(np.ascontiguousarray(array).view(np.uint8).reshape(len(array), -1).T.tobytes(), 9)


def test_forged_evidence_is_rejected(fix, tmp_path):
    tu.save(fix, tmp_path / "model", evidence=True)
    parts = storage.read(tmp_path / "model", kind=KIND)
    y, p, w = fix.held_out_
    wrong = [("p", value, "evidence is not between 0 and 1") for value in (np.nan, np.inf, -0.1, 1.1)] + [
        ("before", np.nan, "evidence is not between 0 and 1")
    ]
    if "evidence/w" in parts:
        wrong += [("w", value, "a weight of the evidence is invalid") for value in (0.0, -1.0, np.nan, 1e300)]
        wrong += [("y", 2.0, "evidence is not between 0 and 1")]
    for name, value, message in wrong:
        array = {"p": p, "before": fix.held_out_before_, "w": w, "y": y}[name].copy()
        array[7] = value
        store(tmp_path / "forged", parts | {f"evidence/{name}": forge(array)})
        refused(tmp_path / "forged", message)
    if "evidence/cluster" in parts:
        store(tmp_path / "forged", parts | {"evidence/cluster": forge(np.full(400, 2**31, "<u4"))})
        refused(tmp_path / "forged", "a cluster of the evidence is invalid")
    blob = parts["evidence/p"]
    bomb = zlib.compress(bytes(50_000_000), 9)
    for other in (b"", blob[:-3], blob + b"\0", b"x" + blob, forge(p[:-1]), forge(np.append(p, 0.5)), bomb):
        store(tmp_path / "forged", parts | {"evidence/p": other})
        refused(tmp_path / "forged", "the evidence is damaged")
    for changes in ({"evidence/p": None}, {"evidence/more": b""}):
        kept = {name: content for name, content in (parts | changes).items() if content is not None}
        store(tmp_path / "forged", kept)
        refused(tmp_path / "forged", "the arrays of the evidence do not fit")
    manifest = json.loads(parts[MANIFEST])
    store(tmp_path / "forged", parts | {MANIFEST: json.dumps({**manifest, "evidence": None}).encode()})
    refused(tmp_path / "forged", "arrays that the manifest does not list")


def test_changed_entries_of_the_evidence_are_rejected_or_harmless(fix, tmp_path):
    tu.save(fix, tmp_path / "model", evidence=True)
    parts = storage.read(tmp_path / "model", kind=KIND)
    manifest, rejected = json.loads(parts[MANIFEST]), 0
    for place in places(manifest["evidence"], ("evidence",)):
        for value in [*STRANGE, 2**40, "<f8", "|u1", "|O"]:
            if changed(manifest, place, value) == manifest:
                continue
            store(tmp_path / "forged", parts | {MANIFEST: json.dumps(changed(manifest, place, value)).encode()})
            with pytest.raises(FileError):
                tu.load(tmp_path / "forged")
            rejected += 1
    assert rejected > 60


def test_a_saved_model_can_be_labelled_in_a_prior_correction(fix, tmp_path):
    tu.save(fix, tmp_path / "model", evidence=True)
    model, scores = tu.load(tmp_path / "model"), fix.held_out_.p
    estimates = [
        tu.PriorCorrection(prevalence="estimate", labelled=labelled).fit(scores).estimate_ for labelled in (fix, model)
    ]
    assert estimates[0] == estimates[1]
    assert estimates[0].estimate == pytest.approx(np.average(fix.held_out_.y, weights=fix.held_out_.w), abs=0.05)


# ------------------------------------------------------------------ several classes


@pytest.fixture(scope="module")
def classes_fix():
    data = rows("multiclass", 400)
    several = {"prediction": [f"p_{name}" for name in CLASSES], "classes": CLASSES}
    return tu.Temperature(**several, stopping=tu.CrossValidation(3)).fit(data, data["y"]), data


def test_a_loaded_model_of_several_classes_is_evidence_for_decisions(classes_fix, tmp_path):
    fix, data = classes_fix
    costs = {"wait": [0, 4, 9], "act": [3, 1, 2]}
    tu.save(fix, tmp_path / "model", evidence=True)
    model = tu.load(tmp_path / "model")
    for own, other in zip(fix.held_out_, model.held_out_, strict=True):
        assert own.tobytes() == other.tobytes()
    np.testing.assert_array_equal(fix.held_out_before_, model.held_out_before_)
    P, (y, p, w) = fix.predict(data), fix.held_out_
    costed = [tu.decisions.expected_cost(P, costs, labelled=labelled).to_dict() for labelled in (fix, model, (y, p, w))]
    assert costed[0] == costed[1] == costed[2]
    tu.save(model, tmp_path / "again", evidence=True)
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def test_scores_of_a_mean_of_models_are_no_shift_from_those_of_the_fold_models():
    chance, other = np.random.default_rng(2).dirichlet([1, 1, 1], (2, 20_000))
    chance = 0.93 * chance + 0.07 * np.eye(3)[chance.argmax(axis=1)]  # somewhat surer
    held = Scored(np.arange(20_000.0) % 3, other, np.ones(20_000))
    costs = {"a": [0, 1, 1], "b": [1, 0, 1], "c": [1, 1, 0]}
    cross_fitted = SimpleNamespace(held_out_=held, held_out_before_=None)
    with pytest.warns(ShiftWarning):
        tu.decisions.expected_cost(chance, costs, labelled=(held.y, held.p))
    tu.decisions.expected_cost(chance, costs, labelled=cross_fitted)  # without a warning, which would be an error


def test_evidence_of_several_classes_does_not_fit_one_score(classes_fix, fix):
    own, data = classes_fix
    with pytest.raises(ArgumentError, match="are of several classes, the scores of one"):
        tu.decisions.expected_cost(own.predict(data)[:, 0], COSTS, 0.2, labelled=own)
    with pytest.raises(ArgumentError, match="a calibrator of several classes with held-out rows"):
        tu.decisions.expected_cost(own.predict(data), {"a": [0, 1, 2], "b": [1, 1, 1]}, labelled=fix)


@pytest.mark.parametrize("damage", ["class", "sum"])
def test_invalid_evidence_of_several_classes_is_rejected(classes_fix, tmp_path, damage):
    tu.save(classes_fix[0], tmp_path / "model", evidence=True)
    blobs = dict(storage.read(tmp_path / "model", kind=KIND))
    count = len(classes_fix[0].held_out_.y)
    if damage == "class":
        blobs["evidence/y"] = zlib.compress(np.full(count, 7, np.uint8).tobytes())
    else:
        blobs["evidence/p"] = zlib.compress(b"\0" * 8 * count * len(CLASSES))
    store(tmp_path / "forged", blobs)
    refused(tmp_path / "forged", "unknown class" if damage == "class" else "add up to 1")
