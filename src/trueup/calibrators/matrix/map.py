"""The map of MatrixScaling: an affine function of the logits of all classes; how it is stored."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.model import (
    Map,
    are_finite,
    is_integer,
    pack_arrays,
    pack_floors,
    require,
    unpack_arrays,
    unpack_floors,
)
from trueup.calibrators.row_explanation import Contribution, EffectSums, RowExplanation, explain_change
from trueup.calibrators.stopping import apply_link, softmax
from trueup.kernels._jit import answer
from trueup.kernels.curves import scale_logits
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.calibrators.floors import Floors
    from trueup.data.table import Schema

DTYPES = {"matrix/scale": "<f8", "matrix/intercept": "<f8", "matrix/left": "<f8", "matrix/right": "<f8"}
MAX_COEFFICIENT = 1e100
CHUNK = 4096  # rows per kernel call


def mixed_logits(P: FloatArray, floors: Floors, factor: float, mixture: float) -> FloatArray:
    """Return the logarithms of probabilities after temperature scaling, mixed with equal ones: (n, classes).

    Very small probabilities of an overconfident model differ by orders of magnitude that mean nothing. The mixture keeps
    their logarithms above that of ``mixture / classes``.
    """
    Q = softmax(factor * np.log(np.maximum(P, floors[0])))
    return np.asarray(np.log((1 - mixture) * Q + mixture / P.shape[1]))


@dataclass(frozen=True, eq=False)
class MatrixMap(Map):
    """``softmax(scale * z + left right' z + intercept)``, where z are the logits of `mixed_logits`.

    Without a mixture, as in files that state none, z are the log probabilities less their mean over the classes.
    """

    kind = "matrix"

    factor: float  # the part of ``scale`` that all classes share: 1 / temperature
    scale: FloatArray  # per class
    intercept: FloatArray  # per class
    left: FloatArray  # (classes, rank)
    right: FloatArray  # (classes, rank)
    floors: Floors
    temperature_factor: float = 0.0  # of the log probabilities, before the mixture; 0 without one
    mixture: float = 0.0  # the share of equal probabilities of all classes in those that the matrix corrects

    @property
    def matrix(self) -> FloatArray:
        """Return the matrix that multiplies the logits, (classes, classes)."""
        return np.asarray(np.diag(self.scale) + self.left @ self.right.T)

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:  # noqa: ARG002
        """Return corrected predictions, (n, classes)."""
        before = np.ascontiguousarray(prediction)
        after = np.empty(before.shape)
        steps = before.size * (10 + 2 * self.left.shape[1])

        def evaluate_chunk(start: int) -> None:
            rows = slice(start, start + CHUNK)
            answer(
                scale_logits, steps, self.scale, self.intercept, self.left, self.right, self.floors[0],
                self.temperature_factor, self.mixture, before[rows], after[rows],
            )  # fmt: skip

        (workers or Workers()).map(evaluate_chunk, range(0, len(before), CHUNK))
        return after

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:  # noqa: ARG002
        """Return the corrected prediction of one row."""
        return np.asarray(self.apply((), np.array([prediction], np.float64), Workers(1))[0])

    def describe(self) -> str:
        """Return the factor and the rank as text."""
        rank = self.left.shape[1]
        matrix = f"a diagonal and a matrix of rank {rank}" if rank else "a diagonal"
        return f"logits of {len(self.scale)} classes times {self._overall_factor:.4g}, plus {matrix}"

    @property
    def _overall_factor(self) -> float:
        """Return the factor of the log probabilities of all classes: the inverse of the temperature."""
        return self.factor * (self.temperature_factor or 1.0)

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one row: the shared factor, the own logit of the class, those of others, the intercept."""
        P: FloatArray = np.array([prediction], np.float64)
        start = np.log(np.maximum(P[0], self.floors[0]))
        start -= start.mean()
        z = mixed_logits(P, self.floors, self.temperature_factor, self.mixture)[0] if self.temperature_factor else start
        after = self.apply_one([], list(prediction))
        own, whole = np.diag(self.matrix), self.matrix @ z
        changes = (apply_link(after[None], "softmax") - apply_link(P, "softmax"))[0]
        parts = {
            f"factor {self._overall_factor:.4g} of all logits": self.factor * z - start,
            "factor of the class": (own - self.factor) * z,
            "logits of other classes": whole - own * z,
            "intercept": self.intercept,
        }
        contributions, sums = [], EffectSums(schema, row, prediction)
        sums.add_scores(self.intercept)
        for c, label in enumerate(schema.classes):
            for other, factor in enumerate(self.matrix[c].tolist()):
                own_start = float(start[c]) if other == c else 0.0
                sums.add((len(row) + other,), factor * float(z[other]) - own_start, c)
            terms = {text: float(values[c]) for text, values in parts.items() if values.any()}
            terms["normalisation: probabilities add up to 1"] = float(changes[c]) - math.fsum(terms.values())
            contributions += [Contribution(text, value, label) for text, value in terms.items()]
        return explain_change("softmax", prediction, after, contributions, sums, changes.tolist())

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        entry = {"factor": self.factor, "rank": self.left.shape[1], **pack_floors(self.floors)}
        if self.temperature_factor:
            entry |= {"temperature factor": self.temperature_factor, "mixture": self.mixture}
        return entry, pack_arrays(DTYPES, self.scale, self.intercept, self.left, self.right)

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> MatrixMap:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        temperature_factor, mixture = entry.get("temperature factor", 0.0), entry.get("mixture", 0.0)
        factor, rank, classes = entry["factor"], entry["rank"], len(schema.prediction)
        require(schema.task == "multiclass", "a matrix needs several classes")
        require(set(blobs) == set(DTYPES), "it has arrays that the manifest does not list")
        require(are_finite(factor) and is_integer(rank) and 0 <= rank <= classes, "the rank of the matrix is invalid")
        require(
            are_finite(temperature_factor, mixture) and 0 <= temperature_factor <= MAX_COEFFICIENT and 0 <= mixture < 1,
            "the mixture of the matrix is invalid",
        )
        require((mixture > 0) == (temperature_factor > 0), "the mixture of the matrix is invalid")
        arrays = unpack_arrays(DTYPES, blobs)
        sizes = (classes, classes, classes * rank, classes * rank)
        require(all(len(array) == size for array, size in zip(arrays, sizes, strict=True)), "the matrix has a wrong size")
        valid = all(bool((np.abs(array) <= MAX_COEFFICIENT).all()) for array in arrays)
        require(valid and abs(factor) <= MAX_COEFFICIENT, "a coefficient of the matrix is invalid")
        scale, intercept, left, right = arrays
        left, right = (array.reshape(classes, rank) for array in (left, right))
        return cls(
            float(factor), scale, intercept, left, right, unpack_floors(entry), float(temperature_factor), float(mixture)
        )
