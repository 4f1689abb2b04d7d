"""Workers on two hosts, which are network namespaces: same numbers as on one host, lost hosts, and lost packets."""

from __future__ import annotations

import json
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import checks
import trueup as tu
from host_process import PARAMETERS, QUICK, as_json, make_table, make_work
from hosts import two_hosts
from remote import run_local_workers

MAIN = "import host_process; host_process.main()"
PATIENCE = 100  # seconds until a step must be done; the machine may be busy


def wait_for(condition, processes, directory):
    """Wait until a condition holds; fail with the output of the processes."""
    until = time.monotonic() + PATIENCE
    while not condition():
        outputs = {path.name: path.read_text()[-3000:] for path in directory.glob("output*")}
        assert time.monotonic() < until, outputs
        assert not any(process.poll() for process in processes), outputs
        time.sleep(0.05)


class HostRun:
    """The processes of a test on two hosts, and the directory that they share."""

    def __init__(self, hosts, directory):
        self.hosts, self.directory, self.processes = hosts, directory, []

    def start(self, host, *words, python=True, **variables):
        """Start a process, of Python by default, on a host."""
        output = self.directory / f"output-{len(self.processes)}"
        command = [sys.executable, *words] if python else words
        self.processes.append(self.hosts.start(host, *command, output=output, **variables))

    def start_workers(self, mode):
        for rank, other in enumerate(reversed(self.hosts.addresses)):
            self.start(rank, "-c", MAIN, mode, str(self.directory), str(rank), other)

    def fits(self):
        """Return the number of fits that each worker has done."""
        paths = [self.directory / f"model-{rank}" for rank in range(2)]
        return [json.loads(path.read_text())["count"] if path.exists() else 0 for path in paths]

    def wait_for_fits(self, more):
        """Wait until both workers have done more fits."""
        count = max(self.fits()) + more
        wait_for(lambda: min(self.fits()) >= count, self.processes, self.directory)

    def lose_packets(self, seconds):
        """Lose all packets for some seconds, in which no fit can be done."""
        self.hosts.drop_packets()
        time.sleep(0.5)  # for what was on its way
        before = self.fits()
        time.sleep(seconds - 0.5)
        assert max(np.subtract(self.fits(), before)) <= 1
        self.hosts.deliver_packets()

    def kill_host(self):
        """Let the second host disappear; return the time."""
        self.hosts.kill_host(1)
        del self.processes[1]
        return time.time()

    def result(self, rank):
        path = self.directory / f"result-{rank}"
        wait_for(path.exists, self.processes, self.directory)
        return json.loads(path.read_text())


@pytest.fixture
def host_run(tmp_path):
    """Two hosts, whose processes end with the test."""
    with two_hosts() as hosts:
        yield HostRun(hosts, tmp_path)


def test_two_hosts_fit_the_model_of_one_host_survive_lost_packets_and_report_a_lost_host(host_run, tmp_path):
    host_run.start_workers("worker")
    host_run.wait_for_fits(1)
    host_run.lose_packets(2)
    host_run.wait_for_fits(2)
    found = [json.loads((tmp_path / f"model-{rank}").read_text()) for rank in range(2)]
    killed = host_run.kill_host()
    result = host_run.result(0)
    assert result["lost"] - killed < QUICK.silent + 20
    assert result["error"].startswith("the process of worker 1 of 2 lost the connection to another: worker 2 of 2 ")
    assert "resume=" in result["error"]
    assert result["hosts"] == list(host_run.hosts.addresses)

    few = make_table().take(np.arange(2))
    expected = json.loads(as_json(run_local_workers([[few], [few]], make_work())))
    assert [one | {"count": 0} for one in found] == [expected | {"count": 0}] * 2
    assert expected["rows"] == [300, 300]
    assert expected["difference"] == 0.0


@pytest.mark.repeated(0, 1)
def test_a_fit_on_two_hosts_survives_20_seconds_of_lost_packets(host_run, repetitions):
    if not repetitions:
        pytest.skip("takes a minute: run it with --full")
    host_run.start_workers("patient")  # with the default timeouts
    host_run.wait_for_fits(1)
    host_run.lose_packets(20)
    host_run.wait_for_fits(2)
    first = json.loads((host_run.directory / "model-0").read_text())
    assert first["difference"] == 0.0


def test_dask_on_two_hosts_fits_the_model_of_files_and_reports_a_lost_host(host_run, tmp_path):
    scheduler, _ = host_run.hosts.addresses
    for host in range(2):
        (tmp_path / f"dask-{host}").mkdir()
        host_run.start(
            host, "-m", "distributed.cli.dask_worker", f"tcp://{scheduler}:8786", "--nthreads", "1",
            "--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path / f"dask-{host}"),
        )  # fmt: skip
    host_run.start(0, "-c", MAIN, "dask", str(tmp_path), scheduler)
    check_cluster(host_run, tmp_path)


@pytest.mark.repeated(0, 1)
def test_spark_on_two_hosts_fits_the_model_of_files_and_reports_a_lost_host(host_run, tmp_path, repetitions):
    if not repetitions:
        pytest.skip("five Java processes take minutes: run it with --full")
    require_java()
    home = Path(pytest.importorskip("pyspark").__file__).parent
    master, _ = host_run.hosts.addresses
    java = [str(home / "bin" / "spark-class"), "org.apache.spark.deploy"]
    for host, address in enumerate([master, *host_run.hosts.addresses]):
        name = "master.Master" if host == 0 else "worker.Worker"
        words = ["--host", address, "--webui-port", "0"]
        words += (
            ["--port", "7077"]
            if host == 0
            else ["--cores", "1", "--memory", "600m", "--work-dir", str(tmp_path / f"work-{host}")]
        )
        words += [f"spark://{master}:7077"] if host else []
        host_run.start(
            max(host - 1, 0), java[0], f"{java[1]}.{name}", *words, python=False, SPARK_LOCAL_IP=address, SPARK_HOME=str(home),
            SPARK_DAEMON_MEMORY="256m", SPARK_LOCAL_DIRS=str(tmp_path), PYSPARK_PYTHON=sys.executable,
        )  # fmt: skip
    host_run.processes[1:] = [host_run.processes[2], host_run.processes[1]]  # that of the second host is the second
    host_run.start(
        0, "-c", MAIN, "spark", str(tmp_path), master, SPARK_LOCAL_IP=master, PYSPARK_PYTHON=sys.executable,
        PYSPARK_DRIVER_PYTHON=sys.executable, SPARK_LOCAL_DIRS=str(tmp_path),
    )  # fmt: skip
    check_cluster(host_run, tmp_path)


def require_java():
    """Skip the test without Java."""
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs Java 17")


def check_cluster(host_run, tmp_path):
    """Compare the fit of a cluster on both hosts with that of a file; let a host disappear during the next."""
    wait_for((tmp_path / "fitted").exists, host_run.processes, tmp_path)
    wait_for(lambda: min(host_run.fits()) > 0, host_run.processes, tmp_path)
    killed = host_run.kill_host()
    result = host_run.result(0)
    assert {address.rpartition(":")[0].rpartition("/")[2] for address in result["workers"]} == set(host_run.hosts.addresses)
    assert result["lost"] - killed < QUICK.silent + 40
    assert "worker" in result["error"]
    assert "resume=" in result["hint"]

    path = tmp_path / "rows.parquet"
    rows = pd.DataFrame(checks.rows("binary", 1500)).astype({"day": "datetime64[ns]"})
    rows.to_parquet(path)
    expected = tu.MCGrad("p", **PARAMETERS, stopping=tu.CrossValidation(2)).fit(tu.scan(str(path)), "y")
    assert result["trees"] == [one.trees for one in expected.history_.rounds]
    np.testing.assert_allclose(result["scores"], expected.predict(rows), rtol=1e-9)
