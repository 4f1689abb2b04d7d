"""`trueup decide`: scores without outcomes to a rule, and what it will cost."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup.cli import console, reasons
from trueup.cli.decided import answer_data, answer_line, answer_page
from trueup.cli.judging import answer
from trueup.cli.output import check_output, files_in_query, whole_file
from trueup.cli.question import read_question
from trueup.cli.reading import need_rows
from trueup.cli.remarks import PICTURES, check_command
from trueup.cli.terminal import show_page
from trueup.cli.together import read_rows
from trueup.cli.told import json_of
from trueup.data.export import add_columns, format_to_write
from trueup.data.paths import find_files
from trueup.data.sql import column_names
from trueup.errors import ArgumentError, ColumnError, FileError, TrueupWarning
from trueup.storage import write_text

if TYPE_CHECKING:
    import argparse

    from trueup._types import AnyArray
    from trueup.cli.judging import Answer
    from trueup.decisions import BestRule

EXAMPLE, DECIDED = "cost.svg", "decided.parquet"
ACTION = "action"  # the column that says what to do
DEEPEST = 3  # columns that a segment combines, as in an audit


def run(arguments: argparse.Namespace) -> int:
    """Decide, write what was asked for, print; give the exit code."""
    need_rows(arguments)
    question = read_question(arguments)
    _check_rows(arguments)
    _check_places(arguments)
    with console.Watch(quiet=arguments.quiet, verbose=arguments.verbose) as watch:
        watch.say("reading")
        rows = read_rows(arguments)
        watch.note(*reasons.of_rows(rows, question))
        watch.say("deciding")
        found = answer(rows, question, level=arguments.level, target=arguments.target)
        watch.note(*reasons.of_answer(found))
        watch.say("writing")
        wrote = [_write(found, place, arguments) for place in arguments.output or ()]
        if arguments.json not in (None, "-"):
            write_text(arguments.json, json_of(answer_data(found)))
    if arguments.json == "-":
        console.emit(lambda stream: stream.writelines(json_of(answer_data(found))), data=True)
    elif arguments.quiet:
        console.say(answer_line(found))
    else:
        wrote += [] if arguments.json is None else [f"wrote {arguments.json}"]
        show_page([*answer_page(found, arguments), *(["", *wrote] if wrote else []), *check_command(found, arguments)])
    return 0


def _check_rows(arguments: argparse.Namespace) -> None:
    """Refuse options that do not go together."""
    if arguments.labelled is not None and arguments.outcome is None:
        raise ArgumentError("--labelled needs --outcome", hint="name the column that says what happened: --outcome y")
    if arguments.positive is not None and arguments.outcome is None:
        raise ArgumentError("--positive goes with --outcome", hint="name the column that says what happened: --outcome y")
    if arguments.labelled is None and arguments.outcome is not None:
        raise ArgumentError(
            "--outcome goes with --labelled: the rows to decide on need none",
            hint="name a file of rows whose outcome is known: --labelled old.parquet --outcome y",
        )
    if arguments.by is not None and not any(names.strip(" ,") for names in arguments.by):
        raise ArgumentError("--by names no column", hint="write it as --by region,product, or leave it out")
    for option, value in (("--bins", arguments.bins), ("--depth", arguments.depth)):
        if value and arguments.by is None:
            raise ArgumentError(f"{option} goes with --by", hint="name the columns that form segments: --by age")
    if (arguments.depth or 1) > DEEPEST:
        raise ArgumentError(f"--depth must be 1, 2 or 3; got {arguments.depth}", hint="2 combines two columns")


def _check_places(arguments: argparse.Namespace) -> None:
    """Refuse before the work what could not be written after it."""
    decided, told = (find_files(files).paths if files else [] for files in (arguments.files, arguments.labelled))
    sources = [*decided, *told, *files_in_query(arguments.sql)]
    for path in decided:
        if any(path.samefile(other) for other in told):
            warnings.warn(
                f"{path} is decided on, and labelled: what its rows cost is known, and the interval is that of other rows "
                "like them",
                TrueupWarning,
                stacklevel=2,
            )
    places = list(arguments.output or ())
    for place in places:
        _check_kind(place, arguments)
    if arguments.name is not None and all(map(_is_picture, places)):
        raise ArgumentError("--as goes with -o: it names a column of the rows that are written", hint=f"-o {DECIDED}")
    places += [] if arguments.json in (None, "-") else [arguments.json]
    for at, place in enumerate(places):
        check_output(place, sources, example=EXAMPLE)
        if any(Path(place).resolve() == Path(other).resolve() for other in places[:at]):
            raise ArgumentError(f"{place} would be written twice", hint="name another file")


def _is_picture(place: str) -> bool:
    return Path(place).suffix.lower() in PICTURES


def _check_kind(place: str, arguments: argparse.Namespace) -> None:
    """Refuse a file whose name does not say what it is to hold, and rows with no room for one more column."""
    if _is_picture(place):
        require("matplotlib", extra="plots")
        return
    try:
        format_to_write(place)
    except FileError as error:
        raise ArgumentError(
            f"-o {place} is neither a picture ({', '.join(PICTURES)}) nor rows (.parquet, .csv, .json) by its ending",
            hint=f"-o {EXAMPLE} draws the cost of each threshold; -o {DECIDED} writes what to do with each row; "
            "--json FILE writes all figures",
        ) from error
    name = _column(arguments)
    if not name.strip() or len(arguments.name or ()) > 1:
        raise ArgumentError("--as needs one name", hint="write it as --as todo")
    if name.lower() in {known.lower() for known in column_names(arguments.files or None, arguments.sql)}:
        raise ColumnError(f"there is a column {name!r} already", hint="name the new one with --as")


def _column(arguments: argparse.Namespace) -> str:
    return ACTION if arguments.name is None else str(arguments.name[0])


def _write(found: Answer, place: str, arguments: argparse.Namespace) -> str:
    """Draw a picture, or write the rows; say what was written."""
    if _is_picture(place):
        _draw(found.best, place)
        return f"wrote {place}"
    name = _column(arguments)

    def make(columns: dict[str, Any]) -> dict[str, AnyArray]:
        score = np.ma.filled(np.ma.asarray(columns[found.rows.prediction], np.float64), np.nan)
        known = ~np.isnan(score)
        actions = np.full(len(score), None, object)
        actions[known] = found.rule.apply(score[known])
        return {name: actions}

    with whole_file(place, example=DECIDED) as beside:
        rows = add_columns(
            arguments.files or None, beside, make, sql=arguments.sql, roles={"prediction": [found.rows.prediction]},
            written=format_to_write(place), threads=arguments.threads,
        )  # fmt: skip
    return f"wrote {place}: {rows:,} rows with {name}"


def _draw(best: BestRule, path: str) -> None:
    """Draw the cost of each threshold; the ending says how."""
    from trueup.reports.figures import draw_cost_curve

    figure = draw_cost_curve(best).figure
    with whole_file(path, example=EXAMPLE) as place:
        figure.savefig(place, format=Path(path).suffix.lower()[1:], dpi=150)  # type: ignore[union-attr]
