"""The map of a prior correction: the odds of every score times one factor; how it is stored."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.model import Map, check_fields, require
from trueup.calibrators.row_explanation import Contribution, EffectSums, RowExplanation, explain_change
from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.data.table import Schema
    from trueup.kernels.threads import Workers

MAX_LOG_FACTOR = 690.0  # the factor and its inverse are finite


@dataclass(frozen=True)
class PrevalenceEstimate(Result):
    """The prevalence of rows without outcomes, estimated from their scores under label shift, with an interval.

    Attributes
    ----------
    estimate, low, high : float
    level : float
        Coverage of the interval.
    reference : float
        The prevalence at which the scores are calibrated.
    rows : int
        Rows without outcomes.
    labelled_rows : int
        Labelled rows that corrected the estimate for miscalibration; 0 if the scores were taken to be calibrated.
    p_value : float or None
        Of the test that the scores are a mixture of those of labelled positives and negatives, as under label shift.
    """

    estimate: float
    low: float
    high: float
    level: float
    reference: float
    rows: int
    labelled_rows: int = 0
    p_value: float | None = None

    def __repr__(self) -> str:
        source = f"{self.labelled_rows:,} labelled rows" if self.labelled_rows else "calibrated scores"
        return (
            f"prevalence {self.estimate:.4g}, {100 * self.level:g}% interval {self.low:.4g} to {self.high:.4g}, of "
            f"{self.rows:,} rows; {self.reference:.4g} before; assuming label shift and {source}"
        )


@dataclass(frozen=True)
class OddsMap(Map):
    """Multiplies the odds of every score by ``factor``: ``k p / (1 - p + k p)``."""

    kind = "odds"

    factor: float
    estimate: PrevalenceEstimate | None = None  # what the factor comes from, if it was estimated

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:  # noqa: ARG002
        """Return the corrected predictions; the features are not used."""
        positive = self.factor * prediction
        return np.asarray(positive / (1 - prediction + positive))

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:  # noqa: ARG002
        """Return the corrected prediction of one row."""
        return self.apply((), np.array(prediction, np.float64))

    def describe(self) -> str:
        """Return the factor and the offset as text."""
        return f"odds times {self.factor:.6g} (offset {math.log(self.factor):+.4f} of the logit)"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one prediction: the offset of its logit."""
        after, offset = self.apply_one([], list(prediction)), math.log(self.factor)
        contribution = Contribution(f"prior: odds times {self.factor:.6g}", offset)
        sums = EffectSums(schema, row, prediction)
        sums.add((), offset)
        return explain_change("logit", prediction, after, [contribution], sums, [offset])

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the manifest entry; there are no arrays."""
        return {"factor": self.factor, "estimate": None if self.estimate is None else asdict(self.estimate)}, {}

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> OddsMap:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid."""
        require(not blobs, "it has arrays that the manifest does not list")
        require(schema.task == "binary" and len(schema.prediction) == 1, "its map is for one probability")
        estimate = None if entry["estimate"] is None else PrevalenceEstimate(**entry["estimate"])
        restored = cls(entry["factor"], estimate)
        check_fields(restored)
        require(restored.factor > 0 and abs(math.log(restored.factor)) <= MAX_LOG_FACTOR, "the factor is invalid")
        if estimate is not None:
            check_fields(estimate)
            p_value = 0.5 if estimate.p_value is None else estimate.p_value
            ordered = 0 <= estimate.low < estimate.estimate < estimate.high <= 1
            shares = 0 < estimate.level < 1 and 0 < estimate.reference < 1
            require(ordered and shares and type(p_value) is float and 0 <= p_value <= 1, "the prevalence is invalid")
            require(min(estimate.rows, estimate.labelled_rows) >= 0, "the prevalence is invalid")
        return restored
