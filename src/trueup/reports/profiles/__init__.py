"""Profiles: the vocabulary, sections and audit defaults of a domain, read from a TOML file of this directory or elsewhere.

A profile may come from anyone: every value is validated, and nothing in the file is executed.
"""

from __future__ import annotations

import difflib
import os
import re
import tomllib
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trueup.errors import ArgumentError, FileError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping

MAX_FILE_BYTES = 65_536
MAX_TERM_LENGTH, MAX_TITLE_LENGTH, MAX_TEXT_LENGTH = 60, 200, 1_000  # characters
MAX_ITEMS = 200  # of a list, and of sections
METRICS = {
    "normalized entropy": (
        "normalised entropy",
        "log loss divided by that of always predicting the mean; below 1 the scores are informative",
    ),
    "log loss": ("log loss", "mean negative log-likelihood of the outcomes, in nats; lower is better"),
    "brier": ("Brier score", "mean squared difference between score and outcome; lower is better"),
    "miscalibration": ("miscalibration", "part of the Brier score that recalibration can remove"),
    "discrimination": ("discrimination", "part of the Brier score gained by ranking rows by risk"),
    "uncertainty": ("uncertainty", "Brier score of always predicting the mean"),
    "auc": (
        "AUC",
        "probability that a positive has a higher score than a negative; 0.5 is random. It does not measure calibration",
    ),
    "gini": (
        "Gini",
        "2 AUC - 1: how well scores rank rows by risk; 0 is random, 1 perfect. It does not measure calibration",
    ),
    "ks": ("KS", "largest distance between the score distributions of positives and negatives"),
    "hosmer-lemeshow_p": ("Hosmer-Lemeshow p", "p-value of the test in deciles of the score; it depends on the bins"),
    "slope": ("slope", "1 if calibrated; below 1 the scores are too extreme, above 1 not extreme enough"),
    "intercept": ("intercept", "0 if calibrated, given the slope; on the logit scale"),
    "in the large": ("calibration in the large", "0 if calibrated; above 0 the scores are too low; on the logit scale"),
    "observed": ("observed", "mean outcome"),
    "expected": ("expected", "mean score"),
    "rmse": ("root mean squared error", "typical difference between prediction and outcome, in their units"),
}
"""Name and meaning of the metrics of all rows, by their key in the summary of an audit."""
_files = (path.name.removesuffix(".toml") for path in resources.files(__package__).iterdir() if path.name.endswith(".toml"))
PROFILES = tuple(sorted(_files, key=lambda name: (name != "general", name)))
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

    ``defaults`` are arguments of `trueup.audit`, and ``top``; explicit arguments take precedence. ``sign_off`` names who
    signs the printed page.
    """

    name: str
    title: str = "Calibration audit"
    description: str = ""
    vocabulary: Vocabulary = DEFAULT_VOCABULARY
    defaults: Mapping[str, Any] = field(default_factory=dict)
    sections: tuple[SectionPlan, ...] = ()
    sign_off: tuple[str, ...] = ()

    def require(self, argument: str) -> None:
        """Raise unless some section uses ``argument``: "reference" or "exposure"."""
        if not {plan.kind for plan in self.sections} & set(USERS[argument]):
            hint = f"use the profile credit, or add a section of kind {' or '.join(USERS[argument])}"
            raise ArgumentError(f"the profile {self.name!r} has no section for {argument}", hint=hint, parameter=argument)

    def options(self, columns: Iterable[str]) -> dict[str, Any]:
        """Return the defaults for data with these columns: names of absent columns are left out, case is ignored."""
        known = {name.casefold(): name for name in columns}
        options = dict(self.defaults)
        for key in ("by", "categorical"):
            names = [known[name.casefold()] for name in options.pop(key, ()) if name.casefold() in known]
            options |= {key: list(dict.fromkeys(names))} if names else {}
        return options


class Check(NamedTuple):
    """A requirement on a value of a profile: its description, its condition, and the conversion of a valid value."""

    description: str
    valid: Callable[[Any], object]
    keep: Callable[[Any], Any] = lambda value: value


def _text(limit: int) -> Check:
    def valid(value: Any) -> object:
        return isinstance(value, str) and value.strip() and len(value) <= limit and value.isprintable()

    return Check(f"text of 1 to {limit:,} characters on one line", valid, str.strip)


def _integer(low: int, high: int) -> Check:
    return Check(f"an integer from {low} to {high:,}", lambda value: type(value) is int and low <= value <= high)


def _choice(allowed: Collection[str]) -> Check:
    return Check(f"one of {', '.join(allowed)}", lambda value: isinstance(value, str) and value in allowed)


def _list(description: str, valid: Callable[[Any], bool], *, empty: bool = False) -> Check:
    def fits(value: Any) -> object:
        return isinstance(value, list) and (empty or value) and len(value) <= MAX_ITEMS and all(map(valid, value))

    return Check(description, fits, lambda value: tuple(dict.fromkeys(value)))


def _is_fraction(value: Any) -> bool:
    return type(value) in (int, float) and 0 < value < 1


_fraction = Check("a number between 0 and 1", _is_fraction, float)
_names = _list(f"a list of at most {MAX_ITEMS} names", lambda name: isinstance(name, str) and name != "", empty=True)
_metrics = _list(f"a list of these: {', '.join(METRICS)}", lambda name: isinstance(name, str) and name in METRICS)
_thresholds = _list(  # the counts behind a decision curve are kept at multiples of 0.01
    "a list of multiples of 0.01, such as [0.05, 0.1]",
    lambda value: _is_fraction(value) and abs(value - round(value, 2)) < 1e-9,
)
_term = _text(MAX_TERM_LENGTH)
_lights = Check(
    "two p-values, of amber and of red, such as [0.05, 0.01]",
    lambda value: isinstance(value, list) and len(value) == 2 and all(map(_is_fraction, value)) and value[0] > value[1],
    tuple,
)
_signers = _list(
    f"a list of texts of 1 to {MAX_TERM_LENGTH} characters", lambda value: bool(_term.valid(value)), empty=True
)
_tables = Check(
    "tables, written as [[sections]]",
    lambda value: isinstance(value, list) and len(value) <= MAX_ITEMS and all(isinstance(item, dict) for item in value),
)
# Kinds of sections and their parameters; `sections` builds them.
KINDS: dict[str, dict[str, Check]] = {
    "grades": {"columns": _names, "level": _fraction, "lights": _lights},
    "vintages": {"columns": _names, "level": _fraction, "lights": _lights},
    "validation": {"level": _fraction},
    "stability": {},
    "fields": {},
    "values": {"max_rows": _integer(1, 10_000), "fields": _names},
    "metrics": {"show": _metrics},
    "slope": {"level": _fraction},
    "decision": {"thresholds": _thresholds, "max_threshold": _fraction},
}
USERS = {"reference": ("validation", "stability"), "exposure": ("grades", "vintages")}
"""Kinds of sections that use these arguments of `trueup.report`."""
SECTION: dict[str, Check] = {"kind": _choice(KINDS), "title": _text(MAX_TITLE_LENGTH), "lead": _text(MAX_TEXT_LENGTH)}
DEFAULTS: dict[str, Check] = {
    "by": _names,
    "categorical": _names,
    "depth": _integer(1, 3),
    "alpha": _fraction,
    "min_rows": _integer(1, 10**9),
    "adjust": _choice(("holm", "max", "bh", "by")),
    "top": _integer(0, 10**6),
}
SCHEMA: dict[str, Any] = {
    "name": _text(MAX_TERM_LENGTH),
    "title": _text(MAX_TITLE_LENGTH),
    "description": _text(MAX_TEXT_LENGTH),
    "extends": _choice(PROFILES),
    "vocabulary": {term.name: _text(MAX_TERM_LENGTH) for term in fields(Vocabulary)},
    "defaults": DEFAULTS,
    "sections": _tables,
    "sign_off": _signers,
}


def load_profile(name: str | os.PathLike[str]) -> Profile:
    """Read a profile: one of `PROFILES` by name, or a TOML file by path."""
    available = f"profiles are {', '.join(PROFILES)}"
    if isinstance(name, str) and name in PROFILES:
        text = resources.files(__package__).joinpath(f"{name}.toml").read_text(encoding="utf-8")
        return _parse(text, f"profile {name!r}")
    if not isinstance(name, (str, os.PathLike)):
        raise ArgumentError(f"a profile is a name or a path; got {type(name).__qualname__}", hint=available)
    path = Path(name)
    if isinstance(name, str) and path.suffix != ".toml" and len(path.parts) <= 1:
        similar = difflib.get_close_matches(name.lower(), PROFILES, n=1)
        guess = f"did you mean {similar[0]!r}? " if similar else ""
        hint = f"{guess}{available}; or pass the path of a file, such as my.toml"
        raise ArgumentError(f"there is no profile {name!r}", hint=hint)
    return _parse(_read_text(path), f"profile {str(path)!r}")


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


def _parse(text: str, where: str) -> Profile:
    """Parse and validate a profile; ``where`` names it in messages."""
    try:
        content = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # malformed, integers of too many digits, or nested too deep
        reason = "nested too deep" if isinstance(error, RecursionError) else str(error)
        raise FileError(f"{where} is not TOML: {reason}", hint='a line reads: name = "value"') from error
    values = _validate(content, SCHEMA, where)
    if "name" not in values:
        raise FileError(f"{where} has no name", hint='begin with a line such as: name = "insurance"')
    base = load_profile(values.pop("extends")) if "extends" in values else Profile("")
    terms = values.pop("vocabulary", {})
    for term in ("outcome", "segment"):
        if term in terms:
            terms.setdefault(f"{term}s", plural(terms[term]))
    plans = []
    for index, section in enumerate(values.pop("sections", ())):
        for key in ("kind", "title"):
            if key not in section:
                raise FileError(f"'sections[{index}]' in {where} has no {key}", hint=f"kinds are {', '.join(KINDS)}")
        prefix = f"sections[{index}]."
        kind = _validate({"kind": section["kind"]}, SECTION, where, prefix)["kind"]
        checked = _validate(section, SECTION | KINDS[kind], where, prefix)
        parameters = {key: value for key, value in checked.items() if key not in SECTION}
        plans.append(SectionPlan(kind, checked["title"], checked.get("lead", ""), parameters))
    return replace(
        base,
        vocabulary=replace(base.vocabulary, **terms),
        defaults={**base.defaults, **values.pop("defaults", {})},
        sections=tuple(plans) if "sections" in content else base.sections,
        **values,
    )


def _validate(content: Mapping[str, Any], schema: Mapping[str, Any], where: str, prefix: str = "") -> dict[str, Any]:
    """Return the values of a TOML table checked by ``schema``; errors name the profile, ``where``, and ``prefix`` + key."""
    values = {}
    for key, value in content.items():
        if key not in schema:
            similar = difflib.get_close_matches(key, list(schema), n=1)
            hint = f"did you mean {similar[0]!r}?" if similar else f"known keys here are {', '.join(schema) or 'none'}"
            raise FileError(f"{where} has an unknown key {prefix + key[:80]!r}", hint=hint)
        check = schema[key]
        if isinstance(check, Check) and check.valid(value):
            values[key] = check.keep(value)
        elif isinstance(check, dict) and isinstance(value, dict):
            values[key] = _validate(value, check, where, f"{prefix}{key}.")
        else:
            requirement = check.description if isinstance(check, Check) else f"a table, written as [{key}]"
            raise FileError(f"{prefix + key!r} in {where} must be {requirement}; got {_shown(value)}")
    return values


def plural(term: str) -> str:
    """Return the English plural of a term."""
    if term.lower().endswith(("s", "x", "z", "ch", "sh")):
        return f"{term}es"
    return f"{term[:-1]}ies" if re.search("[^aeiou]y$", term) else f"{term}s"


def _shown(value: Any) -> str:
    try:
        return f"{value!r:.80}"
    except (ValueError, RecursionError):  # an integer of more digits than Python prints, or deep nesting
        return f"a {type(value).__name__} too large to show"
