"""What segments cost, one table for each way to form them."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.audits.text import shorten
from trueup.cli.question import ACT
from trueup.cli.terminal import Grid
from trueup.cli.wording import count, level_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup.cli.judging import Answer, Segments
    from trueup.cli.wording import Amount
    from trueup.decisions import ExpectedCost

ALL = "all, each by its own labelled rows"
UNKNOWN = "* no labelled rows: the scores are taken at their word, and there is no interval"


def segment_tables(found: Answer, amount: Amount, top: int) -> Iterator[list[str | Grid]]:
    """Give a table for each way to form segments, the largest costs first; all of them together come last."""
    for one in found.segments if top else ():
        yield _table(found, one, amount, top)


def _table(found: Answer, of: Segments, amount: Amount, top: int) -> list[str | Grid]:
    names = [ACT] if found.question.of_errors else [action.name for action in found.rule.actions]
    ordered = sorted(of.costs.items(), key=lambda one: (-one[1].estimate, one[0]))
    known, told, unknown = of.cut.labelled, bool(found.cost.evidence), set(of.unknown)
    shown = [(f"{name} *" if name in unknown else name, cost, known[name]) for name, cost in ordered[:top]]
    if told:
        shown.append((f"{ALL} *" if unknown else ALL, of.whole, sum(known.values())))
    rows: list[tuple[str, ...]] = [
        (name, *_cells(cost, names, amount), *((f"{many:,}",) if told else ())) for name, cost, many in shown
    ]
    level = level_of(found)
    acted = ("acted on",) if found.question.of_errors else tuple(map(shorten, names))
    head = ("segment", "rows", *acted, "cost", f"low, {level}", f"high, {level}", *(("labelled",) if told else ()))
    lines: list[str | Grid] = [Grid(head, rows, ("labelled", "rows"))]
    hidden = ordered[top:]
    if hidden:
        without = sum(name in unknown for name, _ in hidden)
        of_them = f", {without:,} of them without labelled rows" if without else ""
        lines.append(f"{len(hidden):,} more{of_them}: --top {len(ordered)}")
    if unknown:
        lines.append(UNKNOWN)
    return lines


def _cells(cost: ExpectedCost, names: list[str], amount: Amount) -> Iterator[str]:
    """Write how many rows there are, how many fall to each action, and what they cost."""
    taken = {share.action: share.rows for share in cost.shares}
    yield count(cost.rows)
    yield from (count(taken.get(one, 0.0)) for one in names)
    yield from (amount(one) for one in (cost.estimate, cost.low, cost.high))
