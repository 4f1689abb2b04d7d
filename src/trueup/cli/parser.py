"""The argument parser: number types, options that verbs share, suggestions for misspelt words.

Imports nothing but the standard library, so that `trueup --help` is fast.
"""

from __future__ import annotations

import argparse
import difflib
import math
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from trueup.cli import console

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from _typeshed import SupportsWrite

OPTION_SIMILARITY, CHOICE_SIMILARITY = 0.75, 0.7  # difflib ratios above which a word is suggested


class Parser(argparse.ArgumentParser):
    """An argument parser that prints clean text, survives closed pipes and suggests similar options and values.

    Arguments added by `add` with ``needed=True`` are reported together if they are missing.
    """

    def __init__(self, **settings: Any) -> None:
        settings.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, add_help=False, **settings)
        self._words: list[str] = []
        self._similar_choice = ""
        self.add_argument("-h", "--help", action="help", help="show this help and exit")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if message and file is sys.stdout:
            console.say(message.rstrip("\n"))
        elif message:
            console.complain(message.rstrip("\n"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and raise an error that lists all missing arguments."""
        self._words = sys.argv[1:] if args is None else list(args)
        parsed, rest = super().parse_known_args(args, namespace)
        needed = [action for action in self._actions if getattr(action, "needed", False)]
        missing = [action for action in needed if not getattr(parsed, action.dest)]
        if getattr(parsed, "sql", None) is not None:  # the rows come from the query
            missing = [action for action in missing if action.dest != "files"]
        only_files = [action.dest for action in missing] == ["files"]  # reported later, with a better hint
        if missing and not only_files and not (rest and self._similar_option()):
            names = ["/".join(action.option_strings) or str(action.metavar) for action in missing]
            self.error(f"the following arguments are required: {', '.join(names)}")
        return parsed, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        choices = [str(choice) for choice in action.choices or ()]
        if choices and str(value) not in choices:
            similar = difflib.get_close_matches(str(value).lower(), choices, n=1, cutoff=CHOICE_SIMILARITY)
            option = action.option_strings[-1:] if action.option_strings else []
            self._similar_choice = " ".join([*option, *similar]) if similar else ""
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {', '.join(choices)})")

    def error(self, message: str) -> NoReturn:
        """Print the error and a hint, and exit with code 2."""
        console.complain(f"error: {message}")
        similar = self._similar_option() or self._similar_choice
        verb = [word for word in self._words[:1] if word in self._verbs()]
        help_command = " ".join([self.prog, *verb, "--help"])
        console.complain(f"hint: did you mean {similar}?" if similar else f"hint: see {help_command}")
        self.exit(2)

    def _similar_option(self) -> str:
        known = list(self._long_options())
        for word in (text.split("=")[0] for text in self._words if text.startswith("--") and text != "--"):
            similar = [] if word in known else difflib.get_close_matches(word, known, n=1, cutoff=OPTION_SIMILARITY)
            if similar:
                return similar[0]
        return ""

    def _long_options(self) -> Iterator[str]:
        """Return the options of this parser and of its verbs."""
        for action in self._actions:
            yield from (word for word in action.option_strings if word.startswith("--"))
        for verb in self._verbs().values():
            yield from verb._long_options()

    def _verbs(self) -> dict[str, Parser]:
        actions = (action for action in self._actions if isinstance(action, argparse._SubParsersAction))
        return {name: verb for action in actions for name, verb in action.choices.items()}


class _Version(argparse.Action):
    """Print the version, which is looked up only on demand."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        import trueup

        console.say(f"trueup {trueup.__version__}")
        parser.exit(0)


def build_parser() -> Parser:
    """Return the parser of the command."""
    from trueup.cli.verbs import DESCRIPTION, add_verbs

    parser = Parser(prog="trueup", description=DESCRIPTION, epilog="trueup VERB --help shows the options of a verb")
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    add_verbs(parser.add_subparsers(dest="verb", metavar="VERB", title="verbs"))
    return parser


# Number types


def integer(low: int) -> Callable[[str], int]:
    """Return a type for integers of at least ``low``."""

    def parse(text: str) -> int:
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if value < low:
            raise argparse.ArgumentTypeError(f"must be an integer of at least {low}; got {text!r}")
        return value

    return parse


def number(text: str) -> float:
    """Parse a number."""
    try:
        return float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a number; got {text!r}") from None


def finite(text: str) -> float:
    """Parse a finite number."""
    value = number(text)
    if not math.isfinite(value):
        raise argparse.ArgumentTypeError(f"must be a finite number; got {text!r}")
    return value


def at_least_zero(text: str) -> float:
    """Parse a finite number that is not negative."""
    value = finite(text)
    if value < 0:
        raise argparse.ArgumentTypeError(f"must be a number of at least 0; got {text!r}")
    return value


def fraction(text: str) -> float:
    """Parse a number strictly between 0 and 1."""
    value = number(text)
    if not 0 < value < 1:
        raise argparse.ArgumentTypeError(f"must lie between 0 and 1; got {text!r}")
    return value


# Options of several verbs: one name has one meaning, type and help text. A verb adds its default after a semicolon.

_LIST: dict[str, Any] = {"action": "append"}
_SWITCH: dict[str, Any] = {"action": "store_true"}

SHARED_OPTIONS: Mapping[str, dict[str, Any]] = {
    "--sql": {"metavar": "QUERY", "help": "a DuckDB query; it reads the FILEs as the table data"},
    "--outcome": {"metavar": "Y", "help": "the outcome column"},
    "--positive": {"metavar": "VALUE", "help": "the outcome to count as 1; every other counts as 0"},
    "--prediction": {**_LIST, "metavar": "P", "help": "the score column"},
    "--classes": {**_LIST, "metavar": "A,B", "help": "the class of each prediction column, if there are several"},
    "--weight": {"metavar": "W", "help": "the column of sample weights"},
    "--task": {
        "default": "auto", "choices": ("auto", "binary", "regression"), "metavar": "TASK",
        "help": "auto (default), binary, or regression for amounts",
    },
    "--unlabelled": {
        "default": "error", "choices": ("error", "drop"), "metavar": "HOW",
        "help": "rows without an outcome: error (default) or drop",
    },
    "--by": {**_LIST, "metavar": "A,B,C", "help": "columns that form segments"},
    "--depth": {"type": integer(1), "metavar": "N", "help": "how many columns a segment combines"},
    "--bins": {
        **_LIST, "metavar": "SPEC",
        "help": "bins of numbers and dates: 10 (default) quantile bins for all; age=5 or age=18:30:50 for one column "
        "(age=18: is one edge); opened=month, or year, quarter, week, day (default: by the span of the dates)",
    },
    "--categorical": {**_LIST, "metavar": "A,B", "help": "numeric columns to read as categories, such as zip codes"},
    "--alpha": {"type": number, "metavar": "A", "help": "significance level of the family of tests"},
    "--level": {"type": fraction, "metavar": "A", "help": "coverage of the intervals"},
    "--seed": {"type": integer(0), "default": 0, "metavar": "N", "help": "seed of random numbers (default 0)"},
    "--top": {"type": integer(0), "default": 20, "metavar": "N", "help": "number of table rows to print (default 20)"},
    "--output": {"metavar": "OUT", "help": "the file to write"},
    "--as": {**_LIST, "dest": "name", "metavar": "NAME", "help": "the name of the new column"},
    "--json": {"metavar": "FILE", "help": "write all results as JSON; - is standard output, without any other text"},
    "--threads": {"type": integer(1), "metavar": "N", "help": "number of threads; all cores by default"},
    "--memory": {"metavar": "SIZE", "help": "memory budget, such as 2GB; files are then read in chunks"},
    "--spill": {"metavar": "DIR", "help": "spill directory of --memory (default: the temporary directory)"},
    "--resume": {"metavar": "FILE", "help": "save finished rounds in this file, and continue from it if it exists"},
    "--quiet": {**_SWITCH, "help": "print at most one line, and no progress"},
    "--verbose": {**_SWITCH, "help": "print the choices made, with reasons, on standard error"},
    "--debug": {**_SWITCH, "help": "show the traceback of an unexpected error"},
}  # fmt: skip
SHORT_NAMES = {"--output": "-o"}


def add(group: Any, name: str, more: str = "", *, needed: bool = False, **changes: Any) -> None:
    """Add a shared option; ``more`` is appended to its help, ``changes`` override its settings."""
    settings = {**SHARED_OPTIONS[name], **changes}
    settings["help"] = f"{settings['help']}; {more}" if more else settings["help"]
    names = [SHORT_NAMES[name], name] if name in SHORT_NAMES else [name]
    group.add_argument(*names, **settings).needed = needed


def add_all(group: Any, *names: str) -> None:
    """Add shared options without changes."""
    for name in names:
        add(group, name)


def add_common(group: Any, *, threads: bool = True) -> None:
    """Add the options that every verb has."""
    add_all(group, *(["--threads"] if threads else []), "--quiet", "--verbose", "--debug")
