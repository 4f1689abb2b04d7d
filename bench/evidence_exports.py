"""The part of docs/evidence.md that is about exports."""

from __future__ import annotations

from typing import Any

from pages import figures, held, table

NAMES = {"c": "C (gcc)", "onnx": "onnxruntime", "duckdb": "DuckDB", "postgres": "PostgreSQL", "spark": "Spark SQL"}


def exporting() -> list[str]:
    """Show how exact exports are, and how fast."""
    found = figures("exports")
    rows = [
        [f"{case}: {own['map']}", NAMES[target], f"{cell['rows']:,}", f"{cell['largest_difference']:.2g}",
         "identical" if cell["largest_difference_of_sums"] == 0 else f"{cell['largest_difference_of_sums']:.2g}",
         f"{cell['size'] / 1000:,.0f} kB" if "size" in cell else "", _rate(cell), _alone(cell)]
        for case, own in found["cases"].items()
        for target, cell in own["targets"].items()
    ]  # fmt: skip
    heads = ["fit", "run in", "rows", "largest difference", "sums", "size", "rows per second", "one row"]
    sizes = [
        [
            f"{case}: {own['map']}",
            dialect,
            f"{size['size'] / 1000:,.0f} kB",
            str(size["statements"]),
            f"{size['longest'] / 1000:,.0f} kB",
        ]
        for case, own in found["cases"].items()
        for dialect, size in own["sql"].items()
    ]
    return [
        "## Exports",
        "",
        "`python bench/exports.py`: default MCGrad fits, exported and compared with the model on rows at and one unit of "
        "the last place beside every cut, with missing, unseen, extreme, invalid and random values. Rows per second are "
        "those of two cores that do nothing else, from processor time; in parentheses by the clock, on a machine with "
        "other work.",
        "",
        *table(heads, rows),
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
        "A text of SQL above 200 kB is divided into views, constants in tables that are joined, and a SELECT:",
        "",
        *table(["fit", "dialect", "SQL", "statements", "longest"], sizes),
        "",
        "Trees that are not collapsed into tables are walked, in every target: a fit of hundreds of trees takes tens of "
        "microseconds per row in C, and misses the bars, which tables meet. `depth=2` keeps a fit to tables.",
        "",
    ]


def _rate(cell: dict[str, Any]) -> str:
    clock = f"{cell['rows_per_second']:,.0f}" if "rows_per_second" in cell else ""
    idle = cell.get("rows_per_second_of_two_idle_cores")
    return clock if idle is None else f"{idle:,.0f} ({clock})"


def _alone(cell: dict[str, Any]) -> str:
    if "microseconds_gcc" in cell:
        return f"{cell['microseconds_gcc']:.2f} us"
    if "microseconds" not in cell:
        return ""
    return f"{cell['processor_microseconds']:.0f} us ({cell['microseconds']:.0f})"
