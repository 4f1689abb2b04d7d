"""Reliability curves as values."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.kernels import cumulative as sums
from trueup.metrics.inference import wilson

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

__all__ = ["ReliabilityCurve", "curves_from_sums"]


@dataclass(frozen=True, eq=False)
class ReliabilityCurve:
    """Observed against predicted in bins of about equal weight; rows of equal score share a bin.

    ``low`` and ``high`` are pointwise confidence limits for the observed rate of each bin.
    """

    predicted: Floats
    observed: Floats
    low: Floats
    high: Floats
    rows: NDArray[np.int64]
    weight: Floats

    def __len__(self) -> int:
        return len(self.predicted)

    def to_dict(self) -> dict[str, list[Any]]:
        """Give plain lists, one entry a bin, fit for JSON: what is not finite becomes None."""
        return {
            name: [value if np.isfinite(value) else None for value in getattr(self, name).tolist()]
            for name in self.__dataclass_fields__
        }


def curves_from_sums(cells: Floats, *, alpha: float, real: bool) -> list[ReliabilityCurve]:
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
        half = NormalDist().inv_cdf(1 - alpha / 2) * np.sqrt(spread) / weight
        low, high = observed - half, observed + half
    else:
        observed = np.clip(observed, 0.0, 1.0)
        low, high = wilson(observed, weight**2 / flat[:, sums.CURVE_WEIGHT2], alpha)
    ends = np.cumsum(some.sum(axis=1))[:-1]
    parts = (np.split(column, ends) for column in (predicted, observed, low, high, rows.astype(np.int64), weight))
    return [ReliabilityCurve(*part) for part in zip(*parts, strict=True)]
