"""The decorator of the kernels, and their cache."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
import warnings
from pathlib import Path

import numpy as np
import pytest
from numba import config

from trueup.kernels import _cache, _jit, tails
from trueup.kernels._jit import Kernel, jit, run


def double(x):
    return 2 * x


@jit
def _half(x):
    return x / 2


@jit
def _quarter(x):
    return _half(x) / 2


def _python(program, **environment):
    """Run a program in a fresh process; return what it prints."""
    kept = {name: value for name, value in os.environ.items() if environment.get(name, "") is not None}
    given = {name: value for name, value in environment.items() if value is not None}
    done = subprocess.run([sys.executable, "-c", program], env=kept | given, capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_a_kernel_is_compiled_where_nothing_can_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").touch()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "file" / "below"))
    kernel = jit(double)
    assert kernel(21) == 42
    assert kernel.compiled
    assert _cache.writable_directory() is None
    assert list(tmp_path.iterdir()) == [tmp_path / "file"]


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
        "from trueup.kernels.tails import range_tail as kernel\n"
        "kernel(1.0); print(sum(kernel.dispatcher.stats.cache_misses.values()))"
    )
    environment = os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)}
    processes = [
        subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE, text=True)
        for _ in range(3)
    ]
    assert sum(int(process.communicate()[0]) for process in processes) == 1
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_lock_that_is_never_released_delays_a_process_and_does_not_stop_it(tmp_path, monkeypatch):
    monkeypatch.setattr(_jit, "LOCK_SECONDS", 0.1)
    path = tmp_path / "kernel.lock"
    with _jit._other_processes_waiting(path), _jit._other_processes_waiting(path):
        pass


def test_kernels_of_the_same_name_in_different_modules_do_not_wait_for_each_other(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    assert tails.range_tail._cache.lock_path() == tmp_path / "trueup" / "trueup.kernels.tails.range_tail.lock"


def test_a_call_of_few_steps_runs_uncompiled_and_one_of_many_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    kernel = jit(double)
    assert (run(kernel, 10, 2.5), kernel.compiled) == (5.0, False)
    assert (run(kernel, 10, 2.5, instead=lambda x: x + 2.5), kernel.compiled) == (5.0, False)
    assert (run(kernel, _jit.PLAIN_STEPS + 1, 2.5), kernel.compiled) == (5.0, True)


def test_a_kernel_that_ran_uncompiled_for_long_is_compiled(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_jit, "PLAIN_SECONDS", -1.0)
    kernel = jit(double)
    assert (run(kernel, 1, 2.5), kernel.compiled) == (5.0, True)


def test_a_kernel_on_disk_is_loaded_rather_than_run_uncompiled(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    jit(double)(1.0)
    kernel = jit(double)
    assert (run(kernel, 1, 2.5), kernel.compiled) == (5.0, True)
    assert sum(kernel.dispatcher.stats.cache_misses.values()) == 0
    other = jit(double)
    assert (run(other, 1, 2), other.compiled) == (4, False)  # it is there for float64, and not for int64


def test_whoever_asks_for_an_answer_never_waits_for_the_compiler(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_jit, "PLAIN_SECONDS", -1.0)
    kernel = jit(double)
    with _jit._compiling:  # the compiler is busy
        assert _jit.answer(kernel, 1, 2.5) == _jit.answer(kernel, 1, 2.5) == 5.0
        assert not kernel.compiled
        working = [thread for thread in threading.enumerate() if thread.name == "trueup compiles double"]
    assert len(working) == 1
    working[0].join()
    assert kernel.compiled
    assert _jit.answer(kernel, 1, 2.5) == 5.0


def test_a_kernel_that_is_compiled_in_the_background_leaves_warning_filters_alone(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(_jit, "PLAIN_SECONDS", -1.0)
    changes, change = [], warnings.simplefilter
    monkeypatch.setattr(warnings, "simplefilter", lambda *given, **named: (changes.append(given), change(*given, **named)))
    kernel, other = jit(double), jit(double)
    _jit.answer(kernel, 1, 2.5)
    for thread in threading.enumerate():
        if thread.name.startswith(_jit.BACKGROUND):
            thread.join()
    assert (kernel.compiled, changes) == (True, [])
    (tmp_path / "other").mkdir()
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "other"))
    assert other(1.0) == 2.0
    assert changes  # numba's own, in the thread of the caller


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_process_that_forks_while_a_kernel_is_compiled_leaves_the_child_able_to_compile(tmp_path):
    program = """
import os, warnings
from trueup.kernels import _jit, tails
warnings.simplefilter("ignore")
_jit.PLAIN_SECONDS = -1.0
_jit.answer(tails.signed_root, 1, 1.0, 2.0, 0.1)
child = os.fork()
if child == 0:
    tails.range_tail(1.0)
    os._exit(7)
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""
    assert _python(program, NUMBA_CACHE_DIR=str(tmp_path)) == "7"


def test_kernels_that_call_others_have_their_sources_in_the_name_of_their_file():
    files, constants = tails.segment_tail._sources()
    assert {Path(path).name for path in files} == {"tails.py"}
    assert constants["trueup.kernels.tails.SYMMETRIC"] == tails.SYMMETRIC
    assert {Path(path).name for path in _levels()._sources()[0]} == {"levels.py", "sorting.py", "trees.py"}
    changed = _cache.source_stamp((files, constants | {"trueup.kernels.tails.SYMMETRIC": 0.0}))
    assert changed != _cache.source_stamp((files, constants)) == tails.segment_tail._cache.stamp


def _levels():
    from trueup.kernels import levels

    return levels.step_levels


def test_uncompiled_kernels_call_others_uncompiled(monkeypatch):
    monkeypatch.setattr(Kernel, "__call__", lambda self, *arguments: pytest.fail("compiled"))
    assert _quarter.plain(4.0) == 1.0


def test_uncompiled_kernels_do_not_warn_where_compiled_ones_would_not():
    assert run(jit(lambda x: x / np.float64(0.0)), 1, 1.0) == np.inf


@pytest.mark.parametrize("content", [b"", b"no pickle", pickle.dumps(()), pickle.dumps(("a", "b"))])
def test_a_damaged_file_is_compiled_again(monkeypatch, tmp_path, content):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    jit(double)(1.0)
    (path,) = tmp_path.rglob("*.kernel")
    good = path.read_bytes()
    path.write_bytes(content)
    kernel = jit(double)
    assert kernel(1.5) == 3.0
    assert sum(kernel.dispatcher.stats.cache_misses.values()) == 1
    assert len(path.read_bytes()) == len(good)


def test_a_directory_that_can_only_be_read_is_read(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    jit(double)(1.0)

    def refuse(*arguments, **settings):
        raise PermissionError("read-only file system")

    monkeypatch.setattr(_cache, "_write", refuse)
    monkeypatch.setattr(_cache.os, "access", lambda *_: False)
    kernel, before = jit(double), sorted(tmp_path.rglob("*"))
    assert kernel(1.5) == 3.0
    assert sum(kernel.dispatcher.stats.cache_misses.values()) == 0
    assert (kernel(2), sorted(tmp_path.rglob("*"))) == (4, before)  # of other types: compiled for this process


def test_files_of_earlier_sources_are_removed_beside_the_package(monkeypatch, tmp_path):
    directory = tmp_path / "__pycache__"
    monkeypatch.setattr(_cache, "directories", lambda: [directory])
    directory.mkdir()
    kernel = jit(double)
    name = kernel._cache.name
    for other in (f"{name}.0123456789ab.0.kernel", f"{name}_2.0123456789ab.0.kernel"):
        (directory / other).touch()
    kernel(1.0)
    left = _cache.kernels_in(directory)
    assert len(left) == 2
    assert f"{name}_2.0123456789ab.0.kernel" in left


def test_the_directories_of_the_cache(monkeypatch, tmp_path):
    package = Path(_cache.__file__).parent / "__pycache__"
    monkeypatch.setattr(_cache.sys, "platform", "linux")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert _cache.directories() == [package, tmp_path / "trueup"]
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    assert _cache.directories() == [package]
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setattr(Path, "home", lambda: tmp_path / "home")
    assert _cache.directories() == [package, tmp_path / "home" / ".cache" / "trueup"]

    def nobody():
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", nobody)
    assert _cache.directories() == [package]
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "kernels"))
    assert _cache.directories() == [tmp_path / "kernels" / "trueup"]


def test_a_kernel_whose_source_cannot_be_read_is_not_cached(monkeypatch, tmp_path):
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    scope = {}
    exec(compile("def triple(x):\n    return 3 * x\n", "<string>", "exec"), scope)
    scope["triple"].__module__ = __name__
    kernel = jit(scope["triple"])
    assert (kernel(2.0), kernel._cache.has_any(), list(tmp_path.rglob("*.kernel"))) == (6.0, False, [])
