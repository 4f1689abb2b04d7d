"""What it gains to act from a threshold on, a row: sums over all thresholds at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.decisions.evidence import Labelled, quantile, upper_bound
from trueup.metrics.inference import likely_root
from trueup.metrics.inputs import Scored

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import FloatArray
    from trueup.decisions.evidence import Bound
    from trueup.decisions.inputs import Target, Unlabelled


class Gain(NamedTuple):
    """Net benefit, or a difference of two, at each threshold: an estimate and the ends of its interval."""

    estimate: FloatArray
    low: FloatArray
    high: FloatArray


class Acting(NamedTuple):
    """Rows that are acted on at each threshold: sums of w, w y, w^2, w^2 y and w^2 y^2, one entry a threshold."""

    w: FloatArray
    wy: FloatArray
    ww: FloatArray
    wwy: FloatArray
    wwyy: FloatArray

    @classmethod
    def on(cls, rows: Scored, score: FloatArray, thresholds: FloatArray) -> tuple[Acting, Acting]:
        """Sum over the rows whose score is the threshold or more, and over all rows."""
        y, w = rows.y, rows.w
        sums = _from(score, thresholds, w, w * y, w**2, w**2 * y, (w * y) ** 2)
        return cls(*sums[:, 1:]), cls(*np.repeat(sums[:, :1], len(thresholds), axis=1))

    def less(self, other: Acting) -> Acting:
        """Take rows away that are part of these."""
        return Acting(*(one - two for one, two in zip(self, other, strict=True)))

    def total(self, t: FloatArray) -> FloatArray:
        """Sum w g, where a row gains g = y - (1 - y) t/(1 - t)."""
        return np.asarray(self.wy - (self.w - self.wy) * odds(t))

    def squared(self, t: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Sum w^2 g and w^2 g^2."""
        o = odds(t)
        mixed = self.wwy - self.wwyy  # of w^2 y (1 - y): nought unless labels are soft
        return self.wwy - (self.ww - self.wwy) * o, self.wwyy - 2 * o * mixed + o**2 * (self.ww - self.wwy - mixed)


def odds(t: FloatArray) -> FloatArray:
    """Give how many true positives a false one costs, for one who acts from the probability t on."""
    return np.asarray(t / (1 - t))


def compare(one: Acting, other: Acting, both: Acting, rows: Scored, t: FloatArray, reach: FloatArray, level: float) -> Gain:
    """Say what acting on some rows gains over acting on others, where outcomes are known.

    Parameters
    ----------
    one, other, both : Acting
        Rows acted on by one, by the other, and by both.
    rows : Scored
    t : ndarray
        Thresholds.
    reach : ndarray, shape (2, len(t))
        The least and the most that one row's difference can be.
    level : float

    Notes
    -----
    With d a row's difference, D their mean and V the bound on sum w^2 (d - D)^2 that holds for few events, too (see
    `metrics.inference.likely_root`): D +- z sqrt(V) / W. The mean is overestimated where large losses did not happen to
    come up, and underestimated where large gains did not, so that each end is widened by what a row can be on that side.
    """
    weight, heaviest = float(rows.w.sum()), float(rows.w.max())
    mean = (one.total(t) - other.total(t)) / weight
    (once, square), (once_other, square_other), (_, square_both) = (each.squared(t) for each in (one, other, both))
    left = square + square_other - 2 * square_both - 2 * mean * (once - once_other) + mean**2 * float(np.sum(rows.w**2))
    squares = np.maximum(left, 0.0)
    sides = (1 - level) / 2
    half = [likely_root(squares, heaviest * np.abs(end - mean), sides) * quantile(sides) / weight for end in reach]
    return _within(mean, half[0], half[1], *reach)


def expect(
    parts: Sequence[tuple[str | None, Unlabelled]],
    t: FloatArray,
    bound: Bound | None,
    level: float,
    target: Target,
    sign: int,
) -> tuple[Gain, dict[str, FloatArray]]:
    """Say what acting gains over acting on none (sign 1) or on all (sign -1), where outcomes are not known.

    Notes
    -----
    These are the intervals of `expected_cost`, the other way up, for the actions "pass" (0, 0) and "act" (-1, t/(1 - t)),
    or these less the latter. Also given are the half-widths of the parts they are made of.
    """
    sides = (1 - level) / 2
    each = [_part(rows, t, bound, sides / len(parts), name, sign) for name, rows in parts]
    weight, z = sum(part.weight for part in each), quantile(sides)
    mean = np.sum([sign * part.acted.total(t) + part.mean for part in each], axis=0) / weight
    if target == "rows":
        name, own = "label noise", np.sum([part.noise for part in each], axis=0)
        reach = np.sum([part.acted.w for part in each], axis=0) / weight
    else:
        heaviest = max(float(rows.w.max()) for _, rows in parts)
        name, own, reach = "sampling", _sampling(each, t, mean, heaviest, sides, sign), np.ones(len(t))
    varies = np.sum([part.varies for part in each], axis=0)
    bounded = np.sum([part.bounded for part in each], axis=0)
    half = (z * np.sqrt(own + varies) + bounded) / weight
    widths = {name: z * np.sqrt(own) / weight}
    if bound is not None:
        widths["calibration"] = (z * np.sqrt(varies) + bounded) / weight
    ends = (-odds(t) * reach, reach) if sign > 0 else (-reach, odds(t) * reach)
    return _within(mean, half, half, *ends), widths


def _sampling(
    each: Sequence[_Part], t: FloatArray, mean: FloatArray, heaviest: float, failing: float, sign: int
) -> FloatArray:
    """Bound the variance of what rows are expected to gain, by their scores and what labelled rows add in their part."""
    around, most, furthest = np.zeros(len(t)), np.zeros(len(t)), np.ones(len(t)) if sign > 0 else odds(t)
    for part in each:
        once, square = part.acted.squared(t)
        middle = mean - part.mean / part.weight
        around += square - 2 * middle * sign * once + middle**2 * part.squares
        most = np.maximum(most, heaviest * np.maximum(np.abs(middle), np.abs(furthest - middle)))
    return np.asarray(likely_root(np.maximum(around, 0.0), most, failing) ** 2)


class _Part(NamedTuple):
    """Rows of one kind, and what is known of the error of their gain; arrays have one entry a threshold."""

    acted: Acting
    weight: float
    squares: float
    noise: FloatArray
    mean: FloatArray
    varies: FloatArray
    bounded: FloatArray


def _part(rows: Unlabelled, t: FloatArray, bound: Bound | None, sides: float, name: str | None, sign: int) -> _Part:
    """Sum over rows, and hold them against labelled ones: `as_evidence` for every threshold at once."""
    acted, everything = Acting.on(Scored(rows.p, rows.p, rows.w), rows.p, t)
    acted = acted if sign > 0 else everything.less(acted)
    weight, squares = float(rows.w.sum()), float(np.sum(rows.w**2))
    swing, none = 1 + odds(t), np.zeros(len(t))
    noise = swing**2 * np.maximum(acted.wwy - acted.wwyy, 0.0)
    if bound is None:
        return _Part(acted, weight, squares, noise, none, none, none)
    if not isinstance(bound, Labelled):
        return _Part(acted, weight, squares, noise, none, none, weight * upper_bound(bound, sides, name)[0] * swing)
    known = bound.of(name)
    errors, total = known.w * (known.y - known.p), float(known.w.sum())
    sums = _from(known.p, t, errors, errors**2)
    once, square = sums[:, 1:] if sign > 0 else sums[:, :1] - sums[:, 1:]
    # A row is off by this, a root of a mean square.
    deviation = likely_root(swing**2 * np.maximum(square, 0.0), float(known.w.max()) * swing, sides) / total
    many = total**2 / float(np.sum(known.w**2))
    noise = squares * deviation**2 * many
    return _Part(acted, weight, squares, noise, sign * weight * swing * once / total, (weight * deviation) ** 2, none)


def _from(score: FloatArray, thresholds: FloatArray, *columns: FloatArray) -> FloatArray:
    """Sum columns over all rows, then over those from each threshold on: shape (columns, thresholds + 1)."""
    place = np.searchsorted(thresholds, score, side="right")
    sums = np.stack([np.bincount(place, column, len(thresholds) + 1) for column in columns])
    return np.asarray(np.cumsum(sums[:, ::-1], axis=1)[:, ::-1])


def _within(mean: FloatArray, below: FloatArray, above: FloatArray, least: FloatArray, most: FloatArray) -> Gain:
    """Keep an interval to what is possible."""
    low, estimate, high = (np.clip(one, least, most) for one in (mean - below, mean, mean + above))
    return Gain(estimate, low, high)
