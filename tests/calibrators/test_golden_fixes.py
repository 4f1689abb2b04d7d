"""Files of level sets, patches, clipped trees and no change, written once, score as they did; and need no heavy package."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np

import trueup as tu
from checks import FEATURES, rows
from trueup.modelfile import FORMAT

GOLDEN = Path(__file__).parents[1] / "golden" / "fixes"
REAL = {"task": "regression"}
FITS = {
    "levels": ("binary", lambda: tu.LSBoost("p", FEATURES, min_rows=150, rounds=4, stopping=tu.CrossValidation(2))),
    "levels-lines": ("regression", lambda: tu.LSBoost("p", FEATURES, learner="linear", min_rows=150, rounds=3, **REAL)),
    "levels-grid": ("binary", lambda: tu.LSBoost("p", FEATURES, alpha=0.05, depth=2)),
    "levels-alone": ("regression", lambda: tu.LSBoost(features=FEATURES, min_rows=150, rounds=4, **REAL)),
    "patches": ("binary", lambda: tu.HKRR("p", FEATURES, levels=4, min_rows=20, rounds=6, stopping=None)),
    "patches-real": ("regression", lambda: tu.Multiaccuracy("p", FEATURES, depth=2, min_rows=20, **REAL)),
    "depthtwo": ("binary", lambda: tu.DepthTwo("p", FEATURES, stopping=tu.CrossValidation(2), saturation=False)),
    "unchanged": ("binary", lambda: tu.Isotonic("p", stopping=tu.CrossValidation(2))),
}


def fit(name):
    task, make = FITS[name]
    data = rows(task, 600)
    if name == "unchanged":
        data["y"] = (np.random.default_rng(0).random(600) < data["p"]).astype(int)
    return make().fit(data, data["y"]), data


def test_golden_files_score_as_they_did():
    found = sorted(GOLDEN.glob("*.trueup"))
    assert {path.stem for path in found} == {f"{name}-{version}" for name in FITS for version in range(1, FORMAT + 1)}
    for path in found:
        told = json.loads(path.with_suffix(".json").read_text())
        told["rows"]["day"] = np.array(told["rows"]["day"], "datetime64[D]")
        model = tu.load(path)
        np.testing.assert_allclose(model.predict(told["rows"]), told["expected"], rtol=1e-12, atol=1e-12)
        ones = [model.predict_one({k: v[i] for k, v in told["rows"].items()}) for i in range(len(told["expected"]))]
        np.testing.assert_allclose(ones, told["expected"], rtol=1e-12, atol=1e-12)
        assert told["changed"] == bool(model.map.steps)


USER = """
import sys, json, numpy as np, trueup as tu
for path in sys.argv[1:]:
    told = json.loads(open(path[:-7] + ".json").read())
    told["rows"]["day"] = np.array(told["rows"]["day"], "datetime64[D]")
    model = tu.load(path)
    model.predict(told["rows"]), model.explain({name: values[0] for name, values in told["rows"].items()}), repr(model)
print([name for name in ("sklearn", "lightgbm") if name in sys.modules])
"""


def test_loading_and_scoring_take_neither_scikit_learn_nor_lightgbm():
    files = [str(path) for path in sorted(GOLDEN.glob("*.trueup"))]
    done = subprocess.run([sys.executable, "-c", USER, *files], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def make_golden():
    """Write the golden files of the present format: run once for each, by hand, and never again."""
    GOLDEN.mkdir(exist_ok=True)
    for name in FITS:
        fix, data = fit(name)
        tu.save(fix, GOLDEN / f"{name}-{FORMAT}.trueup")
        shown = {key: data[key][:25] for key in (*(() if name == "levels-alone" else ("p",)), *FEATURES)}
        plain = {key: [None if x != x else x for x in column.tolist()] for key, column in shown.items()}
        plain["day"] = [str(day) for day in shown["day"]]
        told = {"rows": plain, "expected": fix.predict(shown).tolist(), "changed": bool(fix.model_.map.steps)}
        (GOLDEN / f"{name}-{FORMAT}.json").write_text(json.dumps(told) + "\n")
