"""Checks of the parameters of calibrators, each named as the user wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping


def check_whole(owner: Any, bounds: Mapping[str, tuple[int, int]], *, optional: bool = False) -> None:
    """Ask that parameters are whole numbers within bounds, which they may reach; None is one only where optional."""
    for name, (least, most) in bounds.items():
        value = getattr(owner, name)
        if value is None and optional:
            continue
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or not least <= value <= most:
            raise ArgumentError(f"{name} must be a whole number from {least:,} to {most:,}; got {value!r}")


def check_numbers(
    owner: Any, bounds: Mapping[str, tuple[float, float]], *, above: bool = False, optional: bool = False
) -> None:
    """Ask that parameters are finite numbers within bounds, the lower one not reached where ``above``."""
    for name, (least, most) in bounds.items():
        value = getattr(owner, name)
        if value is None and optional:
            continue
        number = isinstance(value, (int, float, np.number)) and not isinstance(value, bool) and bool(np.isfinite(value))
        if not number or value > most or value < least or (above and value == least):
            rule = f"above {least:g}" if above else f"at least {least:g}"
            upto = "" if most == np.inf else f" and at most {most:g}"
            raise ArgumentError(f"{name} must be a number {rule}{upto}; got {value!r}")
