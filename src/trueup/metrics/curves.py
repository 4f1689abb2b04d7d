"""Reliability curves as values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.frame import to_jsonable
from trueup.kernels import cumulative as sums
from trueup.metrics.inference import normal_quantile, wilson

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Observed against predicted, by default in bins of about equal weight; rows of equal score share a bin.

    ``low`` and ``high`` are pointwise limits: of the observed rate where ``band`` is "confidence", of the curve of a
    calibrated score where it is "consistency". ``rows`` and ``weight`` count what each point stands for.
    """

    predicted: FloatArray
    observed: FloatArray
    low: FloatArray
    high: FloatArray
    rows: IntArray
    weight: FloatArray
    kind: str = "binned"
    band: str = "confidence"

    def __len__(self) -> int:
        return len(self.predicted)

    def __repr__(self) -> str:
        if not len(self):
            return f"<empty {self.kind} reliability curve>"
        far = int(np.nanargmax(np.abs(self.observed - self.predicted)))
        where = f"predicted {self.predicted[far]:.3g}, observed {self.observed[far]:.3g}"
        return f"<{self.kind} reliability curve of {len(self)} points with a {self.band} band; farthest off at {where}>"

    def to_dict(self) -> dict[str, Any]:
        """Give plain lists, one entry a bin, fit for JSON: what is not finite becomes None."""
        names = ("predicted", "observed", "low", "high", "rows", "weight", "kind", "band")
        return {name: to_jsonable(getattr(self, name)) for name in names}


@dataclass(frozen=True, eq=False)
class CurveSet(Mapping[int, ReliabilityCurve]):
    """Many curves by number, kept as a few long arrays; each is made when it is asked for."""

    numbers: dict[int, int]
    """Which curve a number stands for, by its place."""
    ends: IntArray
    """Where each curve ends in the arrays."""
    parts: tuple[AnyArray, ...]

    def __getitem__(self, number: int) -> ReliabilityCurve:
        at = self.numbers[number]
        start = self.ends[at - 1] if at else 0
        predicted, observed, low, high, rows, weight = (part[start : self.ends[at]] for part in self.parts)
        return ReliabilityCurve(predicted, observed, low, high, rows, weight)

    def __iter__(self) -> Iterator[int]:
        return iter(self.numbers)

    def __len__(self) -> int:
        return len(self.numbers)


def curves_from_sums(numbers: Sequence[int], cells: FloatArray, *, alpha: float, real: bool) -> CurveSet:
    """Make curves of the bin sums of `trueup.kernels.cumulative.curves`, (curves, bins, 6); empty bins are left out.

    The limits are Wilson's with Kish's effective size for probabilities, and normal ones from the squared residuals
    for real outcomes.
    """
    some = cells[..., sums.CURVE_ROWS] > 0
    flat = cells[some]
    rows, weight, residual = (flat[:, c] for c in (sums.CURVE_ROWS, sums.CURVE_WEIGHT, sums.CURVE_RESIDUAL))
    predicted = flat[:, sums.CURVE_EXPECTED] / weight
    observed = predicted + residual / weight
    if real:
        # Within a bin the residuals vary about their own mean; a bin of one row has no width to show.
        spread = np.maximum(flat[:, sums.CURVE_RESIDUAL2] - residual**2 / rows, 0.0) * rows / np.maximum(rows - 1, 1)
        half = normal_quantile(alpha) * np.sqrt(spread) / weight
        low, high = observed - half, observed + half
    else:
        observed = np.clip(observed, 0.0, 1.0)
        low, high = wilson(observed, weight**2 / flat[:, sums.CURVE_WEIGHT2], alpha)
    parts = (predicted, observed, low, high, rows.astype(np.int64), weight.copy())
    return CurveSet({number: at for at, number in enumerate(numbers)}, np.cumsum(some.sum(axis=1)), parts)
