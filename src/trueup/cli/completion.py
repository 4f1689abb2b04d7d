"""`trueup completion`: print a completion script, generated from the parser by shtab."""

from __future__ import annotations

import argparse

import shtab

from trueup.cli import console
from trueup.cli.options import PROFILE_NAMES
from trueup.cli.parser import build_parser

FILE_TYPES = {"FILE": shtab.FILE, "OUT": shtab.FILE, "MODEL": shtab.glob("*.trueup"), "DIR": shtab.DIRECTORY}


def run(arguments: argparse.Namespace) -> int:
    """Print the completion script for a shell and return the exit code."""
    parser = build_parser()
    (verbs,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for verb in verbs.choices.values():
        for action in verb._actions:
            if action.dest == "profile":
                action.choices = PROFILE_NAMES
            elif action.metavar in FILE_TYPES:
                action.complete = FILE_TYPES[action.metavar]
            if action.dest == "model":
                action.nargs = None  # exactly one, so that files follow it
    console.emit(lambda stream: stream.write(shtab.complete(parser, arguments.shell) + "\n"), data=True)
    return 0
