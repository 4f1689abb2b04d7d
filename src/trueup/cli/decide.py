"""`trueup decide`: scores without outcomes to a rule, and what it will cost."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING

from trueup._optional import require
from trueup.cli import console
from trueup.cli.decided import answer_data, answer_line, answer_page
from trueup.cli.judging import answer
from trueup.cli.output import check_output, whole_file
from trueup.cli.question import read_question
from trueup.cli.reading import need_rows
from trueup.cli.terminal import show_page
from trueup.cli.together import read_rows
from trueup.cli.told import json_of
from trueup.data.paths import find_files
from trueup.errors import ArgumentError, TrueupWarning
from trueup.reports.output import write_whole

if TYPE_CHECKING:
    import argparse

    from trueup.decisions import BestRule

__all__ = ["run"]

PICTURES = (".svg", ".png", ".pdf")
EXAMPLE = "cost.svg"


def run(arguments: argparse.Namespace) -> int:
    """Decide, write what was asked for, print; give the exit code."""
    need_rows(arguments)
    question = read_question(arguments)
    _check_rows(arguments)
    _check_places(arguments)
    with console.Watch(quiet=arguments.quiet) as watch:
        watch.say("reading")
        rows = read_rows(arguments)
        watch.say("deciding")
        found = answer(rows, question, level=arguments.level, target=arguments.target)
        watch.say("writing")
        if arguments.output is not None:
            _draw(found.best, arguments.output)
        if arguments.json not in (None, "-"):
            write_whole(arguments.json, json_of(answer_data(found)))
    if arguments.json == "-":
        console.emit(lambda stream: stream.writelines(json_of(answer_data(found))))
    elif arguments.quiet:
        console.say(answer_line(found))
    else:
        wrote = [f"wrote {place}" for place in (arguments.output, arguments.json) if place is not None]
        show_page([*answer_page(found, arguments), *(["", *wrote] if wrote else [])])
    return 0


def _check_rows(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if arguments.labelled is not None and arguments.outcome is None:
        raise ArgumentError("--labelled needs --outcome", hint="name the column that says what happened: --outcome y")
    if arguments.labelled is None and arguments.outcome is not None:
        raise ArgumentError(
            "--outcome goes with --labelled: the rows to decide on need none",
            hint="name a file of rows whose outcome is known: --labelled old.parquet --outcome y",
        )
    if arguments.by is not None and not any(names.strip(" ,") for names in arguments.by):
        raise ArgumentError("--by names no column", hint="write it as --by region,product, or leave it out")
    if arguments.bins and arguments.by is None:
        raise ArgumentError("--bins goes with --by", hint="name the columns that form segments: --by age")


def _check_places(arguments: argparse.Namespace) -> None:
    """Refuse before the work what could not be written after it."""
    decided, told = (find_files(files).paths if files else [] for files in (arguments.files, arguments.labelled))
    sources = [*decided, *told]
    for path in decided:
        if any(path.samefile(other) for other in told):
            warnings.warn(
                f"{path} is decided on, and labelled: what its rows cost is known, and the interval is that of other rows "
                "like them",
                TrueupWarning,
                stacklevel=2,
            )
    if arguments.output is not None:
        if Path(arguments.output).suffix.lower() not in PICTURES:
            raise ArgumentError(
                f"-o {arguments.output} is no picture: its name must end in {', '.join(PICTURES[:-1])} or {PICTURES[-1]}",
                hint=f"-o {EXAMPLE} draws the cost of each threshold; --json FILE writes all figures",
            )
        require("matplotlib", extra="plots")
        check_output(arguments.output, sources, example=EXAMPLE)
    if arguments.json not in (None, "-"):
        check_output(arguments.json, sources, example="decision.json")
        if arguments.output is not None and Path(arguments.json).resolve() == Path(arguments.output).resolve():
            raise ArgumentError(f"--json {arguments.json} would overwrite the picture", hint="name another file")


def _draw(best: BestRule, path: str) -> None:
    """Draw the cost of each threshold; the ending says how."""
    from trueup.reports.figures import draw_cost_curve

    figure = draw_cost_curve(best).figure
    with whole_file(path, example=EXAMPLE) as place:
        figure.savefig(place, format=Path(path).suffix.lower()[1:], dpi=150)  # type: ignore[union-attr]
