"""What became of the rows of a monitor over its life: those without an outcome, and those missing when a period closed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

Counts = dict[int, int]  # rows by the number of their period


@dataclass(eq=False)
class RowLedger:
    """Rows by the period in which they enter.

    ``waiting`` has the rows, at least, of a period of which some waited, until it closes; ``given`` those that it had when
    it closed; ``missing`` the rows, at least, that it did not have then: they waited, and were not given again, came later,
    or were changed or deleted.
    """

    waiting: Counts = field(default_factory=dict)
    given: Counts = field(default_factory=dict)
    missing: Counts = field(default_factory=dict)
    unlabelled: int = 0  # rows of closed periods that were left out since they had no outcome

    @property
    def missed(self) -> int:
        """The rows, at least, that were missing when their period closed."""
        return sum(self.missing.values())

    def wait(self, counts: Mapping[int, int]) -> None:
        """Record the rows so far of periods of which some are not mature yet."""
        for number, rows in counts.items():
            self.waiting[number] = max(self.waiting.get(number, 0), rows)

    def come_late(self, counts: Mapping[int, int], first: int | None) -> int:
        """Record rows of closed periods from the ``first`` on; return those of periods that are given as they were before.

        Rows beyond those that a period had are late.
        """
        repeated = 0
        for number, rows in counts.items():
            if first is not None and number >= first:
                before = self.given.get(number, 0)
                self._miss(number, rows - before)
                repeated += rows if rows == before else 0
        return repeated

    def close(self, number: int, rows: int, unlabelled: int) -> None:
        """Record that a period closed, and that those before it did."""
        self.given[number] = rows
        self.unlabelled += unlabelled
        for waited in [one for one in self.waiting if one <= number]:
            self._miss(waited, self.waiting.pop(waited) - self.given.get(waited, 0))

    def lose(self, number: int, rows: int) -> None:
        """Record rows of an open period that were given before, and are changed or deleted."""
        self.missing[number] = self.missing.get(number, 0) + rows

    def _miss(self, number: int, rows: int) -> None:
        if rows > 0:
            self.missing[number] = max(self.missing.get(number, 0), rows)
