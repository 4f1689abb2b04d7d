"""Generate inputs for some minutes, and keep those that break a rule: `make fuzz`, or python -m fuzz.run --minutes 10.

Each target runs in a process of its own, which writes every input to a file before it is tried: if the process crashes or
hangs, that input is kept, and another process continues. Inputs that fail are written to the corpus, and the tests fail
until they are mended.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import hashlib
import json
import os
import secrets
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

CORPUS = Path(__file__).with_name("corpus")
ROOT = Path(__file__).parents[2]
MEMORY_DISK = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None  # every input is written to a file
SHARES = {"model": 3, "frame": 3, "text": 2, "query": 2, "command": 3}  # of the time
HANG_SECONDS = 120  # for one input, which takes milliseconds; kernels may have to be compiled first
MEMORY_BYTES = 24 << 30  # of addresses, most of which the threads of DuckDB and numba reserve and never use
BATCH = 400  # inputs that Hypothesis generates before it starts afresh
SHRINK_SECONDS = 20.0
MAX_FAILURES = 20  # of one target: then something is wrong with the target itself
CHILD = ["-m", "fuzz.run", "--child"]
INPUT, STATE, TRACE = "input.json", "state.json", "trace.txt"


def corpus():
    """Return the corpus: for each name of a file, the kind of the target and the input."""
    entries = {path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted(CORPUS.glob("*.json"))}
    return {name: (entry["kind"], entry["input"]) for name, entry in entries.items()}


def keep(kind, given, failure, directory=CORPUS):
    """Write an input that failed to the corpus, named by its content."""
    text = json.dumps(given, sort_keys=True)
    path = directory / f"{kind}-{hashlib.sha256(text.encode()).hexdigest()[:10]}.json"
    path.write_text(json.dumps({"kind": kind, "failure": failure, "input": given}, indent=1) + "\n", encoding="utf-8")
    return path


def describe(error):
    """Return an error and the place in this repository where it was raised: what tells two failures apart."""
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if "trueup" in frame.filename]
    ours = [frame for frame in frames if "/tests/" not in frame.filename] or frames
    place = f"{Path(ours[-1].filename).name}:{ours[-1].name}" if ours else "?"
    text = f": {error}" if type(error).__name__ == "RuleViolationError" else ""
    return f"{type(error).__name__} in {place}{text[:1500]}"


class Examiner:
    """Inputs of one target, tried in this process; the smallest input of every failure."""

    def __init__(self, kind, directory, trace=None):
        self.kind, self.directory, self._trace = kind, Path(directory), trace
        self.counts = Counter()
        self.failures = {}
        self._marks = set()  # of the inputs so far
        self._shrink_until = None
        self._written = 0.0
        self.until = float("inf")

    def try_input(self, given):
        """Try an input; raise only the first time that a failure appears, so that Hypothesis reduces the input."""
        from fuzz.targets import examine

        if time.monotonic() > self.until:
            return  # Hypothesis ends the batch soon
        (self.directory / INPUT).write_text(json.dumps(given), encoding="utf-8")
        self.counts["tried"] += 1
        self.counts["distinct"] += (mark := hash(json.dumps(given, sort_keys=True))) not in self._marks
        self._marks.add(mark)
        if self._trace is not None:
            faulthandler.dump_traceback_later(HANG_SECONDS - 20, file=self._trace)
        failure = None
        try:
            self.counts["refused"] += bool(examine(self.kind, given))
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, SystemExit)):
                raise
            failure = error
        finally:
            faulthandler.cancel_dump_traceback_later()
        if time.monotonic() - self._written > 1:
            self.write_state()
        if failure is not None:
            self._note_failure(given, failure)

    def _note_failure(self, given, error):
        name = describe(error)
        key, size = name[:90], len(json.dumps(given))
        known = self.failures.get(key)
        if known is None or size < known["size"]:
            trace = "".join(traceback.format_exception(error))[-4000:]
            self.failures[key] = {"input": given, "failure": name, "size": size, "trace": trace}
        if known is None:
            self._shrink_until = time.monotonic() + SHRINK_SECONDS
        if self._shrink_until is not None and time.monotonic() < self._shrink_until:
            raise AssertionError(name) from error  # a panic of Rust is no Exception

    def run_batch(self, number, count=BATCH):
        """Let Hypothesis generate some inputs."""
        import hypothesis

        from fuzz.inputs import STRATEGIES

        settings = hypothesis.settings(
            max_examples=count, deadline=None, database=None, derandomize=False, report_multiple_bugs=False, print_blob=False,
            suppress_health_check=list(hypothesis.HealthCheck),
            phases=[hypothesis.Phase.generate, hypothesis.Phase.shrink],
        )  # fmt: skip
        test = hypothesis.seed(number)(settings(hypothesis.given(STRATEGIES[self.kind])(self.try_input)))
        # What failed is noted; Hypothesis reports it again, or calls it flaky since it fails only once.
        with contextlib.suppress(Exception), contextlib.redirect_stdout(None):
            test()
        self._shrink_until = None

    def write_state(self):
        """Write the counts and failures for the parent process."""
        self._written = time.monotonic()
        temporary = self.directory / f"{STATE}.new"
        temporary.write_text(json.dumps({"counts": self.counts, "failures": self.failures}), encoding="utf-8")
        temporary.replace(self.directory / STATE)


def run_child(kind, seconds, number, directory):
    """Try inputs of one kind for some seconds."""
    import resource

    from fuzz.targets import prepare

    trace = (Path(directory) / TRACE).open("w")
    faulthandler.enable(trace)
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    rows = Path(directory) / "rows"
    rows.mkdir()
    os.chdir(rows)
    prepare(rows)
    examiner = Examiner(kind, directory, trace)
    examiner.until = time.monotonic() + seconds
    while time.monotonic() < examiner.until and len(examiner.failures) < MAX_FAILURES:
        examiner.run_batch(number)
        number += 1
    examiner.write_state()


def run_kind(kind, seconds, number):
    """Try inputs of one kind in child processes; return the counts and the failures."""
    counts, failures, began = Counter(), {}, time.monotonic()
    while (left := seconds - (time.monotonic() - began)) > 1 and len(failures) < MAX_FAILURES:
        with tempfile.TemporaryDirectory(prefix="fuzz-", dir=MEMORY_DISK, ignore_cleanup_errors=True) as directory:
            reason = watch_child(kind, left, number, Path(directory))
            state = Path(directory, STATE)
            result = json.loads(state.read_text(encoding="utf-8")) if state.exists() else {"counts": {}, "failures": {}}
            counts.update(result["counts"])
            failures |= result["failures"]
            given = Path(directory, INPUT)
            if reason and not given.exists():
                raise RuntimeError(f"the process of target {kind} failed: {Path(directory, 'output').read_text()[-3000:]}")
            if reason:
                trace = Path(directory, TRACE).read_text()[-4000:] + Path(directory, "output").read_text()[-2000:]
                failure = {"input": json.loads(given.read_text(encoding="utf-8")), "failure": reason, "trace": trace}
                failures[f"{reason} {len(failures)}"] = failure
        number += 10_000
    return counts, failures


def watch_child(kind, seconds, number, directory):
    """Run a child until it ends; return how it failed, or an empty text."""
    given = directory / INPUT
    command = [sys.executable, *CHILD, kind, str(seconds), str(number), str(directory)]
    (directory / "tmp").mkdir()
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "2", "TMPDIR": str(directory / "tmp")}
    environment["PYTHONPATH"] = os.pathsep.join([str(ROOT / "src"), str(ROOT / "tests")])
    with (directory / "output").open("w") as output:
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    status = child.wait(1)
                    return "" if status == 0 else f"the process ended with status {status}"
                stamp = given.stat().st_mtime if given.exists() else None
                if stamp is not None and time.time() - stamp > HANG_SECONDS:
                    return f"no result within {HANG_SECONDS} s"
        finally:
            child.kill()
            child.wait()


def main(argv=None):
    """Run the targets, print a table, and return 1 if one has failed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--only", choices=list(SHARES), action="append", help="of these targets (default: all)")
    parser.add_argument("--processes", type=int, default=1, help="targets that run at the same time")
    parser.add_argument("--seed", type=int, default=None, help="by default another one each time")
    parser.add_argument("--corpus", type=Path, default=CORPUS, help="the directory of inputs that failed")
    options = parser.parse_args(argv)
    kinds = options.only or list(SHARES)
    number = secrets.randbelow(10**9) if options.seed is None else options.seed
    total = sum(SHARES[kind] for kind in kinds)
    seconds = {kind: options.minutes * 60 * min(options.processes, len(kinds)) * SHARES[kind] / total for kind in kinds}
    print(f"seed {number}", flush=True)
    with ThreadPoolExecutor(options.processes) as pool:
        runs = {kind: pool.submit(run_kind, kind, seconds[kind], number) for kind in kinds}
        results = {kind: run.result() for kind, run in runs.items()}
    print(f"{'target':10}{'seconds':>9}{'inputs':>10}{'distinct':>10}{'refused':>10}{'failed':>8}")
    for kind, (counts, failures) in results.items():
        print(
            f"{kind:10}{seconds[kind]:>9.0f}{counts['tried']:>10,}{counts['distinct']:>10,}{counts['refused']:>10,}{len(failures):>8}"
        )
    every = Counter()
    for counts, _ in results.values():
        every.update(counts)
    failed = [(kind, failure) for kind, (_, failures) in results.items() for failure in failures.values()]
    print(
        f"{'all':10}{sum(seconds.values()):>9.0f}{every['tried']:>10,}{every['distinct']:>10,}{every['refused']:>10,}{len(failed):>8}"
    )
    for kind, failure in failed:
        path = keep(kind, failure["input"], failure["failure"], options.corpus)
        print(f"\n{path}: {failure['failure']}\n{failure['trace']}")
    return 1 if failed or not every["tried"] else 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        run_child(sys.argv[2], float(sys.argv[3]), int(sys.argv[4]), sys.argv[5])
    else:
        sys.exit(main())
