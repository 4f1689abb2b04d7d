"""Speed of the measures on 1,000,000 rows, beside their peers in the same run on the same rows.

python bench/metrics.py
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import trueup as tu
from common import check, run_peer, save, seconds

ROWS = 1_000_000


def main() -> None:
    random = np.random.default_rng(0)
    p = random.beta(2, 5, ROWS)
    y = (random.random(ROWS) < p).astype(float)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "rows.npz"
        np.savez(path, y=y, p=p)
        relplot = run_peer("relplot", "measures.py", "relplot", str(path))
        netcal = run_peer("netcal", "measures.py", "netcal", str(path))

    def base() -> np.ndarray[Any, Any]:
        order = np.argsort(p)
        return np.cumsum((y - p)[order])

    for measure in (tu.metrics.smooth_ece, tu.metrics.ece, tu.metrics.ecce):
        measure(y, p)  # compiled before it is timed
    smooth, binned, cumulative = (
        seconds(lambda m=m: m(y, p)) for m in (tu.metrics.smooth_ece, tu.metrics.ece, tu.metrics.ecce)
    )
    plain = seconds(base)
    checks = {
        "smooth_ece, times faster than relplot": check(
            "smooth_ece, times faster than relplot", relplot["seconds"] / smooth, 5, at_most=False
        ),
        "smooth_ece, difference to relplot": check(
            "smooth_ece, difference to relplot", abs(relplot["value"] - tu.metrics.smooth_ece(y, p)), 1e-3, at_most=True
        ),
        "ece, times faster than netcal": check(
            "ece, times faster than netcal", netcal["seconds"] / binned, 5, at_most=False
        ),
        "ece, difference to netcal": check(
            "ece, difference to netcal", abs(netcal["value"] - tu.metrics.ece(y, p)), 1e-6, at_most=True
        ),
        "ecce, times argsort, gather and cumsum": check(
            "ecce, times argsort, gather and cumsum", cumulative / plain, 2, at_most=True
        ),
    }
    ours = {"smooth_ece_s": smooth, "ece_s": binned, "ecce_s": cumulative, "base_s": plain}
    save("metrics", {"rows": ROWS, "relplot": relplot, "netcal": netcal, "ours": ours, "checks": checks})


if __name__ == "__main__":
    main()
