"""The choice among methods: the rule, by the loss and by the audit of held-out rows, and the result with its reason."""

from __future__ import annotations

import textwrap
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.calibrators import stopping
from trueup.data.columns import frame_like
from trueup.metrics.result import html_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup._types import FloatArray, IntArray

IDENTITY = "identity"
CHOICE_ERRORS = 1.0  # standard errors within which a simpler method is chosen
MAX_LOST_SHARE = 0.1  # of the gain of the best method that a simpler one may lose
REPR_WIDTH = 100
CROSS_FIT_NOTE = " (cannot show a cross-fit's own errors)"


class LossDifference(NamedTuple):
    """The mean difference of two losses on the same rows, and its standard error."""

    mean: float
    error: float
    tolerance: float  # the difference that counts as a tie: one standard error, or more if a handful of rows dominate it


def compare_losses(
    losses: FloatArray, best: FloatArray, weight: FloatArray | None, cluster: IntArray | None = None
) -> LossDifference:
    """Return the mean of ``losses - best``, paired by row, with its standard error and the tolerance for a tie."""
    mean, error, rows = stopping.paired_gain(losses - best, weight, cluster=cluster)
    loss = float(np.average(losses, weights=weight))
    return LossDifference(mean, error, stopping.required_gain(CHOICE_ERRORS, error, rows, loss))


class MethodSelection(NamedTuple):
    """The chosen method, the one of lowest loss, and those that an audit excluded for miscalibrated segments: indices."""

    chosen: int
    best: int
    excluded: tuple[int, ...] = ()  # simpler than the chosen one and within noise of the best, with more such segments


def choose_simplest(
    losses: Sequence[FloatArray],
    base: FloatArray,
    weight: FloatArray | None,
    cluster: IntArray | None = None,
    *,
    kept: Sequence[bool] = (),
    count_segments: Callable[[int], int] | None = None,
) -> MethodSelection:
    """Choose a method from the losses of held-out rows, the simplest method first.

    A method corrects the scores, whose losses are ``base``, if its gain exceeds the tolerance of one standard error, or if
    it is positive and its own rule ``kept`` the correction. If no method does, the first that ties with the best wins.
    Otherwise a correction ties with the best one if it is within one standard error of the paired difference (Breiman et
    al. 1984, section 3.4.3) and loses at most MAX_LOST_SHARE of the gain: large errors do not excuse a poor method. Of
    these, and of simpler corrections with a lower loss than one of them, the simplest wins among those with the fewest
    miscalibrated segments, which ``count_segments`` returns for an index.
    """
    means = [float(np.average(row_losses, weights=weight)) for row_losses in losses]
    gains = [compare_losses(base, row_losses, weight, cluster) for row_losses in losses]
    own = [bool(kept) and kept[number] for number in range(len(losses))]
    corrections = [n for n, gain in enumerate(gains) if gain.mean > (0.0 if own[n] else gain.tolerance)]
    pool = corrections or list(range(len(losses)))
    best = min(pool, key=means.__getitem__)
    near = []
    for number in pool:
        behind = compare_losses(losses[number], losses[best], weight, cluster)
        loses_little = not corrections or behind.mean <= MAX_LOST_SHARE * gains[best].mean
        if number == best or (behind.mean <= behind.tolerance and loses_little):
            near.append(number)
    # A simpler method of lower loss is not worse, though its smaller standard error may separate it from the best.
    ties = [number for number in pool if any(number <= other and means[number] <= means[other] for other in near)]
    if len(ties) == 1 or not corrections or count_segments is None:
        return MethodSelection(ties[0], best)
    segments = {number: count_segments(number) for number in ties}
    fewest = min(segments.values())
    chosen = next(number for number in ties if segments[number] == fewest)
    return MethodSelection(chosen, best, tuple(number for number in ties if number < chosen))


@dataclass(frozen=True)
class Candidate:
    """One method that was evaluated: its loss, and its differences from no correction and from the best method."""

    name: str  # as in ``methods``; a second method of the same class has a 2 after it
    title: str  # as in a sentence
    loss: float  # cross-validated; if dropped early, that of the best plus what it was behind so far
    gain: float  # the loss of the uncorrected scores minus that of the method
    gain_error: float  # its standard error
    behind: float  # the loss of the method minus that of the best
    behind_error: float
    folds: int  # the number of folds it was evaluated on: fewer than the best if it was dropped early
    chosen: bool
    segments: int | None = None  # miscalibrated in an audit of the held-out rows; None if that was not needed
    note: str = ""  # why it was dropped, or that it changes nothing
    seconds: float = field(default=0.0, compare=False)  # the time of the evaluation


@dataclass(frozen=True)
class Choice:
    """The chosen method, and why it was chosen."""

    method: str  # "identity" leaves scores unchanged
    candidates: tuple[Candidate, ...]  # the simplest first; empty if there were too few rows to choose
    lines: tuple[str, ...]  # the reason: what was chosen and why, the held-out losses, the audit of held-out rows
    measure: str  # "log loss" or "squared error"
    rows: int  # the number of rows of the evaluation

    @property
    def sentence(self) -> str:
        """Return the first line of the reason: the method, and why it was chosen."""
        return self.lines[0]

    @property
    def shrunken_gain(self) -> float:
        """Return the gain of the chosen method, shrunken since the best of several is chosen; 0 without a correction."""
        chosen = [item for item in self.candidates if item.chosen and item.name != IDENTITY]
        return stopping.shrink_gain(chosen[0].gain, chosen[0].gain_error, CHOICE_ERRORS) if chosen else 0.0

    def to_dict(self) -> dict[str, Any]:
        """Return all fields, and those of the candidates, as plain data."""
        return {
            **asdict(self), "candidates": [asdict(candidate) for candidate in self.candidates],
            "lines": list(self.lines), "sentence": self.sentence, "shrunken_gain": self.shrunken_gain,
        }  # fmt: skip

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per candidate, as a frame of the library of ``like``; a dict of arrays without it."""
        names = ("name", "loss", "gain", "gain_error", "behind", "behind_error", "folds", "chosen", "note", "seconds")
        columns = {name: np.array([getattr(item, name) for item in self.candidates]) for name in names}
        segments = [np.nan if item.segments is None else item.segments for item in self.candidates]
        return frame_like({**columns, "segments": np.array(segments, np.float64)}, like)

    def table_lines(self) -> list[str]:
        """Return the candidates as an aligned table, one line each."""
        if not self.candidates:
            return []
        wide = max(6, *(len(candidate.name) for candidate in self.candidates))
        lines = [
            f"    {'method':<{wide}}  {self.measure:>13}  {'gain (s.e.)':>20}  {'behind (s.e.)':>20}  segments  seconds"
        ]
        for c in self.candidates:
            gain, behind = (
                "" if value == error == 0 else f"{value:.3g} ({error:.2g})"  # no difference of a method to itself
                for value, error in ((c.gain, c.gain_error), (c.behind, c.behind_error))
            )
            mark, segments = "->" if c.chosen else "  ", "" if c.segments is None else f"{c.segments:,}"
            numbers = f"{c.loss:>13.6g}  {gain:>20}  {behind:>20}  {segments:>8}  {c.seconds:>7.2f}"
            lines.append(f" {mark} {c.name:<{wide}}  {numbers}{'  ' * bool(c.note)}{c.note}")
        return lines

    def __repr__(self) -> str:
        lines = [part for line in self.lines for part in textwrap.wrap(line, REPR_WIDTH, subsequent_indent="  ")]
        return "\n".join([*lines, *self.table_lines()])

    def _repr_html_(self) -> str:
        heads = ("method", self.measure, "gain", "s.e.", "behind", "s.e.", "segments", "seconds", "")
        rows = [
            (c.name, f"{c.loss:.6g}", *(f"{value:.3g}" for value in (c.gain, c.gain_error, c.behind, c.behind_error)),
             "" if c.segments is None else f"{c.segments:,}", f"{c.seconds:.2f}", c.note)
            for c in self.candidates
        ]  # fmt: skip
        chosen = [at for at, candidate in enumerate(self.candidates) if candidate.chosen]
        return html_table(self.sentence, heads, rows, bold=chosen, notes=self.lines[1:])


def explain_choice(
    candidates: Sequence[Candidate], selection: MethodSelection, before: float, measure: str, rows: int, *,
    base_segments: int | None = None, cross_fit: bool = False,
) -> tuple[str, str, str]:  # fmt: skip
    """Return the reason of a choice in three lines: the choice, the held-out losses, and the audit of held-out rows.

    ``before`` and ``base_segments`` are the loss and the miscalibrated segments without a correction; ``cross_fit`` says
    that the chosen method is fitted to segments, so that errors of its fold models cancel on the held-out rows.
    """
    chosen = candidates[selection.chosen]
    if chosen.name == IDENTITY:
        others = [candidate for candidate in candidates if candidate.gain_error > 0]
        detectable = min(others, key=lambda other: other.loss).gain_error if others else 0.0
        limit = f": a gain below about {detectable:.2g} cannot be detected" if detectable else ""
        first = f"no correction: no method lowers the {measure} ({before:.6g}) significantly"
        return first, f"on {rows:,} held-out rows{limit}", _describe_audit(base_segments)
    shrunken = stopping.shrink_gain(chosen.gain, chosen.gain_error, CHOICE_ERRORS)
    gain = f"a gain of {chosen.gain:.3g} ({shrunken:.3g} shrunken)"
    second = f"on {rows:,} held-out rows: {measure} {before:.6g} -> {chosen.loss:.6g}, {gain}"
    third = _describe_audit(base_segments, chosen.segments, CROSS_FIT_NOTE if cross_fit else "")
    return f"chose {chosen.title}{_reason(candidates, selection, measure)}", second, third


def _reason(candidates: Sequence[Candidate], selection: MethodSelection, measure: str) -> str:
    """Return why a correction was chosen, to follow its name."""
    chosen, best = candidates[selection.chosen], candidates[selection.best]
    loss = f"{measure} {chosen.loss:.6g}"
    if len(candidates) == 1:
        return f", the only method to choose from: {loss}"
    if selection.excluded:
        simpler = candidates[selection.excluded[0]]
        left = f"{simpler.segments:,} segment{'' if simpler.segments == 1 else 's'} miscalibrated"
        return f": {simpler.title} is as good in {measure}, but leaves {left} ({chosen.title}: {chosen.segments:,})"
    if selection.chosen != selection.best:
        close = f"a standard error ({chosen.behind_error:.2g})" if chosen.behind <= chosen.behind_error else "noise"
        return f": {loss}, within {close} of {best.title}'s {best.loss:.6g}, and simpler"
    if selection.chosen == 0:
        return f": {loss}, the lowest, and it is the simplest"
    simpler_ones = [item for item in candidates[: selection.chosen] if item.name != IDENTITY and not item.note]
    if any(item.behind <= item.behind_error for item in simpler_ones):
        return f": {loss}, the lowest; no simpler method has {1 - MAX_LOST_SHARE:.0%} of its gain"
    return f": {loss}, significantly lower than that of any simpler method"


def _describe_audit(before: int | None, after: int | None = None, note: str = "") -> str:
    """Return the miscalibrated segments of held-out rows ``before`` and ``after`` the correction as a line of text."""
    if before is None:
        return "the audit of these rows was left out: too many classes"
    text = f"miscalibrated segments of these rows: {before:,}"
    return text if after is None else f"{text} before, {after:,} after{note}"
