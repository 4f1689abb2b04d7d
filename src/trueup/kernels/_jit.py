"""The one decorator of the kernels: compiled on first use, without the interpreter's lock, kept on disk where possible."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar, cast

import numba

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

__all__ = ["jit"]

F = TypeVar("F", bound="Callable[..., Any]")


def jit(function: F) -> F:
    """Compile a kernel with numba.

    No fast-math: the order of additions is part of the result. Where no cache directory can be written, numba refuses
    to cache; the kernel is then compiled anew in each process.
    """
    try:
        return cast("F", numba.njit(function, nogil=True, cache=True, error_model="numpy"))
    except RuntimeError:
        return cast("F", numba.njit(function, nogil=True, error_model="numpy"))
