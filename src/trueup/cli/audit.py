"""`trueup audit`: files or a query to a verdict."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from trueup.audits.run import MAX_CELLS, audit
from trueup.cli import console
from trueup.cli.names import parse_bins
from trueup.cli.output import check_output
from trueup.cli.reading import need_rows, read_table
from trueup.cli.terminal import show_audit
from trueup.data.paths import find_files
from trueup.reports.output import write_whole

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from trueup.audits.result import Audit

__all__ = ["run"]


def run(arguments: argparse.Namespace) -> int:
    """Audit, write what was asked for, print; give the exit code."""
    need_rows(arguments)
    for place in (arguments.report, arguments.json if arguments.json != "-" else None):
        if place is not None:
            # before the work, not after it
            check_output(place, find_files(arguments.files).paths if arguments.files else (), example="audit.json")
    with console.Watch(quiet=arguments.quiet) as watch:
        found = _audit(arguments, watch)
        watch.say("writing")
        _write(found, arguments)
    if arguments.json == "-":
        console.emit(lambda stream: stream.writelines(json_parts(found)))
    else:
        show_audit(found, top=arguments.top, quiet=arguments.quiet)
        if not arguments.quiet:
            for place in (arguments.report, arguments.json):
                if place is not None:
                    console.say(f"wrote {place}")
    return 1 if arguments.fail_if == "miscalibrated" and found.miscalibrated else 0


def _audit(arguments: argparse.Namespace, watch: console.Watch) -> Audit:
    watch.say("reading")
    usual, single = parse_bins(arguments.bins or [])
    table = read_table(arguments, arguments.by, "segment column")
    bins: Any = 10 if usual is None else usual
    if single:
        # The audit takes one number or what is said of each column: give every column of numbers the number.
        numeric = [feature.name for feature in table.schema.features if feature.kind == "numeric"]
        bins = {**dict.fromkeys(numeric, bins), **single}
    watch.say("auditing")
    return audit(
        table, bins=bins, depth=arguments.depth, min_rows=arguments.min_rows, alpha=arguments.alpha,
        adjust=arguments.adjust, draws=arguments.draws, random_state=arguments.seed, threads=arguments.threads,
        max_cells=MAX_CELLS if arguments.max_cells is None else arguments.max_cells, progress=watch.step,
    )  # fmt: skip


def _write(found: Audit, arguments: argparse.Namespace) -> None:
    if arguments.report is not None:
        from trueup.reports.page import report

        report(found, arguments.report)
    if arguments.json is not None and arguments.json != "-":
        write_whole(arguments.json, json_parts(found))


def json_parts(found: Audit) -> Iterator[str]:
    """Write an audit as strict JSON, one segment a line, without holding them all."""
    head = {key: value for key, value in found.to_dict(most=0).items() if key != "findings"}
    yield json.dumps(head, allow_nan=False)[:-1] + ', "findings": ['
    for at in range(len(found)):
        yield ("\n" if at == 0 else ",\n") + json.dumps(found.finding(at).to_dict(), allow_nan=False)
    yield "\n]}\n"
