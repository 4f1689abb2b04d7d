"""Evidence about the errors of a score: labelled rows, held-out predictions, audits and calibration bounds."""

from __future__ import annotations

import math
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np

from trueup.decisions.inputs import (
    Segments,
    Target,
    UnlabelledRows,
    check_interval,
    has_weight,
    is_number,
    read_segments,
    read_unlabelled,
    warn_of_hard_scores,
)
from trueup.decisions.shift import CROSS_FITTED_TOLERANCE, SHIFT_TOLERANCE, warn_of_shift
from trueup.errors import ArgumentError, DataError, NotFittedError
from trueup.metrics.cumulative import CalibrationBound, calibration_bound
from trueup.metrics.inference import likely_root, range_quantile
from trueup.metrics.inputs import Scored, validate_scores, validate_weights

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray


NORMAL_SHARE = 0.8  # of the error probability; the rest allows for a variance larger than the estimated one
ITERATIONS = 8  # of a bound on c that depends on itself


@runtime_checkable
class AuditResult(Protocol):
    """What decisions use of an audit: its task, the overall finding and those of its segments."""

    @property
    def schema(self) -> Any:
        """The roles of the columns, with the task."""

    @property
    def overall(self) -> Any:
        """The finding over all rows."""

    def __getitem__(self, segment: str) -> Any: ...


@runtime_checkable
class CrossFitted(Protocol):
    """What decisions use of a fitted calibrator: outcomes and corrected scores of rows it was not fitted on."""

    held_out_: Scored | None


@runtime_checkable
class CalibratorLike(Protocol):
    """Any calibrator, fitted or not."""

    def fit(self, X: Any, y: Any) -> Any:
        """Fit to labelled rows."""

    def explain(self) -> Any:
        """Explain the correction."""


class Labelled:
    """Rows with known outcomes, scored by the model that decides; the model was not trained on them.

    Parameters
    ----------
    y, p : array-like, shape (n,)
        Outcomes and scores.
    weight : array-like, shape (n,), optional
    segments : array-like of labels, or mapping of column to values, optional
        The segment of each row, so that each segment is corrected by its own rows.

    Examples
    --------
    >>> Labelled([0, 1, 1], [0.2, 0.6, 0.7])
    <Labelled 3 rows>
    """

    def __init__(self, y: ArrayLike, p: ArrayLike, weight: ArrayLike | None = None, segments: Any = None) -> None:
        # Copies: later changes to the caller's arrays must not change the evidence.
        self.rows: Scored = Scored(*(column.copy() for column in validate_scores(y, p, weight)))
        for column in self.rows:
            column.setflags(write=False)
        if not np.isin(self.rows.y, (0.0, 1.0)).all() and np.isin(self.rows.p, (0.0, 1.0)).all():
            raise DataError(
                "the outcomes of the labelled rows lie between 0 and 1, and their scores are all 0 or 1: are they swapped?",
                hint="outcomes come first: labelled=(y, p)",
            )
        warn_of_hard_scores(self.rows.p, "score of the labelled rows")
        self.uncorrected: FloatArray | None = None
        self.shift_tolerance = SHIFT_TOLERANCE
        self.allow_missing_segments = False
        self.segments: Segments | None = None if segments is None else read_segments(segments, has_weight(weight, y))
        self._indices = {} if self.segments is None else self.segments.indices()

    def of(self, segment: str | None) -> Scored:
        """Return the rows of one segment, or all rows if it is None; none if missing segments are allowed."""
        if segment is None:
            return self.rows
        if self.allow_missing_segments and segment not in self._indices:
            return Scored(*np.zeros((3, 0)))
        if self.segments is None:
            hint = "pass labelled=tu.decisions.Labelled(y, p, segments=...); a calibrator has y and p in held_out_"
            raise ArgumentError("the labelled rows have no segments, but the rows to decide on have", hint=hint)
        if segment not in self._indices:
            known = ", ".join(self.segments.names[:8])
            hint = f"label some rows of it, bin numbers first, or leave segments out; labelled segments are {known}"
            raise ArgumentError(f"no labelled row is in segment {segment!r}", hint=hint)
        y, p, w = (column[self._indices[segment]] for column in self.rows)
        return Scored(y, p, validate_weights(w))

    def __len__(self) -> int:
        return len(self.rows.y)

    def __repr__(self) -> str:
        return f"<Labelled {len(self):,} row{'' if len(self) == 1 else 's'}>"


Evidence = Labelled | CalibrationBound | AuditResult | float


def read_evidence(labelled: Any) -> Evidence | None:
    """Validate the ``labelled`` argument; a tuple and the held-out rows of a calibrator become `Labelled`."""
    if labelled is None or isinstance(labelled, (Labelled, CalibrationBound)):
        return labelled
    if isinstance(labelled, tuple) and len(labelled) in (2, 3):
        return Labelled(*labelled)
    if isinstance(labelled, CrossFitted):
        return _held_out(labelled)
    if isinstance(labelled, AuditResult):
        if labelled.schema.task != "binary":
            raise ArgumentError(
                f"this audit has task {labelled.schema.task!r}: its errors are not those of a score in [0, 1]",
                hint="audit the score to decide with, against outcomes of 0 and 1",
                parameter="labelled",
            )
        return labelled
    if is_number(labelled) and 0 <= labelled <= 1:
        return float(labelled)
    if isinstance(labelled, CalibratorLike) and not isinstance(labelled, type):
        raise NotFittedError(f"this {type(labelled).__name__} is not fitted yet", hint="call fit(frame, outcome) first")
    short = isinstance(labelled, (str, tuple, list, dict)) or is_number(labelled)  # a frame would fill the screen
    raise ArgumentError(
        "labelled must be rows with outcomes, a fitted calibrator, an audit, a calibration bound or a number in [0, 1]; "
        f"got {repr(labelled)[:80] if short else type(labelled).__name__}",
        hint="pass labelled=(y, p) with outcomes and scores of rows that the model was not trained on",
        parameter="labelled",
    )


def _held_out(calibrator: CrossFitted) -> Labelled:
    rows = calibrator.held_out_
    if rows is None:
        raise ArgumentError(
            f"this {type(calibrator).__name__} has no held-out rows, so its errors are unknown",
            hint="fit it with stopping=tu.CrossValidation(5), to a binary outcome, or pass labelled=(y, p) with rows "
            "that it was not fitted on",
            parameter="labelled",
        )
    labelled = Labelled(rows.y, rows.p, rows.w)
    labelled.shift_tolerance = CROSS_FITTED_TOLERANCE
    labelled.uncorrected = getattr(calibrator, "held_out_before_", None)  # a scikit-learn wrapper has none
    return labelled


class Inputs(NamedTuple):
    """Validated arguments of an estimate: rows, evidence, and the level and target of its interval.

    ``distance`` is that of the scores from the labelled ones; ``tuned`` states that these were used to choose a rule.
    """

    rows: UnlabelledRows
    evidence: Evidence | None
    level: float
    target: Target
    tuned: bool
    distance: float

    @property
    def failing(self) -> float:
        """Error probability of one side of the interval."""
        return (1 - self.level) / 2


def read_inputs(
    p: ArrayLike,
    labelled: Any = None,
    *,
    level: float = 0.9,
    target: Target = "rows",
    weight: ArrayLike | None = None,
    segments: Any = None,
    tuned: bool = False,
) -> Inputs:
    """Validate the arguments of an estimate, and warn if the scores have shifted from the labelled ones."""
    check_interval(level, target)
    rows, evidence, distance = read_unlabelled(p, weight, segments), read_evidence(labelled), math.nan
    if isinstance(evidence, Labelled):
        distance = warn_of_shift(evidence.rows, rows, evidence.shift_tolerance, evidence.uncorrected)
    return Inputs(rows, evidence, level, target, tuned, distance)


def quantile(failing: float) -> float:
    """Return the normal quantile for one side of an interval that fails with this probability."""
    return -NormalDist().inv_cdf(NORMAL_SHARE * failing)


def bound_for_all_intervals(rows: Scored, failing: float) -> float:
    """Bound the sampling error of the mean residual per row over every score interval at once.

    These are sums over intervals, whose noise is the range of Brownian motion.
    """
    root = float(likely_root(float(np.sum((rows.w * (rows.y - rows.p)) ** 2)), float(rows.w.max()), failing))
    return range_quantile(NORMAL_SHARE * failing) * root / float(rows.w.sum())


def describe_labelled(rows: Scored) -> str:
    """Return the number of labelled rows as text."""
    return f"{len(rows.y):,} labelled row{'' if len(rows.y) == 1 else 's'}"


def upper_bound(evidence: Evidence, failing: float, segment: str | None = None) -> tuple[float, str]:
    """Return an upper bound on c(f), and its source as text. A given bound keeps its own confidence level."""
    if isinstance(evidence, Labelled):
        rows = evidence.of(segment)
        bound = calibration_bound(rows.y, rows.p, rows.w, delta=failing).upper
        return bound, f"c at most {bound:.4g}, from {describe_labelled(rows)}"
    if isinstance(evidence, CalibrationBound):
        if segment is not None:
            hint = "pass labelled rows with segments, or an audit, or leave segments out"
            raise ArgumentError("a calibration bound of all rows does not hold for a segment", hint=hint)
        return evidence.upper, f"c at most {evidence.upper:.4g} ({100 * (1 - evidence.delta):g}%, {evidence.method})"
    if isinstance(evidence, AuditResult):
        try:
            finding = evidence.overall if segment is None else evidence[segment]
        except ArgumentError as error:
            raise ArgumentError(
                f"the audit has no segment {segment!r}",
                hint="name segments as the audit does: it bins numbers and dates, such as 'age=[18, 30)', which may be "
                f"passed as labels, and leaves small segments out ({error.hint})",
            ) from error
        bound = _bound_from_finding(finding, failing)
        return bound, f"c at most {bound:.4g}, from the audit of {finding.segment}"
    return evidence, f"c at most {evidence:g}, as given"


def _bound_from_finding(finding: Any, failing: float) -> float:
    """Bound c of a segment by its ECCE-R and the noise it would have if the scores were calibrated.

    Miscalibration adds noise. With v = E f (1 - f), e = E f and o = E y, E (y - f)^2 = v + o - e - 2 E f (y - f) =
    v - (o - e) + 2 E (1 - f) (y - f), and neither of the last means exceeds c: it is at most v + 2 c - |o - e|. As y f and
    (1 - y) (1 - f) are not negative, it is also at most o + e - v and 2 - o - e - v. The bound on c is iterated.
    """
    expected, observed = float(finding.expected), float(finding.observed)
    largest = expected * (1 - expected)
    squared = (finding.ecce / finding.sigma) ** 2 if 0 < finding.sigma < math.inf else largest / finding.n
    calibrated = min(squared * finding.n, largest)  # only weights could make it larger
    slack = math.sqrt(math.log(5 / failing) / 2) / finding.n
    bound = 1.0
    for _ in range(ITERATIONS):
        miscalibrated = min(
            calibrated + 2 * bound - abs(observed - expected),
            observed + expected - calibrated,
            2 - observed - expected - calibrated,
        )
        factor = squared * max(1.0, miscalibrated / calibrated) if calibrated > 0 else max(0.0, miscalibrated) / finding.n
        bound = min(bound, float(finding.ecce) + quantile(failing) * (math.hypot(math.sqrt(factor), slack) + slack))
    return bound
