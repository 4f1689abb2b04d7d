"""Patches in a file: the names of groups in the manifest, their numbers in one part for each array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.maps.patches import Patch, Patches
from trueup.calibrators.maps.reading import is_whole, numbers, require, texts

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import AnyArray, FloatArray
    from trueup.data.schema import Schema


ARRAYS = {"low": "<f8", "high": "<f8", "shift": "<f8", "rows": "<i8", "before": "<f8", "observed": "<f8"}
PARTS = {f"patches/{name}": kind for name, kind in ARRAYS.items()} | {"patches/conditions": "<i4", "patches/edges": "<f8"}
LARGEST = 1e150  # more than any score or outcome of ours; so many patches that their shifts overflow no file can hold
CONDITIONS = 2  # the most of a patch; each is a feature and its group, -1 and -1 for none


def write(found: Patches) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the entry of the manifest, and the parts."""
    entry = {
        "link": found.link,
        "edges": [len(one) for one in found.edges],
        "groups": [one.group for one in found.patches],
    }
    arrays: dict[str, AnyArray] = {
        f"patches/{name}": np.array([getattr(one, name) for one in found.patches], kind) for name, kind in ARRAYS.items()
    }
    arrays["patches/conditions"] = np.stack([found.program.feature, found.program.code], axis=-1)
    arrays["patches/edges"] = found.program.edges
    return entry, {name: np.ascontiguousarray(arrays[name], kind).tobytes() for name, kind in PARTS.items()}


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> Patches:
    """Make the patches again; what does not belong together is refused."""
    require(schema.task != "multiclass" and len(schema.prediction) == 1, "the map does not fit")
    require(set(parts) == set(PARTS), "it has parts that it does not speak of")
    link = found["link"]
    require(link == "identity" or (link == "logit" and schema.task == "binary"), "the map does not fit")
    clip = (0.0, 1.0) if link == "identity" and schema.task == "binary" else None
    edges = _edges(found["edges"], schema, numbers(parts["patches/edges"], PARTS["patches/edges"]))
    groups = texts(found["groups"], "groups")
    counts = [one if one >= 0 else len(cut) + 1 for one, cut in zip(schema.levels, edges, strict=True)]
    arrays = {name: numbers(parts[f"patches/{name}"], kind) for name, kind in ARRAYS.items()}
    require(all(len(array) == len(groups) for array in arrays.values()), "its patches are of unequal length")
    _check_numbers(arrays)
    conditions = _conditions(numbers(parts["patches/conditions"], PARTS["patches/conditions"]), len(groups), counts)
    columns = [arrays[name].tolist() for name in ARRAYS]
    patches = tuple(Patch(group, own, *rest) for group, own, *rest in zip(groups, conditions, *columns, strict=True))
    return Patches(link, schema.levels, edges, patches, clip)


def _edges(sizes: Any, schema: Schema, stored: FloatArray) -> tuple[FloatArray, ...]:
    require(isinstance(sizes, list) and len(sizes) == len(schema.levels), "its edges do not fit its features")
    require(all(is_whole(size) and 0 <= size <= len(stored) for size in sizes), "its edges are wrong")
    require(sum(sizes) == len(stored) and bool(np.isfinite(stored).all()), "its edges are wrong")
    found = tuple(np.split(stored, np.cumsum(sizes)[:-1])) if sizes else ()
    for levels, edges in zip(schema.levels, found, strict=True):
        require(bool((np.diff(edges) > 0).all()), "its edges do not ascend")
        require(levels < 0 or not len(edges), "a category has edges")
    return found


def _check_numbers(arrays: Mapping[str, AnyArray]) -> None:
    finite = all((np.abs(arrays[name]) <= LARGEST).all() for name in ("shift", "before", "observed"))
    require(finite and bool((arrays["rows"] >= 0).all()), "a patch is wrong")
    require(bool((arrays["low"] < arrays["high"]).all()), "a patch has an empty score cell")  # NaN is below nothing


def _conditions(stored: AnyArray, patches: int, counts: list[int]) -> list[tuple[tuple[int, int], ...]]:
    """Read the conditions of each patch; ``counts`` is the last group of each feature, that of what is missing."""
    require(len(stored) == patches * CONDITIONS * 2, "its conditions do not fit its patches")
    found = []
    for patch in stored.reshape(patches, CONDITIONS, 2).tolist():
        own = tuple((at, code) for at, code in patch if at != -1)
        require(own == tuple(map(tuple, patch[: len(own)])), "a condition is wrong")
        require(all(0 <= at < len(counts) and 0 <= code <= counts[at] for at, code in own), "a condition names no group")
        require(len({at for at, _ in own}) == len(own), "a feature is asked for twice")
        require(all(code == -1 for _, code in patch[len(own) :]), "a condition is wrong")
        found.append(own)
    return found
