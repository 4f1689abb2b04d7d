"""Local calibration errors over a grid of gamma: from single rows to whole bins."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.data.frame import frame_like, to_jsonable
from trueup.errors import ArgumentError
from trueup.metrics.local.neighbourhoods import Options, ask, check_gamma
from trueup.metrics.local.plain import average, signed_errors

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from trueup._types import FloatArray, IntArray
    from trueup.metrics.binned import Strategy
    from trueup.metrics.local.neighbourhoods import At


# Four a decade from 0.01 to 10, and one well beyond each end: both limits show.
GAMMAS = (0.001, *(10.0 ** (k / 4 - 2) for k in range(13)), 100.0)


@dataclass(frozen=True, eq=False, repr=False)
class LceCurve:
    """The largest and the mean local calibration error for each ``gamma``.

    ``worst`` is the point with the largest, the first of equals, -1 where no point has a value. ``mce`` is the limit of
    ``mlce`` for large gamma: the maximum calibration error of the bins.
    """

    gamma: FloatArray
    mlce: FloatArray
    mean: FloatArray
    worst: IntArray
    mce: float

    def __len__(self) -> int:
        return len(self.gamma)

    def __repr__(self) -> str:
        first, last = int(np.argmin(self.gamma)), int(np.argmax(self.gamma))
        ends = f"MLCE {self.mlce[first]:.3g} at gamma {self.gamma[first]:.3g}"
        if last != first:
            ends += f" to {self.mlce[last]:.3g} at {self.gamma[last]:.3g}"
        return f"<LceCurve of {len(self)} gamma{'' if len(self) == 1 else 's'}: {ends}; MCE {self.mce:.3g}>"

    def to_dict(self) -> dict[str, Any]:
        """Give plain lists, one entry a gamma, fit for JSON: what is not finite becomes None."""
        return {name: to_jsonable(getattr(self, name)) for name in (*self._columns(), "mce")}

    def to_frame(self, like: Any = None) -> Any:
        """Give columns gamma, mlce, mean and worst, in a frame of the library of ``like``; a dict of arrays for None."""
        return frame_like({name: getattr(self, name).copy() for name in self._columns()}, like)

    @staticmethod
    def _columns() -> tuple[str, ...]:
        return ("gamma", "mlce", "mean", "worst")


def lce_curve(
    phi: ArrayLike, confidence: ArrayLike, hit: ArrayLike, weight: ArrayLike | None = None, *,
    gammas: ArrayLike | None = None, bins: int = 15, strategy: Strategy = "width", at: At | None = None,
    leave_one_out: bool = False, tolerance: float | None = None, threads: int | None = None, device: str = "cpu",
) -> LceCurve:  # fmt: skip
    """Measure `mlce` and `mean_lce` for many gammas, with one pass over the distances (Luo et al. 2022, figures 1 and 3).

    Parameters
    ----------
    gammas : array-like, optional
        Each above 0; by default a grid from 0.01 to 10, four a decade, with 0.001 and 100 to show the limits.

    Notes
    -----
    The rest is as for `lce`. Where the largest error is near 1, neighbourhoods are single rows; where it is near ``mce``,
    they are whole bins: a gamma worth choosing lies between.

    Examples
    --------
    >>> curve = lce_curve([0.0, 0.0, 1.0, 1.0], [0.5] * 4, [1, 1, 0, 0], gammas=[0.1, 1, 10])
    >>> curve
    <LceCurve of 3 gammas: MLCE 0.5 at gamma 0.1 to 0.025 at 10; MCE 0>
    >>> curve.mlce.round(3)
    array([0.5  , 0.231, 0.025])
    """
    values = GAMMAS if gammas is None else np.asarray(gammas, object).ravel().tolist()
    if not len(values):
        raise ArgumentError("gammas is empty", hint="leave it out for a grid from 0.01 to 10")
    grid = [check_gamma(value, "laplace") for value in values]
    asked = ask(
        phi, confidence, hit, weight, Options(bins, strategy, at, leave_one_out, "laplace", tolerance, threads, device)
    )
    # The last line is the limit.
    errors = np.abs(signed_errors(asked, [*grid, np.inf]))
    filled = np.where(np.isnan(errors), -1.0, errors)
    largest, worst = filled.max(axis=1), filled.argmax(axis=1)
    largest, worst = np.where(largest < 0, np.nan, largest), np.where(largest < 0, -1, worst)
    means = np.array([average(asked, line) for line in errors])
    return LceCurve(np.array(grid), largest[:-1], means[:-1], worst[:-1].astype(np.int64), float(largest[-1]))
