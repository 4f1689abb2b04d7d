"""Threads for kernels that release the global interpreter lock."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    Progress = Callable[[int, int], None]


T = TypeVar("T")
R = TypeVar("R")


class Workers:
    """Threads, by default one per core.

    ``progress`` is called with the numbers of completed items and of all items; ``begin`` runs in each thread before its
    first item in every call of `map`.
    """

    def __init__(
        self, threads: int | None = None, progress: Progress | None = None, begin: Callable[[], None] | None = None
    ) -> None:
        self.threads = threads or cores()
        self.progress = progress
        self.begin = begin

    def map(self, work: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """Return the result of ``work`` for each item, in their order."""
        if self.threads == 1 or len(items) < 2:
            if self.begin is not None:
                self.begin()
            return list(self._watch(map(work, items), len(items)))
        with ThreadPoolExecutor(min(self.threads, len(items)), initializer=self.begin) as pool:
            return list(self._watch(pool.map(work, items), len(items)))

    def _watch(self, results: Iterator[R], total: int) -> Iterator[R]:
        for done, result in enumerate(results, start=1):
            if self.progress is not None:
                self.progress(done, total)
            yield result


def cores() -> int:
    """Count the cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
