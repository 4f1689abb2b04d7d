"""Measure monitors: false alarms over many looks, delayed outcomes, rows to detection, speed and the size of the state.

python bench/monitor.py [--runs 20] [--looks 250] [--rows-per-look 200] [--rows 1000000]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import trueup as tu
from common import check, save

ALPHA = 0.05
MATURITY = 90
START = np.datetime64("1975-01-06")
LEVELS = 5
REFERENCE_ROWS = 10_000


def columns(rng: np.random.Generator, rows: int, count: int) -> dict[str, Any]:
    """Return columns of categories."""
    texts = np.array([f"v{k}" for k in range(LEVELS)])
    return {f"c{j}": texts[rng.integers(0, LEVELS, rows)] for j in range(count)}


def scores(rng: np.random.Generator, rows: int, prevalence: float) -> Any:
    """Return scores around a prevalence."""
    return 1 / (1 + np.exp(-(np.log(prevalence / (1 - prevalence)) + 0.7 * rng.normal(size=rows))))


def calibrated(seed: int, looks: int, rows: int, prevalence: float) -> tuple[bool, int]:
    """Return whether a monitor of a calibrated stream ever raises an alarm, and its number of segments."""
    rng = np.random.default_rng(seed)
    n = looks * rows
    p = scores(rng, n, prevalence)
    y = (rng.random(n) < p).astype(float)
    data = {**columns(rng, n, 3), "p": p, "y": y, "day": START + np.repeat(np.arange(looks), rows)}
    data |= {"x": rng.normal(size=n), "z": rng.normal(size=n)}
    by = ["c0", "c1", "c2", "x", "z"]
    first = {name: column[:REFERENCE_ROWS] for name, column in data.items()}
    monitor = tu.Monitor(outcome="y", prediction="p", by=by, time="day", bins=5, period="1 day")
    report = monitor.start(first).update(data, threads=1)
    return bool(report.alarms), report.segments


def false_alarms(runs: int, looks: int, rows: int) -> list[dict[str, Any]]:
    """Count calibrated streams that ever raise an alarm."""
    found = []
    for prevalence in (0.5, 0.05, 0.005):
        answers = [calibrated(seed, looks, rows, prevalence) for seed in range(runs)]
        alarms, segments = sum(alarm for alarm, _ in answers), answers[0][1]
        found.append({"prevalence": prevalence, "runs": runs, "looks": looks, "rows": rows, "segments": segments,
                      "alarms": alarms, "share": alarms / runs})  # fmt: skip
        print(f"calibrated, prevalence {prevalence:g}: {alarms} of {runs} ever alarm ({segments} segments)", flush=True)
    return found


def delayed(seed: int, *, by_arrival: bool) -> bool:
    """Return whether a monitor of calibrated scores alarms if events are known early, and others at their maturity."""
    rng = np.random.default_rng(seed)
    n = 20_000
    day = np.sort(rng.integers(0, 364, n))
    p = scores(rng, n, 0.05)
    y = (rng.random(n) < p).astype(float)
    arrival = day + np.where(y == 1, np.minimum(rng.exponential(20.0, n), MATURITY), MATURITY).astype(int)
    data = {**columns(rng, n, 2), "p": p, "y": y, "day": START + (arrival if by_arrival else day)}
    settings = {"maturity": 0 if by_arrival else MATURITY, "time": "day", "by": ["c0", "c1"]}
    monitor = tu.Monitor(outcome="y", prediction="p", **settings)
    now = START + 364 + MATURITY
    return bool(monitor.update(data, now=now, threads=1).alarms)


def fixed_rows(prevalence: float, share: float, seed: int, segment: str) -> float:
    """Return how many rows of the segment an audit of all of them finds O/E 1.2 with, with 80% power, by its MDE."""
    rng = np.random.default_rng(seed)
    data, by = planted(rng, 60_000, prevalence, share, 1.0)
    finding = tu.audit(data, outcome="y", prediction="p", by=by)[segment]
    return float(finding.n * (finding.mde / (0.2 * finding.expected)) ** 2)


def planted(
    rng: np.random.Generator, rows: int, prevalence: float, share: float, ratio: Any
) -> tuple[dict[str, Any], list[str]]:
    """Return rows of which a share, the segment s=bad, has observed/expected of ``ratio``."""
    p = np.minimum(scores(rng, rows, prevalence), 0.8)
    bad = rng.random(rows) < share
    y = (rng.random(rows) < p * np.where(bad, ratio, 1.0)).astype(float)
    rest = np.array(["a", "b", "c"])[rng.integers(0, 3, rows)]
    data = {**columns(rng, rows, 3), "s": np.where(bad, "bad", rest), "p": p, "y": y}
    return data, ["s", "c0", "c1", "c2"]


def rows_to_detection(seed: int, prevalence: float, share: float, weekly: int, onset: int, weeks: int) -> float:
    """Return the rows of the segment from the onset of its error to the alarm."""
    rng = np.random.default_rng(seed)
    week = np.repeat(np.arange(weeks), weekly)
    data, by = planted(rng, len(week), prevalence, share, np.where(week >= onset, 1.2, 1.0))
    data["day"] = START + 7 * week
    monitor = tu.Monitor(outcome="y", prediction="p", by=by, time="day")
    monitor.start({name: column[: 52 * weekly] for name, column in data.items()})
    monitor.update(data, threads=1)
    state = monitor.state
    at = state.segments.labels.index("s=bad")
    raised = int(state.processes.alarm[at])
    assert state.clock.first is not None
    last = weeks if raised < 0 else raised - state.clock.first + 1
    return float(((data["s"] == "bad") & (week >= onset) & (week < last)).sum())


def detection(runs: int) -> list[dict[str, Any]]:
    """Compare the rows that a monitor and a fixed audit need."""
    found = []
    prevalence, share, weekly = 0.2, 0.05, 1_000
    fixed = fixed_rows(prevalence, share, 0, "s=bad")
    for name, onset, weeks in (("from the start", 0, 240), ("from week 52", 52, 300)):
        needed = [rows_to_detection(seed, prevalence, share, weekly, onset, weeks) for seed in range(runs)]
        multiple = float(np.mean(needed)) / fixed
        found.append({"onset": name, "prevalence": prevalence, "share": share, "runs": runs, "fixed": fixed,
                      "mean": float(np.mean(needed)), "multiple": multiple,
                      "standard_error": float(np.std(needed) / np.sqrt(runs) / fixed)})  # fmt: skip
        print(f"O/E 1.2 {name}: {np.mean(needed):,.0f} rows, {multiple:.2f} times a fixed audit's {fixed:,.0f}", flush=True)
    return found


def speed(rows: int) -> dict[str, Any]:
    """Measure an audit, and start and update of a monitor, on the same rows; CPU time is not disturbed by other work."""
    rng = np.random.default_rng(0)
    texts = np.array([f"v{k}" for k in range(10)])
    data = {f"c{j}": texts[rng.integers(0, 10, rows)] for j in range(6)}
    data |= {f"x{j}": rng.normal(size=rows) for j in range(6)}
    by = list(data)
    p = scores(rng, rows, 0.1)
    data |= {"p": p, "y": (rng.random(rows) < p).astype(float)}
    data["day"] = START + np.sort(rng.integers(0, 364, rows))
    few = {name: column[:120_000] for name, column in data.items()}
    tu.audit(few, outcome="y", prediction="p", by=by)  # compiles the kernels
    tu.Monitor(outcome="y", prediction="p", by=by, time="day").update(few)
    found: dict[str, Any] = {"rows": rows, "columns": len(by)}
    monitor = tu.Monitor(outcome="y", prediction="p", by=by, time="day")
    for name, work in (
        ("audit", lambda: tu.audit(data, outcome="y", prediction="p", by=by)),
        ("start", lambda: monitor.start(data)),
        ("update", lambda: monitor.update(data)),
    ):
        wall, cpu = time.perf_counter(), time.process_time()
        work()
        found[name] = {"seconds": time.perf_counter() - wall, "cpu": time.process_time() - cpu}
    found["segments"] = len(monitor.state.segments)
    found["times_audit"] = (found["start"]["cpu"] + found["update"]["cpu"]) / found["audit"]["cpu"]
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "m.watch"
        monitor.save(path)
        found["state_bytes"] = path.stat().st_size
    found["state_bytes_10000"] = found["state_bytes"] / found["segments"] * 10_000
    print(f"{rows:,} rows x {len(by)}: audit {found['audit']['cpu']:.1f} s CPU, start {found['start']['cpu']:.1f}, update "
          f"{found['update']['cpu']:.1f}: {found['times_audit']:.2f} audits; state {found['state_bytes'] / 1e6:.1f} MB of "
          f"{found['segments']:,} segments", flush=True)  # fmt: skip
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--looks", type=int, default=10_000)
    parser.add_argument("--rows-per-look", type=int, default=40)
    parser.add_argument("--rows", type=int, default=1_000_000)
    arguments = parser.parse_args()
    runs = arguments.runs
    found: dict[str, Any] = {"runs": runs, "speed": speed(arguments.rows), "detection": detection(max(runs // 4, 3))}
    found["delays"] = {
        name: sum(delayed(seed, by_arrival=by_arrival) for seed in range(runs)) / runs
        for name, by_arrival in (("maturity", False), ("arrival", True))
    }
    print(f"outcome-dependent delays: {found['delays']}", flush=True)
    found["calibrated"] = false_alarms(runs, arguments.looks, arguments.rows_per_look)
    limit = ALPHA + 2 * np.sqrt(ALPHA * (1 - ALPHA) / runs)
    measured = {
        **{f"calibrated, prevalence {cell['prevalence']:g}: share that ever alarms": (cell["share"], limit)
           for cell in found["calibrated"]},
        "outcomes delayed, by maturity: share that ever alarms": (found["delays"]["maturity"], limit),
        **{f"observed/expected 1.2 {cell['onset']}: rows to detection, times a fixed audit": (cell["multiple"], 2.0)
           for cell in found["detection"]},
        "start and update: CPU time, times that of an audit": (found["speed"]["times_audit"], 3.0),
        "state of 10,000 segments, MB": (found["speed"]["state_bytes_10000"] / 1e6, 10.0),
    }  # fmt: skip
    found["checks"] = {name: check(name, value, bar, at_most=True) for name, (value, bar) in measured.items()}
    save("monitor", found)


if __name__ == "__main__":
    main()
