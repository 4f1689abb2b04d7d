"""Rows in partitions without a cluster, for tests of distributed work."""

from __future__ import annotations

import functools
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from trueup.calibrators.stopping import append_rows
from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.cluster.partitions import ClusterFrame, ShuffledRecords


class Listed(ClusterFrame):
    """A list of frames in this process, and one worker, which holds them all."""

    def __init__(self, frames):
        self.frames = list(frames)
        self.names = tuple(map(str, frames[0].columns))

    def map_reduce(self, work, add, columns, *, ordered=True):
        return _sum_in_pairs([work(frame[list(columns)], number) for number, frame in enumerate(self.frames)], add)

    def iter_partitions(self, columns):
        for frame in self.frames:
            yield frame[list(columns)]

    def shuffle(self, split, add, columns, partitions):
        values, records = zip(
            *(split(frame[list(columns)], number) for number, frame in enumerate(self.frames)), strict=True
        )
        moved = [[some[key] for some in records if key in some] for key in range(partitions)]
        return functools.reduce(add, values), ListedRecords(moved)

    def run_workers(self, prepare, work, columns):
        tables = [prepare(frame[list(columns)], number) for number, frame in enumerate(self.frames)]
        return work(functools.reduce(append_rows, tables), [len(table) for table in tables], SINGLE_PROCESS)


def _sum_in_pairs(values, add):
    while len(values) > 1:
        pairs = [values[index : index + 2] for index in range(0, len(values), 2)]
        values = [add(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
    return values[0]


class ListedRecords(ShuffledRecords):
    """Records in new partitions, in this process."""

    def __init__(self, records):
        self.records = records

    def map_reduce(self, work, add):
        return functools.reduce(add, [work(some, key) for key, some in enumerate(self.records) if some])

    def close(self):
        self.records = None


class ThreadCommunicator:
    """The communicator of one of several threads, which make the same calls as worker processes would."""

    def __init__(self, rank, arrays, barrier):
        self.rank, self.size = rank, len(arrays)
        self._arrays, self._barrier = arrays, barrier

    def _gather(self, own):
        self._arrays[self.rank] = np.array(own, np.float64)
        self._barrier.wait()
        gathered = np.array(self._arrays)
        self._barrier.wait()
        return gathered

    def all_reduce_sum(self, own):
        total = np.zeros_like(np.asarray(own, np.float64))
        for array in self._gather(own):
            total = total + array
        return total

    def all_reduce_max(self, own):
        return self._gather(own).max(axis=0)


def run_threads(size, work):
    """Return the result of ``work(communicator)`` of each thread."""
    arrays, barrier = [None] * size, threading.Barrier(size, timeout=60)
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda rank: work(ThreadCommunicator(rank, arrays, barrier)), range(size)))
