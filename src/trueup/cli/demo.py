"""`trueup demo`: an audit and a correction of simulated loans."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trueup.audits.audit import audit
from trueup.audits.text import number, shorten
from trueup.cli import console, io
from trueup.cli.next_steps import command
from trueup.cli.output import TextTable, audit_notes, fit_notes, show_page
from trueup.data.frame import read
from trueup.data.simulate import LENDING_SHIFTS, lending
from trueup.metrics.scores import log_loss
from trueup.modelfile import save
from trueup.reports.page import report
from trueup.storage import check_writable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from trueup.audits.result import Audit

BY = ("region", "product", "employment", "age", "income", "term", "opened")
ROLES: dict[str, Any] = {"outcome": "outcome", "prediction": "prediction"}
MAX_LISTED_SEGMENTS = 4


def run(arguments: argparse.Namespace) -> int:
    """Run the command, print each step when it is done, and return the exit code."""
    io.check_is_file(arguments.output, example="trueup-demo.html")
    check_writable(arguments.output)

    def show(*parts: str | TextTable) -> None:
        if not arguments.quiet:
            show_page(parts)

    # One display per step: output while a progress bar is shown would go to standard error.
    display = partial(console.ProgressDisplay, quiet=arguments.quiet, verbose=arguments.verbose)
    loans = lending(arguments.rows, arguments.seed)
    half = arguments.rows // 2
    first, second = ({name: column[rows] for name, column in loans.items()} for rows in (slice(half), slice(half, None)))
    planted = "; ".join(
        " & ".join(
            f"{name} from {value[0]} to below {value[1]}" if isinstance(value, tuple) else f"{name}={value}"
            for name, value in shift.where.items()
        )
        for shift in LENDING_SHIFTS
    )
    show(
        f"{arguments.rows:,} simulated loans. The scores are overconfident, with additional errors in these segments:",
        f"{planted}.",
    )
    before = _audit(second, "auditing the scores", display)
    show("", f"audit: the original scores of {len(second['outcome']):,} loans", f"  {before.verdict}")
    with display() as progress:
        progress.start("fitting")
        from trueup.calibrators.mcgrad.estimator import MCGrad  # imports scikit-learn and LightGBM

        calibrator = MCGrad("prediction", list(BY)).fit_table(read(first, **ROLES, features=BY), progress.counter())
        model = calibrator.model_
        progress.note(*fit_notes(model, calibrator))
    show("", f"fit: MCGrad, on the other {half:,} loans", f"  {model.history.reason}")
    corrected = {**second, "prediction": model.predict(second)}
    after = _audit(corrected, "auditing the corrected scores", display)
    show("", "audit: the corrected scores of the loans audited before", f"  {after.verdict}")
    show("", *_comparison(before, after, second, corrected))
    audits = {"before": before, "after MCGrad": after}
    page = report(audits, arguments.output, title="trueup demo: simulated loans", fix=model)
    path = page.with_suffix(".trueup")
    path = path if path != page else page.with_name(f"{page.name}.trueup")
    save(model, path)
    show("", f"wrote {path} ({io.file_size(path)}): {command('explain', str(path))} describes its corrections")
    console.say(f"wrote {page}: open it in a browser")
    return 0


def _audit(rows: dict[str, Any], phase: str, display: Callable[[], console.ProgressDisplay]) -> Audit:
    with display() as progress:
        progress.start(phase)
        result = audit(rows, **ROLES, by=BY, progress=progress.step)
        progress.note(*audit_notes(result))
    return result


def _comparison(before: Audit, after: Audit, rows: dict[str, Any], corrected: dict[str, Any]) -> list[str | TextTable]:
    """Return a table of the audits and log losses before and after the correction, and the segments still miscalibrated."""
    losses = [log_loss(rows["outcome"], scores) for scores in (rows["prediction"], corrected["prediction"], rows["truth"])]
    cells: list[tuple[str, ...]] = [
        ("significantly miscalibrated segments", f"{before.rejected:,}", f"{after.rejected:,}", ""),
        ("error of the worst segment, in sigma", number(before.worst_sigma), number(after.worst_sigma), ""),
        ("log loss", *(f"{loss:.4f}" for loss in losses)),
    ]
    parts: list[str | TextTable] = [
        TextTable(("on loans that the model was not fitted on", "before", "after", "the truth"), cells)
    ]
    left = [finding.segment for finding in after.worst(after.rejected)]
    if left:
        more = f" and {len(left) - MAX_LISTED_SEGMENTS} more" if len(left) > MAX_LISTED_SEGMENTS else ""
        listed = ", ".join(shorten(segment) for segment in left[:MAX_LISTED_SEGMENTS])
        parts.append(f"still miscalibrated: {listed}{more}")
    elif not before.rejected:
        parts.append("no segment is significantly miscalibrated: so few rows reveal only large errors (try more --rows)")
    return parts
