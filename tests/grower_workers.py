"""Fits of cascades by several workers: a module that worker processes import."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.mcgrad.grower import CascadeGrower
from trueup.calibrators.stopping import Split, choose_rounds, hold_out_last, scale_weights, task_loss
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.kernels.threads import Workers
from trueup.learners.lightgbm import GrowthParameters

if TYPE_CHECKING:
    from trueup.data.table import Table

FOLDS = 3


@dataclass(frozen=True, eq=False)
class CascadeFit:
    """A fit: all rows, the fold of each, and the rank of the worker that holds it."""

    table: Table
    fold: Any
    rank: Any
    rounds: int = 2
    given: tuple = ()
    held_out: bool = True
    refit: bool = False


def fit_cascades(fit, communicator=SINGLE_PROCESS):
    """Fit cascades on the rows of a worker; all rows in a single process."""
    single = communicator is SINGLE_PROCESS
    rows = np.arange(len(fit.table)) if single else np.flatnonzero(fit.rank == communicator.rank)
    table, fold = fit.table.take(rows), fit.fold[rows]
    splits = [Split(fold, number) for number in range(FOLDS)]
    if not fit.held_out:
        splits = hold_out_last(len(rows))
    loss = task_loss(table.schema.task)
    outputs = 1 if table.prediction.ndim == 1 else table.prediction.shape[1]
    growth = GrowthParameters(
        loss.name,
        outputs,
        learning_rate=0.4,
        feature_fraction=0.7,
        min_hessian=2.0,
        trees=40 if fit.held_out else 12,
        patience=10,
    )
    weight = scale_weights(table.weight, len(table), communicator)
    grower = CascadeGrower(
        table, loss, splits, growth, weight, Workers(1), communicator=communicator, given=fit.given,
        max_rounds=fit.rounds,
        sample=None if single else fit.table,
    )  # fmt: skip
    weight = None if table.weight is None else table.weight[grower.evaluated_rows]
    chosen, evaluations = choose_rounds(grower.losses(), weight, patience=fit.rounds, communicator=communicator)
    refitted = grower.refit(grower.rounds) if fit.refit else ()
    return {
        "rows": len(rows),
        "chosen": chosen,
        "evaluations": evaluations,
        "rounds": tuple(grower.rounds),
        "refit": refitted,
    }


def run_fits(_table, _sizes, communicator, *, fits):
    """Run several fits; add the rows of each worker, and by how much the trees of the workers differ."""
    results = [fit_cascades(fit, communicator) for fit in fits]
    for result in results:
        sums = np.array([forest.value.sum() for r in (*result["rounds"], *result["refit"]) for forest in r.forests])
        result["difference"] = float((communicator.all_reduce_max(sums) + communicator.all_reduce_max(-sums)).max())
        own = np.zeros(communicator.size)
        own[communicator.rank] = result["rows"]
        result["rows"] = communicator.all_reduce_sum(own).astype(int).tolist()
    return results
