"""The argument parser, with suggestions for misspelt words. Imports nothing heavy, so that `trueup --help` is fast."""

from __future__ import annotations

import argparse
import difflib
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from trueup.cli import console

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import SupportsWrite

OPTION_SIMILARITY, CHOICE_SIMILARITY = 0.75, 0.7  # difflib ratios above which a word is suggested


class Parser(argparse.ArgumentParser):
    """An argument parser that prints clean text, survives closed pipes and suggests similar options and values."""

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

    def _get_value(self, action: argparse.Action, arg_string: str) -> Any:
        try:
            return super()._get_value(action, arg_string)
        except argparse.ArgumentError:
            needed = "an integer" if action.type is int else "a number"
            message = f"{action.option_strings[-1]} must be {needed}; got {arg_string!r}"
            raise argparse.ArgumentError(None, message) from None

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
