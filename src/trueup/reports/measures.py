"""How good the scores are, in numbers with plain words, and how the Brier score is made up."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from trueup.audits.text import number

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup.audits.portrait import Portrait

ACROSS = "multicalibration error"
WORDS = {
    "brier": ("Brier score", "mean squared distance of scores from outcomes; lower is better"),
    "log loss": ("log loss", "mean surprise at the outcomes, in nats; lower is better"),
    "normalized entropy": ("normalised entropy", "log loss over that of always saying the mean; below 1 the scores help"),
    "auc": ("AUC", "chance that a row with the outcome has the higher score; 0.5 is guessing. Calibration aside"),
    "slope": ("slope", "1 is right; below 1 the scores are too extreme, above 1 too timid"),
    "intercept": ("intercept", "0 is right, given the slope; in units of the logit"),
    "in the large": ("calibration in the large", "0 is right; above 0 too little was predicted; in units of the logit"),
    "rmse": ("root mean squared error", "typical distance of predictions from outcomes, in their units"),
}


@dataclass(frozen=True)
class Measure:
    """One measure: its name, its value with its 95% limits where it has some, and what it means."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True)
class Part:
    """A part of the Brier score, as a bar from ``start`` on, in hundredths of the widest."""

    name: str
    value: str
    meaning: str
    start: float
    width: float
    kind: str


def measures_of(portrait: Portrait | None, across: float = math.nan, segments: str = "segments") -> tuple[Measure, ...]:
    """List the measures that have a meaning here; last, where it is known, the error across all segments."""
    found = {} if portrait is None else portrait.scores
    listed = [
        Measure(name, _with_error(found, key), meaning)
        for key, (name, meaning) in WORDS.items()
        if math.isfinite(found.get(key, math.nan))
    ]
    if math.isfinite(across):
        listed.append(
            Measure(ACROSS, number(across, 4), f"the worst sigma of all {segments} in units of the score; lower is better")
        )
    return tuple(listed)


def _with_error(found: Mapping[str, float], key: str) -> str:
    half = 1.96 * found.get(f"{key}_se", math.nan)
    if not math.isfinite(half) or not half > 0:
        return number(found[key], 4)
    decimals = min(max(1 - math.floor(math.log10(half)), 0), 12)
    return f"{found[key]:.{decimals}f} ± {half:.{decimals}f}"


def split_of(portrait: Portrait | None) -> tuple[Part, ...]:
    """Split the Brier score: uncertainty - discrimination + miscalibration (CORP; Dimitriadis et al., 2021)."""
    names = ("uncertainty", "discrimination", "miscalibration", "brier")
    found = [math.nan if portrait is None else portrait.scores.get(name, math.nan) for name in names]
    if not all(math.isfinite(value) for value in found):
        return ()
    uncertainty, discrimination, miscalibration, brier = found
    left = uncertainty - discrimination
    widest = max(uncertainty, brier) or 1.0

    def part(name: str, value: float, sign: str, meaning: str, start: float, kind: str) -> Part:
        begin, width = (round(100 * size / widest, 2) for size in (max(start, 0.0), max(value, 0.0)))
        return Part(name, sign + number(value, 4), meaning, begin, width, kind)

    return (
        part("uncertainty", uncertainty, "", "the score of always saying the mean", 0.0, "plain"),
        part("discrimination", discrimination, "− ", "what telling rows apart wins", left, "won"),
        part("miscalibration", miscalibration, "+ ", "what wrong levels lose: a fix can win it back", left, "lost"),
        part("Brier score", brier, "= ", "what is left", 0.0, "whole"),
    )
