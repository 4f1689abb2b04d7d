"""What a reader of files asks of each value; a refusal becomes a FileError that names the file."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from trueup._types import AnyArray


class Refusal(Exception):  # noqa: N818  (never leaves the package: it becomes a FileError)
    """What is in the file is not what trueup writes."""


def require(holds: bool, otherwise: str) -> None:  # noqa: FBT001
    """Refuse the file where something does not hold."""
    if not holds:
        raise Refusal(otherwise)


def is_whole(value: object) -> bool:
    """Say whether a value is a whole number, which True is not."""
    return isinstance(value, int) and not isinstance(value, bool)


def are_numbers(*values: object) -> bool:
    """Say whether all are finite numbers; JSON has whole numbers of any size, and reads 1e999 as infinite."""
    try:
        return all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in values)
    except OverflowError:
        return False


def texts(found: Any, what: str) -> tuple[str, ...]:
    """Read a list of texts."""
    require(isinstance(found, list) and all(isinstance(text, str) for text in found), f"{what} must be texts")
    return tuple(found)


def numbers(part: bytes, kind: str) -> AnyArray:
    """Read a part as an array of its own, in the order of bytes of this machine."""
    stored = np.frombuffer(part, np.dtype(kind))
    return stored.astype(stored.dtype.newbyteorder("="))
