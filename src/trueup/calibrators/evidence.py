"""Held-out rows that a model file keeps on request: outcomes, scores before and after, weights and clusters."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.model import is_integer, require
from trueup.data.values import MAX_WEIGHT, SUM_TOLERANCE
from trueup.errors import ArgumentError
from trueup.metrics.inputs import Scored

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import AnyArray, FloatArray, UInt64Array
    from trueup.data.table import Schema

PREFIX = "evidence/"
LABELS, NUMBERS, CLUSTERS = "|u1", "<f8", "<u4"
DTYPES = {"y": (LABELS, NUMBERS), "p": (NUMBERS,), "w": (NUMBERS,), "before": (NUMBERS,), "cluster": (CLUSTERS,)}
SCORES = ("p", "before")  # with a number per class
MAX_LABELS = 256  # classes that a byte can number
MAX_ROWS = 2**32  # clusters are numbered in 32 bits


@dataclass(frozen=True, eq=False)
class HeldOutEvidence:
    """Outcomes, held-out corrected scores and weights; the scores before the correction, and the cluster of each row."""

    scored: Scored
    before: FloatArray | None = None
    cluster: UInt64Array | None = None

    @classmethod
    def of(cls, fix: Any) -> HeldOutEvidence:
        """Return the evidence of a fitted calibrator or of a loaded model; raise if it has none."""
        scored = getattr(fix, "held_out_", None)
        if scored is None:
            raise ArgumentError(
                f"this {type(fix).__name__} has no held-out rows to keep as evidence",
                hint="fit it with stopping=tu.CrossValidation(5), to a binary outcome or to classes; save the fitted "
                "calibrator itself",
                parameter="evidence",
            )
        return cls(Scored(*scored), fix.held_out_before_, fix.held_out_cluster_)

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return an entry of the JSON manifest, and compressed arrays by name."""
        y, p, w = self.scored
        labels = np.arange(2.0 if p.ndim == 1 else min(p.shape[1], MAX_LABELS))
        arrays: dict[str, AnyArray] = {"y": y.astype(LABELS) if np.isin(y, labels).all() else y, "p": p}
        if (w != 1).any():
            arrays["w"] = w
        if self.before is not None:
            arrays["before"] = self.before
        if self.cluster is not None:  # numbered in the order of the hashes, so that sums over clusters stay the same
            arrays["cluster"] = np.unique(self.cluster, return_inverse=True)[1].ravel().astype(CLUSTERS)
        kinds = {name: array.dtype.newbyteorder("<").str for name, array in arrays.items()}
        return {"rows": len(y), "arrays": kinds}, {
            PREFIX + name: compress(np.ascontiguousarray(array, kinds[name]).ravel()) for name, array in arrays.items()
        }

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> HeldOutEvidence:
        """Restore the evidence from what `pack` returned; raise FileContentError if it is invalid."""
        rows, kinds = entry["rows"], entry["arrays"]
        require(schema.task != "regression", "evidence is not kept of real outcomes")
        several = schema.task == "multiclass"
        classes = len(schema.prediction) if several else 1
        require(is_integer(rows) and 0 < rows < MAX_ROWS, "the number of evidence rows is invalid")
        listed = isinstance(kinds, dict) and {"y", "p"} <= set(kinds) <= set(DTYPES)
        require(listed and set(blobs) == {PREFIX + name for name in kinds}, "the arrays of the evidence do not fit")
        require(all(kind in DTYPES[name] for name, kind in kinds.items()), "an array of the evidence has another type")
        arrays = {
            name: decompress(blobs[PREFIX + name], np.dtype(kind), rows * (classes if name in SCORES else 1))
            for name, kind in kinds.items()
        }
        y, p, before = arrays["y"].astype(np.float64), arrays["p"], arrays.get("before")
        if several:
            require(bool(((y >= 0) & (y < classes) & (y == np.floor(y))).all()), "evidence has an unknown class")
            p, before = p.reshape(rows, classes), None if before is None else before.reshape(rows, classes)
            for values in (p,) if before is None else (p, before):
                require(bool((np.abs(values.sum(axis=1) - 1) <= SUM_TOLERANCE).all()), "evidence does not add up to 1")
        for values in (p if several else y, p, p if before is None else before):
            require(bool(((values >= 0) & (values <= 1)).all()), "evidence is not between 0 and 1")
        w = arrays.get("w", np.ones(rows))
        require(bool(((w >= 1 / MAX_WEIGHT) & (w <= MAX_WEIGHT)).all()), "a weight of the evidence is invalid")
        cluster = arrays.get("cluster")
        require(cluster is None or int(cluster.max()) < rows, "a cluster of the evidence is invalid")
        return cls(Scored(y, p, w), before, None if cluster is None else cluster.astype(np.uint64))


def compress(array: AnyArray) -> bytes:
    """Compress an array, all first bytes of its numbers first: leading bytes are alike."""
    return zlib.compress(array.view(np.uint8).reshape(-1, array.dtype.itemsize).T.tobytes(), 9)


def decompress(blob: bytes, dtype: np.dtype[Any], rows: int) -> AnyArray:
    """Return the array of ``rows`` numbers; a blob that would become larger is not read to its end."""
    expander, size = zlib.decompressobj(), rows * dtype.itemsize
    try:
        content = expander.decompress(blob, size + 1)
    except zlib.error:
        content = b""
    require(len(content) == size and expander.eof and not expander.unused_data, "the evidence is damaged")
    shuffled = np.frombuffer(content, np.uint8).reshape(dtype.itemsize, rows).T
    return np.ascontiguousarray(shuffled).view(dtype)[:, 0].astype(dtype.newbyteorder("="))
