"""What the benchmarks share: peers in environments of their own, timing, results on disk."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Path(__file__).parent
# Quick runs (run.py) write to a folder of their own, so that they never replace the figures of full runs.
QUICK = os.environ.get("TRUEUP_QUICK_EVIDENCE")
RESULTS = Path(QUICK) / "results" if QUICK else HERE / "results"
PICTURES = Path(QUICK) / "pictures" if QUICK else HERE.parent / "docs" / "pictures"
ENVIRONMENTS = HERE.parent / ".bench"
# What each peer needs, one list a pip call: mcgrad pulls a GPU build of torch unless the plain one is there before it.
PEERS = {
    "mcgrad": [["torch==2.13.0"], ["mcgrad==0.1.5", "pyarrow"]],
    "relplot": [["relplot"]],
    "netcal": [["torch==2.13.0"], ["netcal"]],
    "probmetrics": [["torch==2.13.0"], ["probmetrics==1.3.0", "numba"]],
}


def peer(name: str) -> Path:
    """Give the Python of an environment that holds one peer, made on first use."""
    place = ENVIRONMENTS / name
    python = place / "bin" / "python"
    if not (place / ".ready").exists():
        print(f"installing {name} into {place.relative_to(HERE.parent)} ...", flush=True)
        subprocess.run([sys.executable, "-m", "venv", "--clear", str(place)], check=True)
        for packages in PEERS[name]:
            subprocess.run([str(python), "-m", "pip", "install", "--quiet", *packages], check=True)
        (place / ".ready").touch()
    return python


def run_peer(name: str, script: str, *arguments: str) -> Any:
    """Run a script of bench/peers in the peer's environment; it prints JSON on its last line."""
    environment = {**os.environ, "PYTHONWARNINGS": "ignore"}
    command = [str(peer(name)), str(HERE / "peers" / script), *arguments]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
    return json.loads(done.stdout.splitlines()[-1])


def seconds(work: Callable[[], Any], repeat: int = 5) -> float:
    """Time some work: the best of several runs, the one least disturbed by whatever else the machine does."""
    times = []
    for _ in range(repeat):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return min(times)


def fresh(code: str, *, repeat: int = 3, environment: dict[str, str] | None = None) -> float:
    """Time a command in a fresh process: the best of several runs."""
    run = [sys.executable, "-c", code]
    return seconds(lambda: subprocess.run(run, check=True, env={**os.environ, **(environment or {})}), repeat)


def save(name: str, figures: dict[str, Any]) -> None:
    """Write the figures of one benchmark, with what they were measured on."""
    RESULTS.mkdir(parents=True, exist_ok=True)
    machine = {"python": platform.python_version(), "cores": len(os.sched_getaffinity(0)), "system": platform.system()}
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({**figures, "machine": machine}, indent=2) + "\n")
    print(f"figures in {os.path.relpath(path, HERE.parent)}")


EARLIER = "by an earlier version"


def measured_again(figures: dict[str, Any], parts: set[str]) -> None:
    """Take some parts of the figures from the list of those that an earlier version of the fit gave."""
    left = [part for part in figures.pop(EARLIER, []) if part not in parts]
    if left:
        figures[EARLIER] = left


def check(name: str, value: float, bar: float, *, at_most: bool) -> dict[str, Any]:
    """Hold a figure against its bar, and say so."""
    holds = value <= bar if at_most else value >= bar
    print(f"  {'holds ' if holds else 'FAILS '} {name}: {value:.4g} ({'at most' if at_most else 'at least'} {bar:.4g})")
    return {"value": value, "bar": bar, "at_most": at_most, "holds": bool(holds)}
