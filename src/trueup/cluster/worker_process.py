"""The process in which the work is done: ``python -m trueup.cluster.worker_process ROOM``.

It ends with its worker, and where another process of the gang is lost.
"""

from __future__ import annotations

import os
import pickle
import sys
import threading
import time
import traceback
from pathlib import Path

from trueup.cluster.communicator import SocketCommunicator
from trueup.cluster.worker import FAILED, JOB, LOST, RAISED, RAISED_FILE, RESULT, SIGN, Place
from trueup.errors import TrueupError

LAST = 1.0  # seconds between the loss of another and the end
_leaving = threading.Lock()  # no one ends the process, or writes to its room, while that is taken away


def main(folder: Path) -> int:
    """Do the work that is described in a room; give the exit status."""
    # The room was made for this user alone by the worker that started us, which is ourselves: it may be unpickled.
    place: Place = pickle.loads((folder / JOB).read_bytes())  # noqa: S301
    threading.Thread(target=_follow, args=(place,), daemon=True).start()
    threading.Thread(target=_show, args=(folder / SIGN, place.job.limits.beat), daemon=True).start()
    try:
        _work(place)
    except TrueupError as error:
        (folder / RAISED_FILE).write_bytes(pickle.dumps(error))
        return RAISED
    except BaseException:  # noqa: BLE001
        traceback.print_exc()
        return FAILED
    return 0


def _work(place: Place) -> None:
    seats, job = place.seats, place.job
    circle = SocketCommunicator(
        place.rank, len(seats), (seats[0].host, seats[0].hub), seats[0].word, _miss,
        addresses=[(seat.host, seat.port) for seat in seats], threads=job.threads, limits=job.limits,
    )  # fmt: skip
    work = pickle.loads(job.work)  # noqa: S301
    found = work(place.room.table(), tuple(place.room.sizes), circle)
    if place.rank == 0:
        (place.room.folder / RESULT).write_bytes(pickle.dumps(found))
    circle.part()


def _show(sign: Path, beat: float) -> None:
    """Give a sign of life again and again."""
    while True:
        with _leaving:
            sign.touch()
        time.sleep(beat)


def _follow(place: Place) -> None:
    """End when the worker does: its end of the pipe closes, whatever killed it."""
    sys.stdin.buffer.read()
    with _leaving:
        place.room.close()  # there is no one else to tidy up
        _leave("the worker is gone")


def _miss(words: str) -> None:
    """End because another process is gone; a little later, since where all workers are ended this one's may be next."""
    time.sleep(LAST)
    with _leaving:
        _leave(words)


def _leave(words: str) -> None:
    """End this process at once, whatever its other threads do."""
    sys.stderr.write(words + "\n")
    sys.stderr.flush()
    os._exit(LOST)


if __name__ == "__main__":
    # LightGBM's connections are closed by the system: its own farewell can wait for another.
    status = main(Path(sys.argv[1]))
    with _leaving:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
