"""The decorator of the kernels."""

from __future__ import annotations

import numba
import pytest
from numba import config

from trueup.kernels import _jit


def test_a_kernel_is_compiled_without_a_cache_directory(monkeypatch):
    plain = numba.njit

    def njit(function, **options):
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return plain(function, **options)

    monkeypatch.setattr(_jit.numba, "njit", njit)
    double = _jit.jit(lambda x: 2 * x)
    assert double(21) == 42


def test_packing_applies_to_our_kernels_only():
    before = config.SLP_VECTORIZE
    with _jit._packing():
        assert config.SLP_VECTORIZE == 1
    assert before == config.SLP_VECTORIZE
    with pytest.raises(ZeroDivisionError), _jit._packing():
        _ = 1 / 0
    assert before == config.SLP_VECTORIZE
