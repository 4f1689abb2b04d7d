"""With NumPy alone, models are loaded and score rows to the same bits; everything else says what to install."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import trueup as tu
from alone import run_alone
from scoring import golden_models, many_rows
from trueup.kernels import _jit

COUNT = 40
SCORE = """
import io, json
import numpy as np
import trueup as tu

def bits(scores):
    return [float(p).hex() for p in np.asarray(scores).ravel()]

results = {}
for path, data in json.loads(sys.argv[1]).items():
    rows, model = dict(np.load(data, allow_pickle=True)), tu.load(path, stats=True)
    ones = [dict(zip(rows, row)) for row in zip(*rows.values())]
    ones = [{name: None if value != value else value for name, value in row.items()} for row in ones]
    kinds = {"columns": bits(model.predict(rows)), "rows": bits(model.predict(ones)),
             "one": bits(np.concatenate([np.atleast_1d(model.predict_one(row)) for row in ones[:6]]))}
    repr(model.explain(ones[0])), repr(model.explain()), repr(model), repr(model.stats()), model.info().to_dict()
    tu.save(model, buffer := io.BytesIO())
    assert bits(tu.load(buffer.getvalue()).predict(rows)) == kinds["columns"]
    results[path] = kinds
others = {name.split(".")[0] for name in sys.modules} - KNOWN - {"__mp_main__"}
print(json.dumps([results, sorted(name for name in others if not name.startswith("_"))]))
"""


def test_every_golden_file_is_scored_to_the_same_bits(tmp_path):
    data, expected = {}, {}
    for number, path in enumerate(golden_models()):
        model = tu.load(path)
        rows = many_rows(model, COUNT)
        np.savez(tmp_path / f"{number}.npz", **rows)
        with _jit.compiling_at_once():
            expected[str(path)] = [float(p).hex() for p in model.predict(rows).ravel()]
        data[str(path)] = str(tmp_path / f"{number}.npz")
    results, others = run_alone(SCORE, json.dumps(data))
    assert others == []
    assert len(results) == len(golden_models()) > 50
    for path, scores in expected.items():
        few = len(results[path]["one"])
        assert results[path] == {"columns": scores, "rows": scores, "one": scores[:few]}, path


LOCAL = """
import json
import numpy as np
import trueup as tu

print(json.dumps([[float(p).hex() for p in tu.load(path).predict(dict(np.load(rows, allow_pickle=True))).ravel()]
                  for path, rows in json.loads(sys.argv[1])]))
"""


def test_large_bins_of_lore_are_scored_to_the_same_bits(tmp_path):
    """Bins of many neighbours are summed by sweeps, of a few in many dimensions block by block."""
    random, files, expected = np.random.default_rng(0), [], []
    for name, dimensions, count in (("line", 1, 600), ("plane", 2, 4_500), ("space", 5, 400)):
        columns = {f"x{k}": random.normal(size=count) for k in range(dimensions)}
        p = random.uniform(0.2, 0.8, count)
        y = (random.random(count) < np.clip(p + 0.15 * np.sin(columns["x0"]), 0, 1)).astype(int)
        fix = tu.LoRe("p", features=list(columns), bins=1, gamma=0.2, shrinkage=20.0, embedding="columns").fit(
            {"p": p, **columns}, y
        )
        assert fix.model_.map.kind == "local"
        tu.save(fix, tmp_path / f"{name}.trueup")
        rows = {column: values[:5] * 1.01 for column, values in ({"p": p} | columns).items()}
        np.savez(tmp_path / f"{name}.npz", **rows)
        files.append((str(tmp_path / f"{name}.trueup"), str(tmp_path / f"{name}.npz")))
        expected.append([float(score).hex() for score in fix.predict(rows)])
    assert run_alone(LOCAL, json.dumps(files)) == expected


ASK = """
import json
import numpy as np
import trueup as tu
from trueup.errors import MissingPackageError

class Frame:
    columns = ["p"]

Frame.__module__, Frame.__name__, Frame.__qualname__ = "pandas", "DataFrame", "DataFrame"
model, answers = tu.load(sys.argv[1]), {"version": tu.__version__}
calls = {name: (lambda name=name: getattr(tu, name)) for name in tu.__all__}
calls["frame"] = lambda: model.predict(Frame())
for name, call in calls.items():
    try:
        call()
        answers[name] = None
    except MissingPackageError as error:
        answers[name] = str(error)
print(json.dumps(answers))
"""


@pytest.fixture(scope="module")
def answers():
    return run_alone(ASK, Path(__file__).parents[1] / "golden" / "mcgrad-2.trueup")


def test_audits_and_fits_say_what_to_install(answers):
    works = {name for name, answer in answers.items() if answer is None}
    assert works == {"Model", "errors", "load", "metrics", "save", "simulate"}
    assert answers["version"] == tu.__version__
    missing = "which are not installed\nhint: pip install trueup"
    for name in set(tu.__all__) - works:
        assert answers[name] == f"trueup.{name} needs the packages 'narwhals', 'numba', 'scipy', 'sklearn', {missing}"


def test_a_frame_needs_narwhals(answers):
    assert answers["frame"] == (
        "a pandas.DataFrame needs the package 'narwhals', which is not installed\n"
        "hint: pip install trueup, or pass a dict of arrays, a list of dicts or a NumPy array"
    )


def test_the_command_line_says_what_to_install():
    program = """
import contextlib, io, json
from trueup.cli import main
with contextlib.redirect_stderr(io.StringIO()) as stream:
    code = main(["audit", "loans.csv", "--outcome", "y", "--prediction", "p"])
print(json.dumps([code, stream.getvalue()]))
"""
    code, error = run_alone(program)
    assert code == 2
    assert error.startswith("error: the command line needs the packages 'duckdb', 'narwhals', 'numba', 'rich', 'scipy'")
    assert error.endswith("which are not installed\nhint: pip install trueup\n")
