"""The command `trueup`: parses, calls, prints. Nothing heavy is imported before the arguments are understood."""

from __future__ import annotations

import importlib
import sys
import warnings
from typing import TYPE_CHECKING, Any

from trueup.cli import console
from trueup.cli.interrupts import last_resort
from trueup.cli.parser import build_parser
from trueup.errors import TrueupError, TrueupWarning

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["main"]

FINE, BAD_INPUT, UNEXPECTED, INTERRUPTED = 0, 2, 3, 130


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and give its exit code.

    Parameters
    ----------
    argv : sequence of str, optional
        The arguments; by default those of the process.

    Returns
    -------
    int
        0 fine; 1 what ``--fail-if`` named was found; 2 bad input or usage; 3 a fault of trueup; 130 interrupted.
    """
    debug = False
    try:
        parser = build_parser()
        try:
            arguments = parser.parse_args(argv)
            arguments.words = list(sys.argv[1:] if argv is None else argv)  # as they were typed
        except SystemExit as stop:  # help, the version, or a usage error, told already
            return stop.code if isinstance(stop.code, int) else FINE
        if arguments.verb is None:
            parser.print_help(sys.stderr)
            return BAD_INPUT
        debug = arguments.debug
        with last_resort(), warnings.catch_warnings():
            warnings.simplefilter("always", TrueupWarning)
            _print_warnings_plainly()
            return _call(arguments)
    except KeyboardInterrupt:
        console.complain("interrupted")
        return INTERRUPTED
    except TrueupError as error:
        console.complain(f"error: {console.in_options(error.message)}")
        if error.hint:
            console.complain(f"hint: {console.in_options(error.hint)}")
        return BAD_INPUT
    except MemoryError:
        console.complain("error: not enough memory\nhint: name fewer columns, or give fewer rows at a time")
        return BAD_INPUT
    except Exception as error:  # noqa: BLE001  (whatever happens, nobody is shown a traceback unasked)
        return _own_fault(error, debug=debug)


def _call(arguments: argparse.Namespace) -> int:
    """Import the module of the verb, and only that."""
    return int(importlib.import_module(f"trueup.cli.{arguments.verb}").run(arguments))


def _own_fault(error: Exception, *, debug: bool) -> int:
    if debug:
        import traceback

        console.complain("".join(traceback.format_exception(error)).rstrip())
    console.complain(f"unexpected error: {type(error).__name__}: {error}")
    advice = "" if debug else "; --debug shows the traceback to send along"
    console.complain(f"this is a fault in trueup, please report it{advice}")
    return UNEXPECTED


def _print_warnings_plainly() -> None:
    """Print warnings of trueup on a line of their own; leave all others as they are."""
    usual = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, TrueupWarning):
            console.complain(f"warning: {console.in_options(str(message))}")
        else:
            usual(message, category, *where, **more)

    warnings.showwarning = show
