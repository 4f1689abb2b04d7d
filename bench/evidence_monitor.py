"""The part of docs/evidence.md that is about monitors."""

from __future__ import annotations

from pages import figures, held, table


def monitoring() -> list[str]:
    """Show false alarms over many looks, rows to detection, speed and the size of the state."""
    found = figures("monitor")
    calibrated = [
        [f"{cell['prevalence']:g}", f"{cell['segments']:,}", f"{cell['looks']:,}", f"{cell['alarms']} of {cell['runs']}"]
        for cell in found["calibrated"]
    ]
    detection = [
        [cell["onset"], f"{cell['fixed']:,.0f}", f"{cell['mean']:,.0f}",
         f"{cell['multiple']:.2f} ± {cell['standard_error']:.2f}", f"{cell['runs']}"]
        for cell in found["detection"]
    ]  # fmt: skip
    speed, delays = found["speed"], found["delays"]
    times = {name: f"{speed[name]['cpu']:.1f} s" for name in ("audit", "start", "update")}
    return [
        "## Monitoring",
        "",
        "`python bench/monitor.py`: calibrated streams of 200 rows a week, at 5%, looked at every week: how many "
        "ever raise an alarm.",
        "",
        *table(["prevalence", "overlapping segments", "looks", "streams that ever alarm"], calibrated),
        "",
        "Calibrated scores whose events are known after some weeks, and non-events after 90 days: by maturity "
        f"{delays['maturity']:.2f} of the streams ever alarm, by the order of arrival {delays['arrival']:.2f}.",
        "",
        "Observed/expected of 1.2 in a segment of 5% of the rows, prevalence 0.2: mean rows of the segment from the onset "
        "to the alarm, and those with which a single audit finds it with 80% power (by its minimum detectable error); ± is "
        "a standard error.",
        "",
        *table(["onset", "rows, fixed audit", "rows, monitor", "multiple", "runs"], detection),
        "",
        f"{speed['rows']:,} rows and {speed['columns']} columns at depth 2, CPU time: an audit {times['audit']}, the start "
        f"of a monitor {times['start']}, an update with a year of weeks {times['update']}. The state of "
        f"{speed['segments']:,} segments has {speed['state_bytes'] / 1e6:.1f} MB.",
        "",
        *table(["figure", "measured", "bar", "holds"], held(found["checks"])),
        "",
    ]
