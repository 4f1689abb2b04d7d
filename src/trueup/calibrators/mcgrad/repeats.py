"""Repeated cross-validation: several growers, each with folds and seeds of its own, whose models are averaged.

A single cross-validation of few rows is noisy: so are its held-out scores, its choice of a capacity and its number of
trees. Means over several have less noise, which shows errors that one of them would miss.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import chain
from typing import TYPE_CHECKING

import numpy as np

from trueup.calibrators import stopping

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup._types import FloatArray, IntArray
    from trueup.calibrators.mcgrad.cascade import CascadeRound
    from trueup.calibrators.mcgrad.grower import CascadeGrower
    from trueup.calibrators.stopping import CrossValidation

REPEAT_SEED = 4_000_037  # added to the seed for each repeat
MAX_SEED = 2**31 - 2


@dataclass(eq=False)
class RepeatedGrower:
    """Grows a cascade per fold of every repeat; ``first`` is the grower of the first one.

    It has the methods of `CascadeGrower` that a fit in memory needs. Scores of held-out rows are means over the repeats.
    """

    first: CascadeGrower
    rule: CrossValidation
    repeats: int
    training: list[float] = field(default_factory=list)  # the mean training loss, of the base score and each round
    rounds: list[CascadeRound] = field(default_factory=list, init=False)
    best: FloatArray | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.first.training = []
        self.growers = [self.first, *map(self._repeat, range(1, self.repeats))]
        size, self.evaluated_rows = len(self.first.y), self.first.evaluated_rows
        self._order: list[IntArray] = []  # where each grower has the rows of the first
        for grower in self.growers:
            places = np.empty(size, np.int64)
            places[grower.evaluated_rows] = np.arange(size)
            self._order.append(places[self.evaluated_rows])

    def _repeat(self, number: int) -> CascadeGrower:
        """Return a grower with other folds and another seed, and the same bins."""
        first = self.first
        seed = (first.growth.seed + REPEAT_SEED * number) % MAX_SEED
        return replace(
            first, splits=stopping.split_rows(first.table, self.rule, seed), growth=replace(first.growth, seed=seed),
            capacities=[replace(growth, seed=seed) for growth in first.capacities], binned=first.binned,
            training=[],
        )  # fmt: skip

    def held_out_scores(self) -> FloatArray:
        """Return link-scale scores of the held-out rows, means over the repeats."""
        pairs = zip(self.growers, self._order, strict=True)
        return np.asarray(np.mean([grower.held_out_scores()[order] for grower, order in pairs], axis=0))

    def keep_best(self) -> None:
        """Store the current scores of the held-out rows in ``best``."""
        self.best = self.held_out_scores()

    def slopes(self) -> tuple[FloatArray, FloatArray | None]:
        """Return `CascadeGrower.slopes` of the means over the repeats."""
        return self.first.slopes(self.held_out_scores())

    def losses(self) -> Iterator[FloatArray]:
        """Yield the losses of the held-out rows: of the base score, then after each round of all growers."""
        first, steps = self.first, zip(*(grower.losses() for grower in self.growers), strict=False)  # a late one ends
        for number, _ in enumerate(steps):
            if number:
                self.rounds.append(_join([grower.rounds[number - 1] for grower in self.growers]))
            self.training.append(float(np.mean([(grower.training or [])[number] for grower in self.growers])))
            scores = self.held_out_scores()
            if first.score is None:
                yield first.loss.per_row(first.y[self.evaluated_rows], scores)
            else:
                yield first.score.values(first.loss.invert_link(scores))

    @property
    def late(self) -> bool:
        """Return whether the deadline ended the fit."""
        return any(grower.late for grower in self.growers)

    def refit(self, kept: Sequence[CascadeRound]) -> tuple[CascadeRound, ...]:
        """Grow a single cascade on all rows, with the numbers of rounds and trees and the factors of the first repeat."""
        return self.first.refit(self.first.rounds[: len(kept)])


def _join(rounds: Sequence[CascadeRound]) -> CascadeRound:
    """Return one round with the cascades of all repeats, and their mean number of trees; other facts are the first's."""
    thetas, forests, more = (
        tuple(chain.from_iterable(getattr(own, name) for own in rounds)) for name in ("thetas", "forests", "more")
    )
    gains = tuple(np.sum([own.gains for own in rounds], axis=0).tolist())
    trees = round(sum(own.trees for own in rounds) / len(rounds))
    return replace(rounds[0], thetas=thetas, forests=forests, more=more, trees=trees, gains=gains)
