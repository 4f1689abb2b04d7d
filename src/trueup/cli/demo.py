"""`trueup demo`: the main job on simulated loans, told plainly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from trueup.audits.run import audit
from trueup.audits.text import number, shorten
from trueup.cli import console
from trueup.cli.fit import counting
from trueup.cli.output import file_size
from trueup.cli.terminal import Grid, show_page
from trueup.data.intake import read
from trueup.data.simulate import LENDING_SHIFTS, lending
from trueup.metrics.scores import log_loss
from trueup.modelfile import save
from trueup.reports.output import check_place
from trueup.reports.page import report

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from trueup.audits.result import Audit
    from trueup.calibrators.model import Model

__all__ = ["run"]

BY = ("region", "product", "employment", "age", "income", "term", "opened")


def run(arguments: argparse.Namespace) -> int:
    """Audit, fit, audit again, write the page and the model; give the exit code."""
    check_place(arguments.output)
    loans = lending(arguments.rows, arguments.seed)
    half = arguments.rows // 2
    first, second = ({name: column[part] for name, column in loans.items()} for part in (slice(half), slice(half, None)))
    console.say(f"{arguments.rows:,} simulated loans. The scores are overconfident, and wrong in places on top:")
    console.say(f"{_planted()}.")
    before = _audit(second, "auditing the scores")
    _tell(f"audit: the scores as they are, on {len(second['outcome']):,} loans", before.verdict)
    model = _fit(first)
    _tell(f"fit: MCGrad, on the other {half:,} loans", model.history.reason)
    fixed = {**second, "prediction": model.predict(second)}
    after = _audit(fixed, "auditing the corrected scores")
    _tell("audit: the corrected scores, on the same loans as before", after.verdict)
    _conclude(before, after, second, fixed)
    page = report({"before": before, "after MCGrad": after}, arguments.output, title="trueup demo: simulated loans")
    place = _beside(page)
    save(model, place)
    console.say(f"\nwrote {page}: open it in a browser")
    console.say(f"wrote {place} ({file_size(place)}): trueup explain {place} says what it corrects")
    return 0


def _audit(rows: dict[str, Any], what: str) -> Audit:
    with console.Watch() as watch:
        watch.say(what)
        return audit(rows, outcome="outcome", prediction="prediction", by=BY, progress=watch.step)


def _fit(rows: dict[str, Any]) -> Model:
    with console.Watch() as watch:
        watch.say("fitting")
        from trueup.calibrators.trees.boosting import MCGrad  # scikit-learn and LightGBM come with it

        table = read(rows, outcome="outcome", prediction="prediction", features=BY)
        return MCGrad("prediction", list(BY)).fit_table(table, counting(watch, "fitting")).model_


def _beside(page: Path) -> Path:
    """Name the model after the page."""
    place = page.with_suffix(".trueup")
    return place if place != page else page.with_name(f"{page.name}.trueup")


def _tell(what: str, found: str) -> None:
    console.say(f"\n{what}\n  {found}")


def _conclude(before: Audit, after: Audit, rows: dict[str, Any], fixed: dict[str, Any]) -> None:
    """Compare, and claim no more than was found."""
    losses = [log_loss(rows["outcome"], scores) for scores in (rows["prediction"], fixed["prediction"], rows["truth"])]
    grid = Grid(
        ("on loans that the fit has not seen", "before", "after", "the truth"),
        [
            ("segments off beyond chance", f"{before.rejected:,}", f"{after.rejected:,}", ""),
            ("error of the worst segment, in sigma", number(before.worst_sigma), number(after.worst_sigma), ""),
            ("log loss", *(f"{loss:.4f}" for loss in losses)),
        ],
    )
    console.say()
    show_page([grid])
    left = [finding.segment for finding in after.worst(after.rejected)]
    if left:
        more = f" and {len(left) - 4} more" if len(left) > 4 else ""
        console.say(f"still off: {', '.join(shorten(segment) for segment in left[:4])}{more}")
    if not before.rejected and not left:
        console.say("none was found off, but so few rows show only large errors (try more with --rows)")


def _planted() -> str:
    """Name the segments in which the simulation has errors."""
    return "; ".join(
        " & ".join(
            f"{name} from {wanted[0]} to below {wanted[1]}" if isinstance(wanted, tuple) else f"{name}={wanted}"
            for name, wanted in shift.where.items()
        )
        for shift in LENDING_SHIFTS
    )
