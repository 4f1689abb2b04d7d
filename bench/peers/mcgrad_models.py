"""Fit small models with mcgrad and write them, with scores of rows, to tests/golden/mcgrad_files/.

    .bench/mcgrad/bin/python bench/peers/mcgrad_models.py

Tests of `tu.load_mcgrad` read them. Made with mcgrad 0.1.5: a few trees per round (`SMALL`), so that files are small.
Rows have missing and unseen values, scores of exactly 0 and 1, and infinite numbers.
"""

from __future__ import annotations

import json
import logging
import sys
import warnings
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from mcgrad.methods import MCGrad, RegressionMCGrad

OUT = Path(__file__).parents[2] / "tests" / "golden" / "mcgrad_files"
SMALL = {"n_estimators": 4, "min_child_samples": 20, "learning_rate": 0.3, "num_leaves": 5}
CATEGORICAL, NUMERIC = ["region", "new", "branch"], ["age", "income"]
ROWS = 36


def population(rows: int, seed: int) -> pd.DataFrame:
    """Draw rows with outcomes, whose scores are off on segments and where a value is missing."""
    random = np.random.default_rng(seed)
    region = random.choice(np.array(["east", "west", "q'uo\"te", "two\nlines ü", None], object), rows)
    frame = pd.DataFrame({"region": pd.Series(region, dtype=object), "new": random.random(rows) < 0.3,
                          "branch": random.integers(0, 9, rows), "age": random.normal(size=rows),
                          "income": random.lognormal(size=rows)})  # fmt: skip
    frame.loc[random.random(rows) < 0.1, "age"] = np.nan
    score = random.normal(-1, 1, rows)
    off = 0.7 * (region == "east") - 0.8 * pd.isna(region) - 0.6 * (frame["age"] > 0) + 0.1 * frame["branch"]
    frame["p"] = 1 / (1 + np.exp(-score))
    frame["y"] = (random.random(rows) < 1 / (1 + np.exp(-score - off))).astype(int)
    return frame


def unusual(rows: pd.DataFrame) -> pd.DataFrame:
    """Return rows with values that training did not have."""
    rows = rows.reset_index(drop=True)
    rows.loc[:4, "region"] = "Mars"
    rows.loc[5:9, "branch"] = 77
    rows.loc[8:12, "age"] = np.nan
    rows.loc[13:14, "income"] = np.inf
    rows.loc[15:16, "age"] = -np.inf
    rows.loc[17:20, "p"] = [0.0, 1.0, 1e-310, 1 - 2**-53]
    return rows


def fitted() -> dict[str, tuple[Any, list[str], list[str], pd.DataFrame]]:
    """Return per name: a fitted model, its categorical and numeric columns, and rows to be scored."""
    train, rows = population(3000, 0), unusual(population(ROWS, 1))
    settings = {"num_rounds": 2, "early_stopping": False, "lightgbm_params": SMALL}
    deep = {**settings, "lightgbm_params": {**SMALL, "num_leaves": 12, "max_depth": -1}}
    as_nan = train.assign(region=train["region"].where(train["region"].notna(), np.nan))
    real = {"p": 9 * train["p"], "y": 10 * train["p"] + train["age"].fillna(3.0)}
    complete = train.dropna(subset=["region", "age"])
    real_rows = rows.assign(p=9 * rows["p"])
    models = {
        "binary": (MCGrad(**settings), CATEGORICAL, NUMERIC, train, rows),
        "missing": (MCGrad(**deep), CATEGORICAL, NUMERIC, as_nan, rows),
        "stopped": (MCGrad(lightgbm_params=SMALL), ["region"], ["age"], train, rows),
        "codes": (MCGrad(**settings, encode_categorical_variables=False), ["branch"], NUMERIC, train, rows),
        "complete": (MCGrad(**settings, monotone_t=True), ["region"], ["age"], complete, rows),
        "regression": (RegressionMCGrad(**settings), CATEGORICAL, NUMERIC, train.assign(**real), real_rows),
    }
    for model, categorical, numeric, frame, _ in models.values():
        names = {"categorical_feature_column_names": categorical, "numerical_feature_column_names": numeric}
        model.fit(frame, "p", "y", **names)
    return {name: (model, categorical, numeric, own) for name, (model, categorical, numeric, _, own) in models.items()}


def plain(column: pd.Series) -> list[Any]:
    """Return values for JSON; None for missing ones, texts for infinite ones."""
    values = [None if pd.isna(value) else value for value in column.tolist()]
    return [str(value) if isinstance(value, float) and np.isinf(value) else value for value in values]


def main() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.CRITICAL)
    OUT.mkdir(parents=True, exist_ok=True)
    for name, (model, categorical, numeric, rows) in fitted().items():
        scores = model.predict(rows, "p", categorical, numeric)
        content = {
            "mcgrad": version("mcgrad"), "lightgbm": version("lightgbm"), "made by": "bench/peers/mcgrad_models.py",
            "model": model.serialize(), "rows": {one: plain(rows[one]) for one in ["p", *categorical, *numeric]},
            "scores": scores.tolist(),
        }  # fmt: skip
        path = OUT / f"{name}.json"
        path.write_text(json.dumps(content) + "\n")
        print(f"{path.name}: {path.stat().st_size:,} bytes, {model.num_rounds_trained} rounds", file=sys.stderr)


if __name__ == "__main__":
    main()
