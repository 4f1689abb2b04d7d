"""Patches in a file come back exactly; what a stranger may have written there is refused by name, or does no harm."""

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


def saved(name, folder):
    data = rows("regression" if name == "regression" else "binary")
    fix = FITS[name](data).fit(data, data["y"])
    tu.save(fix, folder / "model")
    return fix, data, storage.read(folder / "model", kind=KIND)


@pytest.mark.parametrize("name", FITS)
def test_patches_come_back_exactly(name, tmp_path):
    fix, data, parts = saved(name, tmp_path)
    again = tu.load(tmp_path / "model")
    assert again.predict(data).tobytes() == fix.predict(data).tobytes()
    assert again.map.patch_list == fix.patches_
    assert (again.history, again.explanation) == (fix.history_, fix.explain())
    assert (len(fix.patches_) > 0) == (name != "none")
    assert set(parts) == {MANIFEST, *DTYPES}
    tu.save(again, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


def store(path, parts):
    path.unlink(missing_ok=True)
    storage.write(path, parts, kind=KIND)


def changed_map(parts, **own):
    manifest = json.loads(parts[MANIFEST])
    manifest["map"] |= own
    return {MANIFEST: json.dumps(manifest).encode()}


def changed(parts, name, kind, change):
    array = np.frombuffer(parts[f"patches/{name}"], kind).copy()
    found = change(array)
    return {f"patches/{name}": (array if found is None else found).tobytes()}


def put(at, value):
    def change(array):
        array[at] = value

    return change


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
    (lambda p: changed(p, "edges", "<f8", put(2, np.nan)), "the bin edges are invalid"),
    (lambda p: changed(p, "edges", "<f8", lambda a: a[::-1].copy()), "bin edges are not in ascending order"),
    (lambda p: changed(p, "edges", "<f8", longer), "the bin edges are invalid"),
    (lambda p: changed(p, "shift", "<f8", put(0, np.inf)), "a patch has invalid numbers"),
    (
        lambda p: changed(p, "shift", "<f8", put(0, -1.7e308)),
        "a patch has invalid numbers",
    ),  # two of them would be infinite
    (lambda p: changed(p, "before", "<f8", put(0, np.nan)), "a patch has invalid numbers"),
    (lambda p: changed(p, "observed", "<f8", put(0, np.nan)), "a patch has invalid numbers"),
    (lambda p: changed(p, "rows", "<i8", put(0, -1)), "a patch has invalid numbers"),
    (lambda p: changed(p, "rows", "<i8", longer), "the patch arrays differ in length"),
    (lambda p: changed(p, "low", "<f8", put(0, np.nan)), "an empty score range"),
    (lambda p: changed(p, "low", "<f8", put(0, np.inf)), "an empty score range"),
    (lambda p: changed(p, "high", "<f8", put(0, -np.inf)), "an empty score range"),
    (lambda p: changed(p, "conditions", "<i4", longer), "the number of conditions does not fit the patches"),
    (lambda p: changed(p, "conditions", "<i4", put(slice(0, 4), [3, 0, -1, -1])), "a condition names an unknown group"),
    (lambda p: changed(p, "conditions", "<i4", put(slice(0, 4), [-2, 0, -1, -1])), "a condition names an unknown group"),
    (lambda p: changed(p, "conditions", "<i4", put(slice(0, 4), [0, 4, -1, -1])), "a condition names an unknown group"),
    (lambda p: changed(p, "conditions", "<i4", put(slice(0, 4), [0, -1, -1, -1])), "a condition names an unknown group"),
    (
        lambda p: changed(p, "conditions", "<i4", put(slice(0, 4), [0, 1, 0, 2])),
        "a patch has two conditions on one feature",
    ),
    (lambda p: changed(p, "conditions", "<i4", put(slice(0, 4), [-1, -1, 0, 2])), "a condition is invalid"),
    (lambda p: changed(p, "conditions", "<i4", put(slice(0, 4), [-1, 5, -1, -1])), "a condition is invalid"),
    (lambda p: {"patches/shift": p["patches/shift"][:-1]}, "is not a model file of trueup"),
    (lambda p: {"patches/more": b""}, "it has arrays that the manifest does not list"),
]


def test_a_forged_file_is_refused_by_what_is_wrong_with_it(tmp_path):
    _, _, parts = saved("additive", tmp_path)
    assert json.loads(parts[MANIFEST])["map"]["edges"] == [0, 9, 0]
    for forge, message in FORGED:
        store(tmp_path / "forged", parts | forge(parts))
        with pytest.raises(FileError, match=message) as caught:
            tu.load(tmp_path / "forged")
        assert str(tmp_path / "forged") in caught.value.message


def test_a_patch_more_than_the_history_tells_is_refused(tmp_path):
    _, _, parts = saved("additive", tmp_path)
    manifest = json.loads(parts[MANIFEST])
    manifest["history"]["chosen"] -= 1
    store(tmp_path / "forged", parts | {MANIFEST: json.dumps(manifest).encode()})
    with pytest.raises(FileError, match="its history does not match its rounds"):
        tu.load(tmp_path / "forged")


def test_real_scores_have_no_logits(tmp_path):
    _, _, parts = saved("regression", tmp_path)
    store(tmp_path / "forged", parts | changed_map(parts, link="logit"))
    with pytest.raises(FileError, match="the map does not fit the task"):
        tu.load(tmp_path / "forged")


STRANGE = [None, [], {}, [[]], "", "x", True, 0, -1, 2.5, -1e300, 10**30, 10**400, ["a", "a"], {"a": None}]


@pytest.mark.parametrize("name", ["additive", "logit"])
def test_whatever_a_stranger_wrote_is_refused_or_harmless(name, tmp_path):
    _, data, parts = saved(name, tmp_path)
    few = {column: values[:3] for column, values in data.items()}
    row = {column: values[0] for column, values in data.items()}
    chance, refused = random.Random(3), 0
    manifest = json.loads(parts[MANIFEST])
    for _ in range(300):
        forged = dict(parts)
        if chance.random() < 0.4:
            own = copy.deepcopy(manifest)
            own["map"][chance.choice(list(own["map"]))] = chance.choice(STRANGE)
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
            refused += 1
            continue
        with contextlib.suppress(TrueupError):
            found = model.predict(few)
            assert ((found >= 0) & (found <= 1)).all()
            model.predict_one(row), repr(model.explain(row)), repr(model.map.patch_list), model.map.patch_list.to_dict()
    assert refused > 80
