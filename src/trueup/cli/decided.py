"""A decision in words: the rule, what it costs and saves, and where."""

from __future__ import annotations

import math
import shlex
import sys
from typing import TYPE_CHECKING, Any

from trueup.audits.text import number, shorten
from trueup.cli.judging import threshold_of
from trueup.cli.question import ACT
from trueup.cli.terminal import Grid
from trueup.decisions.inputs import plain

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterable, Sequence

    from trueup.cli.judging import Answer
    from trueup.decisions import ExpectedCost, Rule

__all__ = ["answer_data", "answer_line", "answer_page"]

WIDEST_BAR = 30
SMALLEST, LARGEST = 1e-9, 1e15  # amounts between which all digits are written out
NAMED = 6  # segments that a note names


class Amount:
    """Write amounts of one page with the decimals that its largest ones need.

    Examples
    --------
    >>> Amount([12345.6, 20])(1234.56), Amount([0.0321])(0.0321), Amount([5.0])(-0.001)
    ('1,235', '0.0321', '0.00')
    >>> Amount([2e20])(1.5e20), Amount([3e-12])(0.0)
    ('1.5e+20', '0')
    """

    def __init__(self, amounts: Iterable[float]) -> None:
        self.largest = max((abs(one) for one in amounts), default=1.0) or 1.0
        self.decimals = max(0, 2 - math.floor(math.log10(self.largest)))
        self.readable = SMALLEST <= self.largest < LARGEST

    def __call__(self, value: float) -> str:
        if not self.readable:
            return f"{value + 0.0:.4g}"
        return f"{round(value, self.decimals) + 0.0:,.{self.decimals}f}"

    def span(self, cost: ExpectedCost) -> str:
        """Write an interval."""
        return f"{self(cost.low)} to {self(cost.high)}"


def _count(rows: float) -> str:
    """Write how many rows, or what they weigh."""
    return f"{round(rows, 1):,.10g}"


def _amounts(found: Answer) -> Amount:
    return Amount([found.cost.high, found.cost.low, *(one.cost.estimate for one in found.instead)])


def _score(threshold: float) -> str:
    return f"{threshold:.4g}"


def _acted(rule: Rule, score: str) -> str:
    """Say which rows are acted on, where acting or passing over is all there is."""
    at = next((at for at, action in enumerate(rule.actions) if action.name == ACT), None)
    if at is None or len(rule.actions) == 1:
        return "no row" if at is None else "every row"
    return f"{score} {_score(rule.edges[1])} or more" if at else f"{score} below {_score(rule.edges[1])}"


def _sentence(found: Answer) -> str:
    """Say the rule."""
    rule, prediction = found.rule, found.rows.prediction
    if found.question.of_errors:
        return f"act {'on' if len(rule.actions) == 1 else 'where'} {_acted(rule, f'{prediction} is')}"
    if len(rule.actions) == 1:
        return f"{rule.actions[0].name}: every row"
    ends = zip(rule.actions, rule.edges[:-1], rule.edges[1:], strict=True)
    return "; ".join(f"{action.name} where {prediction} {_between(low, high)}" for action, low, high in ends)


def _between(low: float, high: float) -> str:
    if low == -math.inf:
        return f"is below {_score(high)}"
    return f"is {_score(low)} or more" if high == math.inf else f"is {_score(low)} to below {_score(high)}"


def _unit(found: Answer) -> str:
    return "expected cost" if found.cost.target == "rows" else "expected cost a row"


def answer_line(found: Answer) -> str:
    """Say the rule and its cost on one line."""
    cost, amount = found.cost, _amounts(found)
    return f"{_sentence(found)}: {_unit(found)} {amount(cost.estimate)} ({amount.span(cost)} at {100 * cost.level:g}%)"


def answer_page(found: Answer, arguments: argparse.Namespace) -> list[str | Grid]:
    """Say all of it."""
    amount = _amounts(found)
    blocks: list[Sequence[str | Grid]] = [
        _instead(found, amount),
        _confusion(found) if found.question.of_errors else _shares(found, amount),
        _chart(found, amount),
        _by_segment(found, amount, arguments.top),
        _notes(found),
        _next(found, arguments),
    ]
    return [*_head(found, amount), *(part for block in blocks if block for part in ("", *block))]


def _head(found: Answer, amount: Amount) -> list[str]:
    cost = found.cost
    rows = f"{_count(cost.rows)} rows{' by weight' if found.rows.table.weight is not None else ''}"
    taken = {share.action: share.rows for share in cost.shares}
    many = f"{_count(taken.get(ACT, 0.0))} of {rows}" if found.question.of_errors else rows
    above = (most for name, most in found.question.capacity.items() if taken.get(name, 0.0) > most)
    over = "" if found.fits else f", over the capacity of {_count(next(above))}"
    widths = " and ".join(f"{name} (±{amount(half)})" for name, half in cost.parts.items())
    lines = [
        f"{_sentence(found)}: {many}{over}",
        f"{_unit(found)} {amount(cost.estimate)}, {amount.span(cost)} at {100 * cost.level:g}%",
    ]
    if not cost.told:
        return [*lines, f"the interval is {widths} alone: scores are taken at their word unless --labelled rows check them"]
    added = f"{'add' if cost.correction >= 0 else 'take'} {amount(abs(cost.correction))}"
    way = "to" if cost.correction >= 0 else "from"
    return [*lines, f"the interval is made of {widths}; {cost.told} {added} {way} what the scores say"]


def _instead(found: Answer, amount: Amount) -> list[str | Grid]:
    """Compare with what else could be done."""
    level = f"{100 * found.cost.level:g}%"
    rows: list[tuple[str, ...]] = []
    for name, rule, cost, saved in [
        ("", found.rule, found.cost, None),
        *(("" if one.fits else " (over capacity)", one.rule, one.cost, one.saved) for one in found.instead),
    ]:
        acted = sum(share.rows for share in cost.shares if share.action == ACT)
        rows.append(
            (
                _short(found, rule) + name,
                *([_count(acted)] if found.question.of_errors else []),
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


def _short(found: Answer, rule: Rule) -> str:
    if found.question.of_errors:
        return _acted(rule, f"{found.rows.prediction} of")
    return f"{rule.actions[0].name}: every row" if len(rule.actions) == 1 else "the best rule"


def _shares(found: Answer, amount: Amount) -> list[str | Grid]:
    """Say what falls to each action; costs are by the scores alone."""
    rule = found.rule
    ends = zip(found.cost.shares, rule.edges[:-1], rule.edges[1:], strict=True)
    rows: list[tuple[str, ...]] = [
        (
            share.action,
            _between(low, high)[3:],
            _count(share.rows),
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
    best_of = "best by the scores" if found.cost.told else "best"  # labelled rows may know of a better one
    rows: list[tuple[str, ...]] = []
    for one in found.points:
        mark = best_of if one.threshold == best else "given" if one.threshold == found.question.threshold else ""
        name = "every row" if one.threshold == 0 else "no row" if math.isinf(one.threshold) else _score(one.threshold)
        bar = _bar((one.cost - nought) / longest) if one.fits else "over capacity"
        rows.append((f"{name}{f'  <- {mark}' if mark else ''}", _count(one.acted), amount(one.cost), bar))
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


def _by_segment(found: Answer, amount: Amount, top: int) -> list[str | Grid]:
    """Say what segments cost, the largest cost first."""
    if not found.by_segment or not top:
        return []
    names = [ACT] if found.question.of_errors else [action.name for action in found.rule.actions]
    ordered = sorted(found.by_segment.items(), key=lambda one: (-one[1].estimate, one[0]))
    known = found.labelled
    shown: list[tuple[str, ExpectedCost, int]] = [(name, cost, known[name]) for name, cost in ordered[:top]]
    if found.whole is not None and found.cost.told:
        shown.append(("all, each by its own labelled rows", found.whole, sum(known.values())))
    rows: list[tuple[str, ...]] = []
    for name, cost, told in shown:
        taken = {share.action: share.rows for share in cost.shares}
        each = [_count(taken.get(one, 0.0)) for one in names]
        costs = [amount(one) for one in (cost.estimate, cost.low, cost.high)]
        rows.append(
            (f"{name} *" if not told and found.cost.told else name, _count(cost.rows), *each, *costs)
            + ((f"{told:,}",) if found.cost.told else ())
        )
    level = f"{100 * found.cost.level:g}%"
    head = (
        "segment",
        "rows",
        *(("acted on",) if found.question.of_errors else map(shorten, names)),
        "cost",
        f"low, {level}",
    )
    head += (f"high, {level}", *(("labelled",) if found.cost.told else ()))
    lines: list[str | Grid] = [Grid(head, rows, ("labelled", "rows"))]
    if len(ordered) > top:
        lines.append(f"{len(ordered) - top:,} more: --top {len(ordered)}")
    if found.unknown:
        lines.append(f"* no labelled rows: the scores are taken at their word ({_listed(found.unknown)})")
    return lines


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - NAMED:,} more" if len(names) > NAMED else ""
    return ", ".join(shorten(name) for name in names[:NAMED]) + more


def _notes(found: Answer) -> list[str]:
    """Say what the figures rest on."""
    lines, table, told = [], found.rows.table, found.rows.labelled
    if told is not None and found.calibration is not None:
        far = found.calibration
        chance = "more than chance does" if found.off else "no more than chance does"
        most = f"{number(far.upper, 2)} at {100 * found.cost.level:g}%"
        lines.append(
            f"calibration by {len(told):,} labelled rows: errors add up to {number(far.value, 2)} a row over some interval "
            f"of scores, {chance} (p = {number(found.p_value, 2)}); at most {most}"
        )
        where = "have moved away from" if found.moved else "are where those of"
        where += " those of the labelled rows" if found.moved else " the labelled rows are"
        lines.append(f"the scores {where} (distance of their distributions {found.cost.distance:.3f})")
        if told.unlabelled:
            lines.append(f"{told.unlabelled:,} labelled rows without an outcome were set aside")
    weightless = table.weightless + (0 if told is None else told.weightless)
    if weightless:
        lines.append(f"{weightless:,} rows of weight 0 were left out")
    fixed = sum(action.fixed for action in found.rule.actions)
    if fixed and found.cost.target == "population":
        lines.append("what it costs to act at all is left out of the cost a row")
    elif fixed and found.by_segment:
        lines.append("what it costs to act at all is part of the total, and of no segment")
    return lines


def _next(found: Answer, arguments: argparse.Namespace) -> list[str]:
    """Name the commands that put scores right which are off."""
    if not found.off:
        return []
    column, source = found.rows.prediction, " ".join(map(shlex.quote, arguments.files)) or "FILE"
    told = " ".join(map(shlex.quote, arguments.labelled))
    features = f" --features {shlex.quote(','.join(found.rows.by))}" if found.rows.by else ""
    roles = f"--outcome {shlex.quote(arguments.outcome)} --prediction {shlex.quote(column)}"
    return [
        f"the scores are off; put them right, and decide by {column}_trueup:",
        f"  trueup fit {told} {roles}{features} -o model.trueup",
        f"  trueup predict model.trueup {source} -o scored.parquet",
    ]


def answer_data(found: Answer) -> dict[str, Any]:
    """Give all of it as plain data."""
    told = found.rows.labelled
    return {
        "rule": _sentence(found),
        "threshold": plain(found.rule.edges[1]) if len(found.rule.actions) == 2 else None,
        "fits": found.fits,
        "cost": found.cost.to_dict(),
        "instead": [
            {"rule": _short(found, one.rule), "fits": one.fits, "cost": one.cost.to_dict(), "saved": _interval(one.saved)}
            for one in found.instead
        ],
        "confusion": None if found.confusion is None else found.confusion.to_dict(),
        "chart": [plain(one._asdict()) for one in found.points],
        "best": found.best.to_dict(),
        "by_segment": {name: one.to_dict() for name, one in found.by_segment.items()},
        "all_segments": None if found.whole is None else found.whole.to_dict() | {"by_segment": {}},
        "without_labelled_rows": found.unknown,
        "labelled": None if told is None or found.calibration is None else {
            "rows": len(told), "calibration": found.calibration.to_dict(), "p_value": found.p_value,
            "off": found.off, "moved": found.moved, "distance": found.cost.distance,
        },
    }  # fmt: skip


def _interval(cost: ExpectedCost) -> dict[str, float]:
    return {name: getattr(cost, name) for name in ("estimate", "low", "high", "level")}
