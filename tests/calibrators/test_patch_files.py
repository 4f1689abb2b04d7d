"""Files of patches load exactly, and forged files are rejected or harmless."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random

import numpy as np
import pytest

import trueup as tu
from checks import rows
from forged import STRANGE, in_part, put, refused, store
from trueup import storage
from trueup.calibrators.patches.map import DTYPES
from trueup.errors import FileError, TrueupError
from trueup.modelfile import KIND, MANIFEST

COLUMNS = ["country", "age", "new"]
FITS = {
    "additive": lambda data: tu.HKRR("p", COLUMNS, depth=2, stopping=None, min_rows=20, rounds=30),
    "logit": lambda data: tu.HKRR("p", COLUMNS, min_rows=20, levels=5),
    "groups": lambda data: tu.Multiaccuracy("p", COLUMNS, min_rows=20),
    "regression": lambda data: tu.HKRR("p", COLUMNS, task="regression", min_rows=20),
    "none": lambda data: tu.HKRR("p", COLUMNS, min_rows=10_000),
    "no features": lambda data: tu.Multiaccuracy("p", [], stopping=None),
}


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def saved(name, directory):
    data = rows("regression" if name == "regression" else "binary")
    fix = FITS[name](data).fit(data, data["y"])
    tu.save(fix, directory / "model")
    return fix, data, storage.read(directory / "model", kind=KIND)


@pytest.mark.parametrize("name", FITS)
def test_patches_load_exactly(name, tmp_path):
    fix, data, parts = saved(name, tmp_path)
    again = tu.load(tmp_path / "model")
    assert again.predict(data).tobytes() == fix.predict(data).tobytes()
    assert again.map.patch_list == fix.patches_
    assert (again.history, again.explanation) == (fix.history_, fix.explain())
    assert (len(fix.patches_) > 0) == (name != "none")
    assert set(parts) == {MANIFEST, *DTYPES}
    tu.save(again, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def changed_map(parts, **own):
    manifest = json.loads(parts[MANIFEST])
    manifest["map"] |= own
    return {MANIFEST: json.dumps(manifest).encode()}


def changed(parts, name, change):
    return in_part(parts, DTYPES, f"patches/{name}", change)


def longer(array):
    return np.concatenate([array, array[:1]])


FORGED = [
    (lambda p: changed_map(p, link="softmax"), "the map does not fit the task"),
    (lambda p: changed_map(p, link=None), "the map does not fit the task"),
    (lambda p: changed_map(p, edges=[0, 0]), "the bin edges do not fit the features"),
    (lambda p: changed_map(p, edges=[0, 10**30, -(10**30)]), "the bin edges are invalid"),
    (lambda p: changed_map(p, edges=[1, 8, 0]), "a category has bin edges"),
    (lambda p: changed_map(p, edges=[0, 8, 0]), "the bin edges are invalid"),
    (lambda p: changed_map(p, groups=["a"]), "the patch arrays differ in length"),
    (lambda p: changed_map(p, groups=[1]), "groups must be texts"),
    (lambda p: changed(p, "edges", put(2, np.nan)), "the bin edges are invalid"),
    (lambda p: changed(p, "edges", lambda a: a[::-1].copy()), "bin edges are not in ascending order"),
    (lambda p: changed(p, "edges", longer), "the bin edges are invalid"),
    (lambda p: changed(p, "shift", put(0, np.inf)), "a patch has invalid numbers"),
    (
        lambda p: changed(p, "shift", put(0, -1.7e308)),
        "a patch has invalid numbers",
    ),  # two of them would be infinite
    (lambda p: changed(p, "before", put(0, np.nan)), "a patch has invalid numbers"),
    (lambda p: changed(p, "observed", put(0, np.nan)), "a patch has invalid numbers"),
    (lambda p: changed(p, "rows", put(0, -1)), "a patch has invalid numbers"),
    (lambda p: changed(p, "rows", longer), "the patch arrays differ in length"),
    (lambda p: changed(p, "low", put(0, np.nan)), "an empty score range"),
    (lambda p: changed(p, "low", put(0, np.inf)), "an empty score range"),
    (lambda p: changed(p, "high", put(0, -np.inf)), "an empty score range"),
    (lambda p: changed(p, "conditions", longer), "the number of conditions does not fit the patches"),
    (lambda p: changed(p, "conditions", put(slice(0, 4), [3, 0, -1, -1])), "a condition names an unknown group"),
    (lambda p: changed(p, "conditions", put(slice(0, 4), [-2, 0, -1, -1])), "a condition names an unknown group"),
    (lambda p: changed(p, "conditions", put(slice(0, 4), [0, 4, -1, -1])), "a condition names an unknown group"),
    (lambda p: changed(p, "conditions", put(slice(0, 4), [0, -1, -1, -1])), "a condition names an unknown group"),
    (
        lambda p: changed(p, "conditions", put(slice(0, 4), [0, 1, 0, 2])),
        "a patch has two conditions on one feature",
    ),
    (lambda p: changed(p, "conditions", put(slice(0, 4), [-1, -1, 0, 2])), "a condition is invalid"),
    (lambda p: changed(p, "conditions", put(slice(0, 4), [-1, 5, -1, -1])), "a condition is invalid"),
    (lambda p: {"patches/shift": p["patches/shift"][:-1]}, "is not a model file of trueup"),
    (lambda p: {"patches/more": b""}, "it has arrays that the manifest does not list"),
]


def test_forged_files_are_rejected_with_a_specific_message(tmp_path):
    _, _, parts = saved("additive", tmp_path)
    assert json.loads(parts[MANIFEST])["map"]["edges"] == [0, 9, 0]
    for forge, message in FORGED:
        store(tmp_path / "forged", parts | forge(parts))
        refused(tmp_path / "forged", message)


def test_history_and_number_of_patches_must_agree(tmp_path):
    _, _, parts = saved("additive", tmp_path)
    manifest = json.loads(parts[MANIFEST])
    manifest["history"]["chosen"] -= 1
    store(tmp_path / "forged", parts | {MANIFEST: json.dumps(manifest).encode()})
    refused(tmp_path / "forged", "its history does not match its rounds")


def test_logit_link_of_real_scores_is_rejected(tmp_path):
    _, _, parts = saved("regression", tmp_path)
    store(tmp_path / "forged", parts | changed_map(parts, link="logit"))
    refused(tmp_path / "forged", "the map does not fit the task")


@pytest.mark.parametrize("name", ["additive", "logit"])
@pytest.mark.repeated(100, 300)
def test_random_changes_are_rejected_or_harmless(name, tmp_path, repetitions):
    _, data, parts = saved(name, tmp_path)
    few = {column: values[:3] for column, values in data.items()}
    row = {column: values[0] for column, values in data.items()}
    chance, rejected = random.Random(3), 0
    manifest = json.loads(parts[MANIFEST])
    for _ in range(repetitions):
        forged = dict(parts)
        if chance.random() < 0.4:
            own = copy.deepcopy(manifest)
            own["map"][chance.choice(list(own["map"]))] = chance.choice(STRANGE[1:])
            forged[MANIFEST] = json.dumps(own).encode()
        else:
            part = chance.choice([one for one in parts if one != MANIFEST])
            held = bytearray(parts[part])
            for _ in range(chance.randint(1, 8)):
                if held:
                    held[chance.randrange(len(held))] = chance.randrange(256)
            forged[part] = bytes(held)
        store(tmp_path / "forged", forged)
        try:
            model = tu.load(tmp_path / "forged")
        except FileError:
            rejected += 1
            continue
        with contextlib.suppress(TrueupError):
            found = model.predict(few)
            assert ((found >= 0) & (found <= 1)).all()
            model.predict_one(row), repr(model.explain(row)), repr(model.map.patch_list), model.map.patch_list.to_dict()
    assert rejected > 0.27 * repetitions
