"""The cases of the quality study: real rows, a base model, and calibration rows that the base model never saw.

Each case is a Parquet file under .bench/cases, made once: the features, `p`, `y`, and `part` (calibration or test).
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from common import ENVIRONMENTS, HERE

if TYPE_CHECKING:
    from numpy.typing import NDArray

DATA = Path(os.environ.get("TRUEUP_DATA", HERE.parent.parent / "shared" / "data"))
CASES = ENVIRONMENTS / "cases"
SHARES = (0.4, 0.3, 0.3)  # rows for the base model, for calibration, for the test
BASE_ROWS = 50_000  # the base model learns from no more than this
BASES = ("logistic", "forest", "boosting")


@dataclass(frozen=True)
class Source:
    """One data set: its label, and the columns that are no features."""

    name: str
    label: str
    leave_out: tuple[str, ...] = ()
    positive: int | None = None
    score: str | None = None
    above_median: bool = False  # the label is a number; the outcome is whether it is above its median
    unseen: bool = False  # kept apart while defaults were chosen


SOURCES = (
    Source("adult", "income_over_50k", ("split", "fnlwgt")),
    Source("bank_marketing", "subscribed", ("duration",)),
    Source(
        "acs_employment_ma", "employed", ("prediction", "period", "predicted_probability"), score="predicted_probability"
    ),
    Source("covertype", "cover_type", positive=2),
    Source("acs_mobility_2018", "same_address", ("split",), unseen=True),
    Source(
        "communities_crime",
        "ViolentCrimesPerPop",
        ("county", "community", "communityname", "fold"),
        above_median=True,
        unseen=True,
    ),
)


@dataclass(frozen=True)
class Case:
    """A data set, a base model and a seed."""

    source: Source
    base: str
    seed: int

    @property
    def name(self) -> str:
        """Name the case in one word."""
        return f"{self.source.name}-{self.base}-{self.seed}"

    @property
    def path(self) -> Path:
        """Say where its rows are kept."""
        return CASES / f"{self.name}.parquet"


def cases(seeds: int, only: str = "", named: set[str] | None = None) -> list[Case]:
    """List the cases whose name contains a part of ``only`` (and is ``named``), and make those that are not there yet."""
    found = []
    for source in SOURCES:
        for base in (*BASES, "own") if source.score else BASES:
            every = [Case(source, base, seed) for seed in range(seeds)]
            found += [case for case in every if any(part in case.name for part in only.split(","))]
    found = [case for case in found if named is None or case.name in named]
    CASES.mkdir(parents=True, exist_ok=True)
    for case in found:
        if not case.path.exists():
            _make(case)
    return found


def features(frame: pd.DataFrame) -> tuple[list[str], list[str]]:
    """Give the categorical and the numeric features of a case."""
    names = [name for name in frame.columns if name not in ("p", "y", "part")]
    categorical = [name for name in names if not pd.api.types.is_numeric_dtype(frame[name])]
    return categorical, [name for name in names if name not in categorical]


def _make(case: Case) -> None:
    source = case.source
    frame = pd.read_parquet(DATA / f"{source.name}.parquet")
    y = frame[source.label].to_numpy()
    if source.above_median:
        y = y > np.median(y)
    y = (y == source.positive).astype(np.int8) if source.positive is not None else y.astype(np.int8)
    order = np.random.default_rng([case.seed, 4]).permutation(len(frame))
    ends = np.cumsum([int(share * len(frame)) for share in SHARES[:2]])
    train, calibration, test = np.split(order, ends)
    X = frame.drop(columns=[source.label, *source.leave_out])
    X = X[[name for name in X.columns if X[name].dtype.kind != "f" or X[name].notna().all()]]
    categorical = [name for name in X.columns if not pd.api.types.is_numeric_dtype(X[name])]
    p = frame[source.score].to_numpy(float) if case.base == "own" else _scores(case, X, y, train[:BASE_ROWS], categorical)
    for name in categorical:
        X[name] = X[name].astype(object).where(X[name].notna(), None)
    X["p"], X["y"] = np.clip(p, 1e-6, 1 - 1e-6), y
    X["part"] = ""
    X.loc[X.index[calibration], "part"] = "calibration"
    X.loc[X.index[test], "part"] = "test"
    kept = X[X["part"] != ""]
    kept.to_parquet(case.path.with_suffix(".part"))
    case.path.with_suffix(".part").replace(case.path)
    print(f"made {case.name}: {len(calibration):,} rows for calibration, {len(test):,} for the test", flush=True)


def _scores(
    case: Case, X: pd.DataFrame, y: NDArray[np.int8], train: NDArray[np.int64], categorical: list[str]
) -> NDArray[np.float64]:
    from sklearn.compose import make_column_transformer
    from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, StandardScaler

    numeric = [name for name in X.columns if name not in categorical]
    codes = OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-1)
    hot = OneHotEncoder(handle_unknown="ignore", min_frequency=20)
    flat = make_column_transformer((codes, categorical), remainder="passthrough")
    base = {
        "logistic": make_pipeline(
            make_column_transformer((hot, categorical), (StandardScaler(), numeric)), LogisticRegression(max_iter=500)
        ),
        "forest": make_pipeline(flat, RandomForestClassifier(100, min_samples_leaf=3, n_jobs=-1, random_state=case.seed)),
        "boosting": make_pipeline(flat, HistGradientBoostingClassifier(random_state=case.seed)),
    }[case.base]
    base.fit(X.iloc[train], y[train])
    return base.predict_proba(X)[:, 1]


if __name__ == "__main__":
    print(len(cases(5)), "cases")
