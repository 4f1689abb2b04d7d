"""Runs in a peer's environment: value and time of its measure on rows from a file.

python measures.py relplot|netcal ROWS.npz
"""

import json
import sys
import time

import numpy as np


def measure(name):
    if name == "relplot":
        import relplot

        return lambda y, p: relplot.smECE(p, y)
    from netcal.metrics import ECE

    return lambda y, p: ECE(10).measure(p, y)


if __name__ == "__main__":
    rows = np.load(sys.argv[2])
    run = measure(sys.argv[1])
    times = []
    for _ in range(3):
        start = time.perf_counter()
        value = float(run(rows["y"], rows["p"]))
        times.append(time.perf_counter() - start)
    print(json.dumps({"value": value, "seconds": min(times)}))
