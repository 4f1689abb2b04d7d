"""What every map can do: score rows, score one row, and say what it is."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.data.schema import Schema
    from trueup.kernels.threads import Workers


class Map(ABC):
    """A function from a row (features and prediction) to a better prediction; frozen, and safe in several threads.

    Attributes
    ----------
    kind : str
        What the file calls it.
    """

    kind: ClassVar[str]

    @property
    @abstractmethod
    def steps(self) -> int:
        """Count the rounds, or whatever was kept one after another; none leaves every prediction as it is."""

    @property
    def changes(self) -> bool:
        """Say whether any prediction may come out another than it was."""
        return self.steps > 0

    @abstractmethod
    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Score rows: columns in the order of the schema, predictions (n,) or (n, outputs); the result has that shape.

        The score of a row does not depend on the rows it comes with, to the last bit; nothing given is written to.
        """

    @abstractmethod
    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Score one row, shape (outputs,): codes and numbers in the order of the schema; as `apply`, to the last bit."""

    @abstractmethod
    def describe(self) -> str:
        """Say in a few words how large it is: "1 round (45 trees, 2,310 table cells)"."""

    @abstractmethod
    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Say why one prediction moves."""

    def tested(self) -> list[tuple[int, ...]]:
        """List the sets of one or two features that it combines, the weightiest first; none reads the prediction alone."""
        return []


class Unchanged(Map):
    """Every prediction as it is: the answer where nothing helps."""

    kind = "unchanged"

    @property
    def steps(self) -> int:
        """Count no steps."""
        return 0

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:  # noqa: ARG002
        """Copy the predictions."""
        return prediction.copy()

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:  # noqa: ARG002
        """Copy the prediction."""
        return np.array(prediction, np.float64)

    def describe(self) -> str:
        """Say that nothing is changed."""
        return "leaves every score as it is"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:  # noqa: ARG002
        """Say that nothing moves."""
        from trueup.calibrators.losses import loss_of
        from trueup.calibrators.rowwise import explain_change

        return explain_change(loss_of(schema.task).link, prediction, prediction, ())
