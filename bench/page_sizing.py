"""docs/sizing.md, made of what bench/sizing.py, scale.py, predict.py and cluster.py measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from pages import figures, table
from sizing import costs, terms

ASKED = [(1, 5), (1, 10), (10, 5), (10, 10), (100, 5), (100, 10), (1000, 10)]  # million rows, columns
CORES = (8, 64)
SIZING_PICTURE = (
    "![Left, seconds against million rows; right, peak memory in GB: audits of 2 and 8 columns stay below 20 seconds and "
    "about 1 GB up to 6 million rows, fits take up to a minute and 2.2 GB at 4 million.](pictures/guide-sizing.png)"
)
RECORD = 9  # bytes of a row that is spilled: score and outcome; and one or two for each column


def span(seconds: float) -> str:
    """Write a time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def size(memory: float) -> str:
    """Write an amount of memory."""
    return f"{memory / 1e9:.1f} GB" if memory < 1e10 else f"{memory / 1e9:.0f} GB"


def foretell(model: dict[str, Any], rows: float, columns: int) -> float:
    """Read a model of costs at so many rows (in millions) and columns."""
    return float(np.dot(terms({"million_rows": rows, "columns": columns}), model["cost"]))


def measured(found: dict[str, Any]) -> list[str]:
    """Show the runs."""
    rows = [
        [what, f"{one['million_rows']} million", str(one["columns"]), f"{one['seconds']:.0f} s", f"{one['cpu']:.0f} s",
         f"{one['peak_bytes'] / 1e9:.2f} GB", f"{one['trees']} trees" if what == "fit" else f"{one['segments']:,} segments"]
        for what in ("audit", "fit") for one in found[what]
    ]  # fmt: skip
    return table(["", "rows", "columns", "time", "processor time", "peak memory", ""], rows)


def costing(given: dict[str, Any]) -> list[str]:
    """Show what a million rows cost."""
    audit, fit = (given[what]["seconds"] for what in ("audit", "fit"))
    memory, prediction = given["fit"]["peak_bytes"]["cost"], given["foretold"]
    return [
        *table(
            ["a million rows", "of an audit", "of a fit", "memory of a fit"],
            [
                ["each", f"{audit['cost'][1]:.2f} s", f"{fit['cost'][1]:.1f} s", f"{memory[1] / 1e6:.0f} MB"],
                ["and a column", f"{audit['cost'][2]:.2f} s", f"{fit['cost'][2]:.1f} s", f"{memory[2] / 1e6:.0f} MB"],
            ],
        ),
        "",
        f"These reproduce the runs above to {100 * audit['worst_off']:.0f}% (audit), {100 * fit['worst_off']:.0f}% (fit) "
        f"and {100 * given['fit']['peak_bytes']['worst_off']:.0f}% (its memory) at worst. The time of a fit depends on the "
        "number of trees, which is not known in advance. Compared with a run not used for the estimate: "
        f"{prediction['million_rows']} million rows of {prediction['columns']} columns were predicted to take "
        f"{prediction['seconds']:.0f} s to audit, "
        f"and took {prediction['measured']:.0f} s (`python bench/scale.py`).",
    ]


def extrapolated(given: dict[str, Any], speed: float) -> list[str]:
    """Extrapolate to other sizes on one machine."""
    rows = []
    for millions, columns in ASKED:
        audit, fit = (foretell(given[what]["seconds"], millions, columns) for what in ("audit", "fit"))
        memory = foretell(given["fit"]["peak_bytes"], millions, columns)
        spilled = millions * (RECORD + 1.2 * columns) / 1e3
        rows.append(
            [f"{millions:,} million", str(columns), span(audit), f"{spilled:.2g} GB", span(fit), size(memory),
             span(millions * 1e6 / speed)]
        )  # fmt: skip
    return table(["rows", "columns", "audit", "spilled by it", "fit", "memory of the fit", "predict"], rows)


def billion(given: dict[str, Any], cluster: dict[str, Any]) -> list[str]:
    """Extrapolate to a billion rows on one machine and on many."""
    audit, fit = (foretell(given[what]["cpu"], 1000, 10) for what in ("audit", "fit"))
    memory = foretell(given["fit"]["peak_bytes"], 1000, 10) / 1e9
    gain = {name: cluster[name]["audit_alone"] / cluster[name]["audit_pair"] for name in ("dask", "spark")}
    slower = {name: cluster[name]["fit"]["seconds"] / cluster["files"]["fit"] for name in ("dask", "spark")}
    rows = [
        [f"{cores} cores", span(audit / cores), span(fit / cores), f"{memory / cores:.1f} GB a core"] for cores in CORES
    ]
    return [
        f"By these costs a billion rows of ten columns take {audit / 3600:.1f} hours of one core to audit at depth 2, and "
        f"{fit / 3600:.0f} to fit; the fit needs {memory:.0f} GB, on one machine or on all workers together. "
        f"With perfect scaling:",
        "",
        *table(["", "audit", "fit", "memory of the fit"], rows),
        "",
        "Scaling is not perfect. Measured with two single-threaded workers on one machine "
        f"({cluster['rows'] / 1e6:.0f} million rows, {cluster['columns']} columns, `python bench/cluster.py`): "
        f"the second made an audit {gain['dask']:.2f} times as fast on Dask and {gain['spark']:.2f} times on Spark, "
        f"with so few rows, and a fit took {slower['dask']:.1f} and "
        f"{slower['spark']:.1f} times as long as one of files on these two cores. Plan with twice the time of the table, "
        "and measure with a tenth of the rows. A network between machines was not measured; for every tree the "
        "workers exchange histograms of all columns, some kilobytes, and wait for the slowest.",
        "",
        "To reduce memory, `stopping=tu.Holdout()` fits one model instead of five; or fit a sample of the "
        "rows, and audit the result on all of them, which is cheap.",
    ]


def sizing_page() -> str:
    """Assemble the page."""
    found, cluster, predict = figures("sizing"), figures("cluster"), figures("predict")
    speed = min(one["rows_per_second"] for one in predict["runs"])
    given = costs(found)
    return "\n".join([
        "# Sizing",
        "",
        "Time and memory of audits, fits and predictions of many rows: measured, then extrapolated.",
        "",
        f"On {found['machine']['cores']} cores, from Parquet files, in chunks (`tu.scan(..., memory={found['memory']!r})`; "
        "depth 2; the default `MCGrad`, five folds): `python bench/sizing.py`. Columns are segment columns or "
        "features, without score and outcome. Peak memory includes columns mapped from disk, which "
        "the operating system can reclaim.",
        "",
        *measured(found),
        "",
        SIZING_PICTURE,
        "",
        "## Cost per row",
        "",
        *costing(given),
        "",
        "## Extrapolated for one machine with two cores",
        "",
        *extrapolated(given, speed),
        "",
        "An audit stays within its memory budget and spills the rest. A fit holds its rows binned, one byte per "
        "column, and "
        "for every fold the scores, gradients and positions of its rows; `--memory` limits what is "
        "held in addition. Depth 3 combines triples of columns: for ten columns there are 120 besides the 45 pairs. More "
        "than two cores were not measured.",
        "",
        "## Which engine",
        "",
        *table(
            ["rows", "use"],
            [
                ["fit in memory", "the frame itself: `tu.audit(frame)`, `fix.fit(frame)`"],
                ["fit on a disk of this machine", "`--memory 4GB`, `tu.scan`: no cluster is needed"],
                ["lie on a cluster already, or a fit does not fit", "[Spark or Dask](cluster.md)"],
            ],
        ),
        "",
        "## A billion rows",
        "",
        *billion(given, cluster),
        "",
    ])  # fmt: skip
