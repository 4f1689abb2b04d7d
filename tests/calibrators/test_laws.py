"""Every calibrator obeys every law of `tests/checks.py`."""

from __future__ import annotations

import pytest

import trueup as tu
from checks import FEATURES, Case, laws_of

# Histograms sum single-precision gradients in double precision in the order of the rows: the last bits of a prediction differ.
ROUNDING = 1e-12
# LightGBM finds bins and limits groups of categories by the number of rows, not by their weight.
COUNTS = 0.1
NOT_COUNTS = [0, -1, 1.5, "3", True, 2**31]
INVALID = {
    "depth": NOT_COUNTS, "leaves": [*NOT_COUNTS, 1], "bins": [*NOT_COUNTS, 1, None], "rounds": NOT_COUNTS, "trees": NOT_COUNTS, "threads": NOT_COUNTS,
    "random_state": [-1, 1.5, "3", None, True], "learning_rate": [0.0, -0.1, 1.1, "fast", float("nan"), True],
    "feature_fraction": [0.0, 1.1, None, "all", float("nan")], "min_hessian": [-1, None, float("nan"), float("inf"), "x"],
    "l2": [-1, None, float("nan"), float("inf"), "x"], "monotone": [1, None, "yes"],
    "stopping": [5, "holdout", tu.Holdout, True], "task": ["multi", None, 3], "unlabelled": ["keep", None], "classes": [["a", "b"]],
}  # fmt: skip


# Most fits have one thread, since few rows take less time than starting more; one law compares numbers of threads.
def mcgrad(*, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p", "features": FEATURES, "threads": 1} | own
    return lambda **changes: tu.MCGrad(**given | changes)


TREES = {"order": ROUNDING, "counts": COUNTS, "plain": {"stopping": None, "rounds": 2, "trees": 12}}
INVALID_PATCHES = {
    "depth": [*NOT_COUNTS, 3, None], "bins": [*NOT_COUNTS, 1, None], "levels": [*NOT_COUNTS, None], "min_rows": [0, -1, 1.5, "3", True, None],
    "rounds": [0, -1, 1.5, "3", True, None], "alpha": [-0.1, "none", float("nan"), float("inf"), True],
    "spacing": ["even", None, 1], "random_state": INVALID["random_state"], "stopping": INVALID["stopping"],
    "task": INVALID["task"], "unlabelled": INVALID["unlabelled"],
}  # fmt: skip


def hkrr(**own):
    return lambda **changes: tu.HKRR(**{"prediction": "p", "features": FEATURES, "min_rows": 20} | own | changes)


def multiaccuracy(**own):
    return lambda **changes: tu.Multiaccuracy(**{"prediction": "p", "features": FEATURES, "min_rows": 20} | own | changes)


NO_HOLDOUT = {"plain": {"stopping": None, "rounds": 40}}
CASES = {
    "default": Case(mcgrad(), **TREES, invalid=INVALID),
    "deep, held out": Case(mcgrad(depth=None, leaves=8, stopping=tu.Holdout(0.3), trees=12), **TREES),
    "refitted, monotone": Case(
        mcgrad(stopping=tu.CrossValidation(2, refit=True), monotone=True, rounds=3, trees=12, repeats=1), **TREES
    ),
    "fixed": Case(mcgrad(stopping=None, rounds=2, trees=12), **TREES),
    "regression": Case(
        mcgrad(task="regression", trees=12, rounds=3, stopping=tu.CrossValidation(2), repeats=1),
        "regression",
        **TREES | {"order": 1e-10},
    ),
    "classes": Case(
        mcgrad(several=True, stopping=tu.CrossValidation(2), rounds=2, trees=12, repeats=1), "multiclass", **TREES
    ),
    "patches": Case(hkrr(levels=5), **NO_HOLDOUT, invalid=INVALID_PATCHES),
    "patches as published": Case(hkrr(stopping=None, depth=2, rounds=40), **NO_HOLDOUT),
    "patches, regression": Case(hkrr(task="regression", levels=5), "regression", **NO_HOLDOUT),
    "group patches, held out": Case(
        multiaccuracy(depth=2, stopping=tu.Holdout(0.3)),
        **NO_HOLDOUT,
        invalid={name: INVALID_PATCHES[name] for name in INVALID_PATCHES if name not in ("levels", "spacing")},
    ),
    "group patches, regression": Case(multiaccuracy(task="regression"), "regression", **NO_HOLDOUT),
}

INVALID_ANYWHERE = {name: INVALID[name] for name in ("stopping", "task", "unlabelled", "classes")}


def classic(kind, *, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p"} | own
    return lambda **changes: kind(**given | changes)


def grouped(kind, by, *, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p", "min_rows": 20} | own

    def make(**changes):
        features = changes.pop("features", by)
        roles = {"calibrator": kind(), "by": by if features is None else features}
        return tu.Grouped(**roles | given | changes)

    return make


MATRIX = {"order": 1e-4, "counts": 1e-4, "plain": {"strength": 20.0}}  # folds choose the strength; a minimum is approximate
CASES |= {
    "platt": Case(classic(tu.Platt), invalid=INVALID_ANYWHERE),
    "prior": Case(
        classic(tu.PriorCorrection, prevalence=0.7),
        invalid={name: INVALID[name] for name in ("task", "unlabelled")} | {
            "prevalence": [0, 1, -0.1, None, "guess", True, float("nan")], "sampling": [{"negative": 0.5}, {}, 0.1],
            "labelled": [([0, 1], [0.2, 0.6])], "reference_prevalence": [0.5],
        },
    ),
    "platt, real": Case(classic(tu.Platt, task="regression"), "regression"),
    "platt, classes": Case(classic(tu.Platt, several=True), "multiclass"),
    "temperature": Case(classic(tu.Temperature), invalid=INVALID_ANYWHERE | {"task": ["regression", "multi"]}),
    "temperature, classes": Case(classic(tu.Temperature, several=True), "multiclass"),
    "beta": Case(classic(tu.Beta), invalid=INVALID_ANYWHERE),
    "beta, classes": Case(classic(tu.Beta, several=True), "multiclass"),
    "isotonic": Case(classic(tu.Isotonic), invalid=INVALID_ANYWHERE),
    "platt, cross-validated": Case(classic(tu.Platt, stopping=tu.CrossValidation(3)), plain={"stopping": None}),
    "isotonic, real": Case(classic(tu.Isotonic, task="regression"), "regression"),
    "isotonic, classes": Case(classic(tu.Isotonic, several=True), "multiclass"),
    "histogram": Case(classic(tu.Histogram), invalid=INVALID_ANYWHERE | {"bins": NOT_COUNTS, "strategy": ["equal", None, 3]}),
    "histogram, real": Case(classic(tu.Histogram, task="regression", strategy="width"), "regression"),
    "histogram, classes": Case(classic(tu.Histogram, several=True, bins=5), "multiclass"),
    "grouped": Case(
        grouped(tu.Platt, ["country", "new"]), plain={"shrinkage": 20},
        invalid=INVALID_ANYWHERE | {
            "bins": NOT_COUNTS, "min_rows": NOT_COUNTS, "random_state": [-1, 1.5, "3", None],
            "shrinkage": [-1, None, "some", float("nan"), True], "calibrator": [None, 3, tu.Platt, tu.Platt("p"), tu.MCGrad()],
        },
    ),
    "grouped, real": Case(grouped(tu.Isotonic, FEATURES, task="regression", bins=2, shrinkage=20), "regression"),
    "additive, real": Case(classic(tu.Additive, task="regression"), "regression"),
    "multiplicative, classes": Case(classic(tu.Multiplicative, several=True), "multiclass"),
    "grouped, additive": Case(grouped(tu.Additive, ["country", "new"], shrinkage=20)),
    "matrix": Case(classic(tu.MatrixScaling, several=True), "multiclass", **MATRIX),
    "grouped, classes": Case(grouped(tu.Temperature, ["country"], several=True, shrinkage=5.0), "multiclass"),
}  # fmt: skip


def logistic(**own):
    return lambda **changes: tu.Logistic(**{"prediction": "p", "features": FEATURES} | own | changes)


def grouped_logistic(**own):
    def make(**changes):
        features = changes.pop("features", FEATURES)
        given = {"prediction": "p", "min_rows": 20} | own | changes
        return tu.Grouped(
            tu.Logistic(features=features), **{"by": (features or FEATURES)[:2] if features != [] else []} | given
        )

    return make


# Sums over rows are rounded in the order of the rows.
SUMS = {"order": 1e-9, "counts": 1e-6, "plain": {"stopping": None}}
CASES |= {
    "logistic": Case(logistic(), **SUMS, invalid={
        "l2": [0, -1, None, float("nan"), "x", True], "offset": [1, None, "yes"], "random_state": INVALID["random_state"],
        "stopping": INVALID["stopping"], "task": ["regression", *INVALID["task"]], "unlabelled": INVALID["unlabelled"],
    }),
    "grouped logistic": Case(
        grouped_logistic(shrinkage=20), **SUMS | {"plain": {}},
        invalid={name: INVALID[name] for name in ("stopping", "unlabelled")} | {"task": ["regression", *INVALID["task"]]},
    ),
}  # fmt: skip


def depthtwo(**own):
    return lambda **changes: tu.DepthTwo(
        **{"prediction": "p", "features": FEATURES, "patience": 10, "threads": 1} | own | changes
    )


DEPTH_TWO = TREES | {"plain": {"stopping": None, "trees": 24}}
CASES |= {
    "depth two": Case(
        depthtwo(stopping=tu.CrossValidation(2), trees=16), **DEPTH_TWO,
        invalid={name: INVALID[name] for name in (
            "bins", "trees", "threads", "random_state", "learning_rate", "feature_fraction", "l2", "stopping", "task", "unlabelled",
        )} | {"patience": [*NOT_COUNTS, None], "min_rows": INVALID["min_hessian"], "saturation": INVALID["monotone"]},
    ),
    "depth two, held out": Case(depthtwo(stopping=tu.Holdout(0.3), saturation=False, learning_rate=0.3, trees=16), **DEPTH_TWO),
    "depth two, fixed": Case(depthtwo(stopping=None, trees=24), **DEPTH_TWO),
    "depth two, regression": Case(
        depthtwo(task="regression", stopping=tu.CrossValidation(2), saturation=False, trees=16), "regression", **DEPTH_TWO | {"order": 1e-10}
    ),
}  # fmt: skip


def auto(*, several=False, **own):
    given = {
        "prediction": ["p_cat", "p_dog", "p_owl"] if several else "p",
        "features": FEATURES,
        "folds": 2,
        "threads": 1,
    } | own
    return lambda **changes: tu.Auto(**given | changes)


# The chosen method has its own cases; which method is chosen may depend on the folds.
FIXED = {"plain": {"methods": [tu.MCGrad(stopping=None, rounds=2, trees=12)]}}
CASES |= {
    "auto": Case(
        auto(methods=["identity", "platt", tu.MCGrad(stopping=tu.CrossValidation(2), rounds=1, trees=12, repeats=1)]), **TREES | FIXED,
        invalid={name: INVALID[name] for name in ("threads", "random_state", "task", "unlabelled", "classes")} | {
            "folds": [*NOT_COUNTS, 1, None],
            "methods": [(), "platt", 3, [None], ["plat"], ["platt", "platt"], [tu.Platt], [tu.Platt("p")], [tu.Auto()], tu.Platt()],
        },
    ),
    "auto, regression": Case(
        auto(task="regression", methods=["identity", "isotonic", "multiaccuracy"]), "regression", counts=COUNTS, **FIXED
    ),
    "auto, classes": Case(
        auto(several=True, methods=["identity", "temperature", tu.MCGrad(stopping=tu.Holdout(0.3), rounds=1, trees=12)]), "multiclass",
        **TREES | FIXED,
    ),
}  # fmt: skip


def lore(*, several=False, **own):
    given = {"prediction": ["p_cat", "p_dog", "p_owl"] if several else "p", "features": FEATURES, "threads": 1} | own
    return lambda **changes: tu.LoRe(**given | changes)


NOT_NUMBERS = ["some", None, float("nan"), True, -1]
CASES |= {
    "lore": Case(lore(), invalid={
        "gamma": [*NOT_NUMBERS, 0, 1e9], "shrinkage": [*NOT_NUMBERS, float("inf")], "bins": [*NOT_COUNTS, None, "many"],
        "components": NOT_COUNTS, "threads": NOT_COUNTS, "embedding": ["tsne", None, 3, tu.Platt, object()],
        "strategy": ["equal", None, 3],
        "task": ["regression", "multi", None], "unlabelled": INVALID["unlabelled"], "classes": INVALID["classes"],
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
