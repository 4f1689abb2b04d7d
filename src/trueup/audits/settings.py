"""The parameters of an audit that determine its tests, and where its rows came from."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from trueup._validate import check_integer
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup.audits.materiality import Tolerance


@dataclass(frozen=True)
class AuditSettings:
    """The parameters of `audit` that determine which segments are tested, and how."""

    depth: int
    min_rows: int
    alpha: float
    adjust: str
    max_cells: int
    draws: int
    random_state: int
    family: str | None = None
    variance_power: float | None = None
    tolerance: Tolerance | None = None
    min_tested: int | str | None = None
    min_rows_total: int | None = None


@dataclass(frozen=True)
class Source:
    """Where the rows of an audit came from: files by name, size and digest, and the command that read them.

    ``fit`` is the command that fits a correction on the same rows, ``again`` one that audits them in clusters if they are
    not independent; ``training_rows`` is true if the rows look like those that the audited correction was fitted on.
    """

    files: tuple[tuple[str, int, str], ...]
    command: str
    fit: str = ""
    training_rows: bool = False
    again: str = ""


def parse_min_tested(given: Any) -> int | str | None:
    """Validate a number of segments (10, or the text "10") or a share of them ("80%"), and return it."""
    if given is None:
        return None
    hint = 'write 10 for ten segments, "80%" for a share of all segments that have rows'
    if not isinstance(given, str):
        check_integer("min_tested", given, 0, hint=hint)
        return int(given)
    plain = given.strip()
    if plain.isdecimal():
        return int(plain)
    try:
        share = float(plain.removesuffix("%")) if plain.endswith("%") else math.nan
    except ValueError:
        share = math.nan
    if not 0 <= share <= 100:
        problem = f"min_tested must be a number of segments or a percentage of them; got {given!r}"
        raise ArgumentError(problem, hint, parameter="min_tested")
    return f"{share:g}%"


def check_min_rows_total(given: Any) -> int | None:
    """Validate a number of rows with outcomes, and return it."""
    check_integer("min_rows_total", given, 1, optional=True)
    return None if given is None else int(given)
