"""Audits of files larger than memory: cut, spilled by ranges of the score, read back in its order."""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.facts import Facts, cutter_of
from trueup.audits.family import plan_grid, scores_of
from trueup.audits.portrait import Pool, digest, outcomes, portray, sealed
from trueup.audits.spilled import MOST_OPEN, Spill, choose_edges, record_of
from trueup.audits.streamed import stream_family
from trueup.data.segments import SegmentColumn, check_bins
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, Int32Array
    from trueup.audits.family import Grid, Target
    from trueup.audits.result import Audit, Settings
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.bins import ColumnBinner
    from trueup.data.table import Table


BYTES_A_ROW = 120  # of a part that is held, and 12 more for each column
LEAST_PART = 100_000  # rows


def audit_pieces(
    rows: PartitionedTable, bins: int | Mapping[str, Any], settings: Settings, workers: Workers, judge: Callable[..., Audit]
) -> Audit:
    """Audit rows that come piece by piece, as in memory: they are spilled by ranges of the score."""
    with contextlib.ExitStack() as stack:
        bins = check_bins([feature.name for feature in rows.schema.features], bins)
        cutters = [cutter_of(rows, feature, bins) for feature in rows.schema.features]
        facts, spills, fingerprint = _spill(rows, cutters, workers, stack)
        columns = [SegmentColumn(one.name, np.empty(0, np.int32), one.labels) for one in cutters]
        grid = plan_grid(columns, [], facts.counts, len(facts), settings, len(spills))
        real, weighted = facts.schema.task == "regression", facts.schema.weight is not None
        families = []
        for label, spill in spills.items():
            again = _again(label, spill, grid, workers.threads, real=real)
            families.append(
                stream_family(
                    label, grid, len(facts), again, workers, real=real, weighted=weighted, room=rows.memory_budget
                )
            )
        audit = judge(facts, grid, families, settings, workers)
        pool = Pool.join([Pool.of(part.rows, len(facts)) for part in families[0].parts()])
        portrait = portray(pool, audit.overall.curve, settings.alpha, real=real, fingerprint=fingerprint)
    return replace(audit, whole_rows=[portrait])


def _again(label: str, spill: Spill, grid: Grid, threads: int, *, real: bool) -> Callable[[], Iterator[Target]]:
    return lambda: spill.parts(label, grid, real=real, threads=threads)


def _spill(
    rows: PartitionedTable, cutters: Sequence[ColumnBinner], workers: Workers, stack: contextlib.ExitStack
) -> tuple[Facts, dict[str, Spill], str]:
    """Write every row to the range of its score, for every score that is audited; files are closed with the stack.

    Give the fingerprint of the rows, too.
    """
    facts = Facts(rows.schema, rows.left_out, [np.zeros(len(one.labels), np.int64) for one in cutters])
    most = max(rows.memory_budget // (BYTES_A_ROW + 12 * len(cutters)), LEAST_PART)
    spills: dict[str, Spill] = {}
    digests = [hashlib.sha256() for _ in range(3)]
    done, quiet = 0, Workers(workers.threads)
    for table in rows.iter_tables():
        codes = quiet.map(partial(_codes, table), cutters)
        facts.add(table, codes)
        for at, (label, p, y) in enumerate(scores_of(table)):
            if label not in spills:
                spills[label] = _begin(rows, cutters, label, len(spills), p, most)
                stack.callback(spills[label].close)
            if at == 0:
                w = np.ones(len(y)) if table.weight is None else table.weight
                digest(outcomes(p, w * (y - p), w), p, w, digests)
            spills[label].add(_records(spills[label].record, p, y, table.weight, codes))
        done += len(table) + table.unlabelled + table.weightless
        if workers.progress is not None:
            workers.progress(done, rows.rows)
    facts.check()
    for spill in spills.values():
        spill.finish()
    return facts, spills, sealed(digests)


def _codes(table: Table, one: ColumnBinner) -> Int32Array:
    return one.codes(table.columns[one.name])


def _begin(rows: PartitionedTable, cutters: Sequence[ColumnBinner], label: str, at: int, p: FloatArray, most: int) -> Spill:
    """Open the ranges of one score, by the scores of evenly spread rows."""
    schema = rows.schema
    sample = rows.values(schema.prediction[0])[0] if not label else p
    folder = rows.spill_directory / f"score-{at}"
    folder.mkdir()
    exact = schema.task == "regression" or not rows.discrete_outcomes
    record = record_of([len(one.labels) for one in cutters], weighted=schema.weight is not None, exact=exact)
    scores = len(schema.prediction)
    handles = MOST_OPEN if scores == 1 else MOST_OPEN // (scores + 1)
    return Spill(folder, record, choose_edges(sample, rows.rows, most), most, handles)


def _records(
    record: np.dtype[Any], p: FloatArray, y: FloatArray, w: FloatArray | None, codes: Sequence[Int32Array]
) -> AnyArray:
    out = np.empty(len(p), record)
    out["p"], out["y"] = p, y
    if w is not None:
        out["w"] = w
    for at, column in enumerate(codes):
        out[f"c{at}"] = column
    return out
