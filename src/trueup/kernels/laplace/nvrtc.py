"""Compile CUDA for the card at hand and launch it: the runtime compiler and the driver that come with torch, by name.

There is no compiler to install: torch's CUDA builds bring NVRTC with them.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from trueup._optional import require
from trueup.errors import TrueupError

__all__ = ["Kernel", "build"]

MOST_SHARED = 8  # the driver's number of the attribute: dynamic shared memory, at most
INSTEAD = 'device="cpu" needs no card'
VERSIONS = ("13", "12", "11.2")


class Kernel:
    """A function on the card.

    Parameters
    ----------
    image : bytes
        Machine code.
    name : str
    """

    def __init__(self, image: bytes, name: str) -> None:
        self._driver = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        module, self._function = ctypes.c_void_p(), ctypes.c_void_p()
        self._call("cuModuleLoadData", ctypes.byref(module), image)
        self._call("cuModuleGetFunction", ctypes.byref(self._function), module, name.encode())

    def launch(self, blocks: int, threads: int, shared: int, stream: int, *values: Any) -> None:
        """Start it; values are ctypes numbers, addresses as c_void_p."""
        addresses = (ctypes.c_void_p * len(values))(*(ctypes.addressof(value) for value in values))
        size = (blocks, 1, 1, threads, 1, 1, shared)
        grid = [ctypes.c_uint(number) for number in size]
        self._call("cuFuncSetAttribute", self._function, MOST_SHARED, ctypes.c_int(shared))
        self._call("cuLaunchKernel", self._function, *grid, ctypes.c_void_p(stream), addresses, None)

    def _call(self, name: str, *values: Any) -> None:
        if code := getattr(self._driver, name)(*values):
            raise TrueupError(f"the driver of the graphics card refused {name} with error {code}", hint=INSTEAD)


@cache
def build(file: str, name: str, architecture: str, device: int, *definitions: str) -> Kernel:  # noqa: ARG001
    """Compile a file of this package for an architecture ("sm_90"), and load it on the current device, ``device``."""
    source = resources.files(__package__).joinpath(file).read_text()
    return Kernel(compile_source(source, architecture, *definitions), name)


def compile_source(source: str, architecture: str, *definitions: str) -> bytes:
    """Compile CUDA to machine code."""
    library, program = _library(), ctypes.c_void_p()
    options = [f"--gpu-architecture={architecture}", *(f"-D{one}" for one in definitions)]
    listed = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
    if code := library.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"trueup.cu", 0, None, None):
        raise TrueupError(f"the runtime compiler of CUDA refused the program with error {code}", hint=INSTEAD)
    failed = library.nvrtcCompileProgram(program, len(options), listed)
    what = "ProgramLog" if failed else "CUBIN"
    size = ctypes.c_size_t()
    getattr(library, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    content = ctypes.create_string_buffer(size.value)
    getattr(library, f"nvrtcGet{what}")(program, content)
    library.nvrtcDestroyProgram(ctypes.byref(program))
    if failed:
        log = content.value.decode(errors="replace")[:2000]
        raise TrueupError(f"the runtime compiler of CUDA failed with error {failed}: {log}", hint=INSTEAD)
    return content.raw


@cache
def _library() -> ctypes.CDLL:
    """Find the runtime compiler: where the loader looks, or among the packages that torch brings."""
    # The version of torch first: a driver may be too old for what a newer compiler makes.
    ours = str(getattr(require("torch", extra="gpu").version, "cuda", None) or "").split(".")[0]
    names = [f"libnvrtc.so.{version}" for version in sorted(VERSIONS, key=lambda one: one.split(".")[0] != ours)]
    places = [found for entry in sys.path for name in names for found in Path(entry).glob(f"nvidia/*/lib/{name}")]
    windows = [found for entry in sys.path for found in Path(entry).glob("torch/lib/nvrtc64_*_0.dll")]
    for name in [*names, *places, *windows]:
        try:
            return ctypes.CDLL(str(name))
        except OSError:
            continue
    raise TrueupError("the runtime compiler of CUDA (NVRTC) was not found", hint="install a CUDA build of torch")
