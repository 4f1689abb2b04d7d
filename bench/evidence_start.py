"""The part of docs/evidence.md that is about the first answer of a fresh process."""

from __future__ import annotations

from pages import figures, held, table

KINDS = ("cold", "warm")


def starting() -> list[str]:
    """Show the time from the start of a process to its first score, small frame and audit."""
    found = figures("start")
    cases = {
        **{f"one row, {name}": times for name, times in found["one"].items()},
        **{f"{found['small']} rows, {name}": times for name, times in found["frame"].items()},
        f"audit of {found['audited']:,} rows": found["audit"],
    }
    rows = [
        [
            name,
            *(f"{times[kind][unit]:.2f} s" for kind in KINDS for unit in ("seconds", "cpu")),
            " and ".join({"cold": "empty", "warm": "filled"}[kind] for kind in KINDS if times[kind]["numba"]) or "no",
        ]
        for name, times in cases.items()
    ]
    warm = found["warm"]
    return [
        "## Cold start",
        "",
        "`python bench/start.py`: a fresh process, from its start to its end, imports included, loads a model and scores, "
        f"or audits. The cache directory is empty, or filled by `trueup warm` ({warm['kernels']} kernels, "
        f"{warm['bytes'] / 1e6:.1f} MB, {warm['cpu']:.0f} CPU seconds). The answers of all runs are equal to the bit. "
        "Other work on the machine lengthens the seconds; CPU seconds are those of the process.",
        "",
        *table(["answer", "empty cache", "CPU", "filled cache", "CPU", "numba imported, by cache"], rows),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
    ]
