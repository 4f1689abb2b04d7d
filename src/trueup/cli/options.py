"""The options that verbs share, each written once: one name has one meaning, type and text wherever it is taken.

What an option is stands before the first semicolon of its help; what a verb makes of it, and its default there, after.
Imports nothing but the standard library, so that help comes at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.cli.numbers import at_least, number, within

if TYPE_CHECKING:
    from collections.abc import Mapping

SEVERAL: dict[str, Any] = {"action": "append"}
SWITCH: dict[str, Any] = {"action": "store_true"}

OPTIONS: Mapping[str, dict[str, Any]] = {
    "--sql": {"metavar": "QUERY", "help": "a query in DuckDB's SQL; it sees FILEs as the table data"},
    "--outcome": {"metavar": "Y", "help": "what happened"},
    "--positive": {"metavar": "VALUE", "help": "the outcome that counts as 1; every other counts as 0"},
    "--prediction": {**SEVERAL, "metavar": "P", "help": "the score"},
    "--classes": {**SEVERAL, "metavar": "A,B", "help": "the outcome that each of several prediction columns stands for"},
    "--weight": {"metavar": "W", "help": "importance weights"},
    "--task": {
        "default": "auto", "choices": ("auto", "binary", "regression"), "metavar": "TASK",
        "help": "auto (default), binary, or regression for outcomes that are amounts",
    },
    "--unlabelled": {
        "default": "error", "choices": ("error", "drop"), "metavar": "HOW",
        "help": "rows without an outcome: error (default) refuses them, drop sets them aside",
    },
    "--by": {**SEVERAL, "metavar": "A,B,C", "help": "columns that form segments"},
    "--depth": {"type": at_least(1), "metavar": "N", "help": "how many columns a segment combines"},
    "--bins": {
        **SEVERAL, "metavar": "SPEC",
        "help": "how numbers and dates are cut: 10 (default) for all; age=5 or age=18:30:50 for one column "
        "(age=18: is one edge); opened=month, or year, quarter, week, day (default: by the span of the dates)",
    },
    "--categorical": {
        **SEVERAL, "metavar": "A,B", "help": "numbers that are names, such as zip: not cut, and read as text"
    },
    "--alpha": {"type": number, "metavar": "A", "help": "level of the whole family of tests"},
    "--level": {"type": within(0, 1, ends=False), "metavar": "A", "help": "how often an interval is to hold"},
    "--seed": {"type": at_least(0), "default": 0, "metavar": "N", "help": "fixes what is drawn at random (default 0)"},
    "--top": {"type": at_least(0), "default": 20, "metavar": "N", "help": "how many rows of a table to print (default 20)"},
    "--output": {"metavar": "OUT", "help": "where to write"},
    "--as": {**SEVERAL, "dest": "name", "metavar": "NAME", "help": "what to call the new column"},
    "--json": {
        "metavar": "FILE", "help": "write everything as JSON; - is standard output, and then nothing else goes there"
    },
    "--threads": {"type": at_least(1), "metavar": "N", "help": "how many threads may work; all cores by default"},
    "--memory": {
        "metavar": "SIZE", "help": "hold no more than this at once, such as 2GB; files are then read in pieces"
    },
    "--spill": {
        "metavar": "DIR", "help": "where what does not fit is written (default: the system's temporary folder)"
    },
    "--resume": {
        "metavar": "FILE", "help": "keep finished rounds in this file, and go on from there if it is there already"
    },
    "--quiet": {**SWITCH, "help": "print one line at most, and no progress"},
    "--verbose": {**SWITCH, "help": "say on standard error what was decided, and why"},
    "--debug": {**SWITCH, "help": "show the traceback of an unexpected error"},
}  # fmt: skip
SHORT = {"--output": "-o"}


def add(group: Any, name: str, more: str = "", **changes: Any) -> None:
    """Add a shared option; ``more`` says what a verb makes of it, ``changes`` set a default or make it required."""
    given = {**OPTIONS[name], **changes}
    given["help"] = f"{given['help']}; {more}" if more else given["help"]
    group.add_argument(*([SHORT[name]] if name in SHORT else []), name, **given)


def add_all(group: Any, *names: str) -> None:
    """Add shared options as they are."""
    for name in names:
        add(group, name)


def add_every(group: Any, *, threads: bool = True) -> None:
    """Add what every verb takes."""
    add_all(group, *(["--threads"] if threads else []), "--quiet", "--verbose", "--debug")
