"""What the figures of a decision rest on, and what to do where scores are off."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import numpy as np

from trueup.audits.text import number
from trueup.cli.following import name_options
from trueup.cli.question import ACT, worthless

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from trueup.cli.judging import Answer

AGAIN = (  # options that a decision by corrected scores takes as they were
    "cost_fn", "cost_fp", "cost_tp", "cost_tn", "action", "capacity", "fixed_cost", "weight", "by", "depth", "bins",
    "categorical", "level", "target",
)  # fmt: skip
PICTURES = (".svg", ".png", ".pdf")
USUAL = {"level": 0.9, "target": "rows"}


def notes(found: Answer) -> list[str]:
    """Say what the figures rest on."""
    return [*_of_actions(found), *_of_labelled(found), *_of_rows(found)]


def _of_actions(found: Answer) -> Iterator[str]:
    """Tell of actions that nobody should take, or that no row gets."""
    actions, of_errors = found.question.actions, found.question.of_errors
    never = worthless(actions)
    called = {name: ("acting" if name == ACT else "passing over") if of_errors else name for name in never}
    yield from (f"{called[name]} is never worthwhile: at every score another action costs less" for name in never)
    if of_errors:
        return
    used = {share.action for share in found.cost.shares if share.rows}
    for action in actions:
        if action.name not in used and action.name not in never:
            yield f"no row falls to {action.name}: {_why_not(found)}"


def _why_not(found: Answer) -> str:
    limits = ["capacities"] if found.question.capacity else []
    limits += ["start-up costs"] if any(action.fixed for action in found.question.actions) else []
    return f"not by these scores and {' and '.join(limits)}" if limits else "no score is where it would be the cheapest"


def _of_labelled(found: Answer) -> Iterator[str]:
    told = found.rows.labelled
    if told is None:
        return
    assert told.outcome is not None
    were, expected = (100 * float(np.average(of, weights=told.weight)) for of in (told.outcome, told.prediction))
    weighed = "" if told.weight is None else " by weight"
    chance = "some ranges of scores are off by more than" if found.off else "no range of scores is off by more than"
    yield (
        f"of {len(told):,} labelled rows {were:.3g}% were positive{weighed}, {expected:.3g}% expected; {chance} chance "
        f"explains (p = {number(found.p_value, 2)})"
    )
    if found.backwards:
        yield (
            "higher scores go with fewer positives: of a positive and a negative labelled row the positive one has the "
            f"higher score in {100 * found.auc:.3g}% of cases; is the outcome the wrong way round?"
        )
    where = "have moved away from those of" if found.moved else "are spread as those of"
    yield f"the scores {where} the labelled rows (shares of rows below a score differ by up to {found.cost.distance:.3f})"
    if told.unlabelled:
        yield f"{told.unlabelled:,} labelled rows without an outcome were set aside"


def _of_rows(found: Answer) -> Iterator[str]:
    told = found.rows.labelled
    weightless = found.rows.table.weightless + (0 if told is None else told.weightless)
    if weightless:
        yield f"{weightless:,} rows of weight 0 were left out"
    if any(action.fixed for action in found.rule.actions):
        if found.cost.target == "population":
            yield "what it costs to act at all is left out of the cost a row"
        elif found.segments:
            yield "what it costs to act at all is part of the total, and of no segment"


def next_commands(found: Answer, arguments: argparse.Namespace) -> list[str]:
    """Name the commands that put scores right which are off, and decide again.

    The rows that teach the fix cannot say how far it is off: those that judged it can.
    """
    if not found.off or found.backwards:
        return []
    column, source = found.rows.prediction, " ".join(map(shlex.quote, arguments.files)) or "FILE"
    told = " ".join(map(shlex.quote, arguments.labelled))
    features = f" --features {shlex.quote(','.join(found.rows.by))}" if found.rows.by else ""
    outcome = f"--outcome {shlex.quote(arguments.outcome)}"
    options = _given(arguments, ("weight", "categorical"))
    options += " --unlabelled drop" if arguments.unlabelled == "drop" else ""
    roles = f"{outcome} --prediction {shlex.quote(column)}{features}{options}"
    again = f"--prediction {shlex.quote(f'{column}_trueup')}{_given(arguments, AGAIN)}"
    return [
        f"the scores are off; put them right, and decide by {column}_trueup:",
        f"  trueup fit {told} {roles} --held-out held.parquet -o model.trueup",
        f"  trueup predict model.trueup {source} -o scored.parquet",
        f"  trueup decide scored.parquet {again} --labelled held.parquet {outcome}",
    ]


def check_command(found: Answer, arguments: argparse.Namespace) -> list[str]:
    """Name the command that checks the scores once it is known what happened; scores that are off come first."""
    if next_commands(found, arguments):
        return []
    rows = [place for place in arguments.output or () if not place.lower().endswith(PICTURES)][:1]
    words = ["trueup", "audit", *(rows or arguments.files or ["FILE"]), "--outcome", arguments.outcome or "Y"]
    words += ["--prediction", found.rows.prediction, *name_options("--by", found.rows.by)]
    options = _given(arguments, ("positive", "weight", "categorical"))
    return ["", "next, once outcomes are known:", f"  {shlex.join(words)}{options}"]


def _given(arguments: argparse.Namespace, names: tuple[str, ...]) -> str:
    """Write options again as they were given."""
    words = []
    for name in names:
        value = getattr(arguments, name)
        if value is None or value == USUAL.get(name):
            continue
        for one in value if isinstance(value, list) else [value]:
            text = one if isinstance(one, str) else f"{one:.17g}" if isinstance(one, float) else str(one)
            words.append(f" --{name.replace('_', '-')} {shlex.quote(text)}")
    return "".join(words)
