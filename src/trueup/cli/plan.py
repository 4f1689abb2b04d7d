"""`trueup plan`: how many rows an audit or a monitor needs, or what so many rows show."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from trueup._optional import require
from trueup.cli import console, io
from trueup.cli.next_steps import PICTURES
from trueup.cli.options import share
from trueup.cli.output import TextTable, show_page
from trueup.errors import ArgumentError
from trueup.monitoring.plan import RATIO_HINT, Plan, plan

if TYPE_CHECKING:
    import argparse

EXAMPLE = "plan.svg"
TOP = 20  # table rows
NUMBERS = (
    "rows", "power", "share", "alpha", "segments", "depth", "combined", "looks", "cluster_size", "icc", "weekly_rows",
    "change_week", "min_rows", "spread",
)  # fmt: skip


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    _check_output(arguments)
    settings = {name: getattr(arguments, name) for name in NUMBERS if getattr(arguments, name) is not None}
    settings |= {"prevalence": _parse_prevalence(arguments.prevalence), "ratio": _parse_ratio(arguments.ratio)}
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        data: dict[str, Any] | None = None
        roles: dict[str, Any] = {}
        if arguments.files or arguments.sql:
            progress.start("reading")
            data, roles = _read(arguments)
        progress.start("planning")
        result = plan(data, **roles, **settings, columns=_parse_columns(arguments.columns), monitor=arguments.monitor)
    written = []
    if arguments.output is not None:
        _draw(result, arguments.output)
        written.append(f"wrote {arguments.output}")
    if arguments.json is not None:
        io.write_json(arguments.json, result.to_dict())
        written.append(f"wrote {arguments.json}")
    if arguments.json == io.STANDARD_OUTPUT:
        return 0
    if arguments.quiet:
        console.say(result.verdict)
    else:
        show_page([*_page(result, TOP if arguments.top is None else arguments.top), *(["", *written] if written else [])])
    return 0


def _page(result: Plan, top: int) -> list[str | TextTable]:
    headings, rows = result.table()
    page: list[str | TextTable] = [result.verdict]
    if top:
        page += ["", TextTable(headings, rows[:top], ("expected outcomes", "power"))]
    page += [f"{len(rows) - top} more: --top {len(rows)}"] if 0 < top < len(rows) else []
    return [*page, "", *result.notes]


def _read(arguments: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read the columns of the pilot; return them, and the parameters that name them."""
    if arguments.prediction is None:
        raise ArgumentError("--prediction is missing", hint="name the score column of the pilot: --prediction p")
    rows = io.InputRows(arguments)
    prediction = rows.find_all(arguments.prediction, "prediction")
    if len(prediction) != 1:
        raise ArgumentError("--prediction must name one column", hint="a plan is for one score")
    by = None if arguments.by is None else rows.find_all(arguments.by, "segment column")
    text = [name for name in rows.find_all(arguments.categorical, "categorical") if name in (by or ())]
    roles = {"prediction": prediction[0], "by": by, "bins": io.parse_bins(arguments.bins), "categorical": text}
    return rows.read([*prediction, *(by or ())], text), roles


def _parse_prevalence(text: str | None) -> float | None:
    """Parse --prevalence: a number or a percentage."""
    try:
        return None if text is None else share(text)
    except ValueError:
        raise ArgumentError(f"--prevalence must be a number; got {text!r}", hint="write 0.02 or 2%") from None


def _parse_ratio(text: str | None) -> float | None:
    """Parse --ratio; a percentage is refused, since 20% could be the ratio 1.2 or 0.2."""
    try:
        return None if text is None else float(text)
    except ValueError:
        raise ArgumentError(f"--ratio must be a number, observed/expected; got {text!r}", hint=RATIO_HINT) from None


def _parse_columns(lists: list[str] | None) -> list[int] | None:
    """Parse --columns: numbers of levels, separated by commas."""
    if lists is None:
        return None
    try:
        return [int(text) for text in io.split_names(lists)]
    except ValueError:
        given = ",".join(lists)
        raise ArgumentError(f"--columns {given} is not a list of integers", hint="write --columns 10,5,4") from None


def _check_output(arguments: argparse.Namespace) -> None:
    """Raise before the work if an output cannot be written."""
    sources = io.source_files(arguments)
    if arguments.output is not None:
        if Path(arguments.output).suffix.lower() not in PICTURES:
            raise ArgumentError(
                f"-o {arguments.output} does not have the extension of a picture ({', '.join(PICTURES)})",
                hint=f"write -o {EXAMPLE}, or --json FILE",
            )
        require("matplotlib", extra="plots")
    io.check_outputs([(arguments.output, EXAMPLE), (arguments.json, "plan.json")], sources)


def _draw(result: Plan, path: str) -> None:
    from trueup.reports.figures import draw_plan
    from trueup.reports.figures.style import detached_axes

    figure = draw_plan(result, detached_axes(6.6, 3.8)).figure
    with io.replacing_file(path, example=EXAMPLE) as temporary:
        figure.savefig(temporary, format=Path(path).suffix.lower()[1:], dpi=150)  # type: ignore[union-attr]
