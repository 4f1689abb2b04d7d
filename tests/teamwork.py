"""What each worker does in the tests of growing together: a module that other processes can import."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.losses import task_loss
from trueup.calibrators.mcgrad.grower import CascadeGrower, RoundLimits
from trueup.calibrators.splits import scale_weights
from trueup.calibrators.stopping import Split, choose_rounds
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.kernels.threads import Workers
from trueup.learners.lightgbm import GrowthParameters

if TYPE_CHECKING:
    from trueup.data.table import Table

FOLDS = 3


@dataclass(frozen=True, eq=False)
class Fit:
    """A fit to be done: all rows, the fold of each, and which member holds it."""

    table: Table
    fold: Any
    member: Any
    rounds: int = 2
    given: tuple = ()
    held: bool = True
    refit: bool = False


def grow(fit, communicator=SINGLE_PROCESS):
    """Grow the rounds of a fit from the rows that a member holds; tell what was found."""
    rows = np.arange(len(fit.table)) if communicator is SINGLE_PROCESS else np.flatnonzero(fit.member == communicator.rank)
    table, fold = fit.table.take(rows), fit.fold[rows]
    splits = [Split(np.flatnonzero(fold != at), np.flatnonzero(fold == at)) for at in range(FOLDS)]
    if not fit.held:
        splits = [Split(np.arange(len(rows)), np.arange(0))]
    loss = task_loss(table.schema.task)
    outputs = 1 if table.prediction.ndim == 1 else table.prediction.shape[1]
    growth = GrowthParameters(loss.name, outputs, learning_rate=0.4, feature_fraction=0.7, min_hessian=2.0)
    grown = CascadeGrower(
        table, loss, splits, growth, RoundLimits(40 if fit.held else 12, 10, 0.1), scale_weights(table.weight, len(table), communicator),
        Workers(1), communicator=communicator, given=fit.given, sample=None if communicator is SINGLE_PROCESS else fit.table,
    )  # fmt: skip
    weight = None if table.weight is None else table.weight[grown.evaluated_rows]
    chosen, judged = choose_rounds(
        itertools.islice(grown.losses(), fit.rounds + 1), weight, patience=fit.rounds, communicator=communicator
    )
    again = grown.refit(grown.rounds) if fit.refit else ()
    return {"rows": len(rows), "chosen": chosen, "judged": judged, "rounds": tuple(grown.rounds), "refit": again}


def all_of(_table, _sizes, communicator, *, fits):
    """Do several fits, one after the other; tell also how many rows each member had."""
    found = [grow(fit, communicator) for fit in fits]
    for one in found:
        sums = np.array([forest.value.sum() for r in (*one["rounds"], *one["refit"]) for forest in r.forests])
        one["apart"] = float((communicator.all_reduce_max(sums) + communicator.all_reduce_max(-sums)).max())
        own = np.zeros(communicator.size)
        own[communicator.rank] = one["rows"]
        one["rows"] = communicator.all_reduce_sum(own).astype(int).tolist()
    return found
