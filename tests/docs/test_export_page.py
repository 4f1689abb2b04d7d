"""The code of docs/export.md where trueup is not installed: ONNX in Python, and a program in C."""

from __future__ import annotations

import doctest
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import trueup as tu
from packages import need

PAGE = (Path(__file__).parents[2] / "docs" / "export.md").read_text()
ROW = {"prediction": 0.12, "region": "harbour", "product": "card", "age": 44, "income": None}


@pytest.fixture(scope="module")
def fix():
    loans = tu.simulate.lending(10_000, seed=0)
    return tu.MCGrad("prediction", ["region", "product", "age", "income"], stopping=None, rounds=1).fit(loans, "outcome")


def test_the_graph_runs_in_a_process_without_trueup(fix, tmp_path):
    need("onnxruntime")
    tu.export(fix, tmp_path / "loans.onnx")
    lines = [example.source for example in doctest.DocTestParser().get_examples(PAGE)]
    first = next(at for at, line in enumerate(lines) if "import json, numpy as np, onnxruntime" in line)
    last = next(at for at, line in enumerate(lines) if line.startswith("scores = session.run"))
    program = (
        "import sys\nsys.modules['trueup'] = None\n" + "".join(lines[first : last + 1]) + "print(repr(float(scores[0])))"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert abs(float(done.stdout) - fix.predict_one(ROW)) <= 4e-16


def test_the_program_in_c_computes_the_score(fix, tmp_path):
    if shutil.which("cc") is None:
        pytest.skip("no C compiler is installed")  # tests/exports/test_c.py fails in CI
    tu.export(fix, tmp_path / "loans.h", prefix="loans")
    (code,) = re.findall(r"^```c\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    include, body = code.split("\n", 1)
    main = f'#include <stdio.h>\n{include}\nint main(void) {{\n{body}\nprintf("%.17g", corrected);\nreturn 0;\n}}\n'
    (tmp_path / "main.c").write_text(main)
    subprocess.run(["cc", "-o", tmp_path / "main", tmp_path / "main.c", "-lm"], check=True)
    done = subprocess.run([tmp_path / "main"], capture_output=True, text=True, check=True)
    assert abs(float(done.stdout) - fix.predict_one(ROW)) <= 4e-16
