"""Counts of what a served model was asked to score: rows, missing and unseen values, rows without a valid score."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.metrics.result import Result

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from trueup.data.columns import RawColumn
    from trueup.data.table import Feature, Schema

MAX_LEVELS = 100  # unseen levels of a feature that are counted one by one
SHOWN_LEVELS = 3


RowFinding = tuple[str, int, Mapping[str, int]]  # a feature, the number of its missing values, its unseen levels


@dataclass(frozen=True)
class ServingStats(Result):
    """What a model was asked to score, in this process, since it was loaded.

    Attributes
    ----------
    rows : int
        Rows that were scored.
    invalid : int
        Of these, rows without a valid score, whose prediction is NaN (``on_error="nan"``).
    refused : int
        Calls of ``predict`` and ``predict_one`` that raised an error.
    missing : dict
        Name of each feature to the number of rows without a value of it: null, NaN, or without its key.
    unseen : dict
        Name of each categorical feature to the number of rows with a level that the fit did not have.
    unseen_levels : dict
        Name of each feature with unseen levels to these levels, most frequent first, and their rows; no more than the first
        hundred levels.
    """

    rows: int
    invalid: int
    refused: int
    missing: dict[str, int]
    unseen: dict[str, int]
    unseen_levels: dict[str, dict[str, int]]

    def __repr__(self) -> str:
        lines = [
            f"{self.rows:,} rows scored, {self.invalid:,} of them without a valid score; {self.refused:,} calls refused"
        ]
        for name, count in self.missing.items():
            unseen = self.unseen.get(name, 0)
            if count or unseen:
                listed = [f"{level!r}" for level in list(self.unseen_levels.get(name, ()))[:SHOWN_LEVELS]]
                levels = f", {unseen:,} unseen ({', '.join(listed)})" if unseen else ""
                lines.append(f"  {name}: {count:,} missing{levels}")
        return "\n".join(lines)


class ServingCounter:
    """Thread-safe counts behind `ServingStats`; those of a forked or unpickled copy start at zero."""

    def __init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._rows: Counter[str] = Counter()
        self._missing: Counter[str] = Counter()
        self._unseen: Counter[str] = Counter()
        self._levels: dict[str, Counter[str]] = {}
        self._lock = threading.Lock()
        self._process = os.getpid()  # last: other threads then find the rest

    def __reduce__(self) -> tuple[type[ServingCounter], tuple[()]]:
        return ServingCounter, ()

    def _own_lock(self) -> threading.Lock:
        if self._process != os.getpid():  # another thread may have held the lock when this process was forked
            self._reset()
        return self._lock

    def refuse(self) -> None:
        """Count a call that raised an error."""
        with self._own_lock():
            self._rows["refused"] += 1

    def add(self, rows: int, invalid: int, findings: Sequence[RowFinding]) -> None:
        """Count scored rows."""
        with self._own_lock():
            self._rows["rows"] += rows
            self._rows["invalid"] += invalid
            for name, missing, levels in findings:
                self._missing[name] += missing
                if levels:
                    self._unseen[name] += sum(levels.values())
                    known = self._levels.setdefault(name, Counter())
                    for level, count in levels.items():
                        if level in known or len(known) < MAX_LEVELS:
                            known[level] += count

    def stats(self, schema: Schema) -> ServingStats:
        """Return the counts so far, with every feature of the schema."""
        with self._own_lock():
            categorical = [feature.name for feature in schema.features if feature.kind == "categorical"]
            return ServingStats(
                self._rows["rows"], self._rows["invalid"], self._rows["refused"],
                {feature.name: self._missing[feature.name] for feature in schema.features},
                {name: self._unseen[name] for name in categorical},
                {name: dict(self._levels[name].most_common()) for name in categorical if name in self._levels},
            )  # fmt: skip


def column_finding(feature: Feature, raw: RawColumn) -> RowFinding:
    """Return a feature, the number of its missing values, and its unseen levels with the numbers of their rows."""
    missing = int(raw.missing().sum())
    if feature.kind != "categorical" or missing == len(raw):
        return feature.name, missing, {}
    coded, known = raw.categories(), set(feature.levels[: len(feature.levels) - feature.unseen_level])
    counts = np.bincount(coded.codes[coded.codes >= 0], minlength=len(coded.levels)).tolist()
    return feature.name, missing, {
        level: count for level, count in zip(coded.levels, counts, strict=True) if count and level not in known
    }  # fmt: skip


def row_findings(
    schema: Schema, values: Sequence[float], row: Mapping[str, Any], read: Callable[[Any, str], RawColumn]
) -> list[RowFinding]:
    """Return the missing and unseen values of one row, whose encoded ``values`` are in the order of the schema."""
    findings: list[RowFinding] = []
    for feature, value in zip(schema.features, values, strict=True):
        if feature.kind != "categorical":
            if value != value:  # NaN
                findings.append((feature.name, 1, {}))
        elif value < 0 or (feature.unseen_level and value == len(feature.levels) - 1):
            given = row.get(feature.name)
            findings.append(
                (feature.name, 1, {}) if given is None else column_finding(feature, read([given], feature.name))
            )
    return findings
