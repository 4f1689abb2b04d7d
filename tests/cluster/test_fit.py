"""A fit on a cluster gives the model of the same rows in files and in memory, also where a worker was lost meanwhile."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

import dying
import trueup as tu
from checks import FEATURES, rows
from trueup.calibrators import splits
from trueup.calibrators.mcgrad import apart
from trueup.calibrators.mcgrad.facts import known_by
from trueup.data.folds import assign_folds_by_hash
from trueup.errors import ArgumentError, LostWorkerError

PARAMETERS = {"features": FEATURES, "rounds": 2, "trees": 20, "stopping": tu.CrossValidation(2, patience=2)}


@pytest.fixture(scope="module")
def frame():
    found = pd.DataFrame(rows("binary", 1500)).astype({"day": "datetime64[ns]"})
    found["w"] = np.random.default_rng(0).exponential(size=len(found)) + 0.1
    return found.sort_values("age", ignore_index=True)  # the last part has all the missing ages


@pytest.fixture(scope="module")
def told(frame, tmp_path_factory):
    """Fit the rows in a file."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    frame.to_parquet(path)
    return tu.MCGrad("p", **PARAMETERS).fit(tu.scan(str(path)), "y", sample_weight="w")


@pytest.fixture
def on_dask(client, frame):
    """Give the rows to Dask: three partitions, two workers."""
    import dask.dataframe as dd

    assert len(client.nthreads()) == 2
    return dd.from_pandas(frame, npartitions=3, sort=False)


@pytest.fixture
def on_spark(spark, frame):
    """Give the rows to Spark: two partitions."""
    spark.sparkContext.addPyFile(dying.__file__)
    given = spark.createDataFrame(frame).repartition(2).cache()
    yield given
    given.unpersist()


def test_files_give_the_model_of_memory(told, frame, monkeypatch):
    monkeypatch.setattr(
        splits, "assign_folds", lambda table, parts, seed: assign_folds_by_hash(*known_by(table), parts, seed)
    )
    found = tu.MCGrad("p", **PARAMETERS).fit(frame, "y", sample_weight="w")
    assert told.history_.chosen
    np.testing.assert_allclose(told.predict(frame), found.predict(frame), rtol=1e-9)


@pytest.mark.parametrize("engine", ["dask", "spark"])
def test_a_fit_goes_on_after_a_worker_was_lost_and_gives_the_model_of_files(
    request, engine, told, frame, tmp_path, monkeypatch
):
    given = request.getfixturevalue(f"on_{engine}")
    kept = tmp_path / "fit.rounds"
    made = tu.MCGrad("p", **PARAMETERS, engine=engine, resume=kept)
    monkeypatch.setattr(apart, "_round", partial(dying.grow_or_die, flag=str(tmp_path / "died")))
    with pytest.raises(LostWorkerError, match=r"SIGKILL|lost|gone"):
        made.fit(given, "y", sample_weight="w")
    assert kept.exists()
    found = made.fit(given, "y", sample_weight="w")
    assert not kept.exists()
    assert [one.trees for one in found.history_.rounds] == [one.trees for one in told.history_.rounds]
    assert found.history_.loss_after == pytest.approx(told.history_.loss_after, rel=1e-9)
    np.testing.assert_allclose(found.predict(frame), told.predict(frame), rtol=1e-9)
    assert (found.model_.about.rows, found.model_.schema) == (1500, told.model_.schema)


def test_the_frame_of_another_engine_and_other_methods_are_refused(on_dask):
    with pytest.raises(ArgumentError, match=r"engine='spark' does not take a dask"):
        tu.MCGrad("p", engine="spark").fit(on_dask, "y")
    with pytest.raises(ArgumentError, match=r"Isotonic takes rows in memory; got a Dask DataFrame"):
        tu.Isotonic("p").fit(on_dask, "y")
