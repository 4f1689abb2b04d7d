"""`trueup demo`: an audit and a correction of simulated loans."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from trueup.audits.audit import audit
from trueup.audits.text import number, shorten
from trueup.cli import console, io
from trueup.cli.describe import audit_notes, fit_notes
from trueup.cli.next_steps import command
from trueup.cli.tables import TextTable, show_page
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
    from trueup.calibrators.model import Model

    MakeProgress = Callable[[], console.ProgressDisplay]

BY = ("region", "product", "employment", "age", "income", "term", "opened")
MAX_LISTED_SEGMENTS = 4


def run(arguments: argparse.Namespace) -> int:
    """Run the command and return the exit code."""
    check_writable(arguments.output)
    make_progress = partial(console.ProgressDisplay, quiet=arguments.quiet, verbose=arguments.verbose)

    def say(*lines: str) -> None:
        if not arguments.quiet:
            console.say("\n".join(lines))

    loans = lending(arguments.rows, arguments.seed)
    half = arguments.rows // 2
    first, second = ({name: column[rows] for name, column in loans.items()} for rows in (slice(half), slice(half, None)))
    say(f"{arguments.rows:,} simulated loans. The scores are overconfident, with additional errors in these segments:",
        f"{_planted_segments()}.")  # fmt: skip
    before = _audit(second, "auditing the scores", make_progress)
    say("", f"audit: the original scores of {len(second['outcome']):,} loans", f"  {before.verdict}")
    model = _fit(first, make_progress)
    say("", f"fit: MCGrad, on the other {half:,} loans", f"  {model.history.reason}")
    corrected = {**second, "prediction": model.predict(second)}
    after = _audit(corrected, "auditing the corrected scores", make_progress)
    say("", "audit: the corrected scores of the loans audited before", f"  {after.verdict}")
    if not arguments.quiet:
        _show_comparison(before, after, second, corrected)
    page = report(
        {"before": before, "after MCGrad": after}, arguments.output, title="trueup demo: simulated loans", fix=model
    )
    path = page.with_suffix(".trueup")
    path = path if path != page else page.with_name(f"{page.name}.trueup")
    save(model, path)
    say("", f"wrote {path} ({io.file_size(path)}): {command('explain', str(path))} describes its corrections")
    console.say(f"wrote {page}: open it in a browser")
    return 0


def _audit(rows: dict[str, Any], phase: str, make_progress: MakeProgress) -> Audit:
    with make_progress() as progress:
        progress.start(phase)
        result = audit(rows, outcome="outcome", prediction="prediction", by=BY, progress=progress.step)
        progress.note(*audit_notes(result))
        return result


def _fit(rows: dict[str, Any], make_progress: MakeProgress) -> Model:
    with make_progress() as progress:
        progress.start("fitting")
        from trueup.calibrators.mcgrad.estimator import MCGrad  # imports scikit-learn and LightGBM

        table = read(rows, outcome="outcome", prediction="prediction", features=BY)
        calibrator = MCGrad("prediction", list(BY)).fit_table(table, progress.counter())
        progress.note(*fit_notes(calibrator.model_, calibrator))
        model: Model = calibrator.model_
        return model


def _show_comparison(before: Audit, after: Audit, rows: dict[str, Any], corrected: dict[str, Any]) -> None:
    """Compare both audits with the truth, and list the segments that are still miscalibrated."""
    losses = [log_loss(rows["outcome"], scores) for scores in (rows["prediction"], corrected["prediction"], rows["truth"])]
    table = TextTable(
        ("on loans that the model was not fitted on", "before", "after", "the truth"),
        [
            ("significantly miscalibrated segments", f"{before.rejected:,}", f"{after.rejected:,}", ""),
            ("error of the worst segment, in sigma", number(before.worst_sigma), number(after.worst_sigma), ""),
            ("log loss", *(f"{loss:.4f}" for loss in losses)),
        ],
    )
    console.say()
    show_page([table])
    left = [finding.segment for finding in after.worst(after.rejected)]
    if left:
        more = f" and {len(left) - MAX_LISTED_SEGMENTS} more" if len(left) > MAX_LISTED_SEGMENTS else ""
        listed = ", ".join(shorten(segment) for segment in left[:MAX_LISTED_SEGMENTS])
        console.say(f"still miscalibrated: {listed}{more}")
    if not before.rejected and not left:
        console.say("no segment is significantly miscalibrated: so few rows reveal only large errors (try more --rows)")


def _planted_segments() -> str:
    """Return the segments in which the simulation has errors."""
    return "; ".join(
        " & ".join(
            f"{name} from {value[0]} to below {value[1]}" if isinstance(value, tuple) else f"{name}={value}"
            for name, value in shift.where.items()
        )
        for shift in LENDING_SHIFTS
    )
