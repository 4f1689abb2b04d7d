"""The decorator of the kernels."""

from __future__ import annotations

import os
import subprocess
import sys

import numba
import pytest
from numba import config

from trueup.kernels import _jit, tails


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


def test_processes_that_start_at_the_same_time_compile_a_kernel_once(tmp_path):
    program = (
        "from trueup.kernels.tails import range_tail as kernel\nkernel(1.0); print(sum(kernel.stats.cache_misses.values()))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(2)
    ]
    assert sum(int(process.communicate()[0]) for process in processes) == 1


def test_a_lock_that_is_never_released_delays_a_process_and_does_not_stop_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_jit, "LOCK_SECONDS", 0.1)
    with _jit._other_processes_waiting(str(tmp_path), "kernel"), _jit._other_processes_waiting(str(tmp_path), "kernel"):
        pass


def test_kernels_of_the_same_name_in_different_modules_do_not_wait_for_each_other(monkeypatch):
    paths = []
    monkeypatch.setattr(_jit, "_lock", paths.append)
    tails.range_tail.compile((numba.float64,))
    assert paths[0].name == "trueup.kernels.tails.range_tail.lock"
