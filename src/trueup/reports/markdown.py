"""A summary in Markdown, for a pull request or a chat: what was found, in a few tables."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Any

from trueup.audits.text import ADJUSTMENTS, deviation, how_far, notes, number, shorten, worst_deviation
from trueup.errors import ArgumentError
from trueup.reports.advice import next_step
from trueup.reports.compare import OTHER_ROWS, find, off_parts, same_rows, step_after
from trueup.reports.fix import has_taught, view_fix
from trueup.reports.page import name_audits
from trueup.reports.profiles import Profile, load_profile, sections
from trueup.reports.provenance import python_call
from trueup.reports.whole import portrait_of

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping, Sequence

    from trueup.audits.result import Audit, Finding
    from trueup.reports.advice import Step
    from trueup.reports.profiles import Words
    from trueup.reports.view import Section

MOST_NOTES = 10
MOST_LINES = 40  # of the table of a section
MOST_CORRECTIONS = 10  # of a fix
MOST_FILES = 5
LONGEST = 2_000  # letters of a lead
WIDEST = 120
SPECIAL = re.compile(r"[\\`*_{}\[\]<>|~&]")
SPECIAL_IN_CODE = re.compile(r"[`|\\<>]")
MEASURES = {
    "log loss": "log loss", "normalized entropy": "normalised entropy", "brier": "Brier score",
    "miscalibration": "miscalibration (of the Brier score)", "auc": "AUC", "rmse": "root mean squared error",
}  # fmt: skip


def markdown(
    results: Audit | Sequence[Audit] | Mapping[str, Audit],
    profile: str | Profile = "general",
    top: int = 10,
    fix: Any = None,
    title: str | None = None,
) -> str:
    """Sum up one audit, or several of the same rows, as Markdown such as GitHub shows it.

    Names from the data are shown as code, so that nothing in them is read as markup, as a link or as a mention.

    Parameters
    ----------
    results : Audit, sequence of Audit, or mapping of str to Audit
        Two audits in a sequence are named "before" and "after"; a mapping gives the names. The first and the last are
        compared.
    profile : str or Profile
        Whose words and tables to use: a name, the path of a file, or a `Profile`.
    top : int
        How many segments to list.
    fix : calibrator or Model, optional
        What was fitted between two audits: the summary tells what it corrected.
    title : str, optional
        What stands above the verdict; that of the profile by default.

    Examples
    --------
    >>> import trueup as tu
    >>> data = tu.simulate.lending(20_000, seed=1)
    >>> found = tu.audit(data, outcome="outcome", prediction="prediction", by=["region"])
    >>> print(markdown(found, top=1)[:118])
    ## Calibration audit
    <BLANKLINE>
    **miscalibrated: 2 of 13 segments at 5% (Holm)**, worst `region=harbour`: observed/expected 1.64
    """
    if isinstance(top, bool) or not isinstance(top, int) or top < 0:
        raise ArgumentError(f"top must be a whole number of at least 0; got {top!r}")
    given = profile if isinstance(profile, Profile) else load_profile(profile)
    named = name_audits(results)
    (name, last), words, found = list(named.items())[-1], given.words, list(named.values())
    taught = has_taught(fix, found)  # asked first: later the rows of the audits are gone
    heading = prose(given.title if title is None else str(title))
    parts = [f"## {heading}", *_verdicts(named, words, taught=taught), _figures(named, words)]
    if top:
        parts += _worst(last, words, top) if len(named) == 1 else _moved(named, words, top)
    parts += [part for section in sections(last, given) for part in _section(section, name)]
    fixed = view_fix(fix, found, words, taught=taught)
    parts += [part for section in fixed for part in _section(section, "", MOST_CORRECTIONS)]
    parts += [*_untested(last, words), _provenance(last, words)]
    return "\n\n".join(parts) + "\n"


# Text of all kinds


def code(text: str, width: int = WIDEST) -> str:
    """Show a text from the data as code, on one line, safe in a table.

    Examples
    --------
    >>> code("country=BR & device=tv"), code("a|b `c`")
    ('`country=BR & device=tv`', '<code>a&#124;b &#96;c&#96;</code>')
    """
    short = shorten(text, width)
    if short == short.strip() and short and not SPECIAL_IN_CODE.search(short):
        return f"`{short}`"
    # In the element's text Markdown still holds: what means something there is written as a number.
    told = "".join(one if one.isalnum() or one in " =.,·…-" or ord(one) > 127 else f"&#{ord(one)};" for one in short)
    return f"<code>{told.replace('www.', 'www&#46;')}</code>"


def prose(text: str, width: int = 400) -> str:
    r"""Show a text as it is, whatever it holds: no markup, no mention, no link.

    Examples
    --------
    >>> prose("a_b <b> | c"), prose("see https://x.y")
    ('a&#95;b &#60;b&#62; &#124; c', 'see https&#58;//x.y')
    """
    told = SPECIAL.sub(lambda found: f"&#{ord(found.group())};", shorten(text, width))
    told = told.replace("://", "&#58;//").replace("www.", "www&#46;")
    return re.sub(r"(?<!&)([@#])(?=\w)", "\\1\u200b", told)  # a mention needs the letters right behind the sign


def _table(headings: Sequence[str], rows: Iterable[Sequence[str]], texts: Collection[int] = (0,)) -> str:
    """Write a table; columns of texts, which are told by their places, stand to the left, numbers to the right."""
    line = ["---" if at in texts else "---:" for at in range(len(headings))]
    return "\n".join("| " + " | ".join(row) + " |" for row in [headings, line, *rows])


# The parts


def _verdict(audit: Audit, words: Words) -> str:
    """Give the verdict in the words of a trade, with the name of the worst segment as code."""
    start, found, _ = audit.verdict.partition(", worst ")  # no text from the data comes before it
    if not found:
        return f"**{_worded(start, words)}**"
    worst = audit.finding(0)
    return f"**{_worded(start, words)}**, worst {code(worst.segment)}: {how_far(worst)}"


def _worded(text: str, words: Words) -> str:
    """Put the words of a trade into a text that holds nothing from the data."""
    trade = {"segment": words.segment, "segments": words.segments, "rows": words.rows}
    return re.sub(r"\b(segments?|rows)\b", lambda found: prose(trade[found[0]]), text)


def _verdicts(named: Mapping[str, Audit], words: Words, *, taught: bool) -> list[str]:
    if len(named) == 1:
        (audit,) = named.values()
        return [_verdict(audit, words), _step(next_step(audit, words))]
    told = [f"- {code(name)}: {_verdict(audit, words)}" for name, audit in named.items()]
    return ["\n".join(told), _movement(named), _step(step_after(named, words, taught=taught))]


def _step(step: Step) -> str:
    """Write it as the page does: what follows a command stands after a comma."""
    if not step.command:
        return prose(step.text)
    return f"{prose(step.text)} {code(step.command, 400)}" + (f", {prose(step.after)}" if step.after else "")


def _movement(named: Mapping[str, Audit]) -> str:
    """Say how many segments were off in the first, still are in the last, and newly are."""
    names, audits = list(named), list(named.values())
    if not same_rows(audits[0], audits[-1]):
        return OTHER_ROWS
    was, now = (off_parts(audit) for audit in (audits[0], audits[-1]))
    return (
        f"From {code(names[0])} to {code(names[-1])}: {len(was):,} off before, {len(was - now):,} no longer found off, "
        f"{len(was & now):,} still off, {len(now - was):,} newly off."
    )


def _figures(named: Mapping[str, Audit], words: Words) -> str:
    """Set the key figures of every audit side by side."""
    columns = [_key_figures(audit, words) for audit in named.values()]
    labels = dict.fromkeys(label for column in columns for label in column)
    heads = ["", *(code(name) for name in named)] if len(named) > 1 else ["", "all rows"]
    return _table(heads, ([label, *(column.get(label, "-") for column in columns)] for label in labels))


def _key_figures(audit: Audit, words: Words) -> dict[str, str]:
    whole = audit.overall
    found = {
        prose(words.rows): f"{audit.rows:,}",
        f"{prose(words.segments)} tested": f"{audit.tested:,}",
        f"{prose(words.segments)} off": f"{audit.rejected:,}",
        "worst sigma": worst_deviation(audit),
        prose(words.observed): number(whole.observed, 4),
        prose(words.expected): number(whole.expected, 4),
    }
    if math.isfinite(whole.ratio):
        found["observed/expected"] = f"{number(whole.ratio)} ({number(whole.ratio_low)} to {number(whole.ratio_high)})"
    portrait = portrait_of(audit)
    scores = {} if portrait is None else portrait.scores
    known = {name: told for name, told in MEASURES.items() if math.isfinite(scores.get(name, math.nan))}
    return found | {told: number(scores[name], 4) for name, told in known.items()}


def _worst(audit: Audit, words: Words, top: int) -> list[str]:
    level = f"{100 * (1 - audit.settings.alpha):g}%"
    shown = audit.worst(min(top, audit.tested))
    if not shown:
        return []
    heads = [
        prose(words.segment), "state", prose(words.rows), prose(words.observed), prose(words.expected), "obs/exp",
        f"{level} interval", "sigma", "adjusted p",
    ]  # fmt: skip
    rows = [
        (
            code(one.segment), _state(audit, one), f"{one.n:,}", number(one.observed), number(one.expected),
            number(one.ratio), f"{number(one.ratio_low)} to {number(one.ratio_high)}",
            deviation(one.sigma, one.sigma_bound), number(one.p_adjusted, 2),
        )
        for one in shown
    ]  # fmt: skip
    more = audit.tested - len(shown)
    told = [f"and {more:,} more tested"] if more else []
    return [f"### Worst {prose(words.segments)}", _table(heads, rows, (0, 1)), *told]


def _state(audit: Audit, finding: Finding | None) -> str:
    if finding is None:
        return "not there"
    if not finding.testable:
        return "not tested"
    return "**off**" if finding.p_adjusted <= audit.settings.alpha else "within chance"


def _moved(named: Mapping[str, Audit], words: Words, top: int) -> list[str]:
    """List the worst of the first and of the last, and what became of them."""
    names, audits = list(named), list(named.values())
    ends = (audits[0], audits[-1])
    ranks: dict[tuple[str, ...], int] = {}
    for audit in ends:
        for rank in range(min(top, audit.tested)):
            parts = audit.keys.parts(rank)
            ranks[parts] = min(rank, ranks.get(parts, rank))
    chosen = sorted(ranks, key=lambda parts: ranks[parts])[:top]
    if not chosen:
        return []
    heads = [prose(words.segment), prose(words.rows)]
    heads += [f"{code(name)} {what}" for what in ("state", "obs/exp", "sigma") for name in (names[0], names[-1])]
    rows = []
    for parts in chosen:
        pair = [find(audit, parts) for audit in ends]
        name, count = max(((one.segment, one.n) for one in pair if one is not None), key=lambda known: known[1])
        rows.append([
            code(name), f"{count:,}", *(_state(audit, one) for audit, one in zip(ends, pair, strict=True)),
            *("-" if one is None else number(one.ratio) for one in pair),
            *("-" if one is None else deviation(one.sigma, one.sigma_bound) for one in pair),
        ])  # fmt: skip
    return [f"### Worst {prose(words.segments)}, then and now", _table(heads, rows, (0, 2, 3))]


def _section(section: Section, name: str, most: int = MOST_LINES) -> list[str]:
    """Write a section of a profile or of a fix; what is drawn is left to the page."""
    parts = [f"### {prose(section.title)}" + (f", {code(name)}" if name else "")]
    parts += [prose(section.lead, LONGEST)] if section.lead else []
    if section.table is None:
        return parts
    shown = [at for at, heading in enumerate(section.table.headings) if heading.kind != "forest"]
    heads = [prose(section.table.headings[at].text) for at in shown]
    kinds = [section.table.headings[at].kind for at in shown]
    rows = [
        [code(row[at].text) if kind == "name" else prose(row[at].text) for at, kind in zip(shown, kinds, strict=True)]
        for row in section.table.rows[:most]
    ]
    texts = [at for at, kind in enumerate(kinds) if kind != "number"]
    more = section.table.more + max(len(section.table.rows) - most, 0)
    return [*parts, _table(heads, rows, texts), *([f"and {more:,} more"] if more else [])]


def _untested(audit: Audit, words: Words) -> list[str]:
    """Say what could not be tested, and what was set aside."""
    found = [_worded(note, words) if note.startswith("too thin") else prose(note) for note in notes(audit)]
    alone = len(audit) - audit.tested
    if alone:
        many = words.segment if alone == 1 else words.segments
        found.append(f"{alone:,} {prose(many)} listed and not tested: too few {prose(words.rows)}")
    if not found:
        return []
    more = [f"and {len(found) - MOST_NOTES:,} more"] if len(found) > MOST_NOTES else []
    return ["### What could not be tested", "\n".join(f"- {note}" for note in [*found[:MOST_NOTES], *more])]


def _provenance(audit: Audit, words: Words) -> str:
    import trueup

    source, settings = audit.source, audit.settings
    portrait = portrait_of(audit)
    rows, segment = prose(words.rows), prose(words.segment)
    parts = [f"trueup {trueup.__version__}", f"{audit.rows:,} {rows}"]
    parts += [f"fingerprint `{portrait.fingerprint[:16]}`"] if portrait is not None else []
    for name, size, digest in source.files[:MOST_FILES] if source is not None else ():
        parts.append(f"{code(name)} ({size:,} bytes, SHA-256 `{digest[:16]}`)")
    more = len(source.files) - MOST_FILES if source is not None else 0
    parts += [f"and {more:,} more files"] if more > 0 else []
    parts.append(
        f"level {settings.alpha:g} ({ADJUSTMENTS[settings.adjust]}), at least {settings.min_rows:,} {rows} a {segment}"
    )
    told = source.command if source is not None and source.command else python_call(audit)
    return f"<sub>{' · '.join(parts)} · made again by {code(told, 400)}</sub>"
