"""Column names and bins as they are written on a command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.data.columns import ColumnSource, RawColumn
from trueup.errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Sequence


class Columns:
    """The columns that are there, to find those that were named.

    Parameters
    ----------
    known : sequence of str

    Examples
    --------
    >>> columns = Columns(["y", "p", "b,c"])
    >>> columns.several(["b,c", "y, p"], "feature")
    ['b,c', 'y', 'p']
    """

    def __init__(self, known: Sequence[str]) -> None:
        self.known = list(known)
        self._source = ColumnSource(tuple(known), 0, lambda _: RawColumn("text"))

    def one(self, name: str, role: str) -> str:
        """Find one column; say which name is nearest where it is not there."""
        return str(self._source.find(name, role))

    def several(self, given: Sequence[str], role: str) -> list[str]:
        """Find the columns of a list; a name that is there as written is not split at its commas."""
        names = [name for text in given for name in ([text] if text in self.known else split_names([text]))]
        return [self.one(name, role) for name in names]


def split_names(given: Sequence[str]) -> list[str]:
    """Split lists at their commas.

    Examples
    --------
    >>> split_names(["a, b,", "c"])
    ['a', 'b', 'c']
    """
    return [name.strip() for text in given for name in text.split(",") if name.strip()]


def parse_bins(given: Sequence[str]) -> tuple[int | None, dict[str, Any]]:
    """Read bins: a number for all columns, and what was said of single ones.

    Edges stay texts: whether they are numbers or dates is for the column to say.

    Examples
    --------
    >>> parse_bins(["20", "age=18:30:50", "opened=month", "income=5", "term=24:"])
    (20, {'age': ['18', '30', '50'], 'opened': 'month', 'income': 5, 'term': ['24']})
    """
    usual: int | None = None
    single: dict[str, Any] = {}
    for text in given:
        name, told, value = text.rpartition("=")
        if told and name:
            single[name] = _bins_of_one(value.strip(), text)
            continue
        try:
            usual = int(text)
        except ValueError:
            raise _not_bins(text) from None
    return usual, single


def _bins_of_one(value: str, text: str) -> Any:
    if ":" in value:
        edges = [edge.strip() for edge in value.split(":") if edge.strip()]
        if not edges:
            raise _not_bins(text)
        return edges
    if not value:
        raise _not_bins(text)
    try:
        return int(value)
    except ValueError:
        return value


def _not_bins(text: str) -> ArgumentError:
    return ArgumentError(
        f"--bins does not understand {text!r}", hint="write --bins 10, --bins age=18:30:50 or --bins opened=month"
    )
