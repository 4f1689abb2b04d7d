"""Fitted models of every kind, small, and rows that test an export of them."""

import json
from functools import cache
from pathlib import Path

import numpy as np

import trueup as tu

MODELS = {}


def model(make):
    MODELS[make.__name__] = cache(make)
    return make


def frame(rows=3_000, seed=0):
    """Return rows with numbers, a category, missing values, and an outcome whose score is wrong in some groups."""
    rng = np.random.default_rng(seed)
    country = rng.choice(["BR", "DE", "it's", 'quo"te', "ü\n"], rows)
    age, income = rng.integers(18, 80, rows).astype(float), rng.lognormal(10, 1, rows)
    income[rng.random(rows) < 0.05] = np.nan
    device = np.where(rng.random(rows) < 0.05, None, rng.choice(["tv", "tablet", "phone"], rows))
    p = rng.beta(1, 4, rows)
    true = 1 / (1 + np.exp(-(np.log(p / (1 - p)) + (country == "BR") + 0.8 * (age > 50) - (device == "tv"))))
    return {
        "p": p, "country": country.astype(object), "age": age, "income": income, "device": device,
        "y": (rng.random(rows) < true).astype(float),
    }  # fmt: skip


def classes(rows=2_000, seed=0):
    """Return rows with probabilities of three classes, wrong for one level of a category."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, 1.5, (rows, 3))
    device = rng.choice(["tv", "tablet"], rows)
    P = np.exp(logits)
    P /= P.sum(axis=1, keepdims=True)
    true = np.exp(0.6 * logits + np.array([1.0, 0, 0]) * (device == "tv")[:, None])
    true /= true.sum(axis=1, keepdims=True)
    y = (true.cumsum(axis=1) < rng.random((rows, 1))).sum(axis=1)
    return {"a": P[:, 0], "b": P[:, 1], "c": P[:, 2], "device": device.astype(object), "y": y}


FEATURES = ["country", "age", "income", "device"]
SCORES = ["a", "b", "c"]


def fit(calibrator, data=None):
    data = frame() if data is None else data
    return calibrator.fit(data, data["y"]).model_


@model
def mcgrad_tables():
    return fit(tu.MCGrad("p", FEATURES, depth=2, leaves=4, stopping=None, rounds=1, trees=20))


@model
def mcgrad_trees():
    return fit(tu.MCGrad("p", FEATURES, depth=None, leaves=12, stopping=None, rounds=1, trees=10, min_rows=20))


@model
def mcgrad_rounds():
    return fit(tu.MCGrad("p", FEATURES, depth=3, leaves=8, stopping=None, rounds=3, trees=5))


@model
def mcgrad_default():
    return fit(tu.MCGrad("p", FEATURES))


@model
def mcgrad_classes():
    return fit(tu.MCGrad(SCORES, ["device"], stopping=None, rounds=2, trees=5), classes())


@model
def mcgrad_logits():
    data = frame()
    data["p"] = np.log(data["p"]) - np.log1p(-data["p"])
    return fit(tu.MCGrad("p", FEATURES, logits=True, stopping=None, rounds=1, trees=10), data)


@model
def mcgrad_infinite_cut():
    data = frame()
    data["y"] = np.where(np.isnan(data["income"]), 1.0, data["y"])
    return fit(tu.MCGrad("p", ["income"], depth=2, leaves=2, stopping=None, rounds=1, trees=1), data)


@model
def depth_two():
    return fit(tu.DepthTwo("p", FEATURES))


@model
def lsboost():
    return fit(tu.LSBoost("p", FEATURES, min_rows=50, stopping=None, rounds=3))


@model
def lsboost_lines():
    return fit(tu.LSBoost("p", FEATURES, learner="linear", min_rows=50, stopping=None, rounds=2))


@model
def lsboost_published():
    return fit(tu.LSBoost.as_published("p", FEATURES, rounds=5))


@model
def hkrr():
    return fit(tu.HKRR("p", FEATURES))


@model
def multiaccuracy():
    return fit(tu.Multiaccuracy("p", FEATURES))


@model
def isotonic():
    return fit(tu.Isotonic("p"))


@model
def platt():
    return fit(tu.Platt("p"))


@model
def beta():
    return fit(tu.Beta("p"))


@model
def histogram():
    return fit(tu.Histogram("p"))


@model
def temperature_of_classes():
    return fit(tu.Temperature(SCORES), classes())


@model
def isotonic_of_classes():
    return fit(tu.Isotonic(SCORES), classes())


@model
def matrix():
    return fit(tu.MatrixScaling(SCORES), classes())


@model
def grouped_isotonic():
    return fit(tu.Grouped(tu.Isotonic(), ["country", "age"], prediction="p"))


@model
def grouped_platt():
    return fit(tu.Grouped(tu.Platt(), ["device"], prediction="p"))


@model
def logistic():
    return fit(tu.Logistic("p", FEATURES))


@model
def grouped_logistic():
    return fit(tu.Grouped(tu.Logistic(features=["age", "country"]), ["device"], prediction="p"))


@model
def prior():
    return fit(tu.PriorCorrection("p", prevalence=0.4))


@model
def additive():
    return fit(tu.Additive("p"))


@model
def regression():
    data = frame()
    data["p"], data["y"] = 100 * data["p"], 120 * data["p"] + 10 * (data["country"] == "BR")
    return fit(tu.MCGrad("p", FEATURES, task="regression", stopping=None, rounds=1, trees=10), data)


@model
def imported():
    file = json.loads((Path(__file__).parent / "golden" / "mcgrad_files" / "missing.json").read_text())
    return tu.load_mcgrad(file["model"])
