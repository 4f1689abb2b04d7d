"""The words of the command line. Imports nothing but the standard library, so that help comes at once."""

from __future__ import annotations

import argparse
import difflib
import re
import sys
from typing import TYPE_CHECKING, Any, NoReturn

from trueup.cli import console
from trueup.cli.helptexts import ABOUT
from trueup.cli.verbs import add_verbs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from _typeshed import SupportsWrite


CHOICE = re.compile(r"argument (\S+): invalid choice: '(.*?)'")
REQUIRED = "the following arguments are required: "
NEAR, NEAR_CHOICE = 0.75, 0.7  # how like two words are (difflib) that may be meant for each other


class Parser(argparse.ArgumentParser):
    """An argument parser that prints clean text, survives closed pipes and suggests the nearest option."""

    def __init__(self, **given: Any) -> None:
        given.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, add_help=False, **given)
        self._given: list[str] = []
        self._found = argparse.Namespace()
        self.add_argument("-h", "--help", action="help", help="show this help and leave")

    def _print_message(self, message: str, file: SupportsWrite[str] | None = None) -> None:
        if message and file is sys.stdout:
            console.say(message.rstrip("\n"))
        elif message:
            console.complain(message.rstrip("\n"))

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """Parse, and remember what was given to find a misspelt option among it."""
        self._given = sys.argv[1:] if args is None else list(args)
        self._found = argparse.Namespace() if namespace is None else namespace
        return super().parse_known_args(args, self._found)

    def error(self, message: str) -> NoReturn:
        """Say what is wrong and where help is; leave with 2."""
        console.complain(f"error: {self._with_files(message)}")
        near = self._nearest() or self._nearest_choice(message)
        verb = f" {self._found.verb}" if getattr(self._found, "verb", None) and self.prog == "trueup" else ""
        console.complain(f"hint: {near or f'{self.prog}{verb} --help shows what it takes'}")
        self.exit(2)

    def _with_files(self, message: str) -> str:
        """Name FILE among what is missing: a query can stand for it, so argparse does not require it."""
        takes = any(action.dest == "files" for action in self._actions)
        given = getattr(self._found, "files", None) or getattr(self._found, "sql", None) is not None
        if not message.startswith(REQUIRED) or not takes or given:
            return message
        names = [name for name in message.removeprefix(REQUIRED).split(", ") if name != "FILE"]
        names.insert(sum(not name.startswith("-") for name in names), "FILE")
        return REQUIRED + ", ".join(names)

    def _nearest(self) -> str:
        known = list(self._options())
        for word in (text.split("=")[0] for text in self._given if text.startswith("--") and text != "--"):
            near = [] if word in known else difflib.get_close_matches(word, known, n=1, cutoff=NEAR)
            if near:
                return f"did you mean {near[0]}?"
        return ""

    def _nearest_choice(self, message: str) -> str:
        """Find what a misspelt choice was to be, of an option or of a verb."""
        found = CHOICE.match(message)
        if found is None:
            return ""
        name, word = found.groups()
        for action in self._actions:
            near = difflib.get_close_matches(word.lower(), map(str, action.choices or ()), n=1, cutoff=NEAR_CHOICE)
            if near and name in (*action.option_strings, "/".join(action.option_strings), action.metavar):
                return f"did you mean {f'{name} ' if name.startswith('-') else ''}{near[0]}?"
        return ""

    def _options(self) -> Iterator[str]:
        """Name every option, of the verbs too: what they do not know is refused here."""
        for action in self._actions:
            yield from (word for word in action.option_strings if word.startswith("--"))
            for verb in action.choices.values() if isinstance(action, argparse._SubParsersAction) else ():
                yield from verb._options()


class _Version(argparse.Action):
    """Look the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any, **__: Any) -> None:
        import trueup

        console.say(f"trueup {trueup.__version__}")
        parser.exit(0)


def build_parser() -> argparse.ArgumentParser:
    """Make the parser of the whole command."""
    parser = Parser(prog="trueup", description=ABOUT)
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and leave")
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", title="verbs")
    add_verbs(verbs)
    parser.epilog = "trueup VERB --help shows what a verb takes"
    return parser
