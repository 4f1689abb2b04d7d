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
from trueup.calibrators.stopping import apply_link
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


@dataclass(frozen=True, eq=False)
class MatrixMap(Map):
    """``softmax(scale * z + left right' z + intercept)``, where z are the log probabilities less their mean."""

    kind = "matrix"

    factor: float  # the part of ``scale`` that all classes share: 1 / temperature
    scale: FloatArray  # per class
    intercept: FloatArray  # per class
    left: FloatArray  # (classes, rank)
    right: FloatArray  # (classes, rank)
    floors: Floors

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
                scale_logits, steps, self.scale, self.intercept, self.left, self.right, self.floors[0], before[rows],
                after[rows],
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
        return f"logits of {len(self.scale)} classes times {self.factor:.4g}, plus {matrix}"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one row: the shared factor, the own logit of the class, those of others, the intercept."""
        P: FloatArray = np.array([prediction], np.float64)
        z = np.log(np.maximum(P[0], self.floors[0]))
        z -= z.mean()
        after = self.apply_one([], list(prediction))
        own, whole = np.diag(self.matrix), self.matrix @ z
        changes = (apply_link(after[None], "softmax") - apply_link(P, "softmax"))[0]
        parts = {
            f"factor {self.factor:.4g} of all logits": (self.factor - 1) * z,
            "factor of the class": (own - self.factor) * z,
            "logits of other classes": whole - own * z,
            "intercept": self.intercept,
        }
        contributions, sums = [], EffectSums(schema, row, prediction)
        sums.add_scores(self.intercept)
        for c, label in enumerate(schema.classes):
            for other, factor in enumerate(self.matrix[c].tolist()):
                sums.add((len(row) + other,), (factor - (other == c)) * float(z[other]), c)
            terms = {text: float(values[c]) for text, values in parts.items() if values.any()}
            terms["normalisation: probabilities add up to 1"] = float(changes[c]) - math.fsum(terms.values())
            contributions += [Contribution(text, value, label) for text, value in terms.items()]
        return explain_change("softmax", prediction, after, contributions, sums, changes.tolist())

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        entry = {"factor": self.factor, "rank": self.left.shape[1], **pack_floors(self.floors)}
        return entry, pack_arrays(DTYPES, self.scale, self.intercept, self.left, self.right)

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> MatrixMap:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        factor, rank, classes = entry["factor"], entry["rank"], len(schema.prediction)
        require(schema.task == "multiclass", "a matrix needs several classes")
        require(set(blobs) == set(DTYPES), "it has arrays that the manifest does not list")
        require(are_finite(factor) and is_integer(rank) and 0 <= rank <= classes, "the rank of the matrix is invalid")
        arrays = unpack_arrays(DTYPES, blobs)
        sizes = (classes, classes, classes * rank, classes * rank)
        require(all(len(array) == size for array, size in zip(arrays, sizes, strict=True)), "the matrix has a wrong size")
        valid = all(bool((np.abs(array) <= MAX_COEFFICIENT).all()) for array in arrays)
        require(valid and abs(factor) <= MAX_COEFFICIENT, "a coefficient of the matrix is invalid")
        scale, intercept, left, right = arrays
        left, right = (array.reshape(classes, rank) for array in (left, right))
        return cls(float(factor), scale, intercept, left, right, unpack_floors(entry))
