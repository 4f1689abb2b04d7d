"""Run the benchmarks, then write the evidence page from their figures.

    python bench/run.py [--only null,power]     quick versions, to build/evidence/
    python bench/run.py --record                the same, and keeps the time of the quick versions in bench/results/
    python bench/run.py --full [--only ...]     full versions, to bench/results/ and docs/evidence.md

Quick versions have few repetitions, seeds or rows: they show that every benchmark runs and what it reports, not what it
measures in full. Benchmarks run one after another, each in a process of its own whose output goes to a file; one that
fails is reported at the end. Real data are read from TRUEUP_DATA, or ../shared/data. A run of all quick versions keeps
their times in results/run.json, from which the page states how long it takes.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).parent
BUILD = HERE.parent / "build" / "evidence"


class Bench(NamedTuple):
    """One benchmark: the arguments of every command of its quick run (none: only measured in full) and of its full run."""

    name: str
    quick: tuple[str, ...] = ("",)
    full: tuple[str, ...] = ("",)


BENCHES = (
    Bench("null", ("--repetitions 10",), ("--repetitions 400 --peer",)),
    Bench("power", ("--repetitions 5",), ("--repetitions 100",)),
    Bench("validity", ("--repetitions 5",)),
    Bench("real_outcomes", ("--repetitions 5",)),
    Bench("clusters", ("--repetitions 5",)),
    Bench("materiality", ("--repetitions 10",)),
    Bench("monitor", ("--runs 20 --looks 100 --rows 200000",)),
    Bench("plan", ("--repetitions 200 --quick",)),
    Bench("audit"),
    Bench("bound", ("--repetitions 20",)),
    Bench("metrics"),
    Bench(
        "quality",
        ("--seeds 1 --only adult-logistic,crime", "--seeds 1 --only adult-logistic,crime --chance"),
        ("", "--chance"),
    ),
    Bench("imports"),
    Bench("mcgrad", ("--rows 20000", "--real --only adult-logistic"), ("", "--real")),
    Bench("harm", ("--seeds 4 --rare-seeds 1 --most 1000",)),
    Bench("small", ("--seeds 2",)),
    Bench("classes", ("--seeds 2 --only CIFAR-10",)),
    Bench("prior", ("--repetitions 20",)),
    Bench("lsboost", ("--rows 6000",)),
    Bench("surfaces", ("--rows 20000 --levels 50 --most 30",)),
    Bench("depthtwo", ("--quick",)),
    Bench("isotonic"),
    Bench("local"),
    Bench("cifar", ("--seeds 2",)),
    Bench("crime", ("--quick",)),
    Bench("decide", ("--repetitions 20",)),
    Bench("claims", ("--repetitions 20",)),
    Bench("roc", ("--quick",)),
    Bench("agnostic", ("--quick",)),
    Bench("abstain", ("--seeds 2",)),
    Bench("omni", ("--seeds 1",)),
    Bench("scale", ("--rows 1",)),
    Bench("predict", ("--rows 1 --repeat 1",)),
    Bench("cluster", ("--rows 50000",)),
    Bench("sizing", ()),
    Bench("size"),
    Bench("start", ("--repeat 1",)),
    Bench("exports", ("--rows 20000 --speed-rows 20000 --cases tables",)),
)


def cpu_seconds() -> float:
    """Return the CPU time of all benchmarks that have ended, and of their own processes."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def run(bench: Bench, full: bool, folder: Path) -> tuple[bool, int]:
    """Run the commands of a benchmark; return whether all succeeded, and how many figures missed their bar."""
    environment = dict(os.environ)
    if not full:
        environment["TRUEUP_QUICK_EVIDENCE"] = str(BUILD)
    log = folder / f"{bench.name}.txt"
    with log.open("w") as output:
        for arguments in bench.full if full else bench.quick:
            command = [sys.executable, str(HERE / f"{bench.name}.py"), *arguments.split()]
            done = subprocess.run(command, stdout=output, stderr=subprocess.STDOUT, env=environment, check=False)
            if done.returncode:
                break
    missed = sum(line.startswith("  FAILS ") for line in log.read_text().splitlines())
    return done.returncode == 0, missed


def keep_times(times: dict[str, tuple[float, float]], record: bool) -> None:
    """Write the seconds and CPU seconds of every quick benchmark, also to the results of the page if ``record``."""
    path = BUILD / "results" / "run.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    found = {
        "seconds": round(sum(seconds for seconds, _ in times.values())),
        "cpu_seconds": round(sum(used for _, used in times.values())),
        "cores": len(os.sched_getaffinity(0)),
        "benches": {name: {"seconds": round(own[0], 1), "cpu_seconds": round(own[1], 1)} for name, own in times.items()},
    }
    path.write_text(json.dumps(found, indent=2) + "\n")
    if record:
        shutil.copy(path, HERE / "results" / "run.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--only", default="", help="names of benchmarks, separated by commas")
    parser.add_argument("--record", action="store_true", help="keep the time of all quick versions in bench/results/")
    arguments = parser.parse_args()
    if arguments.record and (arguments.full or arguments.only):
        raise SystemExit("--record keeps the time of all quick versions: it excludes --full and --only")
    known = [bench.name for bench in BENCHES if arguments.full or bench.quick]
    names = arguments.only.split(",") if arguments.only else known
    if unknown := set(names) - set(known):
        raise SystemExit(f"no benchmark named {', '.join(sorted(unknown))}")
    folder = BUILD / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    failed, times, start = [], {}, time.perf_counter()
    for bench in BENCHES:
        if bench.name in names:
            begun, used = time.perf_counter(), cpu_seconds()
            succeeded, missed = run(bench, arguments.full, folder)
            seconds, used = time.perf_counter() - begun, cpu_seconds() - used
            times[bench.name] = seconds, used
            remark = f"{missed} figures miss their bar" if missed else ""
            print(
                f"{bench.name:14} {seconds:7.1f} s {used:7.1f} s CPU  {'' if succeeded else 'FAILED '}{remark}", flush=True
            )
            if not succeeded:
                failed.append(bench.name)
    if not (arguments.full or arguments.only or failed):
        keep_times(times, arguments.record)
    environment = {**os.environ, **({} if arguments.full else {"TRUEUP_QUICK_EVIDENCE": str(BUILD)})}
    subprocess.run([sys.executable, str(HERE / "evidence.py")], env=environment, check=True)
    print(f"{time.perf_counter() - start:.0f} s, {cpu_seconds():.0f} s CPU; outputs in {os.path.relpath(folder)}")
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}")


if __name__ == "__main__":
    main()
