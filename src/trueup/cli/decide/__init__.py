"""`trueup decide`: find the cheapest rule for scores without outcomes, and estimate its cost."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from trueup._optional import require
from trueup._validate import check_integer
from trueup.cli import console, io
from trueup.cli.decide.problem import parse_problem
from trueup.cli.decide.text import DecisionText
from trueup.cli.next_steps import PICTURES, after_decide
from trueup.cli.tables import show_page
from trueup.data.export import add_columns, format_to_write
from trueup.data.frame import read
from trueup.data.scan import find_files
from trueup.data.sql import column_names
from trueup.decisions.evaluate import evaluate_rule, segment_alike
from trueup.errors import ArgumentError, ColumnError, FileError, IdentifierWarning, TrueupError, TrueupWarning

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trueup._types import AnyArray
    from trueup.data.table import Table
    from trueup.decisions.evaluate import RuleEvaluation

PICTURE_EXAMPLE, ROWS_EXAMPLE = "cost.svg", "decided.parquet"
CORRECTED_SUFFIX = "_trueup"


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    problem = parse_problem(arguments)
    check_integer("depth", arguments.depth, 1, 3, optional=True, hint="2 combines two columns")
    _check_outputs(arguments)
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        progress.start("reading")
        table = _read(arguments)
        labelled = None if arguments.labelled is None else _read(arguments, arguments.labelled, arguments.outcome)
        segmentations = segment_alike(table, labelled, io.parse_bins(arguments.bins), arguments.depth or 1)
        progress.start("deciding")
        evaluation = evaluate_rule(
            table, problem, labelled=labelled, segmentations=segmentations, level=arguments.level,
            target=arguments.target, cross_fitted=table.schema.prediction[0].endswith(CORRECTED_SUFFIX),
        )  # fmt: skip
        text = DecisionText(evaluation)
        progress.note(*text.notes())
        if arguments.output:
            progress.start("writing")
        written = [_write(evaluation, path, arguments) for path in arguments.output or ()]
    if arguments.json is not None:
        io.write_json(arguments.json, text.data())
        written.append(f"wrote {arguments.json}")
    if arguments.quiet and arguments.json != io.STANDARD_OUTPUT:
        console.say(text.line())
    elif arguments.json != io.STANDARD_OUTPUT:
        below = ["", *written] if written else []
        show_page([*text.page(arguments.top), *below, *after_decide(evaluation, arguments)])
    return 0


def _check_outputs(arguments: argparse.Namespace) -> None:
    """Raise before the work if an output cannot be written; warn if labelled rows are decided on."""
    labelled = find_files(arguments.labelled).paths if arguments.labelled else []
    for path in find_files(arguments.files).paths if arguments.files else []:
        if any(path.samefile(other) for other in labelled):
            warnings.warn(
                f"{path} is both labelled and to be decided on: the cost of its rows is known, and the interval is for "
                "other rows of the same kind",
                TrueupWarning,
                stacklevel=2,
            )
    outputs = list(arguments.output or ())
    for path in outputs:
        _check_output(path, arguments)
    if arguments.name is not None and all(map(_is_picture, outputs)):
        raise ArgumentError("--as needs -o: it names a column of the written rows", hint=f"add -o {ROWS_EXAMPLE}")
    outputs_and_examples = [(path, PICTURE_EXAMPLE) for path in (*outputs, arguments.json)]
    io.check_outputs(outputs_and_examples, [*io.source_files(arguments), *labelled])


def _is_picture(path: str) -> bool:
    return Path(path).suffix.lower() in PICTURES


def _check_output(path: str, arguments: argparse.Namespace) -> None:
    """Raise if the extension is unknown, or if the column to be written exists."""
    if _is_picture(path):
        require("matplotlib", extra="plots")
        return
    try:
        format_to_write(path)
    except FileError as error:
        raise ArgumentError(
            f"-o {path} has the extension neither of a picture ({', '.join(PICTURES)}) nor of rows (.parquet, .csv, .json)",
            hint=f"-o {PICTURE_EXAMPLE} draws the cost of each threshold; -o {ROWS_EXAMPLE} writes the rows with their "
            "actions; --json FILE writes all figures",
        ) from error
    name = _action_column(arguments)
    if not name.strip() or len(arguments.name or ()) > 1:
        raise ArgumentError("--as needs one name", hint="write it as --as todo")
    if name.lower() in {known.lower() for known in column_names(arguments.files or None, arguments.sql)}:
        raise ColumnError(f"column {name!r} exists already", hint="name the new column with --as")


def _action_column(arguments: argparse.Namespace) -> str:
    return "action" if arguments.name is None else str(arguments.name[0])


def _read(arguments: argparse.Namespace, paths: Sequence[str] | None = None, outcome: str | None = None) -> Table:
    """Read and validate the needed columns of the rows to decide on or, with an outcome, of the labelled rows."""
    try:
        rows = io.InputRows(arguments, paths)
        prediction = rows.find_all(arguments.prediction, "prediction")
        if len(prediction) != 1:
            raise ArgumentError(
                f"--prediction must name one column; got {len(prediction)}: {', '.join(prediction[:6])}",
                hint="name the column with the probability of the positive outcome",
            )
        by = rows.find_all(arguments.by, "segment column")
        outcome = rows.find_optional(outcome, "outcome")
        weight = rows.find_optional(arguments.weight, "weight")
        text = [name for name in rows.find_all(arguments.categorical, "categorical") if name in by]
        data = rows.read([*prediction, outcome, weight, *by], text, outcome)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", IdentifierWarning)  # an error below
            table = read(
                data, outcome=outcome, prediction=prediction[0], weight=weight, features=by, task="binary",
                categorical=text, unlabelled=arguments.unlabelled,
            )  # fmt: skip
        for name, reason in table.left_out.items():
            raise ColumnError(f"column {name!r} cannot form segments: {reason}", hint="leave it out of --by")
    except TrueupError as error:
        if "task" in error.settings:  # another task is no remedy here
            error = type(error)(error.message, hint="a decision needs probabilities, and outcomes that are 0 or 1")
        error.message = error.message if outcome is None else f"labelled rows: {error.message}"
        raise error from None
    return table


def _write(evaluation: RuleEvaluation, path: str, arguments: argparse.Namespace) -> str:
    """Write a picture or the rows, and return a line about it."""
    if _is_picture(path):
        from trueup.reports.figures import draw_cost_curve

        figure = draw_cost_curve(evaluation.best).figure
        with io.replacing_file(path, example=PICTURE_EXAMPLE) as temporary:
            figure.savefig(temporary, format=Path(path).suffix.lower()[1:], dpi=150)  # type: ignore[union-attr]
        return f"wrote {path}"
    name = _action_column(arguments)

    def make(columns: dict[str, Any]) -> dict[str, AnyArray]:
        score = np.ma.filled(np.ma.asarray(columns[evaluation.prediction], np.float64), np.nan)
        known = ~np.isnan(score)
        actions = np.full(len(score), None, object)
        actions[known] = evaluation.rule.apply(score[known])
        return {name: actions}

    with io.replacing_file(path, example=ROWS_EXAMPLE) as temporary:
        rows = add_columns(
            arguments.files or None, temporary, make, sql=arguments.sql, roles={"prediction": [evaluation.prediction]},
            written=format_to_write(path), threads=arguments.threads,
        )  # fmt: skip
    return f"wrote {path}: {rows:,} rows with column {name}"
