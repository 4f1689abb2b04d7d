"""Ctrl-C that always works: compiled code that does not listen is left behind after a moment."""

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
unfinished: set[Path] = set()  # files to be removed should the process have to end in the midst of work


@contextlib.contextmanager
def last_resort() -> Iterator[None]:
    """End the process with 130 if, a while after Ctrl-C, the work has not stopped by itself.

    Python raises KeyboardInterrupt only between its own instructions. A long query or kernel may not come back to it
    for hours; the system, however, writes to the wakeup descriptor at once, and a thread of ours reads that.
    """
    if os.name != "posix" or threading.current_thread() is not threading.main_thread():
        yield
        return
    inner, outer = os.pipe()
    os.set_blocking(outer, False)
    done = threading.Event()
    before = signal.set_wakeup_fd(outer, warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(inner, done), daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        signal.set_wakeup_fd(before)
        os.close(outer)  # which ends the thread's reading
        thread.join()
        os.close(inner)


def _listen(inner: int, done: threading.Event) -> None:
    while numbers := os.read(inner, 64):
        if signal.SIGINT in numbers and not done.wait(GRACE_S):
            if sys.stderr is not None and sys.stderr.isatty():
                sys.stderr.write("\x1b[?25h\n")  # the cursor, which a progress bar hides
            for path in list(unfinished):
                with contextlib.suppress(OSError):
                    path.unlink(missing_ok=True)
            console.complain("interrupted")
            os._exit(130)
