"""What to do after an audit: the commands that go on from here, ready to be copied."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from trueup.cli.exports import Export, Told

ROLES = ("outcome", "positive", "prediction", "classes", "weight", "task", "unlabelled")
USUAL = {"task": "auto", "unlabelled": "error"}


def next_commands(told: Told, arguments: argparse.Namespace, exports: Sequence[Export]) -> list[str]:
    """Say what to do next, and name the commands that do it."""
    lines = [] if any(one.kind == "page" for one in exports) else [f"  {_with_page(arguments.words)}"]
    if told.other is not None:
        return _after_two(told, arguments, lines)
    if told.audit.miscalibrated:
        lines.append(f"  {shlex.join(['trueup', *fit_words(arguments, arguments.files)])}")
    return ["next:", *lines] if lines else []


def fit_words(arguments: argparse.Namespace, files: Sequence[str]) -> list[str]:
    """Write the words that fit a correction with the roles and columns of an audit."""
    words = ["fit", *map(_as_place, files), *_given(arguments, ("sql", *ROLES))]
    words += [word for one in arguments.by or () for word in _option("features", one)]
    return [*words, *_given(arguments, ("categorical", "memory")), "-o", "model.trueup"]


def name_options(option: str, names: Sequence[str]) -> list[str]:
    """Return an option with a list of names: comma-separated, or repeated per name if a name contains a comma.

    Examples
    --------
    >>> name_options("--by", ["age", "sex"]), name_options("--by", ["age", "b,c"]), name_options("--by", [])
    (['--by', 'age,sex'], ['--by', 'age', '--by', 'b,c'], [])
    """
    joined = [",".join(names)] if names and not any("," in name for name in names) else names
    return [word for name in joined for word in (option, name)]


def predict_command(model: str, rows: str = "new.parquet") -> str:
    """Write the command that corrects the scores of other rows."""
    return f"trueup predict {shlex.quote(_as_place(model))} {rows} -o scored.parquet"


def _as_place(path: str) -> str:
    """Write a path so that it is not taken for an option."""
    return f"./{path}" if path.startswith("-") else path


def _after_two(told: Told, arguments: argparse.Namespace, page: list[str]) -> list[str]:
    """Say what to make of two scores of the same rows, and of the fix between them where it is known."""
    from trueup.reports.compare import step_after

    if told.taught:
        return ["next, on rows that the fix has not seen:", f"  {predict_command(arguments.fix, 'other.parquet')}"]
    assert told.other is not None
    step = step_after({told.other_name: told.other, told.name: told.audit})
    text = " ".join(part for part in (step.text, step.after) if part)
    lines = [f"  {step.command}"] if step.command else []
    if told.fix is not None and told.audit.miscalibrated:
        lines.append(f"  {shlex.join(['trueup', *_fit_again(told, arguments)])}")
    elif told.fix is not None and told.other.miscalibrated and told.audit.tested:
        lines.append(f"  {predict_command(arguments.fix)}")
    return [f"{text[:1].lower()}{text[1:]}", *lines, *page]


def _fit_again(told: Told, arguments: argparse.Namespace) -> list[str]:
    """Write the words that fit the score before the fix once more, on more rows."""
    assert told.other is not None
    words = ["fit", "more.parquet", *_given(arguments, ("outcome", "positive"))]
    words += [*name_options("--prediction", told.other.schema.prediction), *_given(arguments, ROLES[3:])]
    words += [word for one in arguments.by or () for word in _option("features", one)]
    return [*words, *_given(arguments, ("categorical",)), "-o", "again.trueup"]


def _with_page(words: list[str]) -> str:
    """Write the same command again, with a page: other settings would give another verdict."""
    end = words.index("--") if "--" in words else len(words)
    again = [word for word in words[:end] if word not in ("--verbose", "--debug")]
    return shlex.join(["trueup", *again, "-o", "report.html", *words[end:]])


def _given(arguments: argparse.Namespace, names: Sequence[str]) -> list[str]:
    """Write options again as they were given; what is usual is not said."""
    words: list[str] = []
    for name in names:
        value = getattr(arguments, name, None)
        if value is not None and value != USUAL.get(name):
            words += [word for one in (value if isinstance(value, list) else [value]) for word in _option(name, str(one))]
    return words


def _option(name: str, value: str) -> list[str]:
    """Write an option; a value that looks like another one goes in the same word."""
    return [f"--{name}={value}"] if value.startswith("-") else [f"--{name}", value]
