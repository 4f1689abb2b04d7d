"""Fit, score and audit in the parent and then in processes that it starts in several ways; print what each computed.

Arguments: a Parquet file, then the ways, of `WAYS`. A process that does not answer in time is killed: "no answer".
"""

from __future__ import annotations

import functools
import hashlib
import json
import multiprocessing
import os
import signal
import sys
import threading
import time

SECONDS = 100.0  # for all processes of one way
FORKED = 2  # processes that work at once, as the workers of a server do


def results(path: str) -> dict[str, str]:
    """Return a digest of all that is computed from the rows of a file: fits, scores, audits, a matrix product."""
    import numpy as np
    import pyarrow.parquet as pq

    import trueup as tu

    frame = pq.read_table(path)
    roles = {"outcome": "outcome", "prediction": "prediction", "by": ["region", "age"]}
    quick = {"rounds": 1, "trees": 20, "stopping": tu.CrossValidation(2)}
    fix = tu.MCGrad("prediction", ["region", "age"], threads=2, random_state=0, **quick).fit(frame, "outcome")
    audit = tu.audit(frame, **roles, threads=2)
    scanned = tu.audit(tu.scan(path, memory="400MB", threads=2), **roles, threads=2)
    square = np.sin(np.arange(90_000.0)).reshape(300, 300)
    computed = {
        "scores": fix.predict(frame),
        "one": np.array([fix.predict_one({"prediction": 0.2, "region": "north", "age": 40})]),
        "audit": audit.columns["sigma"],
        "files": scanned.columns["sigma"],
        "product": np.rint(square @ square),  # whose last bits depend on the threads of BLAS
    }
    return {name: hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest() for name, array in computed.items()}


def _pooled(method: str, path: str) -> list[object]:
    """Return what the processes of a pool compute."""
    count = FORKED if method == "fork" else 1
    with multiprocessing.get_context(method).Pool(count) as pool:  # which ends its processes
        running = [pool.apply_async(results, (path,)) for _ in range(count)]
        deadline = time.monotonic() + SECONDS
        return [_answer(lambda work=work: work.get(max(deadline - time.monotonic(), 0))) for work in running]


def _loky(path: str) -> list[object]:
    """Return what a process of joblib computes."""
    import joblib

    run = joblib.Parallel(n_jobs=2, backend="loky", timeout=SECONDS)
    return _answer(lambda: run(joblib.delayed(results)(path) for _ in range(2))) or ["no answer"]  # type: ignore[return-value]


def _preload(path: str) -> list[object]:
    """Return what several processes compute that are forked from a thread of one that has fitted, as gunicorn's are."""
    answers: list[object] = []
    thread = threading.Thread(target=lambda: answers.extend(_forked(path)))
    thread.start()
    thread.join()
    return answers


def _forked(path: str) -> list[object]:
    pipes = {}
    for _ in range(FORKED):
        read_end, write_end = os.pipe()
        process = os.fork()
        if process == 0:
            os.close(read_end)
            signal.alarm(int(SECONDS))
            os.write(write_end, json.dumps(results(path)).encode())
            os._exit(0)
        os.close(write_end)
        pipes[process] = read_end
    answers: list[object] = []
    for process, read_end in pipes.items():
        with open(read_end, "rb") as stream:  # noqa: PTH123
            content = stream.read()
        os.waitpid(process, 0)
        answers.append(json.loads(content) if content else "no answer")
    return answers


def _answer(get: object) -> object:
    try:
        return get()  # type: ignore[operator]
    except (multiprocessing.TimeoutError, TimeoutError):
        return "no answer"


WAYS = {
    **{method: functools.partial(_pooled, method) for method in ("fork", "spawn", "forkserver")},
    "loky": _loky,
    "preload": _preload,
}

if __name__ == "__main__":
    given, *ways = sys.argv[1:]
    known = {"parent": [results(given)]}
    for way in ways:
        known[way] = WAYS[way](given)
    sys.stdout.write(json.dumps(known))
