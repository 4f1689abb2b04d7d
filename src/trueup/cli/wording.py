"""Rules, amounts and intervals of a decision, in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from trueup.cli.question import ACT

if TYPE_CHECKING:
    from collections.abc import Iterable

    from trueup.cli.judging import Answer
    from trueup.decisions import ExpectedCost, Rule

SMALLEST, LARGEST = 1e-9, 1e15  # amounts between which all digits are written out
DIGITS, DIGITS_A_ROW = 3, 4


class Amount:
    """Write amounts of one page with the decimals that its largest ones need.

    Examples
    --------
    >>> Amount([12345.6, 20])(1234.56), Amount([0.0321])(0.0321), Amount([5.0])(-0.001)
    ('1,235', '0.0321', '0.00')
    >>> Amount([2e20])(1.5e20), Amount([3e-12])(0.0), Amount([33.74], 4)(33.74), Amount([1.0])(math.nan)
    ('1.5e+20', '0', '33.74', '')
    """

    def __init__(self, amounts: Iterable[float], digits: int = DIGITS) -> None:
        self.largest = max((abs(one) for one in amounts), default=1.0) or 1.0
        self.decimals = max(0, digits - 1 - math.floor(math.log10(self.largest)))
        self.readable = SMALLEST <= self.largest < LARGEST

    def __call__(self, value: float) -> str:
        """Write one; nothing where there is none."""
        if math.isnan(value):
            return ""
        if not self.readable:
            return f"{value + 0.0:.4g}"
        return f"{round(value, self.decimals) + 0.0:,.{self.decimals}f}"

    def span(self, cost: ExpectedCost) -> str:
        """Write an interval."""
        return f"{self(cost.low)} to {self(cost.high)}"


def count(rows: float) -> str:
    """Write how many rows, or what they weigh."""
    return f"{round(rows, 1):,.10g}"


def amounts(found: Answer) -> Amount:
    """Say how to write the amounts of a page; the cost of one row is small beside that of doing the wrong thing."""
    cost = found.cost
    if cost.target == "population":
        return Amount([cost.estimate or cost.high], DIGITS_A_ROW)
    return Amount([cost.high, cost.low, *(one.cost.estimate for one in found.instead)])


def score(threshold: float) -> str:
    """Write a score."""
    return f"{threshold:.4g}"


def level_of(found: Answer) -> str:
    """Write how often an interval is to hold."""
    return f"{100 * found.cost.level:g}%"


def acted(rule: Rule, name: str) -> str:
    """Say which rows are acted on, where acting or passing over is all there is."""
    at = next((at for at, action in enumerate(rule.actions) if action.name == ACT), None)
    if at is None or len(rule.actions) == 1:
        return "no row" if at is None else "every row"
    return f"{name} {score(rule.edges[1])} or more" if at else f"{name} below {score(rule.edges[1])}"


def sentence(found: Answer) -> str:
    """Say the rule."""
    rule, prediction = found.rule, found.rows.prediction
    if found.question.of_errors:
        return f"act {'on' if len(rule.actions) == 1 else 'where'} {acted(rule, f'{prediction} is')}"
    if len(rule.actions) == 1:
        return f"{rule.actions[0].name}: every row"
    ends = zip(rule.actions, rule.edges[:-1], rule.edges[1:], strict=True)
    return "; ".join(f"{action.name} where {prediction} {between(low, high)}" for action, low, high in ends)


def between(low: float, high: float) -> str:
    """Say of which scores something is."""
    if low == -math.inf:
        return f"is below {score(high)}"
    return f"is {score(low)} or more" if high == math.inf else f"is {score(low)} to below {score(high)}"


def short(found: Answer, rule: Rule) -> str:
    """Say a rule in a table."""
    if found.question.of_errors:
        return acted(rule, f"{found.rows.prediction} of")
    return f"{rule.actions[0].name}: every row" if len(rule.actions) == 1 else "the best rule"


def unit(found: Answer) -> str:
    """Say what the cost is of."""
    return "expected cost" if found.cost.target == "rows" else "expected cost a row"
