"""Fits of rows that lie in parts: one pass for what must be known of all, then round after round, by all parts together.

A round is stateless: whoever holds rows is told the rounds so far, applies them, grows one more and judges it. What was
finished is kept here, so that a round that failed can be done again, and a fit that was broken off can be resumed.
"""

from __future__ import annotations

import hashlib
import itertools
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.calibrators import splits
from trueup.calibrators.base import FitResult
from trueup.calibrators.losses import task_loss
from trueup.calibrators.mcgrad.cascade import Cascade
from trueup.calibrators.mcgrad.checkpoint import content_of
from trueup.calibrators.mcgrad.facts import WRAP, facts_of, known_by
from trueup.calibrators.mcgrad.grower import CascadeGrower
from trueup.calibrators.stopping import CrossValidation, Holdout, Split, Validation, choose_rounds
from trueup.cluster.files import ScanPartitions
from trueup.cluster.partitions import engine_of
from trueup.data.folds import assign_folds_by_hash, digest_rows
from trueup.errors import ArgumentError, DataError
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.mcgrad.cascade import CascadeRound
    from trueup.calibrators.mcgrad.checkpoint import Checkpoint
    from trueup.calibrators.mcgrad.estimator import MCGrad
    from trueup.calibrators.mcgrad.facts import Facts
    from trueup.calibrators.mcgrad.grower import RoundLimits
    from trueup.cluster.communicator import Communicator
    from trueup.cluster.partitions import PartitionedTable
    from trueup.data.table import Table
    from trueup.learners.lightgbm import GrowthParameters

HALF = 1 << 32
BEFORE = 400 * 10**6  # bytes of Python, NumPy, DuckDB, LightGBM, scikit-learn and the kernels, before the first row
# Bytes a row, as measured: of a model that grows labels, places and bins (one a value); of each of its outputs scores,
# gradients and what is summed of them; beside the models losses, and who judges.
OF_A_MODEL, OF_AN_OUTPUT, OF_A_ROW = 20, 44, 40


@dataclass(frozen=True, eq=False)
class Plan:
    """What whoever grows a round must know; it travels to them.

    Attributes
    ----------
    growth : GrowthParameters
    limits : RoundLimits
    rule : CrossValidation, Holdout or None
        Which rows judge; None also where ``held`` are rows of their own.
    most, patience, seed : int
        How many rounds there may be, how many without a gain end the search, and what fixes the folds.
    threads : int or None
    sample : Table
        From which bins are found.
    held : Table or None
        Rows that only judge. One of those who hold rows has them, too.
    digest : int or None
        Of all rows, where they may be others the next time.
    progress : callable, optional
        Where all rows are here.
    """

    growth: GrowthParameters
    limits: RoundLimits
    rule: CrossValidation | Holdout | None
    most: int
    patience: int
    seed: int
    threads: int | None
    sample: Table
    held: Table | None
    digest: int | None = None
    progress: Callable[[int, int], None] | None = None


class Fold(Split):
    """One of the parts that rows were dealt into judges, the others are trained on; which these are is listed when asked.

    A list of them takes 8 bytes a row for every fold, and is looked at only once a round.
    """

    def __init__(self, codes: AnyArray, judge: int) -> None:
        for name, value in (("_codes", codes), ("_judge", judge), ("valid", np.flatnonzero(codes == judge))):
            object.__setattr__(self, name, value)

    @property
    def train(self) -> IntArray:
        """List the rows to train on."""
        return np.flatnonzero(self._codes != self._judge)  # type: ignore[attr-defined]


class Followed:
    """A column and, after it, that of other rows, without a copy of either: the first may be larger than memory."""

    def __init__(self, first: AnyArray, then: AnyArray) -> None:
        self._first, self._then = first, then

    def __len__(self) -> int:
        return len(self._first) + len(self._then)

    def __getitem__(self, rows: slice) -> AnyArray:
        """Read some rows that follow each other."""
        start, stop, _ = rows.indices(len(self))
        own = len(self._first)
        return np.concatenate([self._first[start:stop], self._then[max(start - own, 0) : max(stop - own, 0)]])


class Step(NamedTuple):
    """One more round; the best of all so far, and how they were judged. No round where there were enough already."""

    grown: CascadeRound | None
    chosen: int
    judged: list[tuple[float, float, float]]


def _to_allow(memory: str, models: int) -> str:
    """Say what to do where rows do not fit."""
    fewer = f", judge by one model in place of {models} (stopping=trueup.Holdout())" if models > 1 else ""
    return f'allow more (memory="{memory}"){fewer}, or fit some of the rows'


def fit_apart(
    calibrator: MCGrad,
    parts: PartitionedTable,
    progress: Any = None,
    facts: Facts | None = None,
    to_allow: Callable[[str, int], str] = _to_allow,
) -> None:
    """Learn the correction from rows in parts, as `Calibrator.fit_table` does from a Table.

    Parameters
    ----------
    calibrator : MCGrad
    parts : PartitionedTable
    progress : callable, optional
        Told the trees of a round so far and the most there may be, where all rows are here.
    facts : Facts, optional
        What is known of all rows, where they have been gone through already, with the seed of the calibrator.
    to_allow : callable
        Says what to do where rows do not fit, told the memory that would do and the number of models.
    """
    calibrator._check_parameters(len(parts.schema.prediction))
    _check_validation(calibrator.stopping)
    seed = int(calibrator.random_state)
    if facts is None:
        check_room(parts, calibrator.stopping, to_allow=to_allow)
        facts = facts_of(parts, seed)
    facts.seen.check(parts.schema)
    splits.check_row_count(facts)
    plan = _plan(calibrator, facts)
    if isinstance(parts, ScanPartitions):
        plan = replace(plan, digest=None, progress=progress)
        more = 0 if plan.held is None else len(plan.held)
        check_room(parts, calibrator.stopping, len(facts) + more, to_allow=to_allow)
    saved = calibrator._checkpoint(plan.growth, _content(facts, plan)) if calibrator.resume is not None else None
    rounds, step = _grow(parts, plan, saved)
    history = calibrator._make_history(step.chosen, step.judged, rounds, task_loss(parts.schema.task).measure)
    kept = tuple(rounds[: history.chosen])
    if kept and isinstance(calibrator.stopping, CrossValidation) and calibrator.stopping.refit:
        kept = parts.run_workers(partial(_refit, plan=plan, rounds=kept))
    schema = parts.schema
    cascade = Cascade(task_loss(schema.task).link, schema.levels, plan.growth.outputs, kept)
    calibrator._set_model(facts.sample, FitResult(cascade, history), len(facts))
    if saved is not None:
        saved.done()


def _plan(calibrator: MCGrad, facts: Facts) -> Plan:
    sample, stopping = facts.sample, calibrator.stopping
    growth = calibrator._growth_parameters(sample)
    held = None
    if isinstance(stopping, Validation):
        held = calibrator._read_labelled(stopping.data, stopping.outcome, stopping.sample_weight, sample.schema)
        splits.warn_if_trained_on(sample, held, task_loss(sample.schema.task))
    most = calibrator._max_rounds()
    return Plan(
        growth, calibrator._round_limits(growth), stopping if isinstance(stopping, (CrossValidation, Holdout)) else None,
        most, most if stopping is None else stopping.patience, int(calibrator.random_state), calibrator.threads, sample,
        held, facts.digest,
    )  # fmt: skip


def _models(rule: object) -> int:
    """Count the models that are grown together."""
    return rule.folds if isinstance(rule, CrossValidation) else 1


def _check_validation(stopping: object) -> None:
    if isinstance(stopping, Validation) and engine_of(stopping.data) is not None:
        raise ArgumentError(
            "the rows of a Validation must be in memory; those of the fit need not be",
            hint="collect them first, or some of them",
        )


def check_room(
    parts: PartitionedTable, stopping: object, rows: int | None = None, *, to_allow: Callable[[str, int], str] = _to_allow
) -> None:
    """Refuse to learn from more rows of files than the memory that was allowed can hold; raw values are not held in it.

    Before the rows that count are counted (None), they are all rows, unless some may be set aside.
    """
    if not isinstance(parts, ScanPartitions):
        return
    if rows is None:
        if parts.roles["unlabelled"] != "error" or parts.roles["weight"] is not None:
            return
        rows = parts.rows
    memory, models, outputs = parts.memory, _models(stopping), len(parts.schema.prediction)
    bins = len(parts.schema.features) + outputs
    needed = BEFORE + rows * (models * (bins + OF_A_MODEL + OF_AN_OUTPUT * outputs) + bins + OF_A_ROW * outputs)
    if needed > memory:
        raise ArgumentError(
            f"to learn from {rows:,} rows takes about {needed / 1e9:.2g} GB of memory; {memory / 1e9:.3g} GB are allowed",
            hint=to_allow(f"{np.ceil(needed / 1e8) / 10:g}GB", models),
        )


def _content(facts: Facts, plan: Plan) -> dict[str, Any]:
    """Say what the rows hold, and how they lie: a fit is resumed on the same rows in the same parts."""
    told = {"schema": facts.sample.schema, "rows": len(facts), "content": facts.digest, "parts": sorted(facts.sizes)}
    if plan.held is not None:
        told["validation"] = [value for name, value in content_of(plan.held).items() if name != "schema"]
    long = {"content", "parts", "validation"} & {*told}
    return told | {name: hashlib.sha256(repr(told[name]).encode()).hexdigest() for name in long}


def _grow(parts: PartitionedTable, plan: Plan, saved: Checkpoint | None) -> tuple[list[CascadeRound], Step]:
    """Grow round after round, until one brings nothing or there are as many as there may be."""
    rounds = [] if saved is None else list(saved.rounds(_models(plan.rule)))[: plan.most]
    while True:
        step: Step = parts.run_workers(partial(_round, plan=plan, rounds=tuple(rounds)))
        if step.grown is None:
            return rounds[: len(step.judged) - 1], step
        rounds.append(step.grown)
        if saved is not None:
            saved.keep(rounds)
        if len(rounds) == plan.most or len(rounds) - step.chosen >= plan.patience:
            return rounds, step


def _round(
    table: Table, sizes: Sequence[int], communicator: Communicator, *, plan: Plan, rounds: Sequence[CascadeRound]
) -> Step:
    """Grow one more round with the others, and judge it: what one process does with its rows."""
    whole, grown = _cascades(table, sizes, communicator, plan, rounds)
    weight = None if whole.weight is None else whole.weight[grown.evaluated_rows]
    tried = itertools.islice(grown.losses(), min(len(rounds) + 1, plan.most) + 1)
    chosen, judged = choose_rounds(tried, weight, patience=plan.patience, communicator=communicator)
    return Step(grown.rounds[-1] if len(judged) == len(rounds) + 2 else None, chosen, judged)


def _refit(
    table: Table, sizes: Sequence[int], communicator: Communicator, *, plan: Plan, rounds: Sequence[CascadeRound]
) -> tuple[CascadeRound, ...]:
    """Grow the rounds that were chosen once more, on all rows."""
    return _cascades(table, sizes, communicator, plan, ())[1].refit(rounds)


def _cascades(
    table: Table, sizes: Sequence[int], communicator: Communicator, plan: Plan, rounds: Sequence[CascadeRound]
) -> tuple[Table, CascadeGrower]:
    """Set up the cascades of the rows that are here."""
    if plan.digest is not None:
        _check_same(table, sizes, communicator, plan.digest)
    whole, found = _divide(table, sizes, communicator, plan)
    weight = splits.scale_weights(whole.weight, len(table), communicator)
    workers = Workers(plan.threads or getattr(communicator, "threads", None))
    grown = CascadeGrower(
        whole, task_loss(table.schema.task), found, plan.growth, plan.limits, weight, workers, plan.progress,
        communicator=communicator, given=rounds, sample=plan.sample,
    )  # fmt: skip
    return whole, grown


def _divide(table: Table, sizes: Sequence[int], communicator: Communicator, plan: Plan) -> tuple[Table, Sequence[Split]]:
    """Say which rows here are trained on, and which judge."""
    rows = np.arange(len(table))
    if plan.held is not None:
        own = plan.held if communicator.rank == 0 else plan.held.take(rows[:0])
        features: dict[str, Any] = {name: Followed(column, own.columns[name]) for name, column in table.columns.items()}
        bare = splits.append_rows(replace(table, columns={}), own)
        joined = replace(bare, columns=features)
        return joined, [Split(rows, np.arange(len(rows), len(joined)))]
    if plan.rule is None:
        return table, [Split(rows, rows[:0])]
    if isinstance(plan.rule, Holdout):
        held = _dealt(table, sizes, splits.HOLDOUT_FOLDS, plan.seed) < round(splits.HOLDOUT_FOLDS * plan.rule.share)
        found = [Fold(held.astype(np.uint8), 1)]
    else:
        codes = _dealt(table, sizes, plan.rule.folds, plan.seed)
        found = [Fold(codes, at) for at in range(plan.rule.folds)]
    total, *judging = communicator.all_reduce_sum([len(table), *(len(one.valid) for one in found)]).tolist()
    if not 0 < min(judging) <= max(judging) < total:
        raise DataError(
            f"the {int(total):,} rows cannot be divided into rows to learn from and rows to judge by",
            hint="give more rows, fewer folds, or another share to hold out",
        )
    return table, found


def _dealt(table: Table, sizes: Sequence[int], parts: int, seed: int) -> AnyArray:
    """Deal the rows of every part by itself: what goes where must not depend on who holds how many of the parts."""
    codes = np.empty(len(table), np.min_scalar_type(parts))
    for at, content, own in _parts(table, sizes):
        codes[at] = assign_folds_by_hash(content, own, parts, seed)
    return codes


def _parts(table: Table, sizes: Sequence[int]) -> Iterator[tuple[slice, list[AnyArray], list[FloatArray]]]:
    """Give where each part lies, what its rows are known by, and what else tells them apart."""
    content, own = known_by(table)
    for end, size in zip(np.cumsum(sizes, dtype=np.int64).tolist(), sizes, strict=True):
        at = slice(end - size, end)
        yield at, [one[at] for one in content], [one[at] for one in own]


def _check_same(table: Table, sizes: Sequence[int], communicator: Communicator, digest: int) -> None:
    """Refuse rows that are others than they were: a frame that is made anew each time may be made of other rows."""
    own = sum(int(digest_rows(content, more)) for _, content, more in _parts(table, sizes)) % WRAP
    low, high = communicator.all_reduce_sum([own % HALF, own // HALF]).tolist()  # as numbers that a float holds
    if (int(low) + int(high) * HALF) % WRAP != digest:
        raise DataError(
            "the rows are not those that were there before: the frame is made anew each time, and not of the same rows",
            hint="keep it as it is with .persist() or .cache(), or write it to files first",
        )
