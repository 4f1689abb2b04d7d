"""Numbers as options take them. Imports nothing but the standard library, so that help comes at once."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable


def at_least(least: int) -> Callable[[str], int]:
    """Read a whole number that is not below another."""

    def whole(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = least - 1
        if value < least:
            raise argparse.ArgumentTypeError(f"a whole number of at least {least} is needed; got {text!r}")
        return value

    return whole


def number(text: str) -> float:
    """Read a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"a number is needed; got {text!r}") from None


def within(low: float, high: float, *, ends: bool) -> Callable[[str], float]:
    """Read a number between two others, which may be reached or not; infinity and nan never are numbers."""

    def bounded(text: str) -> float:
        value = number(text)
        if not math.isfinite(value) or not (low <= value <= high if ends else low < value < high):
            between = "finite number" if math.isinf(high) else f"number between {low:g} and {high:g}"
            raise argparse.ArgumentTypeError(f"a {between} is needed; got {text!r}")
        return value

    return bounded
