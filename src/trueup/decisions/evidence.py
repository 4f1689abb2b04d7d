"""What labelled rows say of a score's errors, for decisions on rows without labels."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from trueup.decisions.inputs import Segments, is_number, segments_of, warn_of_hard_scores
from trueup.decisions.moved import FREE, STEPS, compare_scores, warn_of_moved_scores, warn_of_uncorrected_scores
from trueup.errors import ArgumentError, DataError, NotFittedError
from trueup.metrics.cumulative import CalibrationBound, calibration_bound
from trueup.metrics.inference import likely_root, range_quantile
from trueup.metrics.inputs import Scored, checked_weights, numbers, scored

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray
    from trueup.decisions.rules import Rule


KEPT = 0.8  # of what may go wrong; the rest is for the spread to be larger than it looked
ROUNDS = 8  # of a bound on c that is made of itself


@runtime_checkable
class Audited(Protocol):
    """What decisions ask of an audit: its whole, and its segments by name."""

    @property
    def overall(self) -> Any:
        """The finding of all rows."""

    def __getitem__(self, segment: str) -> Any: ...


@runtime_checkable
class HeldOut(Protocol):
    """What decisions ask of a fitted calibrator: rows it was not taught by, with the scores that it gives them."""

    held_out_: Scored | None


class Labelled:
    """Rows whose outcome is known, with the scores of the model that is decided with; none of them taught it.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores.
    weight : array-like, shape (n,), optional
    segments : array-like of labels, or mapping of column to values, optional
        The segment of each row, so that each is judged by its own rows.

    Examples
    --------
    >>> Labelled([0, 1, 1], [0.2, 0.6, 0.7])
    <Labelled 3 rows>
    """

    def __init__(self, y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, segments: Any = None) -> None:
        # A copy: what is done to the arrays later is not done to the evidence.
        self.rows: Scored = Scored(*(_fixed(column) for column in scored(y, p, weight)))
        _refuse_swapped(self.rows)
        self.before: FloatArray | None = None
        self.free = FREE
        kept = np.ones(np.size(y), bool) if weight is None else checked_weights(numbers(weight, "weight")) > 0
        self.segments: Segments | None = None if segments is None else segments_of(segments, kept)
        self._places = {} if self.segments is None else self.segments.rows()

    def of(self, segment: str | None) -> Scored:
        """Give the rows of one segment; all where it is None."""
        if segment is None:
            return self.rows
        if self.segments is None:
            hint = "pass labelled=tu.decisions.Labelled(y, p, segments=...); of a calibrator, y and p are in its held_out_"
            raise ArgumentError("the labelled rows have no segments, the others have", hint=hint)
        if segment not in self._places:
            known = ", ".join(self.segments.names[:8])
            hint = f"label some rows of it, cut numbers into bins first, or leave segments out; labelled are {known}"
            raise ArgumentError(f"no labelled row is of segment {segment!r}", hint=hint)
        y, p, w = (column[self._places[segment]] for column in self.rows)
        return Scored(y, p, checked_weights(w))

    def __len__(self) -> int:
        return len(self.rows.y)

    def __repr__(self) -> str:
        return f"<Labelled {len(self):,} row{'' if len(self) == 1 else 's'}>"


def _refuse_swapped(rows: Scored) -> None:
    """Refuse what can only be outcomes in the place of scores."""
    if not np.isin(rows.y, (0.0, 1.0)).all() and np.isin(rows.p, (0.0, 1.0)).all():
        raise DataError(
            "the outcomes of the labelled rows are between 0 and 1, their scores all 0 or 1: are they swapped?",
            hint="outcomes come first: labelled=(y, p)",
        )
    warn_of_hard_scores(rows.p, "score of the labelled rows")


def _fixed(column: FloatArray) -> FloatArray:
    copied = column.copy()
    copied.setflags(write=False)
    return copied


Bound = Labelled | CalibrationBound | Audited | float


class Evidence(NamedTuple):
    """What is known of the error of a rule's cost, in units of one row.

    ``mean`` is how much more a row costs than its score says, by ``rows`` labelled rows; one row is off by ``deviation``
    (None where labelled rows are not at hand). ``bound`` limits what the mean itself may be off by, for any rule, and is
    added; ``told`` says where all that comes from.
    """

    mean: float
    deviation: float | None
    rows: float
    bound: float
    told: str


def as_bound(bound: Any) -> Bound | None:
    """Check what is given as a bound; a tuple becomes `Labelled`, and so do the rows that a calibrator held out."""
    if bound is None or isinstance(bound, (Labelled, CalibrationBound)):
        return bound
    if isinstance(bound, tuple) and len(bound) in (2, 3):
        return Labelled(*bound)
    if isinstance(bound, HeldOut):
        return _held_out(bound)
    if isinstance(bound, Audited) and hasattr(bound.overall, "ecce"):
        return _binary(bound)
    if is_number(bound) and 0 <= bound <= 1:
        return float(bound)
    _refuse_unfitted(bound)
    raise ArgumentError(
        f"labelled must be rows with outcomes, an audit, a calibration bound or a number in [0, 1]; got {_called(bound)}",
        hint="pass labelled=(y, p) with outcomes and scores of labelled rows that did not teach the model",
    )


def _binary(audit: Audited) -> Audited:
    """Refuse audits whose errors are not those of one probability."""
    task = getattr(getattr(audit, "schema", None), "task", "binary")
    if task != "binary":
        raise ArgumentError(
            f"this audit is of task {task!r}: its errors are not those of a score in [0, 1]",
            hint="audit the score that is decided with, against outcomes of 0 and 1",
        )
    return audit


def _called(bound: Any) -> str:
    """Name what was given, shortly: a frame would fill the screen."""
    return repr(bound)[:80] if isinstance(bound, (str, tuple, list, dict)) or is_number(bound) else type(bound).__name__


def _refuse_unfitted(bound: Any) -> None:
    """Say so where a calibrator was given that has not been fitted: it has no held-out rows yet."""
    if hasattr(bound, "fit") and hasattr(bound, "explain") and not isinstance(bound, type):
        raise NotFittedError(f"this {type(bound).__name__} is not fitted yet", hint="call fit(frame, outcome) first")


def _held_out(calibrator: HeldOut) -> Labelled:
    rows = calibrator.held_out_
    if rows is None:
        raise ArgumentError(
            f"this {type(calibrator).__name__} held no rows out, so nothing is known of its errors",
            hint="fit it with stopping=tu.CrossValidation(5), to a binary outcome, or pass labelled=(y, p) with rows "
            "that it was not fitted on",
        )
    found = Labelled(rows.y, rows.p, rows.w)
    found.free = STEPS
    found.before = getattr(calibrator, "held_out_before_", None)
    return found


def quantile(failing: float) -> float:
    """Give the normal quantile that a side goes wrong beyond with this probability, a little of it kept for few events."""
    return -NormalDist().inv_cdf(KEPT * failing)


def spread(errors: FloatArray, most: float, failing: float) -> float:
    """Bound the root of the sum of the variances of errors, from their squares: it holds for few events too.

    See `metrics.inference.likely_root`; ``most`` is the largest error there can be.
    """
    return float(likely_root(float(np.sum(errors**2)), most, failing))


def reach_of_all(rows: Scored, sides: float) -> float:
    """Bound what the mean error over any interval of scores may be off by, for all of them at once, a row.

    All are sums over intervals, and their noise is the range of Brownian motion.
    """
    errors, total = rows.w * (rows.y - rows.p), float(rows.w.sum())
    return range_quantile(KEPT * sides) * spread(errors, float(rows.w.max()), sides) / total


def swing(rule: Rule) -> float:
    """Give by how much at most a rule's cost is off, a row, where the scores are off by 1 over some interval.

    Notes
    -----
    With C_j the cumulative difference at the end of the j-th interval, the error is sum_j D_j (C_j - C_{j-1}), that
    is sum_j C_j (D_j - D_{j+1}) with nought beyond both ends. The factors add up to 0, and all C lie in a range of c: the
    error is at most c times half of sum_j |D_j - D_{j+1}|, and some C reaches that. It is never above sum |D_j|, the factor
    of Claim 1 (Gao, Parameswaran & Peng 2017), and equal to it where signs alternate, as for costs of fn and fp.
    """
    return float(np.abs(np.diff(rule.differences, prepend=0.0, append=0.0)).sum() / 2)


def as_evidence(bound: Bound, rule: Rule, sides: float, segment: str | None = None, *, tuned: bool = False) -> Evidence:
    """Say what is known of the error of a rule's cost, where each side of an interval may fail so often.

    ``tuned`` where the labelled rows had a say in choosing the rule.
    """
    if not isinstance(bound, Labelled):
        most, told = upper_bound(bound, sides, segment)
        return Evidence(0.0, None, math.inf, most * swing(rule), told)
    rows = bound.of(segment)
    differences, total = rule.differences, rows.w.sum()
    errors = rows.w * differences[rule.action_index(rows.p)] * (rows.y - rows.p)
    many, heaviest = float(total**2 / np.sum(rows.w**2)), float(rows.w.max())
    deviation = spread(errors, heaviest * float(np.abs(differences).max()), sides) / total * math.sqrt(many)
    told = told_of(rows)
    if not tuned:
        return Evidence(float(errors.sum() / total), deviation, many, 0.0, told)
    reach = reach_of_all(rows, sides) * swing(rule)
    return Evidence(float(errors.sum() / total), deviation, math.inf, reach, f"{told}, for every rule at once")


def told_of(rows: Scored) -> str:
    """Say how many labelled rows there are."""
    return f"{len(rows.y):,} labelled row{'' if len(rows.y) == 1 else 's'}"


def upper_bound(bound: Bound, failing: float, segment: str | None = None) -> tuple[float, str]:
    """Bound c(f) from above, and say where from. A bound that is given holds with the probability that it has."""
    if isinstance(bound, Labelled):
        rows = bound.of(segment)
        most = calibration_bound(rows.y, rows.p, rows.w, delta=failing).upper
        return most, f"c at most {most:.4g}, from {told_of(rows)}"
    if isinstance(bound, CalibrationBound):
        if segment is not None:
            hint = "pass labelled rows with segments, or an audit, or leave segments out"
            raise ArgumentError("a calibration bound of all rows says nothing of a segment", hint=hint)
        return bound.upper, f"c at most {bound.upper:.4g} ({100 * (1 - bound.delta):g}%, {bound.method})"
    if isinstance(bound, Audited):
        return _from_audit(bound.overall if segment is None else _segment(bound, segment), failing)
    return bound, f"c at most {bound:g}, as given"


def _from_audit(found: Any, failing: float) -> tuple[float, str]:
    """Bound c of a segment by what an audit kept of it: the range, and its noise if the scores were right.

    Where they are not, there is more noise. With v = E f (1 - f), e = E f and o = E y, E (y - f)^2 = v + o - e - 2 E f (y -
    f) = v - (o - e) + 2 E (1 - f) (y - f), and neither of the last means is beyond c: it is at most v + 2 c - |o - e|. As y
    f and (1 - y) (1 - f) are not below 0, it is at most o + e - v and 2 - o - e - v, too. The c put in is what comes out.
    """
    expected, observed = float(found.expected), float(found.observed)
    usual = expected * (1 - expected)
    squared = (found.ecce / found.sigma) ** 2 if 0 < found.sigma < math.inf else usual / found.n
    right = min(squared * found.n, usual)  # it would be above that only by weights
    room = math.sqrt(math.log(5 / failing) / 2) / found.n
    most = 1.0
    for _ in range(ROUNDS):
        wrong = min(
            right + 2 * most - abs(observed - expected), observed + expected - right, 2 - observed - expected - right
        )
        noise = math.sqrt(squared * max(1.0, wrong / right) if right > 0 else max(0.0, wrong) / found.n)
        most = min(most, float(found.ecce) + quantile(failing) * (math.hypot(noise, room) + room))
    return most, f"c at most {most:.4g}, from the audit of {found.segment}"


def _segment(audit: Audited, name: str) -> Any:
    """Find what an audit says of a segment."""
    try:
        return audit[name]
    except ArgumentError as error:
        raise ArgumentError(
            f"the audit knows no segment {name!r}",
            hint="give segments as it names them: an audit cuts numbers and dates into bins, which have names such as "
            f"'age=[18, 30)' and may be given as labels, and leaves segments of few rows out ({error.hint})",
        ) from error


def compare_with(bound: Bound | None, p: FloatArray, weight: FloatArray | None = None) -> float:
    """Warn where scores have left those of the labelled rows; give how far they are apart, NaN where none are known."""
    if not isinstance(bound, Labelled):
        return math.nan
    if bound.before is not None and warn_of_uncorrected_scores(bound.rows.p, bound.before, p):
        return compare_scores(bound.rows.p, p, bound.free, bound.rows.w, weight).distance
    return warn_of_moved_scores(bound.rows.p, p, bound.free, bound.rows.w, weight).distance
