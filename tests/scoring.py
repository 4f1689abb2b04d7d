"""Golden models and rows that they score."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from trueup.cli.warm import sample_rows

__all__ = ["golden_models", "many_rows"]


def golden_models():
    """Return the paths of all golden model files."""
    return sorted((Path(__file__).with_name("golden")).rglob("*.trueup"))


def many_rows(model, count, seed=1):
    """Return ``count`` random rows of a model, with missing and unseen values."""
    random = np.random.default_rng(seed)
    rows = {name: np.repeat(column[:1], count) for name, column in sample_rows(model).items()}
    for feature in model.schema.features:
        if feature.kind == "numeric":
            rows[feature.name] = random.choice([*random.normal(30, 40, 30), np.nan, 0.0, 1e9], count)
        elif feature.kind == "categorical":
            rows[feature.name] = np.array(random.choice([*feature.levels, "unseen"], count), object)
            rows[feature.name][0] = None
    scores = random.dirichlet(np.ones(max(len(model.schema.prediction), 2)), count)
    return rows | {name: scores[:, k] for k, name in enumerate(model.schema.prediction)}
