"""The map of Logistic: a logit that is linear in the logit of the score and in the features; how it is stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.floors import OLD_FLOORS, Floors
from trueup.calibrators.model import Map, are_finite, pack_arrays, pack_floors, require, unpack_arrays, unpack_floors
from trueup.calibrators.row_explanation import Contribution, EffectSums, RowExplanation, explain_change, value_text
from trueup.calibrators.stopping import apply_link
from trueup.kernels._jit import answer
from trueup.kernels.curves import add_effects
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.data.table import Schema


DTYPES = {"linear/effects": "<f8", "linear/ranges": "<f8"}
MAX_COEFFICIENT = 1e150  # of effects and of ranges: their product does not overflow
CHUNK = 16_384  # rows per kernel call


@dataclass(frozen=True, eq=False)
class LinearMap(Map):
    """Scores with the logit ``slope logit(p) + intercept + effects of the features``.

    A categorical feature has an effect per level and one for missing and unseen levels. A number or date x has an effect
    per unit and one for missing values: ``effect * (x - centre)``, x clipped to the range of the training rows.
    """

    kind = "linear"

    slope: float
    intercept: float
    levels: tuple[int, ...]  # per feature, as `Schema.levels`
    effects: FloatArray  # of all features in turn; the last of each is that of missing values
    ranges: FloatArray  # (features, 3): centre, lowest and highest value of numbers and dates; 0 for categories
    floors: Floors = OLD_FLOORS  # the distances that scores keep from 0 and 1 before the logit

    @property
    def starts(self) -> IntArray:
        """Where the effects of each feature begin."""
        return effect_starts(self.levels)

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return corrected predictions, shape (n,); ``columns`` are the features in the order of the schema."""
        given, after, starts = list(columns), np.empty(len(prediction)), self.starts
        levels, floors = np.array(self.levels, np.int64), np.array(self.floors)

        def evaluate_chunk(start: int) -> None:
            rows = slice(start, start + CHUNK)
            X = np.empty((len(given), len(after[rows])))
            for index, column in enumerate(given):
                X[index] = column[rows]
            answer(
                add_effects, 10 * len(after) * (1 + len(levels)),
                self.slope, self.intercept, levels, starts[:-1], self.effects, self.ranges, floors, X, prediction[rows],
                after[rows],
            )  # fmt: skip

        (workers or Workers()).map(evaluate_chunk, range(0, len(after), CHUNK))
        return after

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return the corrected prediction of one row, given as codes and numbers in the order of the schema."""
        return self.apply([np.array([value], np.float64) for value in row], np.array(prediction, np.float64), Workers(1))

    def effect(self, feature: int, value: float) -> float:
        """Return what the value of a feature, a code or a number, adds to the logit."""
        levels, start = self.levels[feature], int(self.starts[feature])
        if levels >= 0:
            return float(self.effects[start + (int(value) if 0 <= value < levels else levels)])
        if math.isnan(value):
            return float(self.effects[start + 1])
        centre, low, high = self.ranges[feature].tolist()
        return float(self.effects[start] * (min(max(value, low), high) - centre))

    def describe(self) -> str:
        """Return as text the slope, the intercept and the number of effects."""
        count = len(self.levels)
        features = f"effects of {count:,} feature{'' if count == 1 else 's'}" if count else "no features"
        return f"slope {self.slope:.4g}, intercept {self.intercept:.4g}, {features}"

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return each feature alone: effects add up."""
        return [(feature,) for feature in range(len(self.levels))]

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one prediction by the slope, the intercept and the effect of each feature."""
        logit = float(apply_link(np.array(prediction, np.float64), "logit", self.floors)[0, 0])
        contributions = [Contribution(f"slope {self.slope:.4g} of the logit", (self.slope - 1) * logit)]
        contributions.append(Contribution("intercept", self.intercept))
        sums = EffectSums(schema, row, prediction)
        sums.add((), sum(term.change for term in contributions))
        for index, (feature, value) in enumerate(zip(schema.features, row, strict=True)):
            contributions.append(Contribution(value_text(feature, value), self.effect(index, value)))
            sums.add((index,), self.effect(index, value))
        after = self.apply_one(list(row), list(prediction))
        change = sum(term.change for term in contributions)
        return explain_change("logit", prediction, after, contributions, sums, [change])

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        entry = {"slope": self.slope, "intercept": self.intercept, **pack_floors(self.floors)}
        return entry, pack_arrays(DTYPES, self.effects, self.ranges)

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> LinearMap:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        slope, intercept, levels = entry["slope"], entry["intercept"], schema.levels
        require(schema.task == "binary", "the map does not fit the task")
        require(are_finite(slope, intercept), "a coefficient is invalid")
        require(set(blobs) == set(DTYPES), "it has arrays that the manifest does not list")
        effects, ranges = unpack_arrays(DTYPES, blobs)
        require(len(effects) == effect_starts(levels)[-1], "the number of effects does not fit the features")
        require(len(ranges) == 3 * len(levels), "the number of ranges does not fit the features")
        for values in (np.array([slope, intercept]), effects, ranges):
            require(bool((np.abs(values) <= MAX_COEFFICIENT).all()), "a coefficient is invalid")
        ranges = ranges.reshape(-1, 3)
        require(bool((ranges[:, 1] <= ranges[:, 2]).all()), "the range of a feature is invalid")
        return cls(float(slope), float(intercept), levels, effects, ranges, unpack_floors(entry))


def effect_starts(levels: Sequence[int]) -> IntArray:
    """Return where the effects of each feature begin, and where the last ones end; ``levels`` as in `Schema.levels`."""
    return np.cumsum([0, *(count + 1 if count >= 0 else 2 for count in levels)], dtype=np.int64)
