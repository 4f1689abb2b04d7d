"""The map of MCGrad and DepthTwo, rounds of boosted trees: how it scores rows, explains itself, and is stored.

Rounds that are completed during a fit can be saved to a checkpoint, which is validated like a model file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup import storage
from trueup.calibrators.explain import tested_together
from trueup.calibrators.floors import OLD_FLOORS, Floors
from trueup.calibrators.history import CapacityTrial
from trueup.calibrators.model import (
    FileContentError,
    Map,
    are_finite,
    check_fields,
    is_integer,
    pack_floors,
    require,
    unpack_floors,
)
from trueup.calibrators.row_explanation import (
    CLIPPED,
    ConditionSum,
    Contribution,
    EffectSums,
    RowExplanation,
    TreeWalker,
    explain_change,
)
from trueup.calibrators.stopping import apply_link, count_rounds, task_loss
from trueup.data.columns import to_jsonable
from trueup.errors import ArgumentError, FileError
from trueup.kernels.threads import Workers
from trueup.kernels.trees import (
    IDENTITY,
    LOGIT,
    MAX_DEPTH,
    SOFTMAX,
    CascadeProgram,
    Forest,
    Stage,
    build,
    constant_forest,
    join_forests,
    move_scores,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.data.table import Schema, Table

LINKS = {"identity": IDENTITY, "logit": LOGIT, "softmax": SOFTMAX}
CHUNK_ROWS = 8192  # rows copied and scored by one call
# The arrays of a forest in a file; all forests of a map are concatenated array by array.
TREE_DTYPES = {"root": "<i4", "output": "<i4"}
NODE_DTYPES = {
    "feature": "<i4", "threshold": "<f8", "left": "<i4", "right": "<i4", "missing_left": "|u1", "words_at": "<i4",
    "words_in": "<i4",
}  # fmt: skip
LEFT_SHARE, SHARE_DTYPE = "forests/left_share", "|u1"  # an array that older files do not have: one byte per node
FOREST_DTYPES = {**TREE_DTYPES, **NODE_DTYPES, "words": "<u4", "value": "<f8"}
RESCALING = "rescaling (theta)"
NO_CONDITION = "every row"
FACTOR_BOUNDS = (0.02, 50.0)  # of the factor of a line
STORED_BOUNDS = (1e-9, 50.0)  # of a factor in a file; mcgrad finds the factors of its rounds between 1e-8 and 50
MIN_CLIPPING = 1e-12  # of a prediction: smaller differences are rounding
CHECKPOINT, CHECKPOINT_MANIFEST = "trueup checkpoint", "checkpoint.json"  # the kind of file, and its manifest
CONTENT_ERRORS = (KeyError, ValueError, TypeError, AttributeError, IndexError, RecursionError, OverflowError)
MAX_SHOWN = 40  # characters of a value in a message
DIGEST_ROWS = 1 << 20  # rows hashed at a time


@dataclass(frozen=True, eq=False)
class CascadeRound:
    """One round: a forest and a factor theta per cascade (each model of a cross-validation is one).

    A round without trees is a line: its forests add a constant.
    """

    thetas: tuple[float, ...]
    forests: tuple[Forest, ...]
    trees: int  # of each forest per output
    trials: tuple[CapacityTrial, ...] = ()  # capacities that were compared before this round; not stored in models
    more: tuple[Forest, ...] = ()  # further trees, which are not evaluated on held-out rows; see `joined`
    floors: Floors = OLD_FLOORS  # of the first round: the distances that predictions keep from 0 and 1 before the link
    gains: tuple[float, ...] = ()  # of the splits on each feature, then on each score; not stored in models
    losses: tuple[float, ...] = ()  # held-out loss after each tree, before the factor; not stored
    p_value: float | None = None  # of the test that found a line to be needed; not stored in models

    def joined(self) -> CascadeRound:
        """Return the round as a model has it: all trees in one forest per cascade, and nothing of how it was chosen."""
        pairs = zip(self.forests, self.more, strict=True) if self.more else ((forest,) for forest in self.forests)
        forests = tuple(join_forests(pair) for pair in pairs)
        return replace(self, forests=forests, more=(), trials=(), gains=(), losses=(), p_value=None)

    @property
    def is_line(self) -> bool:
        """Return whether the round is a line, an intercept and a factor of the score."""
        return self.trees == 0


@dataclass(frozen=True, eq=False)
class Cascade(Map):
    """Rounds of ``F = theta * (F + trees(features, F))``, from F = link(prediction); several cascades are averaged."""

    kind = "cascade"

    link: str
    levels: tuple[int, ...]  # number of levels of each feature in the order of the schema; -1 for a numeric feature
    outputs: int  # number of prediction columns
    rounds: tuple[CascadeRound, ...]
    clip: tuple[float, float] | None = None  # lowest and highest prediction, for trees added to the prediction itself

    @property
    def steps(self) -> int:
        """Return the number of rounds."""
        return len(self.rounds)

    @property
    def cascades(self) -> int:
        """Return the number of cascades that are averaged."""
        return len(self.rounds[0].forests) if self.rounds else 1

    @property
    def trees(self) -> int:
        """Return the number of trees of all rounds and cascades."""
        return sum(len(forest) for round_ in self.rounds for forest in round_.forests)

    @property
    def cells(self) -> int:
        """Return the number of cells of the lookup tables that trees are compiled to; 0 if trees are traversed."""
        return len(self.program.values) if self.rounds else 0

    @property
    def floors(self) -> Floors:
        """Return the distances that probabilities keep from 0 and 1 before the link."""
        return self.rounds[0].floors if self.rounds else OLD_FLOORS

    @cached_property
    def program(self) -> CascadeProgram:
        """Compile the rounds to arrays for the scoring kernel; rounds that can be joined into one forest are."""
        joined = self._joined()
        stages = [
            Stage(cascade, theta, forest)
            for round_ in self.rounds
            for cascade, (theta, forest) in enumerate(zip(round_.thetas, round_.forests, strict=True))
        ]
        cascades = self.cascades if joined is None else 1
        stages = stages if joined is None else [joined]
        return build(stages, self.levels, self.outputs, cascades, LINKS[self.link], self.floors)

    def _joined(self) -> Stage | None:
        """Join all cascades into one stage if they have one round of trees; None if they have more.

        The mean of theta_i (F + trees_i) over n cascades is theta (F + sum of theta_i trees_i / (n theta)), theta the mean
        of the factors. A line before it, F' = a_i (F + c_i), becomes part of the stage: trees test F' <= t where
        F <= t / a_i - c_i, and the factor of F is the mean of theta_i a_i.
        """
        if len(self.rounds) > 2 or (len(self.rounds) == 2 and not self.rounds[0].is_line):
            return None
        last, count = self.rounds[-1], self.cascades
        thetas = np.array(last.thetas)
        if len(self.rounds) == 1 and not last.is_line:
            factor = float(thetas.mean())
            pairs = zip(last.forests, thetas, strict=True)
            return Stage(0, factor, join_forests([forest.scaled(theta / (count * factor)) for forest, theta in pairs]))
        line, trees = self.rounds[0], last.forests if len(self.rounds) == 2 else ()
        slopes, constants = np.array(line.thetas), np.array([forest.value for forest in line.forests])
        after = thetas if trees else np.ones(count)
        factor = float((after * slopes).mean())
        intercept = constant_forest(((after * slopes)[:, None] * constants).mean(axis=0) / factor)
        moved = [
            move_scores(forest, len(self.levels), *of).scaled(theta / (count * factor))
            for forest, theta, *of in zip(trees, thetas, slopes, constants, strict=bool(trees))
        ]
        return Stage(0, factor, join_forests([intercept, *moved]))

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return corrected predictions, (n,) or (n, outputs); ``columns`` are the features in the order of the schema."""
        if not self.rounds:
            return prediction.copy()
        program, features = self.program, list(columns)
        before = np.ascontiguousarray(prediction.reshape(len(prediction), self.outputs))
        after = np.empty(before.shape)

        def score_chunk(start: int) -> None:
            rows = slice(start, start + CHUNK_ROWS)
            P, out = before[rows], after[rows]
            program.score(stack_columns(features, rows, len(P)), P, out, len(before))

        (workers or Workers()).map(score_chunk, range(0, len(before), CHUNK_ROWS))
        return self._clipped(after).reshape(prediction.shape)

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return the corrected prediction of one row, given as codes and numbers in the order of the schema."""
        P: FloatArray = np.array([prediction], np.float64)
        if self.rounds:
            self.program.score(np.array(row, np.float64).reshape(-1, 1), P, P)
            P = self._clipped(P)
        return np.asarray(P[0])

    def _clipped(self, scores: FloatArray) -> FloatArray:
        return scores if self.clip is None else np.clip(scores, *self.clip)

    def stages(self, columns: Iterable[AnyArray], prediction: FloatArray) -> Iterator[FloatArray]:
        """Yield the predictions of all rows after 0, 1, 2, ... rounds."""
        features = list(columns)
        for count in range(len(self.rounds) + 1):
            yield replace(self, rounds=self.rounds[:count]).apply(features, prediction)

    def describe(self) -> str:
        """Return the numbers of rounds, trees and table cells as text."""
        cells = "1 table cell" if self.cells == 1 else f"{self.cells:,} table cells"
        tables = cells if self.cells or not self.trees else "traversed"
        rounds = count_rounds(self.steps, line=bool(self.rounds) and self.rounds[0].is_line)
        return f"{rounds} ({self.trees:,} trees, {tables})"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one row: follow it down every tree, and sum leaf values per set of tested features.

        F_t = theta_t (F + trees): rounds change F by what their trees add, and by (theta_t - 1)(F + trees).
        """
        low, high = self.floors
        start, given = (apply_link(np.array([prediction]), self.link, floors)[0] for floors in (self.floors, None))
        conditions: dict[tuple[int, tuple[int, ...]], ConditionSum] = defaultdict(ConditionSum)
        sums = EffectSums(schema, row, prediction)
        rescaling, constants = np.zeros(self.outputs), np.zeros(self.outputs)
        states, means = [start.copy() for _ in range(self.cascades)], [np.array(prediction, np.float64)]
        # F_t = theta_t (F + trees): what trees add is multiplied by the factors from their round on, the score by all.
        factors = np.cumprod([step.thetas for step in self.rounds[::-1]], axis=0)[::-1]
        for number, step in enumerate(self.rounds):
            for place, forest in enumerate(step.forests):
                values, added, weight = [*row, *states[place].tolist()], np.zeros(self.outputs), 1 / len(step.forests)
                walker, factor = TreeWalker(forest), float(factors[number, place]) / len(step.forests)
                for root, output in zip(forest.root.tolist(), forest.output.tolist(), strict=True):
                    path, leaf = walker.follow(root, values)
                    if path:
                        sums.add_tree(walker.divide(root, values), leaf * factor, output)
                    else:  # a constant, such as the intercept of a line
                        constants[output] += leaf * factor
                    names = tuple(sorted({feature for feature, _, _ in path}))
                    # Later rounds test the score after earlier ones: a condition on it is a different condition.
                    condition = conditions[number if names and names[-1] >= len(row) else 0, names]
                    condition.narrow(path, place)
                    condition.sums[output] += leaf * weight
                    added[output] += leaf
                unscaled = states[place] + added
                rescaling += (step.thetas[place] - 1) * unscaled / len(step.forests)
                states[place] = step.thetas[place] * unscaled
            means.append(np.mean(states, axis=0))
        labels = schema.classes if self.outputs > 1 else ("",)
        contributions = []
        for (number, names), condition in conditions.items():
            text = condition.describe(schema, row, names, self.link, number, means[number]) or NO_CONDITION
            contributions += [Contribution(text, change, labels[output]) for output, change in condition.sums.items()]
        if any(theta != 1 for step in self.rounds for theta in step.thetas):
            contributions += [Contribution(RESCALING, float(c), label) for c, label in zip(rescaling, labels, strict=True)]
        if (start != given).any():
            text = f"probabilities are at least {low:g}"
            if self.outputs == 1:
                text += " from 0 and 1" if low == high else f" from 0 and {high:g} from 1"
            contributions += [
                Contribution(text, float(c), label) for c, label in zip(start - given, labels, strict=True) if c
            ]
        end, after = np.mean(states, axis=0), self.apply_one(list(row), list(prediction))
        if self.clip is not None and abs(end[0] - after[0]) > MIN_CLIPPING:
            contributions.append(Contribution(CLIPPED.format(*self.clip), float(after[0] - end[0])))
            sums.add((), float(after[0] - end[0]))
            end = after
        scaled = float(factors[0].mean() - 1) * start if self.rounds else 0.0
        sums.add_scores(constants + scaled + start - given)
        return explain_change(self.link, prediction, after, contributions, sums, (end - given).tolist())

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return sets of one or two features that one path of a tree tests, as `tested_together` sorts them."""
        return tested_together([forest for step in self.rounds for forest in step.forests], len(self.levels))

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        rounds, blobs = pack_rounds(self.rounds)
        entry: dict[str, Any] = {"link": self.link, "outputs": self.outputs, "rounds": rounds}
        if self.clip is not None:
            entry["clip"] = list(self.clip)
        return entry, blobs

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> Cascade:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        clip = None
        if "clip" in entry:
            bounds = entry["clip"]
            require(isinstance(bounds, list) and len(bounds) == 2 and are_finite(*bounds), "the bounds are invalid")
            require(bounds[0] <= bounds[1] and schema.task != "multiclass", "the bounds are invalid")
            clip = (float(bounds[0]), float(bounds[1]))
        link = task_loss(schema.task).link if clip is None else "identity"
        outputs = len(schema.prediction)
        require(entry["link"] == link and entry["outputs"] == outputs, "the map does not fit the task")
        return cls(link, schema.levels, outputs, unpack_rounds(entry["rounds"], blobs, schema.levels, outputs), clip)


def stack_columns(columns: Sequence[AnyArray], rows: slice, count: int) -> FloatArray:
    """Return the slice ``rows``, ``count`` rows, of all columns as a matrix of floats, shape (columns, count)."""
    X = np.empty((len(columns), count))
    for index, column in enumerate(columns):
        X[index] = column[rows]
    return X


def pack_forests(forests: Sequence[Forest]) -> tuple[list[dict[str, int]], dict[str, bytes]]:
    """Return per forest the lengths of its arrays by name; and per array name the bytes of all forests, concatenated."""
    arrays = [forest.arrays() for forest in forests]
    blobs = {
        f"forests/{name}": b"".join(np.ascontiguousarray(forest[name], dtype).tobytes() for forest in arrays)
        for name, dtype in FOREST_DTYPES.items()
        if arrays
    }
    if any(len(forest.left_share) for forest in forests):
        blobs[LEFT_SHARE] = b"".join(forest.left_shares().tobytes() for forest in forests)
    return [{name: len(forest[name]) for name in FOREST_DTYPES} for forest in arrays], blobs


def unpack_forests(sizes: Sequence[Any], blobs: Mapping[str, bytes], levels: tuple[int, ...], outputs: int) -> list[Forest]:
    """Restore forests with arrays of the lengths ``sizes``; raise FileContentError if they are invalid or values remain."""
    if not sizes:
        return []
    stored = {name: np.frombuffer(blobs[f"forests/{name}"], np.dtype(dtype)) for name, dtype in FOREST_DTYPES.items()}
    shares, nodes = np.frombuffer(blobs.get(LEFT_SHARE, b""), SHARE_DTYPE), 0
    require(LEFT_SHARE not in blobs or len(shares) == len(stored["feature"]), "the shares of rows do not match the nodes")
    begin = dict.fromkeys(FOREST_DTYPES, 0)
    forests = []
    for index, lengths in enumerate(sizes):
        place = f"forest {index}"
        require(isinstance(lengths, dict) and set(lengths) == set(FOREST_DTYPES), f"{place} has the wrong arrays")
        arrays: dict[str, AnyArray] = {}
        for name, length in lengths.items():
            end = begin[name] + length if is_integer(length) and length >= 0 else -1
            require(begin[name] <= end <= len(stored[name]), f"{place} is longer than the stored arrays")
            arrays[name] = stored[name][begin[name] : end].astype(stored[name].dtype.newbyteorder("="))
            begin[name] = end
        for names in (TREE_DTYPES, NODE_DTYPES):
            require(len({len(arrays[name]) for name in names}) == 1, f"{place} has arrays of unequal length")
        own, nodes = slice(nodes, nodes + len(arrays["feature"])), nodes + len(arrays["feature"])
        forests.append(Forest(**arrays, left_share=shares[own].copy()))
        check_forest(forests[-1], place, levels, outputs)
    require(all(begin[name] == len(array) for name, array in stored.items()), "it has trees that belong to no round")
    return forests


def check_forest(forest: Forest, place: str, levels: tuple[int, ...], outputs: int) -> None:
    """Raise FileContentError, naming ``place``, for arrays that would send the scorer out of bounds or into a loop."""
    nodes, leaves = len(forest.feature), len(forest.value)
    links = np.concatenate([forest.root, forest.left, forest.right]).astype(np.int64)
    # Every node and every leaf has exactly one parent, and a node comes after its parent: there are no cycles.
    targets = np.where(links >= 0, links, nodes + ~links)
    require(bool((links < nodes).all() and (~links < leaves).all()), f"{place} has a link out of bounds")
    require(len(targets) == nodes + leaves and len(np.unique(targets)) == len(targets), f"{place} is not made of trees")
    parents = np.arange(nodes)
    for child in (forest.left, forest.right):
        require(bool(((child < 0) | (child > parents)).all()), f"{place} has a tree with a cycle")
    front = forest.root[forest.root >= 0]
    for _ in range(MAX_DEPTH):
        children = np.concatenate([forest.left[front], forest.right[front]])
        front = children[children >= 0]
    require(not len(front), f"{place} has a tree deeper than {MAX_DEPTH}")
    is_categorical = np.array([*(level >= 0 for level in levels), *[False] * outputs], bool)
    known = (forest.feature >= 0) & (forest.feature < len(is_categorical))
    require(bool(known.all()), f"{place} tests a feature that does not exist")
    categorical = forest.words_at >= 0
    require(np.array_equal(categorical, is_categorical[forest.feature]), f"{place} tests a feature as the wrong type")
    ends = forest.words_at.astype(np.int64) + forest.words_in
    require(
        bool(((forest.words_in >= 0) & (~categorical | (ends <= len(forest.words)))).all()),
        f"{place} has a category set out of bounds",
    )
    require(
        bool(((forest.output >= 0) & (forest.output < outputs)).all()), f"{place} adds to an output that does not exist"
    )
    require(
        bool(np.isfinite(forest.value).all() and not np.isnan(forest.threshold).any()),
        f"{place} has values that are not finite",
    )


def pack_rounds(rounds: Sequence[CascadeRound]) -> tuple[list[dict[str, Any]], dict[str, bytes]]:
    """Return a JSON entry per round, and the arrays of all forests as bytes by name."""
    sizes, blobs = pack_forests([forest for round_ in rounds for forest in (*round_.forests, *round_.more)])
    size = iter(sizes)
    entries = [
        {
            "theta": round_.thetas[0] if len(set(round_.thetas)) == 1 else list(round_.thetas),
            "trees": round_.trees,
            "forests": [next(size) for _ in round_.forests],
            **({"more": [next(size) for _ in round_.more]} if round_.more else {}),
            **pack_floors(round_.floors),
            **({"capacities": [asdict(trial) for trial in round_.trials]} if round_.trials else {}),
            **({"gains": list(round_.gains)} if round_.gains else {}),
            **({} if round_.p_value is None else {"p_value": round_.p_value}),
        }
        for round_ in rounds
    ]
    return entries, blobs


def unpack_rounds(
    entries: Any, blobs: Mapping[str, bytes], levels: tuple[int, ...], outputs: int
) -> tuple[CascadeRound, ...]:
    """Restore the rounds from what `pack_rounds` returned; raise FileContentError if it is invalid."""
    known = {f"forests/{name}" for name in FOREST_DTYPES} if entries else set()
    optional = {LEFT_SHARE} if entries else set()
    require(known <= set(blobs) <= known | optional, "it has arrays that the manifest does not list")
    sizes = [size for entry in entries for size in (*entry["forests"], *entry.get("more", ()))]
    forests = iter(unpack_forests(sizes, blobs, levels, outputs))
    low, high = STORED_BOUNDS
    rounds: list[CascadeRound] = []
    for entry in entries:
        require(is_integer(entry["trees"]) and entry["trees"] >= 0 and len(entry["forests"]) >= 1, "a round is empty")
        require(not rounds or len(entry["forests"]) == len(rounds[0].forests), "rounds differ in their number of cascades")
        own, more = (tuple(next(forests) for _ in entry.get(name, ())) for name in ("forests", "more"))
        require(not more or len(more) == len(own), "a round has forests that belong to no cascade")
        thetas = entry["theta"] if isinstance(entry["theta"], list) else [entry["theta"]] * len(own)
        valid = len(thetas) == len(own) and all(isinstance(theta, float) and low <= theta <= high for theta in thetas)
        require(valid, "the factor of a round is invalid")
        is_constant = all(not len(forest.feature) and len(forest.root) == outputs for forest in own)
        require(entry["trees"] > 0 or is_constant, "a line is invalid")
        floors = unpack_floors({"floors": [entry["floor"]] * 2} if "floor" in entry else entry)
        require(floors == OLD_FLOORS or not rounds, "a later round has floors")
        trials = tuple(CapacityTrial(**trial) for trial in entry.get("capacities", ()))
        check_fields(*trials)
        require(not trials or sum(trial.chosen for trial in trials) == 1, "no capacity is chosen")
        gains = tuple(entry.get("gains", ()))
        valid = not gains or (len(gains) == len(levels) + outputs and are_finite(*gains) and min(gains) >= 0)
        require(valid, "the gains of a round are invalid")
        p_value = entry.get("p_value")
        require(p_value is None or (are_finite(p_value) and 0 <= p_value <= 1), "the test of a line is invalid")
        rounds.append(CascadeRound(tuple(thetas), own, entry["trees"], trials, more, floors, gains, p_value=p_value))
    return tuple(rounds)


class Checkpoint:
    """Completed rounds of one fit, in a file that is always complete.

    The fingerprint identifies the fit by its parameters and rows (`fingerprint_table`); the versions of trueup and LightGBM
    are added. Trees are validated against its ``schema``, and their number per round against ``trees``.
    """

    def __init__(self, path: str | os.PathLike[str], fingerprint: Mapping[str, Any]) -> None:
        self.path, self._schema = Path(path), fingerprint["schema"]
        # The names of outcome, weight and cluster do not matter: they may be arrays. There may be millions of levels.
        plain = asdict(replace(self._schema, outcome=None, weight=None, cluster=None))
        schema = hashlib.sha256(json.dumps(plain, sort_keys=True).encode("ascii")).hexdigest()
        versions = {"version": version("trueup"), "LightGBM": version("lightgbm")}
        self._fingerprint = to_jsonable({**fingerprint, "schema": schema, **versions})

    def rounds(self, cascades: int) -> tuple[CascadeRound, ...]:
        """Return the rounds in the file, each of ``cascades`` forests; create it, so that an invalid path fails now."""
        rounds = self._read(cascades) if os.path.exists(self.path) else ()  # noqa: PTH110  (False in unreadable directories)
        self.keep(rounds)
        return rounds

    def keep(self, rounds: Sequence[CascadeRound]) -> None:
        """Write all ``rounds`` completed so far to the file."""
        entries, blobs = pack_rounds(rounds)
        manifest = {"format": 1, "fingerprint": self._fingerprint, "rounds": entries}
        text = json.dumps(manifest, sort_keys=True, allow_nan=False)
        storage.write(self.path, {CHECKPOINT_MANIFEST: text.encode("ascii"), **blobs}, kind=CHECKPOINT)

    def done(self) -> None:
        """Delete the file after a successful fit; if that fails, the file does no harm."""
        with contextlib.suppress(OSError):
            self.path.unlink()

    def _read(self, cascades: int) -> tuple[CascadeRound, ...]:
        blobs, current = storage.read(self.path, kind=CHECKPOINT), self._fingerprint
        try:
            manifest = json.loads(blobs.pop(CHECKPOINT_MANIFEST))
            require(manifest["format"] == 1, "it is of another version of trueup")
            stored = manifest["fingerprint"]
            require(isinstance(stored, dict), "it does not identify its fit")
            if stored == current:
                outputs = max(len(self._schema.prediction), 1)
                rounds = unpack_rounds(manifest["rounds"], blobs, self._schema.levels, outputs)
                require(all(item.trees <= stored["trees"] for item in rounds), "a round has too many trees")
                complete = all(len(item.forests) == cascades for item in rounds)
                require(complete, "it has another number of folds")
                return rounds
        except (FileContentError, *CONTENT_ERRORS) as error:
            reason = error if isinstance(error, FileContentError) else "its content is not valid"
            raise FileError(f"cannot read {self.path}: {reason}", hint="remove it, and fit from the start") from None
        differences = []
        for name in sorted({*stored, *current}, key=str):
            if name in stored and name in current and stored[name] == current[name]:
                continue
            values = [json.dumps(side[name]) if name in side else "nothing" for side in (stored, current)]
            shown = f" ({values[0]} there, {values[1]} here)" if max(map(len, values)) <= MAX_SHOWN else ""
            differences.append(f"{'columns and levels' if name == 'schema' else name[:MAX_SHOWN]}{shown}")
        raise ArgumentError(
            f"{self.path} has completed rounds of another fit: it differs in {', '.join(differences)}",
            hint="to resume, pass the same rows and parameters; to start again, remove the file or name another",
        )


def fingerprint_table(table: Table) -> dict[str, Any]:
    """Return the schema and the number of rows of a Table, and digests of its columns."""
    return {
        "schema": table.schema,
        "rows": len(table),
        "features": digest_arrays(*(table.columns[feature.name] for feature in table.schema.features)),
        **{name: digest_arrays(getattr(table, name)) for name in ("prediction", "outcome", "weight", "cluster")},
    }


def digest_arrays(*arrays: AnyArray | None) -> str:
    """Return the SHA-256 of arrays, reading some rows at a time: they may be larger than memory."""
    digest = hashlib.sha256()
    for array in arrays:
        if array is None:
            digest.update(b"none")
            continue
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        for start in range(0, len(array), DIGEST_ROWS):
            digest.update(np.ascontiguousarray(array[start : start + DIGEST_ROWS]).tobytes())
    return digest.hexdigest()
