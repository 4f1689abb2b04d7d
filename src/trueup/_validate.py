"""Validation of scalar parameters and of names: one function per kind of value, one wording for the whole package."""

from __future__ import annotations

import difflib
import math
import numbers
from typing import TYPE_CHECKING, Any

from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence

__all__ = ["MAX_INTEGER", "check_choice", "check_fraction", "check_integer", "check_number", "did_you_mean"]

MAX_INTEGER = 2**31 - 1  # of parameters that have no smaller limit
MIN_PREFIX, MAX_SUGGESTED = 2, 4  # letters that may abbreviate a name; names that are suggested


def check_integer(
    name: str,
    value: Any,
    low: int | None = None,
    high: int | None = None,
    *,
    optional: bool = False,
    hint: str | None = None,
) -> None:
    """Raise unless ``value`` is an integer in [low, high]; None is accepted if ``optional``."""
    if value is None and optional:
        return
    integer = isinstance(value, numbers.Integral) and not isinstance(value, bool)
    if not integer or (low is not None and value < low) or (high is not None and value > high):
        limits = _limits("at least {}", "at most {}", "from {} to {}", low, high, "{:,}")
        raise ArgumentError(f"{name} must be an integer{limits}; got {value!r}", hint, parameter=name)


def check_number(
    name: str,
    value: Any,
    low: float | None = None,
    high: float | None = None,
    *,
    above: bool = False,
    below: bool = False,
    optional: bool = False,
    hint: str | None = None,
) -> None:
    """Raise unless ``value`` is finite, in [low, high], or None if ``optional``; ``above`` excludes low, ``below`` high."""
    if value is None and optional:
        return
    number = _is_real(value) and _is_finite(value)
    low_fails = number and low is not None and (value < low or (above and value == low))
    high_fails = number and high is not None and (value > high or (below and value == high))
    if not number or low_fails or high_fails:
        lower, upper = "above {}" if above else "at least {}", "below {}" if below else "at most {}"
        limits = _limits(lower, upper, f"{lower} and {upper}", low, high, "{:g}")
        raise ArgumentError(f"{name} must be a number{limits}; got {value!r}", hint, parameter=name)


def check_fraction(name: str, value: Any, *, optional: bool = False, hint: str | None = None) -> None:
    """Raise unless ``value`` lies strictly between 0 and 1; None is accepted if ``optional``."""
    if value is None and optional:
        return
    if not _is_real(value) or not 0 < value < 1:
        raise ArgumentError(f"{name} must lie between 0 and 1; got {value!r}", hint, parameter=name)


def check_choice(name: str, value: Any, allowed: Collection[object], hint: str | None = None) -> None:
    """Raise unless ``value`` is one of the strings in ``allowed``."""
    if not isinstance(value, str) or value not in allowed:
        listed = ", ".join(repr(word) for word in allowed)
        raise ArgumentError(f"{name} must be one of {listed}; got {value!r}", hint, parameter=name)


def did_you_mean(
    name: str, names: Sequence[str], similarity: float = 0.6, write: Callable[[str], str] = repr, *, marks: str = ""
) -> str:
    """Return "did you mean 'region'?", or an empty text if none of ``names`` is similar.

    It is one that differs in case only, or those that begin with ``name``, or else the most similar one. Leading ``marks``,
    such as the hyphens of options, do not count as letters.
    """
    wanted = name.lower()
    found = [known for known in names if known.lower() == wanted][:1]
    if not found and len(wanted.lstrip(marks)) >= MIN_PREFIX:
        found = [known for known in names if known.lower().startswith(wanted)]
    if not 0 < len(found) <= MAX_SUGGESTED:
        found = difflib.get_close_matches(name, names, n=1, cutoff=similarity)
    if not found:
        return ""
    *others, last = map(write, found)
    return f"did you mean {', '.join(others)} or {last}?" if others else f"did you mean {last}?"


def _is_real(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _is_finite(value: Any) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # an integer beyond the range of float64
        return False


def _limits(lower: str, upper: str, both: str, low: float | None, high: float | None, style: str) -> str:
    low_text, high_text = ("" if limit is None else style.format(limit) for limit in (low, high))
    if low_text and high_text:
        return " " + both.format(low_text, high_text)
    if low_text:
        return " " + lower.format(low_text)
    return " " + upper.format(high_text) if high_text else ""
