"""Cascades of trees in a file: how many rounds and forests in the manifest, all forests in one part for each array."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.calibrators.losses import THETA, loss_of
from trueup.calibrators.maps.cascade import Cascade, CascadeRound
from trueup.modelfile.checking import are_numbers, is_whole, require
from trueup.modelfile.forests import KINDS, pack_forests, unpack_forests

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup.data.schema import Schema

__all__ = ["read", "write"]


def write(found: Cascade) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the entry of the manifest, and the parts."""
    sizes, parts = pack_forests([forest for one in found.rounds for forest in one.forests])
    cut = iter(sizes)
    rounds = [{"theta": one.theta, "trees": one.trees, "forests": [next(cut) for _ in one.forests]} for one in found.rounds]
    entry: dict[str, Any] = {"link": found.link, "outputs": found.outputs, "rounds": rounds}
    if found.clip is not None:
        entry["clip"] = list(found.clip)
    return entry, parts


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> Cascade:
    """Make the cascade again; what does not belong together is refused."""
    clip = _clip(found, schema)
    links = {loss_of(schema.task).link} if clip is None else {"identity"}
    require(found["link"] in links and found["outputs"] == len(schema.prediction), "the map does not fit")
    require(
        set(parts) == ({f"forests/{name}" for name in KINDS} if found["rounds"] else set()),
        "it has parts that it does not speak of",
    )
    sizes = [size for one in found["rounds"] for size in one["forests"]]
    forests = iter(unpack_forests(sizes, parts, schema.levels, len(schema.prediction)))
    rounds: list[CascadeRound] = []
    for one in found["rounds"]:
        theta = one["theta"]
        require(isinstance(theta, float) and THETA[0] / THETA[1] <= theta <= THETA[1] / THETA[0], "a factor is wrong")
        require(is_whole(one["trees"]) and one["trees"] >= 0 and len(one["forests"]) >= 1, "a round is empty")
        require(not rounds or len(one["forests"]) == len(rounds[0].forests), "rounds differ in their number of cascades")
        rounds.append(CascadeRound(theta, tuple(next(forests) for _ in one["forests"]), one["trees"]))
    return Cascade(found["link"], schema.levels, len(schema.prediction), tuple(rounds), clip)


def _clip(found: Any, schema: Schema) -> tuple[float, float] | None:
    """Read the bounds of trees that add to the prediction itself; only a single prediction has them."""
    if "clip" not in found:
        return None
    bounds = found["clip"]
    require(isinstance(bounds, list) and len(bounds) == 2 and are_numbers(*bounds), "the bounds are wrong")
    require(bounds[0] <= bounds[1] and schema.task != "multiclass", "the bounds are wrong")
    return float(bounds[0]), float(bounds[1])
