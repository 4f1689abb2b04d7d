"""Whether this process was forked from one that may have started the threads of OpenMP, for LightGBM.

They do not exist in the forked process, which would wait for them for ever. OpenMP with one thread waits for nobody.
"""

from __future__ import annotations

import os
import sys

LIBRARY = "lightgbm"
FORKED, FLAGS_FIELD = 0x40, 6  # in /proc/PID/stat of Linux: forked and no program started since; the field after the name


def _was_forked() -> bool:
    """Return whether this process was forked and has started no program since, as far as the system tells."""
    try:
        with open("/proc/self/stat", "rb") as stream:  # noqa: PTH123  (pathlib takes longer to import)
            return bool(int(stream.read().rpartition(b")")[2].split()[FLAGS_FIELD]) & FORKED)
    except (OSError, ValueError, IndexError):
        return False


_lacks_threads = LIBRARY in sys.modules and _was_forked()  # it may have been imported in the parent, before trueup


def _look_for_library() -> None:
    """In a forked process: threads may be missing if the library was imported in the parent."""
    global _lacks_threads
    _lacks_threads = _lacks_threads or LIBRARY in sys.modules


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_look_for_library)


def usable_threads(threads: int) -> int:
    """Return the number of threads that OpenMP can use: one in a process forked after LightGBM was imported."""
    return 1 if _lacks_threads else threads
