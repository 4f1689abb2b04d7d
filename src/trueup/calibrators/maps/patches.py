"""A list of patches that people can read: what HKRR and Multiaccuracy learn."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.calibrators.map import Map
from trueup.data.frame import frame_like, to_jsonable
from trueup.kernels.patches import Program, moved, score, to_logits
from trueup.kernels.threads import Workers

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from trueup._types import AnyArray, FloatArray
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.data.schema import Schema


ALL_ROWS = "all rows"
CHUNK = 8192  # rows that are copied and scored by one call
SHOWN = 20  # patches that are written out; a frame has them all
WIDEST = 44  # letters of a group


@dataclass(frozen=True)
class Patch:
    """One change: who was moved, and by how much.

    Attributes
    ----------
    group : str
        "country=BR & device=tv", or "all rows".
    conditions : tuple of (int, int)
        The feature, by its place in the schema, and the group of that feature; none for all rows.
    low, high : float
        The score cell: rows of a score from low up to but not including high, as the patches before have left it;
        infinite where there is no such end.
    shift : float
        What is added to the prediction, or to its logit.
    rows : int
        How many rows of the fit were moved.
    before, observed : float
        Their mean prediction just before the patch, and their mean outcome.
    """

    group: str
    conditions: tuple[tuple[int, int], ...]
    low: float
    high: float
    shift: float
    rows: int
    before: float
    observed: float

    @property
    def cell(self) -> str:
        """Write the score cell.

        Examples
        --------
        >>> Patch("all rows", (), 0.1, 0.25, 0.02, 80, 0.17, 0.19).cell
        '0.1 to 0.25'
        """
        if np.isinf(self.low):
            return "any" if np.isinf(self.high) else f"below {self.high:.3g}"
        return f"from {self.low:.3g}" if np.isinf(self.high) else f"{self.low:.3g} to {self.high:.3g}"


@dataclass(frozen=True)
class PatchList:
    """What was changed, in order: each patch reads the scores that those before it have made.

    Attributes
    ----------
    patches : tuple of Patch
    scale : {"prediction", "logit"}
        What a shift is added to.
    """

    patches: tuple[Patch, ...]
    scale: str

    def __len__(self) -> int:
        return len(self.patches)

    def __getitem__(self, at: int) -> Patch:
        return self.patches[at]

    def to_frame(self, like: Any = None) -> Any:
        """Give one row a patch, in the library of ``like``; a dict of arrays without it."""
        found = {"patch": np.arange(1, len(self) + 1), "group": np.array([one.group for one in self.patches], object)}
        for name in ("low", "high", "rows", "before", "observed", "shift"):
            found[name] = np.array([getattr(one, name) for one in self.patches], np.int64 if name == "rows" else np.float64)
        return frame_like(found, like)

    def to_dict(self) -> dict[str, Any]:
        """Give everything as plain data; an end that a score cell does not have is None."""
        listed = [asdict(one) | {end: to_jsonable(getattr(one, end)) for end in ("low", "high")} for one in self.patches]
        return {"scale": self.scale, "patches": listed}

    def __repr__(self) -> str:
        if not self.patches:
            return "Patches: none; every score is as it was"
        what = "one" if len(self) == 1 else f"{len(self):,} in order; each reads the scores that those above it left"
        shown = self.patches[:SHOWN]
        celled = any(one.cell != "any" for one in self.patches)
        head = ["", "group", "score", "rows", "predicted", "observed", f"{self.scale} moved"]
        cells = [
            [str(at), _short(one.group), one.cell, f"{one.rows:,}", f"{one.before:.4g}", f"{one.observed:.4g}",
             f"{one.shift:+.4g}"]
            for at, one in enumerate(shown, start=1)
        ]  # fmt: skip
        kept = [at for at, name in enumerate(head) if celled or name != "score"]
        widths = {at: max(len(line[at]) for line in [head, *cells]) for at in kept}
        lines = [
            "  " + "  ".join(f"{line[at]:{'<' if at in (1, 2) else '>'}{widths[at]}}" for at in kept).rstrip()
            for line in [head, *cells]
        ]
        more = [f"  and {len(self) - SHOWN:,} more: to_frame() has them all"] if len(self) > SHOWN else []
        return "\n".join([f"Patches: {what}", *lines, *more])


def _short(text: str) -> str:
    return text if len(text) <= WIDEST else f"{text[: WIDEST - 1]}…"


@dataclass(frozen=True, eq=False)
class Patches(Map):
    """Patches, one after another: rows of a group and of a score cell are moved together.

    Attributes
    ----------
    link : {"identity", "logit"}
        Shifts are added to the prediction itself, or to its logit.
    levels : tuple of int
        How many levels each feature has, in the order of the schema; -1 for a number.
    edges : tuple of ndarray of float64
        Where each feature is cut into groups: a number is in the group of how many edges are at most it. Empty for a
        category. The group after the last is that of missing and unseen values.
    patches : tuple of Patch
        None at all leaves every prediction as it is.
    clip : tuple of float, or None
        The range that predictions stay in, where shifts are added to them.
    """

    kind = "patches"

    link: str
    levels: tuple[int, ...]
    edges: tuple[FloatArray, ...]
    patches: tuple[Patch, ...]
    clip: tuple[float, float] | None = None

    @property
    def steps(self) -> int:
        """Count the patches."""
        return len(self.patches)

    @property
    def listed(self) -> PatchList:
        """Give the list that people read."""
        return PatchList(self.patches, "logit" if self.link == "logit" else "prediction")

    @cached_property
    def program(self) -> Program:
        """Lay the patches out for the scorer."""
        conditions = np.full((len(self.patches), 2, 2), -1, np.int64)
        for at, one in enumerate(self.patches):
            conditions[at, : len(one.conditions)] = np.array(one.conditions, np.int64).reshape(-1, 2)
        low, high, shift = (
            np.array([getattr(one, name) for one in self.patches], np.float64) for name in ("low", "high", "shift")
        )
        if self.link == "logit":  # cells are told in probabilities
            low, high = (np.where(np.isinf(ends), ends, to_logits(ends)) for ends in (low, high))
        return Program(
            np.array(self.levels, np.int64), np.cumsum([0, *(len(one) for one in self.edges)]).astype(np.int64),
            np.concatenate([np.empty(0), *self.edges]), np.ascontiguousarray(conditions[:, :, 0]),
            np.ascontiguousarray(conditions[:, :, 1]), low, high, shift,
            self.link == "logit", np.array(self.clip or (-np.inf, np.inf), np.float64),
        )  # fmt: skip

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Score rows: columns in the order of the schema, predictions (n,)."""
        if not self.patches:
            return prediction.copy()
        program, given, before = self.program, list(columns), np.ascontiguousarray(prediction)
        after = np.empty(len(before))

        def some(start: int) -> None:
            rows = slice(start, start + CHUNK)
            X = np.empty((len(given), len(before[rows])))
            for at, column in enumerate(given):
                X[at] = column[rows]
            score(*program, X, before[rows], after[rows])

        (workers or Workers()).map(some, range(0, len(before), CHUNK))
        return after

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Score one row: codes and numbers in the order of the schema."""
        P: FloatArray = np.array(prediction, np.float64)
        if self.patches:
            score(*self.program, np.array(row, np.float64).reshape(-1, 1), P, P)
        return P

    def describe(self) -> str:
        """Count patches and groups."""
        groups = len({one.group for one in self.patches})
        return f"{_many(self.steps, 'patch', 'patches')} of {_many(groups, 'group', 'groups')}"

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """List the patches that move the row; they add up to its change."""
        from trueup.calibrators.rowwise import KEPT_WITHIN, Part, explain_change

        start = np.array(prediction, np.float64)
        value = start = to_logits(start) if self.link == "logit" else start
        program, parts = self.program, []
        for at, (one, low, high) in enumerate(zip(self.patches, program.low, program.high, strict=True), start=1):
            if self._is_for(one, row) and low <= value[0] < high:
                cell = "" if one.cell == "any" else f" & {schema.prediction[0]} {one.cell}"
                parts.append(Part(f"{one.group}{cell} (patch {at})", one.shift))
                value = moved(value, one.shift, program.bounds)
        kept = float(value[0] - start[0]) - sum(part.change for part in parts)
        if self.clip is not None and abs(kept) > 1e-12:
            parts.append(Part(KEPT_WITHIN.format(*self.clip), kept))
        after = self.apply_one(list(row), list(prediction))
        return explain_change(self.link, prediction, after, tuple(parts), (value - start).tolist(), in_order=True)

    def _is_for(self, patch: Patch, row: Sequence[float]) -> bool:
        return all(self._group(at, row[at]) == code for at, code in patch.conditions)

    def _group(self, at: int, value: float) -> int:
        levels, edges = self.levels[at], self.edges[at]
        if levels >= 0:
            return int(value) if 0 <= value < levels else levels
        return len(edges) + 1 if np.isnan(value) else int(np.searchsorted(edges, value, side="right"))

    def tested(self) -> list[tuple[int, ...]]:
        """List the sets of features that patches name, those that moved most first."""
        weight: defaultdict[tuple[int, ...], float] = defaultdict(float)
        for one in self.patches:
            if one.conditions:
                weight[tuple(sorted(at for at, _ in one.conditions))] += one.rows * abs(one.shift)
        return [names for names, _ in sorted(weight.items(), key=lambda item: (-item[1], item[0]))]


def _many(count: int, one: str, more: str) -> str:
    return f"{count:,} {one if count == 1 else more}"
