"""Decision curves: the net benefit of acting on a score, over the thresholds that one may act from."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.data.frame import frame_like, to_jsonable
from trueup.decisions.evidence import Labelled, as_bound, compare_with, told_of, upper_bound
from trueup.decisions.gains import Acting, Gain, compare, expect, odds
from trueup.decisions.inputs import check_level, segments_of, unlabelled
from trueup.errors import ArgumentError, DataError
from trueup.metrics.inputs import Scored, numbers, scored

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import BoolArray, FloatArray
    from trueup.decisions.evidence import Bound
    from trueup.decisions.inputs import Target, Unlabelled


THRESHOLDS = np.arange(1, 100) / 100
SPANS = 4  # of thresholds that are told in one line, at most
PER = 1_000  # rows, for telling a benefit


@dataclass(frozen=True, eq=False, repr=False)
class DecisionCurve:
    """The net benefit of acting on scores, at each threshold.

    Attributes
    ----------
    threshold : ndarray
        Ascending. A row is acted on whose score is that or more.
    benefit, low, high : mapping of str to ndarray
        Net benefit of each prediction: net true positives a row. Each interval holds by itself, not all at once.
    treat_all, treat_none : ndarray
        Net benefit of acting on all rows, and on none, which is 0.
    advantage : mapping of str to Gain
        Of each prediction over the better of acting on all and on none, row by row, with an interval.
    difference : mapping of str to Gain
        Of each prediction but the first less the first, row by row, with an interval. Empty where outcomes are not known.
    prevalence : float
        Share of positive rows; where outcomes are not known, by the scores and what corrects them.
    rows : float
        Their number, or their total weight.
    level : float
    target : {"rows", "population"}
        What the intervals are of: these rows, or the population that they come from.
    half_widths : mapping of str to ndarray
        Half-widths that the intervals are made of where outcomes are not known, as in `ExpectedCost`.
    evidence : str
        Where the calibration part comes from; empty where scores are taken at their word, or outcomes are known.
    distance : float
        Of the distribution of the scores from that of the labelled ones, small moves forgiven; NaN where there are none.
    by_segment : mapping of str to DecisionCurve
    """

    threshold: FloatArray
    benefit: Mapping[str, FloatArray]
    low: Mapping[str, FloatArray]
    high: Mapping[str, FloatArray]
    treat_all: FloatArray
    treat_none: FloatArray
    advantage: Mapping[str, Gain]
    difference: Mapping[str, Gain]
    prevalence: float
    rows: float
    level: float
    target: Target
    half_widths: Mapping[str, FloatArray] = field(default_factory=dict)
    evidence: str = ""
    distance: float = math.nan
    by_segment: Mapping[str, DecisionCurve] = field(default_factory=dict)

    @property
    def standardized(self) -> Mapping[str, FloatArray]:
        """Give net benefit as a share of the most there can be, which is the prevalence."""
        return {name: one / (self.prevalence or math.nan) for name, one in self.benefit.items()}

    @property
    def interventions_avoided(self) -> Mapping[str, FloatArray]:
        """Give how many actions a row are saved against acting on all, at no loss of true positives (NaN at 0)."""
        cost = np.where(self.threshold > 0, odds(self.threshold), math.nan)
        return {name: (one - self.treat_all) / cost for name, one in self.benefit.items()}

    @property
    def verdict(self) -> str:
        """Say in one sentence where acting on a score is worth it, and where it does harm."""
        first = next(iter(self.benefit))
        if not self.difference:
            return self._between(self.advantage[first], f"{first} is {{}} than acting on all or none")
        told = [self._between(gain, f"{name} is {{}} than {first}") for name, gain in self.difference.items()]
        for name, gain in self.advantage.items():
            if (gain.high < 0).any():
                told.append(self._where(gain.high < 0, f"{name} is worse than acting on all or none", gain, -1))
        return "; ".join(told)

    def _between(self, gain: Gain, says: str) -> str:
        better, worse = gain.low > 0, gain.high < 0
        sure = f" by more than chance ({100 * self.level:g}% at each threshold)"
        if not better.any() and not worse.any():
            return says.format("neither better nor worse") + sure
        parts = [self._where(better, says.format("better") + sure, gain, 1)] if better.any() else []
        if worse.any():
            parts.append(self._where(worse, "worse" if parts else says.format("worse") + sure, gain, -1))
        return ", ".join(parts)

    def _where(self, here: BoolArray, says: str, gain: Gain, sign: int) -> str:
        at = int(np.argmax(np.where(here, sign * gain.estimate, -math.inf)))
        most = f"{PER * abs(gain.estimate[at]):.3g} net true positives per {PER:,} rows at {self.threshold[at]:.4g}"
        return f"{says} at {_spans(self.threshold, here)}, by up to {most}"

    def to_frame(self, like: Any = None) -> Any:
        """Give one line a threshold and prediction, in the library of ``like``; a dict of arrays without it."""
        missing = Gain(*[np.full(len(self.threshold), math.nan)] * 3)
        lines = []
        for name in self.benefit:
            line = {
                "threshold": self.threshold,
                "prediction": np.full(len(self.threshold), name, object),
                "benefit": self.benefit[name],
                "low": self.low[name],
                "high": self.high[name],
                "treat_all": self.treat_all,
                "treat_none": self.treat_none,
                "standardized": self.standardized[name],
                "interventions_avoided": self.interventions_avoided[name],
            }
            for what, gain in (("advantage", self.advantage[name]), ("difference", self.difference.get(name, missing))):
                line |= {what: gain.estimate, f"{what}_low": gain.low, f"{what}_high": gain.high}
            lines.append(line)
        return frame_like({column: np.concatenate([line[column] for line in lines]) for column in lines[0]}, like)

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None."""
        nested = {
            what: {name: gain._asdict() for name, gain in getattr(self, what).items()}
            for what in ("advantage", "difference")
        }
        nested["by_segment"] = {name: one.to_dict() for name, one in self.by_segment.items()}
        return {name: to_jsonable(nested.get(name, getattr(self, name))) for name in self.__dataclass_fields__} | {
            "verdict": self.verdict
        }

    def __repr__(self) -> str:
        return f"<DecisionCurve of {self.rows:,.10g} rows: {self.verdict}>"


def _spans(threshold: FloatArray, here: BoolArray) -> str:
    """Name runs of thresholds."""
    edges = np.flatnonzero(np.diff(here.astype(int), prepend=0, append=0))
    runs = [(threshold[first], threshold[last - 1]) for first, last in zip(edges[::2], edges[1::2], strict=True)]
    told = [f"{low:.4g}" if low == high else f"{low:.4g} to {high:.4g}" for low, high in runs]
    return ", ".join(told[:SPANS]) + (f" and {len(told) - SPANS} spans more" if len(told) > SPANS else "")


def decision_curve(
    y: ArrayLike | None,
    predictions: Any,
    *,
    thresholds: ArrayLike | None = None,
    weight: ArrayLike | None = None,
    level: float = 0.9,
    target: Target | None = None,
    labelled: Any = None,
    segments: Any = None,
) -> DecisionCurve:
    """Say what it is worth to act on scores, over the thresholds that one may act from, before and after a fix.

    One who acts from the probability t on holds a false positive to be worth t/(1 - t) of a true one. So the net benefit is
    TP/n - FP/n t/(1 - t), in true positives a row (Vickers & Elkin 2006), to be held against acting on all rows or on none.

    Parameters
    ----------
    y : array-like, shape (n,), or None
        Outcomes. None where they are not known: then the benefit is what the scores say, see ``labelled``.
    predictions : array-like, or mapping of name to array-like, shape (n,)
        One score, or several of the same rows: {"before": p, "after": q}. The others are compared with the first.
        Without outcomes, only one: two scores expect different outcomes, and each would be judged by itself.
    thresholds : array-like, optional
        At least 0, below 1. By default 0.01, 0.02, ..., 0.99.
    weight : array-like, shape (n,), optional
    level : float
        How often an interval holds; each by itself.
    target : {"rows", "population"}, optional
        What intervals are of. Where outcomes are known, so is the benefit of these rows, and intervals are of the
        population's. Else "rows" by default, what these rows will turn out to have gained.
    labelled : optional
        Without outcomes, what is known of the score's errors, as in `expected_cost`.
    segments : array-like of labels, or mapping of column to values, optional
        Gives a curve for each, too.

    Examples
    --------
    >>> y = [0, 0, 0, 1, 0, 1, 1, 1]
    >>> curve = decision_curve(y, [0.1, 0.2, 0.3, 0.3, 0.6, 0.7, 0.8, 0.9], thresholds=[0.25, 0.5])
    >>> curve.benefit["model"].round(3), curve.treat_all.round(3)
    (array([0.417, 0.25 ]), array([0.333, 0.   ]))
    """
    check_level(level)
    t = _thresholds(thresholds)
    named = _named(predictions)
    if y is None:
        return _expected(named, t, weight, level, target or "rows", labelled, segments)
    if labelled is not None:
        hint = "leave labelled out, or pass y=None to go by the scores"
        raise ArgumentError("outcomes are known, so that no bound on the scores' errors is needed", hint=hint)
    if target not in (None, "population"):
        check_choice("target", target, ("rows", "population"))
        hint = 'leave target out, or write "population"'
        raise ArgumentError("with outcomes, the benefit of these rows is known: no interval is needed", hint=hint)
    scores = {name: _checked(y, p, weight, name) for name, p in named.items()}
    whole = _realised(scores, t, level)
    if segments is None:
        return whole
    found = segments_of(segments, np.ones(np.size(y), bool) if weight is None else numbers(weight, "weight") > 0)
    single = {}
    for name, here in found.rows().items():
        part = {one: Scored(*(column[here] for column in rows)) for one, rows in scores.items()}
        single[name] = _realised(part, t, level)
    return replace(whole, by_segment=single)


def _thresholds(given: ArrayLike | None) -> FloatArray:
    if given is None:
        return THRESHOLDS.copy()
    found = np.unique(numbers(np.atleast_1d(np.asarray(given)), "thresholds"))
    bad = (found < 0) | (found >= 1)
    if bad.any() or not len(found):
        told = f"got {found[bad][0]:.6g}" if len(found) else "got none"
        hint = "one acts from a threshold on; at 1, no number of true positives makes up for a false one"
        raise ArgumentError(f"thresholds must be at least 0 and below 1; {told}", hint=hint)
    return found


def _named(predictions: Any) -> dict[str, Any]:
    """Name the predictions; a single one is "model"."""
    if not isinstance(predictions, Mapping):
        if len(getattr(predictions, "shape", ())) > 1:
            hint = 'name its columns: {"before": frame["p"], "after": frame["q"]}'
            raise ArgumentError(f"predictions have shape {predictions.shape}, and no names", hint=hint)
        return {"model": predictions}
    if not predictions:
        raise ArgumentError("predictions name no score", hint='write {"before": p, "after": q}')
    for name in predictions:
        if not isinstance(name, str) or name in ("", "all", "none"):
            hint = '"all" and "none" are what predictions are compared with'
            raise ArgumentError(f"a prediction cannot be named {name!r:.60}", hint=hint)
    return dict(predictions)


def _checked(y: ArrayLike, p: ArrayLike, weight: ArrayLike | None, name: str) -> Scored:
    try:
        return scored(y, p, weight)
    except DataError as error:
        raise DataError(f"prediction {name!r}: {error.message}", hint=error.hint) from None


def _realised(scores: Mapping[str, Scored], t: FloatArray, level: float) -> DecisionCurve:
    """Measure net benefit where outcomes are known."""
    o, one = odds(t), np.ones(len(t))
    nothing = Acting(*np.zeros((5, len(t))))
    benefit, advantage, difference = {}, {}, {}
    first = next(iter(scores.values()))
    everything = Acting.on(first, first.p, t)[1]
    of_all = everything.total(t) / first.w.sum()
    acting = {}
    for name, rows in scores.items():
        acting[name], everyone = Acting.on(rows, rows.p, t)
        benefit[name] = compare(acting[name], nothing, nothing, rows, t, np.stack([-o, one]), level)
        against_all = compare(acting[name], everyone, acting[name], rows, t, np.stack([-one, o]), level)
        advantage[name] = _better(against_all, benefit[name], of_all)
    base, *others = scores
    most = np.maximum(o, 1.0)
    for name in others:
        both = Acting.on(first, np.minimum(scores[base].p, scores[name].p), t)[0]
        difference[name] = compare(acting[name], acting[base], both, first, t, np.stack([-most, most]), level)
    estimate, low, high = ({name: gain[k] for name, gain in benefit.items()} for k in range(3))
    weight = float(first.w.sum())
    prevalence = float(first.w @ first.y) / weight
    return DecisionCurve(
        t, estimate, low, high, of_all, np.zeros(len(t)), advantage, difference, prevalence, weight, level, "population"
    )


def _better(against_all: Gain, against_none: Gain, of_all: FloatArray) -> Gain:
    """Compare with the better of acting on all and on none."""
    return Gain(*(np.where(of_all > 0, one, two) for one, two in zip(against_all, against_none, strict=True)))


def _told(known: Bound | None, failing: float, parts: Sequence[tuple[str | None, Unlabelled]]) -> str:
    """Say where what is known of the errors comes from."""
    if known is None or len(parts) > 1:
        return "" if known is None else f"{len(parts)} segments by their own"
    if isinstance(known, Labelled):
        return told_of(known.of(parts[0][0]))
    return upper_bound(known, failing, parts[0][0])[1]


def _expected(
    named: Mapping[str, Any],
    t: FloatArray,
    weight: ArrayLike | None,
    level: float,
    target: Target,
    labelled: Any,
    segments: Any,
) -> DecisionCurve:
    """Tell net benefit from one score alone."""
    check_choice("target", target, ("rows", "population"))
    if len(named) > 1:
        hint = "ask for one score at a time, or pass y"
        raise ArgumentError(f"without outcomes one score can be judged; got {', '.join(named)}", hint=hint)
    ((name, p),) = named.items()
    rows, known = unlabelled(p, weight, segments), as_bound(labelled)
    distance = compare_with(known, rows.p, rows.w)
    parts: list[tuple[str | None, Unlabelled]] = list(rows.parts())
    single = {str(one): _put_together(name, [(one, part)], t, known, level, target) for one, part in parts}
    whole = _put_together(name, parts or [(None, rows)], t, known, level, target)
    return DecisionCurve(**{**vars(whole), "distance": distance, "by_segment": single})


def _put_together(
    name: str,
    parts: Sequence[tuple[str | None, Unlabelled]],
    t: FloatArray,
    known: Bound | None,
    level: float,
    target: Target,
) -> DecisionCurve:
    benefit, widths = expect(parts, t, known, level, target, 1)
    against_all, _ = expect(parts, t, known, level, target, -1)
    of_all = benefit.estimate - against_all.estimate
    weight = sum(float(rows.w.sum()) for _, rows in parts)
    prevalence = min(
        max(float(of_all[0] * (1 - t[0]) + t[0]), 0.0), 1.0
    )  # acting on all gains the positives less the odds of the negatives
    told = _told(known, (1 - level) / 2, parts)
    return DecisionCurve(
        t,
        {name: benefit.estimate},
        {name: benefit.low},
        {name: benefit.high},
        of_all,
        np.zeros(len(t)),
        {name: _better(against_all, benefit, of_all)},
        {},
        prevalence,
        weight,
        level,
        target,
        widths,
        told,
    )
