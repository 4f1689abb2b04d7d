"""How long work will still take, as far as anybody knows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.progress import ProgressColumn
from rich.text import Text

if TYPE_CHECKING:
    from rich.progress import Task


class TimeLeftColumn(ProgressColumn):
    """The time left at the pace so far; nothing where nobody knows how much there is to do."""

    max_refresh = 0.5

    def render(self, task: Task) -> Text:
        """Write it."""
        left = task.time_remaining
        return Text("" if left is None or task.finished else f"about {in_words(left)} left", style="dim")


def in_words(seconds: float) -> str:
    """Write a duration for people: seconds, then minutes, then hours.

    Examples
    --------
    >>> in_words(0.2), in_words(42), in_words(61), in_words(7300)
    ('1 s', '42 s', '2 min', '2 h 2 min')
    """
    whole = max(1, round(seconds))
    if whole < 60:
        return f"{whole} s"
    minutes = -(-whole // 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
