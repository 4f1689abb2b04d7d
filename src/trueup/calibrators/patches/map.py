"""The map of HKRR and Multiaccuracy: a list of patches, each a shift of one group's scores; how it is stored."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.explain import shorten
from trueup.calibrators.model import Map, is_integer, pack_arrays, read_texts, require, unpack_arrays
from trueup.calibrators.row_explanation import CLIPPED, Contribution, EffectSums, RowExplanation, explain_change
from trueup.data.columns import frame_like, to_jsonable
from trueup.kernels.curves import PatchProgram, shift_scores, to_logits
from trueup.kernels.threads import Workers
from trueup.metrics.result import html_table

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.data.table import Schema


ALL_ROWS = "all rows"
CHUNK = 8192  # rows per kernel call
MAX_SHOWN = 20  # patches that __repr__ shows
MAX_WIDTH = 44  # characters of a group in __repr__
MAX_CONDITIONS = 2  # per patch; each is a feature and its group, stored as -1 and -1 if there is none
MAX_VALUE = 1e150  # larger than any score or outcome; the shifts of a whole file add up without overflow
PATCH_DTYPES = {"low": "<f8", "high": "<f8", "shift": "<f8", "rows": "<i8", "before": "<f8", "observed": "<f8"}
DTYPES = {f"patches/{name}": dtype for name, dtype in PATCH_DTYPES.items()} | {
    "patches/conditions": "<i4",
    "patches/edges": "<f8",
}


@dataclass(frozen=True)
class Patch:
    """One correction: the rows it applies to, and the shift it adds."""

    group: str  # "country=BR & device=tv", or "all rows"
    conditions: tuple[tuple[int, int], ...]  # positions of features in the schema, and a group of each; empty: all rows
    low: float  # the score after the patches before is at least low and below high; infinite if unbounded
    high: float
    shift: float  # what is added to the prediction, or to its logit
    rows: int  # the number of training rows in the patch
    before: float  # their mean prediction just before the patch
    observed: float  # their mean outcome

    @property
    def score_range(self) -> str:
        """Return the score range as text: "0.1 to 0.25"."""
        if np.isinf(self.low):
            return "any" if np.isinf(self.high) else f"below {self.high:.3g}"
        return f"from {self.low:.3g}" if np.isinf(self.high) else f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class PatchList:
    """The patches in order: each applies to the scores as corrected by all patches before it."""

    patches: tuple[Patch, ...]
    scale: str  # what a shift is added to: "prediction" or "logit"

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, index: int) -> Patch:
        return self.patches[index]

    def to_frame(self, like: Any = None) -> Any:
        """Return one row per patch, as a frame of the library of ``like``; a dict of arrays without it."""
        columns = {
            "patch": np.arange(1, len(self) + 1),
            "group": np.array([patch.group for patch in self.patches], object),
        }
        for name in ("low", "high", "rows", "before", "observed", "shift"):
            dtype = np.int64 if name == "rows" else np.float64
            columns[name] = np.array([getattr(patch, name) for patch in self.patches], dtype)
        return frame_like(columns, like)

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; an infinite end of a score range is None."""
        patches = [
            asdict(patch) | {end: to_jsonable(getattr(patch, end)) for end in ("low", "high")} for patch in self.patches
        ]
        return {"scale": self.scale, "patches": patches}

    def __repr__(self) -> str:
        if not self.patches:
            return "Patches: none; scores are left unchanged"
        count = "one" if len(self) == 1 else f"{len(self):,} in order; each applies to the scores after those above it"
        header = ["", "group", "score", "rows", "predicted", "observed", f"{self.scale} shift"]
        table = [header] + [
            [str(number), shorten(patch.group, MAX_WIDTH), patch.score_range, f"{patch.rows:,}", f"{patch.before:.4g}",
             f"{patch.observed:.4g}", f"{patch.shift:+.4g}"]
            for number, patch in enumerate(self.patches[:MAX_SHOWN], start=1)
        ]  # fmt: skip
        if all(patch.score_range == "any" for patch in self.patches):
            table = [[text for column, text in enumerate(line) if column != 2] for line in table]
        left = (1, 2) if len(table[0]) == len(header) else (1,)
        widths = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [f"Patches: {count}"]
        for line in table:
            texts = [f"{text:{'<' if at in left else '>'}{widths[at]}}" for at, text in enumerate(line)]
            lines.append("  " + "  ".join(texts).rstrip())
        if len(self) > MAX_SHOWN:
            lines.append(f"  and {len(self) - MAX_SHOWN:,} more: to_frame() returns all of them")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        heads = ("group", "score", "rows", "predicted", "observed", f"{self.scale} shift")
        rows = [
            (f"{number}. {patch.group}", patch.score_range, f"{patch.rows:,}", f"{patch.before:.4g}",
             f"{patch.observed:.4g}", f"{patch.shift:+.4g}")
            for number, patch in enumerate(self.patches[:MAX_SHOWN], start=1)
        ]  # fmt: skip
        more = [f"{len(self) - MAX_SHOWN:,} more: to_frame() returns all of them"] if len(self) > MAX_SHOWN else []
        return html_table(repr(self).partition("\n")[0], heads, rows, notes=more)


@dataclass(frozen=True, eq=False)
class PatchMap(Map):
    """Patches applied in order; each shifts the scores of one group within a score range."""

    kind = "patches"

    link: str  # "identity": shifts are added to the prediction itself; "logit": to its logit
    levels: tuple[int, ...]  # of each feature, in the order of the schema; -1 for a number
    edges: tuple[FloatArray, ...]  # bin edges of each feature; empty for a category
    patches: tuple[Patch, ...]
    clip: tuple[float, float] | None = None  # the range of predictions, if shifts are added to them

    @property
    def steps(self) -> int:
        """The number of patches."""
        return len(self.patches)

    @property
    def patch_list(self) -> PatchList:
        """The patches as a list that can be printed and exported."""
        return PatchList(self.patches, "logit" if self.link == "logit" else "prediction")

    @cached_property
    def program(self) -> PatchProgram:
        """The patches as the arrays that the scoring kernel takes."""
        conditions = np.full((len(self.patches), MAX_CONDITIONS, 2), -1, np.int64)
        for number, patch in enumerate(self.patches):
            conditions[number, : len(patch.conditions)] = np.array(patch.conditions, np.int64).reshape(-1, 2)
        low, high, shift = (
            np.array([getattr(patch, name) for patch in self.patches], np.float64) for name in ("low", "high", "shift")
        )
        if self.link == "logit":  # score ranges are stored as probabilities
            low, high = (np.where(np.isinf(ends), ends, to_logits(ends)) for ends in (low, high))
        return PatchProgram(
            np.array(self.levels, np.int64), np.cumsum([0, *map(len, self.edges)]).astype(np.int64),
            np.concatenate([np.empty(0), *self.edges]), np.ascontiguousarray(conditions[:, :, 0]),
            np.ascontiguousarray(conditions[:, :, 1]), low, high, shift,
            self.link == "logit", np.array(self.clip or (-np.inf, np.inf), np.float64),
        )  # fmt: skip

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Return the corrected predictions, shape (n,); ``columns`` are the features in the order of the schema."""
        if not self.patches:
            return prediction.copy()
        program, features, before = self.program, list(columns), np.ascontiguousarray(prediction)
        after = np.empty(len(before))

        def score_chunk(start: int) -> None:
            rows = slice(start, start + CHUNK)
            X = np.empty((len(features), len(before[rows])))
            for position, column in enumerate(features):
                X[position] = column[rows]
            program.score(X, before[rows], after[rows], len(before))

        (workers or Workers()).map(score_chunk, range(0, len(before), CHUNK))
        return after

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Return the corrected prediction of one row, given as codes and numbers in the order of the schema."""
        P: FloatArray = np.array(prediction, np.float64)
        if self.patches:
            self.program.score(np.array(row, np.float64).reshape(-1, 1), P, P, 1)
        return P

    def stages(self, columns: Iterable[AnyArray], prediction: FloatArray) -> Iterator[FloatArray]:
        """Yield the predictions of all rows after 0, 1, 2, ... patches."""
        features = list(columns)
        for count in range(len(self.patches) + 1):
            yield replace(self, patches=self.patches[:count]).apply(features, prediction)

    def describe(self) -> str:
        """Return the numbers of patches and of groups as text."""
        groups = len({patch.group for patch in self.patches})
        patches = f"{self.steps:,} patch{'' if self.steps == 1 else 'es'}"
        return f"{patches} of {groups:,} group{'' if groups == 1 else 's'}"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Explain the change of one row by the patches that apply to it."""
        start = np.array(prediction, np.float64)
        value = start = to_logits(start) if self.link == "logit" else start
        program, contributions, sums = self.program, [], EffectSums(schema, row, prediction)
        for number, (patch, low, high) in enumerate(zip(self.patches, program.low, program.high, strict=True), start=1):
            if low <= value[0] < high and all(self._group(at, row[at]) == code for at, code in patch.conditions):
                cell = "" if patch.score_range == "any" else f" & {schema.prediction[0]} {patch.score_range}"
                contributions.append(Contribution(f"{patch.group}{cell} (patch {number})", patch.shift))
                sums.add([feature for feature, _ in patch.conditions], patch.shift)
                value = shift_scores(value, patch.shift, program.bounds)
        clipped = float(value[0] - start[0]) - sum(term.change for term in contributions)
        if self.clip is not None and abs(clipped) > 1e-12:
            contributions.append(Contribution(CLIPPED.format(*self.clip), clipped))
            sums.add((), clipped)
        after = self.apply_one(list(row), list(prediction))
        return explain_change(self.link, prediction, after, contributions, sums, (value - start).tolist(), in_order=True)

    def _group(self, feature: int, value: float) -> int:
        """Return the group of a feature's value: its level code, or its bin; missing values are the last group."""
        levels, edges = self.levels[feature], self.edges[feature]
        if levels >= 0:
            return int(value) if 0 <= value < levels else levels
        return len(edges) + 1 if np.isnan(value) else int(np.searchsorted(edges, value, side="right"))

    def feature_sets(self) -> list[tuple[int, ...]]:
        """Return the sets of features that patches condition on, by descending sum of rows times absolute shift."""
        size: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for patch in self.patches:
            if patch.conditions:
                size[tuple(sorted(feature for feature, _ in patch.conditions))] += patch.rows * abs(patch.shift)
        return [names for names, _ in sorted(size.items(), key=lambda item: (-item[1], item[0]))]

    def pack(self) -> tuple[dict[str, Any], dict[str, bytes]]:
        """Return what a model file stores of the map: an entry of its JSON manifest, and arrays as bytes by name."""
        entry = {
            "link": self.link,
            "edges": [len(edges) for edges in self.edges],
            "groups": [patch.group for patch in self.patches],
        }
        columns = [[getattr(patch, name) for patch in self.patches] for name in PATCH_DTYPES]
        conditions = np.stack([self.program.feature, self.program.code], axis=-1)
        return entry, pack_arrays(DTYPES, *map(np.array, columns), conditions, self.program.edges)

    @classmethod
    def unpack(cls, entry: Any, schema: Schema, blobs: Mapping[str, bytes]) -> PatchMap:
        """Restore the map from what `pack` returned; raise FileContentError if it is invalid or does not fit ``schema``."""
        link, binary = entry["link"], schema.task == "binary"
        require(schema.task != "multiclass" and len(schema.prediction) == 1, "the map does not fit the task")
        require(link == "identity" or (link == "logit" and binary), "the map does not fit the task")
        require(set(blobs) == set(DTYPES), "it has arrays that the manifest does not list")
        *columns, stored, flat_edges = unpack_arrays(DTYPES, blobs)
        sizes, groups = entry["edges"], read_texts(entry["groups"], "groups")
        require(isinstance(sizes, list) and len(sizes) == len(schema.levels), "the bin edges do not fit the features")
        require(all(is_integer(size) and 0 <= size <= len(flat_edges) for size in sizes), "the bin edges are invalid")
        require(sum(sizes) == len(flat_edges) and bool(np.isfinite(flat_edges).all()), "the bin edges are invalid")
        edges = tuple(np.split(flat_edges, np.cumsum(sizes)[:-1])) if sizes else ()
        for levels, own in zip(schema.levels, edges, strict=True):
            require(bool((np.diff(own) > 0).all()), "bin edges are not in ascending order")
            require(levels < 0 or not len(own), "a category has bin edges")
        require(all(len(column) == len(groups) for column in columns), "the patch arrays differ in length")
        low, high, shift, rows, before, observed = columns
        bounded = all((np.abs(column) <= MAX_VALUE).all() for column in (shift, before, observed))
        require(bounded and bool((rows >= 0).all()), "a patch has invalid numbers")
        require(bool((low < high).all()), "a patch has an empty score range")  # NaN compares false
        require(len(stored) == len(groups) * MAX_CONDITIONS * 2, "the number of conditions does not fit the patches")
        # The last group of each feature is that of missing values.
        last = [count if count >= 0 else len(own) + 1 for count, own in zip(schema.levels, edges, strict=True)]
        pairs, patches = stored.reshape(len(groups), MAX_CONDITIONS, 2).tolist(), []
        for group, pair, *numbers in zip(groups, pairs, *(column.tolist() for column in columns), strict=True):
            conditions = tuple((feature, code) for feature, code in pair if feature != -1)
            require(conditions == tuple(map(tuple, pair[: len(conditions)])), "a condition is invalid")
            valid = all(0 <= feature < len(last) and 0 <= code <= last[feature] for feature, code in conditions)
            require(valid, "a condition names an unknown group")
            distinct = len({feature for feature, _ in conditions}) == len(conditions)
            require(distinct, "a patch has two conditions on one feature")
            require(all(code == -1 for _, code in pair[len(conditions) :]), "a condition is invalid")
            patches.append(Patch(group, conditions, *numbers))
        return cls(link, schema.levels, edges, tuple(patches), (0.0, 1.0) if link == "identity" and binary else None)
