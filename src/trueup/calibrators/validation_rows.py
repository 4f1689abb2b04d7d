"""Checks of the rows of a `Validation`: that the fix and the base model were not trained on them."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators import stopping
from trueup.data import folds
from trueup.errors import ArgumentError, TrainingRowsWarning

if TYPE_CHECKING:
    from trueup.data.table import Table

# A loss is much lower than another if it is by this many standard errors and by this share.
TRAINED_ERRORS, TRAINED_SHARE = 6.0, 0.1
# Validation rows are training rows if this share of them is, beyond chance copies by this many standard errors.
COPIED_SHARE, COPIED_ERRORS = 0.1, 5.0


def refuse_training_rows(table: Table, held: Table) -> None:
    """Raise if many validation rows ``held`` have the features, score and outcome of training rows ``table``.

    New rows of discrete columns are copies by chance: about as often as a training row is a copy of another one. Weights
    that are counts of rows count as that many rows.
    """
    keys, masses = [], []
    for rows in (table, held):
        columns, ties = stopping.row_content(rows)
        keys.append(folds.hash_numbers([*columns, ties[0]]))
        counts = rows.weight is not None and np.ptp(rows.weight) > 0 and stopping.are_row_counts(rows.weight)
        masses.append(rows.weight if counts and rows.weight is not None else np.ones(len(rows)))
    known, place = np.unique(keys[0], return_inverse=True)
    copies = np.bincount(place.ravel(), masses[0])
    found = np.isin(keys[1], known)
    sizes = [float(mass.sum()) for mass in masses]
    by_chance = float(copies[copies > 1].sum()) / sizes[0]
    share = float(masses[1][found].sum()) / sizes[1]
    smoothed = (by_chance * sizes[0] + 1) / (sizes[0] + 2)
    noise = math.sqrt(smoothed * (1 - smoothed) * (1 / sizes[0] + 1 / sizes[1]))
    if share - by_chance > max(COPIED_SHARE * (1 - by_chance), COPIED_ERRORS * noise):
        raise ArgumentError(
            f"{int(found.sum()):,} of {len(held):,} validation rows are training rows: all their values are equal",
            hint="name other rows, or none: a cross-validation holds rows out by itself",
            parameter="stopping",
        )


def warn_if_trained_on(table: Table, held: Table, loss: stopping.TaskLoss, stacklevel: int = 6) -> None:
    """Warn if the base score has a much lower loss on the training rows ``table`` than on the validation rows ``held``."""
    if not table.schema.prediction:
        return
    losses = [loss.per_row(rows.y, loss.apply_link(rows.prediction)) for rows in (table, held)]
    unit = float(np.abs(losses[0]).max()) or 1.0  # losses are divided by the largest so that their squares stay finite
    means, variances = [], []
    for rows, values in zip((table, held), losses, strict=True):
        w = np.ones(len(rows)) if rows.weight is None else rows.weight
        means.append(float(np.average(values / unit, weights=w)))
        variances.append(float((w**2 * (values / unit - means[-1]) ** 2).sum() / w.sum() ** 2))
    gap, noise = means[1] - means[0], float(np.sqrt(sum(variances)))
    if gap > TRAINED_ERRORS * noise and gap > TRAINED_SHARE * means[1]:
        warnings.warn(
            f"the base score has a loss of {means[0] * unit:.4g} on the training rows and {means[1] * unit:.4g} on the "
            "validation rows\n"
            "hint: was the base model trained on these rows? calibrate on rows it was not trained on",
            TrainingRowsWarning,
            stacklevel=stacklevel,
        )
