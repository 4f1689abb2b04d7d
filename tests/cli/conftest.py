"""Files of loans to audit."""

from __future__ import annotations

import polars as pl
import pytest

import trueup as tu


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("loans")
    data = tu.simulate.lending(12_000, 0)
    del data["truth"]
    frame = pl.DataFrame(data).with_columns(zip=pl.lit("0") + (pl.col("term") // 12 + 1000).cast(pl.String), w=pl.lit(2.0))
    frame.write_parquet(folder / "loans.parquet")
    frame.write_csv(folder / "loans.csv")
    calm = tu.simulate.lending(3000, 1, calibrated=True)
    del calm["truth"]
    pl.DataFrame(calm).write_parquet(folder / "calm.parquet")
    return folder


@pytest.fixture
def at(folder, monkeypatch):
    monkeypatch.chdir(folder)
    return folder
