"""`trueup watch`: add rows to the state of a monitor, report whether the scores are calibrated so far, and write pages."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trueup.audits.text import shorten
from trueup.cli import console, io
from trueup.cli.console import FOUND, PASSED, UNTESTABLE
from trueup.cli.next_steps import after_watch, option_name
from trueup.cli.output import TextTable, show_page
from trueup.data.columns import as_tuple
from trueup.data.sql import quote
from trueup.errors import ArgumentError
from trueup.monitoring.monitor import Monitor, parse_days, parse_tolerance
from trueup.monitoring.result import ADVICE, ALARM, CALIBRATED, MonitorReport
from trueup.monitoring.rows import as_day, parse_sampling
from trueup.monitoring.state import load, locked, write
from trueup.reports.profiles import load_profile

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Mapping, Sequence

EXTENSIONS = {".html": "page", ".htm": "page", ".md": "markdown", ".csv": "csv", ".json": "json"}
EXAMPLE = "watch.html"
STYLES = {ALARM: "bold red", CALIBRATED: "bold green"}
MAX_DRIFT = 5
SETTINGS = (
    "outcome", "prediction", "by", "time", "maturity", "period", "id", "cluster", "alpha", "budget", "tolerance",
    "sampling", "depth", "bins", "categorical", "min_rows", "unlabelled",
)  # fmt: skip


class Output(NamedTuple):
    """A kind of output and the path to write it to; - is standard output."""

    kind: str
    path: str


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    profile = load_profile(arguments.profile)
    as_day(arguments.now), as_day(arguments.since, "since")
    outputs = _outputs(arguments)
    with console.ProgressDisplay(quiet=arguments.quiet, verbose=arguments.verbose) as progress:
        progress.start("reading")
        path = Path(arguments.state)
        with locked(path):
            monitor = load(path) if path.exists() else _new(arguments)
            if path.exists():
                _check_settings(monitor, arguments)
            if not monitor.is_started and arguments.reference:
                progress.start("reading the reference")
                monitor.start(_rows(arguments, monitor, arguments.reference))
            rows = _rows(arguments, monitor)
            progress.start("updating")
            monitor.update(rows, now=arguments.now, threads=arguments.threads)
            report = monitor.update_drift(rows, now=arguments.now)
            progress.start("saving")
            write(monitor, path)
        progress.note(f"saved {path}: {io.file_size(path)}")
    for output in outputs:
        _write(output, monitor, report, profile, arguments)
    if not any(output.path == io.STANDARD_OUTPUT for output in outputs):
        _show(report, monitor, arguments, outputs)
    return _gate(report, arguments.fail_if) if arguments.fail_if else PASSED


def _gate(report: MonitorReport, states: Sequence[str]) -> int:
    """Return the exit code of --fail-if, and say on standard error why it is not 0."""
    named = io.split_names(states)
    only_new = "new-alarm" in named and "alarm" not in named
    alarms = [alarm for alarm in (report.distinct if only_new else report.alarms) if alarm.new or not only_new]
    if alarms and named != ["untestable"]:
        found = f"{len(alarms):,} of {report.segments:,} segments raised an alarm"
        if only_new:
            found = f"new distinct errors: {len(alarms):,}"
        console.complain(f"gate failed (exit code {FOUND}): {found} (--fail-if {','.join(named)})")
        return FOUND
    if not report.periods:
        console.complain(f"gate failed (exit code {UNTESTABLE}): no period has closed yet")
        return UNTESTABLE
    return PASSED


# Settings


def _given(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return the settings of a monitor that were given as options, as `Monitor` takes them."""
    given = {name: getattr(arguments, name) for name in SETTINGS if getattr(arguments, name) is not None}
    for name in ("by", "categorical"):
        if name in given:
            given[name] = io.split_names(given[name])
    if "prediction" in given:
        names = io.split_names(given["prediction"])
        if len(names) != 1:
            raise ArgumentError(f"--prediction must name one column; got {len(names)}", hint="watch one score per state")
        given["prediction"] = names[0]
    if "bins" in given:
        given["bins"] = io.parse_bins(given["bins"])
    if "sampling" in given:
        given["sampling"] = io.parse_sampling(given["sampling"])
    return given


def _new(arguments: argparse.Namespace) -> Monitor:
    """Return a monitor with the settings of the command."""
    given = _given(arguments)
    missing = [option_name(name) for name in ("outcome", "prediction", "time") if name not in given]
    if missing:
        raise ArgumentError(
            f"there is no state {arguments.state}, and a new one needs {', '.join(missing)}",
            hint="name the columns, or check the path of --state",
        )
    monitor = Monitor(**given)
    monitor.positive = arguments.positive
    return monitor


def _check_settings(monitor: Monitor, arguments: argparse.Namespace) -> None:
    """Raise if options contradict the state; the settings of a monitor never change."""
    given = _given(arguments)
    for name in ("maturity", "period"):
        if name in given:
            given[name] = parse_days(name, given[name])
    if "tolerance" in given:
        given["tolerance"] = parse_tolerance(given["tolerance"])
    if "sampling" in given:
        given["sampling"] = parse_sampling(given["sampling"])
    if arguments.positive is not None:
        given["positive"] = arguments.positive
    wrong = []
    for name, value in given.items():
        own = getattr(monitor, name)
        same = own == value
        if isinstance(value, list):  # the order of columns does not matter
            same = own is not None and sorted(map(str, as_tuple(own))) == sorted(value)
        if not same:
            wrong.append(f"{option_name(name)} ({_text(own)} in the state, {_text(value)} here)")
    if arguments.reference and monitor.is_started:
        wrong.append("--reference (the segments of the state are fixed already)")
    if wrong:
        raise ArgumentError(
            f"{arguments.state} has other settings: {'; '.join(wrong)}",
            hint="leave these options out, or name another file with --state to start again",
        )


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return ",".join(map(str, value)) or "none"
    return "none" if value is None else f"{value:g}" if isinstance(value, float) else str(value)


# Rows


def _rows(arguments: argparse.Namespace, monitor: Monitor, paths: list[str] | None = None) -> Any:
    """Return the rows of the command, or those of the reference: columns in memory, or a scan."""
    sql = arguments.sql if paths is None else None
    if arguments.since is not None and paths is None:
        inner = "data" if sql is None else f"(\n{sql.rstrip().rstrip(';')}\n)"
        since, time = quote(arguments.since), quote(str(monitor.time), chr(34))  # a missing time is an error, not left out
        sql = f"SELECT * FROM {inner} WHERE {time} IS NULL OR {time} >= CAST({since} AS TIMESTAMP)"  # noqa: S608
    files = arguments.files if paths is None else paths
    named = _with(arguments, sql=sql, files=files, task="auto", positive=monitor.positive)
    source = io.InputRows(named)
    by = None if monitor.by is None else as_tuple(monitor.by)
    if monitor.is_started:
        by = tuple(one.name for one in monitor.state.schema.features)
    labelled = paths is None
    roles = [monitor.prediction, monitor.time, monitor.id, monitor.cluster, *([monitor.outcome] if labelled else [])]
    columns = [source.find(str(name), "column") for name in roles if name is not None]
    categorical = [str(name) for name in as_tuple(monitor.categorical)]
    outcome = str(monitor.outcome) if labelled else None
    if arguments.memory is not None:
        if labelled and monitor.positive is not None:
            named.sql = io.positive_query(named, str(monitor.outcome))
        return io.scan_rows(named, named.files, named.sql)
    needed = None if by is None else [*(source.find(str(name), "segment column") for name in by), *columns]
    text = [name for name in categorical if needed is None or name in needed]
    return source.read(needed, text, outcome, all_rows=False)


def _with(arguments: argparse.Namespace, **changes: Any) -> argparse.Namespace:
    return type(arguments)(**{**vars(arguments), **changes})


# Output


def _outputs(arguments: argparse.Namespace) -> list[Output]:
    outputs = []
    for path in arguments.output or ():
        kind = EXTENSIONS.get(Path(path).suffix.lower())
        if kind is None:
            hint = "-o watch.html is the page, summary.md a summary, alarms.csv all alarms, state.json the state"
            raise ArgumentError(f"-o {path} has no known extension", hint=hint)
        outputs.append(Output(kind, path))
    if arguments.json_lines is not None:
        outputs.append(Output("lines", arguments.json_lines))
    if arguments.title is not None and not any(output.kind in ("page", "markdown") for output in outputs):
        raise ArgumentError("--title needs a page or a summary to be written", hint="add -o watch.html")
    sources = [*io.source_files(arguments), *io.local_files(arguments, arguments.reference)]
    io.check_outputs([*((output.path, EXAMPLE) for output in outputs), (arguments.state, "m.watch")], sources)
    return outputs


def _write(output: Output, monitor: Monitor, report: MonitorReport, profile: Any, arguments: argparse.Namespace) -> None:
    from trueup.reports import watch  # the text on the terminal needs no templates

    if output.kind == "page":
        io.write_chunks(output.path, [watch.page(monitor, profile=profile, title=arguments.title,
                                                 command=_fit_command(report, monitor, arguments))])  # fmt: skip
    elif output.kind == "markdown":
        io.write_chunks(output.path, [watch.markdown(monitor, profile=profile, title=arguments.title,
                                                     command=_fit_command(report, monitor, arguments))])  # fmt: skip
    elif output.kind == "csv":
        io.write_chunks(output.path, watch.csv_lines(report))
    elif output.kind == "json":
        io.write_json(output.path, report.to_dict())
    else:
        io.write_chunks(output.path, _json_lines(report))


def _json_lines(report: MonitorReport) -> Iterator[str]:
    """Yield one object per alarm, then one for the state, which has no alarms."""
    content = report.to_dict()
    alarms = content.pop("alarms")
    objects: list[Mapping[str, Any]] = [*({"kind": "alarm", **alarm} for alarm in alarms), {"kind": "state", **content}]
    for item in objects:
        yield json.dumps(item, allow_nan=False, ensure_ascii=False) + "\n"


def _show(report: MonitorReport, monitor: Monitor, arguments: argparse.Namespace, outputs: list[Output]) -> None:
    if arguments.quiet:
        for line in (report.headline, *map(str, report.distinct[: arguments.top])):
            console.say(line)
        return
    parts: list[str | TextTable] = [report.headline]
    shown = report.distinct[: arguments.top]
    if shown:
        rows: list[tuple[str, ...]] = [
            (shorten(alarm.segment, 60), "varies" if alarm.varies else f"{alarm.ratio:.3g}",
             f"{alarm.low:.3g} to {alarm.high:.3g}", alarm.since, alarm.raised, f"{alarm.rows:,.0f}",
             f"{alarm.p_value:.2g}", f"{len(alarm.explains):,}")
            for alarm in shown
        ]  # fmt: skip
        headings = ("alarm", "obs/exp", "90% interval", "since about", "raised by", "rows since", "p", "explains")
        parts += ["", TextTable(headings, rows, ("explains", "rows since", "p", "90% interval")), ""]
        if len(report.distinct) > len(shown):
            parts.append(f"{len(report.distinct) - len(shown):,} more: --top {len(report.distinct)}")
    if report.until is not None:
        parts.append(f"all rows: observed/expected {report.ratio:.3g}, 90% interval {report.low:.3g} to {report.high:.3g}")
    parts += [report.guarantee, *report.notes]
    drift = [str(item) for item in report.drift]
    if drift:
        more = [f"and {len(drift) - MAX_DRIFT:,} more drifts"] if len(drift) > MAX_DRIFT else []
        parts += ["", *drift[:MAX_DRIFT], *more]
    parts += ["", *(f"wrote {output.path}" for output in outputs)] if outputs else []
    if report.advice is not None:
        command = _fit_command(report, monitor, arguments)
        parts += ["", f"next: {ADVICE[report.advice]}", *([f"  {command}"] if command else [])]
    show_page(parts, style=STYLES.get(report.state, "bold"))


def _fit_command(report: MonitorReport, monitor: Monitor, arguments: argparse.Namespace) -> str:
    words = after_watch(report, monitor, arguments)
    return shlex.join(["trueup", *words]) if words else ""
