"""All that a page of one audit shows besides its verdict and its table, put together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.reports.advice import USUAL, Step, next_step, reach
from trueup.reports.measures import Measure, Part, measures_of, split_of
from trueup.reports.pairs import MapView, view_map
from trueup.reports.provenance import provenance
from trueup.reports.whole import PathView, draw_path, portrait_of

if TYPE_CHECKING:
    from trueup.audits.result import Audit
    from trueup.reports.profiles import Words


@dataclass(frozen=True)
class Sheet:
    """The next step, the path of the differences, measures, the map, what could have been found, and where it is from."""

    step: Step
    path: PathView | None
    measures: tuple[Measure, ...]
    split: tuple[Part, ...]
    map: MapView | None
    reach: tuple[str, ...]
    provenance: tuple[tuple[str, str, bool], ...]


def view_sheet(audit: Audit, words: Words = USUAL) -> Sheet:
    """Put the sheet of one audit together, in the words of a trade."""
    portrait = portrait_of(audit)
    return Sheet(
        next_step(audit, words), draw_path(audit, portrait, words),
        measures_of(portrait, audit.mce_absolute, words.segments), split_of(portrait), view_map(audit, words),
        reach(audit, words), provenance(audit, portrait, words),
    )  # fmt: skip
