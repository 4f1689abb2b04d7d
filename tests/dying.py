"""Work that kills its own process once, for tests of fits that go on afterwards; processes import it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

from trueup.calibrators.mcgrad import apart

GROW = apart._round  # before a test puts another in its place


def grow_or_die(table, sizes, communicator, *, plan, rounds, flag):
    """Grow a round with one other; the second of the two dies in the second round, unless the flag is there."""
    assert communicator.size == 2
    assert len(table)
    if communicator.rank == 1 and len(rounds) == 1 and not Path(flag).exists():
        Path(flag).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return GROW(table, sizes, communicator, plan=plan, rounds=rounds)
