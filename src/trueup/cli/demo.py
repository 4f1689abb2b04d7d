"""`trueup demo`: the main job on simulated loans, told plainly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from trueup.audits.run import audit
from trueup.audits.text import number, shorten
from trueup.cli import console
from trueup.data.simulate import LENDING_SHIFTS, lending
from trueup.metrics.isotonic import isotonic
from trueup.reports.output import check_place
from trueup.reports.page import report

if TYPE_CHECKING:
    import argparse

    from trueup.audits.result import Audit

__all__ = ["run"]

BY = ("region", "product", "employment", "age", "income", "term", "opened")


def run(arguments: argparse.Namespace) -> int:
    """Audit, repair, audit again, write the page; give the exit code."""
    check_place(arguments.output)
    loans = lending(arguments.rows, arguments.seed)
    half = arguments.rows // 2
    first, second = ({name: column[part] for name, column in loans.items()} for part in (slice(half), slice(half, None)))
    console.say(f"{arguments.rows:,} simulated loans. The scores are overconfident, and wrong in places on top:")
    console.say(f"{_planted()}.")
    with console.Watch() as watch:
        before = _audit(second, watch, "auditing the scores")
        fit = isotonic(first["outcome"], first["prediction"])
        repaired = np.clip(fit.predict(second["prediction"]), 0.0, 1.0)
        after = _audit({**second, "prediction": repaired}, watch, "auditing the repaired scores")
    _tell("The scores as they are", f"{len(second['outcome']):,} loans", before)
    _tell("After one isotonic step", f"fitted to the other {half:,} loans", after)
    _conclude(before, after)
    written = report({"before": before, "after isotonic": after}, arguments.output, title="trueup demo: simulated loans")
    console.say(f"wrote {written}: open it in a browser")
    return 0


def _audit(rows: dict[str, Any], watch: console.Watch, what: str) -> Audit:
    watch.say(what)
    return audit(rows, outcome="outcome", prediction="prediction", by=BY, progress=watch.step)


def _tell(what: str, where: str, found: Audit) -> None:
    whole = found.overall
    console.say(f"\n{what} ({where})\n  {found.verdict}")
    console.say(
        f"  over all rows: observed/expected {number(whole.ratio)}, {number(whole.sigma)} sigma"
        f" (adjusted p {number(whole.p_adjusted, 2)})"
    )


def _conclude(before: Audit, after: Audit) -> None:
    """Say what the step repaired and what it could not, and claim no more than was found."""
    was = {finding.segment for finding in before.worst(before.rejected)}
    now = [finding.segment for finding in after.worst(after.rejected)]
    still = [segment for segment in now if segment in was]
    console.say(
        f"\nOver all rows the step took the error from {number(before.overall.sigma)} to "
        f"{number(after.overall.sigma)} sigma. It sees only the score,\nso it can mend the overall curve,"
        " not what is wrong in single segments:"
    )
    if not was and not now:
        console.say("none was found off here, but so few rows show only large errors (try more with --rows).\n")
        return
    console.say(f"{_count(len(was))} off before, {len(still)} of them still off, {len(now) - len(still)} newly off.")
    if still:
        more = f" and {len(still) - 4} more" if len(still) > 4 else ""
        console.say(f"Still off: {', '.join(shorten(segment) for segment in still[:4])}{more}.")
    console.say()


def _count(segments: int) -> str:
    return "1 segment was" if segments == 1 else f"{segments} segments were"


def _planted() -> str:
    """Name the segments in which the simulation has errors."""
    return "; ".join(
        " & ".join(
            f"{name} from {wanted[0]} to below {wanted[1]}" if isinstance(wanted, tuple) else f"{name}={wanted}"
            for name, wanted in shift.where.items()
        )
        for shift in LENDING_SHIFTS
    )
