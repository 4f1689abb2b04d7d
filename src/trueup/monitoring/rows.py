"""Rows of a monitor: read from a frame with their roles, and those among them that were given before."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup.data.bins import format_date
from trueup.data.clusters import cluster_keys
from trueup.data.columns import check_distinct_roles, days_of
from trueup.data.folds import hash_numbers
from trueup.data.frame import choose_features, read_features
from trueup.data.table import Schema, Table
from trueup.data.values import as_numbers, check_outcome, check_scores, describe_rows
from trueup.errors import ArgumentError, ColumnError, DataError

if TYPE_CHECKING:
    from collections.abc import Hashable, Mapping, Sequence

    from trueup._types import AnyArray, BoolArray, FloatArray, Int32Array, IntArray, UInt64Array
    from trueup.data.columns import ColumnSource
    from trueup.monitoring.segments import MonitoredSegments

UNLABELLED = ("error", "drop", "zero")
GROWN_SHARE = 0.9  # of the rows that were given before, in a log that has grown: some may have been corrected or deleted


@dataclass(eq=False)
class MonitoredRows:
    """Rows of one batch: outcome, score, day at which they enter, and level codes; cluster and id if there are any.

    Rows without an outcome or a score, NaN, are among them until `complete` leaves them out.
    """

    y: FloatArray
    p: FloatArray
    day: FloatArray
    codes: list[Int32Array]
    cluster: UInt64Array | None
    ids: UInt64Array | None
    timed: bool = True

    def __len__(self) -> int:
        return len(self.p)

    def take(self, rows: AnyArray | slice) -> MonitoredRows:
        """Return some of the rows."""
        cluster, ids = (None if array is None else array[rows] for array in (self.cluster, self.ids))
        codes = [own[rows] for own in self.codes]
        return MonitoredRows(self.y[rows], self.p[rows], self.day[rows], codes, cluster, ids, self.timed)

    def complete(self) -> MonitoredRows:
        """Return the rows with an outcome and a score."""
        known = ~np.isnan(self.y) & ~np.isnan(self.p)
        return self if known.all() else self.take(known)

    def hashes(self) -> UInt64Array:
        """Return a hash of the content of every row, apart from the outcome, which may change until the period ends."""
        more = [] if self.cluster is None else [self.cluster.astype(np.float64)]
        return hash_numbers([self.p, self.day, *self.codes, *more])

    def join(self, other: MonitoredRows) -> MonitoredRows:
        """Return both rows together."""

        def both(one: Any, two: Any) -> Any:
            return None if one is None else np.concatenate([one, two])

        codes = [both(mine, more) for mine, more in zip(self.codes, other.codes, strict=True)]
        return MonitoredRows(
            both(self.y, other.y), both(self.p, other.p), both(self.day, other.day), codes,
            both(self.cluster, other.cluster), both(self.ids, other.ids), self.timed,
        )  # fmt: skip

    def by_period(self, numbers: IntArray) -> dict[int, MonitoredRows]:
        """Return the rows of every period, in the order of the periods; rows keep their order within a period."""
        order = np.argsort(numbers, kind="stable")
        ordered, distinct = self.take(order), np.unique(numbers)
        ends = np.searchsorted(numbers[order], distinct, side="right").tolist()
        return {
            number: ordered.take(slice(start, end))
            for number, start, end in zip(distinct.tolist(), [0, *ends], ends, strict=False)
        }


def drop_known(rows: MonitoredRows, known: UInt64Array) -> tuple[MonitoredRows, UInt64Array]:
    """Return the rows whose id is not among the ``known`` ones, each id once, and the ids that are known by now."""
    assert rows.ids is not None
    order = np.lexsort((rows.y, rows.p, rows.ids))
    ordered, y, p = rows.ids[order], rows.y[order], rows.p[order]
    is_same = ordered[1:] == ordered[:-1]
    changed = [(one[1:] != one[:-1]) & ~(np.isnan(one[1:]) & np.isnan(one[:-1])) for one in (y, p)]
    if (differing := is_same & (changed[0] | changed[1])).any():
        raise DataError(
            f"{int(differing.sum()):,} rows have the id of another row, and another outcome or score",
            hint="give every row once, with its final outcome: to choose one of them could depend on the outcome",
        )
    first = order[np.append(True, ~is_same)[: len(rows)]]
    taken = np.sort(first[~np.isin(rows.ids[first], known)])
    return rows.take(taken), np.union1d(known, rows.ids[taken])


class AdmittedRows(NamedTuple):
    """Rows of an open period to be counted, whether they replace those before, and how many of those they lack."""

    rows: MonitoredRows
    replaces: bool = False
    lost: int = 0


@dataclass(eq=False)
class GivenRows:
    """What was given of an open period: ids or, without them, hashes of the content of rows, and their latest time."""

    keys: UInt64Array = field(default_factory=lambda: np.empty(0, np.uint64))  # ascending
    latest: float = -math.inf

    def admit(self, rows: MonitoredRows, *, ends: bool) -> AdmittedRows:
        """Return the rows that were not given before, whether they replace all that were, and how many of those are lost.

        Ids tell which rows are new. Without them, rows that are all later than those given before are new, and a batch with
        (nearly) all rows that were given before is a log that has grown, which replaces them. Anything else is ambiguous.
        Rows of a period that ``ends`` now need not be remembered. Without times every row is new.
        """
        if not len(rows) or not rows.timed:
            return AdmittedRows(rows)
        if rows.ids is not None:
            rows, self.keys = drop_known(rows, self.keys)
            return AdmittedRows(rows)
        if ends and not len(self.keys):
            return AdmittedRows(rows)
        hashes, earliest = rows.hashes(), float(rows.day.min())
        before, follows = self.keys, earliest > self.latest
        lost = 0 if follows else self._count_lost(hashes, earliest)
        self.keys = np.sort(np.concatenate([before, hashes]) if follows else hashes)
        self.latest = float(rows.day.max())
        return AdmittedRows(rows, not follows, lost)

    def _count_lost(self, hashes: UInt64Array, earliest: float) -> int:
        """Return how many rows given before are not in the batch; raise if many are not, or if many have equal content."""
        distinct, counts = np.unique(self.keys, return_counts=True)
        again = int(np.minimum(counts, _counts_of(distinct, hashes)).sum())
        if min(again, len(distinct)) < GROWN_SHARE * len(self.keys):
            start = format_date(float(math.floor(earliest)))
            raise DataError(
                f"of {len(self.keys):,} rows that were given before for the period of {start}, this batch of "
                f"{len(hashes):,} has {again:,}, and {len(distinct):,} of them differ: which of its rows are new cannot be "
                "known",
                hint="give all rows of the period, with the scores and levels that they had, or only rows that are later "
                "than those given before; or start a monitor that knows the column that identifies a row, as {id}",
                settings={"id": ...},
            )
        return len(self.keys) - again


def _counts_of(values: UInt64Array, among: UInt64Array) -> IntArray:
    """Return how often each of the values occurs."""
    ordered = np.sort(among)
    return np.searchsorted(ordered, values, side="right") - np.searchsorted(ordered, values, side="left")


@dataclass(frozen=True)
class RowReader:
    """Reads the columns of a monitor from a frame, by their roles."""

    outcome: Hashable
    prediction: Hashable
    by: Sequence[Hashable] | Hashable | None
    time: Hashable | None
    id: Hashable | None
    cluster: Hashable | None
    categorical: Sequence[Hashable] | Hashable
    maturity: float  # days
    sampling: tuple[float, float] | None
    unlabelled: str

    def roles(self, source: ColumnSource, *, labelled: bool) -> dict[str, Hashable | None]:
        """Return the keys of the roles; the outcome only if ``labelled``."""
        named = {"prediction": self.prediction, "time": self.time, "id": self.id, "cluster": self.cluster}
        if labelled:
            named["outcome"] = self.outcome
        return {role: None if name is None else source.find(name, role) for role, name in named.items()}

    def reference(self, source: ColumnSource) -> tuple[Table, AnyArray]:
        """Return the scores and the columns of the segments of reference rows, and which of their rows have a score."""
        roles = self.roles(source, labelled=False)
        scores = self._scores(source, roles["prediction"])
        keep = np.flatnonzero(~np.isnan(scores))
        if not len(keep):
            raise DataError(f"no reference row has a score in column {self.prediction!r}", hint="score the rows first")
        others = {role: key for role, key in roles.items() if role != "prediction"}
        by = self.by
        if by is None:
            taken = {*roles.values()}
            by = [key for key in source.keys if key not in taken and source.label(key) != str(self.outcome)]
        chosen = choose_features(source, by, [roles["prediction"]], None, None)
        check_distinct_roles(others, [roles["prediction"]], source)
        unread: dict[str, str] = {}
        features, columns, left_out, _ = read_features(
            source, chosen, None, categorical=self.categorical, keep=keep, unread=unread if self.by is None else None
        )
        left_out = {**unread, **left_out}
        schema = Schema("binary", str(self.outcome), (source.label(roles["prediction"]),), None, tuple(features))
        return Table(schema, columns, scores[keep], left_out=left_out), keep

    def _scores(self, source: ColumnSource, key: Hashable) -> FloatArray:
        """Return the scores, NaN where there is none, moved to the sample if there is one."""
        name = source.label(key)
        scores = as_numbers(source.fetch(key), name, "prediction").astype(np.float64)
        known = ~np.isnan(scores)
        check_scores(np.where(known, scores, 0.5), (name,), "binary")
        if self.sampling is not None:
            positive, negative = self.sampling
            scores = scores * positive / (scores * positive + (1 - scores) * negative)
        return scores

    def days(self, source: ColumnSource) -> FloatArray | None:
        """Return the day on which every row was scored, None without a time column."""
        if self.time is None:
            return None
        key = source.find(self.time, "time")
        raw, name = source.fetch(key), source.label(key)
        if raw.kind != "date":
            raise ColumnError(f"time column {name!r} must hold dates; got {raw.kind}s", hint="convert it to dates first")
        days = raw.codes_or_values
        if np.isnan(days).any():
            raise DataError(
                f"time column {name!r} is missing {describe_rows(np.isnan(days))}", hint="fill it in, or drop these rows"
            )
        if days.min(initial=0.0) < 0:
            raise DataError(f"time column {name!r} has dates before 1970 {describe_rows(days < 0)}", hint="mend them")
        return days

    def read(
        self, source: ColumnSource, days: FloatArray | None, schema: Schema, segments: MonitoredSegments,
        considered: BoolArray, *, labelled: bool = True,
    ) -> MonitoredRows:  # fmt: skip
        """Return the ``considered`` rows."""
        roles = self.roles(source, labelled=labelled)
        scores = self._scores(source, roles["prediction"])
        entry = np.zeros(source.rows) if days is None else days + (self.maturity if labelled else 0.0)
        y = self._outcomes(source, roles["outcome"], considered & ~np.isnan(scores)) if labelled else np.zeros(source.rows)
        take = np.flatnonzero(considered)
        keys = [source.find(one.name, "by") for one in schema.features]
        codes = segments.encode(source, keys, scores[take], take)
        cluster, ids = (_identifiers(source, roles[role], take) for role in ("cluster", "id"))
        return MonitoredRows(y[take], scores[take], entry[take], codes, cluster, ids, self.time is not None)

    def _outcomes(self, source: ColumnSource, key: Hashable, needed: BoolArray) -> FloatArray:
        """Return the outcomes, NaN where there is none, or 0 if that means no event; raise if one is needed."""
        raw = source.fetch(key)
        y = check_outcome(raw, str(self.outcome), "binary") if not raw.missing().all() else np.full(source.rows, np.nan)
        if self.unlabelled == "zero":
            return np.where(np.isnan(y), 0.0, y)
        unlabelled = np.isnan(y) & needed
        if unlabelled.any() and self.unlabelled == "error":
            cause = (
                f"are outcomes known later than after {self.maturity:g} days, or not yet up to the date of now"
                if self.maturity
                else "are outcomes known only at some age? Then pass {maturity}"
            )
            raise DataError(
                f"the outcome {self.outcome!r} of a mature row is missing {describe_rows(unlabelled)}",
                hint=f"{cause}; if a missing outcome means no event, {{unlabelled}}",
                settings={"maturity": "90 days", "unlabelled": "zero"},
            )
        return y

    def count_periods(self, source: ColumnSource, numbers: IntArray, rows: BoolArray) -> dict[int, int]:
        """Return how many of the rows are of each period, those of one id once."""
        take = np.flatnonzero(rows)
        pairs = [numbers[take]]
        if self.id is not None and len(take):
            ids = _identifiers(source, source.find(self.id, "id"), take)
            assert ids is not None
            pairs = [pairs[0][np.unique(np.column_stack([pairs[0].view(np.uint64), ids]), axis=0, return_index=True)[1]]]
        distinct, counts = np.unique(pairs[0], return_counts=True)
        return dict(zip(distinct.tolist(), counts.tolist(), strict=True))


def _identifiers(source: ColumnSource, key: Any, take: AnyArray) -> UInt64Array | None:
    if key is None:
        return None
    return cluster_keys(source.fetch(key), source.label(key), describe_rows)[take]


def as_day(now: Any, parameter: str = "now") -> float:
    """Return a date as days since 1970-01-01; -inf for None."""
    if now is None:
        return -math.inf
    try:
        if isinstance(now, (bool, int, float, np.number)):
            now = "a number"  # which NumPy takes for microseconds
        if isinstance(now, str):
            now = datetime.fromisoformat(now)
        if isinstance(now, datetime) and now.tzinfo is not None:
            now = now.astimezone(UTC).replace(tzinfo=None)
        moment = np.datetime64(now, "us")
    except (ValueError, TypeError):
        moment = np.datetime64("NaT")
    if np.isnat(moment):
        raise ArgumentError(
            f"{parameter} must be a date; got {now!r}", hint='write it as "2026-11-30"', parameter=parameter
        )
    return float(days_of(np.array([moment]))[0])


def parse_sampling(given: Mapping[str, float]) -> tuple[float, float]:
    """Return the shares of the rows with outcome 1 and 0 that are in the data."""
    from trueup._validate import check_number

    shares = []
    for name in ("positive", "negative"):
        check_number(f"sampling[{name!r}]", given.get(name, 1.0), 0, 1, above=True)
        shares.append(float(given.get(name, 1.0)))
    if unknown := set(given) - {"positive", "negative"}:
        hint = 'write {"positive": 1, "negative": 0.1}'
        raise ArgumentError(f"sampling has no share {sorted(unknown)[0]!r}", hint, parameter="sampling")
    return shares[0], shares[1]
