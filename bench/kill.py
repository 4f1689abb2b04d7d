"""Kill audits, fits and predictions of files at random moments, and look at what they leave behind.

    python bench/kill.py [--moments 50] [--rows 30000] [--seed 0] [--only fit]
    python bench/kill.py --quick

Each command runs once to its end, for its duration, and is then killed at random moments of it, by SIGTERM and by SIGKILL.
After each, its input must be unchanged, and its output the old file or the new one, complete. After SIGTERM nothing else
may be left, and the exit code must be 143; after SIGKILL only names of trueup, which the next start must remove. The
outcomes are counted; the exit code is 1 if anything else happened.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

OWN = ("trueup-", ".trueup-")
OLD = b"old"
ROLES = ["--outcome", "outcome", "--prediction", "prediction"]
COUNTS = ("moments", "old", "new", "left until the next start")
SIGNALS = {"TERM": signal.SIGTERM, "KILL": signal.SIGKILL}


class Case(NamedTuple):
    """A command, and the file that it writes."""

    name: str
    words: list[str]
    output: str


class Place(NamedTuple):
    """The directories of input, outputs and temporary files."""

    data: Path
    outputs: Path
    temporary: Path


CASES = [
    Case("audit", ["audit", "{data}/rows.parquet", *ROLES, "--memory", "400MB", "-o", "{out}/audit.json"], "audit.json"),
    Case("fit", ["fit", "{data}/rows.parquet", *ROLES, "--memory", "1GB", "-o", "{out}/fix.trueup"], "fix.trueup"),
    Case(
        "predict",
        ["predict", "{data}/fix.trueup", "{data}/rows.parquet", "--memory", "400MB", "-o", "{out}/scored.parquet"],
        "scored.parquet",
    ),
]


def main() -> int:
    """Run all cases and print what they left; return 1 if one left something that it must not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--moments", type=int, default=50, help="moments of each command and signal")
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", choices=[case.name for case in CASES])
    parser.add_argument("--quick", action="store_true", help="three moments")
    arguments = parser.parse_args()
    cases = [case for case in CASES if arguments.only in (None, case.name)]
    moments = 3 if arguments.quick else arguments.moments
    with tempfile.TemporaryDirectory(prefix="kill-") as folder:
        result = measure(Path(folder), moments, arguments.rows, arguments.seed, cases)
    print(json.dumps(result, indent=1))
    return 1 if any(counts["failures"] for counts in result.values()) else 0


def measure(folder: Path, moments: int, rows: int, seed: int, cases: list[Case]) -> dict[str, dict[str, object]]:
    """Kill each command at ``moments`` moments by each signal; return counts by command and signal."""
    place = Place(folder / "data", folder / "outputs", folder / "temporary")
    for directory in place:
        directory.mkdir()
    _make_input(place, rows)
    draw, result = random.Random(seed), {}
    for case in cases:
        seconds = _duration(case, place)
        for name, number in SIGNALS.items():
            counts: dict[str, object] = dict.fromkeys(COUNTS, 0)
            failures: list[str] = []
            while int(str(counts["moments"])) < moments:
                seconds = _strike(case, place, number, draw.random() * seconds, counts, failures) or seconds
                print(case.name, name, counts, failures, file=sys.stderr)
            result[f"{case.name} {name}"] = {**counts, "seconds": round(seconds, 2), "failures": failures}
    return result


def _make_input(place: Place, rows: int) -> None:
    """Write rows and a model that corrects them."""
    code = (
        "import sys, duckdb, trueup as tu\n"
        "data = dict(tu.simulate.lending(int(sys.argv[2]), seed=1))\n"
        "data = {name: data[name] for name in ('outcome', 'prediction', 'region', 'product', 'age')}\n"
        "duckdb.sql(f\"COPY (FROM data) TO '{sys.argv[1]}/rows.parquet'\")\n"
        "tu.save(tu.Platt('prediction').fit(data, 'outcome'), sys.argv[1] + '/fix.trueup')\n"
    )
    subprocess.run([sys.executable, "-c", code, str(place.data), str(rows)], check=True)


def _start(case: Case, place: Place) -> subprocess.Popen[bytes]:
    (place.outputs / case.output).write_bytes(OLD)
    words = [word.format(data=place.data, out=place.outputs) for word in case.words]
    return subprocess.Popen(
        [sys.executable, "-m", "trueup", *words, "--quiet"],
        stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env={**os.environ, "TMPDIR": str(place.temporary)},
    )  # fmt: skip


def _duration(case: Case, place: Place) -> float:
    """Return how many seconds a command takes once its kernels are compiled; raise if it fails."""
    for _ in range(2):
        start = time.perf_counter()
        with _start(case, place) as process:
            _, errors = process.communicate()
        if process.returncode:
            raise RuntimeError(f"{case.name} exits with code {process.returncode}: {errors.decode()}")
        seconds = time.perf_counter() - start
    return seconds


def _strike(
    case: Case, place: Place, number: int, moment: float, counts: dict[str, object], failures: list[str]
) -> float | None:  # fmt: skip
    """Kill a command after ``moment`` seconds; count its output, and add what must not be to ``failures``.

    Return its duration if it has ended before that moment, which is not counted.
    """
    before = _digests(place.data)
    start = time.perf_counter()
    with _start(case, place) as process:
        try:
            process.wait(moment)
        except subprocess.TimeoutExpired:
            process.send_signal(number)
        else:  # the machine is less busy than when the duration was measured
            return time.perf_counter() - start
        _, errors = process.communicate()
    where = f"{case.name}, signal {number} after {moment:.3f} s"
    content = (place.outputs / case.output).read_bytes()
    _add(counts, "moments")
    _add(counts, "old" if content == OLD else "new")
    if content != OLD and not _is_complete(case, place):
        failures.append(f"{where}: its output is neither old nor complete")
    if process.returncode not in (0, -number, 128 + number):
        failures.append(f"{where}: exit code {process.returncode}: {errors.decode()[-300:]}")
    if _digests(place.data) != before:
        failures.append(f"{where}: its input changed")
    left = _left(case, place)
    if left and (number == signal.SIGTERM or not all(name.startswith(OWN) for name in left)):
        failures.append(f"{where}: it left {left}")
    _add(counts, "left until the next start", bool(left))
    if left:
        with _start(case, place) as process:
            process.communicate()
        if left := _left(case, place):
            failures.append(f"{where}: the next start left {left}")
    return None


def _add(counts: dict[str, object], name: str, more: bool = True) -> None:
    counts[name] = int(str(counts[name])) + more


def _digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def _left(case: Case, place: Place) -> list[str]:
    """Return the names of what is in the directories of outputs and temporary files, except for the output."""
    known = {case.output, *(other.output for other in CASES)}
    return sorted(path.name for folder in place[1:] for path in folder.iterdir() if path.name not in known)


def _is_complete(case: Case, place: Place) -> bool:
    """Return whether the output can be read to its end."""
    path = place.outputs / case.output
    if path.suffix == ".json":
        return "findings" in json.loads(path.read_text("utf-8"))
    if path.suffix == ".parquet":
        content = path.read_bytes()
        return content[:4] == content[-4:] == b"PAR1"
    import trueup as tu

    tu.load(path)  # raises unless all checksums are right
    return True


if __name__ == "__main__":
    sys.exit(main())
