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
PATCHED = {
    "depth": [*WHOLE, 3, None], "bins": [*WHOLE, 1, None], "levels": [*WHOLE, None], "min_rows": [0, -1, 1.5, "3", True, None],
    "rounds": [0, -1, 1.5, "3", True, None], "alpha": [-0.1, "none", float("nan"), float("inf"), True],
    "spacing": ["even", None, 1], "random_state": REFUSED["random_state"], "stopping": REFUSED["stopping"],
    "task": REFUSED["task"], "unlabelled": REFUSED["unlabelled"],
}  # fmt: skip


def hkrr(**own):
    return lambda **changes: tu.HKRR(**{"prediction": "p", "features": FEATURES, "min_rows": 20} | own | changes)


def multiaccuracy(**own):
    return lambda **changes: tu.Multiaccuracy(**{"prediction": "p", "features": FEATURES, "min_rows": 20} | own | changes)


UNJUDGED = {"plain": {"stopping": None, "rounds": 40}}
CASES = {
    "default": Case(mcgrad(), **TREES, refused=REFUSED),
    "deep, held out": Case(mcgrad(depth=None, leaves=8, stopping=tu.Holdout(0.3)), **TREES),
    "refitted, monotone": Case(mcgrad(stopping=tu.CrossValidation(2, refit=True), monotone=True, rounds=3), **TREES),
    "fixed": Case(mcgrad(stopping=None, rounds=2, trees=12), **TREES),
    "regression": Case(
        mcgrad(task="regression", trees=40, rounds=3, stopping=tu.CrossValidation(3)),
        "regression",
        **TREES | {"order": 1e-10},
    ),
    "classes": Case(mcgrad(several=True, stopping=tu.CrossValidation(2), rounds=3), "multiclass", **TREES),
    "patches": Case(hkrr(levels=5), **UNJUDGED, refused=PATCHED),
    "patches as published": Case(hkrr(stopping=None, depth=2, rounds=40), **UNJUDGED),
    "patches, regression": Case(hkrr(task="regression", levels=5), "regression", **UNJUDGED),
    "group patches, held out": Case(
        multiaccuracy(depth=2, stopping=tu.Holdout(0.3)),
        **UNJUDGED,
        refused={name: PATCHED[name] for name in PATCHED if name not in ("levels", "spacing")},
    ),
    "group patches, regression": Case(multiaccuracy(task="regression"), "regression", **UNJUDGED),
}

ALWAYS = {name: REFUSED[name] for name in ("stopping", "task", "unlabelled", "classes")}


def classic(kind, *, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p"} | own
    return lambda **changes: kind(**given | changes)


def grouped(kind, by, *, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p", "min_rows": 20} | own

    def make(**changes):
        features = changes.pop("features", by)
        told = {"calibrator": kind(), "by": by if features is None else features}
        return tu.Grouped(**told | given | changes)

    return make


CASES |= {
    "platt": Case(classic(tu.Platt), refused=ALWAYS),
    "platt, real": Case(classic(tu.Platt, task="regression"), "regression"),
    "platt, classes": Case(classic(tu.Platt, several=True), "multiclass"),
    "temperature": Case(classic(tu.Temperature), refused=ALWAYS | {"task": ["regression", "multi"]}),
    "temperature, classes": Case(classic(tu.Temperature, several=True), "multiclass"),
    "beta": Case(classic(tu.Beta), refused=ALWAYS),
    "beta, classes": Case(classic(tu.Beta, several=True), "multiclass"),
    "isotonic": Case(classic(tu.Isotonic), refused=ALWAYS),
    "platt, judged": Case(classic(tu.Platt, stopping=tu.CrossValidation(3)), plain={"stopping": None}),
    "isotonic, real": Case(classic(tu.Isotonic, task="regression"), "regression"),
    "isotonic, classes": Case(classic(tu.Isotonic, several=True), "multiclass"),
    "histogram": Case(classic(tu.Histogram), refused=ALWAYS | {"bins": WHOLE, "strategy": ["equal", None, 3]}),
    "histogram, real": Case(classic(tu.Histogram, task="regression", strategy="width"), "regression"),
    "histogram, classes": Case(classic(tu.Histogram, several=True, bins=5), "multiclass"),
    "grouped": Case(
        grouped(tu.Platt, ["country", "new"]), plain={"shrinkage": 20},
        refused=ALWAYS | {
            "bins": WHOLE, "min_rows": WHOLE, "random_state": [-1, 1.5, "3", None],
            "shrinkage": [-1, None, "some", float("nan"), True], "calibrator": [None, 3, tu.Platt, tu.Platt("p"), tu.MCGrad()],
        },
    ),
    "grouped, real": Case(grouped(tu.Isotonic, FEATURES, task="regression", bins=2, shrinkage=20), "regression"),
    "grouped, classes": Case(grouped(tu.Temperature, ["country"], several=True, shrinkage=5.0), "multiclass"),
}  # fmt: skip


def depthtwo(**own):
    return lambda **changes: tu.DepthTwo(**{"prediction": "p", "features": FEATURES, "patience": 10} | own | changes)


TWO = TREES | {"plain": {"stopping": None, "trees": 24}}
CASES |= {
    "depth two": Case(
        depthtwo(stopping=tu.CrossValidation(2), trees=40), **TWO,
        refused={name: REFUSED[name] for name in (
            "bins", "trees", "threads", "random_state", "learning_rate", "feature_fraction", "l2", "stopping", "task", "unlabelled",
        )} | {"patience": [*WHOLE, None], "min_rows": REFUSED["min_hessian"], "saturation": REFUSED["monotone"]},
    ),
    "depth two, held out": Case(depthtwo(stopping=tu.Holdout(0.3), saturation=False, learning_rate=0.3), **TWO),
    "depth two, fixed": Case(depthtwo(stopping=None, trees=24), **TWO),
    "depth two, regression": Case(
        depthtwo(task="regression", stopping=tu.CrossValidation(2), saturation=False, trees=40), "regression", **TWO | {"order": 1e-10}
    ),
}  # fmt: skip


def auto(*, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p", "features": FEATURES, "folds": 2} | own
    return lambda **changes: tu.Auto(**given | changes)


# What the winner learns is under its own laws; which one wins may turn on how rows fall into folds.
FIXED = {"plain": {"methods": [tu.MCGrad(stopping=None, rounds=2, trees=12)]}}
CASES |= {
    "auto": Case(
        auto(methods=["identity", "platt", tu.MCGrad(stopping=tu.CrossValidation(2), rounds=1)]), **TREES | FIXED,
        refused={name: REFUSED[name] for name in ("threads", "random_state", "task", "unlabelled", "classes")} | {
            "folds": [*WHOLE, 1, None],
            "methods": [(), "platt", 3, [None], ["plat"], ["platt", "platt"], [tu.Platt], [tu.Platt("p")], [tu.Auto()], tu.Platt()],
        },
    ),
    "auto, regression": Case(
        auto(task="regression", methods=["identity", "isotonic", "multiaccuracy"]), "regression", counts=COUNTS, **FIXED
    ),
    "auto, classes": Case(
        auto(several=True, methods=["identity", "temperature", tu.MCGrad(stopping=tu.Holdout(0.3), rounds=1)]), "multiclass",
        **TREES | FIXED,
    ),
}  # fmt: skip


def lore(*, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p", "features": FEATURES} | own
    return lambda **changes: tu.LoRe(**given | changes)


NUMBERS = ["some", None, float("nan"), True, -1]
CASES |= {
    "lore": Case(lore(), refused={
        "gamma": [*NUMBERS, 0, 1e9], "shrinkage": [*NUMBERS, float("inf")], "bins": [*WHOLE, None, "many"],
        "components": WHOLE, "threads": WHOLE, "embedding": ["tsne", None, 3, tu.Platt, object()],
        "strategy": ["equal", None, 3],
        "task": ["regression", "multi", None], "unlabelled": REFUSED["unlabelled"], "classes": REFUSED["classes"],
    }),
    "lore as published": Case(lore(gamma=0.4)),
    "lore, groups": Case(lore(embedding="groups", features=["country", "new"])),
    "lore, classes": Case(lore(several=True, gamma=0.4, bins=5, strategy="mass"), "multiclass"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "law"),
    [(name, law) for name in CASES for law in laws_of(CASES[name])],
    ids=lambda x: getattr(x, "__name__", x),
)
def test_a_calibrator_obeys(name, law):
    law(CASES[name])
