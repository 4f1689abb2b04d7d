"""The result of an audit: `Audit`, and one `Finding` per segment."""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.audits import coverage, materiality, text
from trueup.audits.findings import RankedFindings, deviation
from trueup.audits.materiality import adjusted_ratios
from trueup.audits.problems import MAX_CANDIDATES, HeldRows, Problem, ProblemRanks, Problems
from trueup.audits.segments import OVERALL
from trueup.audits.summary import AuditSummary, LazySummary
from trueup.data.columns import frame_like, frame_of, to_jsonable
from trueup.errors import ArgumentError
from trueup.metrics.inference import MIN_CLUSTERS
from trueup.metrics.result import html_table

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray
    from trueup.audits.dispersion import Noise
    from trueup.audits.segments import SegmentColumns, SegmentFamily, SegmentGrid
    from trueup.audits.settings import AuditSettings, Source
    from trueup.data.sampling import Sampling
    from trueup.data.table import Schema
    from trueup.errors import WarningRecord
    from trueup.kernels.tally import SortedRows
    from trueup.metrics.binned import Strategy
    from trueup.metrics.reliability import ReliabilityCurve

AMBIGUOUS = -1
MAX_LISTED_LEVELS = 12  # of an error message
SIZE_COLUMNS = ("ecce", "sigma", "weight")  # of `certain_excess`


@dataclass(frozen=True, eq=False)
class Finding:
    """One segment, and the numbers that the audit computed for it.

    Attributes
    ----------
    segment : str
    depth : int
        Number of columns that the segment combines.
    n : int
    weight : float
    observed, expected : float
        Weighted means of outcomes and scores; ``bias`` is observed - expected.
    ratio, ratio_low, ratio_high : float
        Observed / expected with an unadjusted 1 - alpha interval.
    ecce : float
        Range of the cumulative differences (ECCE-R); ``sigma`` is the same in units of its standard deviation.
    p_value, p_adjusted : float
        NaN if not testable. P-values near the rejection limit are refined, so ``p_value`` can depend on the other segments.
    mde : float
        Minimum detectable effect: the shift that a test at the segment's share of alpha detects with 80% power.
    testable : bool
        False if there are too few rows for a test; the segment is then not counted in the family. False, too, if there are
        too few clusters, or too few real outcomes other than zero; it is then counted, so that the other p-values are
        adjusted as if it had been tested.
    excess : float
        Excess events, sum w (y - p): how many more outcomes (or how much more of a real outcome) than expected.
    share : float
        Share of the total weight.
    ratio_low_adjusted, ratio_high_adjusted : float
        Interval of ``ratio`` at the segment's share of alpha: with probability 1 - alpha or more, the intervals of all
        segments hold at once.
    state : str
        Of a significant error "material" if it certainly exceeds the tolerance, "within tolerance" if it certainly does
        not, else "possibly material"; without a tolerance "miscalibrated". Else "no miscalibration found" or "not
        testable". See `trueup.audits.materiality`.
    note : str
    curve : ReliabilityCurve or None
        Audits of files and clusters have those of the worst thousand segments, of single columns, and of all rows.
    design_effect : float or None
        Factor by which clusters raise the variance of the segment; None without clusters.
    """

    segment: str
    depth: int
    n: int
    weight: float
    observed: float
    expected: float
    ratio: float
    ratio_low: float
    ratio_high: float
    bias: float
    ecce: float
    sigma: float
    p_value: float
    p_adjusted: float
    mde: float
    testable: bool
    excess: float
    share: float
    ratio_low_adjusted: float
    ratio_high_adjusted: float
    state: str
    note: str = ""
    curve: ReliabilityCurve | None = field(default=None, repr=False)
    design_effect: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; values that are not finite become None."""
        names = (*COLUMNS, "note") if self.design_effect is None else (*COLUMNS, DESIGN_EFFECT, "note")
        values = {name: to_jsonable(getattr(self, name)) for name in names}
        return values | {"curve": None if self.curve is None else self.curve.to_dict()}

    def __repr__(self) -> str:
        interval = f"{text.number(self.ratio_low)} to {text.number(self.ratio_high)}"
        tail = f"adjusted p {text.number(self.p_adjusted, 2)}" if self.testable else self.note
        return (
            f"<{text.shorten(self.segment, 80)}: {self.n:,} rows, observed {text.number(self.observed)}, "
            f"expected {text.number(self.expected)}, ratio {text.number(self.ratio)} ({interval}), "
            f"{text.number(self.sigma)} sigma, {tail}>"
        )

    def _repr_html_(self) -> str:
        title, notes = f"{self.segment}: {text.describe_problem(self)}", [self.note] if self.note else []
        return html_table(title, *text.plain_table([self]), notes=notes)


DESIGN_EFFECT = "design_effect"  # a column of audits with clusters only
COLUMNS = tuple(name for name in Finding.__dataclass_fields__ if name not in ("note", "curve", DESIGN_EFFECT))


@dataclass(frozen=True, eq=False)
class SegmentKeys:
    """Columns and level codes of all segments, worst first (rank 0); names are formatted on request."""

    columns: Int32Array
    codes: Int32Array
    target: NDArray[np.int16]
    levels: SegmentColumns
    targets: tuple[str, ...]

    @property
    def labels(self) -> tuple[tuple[str, ...], ...]:
        """Labels of the levels of each column."""
        return self.levels.labels

    def name(self, rank: int) -> str:
        """Return the name of the segment at position ``rank``, such as "country=BR & device=tv"."""
        levels = [self.labels[column][code] for column, code in self.levels_of(rank)]
        target = self.targets[self.target[rank]]
        return " & ".join([target, *levels] if target else levels) or OVERALL

    def parts(self, rank: int) -> tuple[tuple[str, bool], ...]:
        """Return what identifies the segment at ``rank`` in other audits: labels of the audited score and of the levels.

        Pooled rare levels, whose number differs between audits, are the name of the column and True.
        """
        parts = []
        for column, code in self.levels_of(rank):
            pooled = column in self.levels.pooled and code == len(self.labels[column]) - 1
            parts.append((self.levels.names[column] if pooled else self.labels[column][code], pooled))
        return (self.targets[self.target[rank]], False), *sorted(parts)

    def find_level(self, text: str) -> tuple[str, int]:
        """Return the label of the level that a part of a name means, and its column; -1 if no column is named.

        A number stands for the level that holds it: "age=35" is in "age=30 to 39". Other texts are returned as they are.
        """
        names = self.levels.names
        named = [column for column, name in enumerate(names) if text.startswith(f"{name}=")]
        if any(text in self.labels[column] for column in named):
            return text, -1
        for column in named:
            edges = self.levels.edges.get(column)
            try:
                value = float(text.removeprefix(f"{names[column]}="))
            except ValueError:
                continue
            if edges is not None and not math.isnan(value):
                return self.labels[column][int(np.searchsorted(edges, value, side="right"))], column
        return text, named[0] if named else -1

    def levels_of(self, rank: int) -> list[tuple[int, int]]:
        """Return column and level code of each condition of the segment at position ``rank``."""
        pairs = zip(self.columns[rank].tolist(), self.codes[rank].tolist(), strict=True)
        return [(column, code) for column, code in pairs if column >= 0]

    @property
    def depth(self) -> IntArray:
        """Number of columns that each segment combines."""
        return np.asarray((self.columns >= 0).sum(axis=1))


def _unordered(segment: str) -> tuple[str, ...]:
    return tuple(sorted(segment.split(" & ")))


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of `trueup.audit`: a verdict, and a finding for every segment, worst first.

    Attributes
    ----------
    rows : int
        Rows audited. ``unlabelled`` and ``weightless`` count those set aside.
    schema : Schema
    settings : AuditSettings
    tested : int
        Number of segments with a p-value. Segments with too few clusters, or too few real outcomes other than zero, have
        none, and are in the family of tests, too.
    thin : int
        Number of segments with rows, but fewer than ``min_rows``: they are not tested.
    dropped : tuple of str
        Combinations of columns left out to stay within ``max_cells``; the verdict counts them.
    left_out : mapping
        Columns left out, and why.
    global_sigma, prevalence : float
        Standard deviation of the statistic and observed mean over all rows (with several classes, of the top label).
    noise : PooledNoise, FamilyNoise or None
        The model of the noise of real outcomes.
    weight_ratio : float
        How many times as much rows of outcome 1 weigh as rows of outcome 0 with equal scores; 1 if weights do not depend on
        the outcome.
    weight_spread : float
        Largest factor of the variance of a level of one column, above 1 if weights depend on the outcome in some rows only.
    source : Source or None
        Where the rows came from, and the command that read them, if known.
    clusters, effective_clusters : int, float
        Number of clusters, 0 without; how many of equal size (with weights, of equal weight) they count for.
    cross_fitted : bool
        Whether the scores are the held-out predictions of a cross-fit, of which an audit is nearly blind.
    sampling : Sampling or None
        Shares of the rows with outcome 1 and 0 that were kept, by which the weights were divided.
    arrays : frozenset of str
        Roles that were passed as arrays; their names in ``schema`` are no columns.
    warnings : tuple of WarningRecord
        Warnings about the data that the audit issued, such as rows that are not independent.
    """

    columns: Mapping[str, AnyArray] = field(repr=False)
    levels: FloatArray = field(repr=False)
    sizes: FloatArray = field(repr=False)
    is_material: BoolArray = field(repr=False)
    keys: SegmentKeys = field(repr=False)
    curves: Mapping[int, ReliabilityCurve] = field(repr=False)
    schema: Schema
    settings: AuditSettings
    rows: int
    unlabelled: int
    weightless: int
    thin: int
    dropped: tuple[str, ...]
    left_out: Mapping[str, str]
    global_sigma: float
    prevalence: float
    noise: Noise | None = field(default=None, repr=False)
    weight_ratio: float = 1.0
    weight_spread: float = 1.0
    source: Source | None = None
    summary_source: AuditSummary | LazySummary | None = field(default=None, repr=False)
    held_rows: HeldRows | None = field(default=None, repr=False)
    problem_ranks: tuple[ProblemRanks, ...] = field(default=(), repr=False)
    clusters: int = 0
    effective_clusters: float = math.inf
    cross_fitted: bool = False
    sampling: Sampling | None = None
    arrays: frozenset[str] = frozenset()
    warnings: tuple[WarningRecord, ...] = ()

    @classmethod
    def build(
        cls, columns: SegmentColumns, grid: SegmentGrid, families: Sequence[SegmentFamily], findings: RankedFindings,
        **facts: Any,
    ) -> Audit:  # fmt: skip
        """Return the audit with these findings, without a summary; ``facts`` are its other attributes by name."""
        keys = [family.keys for family in families]
        target = np.repeat(np.arange(len(families), dtype=np.int16), [len(family) for family in families])
        for column in findings.columns.values():
            column.setflags(write=False)
        overall = families[0].blocks[0].tally
        order, labels = findings.order, tuple(family.label for family in families)
        segment_columns, codes = (np.concatenate([own[at] for own in keys])[order] for at in (0, 1))
        segment_columns = np.append(grid.columns, -1).astype(np.int32)[segment_columns]
        return cls(
            columns=findings.columns,
            levels=findings.levels,
            sizes=findings.sizes,
            is_material=findings.material,
            keys=SegmentKeys(segment_columns, codes, target[order], columns, labels),
            curves=findings.curves,
            clusters=findings.clusters,
            effective_clusters=findings.effective_clusters,
            weight_spread=findings.spread,
            thin=sum(block.thin for family in families for block in family.blocks),
            dropped=tuple(" x ".join(columns.names[at] for at in combination) for combination in grid.dropped),
            global_sigma=float(deviation(families[0], overall)[0] * findings.overall_stretch / overall.weight[0]),
            noise=families[0].noise,
            prevalence=float((overall.expected[0] + overall.residual[0]) / overall.weight[0]),
            **facts,
        )

    @property
    def summary(self) -> AuditSummary:
        """Distribution of scores, cumulative differences and measures over all rows (of the top label, if several classes).

        Computed on first use. An audit of rows in memory holds on to scores and outcomes for it, about 30 bytes per row.
        """
        source = self.summary_source
        if source is None:
            raise ArgumentError("this audit has no summary of its rows", hint="audit the rows again")
        return source.value if isinstance(source, LazySummary) else source

    @property
    def sorted_rows(self) -> SortedRows | None:
        """The rows in ascending score order if they are in memory, else None."""
        return self.summary_source.rows if isinstance(self.summary_source, LazySummary) else None

    def __getstate__(self) -> dict[str, Any]:
        """Pickle summary and problems instead of the rows."""
        summary = None if self.summary_source is None else self.summary
        return {**self.__dict__, "summary_source": summary, "held_rows": None, "problem_ranks": self._problem_ranks}

    def __len__(self) -> int:
        return len(self.columns["n"])

    def __iter__(self) -> Iterator[Finding]:
        """Iterate over the findings, worst first."""
        return (self.finding(rank) for rank in range(len(self)))

    def __getitem__(self, segment: str) -> Finding:
        """Return the finding of a segment by name, such as ``audit["country=BR & device=tv"]``, levels in any order.

        A number stands for the bin that holds it: ``audit["age=35"]`` is that of "age=30 to 39".
        """
        return self.finding(self._rank_of(segment))

    def _rank_of(self, segment: str) -> int:
        """Return the position of a segment by name; raise, with a suggestion, if there is none."""
        given = str(segment)
        known = _unordered(given) in self._ranks_by_name
        levels = [(given, -1)] if known else [self.keys.find_level(level) for level in given.split(" & ")]
        name = " & ".join(level for level, _ in levels)
        rank = self._ranks_by_name.get(_unordered(name))
        if rank == AMBIGUOUS:
            raise ArgumentError(f"several segments are called {segment!r}", hint="find them in to_frame()")
        if rank is not None:
            return rank
        problem, hint = f"no segment {segment!r} in this audit", "the segments are in to_frame()['segment']"
        columns = [column for _, column in levels if column >= 0]
        near = difflib.get_close_matches(given, self._names[:20_000].tolist(), n=1)
        if name != given:
            problem = f"{segment!r} is in {name!r}, which was not tested"
            hint = f"it has fewer than {self.settings.min_rows:,} rows, or these columns were not combined"
        elif near and not (columns and columns[0] in self.keys.levels.edges):
            hint = f"did you mean {near[0]!r}?"
        elif columns:
            labels = self.keys.labels[columns[0]]
            more = f", ... ({len(labels):,} levels)" if len(labels) > MAX_LISTED_LEVELS else ""
            hint = f"its levels are {', '.join(text.shorten(label) for label in labels[:MAX_LISTED_LEVELS])}{more}"
        raise ArgumentError(problem, hint=hint)

    @cached_property
    def _names(self) -> NDArray[np.object_]:
        names = np.empty(len(self), object)
        names[:] = [self.keys.name(rank) for rank in range(len(self))]
        return names

    @cached_property
    def _ranks_by_name(self) -> dict[tuple[str, ...], int]:
        ranks: dict[tuple[str, ...], int] = {}
        for rank, name in enumerate(self._names):
            key = _unordered(name)
            ranks[key] = AMBIGUOUS if key in ranks else rank
        return ranks

    @cached_property
    def ranks(self) -> dict[tuple[tuple[str, bool], ...], int]:
        """Rank (0 is the worst) of every segment by `SegmentKeys.parts`; the first of several segments with equal parts."""
        ranks: dict[tuple[tuple[str, bool], ...], int] = {}
        for rank in range(len(self)):
            ranks.setdefault(self.keys.parts(rank), rank)
        return ranks

    def finding(self, rank: int) -> Finding:
        """Return the finding at position ``rank``; 0 is the worst segment."""
        values = {name: column.item(rank) for name, column in self.columns.items()}
        values |= {name: column.item(rank) for name, column in self.derived.items()}
        depth = int((self.keys.columns[rank] >= 0).sum())
        remark, curve = self._note(values), self.curve(rank)
        return Finding(segment=self.keys.name(rank), depth=depth, note=remark, curve=curve, **values)

    def curve(self, rank: int) -> ReliabilityCurve | None:
        """Return the reliability curve of the segment at position ``rank``; None if its rows are not in memory."""
        if rank not in self.curves and self.held_rows is not None:
            return self.held_rows.curve(rank)
        return self.curves.get(rank)

    def reliability(
        self, segment: str | None = None, *, n_bins: int = 10, strategy: Strategy = "mass", edges: ArrayLike | None = None
    ) -> ReliabilityCurve:
        """Compute the reliability curve of a segment, or of all rows, in bins of your choice.

        The rows must be in memory: not those of files or clusters, nor of an audit that was pickled.

        Parameters
        ----------
        segment : str, optional
            As in ``audit["country=BR"]``; all rows by default.
        n_bins, strategy, edges
            As for `trueup.metrics.bins`; empty bins are left out.

        Examples
        --------
        >>> import trueup as tu
        >>> data = tu.simulate.lending(2_000, seed=1)
        >>> audit = tu.audit(data, outcome="outcome", prediction="prediction", by=["region"])
        >>> audit.reliability("region=harbour", edges=[0, 0.05, 0.1, 0.2, 1]).rows
        array([118,  63,  32,   8])
        """
        if self.held_rows is None:
            raise ArgumentError(
                "the rows of this audit are not in memory: its curves have the bins they have",
                hint="audit a frame in memory, such as a sample of the rows",
            )
        rank = self.overall_rank if segment is None else self._rank_of(segment)
        levels, target = self.keys.levels_of(rank), int(self.keys.target[rank])
        return self.held_rows.curve_in_bins(rank, target, levels, n_bins, strategy, edges)

    @property
    def unexamined(self) -> int:
        """Number of significant findings that are too weak to be examined for `problems`, if there are very many."""
        return max(0, self.rejected - MAX_CANDIDATES)

    @cached_property
    def problems(self) -> Problems:
        """The distinct problems: findings that one of them explains, or that share more than 90% of its rows, are folded.

        They are sorted by state (material, possibly material, within tolerance), then by size: how many events are
        certainly in excess or missing (`trueup.audits.materiality.certain_excess`). The first is called the largest.
        """
        chosen = self._problem_ranks
        ranks = np.array([rank for rank, _, _ in chosen], np.int64)
        values = {name: self.columns[name][ranks] for name in SIZE_COLUMNS}
        size = materiality.certain_excess(values, np.array([sigma for _, _, sigma in chosen]), self.levels[ranks])
        severity = np.array([materiality.SEVERITY.index(state) for state in self.derived["state"][ranks]], np.int64)
        return Problems(
            Problem(self.finding(rank), tuple(map(self.keys.name, folded)), sigma, rank)
            for rank, folded, sigma in (chosen[at] for at in np.lexsort((-size, severity)))
        )

    @property
    def _problem_ranks(self) -> tuple[ProblemRanks, ...]:
        return self.problem_ranks if self.held_rows is None else self.held_rows.problems

    @property
    def explained_by(self) -> dict[int, int]:
        """The rank of the problem that explains a finding, by the rank of the finding; a problem explains itself."""
        return {rank: problem.rank for problem in self._problem_ranks for rank in (problem.rank, *problem.folded)}

    @cached_property
    def derived(self) -> dict[str, AnyArray]:
        """Columns of `to_frame` that are computed from others on first use."""
        bias, weight = self.columns["bias"], self.columns["weight"]
        low, high = adjusted_ratios(self.columns, self.sizes, self.levels, self.noise)
        rejected = self.columns["p_adjusted"] <= self.settings.alpha
        ratios, tolerance = np.array([low, high]), self.settings.tolerance
        state = materiality.find_states(tolerance, self.columns, rejected, self.is_material, ratios, self.levels)
        return {
            "excess": bias * weight, "share": weight / weight[self.overall_rank],
            "ratio_low_adjusted": low, "ratio_high_adjusted": high,
            "state": state,
        }  # fmt: skip

    def _note(self, values: Mapping[str, Any]) -> str:
        """Return a remark on a finding with these values (not tested, approximate p-value, ...), or an empty string."""
        if not values["testable"]:
            if self.untestable:
                return f"not testable: {self.untestable}"
            if values["n"] < text.min_tested_rows(self):
                return f"not tested: {values['n']} rows"
            if self.noise is not None and math.isnan(values["sigma"]):
                return f"not testable: {text.FEW_NONZERO}"
            return f"not tested: fewer than {MIN_CLUSTERS} effective clusters"
        if values["p_value"] == 0 and values["sigma"] == math.inf:
            return "a prediction of 0 or 1 was wrong" if self.schema.task != "regression" else "differs without any noise"
        few = "" if self.noise is None else text.few_rows(self)
        return f"p-value approximate: {few}" if few else ""

    @property
    def untestable(self) -> str:
        """Why no segment can be tested, whatever its size; empty if segments can be tested."""
        return "" if self.noise is None else self.noise.reason

    @property
    def column_names(self) -> tuple[str, ...]:
        """Names of the columns of `to_frame`."""
        return (*COLUMNS, DESIGN_EFFECT) if DESIGN_EFFECT in self.columns else COLUMNS

    @property
    def tested(self) -> int:
        """Number of segments with a p-value; those with too few clusters or non-zeros count in the family, but not here."""
        return int(self.columns["testable"].sum())

    @property
    def rejected(self) -> int:
        """Number of segments whose adjusted p-value is at most alpha."""
        return int((self.columns["p_adjusted"] <= self.settings.alpha).sum())

    @property
    def miscalibrated(self) -> bool:
        """Whether some segment is significantly miscalibrated."""
        return self.rejected > 0

    @property
    def state(self) -> str:
        """The state of the audit, the most serious of its segments (see `Finding`).

        "not testable" if nothing was found, and less was tested than ``min_tested`` and ``min_rows_total`` require.
        """
        state = str(min(set(self.derived["state"]), key=materiality.SEVERITY.index))
        return materiality.NOT_TESTABLE if state == materiality.NOT_DETECTED and self.unmet else state

    @property
    def unmet(self) -> tuple[str, ...]:
        """Which of the requirements ``min_tested`` and ``min_rows_total`` the audit does not meet."""
        return tuple(coverage.unmet_requirements(self))

    @property
    def shortfalls(self) -> tuple[str, ...]:
        """Why the audit shows too little for the scores to pass if nothing was found; empty if it tested enough.

        Nothing, or less than required, could be tested; a segment with more than 10% of the rows could not; or the scores
        are held-out predictions of a cross-fit. ``trueup audit --fail-if`` then exits with code 4.

        Examples
        --------
        >>> import trueup as tu
        >>> data = tu.simulate.lending(2_000, seed=1, calibrated=True)
        >>> audit = tu.audit(data, outcome="outcome", prediction="prediction", by=["region"], min_rows_total=5_000)
        >>> audit.shortfalls
        ('2,000 rows have outcomes, fewer than the 5,000 required',)
        """
        return tuple(coverage.find_shortfalls(self))

    def count_state(self, state: str) -> int:
        """Return the number of segments in a state, such as "material": see `Finding`."""
        return int((self.derived["state"] == state).sum())

    @property
    def weighted(self) -> bool:
        """Whether rows have weights: those of a column or an array, or those that undo a sample."""
        return self.schema.weight is not None or self.sampling is not None

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks that qualify the result: warnings about the data, rows and columns left out, what could not be tested."""
        return tuple(text.notes(self))

    @property
    def verdict(self) -> str:
        """Whether the scores are calibrated, in one sentence."""
        return text.verdict(self)

    @cached_property
    def overall(self) -> Finding:
        """The finding over all rows, which is one of the tests; with several classes, that of the top label."""
        return self.finding(self.overall_rank)

    @cached_property
    def overall_rank(self) -> int:
        """Position of the finding over all rows."""
        return int(np.flatnonzero((self.keys.depth == 0) & (self.keys.target == 0))[0])

    @property
    def design_effect(self) -> float:
        """Factor by which clusters raise the variance over all rows; 1 without clusters."""
        return float(self.columns[DESIGN_EFFECT][self.overall_rank]) if DESIGN_EFFECT in self.columns else 1.0

    def worst(self, count: int = 10) -> list[Finding]:
        """Return the ``count`` worst segments, by adjusted p-value and then by ``sigma`` (see `Finding`)."""
        return [self.finding(rank) for rank in range(max(0, min(count, len(self))))]

    @property
    def worst_sigma(self) -> float:
        """Multicalibration error: the largest ``sigma`` (statistic in standard deviations) among the tested segments."""
        sigma = self.columns["sigma"][self.columns["testable"]]
        return float(sigma.max()) if len(sigma) else math.nan

    @property
    def mce_absolute(self) -> float:
        """Multicalibration error in the units of the score: `worst_sigma` times `global_sigma`."""
        return self.worst_sigma * self.global_sigma

    @property
    def mce_relative(self) -> float:
        """`mce_absolute` divided by the share of the rarer class (by the absolute mean outcome, for regression)."""
        return self.mce_absolute / self.prevalence_scale if self.prevalence_scale > 0 else math.nan

    @property
    def prevalence_scale(self) -> float:
        """What `mce_relative` divides by: the share of the rarer class, or the absolute mean outcome for regression."""
        return abs(self.prevalence) if self.schema.task == "regression" else min(self.prevalence, 1 - self.prevalence)

    def plot(self, segment: str | None = None, ax: Any = None, *, title: str = "", **bins: Any) -> Any:
        """Draw the reliability curve of a segment, or of all rows, with matplotlib; return its axes.

        Parameters
        ----------
        segment : str, optional
            As in ``audit["country=BR"]``; all rows by default.
        ax : matplotlib Axes, optional
            A new pyplot figure by default.
        title : str, optional
        **bins
            ``n_bins``, ``strategy`` or ``edges``, as for `reliability`; by default the bins of the audit.

        Examples
        --------
        >>> import trueup as tu
        >>> data = tu.simulate.lending(2_000, seed=1)
        >>> audit = tu.audit(data, outcome="outcome", prediction="prediction", by=["region"])
        >>> audit.plot("region=harbour").get_xlabel()
        'mean score'
        """
        figures = require("trueup.figures", extra="plots")  # a higher layer, imported by name when something is drawn
        if segment is None:
            return figures.draw_reliability(self, ax, title=title, **bins)
        finding = self[segment]
        if bins:
            finding = dataclasses.replace(finding, curve=self.reliability(segment, **bins))
        return figures.draw_reliability(finding, ax, title=title)

    def to_pandas(self) -> Any:
        """Return every segment as a pandas DataFrame: the columns of `to_frame`."""
        return frame_of("pandas", self.to_frame())

    def to_polars(self) -> Any:
        """Return every segment as a polars DataFrame: the columns of `to_frame`."""
        return frame_of("polars", self.to_frame())

    def to_frame(self, like: Any = None) -> Any:
        """Return every segment as a frame of the library that ``like`` comes from, or as a dict of arrays."""
        named = {"segment": self._names, "depth": self.keys.depth, **self.columns, **self.derived}
        return frame_like({name: named[name].copy() for name in self.column_names}, like)

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """Return plain values for JSON: verdict, settings, and findings, worst first (at most ``most``)."""
        count = len(self) if most is None else min(most, len(self))
        summary = (
            "verdict", "state", "miscalibrated", "rows", "tested", "rejected", "worst_sigma", "mce_absolute",
            "mce_relative", "prevalence", "unlabelled", "weightless", "thin", "weight_ratio", "weight_spread", "clusters",
            "shortfalls",
        )  # fmt: skip
        roles = ("task", "outcome", "prediction", "weight", "classes", *(["cluster"] if self.schema.cluster else []))
        return {
            **{name: to_jsonable(getattr(self, name)) for name in summary},
            "roles": {name: to_jsonable(getattr(self.schema, name)) for name in roles},
            "by": [feature.name for feature in self.schema.features],
            "sampling": None if self.sampling is None else self.sampling._asdict(),
            "settings": to_jsonable(dataclasses.asdict(self.settings)),
            "notes": list(self.notes),
            "warnings": [record._asdict() for record in self.warnings],
            "dropped": list(self.dropped),
            "left_out": dict(self.left_out),
            "overall": self.overall.to_dict(),
            "problems": [problem.to_dict() for problem in self.problems],
            "findings": [self.finding(rank).to_dict() for rank in range(count)],
        }

    def shown(self, count: int) -> list[Finding]:
        """Return the first ``count`` problems, and the finding over all rows."""
        worst = [problem.finding for problem in self.problems[:count]]
        return worst if any(finding.segment == self.overall.segment for finding in worst) else [*worst, self.overall]

    def __repr__(self) -> str:
        shown = self.shown(8)
        heads, rows = text.findings_table(self, shown)
        lines = text.aligned_lines([heads, *((text.shorten(row[0]), *row[1:]) for row in rows)])
        notes = [*text.score_lines(shown, self.verdict), *text.more_problems(self, 8), *self.notes]
        return "\n".join([self.verdict, "", *lines, "", *notes]).rstrip()

    def _repr_html_(self) -> str:
        shown = self.shown(10)
        notes = [*text.score_lines(shown, self.verdict), *text.more_problems(self, 10), *self.notes]
        bold = [at for at, finding in enumerate(shown) if finding.p_adjusted <= self.settings.alpha]
        return html_table(self.verdict, *text.findings_table(self, shown), bold=bold, notes=notes)
