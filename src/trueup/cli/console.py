"""Text to the terminal and to pipes, the progress bar of long work, and signals that end the process."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from types import TracebackType

PASSED, FOUND, UNTESTABLE = 0, 1, 4  # exit codes of a gate
PROGRESS_DELAY_S = 1.0
MAX_REPORT_S = 0.5
INTERRUPT_GRACE_S = 3.0  # after a signal, before compiled code that does not react is terminated
SIGNALS = {"SIGINT": "interrupted", "SIGTERM": "terminated", "SIGHUP": "terminated: the terminal was closed"}
STOPPING = {getattr(signal, name): text for name, text in SIGNALS.items() if hasattr(signal, name)}
_received: list[int] = []  # signals that stop this process


def printable(text: str) -> str:
    r"""Replace control characters, which could steer a terminal; keep line ends."""
    return "".join(letter if letter == "\n" or letter.isprintable() else "·" for letter in text)


def emit(write: Callable[[TextIO], Any], *, data: bool = False) -> bool:
    """Call ``write`` with standard output, encoded in UTF-8 if it gets ``data``; return whether a reader took all of it.

    A reader that has closed its pipe, such as head, is not an error.
    """
    from trueup.errors import FileError

    stream = sys.stdout
    if stream is None:
        if data:
            raise FileError("cannot write to standard output: it is closed", hint="name a file instead of -")
        return False
    if isinstance(stream, io.TextIOWrapper):
        # Text shows ? for characters that the terminal cannot encode; in data that would change values.
        stream.reconfigure(encoding="utf-8" if data else stream.encoding, errors="replace")
    try:
        write(stream)
        stream.flush()
    except OSError as error:
        # Closing the stream at exit must not fail again.
        with contextlib.suppress(OSError, ValueError), open(os.devnull, "wb") as null:  # noqa: PTH123
            os.dup2(null.fileno(), stream.fileno())
        if not isinstance(error, BrokenPipeError):
            raise FileError(f"cannot write to standard output: {error.strerror or error}") from error
        return False
    return True


def say(text: str = "") -> None:
    """Print to standard output."""
    emit(lambda stream: stream.write(printable(text) + "\n"))


def complain(text: str) -> None:
    """Print to standard error, if it is open."""
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        stream.write(printable(text) + "\n")
        stream.flush()


class ProgressDisplay:
    """Context manager that shows a progress bar for long work on a terminal and, if verbose, prints notes and durations."""

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._verbose, self._phase, self._started = verbose, "", time.perf_counter()
        self._lock = threading.Lock()
        self._bar: Any = None
        if quiet or sys.stderr is None or not sys.stderr.isatty():
            return
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        columns = BarColumn(), TimeElapsedColumn(), TimeRemainingColumn(compact=True)
        description = TextColumn("{task.description}", markup=False)
        self._bar = Progress(description, *columns, console=Console(stderr=True), transient=True)
        self._timer = threading.Timer(PROGRESS_DELAY_S, self._bar.start)
        self._timer.daemon = True

    def __enter__(self) -> ProgressDisplay:
        if self._bar is not None:
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._note_duration()
        if self._bar is not None:
            self._timer.cancel()
            self._timer.join()
            self._bar.stop()

    def start(self, phase: str) -> None:
        """Start a new phase of the work."""
        self._note_duration()
        self._phase, self._started = phase, time.perf_counter()
        self._update(phase, 0, None)

    def step(self, done: int, total: int) -> None:
        """Show that ``done`` of ``total`` steps of the phase are done."""
        self._update(self._phase, done, total or None)

    def counter(self) -> Callable[[int, int], None]:
        """Return a function ``progress(done, total)`` that shows all steps so far; ``done`` starts again in each round."""
        before = last = 0

        def count(done: int, _: int) -> None:
            nonlocal before, last
            before += last if done < last else 0
            last = done
            self._update(f"{self._phase}: {before + done:,} steps", 0, None)

        return count

    def note(self, *lines: str) -> None:
        """Print lines above the bar if verbose."""
        for line in lines if self._verbose else ():
            if self._bar is None:
                complain(f"  {line}")
            else:
                self._bar.console.print(f"  {printable(line)}", markup=False, highlight=False, emoji=False, soft_wrap=True)

    def _note_duration(self) -> None:
        if self._phase:
            self.note(f"{self._phase}: {time.perf_counter() - self._started:.2f} s")

    def _update(self, description: str, done: int, total: int | None) -> None:
        if self._bar is None:
            return
        state = {"description": description, "completed": done, "total": total}
        with self._lock:
            task = next(iter(self._bar.tasks), None)
            if task is not None and task.completed <= done and task.description.startswith(self._phase):
                self._bar.update(task.id, **state)
                return
            if task is not None:  # a finished task stays finished, and its speed does not predict that of the next one
                self._bar.remove_task(task.id)
            self._bar.add_task(**state)


@contextlib.contextmanager
def stop_on_signals() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP, as at Ctrl-C; exit if the work has not stopped a grace period later.

    Python raises KeyboardInterrupt only between its own instructions, which a long query or kernel may not reach for
    hours. The operating system writes to the wakeup descriptor at once, and a thread reads it. A signal that the parent of
    the process ignores, as nohup does, stays ignored. `stop_status` has the exit code.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    done = threading.Event()
    defaults = (signal.SIG_DFL, signal.default_int_handler)
    handled = {number: handler for number in STOPPING if (handler := signal.getsignal(number)) in defaults}
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(read_end, done, frozenset(handled)), daemon=True)
    thread.start()
    for number in handled:
        signal.signal(number, _stop)
    try:
        yield
    finally:
        for number, handler in handled.items():
            signal.signal(number, handler)
        done.set()
        signal.set_wakeup_fd(previous)
        os.close(write_end)  # ends the thread
        thread.join()
        os.close(read_end)


def forget_signals() -> None:
    """Forget the signals of an earlier command in this process."""
    _received.clear()


def was_stopped() -> bool:
    """Return whether a signal has stopped the command: an error after that follows from it."""
    return bool(_received)


def stop_status() -> int:
    """Print why the process ends after KeyboardInterrupt, and return its exit code: 128 plus the number of the signal."""
    return _report_stop(_received[0] if _received else signal.SIGINT)


def _stop(number: int, _: Any) -> None:
    """Raise KeyboardInterrupt at the first signal; later ones do not interrupt what is being removed."""
    _received.append(number)
    if len(_received) == 1 or number == signal.SIGINT:
        raise KeyboardInterrupt


def _report_stop(number: int) -> int:
    complain(STOPPING[signal.Signals(number)])
    return 128 + number


def _listen(read_end: int, done: threading.Event, handled: frozenset[int]) -> None:
    while numbers := os.read(read_end, 64):
        stopping = next((number for number in numbers if number in handled), None)
        if stopping is not None and not done.wait(INTERRUPT_GRACE_S):
            from trueup._temporary import remove_all

            remove_all()
            report = threading.Thread(target=_report_forced_stop, args=(stopping,), daemon=True)
            report.start()
            report.join(MAX_REPORT_S)  # nobody may read standard error
            os._exit(128 + stopping)


def _report_forced_stop(number: int) -> None:
    if sys.stderr is not None and sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h\n")  # show the cursor, which a progress bar hides
    _report_stop(number)
