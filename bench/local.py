"""Speed of local sums: beside scipy's and torch's distances on the same number of rows, and how it grows with the rows.

python bench/local.py [--card]

All rows are in one bin, the hardest case: every pair counts. ``--card`` measures a graphics card instead (trueup[gpu]),
beside torch.cdist on the same card, whose time for all rows is that of its first blocks times their number.
"""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from common import check, run_peer, save, seconds
from trueup.metrics.local import lce

ROWS, DIMENSIONS, GAMMA = 25_000, 50, 0.4
BLOCK = 500
REPEAT = 3
TIMES_FASTER = 20
CPU_SECONDS, LARGE, SMALL = 10.0, 1_000_000, 100_000
CARD_ROWS, CARD_FASTER, CARD_BLOCK, CARD_BLOCKS = 1_000_000, 50, 1_024, 8
CARD_SIZES = {(CARD_ROWS, 50): 1.0, (CARD_ROWS, 128): 2.5, (CARD_ROWS, 3): 0.25, (10_000_000, 3): 5.0}  # and seconds
CLOSE = 1e-6
LOOKED_AT = 50  # rows held against the definition


def data(rows: int, dimensions: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(seed)
    confidence = random.uniform(0.54, 0.59, rows)  # all of one bin
    return random.normal(size=(rows, dimensions)), confidence, (random.random(rows) < confidence).astype(float)


def definition(phi: np.ndarray, residual: np.ndarray, at: int, gamma: float) -> float:
    near = np.exp(-np.abs(phi - phi[at]).sum(axis=1) / (phi.shape[1] * gamma))
    return abs(float(near @ residual / near.sum()))


def error(found: np.ndarray, phi: np.ndarray, confidence: np.ndarray, hit: np.ndarray, gamma: float) -> float:
    """Give the largest error among some rows."""
    rows = np.random.default_rng(1).choice(len(phi), LOOKED_AT, replace=False)
    return max(abs(found[at] - definition(phi, confidence - hit, at, gamma)) for at in rows)


def with_scipy(phi: np.ndarray, residual: np.ndarray, gamma: float) -> np.ndarray:
    from scipy.spatial.distance import cdist

    columns = np.column_stack([np.ones(len(phi)), residual])
    parts = []
    for start in range(0, len(phi), BLOCK):
        far = cdist(phi[start : start + BLOCK], phi, "cityblock")
        parts.append(np.exp(-far / (phi.shape[1] * gamma)) @ columns)
    total = np.concatenate(parts)
    return np.abs(total[:, 1] / total[:, 0])


def beside_peers() -> tuple[dict, dict]:
    phi, confidence, hit = data(ROWS, DIMENSIONS)

    def ours() -> np.ndarray:
        return lce(phi, confidence, hit, gamma=GAMMA)

    found = ours()  # compiled before it is timed
    theirs = with_scipy(phi, confidence - hit, GAMMA)
    figures = {
        "rows": ROWS, "dimensions": DIMENSIONS, "gamma": GAMMA,
        "ours_s": seconds(ours, REPEAT),
        "scipy_s": seconds(lambda: with_scipy(phi, confidence - hit, GAMMA), 1),
        "difference": float(np.abs(found - theirs).max()),
    }  # fmt: skip
    scale = 1 / (DIMENSIONS * GAMMA)
    figures["torch"] = run_peer("mcgrad", "cdist.py", str(ROWS), str(DIMENSIONS), str(scale), "1")
    figures["ours_s"] = min(figures["ours_s"], seconds(ours, REPEAT))
    torch = min(figures["torch"]["float32"], figures["torch"]["float64"])
    title = f"{ROWS:,} rows, {DIMENSIONS} dimensions: "
    checks = {
        title + "times faster than scipy's cdist": (figures["scipy_s"] / figures["ours_s"], TIMES_FASTER, False),
        title + "times faster than torch.cdist": (torch / figures["ours_s"], TIMES_FASTER, False),
        title + "largest difference to scipy's": (figures["difference"], CLOSE, True),
    }
    return figures, {name: check(name, value, bar, at_most=most) for name, (value, bar, most) in checks.items()}


CHILD = """
import json, sys, time, tracemalloc
sys.path.insert(0, {here!r})
from local import GAMMA, data, error, lce
rows, dimensions = int(sys.argv[1]), int(sys.argv[2])
lce(*data(5_000, dimensions), gamma=GAMMA)
given, times = data(rows, dimensions), []
for _ in range(3):
    cpu, wall = time.process_time(), time.perf_counter()
    found = lce(*given, gamma=GAMMA)
    times.append((time.perf_counter() - wall, time.process_time() - cpu))
tracemalloc.start()
lce(*given, gamma=GAMMA)
memory = tracemalloc.get_traced_memory()[1]
wall, cpu = (min(column) for column in zip(*times))
print(json.dumps(dict(s=wall, cpu_s=cpu, bytes_a_row=memory / rows, error=error(found, *given, GAMMA))))
"""


def growth() -> tuple[dict, dict]:
    """Measure each size in a process of its own, so that memory is its own too."""
    figures: dict = {}
    for dimensions in (1, 2, 3):
        for rows in (10_000, SMALL, 300_000, LARGE):
            code = CHILD.format(here=str(Path(__file__).parent))
            command = [sys.executable, "-c", code, str(rows), str(dimensions)]
            best = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout)
            figures.setdefault(f"{dimensions} dimensions", {})[f"{rows:,} rows"] = best
            print(f"  {dimensions} dimensions, {rows:,} rows: {best}", flush=True)
    small, large = (figures["3 dimensions"][f"{rows:,} rows"] for rows in (SMALL, LARGE))
    logs = (math.log(LARGE) / math.log(SMALL)) ** 2
    ten = LARGE // SMALL
    worst = max(cell["error"] for sizes in figures.values() for cell in sizes.values())
    checks = {
        f"{LARGE:,} rows, 3 dimensions: CPU seconds": (large["cpu_s"], CPU_SECONDS, True),
        f"{LARGE:,} rows against {SMALL:,}, 3 dimensions: times as long": (large["s"] / small["s"], ten * logs, True),
        f"{LARGE:,} rows against {SMALL:,}, 3 dimensions: times as many bytes a row": (
            large["bytes_a_row"] / small["bytes_a_row"], 1.25, True,
        ),
        "1 to 3 dimensions: largest error": (worst, CLOSE, True),
    }  # fmt: skip
    return figures, {name: check(name, value, bar, at_most=most) for name, (value, bar, most) in checks.items()}


def card() -> None:
    """Measure a GPU: whole calls from arrays of NumPy."""
    import torch

    name, sizes, checks = torch.cuda.get_device_name(), {}, {}
    for (rows, dimensions), bar in CARD_SIZES.items():
        given = data(rows, dimensions)

        def ours(given: tuple = given) -> np.ndarray:
            return lce(*given, gamma=GAMMA, device="cuda")

        found = ours()  # compiled before it is timed
        worst = error(found, *given, GAMMA)
        title = f"{rows:,} rows, {dimensions} dimensions, {name}: "
        figures = {"seconds": seconds(ours, REPEAT), "error": worst}
        if rows == CARD_ROWS:
            bins = np.random.default_rng(2).uniform(0, 1, rows)  # of 15 bins: as many as the measure has by default
            spread = (given[0], bins, given[2])
            figures["fifteen_bins_s"] = seconds(lambda spread=spread: lce(*spread, gamma=GAMMA, device="cuda"), REPEAT)
        sizes[f"{rows:,} rows, {dimensions} dimensions"] = figures
        print(f"  {rows:,} rows, {dimensions} dimensions: {figures}", flush=True)
        checks[title + "seconds"] = (figures["seconds"], bar, True)
        checks[title + "largest error"] = (worst, CLOSE, True)
        if dimensions == DIMENSIONS:
            cdist = cdist_seconds(given[0])
            checks[title + "times faster than torch.cdist"] = (cdist / figures["seconds"], CARD_FASTER, False)
            figures["cdist_s"] = cdist
    held = {title: check(title, value, bar, at_most=most) for title, (value, bar, most) in checks.items()}
    figures = {"card": name, "torch": torch.__version__, "gamma": GAMMA, "sizes": sizes}
    save("local-card", {"figures": figures, "checks": held})


def cdist_seconds(phi: np.ndarray) -> float:
    """Return the seconds of torch.cdist on the GPU for all rows: those of some blocks times their number."""
    import torch

    X = torch.as_tensor(phi, dtype=torch.float32, device="cuda")
    C = torch.rand(len(phi), 2, device="cuda")

    def blocks(many: int) -> None:
        for at in range(0, many * CARD_BLOCK, CARD_BLOCK):
            torch.exp(-torch.cdist(X[at : at + CARD_BLOCK], X, p=1.0) / (phi.shape[1] * GAMMA)) @ C
        torch.cuda.synchronize()

    blocks(1)
    start = time.perf_counter()
    blocks(CARD_BLOCKS)
    return (time.perf_counter() - start) * len(phi) / (CARD_BLOCK * CARD_BLOCKS)


def main() -> None:
    if "--card" in sys.argv[1:]:
        card()
        return
    peers, held = beside_peers()
    grown, more = growth()
    save("local", {"beside peers": peers, "growth": grown, "checks": {**held, **more}})


if __name__ == "__main__":
    main()
