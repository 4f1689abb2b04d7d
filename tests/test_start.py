"""A fresh process answers without waiting for imports and the compiler."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np

import trueup as tu
from trueup.cli import main, warm
from trueup.kernels import _cache, _jit, curves

GOLDEN = Path(__file__).parent / "golden"
MODELS = sorted(GOLDEN.rglob("*.trueup"))
LOGISTIC = GOLDEN / "classics" / "logistic-2.trueup"
HEAVY = ("numba", "llvmlite", "scipy", "sklearn", "lightgbm", "duckdb", "pandas", "polars", "pyarrow", "jinja2", "rich")


def _python(program, *arguments, cache, **environment):
    """Run a program in a fresh process with a cache directory; return the JSON that it prints."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(cache), **environment}
    command = [sys.executable, "-c", program, *map(str, arguments)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


SCORE = f"""
import sys, json
import trueup as tu
from pathlib import Path
answers = {{}}
for path, row in json.loads(sys.argv[1]).items():
    answer = tu.load(path).predict_one(row)
    answers[path] = [float(p).hex() for p in (answer if hasattr(answer, "__len__") else [answer])]
print(json.dumps([answers, [name for name in {HEAVY!r} if name in sys.modules]]))
"""


def _row(model):
    return {name: column[0].item() for name, column in warm.sample_rows(model).items() if column.dtype.kind != "M"}


def test_a_fresh_process_loads_and_scores_without_numba_scipy_and_scikit_learn(tmp_path):
    models = {str(path): tu.load(path) for path in MODELS}
    rows = {path: _row(model) for path, model in models.items()}
    assert len({model.map.kind for model in models.values()}) >= 7
    answers, heavy = _python(SCORE, json.dumps(rows), cache=tmp_path / "empty")
    assert heavy == []
    assert not (tmp_path / "empty").exists()
    with _jit.compiling_at_once():
        expected = {path: np.atleast_1d(model.predict_one(rows[path])) for path, model in models.items()}
    assert answers == {path: [float(p).hex() for p in values] for path, values in expected.items()}


def test_a_fresh_process_audits_few_rows_without_numba(tmp_path):
    program = """
import sys, json, warnings
import trueup as tu
warnings.simplefilter("ignore")
audit = tu.audit(tu.simulate.lending(1_000, seed=0), outcome="outcome", prediction="prediction", depth=1)
print(json.dumps([len(audit), "numba" in sys.modules]))
"""
    count, numba = _python(program, cache=tmp_path)
    assert (count > 10, numba) == (True, False)


def test_warm_leaves_a_cache_that_a_process_uses_which_cannot_write(tmp_path):
    cache = tmp_path / "kernels"
    warming = f"import sys; from trueup.cli import main; code = main({['warm', str(LOGISTIC), '--cache', str(cache)]!r}); print(code)"
    done = subprocess.run([sys.executable, "-c", warming], capture_output=True, text=True, check=True)
    first, second, code = done.stdout.splitlines()
    kernels = _cache.kernels_in(cache / "trueup")
    assert (first, code) == (f"{len(kernels)} compiled kernels in {cache / 'trueup'}, {len(kernels)} of them new", "0")
    assert second == f"processes that use them need NUMBA_CACHE_DIR={cache} in their environment"
    before = {path: path.stat().st_mtime_ns for path in cache.rglob("*")}
    program = """
import sys, json, pathlib, os
import trueup as tu
from trueup.kernels import _cache, _jit, curves

def refuse(*arguments, **settings):
    raise PermissionError("read-only file system")

_cache._write = pathlib.Path.mkdir = refuse
os.access = lambda *_: False
with _jit.compiling_at_once():
    p = tu.load(sys.argv[1]).predict_one(json.loads(sys.argv[2]))
stats = curves.add_effects.dispatcher.stats
print(json.dumps([p, len(stats.cache_hits), len(stats.cache_misses)]))
"""
    model = tu.load(LOGISTIC)
    scores, hits, misses = _python(program, LOGISTIC, json.dumps(_row(model)), cache=cache)
    assert (scores, hits, misses) == (model.predict_one(_row(model)), 1, 0)
    assert {path: path.stat().st_mtime_ns for path in cache.rglob("*")} == before


def test_processes_without_a_home_and_a_writable_directory_answer(tmp_path):
    (tmp_path / "file").touch()
    program = """
import sys, json
import trueup as tu
from trueup.kernels import _jit
model = tu.load(sys.argv[1])
row = json.loads(sys.argv[2])
few = model.predict_one(row)
with _jit.compiling_at_once():
    print(json.dumps(few == model.predict_one(row)))
"""
    homeless = {"HOME": str(tmp_path / "file" / "none"), "XDG_CACHE_HOME": ""}
    assert (
        _python(program, LOGISTIC, json.dumps(_row(tu.load(LOGISTIC))), cache=tmp_path / "file" / "cache", **homeless)
        is True
    )
    assert sorted(tmp_path.iterdir()) == [tmp_path / "file"]


def test_warm_needs_a_directory_that_can_be_written_to(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("NUMBA_CACHE_DIR", "")
    (tmp_path / "file").touch()
    assert main(["warm", str(LOGISTIC), "--cache", str(tmp_path / "file" / "below")]) == 2
    error = capsys.readouterr().err
    assert f"error: no cache directory can be written to: {tmp_path / 'file' / 'below' / 'trueup'}" in error
    assert "hint: name one with --cache" in error


def test_warm_compiles_what_every_saved_model_and_every_usual_audit_runs(monkeypatch):
    """The steps of a plain `trueup warm` run one after the other; kernels of this test run are on disk already."""
    steps = list(warm._all_steps())
    names = [name.removeprefix("compiling ") for name, _ in steps]
    assert {"audits", "mcgrad", "lsboost", "lore", "isotonic", "classes", "groups"} <= set(names)
    assert len(set(names)) == len(names)
    with _jit.compiling_at_once():
        dict(steps)["compiling hkrr"]()
    assert curves.score.compiled
