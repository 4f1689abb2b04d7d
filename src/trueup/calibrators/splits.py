"""Which rows a calibrator learns from, and which judge what it learned."""

from __future__ import annotations

import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from trueup.calibrators.rounds import Holdout, Split
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.data.folds import assign_folds
from trueup.errors import DataError, TrainingRowsWarning
from trueup.metrics.inputs import Scored

if TYPE_CHECKING:
    from collections.abc import Sized

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray
    from trueup.calibrators.losses import TaskLoss
    from trueup.calibrators.rounds import CrossValidation
    from trueup.cluster.communicator import Communicator
    from trueup.data.table import Table


FEWEST_ROWS = 10
SHARES = 1000  # parts that rows are dealt into where a share of them is held out
COUNTS = 100  # whole weights of no more than this on average are counts of rows
FAR = (6.0, 0.1)  # a loss is far below another by this many standard errors and this share of it


def enough_rows(table: Sized) -> None:
    """Refuse a handful of rows."""
    if len(table) < FEWEST_ROWS:
        raise DataError(
            f"{len(table)} rows are too few to learn a correction from", hint=f"give at least {FEWEST_ROWS} rows"
        )


def parts_of(table: Table, parts: int, seed: int) -> IntArray:
    """Deal the rows of a table into parts by their content, each with its share of the outcomes of a binary task."""
    assert table.outcome is not None
    strata = table.outcome if table.schema.task == "binary" else np.zeros(len(table))
    content = [*table.columns.values(), *table.prediction.reshape(len(table), -1).T]
    own = [table.outcome] if table.weight is None else [table.outcome, table.weight]
    return assign_folds(content, strata, parts, seed, own)


def divide(table: Table, stopping: Holdout | CrossValidation, seed: int) -> list[Split]:
    """Divide the rows as a stopping rule says: one split, or one for each fold."""
    if isinstance(stopping, Holdout):
        held = parts_of(table, SHARES, seed) < round(SHARES * stopping.share)
        return [_split(~held)]
    fold = parts_of(table, stopping.folds, seed)
    return [_split(fold != at) for at in range(stopping.folds)]


def weigh(weight: FloatArray | None, rows: int, communicator: Communicator = SINGLE_PROCESS) -> FloatArray | None:
    """Give weights the scale on which minimums are meant: counts of rows, or the effective number of rows.

    What the first so many rows of each worker weigh decides; rows of a given validation, which come after
    them, only judge.
    """
    if weight is None:
        return None
    own, more = weight[:rows], weight[rows:]
    largest, most = map(float, communicator.all_reduce_max([own.max(initial=0.0), more.max(initial=0.0)]))
    if not are_counts(own, communicator):
        own = own / largest
        ordered = np.sort(own)  # sums must not depend on the order of the rows
        total, squares = communicator.all_reduce_sum([ordered.sum(), (ordered**2).sum()])
        own = own * (total / squares)
    return np.concatenate([own, more / most if len(more) else more])


def are_counts(weight: FloatArray, communicator: Communicator = SINGLE_PROCESS) -> bool:
    """Say whether weights count rows: they are whole, and no more than 100 on average."""
    broken, total, rows = communicator.all_reduce_sum([(weight != np.rint(weight)).sum(), weight.sum(), len(weight)])
    return bool(broken == 0 and total <= COUNTS * rows)


def counted(table: Table, name: str) -> AnyArray:
    """Give a column with each row as often as it counts, for bins of equal numbers of rows."""
    column, weight = table.columns[name], table.weight
    if weight is None or not are_counts(weight) or (weight == weight[0]).all():
        return column
    return np.repeat(column, weight.astype(np.int64))


def append_rows(table: Table, more: Table) -> Table:
    """Put the rows of one table after those of another of the same schema."""
    columns = {name: np.concatenate([column, more.columns[name]]) for name, column in table.columns.items()}
    assert table.outcome is not None
    assert more.outcome is not None
    weight = None
    if table.weight is not None or more.weight is not None:
        weight = np.concatenate([np.ones(len(one)) if one.weight is None else one.weight for one in (table, more)])
    return replace(
        table, columns=columns, prediction=np.concatenate([table.prediction, more.prediction]),
        outcome=np.concatenate([table.outcome, more.outcome]), weight=weight, kept=None,
    )  # fmt: skip


class Held(NamedTuple):
    """Rows that judged: what became of them, which of the table they are, and their scores before the fix.

    ``before`` is None where there was no prediction to fix.
    """

    scored: Scored
    rows: IntArray
    before: FloatArray | None

    def rows_given(self, table: Table) -> IntArray | None:
        """Say which rows of the input these are; None where they are no rows of the table, but of a given validation."""
        if len(self.rows) and self.rows[-1] >= len(table):
            return None
        return self.rows if table.kept is None else table.kept[self.rows]


def hold_out(table: Table, rows: IntArray, scores: FloatArray) -> Held | None:
    """Keep what became of the rows that judged, in the order of the table; None unless the task is binary.

    Parameters
    ----------
    table : Table
        All rows, those of a given validation included.
    rows : ndarray of int64
        Which of them judged.
    scores : ndarray, shape (len(rows),)
        What they are scored by a model that was not trained on them.
    """
    if table.schema.task != "binary":
        return None
    assert table.outcome is not None
    order = np.argsort(rows, kind="stable")
    at = rows[order]
    scored = Scored(table.outcome[at], scores[order], np.ones(len(at)) if table.weight is None else table.weight[at])
    return Held(scored, at, table.prediction[at] if table.schema.prediction else None)


def _split(train: BoolArray) -> Split:
    found = Split(np.flatnonzero(train), np.flatnonzero(~train))
    if not len(found.train) or not len(found.valid):
        raise DataError(
            f"the {len(train):,} rows cannot be divided into rows to learn from and rows to judge by",
            hint="give more rows, fewer folds, or another share to hold out",
        )
    return found


def warn_of_training_rows(table: Table, held: Table, loss: TaskLoss) -> None:
    """Warn where the base score is far better on the rows of the fit than on the rows that judge."""
    means, errors = [], []
    assert table.outcome is not None
    if not table.schema.prediction:
        return  # there is no base score
    unit = float(np.abs(loss.each(table.outcome, loss.enter(table.prediction))).max()) or 1.0  # squares must stay finite
    for one in (table, held):
        assert one.outcome is not None
        each = loss.each(one.outcome, loss.enter(one.prediction)) / unit
        w = np.ones(len(one)) if one.weight is None else one.weight
        mean = float(np.average(each, weights=w))
        means.append(mean)
        errors.append(float((w**2 * (each - mean) ** 2).sum() / w.sum() ** 2))
    gap, noise = means[1] - means[0], float(np.sqrt(sum(errors)))
    if gap > FAR[0] * noise and gap > FAR[1] * means[1]:
        warnings.warn(
            f"the base score has a loss of {means[0] * unit:.4g} on the rows of the fit and {means[1] * unit:.4g} on the "
            "validation rows\n"
            "hint: was the base model trained on these rows? calibrate on rows it has not seen",
            TrainingRowsWarning,
            stacklevel=6,
        )
