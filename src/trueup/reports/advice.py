"""What to do next, and what an audit could have found: in words."""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import family, how_far, number, shorten

if TYPE_CHECKING:
    from collections.abc import Sequence

    from trueup.audits.result import Audit

__all__ = ["Step", "name_options", "next_after", "next_step", "reach", "tell"]

BLIND = 0.25  # an error of this share of the mean that could not be seen is worth more data
WIDEST_NAME = 60
MOST_NAMES, MOST_FILES = 8, 8  # in a command that people are to read


@dataclass(frozen=True)
class Step:
    """What to do next: a sentence, a command where there is one, and what follows."""

    text: str
    command: str = ""
    after: str = ""


def tell(audit: Audit) -> str:
    """Say what was found: how many, where the evidence is strongest, and where the error is largest."""
    if not audit.tested:
        return f"No segment has {audit.settings.min_rows:,} rows."
    worst = audit.finding(0)
    verb = "is" if audit.rejected == 1 else "are"
    told = f"{family(audit, verb + ' off beyond chance,')}. The evidence is strongest on {shorten(worst.segment, 200)}: "
    told += f"{how_far(worst)}{'' if audit.miscalibrated else ', within chance'}."
    gaps = np.abs(audit.columns["bias"][: audit.rejected])  # those that are off come first
    if not np.isfinite(gaps).any() or (largest := int(np.nanargmax(gaps))) == 0:
        return told
    one = audit.finding(largest)
    return told + (
        f" The largest difference among them is on {shorten(one.segment, 200)} ({one.n:,} rows): observed "
        f"{number(one.observed)}, expected {number(one.expected)}."
    )


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


def next_after(name: str, before: Audit, after: Audit) -> Step:
    """Say what to do after two audits of the same rows: use the second, keep the first, or go on."""
    left, was = after.rejected, before.rejected
    if not after.tested or (not left and not was):
        return next_step(after)
    if left > was:
        many = "segment was" if was == 1 else "segments were"
        return Step(f"Next: do not use {name} yet. It is off on {left:,} segments, where {was:,} {many} before.")
    if left:
        many = "segment is" if left == 1 else "segments are"
        return Step(
            f"Next: {left:,} {many} still off. Fit again on more rows, with the columns that form them among the features, "
            "and compare on rows that the fit has not seen."
        )
    return Step(
        f"Next: use {name}, if these rows did not teach it: nothing was found off any more. Audit again when the model, "
        "the data or the world changes."
    )


def fit_command(audit: Audit) -> str:
    """Write the command that fits a correction with the roles of this audit."""
    schema = audit.schema
    files = [name for name, _, _ in audit.source.files] if audit.source is not None else []
    names = [feature.name for feature in schema.features]
    parts = ["trueup", "fit", *(files[:MOST_FILES] if files else ["scores.parquet"])]
    parts += ["--outcome", schema.outcome or "outcome", *name_options("--prediction", schema.prediction[:20])]
    parts += ["--weight", schema.weight] if schema.weight else []
    parts += ["--task", "regression"] if schema.task == "regression" else []
    parts += name_options("--features", names) if len(names) <= MOST_NAMES else []
    return shlex.join([*(shorten(part, 200) for part in parts), "-o", "model.trueup"])


def name_options(option: str, names: Sequence[str]) -> list[str]:
    """Write names as an option: as one list, or where a comma in one would split it, one by one.

    Examples
    --------
    >>> name_options("--by", ["age", "sex"]), name_options("--by", ["age", "b,c"]), name_options("--by", [])
    (['--by', 'age,sex'], ['--by', 'age', '--by', 'b,c'], [])
    """
    whole = [",".join(names)] if names and not any("," in name for name in names) else names
    return [word for name in whole for word in (option, name)]


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
