"""What to do next, and what an audit could have found: in words."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import can_be, family, how_far, least_rows, number, shorten
from trueup.reports.profiles.declared import Words

if TYPE_CHECKING:
    from trueup._types import FloatArray
    from trueup.audits.result import Audit

BLIND = 0.25  # an error of this share of the mean that could not be seen is worth more data
WIDEST_NAME = 60
MOST_NAMES = 8  # in a command that people are to read
USUAL = Words()


@dataclass(frozen=True)
class Step:
    """What to do next: a sentence, a command or a line of Python where there is one, and what follows."""

    text: str
    command: str = ""
    after: str = ""


def tell(audit: Audit, words: Words = USUAL) -> str:
    """Say what was found: how many, where the evidence is strongest, and where the error is largest."""
    if not audit.tested:
        return f"No {words.segment} has {least_rows(audit):,} {words.rows}."
    worst = audit.finding(0)
    verb = "is" if audit.rejected == 1 else "are"
    many = family(audit, verb + " off beyond chance,").replace(" segments ", f" {words.segments} ", 1)
    told = f"{many}. The evidence is strongest on {shorten(worst.segment, 200)}: "
    told += f"{how_far(worst)}{'' if audit.miscalibrated else ', within chance'}."
    gaps = np.abs(audit.columns["bias"][: audit.rejected])  # those that are off come first
    if not np.isfinite(gaps).any() or (largest := int(np.nanargmax(gaps))) == 0:
        return told
    one = audit.finding(largest)
    return told + (
        f" The largest difference among them is on {shorten(one.segment, 200)} ({one.n:,} {words.rows}): {words.observed} "
        f"{number(one.observed)}, {words.expected} {number(one.expected)}."
    )


def next_step(audit: Audit, words: Words = USUAL) -> Step:
    """Say what to do next: fix the scores, gather rows, or wait."""
    if not audit.tested:
        least = least_rows(audit)
        return Step(f"Next: gather more {words.rows}. A {words.segment} needs at least {least:,} to be tested.")
    if audit.miscalibrated:
        return Step(
            "Next: correct the scores on the rows at hand,", fit_command(audit),
            "then audit the corrected scores on rows that the fit has not seen.",
        )  # fmt: skip
    whole = audit.overall
    scale = abs(whole.expected)
    if math.isfinite(whole.mde) and scale > 0 and whole.mde > BLIND * scale:
        size = f"An error of {number(whole.mde, 2)}" if can_be(audit, whole.mde, whole.expected) else "Any error"
        return Step(
            f"Next: gather more {words.rows} before taking comfort. {size} in a mean of {number(whole.observed, 2)} could "
            "have gone unseen."
        )
    return Step("Next: nothing was found to fix. Audit again when the model, the data or the world changes.")


def next_after(name: str, before: Audit, after: Audit, words: Words = USUAL, *, taught: bool = False) -> Step:
    """Say what to do after two audits of the same rows: use the second, keep the first, or go on.

    ``taught`` says that the rows look like those that taught the fix: then they prove nothing.
    """
    left, was = after.rejected, before.rejected
    if taught:
        return Step(
            f"Next: compare on {words.rows} that the fix has not seen. These look like the ones that taught it, and what "
            "it learned from always looks right."
        )
    if not after.tested or (not left and not was):
        return next_step(after, words)
    used = _scores(name)
    if left > was:
        now = f"{words.segment} is" if left == 1 else f"{words.segments} are"
        return Step(
            f"Next: do not use {used} yet. {left:,} {now} off, where {was:,} {'was' if was == 1 else 'were'} before."
        )
    if left:
        many = f"{words.segment} is" if left == 1 else f"{words.segments} are"
        return Step(
            f"Next: {left:,} {many} still off. Fit again on more rows, with the columns that form them among the features, "
            "and compare on rows that the fit has not seen."
        )
    return Step(
        f"Next: use {used}, if these rows did not teach the fix: nothing was found off any more. Audit again when the "
        "model, the data or the world changes."
    )


def _scores(name: str) -> str:
    """Call the scores of an audit by its name: "after" alone is no name for them."""
    if re.match(r"(after|before|now|then)\b", name, re.IGNORECASE) is None:
        return name
    return "the corrected scores" if name.lower() == "after" else f"the scores {name}"


def fit_command(audit: Audit) -> str:
    """Return the code that fits a correction with the roles of this audit: the command of the source, else Python."""
    if audit.source is not None and audit.source.fit:
        return shorten(audit.source.fit, 2000)
    return _fit_call(audit)


def _fit_call(audit: Audit) -> str:
    schema = audit.schema
    names = [feature.name for feature in schema.features]
    listed = bool(names) and len(names) <= MOST_NAMES
    prediction = [_quoted(name) for name in schema.prediction[:20]]
    made = prediction if len(prediction) == 1 else [f"[{', '.join(prediction)}]"]
    made += [f"[{', '.join(map(_quoted, names))}]"] if listed else []
    made += ['task="regression"'] if schema.task == "regression" else []
    # Without a list every other column is a feature: then the roles are named, and so set apart.
    role = "rows[{}]" if listed else "{}"
    given = ["rows", role.format(_quoted(schema.outcome)) if schema.outcome else "outcome"]
    given += [f"sample_weight={role.format(_quoted(schema.weight))}"] if schema.weight else []
    return f"trueup.MCGrad({', '.join(made)}).fit({', '.join(given)})"


def _quoted(name: str) -> str:
    return json.dumps(shorten(name, 200), ensure_ascii=False)


def reach(audit: Audit, words: Words = USUAL) -> tuple[str, ...]:
    """Say which errors would have been found, for the whole, for half of the segments, and for the least of them."""
    known = np.flatnonzero(audit.columns["testable"] & np.isfinite(audit.columns["mde"]))
    if not len(known):
        return ()
    mde, whole = audit.columns["mde"][known], audit.overall
    lines = []
    if math.isfinite(whole.mde):
        shift = f"a shift of {_shift(audit, whole.mde)}" if can_be(audit, whole.mde, whole.expected) else "no shift"
        lines.append(
            f"Over all {words.rows}, {shift} between {words.observed} and {words.expected} would have been found "
            "four times out of five."
        )
    if len(known) > 1:
        lines += [_half(audit, mde, words), _blindest(audit, int(known[int(np.argmax(mde))]), words)]
    return (*lines, "A smaller error may be there and was not found: no verdict here is proof of none.")


def _half(audit: Audit, mde: FloatArray, words: Words) -> str:
    """Say what would have been found in half of the segments; a rate is never off by more than 1."""
    start, half = f"In half of the {len(mde):,} tested {words.segments}", float(np.median(mde))
    if not can_be(audit, half, 1.0):
        return f"{start} or more no shift would have been found so often."
    return f"{start} a shift had to be {_shift(audit, half)} or more to be found."


def _blindest(audit: Audit, at: int, words: Words) -> str:
    """Say where the least would have been found."""
    mde, expected, rows = (audit.columns[name][at].item() for name in ("mde", "expected", "n"))
    found = f"only a shift of {_shift(audit, mde)} or more" if can_be(audit, mde, expected) else "no shift, however large"
    return f"The least can be said of {shorten(audit.keys.name(at), WIDEST_NAME)} ({rows:,} {words.rows}): {found}."


def _shift(audit: Audit, value: float) -> str:
    """Write a shift in the units of the outcome; of a probability, in percentage points."""
    if audit.schema.task == "regression":
        return number(value, 2)
    points = 100 * value
    return f"{number(points, 2)} percentage points"
