"""Inputs that once failed are refused by our errors or accepted, as are a few new ones; the fuzzer notices what is wrong."""

from __future__ import annotations

import json

import pytest

from fuzz import run, targets
from fuzz.inputs import COMMANDS
from fuzz.run import Examiner, corpus
from fuzz.targets import ROLES, RuleViolationError, examine, prepare


@pytest.fixture(scope="module")
def prepared(tmp_path_factory):
    directory = tmp_path_factory.mktemp("fuzz")
    prepare(directory)
    return directory


@pytest.fixture
def rows(prepared, monkeypatch):
    """Run in the directory of the files that commands name."""
    monkeypatch.chdir(prepared)


@pytest.mark.parametrize("name", sorted(corpus()))
def test_what_once_failed_is_mended(rows, name):
    kind, given = corpus()[name]
    examine(kind, given)


@pytest.mark.parametrize("kind", sorted(run.SHARES))
def test_no_target_fails_on_new_inputs(rows, kind, tmp_path):
    examiner = Examiner(kind, tmp_path)
    examiner.run_batch(1, 12)
    assert examiner.failures == {}
    assert examiner.counts["tried"] >= 10


UNCHANGED = {"manifest": [], "arrays": [], "bytes": [], "call": "export"}
QUERY = {"files": True, "text": []}
VALID = [("model", {"golden": name, **UNCHANGED}) for name in ("mcgrad-2.trueup", "classics/beta-1.trueup")]
VALID += [("query", {"query": "FROM data", "call": call, **QUERY}) for call in ("read", "audit", "scan", "predict")]
VALID += [("command", {"words": command.replace("$", " ").split(" ")}) for command in COMMANDS[12:14]]


@pytest.mark.parametrize(("kind", "given"), VALID)
def test_valid_inputs_are_accepted(rows, kind, given):
    assert not examine(kind, given)


@pytest.mark.parametrize(("kind", "given"), VALID)
def test_damaged_inputs_are_refused(rows, kind, given):
    damage = {"bytes": [[0.5, "flip", ""]], "query": "FROM", "words": ["audit", "no.csv", *ROLES]}
    assert examine(kind, given | {name: value for name, value in damage.items() if name in given})


def test_an_unexpected_error_is_kept_with_a_small_input(rows, tmp_path, monkeypatch):
    def fail(given):
        if "--depth" in given["words"]:
            raise KeyError("no such thing")

    monkeypatch.setitem(targets.TARGETS, "command", fail)
    examiner = Examiner("command", tmp_path)
    examiner.run_batch(1, 300)
    ((name, failure),) = examiner.failures.items()
    assert name.startswith("KeyError")
    assert failure["input"]["words"].count("--depth") == 1
    assert len(failure["input"]["words"]) <= 20
    path = run.keep("command", failure["input"], failure["failure"], tmp_path)
    assert json.loads(path.read_text())["input"] == failure["input"]


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (lambda path: path.write_text("y,p\n"), "the input file in.csv was changed"),
        (lambda path: path.unlink(), "the input file in.csv was changed"),
        (lambda path: path.with_name(".trueup-1.tmp").touch(), r"the temporary file \.trueup-1\.tmp was left behind"),
    ],
)
def test_a_changed_file_is_noticed_and_restored(rows, prepared, monkeypatch, harm, message):
    content = (prepared / "in.csv").read_bytes()
    monkeypatch.setitem(targets.TARGETS, "command", lambda _: harm(prepared / "in.csv"))
    with pytest.raises(RuleViolationError, match=message):
        examine("command", {})
    assert (prepared / "in.csv").read_bytes() == content


def test_an_internal_error_of_the_command_line_is_noticed(rows, monkeypatch):
    monkeypatch.setattr(targets, "main", lambda _: 3)
    with pytest.raises(RuleViolationError, match="exit code 3"):
        examine("command", {"words": ["--version"]})


@pytest.mark.parametrize(
    ("code", "reason"), [("import os; os.abort()", "status -6"), ("import time; time.sleep(60)", "no result within 1 s")]
)
def test_a_crash_and_a_hang_are_noticed(tmp_path, monkeypatch, code, reason):
    (tmp_path / run.INPUT).write_text("{}")
    monkeypatch.setattr(run, "HANG_SECONDS", 1)
    monkeypatch.setattr(run, "CHILD", ["-c", code])
    assert reason in run.watch_child("command", 5, 1, tmp_path)
