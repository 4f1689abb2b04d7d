"""Fitted estimators and Models saved by joblib, pickle and skops predict the same to the bit."""

from __future__ import annotations

import io
import json
import pickle
from pathlib import Path

import joblib
import numpy as np
import pytest

import trueup as tu
from packages import need

ROWS = 600
SMALL = {"rounds": 1, "trees": 5, "stopping": None}
CASES = {
    "MCGrad": lambda: tu.MCGrad("p", ["c", "x"], **SMALL), "DepthTwo": lambda: tu.DepthTwo("p", ["c", "x"]),
    "LSBoost": lambda: tu.LSBoost("p", ["c", "x"]), "HKRR": lambda: tu.HKRR("p", ["c"]), "Multiaccuracy": lambda: tu.Multiaccuracy("p", ["c"]),
    "LoRe": lambda: tu.LoRe("p", ["x"]), "Isotonic": lambda: tu.Isotonic("p"), "Platt": lambda: tu.Platt("p"),
    "Grouped": lambda: tu.Grouped(tu.Platt(), by=["c"], prediction="p"), "Logistic": lambda: tu.Logistic("p", ["c", "x"]),
}  # fmt: skip


@pytest.fixture(scope="module")
def rows():
    random = np.random.default_rng(0)
    p = random.uniform(0.05, 0.95, ROWS)
    c, x = random.choice(["a", "b"], ROWS), random.normal(size=ROWS)
    return {"p": p, "c": c, "x": x, "y": (random.random(ROWS) < np.where(c == "a", p**1.5, p)).astype(int)}


@pytest.fixture(scope="module", params=CASES)
def fitted(request, rows):
    return CASES[request.param]().fit(rows, "y")


def _copies(saved):
    """Yield an object as pickle and joblib restore it."""
    yield pickle.loads(pickle.dumps(saved))
    buffer = io.BytesIO()
    joblib.dump(saved, buffer, compress=3)
    buffer.seek(0)
    yield joblib.load(buffer)


def _by_skops(saved):
    """Return an object as skops restores it, with the types of trueup as the only ones that it is given."""
    skops = need("skops.io")
    content = skops.dumps(saved)
    types = skops.get_untrusted_types(data=content)
    assert types
    assert all(name.startswith("trueup.") for name in types)
    with pytest.raises(skops.exceptions.UntrustedTypesFoundException):
        skops.loads(content, trusted=[])
    return skops.loads(content, trusted=types)


def test_joblib_and_pickle_keep_predictions(fitted, rows):
    expected = fitted.predict(rows).tolist()
    for saved in (fitted, fitted.model_):
        for again in _copies(saved):
            assert again.predict(rows).tolist() == expected


def test_skops_keeps_predictions(fitted, rows):
    for saved in (fitted, fitted.model_):
        again = _by_skops(saved)
        assert again.predict(rows).tolist() == fitted.predict(rows).tolist()
        row = {name: column[0] for name, column in rows.items()}
        assert again.predict_one(row) == fitted.predict_one(row)


def test_imported_models_of_mcgrad_are_kept_as_well():
    content = json.loads((Path(__file__).parents[1] / "golden" / "mcgrad_files" / "stopped.json").read_text())
    model = tu.load_mcgrad(content["model"], prediction="p")
    data = {"p": content["rows"]["p"], "region": np.array(content["rows"]["region"], object)}
    data["age"] = [np.nan if value is None else float(value) for value in content["rows"]["age"]]
    for again in (*_copies(model), _by_skops(model)):
        assert again.predict(data).tolist() == model.predict(data).tolist()
