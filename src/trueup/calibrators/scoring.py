"""The score of a stopping rule: a function of the user's, evaluated on all held-out rows, with its noise."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators import stopping
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.stopping import Score, Stopping
    from trueup.data.table import Table

GROUPS = 40  # of the jackknife
MIN_GROUP_ROWS = 5
GROUP_SEED = 3_000_017  # added to the seed: groups are independent of the folds


@dataclass(frozen=True, eq=False)
class RuleScore:
    """A score of a stopping rule on the held-out rows: ``values`` take the place of losses in `choose_rounds`.

    Their mean is the score, and their standard error that of the delete-a-group jackknife (Quenouille 1956; Shao & Wu
    1989), for any function of all rows together. Rows are assigned to groups by content, those of a cluster to one group.
    """

    score: Score
    y: FloatArray
    weight: FloatArray
    group: IntArray  # of each held-out row

    @classmethod
    def of(cls, rule: Stopping, table: Table, rows: IntArray, seed: int) -> RuleScore | None:
        """Return the score of a rule on the held-out ``rows`` of a table; None if the rule has none."""
        if rule is None or rule.score is None:
            return None
        held = table.take(rows)
        count = min(GROUPS, max(len(rows) // MIN_GROUP_ROWS, 2))
        group = np.unique(stopping.assign_folds(held, count, seed + GROUP_SEED), return_inverse=True)[1].ravel()
        weight = np.ones(len(rows)) if held.weight is None else held.weight
        return cls(rule.score, held.y, weight, group)

    @property
    def name(self) -> str:
        """Return the name of the score, for reports."""
        return score_name(self.score)

    def values(self, p: FloatArray) -> FloatArray:
        """Return one value per group, for held-out rows with corrected scores ``p``."""
        whole = evaluate(self.score, self.y, p, self.weight)
        count = int(self.group.max()) + 1
        if count < 2:
            return np.array([whole])
        kept = (np.flatnonzero(self.group != group) for group in range(count))
        without = np.array([evaluate(self.score, self.y[own], p[own], self.weight[own]) for own in kept])
        return np.asarray(whole + (count - 1) * (without.mean() - without))


def evaluate(score: Score, y: FloatArray, p: FloatArray, weight: FloatArray) -> float:
    """Return the score of rows; raise unless it is a finite number."""
    result: Any = score(y, p, weight)
    try:
        value = float(result)
    except (TypeError, ValueError):
        value = np.nan
    if not np.isfinite(value):
        raise ArgumentError(
            f"the score {score_name(score)} of a stopping rule must return a finite number; got {result!r} "
            f"for {len(y):,} rows",
            hint="return a float; lower is better",
            parameter="stopping",
        )
    return value


def score_name(score: Any) -> str:
    """Return the name of a score: that of its function, or of the class of an object."""
    name = getattr(score, "__name__", None) or getattr(getattr(score, "func", None), "__name__", type(score).__name__)
    return "score" if name == "<lambda>" else str(name)


def refuse_score(rule: Stopping, method: str, reason: str) -> None:
    """Raise if a stopping rule has a score and the method cannot use it."""
    if rule is not None and rule.score is not None:
        raise ArgumentError(
            f"{method} cannot use the score of a stopping rule: {reason}",
            hint="leave score out of the rule; tu.MCGrad uses it for rows in memory",
            parameter="stopping",
        )
