"""Cascades of trees in a file: how many rounds and forests in the manifest, all forests in one part for each array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.calibrators.losses import loss_of
from trueup.calibrators.maps.cascade import Cascade
from trueup.calibrators.maps.forests import pack_rounds, unpack_rounds
from trueup.calibrators.maps.reading import are_numbers, require

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup.data.schema import Schema


def write(found: Cascade) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the entry of the manifest, and the parts."""
    rounds, parts = pack_rounds(found.rounds)
    entry: dict[str, Any] = {"link": found.link, "outputs": found.outputs, "rounds": rounds}
    if found.clip is not None:
        entry["clip"] = list(found.clip)
    return entry, parts


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> Cascade:
    """Make the cascade again; what does not belong together is refused."""
    clip = _clip(found, schema)
    links = {loss_of(schema.task).link} if clip is None else {"identity"}
    require(found["link"] in links and found["outputs"] == len(schema.prediction), "the map does not fit")
    rounds = unpack_rounds(found["rounds"], parts, schema.levels, len(schema.prediction))
    return Cascade(found["link"], schema.levels, len(schema.prediction), rounds, clip)


def _clip(found: Any, schema: Schema) -> tuple[float, float] | None:
    """Read the bounds of trees that add to the prediction itself; only a single prediction has them."""
    if "clip" not in found:
        return None
    bounds = found["clip"]
    require(isinstance(bounds, list) and len(bounds) == 2 and are_numbers(*bounds), "the bounds are wrong")
    require(bounds[0] <= bounds[1] and schema.task != "multiclass", "the bounds are wrong")
    return float(bounds[0]), float(bounds[1])
