"""Speed, memory and agreement of the audit, beside mcgrad 0.1.5 in the same run on the same rows.

    python bench/audit.py

100,000 rows x 12 columns (6 categorical with up to 200 levels, 6 numeric); then 1,000,000 rows of the same kind.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import polars as pl

import trueup as tu
from common import check, fresh, run_peer, save, seconds
from trueup.data.frame import read

if TYPE_CHECKING:
    from trueup.data.table import Table

LEVELS = (200, 50, 20, 10, 6, 3)
CATEGORICAL = [f"c{j}" for j in range(len(LEVELS))]
NUMERIC = [f"x{j}" for j in range(6)]
ROLES = {"outcome": "y", "prediction": "p"}


def frame(rows: int, seed: int = 0) -> pd.DataFrame:
    """Draw calibrated rows; the levels of a category have uneven shares."""
    random = np.random.default_rng(seed)
    columns: dict[str, Any] = {}
    for name, levels in zip(CATEGORICAL, LEVELS, strict=True):
        share = 1.0 / np.arange(1, levels + 1) ** 0.5
        names = np.array([f"{name}_{at:03d}" for at in range(levels)], object)
        columns[name] = names[random.choice(levels, rows, p=share / share.sum())]
    columns |= {name: random.normal(size=rows) for name in NUMERIC}
    p = random.beta(1, 4, rows)
    return pd.DataFrame({**columns, "p": p, "y": (random.random(rows) < p).astype(int)})


def beside_the_peer(figures: dict[str, Any], path: Path) -> None:
    """Depth 2 and 3 on 100,000 rows against mcgrad's defaults (depth 3, 1,000 segments)."""
    data = pd.read_parquet(path)
    theirs = run_peer("mcgrad", "mcgrad_audit.py", "time", str(path), ",".join(CATEGORICAL), ",".join(NUMERIC), "5")
    ours = {}
    for depth in (2, 3):
        audit = tu.audit(data, **ROLES, depth=depth)
        ours[depth] = {"seconds": seconds(lambda d=depth: tu.audit(data, **ROLES, depth=d), 10), "segments": audit.tested}
    print(f"100,000 rows: mcgrad {theirs['seconds']:.2f} s for {theirs['segments']} segments; trueup {ours}")
    figures["peer"], figures["ours"] = theirs, ours
    deep, flat = ours[3], ours[2]
    per_segment = (theirs["seconds"] / theirs["segments"]) / (deep["seconds"] / deep["segments"])
    figures["checks"] |= {
        "depth 3, times faster": check("depth 3, times faster", theirs["seconds"] / deep["seconds"], 5, at_most=False),
        "times the segments": check("times the segments", deep["segments"] / theirs["segments"], 50, at_most=False),
        "per segment": check("per segment, times faster", per_segment, 1000, at_most=False),
        "depth 2, times faster": check("depth 2, times faster", theirs["seconds"] / flat["seconds"], 15, at_most=False),
    }


def agreement(figures: dict[str, Any], path: Path) -> None:
    """Hold the sigma of every segment of tie-free data against mcgrad's, in double precision."""
    names = CATEGORICAL[3:]
    theirs = run_peer("mcgrad", "mcgrad_audit.py", "sigma", str(path), ",".join(names))
    audit = tu.audit(pd.read_parquet(path), **ROLES, by=names)
    ours = audit.to_frame()
    mine = dict(zip(ours["segment"], ours["sigma"], strict=True))
    off = max(abs(theirs[name] - mine[name]) / mine[name] for name in theirs)
    print(f"agreement on {len(theirs)} segments")
    same = float(set(theirs) == {name for name, ok in zip(ours["segment"], ours["testable"], strict=True) if ok})
    figures["checks"] |= {
        "same segments": check("same segments", same, 1, at_most=False),
        "sigma agrees": check("largest relative difference of sigma", off, 1e-6, at_most=True),
    }


def a_million_rows(figures: dict[str, Any]) -> None:
    """One million rows at depth 2 against sorting the scores and gathering the columns, and against factorising."""
    data = frame(1_000_000, 1)
    table = read(data, **ROLES)
    tu.audit(table)
    audit_s = seconds(lambda: tu.audit(table))
    base = seconds(lambda: _sort_and_gather(table))
    figures["million"] = {"audit_s": audit_s, "sort_and_gather_s": base}
    figures["checks"]["million"] = check("1M rows, times sort and gather", audit_s / base, 4, at_most=True)
    polars = pl.from_pandas(data)
    for name, frame_, factorise in (
        ("pandas", data, lambda: [data[c].factorize() for c in (*CATEGORICAL, *NUMERIC)]),
        ("polars", polars, lambda: _factorise_polars(polars)),
    ):
        reading, own = seconds(lambda f=frame_: read(f, **ROLES)), seconds(factorise)
        figures["million"][f"{name}_read_s"], figures["million"][f"{name}_factorise_s"] = reading, own
        figures["checks"][f"{name} read"] = check(
            f"reading {name}, times its own factorisation", reading / own, 2, at_most=True
        )


def _sort_and_gather(table: Table) -> list[np.ndarray[Any, Any]]:
    order = np.argsort(table.prediction)
    return [column[order] for column in (table.prediction, table.outcome, *table.columns.values())]


def _factorise_polars(data: pl.DataFrame) -> list[pl.Series]:
    return [data[c].cast(pl.Categorical).to_physical() for c in CATEGORICAL] + [data[c].rank("dense") for c in NUMERIC]


def memory(figures: dict[str, Any]) -> None:
    """Growth of resident memory over one audit of a million rows, in a process of its own."""
    done = subprocess.run([sys.executable, __file__, "memory"], check=True, stdout=subprocess.PIPE, text=True)
    frame_bytes, growth = (float(x) for x in done.stdout.split())
    figures["memory"] = {"frame_bytes": frame_bytes, "growth_bytes": growth}
    figures["checks"]["memory"] = check("growth of memory, times the frame", growth / frame_bytes, 3, at_most=True)


def memory_here() -> None:
    # A small audit first, so that libraries and compiled code are not counted as growth.
    tu.audit(frame(2_000), **ROLES)
    data = frame(1_000_000, 1)
    # Eight bytes a cell, as if texts cost nothing beyond their pointer.
    size = data.memory_usage(deep=False, index=False).sum()
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak so far
    before = _status("VmRSS")
    tu.audit(data, **ROLES)
    print(size, _status("VmHWM") - before)


def _status(name: str) -> int:
    """Read a number of bytes from what the kernel says of this process."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))


def first_call(figures: dict[str, Any], path: Path) -> None:
    """Fresh processes: nothing compiled yet, everything compiled, the bare import, and --help."""
    run = f"import pandas as pd, trueup as tu; tu.audit(pd.read_parquet({str(path)!r}), outcome='y', prediction='p')"
    with tempfile.TemporaryDirectory() as empty:
        cold = fresh(run, repeat=1, environment={"NUMBA_CACHE_DIR": empty})
        cached = fresh(run, environment={"NUMBA_CACHE_DIR": empty})
    data = pd.read_parquet(path)
    warm = seconds(lambda: tu.audit(data, **ROLES))
    reading = fresh(f"import pandas as pd; pd.read_parquet({str(path)!r})")
    bare = fresh("pass", repeat=9)
    bring = fresh("import trueup", repeat=9) - bare
    shown = seconds(
        lambda: subprocess.run([Path(sys.executable).parent / "trueup", "--help"], check=True, stdout=subprocess.DEVNULL), 5
    )
    figures["fresh"] = {"cold_s": cold, "cached_s": cached, "warm_s": warm, "reading_s": reading}
    figures["checks"] |= {
        "first call": check("first call beyond the warm time (s)", cold - reading - warm, 5, at_most=True),
        "import": check("import trueup (s)", bring, 0.3, at_most=True),
        "help": check("trueup --help (s)", shown, 0.5, at_most=True),
    }


def main() -> None:
    figures: dict[str, Any] = {"checks": {}}
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "rows.parquet"
        frame(100_000).to_parquet(path)
        beside_the_peer(figures, path)
        agreement(figures, path)
        first_call(figures, path)
    a_million_rows(figures)
    memory(figures)
    save("audit", figures)


if __name__ == "__main__":
    memory_here() if sys.argv[1:] == ["memory"] else main()
