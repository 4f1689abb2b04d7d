"""The interface of maps (score rows, describe, explain, store in a file) and the validation of stored values.

A file may have been written by anybody: `Map.unpack` rejects whatever would make the scorer read outside its arrays.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from typing import Self

    from trueup._types import AnyArray, FloatArray
    from trueup.calibrators.explain import RowExplanation
    from trueup.data.table import Schema, Table
    from trueup.kernels.threads import Workers


class Map(ABC):
    """A function from the features and the prediction of a row to a corrected prediction; immutable and thread-safe."""

    kind: ClassVar[str]  # its name in a model file
    unsavable_hint: ClassVar[str | None] = None  # of maps with objects of other libraries: what to use to save a model

    @property
    def steps(self) -> int:
        """Return the number of rounds, or of whatever is applied in sequence; 0 leaves every prediction unchanged."""
        return 1

    @property
    def changes(self) -> bool:
        """Return whether the map can change a prediction."""
        return self.steps > 0

    @abstractmethod
    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Score rows: columns in the order of the schema, predictions (n,) or (n, outputs); return the same shape.

        The score of a row is bitwise independent of the other rows; the arguments are not modified.
        """

    def apply_table(self, table: Table, workers: Workers | None = None) -> FloatArray:
        """Score the rows of a table."""
        return self.apply([table.columns[feature.name] for feature in table.schema.features], table.prediction, workers)

    @abstractmethod
    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Score one row, shape (outputs,): codes and numbers in the order of the schema; bitwise equal to `apply`."""

    @abstractmethod
    def describe(self) -> str:
        """Describe the size of the map in a few words: "1 round (45 trees, 2,310 table cells)"."""

    @abstractmethod
    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one prediction."""

    def feature_sets(self) -> list[tuple[int, ...]]:
        """List the sets of one or two features the map combines, most important first; empty if it reads none."""
        return []

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return the manifest entry (JSON values) and the binary arrays by name."""
        raise NotImplementedError

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> Self:
        """Restore the map from its manifest entry and arrays; raise FileContentError if they are inconsistent."""
        raise NotImplementedError


class UnchangedMap(Map):
    """Leaves every prediction unchanged: the result where no correction helps."""

    kind = "unchanged"
    steps = 0

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:  # noqa: ARG002
        """Copy the predictions."""
        return prediction.copy()

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:  # noqa: ARG002
        """Copy the prediction."""
        return np.array(prediction, np.float64)

    def describe(self) -> str:
        """Describe the map."""
        return "leaves every score unchanged"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:  # noqa: ARG002
        """Return an explanation without parts."""
        from trueup.calibrators.explain import explain_change
        from trueup.calibrators.stopping import task_loss

        return explain_change(task_loss(schema.task).link, prediction, prediction, ())

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return no entries and no arrays."""
        return {}, {}

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> UnchangedMap:  # noqa: ARG003
        """Restore the map; there must be no arrays."""
        require(not blobs, "it has arrays that the manifest does not list")
        return cls()


class FileContentError(Exception):
    """The content of a file is not as trueup writes it; `trueup.load` turns it into a FileError with the path."""


def require(condition: bool, message: str) -> None:  # noqa: FBT001
    """Raise FileContentError unless the condition holds."""
    if not condition:
        raise FileContentError(message)


def is_integer(value: object) -> bool:
    """Return whether a JSON value is an integer; booleans are not."""
    return isinstance(value, int) and not isinstance(value, bool)


def are_finite(*values: object) -> bool:
    """Return whether all JSON values are finite numbers; JSON integers may be too large for a float."""
    try:
        return all(isinstance(x, (int, float)) and not isinstance(x, bool) and math.isfinite(x) for x in values)
    except OverflowError:
        return False


def read_texts(value: Any, what: str) -> tuple[str, ...]:
    """Return a JSON list of strings as a tuple."""
    require(isinstance(value, list) and all(isinstance(text, str) for text in value), f"{what} must be texts")
    return tuple(value)


def pack_arrays(dtypes: Mapping[str, str], *arrays: AnyArray) -> dict[str, bytes]:
    """Return arrays as bytes by name, in the order of ``dtypes`` (name -> dtype with byte order)."""
    return {
        name: np.ascontiguousarray(array, dtype).tobytes()
        for (name, dtype), array in zip(dtypes.items(), arrays, strict=True)
    }


def unpack_arrays(dtypes: Mapping[str, str], blobs: Mapping[str, bytes]) -> list[AnyArray]:
    """Return copies of the named arrays in the byte order of this machine, in the order of ``dtypes``."""
    stored = [np.frombuffer(blobs[name], np.dtype(dtype)) for name, dtype in dtypes.items()]
    return [array.astype(array.dtype.newbyteorder("=")) for array in stored]
