"""The decorator `jit`: kernels run compiled, by numba, or uncompiled, as the Python functions they are, with equal results.

numba is imported when the first kernel is compiled. Compiled kernels release the global interpreter lock and are cached on
disk (`trueup.kernels._cache`). `run` and `answer` call a kernel that has little to do uncompiled: a process that scores a
few rows, or audits a few thousand, neither compiles nor imports numba. Kernels that score rows have NumPy versions for that
(`trueup.kernels.vectorised`). Without numba, kernels run uncompiled, however much they have to do.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.util
import math
import os
import sys
import threading
import time
import warnings
from types import FunctionType, SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, ClassVar, TypeVar, cast

import numpy as np

from trueup.kernels._cache import KernelCache, source_stamp

if sys.platform != "win32":
    import fcntl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


F = TypeVar("F", bound="Callable[..., Any]")
PACKING = "SLP_VECTORIZE"  # numba's own name for it, set when the environment is read
LOCK_SECONDS = 60.0  # a kernel is compiled within a few; a process that was stopped meanwhile does not block others
# A step takes about a microsecond uncompiled.
PLAIN_STEPS = 300_000  # calls of more are compiled at once
PLAIN_SECONDS = 1.0  # that a kernel runs uncompiled before it is compiled: about as long as that takes
LOAD_STEPS = 100_000  # uncompiled, by all kernels together, after which numba is imported for kernels that are on disk
BACKGROUND = "trueup compiles"  # the start of the names of threads
_compiling = threading.RLock()
_copying = threading.RLock()
_plain_modules: dict[int, dict[str, Any]] = {}  # by identity of a module's globals: the same with kernels uncompiled


def _as_compiled(function: Callable[[float], float], pole: float) -> Callable[[float], float]:
    """Return a function of `math` that returns what compiled code does where Python raises: -inf at ``pole``, NaN, inf."""

    def call(x: float) -> float:
        try:
            return function(x)
        except ValueError:
            return -math.inf if x == pole else math.nan
        except OverflowError:
            return math.inf

    return call


@functools.cache
def has_numba() -> bool:
    """Return whether numba is installed; it is not imported. Models are loaded and score rows without it, too."""
    try:
        return importlib.util.find_spec("numba") is not None
    except (ImportError, ValueError):
        return False


def _ignoring_errors(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function that computes as compiled code does: without warnings of NumPy about overflow and the like."""

    @functools.wraps(function)
    def call(*arguments: Any) -> Any:
        with np.errstate(all="ignore"):
            return function(*arguments)

    return call


POLES = {"log": 0.0, "log1p": -1.0, "sqrt": math.nan, "exp": math.nan, "expm1": math.nan}
PLAIN_MATH = SimpleNamespace(
    **{**vars(math), **{name: _as_compiled(getattr(math, name), pole) for name, pole in POLES.items()}}
)


if TYPE_CHECKING:
    unlocked_property = functools.cached_property
else:

    class unlocked_property:  # noqa: N801
        """`functools.cached_property` without its lock in Python 3.11, which a forked process may inherit locked."""

        def __init__(self, function: Callable[..., Any]) -> None:
            self.function = function

        def __get__(self, instance: Any, owner: Any = None) -> Any:
            if instance is None:
                return self
            value = instance.__dict__[self.function.__name__] = self.function(instance)
            return value


class Kernel:
    """A function that numba compiles when it is called; ``plain`` is the function uncompiled, whatever it calls included.

    numba reads ``_numba_type_`` where one kernel calls another.
    """

    all_seconds: ClassVar[float] = 0.0  # that all kernels ran uncompiled

    def __init__(self, function: Callable[..., Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.compiled = False  # for the types of at least one call
        self.plain_seconds = 0.0
        self._looked_up = False
        self._process: int | None = None  # that compiles it in the background

    def __call__(self, *arguments: Any) -> Any:
        return self.dispatcher(*arguments)

    @unlocked_property
    def plain(self) -> Callable[..., Any]:
        """The function, calling other kernels uncompiled."""
        function = cast("FunctionType", self.function)
        known = function.__globals__
        with _copying:  # kernels of a module refer to each other: other threads wait until all names are there
            names = _plain_modules.get(id(known))
            if names is None:
                names = _plain_modules[id(known)] = dict(known)
                names.update({name: value.plain for name, value in known.items() if isinstance(value, Kernel)})
                names.update({name: PLAIN_MATH for name, value in known.items() if value is math})
        return FunctionType(function.__code__, names, function.__name__, function.__defaults__, function.__closure__)

    @unlocked_property
    def uncompiled(self) -> Callable[..., Any]:
        """The NumPy version of the function if it has one, which takes less time for many rows; else ``plain``."""
        from trueup.kernels.vectorised import numpy_version

        return numpy_version(self) or self.plain

    @unlocked_property
    def _cache(self) -> KernelCache:
        name = f"{self.function.__module__}.{self.function.__qualname__}"
        return KernelCache(name, lambda: source_stamp(self._sources()))

    @unlocked_property
    def dispatcher(self) -> Any:
        """What numba makes of the function; without numba, a function with the same results."""
        with _compiling:
            if "dispatcher" in self.__dict__:  # made by another thread meanwhile
                return self.__dict__["dispatcher"]
            if not has_numba():
                self.__dict__["dispatcher"] = _ignoring_errors(self.uncompiled)
                return self.__dict__["dispatcher"]
            import numba

            _protect_forks()
            dispatcher = numba.njit(self.function, nogil=True, error_model="numpy")
            dispatcher._cache = cache = self._cache
            compile_plain = dispatcher.compile

            def compile_packed(signature: Any) -> Any:
                with _packing(), _other_processes_waiting(cache.lock_path()):
                    entry = compile_plain(signature)
                self.compiled = True
                return entry

            dispatcher.compile = compile_packed
            self.__dict__["dispatcher"] = dispatcher
            return dispatcher

    @property
    def _numba_type_(self) -> Any:
        return self.dispatcher._numba_type_

    def run(self, steps: float, *arguments: Any, instead: Callable[..., Any] | None = None) -> Any:
        """Call the kernel, uncompiled if it is not compiled and that takes few ``steps`` (about a microsecond each).

        ``instead`` is a function with the same results that is faster than the kernel uncompiled. The kernel is compiled
        when it has run uncompiled for `PLAIN_SECONDS`.
        """
        is_late = Kernel.all_seconds * 1e6 + steps > LOAD_STEPS
        if instead is not None and not has_numba():
            return self._run_plain(instead, arguments)
        if self.plain_seconds > PLAIN_SECONDS or self._prefers_compiled(steps, arguments, load=is_late):
            return self.dispatcher(*arguments)
        return self._run_plain(instead or self.plain, arguments)

    def answer(self, steps: float, *arguments: Any) -> Any:
        """Call the kernel, or its NumPy version, as `run` does; compile it in the background, so that nobody waits."""
        if self._prefers_compiled(steps, arguments, load=False):
            return self.dispatcher(*arguments)
        result = self._run_plain(self.uncompiled, arguments)
        if self.plain_seconds > PLAIN_SECONDS and self._process != os.getpid():
            self._process = os.getpid()
            self._compile_in_background(arguments)
        return result

    def _run_plain(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        start = time.thread_time()
        with np.errstate(all="ignore"):
            result = function(*arguments)
        seconds = time.thread_time() - start
        self.plain_seconds += seconds
        Kernel.all_seconds += seconds
        return result

    def _prefers_compiled(self, steps: float, arguments: tuple[Any, ...], *, load: bool) -> bool:
        """Return whether the kernel is compiled, has much to do, or is on disk; if not ``load``, numba is not imported."""
        if self.compiled or steps > PLAIN_STEPS or not has_numba():
            return True
        if self._looked_up or not (load or "numba" in sys.modules):
            return False
        self._looked_up = True
        return self._is_cached(arguments)

    def _is_cached(self, arguments: tuple[Any, ...]) -> bool:
        """Return whether the kernel is on disk for calls like this one; import numba only if it is there for some calls."""
        if not self._cache.has_any():
            return False
        from numba import typeof

        return self._cache.contains(tuple(map(typeof, arguments)), self.dispatcher.targetctx)

    def _compile_in_background(self, arguments: tuple[Any, ...]) -> None:
        """Start a thread that compiles the kernel for calls like this one; the process ends when it has finished."""
        _protect_forks()

        def compile_kernel() -> None:
            with _compiling:
                from numba import typeof

                _protect_warning_filters()
                self.dispatcher.compile(tuple(map(typeof, arguments)))

        thread = threading.Thread(target=compile_kernel, name=f"{BACKGROUND} {self.function.__qualname__}")
        with contextlib.suppress(RuntimeError):  # the process is about to end
            thread.start()

    def _sources(self) -> tuple[set[str], dict[str, Any]]:
        """Return the files and the constants that the compiled kernel depends on, those of kernels it calls included."""
        files: set[str] = set()
        constants: dict[str, Any] = {}
        pending, known = [self], {id(self)}
        while pending:
            function = cast("FunctionType", pending.pop().function)
            files.add(function.__code__.co_filename)
            for name in function.__code__.co_names:
                value = function.__globals__.get(name)
                if isinstance(value, Kernel):
                    if id(value) not in known:
                        known.add(id(value))
                        pending.append(value)
                elif isinstance(value, (int, float, str, tuple, np.generic)):
                    constants[f"{function.__module__}.{name}"] = value
        return files, constants


def jit(function: F) -> F:
    """Return a `Kernel`, which numba compiles on first use.

    Fast-math is off, since the order of additions changes results. Without a writable cache directory, kernels are compiled
    in each process; with one, processes that start at the same time compile each kernel once.
    """
    return cast("F", Kernel(function))


def run(
    kernel: Callable[..., Any], steps: float, *arguments: Any, instead: Callable[..., Any] | None = None
) -> Any:  # fmt: skip
    """Call a kernel as `Kernel.run` does: a call of few steps does not compile it."""
    known = cast("Kernel", kernel)
    return known.dispatcher(*arguments) if known.compiled else known.run(steps, *arguments, instead=instead)


def answer(kernel: Callable[..., Any], steps: float, *arguments: Any) -> Any:
    """Call a kernel that scores rows as `Kernel.answer` does: if they are few, nobody waits for the compiler."""
    known = cast("Kernel", kernel)
    return known.dispatcher(*arguments) if known.compiled else known.answer(steps, *arguments)


@contextlib.contextmanager
def compiling_at_once() -> Iterator[None]:
    """Compile every kernel that is called meanwhile, however little it has to do."""
    global PLAIN_STEPS
    before, PLAIN_STEPS = PLAIN_STEPS, -1
    try:
        yield
    finally:
        PLAIN_STEPS = before


def plain(kernel: F) -> F:
    """Return a kernel uncompiled."""
    return cast("F", cast("Kernel", kernel).plain)


class BackgroundWarnings:
    """The module `warnings` for numba, except that threads which compile in the background never change the filters.

    Filters belong to the process: if two threads changed and restored them at the same time, one would restore those of the
    other.
    """

    def __getattr__(self, name: str) -> Any:
        if threading.current_thread().name.startswith(BACKGROUND):
            if name == "catch_warnings":
                return lambda **_: contextlib.nullcontext([])
            if name in ("simplefilter", "filterwarnings"):
                return lambda *_, **__: None
        return getattr(warnings, name)


@functools.cache
def _protect_warning_filters() -> None:
    """Let numba use `BackgroundWarnings`."""
    from numba.core import compiler, errors

    for module in (compiler, errors):
        vars(module)["warnings"] = BackgroundWarnings()


@functools.cache
def _protect_forks() -> None:
    """Let a process fork only while no kernel is being compiled: locks of the compiler would stay locked in the child.

    What is registered last is called first. The lock of logging, which the compiler takes, must come after ours: it is
    imported before.
    """
    import concurrent.futures.thread  # noqa: F401  (and logging)

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(
            before=_compiling.acquire, after_in_parent=_compiling.release, after_in_child=_compiling.release
        )


@contextlib.contextmanager
def _packing() -> Iterator[None]:
    """Let LLVM pack adjacent additions into one instruction while a kernel is compiled; then restore numba's setting.

    Each sum is still added in the same order: the result is the same to the last bit, in about four fifths of the time.
    """
    from numba import config

    with _compiling:
        before = getattr(config, PACKING)
        setattr(config, PACKING, 1)
        try:
            yield
        finally:
            setattr(config, PACKING, before)


@contextlib.contextmanager
def _other_processes_waiting(path: Path | None) -> Iterator[None]:
    """Lock the file ``path`` while a kernel is compiled: other processes wait, then read it from the cache."""
    file = None if path is None else _lock(path)
    try:
        yield
    finally:
        if file is not None and sys.platform != "win32":
            fcntl.flock(file, fcntl.LOCK_UN)  # a process forked meanwhile has the file open too
            file.close()


def _lock(path: Path) -> IO[str] | None:
    """Lock the file ``path`` and return it; return None if that is not possible, or takes longer than LOCK_SECONDS."""
    if sys.platform == "win32":
        return None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("w")
    except OSError:
        return None
    deadline = time.monotonic() + LOCK_SECONDS
    while time.monotonic() < deadline:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.02)
        except OSError:  # a file system without locks
            break
        else:
            return file
    file.close()
    return None
