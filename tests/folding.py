"""What the tests let the parts of a cluster do: a module that its workers can import."""

from __future__ import annotations

import os
import signal


def itself(part):
    return part


def sizes(frame, number):
    return {number: len(frame)}


def first(table, number):
    return {number: (table.prediction[:1].tolist(), len(table), table.unlabelled, table.weightless)}


def merge(a, b):
    return {**a, **b}


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
