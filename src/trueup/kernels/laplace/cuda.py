"""Sums over all pairs of rows of a bin on a graphics card: float32 coordinates, sums in float64.

Coordinates are counted from the middle of the rows, so that float32 loses little of a distance; where it would lose too
much (`fine_enough`) the processor does the work. Tiles are added in any order: the last bits of a sum are not fixed.
"""

from __future__ import annotations

import ctypes
import math
import warnings
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.errors import TrueupWarning
from trueup.kernels.laplace.nvrtc import build
from trueup.kernels.laplace.tiles import LOG2E, unit_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]
    Ints = NDArray[np.int64]

__all__ = ["available", "fine_enough", "sum_among", "sum_at"]

SIDE = 128  # rows of a tile
RUN = 32  # tiles of a task
THREADS = 256
DEEPEST = 52  # dimensions of a chunk, at most
RESERVED = 24 * 1024  # bytes of shared memory for all but coordinates
SAMPLE = 10_000  # rows tell of the usual distance
MOST_COLUMNS = 3  # as many as shared memory has room for
FINE = 1e-6  # how far the roundings of a distance of the usual size may move a kernel's value, as a share


def available() -> bool:
    """Say whether there is a card, and warn where there is none."""
    torch = require("torch", extra="gpu")
    if torch.cuda.is_available():
        return True
    warnings.warn(
        "device='cuda' was asked for, but torch finds no graphics card; the processor does the work instead",
        TrueupWarning,
        stacklevel=6,  # the caller of a measure
    )
    return False


def fine_enough(points: Floats, middle: Floats, scale: float) -> bool:
    """Say whether float32 will do at this scale: by the roundings of coordinates and of their sum, as chance has them."""
    some = points[:: max(1, len(points) // SAMPLE)]
    with np.errstate(over="ignore"):
        size = float(np.abs(some - middle).mean(axis=0).sum()) * scale
    return bool(2 * size * 2.0**-24 * (1 + math.sqrt(points.shape[1]) / 3) <= FINE)


def sum_among(points: Floats, middle: Floats, columns: Floats, starts: Ints, scales: Floats) -> Floats:
    """Sum the columns of all other rows of each row's bin, shape (scales, rows, columns), plainly: sums may vanish."""
    order, real, blocks = _pad(starts)
    tasks = _tasks([(one, one, stop) for start, stop in pairwise(blocks) for one in range(start, stop)])
    X = _upload(points, order, middle)
    unit = unit_of(columns)
    return _sums(X, _columns(columns * unit, order, real), X, tasks, scales, real, among=True) / unit


def sum_at(
    points: Floats, middle: Floats, columns: Floats, starts: Ints, targets: Floats, target_starts: Ints, scales: Floats
) -> Floats:
    """Sum the columns of each target's bin, shape (scales, targets, columns), plainly: sums may vanish."""
    order, real, blocks = _pad(starts)
    asked, there, places = _pad(target_starts)
    tasks = _tasks([
        (one, blocks[k], blocks[k + 1]) for k in range(len(blocks) - 1) for one in range(places[k], places[k + 1])
    ])  # fmt: skip
    X, Y = _upload(points, order, middle), _upload(targets, asked, middle)
    unit = unit_of(columns)
    return _sums(X, _columns(columns * unit, order, real), Y, tasks, scales, there, among=False) / unit


def _pad(starts: Ints) -> tuple[Ints, NDArray[np.bool_], list[int]]:
    """Fill up the last tile of each bin: the row at each place, whether it is one, and the first tile of each bin."""
    counts = np.diff(starts)
    tiles = -(-counts // SIDE)
    bins = np.repeat(np.arange(len(counts)), tiles * SIDE)
    within = np.arange(len(bins)) - np.repeat(SIDE * np.append(0, np.cumsum(tiles))[:-1], tiles * SIDE)
    real = within < counts[bins]
    return starts[bins] + np.where(real, within, 0), real, np.append(0, np.cumsum(tiles)).tolist()


def _tasks(whole: list[tuple[int, int, int]]) -> NDArray[np.int32]:
    """Cut what each tile's rows meet into runs."""
    given = np.array(whole, np.int32).reshape(-1, 3)
    runs = -(-(given[:, 2] - given[:, 1]) // RUN)
    of = np.repeat(np.arange(len(given)), runs)
    first = given[of, 1] + RUN * (np.arange(len(of)) - np.repeat(np.append(0, np.cumsum(runs))[:-1], runs))
    return np.column_stack([given[of, 0], first, np.minimum(first + RUN, given[of, 2])]).astype(np.int32)


def _upload(values: Floats, order: Ints, middle: Floats | float = 0.0) -> Any:
    """Put rows on the card as (columns, places) of float32, counted from the middle."""
    torch = require("torch", extra="gpu")
    whole = torch.as_tensor(values).to("cuda") - torch.as_tensor(middle).to("cuda")
    return whole.T.to(torch.float32)[:, torch.as_tensor(order).to("cuda")].contiguous()


def _columns(columns: Floats, order: Ints, real: NDArray[np.bool_]) -> Any:
    torch = require("torch", extra="gpu")
    return _upload(columns, order) * torch.as_tensor(real).to("cuda")


def _sums(
    X: Any, C: Any, Y: Any, tasks: NDArray[np.int32], scales: Floats, real: NDArray[np.bool_], *, among: bool
) -> Floats:
    """Run the tiles, a few columns at a time; give the sums at the places that hold a point, which come in order."""
    torch = require("torch", extra="gpu")
    major, minor = torch.cuda.get_device_capability()
    where = torch.as_tensor(tasks).to("cuda")
    factors = torch.as_tensor((scales * LOG2E).astype(np.float32)).to("cuda")
    deep = _chunk(len(X), 8 * len(scales) * MOST_COLUMNS * SIDE)
    parts = []
    for start in range(0, len(C), MOST_COLUMNS):
        some = C[start : start + MOST_COLUMNS].contiguous()
        told = f"COLUMNS={len(some)}", f"AMONG={int(among)}", f"DEEP={deep}"
        kernel = build("tiles.cu", "sums", f"sm_{major}{minor}", torch.cuda.current_device(), *told)
        out = torch.zeros((len(scales), len(some), Y.shape[1]), dtype=torch.float64, device="cuda")
        addresses = [ctypes.c_void_p(one.data_ptr()) for one in (X, some, Y, where, factors, out)]
        sizes = ctypes.c_longlong(X.shape[1]), ctypes.c_longlong(Y.shape[1]), ctypes.c_int(len(X))
        shared = 8 * len(scales) * len(some) * SIDE + 4 * 4 * deep * SIDE
        stream = torch.cuda.current_stream().cuda_stream
        if len(tasks):
            kernel.launch(len(tasks), THREADS, shared, stream, *addresses, *sizes, ctypes.c_int(len(scales)))
        parts.append(out)
    whole = torch.cat(parts, dim=1)[:, :, torch.as_tensor(np.flatnonzero(real)).to("cuda")]
    return np.asarray(whole.transpose(1, 2).contiguous().cpu().numpy())


def _chunk(dimensions: int, sums: int) -> int:
    """Say how many dimensions are read at a time, so that two blocks of threads share a processor's memory."""
    torch = require("torch", extra="gpu")
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    memory = getattr(card, "shared_memory_per_multiprocessor", 100 * 1024)
    most = int(np.clip((memory // 2 - RESERVED - sums) // (4 * 4 * SIDE), 4, DEEPEST))
    return -(-dimensions // -(-dimensions // most))
