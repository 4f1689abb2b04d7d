"""A model in words: what it is, what it corrected, how it was judged, and why one prediction moved."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trueup.audits.text import number
from trueup.cli.terminal import Grid

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup.calibrators.explain import Explanation
    from trueup.calibrators.maps.patches import PatchList
    from trueup.calibrators.model import Model
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.calibrators.stopping import History, Round

WIDEST_PART = 120
LEAST_ROUNDS = 4  # that are always shown: two at either end


def correction_grid(found: Explanation, top: int) -> Grid:
    """Lay out the largest corrections."""
    rows: list[tuple[str, ...]] = [
        (
            one.segment,
            f"{number(one.low)} to {number(one.high)}",
            f"{one.rows:,}",
            number(one.before),
            number(one.after),
            number(one.observed),
        )
        for one in found.corrections[:top]
    ]
    return Grid(("segment", "scores", "rows", "before", "after", "observed"), rows, ("rows", "observed"))


def patch_grid(found: PatchList, top: int) -> Grid:
    """Lay out the first patches."""
    rows: list[tuple[str, ...]] = [
        (f"{at}  {one.group}", one.cell, f"{one.rows:,}", number(one.before), number(one.observed), f"{one.shift:+.4g}")
        for at, one in enumerate(found.patches[:top], start=1)
    ]
    head = ("patch", "scores", "rows", "predicted", "observed", f"{found.scale} moved")
    return Grid(head, rows, ("rows", "observed"))


def history_grid(history: History, top: int = 20) -> Grid:
    """Lay out the rounds as they were judged: the first, and where there are many the last ones too.

    Rounds without trees are without their columns.
    """
    grown = any(one.trees for one in history.rounds)
    rows: list[tuple[str, ...]] = [
        (
            "the scores as they were" if one.number == 0 else f"round {one.number}{'' if one.kept else ' (not kept)'}",
            *((f"{one.trees:,}" if one.number else "", f"{one.theta:.3f}" if one.number else "") if grown else ()),
            f"{one.loss:.6g}",
            f"{-one.gain:+.3g}" if one.number else "",
            f"{one.error:.2g}" if one.number else "",
        )
        for one in _ends(history.rounds, max(top, LEAST_ROUNDS))
    ]
    return Grid(("round", *(("trees", "theta") if grown else ()), "loss", "change", "s.e."), rows, ("theta", "s.e."))


def _ends(rounds: tuple[Round, ...], most: int) -> tuple[Round, ...]:
    return rounds if len(rounds) <= most else (*rounds[: most // 2], *rounds[-(most - most // 2) :])


def part_grid(found: RowExplanation, top: int) -> Grid:
    """Lay out the parts of the change of one prediction; what does not fit is one part."""
    if isinstance(found.change, tuple):
        return Grid(("part", "class", "change"), [*found.lines()[:top]], widest=WIDEST_PART)
    rows: list[tuple[str, ...]] = [(one.condition, f"{one.change:+.4f}") for one in found.parts[:top]]
    rest = found.parts[top:]
    if rest:
        rows.append((f"{len(rest):,} more", f"{sum(one.change for one in rest):+.4f}"))
    return Grid(("part", "change"), rows, widest=WIDEST_PART)


def model_data(model: Model) -> dict[str, Any]:
    """Give all that is known of a model as plain data."""
    return {
        "model": model.info().to_dict(),
        "history": model.history.to_dict(),
        "explanation": model.explanation.to_dict(),
        **({"patches": listed.to_dict()} if (listed := getattr(model.map, "listed", None)) is not None else {}),
    }


def json_of(found: dict[str, Any]) -> Iterator[str]:
    """Write plain data as strict JSON, for people too."""
    yield json.dumps(found, allow_nan=False, ensure_ascii=False, indent=1)
    yield "\n"
