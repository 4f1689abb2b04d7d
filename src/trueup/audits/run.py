"""audit(): from any frame to an honest verdict on every segment."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import check_choice
from trueup.audits import estimate
from trueup.audits.family import Family, Grid, Target, find_family, plan_grid, scores_of
from trueup.audits.result import WHOLE, Audit, Settings
from trueup.cluster.partitions import engine_of, open_partitions
from trueup.data.frame import read
from trueup.data.scan import Scan
from trueup.data.segments import SegmentColumn, check_bins, check_segments, segment_column
from trueup.data.table import Table
from trueup.errors import ArgumentError
from trueup.kernels.sorting import argsort
from trueup.kernels.tails import FINDINGS
from trueup.kernels.tally import sort_rows
from trueup.kernels.threads import Workers
from trueup.metrics import inference
from trueup.metrics.curves import CurveSet, curves_from_sums

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray


MOST_CURVES = 1000
MAX_CELLS = 2_000_000
STREAM = int.from_bytes(b"null", "big")


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
    exact: bool = False,
    threads: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Audit:
    """Audit the calibration of scores on the whole and on every segment.

    Parameters
    ----------
    data : pandas, polars or pyarrow frame, dict of arrays, ndarray, Table, Scan, or DataFrame of Spark or Dask
        One row a prediction. For a NumPy array columns are positions.
    outcome : column name or array
        What happened: 0/1, booleans, probabilities in [0, 1], or real numbers with ``task="regression"``. For several
        prediction columns the class.
    prediction : column name, or several
        The score. Several columns hold the probabilities of several classes: each class is audited, and the top label.
    by : column names, optional
        Columns to form segments of; by default every column that has no role. Texts, booleans and categories by their
        levels, numbers by quantile bins, dates by calendar period; missing is a level.
    weight : column name or array, optional
        Importance weights. Rows of weight 0 are left out.
    task : {"auto", "binary", "regression"}
    depth : int
        How many columns a segment combines at most: 1, 2 or 3.
    bins : int or mapping
        Number of quantile bins, or per column a number, edges, or a calendar period.
    categorical : column names
        Numeric columns whose values are names rather than amounts.
    segments : mapping of str to boolean array, optional
        Segments of your own; they join the family.
    min_rows : int
        Smaller segments are not tested. Single levels below it are listed as not testable.
    alpha : float
        Level of the test of the whole family, and of the intervals.
    adjust : {"holm", "max", "bh", "by"}
        "holm" and "max" bound the chance of any false alarm at ``alpha``; "max" is a Monte-Carlo null shared by all
        segments, sharper where they overlap. "bh" and "by" bound the share of false alarms.
    max_cells : int
        Budget of segments. Where the combinations could have more, the deepest are dropped first and named in the result.
    random_state, draws : int
        Seed and number of draws of ``adjust="max"``, which takes about as long as that many audits;
        ``alpha * (draws + 1)`` must be whole.
    unlabelled : {"error", "drop"}
        What to do with rows that have no outcome.
    classes : sequence, optional
        The outcome that each of several prediction columns stands for.
    exact : bool
        For frames of Spark and Dask. By default every partition is summed up where it lies; then ``sigma`` and ``ecce`` are
        known within a bound, ``sigma_bound`` of a finding, and p-values hold but are a little larger. With ``exact=True``
        all rows come to this machine, one partition after the other, and every number is that of an audit in memory; so it
        is always with real outcomes, whose noise is found from neighbours. Frames in memory and scans are always exact.
        Either way quantile bins of more rows than a machine should hold are those of a fair sample of them.
    threads : int, optional
        By default every core this process may use. The result does not depend on it.
    progress : callable, optional
        Called as ``progress(done, total)`` while the work goes on.

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
    settings = Settings(depth, min_rows, alpha, adjust, max_cells, draws if adjust == "max" else 0, random_state)
    _check(settings, draws, threads)
    settings = settings.plain()
    workers = Workers(threads, progress)
    if engine_of(data) is not None:
        roles = {"outcome": outcome, "prediction": prediction, "weight": weight, "features": by, "task": task}
        roles |= {"categorical": categorical, "unlabelled": unlabelled, "classes": classes}
        return _audit_elsewhere(data, roles, bins, segments, settings, workers, exact=exact)
    if isinstance(data, Table):
        table = data
        usual = task == "auto" and unlabelled == "error" and not categorical
        if not (outcome is prediction is by is weight is classes is None and usual):
            raise ArgumentError("a Table has its roles already", hint="name them where it is read")
    else:
        table = read(
            data, outcome=outcome, prediction=prediction, weight=weight, features=by, task=task,
            categorical=categorical, unlabelled=unlabelled, classes=classes,  # type: ignore[arg-type]
        )  # fmt: skip
    if table.outcome is None:
        raise ArgumentError("an audit needs the outcome", hint='name its column, as outcome="y"')
    if adjust == "max" and table.schema.task == "regression":
        raise ArgumentError(
            'adjust="max" draws outcomes from predicted probabilities and cannot serve a real outcome',
            hint='use adjust="holm"',
        )
    grid = _grid(table, bins, segments, settings, Workers(threads))
    families = [find_family(target, workers) for target in _targets(table, grid, threads)]
    return _judge(table, grid, families, settings, workers)


def _audit_elsewhere(
    data: Any, roles: dict[str, Any], bins: int | Mapping[str, Any], segments: Any, settings: Settings, workers: Workers,
    *, exact: bool,
) -> Audit:  # fmt: skip
    """Audit rows that need not fit in memory: those of files, or of a cluster."""
    for role in ("outcome", "prediction"):
        if roles[role] is None:
            raise ArgumentError(f"an audit needs the {role}", hint=f'name its column, as {role}="..."')
    if segments is not None:
        raise ArgumentError("segments of your own need rows in memory", hint="make them a column of the data")
    if settings.adjust == "max":
        raise ArgumentError(
            'adjust="max" draws the outcomes of all rows many times over, and needs them in memory',
            hint='use adjust="holm"',
        )
    from trueup.audits.large import audit_pieces
    from trueup.audits.merged import audit_parts

    with open_partitions(data, **roles) as parts:
        exact = exact or isinstance(data, Scan) or parts.schema.task == "regression"
        run = audit_pieces if exact else audit_parts
        return run(parts, bins, settings, workers, _judge)


def _check(settings: Settings, draws: int, threads: int | None) -> None:
    """Refuse parameters outside their range."""
    for name, value, low, high in (
        ("depth", settings.depth, 1, 3),
        ("min_rows", settings.min_rows, 1, None),
        ("max_cells", settings.max_cells, 1, None),
        ("draws", draws, 1, 1_000_000),
        ("random_state", settings.random_state, 0, None),
        ("threads", 1 if threads is None else threads, 1, None),
    ):
        whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
        if not whole or value < low or (high is not None and value > high):
            upto = f"from {low} to {high:,}" if high is not None else f"of at least {low}"
            hint = "2 combines two columns, 3 three: more have too few rows to tell anything" if name == "depth" else None
            raise ArgumentError(f"{name} must be a whole number {upto}; got {value!r}", hint=hint)
    alpha = settings.alpha
    if not isinstance(alpha, (int, float, np.floating)) or not 0 < alpha < 1:
        raise ArgumentError(f"alpha must lie between 0 and 1; got {alpha!r}", hint="0.05 is a test at 5%")
    check_choice("adjust", settings.adjust, ("holm", "max", "bh", "by"))
    if settings.adjust == "max":
        inference.whole_draws(settings.alpha, draws)


def _grid(
    table: Table,
    bins: int | Mapping[str, Any],
    segments: Mapping[str, Any] | None,
    settings: Settings,
    workers: Workers,
) -> Grid:
    """Cut the columns into segments and plan their combinations."""
    bins = check_bins(table.columns, bins)
    columns = workers.map(lambda feature: segment_column(table, feature, bins), table.schema.features)
    came_in = len(table) + table.unlabelled + table.weightless
    taken = {WHOLE, *(label for column in columns for label in column.labels)}
    own = [
        SegmentColumn(name, np.where(mask, np.int32(0), np.int32(-1)), (name,))
        for name, mask in check_segments(table, segments, came_in, taken).items()
    ]
    counts = [*workers.map(_count, columns), *(np.array([np.sum(column.codes == 0)]) for column in own)]
    targets = 1 if table.prediction.ndim == 1 else table.prediction.shape[1] + 1
    return plan_grid(columns, own, counts, len(table), settings, targets)


def _count(column: SegmentColumn) -> IntArray:
    """Count the rows of each level; the kernels trust every code to have one, so this is made sure of here."""
    counts = np.bincount(column.codes, minlength=len(column.labels))
    if len(counts) > len(column.labels):
        raise AssertionError(f"column {column.name!r} has a code beyond its {len(column.labels)} levels")
    return counts


def _targets(table: Table, grid: Grid, threads: int | None = None) -> list[Target]:
    """List what is to be audited: one score, or every class and the top label."""
    real = table.schema.task == "regression"
    return [Target(label, sort_rows(y, p, table.weight, real=real), grid, threads) for label, p, y in scores_of(table)]


def _judge(table: Table, grid: Grid, families: list[Family], settings: Settings, workers: Workers) -> Audit:
    """Turn the sums of all segments into one family of tests, ranked."""
    quiet = Workers(workers.threads)
    enough = np.concatenate([estimate.enough_rows(family, settings.min_rows) for family in families])
    level = settings.alpha / max(int(enough.sum()), 1)
    parts = [estimate.findings(family, settings.alpha, level, quiet) for family in families]
    found = parts[0] if len(parts) == 1 else np.concatenate(parts, axis=1)
    columns: dict[str, AnyArray] = dict(zip(FINDINGS, found, strict=True))
    margins = [margin for family in families if (margin := family.margin) is not None]
    if margins:
        columns |= {
            "sigma_bound": np.concatenate([margin.half for margin in margins]),
            "p_value": np.concatenate([margin.p_value for margin in margins]),
        }
    p = columns["p_value"]
    p[~enough] = np.nan
    adjusted = _adjust(table, families, columns, enough, settings, workers)  # which refines some p-values in place
    order = _rank(adjusted, enough, columns["sigma"])
    rows = np.concatenate([block.tally.rows for family in families for block in family.blocks])
    columns |= {"n": rows, "p_adjusted": adjusted, "testable": enough}
    for column in columns.values():
        column[:] = column[order]  # in place: fresh memory costs more than the move
    return Audit.build(table, grid, families, settings, columns, order, _curves(families, order, settings, quiet))


def _adjust(
    table: Table, families: list[Family], columns: Mapping[str, FloatArray], enough: BoolArray, settings: Settings,
    workers: Workers,
) -> FloatArray:  # fmt: skip
    """Adjust the p-values of the testable segments; those on which the verdict hangs are refined, in place, first."""
    p = columns["p_value"]
    adjusted = np.full(len(p), np.nan)
    if not enough.any():
        return adjusted
    if settings.adjust == "max":
        adjusted[enough] = _monte_carlo(table, families, p, enough, settings, workers)
        return adjusted
    method: Any = settings.adjust
    if table.schema.task != "regression":
        tested = int(enough.sum())
        tempting = inference.rejected(_limit(columns["sigma"], enough, settings.alpha), method, settings.alpha, tested)
        tempting &= ~inference.rejected(np.where(enough, p, 1.0), method, settings.alpha, tested)
        start = 0
        for family in families:
            part = slice(start, start + len(family))
            estimate.refine(family, p[part], np.flatnonzero(tempting[part]), workers)
            start = part.stop
    adjusted[enough] = inference.adjust(p[enough], method)
    return adjusted


def _limit(sigma: FloatArray, enough: BoolArray, alpha: float) -> FloatArray:
    """Give the p-value of the Brownian limit where it is at most alpha, 1 elsewhere: a larger one is never rejected."""
    out = np.ones(len(sigma))
    low = np.flatnonzero(enough & (sigma >= inference.range_quantile(alpha)))
    out[low] = inference.limit_pvalues(sigma[low])
    return out


def _monte_carlo(
    table: Table, families: list[Family], p: FloatArray, enough: BoolArray, settings: Settings, workers: Workers
) -> FloatArray:
    """Adjust by drawing outcomes from the scores themselves, one draw shared by all segments, stepping down."""
    # A stream of its own: the data may have been made with the same seed, and must not share its draws.
    random = np.random.default_rng([settings.random_state, STREAM])
    observed = p[enough]
    order = np.argsort(observed, kind="stable")
    counts = np.zeros(len(order), np.int64)
    limit = observed[order] * (1 + 1e-9)
    quiet = Workers(workers.threads)
    top = np.argmax(table.prediction, axis=1) if table.prediction.ndim == 2 else None
    sizes = estimate.batches(settings.draws, len(table) * (len(families) + 1), len(p))
    for done, size in enumerate(sizes, start=1):
        drawn = [_draw(table, random) for _ in range(size)]
        found = [
            estimate.draw_pvalues(family, np.stack([_residuals(family, at, y, top) for y in drawn]), quiet)
            for at, family in enumerate(families)
        ]
        smallest = np.minimum.accumulate(np.concatenate(found, axis=1)[:, enough][:, order][:, ::-1], axis=1)[:, ::-1]
        counts += (smallest <= limit).sum(axis=0)
        if workers.progress is not None:
            workers.progress(done, len(sizes))
    return inference.step_down(counts, order, settings.draws)


def _draw(table: Table, random: np.random.Generator) -> AnyArray:
    """Draw the outcome of every row from its score, as if the model were calibrated."""
    uniform = random.random(len(table))
    if table.prediction.ndim == 1:
        return (uniform < table.prediction).astype(np.float64)
    # The probabilities of a row add up to 1 but for rounding; the draw must not fall beyond them.
    reached = np.cumsum(table.prediction, axis=1)
    above = uniform[:, None] * reached[:, -1:] >= reached
    drawn: AnyArray = np.minimum(above.sum(axis=1), table.prediction.shape[1] - 1)
    return drawn


def _residuals(family: Family, at: int, drawn: AnyArray, top: IntArray | None) -> FloatArray:
    """Give w (y* - p) of one target in the order of its scores; ``top`` is the top label, where there are classes."""
    rows = family.target.rows
    if top is None:
        y = drawn
    elif at == 0:
        y = (drawn == top).astype(np.float64)
    else:
        y = (drawn == at - 1).astype(np.float64)
    e: FloatArray = y[rows.order] - rows.p
    return e * rows.w if len(rows.w) else e


def _rank(adjusted: FloatArray, enough: BoolArray, sigma: FloatArray) -> IntArray:
    """Order the segments worst first: by adjusted p-value, then by sigma; what could not be tested comes last."""
    key = np.where(enough, adjusted, 2.0)
    # Most adjusted p-values are 1: only the others need more than one sort.
    low, high = np.flatnonzero(key < 1), np.flatnonzero(key >= 1)
    down = -np.nan_to_num(sigma, nan=-math.inf, posinf=math.inf)
    low = low[np.lexsort((down[low], key[low]))]
    high = high[argsort(down[high])]
    return np.concatenate([low, high[key[high] == 1], high[key[high] > 1]])


def _curves(families: list[Family], order: IntArray, settings: Settings, workers: Workers) -> CurveSet:
    """Draw up the curves of the worst segments and of the whole, by rank."""
    starts = np.cumsum([0, *(len(family) for family in families)])
    wanted = np.union1d(np.arange(min(MOST_CURVES, len(order))), np.flatnonzero(np.isin(order, starts[:-1])))
    owner = np.searchsorted(starts, order[wanted], side="right") - 1
    ranks = [wanted[owner == at] for at in range(len(families))]
    which = [order[own] - start for own, start in zip(ranks, starts[:-1], strict=True)]
    parts = [estimate.reliability(family, own, workers) for family, own in zip(families, which, strict=True)]
    numbers = np.concatenate(ranks).tolist()
    return curves_from_sums(numbers, np.concatenate(parts), alpha=settings.alpha, real=families[0].target.rows.real)
