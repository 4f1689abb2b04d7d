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

PLACES = {
    "files", "model", "output", "report", "markdown", "csv", "json", "held_out", "labelled", "validation", "profile", "fix",
    "resume",
}  # fmt: skip
FILES, MODELS = '_trueup_files "$word"', '_trueup_models "$word"'
MODEL_PLACES = {"model", "fix"}
ZSH_MODELS = '_files -g "*.trueup"'
FISH_MODELS = "(__fish_complete_suffix .trueup)"  # these first, then the others
MORE_CHOICES = {"--profile": PROFILE_NAMES}


class Word(NamedTuple):
    """An option: how it is written, what it is, whether a value follows, and which values there are."""

    names: tuple[str, ...]
    about: str
    takes: bool
    choices: tuple[str, ...]
    is_place: bool
    is_model: bool


class Verb(NamedTuple):
    """A verb: its name, what it does, its options, what may stand in its first place, and whether models or files may."""

    name: str
    about: str
    words: list[Word]
    choices: tuple[str, ...]
    takes_model: bool
    takes_files: bool


def run(arguments: argparse.Namespace) -> int:
    """Print the script; give the exit code."""
    console.emit(lambda stream: stream.write(script(arguments.shell)), data=True)
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
        places = {one.dest: tuple(map(str, one.choices or ())) for one in parser._actions if not one.option_strings}
        choices = next(filter(None, places.values()), ())
        yield Verb(name, about[name], options, choices, "model" in places, "files" in places)


def _word(action: argparse.Action) -> Word:
    choices = tuple(map(str, action.choices or ())) or MORE_CHOICES.get(action.option_strings[-1], ())
    about = str(action.help or "").partition(";")[0].replace("%%", "%")
    place, model = action.dest in PLACES, action.dest in MODEL_PLACES
    return Word(tuple(action.option_strings), about, action.nargs != 0, choices, place, model)


BASH_START = r"""# completion of trueup for bash: source <(trueup completion bash)
_trueup_add() {  # one line a name: names have spaces
    local name
    while IFS= read -r name; do COMPREPLY+=("$name"); done
}
_trueup_files() { _trueup_add < <(compgen -f -- "$1"); }
_trueup_models() {  # where there are none, any file
    _trueup_add < <(compgen -f -X '!*.trueup' -- "$1"; compgen -d -- "$1")
    [ "${#COMPREPLY[@]}" -gt 0 ] || _trueup_files "$1"
}
_trueup() {
    local word="${COMP_WORDS[COMP_CWORD]}" before="${COMP_WORDS[COMP_CWORD-1]}" verb="${COMP_WORDS[1]}" start=""
    COMPREPLY=()
    if [ "$word" = "=" ]; then word=""  # --task=, in words of their own or in one
    elif [ "$before" = "=" ]; then before="${COMP_WORDS[COMP_CWORD-2]}"
    fi
    case "$word" in --*=*) before="${word%%=*}"; start="$before="; word="${word#*=}" ;; esac
    _trueup_offer
    if [ -n "$start" ]; then COMPREPLY=("${COMPREPLY[@]/#/$start}"); fi
}
_trueup_offer() {
"""


def _bash(verbs: list[Verb]) -> str:
    names = " ".join([*(one.name for one in verbs), "--help", "--version"])
    lines = [f'    if [ "$COMP_CWORD" -eq 1 ]; then {_bash_words(names)}; return; fi', '    case "$verb $before" in']
    for verb in verbs:
        for word in verb.words:
            if word.choices:
                asked = "|".join(f'"{verb.name} {name}"' for name in word.names)
                more = f" {FILES};" if word.is_place else ""
                lines.append(f"    {asked}) {_bash_words(' '.join(word.choices))};{more} return ;;")
        for offer in (f"{MODELS}; ", f"{FILES}; ", ""):
            taking = [one for one in verb.words if one.takes and not one.choices and _bash_offer(one) == offer]
            asked = "|".join(f'"{verb.name} {name}"' for word in taking for name in word.names)
            lines += [f"    {asked}) {offer}return ;;"] if asked else []
    lines += [
        "    esac",
        '    case "$verb" in',
        *(f"    {one.name}) {_bash_rest(one)} ;;" for one in verbs),
        "    esac",
        "}",
    ]
    return BASH_START + "\n".join([*lines, "complete -o filenames -F _trueup trueup", ""])


def _bash_words(words: str) -> str:
    return f'COMPREPLY=($(compgen -W "{words}" -- "$word"))'


def _bash_offer(word: Word) -> str:
    return f"{MODELS}; " if word.is_model else f"{FILES}; " if word.is_place else ""


def _bash_rest(verb: Verb) -> str:
    """Offer what stands in no option: options, and what comes in the places of the verb."""
    options = _bash_words(" ".join(name for word in verb.words for name in word.names))
    if verb.choices:
        return f'case "$word" in -*) {options} ;; *) {_bash_words(" ".join(verb.choices))} ;; esac'
    files = f'; case "$word" in -*) ;; *) {FILES} ;; esac' if verb.takes_files else ""
    if not verb.takes_model:
        return options + files
    return f'case "$COMP_CWORD $word" in "2 -"*) {options} ;; "2 "*) {MODELS} ;; *) {options}{files} ;; esac'


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
        lines.append(" \\\n            ".join(["        _arguments", *given, *_zsh_rest(verb)]))
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


def _zsh_rest(verb: Verb) -> list[str]:
    """Offer what comes in the places of the verb; of models those by name first."""
    rest = [_quoted(f"1:value:({' '.join(verb.choices)})")] if verb.choices else []
    rest += [_quoted(f"1:model:{ZSH_MODELS}")] if verb.takes_model else []
    return [*rest, *(["'*:file:_files'"] if verb.takes_files else [])]


def _zsh_word(name: str, word: Word) -> str:
    about = "".join(letter for letter in word.about if letter not in "[]\\").replace(":", ",")
    offered = ZSH_MODELS if word.is_model else "_files" if word.is_place else ""
    offered = f"({' '.join(word.choices)})" if word.choices else offered
    equals = "=" if word.takes and name.startswith("--") else ""  # --task binary, and --task=binary
    return _quoted(f"*{name}{equals}[{about}]" + (f":value:{offered}" if word.takes else ""))


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
        lines += [f"{here} -k -a {_quoted(FISH_MODELS)}"] if verb.takes_model else []
        for word in verb.words:
            spelt = [f"-{'l' if name.startswith('--') else 's'} {name.lstrip('-')}" for name in word.names]
            offered = " -r" if word.is_place else " -x"
            offered = f" -r -k -a {_quoted(FISH_MODELS)}" if word.is_model else offered
            only = "-r" if word.is_place else "-x"  # a profile may be a file, too
            offered = f" {only} -a {_quoted(' '.join(word.choices))}" if word.choices else offered
            follows = offered if word.takes else ""
            lines.append(f"{here} {' '.join(spelt)}{follows} -d {_quoted(word.about)}")
    return "\n".join([*lines, ""])


def _quoted(text: str) -> str:
    return shlex.quote(text)
