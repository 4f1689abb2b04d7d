"""The reader of docs/format.md reads golden files of every format, with the standard library alone, and scores their rows."""

from __future__ import annotations

import ast
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import trueup as tu
from goldens import read
from scoring import golden_models
from trueup import storage
from trueup.modelfile import FORMAT, KIND, MANIFEST, MAPS

PAGE = (Path(__file__).parents[2] / "docs" / "format.md").read_text()
CODE = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)[1]
SCORED = {"unchanged", "odds", "scores", "linear", "cascade"}


@pytest.fixture(scope="module")
def reader():
    names = {"__name__": "reader"}
    exec(compile(CODE, "reader.py", "exec"), names)
    return names


def test_the_reader_imports_the_standard_library_alone():
    imported = {alias.name for node in ast.walk(ast.parse(CODE)) if isinstance(node, ast.Import) for alias in node.names}
    assert imported <= sys.stdlib_module_names
    assert not [node for node in ast.walk(ast.parse(CODE)) if isinstance(node, ast.ImportFrom)]


@pytest.mark.parametrize("path", golden_models(), ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_the_reader_reads_and_scores_golden_files(reader, path):
    manifest, members = reader["read_model"](path)
    archive = storage.read(path, kind=KIND)
    assert manifest == json.loads(archive.pop(MANIFEST))
    assert members == archive
    if manifest["map"]["kind"] not in SCORED:
        with pytest.raises(ValueError, match="does not score maps of kind"):
            reader["score"](manifest, members, dict.fromkeys(manifest["schema"]["prediction"], 0.5))
        return
    golden = (
        read(path)
        if "day" in json.loads(path.with_suffix(".json").read_text())["rows"]
        else json.loads(path.with_suffix(".json").read_text())
    )
    columns = {name: _plain(column) for name, column in golden["rows"].items()}
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    found = np.array([reader["score"](manifest, members, row) for row in rows])
    expected = np.array(tu.load(path).predict(golden["rows"])).reshape(len(rows), -1)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-14)


def _plain(column):
    """Return values as the reader takes them: texts, numbers, and dates as days since 1970."""
    if isinstance(column, np.ndarray) and column.dtype.kind == "M":
        return [None if np.isnat(day) else float(day.astype("datetime64[D]").astype(int)) for day in column]
    return [str(value).lower() if isinstance(value, bool) else value for value in column]


def test_every_kind_of_map_and_every_format_has_a_golden_file_that_is_read(reader):
    manifests = [reader["read_model"](path)[0] for path in golden_models()]
    assert {manifest["map"]["kind"] for manifest in manifests} == set(MAPS)
    assert {manifest["format"] for manifest in manifests} == set(range(1, FORMAT + 1))


def test_every_key_and_array_of_golden_files_is_described():
    words = set(re.findall(r"[a-z_]+(?:/[a-z_]+)?", PAGE.replace(CODE, "")))
    missing = set()
    for path in golden_models():
        archive = storage.read(path, kind=KIND)
        manifest = json.loads(archive.pop(MANIFEST))
        keys = {*archive, *manifest, *manifest["schema"], *manifest["map"], *manifest["history"], *manifest["explanation"]}
        for part in (manifest["schema"]["features"], manifest["history"]["rounds"], manifest["map"].get("rounds", [])):
            keys |= {key for item in (part if isinstance(part, list) else []) for key in item}
        missing |= {key for key in keys if not all(word in words for word in key.split(" "))}
    assert sorted(missing) == []


def test_a_damaged_file_is_rejected_by_the_reader(reader, tmp_path):
    content = bytearray(golden_models()[0].read_bytes())
    content[content.index(b'"format"') + 3] ^= 1
    (tmp_path / "damaged.trueup").write_bytes(content)
    with pytest.raises(ValueError, match=r"manifest\.json is damaged"):
        reader["read_model"](tmp_path / "damaged.trueup")
