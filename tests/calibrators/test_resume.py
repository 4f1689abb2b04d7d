"""An interrupted fit resumes from its completed rounds, and gives the model of an uninterrupted one."""

from __future__ import annotations

import json
import os
import pickle
import random
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from sklearn.base import clone

import trueup as tu
from checks import FEATURES, rows
from forged import STRANGE, changed, places
from trueup import storage
from trueup.calibrators.mcgrad.cascade import (
    CHECKPOINT,
    CHECKPOINT_MANIFEST,
    Checkpoint,
    digest_arrays,
    fingerprint_table,
)
from trueup.calibrators.mcgrad.grower import CascadeGrower
from trueup.data.frame import read
from trueup.errors import ArgumentError, FileError

PREDICTIONS = {"binary": "p", "regression": "p", "multiclass": ["p_cat", "p_dog", "p_owl"]}
ROWS = 400


@pytest.fixture(autouse=True)
def _quick_writes(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def mcgrad(task="binary", **own):
    kind = {"task": "regression"} if task == "regression" else {}
    parameters = {
        "prediction": PREDICTIONS[task],
        "features": FEATURES,
        "trees": 6,
        "stopping": tu.CrossValidation(3, patience=9),
        "threads": 1,
        "repeats": 1,
    }
    return tu.MCGrad(**parameters | {"rounds": 3} | kind | own)


def bytes_of(fix, folder):
    tu.save(fix, folder / "model.trueup")
    return (folder / "model.trueup").read_bytes()


@pytest.fixture
def grown(monkeypatch):
    """Count the rounds that are grown; the one whose number is put first in the list is where the user stops the fit."""
    calls, plain = [0, 0], CascadeGrower.grow

    def grow(self, theta=None):
        calls[1] += 1
        if calls[1] == calls[0]:
            raise KeyboardInterrupt
        plain(self, theta)

    monkeypatch.setattr(CascadeGrower, "grow", grow)
    return calls


def stopped(grown, at, fix, data, weight=None):
    """Run a fit that is stopped in a round; count anew from there."""
    grown[:] = [at, 0]
    with pytest.raises(KeyboardInterrupt):
        fix.fit(data, data["y"], weight)
    grown[:] = [0, 0]


OTHER = rows("binary", 200, seed=9)
STOPPINGS = {
    "folds": tu.CrossValidation(3, patience=9), "refit": tu.CrossValidation(2, patience=9, refit=True),
    "share": tu.Holdout(0.3, patience=9), "none": None, "rows of its own": tu.Validation(OTHER, OTHER["y"], patience=9),
}  # fmt: skip


@pytest.mark.parametrize(
    ("task", "stopping"),
    [("binary", name) for name in STOPPINGS] + [("regression", "folds"), ("multiclass", "share")],
)
@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_resumed_fit_gives_the_model_of_an_uninterrupted_one(task, stopping, at, grown, tmp_path):
    data = rows(task, ROWS)
    weight = np.random.default_rng(0).exponential(size=ROWS)
    own = {"stopping": STOPPINGS[stopping]}
    whole = mcgrad(task, **own).fit(data, data["y"], weight)
    expected, all_rounds = bytes_of(whole, tmp_path), grown[1]
    assert len(whole.history_.rounds) == 4
    fix, file = mcgrad(task, **own, resume=tmp_path / "fit.rounds"), tmp_path / "fit.rounds"
    stopped(grown, at, fix, data, weight)
    assert file.exists()
    again = clone(fix).fit(data, data["y"], weight)
    assert grown[1] == all_rounds - (at - 1), "completed rounds are not fitted again"
    assert bytes_of(again, tmp_path) == expected
    if whole.held_out_ is not None:
        assert again.held_out_.p.tobytes() == whole.held_out_.p.tobytes()
    assert [one.name for one in tmp_path.iterdir()] == ["model.trueup"], "the file goes in the end"


def test_a_fit_that_fails_within_a_round_resumes_from_the_round_before(tmp_path):
    data, file = rows("binary", ROWS), tmp_path / "fit.rounds"
    table = read(data, outcome="y", prediction="p", features=FEATURES)
    seen = []

    def progress(trees, most):
        seen.append(trees)
        if len(seen) > 1 and seen[-2] > trees:  # another round has begun
            raise RuntimeError("the power is gone")

    own = {"trees": 12, "learning_rate": 0.4, "depth": 2}
    with pytest.raises(RuntimeError, match="power"):
        mcgrad(**own, resume=str(file)).fit_table(table, progress)
    saved = json.loads(storage.read(file, kind=CHECKPOINT)[CHECKPOINT_MANIFEST])
    assert len(saved["rounds"]) >= 1
    again = mcgrad(**own, resume=str(file)).fit_table(table)
    assert bytes_of(again, tmp_path) == bytes_of(mcgrad(**own).fit_table(table), tmp_path)
    assert not file.exists()


def test_more_rounds_or_threads_are_the_same_fit(grown, tmp_path):
    data, file = rows("binary", ROWS), tmp_path / "fit.rounds"
    stopped(grown, 3, mcgrad(resume=file, threads=1), data)
    fix = mcgrad(resume=file, threads=2, rounds=4).fit(data, data["y"])
    assert grown[1] == 2
    assert fix.predict(data).tobytes() == mcgrad(rounds=4).fit(data, data["y"]).predict(data).tobytes()


@pytest.mark.parametrize("helps", [True, False])
def test_auto_resumes_the_rounds_of_its_chosen_method(helps, grown, tmp_path):
    data, file = rows("binary", ROWS), tmp_path / "fit.rounds"
    if not helps:
        data["y"] = (np.random.default_rng(3).random(ROWS) < data["p"]).astype(int)

    def auto(resume=None):
        parameters = {"trees": 6, "rounds": 3, "stopping": tu.CrossValidation(3, patience=9), "repeats": 1}
        return tu.Auto("p", FEATURES, methods=[tu.MCGrad(**parameters, resume=resume)], folds=2)

    whole = auto().fit(data, data["y"])
    assert grown == [0, 9]
    assert (whole.history_.chosen > 0) == helps
    stopped(grown, 9, auto(file), data)
    assert file.exists()
    again = auto(file).fit(data, data["y"])
    assert grown[1] == 7, "two rounds of the fit on all rows were saved; the folds have no checkpoint"
    assert again.predict(data).tobytes() == whole.predict(data).tobytes()
    assert again.choice_.sentence == whole.choice_.sentence
    assert not file.exists()


CHANGES = {
    "learning_rate": ({"learning_rate": 0.25}, None, "learning_rate \\(0.3 there, 0.25 here\\)"),
    "depth": ({"depth": 2}, None, 'depth \\("auto" there, 2 here\\)'),
    "bins": ({"bins": 20}, None, "bins \\(63 there, 20 here\\)"),
    "seed": ({"random_state": 1}, None, "seed \\(0 there, 1 here\\)"),
    "folds": ({"stopping": tu.CrossValidation(4, patience=9)}, None, "stopping"),
    "trees": ({"trees": 7}, None, "trees \\(6 there, 7 here\\)"),
    "features": ({"features": FEATURES[:3]}, None, "columns and levels"),
    "an outcome": ({}, ("y", lambda y: np.where(np.arange(ROWS) == 3, 1 - y, y)), "differs in outcome"),
    "a prediction": ({}, ("p", lambda p: np.where(np.arange(ROWS) == 3, 0.123, p)), "differs in prediction"),
    "a value": ({}, ("age", lambda age: np.where(np.arange(ROWS) == 3, 33.0, age)), "differs in features"),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_checkpoint_of_another_fit_is_rejected(name, grown, tmp_path):
    own, change, message = CHANGES[name]
    data, file = rows("binary", ROWS), tmp_path / "fit.rounds"
    stopped(grown, 2, mcgrad(resume=file), data)
    before = file.read_bytes()
    if change is not None:
        data = data | {change[0]: change[1](data[change[0]])}
    with pytest.raises(ArgumentError, match=message) as caught:
        mcgrad(**own, resume=file).fit(data, data["y"])
    assert str(file) in caught.value.message
    assert "remove the file or name another" in caught.value.hint
    assert grown[1] == 0
    assert file.read_bytes() == before


def test_other_rows_and_weights_are_another_fit(grown, tmp_path):
    data, file = rows("binary", ROWS), tmp_path / "fit.rounds"
    stopped(grown, 2, mcgrad(resume=file), data)
    with pytest.raises(ArgumentError, match="weight"):
        mcgrad(resume=file).fit(data, data["y"], np.where(np.arange(ROWS) == 7, 2.0, 1.0))
    fewer = {name: column[:-1] for name, column in data.items()}
    with pytest.raises(ArgumentError, match="rows \\(400 there, 399 here\\)"):
        mcgrad(resume=file).fit(fewer, fewer["y"])


def test_a_damaged_file_is_rejected_and_left_unchanged(grown, tmp_path):
    data, file = rows("binary", ROWS), tmp_path / "fit.rounds"
    stopped(grown, 2, mcgrad(resume=file), data)
    table = read(data, outcome="y", prediction="p", features=FEATURES)
    good = file.read_bytes()
    random = np.random.default_rng(0)
    spoiled = [good[:cut] for cut in (0, 1, 30, len(good) // 2, len(good) - 1)]
    some = random.choice(len(good), 25, replace=False)
    # The archive itself forgives a bit that says nothing; the parts come first, and forgive none.
    some = some[some < good.find(b"PK\x01\x02")]
    assert len(some) > 15
    spoiled += [good[:at] + bytes([good[at] ^ (1 << int(random.integers(8)))]) + good[at + 1 :] for at in some]
    for one in spoiled:
        file.write_bytes(one)
        with pytest.raises(FileError, match="cannot read") as caught:
            mcgrad(resume=file).fit_table(table)
        assert caught.value.hint
        assert file.read_bytes() == one
    assert grown[1] == 0


@pytest.mark.repeated(5, 18)
def test_a_forged_file_is_rejected_and_nothing_in_it_is_executed(grown, tmp_path, repetitions):
    data, file = rows("binary", ROWS), tmp_path / "fit.rounds"
    stopped(grown, 3, mcgrad(resume=file), data)
    table = read(data, outcome="y", prediction="p", features=FEATURES)
    found = {}
    plain = Checkpoint.__init__

    def kept(self, path, fingerprint):
        plain(self, path, fingerprint)
        found["saved"] = self

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Checkpoint, "__init__", kept)
        stopped(grown, 1, mcgrad(resume=file), data)
    saved = found["saved"]
    parts = storage.read(file, kind=CHECKPOINT)
    manifest = json.loads(parts[CHECKPOINT_MANIFEST])
    right = [(one.thetas, one.trees) for one in saved.rounds(3)]
    assert len(right) == 2
    refusals, chance = 0, random.Random(0)
    for place in places(manifest):
        for value in chance.sample(STRANGE, repetitions):
            text = json.dumps(changed(manifest, place, value) if place else value if value is not STRANGE[0] else 0)
            storage.write(file, parts | {CHECKPOINT_MANIFEST: text.encode()}, kind=CHECKPOINT)
            try:
                given = saved.rounds(3)
            except (FileError, ArgumentError) as error:
                refusals += str(file) in error.message and bool(error.hint)
            else:  # another number of trees, another factor: a lie that no one can tell
                assert len(given) <= 2
                assert all(one.trees <= 6 for one in given)
    assert refusals > 27 * repetitions
    short = [one | {"forests": one["forests"][:0:-1]} for one in manifest["rounds"]]
    for rounds, message in (
        ([one | {"trees": 10**30} for one in manifest["rounds"]], "too many trees"),
        (short, "cannot read"),
        (manifest["rounds"] * 2, "longer than the stored arrays"),
    ):
        storage.write(
            file, parts | {CHECKPOINT_MANIFEST: json.dumps(manifest | {"rounds": rounds}).encode()}, kind=CHECKPOINT
        )
        with pytest.raises(FileError, match=message):
            mcgrad(resume=file).fit_table(table)
    storage.write(file, parts, kind=CHECKPOINT)
    with pytest.raises(FileError, match="another number of folds"):
        saved.rounds(4)
    for name in parts:
        if name != CHECKPOINT_MANIFEST:
            storage.write(file, parts | {name: parts[name][:-8]}, kind=CHECKPOINT)
            with pytest.raises(FileError):
                mcgrad(resume=file).fit_table(table)
    file.write_bytes(pickle.dumps(_Harmful(tmp_path / "harm")))
    with pytest.raises(FileError):
        mcgrad(resume=file).fit_table(table)
    assert not (tmp_path / "harm").exists()


class _Harmful:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (self.path,)  # what a pickle would do


def test_a_file_of_another_kind_is_not_overwritten(grown, tmp_path):
    data, file = rows("binary", ROWS), tmp_path / "model.trueup"
    tu.save(mcgrad(rounds=1).fit(data, data["y"]), file)
    before, grown[1] = file.read_bytes(), 0
    with pytest.raises(FileError, match="an archive of trueup model"):
        mcgrad(resume=file).fit(data, data["y"])
    (tmp_path / "rows.csv").write_text("a,b\n1,2\n")
    with pytest.raises(FileError, match="not an archive"):
        mcgrad(resume=tmp_path / "rows.csv").fit(data, data["y"])
    assert (file.read_bytes(), (tmp_path / "rows.csv").read_text(), grown[1]) == (before, "a,b\n1,2\n", 0)


def test_an_unwritable_path_is_reported_before_a_tree_is_grown(grown, tmp_path, monkeypatch):
    data = rows("binary", ROWS)
    with pytest.raises(FileError, match="there is no directory"):
        mcgrad(resume=tmp_path / "nowhere" / "fit.rounds").fit(data, data["y"])
    with pytest.raises(FileError, match="directory"):
        mcgrad(resume=tmp_path).fit(data, data["y"])

    def refuse(*_args, **_named):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(storage.os, "replace", refuse)
    with pytest.raises(FileError, match="permission"):
        mcgrad(resume=tmp_path / "fit.rounds").fit(data, data["y"])
    assert grown[1] == 0


@pytest.mark.parametrize("value", ["", 3, True, b"fit.rounds", ["fit.rounds"]])
def test_resume_must_be_a_path(value):
    data = rows("binary", 100)
    with pytest.raises(ArgumentError, match="resume must be the path of a file"):
        mcgrad(resume=value).fit(data, data["y"])


def test_the_checkpoint_is_not_part_of_the_model(tmp_path):
    data = rows("binary", 200)
    fix = mcgrad(rounds=1, resume=tmp_path / "fit.rounds").fit(data, data["y"])
    assert "resume" not in fix.model_.about.parameters
    assert fix.get_params()["resume"] == tmp_path / "fit.rounds"


def test_the_digest_of_arrays_depends_on_values_types_and_order(monkeypatch):
    a = np.arange(6.0)
    several = [
        digest_arrays(a), digest_arrays(a[::-1]), digest_arrays(a[:5]), digest_arrays(a.astype(np.float32)), digest_arrays(a.reshape(2, 3)), digest_arrays(a, a),
        digest_arrays(None), digest_arrays(), digest_arrays(np.append(a[:5], np.nan)), digest_arrays(a[:3], a[3:]),
    ]  # fmt: skip
    assert len(set(several)) == len(several)
    strided = np.repeat(a, 2)[::2]
    assert digest_arrays(strided) == digest_arrays(a)
    monkeypatch.setattr("trueup.calibrators.mcgrad.cascade.DIGEST_ROWS", 2)
    assert digest_arrays(a) == several[0]


def test_the_fingerprint_of_a_table_has_a_digest_per_column():
    table = read(rows("binary", 50), outcome="y", prediction="p", features=FEATURES)
    plain = fingerprint_table(table)
    other = fingerprint_table(replace(table, outcome=1 - table.outcome))
    assert {name for name in plain if plain[name] != other[name]} == {"outcome"}
    assert plain["rows"] == 50
