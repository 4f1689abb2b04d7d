"""`trueup completion`: a script that lets a shell complete verbs, options and their values, made from the parser."""

from __future__ import annotations

import argparse
import shlex
from typing import TYPE_CHECKING, NamedTuple

from trueup.cli import console
from trueup.cli.parser import build_parser
from trueup.cli.verbs import PROFILE_NAMES

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["run", "script"]

PLACES = {
    "files", "model", "output", "report", "markdown", "csv", "json", "held_out", "labelled", "validation", "profile", "fix",
}  # fmt: skip
FILES = '_trueup_files "$word"'
MORE_CHOICES = {"--profile": PROFILE_NAMES}


class Word(NamedTuple):
    """An option: how it is written, what it is, whether a value follows, and which values there are."""

    names: tuple[str, ...]
    about: str
    takes: bool
    choices: tuple[str, ...]
    is_place: bool


class Verb(NamedTuple):
    """A verb: its name, what it does, its options, and what may stand in its first place."""

    name: str
    about: str
    words: list[Word]
    choices: tuple[str, ...]


def run(arguments: argparse.Namespace) -> int:
    """Print the script; give the exit code."""
    console.emit(lambda stream: stream.write(script(arguments.shell)))
    return 0


def script(shell: str) -> str:
    """Write the script for a shell: bash, zsh or fish."""
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](list(_verbs()))


def _verbs() -> Iterator[Verb]:
    """Read the verbs and options off the parser, so that they cannot differ."""
    (found,) = (one for one in build_parser()._actions if isinstance(one, argparse._SubParsersAction))
    about = {one.dest: str(one.help) for one in found._choices_actions}
    for name, parser in found.choices.items():
        options = [_word(one) for one in parser._actions if one.option_strings]
        first = next((one for one in parser._actions if not one.option_strings and one.choices), None)
        yield Verb(name, about[name], options, tuple(map(str, first.choices or ())) if first is not None else ())


def _word(action: argparse.Action) -> Word:
    choices = tuple(map(str, action.choices or ())) or MORE_CHOICES.get(action.option_strings[-1], ())
    about = str(action.help or "").partition(";")[0].replace("%%", "%")
    return Word(tuple(action.option_strings), about, action.nargs != 0, choices, action.dest in PLACES)


def _bash(verbs: list[Verb]) -> str:
    lines = ["# completion of trueup for bash: source <(trueup completion bash)"]
    lines += [
        "_trueup_files() {",  # one line a name: names have spaces
        "    local name",
        '    while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen -f -- "$1")',
        "}",
        "_trueup() {",
        '    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}"',
        "    COMPREPLY=()",
        "    if [ \"$COMP_CWORD\" -eq 1 ]; then",
        f'        COMPREPLY=($(compgen -W "{" ".join([*(one.name for one in verbs), "--help", "--version"])}" -- "$word"))',
        "        return",
        "    fi",
        '    case "$verb $before" in',
    ]  # fmt: skip
    for verb in verbs:
        for word in verb.words:
            if word.choices:
                asked = "|".join(f'"{verb.name} {name}"' for name in word.names)
                offer = f'COMPREPLY=($(compgen -W "{" ".join(word.choices)}" -- "$word"))'
                lines.append(f"    {asked}) {offer};{f' {FILES};' if word.is_place else ''} return ;;")
        for is_place, offer in ((True, f"{FILES}; "), (False, "")):
            taking = [one for one in verb.words if one.takes and not one.choices and one.is_place == is_place]
            asked = "|".join(f'"{verb.name} {name}"' for word in taking for name in word.names)
            lines += [f"    {asked}) {offer}return ;;"] if asked else []
    lines += ["    esac", '    case "$verb" in']
    for verb in verbs:
        words = " ".join([*verb.choices, *(name for word in verb.words for name in word.names)])
        lines.append(f'    {verb.name}) COMPREPLY=($(compgen -W "{words}" -- "$word")) ;;')
    lines += ["    esac", '    case "$word" in -*) ;; *) ' + FILES + " ;; esac", "}"]
    return "\n".join([*lines, "complete -o filenames -F _trueup trueup", ""])


def _zsh(verbs: list[Verb]) -> str:
    lines = ["#compdef trueup", "# completion of trueup for zsh: save it as _trueup in a folder of $fpath", "_trueup() {"]
    lines += ["    local -a verbs", "    verbs=("]
    lines += [f"        {_quoted(f'{one.name}:{one.about}')}" for one in verbs]
    lines += [
        "    )",
        "    if (( CURRENT == 2 )); then",
        "        _describe -t verbs 'verb' verbs",
        "        return",
        "    fi",
    ]
    lines += ['    local verb="${words[2]}"', "    shift words", "    (( CURRENT-- ))", '    case "$verb" in']
    for verb in verbs:
        lines.append(f"    {verb.name})")
        given = [_zsh_word(name, word) for word in verb.words for name in word.names]
        rest = f"'1:value:({' '.join(verb.choices)})'" if verb.choices else "'*:file:_files'"
        lines.append(" \\\n            ".join(["        _arguments", *given, rest]))
        lines.append("        ;;")
    return "\n".join(
        [
            *lines,
            "    esac",
            "}",
            'if [ "$funcstack[1]" = "_trueup" ]; then _trueup "$@"; else compdef _trueup trueup; fi',
            "",
        ]
    )


def _zsh_word(name: str, word: Word) -> str:
    about = "".join(letter for letter in word.about if letter not in "[]\\").replace(":", ",")
    offered = f"({' '.join(word.choices)})" if word.choices else "_files" if word.is_place else ""
    return _quoted(f"*{name}[{about}]" + (f":value:{offered}" if word.takes else ""))


def _fish(verbs: list[Verb]) -> str:
    names = " ".join(one.name for one in verbs)
    lines = ["# completion of trueup for fish: save it as trueup.fish in ~/.config/fish/completions"]
    lines += [f"complete -c trueup -f -n 'not __fish_seen_subcommand_from {names}' -l help -s h -d 'show help'"]
    for verb in verbs:
        lines.append(
            f"complete -c trueup -f -n 'not __fish_seen_subcommand_from {names}' -a {verb.name} -d {_quoted(verb.about)}"
        )
        here = f"complete -c trueup -n '__fish_seen_subcommand_from {verb.name}'"
        lines += [f"{here} -f -a {_quoted(' '.join(verb.choices))}"] if verb.choices else []
        for word in verb.words:
            spelt = [f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')}" for name in word.names]
            offered = f" -x -a {_quoted(' '.join(word.choices))}" if word.choices else " -r" if word.is_place else " -x"
            follows = offered if word.takes else ""
            lines.append(f"{here} {' '.join(spelt)}{follows} -d {_quoted(word.about)}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return shlex.quote(text)
