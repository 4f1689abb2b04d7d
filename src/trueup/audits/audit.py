"""audit(): test the calibration of scores over all rows and on every segment."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice, check_fraction, check_integer
from trueup.audits.clusters import check_supported
from trueup.audits.dispersion import fit_noise, resolve_family
from trueup.audits.findings import compute_findings
from trueup.audits.materiality import Tolerance
from trueup.audits.partitions import partition_by_score
from trueup.audits.problems import HeldRows, find_problems
from trueup.audits.result import Audit
from trueup.audits.segments import (
    MemoryRows,
    find_families,
    fit_binners,
    plan_grid,
    require_outcome,
    segment_codes,
    target_labels,
)
from trueup.audits.settings import AuditSettings, check_min_rows_total, parse_min_tested
from trueup.audits.summary import LazySummary, summarise
from trueup.cluster.partitions import PartitionedTable, open_partitions
from trueup.data.columns import check_aligned, engine_of, open_source
from trueup.data.frame import read
from trueup.data.sampling import reject_sampling
from trueup.data.table import HELD_OUT_SUFFIX, Table, is_cross_fitted
from trueup.errors import ArgumentError, SoftOutcomeWarning, WarningRecord, warn
from trueup.kernels.threads import Workers
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Sequence


MAX_CELLS = 2_000_000
SINGLE_THREAD_ROWS = 20_000  # up to here starting threads takes longer than they save


def audit(
    data: Any,
    *,
    outcome: Any = None,
    prediction: Any = None,
    by: Sequence[Hashable] | Hashable | None = None,
    weight: Any = None,
    sampling: Mapping[str, float] | None = None,
    cluster: Any = None,
    task: str = "auto",
    family: str | None = None,
    variance_power: float | None = None,
    tolerance: float | str | None = None,
    depth: int = 2,
    bins: int | Mapping[str, Any] = 10,
    categorical: Sequence[Hashable] | Hashable = (),
    segments: Mapping[str, Any] | None = None,
    min_rows: int = 50,
    min_tested: int | str | None = None,
    min_rows_total: int | None = None,
    alpha: float = 0.05,
    adjust: str = "holm",
    max_cells: int = MAX_CELLS,
    random_state: int = 0,
    draws: int = 199,
    unlabelled: str = "error",
    classes: Sequence[Any] | None = None,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Test the calibration of scores over all rows and on every segment.

    Every engine computes the same numbers: rows are partitioned by score range, each partition is tallied, the tallies are
    added, and findings are computed from the sums. Rows in memory are one partition; a `Scan` spills its rows to one file
    per score range; frames of Spark and Dask are shuffled to score ranges and tallied by their workers.

    Parameters
    ----------
    data : pandas, polars or pyarrow frame, dict of arrays, ndarray, Table, Scan, or DataFrame of Spark or Dask
        One row per prediction. For a NumPy array columns are positions.
    outcome : column name or array
        The observed outcome: 0/1, booleans, probabilities in [0, 1], or real numbers with ``task="regression"``. With
        several prediction columns, the class. Pandas objects must have the index of ``data``, here and in other roles.
    prediction : column name, or several
        The score. Several columns hold the probabilities of several classes: each class is audited, and the top label.
    by : column names, optional
        Columns that define the segments; by default every column without another role, with a warning of those that look
        like other scores. Texts, booleans and categories by level, numbers by quantile bins, dates by calendar period;
        missing is a level of its own. Quantile bins of rows in files or on a cluster are those of a random sample, where
        not all values fit in memory.
    weight : column name or array, optional
        Importance weights. Rows of weight 0 are left out. Weights that depend on the outcome are recognised.
    sampling : mapping, optional
        Shares of the rows with outcome 1 and 0 that were kept, ``{"positive": 1, "negative": 0.1}``, if the data are a
        sample of the rows that the scores are meant for: weights are divided by them. ``weight`` must not contain them,
        too: weights that differ between the outcomes by about that ratio already are an error.
    cluster : column name or array, optional
        Identifies rows that belong together, such as the rows of one customer. Rows of different clusters are independent;
        rows of one cluster may be correlated, and p-values, intervals and ``mde`` allow for it. Every row needs an
        identifier.
    task : {"auto", "binary", "regression"}
        If outcomes are mostly between 0 and 1, pass "regression" for rates, "binary" for labels that are probabilities.
    family : {"poisson", "gamma", "tweedie"}, optional
        The distribution of a real outcome, if it is known: its variance is then a function of the prediction, times the
        dispersion that the rows show; ``weight`` is the exposure, and the outcome a count or amount per unit of exposure.
    variance_power : float, optional
        Exponent of the variance of "tweedie": Var(y) is proportional to the mean to this power. 1.5 by default.
    tolerance : float or str, optional
        The largest error that does not matter: an absolute difference of observed and expected mean, or ``"10%"`` of the
        expected mean, that is observed / expected from 1/1.1 to 1.1. Errors that certainly exceed it are material.
    depth : int
        Maximum number of columns that a segment combines: 1, 2 or 3.
    bins : int or mapping
        Number of quantile bins, or per column a number, edges, or a calendar period.
    categorical : column names
        Numeric columns whose values are categories rather than amounts.
    segments : mapping of str to boolean array, optional
        Further segments to test, by name; they are part of the family.
    min_rows : int
        Segments with fewer rows are not tested. Levels of a column with fewer rows are listed as not testable, and tested
        together, as one more level of the column that is combined as the others are: "country=(112 rare levels)".
    min_tested : int or str, optional
        How many segments must be tested, or which share of all segments that have rows, such as ``"80%"``. If fewer are,
        and nothing is found, the audit is not testable.
    min_rows_total : int, optional
        How many rows with outcomes there must be, in the same way.
    alpha : float
        Significance level of the family of tests, and of the intervals.
    adjust : {"holm", "max", "bh", "by"}
        "holm" and "max" control the family-wise error rate at ``alpha``; "max" is a Monte-Carlo test with draws shared by
        all segments, more powerful where they overlap. "bh" and "by" control the false discovery rate.
    max_cells : int
        Maximum number of segments. If combinations of columns could have more, the deepest are dropped first and listed in
        the result.
    random_state, draws : int
        Seed and number of draws of ``adjust="max"``, which takes about as long as that many audits;
        ``alpha * (draws + 1)`` must be an integer.
    unlabelled : {"error", "drop"}
        How to treat rows without an outcome.
    classes : sequence, optional
        The outcome that belongs to each of several prediction columns.
    threads : int, optional
        Defaults to the cores available to this process, or to 1 for few rows. The result does not depend on it.
    progress : callable, optional
        Called as ``progress(done, total)`` during the computation.

    Returns
    -------
    Audit

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1, calibrated=True)
    >>> tu.audit(data, outcome="outcome", prediction="prediction", by=["region", "product", "age"]).miscalibrated
    False
    """
    hint = "2 combines two columns, 3 three: more would leave too few rows per segment"
    check_integer("depth", depth, 1, 3, hint=hint)
    check_integer("min_rows", min_rows, 1)
    check_fraction("alpha", alpha, hint="0.05 is a test at 5%")
    check_choice("adjust", adjust, ("holm", "max", "bh", "by"))
    check_integer("max_cells", max_cells, 1)
    check_integer("draws", draws, 1, 1_000_000)
    check_integer("random_state", random_state, 0)
    check_integer("threads", threads, 1, optional=True)
    if adjust == "max":
        inference.check_draws(alpha, draws)
    given_task = task
    if family is not None or variance_power is not None:
        task, variance_power = resolve_family(family, variance_power, task)
    used_draws = int(draws) if adjust == "max" else 0
    settings = AuditSettings(
        int(depth), int(min_rows), float(alpha), str(adjust), int(max_cells), used_draws, int(random_state), family,
        variance_power, None if tolerance is None else Tolerance.parse(tolerance), parse_min_tested(min_tested),
        check_min_rows_total(min_rows_total),
    )  # fmt: skip
    workers = Workers(threads, progress)
    if engine_of(data) is not None:
        require_outcome(outcome)
        _check_partitioned(prediction, segments, sampling, adjust)
        if cluster is not None:
            check_supported(adjust)
        with open_partitions(
            data, outcome=outcome, prediction=prediction, weight=weight, features=by, task=task, categorical=categorical,
            unlabelled=unlabelled, classes=classes, cluster=cluster,
        ) as partitions:  # fmt: skip
            return _audit_partitions(partitions, bins, settings, workers, warn_soft=given_task == "auto")
    if isinstance(data, Table):
        table = data
        unchanged = given_task == "auto" and unlabelled == "error" and not categorical
        roles = (outcome, prediction, by, weight, sampling, cluster, classes)
        if any(role is not None for role in roles) or not unchanged:
            raise ArgumentError("a Table already has its roles", hint="pass roles to the function that reads it")
    else:
        table = read(
            data, outcome=outcome, prediction=prediction, weight=weight, features=by, task=task,
            categorical=categorical, unlabelled=unlabelled, classes=classes, cluster=cluster,  # type: ignore[arg-type]
            check_columns=True, sampling=sampling,
        )  # fmt: skip
        if given_task == "auto":
            table = warn_of_soft_outcomes(table)
        if isinstance(segments, Mapping):
            check_aligned({"the data": data, **{f"segment {name!r}": mask for name, mask in segments.items()}})
    require_outcome(table.outcome)
    if table.cluster is not None:
        check_supported(adjust)
    if threads is None and len(table) <= SINGLE_THREAD_ROWS:
        workers = Workers(1, progress)
    result = _audit_table(table, bins, segments, settings, workers)
    marked = isinstance(prediction, str) and f"{prediction}{HELD_OUT_SUFFIX}" in open_source(data).keys
    return dataclasses.replace(result, cross_fitted=True) if marked or is_cross_fitted(table.prediction) else result


def warn_of_soft_outcomes(table: Table) -> Table:
    """Warn if most outcomes are neither 0 nor 1, and return the table with that warning among its warnings."""
    y = table.outcome
    soft = 0 if y is None or table.schema.task != "binary" else int(np.count_nonzero((y > 0) & (y < 1)))
    records = _warn_of_soft(soft, len(table), table.schema.outcome)
    return dataclasses.replace(table, warnings=(*table.warnings, *records))


def _warn_of_soft(soft: int, rows: int, name: str | None) -> list[WarningRecord]:
    """Warn if most outcomes, ``soft`` of them, are neither 0 nor 1: as coin flips they have more noise than rates do."""
    if 2 * soft <= rows:
        return []
    message = (
        f"{soft:,} of {rows:,} outcomes in column {name!r} are neither 0 nor 1; each is tested as if it were a coin flip"
    )
    hint = 'pass task "regression" for rates and shares, "binary" for labels that are probabilities'
    return [warn(SoftOutcomeWarning, f"{message}, which finds less", hint, column=name, stacklevel=4)]


def _check_partitioned(prediction: Any, segments: Any, sampling: Any, adjust: str) -> None:
    """Raise if the prediction is missing, or an argument of `audit` needs rows in memory."""
    if prediction is None:
        hint, example = "name its column: {prediction}", {"prediction": "p"}
        raise ArgumentError("an audit needs the prediction", hint, parameter="prediction", settings=example)
    if segments is not None:
        hint = "make them columns of the data"
        raise ArgumentError("segments as arrays need rows in memory", hint, parameter="segments")
    reject_sampling(sampling)
    if adjust == "max":
        reason = "draws the outcomes of all rows many times over, and needs them in memory"
        raise ArgumentError(f"adjust='max' {reason}", "use {adjust}", parameter="adjust", settings={"adjust": "holm"})


def _audit_table(
    table: Table,
    bins: int | Mapping[str, Any],
    segments: Mapping[str, Any] | None,
    settings: AuditSettings,
    workers: Workers,
) -> Audit:
    """Audit rows in memory."""
    if settings.tolerance is not None:
        settings.tolerance.check_task(table.schema.task)
    columns, codes, counts = segment_codes(table, bins, segments, Workers(workers.threads))
    features, targets = len(table.schema.features), len(target_labels(table.schema))
    columns, grid = plan_grid(columns, counts, features, len(table), settings, targets)
    rows = MemoryRows.from_table(table, codes, grid, workers.threads)
    if settings.adjust == "max" and len(rows.targets) > 1 and any(own != 1 for own in rows.ratios):
        reason = "cannot draw classes that the weights depend on"
        raise ArgumentError(f"adjust='max' {reason}", "use {adjust}", parameter="adjust", settings={"adjust": "holm"})
    noise = fit_noise(rows, grid, settings) if rows.real or settings.family else None
    families, _ = find_families(rows, grid, workers, noise)
    findings = compute_findings(rows, families, settings, workers, grid, table)
    audit = Audit.build(
        columns, grid, families, findings, settings=settings, schema=table.schema, rows=len(table),
        unlabelled=table.unlabelled, weightless=table.weightless, left_out=table.left_out, weight_ratio=rows.ratios[0],
        sampling=table.sampling, arrays=table.arrays, warnings=table.warnings,
    )  # fmt: skip
    summary = LazySummary(rows.chunks[0].rows, audit.curves.get(audit.overall_rank), settings.alpha, audit.design_effect)
    small = tuple(column.astype(np.min_scalar_type(-int(column.max(initial=0)) - 1)) for column in codes)
    sorted_rows = tuple(chunk.rows for chunk in rows.chunks)
    held = HeldRows(small, sorted_rows, grid, families, findings, settings.alpha, workers.threads)
    return dataclasses.replace(audit, summary_source=summary, held_rows=held)


def _audit_partitions(
    table: PartitionedTable, bins: int | Mapping[str, Any], settings: AuditSettings, workers: Workers, *, warn_soft: bool
) -> Audit:
    """Audit rows in files or on a cluster, after they are partitioned by score range; ``warn_soft`` of soft outcomes."""
    if settings.tolerance is not None:
        settings.tolerance.check_task(table.schema.task)
    binners = fit_binners(table, bins)
    with contextlib.ExitStack() as stack:
        facts, columns, rows = partition_by_score(table, binners, settings, workers, stack)
        soft = _warn_of_soft(facts.summary.soft if warn_soft else 0, rows.rows, facts.schema.outcome)
        noise = fit_noise(rows, rows.grid, settings) if rows.real or settings.family else None
        families, pool = find_families(rows, rows.grid, workers, noise)
        findings = compute_findings(rows, families, settings, workers, rows.grid)
        problems = find_problems(rows, families, findings, settings.alpha)
    assert pool is not None
    audit = Audit.build(
        columns, rows.grid, families, findings, settings=settings, schema=facts.schema, rows=rows.rows,
        unlabelled=facts.summary.unlabelled, weightless=facts.summary.weightless, left_out=table.left_out,
        weight_ratio=rows.ratios[0], warnings=(*facts.warnings, *soft),
    )  # fmt: skip
    summary = summarise(
        pool, audit.curves.get(audit.overall_rank), settings.alpha, real=rows.real, digests=facts.digests,
        design=audit.design_effect,
    )  # fmt: skip
    return dataclasses.replace(audit, summary_source=summary, problem_ranks=problems)
