"""How soon does a fresh process answer? Import, load and first score of every map, and the first audit.

    python bench/start.py [--repeat 5] [--only MCGrad]

Each run is a process of its own, with an empty cache directory or with one that `trueup warm` filled: the best of several
runs, in seconds and in CPU seconds (other work on the machine lengthens the former). All answers must be equal to the bit.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

import numpy as np

import trueup as tu
from common import check, save

if TYPE_CHECKING:
    from collections.abc import Callable

ROWS, AUDITED, SMALL = 20_000, 10_000, 100
TIMES = ("seconds", "cpu", "load", "first")
FEATURES = ["region", "product", "employment", "age", "income", "term"]
BARS = {  # seconds: with an empty cache, and with a filled one
    "predict_one": (1.0, 0.6),
    "audit": (3.0, 1.0),
}
SCORE = """
import sys, time, json
start = time.perf_counter()
import trueup as tu
model = tu.load(sys.argv[1])
loaded = time.perf_counter()
row = json.loads(sys.argv[2])
answer = model.predict_one(row)
first = time.perf_counter()
model.predict_one(row)
second = time.perf_counter()
print(json.dumps({"load": loaded - start, "first": first - loaded, "second": second - first,
                  "numba": "numba" in sys.modules,
                  "answer": [float(p).hex() for p in (answer if hasattr(answer, "__len__") else [answer])]}))
"""
FRAME = """
import sys, time, json
start = time.perf_counter()
import numpy as np
import trueup as tu
model = tu.load(sys.argv[1])
columns = {name: np.array(values) for name, values in json.loads(sys.argv[2]).items()}
loaded = time.perf_counter()
answer = model.predict(columns)
first = time.perf_counter()
print(json.dumps({"load": loaded - start, "first": first - loaded, "numba": "numba" in sys.modules,
                  "answer": [float(p).hex() for p in answer.ravel()]}))
"""
AUDIT = """
import sys, time, json, warnings
warnings.simplefilter("ignore")
start = time.perf_counter()
import numpy as np
import trueup as tu
data = dict(np.load(sys.argv[1], allow_pickle=True))
loaded = time.perf_counter()
audit = tu.audit(data, outcome="outcome", prediction="prediction")
first = time.perf_counter()
print(json.dumps({"load": loaded - start, "first": first - loaded, "numba": "numba" in sys.modules,
                  "answer": [len(audit), *(f"{x.segment} {x.p_value.hex()} {x.sigma.hex()}" for x in audit.worst(50))]}))
"""


def models() -> dict[str, tuple[Callable[[], Any], str]]:
    """Return by name how to fit each map, and the data it is fitted to."""
    one, by = "prediction", ["region", "product"]
    return {
        "MCGrad, tables": (lambda: tu.MCGrad(one, FEATURES, depth=2, stopping=None, rounds=1), "loans"),
        "MCGrad, trees, 3 rounds": (
            lambda: tu.MCGrad(one, FEATURES, depth=None, leaves=16, trees=30, stopping=None, rounds=3),
            "loans",
        ),
        "MCGrad, default": (lambda: tu.MCGrad(one, FEATURES), "loans"),
        "DepthTwo": (lambda: tu.DepthTwo(one, FEATURES, saturation=False), "loans"),
        "LSBoost": (lambda: tu.LSBoost(one, FEATURES), "loans"),
        "HKRR": (lambda: tu.HKRR(one, by), "loans"),
        "Multiaccuracy": (lambda: tu.Multiaccuracy(one, by), "loans"),
        "Isotonic": (lambda: tu.Isotonic(one), "loans"),
        "Platt": (lambda: tu.Platt(one), "loans"),
        "Temperature, classes": (lambda: tu.Temperature(["p_a", "p_b", "p_c"]), "classes"),
        "Grouped Platt": (lambda: tu.Grouped(tu.Platt(), by=by[:1], prediction=one), "loans"),
        "LoRe": (lambda: tu.LoRe(one, ["age", "income"]), "loans"),
        "LoRe, one feature": (lambda: tu.LoRe(one, ["age"]), "loans"),
        "LoRe, 2 large bins": (lambda: tu.LoRe(one, ["age", "income"], bins=2), "loans"),
        "Auto": (lambda: tu.Auto(one, FEATURES), "loans"),
    }


def data_of(kind: str) -> dict[str, Any]:
    """Simulate loans with planted errors, or scores of three classes that are too far from 1/3."""
    if kind == "loans":
        data = dict(tu.simulate.lending(ROWS, seed=0))
        return {name: values for name, values in data.items() if name not in ("truth", "opened")}
    random = np.random.default_rng(0)
    scores = random.normal(size=(ROWS, 3))
    true, shown = (np.exp(factor * scores) for factor in (1.0, 1.8))
    true, shown = true / true.sum(axis=1, keepdims=True), shown / shown.sum(axis=1, keepdims=True)
    outcome = (random.random(ROWS)[:, None] > true.cumsum(axis=1)).sum(axis=1)
    return {**dict(zip(("p_a", "p_b", "p_c"), shown.T, strict=True)), "outcome": np.array(["a", "b", "c"])[outcome]}


def run(code: str, cache: str, *arguments: str) -> dict[str, Any]:
    """Run code in a fresh process; return what it prints, its seconds and its CPU seconds."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": cache}
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=True, stdout=subprocess.PIPE, text=True, env=environment
    )
    wall, used = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    return {"seconds": wall, "cpu": cpu, **json.loads(done.stdout.splitlines()[-1])}


def warm(cache: str) -> dict[str, Any]:
    """Fill a cache directory by `trueup warm`; return the time that takes, the number of kernels and their bytes."""
    start = time.perf_counter()
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "trueup", "warm", "--cache", cache, "--quiet"], check=True)
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = used.ru_utime + used.ru_stime - before.ru_utime - before.ru_stime
    kernels = list(Path(cache).rglob("*.kernel"))
    size = sum(path.stat().st_size for path in kernels)
    return {"seconds": time.perf_counter() - start, "cpu": cpu, "kernels": len(kernels), "bytes": size}


def measure(name: str, code: str, repeat: int, filled: str, *arguments: str) -> dict[str, Any]:
    """Return the best times with an empty cache and with a filled one; raise if answers differ."""
    cold, warmed = [], []
    for _ in range(repeat):
        with tempfile.TemporaryDirectory() as empty:
            cold.append(run(code, empty, *arguments))
        warmed.append(run(code, filled, *arguments))
    answers = {str(one["answer"]) for one in (*cold, *warmed)}
    if len(answers) > 1:
        raise AssertionError(f"{name}: answers differ: {answers}")
    times = {
        kind: {
            **{key: min(one[key] for one in runs) for key in ("seconds", "cpu", "load", "first")},
            "numba": runs[0]["numba"],
        }
        for kind, runs in (("cold", cold), ("warm", warmed))
    }
    shown = ", ".join(f"{kind} {one['seconds']:.2f} s ({one['cpu']:.2f} CPU; first {one['first'] * 1e3:.1f} ms"
                      f"{', numba' if one['numba'] else ''})" for kind, one in times.items())  # fmt: skip
    print(f"{name:<28} {shown}", flush=True)
    return times


def checks(figures: dict[str, Any]) -> dict[str, Any]:
    """Hold the times against their bars."""
    groups = {"predict_one": figures["one"], "audit": {"": figures["audit"]}}
    found = {}
    for at, (kind, cache) in enumerate((("cold", "empty"), ("warm", "filled"))):
        for what, group in groups.items():
            for unit, text in (("seconds", "seconds"), ("cpu", "CPU seconds")):
                slowest = "slowest map, " if len(group) > 1 else ""
                title = f"fresh process to first {what}, {cache} cache, {slowest}{text}"
                worst = max(times[kind][unit] for times in group.values())
                found[title] = check(title, worst, BARS[what][at], at_most=True)
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--models", type=Path, help="a directory to keep the fitted models in, or to read them from")
    arguments = parser.parse_args()
    figures: dict[str, Any] = {"rows": ROWS, "audited": AUDITED, "small": SMALL, "one": {}, "frame": {}}
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as filled:
        if not arguments.only:
            figures["warm"] = warm(filled)
            print(figures["warm"], flush=True)
        place = arguments.models or Path(made)
        place.mkdir(exist_ok=True)
        for name, (make, kind) in models().items():
            if arguments.only not in name:
                continue
            data, path = data_of(kind), place / f"{name}.trueup"
            if not path.exists():
                outcome = data["outcome"]
                fix = make().fit({column: values for column, values in data.items() if column != "outcome"}, outcome)
                tu.save(fix, path)
            inputs = {column: values[:SMALL].tolist() for column, values in data.items() if column != "outcome"}
            row = json.dumps({column: values[0] for column, values in inputs.items()})
            figures["one"][name] = measure(name, SCORE, arguments.repeat, filled, str(path), row)
            if name.startswith(("MCGrad", "LoRe")):
                figures["frame"][name] = measure(
                    f"  {SMALL} rows", FRAME, arguments.repeat, filled, str(path), json.dumps(inputs)
                )
        if arguments.only in "audit":
            data = {name: values[:AUDITED] for name, values in data_of("loans").items()}
            np.savez(place / "loans.npz", **data)
            figures["audit"] = measure("audit", AUDIT, arguments.repeat, filled, str(place / "loans.npz"))
    if arguments.only or arguments.repeat < 5:
        return
    figures["checks"] = checks(figures)
    save("start", figures)


if __name__ == "__main__":
    main()
