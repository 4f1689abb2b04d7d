"""Files of curves load exactly, golden files score as when written, and forged files are rejected or harmless."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import numpy as np
import pytest

import goldens
import trueup as tu
from checks import FEATURES, rows
from forged import STRANGE, changed, places, refused, store, usable
from trueup import storage
from trueup.errors import FileError
from trueup.modelfile import KIND, MANIFEST

GOLDEN = Path(__file__).parents[1] / "golden" / "classics"
PREDICTION = {"binary": "p", "regression": "p", "multiclass": ["p_cat", "p_dog", "p_owl"]}
REAL = {"task": "regression"}
FITS = {
    "platt": ("binary", lambda **roles: tu.Platt(**roles)),
    "line": ("regression", lambda **roles: tu.Platt(**roles, **REAL)),
    "beta": ("multiclass", lambda **roles: tu.Beta(**roles)),
    "temperature": ("multiclass", lambda **roles: tu.Temperature(**roles)),
    "isotonic": ("binary", lambda **roles: tu.Isotonic(**roles)),
    "isotonic-real": ("regression", lambda **roles: tu.Isotonic(**roles, **REAL)),
    "histogram": ("multiclass", lambda **roles: tu.Histogram(bins=5, **roles)),
    "additive": ("multiclass", lambda **roles: tu.Additive(**roles)),
    "multiplicative": ("binary", lambda **roles: tu.Multiplicative(**roles)),
    "logistic": ("binary", lambda **roles: tu.Logistic(features=FEATURES, stopping=None, **roles)),
    "matrix": ("multiclass", lambda **roles: tu.MatrixScaling(**roles)),
    "matrix-mixed": ("multiclass", lambda **roles: tu.MatrixScaling(strength=5.0, **roles)),
    "grouped": ("binary", lambda **roles: tu.Grouped(tu.Platt(), ["country", "age"], bins=2, min_rows=20, **roles)),
    "grouped-logistic": (
        "binary", lambda **roles: tu.Grouped(
            tu.Logistic(features=["age", "country"]), ["country", "day"], bins=2, min_rows=20, shrinkage=9, **roles,
        ),
    ),
    "grouped-real": ("regression", lambda **roles: tu.Grouped(tu.Isotonic(), ["new", "day"], bins=2, shrinkage=9, **roles, **REAL)),
    "grouped-classes": ("multiclass", lambda **roles: tu.Grouped(tu.Temperature(), "country", shrinkage=np.inf, **roles)),
}  # fmt: skip
KINDS = {
    "curves/coefficients": "<f8", "curves/at": "<i8", "curves/x": "<f8", "curves/value": "<f8", "groups/edges": "<f8",
    "groups/cells": "<i8", "groups/share": "<f8", "linear/effects": "<f8", "linear/ranges": "<f8",
    "matrix/scale": "<f8", "matrix/intercept": "<f8", "matrix/left": "<f8", "matrix/right": "<f8",
}  # fmt: skip


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def fit(name):
    task, make = FITS[name]
    data = rows(task, 300)
    return make(prediction=PREDICTION[task]).fit(data, data["y"]), data


@pytest.fixture(scope="module", params=sorted(FITS))
def saved(request, tmp_path_factory):
    """Return a fitted model, its data, its file, and the parts of the file."""
    fix, data = fit(request.param)
    path = tmp_path_factory.mktemp("models") / "model.trueup"
    tu.save(fix, path)
    return fix.model_, data, path, storage.read(path, kind=KIND)


def test_models_load_exactly_and_save_to_the_same_bytes(saved, tmp_path):
    model, data, path, _ = saved
    again = tu.load(path)
    assert again.predict(data).tobytes() == model.predict(data).tobytes()
    assert (again.schema, again.history, again.explanation, again.about) == (
        model.schema, model.history, model.explanation, model.about,
    )  # fmt: skip
    row = {name: column[3] for name, column in data.items()}
    assert again.explain(row) == model.explain(row)
    assert again.map.describe() == model.map.describe()
    tu.save(again, tmp_path / "again")
    assert path.read_bytes() == (tmp_path / "again").read_bytes()


# ------------------------------------------------------------------ golden files


def test_golden_files_score_as_when_written():
    paths = sorted(GOLDEN.glob("*.trueup"))
    assert {path.stem for path in paths} == goldens.names(FITS)
    for path in paths:
        golden, model = goldens.read(path), tu.load(path)
        np.testing.assert_allclose(model.predict(golden["rows"]), golden["expected"], rtol=1e-12, atol=1e-12)
        rows = [dict(zip(golden["rows"], row, strict=True)) for row in zip(*golden["rows"].values(), strict=True)]
        single = [model.predict_one(row) for row in rows]
        np.testing.assert_allclose(single, golden["expected"], rtol=1e-12, atol=1e-12)


def make_golden():
    """Write the golden files of the present format."""
    for name, (task, _) in FITS.items():
        fix, data = fit(name)
        predictions = PREDICTION[task] if task == "multiclass" else [PREDICTION[task]]
        goldens.write(GOLDEN, name, fix, {key: data[key][:25] for key in [*predictions, *FEATURES]})


# ------------------------------------------------------------------ forged files


@pytest.mark.repeated(8, 22)
def test_changed_manifest_fields_are_rejected_or_harmless(saved, tmp_path, repetitions):
    _, data, _, parts = saved
    few = {name: column[:3] for name, column in data.items()}
    manifest = json.loads(parts[MANIFEST])
    chance, rejected = random.Random(2), 0
    for place in places(manifest["map"], ("map",)):
        for value in chance.sample([*STRANGE, 2, "knots", "line", "logit"], repetitions):
            store(tmp_path / "forged", parts | {MANIFEST: json.dumps(changed(manifest, place, value)).encode()})
            try:
                model = tu.load(tmp_path / "forged")
            except FileError as error:
                rejected += str(tmp_path / "forged") in error.message
                continue
            usable(model, few)
    assert rejected > 2 * repetitions


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.repeated(1, 4)
def test_changed_array_entries_are_rejected_or_harmless(saved, tmp_path, repetitions):
    _, data, _, parts = saved
    few = {name: column[:3] for name, column in data.items()}
    chance, rejected = random.Random(3), 0
    for name, kind in KINDS.items():
        if not parts.get(name):
            continue
        values = (
            [-1, 0, 1, 7, 2**62, -(2**63)] if kind == "<i8" else [np.nan, np.inf, -np.inf, -1.0, 0.5, 2.0, 1e308, -1e200]
        )
        for value in values:
            for _ in range(repetitions):
                array = np.frombuffer(parts[name], kind).copy()
                array[chance.randrange(len(array))] = value
                store(tmp_path / "forged", parts | {name: array.tobytes()})
                try:
                    model = tu.load(tmp_path / "forged")
                except FileError:
                    rejected += 1
                    continue
                usable(model, few)
    assert rejected > 2 * repetitions


def test_nonfinite_numbers_are_rejected(saved, tmp_path):
    parts = saved[3]
    for name in KINDS:
        if not parts.get(name) or KINDS[name] == "<i8":
            continue
        for value in (np.nan, np.inf, -np.inf):
            array = np.frombuffer(parts[name], "<f8").copy()
            array[len(array) // 2] = value
            store(tmp_path / "forged", parts | {name: array.tobytes()})
            refused(tmp_path / "forged")


def test_arrays_of_wrong_length_missing_or_extra_are_rejected(saved, tmp_path):
    parts = saved[3]
    for name in set(parts) - {MANIFEST}:
        part = parts[name]
        for other in (part[:-1], part + b"\0", part + part, b"", part[8:], part[:-8], part + bytes(8)):
            if other != part:
                store(tmp_path / "forged", parts | {name: other})
                refused(tmp_path / "forged")
        store(tmp_path / "forged", {key: value for key, value in parts.items() if key != name})
        refused(tmp_path / "forged")
    store(tmp_path / "forged", parts | {"curves/more": b""})
    refused(tmp_path / "forged", "arrays that the manifest does not list")


def forge(name, tmp_path, **arrays):
    fix, _ = fit(name)
    tu.save(fix, tmp_path / "model")
    parts = storage.read(tmp_path / "model", kind=KIND)
    changed = {
        key.replace("_", "/"): np.frombuffer(parts[key.replace("_", "/")], KINDS[key.replace("_", "/")]) for key in arrays
    }
    return parts | {key: change(changed[key]).tobytes() for key, change in zip(changed, arrays.values(), strict=True)}


@pytest.mark.parametrize(
    ("name", "arrays", "message"),
    [
        ("isotonic", {"curves_x": lambda x: x[::-1]}, "knots are not in ascending order"),
        ("isotonic", {"curves_value": lambda v: v[::-1]}, "an isotonic curve decreases"),
        ("isotonic", {"curves_value": lambda v: v + 0.5}, "a value is not a probability"),
        ("isotonic", {"curves_x": lambda x: 0 * x}, "knots are not in ascending order"),
        ("histogram", {"curves_value": lambda v: -v}, "a value is not a probability"),
        ("histogram", {"curves_at": lambda a: a[::-1]}, "the number of knots does not fit the curves"),
        ("histogram", {"curves_at": lambda a: np.array([0, 0, 7, a[-1]])}, "a curve has no knots"),
        ("histogram", {"curves_at": lambda a: np.array([0, 20, 3, a[-1]])}, "a curve has no knots"),
        ("platt", {"curves_coefficients": lambda c: c * 1e300}, "a curve coefficient is invalid"),
        (
            "line",
            {"curves_coefficients": lambda c: c * 1e210},
            "a curve coefficient is invalid",
        ),  # times 1e100 it is infinite
        ("temperature", {"curves_coefficients": lambda c: -c}, "a temperature is invalid"),
        ("multiplicative", {"curves_coefficients": lambda c: c * 1e210}, "a curve coefficient is invalid"),
        ("logistic", {"linear_effects": lambda e: e * 1e200}, "a coefficient is invalid"),
        ("logistic", {"linear_ranges": lambda r: r.reshape(-1, 3)[:, [0, 2, 1]]}, "the range of a feature is invalid"),
        ("grouped", {"groups_cells": lambda c: c[::-1]}, "the group numbers are invalid"),
        ("grouped", {"groups_cells": lambda c: c + 10**6}, "the group numbers are invalid"),
        ("grouped", {"groups_share": lambda s: s + 1.0}, "a share is not between 0 and 1"),
        ("grouped", {"groups_share": lambda s: s + 0.1}, "a share is not between 0 and 1"),
        ("grouped-logistic", {"groups_cells": lambda c: c[:-1]}, "the number of groups does not fit the regressions"),
        ("grouped-logistic", {"groups_share": lambda s: s + 0.1}, "a share is not between 0 and 1"),
        ("grouped-logistic", {"linear_effects": lambda e: e[:-1]}, "the number of effects does not fit the groups"),
        (
            "grouped-logistic",
            {"linear_ranges": lambda r: r[: len(r) // 2]},
            "the number of ranges does not fit the features",
        ),
        ("grouped-real", {"groups_edges": lambda e: e * np.nan}, "bin edges are not in ascending order"),
    ],
)
def test_invalid_arrays_are_rejected_with_a_specific_message(name, arrays, message, tmp_path):
    store(tmp_path / "forged", forge(name, tmp_path, **arrays))
    refused(tmp_path / "forged", message)


def test_claimed_sizes_allocate_no_memory(tmp_path):
    parts = forge("grouped", tmp_path)
    manifest = json.loads(parts[MANIFEST])
    for groups in (2**40, 10**18, 0, -3):
        forged = changed(manifest, ("map", "groups"), groups)
        store(tmp_path / "forged", parts | {MANIFEST: json.dumps(forged).encode()})
        refused(tmp_path / "forged")
