"""SwapRegret and Witness: what a search over a class of functions found, worst first, and what it could not have found."""

from __future__ import annotations

import dataclasses
import html
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.text import number, shorten
from trueup.data.frame import frame_like, to_jsonable

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from trueup.data.schema import Schema

HEADINGS = ("score level", "rows judged", "observed", "predicted", "gain", "violation", "adjusted p", "witness")
WIDEST_RULE = 100


@dataclass(frozen=True)
class SwapSettings:
    """The parameters that decide what a verdict means."""

    learner: str
    levels: int
    held_out: float
    min_rows: int
    alpha: float
    random_state: int

    def plain(self) -> SwapSettings:
        """Give the same with Python's own numbers in place of NumPy's."""
        return SwapSettings(*(getattr(v, "item", lambda v=v: v)() for v in dataclasses.astuple(self)))


@dataclass(frozen=True)
class Witness:
    """What was found on one score level, or on all of them together; every number but ``rows`` is of held-out rows.

    Attributes
    ----------
    level : str
        The scores from ``low`` to ``high``.
    rows, rows_held : int
        Rows of the level, and how many of them judge the witness.
    predicted, observed : float
        Weighted means of score and outcome.
    gain, error : float
        How far the witness lowers the mean squared error, and the standard error of that.
    violation : float
        ``E[g (y - p)]`` for the witness g, the shift of the score; equal to ``(gain + E[g^2]) / 2``. 0 under calibration.
    correlation : float
        The violation over ``sqrt(E[g^2] E[(y - p)^2])``.
    p_value, p_adjusted : float
        Of the violation, one-sided; NaN where the level was not tested.
    mde : float
        The shift (its root mean square) that would be found with 80% power at alpha over the number of tests, by a witness
        that points in just its direction: at best.
    tested : bool
        False where there are too few rows to learn from or to be judged by.
    rule : str
        The witness in words: of a tree the leaf that carries most of the violation, with how far the score is off on its
        held-out rows; of a line the largest slopes.
    """

    level: str
    low: float
    high: float
    rows: int
    rows_held: int
    predicted: float
    observed: float
    gain: float
    error: float
    violation: float
    correlation: float
    p_value: float
    p_adjusted: float
    mde: float
    tested: bool
    rule: str

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        return {name: to_jsonable(value) for name, value in dataclasses.asdict(self).items()}

    def __repr__(self) -> str:
        told = f"adjusted p {number(self.p_adjusted, 2)}, {shorten(self.rule, 120)}" if self.tested else self.rule
        return (
            f"<scores {self.level}: {self.rows:,} rows, observed {number(self.observed)}, "
            f"predicted {number(self.predicted)}, gain {number(self.gain)} (error {number(self.error, 2)}), {told}>"
        )


COLUMNS = tuple(Witness.__dataclass_fields__)


@dataclass(frozen=True, eq=False, repr=False)
class SwapRegret:
    """The result of `trueup.swap_regret`: a verdict, and the witness of every score level behind it, worst first.

    Attributes
    ----------
    overall : Witness
        All tested levels together, each with its own witness: one of the family of tests.
    witnesses : tuple of Witness
        One a level, by adjusted p-value; those that could not be tested come last.
    k2 : float
        ``sum Pr[v] E[g (y - p) | v]^2 / E[g^2 | v]`` over levels v: K2 of Globus-Harris et al. (2023, definition 2.1) with
        every witness brought to size 1. By their theorem 3.2 (1) this much squared error goes away where scores move by the
        best multiple of each witness.
    k2_noise : float
        What noise alone adds to ``k2`` on average.
    rows, unlabelled, weightless : int
        Rows audited, and rows set aside.
    left_out : mapping
        Columns left out, and why.
    schema : Schema
    settings : SwapSettings
    """

    overall: Witness
    witnesses: tuple[Witness, ...]
    k2: float
    k2_noise: float
    rows: int
    unlabelled: int
    weightless: int
    left_out: Mapping[str, str]
    schema: Schema
    settings: SwapSettings
    shift: Any = field(repr=False)
    """The shift that the witnesses ask for, one number a row of the input; NaN for rows that were set aside."""
    held: Any = field(repr=False)
    """Which rows of the input were held out."""

    def __len__(self) -> int:
        return len(self.witnesses)

    def __iter__(self) -> Iterator[Witness]:
        """Go through the levels, worst first."""
        return iter(self.witnesses)

    @property
    def tested(self) -> int:
        """Number of levels tested."""
        return sum(one.tested for one in self.witnesses)

    @property
    def rejected(self) -> int:
        """Number of levels whose adjusted p-value is at most alpha."""
        return sum(one.p_adjusted <= self.settings.alpha for one in self.witnesses)

    @property
    def miscalibrated(self) -> bool:
        """Whether the scores can be improved on some level, or on all together, beyond chance."""
        return self.rejected > 0 or self.overall.p_adjusted <= self.settings.alpha

    @property
    def gain(self) -> float:
        """How far all witnesses together lower the mean squared error of held-out rows."""
        return self.overall.gain

    @property
    def error(self) -> float:
        """Standard error of the gain."""
        return self.overall.error

    @property
    def p_value(self) -> float:
        """P-value of all levels together, not adjusted."""
        return self.overall.p_value

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        return _verdict(self)

    def to_frame(self, like: Any = None) -> Any:
        """Give all levels together and then every level as a frame of the library that ``like`` comes from."""
        rows = [self.overall, *self.witnesses]
        columns = {name: np.array([getattr(one, name) for one in rows]) for name in COLUMNS}
        return frame_like({name: c.astype(object) if c.dtype.kind == "U" else c for name, c in columns.items()}, like)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON: the verdict, the settings, and the witnesses, worst first."""
        summary = ("verdict", "miscalibrated", "rows", "tested", "rejected", "k2", "k2_noise", "unlabelled", "weightless")
        roles = {name: getattr(self.schema, name) for name in ("task", "outcome", "prediction", "weight")}
        return {
            **{name: to_jsonable(getattr(self, name)) for name in summary},
            "roles": {name: list(role) if isinstance(role, tuple) else role for name, role in roles.items()},
            "features": [feature.name for feature in self.schema.features],
            "settings": dataclasses.asdict(self.settings),
            "left_out": dict(self.left_out),
            "overall": self.overall.to_dict(),
            "witnesses": [one.to_dict() for one in self.witnesses],
        }

    def __repr__(self) -> str:
        return _page(self)

    def _repr_html_(self) -> str:
        return _html(self)


def _verdict(result: SwapRegret) -> str:
    settings = result.settings
    if not result.tested:
        return "nothing could be tested: no score level has rows enough to learn from and to be judged by"
    level = f"{settings.alpha:.3g}" if settings.alpha < 0.001 else f"{100 * settings.alpha:g}%"
    family = f"{result.rejected} of {result.tested} score level{'' if result.tested == 1 else 's'} at {level} (Holm)"
    if not result.miscalibrated:
        return f"nothing found against {settings.learner}: {family}, all together p = {number(result.p_value, 2)}"
    start = f"miscalibrated against {settings.learner}: {family}"
    if not result.rejected:
        return f"{start}, but all together by p = {number(result.p_value, 2)}"
    worst = result.witnesses[0]
    return f"{start}, worst at scores {worst.level}: {shorten(worst.rule, 200)}"


def _notes(result: SwapRegret) -> list[str]:
    """Say what the numbers do not show."""
    whole = result.overall
    lines = []
    if result.tested:
        change = f"{'-' if whole.gain > 0 else '+'}{number(abs(whole.gain), 2)}"
        lines.append(
            f"the witnesses change the mean squared error of {whole.rows_held:,} held-out rows by {change} "
            f"(error {number(whole.error, 2)})"
        )
    if result.miscalibrated and whole.gain <= 0:
        lines.append(
            "they point the right way and go too far: the p-value is of the direction (violation), not of the gain; a fix "
            "moves part of the way"
        )
    if result.tested and not result.miscalibrated and not math.isnan(whole.mde):
        lines.append(
            f"a shift of {number(whole.mde, 2)} (root mean square) would have been found with 80% power, by a witness that "
            "points the right way"
        )
    thin = len(result) - result.tested
    if thin:
        lines.append(f"too thin to tell: {thin:,} score level{'' if thin == 1 else 's'}")
    lines += [f"column {shorten(name)} left out: {reason}" for name, reason in result.left_out.items()]
    if result.unlabelled:
        lines.append(f"{result.unlabelled:,} rows without an outcome were set aside")
    if result.weightless:
        lines.append(f"{result.weightless:,} rows of weight 0 were left out")
    return lines


def _cells(one: Witness) -> tuple[str, ...]:
    return (
        one.level,
        f"{one.rows_held:,}",
        number(one.observed),
        number(one.predicted),
        number(one.gain, 2),
        number(one.violation, 2),
        number(one.p_adjusted, 2) if one.tested else "not tested",
        one.rule,
    )


def _page(result: SwapRegret) -> str:
    rows = [HEADINGS, *(_cells(one) for one in (result.overall, *result.witnesses))]
    rows = [(*row[:-1], shorten(row[-1], WIDEST_RULE)) for row in rows]
    widths = [max(len(row[at]) for row in rows) for at in range(len(HEADINGS))]
    last = len(HEADINGS) - 1
    lines = [
        "  ".join(
            cell.ljust(w) if at in (0, last) else cell.rjust(w)
            for at, (cell, w) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return "\n".join([result.verdict, "", *lines, "", *_notes(result)]).rstrip()


def _html(result: SwapRegret) -> str:
    head = "".join(f"<th>{html.escape(name)}</th>" for name in HEADINGS)
    body = "".join(
        "<tr>" + "".join(f"<td>{html.escape(shorten(cell, 200))}</td>" for cell in _cells(one)) + "</tr>"
        for one in (result.overall, *result.witnesses)
    )
    below = "".join(f"<li>{html.escape(note)}</li>" for note in _notes(result))
    return (
        f"<div><p><strong>{html.escape(result.verdict)}</strong></p>"
        f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table><ul>{below}</ul></div>"
    )
