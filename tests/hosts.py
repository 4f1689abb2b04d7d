"""Two hosts on one machine: network namespaces with an address each, joined by a cable that can lose packets."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

NOWHERE = "02:00:00:00:00:fe"  # the hardware address of no interface: frames sent to it are dropped without an error


class TwoHosts:
    """Two network namespaces, connected by a pair of virtual interfaces; a context manager that always removes them."""

    def __init__(self):
        label = f"tu{os.getpid():x}{secrets.token_hex(2)}"
        third = secrets.randbelow(254) + 1
        self.names = (f"{label}a", f"{label}b")
        self.addresses = (f"10.213.{third}.1", f"10.213.{third}.2")
        self.processes = []

    def __enter__(self):
        try:
            for name in self.names:
                ip("netns", "add", name)
                ip("-n", name, "link", "set", "lo", "up")
            first, second = self.names
            ip("-n", first, "link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second)
            for name, address in zip(self.names, self.addresses, strict=True):
                ip("-n", name, "address", "add", f"{address}/24", "dev", "cable")
                ip("-n", name, "link", "set", "cable", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        for name in self.names:
            listed = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
            for number in listed.stdout.split():  # children in sessions of their own
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(number), signal.SIGKILL)
            subprocess.run(["ip", "netns", "delete", name], capture_output=True, check=False)

    def start(self, host, *words, output, **variables):
        """Start a process on a host; its standard output and error go to a file."""
        with Path(output).open("w") as stream:
            process = subprocess.Popen(
                ["ip", "netns", "exec", self.names[host], *words],
                stdin=subprocess.DEVNULL, stdout=stream, stderr=stream, start_new_session=True,
                env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"} | variables,
            )  # fmt: skip
        self.processes.append(process)
        return process

    def drop_packets(self):
        """Lose every packet between the hosts, in both directions, as a broken switch does."""
        for name, address in zip(self.names, reversed(self.addresses), strict=True):
            ip("-n", name, "neighbour", "replace", address, "lladdr", NOWHERE, "dev", "cable", "nud", "permanent")

    def deliver_packets(self):
        """Deliver packets again."""
        for name, address in zip(self.names, reversed(self.addresses), strict=True):
            ip("-n", name, "neighbour", "delete", address, "dev", "cable")

    def kill_host(self, host):
        """Disconnect a host, then kill all its processes: no connection is closed, as after a power failure."""
        self.drop_packets()
        listed = subprocess.run(["ip", "netns", "pids", self.names[host]], capture_output=True, text=True, check=True)
        for number in listed.stdout.split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(number), signal.SIGKILL)


def ip(*words):
    """Run ip of iproute2."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError(f"ip {' '.join(words)}: {done.stderr.strip()}")


def two_hosts():
    """Return two hosts; skip the test, in CI too, where namespaces are not allowed; fail in CI if only `ip` is missing."""
    if shutil.which("ip") is None:
        reason = "network namespaces need the command ip (Debian: apt-get install iproute2)"
        if os.environ.get("CI"):
            pytest.fail(reason)
        pytest.skip(reason)
    try:
        with TwoHosts():
            pass
    except OSError as error:
        pytest.skip(f"network namespaces are not allowed here: {error}")
    return TwoHosts()
