"""Files larger than memory as partitions: rows are read in chunks, and spilled to disk if a fit needs all of them."""

from __future__ import annotations

import contextlib
import ctypes
import sys
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

from trueup.cluster.communicator import SINGLE_PROCESS
from trueup.data.chunks import ScanReader, open_scan
from trueup.data.spill import TableSpill

if TYPE_CHECKING:
    from collections.abc import Iterator

    from trueup.cluster.partitions import Add, Work, WorkerFunction
    from trueup.data.scan import Scan
    from trueup.data.table import Table

T = TypeVar("T")

# glibc's malloc.h: option numbers; the size from which freed memory is returned during a fit, and glibc's own maximum.
MMAP_THRESHOLD, TRIM_THRESHOLD, FIT_BYTES, DEFAULT_BYTES = -3, -1, 1 << 20, 1 << 25


def open_scan_partitions(scan: Scan, **roles: Any) -> contextlib.AbstractContextManager[ScanPartitions]:
    """Open the rows of a scan, with the roles that `trueup.data.chunks.open_scan` takes."""
    return open_scan(scan, ScanPartitions, **roles)


class ScanPartitions(ScanReader):
    """Rows of files in partitions of 50,000 rows, so that results do not depend on the memory budget."""

    def map_reduce(self, work: Work[T], add: Add[T]) -> T:
        """Return the sum by ``add`` of ``work(table, number)`` over all partitions, in their order."""
        total: T | None = None
        for number, table in enumerate(self.iter_partitions()):
            result = work(table, number)
            total = result if total is None else add(total, result)
        assert total is not None  # a scan has rows
        return total

    def run_workers(self, work: WorkerFunction[T]) -> T:
        """Run ``work`` in this process on all rows; columns are memory-mapped from files that are written once."""
        table, sizes = self._mapped_table
        with _return_freed_memory():
            return work(table, sizes, SINGLE_PROCESS)

    @cached_property
    def _mapped_table(self) -> tuple[Table, list[int]]:
        hint = "free disk space there, or use another directory ({spill})"
        spill = TableSpill.create(self.spill_directory, hint=hint, settings={"spill": ...})
        for table in self.iter_partitions():
            spill.add(table)
        return spill.table(), spill.sizes


@contextlib.contextmanager
def _return_freed_memory() -> Iterator[None]:
    """Make glibc return freed memory to the system at once: otherwise it keeps about a third of what the rows take.

    Limited to the fit, since allocating arrays of a few megabytes becomes slow.
    """
    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if not hasattr(library, "mallopt"):  # only glibc has it
        yield
        return
    assert library is not None
    library.mallopt(MMAP_THRESHOLD, FIT_BYTES)
    try:
        yield
    finally:
        library.mallopt(MMAP_THRESHOLD, DEFAULT_BYTES)
        library.mallopt(TRIM_THRESHOLD, 2 * DEFAULT_BYTES)
