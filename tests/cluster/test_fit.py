"""A fit on a cluster gives the model of the same rows in files and in memory, also after a worker was lost."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest

import failing_round
import trueup as tu
from checks import FEATURES, rows
from trueup.calibrators import stopping
from trueup.calibrators.mcgrad import partitioned
from trueup.data.folds import assign_folds_by_hash
from trueup.errors import ArgumentError, LostWorkerError

PARAMETERS = {"features": FEATURES, "rounds": 2, "trees": 20, "stopping": tu.CrossValidation(2, patience=2), "repeats": 1}


@pytest.fixture(scope="module")
def frame():
    found = pd.DataFrame(rows("binary", 1500)).astype({"day": "datetime64[ns]"})
    found["w"] = np.random.default_rng(0).exponential(size=len(found)) + 0.1
    return found.sort_values("age", ignore_index=True)  # the last partition has all missing ages


@pytest.fixture(scope="module")
def expected(frame, tmp_path_factory):
    """Fit on the rows in a file."""
    path = tmp_path_factory.mktemp("rows") / "rows.parquet"
    frame.to_parquet(path)
    return tu.MCGrad("p", **PARAMETERS).fit(tu.scan(str(path)), "y", sample_weight="w")


@pytest.fixture
def on_dask(client, frame):
    """Return the rows in three partitions of Dask, on two workers."""
    import dask.dataframe as dd

    assert len(client.nthreads()) == 2
    return dd.from_pandas(frame, npartitions=3, sort=False)


def test_files_give_the_model_of_memory(expected, frame, monkeypatch):
    monkeypatch.setattr(
        stopping, "assign_folds", lambda table, parts, seed: assign_folds_by_hash(*stopping.row_content(table), parts, seed)
    )
    found = tu.MCGrad("p", **PARAMETERS).fit(frame, "y", sample_weight="w")
    assert expected.history_.chosen
    np.testing.assert_allclose(expected.predict(frame), found.predict(frame), rtol=1e-9)


def test_a_fit_resumes_after_a_lost_worker_and_gives_the_model_of_files(on_dask, expected, frame, tmp_path, monkeypatch):
    """On Dask; Spark reports a lost worker by the same error (`test_faults`), and fits the model of files (`test_docs`)."""
    checkpoint = tmp_path / "fit.rounds"
    calibrator = tu.MCGrad("p", **PARAMETERS, engine="dask", resume=checkpoint)
    monkeypatch.setattr(partitioned, "_fit_round", partial(failing_round.fit_or_die, flag=str(tmp_path / "died")))
    with pytest.raises(LostWorkerError, match=r"SIGKILL|lost|gone"):
        calibrator.fit(on_dask, "y", sample_weight="w")
    assert checkpoint.exists()
    found = calibrator.fit(on_dask, "y", sample_weight="w")
    assert not checkpoint.exists()
    assert [one.trees for one in found.history_.rounds] == [one.trees for one in expected.history_.rounds]
    assert found.history_.loss_after == pytest.approx(expected.history_.loss_after, rel=1e-9)
    np.testing.assert_allclose(found.predict(frame), expected.predict(frame), rtol=1e-9)
    assert (found.model_.about.rows, found.model_.schema) == (1500, expected.model_.schema)


def test_frames_of_another_engine_and_other_methods_are_rejected(on_dask):
    with pytest.raises(ArgumentError, match=r"engine='spark' does not take a dask"):
        tu.MCGrad("p", engine="spark").fit(on_dask, "y")
    with pytest.raises(ArgumentError, match=r"Isotonic takes rows in memory; got a Dask DataFrame"):
        tu.Isotonic("p").fit(on_dask, "y")
