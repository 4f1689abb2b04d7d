"""Splits into training and held-out rows, scaling of weights, and the held-out scores of a fit."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.calibrators.stopping import Holdout, Split
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.data import folds
from trueup.errors import DataError, TrainingRowsWarning
from trueup.metrics.inputs import Scored

if TYPE_CHECKING:
    from collections.abc import Sized

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.losses import TaskLoss
    from trueup.calibrators.stopping import CrossValidation
    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table


MIN_ROWS = 10
HOLDOUT_FOLDS = 1000  # folds that rows are assigned to if a share of them is held out
MAX_MEAN_COUNT = 100  # integer weights of at most this mean are counts of rows
# A loss is much lower than another if it is by this many standard errors and by this share.
TRAINED_ERRORS, TRAINED_SHARE = 6.0, 0.1


def check_row_count(table: Sized) -> None:
    """Raise DataError if there are too few rows to fit."""
    if len(table) < MIN_ROWS:
        raise DataError(f"{len(table)} rows are too few to fit a correction", hint=f"pass at least {MIN_ROWS} rows")


def assign_folds(table: Table, count: int, seed: int) -> IntArray:
    """Assign the rows of a table to folds by their content, stratified by the outcome of a binary task."""
    assert table.outcome is not None
    strata = table.outcome if table.schema.task == "binary" else np.zeros(len(table))
    content, ties = row_content(table)
    return folds.assign_folds(content, strata, count, seed, ties)


def row_content(table: Table) -> tuple[list[AnyArray], list[FloatArray]]:
    """Return the columns that rows are hashed by, and those that distinguish equal rows: outcome and weight."""
    assert table.outcome is not None
    predictions = [table.prediction] if table.prediction.ndim == 1 else table.prediction.T
    return [*table.columns.values(), *predictions], [table.outcome] if table.weight is None else [
        table.outcome,
        table.weight,
    ]


def split_rows(table: Table, stopping: Holdout | CrossValidation, seed: int) -> list[Split]:
    """Split the rows by a stopping rule: one split for a holdout, one per fold for a cross-validation."""
    if isinstance(stopping, Holdout):
        held_out = [assign_folds(table, HOLDOUT_FOLDS, seed) < round(HOLDOUT_FOLDS * stopping.share)]
    else:
        fold = assign_folds(table, stopping.folds, seed)
        held_out = [fold == number for number in range(stopping.folds)]
    check_split_sizes(len(table), *(int(held.sum()) for held in held_out))
    return [Split(np.flatnonzero(~held), np.flatnonzero(held)) for held in held_out]


def check_split_sizes(rows: int, *held_out: int) -> None:
    """Raise DataError unless every split has training and held-out rows."""
    if not 0 < min(held_out) <= max(held_out) < rows:
        raise DataError(
            f"the {rows:,} rows cannot be split into training and held-out rows",
            hint="pass more rows, fewer folds, or another share to hold out",
        )


def scale_weights(weight: FloatArray | None, rows: int, communicator: Communicator = SINGLE_PROCESS) -> FloatArray | None:
    """Scale weights so that minimum sums of weights count rows: unchanged if counts, else to the effective sample size.

    The first ``rows`` rows of each worker are training rows and determine the scale; the rest are validation rows.
    """
    if weight is None:
        return None
    training, validation = weight[:rows], weight[rows:]
    largest, largest_valid = map(
        float, communicator.all_reduce_max([training.max(initial=0.0), validation.max(initial=0.0)])
    )
    if not are_row_counts(training, communicator):
        training = training / largest
        ordered = np.sort(training)  # sums must not depend on the order of the rows
        total, squares = communicator.all_reduce_sum([ordered.sum(), (ordered**2).sum()])
        training = training * (total / squares)
    return np.concatenate([training, validation / largest_valid if len(validation) else validation])


def are_row_counts(weight: FloatArray, communicator: Communicator = SINGLE_PROCESS) -> bool:
    """Return whether weights are counts of rows: integers, with a mean of at most 100."""
    fractional, total, rows = communicator.all_reduce_sum([(weight != np.rint(weight)).sum(), weight.sum(), len(weight)])
    return bool(fractional == 0 and total <= MAX_MEAN_COUNT * rows)


def repeat_by_weight(table: Table, name: str) -> AnyArray:
    """Return a column with each row repeated by its weight if weights are counts, for bins of equal numbers of rows."""
    column, weight = table.columns[name], table.weight
    if weight is None or not are_row_counts(weight) or (weight == weight[0]).all():
        return column
    return np.repeat(column, weight.astype(np.int64))


def append_rows(table: Table, more: Table) -> Table:
    """Append the rows of another table of the same schema."""
    columns = {name: np.concatenate([column, more.columns[name]]) for name, column in table.columns.items()}
    assert table.outcome is not None
    assert more.outcome is not None
    weight = None
    if table.weight is not None or more.weight is not None:
        weight = np.concatenate([np.ones(len(t)) if t.weight is None else t.weight for t in (table, more)])
    return replace(
        table, columns=columns, prediction=np.concatenate([table.prediction, more.prediction]),
        outcome=np.concatenate([table.outcome, more.outcome]), weight=weight, kept=None,
    )  # fmt: skip


class HeldOut(NamedTuple):
    """Held-out rows."""

    scored: Scored  # outcomes, out-of-sample scores and weights
    rows: IntArray  # indices in the table
    before: FloatArray | None  # base scores; None if there was no prediction to correct

    def input_rows(self, table: Table) -> IntArray | None:
        """Return the indices of the rows in the user's input; None if they came from a `Validation`."""
        if len(self.rows) and self.rows[-1] >= len(table):
            return None
        return self.rows if table.kept is None else table.kept[self.rows]


def collect_held_out(table: Table, rows: IntArray, scores: FloatArray) -> HeldOut | None:
    """Return the held-out rows in the order of the table, with out-of-sample scores; None unless the task is binary."""
    if table.schema.task != "binary":
        return None
    assert table.outcome is not None
    order = np.argsort(rows, kind="stable")
    rows = rows[order]
    weight = np.ones(len(rows)) if table.weight is None else table.weight[rows]
    scored = Scored(table.outcome[rows], scores[order], weight)
    return HeldOut(scored, rows, table.prediction[rows] if table.schema.prediction else None)


def warn_if_trained_on(table: Table, held: Table, loss: TaskLoss, stacklevel: int = 6) -> None:
    """Warn if the base score is much better on the training rows than on the validation rows."""
    if not table.schema.prediction:
        return
    means, variances = [], []
    assert table.outcome is not None
    # Losses are divided by the largest so that their squares stay finite.
    unit = float(np.abs(loss.per_row(table.outcome, loss.apply_link(table.prediction))).max()) or 1.0
    for rows in (table, held):
        assert rows.outcome is not None
        losses = loss.per_row(rows.outcome, loss.apply_link(rows.prediction)) / unit
        w = np.ones(len(rows)) if rows.weight is None else rows.weight
        mean = float(np.average(losses, weights=w))
        means.append(mean)
        variances.append(float((w**2 * (losses - mean) ** 2).sum() / w.sum() ** 2))
    gap, noise = means[1] - means[0], float(np.sqrt(sum(variances)))
    if gap > TRAINED_ERRORS * noise and gap > TRAINED_SHARE * means[1]:
        warnings.warn(
            f"the base score has a loss of {means[0] * unit:.4g} on the training rows and {means[1] * unit:.4g} on the "
            "validation rows\n"
            "hint: was the base model trained on these rows? calibrate on rows it was not trained on",
            TrainingRowsWarning,
            stacklevel=stacklevel,
        )
