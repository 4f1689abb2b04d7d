"""Warnings of columns that may leak the outcome: those that predict it almost perfectly, and other scores.

Both are decided on a random sample of rows, at most 500 of each outcome if outcomes are 0 and 1, 1,000 in all otherwise.
"""

from __future__ import annotations

import math
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trueup.errors import LeakageWarning, ScoreColumnWarning, WarningRecord, warn

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, IntArray
    from trueup.data.table import Feature, Table

SAMPLE_ROWS = 1000
MIN_OUTCOMES = 50  # rows of each outcome in the sample, below which a column may separate them by chance
MIN_AUC = 0.99  # of a column that may leak; for real outcomes of the rank correlation
MIN_CORRELATION = 0.999  # of a copy of a real outcome
SCREEN_STEP, SCREEN_AUC = 12, 0.9  # of 84 rows of the sample: a column with a lower one is not examined further
MAX_RELATIVE_ERROR = 0.5  # 1 - AUC of such a column, relative to that of the prediction
MAX_LEVELS = 50  # of a categorical column whose AUC is computed: event rates of more levels would be chance
MIN_VALUES = 20  # distinct values of a score: numbers with fewer are counts, flags or shares of few
# Another score has at least this rank correlation with the prediction, and this share of its Brier skill. On seven
# real data sets scores of other models satisfy one of these; inputs of models, even shares, reach 0.75 and 0.67.
SCORE_RULES = ((0.9, -math.inf), (0.8, 0.5), (-1.0, 0.75))
MIN_SKILL = 0.1  # where a skill is required: the prediction itself may have none
MAX_COMPLEMENT = -0.99  # rank correlation of the probability of the other class
MAX_CLASSES = 50  # that are examined
MAX_NAMED = 6  # columns in a message


def warn_of_leakage(table: Table, *, default_features: bool, stacklevel: int = 4) -> list[WarningRecord]:
    """Warn of features that predict the outcome almost perfectly; if features were not named, also of other scores.

    Return the warnings.

    A feature may leak if its AUC for some outcome is at least 0.99, and either 1 - AUC is below half that of the
    prediction, or it has no more values than the outcome: a copy with errors, from which the prediction may have been
    computed. Categories are ordered by their event rate. Real outcomes are compared by rank correlation instead, of at
    least 0.999 if the prediction has the same.

    A feature looks like another score if it has more than 20 values, all in [0, 1], and either its rank correlation with
    the prediction is at least 0.9 (or at most -0.99: the other class); or, read as a probability, its Brier skill is at
    least 0.1 and three quarters of that of the prediction, half of it with a rank correlation of at least 0.8.
    """
    if not table.schema.features or not len(table):
        return []
    records = []
    sample = _Sample(table)
    leaks: dict[str, tuple[float, float]] = {}
    scores: list[str] = []
    for feature in table.schema.features:
        column = table.columns[feature.name][sample.rows]
        auc, base = sample.compare_auc(column, feature)
        if auc >= MIN_AUC and (1 - auc < MAX_RELATIVE_ERROR * (1 - base) or sample.is_copy(column, auc)):
            leaks[feature.name] = auc, base
        elif default_features and feature.kind == "numeric" and sample.is_score(column):
            scores.append(feature.name)
    naming = "name the columns to use, with by= or features= (--by or --features on the command line)"
    if leaks:
        measure = "AUC" if sample.has_events else "rank correlation"
        bases = [base for _, base in leaks.values()]
        compared = f"; the prediction has {min(bases):.2f}" if table.schema.prediction else ""
        named = _list_names([f"{name!r} ({measure} {_round(auc)})" for name, (auc, _) in leaks.items()])
        subject = f"column {named} predicts" if len(leaks) == 1 else f"columns {named} predict"
        records.append(
            warn(
                LeakageWarning,
                f"{subject} the outcome almost perfectly{compared}",
                f"if known only after the outcome, or computed from it, leave it out: {naming}",
                column=next(iter(leaks)) if len(leaks) == 1 else None,
                stacklevel=stacklevel,
            )
        )
    if scores:
        named = _list_names([repr(name) for name in scores])
        subject = (
            f"column {named} looks like another score" if len(scores) == 1 else f"columns {named} look like other scores"
        )
        records.append(
            warn(
                ScoreColumnWarning,
                f"{subject} of the same outcome, and {'is' if len(scores) == 1 else 'are'} used as any other column",
                f"if that is not intended, {naming}",
                column=scores[0] if len(scores) == 1 else None,
                stacklevel=stacklevel,
            )
        )
    return records


def _list_names(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMED
    return ", ".join(names[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


def _round(value: float) -> str:
    return f"{math.floor(value * 1e4) / 1e4:g}"  # 0.99996 is not 1


class _Sample:
    """Some rows of a table: their outcomes and predictions, and how well columns predict these outcomes."""

    def __init__(self, table: Table) -> None:
        task, y, random = table.schema.task, table.y, np.random.default_rng(0)
        groups = [np.flatnonzero(y == value) for value in (0.0, 1.0)] if task == "binary" else []
        if sum(map(len, groups)) < len(y):
            groups = [np.arange(len(y))]
        drawn = [_draw(group, SAMPLE_ROWS // len(groups), random) for group in groups]
        self.rows = np.concatenate(drawn)
        self.has_events = len(groups) == 2 or task == "multiclass"
        self.can_screen = len(groups) == 2 and len(self.rows) == SAMPLE_ROWS
        self.has_probabilities = task != "regression" and bool(table.schema.prediction)
        # Rows of each outcome count as much as all rows with that outcome.
        shares = [len(group) / max(len(some), 1) for group, some in zip(groups, drawn, strict=True)]
        self.weight = np.repeat(shares, [len(some) for some in drawn]) / len(y)
        self.targets, scores = y[self.rows, None], table.prediction[self.rows].reshape(len(self.rows), -1)
        if task == "multiclass":
            self.targets = (self.targets == np.arange(min(scores.shape[1], MAX_CLASSES))).astype(np.float64)
        self.scores = scores[:, : self.targets.shape[1]].T

    def compare_auc(self, column: AnyArray, feature: Feature) -> tuple[float, float]:
        """Return the AUC of a column for the class that it predicts best, and that of the prediction for this class."""
        if feature.kind == "categorical" and (len(feature.levels) > MAX_LEVELS or not self.has_events):
            return 0.0, 0.0
        if self.can_screen and self._column_auc(column[::SCREEN_STEP], self.targets[::SCREEN_STEP], 1)[0] < SCREEN_AUC:
            return 0.0, 0.0
        auc = self._column_auc(column, self.targets, MIN_OUTCOMES)
        best = int(np.argmax(auc))
        return float(auc[best]), float(self._base_auc[best])

    def _column_auc(self, column: AnyArray, targets: FloatArray, min_rows: int) -> FloatArray:
        """Return the AUC of a column of numbers, or of codes ordered by their event rates, for each class."""
        if column.dtype.kind == "i":
            return np.array([self._auc(_event_rates(column, event), event[:, None], min_rows)[0] for event in targets.T])
        missing = np.isnan(column)
        if not missing.any():
            return self._auc(column, targets, min_rows)
        # Whether a value is missing may reveal the outcome, too: only defaults have a date of default.
        lowest = self._auc(np.where(missing, -np.inf, column), targets, min_rows)
        return np.maximum(lowest, self._auc(column[~missing], targets[~missing], min_rows))

    def is_copy(self, column: AnyArray, auc: float) -> bool:
        """Return whether a column with this AUC, or rank correlation, looks like the outcome itself, with few errors."""
        if not self.has_events:
            return auc >= MIN_CORRELATION
        return bool(len(np.unique(column[column == column])) <= max(self.targets.shape[1], 2))

    def is_score(self, column: FloatArray) -> bool:
        """Return whether a numeric column looks like another score."""
        known = ~np.isnan(column)
        values = column[known]
        if not self.has_probabilities or len(values) < 2 * MIN_OUTCOMES or values.min() < 0 or values.max() > 1:
            return False
        if len(np.unique(values)) <= MIN_VALUES:
            return False
        ranks, skill = _ranks(values), self._skill(column, known)
        correlation = np.array([_correlate(ranks, _ranks(score[known])) for score in self.scores])
        for min_correlation, share in SCORE_RULES:
            min_skill = np.maximum(MIN_SKILL, share * self._base_skill) if share > 0 else -np.inf
            if ((correlation >= min_correlation) & (skill >= min_skill)).any():
                return True
        return bool(correlation.min() <= MAX_COMPLEMENT)

    @cached_property
    def _base_auc(self) -> FloatArray:
        """The AUC of the prediction for each class; a constant stands for no prediction."""
        return np.array([self._auc(score, self.targets, MIN_OUTCOMES)[place] for place, score in enumerate(self.scores)])

    @cached_property
    def _base_skill(self) -> FloatArray:
        every = np.full(len(self.rows), fill_value=True)
        return np.array([self._skill(score, every)[place] for place, score in enumerate(self.scores)])

    def _auc(self, column: AnyArray, targets: FloatArray, min_rows: int) -> FloatArray:
        """Return the AUC of a column, ascending or descending, for each class; 0.5 for one of less than ``min_rows`` rows.

        For a real outcome, return its absolute rank correlation with the column.
        """
        ranks = _ranks(column)
        if not self.has_events:
            return np.array([abs(_correlate(ranks, _ranks(targets[:, 0]))) if len(column) >= 2 * min_rows else 0.0])
        rows, ones = len(targets), targets.sum(axis=0)
        pairs = np.where(np.minimum(ones, rows - ones) >= min_rows, ones * (rows - ones), np.inf)
        return np.asarray(0.5 + np.abs(ranks @ targets - ones * (rows / 2)) / pairs)

    def _skill(self, column: FloatArray, known: BoolArray) -> FloatArray:
        """Return the Brier skill score of a column as probability of each class: 1 - Brier score / variance."""
        targets, weight = self.targets[known], self.weight[known] / self.weight[known].sum()
        variance = weight @ (targets - weight @ targets) ** 2
        score = weight @ (column[known, None] - targets) ** 2
        return np.asarray(1 - np.divide(score, variance, out=np.ones(len(score)), where=variance > 0))


def _draw(rows: IntArray, count: int, random: np.random.Generator) -> IntArray:
    """Return at most ``count`` of the rows: every n-th might be of one kind."""
    return rows if len(rows) <= count else rows[random.choice(len(rows), count, replace=False)]


def _ranks(column: AnyArray) -> FloatArray:
    """Return how many values are lower, plus half of the equal ones."""
    _, index, counts = np.unique(column, return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(counts) - counts / 2)[index])


def _correlate(a: FloatArray, b: FloatArray) -> float:
    a, b = a - a.mean(), b - b.mean()
    scale = math.sqrt(float(a @ a) * float(b @ b))
    return float(a @ b) / scale if scale else 0.0


def _event_rates(codes: AnyArray, event: FloatArray) -> FloatArray:
    """Return the share of events in the level of each row."""
    counts = np.bincount(codes + 1)
    return np.asarray((np.bincount(codes + 1, event) / np.maximum(counts, 1))[codes + 1])
