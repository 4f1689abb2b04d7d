"""The command line of trueup; nothing heavy is imported before the arguments are parsed, so that help is fast."""

from __future__ import annotations

import contextlib
import importlib
import os
import shlex
import sys
import warnings
from typing import TYPE_CHECKING, Any, NoReturn

from trueup._optional import require_installed
from trueup._temporary import remove_all
from trueup.cli import console
from trueup.cli.next_steps import option_name, option_words
from trueup.cli.parser import build_parser, check_arguments
from trueup.errors import TrueupError, TrueupWarning

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

__all__ = ["command", "main"]

PACKAGES = ("duckdb", "narwhals", "numba", "rich", "scipy", "sklearn")  # what an install that only scores rows lacks
SUCCESS, INVALID_INPUT, INTERNAL_ERROR = 0, 2, 3


def command() -> NoReturn:
    """Run the command line as the process that it is."""
    code = main()
    if console.was_stopped():
        # Python remembers an interruption inside `exec`, and would end with SIGINT instead; and nobody waits for a thread.
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError, AttributeError):
                stream.flush()
        os._exit(code)
    sys.exit(code)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command and return its exit code, as listed in `trueup audit --help` and docs/command-line.md."""
    arguments: argparse.Namespace | None = None
    console.forget_signals()
    try:
        parser = build_parser()
        try:
            parsed = parser.parse_args(argv)
        except SystemExit as stop:  # help, version, or a usage error that has been printed
            return stop.code if isinstance(stop.code, int) else SUCCESS
        if parsed.verb is None:
            parser.print_help(sys.stderr)
            return INVALID_INPUT
        arguments = parsed
        arguments.words = list(sys.argv[1:] if argv is None else argv)  # as typed
        require_installed("the command line", *PACKAGES)
        check_arguments(arguments)
        with console.stop_on_signals(), contextlib.ExitStack() as arguments.cleanup, warnings.catch_warnings():
            warnings.simplefilter("always", TrueupWarning)
            _print_warnings()
            return int(importlib.import_module(f"trueup.cli.{arguments.verb}").run(arguments))
    except KeyboardInterrupt:
        return _stop()
    except TrueupError as error:
        if console.was_stopped():
            return _stop()
        console.complain(format_error(error, arguments))
        return INVALID_INPUT
    except MemoryError:
        console.complain("error: not enough memory\nhint: name fewer columns, read fewer rows, or set --memory")
        return INVALID_INPUT
    except Exception as error:  # noqa: BLE001  (users see a traceback only with --debug)
        if console.was_stopped():  # compiled code turns KeyboardInterrupt into errors of its own
            return _stop()
        debug = arguments is not None and arguments.debug
        if debug:
            import traceback

            console.complain("".join(traceback.format_exception(error)).rstrip())
        console.complain(f"unexpected error: {type(error).__name__}: {error}")
        advice = "" if debug else "; run with --debug and include the traceback"
        console.complain(f"this is an error in trueup, please report it{advice}")
        return INTERNAL_ERROR


def _stop() -> int:
    """Remove what an interruption at an unlucky moment has left, and return the exit code of the signal."""
    remove_all()
    return console.stop_status()


def format_error(error: TrueupError, arguments: argparse.Namespace | None) -> str:
    """Return message and hint of an error, with the parameters that are options of the verb written as options."""
    known = set() if arguments is None else set(vars(arguments)) | {"random_state"}

    def setting(name: str, value: Any) -> str:
        if name not in known:
            return f"{name}=..." if value is ... else f"{name}={value!r}"
        if value is False:
            return f"out {option_name(name)}"  # of hints that say "leave logits=False"
        return f"{option_name(name)} ..." if value is ... else shlex.join(option_words(name, value, defaults=()))

    message, hint = error.message, error.format_hint(setting)
    if error.parameter in known and message.startswith(str(error.parameter)):
        message = option_name(str(error.parameter)) + message.removeprefix(str(error.parameter))
    if "positive" in error.settings and "positive" in known:  # in Python users encode the outcome themselves
        hint = f"name the positive outcome, such as {setting('positive', error.settings['positive'])}"
    return f"error: {message}" + (f"\nhint: {hint}" if hint else "")


def _print_warnings() -> None:
    """Set `warnings.showwarning` to print warnings of trueup on one line each; others are shown as before."""
    default = warnings.showwarning

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, TrueupWarning):
            console.complain(f"warning: {message}")
        else:
            default(message, category, *where, **more)

    warnings.showwarning = show
