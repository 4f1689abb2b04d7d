"""audit(): test the calibration of scores over all rows and on every segment."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from trueup._validate import check_choice, check_fraction, check_integer
from trueup.audits.family import find_families
from trueup.audits.findings import compute_findings
from trueup.audits.grid import SegmentColumns, fit_binners, plan_grid, segment_codes
from trueup.audits.partitions import MemoryRows, partition_by_score, target_labels
from trueup.audits.result import Audit, AuditSettings
from trueup.audits.summary import LazySummary, summarise
from trueup.cluster.partitions import engine_of, open_partitions
from trueup.data.frame import read
from trueup.data.table import Table
from trueup.errors import ArgumentError
from trueup.kernels.threads import Workers
from trueup.metrics import inference

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from trueup.cluster.partitions import PartitionedTable

MAX_CELLS = 2_000_000


def audit(
    data: Any,
    *,
    outcome: Any = None,
    prediction: Any = None,
    by: Sequence[Hashable] | Hashable | None = None,
    weight: Any = None,
    task: str = "auto",
    depth: int = 2,
    bins: int | Mapping[str, Any] = 10,
    categorical: Sequence[Hashable] | Hashable = (),
    segments: Mapping[str, Any] | None = None,
    min_rows: int = 50,
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
        several prediction columns, the class.
    prediction : column name, or several
        The score. Several columns hold the probabilities of several classes: each class is audited, and the top label.
    by : column names, optional
        Columns that define the segments; by default every column without another role. Texts, booleans and categories by
        level, numbers by quantile bins, dates by calendar period; missing is a level of its own. Quantile bins of rows in
        files or on a cluster are those of a random sample, where not all values fit in memory.
    weight : column name or array, optional
        Importance weights. Rows of weight 0 are left out.
    task : {"auto", "binary", "regression"}
    depth : int
        Maximum number of columns that a segment combines: 1, 2 or 3.
    bins : int or mapping
        Number of quantile bins, or per column a number, edges, or a calendar period.
    categorical : column names
        Numeric columns whose values are categories rather than amounts.
    segments : mapping of str to boolean array, optional
        Further segments to test, by name; they are part of the family.
    min_rows : int
        Segments with fewer rows are not tested. Levels of a single column with fewer rows are listed as not testable.
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
        Defaults to the cores available to this process. The result does not depend on it.
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
    used_draws = int(draws) if adjust == "max" else 0
    settings = AuditSettings(
        int(depth), int(min_rows), float(alpha), str(adjust), int(max_cells), used_draws, int(random_state)
    )
    workers = Workers(threads, progress)
    if engine_of(data) is not None:
        if outcome is None:
            raise _no_outcome()
        if prediction is None:
            hint, example = "name its column: {prediction}", {"prediction": "p"}
            raise ArgumentError("an audit needs the prediction", hint, parameter="prediction", settings=example)
        if segments is not None:
            hint = "make them columns of the data"
            raise ArgumentError("segments as arrays need rows in memory", hint, parameter="segments")
        if adjust == "max":
            reason = "draws the outcomes of all rows many times over, and needs them in memory"
            raise ArgumentError(f"adjust='max' {reason}", "use {adjust}", parameter="adjust", settings={"adjust": "holm"})
        with open_partitions(
            data, outcome=outcome, prediction=prediction, weight=weight, features=by, task=task, categorical=categorical,
            unlabelled=unlabelled, classes=classes,
        ) as partitions:  # fmt: skip
            return _audit_partitions(partitions, bins, settings, workers)
    if isinstance(data, Table):
        table = data
        unchanged = task == "auto" and unlabelled == "error" and not categorical
        if not (outcome is prediction is by is weight is classes is None and unchanged):
            raise ArgumentError("a Table already has its roles", hint="pass roles to the function that reads it")
    else:
        table = read(
            data, outcome=outcome, prediction=prediction, weight=weight, features=by, task=task,
            categorical=categorical, unlabelled=unlabelled, classes=classes,  # type: ignore[arg-type]
        )  # fmt: skip
    if table.outcome is None:
        raise _no_outcome()
    if adjust == "max" and table.schema.task == "regression":
        reason = "draws outcomes from predicted probabilities, and cannot be used for real outcomes"
        raise ArgumentError(f"adjust='max' {reason}", "use {adjust}", parameter="adjust", settings={"adjust": "holm"})
    return _audit_table(table, bins, segments, settings, workers)


def _no_outcome() -> ArgumentError:
    hint, example = "name its column: {outcome}", {"outcome": "y"}
    return ArgumentError("an audit needs the outcome", hint, parameter="outcome", settings=example)


def _audit_table(
    table: Table,
    bins: int | Mapping[str, Any],
    segments: Mapping[str, Any] | None,
    settings: AuditSettings,
    workers: Workers,
) -> Audit:
    """Audit rows in memory."""
    columns, codes, counts = segment_codes(table, bins, segments, Workers(workers.threads))
    features, targets = len(table.schema.features), len(target_labels(table.schema))
    grid = plan_grid(counts, features, len(table), settings, targets)
    rows = MemoryRows.from_table(table, codes, grid, workers.threads)
    families, _ = find_families(rows, grid, workers)
    findings = compute_findings(rows, families, settings, workers, table)
    audit = Audit.build(
        columns, grid, families, findings, settings=settings, schema=table.schema, rows=len(table),
        unlabelled=table.unlabelled, weightless=table.weightless, left_out=table.left_out,
    )  # fmt: skip
    return audit.with_summary(LazySummary(rows.chunks[0].rows, audit.overall.curve, settings.alpha))


def _audit_partitions(
    table: PartitionedTable, bins: int | Mapping[str, Any], settings: AuditSettings, workers: Workers
) -> Audit:
    """Audit rows in files or on a cluster: partitioned by score range first."""
    binners = fit_binners(table, bins)
    columns = SegmentColumns(tuple(binner.name for binner in binners), tuple(binner.labels for binner in binners))
    with contextlib.ExitStack() as stack:
        facts, rows_by_score = partition_by_score(table, binners, workers, stack)
        schema, seen = facts.schema, facts.summary
        grid = plan_grid(facts.counts, len(binners), seen.rows, settings, len(target_labels(schema)))
        rows = rows_by_score(grid)
        families, pool = find_families(rows, grid, workers)
        assert pool is not None
        findings = compute_findings(rows, families, settings, workers)
    audit = Audit.build(
        columns, grid, families, findings, settings=settings, schema=schema, rows=seen.rows, unlabelled=seen.unlabelled,
        weightless=seen.weightless, left_out=table.left_out,
    )  # fmt: skip
    summary = summarise(pool, audit.overall.curve, settings.alpha, real=rows.real, fingerprint=facts.fingerprint)
    return audit.with_summary(summary)
