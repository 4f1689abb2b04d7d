"""Ctrl-C that always works: compiled code that does not react is terminated after a grace period."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from typing import TYPE_CHECKING

from trueup.cli import console

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

GRACE_S = 3.0
unfinished: set[Path] = set()  # temporary files to remove if the process has to be terminated


@contextlib.contextmanager
def exit_after_interrupt() -> Iterator[None]:
    """Exit the process with code 130 if the work has not stopped a grace period after Ctrl-C.

    Python raises KeyboardInterrupt only between its own instructions, which a long query or kernel may not reach for
    hours. The operating system writes to the wakeup descriptor at once, and a thread reads it.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    read_end, write_end = os.pipe()
    os.set_blocking(write_end, False)
    done = threading.Event()
    previous = signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(read_end, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(previous)
        os.close(write_end)  # ends the thread
        thread.join()
        os.close(read_end)


def _listen(read_end: int, done: threading.Event) -> None:
    while signals := os.read(read_end, 64):
        if signal.SIGINT in signals and not done.wait(GRACE_S):
            if sys.stderr is not None and sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h\n")  # show the cursor, which a progress bar hides
            for path in list(unfinished):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            console.complain("interrupted")
            os._exit(130)
