"""Fits of MCGrad on rows in partitions: one pass that summarises all rows, then rounds fitted by all workers together.

A round is stateless: workers get the rounds so far, apply them, fit one more and evaluate it. The driver keeps completed
rounds, so that a failed round can be repeated, and an interrupted fit resumed.
"""

from __future__ import annotations

import hashlib
import itertools
import math
from dataclasses import dataclass, replace
from functools import partial
from operator import add
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._validate import MAX_INTEGER
from trueup.calibrators import stopping
from trueup.calibrators.base import FitResult
from trueup.calibrators.mcgrad.cascade import CascadeRound, fingerprint_table
from trueup.calibrators.mcgrad.grower import CascadeGrower, FastRates, is_complete, now
from trueup.calibrators.scoring import refuse_score
from trueup.calibrators.stopping import CrossValidation, Holdout, Validation, task_loss
from trueup.calibrators.validation_rows import refuse_training_rows, warn_if_trained_on
from trueup.cluster.files import ScanPartitions
from trueup.data.columns import engine_of
from trueup.data.folds import assign_clusters_by_hash, assign_folds_by_hash, digest_rows, random_row_keys
from trueup.data.frame import RowSummary
from trueup.data.leakage import warn_of_leakage
from trueup.errors import ArgumentError, DataError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray, UInt64Array
    from trueup.calibrators.mcgrad.estimator import MCGrad
    from trueup.calibrators.stopping import Stopping
    from trueup.cluster.communicator import Communicator
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.table import Table
    from trueup.learners.lightgbm import GrowthParameters

SAMPLE_ROWS = 100_000  # for bins and explanations
SAMPLE_SEED = 1_000_003  # added to the seed: the sample is independent of the folds
DIGEST_MODULUS, HALF_DIGEST = 1 << 64, 1 << 32
# Memory of a fit, as measured. Bytes of Python, NumPy, DuckDB, LightGBM, scikit-learn and the kernels; then bytes per row:
# of a model, labels, indices and bins (one per value); of each of its outputs, scores and gradients; of all models, losses.
BASE_BYTES = 400 * 10**6
MODEL_BYTES, OUTPUT_BYTES, ROW_BYTES = 20, 44, 40


@dataclass(frozen=True, eq=False)
class TrainingSummary:
    """What a fit must know of all training rows; summaries of partitions are added with ``+``."""

    rows: RowSummary
    digest: int  # a fingerprint of the rows, independent of their order
    sizes: tuple[tuple[int, int], ...]  # number of each partition, and its training rows
    sample: Table  # at most 100,000 random rows: those with the smallest keys, sorted by them
    keys: UInt64Array

    def __len__(self) -> int:
        return self.rows.rows

    def __add__(self, other: TrainingSummary) -> TrainingSummary:
        joined = stopping.append_rows(self.sample, other.sample)
        sample, keys = _smallest_keys(joined, np.concatenate([self.keys, other.keys]))
        digest = (self.digest + other.digest) % DIGEST_MODULUS
        return TrainingSummary(self.rows + other.rows, digest, (*self.sizes, *other.sizes), sample, keys)


def summarise_partitions(partitions: PartitionedTable, seed: int) -> TrainingSummary:
    """Return the summary of all rows, in one pass over the partitions; ``seed`` determines the sample."""
    summary: TrainingSummary = partitions.map_reduce(partial(_summarise_partition, seed=seed), add)
    sample = replace(
        summary.sample, unlabelled=summary.rows.unlabelled, weightless=summary.rows.weightless,
        schema=partitions.schema, left_out=partitions.left_out,
    )  # fmt: skip
    return replace(summary, sample=sample)


def _summarise_partition(table: Table, number: int, *, seed: int) -> TrainingSummary:
    content, ties = stopping.row_content(table)
    sample, keys = _smallest_keys(table, random_row_keys(content, ties, seed + SAMPLE_SEED))
    return TrainingSummary(
        RowSummary().include(table), int(digest_rows(content, ties)), ((number, len(table)),), sample, keys
    )


def _smallest_keys(table: Table, keys: UInt64Array) -> tuple[Table, UInt64Array]:
    rows = np.argsort(keys, kind="stable")[:SAMPLE_ROWS]
    return table.take(rows), keys[rows]


@dataclass(frozen=True, eq=False)
class FitPlan:
    """What all workers need to fit a round: parameters, the stopping rule and the sample that determines bins."""

    growth: GrowthParameters
    capacities: tuple[GrowthParameters, ...]  # that the first round of trees chooses from, if several
    fast_rates: FastRates | None  # see `CascadeGrower`
    averaged: bool  # whether the models of a cross-validation are averaged
    rule: CrossValidation | Holdout | None  # how rows are held out; None also if there are validation rows
    max_rounds: int
    patience: int
    threads: int | None
    sample: Table  # determines the bins
    validation: Table | None  # held-out rows of a `Validation`; used by the worker of rank 0
    digest: int | None = None  # of all rows, if they are computed again for every round
    progress: Callable[[int, int], None] | None = None  # trees of a round so far and at most, in this process
    seconds: float = math.inf  # left of the time limit
    trial_seconds: float = math.inf  # for the comparison of capacities


def fit_partitioned(
    calibrator: MCGrad, partitions: PartitionedTable, progress: Any = None, summary: TrainingSummary | None = None
) -> None:
    """Fit on rows in partitions, as `Calibrator.fit_table` does on a Table; ``summary`` is that of all rows, if known."""
    rule, schema, started = calibrator.stopping, partitions.schema, now()
    _check_rule(rule, partitions)
    if calibrator._repeats(MAX_INTEGER) > 1:
        raise ArgumentError(
            f"repeats={calibrator.repeats} needs rows in memory; got files or a cluster DataFrame",
            hint="leave repeats out: many rows need a single cross-validation",
            parameter="repeats",
        )
    growth = calibrator._growth_parameters(schema)
    if summary is None:
        check_memory(partitions, rule)
        summary = summarise_partitions(partitions, int(calibrator.random_state))
    summary.rows.check(schema, stacklevel=5)
    warn_of_leakage(summary.sample, default_features=partitions.roles.default_features, stacklevel=5)
    stopping.check_row_count(summary)
    sample, max_rounds = summary.sample, calibrator._max_rounds()
    validation = None
    if isinstance(rule, Validation):
        validation = calibrator._read_labelled(rule.data, rule.outcome, rule.sample_weight, sample.schema, rule.cluster)
        refuse_training_rows(sample, validation)
        warn_if_trained_on(sample, validation, task_loss(schema.task), stacklevel=5)
    plan = FitPlan(
        growth, tuple(calibrator._capacities(growth, len(summary))), calibrator._fast_rates(), calibrator._is_averaged(),
        rule if isinstance(rule, (CrossValidation, Holdout)) else None,
        max_rounds, max_rounds if rule is None else rule.patience, calibrator.threads, sample, validation, summary.digest,
    )  # fmt: skip
    if isinstance(partitions, ScanPartitions):
        plan = replace(plan, digest=None, progress=progress)
        check_memory(partitions, rule, len(summary) + (0 if validation is None else len(validation)))
    checkpoint, rounds = None, []
    if calibrator.resume is not None:
        checkpoint = calibrator._checkpoint(growth, _fingerprint(summary, plan))
        rounds = list(checkpoint.rounds(_model_count(plan.rule)))
    deadlines = calibrator._deadlines(started)
    while True:
        left = [max(deadline - now(), 0.0) for deadline in deadlines]
        plan = replace(plan, seconds=left[0], trial_seconds=left[1])
        added, chosen, evaluations, training, late = partitions.run_workers(
            partial(_fit_round, plan=plan, rounds=tuple(rounds))
        )
        if added is None:
            rounds = rounds[: len(evaluations) - 1]
            break
        rounds.append(added)
        if checkpoint is not None:
            checkpoint.keep(rounds)
        if late or is_complete(rounds, max_rounds) or is_complete(rounds[chosen:], plan.patience):
            break

    def refit(kept: tuple[CascadeRound, ...]) -> Any:
        return partitions.run_workers(partial(_refit_rounds, plan=plan, rounds=kept))

    cascade, history, importances = calibrator._finish(schema, chosen, evaluations, rounds, refit, training, late=late)
    calibrator._set_model(sample, FitResult(cascade, history, importances=importances), len(summary))
    if checkpoint is not None:
        checkpoint.done()


def _check_rule(rule: Stopping, partitions: PartitionedTable) -> None:
    """Raise if a stopping rule needs what rows in partitions do not have."""
    where = "files" if isinstance(partitions, ScanPartitions) else "a cluster"
    refuse_score(rule, f"a fit to rows in {where}", "it needs all held-out rows in memory at once")
    if isinstance(rule, Validation) and engine_of(rule.data) is not None:
        raise ArgumentError(
            "the rows of a Validation must be in memory; the training rows need not be",
            hint="collect them first, or some of them",
        )


def _model_count(rule: object) -> int:
    return rule.folds if isinstance(rule, CrossValidation) else 1


def check_memory(partitions: PartitionedTable, rule: object, rows: int | None = None) -> None:
    """Raise if a fit on the rows of files, whose raw values stay on disk, would exceed the memory limit of the scan.

    ``rows`` is the number of training rows. By default it is that of all rows; if some may be dropped, nothing is checked.
    """
    if not isinstance(partitions, ScanPartitions):
        return
    if rows is None:
        if partitions.roles.unlabelled != "error" or partitions.roles.weight is not None:
            return
        rows = partitions.rows
    memory, models, outputs = partitions.scan.memory, _model_count(rule), len(partitions.schema.prediction)
    bins = len(partitions.schema.features) + outputs
    per_row = models * (bins + MODEL_BYTES + OUTPUT_BYTES * outputs) + bins + ROW_BYTES * outputs
    needed = BASE_BYTES + rows * per_row
    if needed > memory:
        fewer = f", use one held-out set instead of {models} folds" if models > 1 else ""
        raise ArgumentError(
            f"a fit on {rows:,} rows takes about {needed / 1e9:.2g} GB of memory; {memory / 1e9:.3g} GB are allowed",
            hint=f"allow more ({{memory}}){fewer}, or fit on a sample of the rows",
            settings={"memory": f"{np.ceil(needed / 1e8) / 10:g}GB"},
        )


def _fingerprint(summary: TrainingSummary, plan: FitPlan) -> dict[str, Any]:
    """Return what identifies the rows and their partitions: a fit is resumed on the same rows in the same partitions."""
    content: dict[str, Any] = {
        "schema": summary.sample.schema,
        "rows": len(summary),
        "content": summary.digest,
        "partitions": sorted(summary.sizes),
    }
    if plan.validation is not None:
        validation = fingerprint_table(plan.validation)
        content["validation"] = [value for name, value in validation.items() if name != "schema"]
    hashed = {"content", "partitions", "validation"} & {*content}
    return content | {name: hashlib.sha256(repr(content[name]).encode()).hexdigest() for name in hashed}


def _fit_round(
    table: Table, sizes: Sequence[int], communicator: Communicator, *, plan: FitPlan, rounds: Sequence[CascadeRound]
) -> tuple[CascadeRound | None, int, list[stopping.Evaluation], list[float], bool]:
    """Fit a round after ``rounds`` with all workers; return it, None if not needed, and the pair of `choose_rounds`.

    The training losses of all rounds follow, and whether the time limit ended the fit.
    """
    grower = _make_grower(table, sizes, communicator, plan, rounds)
    weight = None if grower.table.weight is None else grower.table.weight[grower.evaluated_rows]
    tested = isinstance(plan.rule, CrossValidation)
    losses = itertools.islice(grower.losses(), len(rounds) + 2)
    chosen, evaluations = stopping.choose_rounds(
        losses, weight, patience=plan.patience, communicator=communicator,
        cluster=stopping.cluster_buckets(grower.table, grower.evaluated_rows),
        is_line=lambda number: grower.rounds[number - 1].is_line,
        errors=stopping.SCORE_TEST_ERRORS if tested else stopping.SEARCH_ERRORS,
        slopes=grower.slopes if tested else None,
    )  # fmt: skip
    added = grower.rounds[-1] if len(evaluations) == len(rounds) + 2 else None
    return added, chosen, evaluations, grower.training or [], grower.late


def _refit_rounds(
    table: Table, sizes: Sequence[int], communicator: Communicator, *, plan: FitPlan, rounds: Sequence[CascadeRound]
) -> tuple[CascadeRound, ...]:
    """Fit the chosen ``rounds`` again with all workers, as a single model of all rows."""
    return _make_grower(table, sizes, communicator, plan, ()).refit(rounds)


def _make_grower(
    table: Table, sizes: Sequence[int], communicator: Communicator, plan: FitPlan, rounds: Sequence[CascadeRound]
) -> CascadeGrower:
    """Return this worker's grower, to continue after ``rounds``; raise if the rows (``sizes`` per partition) changed."""
    if plan.digest is not None:  # a frame that is computed again each time may have other rows
        own = sum(int(digest_rows(content, ties)) for _, content, ties in _iter_content(table, sizes)) % DIGEST_MODULUS
        low, high = communicator.all_reduce_sum([own % HALF_DIGEST, own // HALF_DIGEST]).tolist()  # exact as floats
        if (int(low) + int(high) * HALF_DIGEST) % DIGEST_MODULUS != plan.digest:
            raise DataError(
                "the rows have changed since the last pass: the frame is computed again each time, with different rows",
                hint="keep it with .persist() or .cache(), or write it to files first",
            )
    joined, splits = table, stopping.hold_out_last(len(table))
    if plan.validation is not None:
        held_out = plan.validation if communicator.rank == 0 else plan.validation.take(slice(0, 0))
        columns: dict[str, Any] = {
            name: ConcatenatedColumn(column, held_out.columns[name]) for name, column in table.columns.items()
        }
        joined = replace(stopping.append_rows(replace(table, columns={}), held_out), columns=columns)
        splits = stopping.hold_out_last(len(table), len(held_out))
    elif plan.rule is not None:
        splits = stopping.split_rows(table, plan.rule, plan.growth.seed, partial(_assign_folds, sizes), communicator)
    return CascadeGrower(
        joined, task_loss(table.schema.task), splits, plan.growth,
        stopping.scale_weights(joined.weight, len(table), communicator),
        Workers(plan.threads or communicator.threads), plan.progress, communicator=communicator,
        capacities=plan.capacities, fast_rates=plan.fast_rates,
        line=plan.rule is not None or plan.validation is not None, averaged=plan.averaged,
        max_rounds=plan.max_rounds, given=rounds, sample=plan.sample, training=[],
        deadline=now() + plan.seconds, trial_deadline=now() + plan.trial_seconds,
    )  # fmt: skip


class ConcatenatedColumn:
    """Two columns as one, without a copy of either: the first may be larger than memory."""

    def __init__(self, first: AnyArray, second: AnyArray) -> None:
        self._first, self._second = first, second

    def __len__(self) -> int:
        return len(self._first) + len(self._second)

    def __getitem__(self, rows: slice | IntArray) -> AnyArray:
        """Return the consecutive rows of a slice, or the rows of an array of indices, all of one column, as one array."""
        own = len(self._first)
        if not isinstance(rows, slice):
            return self._first[rows] if not len(rows) or rows.max() < own else self._second[rows - own]
        start, stop, _ = rows.indices(len(self))
        return np.concatenate([self._first[start:stop], self._second[max(start - own, 0) : max(stop - own, 0)]])


def _assign_folds(sizes: Sequence[int], table: Table, folds: int, seed: int) -> AnyArray:
    """Return the fold of each row, assigned per partition (``sizes``: its rows), whichever worker has the partition."""
    codes = np.empty(len(table), np.min_scalar_type(folds))
    if table.cluster is not None:
        codes[:] = assign_clusters_by_hash(np.asarray(table.cluster), folds, seed)
        return codes
    for rows, content, ties in _iter_content(table, sizes):
        codes[rows] = assign_folds_by_hash(content, ties, folds, seed)
    return codes


def _iter_content(table: Table, sizes: Sequence[int]) -> Iterator[tuple[slice, list[AnyArray], list[FloatArray]]]:
    """Yield per partition (``sizes``: its rows) the slice of its rows, their columns and tie-breakers (`row_content`)."""
    content, ties = stopping.row_content(table)
    for end, size in zip(np.cumsum(sizes, dtype=np.int64).tolist(), sizes, strict=True):
        rows = slice(end - size, end)
        yield rows, [column[rows] for column in content], [column[rows] for column in ties]
