"""A decision in words: the rule, what it costs and saves, and where."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING, Any

from trueup.audits.text import number
from trueup.cli.judging import threshold_of
from trueup.cli.question import ACT
from trueup.cli.remarks import next_commands, notes
from trueup.cli.segmented import segment_tables
from trueup.cli.terminal import Grid
from trueup.cli.wording import Amount, amounts, between, count, level_of, score, sentence, short, unit
from trueup.data.frame import to_jsonable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trueup.cli.judging import Answer
    from trueup.decisions import ExpectedCost

WIDEST_BAR = 30


def answer_line(found: Answer) -> str:
    """Say the rule and its cost on one line."""
    cost, amount = found.cost, amounts(found)
    return f"{sentence(found)}: {unit(found)} {amount(cost.estimate)} ({amount.span(cost)} at {level_of(found)})"


def answer_page(found: Answer, arguments: argparse.Namespace) -> list[str | Grid]:
    """Say all of it."""
    amount = amounts(found)
    blocks: list[Sequence[str | Grid]] = [
        _instead(found, amount),
        _confusion(found) if found.question.of_errors else _shares(found, amount),
        _chart(found, amount),
        *segment_tables(found, amount, arguments.top),
        notes(found),
        next_commands(found, arguments),
    ]
    return [*_head(found, amount), *(part for block in blocks if block for part in ("", *block))]


def _head(found: Answer, amount: Amount) -> list[str]:
    cost = found.cost
    rows = f"{count(cost.rows)} rows{' by weight' if found.rows.table.weight is not None else ''}"
    taken = {share.action: share.rows for share in cost.shares}
    many = f"{count(taken.get(ACT, 0.0))} of {rows}" if found.question.of_errors else rows
    above = (most for name, most in found.question.capacity.items() if taken.get(name, 0.0) > most)
    over = "" if found.fits else f", over the capacity of {count(next(above))}"
    widths = " and ".join(f"{name} (±{amount(half)})" for name, half in cost.half_widths.items())
    lines = [
        f"{sentence(found)}: {many}{over}",
        f"{unit(found)} {amount(cost.estimate)}, {amount.span(cost)} at {level_of(found)}",
        found.question.told(),
    ]
    if not cost.evidence:
        return [*lines, f"the interval is {widths} alone: scores are taken at their word unless --labelled rows check them"]
    added = f"{'add' if cost.correction >= 0 else 'take'} {amount(abs(cost.correction))}"
    way = "to" if cost.correction >= 0 else "from"
    return [*lines, f"the interval is made of {widths}; {cost.evidence} {added} {way} what the scores say"]


def _instead(found: Answer, amount: Amount) -> list[str | Grid]:
    """Compare with what else could be done."""
    level = level_of(found)
    rows: list[tuple[str, ...]] = []
    for name, rule, cost, saved in [
        ("", found.rule, found.cost, None),
        *(("" if one.fits else " (over capacity)", one.rule, one.cost, one.saved) for one in found.instead),
    ]:
        acted = sum(share.rows for share in cost.shares if share.action == ACT)
        rows.append(
            (
                short(found, rule) + name,
                *([count(acted)] if found.question.of_errors else []),
                amount(cost.estimate),
                amount.span(cost),
                *(("", "") if saved is None else (amount(saved.estimate), amount.span(saved))),
            )
        )
    head = "act on" if found.question.of_errors else "rule"
    names = (
        head,
        *(["rows"] if found.question.of_errors else []),
        "cost",
        f"{level} interval",
        "rule saves",
        f"{level} interval",
    )
    return [Grid(names, rows, ("rows", "interval"))]


def _shares(found: Answer, amount: Amount) -> list[str | Grid]:
    """Say what falls to each action; costs are by the scores alone."""
    rule = found.rule
    ends = zip(found.cost.shares, rule.edges[:-1], rule.edges[1:], strict=True)
    rows: list[tuple[str, ...]] = [
        (
            share.action,
            between(low, high)[3:],
            count(share.rows),
            f"{share.positives:,.0f}",
            _total(found, amount)(share.cost),
        )
        for share, low, high in ends
    ]
    return [
        "what falls to each action, by the scores",
        Grid(("action", "scores", "rows", "positives", "cost"), rows),
    ]


def _total(found: Answer, amount: Amount) -> Amount:
    """Write totals, also where amounts are those of a row."""
    return amount if found.cost.target == "rows" else Amount([abs(share.cost) for share in found.cost.shares])


def _confusion(found: Answer) -> list[str | Grid]:
    """Count what is caught, missed and flagged wrongly."""
    if found.confusion is None:
        return []
    called = found.confusion
    kinds = (
        ("caught: positive, acted on", called.tp),
        ("missed: positive, passed over", called.fn),
        ("false alarms: negative, acted on", called.fp),
        ("negative, passed over", called.tn),
    )
    write = (lambda one: f"{one:,.0f}") if called.target == "rows" else number
    rows: list[tuple[str, ...]] = [(name, *map(write, of)) for name, of in kinds]
    rows += [
        (name, *(f"{100 * one:.1f}%" for one in of))
        for name, of in (("share of positives caught", called.recall), ("share of alarms that are right", called.precision))
        if not any(map(math.isnan, of))
    ]
    head = f"expected {'rows' if called.target == 'rows' else 'share of rows to come'}"
    return [Grid((head, "estimate", "low", "high"), rows)]


def _chart(found: Answer, amount: Amount) -> list[str | Grid]:
    """Draw the cost of thresholds in bars, the best one marked."""
    if not found.points:
        return []
    costs = [one.cost for one in found.points]
    nought = min(0.0, *costs)
    longest = (max(costs) - nought) or 1.0
    best = threshold_of(found.best.rule)
    best_of = "best by the scores" if found.cost.evidence else "best"  # labelled rows may know of a better one
    rows: list[tuple[str, ...]] = []
    for one in found.points:
        mark = best_of if one.threshold == best else "given" if one.threshold == found.question.threshold else ""
        name = "every row" if one.threshold == 0 else "no row" if math.isinf(one.threshold) else score(one.threshold)
        bar = _bar((one.cost - nought) / longest) if one.fits else "over capacity"
        rows.append((f"{name}{f'  <- {mark}' if mark else ''}", count(one.acted), amount(one.cost), bar))
    return [Grid(("threshold", "rows", "cost", ""), rows, ("rows",), bars=True)]


def _bar(share: float) -> str:
    """Draw a bar in eighths of a letter, or in # where the terminal has no such letters."""
    eighths = round(8 * WIDEST_BAR * share)
    drawn = "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8] or ("▏" if share else "")
    try:
        drawn.encode(getattr(sys.stdout, "encoding", None) or "utf-8")
    except UnicodeEncodeError:
        return "#" * math.ceil(WIDEST_BAR * share)
    return drawn


def answer_data(found: Answer) -> dict[str, Any]:
    """Give all of it as plain data."""
    told = found.rows.labelled
    return {
        "rule": sentence(found),
        "threshold": to_jsonable(found.rule.edges[1]) if len(found.rule.actions) == 2 else None,
        "fits": found.fits,
        "cost": found.cost.to_dict(),
        "instead": [
            {"rule": short(found, one.rule), "fits": one.fits, "cost": one.cost.to_dict(), "saved": _interval(one.saved)}
            for one in found.instead
        ],
        "confusion": None if found.confusion is None else found.confusion.to_dict(),
        "chart": [to_jsonable(one._asdict()) for one in found.points],
        "best": found.best.to_dict(),
        "by_segment": {name: cost.to_dict() for one in found.segments for name, cost in one.costs.items()},
        "all_segments": {" & ".join(one.cut.by): one.whole.to_dict() | {"by_segment": {}} for one in found.segments},
        "without_labelled_rows": [name for one in found.segments for name in one.unknown],
        "labelled": None if told is None or found.calibration is None else {
            "rows": len(told), "calibration": found.calibration.to_dict(), "p_value": found.p_value,
            "off": found.off, "moved": found.moved, "distance": found.cost.distance, "auc": to_jsonable(found.auc),
            "backwards": found.backwards,
        },
    }  # fmt: skip


def _interval(cost: ExpectedCost) -> dict[str, float]:
    return {name: getattr(cost, name) for name in ("estimate", "low", "high", "level")}
