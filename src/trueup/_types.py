"""Array types used in annotations, defined once for the whole package."""

from __future__ import annotations

from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

AnyArray = NDArray[Any]
BoolArray = NDArray[np.bool_]
Float32Array = NDArray[np.float32]
FloatArray = NDArray[np.float64]
Int32Array = NDArray[np.int32]
IntArray = NDArray[np.int64]
UInt8Array = NDArray[np.uint8]
UInt16Array = NDArray[np.uint16]
UInt32Array = NDArray[np.uint32]
UInt64Array = NDArray[np.uint64]


class SparkLike(Protocol):
    """A DataFrame of Spark, whose predictions are computed later."""

    @property
    def sparkSession(self) -> Any: ...  # noqa: N802  (the name of Spark)


class DaskLike(Protocol):
    """A DataFrame of Dask, whose predictions are computed later."""

    @property
    def npartitions(self) -> int: ...
