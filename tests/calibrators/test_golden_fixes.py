"""Files of level sets, patches, clipped trees and no change, written once, score as they did; and need no heavy package."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import goldens
import trueup as tu
from checks import FEATURES, rows

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


def test_golden_files_score_as_before():
    found = sorted(GOLDEN.glob("*.trueup"))
    assert {path.stem for path in found} == goldens.names(FITS)
    for path in found:
        golden = goldens.read(path)
        model = tu.load(path)
        np.testing.assert_allclose(model.predict(golden["rows"]), golden["expected"], rtol=1e-12, atol=1e-12)
        ones = [model.predict_one({k: v[i] for k, v in golden["rows"].items()}) for i in range(len(golden["expected"]))]
        np.testing.assert_allclose(ones, golden["expected"], rtol=1e-12, atol=1e-12)
        assert golden["changed"] == bool(model.map.steps)


def make_golden():
    """Write the golden files."""
    for name in FITS:
        fix, data = fit(name)
        shown = {key: data[key][:25] for key in (*(() if name == "levels-alone" else ("p",)), *FEATURES)}
        goldens.write(GOLDEN, name, fix, shown, changed=bool(fix.model_.map.steps))
