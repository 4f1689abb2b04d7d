"""Options with one meaning for all verbs, help with examples, and completion in shells."""

from __future__ import annotations

import argparse
import re
import shlex
import shutil
import subprocess

import pytest

from commands import call
from trueup.cli import parser
from trueup.cli.options import PROFILE_NAMES, SHELLS


def verbs():
    (result,) = (item for item in parser.build_parser()._actions if isinstance(item, argparse._SubParsersAction))
    return result.choices


def options():
    """Return every option with its verb."""
    for verb, its in verbs().items():
        for action in its._actions:
            for name in action.option_strings:
                yield verb, name, action


OWN_CHOICES = {("watch", "--fail-if"), ("watch", "--unlabelled")}  # the states of a monitor, and rows without an event


def meaning(action):
    """Return the part of the help that does not depend on the verb: up to the first semicolon, colon or parenthesis."""
    return re.split(r"[;:(]", action.help)[0].strip()


def test_options_have_the_same_meaning_for_all_verbs():
    seen = {}
    for verb, name, action in options():
        definition = (
            meaning(action),
            action.metavar,
            action.dest,
            action.nargs,
            getattr(action.type, "__qualname__", None),
        )
        first = seen.setdefault(name, (verb, definition))
        assert definition == first[1], f"{name} of {verb} is not that of {first[0]}"
    assert len(seen) > 50


def test_options_have_the_same_choices_for_all_verbs():
    seen = {}
    for verb, name, action in options():
        if (verb, name) not in OWN_CHOICES:
            assert seen.setdefault(name, action.choices) == action.choices, f"{name} of {verb}"


def test_options_are_lower_case_with_hyphens_and_have_help():
    for verb, name, action in options():
        assert re.fullmatch(r"-[a-z]|--[a-z]+(-[a-z]+)*", name), f"{verb} {name}"
        assert action.help, f"{verb} {name}"


def test_every_verb_has_the_common_options():
    for verb, its in verbs().items():
        taken = {name for action in its._actions for name in action.option_strings}
        assert {"--help", "--quiet", "--verbose", "--debug"} <= taken, verb
        assert ("--output" in taken) == ("-o" in taken), verb


@pytest.mark.parametrize("verb", verbs())
def test_examples_in_help_can_be_parsed(verb):
    epilog = verbs()[verb].epilog
    assert epilog.startswith("examples:\n")
    text = epilog.replace("\\\n", " ")
    lines = [line.partition(" | ")[0].partition("  #")[0] for line in text.splitlines() if "trueup " in line]
    commands = [re.sub(r"^.*?(?=trueup )", "", line) for line in lines if re.match(r"\s+(source <\()?trueup ", line)]
    assert commands
    for command in commands:
        words = shlex.split(command.partition(" > ")[0].strip().rstrip(")"))
        parser.build_parser().parse_args(words[1:])


def test_misspelt_choices_and_verbs_get_suggestions(capsys):
    roles = ["fit", "x.csv", "--outcome", "y", "--prediction", "p", "-o", "m.trueup"]
    assert call(capsys, *roles, "--method", "isotonik")[2].endswith("hint: did you mean --method isotonic?\n")
    assert call(capsys, "adit")[2].endswith("hint: did you mean audit?\n")
    assert call(capsys, *roles, "--method", "zzz")[2].endswith("hint: see trueup fit --help\n")


def test_numeric_options_state_what_they_need_and_what_they_got(capsys):
    for verb, name, action in options():
        if action.type in (int, float):  # not costs, which may be columns
            needed = {int: "an integer", float: "a number"}[action.type]
            code, out, err = call(capsys, verb, name, "few")
            assert (code, out) == (2, "")
            assert err == f"error: {name} must be {needed}; got 'few'\nhint: see trueup {verb} --help\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["audit", "x.csv", "--pred", "p"], "did you mean --prediction?"),
        (["plan", "--pre", "2%"], "did you mean --prediction or --prevalence?"),
        (["decide", "x.csv", "--cost=5"], "did you mean --cost-fn, --cost-fp, --cost-tp or --cost-tn?"),
        (["exp"], "did you mean explain or export?"),
        (["fit", "x.csv", "--method", "temp"], "did you mean --method temperature?"),
        (["audit", "x.csv", "--zoo", "p"], "see trueup audit --help"),
    ],
)
def test_the_beginning_of_a_word_is_completed(words, hint, capsys):
    code, _, err = call(capsys, *words)
    assert code == 2
    assert err.splitlines()[-1] == f"hint: {hint}"


@pytest.mark.parametrize(
    "words", [["fit", "x.csv", "--outcome", "y", "--prediction", "p"], ["export", "m.trueup"], ["demo"]]
)
def test_what_is_always_a_file_does_not_go_to_standard_output(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "x.csv").write_text("y,p\n1,0.2\n")
    code, out, err = call(capsys, *words, "-o", "-")
    assert (code, out) == (2, "")
    assert err.startswith("error: -o - is not possible here: the output is a file\nhint: name it, such as -o ")


def test_help_lists_the_existing_profiles():
    from trueup.reports.profiles import PROFILES

    assert set(PROFILE_NAMES) == set(PROFILES)


# Completion


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_contains_every_verb_and_option(capsys, shell):
    code, out, err = call(capsys, "completion", shell)
    assert (code, err) == (0, "")
    for verb, name, _ in options():
        assert verb in out
        assert (name.lstrip("-") if shell in ("fish", "tcsh") else name) in out, name
    assert "isotonic" in out


def test_an_unknown_shell_is_an_error(capsys):
    code, out, err = call(capsys, "completion", "fisch")
    assert (code, out) == (2, "")
    assert "did you mean fish?" in err


@pytest.mark.parametrize("shell", [shell for shell in SHELLS if shutil.which(shell) is not None])
def test_a_shell_parses_its_script(tmp_path, capsys, shell):
    (tmp_path / "script").write_text(call(capsys, "completion", shell)[1])
    done = subprocess.run([shell, "-n", str(tmp_path / "script")], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("au", {"audit"}),
        ("-", {"-h", "--help", "--version"}),
        ("''", set(verbs())),
        ("audit --out", {"--outcome", "--output"}),
        ("fit x.csv --method mc", {"mcgrad"}),
        ("audit --profile c", {"credit"}),
        ("audit sc", {"scores.csv"}),
        ("audit scores.csv sc", {"scores.csv"}),
        ("audit --report sc", {"scores.csv"}),
        ("audit -o my", {"my scores.csv"}),
        ("audit --outcome ''", set()),
        ("audit x.csv --spill sp", {"spill"}),
        ("completion ''", set(SHELLS)),
        ("completion -", {"-h", "--help", "--quiet", "--verbose", "--debug"}),
        ("predict m", {"m.trueup"}),
        ("predict m.trueup sc", {"scores.csv"}),
        ("explain m", {"m.trueup"}),
        ("explain --js", {"--json"}),
        ("audit x.csv --fix m", {"m.trueup"}),
    ],
)
def test_bash_completes_words(tmp_path, capsys, words, offered):
    for name in ("scores.csv", "my scores.csv", "m.trueup"):
        (tmp_path / name).touch()
    (tmp_path / "spill").mkdir()
    script = call(capsys, "completion", "bash")[1]
    code = f"{script}COMP_WORDS=(trueup {words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); _shtab_trueup; "
    code += 'printf "%s\\n" "${COMPREPLY[@]}"'
    done = subprocess.run(["bash", "-c", code], capture_output=True, text=True, check=True, cwd=tmp_path)
    assert set(filter(None, done.stdout.split("\n"))) == offered
    assert done.stderr == ""
