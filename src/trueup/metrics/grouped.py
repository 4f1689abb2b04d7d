"""Any measure, group by group, and the worst group."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, SupportsFloat

import numpy as np

from trueup.data.frame import frame_like, to_jsonable
from trueup.errors import ArgumentError, DataError

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import ArrayLike

    from trueup._types import AnyArray, FloatArray, IntArray


@dataclass(frozen=True, eq=False, repr=False)
class GroupErrors:
    """One error a group.

    ``groups`` are the labels as given, sorted, with None last for rows without a label; ``values`` their errors, NaN where
    the measure has none to give; ``rows`` how many rows with weight each has.
    """

    measure: str
    groups: tuple[Any, ...]
    values: FloatArray
    rows: IntArray

    @property
    def worst(self) -> tuple[Any, float]:
        """The group with the largest error, the first of equals, and the error."""
        at = int(np.argmax(np.where(np.isnan(self.values), -np.inf, self.values)))
        return self.groups[at], float(self.values[at])

    def __repr__(self) -> str:
        group, value = self.worst
        rows, none = self.rows[self.groups.index(group)], int(np.isnan(self.values).sum())
        aside = f", {none:,} without a value" if none else ""
        found = f"{self.measure} is largest in group {group!r}: {value:.4g} ({rows:,} rows)"
        return f"<GroupErrors: {found}; {len(self.groups):,} group{'' if len(self.groups) == 1 else 's'}{aside}>"

    def to_dict(self) -> dict[str, Any]:
        """Give plain values fit for JSON, but for the labels, which are as given; what is not finite becomes None."""
        found = {"values": to_jsonable(self.values), "rows": self.rows.tolist()}
        return {"measure": self.measure, "groups": list(self.groups), **found}

    def to_frame(self, like: Any = None) -> Any:
        """Give columns group, value and rows, in a frame of the library of ``like``; a dict of arrays for None."""
        labels = np.empty(len(self.groups), object)
        labels[:] = self.groups
        return frame_like({"group": labels, "value": self.values.copy(), "rows": self.rows.copy()}, like)


def by_group(
    measure: Callable[..., SupportsFloat], y: ArrayLike, p: ArrayLike, groups: ArrayLike, weight: ArrayLike | None = None,
    **options: Any,
) -> GroupErrors:  # fmt: skip
    """Take any measure ``measure(y, p, weight, **options)``, larger for worse, on the rows of each group.

    ``groups`` holds one label a row: None and NaN are one group, and a group without weight is left out. Or it holds
    indicators, (n, g): the groups are then numbered by column and may overlap. The rest is as the measure takes it;
    p may be (n, k).

    Examples
    --------
    >>> from trueup.metrics.binned import mce
    >>> by_group(mce, [0, 1, 1, 1], [0.25, 0.25, 0.5, 0.75], ["a", "a", "b", "b"])
    <GroupErrors: mce is largest in group 'b': 0.5 (2 rows); 2 groups>
    """
    if not callable(measure):
        raise ArgumentError(f"measure must be a function; got {measure!r}", hint="pass metrics.ece, not its name")
    ys, ps, labels = np.asarray(y), np.asarray(p), as_labels(groups)
    ws = np.ones(len(ys)) if weight is None and ys.ndim else np.asarray(weight)
    if not labels.shape[:1] == ws.shape == ys.shape[:1] == ps.shape[:1] or labels.ndim not in (1, 2):
        shapes = ", ".join(str(array.shape) for array in (ys, ps, labels, ws))
        raise DataError(f"y, p, groups and weight must be equally long; got shapes {shapes}", hint="one entry a row")
    counts = np.flatnonzero(ws != 0)
    if not len(counts):
        raise DataError("no row has a weight", hint="a measure needs at least one row")
    names, parts = _members(labels, counts)
    values = np.empty(len(parts))
    for at, rows in enumerate(parts):
        try:
            found = measure(ys[rows], ps[rows], None if weight is None else ws[rows], **options)
            values[at] = _as_number(found)
        except DataError as error:
            message = f"group {names[at]!r} (rows counted within it): {error.message}"
            raise DataError(message, hint=error.hint) from error
    return GroupErrors(getattr(measure, "__name__", "error"), names, values, np.array([len(rows) for rows in parts]))


def _as_number(found: Any) -> float:
    try:
        return float(found)
    except TypeError as error:
        raise ArgumentError(
            f"a measure by group must give a number; got {type(found).__name__}",
            hint="pick one of its parts, as measure=lambda *rows: corp(*rows).miscalibration",
        ) from error


def _members(groups: AnyArray, counts: IntArray) -> tuple[tuple[Any, ...], list[IntArray]]:
    """Name the groups and list the rows of each, among those that count; empty ones are left out."""
    if groups.ndim == 1:
        names, codes = labelled(groups[counts])
        return names, np.split(counts[np.argsort(codes, kind="stable")], np.cumsum(np.bincount(codes))[:-1])
    if not np.isin(groups, (0, 1)).all():
        raise DataError("groups as indicators must be 0 and 1, or booleans", hint="pass labels as a one-dimensional array")
    found = {at: counts[groups[counts, at].astype(bool)] for at in range(groups.shape[1])}
    found = {at: rows for at, rows in found.items() if len(rows)}
    if not found:
        raise DataError("every group is empty", hint="at least one row must be in a group")
    return tuple(found), list(found.values())


def as_labels(groups: ArrayLike) -> AnyArray:
    """Take labels as they were given: NumPy would make texts of a list of several kinds, and numbers of dates."""
    if isinstance(groups, (list, tuple)) and not any(isinstance(one, (list, tuple, np.ndarray)) for one in groups):
        plain = np.empty(len(groups), object)
        plain[:] = groups
        return plain
    given = np.asarray(groups)
    return given.astype("datetime64[us]").astype(object) if given.dtype.kind == "M" else given


def labelled(labels: AnyArray) -> tuple[tuple[Any, ...], IntArray]:
    """Give the distinct labels in order, missing ones as one None at the end, and the place of each row's among them."""
    index: dict[Any, int] = {}
    missing = {"NoneType", "NAType", "NaTType"}
    plain = (None if type(value).__name__ in missing or value != value else value for value in labels.tolist())
    first = np.array([index.setdefault(value, len(index)) for value in plain])
    try:
        names = sorted(index, key=lambda name: (name is None, 0 if name is None else name))
    except TypeError:  # labels of several kinds have no order of their own
        names = sorted(index, key=lambda name: (name is None, type(name).__name__, str(name)))
    place = np.empty(len(names), np.int64)
    place[[index[name] for name in names]] = np.arange(len(names))
    return tuple(names), place[first]
