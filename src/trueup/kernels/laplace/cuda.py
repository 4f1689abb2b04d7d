"""Sums over all pairs of rows on a GPU, in tiles; CUDA is compiled by NVRTC, which comes with torch."""

from __future__ import annotations

import ctypes
import math
import sys
import warnings
from functools import cache
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.errors import TrueupError, TrueupWarning
from trueup.kernels.laplace.tiles import LOG2E, unit_of

if TYPE_CHECKING:
    from trueup._types import BoolArray, FloatArray, Int32Array, IntArray

MOST_SHARED = 8  # the driver's number of the attribute for the maximum dynamic shared memory
CPU_HINT = 'device="cpu" needs no GPU'
VERSIONS = ("13", "12", "11.2")
SIDE = 128  # rows of a tile
RUN = 32  # tiles of a task
THREADS = 256
DEEPEST = 52  # dimensions of a chunk, at most
RESERVED = 24 * 1024  # bytes of shared memory for all but coordinates
SAMPLE = 10_000  # rows to estimate the typical distance
MOST_COLUMNS = 3  # that fit in shared memory
FINE = 1e-6  # the largest relative change of the kernel by rounding of a typical distance


class GpuKernel:
    """The function ``name`` on the GPU, loaded from machine code ``image``."""

    def __init__(self, image: bytes, name: str) -> None:
        self._driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())

    def launch(self, blocks: int, threads: int, shared: int, stream: int, *values: Any) -> None:
        """Launch ``blocks`` of ``threads`` with ``shared`` bytes each; ``values`` are ctypes numbers, or c_void_p."""
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        size = (blocks, 1, 1, threads, 1, 1, shared)
        grid = [ctypes.c_uint(number) for number in size]
        self._call("cuFuncSetAttribute", self._function, MOST_SHARED, ctypes.c_int(shared))
        self._call("cuLaunchKernel", self._function, *grid, ctypes.c_void_p(stream), addresses, None)

    def _call(self, name: str, *values: Any) -> None:
        if code := getattr(self._driver, name)(*values):
            raise TrueupError(f"the GPU driver failed in {name} with error {code}", hint=CPU_HINT)


@cache
def build(file: str, name: str, architecture: str, device: int, *definitions: str) -> GpuKernel:  # noqa: ARG001
    """Compile a file of this package for an architecture ("sm_90"), and load function ``name`` on the current device."""
    source = resources.files(__package__).joinpath(file).read_text()
    return GpuKernel(compile_source(source, architecture, *definitions), name)


def compile_source(source: str, architecture: str, *definitions: str) -> bytes:
    """Compile CUDA source to machine code; ``definitions`` are macros, "NAME=value"."""
    library, program = _library(), ctypes.c_void_p()
    options = [f"--gpu-architecture={architecture}", *(f"-D{definition}" for definition in definitions)]
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


def available() -> bool:
    """Return whether torch finds a GPU; warn if it finds none."""
    torch = require("torch", extra="gpu")
    if getattr(torch.cuda, "_is_in_bad_fork", bool)():
        raise TrueupError(
            "device='cuda' cannot be used in a process that was forked after CUDA was started",
            hint="start processes with the method spawn or forkserver, or use device='cpu'",
        )
    if torch.cuda.is_available():
        return True
    warnings.warn(
        "device='cuda' was requested, but torch finds no GPU; the CPU is used instead",
        TrueupWarning,
        stacklevel=7,  # the caller of a metric
    )
    return False


def fine_enough(points: FloatArray, middle: FloatArray, scale: float) -> bool:
    """Return whether float32 of ``points - middle`` is accurate enough at this scale, by the expected rounding error."""
    some = points[:: max(1, len(points) // SAMPLE)]
    with np.errstate(over="ignore"):
        size = float(np.abs(some - middle).mean(axis=0).sum()) * scale
    return bool(2 * size * 2.0**-24 * (1 + math.sqrt(points.shape[1]) / 3) <= FINE)


def sums(
    points: FloatArray, columns: FloatArray, starts: IntArray, targets: tuple[FloatArray, IntArray] | None,
    middle: FloatArray, scales: FloatArray,
) -> FloatArray:  # fmt: skip
    """Sum the columns of each target's bin, weighted by the kernel, shape (scales, targets, columns); may underflow.

    Bin k has rows starts[k] to starts[k + 1] - 1; targets are points and such starts. Without targets, sums are at each row
    over all other rows of its bin. Coordinates are relative to ``middle``; a few columns are summed at a time.
    """
    torch = require("torch", extra="gpu")
    order, real, blocks = _pad(starts)
    X = Y = _upload(points, order, middle)
    there, tiles = real, [(tile, tile, stop) for start, stop in pairwise(blocks) for tile in range(start, stop)]
    if targets is not None:
        asked, there, places = _pad(targets[1])
        Y, bins = _upload(targets[0], asked, middle), enumerate(pairwise(blocks))
        tiles = [(tile, *block) for k, block in bins for tile in range(places[k], places[k + 1])]
    unit, tasks = unit_of(columns), _tasks(tiles)
    C = _upload(columns * unit, order) * torch.as_tensor(real).to("cuda")
    major, minor = torch.cuda.get_device_capability()
    where = torch.as_tensor(tasks).to("cuda")
    factors = torch.as_tensor((scales * LOG2E).astype(np.float32)).to("cuda")
    # Dimensions are read a few at a time, so that two blocks of threads share the memory of a processor.
    card = torch.cuda.get_device_properties(torch.cuda.current_device())
    memory = getattr(card, "shared_memory_per_multiprocessor", 100 * 1024) // 2 - RESERVED
    most = int(np.clip((memory - 8 * len(scales) * MOST_COLUMNS * SIDE) // (4 * 4 * SIDE), 4, DEEPEST))
    deep = -(-len(X) // -(-len(X) // most))
    parts = []
    for start in range(0, len(C), MOST_COLUMNS):
        some = C[start : start + MOST_COLUMNS].contiguous()
        definitions = f"COLUMNS={len(some)}", f"AMONG={int(targets is None)}", f"DEEP={deep}"
        kernel = build("tiles.cu", "sums", f"sm_{major}{minor}", torch.cuda.current_device(), *definitions)
        out = torch.zeros((len(scales), len(some), Y.shape[1]), dtype=torch.float64, device="cuda")
        addresses = [ctypes.c_void_p(tensor.data_ptr()) for tensor in (X, some, Y, where, factors, out)]
        sizes = ctypes.c_longlong(X.shape[1]), ctypes.c_longlong(Y.shape[1]), ctypes.c_int(len(X))
        shared = 8 * len(scales) * len(some) * SIDE + 4 * 4 * deep * SIDE
        stream = torch.cuda.current_stream().cuda_stream
        if len(tasks):
            kernel.launch(len(tasks), THREADS, shared, stream, *addresses, *sizes, ctypes.c_int(len(scales)))
        parts.append(out)
    whole = torch.cat(parts, dim=1)[:, :, torch.as_tensor(np.flatnonzero(there)).to("cuda")]
    return np.asarray(whole.transpose(1, 2).contiguous().cpu().numpy()) / unit


def _pad(starts: IntArray) -> tuple[IntArray, BoolArray, list[int]]:
    """Pad bins to full tiles; return the row at each position, whether it is no padding, and the first tile of each bin."""
    counts = np.diff(starts)
    tiles = -(-counts // SIDE)
    bins = np.repeat(np.arange(len(counts)), tiles * SIDE)
    within = np.arange(len(bins)) - np.repeat(SIDE * np.append(0, np.cumsum(tiles))[:-1], tiles * SIDE)
    real = within < counts[bins]
    return starts[bins] + np.where(real, within, 0), real, np.append(0, np.cumsum(tiles)).tolist()


def _tasks(whole: list[tuple[int, int, int]]) -> Int32Array:
    """Split each (tile, first, end) of ``whole``, end exclusive, into tasks of the same form with at most RUN tiles."""
    given = np.array(whole, np.int32).reshape(-1, 3)
    runs = -(-(given[:, 2] - given[:, 1]) // RUN)
    of = np.repeat(np.arange(len(given)), runs)
    first = given[of, 1] + RUN * (np.arange(len(of)) - np.repeat(np.append(0, np.cumsum(runs))[:-1], runs))
    return np.column_stack([given[of, 0], first, np.minimum(first + RUN, given[of, 2])]).astype(np.int32)


def _upload(values: FloatArray, order: IntArray, middle: FloatArray | float = 0.0) -> Any:
    """Copy ``values[order] - middle`` to the GPU as float32, transposed: one row per column."""
    torch = require("torch", extra="gpu")
    whole = torch.as_tensor(values).to("cuda") - torch.as_tensor(middle).to("cuda")
    return whole.T.to(torch.float32)[:, torch.as_tensor(order).to("cuda")].contiguous()
