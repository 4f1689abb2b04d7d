"""A saved model comes back exactly; whatever else a file may hold is refused by name, without a crash or a wait."""

from __future__ import annotations

import hashlib
import io
import json
import os
import random
import subprocess
import sys
import time
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest

import goldens
import trueup as tu
from checks import FEATURES, rows
from forged import GONE, STRANGE, changed, places, refused, store, usable
from trueup import storage
from trueup.calibrators.mcgrad.cascade import FOREST_DTYPES
from trueup.data.simulate import Shift, population
from trueup.errors import ArgumentError, FileError
from trueup.modelfile import FORMAT, KIND, MANIFEST

GOLDEN = Path(__file__).parent / "golden"
PREDICTION = {"binary": "p", "regression": "p", "multiclass": ["p_cat", "p_dog", "p_owl"]}


@pytest.fixture(autouse=True)
def _no_wait(monkeypatch):
    monkeypatch.setattr(os, "fsync", lambda _: None)


def fit(task="binary", **own):
    data = rows(task, 300)
    kind = {"task": "regression"} if task == "regression" else {}
    given = {"stopping": tu.CrossValidation(2), "rounds": 2, "trees": 4} | own
    return tu.MCGrad(PREDICTION[task], FEATURES, **kind, **given).fit(data, data["y"]), data


FITS = {
    "binary": ("binary", {}),
    "deep": ("binary", {"depth": None, "leaves": 9, "stopping": None}),
    "regression": ("regression", {}),
    "multiclass": ("multiclass", {}),
}


@pytest.fixture(scope="module", params=sorted(FITS))
def saved(request, tmp_path_factory):
    """Give a fitted model, its data, its file, and the parts of that."""
    task, own = FITS[request.param]
    fix, data = fit(task, **own)
    path = tmp_path_factory.mktemp("models") / "model.trueup"
    tu.save(fix, path)
    return fix.model_, data, path, storage.read(path, kind=KIND)


def same(model, other, data):
    return (
        model.predict(data).tobytes() == other.predict(data).tobytes()
        and (model.schema, model.history, model.explanation) == (other.schema, other.history, other.explanation)
        and (model.about == other.about)
    )


# ------------------------------------------------------------------ what is saved is loaded


def test_a_model_is_restored_exactly_and_saved_as_the_same_bytes(saved, tmp_path):
    model, data, path, _ = saved
    again = tu.load(path)
    assert same(again, model, data)
    assert again.info().size == path.stat().st_size
    assert (again.info().format, model.info().format) == (FORMAT, None)
    tu.save(again, tmp_path / "again")
    tu.save(model, str(tmp_path / "once more"))
    assert path.read_bytes() == (tmp_path / "again").read_bytes() == (tmp_path / "once more").read_bytes()
    for one, other in zip(model.map.rounds, again.map.rounds, strict=True):
        assert (one.thetas, one.trees) == (other.thetas, other.trees)
        for forest, loaded in zip(one.forests, other.forests, strict=True):
            for array, found in zip(forest.arrays().values(), loaded.arrays().values(), strict=True):
                assert (array.dtype, array.tobytes()) == (found.dtype, found.tobytes())


ODD = ["", '"', "\\", "a\nb", "a\x00b", "ñandú", "日本", "\ud800", "null", " BR", "BR ", "1e5", "x" * 300, None]


def test_a_model_is_saved_to_and_loaded_from_bytes_and_file_objects(saved, tmp_path):
    model, data, path, _ = saved
    buffer = io.BytesIO()
    tu.save(model, buffer)
    content = buffer.getvalue()
    assert content == path.read_bytes()
    with path.open("rb") as stream:
        sources = [content, bytearray(content), memoryview(content), io.BytesIO(content), stream]
        for source in sources:
            again = tu.load(source)
            assert same(model, again, data)
            assert again.info().size == len(content)
    with pytest.raises(FileError, match=r"cannot read the [0-9,]+ bytes: it is incomplete"):
        tu.load(content[:500])
    with pytest.raises(FileError, match="cannot read the 0 bytes: it is empty"):
        tu.load(io.BytesIO())
    with (tmp_path / "text").open("w") as stream, pytest.raises(ArgumentError, match="takes text, not bytes"):
        tu.save(model, stream)
    with pytest.raises(ArgumentError, match="got a file object of text"):
        tu.load(io.StringIO("model"))
    with pytest.raises(ArgumentError, match="from a path, from bytes or from a binary file object; got a int"):
        tu.load(3)
    with pytest.raises(FileError, match="cannot read the file object"):
        tu.load(stream)


def test_unusual_names_and_levels_are_restored(tmp_path):
    chance = np.random.default_rng(0)
    levels = np.array(ODD, object)[chance.integers(0, len(ODD), 600)]
    p = chance.uniform(0.1, 0.9, 600)
    y = (chance.random(600) < np.where(levels == "日本", 0.9, p)).astype(int)
    data = {'pré "diction"\n': p, "": levels, "é\ud800": np.where(p > 0.5, np.nan, p), "y": y}
    fix = tu.MCGrad('pré "diction"\n', ["", "é\ud800"], stopping=None, trees=30).fit(data, y)
    tu.save(fix, tmp_path / "odd")
    model = tu.load(tmp_path / "odd")
    assert same(model, fix.model_, data)
    assert set(model.schema.features[0].levels) == {level for level in ODD if level is not None}


def test_a_model_without_rounds_is_restored(tmp_path):
    data = population(300, 4, levels=(3,))
    fix = tu.MCGrad("prediction", ["c0"]).fit(data, data["outcome"])
    assert fix.history_.chosen == 0
    tu.save(fix, tmp_path / "none")
    model = tu.load(tmp_path / "none")
    assert model.predict(data).tobytes() == data["prediction"].tobytes()
    assert storage.read(tmp_path / "none", kind=KIND).keys() == {MANIFEST}


def test_parameters_are_stored(tmp_path):
    for stopping, plain in [
        (tu.Holdout(0.3), {"Holdout": {"share": 0.3, "patience": 1}}),
        (tu.Validation(rows(n=100), rows(n=100)["y"]), {"Validation": {"patience": 1}}),
        (None, None),
    ]:
        fix, _ = fit(stopping=stopping, categorical={"new"}, random_state=np.int64(3), l2=np.float32(0.5))
        tu.save(fix, tmp_path / "model")
        about = tu.load(tmp_path / "model").about
        assert about.parameters["stopping"] == plain
        assert (about.parameters["categorical"], about.parameters["random_state"], about.parameters["l2"]) == (
            ["new"],
            3,
            0.5,
        )
        assert (about.method, about.rows, about.version) == ("MCGrad", 300, tu.__version__)


def test_what_cannot_be_saved_is_rejected(tmp_path):
    from sklearn.linear_model import LogisticRegression

    for model, message in [
        (tu.MCGrad(), "this MCGrad has no model to save"),
        (LogisticRegression(), "this LogisticRegression has no model to save"),
        ({"a": 1}, "save takes a fitted calibrator or a Model; got dict"),
    ]:
        with pytest.raises(ArgumentError, match=message):
            tu.save(model, tmp_path / "no")
    assert list(tmp_path.iterdir()) == []


# ------------------------------------------------------------------ golden files


def test_files_of_format_1_treat_extreme_scores_as_before():
    # The expected scores are those of the last version that wrote format 1: it clipped probabilities to 1e-6 for a logit.
    for name, known in json.loads((GOLDEN / "extreme-scores-1.json").read_text()).items():
        data = json.loads((GOLDEN / f"{name}.json").read_text())["rows"]
        model, scores = tu.load(GOLDEN / f"{name}.trueup"), np.array(known["scores"])
        data = {column: np.array(values[:1] * len(scores), object) for column, values in data.items()}
        if "day" in data:
            data["day"] = data["day"].astype("datetime64[D]")
        columns = scores.reshape(len(scores), -1).T
        data |= dict(zip(model.schema.prediction, columns, strict=True))
        data |= {column: values.astype(float) for column, values in data.items() if column in ("age", "latitude")}
        np.testing.assert_allclose(model.predict(data), known["expected"], rtol=1e-13, atol=1e-300, err_msg=name)


def test_a_golden_file_of_every_format_scores_as_before():
    found = sorted(GOLDEN.glob("*.trueup"))
    assert [path.stem for path in found] == [f"mcgrad-{version}" for version in range(1, FORMAT + 1)]
    for path in found:
        golden = json.loads(path.with_suffix(".json").read_text())
        model = tu.load(path)
        np.testing.assert_allclose(model.predict(golden["rows"]), golden["expected"], rtol=0, atol=1e-12)
        ones = [model.predict_one({k: v[i] for k, v in golden["rows"].items()}) for i in range(len(golden["expected"]))]
        np.testing.assert_allclose(ones, golden["expected"], rtol=0, atol=1e-12)
        assert model.explain().corrections[0].segment == golden["first"]
        assert model.info().format == int(path.stem.split("-")[1])


# ------------------------------------------------------------------ damage


def _exchange(chance, whole, parts):
    names, contents = list(parts), list(parts.values())
    chance.shuffle(chance.choice([names, contents]))
    return _zip(dict(zip(names, contents, strict=True)), parts)


def _zip(held, parts, method=zipfile.ZIP_STORED):
    entries = {name: {"size": len(part), "sha256": hashlib.sha256(part).hexdigest()} for name, part in parts.items()}
    index = json.dumps({"kind": KIND, "layout": 1, "parts": entries}, sort_keys=True, indent=0).encode()
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", method) as archive:
        for name, part in [("index.json", index), *held.items()]:
            archive.writestr(zipfile.ZipInfo(name), part, compress_type=method)
        archive.comment = hashlib.sha256(index).hexdigest().encode()
    return stream.getvalue()


def _flip(chance, whole, parts):
    changed = bytearray(whole)
    for _ in range(chance.randint(1, 3)):
        changed[chance.randrange(len(whole))] ^= 1 << chance.randrange(8)
    return bytes(changed)


def _cut(chance, whole, parts):
    start, stop = sorted(chance.choices(range(len(whole) + 1), k=2))
    return chance.choice([whole[:start], whole[start:], whole[:start] + whole[stop:]])


def _misname(chance, whole, parts):
    old = chance.choice([b"manifest.json", b"forests/value", b"index.json"])
    return whole.replace(
        old, chance.choice([b"../", b"/", b"\\", b"\x00"]).ljust(len(old), b"x"), chance.choice([1, 2, -1])
    )


def _foreign(chance, whole, parts):
    bomb = {MANIFEST: b" " * chance.choice([10, 10**6]) + b"{}"}
    return chance.choice(
        [_zip(bomb, bomb, zipfile.ZIP_DEFLATED), chance.randbytes(chance.randrange(300)), b"", whole[-86:]]
    )


@pytest.mark.parametrize("mutate", [_flip, _cut, _exchange, _misname, _foreign], ids=lambda mutate: mutate.__name__)
@pytest.mark.repeated(60, 200)
def test_a_changed_file_is_rejected_or_gives_the_same_model(mutate, tmp_path, repetitions):
    fix, data = fit(rounds=1)
    few = {name: column[:5] for name, column in data.items()}
    tu.save(fix, tmp_path / "model")
    whole, parts, chance = (tmp_path / "model").read_bytes(), storage.read(tmp_path / "model", kind=KIND), random.Random(1)
    handled = 0
    for _ in range(repetitions):
        (tmp_path / "model").unlink()
        (tmp_path / "model").write_bytes(mutate(chance, whole, parts))
        try:
            model = tu.load(tmp_path / "model")
        except FileError as error:
            handled += str(tmp_path / "model") in error.message
            continue
        handled += same(model, fix.model_, few)
    assert handled == repetitions


def test_other_formats_are_rejected(saved, tmp_path):
    parts = saved[3]
    manifest = json.loads(parts[MANIFEST])
    for version, message in [
        (FORMAT + 1, f"it has format {FORMAT + 1} of a later version of trueup; this version reads up to {FORMAT}"),
        (0, "the format 0 is unknown"),
        ("1", "is unknown"),
        (True, "is unknown"),
    ]:
        store(tmp_path / "later", parts | {MANIFEST: json.dumps(manifest | {"format": version}).encode()})
        refused(tmp_path / "later", message)


def test_other_files_are_rejected(tmp_path):
    with zipfile.ZipFile(tmp_path / "zip", "w") as archive:
        archive.writestr("a.txt", "hello")
    refused(tmp_path / "zip")
    storage.write(tmp_path / "other", {"a": b""}, kind="toys")
    refused(tmp_path / "other", "toys")
    refused(tmp_path / "none", "there is no such file")


# ------------------------------------------------------------------ forgeries: valid checksums, invalid contents


@pytest.mark.repeated(1, 3)
def test_a_manifest_with_any_field_changed_is_rejected_or_harmless(saved, tmp_path, repetitions):
    _, data, _, parts = saved
    few = {name: column[:3] for name, column in data.items()}
    manifest = json.loads(parts[MANIFEST].decode("utf-8", "surrogatepass"))
    chance, rejected = random.Random(2), 0
    for place in places(manifest):
        for value in chance.sample(STRANGE, repetitions):
            if not place and value is GONE:
                continue
            text = json.dumps(changed(manifest, place, value), ensure_ascii=True).encode()
            store(tmp_path / "forged", parts | {MANIFEST: text})
            try:
                model = tu.load(tmp_path / "forged")
            except FileError as error:
                rejected += str(tmp_path / "forged") in error.message
                continue
            usable(model, few)
    assert rejected > 80 * repetitions


@pytest.mark.parametrize(
    "text",
    [
        b"", b"{", b"null", b"[]", b"\xff\xfe", b"[" * 100_000, b'{"format": NaN}', b'{"format": 1}', b'{"format": 1e999}',
        b'{"format": ' + b"9" * 5000 + b"}", b'{"a":' * 5000 + b"1" + b"}" * 5000,
    ],
    ids=lambda text: repr(text[:20]),
)  # fmt: skip
def test_an_invalid_manifest_is_rejected(saved, tmp_path, text):
    store(tmp_path / "forged", saved[3] | {MANIFEST: text})
    refused(tmp_path / "forged")


def test_invalid_numbers_are_rejected(saved, tmp_path):
    text = saved[3][MANIFEST]
    theta = text.rindex(b'"theta":') + 8
    for number in (b"NaN", b"Infinity", b"1e999", b"-1.0", b"0.0", b'"1.0"'):
        end = min(text.index(mark, theta) for mark in (b",", b"}"))
        store(tmp_path / "forged", saved[3] | {MANIFEST: text[:theta] + number + text[end:]})
        refused(tmp_path / "forged")


def test_counts_beyond_the_range_of_a_float_are_rejected(saved, tmp_path):
    manifest = json.loads(saved[3][MANIFEST])
    for place in (("about", "rows"), ("explanation", "rows"), ("history", "rounds", 0, "trees")):
        text = json.dumps(changed(manifest, place, 10**400)).encode()
        store(tmp_path / "forged", saved[3] | {MANIFEST: text})
        refused(tmp_path / "forged")


def _arrays(parts):
    return {name: np.frombuffer(parts[f"forests/{name}"], kind).copy() for name, kind in FOREST_DTYPES.items()}


FORGERIES = {
    "left": [0, 5, -1, 2**31 - 1, -(2**31), -5],
    "right": [0, 5, -1, 2**31 - 1, -(2**31)],
    "root": [1, -1, 2**31 - 1, -(2**31), 3],
    "output": [-1, 7, 2**31 - 1],
    "feature": [-1, 99, 2**31 - 1, -(2**31)],
    "words_at": [2**31 - 1, 10_000, -1, 0],
    "words_in": [-1, 2**31 - 1, 10_000],
    "missing_left": [2, 255],
    "threshold": [np.nan, np.inf, -np.inf],
    "value": [np.nan, np.inf, -np.inf, 1e308],
}


@pytest.mark.filterwarnings("ignore:overflow encountered")
@pytest.mark.repeated(1, 4)
def test_arrays_with_any_entry_changed_are_rejected_or_harmless(saved, tmp_path, repetitions):
    _, data, _, parts = saved
    few = {name: column[:3] for name, column in data.items()}
    chance, rejected = random.Random(3), 0
    for name, values in FORGERIES.items():
        for value in values:
            for _ in range(repetitions):
                arrays = _arrays(parts)
                at = chance.randrange(len(arrays[name]))
                arrays[name][at] = value
                store(tmp_path / "forged", parts | {f"forests/{name}": arrays[name].tobytes()})
                try:
                    found = tu.load(tmp_path / "forged")
                except FileError:
                    rejected += 1
                    continue
                usable(found, few)
    assert rejected > 15 * repetitions


def test_cycles_shared_leaves_and_swapped_children_are_rejected_or_harmless(saved, tmp_path):
    _, _, _, parts = saved
    arrays = _arrays(parts)
    for name, change in [
        ("left", lambda a: np.zeros_like(a)),
        ("left", lambda a: np.arange(len(a), dtype=a.dtype)),
        ("right", lambda a: arrays["left"]),
        ("left", lambda a: np.full_like(a, -1)),
        ("root", lambda a: np.roll(a, 1) if len(set(a)) > 1 else a + 1),
    ]:
        forged = change(arrays[name]).astype(FOREST_DTYPES[name])
        if forged.tobytes() == arrays[name].tobytes():
            continue
        store(tmp_path / "forged", parts | {f"forests/{name}": forged.tobytes()})
        try:
            usable(tu.load(tmp_path / "forged"), {k: v[:3] for k, v in saved[1].items()})
        except FileError:
            continue
        assert name == "root"  # trees of one forest may stand in any order


def test_a_tree_deeper_than_the_maximum_is_rejected(saved, tmp_path):
    *_, parts = saved
    manifest = json.loads(parts["manifest.json"])
    nodes = 5000
    chain = {
        "root": np.zeros(1, "<i4"), "output": np.zeros(1, "<i4"), "threshold": np.arange(nodes, dtype="<f8"),
        "feature": np.full(nodes, len(manifest["schema"]["features"]), "<i4"),
        "left": np.array([*range(1, nodes), ~nodes], "<i4"), "right": ~np.arange(nodes, dtype="<i4"),
        "missing_left": np.zeros(nodes, "|u1"), "words_at": np.full(nodes, -1, "<i4"), "words_in": np.zeros(nodes, "<i4"),
        "words": np.zeros(0, "<u4"), "value": np.zeros(nodes + 1, "<f8"),
    }  # fmt: skip
    sizes = {name: len(array) for name, array in chain.items()}
    manifest["map"]["rounds"] = [{"theta": 1.0, "trees": 1, "forests": [sizes]}]
    forged = {f"forests/{name}": array.tobytes() for name, array in chain.items()}
    place = tmp_path / "deep.trueup"
    store(place, {"manifest.json": json.dumps(manifest).encode(), **forged})
    refused(place, "deeper than 64")


def test_arrays_of_wrong_lengths_missing_or_extra_are_rejected(saved, tmp_path):
    parts = saved[3]
    for name in FOREST_DTYPES:
        part = parts[f"forests/{name}"]
        for other in (part[:-1], part + b"\0", part + part, b"", part[: len(part) // 2]):
            if other != part:
                store(tmp_path / "forged", parts | {f"forests/{name}": other})
                refused(tmp_path / "forged")
        store(tmp_path / "forged", {key: value for key, value in parts.items() if key != f"forests/{name}"})
        refused(tmp_path / "forged")
    store(tmp_path / "forged", parts | {"forests/more": b""})
    refused(tmp_path / "forged", "arrays that the manifest does not list")
    store(tmp_path / "forged", {MANIFEST: parts[MANIFEST]})
    refused(tmp_path / "forged")


def test_sizes_claimed_by_a_file_are_not_allocated(saved, tmp_path):
    _, _, path, parts = saved
    tu.load(path)
    manifest = json.loads(parts[MANIFEST].decode("utf-8", "surrogatepass"))
    for name in FOREST_DTYPES:
        sizes = manifest["map"]["rounds"][0]["forests"][0]
        forged = changed(manifest, ("map", "rounds", 0, "forests", 0), sizes | {name: 2**40})
        store(tmp_path / "forged", parts | {MANIFEST: json.dumps(forged).encode()})
        tracemalloc.start()
        refused(tmp_path / "forged")
        assert tracemalloc.get_traced_memory()[1] < 20 * path.stat().st_size + 10**6
        tracemalloc.stop()


# ------------------------------------------------------------------ processes


def test_a_loaded_model_imports_neither_lightgbm_nor_scikit_learn():
    assert goldens.heavy_packages() == "[]"


SAVER = """
import sys
import trueup as tu
models = [tu.load(path) for path in sys.argv[2:]]
while True:
    for model in models:
        tu.save(model, sys.argv[1])
"""


def test_a_process_killed_during_save_leaves_a_complete_model(tmp_path):
    kept = []
    for name in ("binary", "regression"):
        task, own = FITS[name]
        tu.save(fit(task, **own)[0], tmp_path / name)
        kept.append((tmp_path / name).read_bytes())
    path, chance = tmp_path / "model", random.Random(0)
    for _ in range(2):
        path.unlink(missing_ok=True)
        with subprocess.Popen(
            [sys.executable, "-c", SAVER, str(path), str(tmp_path / "binary"), str(tmp_path / "regression")]
        ) as saver:
            give_up = time.monotonic() + 60
            while not path.exists() and time.monotonic() < give_up:
                time.sleep(0.001)
            time.sleep(chance.uniform(0, 0.05))
            saver.kill()
        assert path.read_bytes() in kept
        tu.load(path)


def make_golden():
    """Write the golden file of the present format: run once for each, by hand, and never again."""
    data = population(2000, 6, levels=(5, 3), numeric=1, shifts=[Shift({"c0": "c0_1"}, 1.5), Shift({"x0": (0.5, 9)}, -1.0)])
    gone = np.random.default_rng(0).random(2000) < 0.1
    data["c0"] = np.where(gone, None, data["c0"].astype(object))
    data["x0"] = np.where(np.roll(gone, 1), np.nan, data["x0"])
    names = ["c0", "c1", "x0"]
    fix = tu.MCGrad("prediction", names, stopping=tu.CrossValidation(2), rounds=2, trees=3, learning_rate=0.1)
    fix.fit(data, data["outcome"])
    tu.save(fix, GOLDEN / f"mcgrad-{FORMAT}.trueup")
    shown = {
        name: [None if x is None or x != x else x for x in data[name][:60].tolist()] for name in ["prediction", *names]
    }
    shown["c0"][0] = "never seen"
    shown["prediction"][1:3] = [0.0, 1.0]
    golden = {"rows": shown, "expected": fix.predict(shown).tolist(), "first": fix.explain().corrections[0].segment}
    (GOLDEN / f"mcgrad-{FORMAT}.json").write_text(json.dumps(golden, indent=1) + "\n")
