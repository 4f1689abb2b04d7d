"""The decorator of the kernels: compiled on first use, without the global interpreter lock, cached on disk if possible."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar, cast

import numba
from numba import config

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from typing import Any


F = TypeVar("F", bound="Callable[..., Any]")
PACKING = "SLP_VECTORIZE"  # numba's own name for it, set when the environment is read
_compiling = threading.RLock()


def jit(function: F) -> F:
    """Compile a kernel with numba.

    No fast-math: the order of additions is part of the result. Without a writable cache directory, kernels are compiled in
    each process.
    """
    try:
        kernel = numba.njit(function, nogil=True, cache=True, error_model="numpy")
    except RuntimeError:
        kernel = numba.njit(function, nogil=True, error_model="numpy")
    compile_plain = kernel.compile

    def compile_packed(signature: Any) -> Any:
        with _packing():
            return compile_plain(signature)

    kernel.compile = compile_packed
    return cast("F", kernel)


@contextmanager
def _packing() -> Iterator[None]:
    """Let LLVM pack neighbouring additions into one instruction, for our own kernels only.

    Lanes are added in the same order: the result is the same to the last bit, a fifth sooner.
    """
    with _compiling:
        before = getattr(config, PACKING)
        setattr(config, PACKING, 1)
        try:
            yield
        finally:
            setattr(config, PACKING, before)
