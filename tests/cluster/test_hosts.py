"""Workers on two hosts, which are network namespaces: same numbers as on one host, lost hosts, and lost packets."""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pandas as pd
import pytest

import checks
import trueup as tu
from host_process import PARAMETERS, QUICK, STOP, make_table, make_work
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

    def start(self, host, *words):
        output = self.directory / f"output-{len(self.processes)}"
        self.processes.append(self.hosts.start(host, sys.executable, *words, output=output))

    def start_workers(self, mode="worker"):
        for rank in range(2):
            self.start(rank, "-c", MAIN, mode, str(self.directory), str(rank), self.hosts.addresses[1 - rank])

    def fits(self):
        """Return how many fits each worker has done."""
        texts = [path.read_text() if path.exists() else "" for path in (self.directory / f"fits-{rank}" for rank in range(2))]
        return [int(text or 0) for text in texts]

    def wait_for_fits(self, more):
        count = max(self.fits()) + more
        wait_for(lambda: min(self.fits()) >= count, self.processes, self.directory)

    def result(self, rank):
        path = self.directory / f"result-{rank}"
        wait_for(path.exists, self.processes, self.directory)
        return json.loads(path.read_text())


@pytest.fixture
def host_run(tmp_path):
    """Two hosts, whose processes end with the test."""
    with two_hosts() as hosts:
        yield HostRun(hosts, tmp_path)


def on_one_host(directory):
    """Return the result of the same two workers on this host."""
    few = make_table().take(np.arange(2))
    result = run_local_workers([[few], [few]], make_work(directory, repeat=False))
    return json.loads(json.dumps(result, default=lambda value: np.asarray(value).tolist()))


def test_workers_on_two_hosts_survive_lost_packets_and_fit_the_model_of_one_host(host_run, tmp_path):
    host_run.start_workers()
    host_run.wait_for_fits(1)
    host_run.hosts.drop_packets()
    time.sleep(0.5)  # what was on its way
    before = host_run.fits()
    time.sleep(1.5)
    assert max(np.subtract(host_run.fits(), before)) <= 1, "no fit can be done without the other host"
    host_run.hosts.deliver_packets()
    host_run.wait_for_fits(2)
    (tmp_path / STOP).touch()
    first, second = host_run.result(0), host_run.result(1)
    assert first["hosts"] == second["hosts"] == list(host_run.hosts.addresses)
    (tmp_path / "one").mkdir()
    assert first["result"] == on_one_host(tmp_path / "one")
    assert first["result"]["fit"]["difference"] == 0.0


def test_a_worker_whose_host_disappears_is_reported(host_run):
    host_run.start_workers()
    host_run.wait_for_fits(1)
    host_run.hosts.kill_host(1)
    began = time.monotonic()
    del host_run.processes[1]
    result = host_run.result(0)
    assert time.monotonic() - began < QUICK.silent + 30
    assert "the process of worker 1 of 2 lost the connection to another" in result["error"]
    assert "worker 2 of 2" in result["error"]
    assert "resume=" in result["error"]


def test_dask_on_two_hosts_fits_the_model_of_files_and_reports_a_lost_host(host_run, tmp_path):
    for host, address in enumerate(host_run.hosts.addresses):
        (tmp_path / f"dask-{host}").mkdir()
        host_run.start(
            host, "-m", "distributed.cli.dask_worker", f"tcp://{host_run.hosts.addresses[0]}:8786", "--nthreads", "1",
            "--no-nanny", "--no-dashboard", "--local-directory", str(tmp_path / f"dask-{host}"), "--host", address,
        )  # fmt: skip
    host_run.start(0, "-c", MAIN, "dask", str(tmp_path), host_run.hosts.addresses[0])
    wait_for((tmp_path / "fitted").exists, host_run.processes, tmp_path)
    host_run.wait_for_fits(0 if max(host_run.fits()) else 1)
    host_run.hosts.kill_host(1)
    lost = time.time()
    del host_run.processes[1]
    result = host_run.result(0)
    assert result["lost"] - lost < 60
    assert "worker" in result["error"]
    assert "resume=" in result["hint"]

    path = tmp_path / "rows.parquet"
    rows = pd.DataFrame(checks.rows("binary", 1500)).astype({"day": "datetime64[ns]"})
    rows.to_parquet(path)
    expected = tu.MCGrad("p", **PARAMETERS, stopping=tu.CrossValidation(2, patience=2)).fit(tu.scan(str(path)), "y")
    assert result["trees"] == [one.trees for one in expected.history_.rounds]
    np.testing.assert_allclose(result["scores"], expected.predict(rows), rtol=1e-9)
