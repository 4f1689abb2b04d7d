"""What the parts of the evidence page share: figures from disk, and tables of them."""

from __future__ import annotations

import json
from typing import Any

from common import EARLIER, RESULTS


def figures(name: str) -> dict[str, Any]:
    """Read the figures of one benchmark."""
    found: dict[str, Any] = json.loads((RESULTS / f"{name}.json").read_text())
    return found


def measured(name: str) -> bool:
    """Return whether a benchmark has been run."""
    return (RESULTS / f"{name}.json").exists()


def earlier(found: dict[str, Any]) -> list[str]:
    """State which figures are those of an earlier version of the fit, if any."""
    if EARLIER not in found:
        return []
    parts = ", ".join(found[EARLIER])
    return [f"**Not yet measured again since fits compare other capacities and learning rates and keep a first round of "
            f"trees by a score test: {parts}.**", ""]  # fmt: skip


def table(head: list[str], rows: list[list[str]]) -> list[str]:
    """Write a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def held(checks: dict[str, Any]) -> list[list[str]]:
    """Write each figure beside its bar."""
    return [
        [
            name,
            f"{c['value']:.3g}",
            f"{'at most' if c['at_most'] else 'at least'} {c['bar']:.3g}",
            "yes" if c["holds"] else "**no**",
        ]
        for name, c in checks.items()
    ]
