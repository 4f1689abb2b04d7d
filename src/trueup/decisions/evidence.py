"""Validated rows, evidence about the errors of their scores, and tests whether scores differ from the labelled ones.

Evidence is labelled rows, the held-out predictions of a calibrator, an audit or a calibration bound.
"""

from __future__ import annotations

import copy
import math
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from statistics import NormalDist
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, runtime_checkable

import numpy as np

from trueup._validate import check_choice, check_fraction
from trueup.data.columns import check_aligned, from_array
from trueup.data.values import MAX_WEIGHT, are_hard
from trueup.decisions.clusters import check_effective_clusters, effective_clusters, likely_variance, read_clusters
from trueup.errors import ArgumentError, DataError, HardPredictionWarning, NotFittedError, ShiftWarning
from trueup.metrics.cumulative import CalibrationBound, ecce
from trueup.metrics.inference import MIN_CLUSTERS, likely_root, range_quantile
from trueup.metrics.inputs import Scored, validate_array, validate_scores, validate_weights

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray


Target = Literal["rows", "population"]
NORMAL_SHARE = 0.8  # of the error probability; the rest allows for a variance larger than the estimated one
ITERATIONS = 8  # of a bound on c that depends on itself
SHIFT_TOLERANCE = 0.1  # standard deviations by which scores may move
CROSS_FITTED_TOLERANCE = 0.25  # the same where the labelled rows were scored by other fold models, with steps elsewhere
ALPHA = 0.001  # false alarm rate of the test for a shift
SMALLEST_DISTANCE = 0.02  # a smaller distance is not reported, however significant
STRATA, ROWS_PER_STRATUM = 20, 100  # of labelled rows by score: at most so many, of at least so many rows each
AS_GIVEN = "as given"
CALIBRATED, NO_CHANGE = "if the scores are calibrated", "if nothing has changed since the labelled rows"


# Rows


class Segments(NamedTuple):
    """The segment of each row: sorted names, and per row the index of its name."""

    names: tuple[str, ...]
    codes: AnyArray

    def indices(self) -> dict[str, NDArray[np.intp]]:
        """Return the row numbers of each segment, by name."""
        order = np.argsort(self.codes, kind="stable")
        ends = np.cumsum(np.bincount(self.codes, minlength=len(self.names)))
        return dict(zip(self.names, np.split(order, ends[:-1]), strict=True))


class UnlabelledRows(NamedTuple):
    """Scores, weights and optionally segments of rows whose outcome is unknown."""

    p: FloatArray
    w: FloatArray
    segments: Segments | None = None

    def by_segment(self) -> Iterator[tuple[str, UnlabelledRows]]:
        """Yield the name and the rows of each segment; nothing if there are no segments."""
        for name, index in ({} if self.segments is None else self.segments.indices()).items():
            yield name, UnlabelledRows(self.p[index], self.w[index])


def read_unlabelled(p: ArrayLike, weight: ArrayLike | None = None, segments: Any = None) -> UnlabelledRows:
    """Validate scores in [0, 1], weights and segments, and drop rows of weight 0."""
    check_aligned({"p": p, "weight": weight, "segments": segments})
    rows = validate_scores(np.zeros(np.size(p)), p, weight)
    if weight is not None and not 1 / MAX_WEIGHT <= (most := validate_array(weight, "weight").max()) <= MAX_WEIGHT:
        raise DataError(f"weights are too far from 1 to be summed; the largest is {most:g}", hint="use another unit")
    warn_of_hard_scores(rows.p, "score")
    return UnlabelledRows(rows.p, rows.w, None if segments is None else read_segments(segments, has_weight(weight, p)))


def has_weight(weight: ArrayLike | None, rows: ArrayLike) -> BoolArray:
    """Return per row whether its weight is above 0."""
    return np.ones(np.shape(rows)[0], bool) if weight is None else validate_array(weight, "weight") > 0


def warn_of_hard_scores(p: FloatArray, name: str) -> None:
    """Warn if many scores are all 0 or 1: they are labels, and intervals computed from them would have no width."""
    if are_hard(p):
        message = f"every {name} is 0 or 1: labels rather than probabilities, or outcomes and scores are swapped"
        warn_caller(message, HardPredictionWarning)


def read_segments(segments: Any, kept: BoolArray) -> Segments:
    """Return the segments of the rows that ``kept`` marks, from labels, a mapping of column to values, or `Segments`.

    A mapping names segments as an audit does: {"region": [..], "device": [..]} becomes "region=north & device=tv". Labels
    are formatted as in an audit (1.0 as "1", True as "true"), and rows without a label form a segment.
    """
    if isinstance(segments, Segments):
        return Segments(segments.names, segments.codes[kept])
    if not isinstance(segments, Mapping):
        return cross([_label(segments, kept, "segments", "", "(missing)")])
    if not segments:
        hint = 'write segments={"region": frame["region"]}'
        raise ArgumentError("segments has no columns", hint=hint, parameter="segments")
    return cross([_label(values, kept, str(name), f"{name}=", f"{name} is missing") for name, values in segments.items()])


def _label(values: Any, kept: BoolArray, name: str, prefix: str, missing: str) -> Segments:
    """Return the segments that ``values`` form of the rows that ``kept`` marks, named ``prefix`` + value or ``missing``."""
    shape = np.shape(values)
    if shape != kept.shape:
        raise DataError(
            f"{name} must have one label per row; got shape {shape} for {len(kept):,} rows", hint="label every row"
        )
    column = from_array(values, name).categories()
    return Segments((missing, *(f"{prefix}{level}" for level in column.levels)), column.codes[kept] + 1)


def cross(columns: Sequence[Segments]) -> Segments:
    """Return the combinations of segments of several columns that occur, sorted by name; equal names become one segment."""
    names, codes = [""], np.zeros(len(columns[0].codes), np.int64)
    for labels, label_codes in columns:
        used, codes = np.unique(codes * len(labels) + label_codes, return_inverse=True)
        pairs = (divmod(pair, len(labels)) for pair in used.tolist())
        names = [f"{names[i]} & {labels[j]}" if names[i] else labels[j] for i, j in pairs]
    distinct, index = np.unique(np.array(names, object), return_inverse=True)
    return Segments(tuple(distinct.tolist()), index[codes])


def is_number(value: Any) -> bool:
    """Return whether ``value`` is a number that float64 can represent (booleans are not numbers)."""
    if isinstance(value, int) and not isinstance(value, bool):
        return abs(value) <= sys.float_info.max
    return isinstance(value, (float, np.integer, np.floating))


def check_interval(level: Any, target: Any) -> None:
    """Validate the confidence level and the target of an interval."""
    check_choice("target", target, ("rows", "population"))
    check_fraction("level", level, hint="0.9: intervals that cover 9 times in 10")


def format_amount(value: float, digits: int = 4) -> str:
    """Format an amount such as 1,234,568 or 0.04322: ``digits`` significant digits, or an integer if that has more."""
    return f"{value:,.0f}" if 10 ** (digits - 1) <= abs(value) < 1e15 else f"{value:,.{digits}g}"


def warn_caller(message: str, category: type[Warning]) -> None:
    """Issue a warning that points to the line outside this package from which it was called."""
    frame, level, package = sys._getframe(1), 2, __name__.partition(".")[0]
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).partition(".")[0] == package:
        frame, level = frame.f_back, level + 1
    warnings.warn(message, category, stacklevel=level)


# Shift


class ScoreShift(NamedTuple):
    """Distance of two score distributions: the largest difference of their distribution functions, and its p-value.

    This is the Kolmogorov-Smirnov distance, except that scores may differ by a tolerance: if many rows share a score, and
    it has changed a little, all of them would otherwise count.
    """

    distance: float
    p_value: float

    @property
    def relevant(self) -> bool:
        """Whether the shift is significant and large enough to report."""
        return self.p_value < ALPHA and self.distance >= SMALLEST_DISTANCE


def compare_scores(
    reference: FloatArray,
    scores: FloatArray,
    tolerance: float = SHIFT_TOLERANCE,
    reference_weight: FloatArray | None = None,
    weight: FloatArray | None = None,
    clusters: IntArray | None = None,
) -> ScoreShift:
    """Compare two samples of scores up to ``tolerance`` standard deviations; the p-value uses effective sample sizes.

    With the ``clusters`` of the reference rows, its size is the effective number of clusters.
    """
    from scipy.special import kolmogorov

    first, second = _Distribution(reference, reference_weight), _Distribution(scores, weight)
    if clusters is not None:
        sizes = np.bincount(clusters, np.ones(len(reference)) if reference_weight is None else reference_weight)
        first.size = float(sizes.sum() ** 2 / (sizes**2).sum())
    step = tolerance * first.deviation
    distance = max(0.0, first.excess(second, step), second.excess(first, step))
    root = math.sqrt(first.size * second.size / (first.size + second.size))
    return ScoreShift(distance, float(kolmogorov((root + 0.12 + 0.11 / root) * distance)))


class _Distribution:
    """The empirical distribution function of a weighted sample."""

    def __init__(self, score: FloatArray, weight: FloatArray | None) -> None:
        if weight is None or weight.min() == weight.max():
            self.score, self.size = np.sort(score), float(len(score))
            self.cumulative = np.arange(len(score) + 1) / len(score)
            self.deviation = float(self.score.std())
            return
        order = np.argsort(score, kind="stable")
        self.score, cumulative = score[order], np.append(0.0, np.cumsum(weight[order]))
        self.cumulative, share = cumulative / cumulative[-1], weight[order] / cumulative[-1]
        self.size = 1 / float(share @ share)
        self.deviation = math.sqrt(float(share @ (self.score - share @ self.score) ** 2))

    def at(self, score: FloatArray) -> FloatArray:
        """Return the share of rows with a score of at most each value."""
        return np.asarray(self.cumulative[np.searchsorted(self.score, score, side="right")])

    def excess(self, other: _Distribution, step: float) -> float:
        """Return how far this distribution function lies above the other one moved left by ``step``."""
        return float(np.max(self.at(self.score) - other.at(self.score + step)))


def warn_of_shift(evidence: Labelled, rows: UnlabelledRows) -> float:
    """Warn if scores are distributed differently from the labelled ones, or look uncorrected; return the distance."""
    labelled = evidence.rows
    shift = compare_scores(labelled.p, rows.p, evidence.shift_tolerance, labelled.w, rows.w, evidence.clusters)
    message = ""
    if evidence.uncorrected is not None:
        after, before = (compare_scores(known, rows.p, tolerance=0.0) for known in (labelled.p, evidence.uncorrected))
        if after.relevant and before.distance < after.distance / 2:
            message = (
                "the scores look like those before the correction, and the calibrator's held-out rows say nothing about "
                "these; pass the output of its predict"
            )
    if not message and shift.relevant:
        message = (
            f"the score distribution has shifted: it is {shift.distance:.3f} away from that of the labelled rows (largest "
            f"difference of the distribution functions beyond a tolerance; p = {shift.p_value:.2g}); errors measured on "
            "the labelled rows may not apply here"
        )
    if message:
        warn_caller(message, ShiftWarning)
    return shift.distance


# Evidence


@runtime_checkable
class AuditResult(Protocol):
    """What decisions use of an audit: the schema with its task, the overall finding and those of its segments."""

    schema: Any
    overall: Any

    def __getitem__(self, segment: str) -> Any: ...


@runtime_checkable
class CrossFitted(Protocol):
    """What decisions use of a fitted calibrator: outcomes and corrected scores of rows it was not fitted on."""

    held_out_: Scored | None
    held_out_before_: FloatArray | None


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
    cluster : array-like, shape (n,), optional
        Identifies rows that belong together, such as the rows of one customer: intervals are then computed from sums over
        clusters, and the rows to decide on are taken to come in such clusters, too. Fewer than 10 effective clusters are an
        error, also in a segment.
    costs : mapping, optional
        Costs of these rows where costs differ by row, of the same form as those of the rows to decide on.

    Examples
    --------
    >>> Labelled([0, 1, 1], [0.2, 0.6, 0.7])
    <Labelled 3 rows>
    """

    def __init__(
        self,
        y: ArrayLike,
        p: ArrayLike,
        weight: ArrayLike | None = None,
        segments: Any = None,
        *,
        cluster: Any = None,
        costs: Any = None,
    ) -> None:
        check_aligned({"y": y, "p": p, "weight": weight, "segments": segments, "cluster": cluster})
        self.costs, self.kept = copy.deepcopy(costs), has_weight(weight, y)
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
        self.uncorrected: FloatArray | None = None  # scores before a calibrator corrected them
        self.shift_tolerance = SHIFT_TOLERANCE
        self.allow_missing_segments = False
        self.segments: Segments | None = None if segments is None else read_segments(segments, has_weight(weight, y))
        self._indices = {} if self.segments is None else self.segments.indices()
        self.clusters = None if cluster is None else read_clusters(cluster, has_weight(weight, y))

    def of(self, segment: str | None, rows: UnlabelledRows) -> Scored:
        """Return the labelled rows of a segment (all for None), post-stratified to the scores of its other ``rows``."""
        return post_stratify(self.in_segment(segment), rows)

    def in_segment(self, segment: str | None) -> Scored:
        """Return the labelled rows of a segment, or all for None; raise if none, unless ``allow_missing_segments``.

        Rows in too few clusters for an interval count as none.
        """
        if segment is None:
            self._check_clusters(self.rows, None)
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
        rows = Scored(y, p, validate_weights(w))
        return rows if self._check_clusters(rows, segment) else Scored(*np.zeros((3, 0)))

    def _check_clusters(self, rows: Scored, segment: str | None) -> bool:
        """Return whether an interval can be based on these rows; raise if not, unless ``allow_missing_segments``."""
        clusters = self.clusters_in(segment)
        if clusters is None:
            return True
        if segment is not None and self.allow_missing_segments:
            return effective_clusters(rows, clusters) >= MIN_CLUSTERS
        check_effective_clusters(rows, clusters, "the labelled rows", segment)
        return True

    def clusters_in(self, segment: str | None) -> IntArray | None:
        """Return the cluster of each labelled row of a segment, or of all for None; None if no two rows share a cluster."""
        if self.clusters is None:
            return None
        own = self.clusters if segment is None else self.clusters[self._indices.get(segment, np.zeros(0, np.int64))]
        return own if np.bincount(own).max(initial=0) > 1 else None

    def __len__(self) -> int:
        return len(self.rows.y)

    def __repr__(self) -> str:
        return f"<Labelled {len(self):,} row{'' if len(self) == 1 else 's'}>"


def post_stratify(labelled: Scored, rows: UnlabelledRows) -> Scored:
    """Weight labelled rows so that each stratum of scores has the share of the weight that it has among ``rows``.

    The error of a score depends on the score; a shift of the score distribution would bias the mean error of labelled rows
    that are weighted as they come (post-stratification: Holt & Smith 1979). Fewer than 200 labelled rows are one stratum.
    """
    edges = find_strata(labelled) if len(labelled.y) else np.empty(0)
    if not len(edges):
        return labelled
    known = np.searchsorted(edges, labelled.p, side="right")
    shares = [_shares(edges, *sample) for sample in ((labelled.p, labelled.w), (rows.p, rows.w))]
    return labelled._replace(w=labelled.w * (shares[1] / shares[0])[known])


def find_strata(labelled: Scored) -> FloatArray:
    """Return the lowest score of each stratum but the first: weighted quantiles, rows of equal score in one stratum."""
    order = _order(labelled.p, labelled.w)
    score, weight = labelled.p[order], np.cumsum(labelled.w[order])
    count = min(STRATA, len(score) // ROWS_PER_STRATUM)
    starts = np.append(0, np.flatnonzero(np.diff(score)) + 1)  # of each distinct score
    below = np.append(0.0, weight)[starts]
    edges, first = [], 0
    for position in np.searchsorted(below, weight[-1] * np.arange(1, count) / max(count, 1)):
        start = int(starts[min(position, len(starts) - 1)])
        if start - first >= ROWS_PER_STRATUM / 2 and len(score) - start >= ROWS_PER_STRATUM / 2:
            edges.append(float(score[start]))
            first = start
    return np.array(edges)


def _order(score: FloatArray, weight: FloatArray) -> NDArray[np.intp]:
    """Return an order of rows by score in which sums of weights do not depend on the order of the input."""
    return np.argsort(score, kind="stable") if weight.min() == weight.max() else np.lexsort((weight, score))


def _shares(edges: FloatArray, score: FloatArray, weight: FloatArray) -> FloatArray:
    """Return the share of the weight in each stratum."""
    order = _order(score, weight)
    sums = np.bincount(np.searchsorted(edges, score[order], side="right"), weight[order], len(edges) + 1)
    return np.asarray(sums / sums.sum())


def mean_errors(labelled: Scored, rows: UnlabelledRows) -> FloatArray:
    """Return for each of ``rows`` the mean error y - f of the labelled rows in its stratum, f + error being in [0, 1]."""
    if not len(labelled.y):
        return np.zeros(len(rows.p))
    edges = find_strata(labelled)
    known, new = (np.searchsorted(edges, score, side="right") for score in (labelled.p, rows.p))
    errors, weights = (
        np.bincount(known, column, len(edges) + 1) for column in (labelled.w * (labelled.y - labelled.p), labelled.w)
    )
    return np.clip((errors / weights)[new], -rows.p, 1 - rows.p)


Evidence = Labelled | CalibrationBound | AuditResult | float


def read_evidence(labelled: Any) -> Evidence | None:
    """Validate the ``labelled`` argument; a tuple and the held-out rows of a calibrator become `Labelled`."""
    if labelled is None or isinstance(labelled, (Labelled, CalibrationBound)):
        return labelled
    if isinstance(labelled, tuple) and len(labelled) in (2, 3):
        return Labelled(*labelled)
    if isinstance(labelled, CrossFitted):
        if labelled.held_out_ is None:
            raise ArgumentError(
                f"this {type(labelled).__name__} has no held-out rows, so its errors are unknown",
                hint="fit it with stopping=tu.CrossValidation(5), to a binary outcome, and save it with evidence=True if "
                "it is loaded again; or pass labelled=(y, p) with rows that it was not fitted on",
                parameter="labelled",
            )
        if labelled.held_out_.p.ndim > 1:
            raise ArgumentError(
                f"the held-out rows of this {type(labelled).__name__} are of several classes, the scores of one",
                hint="pass all columns of scores, of shape (n, classes)",
                parameter="labelled",
            )
        held_out = Labelled(*labelled.held_out_, cluster=getattr(labelled, "held_out_cluster_", None))
        held_out.shift_tolerance, held_out.uncorrected = CROSS_FITTED_TOLERANCE, labelled.held_out_before_
        return held_out
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
        "labelled must be rows with outcomes, a fitted calibrator, a model with evidence, an audit, a calibration bound or "
        f"a number in [0, 1]; got {repr(labelled)[:80] if short else type(labelled).__name__}",
        hint="pass labelled=(y, p) with outcomes and scores of rows that the model was not trained on",
        parameter="labelled",
    )


class Inputs(NamedTuple):
    """Validated arguments of functions such as `expected_cost`: rows, evidence, level and target of the interval."""

    rows: UnlabelledRows
    evidence: Evidence | None
    level: float
    target: Target
    tuned: bool  # whether labelled rows were used to choose a rule
    distance: float  # of the scores from the labelled ones

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
    """Validate the arguments of functions such as `expected_cost`; warn if the scores differ from the labelled ones."""
    check_interval(level, target)
    rows, evidence, distance = read_unlabelled(p, weight, segments), read_evidence(labelled), math.nan
    if isinstance(evidence, Labelled):
        distance = warn_of_shift(evidence, rows)
    return Inputs(rows, evidence, level, target, tuned, distance)


def quantile(failing: float) -> float:
    """Return the normal quantile for `NORMAL_SHARE` of ``failing``, the error probability of one side of an interval."""
    return -NormalDist().inv_cdf(NORMAL_SHARE * failing)


def bound_for_all_intervals(rows: Scored, failing: float, cluster: IntArray | None = None) -> float:
    """Bound the sampling error of the sum of residuals y - f over any score interval, per row, for all intervals at once.

    Sums of residuals cumulated by score behave as Brownian motion, and a sum over an interval is at most its range.
    """
    root = float(likely_root(float(np.sum((rows.w * (rows.y - rows.p)) ** 2)), float(rows.w.max()), failing))
    if cluster is not None:
        root = max(root, math.sqrt(likely_variance(rows, cluster, failing)))
    return range_quantile(NORMAL_SHARE * failing) * root / float(rows.w.sum())


def describe_labelled(rows: Scored) -> str:
    """Return the number of labelled rows as text."""
    return f"{len(rows.y):,} labelled row{'' if len(rows.y) == 1 else 's'}"


def assumption_of(evidence: str) -> str:
    """Return what an interval assumes, given the ``evidence`` of a result."""
    if evidence.endswith(AS_GIVEN):
        return "if the bound on c holds"
    return NO_CHANGE if evidence else CALIBRATED


def evidence_text(evidence: str) -> str:
    """Return the ``evidence`` of a result and its assumption, for a repr."""
    if not evidence or evidence.endswith(AS_GIVEN):
        return evidence or "assuming calibrated scores"
    return f"{evidence}, if nothing has changed since"


def upper_bound(
    evidence: CalibrationBound | AuditResult | float, failing: float, segment: str | None = None
) -> tuple[float, str]:
    """Return a bound on c(f), the largest error over a score interval, and its source; ``failing`` is for audits only."""
    if isinstance(evidence, CalibrationBound):
        if segment is not None:
            hint = "pass labelled rows with segments, or an audit, or leave segments out"
            raise ArgumentError("a calibration bound of all rows does not hold for a segment", hint=hint)
        return evidence.upper, f"c at most {evidence.upper:.4g} ({100 * (1 - evidence.delta):g}%, {evidence.method})"
    if isinstance(evidence, AuditResult):
        reason = ""
        try:
            finding = evidence.overall if segment is None else evidence[segment]
        except ArgumentError as error:
            finding, reason = None, f" ({error.hint})"
        # The bin that holds a value may have more rows than the segment of that value, and another error.
        if finding is None or (segment is not None and set(finding.segment.split(" & ")) != set(segment.split(" & "))):
            raise ArgumentError(
                f"the audit has no segment {segment!r}",
                hint="name segments as the audit does: it bins numbers and dates, such as 'age=18 to 29', which may be "
                f"passed as labels, and leaves small segments out{reason}",
            )
        bound = _bound_from_finding(finding, failing)
        return bound, f"c at most {bound:.4g}, from the audit of {finding.segment}"
    return evidence, f"c at most {evidence:g}, {AS_GIVEN}"


def measured_error(evidence: Evidence, segment: str | None = None) -> tuple[float, str]:
    """Return c_emp, the error over a score interval that the evidence shows, without noise, and its source."""
    if isinstance(evidence, Labelled):
        rows = evidence.in_segment(segment)
        return ecce(rows.y, rows.p, rows.w), f"c_emp of {describe_labelled(rows)}"
    if isinstance(evidence, CalibrationBound) and segment is None:
        return evidence.value, "c_emp of the bound"
    if isinstance(evidence, AuditResult):
        finding = evidence.overall if segment is None else evidence[segment]
        return float(finding.ecce), f"ECCE of {finding.segment}"
    bound, _ = upper_bound(evidence, 0.0, segment)
    return bound, f"c {bound:g}, {AS_GIVEN}"


def _bound_from_finding(finding: Any, failing: float) -> float:
    """Bound c, the largest error over a score interval, by the ECCE-R of a finding and its noise under calibration.

    Miscalibration adds noise. With v = E f (1 - f), e = E f and o = E y, E (y - f)^2 = v + o - e - 2 E f (y - f) =
    v - (o - e) + 2 E (1 - f) (y - f), and neither of the last means exceeds c: it is at most v + 2 c - |o - e|. As y f and
    (1 - y) (1 - f) are not negative, it is also at most o + e - v and 2 - o - e - v. As it depends on c, it is iterated.
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
