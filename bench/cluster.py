"""Compare Spark and Dask with one machine: the same findings, fits and scores; how long audits take.

    python bench/cluster.py [--rows 1000000] [--only spark dask] [--audits]

``--audits`` measures audits in 64 partitions alone, and writes no results.

Loans are simulated, written to Parquet, and audited, fitted and scored in memory, from files, on Dask and on Spark with two
workers of one thread each on this machine. The figures go to bench/results/cluster.json.
"""

from __future__ import annotations

import argparse
import contextlib
import logging
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

import trueup as tu
from common import check, save

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROLES = {"outcome": "outcome", "prediction": "prediction"}
BY = ["region", "product", "employment", "age", "income"]
# Fixed edges, so that all engines have the same bins: of a million rows a cluster takes quantiles of a sample.
BINS = {"age": [20, 25, 30, 35, 40, 45, 50, 60, 70], "income": [1000, 1300, 1600, 1900, 2200, 2600, 3000, 4000]}
PARTITIONS = (2, 8, 64)


@contextlib.contextmanager
def dask(workers: int) -> Iterator[Callable[[Path, int], Any]]:
    """Start Dask; give what reads a file in so many partitions."""
    import dask.dataframe as dd
    from distributed import Client, LocalCluster

    with (
        LocalCluster(
            n_workers=workers, threads_per_worker=1, dashboard_address=None, silence_logs=logging.ERROR
        ) as cluster,
        Client(cluster),
    ):
        yield lambda path, parts: dd.from_pandas(pd.read_parquet(path), npartitions=parts).persist()


@contextlib.contextmanager
def spark(workers: int) -> Iterator[Callable[[Path, int], Any]]:
    """Start Spark; give what reads a file in so many partitions."""
    from pyspark.sql import SparkSession

    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    settings = {
        "spark.ui.enabled": "false",
        "spark.sql.shuffle.partitions": "8",
        "spark.driver.memory": "3g",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master(f"local[{workers}]")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    try:
        yield lambda path, parts: session.read.parquet(str(path)).repartition(parts).cache()
    finally:
        session.stop()


def timed(work: Callable[[], Any]) -> tuple[Any, float]:
    start = time.perf_counter()
    found = work()
    return found, time.perf_counter() - start


def apart(here: tu.Audit, there: tu.Audit) -> dict[str, float]:
    """Return the largest differences between the findings of an audit in memory and those of a cluster."""
    one, two = (pd.DataFrame(audit.to_frame()).set_index("segment") for audit in (here, there))
    missing = len(one.index.symmetric_difference(two.index))
    one = one[one["testable"]]
    two = two.reindex(one.index)
    shares = [(one[of] - two[of]).abs() / one[of].abs().clip(1e-12) for of in ("n", "observed", "expected", "ecce")]
    return {
        "segments_missing": float(missing),
        "sums": max(float(share.max()) for share in shares),
        "sigma": float((one["sigma"] - two["sigma"]).abs().max()),
        "p_adjusted": float((one["p_adjusted"] - two["p_adjusted"]).abs().max()),
        "rejected": float(there.rejected),
    }


def loss(fix: tu.MCGrad, data: Any) -> float:
    """Return the log loss of rows that no model was fitted on."""
    return tu.metrics.log_loss(data["outcome"].to_numpy(), fix.predict(data))


def measure(engine: Any, path: Path, fresh: Any, here: tu.Audit, model: Any) -> dict[str, Any]:
    """Audit, fit and score on a cluster."""
    found: dict[str, Any] = {"audits": {}}
    with engine(2) as read:
        tu.audit(read(path, 2), **ROLES, by=BY, bins=BINS)  # compiles the kernels
        for parts in PARTITIONS:
            audit, seconds = timed(lambda parts=parts: tu.audit(read(path, parts), **ROLES, by=BY, bins=BINS))
            found["audits"][parts] = {"seconds": seconds, **apart(here, audit)}
        fix, seconds = timed(lambda: tu.MCGrad("prediction", BY).fit(read(path, 2), "outcome"))
        found["fit"] = {"seconds": seconds, "loss": loss(fix, fresh), "trees": sum(r.trees for r in fix.history_.rounds)}
        frame = read(path, 8)
        found["predict"] = {"apart": scores_apart(model, frame, path)}
    with engine(1) as read:
        tu.audit(read(path, 2), **ROLES, by=BY, bins=BINS)
        found["audit_alone"] = timed(lambda: tu.audit(read(path, 8), **ROLES, by=BY, bins=BINS))[1]
    found["audit_pair"] = found["audits"][8]["seconds"]
    return found


def scores_apart(model: Any, frame: Any, path: Path) -> float:
    """Give the largest difference between the scores of a cluster and of this machine."""
    data = pd.read_parquet(path)
    here = pd.Series(model.predict(data), index=data["key"].to_numpy()).sort_index()
    there = model.predict(frame)
    if hasattr(there, "toPandas"):
        name = next(column for column in there.columns if column not in frame.columns)
        rows = there.select("key", name).toPandas()
        other = pd.Series(rows[name].to_numpy(), index=rows["key"].to_numpy()).sort_index()
    else:
        other = pd.Series(there.compute().to_numpy(), index=frame["key"].compute().to_numpy()).sort_index()
    return float(np.abs(here.to_numpy() - other.to_numpy()).max())


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--only", nargs="+", default=["dask", "spark"])
    parser.add_argument("--audits", action="store_true")
    given = parser.parse_args()
    warnings.simplefilter("ignore")
    data = pd.DataFrame(tu.simulate.lending(given.rows, seed=3)).drop(columns="truth")
    data["key"] = np.arange(len(data))
    fresh = pd.DataFrame(tu.simulate.lending(200_000, seed=4))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "loans.parquet"
        data.to_parquet(path)
        here, seconds = timed(lambda: tu.audit(data, **ROLES, by=BY, bins=BINS))
        if given.audits:
            print(f"memory: {seconds:.1f} s", flush=True)
            for name in given.only:
                with globals()[name](2) as read:
                    tu.audit(read(path, 2), **ROLES, by=BY, bins=BINS)  # compiles the kernels
                    audit, more = timed(lambda: tu.audit(read(path, 64), **ROLES, by=BY, bins=BINS))
                    print(f"{name}: {more:.1f} s, {more / seconds:.1f} times memory, {apart(here, audit)}", flush=True)
            return
        local, fit_seconds = timed(lambda: tu.MCGrad("prediction", BY).fit(data, "outcome"))
        scan, scan_seconds = timed(lambda: tu.MCGrad("prediction", BY).fit(tu.scan(path, memory="2GB"), "outcome"))
        found: dict[str, Any] = {
            "rows": given.rows, "columns": len(BY),
            "memory": {"audit": seconds, "fit": fit_seconds, "loss": loss(local, fresh)},
            "files": {"fit": scan_seconds, "loss": loss(scan, fresh)},
        }  # fmt: skip
        engines = {name: globals()[name] for name in given.only}
        for name, engine in engines.items():
            found[name] = measure(engine, path, fresh, here, local.model_)
            print(name, found[name], flush=True)
    best = found["files"]["loss"]
    bars = {}
    for name in engines:
        one = found[name]
        audits = one["audits"].values()
        bars |= {
            f"{name}: segments missing": check(
                "segments missing", sum(audit["segments_missing"] for audit in audits), 0, at_most=True
            ),
            f"{name}: largest difference of a sigma": check(
                "sigma", max(audit["sigma"] for audit in audits), 1e-9, at_most=True
            ),
            f"{name}: audit in 64 partitions, times an audit in memory": check(
                "times memory", one["audits"][64]["seconds"] / found["memory"]["audit"], 10, at_most=True
            ),
            f"{name}: held-out loss, from that of files": check(
                "loss", abs(one["fit"]["loss"] / best - 1), 1e-3, at_most=True
            ),
            f"{name}: scores, largest difference": check("scores", one["predict"]["apart"], 1e-12, at_most=True),
        }
    bars["files: held-out loss, from that of memory"] = check(
        "loss", abs(best / found["memory"]["loss"] - 1), 1e-3, at_most=True
    )
    save("cluster", found | {"bars": bars})


if __name__ == "__main__":
    main()
