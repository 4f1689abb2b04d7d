"""bench/kill.py in small: commands killed at random moments leave the input, and an old or a new output."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest


@pytest.mark.skipif(sys.platform == "win32", reason="needs the signals of POSIX")
@pytest.mark.repeated(1, 10)
def test_a_killed_prediction_leaves_an_old_or_a_new_file(tmp_path, repetitions):
    spec = importlib.util.spec_from_file_location("kill", Path(__file__).parents[1] / "bench" / "kill.py")
    assert spec is not None
    assert spec.loader is not None
    kill = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(kill)
    cases = [case for case in kill.CASES if case.name == "predict"]
    result = kill.measure(tmp_path, repetitions, rows=2_000, seed=0, cases=cases)
    assert [counts["failures"] for counts in result.values()] == [[], []]
    assert [counts["old"] + counts["new"] for counts in result.values()] == [repetitions] * 2
