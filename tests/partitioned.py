"""Rows in parts without a cluster: what the tests of distributed work run on."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from trueup.cluster.partitions import ClusterFrame, ShuffledRecords


class Listed(ClusterFrame):
    """A list of frames in this process; a gang runs in processes of its own, one a frame."""

    def __init__(self, frames):
        self.frames = list(frames)
        self.names = tuple(map(str, frames[0].columns))

    def map_reduce(self, work, add, columns):
        found = [work(frame[list(columns)], at) for at, frame in enumerate(self.frames)]
        while len(found) > 1:
            pairs = [found[at : at + 2] for at in range(0, len(found), 2)]
            found = [add(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        return found[0]

    def iter_partitions(self, columns):
        for frame in self.frames:
            yield frame[list(columns)]

    def shuffle(self, split, add, columns, partitions):
        values, records = zip(*(split(frame[list(columns)], at) for at, frame in enumerate(self.frames)), strict=True)
        moved = [[some[key] for some in records if key in some] for key in range(partitions)]
        return functools.reduce(add, values), ListedRecords(moved)

    def run_workers(self, prepare, work, columns):
        from trueup.cluster.worker import run_here

        return run_here([[prepare(frame[list(columns)], at)] for at, frame in enumerate(self.frames)], work)


class ListedRecords(ShuffledRecords):
    """Records in new partitions, in this process."""

    def __init__(self, records):
        self.records = records

    def map_reduce(self, work, add):
        return functools.reduce(add, [work(some, key) for key, some in enumerate(self.records) if some])

    def close(self):
        self.records = None


class Threads:
    """A team of threads: they take every step together, as processes would."""

    def __init__(self, size):
        self.size, self.rank = size, 0
        self._room = [None] * size
        self._meet = threading.Barrier(size, timeout=60)

    def run(self, work):
        """Give what each of the members found: ``work(communicator)``."""
        with ThreadPoolExecutor(self.size) as pool:
            return list(pool.map(lambda rank: work(_Member(self, rank)), range(self.size)))


class _Member:
    def __init__(self, whole, rank):
        self._whole, self.rank, self.size = whole, rank, whole.size

    def _all(self, own):
        self._whole._room[self.rank] = np.array(own, np.float64)
        self._whole._meet.wait()
        found = np.array(self._whole._room)
        self._whole._meet.wait()
        return found

    def all_reduce_sum(self, own):
        total = np.zeros_like(np.asarray(own, np.float64))
        for one in self._all(own):
            total = total + one
        return total

    def all_reduce_max(self, own):
        return self._all(own).max(axis=0)
