"""Rows of the fit with what came of them: what LoRe learns."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.calibrators.map import Map
from trueup.calibrators.maps.spaces import CHUNK, Groups
from trueup.kernels.binning import digitize
from trueup.kernels.laplace import Sources, Sums

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from trueup._types import AnyArray, FloatArray, IntArray
    from trueup.calibrators.maps.spaces import Embedding
    from trueup.calibrators.rowwise import RowExplanation
    from trueup.data.schema import Schema
    from trueup.kernels.threads import Workers


@dataclass(frozen=True, eq=False)
class Neighbours:
    """The rows of the fit, those of one bin and one point added up.

    Attributes
    ----------
    keys : ndarray of int64, ascending
        The bins that have rows: ``bin * groups + group``. Group 0 has all rows of the bin, whatever their own groups.
    place : ndarray of int64, shape (n,), ascending
        Which key each row belongs to.
    points : ndarray of float64, shape (n, d)
    weight, total : ndarray of float64, shape (n,)
        Rows, and how many of them came true (were classified right, for several classes); where scores are shifted, how
        many more than their scores say.
    """

    keys: IntArray
    place: IntArray
    points: FloatArray
    weight: FloatArray
    total: FloatArray

    @cached_property
    def starts(self) -> IntArray:
        """Say where the rows of each key begin, and where the last ends."""
        return np.searchsorted(self.place, np.arange(len(self.keys) + 1))

    def ask(self, points: FloatArray, keys: IntArray, scales: FloatArray, threads: int | None = None) -> Sums:
        """Sum the weights and totals of the rows of each point's key, weighed by the kernel."""
        if not scales.any() or not self.points.any():  # no distances
            plain = np.add.reduceat(np.column_stack([self.weight, self.total]), self.starts[:-1], axis=0)
            return Sums(np.repeat(plain[keys][None], len(scales), axis=0), np.zeros((len(scales), len(keys))))
        return self._laid.at(points, keys, scales, threads)

    @cached_property
    def _laid(self) -> Sources:
        return Sources(self.points, np.column_stack([self.weight, self.total]), self.place)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("starts", "_laid")}

    @property
    def size(self) -> int:
        """Count the bytes."""
        return sum(array.nbytes for array in (self.keys, self.place, self.points, self.weight, self.total))


@dataclass(frozen=True, eq=False)
class LocalMap(Map):
    """Reset the confidence of a row to the rate at which its neighbours came true, in its bin; or shift it by their error.

    Luo et al. (2022), "Local calibration: metrics and recalibration": Eq. 6, or minus the signed error of Eq. 4, with m
    rows more that came true as often as the score of the row itself says.

    Attributes
    ----------
    embedding : Embedding
    neighbours : Neighbours
    edges : ndarray of float64, ascending
        Between the bins of the score; each belongs to the bin below it.
    groups : int
        How many groups a bin may have, the whole among them.
    gamma : float
        The reach of the kernel; infinite where distances do not count.
    shrinkage : float
        m.
    shifts : bool
        Whether scores are shifted rather than reset.
    """

    kind = "local"

    embedding: Embedding
    neighbours: Neighbours
    edges: FloatArray
    groups: int
    gamma: float
    shrinkage: float
    shifts: bool = False

    @property
    def steps(self) -> int:
        """Count one step."""
        return 1

    @property
    def bins(self) -> int:
        """Count the bins."""
        return len(self.edges) + 1

    @property
    def scale(self) -> float:
        """Give what distances are multiplied by in the kernel."""
        return scale_of(self.gamma, self.neighbours.points.shape[1])

    @cached_property
    def _near(self) -> IntArray:
        """Lead every bin to itself, or to the nearest that has rows; of two as near, to the lower."""
        filled = np.unique(self.neighbours.keys // self.groups)
        at = np.arange(self.bins)
        above = filled[np.minimum(np.searchsorted(filled, at), len(filled) - 1)]
        below = filled[np.maximum(np.searchsorted(filled, at, side="right") - 1, 0)]
        return np.where(np.abs(at - below) <= np.abs(above - at), below, above)

    def keys_of(self, confidence: FloatArray, group: IntArray) -> IntArray:
        """Give every row the number of its key: of its group in its bin, else of the whole bin."""
        keys = self.neighbours.keys
        whole = self._near[number_bins(confidence, self.edges)] * self.groups
        at = np.minimum(np.searchsorted(keys, whole + group), len(keys) - 1)
        return np.where(keys[at] == whole + group, at, np.searchsorted(keys, whole))

    def rates(self, columns: Sequence[AnyArray], confidence: FloatArray, threads: int | None) -> FloatArray:
        """Give every row its new confidence."""
        points, group = self.embedding.place(columns, len(confidence))
        found = self.neighbours.ask(points, self.keys_of(confidence, group), np.array([self.scale]), threads)
        carried = np.exp(-self.scale * found.shift[0])
        return self._mix(found.total[0, :, 0], found.total[0, :, 1], carried, confidence, self.shrinkage)

    @property
    def _mix(self) -> Callable[[FloatArray, FloatArray, FloatArray, FloatArray, float], FloatArray]:
        return mix_shift if self.shifts else mix_reset

    def apply(self, columns: Iterable[AnyArray], prediction: FloatArray, workers: Workers | None = None) -> FloatArray:
        """Score rows, as many at a time as memory allows."""
        given, out = list(columns), np.empty(prediction.shape)
        self.embedding.check(given)
        threads = None if workers is None else workers.threads
        step = max(1, CHUNK // self.embedding.width)
        for start in range(0, len(prediction), step):
            rows = slice(start, start + step)
            P = prediction[rows]
            confidence, top = confidence_of(P)
            found = self.rates([column[rows] for column in given], confidence, threads)
            out[rows] = reset(P, top, found)
        return out

    def apply_one(self, row: list[float], prediction: list[float]) -> FloatArray:
        """Score one row."""
        P = np.array([prediction], np.float64)
        P = P[:, 0] if len(prediction) == 1 else P
        confidence, top = confidence_of(P)
        columns = [np.array([value]) for value in row]
        self.embedding.check(columns)
        return np.asarray(reset(P, top, self.rates(columns, confidence, 1)).reshape(-1))

    def describe(self) -> str:
        """Count rows, dimensions and bytes."""
        many, size = len(self.neighbours.weight), self.neighbours.size
        text = f"{size / 1e6:.1f} MB" if size >= 1e5 else f"{size / 1e3:.1f} kB"
        if math.isinf(self.gamma):
            return f"{many:,} bins of the score ({text})"
        return f"{many:,} neighbours {self.embedding.describe()} ({text})"

    def tested(self) -> list[tuple[int, ...]]:
        """List all features, and pairs of them, which the distance weighs alike."""
        many = self.embedding.reads
        return [*((at,) for at in range(many)), *itertools.combinations(range(many), 2)]

    def explain_one(self, schema: Schema, row: Sequence[float], prediction: Sequence[float]) -> RowExplanation:
        """Say how far the bin moves the row, how much farther its neighbours, and how far it is drawn back."""
        from trueup.calibrators.losses import apply_link, task_loss
        from trueup.calibrators.rowwise import Part, explain_change

        link = task_loss(schema.task).link
        P = np.array([prediction], np.float64)
        P = P[:, 0] if len(prediction) == 1 else P
        after = self.apply_one(list(row), list(prediction))
        confidence, top = confidence_of(P)
        told = self._stages(row, confidence, top)
        stages: list[tuple[str, float | None]] = [(one.words, one.rate) for one in told]
        # What comes last ends at the new score, to the last bit.
        last_words = _draw(self.shrinkage, told[-1].rows) if self.shrinkage else stages.pop()[0]
        own, labels = 0 if top is None else int(top[0]), schema.classes or ("",)
        parts, start, end = [], *(apply_link(values.reshape(1, -1), link)[0] for values in (P, after))
        last = start[own]
        for text, rate in [*stages, (last_words, None)]:
            here = end[own] if rate is None else apply_link(np.array([rate]), link)[0, 0]
            if here != last:
                parts.append(Part(text, float(here - last), labels[own]))
            last = here
        others = _share_rest(labels, own, float(confidence[0]), after)
        parts += [
            Part(others, float(end[c] - start[c]), label)
            for c, label in enumerate(labels)
            if c != own and end[c] != start[c]
        ]
        return explain_change(link, prediction, after, tuple(parts), in_order=True)

    def _stages(self, row: Sequence[float], confidence: FloatArray, top: IntArray | None) -> list[_Stage]:
        """Give the rate of the whole bin and that of the neighbours, each with the words for it."""
        near = self.neighbours
        points, group = self.embedding.place([np.array([value]) for value in row], 1)
        whole, own = (self.keys_of(confidence, which) for which in (np.zeros(1, np.int64), group))
        inside = near.place == whole[0]
        rows, came = float(near.weight[inside].sum()), float(near.total[inside].sum())
        at = int(near.keys[whole[0]] // self.groups)
        name = "score" if top is None else "confidence"
        low, high = np.concatenate([[0.0], self.edges, [1.0]])[at : at + 2]
        empty = int(number_bins(confidence, self.edges)[0]) != at
        band = f"{'no rows like it; nearest, ' * empty}{name} from {low:.6g} to {high:.6g}"
        stages = [self._stage(f"{band}, worth {_rows(rows)}", rows, came / rows, confidence)]
        if math.isinf(self.gamma) or (self.groups > 1 and own[0] == whole[0]):  # no group of its own there
            return stages
        scales = np.array([self.scale, 2 * self.scale])
        found = near.ask(points, own, scales)
        share = float(found.total[0, 0, 1] / found.total[0, 0, 0])
        together = float(found.total[0, 0, 0]) * math.exp(-self.scale * float(found.shift[0, 0]))
        if isinstance(self.embedding, Groups):
            return [*stages, self._stage(f"its group there, worth {_rows(together)}", together, share, confidence)]
        # Kish (1965): (sum k)^2 / sum k^2, where each row of the fit counts for one.
        apart = math.exp(min(2 * self.scale * float(found.shift[1, 0] - found.shift[0, 0]), 700.0))
        kish = float(found.total[0, 0, 0]) ** 2 / float(found.total[1, 0, 0]) * apart
        who = (
            f"its neighbours there, together as near as {_rows(together)} at its own point (effective size {_count(kish)})"
        )
        return [*stages, self._stage(who, together, share, confidence)]

    def _stage(self, who: str, rows: float, share: float, confidence: FloatArray) -> _Stage:
        """Say what came of some rows, and give the confidence that they alone would make."""
        ones = np.ones(1)
        after = float(self._mix(ones, share * ones, ones, confidence, 0.0)[0])
        if self.shifts:
            return _Stage(f"{who}: outcomes are {share:+.4g} from scores", after, rows)
        return _Stage(f"{who}: {max(share, 0.0):.4g} came true", after, rows)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_near"}


class _Stage(NamedTuple):
    """What some rows say of one: the words, the confidence that they make, and the sum of their kernels."""

    words: str
    rate: float
    rows: float


def _draw(shrinkage: float, rows: float) -> str:
    """Say how much the score counts beside its neighbours: m / (sum k + m)."""
    part = shrinkage / (rows + shrinkage)
    return f"drawn to the score, which counts for {_rows(shrinkage)} beside {_count(rows)}: {part:.1%} of all"


def _share_rest(labels: Sequence[str], own: int, before: float, after: FloatArray) -> str:
    """Say what is left for the classes that were not called."""
    highest = int(after.argmax())
    lost = f"; {labels[highest]} is now the highest" if highest != own else ""
    left = f"{1 - before:.4g} before, {1 - float(after[own]):.4g} now"
    return (
        f"{labels[own]}, which was called, goes from {before:.4g} to {after[own]:.4g}; others share the rest, {left}{lost}"
    )


def _rows(many: float) -> str:
    return f"{_count(many)} row{'' if many == 1 else 's'}"


def _count(many: float) -> str:
    """Write a number of rows, never as a power of ten."""
    if many < 0.001:
        return "less than 0.001"
    return f"{many:,.0f}" if many >= 1000 else f"{many:,.4g}"


def scale_of(gamma: float, dimensions: int) -> float:
    """Give what distances are multiplied by: k = exp(-|phi - phi'|_1 / (d gamma))."""
    return 0.0 if math.isinf(gamma) else 1.0 / (dimensions * gamma)


def even_edges(bins: int) -> FloatArray:
    """Give the edges between bins of equal width over [0, 1], those of `trueup.metrics.bins`."""
    return np.arange(1, bins) / bins


def number_bins(confidence: FloatArray, edges: FloatArray) -> IntArray:
    """Number the bins between edges, closed on the right."""
    out = np.empty(len(confidence), np.int32)
    digitize(np.ascontiguousarray(confidence), np.nextafter(edges, np.inf), out)
    return out.astype(np.int64)


def confidence_of(prediction: FloatArray) -> tuple[FloatArray, IntArray | None]:
    """Give the score itself; or, of several classes, the highest and its class (the first of equals)."""
    if prediction.ndim == 1:
        return prediction, None
    top = np.argmax(prediction, axis=1)
    return prediction[np.arange(len(top)), top], top


def mix_reset(
    weight: FloatArray, total: FloatArray, carried: FloatArray, confidence: FloatArray, shrinkage: float
) -> FloatArray:
    """Give the rate of neighbours, with m rows more that came true as the confidence p says.

    (sum k y + m p) / (sum k + m). ``carried`` is what the sums are to be multiplied by; it matters only where m is not 0.
    """
    if shrinkage == 0:
        return np.asarray(np.clip(total / weight, 0.0, 1.0))
    found = (total * carried + shrinkage * confidence) / (weight * carried + shrinkage)
    return np.asarray(np.clip(found, 0.0, 1.0))


def mix_shift(
    weight: FloatArray, total: FloatArray, carried: FloatArray, confidence: FloatArray, shrinkage: float
) -> FloatArray:
    """Shift the confidence by the error of its neighbours, no farther than `mix_reset` could go.

    p + sum k (y - p_i) / (sum k + m), within m p / (sum k + m) and (sum k + m p) / (sum k + m): all neighbours had failed,
    or all had come true.
    """
    if shrinkage == 0:
        return np.asarray(np.clip(confidence + total / weight, 0.0, 1.0))
    own = shrinkage / (weight * carried + shrinkage)
    found = confidence + total * carried / (weight * carried + shrinkage)
    return np.asarray(np.clip(found, own * confidence, 1.0 - own * (1.0 - confidence)))


def reset(prediction: FloatArray, top: IntArray | None, rate: FloatArray) -> FloatArray:
    """Put new confidences in; the other classes share what is left as they did, or alike where they had nothing."""
    if top is None:
        return rate
    rows, k = np.arange(len(top)), prediction.shape[1]
    out = prediction.copy()
    out[rows, top] = 0.0
    rest = out[:, 0].copy()
    for c in range(1, k):  # one class after another: the sum of a row must not depend on its batch
        rest += out[:, c]
    none = rest <= 0
    out[none] = 1.0
    rest[none] = k - 1.0
    out /= rest[:, None]  # first: the others may be so small that what is left over them overflows
    out *= (1.0 - rate)[:, None]
    out[rows, top] = rate
    return out
