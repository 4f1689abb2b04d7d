"""Level sets in a file come back exactly; what a stranger may have written there is refused by name, or does no harm."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random

import numpy as np
import pytest

import forged
import trueup as tu
from checks import rows
from forged import put, store
from trueup import storage
from trueup.calibrators.lsboost.levelsets import LEVEL_DTYPES, LINE_DTYPES
from trueup.calibrators.mcgrad.cascade import FOREST_DTYPES
from trueup.errors import FileError, TrueupError
from trueup.modelfile import KIND, MANIFEST

COLUMNS = ["country", "age", "new"]
SMALL = {"min_rows": 60, "rounds": 2, "threads": 1}
FITS = {
    "trees": lambda: tu.LSBoost("p", COLUMNS, stopping=tu.CrossValidation(2), gate=None, **SMALL),
    "grid": lambda: tu.LSBoost("p", COLUMNS, alpha=0.05),
    "lines": lambda: tu.LSBoost("p", COLUMNS, learner="linear", stopping=None, **SMALL),
    "alone": lambda: tu.LSBoost(None, COLUMNS, stopping=None, **SMALL),
    "mean": lambda: tu.LSBoost(None, ["new"], stopping=tu.CrossValidation(2), **SMALL),
}
PARTS = LEVEL_DTYPES | LINE_DTYPES | {f"forests/{name}": kind for name, kind in FOREST_DTYPES.items()}


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture(params=FITS)
def saved(request, tmp_path):
    return request.param, *fitted(request.param, tmp_path)


def fitted(name, folder):
    data = rows(n=400)
    fix = FITS[name]().fit(data, np.random.default_rng(1).random(400) if name == "mean" else data["y"])
    tu.save(fix, folder / "model")
    return fix, data, storage.read(folder / "model", kind=KIND)


def test_level_sets_are_restored_exactly(saved, tmp_path):
    name, fix, data, _ = saved
    again = tu.load(tmp_path / "model")
    assert (fix.history_.chosen > 0) == (name != "mean")
    assert again.predict(data).tobytes() == fix.predict(data).tobytes()
    assert (again.history, again.explanation) == (fix.history_, fix.explain())
    tu.save(again, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


# ------------------------------------------------------------------ what is refused by name


def changed_map(parts, **own):
    manifest = json.loads(parts[MANIFEST])
    manifest["map"] |= own
    return {MANIFEST: json.dumps(manifest).encode()}


def changed_scale(parts, **own):
    return changed_map(parts, scale=json.loads(parts[MANIFEST])["map"]["scale"] | own)


def changed(parts, name, change):
    return forged.in_part(parts, PARTS, name, change)


FORGED = [
    ("trees", lambda p: changed_map(p, learners="stars"), "the map does not fit the task"),
    ("trees", lambda p: changed_map(p, models=0), "it has no rounds"),
    ("trees", lambda p: changed_map(p, models=3), "its rounds are invalid"),
    ("mean", lambda p: changed_map(p, models=10**12), "it has models without rounds"),
    ("trees", lambda p: changed(p, "levels/edges_at", put(1, -1)), "its edges are invalid"),
    ("trees", lambda p: changed(p, "levels/edges", lambda a: a[::-1].copy()), "its edges do not ascend"),
    ("trees", lambda p: changed(p, "levels/edges", put(0, np.nan)), "its edges do not ascend"),
    ("trees", lambda p: changed(p, "levels/learner", put(0, 10**6)), "do not match its levels"),
    ("trees", lambda p: changed(p, "levels/learner", put(0, -7)), "do not match its levels"),
    ("trees", lambda p: changed(p, "levels/learner", put(1, 0)), "do not match its levels"),
    ("trees", lambda p: changed(p, "levels/learner", lambda a: a[:-1]), "its learners do not match its levels"),
    ("trees", lambda p: changed(p, "forests/feature", put(0, 3)), "a tree tests the prediction|tests a feature"),
    ("lines", lambda p: changed(p, "lines/place", put(1, 2)), "its lines do not match the features"),
    ("lines", lambda p: changed(p, "lines/scale", put(0, 0.0)), "its lines have values that are not finite"),
    ("lines", lambda p: changed(p, "lines/slopes", put(0, np.inf)), "its lines have values that are not finite"),
    ("lines", lambda p: changed(p, "lines/slopes", lambda a: a[:-1]), "its lines are truncated"),
    ("trees", lambda p: changed_scale(p, high=2.0), "its scores are not probabilities"),
    ("trees", lambda p: changed_scale(p, offset=2**70), "its scores are not probabilities"),
    ("trees", lambda p: changed_scale(p, unit=0.5), "its scores are not probabilities"),
    ("trees", lambda p: changed_scale(p, rate=0), "its scale is invalid"),
    ("trees", lambda p: changed_scale(p, hold=2), "its scale is invalid"),
    ("trees", lambda p: changed_scale(p, start=0.5), "its initial score is invalid"),
    ("alone", lambda p: changed_scale(p, start=None), "its initial score is invalid"),
    ("alone", lambda p: changed_scale(p, start=1e308), "its initial score is invalid"),
    ("alone", lambda p: changed_scale(p, unit=1e300), "its scale is invalid"),
    ("alone", lambda p: changed_scale(p, grid=8), "its grid is invalid"),
    ("grid", lambda p: changed_scale(p, grid=2**40), "its grid is invalid"),
    ("grid", lambda p: changed_scale(p, grid=4.0), "its grid is invalid"),
    ("grid", lambda p: {"levels/more": b""}, "it has arrays that the manifest does not list"),
]


@pytest.mark.parametrize("name", sorted({name for name, _, _ in FORGED}))
def test_a_forged_file_is_rejected_with_its_fault(name, tmp_path):
    _, _, parts = fitted(name, tmp_path)
    for own, forge, message in FORGED:
        if own == name:
            store(tmp_path / "forged", parts | forge(parts))
            with pytest.raises(FileError, match=message) as caught:
                tu.load(tmp_path / "forged")
            assert str(tmp_path / "forged") in caught.value.message


# ------------------------------------------------------------------ anything else is refused, or does no harm

ODD = [None, True, 0, 1, -1, 7, 10**12, 2**63, 2**70, 10**400, 0.5, 5e-324, 1e308, -1e308, "x", [], [1], {}]


def usable(model, data):
    """Use a model in every way; scores are numbers, probabilities where the task says so, whatever the batch."""
    row = {name: column[0] for name, column in data.items()}
    found = model.predict(data)
    assert np.isfinite(found).all()
    assert model.schema.task != "binary" or (found.min() >= 0 and found.max() <= 1)
    if model.schema.features:
        assert model.predict_one(row) == found[0]
    repr(model.explain(row)), repr(model)


def places(found, path=()):
    for key, value in found.items() if isinstance(found, dict) else enumerate(found):
        yield (*path, key)
        if isinstance(value, (dict, list)):
            yield from places(value, (*path, key))


@pytest.mark.repeated(4, 8)
def test_a_forged_manifest_is_rejected_or_harmless(saved, tmp_path, repetitions):
    _, _, data, parts = saved
    few = {name: column[:5] for name, column in data.items()}
    manifest, harmless, chance = json.loads(parts[MANIFEST]), 0, random.Random(1)
    for *path, last in places(manifest["map"], ("map",)):
        for value in chance.sample(ODD, repetitions):
            forged = copy.deepcopy(manifest)
            inner = forged
            for key in path:
                inner = inner[key]
            inner[last] = value
            store(tmp_path / "forged", parts | {MANIFEST: json.dumps(forged).encode()})
            with contextlib.suppress(FileError):
                usable(tu.load(tmp_path / "forged"), few)
                harmless += 1
    assert harmless  # a rate of .5 is one that a model may have


@pytest.mark.repeated(2, 7)
def test_a_forged_array_is_rejected_or_harmless(saved, tmp_path, repetitions):
    _, _, data, parts = saved
    few = {name: column[:5] for name, column in data.items()}
    chance, refused = random.Random(0), 0
    for name in sorted(parts.keys() & PARTS.keys()):
        array = np.frombuffer(parts[name], PARTS[name])
        if array.dtype.kind == "f":
            values = [0.0, -1.0, np.nan, np.inf, 1e308, -1e308, 5e-324]
        else:
            ends = np.iinfo(array.dtype)
            values = [0, 1, 2, 100, ends.min, ends.max]
        for at in {0, len(array) - 1, *(chance.randrange(len(array) or 1) for _ in range(3))}:
            for value in chance.sample(values, min(repetitions, len(values))) if 0 <= at < len(array) else ():
                store(tmp_path / "forged", parts | changed(parts, name, put(at, value)))
                try:
                    usable(tu.load(tmp_path / "forged"), few)
                except TrueupError:
                    refused += 1
        for cut in (parts[name][:-1], parts[name] + b"\0", parts[name] * 2, b""):
            if cut != parts[name]:
                store(tmp_path / "forged", parts | {name: cut})
                with pytest.raises(FileError):
                    tu.load(tmp_path / "forged")
        store(tmp_path / "forged", {key: part for key, part in parts.items() if key != name})
        with pytest.raises(FileError):
            tu.load(tmp_path / "forged")
    assert refused
