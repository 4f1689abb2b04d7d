"""Sums on a GPU: over all pairs of rows, in tiles, or by `halves`; CUDA is compiled by NVRTC, which comes with torch.

Coordinates are float32, or integers of 16 bits, two to a word, where those leave ratios of sums accurate (`packed_error`
measures that on a sample): their instructions are half as many.
"""

from __future__ import annotations

import ctypes
import math
import sys
import warnings
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from trueup._optional import require
from trueup.errors import TrueupError, TrueupWarning
from trueup.kernels.laplace.halves import ArrayTools, Padding, pad, plan, sum_halves
from trueup.kernels.laplace.tiles import LOG2E

if TYPE_CHECKING:
    from trueup._types import FloatArray, IntArray

MOST_SHARED = 8  # the driver's number of the attribute for the maximum dynamic shared memory
CPU_HINT = 'device="cpu" needs no GPU'
VERSIONS = ("13", "12", "11.2")
SIDE = 128  # rows of a tile
RUN = 64  # tiles of a task
THREADS = 256
PART = 32  # words that a warp copies at a time, at most
RESERVED = 8 * 1024  # bytes of shared memory for all but coordinates and sums
ORIGIN = 0x4B000000  # the bits of 2^23 in float32
# At this level the order of instructions lets them share operands: reading registers limits their speed.
OPTIONS = "--ptxas-options=-O1", "--ftz=true"
MIX = -7046029254386353131  # odd: of different rows few have the same sum
STAGED = 2**24  # bytes copied to the GPU at a time
SAMPLE = 10_000  # rows to estimate the typical distance
MOST_COLUMNS = 3  # that fit in shared memory
KEPT = 16 * THREADS * 4  # bytes of the sums of a column
# Of a distance, in units near the largest coordinate: below, all kernels are 1; above, float32 may overflow.
SMALLEST_FACTOR, LARGEST_FACTOR = 1e-30, 1e30
MIN_HALVED_ROWS = (0, 1, 20_000, 50_000)  # by dimensions: bins with more rows are summed by `halves`
STRETCH, STRETCHES = 1024, 4  # rows that a warp scans, and warps of a block: see `scan.cu`
MIN_PACKED_TILES = 256  # of fewer, ratios are never accurate enough
SAMPLED_TILES = 4
MOST_STEP, MOST_STEPS = 2**16 - 1, 2**22 - 1  # of an integer coordinate, and of a distance
PACKED_ERROR = 3e-7  # of a ratio of sums at a row of the sample, relative to the largest ratio of any row
FINE = 1e-6  # the largest relative change of the kernel by rounding of a typical distance
ROUGH = 1e-5  # and of kernels that packed ones are compared with, as sums over many rows


class GpuKernel:
    """The function ``name`` on the GPU, loaded from machine code ``image``."""

    def __init__(self, image: bytes, name: str) -> None:
        self._driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())

    def launch(self, blocks: int, threads: int, shared: int, *given: Any, ways: int = 1) -> None:
        """Launch ``blocks`` times ``ways`` of ``threads`` with ``shared`` bytes each; tensors are passed as addresses."""
        stream = require("torch", extra="gpu").cuda.current_stream().cuda_stream
        values = [ctypes.c_void_p(value.data_ptr()) if hasattr(value, "data_ptr") else value for value in given]
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        size = (blocks, ways, 1, threads, 1, 1, shared)
        grid = [ctypes.c_uint(number) for number in size]
        self._call("cuFuncSetAttribute", self._function, MOST_SHARED, ctypes.c_int(shared))
        self._call("cuLaunchKernel", self._function, *grid, ctypes.c_void_p(stream), addresses, None)

    def _call(self, name: str, *values: Any) -> None:
        if code := getattr(self._driver, name)(*values):
            raise TrueupError(f"the GPU driver failed in {name} with error {code}", hint=CPU_HINT)


@cache
def build(file: str, name: str, device: int, *options: str) -> GpuKernel:
    """Compile a file of this package for a GPU, the current one, and load function ``name``."""
    architecture = "sm_{}{}".format(*require("torch", extra="gpu").cuda.get_device_capability(device))
    source = resources.files(__package__).joinpath(file).read_text()
    return GpuKernel(compile_source(source, f"--gpu-architecture={architecture}", *options), name)


def compile_source(source: str, *options: str) -> bytes:
    """Compile CUDA source to machine code; ``options`` are those of the compiler."""
    library, program = _library(), ctypes.c_void_p()
    listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if code := library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"trueup.cu", 0, None, None):
        raise TrueupError(f"the CUDA runtime compiler rejected the program with error {code}", hint=CPU_HINT)
    failed = library.nvrtcCompileProgram(program, len(options), listed)
    what = "ProgramLog" if failed else "CUBIN"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, content)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        log = content.value.decode(errors="replace")[:2000]
        raise TrueupError(f"the CUDA runtime compiler failed with error {failed}: {log}", hint=CPU_HINT)
    return content.raw


@cache
def _library() -> ctypes.CDLL:
    """Load the runtime compiler, from the system or from the packages that torch brings."""
    # The version of torch first: a driver may be too old for what a newer compiler makes.
    ours = str(getattr(require("torch", extra="gpu").version, "cuda", None) or "").split(".")[0]
    names = [f"libnvrtc.so.{version}" for version in sorted(VERSIONS, key=lambda version: version.split(".")[0] != ours)]
    patterns = [*(f"nvidia/*/lib/{name}" for name in names), "torch/lib/nvrtc64_*_0.dll"]
    places = [path for pattern in patterns for entry in sys.path for path in Path(entry).glob(pattern)]
    for name in [*names, *places]:
        try:
            return ctypes.CDLL(str(name))
        except OSError:
            continue
    raise TrueupError("the CUDA runtime compiler (NVRTC) was not found", hint="install a CUDA build of torch")


def available(*, required: bool = True) -> bool:
    """Return whether torch finds a GPU; warn if it finds none and one was ``required``."""
    cuda = require("torch", extra="gpu").cuda
    if getattr(cuda, "_is_in_bad_fork", bool)():
        if not required:
            return False
        raise TrueupError(
            "device='cuda' cannot be used in a process that was forked after CUDA was started",
            hint="start processes with the method spawn or forkserver, or use device='cpu'",
        )
    if cuda.is_available():
        return True
    if required:
        warnings.warn(
            "device='cuda' was requested, but torch finds no GPU; the CPU is used instead",
            TrueupWarning,
            stacklevel=8,  # the caller of a metric
        )
    return False


def sums(
    points: Any, order: IntArray | None, columns: FloatArray, starts: IntArray, targets: tuple[FloatArray, IntArray] | None,
    scales: FloatArray,
) -> FloatArray | None:  # fmt: skip
    """Sum the columns of each target's bin, weighted by the kernel, shape (scales, targets, columns); may underflow.

    Bin k has the rows ``order[starts[k]:starts[k + 1]]`` of ``points`` (in their order if it is None), and the ``columns``
    at these places; targets are points, sorted by bin, with such starts. Without targets, sums are at each row over all
    other rows of its bin. None if float32 is too inaccurate.
    """
    torch = require("torch", extra="gpu")
    tools = ArrayTools(torch, lambda keys: torch.sort(keys, stable=True).indices, torch.repeat_interleave)
    X = put(points) if order is None else put(points)[put(order)]
    Y = X if targets is None else put(targets[0])
    C, counts = put(columns), put(np.diff(starts))
    unit = 2.0 ** -math.frexp(float(C.abs().max()))[1]  # the largest weight or value is near 1
    C = C * unit
    grid = float_grid(X, torch)
    rough = rounding(X[:: max(1, len(X) // SAMPLE)] - grid.origin, float(scales.max()))
    if not (rough <= ROUGH and scales.max() / grid.unit <= LARGEST_FACTOR):
        return None
    if rough <= FINE and X.shape[1] < len(MIN_HALVED_ROWS) and int(counts.max()) > MIN_HALVED_ROWS[X.shape[1]]:
        bins = tools.repeat(torch.arange(len(counts), device="cuda"), counts)
        if targets is not None:  # rows whose columns are 0
            asked = tools.repeat(torch.arange(len(counts), device="cuda"), put(np.diff(targets[1])))
            X, bins = torch.cat([X, Y]), torch.cat([bins, asked])
            C = torch.cat([C, C.new_zeros((len(Y), C.shape[1]))])
        whole = [_halved(grid, X, C, bins, float(scale), tools) for scale in scales]
        return _get(torch.stack(whole)[:, len(X) - len(Y) :] / unit)
    rows, packed = pad(counts, SIDE, tools), packed_grid(X, torch)
    asked = None if targets is None else pad(put(np.diff(targets[1])), SIDE, tools)
    if asked is None and _packed_error(packed, grid, X, C, rows, scales, tools) <= PACKED_ERROR:
        grid = packed
    elif rough > FINE:
        return None
    tasks = plan(rows.firsts, None if asked is None else asked.firsts, RUN, tools)
    return _get(_sum_tiles(grid, (X, C, rows), asked and (Y, asked), tasks, scales) / unit)


def differ(points: Any, bins: IntArray, share: float) -> bool:
    """Return whether at least a ``share`` of the rows, points on the GPU and their bins, are different from each other."""
    torch = require("torch", extra="gpu")
    words = (points + 0.0).view(torch.int64)  # -0 becomes 0
    marks = (words * torch.full_like(words[0], MIX).cumprod(0)).sum(1) + put(bins)
    return bool(torch.unique(marks).numel() > share * len(marks))


class Grid(NamedTuple):
    """How coordinates become words: (coordinate - origin) * unit, as float32 or, if ``packed``, rounded and in pairs."""

    origin: Any
    unit: float
    packed: bool

    def words(self, points: Any, xp: Any) -> tuple[Any, Any]:
        """Return int32 words, (rows, words), and the sums of the integers of each row (none, (rows, 0), for float32)."""
        scaled = (points - self.origin) * self.unit
        if not self.packed:
            whole = xp.asarray(scaled, dtype=xp.float32).view(xp.int32)
            return whole, whole[:, :0]
        steps = xp.asarray(xp.round(scaled), dtype=xp.int32)
        total = steps.sum(1, dtype=xp.int32)[:, None]
        if steps.shape[1] % 2:
            steps = xp.concatenate([steps, xp.zeros_like(total)], 1)
        return steps[:, ::2] | (steps[:, 1::2] << 16), total


def float_grid(points: Any, xp: Any) -> Grid:
    """Return the grid of float32 coordinates: around the middle of all points, in a unit near the largest."""
    low, high = xp.amin(points, 0), xp.amax(points, 0)
    return Grid(low / 2 + high / 2, 2.0 ** -math.frexp(float((high / 2 - low / 2).max()) or 1.0)[1], packed=False)


def packed_grid(points: Any, xp: Any) -> Grid:
    """Return the finest grid of integer coordinates of 16 bits whose distances are below 2^23."""
    low, high = xp.amin(points, 0), xp.amax(points, 0)
    step = max(float((high - low).max()) / MOST_STEP, float((high - low).sum()) / (MOST_STEPS - points.shape[1]))
    return Grid(low, 1 / step if 1e-300 < step < math.inf else 0.0, packed=True)


def rounding(distances: Any, scale: float) -> float:
    """Return the expected relative error of the kernel at such ``distances`` to the middle, by rounding to float32."""
    size = float(abs(distances).mean(0).sum()) * scale
    return 2 * size * 2.0**-24 * (1 + math.sqrt(distances.shape[1]) / 3)


def _packed_error(packed: Grid, grid: Grid, X: Any, C: Any, rows: Padding, scales: FloatArray, tools: ArrayTools) -> float:
    """Return the largest error of a ratio of sums by packing, at the rows of some tiles, relative to the largest ratio."""
    tiles = int(rows.firsts[-1])
    if not packed.unit or tiles < MIN_PACKED_TILES or C.shape[1] < 2:
        return 0.0 if packed.unit and tiles >= MIN_PACKED_TILES else math.inf
    tasks = plan(rows.firsts, rows.firsts, RUN, tools)
    chosen = tasks[(tasks[:, 0] % -(-tiles // SAMPLED_TILES)) == 0]
    found, exact = (_sum_tiles(form, (X, C, rows), (X, rows), chosen, scales) for form in (packed, grid))
    used = exact[:, :, 0] > 0
    difference = abs(found[used][:, 1:] / found[used][:, :1] - exact[used][:, 1:] / exact[used][:, :1])
    largest = abs(C[:, 1:] / C[:, :1]).amax(0)
    return float((difference / largest.clip(1e-300, None)).max())


def _halved(grid: Grid, X: Any, C: Any, bins: Any, scale: float, tools: ArrayTools) -> Any:
    """Return the sums over all other rows of each row's bin, by halves."""
    torch = tools.xp

    def sum_pairs(cells: Any, sides: Any) -> Any:
        keys = cells if sides is None else 2 * cells + sides
        order = tools.argsort(keys)
        counts = torch.bincount(keys, minlength=0 if sides is None else 2 * int(cells.max()) + 2)
        padded = pad(counts, SIDE, tools)
        tasks = plan(padded.firsts, None, RUN, tools, across=sides is not None)
        rows = X, C, padded._replace(index=order[padded.index])
        return _sum_tiles(grid, rows, None, tasks, np.array([scale]))[0]

    def scan(decay: Any, codes: Any, brings: Any, opposite: int) -> Any:
        n, parts = len(decay), []
        for some in brings.split(MOST_COLUMNS, dim=1):
            width, stretches = some.shape[1], -(-n // STRETCH)
            kernel = build("scan.cu", "scan", torch.cuda.current_device(), f"-DCOLUMNS={width}")
            finds, ends = some.new_empty((2, n, width)), some.new_empty((2, stretches, 4 * width + 1))
            given = decay, codes.to(torch.uint8), some.contiguous(), finds, ends
            for phase in range(3):
                numbers = (ctypes.c_int(number) for number in (n, opposite, phase))
                kernel.launch(1 if phase == 1 else -(-stretches // STRETCHES), 32 * STRETCHES, 0, *given, *numbers, ways=2)
            parts.append(finds.sum(0))
        return torch.cat(parts, 1)

    return sum_halves(X, C, bins, scale, tools, scan, sum_pairs)


def _sum_tiles(
    grid: Grid, rows: tuple[Any, Any, Padding], targets: tuple[Any, Padding] | None, tasks: Any, scales: FloatArray
) -> Any:
    """Return the sums of the ``tasks``, shape (scales, targets, columns), where ``rows`` are points, columns and places."""
    torch = require("torch", extra="gpu")
    X, C, padded = rows
    Y, asked = (X, padded) if targets is None else targets
    # Two blocks of threads share the memory of a processor.
    device, depth = torch.cuda.current_device(), -(-X.shape[1] // (1 + grid.packed))
    memory = getattr(torch.cuda.get_device_properties(device), "shared_memory_per_multiprocessor", 100 * 1024) // 2
    lines = (memory - RESERVED - KEPT * min(C.shape[1], MOST_COLUMNS)) // (4 * SIDE)
    chunks = -(-depth // max(4, lines - 2 * PART))
    parts = -(-depth // (chunks * PART))  # of a chunk
    part = -(-depth // (chunks * parts))
    layout = {"DEEP": parts * part, "PART": part, "UNROLLED": min(range(8, 3, -1), key=lambda steps: part % steps)}

    def lay(points: Any, places: Padding) -> tuple[Any, Any]:
        words, sums = grid.words(points, torch)
        return _lay_out(words, places, chunks * parts * part), sums + ORIGIN

    A, totals = lay(X, padded)
    B, others = (A, totals) if targets is None else lay(Y, asked)
    factors = put(np.maximum(scales * LOG2E / grid.unit, SMALLEST_FACTOR).astype(np.float32))
    total = torch.empty((len(scales), len(Y), C.shape[1]), dtype=torch.float64, device="cuda")
    tasks = tasks.to(torch.int32).contiguous()
    for start in range(0, C.shape[1], MOST_COLUMNS):
        some = C[:, start : start + MOST_COLUMNS].to(torch.float32).view(torch.int32)
        width = some.shape[1]
        E = _lay_out(torch.cat([some, totals], 1), padded)
        E[:, :width] *= padded.real.view(-1, 1, SIDE)  # padding has no weight
        D = E if targets is None else _lay_out(torch.cat([some.new_zeros((len(Y), width)), others], 1), asked)
        macros = {"COLUMNS": width, "AMONG": int(targets is None), "PACKED": int(grid.packed), **layout}
        out = torch.zeros((len(scales), width, len(asked.index)), dtype=torch.float64, device="cuda")
        sizes = ctypes.c_longlong(out.shape[2]), ctypes.c_int(chunks), ctypes.c_int(len(scales))
        shared = KEPT * width + 4 * SIDE * (parts + 2) * part
        if len(tasks):
            kernel = build("tiles.cu", "sums", device, *OPTIONS, *(f"-D{name}={value}" for name, value in macros.items()))
            kernel.launch(len(tasks), THREADS, shared, A, E, B, D, tasks, factors, out, *sizes)
        total[:, asked.index[asked.real], start : start + width] = out[:, :, asked.real].transpose(1, 2)
    return total


def _lay_out(values: Any, padded: Padding, lines: int = 0) -> Any:
    """Return rows of values as (tiles, values, SIDE), with zeros up to a number of ``lines``."""
    whole = values[padded.index].view(-1, SIDE, values.shape[1]).transpose(1, 2)
    return require("torch", extra="gpu").nn.functional.pad(whole, (0, 0, 0, max(0, lines - values.shape[1]))).contiguous()


def put(values: Any) -> Any:
    """Copy an array to the GPU, if it is not there: in slices, by way of pinned memory, which takes less time."""
    torch = require("torch", extra="gpu")
    if isinstance(values, torch.Tensor):
        return values
    source = torch.as_tensor(values if values.flags.writeable else values.copy())
    if source.nbytes <= STAGED:
        return source.to("cuda")
    result, size = torch.empty_like(source, device="cuda"), max(1, len(source) * STAGED // source.nbytes)
    buffers = [torch.empty_like(source[:size], pin_memory=True) for _ in range(2)]
    copied = [torch.cuda.Event(), torch.cuda.Event()]
    for number, (some, place) in enumerate(zip(source.split(size), result.split(size), strict=True)):
        copied[number % 2].synchronize()
        place.copy_(buffers[number % 2][: len(some)].copy_(some), non_blocking=True)
        copied[number % 2].record()
    return result


def _get(values: Any) -> FloatArray:
    """Copy from the GPU to an array, in pinned memory."""
    return np.asarray(values.new_empty(values.shape, device="cpu", pin_memory=True).copy_(values).numpy())
