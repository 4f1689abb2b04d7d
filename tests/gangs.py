"""What the processes of a gang do in tests, and rows for them. In a module of its own: other processes import it."""

from __future__ import annotations

import os
import signal
import time
from functools import partial
from pathlib import Path

import numpy as np

from trueup.data.schema import Feature, Schema
from trueup.data.spill import PREFIX
from trueup.data.table import Table
from trueup.errors import DataError

SCHEMA = Schema("binary", "y", ("p",), "w", (Feature("region", "categorical", ("a", "b", "c")), Feature("age", "numeric")))
SHOWN = "TRUEUP_TEST_PIDS"  # names a folder in which every process leaves its number


def rows(count, seed=0):
    """Draw a Table: a region, an age, a prediction, an outcome, a weight."""
    random = np.random.default_rng(seed)
    p = random.uniform(0.05, 0.95, count)
    columns = {"region": random.integers(-1, 3, count).astype(np.int32), "age": random.normal(40, 9, count)}
    y = (random.random(count) < p * (0.7 + 0.1 * columns["region"])).astype(float)
    return Table(SCHEMA, columns, p, y, random.exponential(1, count))


def halves(table, cuts):
    """Cut a Table at rows."""
    return [table.take(part) for part in np.split(np.arange(len(table)), cuts)]


def show(folder=None):
    """Leave the number of this process behind, and where its room is."""
    if folder := folder or os.environ.get(SHOWN):
        Path(folder, str(os.getpid())).write_text(str(Path.cwd()))


def alive(folder):
    """List the processes that have shown themselves and are still there."""
    return [int(path.name) for path in Path(folder).iterdir() if _is_running(int(path.name))]


def rooms(folder):
    """List the rooms of processes that have shown themselves which are still there."""
    found = [path.read_text() for path in Path(folder).iterdir()]
    return [one for one in found if one and Path(one).exists()]


def _is_running(number):
    try:
        state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def facts(table, sizes, communicator):
    """Tell what everyone has: ranks, rows, sums and maxima of numbers that do not add exactly."""
    show()
    own = np.zeros((communicator.size, 4))
    own[communicator.rank] = len(table), len(sizes), table.columns["region"].sum(), communicator.threads
    values = 0.1 * np.arange(1, 6) / (3 + communicator.rank)
    total, most = (
        communicator.all_reduce_sum(values),
        communicator.all_reduce_max(np.array([-float(communicator.rank), len(table)])),
    )
    other = np.zeros((communicator.size, 5))
    other[communicator.rank] = total
    return {
        "each": communicator.all_reduce_sum(own),
        "total": total,
        "heard": communicator.all_reduce_sum(other),
        "most": most,
        "one": communicator.all_reduce_sum(2.5),
    }


def refuse(table, sizes, communicator):
    """Have the last of them find something wrong, while the others wait."""
    show()
    if communicator.rank == communicator.size - 1:
        raise DataError("column 'age' has no rows", hint="look at it")
    return communicator.all_reduce_sum(1.0)


def fail(table, sizes, communicator):
    """Have the last of them fail by a mistake of ours."""
    if communicator.rank == communicator.size - 1:
        return {}["no such key"]
    return communicator.all_reduce_sum(1.0)


def end(table, sizes, communicator, *, by=signal.SIGKILL, who=os.getpid, shown=None):
    """Have the second of them ended, or stopped, in the middle of sums."""
    show(shown)
    for step in range(10_000):
        communicator.all_reduce_sum(np.ones(100))
        if step == 20 and communicator.rank == 1:
            os.kill(who(), by)
            time.sleep(60)
        time.sleep(0.01)


def executor():
    """Find the Java process above this one."""
    number = os.getpid()
    while Path(f"/proc/{number}/comm").read_text() != "java\n":
        number = int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
    return number


killed = end
frozen = partial(end, by=signal.SIGSTOP)  # looks as if its machine were gone
orphaned = partial(end, who=os.getppid)  # its worker is ended
unhosted = partial(end, who=executor)


def linger(table, sizes, communicator, *, shown=None):
    """Work for long."""
    show(shown)
    while True:
        communicator.all_reduce_sum(1.0)
        time.sleep(0.05)


def loans(count, seed=0):
    """Draw columns as a user has them."""
    table = rows(count, seed)
    region = np.array(["a", "b", "c", None], object)[table.columns["region"]]
    return {"region": region, "age": table.columns["age"], "p": table.prediction, "y": table.outcome, "w": table.weight}


def prepare(frame, number):
    """Take a frame to a Table; its age is the number of its part."""
    if number == 99:
        raise DataError("part 99 is no good")
    get = {name: np.asarray(frame[name].to_numpy()) for name in ("region", "p", "y", "w")}
    codes = np.array(["abc".find(str(one)) for one in get["region"]], np.int32)
    p, y, w = (get[name].astype(float) for name in ("p", "y", "w"))
    return Table(SCHEMA, {"region": codes, "age": np.full(len(p), float(number))}, p, y, w)


def prepare_badly(frame, number):
    """Find the second part wrong."""
    return prepare(frame, 99 if number == 1 else number)


def overview(table, sizes, communicator):
    """Tell the rows of every process, its parts, and sums over all."""
    show()
    numbers = np.zeros((communicator.size, 3))
    pieces = np.split(table.columns["age"], np.cumsum(sizes)[:-1])
    assert all(np.ptp(piece) == 0 for piece in pieces if len(piece))
    parts = [piece[0] if len(piece) else -1.0 for piece in pieces]
    numbers[communicator.rank] = len(table), len(sizes), communicator.threads
    listed = np.zeros((communicator.size, 16))
    listed[communicator.rank, : len(parts)] = np.array(parts) + 1
    sums = communicator.all_reduce_sum(
        [table.prediction.sum(), table.outcome.sum(), table.weight.sum(), table.columns["region"].sum()]
    )
    parts = [[int(one) - 1 for one in line if one] for line in communicator.all_reduce_sum(listed)]
    return {
        "members": communicator.all_reduce_sum(numbers).tolist(),
        "parts": parts,
        "sums": sums.tolist(),
        "rooms": str(Path.cwd().parent),
    }


def count(frame, number):
    """Count the rows of a part."""
    return len(frame)


def plus(one, two):
    """Add."""
    return one + two


def dask_rooms(dask_worker):
    """List the rooms of all Dask workers of its machine."""
    return [path.name for path in Path(dask_worker.local_directory).parent.glob(f"*/{PREFIX}*")]
