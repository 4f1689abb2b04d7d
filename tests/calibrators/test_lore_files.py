"""Files of LoRe load exactly, golden files score as when written, and forged files are rejected or harmless."""

from __future__ import annotations

import contextlib
import json
import math
import os
import random
from pathlib import Path

import numpy as np
import pytest

import forged
import goldens
import trueup as tu
from checks import CLASSES, FEATURES, rows
from forged import changed, places, put, refused, store
from trueup import storage
from trueup.calibrators.lore.map import EDGE_DTYPES, GROUP_DTYPES, NEIGHBOUR_DTYPES, SPACE_DTYPES
from trueup.errors import FileError, TrueupError
from trueup.modelfile import KIND, MANIFEST

GOLDEN = Path(__file__).parents[1] / "golden" / "local"
SEVERAL = [f"p_{name}" for name in CLASSES]
FITS = {
    "pca": ("binary", lambda: tu.LoRe("p", FEATURES, gamma=0.3, shrinkage=2, move="shift", components=4, bins=4)),
    "columns": ("binary", lambda: tu.LoRe("p", ["age", "day"], gamma=0.3, embedding="columns", bins=3)),
    "groups": ("binary", lambda: tu.LoRe("p", ["country", "age"], gamma=1, embedding="groups", bins=3)),
    "bins": ("binary", lambda: tu.LoRe("p", FEATURES, gamma=math.inf, bins=6)),
    "mass": ("binary", lambda: tu.LoRe("p", ["country", "new"], gamma=0.4, strategy="mass", bins=4)),
    "classes": ("multiclass", lambda: tu.LoRe(SEVERAL, ["country", "new"], gamma=0.4, bins=5, keep_class=False)),
    "kept": ("multiclass", lambda: tu.LoRe(SEVERAL, ["country", "new"], gamma=0.4, bins=5)),
    "gaussian": ("binary", lambda: tu.LoRe("p", ["age", "day"], gamma=0.3, kernel="gaussian", bins=3)),
}
KINDS = NEIGHBOUR_DTYPES | SPACE_DTYPES | EDGE_DTYPES | GROUP_DTYPES


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def fitted(name, directory, n=120):
    task, make = FITS[name]
    data = rows(task, n)
    fix = make().fit(data, data["y"])
    tu.save(fix, directory / "model")
    return fix, data, storage.read(directory / "model", kind=KIND)


@pytest.mark.parametrize("name", FITS)
def test_neighbours_load_exactly(name, tmp_path):
    fix, data, _ = fitted(name, tmp_path)
    again = tu.load(tmp_path / "model")
    assert again.predict(data).tobytes() == fix.predict(data).tobytes()
    assert (again.history, again.explanation) == (fix.history_, fix.explain())
    assert again.info().size == (tmp_path / "model").stat().st_size
    assert again.map.describe() == fix.model_.map.describe()
    row = {key: column[5] for key, column in data.items()}
    assert again.explain(row) == fix.explain(row)
    tu.save(again, tmp_path / "again")
    assert (tmp_path / "again").read_bytes() == (tmp_path / "model").read_bytes()


@pytest.mark.parametrize("embedding", ["pca", "columns", "groups"])
def test_extreme_numbers_load_exactly(embedding, tmp_path):
    data = rows(n=120)
    spread = 10.0 ** np.random.default_rng(0).uniform(-50, 50, 120)
    for unit, weight in ((1e-60, None), (1.0, spread), (1e60, spread)):
        own = {"age": data["age"] * unit, "p": data["p"]}
        fix = tu.LoRe("p", ["age"], gamma=0.3, embedding=embedding, bins=3).fit(own, data["y"], weight)
        tu.save(fix, tmp_path / "model")
        assert tu.load(tmp_path / "model").predict(own).tobytes() == fix.predict(own).tobytes()


# ------------------------------------------------------------------ forged files


def in_map(parts, *path, value):
    return {MANIFEST: json.dumps(changed(json.loads(parts[MANIFEST]), ("map", *path), value)).encode()}


def in_part(parts, name, change):
    return forged.in_part(parts, KINDS, name, change)


FORGED = [
    ("pca", lambda p: in_map(p, "bins", value=0), "the bins are invalid"),
    ("pca", lambda p: in_map(p, "bins", value=10**9), "the bins are invalid"),
    ("pca", lambda p: in_map(p, "bins", value=2), "the bins do not fit the neighbours"),
    ("pca", lambda p: in_map(p, "groups", value=2), "the number of groups is invalid"),
    ("groups", lambda p: in_map(p, "groups", value=10**12), "the number of groups is invalid"),
    ("pca", lambda p: in_map(p, "gamma", value=0.0), "the gamma is invalid"),
    ("pca", lambda p: in_map(p, "gamma", value=None), "it has features, but distances do not count"),
    ("pca", lambda p: in_map(p, "shrinkage", value=-1), "the shrinkage is invalid"),
    ("pca", lambda p: in_map(p, "shifts", value=1), "the kind of correction is invalid"),
    ("pca", lambda p: in_map(p, "shifts", value=False), "the outcomes are invalid"),
    ("pca", lambda p: in_map(p, "dimensions", value=3), "the number of dimensions is invalid"),
    ("bins", lambda p: in_map(p, "dimensions", value=2), "the number of dimensions is invalid"),
    ("pca", lambda p: in_map(p, "cuts", value=[]), "it has both groups and a space"),
    ("pca", lambda p: in_map(p, "space", "turned", value=False), "the number of dimensions is invalid"),
    ("pca", lambda p: in_map(p, "space", "unit", value=0), "the space has invalid numbers"),
    ("pca", lambda p: {"local/more": b""}, "it has arrays that the manifest does not list"),
    ("pca", lambda p: in_part(p, "local/keys", put(0, -1)), "the bins do not fit the neighbours"),
    ("pca", lambda p: in_part(p, "local/keys", put(1, 0)), "the bins do not fit the neighbours"),
    ("pca", lambda p: in_part(p, "local/keys", put(-1, 100)), "the bins do not fit the neighbours"),
    ("groups", lambda p: in_part(p, "local/keys", lambda a: a + 1), "the bins do not fit the neighbours"),
    ("pca", lambda p: in_part(p, "local/place", put(0, 1)), "the bins do not fit the neighbours"),
    ("pca", lambda p: in_part(p, "local/place", put(-1, 10**6)), "the bins do not fit the neighbours"),
    ("pca", lambda p: in_part(p, "local/place", lambda a: a[::-1].copy()), "the bins do not fit the neighbours"),
    ("pca", lambda p: in_part(p, "local/points", put(3, np.nan)), "a point is not a number"),
    ("pca", lambda p: in_part(p, "local/points", put(3, 1e300)), "a point is not a number"),
    ("pca", lambda p: in_part(p, "local/points", lambda a: a[:-1]), "the neighbours are incomplete"),
    ("pca", lambda p: in_part(p, "local/weight", put(0, 0.0)), "the weights are invalid"),
    ("pca", lambda p: in_part(p, "local/weight", put(0, np.inf)), "the weights are invalid"),
    ("columns", lambda p: in_part(p, "local/total", put(0, -0.5)), "the outcomes are invalid"),
    ("classes", lambda p: in_part(p, "local/total", put(0, 1e6)), "the outcomes are invalid"),
    ("bins", lambda p: dict.fromkeys(NEIGHBOUR_DTYPES, b""), "it has no neighbours"),
    ("pca", lambda p: in_part(p, "space/fill", put(0, 3.0)), "the space does not fit the features"),
    ("pca", lambda p: in_part(p, "space/fill", put(1, np.nan)), "the space has invalid numbers"),
    ("pca", lambda p: in_part(p, "space/gaps", put(0, 1)), "the space does not fit the features"),
    ("pca", lambda p: in_part(p, "space/gaps", put(1, 2)), "the space does not fit the features"),
    ("pca", lambda p: in_part(p, "space/factor", put(0, -1.0)), "the space has invalid numbers"),
    ("pca", lambda p: in_part(p, "space/factor", lambda a: a[:-1]), "the space does not fit the features"),
    ("pca", lambda p: in_part(p, "space/center", put(0, np.inf)), "the space has invalid numbers"),
    ("pca", lambda p: in_part(p, "space/scale", put(0, 0.0)), "the space has invalid numbers"),
    ("pca", lambda p: in_part(p, "space/rotation", put(0, 9.0)), "the rotation of the space is invalid"),
    ("mass", lambda p: in_map(p, "bins", value=5), "the bins are invalid"),
    ("mass", lambda p: in_part(p, "local/edges", put(0, -0.1)), "the bins are invalid"),
    ("mass", lambda p: in_part(p, "local/edges", put(0, np.nan)), "the bins are invalid"),
    ("mass", lambda p: in_part(p, "local/edges", put(1, 0.0)), "the bins are invalid"),
    ("mass", lambda p: in_part(p, "local/edges", put(-1, 1.0)), "the bins are invalid"),
    ("mass", lambda p: {"local/edges": b""}, "the bins are invalid"),
    ("kept", lambda p: in_map(p, "keeps", value=1), "the kept class is invalid"),
    ("gaussian", lambda p: in_map(p, "keeps", value=True), "the kept class is invalid"),
    ("gaussian", lambda p: in_map(p, "kernel", value="cosine"), "the kernel is invalid"),
    ("pca", lambda p: in_map(p, "uneven", value=True), "it has arrays that the manifest does not list"),
    ("groups", lambda p: in_part(p, "groups/cells", put(0, -5)), "the group numbers are invalid"),
    ("groups", lambda p: in_part(p, "groups/cells", put(-1, 10**9)), "the group numbers are invalid"),
    ("groups", lambda p: in_part(p, "groups/edges", put(0, 1e9)), "bin edges are not in ascending order"),
]


@pytest.mark.parametrize("name", sorted({name for name, _, _ in FORGED}))
def test_forged_files_are_rejected_with_a_specific_message(name, tmp_path):
    _, _, parts = fitted(name, tmp_path)
    for own, forge, message in FORGED:
        if own == name:
            store(tmp_path / "forged", parts | forge(parts))
            refused(tmp_path / "forged", message)


ODD = [None, True, 0, 1, -1, 7, 10**12, 2**70, 10**400, 0.5, 5e-324, 1e308, "x", [], [1], {}]


def harmless(path, data):
    """Load and use a model; its scores must be probabilities, whatever the batch."""
    model = tu.load(path)
    row = {name: column[0] for name, column in data.items()}
    found = model.predict(data)
    assert ((found >= 0) & (found <= 1)).all()
    if found.ndim == 1:
        assert model.predict_one(row) == found[0]
    repr(model.explain(row)), repr(model)


@pytest.mark.parametrize("name", FITS)
@pytest.mark.repeated(6, 16)
def test_forged_values_are_rejected_or_harmless(name, tmp_path, repetitions):
    _, data, parts = fitted(name, tmp_path)
    few = {key: column[:3] for key, column in data.items()}
    manifest, loaded, chance = json.loads(parts[MANIFEST]), 0, random.Random(1)
    for place in places(manifest["map"], ("map",)):
        for value in chance.sample(ODD, repetitions):
            store(tmp_path / "forged", parts | {MANIFEST: json.dumps(changed(manifest, place, value)).encode()})
            with contextlib.suppress(FileError):
                harmless(tmp_path / "forged", few)
                loaded += 1
    assert loaded  # a shrinkage of 1 is valid


@pytest.mark.parametrize("name", FITS)
@pytest.mark.repeated(3, 8)
def test_forged_arrays_are_rejected_or_harmless(name, tmp_path, repetitions):
    _, data, parts = fitted(name, tmp_path)
    few = {key: column[:3] for key, column in data.items()}
    chance, rejected = random.Random(0), 0
    for part in sorted(parts.keys() & KINDS.keys()):
        array = np.frombuffer(parts[part], KINDS[part])
        if array.dtype.kind == "f":
            values = [0.0, -1.0, np.nan, np.inf, 1e308, -1e29, 5e-324, 1e-29]
        else:
            values = [0, 1, 2, np.iinfo(array.dtype).min, np.iinfo(array.dtype).max]
        for at in {0, len(array) - 1, chance.randrange(len(array) or 1)}:
            for value in chance.sample(values, min(repetitions, len(values))) if 0 <= at < len(array) else ():
                store(tmp_path / "forged", parts | in_part(parts, part, put(at, value)))
                try:
                    harmless(tmp_path / "forged", few)
                except TrueupError:
                    rejected += 1
        for cut in (parts[part][:-1], parts[part] + b"\0", parts[part] * 2, b""):
            if cut != parts[part]:
                store(tmp_path / "forged", parts | {part: cut})
                refused(tmp_path / "forged")
        store(tmp_path / "forged", {key: own for key, own in parts.items() if key != part})
        refused(tmp_path / "forged")
    assert rejected


# ------------------------------------------------------------------ golden files


def test_golden_files_score_as_when_written():
    found = sorted(GOLDEN.glob("*.trueup"))
    assert {path.stem for path in found} == goldens.names(FITS)
    for path in found:
        golden = goldens.read(path)
        np.testing.assert_allclose(tu.load(path).predict(golden["rows"]), golden["expected"], rtol=1e-6, atol=1e-7)


def make_golden(directory):
    """Write the golden files; models are fitted in the directory."""
    for name in FITS:
        fix, data, _ = fitted(name, directory)
        goldens.write(GOLDEN, name, fix, {key: column[:25] for key, column in data.items() if key != "y"})
