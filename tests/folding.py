"""What the tests let the parts of a cluster do: a module that its workers can import."""

from __future__ import annotations

import os
import signal

import numpy as np


def itself(part):
    return part


def sizes(frame, number):
    return {number: len(frame)}


def first(table, number):
    return {number: (table.prediction[:1].tolist(), len(table), table.unlabelled, table.weightless)}


def merge(a, b):
    return {**a, **b}


def by_score(frame, number):
    """Move scores to one of three partitions by the first digit; the second stays empty."""
    scores = np.asarray(frame["p"], float)
    place = np.where(scores < 0.5, 0, 2)
    return {number: len(frame)}, {int(key): scores[place == key].tobytes() for key in np.unique(place)}


def scores_of(records, key):
    return [(key, np.sort(np.frombuffer(b"".join(records))).tolist())]


def fail_to_split(frame, number):
    raise KeyError(f"no such thing in part {number}")


def fail(frame, number):
    raise KeyError(f"no such thing in part {number}")


def die(frame, number):
    if number == 2:
        os.kill(os.getpid(), signal.SIGKILL)
    return 0


def ends(frame, number):
    ids = frame["id"].to_pylist()
    return [(ids[0], ids[-1])]


def join(a, b):
    return a + b


def allow(dask_scheduler, failures):
    dask_scheduler.allowed_failures = failures
