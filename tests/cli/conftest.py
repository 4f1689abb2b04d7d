"""Files of loans to audit."""

from __future__ import annotations

import numpy as np
import polars as pl
import pytest

import trueup as tu


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    directory = tmp_path_factory.mktemp("loans")
    data = tu.simulate.lending(12_000, 0)
    del data["truth"]
    frame = pl.DataFrame(data).with_columns(zip=pl.lit("0") + (pl.col("term") // 12 + 1000).cast(pl.String), w=pl.lit(2.0))
    frame.write_parquet(directory / "loans.parquet")
    frame.write_csv(directory / "loans.csv")
    calm = tu.simulate.lending(3000, 1, calibrated=True)
    del calm["truth"]
    pl.DataFrame(calm).write_parquet(directory / "calm.parquet")
    return directory


@pytest.fixture
def loans_directory(directory, monkeypatch):
    monkeypatch.chdir(directory)
    return directory


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """Return a directory with files of 4,000 rows, and models for binary, multiclass and regression tasks."""
    directory = tmp_path_factory.mktemp("fitted")
    rng = np.random.default_rng(0)
    n = 4000
    country, age = np.array(["BR", "DE", "US"])[rng.integers(0, 3, n)], rng.integers(18, 80, n).astype(float)
    p = rng.uniform(0.05, 0.5, n)
    frame = pl.DataFrame({
        "id": np.arange(n),
        "code": [f"0{index}" for index in range(n)],
        "country": country,
        "age": age,
        "new": rng.random(n) < 0.3,
        "zip": [f"0{1 + index % 3}" for index in range(n)],
        "day": np.datetime64("2024-01-01") + rng.integers(0, 300, n).astype("timedelta64[D]"),
        "p": p,
        "y": (rng.random(n) < np.where(country == "BR", np.minimum(1.8 * p, 1), p)) * 1,
        "amount": 100 * p + 20 * (country == "DE") + rng.normal(0, 3, n),
        "forecast": 100 * p,
    })  # fmt: skip
    q = rng.dirichlet([2, 2, 2], n)
    tilted = q * np.where((country == "US")[:, None], [3, 1, 1], 1)
    tilted /= tilted.sum(axis=1, keepdims=True)
    drawn = (rng.random((n, 1)) > tilted.cumsum(axis=1)).sum(axis=1).clip(0, 2)
    frame = frame.with_columns(**{f"q{c}": q[:, c] for c in range(3)}, species=np.array(["cat", "dog", "fox"])[drawn])
    frame.write_parquet(directory / "rows.parquet")
    frame.write_csv(directory / "rows.csv")
    frame.head(1000).write_parquet(directory / "few.parquet")
    features = ["country", "age", "new", "zip", "day"]
    binary = tu.MCGrad("p", features).fit(frame, frame["y"])
    tu.save(binary, directory / "binary.trueup")
    classes = tu.MCGrad(["q0", "q1", "q2"], ["country"], classes=["cat", "dog", "fox"]).fit(frame, frame["species"])
    tu.save(classes, directory / "classes.trueup")
    amounts = tu.MCGrad("forecast", ["country"], task="regression").fit(frame, frame["amount"])
    tu.save(amounts, directory / "amounts.trueup")
    return directory


@pytest.fixture
def workdir(fitted, tmp_path, monkeypatch):
    """Change to an empty directory with links to the files and models."""
    for path in fitted.iterdir():
        (tmp_path / path.name).symlink_to(path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
