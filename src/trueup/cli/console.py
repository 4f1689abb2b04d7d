"""What goes to the terminal: clean text, quiet pipes, a progress bar for long work."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, TextIO

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

PATIENCE_S = 1.0

# Messages are written for Python; on the command line the same parameters are options.
PARAMETER = re.compile(r"""\b(task|unlabelled|adjust|outcome|prediction)=(["'])([\w.-]+)\2""")
SEVERAL = re.compile(r"\b(classes|text)=\[[^\]]*\]|\b(classes)=(?=\W|$)")
EVENT = re.compile(  # what to do about outcomes that are not 0 and 1
    r"write it as 1 where it is '(.*)' \(if that is the event\) and 0 elsewhere"
    r"|write \S+ as 0 and \S+ as 1, if (\S+) is the event"
)
RENAMED = {"text": "categorical"}


def printable(text: str) -> str:
    r"""Replace what could steer a terminal; keep the ends of lines.

    Examples
    --------
    >>> printable("a\x1b[31mb\nc")
    'a·[31mb\nc'
    """
    return "".join(letter if letter == "\n" or letter.isprintable() else "·" for letter in text)


def in_options(text: str) -> str:
    """Turn the parameters in a message into options.

    Examples
    --------
    >>> in_options('use task="regression", or pass classes=[...]')
    'use --task regression, or pass --classes ...'
    """
    text = EVENT.sub(lambda found: f"name the event, such as --positive {shlex.quote(found[1] or found[2])}", text)
    text = PARAMETER.sub(r"--\1 \3", text)
    text = SEVERAL.sub(lambda found: f"--{RENAMED.get(found[1], found[1])} ..." if found[1] else f"--{found[2]}", text)
    return re.sub(r"(?<!-)\b(min_rows|max_cells|depth) must", lambda found: f"--{found[1].replace('_', '-')} must", text)


def emit(write: Callable[[TextIO], Any], *, data: bool = False) -> None:
    """Write to standard output; a reader that has gone away is no error.

    Data is written as it would be to a file, in UTF-8, and refused where standard output is closed.
    """
    from trueup.errors import FileError

    stream = sys.stdout
    if stream is None:
        if data:
            raise FileError("cannot write to standard output: it is closed", hint="name a file in place of -")
        return
    if isinstance(stream, io.TextIOWrapper):
        # An old terminal shows ? for what it has no letter for; in data that would be another value.
        stream.reconfigure(encoding="utf-8" if data else stream.encoding, errors="replace")
    try:
        write(stream)
        stream.flush()
    except BrokenPipeError:
        _discard(stream)
    except OSError as error:
        _discard(stream)
        raise FileError(f"cannot write to standard output: {error.strerror or error}") from error


def _discard(stream: TextIO) -> None:
    """Send the rest of a stream nowhere, so that closing it at exit does not fail again."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, stream.fileno())
        finally:
            os.close(nowhere)


def say(text: str = "") -> None:
    """Print to standard output."""
    emit(lambda stream: stream.write(printable(text) + "\n"))


def complain(text: str) -> None:
    """Print to standard error, as far as there is one."""
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(OSError, ValueError):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
        stream.write(printable(text) + "\n")
        stream.flush()


class Watch:
    """A progress bar on standard error that shows itself only when work takes long, and only on a terminal.

    Use it as a context. `step` is what `trueup.audit` takes as ``progress``.

    Parameters
    ----------
    quiet : bool
        Never show it.
    verbose : bool
        Print what is noted, and how long each piece of work took, also where nobody looks on.
    """

    def __init__(self, *, quiet: bool = False, verbose: bool = False) -> None:
        self._verbose = verbose
        self._begun = time.perf_counter()
        self._wanted = not quiet and sys.stderr is not None and sys.stderr.isatty()
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._bar: Any = None
        self._task: Any = None
        self._closed = False
        self._what, self._done, self._total = "", 0, 0

    def __enter__(self) -> Watch:
        if self._wanted:
            self._timer = threading.Timer(PATIENCE_S, self._show)
            self._timer.daemon = True
            self._timer.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._tell_time()
        with self._lock:
            self._closed = True
            if self._bar is not None:
                self._bar.stop()

    def say(self, what: str) -> None:
        """Name the work that begins; for `counting` it may be called again and again with a part that differs."""
        new = what.partition(":")[0] != self._what.partition(":")[0]
        if new:
            self._tell_time()
            self._begun = time.perf_counter()
        with self._lock:
            self._what, self._done, self._total = what, 0, 0
            self._update(new=new)

    def note(self, *lines: str) -> None:
        """Print lines on standard error, above the bar, if it was asked for."""
        for line in lines if self._verbose else ():
            with self._lock:
                if self._bar is None:
                    complain(f"  {line}")
                else:
                    self._bar.console.print(
                        f"  {printable(line)}", markup=False, highlight=False, emoji=False, soft_wrap=True
                    )

    def _tell_time(self) -> None:
        if self._what:
            self.note(f"{self._what.partition(':')[0]}: {time.perf_counter() - self._begun:.2f} s")

    def step(self, done: int, total: int) -> None:
        """Note how much of the work is done."""
        with self._lock:
            again = done < self._done
            self._done, self._total = done, total
            self._update(new=again)

    def _update(self, *, new: bool) -> None:
        if self._bar is None:
            return
        if new:  # a task that has ended stays ended, and the pace of one says nothing of the next
            self._bar.remove_task(self._task)
            self._task = self._bar.add_task(self._what, total=self._total or None, completed=self._done)
        else:
            self._bar.update(
                self._task, description=self._what, completed=self._done, total=self._total or None, refresh=False
            )

    def _show(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

        from trueup.cli.left import TimeLeftColumn

        with self._lock:
            if self._closed:
                return
            self._bar = Progress(
                TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn(), TimeLeftColumn(),
                console=Console(stderr=True), transient=True,
            )  # fmt: skip
            self._task = self._bar.add_task(self._what, total=self._total or None, completed=self._done)
            self._bar.start()
