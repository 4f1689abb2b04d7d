"""The file of a monitor: a versioned archive with checksums, written atomically, and a lock against a second writer."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import sys
from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup import storage
from trueup.calibrators.evidence import compress, decompress
from trueup.calibrators.model import FileContentError, is_integer, require
from trueup.data.bins import ColumnBinner
from trueup.data.table import Feature, Schema
from trueup.errors import ArgumentError, FileError
from trueup.kernels.sequential import EXTRA_COLUMNS
from trueup.monitoring.drift import DriftProcesses
from trueup.monitoring.eprocess import EProcesses, alternatives
from trueup.monitoring.history import SegmentHistory
from trueup.monitoring.ledger import RowLedger
from trueup.monitoring.monitor import MIN_PERIOD_DAYS, Monitor
from trueup.monitoring.periods import MAX_PERIOD_ROWS, Clock, MonitorState, OpenDrift, OpenPeriod
from trueup.monitoring.result import RowCounts
from trueup.monitoring.rows import GivenRows, MonitoredRows
from trueup.monitoring.segments import MonitoredColumn, MonitoredSegments, SegmentCombination

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from trueup._types import AnyArray
    from trueup.monitoring.segments import Key

KIND, FORMAT, MANIFEST = "trueup monitor", 1, "monitor.json"
SETTINGS = (
    "outcome", "prediction", "by", "time", "maturity", "period", "id", "cluster", "alpha", "budget", "depth", "bins",
    "categorical", "score_bands", "min_rows", "max_segments", "unlabelled",
)  # fmt: skip
LEDGER = ("waiting", "given", "missing")
MAX_VALUES = 1 << 28  # of an array
MAX_DAY = 3.6e6  # from 1970: some ten thousand years
MAX_PERIOD = int(MAX_DAY / MIN_PERIOD_DAYS)
MAX_DEPTH = 3  # columns of a combination
DTYPES = ("<f8", "<i8", "<i4", "<u8")


def save(monitor: Monitor, path: str | os.PathLike[str]) -> None:
    """Write a monitor to a file, atomically.

    If the file is not the one that this monitor read or wrote last under that path, another monitor is in it, or another
    process has updated it, and nothing is written.
    """
    with locked(Path(path)):
        write(monitor, path)


def write(monitor: Monitor, path: str | os.PathLike[str]) -> None:
    """Write a monitor as `save` does; the caller holds the lock of the file."""
    target, place = Path(path), os.path.realpath(path)
    if target.exists():
        known, found = monitor.contents.get(place), load(target).contents[place]
        if known is None:
            raise FileError(
                f"{storage.describe_source(path)} has another monitor", hint="name another file, or delete this one"
            )
        if found != known:
            raise FileError(
                f"{storage.describe_source(path)} was changed by another process since it was read",
                hint="load it again, and give it the rows again",
            )
    content = secrets.token_hex(16)
    storage.write(target, _pack(monitor, monitor.revision + 1, content), kind=KIND)
    monitor.revision, monitor.contents[place] = monitor.revision + 1, content


def load(path: str | os.PathLike[str]) -> Monitor:
    """Read a monitor from a file; raise FileError if it is damaged, not a monitor, or of a later version."""
    blobs, name = storage.read(path, kind=KIND), storage.describe_source(path)
    try:
        monitor, content = _unpack(blobs)
    except FileContentError as error:
        raise FileError(f"{name}: {error}", hint="it was written by another program or version") from None
    except (KeyError, TypeError, ValueError, RecursionError, OverflowError, AttributeError, IndexError) as error:
        hint = "name a file written by Monitor.save or trueup watch"
        raise FileError(f"{name} is not a monitor of trueup ({type(error).__name__})", hint=hint) from None
    monitor.contents[os.path.realpath(path)] = content
    return monitor


@contextlib.contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a monitor file; raise at once if another process holds it.

    The lock is that of the operating system on a file beside it, and ends with its process, however that ends.
    """
    if sys.platform == "win32":
        yield
        return
    import fcntl

    path = Path(os.path.realpath(path))  # a link and its target have one lock
    beside = path.with_name(f".{path.name}.lock")
    storage.check_writable(path, example="model.watch")
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC  # a link could make another file
        stream = os.fdopen(os.open(beside, flags, 0o600), "w")
    except OSError as error:
        raise storage.cannot_write(beside, error, example="model.watch") from error
    with stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise FileError(
                f"{storage.describe_source(path)} is in use by another process",
                hint="wait until it has finished, and run again",
            ) from None
        except OSError:  # a file system without locks: the revision still tells two writers apart
            pass
        yield


class _Arrays:
    """Arrays of an archive by name, each described in the manifest."""

    def __init__(self) -> None:
        self.blobs: dict[str, bytes] = {}
        self.listed: dict[str, Any] = {}

    def add(self, name: str, array: AnyArray) -> None:
        dtype = {"f": "<f8", "u": "<u8"}.get(array.dtype.kind, "<i4" if array.dtype.itemsize <= 4 else "<i8")
        self.listed[name] = {"dtype": dtype, "shape": list(array.shape)}
        self.blobs[f"arrays/{name}"] = compress(np.ascontiguousarray(array, dtype).ravel()) if array.size else b""


def _reader(manifest: Mapping[str, Any], blobs: Mapping[str, bytes]) -> Callable[..., AnyArray]:
    """Return a function that reads an array by name and validates its type and shape; -1 stands for any length."""
    listed = manifest["arrays"]
    require(isinstance(listed, dict) and {f"arrays/{name}" for name in listed} == set(blobs), "its arrays do not fit")

    def read(name: str, kind: str, *shape: int) -> AnyArray:
        entry = listed[name]
        dtype, given = entry["dtype"], tuple(entry["shape"])
        require(dtype in DTYPES and np.dtype(dtype).kind == kind, f"the array {name} has another type")
        require(all(is_integer(size) and 0 <= size <= MAX_VALUES for size in given), f"the shape of {name} is invalid")
        fits = len(given) == len(shape) and all(want in (-1, size) for want, size in zip(shape, given, strict=True))
        require(fits, f"the array {name} has the shape {given}")
        size = int(np.prod(given, dtype=np.float64))
        require(size <= MAX_VALUES, f"the array {name} is too large")
        if not size:
            return np.empty(given, np.dtype(dtype).newbyteorder("="))
        return decompress(blobs[f"arrays/{name}"], np.dtype(dtype), size).reshape(given)

    return read


def _pack(monitor: Monitor, revision: int, content: str) -> dict[str, bytes]:
    settings = {name: _plain(name, getattr(monitor, name)) for name in SETTINGS}
    settings["tolerance"], settings["sampling"] = monitor.tolerance, monitor.sampling
    settings["positive"] = monitor.positive
    manifest: dict[str, Any] = {
        "format": FORMAT, "revision": revision, "content": content, "settings": settings, "state": None,
    }  # fmt: skip
    arrays = _Arrays()
    if monitor.is_started:
        manifest["state"] = _pack_state(monitor.state, arrays)
    manifest["arrays"] = arrays.listed
    text = json.dumps(manifest, allow_nan=False, sort_keys=True).encode("utf-8", "surrogatepass")
    return {MANIFEST: text, **arrays.blobs}


def _plain(name: str, value: Any) -> Any:
    """Return a setting as JSON represents it; raise if it is something else than texts and numbers."""
    if value is None or isinstance(value, (str, bool, int, float)):
        return value
    if isinstance(value, np.generic):
        return _plain(name, value.item())
    if isinstance(value, dict):
        return {"keys": [_plain(name, key) if key is not ... else None for key in value],
                "values": [_plain(name, own) for own in value.values()]}  # fmt: skip
    if isinstance(value, (list, tuple, np.ndarray)):
        return [_plain(name, own) for own in value]
    raise ArgumentError(
        f"a monitor with {name}={value!r} cannot be saved", hint="name columns by texts or integers", parameter=name
    )


def _restored(value: Any) -> Any:
    if isinstance(value, dict):
        return {... if key is None else key: own for key, own in zip(value["keys"], value["values"], strict=True)}
    return value


def _pack_state(state: MonitorState, arrays: _Arrays) -> dict[str, Any]:
    segments = state.segments
    for item in fields(state.processes):
        arrays.add(f"evidence.{item.name}", getattr(state.processes, item.name))
    history = state.history
    for name in ("periods", "segments", "values"):
        own = getattr(history, name)
        empty = np.empty((0, 4)) if name == "values" else np.empty(0, np.int64)
        arrays.add(f"history.{name}", np.concatenate(own) if own else empty)
    for number, column in enumerate(segments.columns):
        if column.binner is not None:
            assert column.binner.edges is not None
            arrays.add(f"edges.{number}", np.asarray(column.binner.edges, np.float64))
    _pack_cells("cells", [one.cells for one in segments.combinations], arrays)
    _pack_cells("candidates", [one.candidates for one in segments.combinations], arrays)
    arrays.add("shares", np.array(segments.shares))
    entry: dict[str, Any] = {
        "centre": state.centre, "clock": _pack_clock(state.clock), "drift_clock": _pack_clock(state.drift_clock),
        "rows": asdict(state.rows), "drift_rows": asdict(state.drift_rows), "ledger": _pack_ledger(state.ledger, arrays),
        "notes": list(state.notes), "distinct": sorted(state.distinct),
        "reported": sorted(state.reported), "prediction": list(state.schema.prediction),
        "tracked": sorted(history.tracked), "labels": segments.labels, "dropped": segments.dropped,
        "uncounted": segments.uncounted,
        "columns": [
            {"name": one.name, "kind": one.feature.kind, "known": one.known, "listed": list(one.listed),
             "levels": one.levels, "reference": list(one.feature.levels),
             "labels": None if one.binner is None else list(one.binner.labels)}
            for one in segments.columns
        ],
        "combinations": [
            {"columns": list(one.columns), "share": one.share, "listed": one.listed, "pool": one.pool, "later": one.later}
            for one in segments.combinations
        ],
        "open": None if state.open is None else _pack_open(state.open, arrays),
        "drift": None if state.drift is None else _pack_drift(state, arrays),
    }  # fmt: skip
    return entry


def _pack_cells(name: str, cells: Sequence[Mapping[Key, int]], arrays: _Arrays) -> None:
    """Add numbers by level codes, of all combinations of columns one after the other; codes have MAX_DEPTH places."""
    keys = [(*key, *[-1] * (MAX_DEPTH - len(key))) for own in cells for key in own]
    arrays.add(f"{name}.sizes", np.array([len(own) for own in cells], np.int64))
    arrays.add(f"{name}.codes", np.array(keys, np.int32).reshape(-1, MAX_DEPTH))
    arrays.add(f"{name}.numbers", np.array([number for own in cells for number in own.values()], np.int64))


def _read_cells(
    name: str, groups: Sequence[tuple[int, ...]], columns: Sequence[MonitoredColumn], read: Callable[..., AnyArray]
) -> list[dict[Key, int]]:
    sizes, keys = read(f"{name}.sizes", "i", len(groups)), read(f"{name}.codes", "i", -1, MAX_DEPTH)
    numbers = read(f"{name}.numbers", "i", len(keys))
    require(
        bool((sizes >= 0).all()) and int(sizes.sum()) == len(keys) and bool((numbers >= 0).all()), "its cells are invalid"
    )
    found, start = [], 0
    for group, size in zip(groups, sizes.tolist(), strict=True):
        own = keys[start : start + size]
        for at, code in zip(group, own.T, strict=False):
            require(bool(((code >= 0) & (code < columns[at].codes)).all()), "its cells are invalid")
        cells = dict(zip(map(tuple, own[:, : len(group)].tolist()), numbers[start : start + size].tolist(), strict=True))
        require(len(cells) == size, "its cells are invalid")
        found.append(cells)
        start += size
    return found


def _pack_clock(clock: Clock) -> dict[str, Any]:
    entry = asdict(clock)
    entry["now"] = _finite(clock.now)
    return entry


def _finite(value: float) -> float | None:
    return value if np.isfinite(value) else None


def _pack_ledger(ledger: RowLedger, arrays: _Arrays) -> dict[str, Any]:
    for name in LEDGER:
        arrays.add(f"ledger.{name}", np.array(sorted(getattr(ledger, name).items()), np.int64).reshape(-1, 2))
    return {"unlabelled": ledger.unlabelled}


def _unpack_ledger(entry: Any, read: Callable[..., AnyArray]) -> RowLedger:
    ledger = RowLedger(unlabelled=entry["unlabelled"])
    require(is_integer(ledger.unlabelled) and ledger.unlabelled >= 0, "its counts are invalid")
    for name in LEDGER:
        pairs = read(f"ledger.{name}", "i", -1, 2)
        require(bool((np.abs(pairs[:, 0]) < MAX_PERIOD).all() and (pairs[:, 1] >= 0).all()), "its counts are invalid")
        setattr(ledger, name, dict(pairs.tolist()))
    return ledger


def _unpack_counts(counts: Any) -> RowCounts:
    require(
        all(is_integer(counts[one.name]) and counts[one.name] >= 0 for one in fields(RowCounts)), "its counts are invalid"
    )
    return RowCounts(**counts)


def _unpack_clock(entry: Any) -> Clock:
    now, first, closed, count = (entry[name] for name in ("now", "first", "closed", "count"))
    require(now is None or (isinstance(now, (int, float)) and abs(now) < MAX_DAY), "its clock is invalid")
    require(
        all(one is None or (is_integer(one) and abs(one) < MAX_PERIOD) for one in (first, closed)), "its clock is invalid"
    )
    require(is_integer(count) and count >= 0 and (closed is None) <= (count == 0), "its clock is invalid")
    require(closed is None or (first is not None and first <= closed), "its clock is invalid")
    return Clock(-np.inf if now is None else float(now), first, closed, count)


def _pack_open(period: OpenPeriod, arrays: _Arrays) -> dict[str, Any]:
    arrays.add("open.sums", period.sums)
    arrays.add("open.given", period.given.keys)
    _pack_cells("open", period.candidates, arrays)
    rows = period.rows
    if rows is not None:
        assert rows.cluster is not None
        arrays.add("held.values", np.column_stack([rows.y, rows.p, rows.day]))
        arrays.add("held.codes", np.array(rows.codes, np.int32).reshape(len(rows.codes), len(rows)))
        arrays.add("held.cluster", rows.cluster)
    return {"number": period.number, "count": period.count, "unscored": period.unscored, "unlabelled": period.unlabelled,
            "latest": _finite(period.given.latest), "held": rows is not None}  # fmt: skip


def _pack_drift(state: MonitorState, arrays: _Arrays) -> dict[str, Any]:
    drift = state.drift
    assert drift is not None
    for item in fields(drift.processes):
        arrays.add(f"drift.{item.name}", getattr(drift.processes, item.name))
    for name in ("starts", "reference", "low", "high", "counts", "last_counts"):
        arrays.add(f"drift.level.{name}", getattr(drift, name))
    entry: dict[str, Any] = {"rows": drift.rows, "total": drift.total, "last_total": drift.last_total, "open": None}
    if state.drift_open is not None:
        period = state.drift_open
        arrays.add("drift.open", period.levels)
        arrays.add("drift.given", period.given.keys)
        entry["open"] = {"number": period.number, "rows": period.rows, "latest": _finite(period.given.latest)}
    return entry


def _unpack(blobs: dict[str, bytes]) -> tuple[Monitor, str]:
    manifest = json.loads(blobs.pop(MANIFEST).decode("utf-8", "surrogatepass"), parse_constant=_reject_constant)
    version, revision, content = manifest["format"], manifest["revision"], manifest["content"]
    require(is_integer(version) and version >= 1, f"the format {version!r} is unknown")
    require(version <= FORMAT, f"it has format {version} of a later version of trueup; this version reads up to {FORMAT}")
    require(is_integer(revision) and revision >= 0 and isinstance(content, str), "its revision is invalid")
    given = manifest["settings"]
    settings = {name: _restored(given[name]) for name in SETTINGS}
    settings["by"] = (
        settings["by"] if settings["by"] is None or isinstance(settings["by"], (str, int)) else list(settings["by"])
    )
    try:
        monitor = Monitor(**settings)
    except ArgumentError as error:
        raise FileContentError(f"its settings are invalid: {error.message}") from None
    tolerance, sampling = given["tolerance"], given["sampling"]
    require(isinstance(tolerance, (int, float)) and 0 <= tolerance <= 100, "its tolerance is invalid")
    require(
        sampling is None
        or (len(sampling) == 2 and all(isinstance(one, (int, float)) and 0 < one <= 1 for one in sampling)),
        "its sampling is invalid",
    )
    positive = given.get("positive")
    require(positive is None or isinstance(positive, str), "its positive outcome is invalid")
    monitor.positive = positive
    monitor.tolerance, monitor.sampling = float(tolerance), None if sampling is None else (sampling[0], sampling[1])
    monitor.revision = revision
    _check_names(monitor)
    if manifest["state"] is None:
        require(not blobs, "it has arrays without a state")
    else:
        monitor.restore(_unpack_state(manifest["state"], _reader(manifest, blobs), monitor))
    return monitor, content


def _reject_constant(text: str) -> float:
    raise FileContentError(f"it contains the number {text}")


def _unpack_state(entry: Any, read: Callable[..., AnyArray], monitor: Monitor) -> MonitorState:
    segments = _unpack_segments(entry, read, monitor)
    width = len(alternatives())
    processes = _unpack_processes("evidence", len(segments), read)
    names = entry["prediction"]
    require(isinstance(names, list) and len(names) == 1 and isinstance(names[0], str), "its prediction is invalid")
    features = [column.feature for column in segments.columns if column.name in {one["name"] for one in entry["columns"]}]
    bands = len(features) - bool(monitor.score_bands > 1)
    schema = Schema("binary", str(monitor.outcome), (names[0],), None, tuple(features[:bands]))
    centre = entry["centre"]
    require(isinstance(centre, float) and abs(centre) < 100, "its centre is invalid")
    state = MonitorState(segments, processes, centre, schema, _unpack_clock(entry["clock"]))
    _check_periods(processes, state.clock)
    require(all(abs(one) * monitor.period < MAX_DAY for one in (state.clock.first, state.clock.closed) if one is not None),
            "its clock is invalid")  # fmt: skip
    state.drift_clock = _unpack_clock(entry["drift_clock"])
    state.rows, state.drift_rows = _unpack_counts(entry["rows"]), _unpack_counts(entry["drift_rows"])
    state.ledger = _unpack_ledger(entry["ledger"], read)
    for name in ("distinct", "reported"):
        require(all(is_integer(one) and 0 <= one < len(segments) for one in entry[name]), "its alarms are invalid")
        setattr(state, name, frozenset(entry[name]))
    require(all(isinstance(text, str) for text in entry["notes"]), "its notes are invalid")
    state.notes = tuple(entry["notes"])
    state.history = _unpack_history(entry, read, len(segments), state.clock)
    if entry["open"] is not None:
        state.open = _unpack_open(entry["open"], read, segments, width + EXTRA_COLUMNS, state.clock,
                                  timed=monitor.time is not None)  # fmt: skip
    if entry["drift"] is not None:
        _unpack_drift(entry["drift"], read, state)
    return state


def _check_names(monitor: Monitor) -> None:
    """Raise unless columns are named by texts or integers."""
    for name in ("outcome", "prediction", "time", "id", "cluster"):
        value = getattr(monitor, name)
        valid = isinstance(value, (str, int)) or (value is None and name not in ("outcome", "prediction"))
        require(valid, f"its {name} is invalid")


def _check_periods(processes: EProcesses, clock: Clock) -> None:
    """Raise unless alarms and onsets lie in closed periods; -1 stands for none."""
    require(bool((processes.start >= 0).all() and (processes.start <= MAX_DAY).all()), "its segments are invalid")
    low, high = (0, -1) if clock.first is None or clock.closed is None else (clock.first, clock.closed)
    for own in (processes.alarm, processes.contradicted, processes.since):
        require(bool(((own == -1) | ((own >= low) & (own <= high))).all()), "its alarms do not fit its clock")


def _unpack_processes(prefix: str, count: int, read: Callable[..., AnyArray]) -> EProcesses:
    empty = EProcesses.empty(1)
    arrays = {}
    for item in fields(EProcesses):
        like = getattr(empty, item.name)
        array = read(f"{prefix}.{item.name}", "f" if like.dtype.kind == "f" else "i", count, *like.shape[1:])
        may_be_infinite = item.name == "changed"  # without evidence
        finite = np.isfinite(array) | (array == -np.inf) if may_be_infinite else np.isfinite(array)
        valid = array.dtype.kind != "f" or bool(finite.all())
        require(valid, f"{item.name} is not finite")
        arrays[item.name] = array.astype(like.dtype)
    return EProcesses(**arrays)


def _unpack_segments(entry: Any, read: Callable[..., AnyArray], monitor: Monitor) -> MonitoredSegments:
    columns = [_unpack_column(one, number, read) for number, one in enumerate(entry["columns"])]
    labels, shares = entry["labels"], read("shares", "f", -1)
    require(isinstance(labels, list) and all(isinstance(label, str) for label in labels), "its labels are invalid")
    require(len(labels) == len(shares) and bool(((shares > 0) & (shares <= 1)).all()), "its shares are invalid")
    require(bool(labels) and float(shares.sum()) <= 1 + 1e-6, "its shares are invalid")
    combinations, groups = [], [tuple(one["columns"]) for one in entry["combinations"]]
    for group in groups:
        require(
            all(is_integer(at) and 0 <= at < len(columns) for at in group) and len(group) <= MAX_DEPTH,
            "its columns are invalid",
        )
    known, rows = (_read_cells(name, groups, columns, read) for name in ("cells", "candidates"))
    for one, group, cells, candidates in zip(entry["combinations"], groups, known, rows, strict=True):
        require(all(member < len(labels) for member in cells.values()), "its segments are invalid")
        share, listed, pool, later = (one[name] for name in ("share", "listed", "pool", "later"))
        require(isinstance(share, float) and 0 < share <= 1, "its shares are invalid")
        require(is_integer(listed) and is_integer(later) and listed >= 0 and later >= 0, "its segments are invalid")
        require(
            pool is None or (is_integer(pool) and 0 <= pool < len(labels) and len(group) == 1), "its segments are invalid"
        )
        combinations.append(SegmentCombination(group, share, cells, listed, pool, later, candidates))
    dropped, uncounted = entry["dropped"], entry["uncounted"]
    require(is_integer(dropped) and is_integer(uncounted), "its segments are invalid")
    return MonitoredSegments(
        columns, combinations, list(labels), shares.tolist(), monitor.min_rows, monitor.max_segments, dropped, uncounted
    )


def _unpack_column(entry: Any, number: int, read: Callable[..., AnyArray]) -> MonitoredColumn:
    name, kind, known, levels, labels = (entry[key] for key in ("name", "kind", "known", "levels", "labels"))
    require(isinstance(name, str) and kind in ("categorical", "numeric", "date"), "a column is invalid")
    for texts in (levels, entry["reference"], labels or []):
        require(isinstance(texts, list) and all(isinstance(text, str) for text in texts), "its levels are invalid")
    require((kind == "categorical") == (labels is None), "a column is invalid")
    binner = None
    if labels is not None:
        edges = read(f"edges.{number}", "f", -1)
        ascending = bool(np.isfinite(edges).all() and (np.diff(edges) > 0).all())
        require(ascending and len(labels) == len(edges) + 2, "the bins of a column are invalid")
        binner = ColumnBinner(name, edges, tuple(labels))
    require(len(set(levels)) == len(levels), "its levels are invalid")
    column = MonitoredColumn(Feature(name, kind, tuple(entry["reference"])), binner, list(levels), (), 0)
    require(is_integer(known) and 0 < known <= column.codes, "a column is invalid")
    require(all(is_integer(code) and 0 <= code < known for code in entry["listed"]), "a column is invalid")
    column.known, column.listed = known, tuple(entry["listed"])
    return column


def _unpack_history(entry: Any, read: Callable[..., AnyArray], segments: int, clock: Clock) -> SegmentHistory:
    periods, which = read("history.periods", "i", -1), read("history.segments", "i", -1)
    values = read("history.values", "f", len(periods), 4)
    require(len(which) == len(periods) and bool(((which >= 0) & (which < segments)).all()), "its history is invalid")
    within = clock.closed is not None and bool(((periods >= (clock.first or 0)) & (periods <= clock.closed)).all())
    require((within or not len(periods)) and bool(np.isfinite(values).all()), "its history is invalid")
    tracked = entry["tracked"]
    require(all(is_integer(one) and 0 <= one < segments for one in tracked), "its history is invalid")
    history = SegmentHistory(tracked=set(tracked))
    if len(periods):
        history.periods, history.segments, history.values = [periods.astype(np.int64)], [which.astype(np.int64)], [values]
    return history


def _unpack_open(
    entry: Any, read: Callable[..., AnyArray], segments: MonitoredSegments, width: int, clock: Clock, *, timed: bool
) -> OpenPeriod:
    number, *sizes = (entry[name] for name in ("number", "count", "unscored", "unlabelled"))
    _check_open(number, clock)
    require(all(is_integer(one) and 0 <= one <= MAX_PERIOD_ROWS for one in sizes), "its open period is invalid")
    candidates = _read_cells("open", [one.columns for one in segments.combinations], segments.columns, read)
    sums = read("open.sums", "i", len(segments), width).astype(np.int64)
    rows, given = None, _unpack_given("open.given", entry["latest"], read)
    if entry["held"]:
        values = read("held.values", "f", -1, 3)
        codes = read("held.codes", "i", len(segments.columns), len(values))
        for column, own in zip(segments.columns, codes, strict=True):
            require(bool(((own >= 0) & (own < column.codes)).all()), "its held rows are invalid")
        inside = bool(np.isfinite(values).all() and (values[:, :2] >= 0).all() and (values[:, :2] <= 1).all())
        require(inside, "its held rows are invalid")
        cluster = read("held.cluster", "u", len(values))
        y, p, day = (np.ascontiguousarray(own) for own in values.T)
        rows = MonitoredRows(y, p, day, [own.astype(np.int32) for own in codes], cluster, None, timed)
    return OpenPeriod(number, sums, candidates, given, rows, *sizes)


def _unpack_drift(entry: Any, read: Callable[..., AnyArray], state: MonitorState) -> None:
    columns = state.segments.columns
    starts = read("drift.level.starts", "i", len(columns) + 1)
    sizes = [column.known + 1 for column in columns]
    require(starts.tolist() == np.cumsum([0, *sizes]).tolist(), "its drift is invalid")
    count = int(starts[-1])
    whole = {name: read(f"drift.level.{name}", "i", count) for name in ("reference", "counts", "last_counts")}
    share = {name: read(f"drift.level.{name}", "f", count) for name in ("low", "high")}
    require(all(bool(((own >= 0) & (own <= 1)).all()) for own in share.values()), "its drift is invalid")
    rows, total, last = entry["rows"], entry["total"], entry["last_total"]
    require(all(is_integer(one) and one >= 0 for one in (rows, total, last)) and rows > 0, "its drift is invalid")
    processes = _unpack_processes("drift", count, read)
    state.drift = DriftProcesses(
        starts.astype(np.int64), whole["reference"], rows, share["low"], share["high"], processes, whole["counts"], total,
        whole["last_counts"], last,
    )  # fmt: skip
    _check_periods(processes, state.drift_clock)
    if entry["open"] is not None:
        number, some = entry["open"]["number"], entry["open"]["rows"]
        _check_open(number, state.drift_clock)
        require(is_integer(some) and 0 <= some <= MAX_PERIOD_ROWS, "its drift is invalid")
        given = _unpack_given("drift.given", entry["open"]["latest"], read)
        state.drift_open = OpenDrift(number, read("drift.open", "i", count).astype(np.int64), some, given)


def _unpack_given(name: str, latest: Any, read: Callable[..., AnyArray]) -> GivenRows:
    require(latest is None or (isinstance(latest, (int, float)) and abs(latest) < MAX_DAY), "its open period is invalid")
    return GivenRows(np.sort(read(name, "u", -1)).astype(np.uint64), -np.inf if latest is None else float(latest))


def _check_open(number: Any, clock: Clock) -> None:
    """Raise unless an open period follows the closed ones."""
    valid = is_integer(number) and abs(number) < MAX_PERIOD and clock.first is not None and number >= clock.first
    require(valid and (clock.closed is None or number > clock.closed), "its open period is invalid")
