"""Every calibrator obeys every law of `tests/checks.py`."""

from __future__ import annotations

import pytest

import trueup as tu
from checks import FEATURES, Case, laws_of

# Histograms add up single-precision gradients in double precision in the order of the rows: the last bits of a prediction.
ROUNDING = 1e-12
# LightGBM cuts bins and bounds groups of categories by the number of rows, not by their weight.
COUNTS = 0.1
WHOLE = [0, -1, 1.5, "3", True, 2**31]
REFUSED = {
    "depth": WHOLE, "leaves": [*WHOLE, 1], "bins": [*WHOLE, 1, None], "rounds": WHOLE, "trees": WHOLE, "threads": WHOLE,
    "random_state": [-1, 1.5, "3", None, True], "learning_rate": [0.0, -0.1, 1.1, "fast", float("nan"), True],
    "feature_fraction": [0.0, 1.1, None, "all", float("nan")], "min_hessian": [-1, None, float("nan"), float("inf"), "x"],
    "l2": [-1, None, float("nan"), float("inf"), "x"], "monotone": [1, None, "yes"],
    "stopping": [5, "holdout", tu.Holdout, True], "task": ["multi", None, 3], "unlabelled": ["keep", None], "classes": [["a", "b"]],
}  # fmt: skip


def mcgrad(*, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p", "features": FEATURES} | own
    return lambda **changes: tu.MCGrad(**given | changes)


TREES = {"order": ROUNDING, "counts": COUNTS, "plain": {"stopping": None, "rounds": 2, "trees": 12}}
CASES = {
    "default": Case(mcgrad(), **TREES, refused=REFUSED),
    "deep, held out": Case(mcgrad(depth=None, leaves=8, stopping=tu.Holdout(0.3)), **TREES),
    "refitted, monotone": Case(mcgrad(stopping=tu.CrossValidation(3, refit=True), monotone=True), **TREES),
    "fixed": Case(mcgrad(stopping=None, rounds=2, trees=12), **TREES),
    "regression": Case(mcgrad(task="regression"), "regression", **TREES | {"order": 1e-10}),
    "classes": Case(mcgrad(several=True, stopping=tu.CrossValidation(3)), "multiclass", **TREES),
}


@pytest.mark.parametrize(
    ("name", "law"),
    [(name, law) for name in CASES for law in laws_of(CASES[name])],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_calibrator_obeys(name, law):
    law(CASES[name])
