"""What to do next, and what an audit could have found: in words."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import number, shorten

if TYPE_CHECKING:
    from trueup.audits.result import Audit

__all__ = ["Step", "next_step", "reach"]

BLIND = 0.25  # an error of this share of the mean that could not be seen is worth more data
WIDEST_NAME = 60


@dataclass(frozen=True)
class Step:
    """What to do next: a sentence, a command where there is one, and what follows."""

    text: str
    command: str = ""
    after: str = ""


def next_step(audit: Audit) -> Step:
    """Say what to do next: fix the scores, gather rows, or wait."""
    least = audit.settings.min_rows
    if not audit.tested:
        return Step(f"Next: gather more rows. A segment needs at least {least:,} to be tested.")
    if audit.miscalibrated:
        return Step(
            "Next: correct the scores on the rows at hand,", fit_command(audit),
            "then audit the corrected scores on rows that the fit has not seen.",
        )  # fmt: skip
    whole = audit.overall
    scale = abs(whole.expected)
    if math.isfinite(whole.mde) and scale > 0 and whole.mde > BLIND * scale:
        return Step(
            f"Next: gather more rows before taking comfort. An error of {number(whole.mde, 2)} in a mean of "
            f"{number(whole.observed, 2)} could have gone unseen."
        )
    return Step("Next: nothing was found to fix. Audit again when the model, the data or the world changes.")


def fit_command(audit: Audit) -> str:
    """Write the command that fits a correction with the roles of this audit."""
    schema = audit.schema
    file = audit.source.files[0][0] if audit.source is not None and audit.source.files else "scores.parquet"
    names = [feature.name for feature in schema.features[:8]]
    parts = ["trueup", "fit", _word(file), "--outcome", _word(schema.outcome or "outcome"), "--prediction"]
    parts += [_word(",".join(schema.prediction[:20]))]
    parts += ["--weight", _word(schema.weight)] if schema.weight else []
    parts += ["--task", "regression"] if schema.task == "regression" else []
    parts += ["--features", _word(",".join(names))] if names and len(schema.features) <= len(names) else []
    return " ".join([*parts, "-o", "model.trueup"])


def _word(text: str) -> str:
    return shlex.quote(shorten(text, 200))


def reach(audit: Audit) -> tuple[str, ...]:
    """Say which errors would have been found, for the whole, for half of the segments, and for the least of them."""
    known = np.flatnonzero(audit.columns["testable"] & np.isfinite(audit.columns["mde"]))
    if not len(known):
        return ()
    mde, whole = audit.columns["mde"][known], audit.overall
    lines = []
    if math.isfinite(whole.mde):
        lines.append(
            f"Over all rows, a shift of {_shift(audit, whole.mde)} between observed and expected would have been found "
            "four times out of five."
        )
    if len(known) > 1:
        blindest = int(known[int(np.argmax(mde))])
        name, rows = shorten(audit.keys.name(blindest), WIDEST_NAME), int(audit.columns["n"][blindest])
        lines += [
            f"In half of the {len(known):,} tested segments a shift had to be {_shift(audit, float(np.median(mde)))} "
            "or more to be found.",
            f"The least can be said of {name} ({rows:,} rows): only a shift of {_shift(audit, float(mde.max()))} or more.",
        ]
    return (*lines, "A smaller error may be there and was not found: no verdict here is proof of none.")


def _shift(audit: Audit, value: float) -> str:
    """Write a shift in the units of the outcome; of a probability, in percentage points."""
    if audit.schema.task == "regression":
        return number(value, 2)
    points = 100 * value
    return f"{number(points, 2)} percentage points"
