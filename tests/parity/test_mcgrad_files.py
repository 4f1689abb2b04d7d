"""Models that the installed mcgrad fits and saves have the same scores here, on rows that it has not seen."""

from __future__ import annotations

import importlib
import logging
import warnings
from pathlib import Path

import numpy as np
import pytest

import trueup as tu

pytestmark = pytest.mark.filterwarnings("ignore")  # the peer warns about itself
TOLERANCE = 1e-12
DEEP = {"num_leaves": 31, "max_depth": -1, "n_estimators": 20, "min_child_samples": 20}
ROUNDS = {"num_rounds": 3, "early_stopping": False}


@pytest.fixture(scope="module")
def peer():
    """The module that makes the golden files, with the classes of mcgrad."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("mcgrad", reason="mcgrad is not installed: pip install 'trueup[parity]'", exc_type=ImportError)
        folder = str(Path(__file__).parents[2] / "bench" / "peers")
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(folder)
            module = importlib.import_module("mcgrad_models")
    logging.getLogger("mcgrad").setLevel(logging.ERROR)
    return module


@pytest.mark.parametrize(("kind", "settings", "missing"), [
    ("MCGrad", {}, None), ("MCGrad", ROUNDS, np.nan), ("MCGrad", {**ROUNDS, "lightgbm_params": DEEP}, None),
    ("MCGrad", {**ROUNDS, "lightgbm_params": {**DEEP, "boosting": "dart"}}, np.nan), ("MCGrad", {**ROUNDS, "monotone_t": True}, None),
    ("MCGrad", {**ROUNDS, "lightgbm_params": {**DEEP, "use_missing": False}}, None),
    ("RegressionMCGrad", ROUNDS, None), ("RegressionMCGrad", {"lightgbm_params": DEEP}, np.nan),
])  # fmt: skip
def test_scores_are_those_of_the_installed_package(peer, kind, settings, missing):
    train, rows = peer.population(4000, 2), peer.unusual(peer.population(4000, 3))
    if missing is not None:
        train["region"] = train["region"].where(train["region"].notna(), missing)
    if kind == "RegressionMCGrad":
        train["y"] = 10 * train["p"] + train["age"].fillna(3.0)
    names = {"categorical_feature_column_names": peer.CATEGORICAL, "numerical_feature_column_names": peer.NUMERIC}
    theirs = getattr(peer, kind)(**settings).fit(train, "p", "y", **names)
    model = tu.load_mcgrad(theirs.serialize(), prediction="p")
    assert model.map.steps == theirs.num_rounds_trained
    expected = theirs.predict(rows, "p", **names)
    assert np.abs(model.predict(rows) - expected).max() <= TOLERANCE
    assert np.abs(expected - rows["p"]).max() > 0.05
