"""What a profile may say, and the reading of its file: a stranger's, so it is checked, and nothing in it is run."""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import Any

from trueup.errors import ArgumentError, FileError

LARGEST_FILE = 65_536  # bytes: a profile is a small file
LONGEST_WORD, LONGEST_TEXT = 60, 1_000
MOST_ITEMS = 200  # of a list, and of sections
MEASURES = (
    "normalized entropy", "log loss", "brier", "miscalibration", "discrimination", "uncertainty", "auc", "slope",
    "intercept", "in the large", "observed", "expected", "rmse",
)  # fmt: skip


def _profiles() -> tuple[str, ...]:
    """List the files beside this one, the usual profile first."""
    names = [one.name for one in resources.files(__package__).iterdir() if one.name.endswith(".toml")]
    return tuple(sorted((name.removesuffix(".toml") for name in names), key=lambda name: (name != "general", name)))


PROFILES = _profiles()
"""The names of the profiles that come with the package; a new file beside the others is a new name."""


@dataclass(frozen=True)
class Words:
    """What a trade calls things: the outcome (one and many), its mean, the mean score, the score, a segment, and rows."""

    outcome: str = "event"
    outcomes: str = "events"
    observed: str = "observed"
    expected: str = "expected"
    score: str = "prediction"
    segment: str = "segment"
    segments: str = "segments"
    rows: str = "rows"


@dataclass(frozen=True)
class SectionPlan:
    """One section that a profile asks for: its kind, its words, and the parameters of the kind."""

    kind: str
    title: str
    lead: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """The words, tables and defaults of a trade.

    ``defaults`` are options of an audit by their names in `trueup.audit`, and ``top``; what a user says goes before them.
    """

    name: str
    title: str = "Calibration audit"
    about: str = ""
    words: Words = field(default_factory=Words)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[SectionPlan, ...] = ()

    def options(self, columns: Iterable[str]) -> dict[str, Any]:
        """Give the defaults for data with these columns: of columns to look for, those that are there.

        Upper and lower case make no difference.

        Examples
        --------
        >>> load_profile("credit").options(["income", "Grade"])
        {'categorical': ['Grade']}
        """
        there = {name.casefold(): name for name in columns}
        found = dict(self.defaults)
        for key in ("by", "categorical"):
            named = [there[name.casefold()] for name in found.pop(key, ()) if name.casefold() in there]
            found |= {key: list(dict.fromkeys(named))} if named else {}
        return found


# What checks give back: the value to keep, or a text that says what it must be.
Check = Callable[[Any], "Any | _Must"]


class _Must(str):
    """What a value must be, said because it is not."""

    __slots__ = ()


def _text(longest: int) -> Check:
    def check(value: Any) -> Any:
        fit = isinstance(value, str) and value.strip() and len(value) <= longest and value.isprintable()
        return value.strip() if fit else _Must(f"a text of 1 to {longest:,} letters on one line")

    return check


def _many(word: str) -> str:
    """Give the plural of a word whose file does not say it.

    Examples
    --------
    >>> _many("slice"), _many("tariff class"), _many("policy"), _many("day")
    ('slices', 'tariff classes', 'policies', 'days')
    """
    if word.lower().endswith(("s", "x", "z", "ch", "sh")):
        return f"{word}es"
    return f"{word[:-1]}ies" if re.search("[^aeiou]y$", word) else f"{word}s"


def _texts(value: Any) -> Any:
    fit = isinstance(value, list) and len(value) <= MOST_ITEMS and all(isinstance(one, str) and one for one in value)
    return tuple(value) if fit else _Must(f"a list of at most {MOST_ITEMS} names")


def _whole(low: int, high: int) -> Check:
    def check(value: Any) -> Any:
        fit = isinstance(value, int) and not isinstance(value, bool) and low <= value <= high
        return value if fit else _Must(f"a whole number from {low} to {high:,}")

    return check


def _number(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return -1e9 <= value <= 1e9  # a whole number may be too large for any other question


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # a whole number of more digits than Python writes, or a nest
        return f"a {type(value).__name__} too large to show"


def _share(value: Any) -> Any:
    return float(value) if _number(value) and 0 < value < 1 else _Must("a number between 0 and 1")


def _hundredths(value: Any) -> Any:
    """Read thresholds; the sums that decisions are judged by are kept at every hundredth."""
    fit = isinstance(value, list) and 0 < len(value) <= MOST_ITEMS and all(map(_hundredth, value))
    return tuple(sorted({round(x, 2) for x in value})) if fit else _Must("a list of hundredths, such as [0.05, 0.1]")


def _hundredth(value: Any) -> bool:
    return _number(value) and 0 < value < 1 and abs(value - round(value, 2)) < 1e-9


def _among(allowed: Collection[str]) -> Check:
    def check(value: Any) -> Any:
        return value if isinstance(value, str) and value in allowed else _Must(f"one of {', '.join(allowed)}")

    return check


def _measures(value: Any) -> Any:
    fit = isinstance(value, list) and value and all(isinstance(one, str) and one in MEASURES for one in value)
    return tuple(dict.fromkeys(value)) if fit else _Must(f"a list of these: {', '.join(MEASURES)}")


WORDS: dict[str, Check] = {one.name: _text(LONGEST_WORD) for one in fields(Words)}
DEFAULTS: dict[str, Check] = {
    "by": _texts, "categorical": _texts, "depth": _whole(1, 3), "alpha": _share, "min_rows": _whole(1, 10**9),
    "adjust": _among(("holm", "max", "bh", "by")), "top": _whole(0, 10**6),
}  # fmt: skip
# Kinds of sections, and their parameters. The kinds are drawn in `drawn`.
KINDS: dict[str, dict[str, Check]] = {
    "grades": {"columns": _texts, "level": _share},
    "fields": {},
    "values": {"most": _whole(1, 10_000), "fields": _texts},
    "scores": {"show": _measures},
    "line": {"level": _share},
    "decision": {"thresholds": _hundredths, "highest": _share},
}
SAID: dict[str, Check] = {"kind": _among(KINDS), "title": _text(200), "lead": _text(LONGEST_TEXT)}
TOP = ("name", "title", "about", "like", "words", "defaults", "sections")


def load_profile(name: str | os.PathLike[str]) -> Profile:
    """Read a profile: one of `PROFILES` by its name, or a file of your own by its path.

    A file of your own may say ``like = "credit"``: what it leaves out is then as in that profile.

    Raises
    ------
    ArgumentError
        If there is no profile of that name.
    FileError
        If a file cannot be read, or says what a profile cannot say.

    Examples
    --------
    >>> load_profile("credit").words.score
    'PD'
    >>> load_profile("credits")
    Traceback (most recent call last):
    ...
    trueup.errors.ArgumentError: there is no profile 'credits'
    hint: did you mean 'credit'? there are general, ads, credit, health; or give the path of a file, such as my.toml
    """
    if isinstance(name, str) and name in PROFILES:
        text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
        return _Reader(f"profile {name!r}").read(text)
    if not isinstance(name, (str, os.PathLike)):
        raise ArgumentError(
            f"a profile is a name or a path; got {type(name).__qualname__}", hint=f"there are {', '.join(PROFILES)}"
        )
    path = Path(name)
    if isinstance(name, str) and path.suffix != ".toml" and len(path.parts) <= 1:
        near = difflib.get_close_matches(name.lower(), PROFILES, n=1)
        guess = f"did you mean {near[0]!r}? " if near else ""
        raise ArgumentError(
            f"there is no profile {name!r}",
            hint=f"{guess}there are {', '.join(PROFILES)}; or give the path of a file, such as my.toml",
        )
    return _Reader(f"profile {str(path)!r}").read(_file(path))


def _file(path: Path) -> str:
    """Read the text of a small file."""
    try:
        with path.open("rb") as file:
            data = file.read(LARGEST_FILE + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = f"profiles that need no file are {', '.join(PROFILES)}"
        raise FileError(f"cannot read the profile {str(path)!r}: {reason}", hint=hint) from error
    if len(data) > LARGEST_FILE:
        raise FileError(f"profile {str(path)!r} is larger than {LARGEST_FILE:,} bytes", hint="is it another file?")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileError(f"profile {str(path)!r} is not text in UTF-8", hint="save it as UTF-8") from error


@dataclass(frozen=True)
class _Reader:
    """Reads one file; ``where`` names it in messages."""

    where: str

    def read(self, text: str) -> Profile:
        """Read and check the whole of it."""
        try:
            found = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # a number without end, or lists within lists within lists
            reason = "too deep" if isinstance(error, RecursionError) else str(error)
            raise FileError(f"{self.where} is not TOML: {reason}", hint='a line reads: name = "value"') from error
        self.known(found, TOP, "")
        base = self.base(found)
        if "name" not in found:
            raise FileError(f"{self.where} has no name", hint='begin with a line such as: name = "insurance"')
        said = {key: self.value(_text(length), found, key, "") for key, length in
                (("name", LONGEST_WORD), ("title", 200), ("about", LONGEST_TEXT)) if key in found}  # fmt: skip
        words = self.checked(self.table(found, "words"), WORDS, "words.")
        for one, many in (("outcome", "outcomes"), ("segment", "segments")):
            if one in words:
                words.setdefault(many, _many(words[one]))
        defaults = self.checked(self.table(found, "defaults"), DEFAULTS, "defaults.")
        planned = self.plans(found["sections"]) if "sections" in found else base.sections
        return replace(
            base, **said, words=replace(base.words, **words), defaults={**base.defaults, **defaults}, sections=planned
        )

    def base(self, found: Mapping[str, Any]) -> Profile:
        """Give the profile that this one is like."""
        if "like" not in found:
            return Profile("")
        return load_profile(self.value(_among(PROFILES), found, "like", ""))

    def known(self, found: Mapping[str, Any], allowed: Collection[str], inside: str) -> None:
        """Refuse a key that means nothing."""
        for key in found:
            if key not in allowed:
                near = difflib.get_close_matches(key, list(allowed), n=1)
                hint = f"did you mean {near[0]!r}?" if near else f"known here are {', '.join(allowed) or 'none'}"
                raise FileError(f"{self.where} says {inside + key[:80]!r}, which no profile knows", hint=hint)

    def table(self, found: Mapping[str, Any], key: str) -> Mapping[str, Any]:
        """Give a table within the file."""
        inner = found.get(key, {})
        if not isinstance(inner, dict):
            raise FileError(f"{key!r} in {self.where} must be a table; got {_shown(inner)}", hint=f"write [{key}] above it")
        return inner

    def checked(self, found: Mapping[str, Any], checks: Mapping[str, Check], inside: str) -> dict[str, Any]:
        """Check every key of a table."""
        self.known(found, checks, inside)
        return {key: self.value(checks[key], found, key, inside) for key in found}

    def value(self, check: Check, found: Mapping[str, Any], key: str, inside: str) -> Any:
        """Check one value."""
        kept = check(found[key])
        if isinstance(kept, _Must):
            raise FileError(f"{inside + key!r} in {self.where} must be {kept}; got {_shown(found[key])}")
        return kept

    def plans(self, found: Any) -> tuple[SectionPlan, ...]:
        """Read the sections."""
        if not isinstance(found, list) or len(found) > MOST_ITEMS or not all(isinstance(one, dict) for one in found):
            raise FileError(f"'sections' in {self.where} must be tables; got {_shown(found)}", hint="write [[sections]]")
        return tuple(self.plan(one, f"sections[{at}].") for at, one in enumerate(found))

    def plan(self, found: Mapping[str, Any], inside: str) -> SectionPlan:
        """Read one section: its kind says which parameters there are."""
        for key in ("kind", "title"):
            if key not in found:
                raise FileError(f"{inside[:-1]!r} in {self.where} has no {key}", hint=f"kinds are {', '.join(KINDS)}")
        kind = self.value(SAID["kind"], found, "kind", inside)
        kept = self.checked(found, SAID | KINDS[kind], inside)
        parameters = {key: value for key, value in kept.items() if key not in SAID}
        return SectionPlan(kind, kept["title"], kept.get("lead", ""), parameters)
