"""The part of docs/evidence.md that is about files larger than memory."""

from __future__ import annotations

from pages import figures, held, table


def scaling() -> list[str]:
    """Show time and memory by the number of rows."""
    found = figures("scale")
    rows = [
        [f"{one['million_rows']} million", f"{one['file_bytes'] / 1e9:.2f} GB", f"{one['segments']:,}",
         f"{one['seconds']:.0f} s", f"{one['seconds_per_10M']:.1f} s", f"{one['peak_bytes'] / 1e9:.2f} GB"]
        for one in found["audits"]
    ]  # fmt: skip
    return [
        "## Files larger than memory",
        "",
        f"`python bench/scale.py`: generated rows of ten columns in one Parquet file, audited at depth 2 with `memory="
        f"{found['memory']!r}` on {found['machine']['cores']} cores, each in a process of its own.",
        "",
        *table(["rows", "file", "segments", "time", "per 10 million", "peak memory"], rows),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["bars"])),
        "",
        *predicting(),
        *clusters(),
    ]


def predicting() -> list[str]:
    """Show how fast files are scored, and what takes the time."""
    found = figures("predict")
    rows = [
        [f"{one['million_rows']} million", one["memory"] or "no limit", f"{one['rows_per_second'] / 1e6:.2f} million",
         f"{one['peak_bytes'] / 1e9:.2f} GB"]
        for one in found["runs"]
    ]  # fmt: skip
    last = max(found["runs"], key=lambda one: one["million_rows"])["million_rows"]
    steps = [[name, f"{seconds:.1f} s"] for name, seconds in found[f"steps_{last}"].items()]
    kernel = found["kernel"]
    return [
        "`python bench/predict.py`: `trueup predict` from Parquet to Parquet, from the start of the process to the file on "
        f"disk, with the default MCGrad ({kernel['trees']} trees, {kernel['tables']} tables).",
        "",
        *table(["rows", "`--memory`", "rows a second", "peak memory"], rows),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        f"What takes the time of {last} million rows, without a limit. Writing limits it: DuckDB joins the new column to "
        "the rows in one thread. "
        f"The kernel alone scores {kernel['rows_per_second_2_threads'] / 1e6:.0f} million rows a second on two.",
        "",
        *table(["step", "time"], steps),
        "",
    ]


def clusters() -> list[str]:
    """Show that audits and fits on Spark and Dask agree with those of one machine, and how long they take."""
    found = figures("cluster")
    engines = [name for name in ("dask", "spark") if name in found]
    fits = [["memory", f"{found['memory']['fit']:.0f} s", f"{found['memory']['loss']:.6f}"]]
    fits += [["files (`tu.scan`)", f"{found['files']['fit']:.0f} s", f"{found['files']['loss']:.6f}"]]
    fits += [
        [name.title(), f"{found[name]['fit']['seconds']:.0f} s", f"{found[name]['fit']['loss']:.6f}"] for name in engines
    ]
    audits = [
        [
            name.title(), parts, f"{audit['seconds']:.1f}", f"{audit['seconds'] / found['memory']['audit']:.1f}",
            f"{audit['sigma']:.1g}", f"{audit['rejected']:.0f}",
        ]
        for name in engines
        for parts, audit in found[name]["audits"].items()
    ]  # fmt: skip
    return [
        "## Spark and Dask",
        "",
        f"`python bench/cluster.py`: {found['rows']:,} simulated loans, {found['columns']} columns at depth 2, two workers "
        f"of one thread each on one machine of {found['machine']['cores']} cores.",
        "",
        "Audits, compared with an audit in memory:",
        "",
        *table(
            ["rows in", "partitions", "seconds", "times memory", "largest difference of a sigma", "segments rejected"],
            audits,
        ),
        "",
        "Fits by the default `MCGrad`, and the log loss of 200,000 other loans. Files, Dask and Spark assign rows to the "
        "same folds, memory to others:",
        "",
        *table(["rows in", "time", "log loss"], fits),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["bars"])),
        "",
    ]
