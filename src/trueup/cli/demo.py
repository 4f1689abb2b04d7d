"""`trueup demo`: the main job on simulated loans, told plainly."""

from __future__ import annotations

import shlex
from functools import partial
from typing import TYPE_CHECKING, Any

from trueup.audits.run import audit
from trueup.audits.text import number, shorten
from trueup.cli import console, reasons
from trueup.cli.fit import counting
from trueup.cli.output import file_size
from trueup.cli.terminal import Grid, show_page
from trueup.data.frame import read
from trueup.data.simulate import LENDING_SHIFTS, lending
from trueup.metrics.scores import log_loss
from trueup.modelfile import save
from trueup.reports.page import report
from trueup.storage import check_writable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable
    from pathlib import Path

    from trueup.audits.result import Audit
    from trueup.calibrators.model import Model

    Watching = Callable[[], console.Watch]

BY = ("region", "product", "employment", "age", "income", "term", "opened")


def run(arguments: argparse.Namespace) -> int:
    """Audit, fit, audit again, write the page and the model; give the exit code."""
    check_writable(arguments.output)
    watch = partial(console.Watch, quiet=arguments.quiet, verbose=arguments.verbose)
    tell = _quietly if arguments.quiet else _tell
    loans = lending(arguments.rows, arguments.seed)
    half = arguments.rows // 2
    first, second = ({name: column[part] for name, column in loans.items()} for part in (slice(half), slice(half, None)))
    tell(f"{arguments.rows:,} simulated loans. The scores are overconfident, and wrong in places on top:", f"{_planted()}.")
    before = _audit(second, "auditing the scores", watch)
    tell("", f"audit: the scores as they are, on {len(second['outcome']):,} loans", f"  {before.verdict}")
    model = _fit(first, watch)
    tell("", f"fit: MCGrad, on the other {half:,} loans", f"  {model.history.reason}")
    fixed = {**second, "prediction": model.predict(second)}
    after = _audit(fixed, "auditing the corrected scores", watch)
    tell("", "audit: the corrected scores, on the same loans as before", f"  {after.verdict}")
    if not arguments.quiet:
        _conclude(before, after, second, fixed)
    page = report(
        {"before": before, "after MCGrad": after}, arguments.output, title="trueup demo: simulated loans", fix=model
    )
    place = _beside(page)
    save(model, place)
    tell("", f"wrote {place} ({file_size(place)}): trueup explain {shlex.quote(str(place))} says what it corrects")
    console.say(f"wrote {page}: open it in a browser")
    return 0


def _audit(rows: dict[str, Any], what: str, watching: Watching) -> Audit:
    with watching() as watch:
        watch.say(what)
        found = audit(rows, outcome="outcome", prediction="prediction", by=BY, progress=watch.step)
        watch.note(*reasons.of_audit(found))
        return found


def _fit(rows: dict[str, Any], watching: Watching) -> Model:
    with watching() as watch:
        watch.say("fitting")
        from trueup.calibrators.mcgrad.estimator import MCGrad  # scikit-learn and LightGBM come with it

        table = read(rows, outcome="outcome", prediction="prediction", features=BY)
        recipe = MCGrad("prediction", list(BY)).fit_table(table, counting(watch, "fitting"))
        watch.note(*reasons.of_fit(recipe.model_, recipe))
        model: Model = recipe.model_
        return model


def _beside(page: Path) -> Path:
    """Name the model after the page."""
    place = page.with_suffix(".trueup")
    return place if place != page else page.with_name(f"{page.name}.trueup")


def _tell(*lines: str) -> None:
    console.say("\n".join(lines))


def _quietly(*_: str) -> None:
    """Say nothing."""


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
