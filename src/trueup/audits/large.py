"""Audits of files larger than memory: cut, spilled by ranges of the score, read back in its order."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.family import plan_grid, scores_of
from trueup.audits.portrait import Pool, digest, outcomes, portray, sealed
from trueup.audits.spilled import MOST_OPEN, Spill, choose_edges, record_of
from trueup.audits.streamed import stream_family
from trueup.data import checks
from trueup.data.cutting import Cutter, cut
from trueup.data.features import Copies
from trueup.data.pieces import open_scan
from trueup.data.segments import SegmentColumn, bins_of, named_bins
from trueup.errors import ArgumentError, DataError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from trueup.audits.family import Grid, Target
    from trueup.audits.result import Audit, Settings
    from trueup.data.pieces import Opened
    from trueup.data.scan import Scan
    from trueup.data.schema import Feature, Schema
    from trueup.data.table import Table

    Floats = NDArray[np.float64]

__all__ = ["audit_scan"]

BYTES_A_ROW = 120  # of a part that is held, and 12 more for each column
LEAST_PART = 100_000  # rows
MANY_LEVELS = 1 << 20


@dataclass(eq=False)
class Facts:
    """What is known of all rows once they have been gone through."""

    schema: Schema
    left_out: Mapping[str, str]
    counts: list[NDArray[np.int64]]
    rows: int = 0
    unlabelled: int = 0
    weightless: int = 0
    lowest: float = np.inf
    highest: float = -np.inf
    hard: bool = True
    digests: list[Any] = field(default_factory=lambda: [hashlib.sha256() for _ in range(3)])
    copies: Copies = field(default_factory=Copies)

    def __len__(self) -> int:
        return self.rows

    def add(self, table: Table, codes: Sequence[NDArray[np.int32]]) -> None:
        """Take in a piece."""
        assert table.outcome is not None
        self.rows += len(table)
        self.unlabelled += table.unlabelled
        self.weightless += table.weightless
        self.schema = table.schema
        for count, some in zip(self.counts, codes, strict=True):
            count += np.bincount(some, minlength=len(count))
        if len(table):
            self.copies.add(table)
            self.lowest = min(self.lowest, float(table.outcome.min()))
            self.highest = max(self.highest, float(table.outcome.max()))
            self.hard &= table.prediction.ndim == 1 and bool(np.isin(table.prediction, (0.0, 1.0)).all())

    def check(self) -> None:
        """Warn of what all rows have in common, as is done for rows in memory."""
        if not self.rows:
            raise DataError(
                f"no rows are left: {self.unlabelled:,} have no outcome and {self.weightless:,} weigh nothing",
                hint="check the outcome and weight columns",
            )
        self.copies.check(self.schema, self.rows)
        task = self.schema.task
        if self.hard and task == "binary" and self.rows >= checks.COPY_ROWS:
            checks.hard_predictions(np.tile([0.0, 1.0], checks.COPY_ROWS), self.schema.prediction, task)
        if task != "regression" and self.lowest == self.highest and not (task == "binary" and 0 < self.lowest < 1):
            checks.one_class(self.schema.outcome, self.lowest, self.rows)


def audit_scan(
    given: Scan,
    roles: Mapping[str, Any],
    bins: int | Mapping[str, Any],
    settings: Settings,
    workers: Workers,
    judge: Callable[..., Audit],
) -> Audit:
    """Audit the rows of a scan; ``judge`` turns families into an audit."""
    if settings.adjust == "max":
        raise ArgumentError(
            'adjust="max" draws the outcomes of all rows many times over, and needs them in memory',
            hint='use adjust="holm"',
        )
    with contextlib.ExitStack() as stack:
        rows = stack.enter_context(open_scan(given, **roles))
        bins = named_bins([feature.name for feature in rows.schema.features], bins)
        cutters = [_cutter(rows, feature, bins) for feature in rows.schema.features]
        facts, spills = _spill(rows, cutters, workers, stack)
        columns = [SegmentColumn(one.name, np.empty(0, np.int32), one.labels) for one in cutters]
        grid = plan_grid(columns, [], facts.counts, facts.rows, settings, len(spills))
        real, weighted = facts.schema.task == "regression", facts.schema.weight is not None
        families = []
        for label, spill in spills.items():
            again = _again(label, spill, grid, workers.threads, real=real)
            families.append(
                stream_family(label, grid, facts.rows, again, workers, real=real, weighted=weighted, room=rows.room)
            )
        audit = judge(facts, grid, families, settings, workers)
        pool = Pool.join([Pool.of(part.rows, facts.rows) for part in families[0].parts()])
        portrait = portray(pool, audit.overall.curve, settings.alpha, real=real, fingerprint=sealed(facts.digests))
    return replace(audit, whole_rows=[portrait])


def _again(label: str, spill: Spill, grid: Grid, threads: int, *, real: bool) -> Callable[[], Iterator[Target]]:
    return lambda: spill.parts(label, grid, real=real, threads=threads)


def _cutter(rows: Opened, feature: Feature, bins: int | Mapping[str, Any]) -> Cutter:
    """Settle how a column is cut, by the values of all rows, or of as many as memory holds."""
    name = feature.name
    told, usual = bins_of(name, bins)
    if feature.kind == "categorical":
        return cut(feature, np.array([-1] if rows.lacks(name) else [], np.int32), told)
    if feature.kind == "date" and (told is None or isinstance(told, str)):
        return cut(feature, rows.distinct(name, MANY_LEVELS, "date_trunc('day', {})"), told)
    values, whole = rows.values(name)
    if whole:
        return cut(feature, values, told, usual)
    count = usual if told is None else told
    few = rows.distinct(name, int(count)) if isinstance(count, (int, np.integer)) else np.empty(0)
    if 0 < len(few) <= count + bool(np.isnan(few).any()):
        return cut(feature, few, told, usual)
    # With these among them, too few distinct values among the rows that were read are not taken for all there are.
    values = np.concatenate([values, few])
    return cut(feature, np.append(values, np.nan) if rows.lacks(name) else values, told, usual)


def _spill(
    rows: Opened, cutters: Sequence[Cutter], workers: Workers, stack: contextlib.ExitStack
) -> tuple[Facts, dict[str, Spill]]:
    """Write every row to the range of its score, for every score that is audited; files are closed with the stack."""
    facts = Facts(rows.schema, rows.left_out, [np.zeros(len(one.labels), np.int64) for one in cutters])
    most = max(rows.room // (BYTES_A_ROW + 12 * len(cutters)), LEAST_PART)
    spills: dict[str, Spill] = {}
    done, quiet = 0, Workers(workers.threads)
    for table in rows.tables():
        codes = quiet.map(partial(_codes, table), cutters)
        facts.add(table, codes)
        for at, (label, p, y) in enumerate(scores_of(table)):
            if label not in spills:
                spills[label] = _begin(rows, cutters, label, len(spills), p, most)
                stack.callback(spills[label].close)
            if at == 0:
                w = np.ones(len(y)) if table.weight is None else table.weight
                digest(outcomes(p, w * (y - p), w), p, w, facts.digests)
            spills[label].add(_records(spills[label].record, p, y, table.weight, codes))
        done += len(table) + table.unlabelled + table.weightless
        if workers.progress is not None:
            workers.progress(done, rows.rows)
    facts.check()
    for spill in spills.values():
        spill.finish()
    return facts, spills


def _codes(table: Table, one: Cutter) -> NDArray[np.int32]:
    return one.codes(table.columns[one.name])


def _begin(rows: Opened, cutters: Sequence[Cutter], label: str, at: int, p: Floats, most: int) -> Spill:
    """Open the ranges of one score, by the scores of evenly spread rows."""
    schema = rows.schema
    sample = rows.values(schema.prediction[0])[0] if not label else p
    folder = rows.folder / f"score-{at}"
    folder.mkdir()
    exact = schema.task == "regression" or not rows.whole_outcomes
    record = record_of([len(one.labels) for one in cutters], weighted=schema.weight is not None, exact=exact)
    scores = len(schema.prediction)
    handles = MOST_OPEN if scores == 1 else MOST_OPEN // (scores + 1)
    return Spill(folder, record, choose_edges(sample, rows.rows, most), most, handles)


def _records(
    record: np.dtype[Any], p: Floats, y: Floats, w: Floats | None, codes: Sequence[NDArray[np.int32]]
) -> NDArray[Any]:
    out = np.empty(len(p), record)
    out["p"], out["y"] = p, y
    if w is not None:
        out["w"] = w
    for at, column in enumerate(codes):
        out[f"c{at}"] = column
    return out
