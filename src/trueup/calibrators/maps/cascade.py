"""Boosted trees, round after round: what MCGrad and DepthTwo learn."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators.maps.base import Map
from trueup.kernels.cascade import IDENTITY, LOGIT, SOFTMAX, Program, Stage, build, score
from trueup.kernels.threads import Workers
from trueup.kernels.trees import Forest, join_forests

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.data.schema import Schema


LINKS = {"identity": IDENTITY, "logit": LOGIT, "softmax": SOFTMAX}
CHUNK = 8192  # rows that are copied and scored by one call


@dataclass(frozen=True, eq=False)
class CascadeRound:
    """One round: a forest for every cascade, and the factor they share.

    ``trees`` is how many each forest has for each output.
    """

    theta: float
    forests: tuple[Forest, ...]
    trees: int


@dataclass(frozen=True, eq=False)
class Cascade(Map):
    """``F = theta * (F + trees(features, F))``, round after round, from the link of the prediction; the mean of several.

    Attributes
    ----------
    link : {"identity", "logit", "softmax"}
    levels : tuple of int
        How many levels each feature has, in the order of the schema; -1 for a number.
    outputs : int
        How many prediction columns there are.
    rounds : tuple of CascadeRound
        None at all leaves every prediction as it is.
    clip : tuple of float, or None
        Lowest and highest prediction, for trees that add to the prediction itself.
    """

    kind = "cascade"

    link: str
    levels: tuple[int, ...]
    outputs: int
    rounds: tuple[CascadeRound, ...]
    clip: tuple[float, float] | None = None

    @property
    def steps(self) -> int:
        """Count the rounds."""
        return len(self.rounds)

    @property
    def cascades(self) -> int:
        """Count the cascades whose mean is the answer."""
        return len(self.rounds[0].forests) if self.rounds else 1

    @property
    def trees(self) -> int:
        """Count the trees of all rounds and cascades."""
        return sum(len(forest) for one in self.rounds for forest in one.forests)

    @property
    def cells(self) -> int:
        """Count the cells of the tables that stand for the trees; 0 where trees are walked."""
        return len(self.program.values) if self.rounds else 0

    @cached_property
    def program(self) -> Program:
        """Lay the rounds out for the scorer; a single round of several cascades is one sum, whatever their number."""
        if len(self.rounds) == 1:
            only = self.rounds[0]
            forest = join_forests(only.forests).scaled(1 / len(only.forests))
            return build([Stage(0, only.theta, forest)], self.levels, self.outputs, 1, LINKS[self.link])
        stages = [Stage(at, one.theta, forest) for one in self.rounds for at, forest in enumerate(one.forests)]
        return build(stages, self.levels, self.outputs, self.cascades, LINKS[self.link])

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Score rows: columns in the order of the schema, predictions (n,) or (n, outputs); the result has that shape."""
        if not self.rounds:
            return prediction.copy()
        program, given = self.program, list(columns)
        before = np.ascontiguousarray(prediction.reshape(len(prediction), self.outputs))
        after = np.empty(before.shape)

        def some(start: int) -> None:
            rows = slice(start, start + CHUNK)
            P, out = before[rows], after[rows]
            X = np.empty((len(given), len(P)))
            for at, column in enumerate(given):
                X[at] = column[rows]
            score(*program, X, P, out)

        (workers or Workers()).map(some, range(0, len(before), CHUNK))
        return self._clipped(after).reshape(prediction.shape)

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Score one row: codes and numbers in the order of the schema."""
        P: FloatArray = np.array([prediction], np.float64)
        if self.rounds:
            score(*self.program, np.array(row, np.float64).reshape(-1, 1), P, P)
            P = self._clipped(P)
        return np.asarray(P[0])

    def _clipped(self, scores: FloatArray) -> FloatArray:
        return scores if self.clip is None else np.clip(scores, *self.clip)

    def describe(self) -> str:
        """Count rounds, trees and cells."""
        walked = f"{self.cells:,} table cells" if self.cells or not self.trees else "walked"
        return f"{self.steps} round{'' if self.steps == 1 else 's'} ({self.trees:,} trees, {walked})"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Walk the row down every tree."""
        from trueup.calibrators.rowwise import explain_row

        return explain_row(self, schema, row, prediction)

    def tested(self) -> list[tuple[int, ...]]:
        """List the features that trees test together."""
        from trueup.calibrators.explain import tested_together

        return tested_together(self)
