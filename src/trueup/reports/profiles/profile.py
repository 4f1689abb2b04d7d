"""Profiles: the vocabulary, sections and audit defaults of a domain, read from a TOML file.

A profile may come from anyone: every value is validated, and nothing in the file is executed.
"""

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

MAX_FILE_BYTES = 65_536
MAX_TERM_LENGTH, MAX_TITLE_LENGTH, MAX_TEXT_LENGTH = 60, 200, 1_000  # characters
MAX_ITEMS = 200  # of a list, and of sections
METRICS = (
    "normalized entropy", "log loss", "brier", "miscalibration", "discrimination", "uncertainty", "auc", "slope",
    "intercept", "in the large", "observed", "expected", "rmse",
)  # fmt: skip


def _bundled_profiles() -> tuple[str, ...]:
    names = [path.name for path in resources.files(__package__).iterdir() if path.name.endswith(".toml")]
    return tuple(sorted((name.removesuffix(".toml") for name in names), key=lambda name: (name != "general", name)))


PROFILES = _bundled_profiles()
"""Names of the profiles in this package: one per TOML file, "general" first."""


@dataclass(frozen=True)
class Vocabulary:
    """Terms of a domain: the outcome (singular and plural), its mean, the mean score, the score, segments and rows."""

    outcome: str = "event"
    outcomes: str = "events"
    observed: str = "observed"
    expected: str = "expected"
    score: str = "prediction"
    segment: str = "segment"
    segments: str = "segments"
    rows: str = "rows"


DEFAULT_VOCABULARY = Vocabulary()


@dataclass(frozen=True)
class SectionPlan:
    """A section that a profile asks for: its kind, title and lead, and the parameters of the kind."""

    kind: str
    title: str
    lead: str = ""
    parameters: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Profile:
    """Vocabulary, sections and defaults of a domain.

    ``defaults`` are arguments of `trueup.audit`, and ``top``; explicit arguments take precedence.
    """

    name: str
    title: str = "Calibration audit"
    description: str = ""
    vocabulary: Vocabulary = DEFAULT_VOCABULARY
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[SectionPlan, ...] = ()

    def options(self, columns: Iterable[str]) -> dict[str, Any]:
        """Return the defaults for data with these columns: names of absent columns are left out, case is ignored.

        Examples
        --------
        >>> load_profile("credit").options(["income", "Grade"])
        {'categorical': ['Grade']}
        """
        known = {name.casefold(): name for name in columns}
        options = dict(self.defaults)
        for key in ("by", "categorical"):
            names = [known[name.casefold()] for name in options.pop(key, ()) if name.casefold() in known]
            options |= {key: list(dict.fromkeys(names))} if names else {}
        return options


# A check returns the value to keep, or raises ValueError with a description of the values that are allowed.
Check = Callable[[Any], Any]


def _text(max_length: int) -> Check:
    def check(value: Any) -> str:
        if not (isinstance(value, str) and value.strip() and len(value) <= max_length and value.isprintable()):
            raise ValueError(f"text of 1 to {max_length:,} characters on one line")
        return value.strip()

    return check


def _names(value: Any) -> tuple[str, ...]:
    if not _is_list(value) or not all(isinstance(name, str) and name for name in value):
        raise ValueError(f"a list of at most {MAX_ITEMS} names")
    return tuple(value)


def _integer(low: int, high: int) -> Check:
    def check(value: Any) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
            raise ValueError(f"an integer from {low} to {high:,}")
        return value

    return check


def _fraction(value: Any) -> float:
    if not _is_fraction(value):
        raise ValueError("a number between 0 and 1")
    return float(value)


def _thresholds(value: Any) -> tuple[float, ...]:
    """Validate thresholds: the counts behind a decision curve are kept at multiples of 0.01."""
    if not _is_list(value) or not value or not all(_is_fraction(t) and abs(t - round(t, 2)) < 1e-9 for t in value):
        raise ValueError("a list of multiples of 0.01, such as [0.05, 0.1]")
    return tuple(sorted({round(threshold, 2) for threshold in value}))


def _choice(allowed: Collection[str]) -> Check:
    def check(value: Any) -> str:
        if not isinstance(value, str) or value not in allowed:
            raise ValueError(f"one of {', '.join(allowed)}")
        return value

    return check


def _metrics(value: Any) -> tuple[str, ...]:
    if not _is_list(value) or not value or not all(isinstance(name, str) and name in METRICS for name in value):
        raise ValueError(f"a list of these: {', '.join(METRICS)}")
    return tuple(dict.fromkeys(value))


def _is_list(value: Any) -> bool:
    return isinstance(value, list) and len(value) <= MAX_ITEMS


def _is_fraction(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 < value < 1


HEADER: dict[str, Check] = {
    "name": _text(MAX_TERM_LENGTH),
    "title": _text(MAX_TITLE_LENGTH),
    "description": _text(MAX_TEXT_LENGTH),
}
TERMS: dict[str, Check] = {term.name: _text(MAX_TERM_LENGTH) for term in fields(Vocabulary)}
DEFAULTS: dict[str, Check] = {
    "by": _names,
    "categorical": _names,
    "depth": _integer(1, 3),
    "alpha": _fraction,
    "min_rows": _integer(1, 10**9),
    "adjust": _choice(("holm", "max", "bh", "by")),
    "top": _integer(0, 10**6),
}
# Kinds of sections and their parameters; `sections` builds them.
KINDS: dict[str, dict[str, Check]] = {
    "grades": {"columns": _names, "level": _fraction},
    "fields": {},
    "values": {"max_rows": _integer(1, 10_000), "fields": _names},
    "metrics": {"show": _metrics},
    "slope": {"level": _fraction},
    "decision": {"thresholds": _thresholds, "max_threshold": _fraction},
}
SECTION: dict[str, Check] = {"kind": _choice(KINDS), "title": _text(MAX_TITLE_LENGTH), "lead": _text(MAX_TEXT_LENGTH)}
TOP_LEVEL = (*HEADER, "extends", "vocabulary", "defaults", "sections")


def load_profile(name: str | os.PathLike[str]) -> Profile:
    """Read a profile: one of `PROFILES` by name, or a TOML file by path.

    Examples
    --------
    >>> load_profile("credit").vocabulary.score
    'PD'
    >>> load_profile("credits")
    Traceback (most recent call last):
    ...
    trueup.errors.ArgumentError: there is no profile 'credits'
    hint: did you mean 'credit'? profiles are general, ads, credit, health; or pass the path of a file, such as my.toml
    """
    available = f"profiles are {', '.join(PROFILES)}"
    if isinstance(name, str) and name in PROFILES:
        text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
        return _ProfileReader(f"profile {name!r}").read(text)
    if not isinstance(name, (str, os.PathLike)):
        raise ArgumentError(f"a profile is a name or a path; got {type(name).__qualname__}", hint=available)
    path = Path(name)
    if isinstance(name, str) and path.suffix != ".toml" and len(path.parts) <= 1:
        similar = difflib.get_close_matches(name.lower(), PROFILES, n=1)
        guess = f"did you mean {similar[0]!r}? " if similar else ""
        hint = f"{guess}{available}; or pass the path of a file, such as my.toml"
        raise ArgumentError(f"there is no profile {name!r}", hint=hint)
    return _ProfileReader(f"profile {str(path)!r}").read(_read_text(path))


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            data = file.read(MAX_FILE_BYTES + 1)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        hint = f"profiles without a file are {', '.join(PROFILES)}"
        raise FileError(f"cannot read the profile {str(path)!r}: {reason}", hint=hint) from error
    if len(data) > MAX_FILE_BYTES:
        raise FileError(f"profile {str(path)!r} is larger than {MAX_FILE_BYTES:,} bytes", hint="check the path")
    try:
        return data.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise FileError(f"profile {str(path)!r} is not text in UTF-8", hint="save it as UTF-8") from error


@dataclass(frozen=True)
class _ProfileReader:
    """Parses and validates one file; ``where`` names the file in messages."""

    where: str

    def read(self, text: str) -> Profile:
        try:
            content = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # malformed, integers of too many digits, or nested too deep
            reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
            raise FileError(f"{self.where} is not TOML: {reason}", hint='a line reads: name = "value"') from error
        self.check_keys(content, TOP_LEVEL, "")
        base = load_profile(self.value(_choice(PROFILES), content, "extends", "")) if "extends" in content else Profile("")
        if "name" not in content:
            raise FileError(f"{self.where} has no name", hint='begin with a line such as: name = "insurance"')
        header = {key: self.value(check, content, key, "") for key, check in HEADER.items() if key in content}
        terms = self.table(content, "vocabulary", TERMS)
        for term in ("outcome", "segment"):
            if term in terms:
                terms.setdefault(f"{term}s", plural(terms[term]))
        defaults = self.table(content, "defaults", DEFAULTS)
        sections = self.sections(content["sections"]) if "sections" in content else base.sections
        return replace(
            base,
            **header,
            vocabulary=replace(base.vocabulary, **terms),
            defaults={**base.defaults, **defaults},
            sections=sections,
        )

    def check_keys(self, content: Mapping[str, Any], allowed: Collection[str], prefix: str) -> None:
        for key in content:
            if key not in allowed:
                similar = difflib.get_close_matches(key, list(allowed), n=1)
                hint = f"did you mean {similar[0]!r}?" if similar else f"known keys here are {', '.join(allowed) or 'none'}"
                raise FileError(f"{self.where} has an unknown key {prefix + key[:80]!r}", hint=hint)

    def value(self, check: Check, content: Mapping[str, Any], key: str, prefix: str) -> Any:
        try:
            return check(content[key])
        except ValueError as error:
            got = _shown(content[key])
            raise FileError(f"{prefix + key!r} in {self.where} must be {error}; got {got}") from None

    def checked(self, content: Mapping[str, Any], checks: Mapping[str, Check], prefix: str) -> dict[str, Any]:
        self.check_keys(content, checks, prefix)
        return {key: self.value(checks[key], content, key, prefix) for key in content}

    def table(self, content: Mapping[str, Any], key: str, checks: Mapping[str, Check]) -> dict[str, Any]:
        inner = content.get(key, {})
        if not isinstance(inner, dict):
            hint = f"write [{key}] above it"
            raise FileError(f"{key!r} in {self.where} must be a table; got {_shown(inner)}", hint=hint)
        return self.checked(inner, checks, f"{key}.")

    def sections(self, content: Any) -> tuple[SectionPlan, ...]:
        if not _is_list(content) or not all(isinstance(section, dict) for section in content):
            raise FileError(f"'sections' in {self.where} must be tables; got {_shown(content)}", hint="write [[sections]]")
        return tuple(self.section(section, f"sections[{index}].") for index, section in enumerate(content))

    def section(self, content: Mapping[str, Any], prefix: str) -> SectionPlan:
        for key in ("kind", "title"):
            if key not in content:
                raise FileError(f"{prefix[:-1]!r} in {self.where} has no {key}", hint=f"kinds are {', '.join(KINDS)}")
        kind = self.value(SECTION["kind"], content, "kind", prefix)
        values = self.checked(content, SECTION | KINDS[kind], prefix)
        parameters = {key: value for key, value in values.items() if key not in SECTION}
        return SectionPlan(kind, values["title"], values.get("lead", ""), parameters)


def plural(term: str) -> str:
    """Return the English plural of a term.

    Examples
    --------
    >>> plural("slice"), plural("tariff class"), plural("policy"), plural("day")
    ('slices', 'tariff classes', 'policies', 'days')
    """
    if term.lower().endswith(("s", "x", "z", "ch", "sh")):
        return f"{term}es"
    return f"{term[:-1]}ies" if re.search("[^aeiou]y$", term) else f"{term}s"


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # an integer of more digits than Python prints, or deep nesting
        return f"a {type(value).__name__} too large to show"
