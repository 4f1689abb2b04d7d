"""docs/sizing.md, made of what bench/sizing.py, scale.py, predict.py and cluster.py measured."""

from __future__ import annotations

from typing import Any

import numpy as np

from pages import figures, table
from sizing import terms

ASKED = [(1, 5), (10, 5), (10, 10), (100, 10), (100, 20), (1000, 10)]  # million rows, columns
CORES = (8, 64)
RECORD = 9  # bytes of a row that is spilled: score and outcome; and one or two for each column


def span(seconds: float) -> str:
    """Write a time in the unit that suits it."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def foretell(found: dict[str, Any], what: str, of: str, rows: float, columns: int, trees: float = 0) -> float:
    """Read a model of costs at so many rows (in millions) and columns."""
    asked = terms(what, {"million_rows": rows, "columns": columns, "trees": trees})
    cost = found[what][of]["cost"]
    return float(np.dot(asked[: len(cost)], cost))


def measured(found: dict[str, Any]) -> list[str]:
    """Show the runs."""
    rows = [
        [what, f"{one['million_rows']} million", str(one["columns"]), span(one["seconds"]), f"{one['cpu']:.0f} s",
         f"{one['peak_bytes'] / 1e9:.2f} GB", f"{one['trees']}" if what == "fit" else f"{one['segments']:,} segments"]
        for what in ("audit", "fit") for one in found[what]["runs"]
    ]  # fmt: skip
    return table(["", "rows", "columns", "time", "processor time", "peak memory", "trees of a fold, or segments"], rows)


def costs(found: dict[str, Any]) -> list[str]:
    """Show what a million rows cost."""
    audit, fit = (found[what]["seconds"]["cost"] for what in ("audit", "fit"))
    memory = found["fit"]["peak_bytes"]["cost"]
    return [
        *table(
            ["a million rows", "of an audit", "of a fit"],
            [
                ["each", f"{audit[1]:.2f} s", f"{fit[1]:.2f} s and {fit[3]:.3f} s a tree"],
                ["and for each column", f"{audit[2]:.2f} s", f"{fit[2]:.2f} s and {fit[4]:.4f} s a tree"],
                ["and for each pair of columns", f"{audit[3]:.3f} s", "-"],
                ["memory", "as told (`memory=`)", f"{memory[1] / 1e6:.0f} MB and {memory[2] / 1e6:.0f} MB for each column"],
            ],
        ),
        "",
        f"These reproduce the runs above to {100 * found['audit']['seconds']['worst_off']:.0f}% (audit) and "
        f"{100 * found['fit']['seconds']['worst_off']:.0f}% (fit) at worst. Held against a run they were not made of: "
        f"{found['foretold']['million_rows']} million rows of ten columns should take {span(found['foretold']['seconds'])} "
        f"to audit, and took {span(found['foretold']['measured'])} (`python bench/scale.py`).",
    ]


def foretold(found: dict[str, Any], trees: float, speed: float) -> list[str]:
    """Foretell other sizes on one machine."""
    rows = []
    for millions, columns in ASKED:
        memory = foretell(found, "fit", "peak_bytes", millions, columns)
        rows.append([
            f"{millions:,} million", str(columns), span(foretell(found, "audit", "seconds", millions, columns)),
            f"{millions * (RECORD + 1.2 * columns) / 1e3:.1f} GB",
            span(foretell(found, "fit", "seconds", millions, columns, trees)), f"{memory / 1e9:.1f} GB",
            span(millions * 1e6 / speed),
        ])  # fmt: skip
    return table(["rows", "columns", "audit", "spilled", f"fit of {trees:.0f} trees a fold", "its memory", "predict"], rows)


def billion(found: dict[str, Any], cluster: dict[str, Any], trees: float) -> list[str]:
    """Say what a billion rows cost on one machine and on many."""
    audit = foretell(found, "audit", "cpu", 1000, 10)
    fit = foretell(found, "fit", "cpu", 1000, 10, trees)
    memory = foretell(found, "fit", "peak_bytes", 1000, 10)
    gain = {name: cluster[name]["audit_alone"] / cluster[name]["audit_pair"] for name in ("dask", "spark")}
    files = cluster["files"]["fit"]
    slower = {name: cluster[name]["fit"]["seconds"] / files for name in ("dask", "spark")}
    rows = [
        [f"{cores} cores", span(audit / cores), span(fit / cores), f"{memory / 1e9 / cores:.1f} GB a core"]
        for cores in CORES
    ]
    return [
        f"By these costs a billion rows of ten columns take {audit / 3600:.1f} hours of one core to audit at depth 2, and "
        f"{fit / 3600:.1f} to fit with {trees:.0f} trees a fold; the fit holds {memory / 1e9:.0f} GB, on one machine or "
        "on all of them together. If work were shared out without loss:",
        "",
        *table(["", "audit", "fit", "memory of the fit"], rows),
        "",
        "It is not. What was measured is two workers of one thread on one machine "
        f"({cluster['rows'] / 1e6:.0f} million rows, {cluster['columns']} columns, `python bench/cluster.py`): "
        f"the second made an audit {gain['dask']:.2f} times as fast on Dask and {gain['spark']:.2f} times on Spark, and "
        f"a fit took {slower['dask']:.1f} and {slower['spark']:.1f} times as long as one of files on these two cores: "
        "reading, starting processes and exchanging histograms come on top. Take twice the time of the table for "
        "a first plan, and measure with a tenth of the rows: the costs above grow with the rows, and nothing else "
        "does. A network between machines was not measured.",
    ]


def sizing_page() -> str:
    """Put the page together."""
    found, cluster, predict = figures("sizing"), figures("cluster"), figures("predict")
    speed = min(one["rows_per_second"] for one in predict["runs"])
    trees = float(np.mean([one["trees"] for one in found["fit"]["runs"]]))
    return "\n".join([
        "# Sizing",
        "",
        "How long an audit, a fit and a prediction of many rows take, and what they need: measured, then foretold.",
        "",
        f"On {found['machine']['cores']} cores, from Parquet files, in pieces (`tu.scan(..., memory={found['memory']!r})`; "
        "depth 2; the default `MCGrad`, five folds): `python bench/sizing.py`.",
        "",
        *measured(found),
        "",
        "## What a row costs",
        "",
        *costs(found),
        "",
        "## Foretold for one machine of two cores",
        "",
        *foretold(found, trees, speed),
        "",
        "An audit holds what it is told to hold, and spills the rest. A fit holds its rows binned, a byte a column, and "
        "for every fold the scores, gradients and places of its rows; that is its memory, and `--memory` bounds what is "
        "held beside it. Depth 3 crosses triples of columns: for ten columns there are 120 beside the 45 pairs. More "
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
        *billion(found, cluster, trees),
        "",
    ])  # fmt: skip
