"""Old names of `trueup.calibrators.map`, until every codec lives beside its map."""

from __future__ import annotations

from typing import TYPE_CHECKING

from trueup.calibrators.map import are_finite as are_numbers
from trueup.calibrators.map import is_integer as is_whole
from trueup.calibrators.map import read_texts as texts
from trueup.calibrators.map import require, unpack_arrays

if TYPE_CHECKING:
    from trueup._types import AnyArray

__all__ = ["are_numbers", "is_whole", "numbers", "require", "texts"]


def numbers(part: bytes, kind: str) -> AnyArray:
    """Return a copy of one array."""
    return unpack_arrays({"": kind}, {"": part})[0]
