"""Level sets in a file: edges and learners of all rounds one after another, then the trees or the lines."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.maps.forests import KINDS, pack_forests, unpack_forests
from trueup.calibrators.maps.levels import LevelSets, LineSlopes, Scale
from trueup.calibrators.maps.reading import are_numbers, is_whole, numbers, require
from trueup.kernels.levels import NONE

if TYPE_CHECKING:
    from collections.abc import Mapping

    from trueup._types import AnyArray
    from trueup.data.schema import Schema

ROUNDS = {"levels/edges_at": "<i8", "levels/edges": "<f8", "levels/learner": "<i4"}
LINES = {"lines/place": "<i8", "lines/centre": "<f8", "lines/scale": "<f8", "lines/slopes": "<f8"}
MOST_GRID = 1 << 30


def write(found: LevelSets) -> tuple[dict[str, Any], dict[str, bytes]]:
    """Give the entry of the manifest, and the parts."""
    arrays: dict[str, AnyArray] = dict(zip(ROUNDS, (found.edges_at, found.edges, found.learner), strict=True))
    entry: dict[str, Any] = {"scale": asdict(found.scale), "models": found.models, "rounds": found.rounds}
    kinds, parts = dict(ROUNDS), dict[str, bytes]()
    if isinstance(found.learners, LineSlopes):
        own = found.learners
        arrays |= dict(zip(LINES, (own.place, own.centre, own.scale, own.slopes.ravel()), strict=True))
        kinds |= LINES
        entry["learners"] = "lines"
    else:
        sizes, parts = pack_forests([found.learners])
        entry |= {"learners": "trees", "forest": sizes[0]}
    return entry, parts | {name: np.ascontiguousarray(arrays[name], kind).tobytes() for name, kind in kinds.items()}


def read(found: Any, schema: Schema, parts: Mapping[str, bytes]) -> LevelSets:
    """Make the map again; what would send the scorer outside its arrays is refused."""
    require(schema.task != "multiclass" and found["learners"] in ("trees", "lines"), "the map does not fit")
    others = set(LINES) if found["learners"] == "lines" else {f"forests/{name}" for name in KINDS}
    require(set(parts) == {*ROUNDS, *others}, "it has parts that it does not speak of")
    models, rounds = found["models"], found["rounds"]
    require(is_whole(models) and is_whole(rounds) and models >= 1 and rounds >= 0, "it has no rounds")
    require(rounds > 0 or models == 1, "it has models without rounds")
    edges_at, edges, learner = (numbers(parts[name], kind) for name, kind in ROUNDS.items())
    require(len(edges_at) == models * rounds + 1 and edges_at[0] == 0, "its rounds are wrong")
    steps = np.diff(edges_at)
    require(bool((steps >= 0).all()) and edges_at[-1] == len(edges), "its edges are wrong")
    rising = np.ones(len(edges), bool)
    rising[1:] = np.diff(edges) > 0
    rising[edges_at[:-1][steps > 0]] = True  # where a round begins, edges begin anew
    require(bool(np.isfinite(edges).all() and rising.all()), "its edges do not ascend")
    require(len(learner) == len(edges) + models * rounds, "its learners do not fit its levels")
    learners: Any = _lines(parts, schema) if found["learners"] == "lines" else None
    if learners is None:
        learners = unpack_forests([found["forest"]], parts, schema.levels, 1)[0]
        require(bool((learners.feature < len(schema.levels)).all()), "a tree tests the prediction")
    many = len(learners.slopes) if isinstance(learners, LineSlopes) else len(learners)
    require(np.array_equal(learner[learner != NONE], np.arange(many)), "its levels and its learners do not belong together")
    scale = _scale(found["scale"], schema)
    return LevelSets(scale, schema.levels, models, rounds, edges_at, edges, learner, learners)


def _scale(found: Any, schema: Schema) -> Scale:
    scale = Scale(**found)
    require(are_numbers(scale.low, scale.high, scale.offset, scale.unit, scale.rate, scale.hold), "its scale is wrong")
    require(scale.low <= scale.high and scale.unit > 0, "its scale is wrong")
    require(0 < scale.rate <= 1 and 0 <= scale.hold <= 1, "its scale is wrong")
    ends = (scale.offset + float(scale.unit) * end for end in (scale.low, scale.high))
    require(are_numbers(*ends), "its scale is wrong")
    plain = (scale.offset, scale.unit, scale.low, scale.high) == (0, 1, 0, 1)
    require(schema.task != "binary" or plain, "its scores are no probabilities")
    require(is_whole(scale.grid) and 0 <= scale.grid <= MOST_GRID, "its grid is wrong")
    require(not scale.grid or (scale.low, scale.high) == (0, 1), "its grid is wrong")
    alone = not schema.prediction
    require(are_numbers(scale.start) if alone else scale.start is None, "where its scores begin is wrong")
    require(scale.start is None or scale.low <= scale.start <= scale.high, "where its scores begin is wrong")
    return scale


def _lines(parts: Mapping[str, bytes], schema: Schema) -> LineSlopes:
    place, centre, scale, flat = (numbers(parts[name], kind) for name, kind in LINES.items())
    sizes = [many + 1 if many >= 0 else 2 for many in schema.levels]
    width = 1 + sum(sizes)
    expected = (1 + np.cumsum([0, *sizes]))[: len(sizes)]
    require(np.array_equal(place, expected), "its lines do not fit the features")
    require(len(centre) == len(scale) == len(sizes), "its lines do not fit the features")
    require(len(flat) % width == 0, "its lines are cut off")
    finite = np.isfinite(centre).all() and np.isfinite(scale).all() and np.isfinite(flat).all()
    require(bool(finite and (scale > 0).all()), "its lines hold no numbers")
    return LineSlopes(place, centre, scale, flat.reshape(-1, width))
