"""Audit and Finding: what an audit found, worst first, with its uncertainty and what could not be tested."""

from __future__ import annotations

import dataclasses
import difflib
import math
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits import text
from trueup.audits.estimate import noise
from trueup.data.frame import frame_like, to_jsonable
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from trueup._types import AnyArray, Int32Array, IntArray
    from trueup.audits.family import Family, Grid
    from trueup.audits.portrait import Portrait
    from trueup.data.schema import Schema
    from trueup.data.table import Table
    from trueup.kernels.tally import Rows
    from trueup.metrics.curves import ReliabilityCurve

WHOLE = "all rows"
AMBIGUOUS = -1
APPROXIMATE_ROWS = 200


@dataclass(frozen=True)
class Settings:
    """The parameters that decide what a verdict means."""

    depth: int
    min_rows: int
    alpha: float
    adjust: str
    max_cells: int
    draws: int
    random_state: int

    def plain(self) -> Settings:
        """Give the same with Python's own numbers in place of NumPy's."""
        return Settings(*(getattr(v, "item", lambda v=v: v)() for v in dataclasses.astuple(self)))


@dataclass(frozen=True)
class Source:
    """Where the rows of an audit came from: files by name, size and digest, and the command that read them.

    ``fit`` is the command that fits a correction on the same rows; ``training_rows`` is true if they look like the
    training rows of the fix between two scores.
    """

    files: tuple[tuple[str, int, str], ...]
    command: str
    fit: str = ""
    training_rows: bool = False


@dataclass(frozen=True, eq=False)
class Finding:
    """One segment.

    ``observed`` and ``expected`` are weighted means; ``bias`` = observed - expected; ``ratio`` = observed / expected with
    an unadjusted 1 - alpha interval; ``ecce`` the range of the cumulative differences and ``sigma`` the same in units of
    its noise; ``mde`` the shift that would be found with 80% power at alpha / number of segments. ``testable`` is false
    where the data is too thin for a verdict: then ``p_value`` and ``p_adjusted`` are NaN and the segment is not counted.
    ``curve`` is set for the worst thousand and the whole. ``sigma`` is known to within ``sigma_bound``, either way: 0, but
    for rows on a cluster (see ``exact`` of `trueup.audit`), whose p-values are those of the lower end.
    """

    segment: str
    depth: int
    n: int
    weight: float
    observed: float
    expected: float
    ratio: float
    ratio_low: float
    ratio_high: float
    bias: float
    ecce: float
    sigma: float
    p_value: float
    p_adjusted: float
    mde: float
    testable: bool
    note: str = ""
    curve: ReliabilityCurve | None = field(default=None, repr=False)
    sigma_bound: float = 0.0

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON; what is not finite becomes None. ``sigma_bound`` is left out where it is 0."""
        bound = (BOUND,) if self.sigma_bound else ()
        found = {name: to_jsonable(getattr(self, name)) for name in (*COLUMNS, *bound, "note")}
        return found | {"curve": None if self.curve is None else self.curve.to_dict()}

    def __repr__(self) -> str:
        return text.finding_line(self)


BOUND = "sigma_bound"
COLUMNS = tuple(name for name in Finding.__dataclass_fields__ if name not in ("note", "curve", BOUND))


def _frozen(columns: Mapping[str, AnyArray]) -> dict[str, AnyArray]:
    """Make columns that nobody can write to by mistake."""
    for column in columns.values():
        column.setflags(write=False)
    return dict(columns)


def _unordered(segment: str) -> tuple[str, ...]:
    """Forget the order of the parts of a segment's text."""
    return tuple(sorted(segment.split(" & ")))


@dataclass(frozen=True, eq=False)
class Keys:
    """Which columns and levels each segment is made of; the text is written when it is asked for."""

    columns: Int32Array
    codes: Int32Array
    target: NDArray[np.int16]
    labels: Sequence[tuple[str, ...]]
    targets: tuple[str, ...]

    def name(self, at: int) -> str:
        """Write the text of one segment."""
        parts = [self.labels[c][k] for c, k in zip(self.columns[at], self.codes[at], strict=True) if c >= 0]
        label = self.targets[self.target[at]]
        return " & ".join([label, *parts] if label else parts) or WHOLE

    def parts(self, at: int) -> tuple[str, ...]:
        """Give what a segment is made of, in an order of its own: two segments may share a text, but not their parts."""
        parts = (self.labels[c][k] for c, k in zip(self.columns[at], self.codes[at], strict=True) if c >= 0)
        return self.targets[self.target[at]], *sorted(parts)

    @property
    def depth(self) -> IntArray:
        """How many columns each segment combines."""
        depth: IntArray = (self.columns >= 0).sum(axis=1)
        return depth


@dataclass(frozen=True, eq=False)
class Audit:
    """The result of `trueup.audit`: a verdict, and every segment behind it, worst first.

    Attributes
    ----------
    rows : int
        Rows audited. ``unlabelled`` and ``weightless`` count those set aside.
    schema : Schema
    settings : Settings
    tested : int
        Segments in the family.
    thin : int
        Cells seen with fewer than ``min_rows`` rows: nothing is said about them.
    dropped : tuple of str
        Combinations of columns left out to stay within ``max_cells``.
    left_out : mapping
        Columns left out, and why.
    global_sigma, prevalence : float
        Noise of the statistic and observed mean over all rows (for several classes those of the top label).
    source : Source or None
        Where the rows came from, and the command that read them, where that is known.
    """

    columns: Mapping[str, AnyArray] = field(repr=False)
    keys: Keys = field(repr=False)
    curves: Mapping[int, ReliabilityCurve] = field(repr=False)
    schema: Schema
    settings: Settings
    rows: int
    unlabelled: int
    weightless: int
    thin: int
    dropped: tuple[str, ...]
    left_out: Mapping[str, str]
    global_sigma: float
    prevalence: float
    source: Source | None = None
    whole_rows: list[Rows | Portrait] = field(default_factory=list, repr=False)

    @classmethod
    def build(
        cls, table: Table, grid: Grid, families: list[Family], settings: Settings,
        columns: Mapping[str, AnyArray], order: IntArray, curves: Mapping[int, ReliabilityCurve],
    ) -> Audit:  # fmt: skip
        """Put the parts of an audit together; ``columns`` come in the ``order`` of the segments already."""
        parts = [family.keys for family in families]
        target = np.repeat(np.arange(len(families), dtype=np.int16), [len(part[0]) for part in parts])
        keys = Keys(
            np.concatenate([part[0] for part in parts])[order], np.concatenate([part[1] for part in parts])[order],
            target[order], [column.labels for column in grid.all_columns],
            tuple(family.target.label for family in families),
        )  # fmt: skip
        whole = families[0].blocks[0].tally
        return cls(
            _frozen(columns), keys, curves,
            table.schema, settings, len(table), table.unlabelled, table.weightless,
            sum(block.thin for family in families for block in family.blocks),
            tuple(" x ".join(grid.columns[at].name for at in combination) for combination in grid.plan.dropped),
            table.left_out, float(noise(whole)[0] / whole.weight[0]),
            float((whole.expected[0] + whole.residual[0]) / whole.weight[0]), None, [families[0].target.rows],
        )  # fmt: skip

    @property
    def portrait(self) -> Portrait:
        """What the whole looks like: scores, cumulative differences, measures. Made when it is first asked for.

        For several classes it is that of the top label. Until it is asked for, the audit holds on to its rows, about 30
        bytes each; then it lets them go.
        """
        from trueup.audits.portrait import Pool, Portrait, fingerprint, portray

        found = self.whole_rows[0]
        if not isinstance(found, Portrait):
            # The rows give way to what was asked of them, in all copies of this audit at once.
            curve, alpha, mark = self.overall.curve, self.settings.alpha, fingerprint(found)
            found = self.whole_rows[0] = portray(Pool.of(found), curve, alpha, real=found.real, fingerprint=mark)
        return found

    def __getstate__(self) -> dict[str, Any]:
        """Leave the rows behind: what is asked of them is asked first."""
        if self.whole_rows:
            self.portrait  # noqa: B018
        return dict(self.__dict__)

    def __len__(self) -> int:
        return len(self.columns["n"])

    def __iter__(self) -> Iterator[Finding]:
        """Go through the segments, worst first."""
        return (self.finding(at) for at in range(len(self)))

    def __getitem__(self, segment: str) -> Finding:
        """Find a segment by its text, such as ``audit["country=BR & device=tv"]``; its parts in any order."""
        at = self._places.get(_unordered(str(segment)))
        if at == AMBIGUOUS:
            raise ArgumentError(f"several segments are called {segment!r}", hint="find them in to_frame()")
        if at is None:
            near = difflib.get_close_matches(str(segment), self._names[:20_000].tolist(), n=1)
            hint = f"did you mean {near[0]!r}?" if near else "the segments are in to_frame()['segment']"
            raise ArgumentError(f"no segment {segment!r} in this audit", hint=hint)
        return self.finding(at)

    @cached_property
    def _names(self) -> NDArray[np.object_]:
        names = np.empty(len(self), object)
        names[:] = [self.keys.name(at) for at in range(len(self))]
        return names

    @cached_property
    def _places(self) -> dict[tuple[str, ...], int]:
        places: dict[tuple[str, ...], int] = {}
        for at, name in enumerate(self._names):
            key = _unordered(name)
            places[key] = AMBIGUOUS if key in places else at
        return places

    @cached_property
    def ranks(self) -> dict[tuple[str, ...], int]:
        """The rank of every segment by its parts (`Keys.parts`); of twins, such as columns of one name, the worst."""
        ranks: dict[tuple[str, ...], int] = {}
        for at in range(len(self)):
            ranks.setdefault(self.keys.parts(at), at)
        return ranks

    def finding(self, at: int) -> Finding:
        """Give the segment of a rank, 0 being the worst."""
        values = {name: column[at].item() for name, column in self.columns.items()}
        return Finding(
            segment=self.keys.name(at),
            depth=int((self.keys.columns[at] >= 0).sum()),
            note=self._note(values),
            curve=self.curves.get(at),
            **values,
        )

    def _note(self, values: Mapping[str, Any]) -> str:
        """Say what a reader must know to read the numbers."""
        if not values["testable"]:
            return f"not tested: {values['n']} rows"
        if values["p_value"] == 0 and values["sigma"] == math.inf:
            return "a certain prediction contradicted" if self.schema.task != "regression" else "off without any noise"
        if self.schema.task == "regression" and values["n"] < APPROXIMATE_ROWS:
            return "p-value approximate: few rows of a real outcome"
        return ""

    @property
    def tested(self) -> int:
        """Number of segments in the family."""
        return int(self.columns["testable"].sum())

    @property
    def rejected(self) -> int:
        """Number of segments whose adjusted p-value is at most alpha."""
        return int((self.columns["p_adjusted"] <= self.settings.alpha).sum())

    @property
    def miscalibrated(self) -> bool:
        """Whether some segment is off beyond chance."""
        return self.rejected > 0

    @property
    def verdict(self) -> str:
        """The answer in one sentence."""
        return text.verdict(self)

    @cached_property
    def overall(self) -> Finding:
        """The whole, one of the family; for several classes their top label."""
        return self.finding(int(np.flatnonzero((self.keys.depth == 0) & (self.keys.target == 0))[0]))

    def worst(self, count: int = 10) -> list[Finding]:
        """Give the worst segments, by adjusted p-value and then by sigma."""
        return [self.finding(at) for at in range(max(0, min(count, len(self))))]

    @property
    def worst_sigma(self) -> float:
        """Multicalibration error: the largest statistic over its noise among the tested segments."""
        found = self.columns["sigma"][self.columns["testable"]]
        return float(found.max()) if len(found) else math.nan

    @property
    def mce_absolute(self) -> float:
        """Multicalibration error in the units of the score: `worst_sigma` times the noise of the whole."""
        return self.worst_sigma * self.global_sigma

    @property
    def mce_relative(self) -> float:
        """Multicalibration error over the rarer class's share (over the size of the mean, for real outcomes)."""
        scale = abs(self.prevalence) if self.schema.task == "regression" else min(self.prevalence, 1 - self.prevalence)
        return self.mce_absolute / scale if scale > 0 else math.nan

    @property
    def bounded(self) -> bool:
        """Whether sigma is known within a bound only: rows lay in parts, and were not brought together."""
        return BOUND in self.columns

    def to_frame(self, like: Any = None) -> Any:
        """Give every segment as a frame of the library that ``like`` comes from, or as a dict of arrays.

        Where sigma is known within a bound, ``sigma_bound`` is one more column.
        """
        named = {"segment": self._names, "depth": self.keys.depth, **self.columns}
        names = (*COLUMNS, *([BOUND] if self.bounded else []))
        return frame_like({name: named[name].copy() for name in names}, like)

    def to_dict(self, most: int | None = None) -> dict[str, Any]:
        """Give plain values fit for JSON: the verdict, the settings, and the findings, worst first (``most`` of them)."""
        count = len(self) if most is None else min(most, len(self))
        summary = {
            name: to_jsonable(getattr(self, name))
            for name in (
                "verdict", "miscalibrated", "rows", "tested", "rejected", "worst_sigma", "mce_absolute", "mce_relative",
                "prevalence", "unlabelled", "weightless", "thin",
            )
        }  # fmt: skip
        roles = {name: getattr(self.schema, name) for name in ("task", "outcome", "prediction", "weight", "classes")}
        return {
            **summary,
            "roles": {name: list(role) if isinstance(role, tuple) else role for name, role in roles.items()},
            "by": [feature.name for feature in self.schema.features],
            "settings": {name: to_jsonable(getattr(self.settings, name)) for name in Settings.__dataclass_fields__},
            "dropped": list(self.dropped),
            "left_out": dict(self.left_out),
            "overall": self._plain(self.overall),
            "findings": [self._plain(self.finding(at)) for at in range(count)],
        }

    def _plain(self, finding: Finding) -> dict[str, Any]:
        return finding.to_dict() | ({BOUND: to_jsonable(finding.sigma_bound)} if self.bounded else {})

    def __repr__(self) -> str:
        return text.audit_page(self)

    def _repr_html_(self) -> str:
        return text.audit_html(self)
