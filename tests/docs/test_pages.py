"""The pages as a stranger follows them: shell commands run in order, and print what the page says they print."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import re
import runpy
import shlex
from pathlib import Path

import pytest

from trueup.cli import main

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LOOSE = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
WALKED = sorted(path for path in DOCS.glob("*.md") if "```console\n" in path.read_text())


def _commands(text):
    """Give each command of a console block with the output that is printed under it."""
    for part in re.split(r"^\$ ", text, flags=re.MULTILINE)[1:]:
        command, _, said = part.partition("\n")
        yield shlex.split(command), said


def _run(words):
    if words[:2] == ["pip", "install"]:
        return
    if words[0] == "python":
        runpy.run_path(words[1])
        return
    assert words[0] == "trueup", f"a page may run pip install, python FILE and trueup; got {words}"
    assert main(words[1:]) == 0


@pytest.mark.parametrize("path", WALKED, ids=lambda path: path.stem)
def test_commands_of_a_page_print_what_it_says(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for kind, text in BLOCK.findall(path.read_text()):
        named = re.match(r"# (\w+\.py)\n", text)
        if kind == "python" and named:
            Path(named[1]).write_text(text)
        for words, said in _commands(text) if kind == "console" else ():
            capsys.readouterr()
            _run(words)
            got = capsys.readouterr().out
            assert not said or doctest.OutputChecker().check_output(said, got, LOOSE), f"{words} printed\n{got}"


def test_the_quick_start_is_walked():
    assert "quickstart" in [path.stem for path in WALKED]


@pytest.mark.parametrize(
    "module",
    ["trueup", "trueup.metrics", "trueup.decisions", "trueup.figures", "trueup.errors", "trueup.mlflow", "trueup.simulate"],
)
def test_the_reference_lists_every_public_name_and_no_other(module):
    stem = module.rpartition(".")[2]
    found = importlib.import_module(module)
    modules = {"decisions", "errors", "figures", "metrics", "mlflow", "simulate"} if module == "trueup" else set()
    listed = re.findall(r"^   (\w+)$", (DOCS / "reference" / f"{stem}.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(set(found.__all__) - modules)


def test_every_page_is_in_the_contents():
    listed = set(re.findall(r"^(?:[\w ]+ <)?([\w/-]+)>?$", (DOCS / "index.md").read_text(), re.MULTILINE))
    assert {path.stem for path in DOCS.glob("*.md")} - {"index"} <= listed


def test_sizes_on_the_page_are_those_that_were_measured(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "bench")
    spec = importlib.util.spec_from_file_location("size", ROOT / "bench" / "size.py")
    size = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(size)
    found = size.figures()
    text = size.PAGE.read_text()
    assert size.page(text, found) == text
    assert found["bytes"] < found["limit"]
